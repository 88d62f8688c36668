//! Every refusal of a vip.

use super::refused::check;

/// The keys of the only vip, from column 12 of line 1.
fn vip(keys: &str, expect: &str) {
    check(&format!("vips: {{v: {{{keys}}}}}"), expect);
}

#[test]
fn vips() {
    vip("", "1:11: a vip needs `address`; it must be an address, port and protocol such as 192.0.2.1:80/tcp");
    vip(
        MINIMAL_VIP,
        "1:21: a vip needs `endpoints`; add at least one, or set `mode: local` if a listener on this host serves the address",
    );
    vip("address: 10.0.0.1:80/tcp, interfaces: [], mode: local", "1:50: `interfaces` is empty; add at least one entry");
    vip(
        "address: 10.0.0.1:80/tcp, interfaces: [a, b, a, c/d], mode: local",
        r#"1:57: the interface `a` is given twice
1:60: an entry of `interfaces`: "c/d" is not the name of an interface; an interface name has 1 to 15 characters, as `ip link` shows it"#,
    );
}

/// The shortest vip, which lacks endpoints. What follows it stands from column 53 on.
const MINIMAL_VIP: &str = "address: 10.0.0.1:80/tcp, interfaces: a";

fn with(keys: &str, expect: &str) {
    vip(&format!("{MINIMAL_VIP}, {keys}"), expect);
}

#[test]
fn endpoints_and_modes_of_a_vip() {
    with(
        "endpoints: [web:80, 'fd00::1', 10.0.0.1:81, 10.0.0.2, 10.0.0.2, {address: 10.0.0.3, wieght: 1}]",
        r#"1:65: an entry of `endpoints`: "web:80" is not an address; a vip takes no names, because the kernel cannot resolve them: write an address such as 10.0.0.1:5001, or 10.0.0.1 to use the port that the client connected to
1:73: fd00::1 is IPv6, but the vip 10.0.0.1 is IPv4; an endpoint must be of the same family as its vip; make a second vip for IPv6
1:84: the endpoint 10.0.0.1 is the vip itself; packets would loop; write the address of the endpoint
1:107: an endpoint of `v` is given twice; the first is at line 1; to send it more traffic, raise its weight
1:137: unknown key `wieght` in an endpoint of a vip; did you mean `weight`?"#,
    );
    with(
        "endpoints: [{address: 10.0.0.2, weight: 0}]",
        "1:64: every endpoint of `v` has weight 0; no endpoint would get connections; give at least one a weight above 0",
    );
    with(
        "endpoints: [10.0.0.2], balance: least_request, mode: snat, affinity: 500ms",
        r#"1:85: `balance`: "least_request" is not valid; it must be round_robin, random, maglev, source_hash or least_connections
1:106: `mode`: "snat" is not valid; it must be nat, full_nat, dsr, local or socket; did you mean nat?
1:122: `affinity`: "500ms" is not whole seconds; the kernel plane counts seconds; write 1s"#,
    );
    with(
        "endpoints: [10.0.0.2], sources: 10.0.0.9",
        "1:76: `sources` has no effect in mode nat; remove it, or use `mode: full_nat`: in this mode endpoints see the client's address",
    );
    with(
        "endpoints: [10.0.0.2], mode: full_nat, sources: [10.0.0.9, 'fd00::9', any]",
        r#"1:112: fd00::9 is IPv6, but the vip 10.0.0.1 is IPv4; a source must be of the same family as its vip; make a second vip for IPv6
1:123: an entry of `sources`: "any" is not an address; write one such as 192.0.2.1 or 2001:db8::1"#,
    );
    with(
        "mode: local, endpoints: [10.0.0.2], affinity: 1m",
        r#"1:66: `endpoints` has no effect in mode local; remove it: the listener on this address decides how to serve it
1:89: `affinity` has no effect in mode local; remove it: the listener on this address decides how to serve it"#,
    );
    with(
        "mode: dsr, endpoints: [10.0.0.2:80, 10.0.0.3:8080, 10.0.0.1]",
        r#"1:89: mode dsr cannot change the port to 8080; the endpoint answers the client itself, from port 80; write 10.0.0.3
1:104: the endpoint 10.0.0.1 is the vip itself; write the endpoint's own address, which it has besides the virtual one"#,
    );
    with(
        "mode: dsr, endpoints: [10.0.0.2], on_unhealthy: reset",
        "1:87: `on_unhealthy: reset` cannot work in mode dsr; remove it: endpoints answer clients directly, so this host cannot reset their connections",
    );
    with(
        "endpoints: [10.0.0.2], tunnel: ipip, mode: full_nat",
        "1:76: `tunnel` has no effect in mode full_nat; remove it, or use `mode: dsr`: in this mode packets carry the endpoint's address",
    );
    with(
        "endpoints: [10.0.0.2], mode: dsr, tunnel: gre",
        r#"1:95: `tunnel`: "gre" is not valid; it must be ipip or gue"#,
    );
    with(
        "endpoints: [10.0.0.2], on_unhealthy: reset",
        "1:76: `on_unhealthy: reset` needs a `health_check`; without one, no endpoint ever becomes unhealthy; add one, such as `health_check: {tcp: true}`",
    );
    with(
        "endpoints: [10.0.0.2], on_unhealthy: drop",
        r#"1:90: `on_unhealthy`: "drop" is not valid; it must be keep or reset"#,
    );
}

