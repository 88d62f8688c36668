//! The plane itself: what is loaded, what the maps hold, and who calls what in which order.

mod reach;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::net::SocketAddr;
use std::os::fd::AsFd;

use libbpf_rs::Object;
use model::{Endpoint, EndpointAddress, Vip};
use telemetry::Sample;

use crate::abi::*;
use crate::attach::{Attachments, detach_everywhere};
use crate::collect::{Walk, Walked};
use crate::content::Content;
use crate::counters::Retired;
use crate::flows::socket;
use crate::interfaces::{self, Interface};
use crate::load;
use crate::pins::{Held, Pins, remove_folder, sweep};
use crate::plan::{self, Plan, Unreachable};
use crate::reset::Prodder;
use crate::sync::{Maps, get, set};
use crate::vip_routes::VipRoutes;
use crate::{Collected, EndpointVerdict, Options, Refusal, host, own, samples};
use reach::{check_interfaces, sources};

/// Seconds for which a removed endpoint rests besides the closing time of its vip, after its last flow has ended: a flow that has ended is still in the
/// table, to translate what was sent late.
const REST_S: u32 = 4;
/// Interfaces that the kernel side knows (`LB_INTERFACES_MAX` in `bpf/maps.h`). One that it does not know is reached all the same, through its neighbours.
const INTERFACES_MAX: usize = 4096;

/// The kernel plane of this network namespace. Dropping it leaves everything in the kernel, where it goes on.
#[derive(Debug)]
pub struct Plane {
    pub(crate) object: Object,
    pub(crate) maps: Maps,
    pins: Pins,
    _looked_after: Held,
    attachments: Attachments,
    /// The interfaces that the programs are to be at, by index.
    pub(crate) attached: BTreeMap<u32, String>,
    vip_routes: VipRoutes,
    unreachable: Unreachable,
    /// Endpoints towards which this host had no source address.
    sourceless: BTreeSet<SocketAddr>,
    /// Since the last collection an endpoint has come into reach, or gone out of it.
    reach_differs: bool,
    /// What the maps hold.
    pub(crate) held: Content,
    /// What was applied last.
    pub(crate) plan: Plan,
    /// It is known who is wanted. Before, what an earlier process has attached goes on as it is.
    applied: bool,
    /// A collection that is under way.
    walk: Option<Walk>,
    /// Indexes of vips that are gone; free after a collection that began later.
    resting: BTreeSet<u32>,
    /// Those that were gone when the collection began that is under way.
    leaving: BTreeSet<u32>,
    /// When the last flow of a removed endpoint was seen to have ended.
    quiet_since_s: BTreeMap<u32, u32>,
    pub(crate) retired: Retired,
    pub(crate) interfaces: Vec<Interface>,
    interfaces_held: BTreeMap<u32, lb_interface>,
    prodder: Prodder,
    /// Interfaces of which it was said that they are gone, or do not forward.
    warned: BTreeSet<(String, &'static str)>,
}

/// Whether this build has a kernel plane. Opens nothing.
///
/// # Errors
/// In a build without; this has one.
pub fn built() -> Result<(), Refusal> {
    Ok(())
}

/// Whether an earlier process has left a plane in the kernel. Where this process may not look, none is seen.
pub fn pinned(options: &Options) -> bool {
    Pins::new(options).is_ok_and(|pins| pins.exist())
}

/// Removes what an earlier process has left: packets for its vips are this host's again, and connections through them end. Says whether there was any.
///
/// # Errors
/// This process may not, or the kernel would not.
pub fn detach(options: &Options) -> Result<bool, Refusal> {
    host::check()?;
    let pins = Pins::new(options)?;
    if !pins.exist() {
        return Ok(false);
    }
    remove(&pins)?;
    Ok(true)
}

fn remove(pins: &Pins) -> Result<(), Refusal> {
    load::hear();
    let doing = "take the kernel plane down";
    let present = interfaces::list().map_err(|error| Refusal::kernel(doing, error))?;
    let any = File::open("/").map_err(|error| Refusal::kernel(doing, error))?;
    detach_everywhere(pins, any.as_fd(), &present);
    pins.remove().map_err(|error| Refusal::kernel(doing, error))
}

impl Plane {
    /// Loads the programs. Takes over the maps that an earlier process has left in this network namespace, flows included; until [`Plane::apply`] its
    /// programs go on as they were.
    ///
    /// # Errors
    /// This host, or this process on it, cannot; each says what to do.
    pub fn open(options: &Options) -> Result<Self, Refusal> {
        host::check()?;
        let pins = Pins::new(options)?;
        let fresh = !pins.folder.exists();
        let looked_after = pins.hold()?;
        let object = load::load(&pins, options.flows_max, fresh)?;
        if options.pin_dir.is_none() {
            sweep(&pins);
        }
        let maps = Maps::new(&object)?;
        let held = maps.recover()?;
        let mut plane = Self {
            attachments: Attachments::new(&pins, options.force_tc),
            attached: BTreeMap::new(),
            vip_routes: VipRoutes::default(),
            unreachable: Unreachable::default(),
            sourceless: BTreeSet::new(),
            reach_differs: false,
            object,
            maps,
            pins,
            _looked_after: looked_after,
            held,
            plan: Plan::default(),
            applied: false,
            walk: None,
            resting: BTreeSet::new(),
            leaving: BTreeSet::new(),
            quiet_since_s: BTreeMap::new(),
            retired: Retired::default(),
            interfaces: Vec::new(),
            interfaces_held: BTreeMap::new(),
            prodder: Prodder::default(),
            warned: BTreeSet::new(),
        };
        plane.refresh_interfaces()?;
        // The flows of vips that the earlier process removed last: their indexes are given out again.
        let mut walk = Walk::begin(&plane.held, host::now_s(), 0);
        while !walk.step(&plane.object, &plane.maps, &plane.held)? {}
        plane.prodder.prod_each(&walk.take_ended());
        walk.end(&plane.maps)?;
        Ok(plane)
    }

