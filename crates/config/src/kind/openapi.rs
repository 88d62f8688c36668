//! The definition of the kind, as an API server takes it: a structural schema (OpenAPI v3), with rules in CEL for what a schema cannot say.
//!
//! Every text, list and mapping has a limit: without one, the API server takes the cost of a rule about it for unlimited.

use std::fmt::Write as _;

use regex::Regex;
use serde_json::{Map, Value, json};

use super::shape::{self, Field, Group, Shape};
use crate::define::{Form, any_of};
use crate::text::ClientNetwork;

/// Letters of a text, and of one that may have lines: `model::Page::BYTES_MAX`.
const TEXT_MAX: usize = 4096;
const BODY_MAX: usize = 32 * 1024;

/// Entries of a list of networks. An object of the API may have 1.5 MB, and the rule about each has a cost.
const NETWORKS_MAX: usize = 1024;

/// Entries of other lists, and of mappings.
const ENTRIES_MAX: usize = 64;

/// The targets of a policy, and the entries that the Gateway API allows in a status.
const TARGETS_MAX: usize = 16;

/// The name of an object.
const DNS_NAME: &str = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$";

const GATEWAY_API: &str = "gateway.networking.k8s.io";

const HEAD: &str = "\
# TrafficPolicy: what a route and a cluster of a configuration file have, for Gateways, routes and Services. docs/kubernetes-policies.md explains
# it. Made from crates/config/src/raw.rs: cargo run -p config --example trafficpolicy > deploy/steelyard/crds/trafficpolicies.yaml
# Helm installs this definition with the chart and leaves it alone after that. To update it, or without Helm:
#   kubectl apply --server-side -f deploy/steelyard/crds
";

/// The definition of the kind, in YAML.
pub fn definition() -> String {
    let mut page = HEAD.to_owned();
    yaml(&object(), 0, &mut page);
    page
}

fn object() -> Value {
    let column = |name: &str, path: &str| json!({"name": name, "type": "string", "jsonPath": path});
    let accepted = ".status.ancestors[*].conditions[?(@.type==\"Accepted\")].status";
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": "trafficpolicies.steelyard.io",
            "labels": {"gateway.networking.k8s.io/policy": "Inherited"},
        },
        "spec": {
            "group": "steelyard.io",
            "scope": "Namespaced",
            "names": {
                "kind": "TrafficPolicy",
                "listKind": "TrafficPolicyList",
                "plural": "trafficpolicies",
                "singular": "trafficpolicy",
                "categories": ["gateway-api"],
            },
            "versions": [{
                "name": "v1alpha1",
                "served": true,
                "storage": true,
                "subresources": {"status": {}},
                "additionalPrinterColumns": [
                    column("Target", ".spec.targetRefs[*].name"),
                    column("Accepted", accepted),
                    {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
                ],
                "schema": {"openAPIV3Schema": {
                    "type": "object",
                    "description": "Traffic policies of Gateways, routes and Services, attached as GEP-713 says.",
                    "required": ["spec"],
                    "properties": {
                        "apiVersion": {"type": "string"},
                        "kind": {"type": "string"},
                        "metadata": {"type": "object"},
                        "spec": spec(),
                        "status": status(),
                    },
                }},
            }],
        },
    })
}

fn spec() -> Value {
    let about_service = "self.targetRefs.exists(t, t.kind == 'Service')";
    json!({
        "type": "object",
        "required": ["targetRefs"],
        "x-kubernetes-validations": [
            {
                "rule": "has(self.route) || has(self.cluster) || has(self.clients)",
                "message": "set route, cluster or clients",
            },
            {
                "rule": "!has(self.clients) || self.targetRefs.all(t, t.kind == 'Gateway' && !has(t.sectionName))",
                "message": "clients is for Gateways as a whole: give it to a policy whose targets are Gateways without sectionName",
            },
            {
                "rule": format!("!has(self.route) || !{about_service}"),
                "message": "a Service has no route: give the fields of route to a policy for the HTTPRoute",
            },
        ],
        "properties": {
            "targetRefs": targets(),
            "route": group(&shape::route()),
            "cluster": group(&shape::cluster()),
            "clients": group(&shape::clients()),
        },
    })
}

