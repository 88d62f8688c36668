//! Which addresses of vips are announced, and since when.
//!
//! Job: decide by the usability of the vips, and have the routes of the decision. Not its job: what is usable
//! ([`super::KernelPlane`]), and passing routes on to routers, which a routing daemon does.
//!
//! An address is withdrawn as soon as none of its vips is usable, and comes back when one has been usable for
//! `announce_after`: an endpoint that comes and goes moves clients once. What an earlier process announced stays
//! announced while nothing says that it is not usable, so a successor changes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;

use admin::{AnnouncementState, AnnouncementStatus};
use l4::AnnouncedRoute;
use model::Announcing;

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
}

/// An address to announce.
#[derive(Debug, Default)]
struct Address {
    /// It has its route.
    announced: bool,
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
}

impl Announcements {
    /// Withdraws addresses that are no longer wanted, before their vips go, and takes over what an earlier process
    /// left.
    pub(super) fn want(&mut self, wanted: &BTreeSet<IpAddr>, settings: Announcing) {
        let moves = self.begun && (settings.table, settings.metric) != (self.settings.table, self.settings.metric);
        let old = std::mem::replace(&mut self.settings, settings);
        if wanted.is_empty() && self.addresses.is_empty() && self.begun {
            return;
        }
        if !self.begun {
            self.take_over(wanted);
        }
        let gone: Vec<IpAddr> = self.addresses.keys().filter(|address| !wanted.contains(address)).copied().collect();
        for address in gone {
            let known = self.addresses.remove(&address).unwrap_or_default();
            if known.announced {
                note(address, false, "no vip asks for it any more", route(address, old).remove());
            }
        }
        for address in wanted {
            let known = self.addresses.entry(*address).or_default();
            // The new route is there before the old one goes.
            if moves && known.announced && known.set(*address, settings, true, "the table or the metric has changed") {
                note(*address, false, "the table or the metric has changed", route(*address, old).remove());
            }
        }
    }

    /// Reads the routes of an earlier process. Those that are wanted stay, and the others go.
    fn take_over(&mut self, wanted: &BTreeSet<IpAddr>) {
        let routes = match AnnouncedRoute::all() {
            Ok(routes) => routes,
            // The next snapshot tries again.
            Err(error) => return tracing::error!(%error, "cannot read which addresses are announced"),
        };
        self.begun = true;
        for found in routes {
            let is_wanted = wanted.contains(&found.address) && found == route(found.address, self.settings);
            if is_wanted {
                let known = Address { announced: true, ..Address::default() };
                self.addresses.insert(found.address, known);
                tracing::info!(address = %found.address, "an earlier process has announced the address: it stays so");
            } else {
                note(found.address, false, "an earlier process left it", found.remove());
            }
        }
    }

    /// Without any address: the routes are gone with the programs.
    pub(super) fn emptied(&self) -> Self {
        Self { ended: self.ended, ..Self::default() }
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
        for (address, known) in &mut self.addresses {
            let usable = best.remove(address).unwrap_or_else(|| Usable::No("it has no vip".to_owned()));
            match known.step(&usable, now_ms, settings.after.as_millis()) {
                Step::Announce => drop(known.set(*address, settings, true, "it is usable")),
                Step::Withdraw => {
                    let why = known.why.clone().unwrap_or_default();
                    known.set(*address, settings, false, &why);
                }
                Step::Keep if again && known.announced => known.repair(*address, settings),
                Step::Keep => {}
            }
        }
    }

    /// Withdraws everything for as long as this process lives.
    pub(super) fn end(&mut self, why: &str) {
        self.ended = true;
        for (address, known) in &mut self.addresses {
            if known.announced {
                known.set(*address, self.settings, false, why);
            }
            known.why = Some(why.to_owned());
        }
    }

    /// The state of an address; `None` if it is not to be announced.
    pub(super) fn status(&self, address: IpAddr) -> Option<AnnouncementStatus> {
        let known = self.addresses.get(&address)?;
        let state = match (known.announced, known.usable_since_ms) {
            (true, _) => AnnouncementState::Announced,
            (false, Some(_)) => AnnouncementState::Waiting,
            (false, None) => AnnouncementState::Withdrawn,
        };
        Some(AnnouncementStatus { by: "route".to_owned(), state, why: known.why.clone(), changes: known.changes })
    }
}

impl Address {
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

    /// Adds or removes the route. Returns false if the kernel refused; the next collection tries again.
    fn set(&mut self, address: IpAddr, settings: Announcing, announced: bool, why: &str) -> bool {
        let wanted = route(address, settings);
        let outcome = match announced {
            true => added(wanted),
            false => wanted.remove(),
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
                Step::Keep => {}
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
    fn what_an_earlier_process_announced_stays_without_proof() {
        let mut address = Address { announced: true, ..Address::default() };
        assert_eq!(address.step(&Usable::Unproven, 0, 10_000), Step::Keep);
        assert_eq!(address.step(&Usable::No("none".to_owned()), 1, 10_000), Step::Withdraw);
    }
}
