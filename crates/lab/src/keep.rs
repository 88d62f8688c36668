//! Runs that are kept under version control, for years and for strangers to read.
//!
//! [`kept`] makes such a run from another: small, and without the paths and the name of the host, which are private and useless elsewhere.
//! [`write()`] puts it into a directory with its report and a README. [`into_document`] puts a run's table into a document at a marked
//! place, so that figures in documents are generated and not typed.
//!
//! Nothing is left out that a figure depends on: `verify` recomputes a kept run's tables like those of any other run, and its cells from the
//! raw data beside it (`raw`).

use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::raw::{self, Rounds};
use crate::record::Run;
use crate::report;

/// Top-level directories that every Linux has: a path below them does not identify the host.
const COMMON: [&str; 10] = ["bin", "dev", "etc", "lib", "lib64", "proc", "run", "sbin", "sys", "usr"];

/// The directory of a run's logs and configurations: paths are relative to it.
const RAW: &str = "/raw/";

/// The replacement for a host's name.
const SOME_HOST: &str = "this-host";

/// A shorter name is part of too many words.
const HOST_CHARACTERS_MIN: usize = 3;

/// The kept form of `run`, judged and computed again. `host` is the name of the host that it was measured on.
///
/// # Errors
/// If the run does not say which commit its program was built from, or ended early: what it shows could not be measured again.
pub fn kept(run: &Run, host: &str) -> io::Result<Run> {
    if let Some(why) = unfit(run) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    let mut kept = anonymous(run, host)?;
    kept.kept = true;
    report::analyse(&mut kept);
    // They follow from the cells, and are as large.
    kept.statistics.clear();
    Ok(kept)
}

/// Why a run is not fit to be kept. A run that is kept already was kept by the rules of its time.
fn unfit(run: &Run) -> Option<String> {
    if run.kept {
        return None;
    }
    if let Some(partial) = &run.partial {
        return Some(format!("the run ended early ({partial}), and only a whole run is kept: run it again"));
    }
    let build = "build it with STEELYARD_COMMIT=$(git rev-parse HEAD)";
    match run.environment.commit.as_deref() {
        None => {
            Some(format!("the run does not say which commit its program was built from: {build}, and run it again"))
        }
        Some(commit) if !is_commit(commit) => Some(format!(
            "the run's program was built from {commit}, which is no commit of the repository: commit, {build}, and run it again"
        )),
        Some(_) => None,
    }
}

/// Whether a text is the full name of a commit, and of nothing but the commit.
#[must_use]
pub fn is_commit(text: &str) -> bool {
    text.len() == 40 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// The raw data of `run`, whose file is in `directory`.
///
/// # Errors
/// None for a run that was read from a file.
pub fn rounds(run: &Run, directory: &Path, host: &str) -> io::Result<Rounds> {
    let all = Rounds { version: 1, cells: run.cells.clone(), logs: raw::logs(&directory.join("raw")) };
    of_no_host(all, run, host)
}

/// `run` without histograms and series, and without the host's own paths and name. `host` is the name of the host that it was measured on.
///
/// # Errors
/// None for a run that was read from a file.
pub(crate) fn anonymous(run: &Run, host: &str) -> io::Result<Run> {
    of_no_host(run.clone().without_bulk(), run, host)
}

/// The same without the host's own paths and name.
fn of_no_host<T: Serialize + DeserializeOwned>(what: T, run: &Run, host: &str) -> io::Result<T> {
    let host = Some(host).filter(|host| is_name_of_host(run, host));
    let mut value = serde_json::to_value(what)?;
    for_each_text(&mut value, &|text| without_host(&without_paths(text), host));
    Ok(serde_json::from_value(value)?)
}

/// Writes `run.json`, `report.md` and `README.md` of a kept run into `directory`, and its raw data if there are any.
///
/// # Errors
/// If the files cannot be written.
pub fn write(kept: &Run, rounds: Option<&Rounds>, directory: &Path) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    if let Some(rounds) = rounds {
        report::write_bytes(&directory.join(raw::FILE), &rounds.pack()?)?;
    }
    kept.write(&directory.join("run.json"))?;
    report::write_text(&directory.join("report.md"), &report::markdown(kept))?;
    report::write_text(&directory.join("README.md"), &report::readme(kept))
}

/// The name of this host.
#[must_use]
pub fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Puts `table` between the two marks that `document` has for the run of that name: `<!-- NAME -->` and `<!-- end of NAME -->`, each on a
/// line of its own. Returns `None` if they are missing.
#[must_use]
pub fn into_document(document: &str, name: &str, table: &str) -> Option<String> {
    let (begin, end) = (format!("<!-- {name} -->\n"), format!("<!-- end of {name} -->"));
    let (before, rest) = document.split_once(&begin)?;
    let (_, after) = rest.split_once(&end)?;
    Some(format!("{before}{begin}\n{}\n{end}{after}", table.trim_end().to_owned() + "\n"))
}

