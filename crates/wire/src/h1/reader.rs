//! Reads the tokens of a head in one pass. It looks at each byte once, and refuses a bad one on the spot.
//!
//! It is strict on purpose, where other readers are not: a line ends only in CRLF (RFC 9112 section 2.2 lets a recipient accept a bare LF,
//! and a neighbour may not), there is no white space before a colon (section 5.1), and no line is folded (section 5.2).

use super::{FIELDS_MAX, HeadError};
use crate::message::{Field, FieldId, Span, Version};
use crate::words;

/// Reads a head from its beginning. `0 <= at <= bytes.len()`
pub(super) struct Reader<'b> {
    bytes: &'b [u8],
    at: usize,
}

/// Why reading a head stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// The bytes end before the head does.
    Partial,
    Refused(HeadError),
}

impl From<HeadError> for Stop {
    fn from(error: HeadError) -> Self {
        Self::Refused(error)
    }
}

impl<'b> Reader<'b> {
    pub(super) fn new(bytes: &'b [u8], at: usize) -> Self {
        Self { bytes, at }
    }

    /// The number of bytes read.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    /// The next byte, without taking it.
    pub(super) fn peek(&self) -> Result<u8, Stop> {
        self.bytes.get(self.at).copied().ok_or(Stop::Partial)
    }

    /// Takes the next byte, which must be `byte`.
    pub(super) fn expect(&mut self, byte: u8, error: HeadError) -> Result<(), Stop> {
        if self.peek()? != byte {
            return Err(error.into());
        }
        self.at += 1;
        Ok(())
    }

    /// Takes the CRLF that ends a line. A bare LF is always refused as a bad field, wherever it is.
    pub(super) fn line_end(&mut self, error: HeadError) -> Result<(), Stop> {
        match self.peek()? {
            b'\r' => self.at += 1,
            b'\n' => return Err(HeadError::Field.into()),
            _ => return Err(error.into()),
        }
        self.expect(b'\n', error)
    }

    /// Takes bytes of this class, at least one.
    pub(super) fn take(&mut self, class: u8, error: HeadError) -> Result<Span, Stop> {
        let start = self.at;
        self.skip(class);
        if self.at > start {
            return Ok(span(start, self.at));
        }
        self.peek().and(Err(error.into()))
    }

    fn skip(&mut self, class: u8) {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let is_of_class = |byte: &u8| CLASSES.get(usize::from(*byte)).is_some_and(|classes| classes & class != 0);
        self.at += rest.iter().position(|byte| !is_of_class(byte)).unwrap_or(rest.len());
    }

    /// Takes bytes up to a control character other than HTAB.
    pub(super) fn take_text(&mut self) -> Span {
        let start = self.at;
        while let Some(word) = self.bytes.get(self.at..).and_then(<[u8]>::first_chunk) {
            let controls = words::control(u64::from_le_bytes(*word));
            if controls == 0 {
                self.at += size_of::<u64>();
                continue;
            }
            self.at += controls.trailing_zeros() as usize / 8;
            if self.bytes.get(self.at) != Some(&b'\t') {
                return span(start, self.at);
            }
            self.at += 1;
        }
        self.skip(TEXT);
        span(start, self.at)
    }

    /// Takes `HTTP/1.0` or `HTTP/1.1`.
    pub(super) fn version(&mut self) -> Result<Version, Stop> {
        const START: &[u8] = b"HTTP/1.";
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let Some(text) = rest.first_chunk::<8>() else {
            return Err(if START.starts_with(rest) { Stop::Partial } else { HeadError::Version.into() });
        };
        self.at += text.len();
        match text {
            b"HTTP/1.1" => Ok(Version::Http11),
            b"HTTP/1.0" => Ok(Version::Http10),
            _ => Err(HeadError::Version.into()),
        }
    }

    /// Takes all field lines, and the empty line that ends them.
    pub(super) fn fields(&mut self, fields_max: usize, fields: &mut Vec<Field>) -> Result<(), Stop> {
        fields.clear();
        let fields_max = fields_max.min(FIELDS_MAX);
        while self.peek()? != b'\r' {
            if fields.len() == fields_max {
                return Err(HeadError::TooManyFields.into());
            }
            fields.push(self.field()?);
        }
        self.line_end(HeadError::Field)
    }

    fn field(&mut self) -> Result<Field, Stop> {
        let name = self.take(TOKEN, HeadError::Field)?;
        self.expect(b':', HeadError::Field)?;
        while is_space(self.peek()?) {
            self.at += 1;
        }
        let mut value = self.take_text();
        self.line_end(HeadError::Field)?;
        while let [.., last] = value.get(self.bytes)
            && is_space(*last)
        {
            value.end -= 1;
        }
        Ok(Field { id: FieldId::of(name.get(self.bytes)), name, value, never_indexed: false })
    }
}

