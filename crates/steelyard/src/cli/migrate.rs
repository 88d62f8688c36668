//! The arguments of `steelyard migrate`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum, ValueHint};

use super::cluster::CompatArg;

const EXAMPLES: &str = "\
Examples:
  steelyard migrate ingress-nginx
      Report on the cluster of the current kubeconfig
  steelyard migrate ingress-nginx manifests/ --format html > report.html
      Report on the YAML in a folder
  kubectl get ingress,configmap,deployment -A -o yaml | steelyard migrate ingress-nginx -
      Report on what kubectl prints

Exit codes: 0 if all Ingresses are served with all of their annotations and no key of the ConfigMap and no flag is
refused, 1 if not, 64 if the input cannot be read.";

#[derive(Debug, Subcommand)]
pub(crate) enum MigrateCommand {
    /// Tell for each Ingress and annotation of ingress-nginx whether it is served
    ///
    /// It covers the annotations, the ConfigMap and the flags of the controller, and says what to write instead of
    /// what is refused. `steelyard controller --ingress-nginx` serves by the same tables. Nothing is written.
    #[command(after_long_help = EXAMPLES)]
    IngressNginx(IngressNginxArgs),
    /// Send the same requests to two servers, and report every difference in what they answer
    ///
    /// Differences that clients do not depend on, such as the date, are listed separately. Only GET, HEAD and OPTIONS
    /// are sent. Certificates are not verified.
    #[command(after_long_help = COMPARE_EXAMPLES)]
    Compare(CompareArgs),
    /// Translate the configuration of nginx into a file of Steelyard
    ///
    /// It prints the file, and says on standard error what became of each line that is not translated as it is. What may
    /// keep somebody out and is not understood is closed: it answers 403. Files that are included are read, too.
    #[command(after_long_help = NGINX_EXAMPLES)]
    Nginx(TranslateArgs),
    /// Translate the configuration of HAProxy into a file of Steelyard
    ///
    /// It prints the file, and says on standard error what became of each line that is not translated as it is. What may
    /// keep somebody out and is not understood is closed: it answers 403.
    #[command(after_long_help = HAPROXY_EXAMPLES)]
    Haproxy(TranslateArgs),
    /// Translate the static resources of Envoy into a file of Steelyard
    ///
    /// It prints the file, and says on standard error what became of each line that is not translated as it is. What may
    /// keep somebody out and is not understood is closed: it answers 403. The bootstrap file may be YAML or JSON.
    #[command(after_long_help = ENVOY_EXAMPLES)]
    Envoy(TranslateArgs),
    /// Translate Mappings of Ambassador (Emissary-ingress) into a file of Steelyard
    ///
    /// It reads Mapping, Host, Listener and AuthService, also in annotations of Services, and prints the file. It says on
    /// standard error what became of each line that is not translated as it is. What may keep somebody out and is not
    /// understood is closed: it answers 403.
    #[command(after_long_help = AMBASSADOR_EXAMPLES)]
    Ambassador(AmbassadorArgs),
}

const NGINX_EXAMPLES: &str = "\
Examples:
  steelyard migrate nginx /etc/nginx/nginx.conf > steelyard.yaml
  steelyard check -c steelyard.yaml

Exit codes: 0 if all of it is translated, 1 if something is left out or closed, 64 if the file cannot be read.";

const HAPROXY_EXAMPLES: &str = "\
Examples:
  steelyard migrate haproxy /etc/haproxy/haproxy.cfg > steelyard.yaml
  steelyard check -c steelyard.yaml

Exit codes: 0 if all of it is translated, 1 if something is left out or closed, 64 if the file cannot be read.";

const ENVOY_EXAMPLES: &str = "\
Examples:
  steelyard migrate envoy envoy.yaml > steelyard.yaml
  steelyard check -c steelyard.yaml

Exit codes: 0 if all of it is translated, 1 if something is left out or closed, 64 if the file cannot be read.";

const AMBASSADOR_EXAMPLES: &str = "\
Examples:
  steelyard migrate ambassador manifests/ > steelyard.yaml
  kubectl get mappings,hosts -A -o yaml > ambassador.yaml
  steelyard migrate ambassador ambassador.yaml > steelyard.yaml

Exit codes: 0 if all of it is translated, 1 if something is left out or closed, 64 if the files cannot be read.";

#[derive(Debug, Args)]
pub(crate) struct TranslateArgs {
    /// The file that the proxy starts with
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) file: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct AmbassadorArgs {
    /// Files of YAML or JSON, or folders of them
    #[arg(value_name = "PATH", required = true, value_hint = ValueHint::AnyPath)]
    pub(crate) paths: Vec<PathBuf>,
}

const COMPARE_EXAMPLES: &str = "\
Examples:
  steelyard migrate compare --old 192.0.2.10 --new 192.0.2.20 --ingresses manifests/
      Send requests that show how each path of the Ingresses is served
  steelyard migrate compare --old 192.0.2.10 --new 192.0.2.20 --requests access.log --host shop.example.com
      Replay an access log of nginx
  steelyard migrate compare --old 192.0.2.10 --new 192.0.2.20 --requests shop.har
      Replay what a browser has saved

