//! YAML and JSON as a tree whose values know their lines, bounded in size, depth and values.
//!
//! Each value also knows whether the translator has looked at it. What nobody has looked at is left out of the translation, and [`Node::unread`]
//! finds it, so that no key can be dropped without a note.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU8, Ordering};

use config::yaml::{self, Limits};

/// A text.
const LIMITS: Limits = Limits { bytes: 4 << 20, nodes: 500_000 };

/// Bytes of all values, counting those that aliases repeat.
const VALUE_BYTES_MAX: usize = 32 << 20;

/// How far a value has been looked at. It is atomic only because a `static` has one.
#[derive(Debug, Default)]
struct Seen(AtomicU8);

impl Seen {
    const READ: u8 = 1;
    /// A note tells about the value and all that is below it.
    const TOLD: u8 = 2;

    fn set(&self, level: u8) {
        self.0.fetch_max(level, Ordering::Relaxed);
    }

    fn is(&self, level: u8) -> bool {
        self.0.load(Ordering::Relaxed) >= level
    }
}

impl Clone for Seen {
    fn clone(&self) -> Self {
        Self(AtomicU8::new(self.0.load(Ordering::Relaxed)))
    }
}

/// A key that nobody has looked at.
#[derive(Debug, PartialEq)]
pub(super) struct Unread<'n> {
    pub(super) line: usize,
    /// The key that it is below; empty at the top.
    pub(super) parent: &'n str,
    /// For an item of a list, that of the list.
    pub(super) key: &'n str,
}

/// A value, and the line where it begins.
#[derive(Clone, Debug, Default)]
pub(super) struct Node {
    pub(super) line: usize,
    seen: Seen,
    /// A text without quotes, which may mean more than a text.
    is_plain: bool,
    pub(super) value: Value,
}

/// What it is.
#[derive(Clone, Debug, Default)]
pub(super) enum Value {
    #[default]
    Null,
    Text(String),
    List(Vec<Node>),
    Map(Vec<(Node, Node)>),
}

static NOTHING: Node = Node { line: 0, seen: Seen(AtomicU8::new(0)), is_plain: false, value: Value::Null };

impl Node {
    /// The value of a key; of several, the first.
    pub(super) fn get(&self, key: &str) -> Option<&Node> {
        self.seen.set(Seen::READ);
        let (_, value) = self.pairs().iter().find(|(name, _)| name.scalar() == Some(key))?;
        value.seen.set(Seen::READ);
        Some(value)
    }

    /// Marks the value and all that is below it: a note tells about them.
    pub(super) fn told(&self) {
        self.seen.set(Seen::TOLD);
    }

