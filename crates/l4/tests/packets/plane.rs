//! The loaded programs, in their own network: interfaces of a client and three endpoints, with routes and nothing behind them. Packets go
//! through BPF_PROG_TEST_RUN: the kernel returns the program's result and the packet after it, and sends nothing.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};

use libbpf_rs::libbpf_sys::bpf_map_create_opts;
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapImpl, MapType, Object, ObjectBuilder, ProgramInput, ProgramMut};
use testkit::netns::Netns;
use testkit::packet::Packet;

use super::layout::{self, Flow, Writer, algorithm, mode, state};

/// The interfaces, in the order of their indexes.
pub const CLIENT: &str = "client0";
pub const ENDPOINT: [&str; 3] = ["ep0", "ep1", "ep2"];

/// Every interface has the link-layer address that `Packet` sends to.
const NETWORK: &str = "link add client0 address 02:00:00:00:00:02 type veth peer name client0p
    link add ep0 address 02:00:00:00:00:02 type veth peer name ep0p
    link add ep1 address 02:00:00:00:00:02 type veth peer name ep1p
    link add ep2 address 02:00:00:00:00:02 type veth peer name ep2p
    addr add 10.10.10.254/24 dev client0
    addr add 31.31.255.254/16 dev ep0
    addr add 32.32.32.254/24 dev ep1
    addr add 33.33.33.254/24 dev ep2
    addr add fd00:10::fe/64 dev client0 nodad
    addr add fd00:31::fe/64 dev ep0 nodad
    addr add fd00:32::fe/64 dev ep1 nodad
    addr add fd00:33::fe/64 dev ep2 nodad
    link set client0 up
    route add 10.0.0.0/8 via 10.10.10.253
    link set client0p up
    link set ep0 up
    link set ep0p up
    link set ep1 up
    link set ep1p up
    link set ep2 up
    link set ep2p up
    neigh add 32.32.32.1 lladdr 02:00:00:00:00:03 dev ep1
    neigh add 32.32.32.2 lladdr 02:00:00:00:00:04 dev ep1
    neigh add fd00:32::1 lladdr 02:00:00:00:00:03 dev ep1";

/// The link-layer address of the other end of the second endpoint's veth. Its neighbours 32.32.32.1 and fd00:32::1 have it.
pub const PEER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 3];

/// `LB_GC_KEYS_MAX`.
const GC_KEYS_MAX: usize = 256;

/// Entries of `lb_flows` in a test that does not choose a size.
const FLOWS_MAX: u32 = 4096;

/// The program's result for the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// TCX_NEXT: the next program or the stack continues.
    Next,
    /// TC_ACT_SHOT.
    Drop,
    /// TC_ACT_REDIRECT.
    Redirect,
}

/// The outcome of a packet.
#[derive(Debug)]
pub struct Sent {
    pub action: Action,
    pub frame: Vec<u8>,
}

impl Sent {
    /// Checks that it was redirected and now equals `expect`, apart from link-layer addresses, which TEST_RUN does not change.
    #[track_caller]
    pub fn forwarded(self, expect: &Packet) {
        assert_eq!(self.action, Action::Redirect, "{}", Packet::describe(&self.frame));
        let found = Packet::read(&self.frame).unwrap().right();
        let macs = (found.source_mac, found.destination_mac);
        let expect = expect.clone().macs(macs.0, macs.1);
        assert_eq!(found, expect, "\n found {found}\nexpect {expect}");
    }

    /// Checks that it was sent back to where it came from, and now equals `expect`.
    #[track_caller]
    pub fn answered(self, expect: &Packet) {
        assert_eq!(self.action, Action::Redirect, "{}", Packet::describe(&self.frame));
        let found = Packet::read(&self.frame).unwrap().right();
        assert_eq!(&found, expect, "\n found {found}\nexpect {expect}");
    }

