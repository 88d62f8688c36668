//! `cargo xtask test conformance`: the conformance suite of the Gateway API, on a cluster of one node.
//!
//! `hack/conformance` pins the suite. The suite's pods run on the node. Steelyard is a process in the node's network namespace, with the account
//! and the rights of the chart: the suite needs a different address for each Gateway, and those must be local addresses of the process.
//!
//! Not here: the mesh profiles.

use std::path::{Path, PathBuf};
use std::time::Instant;

use serde_json::json;

use super::{Cluster, Parts, control, images, install, network, node};
use crate::cargo::metadata;
use crate::command::{self, capture, root};
use crate::dist::{Release, image, pack};
use crate::{dist, go, kube, setup, test};

const MODULE: &str = "hack/conformance";
const COREDNS: &str = "hack/conformance/coredns";
const ECHO: &str = "sigs.k8s.io/gateway-api/conformance/echo-basic";

/// The images that the suite's manifests name, and the program in each.
const IMAGES: [(&str, &str); 4] = [
    ("echo-basic", "registry.k8s.io/gateway-api/echo-basic:v1.5.1"),
    ("echo-basic", "registry.k8s.io/gateway-api/echo-basic:v1.6.0-dev.2"),
    ("echo-basic", "registry.k8s.io/gateway-api/echo-basic:v1.6.0-dev.3"),
    ("coredns", "registry.k8s.io/coredns/coredns:v1.12.2"),
];

const PROFILES: &str = "GATEWAY-HTTP,GATEWAY-GRPC,GATEWAY-TLS,GATEWAY-TCP,GATEWAY-UDP";

/// The addresses of Gateways. Tests of the suite request the usable one, which is free, and the unusable one, which is outside of the pool.
const POOL: &str = "198.51.100.0/24";
const USABLE: &str = "198.51.100.200";
const UNUSABLE: &str = "203.0.113.1";

/// The channels of the Gateway API. Each has its own report.
const CHANNELS: [&str; 2] = ["standard", "experimental"];

const USAGE: &str = "usage: cargo xtask test conformance [standard|experimental] [ARGS OF THE SUITE]";

/// The verb `test conformance`: runs the suite with the kinds of one channel, or of both. The rest of `arguments` goes to the suite
/// (`-run-test=NAME`).
pub fn run(arguments: &[String]) -> Result<(), String> {
    let (channels, rest) = parse(arguments)?;
    run_channels(&channels, rest).map(drop)
}

/// The stage of CI: runs the suite on both channels. The reports that are kept must be those of this commit.
pub fn check() -> Result<(), String> {
    let changed = run_channels(&CHANNELS, &[])?;
    if changed.is_empty() {
        Ok(())
    } else {
        Err(format!("the reports have changed, commit them: {}", changed.join(", ")))
    }
}

fn parse(arguments: &[String]) -> Result<(Vec<&'static str>, &[String]), String> {
    let Some((first, rest)) = arguments.split_first() else { return Ok((CHANNELS.to_vec(), arguments)) };
    match CHANNELS.into_iter().find(|channel| channel == first) {
        Some(channel) => Ok((vec![channel], rest)),
        None if first.starts_with('-') => Ok((CHANNELS.to_vec(), arguments)),
        None => Err(USAGE.into()),
    }
}

/// Runs the suite on each channel, even if it has failed on another. Returns the names of the reports that have changed.
fn run_channels(channels: &[&str], arguments: &[String]) -> Result<Vec<String>, String> {
    node::check_host()?;
    setup::install_for("cluster")?;
    let steelyard = test::build_steelyard(&[])?;
    let directory = metadata()?.target_directory.join("conformance");
    build(&directory)?;
    let release = Release::for_tests("conformance/images")?;
    let mut images = vec![images::pause(&release)?];
    for (name, reference) in IMAGES {
        images.push(program(&release, name, reference, &directory)?);
    }
    let (programs, helm) = (kube::build_everything()?, dist::helm()?);
    // It leaves port 443 of the node's other addresses to Steelyard.
    let parts = Parts { programs, helm, images, previous: None, api_server: network::API_SERVICE };
    let (mut changed, mut failed) = (Vec::new(), Vec::new());
    for channel in channels {
        match run_channel(&parts, &steelyard, &directory, channel, arguments) {
            Ok(report) => changed.extend(report),
            Err(why) => failed.push(format!("{channel}: {why}")),
        }
    }
    if failed.is_empty() { Ok(changed) } else { Err(failed.join("; ")) }
}

