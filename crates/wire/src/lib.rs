//! Converts bytes to messages and back, without I/O, a clock or policy.
//!
//! Both sides of the proxy use one neutral form, [`message`]: an index over the bytes of a head, never a map of owned strings. [`h1`] makes
//! it from HTTP/1.0 and HTTP/1.1 and writes it back in one canonical form; [`h2`] does the same for HTTP/2, with [`hpack`]. Anything that
//! two implementations could read in two ways is an error here, so that it never reaches an endpoint. [`ResponseHeads`] reads the heads of
//! the responses to one request, for any sender of requests. [`proxy_protocol`] reads and writes the header that carries a client's address
//! past a hop.
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

pub mod h1;
pub mod h2;
pub mod hpack;
pub mod message;
pub mod path;
pub mod proxy_protocol;
mod response_heads;
mod words;

pub use response_heads::{HeadKind, INTERIMS_MAX, RESPONSE_HEAD_BYTES_MAX, ResponseError, ResponseHeads};
