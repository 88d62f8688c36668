//! Tests of the resolver, with servers that answer what a test wants.

use model::{Generation, Outside, Reach};

use super::*;

fn snapshot(endpoints: &[(&str, u32)], servers: Vec<SocketAddr>) -> Snapshot {
    let endpoint = |(host, weight): &(&str, u32)| Endpoint {
        address: EndpointAddress::Name { host: (*host).to_owned(), port: 80 },
        weight: *weight,
        priority: 0,
        zone: model::Zone::Unknown,
        host: None,
    };
    Snapshot {
        generation: Generation(1),
        admin: None,
        admin_access: Default::default(),
        metrics: None,
        access_log: None,
        tracing: None,
        dns: Dns { servers, ttl_min: Duration::ZERO, ..Dns::default() },
        drain_delay: Duration::ZERO,
        drain_timeout: Duration::ZERO,
        memory_max: None,
        listeners: Vec::new(),
        clusters: vec![Cluster::new("c", endpoints.iter().map(endpoint).collect()).into()],
        vips: Vec::new(),
        flows_max: 1,
        socket_cgroup: None,
        announcing: model::Announcing::default(),
    }
}

#[test]
fn a_name_becomes_all_its_addresses() {
    let hosts = HashMap::from([("a".to_owned(), vec!["1.1.1.1".parse().unwrap(), "::1".parse().unwrap()])]);
    let addresses = Addresses { hosts, ..Addresses::default() };
    let expanded = expand(&snapshot(&[("a", 3), ("unknown", 1)], Vec::new()), &addresses);
    let got: Vec<_> = expanded.clusters[0].endpoints.iter().map(|e| (e.address.clone(), e.weight)).collect();
    let at = |text: &str| EndpointAddress::Socket(text.parse().unwrap());
    assert_eq!(got, [(at("1.1.1.1:80"), 3), (at("[::1]:80"), 3)]);
}

#[test]
fn names_of_one_namespace_hold_up_those_of_no_other() {
    let mut wanted = snapshot(&[("a.slow", 1)], Vec::new());
    let cluster = |host: &str, namespace: Option<&str>| {
        let mut cluster = Cluster::clone(&snapshot(&[(host, 1)], Vec::new()).clusters[0]);
        cluster.outside =
            Some(Outside { reach: Reach::Public, mark: "m".into(), namespace: namespace.map(Into::into) });
        Arc::new(cluster)
    };
    wanted.clusters = [
        cluster("a.slow", Some("n")),
        cluster("b.slow", Some("n")),
        cluster("shared", Some("n")),
        cluster("z.good", Some("other")),
        cluster("shared", Some("other")),
        cluster("global", None),
    ]
    .into();
    let turns = names(&wanted);
    let turn = |host: &str| turns[&Wanted::Host(host.to_owned())];
    assert_eq!((turn("a.slow").rank, turn("z.good").rank), (1, 1));
    assert_eq!((turn("b.slow").rank, turn("shared").rank), (2, 2));
    assert_eq!((turn("a.slow").by, turn("global").by), (By::Others, By::Operator));
}

#[test]
fn a_name_that_is_gone_has_no_address_in_the_end() {
    let name = Wanted::Host("a".to_owned());
    let check = |by: By, kept: bool| {
        let (found, _) = watch::channel(Found::default());
        let ips = Resolved::Ips(vec!["1.1.1.1".parse().unwrap()]);
        publish(&found, &Dns::default(), &name, by, Ok((ips, Duration::ZERO)));
        for _ in 0..OTHERS_FAILURES_MAX {
            publish(&found, &Dns::default(), &name, by, Err("no".to_owned()));
            assert_eq!(found.borrow().addresses.of(&name).len(), 1);
        }
        publish(&found, &Dns::default(), &name, by, Err("no".to_owned()));
        assert_eq!(found.borrow().addresses.of(&name).is_empty(), !kept, "{by:?}");
    };
    check(By::Operator, true);
    check(By::Others, false);
}

