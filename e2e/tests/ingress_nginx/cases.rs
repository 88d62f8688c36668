//! The cases: reading them, what each is as objects, as directives of nginx and as requests, and the judgement.

use std::collections::BTreeMap;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::tls::Pki;
use crate::{AUTH, GONE, LOGIN, LOGIN_NAME, MAIN, OTHER, SECURE};

/// `ann:secret`.
pub const USERS: &str = "\
ann:{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=
md5:$1$zxA9Rk1p$DbQiAYrT8Cr.j5W6aUS8S/
apr1:$apr1$zxA9Rk1p$JPNA07iFHbvyoh973Nbxf/
sha256:$5$zxA9Rk1p$zUVjAhUwC4telqwwkuIUbjXO18wPQyhOZnS8kHfZvO6
sha512:$6$rounds=1000$zxA9Rk1p$YSDcZtUQ6Z.2jqYWfNQWgpGkMNfowqrv5yDStKycr1aE8m.qavPqxXxn7.On6jq6b0zvwehsoDNzms7eXHpwu1
ssha:{SSHA}gVK8WC9YyFT1gMsQHTGCgT3sSv5zYWx0
plain:{PLAIN}secret:Joe of staff
twice:{PLAIN}first
twice:{PLAIN}second
";

const PREFIX: &str = "nginx.ingress.kubernetes.io/";

/// What ingress-nginx 1.15 writes into every location that has an endpoint (`nginx.tmpl`), without the variables of its Lua.
const PROXY: &str = "\
client_max_body_size 1m;
proxy_set_header Host $http_host;
proxy_set_header Upgrade $http_upgrade;
proxy_set_header Connection $connection_upgrade;
proxy_set_header X-Request-ID $req_id;
proxy_set_header X-Real-IP $remote_addr;
proxy_set_header X-Forwarded-For $remote_addr;
proxy_set_header X-Forwarded-Host $http_host;
proxy_set_header X-Forwarded-Port $server_port;
proxy_set_header X-Forwarded-Proto $scheme;
proxy_set_header X-Forwarded-Scheme $scheme;
proxy_set_header X-Scheme $scheme;
proxy_set_header X-Original-Forwarded-For $http_x_forwarded_for;
proxy_set_header X-Original-Forwarded-Host $http_x_forwarded_host;
proxy_set_header Proxy \"\";
proxy_connect_timeout 5s;
proxy_send_timeout 60s;
proxy_read_timeout 60s;
proxy_buffering off;
proxy_buffer_size 4k;
proxy_buffers 4 4k;
proxy_max_temp_file_size 1024m;
proxy_request_buffering on;
proxy_http_version 1.1;
proxy_cookie_domain off;
proxy_cookie_path off;
proxy_next_upstream error timeout;
proxy_next_upstream_timeout 0;
proxy_next_upstream_tries 3;
proxy_redirect off;
";

/// Its Lua does this for connections over TLS.
const HSTS: &str = "more_set_headers \"Strict-Transport-Security: $hsts\";";

/// What it writes for the question to `auth-url`.
const ASK: &str = "\
internal;
proxy_pass_request_body off;
proxy_set_header Content-Length \"\";
proxy_set_header X-Forwarded-Proto \"\";
proxy_set_header X-Request-ID $req_id;
proxy_method GET;
proxy_set_header X-Original-URI $request_uri;
proxy_set_header X-Scheme $scheme;
proxy_set_header Host auth.default.svc.cluster.local;
proxy_set_header X-Original-URL $scheme://$http_host$request_uri;
proxy_set_header X-Original-Method $request_method;
proxy_set_header X-Sent-From \"nginx-ingress-controller\";
proxy_set_header X-Real-IP $remote_addr;
proxy_set_header X-Forwarded-For $remote_addr;
proxy_set_header X-Auth-Request-Redirect $request_uri;
proxy_http_version 1.1;
proxy_ssl_server_name on;
client_max_body_size 1m;
";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    cases: Vec<Case>,
}

