//! Invented runs for tests: plausible figures from a seed.
//!
//! It makes a [`Run`] for each kind of table, with the faults of a real one: a missing contender, one that died, one that answered errors.
//! The true values behind the figures are known here, so a test can check whether a report found them.

use crate::record::*;
use crate::stats::Rng;

/// Rounds of a sample. They suffice for intervals without the extremes.
const ROUNDS: u32 = 10;

/// The invented costs of a contender.
struct Maker {
    name: &'static str,
    title: &'static str,
    layer: Layer,
    /// CPU of the balancer per operation, in µs.
    lb_us: f64,
    /// CPU of the origins per operation, in µs.
    origin_us: f64,
    rss_mib: f64,
}

const fn maker(
    name: &'static str,
    title: &'static str,
    layer: Layer,
    lb_us: f64,
    origin_us: f64,
    rss_mib: f64,
) -> Maker {
    Maker { name, title, layer, lb_us, origin_us, rss_mib }
}

const MAKERS: &[Maker] = &[
    maker("direct", "direct", Layer::Direct, 0.0, 8.0, 0.0),
    maker("routed", "routed", Layer::Routed, 4.0, 8.0, 0.0),
    maker("nodeport", "NodePort (nftables DNAT)", Layer::Kernel, 5.0, 8.0, 0.0),
    maker("steelyard-vip", "Steelyard vip", Layer::Kernel, 3.8, 8.0, 0.0),
    maker("steelyard-tcp", "Steelyard tcp", Layer::Tcp, 11.9, 8.1, 9.0),
    maker("haproxy-tcp", "HAProxy tcp", Layer::Tcp, 13.3, 8.2, 40.0),
    maker("envoy-tcp", "Envoy tcp", Layer::Tcp, 26.0, 8.2, 70.0),
    maker("steelyard-http", "Steelyard http", Layer::Http, 12.1, 8.0, 12.0),
    maker("nginx-http", "nginx http", Layer::Http, 15.2, 8.3, 18.0),
    maker("haproxy-http", "HAProxy http", Layer::Http, 16.0, 8.2, 45.0),
    maker("envoy-http", "Envoy http", Layer::Http, 45.0, 8.6, 80.0),
    maker("steelyard-h2", "Steelyard h2", Layer::H2, 7.0, 9.0, 12.0),
    maker("nginx-grpc", "nginx grpc", Layer::H2, 30.0, 14.0, 18.0),
    maker("envoy-h2", "Envoy h2", Layer::H2, 33.0, 9.5, 80.0),
];

fn maker_of(contender: &str) -> &'static Maker {
    MAKERS.iter().find(|maker| maker.name == contender).unwrap_or_else(|| panic!("no maker {contender}"))
}

/// An analysed run of the table's scenario.
pub(crate) fn run(table: Table) -> Run {
    let mut run = raw(table);
    super::analyse(&mut run);
    run
}

/// The same run before it is analysed.
pub(crate) fn raw(table: Table) -> Run {
    let scenario = match table {
        Table::L4l7Ab => l4l7_ab(),
        Table::GrpcGateway => grpc_gateway(),
        Table::L4Matrix => l4_matrix(),
        Table::TcpDownstream => tcp_downstream(),
        Table::CpuScaling => cpu_scaling(),
        Table::Generic => Scenario { table: Table::Generic, ..l4l7_ab() },
    };
    let mut names: Vec<&str> = scenario.instances.iter().map(|instance| instance.contender.as_str()).collect();
    names.dedup();
    let contenders = names.iter().map(|name| contender(name)).collect();
    let mut run = Run {
        schema: SCHEMA,
        program: "steelyard 0.1.0".into(),
        started: "2026-01-02T03:04:05Z".into(),
        ended: Some("2026-01-02T03:14:05Z".into()),
        partial: None,
        reproduce: format!("steelyard lab run {} --seed 42 --rounds {ROUNDS}", scenario.name),
        quick: false,
        seed: 42,
        rounds: ROUNDS,
        environment: environment(),
        calibrations: scenario.cases.iter().map(calibration).collect(),
        contenders,
        gaps: vec![Gap { what: "ipvs".into(), why: "CONFIG_IP_VS is not in this kernel".into() }],
        cells: Vec::new(),
        notes: Vec::new(),
        kept: false,
        statistics: Vec::new(),
        conclusions: Vec::new(),
        scenario,
    };
    run.cells = cells(&run.scenario);
    run
}

