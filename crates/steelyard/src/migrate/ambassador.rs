//! `steelyard migrate ambassador`: Mappings of Ambassador (Emissary-ingress) as routes and clusters, in objects or in the annotations of Services.

mod auth;
mod mapping;
mod settings;

use std::collections::HashMap;
use std::path::PathBuf;

use serde_json::json;

use super::draft::{Became, Draft, Keys, Listener, closed};
use super::envoy::without_upgrade;
use super::pattern::covers;
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

    /// Tells what became of a part. What is left out or closed takes all that is below it along.
    pub(super) fn note(&self, draft: &mut Draft, node: &Node, what: &str, became: Became, why: &str) {
        draft.note(self.place(node), what, became, why);
        if became != Became::Different {
            node.told();
        }
    }

    /// Reports each key that nobody has looked at: by construction, none is dropped without a note.
    fn report_unread(&self, draft: &mut Draft) {
        for unread in self.spec.unread().iter().filter(|unread| !settings::SAYS_NOTHING.contains(&unread.key)) {
            let place = (self.file, self.offset + unread.line);
            draft.note(place, unread.key, Became::Lost, settings::instead(unread.key));
        }
    }
}

/// What the other objects say about all Mappings.
#[derive(Default)]
pub(super) struct Around {
    hosts: Vec<Host>,
    /// `external_auth` for Mappings that do not bypass it.
    auth: Option<Keys>,
    /// All Mappings are closed; the notes say why.
    closed: bool,
    /// A service counts requests by the labels of Mappings.
    pub(super) counts: bool,
    ports: Vec<(u64, bool)>,
    /// Clients need TLS 1.3.
    needs_tls_1_3: bool,
    /// The TLSContexts that Hosts name, and those that demand TLS 1.3.
    contexts: Vec<String>,
    strict_contexts: Vec<String>,
}

struct Host {
    name: String,
    secret: Option<String>,
    /// What becomes of requests in the clear.
    clear: Clear,
    place: (String, usize),
}

#[derive(Clone, Copy, PartialEq)]
enum Clear {
    Routed,
    Redirected,
    Refused,
}

/// Bytes of all files.
const BYTES_MAX: usize = 32 << 20;

/// Objects of all files, and hosts of all routes together.
const OBJECTS_MAX: usize = 20_000;
const HOSTS_MAX: usize = 500_000;

/// Keys of Mappings and other objects whose values decide by being true or false.
const BOOLEANS: &[&str] = &[
    "add_linkerd_headers",
    "allow_partial",
    "append",
    "auto_host_rewrite",
    "bypass_auth",
    "case_sensitive",
    "cert_required",
    "credentials",
    "failure_mode_allow",
    "grpc",
    "host_redirect",
    "host_regex",
    "method_regex",
    "prefix_exact",
    "prefix_regex",
    "shadow",
    "use_websocket",
];

/// Objects that say nothing about where requests go.
const WITHOUT_ROUTES: &[&str] = &[
    "ClusterRole",
    "ClusterRoleBinding",
    "ConfigMap",
    "CronJob",
    "CustomResourceDefinition",
    "DaemonSet",
    "Deployment",
    "Endpoints",
    "EndpointSlice",
    "HorizontalPodAutoscaler",
    "Job",
    "Namespace",
    "PersistentVolume",
    "PersistentVolumeClaim",
    "Pod",
    "PodDisruptionBudget",
    "ReplicaSet",
    "Role",
    "RoleBinding",
    "Secret",
    "Service",
    "ServiceAccount",
    "StatefulSet",
];

