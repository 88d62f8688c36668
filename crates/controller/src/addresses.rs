//! A Lease for each address that is announced on a link: its holder is the node that answers for the address.
//!
//! A node wants the Lease of an address as long as it can serve it, and releases it before another node may have to wait. If the API server does
//! not answer, the holder keeps the address: nobody else can take the Lease then. It says that it is not sure, so that it gives way if another
//! node claims the address on the link all the same.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::api::Api;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use crate::lease::{Claim, GIVE_UP_AFTER, LOOK_EVERY, RENEW_EVERY, STEP_TIMEOUT};

/// Addresses whose Leases one node wants: each holder writes its Lease every four seconds. The other addresses are not announced.
const ADDRESSES_MAX: usize = 256;

/// States of Leases that wait to be noted.
const STATES_MAX: usize = 64;

/// What this node can serve, and whose Leases it holds.
pub(crate) struct AddressLeases {
    pub(crate) wanted: watch::Receiver<BTreeSet<IpAddr>>,
    /// False: not confirmed for a while.
    pub(crate) held: watch::Sender<BTreeMap<IpAddr, bool>>,
}

/// The Leases of a controller.
#[derive(Clone)]
pub(crate) struct Leases {
    pub(crate) api: Api<Lease>,
    /// Their names begin with this.
    pub(crate) name: String,
    pub(crate) identity: String,
}

/// Follows what is wanted until `ended` is dropped, and releases everything.
pub(crate) async fn hold(leases: Leases, mut addresses: AddressLeases, mut ended: watch::Receiver<()>) {
    let (states, mut told) = mpsc::channel(STATES_MAX);
    let mut claims: BTreeMap<IpAddr, watch::Sender<()>> = BTreeMap::new();
    let mut tasks = JoinSet::new();
    let mut warned = false;
    loop {
        let wanted = addresses.wanted.borrow_and_update().clone();
        if wanted.len() > ADDRESSES_MAX && !std::mem::replace(&mut warned, true) {
            tracing::warn!(
                max = ADDRESSES_MAX,
                wanted = wanted.len(),
                "too many addresses for Leases: the last ones are not announced"
            );
        }
        let wanted: BTreeSet<IpAddr> = wanted.into_iter().take(ADDRESSES_MAX).collect();
        // Dropping the sender ends a claim.
        claims.retain(|address, _| wanted.contains(address));
        addresses.held.send_if_modified(|held| {
            let before = held.len();
            held.retain(|address, _| wanted.contains(address));
            held.len() != before
        });
        for address in wanted {
            claims.entry(address).or_insert_with(|| {
                let (keep, kept) = watch::channel(());
                tasks.spawn(claim(leases.clone(), address, states.clone(), kept));
                keep
            });
        }
        tokio::select! {
            changed = addresses.wanted.changed() => if changed.is_err() { break },
            Some((address, state)) = told.recv() => {
                if claims.contains_key(&address) {
                    note(&addresses.held, address, state);
                }
            }
            Some(_) = tasks.join_next(), if !tasks.is_empty() => {}
            _ = ended.changed() => break,
        }
    }
    claims.clear();
    addresses.held.send_replace(BTreeMap::new());
    drop(told);
    while tasks.join_next().await.is_some() {}
}

fn note(held: &watch::Sender<BTreeMap<IpAddr, bool>>, address: IpAddr, state: Option<bool>) {
    let changed = held.send_if_modified(|held| match state {
        Some(sure) => held.insert(address, sure) != Some(sure),
        None => held.remove(&address).is_some(),
    });
    if changed {
        tracing::info!(%address, holds = state.is_some(), sure = state.unwrap_or(false), "the Lease of an address has changed");
    }
}

/// Holds the Lease of an address whenever possible, until `kept` is dropped.
async fn claim(
    leases: Leases,
    address: IpAddr,
    states: mpsc::Sender<(IpAddr, Option<bool>)>,
    mut kept: watch::Receiver<()>,
) {
    let claim = Claim { api: leases.api, name: name_of(&leases.name, address), identity: leases.identity };
    let mut seen = None;
    // Measured from the beginning of the step, because the time at which the API server wrote it is unknown.
    let mut renewed: Option<Instant> = None;
    loop {
        let begun = Instant::now();
        let step = tokio::select! {
            step = timeout(STEP_TIMEOUT, claim.step(&mut seen)) => step,
            _ = kept.changed() => break,
        };
        match step {
            Ok(Ok(true)) => renewed = Some(begun),
            Ok(Ok(false)) => renewed = None,
            failed => {
                let error = failed.ok().and_then(Result::err).map_or_else(|| "no answer".to_owned(), |e| e.to_string());
                tracing::debug!(error, %address, "cannot read or write the Lease of an address");
            }
        }
        // The receiver is gone only when this is about to end.
        let _ = states.send((address, renewed.map(|renewed| renewed.elapsed() < GIVE_UP_AFTER))).await;
        let pause: Duration = if renewed.is_some() { RENEW_EVERY } else { LOOK_EVERY };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            _ = kept.changed() => break,
        }
    }
    // Also if its last write was not answered: it may have been heard.
    if let Err(error) = timeout(STEP_TIMEOUT, claim.release()).await.unwrap_or(Ok(())) {
        tracing::debug!(%error, %address, "could not release the Lease of an address; it will expire");
    }
}

/// The name of an address's Lease, such as `steelyard-192.0.2.7`. A name has letters, digits, hyphens and dots, and begins
/// and ends with a letter or a digit.
fn name_of(prefix: &str, address: IpAddr) -> String {
    match address {
        IpAddr::V4(address) => format!("{prefix}-{address}"),
        IpAddr::V6(address) => {
            let groups: Vec<String> = address.segments().iter().map(|group| format!("{group:x}")).collect();
            format!("{prefix}-{}", groups.join("-"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_leases() {
        assert_eq!(name_of("steelyard", "192.0.2.7".parse().unwrap()), "steelyard-192.0.2.7");
        assert_eq!(name_of("s", "2001:db8::7".parse().unwrap()), "s-2001-db8-0-0-0-0-0-7");
    }

    #[test]
    fn states_are_noted_when_they_change() {
        let (held, mut holds) = watch::channel(BTreeMap::new());
        let at: IpAddr = "192.0.2.7".parse().unwrap();
        let mut check = |state: Option<bool>, changes: bool| {
            note(&held, at, state);
            assert_eq!((holds.has_changed().unwrap(), holds.borrow_and_update().get(&at).copied()), (changes, state));
        };
        check(None, false);
        check(Some(true), true);
        check(Some(true), false);
        check(Some(false), true);
        check(None, true);
    }
}