/// Runs the suite on a cluster of its own. Returns the name of the report if it has changed.
fn run_channel(
    parts: &Parts,
    steelyard: &Path,
    directory: &Path,
    channel: &str,
    arguments: &[String],
) -> Result<Option<String>, String> {
    let kinds = kube::kinds(channel)?;
    let cluster = Cluster::start(parts, 1)?;
    let start = Instant::now();
    let outcome =
        start_steelyard(&cluster, steelyard, &kinds).and_then(|()| suite(&cluster, directory, channel, arguments));
    println!("conformance: {channel} took {} s", start.elapsed().as_secs());
    let (outcome, report) = match outcome {
        Ok(report) => (Ok(()), report),
        Err(why) => (Err(why), None),
    };
    cluster.end(outcome).map(|()| report)
}

/// Builds the suite and the programs of its pods. This takes a minute the first time, and a second after that.
fn build(directory: &Path) -> Result<(), String> {
    let start = Instant::now();
    command::run(go::build(MODULE, directory)?.args(["-ldflags", "-s -w", ECHO]))?;
    command::run(go::build(COREDNS, directory)?.args(["-ldflags", "-s -w", "."]))?;
    let suite = directory.join("suite").display().to_string();
    let mut build = go::go(MODULE, &["test", "-c", "-mod=readonly", "-trimpath", "-ldflags", "-s -w"])?;
    command::run(build.env("CGO_ENABLED", "0").args(["-o", &suite, "./suite"]))?;
    println!("conformance: built in {} s", start.elapsed().as_secs());
    Ok(())
}

/// Makes an image of one static program, with the name that the suite's manifests use.
fn program(release: &Release, name: &str, reference: &str, directory: &Path) -> Result<PathBuf, String> {
    let image = reference.rsplit('/').next().unwrap_or(reference).replace(':', "-");
    let files = release.stage(&image)?.join(image::FILES);
    pack::copy(&directory.join(name), &files.join(name))?;
    let config = json!({"config": {"Entrypoint": [format!("/{name}")], "WorkingDir": "/"}});
    image::of_files(release, &image, reference, config)
}

/// Installs the chart without pods, and starts a controller with its account.
fn start_steelyard(cluster: &Cluster<'_>, program: &Path, kinds: &Path) -> Result<(), String> {
    let Some(node) = cluster.nodes.first() else { return Ok(()) };
    install::kinds(cluster, kinds)?;
    install::namespaces(cluster)?;
    install::release(
        cluster,
        "steelyard",
        &["replicas=0", "service.enabled=false", "podDisruptionBudget.enabled=false"],
    )?;
    let token = ["create", "token", "steelyard", "--namespace=steelyard", "--duration=24h"];
    let token = capture(&mut cluster.kubectl(&token))?;
    let kubeconfig = control::write_kubeconfig(&cluster.run, "steelyard", token.trim(), "steelyard")?;
    network::make_local(node.pid, cluster.router, POOL)?;
    let address = network::address(0);
    let flags = [
        "controller".to_owned(),
        format!("--kubeconfig={kubeconfig}"),
        // The addresses of the pool are local addresses of the node.
        format!("--listen-address={address}"),
        format!("--gateway-address-pool={POOL}"),
        format!("--address-pool={}", network::POOL),
        "--node-name=n0".to_owned(),
    ];
    node.spawn("steelyard", &program.display().to_string(), &flags)?;
    let accepted = ["wait", "--for=condition=Accepted", "gatewayclass/steelyard", "--timeout=60s"];
    command::run(&mut cluster.kubectl(&accepted))
}

