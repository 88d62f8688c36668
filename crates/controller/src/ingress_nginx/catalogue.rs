//! Every annotation that ingress-nginx v1.15 reads, and what becomes of it here.
//!
//! This table is the only place that decides it: the controller serves by it, `steelyard migrate` reports by it, and the table of the
//! documentation is written from it.

#[cfg(test)]
mod tests;

use super::value::{Form, boolean, integer};

/// What becomes of an annotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Clients see the same.
    Served,
    /// It is served, and clients or endpoints may see a difference, which the sentence names.
    Differs,
    /// There is nothing to do, here or there.
    NoEffect,
    /// It is not served. The sentence says why, and what to write instead.
    Refused,
}

impl Verdict {
    /// In words.
    pub fn told(self) -> &'static str {
        match self {
            Self::Served => "served",
            Self::Differs => "served with a difference",
            Self::NoEffect => "no effect",
            Self::Refused => "refused",
        }
    }
}

/// What ingress-nginx does with a value that it cannot read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bad {
    /// It does not serve the Ingress. One that it has served before stays as it was.
    Drops,
    /// It answers the requests of the Ingress with 503.
    Closes,
    /// It takes the default.
    Default,
}

/// An annotation.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// Its name without the prefix.
    pub name: &'static str,
    /// What its value looks like.
    pub form: Form,
    /// What ingress-nginx does with another value.
    pub bad: Bad,
    /// It keeps somebody out, or something secret. If it cannot be served, neither are the routes of its Ingress.
    pub security: bool,
    /// What becomes of it, unless its value says otherwise.
    pub verdict: Verdict,
    /// What it does, what is different, or why it is refused and what to write instead.
    pub says: &'static str,
    /// The part of its tests: a file of `crates/controller/tests/cases`, or a unit test of this module.
    pub test: &'static str,
}

/// The keys that keep somebody out and that ingress-nginx applies to a host as a whole, whichever Ingress of the host has them.
pub const OF_HOSTS: [&str; 5] =
    ["auth-tls-secret", "auth-tls-verify-client", "auth-tls-match-cn", "ssl-passthrough", "server-snippet"];

impl Key {
    /// Whether a value asks for nothing. Of a key that keeps somebody out, only a boolean can say so: `off` may be the name of a Secret.
    pub fn is_off(&self, value: &str) -> bool {
        match self.form {
            Form::Bool => boolean(value) == Some(false),
            Form::Int => !self.security && integer(value) == Some(0),
            _ => !self.security && value == "off",
        }
    }
}

/// The annotation with this name, without the prefix.
pub fn find(name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.name == name)
}

/// The known name that is most like this one; for messages about unknown annotations.
pub fn nearest(name: &str) -> Option<&'static str> {
    // These were annotations of earlier versions, or of other controllers.
    let renamed = [
        ("secure-backends", "backend-protocol"),
        ("rate-limit", "limit-rps"),
        ("session-cookie-hash", "session-cookie-name"),
        ("add-base-url", "rewrite-target"),
        ("grpc-backend", "backend-protocol"),
        ("proxy-read-timeouts", "proxy-read-timeout"),
    ];
    if let Some((_, known)) = renamed.iter().find(|(old, _)| *old == name) {
        return Some(known);
    }
    let shared = |known: &str| known.bytes().zip(name.bytes()).take_while(|(a, b)| a == b).count();
    let is_close = |known: &&Key| shared(known.name) * 4 >= known.name.len().max(name.len()) * 3;
    KEYS.iter().filter(is_close).max_by_key(|known| shared(known.name)).map(|known| known.name)
}

const fn served(name: &'static str, form: Form, bad: Bad, says: &'static str, test: &'static str) -> Key {
    Key { name, form, bad, security: false, verdict: Verdict::Served, says, test }
}

const fn differs(name: &'static str, form: Form, bad: Bad, says: &'static str, test: &'static str) -> Key {
    Key { name, form, bad, security: false, verdict: Verdict::Differs, says, test }
}

const fn no_effect(name: &'static str, form: Form, bad: Bad, says: &'static str) -> Key {
    Key { name, form, bad, security: false, verdict: Verdict::NoEffect, says, test: "plan" }
}

