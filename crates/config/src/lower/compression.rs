//! Compression.

use model::{Compression, Encoding, MediaRange};

use crate::defaults;
use crate::diagnostic::{Report, Wrong, ticked};
use crate::raw::{RawCompress, RawRoute};
use crate::read::{Formed, Located, OneOf, OneOrMany};
use crate::text::MediaText;

/// The most types of one route. Each is compared with the type of a response.
const TYPES_MAX: usize = 64;

/// How the responses of a route are compressed.
pub fn compression(written: &Located<RawCompress>, route: &RawRoute, report: &mut Report) -> Compression {
    let raw = &written.value;
    if route.redirect.is_some() || route.respond.is_some() {
        let wrong = Wrong::new("`compress` has no effect: only responses of endpoints are compressed");
        report.add(written.location, wrong.hint("remove it"));
    }
    let encodings = match &raw.encodings {
        Some(encodings) => self::encodings(encodings, report),
        None => defaults::ENCODINGS.into(),
    };
    let types = match &raw.types {
        Some(types) => self::types(types, report),
        None => default_types(),
    };
    Compression {
        encodings,
        level: raw
            .level
            .as_ref()
            .map_or(defaults::COMPRESSION_LEVEL, |level| u8::try_from(level.value.0).unwrap_or(u8::MAX)),
        types,
        bytes_min: raw.min_size.as_ref().map_or(defaults::COMPRESSED_BYTES_MIN, |size| size.value.0),
    }
}

/// Each at most once.
pub fn encodings(raw: &Located<OneOrMany<OneOf<Encoding>>>, report: &mut Report) -> Vec<Encoding> {
    let mut encodings = Vec::new();
    for encoding in &raw.value.0 {
        if encodings.contains(&encoding.value.0) {
            let wrong = Wrong::new(format!("`encodings` has {} twice", ticked(encoding.value.0.name())));
            report.add(encoding.location, wrong.hint("remove one of the two"));
        }
        encodings.push(encoding.value.0);
    }
    encodings
}

fn types(raw: &Located<OneOrMany<MediaText>>, report: &mut Report) -> Vec<MediaRange> {
    let found = raw.value.0.len();
    if found > TYPES_MAX {
        let wrong = Wrong::new(format!("`types` has {found} entries; the limit is {TYPES_MAX}"));
        report.add(raw.location, wrong.hint("write `text/*` for all types of text"));
    }
    for media in &raw.value.0 {
        let MediaText(MediaRange { top, sub }) = &media.value;
        if top == "application" && sub.as_ref().is_some_and(|sub| sub.starts_with("grpc")) {
            let wrong = Wrong::new("gRPC is never compressed: its messages have a compression of their own");
            report.add(media.location, wrong.hint("remove it"));
        }
    }
    raw.value.0.iter().map(|media| media.value.0.clone()).collect()
}

fn default_types() -> Vec<MediaRange> {
    defaults::COMPRESSED_TYPES.iter().filter_map(|text| MediaText::parse(text).ok()).map(|media| media.0).collect()
}
