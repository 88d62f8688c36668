//! The control plane of a cluster, which runs on node 0: etcd, the API server, the controller manager and the scheduler.

use std::path::Path;
use std::time::Duration;

use serde_json::json;

use super::network;
use super::node::{Node, wait};
use crate::command::{command, run as run_command, succeeds};
use crate::dist::pack;

/// How long the API server may take to become ready. It takes 4 s on an idle host.
const START: Duration = Duration::from_secs(90);

/// The users that have a kubeconfig: the name of its file, the user and the group.
const USERS: [(&str, &str, &str); 5] = [
    ("admin", "admin", "system:masters"),
    ("n0", "system:node:n0", "system:nodes"),
    ("n1", "system:node:n1", "system:nodes"),
    ("controller-manager", "system:kube-controller-manager", ""),
    ("scheduler", "system:kube-scheduler", ""),
];

const ETCD: &str = "http://127.0.0.1:2379";

/// The path of a kubeconfig.
pub fn kubeconfig(run: &Path, user: &str) -> String {
    run.join(format!("pki/{user}.conf")).display().to_string()
}

/// Starts etcd and the API server, and waits until it is ready. It listens at `address`, which may be any one of the node.
pub fn start_api_server(run: &Path, programs: &Path, node: &Node, address: &str) -> Result<(), String> {
    let pki = run.join("pki");
    let at = |name: &str| pki.join(name).display().to_string();
    let tokens: String =
        USERS.iter().map(|(file, user, group)| format!("{file}-token,{user},{file},{group}\n")).collect();
    pack::write(&pki.join("tokens.csv"), tokens)?;
    run_command(&mut command("openssl", &["genrsa", "-out", &at("sa.key"), "2048"]))?;
    for (user, ..) in USERS {
        write_kubeconfig(run, user, &format!("{user}-token"), "default")?;
    }
    let start = |name: &str, program: &str, flags: &[(&str, &str)]| {
        let flags: Vec<String> = flags.iter().map(|(flag, value)| format!("--{flag}={value}")).collect();
        node.spawn(name, &programs.join(program).display().to_string(), &flags)
    };
    let data = run.join("etcd").display().to_string();
    start(
        "etcd",
        "server",
        &[
            ("data-dir", &data),
            ("unsafe-no-fsync", "true"),
            ("log-level", "warn"),
            ("listen-client-urls", ETCD),
            ("advertise-client-urls", ETCD),
            ("listen-peer-urls", "http://127.0.0.1:2380"),
        ],
    )?;
    start(
        "kube-apiserver",
        "kube-apiserver",
        &[
            ("etcd-servers", ETCD),
            ("secure-port", "443"),
            ("bind-address", address),
            ("advertise-address", &network::address(0)),
            ("cert-dir", &pki.display().to_string()),
            ("service-cluster-ip-range", network::SERVICES),
            ("authorization-mode", "Node,RBAC"),
            ("enable-admission-plugins", "NodeRestriction"),
            ("token-auth-file", &at("tokens.csv")),
            ("allow-privileged", "true"),
            ("service-account-issuer", "https://kubernetes.default.svc"),
            ("service-account-key-file", &at("sa.key")),
            ("service-account-signing-key-file", &at("sa.key")),
            ("kubelet-preferred-address-types", "InternalIP"),
            ("profiling", "false"),
            ("default-not-ready-toleration-seconds", "5"),
            ("default-unreachable-toleration-seconds", "5"),
        ],
    )?;
    let kubectl = programs.join("kubectl").display().to_string();
    let admin = format!("--kubeconfig={}", kubeconfig(run, "admin"));
    let is_ready = || succeeds(&mut node.command(&kubectl, &[&admin, "get", "--raw", "/readyz"]));
    wait("the API server is ready", START, is_ready)
}

/// Starts the controller manager and the scheduler.
pub fn start_rest(run: &Path, programs: &Path, node: &Node) -> Result<(), String> {
    let flag = |name: &str, value: &str| format!("--{name}={value}");
    let common = |user: &str| {
        [flag("kubeconfig", &kubeconfig(run, user)), flag("leader-elect", "false"), flag("bind-address", "127.0.0.1")]
    };
    let at = |name: &str| run.join("pki").join(name).display().to_string();
    let own = [
        flag("service-account-private-key-file", &at("sa.key")),
        flag("root-ca-file", &at("apiserver.crt")),
        flag("use-service-account-credentials", "true"),
        flag("allocate-node-cidrs", "false"),
        // The cluster notices a dead node after 10 s; the default is 50 s.
        flag("node-monitor-period", "1s"),
        flag("node-monitor-grace-period", "10s"),
    ];
    let program = |name: &str| programs.join(name).display().to_string();
    let flags = [&common("controller-manager")[..], &own].concat();
    node.spawn("kube-controller-manager", &program("kube-controller-manager"), &flags)?;
    node.spawn("kube-scheduler", &program("kube-scheduler"), &common("scheduler"))
}

/// Writes a kubeconfig with this token, whose default namespace is `namespace`.
pub fn write_kubeconfig(run: &Path, user: &str, token: &str, namespace: &str) -> Result<String, String> {
    let server = format!("https://{}", network::API_SERVICE);
    let authority = run.join("pki/apiserver.crt");
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "it", "cluster": {"server": server, "certificate-authority": authority}}],
        "users": [{"name": "me", "user": {"token": token}}],
        "contexts": [{"name": "it", "context": {"cluster": "it", "user": "me", "namespace": namespace}}],
        "current-context": "it",
    });
    let file = kubeconfig(run, user);
    pack::write(Path::new(&file), config.to_string())?;
    Ok(file)
}