fn targets() -> Value {
    let section = |target: &str| format!("(has({target}.sectionName) ? {target}.sectionName : '')");
    let same = |a: &str, b: &str| {
        format!(
            "{a}.group == {b}.group && {a}.kind == {b}.kind && {a}.name == {b}.name && {} == {}",
            section(a),
            section(b)
        )
    };
    let name = |description: &str, max: usize, pattern: &str| json!({"type": "string", "description": description, "minLength": 1, "maxLength": max, "pattern": pattern});
    let dns = DNS_NAME;
    json!({
        "type": "array",
        "description": "The objects that the policy is for, in its own namespace.",
        "minItems": 1,
        "maxItems": TARGETS_MAX,
        "x-kubernetes-list-type": "atomic",
        "x-kubernetes-validations": [{
            "rule": format!("self.all(a, self.exists_one(b, {}))", same("a", "b")),
            "message": "a target is there twice",
        }],
        "items": {
            "type": "object",
            "required": ["group", "kind", "name"],
            "x-kubernetes-validations": [
                {
                    "rule": format!(
                        "self.kind == 'Service' ? self.group == '' : self.group == '{GATEWAY_API}'"
                    ),
                    "message": format!("a Service is of the group \"\", and the other kinds of {GATEWAY_API}"),
                },
                {
                    "rule": "self.kind != 'Service' || !has(self.sectionName)",
                    "message": "a policy is for all ports of a Service: remove sectionName",
                },
            ],
            "properties": {
                "group": {"type": "string", "enum": ["", GATEWAY_API]},
                "kind": {"type": "string", "enum": ["Gateway", "HTTPRoute", "GRPCRoute", "Service"]},
                "name": name("The name of the object.", 253, dns),
                "sectionName": name("A listener of the Gateway, or a rule of the route, by its name.", 253, dns),
            },
        },
    })
}

fn group(group: &Group) -> Value {
    let mut properties = Map::new();
    for field in group.word.as_deref().into_iter().chain(&group.fields) {
        properties.insert(field.name.clone(), property(field));
    }
    let mut schema = json!({"type": "object", "description": shape::in_camel(&group.doc), "properties": properties});
    let required: Vec<&str> =
        group.fields.iter().filter(|field| field.required).map(|field| field.name.as_str()).collect();
    let rules = rules(group, &required);
    if let Value::Object(schema) = &mut schema {
        // Beside the word, nothing else is required.
        if !required.is_empty() && group.word.is_none() {
            schema.insert("required".to_owned(), json!(required));
        }
        if !rules.is_empty() {
            schema.insert("x-kubernetes-validations".to_owned(), Value::Array(rules));
        }
    }
    schema
}

fn rules(group: &Group, required: &[&str]) -> Vec<Value> {
    let has = |names: &[&str]| names.iter().map(|name| format!("has(self.{name})")).collect::<Vec<_>>();
    let rule = |rule: String, message: String| json!({"rule": rule, "message": message});
    let one_of: Vec<&str> = group.one_of.iter().map(String::as_str).collect();
    let all: Vec<&str> = group.fields.iter().map(|field| field.name.as_str()).collect();
    let listed = |names: &[&str]| any_of(names.iter().map(|name| (*name).to_owned()).collect());
    let mut rules = Vec::new();
    let word = group.word.as_ref().map(|word| word.name.as_str());
    if let Some(word) = word {
        let others = has(&all).join(" || ");
        rules.push(rule(format!("!has(self.{word}) || !({others})"), format!("{word} excludes all other fields")));
        for name in required {
            rules.push(rule(format!("has(self.{word}) || has(self.{name})"), format!("set {word} or {name}")));
        }
    }
    let either = |rule: String| match word {
        Some(word) => format!("has(self.{word}) || ({rule})"),
        None => rule,
    };
    match one_of.as_slice() {
        [] => {}
        [one] if required.contains(one) => {}
        names => {
            let exactly = format!("[{}].exists_one(x, x)", has(names).join(", "));
            let message = match names {
                [one] => format!("set {one}"),
                _ => format!("set exactly one of {}", listed(names)),
            };
            rules.push(rule(either(exactly), message));
        }
    }
    rules
}

