//! Turns YAML text into a tree of nodes with their places, bounded in size, depth and nodes.
//!
//! This module knows YAML but not the meaning of the file: scalars stay text until a reader asks for a duration or an address. It builds
//! the tree from the parser's events, because the available loaders stop at the first duplicate key and copy the target of every alias.

use std::cell::Cell;
use std::collections::HashMap;
use std::rc::Rc;

use saphyr_parser::{Event, Marker, Parser, ScalarStyle, ScanError, Tag};

use crate::diagnostic::{Location, Report, Wrong};

/// Bytes of a file. The largest that we know of (generated, 10,000 routes) is a tenth of this.
pub(crate) const FILE_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Characters from one value to the next, and of a whole `[...]` or `{...}` that might still turn out to be a key: the parser holds all of
/// that, at a hundred times its size, before it gives us anything. Without this limit, reloading a file of 16 MiB in brackets, such as
/// JSON, would take three gigabytes.
const LOOKAHEAD_CHARS_MAX: usize = 1 << 20;

/// How deep values may be nested. The deepest meaningful value is at 9.
pub(crate) const DEPTH_MAX: u32 = 64;

/// Values of a file. A value counts once for every way in which aliases lead to it, because a reader spends its time on each.
pub(crate) const NODES_MAX: u32 = 1_000_000;

/// A value and the place where it begins. An alias shares the node of its anchor, and so its place.
#[derive(Debug)]
pub struct Node {
    /// Where it begins.
    pub location: Location,
    /// What it is.
    pub value: Value,
    /// 1 for a scalar; one more than its highest child for others. `height <= DEPTH_MAX`.
    height: u32,
    /// The node itself and all nodes below it. `nodes <= NODES_MAX`.
    nodes: u32,
}

/// How large a text may be.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Its bytes.
    pub bytes: usize,
    /// Its values, counting those that aliases repeat.
    pub nodes: u32,
}

impl Limits {
    /// Of a file of Steelyard.
    const FILE: Self = Self { bytes: FILE_BYTES_MAX, nodes: NODES_MAX };
}

/// The content of a node.
#[derive(Debug)]
pub enum Value {
    /// Nothing, `~` or `null`.
    Null,
    /// Text as written. `plain` means without quotes, so that `true` and `80` may mean more than text.
    Scalar {
        /// Without quotes.
        text: String,
        /// Whether it had none.
        plain: bool,
    },
    /// Values in their order.
    List(Vec<Rc<Node>>),
    /// Keys in the order of the file. The same key may occur twice.
    Map(Vec<(Rc<Node>, Rc<Node>)>),
}

impl Value {
    /// For messages: "not a list".
    pub(crate) fn noun(&self) -> &'static str {
        match self {
            Self::Null => "nothing",
            Self::Scalar { .. } => "text",
            Self::List(_) => "a list",
            Self::Map(_) => "a mapping",
        }
    }
}

impl Node {
    /// The node of a value of JSON, for readers. All places are the beginning. The caller bounds how deep the value is nested.
    pub(crate) fn of_json(value: &serde_json::Value) -> Rc<Self> {
        let scalar = |text: String, plain: bool| Value::Scalar { text, plain };
        let value = match value {
            serde_json::Value::Null => Value::Null,
            serde_json::Value::Bool(value) => scalar(value.to_string(), true),
            serde_json::Value::Number(value) => scalar(value.to_string(), true),
            serde_json::Value::String(text) => scalar(text.clone(), false),
            serde_json::Value::Array(items) => Value::List(items.iter().map(Self::of_json).collect()),
            serde_json::Value::Object(entries) => {
                let key = |key: &str| Self::whole(scalar(key.to_owned(), false));
                Value::Map(entries.iter().map(|(name, value)| (key(name), Self::of_json(value))).collect())
            }
        };
        Self::whole(value)
    }

    fn whole(value: Value) -> Rc<Self> {
        let inner: Vec<&Rc<Self>> = match &value {
            Value::Null | Value::Scalar { .. } => Vec::new(),
            Value::List(items) => items.iter().collect(),
            Value::Map(pairs) => pairs.iter().flat_map(|(key, value)| [key, value]).collect(),
        };
        let height = 1 + inner.iter().map(|node| node.height).max().unwrap_or(0);
        let nodes = inner.iter().fold(1, |nodes: u32, node| nodes.saturating_add(node.nodes));
        Rc::new(Self { location: Location::START, value, height, nodes })
    }
}

/// Loads the one document of a file. Returns `None` if there is none or it cannot be read; the report says why.
pub(crate) fn load(text: &str, report: &mut Report) -> Option<Rc<Node>> {
    load_with(text, "it needs `listeners` and `clusters`", report)
}

