//! Which keys of the file the kind has, and in what form.
//!
//! An API server knows no value that is one of two types. So a list is always a list, and where the file takes a word or a mapping, the kind
//! has a mapping with one more field for the word: `by: client_ip` is `by: {clientIp: true}`, and `retry: off` is `retry: {disabled: true}`.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use crate::define::{Form, Kind, Object, Word};
use crate::raw::{RawClientLimits, RawCluster, RawFile, RawRoute};
use crate::read::{Keyed, Read};
use crate::text::FileName;

/// Keys of the file that the kind leaves out: the object, the key, and why. Keys that name a file are left out in any case: the files of
/// a pod are not an object of the cluster.
const LEFT_OUT: &[(&str, &str, &str)] = &[
    ("a route", "name", "the object has one"),
    ("a route", "hosts", MATCHES),
    ("a route", "path", MATCHES),
    ("a route", "methods", MATCHES),
    ("a route", "headers", MATCHES),
    ("a route", "grpc", MATCHES),
    ("a route", "cookies", MATCHES),
    ("a route", "query", MATCHES),
    ("a route", "sni", MATCHES),
    ("a route", "to", "the backendRefs of the route are the clusters"),
    ("a route", "redirect", FILTER),
    ("a route", "mirror", FILTER),
    ("a route", "intercept_errors", OTHER_CLUSTER),
    ("a route", "fallback", OTHER_CLUSTER),
    ("a route", "rewrite", FILTER),
    ("a route", "passthrough", "the listener decides it"),
    ("a route", "client_cert", "a Gateway asks clients for certificates, and admits no others"),
    ("a route", "claims", "the token is that of the listener, and no field of a Gateway demands one"),
    ("a cluster", "endpoints", "the Service has them"),
    ("a cluster", "protocol", "the appProtocol of the Service's port says it"),
    ("a cluster", "proxy_protocol", "the appProtocol of the Service's port says it"),
    ("a cluster", "tls", "BackendTLSPolicy has it"),
    ("a cluster", "spiffe_ids", "the controller is no sidecar"),
    ("the limits on a client", "connections", "limits.connectionsPerClient of GatewayParameters says it, also for TCP"),
    ("a sticky session", "secret", SECRET),
    ("a sticky session", "ingress_nginx", "the controller knows the backends of Ingresses"),
    ("a rate limit", "group", ALONE),
    ("a concurrency limit", "group", ALONE),
    ("the basic authentication", "users", SECRET),
    ("the API key authentication", "keys", SECRET),
];

/// Fields that refer to another object of the policy's namespace, where the file has the name of a file or of a cluster: the object, the
/// key, the field and its meaning.
const REFERENCES: &[(&str, &str, &str, &str)] = &[
    (
        "the basic authentication",
        "file",
        "secretRef",
        "A Secret of the same namespace, of the type steelyard.io/credentials. Its `users` has a line `name:hash` for each user, as `htpasswd` \
         writes it.",
    ),
    (
        "the API key authentication",
        "file",
        "secretRef",
        "A Secret of the same namespace, of the type steelyard.io/credentials. Its `keys` has a line `client:key` for each key.",
    ),
    ("an external authorization", "to", "backendRef", SERVICE),
    ("a global rate limit", "to", "backendRef", SERVICE),
];

const SERVICE: &str = "The service: a port of a Service. In another namespace, it needs a ReferenceGrant there.";
const ALONE: &str = "a name that others may use as well would let them use up the limit";
const MATCHES: &str = "the route's matches say it";
const FILTER: &str = "routes have a filter for it";
const OTHER_CLUSTER: &str = "its cluster is none of the backendRefs of the route";
const SECRET: &str = "a secret does not belong into an object that many may read";

/// Fields that are not called like the key: the key, and the field. YAML 1.1, which kubectl reads, takes `on` and `off` for booleans even where
/// they are keys.
const RENAMED: &[(&str, &str)] = &[("on", "retryOn"), ("off", "disabled")];

/// Objects that the file also takes as a word, of which there are several, and the field for the word.
const WORD_FIELDS: &[(&str, &str)] = &[("a balance", "algorithm")];

/// The form of a value.
pub enum Shape {
    Text(Form),
    /// From the first to the second, both included.
    Integer(u64, u64),
    Boolean,
    /// Only `true`.
    True,
    Words(Vec<Word>),
    List(Box<Shape>),
    /// Names with values of this shape.
    Map(Box<Shape>),
    /// The name of a Secret.
    Secret,
    /// The name of a Service, perhaps its namespace, and a port.
    Service,
    Group(Group),
}

/// A mapping with known fields.
pub struct Group {
    pub doc: String,
    pub fields: Vec<Field>,
    /// Exactly one of these fields must be written. Empty if there is no such rule.
    pub one_of: Vec<String>,
    /// The field that stands for the word which the file takes instead of a mapping. It excludes all others.
    pub word: Option<Box<Field>>,
}

/// One field.
pub struct Field {
    pub name: String,
    /// The key of the file; of the field for a word, the word if there is only one.
    pub key: &'static str,
    pub shape: Shape,
    pub required: bool,
    pub default: Option<String>,
    pub doc: String,
}

/// The fields of the kind about routes.
pub fn route() -> Group {
    top(
        RawRoute::object(),
        "What holds for requests. Each field means what the key of a route in a configuration file means.",
    )
}

/// The fields of the kind about clusters.
pub fn cluster() -> Group {
    top(
        RawCluster::object(),
        "What holds towards endpoints. Each field means what the key of a cluster in a configuration file means.",
    )
}