    /// Checks that it goes on to the host's own stack, or on its way from there, and now equals `expect`.
    #[track_caller]
    pub fn passed(self, expect: &Packet) {
        assert_eq!(self.action, Action::Next, "{}", Packet::describe(&self.frame));
        let found = Packet::read(&self.frame).unwrap().right();
        assert_eq!(&found, expect, "\n found {found}\nexpect {expect}");
    }

    /// Checks that it goes on unchanged.
    #[track_caller]
    pub fn untouched(self, packet: &[u8]) {
        assert_eq!((self.action, &*self.frame), (Action::Next, packet), "{}", Packet::describe(&self.frame));
    }

    #[track_caller]
    pub fn dropped(self) {
        assert_eq!(self.action, Action::Drop, "{}", Packet::describe(&self.frame));
    }
}

/// The description of a vip.
#[derive(Clone)]
pub struct Vip {
    pub index: u32,
    pub address: IpAddr,
    /// The first and the last port.
    pub ports: (u16, u16),
    pub proto: u8,
    pub mode: u8,
    /// `enum lb_tunnel`.
    pub tunnel: u8,
    pub algorithm: u8,
    pub flags: u8,
    pub affinity_s: u32,
    /// The permitted silence: after the first packet, established, after the end.
    pub times_s: [u32; 3],
    /// Per second, and at once.
    pub rate: (u32, u32),
    /// With their weights.
    pub endpoints: Vec<(SocketAddr, u32)>,
    /// full_nat: source addresses and ports.
    pub pool: (Vec<IpAddr>, u16, u16),
}

impl Vip {
    /// At an address with a port; round robin and nat.
    #[track_caller]
    pub fn new(index: u32, proto: u8, at: &str, endpoints: &[&str]) -> Self {
        let at: SocketAddr = at.parse().unwrap();
        Self {
            index,
            address: at.ip(),
            ports: (at.port(), at.port()),
            proto,
            mode: mode::NAT,
            tunnel: 0,
            algorithm: algorithm::ROUND_ROBIN,
            flags: 0,
            affinity_s: 0,
            times_s: [20, 3600, 2],
            rate: (0, 0),
            endpoints: endpoints.iter().map(|endpoint| (endpoint.parse().unwrap(), 1)).collect(),
            pool: (Vec::new(), 1024, 32767),
        }
    }
}

/// The programs and their maps.
pub struct Plane {
    object: Object,
    /// The index that the next vip's first endpoint gets.
    endpoint_next: u32,
    interfaces: BTreeMap<&'static str, u32>,
}

/// Runs a test against its own plane. This needs root: without it the test prints that it was skipped; a run as root fails if the test was
/// skipped.
pub fn with_plane(name: &str, test: impl FnOnce(&mut Plane) + Send) {
    with_plane_of(name, FLOWS_MAX, test);
}

/// The same with a table of this size.
pub fn with_plane_of(name: &str, flows_max: u32, test: impl FnOnce(&mut Plane) + Send) {
    if !is_root() {
        _ = writeln!(std::io::stderr(), "SKIP {name}: BPF programs are root's");
        return;
    }
    let netns = Netns::new(name).unwrap();
    netns.ip(NETWORK).unwrap();
    netns.forward().unwrap();
    netns.inside(|| {
        let interfaces = std::iter::once(CLIENT).chain(ENDPOINT).map(|name| (name, ifindex(name))).collect();
        let mut plane = Plane { object: load(flows_max), endpoint_next: 0, interfaces };
        for name in plane.interfaces.keys() {
            // The other end of the second endpoint's veth is in another namespace.
            let flags = u32::from(*name == ENDPOINT[1]);
            plane.set_interface(name, flags);
        }
        // Each CPU has its own cursor.
        on_cpu(0);
        // However long the test takes, user space counts as alive.
        plane.collected(monotonic_s() + 3600);
        test(&mut plane);
    });
}

