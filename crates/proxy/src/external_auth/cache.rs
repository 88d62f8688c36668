//! Answers that are remembered, by worker. The table is bounded, and nothing in it can be read back: its keys are keyed hashes.
//!
//! With statuses, nginx's `proxy_cache` (1.22, which was measured) is the model: an answer holds for the time of its status, unless
//! `X-Accel-Expires` or `Cache-Control` (`s-maxage` before `max-age`) gives another one, also for a status without a time. Where nginx depends on the
//! order of fields or keeps variants, the answer is not remembered: with `Vary`, with `Expires` alone, with a number that cannot be read, and with both a
//! field that forbids it and one that gives a time.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use model::{AuthCache, AuthCacheKey, AuthCacheTtl, RequestPart};
use net::clock;

use super::{Refusal, Verdict};
use crate::auth::tag::Tag;
use crate::exchange::Response;
use crate::exchange::route::HostText;
use crate::http::cookie;
use crate::policy::headers::is_alike;
use crate::policy::{RequestView, request_text};

/// Answers that a worker remembers. The oldest makes room for a new one.
const ANSWERS_MAX: usize = 4096;

/// Bytes of all of them.
const BYTES_MAX: usize = 4 * 1024 * 1024;

/// Bytes of one of them. A larger one is not remembered.
const ANSWER_BYTES_MAX: usize = 16 * 1024;

/// A request, as far as an answer depends on it.
#[derive(Clone, Copy)]
pub(crate) struct Key(Tag);

/// The answers that one worker remembers.
#[derive(Default)]
pub(crate) struct Remembered(RefCell<Table>);

#[derive(Default)]
struct Table {
    answers: HashMap<Tag, Entry>,
    /// In the order in which they came. It may have entries that have been replaced.
    order: VecDeque<Place>,
    /// The sum over `order`, so at least that over `answers`.
    bytes: usize,
}

struct Entry {
    verdict: Rc<Verdict>,
    until_ms: u64,
}

struct Place {
    tag: Tag,
    /// The time until which it holds.
    until_ms: u64,
    bytes: usize,
}

/// The values of a request that a key has, and how many each of its names has.
#[derive(Default)]
struct Values<'v> {
    values: Vec<&'v [u8]>,
    counts: Vec<[u8; 8]>,
}

impl<'v> Values<'v> {
    /// Adds all values of one name.
    fn extend(&mut self, found: impl Iterator<Item = &'v [u8]>) {
        let before = self.values.len();
        self.values.extend(found);
        self.counts.push(((self.values.len() - before) as u64).to_le_bytes());
    }

    fn header(&mut self, asked: &RequestView<'v>, name: &str) {
        let fields = asked.head.fields.iter();
        let found = fields.filter(|field| is_alike(field.name.get(asked.buffer), name.as_bytes()));
        self.extend(found.map(|field| field.value.get(asked.buffer)));
    }

    fn cookie(&mut self, asked: &RequestView<'v>, name: &str) {
        self.extend(cookie::values(&asked.head.fields, asked.buffer, name.as_bytes()));
    }

    fn key(self, service: u64) -> Option<Key> {
        let service = service.to_le_bytes();
        let counts = self.counts.iter().map(|count| &count[..]);
        let parts: Vec<&[u8]> = [&service[..]].into_iter().chain(counts).chain(self.values).collect();
        Tag::of(&parts).map(Key)
    }
}

impl Key {
    /// `route` is its name and its path. `None` if the request has none of the headers and cookies that answers depend on, or there were no random numbers.
    pub(super) fn of(service: u64, cache: &AuthCache, route: (&str, &str), asked: &RequestView<'_>) -> Option<Self> {
        let mut values = Values::default();
        let (headers, cookies, any_request) = match &cache.key {
            AuthCacheKey::Template(parts) => return Self::of_parts(service, parts, route, asked),
            AuthCacheKey::Values { headers, cookies, any_request } => (headers, cookies, *any_request),
        };
        headers.iter().for_each(|name| values.header(asked, name));
        cookies.iter().for_each(|name| values.cookie(asked, name));
        if values.values.is_empty() {
            return None;
        }
        if !any_request {
            let RequestView { head, buffer, target, .. } = *asked;
            // The path as routes see it, and as the endpoint may see it.
            let of_request = [head.method_name.get(buffer), head.authority.get(buffer), target, head.path.get(buffer)];
            values.values.extend(of_request);
        }
        values.key(service)
    }

