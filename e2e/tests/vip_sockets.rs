//! Vips for processes of the host and of its pods, balanced when they connect: real clients in a control group of the test.
//!
//! A pod is a namespace whose processes are in that control group: here, that of the client.
#![forbid(unsafe_code)]

mod support;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::process::Command;

use support::at_sockets::{at, config, echo, sees_the_vip, serve, until_open, vip_of, with_cgroup};
use support::cgroup::{Cgroup, Client};
use support::echo::ECHO_PORT;
use support::network::{FAMILIES, Family, Vips, endpoint_figures, vip};
use support::{Scratch, Steelyard, skip};
use testkit::netns::Netns;
use testkit::{Exit, PATIENCE, Program, Signal};

#[test]
fn a_process_of_the_host_or_of_a_pod_gets_an_endpoint() {
    with_cgroup("a_process_of_the_host_or_of_a_pod_gets_an_endpoint", |network, cgroup| {
        let _echoes = network.echoes();
        let mut vips = serve(cgroup, &FAMILIES.map(|family| echo(family, "")).concat());
        for where_from in [&network.balancer, &network.client] {
            for family in FAMILIES {
                let name = format!("{family:?}").to_lowercase();
                let vip = format!("{} {ECHO_PORT}", at(family).ip());
                let before = endpoint_figures(&vips.steelyard.status(), &format!("udp-{name}"), "sockets_total");
                let mut clients = Vec::new();
                for kind in ["tcp", "udp-connected", "udp"] {
                    let mut client = cgroup.client(where_from, kind, at(family), 6);
                    sees_the_vip(&client.report(), &vip, kind != "udp", 6);
                    sees_the_vip(&client.again(), &vip, kind != "udp", 6);
                    clients.push(client);
                }
                // Six of each kind, by round robin.
                until_open(&mut vips, &format!("tcp-{name}"), [2, 2, 2]);
                let status = until_open(&mut vips, &format!("udp-{name}"), [2, 2, 2]);
                let made = endpoint_figures(&status, &format!("udp-{name}"), "sockets_total");
                assert!(made.iter().zip(&before).all(|(made, before)| made - before == 4), "{before:?} {made:?}");
                // The kernel knows the endpoints as the peers of these sockets.
                let peers =
                    where_from.run(&["ss", "-Htn", "state", "established", "dport", "=", &ECHO_PORT.to_string()]);
                let peers = peers.unwrap_or_else(|failure| panic!("{failure}"));
                let peers: BTreeSet<&str> = peers.lines().filter_map(|line| line.split_whitespace().last()).collect();
                let expect: Vec<String> =
                    (0..3).map(|index| SocketAddr::new(family.endpoint(index), ECHO_PORT).to_string()).collect();
                assert_eq!(peers, expect.iter().map(String::as_str).collect(), "{family:?}");
                let flows = vips.ask(&["flows", "--vip", &format!("tcp-{name}")]);
                let connected = flows.lines().filter(|line| line.contains("sk:") && line.contains("connected")).count();
                assert_eq!(connected, 6, "{flows}");
                drop(clients);
                until_open(&mut vips, &format!("tcp-{name}"), [0; 3]);
                until_open(&mut vips, &format!("udp-{name}"), [0; 3]);
            }
            // An IPv6 socket that asks for an IPv4 address.
            let mapped = format!("::ffff:{}", Family::V4.vip(1));
            for kind in ["tcp", "udp-connected", "udp"] {
                let mut client = cgroup.client_of(where_from, kind, &mapped, ECHO_PORT, 3);
                sees_the_vip(&client.report(), &format!("{mapped} {ECHO_PORT}"), kind != "udp", 3);
            }
        }
        // No packet was translated.
        let status = vips.steelyard.status();
        for vip in status["vips"].as_array().unwrap() {
            assert_eq!((vip["flows_total"].as_u64(), &vip["drops"]), (Some(0), &serde_json::json!({})), "{vip}");
            let name = vip["name"].as_str().unwrap();
            for figure in ["packets_to", "packets_from"] {
                assert_eq!(endpoint_figures(&status, name, figure), [0; 3], "{vip}");
            }
        }
    });
}

