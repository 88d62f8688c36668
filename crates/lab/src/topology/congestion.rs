//! Cubic for namespaces, on hosts that do not allow it there.
//!
//! A namespace may only choose among the congestion controls that the host lists as allowed, and one whose default is BBR may not list cubic,
//! though it has it. So the host's list is made longer while a topology stands, and is as it was afterwards.

use std::sync::{Mutex, PoisonError};

const ALLOWED: &str = "/proc/sys/net/ipv4/tcp_allowed_congestion_control";

/// How many topologies of this process stand, and the list as it was before the first.
static STANDING: Mutex<(u32, Option<String>)> = Mutex::new((0, None));

/// Cubic is allowed while this lives.
#[derive(Debug)]
pub(super) struct Allowed(());

impl Allowed {
    pub(super) fn new() -> Self {
        let mut standing = STANDING.lock().unwrap_or_else(PoisonError::into_inner);
        if standing.0 == 0 {
            let before = std::fs::read_to_string(ALLOWED).unwrap_or_default();
            let has_cubic = before.split_whitespace().any(|name| name == "cubic");
            // Where it is refused, the namespaces keep what they have, and the record of their settings says so.
            if !has_cubic && std::fs::write(ALLOWED, format!("{} cubic", before.trim())).is_ok() {
                standing.1 = Some(before);
            }
        }
        standing.0 += 1;
        Self(())
    }
}

impl Drop for Allowed {
    fn drop(&mut self) {
        let mut standing = STANDING.lock().unwrap_or_else(PoisonError::into_inner);
        standing.0 -= 1;
        if standing.0 == 0
            && let Some(before) = standing.1.take()
        {
            // It was written to before; if it no longer can be, a longer list does no harm.
            let _ = std::fs::write(ALLOWED, before.trim());
        }
    }
}
