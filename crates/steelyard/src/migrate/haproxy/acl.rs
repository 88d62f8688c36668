//! Conditions of HAProxy as conditions of routes, and how well they fit.

use std::collections::{BTreeSet, HashSet};
use std::net::Ipv4Addr;

use ipnet::IpNet;
use serde_json::{Value, json};

use super::super::draft::Keys;
use super::expression::{expression, in_list};
use super::read::{Line, Section};

/// How the requests that conditions of routes take differ from those that a condition of HAProxy takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fit {
    Exact,
    /// They take all of these, and some more that are written in an odd way.
    Wider,
    /// Either takes some that the other does not, if they are written in an odd way.
    Odd,
    /// They take all of these, and many more, because a part of the condition is left out.
    Part,
}

/// What a term says about a request.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Term {
    /// Conditions of a route: any of these.
    Keys(Vec<Keys>, Fit),
    /// The address of the client.
    Source(Vec<IpNet>),
    /// It always holds here, or never.
    Is(bool),
    /// It limits the rate of requests or connections, or how many are open.
    Rate,
    Unknown,
}

/// A term, and whether it must not hold.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Signed {
    pub(super) term: Term,
    pub(super) is_negated: bool,
}

/// Where a condition stands, and what the rules before it have changed.
#[derive(Clone, Debug, Default)]
pub(super) struct Place {
    pub(super) is_http: bool,
    pub(super) is_tls: bool,
    /// Headers, in lower case. A later condition tests their new values, and a route sees those of the client.
    pub(super) changed: HashSet<String>,
    pub(super) is_path_changed: bool,
}

impl Place {
    fn is_changed(&self, header: &str) -> bool {
        self.changed.contains(&header.to_ascii_lowercase())
    }
}

/// The condition of a rule: any of these lists, all terms of which must hold. `None` if the rule has no condition.
pub(super) fn condition(line: &Line, section: &Section, place: &Place) -> Option<Vec<Vec<Signed>>> {
    let begin = line.words.iter().position(|word| word == "if" || word == "unless")?;
    let is_unless = line.word(begin) == "unless";
    let mut lists = vec![Vec::new()];
    let mut words = line.words.iter().skip(begin + 1).map(String::as_str);
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
            let inner: Vec<&str> = words.by_ref().take_while(|word| *word != "}").collect();
            of(&inner, place)
        } else {
            named(word, section, place)
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

/// How many words a condition is made from.
pub(super) fn size(line: &Line, section: &Section) -> usize {
    let of_acl = |word: &String| section.acl(word.trim_start_matches('!')).map(|line| line.words.len()).sum::<usize>();
    line.words.iter().map(|word| 1 + of_acl(word)).sum()
}

/// The term of an acl: entries with the same name are alternatives.
fn named(name: &str, section: &Section, place: &Place) -> Term {
    let mut terms = section.acl(name).map(|line| {
        let words: Vec<&str> = line.words.iter().skip(2).map(String::as_str).collect();
        of(&words, place)
    });
    let Some(first) = terms.next() else { return predefined(name, place) };
    terms.fold(first, |one, other| match (one, other) {
        (Term::Keys(mut one, fit), Term::Keys(other, of_other)) => {
            one.extend(other);
            Term::Keys(one, fit.max(of_other))
        }
        (Term::Source(mut one), Term::Source(other)) => {
            one.extend(other);
            Term::Source(one)
        }
        (Term::Is(one), Term::Is(other)) => Term::Is(one || other),
        _ => Term::Unknown,
    })
}

fn predefined(name: &str, place: &Place) -> Term {
    let of = |words: &[&str]| of(words, place);
    match name {
        "TRUE" => Term::Is(true),
        "FALSE" => Term::Is(false),
        "METH_GET" => of(&["method", "GET", "HEAD"]),
        "METH_HEAD" | "METH_POST" | "METH_OPTIONS" | "METH_PUT" | "METH_DELETE" | "METH_TRACE" => {
            of(&["method", name.trim_start_matches("METH_")])
        }
        "LOCALHOST" => of(&["src", "127.0.0.0/8", "::1"]),
        _ => Term::Unknown,
    }
}

/// A fetch with its argument, the way of comparison, and the values.
struct Test<'w> {
    base: &'w str,
    argument: &'w str,
    method: Option<&'w str>,
    ignores_case: bool,
    values: Vec<&'w str>,
}

