//! A file of Steelyard in the making, and what is said about lines of the file that it is made from.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;

use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::Value;

use crate::exit::Exit;

/// The keys of a route that say which requests it takes.
pub(super) const CONDITIONS: &[&str] = &["hosts", "path", "methods", "headers", "cookies", "query"];

/// Keys and values in the order in which they are written.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Keys(Vec<(String, Value)>);

impl Keys {
    /// Sets a key, in place of an older value.
    pub(super) fn set(&mut self, key: &str, value: impl Into<Value>) {
        let value = value.into();
        match self.0.iter_mut().find(|(known, _)| known == key) {
            Some((_, old)) => *old = value,
            None => self.0.push((key.to_owned(), value)),
        }
    }

    /// The same, for a chain.
    pub(super) fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.set(key, value);
        self
    }

    /// These and then those.
    pub(super) fn joined(mut self, other: &Self) -> Self {
        other.entries().for_each(|(key, value)| self.set(key, value.clone()));
        self
    }

    /// Adds keys that must all hold, such as policies. Answers false, and may have added some, if one is there with another value.
    #[must_use = "if it is false, one of them does not hold"]
    pub(super) fn agreed(&mut self, other: &Self) -> bool {
        other.entries().all(|(key, value)| match self.get(key) {
            Some(known) => known == value,
            None => {
                self.set(key, value.clone());
                true
            }
        })
    }

    pub(super) fn get(&self, key: &str) -> Option<&Value> {
        self.0.iter().find(|(known, _)| known == key).map(|(_, value)| value)
    }

    pub(super) fn remove(&mut self, key: &str) {
        self.0.retain(|(known, _)| known != key);
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a condition to a route: `key` is `headers`, `cookies` or `query`, and `name` the one that it is about. Answers false, and changes
    /// nothing, if there is another condition on it: a route holds one for each name, so whoever adds the second closes what both stand for.
    #[must_use = "if it is false, the condition is not there, and the route takes requests that it must not take"]
    pub(super) fn condition(&mut self, key: &str, name: &str, value: impl Into<Value>) -> bool {
        let value = value.into();
        let mut map = self.get(key).and_then(Value::as_object).cloned().unwrap_or_default();
        let is_same = |known: &str| known == name || key == "headers" && known.eq_ignore_ascii_case(name);
        if let Some((_, known)) = map.iter().find(|(known, _)| is_same(known)) {
            return *known == value;
        }
        map.insert(name.to_owned(), value);
        self.set(key, Value::Object(map));
        true
    }

    /// Adds all conditions of another route, under the same rule. Two lists of methods, paths or hosts must be the same.
    #[must_use = "if it is false, a condition is not there, and the route takes requests that it must not take"]
    pub(super) fn conditions(&mut self, other: &Self) -> bool {
        let mut both = self.clone();
        for (key, value) in other.entries().filter(|(key, _)| CONDITIONS.contains(key)) {
            let fits = match (key, value.as_object()) {
                ("headers" | "cookies" | "query", Some(map)) => {
                    map.iter().all(|(name, value)| both.condition(key, name, value.clone()))
                }
                _ => match both.get(key) {
                    Some(known) => known == value,
                    None => {
                        both.set(key, value.clone());
                        true
                    }
                },
            };
            if !fits {
                return false;
            }
        }
        *self = both;
        true
    }

    /// Sets a key of a mapping below a key, in place of an older value. Not for conditions, of which none may be lost: see [`Keys::condition`].
    pub(super) fn set_in(&mut self, key: &str, inner: &str, value: impl Into<Value>) {
        let mut map = self.get(key).and_then(Value::as_object).cloned().unwrap_or_default();
        map.insert(inner.to_owned(), value.into());
        self.set(key, Value::Object(map));
    }

    /// Changes a header by `request_headers` or `response_headers`: `set` and `add` have values, `remove` has names. A name has one change, and
    /// what is set comes before what is removed.
    ///
    /// # Errors
    /// Why no route of Steelyard may change it.
    pub(super) fn header(&mut self, side: &str, how: &str, name: &str, value: &str) -> Result<(), &'static str> {
        if name.is_empty() {
            return Err("it has no name");
        }
        if let Some(why) = config::unchangeable(name) {
            return Err(why);
        }
        let mut all = self.get(side).cloned().unwrap_or_else(|| Value::Object(Default::default()));
        let is_name = |known: &str| known.eq_ignore_ascii_case(name);
        let is_changed = ["set", "add"]
            .iter()
            .any(|how| all[how].as_object().is_some_and(|all| all.keys().any(|known| is_name(known))));
        let mut removed = all["remove"].as_array().cloned().unwrap_or_default();
        removed.retain(|known| !known.as_str().is_some_and(is_name));
        if how == "remove" {
            if is_changed {
                return Ok(());
            }
            removed.push(name.into());
        } else {
            for how in ["set", "add"] {
                if let Some(values) = all[how].as_object_mut() {
                    values.retain(|known, _| !is_name(known));
                }
            }
            all[how][name] = value.into();
        }
        all["remove"] = removed.into();
        if let Some(all) = all.as_object_mut() {
            let is_empty = |value: &Value| {
                value.is_null()
                    || value.as_array().is_some_and(Vec::is_empty)
                    || value.as_object().is_some_and(|map| map.is_empty())
            };
            all.retain(|_, value| !is_empty(value));
        }
        self.set(side, all);
        Ok(())
    }
}

