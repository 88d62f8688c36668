//! Reads objects of the kind: turns them into what a file would say, which is then read and lowered like a file.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Map, Value, json};

use super::shape::{self, Field, Group, Shape};
use super::{ClientsPart, ClusterPart, RoutePart, ServiceRef, TrafficPolicy};
use crate::diagnostic::Report;
use crate::lower;
use crate::raw::{RawClientLimits, RawCluster, RawRoute};
use crate::read::{Keyed, Read};
use crate::yaml::Node;

/// Faults of one object that are reported. A condition has room for 32 KiB of text.
const FAULTS_MAX: usize = 16;

/// The cluster and the endpoint that stand for those of the target. Nothing is sent there.
const CLUSTER: &str = "target";
const ENDPOINT: &str = "192.0.2.1:80";

/// See [`TrafficPolicy::read`].
pub fn policy(spec: &Map<String, Value>) -> Result<TrafficPolicy, Vec<String>> {
    let mut wrong = Vec::new();
    let known = ["targetRefs", "route", "cluster", "clients"];
    let unknown = spec.keys().filter(|name| !known.contains(&name.as_str()));
    wrong.extend(unknown.map(|name| newer(&format!("spec.{name}"))));
    let route = route(spec.get("route"), &mut wrong);
    let cluster = cluster(spec.get("cluster"), &mut wrong);
    let clients = clients(spec.get("clients"), &mut wrong);
    let more = wrong.len().saturating_sub(FAULTS_MAX);
    wrong.truncate(FAULTS_MAX);
    if more > 0 {
        wrong.push(format!("and {more} more"));
    }
    match (route, cluster, clients) {
        (Some(route), Some(cluster), Some(clients)) if wrong.is_empty() => {
            Ok(TrafficPolicy { route, cluster, clients })
        }
        _ if wrong.is_empty() => Err(vec!["spec cannot be read".to_owned()]),
        _ => Err(wrong),
    }
}

fn route(written: Option<&Value>, wrong: &mut Vec<String>) -> Option<RoutePart> {
    let Some(written) = written else { return Some(RoutePart::default()) };
    let mut file = of_group(&shape::route(), written, "spec.route", wrong)?;
    // What is left out there would be missed by the keys of the file, which have other names.
    let with_references = ["spec.route.auth.", "spec.route.externalAuth.", "spec.route.globalRateLimit."];
    if with_references.iter().any(|place| wrong.iter().any(|fault| fault.starts_with(place))) {
        return None;
    }
    let authorizer = take_service(&mut file, "external_auth", |asked| asked.contains_key("grpc"));
    let counter = take_service(&mut file, "global_rate_limit", |_| true);
    let keys = keys(&file, RawRoute::object().names());
    if !file.contains_key("respond") {
        file.insert("to".to_owned(), json!(CLUSTER));
    }
    let raw: RawRoute = read(&Value::Object(file), "spec.route", wrong)?;
    let mut report = Report::default();
    let part = lower::route_part(&raw, CLUSTER, &mut report);
    told(report, "spec.route", wrong);
    let lower::RoutePart { policy, timeout, respond } = part;
    Some(RoutePart { written: keys, policy, timeout, respond, authorizer, counter })
}

fn cluster(written: Option<&Value>, wrong: &mut Vec<String>) -> Option<ClusterPart> {
    let nothing = || model::Cluster::new("", Vec::new());
    let Some(written) = written else {
        return Some(ClusterPart { written: BTreeSet::new(), values: nothing() });
    };
    let mut file = of_group(&shape::cluster(), written, "spec.cluster", wrong)?;
    let keys = keys(&file, RawCluster::object().names());
    file.insert("endpoints".to_owned(), json!([ENDPOINT]));
    // What needs HTTP/2 has no effect on a Service that does not speak it.
    file.insert("protocol".to_owned(), json!("h2c"));
    let raw: RawCluster = read(&Value::Object(file), "spec.cluster", wrong)?;
    let mut report = Report::default();
    let lowered = lower::cluster(CLUSTER, raw, Path::new(""), None, None, &mut report);
    told(report, "spec.cluster", wrong);
    let mut values = lowered.unwrap_or_else(nothing);
    values.endpoints.clear();
    Some(ClusterPart { written: keys, values })
}

fn clients(written: Option<&Value>, wrong: &mut Vec<String>) -> Option<ClientsPart> {
    let Some(written) = written else { return Some(ClientsPart::default()) };
    let file = of_group(&shape::clients(), written, "spec.clients", wrong)?;
    let keys = keys(&file, RawClientLimits::object().names());
    let raw: RawClientLimits = read(&Value::Object(file), "spec.clients", wrong)?;
    let mut report = Report::default();
    let limits = lower::client_limits(&raw, &mut report);
    told(report, "spec.clients", wrong);
    Some(ClientsPart { written: keys, limits })
}