impl<'w> Test<'w> {
    /// `None` if it has a flag, a converter or an argument that is not understood.
    fn read(words: &[&'w str]) -> Option<Self> {
        let (fetch, mut rest) = words.split_first()?;
        let (mut ignores_case, mut method) = (false, None);
        // Flags stand in front of the first value.
        while let Some((flag, after)) = rest.split_first().filter(|(flag, _)| flag.starts_with('-')) {
            rest = after;
            match *flag {
                "-i" => ignores_case = true,
                "-m" => {
                    let (way, after) = rest.split_first()?;
                    (method, rest) = (Some(*way), after);
                }
                "--" => break,
                _ => return None,
            }
        }
        let (base, argument) = match fetch.split_once('(') {
            Some((base, argument)) => (base, argument.strip_suffix(')')?),
            None => (*fetch, ""),
        };
        let is_token = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
        if !is_token(base) || !is_token(argument) {
            // A second argument or a converter, too.
            return None;
        }
        let base = base.strip_prefix("req.").or(base.strip_prefix("req_")).unwrap_or(base);
        let end = ["_beg", "_end", "_sub", "_reg", "_dir", "_dom", "_str", "_len"]
            .into_iter()
            .find(|end| base.ends_with(end));
        let (base, method) = match (end, method) {
            (Some(_), Some(_)) => return None,
            (Some(end), None) => (base.strip_suffix(end)?, end.strip_prefix('_')),
            (None, method) => (base, method),
        };
        Some(Self { base, argument, method, ignores_case, values: rest.to_vec() })
    }
}

/// The term of a fetch, its flags and its values.
fn of(words: &[&str], place: &Place) -> Term {
    if let Some(fetch) = words.first().filter(|fetch| is_rate(fetch)) {
        let is_limit = matches!(words, [_, "gt" | "ge", _]);
        return if is_limit && !fetch.contains(',') { Term::Rate } else { Term::Unknown };
    }
    let Some(test) = Test::read(words) else { return Term::Unknown };
    let way = test.method.unwrap_or("str");
    match test.base {
        "always_true" if test.values.is_empty() => Term::Is(true),
        "always_false" if test.values.is_empty() => Term::Is(false),
        "ssl_fc" if test.values.is_empty() => Term::Is(place.is_tls),
        "src" if test.method.is_none() && test.argument.is_empty() => source(&test.values),
        // The name that a TLS client asks for chooses a backend where no request is read.
        "ssl_fc_sni" if !place.is_http && place.is_tls => host(way, &test.values),
        "ssl_sni" if !place.is_http && !place.is_tls => host(way, &test.values),
        _ if !place.is_http => Term::Unknown,
        "method" if test.method.is_none() && !test.ignores_case => method(&test.values),
        "path" if test.argument.is_empty() && !place.is_path_changed => path(way, &test),
        "hdr" | "fhdr" | "hdr_cnt" | "cook" if place.is_changed(test.header()) => Term::Unknown,
        "hdr" | "fhdr" if test.argument.eq_ignore_ascii_case("host") => host(way, &test.values),
        "hdr" | "fhdr" | "hdr_cnt" => header(way, &test),
        "cook" => odd("cookies", way, &test),
        "url_param" | "urlp" if !place.is_path_changed => odd("query", way, &test),
        _ => Term::Unknown,
    }
}

impl Test<'_> {
    /// The header that it reads.
    fn header(&self) -> &str {
        if self.base == "cook" { "cookie" } else { self.argument }
    }
}

/// Rates, and how many are open: what limits do, and no list of who may come in.
fn is_rate(fetch: &str) -> bool {
    let base = fetch.split('(').next().unwrap_or_default();
    let of_counters = ["sc_", "sc0_", "sc1_", "sc2_", "src_"].iter().any(|begin| base.starts_with(begin));
    of_counters && (base.ends_with("_rate") || base.ends_with("_conn_cur"))
        || ["fe_sess_rate", "be_sess_rate", "fe_req_rate", "fe_conn", "be_conn"].contains(&base)
}

