//! Who may use the routes of an Ingress: addresses, passwords, and a service that is asked.

use ipnet::IpNet;
use model::AuthMethod;
use rustls::pki_types::ServerName;
use serde_json::{Map, Value, json};

use super::super::header_map::HeaderMap;
use super::super::snippet::Addresses;
use super::super::url::Url;
use super::super::value;
use super::variables::{self, Part, of_question};
use super::{Compat, OutsideUrl, Reading, Target, Verdict, outside};

/// A port of a Service that a URL names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceUrl {
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
    /// The port.
    pub port: u16,
    /// With `https`, the name that the Service is asked for in SNI. Any certificate of it is accepted, as there.
    pub sni: Option<String>,
    /// The host of the URL.
    pub host: String,
    /// The path without its query.
    pub path: String,
    /// The query, with variables of Steelyard.
    pub query: String,
}

impl Reading<'_> {
    /// Addresses, passwords, and the service that is asked.
    pub(super) fn access(&mut self, paths: &[&str]) {
        let has_basic = self.basic();
        let has_service = self.service(paths);
        let is_any = self.text("satisfy").is_some_and(|word| word.eq_ignore_ascii_case("any"));
        let has_allow = self.addresses(is_any && (has_basic || has_service));
        if is_any && [has_allow, has_basic, has_service].into_iter().filter(|has| *has).count() > 1 {
            self.route.insert("satisfy".to_owned(), json!("any"));
        }
    }

    /// Whether addresses are enough, with `is_any`, or one of several conditions.
    fn addresses(&mut self, is_any: bool) -> bool {
        let own = |this: &Self, name: &str| value::networks(this.text(name)?).ok();
        let deny = own(self, "denylist-source-range");
        let mut deny = deny.unwrap_or_else(|| self.globals.networks("denylist-source-range"));
        let mut allow = match (own(self, "allowlist-source-range"), own(self, "whitelist-source-range")) {
            (Some(one), Some(other)) if one != other => self.in_both(&one, &other),
            (Some(one), _) | (None, Some(one)) => one,
            (None, None) => self.globals.networks("whitelist-source-range"),
        };
        if is_any {
            // With `satisfy any`, nginx lets a denied address in by what else is enough (ngx_http_access_found returns 403, and the
            // phase goes on), so it is only no proof.
            match without(&allow, &deny) {
                Some(left) => allow = left,
                None => {
                    self.close("denylist-source-range and the addresses that are allowed have too many parts in common")
                }
            }
            self.tell(
                "denylist-source-range",
                Verdict::Served,
                "beside satisfy: any, these addresses need a password or auth-url",
            );
            deny.clear();
        }
        deny.extend(self.globals.networks("block-cidrs"));
        self.put_addresses(&allow, &deny);
        !allow.is_empty()
    }

    /// Who may use the routes, as a snippet says.
    pub(super) fn snippet_addresses(&mut self, addresses: &Addresses) {
        let restricts = !addresses.allow.is_empty() || !addresses.deny.is_empty();
        if !restricts {
            return;
        }
        let is_any = self.text("satisfy").is_some_and(|word| word.eq_ignore_ascii_case("any"));
        if is_any || self.route.contains_key("allow") || self.route.contains_key("deny") {
            let why = "allow and deny beside satisfy: any or another list of addresses";
            self.close(&format!("configuration-snippet is refused: {why}"));
            return self.tell("configuration-snippet", Verdict::Refused, why);
        }
        self.put_addresses(&addresses.allow, &addresses.deny);
    }

    fn put_addresses(&mut self, allow: &[IpNet], deny: &[IpNet]) {
        // Here the longest network decides, and there a denial does.
        let is_denied = |network: &IpNet| deny.iter().any(|denied| denied.contains(network));
        let left: Vec<&IpNet> = allow.iter().filter(|network| !is_denied(network)).collect();
        if left.is_empty() && !allow.is_empty() {
            self.close("denylist-source-range denies all that is allowed");
        } else if !left.is_empty() {
            self.route.insert("allow".to_owned(), texts(left.into_iter()));
        }
        if !deny.is_empty() {
            self.route.insert("deny".to_owned(), texts(deny.iter()));
        }
    }

    /// Both names of one list are there, and say different things. Who is in one of them alone may be kept out by the other.
    fn in_both(&mut self, one: &[IpNet], other: &[IpNet]) -> Vec<IpNet> {
        let within = |all: &[IpNet], network: &&IpNet| all.iter().any(|wider| wider.contains(*network));
        let mut both: Vec<IpNet> = one.iter().filter(|network| within(other, network)).copied().collect();
        both.extend(other.iter().filter(|network| within(one, network) && !one.contains(network)));
        let why =
            "whitelist-source-range is there as well: clients must be in both lists; remove one of the annotations";
        self.tell("allowlist-source-range", Verdict::Differs, why);
        if both.is_empty() {
            self.close("allowlist-source-range and whitelist-source-range have no address in common");
        }
        both
    }

    fn basic(&mut self) -> bool {
        let Some(kind) = self.text("auth-type").map(str::to_ascii_lowercase) else {
            // Without auth-type, ingress-nginx asks for no password. One who writes a Secret wants one.
            if self.text("auth-secret").is_some() {
                self.refuse(
                    "auth-secret",
                    "auth-type is missing, so ingress-nginx asks for no password: write auth-type: basic",
                );
            }
            return self.idle_false(&["auth-realm"], "without auth-type, it has no effect");
        };
        if kind != "basic" {
            self.refuse("auth-type", "digest rests on MD5; use basic over HTTPS");
            return true;
        }
        self.has_user_map = self.text("auth-secret-type").is_some_and(|kind| kind.eq_ignore_ascii_case("auth-map"));
        let Some(secret) = self.text("auth-secret").map(str::to_owned) else {
            self.refuse("auth-type", "auth-secret is missing");
            return true;
        };
        let name = match secret.split_once('/') {
            Some((namespace, _)) if namespace != self.namespace => {
                self.refuse("auth-secret", "the Secret is in another namespace; copy it");
                return true;
            }
            Some((_, name)) => name.to_owned(),
            None => secret,
        };
        let realm = self.text("auth-realm").unwrap_or("Authentication Required").to_owned();
        self.route.insert("auth".to_owned(), json!({"basic": {"secretRef": {"name": name}, "realm": realm}}));
        true
    }

    fn idle_false(&mut self, names: &[&str], why: &str) -> bool {
        self.idle(names, why);
        false
    }

    fn service(&mut self, paths: &[&str]) -> bool {
        const OF_URL: [&str; 9] = [
            "auth-method",
            "auth-response-headers",
            "auth-signin",
            "auth-signin-redirect-param",
            "auth-request-redirect",
            "auth-proxy-set-headers",
            "auth-always-set-cookie",
            "auth-cache-key",
            "auth-cache-duration",
        ];
        let open = self.globals.prefixes("no-auth-locations");
        let is_open =
            !paths.is_empty() && paths.iter().all(|path| open.iter().any(|prefix| path.starts_with(prefix.as_str())));
        let global = self.globals.text("global-auth-url").filter(|_| self.bool("enable-global-auth", true) && !is_open);
        let own = self.text("auth-url");
        let Some((url, is_own)) = own.map(|url| (url, true)).or(global.map(|url| (url, false))) else {
            return self.idle_false(&OF_URL, "without auth-url, it has no effect");
        };
        let (url, name) = (url.to_owned(), if is_own { "auth-url" } else { "global-auth-url of the ConfigMap" });
        let method = self.question_method(is_own);
        let asked = match on_host(&url) {
            Some((path, query)) => {
                let to = json!({"name": OF_HOST, "port": 80});
                query.map(|query| (to, with_query(json!({"path": path}), query), Some(path)))
            }
            None => self.target(&url).map(|target| match target {
                Target::Service(service) => {
                    self.asks_elsewhere = service.namespace != self.namespace;
                    let to = json!({"name": service.name, "namespace": service.namespace, "port": service.port});
                    let request =
                        with_query(json!({"path": service.path, "host": service.host}), service.query.clone());
                    if service.sni.is_some() {
                        self.tell("auth-url", Verdict::Differs, SERVICE_OVER_TLS);
                        self.asks_over_tls = Some(service);
                    }
                    (to, request, None)
                }
                Target::Outside(url) => {
                    self.tell("auth-url", Verdict::Differs, outside::says(url.to.is_https, self.compat));
                    let request = with_query(json!({"path": url.path, "host": url.host}), url.query.clone());
                    self.asks_outside = Some(OutsideUrl { is_annotated: is_own, ..url });
                    (json!({"name": OF_HOST, "port": 80}), request, None)
                }
            }),
        };
        let (to, mut request, path) = match asked {
            Ok(asked) => asked,
            Err(why) => {
                self.close(&format!("{name} is refused: {why}"));
                self.tell("auth-url", Verdict::Refused, &why);
                return true;
            }
        };
        self.asks_host = path;
        if let Some(method) = method {
            request["method"] = json!(method.name());
        }
        let additional = self.question_headers(is_own);
        if !additional.is_empty() {
            request["headers"] = Value::Object(additional);
        }
        let asked = json!({"backendRef": to, "http": request, "timeout": "60s", "failureStatus": 500});
        let asked = self.of_answers(asked, is_own);
        self.route.insert("externalAuth".to_owned(), asked);
        true
    }

    /// The method of the question, unless it is GET.
    fn question_method(&mut self, is_own: bool) -> Option<AuthMethod> {
        let (key, written) = match is_own {
            true => ("auth-method", self.text("auth-method")),
            false => ("global-auth-method", self.globals.text("global-auth-method")),
        };
        let written = written?;
        // Case matters, as there.
        let method = AuthMethod::ALL.into_iter().find(|method| method.name() == written);
        if method.is_none() {
            let all = AuthMethod::ALL.map(AuthMethod::name).join(", ");
            let why = format!("a service cannot be asked by {}: write one of {all}", value::cut(written));
            self.close(&format!("{key} is refused: {why}"));
            self.tell("auth-method", Verdict::Refused, &why);
        }
        method.filter(|method| *method != AuthMethod::Get)
    }

    /// Adds what becomes of the answers.
    fn of_answers(&mut self, mut asked: Value, is_own: bool) -> Value {
        let headers = match is_own {
            true => self.text("auth-response-headers"),
            false => self.globals.text("global-auth-response-headers"),
        };
        let headers: Vec<String> = headers.into_iter().flat_map(value::words).map(str::to_ascii_lowercase).collect();
        if !headers.is_empty() {
            asked["responseHeaders"] = json!(headers);
        }
        let always = match is_own {
            true => self.bool("auth-always-set-cookie", false),
            false => self.globals.bool("global-auth-always-set-cookie", false),
        };
        asked["setCookie"] = json!(if always { "always" } else { "success" });
        if let Some(cache) = self.auth_cache(is_own) {
            asked["cache"] = cache;
        }
        if let Some(page) = self.sign_in(is_own) {
            asked["signIn"] = page;
        }
        asked
    }

    /// The headers that the service gets besides those of the request.
    fn question_headers(&mut self, is_own: bool) -> Map<String, Value> {
        let mut headers = Map::new();
        let (key, redirect) = match is_own {
            true => ("auth-request-redirect", self.text("auth-request-redirect")),
            false => ("global-auth-request-redirect", self.globals.text("global-auth-request-redirect")),
        };
        if let Some(text) = redirect.map(str::to_owned) {
            match of_question(&text) {
                Ok(text) => _ = headers.insert("x-auth-request-redirect".to_owned(), json!(text)),
                Err(why) => {
                    self.close(&format!("{key} is refused: {why}"));
                    self.tell(key, Verdict::Refused, &why);
                }
            }
        }
        let reference = self.text("auth-proxy-set-headers").filter(|_| is_own).map(str::to_owned);
        if let Some(reference) = reference {
            match self.header_map("auth-proxy-set-headers", &reference).and_then(|map| for_question(&map)) {
                Ok(more) => headers.extend(more),
                Err(why) => self.deny("auth-proxy-set-headers", &why),
            }
        }
        headers
    }

    /// The page on which clients sign in.
    fn sign_in(&mut self, is_own: bool) -> Option<Value> {
        let url = if is_own { self.text("auth-signin") } else { self.globals.text("global-auth-signin") }?.to_owned();
        let param = match is_own {
            true => self.text("auth-signin-redirect-param"),
            false => self.globals.text("global-auth-signin-redirect-param"),
        };
        let param = param.unwrap_or("rd").to_owned();
        let (base, query) = url.split_once('?').unwrap_or((&url, ""));
        let mut path_only = false;
        let mut kept = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=').filter(|(name, _)| *name == param).map(|(_, value)| value) {
                Some(value) if is_request_path(value) => path_only = true,
                Some(value) if is_request_url(value) => {}
                value => kept.push((pair, value.is_some())),
            }
        }
        let page = match page(base, &kept) {
            Ok(page) => page,
            Err(why) => {
                self.tell("auth-signin", Verdict::Refused, &why);
                return None;
            }
        };
        let mut sign_in = json!({"url": page});
        if param != "rd" {
            sign_in["param"] = json!(param);
        }
        if path_only {
            sign_in["pathOnly"] = json!(true);
        }
        Some(sign_in)
    }

    /// The Service that a URL names, or the host outside of the cluster.
    pub(super) fn target(&self, url: &str) -> Result<Target, String> {
        let form = "write the URL of a Service, http://NAME.NAMESPACE.svc.cluster.local:PORT/PATH, or of a host outside of the cluster, \
                    https://NAME:PORT/PATH";
        let url = url.strip_suffix("$request_uri").filter(|url| !url.contains('?')).unwrap_or(url);
        let (url, query) = url.split_once('?').unwrap_or((url, ""));
        let Url { is_https, host, port, rest: path } = Url::parse(url)?;
        if url.contains('$') {
            return Err(format!("a variable of nginx before the query of the URL; {form}"));
        }
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        let name_in_dns = host.trim_end_matches('.').to_ascii_lowercase();
        let labels: Vec<&str> = name_in_dns.split('.').collect();
        let ([name, namespace, "svc"] | [name, namespace, "svc", "cluster", "local"]) = labels.as_slice() else {
            let to = outside::host(is_https, host, port, self.compat).map_err(|why| format!("{why}; {form}"))?;
            let host = to.host();
            return Ok(Target::Outside(OutsideUrl { to, host, path, query: of_question(query)?, is_annotated: true }));
        };
        if !matches!(ServerName::try_from(name_in_dns.as_str()), Ok(ServerName::DnsName(_))) {
            return Err(format!("{} is no name of a Service; {form}", value::cut(host)));
        }
        if self.compat == Compat::Safe && **namespace != *self.namespace {
            return Err(format!(
                "the Service {namespace}/{name} is in another namespace, and an annotation cannot say that it may be used: start the \
                 controller with --ingress-nginx-compat=exact, or move the Service"
            ));
        }
        Ok(Target::Service(ServiceUrl {
            namespace: (*namespace).to_owned(),
            name: (*name).to_owned(),
            sni: Some(name_in_dns.clone()).filter(|_| is_https),
            port: port.unwrap_or(if is_https { 443 } else { 80 }),
            host: host.to_owned(),
            path,
            query: of_question(query)?,
        }))
    }
}

