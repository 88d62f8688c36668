//! Media types.

use model::MediaRange;

use crate::define::Form;
use crate::diagnostic::{Wrong, quoted};
use crate::read::Formed;

/// A media type, or all subtypes of one: `text/html`, `text/*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MediaText(pub MediaRange);

impl Formed for MediaText {
    const FORM: Form = Form {
        noun: "a media type",
        example: "text/html",
        pattern: Some(r"^[0-9A-Za-z!#$%&'+.^_`|~-]+/([0-9A-Za-z!#$%&'+.^_`|~-]+|\*)$"),
    };

    fn parse(text: &str) -> Result<Self, Wrong> {
        let not_one = |hint: &str| Err(Wrong::new(format!("{} is not a media type", quoted(text))).hint(hint));
        if text.contains(';') {
            return not_one("leave out what follows the `;`: parameters do not matter");
        }
        let is_name = |part: &str| {
            !part.is_empty()
                && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'+-.^_`|~".contains(&byte))
        };
        match text.split_once('/') {
            Some((top, "*")) if is_name(top) => Ok(Self(MediaRange { top: top.to_ascii_lowercase(), sub: None })),
            Some((top, sub)) if is_name(top) && is_name(sub) => {
                Ok(Self(MediaRange { top: top.to_ascii_lowercase(), sub: Some(sub.to_ascii_lowercase()) }))
            }
            _ => not_one("write it like text/html, or text/* for all types of text"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn media_types() {
        let check = |text: &str, expect: Result<(&str, Option<&str>), &str>| {
            let read = MediaText::parse(text)
                .map(|MediaText(range)| (range.top, range.sub))
                .map_err(|wrong| wrong.to_string());
            let read = read.as_ref().map(|(top, sub)| (top.as_str(), sub.as_deref())).map_err(String::as_str);
            assert_eq!(read, expect);
        };
        check("Text/HTML", Ok(("text", Some("html"))));
        check("image/svg+xml", Ok(("image", Some("svg+xml"))));
        check("text/*", Ok(("text", None)));
        let hint = "write it like text/html, or text/* for all types of text";
        for wrong in ["", "html", "*/*", "text/", "/html", "text/ht*", "a/b/c"] {
            check(wrong, Err(&format!("{wrong:?} is not a media type; {hint}")));
        }
        check(
            "text/html; charset=utf-8",
            Err(
                "\"text/html; charset=utf-8\" is not a media type; leave out what follows the `;`: parameters do not matter",
            ),
        );
    }
}