#[test]
fn policies_of_a_vip() {
    with(
        "endpoints: [10.0.0.2], allow: [10.0.0.0/8, 'fd00::/8'], deny: [10.1.2.3/8, 192.0.2.7, 10.0.0.0/33]",
        r#"1:96: fd00:: is IPv6, but the vip 10.0.0.1 is IPv4; a network must be of the same family as its vip; make a second vip for IPv6
1:116: 10.0.0.0/8 is in both `allow` and `deny`; remove one of them
1:139: an entry of `deny`: "10.0.0.0/33" is not an address or network; "33" is not a prefix length for it"#,
    );
    with(
        "endpoints: [10.0.0.2], new_connections_per_source: 100, timeouts: {syn: 0s, idel: 1h}",
        r#"1:104: `new_connections_per_source`: "100" is not a rate; write a number and `/s`, such as 100/s
1:125: `syn`: "0s" would expire at once; write more than zero
1:129: unknown key `idel` in the timeouts of a vip; did you mean `idle`?"#,
    );
    with(
        "endpoints: [10.0.0.2], new_connections_per_source: {burst: 5}",
        "1:104: a rate for each source needs `rate`; it must be a rate such as 100/s",
    );
}

#[test]
fn vips_with_a_range_of_ports() {
    vip(
        "address: 10.0.0.1:5000-5010/udp, interfaces: a, endpoints: [10.0.0.2:5000, 10.0.0.3], health_check: {tcp: true}",
        r#"1:72: the endpoint 10.0.0.2:5000 has a port, but its vip has a range of ports; write 10.0.0.2: the endpoint gets connections on the port that the client connected to
1:112: a health check of a vip with a range of ports needs `port`; set the port of the endpoints to probe"#,
    );
    check(
        "vips:
 a: {address: 10.0.0.1:80-90/tcp, interfaces: x, mode: local}
 b: {address: 10.0.0.1:85/tcp, interfaces: x, mode: local}
kernel_plane: {flows_max: 10, socket_cgroup: cgroup, announce: bgp, route_table: 255, route_metric: 0}",
        r#"3:15: `a` and `b` share a port of 10.0.0.1; the first is at line 2; a port belongs to one vip
4:27: `flows_max`: "10" is not a whole number from 1024 to 16777216
4:46: `socket_cgroup`: "cgroup" is not a whole path; begin it with a slash
4:64: `announce`: "bgp" is not valid; it must be none, route or l2
4:82: table 255 has the addresses of this host itself: use 254, the main table, or a table of your own
4:101: `route_metric`: "0" is not a whole number from 1 to 4294967295"#,
    );
}

#[test]
fn a_listener_at_the_address_of_a_vip() {
    let file = |mode: &str| {
        format!(
            "listeners: {{l: {{bind: '10.0.0.1:80', protocol: tcp, to: web}}}}
clusters: {{web: {{endpoints: ['a:1']}}}}
vips: {{v: {{address: 10.0.0.1:80/tcp, interfaces: a, {mode}}}}}"
        )
    };
    check(
        &file("endpoints: [10.0.0.2]"),
        "3:21: 10.0.0.1:80 is used twice; line 1 listens there; give `v` `mode: local`, or change the port of the listener",
    );
    check(&file("mode: local"), "no error");
}

#[test]
fn vips_for_sockets_alone_and_with_every_address() {
    check(
        "kernel_plane: {socket_cgroup: /sys/fs/cgroup}
vips:
 a: {address: 10.0.0.1:80-90/tcp, mode: socket, interfaces: x, endpoints: [10.0.0.2]}
 b: {address: 10.0.0.2:80/tcp, mode: socket, endpoints: [10.0.0.3], allow: 10.0.0.9, new_connections_per_source: 1/s, sources: 10.0.0.4}
 c: {address: 0.0.0.0:80-81/tcp, mode: full_nat, endpoints: [10.0.0.3]}
 d: {address: '[::]:80/tcp', mode: local}
 e: {address: 10.0.0.2:80/tcp, mode: socket, endpoints: [10.0.0.3]}
 f: {address: 10.0.0.2:80/tcp, endpoints: [10.0.0.3]}
 g: {address: 0.0.0.0:82/tcp, mode: socket, endpoints: [0.0.0.0]}",
        r#"3:15: a vip in mode socket has one port; make a vip for each port
3:49: `interfaces` has no effect in mode socket; remove it: connections get their endpoint when a process of this host makes them
4:69: `allow` has no effect in mode socket; remove it: a socket gets its own address after its endpoint, so nothing can be compared
4:86: `new_connections_per_source` has no effect in mode socket; remove it: a socket gets its own address after its endpoint, so nothing can be compared
4:119: `sources` has no effect in mode socket; remove it, or use `mode: full_nat`: in this mode endpoints see the client's address
5:15: a vip with every address of this host has one port; make a vip for each port
6:15: :: stands for every address of this host, which mode local cannot serve; name one address
7:15: `b` and `e` share a port of 10.0.0.2; the first is at line 4; a port belongs to one vip
9:57: an entry of `endpoints`: "0.0.0.0" stands for every address; name one; it can also be a mapping with `address` or `weight`"#,
    );
    check(
        "vips: {v: {address: 10.0.0.1:80/tcp, mode: socket, endpoints: [10.0.0.2]}}",
        "1:44: mode socket needs `kernel_plane.socket_cgroup`; name the control group of the processes, such as /sys/fs/cgroup",
    );
}

#[test]
fn one_way_to_announce_an_address() {
    check(
        "vips:
 a: {address: 10.0.0.1:80/tcp, announce: l2, endpoints: [10.0.0.2]}
 b: {address: 10.0.0.1:81/tcp, announce: route, endpoints: [10.0.0.2]}
 c: {address: 10.0.0.1:82/tcp, endpoints: [10.0.0.2]}",
        "2:2: `a` and `b` announce 10.0.0.1 in different ways; an address is announced in one way: set the same `announce` in both, or none in one",
    );
}
