//! The command line. Completions and man pages are made from these definitions.

#[cfg(feature = "controller")]
mod cluster;
#[cfg(feature = "controller")]
mod migrate;
mod sidecar;
mod target;

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum, ValueHint};
#[cfg(feature = "controller")]
pub(crate) use cluster::ControllerArgs;
#[cfg(feature = "controller")]
pub(crate) use migrate::{CompareArgs, CompareFormat, IngressNginxArgs, MigrateCommand, MigrateTo};
use model::AdminAddress;
#[cfg(feature = "controller")]
pub(crate) use sidecar::SidecarWebhookArgs;
pub(crate) use sidecar::{InjectedArgs, SidecarCommand, SidecarInitArgs, SidecarInjectArgs};
pub(crate) use target::AdminArgs;

/// The default address of the control API, both for the process that serves it and for the commands that use it.
pub(crate) const ADMIN_DEFAULT: AdminAddress =
    AdminAddress::Socket(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9900));

/// An HTTP, gRPC, TCP and eBPF load balancer that measures its own cost
#[derive(Debug, Parser)]
#[command(name = "steelyard", version, about, max_term_width = 100, arg_required_else_help = true, after_long_help = EXAMPLES)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

const EXAMPLES: &str = "\
Examples:
  steelyard demo
      Try it: a balancer and three origins under load, for a few seconds
  steelyard proxy --listen :8080 --to 127.0.0.1:9001,127.0.0.1:9002
      Balance port 8080 over two endpoints
  steelyard serve -c steelyard.yaml
      Run a configuration file
  steelyard load http://localhost:8080/
      Measure a server";

const STATUS_EXAMPLES: &str = "\
Examples:
  steelyard status
  steelyard status --check || page-someone
  steelyard status --json | jq '.clusters[].endpoints[] | select(.state == \"ejected\")'";

const TOP_EXAMPLES: &str = "\
Examples:
  steelyard top
      Refresh the terminal every second; q quits, ? lists the other keys
  steelyard top --once --view endpoints --sort errors
      Print the endpoints that fail most, and exit
  steelyard top -i 10s | tee traffic.log
      Print tables every 10 seconds

Rates and latencies are those of the last interval. ADDED is the time that Steelyard itself added to
a request; ENDPOINT is the time from the request's head to the response's head.";

const TAIL_EXAMPLES: &str = "\
Examples:
  steelyard tail
      Requests that were refused or failed, and those whose response took 500 ms to begin
  steelyard tail --status 5xx --route /cart
      Those of one route that were answered with an error
  steelyard tail --all --slow 100ms --json | jq .path
      Every request whose response took 100 ms to begin

