//! The same for vips.

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
        "1:21: a vip needs `endpoints`; give at least one, or `mode: local` where a listener of this host serves the address",
    );
    vip(
        "address: 10.0.0.1:80/tcp, interfaces: [], mode: local",
        "1:50: `interfaces` is empty; give at least one entry",
    );
    vip(
        "address: 10.0.0.1:80/tcp, interfaces: [a, b, a, c/d], mode: local",
        r#"1:57: the interface `a` is given twice
1:60: an entry of `interfaces`: "c/d" is not the name of an interface; it has 1 to 15 characters, as `ip link` shows it"#,
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
        r#"1:65: an entry of `endpoints`: "web:80" is no address; a vip takes no names, since the kernel resolves none; write an address such as 10.0.0.1:5001, or 10.0.0.1 for the port asked for
1:73: fd00::1 is IPv6, and the vip 10.0.0.1 is IPv4; an endpoint is of the family of its vip; give IPv6 a vip of its own
1:84: the endpoint 10.0.0.1 is the vip itself; packets would come back to it for ever; write where the endpoint is
1:107: an endpoint of `v` is given twice; the first is at line 1; for more traffic raise its weight
1:137: unknown key `wieght` in an endpoint of a vip; did you mean `weight`?"#,
    );
    with(
        "endpoints: [{address: 10.0.0.2, weight: 0}]",
        "1:64: every endpoint of `v` has the weight 0; none of them takes connections; give at least one a weight above 0",
    );
    with(
        "endpoints: [10.0.0.2], balance: least_request, mode: snat, affinity: 500ms",
        r#"1:85: `balance`: "least_request" is not known; it is round_robin, random, maglev, source_hash or least_connections
1:106: `mode`: "snat" is not known; it is nat, full_nat, dsr or local; did you mean nat?
1:122: `affinity`: "500ms" is not whole seconds; the kernel plane counts seconds; write 1s"#,
    );
    with(
        "endpoints: [10.0.0.2], sources: 10.0.0.9",
        "1:76: `sources` has no meaning in mode nat; it belongs to `mode: full_nat`; here endpoints see the client's address",
    );
    with(
        "endpoints: [10.0.0.2], mode: full_nat, sources: [10.0.0.9, 'fd00::9', any]",
        r#"1:112: fd00::9 is IPv6, and the vip 10.0.0.1 is IPv4; a source is of the family of its vip; give IPv6 a vip of its own
1:123: an entry of `sources`: "any" is not an address; write one such as 192.0.2.1 or 2001:db8::1"#,
    );
    with(
        "mode: local, endpoints: [10.0.0.2], affinity: 1m",
        r#"1:66: `endpoints` has no meaning in mode local; a listener of this host serves the address, and says how; remove the key
1:89: `affinity` has no meaning in mode local; a listener of this host serves the address, and says how; remove the key"#,
    );
    with(
        "mode: dsr, endpoints: [10.0.0.2:80, 10.0.0.3:8080, 10.0.0.1]",
        r#"1:89: mode dsr cannot change the port to 8080; the endpoint answers the client itself, from port 80; write 10.0.0.3
1:104: the endpoint 10.0.0.1 is the vip itself; write the address that the endpoint has of its own; it holds the virtual one besides"#,
    );
    with(
        "mode: dsr, endpoints: [10.0.0.2], on_unhealthy: reset",
        "1:87: `on_unhealthy: reset` cannot work in mode dsr; endpoints answer clients directly, so connections cannot be reset from here; remove the key",
    );
    with(
        "endpoints: [10.0.0.2], on_unhealthy: reset",
        "1:76: `on_unhealthy: reset` needs a `health_check`; without one, no endpoint is ever found unhealthy; add one, such as `health_check: {tcp: true}`",
    );
    with(
        "endpoints: [10.0.0.2], on_unhealthy: drop",
        r#"1:90: `on_unhealthy`: "drop" is not known; it is keep or reset"#,
    );
}

#[test]
fn policies_of_a_vip() {
    with(
        "endpoints: [10.0.0.2], allow: [10.0.0.0/8, 'fd00::/8'], deny: [10.1.2.3/8, 192.0.2.7, 10.0.0.0/33]",
        r#"1:96: fd00:: is IPv6, and the vip 10.0.0.1 is IPv4; a network is of the family of its vip; give IPv6 a vip of its own
1:116: 10.0.0.0/8 is in `allow` and in `deny`; remove one of them
1:139: an entry of `deny`: "10.0.0.0/33" is not an address or network; "33" is not a prefix length for it"#,
    );
    with(
        "endpoints: [10.0.0.2], new_connections_per_source: 100, timeouts: {syn: 0s, idel: 1h}",
        r#"1:104: `new_connections_per_source`: "100" is not a rate; write a number and `/s`, such as 100/s
1:125: `syn`: "0s" would always be over; write more than zero
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
        r#"1:72: the endpoint 10.0.0.2:5000 has a port, and its vip has a range of them; write 10.0.0.2: it gets the port that the client asked for
1:112: a health check of a vip with a range of ports needs `port`; say which port of the endpoints is asked"#,
    );
    check(
        "vips:
 a: {address: 10.0.0.1:80-90/tcp, interfaces: x, mode: local}
 b: {address: 10.0.0.1:85/tcp, interfaces: x, mode: local}
kernel_plane: {flows_max: 10}",
        r#"3:15: `a` and `b` have a port of 10.0.0.1 in common; the first is at line 2; a port belongs to one vip
4:27: `flows_max`: "10" is not a whole number from 1024 to 16777216"#,
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
        "3:21: 10.0.0.1:80 is taken twice; line 1 listens there; give `v` `mode: local`, or the listener another port",
    );
    check(&file("mode: local"), "no error");
}
