//! The rules of a capture as messages of netlink (`linux/netfilter/nf_tables.h`).
//!
//! All messages of a change are one batch, which the kernel applies completely or not at all.

use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::time::Duration;

use ipnet::IpNet;
use model::Direction;
use netlink_sys::{Socket, SocketAddr};

use super::{Chain, Condition, End, Hook, INBOUND, OUTBOUND, Rule, Rules, TABLE, TABLE_ENDED};

/// `linux/netlink.h` and `linux/netfilter/nfnetlink.h`.
const NETLINK_NETFILTER: isize = 12;
const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 0x1;
const NLM_F_ACK: u16 = 0x4;
const NLM_F_CREATE: u16 = 0x400;
const NLM_F_APPEND: u16 = 0x800;
const NLA_F_NESTED: u16 = 0x8000;
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
const NFNL_SUBSYS_NFTABLES: u16 = 10;
const HEADER_BYTES: usize = 16;

/// Messages of `enum nf_tables_msg_types`.
const NEWTABLE: u16 = 0;
const DELTABLE: u16 = 2;
const NEWCHAIN: u16 = 3;
const NEWRULE: u16 = 6;

const NFPROTO_UNSPEC: u8 = 0;
const NFPROTO_INET: u8 = 1;
const NFPROTO_IPV4: u8 = 2;
const NFPROTO_IPV6: u8 = 10;
const HOOK_PREROUTING: u32 = 0;
const HOOK_OUTPUT: u32 = 3;
const ARPHRD_LOOPBACK: u16 = 772;
const RTN_LOCAL: u32 = 2;
/// The register of 16 bytes that every expression uses, and that of the verdict.
const REGISTER: u32 = 1;
const REGISTER_VERDICT: u32 = 0;
const VERDICT_RETURN: i32 = -5;
const VERDICT_DROP: i32 = 0;
const META_IIFTYPE: u32 = 8;
const META_OIFTYPE: u32 = 9;
const META_SKUID: u32 = 10;
const META_NFPROTO: u32 = 15;
const META_L4PROTO: u32 = 16;
const NETWORK_HEADER: u32 = 1;
const TRANSPORT_HEADER: u32 = 2;
const FIB_RESULT_ADDRTYPE: u32 = 3;
const FIB_DADDR: u32 = 2;
const CT_STATE: u32 = 0;
/// `NF_CT_STATE_INVALID_BIT`, and that of a new connection.
const CT_STATE_INVALID: u32 = 1;
const CT_STATE_NEW: u32 = 8;

/// The kernel applies a batch while it is sent, so the answers are there.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Replaces the table.
pub(super) fn replace(rules: &Rules) -> io::Result<()> {
    let mut batch = Batch::new();
    for table in [TABLE, TABLE_ENDED] {
        // A table must be there to be deleted.
        batch.table(NEWTABLE, NLM_F_CREATE, table);
        batch.table(DELTABLE, 0, table);
    }
    batch.table(NEWTABLE, NLM_F_CREATE, TABLE);
    for (chain, rules) in rules.chains() {
        batch.chain(TABLE, &chain);
        rules.iter().for_each(|rule| batch.rule(chain.name, rule));
    }
    batch.send()
}

/// Deletes the table, and leaves one that captures nothing. Its chains let the kernel go on translating addresses, and its rules let it go on
/// tracking connections.
pub(super) fn end() -> io::Result<()> {
    let mut batch = Batch::new();
    batch.table(NEWTABLE, NLM_F_CREATE, TABLE_ENDED);
    batch.table(DELTABLE, 0, TABLE_ENDED);
    batch.table(NEWTABLE, NLM_F_CREATE, TABLE_ENDED);
    for chain in [INBOUND, OUTBOUND] {
        batch.chain(TABLE_ENDED, &chain);
        batch.expressions(TABLE_ENDED, chain.name, "not captured", |expressions| {
            expressions.ct_state();
            expressions.mask(&CT_STATE_NEW.to_ne_bytes());
            expressions.compare(false, &0_u32.to_ne_bytes());
            expressions.verdict(VERDICT_RETURN);
        });
    }
    batch.table(DELTABLE, 0, TABLE);
    batch.send()
}

/// Deletes a table.
pub(super) fn remove(table: &str) -> io::Result<()> {
    let mut batch = Batch::new();
    batch.table(DELTABLE, 0, table);
    batch.send()
}

/// Messages, each of which the kernel confirms.
struct Batch {
    bytes: Vec<u8>,
    sequence: u32,
}

impl Batch {
    fn new() -> Self {
        let mut batch = Self { bytes: Vec::new(), sequence: 0 };
        batch.message(BATCH_BEGIN, NLM_F_REQUEST, NFPROTO_UNSPEC, NFNL_SUBSYS_NFTABLES, |_| {});
        batch
    }

