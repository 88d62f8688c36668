//! Keys of the ConfigMap whose verdict depends on what they say.

use std::time::Duration;

use model::{ListenerLimits, TlsVersion};

use super::super::snippet;
use super::super::value;
use super::{Differs, Globals, NoEffect, Refused, Served, Verdict};

/// A week: the longest time that anybody means.
const SECONDS_MAX: u64 = 604_800;

impl Globals {
    /// Gives these keys their verdicts, and closes what must be closed because of them.
    pub(super) fn judge(&mut self) {
        self.judge_addresses();
        self.judge_tls_versions();
        self.judge_http_snippet(&[]);
        if self.bool("compute-full-forwarded-for", false) {
            let says = "endpoints get the address of the client alone in `X-Forwarded-For`, and what proxies have sent in \
                        `X-Original-Forwarded-For`";
            self.tell("compute-full-forwarded-for", Differs, says);
        }
        if self.text("keep-alive").and_then(value::integer) == Some(0) {
            self.tell("keep-alive", Refused, "connections are kept for 75 s: write 1 or more");
        }
        let buffers = self.text("large-client-header-buffers").map(|text| head_bytes(text).is_some());
        if buffers == Some(false) {
            let says = "the value cannot be read: write a number and a size, such as 4 8k";
            self.tell("large-client-header-buffers", Refused, says);
        }
    }

    fn tell(&mut self, name: &str, verdict: Verdict, says: &str) {
        if let Some(finding) = self.findings.iter_mut().find(|finding| finding.key == name) {
            (finding.verdict, finding.says) = (verdict, says.to_owned());
        }
    }

    /// Whether proxies are believed about the addresses of clients.
    fn believes_headers(&self) -> bool {
        let asks = self.bool("use-forwarded-headers", false) || self.bool("enable-real-ip", false);
        asks && !self.bool("use-proxy-protocol", false)
    }

    /// Addresses of clients are read from `X-Forwarded-For`. With another header, proxies may pass on whatever a client writes into that one.
    fn judge_addresses(&mut self) {
        const NAME: &str = "forwarded-for-header";
        let Some(finding) = self.findings.iter().find(|finding| finding.key == NAME) else { return };
        let header = finding.value.clone();
        if header.eq_ignore_ascii_case("x-forwarded-for") {
            self.tell(NAME, Served, "it is the header that is read");
        } else if self.believes_headers() {
            let says = "addresses of clients are read from `X-Forwarded-For`, so routes with lists of addresses are closed; let the proxy in \
                        front write that header, or remove the lists";
            self.tell(NAME, Refused, says);
            self.addresses_unknown = Some(format!("{NAME} of the ConfigMap is {header}, which is not read"));
        } else {
            let says = "it has no effect without use-forwarded-headers and enable-real-ip, or with use-proxy-protocol";
            self.tell(NAME, NoEffect, says);
        }
    }

    fn judge_tls_versions(&mut self) {
        const NAME: &str = "ssl-protocols";
        let Some(text) = self.text(NAME) else { return };
        let has = |version: &str| text.split_whitespace().any(|word| word.eq_ignore_ascii_case(version));
        let is_known = |word: &str| {
            ["SSLv2", "SSLv3", "TLSv1", "TLSv1.1", "TLSv1.2", "TLSv1.3"]
                .iter()
                .any(|known| word.eq_ignore_ascii_case(known))
        };
        let is_old = ["SSLv2", "SSLv3", "TLSv1", "TLSv1.1"].iter().any(|version| has(version));
        let (verdict, says) = match (has("TLSv1.2"), has("TLSv1.3")) {
            _ if !text.split_whitespace().all(is_known) => {
                (Refused, "the value cannot be read: write versions such as TLSv1.2 TLSv1.3")
            }
            (false, false) => (Refused, "TLS 1.2 and 1.3 are spoken, and nothing older"),
            _ if is_old => (Differs, "versions before TLS 1.2 are refused"),
            (true, false) => (Differs, "clients may speak TLS 1.3, too"),
            (true, true) => (Served, "TLS 1.2 and 1.3"),
            (false, true) => (Served, "TLS 1.3 alone, unless `minTlsVersion` of GatewayParameters says otherwise"),
        };
        self.tell(NAME, verdict, says);
    }

    /// The same, where ingress-nginx serves Ingresses at these ports because of its flags.
    #[must_use]
    pub fn with_ports(mut self, ports: &[u16]) -> Self {
        self.judge_http_snippet(ports);
        self
    }

    fn judge_http_snippet(&mut self, ports: &[u16]) {
        const NAME: &str = "http-snippet";
        if self.http_snippet.as_deref().is_some_and(|text| snippet::http_protects(text, ports)) {
            let what = "it may keep somebody out";
            self.closed.get_or_insert(format!("{NAME} of the ConfigMap is refused, and {what}"));
            self.tell(NAME, Refused, &format!("{}; all routes are closed, because {what}", super::SNIPPET));
        }
    }

    /// The oldest version of TLS that clients may speak; `None` if it does not say.
    pub fn min_tls_version(&self) -> Option<TlsVersion> {
        let text = self.text("ssl-protocols")?;
        let has = |version: &str| text.split_whitespace().any(|word| word.eq_ignore_ascii_case(version));
        (has("TLSv1.3") && !has("TLSv1.2")).then_some(TlsVersion::V1_3)
    }

