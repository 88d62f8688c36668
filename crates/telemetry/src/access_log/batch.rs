//! Records packed for the writer: texts in one arena, the rest in entries of fixed size. A batch that comes back empty keeps its memory, so
//! a worker in steady state allocates nothing.

use model::LogValue;

use super::entry::{Extras, LogEntry};
use super::{HttpRecord, Record};

/// Records of a batch.
pub(super) const BATCH_RECORDS_MAX: usize = 1024;
/// Bytes of the texts of a batch, and bytes of its extras.
const BATCH_BYTES_MAX: usize = 128 * 1024;
/// A longer text is cut and ends with `...`: a head may have 32 KiB, and a batch must have room for any record.
pub(super) const TEXT_BYTES_MAX: usize = 4096;
/// The same for a header and whatever else is looked up for the log.
pub(super) const EXTRA_BYTES_MAX: usize = 1024;
/// Extras of a record.
pub(super) const EXTRAS_MAX: usize = 64;
const CUT_MARK: &[u8] = b"...";

/// Listener, cluster, method, target, host, route, id.
const TEXTS: usize = 7;

#[derive(Debug, Default)]
pub(super) struct Batch {
    /// The texts of all records, one after the other. `bytes.len() <= BATCH_BYTES_MAX`.
    bytes: Vec<u8>,
    /// `entries.len() <= BATCH_RECORDS_MAX`.
    entries: Vec<BatchedRecord>,
    /// The extras of all records, one after the other. `extra_bytes.len() <= BATCH_BYTES_MAX`.
    extra_bytes: Vec<u8>,
    /// Where each extra is in `extra_bytes`; `None` if the request has none.
    places: Vec<Option<(u32, u32)>>,
}

/// A record without its texts.
#[derive(Debug)]
struct BatchedRecord {
    record: Record<'static>,
    /// Each at most TEXT_BYTES_MAX + CUT_MARK.len().
    lengths: [u16; TEXTS],
    /// At most EXTRAS_MAX.
    extras: u16,
}

const _: () = assert!(TEXTS * (TEXT_BYTES_MAX + CUT_MARK.len()) <= BATCH_BYTES_MAX);
const _: () = assert!(EXTRAS_MAX * (EXTRA_BYTES_MAX + CUT_MARK.len()) <= BATCH_BYTES_MAX);
const _: () = assert!(TEXT_BYTES_MAX + CUT_MARK.len() <= u16::MAX as usize);

impl Batch {
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there may be no room for another record.
    pub(super) fn is_full(&self) -> bool {
        self.entries.len() >= BATCH_RECORDS_MAX
            || self.bytes.len() > BATCH_BYTES_MAX - TEXTS * (TEXT_BYTES_MAX + CUT_MARK.len())
            || self.extra_bytes.len() > BATCH_BYTES_MAX - EXTRAS_MAX * (EXTRA_BYTES_MAX + CUT_MARK.len())
    }

    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.entries.clear();
        self.extra_bytes.clear();
        self.places.clear();
    }

    /// Copies a record, and what `give` appends for each of these values; it returns false if there is none. The batch must not be full.
    pub(super) fn push(
        &mut self,
        record: &Record<'_>,
        extras: &[LogValue],
        mut give: impl FnMut(&LogValue, &mut Vec<u8>) -> bool,
    ) {
        let http = record.http.as_ref();
        let (method, target, host) =
            http.map_or((&[][..], &[][..], &[][..]), |http| (http.method, http.target, http.host));
        let route = http.map_or("", |http| http.route).as_bytes();
        let id = http.map_or("", |http| http.request_id).as_bytes();
        let texts: [&[u8]; TEXTS] =
            [record.listener.as_bytes(), record.cluster.as_bytes(), method, target, host, route, id];
        let lengths = texts.map(|text| self.push_text(text));
        let http = record.http.map(|http| HttpRecord {
            method: &[],
            target: &[],
            host: &[],
            route: "",
            request_id: "",
            ..http
        });
        let record = Record { listener: "", cluster: "", http, ..*record };
        self.entries.push(BatchedRecord { record, lengths, extras: extras.len() as u16 });
        for value in extras {
            let begin = self.extra_bytes.len();
            let is_there = give(value, &mut self.extra_bytes);
            if !is_there {
                self.extra_bytes.truncate(begin);
            } else if self.extra_bytes.len() - begin > EXTRA_BYTES_MAX {
                self.extra_bytes.truncate(begin + EXTRA_BYTES_MAX);
                self.extra_bytes.extend_from_slice(CUT_MARK);
            }
            self.places.push(is_there.then_some((begin as u32, self.extra_bytes.len() as u32)));
        }
    }

    fn push_text(&mut self, text: &[u8]) -> u16 {
        let before = self.bytes.len();
        match text.get(..TEXT_BYTES_MAX) {
            Some(start) if text.len() > TEXT_BYTES_MAX => {
                self.bytes.extend_from_slice(start);
                self.bytes.extend_from_slice(CUT_MARK);
            }
            _ => self.bytes.extend_from_slice(text),
        }
        (self.bytes.len() - before) as u16
    }

    /// The records as they were pushed, except for texts that were cut.
    pub(super) fn entries(&self) -> impl Iterator<Item = LogEntry<'_>> {
        let mut rest = self.bytes.as_slice();
        let mut places = self.places.as_slice();
        self.entries.iter().map(move |entry| {
            let [listener, cluster, method, target, host, route, id] =
                entry.lengths.map(|length| take(&mut rest, length));
            let (route, request_id) = (text(route), text(id));
            let http = entry.record.http.map(|http| HttpRecord { method, target, host, route, request_id, ..http });
            let record = Record { listener: text(listener), cluster: text(cluster), http, ..entry.record };
            let (own, after) = places.split_at_checked(usize::from(entry.extras)).unwrap_or_default();
            places = after;
            LogEntry { record, extras: Extras { bytes: &self.extra_bytes, places: own }, text_bytes_max: usize::MAX }
        })
    }
}

fn take<'a>(rest: &mut &'a [u8], length: u16) -> &'a [u8] {
    let (taken, after) = rest.split_at_checked(usize::from(length)).unwrap_or_default();
    *rest = after;
    taken
}

/// A name from the configuration. It was a `str`, and only a cut may have split a character.
fn text(bytes: &[u8]) -> &str {
    match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => bytes.get(..error.valid_up_to()).and_then(|valid| std::str::from_utf8(valid).ok()).unwrap_or(""),
    }
}
