//! Encodes fields into header blocks.
//!
//! Which fields enter the table depends on what was sent before, not on a list of names: a field enters it when it is sent for the second
//! time, so that values that never repeat (identifiers, dates) push no other field out. A few names whose values nearly always repeat on a
//! connection enter at once. Credentials and cookies never enter: many clients share the table of an upstream connection, and one of them
//! could find out another's secret by the length of what is sent (RFC 7541 section 7.1).

use super::positions::{FieldPosition, FieldPositions};
use super::sent_list::{self, SentList};
use super::table::DynamicTable;
use super::{FIELD_OVERHEAD_BYTES, Kind, TABLE_BYTES_MAX, huffman, static_table};

/// A larger field does not enter the table, because it would push out several more useful ones.
const INDEXED_BYTES_MAX: usize = TABLE_BYTES_MAX / 4;

/// The encoder of one direction of one connection. The blocks must be sent in the order in which they were written.
#[derive(Debug, Default)]
pub struct Encoder {
    pub(super) table: DynamicTable,
    positions: Box<FieldPositions>,
    /// Table sizes to send at the beginning of the next block: the smallest since the last block, and the last.
    resize: Option<(usize, usize)>,
    /// The last lists of fields of heads and of trailers.
    sent: [SentList; 2],
    /// All fields since the beginning of the list would be written in the same way again, as long as the table is the same.
    is_settled: bool,
}

/// Pseudo-header fields of the static table that nearly every message has, with their indexes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Indexed {
    /// `:method: GET`
    Get = 2,
    /// `:method: POST`
    Post = 3,
    /// `:scheme: http`
    Http = 6,
    /// `:scheme: https`
    Https = 7,
    /// `:status: 200`
    Ok = 8,
}

impl Encoder {
    /// The other side's decoder allows a table of this many bytes (SETTINGS_HEADER_TABLE_SIZE). More than [`TABLE_BYTES_MAX`] is not used.
    pub fn set_table_bytes_max(&mut self, bytes: usize) {
        let bytes = bytes.min(TABLE_BYTES_MAX);
        let smallest = self.resize.map_or(self.table.size_max(), |(smallest, _)| smallest).min(bytes);
        if self.resize.is_some() || bytes != self.table.size_max() {
            self.resize = Some((smallest, bytes));
        }
        self.table.set_size_max(bytes);
    }

    /// Begins a block. Call it once before the block's fields.
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
        // Section 4.2: both, if it was smaller in between.
        if smallest < last {
            integer(out, 0x20, 5, smallest);
        }
        integer(out, 0x20, 5, last);
    }

    /// Marks the block as one of trailers, which begin with other fields than a head.
    pub(crate) fn begin_trailers(&mut self) {
        self.positions.begin_trailers();
    }

    /// Writes a field of the static table without looking for it.
    #[inline]
    pub(crate) fn indexed(&mut self, out: &mut Vec<u8>, field: Indexed) {
        self.positions.go_on(FieldPosition::of_static(field as usize));
        out.push(0x80 | field as u8);
    }

    /// Writes the fields of a list: `write` does it, if it is not the list of the last call. `list` must identify the fields and their order,
    /// and must not be empty. The block ends with them.
    pub(crate) fn list(&mut self, out: &mut Vec<u8>, list: &[u8], write: impl FnOnce(&mut Self, &mut Vec<u8>)) {
        let (which, version) = (usize::from(self.positions.is_at_trailers()), self.table.version());
        let [heads, trailers] = &mut self.sent;
        let sent = if which == 0 { heads } else { trailers };
        if let Some(written) = sent.recall(list, version) {
            return out.extend_from_slice(written);
        }
        let from = out.len();
        self.is_settled = true;
        write(self, out);
        if self.is_settled
            && self.table.version() == version
            && let (Some(sent), Some(written)) = (self.sent.get_mut(which), out.get(from..))
        {
            sent.note(list, written, version);
        }
    }

    /// Writes a field. `name` has no upper case. `never_indexed`: the field arrived with that mark and must keep it (section 6.2.3).
    pub fn field(&mut self, out: &mut Vec<u8>, name: &[u8], value: &[u8], never_indexed: bool) {
        if never_indexed || !self.expected(out, name, value) {
            self.unexpected(out, name, value, never_indexed);
        }
    }

    /// Writes the field if it is the one that is expected after the last, which it nearly always is. Otherwise it writes nothing and
    /// returns false.
    ///
    /// It is inlined, with what it calls, since most fields need nothing else; otherwise a fifth of the cost is calls.
    #[inline(always)]
    pub(crate) fn expected(&mut self, out: &mut Vec<u8>, name: &[u8], value: &[u8]) -> bool {
        let position = self.positions.expected();
        let Some(index) = self.index(position, name, value) else { return false };
        self.positions.go_on(position);
        integer(out, 0x80, 7, index);
        true
    }

    /// Writes a field, from wherever it is in the tables, or as a literal.
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
        // The next time, the field has been seen.
        self.is_settled = false;
        let is_small = name.len() + value.len() + FIELD_OVERHEAD_BYTES <= INDEXED_BYTES_MAX;
        if !is_small || !(self.positions.is_seen(value_hash) || repeats(first_static)) {
            self.positions.pass(name_hash);
            return literal(out, (0x00, 4), index, name, value);
        }
        literal(out, (0x40, 6), index, name, value);
        // The encoder does not use the kind.
        if self.table.insert(Kind::UnknownPseudo, name, value) {
            let position = self.positions.insert(name_hash, value_hash);
            self.positions.go_to(position);
        } else {
            self.positions.pass(name_hash);
        }
    }

    /// Forgets the last lists. The table stays.
    pub(crate) fn shrink(&mut self) {
        self.sent = Default::default();
    }

    /// Bytes of memory that it holds besides its own struct.
    pub fn memory_bytes(&self) -> usize {
        let sent: usize = self.sent.iter().map(SentList::memory_bytes).sum();
        self.table.memory_bytes() + size_of::<FieldPositions>() + sent
    }

    /// The index of the field at this position, if its name and value match.
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
            // If one has left the table, those after it are older and have left it, too.
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

/// The maximum memory of an encoder.
pub(super) const MEMORY_BYTES_MAX: usize =
    super::table::MEMORY_BYTES_MAX + size_of::<FieldPositions>() + 2 * 2 * sent_list::MEMORY_BYTES_MAX;

/// `authorization`, `cookie`, `proxy-authorization`, `set-cookie`.
fn is_sensitive(static_index: Option<usize>) -> bool {
    matches!(static_index, Some(23 | 32 | 49 | 55))
}

/// `:authority`, `accept` and similar, `content-type`, `server`, `user-agent`: one connection sends few values of them.
fn repeats(static_index: Option<usize>) -> bool {
    matches!(static_index, Some(1 | 15..=19 | 31 | 54 | 58))
}

/// `pattern` is the bits before the index, and how many bits are left for it.
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

/// `left == right`, for text that is mostly short: up to 16 bytes without a call.
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

/// Continues the hash `from` with `text`. Deliberate collisions only cost compression.
pub(super) const fn hash(from: u32, text: &[u8]) -> u32 {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut state = (from as u64) ^ FACTOR.rotate_left(text.len() as u32);
    let mut rest = text;
    while let Some((chunk, behind)) = rest.split_first_chunk::<8>() {
        state = (state.rotate_left(23) ^ u64::from_le_bytes(*chunk)).wrapping_mul(FACTOR);
        rest = behind;
    }
    // Hashes the rest in pieces that overlap, instead of byte by byte.
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
