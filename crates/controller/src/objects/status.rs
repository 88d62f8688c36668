//! The status fields that we write.

use serde::{Deserialize, Serialize};

use super::{ParentRef, Text};

/// The API server refuses a status with a message of more than 32,768 letters, and our messages quote text from rules.
const MESSAGE_BYTES_MAX: usize = 4096;

/// The beginning of a message.
fn cut(message: &str) -> &str {
    let ends = message.char_indices().map(|(at, letter)| at + letter.len_utf8());
    let end = ends.take_while(|end| *end <= MESSAGE_BYTES_MAX).last().unwrap_or(0);
    message.get(..end).unwrap_or_default()
}

/// A `metav1.Condition`: whether something holds, and why.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Condition {
    /// The type: `Accepted`, `ResolvedRefs`, ...
    #[serde(rename = "type")]
    pub kind: Text,
    /// `True`, `False` or `Unknown`.
    pub status: Text,
    /// The word for machines.
    pub reason: Text,
    /// The text for people.
    pub message: Text,
    /// The generation of the object that the condition is about.
    pub observed_generation: i64,
    /// When `status` changed last, in RFC 3339. Empty until it is written.
    pub last_transition_time: Text,
}

impl Condition {
    /// A condition that holds.
    pub fn holds(kind: &'static str, reason: &'static str, message: impl Into<Text>) -> Self {
        Self::new(kind, "True", reason, message)
    }

    /// A condition that does not hold.
    pub fn fails(kind: &'static str, reason: &'static str, message: impl Into<Text>) -> Self {
        Self::new(kind, "False", reason, message)
    }

    fn new(kind: &'static str, status: &'static str, reason: &'static str, message: impl Into<Text>) -> Self {
        let message: Text = message.into();
        Self {
            kind: kind.into(),
            status: status.into(),
            reason: reason.into(),
            message: if message.len() > MESSAGE_BYTES_MAX { cut(&message).into() } else { message },
            observed_generation: 0,
            last_transition_time: Text::default(),
        }
    }

    /// Whether it holds.
    pub fn is_true(&self) -> bool {
        self.status == "True"
    }

    /// Whether both are equal except for the time.
    pub fn says_the_same(&self, other: &Self) -> bool {
        self.kind == other.kind
            && self.status == other.status
            && self.reason == other.reason
            && self.message == other.message
            && self.observed_generation == other.observed_generation
    }
}

/// The status of a route.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct RouteStatus {
    /// An entry for each parent and controller.
    pub parents: Box<[ParentStatus]>,
}

/// The conditions with respect to one parent, from one controller.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ParentStatus {
    /// The parent, as the route names it.
    pub parent_ref: ParentRef,
    /// The controller that wrote the entry.
    pub controller_name: Text,
    /// The conditions.
    pub conditions: Box<[Condition]>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_have_an_end() {
        let check = |message: &str, expect: usize| {
            let condition = Condition::fails("Accepted", "UnsupportedValue", message);
            assert_eq!(condition.message.len(), expect);
            assert!(message.starts_with(&*condition.message));
        };
        check("short", 5);
        check(&"a".repeat(MESSAGE_BYTES_MAX), MESSAGE_BYTES_MAX);
        check(&"a".repeat(40_000), MESSAGE_BYTES_MAX);
        // A character is not cut in two.
        check(&"\u{20ac}".repeat(20_000), MESSAGE_BYTES_MAX - MESSAGE_BYTES_MAX % 3);
    }
}
