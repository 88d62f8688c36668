//! The command line of `steelyard sidecar`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueHint};

use super::ServeArgs;

#[derive(Debug, Subcommand)]
pub(crate) enum SidecarCommand {
    /// Serve the connections that the kernel redirects here, by the `sidecar` of a configuration file
    ///
    /// It is `steelyard serve` for a file with a `sidecar`, and refuses a file that has none.
    Run(ServeArgs),
    /// Make the kernel redirect the TCP connections of this network namespace to the sidecar, or stop that
    ///
    /// It needs CAP_NET_ADMIN in the network namespace of the application, and replaces what an earlier call has set up.
    /// Connections that exist stay as they are, but --remove breaks those that were captured.
    Init(SidecarInitArgs),
    /// Add the sidecar to the pods in a Kubernetes manifest that ask for it, and print the manifest
    ///
    /// A pod asks for it by the label or annotation `steelyard.io/sidecar: enabled` of its template. Everything else is
    /// printed as it is.
    Inject(SidecarInjectArgs),
}

#[derive(Debug, Args)]
pub(crate) struct SidecarInitArgs {
    /// The configuration file of the sidecar
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath, required_unless_present = "remove")]
    pub(crate) config: Option<PathBuf>,
    /// Remove the rules, so that no new connection is captured
    #[arg(long, conflicts_with_all = ["config", "print"])]
    pub(crate) remove: bool,
    /// Print the rules as a file for `nft -f`, and change nothing
    #[arg(long)]
    pub(crate) print: bool,
}

#[derive(Debug, Args)]
pub(crate) struct SidecarInjectArgs {
    /// The manifest, or - for standard input
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) filename: PathBuf,
    /// The image of Steelyard
    #[arg(long, value_name = "IMAGE")]
    pub(crate) image: String,
    /// The ConfigMap with the configuration file, under the key `sidecar.yaml`
    #[arg(long, value_name = "NAME", default_value = "steelyard-sidecar")]
    pub(crate) config_map: String,
    /// A Secret with the certificate of the sidecar, which is mounted at /etc/steelyard/tls
    #[arg(long, value_name = "NAME")]
    pub(crate) secret: Option<String>,
}
