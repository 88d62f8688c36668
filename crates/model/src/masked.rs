//! Copies for people, in which what may be a secret is replaced.
//!
//! [`Secret`](crate::Secret) and [`PasswordHash`](crate::PasswordHash) never show what they hold. Other texts of the operator are only secret to
//! some: the value of a header that a route sets or demands, or the body of a response. The structs are taken apart here, so that a new field
//! cannot be forgotten.

use std::sync::Arc;

use crate::{
    AuthProtocol, Changes, Cluster, DescriptorEntry, DescriptorSource, ErrorPage, ExternalAuth, FieldPart, FieldValue,
    FixedResponse, GlobalRateLimit, GrpcAuth, HeaderChanges, HttpProbe, Listener, Page, PageBody, Probe, Protocol,
    Route, RouteAction, RoutePolicy, TextMatcher, ValueMatcher, WeightedCluster,
};

/// What stands for a text.
pub const HIDDEN: &str = "(hidden)";

impl Route {
    /// The same without values of headers, cookies, parameters, claims and bodies. Names stay, but the name of the route loses the values of its
    /// conditions.
    #[must_use]
    pub fn masked(&self) -> Self {
        let mut route = self.clone();
        let Self {
            name,
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
        for matcher in [headers, cookies, query, claims].into_iter().flatten() {
            mask_condition(matcher, name);
        }
        match to {
            RouteAction::Clusters(shares) => shares.iter_mut().for_each(mask_share),
            RouteAction::Redirect(_) => {}
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
    /// The same without the values of the headers of its probes.
    #[must_use]
    pub fn masked(&self) -> Self {
        let mut cluster = self.clone();
        if let Some(check) = &mut cluster.health_check
            && let Probe::Http(HttpProbe { headers, .. }) = &mut check.probe
        {
            headers.iter_mut().for_each(|(_, value)| HIDDEN.clone_into(value));
        }
        cluster
    }
}

impl Listener {
    /// The same without the bodies of its pages. Its routes stay as they are.
    #[must_use]
    pub fn masked(&self) -> Self {
        let mut listener = self.clone();
        if let Protocol::Http(http) = &mut listener.protocol {
            http.error_pages.iter_mut().for_each(mask_error_page);
        }
        listener
    }
}

fn mask_condition(ValueMatcher { name, value }: &mut ValueMatcher, route: &mut String) {
    match value {
        TextMatcher::Exact(text) => {
            let sign = format!("{name}=");
            if let Some((before, after)) = route.split_once(&sign) {
                // A long name ends within the value.
                let rest = after.strip_prefix(text.as_str()).or(text.starts_with(after).then_some(""));
                if let Some(rest) = rest {
                    *route = format!("{before}{sign}{HIDDEN}{rest}");
                }
            }
        }
        TextMatcher::Regex(_) => {}
        TextMatcher::Present => return,
    }
    *value = TextMatcher::Exact(HIDDEN.to_owned());
}

fn mask_share(WeightedCluster { cluster: _, weight: _, changes }: &mut WeightedCluster) {
    changes.iter_mut().for_each(|changes| mask_changes(changes));
}

fn mask_changes(Changes { request_headers, response_headers, rewrite: _ }: &mut Changes) {
    for HeaderChanges { set, add, remove: _ } in [request_headers, response_headers] {
        set.iter_mut().chain(add).for_each(|(_, value)| mask_field(value));
    }
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
    headers.iter_mut().for_each(|(_, value)| HIDDEN.clone_into(value));
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
        addresses: _,
        mirrors: _,
        retry: _,
        body_bytes_max: _,
        changes,
        rate_limit: _,
        cors: _,
        compression: _,
        request_body: _,
        via: _,
        auth: _,
        external_auth,
        global_rate_limit,
        maintenance: _,
        error_pages,
    } = policy;
    mask_changes(changes);
    error_pages.iter_mut().for_each(mask_error_page);
    if let Some(external_auth) = external_auth {
        let ExternalAuth { protocol, .. } = Arc::make_mut(external_auth);
        if let AuthProtocol::Grpc(GrpcAuth { host: _, context }) = protocol {
            context.iter_mut().for_each(|(_, value)| HIDDEN.clone_into(value));
        }
    }
    if let Some(limit) = global_rate_limit {
        let GlobalRateLimit { descriptors, .. } = Arc::make_mut(limit);
        for DescriptorEntry { key: _, source } in descriptors.iter_mut().flatten() {
            if let DescriptorSource::Text(text) = source {
                HIDDEN.clone_into(text);
            }
        }
    }
}
