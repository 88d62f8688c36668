//! The thread that follows the cluster: it puts news into the index, turns the index into snapshots, and writes statuses back.
//!
//! It is one loop that handles one change after another. It publishes a first change at once. Changes that arrive while a snapshot is being
//! adopted are published together, and the loop never uses more than a tenth of a CPU for this. Nothing that the API server does or fails
//! to do stops what is being served.

mod contest;
mod due;
mod telling;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use jiff::Timestamp;
use kube::Client;
use model::{Snapshot, Vip};
use rustix::time::{ClockId, clock_gettime};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::index::{Index, Kind, Name};
use crate::settings::Settings;
use crate::translate::{
    self, Circumstances, Memory, Notice, RefusedObject, RefusedVip, ServiceFault, Translation, translate,
};
use crate::watch::{News, Scoped, Unreadable};
use crate::write::Writer;
use contest::{Contest, Verdict};
use due::Due;
pub(crate) use due::Outcome as WriteOutcome;
use telling::Telling;

/// News that are taken in at once before a translation.
const NEWS_AT_ONCE: usize = 1024;

/// The pause between two snapshots: ten times the CPU time that the last one cost, within these bounds. On a busy host this is far less
/// than the time that has passed: a change in a storm of others waited for other processes ten times over.
const REST: (Duration, Duration) = (Duration::from_millis(5), Duration::from_secs(1));
const REST_FACTOR: u32 = 10;

/// The time until an address that could not be bound, or a write that failed, is tried again. It is also the time between two checks for
/// Services without endpoints: a Service that has none at two checks is reported.
const AGAIN_AFTER: Duration = Duration::from_secs(15);

/// Concurrent writes.
const WRITES_AT_ONCE: usize = 8;

/// Statuses that are checked before the loop looks at everything else again.
const CHECKS_AT_ONCE: usize = 64;

/// A snapshot, and the channel for its outcome.
pub struct Update {
    /// What to serve. The receiver sets its generation.
    pub snapshot: Snapshot,
    /// Only endpoints differ from the previous snapshot: certificates and sockets are the same.
    pub endpoints_only: bool,
    /// The kernel plane has refused these vips. It keeps what it serves and is not asked again.
    pub keep_vips: bool,
    /// Why the kernel plane has refused them.
    pub kernel_refusal: Option<String>,
    /// The whole cluster was read and nothing in it asks for a vip. False if a vip was left out because it was refused, or if something
    /// that may ask for one cannot be read.
    pub wants_no_vip: bool,
    /// What is wrong with Services that this node serves.
    pub service_faults: Vec<ServiceFault>,
    /// The objects that are not served as they say, and the number of those that were left out.
    pub refused_objects: (Vec<RefusedObject>, usize),
    /// The channel for the outcome.
    pub outcome: oneshot::Sender<Outcome>,
}

/// What happened to a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is in use.
    Adopted,
    /// It was refused, and the previous one is in use.
    Refused(Refusal),
}

/// Why a snapshot is not in use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refusal {
    /// Addresses that could not be bound, and why.
    pub binds: Vec<(SocketAddr, String)>,
    /// The kernel plane refused the snapshot.
    pub kernel: bool,
    /// The names of the vips that it refused, and why, if it could serve the others.
    pub vips: Vec<(String, String)>,
    /// The reason as a sentence.
    pub why: String,
}