Queries, headers and bodies are not shown. At most 256 requests a second are, and at most 100 of those
that neither failed nor were slow; a line in parentheses says how many others there were.";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Start a balancer and three origins, put load on them, kill one origin, and print what the balancer costs
    Demo(lab::demo::DemoArgs),
    /// Balance one address over a list of endpoints, without a configuration file
    Proxy(ProxyArgs),
    /// Run a configuration file
    ///
    /// Steelyard watches the file, and the files that it names (certificates, keys, pages): it serves a saved change within two
    /// seconds, and ignores a file with an error. With `watch: false` in the file, it reads changes on `steelyard
    /// reload` or SIGHUP only. SIGTERM and SIGINT drain, after `drain_delay`. Another signal, a second or more later,
    /// skips to the next step: it ends the delay, or closes the remaining connections.
    Serve(ServeArgs),
    /// Serve a Kubernetes cluster: Gateways and their routes, Ingresses, and Services of type LoadBalancer
    #[cfg(feature = "controller")]
    Controller(Box<ControllerArgs>),
    /// Tell what becomes of another load balancer's configuration here, without changing anything
    #[cfg(feature = "controller")]
    #[command(subcommand)]
    Migrate(MigrateCommand),
    /// Run beside an application: capture its connections, balance them, and encrypt them between sidecars
    #[command(subcommand)]
    Sidecar(SidecarCommand),
    /// Check a configuration file and report every error in it, without opening any port
    Check(FileArgs),
    /// Print the JSON schema of the configuration file, for editors
    Schema,
    /// Show the state of a running Steelyard, problems first
    #[command(after_long_help = STATUS_EXAMPLES)]
    Status(StatusArgs),
    /// Show live rates, errors and latencies of a running Steelyard
    #[command(after_long_help = TOP_EXAMPLES)]
    Top(TopArgs),
    /// Show requests of a running Steelyard as they end: those that were refused or failed, slow ones, or all
    #[command(after_long_help = TAIL_EXAMPLES)]
    Tail(TailArgs),
    /// Reload the configuration of a running Steelyard
    Reload(AskArgs),
    /// Take an endpoint out of service, or put it back
    #[command(subcommand)]
    Endpoint(EndpointCommand),
    /// Answer the requests of a route with 503, or end that
    #[command(subcommand)]
    Maintenance(MaintenanceCommand),
    /// Manage virtual IPs, which the kernel balances
    #[command(subcommand)]
    Vip(VipCommand),
    /// List the flows of the kernel plane
    Flows(FlowsArgs),
    /// Show what the kernel plane would do with a packet, stage by stage; exit with 0 if it would forward it
    Trace(TraceArgs),
    /// Collect what an incident needs: everything in one archive, or the requests of a route in the log
    #[command(subcommand)]
    Debug(DebugCommand),
    /// Run a server to test with
    #[command(subcommand)]
    Origin(lab::origin::OriginCommand),
    /// Put load on a server and measure it; `load URL` is short for `load http URL`
    ///
    /// The options of `load URL` are those of `load http`: `steelyard load http --help` lists them.
    #[command(
        subcommand,
        after_long_help = lab::load::EXAMPLES,
        override_usage = "steelyard load [OPTIONS] <URL>\n       steelyard load <COMMAND>"
    )]
    Load(lab::load::LoadCommand),
    /// Compare Steelyard with other load balancers, and write reports
    #[command(subcommand)]
    Lab(lab::command::LabCommand),
    /// Print shell completions
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Write man pages
    Man {
        /// The directory to write to
        #[arg(value_hint = ValueHint::DirPath)]
        directory: PathBuf,
    },
}

// Help texts are for terminals: the brackets belong to IPv6 addresses and are not links.
#[expect(rustdoc::broken_intra_doc_links, reason = "see above")]
#[derive(Debug, Args)]
pub(crate) struct ProxyArgs {
    /// Listen on this address: 127.0.0.1:8080, [::1]:8080, or :8080 for every address of this host
    #[arg(long, value_name = "ADDRESS", value_parser = config::parse_bind)]
    pub(crate) listen: SocketAddr,
    /// Balance over these endpoints, comma-separated: 127.0.0.1:9001, [::1]:9001, or api.example.com:80
    #[arg(long, value_name = "ENDPOINTS", value_delimiter = ',', required = true, value_parser = config::parse_endpoint)]
    pub(crate) to: Vec<model::EndpointAddress>,
    /// Relay TCP connections instead of HTTP requests
    #[arg(long)]
    pub(crate) tcp: bool,
    /// Serve the control API here: a loopback address, or unix:PATH [default: 127.0.0.1:9900, if it is free]
    #[arg(long, value_name = "ADDRESS", value_parser = config::parse_admin)]
    pub(crate) admin: Option<AdminAddress>,
    #[command(flatten)]
    pub(crate) run: RunArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    pub(crate) file: FileArgs,
    #[command(flatten)]
    pub(crate) run: RunArgs,
}