#[test]
fn the_records_of_a_service_become_endpoints() {
    let target = |priority, weight, host: &str, port, ips: &[&str]| {
        let ips = ips.iter().map(|ip| ip.parse().unwrap()).collect();
        Target { priority, weight, host: host.to_owned(), port, ips }
    };
    let check = |targets: &[Target], expect: &str| {
        let mut wanted = snapshot(&[("unused", 1)], Vec::new());
        let cluster = Arc::make_mut(&mut wanted.clusters[0]);
        cluster.endpoints[0].address = EndpointAddress::Service { name: "_http._tcp.a".to_owned() };
        let services = HashMap::from([("_http._tcp.a".to_owned(), targets.to_vec())]);
        let addresses = Addresses { services, ..Addresses::default() };
        assert_eq!(unreachable(&wanted, &addresses), expect.is_empty().then_some("c"));
        let told = |endpoint: &Endpoint| {
            let EndpointAddress::Socket(address) = endpoint.address else { panic!("not resolved") };
            format!("{address} {} {} {}", endpoint.weight, endpoint.priority, endpoint.host.as_deref().unwrap())
        };
        let got: Vec<String> = expand(&wanted, &addresses).clusters[0].endpoints.iter().map(told).collect();
        assert_eq!(got.join(", "), expect);
    };
    check(&[], "");
    check(&[target(0, 0, "a", 80, &[])], "");
    check(
        &[target(0, 0, "a", 80, &["1.1.1.1"]), target(0, 0, "b", 81, &["1.1.1.2"])],
        "1.1.1.1:80 100 0 a, 1.1.1.2:81 100 0 b",
    );
    // Ten to one, and hardly ever; two addresses share a weight; the next priority stands in.
    check(
        &[
            target(5, 0, "z", 80, &["1.1.1.9"]),
            target(5, 1, "a", 80, &["1.1.1.1"]),
            target(5, 10, "b", 80, &["1.1.1.2", "1.1.1.3"]),
            target(70, 0, "c", 90, &["1.1.1.4", "1.1.1.2"]),
        ],
        "1.1.1.9:80 1 0 z, 1.1.1.1:80 100 0 a, 1.1.1.2:80 500 0 b, 1.1.1.3:80 500 0 b, 1.1.1.4:90 50 1 c, 1.1.1.2:90 50 1 c",
    );
    check(&[target(0, 65_535, "a", 80, &["1.1.1.1"]), target(0, 1, "a", 80, &["1.1.1.1"])], "1.1.1.1:80 65535 0 a");
    let ips: Vec<String> = (0..=u8::MAX).map(|last| format!("10.0.0.{last}")).collect();
    let ips: Vec<&str> = ips.iter().map(String::as_str).collect();
    let all: Vec<Target> = (0..20).map(|number| target(0, 1, "a", 80 + number, &ips)).collect();
    let endpoint = &snapshot(&[("a", 1)], Vec::new()).clusters[0].endpoints[0];
    assert_eq!(of_service(&all, endpoint).len(), ENDPOINTS_MAX);
    let many: Vec<Target> = (0..9).map(|number| target(number, 1, "a", 80 + number, &["1.1.1.1"])).collect();
    assert!(of_service(&many, endpoint).iter().all(|endpoint| endpoint.priority <= 7));
}

#[test]
fn a_service_keeps_what_it_had_until_there_is_something_better() {
    let service = Wanted::Service("_http._tcp.a".to_owned());
    let target = |host: &str, ips: &[&str]| {
        let ips = ips.iter().map(|ip| ip.parse().unwrap()).collect();
        Target { priority: 0, weight: 1, host: host.to_owned(), port: 80, ips }
    };
    let mut addresses = Addresses::default();
    let mut take = |targets: &[Target]| {
        let is_news = addresses.take(&service, By::Operator, Resolved::Targets(targets.to_vec()));
        (is_news, addresses.of(&service).len())
    };
    assert_eq!(take(&[target("a", &[])]), (true, 0));
    assert_eq!(take(&[target("a", &["1.1.1.1"])]), (true, 1));
    // A target that cannot be resolved now, another one that never could, and one of two that can.
    assert_eq!(take(&[target("a", &[])]), (false, 1));
    assert_eq!(take(&[target("b", &[])]), (false, 1));
    assert_eq!(take(&[target("b", &[]), target("c", &["1.1.1.2"])]), (true, 1));
    // The service says that it is not available.
    assert_eq!(take(&[]), (true, 0));
}

