//! Reads just enough of the Prometheus text format 0.0.4 to compute a sum.

/// The sum over all samples with this name and all of these labels; 0 if there is none.
pub fn sum(text: &str, name: &str, labels: &[(&str, &str)]) -> f64 {
    text.lines().filter_map(|line| sample(line, name, labels)).fold(0.0, |sum, value| sum + value)
}

fn sample(line: &str, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
    let rest = line.strip_prefix(name)?;
    let (have, value) = match rest.strip_prefix('{') {
        Some(rest) => rest.rsplit_once('}')?,
        None => ("", rest),
    };
    if !value.starts_with(' ') {
        return None; // A longer name.
    }
    let has = |(key, value): &(&str, &str)| have.split(',').any(|label| label == format!("{key}=\"{value}\""));
    if !labels.iter().all(has) {
        return None;
    }
    value.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums() {
        let text = "# HELP a_total x\n# TYPE a_total counter\na_total{l=\"web\",r=\"x\"} 2\na_total{l=\"api\",r=\"x\"} 3\n\
                    a_total{l=\"api\",r=\"y\"} 5\na_total_more 100\nb 7.5\n";
        let check = |name: &str, labels: &[(&str, &str)], expect: f64| {
            assert!((sum(text, name, labels) - expect).abs() < 1e-9, "{name} {labels:?}: {}", sum(text, name, labels));
        };
        check("a_total", &[], 10.0);
        check("a_total", &[("r", "x")], 5.0);
        check("a_total", &[("r", "y"), ("l", "api")], 5.0);
        check("a_total", &[("r", "z")], 0.0);
        check("b", &[], 7.5);
    }
}
