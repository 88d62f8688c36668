//! Both directions together: the standard's examples, another implementation, and random fields.

use proptest::prelude::*;

use super::*;

fn decode(decoder: &mut Decoder, block: &[u8]) -> Result<Vec<(String, String)>, HpackError> {
    let mut fields = Vec::new();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    decoder.decode(block, |field| fields.push((text(field.name), text(field.value)))).map(|()| fields)
}

fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

/// Blocks of one connection, one after another.
#[track_caller]
fn check_blocks(blocks: &[(&str, &[(&str, &str)])]) {
    let mut decoder = Decoder::default();
    for (block, expect) in blocks {
        let fields = decode(&mut decoder, &unhex(block)).unwrap_or_else(|error| panic!("{block}: {error}"));
        let fields: Vec<_> = fields.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert_eq!(fields, *expect, "{block}");
    }
}

#[track_caller]
fn check_bad(block: &str, expect: HpackError) {
    assert_eq!(decode(&mut Decoder::default(), &unhex(block)), Err(expect), "{block}");
}

#[test]
fn single_fields_of_appendix_c2() {
    check_blocks(&[(
        "400a 6375 7374 6f6d 2d6b 6579 0d63 7573 746f 6d2d 6865 6164 6572",
        &[("custom-key", "custom-header")],
    )]);
    check_blocks(&[("040c 2f73 616d 706c 652f 7061 7468", &[(":path", "/sample/path")])]);
    check_blocks(&[("1008 7061 7373 776f 7264 0673 6563 7265 74", &[("password", "secret")])]);
    check_blocks(&[("82", &[(":method", "GET")])]);
}

const REQUESTS: [&[(&str, &str)]; 3] = [
    &[(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "www.example.com")],
    &[
        (":method", "GET"),
        (":scheme", "http"),
        (":path", "/"),
        (":authority", "www.example.com"),
        ("cache-control", "no-cache"),
    ],
    &[
        (":method", "GET"),
        (":scheme", "https"),
        (":path", "/index.html"),
        (":authority", "www.example.com"),
        ("custom-key", "custom-value"),
    ],
];

#[test]
fn requests_of_appendix_c3_and_c4() {
    check_blocks(&[
        ("8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d", REQUESTS[0]),
        ("8286 84be 5808 6e6f 2d63 6163 6865", REQUESTS[1]),
        ("8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65", REQUESTS[2]),
    ]);
    check_blocks(&[
        ("8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff", REQUESTS[0]),
        ("8286 84be 5886 a8eb 1064 9cbf", REQUESTS[1]),
        ("8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf", REQUESTS[2]),
    ]);
}

/// With a table of 256 bytes, so that fields are pushed out. The size is sent before the first block.
#[test]
fn responses_of_appendix_c6_with_eviction() {
    let (cache, at, next) = ("private", "Mon, 21 Oct 2013 20:13:21 GMT", "Mon, 21 Oct 2013 20:13:22 GMT");
    let place = ("location", "https://www.example.com");
    let cookie = "foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1";
    check_blocks(&[
        (
            "3fe101 4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81 66e0 82a6
             2d1b ff6e 919d 29ad 1718 63c7 8f0b 97c8 e9ae 82ae 43d3",
            &[(":status", "302"), ("cache-control", cache), ("date", at), place],
        ),
        ("4883 640e ffc1 c0bf", &[(":status", "307"), ("cache-control", cache), ("date", at), place]),
        (
            "88c1 6196 d07a be94 1054 d444 a820 0595 040b 8166 e084 a62d 1bff c05a 839b d9ab 77ad
             94e7 821d d7f2 e6c7 b335 dfdf cd5b 3960 d5af 2708 7f36 72c1 ab27 0fb5 291f 9587 3160 65c0
             03ed 4ee5 b106 3d50 07",
            &[
                (":status", "200"),
                ("cache-control", cache),
                ("date", next),
                place,
                ("content-encoding", "gzip"),
                ("set-cookie", cookie),
            ],
        ),
    ]);
}

