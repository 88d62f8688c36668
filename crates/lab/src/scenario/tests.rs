//! Scenarios: the shipped files, every error at its place, and the selection for a host and a call.

use super::*;
use crate::contender::all;
use crate::record::{Gap, LoadKind, Mode, Rate};

const GOOD: &str = r#"
title = "A title"
question = "What?"
contenders = ["direct", "nginx-http", "nginx-http:default", "steelyard-tcp*2", "envoy-http"]
twins = ["direct"]
endpoints = 2
rounds = 5

[time]
measure = "3s"

[[case]]
name = "full"
title = "As fast as it goes"
origin = {kind = "http", arguments = ["--body=18"]}
load = {kind = "http", connections = 64, warm_up = "500ms"}

[[case]]
name = "half"
title = "Half of it"
contenders = ["direct", "nginx-http"]
origin = {kind = "http", count = 1}
load = {kind = "http", connections = [1, 8], rate = [100, "50% of full"], pacing = "burst1hz"}

[[case]]
name = "rr"
title = "There and back"
origin = {kind = "tcp"}
load = {kind = "tcp-rr"}

[quick]
cases = ["full"]
rounds = 2
"#;

fn good() -> (ScenarioFile, Vec<Recipe>) {
    let recipes = all(None).unwrap();
    (read("good", "good.toml", GOOD, &recipes).unwrap(), recipes)
}

#[test]
fn shipped_scenarios_can_be_read() {
    let recipes = all(None).unwrap();
    let mut published = 0;
    for name in names() {
        let file = find(name, &recipes).unwrap_or_else(|problems| panic!("{problems:?}"));
        published += usize::from(file.report.is_some());
        assert!(!file.cases.is_empty(), "{name}");
        for quick in [false, true] {
            let wish = Wish { quick, ..Wish::default() };
            let selection = select(&file, &recipes, &[], &wish, (8, false)).unwrap();
            assert!(selection.scenario.instances.len() >= 3, "{name}");
        }
    }
    assert_eq!(published, 5, "five published reports are done again");
}

#[test]
fn lists_are_multiplied_out_and_times_inherited() {
    let (file, _) = good();
    let names: Vec<_> = file.cases.iter().map(|case| case.case.name.as_str()).collect();
    assert_eq!(names, ["full", "half-c1-r100", "half-c1-r50pct", "half-c8-r100", "half-c8-r50pct", "rr"]);
    let load = &file.cases[0].case.load;
    assert_eq!((load.kind, load.ramp_ms, load.warm_up_ms, load.measure_ms), (LoadKind::Http, 1000, 500, 3000));
    assert_eq!((file.cases[0].case.origin.count, file.cases[1].case.origin.count), (2, 1));
    let Mode::Open { rate, .. } = &file.cases[2].case.load.mode else { panic!() };
    assert_eq!(*rate, Rate::OfSlowest { share: 0.5, case: "full".into() });
}

#[test]
fn every_error_with_its_place() {
    let recipes = all(None).unwrap();
    let check = |from: &str, to: &str, expect: &[&str]| {
        assert!(GOOD.contains(from), "{from}");
        let problems = read("x", "x.toml", &GOOD.replacen(from, to, 1), &recipes).unwrap_err();
        assert_eq!(problems.iter().map(ToString::to_string).collect::<Vec<_>>(), expect, "{to}");
    };
    check(
        "\"nginx-http\",",
        "\"ngnix-http\",",
        &["x.toml:4:25: no contender has the name \"ngnix-http\"; did you mean `nginx-http`?"],
    );
    check("steelyard-tcp*2", "direct*2", &["x.toml:4:61: direct cannot form a chain"]);
    check(
        "nginx-http:default",
        "direct:default",
        &["x.toml:4:39: direct has no default configuration beside its tuned one"],
    );
    check("nginx-http:default", "nginx-http:fast", &["x.toml:4:39: \"fast\" is not a variant; use tuned or default"]);
    check(
        "twins = [\"direct\"]",
        "twins = [\"routed\"]",
        &["x.toml:5:9: `twins`: routed is not one of the contenders"],
    );
    check(
        "kind = \"tcp-rr\"",
        "kind = \"tcp-rrr\", conections = 4",
        &[
            "x.toml:29:16: `kind` is \"tcp-rrr\"; it must be http, http10, http-close, https, https-close, https-resume, h2c, h2c-http, grpc, tcp-rr, tcp-crr, stream, stream-paced; did \
         you mean `tcp-rr`?",
            "x.toml:29:27: unknown name `conections`; did you mean `connections`?",
        ],
    );
    check(
        "kind = \"tcp-rr\"",
        "kind = \"https\"",
        &[
            "x.toml:29:8: `load`: the origin does not answer this kind: http answers http, http10, http-close, h2c-http and https, grpc answers h2c and grpc, tcp answers tcp-rr and tcp-crr, and stream answers stream and stream-paced",
        ],
    );
    check(
        "50% of full",
        "50% of ful",
        &[
            "x.toml:12:1: case \"half-c1-r50pct\": its rate depends on a case that does not exist, or that depends on another case itself: \"ful\"",
            "x.toml:12:1: case \"half-c8-r50pct\": its rate depends on a case that does not exist, or that depends on another case itself: \"ful\"",
        ],
    );
    check(
        "\"50% of full\"",
        "\"half\"",
        &["x.toml:23:59: \"half\" is not a rate; write it like 2000 or \"50% of CASE\""],
    );
    check("name = \"rr\"", "name = \"full\"", &["x.toml:12:1: two cases have the name \"full\""]);
    check(
        "cases = [\"full\"]",
        "cases = [\"fill\"]",
        &["x.toml:32:10: no case has the name \"fill\"; did you mean `full`?"],
    );
}