impl Serialize for Keys {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (key, value) in &self.0 {
            map.serialize_entry(key, value)?;
        }
        map.end()
    }
}

/// A listener and its routes.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Listener {
    pub(super) keys: Keys,
    pub(super) routes: Vec<Keys>,
}

impl Serialize for Listener {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (key, value) in &self.keys.0 {
            map.serialize_entry(key, value)?;
        }
        if !self.routes.is_empty() {
            map.serialize_entry("routes", &self.routes)?;
        }
        map.end()
    }
}

/// What became of something that is not translated as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Became {
    /// It is translated, and clients or endpoints see a difference.
    Different,
    /// It is left out.
    Lost,
    /// It may keep somebody out, or decide where requests go, so what it holds for answers 403.
    Closed,
}

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Note {
    file: String,
    line: usize,
    what: String,
    became: Became,
    /// Why, and what to write instead.
    why: String,
}

/// The largest number of notes.
const NOTES_MAX: usize = 10_000;

/// The file.
#[derive(Clone, Debug, Default)]
pub(super) struct Draft {
    pub(super) top: Keys,
    pub(super) listeners: Vec<(String, Listener)>,
    pub(super) clusters: Vec<(String, Keys)>,
    /// The place of each in `clusters`.
    places: HashMap<String, usize>,
    notes: Vec<Note>,
    noted: HashSet<Note>,
    /// Notes above the largest number.
    more_notes: usize,
}

impl Draft {
    pub(super) fn note(&mut self, (file, line): (&str, usize), what: &str, became: Became, why: &str) {
        let note = Note { file: file.to_owned(), line, what: what.to_owned(), became, why: why.to_owned() };
        if self.notes.len() >= NOTES_MAX {
            self.more_notes += 1;
        } else if self.noted.insert(note.clone()) {
            self.notes.push(note);
        }
    }

    /// A cluster with these keys, under this name or, if another cluster has it, a similar one. Returns its name.
    pub(super) fn cluster(&mut self, name: &str, keys: Keys) -> String {
        let name = named(name);
        let mut candidate = name.clone();
        for number in 2.. {
            match self.places.get(&candidate).and_then(|place| self.clusters.get(*place)) {
                Some((_, known)) if *known == keys => return candidate,
                Some(_) => candidate = format!("{}-{number}", name.get(..56).unwrap_or(&name)),
                None => break,
            }
        }
        self.places.insert(candidate.clone(), self.clusters.len());
        self.clusters.push((candidate.clone(), keys));
        candidate
    }