/// As [`load`]. `needs` says what an empty file should have.
pub(crate) fn load_with(text: &str, needs: &str, report: &mut Report) -> Option<Rc<Node>> {
    let mut documents = 0;
    let read = read(text, Limits::FILE, |seen| {
        match seen {
            Seen::Document(location) => {
                documents += 1;
                if documents > 1 {
                    let wrong = Wrong::new("a second document begins here");
                    return Err((location, wrong.hint("put only one document into a file")));
                }
            }
            Seen::Tag(tag, location) => refuse_own_tag(tag, location, report),
        }
        Ok(())
    });
    match read.map(|mut documents| documents.pop()) {
        Ok(Some(root)) if !matches!(root.value, Value::Null) => Some(root),
        Ok(_) => {
            report.add(Location::START, Wrong::new("the file is empty").hint(needs));
            None
        }
        Err((location, wrong)) => {
            report.add(location, wrong);
            None
        }
    }
}

/// The documents of a text that is not a file of Steelyard. Tags mean nothing in it.
///
/// # Errors
/// Its first fault: the line, and what is wrong.
pub fn documents(text: &str, limits: Limits) -> Result<Vec<Rc<Node>>, (usize, String)> {
    read(text, limits, |_| Ok(())).map_err(|(location, wrong)| (location.line, wrong.message))
}

/// What the tree of a text does not have.
enum Seen<'a> {
    /// A document begins.
    Document(Location),
    /// A value has a tag.
    Tag(&'a Tag, Location),
}

