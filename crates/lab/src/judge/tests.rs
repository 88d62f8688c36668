//! Each verdict, at its limit.

use super::*;
use crate::record::{Cpu, Distribution, Errors, LoadSpec, NetCounters, OriginKind, OriginSpec, Pacing, Rate, Variant};

/// A closed loop of 100 connections, 1,000/s at 100 ms, for 10 s. CPU 0 has the load and the origins, CPU 1 the balancer. Nothing is at its
/// limit.
fn calm() -> Measurement {
    Measurement {
        window_s: 10.0,
        connections: 100,
        streams: 1,
        sent: 10_000,
        ok: 10_000,
        ok_per_s: 1000.0,
        service: Some(latency(100_000.0)),
        cpu: Cpu {
            balancer_s: 4.0,
            client_s: 2.0,
            origin_s: 3.0,
            busy_s: 10.0,
            idle_s: 10.0,
            busy_by_cpu: vec![0.5, 0.5],
            balancer_cpus: vec![1],
            client_cpus: vec![0],
            origin_cpus: vec![0],
            ..Cpu::default()
        },
        ..Measurement::default()
    }
}

fn latency(mean_us: f64) -> Distribution {
    Distribution { count: 1, mean_us, percentiles: vec![(50.0, mean_us)], ..Distribution::default() }
}

fn case(kind: LoadKind, mode: Mode) -> Case {
    Case {
        name: "a".into(),
        title: String::new(),
        instances: Vec::new(),
        origin: OriginSpec { kind: OriginKind::Http, arguments: Vec::new(), count: 1 },
        load: LoadSpec {
            kind,
            mode,
            connections: 100,
            streams: 1,
            arguments: Vec::new(),
            ramp_ms: 0,
            warm_up_ms: 0,
            measure_ms: 0,
            trim_ms: 0,
        },
        label: None,
    }
}

fn open() -> Mode {
    Mode::Open { rate: Rate::Fixed(1000.0), pacing: Pacing::Uniform }
}

fn instance() -> Instance {
    Instance {
        id: "x".into(),
        contender: "x".into(),
        variant: Variant::Tuned,
        hops: 1,
        workers: 1,
        address: String::new(),
        commands: Vec::new(),
        configuration: String::new(),
    }
}

#[track_caller]
fn check(mode: Mode, layer: Layer, change: impl Fn(&mut Measurement), expect: Verdict, because: &str) {
    let mut measurement = calm();
    change(&mut measurement);
    let (case, instance) = (case(LoadKind::Http, mode), instance());
    let calibration = Calibration {
        case: "a".into(),
        generator_ceiling_per_s: None,
        origin_ceiling_per_s: Some(1100.0),
        unloaded_p50_us: None,
    };
    let subject =
        Subject { measurement: &measurement, case: &case, layer, instance: &instance, calibration: Some(&calibration) };
    let got = judge(&subject);
    let reasons = got.reasons.join("; ");
    assert_eq!(got.verdict, expect, "{reasons}");
    assert!(reasons.contains(because), "{because:?} is not in {reasons:?}");
}

#[test]
fn soft_interrupts_are_no_strangers() {
    let in_the_kernel = |m: &mut Measurement| (m.cpu.busy_s, m.cpu.softirq_s) = (11.2, 2.0);
    check(Mode::Closed, Layer::Kernel, in_the_kernel, Verdict::ConcurrencyLimited, "");
}

#[test]
fn nobody_at_the_limit() {
    check(Mode::Closed, Layer::Http, |_| {}, Verdict::ConcurrencyLimited, "balancer 50 % of its CPUs < 95 %");
    check(open(), Layer::Http, |_| {}, Verdict::BelowCapacity, "balancer 50 %");
    check(Mode::Closed, Layer::Direct, |_| {}, Verdict::ConcurrencyLimited, "Little's law holds within 0.0 %");
    check(Mode::Search { objective_p99_us: 5000 }, Layer::Http, |_| {}, Verdict::BelowCapacity, "objective of 5000 µs");
}

#[test]
fn handshakes_of_another_kind() {
    let check = |kind, full: u64, resumed: u64, because: &str| {
        let name = |how: &str| format!("TLS 1.3, TLS_AES_128_GCM_SHA256, X25519, {how}");
        let handshakes = [(name("full"), full), (name("resumed"), resumed)].into();
        let measurement = Measurement { handshakes, ..calm() };
        let (case, instance) = (case(kind, open()), instance());
        let layer = Layer::Http;
        let subject = Subject { measurement: &measurement, case: &case, layer, instance: &instance, calibration: None };
        let got = judge(&subject);
        assert_eq!(got.verdict == Verdict::Invalid, !because.is_empty(), "{got:?}");
        assert!(got.reasons.join("; ").contains(because), "{got:?}");
    };
    check(LoadKind::HttpsClose, 1000, 50, "");
    check(LoadKind::HttpsClose, 940, 60, "60 of 1000 handshakes were not full = 6.0 % > 5.0 %");
    // Each of 100 connections may be the first.
    check(LoadKind::HttpsResume, 150, 850, "");
    check(LoadKind::HttpsResume, 160, 840, "60 of 1000 handshakes were not resumed = 6.0 % > 5.0 %");
    check(LoadKind::HttpsResume, 60, 0, "none of 60 handshakes was resumed");
    check(LoadKind::HttpsClose, 0, 0, "none of 0 handshakes was full");
    check(LoadKind::Https, 64, 2, "");
}