/// Only the endpoint to which the kernel has connected the socket can answer it.
#[test]
fn a_connected_socket_may_name_its_peer() {
    with_cgroup("a_connected_socket_may_name_its_peer", |network, cgroup| {
        let _echoes = network.echoes();
        let _vips = serve(cgroup, &FAMILIES.map(|family| echo(family, "")).concat());
        for family in FAMILIES {
            let mut client = cgroup.client(&network.balancer, "udp-named", at(family), 12);
            let vip = format!("{} {ECHO_PORT}", at(family).ip());
            sees_the_vip(&client.report(), &vip, true, 12);
            sees_the_vip(&client.again(), &vip, true, 12);
        }
    });
}

#[test]
fn one_socket_asks_two_vips_with_one_endpoint() {
    with_cgroup("one_socket_asks_two_vips_with_one_endpoint", |network, cgroup| {
        let _echoes = network.echoes();
        for family in FAMILIES {
            let places = [1, 2].map(|number| SocketAddr::new(family.vip(number), ECHO_PORT));
            let rest = format!("endpoints: ['{}']", SocketAddr::new(family.endpoint(0), ECHO_PORT));
            let both: String =
                places.iter().zip(["a", "b"]).map(|(place, name)| vip(name, *place, "udp", &rest)).collect();
            let _vips = serve(cgroup, &both);
            let addresses = places.map(|place| place.ip().to_string()).join(",");
            let mut client = cgroup.client_of(&network.balancer, "udp", &addresses, ECHO_PORT, 4);
            let last = format!("{} {ECHO_PORT}", places[1].ip());
            sees_the_vip(&client.report(), &last, false, 4);
            sees_the_vip(&client.again(), &last, false, 4);
        }
    });
}

#[test]
fn programs_of_others_as_client_and_endpoint() {
    with_cgroup("programs_of_others_as_client_and_endpoint", |network, cgroup| {
        if Command::new("nginx").arg("-v").output().is_err() {
            return skip("programs_of_others_as_client_and_endpoint", "nginx is not installed");
        }
        let scratch = Scratch::new();
        let _nginx: Vec<Program> = (0..3)
            .map(|index| {
                let text = format!(
                    "daemon off; pid {0}/pid{index}; error_log stderr; events {{}}\nhttp {{ access_log off; server {{ listen [::]:5001; \
                     listen 5001; location / {{ return 200 ep{index}; }} }} }}",
                    scratch.path().display()
                );
                let file = scratch.write(&format!("nginx{index}.conf"), &text);
                let words = ["-e", "stderr", "-c", &file];
                network.endpoints[index].spawn("nginx", Command::new("nginx").args(words)).unwrap()
            })
            .collect();
        let health = "health_check: {http: /, interval: 100ms, healthy_after: 1}";
        let vips: String = FAMILIES
            .map(|family| {
                let rest = format!("endpoints: {}, {health}", family.endpoints(5001));
                vip(&format!("web-{family:?}").to_lowercase(), SocketAddr::new(family.vip(1), 80), "tcp", &rest)
            })
            .concat();
        let mut vips = serve(cgroup, &vips);
        vips.steelyard.until("every nginx is healthy", |status| {
            let vips = status["vips"].as_array().into_iter().flatten();
            vips.flat_map(|vip| vip["endpoints"].as_array().into_iter().flatten()).all(|it| it["state"] == "healthy")
        });
        for netns in [&network.balancer, &network.client] {
            for family in FAMILIES {
                let to = SocketAddr::new(family.vip(1), 80);
                let answers: BTreeSet<String> = (0..3).map(|_| fetch(netns, cgroup, to)).collect();
                let expect = (0..3).map(|index| format!("ep{index} {}:80", to.ip()));
                assert_eq!(answers, expect.collect(), "{to}");
            }
        }
        assert_eq!(vip_of(&vips.steelyard.status(), "web-v4")["flows_total"], 0);
    });
}

