//! What must not go wrong when connections of processes are balanced at the socket: entries that stay for ever, control groups that change,
//! addresses that are no longer true, tables that are full.
#![forbid(unsafe_code)]

mod support;

use std::net::SocketAddr;

use support::at_sockets::{at, config, echo, sees_the_vip, serve, until_open, vip_of, with_cgroup};
use support::cgroup::{Cgroup, bpf};
use support::echo::ECHO_PORT;
use support::network::{FAMILIES, Family, vip};
use support::skip;
use testkit::{Exit, Signal};

/// The kernel opens the connections of such a socket itself, and reports their end to no program.
#[test]
fn sockets_of_mptcp_leave_nothing() {
    with_cgroup("sockets_of_mptcp_leave_nothing", |network, cgroup| {
        if network.balancer.sysctl("net.mptcp.enabled", "1").is_err() {
            return skip("sockets_of_mptcp_leave_nothing", "this kernel has no MPTCP");
        }
        let _echoes = network.echoes();
        let mut vips = serve(cgroup, &FAMILIES.map(|family| echo(family, "")).concat());
        for family in FAMILIES {
            let name = format!("tcp-{family:?}").to_lowercase();
            let mut client = cgroup.client(&network.balancer, "mptcp", at(family), 6);
            let seen = client.report();
            assert_eq!(seen.errors, Vec::<String>::new());
            // They see the endpoints.
            let endpoints: Vec<String> = (0..3).map(|index| format!("{} 7", family.endpoint(index))).collect();
            assert!(seen.peers.len() == 6 && seen.peers.iter().all(|peer| endpoints.contains(peer)), "{seen:?}");
            let status = until_open(&mut vips, &name, [0; 3]);
            assert_eq!(support::network::endpoint_figures(&status, &name, "sockets_total"), [2; 3], "{status}");
            drop(client);
            until_open(&mut vips, &name, [0; 3]);
            let flows = vips.ask(&["flows", "--vip", &name]);
            assert!(!flows.contains("sk:"), "{flows}");
            // An ordinary socket is known as ever.
            let mut client = cgroup.client(&network.balancer, "tcp", at(family), 3);
            sees_the_vip(&client.report(), &format!("{} 7", at(family).ip()), true, 3);
            until_open(&mut vips, &name, [1; 3]);
        }
    });
}

#[test]
fn connections_that_fail_do_not_count() {
    with_cgroup("connections_that_fail_do_not_count", |network, cgroup| {
        // Nothing listens at the endpoints.
        let mut vips = serve(cgroup, &echo(Family::V4, ""));
        let mut client = cgroup.client(&network.balancer, "tcp", at(Family::V4), 6);
        // Its sockets stay open.
        assert_eq!(client.report().errors, ["ECONNREFUSED"; 6]);
        let status = until_open(&mut vips, "tcp-v4", [0; 3]);
        assert_eq!(vip_of(&status, "tcp-v4")["sockets_total"], 6, "{status}");
        let flows = vips.ask(&["flows"]);
        assert!(!flows.contains("sk:"), "{flows}");
    });
}

#[test]
fn sockets_see_what_they_are_connected_to() {
    with_cgroup("sockets_see_what_they_are_connected_to", |network, cgroup| {
        let _echoes = network.echoes();
        for family in FAMILIES {
            let (place, empty) = (at(family), SocketAddr::new(family.vip(2), ECHO_PORT));
            let endpoint = family.endpoint(0).to_string();
            let one = format!("endpoints: ['{}']", SocketAddr::new(family.endpoint(0), ECHO_PORT));
            let unused = format!("endpoints: ['{}']", SocketAddr::new(family.endpoint(1), ECHO_PORT));
            let text =
                vip("tcp", place, "tcp", &one) + &vip("udp", place, "udp", &one) + &vip("empty", empty, "udp", &unused);
            let mut vips = serve(cgroup, &text);
            vips.ask(&["endpoint", "drain", &SocketAddr::new(family.endpoint(1), ECHO_PORT).to_string()]);
            let (shown, port) = (place.ip().to_string(), ECHO_PORT.to_string());
            let mut client = cgroup.corners(&network.balancer, &[&shown, &empty.ip().to_string(), &endpoint, &port]);
            let expect = [
                format!("disconnected, asks the endpoint: {endpoint}"),
                format!("disconnected, asks the vip: {shown}"),
                format!("connects to a vip without endpoints: ECONNREFUSED {shown}"),
                format!("connects to where no route leads: ENETUNREACH {shown}"),
                format!("names the vip after a failure: {shown}"),
                format!("connects to the endpoint: connected {endpoint}"),
                format!("asks the vip: {shown}"),
            ];
            assert_eq!(client.report().peers, expect, "{family:?}");
            // A stream that was disconnected is no connection.
            vips.steelyard.until("no stream is open", |status| vip_of(status, "tcp")["sockets"] == 0);
            let other = vip("other", SocketAddr::new(family.vip(3), 80), "tcp", &one);
            vips.steelyard.reload(&config(cgroup.path(), &other), |status| {
                status["vips"].as_array().is_some_and(|vips| vips.len() == 1)
            });
            let expect = [format!("connected: {endpoint}"), format!("asks the endpoint: {endpoint}")];
            assert_eq!(client.again().peers, expect, "{family:?}");
        }
    });
}