/// One case. Its host is `NAME.example`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    name: String,
    /// Without their prefix.
    annotations: BTreeMap<String, String>,
    /// Prefixes; `=` in front of an exact path, and `~` in front of one of the type ImplementationSpecific.
    paths: Vec<String>,
    /// Further Ingresses of the host.
    #[serde(default)]
    also: Vec<Also>,
    /// The Service of a path; the others lead to `main`.
    #[serde(default)]
    services: BTreeMap<String, String>,
    /// Further names of the server.
    #[serde(default)]
    aliases: Vec<String>,
    /// Whether the Ingress has a certificate.
    #[serde(default)]
    tls: bool,
    /// What ingress-nginx writes outside of the server, into it, and as its locations.
    #[serde(default)]
    http: String,
    #[serde(default)]
    server: String,
    nginx: String,
    /// `[https ]METHOD TARGET STATUS`, and then after ` | ` each: `Name: value`, or `body BYTES`.
    requests: Vec<String>,
    #[serde(default)]
    differs: Vec<Known>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Also {
    annotations: BTreeMap<String, String>,
    paths: Vec<String>,
}

/// A difference that is known.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Known {
    what: String,
    /// What nginx says, and what Steelyard says.
    #[serde(default)]
    old: String,
    #[serde(default)]
    new: String,
    /// For `what: everything`: the request, counted from 0, that has another answer as a whole.
    request: Option<usize>,
    /// The reason for which it stays.
    why: String,
}

impl Known {
    fn is(&self, number: usize, what: &str, old: &str, new: &str) -> bool {
        match self.request {
            Some(request) => request == number && self.what == "everything",
            None => self.what == what && self.old == old && self.new == new,
        }
    }
}

struct Request {
    is_https: bool,
    method: String,
    target: String,
    status: u64,
    headers: Vec<(String, String)>,
    body: usize,
}

/// All of `e2e/nginx`.
pub fn all() -> Vec<Case> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("nginx");
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let mut all: Vec<Case> = Vec::new();
    for path in files {
        let text = std::fs::read_to_string(&path).unwrap();
        let file: File = serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        for case in file.cases {
            assert!(all.iter().all(|other| other.name != case.name), "there are two cases {}", case.name);
            assert!(!case.requests.is_empty(), "{} has no requests", case.name);
            all.push(case);
        }
    }
    all
}

impl Case {
    fn host(&self) -> String {
        format!("{}.example", self.name)
    }

    fn request(&self, written: &str) -> Request {
        let mut parts = written.split(" | ");
        let mut words = parts.next().unwrap().split(' ').peekable();
        let is_https = words.next_if_eq(&"https").is_some();
        let [method, target, status] = [(); 3].map(|()| words.next().unwrap_or_else(|| panic!("{written}")).to_owned());
        let (mut headers, mut body) = (Vec::new(), 0);
        for part in parts {
            match (part.strip_prefix("body "), part.split_once(": ")) {
                (Some(bytes), _) => body = bytes.parse().unwrap(),
                (None, Some((name, value))) => headers.push((name.to_owned(), value.to_owned())),
                (None, None) => panic!("{written}: {part}"),
            }
        }
        Request { is_https, method, target, status: status.parse().unwrap(), headers, body }
    }

    /// The servers of nginx for it.
    pub fn in_nginx(&self, address: &str, users: &str) -> String {
        let names = [self.host()].into_iter().chain(self.aliases.iter().cloned()).collect::<Vec<_>>().join(" ");
        let (http, locations) = (expanded(&self.http, users), expanded(&self.nginx, users));
        format!(
            "{http}\nserver {{ server_name {names}; listen {address}:80; listen {address}:443 ssl; {HSTS}\n{}\n{locations} }}\n",
            self.server
        )
    }

