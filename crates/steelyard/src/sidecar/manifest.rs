//! A manifest as text and as the places of its values, so that something can be inserted and every other byte stays.
//!
//! Readers of YAML disagree about plain scalars (`0400` is 256 to Kubernetes, and 400 to YAML 1.2). So nothing is read and written again: what
//! a scalar means stays the matter of whoever reads the manifest.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};

use saphyr_parser::{Event, Parser, ScalarStyle, Tag};
use serde_json::Value as Json;

/// How deep values may be nested. An object of Kubernetes has some twenty levels.
const DEPTH_MAX: usize = 128;

/// Values of an object, each counted once for every alias that leads to it.
const VALUES_MAX: u32 = 1_000_000;

/// Characters from one value to the next, and of a whole `[...]` or `{...}` that might still turn out to be a key: the parser holds all of
/// that, at a hundred times its size, before it gives us anything.
const LOOKAHEAD_CHARS_MAX: usize = 1 << 20;

/// A value, and its place in the text.
#[derive(Debug)]
pub(super) struct Node {
    /// The byte where it begins, with its anchor and its tag. A value that is not written has some place near its key.
    pub(super) start: usize,
    /// The byte after it.
    pub(super) end: usize,
    /// 0 if it has none.
    anchor: usize,
    tag: Option<String>,
    pub(super) value: Value,
}

#[derive(Debug)]
pub(super) enum Value {
    Scalar {
        text: String,
        /// Without quotes.
        is_plain: bool,
    },
    List {
        items: Vec<Node>,
        /// In brackets.
        is_flow: bool,
    },
    Map {
        pairs: Vec<(Node, Node)>,
        /// In braces.
        is_flow: bool,
    },
    /// The value with this anchor.
    Alias(usize),
}

impl Node {
    /// Whether it stands for nothing: `key:`, `~` or `null`.
    pub(super) fn is_null(&self) -> bool {
        matches!(&self.value, Value::Scalar { text, is_plain: true } if matches!(text.as_str(), "" | "~" | "null" | "Null" | "NULL"))
    }

    pub(super) fn is_bare(&self) -> bool {
        self.anchor == 0 && self.tag.is_none()
    }

    fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Scalar { text, .. } => Some(text),
            _ => None,
        }
    }

    /// Whether it has the same content as another one, except that `differs` decides about some maps.
    pub(super) fn is_same(&self, other: &Self, differs: &impl Fn(&Self, &Self) -> Option<bool>) -> bool {
        if self.anchor != other.anchor || self.tag != other.tag {
            return false;
        }
        match (&self.value, &other.value) {
            (Value::Scalar { text, is_plain }, Value::Scalar { text: other, is_plain: other_is }) => {
                text == other && is_plain == other_is
            }
            (Value::Alias(id), Value::Alias(other)) => id == other,
            (Value::List { items, .. }, Value::List { items: others, .. }) => are_same(items, others, differs),
            (Value::Map { pairs, .. }, Value::Map { pairs: others, .. }) => {
                differs(self, other).unwrap_or_else(|| are_same_pairs(pairs, others, differs))
            }
            _ => false,
        }
    }

    /// Whether it is what a value of JSON looks like, in whatever style.
    pub(super) fn is_json(&self, json: &Json) -> bool {
        match (&self.value, json) {
            (Value::Scalar { text, is_plain: false }, Json::String(expect)) => text == expect,
            (Value::Scalar { text, is_plain: true }, Json::Bool(_) | Json::Number(_)) => {
                let expect = json.to_string();
                *text == expect
            }
            (Value::List { items, .. }, Json::Array(expect)) => {
                items.len() == expect.len() && items.iter().zip(expect).all(|(item, expect)| item.is_json(expect))
            }
            (Value::Map { pairs, .. }, Json::Object(expect)) => {
                let is_in = |(key, value): &(Self, Self)| {
                    key.text().and_then(|key| expect.get(key)).is_some_and(|expect| value.is_json(expect))
                };
                pairs.len() == expect.len() && pairs.iter().all(is_in)
            }
            _ => false,
        }
    }
}

pub(super) fn are_same(items: &[Node], others: &[Node], differs: &impl Fn(&Node, &Node) -> Option<bool>) -> bool {
    items.len() == others.len() && items.iter().zip(others).all(|(item, other)| item.is_same(other, differs))
}

