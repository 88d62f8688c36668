//! Text made of the parts of a request: `${host}${path}`. Hash keys are such texts, and headers of questions to a service.

use model::{RequestPart, Variable};

use super::dollar::{self, Part};
use super::http::{CookieName, HeaderName};
use super::policy::HeaderValue;
use crate::define::Form;
use crate::diagnostic::{Wrong, nearest, ticked};
use crate::read::Formed;

/// The most parts of a text, which is made anew for each request.
const PARTS_MAX: usize = 64;

/// Variables without a name of something in them.
const PLAIN: [(&str, RequestPart); 9] = [
    ("client_ip", RequestPart::ClientIp),
    ("method", RequestPart::Method),
    ("scheme", RequestPart::Scheme),
    ("host", RequestPart::Host),
    ("authority", RequestPart::Authority),
    ("port", RequestPart::Port),
    ("target", RequestPart::Target),
    ("path", RequestPart::Path),
    ("query", RequestPart::Query),
];

/// What a hash key is made of. It has a variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HashTemplate(pub Vec<RequestPart>);

/// What is known of a connection or a request besides, which a header may have.
const OF_HEADERS: [Variable; 10] = [
    Variable::ClientPort,
    Variable::RequestId,
    Variable::TlsVersion,
    Variable::Sni,
    Variable::ClientCert,
    Variable::ClientCertPem,
    Variable::ClientCertSubject,
    Variable::ClientCertIssuer,
    Variable::ClientCertVerify,
    Variable::ClientCertSha256,
];

/// The query of a URL, with the variables of hash keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueryTemplate(pub Vec<RequestPart>);

impl Formed for QueryTemplate {
    const FORM: Form = Form { noun: "a query", example: "for=${target}", pattern: Some("^[!-~]*$") };

    fn parse(text: &str) -> Result<Self, Wrong> {
        if !text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#') {
            let wrong = Wrong::new(format!("{} is not a query", ticked(text)));
            return Err(wrong.hint("write other characters percent-encoded, and no `#`"));
        }
        parts(text, &[]).map(Self)
    }
}

/// A value that may have variables of both kinds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestTemplate(pub Vec<RequestPart>);

impl Formed for HashTemplate {
    const FORM: Form = Form { noun: "text", example: "${host}${path}", pattern: HeaderValue::FORM.pattern };

    fn parse(text: &str) -> Result<Self, Wrong> {
        let parts = parts(text, &[])?;
        if parts.iter().all(|part| matches!(part, RequestPart::Text(_))) {
            let wrong =
                Wrong::new(format!("{} has no variable, so all requests would have the same key", ticked(text)));
            return Err(wrong.hint("write `${host}${path}`, or another variable"));
        }
        Ok(Self(parts))
    }
}

impl Formed for RequestTemplate {
    const FORM: Form = Form { noun: "text", example: "${target}", pattern: HeaderValue::FORM.pattern };

    fn parse(text: &str) -> Result<Self, Wrong> {
        parts(text, &OF_HEADERS).map(Self)
    }
}

/// The parts of a text with the variables of hash keys and these.
pub(super) fn parts(text: &str, also: &[Variable]) -> Result<Vec<RequestPart>, Wrong> {
    let HeaderValue(text) = HeaderValue::parse(text)?;
    let part = |part| match part {
        Part::Text(text) => RequestPart::Text(text),
        Part::Reference(part) => part,
    };
    let parts = dollar::parts(&text, |after| reference(after, also))?;
    if parts.len() > PARTS_MAX {
        return Err(Wrong::new(format!("the text has {} parts; the limit is {PARTS_MAX}", parts.len())));
    }
    Ok(parts.into_iter().map(part).collect())
}

/// The variable after a `$`, and the text behind it.
fn reference<'t>(text: &'t str, also: &[Variable]) -> Result<(RequestPart, &'t str), Wrong> {
    let Some((name, behind)) = text.strip_prefix('{').and_then(|braced| braced.split_once('}')) else {
        let wrong = Wrong::new("a `$` stands before no variable");
        return Err(wrong.hint("write `${client_ip}`, or `$$` for a dollar sign"));
    };
    if let Some((_, part)) = PLAIN.iter().find(|(known, _)| *known == name) {
        return Ok((part.clone(), behind));
    }
    if let Some(variable) = also.iter().find(|variable| variable.name() == name) {
        return Ok((RequestPart::Variable(*variable), behind));
    }
    let part = match name.split_once('.') {
        Some(("header", header)) => RequestPart::Header(HeaderName::parse(header)?.0),
        Some(("cookie", cookie)) => RequestPart::Cookie(CookieName::parse(cookie)?.0),
        Some(("query", parameter)) if !parameter.is_empty() => RequestPart::Parameter(parameter.to_owned()),
        _ => return Err(unknown(name, also)),
    };
    Ok((part, behind))
}

fn unknown(name: &str, also: &[Variable]) -> Wrong {
    let names = || PLAIN.iter().map(|(known, _)| *known).chain(also.iter().map(|variable| variable.name()));
    let of = if also.is_empty() { " in a hash key" } else { "" };
    let wrong = Wrong::new(format!("there is no variable {}{of}", ticked(name)));
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

    #[test]
    fn headers_may_have_more_variables() {
        let check = |text: &str, expect: &str| {
            let shown =
                RequestTemplate::parse(text).map_or_else(|wrong| wrong.to_string(), |found| format!("{:?}", found.0));
            assert_eq!(shown, expect, "{text}");
        };
        check("", "[]");
        check("me", r#"[Text("me")]"#);
        check("https://${authority}${target}", r#"[Text("https://"), Authority, Target]"#);
        check("${request_id}", "[Variable(RequestId)]");
        check("${client_cert}", "[Variable(ClientCert)]");
        check("${snis}", "there is no variable `snis`; write `${sni}`");
        check("${header.a b}", "\"a b\" is not the name of a header; use letters, digits and !#$%&'*+-.^_`|~");
        assert!(HashTemplate::parse("${request_id}").is_err());
    }
}