    fn ingress(&self, number: usize, annotations: &BTreeMap<String, String>, paths: &[String]) -> Value {
        let annotations: BTreeMap<String, &String> =
            annotations.iter().map(|(key, value)| (format!("{PREFIX}{key}"), value)).collect();
        let path = |written: &String| {
            let (path, kind) = match (written.strip_prefix('='), written.strip_prefix('~')) {
                (Some(path), _) => (path, "Exact"),
                (_, Some(path)) => (path, "ImplementationSpecific"),
                (None, None) => (written.as_str(), "Prefix"),
            };
            let service = self.services.get(path).map_or("main", String::as_str);
            json!({"path": path, "pathType": kind, "backend": {"service": {"name": service, "port": {"number": 80}}}})
        };
        let paths: Vec<Value> = paths.iter().map(path).collect();
        let mut spec = json!({"ingressClassName": "nginx", "rules": [{"host": self.host(), "http": {"paths": paths}}]});
        if self.tls {
            spec["tls"] = json!([{"hosts": [self.host()], "secretName": "site"}]);
        }
        json!({
            "metadata": {
                "name": format!("{}-{number}", self.name), "namespace": "default", "uid": format!("{}-{number}", self.name),
                "resourceVersion": "1", "creationTimestamp": format!("2026-01-01T00:00:{number:02}Z"), "annotations": annotations,
            },
            "spec": spec,
        })
    }
}

/// Puts in what a case has in double braces.
fn expanded(text: &str, users: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("{{") {
        let (what, after) = after.split_once("}}").expect("closing braces");
        out.push_str(before);
        let (word, arguments) = what.split_once(' ').unwrap_or((what, ""));
        let (arguments, without) = arguments.split_once(" without ").unwrap_or((arguments, ""));
        let without: Vec<&str> = without.split(' ').collect();
        let is_left_out = |line: &str| {
            let mut words = line.split(' ');
            let (directive, header) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
            without.contains(&directive) || directive == "proxy_set_header" && without.contains(&header)
        };
        let left = |lines: &str| -> String {
            lines.lines().filter(|line| !is_left_out(line)).map(|line| format!("{line}\n")).collect()
        };
        match word {
            "proxy" | "https" => {
                out.push_str(&left(PROXY));
                let scheme = if word == "https" { "https" } else { "http" };
                out.push_str(&format!("proxy_pass {scheme}://{arguments};\n"));
            }
            "auth" => out.push_str(&format!("{}proxy_pass http://auth{arguments};\n", left(ASK))),
            "login" => {
                let ask = left(ASK).replace("auth.default.svc.cluster.local", LOGIN_NAME);
                out.push_str(&format!("{ask}proxy_pass https://{LOGIN_NAME}{arguments};\n"));
            }
            "cors" => out.push_str(&cors(arguments)),
            "users" => out.push_str(users),
            // A folder of the test's own, which nginx makes.
            "cache" => out.push_str(&format!("{users}.cache")),
            _ => panic!("{what}"),
        }
        rest = after;
    }
    out + rest
}

/// The template `CORS` of ingress-nginx, after the origin was compared: methods, headers, credentials, exposed headers and age.
fn cors(arguments: &str) -> String {
    let parts: Vec<&str> = arguments.split('|').collect();
    let [methods, headers, credentials, expose, age] = parts[..] else { panic!("{arguments}") };
    let mut fields = format!(
        "more_set_headers 'Access-Control-Allow-Origin: $http_origin';\n\
         more_set_headers 'Access-Control-Allow-Credentials: {credentials}';\n\
         more_set_headers 'Access-Control-Allow-Methods: {methods}';\n\
         more_set_headers 'Access-Control-Allow-Headers: {headers}';\n\
         more_set_headers 'Access-Control-Max-Age: {age}';\n"
    );
    if !expose.is_empty() {
        fields.push_str(&format!("more_set_headers 'Access-Control-Expose-Headers: {expose}';\n"));
    }
    format!(
        "if ($request_method = 'OPTIONS') {{ set $cors ${{cors}}options; }}\n\
         if ($cors = \"true\") {{ {fields} }}\n\
         if ($cors = \"trueoptions\") {{ {fields} more_set_headers 'Content-Type: text/plain charset=UTF-8'; \
         more_set_headers 'Content-Length: 0'; return 204; }}\n"
    )
}

