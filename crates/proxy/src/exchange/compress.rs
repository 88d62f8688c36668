//! Whether a response is compressed on its way to the client.

use model::{Compression, HeaderChanges};

use super::{Env, Request, Response};
use crate::compression::{self, CompressedHead, Compressing, Wish};

/// How the head of a response changes on a route that compresses responses, and what compresses its body. `None` if it stays as it is.
pub(super) fn compress(
    env: &Env<'_>,
    number: usize,
    policy: &Compression,
    request: &Request,
    response: &Response,
    changes: &HeaderChanges,
) -> Option<(CompressedHead, Option<Compressing>)> {
    let (asked, answered) = ((&request.head, &request.bytes[..]), (&response.head, &response.bytes[..]));
    let Wish { head, encoding, flushes } = compression::decide(policy, asked, answered, changes)?;
    let length = response.head.content_length;
    let begin = |encoding| env.compressions.begin(env.listener, number, policy, encoding, length, flushes);
    let compressing = encoding.and_then(begin);
    let coded = encoding.filter(|_| compressing.is_some());
    Some((coded.map_or(head, |encoding| head.coded(encoding)), compressing))
}
