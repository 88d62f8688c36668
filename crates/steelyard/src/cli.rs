//! The command line. Completions and man pages are made from these definitions.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueHint};

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
    Serve(ServeArgs),
    /// Read a configuration file and report every error in it; opens nothing
    Check(FileArgs),
    /// Print the JSON schema of the configuration file, for editors
    Schema,
    /// Show how a running Steelyard does; what is wrong comes first
    Status(StatusArgs),
    /// Let a running Steelyard read its file again
    Reload(AdminArgs),
    /// Take an endpoint out of service, or back in
    #[command(subcommand)]
    Endpoint(EndpointCommand),
    /// Test back ends
    #[command(subcommand)]
    Origin(lab::origin::OriginCommand),
    /// Put load on a server and measure it
    #[command(subcommand)]
    Load(lab::load::LoadCommand),
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
    /// Where the control API and the metrics listen; nowhere without it
    #[arg(long, value_name = "ADDRESS", value_parser = config::parse_bind)]
    pub(crate) admin: Option<SocketAddr>,
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
    /// Worker threads; without it, as many as this process has CPUs
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) workers: Option<u16>,
    /// What is logged to standard error: error, warn, info, debug, trace, or a filter such as proxy=debug
    #[arg(long, value_name = "LEVEL", env = "STEELYARD_LOG", default_value = "info")]
    pub(crate) log: String,
}

#[derive(Debug, Args)]
pub(crate) struct AdminArgs {
    /// The admin address of the running Steelyard
    #[arg(long, value_name = "ADDRESS", env = "STEELYARD_ADMIN", default_value = "127.0.0.1:9900")]
    pub(crate) admin: SocketAddr,
}

#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    pub(crate) admin: AdminArgs,
    /// Print JSON, stable and versioned
    #[arg(long)]
    pub(crate) json: bool,
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
    /// Only in this cluster; without it, in every cluster that has the endpoint
    #[arg(long, value_name = "NAME")]
    pub(crate) cluster: Option<String>,
    #[command(flatten)]
    pub(crate) admin: AdminArgs,
}
