//! The thread that follows the cluster: news into the index, the index into snapshots, and statuses back.
//!
//! One loop, one change after another. A first change is published at once; what comes while that is put to use is published together, and
//! never so often that it takes more than a tenth of a CPU. Nothing that the API server does or fails to do takes back what is served.

mod due;
mod telling;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use jiff::Timestamp;
use kube::Client;
use model::{Snapshot, Vip};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::index::{Index, Kind, Name};
use crate::settings::Settings;
use crate::translate::{self, Circumstances, RefusedVip, Regexes, Translation, translate};
use crate::watch::{News, Scoped, Unreadable};
use crate::write::Writer;
use due::Due;
pub(crate) use due::Outcome as WriteOutcome;
use telling::Telling;

/// News taken in at once before anything is made of them.
const NEWS_AT_ONCE: usize = 1024;

/// Between two snapshots: ten times what the last one cost, and within these bounds.
const REST: (Duration, Duration) = (Duration::from_millis(5), Duration::from_secs(1));
const REST_FACTOR: u32 = 10;

/// How long until a place where nothing could listen is tried again, or a write that failed. And between two looks at which Services have no
/// endpoints: one that has none at two looks is told.
const AGAIN_AFTER: Duration = Duration::from_secs(15);

/// Writes under way at once.
const WRITES_AT_ONCE: usize = 8;

/// Statuses looked at between two looks at everything else.
const CHECKS_AT_ONCE: usize = 64;

/// A snapshot, and the way to say what became of it.
pub struct Update {
    /// What is to be served. Its generation is for whoever puts it to use to give.
    pub snapshot: Snapshot,
    /// Nothing but endpoints is different from the one before: certificates and sockets are the same.
    pub endpoints_only: bool,
    /// The kernel plane has refused these vips: what it serves stays as it is, and is not asked about.
    pub keep_vips: bool,
    /// The whole cluster was read, and nothing in it asks for a vip. False where a vip is left out because it was refused, or where something that
    /// may ask for one cannot be read.
    pub wants_no_vip: bool,
    /// What became of it.
    pub outcome: oneshot::Sender<Outcome>,
}

/// What became of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is in use.
    Adopted,
    /// It is not; the one before is.
    Refused(Refusal),
}

/// Why a snapshot is not in use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refusal {
    /// Places where nothing can listen, and why.
    pub binds: Vec<(SocketAddr, String)>,
    /// It is the kernel plane that refused.
    pub kernel: bool,
    /// The vips that it refused, by their names, and why, while it could serve the others.
    pub vips: Vec<(String, String)>,
    /// In a sentence.
    pub why: String,
}

/// The state of the controller's thread.
pub(crate) struct Reconciler {
    pub(crate) settings: Settings,
    pub(crate) index: Index,
    /// Watches that have not read their first list.
    pub(crate) expected: BTreeSet<Scoped>,
    /// Each kind's, by which its objects are written, too.
    versions: BTreeMap<Kind, &'static str>,
    pub(crate) updates: mpsc::Sender<Update>,
    pub(crate) writer: Writer,
    circumstances: Circumstances,
    /// They are not those of the last translation.
    moved: bool,
    translation: Translation,
    /// Vips of the last snapshot that was adopted with them, by their names.
    serving: BTreeMap<String, Vip>,
    regexes: Regexes,
    /// A snapshot under way.
    pending: Option<oneshot::Receiver<Outcome>>,
    /// The statuses of the translation are true: its snapshot is in use.
    in_use: bool,
    /// Nothing is published before.
    rest_until: Instant,
    /// Statuses that may have to be written.
    due: Due,
    telling: Telling,
    /// Services that had no endpoints at the last look.
    bare: BTreeSet<Name>,
    again_at: Instant,
    /// What was said of the last snapshot that was refused.
    last_refusal: Option<String>,
}