/// The body, and the address that curl believes to be connected to.
fn fetch(netns: &Netns, cgroup: &Cgroup, to: SocketAddr) -> String {
    let words = ["curl", "-gsS", "--max-time", "30", "-w", " %{remote_ip}:%{remote_port}", &format!("http://{to}/")];
    let finished = netns.spawn("curl", &mut cgroup.command(&words)).unwrap().finish().unwrap();
    assert_eq!(finished.exit, Exit::Code(0), "{to}: {}", finished.stderr);
    finished.stdout
}

#[test]
fn the_choice_is_that_of_packets() {
    with_cgroup("the_choice_is_that_of_packets", |network, cgroup| {
        let _echoes = network.echoes();
        let to = at(Family::V4);
        let endpoints = |rest: &str| {
            let list = ["31.31.31.1:7", "32.32.32.1:7"].map(|at| format!("{{address: '{at}', weight: 1}}"));
            let heavy = "{address: '33.33.33.1:7', weight: 2}";
            vip("tcp-v4", to, "tcp", &format!("endpoints: [{}, {heavy}]{rest}", list.join(", ")))
        };
        let mut vips = serve(cgroup, &endpoints(""));
        let open = |vips: &mut Vips, expect: [u64; 3]| {
            vips.steelyard
                .until(&format!("{expect:?} open"), |status| endpoint_figures(status, "tcp-v4", "sockets") == expect);
        };
        // Weights.
        let mut client = cgroup.client(&network.balancer, "tcp", to, 8);
        sees_the_vip(&client.report(), "20.20.20.1 7", true, 8);
        open(&mut vips, [2, 2, 4]);
        // What is drained keeps its sockets and gets no others.
        vips.ask(&["endpoint", "drain", "33.33.33.1:7"]);
        let mut other = cgroup.client(&network.client, "tcp", to, 4);
        sees_the_vip(&other.report(), "20.20.20.1 7", true, 4);
        open(&mut vips, [4, 4, 4]);
        sees_the_vip(&client.again(), "20.20.20.1 7", true, 8);
        drop((client, other));
        open(&mut vips, [0, 0, 0]);
        // The better of two by sockets that are open: the first endpoint has some, so the next ones go to the second.
        vips.steelyard.reload(&config(cgroup.path(), &endpoints(", balance: least_connections")), |status| {
            vip_of(status, "tcp-v4")["algorithm"] == "least_connections"
        });
        let mut client = cgroup.client(&network.balancer, "tcp", to, 64);
        sees_the_vip(&client.report(), "20.20.20.1 7", true, 64);
        let status = vips.steelyard.until("all are open", |status| vip_of(status, "tcp-v4")["sockets"] == 64);
        let figures = endpoint_figures(&status, "tcp-v4", "sockets");
        assert!(figures[2] == 0 && figures[0].abs_diff(figures[1]) <= 16, "{figures:?}");
        drop(client);
        // A namespace is a client: all its processes stay with one endpoint.
        vips.steelyard.reload(&config(cgroup.path(), &endpoints(", affinity: 1h")), |status| {
            vip_of(status, "tcp-v4")["algorithm"] == "round_robin"
        });
        open(&mut vips, [0, 0, 0]);
        let clients: Vec<Client> = (0..3)
            .map(|_| {
                let mut client = cgroup.client(&network.balancer, "tcp", to, 2);
                sees_the_vip(&client.report(), "20.20.20.1 7", true, 2);
                client
            })
            .collect();
        let status = vips.steelyard.until("all are open", |status| vip_of(status, "tcp-v4")["sockets"] == 6);
        assert!(endpoint_figures(&status, "tcp-v4", "sockets").contains(&6), "{status}");
        drop(clients);
        for (balance, spread) in [("source_hash", false), ("maglev", true), ("random", true)] {
            let rest = format!(", balance: {balance}");
            vips.steelyard.reload(&config(cgroup.path(), &endpoints(&rest)), |status| {
                vip_of(status, "tcp-v4")["algorithm"] == balance
            });
            open(&mut vips, [0, 0, 0]);
            let mut client = cgroup.client(&network.balancer, "tcp", to, 48);
            sees_the_vip(&client.report(), "20.20.20.1 7", true, 48);
            let status = vips.steelyard.until("all are open", |status| vip_of(status, "tcp-v4")["sockets"] == 48);
            let used = endpoint_figures(&status, "tcp-v4", "sockets").iter().filter(|open| **open > 0).count();
            assert_eq!(used, if spread { 2 } else { 1 }, "{balance}: {status}");
        }
    });
}