fn contender(name: &str) -> Contender {
    let Maker { title, layer, .. } = maker_of(name);
    let has_program = matches!(layer, Layer::Tcp | Layer::Http | Layer::H2);
    let program = if has_program { format!("/usr/sbin/{name}") } else { String::new() };
    let sha256 = if has_program { "0123456789abcdef".repeat(4) } else { String::new() };
    Contender { name: name.into(), title: (*title).into(), layer: *layer, version: "1.2.3".into(), program, sha256 }
}

fn environment() -> Environment {
    Environment {
        cpu_model: "An Example CPU".into(),
        cpus: 12,
        threads_per_core: 1,
        memory_bytes: 8 << 30,
        hypervisor: Some("kvm".into()),
        kernel: "6.1.0".into(),
        os: "Debian GNU/Linux 12 (bookworm)".into(),
        irq_time_accounting: Some(false),
        hz: Some(250),
        cgroups: Cgroups::V2,
        limits: Limits { open_files: 1 << 20, somaxconn: 4096 },
        sysctls: vec![Setting { name: "net.ipv4.tcp_congestion_control".into(), value: "cubic".into() }],
        load_average: 0.3,
        is_root: true,
        guest: None,
        placement: "CPUs 0 to 3: balancer; CPUs 4 to 7: load; CPUs 8 to 11: origins".into(),
        ..Environment::default()
    }
}

fn calibration(case: &Case) -> Calibration {
    Calibration {
        case: case.name.clone(),
        generator_ceiling_per_s: Some(400_000.0),
        origin_ceiling_per_s: Some(300_000.0),
        unloaded_p50_us: Some(60.0),
    }
}

fn scenario(name: &str, table: Table, reference: &str, contenders: &[&str], cases: Vec<Case>) -> Scenario {
    let instances: Vec<Instance> = contenders.iter().map(|contender| instance(contender)).collect();
    let mut cases = cases;
    for case in &mut cases {
        case.instances = instances.iter().map(|instance| instance.id.clone()).collect();
    }
    Scenario {
        name: name.into(),
        table,
        report: Some("A published report".into()),
        title: "A scenario that never took place".into(),
        title_zh: Some("从未运行的场景".into()),
        question: "Does the report find the truth behind the figures?".into(),
        topology: "load -- balancer -- origins".into(),
        loopback: false,
        reference: reference.into(),
        twins: vec![reference.into()],
        cases,
        instances,
        mtu: 1500,
        steering: true,
        endpoints: 3,
    }
}

/// `haproxy-tcp*2` for a chain, `envoy-http@4` for workers, `nginx-http:default`.
fn instance(id: &str) -> Instance {
    let (rest, workers) = id.split_once('@').map_or((id, 1), |(rest, workers)| (rest, workers.parse().unwrap()));
    let (rest, hops) = rest.split_once('*').map_or((rest, 1), |(rest, hops)| (rest, hops.parse().unwrap()));
    let (name, variant) = rest.strip_suffix(":default").map_or((rest, Variant::Tuned), |name| (name, Variant::Default));
    let is_direct = maker_of(name).layer == Layer::Direct;
    Instance {
        id: id.into(),
        contender: name.into(),
        variant,
        hops: if is_direct { 0 } else { hops },
        workers,
        address: "10.0.0.1:80".into(),
        commands: vec![format!("{name} -c example.cfg")],
        configuration: format!("# {name}\nlisten 10.0.0.1:80\n<tag> & \"quotes\"\n"),
    }
}

fn case(name: &str, label: &str, kind: LoadKind, connections: u32, mode: Mode) -> Case {
    let kind_of_origin = match kind.protocol() {
        Protocol::Http | Protocol::H2Http | Protocol::Https => OriginKind::Http,
        Protocol::H2 => OriginKind::Grpc,
        Protocol::Tcp => OriginKind::Tcp,
    };
    Case {
        name: name.into(),
        title: format!("{label}, made up"),
        instances: Vec::new(),
        origin: origin(kind_of_origin),
        load: LoadSpec {
            kind,
            mode,
            connections,
            streams: 1,
            arguments: Vec::new(),
            ramp_ms: 500,
            warm_up_ms: 2000,
            measure_ms: 5000,
            trim_ms: 500,
        },
        label: Some(label.into()),
    }
}

