//! Who may use the routes of an Ingress: addresses, passwords, and a service that is asked.

use ipnet::IpNet;
use serde_json::{Value, json};

use super::super::value;
use super::{Compat, Reading, ServiceUrl, Verdict};

impl Reading<'_> {
    /// Addresses, passwords, and the service that is asked.
    pub(super) fn access(&mut self, paths: &[&str]) {
        let has_addresses = self.addresses();
        let has_basic = self.basic();
        let has_service = self.service(paths);
        let is_any = self.text("satisfy").is_some_and(|word| word.eq_ignore_ascii_case("any"));
        if is_any && (has_addresses && (has_basic || has_service) || has_basic && has_service) {
            self.refuse(
                "satisfy",
                "one of several proofs cannot be enough; make an Ingress with a host of its own for each",
            );
        }
    }

    fn addresses(&mut self) -> bool {
        let of = |this: &Self, names: &[&str], global: &str| -> Vec<IpNet> {
            let own = names.iter().find_map(|name| value::networks(this.text(name)?).ok());
            own.unwrap_or_else(|| this.globals.networks(global))
        };
        let mut deny = of(self, &["denylist-source-range"], "denylist-source-range");
        deny.extend(self.globals.networks("block-cidrs"));
        let allow = of(self, &["whitelist-source-range", "allowlist-source-range"], "whitelist-source-range");
        let restricts = !allow.is_empty() || !deny.is_empty();
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
        restricts
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
        if self.text("auth-secret-type").is_some_and(|kind| kind.eq_ignore_ascii_case("auth-map")) {
            self.refuse(
                "auth-secret-type",
                "write the users into the key `auth`, as htpasswd does, and auth-secret-type: auth-file",
            );
            return true;
        }
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
        const OF_URL: [&str; 6] = [
            "auth-method",
            "auth-response-headers",
            "auth-signin",
            "auth-signin-redirect-param",
            "auth-request-redirect",
            "auth-always-set-cookie",
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
        let method = if is_own { self.text("auth-method") } else { self.globals.text("global-auth-method") };
        if method.is_some_and(|method| !method.eq_ignore_ascii_case("GET")) {
            self.close("auth-method is refused: the service is asked by GET");
            self.tell("auth-method", Verdict::Refused, "the service is asked by GET");
        }
        let service = match self.service_url(&url) {
            Ok(service) => service,
            Err(why) => {
                self.close(&format!("{name} is refused: {why}"));
                self.tell("auth-url", Verdict::Refused, &why);
                return true;
            }
        };
        let headers = match is_own {
            true => self.text("auth-response-headers"),
            false => self.globals.text("global-auth-response-headers"),
        };
        let headers: Vec<String> = headers.into_iter().flat_map(value::words).map(str::to_ascii_lowercase).collect();
        self.asks_elsewhere = service.namespace != self.namespace;
        let mut asked = json!({
            "backendRef": {"name": service.name, "namespace": service.namespace, "port": service.port},
            "http": {"path": service.path, "host": service.host},
            "timeout": "60s",
            "failureStatus": 500,
        });
        if !headers.is_empty() {
            asked["responseHeaders"] = json!(headers);
        }
        self.route.insert("externalAuth".to_owned(), asked);
        true
    }

    /// The Service that a URL names.
    pub(super) fn service_url(&self, url: &str) -> Result<ServiceUrl, String> {
        let form = "write the URL of a Service: http://NAME.NAMESPACE.svc.cluster.local:PORT/PATH";
        let url = url.strip_suffix("$request_uri").unwrap_or(url);
        let (is_https, host, port, path) = value::split_url(url).ok_or_else(|| form.to_owned())?;
        if is_https {
            return Err(format!("the service is asked in the clear; {form}"));
        }
        if url.contains('$') {
            return Err(format!("a variable of nginx in the URL; {form}"));
        }
        let labels: Vec<&str> = host.trim_end_matches('.').split('.').collect();
        let ([name, namespace, "svc"] | [name, namespace, "svc", "cluster", "local"]) = labels.as_slice() else {
            return Err(format!("{} is no Service of this cluster; {form}", value::cut(host)));
        };
        if self.compat == Compat::Safe && **namespace != *self.namespace {
            return Err(format!(
                "the Service {namespace}/{name} is in another namespace, and an annotation cannot say that it may be used: start the \
                 controller with --ingress-nginx-compat=exact, or move the Service"
            ));
        }
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        Ok(ServiceUrl {
            namespace: (*namespace).to_owned(),
            name: (*name).to_owned(),
            port: port.unwrap_or(80),
            host: host.to_owned(),
            path,
        })
    }
}

fn texts<'n>(networks: impl Iterator<Item = &'n IpNet>) -> Value {
    networks.map(|network| Value::String(network.to_string())).collect()
}