#[derive(Debug, Args)]
pub(crate) struct FileArgs {
    /// The configuration file
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) config: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// Number of worker threads [default: one for each CPU that this process may use]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) workers: Option<u16>,
    /// Log to standard error at this level: off, error, warn, info, debug or trace; or per module, as in
    /// warn,proxy=debug
    #[arg(long, value_name = "LEVEL", env = "STEELYARD_LOG", default_value = "info")]
    pub(crate) log: String,
    /// A name and port at which all processes that serve the same answer /overview, as with `metrics: :9902`. The page at the admin
    /// address then adds up their figures on request
    #[arg(long, value_name = "NAME:PORT", env = "STEELYARD_REPLICAS")]
    pub(crate) replicas: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct AskArgs {
    #[command(flatten)]
    pub(crate) admin: AdminArgs,
    /// Print JSON, stable and versioned
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    /// Exit with 1 if something is wrong; things that are only worth a look do not count
    #[arg(long)]
    pub(crate) check: bool,
    #[command(flatten)]
    pub(crate) ask: AskArgs,
}

#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    /// Refresh at this interval: 2s, 500ms, or 2 for seconds
    #[arg(short, long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    pub(crate) interval: Duration,
    /// Exit after this many refreshes
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
    /// Print one interval as plain text and exit, like -n 1 without a terminal
    #[arg(long, conflicts_with = "count")]
    pub(crate) once: bool,
    /// Sort rows by this
    #[arg(short, long, value_name = "COLUMN", default_value = "rate")]
    pub(crate) sort: TopSort,
    /// Show these rows
    #[arg(short, long, value_name = "ROWS", default_value = "all")]
    pub(crate) view: TopView,
    /// Print at most this many rows of a table as plain text; a terminal shows as many as fit
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) rows: u16,
    /// Print a line of JSON for each interval, stable and versioned
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) admin: AdminArgs,
}

#[derive(Debug, Args)]
pub(crate) struct TailArgs {
    /// Also show requests that neither failed nor were slow
    #[arg(long)]
    pub(crate) all: bool,
    /// Show only these statuses, comma-separated: 404, or 5xx for 500 to 599
    #[arg(long, value_name = "STATUS", value_delimiter = ',', value_parser = status_filter)]
    pub(crate) status: Vec<StatusFilter>,
    /// Show only requests of this route
    #[arg(long, value_name = "NAME")]
    pub(crate) route: Option<String>,
    /// Show only requests that failed for this reason
    #[arg(long, value_name = "REASON")]
    pub(crate) reason: Option<String>,
    /// Show only requests whose response took at least this long to begin: 2s, 500ms
    #[arg(long, value_name = "TIME", value_parser = interval)]
    pub(crate) slow: Option<Duration>,
    /// Exit after this many requests
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
    /// Print a line of JSON for each request
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) admin: AdminArgs,
}

/// Statuses that are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StatusFilter {
    /// This one.
    Is(u16),
    /// All of a class: 5 for 500 to 599.
    Class(u16),
}

/// `404`, or `5xx`.
fn status_filter(text: &str) -> Result<StatusFilter, String> {
    let class = text.strip_suffix("xx").map(|digit| digit.parse().map(StatusFilter::Class));
    let filter = class.unwrap_or_else(|| text.parse().map(StatusFilter::Is));
    let is_status = |filter: &StatusFilter| match filter {
        StatusFilter::Is(status) => (100..=599).contains(status),
        StatusFilter::Class(class) => (1..=5).contains(class),
    };
    filter.ok().filter(is_status).ok_or_else(|| "write a status such as 404, or a class such as 5xx".to_owned())
}

/// What `steelyard top` sorts rows by.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum TopSort {
    /// Requests per second
    Rate,
    /// Errors per second
    Errors,
    /// Latency that Steelyard added, at p99
    Added,
    /// Latency of the endpoint, at p99
    Endpoint,
    /// Name
    Name,
}