/// The headers of a ConfigMap, as `http.headers` of a policy has them.
///
/// # Errors
/// Says which of them cannot be served.
fn for_question(map: &HeaderMap) -> Result<Map<String, Value>, String> {
    let mut headers = Map::new();
    for (name, text) in map.iter() {
        if let Some(why) = config::unchangeable(name) {
            return Err(format!("the header {name} cannot be set: {why}"));
        }
        let text = of_question(text.trim()).map_err(|why| format!("the header {name}: {why}"))?;
        if headers.insert(name.to_ascii_lowercase(), json!(text)).is_some() {
            return Err(format!("the header {name} is there twice"));
        }
    }
    Ok(headers)
}

/// These are what people write for the URL of the request, escaped or not. It is always escaped here.
fn is_request_path(value: &str) -> bool {
    ["$escaped_request_uri", "$request_uri"].contains(&value)
}

fn is_request_url(value: &str) -> bool {
    let schemes = ["$scheme://", "https://", "http://", "$pass_access_scheme://"];
    let rest = schemes.iter().find_map(|scheme| value.strip_prefix(scheme));
    let hosts = ["$host", "$http_host", "$best_http_host"];
    rest.is_some_and(|rest| hosts.iter().any(|host| rest.strip_prefix(host).is_some_and(is_request_path)))
}

