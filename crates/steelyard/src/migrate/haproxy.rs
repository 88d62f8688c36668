//! `steelyard migrate haproxy`: frontends, backends and listens as listeners, routes and clusters.
//!
//! A rule whose condition is not understood closes the requests that it may be about: those that meet the part which is understood.

mod acl;
mod back;
mod front;

use std::path::Path;

use super::draft::{Became, Draft};

/// Lines of a file.
const LINES_MAX: usize = 200_000;

/// A line: its number and its words.
#[derive(Clone, Debug)]
pub(super) struct Line {
    number: usize,
    words: Vec<String>,
}

impl Line {
    fn word(&self, place: usize) -> &str {
        self.words.get(place).map_or("", String::as_str)
    }

    /// The words after this many, as they are written.
    fn rest(&self, from: usize) -> String {
        self.words.get(from..).unwrap_or_default().join(" ")
    }

    fn told(&self) -> String {
        let text = self.rest(0);
        match text.char_indices().nth(100) {
            Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
            None => text,
        }
    }

    /// The word after a word.
    fn after(&self, word: &str) -> Option<&str> {
        let place = self.words.iter().position(|known| known == word)?;
        self.words.get(place + 1).map(String::as_str)
    }

    fn has(&self, word: &str) -> bool {
        self.words.iter().any(|known| known == word)
    }
}

/// A section, with the defaults that hold for it.
#[derive(Clone, Debug)]
pub(super) struct Section {
    kind: String,
    name: String,
    line: usize,
    /// Those of the defaults first.
    lines: Vec<Line>,
    /// How many of them are of the defaults.
    defaults: usize,
}

impl Section {
    /// Lines that begin with these words; of single settings, the last counts.
    fn all<'s>(&'s self, words: &'s [&str]) -> impl DoubleEndedIterator<Item = &'s Line> {
        self.lines.iter().filter(move |line| words.iter().enumerate().all(|(place, word)| line.word(place) == *word))
    }

    fn last(&self, words: &[&str]) -> Option<&Line> {
        self.lines.iter().rev().find(|line| words.iter().enumerate().all(|(place, word)| line.word(place) == *word))
    }

    fn is_http(&self) -> bool {
        self.last(&["mode"]).is_some_and(|line| line.word(1) == "http")
    }

    /// A time in milliseconds, which is the unit of times without one.
    fn time(&self, words: &[&str]) -> Option<u64> {
        self.last(words).and_then(|line| time(line.words.last().map_or("", String::as_str)))
    }
}

/// The translation of one file.
pub(super) struct Making<'d> {
    file: String,
    sections: Vec<Section>,
    draft: &'d mut Draft,
}

impl Making<'_> {
    fn note(&mut self, line: &Line, became: Became, why: &str) {
        self.draft.note((&self.file, line.number), &line.told(), became, why);
    }

    fn backend(&self, name: &str) -> Option<Section> {
        self.sections
            .iter()
            .find(|section| section.name == name && ["backend", "listen"].contains(&section.kind.as_str()))
            .cloned()
    }
}

/// # Errors
/// The place, and what cannot be read there.
pub(super) fn translate(path: &Path) -> Result<Draft, String> {
    let file = path.display().to_string();
    let sections = sections(&file, &super::text_of(path)?)?;
    let mut draft = Draft::default();
    let mut making = Making { file, sections: sections.clone(), draft: &mut draft };
    for section in &sections {
        match section.kind.as_str() {
            "frontend" | "listen" => making.front(section),
            "global" | "defaults" | "backend" | "resolvers" | "peers" | "mailers" | "ring" | "log-forward" => {}
            kind => {
                let line = Line { number: section.line, words: vec![kind.to_owned(), section.name.clone()] };
                making.note(&line, Became::Lost, "only frontend, backend, listen and defaults are translated");
            }
        }
    }
    Ok(draft)
}

