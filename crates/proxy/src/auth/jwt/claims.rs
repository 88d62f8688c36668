//! The JSON of tokens. Only what is wanted of it is kept, and the rest is skipped without memory for it, however deeply it is nested.
//!
//! An object that has a name twice could be read in two ways (RFC 8725 section 2.4), so it counts as malformed where the name matters.

use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// The values of a claim, as conditions and headers have them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// A text, a whole number, `true` or `false`.
    One(Box<str>),
    /// A list of these.
    Many(Box<[Box<str>]>),
    /// It is there, and is something else: an object, `null`, a fraction, a number beyond 64 bits, or a list with one of these.
    Other,
}

/// The protected header of a token (RFC 7515 section 4.1). Keys that it brings along (`jwk`, `x5c`) or names (`jku`, `x5u`) are not looked at.
#[derive(Debug, PartialEq, Eq, Deserialize)]
pub(super) struct Header {
    pub(super) alg: String,
    #[serde(default)]
    pub(super) kid: Option<String>,
    /// Whether it names extensions that a reader must understand. This one understands none.
    #[serde(default, deserialize_with = "is_there")]
    pub(super) crit: bool,
}

/// The claims that every token is checked for (RFC 7519 section 4.1). Times are seconds since 1970.
#[derive(Debug, PartialEq, Deserialize)]
pub(super) struct Registered {
    #[serde(default)]
    pub(super) iss: Option<String>,
    #[serde(default)]
    pub(super) aud: Audience,
    #[serde(default)]
    pub(super) exp: Option<f64>,
    #[serde(default)]
    pub(super) nbf: Option<f64>,
}

/// The audience of a token: none, one or several.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Audience(pub(super) Vec<String>);

/// Reads an object.
pub(super) fn object<'t, T: Deserialize<'t>>(json: &'t [u8]) -> Option<T> {
    // A derived reader would also take a list of the values.
    if json.trim_ascii_start().first() != Some(&b'{') {
        return None;
    }
    serde_json::from_slice(json).ok()
}

/// The claim at this path; `Ok(None)` if there is none.
///
/// # Errors
/// It is not an object, or has one of the names twice.
pub(super) fn find(json: &[u8], path: &[String]) -> Result<Option<Claim>, ()> {
    let mut reader = serde_json::Deserializer::from_slice(json);
    let found = Find { path }.deserialize(&mut reader).map_err(|_| ())?;
    reader.end().map_err(|_| ())?;
    Ok(found)
}

impl Claim {
    pub(crate) fn values(&self) -> &[Box<str>] {
        match self {
            Self::One(value) => std::slice::from_ref(value),
            Self::Many(values) => values,
            Self::Other => &[],
        }
    }

    /// The value of a header with this claim; `None` if it cannot be one.
    ///
    /// # Errors
    /// The endpoint could take it for something else: it would end the field, lose blanks around it, or one entry of a list for two.
    pub(super) fn as_field(&self) -> Result<Option<String>, ()> {
        let text = match self {
            Self::One(value) => value.to_string(),
            Self::Many(values) if values.iter().any(|value| value.contains(',')) => return Err(()),
            Self::Many(values) => values.join(","),
            Self::Other => return Ok(None),
        };
        // A field has no blanks around its value (RFC 9110 section 5.5), nor has an entry of a list (section 5.6.1): ` root` would become the
        // name of somebody else.
        let has_blanks = |value: &str| value.trim() != value;
        if self.values().iter().any(|value| has_blanks(value)) || text.chars().any(char::is_control) {
            return Err(());
        }
        Ok((!text.is_empty()).then_some(text))
    }

    pub(super) fn bytes(&self) -> usize {
        self.values().iter().map(|value| value.len() + size_of::<Box<str>>()).sum()
    }
}

fn is_there<'t, D: Deserializer<'t>>(reader: D) -> Result<bool, D::Error> {
    IgnoredAny::deserialize(reader).map(|_| true)
}

impl<'t> Deserialize<'t> for Audience {
    fn deserialize<D: Deserializer<'t>>(reader: D) -> Result<Self, D::Error> {
        struct Texts;

        impl<'t> Visitor<'t> for Texts {
            type Value = Audience;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text or a list of texts")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Audience, E> {
                Ok(Audience(vec![text.to_owned()]))
            }

            fn visit_seq<A: SeqAccess<'t>>(self, mut list: A) -> Result<Audience, A::Error> {
                let mut all = Vec::new();
                while let Some(text) = list.next_element::<String>()? {
                    all.push(text);
                }
                Ok(Audience(all))
            }
        }

        reader.deserialize_any(Texts)
    }
}

/// Finds a claim, at the end of the path.
struct Find<'p> {
    path: &'p [String],
}

impl<'t> DeserializeSeed<'t> for Find<'_> {
    type Value = Option<Claim>;

    fn deserialize<D: Deserializer<'t>>(self, reader: D) -> Result<Self::Value, D::Error> {
        reader.deserialize_any(self)
    }
}

