//! The plane itself: the loaded programs, the content of the maps, and the order of the calls.

mod at_sockets;
mod reach;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::path::PathBuf;

use libbpf_rs::Object;
use model::{Endpoint, EndpointAddress, OnUnhealthy, Vip};
use telemetry::Sample;

use crate::abi::*;
use crate::announce::{AnnouncedRoute, withdraw_all};
use crate::attach::{Attachments, Side, detach_everywhere};
use crate::collect::{Walk, Walked};
use crate::content::Content;
use crate::counters::Retired;
use crate::earlier::Earlier;
use crate::flows::socket;
use crate::interfaces::{self, Interface};
use crate::load::{self, HERE};
use crate::pins::{Held, Pins, remove_folder, sweep};
use crate::plan::{self, Plan, Unreachable};
use crate::reset::Prodder;
use crate::sockets::AtSockets;
use crate::sync::Maps;
use crate::vip_routes::VipRoutes;
use crate::{Collected, EndpointVerdict, Options, Refusal, host, own, samples};
use at_sockets::{Ends, Refused};
use reach::{check_interfaces, find_vips_of_vips, sources};

/// The seconds that a removed endpoint rests after its last flow has ended, in addition to the closing time of its vip: an ended flow stays
/// in the table to translate late packets.
const REST_S: u32 = 4;
/// The most interfaces that the programs know (`LB_INTERFACES_MAX` in `bpf/maps.h`). Others are still reached through the neighbour table.
const INTERFACES_MAX: usize = 4096;

/// The kernel plane of this network namespace. Dropping it leaves everything in the kernel, where packets are still forwarded.
#[derive(Debug)]
pub struct Plane {
    pub(crate) object: Object,
    pub(crate) maps: Maps,
    pins: Pins,
    _looked_after: Held,
    attachments: Attachments,
    /// Those to the egress, if an endpoint is an address of this host.
    attachments_out: Attachments,
    /// The programs that run when a process of this host connects.
    pub(crate) sockets: Option<AtSockets>,
    /// The control group whose processes should be served.
    sockets_wanted: Option<PathBuf>,
    /// Why they cannot be.
    sockets_refused: Option<Refused>,
    /// The vips that end the sockets of dead endpoints, by name.
    ending: BTreeSet<String>,
    /// How far ending them has come.
    ends: Ends,
    /// The tables of an earlier process with another layout, until everything that they hold is ours.
    earlier: Option<Earlier>,
    /// The interfaces to which the programs should be attached, by index.
    pub(crate) attached: BTreeMap<u32, String>,
    vip_routes: VipRoutes,
    /// The addresses of this host that others can reach, with an interface of each, for vips that have them all.
    pub(crate) every: BTreeMap<IpAddr, u32>,
    /// All addresses of this host's interfaces, as the last plan knows them.
    here: BTreeSet<IpAddr>,
    unreachable: Unreachable,
    /// Endpoints for which this host had no source address.
    sourceless: BTreeSet<SocketAddr>,
    /// Whether an endpoint has become reachable or unreachable since the last collection.
    reach_differs: bool,
    /// The content of the maps.
    pub(crate) held: Content,
    /// The last plan that was applied.
    pub(crate) plan: Plan,
    /// Whether the wanted vips are known. Before that, the attachments of an earlier process stay as they are.
    applied: bool,
    /// A collection in progress.
    walk: Option<Walk>,
    /// Indexes of vips that are gone. They become free after a collection that began later.
    resting: BTreeSet<u32>,
    /// The ones that were gone when the current collection began.
    leaving: BTreeSet<u32>,
    /// When the last flow of a removed endpoint was seen to have ended.
    quiet_since_s: BTreeMap<u32, u32>,
    pub(crate) retired: Retired,
    pub(crate) interfaces: Vec<Interface>,
    interfaces_held: BTreeMap<u32, lb_interface>,
    prodder: Prodder,
    /// Interfaces about which a warning was logged: that they are gone, or do not forward.
    warned: BTreeSet<(String, &'static str)>,
}

/// Whether this build has a kernel plane. Opens nothing.
///
/// # Errors
/// In a build without one; this build has one.
pub fn built() -> Result<(), Refusal> {
    Ok(())
}

/// Whether an earlier process has left a plane in the kernel. Returns false if this process may not look.
pub fn pinned(options: &Options) -> bool {
    Pins::new(options).is_ok_and(|pins| pins.exist())
}

/// Removes what an earlier process has left: packets for its vips go to this host again, and connections through them end. Returns whether
/// there was anything.
///
/// # Errors
/// If this process lacks permission, or the kernel refuses.
pub fn detach(options: &Options) -> Result<bool, Refusal> {
    host::check()?;
    let pins = Pins::new(options)?;
    // Whether or not the programs are there: nothing would withdraw these addresses otherwise.
    let doing = "withdraw the addresses of vips";
    let routes = AnnouncedRoute::all().map_err(|error| Refusal::kernel(doing, error))?;
    if !pins.exist() {
        routes.iter().try_for_each(|route| route.remove()).map_err(|error| Refusal::kernel(doing, error))?;
        return Ok(!routes.is_empty());
    }
    remove(&pins)?;
    Ok(true)
}

fn remove(pins: &Pins) -> Result<(), Refusal> {
    load::hear();
    let doing = "take the kernel plane down";
    // First of all, so that routers send no more packets to a host that does not forward them.
    withdraw_all().map_err(|error| Refusal::kernel(doing, error))?;
    let present = interfaces::list().map_err(|error| Refusal::kernel(doing, error))?;
    let any = File::open("/").map_err(|error| Refusal::kernel(doing, error))?;
    detach_everywhere(pins, any.as_fd(), &present);
    pins.remove().map_err(|error| Refusal::kernel(doing, error))
}

impl Plane {
    /// Loads the programs. Takes over the maps of an earlier process in this network namespace, including the flows. Until
    /// [`Plane::apply`], the programs of that process keep working.
    ///
    /// # Errors
    /// If this host does not support it, or this process lacks permission. Each error says what to do.
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
        let earlier = Self::earlier(&pins, &maps, fresh);
        let held = maps.recover()?;
        let mut plane = Self {
            attachments: Attachments::new(&pins, Side::Ingress, options.force_tc),
            attachments_out: Attachments::new(&pins, Side::Egress, options.force_tc),
            sockets: None,
            sockets_wanted: None,
            sockets_refused: None,
            ending: BTreeSet::new(),
            ends: Ends::default(),
            earlier,
            attached: BTreeMap::new(),
            vip_routes: VipRoutes::default(),
            every: BTreeMap::new(),
            here: BTreeSet::new(),
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
        let nothing = load::program(&plane.object, HERE)?;
        plane.attachments.mark(&nothing)?;
        // Flows of vips that the earlier process removed last, because their indexes will be reused.
        let mut walk = Walk::begin(&plane.held, host::now_s(), 0);
        while !walk.step(&plane.object, &plane.maps, &plane.held)? {}
        plane.prodder.prod_each(&walk.take_ended());
        walk.end(&plane.maps)?;
        Ok(plane)
    }