#[test]
fn a_vip_without_endpoints_refuses() {
    with_cgroup("a_vip_without_endpoints_refuses", |network, cgroup| {
        let _echoes = network.echoes();
        let vips = serve(cgroup, &echo(Family::V4, ""));
        for index in 0..3 {
            let endpoint = SocketAddr::new(Family::V4.endpoint(index), ECHO_PORT).to_string();
            vips.ask(&["endpoint", "drain", &endpoint]);
        }
        for kind in ["tcp", "udp-connected", "udp"] {
            let mut client = cgroup.client(&network.balancer, kind, at(Family::V4), 2);
            assert_eq!(client.report().errors, ["ECONNREFUSED"; 2], "{kind}");
        }
        let status = vips.steelyard.status();
        assert_eq!(vip_of(&status, "tcp-v4")["drops"]["no_endpoint"], 2, "{status}");
        assert_eq!(vip_of(&status, "udp-v4")["drops"]["no_endpoint"], 4, "{status}");
        let traced = vips.steelyard.ask(&["trace", "--vip", "tcp-v4", "--from", "local"]);
        assert_eq!(traced.exit, Exit::Code(1), "{}", traced.stdout);
        assert!(traced.stdout.contains("no_endpoint"), "{}", traced.stdout);
    });
}

#[test]
fn what_is_not_balanced_at_the_socket() {
    with_cgroup("what_is_not_balanced_at_the_socket", |network, cgroup| {
        let _echoes = network.echoes();
        let vips = serve(cgroup, &echo(Family::V4, ", deny: [192.0.2.0/24]"));
        // No route of this host leads to the vip, so only a balanced connection would succeed.
        let mut client = cgroup.client(&network.balancer, "tcp", at(Family::V4), 1);
        assert_eq!(client.report().errors, ["ENETUNREACH"]);
        let traced = vips.steelyard.ask(&["trace", "--vip", "tcp-v4", "--from", "local"]);
        assert_eq!(traced.exit, Exit::Code(1), "{}", traced.stdout);
        assert!(traced.stdout.contains("limits its clients"), "{}", traced.stdout);
        // A process of another control group.
        let mut vips = vips;
        vips.steelyard
            .reload(&config(cgroup.path(), &echo(Family::V4, "")), |status| status["generation"].as_u64() >= Some(2));
        let words = ["curl", "-s", "--max-time", "30", "http://20.20.20.1:7/"];
        let finished =
            network.balancer.spawn("curl", Command::new(words[0]).args(&words[1..])).unwrap().finish().unwrap();
        assert_eq!(finished.exit, Exit::Code(7), "{}{}", finished.stdout, finished.stderr);
        let mut client = cgroup.client(&network.balancer, "tcp", at(Family::V4), 1);
        sees_the_vip(&client.report(), "20.20.20.1 7", true, 1);
        let traced = vips.ask(&["trace", "--vip", "tcp-v4", "--from", "local"]);
        assert!(traced.contains("connected to 3"), "{traced}");
    });
}

