//! Names of spans: `${method} ${path}`.

use model::SpanNamePart;

use super::dollar::{self, Part};
use super::policy::HeaderValue;
use crate::define::Form;
use crate::diagnostic::{Wrong, nearest};
use crate::read::Formed;

/// The longest text, and so the most parts.
const TEXT_BYTES_MAX: usize = 256;

/// What stands for a part of the request.
const VARIABLES: [(&str, SpanNamePart); 4] = [
    ("method", SpanNamePart::Method),
    ("host", SpanNamePart::Host),
    ("path", SpanNamePart::Path),
    ("route", SpanNamePart::Route),
];

/// What the name of a span is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpanName(pub Vec<SpanNamePart>);

impl Formed for SpanName {
    const FORM: Form = Form { noun: "text", example: "checkout ${method}", pattern: HeaderValue::FORM.pattern };

    fn parse(text: &str) -> Result<Self, Wrong> {
        let HeaderValue(text) = HeaderValue::parse(text)?;
        if text.is_empty() || text.len() > TEXT_BYTES_MAX {
            return Err(Wrong::new(format!("the name of a span has 1 to {TEXT_BYTES_MAX} bytes")));
        }
        let part = |part| match part {
            Part::Text(text) => SpanNamePart::Text(text),
            Part::Reference(part) => part,
        };
        Ok(Self(dollar::parts(&text, reference)?.into_iter().map(part).collect()))
    }
}

/// The variable after a `$`, and the text behind it.
fn reference(text: &str) -> Result<(SpanNamePart, &str), Wrong> {
    let known = || VARIABLES.iter().map(|(name, _)| *name);
    let list = || known().map(|name| format!("`${{{name}}}`")).collect::<Vec<_>>().join(", ");
    let Some((name, behind)) = text.strip_prefix('{').and_then(|braced| braced.split_once('}')) else {
        let wrong = Wrong::new("a `$` stands before no variable");
        return Err(wrong.hint(format!("write one of {}, or `$$` for a dollar sign", list())));
    };
    match VARIABLES.iter().find(|(known, _)| *known == name) {
        Some((_, part)) => Ok((part.clone(), behind)),
        None => {
            let wrong = Wrong::new(format!("there is no variable `${{{name}}}` in the name of a span"));
            let maybe = nearest(name, known()).map(|name| format!("; did you mean `${{{name}}}`?"));
            Err(wrong.hint(format!("use {}{}", list(), maybe.unwrap_or_default())))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_spans() {
        let parsed = |text: &str| SpanName::parse(text).map(|SpanName(parts)| parts);
        let text = |text: &str| SpanNamePart::Text(text.to_owned());
        assert_eq!(parsed("checkout").unwrap(), [text("checkout")]);
        let all = "a ${method}${host}${path} $$${route}";
        let expect =
            [text("a "), SpanNamePart::Method, SpanNamePart::Host, SpanNamePart::Path, text(" $"), SpanNamePart::Route];
        assert_eq!(parsed(all).unwrap(), expect);
        for wrong in ["", "$", "$method", "${method", "${cookie.a}", "a\nb", &"a".repeat(257)] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
    }
}
