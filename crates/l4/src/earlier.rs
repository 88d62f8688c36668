//! Moves the connections of an earlier process whose tables have another layout into ours, so that an upgrade ends none of them.
//!
//! Its maps cannot be taken over: their sizes, or maps that we do not move, may differ. Its programs keep working until ours know each of its
//! connections. Those name vips and endpoints by their indexes, so these go first, when the plane is opened:
//!
//! 1. [`Earlier::give_identities`]: vips and endpoints keep their indexes.
//! 2. [`Earlier::give_flows`], before our programs are attached behind the earlier ones: all connections, clients with affinity, and tuples that
//!    rest.
//! 3. [`Earlier::give_sockets`]: the sockets of this host's processes.
//! 4. [`Earlier::end_at_interfaces`]: the earlier programs are made to take no new connections, which ours then take behind them. What they have
//!    added since the first pass is complete now, and is copied. Only then are they detached.
//!
//! Packets that arrive between the first and the last step are handled by one of the two. Without the halt in step 4, a connection that began
//! between the last copy and the end of the earlier programs was lost: the first reply left untranslated, and the client reset it. In upgrades of
//! two nodes under 400 new connections a second, one in five lost a request that way. Counters and rates are not moved: they begin at zero.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use libbpf_rs::{ErrorKind, MapCore, MapFlags, MapHandle, MapType};

use rustix::thread::{MembarrierCommand, membarrier};

use crate::abi::*;
use crate::load::{DATAGRAMS, SOCKETS};
use crate::pins::{Pins, remove_folder, remove_interface_links};
use crate::sync::{Maps, entries, failed, get, set};
use crate::{Refusal, host};

/// How long before a first pass an entry may have been made that this pass did not see, in seconds: the clock of the flows is coarse.
const OVERLAP_S: u32 = 2;

/// The tables of an earlier process.
#[derive(Debug)]
pub(crate) struct Earlier {
    folder: PathBuf,
    flows: MapHandle,
    /// Our programs have never run with these tables.
    is_fresh: bool,
    /// When the first pass over the connections began, in the time of the flows. `None` before it.
    first_s: Option<u32>,
    /// Connections that were moved.
    connections: u32,
    /// Entries for which our table had no room.
    lost: u32,
}

