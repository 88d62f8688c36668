//! How clients are treated: what ClientSettings of our own kind mean in the model, and what is wrong with them.

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use ipnet::IpNet;
use model::{
    ForwardPath, ForwardedHeaders, HeaderNames, KeepRequestId, ListenerLimits, PathRules, RequestId, TlsVersion,
};

use super::reference;
use crate::objects::{ClientLimits, ClientSettings, NamespacedName, Others};
use crate::settings::Settings;

/// Open connections of one address; see the default of a configuration file.
const CONNECTIONS_MAX: usize = 65_536;

/// How long a TCP connection may be silent. Databases and message queues are silent for long periods.
const TCP_IDLE_TIMEOUT: Duration = Duration::from_secs(3600);

/// How the clients of one address and port are treated.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ClientPolicy {
    pub(crate) accept_proxy_protocol: bool,
    pub(crate) connections_max: usize,
    /// Limits on each client. All but that of connections are those of TrafficPolicies.
    pub(crate) client_limits: model::ClientLimits,
    pub(crate) trusted_proxies: Vec<IpNet>,
    pub(crate) forwarded: ForwardedHeaders,
    pub(crate) x_real_ip: bool,
    pub(crate) header_names: HeaderNames,
    pub(crate) request_id: Option<RequestId>,
    pub(crate) paths: PathRules,
    pub(crate) limits: ListenerLimits,
    /// Of connections that are not HTTP.
    pub(crate) tcp_idle_timeout: Duration,
    pub(crate) min_tls_version: TlsVersion,
    /// Clients may speak HTTP/2.
    pub(crate) http2: bool,
}

impl ClientPolicy {
    /// That of the arguments.
    pub(crate) fn of(settings: &Settings) -> Self {
        Self {
            accept_proxy_protocol: false,
            connections_max: CONNECTIONS_MAX,
            client_limits: model::ClientLimits::default(),
            trusted_proxies: settings.trusted_proxies.clone(),
            forwarded: ForwardedHeaders::XForwarded,
            x_real_ip: false,
            header_names: HeaderNames::Any,
            request_id: None,
            paths: PathRules::default(),
            limits: ListenerLimits::default(),
            tcp_idle_timeout: TCP_IDLE_TIMEOUT,
            min_tls_version: TlsVersion::V1_2,
            http2: true,
        }
    }

    /// Replaces what is set, and notes values that cannot be.
    pub(crate) fn apply(&mut self, set: &ClientSettings, wrong: &mut Wrong) {
        wrong.unknown(&set.others);
        let required = [("Required", true), ("Off", false)];
        wrong.word("proxyProtocol", set.proxy_protocol.as_deref(), &required, &mut self.accept_proxy_protocol);
        if let Some(networks) = &set.trusted_proxies {
            let all: Vec<Network> = wrong.list("trustedProxies", networks);
            self.trusted_proxies = all.into_iter().map(|network| network.0).collect();
        }
        let headers = [
            ("XForwarded", ForwardedHeaders::XForwarded),
            ("Forwarded", ForwardedHeaders::Rfc7239),
            ("Both", ForwardedHeaders::Both),
            ("IngressNginx", ForwardedHeaders::IngressNginx),
            ("Off", ForwardedHeaders::Off),
        ];
        wrong.word("forwardedHeaders", set.forwarded_headers.as_deref(), &headers, &mut self.forwarded);
        self.x_real_ip = set.x_real_ip.unwrap_or(self.x_real_ip);
        let names =
            [("Any", HeaderNames::Any), ("Underscores", HeaderNames::Underscores), ("Strict", HeaderNames::Strict)];
        wrong.word("headerNames", set.header_names.as_deref(), &names, &mut self.header_names);
        if let Some(set) = &set.request_id {
            wrong.within("requestId", |wrong| {
                wrong.unknown(&set.others);
                let before = self.request_id.unwrap_or_default();
                let words = [
                    ("Trusted", Some(KeepRequestId::Trusted)),
                    ("Always", Some(KeepRequestId::Always)),
                    ("Never", Some(KeepRequestId::Never)),
                    ("Off", None),
                ];
                let mut keep = Some(before.keep);
                wrong.word("keep", set.keep.as_deref(), &words, &mut keep);
                let in_response = set.respond.unwrap_or(before.in_response);
                self.request_id = keep.map(|keep| RequestId { keep, in_response });
            });
        }
        let versions = [("1.2", TlsVersion::V1_2), ("1.3", TlsVersion::V1_3)];
        wrong.word("minTlsVersion", set.min_tls_version.as_deref(), &versions, &mut self.min_tls_version);
        wrong.within("limits", |wrong| self.limit(&set.limits, wrong));
        wrong.within("timeouts", |wrong| {
            let (set, limits) = (&set.timeouts, &mut self.limits);
            wrong.unknown(&set.others);
            wrong.duration("header", set.header.as_deref(), &mut limits.header_timeout);
            wrong.duration("stall", set.stall.as_deref(), &mut limits.stall_timeout);
            wrong.duration("idle", set.idle.as_deref(), &mut limits.idle_timeout);
            wrong.duration("tunnelIdle", set.tunnel_idle.as_deref(), &mut limits.tunnel_idle_timeout);
            if set.idle.is_some() {
                self.tcp_idle_timeout = limits.idle_timeout;
            }
        });
        wrong.within("paths", |wrong| {
            let (set, paths) = (&set.paths, &mut self.paths);
            wrong.unknown(&set.others);
            paths.merge_slashes = set.merge_slashes.unwrap_or(paths.merge_slashes);
            paths.refuse_ambiguous = set.refuse_ambiguous.unwrap_or(paths.refuse_ambiguous);
            let forms = [("Received", ForwardPath::Received), ("Normal", ForwardPath::Normal)];
            wrong.word("forward", set.forward.as_deref(), &forms, &mut paths.forward);
        });
    }

