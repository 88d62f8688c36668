//! Changes to URLs and cookies in the responses of endpoints.

use model::{ResponseRewrite, ToPart, ValueFrom, ValueRewrite};
use regex::Regex;

use super::template::{GROUPS_MAX, group, reference};
use crate::diagnostic::{Report, Wrong};
use crate::raw::{RawResponseRewrite, RawValueRewrite};
use crate::read::{Keyed, Located, Many};
use crate::text::ReplacingText;
use crate::text::dollar::{self, Part};

/// Entries of one list. A value is compared with each.
const ENTRIES_MAX: usize = 16;

/// What becomes of responses; `None` if nothing is said.
pub fn response_rewrite(
    written: &Option<Located<RawResponseRewrite>>,
    report: &mut Report,
) -> Option<Box<ResponseRewrite>> {
    let Located { location, value: raw } = written.as_ref()?;
    if raw.written().is_empty() {
        let wrong = Wrong::new("a rewrite of responses needs `location`, `cookie_domain` or `cookie_path`");
        report.add(*location, wrong);
    }
    let mut rewrite = ResponseRewrite {
        location: entries(&raw.location, "location", report),
        cookie_domain: entries(&raw.cookie_domain, "cookie_domain", report),
        cookie_path: entries(&raw.cookie_path, "cookie_path", report),
    };
    // A dot in front means the same (RFC 6265 section 5.2.3), and that of the endpoint stays.
    for ValueRewrite { from, to } in &mut rewrite.cookie_domain {
        if let ValueFrom::Text(text) = from {
            strip_dot(text);
            if let Some(ToPart::Text(text)) = to.first_mut() {
                strip_dot(text);
            }
        }
    }
    Some(Box::new(rewrite))
}

fn strip_dot(text: &mut String) {
    if text.starts_with('.') {
        text.remove(0);
    }
}

fn entries(written: &Option<Located<Many<RawValueRewrite>>>, key: &str, report: &mut Report) -> Vec<ValueRewrite> {
    let Some(Located { location, value: Many(list) }) = written else { return Vec::new() };
    if list.len() > ENTRIES_MAX {
        let message = format!("`{key}` has {} entries; the limit is {ENTRIES_MAX}", list.len());
        report.add(*location, Wrong::new(message));
    }
    list.iter().filter_map(|raw| entry(&raw.value, key, report)).collect()
}

/// Returns `None` if something is missing or wrong; the report says so.
fn entry(raw: &RawValueRewrite, key: &str, report: &mut Report) -> Option<ValueRewrite> {
    let to = raw.to.as_ref();
    if let Some(to) = to.filter(|to| key != "location" && to.value.0.contains(';')) {
        report.add(to.location, Wrong::new("a `;` ends an attribute of a cookie").hint("write the text up to it"));
    }
    let (from, regex) = match (&raw.from, &raw.regex) {
        (Some(from), _) => (ValueFrom::Text(from.value.0.clone()), None),
        (None, Some(regex)) => (ValueFrom::Regex(regex.value.regex.clone()), Some(&regex.value.regex)),
        (None, None) => return None,
    };
    let Located { location, value: ReplacingText(text) } = to?;
    match parts(text, regex) {
        Ok(to) => Some(ValueRewrite { from, to }),
        Err(wrong) => {
            report.add(*location, wrong);
            None
        }
    }
}

fn parts(text: &str, regex: Option<&Regex>) -> Result<Vec<ToPart>, Wrong> {
    let mut references = 0;
    let parts = dollar::parts(text, |after| {
        let means_nothing = || {
            let what =
                if regex.is_some() { "`$1`, `${name}`, `${scheme}`, `${host}`" } else { "`${scheme}`, `${host}`" };
            Wrong::new("a `$` stands before no variable").hint(format!("write {what}, or `$$` for a dollar sign"))
        };
        let (name, behind) = reference(after).ok_or_else(means_nothing)?;
        references += 1;
        if references > GROUPS_MAX {
            return Err(Wrong::new(format!("more than {GROUPS_MAX} variables and groups are put into one value")));
        }
        let part = match (name, regex) {
            ("scheme", _) => ToPart::Scheme,
            ("host", _) => ToPart::Host,
            (name, Some(regex)) => ToPart::Group(group(name, regex, "`regex`")?),
            (_, None) => return Err(means_nothing()),
        };
        Ok((part, behind))
    })?;
    let part = |part| match part {
        Part::Text(text) => ToPart::Text(text),
        Part::Reference(part) => part,
    };
    Ok(parts.into_iter().map(part).collect())
}
