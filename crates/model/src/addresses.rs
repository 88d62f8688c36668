//! Which clients may use a listener or a route, by their addresses.

use ipnet::IpNet;

/// Networks that are allowed and refused. The longest network that has an address decides; of two equal ones, `deny`. An address that is in
/// none is refused if any network is allowed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressRules {
    /// Without host bits.
    pub allow: Box<[IpNet]>,
    /// Without host bits.
    pub deny: Box<[IpNet]>,
}

impl AddressRules {
    /// The most networks of both kinds. Their table takes up to 34 bytes for each, or 10 if they are of IPv4.
    pub const NETWORKS_MAX: usize = 16_384;

    /// Whether every client is allowed.
    pub fn is_empty(&self) -> bool {
        self.allow.is_empty() && self.deny.is_empty()
    }
}
