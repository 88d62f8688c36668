//! Decodes header blocks into fields (RFC 7541 sections 3 and 6).

use std::ops::Range;

use super::table::{DynamicTable, TableRun};
use super::{Decoded, HpackError, Kind, huffman, static_table};

/// Bytes of one integer, with its prefix. The largest useful one (a length within a block of a MiB) takes four.
pub const INTEGER_BYTES_MAX: usize = 5;

/// The decoder of one direction of one connection. It must get all blocks, in the order in which they arrived.
#[derive(Debug, Default)]
pub struct Decoder {
    pub(super) table: DynamicTable,
    /// The Huffman-decoded text of the current field.
    scratch: Vec<u8>,
    /// The effect of the current block.
    effect: Effect,
}

/// What a block read from the dynamic table, and how it changed it.
#[derive(Clone, Copy, Debug, Default)]
struct Effect {
    /// A field, or its name, was read from the table.
    has_read: bool,
    /// Number of fields that were inserted.
    inserted: usize,
    /// The table was resized, or emptied by a field larger than itself.
    has_resized: bool,
}

/// The tables on which a block decodes to the same fields again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repeat {
    /// On any table, because it reads nothing from the dynamic table. It inserts `inserted` fields.
    Always { inserted: usize },
    /// On a table of this version. It does not change the table.
    WhileVersion(u64),
    /// Unknown.
    Never,
}

impl Decoder {
    /// Decodes a whole block and passes each field to `emit`, in order.
    ///
    /// The fields of a message that will be refused must also be decoded, because later blocks use what they put into the table.
    ///
    /// # Errors
    /// The tables of the two sides no longer agree, so the connection must be closed.
    pub fn decode(&mut self, block: &[u8], mut emit: impl FnMut(Decoded<'_>)) -> Result<(), HpackError> {
        let mut rest = Reader { bytes: block };
        self.effect = Effect::default();
        // Section 4.2: only at the beginning of a block.
        while let Some(0x20..=0x3f) = rest.bytes.first() {
            self.effect.has_resized = true;
            let size = rest.integer(5)?;
            if size > super::TABLE_BYTES_MAX {
                return Err(HpackError::TableSize);
            }
            self.table.set_size_max(size);
        }
        while let Some(byte) = rest.bytes.first() {
            match byte {
                0x80.. => {
                    let index = rest.integer(7)?;
                    self.effect.has_read |= index > static_table::LENGTH;
                    emit(self.field(index).ok_or(HpackError::Index)?);
                }
                0x40..=0x7f => {
                    let literal = self.literal(6, &mut rest)?;
                    let field = literal.field(&self.scratch);
                    emit(field);
                    let fits = self.table.insert(field.kind, field.name, field.value);
                    self.effect.inserted += usize::from(fits);
                    self.effect.has_resized |= !fits;
                }
                0x20..=0x3f => return Err(HpackError::TableSize),
                first => {
                    let literal = self.literal(4, &mut rest)?;
                    emit(Decoded { never_indexed: *first >= 0x10, ..literal.field(&self.scratch) });
                }
            }
        }
        Ok(())
    }

    /// On which tables the block that was decoded last, without an error, decodes to the same fields again.
    pub(crate) fn repeat(&self) -> Repeat {
        match self.effect {
            Effect { has_read: false, has_resized: false, inserted } => Repeat::Always { inserted },
            Effect { has_read: true, has_resized: false, inserted: 0 } => Repeat::WhileVersion(self.table.version()),
            _ => Repeat::Never,
        }
    }

    /// The version of the table, for [`Repeat::WhileVersion`].
    #[inline]
    pub(crate) fn version(&self) -> u64 {
        self.table.version()
    }

    /// Copies the `count` fields that were inserted last. False if some of them have left the table.
    pub(crate) fn copy_last(&self, count: usize, run: &mut TableRun) -> bool {
        self.table.copy_last(count, run)
    }

    /// Inserts the fields again, as the block that brought them did. False if the table has become too small for them; it is then unchanged.
    pub(crate) fn insert_run(&mut self, run: &TableRun) -> bool {
        self.table.insert_run(run)
    }

    /// Bytes of memory that it holds besides its own struct.
    pub fn memory_bytes(&self) -> usize {
        self.table.memory_bytes() + self.scratch.capacity()
    }

    /// Frees the buffer of a rare, long literal.
    pub(crate) fn shrink(&mut self) {
        if self.scratch.capacity() > super::TABLE_BYTES_MAX {
            self.scratch = Vec::new();
        }
    }

    /// The field with this index, of either table.
    #[inline]
    fn field(&self, index: usize) -> Option<Decoded<'_>> {
        let Some(age) = index.checked_sub(static_table::LENGTH + 1) else {
            let (kind, name, value) = static_table::entry(index)?;
            return Some(Decoded { kind, name, value, text: &[], never_indexed: false });
        };
        let (kind, text, name_len) = self.table.text(age)?;
        let (name, value) = text.split_at_checked(name_len)?;
        Some(Decoded { kind, name, value, text, never_indexed: false })
    }

