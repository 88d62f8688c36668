//! A head or trailers to send, kept until the stream takes them. A request's head is kept until it is certain that it need not be sent
//! again.

use wire::h1;
use wire::h2::{HeadWriter, PseudoHeaders};
use wire::message::Span;

use crate::http::headers::Out;

/// A header list (RFC 7541 section 1.3): pseudo-header fields and fields. It can be reused.
#[derive(Default)]
pub(crate) struct HeaderList {
    /// The pseudo-header fields, and from `fields_at` on the other fields one after another, each as a [`Prefix`], its name and its value.
    /// It is all in one piece because it is kept until the request is answered, and hundreds of requests wait: see
    /// [`StreamState`](super::stream_state::StreamState).
    bytes: Vec<u8>,
    fields_at: usize,
    /// The field that is being written: its start, and the value after its name.
    begun: Span,
    count: u32,
    /// The status of a response; 0 for a request or trailers.
    pub(crate) status: u16,
    method: Span,
    scheme: Span,
    authority: Span,
    path: Span,
    protocol: Option<Span>,
}

/// The prefix of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Prefix {
    name_bytes: usize,
    value_bytes: usize,
    never_indexed: bool,
}

/// Bytes of a [`Prefix`].
const PREFIX_BYTES: usize = 8;

impl Prefix {
    fn bytes(self) -> [u8; PREFIX_BYTES] {
        let name = (self.name_bytes as u32) << 1 | u32::from(self.never_indexed);
        (u64::from(name) << 32 | u64::from(self.value_bytes as u32)).to_le_bytes()
    }

    fn of(bytes: [u8; PREFIX_BYTES]) -> Self {
        let both = u64::from_le_bytes(bytes);
        let name = (both >> 32) as usize;
        Self { name_bytes: name >> 1, value_bytes: both as u32 as usize, never_indexed: name & 1 == 1 }
    }
}

impl HeaderList {
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        (self.fields_at, self.count, self.status) = (0, 0, 0);
        self.protocol = None;
    }

    /// Sets the target of a request, before its fields. `authority` writes the authority.
    pub(crate) fn target(
        &mut self,
        method: &[u8],
        scheme: &[u8],
        path: &[u8],
        protocol: Option<&[u8]>,
        authority: impl FnOnce(&mut Vec<u8>),
    ) {
        self.method = self.push(method);
        self.scheme = self.push(scheme);
        self.path = self.push(if path.is_empty() { b"/" } else { path });
        self.protocol = protocol.map(|protocol| self.push(protocol));
        let start = self.at();
        authority(&mut self.bytes);
        self.authority = Span { start, end: self.at() };
        self.fields_at = self.bytes.len();
    }

    /// The target of a request.
    pub(crate) fn to(&self) -> PseudoHeaders<'_> {
        let text = |span: Span| span.get(&self.bytes);
        PseudoHeaders {
            method: text(self.method),
            scheme: text(self.scheme),
            authority: text(self.authority),
            path: text(self.path),
            protocol: self.protocol.map(text),
        }
    }

    /// Writes the fields.
    pub(crate) fn write(&self, to: &mut HeadWriter<'_>) {
        // The prefixes are part of it, so different fields are never the same bytes.
        let list = self.bytes.get(self.fields_at..).unwrap_or_default();
        to.list(list, |to| {
            for (name, value, never_indexed) in self.fields() {
                if never_indexed { to.never_indexed(name, value) } else { to.field(name, value) }
            }
        });
    }

    /// Name, value, and whether no table may hold the field.
    fn fields(&self) -> impl Iterator<Item = (&[u8], &[u8], bool)> {
        let mut rest = self.bytes.get(self.fields_at..).unwrap_or_default();
        std::iter::from_fn(move || {
            let (prefix, behind) = rest.split_first_chunk()?;
            let prefix = Prefix::of(*prefix);
            let (name, behind) = behind.split_at_checked(prefix.name_bytes)?;
            let (value, behind) = behind.split_at_checked(prefix.value_bytes)?;
            rest = behind;
            Some((name, value, prefix.never_indexed))
        })
    }

    /// Replaces the value of a field that was already written; `value` writes the new one.
    pub(crate) fn replace(&mut self, name: &[u8], value: impl FnOnce(&mut Vec<u8>)) {
        let mut at = self.fields_at;
        let found = self.fields().find_map(|(other, before, never_indexed)| {
            let start = at;
            at += PREFIX_BYTES + other.len() + before.len();
            (other == name).then_some((start, before.len(), never_indexed))
        });
        let Some((start, value_bytes, never_indexed)) = found else { return };
        let mut text = Vec::new();
        value(&mut text);
        let prefix = Prefix { name_bytes: name.len(), value_bytes: text.len(), never_indexed };
        let value_at = start + PREFIX_BYTES + name.len();
        self.bytes.splice(value_at..value_at + value_bytes, text);
        self.put(start, prefix);
    }

    /// Replaces a text in the names and values by another one of the same length.
    pub(crate) fn replace_text(&mut self, old: &[u8], new: &[u8]) {
        crate::exchange::transfer::replace_text(&mut self.bytes, old, new);
    }

    /// The value of a field.
    #[cfg(test)]
    pub(crate) fn find(&self, name: &[u8]) -> Option<String> {
        let (_, value, _) = self.fields().find(|(other, ..)| other.eq_ignore_ascii_case(name))?;
        Some(String::from_utf8_lossy(value).into_owned())
    }

    /// Whether it has no fields.
    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The bytes of all names and values: a measure of what is sent, before HPACK.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len() - self.count as usize * PREFIX_BYTES
    }

    fn push(&mut self, text: &[u8]) -> Span {
        let start = self.at();
        self.bytes.extend_from_slice(text);
        Span { start, end: self.at() }
    }

    fn put(&mut self, at: usize, prefix: Prefix) {
        if let Some(place) = self.bytes.get_mut(at..at + PREFIX_BYTES) {
            place.copy_from_slice(&prefix.bytes());
        }
    }

    fn at(&self) -> u32 {
        self.bytes.len() as u32
    }
}

