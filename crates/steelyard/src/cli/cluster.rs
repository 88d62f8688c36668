//! The arguments of `steelyard controller`.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum, ValueHint};
use model::AdminAddress;

use super::{ADMIN_DEFAULT, RunArgs};

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
    /// How long new connections are still accepted after SIGTERM, while /readyz already fails. Must be longer than it takes the cluster to
    /// send its traffic elsewhere; the pod's terminationGracePeriodSeconds must be 25 s longer
    #[arg(long, value_name = "DURATION", value_parser = config::parse_wait, default_value = "0s")]
    pub(crate) drain_delay: Duration,
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
