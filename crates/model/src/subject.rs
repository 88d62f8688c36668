//! The spelling of a certificate's subject (RFC 4514): the names of attributes, and how values are escaped.
//!
//! There are many spellings of one subject, and Steelyard compares texts. So a subject of a certificate has one spelling, that of
//! `openssl x509 -subject -nameopt RFC2253`, and [`respelled`] says what it is for a text that a person wrote.

/// The longest text of a subject. A longer one has none: a part of a name could be another name.
pub const SUBJECT_BYTES_MAX: usize = 4096;

/// The attributes that have a short name.
pub const ATTRIBUTES: [Attribute; 14] = [
    Attribute::new(&[0x55, 4, 3], "CN", "2.5.4.3", &["commonName"]),
    Attribute::new(&[0x55, 4, 4], "SN", "2.5.4.4", &["surname"]),
    Attribute::new(&[0x55, 4, 5], "serialNumber", "2.5.4.5", &[]),
    Attribute::new(&[0x55, 4, 6], "C", "2.5.4.6", &["countryName"]),
    Attribute::new(&[0x55, 4, 7], "L", "2.5.4.7", &["localityName"]),
    Attribute::new(&[0x55, 4, 8], "ST", "2.5.4.8", &["S", "stateOrProvinceName"]),
    Attribute::new(&[0x55, 4, 9], "street", "2.5.4.9", &["streetAddress"]),
    Attribute::new(&[0x55, 4, 10], "O", "2.5.4.10", &["organizationName"]),
    Attribute::new(&[0x55, 4, 11], "OU", "2.5.4.11", &["organizationalUnitName"]),
    Attribute::new(&[0x55, 4, 12], "title", "2.5.4.12", &["T"]),
    Attribute::new(&[0x55, 4, 42], "GN", "2.5.4.42", &["G", "givenName"]),
    Attribute::new(
        &[0x09, 0x92, 0x26, 0x89, 0x93, 0xf2, 0x2c, 0x64, 1, 25],
        "DC",
        "0.9.2342.19200300.100.1.25",
        &["domainComponent"],
    ),
    Attribute::new(
        &[0x09, 0x92, 0x26, 0x89, 0x93, 0xf2, 0x2c, 0x64, 1, 1],
        "UID",
        "0.9.2342.19200300.100.1.1",
        &["userId"],
    ),
    Attribute::new(
        &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 9, 1],
        "emailAddress",
        "1.2.840.113549.1.9.1",
        &["E", "email", "mail"],
    ),
];

/// An attribute that has a short name.
#[derive(Clone, Copy, Debug)]
pub struct Attribute {
    /// Its object identifier in DER.
    pub der: &'static [u8],
    /// Its name in the text.
    pub name: &'static str,
    /// Its object identifier in dots and digits.
    pub oid: &'static str,
    /// What others call it.
    others: &'static [&'static str],
}

