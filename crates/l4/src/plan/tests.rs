//! Plans from vips, verdicts and the previous content.

use model::{PortRange, SourceRate};

use super::*;

fn vip(name: &str, address: &str, ports: (u16, u16), endpoints: &[(&str, u32)]) -> Vip {
    let endpoint = |(address, weight): &(&str, u32)| Endpoint {
        address: EndpointAddress::Socket(address.parse().unwrap()),
        weight: *weight,
        priority: 0,
        zone: model::Zone::Unknown,
        host: None,
    };
    let ports = PortRange { first: ports.0, last: ports.1 };
    Vip {
        interfaces: vec!["eth0".to_owned()],
        endpoints: endpoints.iter().map(endpoint).collect(),
        ..Vip::new(name, address.parse().unwrap(), ports, Transport::Tcp)
    }
}

const TWO: &[(&str, u32)] = &[("10.1.0.2:80", 1), ("10.1.1.2:80", 2)];

fn all_active(_: &str, _: &Endpoint) -> EndpointVerdict {
    EndpointVerdict::Active
}

fn make(vips: &[Vip], held: &Content) -> Plan {
    plan(
        vips,
        &all_active,
        held,
        &Plan::default(),
        &BTreeSet::new(),
        &Sources { ports: (1024, 32_767), ..Sources::default() },
    )
    .unwrap()
}

/// Indexes of the endpoints of the only vip, in the configured order.
fn indexes(plan: &Plan) -> Vec<u32> {
    plan.vips.values().next().unwrap().endpoints.values().copied().collect()
}

fn states(plan: &Plan) -> Vec<u32> {
    plan.content.endpoints.values().map(|endpoint| u32::from(endpoint.state)).collect()
}

#[test]
fn a_vip_from_nothing() {
    let plan = make(&[vip("web", "20.0.0.1", (80, 80), TWO)], &Content::default());
    assert_eq!(plan.content.tables, BTreeMap::from([(0, vec![0, 1, 1])]));
    assert_eq!(states(&plan), [LB_ENDPOINT_ACTIVE; 2]);
    let written = plan.content.vips[&0];
    assert_eq!(
        (written.table_slots, written.idle_s, written.closing_s, written.flags),
        (3, 3600, 2, LB_VIP_SOCKETS as u8)
    );
    assert_eq!(u32::from(written.mode), LB_MODE_NAT);
    let (key, id) = plan.content.vip_ids.first_key_value().unwrap();
    assert_eq!(
        (address_of(key.addr).to_string().as_str(), u16::from_be(key.port), key.proto, *id),
        ("20.0.0.1", 80, TCP, 0)
    );
    let address = plan.content.addresses.values().next().unwrap();
    assert_eq!((address.range_count, address.flags), (0, LB_ADDRESS_ECHO));
    assert!(plan.leaving.is_empty() && plan.content.sources.is_empty() && plan.content.pools.is_empty());
}

#[test]
fn the_same_again_is_the_same() {
    let vips = [vip("web", "20.0.0.1", (80, 80), TWO), vip("dns", "20.0.0.2", (53, 60), TWO)];
    let first = make(&vips, &Content::default());
    assert_eq!(make(&vips, &first.content), first);
    let turned: Vec<Vip> = vips.iter().rev().cloned().collect();
    assert_eq!(make(&turned, &first.content).content, first.content);
}

#[test]
fn indexes_stay_through_change() {
    let before = make(&[vip("web", "20.0.0.1", (80, 80), TWO)], &Content::default());
    let check = |endpoints: &[(&str, u32)], expect: &[u32]| {
        let after = make(&[vip("renamed", "20.0.0.1", (80, 80), endpoints)], &before.content);
        assert_eq!(after.vips.keys().collect::<Vec<_>>(), [&0]);
        assert_eq!(indexes(&after), expect, "{endpoints:?}");
    };
    check(&[("10.1.1.2:80", 7), ("10.1.0.2:80", 1)], &[0, 1]);
    check(&[("10.1.1.2:80", 1), ("10.1.3.2:80", 1)], &[1, 2]);
    // Another port is another endpoint.
    check(&[("10.1.0.2:81", 1), ("10.1.1.2:80", 1)], &[2, 1]);
    check(&[], &[]);
}

