//! The command line. Completions and man pages are made from these definitions.

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum, ValueHint};
use model::{AdminAddress, UNIX_PREFIX};

/// Where the control API of a process listens, and where commands look for it, unless they are told otherwise.
pub(crate) const ADMIN_DEFAULT: AdminAddress =
    AdminAddress::Socket(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9900));

/// A load balancer that weighs itself.
#[derive(Debug, Parser)]
#[command(name = "steelyard", version, about, max_term_width = 100, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Start three origins and a balancer, put load through, kill one origin on the way, and say what it cost
    Demo(lab::demo::DemoArgs),
    /// Balance one address over some endpoints, without a configuration file
    Proxy(ProxyArgs),
    /// Run what a configuration file says
    ///
    /// The file, and the certificates and keys that it names, are watched: a change that is saved is served within two seconds, and a file
    /// with an error changes nothing. With `watch: false` in the file, a change is served on `steelyard reload` or SIGHUP alone.
    /// SIGTERM and SIGINT drain; a second one, a second or more later, closes what is left.
    Serve(ServeArgs),
    /// Run what a cluster of Kubernetes asks for: Gateways and their routes, Ingresses, Services of the type LoadBalancer
    Controller(Box<ControllerArgs>),
    /// Read a configuration file and report every error in it; opens nothing
    Check(FileArgs),
    /// Print the JSON schema of the configuration file, for editors
    Schema,
    /// Show how a running Steelyard does; what is wrong comes first
    Status(StatusArgs),
    /// Let a running Steelyard read its file again
    Reload(AskArgs),
    /// Take an endpoint out of service, or back in
    #[command(subcommand)]
    Endpoint(EndpointCommand),
    /// Virtual IPs that the kernel balances
    #[command(subcommand)]
    Vip(VipCommand),
    /// List connections of the kernel plane
    Flows(FlowsArgs),
    /// Say what the kernel plane would do with a packet, stage by stage; exit 0 if it would be forwarded
    Trace(TraceArgs),
    /// Test back ends
    #[command(subcommand)]
    Origin(lab::origin::OriginCommand),
    /// Put load on a server and measure it; `load URL` is short for `load http URL`
    ///
    /// Ctrl-C prints what was met until then. The exit code is 0 when at least one operation succeeded, and 1 when none did: no connection could
    /// be made, no answer came, or every answer was a failure (HTTP: a status outside of 200 to 299; gRPC: a status other than 0).
    #[command(subcommand)]
    Load(lab::load::LoadCommand),
    /// Measure Steelyard side by side with its rivals, and write reports
    #[command(subcommand)]
    Lab(lab::command::LabCommand),
    /// Print shell completions
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Write man pages
    Man {
        /// The directory they are written to
        #[arg(value_hint = ValueHint::DirPath)]
        directory: PathBuf,
    },
}

