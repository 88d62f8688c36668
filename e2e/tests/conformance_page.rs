//! `docs/conformance.md` shows the kept reports of the Gateway API's conformance suite, and nothing else as a result.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// Set to write the page instead of comparing it.
const WRITE: &str = "STEELYARD_WRITE_DOCS";

/// The part of the page between these lines is made from the reports.
const BEGIN: &str = "<!-- Made from the reports. To write it again: STEELYARD_WRITE_DOCS=1 cargo test -p e2e --test conformance_page -->\n";
const END: &str = "<!-- The end of what is made from the reports. -->\n";

/// The channels of the Gateway API, and the profiles that each report must have. The mesh profiles are not for Steelyard.
const CHANNELS: [&str; 2] = ["standard", "experimental"];
const PROFILES: [&str; 5] = ["GATEWAY-HTTP", "GATEWAY-GRPC", "GATEWAY-TLS", "GATEWAY-TCP", "GATEWAY-UDP"];

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs")
}

/// The name of a report below `docs`.
fn name(channel: &str) -> String {
    format!("conformance/{channel}-v{}-default-report.yaml", env!("CARGO_PKG_VERSION"))
}

fn report(channel: &str) -> Value {
    let path = docs().join(name(channel));
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn strings(list: &Value) -> BTreeSet<&str> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

/// The results as the page shows them.
fn results() -> String {
    let mut text = String::new();
    for channel in CHANNELS {
        let report = report(channel);
        assert_eq!(report["gatewayAPIChannel"], channel);
        let version = report["gatewayAPIVersion"].as_str().unwrap();
        let profiles = report["profiles"].as_array().unwrap();
        let profile = |name: &str| profiles.iter().find(|profile| profile["name"] == name);
        writeln!(text, "\n## The {channel} channel of version {}\n", version.trim_start_matches('v')).unwrap();
        text += "| profile | core tests passed | failed | extended tests passed | failed |\n|---|---|---|---|---|\n";
        let mut unsupported = BTreeSet::new();
        for name in PROFILES {
            let profile = profile(name).unwrap_or_else(|| panic!("the report of {channel} has no profile {name}"));
            let count = |kind: &str, what: &str| profile[kind]["statistics"][what].as_u64().unwrap();
            let [core, extended] = ["core", "extended"].map(|kind| (count(kind, "Passed"), count(kind, "Failed")));
            writeln!(text, "| {name} | {} | {} | {} | {} |", core.0, core.1, extended.0, extended.1).unwrap();
            unsupported.extend(strings(&profile["extended"]["unsupportedFeatures"]));
        }
        if unsupported.is_empty() {
            text += "\nSteelyard supports every feature that the suite tests on this channel.\n";
        } else {
            text += "\nSteelyard does not support these features, and the suite skips their tests:\n\n";
            unsupported.iter().for_each(|feature| writeln!(text, "- `{feature}`").unwrap());
        }
        writeln!(text, "\nThe report is `docs/{}`.", name(channel)).unwrap();
    }
    text + "\n"
}

#[test]
fn the_page_shows_what_the_reports_say() {
    let path = docs().join("conformance.md");
    let page = fs::read_to_string(&path).unwrap();
    let (head, rest) = page.split_once(BEGIN).expect("the page has no line that begins the results");
    let (shown, tail) = rest.split_once(END).expect("the page has no line that ends the results");
    if std::env::var_os(WRITE).is_some() {
        fs::write(&path, [head, BEGIN, &results(), END, tail].concat()).unwrap();
    } else {
        assert_eq!(shown, results(), "{BEGIN}");
    }
}

/// What the Gateway API project requires of a report, apart from its form, which the suite guarantees.
#[test]
fn the_reports_are_of_complete_runs() {
    for channel in CHANNELS {
        let report = report(channel);
        assert_eq!(report["kind"], "ConformanceReport");
        assert_eq!(report["implementation"]["version"], concat!("v", env!("CARGO_PKG_VERSION")), "{channel}");
        for profile in report["profiles"].as_array().unwrap() {
            for kind in ["core", "extended"] {
                let result = &profile[kind];
                assert_eq!(result["result"], "success", "{channel} {}: {result:#}", profile["name"]);
                assert_eq!(result["statistics"]["Skipped"], 0, "{channel} {}: {result:#}", profile["name"]);
            }
        }
    }
}