    /// The keys that nobody has looked at and no note tells about, without those below them. A value that is null says nothing.
    pub(super) fn unread(&self) -> Vec<Unread<'_>> {
        let mut found = Vec::new();
        self.find_unread("", "", &mut found);
        found
    }

    fn find_unread<'n>(&'n self, parent: &'n str, key: &'n str, found: &mut Vec<Unread<'n>>) {
        for (name, value) in self.pairs() {
            let inner = name.scalar().unwrap_or_default();
            if value.is_null() || name.seen.is(Seen::TOLD) || value.seen.is(Seen::TOLD) {
                continue;
            }
            match value.seen.is(Seen::READ) {
                true => value.find_unread(key, inner, found),
                false => found.push(Unread { line: name.line, parent: key, key: inner }),
            }
        }
        for item in self.list() {
            if item.is_null() || item.seen.is(Seen::TOLD) {
                continue;
            }
            match item.seen.is(Seen::READ) {
                true => item.find_unread(parent, key, found),
                false => found.push(Unread { line: item.line, parent, key }),
            }
        }
    }

    /// The same; a value that is not there is nothing, so that paths can be followed. Names of protobuf have two forms.
    pub(super) fn at(&self, key: &str) -> &Node {
        self.get(key).or_else(|| self.get(&camel(key))).unwrap_or(&NOTHING)
    }

    /// The value of a key, taken out of it.
    pub(super) fn taken(self, key: &str) -> Option<Node> {
        let Value::Map(entries) = self.value else { return None };
        entries.into_iter().find(|(name, _)| name.text() == Some(key)).map(|(_, value)| value)
    }

    /// The items of a list, taken out of it.
    pub(super) fn into_items(self) -> Vec<Node> {
        match self.value {
            Value::List(items) => items,
            Value::Null | Value::Text(_) | Value::Map(_) => Vec::new(),
        }
    }

    /// Whether it is this name of a key, in one of the two forms of protobuf.
    pub(super) fn is_key(&self, name: &str) -> bool {
        self.scalar().is_some_and(|text| text == name || text == camel(name))
    }

    pub(super) fn entries(&self) -> &[(Node, Node)] {
        self.seen.set(Seen::READ);
        self.pairs()
    }

    fn pairs(&self) -> &[(Node, Node)] {
        match &self.value {
            Value::Map(entries) => entries,
            Value::Null | Value::Text(_) | Value::List(_) => &[],
        }
    }

    pub(super) fn items(&self) -> &[Node] {
        self.seen.set(Seen::READ);
        self.list()
    }

    fn list(&self) -> &[Node] {
        match &self.value {
            Value::List(items) => items,
            Value::Null | Value::Text(_) | Value::Map(_) => &[],
        }
    }

    pub(super) fn text(&self) -> Option<&str> {
        self.seen.set(Seen::READ);
        self.scalar()
    }

    fn scalar(&self) -> Option<&str> {
        match &self.value {
            Value::Text(text) => Some(text),
            Value::Null | Value::List(_) | Value::Map(_) => None,
        }
    }

    pub(super) fn number(&self) -> Option<u64> {
        // JSON of protobuf also writes `1.0`.
        self.text().and_then(|text| text.strip_suffix(".0").unwrap_or(text).parse().ok())
    }

    /// A boolean, in any spelling of YAML 1.1; `None` for all else, and for nothing.
    pub(super) fn boolean(&self) -> Option<bool> {
        self.seen.set(Seen::READ);
        self.truth()
    }

    fn truth(&self) -> Option<bool> {
        match self.scalar().filter(|_| self.is_plain)? {
            "true" | "True" | "TRUE" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" | "y" | "Y" => Some(true),
            "false" | "False" | "FALSE" | "no" | "No" | "NO" | "off" | "Off" | "OFF" | "n" | "N" => Some(false),
            _ => None,
        }
    }

    pub(super) fn is_true(&self) -> bool {
        self.boolean() == Some(true)
    }

    pub(super) fn is_false(&self) -> bool {
        self.boolean() == Some(false)
    }

    /// The first value that can be read in two ways: one of these keys without a boolean, a key that is there twice, or a merge of mappings. A
    /// translator refuses it, because a condition or a policy may depend on it.
    pub(super) fn unclear(&self, booleans: &[&str]) -> Option<(usize, String)> {
        let mut seen = HashSet::new();
        for (key, value) in self.pairs() {
            let Some(name) = key.scalar() else { return Some((key.line, "a key is no text".to_owned())) };
            if name == "<<" {
                return Some((key.line, "`<<` is not understood: write the keys where they belong".to_owned()));
            }
            if !seen.insert(camel(name)) {
                return Some((key.line, format!("{name}: the key is there twice")));
            }
            let is_boolean = booleans.iter().any(|known| *known == name || camel(known) == name);
            if is_boolean && !value.is_null() && value.truth().is_none() {
                return Some((value.line, format!("{name}: this is neither true nor false")));
            }
            if let Some(found) = value.unclear(booleans) {
                return Some(found);
            }
        }
        self.list().iter().find_map(|item| item.unclear(booleans))
    }

    pub(super) fn is_null(&self) -> bool {
        matches!(self.value, Value::Null)
    }
}

/// `max_requests` as `maxRequests`.
pub(super) fn camel(name: &str) -> String {
    let mut out = String::new();
    let mut is_upper = false;
    for letter in name.chars() {
        match letter {
            '_' => is_upper = true,
            letter if is_upper => {
                out.push(letter.to_ascii_uppercase());
                is_upper = false;
            }
            letter => out.push(letter),
        }
    }
    out
}

/// The documents of a text.
///
/// # Errors
/// Line and sentence.
pub(super) fn documents(text: &str) -> Result<Vec<Node>, (usize, String)> {
    let mut bytes_left = VALUE_BYTES_MAX;
    let mut made = Vec::new();
    for document in yaml::documents(text, LIMITS)? {
        let too_long = || (document.location.line, format!("aliases repeat more than {VALUE_BYTES_MAX} bytes"));
        made.push(node_of(&document, &mut bytes_left).ok_or_else(too_long)?);
    }
    Ok(made)
}

