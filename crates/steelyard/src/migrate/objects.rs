//! The objects of a text: of documents in YAML or JSON, and of lists in them. What the API server would not take is an error with its place.

use std::fmt;

use controller::ingress_nginx::OBJECTS_MAX;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// Adds the objects of a text with this name.
///
/// # Errors
/// Returns what is wrong, and what would be right.
pub(super) fn add(text: &str, name: &str, objects: &mut Vec<Value>) -> Result<(), String> {
    let documents: Vec<Value> = match text.trim_start().starts_with('{') {
        true => vec![json(text).map_err(|error| format!("{name}: {error}"))?],
        false => serde_saphyr::from_multiple(text).map_err(|error| format!("{name}: {error}"))?,
    };
    for (number, document) in documents.into_iter().enumerate() {
        let place = format!("{name}: document {}", number + 1);
        add_document(document, &place, objects)?;
        if objects.len() > OBJECTS_MAX {
            return Err(format!("{name}: more than {OBJECTS_MAX} objects"));
        }
    }
    Ok(())
}

fn add_document(mut document: Value, place: &str, objects: &mut Vec<Value>) -> Result<(), String> {
    if document.is_null() {
        return Ok(());
    }
    if !document.is_object() {
        return Err(format!("{place} is no object: an object has apiVersion, kind and metadata"));
    }
    let kind = kind(&document).ok_or_else(|| format!("{place} has no kind, such as kind: Ingress"))?.to_owned();
    let Some(of_items) = kind.strip_suffix("List").filter(|_| document.get("items").is_some() || kind == "List") else {
        objects.push(document);
        return Ok(());
    };
    let Some(Value::Array(items)) = document.get_mut("items").map(Value::take) else {
        return Err(format!("{place} is a list whose items are no array"));
    };
    for (number, mut item) in items.into_iter().enumerate() {
        if !item.is_object() {
            return Err(format!("{place}: item {} is no object", number + 1));
        }
        if self::kind(&item).is_none() {
            // A list of one kind, as the API server writes it, says it once.
            if of_items.is_empty() {
                return Err(format!(
                    "{place}: item {} has no kind; kubectl get ingress --all-namespaces -o yaml writes it",
                    number + 1
                ));
            }
            item["kind"] = Value::String(of_items.to_owned());
        }
        objects.push(item);
    }
    Ok(())
}

fn kind(object: &Value) -> Option<&str> {
    object["kind"].as_str().filter(|kind| !kind.is_empty())
}

/// A document in JSON. Of a key that is there twice, one value would be lost in silence.
fn json(text: &str) -> Result<Value, serde_json::Error> {
    serde_json::from_str::<Strict>(text).map(|Strict(value)| value)
}

/// A value without keys that are there twice.
struct Strict(Value);

impl<'de> Deserialize<'de> for Strict {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Values;
        impl<'de> Visitor<'de> for Values {
            type Value = Strict;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value of JSON")
            }

            fn visit_bool<E>(self, value: bool) -> Result<Strict, E> {
                Ok(Strict(value.into()))
            }

            fn visit_i64<E>(self, value: i64) -> Result<Strict, E> {
                Ok(Strict(value.into()))
            }

            fn visit_u64<E>(self, value: u64) -> Result<Strict, E> {
                Ok(Strict(value.into()))
            }

            fn visit_f64<E>(self, value: f64) -> Result<Strict, E> {
                Ok(Strict(value.into()))
            }

            fn visit_str<E>(self, value: &str) -> Result<Strict, E> {
                Ok(Strict(value.into()))
            }

            fn visit_unit<E>(self) -> Result<Strict, E> {
                Ok(Strict(Value::Null))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Strict, A::Error> {
                let mut all = Vec::new();
                while let Some(Strict(item)) = items.next_element()? {
                    all.push(item);
                }
                Ok(Strict(Value::Array(all)))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Strict, A::Error> {
                let mut all = Map::new();
                while let Some((key, Strict(value))) = entries.next_entry::<String, Strict>()? {
                    if all.contains_key(&key) {
                        return Err(A::Error::custom(format!("the key {key:?} is there twice")));
                    }
                    all.insert(key, value);
                }
                Ok(Strict(Value::Object(all)))
            }
        }
        deserializer.deserialize_any(Values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_of_texts() {
        let kinds = |text: &str| -> Result<Vec<String>, String> {
            let mut objects = Vec::new();
            add(text, "a.yaml", &mut objects)?;
            Ok(objects.iter().filter_map(|object| kind(object).map(str::to_owned)).collect())
        };
        let check = |text: &str, expect: &[&str]| {
            let found = kinds(text).unwrap_or_else(|why| panic!("{text}: {why}"));
            assert_eq!(found, expect, "{text}");
        };
        check("", &[]);
        check("---\n---\n", &[]);
        check("kind: Ingress\n---\nkind: ConfigMap\n", &["Ingress", "ConfigMap"]);
        check(r#"{"kind": "List", "items": [{"kind": "Ingress"}, {"kind": "Secret"}]}"#, &["Ingress", "Secret"]);
        check(r#"{"kind": "IngressList", "items": [{"metadata": {}}]}"#, &["Ingress"]);
        check(r#"{"kind": "IngressList", "items": []}"#, &[]);
        check("kind: PlayList\n", &["PlayList"]);
        let wrong = |text: &str, part: &str| match kinds(text) {
            Err(why) => assert!(why.starts_with("a.yaml") && why.contains(part), "{text}: {why}"),
            Ok(found) => panic!("{text}: {found:?}"),
        };
        wrong("metadata: {name: a}\n", "document 1 has no kind");
        wrong("kind: Ingress\n---\n- a\n", "document 2 is no object");
        wrong("nonsense", "document 1 is no object");
        wrong(r#"{"kind": "List", "items": [{"metadata": {}}]}"#, "item 1 has no kind; kubectl get ingress");
        wrong(r#"{"kind": "List", "items": [1]}"#, "item 1 is no object");
        wrong(r#"{"kind": "List"}"#, "whose items are no array");
        wrong(r#"{"kind": "Ingress", "metadata": {"a": 1, "a": 2}}"#, r#"the key "a" is there twice"#);
        wrong("kind: Ingress\nkind: Ingress\n", "kind");
    }
}
