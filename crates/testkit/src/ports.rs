//! Ports for listeners that another process will open.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::Failure;

/// Below Linux's default `ip_local_port_range` (32768 to 60999): binding port 0 and letting go of it would hand out ports that the kernel may
/// give to the next outgoing connection before the balancer binds them.
const FIRST: u32 = 10_240;
const COUNT: u32 = 22_000;

static NEXT: AtomicU32 = AtomicU32::new(0);

/// A TCP port of 127.0.0.1 that nobody listened on a moment ago. Not given out again by this process until all others were; another
/// process that runs the same tests starts elsewhere.
pub fn free_port() -> Result<u16, Failure> {
    let start = std::process::id().wrapping_mul(997);
    for _ in 0..COUNT {
        let offset = start.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % COUNT;
        let Ok(port) = u16::try_from(FIRST + offset) else { continue };
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return Ok(port);
        }
    }
    Err(Failure(format!("no free port between {FIRST} and {}", FIRST + COUNT)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_differ_and_can_be_bound() {
        let ports: Vec<u16> = (0..20).map(|_| free_port().unwrap()).collect();
        let held: Vec<TcpListener> =
            ports.iter().map(|&port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap()).collect();
        assert_eq!(held.len(), 20);
    }
}