    /// The addresses of the endpoints of a vip that an earlier process found dead. Empty after the first [`Plane::apply`], because its
    /// verdicts apply from then on.
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
    /// If it would be refused; see [`Refusal`].
    pub fn check(&self, vips: &[Vip]) -> Result<(), Refusal> {
        plan::check_limits(vips)?;
        let present = interfaces::list().map_err(|error| Refusal::kernel("list the interfaces", error))?;
        check_interfaces(vips, &present)?;
        sources(vips, &mut Unreachable::default()).map(drop)
    }

    /// Balances these vips and no others from now on, each to its usable endpoints. Flows keep their endpoints as long as these exist and
    /// are alive, even if weights change.
    ///
    /// # Errors
    /// As [`Plane::check`], before anything is written. The kernel may also refuse: then the tables are as before.
    pub fn apply(&mut self, vips: &[Vip], usable: &dyn Fn(&str, &Endpoint) -> EndpointVerdict) -> Result<(), Refusal> {
        plan::check_limits(vips)?;
        self.refresh_interfaces()?;
        check_interfaces(vips, &self.interfaces)?;
        let mut unreachable = Unreachable::default();
        let mut sources = sources(vips, &mut unreachable)?;
        if vips.iter().any(|vip| vip.address.is_unspecified()) {
            self.every = own::every().map_err(|error| Refusal::kernel("list the addresses of this host", error))?;
            sources.every = self.every.keys().copied().collect();
        }
        let here = own::assigned().map_err(|error| Refusal::kernel("list the addresses of this host", error))?;
        if here != self.here {
            warn_of_addresses(vips, &here);
            self.here = here;
        }
        sources.here.clone_from(&self.here);
        let sourceless = unreachable.all().map(|(_, endpoint, _)| endpoint).collect();
        self.find_ways(vips, &mut unreachable);
        find_vips_of_vips(vips, &mut unreachable);
        let usable = |vip: &str, endpoint: &Endpoint| match endpoint.address {
            EndpointAddress::Socket(at) if unreachable.why(vip, at).is_some() => EndpointVerdict::Down,
            _ => usable(vip, endpoint),
        };
        let resting = self.resting.union(&self.leaving).copied().collect();
        let plan = plan::plan(vips, &usable, &self.held, &self.plan, &resting, &sources)?;
        plan.content.fits_beside(&self.held)?;
        let gone = self.held.vips.keys().filter(|id| !plan.content.vips.contains_key(id));
        self.resting.extend(gone.copied());
        // An earlier process may have ended before it cleared the counters of what it removed.
        for vip in plan.content.vips.keys().filter(|id| !self.held.vips.contains_key(id)) {
            self.retired.forget(&self.maps, *vip)?;
        }
        for endpoint in plan.content.endpoints.keys().filter(|id| !self.held.endpoints.contains_key(id)) {
            self.maps.clear_traffic(*endpoint)?;
        }
        self.write(&plan.content)?;
        self.plan = plan;
        let ends = |vip: &&Vip| vip.on_unhealthy == OnUnhealthy::Reset;
        self.ending = vips.iter().filter(ends).map(|vip| vip.name.clone()).collect();
        self.warn_of_unreachable(&unreachable);
        (self.unreachable, self.sourceless) = (unreachable, sourceless);
        self.applied = true;
        self.follow_routes();
        self.attach_after_earlier()?;
        self.warn_of_forwarding(vips);
        Ok(())
    }