/// What a cluster has: the Ingresses of the cases, and what they name. Each list is under the plural of its kind.
pub fn objects(cases: &[Case], pki: &Pki) -> BTreeMap<String, Vec<Value>> {
    let mut ingresses = Vec::new();
    for case in cases {
        ingresses.push(case.ingress(0, &case.annotations, &case.paths));
        for (number, also) in case.also.iter().enumerate() {
            ingresses.push(case.ingress(number + 1, &also.annotations, &also.paths));
        }
    }
    let named = |name: &str, rest: Value| {
        let mut object =
            json!({"metadata": {"name": name, "namespace": "default", "uid": name, "resourceVersion": "1"}});
        object.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        object
    };
    // The port of each is 80, but for the one that is asked at the default port of https.
    let services: [(&str, &[&str], u16); 8] = [
        ("main", &[MAIN], 80),
        ("other", &[OTHER], 80),
        ("auth", &[AUTH], 80),
        ("flaky", &[MAIN, GONE], 80),
        ("dead", &[GONE], 80),
        ("none", &[], 80),
        ("secure", &[SECURE], 443),
        ("login", &[LOGIN], 443),
    ];
    let service = |(name, _, port): &(&str, &[&str], u16)| {
        let own = if *name == "login" { 443 } else { 80 };
        let ports = json!([{"name": "http", "port": own, "targetPort": port, "protocol": "TCP"}]);
        named(name, json!({"spec": {"clusterIP": "10.96.0.1", "type": "ClusterIP", "ports": ports}}))
    };
    let slice = |(name, addresses, port): &(&str, &[&str], u16)| {
        let endpoints: Vec<Value> =
            addresses.iter().map(|address| json!({"addresses": [address], "conditions": {"ready": true}})).collect();
        let ports = json!([{"name": "http", "port": port, "protocol": "TCP"}]);
        let mut slice = named(name, json!({"addressType": "IPv4", "endpoints": endpoints, "ports": ports}));
        slice["metadata"]["labels"] = json!({"kubernetes.io/service-name": name});
        slice
    };
    let encoded = |text: &str| json!(STANDARD.encode(text));
    let pem = |name: &str| encoded(&std::fs::read_to_string(pki.path(name)).unwrap());
    let site = json!({"type": "kubernetes.io/tls", "data": {"tls.crt": pem("site.pem"), "tls.key": pem("site.key")}});
    let config = json!({"data": {
        "allow-snippet-annotations": "true", "annotations-risk-level": "Critical",
        "global-allowed-response-headers": "X-Custom,Content-Language",
        "block-user-agents": "BadBot/1.0, \"~*evil (bot|spider)\", ~^Scraper",
        "block-referers": "https://spam.example/, ~\\.casino\\.example/",
    }});
    let headers = json!({"data": {"X-Custom": "a; b=\"c\"", "Content-Language": "en"}});
    let asked =
        json!({"data": {"X-App": "shop $request_method", "X-From": "$http_x_me on $host", "X-None": "$cookie_none"}});
    let class = json!({"metadata": {"name": "nginx", "uid": "nginx", "resourceVersion": "1"}, "spec": {"controller": "k8s.io/ingress-nginx"}});
    let namespace = json!({"metadata": {"name": "default", "uid": "default", "resourceVersion": "1"}});
    let users = named("users", json!({"type": "Opaque", "data": {"auth": encoded(USERS)}}));
    [
        ("ingresses", ingresses),
        ("ingressclasses", vec![class]),
        ("services", services.iter().map(service).collect()),
        ("endpointslices", services.iter().map(slice).collect()),
        ("secrets", vec![named("site", site), users]),
        ("configmaps", vec![named("nginx", config), named("headers", headers), named("asked", asked)]),
        ("namespaces", vec![namespace]),
        ("customresourcedefinitions", vec![]),
    ]
    .map(|(plural, objects)| (plural.to_owned(), objects))
    .into()
}

