//! Samples, and a table of their medians.

use std::collections::BTreeMap;
use std::fmt::Write;

/// The figures of every round, by contender and figure, both in the order of their first occurrence.
#[derive(Default)]
pub struct Samples {
    contenders: Vec<String>,
    figures: Vec<&'static str>,
    values: BTreeMap<(String, &'static str), Vec<f64>>,
}

impl Samples {
    pub fn add(&mut self, contender: &str, figure: &'static str, value: f64) {
        if !self.contenders.iter().any(|known| known == contender) {
            self.contenders.push(contender.to_owned());
        }
        if !self.figures.contains(&figure) {
            self.figures.push(figure);
        }
        self.values.entry((contender.to_owned(), figure)).or_default().push(value);
    }

    /// One line with the first contender's figure divided by that of each other contender that has it. The division is
    /// per round, because a disturbance of a round affects all contenders in it. The line shows the median of the
    /// rounds with minimum and maximum.
    pub fn ratios(&self, figure: &'static str) -> String {
        let values = |contender: &str| self.values.get(&(contender.to_owned(), figure));
        let mut having = self.contenders.iter().filter(|contender| *contender != "direct");
        let Some((whose, own)) = having.next().and_then(|whose| Some((whose, values(whose)?))) else {
            return String::new();
        };
        let ratio = |other: &String| {
            let ratios: Vec<f64> = own.iter().zip(values(other)?).map(|(own, other)| own / other).collect();
            Some(format!("{} x {other}", spread(&ratios)))
        };
        let ratios: Vec<String> = having.filter_map(ratio).collect();
        format!("{figure} of {whose}: {}", ratios.join(", "))
    }

    /// One line for each value.
    pub fn append_csv(&self, scenario: &str, csv: &mut String) {
        for ((contender, figure), values) in &self.values {
            for (round, value) in values.iter().enumerate() {
                // Writing to a String cannot fail.
                let _ = writeln!(csv, "{scenario},{contender},{round},{figure},{value}");
            }
        }
    }
}

/// A row for each contender and a column for each figure: `median (min-max)`.
pub fn text(samples: &Samples) -> String {
    let mut rows = vec![vec![String::new()]];
    rows[0].extend(samples.figures.iter().map(|figure| (*figure).to_owned()));
    for contender in &samples.contenders {
        let mut row = vec![contender.clone()];
        for figure in &samples.figures {
            let values = samples.values.get(&(contender.clone(), *figure));
            row.push(values.map_or_else(|| "-".to_owned(), |values| spread(values)));
        }
        rows.push(row);
    }
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..=samples.figures.len()).map(|column| width(column).unwrap_or(0)).collect();
    let mut text = String::new();
    for row in &rows {
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            text += &if column == 0 { format!("{cell:<width$}") } else { format!("  {cell:>width$}") };
        }
        text.push('\n');
    }
    text
}

fn spread(values: &[f64]) -> String {
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let median = median(values).unwrap_or(f64::NAN);
    if least == most { short(median) } else { format!("{} ({}-{})", short(median), short(least), short(most)) }
}

/// The median; `None` if there are no values.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let upper = *sorted.get(sorted.len() / 2)?;
    let lower = if sorted.len().is_multiple_of(2) { sorted[sorted.len() / 2 - 1] } else { upper };
    Some((lower + upper) / 2.0)
}

/// Three significant digits, or all digits before the point if those are more.
fn short(value: f64) -> String {
    let decimals = match value.abs() {
        0.0 => 0,
        size if size < 0.1 => 4,
        size if size < 1.0 => 3,
        size if size < 10.0 => 2,
        size if size < 100.0 => 1,
        _ => 0,
    };
    format!("{value:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_spreads() {
        let check = |values: &[f64], expect: &str| assert_eq!(spread(values), expect, "{values:?}");
        check(&[3.0], "3.00");
        check(&[0.0, 0.0], "0");
        check(&[12.34, 11.0, 99.0], "12.3 (11.0-99.0)");
        check(&[1.0, 2.0, 3.0, 4.0], "2.50 (1.00-4.00)");
        check(&[61_325.2, 1000.0, 70_000.0], "61325 (1000-70000)");
        check(&[0.0521, 0.0521], "0.0521");
    }

    #[test]
    fn a_table_has_a_row_for_each_and_a_dash_where_nothing_was_measured() {
        let mut samples = Samples::default();
        samples.add("direct", "RPS", 5.0);
        samples.add("steelyard", "RPS", 4.0);
        samples.add("steelyard", "errors", 0.0);
        assert_eq!(text(&samples), "            RPS  errors\ndirect     5.00       -\nsteelyard  4.00       0\n");
        for (contender, rps) in [("nginx", 8.0), ("steelyard", 6.0), ("nginx", 3.0)] {
            samples.add(contender, "RPS", rps);
        }
        assert_eq!(samples.ratios("RPS"), "RPS of steelyard: 1.25 (0.500-2.00) x nginx");
        assert_eq!(samples.ratios("nothing"), "");
        let mut csv = String::new();
        samples.append_csv("http", &mut csv);
        assert_eq!(
            csv,
            "http,direct,0,RPS,5\n\
             http,nginx,0,RPS,8\nhttp,nginx,1,RPS,3\n\
             http,steelyard,0,RPS,4\nhttp,steelyard,1,RPS,6\nhttp,steelyard,0,errors,0\n"
        );
    }
}
