//! A written run is read back unchanged, and anything else is refused. The meaning of the figures is tested elsewhere.

use super::*;

/// A run with one cell of each kind.
fn sample() -> Run {
    let distribution = Distribution {
        count: 3,
        percentiles: vec![(50.0, 200.0), (99.9, 900.5)],
        histogram: Some("HISTFAAA".into()),
        ..Default::default()
    };
    let measurement = Measurement {
        window_s: 2.0,
        ok: 3,
        response: Some(distribution),
        series: vec![Second::default()],
        samples: vec![Sample::default()],
        ..Default::default()
    };
    let cell = Cell {
        case: "rps".into(),
        instance: "direct".into(),
        round: 0,
        twin: 0,
        block: 0,
        order: 0,
        started_unix_ms: 1,
        command: "load".into(),
        measurement: Some(measurement),
        failure: None,
        judgement: Some(Judgement { verdict: Verdict::LbSaturated, reasons: vec!["97 % >= 95 %".into()] }),
    };
    let failure = Failure { why: "it died".into(), log: vec!["last words".into()] };
    let failed = Cell { round: 1, measurement: None, failure: Some(failure), judgement: None, ..cell.clone() };
    Run {
        schema: SCHEMA,
        program: "steelyard 0.1.0".into(),
        started: "2026-01-01T00:00:00Z".into(),
        ended: None,
        partial: Some("interrupted".into()),
        reproduce: "steelyard lab run x".into(),
        quick: false,
        seed: 7,
        rounds: 2,
        environment: Environment::default(),
        scenario: scenario(),
        contenders: Vec::new(),
        gaps: vec![Gap { what: "ipvs".into(), why: "not in this kernel".into() }],
        calibrations: Vec::new(),
        cells: vec![cell, failed],
        notes: Vec::new(),
        kept: false,
        statistics: Vec::new(),
        conclusions: Vec::new(),
    }
}

fn scenario() -> Scenario {
    let load = LoadSpec {
        kind: LoadKind::Http10,
        mode: Mode::Open { rate: Rate::OfSlowest { share: 0.5, case: "capacity".into() }, pacing: Pacing::Burst1hz },
        connections: 8,
        streams: 1,
        arguments: Vec::new(),
        ramp_ms: 1,
        warm_up_ms: 1,
        measure_ms: 1,
        trim_ms: 1,
    };
    let origin = OriginSpec { kind: OriginKind::Http, arguments: vec!["--body=18".into()], count: 1 };
    let case = Case {
        name: "rps".into(),
        title: "Requests".into(),
        instances: vec!["direct".into()],
        origin,
        load,
        label: None,
    };
    Scenario {
        name: "x".into(),
        table: Table::L4l7Ab,
        report: None,
        title: "X".into(),
        title_zh: None,
        question: "?".into(),
        topology: "a -- b".into(),
        loopback: true,
        reference: "direct".into(),
        twins: Vec::new(),
        cases: vec![case],
        instances: Vec::new(),
        mtu: 0,
        steering: true,
        endpoints: 1,
    }
}

#[test]
fn what_is_written_is_read_again_and_leaves_nothing_beside_it() {
    let directory = std::env::temp_dir().join(format!("steelyard-record-{}", std::process::id()));
    fs::create_dir_all(&directory).unwrap();
    let path = directory.join("run.json");
    let run = sample();
    run.write(&path).unwrap();
    run.write(&path).unwrap();
    assert_eq!(Run::read(&path).unwrap(), run);
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 1);
    fs::remove_dir_all(&directory).unwrap();
    assert!(run.write(&path).unwrap_err().to_string().contains("cannot write"));
}

#[test]
fn a_line_for_each_field_and_each_cell() {
    let directory = std::env::temp_dir().join(format!("steelyard-lines-{}", std::process::id()));
    fs::create_dir_all(&directory).unwrap();
    let path = directory.join("run.json");
    sample().write(&path).unwrap();
    let text = fs::read_to_string(&path).unwrap();
    fs::remove_dir_all(&directory).unwrap();
    let begin = |word: &str| text.lines().filter(|line| line.starts_with(word)).count();
    assert_eq!((begin("\"schema\":1,"), begin("\"environment\":{"), begin("{\"case\":\"rps\"")), (1, 1, 2), "{text}");
    assert!(text.starts_with("{\n") && text.ends_with("\n}\n"), "{text}");
}

#[test]
fn what_is_not_a_run_of_this_schema_is_refused() {
    let check = |text: &str, expect: &str| {
        let error = Run::parse(text).unwrap_err().to_string();
        assert!(error.contains(expect), "{text:?}: {error}");
    };
    check("", "not a run: EOF");
    check("{}", "missing field `schema`");
    check(
        r#"{"schema": 2, "cells": 7}"#,
        "a newer version: it has schema 2, and this program reads schema 1: read it with a newer program",
    );
    check(r#"{"schema": 0}"#, "an older version: it has schema 0");
    check(r#"{"schema": 1}"#, "missing field `program`");
}

#[test]
fn bulk_goes_and_percentiles_stay() {
    let run = sample().without_bulk();
    let measurement = run.cells[0].measurement.as_ref().unwrap();
    assert!(measurement.series.is_empty() && measurement.samples.is_empty());
    let latency = measurement.latency().unwrap();
    assert_eq!(latency.histogram, None);
    assert_eq!((latency.percentile_us(99.9), latency.percentile_us(99.0)), (Some(900.5), None));
}

#[test]
fn cells_are_found_by_case_instance_and_twin() {
    let run = sample();
    let rounds = |case, instance, twin| run.rounds_of(case, instance, twin).map(|cell| cell.round).collect::<Vec<_>>();
    assert_eq!(rounds("rps", "direct", 0), [0, 1]);
    assert!(rounds("rps", "direct", 1).is_empty() && rounds("cps", "direct", 0).is_empty());
}
