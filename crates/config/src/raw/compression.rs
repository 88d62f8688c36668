//! The keys of compression.

use model::Encoding;

use crate::defaults;
use crate::define::keys;
use crate::read::{Choice, Int, OneOf, OneOrMany};
use crate::text::{ByteSize, MediaText, size_text};

keys! {
    /// Compresses the responses of endpoints for clients that accept it. `compress: {}` has all defaults. [Compression](compression.md) says
    /// which responses stay as they are, and what it costs.
    pub struct RawCompress as "a compression" {
        /// The encodings, the preferred one first. A client gets the one that it likes best; if it likes several alike, the first of them here.
        optional encodings: OneOrMany<OneOf<Encoding>>, default format!("[{}]", defaults::ENCODINGS.map(Encoding::name).join(", "));
        /// 1 is fast, 9 is small. It is the level of gzip and of zstd; `br` uses its quality 2 to 4.
        optional level: Int<1, 9>, default defaults::COMPRESSION_LEVEL.to_string();
        /// The types of responses that are compressed: `text/html`, or `text/*` for all types of text. Parameters do not matter.
        optional types: OneOrMany<MediaText>, default format!("[{}]", defaults::COMPRESSED_TYPES.join(", "));
        /// A response with a `Content-Length` below this is not compressed.
        optional min_size: ByteSize<0, 1_073_741_824>, default size_text(defaults::COMPRESSED_BYTES_MIN);
    }
}

impl Choice for Encoding {
    const CHOICES: &'static [(&'static str, Self, &'static str)] = &[
        ("zstd", Self::Zstd, "Zstandard (RFC 8878)"),
        ("br", Self::Brotli, "Brotli (RFC 7932)"),
        ("gzip", Self::Gzip, "gzip (RFC 1952)"),
    ];
}