#[test]
fn connections_that_were_not_in_use() {
    let idle = |m: &mut Measurement| m.service = Some(latency(94_000.0));
    check(Mode::Closed, Layer::Http, idle, Verdict::Invalid, "6.0 % of the connections > 5.0 % (Little's law)");
    // Little's law does not apply to an open loop: its connections may be idle.
    check(open(), Layer::Http, idle, Verdict::BelowCapacity, "");
}

#[test]
fn the_balancer_at_its_limit() {
    let full = |m: &mut Measurement| m.cpu.busy_by_cpu = vec![0.5, 0.96];
    check(Mode::Closed, Layer::Http, full, Verdict::LbSaturated, "balancer 96 % of its CPUs >= 95 %");
    check(Mode::Closed, Layer::Kernel, full, Verdict::LbSaturated, "balancer 96 %");
    // Its CPU was full with other work: there is no balancer.
    check(Mode::Closed, Layer::Direct, full, Verdict::ConcurrencyLimited, "");
    let on_shared_cpus = |balancer_s: f64| {
        move |m: &mut Measurement| {
            m.cpu.balancer_cpus = vec![0, 1];
            m.cpu.balancer_s = balancer_s;
            m.cpu.busy_by_cpu = vec![0.85, 0.85];
        }
    };
    // It may use two CPUs, but has one worker: its own CPU time counts, against one CPU.
    check(Mode::Closed, Layer::Http, on_shared_cpus(9.6), Verdict::LbSaturated, "balancer 96 %");
    check(Mode::Closed, Layer::Http, on_shared_cpus(8.0), Verdict::ConcurrencyLimited, "balancer 80 %");
    check(Mode::Closed, Layer::Kernel, on_shared_cpus(9.6), Verdict::ConcurrencyLimited, "");
}

#[test]
fn the_load_at_its_limit() {
    let own = |m: &mut Measurement| m.cpu.client_s = 9.1;
    let thread = |m: &mut Measurement| m.generator_busiest_thread = Some(0.93);
    check(
        Mode::Closed,
        Layer::Http,
        thread,
        Verdict::GeneratorSaturated,
        "a thread of the load 93 % of its CPU > 90 %",
    );
    check(Mode::Closed, Layer::Http, own, Verdict::GeneratorSaturated, "load 91 % of its CPUs > 90 %");
    let shared = |client_s: f64| {
        move |m: &mut Measurement| {
            m.cpu.busy_by_cpu = vec![0.97, 0.5];
            m.cpu.client_s = client_s;
            m.cpu.origin_s = 9.0 - client_s;
        }
    };
    check(
        Mode::Closed,
        Layer::Http,
        shared(5.0),
        Verdict::GeneratorSaturated,
        "load (50 %) and origins (40 %) share 97 %",
    );
    check(
        Mode::Closed,
        Layer::Http,
        shared(4.0),
        Verdict::BackendSaturated,
        "load (40 %) and origins (50 %) share 97 %",
    );
    // The balancer is full as well: its figure is still not a capacity.
    let both = |m: &mut Measurement| {
        own(m);
        m.cpu.busy_by_cpu = vec![0.95, 0.99];
    };
    check(Mode::Closed, Layer::Http, both, Verdict::GeneratorSaturated, "load 91 %");
}

#[test]
fn a_load_that_was_late() {
    let late = |us: f64| move |m: &mut Measurement| m.lateness_p99_us = Some(us);
    // A tenth of the median of 100 ms is allowed.
    check(open(), Layer::Http, late(9_900.0), Verdict::BelowCapacity, "");
    check(open(), Layer::Http, late(10_100.0), Verdict::GeneratorSaturated, "10100 µs late at p99 > 10000 µs");
    let short = |m: &mut Measurement| m.planned = Some(10_200);
    check(open(), Layer::Http, short, Verdict::GeneratorSaturated, "98 % of what was due was sent < 99 %");
    // Not sent because a full balancer held all connections.
    let held = |m: &mut Measurement| {
        short(m);
        m.cpu.busy_by_cpu = vec![0.5, 0.99];
    };
    check(open(), Layer::Http, held, Verdict::LbSaturated, "balancer 99 %");
    // A late load stays late, even if something else is full as well.
    let both = |m: &mut Measurement| {
        held(m);
        m.lateness_p99_us = Some(1e6);
    };
    check(open(), Layer::Http, both, Verdict::GeneratorSaturated, "late at p99");
}

#[test]
fn the_origins_at_their_limit() {
    let full = |m: &mut Measurement| m.cpu.origin_s = 9.2;
    check(Mode::Closed, Layer::Http, full, Verdict::BackendSaturated, "origins 92 % of their CPUs > 90 %");
    // 1,000/s of a ceiling of 1,100/s: at the limit if they work, but not if they wait.
    let awake = |m: &mut Measurement| m.cpu.origin_s = 6.0;
    check(Mode::Closed, Layer::Http, awake, Verdict::BackendSaturated, "1000/s >= 80 % of the 1100/s");
    check(Mode::Closed, Layer::Http, |_| {}, Verdict::ConcurrencyLimited, "");
}

