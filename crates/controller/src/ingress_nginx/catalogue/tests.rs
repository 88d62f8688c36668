//! The table of annotations.

use super::*;

#[test]
fn every_annotation_is_there_once() {
    let mut names: Vec<&str> = KEYS.iter().map(|key| key.name).collect();
    assert_eq!(names.len(), 138);
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), 138, "one is there twice");
    assert!(KEYS.iter().all(|key| !key.says.is_empty() && !key.says.ends_with('.')), "a sentence begins in a table");
}

#[test]
fn what_is_most_like_an_unknown_name() {
    let check = |name: &str, expect: Option<&str>| assert_eq!(nearest(name), expect, "{name}");
    check("proxy-read-timeout-s", Some("proxy-read-timeout"));
    check("secure-backends", Some("backend-protocol"));
    check("rewrite-targets", Some("rewrite-target"));
    check("websocket-services", None);
}
