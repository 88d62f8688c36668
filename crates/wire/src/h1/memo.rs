//! Remembers heads and what they were read as, in case the same bytes arrive again.
//!
//! Programs repeat their requests: a service polls another one, a monitor asks for one page, a few thousand clients of one kind fetch the
//! same file. Their endpoints answer with the same head, as long as the second in `Date` is the same. A head that is known costs a
//! comparison and a copy of its fields.
//!
//! What a head is read as depends on its bytes alone, and for a response on whether the request was HEAD. One memo serves all connections
//! of a worker. It keeps no head with a field that may be a credential by its name.

use super::{HeadError, Parsed, parse_request, parse_response};
use crate::message::{Field, Method, RequestHead, ResponseHead};

/// Heads that are kept. The position of a head follows from a few of its bytes and the number of bytes that came with it.
const HEADS_MAX: usize = 32;
/// Maximum bytes of a head that is kept.
const HEAD_BYTES_MAX: usize = 1024;
/// Maximum fields of a head that is kept.
const FIELDS_MAX: usize = 32;
/// After this many misses in a row at one position, only one head in as many is kept there, because keeping one costs copies.
const MISSES_MAX: u32 = 8;

/// The requests of one worker.
#[derive(Debug, Default)]
pub struct RequestMemo(Memo<RequestHead>);

/// The responses to one worker.
#[derive(Debug, Default)]
pub struct ResponseMemo(Memo<ResponseHead>);

impl RequestMemo {
    /// The same as [`parse_request`].
    ///
    /// # Errors
    /// Those of [`parse_request`].
    pub fn parse(&mut self, buffer: &[u8], fields_max: usize, head: &mut RequestHead) -> Result<Parsed, HeadError> {
        self.0.parse(buffer, fields_max, false, head, |head| parse_request(buffer, fields_max, head))
    }
}

impl ResponseMemo {
    /// The same as [`parse_response`].
    ///
    /// # Errors
    /// Those of [`parse_response`].
    pub fn parse(
        &mut self,
        buffer: &[u8],
        fields_max: usize,
        request: Method,
        head: &mut ResponseHead,
    ) -> Result<Parsed, HeadError> {
        let parse = |head: &mut ResponseHead| parse_response(buffer, fields_max, request, head);
        self.0.parse(buffer, fields_max, request == Method::Head, head, parse)
    }
}

#[derive(Debug, Default)]
struct Memo<H> {
    /// None before the first head.
    heads: Vec<Kept<H>>,
}

#[derive(Debug, Default)]
struct Kept<H> {
    /// The bytes of the head. Empty if nothing is kept.
    text: Vec<u8>,
    head: H,
    /// It is a response to HEAD.
    is_to_head: bool,
    misses: u32,
}

/// A head of either kind.
trait Head: Default {
    fn fields(&self) -> &[Field];
    /// Copies it over `to`, whose memory is used.
    fn copy_to(&self, to: &mut Self);
}

impl Head for RequestHead {
    fn fields(&self) -> &[Field] {
        &self.fields
    }

    fn copy_to(&self, to: &mut Self) {
        let fields = copied(&self.fields, &mut to.fields);
        *to = Self { fields, ..*self };
    }
}

impl Head for ResponseHead {
    fn fields(&self) -> &[Field] {
        &self.fields
    }

    fn copy_to(&self, to: &mut Self) {
        let fields = copied(&self.fields, &mut to.fields);
        *to = Self { fields, ..*self };
    }
}

/// A copy of `from` in the memory of `to`.
fn copied(from: &[Field], to: &mut Vec<Field>) -> Vec<Field> {
    let mut fields = std::mem::take(to);
    fields.clear();
    fields.extend_from_slice(from);
    fields
}

impl<H: Head> Memo<H> {
    fn parse(
        &mut self,
        buffer: &[u8],
        fields_max: usize,
        is_to_head: bool,
        head: &mut H,
        parse: impl FnOnce(&mut H) -> Result<Parsed, HeadError>,
    ) -> Result<Parsed, HeadError> {
        if self.heads.is_empty() {
            self.heads.resize_with(HEADS_MAX, Kept::default);
        }
        let Some(kept) = self.heads.get_mut(position(buffer)) else { return parse(head) };
        let length = kept.text.len();
        if length > 0
            && buffer.get(..length) == Some(&*kept.text)
            && kept.is_to_head == is_to_head
            && kept.head.fields().len() <= fields_max
        {
            kept.misses = 0;
            kept.head.copy_to(head);
            return Ok(Parsed::Complete(length));
        }
        let parsed = parse(head)?;
        if let Parsed::Complete(length) = parsed {
            kept.note(buffer.get(..length).unwrap_or_default(), is_to_head, head);
        }
        Ok(parsed)
    }
}

