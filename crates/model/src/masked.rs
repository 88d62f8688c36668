//! Copies for people, in which what may be a secret is replaced.
//!
//! Everybody who may read at the admin address sees these copies. They have names, addresses, hosts, paths and numbers. They have no text that
//! an operator writes beside a name and that only its two sides need to know: values of headers, cookies, parameters and claims, bodies,
//! queries. Where a text stands decides that, and not what it looks like. [`Secret`](crate::Secret), [`PasswordHash`](crate::PasswordHash) and
//! [`Pem`](crate::Pem) never show what they hold. The structs are taken apart here, so that a new field cannot be forgotten.

use std::iter::once;
use std::sync::Arc;

use crate::{
    AccessLog, Auth, AuthProtocol, AuthTarget, Changes, Cluster, DescriptorEntry, DescriptorSource, ErrorPage,
    ExternalAuth, Fallback, FieldPart, FieldValue, FixedResponse, GlobalRateLimit, GrpcAuth, HeaderChanges,
    HealthCheck, HttpAuth, HttpListener, HttpProbe, InterceptErrors, Jwks, JwksUrl, JwtAuth, Listener, LogTarget, Otlp,
    OtlpProtocol, Page, PageBody, PathRewrite, Probe, Protocol, Redirect, RequestPart, Rewrite, Route, RouteAction,
    RoutePolicy, SignIn, TemplatePart, TextMatcher, Tracing, ValueMatcher, Vip, WeightedCluster,
};

/// What stands for a text.
pub const HIDDEN: &str = "(hidden)";

impl Route {
    /// The same without values of headers, cookies, parameters and claims, and without bodies and queries. Names stay: those that Steelyard
    /// makes for routes have no values.
    #[must_use]
    pub fn masked(&self) -> Self {
        let mut route = self.clone();
        let Self {
            name: _,
            hosts: _,
            path: _,
            methods: _,
            headers,
            cookies,
            query,
            claims,
            grpc: _,
            to,
            timeout: _,
            policy,
        } = &mut route;
        [headers, cookies, query, claims].into_iter().flatten().for_each(mask_condition);
        match to {
            RouteAction::Clusters(shares) => shares.iter_mut().for_each(mask_share),
            RouteAction::Redirect(Redirect { scheme: _, host: _, port: _, path, status: _, is_relative: _ }) => {
                path.iter_mut().for_each(mask_path);
            }
            RouteAction::Respond(response) => mask_response(response),
        }
        // Most routes share the default, which has nothing to hide.
        if **policy != RoutePolicy::default() {
            mask_policy(policy);
        }
        route
    }
}

impl Cluster {
    /// The same without what its probes send and expect.
    #[must_use]
    pub fn masked(&self) -> Self {
        let mut cluster = self.clone();
        let Self {
            name: _,
            endpoints: _,
            is_missing: _,
            protocol: _,
            algorithm: _,
            // Its key is a `Secret`.
            sticky: _,
            health_check,
            closes_on_unhealthy: _,
            outlier: _,
            panic_threshold: _,
            zone_threshold: _,
            slow_start: _,
            limits: _,
            connect_timeout: _,
            response_timeout: _,
            idle_timeout: _,
            ping: _,
            idle_connections_max: _,
            send_proxy_protocol: _,
            tls: _,
            outside: _,
        } = &mut cluster;
        health_check.iter_mut().for_each(mask_health_check);
        cluster
    }
}

impl Listener {
    /// The same without the bodies of its pages. Its routes stay as they are.
    #[must_use]
    pub fn masked(&self) -> Self {
        let mut listener = self.clone();
        let Self {
            name: _,
            bind: _,
            captured: _,
            protocol,
            tls: _,
            accept_proxy_protocol: _,
            addresses: _,
            connections_max: _,
            client_limits: _,
        } = &mut listener;
        match protocol {
            Protocol::Http(HttpListener {
                routes: _,
                isolated_hosts: _,
                trusted_proxies: _,
                forwarded: _,
                x_real_ip: _,
                header_names: _,
                passthrough: _,
                http2: _,
                request_id: _,
                paths: _,
                limits: _,
                error_pages,
            }) => error_pages.iter_mut().for_each(mask_error_page),
            Protocol::Tcp(_) | Protocol::Tls(_) | Protocol::Capture(_) => {}
        }
        listener
    }
}

impl Vip {
    /// The same without what its probes send and expect.
    #[must_use]
    pub fn masked(&self) -> Self {
        let mut vip = self.clone();
        let Self {
            name: _,
            address: _,
            ports: _,
            transport: _,
            interfaces: _,
            endpoints: _,
            algorithm: _,
            mode: _,
            tunnel: _,
            affinity: _,
            health_check,
            on_unhealthy: _,
            allow: _,
            deny: _,
            source_rate: _,
            timeouts: _,
            at_sockets: _,
            is_of_node: _,
            announce: _,
        } = &mut vip;
        health_check.iter_mut().for_each(mask_health_check);
        vip
    }
}

