//! The values of annotations, by ingress-nginx's rules: numbers have no unit, a boolean is what Go's `ParseBool` takes, and an empty value
//! counts as absent.

use std::net::IpAddr;

use ipnet::IpNet;

use super::url;

/// What a value looks like.
#[derive(Clone, Copy, Debug)]
pub enum Form {
    /// `true`, `1`, `t` and so on.
    Bool,
    /// A number that is not negative, without a unit.
    Int,
    /// A number of bytes: `8k`, `1m`, `2g`.
    Size,
    /// One of these words.
    Word(&'static [&'static str]),
    /// The code of a redirect.
    Code,
    /// Any text on one line.
    Text,
    /// Any text, on several lines if need be.
    Lines,
    /// A name of a header or a cookie, or a word like it.
    Token,
    /// Statuses from 400 to 599 with commas between them.
    Statuses,
    /// Words with commas or spaces between them, on one line.
    Tokens,
    /// Such words, on several lines if need be: where the expressions of ingress-nginx have `\s`, or where it cuts white space off each of them.
    List,
    /// Networks and addresses with commas between them.
    Networks,
    /// A URL, or a path.
    Url,
    /// The URL of a service.
    Service,
    /// A path.
    Path,
    /// The path of a rewrite, or a URL.
    Target,
    /// A host, perhaps with a port.
    Host,
    /// `NAME` or `NAMESPACE/NAME`.
    Reference,
}

/// The largest value. An object of the API has at most 256 KiB of annotations, and a file may have more.
pub const VALUE_BYTES_MAX: usize = 64 * 1024;

/// Networks in one list.
pub const NETWORKS_MAX: usize = 1024;

/// A value as ingress-nginx reads it: its lines without white space around them. `None` counts as absent.
pub fn trimmed(written: &str) -> Option<String> {
    let lines: Vec<&str> = written.lines().map(str::trim).collect();
    let text = lines.join("\n").trim().to_owned();
    (!text.is_empty()).then_some(text)
}

impl Form {
    /// Whether a value has this form.
    ///
    /// # Errors
    /// Returns what would be right.
    pub fn check(self, value: &str) -> Result<(), String> {
        if value.len() > VALUE_BYTES_MAX {
            return Err(format!("it has {} bytes, and {VALUE_BYTES_MAX} are the most", value.len()));
        }
        let is_plain = |value: &str| {
            !value.contains(['"', '{', '}', ';']) && !value.chars().any(|c| c.is_whitespace() || c.is_control())
        };
        let is_list = |value: &str| !value.contains(['"', '{', '}', ';']);
        let fits = match self {
            Self::Bool => return boolean(value).map(drop).ok_or_else(|| "write \"true\" or \"false\"".to_owned()),
            Self::Int => return integer(value).map(drop).ok_or_else(|| "write a number without a unit".to_owned()),
            Self::Code => return integer(value).map(drop).ok_or_else(|| "write a number such as 301".to_owned()),
            Self::Size => return size(value).map(drop).ok_or_else(|| "write a size such as 8m".to_owned()),
            Self::Networks => return networks(value).map(drop),
            Self::Statuses => value.split(',').all(|part| status(part).is_some()),
            Self::Word(words) => {
                let is_it = |word: &&str| word.eq_ignore_ascii_case(value);
                return match words.iter().any(is_it) {
                    true => Ok(()),
                    false => Err(format!("write one of {}", words.join(", "))),
                };
            }
            // It may become a part of a message's head, where a line break would begin another field.
            Self::Text => !value.bytes().any(|byte| byte != b'\t' && byte.is_ascii_control()),
            Self::Lines => !value.bytes().any(|byte| byte.is_ascii_control() && !b"\n\r\t".contains(&byte)),
            Self::Token => is_token(value),
            Self::Tokens => is_list(value) && !value.bytes().any(|byte| byte.is_ascii_control()),
            Self::List => {
                is_list(value) && !value.bytes().any(|byte| byte.is_ascii_control() && !b"\n\r\t".contains(&byte))
            }
            Self::Url => {
                let known = value.strip_prefix("$scheme://").map(|rest| format!("https://{rest}"));
                let is_url = split_url(known.as_deref().unwrap_or(value)).is_some();
                is_plain(value) && (value.starts_with('/') || is_url)
            }
            Self::Service if is_plain(value) => {
                let known = value.strip_prefix("$scheme://").map(|rest| format!("https://{rest}"));
                return url::Url::parse(known.as_deref().unwrap_or(value)).map(drop);
            }
            Self::Service => false,
            Self::Path => is_plain(value) && value.starts_with('/') && !value.starts_with("//"),
            Self::Target => is_target(value),
            Self::Host => is_plain(value) && !value.contains('/'),
            Self::Reference => {
                let is_name = |part: &str| {
                    !part.is_empty()
                        && part.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-.".contains(&b))
                };
                match value.split_once('/') {
                    Some((namespace, name)) => is_name(namespace) && is_name(name),
                    None => is_name(value),
                }
            }
        };
        if fits { Ok(()) } else { Err(format!("write {}", self.noun())) }
    }

