//! Positive answers that are remembered, by worker. The table is bounded, and nothing in it can be read back: its keys are keyed hashes.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;

use model::AuthCache;

use super::Grant;
use crate::auth::tag::Tag;
use crate::http::cookie;
use crate::policy::RequestView;
use crate::policy::headers::is_alike;

/// Answers that a worker remembers. The oldest makes room for a new one.
const ANSWERS_MAX: usize = 4096;

/// Bytes of one of them: 4 MiB in all. A larger one is not remembered.
const ANSWER_BYTES_MAX: usize = 1024;

/// A request, as far as an answer depends on it, and how long an answer about it holds.
#[derive(Clone, Copy)]
pub(crate) struct Key {
    tag: Tag,
    ttl_ms: u64,
}

/// The answers that one worker remembers.
#[derive(Default)]
pub(crate) struct Remembered(RefCell<Table>);

#[derive(Default)]
struct Table {
    answers: HashMap<Tag, Entry>,
    /// In the order in which they came, each with the time until which it holds. It may have entries that have been replaced.
    order: VecDeque<(Tag, u64)>,
}

struct Entry {
    grant: Rc<Grant>,
    until_ms: u64,
}

impl Key {
    /// `None` if the request has none of the headers and cookies that answers depend on, or there were no random numbers.
    pub(super) fn of(service: u64, cache: &AuthCache, asked: &RequestView<'_>) -> Option<Self> {
        let (service, count) = (service.to_le_bytes(), |found: usize| (found as u64).to_le_bytes());
        let (mut values, mut counts, mut has_any): (Vec<&[u8]>, Vec<[u8; 8]>, bool) = (Vec::new(), Vec::new(), false);
        for name in &cache.headers {
            let before = values.len();
            let fields = &asked.head.fields;
            let found = fields.iter().filter(|field| is_alike(field.name.get(asked.buffer), name.as_bytes()));
            values.extend(found.map(|field| field.value.get(asked.buffer)));
            counts.push(count(values.len() - before));
            has_any |= values.len() > before;
        }
        for name in &cache.cookies {
            let before = values.len();
            values.extend(cookie::values(&asked.head.fields, asked.buffer, name.as_bytes()));
            counts.push(count(values.len() - before));
            has_any |= values.len() > before;
        }
        if !has_any {
            return None;
        }
        if !cache.any_request {
            let RequestView { head, buffer, target, .. } = *asked;
            // The path as routes see it, and as the endpoint may see it.
            values.extend([head.method_name.get(buffer), head.authority.get(buffer), target, head.path.get(buffer)]);
        }
        let parts: Vec<&[u8]> =
            [&service[..]].into_iter().chain(counts.iter().map(|count| &count[..])).chain(values).collect();
        Some(Self { tag: Tag::of(&parts)?, ttl_ms: crate::millis(cache.ttl) })
    }
}

impl Remembered {
    /// The answer about such a request, if it still holds.
    pub(crate) fn find(&self, key: &Key, now_ms: u64) -> Option<Rc<Grant>> {
        let table = self.0.borrow();
        table.answers.get(&key.tag).filter(|entry| now_ms < entry.until_ms).map(|entry| entry.grant.clone())
    }

    pub(crate) fn put(&self, key: &Key, grant: &Grant, now_ms: u64) {
        // A cookie is for one client.
        if !grant.cookies.is_empty() {
            return;
        }
        if grant.bytes() > ANSWER_BYTES_MAX {
            return;
        }
        let until_ms = now_ms.saturating_add(key.ttl_ms);
        let Table { answers, order } = &mut *self.0.borrow_mut();
        while order.len() >= ANSWERS_MAX {
            let Some((tag, until_ms)) = order.pop_front() else { break };
            // A newer answer about the same request stays.
            if answers.get(&tag).is_some_and(|entry| entry.until_ms == until_ms) {
                answers.remove(&tag);
            }
        }
        answers.insert(key.tag, Entry { grant: Rc::new(grant.clone()), until_ms });
        order.push_back((key.tag, until_ms));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::policy::testing::asked;

    fn cache(any_request: bool) -> AuthCache {
        let (headers, cookies) = (vec!["authorization".into()], vec!["session".into()]);
        AuthCache { headers, cookies, any_request, ttl: Duration::from_secs(1) }
    }

    fn key(service: u64, cache: &AuthCache, lines: &str) -> Option<Key> {
        asked(lines, false, |view| Key::of(service, cache, view))
    }

    #[test]
    fn an_answer_is_for_the_same_request() {
        let first = "GET /a HTTP/1.1\r\nHost: a\r\nAuthorization: x\r\nCookie: session=1\r\n";
        let check = |any_request, service, lines: &str, expect| {
            let cache = cache(any_request);
            let [one, other] = [key(1, &cache, first), key(service, &cache, lines)].map(|key| key.unwrap().tag);
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
        let grant = Grant { set: vec![("x-user".into(), (*b"joe").into())], ..Grant::default() };
        remembered.put(&key(0), &grant, 10);
        assert_eq!(remembered.find(&key(0), 1009).as_deref(), Some(&grant));
        assert_eq!((remembered.find(&key(0), 1010), remembered.find(&key(1), 10)), (None, None));
        // Put again, it is younger than the others.
        (1..ANSWERS_MAX).for_each(|number| remembered.put(&key(number), &grant, 10));
        remembered.put(&key(0), &grant, 20);
        assert!(remembered.find(&key(0), 30).is_some() && remembered.find(&key(1), 30).is_some());
        remembered.put(&key(ANSWERS_MAX), &grant, 20);
        assert!(remembered.find(&key(0), 30).is_some() && remembered.find(&key(1), 30).is_none());
        let table = remembered.0.borrow();
        assert!(table.answers.len() <= ANSWERS_MAX && table.order.len() == ANSWERS_MAX);
        drop(table);
        let large = Grant { set: vec![("x-user".into(), vec![b'a'; ANSWER_BYTES_MAX].into())], ..Grant::default() };
        remembered.put(&key(ANSWERS_MAX + 1), &large, 20);
        assert!(remembered.find(&key(ANSWERS_MAX + 1), 20).is_none());
    }
}