    /// Each part counts for itself: in one text, `a` and `bc` would be `ab` and `c`. All values of a header or a cookie count, because a service may
    /// decide by another one than the first.
    fn of_parts(
        service: u64,
        parts: &[RequestPart],
        (name, path): (&str, &str),
        asked: &RequestView<'_>,
    ) -> Option<Self> {
        let host = HostText::new(asked.head.authority.get(asked.buffer));
        let made: Vec<_> = parts.iter().map(|part| request_text::made(std::slice::from_ref(part), asked)).collect();
        let mut values = Values::default();
        values.extend([name.as_bytes(), path.as_bytes(), host.as_str().as_bytes()].into_iter());
        for (part, made) in parts.iter().zip(&made) {
            match part {
                RequestPart::Header(name) => values.header(asked, name),
                RequestPart::Cookie(name) => values.cookie(asked, name),
                _ => values.extend([&made[..]].into_iter()),
            }
        }
        values.key(service)
    }
}

/// How long an answer about a request may be remembered, by its status and its headers; zero if not at all. A yes or a no is not known yet.
pub(crate) fn ttl(cache: &AuthCache, response: &Response) -> Duration {
    match &cache.ttl {
        AuthCacheTtl::Yes(ttl) => *ttl,
        AuthCacheTtl::Statuses(statuses) => of_response(statuses, response).unwrap_or_default(),
    }
}

