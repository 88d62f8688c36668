//! The kernel plane beside the proxy plane: opened with the first vip, told what snapshots and probes say, asked how it is.
//!
//! Job: one process at a time, a snapshot in two steps (judged, then put to use), verdicts that have changed, the collection at intervals,
//! rates. Not its job: what is in the kernel, which is crate `l4`'s.

mod status;

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use admin::{Flows, KernelPlaneStatus, STATUS_VERSION, VipStatus};
use l4::{Counters, EndpointVerdict, Plane, Refusal};
use model::{EndpointAddress, Vip};
use net::clock;
use telemetry::Sample;

use crate::control::answers::Probes;
use crate::exit::{Exit, Refused};
use crate::handover;
use crate::sole::Sole;
use crate::vips::VipPlan;
use status::{Rates, Recent, occurred, transport, vip_status};

/// Between two collections: how long a finished connection may stay in the table, if that is not a large one.
pub(crate) const COLLECT_EVERY: Duration = Duration::from_secs(2);

/// Between two steps of one. A step takes some milliseconds of this thread, so that it has most of its time for everything else.
pub(crate) const COLLECT_ON: Duration = Duration::from_millis(25);

/// Vips named to one who asks for another.
const NAMES_MAX: usize = 20;

/// The kernel plane of this process.
pub(crate) struct KernelPlane {
    /// `None`: there are no vips, and nothing needs a privilege.
    plane: Option<Plane>,
    /// There was nothing in the kernel before this process opened the plane.
    fresh: bool,
    sole: Option<Sole>,
    /// What the plane was opened with, and what the file says now.
    flows_max: (u32, u32),
    /// In force.
    vips: Vec<Arc<VipPlan>>,
    /// The epochs of their states when the kernel was told last.
    told: Vec<u64>,
    /// Addresses of their endpoints that this host has itself. No packet is forwarded there.
    here: BTreeSet<IpAddr>,
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

    /// Finds out whether the kernel plane can serve these vips. Changes nothing that serves.
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
                // It has the right as long as it serves, and this process takes over from it.
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

    /// Serves these vips from now on, and no others. Without any the kernel plane is taken down.
    ///
    /// # Errors
    /// It cannot; the old ones stay.
    pub(crate) fn put_to_use(&mut self, vips: Vec<Arc<VipPlan>>) -> Result<(), Refused> {
        if vips.is_empty() {
            return self.detach();
        }
        if let Some(plane) = &mut self.plane {
            tell(plane, &vips)?;
        }
        self.told = epochs(&vips);
        self.vips = vips;
        self.find_endpoints_here();
        Ok(())
    }

    /// The kernel plane forwards packets between interfaces, and hands none to this host's own sockets.
    fn find_endpoints_here(&mut self) {
        let addresses: BTreeSet<IpAddr> =
            self.vips.iter().flat_map(|plan| plan.state.endpoints()).map(|endpoint| endpoint.address().ip()).collect();
        let here = l4::addresses_of_host(addresses.into_iter());
        for address in here.difference(&self.here) {
            tracing::warn!(
                endpoint = %address,
                "an endpoint of a vip is on this host: the kernel plane cannot serve it; use `mode: local` and a listener"
            );
        }
        self.here = here;
    }

    /// The snapshot that was judged is not put to use. A plane that serves nothing is closed again, and leaves what it has found.
    pub(crate) fn give_up(&mut self) {
        if !self.vips.is_empty() {
            return;
        }
        if let Some(plane) = self.plane.take().filter(|_| self.fresh)
            && let Err(error) = plane.detach_all()
        {
            tracing::warn!(%error, "the kernel plane was opened for nothing, and cannot be removed");
        }
        *self = Self::new();
    }

    /// Takes everything out of the kernel.
    pub(crate) fn detach(&mut self) -> Result<(), Refused> {
        if let Some(plane) = self.plane.take() {
            plane.detach_all()?;
            tracing::info!("no vips: the kernel plane is taken down");
        }
        *self = Self::new();
        Ok(())
    }

    /// Removes the vips that an earlier process left in the kernel, if no process looks after them. For a source that wants no vips: the old ones would
    /// go on forwarding to addresses that may belong to others by now.
    pub(crate) fn remove_leftovers(&self) {
        let options = l4::Options::default();
        if self.plane.is_some() || !l4::pinned(&options) {
            return;
        }
        let Ok(_sole) = Sole::take() else { return };
        match l4::detach(&options) {
            Ok(_) => tracing::info!("no vips: removed those that an earlier process left in the kernel"),
            // Tried again with the next snapshot.
            Err(error) => {
                tracing::error!(%error, "vips of an earlier process go on forwarding, because removing them failed: run `steelyard vip detach`");
            }
        }
    }

    /// Lets go of everything and leaves it in the kernel, where it goes on. Gives the number of vips.
    pub(crate) fn leave(&mut self) -> usize {
        let vips = self.vips.len();
        *self = Self::new();
        vips
    }