impl Find<'_> {
    /// A value that is no object, and so only one that is wanted if the path ends here.
    fn value(&self, claim: Claim) -> Option<Claim> {
        self.path.is_empty().then_some(claim)
    }
}

impl<'t> Visitor<'t> for Find<'_> {
    type Value = Option<Claim>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a claim")
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Self::Value, E> {
        Ok(self.value(Claim::One(if value { "true" } else { "false" }.into())))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Self::Value, E> {
        Ok(self.value(Claim::One(value.to_string().into())))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Self::Value, E> {
        Ok(self.value(Claim::One(value.to_string().into())))
    }

    // Two numbers of ids could become the same.
    fn visit_f64<E: Error>(self, _: f64) -> Result<Self::Value, E> {
        Ok(self.value(Claim::Other))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Self::Value, E> {
        Ok(self.value(Claim::One(value.into())))
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(self.value(Claim::Other))
    }

    fn visit_seq<A: SeqAccess<'t>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        if !self.path.is_empty() {
            while list.next_element::<IgnoredAny>()?.is_some() {}
            return Ok(None);
        }
        let (mut values, mut is_plain) = (Vec::new(), true);
        while let Some(value) = list.next_element_seed(Entry)? {
            match value {
                Some(value) => values.push(value),
                None => is_plain = false,
            }
        }
        Ok(Some(if is_plain { Claim::Many(values.into()) } else { Claim::Other }))
    }

    fn visit_map<A: MapAccess<'t>>(self, mut object: A) -> Result<Self::Value, A::Error> {
        let Some((name, path)) = self.path.split_first() else {
            while object.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
            return Ok(Some(Claim::Other));
        };
        let mut found = None;
        while let Some(is_it) = object.next_key_seed(Is(name))? {
            if !is_it {
                object.next_value::<IgnoredAny>()?;
            } else if found.is_some() {
                return Err(A::Error::custom("twice"));
            } else {
                found = Some(object.next_value_seed(Find { path })?);
            }
        }
        Ok(found.flatten())
    }
}

/// Whether a name is this one.
struct Is<'n>(&'n str);

impl<'t> DeserializeSeed<'t> for Is<'_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'t>>(self, reader: D) -> Result<bool, D::Error> {
        reader.deserialize_str(self)
    }
}

impl Visitor<'_> for Is<'_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<bool, E> {
        Ok(name == self.0)
    }
}

/// One entry of a list; `None` if it is a list or an object itself, or no value of a [`Claim::One`].
struct Entry;

impl<'t> DeserializeSeed<'t> for Entry {
    type Value = Option<Box<str>>;

    fn deserialize<D: Deserializer<'t>>(self, reader: D) -> Result<Self::Value, D::Error> {
        reader.deserialize_any(self)
    }
}