/// Answers every A query with the address that `next` gives and a TTL of one second, and every other query with no
/// address.
async fn serve(socket: tokio::net::UdpSocket, mut next: impl FnMut() -> [u8; 4]) {
    let mut query = [0; 512];
    loop {
        let (length, client) = socket.recv_from(&mut query).await.unwrap();
        let question_end = 12 + query[12..].iter().position(|byte| *byte == 0).unwrap() + 5;
        let is_a = query[question_end - 4..question_end - 2] == [0, 1];
        let mut answer = query[..question_end.min(length)].to_vec();
        answer[2..12].copy_from_slice(&[0x81, 0x80, 0, 1, 0, u8::from(is_a), 0, 0, 0, 0]);
        if is_a {
            answer.extend_from_slice(&[0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 1, 0, 4]);
            answer.extend_from_slice(&next());
        }
        socket.send_to(&answer, client).await.unwrap();
    }
}

#[tokio::test]
async fn a_name_follows_its_ttl() {
    let socket = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let server = socket.local_addr().unwrap();
    let mut last = 0;
    let serving = tokio::spawn(serve(socket, move || {
        last += 1;
        [10, 0, 0, last]
    }));
    let mut resolver = Resolver::start(&snapshot(&[("api.example.com", 1)], vec![server]), None);
    resolver.asked(false).await;
    let first = resolver.addresses();
    assert_eq!(first.hosts["api.example.com"].len(), 1);
    resolver.changed().await;
    assert_ne!(resolver.addresses(), first);
    serving.abort();
}

#[tokio::test]
async fn a_name_without_an_answer_does_not_hold_up_the_start() {
    // A port on which nothing answers: it is bound but never read.
    let silent = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let wanted = snapshot(&[("api.example.com", 1)], vec![silent.local_addr().unwrap()]);
    let mut resolver = Resolver::start(&wanted, None);
    tokio::time::pause();
    resolver.asked(false).await;
    assert_eq!(resolver.addresses(), Addresses::default());
}

#[tokio::test]
async fn a_resolver_knows_what_the_one_before_it_found() {
    let socket = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let server = socket.local_addr().unwrap();
    let serving = tokio::spawn(serve(socket, || [10, 0, 0, 1]));
    let mut in_use = Resolver::start(&snapshot(&[("a.example.com", 1)], vec![server]), None);
    in_use.asked(false).await;
    serving.abort();
    let found = in_use.addresses();

    // No server answers any more. A resolver that wants other names forgets these only for itself...
    tokio::time::pause();
    let mut refused = Resolver::start(&snapshot(&[("b.example.com", 1)], vec![server]), Some(&in_use));
    refused.asked(false).await;
    assert_eq!(refused.addresses(), Addresses::default());
    assert_eq!(in_use.addresses(), found);
    drop(refused);
    // ... and one that wants the same names has them, even if it asks another server in vain.
    let silent = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    for servers in [vec![server], vec![silent]] {
        let mut next = Resolver::start(&snapshot(&[("a.example.com", 1)], servers), Some(&in_use));
        next.asked(false).await;
        assert_eq!(next.addresses(), found);
    }
}

#[test]
fn a_cluster_without_an_address_is_found() {
    let check = |endpoints: &[(&str, u32)], expect: Option<&str>| {
        let ip = |name: &str, ips: &[&str]| {
            (name.to_owned(), ips.iter().map(|ip| ip.parse().unwrap()).collect::<Vec<IpAddr>>())
        };
        let hosts = HashMap::from([ip("a", &["1.1.1.1"]), ip("empty", &[])]);
        let addresses = Addresses { hosts, ..Addresses::default() };
        assert_eq!(unreachable(&snapshot(endpoints, Vec::new()), &addresses), expect, "{endpoints:?}");
    };
    check(&[("a", 1), ("unknown", 1)], None);
    check(&[("unknown", 1), ("empty", 1)], Some("c"));
    check(&[], None);
}

/// A snapshot whose cluster is one of hosts that others have named.
fn of_others(hosts: &[&str], servers: Vec<SocketAddr>, reach: model::Reach) -> Snapshot {
    let endpoints: Vec<(&str, u32)> = hosts.iter().map(|host| (*host, 1)).collect();
    let mut snapshot = snapshot(&endpoints, servers);
    Arc::make_mut(&mut snapshot.clusters[0]).outside =
        Some(Outside { reach, mark: "m".into(), namespace: Some("n".into()) });
    snapshot
}

/// The name in a query.
fn asked_name(query: &[u8]) -> String {
    let (mut labels, mut at) = (Vec::new(), 12);
    while query[at] > 0 {
        let end = at + 1 + usize::from(query[at]);
        labels.push(String::from_utf8_lossy(&query[at + 1..end]).into_owned());
        at = end;
    }
    labels.join(".")
}

