//! A call of gRPC with one message in each direction.

use model::{ForwardedHeaders, HeaderChanges};
use prost::Message;
use telemetry::Reason;
use wire::message::{Body, Field, FieldId, Method, RequestHead, Span, Version};

use crate::error::Error;
use crate::grpc::Status;
use crate::http::headers::Client;
use crate::policy::RequestView;
use crate::policy::headers::RequestEdits;
use crate::upstream::cluster::Cluster;
use crate::upstream::subrequest::{Answer, Subrequest};

static UNCHANGED: HeaderChanges = HeaderChanges { set: Vec::new(), add: Vec::new(), remove: Vec::new() };

/// The bytes before each message of a call: whether it is compressed, and its length.
const PREFIX_BYTES: usize = 5;

/// The call of the method at `path` with this message, made on behalf of the request `asked`.
pub(crate) fn request(
    cluster: &Cluster,
    path: &'static [u8],
    host: Option<&str>,
    message: &impl Message,
    asked: &RequestView<'_>,
    timeout_ms: u64,
) -> Subrequest {
    let message = message.encode_to_vec();
    let mut framed = Vec::with_capacity(PREFIX_BYTES + message.len());
    framed.push(0);
    framed.extend_from_slice(&(message.len() as u32).to_be_bytes());
    framed.extend_from_slice(&message);
    let mut bytes = Vec::new();
    let mut append = |text: &[u8]| {
        let start = bytes.len() as u32;
        bytes.extend_from_slice(text);
        Span { start, end: bytes.len() as u32 }
    };
    let timeout = format!("{timeout_ms}m");
    let named: [(&[u8], FieldId, &[u8]); 3] = [
        (b"content-type", FieldId::Other, b"application/grpc"),
        (b"te", FieldId::Te, b"trailers"),
        (b"grpc-timeout", FieldId::Other, timeout.as_bytes()),
    ];
    let fields = named.map(|(name, id, value)| {
        let (name, value) = (append(name), append(value));
        Field { id, name, value, never_indexed: false }
    });
    let head = RequestHead {
        method: Method::Post,
        method_name: append(b"POST"),
        path: append(path),
        authority: append(cluster.plan.policy.name.as_bytes()),
        version: Version::Http2,
        fields: fields.into(),
        body: Body::Length(framed.len() as u64),
        keep_alive: true,
        ..RequestHead::default()
    };
    let client =
        Client { forwarded: ForwardedHeaders::Off, x_real_ip: false, request_id: None, call: None, ..*asked.client };
    let view = RequestView { head: &head, buffer: &bytes, target: path, paths: asked.paths, client: &client };
    let edits = RequestEdits { target: Some(path), host, headers: &UNCHANGED, ..RequestEdits::NONE };
    let mut call = Subrequest::new(cluster, &view, &edits).of_call();
    call.put_body(&framed);
    call
}

/// The message of an answer; `None` if it is too long to be read.
///
/// # Errors
/// The call failed, or the answer is not one such message.
pub(crate) fn message<M: Message + Default>(answer: Answer) -> Result<Option<M>, Error> {
    let Answer { response, body, grpc_status: status } = answer;
    let body = body?;
    if response.head.status != 200 {
        return Err(bad("the call failed"));
    }
    // The trailers of an answer that is too long are not read.
    let Some(body) = body else { return Ok(None) };
    if status != Some(Status::Ok) {
        return Err(bad("the call failed"));
    }
    match body.split_at_checked(PREFIX_BYTES) {
        Some(([0, length @ ..], message)) if length == (message.len() as u32).to_be_bytes() => {
            M::decode(message).map(Some).map_err(|_| bad("the message cannot be read"))
        }
        _ => Err(bad("the answer is not one message that is not compressed")),
    }
}

/// The error for an answer that has no meaning.
pub(crate) fn bad(what: &'static str) -> Error {
    Error::upstream(Reason::UpstreamBadHead).because(std::io::Error::new(std::io::ErrorKind::InvalidData, what))
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;
    use crate::exchange::Response;

    /// An answer with these bytes as its message.
    pub(crate) fn answer(message: &[u8], status: Option<Status>) -> Answer {
        let mut response = Response::default();
        response.head.status = 200;
        let mut body = vec![0];
        body.extend_from_slice(&(message.len() as u32).to_be_bytes());
        body.extend_from_slice(message);
        Answer { response, body: Ok(Some(body)), grpc_status: status }
    }

    #[derive(Clone, PartialEq, Message)]
    struct Text {
        #[prost(string, tag = "1")]
        text: String,
    }

    #[test]
    fn an_answer_is_one_message_of_a_call_that_succeeded() {
        let text = Text { text: "a".into() };
        let bytes = text.encode_to_vec();
        assert_eq!(message::<Text>(answer(&bytes, Some(Status::Ok))).unwrap(), Some(text));
        for status in [None, Some(Status::Unavailable), Some(Status::PermissionDenied)] {
            assert!(message::<Text>(answer(&bytes, status)).is_err(), "{status:?}");
        }
        for status in [None, Some(Status::Ok)] {
            let long = Answer { body: Ok(None), ..answer(&bytes, status) };
            assert_eq!(message::<Text>(long).unwrap(), None);
        }
        for broken in [&b"\xff\xff"[..], b"\x0a\x7f", b"\x0a\x01\xff"] {
            assert!(message::<Text>(answer(broken, Some(Status::Ok))).is_err());
        }
        for body in [&b"\0\0\0\0\0\0\0\0\0\0"[..], b"\x01\0\0\0\0", b"\0\0\0\0", b"\0\0\0\0\x01"] {
            let other = Answer { body: Ok(Some(body.to_vec())), ..answer(b"", Some(Status::Ok)) };
            assert!(message::<Text>(other).is_err(), "{body:?}");
        }
        let mut failed = answer(&bytes, Some(Status::Ok));
        failed.response.head.status = 503;
        assert!(message::<Text>(failed).is_err());
    }
}