    /// Writes the content, or leaves the maps as they are: half of it would name endpoints that take no connections.
    fn write(&mut self, wanted: &Content) -> Result<(), Refusal> {
        let before = self.held.clone();
        let Err(refusal) = self.maps.write(&mut self.held, wanted) else { return Ok(()) };
        if let Err(again) = self.maps.write_back(&mut self.held, &before) {
            tracing::error!(%again, "cannot undo a change that the kernel has refused; the next one continues it");
        }
        self.resting.retain(|id| !self.held.vips.contains_key(id));
        Err(refusal)
    }

    /// Finds the tables of an earlier process with another layout. A failure is logged, because the plane serves without them.
    fn earlier(pins: &Pins, maps: &Maps, fresh: bool) -> Option<Earlier> {
        let earlier = Earlier::find(pins, fresh)?;
        let given = earlier.give_identities(maps);
        given.inspect_err(|refusal| tracing::warn!(%refusal, "cannot read the tables of an earlier version")).ok()?;
        Some(earlier)
    }

    /// Attaches to the interfaces, behind the programs of an earlier process with another layout. Its connections become ours first.
    fn attach_after_earlier(&mut self) -> Result<(), Refusal> {
        let given = self.earlier.as_mut().map_or(Ok(()), |earlier| earlier.give_flows(&self.maps));
        self.attach(false)?;
        if let Err(refusal) = given {
            tracing::warn!(%refusal, "cannot take over all connections of an earlier version");
            self.earlier = None;
        }
        let kept = self.earlier.as_ref().map(Earlier::folder);
        for folder in self.pins.other_versions().iter().filter(|folder| Some(folder.as_path()) != kept) {
            tracing::warn!(folder = %folder.display(), "removing the tables of another version; its connections end");
            remove_folder(folder).map_err(|error| Refusal::kernel(format!("remove {}", folder.display()), error))?;
        }
        Ok(())
    }