/// The clock that stamps flows (`bpf_ktime_get_coarse_ns`), which /proc/uptime also begins with the boot.
pub fn monotonic_s() -> u32 {
    let uptime = std::fs::read_to_string("/proc/uptime").unwrap();
    uptime.split('.').next().and_then(|seconds| seconds.parse().ok()).unwrap()
}

/// Runs the rest of this thread on one CPU. False: there is no such CPU.
pub fn on_cpu(cpu: usize) -> bool {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set).is_ok()
}

fn is_root() -> bool {
    std::fs::read_to_string("/proc/self/status").unwrap().lines().any(|line| line.starts_with("Uid:\t0\t"))
}

fn load(flows_max: u32) -> Object {
    let mut open = ObjectBuilder::default().open_file(env!("LB_OBJECT")).unwrap();
    for mut map in open.maps_mut() {
        if map.name() == "lb_flows" {
            map.set_max_entries(flows_max).unwrap();
        }
    }
    open.load().unwrap()
}

/// The index of an interface in this thread's namespace.
pub fn ifindex(name: &str) -> u32 {
    let output = std::process::Command::new("ip").args(["-o", "link", "show", "dev", name]).output().unwrap();
    let line = String::from_utf8(output.stdout).unwrap();
    line.split(':').next().and_then(|index| index.parse().ok()).unwrap_or_else(|| panic!("no interface {name}: {line}"))
}

