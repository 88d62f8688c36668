//! Reports of runs whose true values are known.

use super::sample::{self, kill};
use super::*;
use crate::record::{Environment, Table, Verdict};

const TABLES: [Table; 6] =
    [Table::L4l7Ab, Table::GrpcGateway, Table::L4Matrix, Table::TcpDownstream, Table::CpuScaling, Table::Generic];

#[track_caller]
fn check(text: &str, expect: &[&str]) {
    for part in expect {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
}

#[test]
fn a_vip_beside_the_bare_paths_comes_with_the_reason() {
    let run = sample::run(Table::L4Matrix);
    let text = markdown(&run);
    assert!(text.contains(", which skips that step"), "{text}");
    let mut without = run.clone();
    without.scenario.loopback = true;
    assert!(!markdown(&without).contains("skips that step"));
}

#[test]
fn each_report_has_the_columns_of_the_published_one() {
    let of = |table| markdown::render(&sample::run(table), Language::Zh);
    check(
        &of(Table::L4l7Ab),
        &["在 1000 Concurrency 下", "LB CPU/Memory", "backend CPU/Memory", "r/s", "wait time(ms) / r"],
    );
    check(
        &of(Table::GrpcGateway),
        &["P(x)", "原生网络延迟 (direct)", "相差 (shift)", "1000qps", "300连接 (connections)"],
    );
    check(&of(Table::L4Matrix), &["| Tool ", "wrk(RPS)", "netperf(CRR)", "netperf(RR) min", "netperf(RR) avg", "Gbps"]);
    check(&of(Table::TcpDownstream), &["client侧入带宽", "server侧出带宽", "空闲率"]);
    check(&of(Table::CpuScaling), &["CPU 数量 (number of CPUs)", "Requests/sec", "Universal Scalability Law"]);
}

#[test]
fn titles_are_in_chinese_only_where_that_is_asked_for() {
    let is_chinese = |text: &str| text.chars().any(|letter| ('\u{4e00}'..='\u{9fff}').contains(&letter));
    for table in TABLES {
        let mut run = sample::run(table);
        run.scenario.title_zh = Some("性能".into());
        assert!(!is_chinese(&markdown(&run)) && !is_chinese(&html(&run)), "{table:?}");
        assert!(is_chinese(&html::render(&run, Language::Zh)), "{table:?}");
    }
}

#[test]
fn the_first_screen_has_question_answer_chart_and_limits() {
    for table in TABLES {
        let run = sample::run(table);
        let page = html(&run);
        let (_, first) = page.split_once("id=\"answer\"").unwrap();
        let (first, _) = first.split_once("</section>").unwrap();
        check(first, &[&run.scenario.question, "class=\"answer\"", "What this cannot tell"]);
        assert!(!first.contains("This run has no answer"), "{table:?}");
        assert!(first.contains("class=\"interval\""), "{table:?} has no chart: {first}");
    }
}

#[test]
fn a_report_is_made_of_its_run_alone() {
    for table in TABLES {
        let run = sample::run(table);
        let mut again = run.clone();
        analyse(&mut again);
        assert_eq!(again, run, "{table:?}");
        assert_eq!(markdown(&again), markdown(&run), "{table:?}");
    }
}

#[test]
fn the_cheapest_is_found_and_the_next_is_different() {
    let text = markdown(&sample::run(Table::L4l7Ab));
    // The true values: 12.1 and 15.2 µs.
    check(&text, &["Steelyard http costs least on layer 7", "nginx http, tuned, the next, costs ×1.2"]);
    check(&text, &["behind nginx http, default a request costs the origins ×2.3", "reused a connection upstream"]);
}

#[test]
fn verdicts_follow_the_truth() {
    let run = sample::run(Table::L4l7Ab);
    let figures = figures::Figures::new(&run);
    let verdict = |instance| figures.verdict("capacity", instance).unwrap().0;
    assert_eq!(verdict("nginx-http"), Verdict::LbSaturated);
    assert_eq!(verdict("nodeport"), Verdict::BackendSaturated);
    assert_eq!(figures.verdict("steady-50", "nginx-http").unwrap().0, Verdict::BelowCapacity);
}

#[test]
fn a_dead_contender_is_named_with_its_last_words_and_the_rest_goes_on() {
    let mut run = sample::raw(Table::L4Matrix);
    kill(&mut run, "http-rps", "haproxy-tcp");
    analyse(&mut run);
    let text = markdown(&run);
    check(
        &text,
        &["failed", "it ended with status 1 before it was ready: bind: Address already in use", "Steelyard tcp"],
    );
}

#[test]
fn a_missing_contender_is_a_gap_in_the_tables() {
    let rows = |table| {
        let text = markdown(&sample::run(table));
        text.lines().filter(|line| line.starts_with("| ipvs ") && line.contains("not there")).count()
    };
    // On the first page, and in each published table of closed loops.
    assert_eq!(rows(Table::L4l7Ab), 2);
    assert_eq!(rows(Table::TcpDownstream), 3);
    let text = markdown(&sample::run(Table::L4Matrix));
    assert!(text.lines().any(|line| line.starts_with("| Tool ") && line.contains(" ipvs |")), "{text}");
    let mut run = sample::raw(Table::L4l7Ab);
    run.quick = true;
    run.gaps[0].why = "not part of --quick".into();
    analyse(&mut run);
    assert!(!markdown(&run).contains("| ipvs "), "these contenders were not meant to take part");
}

#[test]
fn nothing_measured_is_a_report_too() {
    for table in TABLES {
        let mut run = sample::raw(table);
        run.cells.clear();
        run.partial = Some("interrupted".into());
        run.environment = Environment::default();
        analyse(&mut run);
        check(&markdown(&run), &["The run is not whole: interrupted."]);
    }
}

#[test]
fn the_page_needs_nothing_else_and_escapes_what_it_shows() {
    for table in TABLES {
        let mut run = sample::raw(table);
        run.scenario.title = "<script>alert(1)</script>".into();
        analyse(&mut run);
        let page = html(&run);
        for outside in ["<script", "src=", "@import", "url(", "<link", "http://", "https://"] {
            assert!(!page.contains(outside), "{table:?}: {outside}");
        }
        check(
            &page,
            &["&lt;script&gt;", "&lt;tag&gt;", "prefers-color-scheme: dark", "<svg class=\"plot\"", "id=\"published\""],
        );
        assert!(!page.contains("NaN"), "{table:?}");
    }
}

/// `LAB_REPORT_SAMPLES=DIR cargo test -p lab report::tests::samples` writes the pages there, to be viewed in a browser.
#[test]
fn samples_are_written() {
    let kept = std::env::var_os("LAB_REPORT_SAMPLES").map(std::path::PathBuf::from);
    let directory = std::env::temp_dir().join(format!("steelyard-report-{}", std::process::id()));
    for table in TABLES {
        let directory = kept.as_ref().unwrap_or(&directory).join(format!("{table:?}"));
        fs::create_dir_all(&directory).unwrap();
        let run = sample::run(table);
        write(&run, &directory, Language::En).unwrap();
        assert_eq!(fs::read_to_string(directory.join("report.html")).unwrap(), html(&run));
        assert_eq!(fs::read_to_string(directory.join("report.md")).unwrap(), markdown(&run));
    }
    if kept.is_none() {
        fs::remove_dir_all(&directory).unwrap();
        assert!(write(&sample::run(Table::Generic), &directory, Language::En).is_err());
    }
}

#[test]
fn linear_is_said_only_where_it_is_shown() {
    // The true value: six per cent more for each further worker.
    let run = sample::run(Table::CpuScaling);
    let text = markdown(&run);
    check(&text, &["a linear growth is not shown", "efficiency at 4 CPUs", "Not called linear"]);
    assert!(!text.contains("grows linearly"), "{text}");

    let mut run = sample::raw(Table::CpuScaling);
    // Made linear: each level is the first multiplied by its number of CPUs.
    for cell in &mut run.cells {
        let measurement = cell.measurement.as_mut().unwrap();
        let cpus = measurement.cpu.balancer_cpus.len() as f64;
        measurement.ok_per_s = 10_000.0 * cpus;
    }
    analyse(&mut run);
    check(&markdown(&run), &["grows linearly"]);

    // The same figures with the balancer on CPUs that the load uses, too.
    for cell in &mut run.cells {
        cell.measurement.as_mut().unwrap().cpu.client_cpus = vec![0, 1];
    }
    analyse(&mut run);
    let text = markdown(&run);
    check(&text, &["contended, not comparable"]);
    assert!(!text.contains("grows linearly"), "{text}");
}

#[test]
fn few_rounds_are_called_few() {
    let mut run = sample::raw(Table::L4l7Ab);
    run.rounds = 3;
    run.cells.retain(|cell| cell.round < 3);
    analyse(&mut run);
    check(
        &markdown(&run),
        &["3 rounds are too few for a 95 % interval", "in the middle of too few rounds", "rounds: 3 < 6"],
    );
    assert!(!first::answer(figures::Figures::new(&run)).because.starts_with("rounds: "));
    assert!(run.statistics.iter().all(|statistic| statistic.interval.is_none()));
    assert!(run.statistics.iter().filter_map(|statistic| statistic.ratio.as_ref()).all(|ratio| !ratio.is_different));
}

#[test]
fn a_busy_host_is_said_to_have_been_busy() {
    let mut run = sample::raw(Table::L4Matrix);
    run.environment.load_average = 6.6;
    analyse(&mut run);
    check(&markdown(&run), &["The host was busy when the run began (load average 0.55 per CPU > 0.5)"]);
}

/// A host of two CPUs: the balancer on one, load and origins on the other.
#[test]
fn on_two_cpus_the_load_ends_first_and_the_capacity_is_extrapolated() {
    let mut run = sample::raw(Table::L4l7Ab);
    run.environment.cpus = 2;
    for cell in &mut run.cells {
        let cpu = &mut cell.measurement.as_mut().unwrap().cpu;
        (cpu.balancer_cpus, cpu.client_cpus, cpu.origin_cpus) = (vec![0], vec![1], vec![1]);
        cpu.busy_by_cpu = vec![cpu.busy_by_cpu[0] * 0.6, 0.99];
    }
    analyse(&mut run);
    let text = markdown(&run);
    // 12.1 µs by the sample's own account; three fifths of that by the busy time of its CPU.
    check(
        &text,
        &["2 CPUs: load and origins share", "Steelyard http: extrapolated to all of its CPU time, 138,", "≥ "],
    );
    assert!(!text.contains("lb-saturated"), "{text}");
}

#[test]
fn more_origins_are_asked_about() {
    let mut run = sample::raw(Table::L4l7Ab);
    run.cells.retain(|cell| cell.case == "capacity" && cell.instance == "nginx-http");
    let six: Vec<_> = run.cells.iter().map(|cell| crate::record::Cell { case: "six".into(), ..cell.clone() }).collect();
    run.cells.extend(six);
    let mut case = run.scenario.cases[0].clone();
    (case.name, case.origin.count) = ("six".into(), 6);
    run.scenario.cases.push(case);
    for cell in &mut run.cells {
        cell.measurement.as_mut().unwrap().net.syn_retransmitted = 7;
    }
    analyse(&mut run);
    let text = markdown(&run);
    check(
        &text,
        &[
            "1000 Concurrency with 6 origins instead of 3: rates change by 0.0 % (nginx http, tuned)",
            "published: in theory by as much",
        ],
    );
    // 1,000 connections over 2 ms of delay: 500,000 a second; 65,900 were reached.
    check(&text, &["of connections / delay", " 13 % |", "SYNs sent again", " 70 |"]);
}

#[test]
fn what_a_gateway_adds_is_a_shift_only_when_it_is_one() {
    let mut run = sample::raw(Table::GrpcGateway);
    run.cells.retain(|cell| cell.case == "service-0");
    let direct: Vec<_> = run.cells.iter().filter(|cell| cell.instance == "direct" && cell.twin == 0).cloned().collect();
    for cell in run.cells.iter_mut().filter(|cell| cell.instance == "envoy-h2") {
        cell.measurement = direct[cell.round as usize].measurement.clone();
    }
    analyse(&mut run);
    check(
        &markdown(&run),
        &["0m: Envoy h2 was not shown to shift p95", "0m: nginx grpc shifts p95 by ", "it suits services that take 1."],
    );
}

#[test]
fn chains_tell_what_a_hop_adds() {
    check(&markdown(&sample::run(Table::TcpDownstream)), &["one more hop of Steelyard tcp adds"]);
}
