//! The JSON schema (2020-12) of the file, for editors. It describes each value on its own; only `check` verifies how values fit together.

use serde_json::{Map, Value, json};

use crate::define::{Kind, Object, Word};
use crate::raw::RawFile;
use crate::read::Keyed;

/// The JSON schema of the file.
pub fn schema() -> Value {
    let mut definitions = Map::new();
    let Value::Object(mut root) = object(RawFile::object(), &mut definitions) else { return Value::Null };
    root.insert("$schema".to_owned(), json!("https://json-schema.org/draft/2020-12/schema"));
    root.insert("title".to_owned(), json!("Steelyard configuration"));
    root.insert("$defs".to_owned(), Value::Object(definitions));
    Value::Object(root)
}

fn object(object: &'static Object, definitions: &mut Map<String, Value>) -> Value {
    let mut properties = Map::new();
    for key in &object.keys {
        let mut property = Map::new();
        if let Value::Object(kind) = kind(&key.kind, definitions) {
            property.extend(kind);
        }
        let default = key.default.iter().map(|default| format!(" Default: {default}."));
        let only = key.only.iter().map(|only| format!(" Protocol {only} only."));
        let notes: String = only.chain(default).collect();
        property.insert("description".to_owned(), json!(format!("{}{notes}", key.doc)));
        properties.insert(key.name.to_owned(), Value::Object(property));
    }
    let required: Vec<&str> = object.keys.iter().filter(|key| key.required).map(|key| key.name).collect();
    let mut schema = json!({
        "type": "object",
        "description": object.doc,
        "properties": properties,
        "required": required,
        "additionalProperties": false,
    });
    if let Value::Object(schema) = &mut schema
        && !object.one_of.is_empty()
    {
        let one_of: Vec<Value> = object.one_of.iter().map(|key| json!({ "required": [key] })).collect();
        schema.insert("oneOf".to_owned(), Value::Array(one_of));
    }
    schema
}

fn kind(kind: &Kind, definitions: &mut Map<String, Value>) -> Value {
    match kind {
        // An editor sees `1` and `true` as a number and a boolean, but the reader accepts any scalar as text.
        Kind::Text(form) => match form.pattern {
            Some(pattern) => json!({ "type": ["string", "integer"], "pattern": pattern, "examples": [form.example] }),
            None => json!({ "type": ["string", "number", "boolean"], "examples": [form.example] }),
        },
        Kind::Integer(min, max) => json!({ "type": "integer", "minimum": min, "maximum": max }),
        Kind::Boolean => json!({ "type": "boolean" }),
        Kind::True => json!({ "const": true }),
        Kind::Choice(words) => {
            let one = |word: &Word| json!({ "const": word.text, "description": word.doc });
            json!({ "oneOf": words.iter().map(one).collect::<Vec<_>>() })
        }
        Kind::List(item) => json!({ "type": "array", "minItems": 1, "items": self::kind(item, definitions) }),
        Kind::Named(form, value) => {
            let names = form.pattern.map_or_else(|| json!({}), |pattern| json!({ "pattern": pattern }));
            json!({ "type": "object", "propertyNames": names, "additionalProperties": self::kind(value, definitions) })
        }
        Kind::Object(object) => {
            let name = object.slug();
            if !definitions.contains_key(&name) {
                let definition = self::object(object, definitions);
                definitions.insert(name.clone(), definition);
            }
            json!({ "$ref": format!("#/$defs/{name}") })
        }
        Kind::Either(kinds) => {
            json!({ "anyOf": kinds.iter().map(|one| self::kind(one, definitions)).collect::<Vec<_>>() })
        }
    }
}