impl Earlier {
    /// Finds them, if there are any whose entries mean the same as ours.
    /// `is_fresh` says that our tables are new.
    pub(crate) fn find(pins: &Pins, is_fresh: bool) -> Option<Self> {
        let version = |folder: &Path| folder.file_name()?.to_str()?.strip_prefix('v')?.parse::<u32>().ok();
        let is_ours = |version: &u32| (LB_FLOWS_SINCE..LB_LAYOUT_VERSION).contains(version);
        let known = |folder: PathBuf| Some((version(&folder).filter(is_ours)?, folder));
        let (_, folder) = pins.other_versions().into_iter().filter_map(known).max()?;
        let flows = MapHandle::from_pinned_path(folder.join("lb_flows")).ok()?;
        Some(Self { folder, flows, is_fresh, first_s: None, connections: 0, lost: 0 })
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Copies the vips and endpoints with their indexes, unless a process has ended in the middle of all this: then our indexes are in use.
    pub(crate) fn give_identities(&self, maps: &Maps) -> Result<(), Refusal> {
        if !self.is_fresh {
            return Ok(());
        }
        self.copy::<u32, lb_endpoint>("lb_endpoints", &maps.endpoints)?;
        self.copy::<u32, lb_vip>("lb_vips", &maps.vips)?;
        self.copy::<lb_vip_key, u32>("lb_vip_ids", &maps.vip_ids)
    }

    /// Copies all connections, once, before our programs are attached.
    pub(crate) fn give_flows(&mut self, maps: &Maps) -> Result<(), Refusal> {
        self.first_s = Some(host::now_s());
        // A second call follows a failure to attach: our programs may run on some interfaces.
        let counts = std::mem::replace(&mut self.is_fresh, false);
        self.give_flows_since(maps, 0, counts)?;
        self.copy::<lb_client_key, lb_affinity>("lb_affinity", &maps.affinity)?;
        self.copy::<u32, u32>("lb_rests", &maps.rests)
    }

    /// Copies the connections that our table does not have and that are not older than `since_s`. `counts`: our programs do not run yet, so the
    /// connections can be counted at their endpoints.
    fn give_flows_since(&mut self, maps: &Maps, since_s: u32, counts: bool) -> Result<(), Refusal> {
        let mut counted = BTreeMap::<u32, u32>::new();
        for entry in entries::<lb_flow_key, lb_flow>(&self.flows) {
            let (key, mut flow) = entry?;
            if (flow.born_s.wrapping_sub(since_s) as i32) < 0 {
                continue;
            }
            let is_counted = flow.state & LB_COUNTED != 0;
            if !counts {
                // Our programs change the count, so it can no longer be written from here.
                flow.state &= !LB_COUNTED;
            }
            match maps.flows.update(bytes_of(&key), bytes_of(&flow), MapFlags::NO_EXIST) {
                Ok(()) => {
                    self.connections += u32::from(flow.flags & LB_FLOW_REPLY as u8 == 0);
                    if counts && is_counted {
                        *counted.entry(flow.endpoint).or_default() += 1;
                    }
                }
                Err(error) if error.kind() == ErrorKind::AlreadyExists => replace_older(maps, &key, flow)?,
                // It is full: `flows_max` is smaller than it was.
                Err(error) if is_full(&error) => self.lost += 1,
                Err(error) => return Err(failed("write to", &maps.flows, error)),
            }
        }
        counted.iter().try_for_each(|(endpoint, count)| set(&maps.active, endpoint, count))
    }

    /// Copies what the earlier programs have added since the first pass, and detaches them from the interfaces. Ours are attached behind them, and
    /// at the sockets.
    pub(crate) fn end_at_interfaces(&mut self, maps: &Maps) -> Result<(), Refusal> {
        let Some(first_s) = self.first_s else { return Ok(()) };
        self.take_no_more()?;
        self.give_flows_since(maps, first_s.saturating_sub(OVERLAP_S), false)?;
        remove_interface_links(&self.folder);
        let Self { folder, connections, lost, .. } = self;
        let folder = folder.display();
        if *lost > 0 {
            tracing::warn!(
                lost,
                "the new table of connections is smaller than the earlier one: some connections end. Raise `flows_max`"
            );
        }
        tracing::info!(%folder, connections, "took over the connections of tables with another layout");
        Ok(())
    }

    /// Makes the earlier programs leave new connections to ours: to them, no address is that of a vip any more. Packets of connections that they
    /// know are theirs as before, because they look for these first.
    pub(crate) fn take_no_more(&self) -> Result<(), Refusal> {
        // Addresses first: a packet to an address without a vip would be dropped.
        self.clear("lb_addresses")?;
        self.clear("lb_vip_ids")?;
        // Waits for the programs that have already found a vip. A kernel with `nohz_full` has no such call; there they end long before a copy.
        _ = membarrier(MembarrierCommand::Global);
        Ok(())
    }

    fn clear(&self, name: &str) -> Result<(), Refusal> {
        let doing = || format!("clear the earlier map {name}");
        let map = match MapHandle::from_pinned_path(self.folder.join(name)) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            opened => opened.map_err(|error| Refusal::kernel(doing(), error))?,
        };
        for key in map.keys().collect::<Vec<_>>() {
            match map.delete(&key) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(Refusal::kernel(doing(), error)),
                _ => {}
            }
        }
        Ok(())
    }

    /// Copies what is known of the sockets of this host's processes. `sockets` and `datagrams` are our tables, which must be new.
    pub(crate) fn give_sockets(&self, maps: &Maps, sockets: &MapHandle, datagrams: &MapHandle) -> Result<(), Refusal> {
        self.copy::<u64, lb_socket>(SOCKETS, sockets)?;
        self.copy::<lb_datagram_key, lb_datagram>(DATAGRAMS, datagrams)?;
        self.copy::<u32, lb_uses>("lb_uses", &maps.uses)
    }

    /// Removes the tables, and the programs at the sockets.
    pub(crate) fn remove(&self) -> Result<(), Refusal> {
        let doing = || format!("remove {}", self.folder.display());
        remove_folder(&self.folder).map_err(|error| Refusal::kernel(doing(), error))
    }

    /// Copies the entries that our map does not have. An array has every index: there, zeros stand for no entry. A map that the earlier process
    /// did not have is no error, nor is a full one of ours.
    fn copy<K: Layout, V: Layout + PartialEq>(&self, name: &str, to: &MapHandle) -> Result<(), Refusal> {
        let from = match MapHandle::from_pinned_path(self.folder.join(name)) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            opened => opened.map_err(|error| Refusal::kernel(format!("open the earlier map {name}"), error))?,
        };
        let is_array = from.map_type() == MapType::Array;
        let is_entry = |value: &V| !is_array || *value != V::default();
        for entry in entries::<K, V>(&from) {
            let (key, value) = entry?;
            if !is_entry(&value) || get::<K, V>(to, &key)?.as_ref().is_some_and(is_entry) {
                continue;
            }
            match to.update(bytes_of(&key), bytes_of(&value), MapFlags::ANY) {
                Err(error) if !is_full(&error) => return Err(failed("write to", to, error)),
                _ => {}
            }
        }
        Ok(())
    }
}

/// A client may have used its port again since the first pass: then our entry is that of a connection that is over.
fn replace_older(maps: &Maps, key: &lb_flow_key, mut flow: lb_flow) -> Result<(), Refusal> {
    let Some(ours) = get::<lb_flow_key, lb_flow>(&maps.flows, key)? else { return Ok(()) };
    if (flow.born_s.wrapping_sub(ours.born_s) as i32) <= 0 {
        return Ok(());
    }
    // What was counted at an endpoint is still counted there.
    if ours.endpoint == flow.endpoint {
        flow.state |= ours.state & LB_COUNTED;
    }
    set(&maps.flows, key, &flow)
}

/// E2BIG: the map has no room for another entry, or its array no such index.
fn is_full(error: &libbpf_rs::Error) -> bool {
    let found = std::error::Error::source(error).and_then(|source| source.downcast_ref::<io::Error>());
    found.and_then(io::Error::raw_os_error) == Some(libc::E2BIG)
}
