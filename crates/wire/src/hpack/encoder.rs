//! Fields to header blocks.
//!
//! What goes into the table is decided by what is seen, not by a list of names: a field enters it when it comes for the second time,
//! so that values that never repeat (identifiers, dates) push no other field out of the table. A few names whose values nearly always
//! repeat on a connection enter at once. Credentials and cookies never enter: on an upstream connection the table is shared by
//! many clients, and one of them could find out another's secret by the length of what is sent (RFC 7541 section 7.1).

use super::positions::{FieldPosition, FieldPositions};
use super::table::DynamicTable;
use super::{FIELD_OVERHEAD_BYTES, Kind, TABLE_BYTES_MAX, huffman, static_table};

/// A larger field does not enter the table: it would push out several that are worth more.
const INDEXED_BYTES_MAX: usize = TABLE_BYTES_MAX / 4;

/// One direction of one connection: the blocks must be sent in the order in which they were written.
#[derive(Debug, Default)]
pub struct Encoder {
    pub(super) table: DynamicTable,
    positions: Box<FieldPositions>,
    /// Sizes of the table that have to be told at the next block's beginning: the smallest since the last block, and the last.
    resize: Option<(usize, usize)>,
}

impl Encoder {
    /// The other side's decoder allows a table of so many bytes (SETTINGS_HEADER_TABLE_SIZE). More than [`TABLE_BYTES_MAX`] is not used.
    pub fn set_table_bytes_max(&mut self, bytes: usize) {
        let bytes = bytes.min(TABLE_BYTES_MAX);
        let smallest = self.resize.map_or(self.table.size_max(), |(smallest, _)| smallest).min(bytes);
        if self.resize.is_some() || bytes != self.table.size_max() {
            self.resize = Some((smallest, bytes));
        }
        self.table.set_size_max(bytes);
    }

    /// Begins a block: to be called once in front of its fields.
    #[inline]
    pub fn begin(&mut self, out: &mut Vec<u8>) {
        self.positions.begin();
        if self.resize.is_some() {
            self.tell_size(out);
        }
    }

    #[cold]
    fn tell_size(&mut self, out: &mut Vec<u8>) {
        let Some((smallest, last)) = self.resize.take() else { return };
        // Section 4.2: both, when it was smaller in between.
        if smallest < last {
            integer(out, 0x20, 5, smallest);
        }
        integer(out, 0x20, 5, last);
    }

    /// The block that was begun is one of trailers: they begin with other fields than a head.
    pub(crate) fn begin_trailers(&mut self) {
        self.positions.begin_trailers();
    }

    /// Writes a field. `name` has no upper case. `never_indexed`: the field came with that mark and must leave with it (section 6.2.3).
    pub fn field(&mut self, out: &mut Vec<u8>, name: &[u8], value: &[u8], never_indexed: bool) {
        if never_indexed || !self.expected(out, name, value) {
            self.unexpected(out, name, value, never_indexed);
        }
    }

    /// Writes the field if it is the one that is expected behind the last: it nearly always is. False: it is not, and nothing was written.
    ///
    /// Inlined, with what it calls, since this is all that happens to most fields: a fifth of the cost is calls otherwise.
    #[inline(always)]
    pub(crate) fn expected(&mut self, out: &mut Vec<u8>, name: &[u8], value: &[u8]) -> bool {
        let position = self.positions.expected();
        let Some(index) = self.index(position, name, value) else { return false };
        self.positions.go_on(position);
        integer(out, 0x80, 7, index);
        true
    }

    /// Writes a field wherever it stands, if it stands anywhere.
    pub(crate) fn unexpected(&mut self, out: &mut Vec<u8>, name: &[u8], value: &[u8], never_indexed: bool) {
        let name_hash = hash(0, name);
        let value_hash = hash(name_hash, value);
        if !never_indexed && let Some((position, index)) = self.find(name, value, value_hash) {
            self.positions.go_to(position);
            return integer(out, 0x80, 7, index);
        }
        let first_static = static_table::find_name(name, name_hash);
        let index = first_static.or_else(|| self.find_name(name, name_hash)).unwrap_or(0);
        if never_indexed || is_sensitive(first_static) {
            self.positions.pass(name_hash);
            return literal(out, (0x10, 4), index, name, value);
        }
        let is_small = name.len() + value.len() + FIELD_OVERHEAD_BYTES <= INDEXED_BYTES_MAX;
        if !is_small || !(self.positions.is_seen(value_hash) || repeats(first_static)) {
            self.positions.pass(name_hash);
            return literal(out, (0x00, 4), index, name, value);
        }
        literal(out, (0x40, 6), index, name, value);
        // The kind is of no use on this side.
        if self.table.insert(Kind::UnknownPseudo, name, value) {
            let position = self.positions.insert(name_hash, value_hash);
            self.positions.go_to(position);
        } else {
            self.positions.pass(name_hash);
        }
    }

    /// Bytes of memory that it holds, besides itself.
    pub fn memory_bytes(&self) -> usize {
        self.table.memory_bytes() + size_of::<FieldPositions>()
    }

