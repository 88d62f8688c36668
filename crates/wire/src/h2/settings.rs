//! SETTINGS (RFC 9113 section 6.5): the other side's limits, and what this side announces.

use super::error::{ErrorCode, Fault, Reason};
use super::frame::{self, FRAME_BYTES_MAX, WINDOW_DEFAULT, WINDOW_MAX, flag, kind, setting};
use super::limits::Limits;
use super::{PREFACE, Role};

/// Streams that a client opens before it knows the limit: the minimum that RFC 9113 section 6.5.2 recommends to servers.
const STREAMS_DEFAULT: u32 = 100;

/// The other side's settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Theirs {
    pub(super) header_table_bytes: u32,
    pub(super) streams_max: u32,
    /// `0 <= initial_window <= 2^31-1`.
    pub(super) initial_window: i64,
    pub(super) extended_connect: bool,
    /// The first SETTINGS have arrived.
    pub(super) is_known: bool,
}

impl Default for Theirs {
    fn default() -> Self {
        Self {
            header_table_bytes: 4096,
            streams_max: STREAMS_DEFAULT,
            initial_window: WINDOW_DEFAULT,
            extended_connect: false,
            is_known: false,
        }
    }
}

impl Theirs {
    /// The settings after a frame with this payload. All of its settings are applied at once: the last of several with one id counts, and
    /// the cost of a change (each stream's window) arises once per frame.
    pub(super) fn updated(mut self, payload: &[u8], role: Role) -> Result<Self, Fault> {
        if !payload.len().is_multiple_of(6) {
            return Err(Fault::connection(Reason::FrameSize));
        }
        if !self.is_known {
            // Unlimited, unless the first frame says otherwise.
            (self.is_known, self.streams_max) = (true, u32::MAX);
        }
        for entry in payload.chunks_exact(6) {
            let (id, value) = entry.split_at_checked(2).unwrap_or_default();
            let id = id.first_chunk::<2>().map_or(0, |bytes| u16::from_be_bytes(*bytes));
            let value = frame::number(value);
            let bad = || Err(Fault::connection(Reason::Setting));
            match id {
                setting::HEADER_TABLE_SIZE => self.header_table_bytes = value,
                // A server accepts no push, and must not allow push to itself (section 6.5.2).
                setting::ENABLE_PUSH if value > 1 || (value == 1 && role == Role::Client) => return bad(),
                setting::MAX_CONCURRENT_STREAMS => self.streams_max = value,
                setting::INITIAL_WINDOW_SIZE if i64::from(value) > WINDOW_MAX => {
                    return Err(Fault::Connection(Reason::Setting, ErrorCode::FLOW_CONTROL_ERROR));
                }
                setting::INITIAL_WINDOW_SIZE => self.initial_window = i64::from(value),
                // Frames larger than the required minimum are never sent, so only the range of the value matters.
                setting::MAX_FRAME_SIZE if !(FRAME_BYTES_MAX as u32..1 << 24).contains(&value) => return bad(),
                // RFC 8441 section 3: once allowed, it cannot be withdrawn.
                setting::ENABLE_CONNECT_PROTOCOL if value > 1 || (value == 0 && self.extended_connect) => return bad(),
                setting::ENABLE_CONNECT_PROTOCOL => self.extended_connect = value == 1,
                _ => {}
            }
        }
        Ok(self)
    }
}

/// Writes this side's first frames: the preface, its settings, and the connection's window.
pub(super) fn write_first(out: &mut Vec<u8>, role: Role, limits: &Limits) {
    if role == Role::Client {
        out.extend_from_slice(PREFACE);
    }
    let mut settings = vec![
        (setting::INITIAL_WINDOW_SIZE, limits.stream_window_bytes),
        (setting::MAX_HEADER_LIST_SIZE, limits.header_list_bytes_max),
    ];
    match role {
        Role::Client => settings.push((setting::ENABLE_PUSH, 0)),
        Role::Server => {
            settings.push((setting::MAX_CONCURRENT_STREAMS, limits.streams_max));
            settings.push((setting::NO_RFC7540_PRIORITIES, 1));
            if limits.extended_connect {
                settings.push((setting::ENABLE_CONNECT_PROTOCOL, 1));
            }
        }
    }
    frame::write_head(out, 6 * settings.len(), kind::SETTINGS, 0, 0);
    for (id, value) in settings {
        out.extend_from_slice(&id.to_be_bytes());
        out.extend_from_slice(&value.to_be_bytes());
    }
    let more = i64::from(limits.connection_window_bytes) - WINDOW_DEFAULT;
    if more > 0 {
        frame::write_window_update(out, 0, more as u32);
    }
}

/// Writes a change of the window of each stream.
pub(super) fn write_window(out: &mut Vec<u8>, bytes: u32) {
    frame::write_head(out, 6, kind::SETTINGS, 0, 0);
    out.extend_from_slice(&setting::INITIAL_WINDOW_SIZE.to_be_bytes());
    out.extend_from_slice(&bytes.to_be_bytes());
}

pub(super) fn write_ack(out: &mut Vec<u8>) {
    frame::write_head(out, 0, kind::SETTINGS, flag::ACK, 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_checked() {
        let check = |role, entries: &[(u16, u32)], expect: Result<Theirs, Fault>| {
            let mut payload = Vec::new();
            for (id, value) in entries {
                payload.extend_from_slice(&id.to_be_bytes());
                payload.extend_from_slice(&value.to_be_bytes());
            }
            assert_eq!(Theirs::default().updated(&payload, role), expect, "{entries:?}");
        };
        let (server, client) = (Role::Server, Role::Client);
        let known = Theirs { is_known: true, streams_max: u32::MAX, ..Theirs::default() };
        let bad = || Err(Fault::connection(Reason::Setting));
        check(server, &[], Ok(known));
        check(server, &[(3, 7), (3, 8)], Ok(Theirs { streams_max: 8, ..known }));
        check(server, &[(1, 0), (4, 0)], Ok(Theirs { header_table_bytes: 0, initial_window: 0, ..known }));
        check(server, &[(4, 0x7fff_ffff)], Ok(Theirs { initial_window: WINDOW_MAX, ..known }));
        check(server, &[(4, 0x8000_0000)], Err(Fault::Connection(Reason::Setting, ErrorCode::FLOW_CONTROL_ERROR)));
        check(server, &[(5, 16_384), (5, 0xff_ffff)], Ok(known));
        check(server, &[(5, 16_383)], bad());
        check(server, &[(5, 0x100_0000)], bad());
        check(server, &[(2, 1)], Ok(known));
        check(server, &[(2, 2)], bad());
        check(client, &[(2, 0)], Ok(known));
        check(client, &[(2, 1)], bad());
        check(client, &[(8, 1)], Ok(Theirs { extended_connect: true, ..known }));
        check(client, &[(8, 1), (8, 0)], bad());
        check(client, &[(8, 2)], bad());
        check(server, &[(0xffff, 7)], Ok(known));
        assert_eq!(known.updated(&[0; 5], server), Err(Fault::connection(Reason::FrameSize)));
    }
}
