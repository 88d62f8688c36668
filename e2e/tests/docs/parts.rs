//! YAML blocks: complete files, parts that are put into a file, and objects for a cluster.

use std::collections::BTreeSet;
use std::fmt::Write;

use super::blocks::Block;

/// First lines that say which part of a file a block is.
pub const PARTS: [&str; 5] = ["# in the file", "# in a listener", "# in a route", "# in a cluster", "# in a vip"];

/// The shell commands for a YAML block.
pub fn step(block: &Block) -> Option<String> {
    let text = &block.text;
    let first = text.lines().next().unwrap_or_default();
    if text.starts_with("apiVersion:") {
        let wrong = wrong_objects(text);
        return wrong.map(|why| format!("echo '{why}' >&2; exit 1\n"));
    }
    if let Some(name) = file_name(text, "yaml") {
        return Some(format!("{}steelyard check -c {name}\n", written(name, text)));
    }
    match PARTS.iter().find(|part| first == **part) {
        Some(part) => Some(format!("{}steelyard check -c part.yaml\n", written("part.yaml", &around(part, text)))),
        None => {
            let wanted = PARTS.join(", ");
            Some(format!("echo 'begin the block with its file (# NAME.yaml) or one of: {wanted}' >&2; exit 1\n"))
        }
    }
}

/// `# NAME.yaml` in the first line, possibly in a folder.
pub fn file_name<'t>(text: &'t str, kind: &str) -> Option<&'t str> {
    let name = text.lines().next()?.strip_prefix("# ")?;
    let is_plain = name.chars().all(|c| c.is_ascii_alphanumeric() || "-._/".contains(c));
    (is_plain && name.ends_with(&format!(".{kind}"))).then_some(name)
}

pub fn written(name: &str, text: &str) -> String {
    format!("cat > {name} <<'END_OF_FILE'\n{text}END_OF_FILE\n")
}

fn wrong_objects(text: &str) -> Option<String> {
    for object in text.split("\n---\n") {
        let value: serde_json::Value = match serde_saphyr::from_str(object) {
            Ok(value) => value,
            Err(error) => return Some(format!("not YAML: {error}").replace('\'', "")),
        };
        let has = |path: &str| value.pointer(path).is_some_and(serde_json::Value::is_string);
        if !has("/apiVersion") || !has("/kind") || !has("/metadata/name") {
            return Some("an object lacks apiVersion, kind or metadata.name".to_owned());
        }
    }
    None
}

/// The complete file of which `text` is a part.
fn around(part: &str, text: &str) -> String {
    let has = |key: &str| text.lines().any(|line| line.starts_with(&format!("{key}:")));
    let mut file = String::new();
    let mut line = |text: &str| _ = writeln!(file, "{text}");
    match part {
        "# in the file" => {
            text.lines().for_each(&mut line);
            if !has("listeners") && !has("vips") {
                line("listeners: {web: {bind: 127.0.0.1:8080, protocol: http, to: web}}");
            }
            if has("clusters") || has("vips") {
                return file;
            }
        }
        "# in a listener" => {
            line("listeners:\n  web:");
            text.lines().for_each(|text| line(&format!("    {text}")));
            for (key, value) in [("bind", "127.0.0.1:8080"), ("protocol", "http")] {
                if !has(key) {
                    line(&format!("    {key}: {value}"));
                }
            }
            if !has("to") && !has("routes") {
                line("    to: web");
            }
        }
        "# in a route" => {
            line("listeners:\n  web:\n    bind: 127.0.0.1:8080\n    protocol: http\n    routes:");
            let is_list = text.lines().any(|line| line.starts_with("- "));
            let mut begun = is_list;
            for text in text.lines() {
                let dash = if begun || text.starts_with('#') { "  " } else { "- " };
                begun = begun || !text.starts_with('#');
                line(&format!("      {}{text}", if is_list { "" } else { dash }));
            }
            if !is_list && !has("to") && !has("redirect") {
                line("        to: web");
            }
        }
        "# in a cluster" => {
            line("listeners: {web: {bind: 127.0.0.1:8080, protocol: http, to: web}}\nclusters:\n  web:");
            text.lines().for_each(|text| line(&format!("    {text}")));
            if !has("endpoints") {
                line("    endpoints: [127.0.0.1:9001, 127.0.0.1:9002]");
            }
            return file;
        }
        _ => {
            line("vips:\n  web:");
            text.lines().for_each(|text| line(&format!("    {text}")));
            for (key, value) in [("address", "192.0.2.7:80/tcp"), ("endpoints", "[192.0.2.21:8080, 192.0.2.22:8080]")] {
                if !has(key) {
                    line(&format!("    {key}: {value}"));
                }
            }
            return file;
        }
    }
    let protocol = if text.contains("grpc:") { ", protocol: h2c" } else { "" };
    let names = clusters(&file);
    file += if names.is_empty() { "clusters: {}\n" } else { "clusters:\n" };
    for name in names {
        _ = writeln!(file, "  {name}: {{endpoints: [127.0.0.1:9001]{protocol}}}");
    }
    file
}

/// The clusters that `to:` and `cluster:` name.
fn clusters(text: &str) -> BTreeSet<String> {
    let named = ["to: ", "cluster: "].into_iter().flat_map(|key| {
        let is_key = |before: &str| before.is_empty() || before.ends_with([' ', '{', '\n', '-']);
        text.match_indices(key).filter(move |(at, _)| is_key(&text[..*at])).map(|(at, _)| &text[at + key.len()..])
    });
    let name = |rest: &str| {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        rest.split(|c: char| !is_plain(c)).next().unwrap_or_default().to_owned()
    };
    named.filter(|rest| !rest.starts_with(['"', '[', '{', '\n'])).map(name).filter(|name| !name.is_empty()).collect()
}

#[test]
fn a_part_becomes_a_file() {
    let check = |part: &str, text: &str, expect: &str| assert_eq!(around(part, text), expect, "{text}");
    check(
        "# in a route",
        "# in a route\nhosts: a\nmirror: {to: v2}\n",
        "listeners:\n  web:\n    bind: 127.0.0.1:8080\n    protocol: http\n    routes:\n        # in a route\n      - hosts: a\n        \
         mirror: {to: v2}\n        to: web\nclusters:\n  v2: {endpoints: [127.0.0.1:9001]}\n  web: {endpoints: [127.0.0.1:9001]}\n",
    );
    check(
        "# in a cluster",
        "balance: random\n",
        "listeners: {web: {bind: 127.0.0.1:8080, protocol: http, to: web}}\nclusters:\n  web:\n    balance: random\n    \
         endpoints: [127.0.0.1:9001, 127.0.0.1:9002]\n",
    );
}