fn why_not(status: &serde_json::Value) -> String {
    status["kernel_plane"]["sockets"]["why_not"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn another_control_group_takes_the_place_of_the_first() {
    with_cgroup("another_control_group_takes_the_place_of_the_first", |network, first| {
        let Some(second) = Cgroup::new() else { return };
        let _echoes = network.echoes();
        let (text, to) = (echo(Family::V4, ""), at(Family::V4));
        let mut vips = serve(first, &text);
        let mut early = first.client(&network.balancer, "tcp", to, 3);
        sees_the_vip(&early.report(), "20.20.20.1 7", true, 3);
        until_open(&mut vips, "tcp-v4", [1; 3]);
        for (group, other) in [(&second, first), (first, &second)] {
            vips.steelyard.reload(&config(group.path(), &text), |status| {
                status["kernel_plane"]["sockets"]["cgroup"] == group.path()
            });
            // Nothing would report the end of its sockets.
            until_open(&mut vips, "tcp-v4", [0; 3]);
            let mut refused = other.client(&network.balancer, "tcp", to, 1);
            assert_eq!(refused.report().errors, ["ENETUNREACH"]);
            let mut client = group.client(&network.balancer, "tcp", to, 3);
            sees_the_vip(&client.report(), "20.20.20.1 7", true, 3);
            until_open(&mut vips, "tcp-v4", [1; 3]);
        }
        assert_eq!(early.again().errors, Vec::<String>::new());
        drop(early);
        until_open(&mut vips, "tcp-v4", [0; 3]);
    });
}

#[test]
fn all_programs_are_attached_or_none() {
    with_cgroup("all_programs_are_attached_or_none", |network, first| {
        let Some(second) = Cgroup::new() else { return };
        let _echoes = network.echoes();
        let (text, to) = (echo(Family::V4, ""), at(Family::V4));
        let mut held = bpf(&["exclusive", second.path()]);
        held.says("attached").unwrap();
        // The first programs could be attached, but not that of connect6.
        let mut vips = serve(&second, &text);
        let told = why_not(&vips.steelyard.status());
        assert!(told.contains("attach lb_connect6") && told.contains("bpftool cgroup tree"), "{told}");
        let mut refused = second.client(&network.balancer, "tcp", to, 1);
        assert_eq!(refused.report().errors, ["ENETUNREACH"], "nothing is balanced, as `status` says");
        drop(refused);
        vips.steelyard.reload(&config(first.path(), &text), |status| why_not(status).is_empty());
        let mut client = first.client(&network.balancer, "tcp", to, 3);
        sees_the_vip(&client.report(), "20.20.20.1 7", true, 3);
        // A change that is refused leaves the old group in service, and says so.
        vips.steelyard.reload(&config(second.path(), &text), |status| !why_not(status).is_empty());
        let told = why_not(&vips.steelyard.status());
        assert!(told.ends_with(&format!("the processes of {} are still balanced", first.path())), "{told}");
        sees_the_vip(&client.again(), "20.20.20.1 7", true, 3);
        let mut more = first.client(&network.balancer, "tcp", to, 3);
        sees_the_vip(&more.report(), "20.20.20.1 7", true, 3);
        until_open(&mut vips, "tcp-v4", [2; 3]);
        drop((client, more));
        until_open(&mut vips, "tcp-v4", [0; 3]);
        // So does the next process.
        let file = vips.steelyard.file();
        vips.steelyard.program.signal(Signal::KILL).unwrap();
        vips.steelyard.program.exit_within(testkit::PATIENCE).unwrap();
        vips.steelyard.start_again(&file);
        let told = why_not(&vips.steelyard.status());
        assert!(told.ends_with("the programs that an earlier process attached are still in force"), "{told}");
        let mut client = first.client(&network.balancer, "tcp", to, 3);
        sees_the_vip(&client.report(), "20.20.20.1 7", true, 3);
        drop(client);
        drop(held);
    });
}

#[test]
fn a_control_group_that_is_made_again_is_served_again() {
    with_cgroup("a_control_group_that_is_made_again_is_served_again", |network, cgroup| {
        let _echoes = network.echoes();
        let mut vips = serve(cgroup, &echo(Family::V4, ""));
        let mut client = cgroup.client(&network.balancer, "tcp", at(Family::V4), 3);
        sees_the_vip(&client.report(), "20.20.20.1 7", true, 3);
        drop(client);
        cgroup.make_again();
        let log = "connections of its processes are balanced at the socket";
        let again = testkit::until(testkit::PATIENCE, || {
            (vips.steelyard.program.log().matches(log).count() == 2).then_some(())
        });
        assert!(again.is_some(), "{}", vips.steelyard.program.log());
        let mut client = cgroup.client(&network.balancer, "tcp", at(Family::V4), 3);
        sees_the_vip(&client.report(), "20.20.20.1 7", true, 3);
        until_open(&mut vips, "tcp-v4", [1; 3]);
        drop(client);
        until_open(&mut vips, "tcp-v4", [0; 3]);
    });
}

#[test]
fn a_control_group_that_is_gone_is_reported() {
    with_cgroup("a_control_group_that_is_gone_is_reported", |_, _| {
        let Some(other) = Cgroup::new() else { return };
        let mut vips = serve(&other, &echo(Family::V4, ""));
        let path = other.path().to_owned();
        drop(other);
        vips.steelyard.until("the group is missed", |status| why_not(status).contains("No such file or directory"));
        std::fs::create_dir(&path).unwrap();
        vips.steelyard.until("it is found again", |status| why_not(status).is_empty());
        std::fs::remove_dir(&path).unwrap();
    });
}

#[test]
fn a_full_table_is_reported() {
    with_cgroup("a_full_table_is_reported", |network, cgroup| {
        let _echoes = network.echoes();
        let mut vips = serve(cgroup, &echo(Family::V4, ""));
        // SO_NETNS_COOKIE, which names the directory of the plane.
        let cookie =
            "import socket; print(int.from_bytes(socket.socket().getsockopt(socket.SOL_SOCKET, 71, 8), 'little'))";
        let cookie = network.balancer.run(&["python3", "-c", cookie]).unwrap_or_else(|failure| panic!("{failure}"));
        let map = format!("/sys/fs/bpf/steelyard/{}/v4/lb_sockets", cookie.trim());
        assert_eq!(bpf(&["fill", &map, "1000000"]).finish().unwrap().exit, Exit::Code(0));
        let mut client = cgroup.client(&network.balancer, "tcp", at(Family::V4), 3);
        let seen = client.report();
        assert_eq!((seen.errors.len(), seen.peers.iter().filter(|peer| peer.starts_with("20.")).count()), (0, 0));
        let status = vips
            .steelyard
            .until("it is reported", |status| status["kernel_plane"]["sockets"]["unknown"].as_u64() == Some(3));
        let findings = status["findings"].to_string();
        assert!(findings.contains("socket_table") && findings.contains("3 sockets found it full"), "{findings}");
    });
}

/// A process that waits for an endpoint that is gone would wait for ever.
#[test]
fn sockets_of_a_dead_endpoint_are_ended_where_that_is_asked_for() {
    with_cgroup("sockets_of_a_dead_endpoint_are_ended_where_that_is_asked_for", |network, cgroup| {
        let _echoes = network.echoes();
        let check =
            ", health_check: {tcp: true, interval: 100ms, timeout: 500ms, unhealthy_after: 2, healthy_after: 1}";
        let text = FAMILIES.map(|family| echo(family, &format!("{check}, on_unhealthy: reset"))).concat();
        let kept = SocketAddr::new(Family::V4.vip(9), ECHO_PORT);
        let keeps = vip("kept", kept, "tcp", &format!("endpoints: {}{check}", Family::V4.endpoints(ECHO_PORT)));
        let mut vips = serve(cgroup, &(text + &keeps));
        vips.steelyard.until("every endpoint is healthy", |status| {
            let vips = status["vips"].as_array().into_iter().flatten();
            vips.flat_map(|vip| vip["endpoints"].as_array().into_iter().flatten()).all(|it| it["state"] == "healthy")
        });
        let mapped = format!("::ffff:{}", Family::V4.vip(1));
        let mut clients = Vec::new();
        for netns in [&network.balancer, &network.client] {
            for family in FAMILIES {
                for kind in ["tcp", "udp-connected"] {
                    clients.push((kind, cgroup.client(netns, kind, at(family), 3)));
                }
            }
            clients.push(("tcp", cgroup.client_of(netns, "tcp", &mapped, ECHO_PORT, 3)));
        }
        clients.iter_mut().for_each(|(_, client)| assert_eq!(client.report().errors, Vec::<String>::new()));
        let mut other = cgroup.client(&network.balancer, "tcp", kept, 3);
        sees_the_vip(&other.report(), "20.20.20.9 7", true, 3);
        // It vanishes without a word.
        network.endpoints[0].ip("link set eth0 down").unwrap();
        for name in ["tcp-v4", "tcp-v6", "udp-v4", "udp-v6"] {
            vips.steelyard.until(&format!("those of {name} have ended"), |status| {
                support::network::endpoint_figures(status, name, "sockets")[0] == 0
            });
        }
        let status = vips.steelyard.status();
        assert_eq!(support::network::endpoint_figures(&status, "kept", "sockets"), [1; 3], "{status}");
        assert!(status["kernel_plane"]["sockets"]["cannot_end"].is_null(), "{status}");
        let mut errors = std::collections::BTreeMap::<_, Vec<String>>::new();
        for (kind, mut client) in clients {
            errors.entry(kind).or_default().extend(client.again().errors);
        }
        // A third of all. A datagram socket has lost its connection, and can make another.
        assert_eq!((errors["tcp"].len(), errors["udp-connected"].len()), (6, 4), "{errors:?}");
        let expect = ["ECONNABORTED", "EPIPE", "EDESTADDRREQ"];
        assert!(errors.values().flatten().all(|error| expect.contains(&error.as_str())), "{errors:?}");
    });
}

/// A process does not wait until Steelyard has noted that its socket was ended.
#[test]
fn sockets_that_connect_again_at_once_are_known() {
    with_cgroup("sockets_that_connect_again_at_once_are_known", |network, cgroup| {
        let _echoes = network.echoes();
        let check =
            ", health_check: {tcp: true, interval: 100ms, timeout: 500ms, unhealthy_after: 2, healthy_after: 1}";
        let mut vips = serve(cgroup, &echo(Family::V4, &format!("{check}, on_unhealthy: reset")));
        vips.steelyard.until("every endpoint is healthy", |status| {
            let vips = status["vips"].as_array().into_iter().flatten();
            vips.flat_map(|vip| vip["endpoints"].as_array().into_iter().flatten()).all(|it| it["state"] == "healthy")
        });
        // More than are ended at once.
        let count = 3600;
        let mut client = cgroup.persistent(&network.balancer, at(Family::V4), count);
        assert_eq!(client.report().peers.len(), count);
        until_open(&mut vips, "udp-v4", [1200; 3]);
        network.endpoints[0].ip("link set eth0 down").unwrap();
        vips.steelyard.until("all have other endpoints", |status| {
            let open = support::network::endpoint_figures(status, "udp-v4", "sockets");
            open[0] == 0 && open.iter().sum::<u64>() == count as u64
        });
        assert_eq!(client.again().peers, vec!["20.20.20.1 7"; count]);
        drop(client);
        until_open(&mut vips, "udp-v4", [0; 3]);
    });
}

/// The kernel tells nobody of its end.
#[test]
fn a_connection_that_sends_no_syn_does_not_count() {
    with_cgroup("a_connection_that_sends_no_syn_does_not_count", |_, cgroup| {
        let mut vips = serve(cgroup, &echo(Family::V4, ""));
        // No route leads anywhere.
        let nowhere = testkit::netns::Netns::new("nowhere").unwrap();
        let mut client = cgroup.client(&nowhere, "tcp", at(Family::V4), 3);
        assert_eq!(client.report().errors, ["ENETUNREACH"; 3]);
        let status =
            vips.steelyard.until("they were balanced", |status| vip_of(status, "tcp-v4")["sockets_total"] == 3);
        assert_eq!(support::network::endpoint_figures(&status, "tcp-v4", "sockets"), [0; 3], "{status}");
        assert!(!vips.ask(&["flows"]).contains("sk:"));
    });
}

#[test]
fn a_vip_is_no_endpoint_of_another() {
    with_cgroup("a_vip_is_no_endpoint_of_another", |network, cgroup| {
        let _echoes = network.echoes();
        let other = SocketAddr::new(Family::V4.vip(2), 80);
        let text = echo(Family::V4, "") + &vip("outer", other, "tcp", &format!("endpoints: ['{}']", at(Family::V4)));
        let vips = serve(cgroup, &text);
        let status = vips.steelyard.status();
        let why = support::network::endpoint_words(&status, "outer", "why");
        assert_eq!(why, ["it is the address of the vip tcp-v4: name the endpoints of that vip instead"], "{status}");
        let mut client = cgroup.client(&network.balancer, "tcp", other, 1);
        assert_eq!(client.report().errors, ["ECONNREFUSED"]);
        let mut client = cgroup.client(&network.balancer, "tcp", at(Family::V4), 3);
        sees_the_vip(&client.report(), "20.20.20.1 7", true, 3);
    });
}
