//! Variables of nginx, and what they are called here.

/// A part of a text: text, or what a variable of nginx is called here.
pub(super) enum Part {
    Text(String),
    Variable(String),
}

impl Part {
    /// As templates have it.
    pub(super) fn written(&self) -> String {
        match self {
            Self::Text(text) => text.replace('$', "$$"),
            Self::Variable(name) => format!("${{{name}}}"),
        }
    }
}

/// The parts of a text, each variable that is not known as an error.
///
/// # Errors
/// A `$` stands before no name.
pub(super) fn parts(by: &str, variable: impl Fn(&str) -> Option<Part>) -> Result<Vec<Result<Part, String>>, String> {
    let mut parts = Vec::new();
    let mut rest = by;
    while let Some((before, after)) = rest.split_once('$') {
        if !before.is_empty() {
            parts.push(Ok(Part::Text(before.to_owned())));
        }
        let (name, behind) = match after.strip_prefix('{').map(|braced| braced.split_once('}')) {
            Some(Some(found)) => found,
            Some(None) => return Err("a `${` has no end".to_owned()),
            None => {
                let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
                after.split_at(after.bytes().take_while(is_name).count())
            }
        };
        if name.is_empty() {
            return Err("a `$` stands before no name".to_owned());
        }
        parts.push(variable(name).ok_or_else(|| format!("${name}")));
        rest = behind;
    }
    if !rest.is_empty() {
        parts.push(Ok(Part::Text(rest.to_owned())));
    }
    Ok(parts)
}

/// What a variable of nginx is here. Names of variables are in any case; the name of a cookie in one stays as it is written.
pub(super) fn variable(written: &str) -> Option<Part> {
    let name = written.to_ascii_lowercase();
    let of = |name: &str| Some(Part::Variable(name.to_owned()));
    let has_rest = |prefix: &str| name.strip_prefix(prefix).filter(|rest| !rest.is_empty());
    match name.as_str() {
        "remote_addr" | "binary_remote_addr" | "the_real_ip" => of("client_ip"),
        "request_uri" => of("target"),
        "uri" | "document_uri" => of("path"),
        "args" | "query_string" => of("query"),
        // `?` if there are arguments. What it stands between differs if they do, so it may be there always.
        "is_args" => Some(Part::Text("?".to_owned())),
        "host" => of("host"),
        "http_host" | "best_http_host" => of("authority"),
        "scheme" | "pass_access_scheme" => of("scheme"),
        "request_method" => of("method"),
        "server_port" | "pass_server_port" => of("port"),
        "content_type" => of("header.content-type"),
        _ => match (has_rest("http_"), has_rest("arg_"), has_rest("cookie_")) {
            (Some(header), ..) => of(&format!("header.{}", header.replace('_', "-"))),
            (_, Some(parameter), _) => of(&format!("query.{parameter}")),
            (.., Some(_)) => of(&format!("cookie.{}", written.get("cookie_".len()..)?)),
            _ => None,
        },
    }
}

/// A text for the question to auth-url, with the variables of Steelyard.
///
/// # Errors
/// Says in a sentence what of it is not understood.
pub(super) fn of_question(text: &str) -> Result<String, String> {
    if text.bytes().any(|byte| !(b' '..=b'~').contains(&byte)) {
        return Err("it is not one line of printable ASCII".to_owned());
    }
    let parts = parts(text, in_question)?;
    let unknown: Vec<&str> = parts.iter().filter_map(|part| part.as_ref().err().map(String::as_str)).collect();
    match unknown.as_slice() {
        [] => Ok(parts.into_iter().flatten().map(|part| part.written()).collect()),
        unknown => Err(format!("{} is not known for the question to auth-url", unknown.join(", "))),
    }
}

/// What a variable of nginx is in the question to auth-url. Path and arguments are those of the question there, so the client's are in `$request_uri`
/// alone.
fn in_question(written: &str) -> Option<Part> {
    let name = written.to_ascii_lowercase();
    let ours = match name.as_str() {
        "uri" | "document_uri" | "args" | "query_string" | "is_args" => return None,
        _ if name.starts_with("arg_") => return None,
        "req_id" => "request_id",
        "remote_port" => "client_port",
        "ssl_protocol" => "tls_version",
        "ssl_server_name" => "sni",
        _ => return variable(written),
    };
    Some(Part::Variable(ours.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_questions() {
        let check = |text: &str, expect: Result<&str, &str>| match (of_question(text), expect) {
            (Ok(found), Ok(expect)) => assert_eq!(found, expect, "{text}"),
            (Err(why), Err(part)) => assert!(why.contains(part), "{text}: {why}"),
            (found, _) => panic!("{text}: {found:?}"),
        };
        check("https://$http_host$request_uri", Ok("https://${authority}${target}"));
        check("a b; $remote_addr/$http_x_user-${cookie_Id}", Ok("a b; ${client_ip}/${header.x-user}-${cookie.Id}"));
        check("$req_id $scheme $request_method", Ok("${request_id} ${scheme} ${method}"));
        check("$uri", Err("$uri is not known"));
        check("$arg_a$args$request_uri", Err("$arg_a, $args is not known"));
        check("$geoip_city", Err("$geoip_city"));
        check("a\nb", Err("one line"));
        check("$", Err("before no name"));
    }
}