fn origin(kind: OriginKind) -> OriginSpec {
    OriginSpec { kind, arguments: vec!["--delay=2ms".into()], count: 3 }
}

fn open(rate: f64, pacing: Pacing) -> Mode {
    Mode::Open { rate: Rate::Fixed(rate), pacing }
}

fn l4l7_ab() -> Scenario {
    let steady =
        |share: f64| Mode::Open { rate: Rate::OfSlowest { share, case: "capacity".into() }, pacing: Pacing::Uniform };
    let contenders = [
        "direct",
        "nodeport",
        "steelyard-vip",
        "steelyard-tcp",
        "haproxy-tcp",
        "steelyard-http",
        "nginx-http",
        "nginx-http:default",
        "haproxy-http",
        "envoy-http",
    ];
    let cases = vec![
        case("capacity", "1000 Concurrency", LoadKind::Http, 1000, Mode::Closed),
        case("steady-50", "50 %", LoadKind::Http, 64, steady(0.5)),
        case("steady-80", "80 %", LoadKind::Http, 64, steady(0.8)),
    ];
    scenario("l4l7-ab", Table::L4l7Ab, "nodeport", &contenders, cases)
}

fn grpc_gateway() -> Scenario {
    let mut cases = vec![case("service-0", "0m", LoadKind::Grpc, 1, Mode::Closed)];
    for connections in [100, 300, 1000] {
        for rate in [1000.0, 2000.0, 4000.0] {
            let name = format!("paced-{connections}-{rate}");
            let label = format!("{connections} connections, {rate}/s");
            cases.push(case(&name, &label, LoadKind::Grpc, connections, open(rate, Pacing::Uniform)));
        }
    }
    scenario("grpc-gateway", Table::GrpcGateway, "direct", &["direct", "steelyard-h2", "nginx-grpc", "envoy-h2"], cases)
}

fn l4_matrix() -> Scenario {
    let cases = vec![
        case("http-rps", "wrk(RPS)", LoadKind::Http, 400, Mode::Closed),
        case("tcp-crr", "netperf(CRR)", LoadKind::TcpCrr, 50, Mode::Closed),
        case("tcp-rr", "netperf(RR)", LoadKind::TcpRr, 1, Mode::Closed),
        case("tcp-stream", "iperf", LoadKind::Stream, 100, Mode::Closed),
    ];
    let contenders = ["routed", "direct", "nodeport", "steelyard-vip", "steelyard-tcp", "haproxy-tcp"];
    scenario("l4-matrix", Table::L4Matrix, "routed", &contenders, cases)
}

fn tcp_downstream() -> Scenario {
    let cases = vec![
        case("saturate", "saturate", LoadKind::Stream, 100, Mode::Closed),
        case("paced", "paced", LoadKind::StreamPaced, 100, open(2000.0, Pacing::Uniform)),
    ];
    let contenders = ["direct", "nodeport", "steelyard-tcp", "haproxy-tcp", "steelyard-tcp*2", "envoy-tcp*2"];
    scenario("tcp-downstream", Table::TcpDownstream, "direct", &contenders, cases)
}

fn cpu_scaling() -> Scenario {
    let contenders =
        ["steelyard-http@1", "steelyard-http@2", "steelyard-http@4", "nginx-http@1", "nginx-http@2", "nginx-http@4"];
    let cases = vec![case("keep-keep", "keepalive", LoadKind::Http, 64, Mode::Closed)];
    scenario("cpu-scaling", Table::CpuScaling, "nginx-http@1", &contenders, cases)
}

/// Every cell, in shuffled rounds.
fn cells(scenario: &Scenario) -> Vec<Cell> {
    let mut rng = Rng::new(42);
    let mut cells = Vec::new();
    for case in &scenario.cases {
        for round in 0..ROUNDS {
            let mut order: Vec<(&Instance, u8)> = scenario.instances.iter().map(|instance| (instance, 0)).collect();
            let twins = scenario.instances.iter().filter(|instance| scenario.twins.contains(&instance.id));
            order.extend(twins.map(|instance| (instance, 1)));
            rng.shuffle(&mut order);
            // Conditions that everything in the round has in common.
            let host = 1.0 + 0.04 * (rng.unit() - 0.5);
            for (instance, twin) in order {
                let measurement = measurement(case, instance, host, &mut rng);
                cells.push(Cell {
                    case: case.name.clone(),
                    instance: instance.id.clone(),
                    round,
                    twin,
                    block: 0,
                    order: u32::try_from(cells.len()).unwrap(),
                    started_unix_ms: 1_767_323_045_000,
                    command: format!("steelyard load {} --connections {}", case.name, case.load.connections),
                    measurement: Some(measurement),
                    failure: None,
                    judgement: None,
                });
            }
        }
    }
    cells
}

