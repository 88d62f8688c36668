//! The commands and files of the documentation: `README.md` and the pages in `docs/`.
//!
//! A page is run from top to bottom as its reader would do it, in a scratch directory and a network of its own:
//!
//! - A `yaml` block whose first line is `# NAME.yaml` is written to that file, and `steelyard check` accepts it.
//! - A `yaml` block that begins with one of [`PARTS`] is a part of a file. It is put into a small file around it, and checked as well.
//! - A `yaml` block that begins with `apiVersion:` is a list of objects for a cluster, each with a kind and a name.
//! - A `sh` block is executed, unless its first line says what it needs ([`NEEDS`]); then bash parses it.
//! - Each `steelyard` command, in blocks and in the text, has only sub-commands and options that the program has.
#![forbid(unsafe_code)]

#[path = "docs/blocks.rs"]
mod blocks;
#[path = "docs/commands.rs"]
mod commands;
#[path = "docs/parts.rs"]
mod parts;
mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use blocks::{Block, blocks};
use commands::Commands;
use support::{Scratch, skip, steelyard};
use testkit::{Exit, PATIENCE, Program};

/// What a `sh` block may need, according to its first line: `# Needs a cluster.` Blocks that need root are run by root.
const NEEDS: [&str; 10] = [
    "a running Steelyard",
    "a cluster",
    "a running vip",
    "another host",
    "systemd",
    "root",
    "the source",
    "a package",
    "the network",
    "minutes",
];

const LANGUAGES: [&str; 7] = ["sh", "yaml", "toml", "text", "ini", "json", "mermaid"];

/// The path below the repository's root, and the text, of each page.
fn pages() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let docs = fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<PathBuf> = docs.filter(|path| path.extension().is_some_and(|end| end == "md")).collect();
    paths.push(root.join("README.md"));
    paths.sort();
    let page = |path: PathBuf| {
        let name = path.strip_prefix(&root).unwrap().display().to_string();
        (name, fs::read_to_string(&path).unwrap())
    };
    paths.into_iter().map(page).collect()
}

#[test]
fn code_stands_in_fences_that_say_its_language() {
    let mut wrong = Vec::new();
    for (page, text) in pages() {
        wrong.extend(
            blocks::indented(&text).into_iter().map(|line| format!("{page}:{line}: indented code: write a fence")),
        );
        for block in blocks(&text) {
            if !LANGUAGES.contains(&block.language.as_str()) {
                let allowed = LANGUAGES.join(", ");
                wrong.push(format!("{page}:{}: language `{}`: write one of {allowed}", block.line, block.language));
            }
            if let Some(need) = need(&block)
                && !NEEDS.contains(&need)
            {
                wrong.push(format!("{page}:{}: needs `{need}`: write one of {}", block.line, NEEDS.join(", ")));
            }
        }
    }
    assert_eq!(wrong, [""; 0]);
}

/// The text after `# Needs` in the first line.
fn need(block: &Block) -> Option<&str> {
    block.text.lines().next()?.strip_prefix("# Needs ")?.strip_suffix('.')
}

#[test]
fn commands_are_those_of_the_program() {
    let mut commands = Commands::default();
    let mut wrong = Vec::new();
    for (page, text) in pages() {
        let in_blocks = blocks(&text).into_iter().filter(|block| block.language == "sh");
        let texts = in_blocks.map(|block| (block.line, block.text)).chain(blocks::spans(&text));
        for (line, text) in texts {
            wrong.extend(commands.wrong(&text).into_iter().map(|why| format!("{page}:{line}: {why}")));
        }
    }
    assert_eq!(wrong, [""; 0]);
}

