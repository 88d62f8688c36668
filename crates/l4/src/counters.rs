//! The counters, summed over CPUs and labelled with names. Totals of a vip include endpoints that have left it.

use std::collections::BTreeMap;

use libbpf_rs::{MapCore, MapFlags};

use crate::abi::*;
use crate::load::{DATAGRAMS, SOCKETS, map_bytes};
use crate::plane::Plane;
use crate::sync::{Maps, failed, get, set};
use crate::{Counters, DropReason, Refusal, Traffic, VipCounters};

impl Plane {
    /// Returns all counters.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn counters(&self) -> Result<Counters, Refusal> {
        let shared: lb_shared = get(&self.maps.shared, &0_u32)?.unwrap_or_default();
        let mut drops = self.maps.drops()?;
        let mut drops_of = |vip: u32| {
            let counted = drops.remove(&vip).unwrap_or_default();
            let count = |reason: &DropReason| counted.get(&u32::from(reason.number)).copied().unwrap_or(0);
            DropReason::ALL.iter().map(|reason| (reason.name, count(reason))).collect()
        };
        let mut counters = Counters {
            flows_used: u64::from(shared.flows_used),
            flows_max: u64::from(self.maps.flows.max_entries()),
            pressure: shared.pressure != 0,
            map_bytes: self.map_bytes(),
            vips: BTreeMap::new(),
            drops: drops_of(LB_VIPS_MAX),
        };
        let mut totals = self.retired.0.clone();
        let mut by_endpoint = BTreeMap::new();
        for (id, endpoint) in &self.held.endpoints {
            // Packets never find an endpoint of sockets alone.
            let has_packets = self.held.vips.get(&endpoint.vip).is_none_or(|vip| u32::from(vip.mode) != LB_MODE_SOCKET);
            let traffic = self.maps.traffic_of(*id, has_packets)?;
            totals.entry(endpoint.vip).or_default().add(&traffic);
            by_endpoint.insert(*id, traffic);
        }
        for (id, named) in &self.plan.vips {
            let endpoints = named
                .endpoints
                .iter()
                .map(|(address, index)| (*address, by_endpoint.get(index).cloned().unwrap_or_default()));
            let vip = VipCounters {
                total: totals.get(id).cloned().unwrap_or_default(),
                endpoints: endpoints.collect(),
                drops: drops_of(*id),
            };
            counters.vips.insert(named.name.clone(), vip);
        }
        Ok(counters)
    }
}

impl Plane {
    fn map_bytes(&self) -> u64 {
        // The programs at the socket share the other maps.
        let own = |name: &str| [SOCKETS, DATAGRAMS].contains(&name);
        let at_sockets = self.sockets.as_ref().map_or(0, |sockets| map_bytes(&sockets.object, own));
        map_bytes(&self.object, |_| true) + at_sockets
    }
}

/// The counts of endpoints that are gone, by the index of their vip.
#[derive(Debug, Default)]
pub(crate) struct Retired(BTreeMap<u32, Traffic>);

impl Retired {
    /// Adds the counts of an endpoint, and resets them for the next endpoint that gets its index.
    pub(crate) fn take(&mut self, maps: &Maps, vip: u32, endpoint: u32) -> Result<(), Refusal> {
        let traffic = Traffic { flows_active: 0, sockets_open: 0, ..maps.traffic_of(endpoint, true)? };
        maps.clear_traffic(endpoint)?;
        self.0.entry(vip).or_default().add(&traffic);
        Ok(())
    }

    /// Forgets a vip that is gone, because another vip will get its index.
    pub(crate) fn forget(&mut self, maps: &Maps, vip: u32) -> Result<(), Refusal> {
        for reason in DropReason::ALL {
            match maps.drops.delete(bytes_of(&drop_index(vip, reason))) {
                Err(error) if error.kind() != libbpf_rs::ErrorKind::NotFound => {
                    return Err(failed("delete from", &maps.drops, error));
                }
                _ => {}
            }
        }
        self.0.remove(&vip);
        Ok(())
    }
}

impl Maps {
    /// Whether the endpoint has flows, or sockets that are connected to it.
    pub(crate) fn is_used(&self, endpoint: u32) -> Result<bool, Refusal> {
        let traffic = self.traffic_of(endpoint, true)?;
        Ok(traffic.flows_active > 0 || traffic.sockets_open > 0)
    }

    /// Resets the counts of an endpoint's index.
    pub(crate) fn clear_traffic(&self, endpoint: u32) -> Result<(), Refusal> {
        self.clear_per_cpu(endpoint, &self.counters)?;
        set(&self.uses, &endpoint, &lb_uses::default())?;
        set(&self.active, &endpoint, &0_u32)
    }

    fn traffic_of(&self, endpoint: u32, has_packets: bool) -> Result<Traffic, Refusal> {
        let uses: lb_uses = get(&self.uses, &endpoint)?.unwrap_or_default();
        let mut traffic = Traffic {
            sockets_open: uses.open.into(),
            sockets_made: uses.made,
            sockets_unknown: uses.unknown.into(),
            ..Traffic::default()
        };
        if !has_packets {
            return Ok(traffic);
        }
        traffic.flows_active = get::<u32, u32>(&self.active, &endpoint)?.unwrap_or(0).into();
        for counters in self.per_cpu::<lb_counters>(endpoint, &self.counters)? {
            traffic.add(&Traffic {
                flows_made: counters.flows,
                packets: counters.packets,
                bytes: counters.bytes,
                ..Traffic::default()
            });
        }
        Ok(traffic)
    }

    /// The counts of drops by vip and number of the reason. `LB_VIPS_MAX` stands for no vip. Only what has happened has an entry.
    fn drops(&self) -> Result<BTreeMap<u32, BTreeMap<u32, u64>>, Refusal> {
        let mut drops = BTreeMap::<u32, BTreeMap<u32, u64>>::new();
        for key in self.drops.keys().take(LB_DROPS_MAX as usize) {
            let Some(index) = read::<u32>(&key) else { continue };
            let counts = self.per_cpu::<u64>(index, &self.drops)?;
            let count = counts.into_iter().fold(0, u64::saturating_add);
            drops.entry(index / LB_REASONS_MAX).or_default().insert(index % LB_REASONS_MAX, count);
        }
        Ok(drops)
    }

    fn per_cpu<V: Layout>(&self, index: u32, map: &libbpf_rs::MapHandle) -> Result<Vec<V>, Refusal> {
        let found = map.lookup_percpu(bytes_of(&index), MapFlags::ANY).map_err(|error| failed("read", map, error))?;
        Ok(found.into_iter().flatten().filter_map(|bytes| read(&bytes)).collect())
    }

    fn clear_per_cpu(&self, index: u32, map: &libbpf_rs::MapHandle) -> Result<(), Refusal> {
        let cleared = libbpf_rs::num_possible_cpus().and_then(|cpus| {
            let zeros = vec![vec![0; map.value_size() as usize]; cpus];
            map.update_percpu(bytes_of(&index), &zeros, MapFlags::ANY)
        });
        cleared.map_err(|error| failed("write to", map, error))
    }
}

fn drop_index(vip: u32, reason: &DropReason) -> u32 {
    vip * LB_REASONS_MAX + u32::from(reason.number)
}