/// The state of the controller thread.
pub(crate) struct Reconciler {
    pub(crate) settings: Settings,
    pub(crate) index: Index,
    /// Watches that have not read their first list.
    pub(crate) expected: BTreeSet<Scoped>,
    /// The version of each kind, which is also used to write its objects.
    versions: BTreeMap<Kind, &'static str>,
    pub(crate) updates: mpsc::Sender<Update>,
    pub(crate) writer: Writer,
    circumstances: Circumstances,
    /// The versions differ from those of the last translation.
    moved: bool,
    translation: Translation,
    /// The vips of the last adopted snapshot that had them, by name.
    serving: BTreeMap<String, Vip>,
    memory: Memory,
    /// A snapshot whose outcome is not known yet.
    pending: Option<oneshot::Receiver<Outcome>>,
    /// The statuses of the translation are true, because its snapshot is in use.
    in_use: bool,
    /// The earliest time of the next snapshot.
    rest_until: Instant,
    /// Statuses that may have to be written.
    due: Due,
    /// Statuses that others write, too. A period lasts [`AGAIN_AFTER`].
    contest: Contest,
    /// Services of Gateways and EndpointSlices that may have to be written.
    making: Due,
    telling: Telling,
    /// Services that had no endpoints at the last check.
    bare: BTreeSet<Name>,
    again_at: Instant,
    /// The reason of the last refusal.
    last_refusal: Option<String>,
}

/// The result of a write to the API server.
enum Written {
    Status((Kind, Name), WriteOutcome),
    /// Of a Service of a Gateway, or of one of its EndpointSlices.
    Made((Kind, Name), WriteOutcome),
    /// An Event about the object.
    Told((Kind, Name), Result<(), String>),
}

impl Reconciler {
    pub(crate) fn new(
        settings: Settings,
        expected: BTreeSet<Scoped>,
        updates: mpsc::Sender<Update>,
        client: Client,
    ) -> Self {
        let now = Instant::now();
        Self {
            writer: Writer::new(client, &settings),
            index: Index::of(&settings),
            settings,
            expected,
            versions: BTreeMap::new(),
            updates,
            circumstances: Circumstances::default(),
            moved: true,
            translation: Translation::default(),
            serving: BTreeMap::new(),
            memory: Memory::default(),
            pending: None,
            in_use: false,
            rest_until: now,
            due: Due::default(),
            contest: Contest::default(),
            making: Due::default(),
            telling: Telling::new(now),
            bare: BTreeSet::new(),
            again_at: now + AGAIN_AFTER,
            last_refusal: None,
        }
    }

    /// Runs until the receiver of the snapshots is gone.
    pub(crate) async fn run(mut self, mut news: mpsc::Receiver<News>, mut leads: watch::Receiver<bool>) {
        let mut writes: JoinSet<Written> = JoinSet::new();
        let updates = self.updates.clone();
        loop {
            self.publish();
            self.write(&mut writes);
            let has_events = self.leads() && self.in_use && writes.len() < WRITES_AT_ONCE;
            let has_checks = has_events && !(self.due.is_empty() && self.making.is_empty());
            tokio::select! {
                () = updates.closed() => return,
                Some(first) = news.recv() => {
                    self.take(first);
                    for _ in 1..NEWS_AT_ONCE {
                        let Ok(more) = news.try_recv() else { break };
                        self.take(more);
                    }
                }
                outcome = outcome(&mut self.pending) => self.hear(outcome),
                Ok(()) = leads.changed() => self.lead(*leads.borrow_and_update()),
                Some(Ok(written)) = writes.join_next() => self.written(written),
                () = tokio::time::sleep_until(self.rest_until), if self.wants_to_publish() => {}
                () = tokio::time::sleep_until(self.again_at) => self.try_again(),
                () = until(self.telling.due()), if has_events => {}
                () = std::future::ready(()), if has_checks => {}
            }
        }
    }

    fn leads(&self) -> bool {
        self.circumstances.allots
    }

    fn lead(&mut self, leads: bool) {
        if self.circumstances.allots != leads {
            self.circumstances.allots = leads;
            self.moved = true;
            // The previous holder may have written other statuses and sent other Events, or none.
            self.due.extend(self.translation.statuses.keys().cloned());
            self.circumstances.unmade.clear();
            self.making.extend(self.translation.infrastructure.all());
            self.telling.begin_anew();
        }
    }

