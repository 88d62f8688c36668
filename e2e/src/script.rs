//! The contents of a script.
//!
//! A script is a text file, read line by line:
//!
//! ```text
//! # Two equal Content-Length fields are refused.
//! #
//! # The description comes first: what must happen, and why (RFC section, CVE).
//!
//! listener                                  more keys for the default config's one listener
//! | header_timeout: 200ms
//!
//! client sends
//! | POST / HTTP/1.1\r\n
//! | Host: a.test\r\n
//! | Content-Length: 2\r\n
//! | Content-Length: 2\r\n
//! | \r\n
//! | hi
//! client gets 400
//!   connection: close
//! client gets end
//! origin gets nothing
//! counted bad_framing
//! ```
//!
//! **Steps** are played in order, one at a time. The peers do nothing by themselves, so the order of lines is the order of events.
//!
//! **Blocks**: the lines after a step that begin with `|` and one space, joined. A line break is *not* part of the block: each byte to send
//! is written out, including `\r\n`. In `config`, `listener`, `cluster` and `balancer reloads` a block is YAML: there, line breaks count and
//! escapes do not.
//!
//! **Escapes**: `\r \n \t \0 \\ \xNN`; `${a*1000}` is `a` a thousand times; `${listen}` is the port of that name, `${client}` the port that
//! the client connected from.
//!
//! **Peers**: `client`, `client2`... are one connection each, to the port `listen` (or as `client connects` says). `origin` is the first
//! connection that the balancer opened to the port `{origin}` of the config, `origin/2` the second, and so on; any port whose name begins
//! with `origin` (`{origin_blue}`) is such an endpoint. Bytes that a peer received and no step expects fail the script at its end. So do
//! bytes at an origin that are not one unambiguous HTTP message.
//!
//! | step | does |
//! |---|---|
//! | `config` | the whole config, instead of the default one |
//! | `listener`, `cluster` | more keys for the default config's one listener or cluster |
//! | `client connects [to PORT] [from IP]` | by default, the client's first step connects it to `listen` |
//! | `P sends [in pieces of N]` | the block |
//! | `P half-closes`, `P closes`, `P resets` | FIN, `close(2)`, RST |
//! | `P gets bytes` | exactly the block, next |
//! | `P gets end` | the connection ended (FIN or RST) with nothing left before it |
//! | `P gets nothing` | nothing unexpected has arrived *so far*; for `origin`, on all its connections |
//! | `origin gets METHOD TARGET HTTP/1.1` | one complete request; see below |
//! | `origin gets head METHOD TARGET HTTP/1.1` | the head of one; later steps read its body |
//! | `origin gets no whole request` | on all its connections: nothing, or the beginning of a request that is then cut off |
//! | `client gets STATUS [to HEAD]` | one complete response |
//! | `client gets head STATUS` | the head of one; later steps read its body |
//! | `client gets truncated STATUS` | a response whose connection ended in the middle of its body |
//! | `client gets no whole response` | the same, or a 502 and the end, or only the end |
//! | `P ignores the rest` | anything else that it got is not a failure at the end |
//! | `balancer reloads` | replaces the config by the block (or the same file), sends SIGHUP, and waits until it is accepted |
//! | `balancer refuses` | the same with a config that it must refuse |
//! | `balancer gets SIGNAL` | TERM, HUP, USR1, USR2, INT |
//! | `balancer exits CODE` | waits for that |
//! | `counted REASON [N]` | the counter of refusals with this reason reaches N (default 1), exactly |
//! | `counted nothing` | no refusal, failure or abort was counted |
//! | `metric NAME{label="value"} N` | this sum of `/metrics` reaches N, exactly |
//!
//! **What a message must be** follows the step in indented lines: `name: value` (a field, compared whole; the name without case),
//! `no name` (no such field), `body TEXT`, `trailer name: value`, `raw TEXT` (exactly these bytes occur somewhere in what was received, for
//! the case of names). A request is listed completely: a field, a body or a trailer that is not listed fails, except `x-forwarded-*` and
//! `forwarded`, which are compared once one of them is listed. In a response, fields that are not listed may have any value.

