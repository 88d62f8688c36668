//! Describes what a file may hold, as data: the kinds of values, the keys and their meaning.
//!
//! The `keys!` tables of [`crate::raw`] are the only definition. The reader, the hints, the JSON schema and the reference page all come
//! from it, so they cannot contradict each other.

/// A kind of value.
#[derive(Clone, Debug)]
pub enum Kind {
    /// Text with a form.
    Text(Form),
    /// A whole number from the first to the second, both included.
    Integer(u64, u64),
    /// `true` or `false`.
    Boolean,
    /// Only `true`: the presence of the key is the setting.
    True,
    /// One of a few words.
    Choice(Vec<Word>),
    /// A list of values of this kind.
    List(Box<Kind>),
    /// Names that the operator gives, each with a value of this kind. The form is that of the name.
    Named(Form, Box<Kind>),
    /// A mapping with known keys.
    Object(&'static Object),
    /// A value of any of these kinds.
    Either(Vec<Kind>),
}

/// The form of a text.
#[derive(Clone, Copy, Debug)]
pub struct Form {
    /// With its article: "a duration".
    pub noun: &'static str,
    /// A valid example.
    pub example: &'static str,
    /// For editors: a regular expression (ECMA 262, not anchored) that matches every valid text.
    pub pattern: Option<&'static str>,
}

/// One word of a choice.
#[derive(Clone, Copy, Debug)]
pub struct Word {
    pub text: &'static str,
    pub doc: &'static str,
}

/// A mapping whose keys are known.
#[derive(Debug)]
pub struct Object {
    /// With its article: "a route".
    pub noun: &'static str,
    pub doc: String,
    pub keys: Vec<Key>,
    /// Exactly one of these keys must be written. Empty if there is no such rule.
    pub one_of: &'static [&'static str],
}

/// One key of an object.
#[derive(Debug)]
pub struct Key {
    pub name: &'static str,
    pub kind: Kind,
    pub required: bool,
    /// The default as the file would have it, or words that say what happens without the key.
    pub default: Option<String>,
    /// The protocols of the listener to which the key belongs, separated by `, `; `None` means every protocol.
    pub only: Option<&'static str>,
    pub doc: String,
}

impl Object {
    pub fn key(&self, name: &str) -> Option<&Key> {
        self.keys.iter().find(|key| key.name == name)
    }

    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.keys.iter().map(|key| key.name)
    }

    /// Without its article: "route".
    pub fn name(&self) -> &'static str {
        let articles = ["a ", "an ", "the "];
        articles.iter().find_map(|article| self.noun.strip_prefix(article)).unwrap_or(self.noun)
    }

    /// For an anchor and the name of a definition: "limits-of-a-cluster".
    pub fn slug(&self) -> String {
        self.name().replace(' ', "-").to_lowercase()
    }
}

impl Kind {
    /// Every object that a value of this kind can hold, outer objects first, each once.
    pub fn objects(&self) -> Vec<&'static Object> {
        let mut found = Vec::new();
        self.collect(&mut found);
        found
    }

    fn collect(&self, found: &mut Vec<&'static Object>) {
        match self {
            Self::Object(object) => {
                if !found.iter().any(|known| std::ptr::eq(*known, *object)) {
                    found.push(object);
                    object.keys.iter().for_each(|key| key.kind.collect(found));
                }
            }
            Self::List(inner) | Self::Named(_, inner) => inner.collect(found),
            Self::Either(kinds) => kinds.iter().for_each(|kind| kind.collect(found)),
            Self::Text(_) | Self::Integer(..) | Self::Boolean | Self::True | Self::Choice(_) => {}
        }
    }

    /// For messages: "must be ...".
    pub fn expected(&self) -> String {
        match self {
            Self::Text(form) => format!("{} such as {}", form.noun, form.example),
            Self::Integer(min, max) => format!("a whole number from {min} to {max}"),
            Self::Boolean => "true or false".to_owned(),
            Self::True => "true".to_owned(),
            Self::Choice(words) => any_of(words.iter().map(|word| word.text.to_owned()).collect()),
            Self::List(_) => "a list".to_owned(),
            Self::Named(form, value) => format!("a mapping from {} to {}", form.noun, value.short()),
            Self::Object(object) => format!("a mapping with {}", keys_of(object.names())),
            Self::Either(kinds) => any_of(kinds.iter().map(Self::expected).collect()),
        }
    }

    /// The same, without the keys of objects.
    fn short(&self) -> String {
        match self {
            Self::Object(object) => object.noun.to_owned(),
            Self::Either(kinds) => any_of(kinds.iter().map(Self::short).collect()),
            other => other.expected(),
        }
    }
}

