//! The arguments of `steelyard controller`.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum, ValueHint};
use model::AdminAddress;

use super::{ADMIN_DEFAULT, RunArgs};

#[derive(Debug, Args)]
pub(crate) struct ControllerArgs {
    /// The kubeconfig to use [default: $KUBECONFIG, else ~/.kube/config, else the service account of the pod]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig to use [default: its current context]
    #[arg(long, value_name = "NAME")]
    pub(crate) context: Option<String>,
    /// Watch only objects of this namespace; repeat it for several [default: every namespace]
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) namespace: Vec<String>,
    /// Handle the GatewayClasses that have this controller name
    #[arg(long, value_name = "DOMAIN/PATH", default_value_t = controller::Settings::default().controller_name)]
    pub(crate) controller_name: String,
    /// Handle only Gateways of this class
    #[arg(long, value_name = "NAME")]
    pub(crate) gateway_class: Option<String>,
    /// Handle only Ingresses of this class, whose controller must be steelyard.io/ingress-controller
    #[arg(long, value_name = "NAME")]
    pub(crate) ingress_class: Option<String>,
    /// Handle Services of type LoadBalancer that have this class
    #[arg(long, value_name = "DOMAIN/PATH", default_value_t = controller::Settings::default().load_balancer_class)]
    pub(crate) load_balancer_class: String,
    /// Serve Ingresses as ingress-nginx does: its annotations, and IngressClasses of k8s.io/ingress-nginx
    #[arg(long)]
    pub(crate) ingress_nginx: bool,
    /// Read the ConfigMap of ingress-nginx [default: none; its defaults apply]
    #[arg(long, value_name = "NAMESPACE/NAME", requires = "ingress_nginx")]
    pub(crate) ingress_nginx_configmap: Option<controller::ServiceName>,
    /// Send what no Ingress takes to this Service, to its first port [default: none; it is answered 404]
    #[arg(long, value_name = "NAMESPACE/NAME", requires = "ingress_nginx")]
    pub(crate) ingress_nginx_default_backend: Option<controller::ServiceName>,
    /// Serve the TCP ports in this ConfigMap of ingress-nginx
    #[arg(long, value_name = "NAMESPACE/NAME", requires = "ingress_nginx")]
    pub(crate) ingress_nginx_tcp_services: Option<controller::ServiceName>,
    /// Serve the UDP ports in this ConfigMap of ingress-nginx in the kernel plane. Needs --listen-address with one
    /// address, and --vip-interface or --address-pool
    #[arg(long, value_name = "NAMESPACE/NAME", requires = "ingress_nginx")]
    pub(crate) ingress_nginx_udp_services: Option<controller::ServiceName>,
    /// Serve ssl-passthrough of ingress-nginx: connections for such hosts reach endpoints as they are. As
    /// --enable-ssl-passthrough there
    #[arg(long, requires = "ingress_nginx")]
    pub(crate) ingress_nginx_ssl_passthrough: bool,
    /// Read annotations of ingress-nginx with this prefix. As --annotations-prefix there
    #[arg(long, value_name = "PREFIX", requires = "ingress_nginx", default_value = "nginx.ingress.kubernetes.io")]
    pub(crate) ingress_nginx_annotations_prefix: controller::ingress_nginx::Prefix,
    /// Decide like this where the behaviour of ingress-nginx would be a hole
    #[arg(long, value_name = "HOW", requires = "ingress_nginx", default_value = "safe")]
    pub(crate) ingress_nginx_compat: CompatArg,
    /// Write the status of Ingresses; false while another controller serves the same ones
    #[arg(long, value_name = "BOOL", action = clap::ArgAction::Set, default_value_t = true)]
    pub(crate) ingress_status: bool,
    /// Serve Ingresses, and Gateways without an address of their own, on this address; :: means every address of this
    /// host
    #[arg(long, value_name = "IP", default_value = "::")]
    pub(crate) listen_address: IpAddr,
    /// The port for Ingresses over HTTP
    #[arg(long, value_name = "PORT", default_value_t = 80)]
    pub(crate) http_port: u16,
    /// The port for Ingresses over HTTPS
    #[arg(long, value_name = "PORT", default_value_t = 443)]
    pub(crate) https_port: u16,
    /// Show the certificate in this Secret for hosts of Ingresses that have none of their own
    #[arg(long, value_name = "NAMESPACE/SECRET")]
    pub(crate) default_certificate: Option<controller::SecretRef>,
    /// Report this address or name, by which clients reach the listen address, in the status of Ingresses and Gateways;
    /// repeat it for several
    #[arg(long, value_name = "IP|NAME", value_delimiter = ',')]
    pub(crate) publish_address: Vec<controller::Published>,
    /// The page at the admin address adds up the figures of all pods of this Service, which answer /overview at its port named metrics, or its only
    /// one. Its EndpointSlices are watched, so no DNS is needed
    #[arg(long, value_name = "NAMESPACE/NAME", conflicts_with = "replicas")]
    pub(crate) replicas_service: Option<controller::ServiceName>,
    /// Report the addresses of this Service in these statuses: those that the cluster gives it as a LoadBalancer, or its
    /// external IPs, or its cluster IPs
    #[arg(long, value_name = "NAMESPACE/NAME", conflicts_with = "publish_address")]
    pub(crate) publish_service: Option<controller::ServiceName>,
    /// Give each Gateway an address from this range, such as 192.0.2.0/28 or 192.0.2.10-192.0.2.20; repeat it for
    /// several
    #[arg(long, value_name = "RANGE", value_delimiter = ',')]
    pub(crate) gateway_address_pool: Vec<controller::Pool>,
    /// Give each Service of type LoadBalancer an address from this range; repeat it for several
    #[arg(long, value_name = "RANGE", value_delimiter = ',')]
    pub(crate) address_pool: Vec<controller::Pool>,
    /// Attach to this interface, where packets of Services and UDP listeners or the replies arrive; repeat it for
    /// several [default: the interfaces of the default routes and of the routes to the endpoints, if there is an
    /// --address-pool]
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) vip_interface: Vec<String>,
    /// Balance connections of this node's own processes to Services when they connect: those of this control group of
    /// version 2 and of all below it, such as the root of the hierarchy, /sys/fs/cgroup
    #[arg(long, value_name = "PATH")]
    pub(crate) socket_cgroup: Option<PathBuf>,
    /// Announce the addresses of Services that this node can serve: `route` together with a routing daemon on the node, or
    /// `l2` on the link, where one node at a time answers for each address
    #[arg(long, value_name = "HOW")]
    pub(crate) announce: Option<AnnounceBy>,
    /// After an address was withdrawn, announce it again once it has been usable for this long
    #[arg(long, value_name = "DURATION", value_parser = config::parse_wait, default_value = "10s")]
    pub(crate) announce_after: Duration,
    /// The routing table for the routes of announced addresses; 254 is the main one
    #[arg(long, value_name = "NUMBER", default_value_t = model::Announcing::default().table, value_parser = route_table)]
    pub(crate) route_table: u32,
    /// The metric of these routes
    #[arg(long, value_name = "NUMBER", default_value_t = model::Announcing::default().metric, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) route_metric: u32,
    /// Serve every Service on this node, as kube-proxy does, beside it or in its place: cluster IPs at the socket; node
    /// ports, external IPs and balancers' addresses at the socket and by packets. Needs --socket-cgroup and --node-name
    #[arg(long)]
    pub(crate) kube_proxy_replacement: bool,
    /// Serve cluster IPs to packets too, for clients without a process on this node, such as virtual machines; their
    /// endpoints see an address of this node. Needs --kube-proxy-replacement
    #[arg(long)]
    pub(crate) cluster_ip_packets: bool,
    /// The node that this runs on, for Services with a traffic policy Local
    #[arg(long, value_name = "NAME", env = "NODE_NAME")]
    pub(crate) node_name: Option<String>,
    /// The zone of this node, for Services with trafficDistribution [default: none; such Services use all endpoints]
    #[arg(long, value_name = "NAME", env = "NODE_ZONE")]
    pub(crate) node_zone: Option<String>,
    /// Trust the X-Forwarded-* headers of clients in this network; repeat it for several
    #[arg(long, value_name = "NETWORK", value_delimiter = ',')]
    pub(crate) trusted_proxy: Vec<ipnet::IpNet>,
    /// The namespace of the Lease that decides which replica writes statuses [default: the namespace of the pod or the
    /// kubeconfig]
    #[arg(long, value_name = "NAME", env = "POD_NAMESPACE")]
    pub(crate) lease_namespace: Option<String>,
    /// The name of the Lease
    #[arg(long, value_name = "NAME", default_value = "steelyard")]
    pub(crate) lease_name: String,
    /// The name of this replica in the Lease [default: the host name and the process ID]
    #[arg(long, value_name = "NAME", env = "POD_NAME")]
    pub(crate) identity: Option<String>,
    /// Serve the control API here: a loopback address, or unix:PATH
    #[arg(long, value_name = "ADDRESS", value_parser = config::parse_admin, default_value_t = ADMIN_DEFAULT)]
    pub(crate) admin: AdminAddress,
    /// Serve /metrics, /healthz and /readyz on this address too, for scrapers and probes on other hosts
    #[arg(long, value_name = "ADDRESS", value_parser = config::parse_bind)]
    pub(crate) metrics: Option<SocketAddr>,
    /// After SIGTERM, fail /readyz but keep accepting connections for this long. It must be longer than the cluster
    /// needs to send its traffic elsewhere, and the pod's terminationGracePeriodSeconds must be 25 s longer than it
    #[arg(long, value_name = "DURATION", value_parser = config::parse_wait, default_value = "0s")]
    pub(crate) drain_delay: Duration,
    /// Write an access log to standard output, with one line per request
    #[arg(long, value_name = "FORMAT")]
    pub(crate) access_log: Option<LogFormat>,
    /// A file with `access_log`, `tracing` and the `clusters` that they name, as in a configuration file. It is read once
    #[arg(long, value_name = "FILE", conflicts_with = "access_log")]
    pub(crate) telemetry: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) run: RunArgs,
}