impl Plane {
    fn map(&self, name: &str) -> MapImpl<'_> {
        self.object.maps().find(|map| map.name() == name).unwrap_or_else(|| panic!("no map {name}"))
    }

    pub fn program(&self, name: &str) -> ProgramMut<'_> {
        self.object.progs_mut().find(|program| program.name() == name).unwrap_or_else(|| panic!("no program {name}"))
    }

    pub fn put(&self, map: &str, key: &[u8], value: &[u8]) {
        self.map(map).update(key, value, MapFlags::ANY).unwrap_or_else(|error| panic!("{map}: {error}"));
    }

    pub fn look(&self, map: &str, key: &[u8]) -> Option<Vec<u8>> {
        self.map(map).lookup(key, MapFlags::ANY).unwrap()
    }

    pub fn delete(&self, map: &str, key: &[u8]) {
        self.map(map).delete(key).unwrap_or_else(|error| panic!("{map}: {error}"));
    }

    /// What the kernel reports about a program besides its name, one item per line.
    pub fn program_info(&self, name: &str) -> String {
        let fd = self.program(name).as_fd().as_raw_fd();
        std::fs::read_to_string(format!("/proc/thread-self/fdinfo/{fd}")).unwrap()
    }

    /// All entries.
    pub fn entries(&self, map: &str) -> Vec<(Vec<u8>, Vec<u8>)> {
        let map = self.map(map);
        let value = |key: &[u8]| match map.lookup(key, MapFlags::ANY) {
            Ok(value) => value,
            Err(_) => Some(map.lookup_percpu(key, MapFlags::ANY).ok()??.concat()),
        };
        map.keys().filter_map(|key| Some((key.clone(), value(&key)?))).collect()
    }

    /// Adds a vip with its endpoints, and returns the index of the first of them.
    pub fn add(&mut self, vip: &Vip) -> u32 {
        let first = self.endpoint_next;
        self.endpoint_next += vip.endpoints.len() as u32;
        let mut table = Vec::new();
        for (offset, (at, weight)) in (0..).zip(&vip.endpoints) {
            let endpoint = Writer::default().address(at.ip()).u32(vip.index).u32(*weight).port(at.port());
            self.put("lb_endpoints", &(first + offset).to_ne_bytes(), &endpoint.u8(state::ACTIVE).u8(0).0);
            table.extend((0..*weight).map(|_| first + offset));
        }
        self.table(vip.index, &table);
        let pool = vip.pool.0.iter().fold(Writer::default(), |writer, address| writer.address(*address));
        let mut pool = pool.0;
        pool.resize(8 * 16, 0);
        let pool = Writer(pool).u32(vip.pool.0.len() as u32).u16(vip.pool.1).u16(vip.pool.2);
        self.put("lb_pools", &vip.index.to_ne_bytes(), &pool.0);
        self.set_vip(vip, table.len() as u32);
        let (first_port, last_port) = vip.ports;
        let mut address = Writer::default();
        if first_port == last_port {
            let key = Writer::default().address(vip.address).port(first_port).u8(vip.proto).u8(0);
            self.put("lb_vip_ids", &key.0, &vip.index.to_ne_bytes());
            address = address.u32(0).u32(1);
        } else {
            address = address.u32(1).u32(1).u16(first_port).u16(last_port).u32(vip.index).u8(vip.proto).u8(0).u16(0);
        }
        address.0.resize(8 + 8 * 12, 0);
        self.put("lb_addresses", &Writer::default().address(vip.address).0, &address.0);
        first
    }

    /// Writes the flags of an interface, `LB_INTERFACE_*`.
    pub fn set_interface(&self, name: &str, flags: u32) {
        let mut value = Writer::default().u32(1500).u32(flags).0;
        value.extend(PEER_MAC);
        value.extend([0; 2]);
        self.put("lb_interfaces", &self.interfaces[name].to_ne_bytes(), &value);
    }

    /// Replaces the flags of a vip's address.
    pub fn set_address(&self, address: &str, flags: u32) {
        let key = Writer::default().address(address.parse().unwrap()).0;
        let mut value = self.look("lb_addresses", &key).unwrap();
        value[4..8].copy_from_slice(&flags.to_ne_bytes());
        self.put("lb_addresses", &key, &value);
    }

    /// Replaces a vip's properties.
    pub fn set_vip(&self, vip: &Vip, slots: u32) {
        let [syn_s, idle_s, closing_s] = vip.times_s;
        let value = Writer::default().u32(slots).u32(vip.affinity_s).u32(syn_s).u32(idle_s).u32(closing_s);
        let value = value.u32(vip.rate.0).u32(vip.rate.1).u8(vip.mode).u8(vip.algorithm).u8(vip.flags).u8(vip.tunnel);
        self.put("lb_vips", &vip.index.to_ne_bytes(), &value.0);
    }

    /// Gives a vip its table.
    pub fn table(&self, vip: u32, endpoints: &[u32]) {
        let options = bpf_map_create_opts {
            sz: size_of::<bpf_map_create_opts>() as _,
            map_flags: 1 << 12, // BPF_F_INNER_MAP
            ..Default::default()
        };
        let slots = endpoints.len().max(1) as u32;
        let table = MapHandle::create(MapType::Array, Some("lb_table"), 4, 4, slots, &options).unwrap();
        for (slot, endpoint) in (0u32..).zip(endpoints) {
            table.update(&slot.to_ne_bytes(), &endpoint.to_ne_bytes(), MapFlags::ANY).unwrap();
        }
        self.put("lb_tables", &vip.to_ne_bytes(), &table.as_fd().as_raw_fd().to_ne_bytes());
    }

    /// `state::*`.
    pub fn set_state(&self, endpoint: u32, state: u8) {
        let mut value = self.look("lb_endpoints", &endpoint.to_ne_bytes()).unwrap();
        value[26] = state;
        self.put("lb_endpoints", &endpoint.to_ne_bytes(), &value);
    }

    /// The only address of its vip's pool from which an endpoint is contacted, counted from 1.
    pub fn set_source(&self, endpoint: u32, source: u8) {
        let mut value = self.look("lb_endpoints", &endpoint.to_ne_bytes()).unwrap();
        value[27] = source;
        self.put("lb_endpoints", &endpoint.to_ne_bytes(), &value);
    }

    /// Runs `ip` in the plane's namespace.
    pub fn run_ip(&self, words: &str) {
        let output = std::process::Command::new("ip").args(words.split(' ')).output().unwrap();
        assert!(output.status.success(), "{words}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// The outcome of a packet that arrives on an interface.
    pub fn send(&self, interface: &str, packet: &Packet) -> Sent {
        self.send_bytes(interface, &packet.build())
    }

    /// The outcome of a packet that this host sends by an interface.
    pub fn leave(&self, interface: &str, packet: &Packet) -> Sent {
        self.run("lb_out", interface, &packet.build(), 0)
    }

    /// The same for bytes.
    pub fn send_bytes(&self, interface: &str, frame: &[u8]) -> Sent {
        self.run("lb_in", interface, frame, 0)
    }

    /// The same for a packet of many segments of `gso_size` bytes each.
    pub fn send_segments(&self, interface: &str, packet: &Packet, gso_size: u32) -> Sent {
        self.run("lb_in", interface, &packet.build(), gso_size)
    }

    /// struct __sk_buff, of which the kernel uses `ifindex` and `gso_size`.
    pub fn context(&self, interface: &str, gso_size: u32) -> [u8; 192] {
        let mut context = [0u8; 192];
        context[40..44].copy_from_slice(&self.interfaces[interface].to_ne_bytes());
        context[176..180].copy_from_slice(&gso_size.to_ne_bytes());
        context
    }

    /// Runs a program on a packet.
    pub fn run(&self, program: &str, interface: &str, frame: &[u8], gso_size: u32) -> Sent {
        let mut context = self.context(interface, gso_size);
        let mut out = vec![0u8; frame.len() + 256];
        let program = self.program(program);
        let input = ProgramInput {
            context_in: Some(&mut context),
            data_in: Some(frame),
            data_out: Some(&mut out),
            ..Default::default()
        };
        let output = program.test_run(input).unwrap();
        let action = match output.return_value as i32 {
            -1 => Action::Next,
            2 => Action::Drop,
            7 => Action::Redirect,
            other => panic!("the program returned {other}"),
        };
        Sent { action, frame: output.data.unwrap_or_default().to_vec() }
    }

    /// The entry of a direction.
    pub fn flow(&self, from: &str, to: &str, proto: u8) -> Option<Flow> {
        self.look("lb_flows", &layout::flow_key(from.parse().unwrap(), to.parse().unwrap(), proto))
            .map(|value| Flow::read(&value))
    }

    /// Entries of the table.
    pub fn flow_count(&self) -> usize {
        self.entries("lb_flows").len()
    }

    /// Makes every flow look as if it had been silent for this long.
    pub fn age(&self, seconds: u32) {
        for (key, mut value) in self.entries("lb_flows") {
            let touched = layout::u32_at(&value, layout::TOUCHED_AT).wrapping_sub(seconds);
            value[layout::TOUCHED_AT..layout::TOUCHED_AT + 4].copy_from_slice(&touched.to_ne_bytes());
            self.put("lb_flows", &key, &value);
        }
    }

    /// Makes every tuple that rests look as if it had been closed this much earlier.
    pub fn age_rests(&self, seconds: u32) {
        let map = self.map("lb_rests");
        for (slot, closed_s) in map.lookup_batch(65_536, MapFlags::ANY, MapFlags::ANY).unwrap() {
            let closed_s = layout::u32_at(&closed_s, 0);
            if closed_s > 0 {
                self.put("lb_rests", &slot, &closed_s.saturating_sub(seconds).max(1).to_ne_bytes());
            }
        }
    }

    /// One collection over all entries: returns the number of entries, of expired flows, and of flows that were closed. Ends all idle
    /// connections.
    pub fn collect(&self) -> (u32, u32, u32) {
        self.collect_ending(GC_KEYS_MAX as u32)
    }

    /// The same, but ends at most this many idle connections.
    pub fn collect_ending(&self, ends_max: u32) -> (u32, u32, u32) {
        let entries = self.entries("lb_flows");
        assert!(entries.len() <= GC_KEYS_MAX, "more entries than one run handles");
        for (index, (key, _)) in (0u32..).zip(&entries) {
            self.put("lb_gc_keys", &index.to_ne_bytes(), key);
        }
        let mut context = [0u8; 28];
        context[..4].copy_from_slice(&(entries.len() as u32).to_ne_bytes());
        context[20..24].copy_from_slice(&ends_max.to_ne_bytes());
        let program = self.program("lb_gc");
        let input = ProgramInput { context_in: Some(&mut context), ..Default::default() };
        let output = program.test_run(input).unwrap();
        assert_eq!(output.return_value, 0);
        let [expired, closed, removed] = [8, 12, 16].map(|at| layout::u32_at(&context, at));
        assert_eq!(removed as usize, entries.len() - self.flow_count());
        (entries.len() as u32, expired, closed)
    }

    /// Sets whether the table is so full that flows that are not established expire sooner.
    pub fn press(&self, pressure: bool) {
        let shared = Writer::default().u32(0).u32(u32::from(pressure)).u32(monotonic_s() + 3600).u32(0);
        self.put("lb_shared", &0u32.to_ne_bytes(), &shared.0);
    }

    /// Sets when user space collected last, by the clock that stamps flows.
    pub fn collected(&self, at_s: u32) {
        let shared = Writer::default().u32(0).u32(0).u32(at_s).u32(0);
        self.put("lb_shared", &0u32.to_ne_bytes(), &shared.0);
    }

    /// How many turns of a vip each CPU has had.
    pub fn cursors(&self, vip: u32) -> Vec<u32> {
        let values = self.map("lb_cursors").lookup_percpu(&vip.to_ne_bytes(), MapFlags::ANY).unwrap().unwrap();
        values.iter().map(|value| layout::u32_at(value, 0)).collect()
    }

    /// The clock that stamps flows, as the last packets saw it.
    pub fn now_s(&self) -> u32 {
        let touched = |(_, value): (Vec<u8>, Vec<u8>)| layout::u32_at(&value, layout::TOUCHED_AT);
        self.entries("lb_flows").into_iter().map(touched).max().expect("a flow")
    }

    /// The number of flows that count as active for an endpoint.
    pub fn active(&self, endpoint: u32) -> u32 {
        layout::u32_at(&self.look("lb_active", &endpoint.to_ne_bytes()).unwrap(), 0)
    }

    /// How often packets were not forwarded, by vip and reason. Vip 8192 stands for none.
    pub fn drops(&self) -> BTreeMap<(u32, u32), u64> {
        let map = self.map("lb_drops");
        let counts = map.keys().map(|key| {
            let index = layout::u32_at(&key, 0);
            ((index / 64, index % 64), sum(&map.lookup_percpu(&key, MapFlags::ANY).unwrap().unwrap(), 0))
        });
        counts.filter(|(_, count)| *count > 0).collect()
    }

    /// Checks that exactly these reasons were counted, once each, for vip 0.
    #[track_caller]
    pub fn assert_drops(&self, expect: &[u32]) {
        let mut counted = BTreeMap::new();
        for reason in expect {
            *counted.entry((0, *reason)).or_insert(0) += 1;
        }
        assert_eq!(self.drops(), counted);
    }

    /// The counters of an endpoint: packets to it and from it, bytes to it and from it, flows.
    pub fn counters(&self, endpoint: u32) -> [u64; 5] {
        let values = self.map("lb_counters").lookup_percpu(&endpoint.to_ne_bytes(), MapFlags::ANY).unwrap().unwrap();
        std::array::from_fn(|field| sum(&values, field * 8))
    }
}

fn sum(values: &[Vec<u8>], at: usize) -> u64 {
    values.iter().map(|value| u64::from_ne_bytes(value[at..at + 8].try_into().unwrap())).sum()
}
