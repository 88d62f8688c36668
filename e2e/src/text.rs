//! Text with escapes and variables, in which scripts write bytes.

use std::collections::BTreeMap;

/// Bytes, some of which become known only when the script is played.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Template(Vec<Part>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Bytes(Vec<u8>),
    /// The decimal number of the port with this name.
    Port(String),
}

/// No script sends more.
const REPEAT_MAX: usize = 16 * 1024 * 1024;

impl Template {
    /// Parses escapes. The error says which one is wrong.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut parts = Vec::new();
        let mut bytes = Vec::new();
        let mut rest = text;
        while let Some(at) = rest.find(['\\', '$']) {
            bytes.extend_from_slice(&rest.as_bytes()[..at]);
            rest = &rest[at..];
            if let Some(inside) = rest.strip_prefix("${") {
                let (name, after) = inside.split_once('}').ok_or("${ without }")?;
                rest = after;
                match name.rsplit_once('*') {
                    Some((what, times)) => bytes.extend(repeat(what, times)?),
                    None => {
                        parts.push(Part::Bytes(std::mem::take(&mut bytes)));
                        parts.push(Part::Port(name.to_owned()));
                    }
                }
            } else if let Some(after) = rest.strip_prefix('$') {
                bytes.push(b'$');
                rest = after;
            } else {
                let (byte, length) = escape(rest).ok_or_else(|| format!("unknown escape at {rest:?}"))?;
                bytes.push(byte);
                rest = &rest[length..];
            }
        }
        bytes.extend_from_slice(rest.as_bytes());
        parts.push(Part::Bytes(bytes));
        parts.retain(|part| *part != Part::Bytes(Vec::new()));
        Ok(Self(parts))
    }

    /// Appends another template.
    pub fn extend(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    /// The bytes, with these ports filled in.
    pub fn bytes(&self, ports: &BTreeMap<String, u16>) -> Result<Vec<u8>, String> {
        let mut bytes = Vec::new();
        for part in &self.0 {
            match part {
                Part::Bytes(more) => bytes.extend_from_slice(more),
                Part::Port(name) => {
                    let port = ports.get(name).ok_or_else(|| format!("${{{name}}}: no such port"))?;
                    bytes.extend_from_slice(port.to_string().as_bytes());
                }
            }
        }
        Ok(bytes)
    }
}

fn repeat(what: &str, times: &str) -> Result<Vec<u8>, String> {
    let times: usize = times.parse().map_err(|_| format!("${{{what}*{times}}}: {times:?} is not a number"))?;
    let what = Template::parse(what)?.bytes(&BTreeMap::new())?;
    match what.len().checked_mul(times) {
        Some(length) if length <= REPEAT_MAX => Ok(what.repeat(times)),
        _ => Err(format!("more than {REPEAT_MAX} bytes")),
    }
}

fn escape(text: &str) -> Option<(u8, usize)> {
    let simple = |byte| Some((byte, 2));
    match text.as_bytes().get(1)? {
        b'r' => simple(b'\r'),
        b'n' => simple(b'\n'),
        b't' => simple(b'\t'),
        b'0' => simple(0),
        b'\\' => simple(b'\\'),
        b'x' => Some((u8::from_str_radix(text.get(2..4)?, 16).ok()?, 4)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes() {
        let ports = BTreeMap::from([("listen".to_owned(), 8080)]);
        let check = |text: &str, expect: Result<&[u8], &str>| {
            let got = Template::parse(text).and_then(|template| template.bytes(&ports));
            assert_eq!(got, expect.map(<[u8]>::to_vec).map_err(str::to_owned), "{text:?}");
        };
        check("GET / HTTP/1.1\\r\\n", Ok(b"GET / HTTP/1.1\r\n"));
        check("\\0\\x7f\\t\\\\", Ok(b"\0\x7f\t\\"));
        check("a${b*3}c", Ok(b"abbbc"));
        check("${\\r\\n*2}", Ok(b"\r\n\r\n"));
        check("127.0.0.1:${listen}$5", Ok(b"127.0.0.1:8080$5"));
        check("\\q", Err("unknown escape at \"\\\\q\""));
        check("\\x1", Err("unknown escape at \"\\\\x1\""));
        check("${listen", Err("${ without }"));
        check("${admin}", Err("${admin}: no such port"));
        check("${a*x}", Err("${a*x}: \"x\" is not a number"));
        check("${a*99999999999}", Err("more than 16777216 bytes"));
    }
}