    /// Forgets flows that are over, frees unused indexes, follows interfaces that come and go, and has connections to dead endpoints reset.
    /// One call takes one step of milliseconds, or some tens of them if every entry is silent. It returns `None` if more of the table
    /// remains, in which case the next call should be soon; otherwise the next collection begins two seconds later.
    ///
    /// # Errors
    /// If the kernel refuses; the next call starts over.
    pub fn collect(&mut self) -> Result<Option<Collected>, Refusal> {
        let mut walk = match self.walk.take() {
            Some(walk) => walk,
            None => {
                self.look(true)?;
                self.follow_cgroup();
                // A vip that is removed from here on may still be on pages that were already read, so its index rests until after the next
                // walk.
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
        self.end_sockets()?;
        let freed = self.free_endpoints(now_s)?;
        let prodded = self.prodder.prod(&waiting);
        let reach_differs = std::mem::take(&mut self.reach_differs);
        Ok(Some(Collected { kept, expired, closed, freed, prodded, reach_differs }))
    }

    /// Follows interfaces, addresses and routes that have come or gone, as each collection does. Returns whether an endpoint has become
    /// reachable or unreachable: then [`Plane::apply`] has something new to do.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn look_again(&mut self) -> Result<bool, Refusal> {
        self.look(false)?;
        Ok(std::mem::take(&mut self.reach_differs))
    }

    fn look(&mut self, collected: bool) -> Result<(), Refusal> {
        self.refresh_interfaces()?;
        self.refresh_own()?;
        self.ask_again();
        self.attach(collected)
    }

    /// The counters as Prometheus samples; empty if they cannot be read.
    pub fn samples(&self) -> Vec<Sample> {
        match self.counters() {
            Ok(counters) => samples::samples(&counters),
            Err(error) => {
                tracing::error!(%error, "cannot read the counters of the kernel plane");
                Vec::new()
            }
        }
    }

    /// Removes everything from the kernel. Packets for the vips go to this host again, and connections through them end.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn detach_all(self) -> Result<(), Refusal> {
        remove(&self.pins)
    }

    /// Frees endpoints that no vip names and that have neither flows nor sockets. Returns their number.
    fn free_endpoints(&mut self, now_s: u32) -> Result<u32, Refusal> {
        let mut freed = 0;
        let without_vip =
            |id: &u32| self.held.endpoints.get(id).is_some_and(|it| !self.held.vips.contains_key(&it.vip));
        if let Some(sockets) = &self.sockets
            && self.plan.leaving.iter().any(without_vip)
        {
            sockets.release()?;
        }
        for id in self.plan.leaving.clone() {
            let Some(endpoint) = self.held.endpoints.get(&id).copied() else { continue };
            let vip = self.held.vips.get(&endpoint.vip);
            if vip.is_none() && self.resting.contains(&endpoint.vip) {
                continue;
            }
            // If the vip is gone, this collection has removed all its flows, whatever the count says.
            if vip.is_some() && self.maps.is_used(id)? {
                self.quiet_since_s.remove(&id);
                continue;
            }
            let quiet_since_s = *self.quiet_since_s.entry(id).or_insert(now_s);
            if vip.is_some_and(|vip| now_s.saturating_sub(quiet_since_s) <= vip.closing_s.saturating_add(REST_S)) {
                continue;
            }
            self.retired.take(&self.maps, endpoint.vip, id)?;
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

    /// This host may get or lose an address of a vip at any time, for example by keepalived.
    fn refresh_own(&mut self) -> Result<(), Refusal> {
        if self.plan.has_every() {
            // The next call of `apply` gives these vips the present addresses.
            match own::every() {
                Ok(every) => self.reach_differs |= every.keys().ne(self.every.keys()),
                Err(error) => tracing::error!(%error, "cannot list the addresses of this host"),
            }
        }
        match own::assigned() {
            // Endpoints may be among them.
            Ok(here) => self.reach_differs |= here != self.here,
            Err(error) => tracing::error!(%error, "cannot list the addresses of this host"),
        }
        let own = own::among(self.plan.addresses());
        self.reach_differs |= self.plan.set_own(&own);
        self.maps.write_addresses(&mut self.held, &self.plan.content)
    }
}

/// A vip with every address of this host has the first of them alone.
fn warn_of_addresses(vips: &[Vip], here: &BTreeSet<IpAddr>) {
    for is_ipv4 in [true, false] {
        let is_of = |address: &IpAddr| address.is_ipv4() == is_ipv4;
        let has = here.iter().filter(|address| is_of(address)).count();
        if has > own::EVERY_MAX && vips.iter().any(|vip| vip.address.is_unspecified() && is_of(&vip.address)) {
            tracing::warn!(
                addresses = has,
                max = own::EVERY_MAX,
                ipv4 = is_ipv4,
                "this host has more addresses than a vip with every address can have: node ports are not served at the others"
            );
        }
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