/// # Errors
/// The place, and what cannot be read there.
pub(super) fn translate(paths: &[PathBuf]) -> Result<Draft, String> {
    let mut files = Vec::new();
    for path in paths {
        super::find(path, 0, &mut files)?;
    }
    files.sort();
    let (mut texts, mut bytes) = (Vec::new(), 0);
    for file in &files {
        let text = super::text_of(file)?;
        bytes += text.len();
        if bytes > BYTES_MAX {
            return Err(format!("{}: all files together have more than {BYTES_MAX} bytes", file.display()));
        }
        texts.push((file.display().to_string(), text));
    }
    let mut objects = Vec::new();
    let mut draft = Draft::default();
    for (name, text) in &texts {
        let documents = tree::documents(text).map_err(|(line, why)| format!("{name}:{line}: {why}"))?;
        for document in documents {
            collect(name, 0, document, &mut objects, &mut draft)?;
        }
    }
    one_ambassador(&objects)?;
    let around = around(&objects, &mut draft);
    let mappings: Vec<Mapping<'_>> = objects
        .iter()
        .filter(|object| object.kind == "Mapping")
        .filter_map(|object| Mapping::of(object, &around, &mut draft))
        .collect();
    if mappings.is_empty() {
        return Err("there is no Mapping (getambassador.io) in these files".to_owned());
    }
    let routes = routes(mappings, &around, &mut draft)?;
    listeners(&around, routes, &mut draft);
    // Of a file that is closed as a whole, the Mappings were not read to the end.
    for object in objects.iter().filter(|object| !around.closed || object.kind != "Mapping") {
        object.report_unread(&mut draft);
    }
    Ok(draft)
}

/// Several Ambassadors share a cluster by their ids, and what one of them serves may not be reachable by the other.
fn one_ambassador(objects: &[Object<'_>]) -> Result<(), String> {
    let ids = |object: &Object<'_>| {
        let node = object.spec.at("ambassador_id");
        let mut ids: Vec<String> =
            node.items().iter().filter_map(Node::text).chain(node.text()).map(str::to_owned).collect();
        ids.sort_unstable();
        if ids.is_empty() { vec!["default".to_owned()] } else { ids }
    };
    let mut all = objects.iter().map(|object| (object, ids(object)));
    let Some((_, first)) = all.next() else { return Ok(()) };
    match all.find(|(_, ids)| *ids != first) {
        None => Ok(()),
        Some((object, ids)) => {
            let (file, line) = object.place(&object.spec);
            let (first, ids) = (first.join(", "), ids.join(", "));
            Err(format!(
                "{file}:{line}: ambassador_id is {ids} here and {first} before: give the objects of one Ambassador"
            ))
        }
    }
}

/// The objects of a document: of a list, and of the annotation of a Service.
fn collect<'t>(
    file: &'t str,
    offset: usize,
    document: Node,
    objects: &mut Vec<Object<'t>>,
    draft: &mut Draft,
) -> Result<(), String> {
    if objects.len() > OBJECTS_MAX {
        return Err(format!("{file}: more than {OBJECTS_MAX} objects"));
    }
    let kind = document.at("kind").text().unwrap_or_default().to_owned();
    if kind.ends_with("List") {
        for item in document.taken("items").map(Node::into_items).unwrap_or_default() {
            collect(file, offset, item, objects, draft)?;
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
            collect(file, node.line, inner, objects, draft)?;
        }
    }
    let is_ours = document
        .at("apiVersion")
        .text()
        .is_some_and(|version| version.contains("getambassador.io") || version.starts_with("ambassador/"));
    if is_ours {
        if let Some((line, why)) = document.unclear(BOOLEANS) {
            return Err(format!("{file}:{}: {why}", offset + line));
        }
        let text = |node: &Node| node.text().map(str::to_owned);
        let name = text(metadata.at("name")).or_else(|| text(document.at("name"))).unwrap_or_default();
        let namespace = text(metadata.at("namespace")).or_else(|| text(document.at("namespace")));
        // In an annotation, and in older versions, there is no `spec`.
        let spec = match document.get("spec").is_some() {
            true => document.taken("spec").unwrap_or_default(),
            false => document,
        };
        objects.push(Object { file, offset, kind, name, namespace, spec });
    } else if !document.is_null() && !WITHOUT_ROUTES.contains(&kind.as_str()) {
        let what = format!("{kind} {}", metadata.at("name").text().unwrap_or_default());
        draft.note((file, offset + document.line), what.trim(), Became::Lost, other(&kind));
    }
    Ok(())
}

/// What to do with an object of another API.
fn other(kind: &str) -> &'static str {
    match kind {
        "Ingress" => {
            "it is no object of Ambassador: write a route, or serve it with `steelyard controller --ingress-nginx`"
        }
        kind if kind.ends_with("Route") || kind == "Gateway" => {
            "it is no object of Ambassador: write a route, or serve it with `steelyard controller`"
        }
        _ => "it is no object of Ambassador: if it decides about requests, write what it does by hand",
    }
}

