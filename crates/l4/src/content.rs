//! The present or wanted content of the maps: the data that `plan` makes and `sync` writes.

use std::collections::BTreeMap;

use crate::abi::{lb_address, lb_address_key, lb_endpoint, lb_pool, lb_source_key, lb_vip, lb_vip_key};

/// Keys and values by map. Of arrays it has only the entries in use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Content {
    /// By index, including endpoints that are leaving.
    pub(crate) endpoints: BTreeMap<u32, lb_endpoint>,
    /// By vip.
    pub(crate) pools: BTreeMap<u32, lb_pool>,
    /// Allow and deny lists.
    pub(crate) sources: BTreeMap<lb_source_key, u32>,
    /// The endpoint of each slot, by vip.
    pub(crate) tables: BTreeMap<u32, Vec<u32>>,
    /// By index.
    pub(crate) vips: BTreeMap<u32, lb_vip>,
    /// The index of the vip on one port.
    pub(crate) vip_ids: BTreeMap<lb_vip_key, u32>,
    /// Ranges of ports, and whether to answer echo requests.
    pub(crate) addresses: BTreeMap<lb_address_key, lb_address>,
}
