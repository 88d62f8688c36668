//! Turns nodes into raw values. It knows what each kind of value accepts and reports every error at its place.

use std::collections::HashMap;

use crate::define::{Form, Kind, Object, Word, keys_of};
use crate::diagnostic::{Location, Report, Wrong, nearest, quoted, ticked};
use crate::raw::{meant_by, owner_of};
use crate::yaml::{Node, Value};

/// What can be read from a node.
pub trait Read: Sized {
    fn kind() -> Kind;

    /// Returns `None` if the report says why. `subject` names the value in messages: "`bind`", "an entry of `hosts`".
    fn read(node: &Node, subject: &str, report: &mut Report) -> Option<Self>;
}

/// What can be read from one piece of text.
pub trait Scalar: Sized {
    fn kind() -> Kind;

    /// The message of the error follows the subject and a colon.
    fn parse(text: &str) -> Result<Self, Wrong>;
}

/// A scalar with a form, as most scalars are.
pub trait Formed: Sized {
    const FORM: Form;

    /// As [`Scalar::parse`].
    fn parse(text: &str) -> Result<Self, Wrong>;
}

/// One of a few words.
pub trait Choice: Clone + 'static {
    /// The word, its value, its meaning.
    const CHOICES: &'static [(&'static str, Self, &'static str)];
}

/// A raw type made by `keys!`.
pub trait Keyed {
    fn object() -> &'static Object;

    /// The keys that were written, right or wrong.
    fn written(&self) -> &[Written];
}

/// A value and where it begins.
#[derive(Clone, Debug)]
pub struct Located<T> {
    pub location: Location,
    pub value: T,
}

/// A key that was written, and where.
#[derive(Clone, Debug)]
pub struct Written {
    pub key: &'static str,
    pub location: Location,
}

impl<T: Formed> Scalar for T {
    fn kind() -> Kind {
        Kind::Text(T::FORM)
    }

    fn parse(text: &str) -> Result<Self, Wrong> {
        <T as Formed>::parse(text)
    }
}

impl<T: Scalar> Read for T {
    fn kind() -> Kind {
        <T as Scalar>::kind()
    }

    fn read(node: &Node, subject: &str, report: &mut Report) -> Option<Self> {
        let Value::Scalar { text, .. } = &node.value else {
            report.add(node.location, unexpected(subject, &<T as Scalar>::kind(), &node.value));
            return None;
        };
        match T::parse(text) {
            Ok(value) => Some(value),
            Err(wrong) => {
                report.add(node.location, Wrong { message: format!("{subject}: {}", wrong.message), ..wrong });
                None
            }
        }
    }
}

/// Builds the message "must be X, not a list".
pub fn unexpected(subject: &str, kind: &Kind, found: &Value) -> Wrong {
    match found {
        Value::Null => Wrong::new(format!("{subject} has no value")).hint(format!("it must be {}", kind.expected())),
        other => Wrong::new(format!("{subject} must be {}, not {}", kind.expected(), other.noun())),
    }
}

/// `true` or `false`, without quotes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flag(pub bool);

impl Read for Flag {
    fn kind() -> Kind {
        Kind::Boolean
    }

    fn read(node: &Node, subject: &str, report: &mut Report) -> Option<Self> {
        match &node.value {
            Value::Scalar { text, plain: true } if text == "true" => return Some(Self(true)),
            Value::Scalar { text, plain: true } if text == "false" => return Some(Self(false)),
            Value::Scalar { text, .. } => {
                let wrong = Wrong::new(format!("{subject} must be true or false, not {}", quoted(text)));
                // YAML 1.1 took these words for booleans and YAML 1.2 (section 10.3) does not. A file must not have two
                // meanings.
                let meant = match text.to_ascii_lowercase().as_str() {
                    "true" | "yes" | "on" => Some("write true, without quotes"),
                    "false" | "no" | "off" => Some("write false, without quotes"),
                    _ => None,
                };
                report.add(node.location, meant.into_iter().fold(wrong, Wrong::hint));
            }
            other => report.add(node.location, unexpected(subject, &Kind::Boolean, other)),
        }
        None
    }
}

/// `true`. Any other value would say the same as leaving the key out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct True;

impl Read for True {
    fn kind() -> Kind {
        Kind::True
    }

    fn read(node: &Node, subject: &str, report: &mut Report) -> Option<Self> {
        match Flag::read(node, subject, report)? {
            Flag(true) => Some(Self),
            Flag(false) => {
                report.add(
                    node.location,
                    Wrong::new(format!("{subject} can only be true")).hint("otherwise remove the key"),
                );
                None
            }
        }
    }
}