    /// The endpoints of a vip that an earlier process found dead, by their addresses. Nothing after the first [`Plane::apply`]: then its verdicts hold.
    pub fn found_dead(&self, vip: &Vip) -> BTreeSet<SocketAddr> {
        if self.applied {
            return BTreeSet::new();
        }
        let Some(id) = plan::identities(&self.held).get(&plan::identity(vip)).copied() else { return BTreeSet::new() };
        let is_dead = |endpoint: &&lb_endpoint| {
            endpoint.vip == id && [LB_ENDPOINT_DOWN, LB_ENDPOINT_FAILING].contains(&u32::from(endpoint.state))
        };
        self.held.endpoints.values().filter(is_dead).map(|it| socket(it.addr, it.port)).collect()
    }

    /// Finds out whether [`Plane::apply`] would be refused. Writes nothing.
    ///
    /// # Errors
    /// It would; see [`Refusal`].
    pub fn check(&self, vips: &[Vip]) -> Result<(), Refusal> {
        plan::check_limits(vips)?;
        let present = interfaces::list().map_err(|error| Refusal::kernel("list the interfaces", error))?;
        check_interfaces(vips, &present)?;
        sources(vips, &mut Unreachable::default()).map(drop)
    }

    /// Balances these vips from now on, and no others, each to the endpoints that are usable. Flows keep their endpoints as long as these are there and
    /// alive, whatever their weights have become.
    ///
    /// # Errors
    /// As [`Plane::check`], before anything is written; or the kernel would not, and a second call goes on where the first ended.
    pub fn apply(&mut self, vips: &[Vip], usable: &dyn Fn(&str, &Endpoint) -> EndpointVerdict) -> Result<(), Refusal> {
        plan::check_limits(vips)?;
        self.refresh_interfaces()?;
        check_interfaces(vips, &self.interfaces)?;
        let mut unreachable = Unreachable::default();
        let sources = sources(vips, &mut unreachable)?;
        let sourceless = unreachable.all().map(|(_, endpoint, _)| endpoint).collect();
        self.find_ways(vips, &mut unreachable);
        let usable = |vip: &str, endpoint: &Endpoint| match endpoint.address {
            EndpointAddress::Socket(at) if unreachable.why(vip, at).is_some() => EndpointVerdict::Down,
            _ => usable(vip, endpoint),
        };
        let resting = self.resting.union(&self.leaving).copied().collect();
        let plan = plan::plan(vips, &usable, &self.held, &self.plan, &resting, &sources)?;
        let gone = self.held.vips.keys().filter(|id| !plan.content.vips.contains_key(id));
        self.resting.extend(gone.copied());
        self.maps.write(&mut self.held, &plan.content)?;
        self.plan = plan;
        self.warn_of_unreachable(&unreachable);
        (self.unreachable, self.sourceless) = (unreachable, sourceless);
        self.applied = true;
        self.follow_routes();
        self.attach(false)?;
        self.warn_of_forwarding(vips);
        for folder in self.pins.other_versions() {
            tracing::warn!(folder = %folder.display(), "another version's tables are removed, and its connections end");
            remove_folder(&folder).map_err(|error| Refusal::kernel(format!("remove {}", folder.display()), error))?;
        }
        Ok(())
    }