fn property(field: &Field) -> Value {
    let mut schema = value(&field.shape);
    let default = field.default.iter().map(|default| format!(" Default: {}.", default));
    let description: String = std::iter::once(field.doc.clone()).chain(default).collect();
    if let Value::Object(schema) = &mut schema {
        schema.insert("description".to_owned(), json!(shape::in_camel(&description)));
    }
    schema
}

fn value(shape: &Shape) -> Value {
    match shape {
        Shape::Text(form) => text(form),
        Shape::Integer(min, max) => json!({"type": "integer", "format": "int64", "minimum": min, "maximum": max}),
        Shape::Boolean => json!({"type": "boolean"}),
        Shape::True => json!({"type": "boolean", "enum": [true]}),
        Shape::Words(words) => {
            json!({"type": "string", "enum": words.iter().map(|word| word.text).collect::<Vec<_>>()})
        }
        Shape::List(item) => {
            let is_networks = matches!(&**item, Shape::Text(form) if is_network(form));
            let max = if is_networks { NETWORKS_MAX } else { ENTRIES_MAX };
            json!({
                "type": "array",
                "minItems": 1,
                "maxItems": max,
                "x-kubernetes-list-type": "atomic",
                "items": value(item),
            })
        }
        Shape::Map(item) => json!({
            "type": "object",
            "minProperties": 1,
            "maxProperties": ENTRIES_MAX,
            "additionalProperties": value(item),
        }),
        Shape::Secret => json!({"type": "object", "required": ["name"], "properties": {"name": object_name()}}),
        Shape::Service => json!({
            "type": "object",
            "required": ["name", "port"],
            "properties": {
                "name": object_name(),
                "namespace": {
                    "type": "string",
                    "description": "The namespace of the Service. Default: that of the policy.",
                    "minLength": 1,
                    "maxLength": 63,
                    "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$",
                },
                "port": {"type": "integer", "format": "int32", "minimum": 1, "maximum": 65535},
            },
        }),
        Shape::Group(group) => self::group(group),
    }
}

fn object_name() -> Value {
    json!({"type": "string", "description": "The name of the object.", "minLength": 1, "maxLength": 253, "pattern": DNS_NAME})
}

fn is_network(form: &Form) -> bool {
    form.noun == <ClientNetwork as crate::read::Formed>::FORM.noun
}

