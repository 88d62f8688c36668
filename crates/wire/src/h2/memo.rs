//! Remembers the last header list of a connection, in case the same block arrives again.
//!
//! Many peers send the same block again and again: the calls of a gRPC client differ only in their messages, and nginx writes the same five
//! literals with each response. Reading such a block again costs a comparison and two copies. The benchmark `h2` of this crate takes
//! 1,700 instructions fewer for a call of three blocks, both sides together (callgrind).
//!
//! The meaning of a block depends on the dynamic table, so a list is used again only where the table cannot matter ([`Repeat`]).

use super::head::Pseudo;
use crate::hpack::{Decoder, Repeat, TABLE_BYTES_MAX, TableRun};
use crate::message::{Field, RequestHead};

/// Maximum bytes of a block that is kept.
const BLOCK_BYTES_MAX: usize = 512;
/// Maximum bytes of a list that is kept.
const LIST_BYTES_MAX: usize = 1024;
/// Maximum fields of a list that is kept, and maximum fields that its block inserts into the table.
const FIELDS_MAX: usize = 32;
/// After this many misses in a row, only one block in as many is kept, because keeping one costs copies.
const MISSES_MAX: u32 = 8;

/// The maximum of [`Memo::memory_bytes`] before vectors round up: the block, the list, and the fields to insert into the table again.
pub(super) const MEMORY_BYTES_MAX: usize =
    BLOCK_BYTES_MAX + LIST_BYTES_MAX + TABLE_BYTES_MAX + FIELDS_MAX * (size_of::<Field>() + size_of::<[u16; 4]>());

/// A block and the valid list that it was read as.
#[derive(Debug, Default)]
pub(super) struct Memo {
    /// Empty if nothing is kept.
    block: Vec<u8>,
    /// The version of the table that the block refers to; `None` if it does not refer to the table.
    version: Option<u64>,
    inserted: TableRun,
    fields: Vec<Field>,
    /// The bytes that the spans of `fields` and `pseudo` point into.
    bytes: Vec<u8>,
    pseudo: Pseudo,
    /// The head of the request that has this list, if it is one, and whether it ended the stream.
    request: Option<(RequestHead, bool)>,
    /// Number of misses in a row.
    misses: u32,
    /// The list is the one that was read last.
    is_last: bool,
    #[cfg(test)]
    recalls: u32,
}

impl Memo {
    /// Returns the list again if this block reads as the last one did. `fields` and `bytes` must be empty. The decoder is then in the state
    /// that decoding the block leaves.
    pub(super) fn recall(
        &mut self,
        decoder: &mut Decoder,
        block: &[u8],
        fields: &mut Vec<Field>,
        bytes: &mut Vec<u8>,
    ) -> Option<Pseudo> {
        let is_same = self.block == block && !block.is_empty();
        let is_current = self.version.is_none_or(|version| version == decoder.version());
        if !is_same || !is_current || !decoder.insert_run(&self.inserted) {
            self.misses = self.misses.wrapping_add(1);
            self.is_last = false;
            return None;
        }
        self.misses = 0;
        self.is_last = true;
        #[cfg(test)]
        {
            self.recalls += 1;
        }
        fields.extend_from_slice(&self.fields);
        bytes.extend_from_slice(&self.bytes);
        Some(self.pseudo)
    }

    /// Keeps the list that was read from a block which [`Self::recall`] did not know.
    pub(super) fn note(&mut self, decoder: &Decoder, block: &[u8], fields: &[Field], bytes: &[u8], pseudo: &Pseudo) {
        let is_small = block.len() <= BLOCK_BYTES_MAX && bytes.len() <= LIST_BYTES_MAX && fields.len() <= FIELDS_MAX;
        if !is_small || self.misses > MISSES_MAX && !self.misses.is_multiple_of(MISSES_MAX) {
            return;
        }
        let (version, inserted) = match decoder.repeat() {
            Repeat::Always { inserted } => (None, inserted),
            Repeat::WhileVersion(version) => (Some(version), 0),
            Repeat::Never => return,
        };
        // The old list goes in any case, because `inserted` is about to change.
        self.block.clear();
        if inserted > FIELDS_MAX || !decoder.copy_last(inserted, &mut self.inserted) {
            return;
        }
        self.block.extend_from_slice(block);
        self.version = version;
        self.fields.clear();
        self.fields.extend_from_slice(fields);
        self.bytes.clear();
        self.bytes.extend_from_slice(bytes);
        self.pseudo = *pseudo;
        self.request = None;
        self.is_last = true;
    }

