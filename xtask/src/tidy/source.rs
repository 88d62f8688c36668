//! Rules for single files: how they begin, how long they are, and what they must not contain.
//!
//! Bans that apply everywhere and need type information are in `clippy.toml`. The bans here apply only to some crates.
//! If code must break a ban, the line above says why: `// tidy: allow(Instant::now): the reason`.

use super::Problem;
use super::tree::File;
use crate::cargo::Member;

/// A longer file needs a reason in its `//!`, with the word "length" in it.
const LINES_MAX: usize = 800;
/// A longer file is named in a note.
const LINES_AIM: usize = 400;

/// The crates that may contain `unsafe`. Clippy requires a reason for each block.
const UNSAFE_CRATES: &[&str] = &["net", "l4"];
/// The crates that handle bytes from the network: a panic there is an outage.
const DATA_PLANE: &[&str] = &["wire", "net", "proxy", "balance", "health"];
const DATA_PLANE_DENIES: &[&str] =
    &["clippy::unwrap_used", "clippy::expect_used", "clippy::indexing_slicing", "clippy::panic"];

/// Something that only some crates may use.
struct Ban {
    /// The text in the code, and in `tidy: allow(...)`.
    said: &'static str,
    free: &'static [&'static str],
    instead: &'static str,
}

const BANS: &[Ban] = &[
    Ban {
        said: "Instant::now",
        // `steelyard` is the shell that passes the time to the others. The shells of `controller` and `admin` read the
        // clock of their runtime, which tests can stop and move.
        free: &["net", "lab", "steelyard", "controller", "admin", "testkit", "e2e", "xtask"],
        instead: "take `now` as an argument, so that a test can say what time it is (`net` has the clock)",
    },
    Ban {
        said: "println!",
        free: &["steelyard", "lab", "testkit", "e2e", "xtask"],
        instead: "use `tracing`; standard output belongs to the binary",
    },
    Ban {
        said: "eprintln!",
        free: &["steelyard", "lab", "testkit", "e2e", "xtask"],
        instead: "use `tracing`; standard error belongs to the binary",
    },
];

/// A state machine without I/O: time is an argument, and the caller has the sockets. (`wire` and `balance` have no
/// dependency with which they could do I/O.)
const PURE: &str = "crates/proxy/src/exchange/";
/// What it must not contain.
const IO: &[&str] = &["tokio", "clock", "async", "await", "Waker", "TcpStream", "crate::stream", "crate::driver"];

/// Applies every rule of this file to every file.
pub fn check(files: &[File], members: &[Member]) -> Vec<Problem> {
    let mut problems = Vec::new();
    for file in files {
        unfinished(file, &mut problems);
        machine_paths(file, &mut problems);
        if file.path.ends_with(".rs") {
            let member = members.iter().find(|member| file.path.starts_with(&format!("{}/", member.folder)));
            rust_file(file, member, &mut problems);
        }
    }
    for member in members {
        manifest(files, member, &mut problems);
    }
    problems
}

/// The files that are longer than our aim, longest first, as sentences.
pub fn long_files(files: &[File]) -> Vec<String> {
    let rust = files.iter().filter(|file| file.path.ends_with(".rs"));
    let mut long: Vec<(usize, &str)> = rust.map(|file| (file.text.lines().count(), file.path.as_str())).collect();
    long.retain(|(lines, _)| *lines > LINES_AIM);
    long.sort_by(|left, right| right.cmp(left));
    long.iter().map(|(lines, path)| format!("{path} has {lines} lines, the aim is {LINES_AIM}")).collect()
}

fn rust_file(file: &File, member: Option<&Member>, problems: &mut Vec<Problem>) {
    let mut problem = |line, message: String| problems.push(Problem { file: file.path.clone(), line, message });
    let documentation: Vec<&str> = file.text.lines().filter(|line| line.starts_with("//!")).collect();
    let first = file.text.lines().find(|line| !line.is_empty());
    if !first.is_some_and(|line| line.starts_with("//!")) {
        problem(1, "begins without `//!`: say the file's one job, and what is not its job".into());
    }
    let lines = file.text.lines().count();
    if lines > LINES_MAX && !documentation.iter().any(|line| line.contains("length")) {
        problem(
            lines,
            format!("{lines} lines, at most {LINES_MAX}: split it, or give the reason for its length in `//!`"),
        );
    }
    let name = member.map_or("", |member| member.name.as_str());
    let mut above = "";
    for ((place, code), text) in file.code.lines().enumerate().zip(file.text.lines()) {
        let line = place + 1;
        if code.contains("#[ignore") {
            problem(line, "an ignored test proves nothing: assert what happens today, and say why it is wrong".into());
        }
        if !UNSAFE_CRATES.contains(&name) && has_word(code, "unsafe") {
            problem(
                line,
                format!("`unsafe` outside {}: move it there, behind a safe function", UNSAFE_CRATES.join(" and ")),
            );
        }
        // Only the code of the crate: its examples and its build script print for people.
        let in_crate = member.is_some_and(|member| file.path.starts_with(&format!("{}/src/", member.folder)));
        for ban in BANS.iter().filter(|ban| in_crate && !ban.free.contains(&name) && has_word(code, ban.said)) {
            let allowance = format!("tidy: allow({}): ", ban.said);
            if !above.contains(&allowance) && !text.contains(&allowance) {
                problem(line, format!("`{}` in `{name}`: {}", ban.said, ban.instead));
            }
        }
        if file.path.starts_with(PURE)
            && let Some(said) = IO.iter().find(|said| has_word(code, said))
        {
            problem(
                line,
                format!("`{said}` in a state machine without I/O: the caller does that, and passes in what happened"),
            );
        }
        above = text;
    }
}

