//! The published descriptions of the file: its schema and its reference page.

use serde_json::Value;

use super::example;
use crate::diagnostic::Report;
use crate::{reference, schema, yaml};

/// The part of the schema that applies to a node; `None` if the schema has none.
fn under<'a>(root: &'a Value, schema: &'a Value, node: &yaml::Node) -> bool {
    if let Some(name) = schema["$ref"].as_str().and_then(|path| path.strip_prefix("#/$defs/")) {
        return under(root, &root["$defs"][name], node);
    }
    if let Some(any) = schema["anyOf"].as_array() {
        return any.iter().any(|one| under(root, one, node));
    }
    match &node.value {
        yaml::Value::Map(pairs) => {
            let required = schema["required"].as_array().map_or(&[][..], Vec::as_slice);
            let key_is = |key: &yaml::Node, name: &Value| matches!(&key.value, yaml::Value::Scalar { text, .. } if Some(text.as_str()) == name.as_str());
            schema["type"] == "object"
                && required.iter().all(|name| pairs.iter().any(|(key, _)| key_is(key, name)))
                && pairs.iter().all(|(key, value)| {
                    let yaml::Value::Scalar { text, .. } = &key.value else { return false };
                    let property = schema["properties"].get(text).or_else(|| schema.get("additionalProperties"));
                    property.is_some_and(|property| *property != Value::Bool(false) && under(root, property, value))
                })
        }
        yaml::Value::List(items) => {
            schema["type"] == "array" && items.iter().all(|item| under(root, &schema["items"], item))
        }
        yaml::Value::Scalar { text, .. } => scalar_under(schema, text),
        yaml::Value::Null => false,
    }
}

fn scalar_under(schema: &Value, text: &str) -> bool {
    if let Some(words) = schema["oneOf"].as_array() {
        return words.iter().any(|word| word["const"].as_str() == Some(text));
    }
    if let Some(pattern) = schema["pattern"].as_str() {
        return regex::Regex::new(pattern).unwrap().is_match(text);
    }
    if schema["const"] == Value::Bool(true) {
        return text == "true";
    }
    match schema["type"].as_str() {
        Some("integer") => text.parse::<u64>().is_ok(),
        Some("boolean") => text.parse::<bool>().is_ok(),
        Some(_) => false,
        None => schema["type"].is_array(),
    }
}

fn holds(text: &str) -> bool {
    let schema = schema();
    let mut report = Report::default();
    let root = yaml::load(text, &mut report).unwrap();
    under(&schema, &schema, &root)
}

#[test]
fn the_schema_holds_for_the_examples_that_load() {
    assert!(holds(&example("http.yaml")));
    assert!(holds(&example("tcp.yaml")));
    assert!(holds(&example("tls.yaml")));
    assert!(holds(&example("canary.yaml")));
    assert!(holds(&example("vip.yaml")));
    assert!(holds(&example("grpc.yaml")));
}

#[test]
fn the_schema_holds_for_nothing_that_is_refused() {
    assert!(!holds(&example("grpc.yaml").replace("grpc: helloworld.Greeter ", "grpc: /helloworld.Greeter ")));
    assert!(!holds(&example("grpc.yaml").replace("protocol: h2c", "protocol: http2")));
    assert!(!holds(&example("canary.yaml").replace("status: 308", "status: 304")));
    assert!(!holds(&example("canary.yaml").replace("connect_failure", "connect")));
    assert!(!holds(&example("http.yaml").replace("interval: 2s", "interval: 2")));
    assert!(!holds(&example("http.yaml").replace("protocol: http", "protocol: htpp")));
    assert!(!holds(&example("vip.yaml").replace("2020/tcp", "2020")));
    assert!(!holds(&example("vip.yaml").replace("mode: nat", "mode: snat")));
}

#[test]
fn the_schema_has_no_reference_without_its_definition() {
    fn walk(root: &Value, value: &Value) {
        match value {
            Value::Object(map) => {
                if let Some(name) = map.get("$ref").and_then(Value::as_str) {
                    let name = name.strip_prefix("#/$defs/").unwrap();
                    assert!(root["$defs"].get(name).is_some(), "{name}");
                }
                map.values().for_each(|value| walk(root, value));
            }
            Value::Array(items) => items.iter().for_each(|value| walk(root, value)),
            _ => {}
        }
    }
    let schema = schema();
    walk(&schema, &schema);
}

#[test]
fn the_reference_page_is_up_to_date() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/configuration.md");
    let page = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        page == reference(),
        "docs/configuration.md differs from the definition; run: cargo run -p config --example reference > docs/configuration.md"
    );
}
