//! Which crate may use which: checks the manifests against the table of ARCHITECTURE.md.

use super::Problem;
use crate::cargo::Member;

/// One of our crates, and what it may depend on.
struct Row {
    name: &'static str,
    may_use: &'static [&'static str],
}

/// From the bottom up.
const ARROWS: &[Row] = &[
    Row { name: "model", may_use: &[] },
    Row { name: "config", may_use: &["model"] },
    Row { name: "balance", may_use: &["model"] },
    Row { name: "wire", may_use: &[] },
    Row { name: "net", may_use: &[] },
    Row { name: "telemetry", may_use: &["model"] },
    Row { name: "health", may_use: &["model", "balance", "wire", "net", "telemetry"] },
    Row { name: "proxy", may_use: &["model", "balance", "wire", "net", "telemetry"] },
    Row { name: "l4", may_use: &["model", "balance", "telemetry"] },
    Row { name: "admin", may_use: &["model", "telemetry"] },
    // TrafficPolicy has the keys of the file, which are defined once.
    Row { name: "controller", may_use: &["model", "config"] },
    // It drives Steelyard like a rival and shares no code with it, so that a fault in the instrument cannot hide the
    // same fault in the proxy.
    Row { name: "lab", may_use: &[] },
    Row {
        name: "steelyard",
        may_use: &[
            "model",
            "config",
            "balance",
            "wire",
            "net",
            "telemetry",
            "health",
            "proxy",
            "l4",
            "admin",
            "controller",
            "lab",
        ],
    },
    Row { name: "testkit", may_use: &[] },
    // All of it is tests: it drives the binary from outside, with the lab's origins and load on the other side.
    Row { name: "e2e", may_use: &["testkit", "lab"] },
    // Its bench of the kernel plane needs the namespaces that tests use.
    Row { name: "xtask", may_use: &["testkit"] },
];

/// What the tests of every crate may use in addition. It is not part of what users run.
const IN_TESTS: &str = "testkit";

/// Reports every dependency outside the table, and every crate without a row.
pub fn check(members: &[Member]) -> Vec<Problem> {
    let ours = |name: &str| members.iter().any(|member| member.name == name);
    let mut problems = Vec::new();
    for member in members {
        let mut problem =
            |message| problems.push(Problem { file: format!("{}/Cargo.toml", member.folder), line: 1, message });
        let Some(row) = ARROWS.iter().find(|row| row.name == member.name) else {
            problem(format!(
                "crate `{}` has no row in the arrow table: add one to xtask/src/tidy/arrows.rs and to ARCHITECTURE.md",
                member.name
            ));
            continue;
        };
        for dependency in member.dependencies.iter().filter(|dependency| ours(&dependency.name)) {
            let name = dependency.name.as_str();
            let allowed = row.may_use.contains(&name) || dependency.dev && name == IN_TESTS;
            if !allowed {
                let kind = if dependency.dev { "uses (in tests)" } else { "uses" };
                let right = if row.may_use.is_empty() { "none of our crates".into() } else { row.may_use.join(", ") };
                problem(format!("`{}` {kind} `{name}`; it may use {right}", row.name));
            }
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cargo::Dependency;

    fn member(name: &str, dependencies: &[(&str, bool)]) -> Member {
        let dependencies =
            dependencies.iter().map(|(name, dev)| Dependency { name: (*name).into(), dev: *dev }).collect();
        Member { name: name.into(), folder: format!("crates/{name}"), roots: Vec::new(), dependencies }
    }

    #[test]
    fn arrows_outside_the_table() {
        let check = |user: &str, used: &str, dev, expect: Option<&str>| {
            let members = [member(user, &[(used, dev), ("serde", false)]), member(used, &[])];
            let messages: Vec<String> = check(&members).into_iter().map(|problem| problem.message).collect();
            assert_eq!(messages, expect.map(str::to_owned).into_iter().collect::<Vec<_>>(), "{user} -> {used}");
        };
        check("proxy", "wire", false, None);
        check("proxy", "config", false, Some("`proxy` uses `config`; it may use model, balance, wire, net, telemetry"));
        check("wire", "model", false, Some("`wire` uses `model`; it may use none of our crates"));
        check("wire", "testkit", true, None);
        check("wire", "testkit", false, Some("`wire` uses `testkit`; it may use none of our crates"));
        check("lab", "wire", true, Some("`lab` uses (in tests) `wire`; it may use none of our crates"));
        check("e2e", "lab", true, None);
        check("e2e", "testkit", false, None);
        check("e2e", "proxy", true, Some("`e2e` uses (in tests) `proxy`; it may use testkit, lab"));
    }

    #[test]
    fn a_crate_without_a_row() {
        let problems = check(&[member("gizmo", &[])]);
        assert_eq!((problems.len(), problems[0].file.as_str()), (1, "crates/gizmo/Cargo.toml"));
        assert!(problems[0].message.contains("no row"));
    }

    #[test]
    fn the_table_has_no_cycle() {
        for (place, row) in ARROWS.iter().enumerate() {
            for used in row.may_use {
                assert!(ARROWS[..place].iter().any(|earlier| earlier.name == *used), "{} -> {used}", row.name);
            }
        }
    }
}