/// The cost of an operation in a cell, in µs of CPU; for a stream, of 100 KB.
struct Costs {
    balancer_us: f64,
    origin_us: f64,
    client_us: f64,
}

fn costs(case: &Case, instance: &Instance, host: f64, rng: &mut Rng) -> Costs {
    let maker = maker_of(&instance.contender);
    let mut noise = || host * (1.0 + 0.01 * (rng.unit() - 0.5));
    // Without reuse upstream, both sides pay for a connection each time.
    let (balancer_factor, origin_factor) = if instance.variant == Variant::Default { (2.0, 2.3) } else { (1.0, 1.0) };
    // More workers disturb each other a little.
    let crowd = 1.0 + 0.06 * f64::from(instance.workers - 1);
    let weight = if case.load.kind == LoadKind::Stream { 3.0 } else { 1.0 };
    let hops = f64::from(instance.hops.max(1));
    Costs {
        balancer_us: weight * maker.lb_us * hops * balancer_factor * crowd * noise(),
        origin_us: weight * maker.origin_us * origin_factor * noise(),
        client_us: weight * 5.0 * noise(),
    }
}

/// The rate in operations per second, the offered rate, and the maximum of the balancer or the origins.
fn rates(case: &Case, instance: &Instance, costs: &Costs, unloaded_us: f64, noise: f64) -> (f64, Option<f64>, f64) {
    let of_origins = 4e6 / costs.origin_us;
    let has_process = matches!(maker_of(&instance.contender).layer, Layer::Tcp | Layer::Http | Layer::H2);
    // A balancer in the kernel is faster than the origins.
    let capacity = if has_process { f64::from(instance.workers) * 1e6 / costs.balancer_us } else { of_origins };
    match &case.load.mode {
        Mode::Open { rate: Rate::Fixed(rate), .. } => (*rate, Some(*rate), capacity),
        Mode::Open { rate: Rate::OfSlowest { share, .. }, .. } => (share * 20_000.0, Some(share * 20_000.0), capacity),
        Mode::Closed | Mode::Search { .. } if case.load.connections == 1 => (1e6 / unloaded_us, None, capacity),
        Mode::Closed | Mode::Search { .. } => (capacity * noise, None, capacity),
    }
}

fn cpu(instance: &Instance, costs: &Costs, rate: f64, window_s: f64) -> Cpu {
    let busy = |us: f64| us * rate * window_s / 1e6;
    let (balancer_s, origin_s, client_s) = (busy(costs.balancer_us), busy(costs.origin_us), busy(costs.client_us));
    let has_process = matches!(maker_of(&instance.contender).layer, Layer::Tcp | Layer::Http | Layer::H2);
    let workers = f64::from(instance.workers);
    let mut busy_by_cpu = vec![0.3; 12];
    let own = busy_by_cpu.iter_mut().take(instance.workers as usize);
    own.for_each(|cpu| *cpu = (balancer_s / window_s / workers).min(1.0));
    Cpu {
        balancer_s: if has_process { balancer_s } else { 0.0 },
        client_s,
        origin_s,
        busy_s: balancer_s + client_s + origin_s + 0.2,
        idle_s: 40.0,
        // A balancer in the kernel works in soft interrupts, which are charged to no process.
        softirq_s: if has_process { 0.4 } else { balancer_s + 0.2 },
        busy_by_cpu,
        balancer_cpus: (0..instance.workers).collect(),
        client_cpus: vec![4, 5, 6, 7],
        origin_cpus: vec![8, 9, 10, 11],
        ..Cpu::default()
    }
}

