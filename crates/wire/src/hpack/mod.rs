//! Header compression for HTTP/2 (RFC 7541).
//!
//! A [`Decoder`] turns a header block into fields, an [`Encoder`] does the reverse; each holds one direction's dynamic table.
//! Nothing here knows what a field means for a message: [`Kind`] says only which field it is and whether its bytes are
//! allowed at all, and is kept beside the field in the dynamic table, so that a field that repeats is looked at once.
//!
//! Limits: a table is at most [`TABLE_BYTES_MAX`], whatever the other side would allow; an integer has at most
//! [`INTEGER_BYTES_MAX`] bytes. How many fields come out of a block, and how many bytes, is for the caller to bound: one byte can
//! stand for a field of 4 KiB. The decoder allocates nothing that is larger than the block that it is given, times 8/5.
//!
//! The crates `hpack`, `fluke-hpack`, `loona-hpack` and `httlib-hpack` were looked at first: each makes two `Vec`s of every
//! field, decodes Huffman codes bit by bit through a hash map or a tree, and finds a field by walking the table; all but the
//! last never write a Huffman code. The h2 crate's own is not public. `httlib-hpack` serves the tests as a second opinion.

mod decoder;
mod encoder;
mod huffman;
mod kind;
mod positions;
mod static_table;
mod table;

pub use decoder::{Decoder, INTEGER_BYTES_MAX};
pub use encoder::Encoder;
pub use kind::Kind;

/// The dynamic table of either direction, counted as RFC 7541 section 4.1 does: this is the standard's default, and no other is
/// ever announced or used.
pub const TABLE_BYTES_MAX: usize = 4096;

/// What a field counts for besides its name and value, in tables and in lists (RFC 7541 section 4.1).
pub const FIELD_OVERHEAD_BYTES: usize = 32;

/// A field as it comes out of a block.
#[derive(Clone, Copy, Debug)]
pub struct Decoded<'d> {
    /// Which field it is.
    pub kind: Kind,
    /// As received.
    pub name: &'d [u8],
    /// As received.
    pub value: &'d [u8],
    /// The sender asked that no hop ever puts it into a table (RFC 7541 section 7.1.3).
    pub never_indexed: bool,
    /// Name and value in one piece, where they lie so; else empty.
    pub(crate) text: &'d [u8],
}

/// Memory of both directions' tables at most, besides what a decoder needs for the longest literal.
pub const MEMORY_BYTES_MAX: usize = table::MEMORY_BYTES_MAX + encoder::MEMORY_BYTES_MAX;

/// Why a block cannot be decoded. The two sides' tables do not agree from here on: the connection must be closed with
/// COMPRESSION_ERROR (RFC 9113 section 4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HpackError {
    /// The block ends within a field.
    Truncated,
    /// An integer of more bytes than any that has a use here.
    Integer,
    /// No entry has this index.
    Index,
    /// Not a Huffman code, the code of EOS, or wrong padding.
    Huffman,
    /// A change of the table's size behind a field, or beyond the limit.
    TableSize,
}

impl std::fmt::Display for HpackError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Truncated => "header block ends within a field",
            Self::Integer => "oversized integer in a header block",
            Self::Index => "no header field has this index",
            Self::Huffman => "malformed Huffman code",
            Self::TableSize => "invalid change of the header table's size",
        })
    }
}

impl std::error::Error for HpackError {}

#[cfg(test)]
mod tests;