fn keys(file: &Map<String, Value>, known: impl Iterator<Item = &'static str>) -> BTreeSet<&'static str> {
    known.filter(|key| file.contains_key(*key)).collect()
}

/// Reads what a part of a file would say.
fn read<R: Read>(file: &Value, place: &str, wrong: &mut Vec<String>) -> Option<R> {
    let mut report = Report::default();
    // Its shape is known by now, so its depth is.
    let raw = R::read(&Node::of_json(file), place, &mut report);
    told(report, place, wrong);
    raw
}

/// Adds the errors of a report, in the words of the kind.
fn told(report: Report, place: &str, wrong: &mut Vec<String>) {
    for found in report.into_errors("", "").0 {
        // There are no lines.
        let hint =
            found.hint.filter(|hint| !hint.contains(" line ")).map_or_else(String::new, |hint| format!("; {hint}"));
        wrong.push(format!("{place}: {}{}", shape::in_camel(&found.message), shape::in_camel(&hint)));
    }
}

fn newer(place: &str) -> String {
    format!("{place}: this version of Steelyard does not know this field")
}

fn of_group(group: &Group, written: &Value, place: &str, wrong: &mut Vec<String>) -> Option<Map<String, Value>> {
    let Value::Object(written) = written else {
        wrong.push(format!("{place}: must be a mapping"));
        return None;
    };
    let mut file = Map::new();
    for (name, value) in written {
        let place = format!("{place}.{name}");
        let Some(field) = group.fields.iter().find(|field| field.name == *name) else {
            wrong.push(newer(&place));
            continue;
        };
        if let Some(value) = of_shape(&field.shape, value, &place, wrong) {
            file.insert(field.key.to_owned(), value);
        }
    }
    Some(file)
}

fn of_shape(shape: &Shape, value: &Value, place: &str, wrong: &mut Vec<String>) -> Option<Value> {
    match (shape, value) {
        (Shape::Group(Group { word: Some(word), .. }), Value::Object(written)) if written.contains_key(&word.name) => {
            of_word(word, written, place, wrong)
        }
        (Shape::Secret, Value::Object(written)) => {
            reference(written, &["name"], &[], place, wrong).then(|| written.get("name").cloned()).flatten()
        }
        (Shape::Service, Value::Object(written)) => {
            reference(written, &["name", "port"], &["namespace"], place, wrong).then(|| Value::Object(written.clone()))
        }
        (Shape::Group(group), value) => of_group(group, value, place, wrong).map(Value::Object),
        (Shape::List(item), Value::Array(items)) => {
            let all: Vec<Option<Value>> = items
                .iter()
                .enumerate()
                .map(|(at, value)| of_shape(item, value, &format!("{place}[{at}]"), wrong))
                .collect();
            all.into_iter().collect::<Option<Vec<Value>>>().map(Value::Array)
        }
        (Shape::Map(item), Value::Object(entries)) => {
            let mut all = Map::new();
            for (name, value) in entries {
                all.insert(name.clone(), of_shape(item, value, &format!("{place}.{name}"), wrong)?);
            }
            Some(Value::Object(all))
        }
        (Shape::List(_), _) => {
            wrong.push(format!("{place}: must be a list"));
            None
        }
        (Shape::Map(_), _) | (_, Value::Null | Value::Array(_) | Value::Object(_)) => {
            wrong.push(format!("{place}: has a value of the wrong type"));
            None
        }
        (_, value) => Some(value.clone()),
    }
}

/// Whether a reference to another object has the fields that it needs, perhaps others that it may have, with values that are possible, and no
/// more.
fn reference(
    written: &Map<String, Value>,
    needed: &[&str],
    possible: &[&str],
    place: &str,
    wrong: &mut Vec<String>,
) -> bool {
    let before = wrong.len();
    let is_known = |name: &&String| [needed, possible].concat().contains(&name.as_str());
    wrong.extend(written.keys().filter(|name| !is_known(name)).map(|name| newer(&format!("{place}.{name}"))));
    let is_part = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
    let is_name = |text: &str| (1..=253).contains(&text.len()) && text.bytes().all(is_part);
    let present = possible.iter().filter(|field| written.contains_key(**field));
    for field in needed.iter().chain(present) {
        let is_right = match (*field, written.get(*field)) {
            ("port", Some(value)) => port(value).is_some(),
            (_, Some(Value::String(name))) => is_name(name),
            _ => false,
        };
        if !is_right {
            wrong.push(format!("{place}.{field}: is missing, or has a value that is not possible"));
        }
    }
    wrong.len() == before
}

fn port(value: &Value) -> Option<u16> {
    value.as_u64().and_then(|port| u16::try_from(port).ok()).filter(|port| *port > 0)
}

/// Takes the Service out of what the file would say under `key`, which has a cluster instead.
fn take_service(
    file: &mut Map<String, Value>,
    key: &str,
    is_grpc: impl FnOnce(&Map<String, Value>) -> bool,
) -> Option<ServiceRef> {
    let Some(Value::Object(asked)) = file.get_mut(key) else { return None };
    let is_grpc = is_grpc(asked);
    let written = asked.get("to")?.as_object()?;
    let (name, port) = (written.get("name")?.as_str()?.to_owned(), port(written.get("port")?)?);
    let namespace = written.get("namespace").and_then(Value::as_str).map(str::to_owned);
    asked.insert("to".to_owned(), json!(CLUSTER));
    Some(ServiceRef { name, namespace, port, is_grpc })
}

/// The word of the file that the field stands for.
fn of_word(word: &Field, written: &Map<String, Value>, place: &str, wrong: &mut Vec<String>) -> Option<Value> {
    if written.len() > 1 {
        wrong.push(format!("{place}: {} excludes all other fields", word.name));
        return None;
    }
    match (&word.shape, written.get(&word.name)?) {
        (Shape::Words(_), value @ Value::String(_)) => Some(value.clone()),
        (Shape::True, Value::Bool(true)) => Some(json!(word.key)),
        _ => {
            wrong.push(format!("{place}.{}: has a value that is not possible", word.name));
            None
        }
    }
}
