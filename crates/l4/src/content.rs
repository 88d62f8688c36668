//! What the maps hold, or shall hold: the data that `plan` makes and `sync` writes.

use std::collections::BTreeMap;

use crate::abi::{lb_address, lb_address_key, lb_endpoint, lb_pool, lb_source_key, lb_vip, lb_vip_key};

/// Keys and values by map. Of arrays only what is in use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Content {
    /// By index; those that are on their way out included.
    pub(crate) endpoints: BTreeMap<u32, lb_endpoint>,
    /// By vip.
    pub(crate) pools: BTreeMap<u32, lb_pool>,
    /// Allow and deny lists.
    pub(crate) sources: BTreeMap<lb_source_key, u32>,
    /// By vip: the endpoint of each slot.
    pub(crate) tables: BTreeMap<u32, Vec<u32>>,
    /// By index.
    pub(crate) vips: BTreeMap<u32, lb_vip>,
    /// Index of the vip on one port.
    pub(crate) vip_ids: BTreeMap<lb_vip_key, u32>,
    /// Ranges of ports, and who answers to echo.
    pub(crate) addresses: BTreeMap<lb_address_key, lb_address>,
}