    fn noun(self) -> &'static str {
        match self {
            Self::Bool => "a boolean",
            Self::Int | Self::Code => "a number",
            Self::Size => "a size",
            Self::Word(_) => "one of the words",
            Self::Text => "a text on one line, without control characters",
            Self::Lines => "a text without control characters",
            Self::Token => "a name of letters, digits, `-` and `_`",
            Self::Statuses => "statuses from 400 to 599, with commas between them",
            Self::Tokens => "words on one line, with commas between them",
            Self::List => "words with commas between them",
            Self::Networks => "networks such as 10.0.0.0/8, with commas between them",
            Self::Url => "a URL that begins with http://, https:// or /",
            Self::Service => "a URL without white space, quotes, braces and `;`",
            Self::Path => "a path that begins with `/`",
            Self::Target => "a path of letters, digits and -._~/:, with $1 to $9 for groups",
            Self::Host => "a host",
            Self::Reference => "NAME or NAMESPACE/NAME",
        }
    }
}

/// Go's `strconv.ParseBool`.
pub fn boolean(value: &str) -> Option<bool> {
    match value {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

/// A number that is not negative.
pub fn integer(value: &str) -> Option<u64> {
    let is_number = !value.is_empty() && value.len() <= 18 && value.bytes().all(|byte| byte.is_ascii_digit());
    value.parse().ok().filter(|_| is_number)
}

/// Bytes. ingress-nginx takes a `b` at the end and then does not write the value, so it counts as absent: `Some(None)`.
pub fn size(value: &str) -> Option<Option<u64>> {
    let (digits, unit) = match value.find(|c: char| !c.is_ascii_digit()) {
        Some(at) => value.split_at(at),
        None => (value, ""),
    };
    let number = integer(digits)?;
    let factor = match unit.to_ascii_lowercase().as_str() {
        "" => 1,
        "k" => 1 << 10,
        "m" => 1 << 20,
        "g" => 1 << 30,
        "b" => return Some(None),
        _ => return None,
    };
    number.checked_mul(factor).map(Some)
}

/// Networks, each without the bits beyond its length.
///
/// # Errors
/// Returns which is none.
pub fn networks(value: &str) -> Result<Vec<IpNet>, String> {
    let mut found = Vec::new();
    for part in value.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let network = part.parse::<IpNet>().ok().or_else(|| part.parse::<IpAddr>().ok().map(IpNet::from));
        let network = network.ok_or_else(|| format!("{:?} is not a network such as 10.0.0.0/8", cut(part)))?.trunc();
        if found.len() == NETWORKS_MAX {
            return Err(format!("it has more than {NETWORKS_MAX} networks"));
        }
        if !found.contains(&network) {
            found.push(network);
        }
    }
    if found.is_empty() { Err("it names no network".to_owned()) } else { Ok(found) }
}

/// A URL in parts: whether it is https, the host, the port, and the rest with its `/`.
pub fn split_url(url: &str) -> Option<(bool, &str, Option<u16>, &str)> {
    let (is_https, rest) = match url.split_once("://")? {
        ("http", rest) => (false, rest),
        ("https", rest) => (true, rest),
        _ => return None,
    };
    let at = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(at);
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) => (host, Some(port.parse().ok()?)),
        None => (authority, None),
    };
    let is_host = |byte: u8| byte.is_ascii_alphanumeric() || b"-._$".contains(&byte);
    (!host.is_empty() && host.bytes().all(is_host)).then_some((is_https, host, port, path))
}

/// The status of an error.
pub fn status(value: &str) -> Option<u16> {
    value.parse().ok().filter(|status| (400..600).contains(status) && value.len() == 3)
}

/// The words of a list, with commas or white space between them.
pub fn words(value: &str) -> impl Iterator<Item = &str> {
    value.split([',', ' ', '\n']).map(str::trim).filter(|word| !word.is_empty())
}

pub fn is_token(value: &str) -> bool {
    !value.is_empty()
        && value.len() <= 256
        && value.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}

fn is_target(value: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/:$".contains(&byte);
    value.bytes().all(is_part) && (value.starts_with('/') || split_url(value).is_some())
}