/// Runs the suite. Returns the name of the report if it has changed.
fn suite(
    cluster: &Cluster<'_>,
    directory: &Path,
    channel: &str,
    arguments: &[String],
) -> Result<Option<String>, String> {
    let report = directory.join(format!("{channel}.yaml"));
    // A failed run must not leave the report of an earlier one.
    pack::write(&report, "")?;
    let mut suite = node::in_network(cluster.router, &directory.join("suite").display().to_string(), &[]);
    suite.args(["-test.v", "-test.timeout=60m", "-test.run=TestConformance", "-gateway-class=steelyard"]);
    suite.arg(format!("-conformance-profiles={PROFILES}"));
    suite.args([format!("-usable-address={USABLE}"), format!("-unusable-address={UNUSABLE}")]);
    suite.args(["-organization=steelyard", "-project=steelyard", "-contact=@steelyard"]);
    suite.args(["-url=https://example.com/steelyard", concat!("-version=v", env!("CARGO_PKG_VERSION"))]);
    suite.arg(format!("-report-output={}", report.display())).args(arguments);
    suite.env("KUBECONFIG", control::kubeconfig(&cluster.run, "admin")).current_dir(root());
    command::run(&mut suite)?;
    let text = pack::read(&report)?;
    println!("{text}\nconformance: the report is {}", report.display());
    // The report of some tests is not that of the suite.
    if arguments.is_empty() { keep(channel, &text) } else { Ok(None) }
}

/// Writes the report to the documentation if more than its date has changed, and returns its name if so.
fn keep(channel: &str, text: &str) -> Result<Option<String>, String> {
    let name = format!("docs/conformance/{channel}-v{}-default-report.yaml", env!("CARGO_PKG_VERSION"));
    let file = root().join(&name);
    let kept = std::fs::read_to_string(&file).unwrap_or_default();
    let text = in_order(text);
    if without_date(&text) == without_date(&kept) {
        return Ok(None);
    }
    println!("conformance: wrote {name}");
    pack::write(&file, text)?;
    Ok(Some(name))
}

/// The report with its profiles in alphabetical order. The suite writes them in a random order.
fn in_order(report: &str) -> String {
    let mut parts = vec![String::new()];
    for line in report.lines() {
        // A profile is an item of the only list of objects. Every other line that is not indented begins a key of the report.
        if line.starts_with("- ") || !line.starts_with([' ', '-']) {
            parts.push(String::new());
        }
        if let Some(part) = parts.last_mut() {
            *part += line;
            *part += "\n";
        }
    }
    let is_profile = |part: &String| part.starts_with("- ");
    let name = |part: &String| part.lines().find(|line| line.starts_with("  name: ")).map(str::to_owned);
    parts
        .chunk_by_mut(|one, next| is_profile(one) == is_profile(next))
        .filter(|chunk| chunk.iter().all(is_profile))
        .for_each(|profiles| profiles.sort_by_key(name));
    parts.concat()
}

fn without_date(report: &str) -> Vec<&str> {
    report.lines().filter(|line| !line.starts_with("date:")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments() {
        let check = |words: &[&str], expect: Option<(&[&str], usize)>| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            let parsed = parse(&words).ok();
            assert_eq!(parsed, expect.map(|(channels, rest)| (channels.to_vec(), &words[rest..])), "{words:?}");
        };
        check(&[], Some((&CHANNELS, 0)));
        check(&["experimental"], Some((&["experimental"], 1)));
        check(&["standard", "-run-test=A"], Some((&["standard"], 1)));
        check(&["-run-test=A"], Some((&CHANNELS, 0)));
        check(&["stable"], None);
    }

    #[test]
    fn profiles_are_in_alphabetical_order() {
        let report = "a: x\nprofiles:\n- core:\n    n: 1\n  name: HTTP\n- core:\n    n: 2\n  name: GRPC\nz: x\n";
        let expect = "a: x\nprofiles:\n- core:\n    n: 2\n  name: GRPC\n- core:\n    n: 1\n  name: HTTP\nz: x\n";
        assert_eq!(in_order(report), expect);
        assert_eq!(in_order(expect), expect);
    }

    #[test]
    fn a_report_of_another_day_is_the_same_report() {
        assert_eq!(without_date("a: 1\ndate: x\nb: 2"), without_date("a: 1\ndate: y\nb: 2"));
        assert_ne!(without_date("a: 1\ndate: x\nb: 2"), without_date("a: 1\ndate: x\nb: 3"));
    }
}