    fn take(&mut self, news: News) {
        match news {
            News::Applied(object) => self.index.apply(object),
            News::Removed(kind, name) => self.index.remove(kind, &name),
            News::Listed(about, version, listed) => {
                let (kind, scope) = &about;
                let kind = *kind;
                self.versions.insert(kind, version);
                let is_within = |name: &Name| scope.as_ref().is_none_or(|scope| **scope == *name.namespace);
                for gone in self.index.names(kind).into_iter().filter(|name| is_within(name) && !listed.contains(name))
                {
                    self.index.remove(kind, &gone);
                }
                self.readable(&about);
                self.no_longer_expected(&about);
            }
            News::Unreadable(about, why) => self.unreadable(about, why),
        }
    }

    fn no_longer_expected(&mut self, about: &Scoped) {
        if self.expected.remove(about) && self.expected.is_empty() {
            self.index.pack();
            tracing::info!("the cluster has been read");
        }
    }

    fn readable(&mut self, about: &Scoped) {
        if self.index.unreadable.remove(about).is_some() {
            tracing::info!(kind = about.0.told().1, "can be read again");
            self.moved = true;
        }
    }

    /// Records that some objects cannot be read. What is known of them stays in use, and everything else goes on.
    fn unreadable(&mut self, about: Scoped, why: Unreadable) {
        let (kind, scope) = &about;
        let is_within = |name: &Name| scope.as_ref().is_none_or(|scope| **scope == *name.namespace);
        let known = self.index.names(*kind).into_iter().filter(is_within).count();
        // Few clusters have all kinds. It is only a fault if objects of the kind are still known.
        let is_fault = why == Unreadable::Forbidden || known > 0;
        if is_fault && self.index.unreadable.get(&about) != Some(&why) {
            tracing::error!(
                kind = kind.told().1,
                namespace = scope.as_deref(),
                known,
                ?why,
                "cannot be read; known objects stay in use"
            );
            self.index.unreadable.insert(about.clone(), why);
            self.moved = true;
        }
        let is_expected = self.expected.contains(&about);
        if is_expected && kind.is_essential() {
            tracing::error!(kind = kind.told().1, "not ready without this kind: every request would get an error");
        } else if is_expected && kind.is_protective() && why == Unreadable::Forbidden {
            tracing::error!(
                kind = kind.told().1,
                namespace = scope.as_deref(),
                "not ready until this kind may be listed and watched: what its objects forbid would be served"
            );
        } else {
            self.no_longer_expected(&about);
        }
    }

    fn wants_to_publish(&self) -> bool {
        let is_news = self.moved || self.index.changes().all || !self.index.changes().endpoints.is_empty();
        self.expected.is_empty() && self.pending.is_none() && is_news
    }

    /// Makes a snapshot of the changes, if it is time to.
    fn publish(&mut self) {
        let statuses = self.index.take_statuses();
        self.due.extend(statuses);
        let made = self.index.take_made();
        self.make(made);
        let begun = Instant::now();
        let cpu_before = cpu_time();
        if !self.wants_to_publish() || begun < self.rest_until {
            return;
        }
        let changes = self.index.take_changes();
        let mut endpoints_only = !std::mem::take(&mut self.moved)
            && !changes.all
            && !self.translation.is_outdated(&self.index, &self.settings, &changes.endpoints);
        if endpoints_only {
            let made = self.translation.infrastructure.follow(&self.index, &changes.endpoints);
            self.make(made);
            let is_news = self.translation.follow(&self.index, &changes.endpoints);
            endpoints_only = !self.translation.outgrew();
            if endpoints_only && !is_news {
                return;
            }
        }
        if !endpoints_only {
            let mut translation = translate(&self.index, &self.settings, &self.circumstances, &mut self.memory);
            translation.keep(&self.translation);
            self.make(translation.infrastructure.changed_since(&self.translation.infrastructure));
            self.contest.changed(|about| translation.statuses.get(about) != self.translation.statuses.get(about));
            self.translation = translation;
            self.in_use = false;
        }
        let snapshot = self.translation.snapshot(&self.settings);
        let (sender, receiver) = oneshot::channel();
        let Circumstances { kernel, vips, .. } = &self.circumstances;
        let (keep_vips, kernel_refusal) = (kernel.is_some(), kernel.clone());
        let wants_no_vip =
            snapshot.vips.is_empty() && !keep_vips && vips.is_empty() && self.index.unreadable.is_empty();
        let (service_faults, refused_objects) = (self.translation.service_faults(), self.translation.refused_objects());
        let update = Update {
            snapshot,
            endpoints_only,
            keep_vips,
            kernel_refusal,
            wants_no_vip,
            service_faults,
            refused_objects,
            outcome: sender,
        };
        // There is room: the next snapshot is only sent after the outcome of the previous one.
        if self.updates.try_send(update).is_ok() {
            self.pending = Some(receiver);
        }
        let cost = cpu_time().saturating_sub(cpu_before);
        self.rest_until = begun + (cost * REST_FACTOR).clamp(REST.0, REST.1);
    }