/// The first `$` in the target of a rewrite that is no group, with its name. nginx puts variables there, and takes no other `$`.
pub fn variable_of_target(target: &str) -> Option<&str> {
    let found = target.match_indices('$').find(|(at, _)| {
        let digit = target.as_bytes().get(at + 1);
        !digit.is_some_and(|digit| (b'1'..=b'9').contains(digit))
    });
    let rest = target.get(found?.0..)?;
    let end = rest.char_indices().skip(1).find(|(_, c)| !c.is_ascii_alphanumeric() && *c != '_');
    rest.get(..end.map_or(rest.len(), |(end, _)| end))
}

/// A value for a message: people need not read all of a megabyte.
pub fn cut(value: &str) -> String {
    const CHARS_MAX: usize = 80;
    let mut shown: String = value.chars().take(CHARS_MAX).collect();
    if shown.len() < value.len() {
        shown.push('…');
    }
    shown.replace(['\n', '\r', '\t'], " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_by_the_rules_of_go_and_nginx() {
        let check = |form: Form, right: &[&str], wrong: &[&str]| {
            for value in right {
                assert_eq!(form.check(value), Ok(()), "{value}");
            }
            for value in wrong {
                assert!(form.check(value).is_err(), "{value}");
            }
        };
        check(Form::Bool, &["true", "1", "T", "False"], &["yes", "on", "tRUE", ""]);
        check(Form::Int, &["0", "60"], &["60s", "-1", "1.5", "", "99999999999999999999"]);
        check(Form::Size, &["0", "8m", "1G", "10K", "5b"], &["8 m", "m", "1mb", "-1", "18446744073709551615g"]);
        check(Form::Networks, &["10.0.0.0/8, ::1", "1.2.3.4"], &["", "10.0.0.0/33", "host"]);
        check(Form::Word(&["on", "off"]), &["on", "OFF"], &["true"]);
        check(Form::Target, &["/", "/$1", "/a/$2", "https://x.example/$1"], &["a", "$1", "/a b", "/a;", "ftp://x/"]);
        check(
            Form::Url,
            &["/", "https://a/b?c=$d", "http://a.svc:8080", "$scheme://$host/a"],
            &["a", "http://", "http://a:x/", "http://a/ b"],
        );
        check(
            Form::Service,
            &["https://a/b?c=$d", "$scheme://$host/a", "http://[::1]/"],
            &["/", "http://a/ b", "http://a/;", "http://a@b/", "$scheme://"],
        );
        check(Form::Path, &["/a"], &["a", "//a", "http://a"]);
        check(Form::Host, &["in.example:8080"], &["in.example\t", "a b", "a/b", "a\u{a0}b"]);
        check(Form::Reference, &["a", "ns/a.b"], &["a/b/c", "/a", "A"]);
        check(Form::Text, &["a\tb é"], &["a\nb", "a\rb", "a\0", "a\u{7f}"]);
        check(Form::Lines, &["a\r\n\tb"], &["a\0", "a\u{b}", "a\u{7f}"]);
        check(Form::Tokens, &["a, b c"], &["a,\nb", "a;"]);
        check(Form::List, &["a, b c", "a,\nb"], &["a\0", "a;\nb"]);
        assert!(Form::Text.check(&"a".repeat(VALUE_BYTES_MAX + 1)).is_err());
    }

    #[test]
    fn what_values_mean() {
        let check = |target: &str, expect: Option<&str>| assert_eq!(variable_of_target(target), expect, "{target}");
        check("/$1/x$2$10", None);
        check("/v1$uri", Some("$uri"));
        check("/$1/$request_id/x", Some("$request_id"));
        check("https://$host/$1", Some("$host"));
        check("/$0", Some("$0"));
        check("/a$", Some("$"));
        check("/a$/$b", Some("$"));
        assert_eq!(size("8m"), Some(Some(8 << 20)));
        assert_eq!(size("8b"), Some(None), "ingress-nginx accepts it and writes nothing");
        assert_eq!(trimmed(" a \n  b\n"), Some("a\nb".to_owned()));
        assert_eq!(trimmed(" \n "), None);
        assert_eq!(words("a,\nb c\r\n, d").collect::<Vec<_>>(), ["a", "b", "c", "d"]);
        assert_eq!(networks("10.1.2.3/8,10.0.0.0/8").unwrap().len(), 1);
        assert_eq!(split_url("http://a.b.svc:80/x?y"), Some((false, "a.b.svc", Some(80), "/x?y")));
        assert_eq!(cut(&"é".repeat(100)).chars().count(), 81);
    }
}
