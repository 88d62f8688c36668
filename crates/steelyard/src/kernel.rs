//! The kernel plane in this process: it opens with the first vip and follows the snapshots and the probes.
//!
//! Job: make sure that only one process uses it, apply a snapshot in two steps (judge it, then put it to use), pass on
//! changed verdicts, run the collection at intervals, and compute rates. Not its job: the contents of the kernel; that
//! is the job of the crate `l4`.

mod announce;
mod status;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use admin::{
    AnnouncementState, AnnouncementStatus, Flows, KernelPlaneStatus, STATUS_VERSION, SocketsStatus, VipStatus,
};
use l4::{Counters, EndpointVerdict, FlowClient, Neighbours, Plane, Refusal};
use model::{Announce, Announcing, EndpointAddress, Vip, VipMode};
use net::clock;
use telemetry::{EndpointKey, Kind, Sample};

use crate::cluster::NodeLeases;
use crate::control::answers::Probes;
use crate::exit::{Exit, Refused};
use crate::handover;
use crate::sole::Sole;
use crate::vips::VipPlan;
use announce::{Announcements, Leases, Usable};
use status::{Rates, Recent, occurred, transport, vip_status};

/// The interval between two collections. A finished connection stays in the table for up to this long, or longer if the
/// table is large.
pub(crate) const COLLECT_EVERY: Duration = Duration::from_secs(2);

/// The interval between two steps of a collection. A step takes some milliseconds of this thread, which needs most of
/// its time for everything else.
pub(crate) const COLLECT_ON: Duration = Duration::from_millis(25);

/// The maximum number of vips that an error names when the requested one does not exist.
const NAMES_MAX: usize = 20;

/// The kernel plane of this process.
pub(crate) struct KernelPlane {
    /// `None` if there are no vips. Then no privilege is needed.
    plane: Option<Plane>,
    /// The kernel held nothing before this process opened the plane.
    fresh: bool,
    sole: Option<Sole>,
    /// The size with which the plane was opened, and the size in the file now.
    flows_max: (u32, u32),
    /// The vips in force.
    vips: Vec<Arc<VipPlan>>,
    /// The epochs of their states that were last sent to the kernel.
    told: Vec<u64>,
    /// The addresses of their endpoints that this host has itself. No packet is forwarded to them.
    here: BTreeSet<IpAddr>,
    /// The addresses of vips that this process announces.
    announcements: Announcements,
    /// Answers for addresses on links, if any is to be announced there.
    neighbours: Option<Neighbours>,
    rates: Rates,
    recent: Recent,
}

impl KernelPlane {
    pub(crate) fn new() -> Self {
        Self {
            plane: None,
            fresh: false,
            sole: None,
            flows_max: (0, 0),
            vips: Vec::new(),
            told: Vec::new(),
            here: BTreeSet::new(),
            announcements: Announcements::default(),
            neighbours: None,
            rates: Rates::default(),
            recent: Recent::default(),
        }
    }

    /// Whether there are vips in force.
    pub(crate) fn serves(&self) -> bool {
        self.plane.is_some()
    }

    /// The vips in force.
    pub(crate) fn vips(&self) -> &[Arc<VipPlan>] {
        &self.vips
    }

    /// Finds out whether the kernel plane can serve these vips, without changing what is being served.
    ///
    /// # Errors
    /// It cannot.
    pub(crate) fn judge(&mut self, vips: &[Arc<VipPlan>], flows_max: u32) -> Result<(), Refused> {
        if vips.is_empty() {
            return Ok(());
        }
        if self.sole.is_none() {
            match Sole::take() {
                Ok(sole) => self.sole = Some(sole),
                // The predecessor holds the right as long as it serves, and this process takes over from it.
                Err(_) if handover::has_predecessor() => {}
                Err(taken) => {
                    let refused = Refused::new(Exit::HostCannot, taken.to_string());
                    return Err(Refused { by_kernel_plane: true, ..refused });
                }
            }
        }
        let plane = match &mut self.plane {
            Some(plane) => plane,
            none => {
                let options = options(flows_max);
                self.fresh = !l4::pinned(&options);
                self.flows_max = (flows_max, flows_max);
                none.insert(Plane::open(&options)?)
            }
        };
        if std::mem::replace(&mut self.flows_max.1, flows_max) != flows_max && flows_max != self.flows_max.0 {
            tracing::warn!(flows_max, "the table of flows keeps its size until `steelyard vip detach`");
        }
        let wanted: Vec<Vip> = vips.iter().map(|plan| plan.vip.clone()).collect();
        plane.check(&wanted)?;
        for plan in vips {
            plan.begin(&plane.found_dead(&plan.vip));
        }
        Ok(())
    }