#[test]
fn a_range_that_grows_is_the_same_vip() {
    let before = make(&[vip("ftp", "20.0.0.1", (8000, 8100), TWO)], &Content::default());
    let after =
        make(&[vip("other", "20.0.0.9", (1, 1), TWO), vip("ftp", "20.0.0.1", (8000, 8200), TWO)], &before.content);
    assert_eq!(after.vips[&0].name, "ftp");
    assert_eq!(after.vips[&1].name, "other");
    let key = lb_address_key { addr: words_of("20.0.0.1".parse().unwrap()) };
    let range = after.content.addresses[&key].ranges[0];
    assert_eq!((range.first, range.last, range.vip, range.proto), (8000, 8200, 0, TCP));
}

#[test]
fn a_table_is_made_anew_when_what_it_is_made_of_changes() {
    let web = |endpoints: &[(&str, u32)], algorithm| Vip { algorithm, ..vip("web", "20.0.0.1", (80, 80), endpoints) };
    let before = make(&[web(TWO, VipAlgorithm::RoundRobin)], &Content::default());
    let mut held = before.content.clone();
    // Different from what would be computed, to show where it came from.
    held.tables.insert(0, vec![1, 1, 1]);
    let check = |vip: Vip, expect: &[u32]| {
        let none = BTreeSet::new();
        let after = plan(&[vip], &all_active, &held, &before, &none, &Sources::default()).unwrap();
        assert_eq!(&after.content.tables[&0][..expect.len()], expect);
    };
    check(web(TWO, VipAlgorithm::RoundRobin), &[1, 1, 1]);
    check(web(&[("10.1.0.2:80", 2), ("10.1.1.2:80", 1)], VipAlgorithm::RoundRobin), &[0, 0, 1]);
    check(web(&TWO[..1], VipAlgorithm::RoundRobin), &[0]);
    check(web(&TWO[..1], VipAlgorithm::Maglev), &[0, 0, 0, 0]);
}

#[test]
fn what_is_removed_drains_and_what_was_dead_stays_dead() {
    let vips = [Vip { on_unhealthy: OnUnhealthy::Reset, ..vip("web", "20.0.0.1", (80, 80), TWO) }];
    let dead = |_: &str, endpoint: &Endpoint| {
        if endpoint.weight == 2 { EndpointVerdict::Down } else { EndpointVerdict::Active }
    };
    let none = BTreeSet::new();
    let before = plan(&vips, &dead, &Content::default(), &Plan::default(), &none, &Sources::default()).unwrap();
    assert_eq!(states(&before), [LB_ENDPOINT_ACTIVE, LB_ENDPOINT_DOWN]);
    assert_eq!(before.content.tables[&0], [0]);

    let after = make(&[vip("web", "20.0.0.1", (80, 80), &[])], &before.content);
    assert_eq!(states(&after), [LB_ENDPOINT_DRAINING, LB_ENDPOINT_DOWN]);
    assert_eq!(after.leaving, BTreeSet::from([0, 1]));
    assert_eq!((after.content.tables.len(), after.content.vips[&0].table_slots), (0, 0));

    // It returns before its flows are gone.
    let again = make(&vips, &after.content);
    assert_eq!((states(&again), again.leaving.len()), (vec![LB_ENDPOINT_ACTIVE; 2], 0));
    assert_eq!(indexes(&again), [0, 1]);
}

#[test]
fn verdicts_and_weights() {
    let web = |weight| vip("web", "20.0.0.1", (80, 80), &[("10.1.0.2:80", weight)]);
    let check_of = |vip: Vip, verdict: EndpointVerdict, expect: u32, slots: u32| {
        let weight = vip.endpoints[0].weight;
        let plan =
            plan(&[vip], &|_, _| verdict, &Content::default(), &Plan::default(), &BTreeSet::new(), &Sources::default());
        let plan = plan.unwrap();
        assert_eq!((states(&plan)[0], plan.content.vips[&0].table_slots), (expect, slots), "{weight} {verdict:?}");
    };
    let check = |weight, verdict, expect, slots| check_of(web(weight), verdict, expect, slots);
    check(5, EndpointVerdict::Active, LB_ENDPOINT_ACTIVE, 1);
    check(0, EndpointVerdict::Active, LB_ENDPOINT_DRAINING, 0);
    check(5, EndpointVerdict::Draining, LB_ENDPOINT_DRAINING, 0);
    check(5, EndpointVerdict::Down, LB_ENDPOINT_FAILING, 0);
    check(0, EndpointVerdict::Down, LB_ENDPOINT_FAILING, 0);
    let reset = Vip { on_unhealthy: OnUnhealthy::Reset, ..web(5) };
    check_of(reset, EndpointVerdict::Down, LB_ENDPOINT_DOWN, 0);
    // A datagram has no connection to lose.
    check_of(Vip { transport: Transport::Udp, ..web(5) }, EndpointVerdict::Down, LB_ENDPOINT_DOWN, 0);
}

