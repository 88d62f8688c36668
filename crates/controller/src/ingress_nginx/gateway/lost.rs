//! What the objects do not say of the ConfigMap, the flags and the annotations.
//!
//! A name that is not in one of these lists counts as lost, so that a new one cannot be forgotten.

use super::super::catalogue::{self, Verdict};
use super::super::options::{FLAGS, OPTIONS, Opt};
use super::super::plan::Finding;
use super::super::value::{self, Form};

/// What becomes of a setting in the objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// They say it, if it can be served at all.
    Written,
    /// If it has an effect on an Ingress, a sentence about the Ingress says so.
    Told,
    /// They do not say it. This is what to do, or nothing if the tables of the controller say that.
    Lost(&'static str),
}

use Fate::{Lost, Told, Written};

#[expect(clippy::too_many_lines, reason = "one table, with a line for each name")]
fn of_option(name: &str) -> Fate {
    match name {
        // Routes and listeners.
        "ssl-redirect"
        | "force-ssl-redirect"
        | "http-redirect-code"
        | "no-tls-redirect-locations"
        | "hsts"
        | "hsts-max-age"
        | "hsts-include-subdomains"
        | "hsts-preload" => Written,
        // TrafficPolicies.
        "proxy-body-size"
        | "proxy-request-buffering"
        | "proxy-connect-timeout"
        | "proxy-read-timeout"
        | "proxy-next-upstream"
        | "proxy-next-upstream-tries"
        | "proxy-next-upstream-timeout"
        | "retry-non-idempotent"
        | "proxy-cookie-domain"
        | "proxy-cookie-path"
        | "proxy-redirect-from"
        | "proxy-redirect-to"
        | "load-balance"
        | "service-upstream"
        | "whitelist-source-range"
        | "denylist-source-range"
        | "block-cidrs"
        | "limit-req-status-code"
        | "limit-conn-status-code"
        | "limit-rate"
        | "limit-rate-after"
        | "use-gzip"
        | "gzip-level"
        | "gzip-min-length"
        | "gzip-types"
        | "enable-brotli"
        | "proxy-set-headers"
        | "hide-headers"
        | "server-tokens"
        | "allow-backend-server-header"
        | "enable-opentelemetry"
        | "opentelemetry-operation-name"
        | "opentelemetry-trust-incoming-span" => Written,
        "global-auth-url"
        | "global-auth-response-headers"
        | "global-auth-signin"
        | "global-auth-signin-redirect-param"
        | "global-auth-request-redirect"
        | "global-auth-cache-key"
        | "global-auth-cache-duration"
        | "global-auth-always-set-cookie"
        | "global-auth-method"
        | "no-auth-locations" => Written,
        // GatewayParameters, which are written by `clients` with what it cannot say.
        "use-forwarded-headers"
        | "enable-real-ip"
        | "proxy-real-ip-cidr"
        | "use-proxy-protocol"
        | "enable-underscores-in-headers"
        | "ignore-invalid-headers"
        | "client-header-timeout"
        | "client-body-timeout"
        | "keep-alive"
        | "large-client-header-buffers"
        | "http2-max-concurrent-streams"
        | "ssl-protocols" => Written,
        // They say how annotations are read.
        "allow-snippet-annotations"
        | "annotations-risk-level"
        | "global-allowed-response-headers"
        | "allow-cross-namespace-resources" => Written,
        "custom-http-errors" | "disable-proxy-intercept-errors" | "block-user-agents" | "block-referers" => Told,
        // The controller does the same.
        "proxy-send-timeout" | "ssl-ciphers" | "compute-full-forwarded-for" => Written,
        "use-http2" => Lost("clients may speak HTTP/2 all the same"),
        "add-headers" => Lost("the redirects to HTTPS, and 404 for what no route has, do not get them"),
        "use-port-in-redirects" => Lost(PORT),
        "relative-redirects" => Lost(RELATIVE),
        "forwarded-for-header" => Lost("the header is `X-Forwarded-For`"),
        "bind-address" => Lost("start the controller with `--listen-address`, or write `addresses` of the Gateway"),
        _ => Lost(""),
    }
}

