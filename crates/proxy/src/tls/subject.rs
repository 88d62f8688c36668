//! The subject of a certificate as text (RFC 4514), in printable ASCII whatever the certificate contains.
//!
//! The form is that of `openssl x509 -subject -nameopt RFC2253`, and so that of nginx's `$ssl_client_s_dn`. `model::respelled` knows it, too.

use model::{ATTRIBUTES, SUBJECT_BYTES_MAX, escape_subject_value};

/// The text of a name, which is the content of its SEQUENCE. `None` if it is not a name, or too long.
pub(super) fn text(name: &[u8]) -> Option<String> {
    let mut parts = Vec::new();
    let mut rest = name;
    while !rest.is_empty() {
        let set = Element::take(&mut rest).filter(|element| element.tag == 0x31)?;
        let mut attributes = set.content;
        let mut part = String::new();
        while !attributes.is_empty() {
            let attribute = Element::take(&mut attributes).filter(|element| element.tag == 0x30)?;
            if !part.is_empty() {
                part.push('+');
            }
            write_attribute(&mut part, attribute.content)?;
            if part.len() > SUBJECT_BYTES_MAX {
                return None;
            }
        }
        parts.push(part);
    }
    // The last of the name is the first of the text.
    parts.reverse();
    Some(parts.join(",")).filter(|text| text.len() <= SUBJECT_BYTES_MAX)
}

fn write_attribute(out: &mut String, mut content: &[u8]) -> Option<()> {
    let kind = Element::take(&mut content).filter(|element| element.tag == 6)?;
    let value = Element::take(&mut content).filter(|_| content.is_empty())?;
    let known = ATTRIBUTES.iter().find(|attribute| attribute.der == kind.content);
    match known {
        Some(attribute) => *out += attribute.name,
        None => *out += &identifier(kind.content)?,
    }
    out.push('=');
    match characters(&value).filter(|_| known.is_some()) {
        Some(text) => escape_subject_value(out, text.as_bytes()),
        None => {
            out.push('#');
            value.whole.iter().for_each(|byte| *out += &format!("{byte:02X}"));
        }
    }
    Some(())
}

/// The text of a value, if its type is one of text.
fn characters(value: &Element<'_>) -> Option<String> {
    let content = value.content;
    match value.tag {
        // UTF8String
        12 => std::str::from_utf8(content).ok().map(str::to_owned),
        // NumericString, PrintableString, IA5String, VisibleString
        18 | 19 | 22 | 26 => content.is_ascii().then(|| content.iter().copied().map(char::from).collect()),
        // TeletexString: implementations write Latin 1.
        20 => Some(content.iter().copied().map(char::from).collect()),
        // BMPString
        30 if content.len().is_multiple_of(2) => {
            let units = content.chunks_exact(2).map(|pair| match pair {
                [high, low] => u16::from_be_bytes([*high, *low]),
                _ => 0,
            });
            char::decode_utf16(units).collect::<Result<String, _>>().ok()
        }
        _ => None,
    }
}

/// An object identifier in dots and digits.
fn identifier(bytes: &[u8]) -> Option<String> {
    let mut text = String::new();
    let mut number: u64 = 0;
    for byte in bytes {
        number = number.checked_mul(128)? | u64::from(byte & 0x7f);
        if byte & 0x80 != 0 {
            continue;
        }
        if text.is_empty() {
            let first = (number / 40).min(2);
            text = format!("{first}.{}", number - first * 40);
        } else {
            text += &format!(".{number}");
        }
        number = 0;
    }
    bytes.last().filter(|last| **last & 0x80 == 0)?;
    Some(text)
}

/// An element of DER with one byte of tag.
pub(super) struct Element<'d> {
    pub(super) tag: u8,
    pub(super) content: &'d [u8],
    /// With tag and length.
    pub(super) whole: &'d [u8],
}