    /// Serves exactly these vips from now on, also to the processes of a control group. If there are none, the kernel
    /// plane is detached.
    ///
    /// # Errors
    /// The kernel plane cannot serve them; the old vips stay.
    pub(crate) fn put_to_use(
        &mut self,
        vips: Vec<Arc<VipPlan>>,
        socket_cgroup: Option<&Path>,
        announcing: Announcing,
    ) -> Result<(), Refused> {
        if vips.is_empty() {
            return self.detach();
        }
        // Routers are told before packets are no longer forwarded.
        let before = self.announcements.settings();
        self.announcements.want(&announced(&vips), announcing);
        self.open_neighbours();
        if let Some(plane) = &mut self.plane {
            if let Err(refused) = tell(plane, &vips) {
                // The old vips still serve. Those that were withdrawn come back with the next look at their endpoints.
                self.announcements.want(&announced(&self.vips), before);
                self.open_neighbours();
                return Err(refused.into());
            }
            plane.balance_sockets(socket_cgroup);
        }
        self.told = epochs(&vips);
        self.vips = vips;
        self.find_endpoints_here();
        Ok(())
    }

    fn open_neighbours(&mut self) {
        if !self.announcements.are_on_links() {
            self.neighbours = None;
        } else if self.neighbours.is_none() {
            match Neighbours::open() {
                Ok(neighbours) => self.neighbours = Some(neighbours),
                Err(error) => {
                    tracing::error!(%error, "cannot answer for addresses on links (CAP_NET_RAW is probably missing): they are not announced");
                }
            }
        }
        self.answer_on_links();
    }

    /// Answers for the addresses that are announced on their links, and for no others.
    fn answer_on_links(&mut self) {
        if let Some(neighbours) = &mut self.neighbours {
            neighbours.hold(&self.announcements.on_links());
        }
    }

    /// Has the Leases of a cluster decide which addresses this node answers for.
    pub(crate) fn set_leases(&mut self, (wanted, held): NodeLeases) {
        self.announcements.set_leases(Leases { wanted, held });
    }

    /// Whether there are addresses that are announced on links.
    pub(crate) fn answers_on_links(&self) -> bool {
        self.neighbours.is_some()
    }

    /// The sockets by which others on links ask for addresses, as long as there are such addresses.
    pub(crate) fn link_sockets(&self) -> Option<std::io::Result<[OwnedFd; 2]>> {
        self.neighbours.as_ref().map(Neighbours::sockets)
    }

    /// Answers whoever has asked on a link.
    pub(crate) fn answer(&mut self) {
        let Some(neighbours) = &mut self.neighbours else { return };
        let mut gives_way = false;
        for (address, by) in neighbours.answer() {
            match self.announcements.claimed(address, &by) {
                true => neighbours.defend(address),
                false => gives_way = true,
            }
        }
        if gives_way {
            self.answer_on_links();
        }
    }

