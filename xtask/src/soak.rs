//! `cargo xtask soak`: runs mixed load with reloads for minutes or hours, and measures memory, descriptors and failed
//! requests.
//!
//! nginx is the origin, and curl and h2load are the clients: none of them is the code under test. Not its job: speed,
//! which `bench` measures.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::command::{capture, find_program};
use crate::setup;
use crate::test::build_steelyard;

const USAGE: &str = "usage: cargo xtask soak [--minutes N] [--bin FILE]";

/// The interval at which the configuration is changed and reloaded.
const RELOAD_EVERY: Duration = Duration::from_secs(2);

/// The interval at which a line is printed.
const TELL_EVERY: Duration = Duration::from_secs(10);

/// The interval at which memory is sampled.
const SAMPLE_EVERY: Duration = Duration::from_secs(1);

/// The pause between two rounds of a client: the load should be mixed, not as high as possible.
const REST: Duration = Duration::from_millis(250);

/// Resident memory has levelled off if the line through the second half of its samples rises by less than this share of
/// their mean, in percent.
const GROWTH_PERCENT_MAX: f64 = 2.0;

/// The size of a page, which is the unit of /proc/PID/statm.
const PAGE_BYTES: u64 = 4096;

/// The files that nginx serves, with their sizes in bytes.
const FILES: [(&str, usize); 3] = [("small", 1_000), ("middle", 300_000), ("large", 5_000_000)];

/// Runs the verb.
pub fn run(arguments: &[String]) -> Result<(), String> {
    let (mut minutes, mut binary) = (10_u64, None);
    let mut words = arguments.iter().map(String::as_str);
    while let Some(word) = words.next() {
        match (word, words.next()) {
            ("--minutes", Some(count)) => minutes = count.parse().ok().filter(|minutes| *minutes > 0).ok_or(USAGE)?,
            ("--bin", Some(file)) => binary = Some(PathBuf::from(file)),
            _ => return Err(USAGE.into()),
        }
    }
    setup::install_for("soak")?;
    let steelyard = binary.map_or_else(|| build_steelyard(&[]), Ok)?;
    let folder = std::env::temp_dir().join(format!("steelyard-soak-{}", std::process::id()));
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let outcome = soak(&steelyard, &folder, Duration::from_secs(60 * minutes));
    // What is left behind is in the temporary directory.
    _ = fs::remove_dir_all(&folder);
    outcome
}

/// The ports of everything that listens.
struct Ports {
    http: u16,
    https: u16,
    tcp: u16,
    /// The ports of nginx: two for HTTP/1.1, which take turns as endpoints, and one for HTTP/2.
    origins: [u16; 2],
    origin_h2: u16,
}

impl Ports {
    fn free() -> Result<Self, String> {
        // All at once, so that none is returned twice.
        let mut sockets = Vec::new();
        for _ in 0..6 {
            sockets.push(TcpListener::bind("127.0.0.1:0").map_err(|error| format!("no free port: {error}"))?);
        }
        let mut ports = sockets.iter().filter_map(|socket| Some(socket.local_addr().ok()?.port()));
        let mut next = || ports.next().ok_or("no free port");
        Ok(Self { http: next()?, https: next()?, tcp: next()?, origins: [next()?, next()?], origin_h2: next()? })
    }
}

/// What the clients have counted.
#[derive(Default)]
struct Met {
    requests: AtomicU64,
    failures: AtomicU64,
    is_over: AtomicBool,
}

/// A process that is killed when dropped.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // It may have exited by itself.
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

impl Process {
    fn start(command: &mut Command, listens: u16) -> Result<Self, String> {
        let started = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let process = started.map(Self).map_err(|error| format!("{command:?}: {error}"))?;
        let connected = testkit::until(testkit::PATIENCE, || TcpStream::connect(("127.0.0.1", listens)).ok());
        connected.map(|_| process).ok_or_else(|| format!("{command:?} does not listen on port {listens}"))
    }
}

fn soak(steelyard: &Path, folder: &Path, time: Duration) -> Result<(), String> {
    let ports = Ports::free()?;
    let _nginx = nginx(folder, &ports)?;
    let file = folder.join("steelyard.yaml");
    certificate(folder)?;
    configure(&file, folder, &ports, 0)?;
    let balancer = Process::start(Command::new(steelyard).arg("serve").arg("-c").arg(&file), ports.tcp)?;
    let pid = balancer.0.id();
    let met = Met::default();
    let samples = std::thread::scope(|scope| {
        for client in clients(folder, &ports) {
            let met = &met;
            scope.spawn(move || {
                while !met.is_over.load(Relaxed) {
                    let (requests, failures) = client.round();
                    met.requests.fetch_add(requests, Relaxed);
                    met.failures.fetch_add(failures, Relaxed);
                    std::thread::park_timeout(REST);
                }
            });
        }
        let samples = watch(pid, time, &met, |reload| {
            configure(&file, folder, &ports, reload)?;
            capture(Command::new("kill").arg("-HUP").arg(pid.to_string())).map(drop)
        });
        met.is_over.store(true, Relaxed);
        samples
    })?;
    println!("{}", verdict(&samples));
    match met.failures.load(Relaxed) {
        0 => Ok(()),
        failures => Err(format!("{failures} of {} requests failed", met.requests.load(Relaxed))),
    }
}

