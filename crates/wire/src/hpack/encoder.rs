//! Fields to header blocks.
//!
//! What goes into the table is decided by what is seen, not by a list of names: a field enters it when it comes for the second time,
//! so that values that never repeat (identifiers, dates) cost no other field its place. A few names whose values nearly always
//! repeat on a connection enter at once. Credentials and cookies never enter: on an upstream connection the table is shared by
//! many clients, and one of them could find out another's secret by the length of what is sent (RFC 7541 section 7.1).

use super::table::DynamicTable;
use super::{Kind, TABLE_BYTES_MAX, huffman, static_table};

/// Places in which a field, by the hash of its name and value, is remembered: of the table's at most 128 fields nearly all.
const VALUE_SLOTS: usize = 256;
/// Likewise by the hash of its name alone.
const NAME_SLOTS: usize = 64;
/// Marks a place in the static table among numbers of fields.
const IS_STATIC: u32 = 1 << 31;
/// Fields remembered as seen once.
const SEEN_SLOTS: usize = 128;
/// A larger field does not enter the table: it would cost the place of several that are worth more.
const INDEXED_BYTES_MAX: usize = TABLE_BYTES_MAX / 4;

/// One direction of one connection: the blocks must be sent in the order in which they were written.
#[derive(Debug)]
pub struct Encoder {
    pub(super) table: DynamicTable,
    /// Fields that ever entered the table. The last of them has this number, `< IS_STATIC`; 0: none did.
    inserted: u32,
    /// Numbers of fields; with [`IS_STATIC`], places in the static table of those that came. One that has left the table, or gave up its slot to
    /// another, is not found: it is written anew.
    by_value: Box<[u32; VALUE_SLOTS]>,
    by_name: [u32; NAME_SLOTS],
    /// Parts of hashes.
    seen: [u16; SEEN_SLOTS],
    /// Sizes of the table that have to be told at the next block's beginning: the smallest since the last block, and the last.
    resize: Option<(usize, usize)>,
}

impl Default for Encoder {
    fn default() -> Self {
        Self {
            table: DynamicTable::default(),
            inserted: 0,
            by_value: Box::new([0; VALUE_SLOTS]),
            by_name: [0; NAME_SLOTS],
            seen: [0; SEEN_SLOTS],
            resize: None,
        }
    }
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
    pub fn begin(&mut self, out: &mut Vec<u8>) {
        if let Some((smallest, last)) = self.resize.take() {
            // Section 4.2: both, when it was smaller in between.
            if smallest < last {
                integer(out, 0x20, 5, smallest);
            }
            integer(out, 0x20, 5, last);
        }
    }

    /// Writes a field. `name` has no upper case. `never_indexed`: the field came with that mark and must leave with it (section 6.2.3).
    pub fn field(&mut self, out: &mut Vec<u8>, name: &[u8], value: &[u8], never_indexed: bool) {
        let name_hash = hash(0, name);
        let value_hash = hash(name_hash, value);
        // Nearly always: a connection says the same things over and over.
        if !never_indexed && let Some(index) = self.find_value(name, value, value_hash) {
            return integer(out, 0x80, 7, index);
        }
        self.new_field(out, (name, name_hash), (value, value_hash), never_indexed);
    }

