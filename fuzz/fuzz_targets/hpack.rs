//! HPACK: blocks of one connection, one after another. What is decoded, another decoder reads alike, and it is the same once it is encoded
//! again; memory is bounded, whatever comes.
//!
//! The input is cut into blocks: a byte says how long the next is.
#![no_main]

use httlib_hpack::Decoder as Other;
use libfuzzer_sys::fuzz_target;
use wire::hpack::{Decoder, Encoder, MEMORY_BYTES_MAX};

type Fields = Vec<(Vec<u8>, Vec<u8>)>;

fuzz_target!(|data: &[u8]| {
    let (mut decoder, mut other) = (Decoder::default(), Other::default());
    let (mut encoder, mut back) = (Encoder::default(), Decoder::default());
    let mut rest = data;
    while let Some((length, behind)) = rest.split_first() {
        let (block, next) = behind.split_at(usize::from(*length).min(behind.len()));
        rest = next;
        let decoded = decode(&mut decoder, block);
        assert!(decoder.memory_bytes() <= MEMORY_BYTES_MAX + 2 * 8 * block.len(), "{}", decoder.memory_bytes());
        // After an error the tables do not agree: a connection ends here.
        let Some(fields) = decoded else { return };
        assert_eq!(Some(&fields), decode_other(&mut other, block).as_ref(), "another decoder");

        if length % 16 == 0 {
            encoder.set_table_bytes_max(usize::from(*length) * 20);
        }
        let mut out = Vec::new();
        encoder.begin(&mut out);
        for (name, value) in &fields {
            encoder.field(&mut out, name, value, false);
        }
        assert_eq!(decode(&mut back, &out), Some(fields), "encoded again");
    }
});

fn decode(decoder: &mut Decoder, block: &[u8]) -> Option<Fields> {
    let mut fields = Vec::new();
    decoder.decode(block, |field| fields.push((field.name.to_vec(), field.value.to_vec()))).ok()?;
    Some(fields)
}

fn decode_other(decoder: &mut Other<'_>, block: &[u8]) -> Option<Fields> {
    let mut fields = Vec::new();
    decoder.decode(&mut block.to_vec(), &mut fields).ok()?;
    Some(fields.into_iter().map(|(name, value, _)| (name, value)).collect())
}