fn span(start: usize, end: usize) -> Span {
    Span { start: start as u32, end: end as u32 }
}

/// White space within a line (RFC 9110 section 5.6.3).
fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

/// The bytes of a token (RFC 9110 section 5.6.2): the name of a method or of a field.
pub(super) const TOKEN: u8 = 1;
/// Visible ASCII except `#`: a fragment is never sent (RFC 9112 section 3.2.1), and servers read non-ASCII bytes in different ways.
pub(super) const TARGET: u8 = 2;
/// The bytes of a value or a reason: no control character except HTAB (RFC 9110 section 5.5).
const TEXT: u8 = 4;

/// The classes of each byte.
static CLASSES: [u8; 256] = classes();

#[expect(clippy::indexing_slicing, reason = "computed at compile time: out of bounds does not compile")]
const fn classes() -> [u8; 256] {
    let mut classes = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        classes[byte] |= if (byte as u8).is_ascii_alphanumeric() { TOKEN } else { 0 };
        classes[byte] |= if (byte as u8).is_ascii_graphic() && byte as u8 != b'#' { TARGET } else { 0 };
        classes[byte] |= if (byte as u8).is_ascii_control() && byte as u8 != b'\t' { 0 } else { TEXT };
        byte += 1;
    }
    let marks = b"!#$%&'*+-.^_`|~";
    let mut at = 0;
    while at < marks.len() {
        classes[marks[at] as usize] |= TOKEN;
        at += 1;
    }
    classes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_ends_at_each_control_character_wherever_it_stands() {
        for at in 0..20 {
            for byte in 0..=255_u8 {
                let mut bytes = [b'a'; 20];
                bytes[at] = byte;
                let mut reader = Reader::new(&bytes, 0);
                let end = if byte.is_ascii_control() && byte != b'\t' { at } else { bytes.len() };
                assert_eq!(reader.take_text(), span(0, end), "{byte:#x} at {at}");
            }
        }
    }

    /// A second opinion: this reader reads the same as httparse, and accepts less.
    mod httparse_agrees {
        use proptest::prelude::*;

        use crate::h1::{HeadError, Parsed, parse_request, parse_response, parse_trailers};
        use crate::message::{Field, Method, RequestHead, ResponseHead};

        /// Pieces of heads, good and bad.
        #[rustfmt::skip]
        const PIECES: [&[u8]; 40] = [
            b"GET ", b"HEAD ", b"G@T ", b" ", b"/", b"/x?y=z", b"/a#b", b"/\xe9", b" HTTP/1.1", b" HTTP/1.0", b" HTTP/2.0",
            b"HTTP/1.1 200 OK", b"HTTP/1.1 204 ", b"HTTP/1.0 304", b"HTTP/1.1 20", b" \xe9", b"\r\n", b"\r\n", b"\r\n",
            b"\r\n\r\n", b"\r\n\r\n", b"\n", b"\r", b"Host: a", b"Host:a ", b"Content-Length: 5", b"Transfer-Encoding: chunked",
            b"Connection:\t close \t", b"A: b\r\n", b"X-Long: 0123456789abcdef\t0123456789", b"a", b":", b": ", b"\t", b"\0",
            b"\x7f", b"\x80\xff", b"(", b"_-~", b"\x0b",
        ];

        /// A request, a response, or a good one with pieces put into it.
        fn bytes(start: &'static [u8]) -> impl Strategy<Value = Vec<u8>> {
            let pieces =
                || prop::collection::vec(prop::sample::select(PIECES.to_vec()), 0..8).prop_map(|all| all.concat());
            prop_oneof![
                pieces(),
                (pieces(), 0..start.len()).prop_map(move |(pieces, at)| {
                    let (before, behind) = start.split_at(at);
                    [before, &pieces, behind].concat()
                }),
                pieces().prop_map(move |pieces| [start, &pieces, b"\r\n\r\n"].concat()),
            ]
        }

        /// Names and values.
        type Fields = Vec<(Vec<u8>, Vec<u8>)>;

        fn listed(fields: &[Field], bytes: &[u8]) -> Fields {
            fields.iter().map(|field| (field.name.get(bytes).to_vec(), field.value.get(bytes).to_vec())).collect()
        }

        fn found(headers: &[httparse::Header<'_>]) -> Fields {
            headers.iter().map(|header| (header.name.as_bytes().to_vec(), header.value.to_vec())).collect()
        }

        fn ends_every_line_in_crlf(head: &[u8]) -> bool {
            (0..head.len()).all(|at| head[at] != b'\n' || at > 0 && head[at - 1] == b'\r')
        }

        /// The result of `httparse`: an error, incomplete, or the length of the head and its content.
        fn told<T>(
            status: httparse::Result<usize>,
            read: impl FnOnce() -> T,
        ) -> Result<Option<(usize, T)>, httparse::Error> {
            Ok(match status? {
                httparse::Status::Complete(length) => Some((length, read())),
                httparse::Status::Partial => None,
            })
        }

        /// Whatever this reader accepts, `httparse` reads in the same way. Of what `httparse` accepts, this reader only refuses lines that
        /// end in a bare LF, and start lines for which `is_refused` is true.
        fn compare<T: PartialEq + std::fmt::Debug>(
            ours: Result<Option<(usize, T)>, HeadError>,
            theirs: Result<Option<(usize, T)>, httparse::Error>,
            bytes: &[u8],
            is_refused: impl Fn(&T) -> bool,
        ) -> Result<(), TestCaseError> {
            match (ours, theirs) {
                // This reader refuses a bad beginning before the head is complete, but a version only when the line is.
                (Err(_), Ok(None) | Err(_)) | (Ok(None), Err(httparse::Error::Version)) => {}
                (Err(error), Ok(Some((length, read)))) => {
                    let is_form = matches!(error, HeadError::StartLine | HeadError::Field | HeadError::Version);
                    prop_assert!(
                        !is_form || is_refused(&read) || !ends_every_line_in_crlf(&bytes[..length]),
                        "{error:?}"
                    );
                }
                (Ok(ours), theirs) => prop_assert_eq!(Ok(ours), theirs),
            }
            Ok(())
        }

        proptest! {
            #![proptest_config(ProptestConfig { cases: 1024, ..ProptestConfig::default() })]

            #[test]
            fn on_requests(bytes in bytes(b"GET /x HTTP/1.1\r\nHost: a\r\nX-Y:  z \r\n\r\n")) {
                let mut head = RequestHead::default();
                let ours = parse_request(&bytes, 256, &mut head).map(|parsed| match parsed {
                    Parsed::Complete(length) => {
                        let text = (head.method_name.get(&bytes).to_vec(), head.path.get(&bytes).to_vec());
                        Some((length, (text, listed(&head.fields, &bytes))))
                    }
                    Parsed::Partial => None,
                });
                // `httparse` skips any number of empty lines; this reader allows one.
                if bytes.starts_with(b"\r\n\r") || bytes.starts_with(b"\r\n\n") || bytes.starts_with(b"\n") {
                    return Ok(());
                }
                let mut headers = [httparse::EMPTY_HEADER; 256];
                let mut request = httparse::Request::new(&mut headers);
                let status = request.parse(&bytes);
                let theirs = told(status, || {
                    let (method, path) = (request.method.unwrap_or_default(), request.path.unwrap_or_default());
                    ((method.as_bytes().to_vec(), path.as_bytes().to_vec()), found(request.headers))
                });
                compare(ours, theirs, &bytes, |((_, path), _)| !path.starts_with(b"/") || !path.is_ascii() || path.contains(&b'#'))?;
            }

            #[test]
            fn on_responses(bytes in bytes(b"HTTP/1.1 200 OK\r\nServer: a\r\nX-Y:  z \r\n\r\n")) {
                let mut head = ResponseHead::default();
                let ours = parse_response(&bytes, 256, Method::Get, &mut head).map(|parsed| match parsed {
                    Parsed::Complete(length) => {
                        let text = (head.status, head.reason.get(&bytes).to_vec());
                        Some((length, (text, listed(&head.fields, &bytes))))
                    }
                    Parsed::Partial => None,
                });
                if matches!(bytes.first(), Some(b'\r' | b'\n')) {
                    return Ok(());
                }
                let mut headers = [httparse::EMPTY_HEADER; 256];
                let mut response = httparse::Response::new(&mut headers);
                let status = response.parse(&bytes);
                let theirs = told(status, || {
                    let (status, reason) = (response.code.unwrap_or_default(), response.reason.unwrap_or_default());
                    ((status, reason.as_bytes().to_vec()), found(response.headers))
                });
                compare(ours, theirs, &bytes, |((status, _), _)| *status < 100)?;
            }

            #[test]
            fn on_trailers(bytes in bytes(b"X-Sum: 1\r\nX-Y:  z \r\n\r\n")) {
                let mut fields = Vec::new();
                let ours = parse_trailers(&bytes, &mut fields).map(|()| (bytes.len(), listed(&fields, &bytes)));
                let mut headers = [httparse::EMPTY_HEADER; 256];
                let theirs = match httparse::parse_headers(&bytes, &mut headers) {
                    Ok(httparse::Status::Complete((length, headers)))
                        if length == bytes.len() && ends_every_line_in_crlf(&bytes) => Some((length, found(headers))),
                    _ => None,
                };
                prop_assert_eq!(ours.ok(), theirs);
            }
        }
    }
}
