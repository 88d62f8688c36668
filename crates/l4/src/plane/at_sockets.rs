//! Which control group's processes are balanced at the socket, and what is wrong with it. `sockets` attaches the programs.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use libbpf_rs::MapHandle;

use super::Plane;
use crate::abi::{LB_ENDPOINT_DOWN, LB_SOCKETS_MAX, lb_uses};
use crate::destroy::{self, Ended};
use crate::sockets::{self, AtSockets};
use crate::sync::get;
use crate::{Refusal, Sockets};

/// After so many rounds that ended nothing, there are 2^n - 1 collections between two of them, which is about a minute.
const IDLE_ROUNDS_MAX: u32 = 5;

/// A control group whose processes cannot be served.
#[derive(Debug)]
pub(super) struct Refused {
    cgroup: PathBuf,
    why: String,
    /// Its inode at the time; `None` if there is no such group.
    id: Option<u64>,
}

/// The rounds through all sockets of dead endpoints.
#[derive(Debug, Default)]
pub(super) struct Ends {
    thread: Option<JoinHandle<Ended>>,
    /// The endpoints of this round.
    dead: BTreeSet<u32>,
    /// The cookie after which the next thread begins, so that sockets that cannot be ended do not keep others waiting.
    after: u64,
    /// Whether this round has ended any.
    is_useful: bool,
    /// Rounds in succession that ended nothing, up to [`IDLE_ROUNDS_MAX`], and the collections to wait because of them.
    idle_rounds: u32,
    skip: u32,
    /// Why some sockets could not be ended.
    cannot: Option<String>,
}

impl Ends {
    /// What the thread did, once it has finished.
    fn take(&mut self) -> Option<Ended> {
        let thread = self.thread.take_if(|thread| thread.is_finished())?;
        thread.join().ok()
    }

    fn note(&mut self, ended: Ended) {
        self.after = ended.last.unwrap_or(0);
        self.is_useful |= !ended.sockets.is_empty();
        if self.after == 0 {
            self.idle_rounds = if self.is_useful { 0 } else { (self.idle_rounds + 1).min(IDLE_ROUNDS_MAX) };
            self.skip = (1 << self.idle_rounds) - 1;
            self.is_useful = false;
        }
        self.cannot = ended.why_not;
    }

    fn begin(&mut self, map: &MapHandle, dead: BTreeSet<u32>) -> Result<(), Refusal> {
        if dead.is_empty() {
            // A thread that still works finds nothing else to end.
            self.cannot = None;
        }
        if self.thread.is_some() {
            return Ok(());
        }
        if dead != self.dead {
            (self.after, self.skip, self.idle_rounds) = (0, 0, 0);
        }
        self.dead = dead;
        if self.dead.is_empty() || self.skip > 0 {
            self.skip = self.skip.saturating_sub(1);
            return Ok(());
        }
        let map = MapHandle::try_from(map).map_err(|error| Refusal::kernel("open the map of sockets", error))?;
        let (dead, after) = (self.dead.clone(), self.after);
        let thread = std::thread::Builder::new().name("sock-destroy".to_owned());
        match thread.spawn(move || destroy::end_of_endpoints(&map, &dead, after)) {
            Ok(thread) => self.thread = Some(thread),
            Err(error) => self.cannot = Some(format!("cannot start a thread: {error}")),
        }
        Ok(())
    }
}

impl Plane {
    /// Balances the connections of this control group's processes, and of those below it, when they connect. `None` ends that, also if an
    /// earlier process began it. A failure costs the vips nothing, and leaves the processes that are served in service: it is logged, and
    /// [`Plane::sockets`] reports it.
    pub fn balance_sockets(&mut self, cgroup: Option<&Path>) {
        self.sockets_wanted = cgroup.map(Path::to_owned);
        self.sockets_refused = None;
        let set = self.set_cgroup(cgroup);
        self.end_earlier();
        let Err(refusal) = set else { return };
        tracing::error!(%refusal, "cannot change how connections of this host's processes are balanced; packets of vips still are");
        let Some(cgroup) = cgroup.map(Path::to_owned).or_else(|| self.sockets.as_ref().map(|it| it.cgroup.clone()))
        else {
            return;
        };
        let id = sockets::id_of(&cgroup);
        self.sockets_refused = Some(Refused { cgroup, why: refusal.to_string(), id });
    }

