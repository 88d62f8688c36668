//! Writes changes to the maps in an order in which no packet finds half of a change.
//!
//! Additions go from the endpoints up to the addresses, by which packets find everything else. Removals go the other way.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::os::fd::AsRawFd;

use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType, Object, libbpf_sys};

use crate::Refusal;
use crate::abi::*;
use crate::content::Content;
use crate::load::map;
use crate::pages::Pages;

/// How many tables are replaced by one call. The kernel waits after each call until no program uses the old ones: some 17 ms, however many
/// they are. 2,000 vips took 34 s to add one by one, and as long to remove; in batches they take 0.5 and 0.2 s.
const TABLES_AT_ONCE: usize = 256;

/// A handle on each map that user space uses.
#[derive(Debug)]
pub(crate) struct Maps {
    pub(crate) flows: MapHandle,
    pub(crate) active: MapHandle,
    pub(crate) counters: MapHandle,
    pub(crate) uses: MapHandle,
    pub(crate) drops: MapHandle,
    pub(crate) shared: MapHandle,
    pub(crate) traces: MapHandle,
    pub(crate) gc_keys: MapHandle,
    pub(crate) affinity: MapHandle,
    pub(crate) rests: MapHandle,
    interfaces: MapHandle,
    pub(crate) endpoints: MapHandle,
    pools: MapHandle,
    pub(crate) sources: MapHandle,
    tables: MapHandle,
    pub(crate) vips: MapHandle,
    pub(crate) vip_ids: MapHandle,
    addresses: MapHandle,
}

impl Maps {
    pub(crate) fn new(object: &Object) -> Result<Self, Refusal> {
        Ok(Self {
            flows: map(object, "lb_flows")?,
            active: map(object, "lb_active")?,
            counters: map(object, "lb_counters")?,
            uses: map(object, "lb_uses")?,
            drops: map(object, "lb_drops")?,
            shared: map(object, "lb_shared")?,
            traces: map(object, "lb_traces")?,
            gc_keys: map(object, "lb_gc_keys")?,
            affinity: map(object, "lb_affinity")?,
            rests: map(object, "lb_rests")?,
            interfaces: map(object, "lb_interfaces")?,
            endpoints: map(object, "lb_endpoints")?,
            pools: map(object, "lb_pools")?,
            sources: map(object, "lb_sources")?,
            tables: map(object, "lb_tables")?,
            vips: map(object, "lb_vips")?,
            vip_ids: map(object, "lb_vip_ids")?,
            addresses: map(object, "lb_addresses")?,
        })
    }

    /// Reads what an earlier process has left. Tables are not read, because they are rebuilt at once.
    pub(crate) fn recover(&self) -> Result<Content, Refusal> {
        let mut vips: BTreeMap<u32, lb_vip> = pairs(&self.vips)?;
        vips.retain(|_, vip| vip.mode != 0);
        let mut endpoints: BTreeMap<u32, lb_endpoint> = pairs(&self.endpoints)?;
        endpoints.retain(|_, endpoint| endpoint.state != LB_ENDPOINT_FREE as u8);
        let mut pools: BTreeMap<u32, lb_pool> = pairs(&self.pools)?;
        pools.retain(|_, pool| *pool != lb_pool::default());
        let tables = vips.keys().map(|vip| (*vip, Vec::new())).collect();
        Ok(Content {
            endpoints,
            pools,
            sources: each(&self.sources)?,
            tables,
            vips,
            vip_ids: each(&self.vip_ids)?,
            addresses: each(&self.addresses)?,
        })
    }

    /// Writes the difference between the present and the wanted content, and records each step in `held`, so that a failed write can be
    /// continued.
    pub(crate) fn write(&self, held: &mut Content, wanted: &Content) -> Result<(), Refusal> {
        put(&self.endpoints, &mut held.endpoints, &wanted.endpoints)?;
        put(&self.pools, &mut held.pools, &wanted.pools)?;
        put(&self.sources, &mut held.sources, &wanted.sources)?;
        self.put_tables(&mut held.tables, &wanted.tables)?;
        put(&self.vips, &mut held.vips, &wanted.vips)?;
        put(&self.vip_ids, &mut held.vip_ids, &wanted.vip_ids)?;
        put(&self.addresses, &mut held.addresses, &wanted.addresses)?;

        delete(&self.addresses, &mut held.addresses, &wanted.addresses)?;
        delete(&self.vip_ids, &mut held.vip_ids, &wanted.vip_ids)?;
        clear(&self.vips, &mut held.vips, &wanted.vips)?;
        self.delete_tables(&mut held.tables, &wanted.tables)?;
        delete(&self.sources, &mut held.sources, &wanted.sources)?;
        clear(&self.pools, &mut held.pools, &wanted.pools)?;
        clear(&self.endpoints, &mut held.endpoints, &wanted.endpoints)
    }