const PORT: &str = "redirects do not name the port; write `port` of each RequestRedirect";
const RELATIVE: &str = "`Location` of redirects has a scheme and a host";
const PUBLISH: &str = "write `publish` of the GatewayParameters of the GatewayClass";
const OTHER_INGRESSES: &str =
    "all Ingresses of the class are written, also those of other namespaces; remove what is not wanted";

fn of_flag(name: &str) -> Fate {
    match name {
        "ingress-class" | "controller-class" | "ingress-class-by-name" | "configmap" | "annotations-prefix" => Written,
        // It says how ingress-nginx itself reaches the API server.
        "kubeconfig" => Written,
        "enable-topology-aware-routing" => Written,
        "watch-ingress-without-class" | "enable-ssl-passthrough" => Told,
        "watch-namespace" | "watch-namespace-selector" => Lost(OTHER_INGRESSES),
        "default-ssl-certificate" => Lost(
            "write a listener for HTTPS without a hostname, and name it in parentRefs of the routes for hosts without a certificate",
        ),
        "default-backend-service" => {
            Lost("write an HTTPRoute without hostnames; without it, the answer to an unknown host or path is 404")
        }
        "tcp-services-configmap" => Lost("write a listener for TCP and a TCPRoute for each of its ports"),
        "udp-services-configmap" => Lost("write a listener for UDP and a UDPRoute for each of its ports"),
        "publish-service" | "publish-status-address" => Lost(PUBLISH),
        "http-port" | "https-port" => Lost("the listeners have the ports 80 and 443; write others if clients use them"),
        "update-status" => Lost("the statuses of Gateways are always written"),
        "disable-catch-all" => Lost("rules without a host are written as routes without hostnames"),
        _ => Lost(""),
    }
}

#[expect(clippy::too_many_lines, reason = "one table, with a line for each name")]
fn of_annotation(name: &str) -> Fate {
    match name {
        // Routes.
        "rewrite-target"
        | "use-regex"
        | "ssl-redirect"
        | "force-ssl-redirect"
        | "permanent-redirect"
        | "permanent-redirect-code"
        | "temporal-redirect"
        | "temporal-redirect-code"
        | "from-to-www-redirect"
        | "server-alias"
        | "x-forwarded-prefix"
        | "upstream-vhost" => Written,
        "canary"
        | "canary-by-header"
        | "canary-by-header-value"
        | "canary-by-header-pattern"
        | "canary-by-cookie"
        | "canary-weight"
        | "canary-weight-total" => Written,
        // TrafficPolicies.
        "proxy-body-size"
        | "proxy-request-buffering"
        | "proxy-connect-timeout"
        | "proxy-read-timeout"
        | "proxy-next-upstream"
        | "proxy-next-upstream-tries"
        | "proxy-next-upstream-timeout"
        | "proxy-redirect-from"
        | "proxy-redirect-to"
        | "proxy-cookie-domain"
        | "proxy-cookie-path"
        | "service-upstream"
        | "load-balance"
        | "upstream-hash-by"
        | "upstream-hash-by-subset"
        | "upstream-hash-by-subset-size"
        | "custom-headers"
        | "enable-access-log"
        | "enable-opentelemetry"
        | "opentelemetry-trust-incoming-span"
        | "opentelemetry-operation-name" => Written,
        "affinity-mode"
        | "affinity-canary-behavior"
        | "session-cookie-name"
        | "session-cookie-path"
        | "session-cookie-max-age"
        | "session-cookie-expires"
        | "session-cookie-samesite"
        | "session-cookie-secure"
        | "session-cookie-domain"
        | "session-cookie-change-on-failure"
        | "session-cookie-conditional-samesite-none" => Written,
        "enable-cors"
        | "cors-allow-origin"
        | "cors-allow-methods"
        | "cors-allow-headers"
        | "cors-allow-credentials"
        | "cors-expose-headers"
        | "cors-max-age"
        | "whitelist-source-range"
        | "allowlist-source-range"
        | "denylist-source-range"
        | "limit-rps"
        | "limit-rpm"
        | "limit-burst-multiplier"
        | "limit-connections"
        | "limit-rate"
        | "limit-rate-after"
        | "limit-whitelist"
        | "limit-allowlist"
        | "satisfy" => Written,
        "auth-type"
        | "auth-realm"
        | "auth-method"
        | "auth-signin"
        | "auth-signin-redirect-param"
        | "auth-response-headers"
        | "auth-proxy-set-headers"
        | "auth-request-redirect"
        | "auth-always-set-cookie"
        | "auth-cache-key"
        | "auth-cache-duration"
        | "enable-global-auth" => Written,
        "app-root"
        | "affinity"
        | "auth-secret"
        | "auth-secret-type"
        | "auth-url"
        | "backend-protocol"
        | "proxy-ssl-secret"
        | "proxy-ssl-verify"
        | "proxy-ssl-verify-depth"
        | "proxy-ssl-name"
        | "proxy-ssl-server-name"
        | "auth-tls-secret"
        | "auth-tls-verify-client"
        | "auth-tls-match-cn"
        | "auth-tls-verify-depth"
        | "auth-tls-error-page"
        | "auth-tls-pass-certificate-to-upstream"
        | "ssl-passthrough"
        | "custom-http-errors"
        | "default-backend"
        | "disable-proxy-intercept-errors"
        | "mirror-target"
        | "mirror-host"
        | "configuration-snippet"
        | "server-snippet" => Told,
        // The controller does the same.
        "proxy-send-timeout"
        | "proxy-http-version"
        | "connection-proxy-header"
        | "ssl-ciphers"
        | "mirror-request-body" => Written,
        "use-port-in-redirects" => Lost(PORT),
        "relative-redirects" => Lost(RELATIVE),
        _ => Lost(""),
    }
}