/// The URL of a page on which clients sign in, with the variables of Steelyard. `query` is what is left of its query, and whether it leads back.
///
/// # Errors
/// Says in a sentence what would be right.
fn page(base: &str, query: &[(&str, bool)]) -> Result<String, String> {
    let right = "write a URL that begins with https://, with $host and $scheme before its `?`, and rd=$escaped_request_uri if at all";
    let mut page = base.to_owned();
    for (theirs, ours) in [
        ("$http_host", "${host}"),
        ("$best_http_host", "${host}"),
        ("$host", "${host}"),
        ("$pass_access_scheme://", "${scheme}://"),
        ("$scheme://", "${scheme}://"),
    ] {
        page = page.replace(theirs, ours);
    }
    let plain = page.replace("${host}", "host").replace("${scheme}://", "https://");
    if plain.contains('$') || value::split_url(&plain).is_none() {
        return Err(right.to_owned());
    }
    for (place, (pair, leads_back)) in query.iter().enumerate() {
        page.push(if place == 0 { '?' } else { '&' });
        let variable = |name: &str| match name {
            "escaped_request_uri" => variables::variable("request_uri"),
            name => variables::variable(name),
        };
        let parts = variables::parts(pair, variable)?;
        for part in parts {
            let part = part.map_err(|name| format!("{name} is not known; {right}"))?;
            // Anyone can write a link with other arguments.
            let may_lead = |name: &str| ["scheme", "host", "authority", "target"].contains(&name);
            if let Part::Variable(name) = &part
                && *leads_back
                && !may_lead(name)
            {
                return Err(format!("clients could choose where it leads back to; {right}"));
            }
            page.push_str(&part.written());
        }
    }
    Ok(page)
}

