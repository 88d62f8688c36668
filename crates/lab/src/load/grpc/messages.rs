//! Messages of calls: JSON, encoded as the description of the method says.

use std::fmt;
use std::io;

use bytes::{BufMut, Bytes, BytesMut};
use prost_reflect::{DynamicMessage, MessageDescriptor, MethodDescriptor};
use serde::de::{DeserializeSeed, Deserializer, SeqAccess, Visitor};

use super::schema::invalid;
use crate::strest;

/// The most fields that a message lists.
const FIELDS_MAX: usize = 30;

/// What the calls of a method send, in turn: each message of the JSON text, or all of them in one call if the method has a stream of requests.
/// The text is a message, an array of them, or several one after the other.
///
/// # Errors
/// The text is not JSON or not of the type that the method takes, with the place and what the type has.
pub(super) fn encode(method: &MethodDescriptor, json: &[u8]) -> io::Result<Vec<Bytes>> {
    let input = method.input();
    let messages = read(&input, json).map_err(|error| wrong(&input, &error))?;
    let mut framed: Vec<Bytes> = messages.iter().map(strest::framed).collect();
    if framed.is_empty() && !method.is_client_streaming() {
        return Err(invalid("--data: there is no message in it; write {} for an empty one".to_owned()));
    }
    if method.is_client_streaming() {
        let mut all = BytesMut::new();
        framed.iter().for_each(|message| all.put_slice(message));
        framed = vec![all.freeze()];
    }
    Ok(framed)
}

fn read(input: &MessageDescriptor, json: &[u8]) -> Result<Vec<DynamicMessage>, serde_json::Error> {
    let mut text = serde_json::Deserializer::from_slice(json);
    // These two are arrays themselves.
    let is_array = matches!(input.full_name(), "google.protobuf.ListValue" | "google.protobuf.Value");
    if !is_array && json.trim_ascii_start().starts_with(b"[") {
        let messages = text.deserialize_seq(Array(input))?;
        text.end()?;
        return Ok(messages);
    }
    let mut messages = Vec::new();
    while text.end().is_err() {
        messages.push(input.clone().deserialize(&mut text)?);
    }
    Ok(messages)
}

/// Reads an array of messages of this type.
struct Array<'a>(&'a MessageDescriptor);

impl<'de> Visitor<'de> for Array<'_> {
    type Value = Vec<DynamicMessage>;

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "an array of {}", self.0.full_name())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut array: A) -> Result<Self::Value, A::Error> {
        let mut messages = Vec::new();
        while let Some(message) = array.next_element_seed(self.0.clone())? {
            messages.push(message);
        }
        Ok(messages)
    }
}

fn wrong(input: &MessageDescriptor, error: &serde_json::Error) -> io::Error {
    let name = input.full_name();
    let fields: Vec<String> =
        input.fields().take(FIELDS_MAX).map(|field| format!("{} ({})", field.json_name(), kind(&field))).collect();
    let more = if input.fields().len() > FIELDS_MAX { " and more" } else { "" };
    let has = if fields.is_empty() { "no fields".to_owned() } else { fields.join(", ") };
    invalid(format!("--data: {error}; {name} has {has}{more}"))
}

/// The type of a field, as `.proto` files have it.
fn kind(field: &prost_reflect::FieldDescriptor) -> String {
    if let prost_reflect::Kind::Message(entry) = field.kind()
        && field.is_map()
    {
        // A server may describe an entry whose value is the entry itself, so this does not follow it.
        let of = |name: &str| entry.get_field_by_name(name).map_or(String::new(), |field| element(&field));
        return format!("map<{}, {}>", of("key"), of("value"));
    }
    let element = element(field);
    if field.is_list() { format!("repeated {element}") } else { element }
}

/// The type of one element of a field.
fn element(field: &prost_reflect::FieldDescriptor) -> String {
    match field.kind() {
        prost_reflect::Kind::Message(message) => message.full_name().to_owned(),
        prost_reflect::Kind::Enum(values) => values.full_name().to_owned(),
        scalar => format!("{scalar:?}").to_ascii_lowercase(),
    }
}

/// Counts the messages of a response as its bytes arrive.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::load) struct Counted {
    /// Messages that have begun.
    pub messages: u64,
    /// Bytes of the prefix of the current message that have arrived, and what they are so far.
    prefix: ([u8; 5], usize),
    /// Bytes that the current message still lacks.
    missing: u64,
}

impl Counted {
    pub(in crate::load) fn push(&mut self, mut piece: &[u8]) {
        while !piece.is_empty() {
            if self.missing > 0 {
                let taken = self.missing.min(piece.len() as u64);
                self.missing -= taken;
                piece = &piece[taken as usize..];
                continue;
            }
            let (bytes, filled) = &mut self.prefix;
            if *filled == 0 {
                self.messages += 1;
            }
            let taken = piece.len().min(bytes.len() - *filled);
            bytes[*filled..*filled + taken].copy_from_slice(&piece[..taken]);
            *filled += taken;
            piece = &piece[taken..];
            if *filled == bytes.len() {
                let [_, length @ ..] = *bytes;
                (self.missing, *filled) = (u64::from(u32::from_be_bytes(length)), 0);
            }
        }
    }

    /// Whether the bytes so far end with a message.
    pub(in crate::load) fn is_complete(&self) -> bool {
        self.missing == 0 && self.prefix.1 == 0
    }
}