impl<H: Head> Kept<H> {
    fn note(&mut self, text: &[u8], is_to_head: bool, head: &H) {
        self.misses = self.misses.wrapping_add(1);
        let is_often_missed = self.misses > MISSES_MAX && !self.misses.is_multiple_of(MISSES_MAX);
        let fields = head.fields();
        let is_small = text.len() <= HEAD_BYTES_MAX && fields.len() <= FIELDS_MAX;
        if is_often_missed || !is_small || fields.iter().any(|field| is_secret(field, text)) {
            return;
        }
        self.text.clear();
        self.text.extend_from_slice(text);
        self.is_to_head = is_to_head;
        head.copy_to(&mut self.head);
    }
}

/// Whether the field may hold a credential, by its name: `Cookie`, `Set-Cookie`, `Authorization`, and the names that services choose for
/// themselves, such as `X-Api-Key`. A head with a harmless field of such a name is only read each time.
fn is_secret(field: &Field, text: &[u8]) -> bool {
    const WORDS: [&[u8]; 8] = [b"auth", b"cookie", b"credential", b"key", b"pass", b"secret", b"session", b"token"];
    let name = field.name.get(text);
    WORDS.iter().any(|word| name.windows(word.len()).any(|part| part.eq_ignore_ascii_case(word)))
}

