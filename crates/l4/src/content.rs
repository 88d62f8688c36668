//! The present or wanted content of the maps: the data that `plan` makes and `sync` writes.

use std::collections::BTreeMap;

use crate::Refusal;
use crate::abi::*;

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

impl Content {
    /// Whether the maps have room for this content as long as they still have the other one: additions are written first, so that no packet
    /// finds half of a change.
    ///
    /// # Errors
    /// If there is no room.
    pub(crate) fn fits_beside(&self, held: &Self) -> Result<(), Refusal> {
        fits("networks in `allow` and `deny`", &self.sources, &held.sources, LB_SOURCES_MAX)?;
        fits("addresses of vips", &self.addresses, &held.addresses, LB_VIPS_MAX)?;
        fits("addresses of vips with their ports", &self.vip_ids, &held.vip_ids, LB_VIP_KEYS_MAX)
    }
}

fn fits<K: Ord, V>(
    what: &'static str,
    wanted: &BTreeMap<K, V>,
    held: &BTreeMap<K, V>,
    max: u32,
) -> Result<(), Refusal> {
    let have = wanted.len();
    if have > max as usize {
        return Err(Refusal::TooMany { what, have, max });
    }
    let going = held.keys().filter(|key| !wanted.contains_key(key)).count();
    if have + going > max as usize { Err(Refusal::TooManyAtOnce { what, have, going, max }) } else { Ok(()) }
}
