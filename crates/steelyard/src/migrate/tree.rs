//! YAML and JSON as a tree whose values know their lines, bounded in size, depth and values.

use std::collections::HashMap;

use saphyr_parser::{Event, Parser};

/// A text. The parser holds a list or mapping in brackets at a hundred times its size.
const BYTES_MAX: usize = 4 << 20;

/// How deep values may be nested, and how many there may be, counting what aliases repeat.
const DEPTH_MAX: usize = 64;
const NODES_MAX: usize = 500_000;

/// A value, and the line where it begins.
#[derive(Clone, Debug, Default)]
pub(super) struct Node {
    pub(super) line: usize,
    pub(super) value: Value,
    /// The value itself and all below it.
    nodes: usize,
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

static NOTHING: Node = Node { line: 0, value: Value::Null, nodes: 0 };

impl Node {
    /// Nothing, at a line.
    pub(super) fn at_line(line: usize) -> Self {
        Self { line, ..Self::default() }
    }

    /// The value of a key; of several, the first.
    pub(super) fn get(&self, key: &str) -> Option<&Node> {
        self.entries().iter().find(|(name, _)| name.text() == Some(key)).map(|(_, value)| value)
    }

    /// The same; a value that is not there is nothing, so that paths can be followed. Names of protobuf have two forms.
    pub(super) fn at(&self, key: &str) -> &Node {
        self.get(key).or_else(|| self.get(&camel(key))).unwrap_or(&NOTHING)
    }

    pub(super) fn entries(&self) -> &[(Node, Node)] {
        match &self.value {
            Value::Map(entries) => entries,
            Value::Null | Value::Text(_) | Value::List(_) => &[],
        }
    }

    pub(super) fn items(&self) -> &[Node] {
        match &self.value {
            Value::List(items) => items,
            Value::Null | Value::Text(_) | Value::Map(_) => &[],
        }
    }

    pub(super) fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Text(text) => Some(text),
            Value::Null | Value::List(_) | Value::Map(_) => None,
        }
    }

    pub(super) fn number(&self) -> Option<u64> {
        // JSON of protobuf also writes `1.0`.
        self.text().and_then(|text| text.strip_suffix(".0").unwrap_or(text).parse().ok())
    }

    pub(super) fn is_true(&self) -> bool {
        self.text() == Some("true")
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
    if text.len() > BYTES_MAX {
        return Err((1, format!("the file has {} bytes; {BYTES_MAX} are the most", text.len())));
    }
    let mut building = Building::default();
    for event in Parser::new_from_str(text) {
        let (event, span) =
            event.map_err(|error| (error.marker().line(), format!("this is not YAML: {}", error.info())))?;
        let line = span.start.line();
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                let is_plain = style == saphyr_parser::ScalarStyle::Plain && tag.is_none();
                let value = match &*text {
                    "" | "~" | "null" if is_plain => Value::Null,
                    _ => Value::Text(text.into_owned()),
                };
                building.add(Node { line, value, nodes: 1 }, anchor)?;
            }
            Event::SequenceStart(anchor, _) => building.open(line, anchor, false)?,
            Event::MappingStart(anchor, _) => building.open(line, anchor, true)?,
            Event::SequenceEnd | Event::MappingEnd => building.close()?,
            Event::Alias(anchor) => {
                let Some(node) = building.anchors.get(&anchor).cloned() else {
                    return Err((line, "an alias is inside the value that it names".to_owned()));
                };
                building.add(node, 0)?;
            }
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentStart(_) | Event::DocumentEnd => {}
        }
    }
    Ok(building.documents)
}

#[derive(Default)]
struct Building {
    documents: Vec<Node>,
    open: Vec<(usize, usize, bool, Vec<Node>)>,
    anchors: HashMap<usize, Node>,
    nodes: usize,
}

impl Building {
    fn open(&mut self, line: usize, anchor: usize, is_map: bool) -> Result<(), (usize, String)> {
        if self.open.len() >= DEPTH_MAX {
            return Err((line, format!("values are nested more than {DEPTH_MAX} deep")));
        }
        self.open.push((line, anchor, is_map, Vec::new()));
        Ok(())
    }

    fn close(&mut self) -> Result<(), (usize, String)> {
        let Some((line, anchor, is_map, children)) = self.open.pop() else { return Ok(()) };
        let nodes = children.iter().map(|child| child.nodes).sum::<usize>() + 1;
        // The children were counted when they were added.
        self.nodes -= nodes - 1;
        let value = if is_map {
            let mut entries = Vec::new();
            let mut children = children.into_iter();
            while let (Some(key), Some(value)) = (children.next(), children.next()) {
                entries.push((key, value));
            }
            Value::Map(entries)
        } else {
            Value::List(children)
        };
        self.add(Node { line, value, nodes }, anchor)
    }

    fn add(&mut self, node: Node, anchor: usize) -> Result<(), (usize, String)> {
        self.nodes += node.nodes;
        if self.nodes > NODES_MAX {
            return Err((node.line, format!("the file has more than {NODES_MAX} values")));
        }
        if anchor > 0 {
            self.anchors.insert(anchor, node.clone());
        }
        match self.open.last_mut() {
            Some((.., children)) => children.push(node),
            None => self.documents.push(node),
        }
        Ok(())
    }
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
    }
}
