//! From a case to the command of its load, and from its output to the record.

use std::net::{IpAddr, SocketAddr};

use serde_json::Value;

use crate::load::{CapacityReport, LoadReport, REPORT_VERSION};
use crate::record::{Calibration, Case, LoadKind, LoadSpec, Measurement, Mode, Pacing, Probe, Protocol, Rate};

/// The arguments of a load besides its case.
#[derive(Clone, Debug)]
pub(super) struct Where {
    /// The target.
    pub address: SocketAddr,
    /// The source addresses; empty means the kernel's choice.
    pub sources: Vec<IpAddr>,
    /// Threads.
    pub threads: u32,
    /// Operations per second of an open loop.
    pub rate: Option<f64>,
}

/// The arguments of this program that put a load on.
pub(super) fn arguments(load: &LoadSpec, to: &Where) -> Vec<String> {
    let address = to.address.to_string();
    let (name, own, has_streams): (&str, &[&str], bool) = match load.kind {
        LoadKind::Http => ("http", &["--http=1.1"], false),
        // ab counts a response of another length as failed.
        LoadKind::Http10 => ("http", &["--http=1.0", "--same-length"], false),
        LoadKind::HttpClose => ("http", &["--http=1.1", "--close"], false),
        LoadKind::Https => ("http", &["--http=1.1"], false),
        LoadKind::HttpsClose => ("http", &["--http=1.1", "--close", "--full-handshakes"], false),
        LoadKind::HttpsResume => ("http", &["--http=1.1", "--close"], false),
        LoadKind::H2c | LoadKind::H2cHttp => ("http", &["--http=2"], true),
        LoadKind::Grpc => ("grpc", &[], true),
        LoadKind::TcpRr => ("tcp-rr", &[], false),
        LoadKind::TcpCrr => ("tcp-crr", &[], false),
        LoadKind::Stream => ("stream", &["--direction=receive"], false),
        LoadKind::StreamPaced => ("stream", &["--direction=receive", "--messages"], false),
    };
    let is_secure = load.kind.protocol() == Protocol::Https;
    let target = match name {
        "http" if is_secure => format!("https://{address}/"),
        "http" => format!("http://{address}/"),
        _ => address,
    };
    let mut words = vec!["load".to_owned(), name.to_owned(), target];
    words.extend(own.iter().map(|word| (*word).to_owned()));
    if is_secure {
        words.extend(SAME_TLS.map(str::to_owned));
    }
    let mut option = |name: &str, value: String| words.push(format!("--{name}={value}"));
    option("connections", load.connections.to_string());
    option("threads", to.threads.min(load.connections).to_string());
    if has_streams {
        option("streams", load.streams.to_string());
    }
    option("ramp", format!("{}ms", load.ramp_ms));
    option("warm-up", format!("{}ms", load.warm_up_ms));
    option("duration", format!("{}ms", load.measure_ms));
    option("trim", format!("{}ms", load.trim_ms));
    if let Some(rate) = to.rate {
        option("rate", rate.to_string());
    }
    match &load.mode {
        Mode::Open { pacing: Pacing::Burst1hz, .. } => option("pacing", "burst1hz".to_owned()),
        Mode::Open { pacing: Pacing::Poisson, .. } => option("pacing", "poisson".to_owned()),
        Mode::Search { objective_p99_us } => option("find-capacity", format!("{objective_p99_us}us")),
        Mode::Open { pacing: Pacing::Uniform, .. } | Mode::Closed => {}
    }
    for source in &to.sources {
        option("source", source.to_string());
    }
    words.extend(load.arguments.iter().cloned());
    words.extend(["--announce", "--json"].map(str::to_owned));
    words
}

/// What every load over TLS offers. With a choice, each contender would take what its library prefers: rustls a group with ML-KEM, which costs more
/// than X25519, and BoringSSL another cipher suite than OpenSSL. The suite is of TLS 1.3, so no older version is offered.
const SAME_TLS: [&str; 3] = ["--insecure", "--ciphers=TLS_AES_128_GCM_SHA256", "--groups=X25519"];

/// One connection beside a load, at a hundredth of its rate: what a client saw that had no part in the load.
///
/// `None` if there are no operations, if the load is a single connection itself, and if its rate is not known, as in a search.
pub(super) fn probe(case: &Case, rate: Option<f64>, calibration: Option<&Calibration>) -> Option<(Case, f64)> {
    let load = &case.load;
    let has_operations = !matches!(load.kind, LoadKind::Stream | LoadKind::StreamPaced);
    let in_flight = f64::from(load.connections) * f64::from(load.streams.max(1));
    if !has_operations || in_flight <= 1.0 || matches!(load.mode, Mode::Search { .. }) {
        return None;
    }
    let alone_s = calibration.and_then(|calibration| calibration.unloaded_p50_us)? / 1e6;
    // The rate of a closed loop is limited by its connections, or by the load.
    let ceiling = calibration.and_then(|calibration| calibration.generator_ceiling_per_s).unwrap_or(f64::INFINITY);
    let expected = rate.unwrap_or((in_flight / alone_s).min(ceiling));
    // One connection can carry one operation at a time. Half of that leaves room for a bad moment.
    let rate = (expected * PROBE_SHARE).min(0.5 / alone_s);
    let mode = Mode::Open { rate: Rate::Fixed(rate), pacing: Pacing::Uniform };
    let load = LoadSpec { mode, connections: 1, streams: 1, ..load.clone() };
    (rate >= PROBE_PER_S_MIN).then(|| (Case { load, ..case.clone() }, rate))
}