/// What the report says of `https` and a Service.
pub(super) const SERVICE_OVER_TLS: &str = "the Service is asked over TLS, and any certificate of it is accepted, as in ingress-nginx; a BackendTLSPolicy verifies";

/// Stands in a policy for the Service behind a path of the same host, which only the routes of the host tell.
pub(in crate::ingress_nginx) const OF_HOST: &str = "host";

/// The path of a URL of the host that the request is for, `https://$host/oauth2/auth`, and its query.
fn on_host(url: &str) -> Option<(String, Result<String, String>)> {
    let url = url.strip_suffix("$request_uri").filter(|url| !url.contains('?')).unwrap_or(url);
    let rest = ["https://", "http://", "$scheme://"].iter().find_map(|scheme| url.strip_prefix(scheme))?;
    let rest = ["$http_host", "$host"].iter().find_map(|host| rest.strip_prefix(host))?;
    let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
    (path.starts_with('/') && !path.contains('$')).then(|| (path.to_owned(), of_question(query)))
}

fn with_query(mut request: Value, query: String) -> Value {
    if !query.is_empty() {
        request["query"] = json!(query);
    }
    request
}

/// Networks without the addresses of others; `None` if these would be too many.
fn without(networks: &[IpNet], others: &[IpNet]) -> Option<Vec<IpNet>> {
    let mut left = networks.to_vec();
    for other in others {
        let mut kept = Vec::new();
        for network in left {
            let mut rest = network;
            if other.contains(&network) {
                continue;
            }
            // Halves of it, until one is the other network.
            while rest.contains(other) && rest != *other {
                let (inside, outside): (Vec<IpNet>, Vec<IpNet>) =
                    rest.subnets(rest.prefix_len() + 1).ok()?.partition(|half| half.contains(other));
                kept.extend(outside);
                rest = *inside.first()?;
            }
            if rest != *other {
                kept.push(rest);
            }
        }
        left = kept;
        if left.len() > value::NETWORKS_MAX {
            return None;
        }
    }
    Some(left)
}