    /// Reads the name, unless an index stands for it, and the value. `prefix_bits` is the size of the index's prefix.
    #[inline(never)]
    fn literal<'b>(&mut self, prefix_bits: u32, rest: &mut Reader<'b>) -> Result<Literal<'b>, HpackError> {
        let index = rest.integer(prefix_bits)?;
        self.scratch.clear();
        if index == 0 {
            let name = rest.string(&mut self.scratch)?;
            let value = rest.string(&mut self.scratch)?;
            return Ok(Literal::new(None, name, value, &self.scratch));
        }
        let (kind, name) = match static_table::entry(index) {
            Some((kind, name, _)) => (kind, Text::Plain(name)),
            None => {
                let age = index - static_table::LENGTH - 1;
                self.effect.has_read = true;
                let (kind, name, _) = self.table.field(age).ok_or(HpackError::Index)?;
                // Copied, because inserting this literal may remove the entry from the table.
                self.scratch.extend_from_slice(name);
                (kind, Text::Scratch(0..self.scratch.len()))
            }
        };
        let value = rest.string(&mut self.scratch)?;
        Ok(Literal::new(Some(kind), name, value, &self.scratch))
    }
}

struct Literal<'b> {
    kind: Kind,
    name: Text<'b>,
    value: Text<'b>,
}

impl<'b> Literal<'b> {
    /// `its_kind` is the kind of the entry that provides the name.
    fn new(its_kind: Option<Kind>, name: Text<'b>, value: Text<'b>, scratch: &[u8]) -> Self {
        let kind = match its_kind {
            Some(kind) => kind.with_value(name.bytes(scratch), value.bytes(scratch)),
            None => Kind::of(name.bytes(scratch), value.bytes(scratch)),
        };
        Self { kind, name, value }
    }

    fn field<'s>(&self, scratch: &'s [u8]) -> Decoded<'s>
    where
        'b: 's,
    {
        let (name, value) = (self.name.bytes(scratch), self.value.bytes(scratch));
        Decoded { kind: self.kind, name, value, text: &[], never_indexed: false }
    }
}

/// A string, either in the block or in the scratch buffer.
enum Text<'b> {
    Plain(&'b [u8]),
    Scratch(Range<usize>),
}

impl<'b> Text<'b> {
    fn bytes<'s>(&self, scratch: &'s [u8]) -> &'s [u8]
    where
        'b: 's,
    {
        match self {
            Self::Plain(bytes) => bytes,
            Self::Scratch(range) => scratch.get(range.clone()).unwrap_or_default(),
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

    /// An integer whose first byte has this many bits for it (section 5.1).
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

    /// A string (section 5.2). If it is Huffman-coded, it is decoded to the end of `scratch`.
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