impl Jwks {
    /// The same without the query of its URL, and without keys.
    #[must_use]
    pub fn masked(&self) -> Self {
        let mut jwks = self.clone();
        match &mut jwks {
            Self::Url(JwksUrl { is_https: _, host: _, port: _, path, ca: _ }) => mask_query(once(path)),
            Self::File(_) => {}
            Self::Inline(text) => HIDDEN.clone_into(text),
        }
        jwks
    }
}

impl Tracing {
    /// The same without the values of attributes.
    #[must_use]
    pub fn masked(&self) -> Self {
        let mut tracing = self.clone();
        let Self { otlp, sampling: _, trust_client_sampling: _, query: _ } = &mut tracing;
        mask_otlp(Arc::make_mut(otlp));
        tracing
    }
}

impl AccessLog {
    /// The same without the values of attributes.
    #[must_use]
    pub fn masked(&self) -> Self {
        let mut log = self.clone();
        let Self { target, format: _, filter: _, sampling: _, query: _ } = &mut log;
        match target {
            LogTarget::Stdout | LogTarget::File(_) | LogTarget::Syslog(_) => {}
            LogTarget::Otlp(otlp) => mask_otlp(Arc::make_mut(otlp)),
        }
        log
    }
}

fn mask_otlp(otlp: &mut Otlp) {
    // The values of headers are each a `Secret`.
    let Otlp { to: _, protocol, host: _, headers: _, gzip: _, service: _, attributes, timeout: _ } = otlp;
    match protocol {
        OtlpProtocol::Grpc => {}
        OtlpProtocol::Http { path } => mask_query(once(path)),
    }
    mask_values(attributes);
}

fn mask_condition(ValueMatcher { name: _, value }: &mut ValueMatcher) {
    match value {
        TextMatcher::Exact(_) | TextMatcher::Regex(_) | TextMatcher::JoinedRegex(_) => {
            *value = TextMatcher::Exact(HIDDEN.to_owned())
        }
        TextMatcher::Present => {}
    }
}

fn mask_values(pairs: &mut [(String, String)]) {
    pairs.iter_mut().for_each(|(_, value)| HIDDEN.clone_into(value));
}

/// Replaces what follows the first `?` of a text, which may be in several parts.
fn mask_query<'t>(parts: impl IntoIterator<Item = &'t mut String>) {
    let mut is_query = false;
    for part in parts {
        if is_query {
            part.clear();
        } else if let Some(at) = part.find('?') {
            is_query = true;
            part.truncate(at + 1);
            part.push_str(HIDDEN);
        }
    }
}

fn mask_path(path: &mut PathRewrite) {
    match path {
        PathRewrite::Full(text) | PathRewrite::Prefix(text) => mask_query(once(text)),
        PathRewrite::Template(template) => mask_query(template.0.iter_mut().filter_map(|part| match part {
            TemplatePart::Text(text) => Some(text),
            TemplatePart::Group(_) => None,
        })),
    }
}

fn mask_health_check(check: &mut HealthCheck) {
    let HealthCheck { probe, interval: _, timeout: _, unhealthy_after: _, healthy_after: _, port: _ } = check;
    match probe {
        Probe::Http(HttpProbe { path, host: _, headers, expect: _, body }) => {
            mask_query(once(path));
            mask_values(headers);
            body.iter_mut().for_each(|body| HIDDEN.clone_into(body));
        }
        Probe::Tcp | Probe::Grpc { service: _, host: _ } => {}
    }
}

fn mask_share(WeightedCluster { cluster: _, weight: _, changes }: &mut WeightedCluster) {
    changes.iter_mut().for_each(|changes| mask_changes(changes));
}

fn mask_changes(Changes { request_headers, response_headers, rewrite: Rewrite { host: _, path } }: &mut Changes) {
    mask_headers(request_headers);
    mask_headers(response_headers);
    path.iter_mut().for_each(mask_path);
}

fn mask_headers(HeaderChanges { set, add, remove: _ }: &mut HeaderChanges) {
    set.iter_mut().chain(add).for_each(|(_, value)| mask_field(value));
}

fn mask_field(value: &mut FieldValue) {
    match value {
        FieldValue::Text(text) => HIDDEN.clone_into(text),
        FieldValue::Template(parts) => parts.iter_mut().for_each(|part| match part {
            FieldPart::Text(text) => HIDDEN.clone_into(text),
            FieldPart::Variable(_) => {}
        }),
    }
}

fn mask_response(FixedResponse { status: _, headers, page }: &mut FixedResponse) {
    mask_values(headers);
    page.iter_mut().for_each(mask_page);
}

fn mask_page(Page { content_type: _, body }: &mut Page) {
    match body {
        PageBody::Text(text) => HIDDEN.clone_into(text),
        PageBody::File(_) => {}
    }
}

fn mask_error_page(ErrorPage { statuses: _, page, json }: &mut ErrorPage) {
    mask_page(page);
    json.iter_mut().for_each(|json| HIDDEN.clone_into(json));
}