impl Attribute {
    const fn new(der: &'static [u8], name: &'static str, oid: &'static str, others: &'static [&'static str]) -> Self {
        Self { der, name, oid, others }
    }

    fn is_called(&self, name: &str) -> bool {
        let all = [self.name, self.oid].into_iter().chain(self.others.iter().copied());
        all.into_iter().any(|known| known.eq_ignore_ascii_case(name))
    }
}

/// Appends a value as RFC 4514 section 2.4 has it. Everything but printable ASCII becomes `\XX`, byte by byte of its UTF-8.
pub fn escape_subject_value(out: &mut String, text: &[u8]) {
    let last = text.len().saturating_sub(1);
    for (at, byte) in text.iter().enumerate() {
        match byte {
            b'"' | b'+' | b',' | b';' | b'<' | b'>' | b'\\' => {
                out.push('\\');
                out.push(char::from(*byte));
            }
            b'#' if at == 0 => *out += "\\#",
            b' ' if at == 0 || at == last => *out += "\\ ",
            b' '..=b'~' => out.push(char::from(*byte)),
            byte => *out += &format!("\\{byte:02X}"),
        }
    }
}

/// The one spelling of a subject that a certificate's can equal.
///
/// # Errors
/// Says in a sentence why the text is no subject.
pub fn respelled(text: &str) -> Result<String, String> {
    let mut out = String::new();
    let mut rest = text;
    loop {
        let (name, after) = rest.split_once('=').ok_or_else(|| format!("`{}` has no `=`", rest.trim()))?;
        let name = name.trim();
        let known = ATTRIBUTES.iter().find(|attribute| attribute.is_called(name));
        let is_oid = || name.contains('.') && name.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        match known {
            Some(attribute) => out += attribute.name,
            None if is_oid() => out += name,
            None => {
                let names: Vec<&str> = ATTRIBUTES.iter().map(|attribute| attribute.name).collect();
                return Err(format!("`{name}` is no attribute of a subject: there are {}", names.join(", ")));
            }
        }
        out.push('=');
        let (value, end) = value(after)?;
        match value {
            Value::Der(der) => match known.and_then(|_| text_of(&der)) {
                Some(text) => escape_subject_value(&mut out, text),
                None => out += &der.iter().fold("#".to_owned(), |hex, byte| hex + &format!("{byte:02X}")),
            },
            Value::Text(text) if known.is_some() => escape_subject_value(&mut out, &text),
            Value::Text(_) => return Err(format!("the value of `{name}` must be `#` and the hex digits of its DER")),
        }
        if out.len() > SUBJECT_BYTES_MAX {
            return Err(format!("it is longer than {SUBJECT_BYTES_MAX} bytes"));
        }
        let Some((separator, after)) = end else { return Ok(out) };
        out.push(if separator == '+' { '+' } else { ',' });
        rest = after;
    }
}

enum Value {
    Text(Vec<u8>),
    Der(Vec<u8>),
}

/// What follows a value: the separator, and the rest.
type Rest<'t> = Option<(char, &'t str)>;

/// The value at the beginning of a text, and what follows it.
fn value(text: &str) -> Result<(Value, Rest<'_>), String> {
    let text = text.trim_start_matches(' ');
    let is_separator = |c: char| matches!(c, ',' | ';' | '+');
    if let Some(hex) = text.strip_prefix('#') {
        let end = hex.find(is_separator);
        let (digits, rest) = hex.split_at(end.unwrap_or(hex.len()));
        let wrong = || format!("`#{digits}` is not the hex digits of a value");
        let digits = digits.trim_end();
        let pairs = digits.as_bytes().chunks(2).map(|pair| hex_byte(pair).ok_or_else(wrong));
        let der: Vec<u8> = pairs.collect::<Result<_, _>>()?;
        return if der.is_empty() { Err(wrong()) } else { Ok((Value::Der(der), separated(rest))) };
    }
    let quoted = text.strip_prefix('"');
    let body = quoted.unwrap_or(text);
    let mut out = Vec::new();
    // Spaces at the end belong to the value if they are escaped.
    let mut kept = 0;
    let mut at = 0;
    while let Some(c) = body.get(at..).and_then(|rest| rest.chars().next()) {
        let after = body.get(at + c.len_utf8()..).unwrap_or_default();
        match c {
            '\\' => {
                let pair = after.as_bytes().get(..2).and_then(hex_byte);
                let next = after.chars().next().ok_or("it ends in `\\`")?;
                match pair {
                    Some(byte) => out.push(byte),
                    None => out.extend_from_slice(next.encode_utf8(&mut [0; 4]).as_bytes()),
                }
                at += 1 + pair.map_or(next.len_utf8(), |_| 2);
                kept = out.len();
                continue;
            }
            '"' if quoted.is_some() => {
                let rest = after.trim_start_matches(' ');
                let is_end = rest.is_empty() || rest.starts_with(is_separator);
                return if is_end { Ok((Value::Text(out), separated(rest))) } else { Err(UNQUOTED.to_owned()) };
            }
            c if quoted.is_none() && is_separator(c) => break,
            c => out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
        }
        at += c.len_utf8();
    }
    if quoted.is_some() {
        return Err(UNQUOTED.to_owned());
    }
    while out.len() > kept && out.last() == Some(&b' ') {
        out.pop();
    }
    Ok((Value::Text(out), separated(body.get(at..).unwrap_or_default())))
}

