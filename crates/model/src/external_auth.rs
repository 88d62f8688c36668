//! External authorization: a service says whether a request may use a route.

use std::time::Duration;

use crate::{ClusterId, RequestPart};

/// A service that is asked about each request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ExternalAuth {
    /// The cluster of the service.
    pub to: ClusterId,
    /// How it is asked.
    pub protocol: AuthProtocol,
    /// The limit from the question to the end of the answer.
    pub timeout: Duration,
    /// Whether a request passes if there is no answer.
    pub fail_open: bool,
    /// What a client gets if there is no answer.
    pub failure_status: u16,
    /// The headers of the request that the service gets, in lower case; `None` means all.
    pub request_headers: Option<Vec<String>>,
    /// The headers that the service may set for the endpoint.
    pub response_headers: AnswerHeaders,
    /// The headers of a refusal that the client gets, in lower case.
    pub refusal_headers: Vec<String>,
    /// Whether the client gets the cookies of a positive answer.
    pub set_cookie: SetCookie,
    /// A refusal with 403 has no `WWW-Authenticate`, as with nginx's `auth_request`.
    pub is_403_bare: bool,
    /// How much of the request's body the service gets; `None` means nothing.
    pub body: Option<AuthBody>,
    /// Which answers are remembered; `None` means none.
    pub cache: Option<AuthCache>,
    /// Where clients go that the service answers with 401; `None` means that they get that answer.
    pub sign_in: Option<SignIn>,
}

/// When the client gets the cookies that a service sets with a positive answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SetCookie {
    /// Never.
    #[default]
    Off,
    /// With a response that has one of [`SetCookie::SUCCESS`].
    Success,
    /// With any response.
    Always,
}

impl SetCookie {
    /// The statuses with which nginx adds a header.
    pub const SUCCESS: [u16; 10] = [200, 201, 204, 206, 301, 302, 303, 304, 307, 308];

    /// Whether a response with this status gets them.
    pub fn is_with(self, status: u16) -> bool {
        match self {
            Self::Off => false,
            Self::Success => Self::SUCCESS.contains(&status),
            // What comes before the response has none of its fields.
            Self::Always => status >= 200 || status == 101,
        }
    }
}

/// The page on which clients sign in.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SignIn {
    /// The URL. The part before its query has no variables but the scheme and the host.
    pub url: Box<[RequestPart]>,
    /// The name of the parameter of its query that has the URL of the request, so that clients can go back to it.
    pub param: String,
    /// The parameter has path and query of that URL alone, or `/` if they might lead to another host.
    pub path_only: bool,
}

/// The headers of an answer that the endpoint gets.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum AnswerHeaders {
    /// Those with these names, in lower case. What a client sends in them is removed, whether or not the service sets them.
    Named(Vec<String>),
    /// All that do not belong to the connection or to the body of the answer, each in place of the client's.
    All,
}

impl AnswerHeaders {
    /// The names, as far as they are known.
    pub fn names(&self) -> &[String] {
        match self {
            Self::Named(names) => names,
            Self::All => &[],
        }
    }
}

/// How a service is asked.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum AuthProtocol {
    /// By an HTTP request (forward-auth).
    Http(HttpAuth),
    /// By a call of `envoy.service.auth.v3.Authorization/Check`.
    Grpc(GrpcAuth),
}

/// The HTTP request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HttpAuth {
    /// What it asks for.
    pub target: AuthTarget,
    /// Its method for a [`AuthTarget::Path`]; `None` means GET, or POST if it has a body.
    pub method: Option<AuthMethod>,
    /// Its `Host`; `None` means that of the client's request.
    pub host: Option<String>,
    /// Headers that it has in addition, each in place of the client's: names in lower case, and what the value is made of. If nothing comes out, it
    /// has no such header.
    pub headers: Vec<(String, Box<[RequestPart]>)>,
    /// Its query behind a [`AuthTarget::Path`]; empty means none. What variables stand for is percent-encoded.
    pub query: Box<[RequestPart]>,
}

/// The method of a question. CONNECT opens a tunnel and TRACE sends the request back, so neither can be one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AuthMethod {
    /// GET.
    Get,
    /// HEAD.
    Head,
    /// POST.
    Post,
    /// PUT.
    Put,
    /// PATCH.
    Patch,
    /// DELETE.
    Delete,
    /// OPTIONS.
    Options,
}

impl AuthMethod {
    /// All of them.
    pub const ALL: [Self; 7] = [Self::Get, Self::Head, Self::Post, Self::Put, Self::Patch, Self::Delete, Self::Options];

    /// As on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Head => "HEAD",
            Self::Post => "POST",
            Self::Put => "PUT",
            Self::Patch => "PATCH",
            Self::Delete => "DELETE",
            Self::Options => "OPTIONS",
        }
    }

    /// Whether servers expect a body with it. RFC 9110 sections 9.3.1, 9.3.2 and 9.3.5 give one no meaning in GET, HEAD and DELETE.
    pub fn has_body(self) -> bool {
        matches!(self, Self::Post | Self::Put | Self::Patch | Self::Options)
    }
}

/// What the HTTP request asks for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum AuthTarget {
    /// Always this path, without a query. Any status from 200 to 299 is a yes.
    Path(String),
    /// The method and the path of the client's request, with this in front of the path (GEP-1494). Only 200 is a yes.
    Prefix(String),
}

/// The call.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct GrpcAuth {
    /// Its `:authority`; `None` means the name of the cluster.
    pub host: Option<String>,
    /// `context_extensions`: names and values that the service gets with every question.
    pub context: Vec<(String, String)>,
}

/// How much of a request's body is held back for the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AuthBody {
    /// The largest body, in bytes.
    pub bytes_max: usize,
    /// Whether the service gets the beginning of a larger one. Otherwise the request is refused.
    pub partial: bool,
}

/// Which answers are remembered.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AuthCache {
    /// Which requests have the same answer.
    pub key: AuthCacheKey,
    /// How long an answer holds.
    pub ttl: AuthCacheTtl,
}

/// Which requests have the same answer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum AuthCacheKey {
    /// Those with the same values.
    Values {
        /// The headers, in lower case.
        headers: Vec<String>,
        /// The cookies.
        cookies: Vec<String>,
        /// Whether an answer holds for all requests with the same values, whatever their method, host and path are.
        any_request: bool,
    },
    /// Those to the same route and host of which these parts are the same, as with nginx's `proxy_cache_key`.
    Template(Box<[RequestPart]>),
}

/// How long an answer holds.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum AuthCacheTtl {
    /// A yes for this time. A no is not remembered.
    Yes(Duration),
    /// An answer with one of these statuses for this time, `None` being all others, as with nginx's `proxy_cache_valid`: the headers of the answer can
    /// say otherwise.
    Statuses(Vec<(Option<u16>, Duration)>),
}

impl AuthCacheTtl {
    /// The longest time for which an answer is remembered. Whoever loses a right must lose it on the same day.
    pub const MAX: Duration = Duration::from_secs(24 * 3600);
}

impl ExternalAuth {
    /// What it is called in the configuration and in `status`.
    pub fn kind(&self) -> &'static str {
        match self.protocol {
            AuthProtocol::Http(_) => "external http",
            AuthProtocol::Grpc(_) => "external grpc",
        }
    }

    /// Whether clients prove with this header who they are, so that the service has to see it even if it replaces it for the endpoint.
    pub fn is_credential(name: &str) -> bool {
        name == "authorization"
    }
}