/// A whole number from `MIN` to `MAX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Int<const MIN: u64, const MAX: u64>(pub u64);

impl<const MIN: u64, const MAX: u64> Scalar for Int<MIN, MAX> {
    fn kind() -> Kind {
        Kind::Integer(MIN, MAX)
    }

    fn parse(text: &str) -> Result<Self, Wrong> {
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        match text.parse() {
            Ok(number) if digits && (MIN..=MAX).contains(&number) => Ok(Self(number)),
            _ => Err(Wrong::new(format!("{} is not a whole number from {MIN} to {MAX}", quoted(text)))),
        }
    }
}

/// One of the words of `T`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OneOf<T>(pub T);

impl<T: Choice> Scalar for OneOf<T> {
    fn kind() -> Kind {
        Kind::Choice(T::CHOICES.iter().map(|(text, _, doc)| Word { text, doc }).collect())
    }

    fn parse(text: &str) -> Result<Self, Wrong> {
        if let Some((_, value, _)) = T::CHOICES.iter().find(|(word, ..)| *word == text) {
            return Ok(Self(value.clone()));
        }
        let wrong =
            Wrong::new(format!("{} is not valid; it must be {}", quoted(text), <Self as Scalar>::kind().expected()));
        // With only a few words, which the message lists anyway, a guess adds nothing.
        let guess = nearest(text, T::CHOICES.iter().map(|(word, ..)| *word)).filter(|_| T::CHOICES.len() > 3);
        Err(guess.map(|word| format!("did you mean {word}?")).into_iter().fold(wrong, Wrong::hint))
    }
}

/// A list of at least one `T`. To the model an empty list would match everything, but the operator who wrote it would
/// expect it to match nothing.
#[derive(Debug)]
pub struct Many<T>(pub Vec<Located<T>>);

impl<T: Read> Read for Many<T> {
    fn kind() -> Kind {
        Kind::List(Box::new(T::kind()))
    }

    fn read(node: &Node, subject: &str, report: &mut Report) -> Option<Self> {
        let Value::List(items) = &node.value else {
            report.add(node.location, unexpected(subject, &<Self as Read>::kind(), &node.value));
            return None;
        };
        if items.is_empty() {
            report.add(node.location, Wrong::new(format!("{subject} is empty")).hint("add at least one entry"));
            return None;
        }
        let subject = format!("an entry of {subject}");
        let read = |item: &std::rc::Rc<Node>| {
            T::read(item, &subject, report).map(|value| Located { location: item.location, value })
        };
        Some(Self(items.iter().filter_map(read).collect()))
    }
}

/// A list of `T`, or a single one without the brackets.
#[derive(Debug)]
pub struct OneOrMany<T>(pub Vec<Located<T>>);

impl<T: Read> Read for OneOrMany<T> {
    fn kind() -> Kind {
        Kind::Either(vec![T::kind(), Kind::List(Box::new(T::kind()))])
    }

    fn read(node: &Node, subject: &str, report: &mut Report) -> Option<Self> {
        if let Value::List(_) = node.value {
            return Many::read(node, subject, report).map(|many| Self(many.0));
        }
        let value = T::read(node, subject, report)?;
        Some(Self(vec![Located { location: node.location, value }]))
    }
}

/// Names that the operator gives, each with a `V`, in the order of the file. The names have the form `K`.
#[derive(Debug)]
pub struct Named<K, V>(pub Vec<NamedEntry<K, V>>);

/// A name and its value.
#[derive(Debug)]
pub struct NamedEntry<K, V> {
    pub name: K,
    /// `None` if the report says why.
    pub value: Option<V>,
}

impl<K: Formed, V: Read> Read for Named<K, V> {
    fn kind() -> Kind {
        Kind::Named(K::FORM, Box::new(V::kind()))
    }

