//! HTTP messages without their bodies: heads that arrive, heads that are sent, and the responses that Steelyard makes itself.
//!
//! | what | file |
//! |---|---|
//! | heads that arrive over HTTP/1 | `receive` |
//! | heads that are sent, over either version | `headers` |
//! | what ingress-nginx tells endpoints about the client | `ingress_nginx` |
//! | the client's address as trusted proxies report it | `client_address` |
//! | cookies of a request | `cookie` |
//! | our own responses: their status and text | `respond` |

pub(crate) mod client_address;
pub(crate) mod cookie;
pub(crate) mod headers;
mod ingress_nginx;
pub(crate) mod pages;
pub(crate) mod receive;
pub(crate) mod respond;
