//! The Lease decides which replica writes statuses and allots addresses. Nothing that is served depends on it.
//!
//! It works as in other controllers: the holder renews the Lease, and a replica that sees the same state for as long as the Lease is valid
//! takes it. Each replica only measures durations on its own clock, so clocks need not agree. As always without fencing, two replicas may
//! hold it at once for a moment. Every write names the state that it was made from, so the API server accepts only one of the two.

use std::future::Future;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::{Api, PostParams};
use tokio::sync::watch;
use tokio::time::Instant;

/// How long a Lease stays valid without a renewal.
const VALID: Duration = Duration::from_secs(15);
/// The time between two renewals. Two of them may fail.
pub(crate) const RENEW_EVERY: Duration = Duration::from_secs(4);
/// A holder that could not renew for this long stops, before another replica may begin.
pub(crate) const GIVE_UP_AFTER: Duration = Duration::from_secs(10);
/// How long to wait for an answer of the API server.
pub(crate) const STEP_TIMEOUT: Duration = Duration::from_secs(5);
/// The time between two looks of a replica that does not hold the Lease, and between two tries.
pub(crate) const LOOK_EVERY: Duration = Duration::from_secs(2);

/// A Lease and the process that wants it.
pub(crate) struct Claim {
    pub(crate) api: Api<Lease>,
    pub(crate) name: String,
    /// Identifies this process.
    pub(crate) identity: String,
}

/// The state of a Lease as last seen, and since when it has been so.
pub(crate) struct Seen {
    resource_version: Option<String>,
    since: Instant,
}

/// What to do about a Lease.
#[derive(Debug, PartialEq, Eq)]
enum LeaseAction {
    /// Create it.
    Create,
    /// Write it: we hold it, or it has expired.
    Write,
    /// Another replica holds it.
    Wait,
}

impl Claim {
    /// Holds the Lease whenever possible and reports whether it does, until `held` has no more listeners.
    pub(crate) async fn hold(self, held: watch::Sender<bool>) {
        keep(&held, Looking { claim: &self, seen: None }).await;
        if *held.borrow()
            && let Err(error) = self.release().await
        {
            tracing::debug!(%error, "could not release the lease; it will expire");
        }
    }

    /// Whether we hold it now.
    pub(crate) async fn step(&self, seen: &mut Option<Seen>) -> kube::Result<bool> {
        let found = self.api.get_opt(&self.name).await?;
        match step(found.as_ref(), &self.identity, seen, Instant::now()) {
            LeaseAction::Wait => Ok(false),
            LeaseAction::Create => written(self.api.create(&PostParams::default(), &self.next(None)).await),
            LeaseAction::Write => {
                let next = self.next(found);
                written(self.api.replace(&self.name, &PostParams::default(), &next).await)
            }
        }
    }

    /// The Lease as this process would hold it. It names the state that it follows, so that one of two concurrent writes fails.
    fn next(&self, found: Option<Lease>) -> Lease {
        let now = MicroTime(Timestamp::now());
        let metadata = match &found {
            Some(found) => found.metadata.clone(),
            None => ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() },
        };
        let spec = found.and_then(|found| found.spec).unwrap_or_default();
        let is_ours = spec.holder_identity.as_deref() == Some(&*self.identity);
        let transitions = spec.lease_transitions.unwrap_or(0);
        let spec = LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: i32::try_from(VALID.as_secs()).ok(),
            acquire_time: if is_ours { spec.acquire_time } else { Some(now.clone()) },
            renew_time: Some(now),
            lease_transitions: Some(if is_ours { transitions } else { transitions.saturating_add(1) }),
            ..spec
        };
        Lease { metadata, spec: Some(spec) }
    }

    /// Releases it, so that another replica need not wait until it expires.
    pub(crate) async fn release(&self) -> kube::Result<()> {
        let Some(mut lease) = self.api.get_opt(&self.name).await? else { return Ok(()) };
        let Some(spec) = lease.spec.as_mut().filter(|spec| spec.holder_identity.as_deref() == Some(&*self.identity))
        else {
            return Ok(());
        };
        spec.holder_identity = Some(String::new());
        self.api.replace(&self.name, &PostParams::default(), &lease).await.map(|_| ())
    }
}

/// One step of holding a Lease, repeated.
trait Steps {
    /// Takes a step and returns whether the Lease is held.
    fn step(&mut self) -> impl Future<Output = kube::Result<bool>> + Send;
}

/// A claim, and the state of the Lease as last seen.
struct Looking<'c> {
    claim: &'c Claim,
    seen: Option<Seen>,
}

impl Steps for Looking<'_> {
    async fn step(&mut self) -> kube::Result<bool> {
        self.claim.step(&mut self.seen).await
    }
}