pub(super) fn texts<'n>(networks: impl Iterator<Item = &'n IpNet>) -> Value {
    networks.map(|network| Value::String(network.to_string())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_without_others() {
        let check = |networks: &str, others: &str, expect: Option<&str>| {
            let read = |text: &str| value::networks(text).unwrap();
            let found = without(&read(networks), &read(others)).map(|left| {
                let left: Vec<String> = left.iter().map(ToString::to_string).collect();
                left.join(" ")
            });
            assert_eq!(found.as_deref(), expect, "{networks} without {others}");
        };
        check("10.0.0.0/8", "192.0.2.0/24", Some("10.0.0.0/8"));
        check("10.0.0.0/8", "10.0.0.0/8", Some(""));
        check("10.0.0.0/8", "10.0.0.0/7", Some(""));
        check("10.0.0.0/8", "::/0", Some("10.0.0.0/8"));
        check("10.0.0.0/30", "10.0.0.1", Some("10.0.0.2/31 10.0.0.0/32"));
        check("0.0.0.0/0,::/0", "128.0.0.0/1", Some("0.0.0.0/1 ::/0"));
        check("10.0.0.0/30", "10.0.0.0,10.0.0.3", Some("10.0.0.2/32 10.0.0.1/32"));
        check("::/126", "::1", Some("::2/127 ::/128"));
        let many: Vec<String> = (0..128).map(|number| format!("{number:x}::1")).collect();
        check("::/0", &many.join(","), None);
    }
}
