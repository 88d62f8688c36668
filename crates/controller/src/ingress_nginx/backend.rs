//! Variables of nginx that have one value in a location: ingress-nginx sets them for what is behind the path of a rule.

/// Their names.
const NAMES: [&str; 4] = ["namespace", "ingress_name", "service_name", "service_port"];

/// What is behind the path of a rule.
#[derive(Clone, Copy, Debug)]
pub struct Backend<'b> {
    /// The namespace of the Ingress.
    pub namespace: &'b str,
    /// The name of the Ingress.
    pub ingress: &'b str,
    /// The name of the Service; empty for another object.
    pub service: &'b str,
    /// The number or the name of its port, as the rule has it.
    pub port: &'b str,
}

/// Whether a text has such variables and no others.
pub(super) fn has_only(text: &str) -> bool {
    let mut found = 0;
    split(text, |name| {
        found += usize::from(name.is_some());
        name.is_some_and(|name| NAMES.contains(&name))
    })
    .is_some()
        && found > 0
}

/// The text with the values of its variables.
pub fn filled(text: &str, backend: Backend<'_>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('$') {
        out.push_str(before);
        let (name, tail) = variable(after);
        out.push_str(match name {
            Some("namespace") => backend.namespace,
            Some("ingress_name") => backend.ingress,
            Some("service_name") => backend.service,
            Some("service_port") => backend.port,
            _ => "",
        });
        rest = tail;
    }
    out + rest
}

/// Calls with each variable; `None` if one is not taken.
fn split(text: &str, mut takes: impl FnMut(Option<&str>) -> bool) -> Option<()> {
    let mut rest = text;
    while let Some((_, after)) = rest.split_once('$') {
        let (name, tail) = variable(after);
        takes(name).then_some(())?;
        rest = tail;
    }
    Some(())
}

/// The name behind a `$`, perhaps in braces, and what follows.
fn variable(after: &str) -> (Option<&str>, &str) {
    let (text, is_braced) = after.strip_prefix('{').map_or((after, false), |inner| (inner, true));
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(text.len());
    let (name, tail) = text.split_at(end);
    let tail = if is_braced { tail.strip_prefix('}') } else { Some(tail) };
    match tail {
        Some(tail) if !name.is_empty() => (Some(name), tail),
        _ => (None, text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_a_location() {
        let backend = Backend { namespace: "shop", ingress: "in", service: "web", port: "80" };
        let check = |text: &str, expect: Option<&str>| {
            let found = has_only(text).then(|| filled(text, backend));
            assert_eq!(found.as_deref(), expect, "{text}");
        };
        check("$service_name.$namespace.svc.cluster.local:$service_port", Some("web.shop.svc.cluster.local:80"));
        check("${ingress_name}x$namespace", Some("inxshop"));
        check("$service_names", None);
        check("$namespace$host", None);
        check("$", None);
        check("${namespace", None);
        check("web", None);
    }
}