// Help texts are for terminals: brackets are those of IPv6 addresses, not links.
#[expect(rustdoc::broken_intra_doc_links, reason = "see above")]
#[derive(Debug, Args)]
pub(crate) struct ProxyArgs {
    /// Where to listen: 127.0.0.1:8080, [::1]:8080, or :8080 for every address of this host
    #[arg(long, value_name = "ADDRESS", value_parser = config::parse_bind)]
    pub(crate) listen: SocketAddr,
    /// The endpoints, comma-separated: 127.0.0.1:9001, [::1]:9001, or api.example.com:80
    #[arg(long, value_name = "ENDPOINTS", value_delimiter = ',', required = true, value_parser = config::parse_endpoint)]
    pub(crate) to: Vec<model::EndpointAddress>,
    /// Move bytes, whatever they are, instead of HTTP requests
    #[arg(long)]
    pub(crate) tcp: bool,
    /// Where the control API listens: a loopback address, or unix:PATH; without it 127.0.0.1:9900, if no other process has that
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

// Help texts are for terminals: brackets are those of IPv6 addresses, not links.
#[expect(rustdoc::broken_intra_doc_links, reason = "see above")]
#[derive(Debug, Args)]
pub(crate) struct ControllerArgs {
    /// A kubeconfig; without it KUBECONFIG, ~/.kube/config, or the service account of the pod
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig; without it, its current one
    #[arg(long, value_name = "NAME")]
    pub(crate) context: Option<String>,
    /// Only objects of this namespace; once for each
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) namespace: Vec<String>,
    /// GatewayClasses that name this controller are ours
    #[arg(long, value_name = "DOMAIN/PATH", default_value_t = controller::Settings::default().controller_name)]
    pub(crate) controller_name: String,
    /// Only Gateways of this class
    #[arg(long, value_name = "NAME")]
    pub(crate) gateway_class: Option<String>,
    /// Only Ingresses of this class, whose controller must be steelyard.io/ingress-controller
    #[arg(long, value_name = "NAME")]
    pub(crate) ingress_class: Option<String>,
    /// Services of the type LoadBalancer with this class are ours
    #[arg(long, value_name = "DOMAIN/PATH", default_value_t = controller::Settings::default().load_balancer_class)]
    pub(crate) load_balancer_class: String,
    /// Where Ingresses are served, and Gateways that have no address of their own; [::] is every address of this host
    #[arg(long, value_name = "IP", default_value = "::")]
    pub(crate) listen_address: IpAddr,
    /// The port of Ingresses
    #[arg(long, value_name = "PORT", default_value_t = 80)]
    pub(crate) http_port: u16,
    /// The port of Ingresses with certificates
    #[arg(long, value_name = "PORT", default_value_t = 443)]
    pub(crate) https_port: u16,
    /// By which address or name clients reach the listen address, for the status of Ingresses and Gateways; once for each
    #[arg(long, value_name = "IP|NAME", value_delimiter = ',')]
    pub(crate) publish_address: Vec<controller::Published>,
    /// Addresses for Gateways, one for each: 192.0.2.0/28, 192.0.2.10-192.0.2.20; once for each range
    #[arg(long, value_name = "RANGE", value_delimiter = ',')]
    pub(crate) gateway_address_pool: Vec<controller::Pool>,
    /// Addresses for Services of the type LoadBalancer; once for each range
    #[arg(long, value_name = "RANGE", value_delimiter = ',')]
    pub(crate) address_pool: Vec<controller::Pool>,
    /// Where packets of Services and of UDP listeners arrive, and the replies; once for each. Without it: where the default routes
    /// and those to the endpoints lead, if there is an --address-pool
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) vip_interface: Vec<String>,
    /// The node that this runs on, for Services with externalTrafficPolicy Local
    #[arg(long, value_name = "NAME", env = "NODE_NAME")]
    pub(crate) node_name: Option<String>,
    /// Networks whose X-Forwarded-* headers are believed; once for each
    #[arg(long, value_name = "NETWORK", value_delimiter = ',')]
    pub(crate) trusted_proxy: Vec<ipnet::IpNet>,
    /// The namespace of the Lease by which replicas agree who writes statuses; without it, that of the pod or the kubeconfig
    #[arg(long, value_name = "NAME", env = "POD_NAMESPACE")]
    pub(crate) lease_namespace: Option<String>,
    /// The name of the Lease
    #[arg(long, value_name = "NAME", default_value = "steelyard")]
    pub(crate) lease_name: String,
    /// What this replica is called in the Lease; without it, the name of the host and the number of the process
    #[arg(long, value_name = "NAME", env = "POD_NAME")]
    pub(crate) identity: Option<String>,
    /// Where the control API listens: a loopback address, or unix:PATH
    #[arg(long, value_name = "ADDRESS", value_parser = config::parse_admin, default_value_t = ADMIN_DEFAULT)]
    pub(crate) admin: AdminAddress,
    /// Where /metrics, /healthz and /readyz are answered as well, for scrapers and probes from other hosts; nowhere without it
    #[arg(long, value_name = "ADDRESS", value_parser = config::parse_bind)]
    pub(crate) metrics: Option<SocketAddr>,
    /// Write a line for each request to standard output
    #[arg(long, value_name = "FORMAT")]
    pub(crate) access_log: Option<LogFormat>,
    #[command(flatten)]
    pub(crate) run: RunArgs,
}