impl<'t> Visitor<'t> for Entry {
    type Value = Option<Box<str>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an entry")
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Self::Value, E> {
        Ok(Some(if value { "true" } else { "false" }.into()))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Self::Value, E> {
        Ok(Some(value.to_string().into()))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Self::Value, E> {
        Ok(Some(value.to_string().into()))
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Self::Value, E> {
        Ok(Some(value.into()))
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_seq<A: SeqAccess<'t>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(None)
    }

    fn visit_map<A: MapAccess<'t>>(self, mut object: A) -> Result<Self::Value, A::Error> {
        while object.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_are_found_where_they_are() {
        let check = |json: &str, claim: &str, expect: Result<Option<Claim>, ()>| {
            assert_eq!(find(json.as_bytes(), &model::claim_path(claim)), expect, "{json} {claim}");
        };
        let one = |text: &str| Ok(Some(Claim::One(text.into())));
        let many = |texts: &[&str]| Ok(Some(Claim::Many(texts.iter().map(|text| (*text).into()).collect())));
        let json = r#"{"sub": "joe", "n": 7, "m": -1, "b": true, "x": null, "l": ["a", 1, false], "o": {"l": ["b"], "o": {"a/b": "c"}}, "f": 1.5,
            "big": 123456789012345678901234567890, "ll": [["a"], "b"], "e": []}"#;
        check(json, "sub", one("joe"));
        check(json, "n", one("7"));
        check(json, "m", one("-1"));
        check(json, "b", one("true"));
        check(json, "l", many(&["a", "1", "false"]));
        check(json, "e", many(&[]));
        check(json, "/o/l", many(&["b"]));
        check(json, "/o/o/a~1b", one("c"));
        for other in ["x", "o", "f", "big", "ll", "/o/o"] {
            check(json, other, Ok(Some(Claim::Other)));
        }
        for none in ["o.l", "Sub", "/sub/x", "/l/0", "/o/x", "/x/y", "/n/y", "/b/y", "/f/y"] {
            check(json, none, Ok(None));
        }
        check(r#"{"\u0073ub": "a\u0062"}"#, "sub", one("ab"));
        check(r#"{"sub": "a", "\u0073ub": "b"}"#, "sub", Err(()));
        check(r#"{"o": {"a": 1, "a": 2}}"#, "/o/a", Err(()));
        check(r#"{"x": 1, "x": 2, "sub": "a"}"#, "sub", one("a"));
        check(r#"{"sub": "\ud800"}"#, "sub", Err(()));
        check(r#"{"sub": "a"} x"#, "sub", Err(()));
        check(r#"["sub"]"#, "sub", Ok(None));
        check("", "sub", Err(()));
    }

    #[test]
    fn deep_and_wide_json_costs_no_stack() {
        let deep = format!(r#"{{"x": {}{}, "sub": "joe"}}"#, "[".repeat(10_000), "]".repeat(10_000));
        assert_eq!(find(deep.as_bytes(), &model::claim_path("sub")), Ok(Some(Claim::One("joe".into()))));
        let deep = format!(r#"{{"sub": {}{}}}"#, "[".repeat(10_000), "]".repeat(10_000));
        assert_eq!(find(deep.as_bytes(), &model::claim_path("sub")), Ok(Some(Claim::Other)));
        let deep = format!(r#"{{"alg": "RS256", "x": {}1{}}}"#, "{\"a\":".repeat(10_000), "}".repeat(10_000));
        assert!(object::<Header>(deep.as_bytes()).is_some());
        assert!(object::<Registered>(deep.as_bytes()).is_some());
    }

    #[test]
    fn headers_of_tokens() {
        let check = |json: &str, expect: Option<(&str, Option<&str>, bool)>| {
            let expect = expect.map(|(alg, kid, crit)| Header { alg: alg.into(), kid: kid.map(Into::into), crit });
            assert_eq!(object::<Header>(json.as_bytes()), expect, "{json}");
        };
        check(r#"{"alg":"ES256","kid":"a","typ":"JWT","jwk":{"kty":"oct"}}"#, Some(("ES256", Some("a"), false)));
        check(r#"{"alg":"none"}"#, Some(("none", None, false)));
        check(r#"{"alg":"RS256","crit":null}"#, Some(("RS256", None, true)));
        check(r#"{"alg":"RS256","crit":["b64"],"b64":false}"#, Some(("RS256", None, true)));
        check(r#"{"alg":"RS256","alg":"none"}"#, None);
        check(r#"{"alg":["RS256"]}"#, None);
        check(r#"{"alg":"RS256","kid":1}"#, None);
        check(r#"{"kid":"a"}"#, None);
        check(r#"["RS256","a",true]"#, None);
    }

    #[test]
    fn registered_claims() {
        let check = |json: &str, expect: Option<(Option<&str>, &[&str], Option<f64>)>| {
            let found = object::<Registered>(json.as_bytes());
            let found = found.as_ref().map(|found| {
                (found.iss.as_deref(), found.aud.0.iter().map(String::as_str).collect::<Vec<_>>(), found.exp)
            });
            assert_eq!(found, expect.map(|(iss, aud, exp)| (iss, aud.to_vec(), exp)), "{json}");
        };
        check(r#"{"iss":"a","aud":"b","exp":17}"#, Some((Some("a"), &["b"], Some(17.0))));
        check(r#"{"aud":["b","c"],"exp":1.5}"#, Some((None, &["b", "c"], Some(1.5))));
        check("{}", Some((None, &[], None)));
        check(r#"{"exp":"17"}"#, None);
        check(r#"{"exp":1e999}"#, None);
        check(r#"{"exp":1,"exp":9999999999}"#, None);
        check(r#"{"iss":["a"]}"#, None);
        check(r#"{"aud":[1]}"#, None);
        check(r#"{"aud":{"b":1}}"#, None);
        check(r#"{"aud":null}"#, None);
    }

    #[test]
    fn claims_as_fields() {
        let check = |claim: Claim, expect: Result<Option<&str>, ()>| {
            assert_eq!(claim.as_field(), expect.map(|field| field.map(str::to_owned)), "{claim:?}");
        };
        let one = |text: &str| Claim::One(text.into());
        let many = |texts: &[&str]| Claim::Many(texts.iter().map(|text| (*text).into()).collect());
        check(one("Zoë, 7"), Ok(Some("Zoë, 7")));
        for blank in [" a", "a ", "a\u{a0}", " ", "a\t"] {
            check(one(blank), Err(()));
        }
        check(one("a b"), Ok(Some("a b")));
        check(one(""), Ok(None));
        check(one("a\r\nX-Admin: 1"), Err(()));
        check(one("a\0"), Err(()));
        check(one("a\u{85}"), Err(()));
        check(many(&["a", "b"]), Ok(Some("a,b")));
        check(many(&["a", "b,admin"]), Err(()));
        check(many(&["a", " b"]), Err(()));
        check(many(&[]), Ok(None));
        check(Claim::Other, Ok(None));
    }
}