/// The answer to a query: an address to one for A, and no address to every other one.
fn answer(query: &[u8], ip: [u8; 4], ttl: u8) -> Vec<u8> {
    let question_end = 12 + query[12..].iter().position(|byte| *byte == 0).unwrap() + 5;
    let is_a = query[question_end - 4..question_end - 2] == [0, 1];
    let mut answer = query[..question_end].to_vec();
    answer[2..12].copy_from_slice(&[0x81, 0x80, 0, 1, 0, u8::from(is_a), 0, 0, 0, 0]);
    if is_a {
        answer.extend_from_slice(&[0xc0, 12, 0, 1, 0, 1, 0, 0, 0, ttl, 0, 4]);
        answer.extend_from_slice(&ip);
    }
    answer
}

#[tokio::test]
async fn a_silent_name_holds_up_no_other() {
    let socket = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let server = socket.local_addr().unwrap();
    let serving = tokio::spawn(async move {
        let mut query = [0; 512];
        loop {
            let (length, client) = socket.recv_from(&mut query).await.unwrap();
            if asked_name(&query[..length]) == "quick.example.com" {
                socket.send_to(&answer(&query[..length], [1, 1, 1, 1], 60), client).await.unwrap();
            }
        }
    });
    let hosts = ["silent.example.com", "quick.example.com"];
    let mut resolver = Resolver::start(&of_others(&hosts, vec![server], model::Reach::Public), None);
    // Nothing waits for names of others.
    resolver.asked(false).await;
    resolver.changed().await;
    assert_eq!(resolver.addresses().hosts.keys().collect::<Vec<_>>(), ["quick.example.com"]);
    assert!(!resolver.found.borrow().due.contains_key(&Wanted::Host("silent.example.com".to_owned())));
    serving.abort();
}

#[tokio::test]
async fn a_lookup_outlives_the_snapshot_that_began_it() {
    let socket = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let wanted = of_others(&["a.example.com"], vec![socket.local_addr().unwrap()], model::Reach::Public);
    let first = Resolver::start(&wanted, None);
    let mut queries = Vec::new();
    let mut query = [0; 512];
    // One for each family.
    while queries.len() < 2 {
        let (length, client) = socket.recv_from(&mut query).await.unwrap();
        queries.push((query[..length].to_vec(), client));
    }
    let mut second = Resolver::start(&wanted, Some(&first));
    drop(first);
    assert_eq!(second.lookups.count(), 1);
    for (query, client) in queries {
        socket.send_to(&answer(&query, [1, 1, 1, 1], 60), client).await.unwrap();
    }
    second.changed().await;
    assert_eq!(second.addresses().hosts["a.example.com"].len(), 1);
    let is_asked_again = socket.try_recv_from(&mut query).is_ok();
    assert!(!is_asked_again && second.lookups.count() == 0);
}

