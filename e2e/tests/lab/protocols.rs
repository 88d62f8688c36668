//! Contenders whose clients speak another protocol than the origins.

use super::*;

const H2_TO_HTTP: &str = r#"
title = "HTTP/2 and HTTP/1.1 in front of the same origin"
question = "Does each load get its own service?"
contenders = ["steelyard-h2-http", "haproxy-h2-http", "nginx-h2-http", "steelyard-http"]
endpoints = 1
rounds = 1

[time]
ramp = "50ms"
warm_up = "100ms"
measure = "300ms"
trim = "50ms"

[[case]]
name = "h2"
title = "Two connections of four streams"
origin = {kind = "http", arguments = ["--body=18"]}
load = {kind = "h2c-http", connections = 2, streams = 4}

[[case]]
name = "http"
title = "Two connections"
origin = {kind = "http", arguments = ["--body=18"]}
load = {kind = "http", connections = 2}
"#;

/// The cells of a run of one round. Rivals that are not installed may be missing; every other contender served without errors.
#[track_caller]
fn served(scenario: &str) -> Vec<Value> {
    let _measuring = measuring();
    let scratch = Scratch::new();
    let (file, out) = (scratch.write("protocols.toml", scenario), scratch.path().join("out"));
    let said = finish_run(Program::spawn("lab", &mut lab_run(&file, &out, &["--rounds", "1"])).unwrap(), &out);
    let run = record(&out);
    for gap in run["gaps"].as_array().unwrap() {
        assert!(gap["why"].as_str().unwrap().contains("is not installed"), "{gap}: {said}");
    }
    for cell in cells(&run) {
        let measurement = &cell["measurement"];
        assert!(measurement["ok"].as_u64().unwrap_or_default() > 0, "{cell}: {said}");
        let statuses: Vec<&String> = measurement["statuses"].as_object().unwrap().keys().collect();
        assert_eq!(statuses, ["200"], "{cell}");
    }
    cells(&run).to_vec()
}

#[test]
fn clients_of_http2_and_origins_of_http1() {
    let cells = served(H2_TO_HTTP);
    let instances_of = |case: &str| -> BTreeSet<&str> {
        let of_case = cells.iter().filter(|cell| cell["case"] == case);
        of_case.map(|cell| cell["instance"].as_str().unwrap()).collect()
    };
    assert!(instances_of("h2").contains("steelyard-h2-http") && !instances_of("h2").contains("steelyard-http"));
    assert_eq!(instances_of("http"), BTreeSet::from(["steelyard-http"]));
}

const TLS: &str = r#"
title = "TLS"
question = "Are handshakes full or resumed as the load says?"
contenders = ["steelyard-https", "haproxy-https", "nginx-https"]
endpoints = 1
rounds = 1

[time]
ramp = "50ms"
warm_up = "100ms"
measure = "300ms"
trim = "50ms"

[[case]]
name = "full"
title = "A full handshake for each request"
origin = {kind = "http", arguments = ["--body=18"]}
load = {kind = "https-close", connections = 2}

[[case]]
name = "resumed"
title = "A resumed session for each request"
origin = {kind = "http", arguments = ["--body=18"]}
load = {kind = "https-resume", connections = 2}

[[case]]
name = "kept"
title = "Connections kept"
origin = {kind = "http", arguments = ["--body=64KiB"]}
load = {kind = "https", connections = 2}
"#;

#[test]
fn connections_over_tls() {
    let cells = served(TLS);
    assert!(cells.iter().any(|cell| cell["instance"] == "steelyard-https"));
    for cell in cells {
        let handshakes = cell["measurement"]["handshakes"].as_object().unwrap();
        let of = |how: &str| {
            let count = handshakes.get(&format!("TLS 1.3, TLS_AES_128_GCM_SHA256, X25519, {how}"));
            count.and_then(Value::as_u64).unwrap_or_default()
        };
        let all: u64 = handshakes.values().filter_map(Value::as_u64).sum();
        let is_as_the_load_says = match cell["case"].as_str().unwrap() {
            "full" => all > 2 && of("full") == all,
            "resumed" => all > 2 && of("full") <= 2 && of("full") + of("resumed") == all,
            _ => of("full") + of("resumed") == 2 && all == 2,
        };
        assert!(is_as_the_load_says, "{cell}");
    }
}