/// How a line of the access log is written.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum LogFormat {
    /// For people
    Text,
    /// For machines
    Json,
}

impl From<LogFormat> for model::AccessLogFormat {
    fn from(format: LogFormat) -> Self {
        match format {
            LogFormat::Text => Self::Text,
            LogFormat::Json => Self::Json,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct FileArgs {
    /// The configuration file
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) config: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// Worker threads; without it, as many as this process has CPUs
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) workers: Option<u16>,
    /// What is logged to standard error: off, error, warn, info, debug or trace; and for single modules, as in warn,proxy=debug
    #[arg(long, value_name = "LEVEL", env = "STEELYARD_LOG", default_value = "info")]
    pub(crate) log: String,
}

#[derive(Debug, Args)]
pub(crate) struct AdminArgs {
    /// The admin address of the running Steelyard: an address and port, or unix:PATH
    #[arg(long, value_name = "ADDRESS", env = "STEELYARD_ADMIN", default_value_t = ADMIN_DEFAULT, value_parser = admin_address)]
    pub(crate) admin: AdminAddress,
}

/// A Unix socket; an address and port; or a name and port: the first address of the name counts, IPv4 before IPv6, since that is what `admin:` most
/// often is.
fn admin_address(text: &str) -> Result<AdminAddress, String> {
    if text.starts_with(UNIX_PREFIX) {
        return config::parse_admin(text);
    }
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Ok(address.into());
    }
    let example = "write an address and port, such as 127.0.0.1:9900";
    let (name, port) = text.rsplit_once(':').ok_or_else(|| format!("it has no port; {example}"))?;
    if port.parse::<u16>().is_err() || name.contains('/') {
        return Err(example.to_owned());
    }
    // `:9900` is how the file writes every address of this host.
    let name = if name.is_empty() { "localhost" } else { name };
    let found = (name, port.parse().unwrap_or_default())
        .to_socket_addrs()
        .map_err(|error| format!("{name}: {error}; {example}"))?;
    let mut found: Vec<SocketAddr> = found.collect();
    found.sort_by_key(SocketAddr::is_ipv6);
    found.first().copied().map(AdminAddress::from).ok_or_else(|| format!("{name} has no address; {example}"))
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
    /// Exit with 1 if something is wrong, with 0 if nothing is; findings that are only to be looked at do not count
    #[arg(long)]
    pub(crate) check: bool,
    #[command(flatten)]
    pub(crate) ask: AskArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum EndpointCommand {
    /// Finish old work there, give it no new
    Drain(EndpointArgs),
    /// Give it work again
    Ready(EndpointArgs),
}

#[derive(Debug, Args)]
pub(crate) struct EndpointArgs {
    /// The endpoint's address, as `steelyard status` shows it
    pub(crate) endpoint: String,
    /// Only in this cluster; without it, in every cluster and vip that has the endpoint
    #[arg(long, value_name = "NAME", conflicts_with = "vip")]
    pub(crate) cluster: Option<String>,
    /// Only in this vip
    #[arg(long, value_name = "NAME")]
    pub(crate) vip: Option<String>,
    #[command(flatten)]
    pub(crate) ask: AskArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum VipCommand {
    /// Add a vip to a running Steelyard, until that ends; a file is how to keep one
    Add(VipAddArgs),
    /// List the vips of a running Steelyard
    List(AskArgs),
    /// Remove a vip that was added
    Remove(VipRemoveArgs),
    /// Take the kernel plane down, with or without a running Steelyard: no vip is served any more
    Detach(AskArgs),
}

// Help texts are for terminals: brackets are those of IPv6 addresses, not links.
#[expect(rustdoc::broken_intra_doc_links, reason = "see above")]
#[derive(Debug, Args)]
pub(crate) struct VipAddArgs {
    /// The label of its metrics
    pub(crate) name: String,
    /// The address, port and protocol: 192.0.2.1:80/tcp, [2001:db8::1]:5000-5010/udp
    #[arg(long)]
    pub(crate) address: String,
    /// Where its packets, and the replies, arrive; once for each. Without it: where the default routes and those to its
    /// endpoints lead
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) interface: Vec<String>,
    /// An endpoint, and its weight if that is not 1: 10.0.0.1:5001, 10.0.0.1:5001=3; once for each
    #[arg(long, value_name = "ADDRESS[=WEIGHT]", value_delimiter = ',')]
    pub(crate) endpoint: Vec<String>,
    /// round_robin, random, maglev, source_hash or least_connections
    #[arg(long)]
    pub(crate) balance: Option<String>,
    /// nat, full_nat, dsr or local
    #[arg(long)]
    pub(crate) mode: Option<String>,
    /// With full_nat: an address that endpoints see connections come from; once for each
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',')]
    pub(crate) source: Vec<String>,
    /// How long a client stays with its endpoint: 10m
    #[arg(long, value_name = "DURATION")]
    pub(crate) affinity: Option<String>,
    /// Probe the endpoints: tcp, or the path to ask for over HTTP
    #[arg(long, value_name = "tcp|PATH")]
    pub(crate) health_check: Option<String>,
    #[command(flatten)]
    pub(crate) ask: AskArgs,
}

