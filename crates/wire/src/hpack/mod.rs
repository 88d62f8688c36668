//! Header compression for HTTP/2 (RFC 7541).
//!
//! A [`Decoder`] turns a header block into fields, and an [`Encoder`] does the reverse. Each holds the dynamic table of one direction. This
//! module does not know what a field means for a message: [`Kind`] only says which field it is and whether its bytes are allowed. The
//! dynamic table stores it with the field, so that a repeated field is checked once.
//!
//! Limits: a table has at most [`TABLE_BYTES_MAX`], whatever the other side would allow, and an integer has at most [`INTEGER_BYTES_MAX`]
//! bytes. The caller has to limit how many fields and bytes come out of a block, because one byte can stand for a field of 4 KiB. The
//! decoder's largest allocation is 8/5 of the block.
//!
//! The crates `hpack`, `fluke-hpack`, `loona-hpack` and `httlib-hpack` were considered first. Each makes two `Vec`s of every field, decodes
//! Huffman codes bit by bit through a hash map or a tree, and finds a field by walking the table; all but the last never write a Huffman
//! code. The h2 crate's own is not public. The tests use `httlib-hpack` as a second opinion.

mod decoder;
mod encoder;
mod huffman;
mod kind;
mod positions;
mod sent_list;
mod static_table;
mod table;

pub(crate) use decoder::Repeat;
pub use decoder::{Decoder, INTEGER_BYTES_MAX};
pub use encoder::Encoder;
pub(crate) use encoder::Indexed;
pub use kind::Kind;
pub(crate) use table::TableRun;

/// The size of the dynamic table of either direction, counted as in RFC 7541 section 4.1. This is the standard's default, and no other size
/// is ever announced or used.
pub const TABLE_BYTES_MAX: usize = 4096;

/// The size of a field besides its name and value, in tables and in lists (RFC 7541 section 4.1).
pub const FIELD_OVERHEAD_BYTES: usize = 32;

/// A decoded field.
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
    /// Name and value in one piece, if they are adjacent; otherwise empty.
    pub(crate) text: &'d [u8],
}

/// The maximum memory of both directions' tables, without the decoder's buffer for the longest literal.
pub const MEMORY_BYTES_MAX: usize = table::MEMORY_BYTES_MAX + encoder::MEMORY_BYTES_MAX;

/// Why a block cannot be decoded. From here on the two sides' tables do not agree, so the connection must be closed with COMPRESSION_ERROR
/// (RFC 9113 section 4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HpackError {
    /// The block ends within a field.
    Truncated,
    /// An integer with more bytes than any useful one.
    Integer,
    /// No entry has this index.
    Index,
    /// Not a Huffman code, the code of EOS, or wrong padding.
    Huffman,
    /// A change of the table's size after a field, or beyond the limit.
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
