//! The kernel's counters in the namespaces of a run.

use std::io;

use crate::topology;

/// Counters of one namespace, since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counters {
    /// `Tcp: RetransSegs`.
    pub retransmitted: u64,
    /// `TcpExt: TCPSynRetrans`.
    pub syn_retransmitted: u64,
    /// `TcpExt: ListenOverflows` or `ListenDrops`, whichever is larger: an overflow is also a drop.
    pub listen_drops: u64,
    /// `Tcp: ActiveOpens`.
    pub active_opens: u64,
    /// `Tcp: PassiveOpens`.
    pub passive_opens: u64,
    /// Transmitted by all interfaces but the loopback, headers included; of segments that the link splits, only one header. What a
    /// server sends to the sidecar in its pod is not counted, because the sidecar sends it again.
    pub sent_bytes: u64,
    /// `nf_conntrack_count`, now.
    pub conntrack: u64,
    /// Sockets in TIME_WAIT, now.
    pub time_wait: u64,
}

impl Counters {
    /// The counts since `before`. Values that are states and not counts stay as they are now.
    pub(super) fn since(self, before: Self) -> Self {
        Self {
            retransmitted: self.retransmitted.saturating_sub(before.retransmitted),
            syn_retransmitted: self.syn_retransmitted.saturating_sub(before.syn_retransmitted),
            listen_drops: self.listen_drops.saturating_sub(before.listen_drops),
            active_opens: self.active_opens.saturating_sub(before.active_opens),
            passive_opens: self.passive_opens.saturating_sub(before.passive_opens),
            sent_bytes: self.sent_bytes.saturating_sub(before.sent_bytes),
            ..self
        }
    }

    fn parse(snmp: &str, netstat: &str, sockstat: &str, dev: &str, conntrack: &str) -> Self {
        let of_tcp = |name| pair(snmp, "Tcp:", name);
        let of_tcp_ext = |name| pair(netstat, "TcpExt:", name);
        Self {
            retransmitted: of_tcp("RetransSegs"),
            syn_retransmitted: of_tcp_ext("TCPSynRetrans"),
            listen_drops: of_tcp_ext("ListenOverflows").max(of_tcp_ext("ListenDrops")),
            active_opens: of_tcp("ActiveOpens"),
            passive_opens: of_tcp("PassiveOpens"),
            sent_bytes: transmitted(dev),
            conntrack: conntrack.trim().parse().unwrap_or_default(),
            time_wait: time_wait(sockstat),
        }
    }
}

/// The counters of each namespace; `None` means the namespace of the lab.
pub(super) fn read(namespaces: &[Option<String>]) -> io::Result<Vec<Counters>> {
    let of = |namespace: &Option<String>| match namespace {
        Some(name) => topology::inside(name, of_this_thread),
        None => Ok(of_this_thread()),
    };
    namespaces.iter().map(of).collect()
}

fn of_this_thread() -> Counters {
    let text = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    Counters::parse(
        &text("/proc/thread-self/net/snmp"),
        &text("/proc/thread-self/net/netstat"),
        &text("/proc/thread-self/net/sockstat"),
        &text("/proc/thread-self/net/dev"),
        &text("/proc/sys/net/netfilter/nf_conntrack_count"),
    )
}

/// A value from a file that has a line of names followed by a line of values, both with the same first word.
fn pair(text: &str, group: &str, name: &str) -> u64 {
    let mut lines = text.lines().filter(|line| line.starts_with(group));
    let (Some(names), Some(values)) = (lines.next(), lines.next()) else { return 0 };
    let mut both = names.split_ascii_whitespace().zip(values.split_ascii_whitespace());
    both.find(|(known, _)| *known == name).and_then(|(_, value)| value.parse().ok()).unwrap_or_default()
}

/// `tw` of the line `TCP: inuse 3 orphan 0 tw 12 alloc 5 mem 1`.
fn time_wait(sockstat: &str) -> u64 {
    let line = sockstat.lines().find_map(|line| line.strip_prefix("TCP:"));
    let mut words = line.unwrap_or_default().split_ascii_whitespace();
    words.by_ref().find(|word| *word == "tw");
    words.next().and_then(|word| word.parse().ok()).unwrap_or_default()
}

/// The bytes that all interfaces but the loopback have transmitted: the ninth number of each line such as `eth0: 1 2 ...`.
fn transmitted(dev: &str) -> u64 {
    let interfaces = dev.lines().filter_map(|line| line.split_once(':')).filter(|(name, _)| name.trim() != "lo");
    interfaces.filter_map(|(_, counts)| counts.split_ascii_whitespace().nth(8)?.parse::<u64>().ok()).sum()
}

/// `NET_RX` of `/proc/softirqs`, by CPU number.
pub(super) fn net_rx() -> Vec<u64> {
    let text = std::fs::read_to_string("/proc/softirqs").unwrap_or_default();
    let line = text.lines().find_map(|line| line.trim_start().strip_prefix("NET_RX:").map(str::to_owned));
    line.unwrap_or_default().split_ascii_whitespace().map_while(|word| word.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_of_a_kernel() {
        let snmp = "Ip: Forwarding\nIp: 1\nTcp: ActiveOpens PassiveOpens RetransSegs\nTcp: 11 22 3\n";
        let netstat = "TcpExt: ListenOverflows ListenDrops TCPSynRetrans\nTcpExt: 4 5 1\n";
        let dev = "Inter-|   Receive  |  Transmit\n face |bytes packets|bytes packets\n    lo: 9 1 0 0 0 0 0 0 9 1 0 0 0 0 0 0\n\
                   eth0: 5 1 0 0 0 0 0 0 6900 1 0 0 0 0 0 0\n  net1:77 1 0 0 0 0 0 0 100 1 0 0 0 0 0 0\n";
        let sockstat = "sockets: used 9\nTCP: inuse 3 orphan 0 tw 12 alloc 5 mem 1\n";
        let counters = Counters::parse(snmp, netstat, sockstat, dev, "77\n");
        let expect = Counters {
            retransmitted: 3,
            syn_retransmitted: 1,
            listen_drops: 5,
            active_opens: 11,
            passive_opens: 22,
            sent_bytes: 7000,
            conntrack: 77,
            time_wait: 12,
        };
        assert_eq!(counters, expect);
        assert_eq!(counters.since(counters), Counters { conntrack: 77, time_wait: 12, ..Counters::default() });
        assert_eq!(Counters::parse("", "Tcp:", "TCP: inuse", "eth0: 1", "x"), Counters::default());
    }

    #[test]
    fn this_host_counts_connections() {
        let before = read(&[None]).unwrap()[0];
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let _client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let _server = listener.accept().unwrap();
        let since = read(&[None]).unwrap()[0].since(before);
        assert!(since.active_opens >= 1 && since.passive_opens >= 1, "{since:?}");
    }
}
