//! The keys of external authorization.

use model::{AuthMethod, SetCookie};

use super::Off;
use crate::defaults;
use crate::define::{Kind, keys};
use crate::diagnostic::{Report, Wrong};
use crate::read::{Choice, Flag, Int, Named, OneOf, OneOrMany, Read, Scalar, unexpected};
use crate::text::{
    AuthStatus, ByteSize, ChangedHeader, CookieName, HashTemplate, HeaderName, HeaderValue, HostHeader, HttpPath,
    Label, Positive, QueryName, QueryTemplate, RequestTemplate, SignInUrl, Wait, duration_text,
};
use crate::yaml::{Node, Value};

keys! {
    /// A service that is asked whether a request may use the route, before an endpoint gets it. [External
    /// authorization](external-authorization.md) has the details.
    pub struct RawExternalAuthObject as "an external authorization", one of [http, grpc] {
        /// The cluster of the service. Its breaker, health checks, ejection and TLS are those of any cluster.
        required to: Label;
        /// Ask by an HTTP request (forward-auth, `auth_request`).
        optional http: RawHttpAuth;
        /// Ask by a gRPC call (`envoy.service.auth.v3.Authorization/Check`, which Envoy calls `ext_authz`).
        optional grpc: RawGrpcAuth;
        /// From the question to the end of the answer.
        optional timeout: Positive, default duration_text(defaults::EXTERNAL_AUTH_TIMEOUT);
        /// Let requests pass while the service gives no answer. A refusal is an answer.
        optional fail_open: Flag, default "false";
        /// What clients get while the service gives no answer.
        optional failure_status: Int<400, 599>, default defaults::EXTERNAL_AUTH_STATUS.to_string();
        /// The headers of a request that the service gets. Headers that Steelyard adds, such as `X-Forwarded-For`, are not affected.
        optional request_headers: OneOrMany<HeaderName>, default "all";
        /// The headers of a positive answer that the endpoint gets. What a client sends in them is removed, on all routes of the listener;
        /// `authorization` only on routes with this service, which sees the client's.
        optional response_headers: OneOrMany<ChangedHeader>, default "none";
        /// The headers of a refusal that the client gets, in addition to those that describe its body.
        optional refusal_headers: OneOrMany<ChangedHeader>, default format!("[{}]", defaults::REFUSAL_HEADERS.join(", "));
        /// When clients get the cookies (`Set-Cookie`) of a positive answer, in addition to those of the endpoint. An answer with cookies is not
        /// remembered then.
        optional set_cookie: OneOf<SetCookie>, default "off";
        /// Hold back the body of a request, and send it to the service, too.
        optional body: RawAuthBody, default "the service gets no body";
        /// Remember positive answers.
        optional cache: RawAuthCache, default "ask about every request";
        /// Redirect clients that the service answers with 401 to a page on which they sign in.
        optional sign_in: RawSignIn, default "they get that answer";
    }
}

keys! {
    /// The HTTP request to the service.
    pub struct RawHttpAuth as "the HTTP request of an external authorization" {
        /// The path, without a query. Path and query of the client's request are in `X-Forwarded-Uri`.
        optional path: HttpPath, default "/";
        /// Its method. It has no body unless `body` says so, whatever the method is.
        optional method: OneOf<AuthMethod>, default "GET, or POST with `body`";
        /// The query behind `path`. It may have the variables of a hash key, whose values are percent-encoded.
        optional query: QueryTemplate, default "none";
        /// Instead of `path`: ask with the method and the path of the client's request, and this in front of the path, as the filter `ExternalAuth`
        /// of the Gateway API does. Only 200 is a yes then.
        optional prefix: HttpPath, default "none";
        /// The `Host`. `X-Forwarded-Host` has the client's.
        optional host: HostHeader, default "the client's";
        /// Names and values of headers that it has in addition, each in place of the client's and of Steelyard's own. The values may have the
        /// variables of a hash key (`template` of `maglev`), and `${client_port}`, `${request_id}`, `${tls_version}`, `${sni}` and `${client_cert_...}`.
        /// If a value comes out empty, the service does not get the header.
        optional headers: Named<ChangedHeader, RequestTemplate>, default "none";
    }
}

