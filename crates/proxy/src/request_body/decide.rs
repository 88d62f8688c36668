//! Which bodies of requests are decompressed, and what is left of their heads.

use model::{Decompression, Encoding};
use wire::message::{Field, RequestHead, list};

/// The encoding of a request's body; `None` if it has none, or must stay as it is.
///
/// # Errors
/// It has an encoding that the policy does not allow, or several.
pub(crate) fn encoding_of(
    policy: &Decompression,
    request: &RequestHead,
    bytes: &[u8],
) -> Result<Option<Encoding>, NotAllowed> {
    let (mut found, mut must_stay) = (None, false);
    for field in &request.fields {
        let (name, value) = (field.name.get(bytes), field.value.get(bytes));
        match name.len() {
            16 if name.eq_ignore_ascii_case(b"content-encoding") => {
                for coding in list(value).filter(|coding| !coding.eq_ignore_ascii_case(b"identity")) {
                    // RFC 9110 section 8.4.1.3: `x-gzip` is the same.
                    let coding = if coding.eq_ignore_ascii_case(b"x-gzip") { b"gzip" } else { coding };
                    let is_it = |known: &&Encoding| coding.eq_ignore_ascii_case(known.name().as_bytes());
                    let known = policy.encodings.iter().find(is_it).ok_or(NotAllowed)?;
                    if found.replace(*known).is_some() {
                        return Err(NotAllowed);
                    }
                }
            }
            // RFC 9110 section 7.7 and RFC 9111 section 5.2.1.6.
            13 if name.eq_ignore_ascii_case(b"cache-control") => {
                must_stay |= list(value).any(|directive| directive.eq_ignore_ascii_case(b"no-transform"));
            }
            // A part of something: only with the other parts could it be decoded.
            13 if name.eq_ignore_ascii_case(b"content-range") => must_stay = true,
            _ => {}
        }
    }
    Ok(found.filter(|_| !must_stay))
}

/// The request has an encoding that is not allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotAllowed;

/// Removes the fields that say something of the compressed bytes: the encoding, and digests (RFC 9530 and its predecessors).
pub(crate) fn strip(request: &mut RequestHead, bytes: &[u8]) {
    const NAMES: [&[u8]; 5] = [b"content-encoding", b"content-digest", b"repr-digest", b"digest", b"content-md5"];
    let is_about_bytes = |field: &Field| NAMES.iter().any(|name| field.name.get(bytes).eq_ignore_ascii_case(name));
    request.fields.retain(|field| !is_about_bytes(field));
}

/// The value of the `Accept-Encoding` that tells a client what it may use.
pub(crate) fn accepted(policy: &Decompression) -> String {
    policy.encodings.iter().map(|encoding| encoding.name()).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::headers::testing::request;

    fn policy(encodings: &[Encoding]) -> Decompression {
        Decompression { encodings: encodings.into(), bytes_max: 1, ratio_max: 1 }
    }

    #[test]
    fn one_known_encoding_is_decoded() {
        let check = |lines: &str, expect: Result<Option<Encoding>, NotAllowed>| {
            let text = format!("POST / HTTP/1.1\r\nHost: a\r\n{lines}\r\n");
            let policy = policy(&[Encoding::Gzip, Encoding::Brotli]);
            assert_eq!(encoding_of(&policy, &request(&text), text.as_bytes()), expect, "{lines}");
        };
        check("", Ok(None));
        check("Content-Encoding: identity\r\n", Ok(None));
        check("Content-Encoding:\r\n", Ok(None));
        check("Content-Encoding: GZip\r\n", Ok(Some(Encoding::Gzip)));
        check("content-encoding: x-gzip\r\n", Ok(Some(Encoding::Gzip)));
        check("Content-Encoding: identity, br\r\n", Ok(Some(Encoding::Brotli)));
        check("Content-Encoding: zstd\r\n", Err(NotAllowed));
        check("Content-Encoding: deflate\r\n", Err(NotAllowed));
        check("Content-Encoding: gzip;q=1\r\n", Err(NotAllowed));
        check("Content-Encoding: gzip, br\r\n", Err(NotAllowed));
        check("Content-Encoding: gzip\r\nContent-Encoding: gzip\r\n", Err(NotAllowed));
        check("Content-Encoding: gzip\r\nCache-Control: max-age=0, No-Transform\r\n", Ok(None));
        check("Content-Encoding: gzip\r\nContent-Range: bytes 0-9/20\r\n", Ok(None));
        assert_eq!(accepted(&policy(&[Encoding::Gzip, Encoding::Brotli])), "gzip, br");
    }

    #[test]
    fn nothing_is_said_of_the_compressed_bytes() {
        let text = "POST / HTTP/1.1\r\nHost: a\r\nContent-Encoding: gzip\r\nA: 1\r\nDigest: sha-256=x\r\nContent-Digest: y\r\n\
                    Repr-Digest: z\r\nContent-MD5: w\r\nContent-Type: text/plain\r\n\r\n";
        let mut head = request(text);
        strip(&mut head, text.as_bytes());
        let names: Vec<_> = head.fields.iter().map(|field| field.name.get(text.as_bytes())).collect();
        assert_eq!(names, [&b"Host"[..], b"A", b"Content-Type"]);
    }
}