fn around(objects: &[Object<'_>], draft: &mut Draft) -> Around {
    let mut around = Around::default();
    for object in objects {
        let (spec, what) = (&object.spec, format!("{} {}", object.kind, object.name));
        match object.kind.as_str() {
            "Mapping" => {}
            "Host" => settings::host(object, &mut around, draft),
            "Listener" => settings::listener(object, &mut around, draft),
            "Module" => settings::module(object, &mut around, draft),
            "TLSContext" => settings::context(object, &mut around, draft),
            "AuthService" => match auth::auth(object, draft) {
                Some(auth) if around.auth.is_none() => around.auth = Some(auth),
                _ => around.close(object, spec, draft, "it is not understood, or not the only one"),
            },
            "RateLimitService" => {
                around.counts = true;
                let why = "write `global_rate_limit`, which asks the same service; Mappings with labels are closed";
                object.note(draft, spec, &what, Became::Lost, why);
            }
            "TCPMapping"
            | "LogService"
            | "TracingService"
            | "DevPortal"
            | "ConsulResolver"
            | "KubernetesEndpointResolver"
            | "KubernetesServiceResolver" => {
                object.note(
                    draft,
                    spec,
                    &what,
                    Became::Lost,
                    "only Mapping, Host, Listener and AuthService are translated",
                );
            }
            _ => around.close(object, spec, draft, "it is not understood and may keep somebody out"),
        }
    }
    around
}

impl Around {
    fn close(&mut self, object: &Object<'_>, node: &Node, draft: &mut Draft, why: &str) {
        let what = format!("{} {}", object.kind, object.name);
        let why = format!("{why}, so all Mappings are closed; write what it does by hand, and remove it");
        object.note(draft, node, &what, Became::Closed, &why);
        self.closed = true;
    }

    /// Closes all Mappings if the object has a key that is not known.
    fn known_or_closed(&mut self, object: &Object<'_>, node: &Node, known: &[&str], draft: &mut Draft) {
        for (key, value) in node.entries().iter().filter(|(_, value)| !value.is_null()) {
            if !known.iter().any(|known| key.is_key(known)) {
                let why = format!("{} is not understood", key.text().unwrap_or_default());
                self.close(object, if value.line > 0 { value } else { key }, draft, &why);
            }
        }
    }
}

/// The routes of all Mappings, in the order of Ambassador.
fn routes(mut mappings: Vec<Mapping<'_>>, around: &Around, draft: &mut Draft) -> Result<Vec<Keys>, String> {
    mappings.sort_by(|a, b| b.weight_of_route.cmp(&a.weight_of_route));
    let mut groups: Vec<Vec<Mapping<'_>>> = Vec::new();
    let mut places = HashMap::new();
    for mapping in mappings {
        let precedence = mapping.weight_of_route.0;
        let conditions = serde_json::to_string(&mapping.matches).map_err(|error| error.to_string())?;
        match *places.entry((precedence, conditions)).or_insert(groups.len()) {
            place if place == groups.len() => groups.push(vec![mapping]),
            place => groups[place].push(mapping),
        }
    }
    let hosts = known_hosts(&groups, around);
    let (mut routes, mut names) = (Vec::new(), 0);
    for group in groups {
        let bypasses = group.iter().all(|mapping| mapping.bypasses_auth);
        let upgrades = group.iter().any(|mapping| mapping.upgrades);
        let mut route = mapping::route(group, draft);
        let is_open = route.get("respond").is_none();
        if around.closed {
            route = closed(&route);
        } else if let Some(auth) = around.auth.as_ref().filter(|_| !bypasses && is_open) {
            route = route.joined(auth);
        }
        for route in of_hosts(route, &hosts, around) {
            names += route.get("hosts").and_then(|hosts| hosts.as_array()).map_or(0, Vec::len);
            if names > HOSTS_MAX {
                return Err(format!(
                    "the Mappings have more than {HOSTS_MAX} hosts together: translate a part of them"
                ));
            }
            if !upgrades && route.get("to").is_some() {
                routes.extend(without_upgrade(&route));
            }
            routes.push(route);
        }
    }
    Ok(routes)
}

/// The hosts that Hosts and Mappings name.
fn known_hosts(groups: &[Vec<Mapping<'_>>], around: &Around) -> Vec<String> {
    let of_mappings = groups.iter().flatten().filter_map(|mapping| mapping.matches.get("hosts")?.get(0)?.as_str());
    let of_hosts = around.hosts.iter().map(|host| host.name.as_str()).filter(|name| *name != "*");
    let mut hosts: Vec<String> = of_mappings.chain(of_hosts).map(str::to_owned).collect();
    hosts.sort_unstable();
    hosts.dedup();
    hosts
}

/// A route for each host that it may take. Here a route with a host comes before one without, and in Ambassador it does not: so each route names every
/// host that it takes. Of the hosts that no Host has, nothing is served.
fn of_hosts(route: Keys, hosts: &[String], around: &Around) -> Vec<Keys> {
    let own = route.get("hosts").and_then(|hosts| hosts.get(0)?.as_str()).unwrap_or("*").to_owned();
    let is_served = |host: &str| around.hosts.is_empty() || around.hosts.iter().any(|one| covers(&one.name, host));
    let taken: Vec<&String> = match own.starts_with('*') {
        true => hosts.iter().filter(|host| covers(&own, host) && is_served(host)).collect(),
        false => Some(&own).filter(|own| is_served(own)).into_iter().collect(),
    };
    let mut all = Vec::new();
    if !taken.is_empty() {
        all.push(Keys::default().with("hosts", json!(taken)).joined(&{
            let mut rest = route.clone();
            rest.remove("hosts");
            rest
        }));
    }
    if own == "*" && is_served("*") {
        all.push(route);
    } else if taken.is_empty() {
        all.push(closed(&route));
    }
    all
}

fn listeners(around: &Around, routes: Vec<Keys>, draft: &mut Draft) {
    let port = |is_tls: bool, default: u64| {
        around.ports.iter().find(|(_, tls)| *tls == is_tls).map_or(default, |(port, _)| *port)
    };
    let mut plain = Vec::new();
    if around.hosts.iter().all(|host| host.clear == Clear::Routed) {
        plain.clone_from(&routes);
    } else {
        // Whatever may not be asked for in the clear could have another name there, too.
        for host in around.hosts.iter().filter(|host| host.clear == Clear::Routed) {
            let why = "another Host does not route requests in the clear, so none are routed";
            draft.note((&host.place.0, host.place.1), &format!("Host {}", host.name), Became::Closed, why);
        }
        for host in around.hosts.iter().filter(|host| host.clear == Clear::Redirected) {
            let mut route = Keys::default();
            if host.name != "*" {
                route.set("hosts", json!([host.name]));
            }
            plain.push(route.with("redirect", json!({"scheme": "https", "status": 301})));
        }
        plain.push(closed(&Keys::default()));
    }
    let http = Keys::default().with("bind", format!(":{}", port(false, 8080))).with("protocol", "http");
    draft.listeners.push(("http".to_owned(), Listener { keys: http, routes: plain }));
    let mut secrets: Vec<&String> = around.hosts.iter().filter_map(|host| host.secret.as_ref()).collect();
    secrets.sort_unstable();
    secrets.dedup();
    if !secrets.is_empty() {
        let pair = |secret: &&String| json!({"cert": format!("tls/{secret}.pem"), "key": format!("tls/{secret}.key")});
        let certificates: Vec<_> = secrets.iter().map(pair).collect();
        let https = Keys::default().with("bind", format!(":{}", port(true, 8443))).with("protocol", "https");
        let mut tls = json!({"certificates": certificates});
        let is_strict = around.strict_contexts.iter().any(|name| around.contexts.contains(name));
        if around.needs_tls_1_3 || is_strict {
            tls["min_version"] = json!("1.3");
        }
        let https = https.with("tls", tls);
        draft.listeners.push(("https".to_owned(), Listener { keys: https, routes }));
    }
}

#[cfg(test)]
mod tests;
