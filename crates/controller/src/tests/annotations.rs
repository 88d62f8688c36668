//! Whether the tables have every annotation of ingress-nginx that is served, and whether it does anything there: each is removed from its
//! Ingress, and what is served must be something else.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::Value;

use super::{Case, circumstances, object, settings};
use crate::index::Index;
use crate::ingress_nginx::{KEYS, Key, PREFIX, Verdict};
use crate::translate::{Memory, translate};

/// Annotations that ask for what is done in any case, or is never done. Their sentences in the catalogue say so.
const DONE_ANYWAY: [&str; 10] = [
    "affinity-canary-behavior",
    "auth-tls-verify-depth",
    "mirror-request-body",
    "proxy-send-timeout",
    "proxy-ssl-verify-depth",
    "satisfy",
    "service-upstream",
    "session-cookie-change-on-failure",
    "session-cookie-conditional-samesite-none",
    "ssl-ciphers",
];

/// The tables of ingress-nginx, with their names.
fn tables() -> BTreeMap<String, Case> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases");
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let name = |path: &Path| path.file_stem().unwrap().to_str().unwrap().to_owned();
    let tables = files.filter(|path| name(path).starts_with("ingress-nginx-"));
    tables
        .map(|path| (name(&path), serde_saphyr::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap()))
        .collect()
}

/// Everything that is served.
fn served(case: &Case, objects: &[Value]) -> String {
    let settings = settings(&case.settings);
    let mut index = Index::of(&settings);
    objects.iter().cloned().for_each(|value| index.apply(object(value)));
    let translated = translate(&index, &settings, &circumstances(&case.circumstances), &mut Memory::default());
    format!("{:?}", translated.snapshot(&settings))
}

/// The annotations of a table, each with whether anything is served otherwise without it.
fn effects(case: &Case) -> Vec<(&'static str, bool)> {
    // Certificates are made anew each time.
    let objects: Vec<Value> = case.objects.iter().map(|value| with_fixed_data(value.clone())).collect();
    let all = served(case, &objects);
    let mut effects = Vec::new();
    for (place, one) in objects.iter().enumerate() {
        for key in KEYS {
            let name = format!("{PREFIX}{}", key.name);
            if one["metadata"]["annotations"][&name].is_null() {
                continue;
            }
            let mut without = objects.clone();
            without[place]["metadata"]["annotations"].as_object_mut().unwrap().remove(&name);
            effects.push((key.name, served(case, &without) != all));
        }
    }
    effects
}

/// An object with a certificate instead of what stands for one.
fn with_fixed_data(mut value: Value) -> Value {
    let kind = value["kind"].as_str().unwrap_or_default().to_owned();
    super::complete(&kind, &mut value);
    for made in ["made-for", "authority-for", "believed-for", "revokes"] {
        value.as_object_mut().unwrap().remove(made);
    }
    value
}

/// The cases of the comparison with nginx, each with its annotations.
fn comparisons() -> Vec<(String, BTreeSet<String>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../e2e/nginx");
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let mut found = Vec::new();
    for path in files {
        let file: Value = serde_saphyr::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        for case in file["cases"].as_array().unwrap() {
            let also = case["also"].as_array().into_iter().flatten();
            let keys = [case].into_iter().chain(also).flat_map(|one| one["annotations"].as_object().unwrap().keys());
            found.push((case["name"].as_str().unwrap().to_owned(), keys.cloned().collect()));
        }
    }
    found
}

/// What the page of annotations says about the tests of each.
pub(crate) fn tests_of() -> impl Fn(&Key) -> String {
    let tables: Vec<(String, Vec<(&str, bool)>)> =
        tables().into_iter().map(|(name, case)| (name, effects(&case))).collect();
    let comparisons = comparisons();
    move |key| {
        let is_done_anyway = DONE_ANYWAY.contains(&key.name);
        let has = |keys: &[(&str, bool)]| keys.iter().any(|(name, has)| *name == key.name && (*has || is_done_anyway));
        let of_tables = tables.iter().filter(|(_, keys)| has(keys)).map(|(name, _)| name.clone());
        let compared = comparisons.iter().filter(|(_, keys)| keys.contains(key.name)).map(|(name, _)| name.as_str());
        let compared: Vec<&str> = compared.collect();
        let compared = (!compared.is_empty()).then(|| format!("e2e/nginx: {}", compared.join(", ")));
        let all: Vec<String> = of_tables.chain(compared).collect();
        if all.is_empty() { key.test.to_owned() } else { all.join("; ") }
    }
}

#[test]
fn every_annotation_that_is_served_is_in_a_table_and_does_something_there() {
    let (mut seen, mut effective) = (BTreeSet::new(), BTreeSet::new());
    for case in tables().values() {
        for (key, has_effect) in effects(case) {
            seen.insert(key);
            if has_effect {
                effective.insert(key);
            }
        }
    }
    let is_served = |verdict| matches!(verdict, Verdict::Served | Verdict::Differs);
    let mut wrong = Vec::new();
    for key in KEYS.iter().filter(|key| is_served(key.verdict)) {
        let is_done_anyway = DONE_ANYWAY.contains(&key.name);
        match (seen.contains(key.name), effective.contains(key.name)) {
            (false, _) => wrong.push(format!("{}: no table has it", key.name)),
            (true, false) if !is_done_anyway => wrong.push(format!("{}: it changes nothing in any table", key.name)),
            (true, true) if is_done_anyway => wrong.push(format!("{}: it does something by now", key.name)),
            _ => {}
        }
    }
    assert!(
        wrong.is_empty(),
        "add an Ingress to tests/cases/ingress-nginx-each.yaml, or say in the catalogue that it has no effect:\n{}",
        wrong.join("\n")
    );
}
