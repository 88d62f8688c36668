//! Headers that a snippet changes.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

/// Headers of requests or of responses.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Headers {
    pub(super) set: Vec<(String, String)>,
    pub(super) add: Vec<(String, String)>,
    pub(super) remove: Vec<String>,
}

impl Headers {
    /// The names of the headers that change, in lower case.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.set.iter().chain(&self.add).map(|(name, _)| name.as_str()).chain(self.remove.iter().map(String::as_str))
    }

    /// Adds a header that replaces others of its name.
    pub fn set(&mut self, name: &str, value: &str) {
        self.set.retain(|(known, _)| !known.eq_ignore_ascii_case(name));
        self.set.push((name.to_ascii_lowercase(), value.to_owned()));
    }

    /// The same; an empty value removes the header.
    pub fn set_or_remove(&mut self, name: &str, value: &str) {
        match value {
            "" => self.remove.push(name.to_ascii_lowercase()),
            value => self.set(name, value),
        }
    }

    /// Removes these headers of endpoints, in lower case. What these changes add or set stays, and so does what they add to headers that they clear:
    /// nginx removes what endpoints send before it adds anything, in whichever order that is written.
    pub fn hide(&mut self, names: &[String]) {
        let is_set = |name: &String| self.set.iter().any(|(known, _)| known == name);
        let hidden: Vec<String> = names.iter().filter(|name| !is_set(name)).cloned().collect();
        self.remove.extend(hidden);
        let mut known = BTreeSet::new();
        self.remove.retain(|name| known.insert(name.clone()));
        let all = std::mem::take(&mut self.add).into_iter();
        let (alone, added): (Vec<_>, Vec<_>) = all.partition(|(name, _)| !known.contains(name));
        self.add = alone;
        self.remove.retain(|name| !added.iter().any(|(known, _)| known == name));
        self.set.extend(added);
    }

    /// Adds changes that come after these: they decide the headers that both change.
    pub fn extend(&mut self, next: &Self) {
        let is_decided = |name: &String| {
            next.remove.contains(name) || next.set.iter().chain(&next.add).any(|(decided, _)| decided == name)
        };
        self.set.retain(|(name, _)| !is_decided(name));
        self.add.retain(|(name, _)| !is_decided(name));
        self.remove.retain(|name| !is_decided(name));
        self.set.extend(next.set.iter().cloned());
        self.add.extend(next.add.iter().cloned());
        self.remove.extend(next.remove.iter().cloned());
    }

    /// Adds a header beside others of its name. Two values become one field, which means the same, except for cookies.
    pub(super) fn add(&mut self, name: &str, value: &str) -> Result<(), String> {
        match self.add.iter_mut().find(|(known, _)| known.eq_ignore_ascii_case(name)) {
            Some(_) if name.eq_ignore_ascii_case("set-cookie") => return Err("a second Set-Cookie".to_owned()),
            Some((_, known)) => *known = format!("{known}, {value}"),
            None => self.add.push((name.to_ascii_lowercase(), value.to_owned())),
        }
        Ok(())
    }

    /// The field of a TrafficPolicy; `None` if nothing changes.
    pub fn field(&self) -> Option<Value> {
        let pairs = |pairs: &[(String, String)]| -> Map<String, Value> {
            pairs.iter().map(|(name, value)| (name.clone(), json!(value))).collect()
        };
        let mut field = Map::new();
        if !self.set.is_empty() {
            field.insert("set".to_owned(), Value::Object(pairs(&self.set)));
        }
        if !self.add.is_empty() {
            field.insert("add".to_owned(), Value::Object(pairs(&self.add)));
        }
        if !self.remove.is_empty() {
            field.insert("remove".to_owned(), json!(self.remove));
        }
        (!field.is_empty()).then_some(Value::Object(field))
    }
}
