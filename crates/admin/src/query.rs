//! The query of a request to `/endpoint/...`, read and written.

use std::fmt::Write;

/// Which endpoint is meant.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct EndpointQuery {
    pub(crate) endpoint: String,
    /// `None`: in every cluster.
    pub(crate) cluster: Option<String>,
}

impl EndpointQuery {
    pub(crate) fn parse(query: &str) -> Result<Self, String> {
        let (mut endpoint, mut cluster) = (None, None);
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let place = match name {
                "endpoint" => &mut endpoint,
                "cluster" => &mut cluster,
                _ => return Err(format!("unknown parameter `{name}`: there are `endpoint` and `cluster`")),
            };
            let value = decode(value).ok_or_else(|| format!("the value of `{name}` is not percent-encoded UTF-8"))?;
            if place.replace(value).is_some() {
                return Err(format!("`{name}` is given twice"));
            }
        }
        match endpoint {
            Some(endpoint) if !endpoint.is_empty() => Ok(Self { endpoint, cluster }),
            _ => Err("say which endpoint: `?endpoint=10.0.0.7:8080`, and `&cluster=NAME` for one cluster only".into()),
        }
    }
}

/// RFC 3986 section 2.1. A `+` is a `+`: no address has a space.
fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        let mut digit = || rest.next().and_then(|byte| char::from(byte).to_digit(16));
        bytes.push(if byte == b'%' { (digit()? * 16 + digit()?) as u8 } else { byte });
    }
    String::from_utf8(bytes).ok()
}

/// Everything but what RFC 3986 section 2.3 calls unreserved is encoded.
pub(crate) fn encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            // Writing to a String does not fail.
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
        let check =
            |query: &str, expect: Result<(&str, Option<&str>), &str>| match (EndpointQuery::parse(query), expect) {
                (Ok(have), Ok((endpoint, cluster))) => {
                    assert_eq!((have.endpoint.as_str(), have.cluster.as_deref()), (endpoint, cluster), "{query}");
                }
                (Err(have), Err(expect)) => assert!(have.starts_with(expect), "{query}: {have}"),
                (have, expect) => panic!("{query}: {have:?}, expected {expect:?}"),
            };
        check("endpoint=10.0.0.7:8080", Ok(("10.0.0.7:8080", None)));
        check("endpoint=[::1]:80&cluster=web", Ok(("[::1]:80", Some("web"))));
        check("&cluster=a%20b%C3%BC&&endpoint=%5B::1%5D:80", Ok(("[::1]:80", Some("a bü"))));
        check("", Err("say which endpoint"));
        check("cluster=web", Err("say which endpoint"));
        check("endpoint", Err("say which endpoint"));
        check("endpoint=a&endpoint=b", Err("`endpoint` is given twice"));
        check("endpoint=a&node=b", Err("unknown parameter `node`"));
        check("endpoint=%4", Err("the value of `endpoint` is not"));
        check("endpoint=%zz", Err("the value of `endpoint` is not"));
        check("endpoint=%ff", Err("the value of `endpoint` is not"));
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
}