#[test]
fn an_index_rests_before_it_is_used_again() {
    let before = make(&[vip("web", "20.0.0.1", (80, 80), TWO)], &Content::default());
    let other = [vip("other", "20.0.0.2", (80, 80), &[])];
    // Still in the maps when the plan is made.
    assert_eq!(make(&other, &before.content).vips.keys().collect::<Vec<_>>(), [&1]);
    // Out of the maps, but not collected yet.
    let resting =
        plan(&other, &all_active, &Content::default(), &Plan::default(), &BTreeSet::from([0, 1]), &Sources::default())
            .unwrap();
    assert_eq!(resting.vips.keys().collect::<Vec<_>>(), [&2]);
}

#[test]
fn lists_of_sources() {
    let mut web = vip("web", "20.0.0.1", (80, 80), TWO);
    web.deny = vec!["10.0.0.77/8".parse().unwrap(), "fd00::/16".parse().unwrap()];
    let plan = make(&[web.clone()], &Content::default());
    let keys: Vec<(u32, u32, String, u32)> = plan
        .content
        .sources
        .iter()
        .map(|(key, verdict)| (key.prefix_bits, u32::from_be(key.vip), address_of(key.addr).to_string(), *verdict))
        .collect();
    assert_eq!(keys, [(48, 0, "fd00::".to_owned(), LB_SOURCE_DENY), (136, 0, "10.0.0.0".to_owned(), LB_SOURCE_DENY),]);
    assert_eq!(u32::from(plan.content.vips[&0].flags), LB_VIP_SOURCES);
    web.allow = vec!["0.0.0.0/0".parse().unwrap(), "10.0.0.0/8".parse().unwrap()];
    let plan = make(&[web], &Content::default());
    assert_eq!(u32::from(plan.content.vips[&0].flags), LB_VIP_SOURCES | LB_VIP_SOURCES_ONLY);
    // Denied and allowed by the same prefix: denied.
    assert_eq!(plan.content.sources.values().filter(|verdict| **verdict == LB_SOURCE_DENY).count(), 2);
}

#[test]
fn modes_and_options() {
    let mut web = vip("web", "fd00::1", (80, 80), &[("[fd01::2]:0", 1), ("[fd02::2]:0", 1), ("[fd02::3]:0", 1)]);
    web.mode = VipMode::FullNat { sources: Vec::new() };
    web.affinity = Some(Duration::from_millis(1500));
    web.source_rate = Some(SourceRate { per_second: 100, burst: 7 });
    let towards = |(endpoint, source): (&str, &str)| (endpoint.parse().unwrap(), source.parse().unwrap());
    // The pool is sorted by address, whichever endpoint each address is for.
    let towards = [("[fd01::2]:0", "fd01::9"), ("[fd02::2]:0", "fd01::1"), ("[fd02::3]:0", "fd01::1")].map(towards);
    let towards = [("web".to_owned(), towards.into())].into();
    let sources = Sources { towards, ports: (1024, 32_767), ..Sources::default() };
    let made =
        plan(&[web.clone()], &all_active, &Content::default(), &Plan::default(), &BTreeSet::new(), &sources).unwrap();
    let written = made.content.vips[&0];
    assert_eq!((written.affinity_s, written.rate_per_s, written.rate_burst), (2, 100, 7));
    assert_eq!(u32::from(written.flags), LB_VIP_AFFINITY | LB_VIP_RATE);
    let pool = made.content.pools[&0];
    assert_eq!((pool.addr_count, pool.port_first, pool.port_last), (2, 1024, 32_767));
    assert_eq!([0, 1].map(|at: usize| address_of(pool.addrs[at]).to_string()), ["fd01::1", "fd01::9"]);
    assert_eq!(made.content.endpoints[&0].port, 0);
    let only = |plan: &Plan| plan.content.endpoints.values().map(|endpoint| endpoint.source).collect::<Vec<_>>();
    assert_eq!(only(&made), [2, 1, 1]);
    let named = Vip { mode: VipMode::FullNat { sources: vec!["fd01::7".parse().unwrap()] }, ..web.clone() };
    assert_eq!(only(&make(&[named], &Content::default())), [0, 0, 0]);

    let mut local = vip("local", "fd00::1", (443, 443), &[]);
    local.mode = VipMode::Local;
    let made =
        plan(&[web, local], &all_active, &Content::default(), &Plan::default(), &BTreeSet::new(), &sources).unwrap();
    assert_eq!(made.content.addresses.values().map(|address| address.flags).collect::<Vec<_>>(), [LB_ADDRESS_HOST]);
    assert_eq!(made.content.vip_ids.len(), 2);
}