impl Out for HeaderList {
    fn value(&mut self, name: &[u8]) -> &mut Vec<u8> {
        let start = self.at();
        self.bytes.extend_from_slice(&[0; PREFIX_BYTES]);
        self.bytes.extend_from_slice(name);
        self.begun = Span { start, end: self.at() };
        &mut self.bytes
    }

    fn end(&mut self, never_indexed: bool) {
        let (start, value_at) = (self.begun.start as usize, self.begun.end as usize);
        let (name_bytes, value_bytes) = (value_at - start - PREFIX_BYTES, self.bytes.len() - value_at);
        self.put(start, Prefix { name_bytes, value_bytes, never_indexed });
        self.count += 1;
    }

    fn field(&mut self, name: &[u8], value: &[u8], never_indexed: bool) {
        // Reserve everything at once.
        self.bytes.reserve(PREFIX_BYTES + name.len() + value.len());
        let prefix = Prefix { name_bytes: name.len(), value_bytes: value.len(), never_indexed };
        self.bytes.extend_from_slice(&prefix.bytes());
        self.bytes.extend_from_slice(name);
        self.bytes.extend_from_slice(value);
        self.count += 1;
    }
}

/// HTTP/1.1 heads are bytes.
impl Out for Vec<u8> {
    fn value(&mut self, name: &[u8]) -> &mut Vec<u8> {
        self.extend_from_slice(name);
        self.extend_from_slice(b": ");
        self
    }

    fn end(&mut self, _: bool) {
        self.extend_from_slice(b"\r\n");
    }

    fn field(&mut self, name: &[u8], value: &[u8], _: bool) {
        h1::field(self, name, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(list: &HeaderList) -> Vec<(String, String, bool)> {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        list.fields().map(|(name, value, never_indexed)| (text(name), text(value), never_indexed)).collect()
    }

    fn expected(fields: &[(&str, &str, bool)]) -> Vec<(String, String, bool)> {
        fields.iter().map(|(name, value, never)| (name.to_string(), value.to_string(), *never)).collect()
    }

    #[test]
    fn what_was_written_is_read_in_its_order() {
        let mut list = HeaderList::default();
        for round in 0..2 {
            list.clear();
            assert_eq!((list.is_empty(), list.len()), (true, 0));
            list.target(b"GET", b"http", b"", None, |out| out.extend_from_slice(b"a.test"));
            list.field(b"accept", b"*/*", false);
            list.value(b"x-forwarded-for").extend_from_slice(b"10.0.0.1, ");
            list.bytes.extend_from_slice(b"10.0.0.2");
            list.end(false);
            list.field(b"authorization", b"", true);
            let to = list.to();
            assert_eq!((to.method, to.path, to.authority), (&b"GET"[..], &b"/"[..], &b"a.test"[..]), "{round}");
            let expect = [
                ("accept", "*/*", false),
                ("x-forwarded-for", "10.0.0.1, 10.0.0.2", false),
                ("authorization", "", true),
            ];
            assert_eq!(listed(&list), expected(&expect), "{round}");
            assert_eq!(
                list.len(),
                "GEThttp/a.test".len() + "accept*/*x-forwarded-for10.0.0.1, 10.0.0.2authorization".len()
            );
        }
    }

    #[test]
    fn a_value_is_replaced_by_a_shorter_or_a_longer_one() {
        let mut list = HeaderList::default();
        list.field(b"a", b"1", false);
        list.field(b"grpc-timeout", b"1000m", true);
        list.field(b"z", b"26", false);
        for value in ["7m", "1000000u", ""] {
            list.replace(b"grpc-timeout", |out| out.extend_from_slice(value.as_bytes()));
            list.replace(b"not-there", |out| out.extend_from_slice(b"x"));
            assert_eq!(
                listed(&list),
                expected(&[("a", "1", false), ("grpc-timeout", value, true), ("z", "26", false)])
            );
            assert_eq!(list.len(), "a1grpc-timeoutz26".len() + value.len());
        }
    }
}
