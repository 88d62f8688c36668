//! Which addresses of vips are announced, and since when.
//!
//! Job: decide by the usability of the vips, and have the routes of the decision. Not its job: what is usable
//! ([`super::KernelPlane`]), passing routes on to routers, which a routing daemon does, and answering on a link (`l2`).
//!
//! An address is withdrawn as soon as none of its vips is usable, and comes back when one has been usable for
//! `announce_after`: an endpoint that comes and goes moves clients once. What an earlier process announced stays
//! announced while nothing says that it is not usable, so a successor changes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;

use admin::{AnnouncementState, AnnouncementStatus};
use l4::AnnouncedRoute;
use model::{Announce, Announcing};
use tokio::sync::watch;

/// The usability of a vip.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Usable {
    Yes,
    /// Nothing speaks against it, but no probe of its endpoints has ended yet.
    Unproven,
    /// It is not, and why.
    No(String),
}

/// The announcements of this process.
#[derive(Default)]
pub(super) struct Announcements {
    settings: Announcing,
    addresses: BTreeMap<IpAddr, Address>,
    /// What an earlier process left has been read.
    begun: bool,
    /// The process ends, or a command has detached the plane: nothing is announced any more.
    ended: bool,
    /// With a cluster, a Lease for each address decides which node answers for it on its link.
    leases: Option<Leases>,
}

/// The Leases of addresses that are announced on links.
pub(super) struct Leases {
    /// The addresses that this node could serve.
    pub(super) wanted: watch::Sender<BTreeSet<IpAddr>>,
    /// Those whose Lease it holds. False: the cluster has not confirmed it for a while, and does not say that another
    /// node holds it.
    pub(super) held: watch::Receiver<BTreeMap<IpAddr, bool>>,
}

/// An address to announce.
#[derive(Debug, Default)]
struct Address {
    by: Announce,
    /// It has its route, or this host answers for it on its link.
    announced: bool,
    /// The route that it has. Another one than the settings say, if they have changed and the new route cannot be added.
    route: Option<AnnouncedRoute>,
    /// It could be announced on its link. With a cluster, this node wants its Lease.
    ready: bool,
    /// Somebody else claims to have it, while the cluster does not confirm that this node holds its Lease: this node has
    /// given way until the cluster does.
    yields: bool,
    /// Somebody has claimed it since the last collection.
    claimed: bool,
    /// It was announced before, so it returns only after it has been usable for a time.
    returns: bool,
    /// Since when it is usable, while it is not announced.
    usable_since_ms: Option<u64>,
    /// Why it is not announced, or why its route could not be changed.
    why: Option<String>,
    /// How often it was announced or withdrawn.
    changes: u64,
}

/// What to do about an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Keep,
    Announce,
    Withdraw,
    /// Withdraw it because another node has it. It may come back at once.
    Release,
}

impl Announcements {
    /// Withdraws addresses that are no longer wanted, before their vips go, and takes over what an earlier process
    /// left.
    pub(super) fn want(&mut self, wanted: &BTreeMap<IpAddr, Announce>, settings: Announcing) {
        let moves = self.begun && (settings.table, settings.metric) != (self.settings.table, self.settings.metric);
        self.settings = settings;
        if wanted.is_empty() && self.addresses.is_empty() && self.begun {
            return;
        }
        if !self.begun {
            self.take_over(wanted);
        }
        let is_as_before = |(address, known): (&IpAddr, &Address)| wanted.get(address) == Some(&known.by);
        let gone = self.addresses.iter().filter(|known| !is_as_before(*known)).map(|(address, _)| *address);
        for address in gone.collect::<Vec<_>>() {
            let known = self.addresses.remove(&address).unwrap_or_default();
            if known.announced {
                let removed = known.route.map_or(Ok(()), AnnouncedRoute::remove);
                note(address, false, "no vip asks for it any more", removed);
            }
        }
        for (address, by) in wanted {
            let fresh = || Address { by: *by, ..Address::default() };
            let known = self.addresses.entry(*address).or_insert_with(fresh);
            if moves && known.by == Announce::Route && known.announced {
                known.set(*address, settings, true, MOVED);
            }
        }
    }

    /// The table, the metric and the time that apply now.
    pub(super) fn settings(&self) -> Announcing {
        self.settings
    }