    /// Forgets flows that are over, frees what nobody uses any more, follows interfaces that come and go, and has the connections to dead endpoints reset.
    /// Goes a step, which takes milliseconds, some tens of them where every entry is silent. `None`: there is more of the table to go over, soon; else the next collection begins two seconds later.
    ///
    /// # Errors
    /// The kernel would not; the next call begins anew.
    pub fn collect(&mut self) -> Result<Option<Collected>, Refusal> {
        let mut walk = match self.walk.take() {
            Some(walk) => walk,
            None => {
                self.refresh_interfaces()?;
                self.refresh_own()?;
                self.ask_again();
                self.attach(true)?;
                // A vip that goes from here on is not gone from the pages that were turned: its index rests until after the next walk.
                self.leaving.append(&mut self.resting);
                Walk::begin(&self.held, host::now_s(), self.prodder.turn)
            }
        };
        let is_last = walk.step(&self.object, &self.maps, &self.held)?;
        self.prodder.prod_each(&walk.take_ended());
        if !is_last {
            self.walk = Some(walk);
            return Ok(None);
        }
        let Walked { now_s, kept, expired, closed, waiting } = walk.end(&self.maps)?;
        for vip in std::mem::take(&mut self.leaving) {
            self.retired.forget(&self.maps, vip)?;
        }
        let freed = self.free_endpoints(now_s)?;
        let prodded = self.prodder.prod(&waiting);
        let reach_differs = std::mem::take(&mut self.reach_differs);
        Ok(Some(Collected { kept, expired, closed, freed, prodded, reach_differs }))
    }

    /// The counters as samples for Prometheus; nothing, if they cannot be read.
    pub fn samples(&self) -> Vec<Sample> {
        match self.counters() {
            Ok(counters) => samples::samples(&counters),
            Err(error) => {
                tracing::error!(%error, "the counters of the kernel plane cannot be read");
                Vec::new()
            }
        }
    }

    /// Takes everything out of the kernel. Packets for the vips are this host's again, and connections through them end.
    ///
    /// # Errors
    /// The kernel would not.
    pub fn detach_all(self) -> Result<(), Refusal> {
        remove(&self.pins)
    }

    /// Endpoints that no vip names, and whose flows are gone. Gives their number.
    fn free_endpoints(&mut self, now_s: u32) -> Result<u32, Refusal> {
        let mut freed = 0;
        for id in self.plan.leaving.clone() {
            let Some(endpoint) = self.held.endpoints.get(&id).copied() else { continue };
            let vip = self.held.vips.get(&endpoint.vip);
            if vip.is_none() && self.resting.contains(&endpoint.vip) {
                continue;
            }
            // Without their vip all flows went with this collection, whatever the count says.
            let active = if vip.is_some() { get::<u32, u32>(&self.maps.active, &id)?.unwrap_or(0) } else { 0 };
            if active > 0 {
                self.quiet_since_s.remove(&id);
                continue;
            }
            let quiet_since_s = *self.quiet_since_s.entry(id).or_insert(now_s);
            if vip.is_some_and(|vip| now_s.saturating_sub(quiet_since_s) <= vip.closing_s.saturating_add(REST_S)) {
                continue;
            }
            self.retired.take(&self.maps, endpoint.vip, id)?;
            set(&self.maps.active, &id, &0_u32)?;
            self.maps.free_endpoint(&mut self.held, id)?;
            self.plan.leaving.remove(&id);
            self.quiet_since_s.remove(&id);
            freed += 1;
        }
        Ok(freed)
    }

    fn refresh_interfaces(&mut self) -> Result<(), Refusal> {
        self.interfaces =
            interfaces::list_with_peers().map_err(|error| Refusal::kernel("list the interfaces", error))?;
        let value = |interface: &Interface| lb_interface {
            mtu: interface.mtu,
            flags: flags(interface),
            peer_mac: interface.peer.unwrap_or_default(),
            pad: [0; 2],
        };
        let wanted = self.interfaces.iter().take(INTERFACES_MAX).map(|it| (it.index, value(it))).collect();
        self.maps.write_interfaces(&mut self.interfaces_held, &wanted)
    }

    /// An address of a vip may be given to this host, and taken from it, at any time: by keepalived, for one.
    fn refresh_own(&mut self) -> Result<(), Refusal> {
        let own = own::among(self.plan.addresses());
        self.plan.set_own(&own);
        self.maps.write_addresses(&mut self.held, &self.plan.content)
    }
}

fn flags(interface: &Interface) -> u32 {
    let rp_filter = match host::rp_filter(&interface.name) {
        0 => 0,
        1 => LB_INTERFACE_STRICT,
        _ => LB_INTERFACE_LOOSE,
    };
    rp_filter | if interface.peer.is_some() { LB_INTERFACE_PEER } else { 0 }
}

#[cfg(test)]
mod tests;
