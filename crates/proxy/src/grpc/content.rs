//! Recognises calls by their content type.

use wire::message::{Field, Method, RequestHead};

/// A call, by the protocol that its client speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    /// gRPC over HTTP/2.
    Grpc,
    /// gRPC-Web: the trailers are in the body.
    Web {
        /// The body is in base64: `application/grpc-web-text`.
        is_text: bool,
    },
}

const GRPC: &[u8] = b"application/grpc";
const WEB: &[u8] = b"application/grpc-web";
const WEB_TEXT: &[u8] = b"application/grpc-web-text";

impl Call {
    /// `None` if the request is not a call.
    pub(crate) fn of(request: &RequestHead, buffer: &[u8]) -> Option<Self> {
        // Calls are POSTs ("gRPC over HTTP2", section "Requests"), so no other request pays for the search.
        (request.method == Method::Post).then(|| Self::of_fields(&request.fields, buffer)).flatten()
    }

    /// Decides by the fields of a head alone.
    pub(crate) fn of_fields(fields: &[Field], buffer: &[u8]) -> Option<Self> {
        Self::of_content_type(content_type(fields, buffer)?)
    }

    /// The type must be followed by the end, a subtype (`+proto`) or a parameter.
    pub(crate) fn of_content_type(value: &[u8]) -> Option<Self> {
        let end = value.iter().position(|byte| matches!(byte, b'+' | b';' | b' ' | b'\t')).unwrap_or(value.len());
        let (name, _) = value.split_at_checked(end)?;
        let is = |known: &[u8]| name.eq_ignore_ascii_case(known);
        if is(GRPC) {
            Some(Self::Grpc)
        } else if is(WEB) {
            Some(Self::Web { is_text: false })
        } else if is(WEB_TEXT) {
            Some(Self::Web { is_text: true })
        } else {
            None
        }
    }

    /// The content type of a response that this hop makes.
    pub(crate) fn content_type(self) -> &'static [u8] {
        match self {
            Self::Grpc => GRPC,
            Self::Web { is_text: false } => b"application/grpc-web+proto",
            Self::Web { is_text: true } => b"application/grpc-web-text+proto",
        }
    }

    /// Writes `value`, the content type of a message in one protocol, as that of `self`. What follows the type stays.
    pub(crate) fn write_content_type(self, value: &[u8], out: &mut Vec<u8>) {
        let end = value.iter().position(|byte| matches!(byte, b'+' | b';' | b' ' | b'\t')).unwrap_or(value.len());
        out.extend_from_slice(match self {
            Self::Grpc => GRPC,
            Self::Web { is_text: false } => WEB,
            Self::Web { is_text: true } => WEB_TEXT,
        });
        out.extend_from_slice(value.get(end..).unwrap_or_default());
    }
}

/// The value of the first `content-type`.
pub(crate) fn content_type<'b>(fields: &[Field], buffer: &'b [u8]) -> Option<&'b [u8]> {
    find(fields, buffer, b"content-type")
}

/// The value of the first field with this name, which must not be a name with an id.
pub(crate) fn find<'b>(fields: &[Field], buffer: &'b [u8], name: &[u8]) -> Option<&'b [u8]> {
    let is_it = |field: &&Field| field.name.len() == name.len() && field.name.get(buffer).eq_ignore_ascii_case(name);
    fields.iter().find(is_it).map(|field| field.value.get(buffer))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_told_by_their_content_type() {
        let check = |value: &str, expect| assert_eq!(Call::of_content_type(value.as_bytes()), expect, "{value:?}");
        check("application/grpc", Some(Call::Grpc));
        check("application/grpc+proto", Some(Call::Grpc));
        check("Application/GRPC+json; charset=utf-8", Some(Call::Grpc));
        check("application/grpc;x=y", Some(Call::Grpc));
        check("application/grpc ;x=y", Some(Call::Grpc));
        check("application/grpc-web", Some(Call::Web { is_text: false }));
        check("application/grpc-web+proto", Some(Call::Web { is_text: false }));
        check("application/grpc-web-text", Some(Call::Web { is_text: true }));
        check("application/grpc-web-text+proto", Some(Call::Web { is_text: true }));
        for other in
            ["", "application/json", "application/grpcx", "application/grpc-other", "text/grpc", "application/"]
        {
            check(other, None);
        }
    }

    #[test]
    fn a_content_type_is_translated_with_what_follows_it() {
        let check = |to: Call, value: &str, expect: &str| {
            let mut out = Vec::new();
            to.write_content_type(value.as_bytes(), &mut out);
            assert_eq!(String::from_utf8(out).unwrap(), expect);
        };
        check(Call::Grpc, "application/grpc-web-text+proto", "application/grpc+proto");
        check(Call::Grpc, "application/grpc-web", "application/grpc");
        check(Call::Web { is_text: false }, "application/grpc+json; a=b", "application/grpc-web+json; a=b");
        check(Call::Web { is_text: true }, "application/grpc", "application/grpc-web-text");
    }
}