    /// With dsr, the kernel plane cannot deliver packets to this host's own sockets, nor in any mode to the loopback
    /// network. It is nothing wrong if connections are balanced at the socket: such an endpoint serves this host's
    /// processes.
    fn find_endpoints_here(&mut self) {
        let sockets = self.plane.as_ref().and_then(Plane::sockets);
        if sockets.is_some_and(|sockets| sockets.why_not.is_none()) {
            return self.here.clear();
        }
        let with_packets = self.vips.iter().filter(|plan| plan.vip.mode != VipMode::Socket);
        let of = |plan: &Arc<VipPlan>| {
            let is_dsr = plan.vip.mode == VipMode::Dsr;
            let addresses = plan.state.endpoints().iter().map(|endpoint| endpoint.address().ip());
            addresses.filter(|address| is_dsr || address.is_loopback()).collect::<Vec<_>>()
        };
        let addresses: BTreeSet<IpAddr> = with_packets.flat_map(of).collect();
        let here = l4::addresses_of_host(addresses.into_iter());
        for address in here.difference(&self.here) {
            tracing::warn!(
                endpoint = %address,
                "an endpoint of a vip is on this host, and the kernel plane cannot serve it with `mode: dsr` or at a \
                 loopback address: use another mode and another address of this host, or `mode: local` and a listener"
            );
        }
        self.here = here;
    }

    /// Discards the judged snapshot. A plane that serves nothing is closed again, and leaves what it found.
    pub(crate) fn give_up(&mut self) {
        if !self.vips.is_empty() {
            return;
        }
        if let Some(plane) = self.plane.take().filter(|_| self.fresh)
            && let Err(error) = plane.detach_all()
        {
            tracing::warn!(%error, "cannot remove the kernel plane, which was opened but is not used");
        }
        *self = Self::new();
    }

    /// Removes everything from the kernel.
    pub(crate) fn detach(&mut self) -> Result<(), Refused> {
        if let Some(plane) = self.plane.take() {
            plane.detach_all()?;
            tracing::info!("no vips: detaching the kernel plane");
        }
        // A process that ends announces nothing, even if a reload attaches the plane again.
        let announcements = self.announcements.emptied();
        *self = Self { announcements, ..Self::new() };
        Ok(())
    }

    /// Removes the vips that an earlier process left in the kernel, if no process manages them. This is for a source
    /// that wants no vips: the old ones would keep forwarding to addresses that may belong to somebody else by now.
    pub(crate) fn remove_leftovers(&self) {
        let options = l4::Options::default();
        if self.plane.is_some() || !is_left(&options) {
            return;
        }
        let Ok(_sole) = Sole::take() else { return };
        match l4::detach(&options) {
            Ok(_) => tracing::info!("no vips: removed those that an earlier process left in the kernel"),
            // The next snapshot tries again.
            Err(error) => {
                tracing::error!(
                    %error,
                    "vips of an earlier process still forward packets, because removing them failed: run `steelyard \
                     vip detach`"
                );
            }
        }
    }

    /// Releases the plane and leaves it running in the kernel. Returns the number of vips.
    pub(crate) fn leave(&mut self) -> usize {
        let vips = self.vips.len();
        *self = Self::new();
        vips
    }

    /// Sends the kernel the endpoints that have become usable or unusable, and announces or withdraws addresses
    /// accordingly. `unproven` has the endpoints of which no probe has ended yet.
    pub(crate) fn follow_verdicts(&mut self, unproven: &dyn Fn() -> HashSet<EndpointKey>) {
        let now = epochs(&self.vips);
        let differ = now != self.told;
        if let Some(plane) = self.plane.as_mut().filter(|_| differ) {
            match tell(plane, &self.vips) {
                Ok(()) => self.told = now,
                // The next collection tries again.
                Err(error) => tracing::error!(%error, "cannot send the kernel plane the states of endpoints"),
            }
        }
        if differ || self.announcements.waits_for_proof() {
            self.announce(unproven, false);
        }
    }

    /// Announces the addresses of usable vips, and withdraws the others. If `again`, routes that something else has
    /// removed are added again.
    pub(crate) fn announce(&mut self, unproven: &dyn Fn() -> HashSet<EndpointKey>, again: bool) {
        let Some(plane) = self.plane.as_ref().filter(|_| !self.announcements.is_empty()) else { return };
        let unproven = if self.announcements.waits_for_proof() { unproven() } else { HashSet::new() };
        let announced = self.vips.iter().filter(|plan| plan.vip.announce != Announce::None);
        let neighbours = self.neighbours.as_ref();
        let usable = announced.map(|plan| {
            let usable =
                on_link(&plan.vip, neighbours).unwrap_or_else(|| usability(plan, plane, &self.here, &unproven));
            (plan.vip.address, usable)
        });
        self.announcements.follow(usable, clock::now_ms(), again);
        self.answer_on_links();
    }