    /// Reads the routes of an earlier process. Those that are wanted stay, and the others go.
    fn take_over(&mut self, wanted: &BTreeMap<IpAddr, Announce>) {
        let routes = match AnnouncedRoute::all() {
            Ok(routes) => routes,
            // The next snapshot tries again.
            Err(error) => return tracing::error!(%error, "cannot read which addresses are announced"),
        };
        self.begun = true;
        for found in routes {
            let is_wanted =
                wanted.get(&found.address) == Some(&Announce::Route) && found == route(found.address, self.settings);
            if is_wanted {
                let route = Some(found);
                let known = Address { by: Announce::Route, announced: true, route, ..Address::default() };
                self.addresses.insert(found.address, known);
                tracing::info!(address = %found.address, "an earlier process has announced the address: it stays so");
            } else {
                note(found.address, false, "an earlier process left it", found.remove());
            }
        }
    }

    /// Without any address: the routes are gone with the programs.
    pub(super) fn emptied(&mut self) -> Self {
        let leases = self.leases.take();
        leases.iter().for_each(|leases| leases.want(BTreeSet::new()));
        Self { ended: self.ended, leases, ..Self::default() }
    }

    /// Has the Leases of a cluster decide from now on.
    pub(super) fn set_leases(&mut self, leases: Leases) {
        self.leases = Some(leases);
    }

    /// Whether an address is to be announced on its link.
    pub(super) fn are_on_links(&self) -> bool {
        self.addresses.values().any(|known| known.by == Announce::L2)
    }

    /// Those that this host answers for now.
    pub(super) fn on_links(&self) -> BTreeSet<IpAddr> {
        let answered = |(_, known): &(&IpAddr, &Address)| known.by == Announce::L2 && known.announced;
        self.addresses.iter().filter(answered).map(|(address, _)| *address).collect()
    }

    /// Somebody else on the link claims an address. Returns whether this host claims it again. It gives way if the
    /// cluster has not confirmed its Lease for a while: another node may hold it by now.
    pub(super) fn claimed(&mut self, address: IpAddr, by: &str) -> bool {
        let sure = self.leases.as_ref().is_none_or(|leases| leases.held.borrow().get(&address) == Some(&true));
        let Some(known) = self.addresses.get_mut(&address).filter(|known| known.announced) else { return false };
        let text = format!("{by} on the link claims the address too");
        if known.why.as_ref() != Some(&text) {
            tracing::warn!(%address, by, gives_way = !sure, "another host on the link claims the address");
        }
        if !sure {
            known.yields = true;
            known.set(address, self.settings, false, "another host on the link claims it");
        }
        known.why = Some(text);
        known.claimed = true;
        sure
    }

    /// Whether an address waits for a proof that it is usable.
    pub(super) fn waits_for_proof(&self) -> bool {
        !self.ended && self.addresses.values().any(|address| !address.announced)
    }

    /// Whether anything is to be announced.
    pub(super) fn is_empty(&self) -> bool {
        self.addresses.is_empty()
    }

    /// Announces and withdraws. `usable` has every vip to announce. If `again`, routes that something else has removed
    /// are added again.
    pub(super) fn follow(&mut self, usable: impl Iterator<Item = (IpAddr, Usable)>, now_ms: u64, again: bool) {
        if self.ended {
            return;
        }
        let mut best: BTreeMap<IpAddr, Usable> = BTreeMap::new();
        for (address, usable) in usable {
            match best.entry(address) {
                std::collections::btree_map::Entry::Vacant(place) => drop(place.insert(usable)),
                std::collections::btree_map::Entry::Occupied(mut known) => {
                    if rank(&usable) > rank(known.get()) {
                        known.insert(usable);
                    }
                }
            }
        }
        let settings = self.settings;
        let held = self.leases.as_ref().map(|leases| leases.held.borrow().clone());
        for (address, known) in &mut self.addresses {
            let usable = best.remove(address).unwrap_or_else(|| Usable::No("it has no vip".to_owned()));
            let lease = held.as_ref().filter(|_| known.by == Announce::L2).map(|held| held.get(address).copied());
            match known.step_with(lease, &usable, now_ms, settings.after.as_millis()) {
                Step::Announce => drop(known.set(*address, settings, true, "it is usable")),
                Step::Withdraw => {
                    let why = known.why.clone().unwrap_or_default();
                    known.set(*address, settings, false, &why);
                }
                Step::Release => {
                    let (why, returns) = (known.why.clone().unwrap_or_default(), known.returns);
                    known.set(*address, settings, false, &why);
                    known.returns = returns;
                }
                Step::Keep if again && known.announced && known.by == Announce::Route => {
                    if known.route == Some(route(*address, settings)) {
                        known.repair(*address, settings);
                    } else {
                        known.set(*address, settings, true, MOVED);
                    }
                }
                // A claim is over if nobody repeats it.
                Step::Keep if again && known.announced && !std::mem::take(&mut known.claimed) => known.why = None,
                Step::Keep => {}
            }
        }
        self.want_leases();
    }

