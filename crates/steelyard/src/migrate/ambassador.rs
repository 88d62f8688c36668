//! `steelyard migrate ambassador`: Mappings of Ambassador (Emissary-ingress) as routes and clusters, in objects or in the annotations of Services.

mod mapping;

use std::path::PathBuf;

use serde_json::json;

use super::draft::{Became, Draft, Keys, Listener, closed};
use super::tree::{self, Node};
use mapping::Mapping;

/// An object, and where it is.
pub(super) struct Object<'t> {
    pub(super) file: &'t str,
    /// Lines in front of its text, if that is in an annotation.
    pub(super) offset: usize,
    pub(super) kind: String,
    pub(super) name: String,
    pub(super) namespace: Option<String>,
    pub(super) spec: Node,
}

impl Object<'_> {
    pub(super) fn place(&self, node: &Node) -> (&str, usize) {
        (self.file, self.offset + node.line)
    }
}

/// What the other objects say about all Mappings.
#[derive(Default)]
struct Around {
    /// Hosts with their Secrets, and whether requests in the clear are redirected.
    hosts: Vec<Host>,
    /// `external_auth` for Mappings that do not bypass it.
    auth: Option<Keys>,
    /// Why all Mappings are closed.
    closed: bool,
    ports: Vec<(u64, bool)>,
}

struct Host {
    name: String,
    secret: Option<String>,
    redirects: bool,
}

/// # Errors
/// The place, and what cannot be read there.
pub(super) fn translate(paths: &[PathBuf]) -> Result<Draft, String> {
    let mut files = Vec::new();
    for path in paths {
        super::find(path, 0, &mut files)?;
    }
    files.sort();
    let mut texts = Vec::new();
    for file in &files {
        texts.push((file.display().to_string(), super::text_of(file)?));
    }
    let mut objects = Vec::new();
    for (name, text) in &texts {
        let documents = tree::documents(text).map_err(|(line, why)| format!("{name}:{line}: {why}"))?;
        for document in documents {
            collect(name, 0, document, &mut objects)?;
        }
    }
    let mut draft = Draft::default();
    let around = around(&objects, &mut draft);
    let mappings: Vec<Mapping<'_>> = objects
        .iter()
        .filter(|object| object.kind == "Mapping")
        .filter_map(|object| Mapping::of(object, &mut draft))
        .collect();
    if mappings.is_empty() {
        return Err("there is no Mapping (getambassador.io) in these files".to_owned());
    }
    let routes = routes(mappings, &around, &mut draft);
    listeners(&around, routes, &mut draft);
    Ok(draft)
}

/// The objects of a document: of a list, and of the annotation of a Service.
fn collect<'t>(file: &'t str, offset: usize, document: Node, objects: &mut Vec<Object<'t>>) -> Result<(), String> {
    if objects.len() > super::FILES_MAX {
        return Err(format!("{file}: more than {} objects", super::FILES_MAX));
    }
    let kind = document.at("kind").text().unwrap_or_default().to_owned();
    if kind.ends_with("List") {
        for item in document.at("items").items() {
            collect(file, offset, item.clone(), objects)?;
        }
        return Ok(());
    }
    let metadata = document.at("metadata");
    let annotation = metadata.at("annotations").get("getambassador.io/config");
    if let Some(node) = annotation
        && let Some(text) = node.text()
        // Within it there is no other.
        && offset == 0
    {
        let told = |(line, why): (usize, String)| format!("{file}:{}: {why}", node.line + line);
        for inner in tree::documents(text).map_err(told)? {
            collect(file, node.line, inner, objects)?;
        }
    }
    let is_ours = document
        .at("apiVersion")
        .text()
        .is_some_and(|version| version.contains("getambassador.io") || version.starts_with("ambassador/"));
    if is_ours {
        let text = |node: &Node| node.text().map(str::to_owned);
        let name = text(metadata.at("name")).or_else(|| text(document.at("name"))).unwrap_or_default();
        let namespace = text(metadata.at("namespace")).or_else(|| text(document.at("namespace")));
        // In an annotation, and in older versions, there is no `spec`.
        let spec = document.get("spec").cloned().unwrap_or(document);
        objects.push(Object { file, offset, kind, name, namespace, spec });
    }
    Ok(())
}