/// Reloads and prints until the time is over. Returns the time of each sample in seconds, with the resident MiB at that
/// time.
fn watch(
    pid: u32,
    time: Duration,
    met: &Met,
    mut reload: impl FnMut(u64) -> Result<(), String>,
) -> Result<Vec<(f64, f64)>, String> {
    println!(
        "{:>6} {:>9} {:>9} {:>12} {:>8} {:>10} {:>9}",
        "s", "RSS MiB", "peak MiB", "descriptors", "reloads", "requests", "failures"
    );
    let begun = Instant::now();
    let (mut samples, mut peak, mut reloads, mut told) = (Vec::new(), 0.0_f64, 0_u32, Duration::ZERO);
    while begun.elapsed() < time {
        std::thread::park_timeout(SAMPLE_EVERY);
        let now = begun.elapsed();
        if now >= RELOAD_EVERY * (reloads + 1) {
            reloads += 1;
            reload(u64::from(reloads))?;
        }
        let resident = resident_mib(pid)?;
        peak = peak.max(resident);
        samples.push((now.as_secs_f64(), resident));
        if now >= told + TELL_EVERY || now >= time {
            told = now;
            println!(
                "{:>6} {resident:>9.1} {peak:>9.1} {:>12} {reloads:>8} {:>10} {:>9}",
                now.as_secs(),
                fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count),
                met.requests.load(Relaxed),
                met.failures.load(Relaxed),
            );
        }
    }
    Ok(samples)
}

/// Whether the resident memory of the second half has levelled off.
fn verdict(samples: &[(f64, f64)]) -> String {
    let half = samples.get(samples.len() / 2..).unwrap_or_default();
    let count = half.len().max(1) as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| half.iter().map(of).sum::<f64>() / count;
    let (mid_s, mid_mib) = (mean(|sample| sample.0), mean(|sample| sample.1));
    let spread: f64 = half.iter().map(|(s, _)| (s - mid_s).powi(2)).sum();
    let slope = half.iter().map(|(s, mib)| (s - mid_s) * (mib - mid_mib)).sum::<f64>() / spread.max(1.0);
    let took_s = half.last().map_or(0.0, |last| last.0) - half.first().map_or(0.0, |first| first.0);
    let growth = slope * took_s;
    let is_level = growth <= mid_mib * GROWTH_PERCENT_MAX / 100.0;
    let (least, most) =
        half.iter().fold((f64::MAX, 0.0_f64), |(least, most), (_, mib)| (least.min(*mib), most.max(*mib)));
    format!(
        "RSS {}: in the second half ({took_s:.0} s) a mean of {mid_mib:.1} MiB ({least:.1} to {most:.1}) and a slope of \
         {:+.1} KiB a minute, {growth:+.2} MiB in all; at most {GROWTH_PERCENT_MAX} % of the mean counts as level",
        if is_level { "has levelled off" } else { "has NOT levelled off" },
        slope * 60.0 * 1024.0,
    )
}

fn resident_mib(pid: u32) -> Result<f64, String> {
    let text = fs::read_to_string(format!("/proc/{pid}/statm")).map_err(|_| "steelyard has exited".to_owned())?;
    let pages: u64 = text.split(' ').nth(1).and_then(|pages| pages.parse().ok()).ok_or("steelyard has exited")?;
    Ok((pages * PAGE_BYTES) as f64 / f64::from(1 << 20))
}

/// A client that is started repeatedly.
struct Client {
    command: Vec<String>,
    /// The requests per round.
    requests: u64,
    /// It gives up in the middle of its requests, so its failure says nothing.
    gives_up: bool,
    /// Whether the first failure has been printed.
    has_told: AtomicBool,
}