    /// Undoes a [`Maps::write`] that failed. `before` is what was held before it.
    pub(crate) fn write_back(&self, held: &mut Content, before: &Content) -> Result<(), Refusal> {
        let mut tables = before.tables.clone();
        for (vip, table) in &mut tables {
            // The tables of an earlier process were never read: what has replaced one, if anything has, stays.
            if table.is_empty()
                && let Some(now) = held.tables.get(vip)
            {
                table.clone_from(now);
            }
        }
        self.write(held, &Content { tables, ..before.clone() })
    }

    /// Writes changes of the addresses. None may be added or removed.
    pub(crate) fn write_addresses(&self, held: &mut Content, wanted: &Content) -> Result<(), Refusal> {
        put(&self.addresses, &mut held.addresses, &wanted.addresses)
    }

    /// Removes an endpoint that is no longer used.
    pub(crate) fn free_endpoint(&self, held: &mut Content, id: u32) -> Result<(), Refusal> {
        set(&self.endpoints, &id, &lb_endpoint::default())?;
        held.endpoints.remove(&id);
        Ok(())
    }

    /// Writes changes of the interfaces.
    pub(crate) fn write_interfaces(
        &self,
        held: &mut BTreeMap<u32, lb_interface>,
        wanted: &BTreeMap<u32, lb_interface>,
    ) -> Result<(), Refusal> {
        put(&self.interfaces, held, wanted)?;
        delete(&self.interfaces, held, wanted)
    }

    /// A table changes as a whole: a new inner map replaces the old one.
    fn put_tables(&self, held: &mut BTreeMap<u32, Vec<u32>>, wanted: &BTreeMap<u32, Vec<u32>>) -> Result<(), Refusal> {
        let changed: Vec<_> = wanted.iter().filter(|(vip, table)| held.get(vip) != Some(table)).collect();
        for some in changed.chunks(TABLES_AT_ONCE) {
            let inner = some.iter().map(|(_, table)| inner(table)).collect::<libbpf_rs::Result<Vec<_>>>();
            let inner = inner.map_err(|error| Refusal::kernel("make a table of endpoints", error))?;
            let keys: Vec<u8> = some.iter().flat_map(|(vip, _)| vip.to_ne_bytes()).collect();
            let values: Vec<u8> = inner.iter().flat_map(|inner| (inner.fd as u32).to_ne_bytes()).collect();
            let at_once =
                self.tables.update_batch(&keys, &values, some.len() as u32, MapFlags::ANY, MapFlags::ANY).is_ok();
            if !at_once {
                // Such maps have no batches before Linux 5.19.
                for (key, value) in keys.chunks(4).zip(values.chunks(4)) {
                    let written = self.tables.update(key, value, MapFlags::ANY);
                    written.map_err(|error| Refusal::kernel("replace a table of endpoints", error))?;
                }
            }
            held.extend(some.iter().map(|(vip, table)| (**vip, (*table).clone())));
        }
        Ok(())
    }

    /// Removes the tables of vips that are gone.
    fn delete_tables(
        &self,
        held: &mut BTreeMap<u32, Vec<u32>>,
        wanted: &BTreeMap<u32, Vec<u32>>,
    ) -> Result<(), Refusal> {
        let gone: Vec<u32> = held.keys().filter(|vip| !wanted.contains_key(vip)).copied().collect();
        if gone.is_empty() {
            return Ok(());
        }
        // Such maps have no batch that deletes, so a table without any endpoint takes the place of each.
        let nothing = inner(&[u32::MAX]).map_err(|error| Refusal::kernel("make a table without endpoints", error))?;
        for some in gone.chunks(TABLES_AT_ONCE) {
            let keys: Vec<u8> = some.iter().flat_map(|vip| vip.to_ne_bytes()).collect();
            let values: Vec<u8> = some.iter().flat_map(|_| (nothing.fd as u32).to_ne_bytes()).collect();
            if self.tables.update_batch(&keys, &values, some.len() as u32, MapFlags::ANY, MapFlags::ANY).is_ok() {
                some.iter().for_each(|vip| drop(held.remove(vip)));
            }
        }
        delete(&self.tables, held, wanted)
    }
}

struct Inner {
    fd: i32,
    /// Keeps the descriptor open until the outer map holds the inner one.
    _map: MapHandle,
}

