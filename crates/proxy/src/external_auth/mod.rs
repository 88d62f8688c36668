//! External authorization: a service says whether a request may use a route.
//!
//! An exchange makes a [`Question`] of its request, and goes on with the [`Verdict`]. Whatever the service answers, only what the configuration
//! names goes from its answer to the endpoint, and from a refusal to the client.
//!
//! | what | file |
//! |---|---|
//! | the question and the answer over HTTP | `http` |
//! | the same over gRPC | `grpc` |
//! | what is remembered of answers | `cache` |
//! | the way to the page on which clients sign in | `sign_in` |

pub(crate) mod cache;
pub(crate) mod grpc;
pub(crate) mod http;
pub(crate) mod sign_in;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use model::{AnswerHeaders, AuthProtocol, ExternalAuth, PathMatcher, Route, SetCookie};
use telemetry::Reason;
use wire::message::{Field, FieldId};

use self::cache::Key;
use crate::auth::present;
use crate::error::Error;
use crate::exchange::Request;
use crate::http::headers::Out;
use crate::policy::RequestView;
use crate::policy::headers::is_alike;
use crate::policy::via;
use crate::question::call::bad;
use crate::question::{About, Question};
use crate::upstream::connect::OnBehalfOf;
use crate::worker::ListenerView;

/// Bytes of names and values that one answer may set or remove, so that the head for the endpoint stays small.
const CHANGES_BYTES_MAX: usize = 16 * 1024;

/// The services of a snapshot, each once.
#[derive(Default)]
pub(crate) struct Authorizers(HashMap<(Arc<ExternalAuth>, String), Arc<Authorizer>>);

/// Those of the routes of a listener, by the route's number.
#[derive(Default)]
pub(crate) struct ListenerAuthorizers(HashMap<usize, Arc<Authorizer>>);

/// A service, ready for use.
pub(crate) struct Authorizer {
    pub(crate) policy: Arc<ExternalAuth>,
    /// Identifies it in the caches of all workers, as long as its policy stays the same.
    id: u64,
}

impl Authorizers {
    /// The services of these routes. Keeps those of `previous` that are the same, so that the caches stay valid.
    pub(crate) fn new<'r>(
        routes: impl Iterator<Item = &'r Route>,
        clusters: &[Arc<model::Cluster>],
        previous: Option<&Self>,
    ) -> Self {
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        let mut all = HashMap::new();
        for policy in routes.filter_map(|route| route.policy.external_auth.as_ref()) {
            let key = key(policy, clusters);
            let known = previous.and_then(|previous| previous.0.get(&key)).cloned();
            all.entry(key).or_insert_with(|| {
                let make = || Authorizer { policy: policy.clone(), id: NEXT_ID.fetch_add(1, Relaxed) };
                known.unwrap_or_else(|| Arc::new(make()))
            });
        }
        Self(all)
    }

    /// Those of these routes.
    pub(crate) fn of(&self, routes: &[Route], clusters: &[Arc<model::Cluster>]) -> ListenerAuthorizers {
        let of = |(number, route): (usize, &Route)| {
            let policy = route.policy.external_auth.as_ref()?;
            Some((number, self.0.get(&key(policy, clusters))?.clone()))
        };
        ListenerAuthorizers(routes.iter().enumerate().filter_map(of).collect())
    }
}

/// The number of a cluster means another one in another snapshot, and its name does not.
fn key(policy: &Arc<ExternalAuth>, clusters: &[Arc<model::Cluster>]) -> (Arc<ExternalAuth>, String) {
    (policy.clone(), clusters.get(policy.to.0).map_or_else(String::new, |cluster| cluster.name.clone()))
}

impl ListenerAuthorizers {
    /// The service that is asked about the requests of the route with this number.
    pub(crate) fn of(&self, number: usize) -> Option<&Arc<Authorizer>> {
        self.0.get(&number)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The fields that only a service may set, on all routes. A field with which clients prove who they are is not among them: the service
    /// has to see it.
    pub(crate) fn claims(&self) -> impl Iterator<Item = &str> {
        let names = self.0.values().flat_map(|authorizer| authorizer.policy.response_headers.names());
        names.map(String::as_str).filter(|name| !ExternalAuth::is_credential(name))
    }
}

impl Authorizer {
    /// What is remembered of answers about this request; `None` if nothing is.
    pub(crate) fn cache_key(&self, route: &Route, asked: &RequestView<'_>) -> Option<Key> {
        // A name that is made of a number may be that of another path after a change.
        let path = match &route.path {
            PathMatcher::Prefix(path) | PathMatcher::Exact(path) => path.as_str(),
            PathMatcher::Regex(regex) => regex.as_str(),
        };
        Key::of(self.id, self.policy.cache.as_ref()?, (&route.name, path), asked)
    }