impl Client {
    /// The number of requests, and how many of them failed.
    fn round(&self) -> (u64, u64) {
        let Some((program, words)) = self.command.split_first() else { return (0, 0) };
        // The output is the report of h2load, or the bodies for curl.
        let stdout = if program == "curl" { Stdio::null() } else { Stdio::piped() };
        let command =
            Command::new(program).args(words).stdin(Stdio::null()).stdout(stdout).stderr(Stdio::piped()).spawn();
        let Ok(output) = command.and_then(Child::wait_with_output) else { return (self.requests, self.requests) };
        let failures = match program.as_str() {
            _ if self.gives_up => 0,
            // --fail-early has the same exit code for any failure. The request that failed first was the last one.
            "curl" => u64::from(!output.status.success()),
            _ => self.requests.saturating_sub(succeeded(&String::from_utf8_lossy(&output.stdout)).unwrap_or(0)),
        };
        if failures > 0 && !self.has_told.swap(true, Relaxed) {
            let said = String::from_utf8_lossy(&output.stderr);
            println!("failed: {}: {}", self.command.join(" "), said.lines().last().unwrap_or_default());
        }
        (self.requests, failures)
    }
}

/// The number of successful requests, from the report of h2load.
fn succeeded(report: &str) -> Option<u64> {
    report.lines().find_map(|line| {
        let (before, _) = line.strip_prefix("requests: ")?.split_once(" succeeded")?;
        before.rsplit(' ').next()?.parse().ok()
    })
}

fn clients(folder: &Path, ports: &Ports) -> Vec<Client> {
    let client = |program: &str, requests: u64, words: &[&str], url: &[String]| {
        let words = words.iter().map(|word| (*word).to_owned()).chain(url.iter().cloned());
        let command = std::iter::once(program.to_owned()).chain(words).collect();
        Client { command, requests, gives_up: false, has_told: AtomicBool::new(false) }
    };
    let h2load = |requests: u64, words: &[&str], url: String| {
        let count = requests.to_string();
        client("h2load", requests, &[&["-n", &count], words].concat(), &[url])
    };
    let curl = |words: &[&str], urls: &[String]| {
        let common = ["-sS", "-f", "-k", "--fail-early", "--max-time", "60"];
        client("curl", urls.len() as u64, &[&common, words].concat(), urls)
    };
    let plain = |path: &str| format!("http://127.0.0.1:{}/{path}", ports.http);
    let secured = |path: &str| format!("https://127.0.0.1:{}/{path}", ports.https);
    let tcp = |path: &str| format!("http://127.0.0.1:{}/{path}", ports.tcp);
    let mix = |url: &dyn Fn(&str) -> String| ["small", "middle", "none", "large", "none", "small"].map(url);
    let upload = format!("@{}", folder.join("large").display());
    let put = ["-H", "Expect:", "--data-binary", &upload];
    vec![
        h2load(2_000, &["-c", "8", "-m", "20"], plain("small")),
        h2load(200, &["-c", "4", "-m", "20", "-w", "30", "-W", "30"], plain("middle")),
        h2load(1_000, &["-c", "8", "-m", "20"], plain("h2/small")),
        h2load(100, &["-c", "4", "-m", "20"], plain("h2/middle")),
        h2load(2_000, &["--h1", "-c", "20"], plain("none")),
        h2load(2_000, &["--h1", "-c", "100"], plain("small")),
        h2load(500, &["-c", "8", "-m", "10"], secured("small")),
        h2load(500, &["--h1", "-c", "20"], secured("small")),
        h2load(500, &["--h1", "-c", "20"], tcp("small")),
        curl(&["--http1.1"], &mix(&plain)),
        // Each connection carries one request: curl 7.88 fails with status 16 if it reuses one that began with prior
        // knowledge.
        curl(&["--http2-prior-knowledge"], &[plain("middle")]),
        curl(&["--http2-prior-knowledge"], &[plain("h2/large")]),
        curl(&["--http2"], &mix(&secured)),
        curl(&["--http1.1"], &mix(&tcp)),
        curl(&[&["--http2-prior-knowledge"], &put[..]].concat(), &[plain("post")]),
        curl(&[&["--http1.1"], &put[..]].concat(), &[plain("post")]),
        curl(&["--http1.1", "--limit-rate", "500k"], &[plain("middle")]),
        curl(&["--http2-prior-knowledge", "--limit-rate", "500k"], &[plain("large")]),
        Client { gives_up: true, ..curl(&["--http2-prior-knowledge", "-m", "0.05"], &[plain("large")]) },
        Client { gives_up: true, ..curl(&["--http1.1", "-m", "0.05", "--limit-rate", "1M"], &[secured("large")]) },
    ]
}