fn are_same_pairs(
    pairs: &[(Node, Node)],
    others: &[(Node, Node)],
    differs: &impl Fn(&Node, &Node) -> Option<bool>,
) -> bool {
    let is_same = |(pair, other): (&(Node, Node), &(Node, Node))| {
        pair.0.is_same(&other.0, differs) && pair.1.is_same(&other.1, differs)
    };
    pairs.len() == others.len() && pairs.iter().zip(others).all(is_same)
}

/// The documents of a manifest.
///
/// # Errors
/// What is not YAML, with its line, or larger than a limit.
pub(super) fn read(text: &str) -> Result<Vec<Node>, String> {
    if let Some(at) = text.find('\0') {
        // The parser takes it for the end.
        return Err(format!("line {}: there is a NUL character", line(text, at)));
    }
    // The parser counts characters.
    let mut offsets: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
    offsets.push(text.len());
    let at = |index: usize| offsets.get(index).copied().unwrap_or(text.len());
    let ahead = Cell::new(0);
    let chars = text.chars().take_while(|_| {
        ahead.set(ahead.get() + 1);
        ahead.get() <= LOOKAHEAD_CHARS_MAX
    });
    let mut tree = Tree { text, open: Vec::new(), documents: Vec::new() };
    let mut last = 0;
    for event in Parser::new_from_iter(chars.fuse()) {
        if ahead.get() > LOOKAHEAD_CHARS_MAX {
            return Err(format!(
                "line {}: the value that begins here is larger than {LOOKAHEAD_CHARS_MAX} characters; write large lists with one \
                 entry per line, without brackets (kubectl get -o yaml)",
                line(text, last)
            ));
        }
        ahead.set(0);
        let (event, span) = event
            .map_err(|error| format!("line {}: this is not YAML: {}", error.marker().line().max(1), error.info()))?;
        let (start, end) = (at(span.start.index()), at(span.end.index()));
        last = start;
        tree.take(event, start, end)?;
    }
    Ok(tree.documents)
}

/// The number of the line of a byte.
pub(super) fn line(text: &str, at: usize) -> usize {
    1 + text.bytes().take(at).filter(|byte| *byte == b'\n').count()
}

/// What was read so far.
struct Tree<'t> {
    text: &'t str,
    open: Vec<Open>,
    documents: Vec<Node>,
}

/// A list or a map whose end is not read yet.
struct Open {
    start: usize,
    anchor: usize,
    tag: Option<String>,
    is_map: bool,
    children: Vec<Node>,
}

impl Tree<'_> {
    fn take(&mut self, event: Event<'_>, start: usize, end: usize) -> Result<(), String> {
        let name = |tag: Option<std::borrow::Cow<'_, Tag>>| tag.map(|tag| tag.to_string());
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                let value = Value::Scalar { text: text.into_owned(), is_plain: style == ScalarStyle::Plain };
                self.add(Node { start, end, anchor, tag: name(tag), value });
            }
            Event::Alias(id) => self.add(Node { start, end, anchor: 0, tag: None, value: Value::Alias(id) }),
            Event::SequenceStart(anchor, tag) => {
                self.open.push(Open { start, anchor, tag: name(tag), is_map: false, children: Vec::new() });
            }
            Event::MappingStart(anchor, tag) => {
                self.open.push(Open { start, anchor, tag: name(tag), is_map: true, children: Vec::new() });
            }
            Event::SequenceEnd | Event::MappingEnd => self.close(start, end),
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentStart(_) | Event::DocumentEnd => {}
        }
        if self.open.len() > DEPTH_MAX {
            return Err(format!("line {}: values are nested deeper than {DEPTH_MAX} levels", line(self.text, start)));
        }
        Ok(())
    }

    fn close(&mut self, start: usize, end: usize) {
        let Some(open) = self.open.pop() else { return };
        // Only a closing bracket has a length, which includes the spaces after it. The other ends are found where the next value begins.
        let is_flow = end > start && matches!(self.text.as_bytes().get(start), Some(b']' | b'}'));
        let end = match is_flow {
            true => start + 1,
            false => open.children.last().map_or(open.start, |child| child.end),
        };
        let value = if open.is_map {
            let mut children = open.children.into_iter();
            let mut pairs = Vec::new();
            while let (Some(key), Some(value)) = (children.next(), children.next()) {
                pairs.push((key, value));
            }
            Value::Map { pairs, is_flow }
        } else {
            Value::List { items: open.children, is_flow }
        };
        self.add(Node { start: open.start, end, anchor: open.anchor, tag: open.tag, value });
    }

    fn add(&mut self, node: Node) {
        match self.open.last_mut() {
            Some(open) => open.children.push(node),
            None => self.documents.push(node),
        }
    }
}