/// "a, b or c".
pub fn any_of(mut words: Vec<String>) -> String {
    match words.pop() {
        None => String::new(),
        Some(last) if words.is_empty() => last,
        Some(last) => format!("{} or {last}", words.join(", ")),
    }
}

/// "`a`, `b` or `c`".
pub fn keys_of<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    any_of(names.into_iter().map(|name| format!("`{name}`")).collect())
}

/// The lines of a doc comment as one paragraph.
pub fn paragraph(lines: &[&str]) -> String {
    lines.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ")
}

/// Makes a raw type from a table of keys, and the [`Object`] that describes it.
///
/// ```text
/// keys! {
///     /// What the object is.
///     pub struct RawThing as "a thing", one of [this, that] {
///         /// What the key means.
///         required key: Type;
///         optional key: Type, default EXPRESSION_OF_TEXT, only "tcp";
///     }
/// }
/// ```
///
/// Every field is `Option<Located<Type>>`: `None` if the key was not written, or was wrong and the report says so.
macro_rules! keys {
    (
        $(#[doc = $about:literal])*
        $vis:vis struct $raw:ident as $noun:literal $(, one of [$($one:ident),*])? {
            $(
                $(#[doc = $doc:literal])*
                $need:ident $key:ident: $type:ty $(, default $default:expr)? $(, only $only:literal)?;
            )*
        }
    ) => {
        $(#[doc = $about])*
        #[derive(Debug)]
        $vis struct $raw {
            written: Vec<$crate::read::Written>,
            $($(#[doc = $doc])* pub $key: Option<$crate::read::Located<$type>>,)*
        }

        impl $crate::read::Keyed for $raw {
            fn object() -> &'static $crate::define::Object {
                static OBJECT: std::sync::LazyLock<$crate::define::Object> = std::sync::LazyLock::new(|| {
                    $crate::define::Object {
                        noun: $noun,
                        doc: $crate::define::paragraph(&[$($about),*]),
                        keys: vec![$($crate::define::Key {
                            name: stringify!($key),
                            kind: <$type as $crate::read::Read>::kind(),
                            required: keys!(@required $need),
                            default: keys!(@option $($default)?),
                            only: keys!(@option $($only)?),
                            doc: $crate::define::paragraph(&[$($doc),*]),
                        }),*],
                        one_of: &[$($(stringify!($one)),*)?],
                    }
                });
                &OBJECT
            }

            fn written(&self) -> &[$crate::read::Written] {
                &self.written
            }
        }

        impl $crate::read::Read for $raw {
            fn kind() -> $crate::define::Kind {
                $crate::define::Kind::Object(<Self as $crate::read::Keyed>::object())
            }

            fn read(
                node: &$crate::yaml::Node,
                subject: &str,
                report: &mut $crate::diagnostic::Report,
            ) -> Option<Self> {
                let object = <Self as $crate::read::Keyed>::object();
                let fields = $crate::read::Fields::of(node, object, subject, report)?;
                Some(Self {
                    $($key: fields.read(stringify!($key), report),)*
                    written: fields.written(),
                })
            }
        }
    };
    (@required required) => { true };
    (@required optional) => { false };
    (@option) => { None };
    (@option $value:expr) => { Some($value.into()) };
}
pub(crate) use keys;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_words_reads_as_english() {
        let check = |words: &[&str], expect| assert_eq!(any_of(words.iter().map(|&w| w.to_owned()).collect()), expect);
        check(&[], "");
        check(&["a"], "a");
        check(&["a", "b"], "a or b");
        check(&["a", "b", "c"], "a, b or c");
    }
}
