//! What happens beside a request: a copy of it, and its line in the access log.

use serde_json::json;

use super::{Reading, ServiceUrl, Verdict};

impl Reading<'_> {
    /// The Service that gets copies.
    pub(super) fn mirror(&mut self) -> Option<ServiceUrl> {
        let Some(target) = self.text("mirror-target").map(str::to_owned) else {
            self.idle(&["mirror-host", "mirror-request-body"], "without mirror-target, it has no effect");
            return None;
        };
        let found =
            self.service_url(&target).and_then(|service| match (service.path.as_str(), service.query.as_str()) {
                ("/", "") => Ok(service),
                _ => Err("the copy has the path of the request: write the URL without a path".to_owned()),
            });
        let mut service = found.map_err(|why| self.tell("mirror-target", Verdict::Refused, &why)).ok()?;
        match self.text("mirror-host").map(str::to_owned) {
            // In place of the host of the URL.
            Some(host) if ["$host", "$http_host", "$best_http_host"].contains(&host.as_str()) => service.host.clear(),
            Some(host) if host.contains('$') => {
                self.tell(
                    "mirror-host",
                    Verdict::Refused,
                    "a variable of nginx other than $host; the copy has the host of the URL",
                );
            }
            Some(host) => service.host = host,
            None => {}
        }
        Some(service)
    }

    /// Whether requests are in the access log.
    pub(super) fn log(&mut self) {
        if !self.bool("enable-access-log", true) {
            self.route.insert("accessLog".to_owned(), json!(false));
        }
    }
}
