//! Changes to URLs and cookies in the responses of endpoints. An endpoint knows its own names and paths, and not those that clients use.

use regex::Regex;

/// What is changed. Of each list, the first that matches a value decides.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ResponseRewrite {
    /// `Location`, and the URL in `Refresh`.
    pub location: Vec<ValueRewrite>,
    /// The attribute `Domain` of `Set-Cookie`, compared without its case. A dot in front of it stays, and is not compared.
    pub cookie_domain: Vec<ValueRewrite>,
    /// The attribute `Path` of `Set-Cookie`.
    pub cookie_path: Vec<ValueRewrite>,
}

/// One change.
#[derive(Clone, Debug, PartialEq)]
pub struct ValueRewrite {
    /// The values that are changed.
    pub from: ValueFrom,
    /// The parts of the new value.
    pub to: Vec<ToPart>,
}

/// Which values are changed.
#[derive(Clone, Debug)]
pub enum ValueFrom {
    /// Those that begin with this, which is replaced; of a domain, those that are this.
    Text(String),
    /// Those that match, which are replaced as a whole. Anchored at both ends.
    Regex(Regex),
}

impl PartialEq for ValueFrom {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Text(one), Self::Text(other)) => one == other,
            (Self::Regex(one), Self::Regex(other)) => one.as_str() == other.as_str(),
            (Self::Text(_), Self::Regex(_)) | (Self::Regex(_), Self::Text(_)) => false,
        }
    }
}

/// A part of a new value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToPart {
    /// This text.
    Text(String),
    /// What the group with this number captured; nothing if it took no part in the match. 0 is the whole match.
    Group(usize),
    /// The scheme of the client's request.
    Scheme,
    /// The host of the client's request, without its port. If the request names none, the value stays as it is.
    Host,
}