fn text(form: &Form) -> Value {
    if is_network(form) {
        return json!({
            "type": "string",
            "minLength": 2,
            "maxLength": 43,
            "x-kubernetes-validations": [{
                "rule": "isIP(self) || (isCIDR(self) && cidr(self) == cidr(self).masked())",
                "message": "must be an address, or a network without bits beyond its length, such as 10.0.0.0/8",
            }],
        });
    }
    let is_body = form.noun == "text" && form.pattern.is_none();
    let max = if is_body { BODY_MAX } else { TEXT_MAX };
    // The API server matches patterns by RE2, as this library does, without looking around.
    let pattern = form.pattern.filter(|pattern| Regex::new(pattern).is_ok());
    let is_number = pattern.is_some_and(|pattern| Regex::new(pattern).is_ok_and(|pattern| pattern.is_match("503")));
    let is_word = pattern.is_some_and(|pattern| Regex::new(pattern).is_ok_and(|pattern| pattern.is_match("a")));
    let mut schema = match is_number && !is_word {
        true => json!({"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}]}),
        false => json!({"type": "string"}),
    };
    if let Value::Object(schema) = &mut schema {
        schema.insert("maxLength".to_owned(), json!(max));
        if let Some(pattern) = pattern {
            schema.insert("pattern".to_owned(), json!(pattern));
        }
        schema.insert("example".to_owned(), json!(form.example));
    }
    schema
}

/// As the Gateway API defines the status of policies.
fn status() -> Value {
    let text = |max: usize| json!({"type": "string", "maxLength": max});
    json!({
        "type": "object",
        "description": "What became of the policy.",
        "properties": {"ancestors": {
            "type": "array",
            "description": "An entry for each Gateway that the policy has an effect on, or for a target that is not there.",
            "maxItems": TARGETS_MAX,
            "x-kubernetes-list-type": "atomic",
            "items": {
                "type": "object",
                "required": ["ancestorRef", "controllerName", "conditions"],
                "properties": {
                    "ancestorRef": {
                        "type": "object",
                        "required": ["name"],
                        "properties": {
                            "group": text(253),
                            "kind": text(63),
                            "namespace": text(63),
                            "name": text(253),
                            "sectionName": text(253),
                            "port": {"type": "integer", "format": "int32", "minimum": 1, "maximum": 65535},
                        },
                    },
                    "controllerName": text(253),
                    "conditions": {
                        "type": "array",
                        "maxItems": 8,
                        "x-kubernetes-list-type": "map",
                        "x-kubernetes-list-map-keys": ["type"],
                        "items": {
                            "type": "object",
                            "required": ["type", "status", "reason", "message", "lastTransitionTime"],
                            "properties": {
                                "type": text(316),
                                "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
                                "reason": text(1024),
                                "message": text(32_768),
                                "observedGeneration": {"type": "integer", "format": "int64", "minimum": 0},
                                "lastTransitionTime": {"type": "string", "format": "date-time"},
                            },
                        },
                    },
                },
            },
        }},
    })
}

/// Writes a mapping in block style. Texts are in double quotes as in JSON, which YAML reads the same way.
fn yaml(value: &Value, depth: usize, page: &mut String) {
    let indent = "  ".repeat(depth);
    match value {
        Value::Object(map) => {
            // Sorted, whatever order the library keeps.
            let sorted: std::collections::BTreeMap<&String, &Value> = map.iter().collect();
            for (key, value) in sorted {
                let key = scalar(key);
                match value {
                    // Writing to a String cannot fail.
                    Value::Object(inner) if !inner.is_empty() => {
                        let _ = writeln!(page, "{indent}{key}:");
                        yaml(value, depth + 1, page);
                    }
                    Value::Array(items) if items.iter().any(Value::is_object) => {
                        let _ = writeln!(page, "{indent}{key}:");
                        for item in items {
                            let mut block = String::new();
                            yaml(item, depth + 2, &mut block);
                            let _ = writeln!(page, "{indent}  - {}", block.trim());
                        }
                    }
                    Value::String(text) => {
                        let _ = writeln!(page, "{indent}{key}: {}", scalar(text));
                    }
                    value => {
                        let _ = writeln!(page, "{indent}{key}: {value}");
                    }
                }
            }
        }
        value => {
            let _ = writeln!(page, "{indent}{value}");
        }
    }
}

/// A text without quotes where every YAML reads it as text.
fn scalar(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-/".contains(&byte);
    let is_word =
        ["true", "false", "yes", "no", "on", "off", "null", "y", "n"].contains(&text.to_ascii_lowercase().as_str());
    let begins = text.starts_with(|first: char| first.is_ascii_alphabetic());
    if begins && !is_word && text.bytes().all(is_plain) { text.to_owned() } else { json!(text).to_string() }
}
