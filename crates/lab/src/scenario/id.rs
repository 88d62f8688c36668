//! The notation for an instance of a contender.

use std::fmt;
use std::str::FromStr;

use crate::record::Variant;

/// The most contenders in one chain.
const HOPS_MAX: u32 = 8;

/// The most workers of one contender.
const WORKERS_MAX: u32 = 1024;

/// `name[:default][*hops][@workers]`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct InstanceId {
    /// The contender.
    pub contender: String,
    /// Which of its configurations.
    pub variant: Variant,
    /// How many of it form a chain: 1 to 8.
    pub hops: u32,
    /// Workers of each; if not set, one, or each number in the scenario.
    pub workers: Option<u32>,
}

impl FromStr for InstanceId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (rest, workers) = match text.split_once('@') {
            Some((rest, workers)) => (rest, Some(number(workers, WORKERS_MAX, "workers")?)),
            None => (text, None),
        };
        let (rest, hops) = match rest.split_once('*') {
            Some((rest, hops)) => (rest, number(hops, HOPS_MAX, "hops")?),
            None => (rest, 1),
        };
        let (name, variant) = match rest.split_once(':') {
            Some((name, "default")) => (name, Variant::Default),
            Some((name, "tuned")) => (name, Variant::Tuned),
            Some((_, other)) => return Err(format!("{other:?} is not a variant; use tuned or default")),
            None => (rest, Variant::Tuned),
        };
        let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        if name.is_empty() || !name.bytes().all(is_word) {
            return Err(format!("{text:?} is not a contender; a name consists of letters, digits, - and _"));
        }
        Ok(Self { contender: name.to_owned(), variant, hops, workers })
    }
}

fn number(text: &str, max: u32, what: &str) -> Result<u32, String> {
    let number = text.parse().ok().filter(|number| (1..=max).contains(number));
    number.ok_or_else(|| format!("{text:?} {what}: write a number from 1 to {max}"))
}

impl fmt::Display for InstanceId {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{}", self.contender)?;
        if self.variant == Variant::Default {
            write!(to, ":default")?;
        }
        if self.hops > 1 {
            write!(to, "*{}", self.hops)?;
        }
        self.workers.map_or(Ok(()), |workers| write!(to, "@{workers}"))
    }
}
