//! Moves the connections of an earlier process whose tables have another layout into ours, so that an upgrade ends none of them.
//!
//! Its maps cannot be taken over: their sizes, or maps that we do not move, may differ. Its programs keep working until ours are attached, and
//! then ours must know each of its connections. Those name vips and endpoints by their indexes, so these go first, when the plane is opened:
//!
//! 1. [`Earlier::give_identities`]: vips and endpoints keep their indexes.
//! 2. [`Earlier::give_flows`], before our programs are attached: all connections, clients with affinity, and tuples that rest.
//! 3. The same again when the earlier programs are detached, for what they have added in the meantime.
//! 4. [`Earlier::give_sockets`]: the sockets of this host's processes.
//!
//! Packets that arrive between the first and the last step are handled by one of the two. Counters and rates are not moved: they begin at zero.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use libbpf_rs::{ErrorKind, MapCore, MapFlags, MapHandle, MapType};

use crate::Refusal;
use crate::abi::*;
use crate::load::{DATAGRAMS, SOCKETS};
use crate::pins::{Pins, remove_folder, remove_interface_links};
use crate::sync::{Maps, entries, failed, get, set};

/// How long before a first pass an entry may have been made that this pass did not see, in seconds: the clock of the flows is coarse.
const OVERLAP_S: u32 = 2;

/// The tables of an earlier process.
#[derive(Debug)]
pub(crate) struct Earlier {
    folder: PathBuf,
    flows: MapHandle,
    /// Our programs have never run with these tables.
    is_fresh: bool,
    /// The connections have been moved.
    is_done: bool,
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
        Some(Self { folder, flows, is_fresh, is_done: false, connections: 0, lost: 0 })
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
        if self.is_done {
            return Ok(());
        }
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
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                // It is full: `flows_max` is smaller than it was.
                Err(error) if is_full(&error) => self.lost += 1,
                Err(error) => return Err(failed("write to", &maps.flows, error)),
            }
        }
        counted.iter().try_for_each(|(endpoint, count)| set(&maps.active, endpoint, count))
    }

    /// Detaches the earlier programs from the interfaces, and copies what they have added since `first_s`, the time of the first pass.
    pub(crate) fn end_at_interfaces(&mut self, maps: &Maps, first_s: u32) -> Result<(), Refusal> {
        if std::mem::replace(&mut self.is_done, true) {
            return Ok(());
        }
        let since_s = first_s.saturating_sub(OVERLAP_S);
        // Ours run behind them: they must know these connections when they are the only ones.
        self.give_flows_since(maps, since_s, false)?;
        remove_interface_links(&self.folder);
        self.give_flows_since(maps, since_s, false)?;
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

/// E2BIG: the map has no room for another entry, or its array no such index.
fn is_full(error: &libbpf_rs::Error) -> bool {
    let found = std::error::Error::source(error).and_then(|source| source.downcast_ref::<io::Error>());
    found.and_then(io::Error::raw_os_error) == Some(libc::E2BIG)
}
