//! What the API server would refuse of an object: the rules of the Gateway API 1.x for the values that come from annotations, paths and names.

use serde_json::Value;

use super::super::value;

/// Bytes of the name of an object, and of a host.
const NAME_BYTES_MAX: usize = 253;

/// Bytes of a path.
pub(super) const PATH_BYTES_MAX: usize = 1024;

/// Bytes of the value of a header.
const VALUE_BYTES_MAX: usize = 4096;

/// Bytes of the name of a header.
const HEADER_BYTES_MAX: usize = 256;

/// A field that the API server would refuse: its value, and what is wrong with it.
type Wrong<'o> = (&'o str, &'static str);

/// What is wrong with an object; `None` if nothing is.
pub(super) fn wrong(object: &Value) -> Option<String> {
    let name = text(&object["metadata"]["name"]);
    let spec = &object["spec"];
    let of_name =
        (!is_domain(name)).then_some((name, "the name of an object has at most 253 letters, digits, `-` and `.`"));
    let hosts = array(&spec["hostnames"]).chain(array(&spec["listeners"]).map(|listener| &listener["hostname"]));
    let of_hosts = || hosts.filter_map(Value::as_str).find_map(|host| of_host(host, true));
    let of_rules = || array(&spec["rules"]).find_map(of_rule);
    let (text, why) = of_name.or_else(of_hosts).or_else(of_rules)?;
    Some(format!("{:?} is not accepted by the API server: {why}", value::cut(text)))
}

fn of_rule(rule: &Value) -> Option<Wrong<'_>> {
    let of_matches = || {
        array(&rule["matches"])
            .find_map(|one| of_path(&one["path"]).or_else(|| array(&one["headers"]).find_map(of_header)))
    };
    of_matches().or_else(|| array(&rule["filters"]).find_map(of_filter))
}

/// A path of a match.
fn of_path(path: &Value) -> Option<Wrong<'_>> {
    let value = text(&path["value"]);
    if value.len() > PATH_BYTES_MAX {
        return Some((value, "a path has at most 1024 bytes"));
    }
    if path.is_null() || path["type"] == "RegularExpression" {
        return None;
    }
    let why = match value {
        path if !path.starts_with('/') => "a path begins with `/`",
        path if path.contains("//") => "a path has no empty segment (`//`)",
        path if path.split('/').any(|segment| segment == "." || segment == "..") => "a path has no segment `.` or `..`",
        path if path.to_ascii_lowercase().contains("%2f") => "a path has no `%2F`",
        path if !is_path(path) => "a path has letters, digits and -._~!$&'()*+,;=:@/ alone, and others as %XX",
        _ => return None,
    };
    Some((value, why))
}

/// Letters, digits, these signs, and `%` with two digits.
fn is_path(path: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-/._~!$&'()*+,;=:@".contains(&byte);
    let is_hex = |rest: &str| rest.bytes().take(2).filter(u8::is_ascii_hexdigit).count() == 2;
    let mut parts = path.split('%');
    parts.next().unwrap_or_default().bytes().all(is_plain)
        && parts.all(|part| is_hex(part) && part.bytes().skip(2).all(is_plain))
}

fn of_header(header: &Value) -> Option<Wrong<'_>> {
    let (name, value) = (text(&header["name"]), text(&header["value"]));
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if name.is_empty() || name.len() > HEADER_BYTES_MAX || !name.bytes().all(is_name) {
        return Some((name, "the name of a header has at most 256 letters, digits and signs"));
    }
    let fits = (1..=VALUE_BYTES_MAX).contains(&value.len());
    (!fits).then_some((value, "the value of a header has 1 to 4096 bytes"))
}

fn of_filter(filter: &Value) -> Option<Wrong<'_>> {
    let mut changes = ["requestHeaderModifier", "responseHeaderModifier"].into_iter().flat_map(|kind| {
        let change = &filter[kind];
        array(&change["set"]).chain(array(&change["add"]))
    });
    let mut urls = ["urlRewrite", "requestRedirect"].into_iter();
    let of_url = |url: &'static str| {
        let url = &filter[url];
        let host = url["hostname"].as_str().and_then(|host| of_host(host, false));
        let mut paths =
            ["replaceFullPath", "replacePrefixMatch"].into_iter().filter_map(|kind| url["path"][kind].as_str());
        let long = |path: &&str| path.len() > PATH_BYTES_MAX;
        host.or_else(|| paths.find(long).map(|path| (path, "a path has at most 1024 bytes")))
            .or_else(|| (url["port"] == 0).then_some(("0", "a port is from 1 to 65535")))
    };
    changes.find_map(of_header).or_else(|| urls.find_map(of_url))
}

fn of_host(host: &str, may_have_wildcard: bool) -> Option<Wrong<'_>> {
    let name = host.strip_prefix("*.").filter(|_| may_have_wildcard).unwrap_or(host);
    let fits = host.len() <= NAME_BYTES_MAX && is_domain(name);
    (!fits).then_some((host, "a host has lower-case letters, digits, `-` and `.` alone, and no port"))
}

/// Labels of lower-case letters, digits and `-`, with dots between them.
fn is_domain(name: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let is_label = |label: &str| {
        !label.is_empty() && label.bytes().all(is_part) && !label.starts_with('-') && !label.ends_with('-')
    };
    name.len() <= NAME_BYTES_MAX && name.split('.').all(is_label)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn array(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}
