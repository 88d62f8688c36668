//! The demo against balancers that work and balancers that fail.
//!
//! The demo starts one executable as origins and as balancer. Here this test is that executable: called with `demo` or `origin` it is the
//! real thing, called with `serve` it plays a balancer in the manner that the environment names, called without it runs the tests.
#![forbid(unsafe_code)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, ExitCode, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use clap::Parser;
use lab::{demo, origin};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// How the played balancer behaves: `good`, `sheds` (503 now and then), `cuts` (closes without an answer now and then), `dies` (at the
/// 100th request), `refuses` (its configuration).
const MANNER: &str = "DEMO_TEST_MANNER";

#[derive(Parser)]
enum Cli {
    /// The tests take the arguments of the usual harness, and heed none.
    Demo(demo::DemoArgs),
    #[command(subcommand)]
    Origin(origin::OriginCommand),
    Serve {
        #[arg(short)]
        config: std::path::PathBuf,
    },
}

fn main() -> ExitCode {
    let is_played = std::env::args().nth(1).is_some_and(|word| matches!(word.as_str(), "demo" | "origin" | "serve"));
    if !is_played {
        return run_tests();
    }
    match Cli::parse() {
        Cli::Demo(args) => match demo::run(&args, &std::env::current_exe().unwrap()) {
            Ok(verdict) => verdict.into(),
            Err(error) => {
                eprintln!("error: {error}");
                ExitCode::from(70)
            }
        },
        Cli::Origin(command) => {
            origin::run(command).unwrap();
            ExitCode::SUCCESS
        }
        Cli::Serve { config } => play_balancer(&std::fs::read_to_string(config).unwrap()),
    }
}

fn run_tests() -> ExitCode {
    let tests: [(&str, fn()); 5] = [
        ("a_good_balancer_passes", a_good_balancer_passes),
        ("failed_requests_fail_the_demo", failed_requests_fail_the_demo),
        ("a_balancer_that_dies_is_an_error", a_balancer_that_dies_is_an_error),
        ("the_end_of_a_refusing_balancers_stderr_is_shown", the_end_of_a_refusing_balancers_stderr_is_shown),
        ("no_child_outlives_the_demo", no_child_outlives_the_demo),
    ];
    // `cargo test NAME`, as the usual harness has it.
    let filter = std::env::args().skip(1).find(|word| !word.starts_with('-')).unwrap_or_default();
    let picked: Vec<_> = tests.iter().filter(|(name, _)| name.contains(&filter)).collect();
    println!("\nrunning {} tests", picked.len());
    let mut failed = 0;
    for (name, test) in &picked {
        let outcome = std::panic::catch_unwind(test);
        println!("test {name} ... {}", if outcome.is_ok() { "ok" } else { "FAILED" });
        failed += usize::from(outcome.is_err());
    }
    let result = if failed == 0 { "ok" } else { "FAILED" };
    let (passed, left_out) = (picked.len() - failed, tests.len() - picked.len());
    println!(
        "\ntest result: {result}. {passed} passed; {failed} failed; 0 ignored; 0 measured; {left_out} filtered out\n"
    );
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The temporary directory is one that may keep what a killed demo leaves behind.
fn demo_command(manner: &str, seconds: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["demo", "--seconds", seconds, "--json"])
        .env(MANNER, manner)
        .env("TMPDIR", env!("CARGO_TARGET_TMPDIR"))
        .stdin(Stdio::null());
    command
}

/// Runs the demo; its report, unless it was an error, and everything it said.
fn demo_with(manner: &str) -> (Option<i32>, Option<serde_json::Value>, String) {
    let Output { status, stdout, stderr } = demo_command(manner, "1").output().unwrap();
    (status.code(), serde_json::from_slice(&stdout).ok(), String::from_utf8(stderr).unwrap())
}

fn a_good_balancer_passes() {
    let (status, report, stderr) = demo_with("good");
    let report = report.unwrap_or_else(|| panic!("no report: {stderr}"));
    assert_eq!((status, &report["version"], &report["passed"]), (Some(0), &1.into(), &true.into()), "{stderr}");
    for phase in report["phases"].as_array().unwrap() {
        assert!(phase["requests"].as_u64() > Some(0), "{report}");
        assert_eq!(phase["failures"], 0, "{report}");
    }
    assert!(report["phases"][0]["balancer_cpu_us_per_request"].is_null(), "{report}");
    assert!(report["phases"][2]["balancer_cpu_us_per_request"].as_f64() > Some(0.0), "{report}");
    assert!(report["balancer_rss_bytes"].as_u64() > Some(100_000), "{report}");
    for share in report["shares"].as_array().unwrap() {
        let is_killed = share["is_killed"] == true;
        assert!(share["before"].as_u64() > Some(0), "{report}");
        assert_eq!(share["after"] == 0, is_killed, "{report}");
    }
}

fn failed_requests_fail_the_demo() {
    for manner in ["sheds", "cuts"] {
        let (status, report, stderr) = demo_with(manner);
        let report = report.unwrap_or_else(|| panic!("no report: {stderr}"));
        assert_eq!((status, &report["passed"]), (Some(1), &false.into()), "{manner}: {report}");
        assert_eq!(report["phases"][0]["failures"], 0, "{manner}: {report}");
        assert!(report["phases"][1]["failures"].as_u64() > Some(0), "{manner}: {report}");
    }
}

fn a_balancer_that_dies_is_an_error() {
    let (status, _, stderr) = demo_with("dies");
    assert_eq!(status, Some(70));
    assert!(stderr.contains("balancer"), "{stderr}");
}