/// Switches that are on unless they are set: to turn one off has an effect.
const ON_BY_DEFAULT: [&str; 2] = ["update-status", "use-http2"];

/// The sentence about a setting, if it has an effect that the objects do not say. `known` is the form of its value, and what becomes of it in general.
fn sentence(finding: &Finding, fate: Fate, known: Option<(Form, Verdict)>) -> Option<String> {
    let Finding { key, value, verdict, says } = finding;
    let is_switch = known.is_some_and(|(form, _)| matches!(form, Form::Bool));
    let state = value::boolean(value).filter(|_| is_switch);
    let is_on = state.is_none_or(|is_on| is_on != ON_BY_DEFAULT.contains(&key.as_str()));
    let is_refused = *verdict == Verdict::Refused;
    // The value is wrong, and the finding says why.
    let is_wrong = is_refused && known.is_none_or(|(_, usual)| usual != Verdict::Refused);
    let what = match fate {
        Told => return None,
        _ if *verdict == Verdict::NoEffect => return None,
        Written if !is_refused => return None,
        Lost(what) if !what.is_empty() && !is_wrong => what,
        Written | Lost(_) => says,
    };
    (is_on || is_refused).then(|| format!("{key}: {what}"))
}

/// What is lost of the ConfigMap and the flags.
pub(super) fn of_controller(options: &[Finding], flags: &[Finding]) -> Vec<String> {
    let known = |list: &[Opt], name: &str| list.iter().find(|opt| opt.name == name).map(|opt| (opt.form, opt.verdict));
    let of_option = |one: &Finding| {
        let what = sentence(one, of_option(&one.key), known(OPTIONS, &one.key))?;
        Some(format!("ConfigMap: {what}"))
    };
    let of_flag = |one: &Finding| {
        let what = sentence(one, of_flag(&one.key), known(FLAGS, &one.key))?;
        Some(format!("flag --{what}"))
    };
    let flags = flags.iter().filter(|one| !is_default_port(one));
    options.iter().filter_map(of_option).chain(flags.filter_map(of_flag)).collect()
}

fn is_default_port(flag: &Finding) -> bool {
    [("http-port", "80"), ("https-port", "443")].contains(&(flag.key.as_str(), flag.value.as_str()))
}

/// What is lost of the annotations of an Ingress. Those that the controller refuses are told with their reasons elsewhere.
pub(super) fn of_annotations(findings: &[Finding]) -> impl Iterator<Item = String> {
    let known = |name: &str| catalogue::find(name).map(|key| (key.form, key.verdict));
    let others = findings.iter().filter(|one| one.verdict != Verdict::Refused);
    others.filter_map(move |one| sentence(one, of_annotation(&one.key), known(&one.key)))
}
