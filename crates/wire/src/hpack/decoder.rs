//! Header blocks to fields (RFC 7541 sections 3 and 6).

use std::ops::Range;

use super::table::DynamicTable;
use super::{Decoded, HpackError, Kind, huffman, static_table};

/// Bytes of one integer, with its prefix: the largest that has a use (a length, within a block of a MiB) takes four.
pub const INTEGER_BYTES_MAX: usize = 5;

/// One direction of one connection: the blocks must be handed in as they came, all of them.
#[derive(Debug, Default)]
pub struct Decoder {
    pub(super) table: DynamicTable,
    /// What was Huffman-coded in the field at hand.
    scratch: Vec<u8>,
}

impl Decoder {
    /// Decodes a whole block and hands each field to `emit`, in order.
    ///
    /// Fields of a message that will be refused must be decoded all the same: what they put into the table is used by later blocks.
    ///
    /// # Errors
    /// The tables of the two sides do not agree any more: the connection must be closed.
    pub fn decode(&mut self, block: &[u8], mut emit: impl FnMut(Decoded<'_>)) -> Result<(), HpackError> {
        let mut rest = Reader { bytes: block };
        let mut is_first = true;
        while let Some(&byte) = rest.bytes.first() {
            match byte {
                0x80.. => {
                    let index = rest.integer(7)?;
                    let (kind, name, value) = self.field(index).ok_or(HpackError::Index)?;
                    emit(Decoded { kind, name, value, never_indexed: false });
                }
                0x40..=0x7f => {
                    let index = rest.integer(6)?;
                    let literal = self.literal(index, &mut rest)?;
                    let (kind, name, value) = literal.resolve(&self.scratch);
                    emit(Decoded { kind, name, value, never_indexed: false });
                    self.table.insert(kind, name, value);
                }
                0x20..=0x3f => {
                    // Section 4.2: at the beginning of a block only.
                    let size = rest.integer(5)?;
                    if !is_first || size > super::TABLE_BYTES_MAX {
                        return Err(HpackError::TableSize);
                    }
                    self.table.set_size_max(size);
                    continue;
                }
                _ => {
                    let index = rest.integer(4)?;
                    let literal = self.literal(index, &mut rest)?;
                    let (kind, name, value) = literal.resolve(&self.scratch);
                    emit(Decoded { kind, name, value, never_indexed: byte >= 0x10 });
                }
            }
            is_first = false;
        }
        Ok(())
    }

    /// Bytes of memory that it holds, besides itself.
    pub fn memory_bytes(&self) -> usize {
        self.table.memory_bytes() + self.scratch.capacity()
    }

    /// Gives back the room that a rare, long literal took.
    pub(crate) fn shrink(&mut self) {
        if self.scratch.capacity() > super::TABLE_BYTES_MAX {
            self.scratch = Vec::new();
        }
    }

    fn field(&self, index: usize) -> Option<(Kind, &[u8], &[u8])> {
        match index.checked_sub(static_table::LENGTH + 1) {
            Some(age) => self.table.field(age),
            None => static_table::entry(index).map(|(kind, name, value)| (kind, name.as_bytes(), value.as_bytes())),
        }
    }

    /// Reads the name, unless an index stands for it, and the value.
    fn literal<'b>(&mut self, index: usize, rest: &mut Reader<'b>) -> Result<Literal<'b>, HpackError> {
        self.scratch.clear();
        if index == 0 {
            let name = rest.string(&mut self.scratch)?;
            let value = rest.string(&mut self.scratch)?;
            return Ok(Literal { kind: None, name, value });
        }
        let (kind, name) = match static_table::entry(index) {
            Some((kind, name, _)) => (kind, Text::Plain(name.as_bytes())),
            None => {
                let age = index - static_table::LENGTH - 1;
                let (kind, name, _) = self.table.field(age).ok_or(HpackError::Index)?;
                // Out of the table's way: this very literal may push the entry out.
                self.scratch.extend_from_slice(name);
                (kind, Text::Scratch(0..self.scratch.len()))
            }
        };
        let value = rest.string(&mut self.scratch)?;
        Ok(Literal { kind: Some(kind), name, value })
    }
}

struct Literal<'b> {
    /// The kind of the entry that lent its name.
    kind: Option<Kind>,
    name: Text<'b>,
    value: Text<'b>,
}

impl<'b> Literal<'b> {
    fn resolve<'s>(self, scratch: &'s [u8]) -> (Kind, &'s [u8], &'s [u8])
    where
        'b: 's,
    {
        let (name, value) = (self.name.bytes(scratch), self.value.bytes(scratch));
        let kind = match self.kind {
            Some(kind) => kind.with_value(name, value),
            None => Kind::of(name, value),
        };
        (kind, name, value)
    }
}

/// A string, where it was found or where it was decoded to.
enum Text<'b> {
    Plain(&'b [u8]),
    Scratch(Range<usize>),
}

impl<'b> Text<'b> {
    fn bytes<'s>(self, scratch: &'s [u8]) -> &'s [u8]
    where
        'b: 's,
    {
        match self {
            Self::Plain(bytes) => bytes,
            Self::Scratch(range) => scratch.get(range).unwrap_or_default(),
        }
    }
}

struct Reader<'b> {
    bytes: &'b [u8],
}

impl<'b> Reader<'b> {
    fn byte(&mut self) -> Result<u8, HpackError> {
        let (first, rest) = self.bytes.split_first().ok_or(HpackError::Truncated)?;
        self.bytes = rest;
        Ok(*first)
    }

    /// An integer whose first byte has so many bits for it (section 5.1).
    fn integer(&mut self, prefix_bits: u32) -> Result<usize, HpackError> {
        let mask = (1_usize << prefix_bits) - 1;
        let mut value = usize::from(self.byte()?) & mask;
        if value < mask {
            return Ok(value);
        }
        for position in 0..INTEGER_BYTES_MAX - 1 {
            let byte = self.byte()?;
            value += usize::from(byte & 0x7f) << (7 * position);
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(HpackError::Integer)
    }

    /// A string (section 5.2); decoded behind what `scratch` holds, if it is coded.
    fn string(&mut self, scratch: &mut Vec<u8>) -> Result<Text<'b>, HpackError> {
        let is_coded = self.bytes.first().is_some_and(|byte| byte & 0x80 != 0);
        let length = self.integer(7)?;
        let (text, rest) = self.bytes.split_at_checked(length).ok_or(HpackError::Truncated)?;
        self.bytes = rest;
        if !is_coded {
            return Ok(Text::Plain(text));
        }
        let from = scratch.len();
        huffman::decode(text, scratch)?;
        Ok(Text::Scratch(from..scratch.len()))
    }
}
