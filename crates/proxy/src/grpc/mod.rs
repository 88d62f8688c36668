//! gRPC as far as a hop has to know it: which requests are calls, how they end, how long they may take, and gRPC-Web.
//!
//! Job: tell a call by its content type, turn failures into what its client understands, read and write `grpc-timeout`, and translate
//! gRPC-Web. All of it is pure: bytes in, bytes out. Not its job: messages, which are relayed as bytes; HTTP/2; choosing a route.
//!
//! After "gRPC over HTTP2", "PROTOCOL-WEB" and "http-grpc-status-mapping" of <https://github.com/grpc/grpc/tree/master/doc>.

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