fn source(values: &[&str]) -> Term {
    // `::ffff:10.0.0.0/104` is a network of IPv4 addresses, which has another form here.
    let is_mapped =
        |network: &IpNet| matches!(network, IpNet::V6(network) if network.addr().to_ipv4_mapped().is_some());
    let network =
        |text: &&str| text.parse::<IpNet>().ok().or_else(|| Some(IpNet::from(text.parse::<std::net::IpAddr>().ok()?)));
    values
        .iter()
        .map(|text| network(text).map(|network| network.trunc()))
        .collect::<Option<Vec<_>>>()
        .filter(|all| !all.is_empty() && !all.iter().any(is_mapped))
        .map_or(Term::Unknown, Term::Source)
}

fn method(values: &[&str]) -> Term {
    let is_method = |text: &&str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_uppercase());
    match values.is_empty() || !values.iter().all(is_method) {
        true => Term::Unknown,
        false => Term::Keys(vec![Keys::default().with("methods", values.to_vec())], Fit::Exact),
    }
}

/// Conditions on the path. Routes see its normal form, which is also what endpoints get: see `paths` of the listener in `front`.
fn path(way: &str, test: &Test<'_>) -> Term {
    let one = |path: Value| Term::Keys(vec![Keys::default().with("path", path)], Fit::Exact);
    match (way, &test.values[..]) {
        // Steelyard puts a path into its normal form here, but not in an expression.
        ("str", [path]) if !test.ignores_case && is_plain_path(path) => one(json!({"exact": path})),
        _ => {
            expression(way, &test.values, test.ignores_case).map_or(Term::Unknown, |regex| one(json!({"regex": regex})))
        }
    }
}

/// A path that is in its normal form, whatever that is.
fn is_plain_path(path: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/-_~".contains(&byte);
    path.starts_with('/') && path.bytes().all(is_plain) && !path.contains("//")
}

/// Conditions on the host: names, and names with anything in front. HAProxy compares the port and, without `-i`, the case; a client may
/// write either.
fn host(way: &str, values: &[&str]) -> Term {
    let values: BTreeSet<String> = values.iter().map(|value| value.to_ascii_lowercase()).collect();
    let name = |value: &String| match (way, value.split_once(':')) {
        // Routes ignore the port, so the name has to be there with any or without one.
        ("str", Some((name, _))) => values.contains(name).then(|| name.to_owned()).filter(|name| is_host(name)),
        ("str", None) => Some(value.clone()).filter(|name| is_host(name)),
        ("end", None) => value.strip_prefix('.').filter(|rest| is_domain(rest)).map(|_| format!("*{value}")),
        _ => None,
    };
    let names: Option<BTreeSet<String>> = values.iter().map(name).collect();
    match names {
        Some(names) if !names.is_empty() => {
            let names: Vec<String> = names.into_iter().collect();
            Term::Keys(vec![Keys::default().with("hosts", names)], Fit::Wider)
        }
        _ => Term::Unknown,
    }
}

fn is_host(text: &str) -> bool {
    text.parse::<Ipv4Addr>().is_ok() || is_domain(text)
}

/// A name of labels, the last of which is no number.
fn is_domain(text: &str) -> bool {
    let is_label = |label: &str| {
        let is_edge = |edge: Option<char>| edge == Some('-');
        (1..=63).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
            && !is_edge(label.chars().next())
            && !is_edge(label.chars().next_back())
    };
    let is_number = |label: &str| label.bytes().all(|byte| byte.is_ascii_digit());
    text.len() <= 250 && text.split('.').all(is_label) && !text.rsplit('.').next().is_some_and(is_number)
}