    /// What the service has to be asked about this request. `body` is as much of its body as the service gets, and whether that is all.
    ///
    /// # Errors
    /// What the client sends makes the headers of the question too long. The service has no cluster, which is a bug.
    pub(crate) fn question(
        &self,
        listener: &ListenerView,
        asked: &RequestView<'_>,
        who: OnBehalfOf,
        body: Option<(&[u8], bool)>,
        timeout_ms: u64,
    ) -> Result<Question, Error> {
        let cluster = listener.clusters.get(self.policy.to.0).ok_or_else(|| Error::internal(Reason::Internal))?.clone();
        let request = match &self.policy.protocol {
            AuthProtocol::Http(http) => http::question(&self.policy, http, &cluster, asked, body)?,
            AuthProtocol::Grpc(grpc) => grpc::question(&self.policy, grpc, &cluster, asked, who, body, timeout_ms),
        };
        Ok(Question::new(cluster, request, asked, who, timeout_ms, About::Authorization(self.policy.clone())))
    }

    /// Removes what the client has sent in fields that the endpoint gets from the service alone.
    pub(crate) fn strip(&self, request: &mut Request) {
        let Request { head, bytes, .. } = request;
        let names = self.policy.response_headers.names();
        if names.iter().any(|name| ExternalAuth::is_credential(name)) {
            head.fields.retain(|field| {
                field.id == FieldId::Identity
                    || !names.iter().any(|name| is_alike(field.name.get(bytes), name.as_bytes()))
            });
        }
    }
}

/// What the service says.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Allowed(Grant),
    Denied(Box<Refusal>),
}

/// What the endpoint gets of a positive answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Grant {
    /// Names, in lower case, and values.
    pub(crate) set: Vec<(Box<str>, Box<[u8]>)>,
    /// Names of fields that it does not get.
    pub(crate) remove: Vec<Box<str>>,
    /// The cookies that the client gets with the response.
    pub(crate) cookies: Vec<Box<[u8]>>,
}

/// The cookies of a positive answer, on their way to the client.
#[derive(Debug)]
pub(crate) struct Cookies {
    when: SetCookie,
    values: Vec<Box<[u8]>>,
}

impl Cookies {
    /// Those of the answer of a service with this policy; `None` if there are none.
    pub(crate) fn of(policy: &ExternalAuth, grant: &Grant) -> Option<Box<Self>> {
        let is_none = grant.cookies.is_empty();
        (!is_none).then(|| Box::new(Self { when: policy.set_cookie, values: grant.cookies.clone() }))
    }

    /// Writes them into a response with this status.
    pub(crate) fn write(&self, out: &mut impl Out, status: u16) {
        if self.when.is_with(status) {
            self.values.iter().for_each(|value| out.field(b"set-cookie", value, true));
        }
    }
}

/// What the client gets of a refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) content_type: Option<String>,
    /// `None` if it is not known or too long; the client then gets one of ours.
    pub(crate) body: Option<Vec<u8>>,
}

impl Grant {
    /// Changes the request for the endpoint. The service cannot set anything that the configuration does not name, and its answer cannot
    /// remove what this hop has added.
    pub(crate) fn apply(&self, request: &mut Request) {
        if !self.remove.is_empty() {
            let Request { head, bytes, .. } = &mut *request;
            head.fields.retain(|field| {
                let found = field.name.get(bytes);
                !is_removable(field)
                    || via::stays(found)
                    || !self.remove.iter().any(|name| is_alike(found, name.as_bytes()))
            });
        }
        for (name, value) in &self.set {
            present::add_identity(request, name, value);
        }
    }