/// A value as a reader finds it, through aliases and merge keys.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place<'m> {
    pub(super) node: &'m Node,
    /// Other values have it, too: what changes it here changes them.
    pub(super) is_shared: bool,
}

/// The anchors of a manifest, and which of them have aliases.
pub(super) struct Anchors<'m> {
    nodes: HashMap<usize, &'m Node>,
    used: HashSet<usize>,
}

impl<'m> Anchors<'m> {
    pub(super) fn new(documents: &'m [Node]) -> Self {
        let mut anchors = Self { nodes: HashMap::new(), used: HashSet::new() };
        documents.iter().for_each(|document| anchors.collect(document));
        anchors
    }

    fn collect(&mut self, node: &'m Node) {
        if node.anchor != 0 {
            self.nodes.insert(node.anchor, node);
        }
        match &node.value {
            Value::Scalar { .. } => {}
            Value::Alias(id) => {
                self.used.insert(*id);
            }
            Value::List { items, .. } => items.iter().for_each(|item| self.collect(item)),
            Value::Map { pairs, .. } => pairs.iter().for_each(|(key, value)| {
                self.collect(key);
                self.collect(value);
            }),
        }
    }

    /// The value that a node stands for.
    pub(super) fn place(&self, node: &'m Node) -> Place<'m> {
        match node.value {
            Value::Alias(id) => Place { node: self.nodes.get(&id).copied().unwrap_or(node), is_shared: true },
            _ => Place { node, is_shared: node.anchor != 0 && self.used.contains(&node.anchor) },
        }
    }

    /// The value of a key of a map.
    ///
    /// # Errors
    /// The key is there twice, so that readers disagree about it.
    pub(super) fn get(&self, of: Place<'m>, key: &str) -> Result<Option<Place<'m>>, String> {
        self.find(of, key, 0)
    }

    fn find(&self, of: Place<'m>, key: &str, depth: usize) -> Result<Option<Place<'m>>, String> {
        let Value::Map { pairs, .. } = &of.node.value else { return Ok(None) };
        let mut found = pairs.iter().filter(|(name, _)| name.text() == Some(key));
        if let Some((_, value)) = found.next() {
            let place = self.place(value);
            return match found.next() {
                None => Ok(Some(Place { is_shared: place.is_shared || of.is_shared, ..place })),
                Some(_) => Err(format!("`{key}` is there twice")),
            };
        }
        if depth == DEPTH_MAX {
            return Ok(None);
        }
        // Merge keys, of which the first counts: `<<: *a` and `<<: [*a, *b]`.
        for merged in pairs.iter().filter(|(name, _)| is_merge(name)).map(|(_, value)| self.place(value).node) {
            let several = match &merged.value {
                Value::List { items, .. } => &items[..],
                _ => std::slice::from_ref(merged),
            };
            for one in several {
                if let Some(place) = self.find(Place { is_shared: true, ..self.place(one) }, key, depth + 1)? {
                    return Ok(Some(Place { is_shared: true, ..place }));
                }
            }
        }
        Ok(None)
    }

    /// A value as Kubernetes reads it, to judge it. What is written stays as it is.
    ///
    /// # Errors
    /// It is larger than a limit, which aliases can make it.
    pub(super) fn json(&self, of: Place<'m>) -> Result<Json, String> {
        let mut left = VALUES_MAX;
        self.read(of.node, 0, &mut left)
    }

    fn read(&self, node: &'m Node, depth: usize, left: &mut u32) -> Result<Json, String> {
        *left = left.saturating_sub(1);
        if depth > DEPTH_MAX || *left == 0 {
            return Err("its aliases make it too large".to_owned());
        }
        Ok(match &node.value {
            Value::Scalar { text, is_plain } => match *is_plain && node.tag.is_none() {
                true => plain(text),
                false => Json::String(text.clone()),
            },
            Value::Alias(_) => match self.place(node).node {
                same if std::ptr::eq(same, node) => Json::Null,
                other => self.read(other, depth + 1, left)?,
            },
            Value::List { items, .. } => {
                Json::Array(items.iter().map(|item| self.read(item, depth + 1, left)).collect::<Result<_, _>>()?)
            }
            Value::Map { pairs, .. } => {
                let mut map = serde_json::Map::new();
                for (_, value) in pairs.iter().filter(|(key, _)| is_merge(key)) {
                    let merged = match self.read(value, depth + 1, left)? {
                        Json::Array(several) => several,
                        one => vec![one],
                    };
                    for (key, value) in merged.into_iter().filter_map(|one| one.as_object().cloned()).flatten() {
                        map.entry(key).or_insert(value);
                    }
                }
                for (key, value) in pairs.iter().filter(|(key, _)| !is_merge(key)) {
                    let key = key.text().unwrap_or_default().to_owned();
                    map.insert(key, self.read(value, depth + 1, left)?);
                }
                Json::Object(map)
            }
        })
    }
}

fn is_merge(key: &Node) -> bool {
    matches!(&key.value, Value::Scalar { text, is_plain: true } if text == "<<")
}

/// What Kubernetes reads a plain scalar as (YAML 1.1, as Go's yaml.v2 has it), as far as anything is judged by it.
fn plain(text: &str) -> Json {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Json::Null,
        "true" | "True" | "TRUE" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" | "y" | "Y" => return Json::Bool(true),
        "false" | "False" | "FALSE" | "no" | "No" | "NO" | "off" | "Off" | "OFF" | "n" | "N" => {
            return Json::Bool(false);
        }
        _ => {}
    }
    let digits = text.replace('_', "");
    let number = match digits.as_bytes() {
        [b'0', b'x' | b'X', ..] => i64::from_str_radix(&digits[2..], 16).ok(),
        [b'0', b'o' | b'O', ..] => i64::from_str_radix(&digits[2..], 8).ok(),
        [b'0', b'b' | b'B', ..] => i64::from_str_radix(&digits[2..], 2).ok(),
        [b'0', _, ..] => i64::from_str_radix(&digits[1..], 8).ok(),
        _ => digits.parse().ok(),
    };
    number.map_or_else(|| Json::String(text.to_owned()), Json::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(text: &str) -> Json {
        let documents = read(text).unwrap();
        let anchors = Anchors::new(&documents);
        anchors.json(anchors.place(&documents[0])).unwrap()
    }

    #[test]
    fn what_is_judged_is_read_as_kubernetes_reads_it() {
        let check = |text: &str, expect: Json| assert_eq!(json(&format!("k: {text}"))["k"], expect, "{text}");
        check("0400", 256.into());
        check("0o17", 15.into());
        check("0x1F", 31.into());
        check("1_337", 1337.into());
        check("on", true.into());
        check("'on'", "on".into());
        check("!!str 1337", "1337".into());
        check("~", Json::Null);
        check("2001-12-14", "2001-12-14".into());
    }

    #[test]
    fn aliases_and_merge_keys() {
        let text = "a: &a {x: 1, y: {z: 2}}\nb: {<<: *a, x: 3}\nc: *a\nd: {<<: [{x: 4}, *a]}\n";
        assert_eq!(json(text)["b"], serde_json::json!({"x": 3, "y": {"z": 2}}));
        let documents = read(text).unwrap();
        let anchors = Anchors::new(&documents);
        let check = |path: &[&str], expect: Json, is_shared: bool| {
            let begin = anchors.place(&documents[0]);
            let found = path.iter().fold(begin, |place, key| anchors.get(place, key).unwrap().unwrap());
            assert_eq!((anchors.json(found).unwrap(), found.is_shared), (expect, is_shared), "{path:?}");
        };
        check(&["a", "y", "z"], 2.into(), true);
        check(&["b", "x"], 3.into(), false);
        check(&["b", "y"], serde_json::json!({"z": 2}), true);
        check(&["c", "x"], 1.into(), true);
        check(&["d", "x"], 4.into(), true);
    }

    #[test]
    fn what_is_refused() {
        let check = |text: &str, expect: &str| {
            let why = read(text)
                .and_then(|documents| {
                    let anchors = Anchors::new(&documents);
                    anchors.json(anchors.place(&documents[0])).map(|_| String::new())
                })
                .unwrap_err();
            assert!(why.contains(expect), "{why}");
        };
        check("a: b\n\0", "line 2: there is a NUL character");
        check("a: [\n", "line 2: this is not YAML");
        check(&"- ".repeat(200), "deeper than 128 levels");
        check(
            &format!("a: \"{}\"", "b".repeat(2 * LOOKAHEAD_CHARS_MAX)),
            "line 1: the value that begins here is larger",
        );
        let bomb: String = (1..9).map(|n| format!("a{n}: &a{n} [{}]\n", format!("*a{}, ", n - 1).repeat(10))).collect();
        check(&format!("a0: &a0 x\n{bomb}"), "too large");
        check("a: &a [*a]", "too large");
    }
}