A file of requests is a list with a method and a URL on each line (and headers after tabs), an access log
(of nginx, ingress-nginx, HAProxy or Steelyard, or with a JSON object on each line), or a HAR file. With --ingresses, the hosts of
the log of ingress-nginx are found by the Services that it names. Over TLS, the name of the host is sent (SNI).

Exit codes: 0 if no difference matters, 1 if one does, 64 if the input cannot be read.";

#[derive(Debug, Args)]
pub(crate) struct CompareArgs {
    /// The server that serves now: its address or name, with the port for HTTP if it is not 80
    #[arg(long, value_name = "HOST[:PORT]", value_parser = crate::migrate::compare::server)]
    pub(crate) old: SocketAddr,
    /// The server that shall serve
    #[arg(long, value_name = "HOST[:PORT]", value_parser = crate::migrate::compare::server)]
    pub(crate) new: SocketAddr,
    /// Send requests over TLS to this address of the first [default: port 443]
    #[arg(long, value_name = "HOST[:PORT]", value_parser = crate::migrate::compare::https_server)]
    pub(crate) old_https: Option<SocketAddr>,
    /// The same for the second
    #[arg(long, value_name = "HOST[:PORT]", value_parser = crate::migrate::compare::https_server)]
    pub(crate) new_https: Option<SocketAddr>,
    /// Send the requests in this file; repeat it for several
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) requests: Vec<PathBuf>,
    /// Send requests for the Ingresses in this file or folder; repeat it for several
    #[arg(long, value_name = "PATH", value_hint = ValueHint::AnyPath)]
    pub(crate) ingresses: Vec<PathBuf>,
    /// The host of the requests in an access log; of a HAR file, only requests to it are sent
    #[arg(long, value_name = "HOST")]
    pub(crate) host: Option<String>,
    /// Compare the endpoints that served, which name themselves in this header of their responses
    #[arg(long, value_name = "HEADER")]
    pub(crate) marker: Option<String>,
    /// Take differences in this header for unimportant; repeat it for several
    #[arg(long, value_name = "HEADER", value_delimiter = ',')]
    pub(crate) ignore: Vec<String>,
    /// Send requests of all methods, also those that change something at an endpoint
    #[arg(long)]
    pub(crate) all_methods: bool,
    /// Send at most this many requests
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    pub(crate) limit: usize,
    /// Print the result in this form
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub(crate) format: CompareFormat,
}

/// The form of a comparison.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum CompareFormat {
    /// Text for a terminal
    Text,
    /// JSON, stable and versioned
    Json,
}

#[derive(Debug, Args)]
pub(crate) struct IngressNginxArgs {
    /// Files of YAML or JSON, or folders of them, or - for standard input [default: the cluster]
    #[arg(value_name = "PATH", value_hint = ValueHint::AnyPath)]
    pub(crate) paths: Vec<PathBuf>,
    /// The kubeconfig to use [default: $KUBECONFIG, else ~/.kube/config]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "paths")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig to use [default: its current context]
    #[arg(long, value_name = "NAME", conflicts_with = "paths")]
    pub(crate) context: Option<String>,
    /// Report on the Ingresses of this class, and of IngressClasses of k8s.io/ingress-nginx
    #[arg(long, value_name = "NAME", default_value = "nginx")]
    pub(crate) class: String,
    /// Report for a controller with this --ingress-nginx-compat
    #[arg(long, value_name = "HOW", default_value = "safe")]
    pub(crate) compat: CompatArg,
    /// Print the report in this form
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub(crate) format: ReportFormat,
    /// Print objects of another API instead of the report; what they do not say stands in comments
    #[arg(long, value_name = "API", conflicts_with = "format")]
    pub(crate) to: Option<MigrateTo>,
    /// The Gateway of these objects
    #[arg(long, value_name = "NAMESPACE/NAME", default_value = "default/edge", requires = "to")]
    pub(crate) gateway: controller::ServiceName,
    /// The class of this Gateway
    #[arg(long, value_name = "NAME", default_value = "steelyard", requires = "to")]
    pub(crate) gateway_class: String,
}

/// An API that Ingresses can be rewritten for.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum MigrateTo {
    /// A Gateway, HTTPRoutes and TrafficPolicies
    GatewayApi,
}

/// The form of a report.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum ReportFormat {
    /// Text for a terminal
    Text,
    /// Markdown
    Markdown,
    /// JSON, stable and versioned
    Json,
    /// A page of HTML
    Html,
}

impl From<ReportFormat> for controller::ingress_nginx::Format {
    fn from(format: ReportFormat) -> Self {
        match format {
            ReportFormat::Text => Self::Text,
            ReportFormat::Markdown => Self::Markdown,
            ReportFormat::Json => Self::Json,
            ReportFormat::Html => Self::Html,
        }
    }
}