/// Which rows `steelyard top` shows.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum TopView {
    /// Listeners, routes, endpoints and vips
    All,
    /// Listeners
    Listeners,
    /// Routes
    Routes,
    /// Endpoints, of clusters and of virtual IPs
    Endpoints,
    /// Virtual IPs and their endpoints
    Vips,
}

impl From<TopSort> for admin::TopSort {
    fn from(sort: TopSort) -> Self {
        match sort {
            TopSort::Rate => Self::Rate,
            TopSort::Errors => Self::Errors,
            TopSort::Added => Self::Added,
            TopSort::Endpoint => Self::Endpoint,
            TopSort::Name => Self::Name,
        }
    }
}

impl From<TopView> for admin::TopView {
    fn from(view: TopView) -> Self {
        match view {
            TopView::All => Self::All,
            TopView::Listeners => Self::Listeners,
            TopView::Routes => Self::Routes,
            TopView::Endpoints => Self::Endpoints,
            TopView::Vips => Self::Vips,
        }
    }
}

/// Rates over a shorter interval rest on too few requests, and the load on the control API would not be worth it.
const INTERVAL_MIN: Duration = Duration::from_millis(100);
const INTERVAL_MAX: Duration = Duration::from_secs(3600);

/// `2s`, `500ms`, or `2` for seconds.
fn interval(text: &str) -> Result<Duration, String> {
    let example = || "write a time from 100ms to 1h, such as 2s".to_owned();
    let (number, seconds_per_unit) = match text.find(|c: char| !c.is_ascii_digit() && c != '.') {
        None => (text, 1.0),
        Some(at) => match text.split_at(at) {
            (number, "ms") => (number, 1e-3),
            (number, "s") => (number, 1.0),
            (number, "m") => (number, 60.0),
            (number, "h") => (number, 3600.0),
            _ => return Err(example()),
        },
    };
    let seconds: f64 = number.parse().map_err(|_| example())?;
    let interval = Duration::try_from_secs_f64(seconds * seconds_per_unit).map_err(|_| example())?;
    if (INTERVAL_MIN..=INTERVAL_MAX).contains(&interval) { Ok(interval) } else { Err(example()) }
}

#[derive(Debug, Subcommand)]
pub(crate) enum EndpointCommand {
    /// Give an endpoint no new work, and let it finish what it has
    Drain(EndpointArgs),
    /// Put an endpoint back in service
    Ready(EndpointArgs),
}

#[derive(Debug, Args)]
pub(crate) struct EndpointArgs {
    /// The endpoint's address, as `steelyard status` shows it
    pub(crate) endpoint: String,
    /// Change it in this cluster only, and not in every cluster and vip that has the endpoint
    #[arg(long, value_name = "NAME", conflicts_with = "vip")]
    pub(crate) cluster: Option<String>,
    /// Change it in this vip only
    #[arg(long, value_name = "NAME")]
    pub(crate) vip: Option<String>,
    #[command(flatten)]
    pub(crate) ask: AskArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum MaintenanceCommand {
    /// Answer every request of a route with 503 and its error page, until `maintenance off` or the end of the process
    On(MaintenanceArgs),
    /// Put a route back into service
    Off(MaintenanceArgs),
}

#[derive(Debug, Args)]
pub(crate) struct MaintenanceArgs {
    /// The name of the route, as `steelyard status` shows it
    pub(crate) route: String,
    /// Change it in this listener only, and not in every listener that has a route of this name
    #[arg(long, value_name = "NAME", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub(crate) listener: Option<String>,
    #[command(flatten)]
    pub(crate) ask: AskArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum DebugCommand {
    /// Write status, configuration without secrets, its last change, metrics, history, the last lines of the log, flows and versions into one
    /// archive
    Bundle(BundleArgs),
    /// Log the requests of a route for some minutes, at most 100 a second
    Route(DebugRouteArgs),
}

#[derive(Debug, Args)]
pub(crate) struct BundleArgs {
    /// The archive, which must not exist yet [default: steelyard-TIME.tar.gz in the current directory]
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) output: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) admin: AdminArgs,
}