/// The share of the load's rate.
const PROBE_SHARE: f64 = 0.01;

/// A lower rate shows nothing within a window.
const PROBE_PER_S_MIN: f64 = 1.0;

/// The result of a probe.
pub(super) fn probed(report: LoadReport) -> Option<Probe> {
    Some(Probe { rate: report.rate?, ok: report.ok, response: report.response? })
}

/// Whether a load makes so many connections that it needs several source addresses.
pub(super) fn wants_sources(kind: LoadKind) -> bool {
    matches!(kind, LoadKind::HttpClose | LoadKind::HttpsClose | LoadKind::HttpsResume | LoadKind::TcpCrr)
}

/// Reads the output of a load.
///
/// # Errors
/// Returns a sentence if there is no report, if it has another version, or if a search found nothing.
pub(super) fn parse(text: &str, mode: &Mode) -> Result<LoadReport, String> {
    let value: Value =
        serde_json::from_str(text.trim()).map_err(|error| format!("the load printed no report: {error}"))?;
    let unreadable = |error: serde_json::Error| format!("cannot read the report of the load: {error}");
    let report = match mode {
        Mode::Closed | Mode::Open { .. } => serde_json::from_value::<LoadReport>(value).map_err(unreadable)?,
        Mode::Search { .. } => {
            let search: CapacityReport = serde_json::from_value(value).map_err(unreadable)?;
            search.validation.ok_or("no rate met the objective")?
        }
    };
    if report.interrupted {
        return Err("the load was interrupted, so its results are not a measurement".to_owned());
    }
    if report.version != REPORT_VERSION {
        return Err(format!(
            "the report of the load has version {}; only version {REPORT_VERSION} is supported",
            report.version
        ));
    }
    Ok(report)
}

