//! The answers of the HTTP origin, prepared once at the start.

/// A longer body is sent in blocks of this size instead of being kept as a whole.
const BLOCK_BYTES: u64 = 64 * 1024;

/// The `connection` field, which follows the other fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Connection {
    /// HTTP/1.1 keeps the connection without the field.
    Keep,
    /// HTTP/1.0 needs the field (RFC 9112 section 9.3).
    Keep10,
    Close,
}

/// One status, its fields and its body.
pub(super) struct Answer {
    /// Status line and fields, each with its CRLF, without `connection` and the empty line.
    fields: Vec<u8>,
    /// Head and body in the most common form: kept alive, with no additional fields. Empty if the body is too long to be kept.
    whole: Vec<u8>,
    /// The body, or its first block, of which all others are copies.
    block: Vec<u8>,
    body_bytes: u64,
}

impl Answer {
    /// `200 OK` with a body of `body_bytes`: `name`, a line feed, then dots up to a last line feed; repeated every 64 KiB.
    pub(super) fn ok(name: Option<&str>, body_bytes: u64) -> Self {
        let mut block = name.map(|name| format!("{name}\n").into_bytes()).unwrap_or_default();
        block.resize(body_bytes.min(BLOCK_BYTES) as usize, b'.');
        if let Some(last) = block.last_mut() {
            *last = b'\n';
        }
        Self::new("200 OK", name, block, body_bytes)
    }

    /// A status with one line of text as the body.
    pub(super) fn text(status: &str, name: Option<&str>, text: &str) -> Self {
        let body = format!("{text}\n").into_bytes();
        let body_bytes = body.len() as u64;
        Self::new(status, name, body, body_bytes)
    }

    fn new(status: &str, name: Option<&str>, block: Vec<u8>, body_bytes: u64) -> Self {
        let origin = name.map(|name| format!("x-origin: {name}\r\n")).unwrap_or_default();
        let fields = format!(
            "HTTP/1.1 {status}\r\nserver: steelyard-origin\r\n{origin}content-type: text/plain\r\ncontent-length: {body_bytes}\r\n"
        )
        .into_bytes();
        let mut answer = Self { fields, whole: Vec::new(), block, body_bytes };
        if body_bytes <= BLOCK_BYTES {
            let mut whole = Vec::new();
            answer.put_head(&mut whole, Connection::Keep, None);
            whole.extend_from_slice(&answer.block);
            answer.whole = whole;
        }
        answer
    }

    /// Appends head and body to `out`. Returns how many bytes of the body the caller still has to send, from [`Answer::block`]s.
    pub(super) fn put(&self, out: &mut Vec<u8>, connection: Connection, received: Option<u64>) -> u64 {
        if connection == Connection::Keep && received.is_none() && !self.whole.is_empty() {
            out.extend_from_slice(&self.whole);
            return 0;
        }
        self.put_head(out, connection, received);
        if self.body_bytes > BLOCK_BYTES {
            return self.body_bytes;
        }
        out.extend_from_slice(&self.block);
        0
    }

    /// Appends only the head: the answer to HEAD, and the start of any other. `received` is the count for `x-received-bytes`.
    pub(super) fn put_head(&self, out: &mut Vec<u8>, connection: Connection, received: Option<u64>) {
        out.extend_from_slice(&self.fields);
        if let Some(received) = received {
            out.extend_from_slice(format!("x-received-bytes: {received}\r\n").as_bytes());
        }
        out.extend_from_slice(connection.field());
        out.extend_from_slice(b"\r\n");
    }

    /// The next piece of a body of which `left` bytes remain.
    pub(super) fn block(&self, left: u64) -> &[u8] {
        let count = left.min(self.block.len() as u64) as usize;
        &self.block[..count]
    }
}

impl Connection {
    pub(super) fn field(self) -> &'static [u8] {
        match self {
            Self::Keep => b"",
            Self::Keep10 => b"connection: keep-alive\r\n",
            Self::Close => b"connection: close\r\n",
        }
    }
}