    /// Withdraws all addresses, because this process ends. The kernel plane still forwards.
    pub(crate) fn withdraw(&mut self) {
        self.announcements.end("this process ends");
        self.answer_on_links();
    }

    /// Runs one step of the collection, which removes finished flows, and records how much there was. Returns true if
    /// there is more to go over.
    pub(crate) fn collect(&mut self, unproven: &dyn Fn() -> HashSet<EndpointKey>) -> bool {
        if self.sole.is_none() {
            // The predecessor may be gone by now.
            self.sole = Sole::take().ok();
        }
        let Some(plane) = &mut self.plane else { return false };
        match plane.collect() {
            Ok(None) => return true,
            // Makes the call below send all states again.
            Ok(Some(collected)) if collected.reach_differs => self.told.clear(),
            Ok(Some(_)) => {}
            Err(error) => tracing::error!(%error, "cannot remove finished connections from the kernel plane"),
        }
        match plane.counters() {
            Ok(counters) => {
                self.recent.sample(&counters, clock::now_ms());
                self.rates.note(counters, Instant::now());
            }
            Err(error) => tracing::error!(%error, "cannot read the counters of the kernel plane"),
        }
        self.follow_verdicts(unproven);
        // The host may have gained or lost an address.
        self.find_endpoints_here();
        self.look_at_links();
        self.announce(unproven, true);
        false
    }

    /// Follows what has changed in the host's network.
    pub(crate) fn look_again(&mut self, unproven: &dyn Fn() -> HashSet<EndpointKey>) {
        let Some(plane) = &mut self.plane else { return };
        match plane.look_again() {
            Ok(true) => self.told.clear(),
            Ok(false) => {}
            Err(error) => tracing::error!(%error, "cannot follow a change of the network"),
        }
        self.follow_verdicts(unproven);
        self.look_at_links();
        self.announce(unproven, false);
    }

    fn look_at_links(&mut self) {
        if let Some(neighbours) = &mut self.neighbours
            && let Err(error) = neighbours.look()
        {
            tracing::error!(%error, "cannot read the networks of this host's interfaces");
        }
    }

    pub(crate) fn samples(&self) -> Vec<Sample> {
        let mut samples = self.plane.as_ref().map_or_else(Vec::new, Plane::samples);
        for AnnouncementMetric { name, kind, help, value } in ANNOUNCEMENT_METRICS {
            samples.extend(self.vips.iter().filter_map(|plan| {
                let status = self.announcements.status(plan.vip.address).filter(|_| is_announced(plan))?;
                Some(Sample { name, help, kind, labels: vec![("vip", plan.vip.name.clone())], value: value(&status) })
            }));
        }
        samples
    }

    pub(crate) fn flows(&self, vip: Option<&str>, limit: usize) -> Result<Flows, String> {
        if let Some(name) = vip {
            self.vip(name)?;
        }
        let plane = self.plane.as_ref().ok_or_else(no_vips)?;
        let (flows, more) = plane.flows(vip, limit).map_err(|error| error.to_string())?;
        let flow = |flow: l4::Flow| admin::FlowStatus {
            vip: flow.vip,
            protocol: transport(flow.transport).to_owned(),
            client: match flow.client {
                FlowClient::Address(address) => address.to_string(),
                // As ss(8) writes it.
                FlowClient::Socket(cookie) => format!("sk:{cookie:x}"),
            },
            address: flow.address.to_string(),
            endpoint: flow.endpoint.to_string(),
            state: flow.state.to_owned(),
            age_seconds: u64::from(flow.age_s),
            idle_seconds: flow.idle_s.map(u64::from),
        };
        Ok(Flows { version: STATUS_VERSION, flows: flows.into_iter().map(flow).collect(), more })
    }

    /// The plane, for queries that change nothing.
    pub(crate) fn plane(&self) -> Result<&Plane, String> {
        self.plane.as_ref().ok_or_else(no_vips)
    }

