//! Values of header fields with variables: `${client_ip}`.
//!
//! The syntax is that of the captures in paths (`lower::template`): a `$` always begins something, and `$$` is a dollar sign. A `$` that
//! means nothing is an error and never text, so that a mistyped variable cannot reach an endpoint as a value.

use model::{FieldPart, FieldValue, Variable};

use super::dollar::{self, Part};
use super::policy::HeaderValue;
use crate::define::Form;
use crate::diagnostic::{Wrong, nearest, ticked};
use crate::read::Formed;

/// The most parts of a value, which is made anew for each request.
const PARTS_MAX: usize = 64;

/// The value of a header that may have variables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderTemplate(pub FieldValue);

impl Formed for HeaderTemplate {
    const FORM: Form = Form { noun: "text", example: "${client_ip}", pattern: HeaderValue::FORM.pattern };

    fn parse(text: &str) -> Result<Self, Wrong> {
        let HeaderValue(text) = HeaderValue::parse(text)?;
        if !text.contains('$') {
            return Ok(Self(FieldValue::Text(text)));
        }
        let part = |part| match part {
            Part::Text(text) => FieldPart::Text(text),
            Part::Reference(variable) => FieldPart::Variable(variable),
        };
        let mut parts: Vec<FieldPart> = dollar::parts(&text, reference)?.into_iter().map(part).collect();
        // Without a variable there is one text at most.
        if let [FieldPart::Text(text)] = parts.as_mut_slice() {
            return Ok(Self(FieldValue::Text(std::mem::take(text))));
        }
        if parts.len() > PARTS_MAX {
            return Err(Wrong::new(format!("the value has {} parts; the limit is {PARTS_MAX}", parts.len())));
        }
        Ok(Self(FieldValue::Template(parts.into())))
    }
}

/// The variable after a `$`, and the text behind it.
fn reference(text: &str) -> Result<(Variable, &str), Wrong> {
    if let Some((name, behind)) = text.strip_prefix('{').and_then(|braced| braced.split_once('}')) {
        return match Variable::ALL.iter().find(|variable| variable.name() == name) {
            Some(variable) => Ok((*variable, behind)),
            None => Err(unknown(name)),
        };
    }
    let length = text.bytes().take_while(|byte| byte.is_ascii_alphanumeric() || *byte == b'_').count();
    let name = text.get(..length).unwrap_or_default();
    // The likely cause is the syntax of nginx.
    if let Some(variable) = meant(name) {
        let wrong = Wrong::new(format!("{} is not a variable", ticked(&format!("${name}"))));
        return Err(wrong.hint(format!("write `${{{}}}`, or `$$` for a dollar sign", variable.name())));
    }
    Err(Wrong::new("a `$` stands before no variable").hint("write `${client_ip}`, or `$$` for a dollar sign"))
}

fn unknown(name: &str) -> Wrong {
    let wrong = Wrong::new(format!("there is no variable {}", ticked(name)));
    wrong.hint(match meant(name) {
        Some(variable) => format!("write `${{{}}}`", variable.name()),
        None => {
            let names: Vec<_> = Variable::ALL.iter().map(|variable| variable.name()).collect();
            format!("it can be {}", names.join(", "))
        }
    })
}

/// The variable that a name stands for in other proxies, or that it almost is.
fn meant(name: &str) -> Option<Variable> {
    let known = [
        ("remote_addr", Variable::ClientIp),
        ("realip_remote_addr", Variable::ClientIp),
        ("remote_port", Variable::ClientPort),
        ("client_address", Variable::ClientIp),
        ("ssl_protocol", Variable::TlsVersion),
        ("ssl_server_name", Variable::Sni),
        ("ssl_client_escaped_cert", Variable::ClientCertPem),
        ("ssl_client_cert", Variable::ClientCertPem),
        ("ssl_client_s_dn", Variable::ClientCertSubject),
        ("ssl_client_i_dn", Variable::ClientCertIssuer),
        ("ssl_client_verify", Variable::ClientCertVerify),
        ("ssl_client_fingerprint", Variable::ClientCertSha256),
        ("upstream_addr", Variable::Endpoint),
        ("time_iso8601", Variable::Time),
    ];
    if let Some((_, variable)) = known.iter().find(|(other, _)| *other == name) {
        return Some(*variable);
    }
    let near = nearest(name, Variable::ALL.iter().map(|variable| variable.name()))?;
    Variable::ALL.iter().copied().find(|variable| variable.name() == near)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_with_variables() {
        let check = |text: &str, expect: &str| {
            let shown = HeaderTemplate::parse(text).map_or_else(
                |wrong| wrong.to_string(),
                |HeaderTemplate(value)| match value {
                    FieldValue::Text(text) => text,
                    FieldValue::Template(parts) => {
                        let part = |part: &FieldPart| match part {
                            FieldPart::Text(text) => text.clone(),
                            FieldPart::Variable(variable) => format!("<{}>", variable.name()),
                        };
                        parts.iter().map(part).collect()
                    }
                },
            );
            assert_eq!(shown, expect, "{text}");
        };
        check("plain 50%", "plain 50%");
        check("${client_ip}", "<client_ip>");
        check("for=${client_ip}:${client_port};$$1", "for=<client_ip>:<client_port>;$1");
        check("$$", "$");
        check("$${sni}", "${sni}");
        check("a$", "a `$` stands before no variable; write `${client_ip}`, or `$$` for a dollar sign");
        check("$5", "a `$` stands before no variable; write `${client_ip}`, or `$$` for a dollar sign");
        check("${sni", "a `$` stands before no variable; write `${client_ip}`, or `$$` for a dollar sign");
        check("$remote_addr", "`$remote_addr` is not a variable; write `${client_ip}`, or `$$` for a dollar sign");
        check("$sni", "`$sni` is not a variable; write `${sni}`, or `$$` for a dollar sign");
        check("${client_cert_sha1}", "there is no variable `client_cert_sha1`; write `${client_cert_sha256}`");
        check("${upstream_addr}", "there is no variable `upstream_addr`; write `${endpoint}`");
        check(
            "${cookie}",
            "there is no variable `cookie`; it can be client_ip, client_port, request_id, tls_version, sni, client_cert, \
             client_cert_pem, client_cert_subject, client_cert_issuer, client_cert_verify, shown_cert_pem, \
             shown_cert_subject, shown_cert_issuer, client_cert_sha256, listener, route, cluster, endpoint, time",
        );
        check("${ sni}", "there is no variable ` sni`; write `${sni}`");
        check(
            "${client_ip} ",
            "\"${client_ip} \" begins or ends with a space; remove it: spaces at the ends are not part of a value",
        );
    }
}
