//! Conditions of HAProxy as conditions of routes.

use ipnet::IpNet;
use serde_json::{Value, json};

use super::super::draft::{Keys, escaped, searched};
use super::{Line, Section};

/// What a term says about a request.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Term {
    /// Conditions of a route: any of these.
    Keys(Vec<Keys>),
    /// The address of the client.
    Source(Vec<IpNet>),
    /// It always holds here, or never.
    Is(bool),
    /// It counts requests or connections.
    Rate,
    Unknown,
}

/// A term, and whether it must not hold.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Signed {
    pub(super) term: Term,
    pub(super) is_negated: bool,
}

/// The condition of a rule: any of these lists, all terms of which must hold. `None` if the rule has no condition.
pub(super) fn condition(line: &Line, section: &Section, is_tls: bool) -> Option<Vec<Vec<Signed>>> {
    let begin = line.words.iter().position(|word| word == "if" || word == "unless")?;
    let is_unless = line.word(begin) == "unless";
    let mut lists = vec![Vec::new()];
    let mut words = line.words.iter().skip(begin + 1).map(String::as_str).peekable();
    while let Some(word) = words.next() {
        if word == "or" || word == "||" {
            lists.push(Vec::new());
            continue;
        }
        let (is_negated, word) = match word.strip_prefix('!') {
            // `! { ... }`
            Some("") => (true, words.next().unwrap_or_default()),
            Some(rest) => (true, rest),
            None => (false, word),
        };
        let term = if word == "{" {
            let inner: Vec<String> = words.by_ref().take_while(|word| *word != "}").map(str::to_owned).collect();
            of(&inner, is_tls)
        } else {
            named(word, section, is_tls)
        };
        if let Some(list) = lists.last_mut() {
            list.push(Signed { term, is_negated });
        }
    }
    if !is_unless {
        return Some(lists);
    }
    // `unless a b` is `if !a or !b`.
    match &lists[..] {
        [list] => {
            Some(list.iter().map(|one| vec![Signed { is_negated: !one.is_negated, term: one.term.clone() }]).collect())
        }
        _ => Some(vec![vec![Signed { term: Term::Unknown, is_negated: false }]]),
    }
}

/// The term of an acl: entries with the same name are alternatives.
fn named(name: &str, section: &Section, is_tls: bool) -> Term {
    match name {
        "TRUE" => return Term::Is(true),
        "FALSE" => return Term::Is(false),
        "METH_GET" => return of(&["method".to_owned(), "GET".to_owned(), "HEAD".to_owned()], is_tls),
        "METH_POST" => return of(&["method".to_owned(), "POST".to_owned()], is_tls),
        "METH_OPTIONS" => return of(&["method".to_owned(), "OPTIONS".to_owned()], is_tls),
        "LOCALHOST" => return of(&["src".to_owned(), "127.0.0.0/8".to_owned(), "::1".to_owned()], is_tls),
        _ => {}
    }
    let mut terms = section
        .lines
        .iter()
        .filter(|line| line.word(0) == "acl" && line.word(1) == name)
        .map(|line| of(line.words.get(2..).unwrap_or_default(), is_tls));
    let Some(first) = terms.next() else { return Term::Unknown };
    terms.fold(first, |one, other| match (one, other) {
        (Term::Keys(mut one), Term::Keys(other)) => {
            one.extend(other);
            Term::Keys(one)
        }
        (Term::Source(mut one), Term::Source(other)) => {
            one.extend(other);
            Term::Source(one)
        }
        (Term::Is(one), Term::Is(other)) => Term::Is(one || other),
        _ => Term::Unknown,
    })
}

/// The term of a fetch, its flags and its values.
fn of(words: &[String], is_tls: bool) -> Term {
    let Some((fetch, rest)) = words.split_first() else { return Term::Unknown };
    let (mut ignores_case, mut method, mut values) = (false, None, Vec::new());
    let mut rest = rest.iter();
    while let Some(word) = rest.next() {
        match word.as_str() {
            "-i" => ignores_case = true,
            "-m" => method = rest.next().map(String::as_str),
            "--" => {}
            "-f" | "-M" | "-u" | "-n" => return Term::Unknown,
            value => values.push(value.to_owned()),
        }
    }
    let (base, argument) = match fetch.split_once('(') {
        Some((base, rest)) => match rest.strip_suffix(')') {
            Some(argument) => (base, argument.split(',').next().unwrap_or_default()),
            // A converter follows.
            None => return Term::Unknown,
        },
        None => (fetch.as_str(), ""),
    };
    let base = base.strip_prefix("req.").or(base.strip_prefix("req_")).unwrap_or(base);
    let known =
        ["_beg", "_end", "_sub", "_reg", "_dir", "_dom", "_str", "_len"].iter().find(|end| base.ends_with(*end));
    let (base, method) = match known {
        Some(end) => (base.strip_suffix(end).unwrap_or(base), Some(&end[1..])),
        None => (base, method),
    };
    match base {
        "always_true" => Term::Is(true),
        "always_false" => Term::Is(false),
        "ssl_fc" => Term::Is(is_tls),
        "src" if method.is_none() => source(&values),
        "method" if method.is_none() => Term::Keys(vec![Keys::default().with("methods", values)]),
        "path" => path(method.unwrap_or("str"), &values, ignores_case),
        "hdr" | "fhdr" if argument.eq_ignore_ascii_case("host") => host(method.unwrap_or("str"), &values),
        "ssl_fc_sni" | "ssl_sni" if ["str", "end"].contains(&method.unwrap_or("str")) => {
            let Term::Keys(all) = host(method.unwrap_or("str"), &values) else { return Term::Unknown };
            Term::Keys(all)
        }
        "hdr" | "fhdr" => valued("headers", argument, method.unwrap_or("str"), &values, ignores_case),
        "hdr_cnt" if values.join(" ") == "gt 0" => valued("headers", argument, "found", &[], false),
        "cook" => valued("cookies", argument, method.unwrap_or("str"), &values, ignores_case),
        "url_param" | "urlp" => valued("query", argument, method.unwrap_or("str"), &values, ignores_case),
        base if base.starts_with("sc_")
            || base.starts_with("sc0_")
            || base.starts_with("sc1_")
            || base.starts_with("src_")
            || base.ends_with("_rate") =>
        {
            Term::Rate
        }
        _ => Term::Unknown,
    }
}

