//! What annotations say of connections to endpoints and is done otherwise here.

use super::super::value;
use super::{Reading, Verdict};

impl Reading<'_> {
    /// Names the differences of those whose values ask for something else.
    pub(super) fn times_of_endpoints(&mut self) {
        let seconds = |this: &Self, name: &str| this.either(name).and_then(value::integer).filter(|time| *time > 0);
        let (read, send) = (seconds(self, "proxy-read-timeout").unwrap_or(60), seconds(self, "proxy-send-timeout"));
        if send.unwrap_or(60) == read {
            let says = "an endpoint that does not read has the time of proxy-read-timeout, which is the same";
            self.tell("proxy-send-timeout", Verdict::NoEffect, says);
        }
        if self.text("proxy-http-version") == Some("1.0") {
            self.tell("proxy-http-version", Verdict::Differs, "endpoints get HTTP/1.1, also with 1.0");
        }
        if self.text("connection-proxy-header").is_some_and(|words| !words.eq_ignore_ascii_case("keep-alive")) {
            let says = "connections to endpoints are kept, whatever it says, and upgrades pass";
            self.tell("connection-proxy-header", Verdict::Differs, says);
        }
    }
}
