//! The keys about the bodies of requests.

use model::Encoding;

use crate::defaults;
use crate::define::keys;
use crate::read::{Int, OneOf, OneOrMany};
use crate::text::{ByteSize, size_text};

keys! {
    /// Collects the whole body of a request before an endpoint gets anything of it, and sends it with `Content-Length`. `buffer: {}` has all
    /// defaults. [Bodies of requests](request-bodies.md) has the details.
    pub struct RawBuffer as "a buffer" {
        /// A request with a larger body is answered 413. From 1 byte to 16MiB. Of a body that is decompressed, what comes out of it counts.
        optional max_size: ByteSize<1, { 16 << 20 }>, default size_text(defaults::BUFFERED_BYTES_MAX);
    }
}

keys! {
    /// Decompresses the bodies of requests for endpoints that cannot. `decompress: {}` has all defaults. [Bodies of
    /// requests](request-bodies.md) has the details.
    pub struct RawDecompress as "a decompression" {
        /// The encodings that clients may use; with any other, they are answered 415.
        optional encodings: OneOrMany<OneOf<Encoding>>, default format!("[{}]", defaults::ENCODINGS.map(Encoding::name).join(", "));
        /// A request whose body is larger than this once it is decompressed is answered 413.
        optional max_size: ByteSize<1, { 1 << 40 }>, default size_text(defaults::DECOMPRESSED_BYTES_MAX);
        /// A request whose body becomes more than this many times as large is answered 413. The first 64KiB are allowed in any case.
        optional max_ratio: Int<1, 100_000>, default defaults::DECOMPRESSED_RATIO_MAX.to_string();
    }
}
