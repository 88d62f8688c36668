//! Allows cubic in namespaces on hosts that do not allow it there.
//!
//! A namespace may only choose among the congestion controls that the host allows. A host whose default is BBR may not allow cubic,
//! although it has it. So the host's list is extended while a topology exists, and restored afterwards.

use std::sync::{Mutex, PoisonError};

const ALLOWED: &str = "/proc/sys/net/ipv4/tcp_allowed_congestion_control";

/// The number of topologies in this process, and the list before the first.
static STANDING: Mutex<(u32, Option<String>)> = Mutex::new((0, None));

/// Cubic is allowed while this value exists.
#[derive(Debug)]
pub(super) struct Allowed(());

impl Allowed {
    pub(super) fn new() -> Self {
        let mut standing = STANDING.lock().unwrap_or_else(PoisonError::into_inner);
        if standing.0 == 0 {
            let before = std::fs::read_to_string(ALLOWED).unwrap_or_default();
            let has_cubic = before.split_whitespace().any(|name| name == "cubic");
            // If this is refused, the namespaces keep their setting, and their record shows it.
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
            // It was written to before. If that fails now, a longer list does no harm.
            let _ = std::fs::write(ALLOWED, before.trim());
        }
    }
}
