//! What happens to the body of a request before an endpoint gets it.

use crate::Encoding;

/// How the bodies of a route's requests are prepared for its endpoints. The default passes them on as they arrive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestBody {
    /// All of a body is collected before an endpoint gets anything of its request; `None` means that it is passed on as it arrives.
    pub buffer: Option<RequestBuffer>,
    /// Bodies are decompressed; `None` means that they stay as they are.
    pub decompression: Option<Decompression>,
}

/// How much of a body is collected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestBuffer {
    /// A request with a larger body is answered 413. Of a body that is decompressed, what comes out of it counts.
    pub bytes_max: usize,
}

/// How bodies of requests are decompressed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decompression {
    /// The codings that clients may use; with others they are answered 415. At least one.
    pub encodings: Vec<Encoding>,
    /// A request whose body is larger than this once it is decompressed is answered 413.
    pub bytes_max: u64,
    /// The same for a body that becomes more than this many times as large. At least 1.
    pub ratio_max: u64,
}