    /// Adds a message with the attributes that `fill` writes.
    fn message(&mut self, kind: u16, flags: u16, family: u8, resource: u16, fill: impl FnOnce(&mut Attributes<'_>)) {
        let start = self.bytes.len();
        // The length is filled in below.
        self.bytes.extend(0_u32.to_ne_bytes());
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend(flags.to_ne_bytes());
        self.bytes.extend(self.sequence.to_ne_bytes());
        self.bytes.extend(0_u32.to_ne_bytes());
        // `struct nfgenmsg`: family, version, resource.
        self.bytes.extend([family, 0]);
        self.bytes.extend(resource.to_be_bytes());
        fill(&mut Attributes(&mut self.bytes));
        let length = u32::try_from(self.bytes.len() - start).unwrap_or(u32::MAX);
        if let Some(place) = self.bytes.get_mut(start..start + 4) {
            place.copy_from_slice(&length.to_ne_bytes());
        }
        self.sequence += 1;
    }

    fn change(&mut self, kind: u16, flags: u16, fill: impl FnOnce(&mut Attributes<'_>)) {
        let kind = NFNL_SUBSYS_NFTABLES << 8 | kind;
        self.message(kind, NLM_F_REQUEST | NLM_F_ACK | flags, NFPROTO_INET, 0, fill);
    }

    fn table(&mut self, kind: u16, flags: u16, name: &str) {
        self.change(kind, flags, |table| table.text(1, name));
    }

    fn chain(&mut self, table: &str, Chain { name, kind, hook, priority }: &Chain) {
        let hook = match hook {
            Hook::Prerouting => HOOK_PREROUTING,
            Hook::Output => HOOK_OUTPUT,
        };
        self.change(NEWCHAIN, NLM_F_CREATE, |chain| {
            chain.text(1, table);
            chain.text(3, name);
            chain.nested(4, |of_hook| {
                of_hook.number(1, hook);
                of_hook.number(2, priority.cast_unsigned());
            });
            // The policy: accept.
            chain.number(5, 1);
            chain.text(7, kind);
        });
    }

    fn rule(&mut self, chain: &str, rule: &Rule) {
        self.expressions(TABLE, chain, rule.why, |expressions| {
            expressions.meta(META_L4PROTO);
            expressions.compare(true, &[libc::IPPROTO_TCP as u8]);
            rule.conditions.iter().for_each(|condition| expressions.condition(condition));
            match rule.end {
                End::Return => expressions.verdict(VERDICT_RETURN),
                End::Redirect(port) => {
                    expressions.expression("counter", |_| {});
                    expressions.load(&port.to_be_bytes());
                    expressions.expression("redir", |redirect| redirect.number(1, REGISTER));
                }
                End::Drop => {
                    expressions.expression("counter", |_| {});
                    expressions.verdict(VERDICT_DROP);
                }
            }
        });
    }

    /// Adds a rule with a comment.
    fn expressions(&mut self, table: &str, chain: &str, why: &str, fill: impl FnOnce(&mut Attributes<'_>)) {
        self.change(NEWRULE, NLM_F_CREATE | NLM_F_APPEND, |message| {
            message.text(1, table);
            message.text(2, chain);
            message.nested(4, fill);
            // The comment that nft shows: type 0, a length, a text with a zero byte.
            let mut comment = vec![0, u8::try_from(why.len() + 1).unwrap_or(0)];
            comment.extend(why.as_bytes());
            comment.push(0);
            message.bytes(7, &comment);
        });
    }

    /// Sends everything, and waits for the answers.
    fn send(mut self) -> io::Result<()> {
        // The kernel confirms all messages but the first and the last.
        let mut missing = self.sequence - 1;
        self.message(BATCH_END, NLM_F_REQUEST, NFPROTO_UNSPEC, NFNL_SUBSYS_NFTABLES, |_| {});
        let mut socket = Socket::new(NETLINK_NETFILTER)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        socket2::SockRef::from(&socket.as_fd()).set_read_timeout(Some(ANSWER_TIMEOUT))?;
        socket.send(&self.bytes, 0)?;
        while missing > 0 {
            let (datagram, _) = socket.recv_from_full()?;
            let mut rest = datagram.as_slice();
            while let Some(length) = rest.first_chunk::<4>().map(|bytes| u32::from_ne_bytes(*bytes) as usize) {
                let Some(message) = rest.get(..length).filter(|message| message.len() >= HEADER_BYTES + 4) else {
                    break;
                };
                if message.get(4..6) == Some(&NLMSG_ERROR.to_ne_bytes()) {
                    let errno = message.get(HEADER_BYTES..).and_then(|body| body.first_chunk::<4>());
                    match errno.map_or(0, |errno| i32::from_ne_bytes(*errno)) {
                        0 => missing = missing.saturating_sub(1),
                        errno => return Err(io::Error::from_raw_os_error(-errno)),
                    }
                }
                rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
            }
        }
        Ok(())
    }
}

/// Attributes of a message, or those within another one. All numbers are in network byte order, unless they are data to compare.
struct Attributes<'b>(&'b mut Vec<u8>);

impl Attributes<'_> {
    fn bytes(&mut self, kind: u16, value: &[u8]) {
        let length = u16::try_from(4 + value.len()).unwrap_or(u16::MAX);
        self.0.extend(length.to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }

    fn text(&mut self, kind: u16, value: &str) {
        let mut bytes = value.as_bytes().to_vec();
        bytes.push(0);
        self.bytes(kind, &bytes);
    }

    fn number(&mut self, kind: u16, value: u32) {
        self.bytes(kind, &value.to_be_bytes());
    }

    fn nested(&mut self, kind: u16, fill: impl FnOnce(&mut Attributes<'_>)) {
        let mut inner = Vec::new();
        fill(&mut Attributes(&mut inner));
        self.bytes(kind | NLA_F_NESTED, &inner);
    }

    fn expression(&mut self, name: &str, fill: impl FnOnce(&mut Attributes<'_>)) {
        self.nested(1, |expression| {
            expression.text(1, name);
            expression.nested(2, fill);
        });
    }

    fn meta(&mut self, key: u32) {
        self.expression("meta", |meta| {
            meta.number(1, REGISTER);
            meta.number(2, key);
        });
    }

    fn payload(&mut self, base: u32, offset: u32, length: u32) {
        self.expression("payload", |payload| {
            payload.number(1, REGISTER);
            payload.number(2, base);
            payload.number(3, offset);
            payload.number(4, length);
        });
    }

    fn ct_state(&mut self) {
        self.expression("ct", |ct| {
            ct.number(1, REGISTER);
            ct.number(2, CT_STATE);
        });
    }

    /// Loads the byte with the flags of TCP: FIN 1, SYN 2, RST 4, ACK 16.
    fn flags(&mut self, mask: u8) {
        self.payload(TRANSPORT_HEADER, 13, 1);
        self.mask(&[mask]);
    }

    fn compare(&mut self, is_equal: bool, value: &[u8]) {
        self.expression("cmp", |compare| {
            compare.number(1, REGISTER);
            compare.number(2, u32::from(!is_equal));
            compare.nested(3, |data| data.bytes(1, value));
        });
    }

    fn mask(&mut self, value: &[u8]) {
        self.expression("bitwise", |bitwise| {
            bitwise.number(1, REGISTER);
            bitwise.number(2, REGISTER);
            bitwise.number(3, value.len() as u32);
            bitwise.nested(4, |mask| mask.bytes(1, value));
            bitwise.nested(5, |xor| xor.bytes(1, &vec![0; value.len()]));
        });
    }

    fn load(&mut self, value: &[u8]) {
        self.expression("immediate", |immediate| {
            immediate.number(1, REGISTER);
            immediate.nested(2, |data| data.bytes(1, value));
        });
    }

    fn verdict(&mut self, code: i32) {
        self.expression("immediate", |immediate| {
            immediate.number(1, REGISTER_VERDICT);
            immediate.nested(2, |data| data.nested(2, |verdict| verdict.number(1, code.cast_unsigned())));
        });
    }

    fn condition(&mut self, condition: &Condition) {
        match condition {
            Condition::Loopback(direction) => {
                self.meta(if *direction == Direction::Inbound { META_IIFTYPE } else { META_OIFTYPE });
                self.compare(true, &ARPHRD_LOOPBACK.to_ne_bytes());
            }
            Condition::Local(is_local) => {
                self.expression("fib", |fib| {
                    fib.number(1, REGISTER);
                    fib.number(2, FIB_RESULT_ADDRTYPE);
                    fib.number(3, FIB_DADDR);
                });
                self.compare(*is_local, &RTN_LOCAL.to_ne_bytes());
            }
            Condition::Midway => {
                self.flags(0x17);
                self.compare(false, &[2]);
            }
            Condition::Valid => {
                self.ct_state();
                self.compare(false, &CT_STATE_INVALID.to_ne_bytes());
            }
            Condition::Reset | Condition::ResetOrEnd => {
                self.flags(if *condition == Condition::Reset { 4 } else { 5 });
                self.compare(false, &[0]);
            }
            // The offsets are those of the addresses in the headers of IPv4 and IPv6.
            Condition::From(network) => self.network(network, 12, 8),
            Condition::To(network) => self.network(network, 16, 24),
            Condition::Port(port) => {
                self.payload(TRANSPORT_HEADER, 2, 2);
                self.compare(true, &port.to_be_bytes());
            }
            Condition::SourcePort(port) => {
                self.payload(TRANSPORT_HEADER, 0, 2);
                self.compare(true, &port.to_be_bytes());
            }
            Condition::User(user) => {
                self.meta(META_SKUID);
                self.compare(true, &user.to_ne_bytes());
            }
        }
    }

    fn network(&mut self, network: &IpNet, offset_v4: u32, offset_v6: u32) {
        let octets = |address: IpAddr| match address {
            IpAddr::V4(address) => address.octets().to_vec(),
            IpAddr::V6(address) => address.octets().to_vec(),
        };
        let (protocol, offset, length) = match network {
            IpNet::V4(_) => (NFPROTO_IPV4, offset_v4, 4),
            IpNet::V6(_) => (NFPROTO_IPV6, offset_v6, 16),
        };
        self.meta(META_NFPROTO);
        self.compare(true, &[protocol]);
        self.payload(NETWORK_HEADER, offset, length);
        if network.prefix_len() < network.max_prefix_len() {
            self.mask(&octets(network.netmask()));
        }
        self.compare(true, &octets(network.trunc().addr()));
    }
}