    /// The file as text, if it is one that Steelyard reads.
    fn text(&self) -> Result<String, String> {
        struct Named<'a, T>(&'a [(String, T)]);
        impl<T: Serialize> Serialize for Named<'_, T> {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
            }
        }
        #[derive(serde::Serialize)]
        struct File<'a> {
            listeners: Named<'a, Listener>,
            clusters: Named<'a, Keys>,
        }
        let write = |error: &dyn std::fmt::Display| format!("cannot write the file: {error}");
        let mut text = String::new();
        if !self.top.is_empty() {
            text = serde_saphyr::to_string(&self.top).map_err(|error| write(&error))?;
        }
        let file = File { listeners: Named(&self.listeners), clusters: Named(&self.clusters) };
        text.push_str(&serde_saphyr::to_string(&file).map_err(|error| write(&error))?);
        Ok(text)
    }

    /// The text, without routes that can never match because an earlier one takes all their requests: Steelyard refuses these.
    fn valid(&mut self) -> Result<String, String> {
        // Each time, a hundred errors are found at most.
        const TRIES_MAX: usize = 64;
        for _ in 0..TRIES_MAX {
            let text = self.text()?;
            let Err(errors) = config::parse("the translation", &text, model::Generation(1)) else { return Ok(text) };
            let is_idle = |error: &&config::Diagnostic| error.message.starts_with("this route can never match");
            let lines: Vec<usize> = errors.0.iter().filter(is_idle).map(|error| error.line).collect();
            if lines.len() < errors.0.len() {
                return Err(format!("the translation is no valid file; please report this:\n{errors}"));
            }
            let idle = routes_at(&text, &lines);
            for (number, (_, listener)) in self.listeners.iter_mut().enumerate() {
                let mut place = 0;
                listener.routes.retain(|_| {
                    place += 1;
                    !idle.contains(&(number, place - 1))
                });
            }
        }
        Err("too many routes can never match: the file has the same condition again and again".to_owned())
    }

    /// Prints the file, with what is lost as its first lines, and what became of lines to standard error.
    pub(super) fn print(mut self) -> Exit {
        self.notes.sort_by(|a, b| (&a.file, a.line).cmp(&(&b.file, b.line)));
        for note in &self.notes {
            eprintln!("{}", admin::visible(&note.told()));
        }
        if self.more_notes > 0 {
            eprintln!(
                "steelyard: and {} notes more, of which any may be about something that is closed",
                self.more_notes
            );
        }
        let count = |became: Became| self.notes.iter().filter(|note| note.became == became).count();
        let (different, lost, closed) = (count(Became::Different), count(Became::Lost), count(Became::Closed));
        if self.listeners.is_empty() {
            eprintln!("steelyard: there is no listener to translate: give the file that the proxy starts with");
            return Exit::BadConfig;
        }
        let text = match self.valid() {
            Ok(text) => text,
            Err(why) => return crate::fail(&why),
        };
        let mut page = String::new();
        // Writing to a text cannot fail.
        let _ = writeln!(page, "# Translated: {different} differences, {lost} lines left out, {closed} closed (403).");
        for note in self.notes.iter().filter(|note| note.became != Became::Different) {
            let _ = writeln!(page, "# {}", note.told());
        }
        page.push_str(&text);
        // What is in a file may not steer a terminal.
        let page: Vec<String> = page.lines().map(|line| admin::visible(line).to_string()).collect();
        match crate::print_line(&page.join("\n")) {
            Exit::Good if lost + closed + self.more_notes > 0 => Exit::Failed,
            exit => exit,
        }
    }

    /// What a text in a file of its own becomes.
    #[cfg(test)]
    #[track_caller]
    pub(super) fn of_text(text: &str, translate: impl FnOnce(&std::path::Path) -> Result<Self, String>) -> Self {
        let file = std::env::temp_dir().join(format!("steelyard-migrate-{}-{:p}", std::process::id(), text));
        std::fs::write(&file, text).unwrap();
        let draft = translate(&file);
        std::fs::remove_file(file).unwrap();
        draft.unwrap_or_else(|why| panic!("{why}"))
    }

    #[cfg(test)]
    pub(super) fn told(&self) -> Vec<String> {
        self.notes.iter().map(Note::told).collect()
    }

    /// The text of a draft that Steelyard accepts, without quotes.
    #[cfg(test)]
    #[track_caller]
    pub(super) fn checked(&self) -> String {
        let text = self.clone().valid().unwrap_or_else(|why| panic!("{why}\n{}", self.text().unwrap()));
        text.replace(['"', '\''], "")
    }
}