    /// What the endpoint gets of these fields of an answer: names in any case, and values.
    ///
    /// # Errors
    /// There is too much of it, or a value that cannot be sent on.
    fn of<'f>(
        policy: &ExternalAuth,
        fields: impl Iterator<Item = (&'f [u8], &'f [u8])> + Clone,
        remove: Vec<Box<str>>,
    ) -> Result<Self, Error> {
        let (mut set, mut remove) = (Vec::new(), remove);
        let cookies: Vec<Box<[u8]>> = match policy.set_cookie {
            SetCookie::Off => Vec::new(),
            SetCookie::Success | SetCookie::Always => {
                let of_name = fields.clone().filter(|(found, _)| found.eq_ignore_ascii_case(b"set-cookie"));
                of_name.map(|(_, value)| value.into()).collect()
            }
        };
        match &policy.response_headers {
            // In the order of the names.
            AnswerHeaders::Named(names) => {
                for name in names {
                    let of_name = fields.clone().filter(|(found, _)| found.eq_ignore_ascii_case(name.as_bytes()));
                    set.extend(of_name.map(|(_, value)| (name.as_str().into(), value.into())));
                }
            }
            AnswerHeaders::All => {
                for (name, value) in fields {
                    let Some(name) = copied_name(name) else { continue };
                    // What the client has sent in it is not the service's.
                    remove.push(name.clone());
                    set.push((name, value.into()));
                }
            }
        }
        let mut values = set.iter().map(|(_, value): &(Box<str>, Box<[u8]>)| value).chain(&cookies);
        if !values.all(|value| is_value(value)) {
            return Err(bad("a header of the answer is malformed"));
        }
        Self { set, remove, cookies }.checked()
    }

    /// Bytes of all names and values.
    fn bytes(&self) -> usize {
        let set = self.set.iter().map(|(name, value)| name.len() + value.len());
        let rest = self.remove.iter().map(|name| name.len()).chain(self.cookies.iter().map(|value| value.len()));
        set.chain(rest).sum()
    }

    /// # Errors
    /// It is too large.
    fn checked(self) -> Result<Self, Error> {
        if self.bytes() > CHANGES_BYTES_MAX { Err(bad("too many headers to set or remove")) } else { Ok(self) }
    }
}

/// Fields of an answer that say something of the answer itself, of its sender or of the connection. The fields of this hop are among them:
/// a service does not decide where the endpoint believes that a request comes from.
const OF_THE_ANSWER: [&str; 23] = [
    "age",
    "authority",
    "connection",
    "cookie",
    "date",
    "etag",
    "expect",
    "forwarded",
    "host",
    "keep-alive",
    "last-modified",
    "proxy-authenticate",
    "proxy-connection",
    "server",
    "set-cookie",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "vary",
    "via",
    "www-authenticate",
    "x-real-ip",
];

/// The name in lower case of a field that the endpoint gets of an answer all of whose fields it gets; `None` if it does not get this one.
fn copied_name(name: &[u8]) -> Option<Box<str>> {
    let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    if name.is_empty() || !name.iter().all(is_part) {
        return None;
    }
    // Software that takes `_` for `-` must not find one of these either.
    let is_like = |prefix: &[u8]| name.get(..prefix.len()).is_some_and(|start| is_alike(start, prefix));
    let is_kept = OF_THE_ANSWER.iter().any(|of| is_alike(name, of.as_bytes()))
        || is_like(b"content-")
        || is_like(b"x-forwarded-")
        || is_like(b"grpc-");
    (!is_kept).then(|| String::from_utf8_lossy(name).to_ascii_lowercase().into())
}

/// Whether a service may have the field removed. It decides neither the framing nor the host of a request.
fn is_removable(field: &Field) -> bool {
    matches!(field.id, FieldId::Cookie | FieldId::Date | FieldId::Claim | FieldId::Other)
}

/// The value of a field that may be sent on: what HTTP/2 and gRPC carry is not limited to it by itself.
fn is_value(value: &[u8]) -> bool {
    !value.iter().any(|byte| matches!(byte, 0..=8 | 10..=31 | 127))
        && value.first().is_none_or(|byte| !matches!(byte, b' ' | b'\t'))
        && value.last().is_none_or(|byte| !matches!(byte, b' ' | b'\t'))
}

/// What the client gets of these fields of a refusal with this status: their names, in any case, and values. The type of the body is apart.
fn passed_on<'f>(
    policy: &ExternalAuth,
    status: u16,
    fields: impl Iterator<Item = (&'f [u8], &'f [u8])>,
) -> (Vec<(String, String)>, Option<String>) {
    let (mut headers, mut content_type, mut bytes) = (Vec::new(), None, 0);
    for (name, value) in fields {
        let (Ok(name), Ok(value)) = (std::str::from_utf8(name), std::str::from_utf8(value)) else { continue };
        let name = name.to_ascii_lowercase();
        let is_of_body = matches!(name.as_str(), "content-encoding" | "content-language");
        let is_bare = policy.is_403_bare && status == 403 && name == "www-authenticate";
        let is_named = !is_bare && policy.refusal_headers.contains(&name);
        bytes += name.len() + value.len();
        if !is_value(value.as_bytes()) || bytes > CHANGES_BYTES_MAX {
            continue;
        }
        match name.as_str() {
            "content-type" => content_type = Some(value.to_owned()),
            _ if is_named || is_of_body => headers.push((name, value.to_owned())),
            _ => {}
        }
    }
    (headers, content_type)
}

