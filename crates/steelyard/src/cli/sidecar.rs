//! The command line of `steelyard sidecar`.

#[cfg(feature = "controller")]
use std::net::SocketAddr;
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
    /// Connections that exist stay as they are.
    Init(SidecarInitArgs),
    /// Add the sidecar to the pods in a Kubernetes manifest that ask for it, and print the manifest
    ///
    /// A pod asks for it by the label or annotation `steelyard.io/sidecar: enabled` of its template; a label counts before
    /// an annotation. Every other byte of the manifest is printed as it is, comments included.
    Inject(SidecarInjectArgs),
    /// Add the sidecar to pods when they are made: the webhook of a Kubernetes cluster
    ///
    /// It serves HTTPS with a certificate that it makes itself, and puts it into the MutatingWebhookConfiguration; it
    /// replaces it in time. Pods at the path /namespace get the sidecar unless they are marked otherwise, and those at
    /// any other path if they are marked, as for `inject`. The Helm chart runs it with `sidecarWebhook.enabled=true`.
    #[cfg(feature = "controller")]
    Webhook(Box<SidecarWebhookArgs>),
}

#[cfg(feature = "controller")]
#[derive(Debug, Args)]
pub(crate) struct SidecarWebhookArgs {
    /// The MutatingWebhookConfiguration that gets the certificate
    #[arg(long, value_name = "NAME")]
    pub(crate) configuration: String,
    /// A name or address by which the API server connects, such as webhook.steelyard.svc; repeat it for several
    #[arg(long, value_name = "NAME", value_delimiter = ',', required = true)]
    pub(crate) name: Vec<String>,
    /// Listen on this address, also for probes: /healthz and /readyz
    #[arg(long, value_name = "ADDRESS", value_parser = config::parse_bind, default_value = ":9443")]
    pub(crate) listen: SocketAddr,
    #[command(flatten)]
    pub(crate) injected: InjectedArgs,
    /// The kubeconfig to use [default: $KUBECONFIG, else ~/.kube/config, else the service account of the pod]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig to use [default: its current context]
    #[arg(long, value_name = "NAME")]
    pub(crate) context: Option<String>,
    /// Log to standard error at this level: off, error, warn, info, debug or trace
    #[arg(long, value_name = "LEVEL", env = "STEELYARD_LOG", default_value = "info")]
    pub(crate) log: String,
}

#[derive(Debug, Args)]
pub(crate) struct SidecarInitArgs {
    /// The configuration file of the sidecar
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath, required_unless_present = "remove")]
    pub(crate) config: Option<PathBuf>,
    /// Remove the rules, so that no new connection is captured; those that were go on through the sidecar
    #[arg(long, conflicts_with_all = ["config", "print"])]
    pub(crate) remove: bool,
    /// With --remove: break the connections that were captured, and leave nothing behind; end the sidecar first
    #[arg(long, requires = "remove")]
    pub(crate) force: bool,
    /// Print the rules as a file for `nft -f`, and change nothing
    #[arg(long)]
    pub(crate) print: bool,
}

#[derive(Debug, Args)]
pub(crate) struct SidecarInjectArgs {
    /// The manifest, or - for standard input
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) filename: PathBuf,
    #[command(flatten)]
    pub(crate) injected: InjectedArgs,
}

/// What pods get.
#[derive(Clone, Debug, Args)]
pub(crate) struct InjectedArgs {
    /// The image of Steelyard
    #[arg(long, value_name = "IMAGE")]
    pub(crate) image: String,
    /// The ConfigMap with the configuration file, under the key `sidecar.yaml`
    #[arg(long, value_name = "NAME", default_value = "steelyard-sidecar")]
    pub(crate) config_map: String,
    /// A Secret with the certificate of the sidecar, which is mounted at /etc/steelyard/tls
    #[arg(long, value_name = "NAME")]
    pub(crate) secret: Option<String>,
    /// The user that the sidecar runs as: that of `user` in its file
    #[arg(long, value_name = "NUMBER", default_value_t = config::SIDECAR_USER, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) user: u32,
    /// The port that inbound connections are redirected to, which shows that the sidecar has started: that of `inbound.bind`
    /// in its file
    #[arg(long, value_name = "PORT", default_value_t = config::SIDECAR_INBOUND_PORT, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) inbound_port: u16,
}
