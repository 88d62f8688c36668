//! The proxy plane: HTTP/1, HTTP/2 and TCP, from the listener to the endpoint and back.
//!
//! A request has one way, and `exchange` names its stages in order; each stage is a file. A downstream connection and the upstream
//! connections that it uses live on one worker, a thread with a runtime of its own: nothing on the way is shared with another thread
//! but the atomics of an endpoint's state.
//!
//! | stage | file |
//! |---|---|
//! | accept, PROXY protocol | `listener`, `share` |
//! | one downstream connection | `session` (HTTP/1), `h2`, `tcp` |
//! | one request, head to trailers | `exchange` |
//! | heads as they arrive | `receive` |
//! | which route | `route` |
//! | what its route does besides | `policy` |
//! | heads as they leave | `headers` |
//! | choose, connect, send, retry | `attempt`, `cluster`, `hash`, `connect`, `pool` |
//! | bodies with backpressure, and who is too slow | `body`, `pace` |
//! | bytes both ways | `relay` |
//! | connections, in the clear or within TLS | `stream`, `tls` |
//! | what replaces HTTP on a connection | `upgrade` |
//! | failures | `error`, `respond` |
//! | calls of gRPC: how they end, how long they may take, gRPC-Web | `grpc` |
//! | access log and counters | `log` |
//!
//! The control thread holds a [`Plane`] and gives it [`Compiled`] snapshots.
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

mod cluster;
mod connect;
mod cookie;
mod driver;
mod error;
mod exchange;
#[doc(hidden)]
pub mod fuzzing;
mod grpc;
mod h2;
mod hash;
mod headers;
mod listener;
mod log;
mod passthrough;
mod plane;
mod policy;
mod pool;
mod receive;
mod relay;
mod respond;
mod route;
mod session;
mod share;
mod snapshot;
mod stream;
mod tcp;
mod tls;
mod upgrade;
mod watch;
mod worker;

use std::time::Duration;

pub use plane::{BindError, Plane};
pub use snapshot::{ClusterPlan, Compiled, ListenerPlan};
pub use tls::{ClientKeys, Fault, Keys};

fn millis(duration: Duration) -> u64 {
    duration.as_secs().saturating_mul(1000).saturating_add(u64::from(duration.subsec_millis()))
}