#[cfg(test)]
mod tests {
    use wire::h1::parse_request;

    use super::*;

    pub(super) fn policy(protocol: AuthProtocol) -> ExternalAuth {
        ExternalAuth {
            to: model::ClusterId(0),
            protocol,
            timeout: std::time::Duration::from_millis(200),
            fail_open: false,
            failure_status: 503,
            request_headers: None,
            response_headers: AnswerHeaders::Named(vec!["x-user".into(), "authorization".into()]),
            refusal_headers: vec!["location".into(), "set-cookie".into()],
            set_cookie: SetCookie::Off,
            is_403_bare: false,
            body: None,
            cache: None,
            sign_in: None,
        }
    }

    fn request(fields: &str) -> Request {
        let text = format!("GET /a?b=c HTTP/1.1\r\nHost: shop\r\n{fields}\r\n");
        let mut request = Request::default();
        parse_request(text.as_bytes(), 100, &mut request.head).unwrap();
        request.bytes = text.into_bytes();
        request
    }

    fn fields(request: &Request) -> String {
        let field = |field: &Field| {
            let text = |span: wire::message::Span| String::from_utf8_lossy(span.get(&request.bytes)).into_owned();
            format!("{}: {}", text(field.name), text(field.value))
        };
        request.head.fields.iter().skip(1).map(field).collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn the_endpoint_gets_what_the_service_says_and_not_what_the_client_says() {
        let authorizer = Authorizer {
            policy: Arc::new(policy(AuthProtocol::Http(model::HttpAuth {
                target: model::AuthTarget::Path("/".into()),
                method: None,
                host: None,
                query: [].into(),
                headers: Vec::new(),
            }))),
            id: 1,
        };
        let mut request = request("Authorization: Bearer mine\r\nCookie: a=b\r\nx_debug: 1\r\nContent-Length: 1\r\n");
        authorizer.strip(&mut request);
        assert_eq!(fields(&request), "Cookie: a=b, x_debug: 1, Content-Length: 1");
        let grant = Grant {
            set: vec![("x-user".into(), (*b"joe").into()), ("authorization".into(), (*b"Bearer yours").into())],
            remove: vec!["x-debug".into(), "content-length".into(), "host".into(), "x-user".into()],
            cookies: Vec::new(),
        };
        grant.apply(&mut request);
        assert_eq!(fields(&request), "Cookie: a=b, Content-Length: 1, x-user: joe, authorization: Bearer yours");
        assert!(request.head.fields.iter().any(|field| field.id == FieldId::Host));
    }

    #[test]
    fn all_headers_of_an_answer_without_its_own() {
        let mut policy = policy(AuthProtocol::Grpc(model::GrpcAuth { host: None, context: Vec::new() }));
        policy.response_headers = AnswerHeaders::All;
        let pairs: [(&str, &str); 12] = [
            ("X-User", "joe"),
            ("authorization", "Bearer yours"),
            ("Content-Length", "5"),
            ("content_type", "text/plain"),
            ("Host", "evil"),
            ("Transfer-Encoding", "chunked"),
            ("X_Forwarded_For", "192.0.2.1"),
            ("set-cookie", "a=b"),
            (":authority", "evil"),
            ("a b", "c"),
            ("X-Role", "a"),
            ("x-role", "b"),
        ];
        let of = |pairs: &[(&str, &str)]| {
            let pairs: Vec<(Vec<u8>, Vec<u8>)> = pairs.iter().map(|(a, b)| ((*a).into(), (*b).into())).collect();
            Grant::of(&policy, pairs.iter().map(|(a, b)| (&a[..], &b[..])), Vec::new())
        };
        let grant = of(&pairs).unwrap();
        let mut request = request(
            "Authorization: Bearer mine\r\nX_User: admin\r\nX-Role: root\r\nX-Other: 1\r\nContent-Length: 1\r\n",
        );
        grant.apply(&mut request);
        assert_eq!(
            fields(&request),
            "X-Other: 1, Content-Length: 1, x-user: joe, authorization: Bearer yours, x-role: a, x-role: b"
        );
        assert!(of(&[("x-user", "a\r\nb: c")]).is_err());
    }

    #[test]
    fn values_end_no_line() {
        let check = |value: &str, expect| assert_eq!(is_value(value.as_bytes()), expect, "{value:?}");
        check("", true);
        check("a\tb", true);
        check("a\r\nb: c", false);
        check("a\0", false);
        check(" a", false);
        check("a ", false);
    }
}