keys! {
    /// The gRPC call to the service. The cluster needs `protocol: h2`.
    pub struct RawGrpcAuth as "the gRPC call of an external authorization" {
        /// The `:authority`.
        optional host: HostHeader, default "the name of the cluster";
        /// `context_extensions`: names and values that the service gets with each question.
        optional context: Named<QueryName, HeaderValue>, default "none";
    }
}

keys! {
    /// How much of a request's body the service gets. The endpoint gets nothing before the service has answered.
    pub struct RawAuthBody as "the body for an external authorization" {
        /// A request with a larger body is answered 413. From 1 byte to 1MiB.
        required bytes: ByteSize<1, 1_048_576>;
        /// Send the first `bytes` of a larger body, instead of refusing the request.
        optional partial: Flag, default "false";
    }
}

keys! {
    /// The page to which clients are redirected by 302 instead of a 401 of the service. They keep the cookies of that answer.
    pub struct RawSignIn as "the sign-in of an external authorization" {
        /// Its URL. `${host}` in it stands for the host of the client's request, and `${scheme}` for `http` or `https`. Behind its `?`, it may have all
        /// variables of a hash key, whose values are percent-encoded; in the parameter of `param` only those and `${authority}` and `${target}`.
        required url: SignInUrl;
        /// The name of the parameter of its query that has the URL of the client's request, so that clients can go back to it. If the URL has such a
        /// parameter already, nothing is added.
        optional param: QueryName, default defaults::SIGN_IN_PARAM;
        /// The parameter has the path and the query of that URL alone; `/` if browsers could take the path for another host, as in `//evil.example`.
        optional path_only: Flag, default "false";
    }
}

keys! {
    /// Which answers are remembered. A request that has none of the headers and cookies is always asked about. Each worker
    /// remembers up to 4,096 answers and 4MiB of them, and none of more than 16KiB.
    pub struct RawAuthCache as "the cache of an external authorization", one of [ttl, statuses] {
        /// The headers that the service decides by.
        optional header: OneOrMany<HeaderName>, default "none";
        /// The cookies that it decides by.
        optional cookie: OneOrMany<CookieName>, default "none";
        /// An answer holds for every request with the same values of these, whatever its method, host, path and query are.
        optional any_request: Flag, default "false";
        /// Instead of `header` and `cookie`: text with the variables of a hash key. An answer holds for all requests to the same route and host for
        /// which this text is the same, as with nginx's `proxy_cache_key`, also if the text is empty.
        optional key: HashTemplate, default "none";
        /// How long a yes holds, whatever its headers say. A no is not remembered.
        optional ttl: Positive;
        /// How long an answer with this status holds, a yes or a no; `any` stands for the statuses up to 499 that are not listed, and 0s means not at
        /// all. As with nginx's `proxy_cache_valid`, the answer can say otherwise in `Cache-Control`, `X-Accel-Expires` or `Expires`, and one with
        /// `Set-Cookie` or `Vary` is not remembered. Only with `http`.
        optional statuses: Named<AuthStatus, Wait>;
    }
}

impl Choice for AuthMethod {
    const CHOICES: &'static [(&'static str, Self, &'static str)] = &[
        ("GET", Self::Get, "as nginx's `auth_request` asks"),
        ("HEAD", Self::Head, "the answer has no body"),
        ("POST", Self::Post, "for services that take nothing else"),
        ("PUT", Self::Put, "the same"),
        ("PATCH", Self::Patch, "the same"),
        ("DELETE", Self::Delete, "the same"),
        ("OPTIONS", Self::Options, "the same"),
    ];
}

impl Choice for SetCookie {
    const CHOICES: &'static [(&'static str, Self, &'static str)] = &[
        ("off", Self::Off, "never"),
        ("success", Self::Success, "with responses of 200, 201, 204, 206, 301 to 304, 307 and 308, as with nginx"),
        ("always", Self::Always, "with all responses"),
    ];
}

text_or_object! {
    /// `off`, or the service.
    RawExternalAuth = OneOf<Off> | RawExternalAuthObject
}