#[test]
fn vips_that_are_balanced_at_the_socket() {
    let web = vip("web", "20.0.0.1", (80, 80), TWO);
    let check = |vip: Vip, expect: bool| {
        let made = make(std::slice::from_ref(&vip), &Content::default());
        assert_eq!(u32::from(made.content.vips[&0].flags) & LB_VIP_SOCKETS != 0, expect, "{vip:?}");
    };
    check(web.clone(), true);
    check(Vip { mode: VipMode::FullNat { sources: Vec::new() }, ..web.clone() }, true);
    check(Vip { mode: VipMode::Dsr, ..web.clone() }, false);
    check(Vip { mode: VipMode::Local, endpoints: Vec::new(), ..web.clone() }, false);
    check(Vip { at_sockets: false, ..web.clone() }, false);
    check(Vip { allow: vec!["10.0.0.0/8".parse().unwrap()], ..web.clone() }, false);
    check(Vip { deny: vec!["10.0.0.0/8".parse().unwrap()], ..web.clone() }, false);
    check(Vip { source_rate: Some(SourceRate { per_second: 1, burst: 1 }), ..web }, false);
}

/// The keys as `address:port scope=index`.
fn keys(content: &Content) -> Vec<String> {
    let one = |(key, id): (&lb_vip_key, &u32)| {
        format!("{}:{} {}={id}", address_of(key.addr), u16::from_be(key.port), key.scope)
    };
    content.vip_ids.iter().map(one).collect()
}

#[test]
fn packets_and_sockets_have_keys_of_their_own() {
    let packets = vip("packets", "20.0.0.1", (80, 80), TWO);
    let sockets = Vip {
        mode: VipMode::Socket,
        interfaces: Vec::new(),
        is_of_node: true,
        ..vip("sockets", "20.0.0.1", (80, 80), TWO)
    };
    let made = make(&[packets.clone(), sockets.clone()], &Content::default());
    assert_eq!(keys(&made.content), ["20.0.0.1:80 0=0", "20.0.0.1:80 1=1"]);
    assert_eq!(u32::from(made.content.vips[&1].flags), LB_VIP_SOCKETS | LB_VIP_OF_NODE);
    // The indexes stay, whichever is first. The address of sockets alone is none to packets.
    let again = make(&[sockets.clone(), packets], &made.content);
    assert_eq!(keys(&again.content), keys(&made.content));
    let alone = make(&[sockets], &Content::default());
    assert_eq!((alone.content.addresses.len(), alone.families_along()), (0, [false; 2]));
}

#[test]
fn every_address_of_this_host() {
    let every = |addresses: &[&str]| Sources {
        every: addresses.iter().map(|address| address.parse().unwrap()).collect(),
        ..Sources::default()
    };
    let with = |vips: &[Vip], held: &Content, addresses: &[&str]| {
        plan(vips, &all_active, held, &Plan::default(), &BTreeSet::new(), &every(addresses)).unwrap()
    };
    let node = |mode: VipMode| Vip { mode, ..vip("node", "0.0.0.0", (80, 80), TWO) };
    let one = vip("one", "10.0.0.2", (80, 80), TWO);
    let hosts = &["10.0.0.1", "10.0.0.2", "fd00::1"];
    let made = with(&[node(VipMode::Nat), node(VipMode::Socket), one.clone()], &Content::default(), hosts);
    let expect = [
        "0.0.0.0:80 2=0",
        "0.0.0.0:80 3=1",
        "10.0.0.1:80 0=0",
        "10.0.0.1:80 1=1",
        "10.0.0.2:80 0=2",
        "10.0.0.2:80 1=1",
    ];
    let mut found = keys(&made.content);
    found.sort();
    assert_eq!(found, expect);
    let of = |address: &str| made.content.addresses[&lb_address_key { addr: words_of(address.parse().unwrap()) }].flags;
    assert_eq!((of("10.0.0.1"), of("10.0.0.2")), (LB_ADDRESS_HOST, LB_ADDRESS_HOST));
    // Without the vip that names the address, and with another address: the vips keep their indexes.
    let after = with(&[node(VipMode::Socket), node(VipMode::Nat)], &made.content, &["10.0.0.2", "10.0.0.3"]);
    let expect = [
        "0.0.0.0:80 2=0",
        "0.0.0.0:80 3=1",
        "10.0.0.2:80 0=0",
        "10.0.0.2:80 1=1",
        "10.0.0.3:80 0=0",
        "10.0.0.3:80 1=1",
    ];
    let mut found = keys(&after.content);
    found.sort();
    assert_eq!(found, expect);
    // A vip that had an address of the host's as one of many has no claim to the index of the one that named it.
    let named = with(&[one, node(VipMode::Nat)], &after.content, hosts);
    assert!(keys(&named.content).contains(&"0.0.0.0:80 2=0".to_owned()), "{:?}", keys(&named.content));
    assert_eq!(named.content.vips.len(), 2);
}