/// Where a head is kept. Heads that share a position only push each other out.
fn position(buffer: &[u8]) -> usize {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    // Within the target of a request; within the first fields, or within the fields of a response.
    let word = |at: usize| buffer.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |word| u64::from_le_bytes(*word));
    let mixed = (buffer.len() as u64 ^ word(4)).wrapping_mul(FACTOR).rotate_left(29) ^ word(12);
    let mixed = mixed.wrapping_mul(FACTOR).rotate_left(29) ^ word(20);
    (mixed.wrapping_mul(FACTOR) >> 32) as usize % HEADS_MAX
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn line() -> impl Strategy<Value = String> {
        prop_oneof![
            8 => (0..6_usize, 0..4_usize).prop_map(|(name, value)| {
                let names = ["Host", "content-length", "Connection", "X-A", "transfer-encoding", "expect"];
                format!("{}: {}\r\n", names[name], ["a.test", "5", "close", "chunked"][value])
            }),
            1 => Just("cookie: a=b\r\n".to_owned()),
            1 => Just("Set-Cookie: a=b\r\n".to_owned()),
            1 => Just("bad line\r\n".to_owned()),
            1 => Just("folded: a\n b\r\n".to_owned()),
        ]
    }

    fn head() -> impl Strategy<Value = String> {
        let start = proptest::sample::select(vec![
            "GET / HTTP/1.1\r\n",
            "GET /a HTTP/1.1\r\nHost: b.test\r\n",
            "HEAD http://c.test/ HTTP/1.0\r\n",
            "HTTP/1.1 200 OK\r\n",
            "HTTP/1.1 204\r\n",
            "HTTP/1.0 304 Not\r\n",
        ]);
        let end = proptest::sample::select(vec!["\r\n", "\r\nbody", "\r\nGET / HTTP/1.1\r\n\r\n", ""]);
        (start, proptest::collection::vec(line(), 0..4), end)
            .prop_map(|(start, lines, end)| start.to_owned() + &lines.concat() + end)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        /// Heads that come again, with others and with other limits in between, are read as if each were the first.
        #[test]
        fn a_head_means_the_same_with_and_without_a_memo(
            pool in proptest::collection::vec(head(), 1..6),
            order in proptest::collection::vec((0..6_usize, 0..5_usize, any::<bool>()), 1..100),
        ) {
            let (mut requests, mut responses) = (RequestMemo::default(), ResponseMemo::default());
            let (mut request, mut response) = (RequestHead::default(), ResponseHead::default());
            for (at, fields_max, is_to_head) in order {
                let text = pool[at % pool.len()].as_bytes();
                let (mut expect, method) = (RequestHead::default(), if is_to_head { Method::Head } else { Method::Get });
                let parsed = requests.parse(text, fields_max, &mut request);
                prop_assert_eq!(parsed, parse_request(text, fields_max, &mut expect));
                if let Ok(Parsed::Complete(_)) = parsed {
                    prop_assert_eq!(format!("{request:?}"), format!("{expect:?}"));
                }
                let mut expect = ResponseHead::default();
                let parsed = responses.parse(text, fields_max, method, &mut response);
                prop_assert_eq!(parsed, parse_response(text, fields_max, method, &mut expect));
                if let Ok(Parsed::Complete(_)) = parsed {
                    prop_assert_eq!(format!("{response:?}"), format!("{expect:?}"));
                }
            }
        }
    }

    /// Heads that are known, as others are mutated from them.
    const SEEDS: [&str; 8] = [
        "GET /a HTTP/1.1\r\nHost: a.test\r\nAccept: */*\r\n\r\n",
        "\r\nGET / HTTP/1.1\r\nHost: a.test\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
        "POST /a HTTP/1.1\r\nHost: a.test\r\nContent-Length: 10\r\nExpect: 100-continue\r\n\r\n",
        "POST /a HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n",
        "GET http://b.test/x HTTP/1.0\r\nHost: a.test\r\nConnection: keep-alive, x\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 10\r\nKeep-Alive: timeout=5\r\n\r\n",
        "HTTP/1.0 200\r\nContent-Length: 10\r\nConnection: keep-alive\r\n\r\n",
        "HTTP/1.1 103 Hints\r\nLink: </a>\r\n\r\n",
    ];

    /// A change of one place: cut there, a byte in the place of another or between two, a piece, or another head behind it.
    fn mutation() -> impl Strategy<Value = (usize, usize, usize, usize)> {
        (0..SEEDS.len(), 0..6_usize, 0..200_usize, 0..12_usize)
    }

    fn mutated((seed, kind, at, piece): (usize, usize, usize, usize)) -> Vec<u8> {
        const PIECES: [&[u8]; 12] = [
            b"1",
            b"0",
            b"\n",
            b"\r\n",
            b"\r\n\r\n",
            b" ",
            b"\r\n ",
            b"\0",
            b"x",
            b"Connection: close\r\n",
            b"Content-Length: 3\r\n",
            b"Transfer-Encoding: chunked\r\n",
        ];
        let text = SEEDS[seed].as_bytes();
        let (before, behind) = text.split_at(at % (text.len() + 1));
        match kind {
            0 => text.to_vec(),
            1 => before.to_vec(),
            2 => [before, PIECES[piece], behind.get(1..).unwrap_or_default()].concat(),
            3 => [before, PIECES[piece], behind].concat(),
            4 => [text, SEEDS[at % SEEDS.len()].as_bytes()].concat(),
            _ => [text, PIECES[piece]].concat(),
        }
    }

    /// Copies the first head at `from` or behind it to the position `to`.
    fn place<H: Head>(memo: &mut Memo<H>, from: usize, to: usize) {
        let Some(kept) = memo.heads.iter().skip(from).find(|kept| !kept.text.is_empty()) else { return };
        let mut copy = Kept { text: kept.text.clone(), is_to_head: kept.is_to_head, ..Kept::default() };
        kept.head.copy_to(&mut copy.head);
        memo.heads[to] = copy;
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        /// Only the comparison stands between a known head and one that is nearly the same.
        #[test]
        fn a_head_that_is_nearly_known_is_read(all in proptest::collection::vec(mutation(), 1..200)) {
            let (mut requests, mut responses) = (RequestMemo::default(), ResponseMemo::default());
            let (mut request, mut response) = (RequestHead::default(), ResponseHead::default());
            for (number, change) in all.into_iter().enumerate() {
                let text = mutated(change);
                // The bytes behind a head move its position, so the head of another one is put where this one is looked for.
                place(&mut requests.0, number % HEADS_MAX, position(&text));
                place(&mut responses.0, number % HEADS_MAX, position(&text));
                let method = if number % 3 == 0 { Method::Head } else { Method::Get };
                let mut expect = RequestHead::default();
                let parsed = requests.parse(&text, 100, &mut request);
                prop_assert_eq!(parsed, parse_request(&text, 100, &mut expect));
                if let Ok(Parsed::Complete(_)) = parsed {
                    prop_assert_eq!(format!("{request:?}"), format!("{expect:?}"));
                }
                let mut expect = ResponseHead::default();
                let parsed = responses.parse(&text, 100, method, &mut response);
                prop_assert_eq!(parsed, parse_response(&text, 100, method, &mut expect));
                if let Ok(Parsed::Complete(_)) = parsed {
                    prop_assert_eq!(format!("{response:?}"), format!("{expect:?}"));
                }
            }
        }
    }

    /// How many of these requests were known.
    fn known(texts: &[&str]) -> usize {
        let (mut memo, mut head) = (RequestMemo::default(), RequestHead::default());
        let is_known = |text: &&&str| {
            let before: u32 = memo.0.heads.iter().map(|kept| kept.misses).sum();
            memo.parse(text.as_bytes(), 100, &mut head).unwrap();
            memo.0.heads.iter().map(|kept| kept.misses).sum::<u32>() <= before
        };
        texts.iter().filter(is_known).count()
    }

    #[test]
    fn heads_that_repeat_are_known() {
        let head = "GET / HTTP/1.1\r\nHost: a.test\r\n\r\n";
        assert_eq!(known(&[head; 5]), 4);
        let other = "GET /other HTTP/1.1\r\nHost: a.test\r\n\r\n";
        assert_eq!(known(&[head, other, head, other, head, other]), 4);
        for name in [
            "Authorization",
            "Cookie",
            "Proxy-Authorization",
            "X-Api-Key",
            "x-auth-token",
            "PRIVATE-TOKEN",
            "X-Session-Id",
        ] {
            let head = format!("GET / HTTP/1.1\r\nHost: a.test\r\n{name}: x\r\n\r\n");
            assert_eq!(known(&[head.as_str(); 5]), 0, "{name}");
        }
        let long = format!("GET / HTTP/1.1\r\nHost: a.test\r\nX: {}\r\n\r\n", "x".repeat(HEAD_BYTES_MAX));
        assert_eq!(known(&[long.as_str(); 5]), 0);
    }
}
