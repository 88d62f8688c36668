//! The endpoints' side: choosing an endpoint, and the connections to it.
//!
//! | what | file |
//! |---|---|
//! | which endpoint, the breaker and its queue | `cluster` |
//! | what consistent hashing hashes | `hash` |
//! | a connection for a request: from the pool, or a new one | `connect` |
//! | idle HTTP/1 connections | `pool` |
//! | which HTTP/2 connection takes a request | `mux` |
//! | an HTTP/2 connection, from connect to its end | `h2_session` |
//! | a request of our own, as the copies for mirrors are | `subrequest` |
//!
//! What an HTTP/2 connection has in common with one from a client is in [`crate::h2`].

pub(crate) mod cluster;
pub(crate) mod connect;
mod h2_session;
pub(crate) mod hash;
pub(crate) mod mux;
pub(crate) mod pool;
pub(crate) mod subrequest;