#[derive(Debug, Args)]
pub(crate) struct VipRemoveArgs {
    /// As `steelyard vip list` shows it
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) ask: AskArgs,
}

#[derive(Debug, Args)]
pub(crate) struct FlowsArgs {
    /// Only of this vip
    #[arg(long, value_name = "NAME")]
    pub(crate) vip: Option<String>,
    /// How many at most
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
    /// The client: an address, or an address and port
    #[arg(long, value_name = "IP[:PORT]")]
    pub(crate) from: String,
    /// Where the packet arrives; without it, on the first interface of the vip
    #[arg(long, value_name = "NAME")]
    pub(crate) interface: Option<String>,
    /// Of TCP, comma-separated: syn, ack, fin, rst, psh; without it, a SYN
    #[arg(long)]
    pub(crate) flags: Option<String>,
    #[command(flatten)]
    pub(crate) ask: AskArgs,
}

/// `load URL` means `load http URL`.
pub(crate) fn with_kind_of_load(mut arguments: Vec<OsString>) -> Vec<OsString> {
    let text = |at: usize| arguments.get(at).and_then(|argument| argument.to_str()).unwrap_or_default();
    let is_url = |argument: &str| argument.starts_with("http://");
    // Behind options there may be one, too. A kind of load stands before all of them.
    let begins = is_url(text(2)) || (text(2).starts_with('-') && (3..arguments.len()).any(|at| is_url(text(at))));
    if text(1) == "load" && begins {
        arguments.insert(2, "http".into());
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
        check("steelyard load grpc http://a:80/b.C/D", "steelyard load grpc http://a:80/b.C/D");
        check("steelyard load http http://a:80/", "steelyard load http http://a:80/");
        check("steelyard load --help", "steelyard load --help");
        check("steelyard load tcp-rr a:80", "steelyard load tcp-rr a:80");
        check("steelyard check http://a", "steelyard check http://a");
        check("steelyard", "steelyard");
    }

    #[test]
    fn admin_addresses() {
        let check = |text: &str, expect: &str| {
            let found = admin_address(text).map_or_else(|error| error, |address| address.to_string());
            assert_eq!(found, expect, "{text}");
        };
        check("127.0.0.1:9900", "127.0.0.1:9900");
        check("[::1]:9900", "[::1]:9900");
        check("unix:/run/steelyard/admin.sock", "unix:/run/steelyard/admin.sock");
        check("unix:admin.sock", "\"admin.sock\" is not an absolute path; write unix:/run/steelyard/admin.sock");
        check("localhost:9900", "127.0.0.1:9900");
        check(":9900", "127.0.0.1:9900");
        check("9900", "it has no port; write an address and port, such as 127.0.0.1:9900");
        check("localhost", "it has no port; write an address and port, such as 127.0.0.1:9900");
        check("http://localhost:9900", "write an address and port, such as 127.0.0.1:9900");
        check("localhost:x", "write an address and port, such as 127.0.0.1:9900");
    }
}