    fn read(node: &Node, subject: &str, report: &mut Report) -> Option<Self> {
        let Value::Map(pairs) = &node.value else {
            report.add(node.location, unexpected(subject, &<Self as Read>::kind(), &node.value));
            return None;
        };
        let mut first: HashMap<&str, Location> = HashMap::with_capacity(pairs.len());
        let mut entries = Vec::with_capacity(pairs.len());
        for (key, value) in pairs {
            let Some(text) = key_text(key, report) else { continue };
            if let Some(first) = first.insert(text, key.location) {
                report.add(key.location, twice(text, subject, first));
                continue;
            }
            let name = match K::parse(text) {
                Ok(name) => name,
                Err(wrong) => {
                    report.add(
                        key.location,
                        Wrong { message: format!("a name in {subject}: {}", wrong.message), ..wrong },
                    );
                    // It may be a secret, which no excerpt may show.
                    let mut of_value = Report::default();
                    drop(V::read(value, &ticked(text), &mut of_value));
                    report.hidden().join(std::mem::take(of_value.hidden()));
                    continue;
                }
            };
            let value = V::read(value, &ticked(text), report);
            entries.push(NamedEntry { name, value });
        }
        Some(Self(entries))
    }
}

/// The entries of a mapping that is an object, each under its key.
pub struct Fields<'a> {
    entries: Vec<(Written, &'a Node)>,
}

impl<'a> Fields<'a> {
    /// `None` if the node is not a mapping. Reports unknown, repeated and missing keys, and goes on reading.
    pub fn of(node: &'a Node, object: &'static Object, subject: &str, report: &mut Report) -> Option<Self> {
        let Value::Map(pairs) = &node.value else {
            report.add(node.location, unexpected(subject, &Kind::Object(object), &node.value));
            return None;
        };
        let mut entries: Vec<(Written, &Node)> = Vec::with_capacity(pairs.len().min(object.keys.len()));
        for (key, value) in pairs {
            let Some(text) = key_text(key, report) else { continue };
            let Some(known) = object.key(text) else {
                report.add(key.location, unknown(text, object));
                continue;
            };
            if let Some((first, _)) = entries.iter().find(|(written, _)| written.key == known.name) {
                report.add(key.location, twice(text, object.noun, first.location));
                continue;
            }
            entries.push((Written { key: known.name, location: key.location }, value));
        }
        for key in object.keys.iter().filter(|key| key.required) {
            if !entries.iter().any(|(written, _)| written.key == key.name) {
                let hint = format!("it must be {}", key.kind.expected());
                report.add(node.location, Wrong::new(format!("{} needs `{}`", object.noun, key.name)).hint(hint));
            }
        }
        let one: Vec<&Written> = entries.iter().map(|(w, _)| w).filter(|w| object.one_of.contains(&w.key)).collect();
        match one.as_slice() {
            [] if !object.one_of.is_empty() => {
                let keys = keys_of(object.one_of.iter().copied());
                report.add(node.location, Wrong::new(format!("{} needs {keys}", object.noun)));
            }
            [first, others @ ..] => {
                for other in others {
                    let message = format!("{} has both `{}` and `{}`", object.noun, other.key, first.key);
                    report.add(other.location, Wrong::new(message).hint("keep one of them"));
                }
            }
            [] => {}
        }
        Some(Self { entries })
    }

    pub fn read<T: Read>(&self, key: &str, report: &mut Report) -> Option<Located<T>> {
        let (_, node) = self.entries.iter().find(|(written, _)| written.key == key)?;
        let value = T::read(node, &ticked(key), report)?;
        Some(Located { location: node.location, value })
    }

    pub fn written(self) -> Vec<Written> {
        self.entries.into_iter().map(|(written, _)| written).collect()
    }
}

fn key_text<'a>(key: &'a Node, report: &mut Report) -> Option<&'a str> {
    match &key.value {
        Value::Scalar { text, .. } => Some(text),
        other => {
            report.add(key.location, Wrong::new(format!("a key must be text, not {}", other.noun())));
            None
        }
    }
}

fn twice(key: &str, within: &str, first: Location) -> Wrong {
    Wrong::new(format!("{} is given twice in {within}", ticked(key)))
        .hint(format!("the first is at line {}", first.line))
}

fn unknown(key: &str, object: &Object) -> Wrong {
    let wrong = Wrong::new(format!("unknown key {} in {}", ticked(key), object.noun));
    if key == "<<" {
        return wrong.hint("YAML 1.2 has no merge keys; an alias (`*name`) can stand for a whole value");
    }
    if let Some(name) = meant_by(key, object) {
        return wrong.hint(format!("did you mean `{name}`?"));
    }
    match (nearest(key, object.names()), owner_of(key)) {
        (Some(name), _) => wrong.hint(format!("did you mean `{name}`?")),
        // A short list of keys helps more than the name of the object that has this key.
        (None, Some(owner)) if object.keys.len() > 4 => wrong.hint(format!("it is a key of {owner}")),
        (None, _) => wrong.hint(format!("it can be {}", keys_of(object.names()))),
    }
}
