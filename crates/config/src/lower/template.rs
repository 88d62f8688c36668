//! Paths made of what a regular expression captured.

use model::{PathMatcher, PathRewrite, Template, TemplatePart};
use regex::Regex;

use crate::diagnostic::{Wrong, ticked};
use crate::text::dollar::{self, Part};

/// Groups in one path. Each may be as long as the path of a request, which the limit on headers bounds.
pub const GROUPS_MAX: usize = 9;

/// The rewrite for a whole path. On a route with a regular expression, `$1`, `${1}` and `${name}` stand for its groups, `$0` for the whole
/// path and `$$` for a dollar sign.
///
/// # Errors
/// There is no such group, or a `$` that means nothing.
pub fn full_path(text: &str, matched: &PathMatcher) -> Result<PathRewrite, Wrong> {
    match matched {
        PathMatcher::Regex(regex) if text.contains('$') => template(text, regex).map(PathRewrite::Template),
        _ => Ok(PathRewrite::Full(text.to_owned())),
    }
}

fn template(text: &str, regex: &Regex) -> Result<Template, Wrong> {
    let mut groups = 0;
    let parts = dollar::parts(text, |after| {
        let (name, behind) = reference(after).ok_or_else(|| {
            Wrong::new("a `$` stands before no group").hint("write `$1`, `${name}`, or `$$` for a dollar sign")
        })?;
        let group = group(name, regex, "the route's `path`")?;
        groups += 1;
        if groups > GROUPS_MAX {
            return Err(Wrong::new(format!("more than {GROUPS_MAX} groups are put into one path")));
        }
        Ok((group, behind))
    })?;
    let part = |part| match part {
        Part::Text(text) => TemplatePart::Text(text),
        Part::Reference(group) => TemplatePart::Group(group),
    };
    Ok(Template(parts.into_iter().map(part).collect()))
}

/// The name or number of a group, and the text behind it.
pub fn reference(text: &str) -> Option<(&str, &str)> {
    if let Some(braced) = text.strip_prefix('{') {
        return braced.split_once('}').filter(|(name, _)| !name.is_empty());
    }
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    (digits > 0).then(|| text.split_at(digits))
}

/// The number of a group of a regular expression, which messages call `subject`.
///
/// # Errors
/// There is no such group.
pub fn group(name: &str, regex: &Regex, subject: &str) -> Result<usize, Wrong> {
    let count = regex.captures_len() - 1;
    let found = match name.parse() {
        Ok(number) => Some(number).filter(|number| *number <= count),
        Err(_) => regex.capture_names().position(|known| known == Some(name)),
    };
    found.ok_or_else(|| {
        let names: Vec<String> = regex.capture_names().flatten().map(ticked).collect();
        let named = if names.is_empty() { String::new() } else { format!(", and the names {}", names.join(", ")) };
        let there = match count {
            0 => "it has no groups: put a part of it in parentheses".to_owned(),
            1 => format!("it has one group{named}"),
            count => format!("it has {count} groups{named}"),
        };
        Wrong::new(format!("{subject} has no group {}", ticked(name))).hint(there)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_by_number_and_name() {
        let regex = Regex::new("^/(?<shop>[a-z]+)/([0-9]+)(/x)?$").unwrap();
        let check = |text: &str, expect: &str| {
            let shown = template(text, &regex).map_or_else(
                |wrong| wrong.to_string(),
                |Template(parts)| {
                    let part = |part: &TemplatePart| match part {
                        TemplatePart::Text(text) => text.clone(),
                        TemplatePart::Group(number) => format!("<{number}>"),
                    };
                    parts.iter().map(part).collect()
                },
            );
            assert_eq!(shown, expect, "{text}");
        };
        check("/a/$1", "/a/<1>");
        check("/$2/${shop}x$3", "/<2>/<1>x<3>");
        check("/${2}0$0", "/<2>0<0>");
        check("/$$1$$", "/$1$");
        check("/$1$2$$/", "/<1><2>$/");
        check("/$1$1$1$1$1$1$1$1$1", "/<1><1><1><1><1><1><1><1><1>");
        check("/$1$1$1$1$1$1$1$1$1$1", "more than 9 groups are put into one path");
        check("/$", "a `$` stands before no group; write `$1`, `${name}`, or `$$` for a dollar sign");
        check("/$shop", "a `$` stands before no group; write `$1`, `${name}`, or `$$` for a dollar sign");
        check("/${shop", "a `$` stands before no group; write `$1`, `${name}`, or `$$` for a dollar sign");
        check("/$4", "the route's `path` has no group `4`; it has 3 groups, and the names `shop`");
        check("/$12", "the route's `path` has no group `12`; it has 3 groups, and the names `shop`");
        check("/${x}", "the route's `path` has no group `x`; it has 3 groups, and the names `shop`");
        check(
            "/$99999999999999999999",
            "the route's `path` has no group `99999999999999999999`; it has 3 groups, and the names `shop`",
        );
    }

    #[test]
    fn only_a_regular_expression_has_groups() {
        let prefix = PathMatcher::Prefix("/".into());
        assert_eq!(full_path("/$1", &prefix).unwrap(), PathRewrite::Full("/$1".into()));
        let regex = PathMatcher::Regex(Regex::new("^/a$").unwrap());
        assert_eq!(full_path("/b", &regex).unwrap(), PathRewrite::Full("/b".into()));
        let wrong = full_path("/$1", &regex).unwrap_err().to_string();
        assert_eq!(wrong, "the route's `path` has no group `1`; it has no groups: put a part of it in parentheses");
    }
}