#[derive(Debug, Args)]
pub(crate) struct DebugRouteArgs {
    /// The name of the route, as `steelyard status` shows it
    pub(crate) route: String,
    /// For how long: 5m, 30s, at most 1h; 0 ends it
    #[arg(long = "for", value_name = "TIME", default_value = "5m", value_parser = debug_time)]
    pub(crate) duration: Duration,
    #[command(flatten)]
    pub(crate) ask: AskArgs,
}

/// As an interval, or 0.
fn debug_time(text: &str) -> Result<Duration, String> {
    if text == "0" { Ok(Duration::ZERO) } else { interval(text).map(|time| time.max(Duration::from_secs(1))) }
}

#[derive(Debug, Subcommand)]
pub(crate) enum VipCommand {
    /// Add a vip to a running Steelyard until it ends; put a vip into the file to keep it
    Add(Box<VipAddArgs>),
    /// List the vips of a running Steelyard
    List(AskArgs),
    /// Remove a vip that `vip add` added
    Remove(VipRemoveArgs),
    /// Detach the kernel plane, whether or not Steelyard runs; then no vip is served
    Detach(AskArgs),
}

// Help texts are for terminals: the brackets belong to IPv6 addresses and are not links.
#[expect(rustdoc::broken_intra_doc_links, reason = "see above")]
#[derive(Debug, Args)]
pub(crate) struct VipAddArgs {
    /// The name of the vip, which labels its metrics
    pub(crate) name: String,
    /// The address, port and protocol: 192.0.2.1:80/tcp, [2001:db8::1]:5000-5010/udp
    #[arg(long)]
    pub(crate) address: String,
    /// Attach to this interface, where its packets or the replies arrive; repeat it for several [default: the interfaces of the
    /// default routes and of the routes to its endpoints]
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) interface: Vec<String>,
    /// Balance over this endpoint, with a weight if that is not 1: 10.0.0.1:5001, 10.0.0.1:5001=3; repeat it for several
    #[arg(long, value_name = "ADDRESS[=WEIGHT]", value_delimiter = ',')]
    pub(crate) endpoint: Vec<String>,
    /// Balance by round_robin, random, maglev, source_hash or least_connections
    #[arg(long)]
    pub(crate) balance: Option<String>,
    /// Forward by nat, full_nat, dsr or local
    #[arg(long)]
    pub(crate) mode: Option<String>,
    /// With full_nat: connect to endpoints from this address; repeat it for several
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',')]
    pub(crate) source: Vec<String>,
    /// Keep a client with its endpoint for this long: 10m
    #[arg(long, value_name = "DURATION")]
    pub(crate) affinity: Option<String>,
    /// Announce the address: route or l2
    #[arg(long, value_name = "HOW")]
    pub(crate) announce: Option<String>,
    /// Probe the endpoints: tcp, or a path to request over HTTP
    #[arg(long, value_name = "tcp|PATH")]
    pub(crate) health_check: Option<String>,
    #[command(flatten)]
    pub(crate) ask: AskArgs,
}

#[derive(Debug, Args)]
pub(crate) struct VipRemoveArgs {
    /// The vip, as `steelyard vip list` shows it
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) ask: AskArgs,
}

#[derive(Debug, Args)]
pub(crate) struct FlowsArgs {
    /// List the flows of this vip only
    #[arg(long, value_name = "NAME")]
    pub(crate) vip: Option<String>,
    /// List at most this many
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) limit: u32,
    #[command(flatten)]
    pub(crate) ask: AskArgs,
}

