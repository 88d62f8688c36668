//! Ports for listeners of other processes.

use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::Failure;

/// Below Linux's default `ip_local_port_range` (32768 to 60999). Ports from binding port 0 and closing the socket would
/// be in that range, and the kernel might give them to the next outgoing connection before the balancer binds them.
const ALL: Range<u16> = 10_240..32_240;

/// The variable with the range of ports that this process may use, such as `10240-17572`. A runner that runs test
/// binaries side by side gives each its own range: a port that is meant to refuse, or that a balancer closes and opens
/// again, must not be used by another one in between.
pub const PORTS: &str = "STEELYARD_TEST_PORTS";

/// The value of [`PORTS`] for process `index` of `count`, counted from 0.
#[must_use]
pub fn share_of_ports(index: u16, count: u16) -> String {
    let count = count.clamp(1, ALL.len() as u16);
    let share = ALL.len() as u16 / count;
    let first = ALL.start + share * index.min(count - 1);
    format!("{first}-{}", first + share - 1)
}

static NEXT: AtomicU32 = AtomicU32::new(0);

/// A TCP port of 127.0.0.1 on which nothing listened a moment ago. This process does not return it again until it has
/// used all others. Another process that runs the same tests starts elsewhere.
pub fn free_port() -> Result<u16, Failure> {
    let range = range()?;
    let start = std::process::id().wrapping_mul(997);
    for _ in range.clone() {
        let offset = start.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        let port = range.start + (offset % range.len() as u32) as u16;
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return Ok(port);
        }
    }
    Err(Failure(format!("no free port between {} and {}", range.start, range.end)))
}

/// The ports of this process.
fn range() -> Result<Range<u16>, Failure> {
    static RANGE: OnceLock<Result<Range<u16>, String>> = OnceLock::new();
    let of_environment = || std::env::var(PORTS).map_or(Ok(ALL), |text| parse(&text));
    RANGE.get_or_init(of_environment).clone().map_err(Failure)
}

fn parse(text: &str) -> Result<Range<u16>, String> {
    let ends = text.split_once('-').and_then(|(first, last)| Some((first.parse().ok()?, last.parse::<u16>().ok()?)));
    match ends {
        Some((first, last)) if ALL.contains(&first) && ALL.contains(&last) && first <= last => Ok(first..last + 1),
        _ => Err(format!(
            "{PORTS}={text}: it must be two ports from {} to {}, such as 10240-17572",
            ALL.start,
            ALL.end - 1
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_differ_and_can_be_bound() {
        let ports: Vec<u16> = (0..20).map(|_| free_port().unwrap()).collect();
        assert!(ports.iter().all(|port| range().unwrap().contains(port)), "{ports:?}");
        let held: Vec<TcpListener> =
            ports.iter().map(|&port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap()).collect();
        assert_eq!(held.len(), 20);
    }

    #[test]
    fn shares_are_read_as_they_are_written_and_do_not_meet() {
        for count in [1, 3, 7] {
            let mut end = ALL.start;
            for index in 0..count {
                let share = parse(&share_of_ports(index, count)).unwrap();
                assert!(share.start == end && share.len() >= ALL.len() / usize::from(count), "{share:?}");
                end = share.end;
            }
            assert!(end <= ALL.end && ALL.end - end < count);
        }
        for text in ["", "x", "10240", "10240-", "17572-10240", "1-2", "10240-40000"] {
            assert!(parse(text).unwrap_err().contains(text), "{text}");
        }
    }
}