fn manifest(files: &[File], member: &Member, problems: &mut Vec<Problem>) {
    let find = |path: &str| files.iter().find(|file| file.path == path);
    let path = format!("{}/Cargo.toml", member.folder);
    if find(&path).is_some_and(|file| !file.text.contains("[lints]\nworkspace = true")) {
        problems.push(Problem {
            file: path,
            line: 1,
            message: "add `[lints]` with `workspace = true`: the lints are the same for all".into(),
        });
    }
    for root in member.roots.iter().filter_map(|root| find(root)) {
        let mut problem = |message| problems.push(Problem { file: root.path.clone(), line: 1, message });
        if !UNSAFE_CRATES.contains(&member.name.as_str())
            && !inner_attributes(&root.code).contains("forbid(unsafe_code)")
        {
            problem("add `#![forbid(unsafe_code)]`".to_owned());
        }
        if DATA_PLANE.contains(&member.name.as_str()) {
            let attributes = inner_attributes(&root.code);
            let missing: Vec<&str> =
                DATA_PLANE_DENIES.iter().filter(|lint| !attributes.contains(**lint)).copied().collect();
            if !missing.is_empty() {
                problem(format!("bytes from the network pass here: add `#![deny({})]`", missing.join(", ")));
            }
        }
    }
}

/// The content of `#![...]`, which applies to the whole crate in a crate's root.
fn inner_attributes(code: &str) -> String {
    code.split("#![").skip(1).filter_map(|rest| rest.split(']').next()).collect()
}

/// Marks of postponed work. It belongs in an issue, or is done now.
fn unfinished(file: &File, problems: &mut Vec<Problem>) {
    // In two parts, because otherwise this file would be the first finding.
    let marks = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X"), concat!("HA", "CK")];
    if ![".rs", ".toml", ".md", ".sh", ".yaml", ".c", ".h"].iter().any(|ending| file.path.ends_with(ending)) {
        return;
    }
    for (place, line) in file.text.lines().enumerate() {
        for mark in marks.iter().filter(|mark| has_word(line, mark)) {
            let message = format!("`{mark}`: do it now, or say in a plain sentence what is not done and why");
            problems.push(Problem { file: file.path.clone(), line: place + 1, message });
        }
    }
}

/// Paths that exist on only one machine.
fn machine_paths(file: &File, problems: &mut Vec<Problem>) {
    // Scripts of HTTP exchanges contain request targets, which look like paths.
    if !["", "rs", "toml", "md", "sh", "yaml", "lock"].contains(&ending(&file.path)) {
        return;
    }
    for (place, line) in file.text.lines().enumerate() {
        for folder in ["work", "root", "home", "tmp/t"] {
            let path = format!("/{folder}/");
            let starts = line
                .match_indices(&path)
                .any(|(at, _)| !line[..at].ends_with(|c: char| c.is_alphanumeric() || "._-*})".contains(c)));
            if starts {
                let message = format!("`{path}` is a path of one machine: name it relative to the repository");
                problems.push(Problem { file: file.path.clone(), line: place + 1, message });
            }
        }
    }
}

fn ending(path: &str) -> &str {
    let name = path.rsplit('/').next().unwrap_or(path);
    name.rsplit_once('.').map_or("", |(_, ending)| ending)
}