    pub(crate) fn vip(&self, name: &str) -> Result<&VipPlan, String> {
        self.vips.iter().find(|plan| plan.vip.name == name).map(|plan| &**plan).ok_or_else(|| {
            let names: Vec<&str> = self.vips.iter().map(|plan| plan.vip.name.as_str()).take(NAMES_MAX).collect();
            let there = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            format!("no such vip: {name}; there is {there}")
        })
    }

    /// The state of the plane and of its vips.
    pub(crate) fn status(&self, probes: &Probes) -> (Option<KernelPlaneStatus>, Vec<VipStatus>) {
        let Some(plane) = &self.plane else { return (None, Vec::new()) };
        let counters = plane.counters().unwrap_or_else(|error| {
            tracing::error!(%error, "cannot read the counters of the kernel plane");
            Counters::default()
        });
        let told = KernelPlaneStatus {
            entries: counters.flows_used,
            entries_max: counters.flows_max,
            pressure: counters.pressure,
            map_bytes: counters.map_bytes,
            drops: occurred(&counters.drops),
            sockets: plane.sockets().map(|sockets| SocketsStatus {
                cgroup: sockets.cgroup.display().to_string(),
                why_not: sockets.why_not,
                open: counters.vips.values().map(|vip| vip.total.sockets_open).sum(),
                open_max: u64::from(sockets.open_max),
                cannot_end: sockets.cannot_end,
                unknown: self.recent.of_unknown(&counters),
            }),
        };
        let vips = self
            .vips
            .iter()
            .map(|plan| {
                let announcement = self.announcements.status(plan.vip.address).filter(|_| is_announced(plan));
                let status = vip_status(plan, plane, &counters, &self.rates, &self.recent, &self.here, probes);
                VipStatus { announcement, ..status }
            })
            .collect();
        (Some(told), vips)
    }
}

/// A metric of the announcement of a vip.
struct AnnouncementMetric {
    name: &'static str,
    kind: Kind,
    help: &'static str,
    value: fn(&AnnouncementStatus) -> f64,
}

const ANNOUNCEMENT_METRICS: [AnnouncementMetric; 2] = [
    AnnouncementMetric {
        name: "steelyard_vip_announced",
        kind: Kind::Gauge,
        help: "Whether the address of the vip is announced (`announce`).",
        value: |status| f64::from(u8::from(status.state == AnnouncementState::Announced)),
    },
    AnnouncementMetric {
        name: "steelyard_vip_announcement_changes_total",
        kind: Kind::Counter,
        help: "How often the address of the vip was announced or withdrawn.",
        value: |status| status.changes as f64,
    },
];

fn is_announced(plan: &VipPlan) -> bool {
    plan.vip.announce != Announce::None
}

/// Why an address cannot be announced on a link; `None` if it can, or need not be.
fn on_link(vip: &Vip, neighbours: Option<&Neighbours>) -> Option<Usable> {
    if vip.announce != Announce::L2 {
        return None;
    }
    match neighbours {
        None => Some(Usable::No("this process cannot answer on links: it needs CAP_NET_RAW".to_owned())),
        Some(neighbours) if neighbours.is_on_link(vip.address) => None,
        Some(_) => Some(Usable::No("no interface of this host is in the network of the address".to_owned())),
    }
}

/// Whether a vip can serve new connections from here.
fn usability(plan: &VipPlan, plane: &Plane, here: &BTreeSet<IpAddr>, unproven: &HashSet<EndpointKey>) -> Usable {
    let vip = &plan.vip;
    if plane.interfaces_of(vip).is_empty() {
        return Usable::No("it is not attached to any interface".to_owned());
    }
    if vip.mode == VipMode::Local {
        return Usable::Yes;
    }
    let mut found = Usable::No("none of its endpoints is usable".to_owned());
    for (index, (address, verdict)) in plan.verdicts().enumerate() {
        let can_serve = verdict == EndpointVerdict::Active
            && plan.state.weight(index) > 0
            && plane.why_unreachable(&vip.name, address).is_none()
            && !here.contains(&address.ip());
        if can_serve && (vip.health_check.is_none() || plan.is_checked(address, unproven)) {
            return Usable::Yes;
        }
        if can_serve {
            found = Usable::Unproven;
        }
    }
    found
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Self {
        let exit = match refusal.exit() {
            l4::Exit::HostCannot => Exit::HostCannot,
            l4::Exit::BadConfig => Exit::BadConfig,
        };
        Self { by_kernel_plane: true, vips: refusal.vips(), ..Self::new(exit, refusal.to_string()) }
    }
}

