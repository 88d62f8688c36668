//! What the control API says about the keys that verify tokens.

use std::collections::BTreeMap;
use std::sync::Arc;

use admin::KeySetStatus;
use net::clock;
use proxy::{Fetches, KeySource};
use telemetry::{Kind, Sample};

pub(super) fn status(source: &KeySource) -> KeySetStatus {
    let Fetches { good, failed, good_ms, failure } = source.fetches();
    let counts = source.counts();
    let (right, wrong) = source.verified();
    KeySetStatus {
        name: source.name(),
        fetched: source.url().is_some(),
        keys: counts.map(|(keys, _)| keys as u64),
        ignored: counts.map_or(0, |(_, ignored)| ignored as u64),
        fetches: good,
        fetches_failed: failed,
        age_seconds: good_ms.map(|good_ms| clock::now_ms().saturating_sub(good_ms) / 1000),
        failure,
        right,
        wrong,
    }
}

/// Sets of the same name, such as two that the configuration itself has, count together.
pub(super) fn samples(sources: &[Arc<KeySource>]) -> Vec<Sample> {
    let mut by_name: BTreeMap<String, Vec<KeySetStatus>> = BTreeMap::new();
    for set in sources.iter().map(|source| status(source)) {
        by_name.entry(set.name.clone()).or_default().push(set);
    }
    let mut samples = Vec::new();
    let mut all = |name, help, kind, result: Option<&str>, value: &dyn Fn(&KeySetStatus) -> Option<u64>| {
        for (jwks, sets) in &by_name {
            let values: Vec<u64> = sets.iter().filter_map(value).collect();
            if values.is_empty() {
                continue;
            }
            let result = result.map(|result| ("result", result.to_owned()));
            let labels = [("jwks", jwks.clone())].into_iter().chain(result).collect();
            samples.push(Sample { name, help, kind, labels, value: values.iter().sum::<u64>() as f64 });
        }
    };
    let help = "Keys in use that verify tokens, by key set.";
    all("steelyard_jwks_keys", help, Kind::Gauge, None, &|set| Some(set.keys.unwrap_or(0)));
    let help = "Seconds since the key set was last fetched.";
    all("steelyard_jwks_age_seconds", help, Kind::Gauge, None, &|set| set.age_seconds);
    let (name, help) = ("steelyard_jwks_fetches_total", "Attempts to fetch the key set, by result.");
    all(name, help, Kind::Counter, Some("good"), &|set| set.fetched.then_some(set.fetches));
    all(name, help, Kind::Counter, Some("failed"), &|set| set.fetched.then_some(set.fetches_failed));
    let name = "steelyard_token_verifications_total";
    let help = "Tokens whose signature was looked at, by key set and result; those that a worker remembers are not.";
    all(name, help, Kind::Counter, Some("right"), &|set| Some(set.right));
    all(name, help, Kind::Counter, Some("wrong"), &|set| Some(set.wrong));
    samples
}