/// Whether `line` contains `word` without a letter, digit or `_` right before or after it.
fn has_word(line: &str, word: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| !line[..at].ends_with(part) && !line[at + word.len()..].starts_with(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: &str = "//! Job.\n#![forbid(unsafe_code)]\n";
    const DENY: &str = "#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]\n";

    fn member(name: &str) -> Member {
        let folder = format!("crates/{name}");
        Member { name: name.into(), roots: vec![format!("{folder}/src/lib.rs")], folder, dependencies: Vec::new() }
    }

    /// Checks one file of the crate that its path names. `expect` has the start of each `line: message`.
    fn check_file(path: &str, text: &str, expect: &[&str]) {
        let name = path.split('/').nth(1).unwrap_or("");
        let problems = check(&[File::new(path, text)], &[member(name)]);
        let shown: Vec<String> =
            problems.iter().map(|problem| format!("{}: {}", problem.line, problem.message)).collect();
        assert_eq!(shown.len(), expect.len(), "{path}: {shown:?}");
        for (shown, expect) in shown.iter().zip(expect) {
            assert!(shown.starts_with(expect), "{path}: {shown}");
        }
    }

    #[test]
    fn beginnings() {
        check_file("crates/model/src/route.rs", "//! Job.\nfn f() {}\n", &[]);
        check_file("crates/model/src/route.rs", "fn f() {}\n", &["1: begins without `//!`"]);
        check_file("crates/model/src/lib.rs", ROOT, &[]);
        check_file("crates/model/src/lib.rs", "//! Job.\n", &["1: add `#![forbid(unsafe_code)]`"]);
        check_file("crates/model/src/lib.rs", "//! #![forbid(unsafe_code)]\n", &["1: add `#![forbid(unsafe_code)]`"]);
        check_file("crates/net/src/lib.rs", &format!("//! Job.\n{DENY}"), &[]);
        check_file("crates/wire/src/lib.rs", &format!("{ROOT}{DENY}"), &[]);
        check_file(
            "crates/wire/src/lib.rs",
            &format!("{ROOT}#![cfg_attr(not(test), deny(clippy::unwrap_used))]\n"),
            &[
                "1: bytes from the network pass here: add `#![deny(clippy::expect_used, clippy::indexing_slicing, clippy::panic)]`",
            ],
        );
    }

    #[test]
    fn state_machines_do_no_io() {
        let problem = "2: `tokio` in a state machine without I/O: the caller does that, and passes in what happened";
        check_file("crates/proxy/src/exchange/mod.rs", "//! Job.\nuse tokio::net::TcpStream;\n", &[problem]);
        check_file("crates/proxy/src/exchange/mod.rs", "//! Job, of no tokio.\nfn f(clock_us: u64) {}\n", &[]);
        check_file("crates/proxy/src/driver/mod.rs", "//! Job.\nuse tokio::net::TcpStream;\n", &[]);
    }

    #[test]
    fn length() {
        let long = "fn f() {}\n".repeat(LINES_MAX);
        check_file("crates/model/src/a.rs", &format!("//! Job.\n{long}"), &["801: 801 lines"]);
        check_file(
            "crates/model/src/a.rs",
            &format!("//! Job. Its length is that of the table in RFC 7541.\n{long}"),
            &[],
        );
        let notes = long_files(&[
            File::new("a.rs", "x\n".repeat(401)),
            File::new("b.rs", "x\n".repeat(400)),
            File::new("c.rs", "x\n".repeat(500)),
        ]);
        assert_eq!(notes, ["c.rs has 500 lines, the aim is 400", "a.rs has 401 lines, the aim is 400"]);
    }

    #[test]
    fn bans() {
        let check = |name: &str, line: &str, expect: &[&str]| {
            check_file(&format!("crates/{name}/src/a.rs"), &format!("//! Job.\n{line}\n"), expect)
        };
        check("balance", "let now = Instant::now();", &["2: `Instant::now` in `balance`: take `now`"]);
        check("balance", "// tidy: allow(Instant::now): the clock's own test\nlet now = Instant::now();", &[]);
        check("balance", "// tidy: allow(println!): no\nlet now = Instant::now();", &["3: `Instant::now`"]);
        check("balance", "let now = NotInstant::nowhere();", &[]);
        check("net", "let now = Instant::now();", &[]);
        check("model", "println!(\"x\");", &["2: `println!` in `model`: use `tracing`"]);
        check("model", "eprintln!(\"x\");", &["2: `eprintln!` in `model`"]);
        check("model", "// println! is banned; so is unsafe\nlet s = \"unsafe println!\";", &[]);
        check("lab", "println!(\"x\");", &[]);
        check("model", "unsafe { f() }", &["2: `unsafe` outside net and l4"]);
        check("model", "#![forbid(unsafe_code)]", &[]);
        check("net", "unsafe { f() }", &[]);
        check("model", "#[ignore = \"slow\"]", &["2: an ignored test"]);
        check_file("crates/config/examples/page.rs", "//! Job.\nfn main() { println!(\"x\"); }\n", &[]);
    }

    #[test]
    fn unfinished_and_machine_paths() {
        check_file("docs/a.md", concat!("It works.\nTO", "DO: more\n"), &[concat!("2: `TO", "DO`")]);
        check_file("docs/a.md", concat!("TO", "DOS is a system\n"), &[]);
        check_file("docs/a.txt", concat!("XX", "X\n"), &[]);
        check_file("docs/a.md", &format!("see /{}/main/x\n", "work"), &["1: `"]);
        check_file("docs/a.md", &format!("`/{}/me`\n", "home"), &["1: `"]);
        check_file("docs/a.md", &format!("frame{}/\n", "/work"), &[]);
    }

    #[test]
    fn lints_are_shared() {
        check_file("crates/model/Cargo.toml", "[package]\nname = \"model\"\n", &["1: add `[lints]`"]);
        check_file("crates/model/Cargo.toml", "[package]\nname = \"model\"\n\n[lints]\nworkspace = true\n", &[]);
    }
}