/// What the load itself saw, as it is recorded. The caller fills in the rest.
pub(super) fn measurement(report: LoadReport) -> Measurement {
    Measurement {
        window_s: report.elapsed.as_secs_f64(),
        connections: report.connections,
        streams: report.streams,
        rate: report.rate,
        planned: report.planned,
        sent: report.sent,
        ok: report.ok,
        ok_per_s: report.ok_per_s,
        errors: report.errors,
        statuses: report.statuses,
        handshakes: report.handshakes,
        received_bytes: report.received_bytes,
        sent_bytes: report.sent_bytes,
        service: report.service,
        response: report.response,
        connect: report.connect,
        waiting: report.waiting,
        delivery: report.delivery,
        lateness_p99_us: report.lateness_p99_us,
        generator_busiest_thread: Some(report.generator.busiest_thread),
        series: report.series,
        ..Measurement::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{OriginKind, OriginSpec};

    fn case(kind: LoadKind, mode: Mode) -> Case {
        let load = LoadSpec {
            kind,
            mode,
            connections: 8,
            streams: 4,
            arguments: vec!["--timeout=5s".to_owned()],
            ramp_ms: 10,
            warm_up_ms: 20,
            measure_ms: 300,
            trim_ms: 40,
        };
        let origin = OriginSpec { kind: OriginKind::Http, arguments: Vec::new(), count: 1 };
        Case { name: "c".into(), title: String::new(), instances: Vec::new(), origin, load, label: None }
    }

    fn to() -> Where {
        let sources = vec!["10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap()];
        Where { address: "20.20.0.1:9000".parse().unwrap(), sources, threads: 2, rate: None }
    }

    #[test]
    fn every_kind_of_load_is_one_that_this_program_has() {
        #[derive(Debug, clap::Parser)]
        struct Line {
            #[command(subcommand)]
            load: crate::load::LoadCommand,
        }
        let rate = Rate::Fixed(100.0);
        for kind in [
            LoadKind::Http,
            LoadKind::Http10,
            LoadKind::HttpClose,
            LoadKind::Https,
            LoadKind::HttpsClose,
            LoadKind::HttpsResume,
            LoadKind::H2c,
            LoadKind::H2cHttp,
            LoadKind::Grpc,
            LoadKind::TcpRr,
            LoadKind::TcpCrr,
            LoadKind::Stream,
            LoadKind::StreamPaced,
        ] {
            let is_stream = matches!(kind, LoadKind::Stream | LoadKind::StreamPaced);
            let open = Mode::Open { rate: rate.clone(), pacing: Pacing::Burst1hz };
            let modes = [(Mode::Closed, None), (open, Some(100.0)), (Mode::Search { objective_p99_us: 5_000 }, None)];
            for (mode, rate) in modes.into_iter().take(if is_stream { 1 } else { 3 }) {
                let words = arguments(&case(kind, mode).load, &Where { rate, ..to() });
                assert!(
                    words.iter().any(|word| word == "--source=10.0.0.2")
                        && words.iter().any(|word| word == "--announce")
                );
                let parsed = <Line as clap::Parser>::try_parse_from(&words);
                assert!(parsed.is_ok(), "{words:?}: {}", parsed.unwrap_err());
            }
        }
    }

    #[test]
    fn what_shipped_scenarios_ask_of_origins_and_loads_is_understood() {
        #[derive(Debug, clap::Parser)]
        enum Line {
            #[command(subcommand)]
            Origin(crate::origin::OriginCommand),
            #[command(subcommand)]
            Load(crate::load::LoadCommand),
        }
        let recipes = crate::contender::all(None).unwrap();
        for name in crate::scenario::names() {
            for case in crate::scenario::find(name, &recipes).unwrap().cases {
                let case = case.case;
                let mut origin = vec!["steelyard", "origin"];
                origin.push(match case.origin.kind {
                    OriginKind::Http => "http",
                    OriginKind::Grpc => "grpc",
                    OriginKind::Tcp => "tcp",
                    OriginKind::Stream => "stream",
                });
                origin.extend(case.origin.arguments.iter().map(String::as_str));
                // A run knows the rate by then, whichever other case it depends on.
                let rate = matches!(case.load.mode, Mode::Open { .. }).then_some(100.0);
                let load = arguments(&case.load, &Where { rate, ..to() });
                let load = std::iter::once("steelyard").chain(load.iter().map(String::as_str)).collect();
                for words in [origin, load] {
                    let parsed = <Line as clap::Parser>::try_parse_from(&words);
                    assert!(parsed.is_ok(), "{name}: {words:?}: {}", parsed.unwrap_err());
                }
            }
        }
    }

    #[test]
    fn a_probe_takes_a_hundredth_or_what_one_connection_can_carry() {
        let calibration = |ceiling, alone_us| Calibration {
            case: "c".into(),
            generator_ceiling_per_s: Some(ceiling),
            origin_ceiling_per_s: None,
            unloaded_p50_us: Some(alone_us),
        };
        let check = |kind, mode, rate, calibration: &Calibration, expect: Option<f64>| {
            let probe = probe(&case(kind, mode), rate, Some(calibration));
            assert_eq!(probe.as_ref().map(|(_, rate)| *rate), expect);
            if let Some((case, rate)) = probe {
                assert_eq!((case.load.connections, case.load.streams), (1, 1));
                let words = arguments(&case.load, &Where { rate: Some(rate), ..to() });
                assert!(words.contains(&format!("--rate={rate}")) && words.contains(&"--duration=300ms".to_owned()));
            }
        };
        let open = || Mode::Open { rate: Rate::Fixed(5_000.0), pacing: Pacing::Uniform };
        let quick = calibration(40_000.0, 100.0);
        check(LoadKind::Http, open(), Some(5_000.0), &quick, Some(50.0));
        // 32 in flight of 100 µs each are 320,000/s, but the load can make 40,000.
        check(LoadKind::Grpc, Mode::Closed, None, &quick, Some(400.0));
        // With 200 ms each, one connection carries 5 per second.
        check(LoadKind::Http10, Mode::Closed, None, &calibration(40_000.0, 200_000.0), Some(1.6));
        check(LoadKind::Http, open(), Some(50.0), &quick, None);
        check(LoadKind::Stream, Mode::Closed, None, &quick, None);
        check(LoadKind::Http, Mode::Search { objective_p99_us: 1 }, None, &quick, None);
        assert!(probe(&case(LoadKind::Http, open()), Some(5_000.0), None).is_none(), "nothing is known of its latency");
        let mut one = case(LoadKind::TcpRr, Mode::Closed);
        (one.load.connections, one.load.streams) = (1, 1);
        assert!(probe(&one, None, Some(&quick)).is_none(), "it is one connection itself");
    }

    #[test]
    fn what_is_no_report_is_told() {
        let check = |text: &str, mode: Mode, expect: &str| {
            let error = parse(text, &mode).unwrap_err();
            assert!(error.contains(expect), "{error}");
        };
        check("", Mode::Closed, "printed no report");
        check("{}", Mode::Closed, "cannot read the report of the load: missing field");
        check(
            r#"{"version": 2, "objective_p99_us": 1.0, "capacity_per_s": null, "steps": [], "validation": null}"#,
            Mode::Search { objective_p99_us: 1 },
            "no rate met the objective",
        );
    }
}