#[derive(Debug, Args)]
pub(crate) struct TraceArgs {
    /// The name of a vip, or an address and port: 192.0.2.1:80, 192.0.2.1:53/udp
    #[arg(long, value_name = "NAME|ADDRESS")]
    pub(crate) vip: String,
    /// The client: 10.0.0.7, or 10.0.0.7:40000, or `local` for a process of this host that connects
    #[arg(long, value_name = "IP[:PORT]|local")]
    pub(crate) from: String,
    /// The interface on which the packet arrives [default: the first interface of the vip]
    #[arg(long, value_name = "NAME")]
    pub(crate) interface: Option<String>,
    /// The TCP flags, comma-separated: syn, ack, fin, rst, psh [default: syn]
    #[arg(long)]
    pub(crate) flags: Option<String>,
    #[command(flatten)]
    pub(crate) ask: AskArgs,
}

/// `load URL` means `load http URL`, or `load ws URL` if the scheme is `ws` or `wss`.
pub(crate) fn with_kind_of_load(mut arguments: Vec<OsString>) -> Vec<OsString> {
    let text = |at: usize| arguments.get(at).and_then(|argument| argument.to_str()).unwrap_or_default();
    let is_help = |argument: &str| matches!(argument, "-h" | "--help" | "-V" | "--version");
    // A bare word is a kind of load, perhaps misspelt. Options are placed after the kind.
    let is_url = |argument: &str| argument.contains([':', '/', '.']) || argument == "localhost";
    let begins = is_url(text(2)) || (text(2).starts_with('-') && !is_help(text(2)));
    if text(1) == "load" && begins {
        let is_websocket = |argument: &OsString| {
            let scheme =
                argument.to_str().and_then(|argument| argument.split_once("://")).map_or("", |(scheme, _)| scheme);
            scheme.eq_ignore_ascii_case("ws") || scheme.eq_ignore_ascii_case("wss")
        };
        let kind = if arguments.iter().skip(2).any(is_websocket) { "ws" } else { "http" };
        arguments.insert(2, kind.into());
    }
    arguments
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;

    #[test]
    fn a_load_of_a_url_is_one_of_http() {
        let check = |words: &str, expect: &str| {
            let arguments = words.split(' ').map(OsString::from).collect();
            assert_eq!(with_kind_of_load(arguments).join(OsStr::new(" ")), OsStr::new(expect));
        };
        check("steelyard load http://a:80/ -c 1", "steelyard load http http://a:80/ -c 1");
        check("steelyard load -c 1 http://a:80/", "steelyard load http -c 1 http://a:80/");
        check("steelyard load https://a/", "steelyard load http https://a/");
        check("steelyard load localhost", "steelyard load http localhost");
        check("steelyard load ws://a:80/b", "steelyard load ws ws://a:80/b");
        check("steelyard load -c 1 WSS://a/", "steelyard load ws -c 1 WSS://a/");
        check("steelyard load ws a:80", "steelyard load ws a:80");
        check("steelyard load a.example/b -n 1", "steelyard load http a.example/b -n 1");
        check("steelyard load [::1]:80", "steelyard load http [::1]:80");
        check("steelyard load -k https://a/", "steelyard load http -k https://a/");
        check("steelyard load htpp a:80", "steelyard load htpp a:80");
        check("steelyard load grpc http://a:80/b.C/D", "steelyard load grpc http://a:80/b.C/D");
        check("steelyard load http http://a:80/", "steelyard load http http://a:80/");
        check("steelyard load --help", "steelyard load --help");
        check("steelyard load tcp-rr a:80", "steelyard load tcp-rr a:80");
        check("steelyard check http://a", "steelyard check http://a");
        check("steelyard", "steelyard");
    }

    #[test]
    fn intervals() {
        let check = |text: &str, ms: Option<u64>| {
            assert_eq!(interval(text).ok(), ms.map(Duration::from_millis), "{text}");
        };
        check("2", Some(2_000));
        check("0.5", Some(500));
        check("250ms", Some(250));
        check("1.5s", Some(1_500));
        check("2m", Some(120_000));
        for bad in ["", "s", "0", "99ms", "2h", "1 s", "1d", "-1", "1.2.3"] {
            check(bad, None);
        }
    }
}