fn read(
    text: &str,
    limits: Limits,
    mut see: impl FnMut(Seen<'_>) -> Result<(), (Location, Wrong)>,
) -> Result<Vec<Rc<Node>>, (Location, Wrong)> {
    if text.len() > limits.bytes {
        let message = format!("the file has {} bytes; the limit is {}", text.len(), limits.bytes);
        return Err((Location::START, Wrong::new(message)));
    }
    // The parser takes a NUL for the end of the file and would ignore what comes after it.
    if let Some((line, column)) =
        text.lines().zip(1..).find_map(|(line, number)| Some((number, line.chars().position(|c| c == '\0')?)))
    {
        return Err((Location { line, column: column + 1 }, Wrong::new("the file contains a NUL character")));
    }
    let mut tree = Tree { nodes_max: limits.nodes, ..Tree::default() };
    let mut last = Location::START;
    let ahead = Cell::new(0);
    // Past the limit the parser sees the end of the file and cannot go on: the count stays where it is.
    let chars = text.chars().take_while(|_| {
        ahead.set(ahead.get() + 1);
        ahead.get() <= LOOKAHEAD_CHARS_MAX
    });
    for event in Parser::new_from_iter(chars.fuse()) {
        if ahead.get() > LOOKAHEAD_CHARS_MAX {
            let message = format!("the value that begins here is larger than {LOOKAHEAD_CHARS_MAX} characters");
            return Err((
                last,
                Wrong::new(message).hint("write large lists and mappings with one entry per line, without brackets"),
            ));
        }
        ahead.set(0);
        let (event, span) = event.map_err(|error| syntax(&error, text))?;
        last = self::location(span.start);
        let location = location(span.start);
        let tagged = match &event {
            Event::Scalar(.., tag) | Event::SequenceStart(_, tag) | Event::MappingStart(_, tag) => tag.as_deref(),
            _ => None,
        };
        let is_tagged = tagged.is_some();
        if let Some(tag) = tagged {
            see(Seen::Tag(tag, location))?;
        }
        match event {
            Event::DocumentStart(_) => see(Seen::Document(location))?,
            Event::Scalar(text, style, anchor, _) => {
                tree.scalar(text.into_owned(), style == ScalarStyle::Plain, is_tagged, anchor, location)?;
            }
            Event::SequenceStart(anchor, _) => {
                tree.open(Open { location, anchor, map: false, children: Vec::new() })?;
            }
            Event::MappingStart(anchor, _) => {
                tree.open(Open { location, anchor, map: true, children: Vec::new() })?;
            }
            Event::SequenceEnd | Event::MappingEnd => tree.close()?,
            Event::Alias(anchor) => tree.alias(anchor, location)?,
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => {}
        }
    }
    Ok(tree.documents)
}

/// The parser counts lines from 1 and columns from 0.
fn location(marker: Marker) -> Location {
    Location { line: marker.line().max(1), column: marker.col() + 1 }
}

/// The parser's message, and what to do about the most frequent mistakes.
fn syntax(error: &ScanError, text: &str) -> (Location, Wrong) {
    let location = location(*error.marker());
    let info = error.info();
    let line = text.lines().nth(location.line - 1).unwrap_or_default();
    let hint = if info.contains("tabs") {
        Some("indent with spaces")
    } else if info.contains("block sequence entries") {
        Some("begin the list on a line of its own; write a single `-` as \"-\"")
    } else if line.contains("]:") {
        Some("put an address with brackets in quotes: \"[::1]:80\"")
    } else {
        None
    };
    let wrong = Wrong::new(format!("this is not YAML: {info}"));
    (location, hint.into_iter().fold(wrong, Wrong::hint))
}

/// `!!str` and the other core tags say what the reader finds out anyway. Any other tag asks for something that this file does not have.
fn refuse_own_tag(tag: &Tag, location: Location, report: &mut Report) {
    if !tag.is_yaml_core_schema() {
        report
            .add(location, Wrong::new("tags (`!…`) are not supported").hint("put text that begins with `!` in quotes"));
    }
}

/// A list or mapping whose end has not been read yet.
struct Open {
    location: Location,
    /// 0 means none.
    anchor: usize,
    map: bool,
    /// For a mapping: key, value, key, value.
    children: Vec<Rc<Node>>,
}

/// The part of the tree that is built so far, and its size.
#[derive(Default)]
struct Tree {
    /// Those that are complete.
    documents: Vec<Rc<Node>>,
    /// From the outermost to the innermost. `open.len() < DEPTH_MAX`.
    open: Vec<Open>,
    anchors: HashMap<usize, Rc<Node>>,
    /// The nodes of all documents. `nodes <= nodes_max`.
    nodes: u32,
    nodes_max: u32,
}

impl Tree {
    fn scalar(
        &mut self,
        text: String,
        plain: bool,
        tagged: bool,
        anchor: usize,
        location: Location,
    ) -> Result<(), (Location, Wrong)> {
        let null = plain && !tagged && matches!(text.as_str(), "" | "~" | "null" | "Null" | "NULL");
        let value = if null { Value::Null } else { Value::Scalar { text, plain: plain && !tagged } };
        self.count(1, location)?;
        self.add(Node { location, value, height: 1, nodes: 1 }, anchor)
    }

    fn open(&mut self, open: Open) -> Result<(), (Location, Wrong)> {
        self.count(1, open.location)?;
        if self.open.len() as u32 + 1 >= DEPTH_MAX {
            return Err((open.location, too_deep()));
        }
        self.open.push(open);
        Ok(())
    }

    fn close(&mut self) -> Result<(), (Location, Wrong)> {
        let Some(Open { location, anchor, map, children }) = self.open.pop() else { return Ok(()) };
        let height = 1 + children.iter().map(|child| child.height).max().unwrap_or(0);
        let nodes = children.iter().fold(1u32, |sum, child| sum.saturating_add(child.nodes));
        let value = if map {
            let mut pairs = Vec::with_capacity(children.len() / 2);
            let mut children = children.into_iter();
            while let (Some(key), Some(value)) = (children.next(), children.next()) {
                pairs.push((key, value));
            }
            Value::Map(pairs)
        } else {
            Value::List(children)
        };
        self.add(Node { location, value, height, nodes }, anchor)
    }

    fn alias(&mut self, anchor: usize, location: Location) -> Result<(), (Location, Wrong)> {
        let Some(node) = self.anchors.get(&anchor).cloned() else {
            return Err((location, Wrong::new("an alias is inside the value that it names")));
        };
        // The depth of this place plus the height below the anchor: only the sum says how deep a reader would go.
        if self.open.len() as u32 + node.height > DEPTH_MAX {
            return Err((location, too_deep()));
        }
        self.count(node.nodes, location)?;
        self.hang(node);
        Ok(())
    }

    fn add(&mut self, node: Node, anchor: usize) -> Result<(), (Location, Wrong)> {
        let node = Rc::new(node);
        if anchor > 0 {
            self.anchors.insert(anchor, Rc::clone(&node));
        }
        self.hang(node);
        Ok(())
    }

    fn hang(&mut self, node: Rc<Node>) {
        match self.open.last_mut() {
            Some(open) => open.children.push(node),
            None => self.documents.push(node),
        }
    }

    fn count(&mut self, nodes: u32, location: Location) -> Result<(), (Location, Wrong)> {
        self.nodes = self.nodes.saturating_add(nodes);
        if self.nodes > self.nodes_max {
            let message =
                format!("the file has more than {} values, counting those that aliases repeat", self.nodes_max);
            return Err((location, Wrong::new(message)));
        }
        Ok(())
    }
}

fn too_deep() -> Wrong {
    Wrong::new(format!("values are nested more than {DEPTH_MAX} deep"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tree in one line, or what is wrong with it.
    fn show(text: &str) -> String {
        let mut report = Report::default();
        match load(text, &mut report) {
            Some(node) if report.is_empty() => shown(&node),
            _ => report.into_errors("f", "").to_string(),
        }
    }

    fn shown(node: &Node) -> String {
        let Location { line, column } = node.location;
        match &node.value {
            Value::Null => format!("null@{line}:{column}"),
            Value::Scalar { text, plain } => format!("{}{text}@{line}:{column}", if *plain { "" } else { "'" }),
            Value::List(items) => format!("[{}]", items.iter().map(|n| shown(n)).collect::<Vec<_>>().join(" ")),
            Value::Map(pairs) => {
                let pairs = pairs.iter().map(|(key, value)| format!("{}={}", shown(key), shown(value)));
                format!("{{{}}}", pairs.collect::<Vec<_>>().join(" "))
            }
        }
    }

    #[test]
    fn places_quotes_and_nulls() {
        let check = |text, expect: &str| assert_eq!(show(text), expect, "{text:?}");
        check("a: 1\nb:\n  - x\n  - 'y'\n", "{a@1:1=1@1:4 b@2:1=[x@3:5 'y@4:5]}");
        check("a: ~\nb: \nc: \"\"\nd: '~'", "{a@1:1=null@1:4 b@2:1=null@2:2 c@3:1='@3:4 d@4:1='~@4:4}");
        check("a: 1\na: 2", "{a@1:1=1@1:4 a@2:1=2@2:4}");
        check("a: !!str 1\r\nb: 2", "{a@1:1='1@1:4 b@2:1=2@2:4}");
        check("ü: ü\n", "{ü@1:1=ü@1:4}");
    }

    #[test]
    fn an_alias_is_the_node_of_its_anchor() {
        assert_eq!(show("a: &x [1]\nb: *x"), "{a@1:1=[1@1:8] b@2:1=[1@1:8]}");
    }

    #[test]
    fn what_is_not_one_document_is_refused() {
        let check = |text, expect: &str| assert_eq!(show(text), expect, "{text:?}");
        let empty = "f:1:1: the file is empty; it needs `listeners` and `clusters`";
        check("", empty);
        check("# only a comment\n", empty);
        check("---\n", empty);
        check("a: 1\n---\nb: 2\n", "f:2:1: a second document begins here; put only one document into a file");
        check("a: !env HOME", "f:1:4: tags (`!…`) are not supported; put text that begins with `!` in quotes");
        check("a: 1\nbc\0: 2", "f:2:3: the file contains a NUL character");
        check("a: &x [*x]", "f:1:8: an alias is inside the value that it names");
    }

    #[test]
    fn depth_is_bounded_with_and_without_aliases() {
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(show(&nested(63)).starts_with('['));
        let deep = "values are nested more than 64 deep";
        assert!(show(&nested(64)).contains(deep));
        assert!(show(&"- ".repeat(100_000)).contains(deep));
        // Each level is shallow, but names the one before it.
        let chain: String = (1..200).map(|n| format!("k{n}: &a{n} [*a{}]\n", n - 1)).collect();
        assert!(show(&format!("k0: &a0 x\n{chain}")).contains(deep));
    }

    #[test]
    fn aliases_that_multiply_are_refused_before_they_cost_anything() {
        let mut bomb = String::from("k0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
        for n in 1..20 {
            let aliases = vec![format!("*a{}", n - 1); 10].join(", ");
            bomb.push_str(&format!("k{n}: &a{n} [{aliases}]\n"));
        }
        assert!(show(&bomb).contains("the file has more than 1000000 values, counting those that aliases repeat"));
    }

    #[test]
    fn what_the_parser_would_hold_is_bounded() {
        let check = |text: &str, expect: &str| assert_eq!(show(text).get(..expect.len()), Some(expect));
        let entry = "b".repeat(1000);
        let list = |entries: usize| format!("[{}]", format!("{entry}, ").repeat(entries));
        check(&list(1000), "[bbb");
        check(
            &list(1100),
            "f:1:1: the value that begins here is larger than 1048576 characters; \
             write large lists and mappings with one entry per line, without brackets",
        );
        // Behind a key it cannot be a key itself: the parser gives it to us piece by piece.
        check(&format!("a: {}", list(1100)), "{a@1:1=[bbb");
        check(&format!("- {entry}\n").repeat(1100), "[bbb");
    }

    #[test]
    fn a_file_too_large_is_not_read() {
        assert!(show(&"#".repeat(FILE_BYTES_MAX + 1)).contains("the limit is 16777216"));
    }
}