    /// The index of the field at this position, if it has the name and the value.
    #[inline(always)]
    fn index(&self, position: FieldPosition, name: &[u8], value: &[u8]) -> Option<usize> {
        if let Some(index) = position.static_index() {
            let (its_name, its_value) = static_table::text(index)?;
            return (is_same(its_value, value) && is_same(its_name, name)).then_some(index);
        }
        let age = self.positions.age(position)?;
        let (_, its_name, its_value) = self.table.field(age)?;
        (is_same(its_value, value) && is_same(its_name, name)).then_some(static_table::LENGTH + 1 + age)
    }

    fn find(&self, name: &[u8], value: &[u8], value_hash: u32) -> Option<(FieldPosition, usize)> {
        if let Some(index) = static_table::find_value(name, value, value_hash) {
            return Some((FieldPosition::of_static(index), index));
        }
        for position in self.positions.with_value(value_hash) {
            // What is behind one that has left the table is older, and has left it, too.
            self.positions.age(position).filter(|age| *age < self.table.len())?;
            if let Some(index) = self.index(position, name, value) {
                return Some((position, index));
            }
        }
        None
    }

    fn find_name(&self, name: &[u8], name_hash: u32) -> Option<usize> {
        let age = self.positions.age(self.positions.with_name(name_hash))?;
        let (_, its_name, _) = self.table.field(age)?;
        (its_name == name).then_some(static_table::LENGTH + 1 + age)
    }
}

/// Memory of an encoder at most.
pub(super) const MEMORY_BYTES_MAX: usize = super::table::MEMORY_BYTES_MAX + size_of::<FieldPositions>();

/// `authorization`, `cookie`, `proxy-authorization`, `set-cookie`.
fn is_sensitive(static_index: Option<usize>) -> bool {
    matches!(static_index, Some(23 | 32 | 49 | 55))
}

/// `:authority`, `accept` and its like, `content-type`, `server`, `user-agent`: one connection sends few values of them.
fn repeats(static_index: Option<usize>) -> bool {
    matches!(static_index, Some(1 | 15..=19 | 31 | 54 | 58))
}

/// `pattern`: the bits in front of the index, and how many bits are left for it.
fn literal(out: &mut Vec<u8>, pattern: (u8, u32), name_index: usize, name: &[u8], value: &[u8]) {
    integer(out, pattern.0, pattern.1, name_index);
    if name_index == 0 {
        string(out, name);
    }
    string(out, value);
}

fn string(out: &mut Vec<u8>, text: &[u8]) {
    let coded = huffman::encoded_len(text);
    if coded < text.len() {
        integer(out, 0x80, 7, coded);
        huffman::encode(text, out);
    } else {
        integer(out, 0x00, 7, text.len());
        out.extend_from_slice(text);
    }
}

#[inline]
fn integer(out: &mut Vec<u8>, pattern: u8, prefix_bits: u32, value: usize) {
    let mask = (1_usize << prefix_bits) - 1;
    if value < mask {
        return out.push(pattern | value as u8);
    }
    out.push(pattern | mask as u8);
    rest_of_integer(out, value - mask);
}

fn rest_of_integer(out: &mut Vec<u8>, mut rest: usize) {
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

/// `left == right`, for what is mostly short: without a call up to 16 bytes.
#[inline]
fn is_same(left: &[u8], right: &[u8]) -> bool {
    if left.len() != right.len() {
        return false;
    }
    if let (Some(from), Some(to), Some(its_from), Some(its_to)) =
        (left.first_chunk::<8>(), left.last_chunk::<8>(), right.first_chunk::<8>(), right.last_chunk::<8>())
    {
        return from == its_from && to == its_to && (left.len() <= 16 || left == right);
    }
    if let (Some(from), Some(to), Some(its_from), Some(its_to)) =
        (left.first_chunk::<4>(), left.last_chunk::<4>(), right.first_chunk::<4>(), right.last_chunk::<4>())
    {
        return from == its_from && to == its_to;
    }
    left == right
}

/// Continues the hash `from` with `text`. Whoever makes collisions on purpose loses compression, nothing else.
pub(super) const fn hash(from: u32, text: &[u8]) -> u32 {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut state = (from as u64) ^ FACTOR.rotate_left(text.len() as u32);
    let mut rest = text;
    while let Some((chunk, behind)) = rest.split_first_chunk::<8>() {
        state = (state.rotate_left(23) ^ u64::from_le_bytes(*chunk)).wrapping_mul(FACTOR);
        rest = behind;
    }
    // What is left, in pieces that overlap rather than byte by byte.
    let last = match (rest.first_chunk::<4>(), rest.last_chunk::<4>()) {
        (Some(first), Some(last)) => (u32::from_le_bytes(*first) as u64) << 32 | u32::from_le_bytes(*last) as u64,
        _ => match *rest {
            [a, b, c] => (a as u64) << 16 | (b as u64) << 8 | c as u64,
            [a, b] => (a as u64) << 8 | b as u64,
            [a] => a as u64,
            _ => 0,
        },
    };
    state = (state.rotate_left(23) ^ last).wrapping_mul(FACTOR);
    (state >> 32) as u32
}
