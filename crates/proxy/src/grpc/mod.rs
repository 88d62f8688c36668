//! The parts of gRPC that a hop has to know: which requests are calls, how they end, how long they may take, and gRPC-Web.
//!
//! This module recognises a call by its content type, turns failures into responses that its client understands, reads and writes
//! `grpc-timeout`, and translates gRPC-Web. All of it is pure: bytes in, bytes out. It does not handle messages, which are relayed as
//! bytes, or HTTP/2, or the choice of a route.
//!
//! Sources: "gRPC over HTTP2", "PROTOCOL-WEB" and "http-grpc-status-mapping" of <https://github.com/grpc/grpc/tree/master/doc>.

mod answer;
mod call;
mod content;
mod methods;
mod status;
mod timeout;
mod web;

pub(crate) use answer::Answer;
pub(crate) use call::{Ongoing, Outgoing};
pub(crate) use content::{Call, find};
pub(crate) use methods::{Method, Methods, Source};
pub(crate) use status::Status;
pub(crate) use timeout::write_timeout;
pub(crate) use web::{Translation, encode_all as encode_base64, trailers};