fn the_end_of_a_refusing_balancers_stderr_is_shown() {
    let (status, _, stderr) = demo_with("refuses");
    assert_eq!(status, Some(70));
    assert!(stderr.contains("the balancer ended by itself (exit status: 64)"), "{stderr}");
    assert!(stderr.contains("demo.yaml:1:1: this is not to my taste"), "{stderr}");
}

/// Neither when it is interrupted nor when it is killed, where setpriv(1) is there to see to that.
fn no_child_outlives_the_demo() {
    use rustix::process::Signal;
    let signals = if std::path::Path::new("/usr/bin/setpriv").exists() {
        vec![Signal::INT, Signal::TERM, Signal::KILL]
    } else {
        vec![Signal::INT, Signal::TERM]
    };
    for signal in signals {
        let mut command = demo_command("good", "45");
        let mut demo = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        // The first line of progress about a load comes when all children run.
        let mut stderr = BufReader::new(demo.stderr.take().unwrap()).lines();
        assert!(stderr.any(|line| line.unwrap().contains("requests so far")));
        let children = children_of(demo.id());
        assert_eq!(children.len(), 4);
        let pidfds: Vec<_> = children.iter().filter_map(|&pid| pidfd_open(pid, PidfdFlags::empty()).ok()).collect();
        assert_eq!(pidfds.len(), 4);
        rustix::process::kill_process(Pid::from_child(&demo), signal).unwrap();
        demo.wait().unwrap();
        for pidfd in &pidfds {
            let patience = Timespec { tv_sec: 20, tv_nsec: 0 };
            // Readable when the process has ended.
            let ready = poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&patience)).unwrap();
            assert_eq!(ready, 1, "a child lives on after {signal:?}");
        }
    }
}

/// From the status of every process: a kernel need not keep a list of children.
fn children_of(parent: u32) -> Vec<Pid> {
    let processes =
        std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let is_child = |pid: &i32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        status.lines().any(|line| line.strip_prefix("PPid:").is_some_and(|ppid| ppid.trim() == parent.to_string()))
    };
    processes.filter(is_child).filter_map(Pid::from_raw).collect()
}

/// A balancer that hands each connection's requests to the endpoints in turns, and to the next one when that fails.
fn play_balancer(configuration: &str) -> ExitCode {
    let manner = std::env::var(MANNER).unwrap();
    if manner == "refuses" {
        eprintln!("demo.yaml:1:1: this is not to my taste");
        return ExitCode::from(64);
    }
    let value = |key: &str| {
        let line = configuration.lines().find_map(|line| line.trim().strip_prefix(key));
        line.unwrap_or_else(|| panic!("no {key} in the configuration")).trim().to_owned()
    };
    let endpoints =
        value("endpoints:").trim_matches(['[', ']']).split(", ").map(|text| text.parse().unwrap()).collect();
    let balancer = Arc::new(Balancer { manner, endpoints, requests: AtomicU64::new(0) });
    let admin = TcpListener::bind(value("admin:")).unwrap();
    std::thread::spawn(move || {
        for stream in admin.incoming() {
            let mut stream = stream.unwrap();
            read_head(&mut stream);
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").unwrap();
        }
    });
    for stream in TcpListener::bind(value("bind:")).unwrap().incoming() {
        let (balancer, stream) = (balancer.clone(), stream.unwrap());
        std::thread::spawn(move || balancer.serve(stream));
    }
    ExitCode::SUCCESS
}

struct Balancer {
    manner: String,
    endpoints: Vec<SocketAddr>,
    requests: AtomicU64,
}

impl Balancer {
    #[expect(clippy::disallowed_methods, reason = "a death without a word is what is played")]
    fn serve(&self, mut downstream: TcpStream) {
        let mut upstream = None;
        while let Some(head) = read_head(&mut downstream) {
            let number = self.requests.fetch_add(1, Ordering::Relaxed);
            match self.manner.as_str() {
                "sheds" if number % 100 == 7 => {
                    downstream.write_all(b"HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n").unwrap();
                    continue;
                }
                "cuts" if number % 100 == 7 => return,
                "dies" if number == 100 => std::process::exit(3),
                _ => {}
            }
            let answer = loop {
                let stream = upstream.get_or_insert_with(|| self.connect(number));
                match forward(stream, &head) {
                    Some(answer) => break answer,
                    None => upstream = None,
                }
            };
            if downstream.write_all(&answer).is_err() {
                return;
            }
        }
    }

    fn connect(&self, number: u64) -> TcpStream {
        let endpoints = self.endpoints.iter().cycle().skip(number as usize % self.endpoints.len());
        let stream =
            endpoints.take(self.endpoints.len()).find_map(|endpoint| TcpStream::connect(endpoint).ok()).unwrap();
        stream.set_nodelay(true).unwrap();
        stream
    }
}

fn forward(upstream: &mut TcpStream, head: &[u8]) -> Option<Vec<u8>> {
    upstream.write_all(head).ok()?;
    let mut answer = read_head(upstream)?;
    let length = String::from_utf8_lossy(&answer)
        .lines()
        .find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok())
        .unwrap();
    let body_at = answer.len();
    answer.resize(body_at + length, 0);
    upstream.read_exact(&mut answer[body_at..]).ok()?;
    Some(answer)
}

/// Byte by byte, to keep what follows in the socket.
fn read_head(stream: &mut TcpStream) -> Option<Vec<u8>> {
    stream.set_read_timeout(Some(Duration::from_secs(60))).ok()?;
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read(&mut byte) {
            Ok(1) => head.push(byte[0]),
            _ => return None,
        }
    }
    Some(head)
}