/// The end of a write to the API server.
enum Written {
    Status((Kind, Name), WriteOutcome),
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
            settings,
            index: Index::default(),
            expected,
            versions: BTreeMap::new(),
            updates,
            circumstances: Circumstances::default(),
            moved: true,
            translation: Translation::default(),
            serving: BTreeMap::new(),
            regexes: Regexes::default(),
            pending: None,
            in_use: false,
            rest_until: now,
            due: Due::default(),
            telling: Telling::new(now),
            bare: BTreeSet::new(),
            again_at: now + AGAIN_AFTER,
            last_refusal: None,
        }
    }

    /// Works until nobody wants snapshots any more.
    pub(crate) async fn run(mut self, mut news: mpsc::Receiver<News>, mut leads: watch::Receiver<bool>) {
        let mut writes: JoinSet<Written> = JoinSet::new();
        let updates = self.updates.clone();
        loop {
            self.publish();
            self.write(&mut writes);
            let has_checks = self.leads() && self.in_use && !self.due.is_empty() && writes.len() < WRITES_AT_ONCE;
            let has_events = self.leads() && self.in_use && writes.len() < WRITES_AT_ONCE;
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
            // Whoever wrote before may have written other things, and may have told other things or nothing.
            self.due.extend(self.translation.statuses.keys().cloned());
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
            News::Readable(about) => self.readable(&about),
            News::Unreadable(about, why) => self.unreadable(about, why),
        }
    }

    fn no_longer_expected(&mut self, about: &Scoped) {
        if self.expected.remove(about) && self.expected.is_empty() {
            tracing::info!("the cluster has been read");
        }
    }

    fn readable(&mut self, about: &Scoped) {
        if self.index.unreadable.remove(about).is_some() {
            tracing::info!(kind = about.0.told().1, "can be read again");
            self.moved = true;
        }
    }

    /// Nothing new is heard of some objects: what is known of them stays in use, and all others are not kept waiting.
    fn unreadable(&mut self, about: Scoped, why: Unreadable) {
        let (kind, scope) = &about;
        let is_within = |name: &Name| scope.as_ref().is_none_or(|scope| **scope == *name.namespace);
        let known = self.index.names(*kind).into_iter().filter(is_within).count();
        // Few clusters have all kinds. One that was there, and of which objects are still known, is missing.
        let is_fault = why == Unreadable::Forbidden || known > 0;
        if is_fault && self.index.unreadable.get(&about) != Some(&why) {
            tracing::error!(
                kind = kind.told().1,
                namespace = scope.as_deref(),
                known,
                ?why,
                "cannot be read: what is known stays in use"
            );
            self.index.unreadable.insert(about.clone(), why);
            self.moved = true;
        }
        if kind.is_essential() {
            tracing::error!(kind = kind.told().1, "not ready without it: every request would be answered by an error");
        } else {
            self.no_longer_expected(&about);
        }
    }

    fn wants_to_publish(&self) -> bool {
        let is_news = self.moved || self.index.changes().all || !self.index.changes().endpoints.is_empty();
        self.expected.is_empty() && self.pending.is_none() && is_news
    }

    /// Makes a snapshot of what has changed, if it is time to.
    fn publish(&mut self) {
        let statuses = self.index.take_statuses();
        self.due.extend(statuses);
        let begun = Instant::now();
        if !self.wants_to_publish() || begun < self.rest_until {
            return;
        }
        let changes = self.index.take_changes();
        let endpoints_only = !std::mem::take(&mut self.moved) && !changes.all;
        if endpoints_only {
            if !self.translation.follow(&self.index, &changes.endpoints) {
                return;
            }
        } else {
            let mut translation = translate(&self.index, &self.settings, &self.circumstances, &mut self.regexes);
            translation.keep(&self.translation);
            self.translation = translation;
            self.in_use = false;
        }
        let snapshot = self.translation.snapshot(&self.settings);
        let (sender, receiver) = oneshot::channel();
        let Circumstances { kernel, vips, .. } = &self.circumstances;
        let keep_vips = kernel.is_some();
        let wants_no_vip =
            snapshot.vips.is_empty() && !keep_vips && vips.is_empty() && self.index.unreadable.is_empty();
        let update = Update { snapshot, endpoints_only, keep_vips, wants_no_vip, outcome: sender };
        // There is room: nothing is sent before the one before has been answered.
        if self.updates.try_send(update).is_ok() {
            self.pending = Some(receiver);
        }
        self.rest_until = begun + (begun.elapsed() * REST_FACTOR).clamp(REST.0, REST.1);
    }

    /// Hears what became of a snapshot.
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
            // It was about endpoints alone; or whoever serves is about to end.
            Some(Outcome::Adopted) | None => {}
        }
    }

    /// Takes what cannot be served out of the next snapshot.
    fn learn(&mut self, refusal: Refusal) {
        // Tried again and again; said once.
        if self.last_refusal.replace(refusal.why.clone()).as_ref() != Some(&refusal.why) {
            tracing::error!(why = refusal.why, "a snapshot of the cluster was refused: what is served stays as it was");
        }
        let mut learned = self.circumstances.clone();
        learned.binds.extend(refusal.binds);
        for (name, why) in refusal.vips {
            // One that is refused as it was served before, too, cannot be held.
            let held = if learned.vips.contains_key(&name) { None } else { self.serving.get(&name).cloned() };
            learned.vips.insert(name, RefusedVip { why, held });
        }
        if refusal.kernel && learned.vips == self.circumstances.vips {
            learned.kernel = Some(refusal.why.clone());
        }
        if learned == self.circumstances {
            // Nothing to leave out: it is said of all of it.
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

    /// Forgets what could not be done: it may be possible by now. And looks for Services that nobody serves.
    fn try_again(&mut self) {
        self.again_at = Instant::now() + AGAIN_AFTER;
        let bare = self.translation.empty();
        let empty = bare.intersection(&self.bare).cloned().collect();
        self.bare = bare;
        let hopeful = Circumstances { allots: self.circumstances.allots, empty, ..Circumstances::default() };
        if self.circumstances != hopeful {
            self.circumstances = hopeful;
            self.moved = true;
        }
        self.due.try_again();
    }

    /// Takes note of what has to be told.
    fn note(&mut self) {
        for notice in self.telling.note(&self.translation.notices, Instant::now()) {
            let (kind, name) = &notice.about;
            tracing::warn!(?kind, object = %name, reason = &*notice.reason, "{}", notice.message);
        }
    }

    /// Writes what is due, as far as there is room.
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
        // Whole seconds, as metav1.Time has them.
        let now = Timestamp::from_second(now.as_second()).unwrap_or(now).to_string();
        for _ in 0..CHECKS_AT_ONCE {
            if writes.len() >= WRITES_AT_ONCE {
                return;
            }
            let Some(about) = self.due.next() else { return };
            let desired = self.translation.statuses.get(&about);
            let due = desired.and_then(|desired| translate::write(&self.index, &self.settings, &about, desired, &now));
            let Some(due) = due else { continue };
            self.due.begin(about.clone());
            let version = self.versions.get(&about.0).copied().unwrap_or("v1");
            let writing = self.writer.write(&about, version, due);
            writes.spawn(async move { Written::Status(about, writing.await) });
        }
    }

    fn written(&mut self, written: Written) {
        match written {
            Written::Status(about, outcome) => {
                if outcome != WriteOutcome::Written {
                    tracing::debug!(kind = ?about.0, object = %about.1, ?outcome, "a status was not written");
                }
                self.due.end(about, &outcome);
            }
            Written::Told((kind, object), Err(why)) => {
                tracing::debug!(?kind, %object, why, "an Event was not written");
            }
            Written::Told(_, Ok(())) => {}
        }
    }
}

/// Waits until then; for ever where there is no such time.
async fn until(then: Option<Instant>) {
    match then {
        Some(then) => tokio::time::sleep_until(then).await,
        None => std::future::pending().await,
    }
}

/// What became of the snapshot under way; waits for ever where there is none.
async fn outcome(pending: &mut Option<oneshot::Receiver<Outcome>>) -> Option<Outcome> {
    match pending {
        Some(receiver) => receiver.await.ok(),
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