fn mask_policy(policy: &mut RoutePolicy) {
    let RoutePolicy {
        client_cert: _,
        addresses: _,
        mirrors: _,
        retry: _,
        body_bytes_max: _,
        changes,
        own_headers,
        response_rewrite: _,
        rate_limit: _,
        concurrency_limit: _,
        response_bandwidth: _,
        cors: _,
        compression: _,
        request_body: _,
        via: _,
        auth,
        satisfy: _,
        external_auth,
        global_rate_limit,
        intercept_errors,
        fallback,
        maintenance: _,
        tracing: _,
        is_unlogged: _,
        error_pages,
    } = policy;
    mask_changes(changes);
    if let Some(intercept) = intercept_errors {
        let InterceptErrors { statuses: _, of_endpoints: _, to: _, path, request_headers, timeout: _ } =
            &mut **intercept;
        mask_query(once(path));
        mask_headers(request_headers);
    }
    if let Some(fallback) = fallback {
        let Fallback { to: _, request_headers } = &mut **fallback;
        mask_headers(request_headers);
    }
    mask_headers(own_headers);
    error_pages.iter_mut().for_each(mask_error_page);
    auth.iter_mut().for_each(|auth| mask_auth(Arc::make_mut(auth)));
    external_auth.iter_mut().for_each(|auth| mask_external_auth(Arc::make_mut(auth)));
    if let Some(limit) = global_rate_limit {
        let GlobalRateLimit {
            to: _,
            host: _,
            domain: _,
            descriptors,
            timeout: _,
            fail_open: _,
            failure_status: _,
            headers: _,
        } = Arc::make_mut(limit);
        for DescriptorEntry { key: _, source } in descriptors.iter_mut().flatten() {
            if let DescriptorSource::Text(text) = source {
                HIDDEN.clone_into(text);
            }
        }
    }
}

fn mask_auth(auth: &mut Auth) {
    match auth {
        // What they compare with is a `Secret` or a `PasswordHash`.
        Auth::Basic(_) | Auth::ApiKey(_) => {}
        Auth::Jwt(JwtAuth {
            realm: _,
            places: _,
            issuers: _,
            audiences: _,
            algorithms: _,
            leeway: _,
            require_exp: _,
            optional: _,
            forward: _,
            claim_headers: _,
            jwks,
        }) => *jwks = jwks.masked(),
    }
}

fn mask_external_auth(auth: &mut ExternalAuth) {
    let ExternalAuth {
        to: _,
        protocol,
        timeout: _,
        fail_open: _,
        failure_status: _,
        request_headers: _,
        response_headers: _,
        refusal_headers: _,
        set_cookie: _,
        is_403_bare: _,
        body: _,
        cache: _,
        sign_in,
    } = auth;
    match protocol {
        AuthProtocol::Http(HttpAuth {
            target: AuthTarget::Path(path) | AuthTarget::Prefix(path),
            method: _,
            host: _,
            headers,
            query,
        }) => {
            mask_query(once(path));
            headers.iter_mut().flat_map(|(_, value)| value.iter_mut()).chain(query).for_each(|part| {
                if let RequestPart::Text(text) = part {
                    HIDDEN.clone_into(text);
                }
            });
        }
        AuthProtocol::Grpc(GrpcAuth { host: _, context }) => mask_values(context),
    }
    if let Some(SignIn { url, param: _, path_only: _ }) = sign_in {
        mask_query(url.iter_mut().filter_map(|part| match part {
            RequestPart::Text(text) => Some(text),
            _ => None,
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_follows_a_question_mark_is_hidden_in_whatever_part() {
        let check = |parts: &[&str], expect: &[&str]| {
            let mut parts: Vec<String> = parts.iter().map(|part| (*part).to_owned()).collect();
            mask_query(&mut parts);
            assert_eq!(parts, expect);
        };
        check(&["/a"], &["/a"]);
        check(&["/a?"], &["/a?(hidden)"]);
        check(&["/a?k=hunter2?x", "&b=hunter3"], &["/a?(hidden)", ""]);
        check(&["https://", "/start?for=", "&k=hunter2"], &["https://", "/start?(hidden)", ""]);
    }

    #[test]
    fn a_value_is_hidden_whatever_the_names_around_it_are() {
        let of = |name: &str, text: &str| ValueMatcher { name: name.into(), value: TextMatcher::Exact(text.into()) };
        let mut route = Route::to_all("/ xa= a=", RouteAction::Clusters(Vec::new()));
        route.headers = vec![of("xa", "hunter2"), of("a", "hunter3")];
        route.query = vec![ValueMatcher { name: "q".into(), value: TextMatcher::Regex("hunter4".parse().unwrap()) }];
        let shown = format!("{:?}", route.masked());
        assert!(shown.contains("\"xa\"") && shown.contains("/ xa= a=") && !shown.contains("hunter"), "{shown}");
    }
}