/// The routes at these lines of a text that [`Draft::text`] has written: the number of the listener, and of the route in it.
fn routes_at(text: &str, lines: &[usize]) -> Vec<(usize, usize)> {
    let (mut listener, mut route, mut found) = (0, 0, Vec::new());
    let mut is_inside = false;
    for (line, text) in text.lines().enumerate().map(|(number, text)| (number + 1, text)) {
        if text == "    routes:" {
            is_inside = true;
            route = 0;
        } else if is_inside && text.starts_with("    - ") {
            route += 1;
        } else if is_inside && !text.starts_with("     ") {
            is_inside = false;
        }
        if text.starts_with("  ") && !text.starts_with("   ") {
            listener += 1;
        }
        if is_inside && lines.contains(&line) && route > 0 && listener > 0 {
            found.push((listener - 1, route - 1));
        }
    }
    found
}

impl Note {
    fn told(&self) -> String {
        let Self { file, line, what, became, why } = self;
        let became = match became {
            Became::Different => "different",
            Became::Lost => "left out",
            Became::Closed => "closed",
        };
        format!("{file}:{line}: {what}: {became}: {why}").replace(['\n', '\r'], " ")
    }
}

/// A route that keeps everybody out.
pub(super) fn closed(route: &Keys) -> Keys {
    let mut closed = Keys::default();
    for key in CONDITIONS {
        if let Some(value) = route.get(key) {
            closed.set(key, value.clone());
        }
    }
    closed.with("respond", serde_json::json!({"status": 403}))
}

/// A name of a listener or cluster made from any text.
pub(super) fn named(text: &str) -> String {
    const CHARS_MAX: usize = 60;
    let fit = |letter: char| if letter.is_ascii_alphanumeric() || "-_.".contains(letter) { letter } else { '-' };
    let name: String = text.chars().map(fit).take(CHARS_MAX).collect();
    let name = name.trim_matches(['-', '.', '_']);
    if name.is_empty() { "cluster".to_owned() } else { name.to_owned() }
}

/// Escapes a literal for a value with variables, where `$` has a meaning.
pub(super) fn literal(text: &str) -> String {
    text.replace('$', "$$")
}

/// A duration in milliseconds, as a file has it.
pub(super) fn milliseconds(count: u64) -> String {
    match count {
        count if count % 1000 == 0 => format!("{}s", count / 1000),
        count => format!("{count}ms"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_that_no_route_may_change() {
        let mut route = Keys::default();
        assert_eq!(route.header("request_headers", "set", "X-A", "b"), Ok(()));
        for name in ["", "Host", "te", "X_Forwarded_Proto", "expect"] {
            assert!(route.header("request_headers", "add", name, "b").is_err(), "{name}");
        }
        assert_eq!(route.get("request_headers"), Some(&serde_json::json!({"set": {"X-A": "b"}})));
    }

    #[test]
    fn conditions_are_not_overwritten() {
        let mut route = Keys::default();
        assert!(route.condition("headers", "X-A", "b"));
        assert!(route.condition("headers", "x-a", "b"), "the same again");
        assert!(!route.condition("headers", "x-a", "c"));
        assert!(route.condition("query", "a", "1") && route.condition("query", "A", "2"), "case counts in a query");
        let other = |methods: &str| {
            Keys::default().with("cookies", serde_json::json!({"c": "1"})).with("methods", serde_json::json!([methods]))
        };
        assert!(route.conditions(&other("GET")));
        let before = route.clone();
        assert!(!route.conditions(&other("POST").with("query", serde_json::json!({"b": "1"}))));
        assert_eq!(route, before);
        let expect = serde_json::json!([{"X-A": "b"}, {"a": "1", "A": "2"}, {"c": "1"}, ["GET"]]);
        let keys = ["headers", "query", "cookies", "methods"].map(|key| route.get(key).cloned());
        assert_eq!(serde_json::json!(keys), expect);
    }

    #[test]
    fn names_of_clusters() {
        let mut draft = Draft::default();
        let keys = |address: &str| Keys::default().with("endpoints", serde_json::json!([address]));
        assert_eq!(draft.cluster("a b/c", keys("10.0.0.1:80")), "a-b-c");
        assert_eq!(draft.cluster("a b/c", keys("10.0.0.1:80")), "a-b-c");
        assert_eq!(draft.cluster("a b/c", keys("10.0.0.2:80")), "a-b-c-2");
        assert_eq!(draft.cluster("//", keys("10.0.0.2:80")), "cluster");
    }
}