    /// The valid request that has the list that was recalled or noted last, without its fields, and the length of its body. `None` if that is
    /// not known.
    pub(super) fn request(&self, is_end: bool) -> Option<(&RequestHead, Option<u64>)> {
        let (head, _) = self.request.as_ref().filter(|(_, ends)| self.is_last && *ends == is_end)?;
        Some((head, self.pseudo.content_length))
    }

    /// Keeps the valid request that has the list that was recalled or noted last.
    pub(super) fn note_request(&mut self, head: &RequestHead, is_end: bool) {
        if self.is_last {
            self.request = Some((RequestHead { fields: Vec::new(), ..*head }, is_end));
        }
    }

    /// Number of blocks that [`Self::recall`] knew.
    #[cfg(test)]
    pub(super) fn recalls(&self) -> u32 {
        self.recalls
    }

    /// Bytes of memory that it holds besides its own struct.
    pub(super) fn memory_bytes(&self) -> usize {
        self.block.capacity()
            + self.inserted.memory_bytes()
            + self.fields.capacity() * size_of::<Field>()
            + self.bytes.capacity()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::head::HeadBuffers;
    use super::super::limits::Limits;
    use super::*;

    /// A part of a block: few different ones, so that blocks repeat and refer to each other's fields.
    fn part() -> impl Strategy<Value = Vec<u8>> {
        let literal = |first: u8| move |value: u8| vec![first, 1, b'a' + value];
        prop_oneof![
            4 => (1..16_u8).prop_map(|index| vec![0x80 | index]),
            4 => (62..70_u8).prop_map(|index| vec![0x80 | index]),
            // With indexing: named by the static table (`age`, `server`), by the dynamic table, by itself; and one that empties the table.
            4 => (0..3_u8).prop_map(literal(0x40 | 21)),
            2 => (0..3_u8).prop_map(literal(0x40 | 54)),
            2 => (0..3_u8).prop_map(|value| vec![0x7f, 0, 1, b'a' + value]),
            2 => (0..2_u8).prop_map(|value| vec![0x40, 2, b'x', b'a' + value, 1, b'v']),
            1 => Just([&[0x40 | 54, 0x7f, 0xe1, 0x1f][..], &[b'x'; 4192]].concat()),
            // Not indexed, and Huffman-coded: `0`.
            2 => Just(vec![0x0f, 6, 0x81, 0x07]),
            1 => Just(vec![0x1f, 8, 1, b'p']),
            // Crumbs.
            2 => (0..2_u8).prop_map(|value| vec![0x40 | 32, 1, b'a' + value]),
        ]
    }

    fn block() -> impl Strategy<Value = Vec<u8>> {
        // A change of the table's size in front of some.
        let size = prop_oneof![12 => Just(vec![]), 1 => Just(vec![0x20]), 2 => Just(vec![0x3f, 0x31]), 1 => Just(vec![0x3f, 0xe1, 0x1f])];
        let head = prop_oneof![Just(vec![0x88]), Just(vec![0x82, 0x86, 0x84, 0x41, 1, b'h']), Just(vec![])];
        (size, head, proptest::collection::vec(part(), 0..5))
            .prop_map(|(size, head, parts)| [size, head, parts.concat()].concat())
    }

    /// All fields of the table, the last first.
    fn table(decoder: &mut Decoder) -> Vec<(Vec<u8>, Vec<u8>)> {
        let mut fields = Vec::new();
        for index in 62..=127_u8 {
            let mut block = vec![0x80 | index];
            if index == 127 {
                block = vec![0xff, 0];
            }
            let take = |field: crate::hpack::Decoded<'_>| fields.push((field.name.to_vec(), field.value.to_vec()));
            if decoder.decode(&block, take).is_err() {
                break;
            }
        }
        fields
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]

        /// Blocks that come again and again are read as if each were the first, and leave the same table behind.
        #[test]
        fn a_block_means_the_same_with_and_without_a_memo(
            pool in proptest::collection::vec(block(), 1..5),
            order in proptest::collection::vec((0..5_usize, 0..3_u8), 1..60),
        ) {
            let limits = Limits::default();
            let (mut with, mut decoder) = (HeadBuffers::default(), Decoder::default());
            let mut decoder_without = Decoder::default();
            for (at, kind) in order {
                let block = &pool[at % pool.len()];
                let mut without = HeadBuffers::default();
                let (left, right) = match kind {
                    0 => (with.read_request(&mut decoder, block, &limits, true), without.read_request(&mut decoder_without, block, &limits, true)),
                    1 => (
                        with.read_response(&mut decoder, block, &limits, false, false),
                        without.read_response(&mut decoder_without, block, &limits, false, false),
                    ),
                    _ => (
                        with.read_trailers(&mut decoder, block, &limits).map(|read| read.map(|()| None)),
                        without.read_trailers(&mut decoder_without, block, &limits).map(|read| read.map(|()| None)),
                    ),
                };
                prop_assert_eq!(left, right);
                if left.is_err() {
                    // The connection ends.
                    return Ok(());
                }
                prop_assert_eq!(table(&mut decoder), table(&mut decoder_without));
                if left == Ok(Ok(None)) || matches!(left, Ok(Ok(Some(_)))) {
                    prop_assert_eq!(&with.bytes, &without.bytes);
                    match kind {
                        0 => prop_assert_eq!(format!("{:?}", with.request), format!("{:?}", without.request)),
                        1 => prop_assert_eq!(format!("{:?}", with.response), format!("{:?}", without.response)),
                        _ => prop_assert_eq!(&with.trailers, &without.trailers),
                    }
                }
                prop_assert!(with.memory_bytes() <= 2 * super::super::head::memory_bytes_max(limits.header_list_bytes_max as usize, limits.fields_max as usize));
            }
        }
    }

