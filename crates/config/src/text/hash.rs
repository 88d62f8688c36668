//! Hash keys made of the parts of a request: `${host}${path}`.

use model::HashPart;

use super::dollar::{self, Part};
use super::http::{CookieName, HeaderName};
use super::policy::HeaderValue;
use crate::define::Form;
use crate::diagnostic::{Wrong, nearest, ticked};
use crate::read::Formed;

/// The most parts of a key, which is made anew for each request.
const PARTS_MAX: usize = 64;

/// Variables without a name of something in them.
const PLAIN: [(&str, HashPart); 9] = [
    ("client_ip", HashPart::ClientIp),
    ("method", HashPart::Method),
    ("scheme", HashPart::Scheme),
    ("host", HashPart::Host),
    ("authority", HashPart::Authority),
    ("port", HashPart::Port),
    ("target", HashPart::Target),
    ("path", HashPart::Path),
    ("query", HashPart::Query),
];

/// What a hash key is made of. It has a variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HashTemplate(pub Vec<HashPart>);

impl Formed for HashTemplate {
    const FORM: Form = Form { noun: "text", example: "${host}${path}", pattern: HeaderValue::FORM.pattern };

    fn parse(text: &str) -> Result<Self, Wrong> {
        let HeaderValue(text) = HeaderValue::parse(text)?;
        let part = |part| match part {
            Part::Text(text) => HashPart::Text(text),
            Part::Reference(part) => part,
        };
        let parts: Vec<HashPart> = dollar::parts(&text, reference)?.into_iter().map(part).collect();
        if parts.iter().all(|part| matches!(part, HashPart::Text(_))) {
            let wrong =
                Wrong::new(format!("{} has no variable, so all requests would have the same key", ticked(&text)));
            return Err(wrong.hint("write `${host}${path}`, or another variable"));
        }
        if parts.len() > PARTS_MAX {
            return Err(Wrong::new(format!("the key has {} parts; the limit is {PARTS_MAX}", parts.len())));
        }
        Ok(Self(parts))
    }
}

/// The variable after a `$`, and the text behind it.
fn reference(text: &str) -> Result<(HashPart, &str), Wrong> {
    let Some((name, behind)) = text.strip_prefix('{').and_then(|braced| braced.split_once('}')) else {
        let wrong = Wrong::new("a `$` stands before no variable");
        return Err(wrong.hint("write `${client_ip}`, or `$$` for a dollar sign"));
    };
    if let Some((_, part)) = PLAIN.iter().find(|(known, _)| *known == name) {
        return Ok((part.clone(), behind));
    }
    let part = match name.split_once('.') {
        Some(("header", header)) => HashPart::Header(HeaderName::parse(header)?.0),
        Some(("cookie", cookie)) => HashPart::Cookie(CookieName::parse(cookie)?.0),
        Some(("query", parameter)) if !parameter.is_empty() => HashPart::Parameter(parameter.to_owned()),
        _ => return Err(unknown(name)),
    };
    Ok((part, behind))
}

fn unknown(name: &str) -> Wrong {
    let names = || PLAIN.iter().map(|(known, _)| *known);
    let wrong = Wrong::new(format!("there is no variable {} in a hash key", ticked(name)));
    wrong.hint(match nearest(name, names()) {
        Some(near) => format!("write `${{{near}}}`"),
        None => {
            let all: Vec<&str> = names().chain(["query.NAME", "header.NAME", "cookie.NAME"]).collect();
            format!("it can be {}", all.join(", "))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_with_variables() {
        let check = |text: &str, expect: &str| {
            let shown =
                HashTemplate::parse(text).map_or_else(|wrong| wrong.to_string(), |found| format!("{:?}", found.0));
            assert_eq!(shown, expect, "{text}");
        };
        check("${host}${path}", "[Host, Path]");
        check("a$$-${query.user}/${header.X-User}", r#"[Text("a$-"), Parameter("user"), Text("/"), Header("x-user")]"#);
        check("${cookie.id}", r#"[Cookie("id")]"#);
        check("${hosts}", "there is no variable `hosts` in a hash key; write `${host}`");
        check(
            "${uid}",
            "there is no variable `uid` in a hash key; it can be client_ip, method, scheme, host, authority, port, target, path, query, \
             query.NAME, header.NAME, cookie.NAME",
        );
        check("$host", "a `$` stands before no variable; write `${client_ip}`, or `$$` for a dollar sign");
        check("${query.}", "there is no variable `query.` in a hash key; write `${query}`");
        check(
            "me",
            "`me` has no variable, so all requests would have the same key; write `${host}${path}`, or another variable",
        );
        assert!(HashTemplate::parse(&"${host}a".repeat(40)).is_err());
    }
}