/// What counts where the behaviour of ingress-nginx would be a hole.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum CompatArg {
    /// The behaviour of ingress-nginx
    Exact,
    /// That of Steelyard
    Safe,
}

impl From<CompatArg> for controller::ingress_nginx::Compat {
    fn from(compat: CompatArg) -> Self {
        match compat {
            CompatArg::Exact => Self::Exact,
            CompatArg::Safe => Self::Safe,
        }
    }
}

/// How addresses are announced.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum AnnounceBy {
    /// By a route of this node, which a routing daemon such as FRR passes on
    Route,
    /// By answering ARP and neighbour discovery; a Lease for each address decides which node does
    L2,
}

impl From<AnnounceBy> for model::Announce {
    fn from(by: AnnounceBy) -> Self {
        match by {
            AnnounceBy::Route => Self::Route,
            AnnounceBy::L2 => Self::L2,
        }
    }
}

/// Parses the number of a routing table.
fn route_table(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err("expected the number of a routing table, from 1 on".to_owned()),
        Ok(config::TABLE_LOCAL) => Err(config::NOT_TABLE_LOCAL.to_owned()),
        Ok(table) => Ok(table),
    }
}

/// The format of the access log.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum LogFormat {
    /// Text for people
    Text,
    /// JSON for programs
    Json,
}

impl From<LogFormat> for model::LogFormat {
    fn from(format: LogFormat) -> Self {
        match format {
            LogFormat::Text => Self::Text(None),
            LogFormat::Json => Self::Json(None),
        }
    }
}