fn inner(table: &[u32]) -> libbpf_rs::Result<Inner> {
    let options = libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_sys::bpf_map_create_opts>() as _,
        // Tables of one outer map may differ in length (kernel 5.10).
        map_flags: libbpf_sys::BPF_F_INNER_MAP,
        ..libbpf_sys::bpf_map_create_opts::default()
    };
    let count = table.len() as u32;
    let map = MapHandle::create(MapType::Array, Some("lb_table"), 4, 4, count, &options)?;
    let keys: Vec<u8> = (0..count).flat_map(u32::to_ne_bytes).collect();
    let values: Vec<u8> = table.iter().flat_map(|endpoint| endpoint.to_ne_bytes()).collect();
    map.update_batch(&keys, &values, count, MapFlags::ANY, MapFlags::ANY)?;
    Ok(Inner { fd: std::os::fd::AsFd::as_fd(&map).as_raw_fd(), _map: map })
}

fn put<K: Layout + Ord, V: Layout + PartialEq>(
    map: &MapHandle,
    held: &mut BTreeMap<K, V>,
    wanted: &BTreeMap<K, V>,
) -> Result<(), Refusal> {
    for (key, value) in wanted {
        if held.get(key) != Some(value) {
            set(map, key, value)?;
            held.insert(*key, *value);
        }
    }
    Ok(())
}

/// Deletes from a map whose entries can be deleted.
fn delete<K: Layout + Ord, V: PartialEq>(
    map: &MapHandle,
    held: &mut BTreeMap<K, V>,
    wanted: &BTreeMap<K, V>,
) -> Result<(), Refusal> {
    let surplus: Vec<K> = held.keys().filter(|key| !wanted.contains_key(key)).copied().collect();
    for key in surplus {
        match map.delete(bytes_of(&key)) {
            Ok(()) => {}
            // It was never written, such as the table of a vip without endpoints.
            Err(error) if error.kind() == libbpf_rs::ErrorKind::NotFound => {}
            Err(error) => return Err(failed("delete from", map, error)),
        }
        held.remove(&key);
    }
    Ok(())
}

/// Clears an entry of an array: zeros mean that it is free.
fn clear<V: Layout + PartialEq>(
    map: &MapHandle,
    held: &mut BTreeMap<u32, V>,
    wanted: &BTreeMap<u32, V>,
) -> Result<(), Refusal> {
    let surplus: Vec<u32> = held.keys().filter(|key| !wanted.contains_key(key)).copied().collect();
    for key in surplus {
        set(map, &key, &V::default())?;
        held.remove(&key);
    }
    Ok(())
}

pub(crate) fn set<K: Layout, V: Layout>(map: &MapHandle, key: &K, value: &V) -> Result<(), Refusal> {
    map.update(bytes_of(key), bytes_of(value), MapFlags::ANY).map_err(|error| failed("write to", map, error))
}

/// Returns `None` if there is no such entry.
pub(crate) fn get<K: Layout, V: Layout>(map: &MapHandle, key: &K) -> Result<Option<V>, Refusal> {
    let found = map.lookup(bytes_of(key), MapFlags::ANY).map_err(|error| failed("read", map, error))?;
    Ok(found.and_then(|bytes| read(&bytes)))
}

/// All entries, page by page. After an error there are no more.
pub(crate) fn entries<K: Layout, V: Layout>(map: &MapHandle) -> impl Iterator<Item = Result<(K, V), Refusal>> + '_ {
    let mut pages = Pages::new();
    let mut is_over = false;
    let page = move || {
        if is_over {
            return None;
        }
        let turned = pages.turn(map);
        is_over = *turned.as_ref().unwrap_or(&true);
        Some(match turned {
            Ok(_) => pages.entries().map(|(key, value)| Ok((*key, *value))).collect(),
            Err(error) => vec![Err(error)],
        })
    };
    std::iter::from_fn(page).flatten()
}

/// The same by key.
pub(crate) fn pairs<K: Layout + Ord, V: Layout>(map: &MapHandle) -> Result<BTreeMap<K, V>, Refusal> {
    entries(map).collect()
}

/// All entries one by one, for maps that are small or do not support batches (tries before 5.17).
fn each<K: Layout + Ord, V: Layout>(map: &MapHandle) -> Result<BTreeMap<K, V>, Refusal> {
    let mut found = BTreeMap::new();
    for key in map.keys().filter_map(|key| read::<K>(&key)) {
        if let Some(value) = get(map, &key)? {
            found.insert(key, value);
        }
    }
    Ok(found)
}

pub(crate) fn failed(doing: &str, map: &MapHandle, error: impl Debug + std::fmt::Display) -> Refusal {
    Refusal::kernel(format!("{doing} the map {}", map.name().to_string_lossy()), error)
}