    /// Reads `blocks` as responses, and counts those that were known.
    fn known(blocks: &[&[u8]]) -> usize {
        let (mut head, mut decoder) = (HeadBuffers::default(), Decoder::default());
        let is_known = |block: &&&[u8]| {
            let before = head.recalls();
            head.read_response(&mut decoder, block, &Limits::default(), true, false).unwrap().unwrap();
            head.recalls() > before
        };
        blocks.iter().filter(is_known).count()
    }

    #[test]
    fn blocks_that_repeat_are_known() {
        // What nginx sends: literals that go into the table each time.
        let nginx: &[u8] = &[0x88, 0x76, 1, b'n', 0x61, 1, b'd'];
        assert_eq!(known(&[nginx; 5]), 4);
        // References, once the table holds what they refer to.
        let reference: &[u8] = &[0x88, 0xbe];
        assert_eq!(known(&[nginx, reference, reference, reference]), 2);
        // The same bytes mean another field now.
        assert_eq!(known(&[nginx, reference, nginx, reference]), 0);
        // Blocks of changing lengths, far more than are remembered.
        let changing: Vec<Vec<u8>> = (0..50_u8).map(|value| vec![0x88, 0x0f, 6, 1, value + 40]).collect();
        let changing: Vec<&[u8]> = changing.iter().map(Vec::as_slice).collect();
        assert_eq!(known(&changing), 0);
        // And then one that repeats is learnt again, some blocks later.
        let again = [changing.as_slice(), &[reference_free(); 20]].concat();
        assert!(known(&again) >= 20 - MISSES_MAX as usize - 1);
    }

    fn reference_free() -> &'static [u8] {
        &[0x88, 0x0f, 6, 1, b'z']
    }
}