fn sections(file: &str, text: &str) -> Result<Vec<Section>, String> {
    const KINDS: &[&str] = &[
        "global",
        "defaults",
        "frontend",
        "backend",
        "listen",
        "resolvers",
        "userlist",
        "peers",
        "mailers",
        "cache",
        "program",
        "http-errors",
        "ring",
        "log-forward",
        "fcgi-app",
    ];
    let mut sections: Vec<Section> = Vec::new();
    let mut defaults: Vec<Line> = Vec::new();
    for (number, text) in text.lines().enumerate().map(|(number, text)| (number + 1, text)) {
        if number > LINES_MAX {
            return Err(format!("{file}: more than {LINES_MAX} lines"));
        }
        let words = words(text).map_err(|why| format!("{file}:{number}: {why}"))?;
        let Some(first) = words.first() else { continue };
        if first.starts_with('.') {
            return Err(format!(
                "{file}:{number}: {first}: conditional lines are not read; give the file as it is in use, without them"
            ));
        }
        if KINDS.contains(&first.as_str()) {
            let lines =
                if ["frontend", "backend", "listen"].contains(&first.as_str()) { defaults.clone() } else { Vec::new() };
            if first == "defaults" {
                defaults.clear();
            }
            let name = words.get(1).cloned().unwrap_or_default();
            sections.push(Section { kind: first.clone(), name, line: number, defaults: lines.len(), lines });
            // `frontend web *:80`, as older versions have it.
            if let (Some(address), Some(section)) = (words.get(2), sections.last_mut())
                && ["frontend", "listen"].contains(&section.kind.as_str())
                && address.contains(':')
            {
                section.lines.push(Line { number, words: vec!["bind".to_owned(), address.clone()] });
            }
            continue;
        }
        let Some(section) = sections.last_mut() else {
            return Err(format!(
                "{file}:{number}: {first}: it is in no section; a file begins with global, defaults or frontend"
            ));
        };
        let line = Line { number, words };
        if section.kind == "defaults" {
            defaults.push(line.clone());
        }
        section.lines.push(line);
    }
    Ok(sections)
}

/// The words of a line: quotes, escapes and comments.
fn words(text: &str) -> Result<Vec<String>, String> {
    let (mut all, mut word, mut quote): (Vec<String>, Option<String>, Option<char>) = (Vec::new(), None, None);
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        match (letter, quote) {
            ('\\', None | Some('"')) => {
                // A backslash before a letter belongs to an expression.
                let next = letters.next().unwrap_or('\\');
                let word = word.get_or_insert_default();
                if !" #'\"\\".contains(next) {
                    word.push('\\');
                }
                word.push(next);
            }
            (letter, Some(open)) if letter == open => quote = None,
            (letter, Some(_)) => word.get_or_insert_default().push(letter),
            ('"' | '\'', None) => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            ('#', None) => break,
            (letter, None) if letter.is_whitespace() => all.extend(word.take()),
            (letter, None) => word.get_or_insert_default().push(letter),
        }
    }
    if quote.is_some() {
        return Err("a quote is not closed".to_owned());
    }
    all.extend(word);
    Ok(all)
}