#[test]
fn malformed_blocks() {
    // Index 0, one past the static table, one far beyond it.
    check_bad("80", HpackError::Index);
    check_bad("be", HpackError::Index);
    check_bad("7f00 0161", HpackError::Index);
    check_bad("ffffff7f", HpackError::Index);
    // Integers: truncated, too long, too long with leading zeros.
    check_bad("ff", HpackError::Truncated);
    check_bad("ff80", HpackError::Truncated);
    check_bad("ffffffffff0f", HpackError::Integer);
    check_bad("ff8080808000", HpackError::Integer);
    // Strings: truncated, longer than the block, badly coded.
    check_bad("40", HpackError::Truncated);
    check_bad("4001", HpackError::Truncated);
    check_bad("400161", HpackError::Truncated);
    check_bad("40016102 62", HpackError::Truncated);
    check_bad("00ffffff7f61", HpackError::Truncated);
    check_bad("0081ff 0161", HpackError::Huffman);
    check_bad("0084ffffffff 0161", HpackError::Huffman);
    // Changes of the size: beyond the limit, after a field.
    check_bad("3fe21f", HpackError::TableSize);
    check_bad("8220", HpackError::TableSize);
    assert_eq!(decode(&mut Decoder::default(), &unhex("20 3fe11f 82")).unwrap().len(), 1);
    // A table of no bytes keeps nothing.
    check_bad("20 4001610162 be", HpackError::Index);
}

fn encode(encoder: &mut Encoder, fields: &[(&str, &str)]) -> Vec<u8> {
    let mut out = Vec::new();
    encoder.begin(&mut out);
    for (name, value) in fields {
        encoder.field(&mut out, name.as_bytes(), value.as_bytes(), false);
    }
    out
}

#[test]
fn what_repeats_shrinks_to_a_byte_and_secrets_never_enter() {
    let mut encoder = Encoder::default();
    let grpc = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/helloworld.Greeter/SayHello"),
        (":authority", "greeter.example:50051"),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        ("x-tenant", "blue"),
    ];
    let lengths: Vec<usize> = (0..3).map(|_| encode(&mut encoder, &grpc).len()).collect();
    assert!(lengths[0] > lengths[1] && lengths[1] > lengths[2], "{lengths:?}");
    assert_eq!(lengths[2], grpc.len());

    let secret =
        [("authorization", "Bearer x"), ("cookie", "a=b"), ("set-cookie", "a=b"), ("proxy-authorization", "x")];
    let before = encoder.table.len();
    for _ in 0..3 {
        let block = encode(&mut encoder, &secret);
        let mut marks = Vec::new();
        Decoder::default().decode(&block, |field| marks.push(field.never_indexed)).unwrap();
        assert_eq!(marks, [true; 4]);
    }
    for _ in 0..3 {
        encoder.field(&mut Vec::new(), b"x-key", b"secret", true);
    }
    assert_eq!(encoder.table.len(), before);
}

/// A list is written as it would be without a memory of it: its fields enter the table when they come for the second time. From the third
/// time on it is only compared.
#[test]
fn a_list_that_repeats_is_written_once() {
    let mut encoder = Encoder::default();
    let mut lengths = Vec::new();
    let mut calls = 0;
    for number in 0..6 {
        let mut block = Vec::new();
        encoder.begin(&mut block);
        encoder.field(&mut block, b":path", format!("/{number}").as_bytes(), false);
        let from = block.len();
        encoder.list(&mut block, b"a list", |encoder, out| {
            calls += 1;
            encoder.field(out, b"x-tenant", b"blue", false);
            encoder.field(out, b"cookie", b"a=b", false);
        });
        lengths.push(block.len() - from);
    }
    assert_eq!((lengths, calls), (vec![18, 18, 7, 7, 7, 7], 3));
}

#[test]
fn values_that_do_not_repeat_take_no_room() {
    let mut encoder = Encoder::default();
    for number in 0..1000 {
        encode(&mut encoder, &[("x-request-id", &number.to_string())]);
    }
    // A few enter because their hashes collide.
    assert!(encoder.table.len() < 10, "{}", encoder.table.len());
}

/// Fields whose hashes collide do not push each other out: each takes one byte from the second time on, in any order.
#[test]
fn fields_whose_hashes_meet_are_all_found() {
    let bucket = |value: &str| encoder::hash(encoder::hash(0, b"user-agent"), value.as_bytes()) % 256;
    let values: Vec<String> = (0..).map(|at| at.to_string()).filter(|value| bucket(value) == 7).take(8).collect();
    let mut encoder = Encoder::default();
    for step in [1, 3, 5, 7] {
        let fields: Vec<_> = (0..8).map(|at| ("user-agent", values[at * step % 8].as_str())).collect();
        let block = encode(&mut encoder, &fields);
        assert!(step == 1 || block.len() == fields.len(), "{step}: {block:x?}");
    }
    assert_eq!(encoder.table.len(), 8);
}