    /// Makes objects of Gateways due. One that could not be written is only retried with everything else that has failed.
    fn make(&mut self, objects: impl IntoIterator<Item = (Kind, Name)>) {
        let unmade = &self.circumstances.unmade;
        self.making.extend(objects.into_iter().filter(|about| !unmade.contains_key(about)));
    }

    /// Handles the outcome of a snapshot.
    fn hear(&mut self, outcome: Option<Outcome>) {
        self.pending = None;
        if outcome == Some(Outcome::Adopted) && self.circumstances.kernel.is_none() {
            self.serving = self.translation.vips().map(|vip| (vip.name.clone(), vip.clone())).collect();
        }
        match outcome {
            Some(Outcome::Adopted) if !self.in_use => {
                self.in_use = true;
                self.due.extend(self.translation.statuses.keys().cloned());
                self.note();
                if self.circumstances.binds.is_empty() && self.circumstances.kernel.is_none() {
                    self.last_refusal = None;
                }
            }
            Some(Outcome::Refused(refusal)) => self.learn(refusal),
            // The snapshot only changed endpoints, or the process is about to end.
            Some(Outcome::Adopted) | None => {}
        }
    }

    /// Removes what cannot be served from the next snapshot.
    fn learn(&mut self, refusal: Refusal) {
        // It is retried again and again, but reported once.
        if self.last_refusal.replace(refusal.why.clone()).as_ref() != Some(&refusal.why) {
            tracing::error!(why = refusal.why, "a snapshot of the cluster was refused; the previous one stays in use");
        }
        let mut learned = self.circumstances.clone();
        learned.binds.extend(refusal.binds);
        for (name, why) in refusal.vips {
            // A vip that is also refused as it was served before cannot be kept.
            let held = if learned.vips.contains_key(&name) { None } else { self.serving.get(&name).cloned() };
            learned.vips.insert(name, RefusedVip { why, held });
        }
        if refusal.kernel && learned.vips == self.circumstances.vips {
            learned.kernel = Some(refusal.why.clone());
        }
        if learned == self.circumstances {
            // There is nothing to leave out, so the refusal applies to the whole snapshot.
            learned.refused = Some(refusal.why);
        }
        if learned == self.circumstances {
            self.in_use = true;
            self.due.extend(self.translation.statuses.keys().cloned());
        } else {
            self.circumstances = learned;
            self.moved = true;
        }
        self.again_at = Instant::now() + AGAIN_AFTER;
    }

    /// Forgets past failures, because a retry may succeed now. It also looks for Services without endpoints.
    fn try_again(&mut self) {
        self.again_at = Instant::now() + AGAIN_AFTER;
        let bare = self.translation.empty();
        let empty = bare.intersection(&self.bare).cloned().collect();
        self.bare = bare;
        let Circumstances { allots, unmade, .. } = self.circumstances.clone();
        let hopeful = Circumstances { allots, unmade, empty, ..Circumstances::default() };
        if self.circumstances != hopeful {
            self.circumstances = hopeful;
            self.moved = true;
        }
        if self.contest.begin_period() {
            self.note();
        }
        self.due.try_again();
        self.making.try_again();
    }