    /// The ranges are those of a configuration file.
    fn limit(&mut self, set: &ClientLimits, wrong: &mut Wrong) {
        let limits = &mut self.limits;
        wrong.unknown(&set.others);
        wrong.number("connections", set.connections, 1..=10_000_000, &mut self.connections_max);
        wrong.number("headerCount", set.header_count, 1..=256, &mut limits.header_count_max);
        wrong.number(
            "streamsPerConnection",
            set.streams_per_connection,
            1..=10_000,
            &mut limits.streams_per_connection_max,
        );
        if let Some(connections) = set.connections_per_client {
            let mut most = 0;
            wrong.number("connectionsPerClient", Some(connections), 1..=10_000_000, &mut most);
            self.client_limits.connections_max = Some(most);
        }
        if let Some(requests) = set.requests_per_connection {
            let mut most = 0;
            wrong.number("requestsPerConnection", Some(requests), 1..=1_000_000_000, &mut most);
            limits.requests_per_connection_max = Some(most);
        }
        if let Some(bytes) = wrong.size("headerSize", set.header_size.as_deref()) {
            match usize::try_from(bytes).ok().filter(|bytes| (1 << 10..=1 << 20).contains(bytes)) {
                Some(bytes) => limits.header_bytes_max = bytes,
                None => wrong.add("headerSize", "must be from 1Ki to 1Mi"),
            }
        }
        limits.body_bytes_max = wrong.size("bodySize", set.body_size.as_deref()).or(limits.body_bytes_max);
    }
}

/// A network, or an address that stands for one.
struct Network(IpNet);

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let network = text.parse().or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
        network.map(Self).map_err(|_| "expected an address or a network, such as 10.0.0.0/8".to_owned())
    }
}

/// What is wrong with values, each with its place.
#[derive(Default)]
pub(crate) struct Wrong {
    /// The fields that lead to the present one, each with a dot after it.
    place: String,
    pub(crate) all: Vec<String>,
}

impl Wrong {
    pub(crate) fn add(&mut self, field: &str, why: &str) {
        self.all.push(format!("spec.{}{field}: {why}", self.place));
    }

    /// Looks at a field that has fields of its own.
    pub(crate) fn within(&mut self, field: &str, look: impl FnOnce(&mut Self)) {
        let length = self.place.len();
        self.place.push_str(field);
        self.place.push('.');
        look(self);
        self.place.truncate(length);
    }

    pub(crate) fn unknown(&mut self, others: &Others) {
        for field in others.keys() {
            self.add(field, "this version of Steelyard does not know this field");
        }
    }

    pub(crate) fn list<T: FromStr<Err = String>>(&mut self, field: &str, texts: &[String]) -> Vec<T> {
        let mut all = Vec::new();
        for text in texts {
            match text.parse() {
                Ok(value) => all.push(value),
                Err(why) => self.add(field, &format!("{text:?}: {why}")),
            }
        }
        all
    }

    fn word<T: Copy>(&mut self, field: &str, word: Option<&str>, words: &[(&str, T)], to: &mut T) {
        let Some(word) = word else { return };
        match words.iter().find(|(known, _)| *known == word) {
            Some((_, value)) => *to = *value,
            None => {
                let known: Vec<&str> = words.iter().map(|(known, _)| *known).collect();
                self.add(field, &format!("{word:?} must be one of {}", known.join(", ")));
            }
        }
    }

    fn number<T: TryFrom<i64>>(&mut self, field: &str, number: Option<i64>, range: RangeInclusive<i64>, to: &mut T) {
        let Some(number) = number else { return };
        match T::try_from(number).ok().filter(|_| range.contains(&number)) {
            Some(value) => *to = value,
            None => self.add(field, &format!("{number} must be from {} to {}", range.start(), range.end())),
        }
    }

    fn duration(&mut self, field: &str, text: Option<&str>, to: &mut Duration) {
        match text.map(reference::duration) {
            None => {}
            Some(Ok(Duration::ZERO)) => self.add(field, "must be longer than 0s"),
            Some(Ok(duration)) => *to = duration,
            Some(Err(why)) => self.add(field, &why),
        }
    }

    /// A size in bytes; `None` if it is not set or is wrong.
    fn size(&mut self, field: &str, text: Option<&str>) -> Option<u64> {
        let text = text?;
        let units = [("Ki", 10), ("Mi", 20), ("Gi", 30)];
        let found = units.iter().find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, shift)));
        // 32 bits, shifted by at most 30, fit into 64.
        let bytes = found.and_then(|(number, shift)| Some(u64::from(number.parse::<u32>().ok()?) << shift));
        if bytes.is_none() {
            self.add(field, &format!("{text:?} is not a size; write it like 64Ki, 10Mi or 1Gi"));
        }
        bytes
    }

    /// A namespace and a name.
    pub(crate) fn name(&mut self, field: &str, name: &NamespacedName) -> (String, String) {
        self.within(field, |wrong| wrong.unknown(&name.others));
        if name.namespace.is_empty() || name.name.is_empty() {
            self.add(field, "needs a namespace and a name");
        }
        (name.namespace.clone(), name.name.clone())
    }
}