    /// From now on, an earlier process with another layout has no programs any more: ours serve everywhere.
    fn end_earlier(&mut self) {
        let Some(mut earlier) = self.earlier.take() else { return };
        if let Err(refusal) = earlier.end_at_interfaces(&self.maps) {
            tracing::warn!(%refusal, "cannot take over all connections of an earlier version");
        }
        if let Err(refusal) = earlier.remove() {
            tracing::warn!(%refusal, "cannot remove the tables of an earlier version");
        }
    }

    fn set_cgroup(&mut self, cgroup: Option<&Path>) -> Result<(), Refusal> {
        match cgroup {
            Some(cgroup) if self.sockets.as_ref().is_some_and(|sockets| sockets.is_at(cgroup)) => {}
            Some(cgroup) => {
                let earlier = self.earlier.as_ref().map(|earlier| (earlier, &self.maps));
                self.sockets = Some(AtSockets::attach(&self.pins, earlier, cgroup)?);
            }
            None => {
                sockets::detach(&self.pins, &self.maps, &self.held)?;
                self.sockets = None;
            }
        }
        Ok(())
    }

    /// The group may be removed and made again at any time, for example by a service manager. The programs went with the old one.
    pub(super) fn follow_cgroup(&mut self) {
        let Some(wanted) = self.sockets_wanted.clone() else { return };
        let now = sockets::id_of(&wanted);
        let is_known = match (&self.sockets_refused, &self.sockets) {
            (Some(refused), _) => refused.id == now,
            (None, Some(sockets)) => sockets.is_at(&wanted),
            (None, None) => true,
        };
        if !is_known {
            self.balance_sockets(Some(&wanted));
        }
    }

    /// Ends the sockets that are connected to dead endpoints of vips that reset connections to these. A thread does that, which may need
    /// seconds: the next call that finds it finished takes note of what came of it.
    pub(super) fn end_sockets(&mut self) -> Result<(), Refusal> {
        let Some(sockets) = &self.sockets else {
            self.ends = Ends::default();
            return Ok(());
        };
        if let Some(ended) = self.ends.take() {
            if !ended.sockets.is_empty() {
                // Their processes may keep them open. No program hears of the end of a UDP socket.
                sockets.forget(&ended.sockets)?;
                tracing::info!(sockets = ended.sockets.len(), "ended sockets that were connected to dead endpoints");
            }
            if let Some(why) = ended.why_not.as_ref().filter(|why| self.ends.cannot.as_ref() != Some(why)) {
                tracing::warn!(why, "cannot end sockets that are connected to dead endpoints");
            }
            self.ends.note(ended);
        }
        let is_ending = |vip: &u32| self.plan.vips.get(vip).is_some_and(|named| self.ending.contains(&named.name));
        let mut dead = BTreeSet::new();
        for (id, endpoint) in &self.held.endpoints {
            if u32::from(endpoint.state) == LB_ENDPOINT_DOWN
                && is_ending(&endpoint.vip)
                && get::<u32, lb_uses>(&self.maps.uses, id)?.is_some_and(|uses| uses.open > 0)
            {
                dead.insert(*id);
            }
        }
        self.ends.begin(&sockets.map, dead)
    }

    /// How connections of this host's own processes are balanced. `None`: they are not.
    pub fn sockets(&self) -> Option<Sockets> {
        let (open_max, cannot_end) = (LB_SOCKETS_MAX, self.ends.cannot.clone());
        let attached = self.sockets.as_ref().map(|sockets| sockets.cgroup.clone());
        let Some(refused) = &self.sockets_refused else {
            return attached.map(|cgroup| Sockets { cgroup, why_not: None, open_max, cannot_end });
        };
        // The same group, if it was removed: its sockets that are still open see the vips.
        let serving = match attached {
            Some(attached) if attached != refused.cgroup => {
                format!("; the processes of {} are still balanced", attached.display())
            }
            None if !self.pins.socket_links().is_empty() => {
                "; the programs that an earlier process attached are still in force".to_owned()
            }
            _ => String::new(),
        };
        let why_not = Some(format!("{}{serving}", refused.why));
        Some(Sockets { cgroup: refused.cgroup.clone(), why_not, open_max, cannot_end })
    }
}