/// `None` if the answer must not be remembered.
fn of_response(statuses: &[(Option<u16>, Duration)], response: &Response) -> Option<Duration> {
    let Response { head, bytes, .. } = response;
    let (mut accel, mut shared, mut max_age, mut expires) = (None, None, None, false);
    for field in &head.fields {
        let (name, value) = (field.name.get(bytes).to_ascii_lowercase(), field.value.get(bytes).to_ascii_lowercase());
        let value = String::from_utf8_lossy(&value);
        match name.as_slice() {
            // A cookie is for one client.
            b"set-cookie" | b"vary" => return None,
            b"expires" => expires = true,
            b"x-accel-expires" => accel = Some(accel_expires(value.trim())?),
            b"cache-control" => {
                for directive in value.split(',') {
                    let (name, argument) = directive.split_once('=').unwrap_or((directive, ""));
                    match name.trim() {
                        "no-store" | "no-cache" | "private" => return None,
                        "s-maxage" => shared = Some(seconds(argument.trim())?),
                        "max-age" => max_age = Some(seconds(argument.trim())?),
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    let of_headers = accel.or(shared).or(max_age);
    let of = |wanted: Option<u16>| statuses.iter().find(|(status, _)| *status == wanted).map(|(_, ttl)| *ttl);
    let ttl = match of_headers {
        Some(ttl) => ttl,
        None if expires => return None,
        None => of(Some(head.status)).or_else(|| of(None))?,
    };
    Some(ttl.min(AuthCacheTtl::MAX))
}

fn seconds(text: &str) -> Option<Duration> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_number).map(Duration::from_secs)
}

/// Seconds, or `@` and the time since 1970 in seconds.
fn accel_expires(text: &str) -> Option<Duration> {
    match text.strip_prefix('@') {
        Some(at) => Some(seconds(at)?.saturating_sub(Duration::from_millis(clock::unix_ms()))),
        None => seconds(text),
    }
}

impl Remembered {
    /// The answer about such a request, if it still holds.
    pub(crate) fn find(&self, key: &Key, now_ms: u64) -> Option<Rc<Verdict>> {
        let table = self.0.borrow();
        table.answers.get(&key.0).filter(|entry| now_ms < entry.until_ms).map(|entry| entry.verdict.clone())
    }

    /// Remembers an answer for this time. `cache` is that of its policy.
    pub(crate) fn put(&self, key: &Key, cache: &AuthCache, verdict: &Rc<Verdict>, ttl: Duration, now_ms: u64) {
        let may_be = match (&**verdict, &cache.ttl) {
            // A cookie is for one client.
            (Verdict::Allowed(grant), _) => grant.cookies.is_empty(),
            (Verdict::Denied(_), AuthCacheTtl::Statuses(_)) => true,
            (Verdict::Denied(_), AuthCacheTtl::Yes(_)) => false,
        };
        let bytes = size(verdict);
        if !may_be || ttl.is_zero() || bytes > ANSWER_BYTES_MAX {
            return;
        }
        let until_ms = now_ms.saturating_add(crate::millis(ttl));
        let table = &mut *self.0.borrow_mut();
        while table.order.len() >= ANSWERS_MAX || table.bytes + bytes > BYTES_MAX {
            let Some(oldest) = table.order.pop_front() else { break };
            table.bytes -= oldest.bytes;
            // A newer answer about the same request stays.
            if table.answers.get(&oldest.tag).is_some_and(|entry| entry.until_ms == oldest.until_ms) {
                table.answers.remove(&oldest.tag);
            }
        }
        table.answers.insert(key.0, Entry { verdict: verdict.clone(), until_ms });
        table.order.push_back(Place { tag: key.0, until_ms, bytes });
        table.bytes += bytes;
    }
}

/// Bytes of an answer.
fn size(verdict: &Verdict) -> usize {
    match verdict {
        Verdict::Allowed(grant) => grant.bytes(),
        Verdict::Denied(refusal) => {
            let Refusal { status: _, headers, content_type, body } = &**refusal;
            let of_headers: usize = headers.iter().map(|(name, value)| name.len() + value.len()).sum();
            of_headers + content_type.as_ref().map_or(0, String::len) + body.as_ref().map_or(0, Vec::len)
        }
    }
}

#[cfg(test)]
mod tests {
    use wire::h1::parse_response;
    use wire::message::Method;

    use super::super::Grant;
    use super::*;
    use crate::policy::testing::asked;

    const TTL: Duration = Duration::from_secs(1);

    fn cache(any_request: bool) -> AuthCache {
        let (headers, cookies) = (vec!["authorization".into()], vec!["session".into()]);
        let key = AuthCacheKey::Values { headers, cookies, any_request };
        AuthCache { key, ttl: AuthCacheTtl::Yes(TTL) }
    }

    fn key(service: u64, cache: &AuthCache, lines: &str) -> Option<Key> {
        asked(lines, false, |view| Key::of(service, cache, ("shop", "/"), view))
    }

    #[test]
    fn an_answer_is_for_the_same_text() {
        let parts = [RequestPart::Cookie("a".into()), RequestPart::Text("-".into()), RequestPart::Cookie("b".into())];
        let cache = AuthCache { key: AuthCacheKey::Template(parts.into()), ttl: AuthCacheTtl::Yes(TTL) };
        let of =
            |route: &str, lines: &str| asked(lines, false, |view| Key::of(1, &cache, (route, "/"), view)).unwrap().0;
        let first = "GET /a HTTP/1.1\r\nHost: a\r\nCookie: a=x; b=yz\r\n";
        let check = |route: &str, lines: &str, expect: bool| {
            assert_eq!(of("shop", first) == of(route, lines), expect, "{route} {lines}");
        };
        check("shop", "POST /b?c HTTP/1.1\r\nHost: A:81\r\nX: y\r\nCookie: c=d; a=x; b=yz\r\n", true);
        check("other", first, false);
        check("shop", "GET /a HTTP/1.1\r\nHost: b\r\nCookie: a=x; b=yz\r\n", false);
        check("shop", "GET /a HTTP/1.1\r\nHost: a\r\nCookie: a=xy; b=z\r\n", false);
        check("shop", "GET /a HTTP/1.1\r\nHost: a\r\nCookie: a=x; a=w; b=yz\r\n", false);
        check("shop", "GET /a HTTP/1.1\r\nHost: a\r\nCookie: a=x; a=yz\r\n", false);
        let elsewhere = asked(first, false, |view| Key::of(1, &cache, ("shop", "/b"), view)).unwrap().0;
        assert!(of("shop", first) != elsewhere, "the path of a route counts");
        // No value is a value.
        assert!(of("shop", "GET / HTTP/1.1\r\nHost: a\r\n") == of("shop", "GET /b HTTP/1.1\r\nHost: a\r\n"));
    }

    #[test]
    fn how_long_answers_hold() {
        let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
        let check = |status: u16, fields: &str, expect: u64| {
            let text = format!("HTTP/1.1 {status} Said\r\n{fields}\r\nContent-Length: 0\r\n\r\n")
                .replace("\r\n\r\nC", "\r\nC");
            let mut response = Response::default();
            parse_response(text.as_bytes(), 100, Method::Get, &mut response.head).unwrap();
            response.bytes = text.into_bytes();
            let ttl =
                AuthCacheTtl::Statuses(vec![(Some(200), minutes(5)), (Some(401), minutes(1)), (Some(404), minutes(0))]);
            let cache = AuthCache { ttl, ..cache(true) };
            assert_eq!(super::ttl(&cache, &response).as_secs(), expect, "{status} {fields}");
        };
        check(200, "A: b", 300);
        check(401, "A: b", 60);
        check(404, "A: b", 0);
        check(202, "A: b", 0);
        for never in [
            "Set-Cookie: a=b",
            "Vary: X-A",
            "Vary: *",
            "Expires: 0",
            "X-Accel-Expires: 0",
            "X-Accel-Expires: @1",
            "X-Accel-Expires: x",
        ] {
            check(200, never, 0);
        }
        for never in [
            "no-store",
            "NO-CACHE",
            "private",
            "private=\"x\"",
            "a, no-store",
            "max-age=0",
            "max-age=x",
            "s-maxage=0, max-age=9",
        ] {
            check(200, &format!("Cache-Control: {never}"), 0);
        }
        check(200, "Cache-Control: no-store\r\nX-Accel-Expires: 60", 0);
        check(200, "Cache-Control: max-age=60\r\nSet-Cookie: a=b", 0);
        check(200, "Cache-Control: public, must-revalidate", 300);
        check(200, "Cache-Control: public, max-age=7", 7);
        check(403, "Cache-Control: max-age=7", 7);
        check(200, "Cache-Control: s-maxage=8, max-age=0", 8);
        check(200, "Cache-Control: max-age=7\r\nX-Accel-Expires: 9", 9);
        check(200, "Cache-Control: max-age=7\r\nExpires: 0", 7);
        check(200, "X-Accel-Expires: @99999999999", 24 * 3600);
        check(200, "Cache-Control: max-age=18446744073709551615", 24 * 3600);
        check(200, "Cache-Control: max-age=18446744073709551616", 0);
    }

    #[test]
    fn an_answer_is_for_the_same_request() {
        let first = "GET /a HTTP/1.1\r\nHost: a\r\nAuthorization: x\r\nCookie: session=1\r\n";
        let check = |any_request, service, lines: &str, expect| {
            let cache = cache(any_request);
            let [one, other] = [key(1, &cache, first), key(service, &cache, lines)].map(|key| key.unwrap().0);
            assert_eq!(one == other, expect, "{any_request} {lines}");
        };
        check(false, 1, first, true);
        check(false, 1, "GET /a HTTP/1.1\r\nHost: a\r\nX: y\r\nAuthorization: x\r\nCookie: b=c; session=1\r\n", true);
        check(false, 2, first, false);
        for lines in [
            "POST /a HTTP/1.1\r\nHost: a\r\nAuthorization: x\r\nCookie: session=1\r\n",
            "GET /b HTTP/1.1\r\nHost: a\r\nAuthorization: x\r\nCookie: session=1\r\n",
            "GET /%61 HTTP/1.1\r\nHost: a\r\nAuthorization: x\r\nCookie: session=1\r\n",
            "GET /a HTTP/1.1\r\nHost: b\r\nAuthorization: x\r\nCookie: session=1\r\n",
        ] {
            check(false, 1, lines, false);
            check(true, 1, lines, true);
        }
        for lines in [
            "GET /a HTTP/1.1\r\nHost: a\r\nAuthorization: x\r\n",
            "GET /a HTTP/1.1\r\nHost: a\r\nCookie: session=1\r\n",
            "GET /a HTTP/1.1\r\nHost: a\r\nAuthorization: x\r\nAuthorization: x\r\nCookie: session=1\r\n",
            "GET /a HTTP/1.1\r\nHost: a\r\nAuthorization: x\r\nCookie: session=2\r\n",
            "GET /a HTTP/1.1\r\nHost: a\r\nAuthorization: x\r\nCookie: session=1; session=2\r\n",
        ] {
            check(true, 1, lines, false);
        }
        assert!(key(1, &cache(true), "GET /a HTTP/1.1\r\nHost: a\r\nCookie: sessions=1\r\n").is_none());
    }

    #[test]
    fn answers_hold_for_a_while_and_are_bounded() {
        let remembered = Remembered::default();
        let key = |number: usize| {
            key(1, &cache(false), &format!("GET /{number} HTTP/1.1\r\nHost: a\r\nAuthorization: x\r\n")).unwrap()
        };
        let granted = |value: Vec<u8>| {
            Rc::new(Verdict::Allowed(Grant { set: vec![("x-user".into(), value.into())], ..Grant::default() }))
        };
        let (grant, put) = (granted(b"joe".to_vec()), |number: usize, verdict: &Rc<Verdict>, now_ms| {
            remembered.put(&key(number), &cache(false), verdict, TTL, now_ms);
        });
        put(0, &grant, 10);
        assert_eq!(remembered.find(&key(0), 1009), Some(grant.clone()));
        assert_eq!((remembered.find(&key(0), 1010), remembered.find(&key(1), 10)), (None, None));
        // Put again, it is younger than the others.
        (1..ANSWERS_MAX).for_each(|number| put(number, &grant, 10));
        put(0, &grant, 20);
        assert!(remembered.find(&key(0), 30).is_some() && remembered.find(&key(1), 30).is_some());
        put(ANSWERS_MAX, &grant, 20);
        assert!(remembered.find(&key(0), 30).is_some() && remembered.find(&key(1), 30).is_none());
        let sizes =
            || (remembered.0.borrow().answers.len(), remembered.0.borrow().order.len(), remembered.0.borrow().bytes);
        assert!(sizes().0 <= ANSWERS_MAX && sizes().1 == ANSWERS_MAX);
        put(ANSWERS_MAX + 1, &granted(vec![b'a'; ANSWER_BYTES_MAX]), 20);
        assert!(remembered.find(&key(ANSWERS_MAX + 1), 20).is_none());
        // Large ones displace many.
        let large = granted(vec![b'a'; ANSWER_BYTES_MAX - 6]);
        (0..1000).for_each(|number| put(number, &large, 20));
        assert_eq!(sizes(), (256, 256, BYTES_MAX));
    }

    #[test]
    fn a_no_is_remembered_by_its_status_alone() {
        let refusal = Refusal { status: 401, headers: Vec::new(), content_type: None, body: Some(b"no".to_vec()) };
        let refused = Rc::new(Verdict::Denied(Box::new(refusal)));
        let key = key(1, &cache(true), "GET / HTTP/1.1\r\nHost: a\r\nAuthorization: x\r\n").unwrap();
        let by_status = AuthCache { ttl: AuthCacheTtl::Statuses(Vec::new()), ..cache(true) };
        for (cache, ttl, expect) in
            [(&cache(true), TTL, false), (&by_status, Duration::ZERO, false), (&by_status, TTL, true)]
        {
            let remembered = Remembered::default();
            remembered.put(&key, cache, &refused, ttl, 0);
            assert_eq!(remembered.find(&key, 1).is_some(), expect);
        }
    }
}