fn header(way: &str, test: &Test<'_>) -> Term {
    let condition = match (test.base, way, &test.values[..]) {
        ("hdr_cnt", "str", ["gt", "0"]) | ("hdr" | "fhdr", "found", []) => Some(json!({"present": true})),
        ("hdr", way, values) => in_list(way, values, test.ignores_case).map(|regex| json!({"regex": regex})),
        ("fhdr", "str", [value]) if !test.ignores_case && !value.is_empty() => Some(json!(value)),
        // Everything else of a whole header, such as expressions, may mean something else for bytes that are not UTF-8.
        _ => None,
    };
    valued("headers", test.argument, condition, Fit::Wider)
}

/// Cookies and parameters of queries, which HAProxy splits and decodes in ways of its own.
fn odd(key: &str, way: &str, test: &Test<'_>) -> Term {
    let condition = match (way, &test.values[..]) {
        ("found", []) => Some(json!({"present": true})),
        ("str", [value]) if !test.ignores_case => Some(json!(value)),
        _ => expression(way, &test.values, test.ignores_case).map(|regex| json!({"regex": regex})),
    };
    valued(key, test.argument, condition, Fit::Odd)
}

fn valued(key: &str, name: &str, condition: Option<Value>, fit: Fit) -> Term {
    let Some(condition) = condition.filter(|_| !name.is_empty()) else { return Term::Unknown };
    let mut keys = Keys::default();
    if !keys.condition(key, name, condition) {
        return Term::Unknown;
    }
    Term::Keys(vec![keys], fit)
}

/// The conditions of routes for a list of terms.
pub(super) struct Routes {
    pub(super) keys: Vec<Keys>,
    /// The worst of the terms.
    pub(super) fit: Fit,
    /// It is about rates.
    pub(super) has_rate: bool,
}

/// The conditions of routes for a rule that refuses requests, or that may: they take all requests that the list takes. `None` if the list
/// never holds here.
pub(super) fn refused(list: &[Signed]) -> Option<Routes> {
    routes(list, Fit::Wider)
}

/// The same for a rule that only chooses a cluster, for which what is [`Fit::Odd`] is good enough.
pub(super) fn chosen(list: &[Signed]) -> Option<Routes> {
    routes(list, Fit::Odd)
}

/// `fit_max`: terms that fit worse are left out.
fn routes(list: &[Signed], fit_max: Fit) -> Option<Routes> {
    const ALTERNATIVES_MAX: usize = 64;
    let mut all = Routes { keys: vec![Keys::default()], fit: Fit::Exact, has_rate: false };
    for Signed { term, is_negated } in list {
        match (term, is_negated) {
            (Term::Is(holds), is_negated) if holds == is_negated => return None,
            (Term::Is(_), _) => {}
            (Term::Keys(any, fit), false) if *fit <= fit_max && any.len() * all.keys.len() <= ALTERNATIVES_MAX => {
                all.fit = all.fit.max(*fit);
                let mut next = Vec::new();
                for keys in &all.keys {
                    for other in any {
                        let mut both = keys.clone();
                        if !both.conditions(other) {
                            // Two conditions on the same part have no form here: the second is left out.
                            all.fit = Fit::Part;
                        }
                        next.push(both);
                    }
                }
                all.keys = next;
            }
            (Term::Rate, false) => (all.fit, all.has_rate) = (Fit::Part, true),
            (Term::Rate, true) => {
                // Nobody gets in before the rate is there: no limit, but a lock.
                all.fit = Fit::Part;
                all.has_rate = false;
                return Some(Routes { keys: vec![Keys::default()], ..all });
            }
            (Term::Keys(..) | Term::Source(_) | Term::Unknown, _) => all.fit = Fit::Part,
        }
    }
    Some(all)
}

/// Whether a condition always holds, or never; `None` if it depends on the request.
pub(super) fn holds(lists: Option<&[Vec<Signed>]>) -> Option<bool> {
    let Some(lists) = lists else { return Some(true) };
    let found: Vec<Routes> = lists.iter().filter_map(|list| refused(list)).collect();
    match found.is_empty() {
        true => Some(false),
        false if found.iter().any(|one| one.fit == Fit::Exact && one.keys.iter().any(Keys::is_empty)) => Some(true),
        false => None,
    }
}