#[cfg(test)]
mod tests {
    use super::super::schema::{self, tests::Folder};
    use super::*;

    fn method(name: &str) -> MethodDescriptor {
        let folder = Folder::new();
        let file = folder.write(
            "a.proto",
            "syntax = \"proto3\";\npackage a;\nenum Size { SMALL = 0; LARGE = 1; }
message In { int32 number = 1; string long_name = 2; repeated Size sizes = 3; map<string, In> parts = 4; bytes raw = 5; }
message Out {}
service S { rpc Unary(In) returns (Out); rpc Upload(stream In) returns (Out); }\n",
        );
        let pool = schema::of_protos(&[file], &[]).unwrap();
        pool.get_service_by_name("a.S").unwrap().methods().find(|method| method.name() == name).unwrap()
    }

    #[test]
    fn json_becomes_the_bytes_of_the_protocol() {
        let check = |name: &str, json: &str, expect: &[&[u8]]| {
            let got = encode(&method(name), json.as_bytes()).unwrap();
            assert_eq!(got, expect, "{json}");
        };
        // Field 1, varint 300; field 2, two bytes.
        let full: &[u8] = &[0, 0, 0, 0, 7, 0x08, 0xac, 0x02, 0x12, 2, b'h', b'i'];
        check("Unary", r#"{"number": 300, "longName": "hi"}"#, &[full]);
        check("Unary", r#"{"number": 300, "long_name": "hi"}"#, &[full]);
        check("Unary", "{}", &[&[0; 5]]);
        check("Unary", r#" [{"number": 300, "longName": "hi"}, {}]"#, &[full, &[0; 5]]);
        check("Unary", "{\"number\": 300, \"longName\": \"hi\"}\n{}\n", &[full, &[0; 5]]);
        check("Upload", "{} {}", &[&[0; 10]]);
        check("Upload", "[]", &[&[]]);
        check("Unary", r#"{"sizes": ["LARGE", 0], "raw": "AQI="}"#, &[&[0, 0, 0, 0, 8, 0x1a, 2, 1, 0, 0x2a, 2, 1, 2]]);
    }

    #[test]
    fn json_that_does_not_fit_says_where_and_what_would() {
        let check = |json: &str, expect: &str| {
            let why = encode(&method("Unary"), json.as_bytes()).unwrap_err().to_string();
            assert!(why.starts_with("--data: ") && why.contains(expect), "{json}: {why}");
        };
        check(
            r#"{"numer": 1}"#,
            "unrecognized field name 'numer' at line 1 column 8; a.In has number (int32), longName (string), sizes (repeated a.Size), ",
        );
        check(r#"{"number": "x"}"#, "at line 1 column ");
        check(r#"{"sizes": ["HUGE"]}"#, "HUGE");
        check("{} {\"number\": }", "line 1 column ");
        check("[{}] x", "trailing characters");
        check("", "there is no message in it");
        check("7", "at line 1 column 1");
    }

    /// No `.proto` file can say this, but a server can.
    #[test]
    fn an_entry_of_a_map_whose_value_is_the_entry() {
        use prost_reflect::prost_types::field_descriptor_proto::{Label, Type};
        use prost_reflect::prost_types::{DescriptorProto, FieldDescriptorProto, FileDescriptorProto, MessageOptions};
        let field = |name: &str, number, label: Label, kind: Type| FieldDescriptorProto {
            name: Some(name.to_owned()),
            number: Some(number),
            label: Some(label as i32),
            r#type: Some(kind as i32),
            type_name: (kind == Type::Message).then(|| ".p.M.E".to_owned()),
            ..FieldDescriptorProto::default()
        };
        let entry = DescriptorProto {
            name: Some("E".to_owned()),
            field: vec![
                field("key", 1, Label::Optional, Type::String),
                field("value", 2, Label::Repeated, Type::Message),
            ],
            options: Some(MessageOptions { map_entry: Some(true), ..MessageOptions::default() }),
            ..DescriptorProto::default()
        };
        let message = DescriptorProto {
            name: Some("M".to_owned()),
            field: vec![field("m", 1, Label::Repeated, Type::Message)],
            nested_type: vec![entry],
            ..DescriptorProto::default()
        };
        let file = FileDescriptorProto {
            name: Some("p.proto".to_owned()),
            package: Some("p".to_owned()),
            syntax: Some("proto3".to_owned()),
            message_type: vec![message],
            ..FileDescriptorProto::default()
        };
        let mut pool = prost_reflect::DescriptorPool::new();
        pool.add_file_descriptor_protos([file]).unwrap();
        let field = pool.get_message_by_name("p.M").unwrap().get_field_by_name("m").unwrap();
        assert_eq!(kind(&field), "map<string, p.M.E>");
    }

    #[test]
    fn messages_of_a_response_are_counted_in_pieces_of_any_size() {
        let bytes = [&[0, 0, 0, 0, 3, 1, 2, 3][..], &[0; 5], &[1, 0, 0, 0, 1, 9]].concat();
        for size in [1, 2, 6, bytes.len()] {
            let mut counted = Counted::default();
            bytes.chunks(size).for_each(|piece| counted.push(piece));
            assert_eq!((counted.messages, counted.is_complete()), (3, true), "{size}");
            counted.push(&[0]);
            assert_eq!((counted.messages, counted.is_complete()), (4, false));
        }
    }
}