/// The requests of all cases, as a browser would save them.
pub fn har(cases: &[Case]) -> Value {
    let mut entries = Vec::new();
    for case in cases {
        for (number, written) in case.requests.iter().enumerate() {
            let request = case.request(written);
            let host = request.headers.iter().find(|(name, _)| name == "Host").map(|(_, host)| host.clone());
            let scheme = if request.is_https { "https" } else { "http" };
            let url = format!("{scheme}://{}{}", host.unwrap_or_else(|| case.host()), request.target);
            let headers: Vec<Value> =
                request.headers.iter().map(|(name, value)| json!({"name": name, "value": value})).collect();
            entries.push(json!({
                "comment": format!("{}#{number}", case.name),
                "request": {"method": request.method, "url": url, "headers": headers, "postData": {"text": "x".repeat(request.body)}},
            }));
        }
    }
    json!({"log": {"version": "1.2", "entries": entries}})
}

/// What is wrong: differences that no case knows, known ones that are not there, and statuses that nginx does not answer.
pub fn judge(cases: &[Case], found: &Value) -> Vec<String> {
    let mut wrong = Vec::new();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let compared = found["compared"].as_array().map(Vec::as_slice).unwrap_or_default();
    for case in cases {
        let mut seen = vec![false; case.differs.len()];
        for (number, written) in case.requests.iter().enumerate() {
            let name = format!("{}#{number}", case.name);
            let Some(one) = compared.iter().find(|one| one["about"] == name) else {
                wrong.push(format!("{name} was not sent"));
                continue;
            };
            let (answered, expected) = (&one["status"]["old"], case.request(written).status);
            if *answered != expected {
                wrong.push(format!("{name} ({written}): nginx answers {answered} and not {expected}"));
            }
            let differences = one["differences"].as_array().map(Vec::as_slice).unwrap_or_default();
            let is_refusal = differences.iter().any(is_refusal_of_the_service);
            for difference in differences.iter().filter(|one| one["matters"] == true) {
                // It is one difference, in the body and in its type.
                if is_refusal
                    && ["body", "header content-type"].contains(&difference["what"].as_str().unwrap_or_default())
                {
                    continue;
                }
                let [what, old, new] = ["what", "old", "new"].map(|key| text(&difference[key]));
                let is_it = |known: &Known| known.is(number, &what, &old, &new);
                let place = case.differs.iter().position(is_it);
                match place {
                    Some(place) => seen[place] = true,
                    None => wrong.push(format!("{name}: {what}: nginx {old:?}, Steelyard {new:?} ({written})")),
                }
            }
        }
        wrong.extend(unseen(&case.differs, &seen).map(|why| format!("{}: {why}", case.name)));
    }
    wrong
}

/// Whether clients get the body with which the service of auth-url refuses a request. nginx has a page of its own in its place.
fn is_refusal_of_the_service(difference: &Value) -> bool {
    let [what, old, new] = ["what", "old", "new"].map(|key| difference[key].as_str().unwrap_or_default());
    let is_page = ["401 Authorization Required", "403 Forbidden"].iter().any(|title| old.contains(title));
    what == "body" && is_page && new.ends_with(" /check\n")
}

fn unseen<'k>(known: &'k [Known], seen: &'k [bool]) -> impl Iterator<Item = String> + use<'k> {
    let unseen = known.iter().zip(seen).filter(|(_, seen)| !**seen);
    unseen.map(|(known, _)| format!("no such difference: {} ({})", known.what, known.why))
}