/// A configuration that has another table of routes and another endpoint each time.
fn configure(file: &Path, folder: &Path, ports: &Ports, number: u64) -> Result<(), String> {
    let routes: String =
        (0..number % 50).map(|route| format!("      - {{path: /of-{number}/{route}/, to: web}}\n")).collect();
    let Ports { http, https, tcp, origins, origin_h2 } = ports;
    let [first, second] = if number.is_multiple_of(2) { *origins } else { [origins[1], origins[0]] };
    let endpoints = match number % 3 {
        0 => format!("'127.0.0.1:{first}'"),
        _ => format!("'127.0.0.1:{first}', '127.0.0.1:{second}'"),
    };
    let config = format!(
        "watch: false
listeners:
  web:
    bind: '127.0.0.1:{http}'
    protocol: http
    routes:
{routes}      - {{path: /h2/, to: h2}}
      - {{to: web}}
  secured: {{bind: '127.0.0.1:{https}', protocol: https, tls: {{certificates: [{{cert: {folder}/cert.pem, key: {folder}/key.pem}}]}}, to: web}}
  raw: {{bind: '127.0.0.1:{tcp}', protocol: tcp, to: web}}
clusters:
  web: {{endpoints: [{endpoints}]}}
  h2: {{protocol: h2c, endpoints: ['127.0.0.1:{origin_h2}']}}
",
        folder = folder.display()
    );
    let new = file.with_extension("new");
    fs::write(&new, config)
        .and_then(|()| fs::rename(&new, file))
        .map_err(|error| format!("{}: {error}", file.display()))
}

fn certificate(folder: &Path) -> Result<(), String> {
    let (cert, key) = (folder.join("cert.pem"), folder.join("key.pem"));
    let mut command = Command::new("openssl");
    command.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "30"]);
    command.args(["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-keyout"]);
    capture(command.arg(key).arg("-out").arg(cert)).map(drop)
}

fn nginx(folder: &Path, ports: &Ports) -> Result<Process, String> {
    let program = find_program("nginx").ok_or("nginx is not installed")?;
    fs::create_dir_all(folder.join("h2")).map_err(|error| format!("{}: {error}", folder.display()))?;
    for (name, bytes) in FILES {
        for file in [folder.join(name), folder.join("h2").join(name)] {
            fs::write(&file, vec![b'.'; bytes]).map_err(|error| format!("{}: {error}", file.display()))?;
        }
    }
    let root = folder.display();
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|kind| format!("{kind}_temp_path {root}/{kind};"))
        .concat();
    let Ports { origins: [first, second], origin_h2, .. } = ports;
    let config = format!(
        "daemon off; master_process off; pid {root}/nginx.pid; error_log stderr;
events {{ worker_connections 4096; }}
http {{
    access_log off; {temporary} root {root}; client_max_body_size 0; keepalive_requests 1000000;
    server {{
        listen 127.0.0.1:{first}; listen 127.0.0.1:{second}; listen 127.0.0.1:{origin_h2} http2;
        location = /none {{ return 204; }}
        # It reads the whole request before it answers. With `return` the answer comes first, and then curl 7.88 over HTTP/2 never ends.
        location = /post {{ proxy_pass http://127.0.0.1:{second}/sink; }}
        location = /sink {{ return 200; }}
    }}
}}
"
    );
    let file = folder.join("nginx.conf");
    fs::write(&file, config).map_err(|error| format!("{}: {error}", file.display()))?;
    Process::start(Command::new(program).args(["-e", "stderr", "-c"]).arg(&file), *first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_half_tells_whether_memory_grows() {
        let check = |mib: fn(f64) -> f64, expect: &str| {
            let samples: Vec<_> = (0..600).map(|second| (f64::from(second), mib(f64::from(second)))).collect();
            let verdict = verdict(&samples);
            assert!(verdict.starts_with(expect), "{verdict}");
        };
        check(
            |_| 16.0,
            "RSS has levelled off: in the second half (299 s) a mean of 16.0 MiB (16.0 to 16.0) and a slope of +0.0 KiB",
        );
        // Memory grows at first and fluctuates later.
        check(|s| 10.0 + (s / 60.0).min(4.0) + (s % 7.0) / 10.0, "RSS has levelled off");
        check(|s| 20.0 - s / 600.0, "RSS has levelled off");
        check(
            |s| 16.0 + s / 600.0,
            "RSS has NOT levelled off: in the second half (299 s) a mean of 16.7 MiB (16.5 to 17.0) and a slope of +102.4 KiB a minute, +0.50 MiB in all",
        );
    }

    #[test]
    fn the_report_of_h2load() {
        let report =
            "finished in 1s\nrequests: 40 total, 40 started, 40 done, 39 succeeded, 1 failed, 0 errored, 0 timeout\n";
        assert_eq!((succeeded(report), succeeded("")), (Some(39), None));
    }
}
