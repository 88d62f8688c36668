//! The client's side: accepting connections, and serving the requests that arrive on them.
//!
//! | what | file |
//! |---|---|
//! | accept, PROXY protocol, TLS handshake, limits on connections | `listener` |
//! | connections that the kernel redirects to a sidecar | `captured` |
//! | an HTTP/1 connection: one exchange after another | `session` |
//! | an HTTP/2 connection, from its preface to GOAWAY | `h2_session` |
//! | the exchanges on its streams, polled by the connection's task | `exchange_set` |
//! | whether the client is still there | `watch` |
//!
//! What an HTTP/2 connection has in common with one to an endpoint is in [`crate::h2`].

pub(crate) mod captured;
mod exchange_set;
pub(crate) mod h2_session;
pub(crate) mod listener;
pub(crate) mod session;
pub(crate) mod watch;