#[test]
fn two_ticks_of_a_short_window_are_no_theft() {
    let stolen = |steal_s| {
        let cpu = Cpu { client_s: 0.8, busy_s: 0.8, idle_s: 0.8, steal_s, ..Cpu::default() };
        spoiled(&Measurement { cpu, ..Measurement::default() })
    };
    assert_eq!(stolen(0.02), Vec::<String>::new());
    assert_eq!(stolen(0.03), ["1.8 % of CPU time stolen by the hypervisor > 1.0 %"]);
}

#[test]
fn figures_that_mean_nothing() {
    let check =
        |change: fn(&mut Measurement), because| check(Mode::Closed, Layer::Http, change, Verdict::Invalid, because);
    check(
        |m| {
            m.errors = Errors { status: 11, ..Errors::default() };
            m.statuses = [(200, 10_000), (426, 11)].into();
        },
        "11 errors in 10011 = 0.1 % > 0.1 % (status 426 × 11)",
    );
    check(|m| m.errors = Errors { status: 11, ..Errors::default() }, "11 errors in 10011 = 0.1 % > 0.1 %");
    check(|m| m.cpu.steal_s = 0.3, "1.5 % of CPU time stolen");
    // 9 of the 10 s belong to load, origins and balancer.
    check(|m| m.cpu.busy_s = 11.2, "10 % of CPU time used by strangers > 5.0 %");
    check(|m| m.cpu.throttled = 1, "quota 1 times");
    check(|m| m.net = NetCounters { listen_drops: 2, ..NetCounters::default() }, "2 drops at listening sockets");
    check(|m| (m.sent, m.ok) = (0, 0), "nothing was sent");
}

#[test]
fn a_disturbed_cell_with_a_loop_around_it_is_good_for_ratios() {
    let turns = |wall_us| vec![Turn { cpu: 0, wall_us: 10.0, cpu_us: 9.0 }, Turn { cpu: 1, wall_us, cpu_us: 9.0 }];
    let around = |before, after| Some(ReferenceLoop { before: turns(before), after: turns(after) });
    let with_loop = |change: fn(&mut Measurement), expect, because: &str| {
        let change = |m: &mut Measurement| {
            m.reference = around(10.0, 11.0);
            change(m);
        };
        check(Mode::Closed, Layer::Http, change, expect, because);
    };
    with_loop(|_| {}, Verdict::ConcurrencyLimited, "");
    with_loop(|m| m.cpu.steal_s = 0.3, Verdict::Disturbed, "1.5 % of CPU time stolen");
    with_loop(|m| m.cpu.strangers_s = Some(2.0), Verdict::Disturbed, "10 % of CPU time used by strangers > 5.0 %");
    with_loop(|m| m.cpu.throttled = 3, Verdict::Disturbed, "quota 3 times");
    // What the kernel tells of all tasks is believed over what is left of the busy time.
    with_loop(|m| (m.cpu.busy_s, m.cpu.strangers_s) = (11.2, Some(0.1)), Verdict::ConcurrencyLimited, "");
    with_loop(|m| m.errors.status = 11, Verdict::Invalid, "11 errors");
    let jumped = |m: &mut Measurement| m.reference = around(10.0, 13.0);
    check(Mode::Closed, Layer::Http, jumped, Verdict::Disturbed, "changed by a factor of 1.30 > 1.25");
}

#[test]
fn a_cap_that_everybody_meets() {
    let mut run = crate::report::sample::raw(crate::record::Table::TcpDownstream);
    for cell in run.cells.iter_mut().filter(|cell| cell.case == "saturate") {
        let measurement = cell.measurement.as_mut().unwrap();
        measurement.received_bytes = 2_000_000_000 + u64::from(cell.order) * 1000;
        // Nothing is at its limit; the CPU differs as the sample made it.
        measurement.cpu.busy_by_cpu.iter_mut().for_each(|busy| *busy = busy.min(0.5));
        measurement.cpu.origin_s = 5.0;
        measurement.cpu.client_s = 5.0;
        measurement.cpu.busy_s = 10.0 + measurement.cpu.balancer_s;
    }
    let verdicts = |run: &Run| {
        let cells = run.cells.iter().filter(|cell| cell.case == "saturate");
        cells.map(|cell| cell.judgement.as_ref().unwrap().verdict).collect::<std::collections::BTreeSet<_>>()
    };
    judge_run(&mut run);
    assert_eq!(verdicts(&run), [Verdict::CapBound].into());
    // One CPU per byte for all: then each may be at its own, equal limit.
    for cell in &mut run.cells {
        cell.measurement.as_mut().unwrap().cpu.busy_s = 10.0;
    }
    judge_run(&mut run);
    assert_eq!(verdicts(&run), [Verdict::ConcurrencyLimited].into());
}