/// `30s`, `500ms` or `500` in milliseconds.
pub(super) fn time(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let factor = match text.get(digits.len()..)? {
        "" | "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(factor).filter(|time| *time > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn translated(text: &str) -> Draft {
        Draft::of_text(text, translate)
    }

    #[test]
    fn lines() {
        let check = |text: &str, expect: &[&str]| assert_eq!(words(text).unwrap(), expect, "{text}");
        check("  acl a path_beg /x # y", &["acl", "a", "path_beg", "/x"]);
        check("a \"b c\" 'd\\e' f\\ g", &["a", "b c", "d\\e", "f g"]);
        check("path_reg ^/a\\.b$", &["path_reg", "^/a\\.b$"]);
        assert!(words("a 'b").is_err());
        assert!(sections("f", "bind :80").unwrap_err().starts_with("f:1: bind: it is in no section"));
        assert!(sections("f", "global\n.if defined(X)").unwrap_err().starts_with("f:2: .if"));
    }

    #[test]
    fn a_usual_file() {
        let draft = translated(
            r#"
global
    maxconn 4096
defaults
    mode http
    option forwardfor
    timeout connect 5s
    timeout client 30s
    timeout server 1m
frontend web
    bind *:80
    bind *:443 ssl crt /etc/haproxy/site.pem alpn h2,http/1.1
    http-request redirect scheme https code 301 unless { ssl_fc }
    acl is_api path_beg /api/ /v1/
    acl host_shop hdr(host) -i shop.example.com
    use_backend api if is_api host_shop
    use_backend static if { path_end .png .css }
    default_backend app
backend api
    balance leastconn
    option httpchk GET /health
    http-check expect status 200
    server a1 10.0.0.1:8080 check weight 10 inter 5s fall 2 rise 3
    server a2 10.0.0.2:8080 check backup
backend static
    server s1 10.0.0.3:80 maxconn 50
backend app
    cookie SRV insert indirect nocache
    http-request set-header X-Client %[src]
    server p1 10.0.0.4:80 ssl verify none
"#,
        );
        let text = draft.checked();
        for part in [
            "bind: :80",
            "protocol: https",
            "/etc/haproxy/site.pem",
            "scheme: https",
            "shop.example.com",
            "(?:/api/|/v1/).*",
            "least_connections",
            "http: /health",
            "priority: 1",
            "panic_threshold: 0%",
            "weight: 10",
            "connections: 50",
            "cookie: SRV",
            "${client_ip}",
            "verify: false",
            "response_timeout: 60s",
            "connect_timeout: 5s",
            ".*(?:\\\\.png|\\\\.css)",
        ] {
            assert!(text.contains(part) || text.contains(&part.replace("\\\\", "\\")), "{part}: {text}");
        }
    }

    #[test]
    fn what_keeps_somebody_out() {
        let of = |rules: &str| {
            translated(&format!(
                "defaults\n mode http\nfrontend f\n bind :80\n{rules} default_backend b\nbackend b\n server a 10.0.0.1:80\n"
            ))
        };
        let check = |rules: &str, parts: &[&str]| {
            let draft = of(rules);
            let text = draft.checked();
            for part in parts {
                assert!(
                    text.contains(part) || draft.told().iter().any(|note| note.contains(part)),
                    "{rules}: {part}: {text}\n{:?}",
                    draft.told()
                );
            }
        };
        check(" http-request deny if { path_beg /admin }\n", &["status: 403", "/admin.*"]);
        check(
            " acl inside src 10.0.0.0/8 192.168.0.0/16\n http-request deny if !inside\n",
            &["allow:", "10.0.0.0/8", "192.168.0.0/16"],
        );
        check(" http-request deny if { src 192.0.2.0/24 }\n", &["deny:", "192.0.2.0/24"]);
        // Not understood: what it may be about is closed.
        check(
            " http-request deny if { path_beg /a } !{ src 10.0.0.0/8 }\n",
            &["status: 403", "/a.*", ":5: http-request deny if", "closed"],
        );
        check(" http-request deny if { lua.f } { path_beg /b }\n", &["/b.*", "status: 403"]);
        check(" http-request auth realm x unless { http_auth(users) }\n", &["status: 403", "closed"]);
        check(" http-request lua.check\n", &["status: 403", "closed"]);
        check(
            " http-request deny deny_status 429 if { sc_http_req_rate(0) gt 9 }\n",
            &["rate_limit", "left out", "to: b"],
        );
        check(" nonsense x\n", &["closed"]);
    }

    #[test]
    fn connections_of_other_protocols() {
        let draft = translated(
            "defaults\n mode tcp\nlisten db\n bind 127.0.0.1:5432\n balance source\n server a db1:5432 check\nfrontend tls\n bind :443\n tcp-request inspect-delay 5s\n \
             tcp-request content accept if { req_ssl_hello_type 1 }\n use_backend a if { req_ssl_sni -i a.example }\n default_backend b\nbackend a\n server x 10.0.0.1:443\n\
             backend b\n server y 10.0.0.2:443 send-proxy-v2\n",
        );
        let text = draft.checked();
        for part in ["protocol: tcp", "maglev", "tcp: true", "tls_passthrough", "a.example", "proxy_protocol: v2"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
