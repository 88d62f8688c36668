//! Text that is made of a request: keys of hashes and of caches, and what a service is asked.

use crate::Variable;

/// A part of such a text.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RequestPart {
    /// This text.
    Text(String),
    /// The client's address, as trusted proxies report it.
    ClientIp,
    /// The method.
    Method,
    /// `http` or `https`, as trusted proxies report it.
    Scheme,
    /// The host that the client asks for, in lower case and without a port.
    Host,
    /// The host with its port, as the client wrote it.
    Authority,
    /// The port that the connection arrived at.
    Port,
    /// Path and query, as the client wrote them.
    Target,
    /// The path as routes see it, without the query.
    Path,
    /// The query, without its `?`.
    Query,
    /// The value of the first query parameter with this name, as the client wrote it.
    Parameter(String),
    /// The value of the first header with this name, in lower case.
    Header(String),
    /// The value of the first cookie with this name.
    Cookie(String),
    /// What is known of the connection, or the id of the request.
    Variable(Variable),
}
