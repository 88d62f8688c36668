//! The endpoints' side: choosing an endpoint, and the connections to it.
//!
//! | what | file |
//! |---|---|
//! | which endpoint, the breaker and its queue | `cluster` |
//! | the keys for consistent hashing | `hash` |
//! | a connection for a request: from the pool, or a new one | `connect` |
//! | idle HTTP/1 connections | `pool` |
//! | which HTTP/2 connection takes a request | `mux` |
//! | an HTTP/2 connection, from connect to its end | `h2_session` |
//! | our own requests, such as the copies for mirrors | `subrequest` |
//!
//! [`crate::h2`] has what an HTTP/2 connection has in common with one from a client.

pub(crate) mod closing;
pub(crate) mod cluster;
pub(crate) mod connect;
mod h2_session;
pub(crate) mod hash;
pub(crate) mod mux;
pub(crate) mod pool;
pub(crate) mod subrequest;