fn around(objects: &[Object<'_>], draft: &mut Draft) -> Around {
    let mut around = Around::default();
    for object in objects {
        let (spec, what) = (&object.spec, format!("{} {}", object.kind, object.name));
        let place = object.place(spec);
        match object.kind.as_str() {
            "Mapping" => {}
            "Host" => {
                let name = spec.at("hostname").text().unwrap_or("*").to_owned();
                let secret = spec.at("tlsSecret").at("name").text().map(str::to_owned);
                let action = spec.at("requestPolicy").at("insecure").at("action").text();
                if action == Some("Reject") {
                    draft.note(place, &what, Became::Different, "requests in the clear are redirected and not refused");
                }
                if let Some(secret) = &secret {
                    let why = format!(
                        "write tls.crt and tls.key of the Secret {secret} to tls/{secret}.pem and tls/{secret}.key"
                    );
                    draft.note(place, &what, Became::Different, &why);
                }
                around.hosts.push(Host { name, secret, redirects: action != Some("Route") });
            }
            "Listener" => {
                let is_tls =
                    spec.at("protocol").text() == Some("HTTPS") || spec.at("securityModel").text() == Some("SECURE");
                around.ports.extend(spec.at("port").number().map(|port| (port, is_tls)));
            }
            "AuthService" => match mapping::auth(object, draft) {
                Some(auth) => around.auth = Some(auth),
                None => around.closed = true,
            },
            "FilterPolicy" | "Filter" => {
                let why = "it may keep somebody out, so all Mappings are closed; write `auth` or `external_auth`, and remove it";
                draft.note(place, &what, Became::Closed, why);
                around.closed = true;
            }
            "RateLimitService" => {
                draft.note(place, &what, Became::Lost, "write `global_rate_limit`, which asks the same service");
            }
            "TLSContext" => {
                let asks = !spec.at("ca_secret").is_null() || !spec.at("cacert_chain_file").is_null();
                let became = if asks && !spec.at("hosts").is_null() { Became::Closed } else { Became::Lost };
                around.closed |= became == Became::Closed;
                draft.note(
                    place,
                    &what,
                    became,
                    "write `tls` of the listener or the cluster, with `client_ca` for certificates of clients",
                );
            }
            _ => draft.note(place, &what, Became::Lost, "only Mapping, Host, Listener and AuthService are translated"),
        }
    }
    around
}

/// The routes of all Mappings, in the order of Ambassador: by precedence, the longest prefix, and the most conditions.
fn routes(mut mappings: Vec<Mapping<'_>>, around: &Around, draft: &mut Draft) -> Vec<Keys> {
    mappings.sort_by_key(|mapping| std::cmp::Reverse((mapping.precedence, mapping.length, mapping.conditions)));
    let mut groups: Vec<Vec<Mapping<'_>>> = Vec::new();
    for mapping in mappings {
        match groups.iter_mut().find(|group| {
            group
                .first()
                .is_some_and(|first| first.matches == mapping.matches && first.precedence == mapping.precedence)
        }) {
            Some(group) => group.push(mapping),
            None => groups.push(vec![mapping]),
        }
    }
    let mut routes = Vec::new();
    for group in groups {
        let bypasses = group.iter().all(|mapping| mapping.bypasses_auth);
        let route = mapping::route(group, draft);
        routes.push(match (&around.auth, around.closed) {
            (_, true) => closed(&route),
            (Some(auth), false) if !bypasses && route.get("to").is_some() => route.joined(auth),
            _ => route,
        });
    }
    routes
}

fn listeners(around: &Around, routes: Vec<Keys>, draft: &mut Draft) {
    let has_tls = around.hosts.iter().any(|host| host.secret.is_some());
    let port = |is_tls: bool, default: u64| {
        around.ports.iter().find(|(_, tls)| *tls == is_tls).map_or(default, |(port, _)| *port)
    };
    let mut plain = Vec::new();
    for host in around.hosts.iter().filter(|host| host.redirects && host.secret.is_some()) {
        let mut route = Keys::default();
        if host.name != "*" {
            route.set("hosts", json!([host.name]));
        }
        plain.push(route.with("redirect", json!({"scheme": "https", "status": 301})));
    }
    let redirects_all = plain.iter().any(|route| route.get("hosts").is_none());
    if !redirects_all {
        plain.extend(routes.iter().cloned());
    }
    let http = Keys::default().with("bind", format!(":{}", port(false, 8080))).with("protocol", "http");
    draft.listeners.push(("http".to_owned(), Listener { keys: http, routes: plain }));
    if has_tls {
        let mut secrets: Vec<&String> = around.hosts.iter().filter_map(|host| host.secret.as_ref()).collect();
        secrets.dedup();
        let pair = |secret: &&String| json!({"cert": format!("tls/{secret}.pem"), "key": format!("tls/{secret}.key")});
        let certificates: Vec<_> = secrets.iter().map(pair).collect();
        let https = Keys::default().with("bind", format!(":{}", port(true, 8443))).with("protocol", "https");
        let https = https.with("tls", json!({"certificates": certificates}));
        draft.listeners.push(("https".to_owned(), Listener { keys: https, routes }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn translated(text: &str) -> Draft {
        Draft::of_text(text, |file| translate(&[file.to_owned()]))
    }

    #[test]
    fn a_canary_with_everything() {
        let draft = translated(
            r#"
apiVersion: getambassador.io/v3alpha1
kind: Mapping
metadata: {name: shop, namespace: prod}
spec:
  hostname: shop.example.com
  prefix: /api/
  service: shop:8080
  timeout_ms: 5000
  retry_policy: {retry_on: 5xx, num_retries: 3}
  cors: {origins: ["https://a.example"], methods: "GET, POST", credentials: true, max_age: "600"}
  headers: {x-team: red}
---
apiVersion: getambassador.io/v2
kind: Mapping
metadata: {name: shop-canary, namespace: prod}
spec:
  host: shop.example.com
  prefix: /api/
  service: shop-canary:8080
  weight: 10
  headers: {x-team: red}
---
apiVersion: getambassador.io/v2
kind: Mapping
metadata: {name: grpc}
spec: {prefix: /pkg.Service/, rewrite: "", service: "greeter:50051", grpc: true, method: POST}
"#,
        );
        let text = draft.checked();
        for part in [
            "weight: 90",
            "weight: 10",
            "shop.prod:8080",
            "path: /api/",
            "path_prefix: /",
            "timeout: 5s",
            "attempts: 3",
            "x-team: red",
            "protocol: h2c",
            "https://a.example",
            "POST",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        // The longest prefix first.
        assert!(text.find("pkg.Service") < text.find("/api/"), "{text}");
    }

    #[test]
    fn what_keeps_somebody_out() {
        let mapping =
            "apiVersion: getambassador.io/v2\nkind: Mapping\nmetadata: {name: a}\nspec: {prefix: /a/, service: a}\n";
        let auth = "---\napiVersion: getambassador.io/v2\nkind: AuthService\nmetadata: {name: auth}\nspec: {auth_service: 'auth:3000', proto: http, path_prefix: /check}\n";
        let text = translated(&format!("{mapping}{auth}")).checked();
        assert!(text.contains("external_auth") && text.contains("prefix: /check"), "{text}");
        let policy =
            "---\napiVersion: getambassador.io/v2\nkind: FilterPolicy\nmetadata: {name: jwt}\nspec: {rules: []}\n";
        let draft = translated(&format!("{mapping}{policy}"));
        assert!(draft.checked().contains("status: 403"), "{}", draft.checked());
        assert!(draft.told().iter().any(|note| note.contains("FilterPolicy jwt: closed")), "{:?}", draft.told());
        let unknown = mapping.replace("service: a}", "service: a, ip_allow: [10.0.0.0/8]}");
        let draft = translated(&unknown);
        assert!(draft.checked().contains("status: 403"), "{}", draft.checked());
        assert!(draft.told()[0].contains(":4: ip_allow: closed"), "{:?}", draft.told());
    }

    #[test]
    fn a_mapping_in_the_annotation_of_a_service() {
        let draft = translated(
            "apiVersion: v1\nkind: Service\nmetadata:\n  name: qotm\n  annotations:\n    getambassador.io/config: |\n      ---\n      apiVersion: ambassador/v1\n      kind: Mapping\n      name: qotm\n      prefix: /qotm/\n      service: qotm\n",
        );
        assert!(draft.checked().contains("qotm:80"), "{}", draft.checked());
    }

    #[test]
    fn forwarded_headers_are_those_of_the_listener() {
        let mapping = "apiVersion: getambassador.io/v3alpha1\nkind: Mapping\nmetadata: {name: a}\nspec:\n  hostname: a.example\n  prefix: /\n  service: a\n";
        let draft = translated(&format!("{mapping}  add_request_headers: {{x-forwarded-proto: https, x-a: b}}\n"));
        assert!(draft.checked().contains("x-a: b"), "{}", draft.checked());
        assert!(
            draft.told().iter().any(|note| note.contains("x-forwarded-proto: different: the listener's")),
            "{:?}",
            draft.told()
        );
    }
}