/// One cell: costs with a little noise, a rate that follows from them, and latencies that follow from the rate.
fn measurement(case: &Case, instance: &Instance, host: f64, rng: &mut Rng) -> Measurement {
    let maker = maker_of(&instance.contender);
    let costs = costs(case, instance, host, rng);
    let mut jitter = |spread: f64| 1.0 + spread * (rng.unit() - 0.5);
    let window_s = 5.0;
    let unloaded_us = 40.0 + 2.0 * costs.balancer_us + costs.origin_us;
    let (rate, offered, capacity) = rates(case, instance, &costs, unloaded_us, jitter(0.01));
    let utilisation = (rate / capacity).min(0.99);
    let mean_us = jitter(0.01)
        * match offered {
            Some(_) => unloaded_us * (1.0 + utilisation / (1.0 - utilisation).max(0.05)),
            None => f64::from(case.load.connections) * 1e6 / rate,
        };
    let ok = (rate * window_s) as u64;
    let distribution = distribution(ok, mean_us, unloaded_us.min(mean_us), jitter(0.05));
    let is_probed = offered.is_some() && case.load.kind != LoadKind::StreamPaced && case.load.connections > 1;
    // The latency of an idle connection, plus a little of the queue's.
    let probe = Probe {
        rate: rate / 100.0,
        ok: ok / 100,
        response: self::distribution(ok / 100, unloaded_us * 1.2, unloaded_us, jitter(0.05)),
    };
    let (is_stream, is_paced) = (case.load.kind == LoadKind::Stream, case.load.kind == LoadKind::StreamPaced);
    let bytes = ok * if is_stream { 100_000 } else { 165 };
    let rss = (maker.rss_mib * f64::from(1 << 20)) as u64;
    let share = |place: u32| OriginShare { name: format!("ep{place}"), operations: Some(ok / 3), connections: 10 };
    Measurement {
        window_s,
        connections: case.load.connections,
        streams: 1,
        probe: is_probed.then_some(probe),
        rate: offered,
        planned: offered.map(|_| ok),
        sent: ok,
        ok,
        ok_per_s: rate,
        received_bytes: bytes,
        sent_bytes: ok * 80,
        origin_sent_bytes: (is_stream || is_paced).then_some(bytes + bytes / 500),
        service: (!is_stream).then(|| distribution.clone()),
        response: offered.filter(|_| !is_paced).map(|_| distribution.clone()),
        delivery: is_paced.then_some(distribution),
        lateness_p99_us: offered.map(|_| 40.0),
        cpu: cpu(instance, &costs, rate * if is_probed { 1.01 } else { 1.0 }, window_s),
        memory: Memory {
            balancer_rss: rss,
            balancer_rss_idle: rss / 2,
            origin_rss: 20 << 20,
            client_rss: 30 << 20,
            ..Memory::default()
        },
        origin_connections: Some(if instance.variant == Variant::Default { ok } else { 0 }),
        shares: (0..3).map(share).collect(),
        series: series(rate, &mut || jitter(0.05), mean_us),
        ..Measurement::default()
    }
}

fn distribution(count: u64, mean_us: f64, least_us: f64, tail: f64) -> Distribution {
    // An exponential tail above the minimum.
    let above = (mean_us - least_us).max(mean_us * 0.05);
    let at = |percent: f64| least_us + above * -(1.0 - percent / 100.0).ln() * tail;
    let percentiles = [50.0, 66.0, 75.0, 80.0, 90.0, 95.0, 98.0, 99.0, 99.9, 99.99];
    Distribution {
        count,
        min_us: least_us,
        mean_us,
        stdev_us: above,
        percentiles: percentiles.iter().map(|&percent| (percent, at(percent))).collect(),
        max_us: at(99.999),
        ..Distribution::default()
    }
}

fn series(rate: f64, jitter: &mut dyn FnMut() -> f64, mean_us: f64) -> Vec<Second> {
    let second = |at: u32| {
        let measured = (2..7).contains(&at);
        let ok = (rate * if at == 0 { 0.4 } else { 1.0 } * jitter()) as u64;
        let p99_us = Some(mean_us * 4.0 * jitter() * if at == 0 { 3.0 } else { 1.0 });
        Second { at_s: f64::from(at), ok, errors: 0, p50_us: Some(mean_us * jitter()), p99_us, measured }
    };
    (0..8).map(second).collect()
}

/// Turns every round of a cell into the failure of a contender that died.
pub(crate) fn kill(run: &mut Run, case: &str, instance: &str) {
    for cell in run.cells.iter_mut().filter(|cell| cell.case == case && cell.instance == instance) {
        cell.measurement = None;
        let log = vec!["bind: Address already in use".to_owned()];
        cell.failure = Some(Failure { why: "it ended with status 1 before it was ready".into(), log });
    }
}
