//! What is remembered of the answers of auth-url: `auth-cache-key` and `auth-cache-duration`.

use std::time::Duration;

use model::AuthCacheTtl;
use serde_json::{Map, Value, json};

use super::super::value;
use super::variables::{self, Part};
use super::{Reading, Verdict};

/// What ingress-nginx writes for a key without a duration.
const DURATION: &str = "200 202 401 5m";

impl Reading<'_> {
    /// The cache of the service. What cannot be read closes the routes: ingress-nginx would go on without auth-url.
    pub(super) fn auth_cache(&mut self, is_own: bool) -> Option<Value> {
        let names = match is_own {
            true => ("auth-cache-key", "auth-cache-duration"),
            false => ("global-auth-cache-key", "global-auth-cache-duration"),
        };
        let of = |name: &str| if is_own { self.text(name) } else { self.globals.text(name) };
        let (key, duration) = (of(names.0).map(str::to_owned), of(names.1).map(str::to_owned));
        let Some(key) = key else {
            self.idle(&["auth-cache-duration"], "without auth-cache-key, it has no effect");
            return None;
        };
        let template = cache_key(&key).map_err(|why| (names.0, why));
        let statuses = statuses(duration.as_deref().unwrap_or(DURATION)).map_err(|why| (names.1, why));
        let ((key, (statuses, note)), name) = match (template, statuses) {
            (Ok(key), Ok(statuses)) => ((key, statuses), names.1),
            (Err((name, why)), _) | (_, Err((name, why))) => {
                self.close(&format!("{name} is refused: {why}"));
                self.tell(name, Verdict::Refused, &why);
                return None;
            }
        };
        if let Some(note) = note {
            self.tell(name, Verdict::Differs, note);
        }
        // None of them holds for any time.
        if statuses.is_empty() {
            return None;
        }
        Some(json!({"key": key, "statuses": statuses}))
    }
}

/// The key with the variables of Steelyard.
///
/// # Errors
/// Says in a sentence what of it is not understood.
fn cache_key(text: &str) -> Result<String, String> {
    if text.bytes().any(|byte| !(b' '..=b'~').contains(&byte)) {
        return Err("a key is one line of printable ASCII".to_owned());
    }
    // The user of a password is in the header that the whole of counts here.
    let variable = |name: &str| match name.to_ascii_lowercase().as_str() {
        "remote_user" => Some(Part::Variable("header.authorization".to_owned())),
        _ => variables::variable(name),
    };
    let parts = variables::parts(text, variable)?;
    let unknown: Vec<&str> = parts.iter().filter_map(|part| part.as_ref().err().map(String::as_str)).collect();
    if !unknown.is_empty() {
        return Err(format!("{} cannot be a part of the key", unknown.join(", ")));
    }
    let parts: Vec<Part> = parts.into_iter().flatten().collect();
    if !parts.iter().any(|part| matches!(part, Part::Variable(_))) {
        return Err("all clients would get the answer about the first".to_owned());
    }
    Ok(parts.iter().map(Part::written).collect())
}

/// The statuses of a list such as `200 202 401 5m, 404 1m`, with their times, and what of it is not the same here.
///
/// # Errors
/// Says what would be right.
fn statuses(text: &str) -> Result<(Map<String, Value>, Option<&'static str>), String> {
    let wrong = |rule: &str| {
        format!("{} is not understood: write statuses and a time, such as 200 202 401 5m", value::cut(rule))
    };
    let (mut statuses, mut note) = (Map::new(), None);
    for rule in text.split(',').map(str::trim).filter(|rule| !rule.is_empty()) {
        let words: Vec<&str> = rule.split_ascii_whitespace().collect();
        let (time, of) = words.split_last().ok_or_else(|| wrong(rule))?;
        let time = time_of(time).ok_or_else(|| wrong(rule))?;
        if time > AuthCacheTtl::MAX {
            note = Some("answers are remembered for a day at most");
        }
        // nginx's own default.
        let of = if of.is_empty() { &["200", "301", "302"][..] } else { of };
        for status in of {
            let number = value::integer(status).filter(|_| status.len() == 3);
            match number {
                None if *status != "any" => return Err(wrong(rule)),
                Some(500..) => note = Some("a failure of the service is not remembered"),
                Some(..200) => return Err(wrong(rule)),
                _ if statuses.contains_key("any") || statuses.contains_key(*status) => {}
                _ => {
                    let seconds = format!("{}ms", time.min(AuthCacheTtl::MAX).as_millis());
                    statuses.insert((*status).to_owned(), json!(seconds));
                }
            }
        }
    }
    if text.split(',').all(|rule| rule.trim().is_empty()) {
        return self::statuses(DURATION);
    }
    Ok((statuses, note))
}

/// A time with one unit. nginx takes 30 days for a month, and 365 for a year.
fn time_of(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit())?);
    let factor = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        "w" => 7 * 86_400_000,
        "M" => 30 * 86_400_000,
        "y" => 365 * 86_400_000,
        _ => return None,
    };
    value::integer(digits)?.checked_mul(factor).map(Duration::from_millis)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys() {
        let check = |text: &str, expect: &str| {
            let found = cache_key(text).unwrap_or_else(|why| why);
            assert_eq!(found, expect, "{text}");
        };
        check("$remote_user$http_authorization", "${header.authorization}${header.authorization}");
        check("$cookie_session", "${cookie.session}");
        check("a$host-$request_uri", "a${host}-${target}");
        check("abc", "all clients would get the answer about the first");
        check("$geoip_city$uri", "$geoip_city cannot be a part of the key");
        check("$uri\n", "a key is one line of printable ASCII");
        check("${uri", "a `${` has no end");
    }

    #[test]
    fn durations() {
        let check = |text: &str, expect: Value, differs: bool| {
            let (found, note) = statuses(text).unwrap();
            assert_eq!((Value::Object(found), note.is_some()), (expect, differs), "{text}");
        };
        check(DURATION, json!({"200": "300000ms", "202": "300000ms", "401": "300000ms"}), false);
        check("200 1h, 401 30s", json!({"200": "3600000ms", "401": "30000ms"}), false);
        check("2w", json!({"200": "86400000ms", "301": "86400000ms", "302": "86400000ms"}), true);
        check("200 1m,200 2m,any 0s,204 1m", json!({"200": "60000ms", "any": "0ms"}), false);
        check("500 502 1m, 200 1s", json!({"200": "1000ms"}), true);
        check(" , ", json!({"200": "300000ms", "202": "300000ms", "401": "300000ms"}), false);
        for wrong in [
            "200",
            "200 202",
            "5m 200",
            "200 5",
            "2000 5m",
            "100 1m",
            "x 1m",
            "200 1h 30m",
            "200 5m;",
            "200 99999999999999999y",
        ] {
            assert!(statuses(wrong).is_err(), "{wrong}");
        }
    }
}
