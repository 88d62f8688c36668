//! GatewayParameters: how the clients of the Gateway are treated, by the ConfigMap of ingress-nginx.

use ipnet::IpNet;
use model::HeaderNames;
use serde_json::{Map, Value, json};

use super::super::options::Globals;
use super::super::plan::Compat;
use super::super::value;

impl Globals {
    /// The names that headers of requests may have.
    pub(crate) fn header_names(&self) -> HeaderNames {
        match (self.bool("ignore-invalid-headers", true), self.bool("enable-underscores-in-headers", false)) {
            (false, _) => HeaderNames::Any,
            (true, true) => HeaderNames::Underscores,
            (true, false) => HeaderNames::Strict,
        }
    }

    /// Whether some proxies are trusted about their clients.
    fn trusts(&self) -> bool {
        self.bool("use-forwarded-headers", false) || self.bool("enable-real-ip", false)
    }

    /// These proxies.
    pub(crate) fn trusted_proxies(&self, compat: Compat) -> Vec<IpNet> {
        if !self.trusts() {
            return Vec::new();
        }
        let mut trusted = self.networks("proxy-real-ip-cidr");
        match compat {
            Compat::Exact if trusted.is_empty() => trusted.extend("0.0.0.0/0".parse::<IpNet>()),
            Compat::Exact => {}
            // Everybody could name any address, and pass an allowlist.
            Compat::Safe => trusted.retain(|network| network.prefix_len() > 0),
        }
        trusted
    }
}

/// The longest time that a duration of the API can say in seconds.
const SECONDS_MAX: u64 = 99_999;

/// The object for a Gateway, and what it does not say.
pub(super) fn parameters(globals: &Globals, compat: Compat, (namespace, name): (&str, &str)) -> (Value, Vec<String>) {
    let mut lost = Vec::new();
    let names = match globals.header_names() {
        HeaderNames::Any => "Any",
        HeaderNames::Underscores => "Underscores",
        HeaderNames::Strict => "Strict",
    };
    let mut clients = json!({
        "forwardedHeaders": "IngressNginx",
        "xRealIp": true,
        "requestId": {"keep": "Always"},
        "headerNames": names,
    });
    if globals.bool("use-proxy-protocol", false) {
        clients["proxyProtocol"] = json!("Required");
    }
    let trusted = globals.trusted_proxies(compat);
    if !trusted.is_empty() {
        clients["trustedProxies"] = trusted.iter().map(ToString::to_string).collect();
    } else if globals.trusts() {
        lost.push(
            "ConfigMap: use-forwarded-headers, enable-real-ip: ingress-nginx believes what any client says of itself; write the networks of \
             your proxies as `clients.trustedProxies` of the GatewayParameters"
                .to_owned(),
        );
    }
    let timeouts = timeouts(globals, &mut lost);
    if !timeouts.is_empty() {
        clients["timeouts"] = Value::Object(timeouts);
    }
    let limits = limits(globals, &mut lost);
    if !limits.is_empty() {
        clients["limits"] = Value::Object(limits);
    }
    let versions: Vec<&str> = globals.text("ssl-protocols").into_iter().flat_map(value::words).collect();
    let is_served = |version: &&str| ["TLSv1.2", "TLSv1.3"].iter().any(|known| version.eq_ignore_ascii_case(known));
    if globals.min_tls_version().is_some() {
        clients["minTlsVersion"] = json!("1.3");
    }
    if !versions.iter().all(is_served) {
        lost.push("ConfigMap: ssl-protocols: only TLS 1.2 and 1.3 are served".to_owned());
    }
    let object = json!({
        "apiVersion": "steelyard.io/v1alpha1",
        "kind": "GatewayParameters",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"clients": clients},
    });
    (object, lost)
}

fn timeouts(globals: &Globals, lost: &mut Vec<String>) -> Map<String, Value> {
    let mut timeouts = Map::new();
    for (key, field) in [("client-header-timeout", "header"), ("client-body-timeout", "stall"), ("keep-alive", "idle")]
    {
        // What 0 means to nginx, the table says.
        let seconds = globals.text(key).and_then(value::integer).filter(|seconds| *seconds > 0);
        let Some(seconds) = seconds else { continue };
        if seconds <= SECONDS_MAX {
            timeouts.insert(field.to_owned(), json!(format!("{seconds}s")));
        } else {
            lost.push(format!(
                "ConfigMap: {key}: `timeouts.{field}` of GatewayParameters is from 1s to {SECONDS_MAX}s"
            ));
        }
    }
    timeouts
}

fn limits(globals: &Globals, lost: &mut Vec<String>) -> Map<String, Value> {
    let mut limits = Map::new();
    if let Some(buffers) = globals.text("large-client-header-buffers") {
        match header_size(buffers) {
            Some(kibibytes) => drop(limits.insert("headerSize".to_owned(), json!(format!("{kibibytes}Ki")))),
            None => lost.push(
                "ConfigMap: large-client-header-buffers: `limits.headerSize` of GatewayParameters is from 1Ki to 1Mi"
                    .to_owned(),
            ),
        }
    }
    if let Some(streams) = globals.text("http2-max-concurrent-streams").and_then(value::integer) {
        match streams {
            1..=10_000 => drop(limits.insert("streamsPerConnection".to_owned(), json!(streams))),
            _ => lost.push(
                "ConfigMap: http2-max-concurrent-streams: `limits.streamsPerConnection` of GatewayParameters is from 1 to 10000"
                    .to_owned(),
            ),
        }
    }
    limits
}

/// `4 8k`: a number of buffers, and the size of each. Their sum in kibibytes, if a listener can have it.
fn header_size(buffers: &str) -> Option<u64> {
    let (number, size) = buffers.split_once(char::is_whitespace)?;
    let bytes = value::integer(number)?.checked_mul(value::size(size.trim())??)?;
    Some(bytes.div_ceil(1 << 10)).filter(|kibibytes| (1..=1 << 10).contains(kibibytes))
}
