//! Who clients are, if the ConfigMap leaves that open.

use super::{Reading, Verdict};

impl Reading<'_> {
    /// Closes routes that are for some addresses alone, if nobody knows the addresses of clients.
    pub(super) fn known_addresses(&mut self) {
        let Some(why) = &self.globals.addresses_unknown else { return };
        if !["allow", "deny"].iter().any(|list| self.route.contains_key(*list)) {
            return;
        }
        let why = format!("{why}, so nobody knows the addresses of clients");
        for name in ["allowlist-source-range", "whitelist-source-range", "denylist-source-range"] {
            self.tell(name, Verdict::Refused, &why);
        }
        self.close(&why);
    }
}