    /// Writes a field that is not to be found by its value, and remembers it for the next time.
    fn new_field(
        &mut self,
        out: &mut Vec<u8>,
        (name, name_hash): (&[u8], u32),
        (value, value_hash): (&[u8], u32),
        never_indexed: bool,
    ) {
        let first_static = static_table::find_name(name, name_hash);
        if never_indexed || is_sensitive(first_static) {
            let index = first_static.or_else(|| self.find_name(name, name_hash)).unwrap_or(0);
            return literal(out, (0x10, 4), index, name, value);
        }
        if let Some(index) = first_static.and_then(|first| static_table::find_value(first, name, value)) {
            self.remember_static(index, value_hash);
            return integer(out, 0x80, 7, index);
        }
        let index = first_static.or_else(|| self.find_name(name, name_hash)).unwrap_or(0);
        let is_small = name.len() + value.len() + super::FIELD_OVERHEAD_BYTES <= INDEXED_BYTES_MAX;
        if !is_small || !(self.is_seen(value_hash) || repeats(first_static)) {
            return literal(out, (0x00, 4), index, name, value);
        }
        literal(out, (0x40, 6), index, name, value);
        // The kind is of no use on this side.
        if self.table.insert(Kind::UnknownPseudo, name, value) {
            self.inserted = (self.inserted + 1) % IS_STATIC;
            // 0 is no number.
            self.inserted = self.inserted.max(1);
            if let Some(slot) = self.by_value.get_mut(value_hash as usize % VALUE_SLOTS) {
                *slot = self.inserted;
            }
            if let Some(slot) = self.by_name.get_mut(name_hash as usize % NAME_SLOTS) {
                *slot = self.inserted;
            }
        }
    }

    /// Bytes of memory that it holds, besides itself.
    pub fn memory_bytes(&self) -> usize {
        self.table.memory_bytes() + size_of_val(&*self.by_value)
    }

    /// The index of a field, as far as it is remembered.
    fn find_value(&self, name: &[u8], value: &[u8], value_hash: u32) -> Option<usize> {
        let number = *self.by_value.get(value_hash as usize % VALUE_SLOTS)?;
        if number & IS_STATIC != 0 {
            let index = (number ^ IS_STATIC) as usize;
            let (_, its_name, its_value) = static_table::entry(index)?;
            return (its_name.as_bytes() == name && its_value.as_bytes() == value).then_some(index);
        }
        let age = self.age(number)?;
        let (_, its_name, its_value) = self.table.field(age)?;
        (its_name == name && its_value == value).then_some(static_table::LENGTH + 1 + age)
    }

    fn find_name(&self, name: &[u8], name_hash: u32) -> Option<usize> {
        let number = *self.by_name.get(name_hash as usize % NAME_SLOTS)?;
        let age = self.age(number)?;
        let (_, its_name, _) = self.table.field(age)?;
        (its_name == name).then_some(static_table::LENGTH + 1 + age)
    }

    /// Spares looking for the field the next time; but no other field loses its slot for it, which costs more to find.
    fn remember_static(&mut self, index: usize, value_hash: u32) {
        let at = value_hash as usize % VALUE_SLOTS;
        let Some(number) = self.by_value.get(at).copied() else { return };
        let is_used = number & IS_STATIC == 0 && self.age(number).is_some_and(|age| self.table.field(age).is_some());
        if let Some(slot) = self.by_value.get_mut(at).filter(|_| !is_used) {
            *slot = IS_STATIC | index as u32;
        }
    }

    /// How many fields came behind the field with this number.
    fn age(&self, number: u32) -> Option<usize> {
        // After 2^31 fields a number may be of an earlier round; what it leads to is compared, so nothing wrong comes of it.
        (number != 0).then(|| (self.inserted.wrapping_sub(number) % IS_STATIC) as usize)
    }

    /// Whether the field came before, as far as is known; remembers it.
    fn is_seen(&mut self, value_hash: u32) -> bool {
        let Some(slot) = self.seen.get_mut(value_hash as usize % SEEN_SLOTS) else { return false };
        let mark = (value_hash >> 16) as u16 | 1;
        std::mem::replace(slot, mark) == mark
    }
}

/// Memory of an encoder at most.
pub(super) const MEMORY_BYTES_MAX: usize = super::table::MEMORY_BYTES_MAX + VALUE_SLOTS * size_of::<u32>();

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

fn integer(out: &mut Vec<u8>, pattern: u8, prefix_bits: u32, value: usize) {
    let mask = (1_usize << prefix_bits) - 1;
    if value < mask {
        return out.push(pattern | value as u8);
    }
    out.push(pattern | mask as u8);
    let mut rest = value - mask;
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
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
