//! What a script says.
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
//! **Steps** are played in order, one at a time. The peers do nothing by themselves, so an order of events is an order of lines.
//!
//! **Blocks**: the lines after a step that begin with `|` and one space, joined. A line break is *not* part of the block: each byte sent is
//! written, `\r\n` included. In `config`, `listener`, `cluster` and `balancer reloads` a block is YAML: there, line breaks count and
//! escapes do not.
//!
//! **Escapes**: `\r \n \t \0 \\ \xNN`; `${a*1000}` is a thousand times `a`; `${listen}` is the port of that name, `${client}` the port that
//! the client connected from.
//!
//! **Peers**: `client`, `client2`... each one connection to the port `listen` (or as `client connects` says). `origin` is the first
//! connection that the balancer opened to the port `{origin}` of the config, `origin/2` the second, and so on; any port whose name begins
//! with `origin` (`{origin_blue}`) is such an endpoint. Whatever a peer received and no step asked for fails the script at its end; so does
//! whatever reached an origin and was not one unambiguous HTTP message.
//!
//! | step | does |
//! |---|---|
//! | `config` | the whole config, instead of the default one |
//! | `listener`, `cluster` | more keys for the default config's one listener or cluster |
//! | `client connects [to PORT] [from IP]` | otherwise done by the first step of the client, to `listen` |
//! | `P sends [in pieces of N]` | the block |
//! | `P half-closes`, `P closes`, `P resets` | FIN, `close(2)`, RST |
//! | `P gets bytes` | exactly the block, next |
//! | `P gets end` | the connection ended (FIN or RST) with nothing left before it |
//! | `P gets nothing` | nothing that was not asked for is there *now*; said of `origin`, of all its connections |
//! | `origin gets METHOD TARGET HTTP/1.1` | one whole request; see below |
//! | `origin gets head METHOD TARGET HTTP/1.1` | the head of one; its body is left to later steps |
//! | `origin gets no whole request` | of all its connections: nothing, or the beginning of a request that is then cut |
//! | `client gets STATUS [to HEAD]` | one whole response |
//! | `client gets head STATUS` | the head of one; its body is left to later steps |
//! | `client gets truncated STATUS` | a response whose connection ended in the middle of its body |
//! | `client gets no whole response` | that, or a 502 and the end, or the end alone |
//! | `P ignores the rest` | whatever else it got is no failure at the end |
//! | `balancer reloads` | the block (or the same file) in place of the config, then SIGHUP; waits until it is taken |
//! | `balancer refuses` | the same with a config that it must not take |
//! | `balancer gets SIGNAL` | TERM, HUP, USR1, USR2, INT |
//! | `balancer exits CODE` | waits for that |
//! | `counted REASON [N]` | the counter of refusals with this reason reaches N (default 1), exactly |
//! | `counted nothing` | no refusal, failure or cut was counted |
//! | `metric NAME{label="value"} N` | this sum of `/metrics` reaches N, exactly |
//!
//! **What a message must be** follows the step in indented lines: `name: value` (a field, compared whole; the name without case),
//! `no name` (no such field), `body TEXT`, `trailer name: value`, `raw TEXT` (these very bytes stand somewhere in what was received, for
//! the case of names). A request is listed whole: a field, a body or a trailer that is not listed fails, except `x-forwarded-*` and
//! `forwarded`, which are compared once one of them is listed. In a response, fields that are not listed are free.

use std::net::IpAddr;

use crate::text::Template;

/// The config of a script that brings none.
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
    /// In order.
    pub steps: Vec<Step>,
}

/// One line that makes something happen, or waits for it.
#[derive(Debug)]
pub struct Step {
    /// In the file, from 1.
    pub line: usize,
    /// What.
    pub action: Action,
}

/// What a step does.
#[derive(Debug)]
pub enum Action {
    /// A client opens its connection.
    Connect {
        /// Whose.
        client: String,
        /// The name of the port.
        to: String,
        /// The source address.
        from: Option<IpAddr>,
    },
    /// Something on one connection.
    Conn(Peer, ConnAction),
    /// Nothing unexpected has come so far.
    NothingYet(Peer),
    /// The config is replaced (by the same where there is none), and SIGHUP sent.
    Reload {
        /// The new text.
        config: Option<String>,
        /// Whether it is to be taken.
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
}

/// Who holds a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Peer {
    /// By name.
    Client(String),
    /// By the name of the port, and the number of the connection.
    Origin(String, usize),
}

/// What is done with a connection.
#[derive(Debug)]
pub enum ConnAction {
    /// Bytes go out, in pieces of this size where one is given.
    Send(Template, Option<usize>),
    /// FIN.
    HalfClose,
    /// `close(2)`.
    Close,
    /// RST.
    Reset,
    /// Exactly these bytes come.
    GetBytes(Template),
    /// The connection ends.
    GetEnd,
    /// A request comes: its request line, whether its body too, and what it must be.
    GetRequest(String, Extent, Expectation),
    /// Requests (of all connections of the origin) are at most begun, and then cut.
    GetNoWholeRequest,
    /// The response is at most begun and then cut, or is a 502.
    GetNoWholeResponse,
    /// Nothing that came, or will come, is a surprise.
    Ignore,
    /// A response comes: its status, how much of it, and what it must be.
    GetResponse(u16, Extent, Expectation),
}

/// How much of a message is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// All of it.
    Whole,
    /// The head alone; the body is a matter of later steps.
    Head,
    /// All of a response to HEAD, which is its head.
    ToHead,
    /// The head, and as much of the body as came before the connection ended.
    Truncated,
}

/// What a message must be.
#[derive(Debug, Default)]
pub struct Expectation {
    /// Fields that must be there.
    pub fields: Vec<(String, Template)>,
    /// Fields that must not.
    pub absent: Vec<String>,
    /// The decoded body; `None`: none in a request, any in a response.
    pub body: Option<Template>,
    /// Trailer fields, all of them.
    pub trailers: Vec<(String, Template)>,
    /// Byte strings that stand somewhere in what the connection has received.
    pub raw: Vec<Template>,
}