    fn want_leases(&self) {
        if let Some(leases) = &self.leases {
            leases.want(self.addresses.iter().filter(|(_, known)| known.ready).map(|(address, _)| *address).collect());
        }
    }

    /// Withdraws everything for as long as this process lives.
    pub(super) fn end(&mut self, why: &str) {
        self.ended = true;
        for (address, known) in &mut self.addresses {
            if known.announced {
                known.set(*address, self.settings, false, why);
            }
            known.ready = false;
            known.why = Some(why.to_owned());
        }
        self.want_leases();
    }

    /// The state of an address; `None` if it is not to be announced.
    pub(super) fn status(&self, address: IpAddr) -> Option<AnnouncementStatus> {
        let known = self.addresses.get(&address)?;
        let state = match (known.announced, known.usable_since_ms) {
            (true, _) => AnnouncementState::Announced,
            (false, Some(_)) => AnnouncementState::Waiting,
            (false, None) => AnnouncementState::Withdrawn,
        };
        let by = if known.by == Announce::L2 { "l2" } else { "route" };
        Some(AnnouncementStatus { by: by.to_owned(), state, why: known.why.clone(), changes: known.changes })
    }
}

impl Leases {
    fn want(&self, addresses: BTreeSet<IpAddr>) {
        self.wanted.send_if_modified(|wanted| std::mem::replace(wanted, addresses.clone()) != addresses);
    }
}

impl Address {
    /// What to do, if a Lease decides too: whether it is held, and if so, whether the cluster is sure of that.
    fn step_with(&mut self, lease: Option<Option<bool>>, usable: &Usable, now_ms: u64, after_ms: u128) -> Step {
        let step = self.step(usable, now_ms, after_ms);
        let Some(lease) = lease else {
            self.ready = step == Step::Announce || self.announced && step == Step::Keep;
            return step;
        };
        if lease == Some(true) {
            self.yields = false;
        }
        // A node whose endpoints have just begun to be usable waits as long as it would without a Lease.
        self.ready = step == Step::Announce || self.ready && step == Step::Keep && !matches!(usable, Usable::No(_));
        let may = lease.is_some() && !self.yields;
        match step {
            Step::Announce if may => Step::Announce,
            Step::Keep if self.announced && lease.is_none() => {
                self.why = Some("another node holds its Lease".to_owned());
                Step::Release
            }
            Step::Announce => {
                self.why = Some("this node does not hold its Lease".to_owned());
                Step::Keep
            }
            other => other,
        }
    }

    fn step(&mut self, usable: &Usable, now_ms: u64, after_ms: u128) -> Step {
        match (usable, self.announced) {
            (Usable::No(why), true) => {
                self.why = Some(why.clone());
                Step::Withdraw
            }
            (Usable::No(why), false) => {
                self.usable_since_ms = None;
                self.why = Some(why.clone());
                Step::Keep
            }
            (Usable::Unproven, false) => {
                self.usable_since_ms = None;
                self.why = Some("no probe of its endpoints has ended yet".to_owned());
                Step::Keep
            }
            (_, true) => Step::Keep,
            (Usable::Yes, false) => {
                let since_ms = *self.usable_since_ms.get_or_insert(now_ms);
                if self.returns && u128::from(now_ms.saturating_sub(since_ms)) < after_ms {
                    self.why = Some("its endpoints have not been usable for announce_after yet".to_owned());
                    return Step::Keep;
                }
                Step::Announce
            }
        }
    }

    /// Adds or removes the route. A route that the settings no longer say goes when the new one is there. Returns false if the kernel refused;
    /// the next collection tries again.
    fn set(&mut self, address: IpAddr, settings: Announcing, announced: bool, why: &str) -> bool {
        let wanted = route(address, settings);
        let outcome = match (self.by, announced) {
            (Announce::L2, _) => Ok(()),
            (_, true) => self.put_route(wanted),
            (_, false) => self.remove_routes(wanted),
        };
        if let Err(error) = &outcome {
            let text = match announced {
                true => format!("cannot add its route: {error}"),
                false => format!("cannot remove its route: {error}"),
            };
            if self.why.as_ref() != Some(&text) {
                tracing::error!(%address, %error, announced, "cannot change the route that announces the address");
            }
            self.why = Some(text);
            return false;
        }
        note(address, announced, why, Ok(()));
        self.changes += 1;
        self.announced = announced;
        self.returns |= !announced;
        self.usable_since_ms = None;
        if announced {
            self.why = None;
        }
        true
    }