    /// Tells the kernel which endpoints have become usable or unusable.
    pub(crate) fn follow_verdicts(&mut self) {
        let now = epochs(&self.vips);
        let Some(plane) = self.plane.as_mut().filter(|_| now != self.told) else { return };
        match tell(plane, &self.vips) {
            Ok(()) => self.told = now,
            // Tried again after the next collection.
            Err(error) => tracing::error!(%error, "the kernel plane was not told which endpoints are usable"),
        }
    }

    /// Lets the kernel plane forget what is over, a step at a time, and takes note of how much it does. True: there is more to go over.
    pub(crate) fn collect(&mut self) -> bool {
        if self.sole.is_none() {
            // The predecessor may be gone by now.
            self.sole = Sole::take().ok();
        }
        let Some(plane) = &mut self.plane else { return false };
        match plane.collect() {
            Ok(None) => return true,
            // Told again, below.
            Ok(Some(collected)) if collected.reach_differs => self.told.clear(),
            Ok(Some(_)) => {}
            Err(error) => tracing::error!(%error, "the kernel plane cannot forget old connections"),
        }
        match plane.counters() {
            Ok(counters) => {
                self.recent.sample(&counters, clock::now_ms());
                self.rates.note(counters, Instant::now());
            }
            Err(error) => tracing::error!(%error, "the counters of the kernel plane cannot be read"),
        }
        self.follow_verdicts();
        // The host may have got an address since, or lost one.
        self.find_endpoints_here();
        false
    }

    pub(crate) fn samples(&self) -> Vec<Sample> {
        self.plane.as_ref().map_or_else(Vec::new, Plane::samples)
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
            client: flow.client.to_string(),
            address: flow.address.to_string(),
            endpoint: flow.endpoint.to_string(),
            state: flow.state.to_owned(),
            age_seconds: u64::from(flow.age_s),
            idle_seconds: u64::from(flow.idle_s),
        };
        Ok(Flows { version: STATUS_VERSION, flows: flows.into_iter().map(flow).collect(), more })
    }

    /// The plane, for questions that change nothing.
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

    /// How the plane is, and its vips.
    pub(crate) fn status(&self, probes: &Probes) -> (Option<KernelPlaneStatus>, Vec<VipStatus>) {
        let Some(plane) = &self.plane else { return (None, Vec::new()) };
        let counters = plane.counters().unwrap_or_else(|error| {
            tracing::error!(%error, "the counters of the kernel plane cannot be read");
            Counters::default()
        });
        let told = KernelPlaneStatus {
            entries: counters.flows_used,
            entries_max: counters.flows_max,
            pressure: counters.pressure,
            drops: occurred(&counters.drops),
        };
        let vips = self
            .vips
            .iter()
            .map(|plan| vip_status(plan, plane, &counters, &self.rates, &self.recent, &self.here, probes))
            .collect();
        (Some(told), vips)
    }
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

/// The usual place, and this size of the table.
fn options(flows_max: u32) -> l4::Options {
    l4::Options { flows_max, ..l4::Options::default() }
}

/// Whether an earlier process has left vips in the kernel that no process looks after.
pub(crate) fn are_vips_left() -> bool {
    l4::pinned(&l4::Options::default()) && !Sole::is_taken()
}

/// Says so where there are such.
pub(crate) fn warn_of_leftovers() {
    if are_vips_left() {
        tracing::warn!(
            "vips of an earlier process go on forwarding unattended; `steelyard vip detach` takes them down"
        );
    }
}

fn no_vips() -> String {
    "there are no vips".to_owned()
}

fn epochs(vips: &[Arc<VipPlan>]) -> Vec<u64> {
    vips.iter().map(|plan| plan.state.epoch()).collect()
}

fn tell(plane: &mut Plane, plans: &[Arc<VipPlan>]) -> Result<(), Refusal> {
    let vips: Vec<Vip> = plans.iter().map(|plan| plan.vip.clone()).collect();
    let verdicts: HashMap<(&str, SocketAddr), EndpointVerdict> = plans
        .iter()
        .flat_map(|plan| plan.verdicts().map(|(address, verdict)| ((plan.vip.name.as_str(), address), verdict)))
        .collect();
    plane.apply(&vips, &|vip, endpoint| match endpoint.address {
        EndpointAddress::Socket(address) => verdicts.get(&(vip, address)).copied().unwrap_or(EndpointVerdict::Active),
        EndpointAddress::Name { .. } => EndpointVerdict::Down,
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
            earlier.put_to_use(vips).unwrap_or_else(|refused| panic!("{}", refused.why));
            KernelPlane::new().remove_leftovers();
            assert!(l4::pinned(&options), "the process that looks after them is still there");
            earlier.leave();
            assert!(l4::pinned(&options), "they go on without it");
            KernelPlane::new().remove_leftovers();
            assert!(!l4::pinned(&options));
        });
    }
}