use std::net::IpAddr;

use crate::text::Template;

/// The config of a script without its own.
pub const DEFAULT_CONFIG: &str = "\
admin: 127.0.0.1:{admin}

listeners:
  web:
    bind: 127.0.0.1:{listen}
    protocol: http
    to: web

clusters:
  web:
    endpoints: [127.0.0.1:{origin}]
";

/// A script, ready to be played.
#[derive(Debug)]
pub struct Script {
    /// The first line of its description.
    pub title: String,
    /// YAML with `{port}` names.
    pub config: String,
    /// The steps in order.
    pub steps: Vec<Step>,
}

/// One line that causes something, or waits for it.
#[derive(Debug)]
pub struct Step {
    /// The line in the file, counted from 1.
    pub line: usize,
    /// What it does.
    pub action: Action,
}

/// What a step does.
#[derive(Debug)]
pub enum Action {
    /// A client opens its connection.
    Connect {
        /// The client's name.
        client: String,
        /// The name of the port.
        to: String,
        /// The source address.
        from: Option<IpAddr>,
    },
    /// Something on one connection.
    Conn(Peer, ConnAction),
    /// Nothing unexpected has arrived so far.
    NothingYet(Peer),
    /// Replaces the config, or keeps it if there is none, and sends SIGHUP.
    Reload {
        /// The new text.
        config: Option<String>,
        /// Whether the balancer must accept it.
        taken: bool,
    },
    /// A signal to the balancer.
    Signal(testkit::Signal),
    /// The balancer ends with this code.
    Exits(i32),
    /// A sum of `/metrics` reaches a value, exactly.
    Metric {
        /// The name of the samples.
        name: String,
        /// Labels that they carry.
        labels: Vec<(String, String)>,
        /// The sum.
        expect: f64,
    },
    /// A sum of `/metrics` is at least this, for counters that also count what a script cannot know.
    MetricReaches {
        /// The name of the samples.
        name: String,
        /// Labels that they carry.
        labels: Vec<(String, String)>,
        /// The least sum.
        at_least: f64,
    },
}

/// The peer that holds a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Peer {
    /// By name.
    Client(String),
    /// By the name of the port, and the number of the connection.
    Origin(String, usize),
}

/// An action on a connection.
#[derive(Debug)]
pub enum ConnAction {
    /// Sends bytes, in pieces of this size if one is given.
    Send(Template, Option<usize>),
    /// FIN.
    HalfClose,
    /// `close(2)`.
    Close,
    /// RST.
    Reset,
    /// Exactly these bytes arrive.
    GetBytes(Template),
    /// The connection ends.
    GetEnd,
    /// A request arrives: its request line, how much of it to read, and its expected content.
    GetRequest(String, Extent, Expectation),
    /// At most the beginnings of requests arrive (on all connections of the origin), and are then cut off.
    GetNoWholeRequest,
    /// At most the beginning of the response arrives and is then cut off, or it is a 502.
    GetNoWholeResponse,
    /// Nothing that arrived, or will arrive, is an error.
    Ignore,
    /// A response arrives: its status, how much of it to read, and its expected content.
    GetResponse(u16, Extent, Expectation),
}

/// How much of a message is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// All of it.
    Whole,
    /// Only the head; later steps read the body.
    Head,
    /// All of a response to HEAD, which is only its head.
    ToHead,
    /// The head, and the part of the body that arrived before the connection ended.
    Truncated,
}

/// The expected content of a message.
#[derive(Debug, Default)]
pub struct Expectation {
    /// Fields that must be present.
    pub fields: Vec<(String, Template)>,
    /// Fields that must be absent.
    pub absent: Vec<String>,
    /// The decoded body. `None` means none in a request, and any in a response.
    pub body: Option<Template>,
    /// Trailer fields, all of them.
    pub trailers: Vec<(String, Template)>,
    /// Byte strings that must occur somewhere in what the connection has received.
    pub raw: Vec<Template>,
}