#[test]
fn a_mistake_is_told_once() {
    let recipes = all(None).unwrap();
    let check = |text: &str, expect: &[&str]| {
        let problems = read("x", "x.toml", text, &recipes).unwrap_err();
        assert_eq!(problems.iter().map(ToString::to_string).collect::<Vec<_>>(), expect, "{text}");
    };
    // What comes after a mistake of the syntax is not read, and nothing of it is missed.
    check("title = \"x\ncontenders = [\"direct\"]\n", &["x.toml:1:11: invalid basic string, expected `\"`"]);
    // A list of which nothing is left is not missing.
    let problems =
        read("x", "x.toml", &GOOD.replacen("contenders = [", "contenders = [\"dirct\"]\nx = [", 1), &recipes);
    let problems: Vec<String> = problems.unwrap_err().iter().map(ToString::to_string).collect();
    assert!(problems[0].contains("did you mean `direct`?"), "{problems:?}");
    assert!(!problems.iter().any(|problem| problem.contains("is missing")), "{problems:?}");
}

#[test]
fn what_a_host_and_a_call_leave_of_it() {
    let (file, recipes) = good();
    let missing = [Gap { what: "envoy-http".into(), why: "not here".into() }];
    let check = |wish: Wish, cpus, loopback, expect: &[(&str, &[&str])]| {
        let selection = select(&file, &recipes, &missing, &wish, (cpus, loopback)).unwrap();
        let cases = &selection.scenario.cases;
        let got: Vec<_> = cases.iter().map(|case| (case.name.clone(), case.instances.clone())).collect();
        let expect: Vec<_> = expect
            .iter()
            .map(|(name, ids)| ((*name).to_owned(), ids.iter().map(|id| (*id).to_owned()).collect::<Vec<_>>()))
            .collect();
        assert_eq!(got, expect);
        selection
    };
    let all: &[&str] = &["direct", "nginx-http", "nginx-http:default", "steelyard-tcp*2"];
    let quick = Wish { quick: true, ..Wish::default() };
    let selection = check(quick, 2, false, &[("full", all)]);
    assert_eq!((selection.rounds, selection.scenario.reference.as_str()), (2, "direct"));
    assert!(selection.gaps.iter().any(|gap| gap.what == "envoy-http" && gap.why == "not here"));
    assert_eq!(selection.scenario.twins, ["direct"]);

    // A case on which another case's rate depends is included.
    let half = Wish { cases: vec!["half-c8-r50pct".into()], rounds: Some(9), ..Wish::default() };
    let selection = check(half, 2, true, &[("full", all), ("half-c8-r50pct", &["direct", "nginx-http"])]);
    assert_eq!((selection.rounds, selection.scenario.endpoints, selection.scenario.mtu), (9, 1, 0));
    assert!(selection.scenario.cases.iter().all(|case| case.origin.count == 1));

    // Contenders that are named explicitly take part even if the file does not name them; those that cannot are gaps.
    let contenders = vec!["haproxy-tcp".parse().unwrap(), "envoy-h2".parse().unwrap()];
    let wish = Wish { contenders, cases: vec!["rr".into()], ..Wish::default() };
    let selection = check(wish, 2, false, &[("rr", &["haproxy-tcp"])]);
    assert_eq!(selection.scenario.reference, "haproxy-tcp");
    assert_eq!(selection.gaps[0].what, "envoy-h2");

    let nothing = Wish { cases: vec!["none".into()], ..Wish::default() };
    assert!(select(&file, &recipes, &missing, &nothing, (2, false)).unwrap_err().contains("full, half-c1-r100"));
}

#[test]
fn a_sweep_goes_as_far_as_the_host() {
    let recipes = all(None).unwrap();
    let text = GOOD
        .replacen("rounds = 5", "rounds = 5\nworkers = [1, 2, 4, 8]", 1)
        .replace("twins = [\"direct\"]", "reference = \"nginx-http\"");
    let file = read("x", "x.toml", &text, &recipes).unwrap();
    let wish = Wish { contenders: vec!["direct".parse().unwrap(), "nginx-http".parse().unwrap()], ..Wish::default() };
    let selection = select(&file, &recipes, &[], &wish, (2, false)).unwrap();
    let ids: Vec<_> = selection.scenario.instances.iter().map(|instance| instance.id.as_str()).collect();
    assert_eq!(ids, ["direct", "nginx-http@1", "nginx-http@2"]);
    assert_eq!(
        selection.gaps,
        [Gap { what: "nginx-http@4, 8".into(), why: "more workers than this host's 2 CPUs".into() }]
    );
    assert_eq!(selection.scenario.reference, "nginx-http@1");
    assert_eq!(selection.scenario.cases[1].instances, ["direct", "nginx-http@1", "nginx-http@2"]);
}

#[test]
fn instances_are_written_as_they_are_read() {
    for text in ["direct", "nginx-http:default", "haproxy-tcp*2", "envoy-http@4", "x:default*8@1024"] {
        assert_eq!(text.parse::<InstanceId>().unwrap().to_string(), text);
    }
    for bad in ["", ":default", "a b", "x*0", "x*9", "x@0", "x@many", "x:", "x*2*2"] {
        assert!(bad.parse::<InstanceId>().is_err(), "{bad}");
    }
}

#[test]
fn an_unknown_scenario_names_those_there_are() {
    let message = |name| find(name, &[]).unwrap_err()[0].to_string();
    assert!(message("l4-matrx").contains("did you mean `l4-matrix`? The scenarios are: "), "{}", message("l4-matrx"));
    assert!(message("zzz").contains("cpu-scaling"));
    assert!(message("/no/such/file.toml").contains("cannot be read"));
}