    /// Puts the limits on what clients send, where it has some.
    pub fn limit(&self, limits: &mut ListenerLimits) {
        let number = |name: &str| self.text(name).and_then(value::integer).filter(|number| *number > 0);
        let seconds = |name: &str| number(name).map(|seconds| Duration::from_secs(seconds.min(SECONDS_MAX)));
        limits.header_timeout = seconds("client-header-timeout").unwrap_or(limits.header_timeout);
        limits.stall_timeout = seconds("client-body-timeout").unwrap_or(limits.stall_timeout);
        limits.idle_timeout = seconds("keep-alive").unwrap_or(limits.idle_timeout);
        let streams =
            number("http2-max-concurrent-streams").and_then(|streams| u32::try_from(streams.min(10_000)).ok());
        limits.streams_per_connection_max = streams.unwrap_or(limits.streams_per_connection_max);
        let head = self.text("large-client-header-buffers").and_then(head_bytes);
        limits.header_bytes_max = head.unwrap_or(limits.header_bytes_max);
    }
}

/// The bytes of all buffers together, within what a listener may have.
fn head_bytes(text: &str) -> Option<usize> {
    let (number, size) = text.split_once(' ')?;
    let bytes = value::integer(number)?.saturating_mul(value::size(size.trim())??);
    usize::try_from(bytes.clamp(1 << 10, 1 << 20)).ok().filter(|_| bytes > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_by_values() {
        let check = |data: &[(&str, &str)], verdict: Verdict| {
            let globals = Globals::of(data.iter().copied());
            let found = globals.findings.iter().find(|finding| finding.key == data[0].0).unwrap();
            assert_eq!(found.verdict, verdict, "{data:?}: {}", found.says);
        };
        check(&[("ssl-protocols", "TLSv1.2 TLSv1.3")], Served);
        check(&[("ssl-protocols", "tlsv1.3")], Served);
        check(&[("ssl-protocols", "TLSv1.2")], Differs);
        check(&[("ssl-protocols", "TLSv1 TLSv1.1 TLSv1.2")], Differs);
        check(&[("ssl-protocols", "TLSv1.1")], Refused);
        check(&[("ssl-protocols", "best")], Refused);
        check(&[("forwarded-for-header", "x-forwarded-for"), ("use-forwarded-headers", "true")], Served);
        check(&[("forwarded-for-header", "CF-Connecting-IP")], NoEffect);
        check(&[("forwarded-for-header", "CF-Connecting-IP"), ("enable-real-ip", "true")], Refused);
        check(&[("forwarded-for-header", "a b"), ("enable-real-ip", "true")], Refused);
        check(
            &[("forwarded-for-header", "CF-Connecting-IP"), ("enable-real-ip", "true"), ("use-proxy-protocol", "true")],
            NoEffect,
        );
        check(&[("compute-full-forwarded-for", "true")], Differs);
        check(&[("compute-full-forwarded-for", "false")], NoEffect);
        check(&[("keep-alive", "30")], Served);
        check(&[("keep-alive", "0")], Refused);
        check(&[("large-client-header-buffers", "4 16k")], Differs);
        check(&[("large-client-header-buffers", "16k")], Refused);
        check(&[("use-http2", "false")], Served);
        check(&[("log-format-upstream", "$status")], Refused);
    }

    #[test]
    fn an_http_snippet_that_may_keep_somebody_out_closes_everything() {
        let check = |text: &str, closes: bool| {
            let globals = Globals::of([("http-snippet", text)]);
            assert_eq!(globals.closed.is_some(), closes, "{text}");
            assert_eq!(globals.findings[0].verdict, Refused, "{text}");
        };
        check("deny 192.0.2.0/24;", true);
        check("auth_basic secret;", true);
        check("include /etc/nginx/deny.conf;", true);
        check("access_by_lua_block { return }", true);
        check("server { server_name a.example; deny all; }", true);
        check("server { listen 443 ssl; deny all; }", true);
        check("gzip on; map $http_user_agent $bot { default 0; ~*bot 1; }", false);
        check("limit_req_zone $binary_remote_addr zone=a:1m rate=1r/s;", false);
        check("limit_req zone=a;", true);
        check("server { listen 2443; return 308 https://$host$request_uri; }", false);
    }

    #[test]
    fn limits_on_what_clients_send() {
        let globals = Globals::of([
            ("client-header-timeout", "7"),
            ("client-body-timeout", "8"),
            ("keep-alive", "9"),
            ("http2-max-concurrent-streams", "64"),
            ("large-client-header-buffers", "4 16k"),
        ]);
        let mut limits = ListenerLimits::default();
        globals.limit(&mut limits);
        let seconds = [limits.header_timeout, limits.stall_timeout, limits.idle_timeout].map(|time| time.as_secs());
        assert_eq!(seconds, [7, 8, 9]);
        assert_eq!((limits.streams_per_connection_max, limits.header_bytes_max), (64, 64 << 10));
        assert_eq!(head_bytes("99999999999999999 8g"), Some(1 << 20));
        assert_eq!(head_bytes("4 8b"), None);
    }
}
