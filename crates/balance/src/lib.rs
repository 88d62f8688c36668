//! Chooses the endpoint of the next request.
//!
//! This crate also keeps what the choice depends on: weights, load, latency, health verdicts, ejections, drains, slow start, retry budgets
//! and rate limits. It knows nothing of sockets, probes, timers and configuration text. It does no I/O and reads no clock: every call that
//! depends on time takes `now_ms`, milliseconds of one monotonic clock of the caller's. Randomness comes from seeded generators, so that a
//! run can be repeated.
//!
//! Start at [`ClusterState`], which all workers share, and [`Picker`], of which each worker has its own for each cluster:
//!
//! ```text
//! health checks -> ClusterState::set_healthy --\
//! real requests -> ClusterState::record --------> EndpointState (atomics) + epoch --> Picker::pick
//! operator      -> ClusterState::set_draining --/
//! ```
//!
//! A pick reads one atomic, the epoch. The picker only lists the eligible endpoints again after the epoch has changed, or the time of the
//! next known change has passed. Everything that depends on the number of endpoints is done then, and not per pick.
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

mod alias;
mod backoff;
mod cluster;
mod endpoint;
mod ewma;
mod hash;
mod health;
mod maglev;
mod outlier;
mod picker;
mod rate;
mod redispatch;
mod retry;
mod rng;
mod round_robin;
mod split;
#[cfg(test)]
mod testing;
mod view;

pub use backoff::{BACKOFF_BASE_MS, BACKOFF_MAX_MS, Backoff};
pub use cluster::{ClusterState, Counts, EndpointStatus};
pub use endpoint::EndpointState;
pub use hash::hash_key;
pub use health::{FIRST_PROBE_WITHIN_MS_MAX, HealthMachine, first_probe_delay_ms, next_probe_delay_ms};
pub use maglev::maglev_table;
pub use outlier::{EJECTION_MULTIPLIER_MAX, Ejection, Outcome, Proof};
pub use picker::{Pick, Picker};
pub use rate::{Bandwidth, RATE_KEYS_MAX, Rate, RateTable};
pub use redispatch::{REDISPATCHES_MAX, Redispatch};
pub use retry::{RETRY_FLOOR_PER_SECOND, RETRY_WINDOW_SECONDS, RetryBudget};
pub use rng::Rng;
pub use split::Split;
