//! A head or trailers on their way out, kept until the stream takes them: and, of a request, until it is known that it need not be sent again.

use wire::h1;
use wire::h2::{HeadWriter, Target};
use wire::message::{Field, FieldId, Span};

use crate::headers::Out;

/// Fields and pseudo-header fields, as an index over their bytes. Made for reuse.
#[derive(Default)]
pub(crate) struct Block {
    bytes: Vec<u8>,
    fields: Vec<Field>,
    /// Of the field that is being written.
    name: Span,
    /// Of a response; 0: a request, or trailers.
    pub(crate) status: u16,
    method: Span,
    scheme: Span,
    authority: Span,
    path: Span,
    protocol: Option<Span>,
}

impl Block {
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.fields.clear();
        self.status = 0;
        self.protocol = None;
    }

    /// Sets what a request is for. `authority` writes it.
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
    }

    /// What a request is for.
    pub(crate) fn to(&self) -> Target<'_> {
        let text = |span: Span| span.get(&self.bytes);
        Target {
            method: text(self.method),
            scheme: text(self.scheme),
            authority: text(self.authority),
            path: text(self.path),
            protocol: self.protocol.map(text),
        }
    }

    /// Writes the fields.
    pub(crate) fn write(&self, to: &mut HeadWriter<'_>) {
        for field in &self.fields {
            let (name, value) = (field.name.get(&self.bytes), field.value.get(&self.bytes));
            if field.never_indexed { to.never_indexed(name, value) } else { to.field(name, value) }
        }
    }

    /// Gives a field that was written another value, which `value` writes.
    pub(crate) fn replace(&mut self, name: &[u8], value: impl FnOnce(&mut Vec<u8>)) {
        let start = self.at();
        if let Some(field) = self.fields.iter_mut().find(|field| field.name.get(&self.bytes) == name) {
            value(&mut self.bytes);
            field.value = Span { start, end: self.bytes.len() as u32 };
        }
    }

    /// No field is in it.
    pub(crate) fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }

    /// Bytes of all that was written: a measure of what goes out, not what HPACK makes of it.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    fn push(&mut self, text: &[u8]) -> Span {
        let start = self.at();
        self.bytes.extend_from_slice(text);
        Span { start, end: self.at() }
    }

    fn at(&self) -> u32 {
        self.bytes.len() as u32
    }
}

impl Out for Block {
    fn value(&mut self, name: &[u8]) -> &mut Vec<u8> {
        self.name = self.push(name);
        &mut self.bytes
    }

    fn end(&mut self, never_indexed: bool) {
        let name = self.name;
        let value = Span { start: name.end, end: self.at() };
        self.fields.push(Field { id: FieldId::Other, name, value, never_indexed });
    }

    fn field(&mut self, name: &[u8], value: &[u8], never_indexed: bool) {
        // Room for both at once.
        self.bytes.reserve(name.len() + value.len());
        self.value(name).extend_from_slice(value);
        self.end(never_indexed);
    }
}

/// The bytes of HTTP/1.1.
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