/// The fields of the kind about clients of a Gateway.
pub fn clients() -> Group {
    top(
        RawClientLimits::object(),
        "Limits on each client of a Gateway, on each address and port that it serves by HTTP. Each field means what the key of `client_limits` of a \
         listener in a configuration file means.",
    )
}

fn top(object: &'static Object, doc: &str) -> Group {
    let group =
        group(object).unwrap_or(Group { doc: String::new(), fields: Vec::new(), one_of: Vec::new(), word: None });
    // Nothing is required, whatever a route of the file needs.
    let fields = group.fields.into_iter().map(|field| Field { required: false, ..field }).collect();
    Group { doc: doc.to_owned(), fields, one_of: Vec::new(), word: None }
}

/// Returns `None` if a field that it needs is left out.
fn group(object: &'static Object) -> Option<Group> {
    let is_left_out = |key: &str| LEFT_OUT.iter().any(|(noun, name, _)| *noun == object.noun && *name == key);
    let reference = |key: &str| REFERENCES.iter().find(|(noun, name, ..)| *noun == object.noun && *name == key);
    let mut fields = Vec::with_capacity(object.keys.len());
    for key in object.keys.iter().filter(|key| !is_left_out(key.name)) {
        if let Some((.., field, doc)) = reference(key.name) {
            fields.push(Field {
                name: (*field).to_owned(),
                key: key.name,
                shape: if *field == "secretRef" { Shape::Secret } else { Shape::Service },
                required: true,
                default: None,
                doc: (*doc).to_owned(),
            });
            continue;
        }
        let Some(shape) = shape(&key.kind) else {
            if key.required {
                return None;
            }
            continue;
        };
        fields.push(Field {
            name: camel(key.name),
            key: key.name,
            shape,
            required: key.required,
            default: key.default.clone(),
            doc: key.doc.clone(),
        });
    }
    let has = |name: &&&str| fields.iter().any(|field| field.key == **name);
    let is_possible = object.one_of.is_empty() || object.one_of.iter().any(|key| has(&key));
    // A reference is required by itself.
    let is_plain = |key: &&&str| has(key) && reference(key).is_none();
    let one_of: Vec<String> = object.one_of.iter().filter(is_plain).map(|key| camel(key)).collect();
    (is_possible && !fields.is_empty()).then(|| Group { doc: object.doc.clone(), fields, one_of, word: None })
}

/// Returns `None` for what the kind cannot have.
fn shape(kind: &Kind) -> Option<Shape> {
    Some(match kind {
        Kind::Text(form) if form.noun == <FileName as crate::read::Formed>::FORM.noun => return None,
        Kind::Text(form) => Shape::Text(*form),
        Kind::Integer(min, max) => Shape::Integer(*min, *max),
        Kind::Boolean => Shape::Boolean,
        Kind::True => Shape::True,
        Kind::Choice(words) => Shape::Words(words.clone()),
        Kind::List(item) => Shape::List(Box::new(shape(item)?)),
        Kind::Named(_, value) => Shape::Map(Box::new(shape(value)?)),
        Kind::Object(object) => Shape::Group(group(object)?),
        Kind::Either(kinds) => match kinds.as_slice() {
            [_, Kind::List(item)] => Shape::List(Box::new(shape(item)?)),
            [Kind::Choice(words), Kind::Object(object)] => {
                Shape::Group(Group { word: Some(Box::new(word(words, object)?)), ..group(object)? })
            }
            _ => return None,
        },
    })
}

/// The field for a word that the file takes instead of this object.
fn word(words: &[Word], object: &Object) -> Option<Field> {
    let named = WORD_FIELDS.iter().find(|(noun, _)| *noun == object.noun).map(|(_, field)| (*field).to_owned());
    let (name, key, shape, doc) = match (words, named) {
        ([one], None) => {
            (camel(one.text), one.text, Shape::True, format!("{}, and no other field.", sentence(one.doc)))
        }
        (words, Some(name)) => {
            (name, "", Shape::Words(words.to_vec()), "The algorithm, and no other field.".to_owned())
        }
        _ => return None,
    };
    Some(Field { name, key, shape, required: false, default: None, doc })
}

fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

/// The name of a field: `per_try_timeout` is `perTryTimeout`.
pub fn camel(key: &str) -> String {
    if let Some((_, field)) = RENAMED.iter().find(|(renamed, _)| *renamed == key) {
        return (*field).to_owned();
    }
    let mut words = key.split('_');
    let first = words.next().unwrap_or_default().to_owned();
    words.fold(first, |name, word| name + &sentence(word))
}

/// Keys of the file between backticks, as the fields are called.
pub fn in_camel(text: &str) -> String {
    let is_key = |part: &str| {
        let is_plain = part.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
        is_plain && (part.contains('_') || part == "on") && KEYS.contains(part)
    };
    let parts = text.split('`').enumerate();
    let parts = parts.map(|(at, part)| if at % 2 == 1 && is_key(part) { camel(part) } else { part.to_owned() });
    parts.collect::<Vec<_>>().join("`")
}

/// All keys of the file. Words that are values keep their form.
static KEYS: LazyLock<BTreeSet<&'static str>> =
    LazyLock::new(|| RawFile::kind().objects().into_iter().flat_map(Object::names).collect());

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_out_exists() {
        let objects = RawFile::kind().objects();
        for (noun, key, _) in LEFT_OUT {
            assert!(objects.iter().any(|object| object.noun == *noun && object.key(key).is_some()), "{noun}: {key}");
        }
        for (noun, key, ..) in REFERENCES {
            assert!(objects.iter().any(|object| object.noun == *noun && object.key(key).is_some()), "{noun}: {key}");
        }
        for (noun, _) in WORD_FIELDS {
            assert!(objects.iter().any(|object| object.noun == *noun), "{noun}");
        }
    }
}
