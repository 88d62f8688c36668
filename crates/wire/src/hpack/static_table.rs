//! The static table (RFC 7541 appendix A), and lookups in it by name and value.

use super::Kind;
use super::encoder::hash;
use crate::message::FieldId;

/// The number of entries. Index 1 is the first; index 62 is the first of the dynamic table.
pub(super) const LENGTH: usize = 61;

/// In the order of their indexes, from 1 on.
pub(super) const ENTRIES: [(&str, &str); LENGTH] = [
    (":authority", ""),
    (":method", "GET"),
    (":method", "POST"),
    (":path", "/"),
    (":path", "/index.html"),
    (":scheme", "http"),
    (":scheme", "https"),
    (":status", "200"),
    (":status", "204"),
    (":status", "206"),
    (":status", "304"),
    (":status", "400"),
    (":status", "404"),
    (":status", "500"),
    ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"),
    ("accept-language", ""),
    ("accept-ranges", ""),
    ("accept", ""),
    ("access-control-allow-origin", ""),
    ("age", ""),
    ("allow", ""),
    ("authorization", ""),
    ("cache-control", ""),
    ("content-disposition", ""),
    ("content-encoding", ""),
    ("content-language", ""),
    ("content-length", ""),
    ("content-location", ""),
    ("content-range", ""),
    ("content-type", ""),
    ("cookie", ""),
    ("date", ""),
    ("etag", ""),
    ("expect", ""),
    ("expires", ""),
    ("from", ""),
    ("host", ""),
    ("if-match", ""),
    ("if-modified-since", ""),
    ("if-none-match", ""),
    ("if-range", ""),
    ("if-unmodified-since", ""),
    ("last-modified", ""),
    ("link", ""),
    ("location", ""),
    ("max-forwards", ""),
    ("proxy-authenticate", ""),
    ("proxy-authorization", ""),
    ("range", ""),
    ("referer", ""),
    ("refresh", ""),
    ("retry-after", ""),
    ("server", ""),
    ("set-cookie", ""),
    ("strict-transport-security", ""),
    ("transfer-encoding", ""),
    ("user-agent", ""),
    ("vary", ""),
    ("via", ""),
    ("www-authenticate", ""),
];

/// The entry with this index and its kind; `None` beyond the static table, and for 0.
#[inline]
pub(super) fn entry(index: usize) -> Option<(Kind, &'static [u8], &'static [u8])> {
    let at = index.checked_sub(1)?;
    let (name, value) = ENTRIES.get(at)?;
    Some((*KINDS.get(at)?, name.as_bytes(), value.as_bytes()))
}

/// The name and value of the entry with this index.
#[inline]
pub(super) fn text(index: usize) -> Option<(&'static [u8], &'static [u8])> {
    entry(index).map(|(_, name, value)| (name, value))
}

/// The kinds of the entries, as [`Kind::of`] determines them.
static KINDS: [Kind; LENGTH] = kinds();

#[expect(clippy::indexing_slicing, reason = "computed at compile time: out of bounds does not compile")]
const fn kinds() -> [Kind; LENGTH] {
    let mut kinds = [Kind::Field(FieldId::Other); LENGTH];
    let mut at = 0;
    while at < LENGTH {
        kinds[at] = kind(at + 1);
        at += 1;
    }
    kinds
}

const fn kind(index: usize) -> Kind {
    match index {
        1 => Kind::Authority,
        2 | 3 => Kind::Method,
        4 | 5 => Kind::Path,
        6 | 7 => Kind::Scheme,
        8..=14 => Kind::Status,
        28 => Kind::Field(FieldId::ContentLength),
        32 => Kind::Field(FieldId::Cookie),
        33 => Kind::Field(FieldId::Date),
        35 => Kind::Field(FieldId::Expect),
        38 => Kind::Field(FieldId::Host),
        48 => Kind::Field(FieldId::ProxyAuthenticate),
        49 => Kind::Field(FieldId::ProxyAuthorization),
        57 => Kind::Field(FieldId::TransferEncoding),
        _ => Kind::Field(FieldId::Other),
    }
}

/// The first index with this name, which has this [`hash`].
pub(super) fn find_name(name: &[u8], name_hash: u32) -> Option<usize> {
    find(&BY_NAME, name_hash, |its_name, _| its_name == name)
}

/// The index with this name and value. `value_hash` is the [`hash`] of the value, which continues the name's. Empty values are not found.
pub(super) fn find_value(name: &[u8], value: &[u8], value_hash: u32) -> Option<usize> {
    find(&BY_VALUE, value_hash, |its_name, its_value| its_value == value && its_name == name)
}

fn find(slots: &[u8; SLOTS], hash: u32, is_it: impl Fn(&[u8], &[u8]) -> bool) -> Option<usize> {
    let mut at = hash as usize;
    loop {
        // This ends, because more than half of the slots are free.
        let index = usize::from(*slots.get(at % SLOTS)?);
        let (name, value) = text(index)?;
        if is_it(name, value) {
            return Some(index);
        }
        at += 1;
    }
}

const SLOTS: usize = 256;

/// Open addressing by the [`hash`] of the name; 0 is free.
static BY_NAME: [u8; SLOTS] = slots(false);
/// The same by the hash of name and value, for the entries that have a value.
static BY_VALUE: [u8; SLOTS] = slots(true);

#[expect(clippy::indexing_slicing, reason = "computed at compile time: out of bounds does not compile")]
const fn slots(by_value: bool) -> [u8; SLOTS] {
    let mut slots = [0; SLOTS];
    let mut index = 1;
    while index <= LENGTH {
        let (name, value) = (ENTRIES[index - 1].0.as_bytes(), ENTRIES[index - 1].1.as_bytes());
        let is_first = index == 1 || !same(name, ENTRIES[index - 2].0.as_bytes());
        if if by_value { !value.is_empty() } else { is_first } {
            let name_hash = hash(0, name);
            let mut at = if by_value { hash(name_hash, value) } else { name_hash } as usize % SLOTS;
            while slots[at] != 0 {
                at = (at + 1) % SLOTS;
            }
            slots[at] = index as u8;
        }
        index += 1;
    }
    slots
}

#[expect(clippy::indexing_slicing, reason = "computed at compile time: out of bounds does not compile")]
const fn same(left: &[u8], right: &[u8]) -> bool {
    if left.len() != right.len() {
        return false;
    }
    let mut at = 0;
    while at < left.len() {
        if left[at] != right[at] {
            return false;
        }
        at += 1;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_entry_is_found_by_name_and_by_value() {
        let by_value = |name: &str, value: &str| {
            let (name, value) = (name.as_bytes(), value.as_bytes());
            find_value(name, value, hash(hash(0, name), value))
        };
        for (at, (name, value)) in ENTRIES.iter().enumerate() {
            let first = ENTRIES.iter().position(|entry| entry.0 == *name).unwrap() + 1;
            assert_eq!(find_name(name.as_bytes(), hash(0, name.as_bytes())), Some(first), "{name}");
            let expect = (!value.is_empty()).then_some(at + 1);
            assert_eq!(by_value(name, value), expect, "{name}: {value}");
            let (name, value) = (name.as_bytes(), value.as_bytes());
            assert_eq!(entry(at + 1), Some((Kind::of(name, value), name, value)));
        }
        assert_eq!(find_name(b"x-request-id", hash(0, b"x-request-id")), None);
        assert_eq!((by_value(":method", "PUT"), by_value("x", "GET")), (None, None));
        assert_eq!((entry(0), entry(62)), (None, None));
    }
}