    /// Adds the route that the settings say. The one that they said before goes afterwards.
    fn put_route(&mut self, wanted: AnnouncedRoute) -> io::Result<()> {
        added(wanted)?;
        if let Some(old) = self.route.filter(|old| *old != wanted) {
            old.remove()?;
        }
        self.route = Some(wanted);
        Ok(())
    }

    /// Removes the route that the settings say, and the one that they said before, if it is still there.
    fn remove_routes(&mut self, wanted: AnnouncedRoute) -> io::Result<()> {
        wanted.remove()?;
        self.route.map_or(Ok(()), AnnouncedRoute::remove)?;
        self.route = None;
        Ok(())
    }

    /// Adds the route again if it is gone.
    fn repair(&mut self, address: IpAddr, settings: Announcing) {
        match route(address, settings).add() {
            Ok(()) => {
                self.changes += 1;
                tracing::warn!(%address, "the route that announces the address was gone: added again");
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => tracing::error!(%address, %error, "cannot look at the route that announces the address"),
        }
    }
}

/// Why a route is replaced.
const MOVED: &str = "the table or the metric has changed";

/// Adds a route, unless it is there.
fn added(wanted: AnnouncedRoute) -> io::Result<()> {
    match wanted.add() {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            if AnnouncedRoute::all()?.contains(&wanted) {
                return Ok(());
            }
            let text = format!(
                "table {} has a route to it with the metric {} that is not Steelyard's: remove it, or set \
                 `route_metric`",
                wanted.table, wanted.metric
            );
            Err(io::Error::new(io::ErrorKind::AlreadyExists, text))
        }
        outcome => outcome,
    }
}

fn note(address: IpAddr, announced: bool, why: &str, outcome: io::Result<()>) {
    match (outcome, announced) {
        (Err(error), _) => {
            tracing::error!(%address, %error, "cannot change the route that announces the address");
        }
        (Ok(()), true) => tracing::info!(%address, why, "announcing the address"),
        (Ok(()), false) => tracing::warn!(%address, why, "withdrawing the address"),
    }
}

fn route(address: IpAddr, settings: Announcing) -> AnnouncedRoute {
    AnnouncedRoute { address, table: settings.table, metric: settings.metric }
}

