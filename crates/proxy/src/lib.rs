//! The proxy plane: HTTP/1, HTTP/2 and TCP, from the listener to the endpoint and back.
//!
//! `exchange` names the stages of a request in order. The folders follow the path of a request. A downstream connection and the upstream
//! connections that it uses live on one worker, which is a thread with its own runtime. A request shares nothing with other threads except
//! the atomics of an endpoint's state.
//!
//! | what | folder |
//! |---|---|
//! | accept, PROXY protocol, HTTP/1 and HTTP/2 connections of clients | `downstream` |
//! | one request, from its head to its trailers: a state machine without I/O | `exchange` |
//! | the sockets of an exchange | `driver` |
//! | which endpoint, connect, connection pools, HTTP/2 connections to endpoints | `upstream` |
//! | HTTP/2 connections and streams, as both sides use them | `h2` |
//! | heads, and responses of our own | `http` |
//! | gRPC: how calls end, how long they may take, gRPC-Web | `grpc` |
//! | what a request must prove | `auth` |
//! | asking a service whether a request may use a route | `external_auth` |
//! | asking a service whether a request is within limits that it counts for all instances | `global_rate_limit` |
//! | what both of these ask, and how | `question` |
//! | compressing responses | `compression` |
//! | collecting and decompressing the bodies of requests | `request_body` |
//! | what a route does besides choosing a cluster | `policy` |
//! | the spans of a request | `trace` |
//! | TLS on both sides | `tls` |
//! | TCP and TLS listeners, tunnels | `tcp` |
//! | workers: snapshots, spreading connections, the access log | `worker` |
//!
//! All of them use three files: `stream` (a connection in plain text or with TLS, or one HTTP/2 stream), `error` and `deadline`. `named_files`
//! has the contents of the files that a snapshot names.
//!
//! The control thread holds a [`Plane`] and gives it [`Compiled`] snapshots.
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

mod auth;
mod compression;
mod counts;
mod deadline;
mod downstream;
mod driver;
mod error;
mod exchange;
mod external_auth;
#[doc(hidden)]
pub mod fuzzing;
mod global_rate_limit;
mod grpc;
mod h2;
mod http;
mod named_files;
mod policy;
mod question;
mod request_body;
mod stream;
mod tcp;
mod tls;
mod trace;
mod upstream;
mod worker;

use std::time::Duration;

pub use auth::jwt::keys::{Fetches, KeySource};
pub use auth::operators::{Busy, Operator, Operators};
pub use auth::passwords::PasswordCounts;
pub use exchange::explain::{Explanation, RouteQuestion, WhyNot};
pub use named_files::{Fault, NamedFiles};
pub use tls::{ClientKeys, OwnCertificate, client_config};
pub use worker::heartbeat::Progress;
pub use worker::plane::{BindError, Plane};
pub use worker::snapshot::{ClusterPlan, Compiled, ListenerPlan};

fn millis(duration: Duration) -> u64 {
    duration.as_secs().saturating_mul(1000).saturating_add(u64::from(duration.subsec_millis()))
}