/// Fields that collide in the memory of what was sent once still enter the table when they come again.
#[test]
fn fields_that_meet_before_they_enter_all_enter() {
    let set = |value: &str| encoder::hash(encoder::hash(0, b"x-forwarded-for"), value.as_bytes()) % 128;
    let values: Vec<String> = (0..).map(|at| at.to_string()).filter(|value| set(value) == 7).take(4).collect();
    let fields: Vec<_> = values.iter().map(|value| ("x-forwarded-for", value.as_str())).collect();
    let mut encoder = Encoder::default();
    let lengths: Vec<usize> = (0..3).map(|_| encode(&mut encoder, &fields).len()).collect();
    assert_eq!((lengths[2], encoder.table.len()), (4, 4), "{lengths:?}");
}

/// More fields than there are numbers; each of them enters the table at once.
#[test]
fn numbers_of_fields_begin_again() {
    let (mut encoder, mut decoder) = (Encoder::default(), Decoder::default());
    for number in 0..70_000 {
        let value = (number / 2).to_string();
        let block = encode(&mut encoder, &[("user-agent", &value)]);
        assert_eq!(decode(&mut decoder, &block).unwrap(), [("user-agent".to_owned(), value)]);
        assert!(number % 2 == 0 || block.len() == 1, "{number}");
    }
}

#[test]
fn a_change_of_the_size_is_told_once() {
    let check = |sizes: &[usize], expect: &str| {
        let mut encoder = Encoder::default();
        for size in sizes {
            encoder.set_table_bytes_max(*size);
        }
        assert_eq!(encode(&mut encoder, &[(":method", "GET")]), unhex(expect), "{sizes:?}");
        assert_eq!(encode(&mut encoder, &[(":method", "GET")]), unhex("82"));
    };
    check(&[], "82");
    check(&[4096], "82");
    check(&[65536], "82");
    check(&[0], "20 82");
    check(&[0, 4096], "20 3fe11f 82");
    check(&[100, 0, 200], "20 3fa901 82");
    check(&[4096, 30], "3e 82");
}