/// With the values of aliases in their places: the limits count these. `None` if no bytes are left.
fn node_of(node: &yaml::Node, bytes_left: &mut usize) -> Option<Node> {
    let mut is_plain = false;
    let value = match &node.value {
        yaml::Value::Null => Value::Null,
        yaml::Value::Scalar { text, plain } => {
            *bytes_left = bytes_left.checked_sub(text.len())?;
            is_plain = *plain;
            Value::Text(text.clone())
        }
        yaml::Value::List(items) => {
            Value::List(items.iter().map(|item| node_of(item, bytes_left)).collect::<Option<_>>()?)
        }
        yaml::Value::Map(pairs) => {
            let mut made = Vec::with_capacity(pairs.len());
            for (key, value) in pairs {
                made.push((node_of(key, bytes_left)?, node_of(value, bytes_left)?));
            }
            Value::Map(made)
        }
    };
    Some(Node { line: node.location.line, seen: Seen::default(), is_plain, value })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_values() {
        let documents = documents("a: &x {b: 1}\nc:\n  - *x\n  - max_it: 2\n---\n{\"maxIt\": 3}\n").unwrap();
        let [one, two] = &documents[..] else { panic!("{documents:?}") };
        assert_eq!(one.at("a").at("b").number(), Some(1));
        assert_eq!(one.at("c").items()[0].at("b").text(), Some("1"));
        assert_eq!(one.at("c").items()[1].at("max_it").line, 4);
        assert_eq!(two.at("max_it").number(), Some(3));
        assert!(one.at("no").at("thing").is_null());
    }

    #[test]
    fn what_nobody_has_looked_at() {
        let documents =
            documents("a: {b: 1, c: {d: 2}}\ne: [{f: 1, g: 2}, {f: 3}, x]\nh: ~\ni: {j: 1}\nk: {l: 1}\nm: {n: 1}\n");
        let root = &documents.unwrap()[0];
        assert!(root.unclear(&["b"]).is_some(), "looking for errors is not reading");
        assert_eq!(root.unread().len(), 5, "{:?}", root.unread());
        assert_eq!(root.at("a").at("b").number(), Some(1));
        assert_eq!(root.at("e").items().first().unwrap().at("f").number(), Some(1));
        root.at("i").told();
        assert!(!root.at("k").is_null());
        assert!(!root.at("m").entries().is_empty());
        let unread = root.unread();
        let told: Vec<_> = unread.iter().map(|one| (one.line, one.parent, one.key)).collect();
        let expect = [(1, "a", "c"), (2, "e", "g"), (2, "", "e"), (2, "", "e"), (5, "k", "l"), (6, "m", "n")];
        assert_eq!(told, expect);
    }

    #[test]
    fn what_is_too_much() {
        let check = |text: &str, part: &str| {
            let (_, why) = documents(text).unwrap_err();
            assert!(why.contains(part), "{why}");
        };
        check(&"[".repeat(100), "nested more than 64 deep");
        let bomb = format!("a: &a [{}]\n", "x,".repeat(1000));
        let bomb = bomb + "b: &b [" + &"*a,".repeat(100) + "]\nc: [" + &"*b,".repeat(100) + "]\n";
        check(&bomb, "more than 500000 values");
        check("a: [", "not YAML");
        // The depth of aliases is that of what they stand for.
        let chain: String = (1..100).map(|number| format!("a{number}: &a{number} [*a{}]\n", number - 1)).collect();
        check(&format!("a0: &a0 []\n{chain}"), "nested more than 64 deep");
        check("a: b\0\nc: d\n", "a NUL character");
    }

    #[test]
    fn what_aliases_repeat_is_bounded_in_bytes() {
        let text = format!("a: &a {}\nb: [{}]\n", "x".repeat(1 << 19), "*a,".repeat(100));
        let (_, why) = documents(&text).unwrap_err();
        assert!(why.contains("aliases repeat more than"), "{why}");
    }

    #[test]
    fn booleans() {
        let check = |text: &str, expect: Option<bool>| {
            let documents = documents(&format!("a: {text}\n")).unwrap();
            assert_eq!(documents[0].at("a").boolean(), expect, "{text}");
            let is_clear = documents[0].unclear(&["a"]).is_none();
            assert_eq!(is_clear, expect.is_some() || text == "~", "{text}");
        };
        for text in ["true", "True", "TRUE", "yes", "on", "Y"] {
            check(text, Some(true));
        }
        for text in ["false", "False", "no", "OFF", "n"] {
            check(text, Some(false));
        }
        for text in ["tRUE", "1", "'true'", "[]", "{value: true}", "~"] {
            check(text, None);
        }
    }

    #[test]
    fn what_can_be_read_in_two_ways() {
        let check = |text: &str, part: &str| {
            let (_, why) = documents(text).unwrap()[0].unclear(&["invert_match"]).unwrap();
            assert!(why.contains(part), "{why}");
        };
        check("a: [{b: 1, b: 2}]", "b: the key is there twice");
        check("a: {max_it: 1, maxIt: 2}", "maxIt: the key is there twice");
        check("a: &a {b: 1}\nc: {<<: *a}", "`<<`");
        check("a: [{invertMatch: maybe}]", "invertMatch: this is neither");
    }
}