const UNQUOTED: &str = "a value in quotes must end with a quote";

fn separated(rest: &str) -> Option<(char, &str)> {
    let separator = rest.chars().next()?;
    Some((separator, rest.get(separator.len_utf8()..).unwrap_or_default()))
}

fn hex_byte(pair: &[u8]) -> Option<u8> {
    let [high, low] = pair else { return None };
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    Some(digit(*high)? << 4 | digit(*low)?)
}

/// The text in a value in DER, if certificates with this value are shown with the text.
fn text_of(der: &[u8]) -> Option<&[u8]> {
    let [tag, length, text @ ..] = der else { return None };
    let is_whole = *length < 0x80 && usize::from(*length) == text.len();
    let is_text = match tag {
        // UTF8String
        12 => std::str::from_utf8(text).is_ok(),
        // NumericString, PrintableString, IA5String, VisibleString
        18 | 19 | 22 | 26 => text.is_ascii(),
        _ => false,
    };
    (is_whole && is_text).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_has_one_spelling() {
        let check = |text: &str, expect: &str| assert_eq!(respelled(text).as_deref(), Ok(expect), "{text}");
        for right in [
            "CN=ann,O=ops",
            "CN=",
            "CN=ann+OU=b,DC=example,DC=com",
            r#"CN=\ #a\,b\+c\"d\\e\<f\>g\;h\ "#,
            r"CN=J\C3\BCrgen\0D\0A",
            "CN=a=b",
            "CN=#030100",
            "1.2.840.113549.1.9.2=#0C0161",
            "emailAddress=a@b.test,serialNumber=1,street=x,UID=u,title=t,GN=g,SN=s,C=DE,ST=x,L=y",
        ] {
            check(right, right);
        }
        check("cn=ann,o=ops", "CN=ann,O=ops");
        check("CN = ann , O = ops", "CN=ann,O=ops");
        check("CN=ann;O=ops", "CN=ann,O=ops");
        check("CN=ann ", "CN=ann");
        check(r"CN=ann\ ", r"CN=ann\ ");
        check("E=a@b.test", "emailAddress=a@b.test");
        check("2.5.4.3=ann", "CN=ann");
        check("1.2.840.113549.1.9.2=#0c0161", "1.2.840.113549.1.9.2=#0C0161");
        check("CN=J\u{fc}rgen", r"CN=J\C3\BCrgen");
        check(r"CN=J\c3\bcrgen", r"CN=J\C3\BCrgen");
        check(r"CN=a\2Cb", r"CN=a\,b");
        check(r#"CN="a,b" , O=x"#, r"CN=a\,b,O=x");
        check(r"CN=a\=b", "CN=a=b");
        check("CN=#0C03616e6e", "CN=ann");
        check("CN=a#b<c", r"CN=a#b\<c");
    }

    #[test]
    fn what_is_no_subject_is_refused() {
        let check = |text: &str, part: &str| {
            let why = respelled(text).unwrap_err();
            assert!(why.contains(part), "{text}: {why}");
        };
        check("CN=ann,", "no `=`");
        check("CN=ann,ops", "no `=`");
        check("=ann", "no attribute");
        check("foo=ann", "no attribute");
        check("/CN=ann/O=ops", "no attribute");
        check("1.2.3=ann", "hex digits");
        check("CN=#0", "hex digits");
        check("CN=#", "hex digits");
        check("CN=#zz", "hex digits");
        check("CN=ann\\", "ends in");
        check("CN=\"ann", "quote");
        check("CN=\"ann\"x", "quote");
        check(&format!("CN={}", "a".repeat(5000)), "longer");
        check("", "no `=`");
    }
}
