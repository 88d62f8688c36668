//! Networks of clients that are allowed and refused.

use std::collections::HashMap;

use ipnet::IpNet;
use model::AddressRules;

use crate::diagnostic::{Location, Report, Wrong};
use crate::read::{Located, OneOrMany};
use crate::text::ClientNetwork;

/// Where each network was listed first, and by which key.
pub type Seen = HashMap<IpNet, (&'static str, Location)>;

/// The networks of a key. Each may be listed once.
pub fn listed(
    key: &'static str,
    raw: &Located<OneOrMany<ClientNetwork>>,
    seen: &mut Seen,
    report: &mut Report,
) -> Vec<IpNet> {
    for Located { location, value: ClientNetwork(network) } in &raw.value.0 {
        if let Some((other, first)) = seen.insert(*network, (key, *location)) {
            let wrong = match other == key {
                true => Wrong::new(format!("{network} is twice in `{key}`")),
                false => Wrong::new(format!("{network} is in `{other}` and in `{key}`")),
            };
            report.add(*location, wrong.hint(format!("the first is at line {}; keep one of them", first.line)));
        }
    }
    raw.value.0.iter().map(|network| network.value.0).collect()
}

/// Lowers `allow` and `deny` of a listener or a route.
pub fn rules(
    allow: &Option<Located<OneOrMany<ClientNetwork>>>,
    deny: &Option<Located<OneOrMany<ClientNetwork>>>,
    report: &mut Report,
) -> AddressRules {
    let mut seen = Seen::new();
    let mut networks = |key, raw: &Option<_>| -> Box<[IpNet]> {
        raw.as_ref().map_or_else(Box::default, |raw| listed(key, raw, &mut seen, report).into())
    };
    let rules = AddressRules { allow: networks("allow", allow), deny: networks("deny", deny) };
    let count = rules.allow.len() + rules.deny.len();
    if let Some(raw) = allow.as_ref().or(deny.as_ref())
        && count > AddressRules::NETWORKS_MAX
    {
        let message = format!("`allow` and `deny` have {count} networks; the limit is {}", AddressRules::NETWORKS_MAX);
        report.add(raw.location, Wrong::new(message).hint("merge neighbouring networks into larger ones"));
    }
    rules
}