impl<'d> Element<'d> {
    /// Takes the first element of `rest`.
    pub(super) fn take(rest: &mut &'d [u8]) -> Option<Self> {
        let all = *rest;
        let (tag, after) = all.split_first()?;
        let (first, mut after) = after.split_first()?;
        let mut length = usize::from(*first);
        if *first >= 0x80 {
            let count = usize::from(first & 0x7f);
            let (bytes, behind) = after.split_at_checked(count).filter(|_| (1..=4).contains(&count))?;
            length = bytes.iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
            after = behind;
        }
        let (content, behind) = after.split_at_checked(length)?;
        *rest = behind;
        Some(Self { tag: *tag, content, whole: all.get(..all.len() - behind.len())? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn element(tag: u8, content: &[u8]) -> Vec<u8> {
        let mut out = vec![tag];
        match content.len() {
            length @ 0..=127 => out.push(length as u8),
            length => out.extend([0x82, (length >> 8) as u8, length as u8]),
        }
        out.extend_from_slice(content);
        out
    }

    fn attribute(kind: &[u8], tag: u8, value: &[u8]) -> Vec<u8> {
        element(0x30, &[element(6, kind), element(tag, value)].concat())
    }

    fn named(attributes: &[Vec<u8>]) -> Vec<u8> {
        attributes.iter().flat_map(|attribute| element(0x31, attribute)).collect()
    }

    #[test]
    fn names_are_printable() {
        let check = |attributes: &[Vec<u8>], expect: Option<&str>| {
            assert_eq!(text(&named(attributes)).as_deref(), expect, "{attributes:?}");
        };
        let cn = |value: &[u8]| attribute(&[0x55, 4, 3], 12, value);
        check(&[], Some(""));
        check(&[attribute(&[0x55, 4, 6], 19, b"DE"), cn(b"client 1")], Some("CN=client 1,C=DE"));
        check(&[cn(b" #a,b+c\"d\\e<f>g;h ")], Some(r#"CN=\ #a\,b\+c\"d\\e\<f\>g\;h\ "#));
        check(&[cn(b"#1")], Some(r"CN=\#1"));
        check(&[cn(b" ")], Some(r"CN=\ "));
        check(&[cn("J\u{fc}rgen\r\nX: 1\0\u{7f}".as_bytes())], Some(r"CN=J\C3\BCrgen\0D\0AX: 1\00\7F"));
        check(&[attribute(&[0x55, 4, 3], 20, b"J\xfcrgen")], Some(r"CN=J\C3\BCrgen"));
        check(&[attribute(&[0x55, 4, 3], 30, b"\0A\0\xe9")], Some(r"CN=A\C3\A9"));
        // Not UTF-8, and a type that is not text: the whole value.
        check(&[cn(b"\xff")], Some("CN=#0C01FF"));
        check(&[attribute(&[0x55, 4, 3], 3, b"\0")], Some("CN=#030100"));
        check(
            &[attribute(&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 9, 2], 12, b"a")],
            Some("1.2.840.113549.1.9.2=#0C0161"),
        );
        let two = [cn(b"a"), attribute(&[0x55, 4, 11], 12, b"b")].concat();
        assert_eq!(text(&element(0x31, &two)).as_deref(), Some("CN=a+OU=b"));
        check(&[cn(&[b'a'; 5000])], None);
        check(&[cn(&[0x07; 1400])], None);
    }

    #[test]
    fn the_configuration_spells_subjects_in_the_same_way() {
        for attribute in ATTRIBUTES {
            assert_eq!(identifier(attribute.der).as_deref(), Some(attribute.oid), "{}", attribute.name);
        }
        let values = ["client 1", " #a,b+c\"d\\e<f>g;h ", "#1", " ", "J\u{fc}rgen\r\nX: 1\0\u{7f}", "", "a\\41", "a=b"];
        for value in values {
            let text = text(&named(&[attribute(&[0x55, 4, 3], 12, value.as_bytes())])).unwrap();
            assert_eq!(model::respelled(&text).as_deref(), Ok(text.as_str()), "{value:?}");
        }
        for other in [attribute(&[0x55, 4, 3], 12, b"\xff"), attribute(&[0x2a, 3, 4], 12, b"a")] {
            let text = text(&named(&[other])).unwrap();
            assert_eq!(model::respelled(&text).as_deref(), Ok(text.as_str()));
        }
    }

    #[test]
    fn what_is_no_name_has_no_text() {
        let whole = named(&[attribute(&[0x55, 4, 3], 12, b"client")]);
        for end in 1..whole.len() {
            assert_eq!(text(&whole[..end]), None, "{end}");
        }
        for at in 0..whole.len() {
            let mut broken = whole.clone();
            broken[at] = 0xff;
            // It may still be a name, but must be printable.
            assert!(text(&broken).is_none_or(|text| text.bytes().all(|byte| (b' '..=b'~').contains(&byte))), "{at}");
        }
        assert_eq!(text(&[0x31, 0x85, 1, 1, 1, 1, 1]), None);
        assert_eq!(text(&[0x31, 0x80]), None);
    }
}