fn field() -> impl Strategy<Value = (String, String)> {
    let name = prop_oneof![
        "[a-z]{1,3}",
        "[a-z-]{1,20}",
        proptest::sample::select(static_table::ENTRIES.map(|entry| entry.0.to_owned()).to_vec())
    ];
    let value =
        prop_oneof!["[a-c]{0,2}", "[ -~]{0,40}", "\\PC{0,20}", (900..1100_usize).prop_map(|length| "v".repeat(length))];
    (name, value)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(50))]

    /// Sends many blocks through one pair of tables, whose size changes on the way.
    #[test]
    fn what_is_encoded_is_decoded(
        blocks in proptest::collection::vec((proptest::collection::vec(field(), 0..12), 0..6000_usize), 1..12),
    ) {
        let (mut encoder, mut decoder) = (Encoder::default(), Decoder::default());
        let mut other = httlib_hpack::Decoder::default();
        for (fields, size) in &blocks {
            if size % 3 == 0 {
                encoder.set_table_bytes_max(*size);
            }
            let borrowed: Vec<_> = fields.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
            let block = encode(&mut encoder, &borrowed);
            prop_assert_eq!(&decode(&mut decoder, &block).unwrap(), fields);
            prop_assert_eq!(decoder.table.len(), encoder.table.len());
            let mut second = Vec::new();
            other.decode(&mut block.clone(), &mut second).unwrap();
            let second: Vec<_> = second.into_iter().map(|(name, value, _)| (name, value)).collect();
            let expect: Vec<_> = fields.iter().map(|(name, value)| (name.clone().into_bytes(), value.clone().into_bytes())).collect();
            prop_assert_eq!(second, expect);
        }
    }

    /// The field that is expected next may not come, or may come with a mark: it is written correctly in any case. There are few fields, so
    /// that most are expected.
    #[test]
    fn expectations_that_fail_are_not_written(
        blocks in proptest::collection::vec((0..3_u8, proptest::collection::vec((0..4_usize, 0..3_usize, 0..4_u8), 0..6)), 1..60),
    ) {
        let (mut encoder, mut decoder) = (Encoder::default(), Decoder::default());
        for (kind, fields) in blocks {
            let mut block = Vec::new();
            encoder.begin(&mut block);
            if kind == 0 {
                encoder.begin_trailers();
            }
            let named = |(name, value, mark): (usize, usize, u8)| {
                ([":method", "user-agent", "x-a", "x-b"][name], ["GET", "a", "b"][value], mark == 0)
            };
            let fields: Vec<_> = fields.into_iter().map(named).collect();
            for (name, value, never_indexed) in &fields {
                encoder.field(&mut block, name.as_bytes(), value.as_bytes(), *never_indexed);
            }
            let mut decoded = Vec::new();
            let take = |field: Decoded<'_>| decoded.push((field.name.to_vec(), field.value.to_vec(), field.never_indexed));
            decoder.decode(&block, take).unwrap();
            let expect = |(name, value, mark): (&str, &str, bool)| (name.as_bytes().to_vec(), value.as_bytes().to_vec(), mark);
            prop_assert_eq!(decoded, fields.into_iter().map(expect).collect::<Vec<_>>());
        }
    }

    /// Lists that come again are decoded as they were meant, whatever was written before them and however the table changes in between.
    #[test]
    fn lists_that_come_again_are_decoded(
        pool in proptest::collection::vec(proptest::collection::vec((0..6_usize, 0..3_usize, 0..6_u8), 1..6), 1..4),
        order in proptest::collection::vec((0..4_usize, 0..4_u8, 0..40_usize), 1..80),
    ) {
        let (mut encoder, mut decoder) = (Encoder::default(), Decoder::default());
        for (at, kind, size) in order {
            if size < 4 {
                encoder.set_table_bytes_max([0, 60, 200, 4096][size]);
            }
            let list = &pool[at % pool.len()];
            let named = |(name, value, mark): &(usize, usize, u8)| {
                let name = ["user-agent", "x-a", "x-b", "cookie", "date", "x-c"][*name];
                (name, ["", "a", "bb"][*value], *mark == 0)
            };
            let fields: Vec<_> = list.iter().map(named).collect();
            let mut block = Vec::new();
            encoder.begin(&mut block);
            if kind == 0 {
                encoder.begin_trailers();
            }
            let path = size.to_string();
            let mut expect = Vec::new();
            if kind > 1 {
                encoder.field(&mut block, b":path", path.as_bytes(), false);
                expect.push((":path", path.as_str(), false));
            }
            encoder.list(&mut block, format!("{fields:?}").as_bytes(), |encoder, out| {
                for (name, value, never_indexed) in &fields {
                    encoder.field(out, name.as_bytes(), value.as_bytes(), *never_indexed);
                }
            });
            expect.extend(fields.iter().map(|(name, value, mark)| (*name, *value, *mark || *name == "cookie")));
            let mut decoded = Vec::new();
            let take = |field: Decoded<'_>| decoded.push((field.name.to_vec(), field.value.to_vec(), field.never_indexed));
            decoder.decode(&block, take).unwrap();
            let bytes = |(name, value, mark): (&str, &str, bool)| (name.as_bytes().to_vec(), value.as_bytes().to_vec(), mark);
            prop_assert_eq!(decoded, expect.into_iter().map(bytes).collect::<Vec<_>>());
            prop_assert_eq!(decoder.table.len(), encoder.table.len());
            prop_assert!(encoder.memory_bytes() <= encoder::MEMORY_BYTES_MAX);
        }
    }

    #[test]
    fn what_another_encoder_wrote_is_decoded(
        blocks in proptest::collection::vec(proptest::collection::vec((field(), 0..8_u8), 0..12), 1..12),
    ) {
        let (mut encoder, mut decoder) = (httlib_hpack::Encoder::default(), Decoder::default());
        for fields in &blocks {
            let mut block = Vec::new();
            for ((name, value), flags) in fields {
                use httlib_hpack::Encoder as Other;
                let index = match flags & 3 { 0 => 0, 1 => Other::WITH_INDEXING, 2 => Other::NEVER_INDEXED, _ => Other::BEST_FORMAT };
                let huffman = if flags & 4 == 0 { 0 } else { Other::HUFFMAN_NAME | Other::HUFFMAN_VALUE };
                encoder.encode((name.clone().into_bytes(), value.clone().into_bytes(), index | huffman), &mut block).unwrap();
            }
            let expect: Vec<_> = fields.iter().map(|(field, _)| field.clone()).collect();
            prop_assert_eq!(decode(&mut decoder, &block).unwrap(), expect);
        }
    }

    #[test]
    fn arbitrary_blocks_never_panic_and_keep_within_memory(
        blocks in proptest::collection::vec(proptest::collection::vec(proptest::num::u8::ANY, 0..300), 1..10),
    ) {
        let mut decoder = Decoder::default();
        for block in &blocks {
            let _ = decode(&mut decoder, block);
            prop_assert!(decoder.memory_bytes() <= table::MEMORY_BYTES_MAX + 4096);
        }
    }
}
