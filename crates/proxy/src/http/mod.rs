//! HTTP messages, apart from their bodies: heads as they arrive, heads as they leave, and the responses that Steelyard makes itself.
//!
//! | what | file |
//! |---|---|
//! | heads as they arrive over HTTP/1 | `receive` |
//! | heads as they leave, over either version | `headers` |
//! | cookies of a request | `cookie` |
//! | responses of our own: which status, which words | `respond` |

pub(crate) mod cookie;
pub(crate) mod headers;
pub(crate) mod receive;
pub(crate) mod respond;
