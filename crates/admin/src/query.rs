//! Reads and writes the queries of requests.

use std::fmt::Write;

/// The parameters of a query. Each appears once.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Query(Vec<(&'static str, String)>);

impl Query {
    /// Parses a query whose parameters must be among `known`.
    pub(crate) fn parse(query: &str, known: &[&'static str]) -> Result<Self, String> {
        let mut found: Vec<(&'static str, String)> = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let Some(name) = known.iter().find(|known| **known == name) else {
                let known: Vec<String> = known.iter().map(|known| format!("`{known}`")).collect();
                let there = if known.is_empty() {
                    "none are known".into()
                } else {
                    format!("the known ones are {}", known.join(", "))
                };
                return Err(format!("unknown parameter `{name}`: {there}"));
            };
            let value = decode(value).ok_or_else(|| format!("the value of `{name}` is not percent-encoded UTF-8"))?;
            if found.iter().any(|(other, _)| other == name) {
                return Err(format!("`{name}` is given twice"));
            }
            found.push((name, value));
        }
        Ok(Self(found))
    }

    /// Parses what a form of a web page sends (application/x-www-form-urlencoded), where a `+` is a space.
    pub(crate) fn parse_form(query: &str, known: &[&'static str]) -> Result<Self, String> {
        Self::parse(&query.replace('+', "%20"), known)
    }

    /// The value of a parameter; `None` if it is missing or empty.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, value)| *known == name && !value.is_empty()).map(|(_, value)| value.as_str())
    }
}

/// A path with its query. Parameters without a value are left out.
pub(crate) fn path(path: &str, parameters: &[(&str, Option<&str>)]) -> String {
    let given = parameters.iter().filter_map(|(name, value)| Some(format!("{name}={}", encode((*value)?))));
    match given.collect::<Vec<_>>().join("&") {
        query if query.is_empty() => path.to_owned(),
        query => format!("{path}?{query}"),
    }
}

/// Percent-decoding (RFC 3986 section 2.1). A `+` stays a `+`, because no address has a space.
fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        let mut digit = || rest.next().and_then(|byte| char::from(byte).to_digit(16));
        bytes.push(if byte == b'%' { (digit()? * 16 + digit()?) as u8 } else { byte });
    }
    String::from_utf8(bytes).ok()
}

/// Encodes everything except the unreserved characters of RFC 3986 section 2.3.
fn encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            // Writing to a String cannot fail.
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries() {
        let check = |query: &str, expect: Result<(Option<&str>, Option<&str>), &str>| match (
            Query::parse(query, &["endpoint", "cluster"]),
            expect,
        ) {
            (Ok(have), Ok(expect)) => assert_eq!((have.get("endpoint"), have.get("cluster")), expect, "{query}"),
            (Err(have), Err(expect)) => assert!(have.starts_with(expect), "{query}: {have}"),
            (have, expect) => panic!("{query}: {have:?}, expected {expect:?}"),
        };
        check("endpoint=10.0.0.7:8080", Ok((Some("10.0.0.7:8080"), None)));
        check("endpoint=[::1]:80&cluster=web", Ok((Some("[::1]:80"), Some("web"))));
        check("&cluster=a%20b%C3%BC&&endpoint=%5B::1%5D:80", Ok((Some("[::1]:80"), Some("a bü"))));
        check("", Ok((None, None)));
        check("endpoint", Ok((None, None)));
        check("endpoint=a&endpoint=b", Err("`endpoint` is given twice"));
        check("endpoint=a&node=b", Err("unknown parameter `node`: the known ones are `endpoint`, `cluster`"));
        check("endpoint=%4", Err("the value of `endpoint` is not"));
        check("endpoint=%zz", Err("the value of `endpoint` is not"));
        check("endpoint=%ff", Err("the value of `endpoint` is not"));
        assert_eq!(Query::parse("a", &[]), Err("unknown parameter `a`: none are known".to_owned()));
    }

    #[test]
    fn encoded_is_decoded() {
        let check = |text: &str, expect: &str| {
            assert_eq!(encode(text), expect);
            assert_eq!(decode(expect).as_deref(), Some(text));
        };
        check("10.0.0.7:8080", "10.0.0.7%3A8080");
        check("a b&c=ü\r\n", "a%20b%26c%3D%C3%BC%0D%0A");
    }

    #[test]
    fn paths() {
        let check = |parameters: &[(&str, Option<&str>)], expect| assert_eq!(path("/p", parameters), expect);
        check(&[], "/p");
        check(&[("a", None)], "/p");
        check(&[("a", None), ("b", Some("10.0.0.7:80"))], "/p?b=10.0.0.7%3A80");
        check(&[("a", Some("x\r\ny")), ("b", Some("c d"))], "/p?a=x%0D%0Ay&b=c%20d");
    }
}