#[test]
fn it_outlives_the_process_and_ends_with_the_setting() {
    with_cgroup("it_outlives_the_process_and_ends_with_the_setting", |network, cgroup| {
        let _echoes = network.echoes();
        let to = at(Family::V4);
        let mut vips = serve(cgroup, &echo(Family::V4, ""));
        let mut client = cgroup.client(&network.balancer, "tcp", to, 3);
        sees_the_vip(&client.report(), "20.20.20.1 7", true, 3);
        until_open(&mut vips, "tcp-v4", [1, 1, 1]);
        vips.steelyard.program.signal(Signal::KILL).unwrap();
        vips.steelyard.program.exit_within(PATIENCE).unwrap();
        sees_the_vip(&client.again(), "20.20.20.1 7", true, 3);
        let mut late = cgroup.client(&network.client, "tcp", to, 3);
        sees_the_vip(&late.report(), "20.20.20.1 7", true, 3);
        // Another process takes over, with every socket that is known.
        let file = vips.steelyard.file();
        vips.steelyard.start_again(&file);
        until_open(&mut vips, "tcp-v4", [2, 2, 2]);
        drop(late);
        until_open(&mut vips, "tcp-v4", [1, 1, 1]);
        // Without the setting, sockets stay connected, and nothing hides their endpoints.
        vips.reload(&echo(Family::V4, ""));
        until_open(&mut vips, "tcp-v4", [0, 0, 0]);
        let seen = client.again();
        let peers: BTreeSet<&str> = seen.peers.iter().map(String::as_str).collect();
        assert_eq!(peers, ["31.31.31.1 7", "32.32.32.1 7", "33.33.33.1 7"].into(), "{seen:?}");
        let mut refused = cgroup.client(&network.balancer, "tcp", to, 1);
        assert_eq!(refused.report().errors, ["ENETUNREACH"]);
        // And again with it, until the programs are taken down.
        vips.steelyard.reload(&config(cgroup.path(), &echo(Family::V4, "")), |status| {
            status["kernel_plane"]["sockets"]["why_not"].is_null() && !status["kernel_plane"]["sockets"].is_null()
        });
        let mut client = cgroup.client(&network.balancer, "tcp", to, 3);
        sees_the_vip(&client.report(), "20.20.20.1 7", true, 3);
        until_open(&mut vips, "tcp-v4", [1, 1, 1]);
        drop(vips);
        let mut refused = cgroup.client(&network.balancer, "tcp", to, 1);
        assert_eq!(refused.report().errors, ["ENETUNREACH"]);
    });
}

#[test]
fn a_vip_that_is_removed_leaves_its_sockets_connected() {
    with_cgroup("a_vip_that_is_removed_leaves_its_sockets_connected", |network, cgroup| {
        let _echoes = network.echoes();
        let to = at(Family::V4);
        let both = FAMILIES.map(|family| echo(family, "")).concat();
        let mut vips = serve(cgroup, &both);
        let mut client = cgroup.client(&network.balancer, "tcp", to, 3);
        sees_the_vip(&client.report(), "20.20.20.1 7", true, 3);
        vips.steelyard.reload(&config(cgroup.path(), &echo(Family::V6, "")), |status| {
            status["vips"].as_array().is_some_and(|vips| vips.len() == 2)
        });
        assert_eq!(client.again().errors, Vec::<String>::new());
        // The indexes of its endpoints become free only when nothing refers to them.
        vips.steelyard.reload(&config(cgroup.path(), &both), |status| {
            status["vips"].as_array().is_some_and(|vips| vips.len() == 4)
        });
        assert_eq!(client.again().errors, Vec::<String>::new());
        let mut more = cgroup.client(&network.balancer, "tcp", to, 3);
        sees_the_vip(&more.report(), "20.20.20.1 7", true, 3);
        drop((client, more));
        until_open(&mut vips, "tcp-v4", [0, 0, 0]);
    });
}

#[test]
fn a_wrong_control_group_costs_the_vips_nothing() {
    with_cgroup("a_wrong_control_group_costs_the_vips_nothing", |network, cgroup| {
        let _echoes = network.echoes();
        let gone = format!("{}/none", cgroup.path());
        for (path, why) in [("/", "it belongs to another file system"), (&gone, "No such file or directory")] {
            let text = config(path, &echo(Family::V4, ""));
            let mut vips = Vips { steelyard: Steelyard::serve(&text, 1) };
            let status = vips.steelyard.status();
            let told = status["kernel_plane"]["sockets"]["why_not"].as_str().unwrap_or_default().to_owned();
            let parent = cgroup.path().rsplit_once('/').unwrap().0;
            assert!(told.contains(why) && told.contains(parent), "{told}");
            assert!(status["findings"].to_string().contains("sockets"), "{status}");
            vips.steelyard.program.says("is not a control group of version 2").unwrap();
            let traced = vips.steelyard.ask(&["trace", "--vip", "tcp-v4", "--from", "local"]);
            assert!(traced.stdout.contains(why), "{}", traced.stdout);
            // Packets are balanced as ever.
            support::echo::exchange(&network.connect(at(Family::V4)), "hello").unwrap();
        }
    });
}