/// Takes step after step until `held` has no more listeners. An API server that does not answer counts as a refusal: this replica must have
/// stopped before another may begin.
async fn keep(held: &watch::Sender<bool>, mut steps: impl Steps) {
    // Measured from the beginning of the step that renewed it, because the time at which the API server wrote it is unknown.
    let mut renewed = Instant::now();
    loop {
        let begun = Instant::now();
        let pause = match tokio::time::timeout_at(in_time(held, renewed, STEP_TIMEOUT), steps.step()).await {
            Ok(Ok(holds)) => {
                if holds {
                    renewed = begun;
                }
                tell(held, holds);
                if holds { RENEW_EVERY } else { LOOK_EVERY }
            }
            failed => {
                let error = failed.ok().and_then(Result::err).map_or_else(|| "no answer".to_owned(), |e| e.to_string());
                tracing::debug!(error, "cannot read or write the lease");
                if renewed.elapsed() >= GIVE_UP_AFTER {
                    tell(held, false);
                }
                LOOK_EVERY
            }
        };
        tokio::select! {
            () = tokio::time::sleep_until(in_time(held, renewed, pause)) => {}
            () = held.closed() => return,
        }
    }
}

/// The time of the next step. For a holder, it is not later than the time at which it must give up.
fn in_time(held: &watch::Sender<bool>, renewed: Instant, wait: Duration) -> Instant {
    let then = Instant::now() + wait;
    if *held.borrow() { then.min(renewed + GIVE_UP_AFTER) } else { then }
}

fn tell(held: &watch::Sender<bool>, holds: bool) {
    let changed = held.send_if_modified(|held| std::mem::replace(held, holds) != holds);
    if changed {
        tracing::info!(holds, "the state of the lease changed; its holder writes statuses");
    }
}

/// A conflict is not an error: another replica was faster.
fn written(outcome: kube::Result<Lease>) -> kube::Result<bool> {
    match outcome {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
        Err(error) => Err(error),
    }
}

fn step(found: Option<&Lease>, identity: &str, seen: &mut Option<Seen>, now: Instant) -> LeaseAction {
    let Some(lease) = found else { return LeaseAction::Create };
    let version = &lease.metadata.resource_version;
    let since = match seen {
        Some(seen) if seen.resource_version == *version => seen.since,
        _ => seen.insert(Seen { resource_version: version.clone(), since: now }).since,
    };
    let spec = lease.spec.as_ref();
    let holder = spec.and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default();
    let valid = spec.and_then(|spec| spec.lease_duration_seconds).and_then(|seconds| u64::try_from(seconds).ok());
    let valid = valid.map_or(VALID, Duration::from_secs);
    if holder.is_empty() || holder == identity || now.duration_since(since) >= valid {
        LeaseAction::Write
    } else {
        LeaseAction::Wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(holder: &str, version: &str) -> Lease {
        Lease {
            metadata: ObjectMeta { resource_version: Some(version.into()), ..ObjectMeta::default() },
            spec: Some(LeaseSpec {
                holder_identity: Some(holder.into()),
                lease_duration_seconds: Some(15),
                ..LeaseSpec::default()
            }),
        }
    }

    /// An API server that answers this many times and then never again.
    struct Answers(u32);

    impl Steps for Answers {
        async fn step(&mut self) -> kube::Result<bool> {
            match self.0.checked_sub(1) {
                Some(left) => self.0 = left,
                None => std::future::pending().await,
            }
            Ok(true)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_api_server_that_does_not_answer_ends_it_before_another_may_begin() {
        let (held, mut holds) = watch::channel(false);
        let begun = Instant::now();
        let keeping = tokio::spawn(async move { keep(&held, Answers(3)).await });
        assert!(*holds.wait_for(|holds| *holds).await.unwrap());
        assert!(!*holds.wait_for(|holds| !*holds).await.unwrap());
        let renewed = begun + 2 * RENEW_EVERY;
        assert_eq!(Instant::now().duration_since(renewed), GIVE_UP_AFTER);
        const { assert!(GIVE_UP_AFTER.as_secs() < VALID.as_secs()) };
        drop(holds);
        keeping.await.unwrap();
    }

    #[test]
    fn taken_when_nobody_renews_it() {
        let mut seen = None;
        let begun = Instant::now();
        let mut check = |at: u64, holder: &str, version: &str, expect: LeaseAction| {
            let found = lease(holder, version);
            assert_eq!(
                step(Some(&found), "me", &mut seen, begun + Duration::from_secs(at)),
                expect,
                "{at} {holder} {version}"
            );
        };
        check(0, "other", "1", LeaseAction::Wait);
        check(14, "other", "1", LeaseAction::Wait);
        // Renewed: the state differs, and was seen just now.
        check(15, "other", "2", LeaseAction::Wait);
        check(29, "other", "2", LeaseAction::Wait);
        check(30, "other", "2", LeaseAction::Write);
        check(31, "me", "3", LeaseAction::Write);
        check(32, "", "4", LeaseAction::Write);
        assert_eq!(step(None, "me", &mut seen, begun), LeaseAction::Create);
    }
}
