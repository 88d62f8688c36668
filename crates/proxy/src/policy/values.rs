//! The variables in the values of header fields.
//!
//! Whatever a client decides (the name in its handshake, the subject of its certificate) and whatever an operator may write (the name of a
//! route) is written in printable ASCII, so no value can end a line.

use std::borrow::Cow;
use std::io::Write;
use std::net::SocketAddr;

use model::{FieldPart, FieldValue, Variable};
use net::clock;
use telemetry::Timestamp;
use wire::message::RequestHead;

use crate::http::client_address::known_client_ip;
use crate::http::headers::Client;

/// What is known about a request when a head is written.
#[derive(Clone, Copy)]
pub(crate) struct Values<'v> {
    pub(crate) head: &'v RequestHead,
    /// The bytes that the head was read from.
    pub(crate) buffer: &'v [u8],
    pub(crate) client: &'v Client<'v>,
    pub(crate) names: Names<'v>,
    /// The endpoint that responded; `None` before one has.
    pub(crate) endpoint: Option<SocketAddr>,
}

/// What the configuration calls the parts of it that serve a request.
#[derive(Clone, Copy)]
pub(crate) struct Names<'v> {
    pub(crate) listener: &'v str,
    pub(crate) route: &'v str,
    pub(crate) cluster: &'v str,
}

/// The value of a field; `None` if the field is left out, because nothing of a template has a value. `values` is only `None` where no field
/// has variables.
pub(crate) fn made<'v>(value: &'v FieldValue, values: Option<&Values<'_>>) -> Option<Cow<'v, [u8]>> {
    match value {
        FieldValue::Text(text) => Some(Cow::Borrowed(text.as_bytes())),
        FieldValue::Template(parts) => values?.fill(parts).map(Cow::Owned),
    }
}

impl Values<'_> {
    #[inline(never)]
    fn fill(&self, parts: &[FieldPart]) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        for part in parts {
            match part {
                FieldPart::Text(text) => out.extend_from_slice(text.as_bytes()),
                FieldPart::Variable(variable) => self.write(*variable, &mut out),
            }
        }
        // A field must not begin or end with white space (RFC 9113 section 8.2.1).
        let begin = out.len() - out.trim_ascii_start().len();
        out.drain(..begin);
        out.truncate(out.trim_ascii_end().len());
        (!out.is_empty()).then_some(out)
    }

    /// Appends the value of a variable.
    pub(crate) fn write(&self, variable: Variable, out: &mut Vec<u8>) {
        let client = self.client;
        let certificate = client.secured.and_then(|secured| secured.client_certificate());
        let shown = client.secured.and_then(|secured| secured.shown_certificate());
        let mut put = |text: std::fmt::Arguments<'_>| {
            // Writing to a Vec cannot fail.
            let _ = out.write_fmt(text);
        };
        match variable {
            Variable::ClientIp => {
                if let Ok(ip) = known_client_ip(self.head, self.buffer, client) {
                    put(format_args!("{ip}"));
                }
            }
            Variable::ClientPort => {
                let port = client.address.port();
                if port != 0 && known_client_ip(self.head, self.buffer, client) == Ok(client.address.ip()) {
                    put(format_args!("{port}"));
                }
            }
            Variable::RequestId => put(format_args!("{}", client.request_id.unwrap_or_default())),
            Variable::TlsVersion => put(format_args!("{}", client.secured.map_or("", |secured| secured.version()))),
            Variable::Sni => printable(out, client.secured.and_then(|secured| secured.sni()).unwrap_or_default()),
            Variable::ClientCert => certificate.into_iter().for_each(|certificate| certificate.write_field(out)),
            Variable::ClientCertPem => certificate.into_iter().for_each(|certificate| certificate.write_pem(out)),
            Variable::ClientCertSubject => {
                printable(out, certificate.map_or("", |certificate| certificate.subject()));
            }
            Variable::ClientCertIssuer => {
                printable(out, certificate.map_or("", |certificate| certificate.issuer()));
            }
            Variable::ClientCertVerify => match shown {
                None => put(format_args!("NONE")),
                Some((_, Ok(()))) => put(format_args!("SUCCESS")),
                Some((_, Err(fault))) => put(format_args!("FAILED:{}", fault.words())),
            },
            Variable::ShownCertPem => shown.into_iter().for_each(|(certificate, _)| certificate.write_pem(out)),
            Variable::ShownCertSubject => printable(out, shown.map_or("", |(certificate, _)| certificate.subject())),
            Variable::ShownCertIssuer => printable(out, shown.map_or("", |(certificate, _)| certificate.issuer())),
            Variable::ClientCertSha256 => {
                put(format_args!("{}", certificate.map_or("", |certificate| certificate.sha256())));
            }
            Variable::Listener => printable(out, self.names.listener),
            Variable::Route => printable(out, self.names.route),
            Variable::Cluster => printable(out, self.names.cluster),
            Variable::Endpoint => self.endpoint.into_iter().for_each(|endpoint| put(format_args!("{endpoint}"))),
            Variable::Time => put(format_args!("{}", Timestamp(clock::unix_ms()))),
        }
    }
}

/// Percent-encodes everything but printable ASCII.
fn printable(out: &mut Vec<u8>, text: &str) {
    for byte in text.bytes() {
        match byte {
            b' '..=b'~' => out.push(byte),
            byte => {
                // As above.
                let _ = write!(out, "%{byte:02X}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::asked;
    use super::*;

    #[test]
    fn values_are_one_printable_line() {
        let check = |lines: &str, is_trusted: bool, variables: &[Variable], expect: Option<&str>| {
            let lines = format!("GET / HTTP/1.1\r\nHost: a\r\n{lines}");
            let parts =
                variables.iter().flat_map(|variable| [FieldPart::Variable(*variable), FieldPart::Text(" ".to_owned())]);
            let value = FieldValue::Template(parts.collect());
            let found = asked(&lines, is_trusted, |view| {
                let values = Values {
                    head: view.head,
                    buffer: view.buffer,
                    client: view.client,
                    names: Names { listener: "web", route: "caf\u{e9}\r\nx: y", cluster: "shop" },
                    endpoint: Some("[::1]:80".parse().unwrap()),
                };
                made(&value, Some(&values)).map(|made| String::from_utf8(made.into_owned()).unwrap())
            });
            assert_eq!(found.as_deref(), expect, "{variables:?}");
        };
        check("", false, &[Variable::ClientIp, Variable::ClientPort], Some("10.0.0.9 4711"));
        // A header names no port, and the port of the proxy is not the client's.
        check("X-Forwarded-For: 1.2.3.4\r\n", true, &[Variable::ClientIp, Variable::ClientPort], Some("1.2.3.4"));
        check("X-Forwarded-For: 1.2.3.4\r\n", false, &[Variable::ClientIp], Some("10.0.0.9"));
        check("", false, &[Variable::Listener, Variable::Cluster, Variable::Endpoint], Some("web shop [::1]:80"));
        check("", false, &[Variable::Route], Some("caf%C3%A9%0D%0Ax: y"));
        let of_tls = [
            Variable::TlsVersion,
            Variable::Sni,
            Variable::ClientCert,
            Variable::ClientCertPem,
            Variable::ClientCertSubject,
            Variable::ClientCertSha256,
            Variable::RequestId,
        ];
        check("", false, &of_tls, None);
        check("", false, &[], None);
    }
}