/// A host with the same name as something else in the run, or named by an ordinary word, would remove half of the run.
fn is_name_of_host(run: &Run, host: &str) -> bool {
    let known = run.contenders.iter().map(|contender| contender.name.as_str()).chain(["localhost", "steelyard"]);
    host.len() >= HOST_CHARACTERS_MIN && known.into_iter().all(|known| !known.contains(host))
}

fn for_each_text(value: &mut Value, change: &dyn Fn(&str) -> String) {
    match value {
        Value::String(text) => *text = change(text),
        Value::Array(values) => values.iter_mut().for_each(|value| for_each_text(value, change)),
        // The base64 of a histogram may look like a path, and says nothing about the host.
        Value::Object(fields) => {
            let others = fields.iter_mut().filter(|(name, _)| *name != "histogram");
            others.for_each(|(_, value)| for_each_text(value, change));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Absolute paths on the host become relative to the run, or only their last name; hosts in URLs become an ellipsis.
fn without_paths(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, from)) = rest.find('/').map(|at| rest.split_at(at)) {
        out.push_str(before);
        let (token, after) = from.split_at(from.find(ends_path).unwrap_or(from.len()));
        match token.strip_prefix("//") {
            Some(authority) if out.ends_with(':') => out.push_str(&without_authority(authority)),
            // In the middle of a word it is part of a relative path or of a URL.
            _ if out.ends_with(|last: char| last.is_alphanumeric() || "._-~}…/".contains(last)) => {
                out.push_str(token)
            }
            _ => out.push_str(without_ancestors(token)),
        }
        rest = after;
    }
    out + rest
}

fn ends_path(character: char) -> bool {
    character.is_whitespace() || "\"'`,;:()[]{}<>|".contains(character)
}

/// The part after the scheme of a URL. Addresses of the lab's own links identify nothing, but names do.
fn without_authority(authority: &str) -> String {
    let host = authority.split('/').next().unwrap_or_default();
    let is_bare = host.is_empty() || host == "localhost" || host.parse::<IpAddr>().is_ok();
    if is_bare { format!("//{authority}") } else { format!("//…{}", &authority[host.len()..]) }
}

fn without_ancestors(path: &str) -> &str {
    let names = path.trim_matches('/');
    let (first, is_deep) = names.split_once('/').map_or((names, false), |(first, _)| (first, true));
    // A gRPC service has a dot in it, which no top-level directory has.
    let is_directory =
        first.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_".contains(&byte));
    if !is_deep || !is_directory || COMMON.contains(&first) {
        return path;
    }
    match path.rfind(RAW) {
        Some(at) => &path[at + 1..],
        None => names.rsplit('/').next().unwrap_or(names),
    }
}

/// Whole words only.
fn without_host(text: &str, host: Option<&str>) -> String {
    let Some(host) = host else { return text.to_owned() };
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, from)) = rest.find(host).map(|at| rest.split_at(at)) {
        let after = &from[host.len()..];
        let is_part = |neighbour: Option<char>| neighbour.is_some_and(|next| next.is_alphanumeric() || next == '-');
        let is_word = !is_part(before.chars().next_back()) && !is_part(after.chars().next());
        out.push_str(before);
        out.push_str(if is_word { SOME_HOST } else { host });
        rest = after;
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Failure, Gap, Table};
    use crate::report::sample;
    use crate::verify::{Beside, verify};

    #[test]
    fn paths_lose_what_is_the_hosts_own() {
        let check = |text: &str, expect: &str| assert_eq!(without_paths(text), expect, "{text}");
        check(
            "taskset -c 1 /opt/me/steelyard serve -c /data/lab/raw/a-hop0/config.yaml",
            "taskset -c 1 steelyard serve -c raw/a-hop0/config.yaml",
        );
        check("/srv/.cache/x/envoy --config=/tmp/x.yaml", "envoy --config=x.yaml");
        check("`/usr/sbin/ipvsadm -Ln` said: no", "`/usr/sbin/ipvsadm -Ln` said: no");
        check("nsenter --net=/run/netns/lb2", "nsenter --net=/run/netns/lb2");
        check("load http http://10.10.1.1:9000/a/b", "load http http://10.10.1.1:9000/a/b");
        check("from https://registry.example/simple/x?y", "from https://…/simple/x?y");
        check("location / { prefix: \"/\" } and /bench200", "location / { prefix: \"/\" } and /bench200");
        check("POST /strest.Responder/Get, raw/here/x, a/b/c", "POST /strest.Responder/Get, raw/here/x, a/b/c");
        check("pid '/var/tmp/a.pid';", "pid 'a.pid';");
        check("", "");
    }

    #[test]
    fn histograms_are_no_paths() {
        let text = "HISTF+/data/x/AA==";
        assert_ne!(without_paths(text), text);
        let mut value = serde_json::json!({"log": text, "service": [{"histogram": text}]});
        for_each_text(&mut value, &without_paths);
        assert_eq!(value, serde_json::json!({"log": without_paths(text), "service": [{"histogram": text}]}));
    }

    #[test]
    fn hosts_lose_their_names() {
        let check = |text: &str, expect: &str| assert_eq!(without_host(text, Some("vm7")), expect, "{text}");
        check("vm7 haproxy[1]: vm7: no", "this-host haproxy[1]: this-host: no");
        check("vm77 avm7 vm7-a", "vm77 avm7 vm7-a");
        let run = sample::run(Table::L4l7Ab);
        for (name, expect) in [("vm7", true), ("localhost", false), ("nginx", false), ("a", false), ("", false)] {
            assert_eq!(is_name_of_host(&run, name), expect, "{name:?}");
        }
    }

    #[test]
    fn a_kept_run_says_the_same_and_nothing_of_the_host() {
        for table in [Table::L4l7Ab, Table::GrpcGateway, Table::L4Matrix, Table::TcpDownstream, Table::CpuScaling] {
            let mut run = sample::raw(table);
            run.scenario.instances[0].commands = vec!["/opt/me/steelyard serve".into()];
            run.contenders[1].program = "/srv/.cache/envoy".into();
            run.environment.commit = Some("0123456789abcdef".repeat(3)[..40].to_owned());
            run.gaps.push(Gap { what: "x".into(), why: "vm7 said no".into() });
            run.cells[0].measurement = None;
            run.cells[0].failure = Some(Failure { why: "gone".into(), log: vec!["vm7: cannot read /tmp/a/b".into()] });
            report::analyse(&mut run);
            let kept = kept(&run, "vm7").unwrap();
            let text = serde_json::to_string(&kept).unwrap() + &report::markdown(&kept) + &report::readme(&kept);
            for word in ["vm7", "/opt/", "/srv/", "/tmp/"] {
                assert!(!text.contains(word), "{table:?}: {word}");
            }
            assert_eq!(kept.conclusions, run.conclusions, "{table:?}");
            assert!(kept.statistics.is_empty());
            let rounds = rounds(&run, Path::new("/no/such/directory"), "vm7").unwrap();
            assert!(!serde_json::to_string(&rounds).unwrap().contains("vm7"));
            let (report, readme) = (report::markdown(&kept), report::readme(&kept));
            let beside = Beside { report: Some(&report), readme: Some(&readme), rounds: Some(&rounds) };
            assert_eq!(verify(&kept, beside), [], "{table:?}");
            assert_eq!(super::kept(&kept, "vm7").unwrap(), kept, "{table:?}: a kept run can be kept again");
        }
    }

    #[test]
    fn only_a_whole_run_of_a_known_commit_is_kept() {
        let check = |change: fn(&mut Run), expect: Option<&str>| {
            let mut run = sample::run(Table::Generic);
            run.environment.commit = Some("0123456789".repeat(4));
            change(&mut run);
            match (kept(&run, "vm7"), expect) {
                (Ok(_), None) => {}
                (Err(error), Some(expect)) => assert!(error.to_string().contains(expect), "{error}"),
                (got, expect) => panic!("{:?}, not {expect:?}", got.map(|run| run.environment.commit)),
            }
        };
        check(|_| {}, None);
        check(|run| run.environment.commit = None, Some("does not say which commit"));
        check(
            |run| run.environment.commit = Some("0123456789".repeat(4) + "-dirty"),
            Some("is no commit of the repository"),
        );
        check(|run| run.partial = Some("interrupted".into()), Some("ended early (interrupted)"));
        // Kept by the rules of its time.
        check(|run| (run.kept, run.environment.commit) = (true, None), None);
    }

    #[test]
    fn a_document_gets_a_table_between_its_marks() {
        let document = "# A\n<!-- x -->\nold\n<!-- end of x -->\nrest\n";
        let once = into_document(document, "x", "| a |\n\n").unwrap();
        assert_eq!(once, "# A\n<!-- x -->\n\n| a |\n\n<!-- end of x -->\nrest\n");
        assert_eq!(into_document(&once, "x", "| a |").unwrap(), once);
        assert_eq!(into_document(document, "y", "| a |"), None);
        assert_eq!(into_document("<!-- x -->\nno end", "x", ""), None);
    }
}
