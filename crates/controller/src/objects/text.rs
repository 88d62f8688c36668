//! Texts that many objects share, kept once.
//!
//! Five thousand routes name the same Gateway, namespace and kind, and their statuses repeat the same dozen words. Each such text is kept
//! once per thread, and everything else points to it.

use std::cell::RefCell;
use std::collections::HashSet;
use std::fmt;
use std::ops::Deref;

use arcstr::ArcStr;
use serde::de::{Deserialize, Deserializer, Error, Visitor};
use serde::{Serialize, Serializer};

/// A shared text. Equal texts of one thread share memory. One pointer, where an `Arc<str>` is two: a route, its conditions and its names in
/// the maps have some forty of them.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Text(ArcStr);

/// The texts of a thread.
#[derive(Default)]
struct Pool {
    known: HashSet<ArcStr>,
    /// The number of texts at which unused ones are removed.
    sweep_at: usize,
}

/// Below this number, removing unused texts is not worth the time.
const SWEEP_AT_MIN: usize = 1024;

thread_local! {
    static POOL: RefCell<Pool> = RefCell::default();
}

impl Pool {
    fn get(&mut self, text: &str) -> ArcStr {
        if let Some(known) = self.known.get(text) {
            return known.clone();
        }
        if self.known.len() >= self.sweep_at.max(SWEEP_AT_MIN) {
            // Only the empty text is not counted.
            self.known.retain(|text| ArcStr::strong_count(text).is_none_or(|users| users > 1));
            self.sweep_at = self.known.len() * 2;
        }
        let new = ArcStr::from(text);
        self.known.insert(new.clone());
        new
    }
}

impl From<&str> for Text {
    fn from(text: &str) -> Self {
        Self(POOL.with_borrow_mut(|pool| pool.get(text)))
    }
}

impl From<String> for Text {
    fn from(text: String) -> Self {
        text.as_str().into()
    }
}

impl Default for Text {
    fn default() -> Self {
        "".into()
    }
}

impl Deref for Text {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl PartialEq<str> for Text {
    fn eq(&self, other: &str) -> bool {
        **self == *other
    }
}

impl PartialEq<&str> for Text {
    fn eq(&self, other: &&str) -> bool {
        **self == **other
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Serialize for Text {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self)
    }
}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read;

        impl Visitor<'_> for Read {
            type Value = Text;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Text, E> {
                Ok(text.into())
            }
        }

        deserializer.deserialize_str(Read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_texts_are_the_same_and_go_with_their_last_user() {
        let (one, other): (Text, Text) = ("shop".into(), serde_json::from_str("\"shop\"").unwrap());
        assert!(ArcStr::ptr_eq(&one.0, &other.0));
        assert_eq!(serde_json::to_string(&one).unwrap(), "\"shop\"");
        for number in 0..10 * SWEEP_AT_MIN {
            drop(Text::from(number.to_string()));
        }
        assert!(POOL.with_borrow(|pool| pool.known.len()) <= 2 * SWEEP_AT_MIN);
        assert!(ArcStr::ptr_eq(&one.0, &Text::from("shop").0), "what is in use stays");
    }
}