#[test]
fn pages_run() {
    let root = rustix::process::geteuid().is_root();
    let own = if root { vec!["-n", "-m", "--propagation", "private"] } else { vec!["-rn"] };
    let possible = Program::run("unshare", Command::new("unshare").args(&own).arg("true"));
    if !possible.is_ok_and(|finished| finished.exit == Exit::Code(0)) {
        skip("pages_run", "no network namespace");
        return;
    }
    let only = std::env::var("STEELYARD_PAGE").ok();
    let mut failed = Vec::new();
    for (page, text) in pages() {
        if only.as_ref().is_some_and(|only| !page.contains(only.as_str())) {
            continue;
        }
        let scratch = Scratch::new();
        let Some(script) = script(&page, &text, root) else { continue };
        prepare(scratch.path(), &script);
        let mut command = Command::new("unshare");
        command.args(&own).args(["bash", "page.sh"]).current_dir(scratch.path());
        command.env("STEELYARD", steelyard().get_program()).env("HOME", scratch.path());
        let mut program = Program::spawn(&page, &mut command).unwrap();
        let exit = program.exit_within(PATIENCE * 12);
        let finished = program.finish().unwrap();
        if !matches!(exit, Ok(Exit::Code(0))) {
            failed.push(format!("{page}: {exit:?}\n{}\n{}", finished.stdout, finished.stderr));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n\n"));
}

/// The directory in which a page is run: the script, the programs that wait like a person would, the examples.
fn prepare(scratch: &Path, script: &str) {
    let write = |name: &str, text: &str| fs::write(scratch.join(name), text).unwrap();
    fs::create_dir_all(scratch.join("bin")).unwrap();
    write("page.sh", script);
    write("bin/steelyard", STEELYARD);
    write("bin/curl", CURL);
    for program in ["steelyard", "curl"] {
        let path = scratch.join("bin").join(program);
        fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    }
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples");
    fs::create_dir_all(scratch.join("examples")).unwrap();
    for entry in fs::read_dir(examples).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), scratch.join("examples").join(entry.file_name())).unwrap();
    }
}

/// A reader types the next command after the last one has had its effect. So the commands that ask a running Steelyard wait until it
/// answers.
const STEELYARD: &str = r#"#!/bin/bash
case "$1" in
status|reload|endpoint|maintenance|flows|trace|top)
    for _ in $(seq 300); do
        [[ "$*" == *--admin* ]] && break
        /usr/bin/curl -sf http://127.0.0.1:9900/readyz >/dev/null && break
        sleep 0.1
    done;;
load)
    # What it asks may have been started in the background by the command before: until its port accepts.
    if [[ "$*" =~ (localhost|127\.[0-9.]+):([0-9]+) ]]; then
        for _ in $(seq 300); do
            (: <"/dev/tcp/${BASH_REMATCH[1]}/${BASH_REMATCH[2]}") 2>/dev/null && break
            sleep 0.1
        done
    fi;;
esac
exec "$STEELYARD" "$@"
"#;

/// The same for a program that was just started in the background: refused connections are retried, without what `-w` prints for them.
const CURL: &str = r#"#!/bin/bash
printed=$(mktemp)
trap 'rm -f "$printed"' EXIT
for _ in $(seq 300); do
    code=0
    /usr/bin/curl "$@" >"$printed" || code=$?
    [[ $code == 7 ]] || break
    sleep 0.1
done
cat "$printed"
exit $code
"#;

const HEAD: &str = r#"set -eu
export PATH="$PWD/bin:$PATH"
trap 'kill $(jobs -p) 2>/dev/null || true; wait' EXIT
ip link set lo up
"#;

/// For root: what `ip netns` and vips need, separate from the host's own.
const HEAD_OF_ROOT: &str = r"mount -t sysfs none /sys && mount -t bpf none /sys/fs/bpf
mount -t tmpfs none /run && mkdir -p /run/netns /run/lock
";

/// The commands of the page's reader; `None` if there are none.
fn script(page: &str, text: &str, is_root: bool) -> Option<String> {
    let mut script = HEAD.to_owned();
    if is_root {
        script += HEAD_OF_ROOT;
    }
    let mut does = false;
    for block in blocks(text) {
        let Block { line, text, .. } = &block;
        let step = match block.language.as_str() {
            "yaml" => parts::step(&block),
            "toml" => parts::file_name(text, "toml").map(|name| parts::written(name, text)),
            "sh" => match need(&block) {
                None => Some(text.clone()),
                Some("root") if is_root => Some(text.clone()),
                Some(_) => Some(format!("cat > parsed.sh <<'PARSED'\n{text}PARSED\nbash -n parsed.sh\n")),
            },
            _ => None,
        };
        if let Some(step) = step {
            does = true;
            script += &format!("echo '== {page}:{line}' >&2\n{step}");
        }
    }
    does.then_some(script)
}