fn rank(usable: &Usable) -> u8 {
    match usable {
        Usable::No(_) => 0,
        Usable::Unproven => 1,
        Usable::Yes => 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn when_to_announce() {
        let no = || Usable::No("none".to_owned());
        let mut address = Address::default();
        let mut check = |usable: Usable, now_ms: u64, expect: Step| {
            let step = address.step(&usable, now_ms, 10_000);
            assert_eq!(step, expect, "{usable:?} at {now_ms}: {address:?}");
            match step {
                Step::Announce => (address.announced, address.usable_since_ms) = (true, None),
                Step::Withdraw => (address.announced, address.returns) = (false, true),
                Step::Keep | Step::Release => {}
            }
        };
        check(no(), 0, Step::Keep);
        check(Usable::Unproven, 1, Step::Keep);
        // The first time at once.
        check(Usable::Yes, 2, Step::Announce);
        check(Usable::Yes, 3, Step::Keep);
        // A new endpoint that nothing has probed yet.
        check(Usable::Unproven, 4, Step::Keep);
        check(no(), 5, Step::Withdraw);
        check(Usable::Yes, 6, Step::Keep);
        check(Usable::Yes, 10_005, Step::Keep);
        check(no(), 10_006, Step::Keep);
        // The time begins anew.
        check(Usable::Yes, 10_007, Step::Keep);
        check(Usable::Yes, 20_006, Step::Keep);
        check(Usable::Yes, 20_007, Step::Announce);
    }

    #[test]
    fn one_node_at_a_time_on_a_link() {
        let no = || Usable::No("none".to_owned());
        let mut address = Address { by: Announce::L2, ..Address::default() };
        let mut check = |lease: Option<bool>, usable: Usable, now_ms: u64, expect: (Step, bool)| {
            let step = address.step_with(Some(lease), &usable, now_ms, 10_000);
            assert_eq!((step, address.ready), expect, "{lease:?} {usable:?} at {now_ms}: {address:?}");
            match step {
                Step::Announce => (address.announced, address.usable_since_ms) = (true, None),
                Step::Withdraw => (address.announced, address.returns) = (false, true),
                Step::Release => address.announced = false,
                Step::Keep => {}
            }
        };
        check(None, no(), 0, (Step::Keep, false));
        // It wants the Lease, and waits for it.
        check(None, Usable::Yes, 1, (Step::Keep, true));
        check(None, Usable::Yes, 2, (Step::Keep, true));
        check(Some(true), Usable::Yes, 3, (Step::Announce, true));
        check(Some(true), Usable::Unproven, 4, (Step::Keep, true));
        // The API server does not answer: nobody else can hold it now.
        check(Some(false), Usable::Yes, 5, (Step::Keep, true));
        // Another node holds it, and this one takes over as soon as it gets it.
        check(None, Usable::Yes, 6, (Step::Release, true));
        check(Some(true), Usable::Yes, 7, (Step::Announce, true));
        // It cannot serve any more, and lets another node have it.
        check(Some(true), no(), 8, (Step::Withdraw, false));
        check(Some(true), Usable::Yes, 9, (Step::Keep, false));
        check(None, Usable::Yes, 10_008, (Step::Keep, false));
        check(None, Usable::Yes, 10_009, (Step::Keep, true));
    }

    #[test]
    fn a_claim_of_another_host_is_heeded_when_the_lease_is_not_sure() {
        let at: IpAddr = "192.0.2.7".parse().unwrap();
        let (wanted, _wants) = watch::channel(BTreeSet::new());
        let (hold, held) = watch::channel(BTreeMap::from([(at, true)]));
        let mut all = Announcements { begun: true, ..Announcements::default() };
        all.set_leases(Leases { wanted, held });
        all.want(&BTreeMap::from([(at, Announce::L2)]), Announcing::default());
        let follow = |all: &mut Announcements, now_ms| {
            all.follow([(at, Usable::Yes)].into_iter(), now_ms, true);
            all.on_links().contains(&at)
        };
        assert!(follow(&mut all, 1));
        assert!(all.claimed(at, "02:00:00:00:00:09"), "the cluster says that it is ours");
        hold.send_replace(BTreeMap::from([(at, false)]));
        assert!(follow(&mut all, 2), "nobody has claimed it since");
        assert!(!all.claimed(at, "02:00:00:00:00:09"));
        assert!(!follow(&mut all, 20_000), "it has given way");
        hold.send_replace(BTreeMap::from([(at, true)]));
        assert!(follow(&mut all, 40_000));
    }

    #[test]
    fn what_an_earlier_process_announced_stays_without_proof() {
        let mut address = Address { announced: true, ..Address::default() };
        assert_eq!(address.step(&Usable::Unproven, 0, 10_000), Step::Keep);
        assert_eq!(address.step(&Usable::No("none".to_owned()), 1, 10_000), Step::Withdraw);
    }

    /// As root only, because it needs a network namespace: otherwise it reports a skip, and as root the run fails if it was skipped.
    #[test]
    fn a_route_that_cannot_be_moved_is_withdrawn_all_the_same() {
        use std::io::Write;
        if !rustix::process::geteuid().is_root() {
            _ = writeln!(
                std::io::stderr(),
                "SKIP a_route_that_cannot_be_moved_is_withdrawn_all_the_same: it needs root"
            );
            return;
        }
        let at: IpAddr = "192.0.2.7".parse().unwrap();
        let host = testkit::netns::Netns::new("announcer").unwrap();
        host.ip("link set lo up\nroute add unreachable 192.0.2.7 metric 2048").unwrap();
        let (first, second) = (Announcing::default(), Announcing { metric: 2048, ..Announcing::default() });
        let wanted = BTreeMap::from([(at, Announce::Route)]);
        host.inside(|| {
            let metrics = || AnnouncedRoute::all().unwrap().iter().map(|route| route.metric).collect::<Vec<_>>();
            let mut announcements = Announcements::default();
            announcements.want(&wanted, first);
            announcements.follow([(at, Usable::Yes)].into_iter(), 0, false);
            assert_eq!(metrics(), [first.metric]);
            // The other route is not ours. Until it is gone, the old one announces the address.
            announcements.want(&wanted, second);
            announcements.follow([(at, Usable::Yes)].into_iter(), 1, true);
            assert_eq!(metrics(), [first.metric]);
            assert!(announcements.status(at).unwrap().why.unwrap().contains("is not Steelyard's"));
            announcements.follow([(at, Usable::No("none".to_owned()))].into_iter(), 2, false);
            assert!(metrics().is_empty());
        });
        host.ip("route del unreachable 192.0.2.7 metric 2048").unwrap();
        host.inside(|| {
            let metrics = || AnnouncedRoute::all().unwrap().iter().map(|route| route.metric).collect::<Vec<_>>();
            let mut announcements = Announcements::default();
            announcements.want(&wanted, first);
            announcements.follow([(at, Usable::Yes)].into_iter(), 0, false);
            announcements.want(&wanted, second);
            assert_eq!(metrics(), [second.metric]);
            announcements.end("the test ends");
            assert!(metrics().is_empty());
        });
    }
}