fn source(values: &[String]) -> Term {
    let network = |text: &String| {
        text.parse::<IpNet>().ok().or_else(|| Some(IpNet::from(text.parse::<std::net::IpAddr>().ok()?)))
    };
    values
        .iter()
        .map(network)
        .collect::<Option<Vec<_>>>()
        .filter(|all| !all.is_empty())
        .map_or(Term::Unknown, Term::Source)
}

/// The expression of the whole value for a way of comparison.
fn expression(method: &str, values: &[String], ignores_case: bool) -> Option<String> {
    if method == "reg" {
        let [one] = values else { return None };
        return searched(one, ignores_case);
    }
    let all: Vec<String> = values.iter().map(|value| escaped(value)).collect();
    let any = match &all[..] {
        [] => return None,
        [one] => one.clone(),
        all => format!("(?:{})", all.join("|")),
    };
    let case = if ignores_case { "(?i)" } else { "" };
    Some(match method {
        "str" => format!("{case}{any}"),
        "beg" => format!("{case}{any}.*"),
        "end" => format!("{case}.*{any}"),
        "sub" => format!("{case}.*{any}.*"),
        "dir" => format!("{case}.*/{any}(?:/.*)?"),
        _ => return None,
    })
}

fn path(method: &str, values: &[String], ignores_case: bool) -> Term {
    let one = |path: Value| Term::Keys(vec![Keys::default().with("path", path)]);
    match (method, values) {
        ("str", [path]) if !ignores_case => one(json!({"exact": path})),
        _ => expression(method, values, ignores_case).map_or(Term::Unknown, |regex| one(json!({"regex": regex}))),
    }
}

/// Conditions on the host: names, and names with anything in front.
fn host(method: &str, values: &[String]) -> Term {
    let name = |value: &String| {
        let value = value.to_ascii_lowercase();
        let value = value.split(':').next().unwrap_or_default().to_owned();
        let is_name = |text: &str| {
            !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-.".contains(&byte))
        };
        match method {
            "str" if is_name(&value) => Some(vec![value]),
            "end" => value.strip_prefix('.').filter(|rest| is_name(rest)).map(|_| vec![format!("*{value}")]),
            "dom" if is_name(&value) => Some(vec![format!("*.{value}"), value]),
            _ => None,
        }
    };
    let names: Option<Vec<Vec<String>>> = values.iter().map(name).collect();
    match names {
        Some(names) if !names.is_empty() => Term::Keys(vec![Keys::default().with("hosts", names.concat())]),
        _ => Term::Unknown,
    }
}

fn valued(key: &str, name: &str, method: &str, values: &[String], ignores_case: bool) -> Term {
    let condition = match (method, values) {
        ("found", _) => Some(json!({"present": true})),
        ("str", [value]) if !ignores_case => Some(json!(value)),
        _ => expression(method, values, ignores_case).map(|regex| json!({"regex": regex})),
    };
    let Some(condition) = condition.filter(|_| !name.is_empty()) else { return Term::Unknown };
    let mut keys = Keys::default();
    keys.set_in(key, name, condition);
    Term::Keys(vec![keys])
}

/// The conditions of routes for a list of terms.
pub(super) struct Routes {
    pub(super) keys: Vec<Keys>,
    /// Whether they are exact; otherwise they take more requests than the list.
    pub(super) is_exact: bool,
    /// It is about rates.
    pub(super) has_rate: bool,
}

/// `None` if the list never holds here.
pub(super) fn routes(list: &[Signed]) -> Option<Routes> {
    const ALTERNATIVES_MAX: usize = 64;
    let mut all = Routes { keys: vec![Keys::default()], is_exact: true, has_rate: false };
    for Signed { term, is_negated } in list {
        match (term, is_negated) {
            (Term::Is(holds), is_negated) if holds == is_negated => return None,
            (Term::Is(_), _) => {}
            (Term::Keys(any), false) => {
                let mut next = Vec::new();
                for keys in &all.keys {
                    for other in any {
                        // Two conditions on the same part have no form here: one of them is left out.
                        let is_map = |key: &str| ["headers", "cookies", "query"].contains(&key);
                        let clashes = other.entries().any(|(key, _)| keys.get(key).is_some() && !is_map(key));
                        all.is_exact &= !clashes;
                        let mut both = keys.clone();
                        for (key, value) in other.entries().filter(|_| !clashes) {
                            match value.as_object().filter(|_| is_map(key)) {
                                Some(inner) => {
                                    inner.iter().for_each(|(name, value)| both.set_in(key, name, value.clone()))
                                }
                                None => both.set(key, value.clone()),
                            }
                        }
                        next.push(both);
                    }
                }
                match next.len() {
                    0..=ALTERNATIVES_MAX => all.keys = next,
                    _ => all.is_exact = false,
                }
            }
            (Term::Rate, _) => (all.is_exact, all.has_rate) = (false, true),
            (Term::Keys(_), true) | (Term::Source(_) | Term::Unknown, _) => all.is_exact = false,
        }
    }
    Some(all)
}