#[test]
fn endpoints_that_leave_a_vip_of_sockets() {
    let check = |mode: VipMode, transport: Transport, expect: u32| {
        let of = |endpoints| Vip { mode: mode.clone(), transport, ..vip("web", "20.0.0.1", (53, 53), endpoints) };
        let made = make(&[of(TWO)], &Content::default());
        let after = make(&[of(&TWO[1..])], &made.content);
        assert_eq!(states(&after), [expect, LB_ENDPOINT_ACTIVE], "{mode:?} {transport:?}");
    };
    check(VipMode::Socket, Transport::Udp, LB_ENDPOINT_DOWN);
    check(VipMode::Socket, Transport::Tcp, LB_ENDPOINT_DRAINING);
    check(VipMode::Nat, Transport::Udp, LB_ENDPOINT_DRAINING);
}

#[test]
fn addresses_that_this_host_has() {
    let vips = [vip("web", "20.0.0.1", (80, 80), TWO), vip("dns", "fd00::1", (53, 53), &[])];
    let own = |addresses: &[&str]| addresses.iter().map(|address| address.parse().unwrap()).collect::<BTreeSet<_>>();
    let flags = |plan: &Plan| plan.content.addresses.values().map(|address| address.flags).collect::<Vec<_>>();
    let sources = Sources { own: own(&["20.0.0.1", "20.0.0.9"]), ..Sources::default() };
    let mut made = plan(&vips, &all_active, &Content::default(), &Plan::default(), &BTreeSet::new(), &sources).unwrap();
    assert_eq!(flags(&made), [LB_ADDRESS_ECHO | LB_ADDRESS_HOST, LB_ADDRESS_ECHO]);
    made.set_own(&own(&["fd00::1"]));
    assert_eq!(flags(&made), [LB_ADDRESS_ECHO, LB_ADDRESS_ECHO | LB_ADDRESS_HOST]);
}

#[test]
fn limits() {
    let many: Vec<Vip> =
        (0..LB_VIPS_MAX as u16 + 1).map(|n| vip(&n.to_string(), "20.0.0.1", (n + 1, n + 1), &[])).collect();
    assert_eq!(check_limits(&many), Err(Refusal::TooMany { what: "vips", have: 8193, max: 8192 }));
    assert_eq!(check_limits(&many[1..]), Ok(()));
    let ranges: Vec<Vip> = (0..9).map(|n| vip(&n.to_string(), "20.0.0.1", (n * 10 + 1, n * 10 + 5), &[])).collect();
    assert!(matches!(check_limits(&ranges), Err(Refusal::TooMany { have: 9, max: 8, .. })));
    assert_eq!(check_limits(&ranges[1..]), Ok(()));
    let mut sources = vip("web", "20.0.0.1", (80, 80), &[]);
    sources.mode = VipMode::FullNat { sources: vec!["10.0.0.1".parse().unwrap(); 9] };
    assert!(matches!(check_limits(&[sources]), Err(Refusal::TooMany { have: 9, max: 8, .. })));
}

#[test]
fn a_thousand_endpoints() {
    let names: Vec<String> = (0..1000).map(|n| format!("10.1.{}.{}:80", n / 250, n % 250)).collect();
    let endpoints: Vec<(&str, u32)> = names.iter().map(|name| (name.as_str(), 1)).collect();
    let plan = make(&[vip("web", "20.0.0.1", (80, 80), &endpoints)], &Content::default());
    assert_eq!((plan.content.endpoints.len(), plan.content.tables[&0].len()), (1000, 1000));
}