/// The default paths, with this size of the table.
fn options(flows_max: u32) -> l4::Options {
    l4::Options { flows_max, ..l4::Options::default() }
}

/// Whether there is anything of an earlier process: the programs, or routes that announce addresses.
fn is_left(options: &l4::Options) -> bool {
    l4::pinned(options) || l4::AnnouncedRoute::all().is_ok_and(|routes| !routes.is_empty())
}

/// Whether an earlier process has left vips in the kernel that no process manages.
pub(crate) fn are_vips_left() -> bool {
    is_left(&l4::Options::default()) && !Sole::is_taken()
}

/// Logs a warning if an earlier process has left vips.
pub(crate) fn warn_of_leftovers() {
    if are_vips_left() {
        tracing::warn!(
            "vips of an earlier process still forward packets, and no process manages them: `steelyard vip detach` \
             removes them"
        );
    }
}

fn no_vips() -> String {
    "there are no vips".to_owned()
}

fn epochs(vips: &[Arc<VipPlan>]) -> Vec<u64> {
    vips.iter().map(|plan| plan.state.epoch()).collect()
}

/// The addresses to announce, and how.
fn announced(vips: &[Arc<VipPlan>]) -> BTreeMap<IpAddr, Announce> {
    let asked = vips.iter().filter(|plan| plan.vip.announce != Announce::None);
    asked.map(|plan| (plan.vip.address, plan.vip.announce)).collect()
}

fn tell(plane: &mut Plane, plans: &[Arc<VipPlan>]) -> Result<(), Refusal> {
    let vips: Vec<Vip> = plans.iter().map(|plan| plan.vip.clone()).collect();
    let verdicts: HashMap<(&str, SocketAddr), EndpointVerdict> = plans
        .iter()
        .flat_map(|plan| plan.verdicts().map(|(address, verdict)| ((plan.vip.name.as_str(), address), verdict)))
        .collect();
    plane.apply(&vips, &|vip, endpoint| match endpoint.address {
        EndpointAddress::Socket(address) => verdicts.get(&(vip, address)).copied().unwrap_or(EndpointVerdict::Active),
        EndpointAddress::Name { .. } | EndpointAddress::Service { .. } => EndpointVerdict::Down,
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use model::Generation;
    use testkit::netns::{Netns, join};

    use super::*;

    #[test]
    fn what_an_earlier_process_left_is_removed_when_there_are_no_vips() {
        if !rustix::process::geteuid().is_root() || l4::built().is_err() {
            _ = writeln!(std::io::stderr(), "SKIP what_an_earlier_process_left: needs root, and programs in the build");
            return;
        }
        let (host, other) = (Netns::new("left").unwrap(), Netns::new("leftep").unwrap());
        join((&host, "ep0"), (&other, "eth0"), 1500).unwrap();
        let text = "vips: {web: {address: 10.0.0.1:80/tcp, interfaces: ep0, endpoints: [10.0.0.2:80]}}";
        let snapshot = config::parse("f", text, Generation(1)).unwrap_or_else(|errors| panic!("{errors}"));
        host.inside(|| {
            let options = l4::Options::default();
            let mut earlier = KernelPlane::new();
            let vips = crate::vips::plans(snapshot.vips.iter().map(|vip| (vip, false)), &[], 0);
            earlier.judge(&vips, 1024).unwrap_or_else(|refused| panic!("{}", refused.why));
            earlier.put_to_use(vips, None, Announcing::default()).unwrap_or_else(|refused| panic!("{}", refused.why));
            KernelPlane::new().remove_leftovers();
            assert!(l4::pinned(&options), "the process that manages them is still there");
            earlier.leave();
            assert!(l4::pinned(&options), "they stay without it");
            KernelPlane::new().remove_leftovers();
            assert!(!l4::pinned(&options));
        });
    }
}