const fn refused(name: &'static str, form: Form, bad: Bad, says: &'static str) -> Key {
    Key { name, form, bad, security: false, verdict: Verdict::Refused, says, test: "plan" }
}

/// The same key, with the rule for those that keep somebody out.
const fn secures(key: Key) -> Key {
    Key { security: true, ..key }
}

const TUNING: &str = "it tunes the memory of nginx; Steelyard bounds its own";
const LIMIT_IPV6: &str = "counted on all paths of the Ingress; of IPv6 clients the first 64 bits count";
const NO_WAF: &str =
    "there is no web application firewall here; put one between Steelyard and the endpoints, and remove the annotation";
const FASTCGI: &str = "Steelyard does not speak FastCGI; put an HTTP server such as nginx beside the application";

use Bad::{Closes, Default, Drops};
use Form::{Bool, Code, Host, Int, Lines, List, Networks, Service, Size, Statuses, Text, Token, Tokens, Url, Word};

/// All of them, by subject.
pub const KEYS: &[Key] = &[
    // Paths and redirects.
    served(
        "rewrite-target",
        Form::Target,
        Default,
        "the new path; `$1` to `$9` are groups of the path of the rule",
        "ingress-nginx-paths",
    ),
    served(
        "use-regex",
        Bool,
        Default,
        "all paths of the host are regular expressions then, without case and open at their ends",
        "ingress-nginx-paths",
    ),
    differs(
        "app-root",
        Form::Path,
        Default,
        "`Location` is the path alone, which means the same URL to clients",
        "ingress-nginx-redirects",
    ),
    differs(
        "ssl-redirect",
        Bool,
        Default,
        "the redirect keeps a slash at the end of the path, which ingress-nginx cuts off",
        "ingress-nginx-redirects",
    ),
    differs(
        "force-ssl-redirect",
        Bool,
        Default,
        "the redirect keeps a slash at the end of the path, which ingress-nginx cuts off",
        "ingress-nginx-redirects",
    ),
    no_effect("preserve-trailing-slash", Bool, Default, "redirects always keep the slash"),
    differs(
        "use-port-in-redirects",
        Bool,
        Default,
        "redirects to HTTPS and to a path name the port, unless it is the default one of the scheme",
        "ingress-nginx-redirects",
    ),
    served("relative-redirects", Bool, Default, "redirects to a path name the path alone", "ingress-nginx-redirects"),
    served(
        "permanent-redirect",
        Url,
        Drops,
        "the redirect needs no Service, and comes before authentication; a path becomes a URL of the scheme and the host of the request, unless relative-redirects is set",
        "ingress-nginx-redirects",
    ),
    served(
        "permanent-redirect-code",
        Code,
        Drops,
        "300 to 308; another code means 301. With 300, 305 and 306 the URL is the body and no redirect, as with nginx",
        "ingress-nginx-redirects",
    ),
    served("temporal-redirect", Url, Drops, "it comes before permanent-redirect", "ingress-nginx-redirects"),
    served(
        "temporal-redirect-code",
        Code,
        Drops,
        "300 to 307; another code means 302. With 300, 305 and 306 the URL is the body and no redirect, as with nginx",
        "ingress-nginx-redirects",
    ),
    differs(
        "from-to-www-redirect",
        Bool,
        Drops,
        "`Location` has no port and keeps a slash at the end of the path",
        "ingress-nginx-redirects",
    ),
    served(
        "server-alias",
        List,
        Drops,
        "more names of the host, also `*.DOMAIN` and `.DOMAIN`; a regular expression (`~`) is served as the names that it stands for (up to 64, or `*.DOMAIN`), and refused if there are others, as `NAME.*` is",
        "ingress-nginx-paths",
    ),
    served(
        "x-forwarded-prefix",
        Text,
        Drops,
        "the endpoint gets it where rewrite-target has an effect",
        "ingress-nginx-paths",
    ),
    served(
        "upstream-vhost",
        Host,
        Drops,
        "the `Host` that the endpoint gets, perhaps with $namespace, $ingress_name, $service_name and $service_port; other variables of nginx are refused",
        "ingress-nginx-paths",
    ),
    // Bodies and buffers.
    differs(
        "proxy-body-size",
        Size,
        Default,
        "a larger body gets 413; bodies are collected in memory up to 16m, and with a larger limit, or none, they pass as they arrive",
        "ingress-nginx-upstream",
    ),
    no_effect("client-body-buffer-size", Size, Drops, TUNING),
    no_effect("proxy-buffers-number", Int, Default, TUNING),
    no_effect("proxy-busy-buffers-size", Size, Default, TUNING),
    no_effect("proxy-max-temp-file-size", Size, Default, TUNING),
    no_effect("proxy-buffer-size", Size, Default, "heads of responses have a limit of their own, which is larger"),
    no_effect(
        "proxy-buffering",
        Word(&["on", "off"]),
        Default,
        "responses pass at the pace of the slower side, or of limit-rate, which needs it",
    ),
    served(
        "proxy-request-buffering",
        Word(&["on", "off"]),
        Default,
        "with `off`, bodies pass as they arrive",
        "ingress-nginx-upstream",
    ),
    // Endpoints.
    served("proxy-connect-timeout", Int, Default, "in seconds", "ingress-nginx-upstream"),
    differs(
        "proxy-send-timeout",
        Int,
        Default,
        "an endpoint that does not read has the time of proxy-read-timeout",
        "plan",
    ),
    served(
        "proxy-read-timeout",
        Int,
        Default,
        "in seconds; the longest silence of the endpoint, and then 504",
        "ingress-nginx-upstream",
    ),
    differs(
        "proxy-next-upstream",
        List,
        Default,
        "retries also have a budget, a fifth of the requests of the cluster",
        "ingress-nginx-upstream",
    ),
    served("proxy-next-upstream-tries", Int, Default, "tries altogether, at most 11 here", "ingress-nginx-upstream"),
    served(
        "proxy-next-upstream-timeout",
        Int,
        Default,
        "in seconds since the first try; 0 is no limit",
        "ingress-nginx-upstream",
    ),
    no_effect(
        "proxy-http-version",
        Word(&["1.0", "1.1"]),
        Default,
        "endpoints get HTTP/1.1, and answer a client of HTTP/1.0 as well; with 1.0, that is a difference",
    ),
    served(
        "proxy-redirect-from",
        Text,
        Default,
        "what `Location` and `Refresh` of endpoints begin with, or an expression (`~`) that matches in them",
        "plan",
    ),
    differs(
        "proxy-redirect-to",
        Text,
        Default,
        "what replaces it; a path becomes a URL with the scheme that a trusted proxy reports, and the variables of nginx are $scheme and $host",
        "plan",
    ),
    served("proxy-cookie-domain", Text, Default, "`FROM TO` of the domains of cookies of endpoints", "plan"),
    served(
        "proxy-cookie-path",
        Text,
        Default,
        "`FROM TO` of what the paths of cookies of endpoints begin with",
        "plan",
    ),
    no_effect(
        "connection-proxy-header",
        Text,
        Drops,
        "connections to endpoints are kept, and upgrades pass; with another value than keep-alive, that is a difference",
    ),
    served(
        "backend-protocol",
        Word(&["HTTP", "HTTPS", "GRPC", "GRPCS", "AUTO_HTTP", "FCGI"]),
        Default,
        "HTTPS and GRPCS accept any certificate and send no name, as there; a BackendTLSPolicy verifies. FCGI and AUTO_HTTP are refused",
        "ingress-nginx-upstream",
    ),
    refused("fastcgi-index", Text, Drops, FASTCGI),
    refused("fastcgi-params-configmap", Text, Drops, FASTCGI),
    secures(differs(
        "proxy-ssl-secret",
        Form::Reference,
        Drops,
        "the Secret is of the type kubernetes.io/tls; a BackendTLSPolicy of the Service comes first",
        "ingress-nginx-upstream",
    )),
    secures(served(
        "proxy-ssl-verify",
        Word(&["on", "off"]),
        Default,
        "with `on`, certificates of endpoints are signed by the `ca.crt` of the Secret",
        "ingress-nginx-upstream",
    )),
    differs(
        "proxy-ssl-verify-depth",
        Int,
        Default,
        "a chain may have any length that the CA certificates allow",
        "ingress-nginx-upstream",
    ),
    served("proxy-ssl-name", Text, Default, "the name in the certificates of endpoints", "ingress-nginx-upstream"),
    served(
        "proxy-ssl-server-name",
        Word(&["on", "off"]),
        Default,
        "with `on`, endpoints are asked for proxy-ssl-name",
        "ingress-nginx-upstream",
    ),
    no_effect("proxy-ssl-protocols", Text, Default, "TLS 1.2 and 1.3"),
    no_effect("proxy-ssl-ciphers", Text, Default, "TLS has the cipher suites of Steelyard"),
    differs(
        "service-upstream",
        Bool,
        Default,
        "requests go to the endpoints of the Service and not to its cluster IP",
        "ingress-nginx-upstream",
    ),
    served(
        "load-balance",
        Word(&["round_robin", "ewma", "chash", "chashsubset", "sticky_balanced", "sticky_persistent"]),
        Drops,
        "round_robin, or ewma as `peak_ewma`; other keys choose the rest",
        "ingress-nginx-upstream",
    ),
    differs(
        "upstream-hash-by",
        Text,
        Drops,
        "the hash is Maglev's, so clients change endpoints once; `$uri` is the path before a rewrite; other variables than those of the client's address, the URL, headers and cookies are refused",
        "ingress-nginx-upstream",
    ),
    served(
        "upstream-hash-by-subset",
        Bool,
        Drops,
        "each key has some endpoints, and each request goes to one of them at random; when endpoints come and go, a key keeps most of its own, and there all are dealt anew",
        "ingress-nginx-upstream",
    ),
    served("upstream-hash-by-subset-size", Int, Drops, "3 if it is not set, and 64 at most", "ingress-nginx-upstream"),
    // Sessions.
    served(
        "affinity",
        Word(&["cookie"]),
        Default,
        "clients keep their endpoints when they move here, and when they move back",
        "ingress-nginx-upstream",
    ),
    served(
        "affinity-mode",
        Word(&["balanced", "persistent"]),
        Default,
        "some clients move when endpoints come, or none",
        "ingress-nginx-upstream",
    ),
    served("session-cookie-name", Token, Default, "INGRESSCOOKIE if it is not set", "ingress-nginx-upstream"),
    differs(
        "session-cookie-path",
        Text,
        Default,
        "if it is not set, the cookie has the path of the rule, or `/` where that is a regular expression",
        "ingress-nginx-upstream",
    ),
    served(
        "session-cookie-domain",
        Text,
        Default,
        "browsers send the cookie to this host and to those below it",
        "ingress-nginx-upstream",
    ),
    differs(
        "session-cookie-samesite",
        Word(&["None", "Lax", "Strict"]),
        Default,
        "if it is not set, the cookie has `Lax`, which is the default of browsers; `None` is always `Secure`",
        "ingress-nginx-upstream",
    ),
    served("session-cookie-secure", Bool, Default, "over TLS, the cookie is always `Secure`", "ingress-nginx-upstream"),
    served("session-cookie-max-age", Int, Default, "in seconds", "ingress-nginx-upstream"),
    differs(
        "session-cookie-expires",
        Int,
        Default,
        "the cookie has `Max-Age` instead of `Expires`",
        "ingress-nginx-upstream",
    ),
    differs(
        "session-cookie-change-on-failure",
        Bool,
        Default,
        "a client whose endpoint fails always gets another one",
        "ingress-nginx-upstream",
    ),
    differs(
        "session-cookie-conditional-samesite-none",
        Bool,
        Default,
        "old browsers that take `SameSite=None` for `Strict` get it, too",
        "ingress-nginx-upstream",
    ),
    differs(
        "affinity-canary-behavior",
        Word(&["sticky", "legacy"]),
        Default,
        "each request is assigned to the canary or not anew, as with legacy",
        "ingress-nginx-canary",
    ),
    // Canaries.
    served(
        "canary",
        Bool,
        Default,
        "it needs an Ingress that is no canary with the same host and path",
        "ingress-nginx-canary",
    ),
    served("canary-by-header", Token, Default, "`always` and `never`, or a value", "ingress-nginx-canary"),
    served("canary-by-header-value", Text, Default, "requests with this value", "ingress-nginx-canary"),
    served("canary-by-header-pattern", Text, Default, "requests with such a value", "ingress-nginx-canary"),
    served("canary-by-cookie", Token, Default, "`always` and `never`", "ingress-nginx-canary"),
    differs("canary-weight", Int, Default, "the share is exact and not random", "ingress-nginx-canary"),
    served("canary-weight-total", Int, Default, "100 if it is not set or less", "ingress-nginx-canary"),
    // Who may use it.
    differs(
        "enable-cors",
        Bool,
        Default,
        "responses to requests with an origin have the fields, and preflight requests alone those about methods, headers and the time; an OPTIONS without `Origin` or `Access-Control-Request-Method` reaches the endpoint. With the origin `*`, responses do not allow credentials, which browsers refuse together; requests of no listed origin get no fields",
        "ingress-nginx-access",
    ),
    differs(
        "cors-allow-origin",
        List,
        Default,
        "the whole origin is compared, and ingress-nginx compares its end; a wildcard stands for one or more labels",
        "ingress-nginx-access",
    ),
    served("cors-allow-methods", List, Default, "the methods", "ingress-nginx-access"),
    served("cors-allow-headers", List, Default, "the headers", "ingress-nginx-access"),
    served("cors-allow-credentials", Bool, Default, "true if it is not set", "ingress-nginx-access"),
    served("cors-expose-headers", List, Default, "the headers", "ingress-nginx-access"),
    served("cors-max-age", Int, Default, "in seconds", "ingress-nginx-access"),
    secures(served("whitelist-source-range", Networks, Closes, "others get 403", "ingress-nginx-access")),
    secures(served("allowlist-source-range", Networks, Closes, "others get 403", "ingress-nginx-access")),
    secures(served(
        "denylist-source-range",
        Networks,
        Closes,
        "they get 403, also those that are allowed",
        "ingress-nginx-access",
    )),
    differs("limit-rps", Int, Drops, LIMIT_IPV6, "ingress-nginx-access"),
    differs("limit-rpm", Int, Drops, LIMIT_IPV6, "ingress-nginx-access"),
    served("limit-burst-multiplier", Int, Drops, "5 if it is not set", "ingress-nginx-access"),
    differs("limit-connections", Int, Drops, LIMIT_IPV6, "ingress-nginx-access"),
    served(
        "limit-rate",
        Int,
        Default,
        "kilobytes in a second, of each response; it needs proxy-buffering",
        "ingress-nginx-access",
    ),
    served(
        "limit-rate-after",
        Int,
        Default,
        "kilobytes of each response that are not slowed down",
        "ingress-nginx-access",
    ),
    served("limit-whitelist", Networks, Drops, "these clients are not limited", "ingress-nginx-access"),
    served("limit-allowlist", Networks, Drops, "these clients are not limited", "ingress-nginx-access"),
    secures(served(
        "auth-type",
        Word(&["basic", "digest"]),
        Drops,
        "basic; digest rests on MD5 and is refused",
        "ingress-nginx-access",
    )),
    secures(served(
        "auth-secret",
        Form::Reference,
        Drops,
        "the key `auth` of the Secret, unless auth-secret-type says otherwise, with hashes of bcrypt, argon2, SHA-crypt, MD5, {SSHA}, {SHA} or {PLAIN}; others, such as DES, are refused",
        "ingress-nginx-access",
    )),
    secures(served(
        "auth-secret-type",
        Word(&["auth-file", "auth-map"]),
        Drops,
        "auth-file, or auth-map, with which each key of the Secret is a user, and its value the hash",
        "ingress-nginx-access",
    )),
    served("auth-realm", Text, Drops, "what browsers show", "ingress-nginx-access"),
    secures(differs(
        "auth-url",
        Service,
        Drops,
        "the URL is that of a Service, `http://NAME.NAMESPACE.svc.cluster.local:PORT/PATH`, of a path of the same host, `https://$host/PATH`, or of a host outside of the cluster, `https://NAME:PORT/PATH`, at its public addresses and with a certificate for its name. With `https`, any certificate of a Service is accepted, as there; a BackendTLSPolicy verifies. Its query may have variables, which are escaped. A redirect of the service reaches the client, and ingress-nginx makes it 500",
        "ingress-nginx-access",
    )),
    secures(served(
        "auth-method",
        Token,
        Closes,
        "GET if it is not set; the question has no body, whatever its method is",
        "ingress-nginx-access",
    )),
    served(
        "auth-signin",
        Url,
        Drops,
        "a 401 of the service becomes a redirect; `$host`, `$scheme` and `rd=$escaped_request_uri` are understood, and most variables of nginx in other \
         parameters. All are escaped, also where nginx does not",
        "ingress-nginx-access",
    ),
    served("auth-signin-redirect-param", Token, Drops, "`rd` if it is not set", "ingress-nginx-access"),
    secures(served(
        "auth-response-headers",
        Tokens,
        Closes,
        "the endpoint gets them, and never those of a client",
        "ingress-nginx-access",
    )),
    secures(served(
        "auth-proxy-set-headers",
        Form::Reference,
        Closes,
        "the ConfigMap's headers, up to 31, in place of those of the client; values may have `$request_uri`, `$host`, `$http_NAME`, `$cookie_NAME` and \
         others. A missing ConfigMap closes the routes with 503, as there",
        "ingress-nginx-access",
    )),
    secures(served(
        "auth-request-redirect",
        Text,
        Default,
        "`X-Auth-Request-Redirect` of the question; it may have the variables of auth-proxy-set-headers",
        "ingress-nginx-access",
    )),
    differs(
        "auth-always-set-cookie",
        Bool,
        Default,
        "cookies with which the service lets a request pass reach the client with all responses, and without it with 200, 201, 204, 206, 301 to \
         304, 307 and 308; those of a refusal always do",
        "ingress-nginx-access",
    ),
    secures(served(
        "auth-cache-key",
        Text,
        Drops,
        "answers hold for the same key, host and path; `$http_NAME`, `$cookie_NAME`, `$remote_user`, `$request_uri`, `$host` and others are understood. An \
         answer with `Vary` or only `Expires` is not remembered, and a key of text alone is refused",
        "ingress-nginx-access",
    )),
    secures(served(
        "auth-cache-duration",
        Text,
        Default,
        "such as `200 202 401 5m`, the default; a day at most, and no failures of the service. Without auth-cache-key it has no effect",
        "ingress-nginx-access",
    )),
    no_effect("auth-keepalive", Int, Default, "connections are always kept"),
    no_effect("auth-keepalive-share-vars", Bool, Default, "connections are always kept"),
    no_effect("auth-keepalive-requests", Int, Default, "connections are always kept"),
    no_effect("auth-keepalive-timeout", Int, Default, "connections are always kept"),
    secures(refused(
        "auth-snippet",
        Lines,
        Drops,
        "it is configuration of nginx for the question to auth-url; remove it",
    )),
    secures(served(
        "enable-global-auth",
        Bool,
        Default,
        "false: global-auth-url does not count",
        "ingress-nginx-access",
    )),
    secures(served(
        "satisfy",
        Word(&["all", "any"]),
        Default,
        "with any, an address, a password or the service of auth-url is enough; a denied address may then come in by the other two, as there",
        "ingress-nginx-access",
    )),
    secures(differs(
        "auth-tls-secret",
        Form::Reference,
        Drops,
        "clients without a good certificate get 400; requests over HTTP that are not redirected get 403; all hosts of a port share one CA. `ca.crl` of the Secret counts as there: a revoked certificate gets 400, and so do all of a CA whose list is missing or has expired",
        "ingress-nginx-hosts",
    )),
    secures(served(
        "auth-tls-verify-client",
        Word(&["on", "off", "optional", "optional_no_ca"]),
        Default,
        "on, off, optional or optional_no_ca",
        "ingress-nginx-hosts",
    )),
    differs(
        "auth-tls-verify-depth",
        Int,
        Default,
        "a chain may have any length that the CA certificates allow",
        "ingress-nginx-hosts",
    ),
    served(
        "auth-tls-error-page",
        Url,
        Drops,
        "clients that would get 400 are redirected there; a path or a variable in it is refused",
        "ingress-nginx-hosts",
    ),
    served(
        "auth-tls-pass-certificate-to-upstream",
        Bool,
        Drops,
        "`ssl-client-cert`; endpoints always get `ssl-client-verify`, `ssl-client-subject-dn` and `ssl-client-issuer-dn`",
        "ingress-nginx-hosts",
    ),
    secures(served(
        "auth-tls-match-cn",
        Text,
        Drops,
        "an expression that is found anywhere in the subject; others get 403. One that looks around or refers back is refused",
        "ingress-nginx-hosts",
    )),
    secures(served(
        "ssl-passthrough",
        Bool,
        Drops,
        "with `--ingress-nginx-ssl-passthrough`, connections for the host reach the endpoints of its path `/` as they are; all other annotations hold for requests over HTTP alone, as there. A host with a wildcard is decrypted, as there",
        "ingress-nginx-passthrough",
    )),
    differs(
        "ssl-ciphers",
        Text,
        Drops,
        "whatever it lists, TLS has the cipher suites of Steelyard, all of which are authenticated and forward secret",
        "plan",
    ),
    no_effect("ssl-prefer-server-ciphers", Bool, Default, "Steelyard chooses"),
    // Responses, copies, logs.
    differs(
        "custom-http-errors",
        Statuses,
        Drops,
        "the default backend is asked by GET, or HEAD for a HEAD; if there is none, or if it does not answer, clients get the status with a page of Steelyard, where ingress-nginx answers 404 or 502",
        "ingress-nginx-errors",
    ),
    served(
        "default-backend",
        Token,
        Drops,
        "the first port of the Service; it answers instead of endpoints with custom-http-errors, and for a Service without endpoints",
        "ingress-nginx-errors",
    ),
    served(
        "disable-proxy-intercept-errors",
        Bool,
        Default,
        "responses of endpoints pass as they are; those that Steelyard makes are replaced",
        "ingress-nginx-errors",
    ),
    served(
        "custom-headers",
        Form::Reference,
        Closes,
        "of all responses; the ConfigMap is one of the Ingress' namespace, and without it, or with a header that is not allowed, requests get 503",
        "ingress-nginx-headers",
    ),
    differs(
        "mirror-target",
        Service,
        Default,
        "the URL is that of a Service, whose certificate is not verified, or of a host outside of the cluster, both as for auth-url; the copy has the path of the request. Requests with bodies of more than 64 KiB are not copied",
        "ingress-nginx-upstream",
    ),
    served(
        "mirror-host",
        Host,
        Default,
        "the `Host` of the copy; that of mirror-target if it is not set, and that of the request with `$host`",
        "ingress-nginx-upstream",
    ),
    differs("mirror-request-body", Word(&["on", "off"]), Default, "copies have bodies, also with `off`", "plan"),
    served(
        "enable-access-log",
        Bool,
        Default,
        "with `false`, requests are not in the access log of the process",
        "plan",
    ),
    no_effect("enable-rewrite-log", Bool, Default, "there is no such log"),
    served(
        "enable-opentelemetry",
        Bool,
        Default,
        "`false` records none of the requests; the others are recorded if `--telemetry` of the controller has `tracing`, and without it none of these annotations has an effect",
        "plan",
    ),
    served(
        "opentelemetry-trust-incoming-span",
        Bool,
        Default,
        "`false` begins a new trace for each request; it needs `--telemetry`",
        "plan",
    ),
    served(
        "opentelemetry-operation-name",
        Text,
        Drops,
        "the name of the spans, of $request_method, $host, $uri, $namespace and text; it needs `--telemetry`",
        "plan",
    ),
    no_effect("http2-push-preload", Bool, Drops, "nginx itself has removed it"),
    secures(refused("enable-modsecurity", Bool, Default, NO_WAF)),
    secures(refused("enable-owasp-core-rules", Bool, Default, NO_WAF)),
    no_effect("modsecurity-transaction-id", Text, Default, "it says more about enable-modsecurity"),
    secures(refused("modsecurity-snippet", Lines, Default, NO_WAF)),
    // Configuration of nginx itself.
    differs(
        "configuration-snippet",
        Lines,
        Drops,
        "directives about headers, `allow` and `deny`, `limit_except`, `if` with an answer, `return` and `rewrite` are understood (docs: snippets); a snippet with any other is refused as a whole, and closes its routes unless it cannot keep somebody out",
        "snippet",
    ),
    differs(
        "server-snippet",
        Lines,
        Drops,
        "`if` with an answer, `return`, `rewrite`, headers of responses, and locations that answer or deny are understood (docs: snippets); a snippet with anything else is refused as a whole, and closes its hosts unless it cannot keep somebody out",
        "snippet",
    ),
    refused("stream-snippet", Lines, Drops, "write a TCPRoute"),
];
