//! YAML and JSON as a tree whose values know their lines, bounded in size, depth and values.

use config::yaml::{self, Limits};

/// A text.
const LIMITS: Limits = Limits { bytes: 4 << 20, nodes: 500_000 };

/// A value, and the line where it begins.
#[derive(Clone, Debug, Default)]
pub(super) struct Node {
    pub(super) line: usize,
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

static NOTHING: Node = Node { line: 0, value: Value::Null };

impl Node {
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
    Ok(yaml::documents(text, LIMITS)?.iter().map(|node| node_of(node)).collect())
}

/// With the values of aliases in their places: the limits count these.
fn node_of(node: &yaml::Node) -> Node {
    let value = match &node.value {
        yaml::Value::Null => Value::Null,
        yaml::Value::Scalar { text, .. } => Value::Text(text.clone()),
        yaml::Value::List(items) => Value::List(items.iter().map(|item| node_of(item)).collect()),
        yaml::Value::Map(pairs) => {
            Value::Map(pairs.iter().map(|(key, value)| (node_of(key), node_of(value))).collect())
        }
    };
    Node { line: node.location.line, value }
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
        // The depth of aliases is that of what they stand for.
        let chain: String = (1..100).map(|number| format!("a{number}: &a{number} [*a{}]\n", number - 1)).collect();
        check(&format!("a0: &a0 []\n{chain}"), "nested more than 64 deep");
        check("a: b\0\nc: d\n", "a NUL character");
    }
}
