//! The fields by which ingress-nginx tells endpoints about the client, besides `X-Forwarded-For`, `-Proto` and `-Host`.

use model::HeaderChanges;
use smallvec::SmallVec;
use wire::message::{Field, FieldId, RequestHead};

use super::headers::{Client, Out};
use crate::policy::headers::decides;

const FORWARDED_PORT: &[u8] = b"x-forwarded-port";

/// In the order in which they are written.
const NAMES: [&[u8]; 5] =
    [FORWARDED_PORT, b"x-forwarded-scheme", b"x-scheme", b"x-original-forwarded-for", b"x-original-forwarded-host"];

/// Whether a field of a trusted proxy is replaced.
pub(super) fn replaces(name: &[u8]) -> bool {
    NAMES.iter().any(|of| name.eq_ignore_ascii_case(of))
}

/// Writes them, except those that the route decides.
#[inline(never)]
pub(super) fn write(
    out: &mut impl Out,
    head: &RequestHead,
    buffer: &[u8],
    client: &Client<'_>,
    changes: &HeaderChanges,
) {
    let values = |is_it: &dyn Fn(&Field) -> bool| -> SmallVec<[&[u8]; 4]> {
        let values = head.fields.iter().filter(|field| is_it(field)).map(|field| field.value.get(buffer));
        values.filter(|value| !value.is_empty()).collect()
    };
    let told = |is_it: &dyn Fn(&Field) -> bool| values(is_it).first().copied().filter(|_| client.is_trusted);
    let scheme = told(&|field| field.id == FieldId::XForwardedProto).unwrap_or(client.scheme.as_bytes());
    // Whatever port TLS is listened on, clients know it as that of HTTPS.
    let own_port = if client.scheme == "https" { 443 } else { client.local.port() }.to_string();
    let port = told(&|field| field.id == FieldId::Claim && field.name.get(buffer).eq_ignore_ascii_case(FORWARDED_PORT));
    // These two are what the client says, whoever it is.
    let [client_for, client_host] =
        [FieldId::XForwardedFor, FieldId::XForwardedHost].map(|id| values(&|field| field.id == id).join(&b", "[..]));
    let all = [port.unwrap_or(own_port.as_bytes()), scheme, scheme, &client_for, &client_host];
    for (name, value) in NAMES.iter().zip(all) {
        if !value.is_empty() && !decides(changes, name) {
            out.field(name, value, false);
        }
    }
}

#[cfg(test)]
mod tests {
    use model::ForwardedHeaders;

    use super::super::headers::testing::{client, request};
    use super::super::headers::write_request;
    use super::*;
    use crate::exchange::transfer::Head;
    use crate::policy::headers::RequestEdits;

    fn written(text: &str, client: &Client<'_>, edits: &RequestEdits<'_>) -> String {
        let mut out = Vec::new();
        write_request(Head::H1(&mut out), &request(text), text.as_bytes(), client, "http", edits);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn what_ingress_nginx_says_of_the_client() {
        let lines = "GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 1.1.1.1\r\nX-Forwarded-For: 2.2.2.2\r\nX-Forwarded-Proto: https\r\n\
                     X-Forwarded-Host: b\r\nX-Forwarded-Port: 8443\r\nX-Forwarded-Scheme: x\r\nX-Scheme: x\r\n\
                     X-Original-Forwarded-For: 3.3.3.3\r\nX-Original-Forwarded-Host: c\r\nX_Scheme: x\r\nConnection: x-scheme\r\n";
        let start = "GET / HTTP/1.1\r\nhost: a\r\n";
        let original = "x-original-forwarded-for: 1.1.1.1, 2.2.2.2\r\nx-original-forwarded-host: b\r\n";
        let check = |lines: &str, is_trusted, expect: &str| {
            let client = client(is_trusted, ForwardedHeaders::IngressNginx, &[]);
            assert_eq!(written(&format!("{lines}\r\n"), &client, &RequestEdits::NONE), format!("{start}{expect}\r\n"));
        };
        // Nothing of a stranger counts, but endpoints learn what it says.
        let of_connection = "x-forwarded-for: 10.0.0.9\r\nx-forwarded-proto: http\r\nx-forwarded-host: a\r\nx-forwarded-port: 8080\r\n\
                             x-forwarded-scheme: http\r\nx-scheme: http\r\n";
        check(lines, false, &format!("{of_connection}{original}"));
        check(
            lines,
            true,
            &format!(
                "x-forwarded-for: 1.1.1.1, 2.2.2.2, 10.0.0.9\r\nx-forwarded-proto: https\r\nx-forwarded-host: b\r\n\
                 x-forwarded-port: 8443\r\nx-forwarded-scheme: https\r\nx-scheme: https\r\n{original}"
            ),
        );
        check("GET / HTTP/1.1\r\nHost: a\r\n", true, of_connection);
        let text = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
        let changes = HeaderChanges {
            set: vec![("x-forwarded-port".to_owned(), "444".into())],
            remove: vec!["x-scheme".to_owned()],
            ..HeaderChanges::default()
        };
        let edits = RequestEdits { headers: &changes, ..RequestEdits::NONE };
        let client = Client { scheme: "https", ..client(false, ForwardedHeaders::IngressNginx, &[]) };
        assert_eq!(
            written(text, &client, &edits),
            format!(
                "{start}x-forwarded-port: 444\r\nx-forwarded-for: 10.0.0.9\r\nx-forwarded-proto: https\r\nx-forwarded-host: a\r\n\
                 x-forwarded-scheme: https\r\n\r\n"
            )
        );
        assert!(written(text, &client, &RequestEdits::NONE).contains("\r\nx-forwarded-port: 443\r\n"));
    }
}