#[tokio::test]
async fn lookups_under_way_are_bounded_and_forgotten_with_their_snapshot() {
    let socket = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let hosts: Vec<String> = (0..200).map(|number| format!("a{number}.example.com")).collect();
    let hosts: Vec<&str> = hosts.iter().map(String::as_str).collect();
    let others = of_others(&hosts, vec![socket.local_addr().unwrap()], model::Reach::Public);
    let resolver = Resolver::start(&others, None);
    let (mut names, mut query) = (BTreeSet::new(), [0; 512]);
    while names.len() < 64 {
        let (length, _) = socket.recv_from(&mut query).await.unwrap();
        names.insert(asked_name(&query[..length]));
    }
    assert_eq!(resolver.lookups.count(), 200);
    // The names of the operator have a limit of their own.
    let mut both = others.clone();
    both.clusters.push(snapshot(&[("operator.example.com", 1)], Vec::new()).clusters.remove(0));
    let next = Resolver::start(&both, Some(&resolver));
    while !names.contains("operator.example.com") {
        let (length, _) = socket.recv_from(&mut query).await.unwrap();
        names.insert(asked_name(&query[..length]));
    }
    assert_eq!(names.len(), 65);
    // Those that wait are not asked for any more when nothing wants them.
    let lookups = next.lookups.clone();
    drop((resolver, next));
    while lookups.count() > 65 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn names_of_others_do_not_keep_the_process_busy() {
    let dns = Dns { ttl_min: Duration::ZERO, ..Dns::default() };
    let (found, _) = watch::channel(Found::default());
    let name = Wanted::Host("a.example.com".to_owned());
    let ips: Vec<IpAddr> = (0..=255_u8).map(|last| [1, 1, 1, last].into()).collect();
    let resolved = || Ok((Resolved::Ips(ips.clone()), Duration::ZERO));
    let wait = |by, answer| publish(&found, &dns, &name, by, answer) - Instant::now();
    assert_eq!(wait(By::Operator, resolved()), Duration::ZERO);
    assert_eq!(wait(By::Others, resolved()), OTHERS_TTL_MIN);
    assert_eq!(found.borrow().addresses.of(&name).len(), OTHERS_KEPT_MAX);
    for seconds in [5, 15, 60, 60] {
        assert_eq!(wait(By::Others, Err("no answer".to_owned())), Duration::from_secs(seconds));
    }
    assert_eq!(found.borrow().addresses.of(&name).len(), OTHERS_KEPT_MAX, "it keeps its addresses");
    assert_eq!(wait(By::Others, resolved()), OTHERS_TTL_MIN);
    assert_eq!(wait(By::Others, Err("no answer".to_owned())), Duration::from_secs(5));
}

#[tokio::test(start_paused = true)]
async fn changes_are_told_now_and_then() {
    let (found_tx, found) = watch::channel(Found::default());
    let mut resolver = Resolver { found, ..Resolver::idle() };
    let change = || found_tx.send_modify(|_| {});
    change();
    resolver.changed().await;
    let applied = Instant::now();
    resolver.applied();
    change();
    change();
    // Something else comes first, often. The change is not lost by it.
    for _ in 0..3 {
        tokio::select! {
            biased;
            () = resolver.changed() => panic!("too early"),
            () = tokio::task::yield_now() => {}
        }
    }
    resolver.changed().await;
    assert!(applied.elapsed() >= APPLY_EVERY);
    // A new snapshot does not begin anew.
    resolver.applied();
    let next = Resolver::start(&snapshot(&[], Vec::new()), Some(&resolver));
    assert_eq!(next.hold_until, resolver.hold_until);
}

#[test]
fn only_addresses_in_reach_become_endpoints() {
    let check = |ips: &[&str], reach, expect: &[&str]| {
        let ips = ips.iter().map(|ip| ip.parse().unwrap()).collect();
        let addresses = Addresses { hosts: HashMap::from([("a.b".to_owned(), ips)]), ..Addresses::default() };
        let expanded = expand(&of_others(&["a.b"], Vec::new(), reach), &addresses);
        let got: Vec<String> = expanded.clusters[0].endpoints.iter().map(|e| format!("{:?}", e.address)).collect();
        let expect: Vec<String> = expect.iter().map(|ip| format!("Socket({ip}:80)")).collect();
        assert_eq!(got, expect);
    };
    let all = ["1.1.1.1", "10.255.255.1", "127.0.0.1", "169.254.169.254", "::1", "2606:4700::1111"];
    check(&all, model::Reach::Public, &["1.1.1.1", "[2606:4700::1111]"]);
    check(&all, model::Reach::Private, &["1.1.1.1", "10.255.255.1", "[2606:4700::1111]"]);
    // What is written is judged in the same way.
    let mut written = of_others(&["a.b", "c.d"], Vec::new(), model::Reach::Public);
    let endpoints = &mut Arc::make_mut(&mut written.clusters[0]).endpoints;
    endpoints[0].address = EndpointAddress::Socket("10.0.0.1:80".parse().unwrap());
    endpoints[1].address = EndpointAddress::Socket("1.1.1.1:80".parse().unwrap());
    assert_eq!(expand(&written, &Addresses::default()).clusters[0].endpoints.len(), 1);
    // This host's own address.
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
    if socket.connect("192.0.2.1:9").is_ok() {
        let own = socket.local_addr().unwrap().ip().to_string();
        check(&[&own], model::Reach::Private, &[]);
    }
    let many: Vec<String> = (0..100).map(|last| format!("1.1.1.{last}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    check(&many, model::Reach::Public, &many[..OTHERS_ENDPOINTS_MAX]);
    // They are no reason not to take over from another process.
    assert_eq!(unreachable(&of_others(&["a.b"], Vec::new(), model::Reach::Public), &Addresses::default()), None);
}