    /// Records what has to be reported.
    fn note(&mut self) {
        let mut notices = self.translation.notices.clone();
        notices.extend(self.contest.contested().filter_map(|about| self.contested(about)));
        for notice in self.telling.note(&notices, Instant::now()) {
            let (kind, name) = &notice.about;
            tracing::warn!(?kind, object = %name, reason = &*notice.reason, "{}", notice.message);
        }
    }

    fn contested(&self, about: &(Kind, Name)) -> Option<Notice> {
        let message = format!(
            "another writer changes this status again and again, so it is corrected only every {AGAIN_AFTER:?}: is there a second \
             installation with the controller name {}?",
            self.settings.controller_name
        );
        Notice::of(&self.index, about, "StatusContested", message)
    }

    /// Writes what is due, as long as there is room.
    fn write(&mut self, writes: &mut JoinSet<Written>) {
        if !self.leads() {
            self.telling.keep_silent();
            return;
        }
        if !self.in_use {
            return;
        }
        while writes.len() < WRITES_AT_ONCE {
            let Some(notice) = self.telling.next(Instant::now()) else { break };
            let (about, telling) = (notice.about.clone(), self.writer.tell(notice));
            writes.spawn(async move { Written::Told(about, telling.await) });
        }
        let now = Timestamp::now();
        // In whole seconds, like metav1.Time.
        let now = Timestamp::from_second(now.as_second()).unwrap_or(now).to_string();
        for _ in 0..CHECKS_AT_ONCE {
            if writes.len() >= WRITES_AT_ONCE {
                return;
            }
            let Some(about) = self.due.next() else { break };
            let desired = self.translation.statuses.get(&about);
            let due = desired.and_then(|desired| translate::write(&self.index, &self.settings, &about, desired, &now));
            let Some(due) = due else { continue };
            let verdict = self.contest.judge(&about);
            if verdict != Verdict::Write {
                self.due.postpone(about);
                if verdict == Verdict::Contested {
                    self.note();
                }
                continue;
            }
            self.due.begin(about.clone());
            let version = self.versions.get(&about.0).copied().unwrap_or("v1");
            let writing = self.writer.write(&about, version, due);
            writes.spawn(async move { Written::Status(about, writing.await) });
        }
        for _ in 0..CHECKS_AT_ONCE {
            if writes.len() >= WRITES_AT_ONCE {
                return;
            }
            let Some(about) = self.making.next() else { return };
            match self.translation.infrastructure.write(&self.index, &self.settings, &about) {
                Some(making) => {
                    self.making.begin(about.clone());
                    let making = self.writer.make(&about, making);
                    writes.spawn(async move { Written::Made(about, making.await) });
                }
                None => self.moved |= self.circumstances.unmade.remove(&about).is_some(),
            }
        }
    }

    fn written(&mut self, written: Written) {
        match written {
            Written::Status(about, outcome) => {
                if outcome != WriteOutcome::Written {
                    tracing::debug!(kind = ?about.0, object = %about.1, ?outcome, "could not write a status");
                }
                self.due.end(about, &outcome);
            }
            Written::Made(about, outcome) => {
                let unmade = &mut self.circumstances.unmade;
                self.moved |= match &outcome {
                    WriteOutcome::Written => unmade.remove(&about).is_some(),
                    WriteOutcome::Conflict => false,
                    WriteOutcome::Failed(why) => unmade.insert(about.clone(), why.clone()).as_ref() != Some(why),
                };
                self.making.end(about, &outcome);
            }
            Written::Told((kind, object), Err(why)) => {
                tracing::debug!(?kind, %object, why, "could not write an Event");
            }
            Written::Told(_, Ok(())) => {}
        }
    }
}

/// The CPU time of this thread.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

/// Waits until then, or forever if there is no such time.
async fn until(then: Option<Instant>) {
    match then {
        Some(then) => tokio::time::sleep_until(then).await,
        None => std::future::pending().await,
    }
}

/// The outcome of the pending snapshot. Waits forever if there is none.
async fn outcome(pending: &mut Option<oneshot::Receiver<Outcome>>) -> Option<Outcome> {
    match pending {
        Some(receiver) => receiver.await.ok(),
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
