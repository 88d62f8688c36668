//! etcd and kube-apiserver as child processes, ready for requests, with the kinds of the Gateway API.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use serde_json::{Value, json};
use testkit::netns::{Netns, join};
use testkit::strict::ResponseTo;
use testkit::{Program, Signal, client, until};

use super::Cluster;

/// Where it answers, to all nodes.
pub const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 255, 0, 1);
pub const PORT: u16 = 6443;
const ETCD_PORT: u16 = 2379;

/// Of the user who may do everything.
const ADMIN_TOKEN: &str = "admin-of-the-tests";

/// From its start to `/readyz`: 2 s on a quiet host.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// Whatever the accounts of controllers ask for is written down, watches when they begin and again when they end: see [`ApiServer::audit`].
const AUDIT_POLICY: &str = r#"{"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"],
"rules": [{"level": "Metadata", "userGroups": ["system:serviceaccounts"]}, {"level": "None"}]}"#;

/// A running API server. There is one for all tests of a process.
pub struct ApiServer {
    pub netns: Netns,
    directory: PathBuf,
    programs: PathBuf,
    etcd: Mutex<Option<Tethered>>,
    server: Mutex<Option<Tethered>>,
    nodes: AtomicU8,
}

impl ApiServer {
    /// Starts it. The folder that `STEELYARD_KUBE` names holds its programs, as `cargo xtask test kube` builds them.
    pub fn start() -> Self {
        let programs = std::env::var_os("STEELYARD_KUBE").map(PathBuf::from);
        let programs = programs.expect("STEELYARD_KUBE is not set: run `cargo xtask test kube`");
        let directory = programs.join(format!("run/{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        make_keys(&directory);
        let netns = Netns::new("API server").unwrap();
        netns.ip(&format!("addr add {ADDRESS}/32 dev lo")).unwrap();
        let server =
            Self { netns, directory, programs, etcd: Mutex::default(), server: Mutex::default(), nodes: 0.into() };
        server.start_etcd();
        server.start_server();
        server.teach();
        server
    }

    fn start_etcd(&self) {
        let data = self.path("etcd");
        let address = format!("http://127.0.0.1:{ETCD_PORT}");
        let mut command = Command::new(self.programs.join("server"));
        command.args(["--data-dir", &data, "--log-level", "error", "--unsafe-no-fsync"]);
        command.args(["--listen-client-urls", &address, "--advertise-client-urls", &address]);
        command.args(["--listen-peer-urls", "http://127.0.0.1:2380"]);
        let etcd = self.netns.inside(|| Tethered::spawn("etcd", &command));
        *self.etcd.lock().unwrap() = Some(etcd);
    }

    fn start_server(&self) {
        let mut command = Command::new(self.programs.join("kube-apiserver"));
        for (name, value) in self.flags() {
            command.arg(format!("--{name}={value}"));
        }
        let server = self.netns.inside(|| Tethered::spawn("kube-apiserver", &command));
        *self.server.lock().unwrap() = Some(server);
        self.until_ready();
    }

    fn flags(&self) -> Vec<(&'static str, String)> {
        let path = |name: &str| self.path(name);
        vec![
            ("etcd-servers", format!("http://127.0.0.1:{ETCD_PORT}")),
            ("bind-address", "0.0.0.0".to_owned()),
            ("secure-port", PORT.to_string()),
            ("advertise-address", ADDRESS.to_string()),
            ("cert-dir", path("certs")),
            ("tls-cert-file", path("tls.pem")),
            ("tls-private-key-file", path("tls.key")),
            ("token-auth-file", path("tokens.csv")),
            ("authorization-mode", "RBAC".to_owned()),
            ("service-account-issuer", "https://kubernetes.default.svc".to_owned()),
            ("service-account-key-file", path("sa.pub")),
            ("service-account-signing-key-file", path("sa.key")),
            ("service-cluster-ip-range", "10.96.0.0/16".to_owned()),
            // There is one, and nobody looks for it by the Service `kubernetes`.
            ("endpoint-reconciler-type", "none".to_owned()),
            ("audit-policy-file", path("audit-policy.json")),
            ("audit-log-path", path("audit.log")),
            // Each test asks as fast as it can; fairness between them is not what is tested.
            ("enable-priority-and-fairness", "false".to_owned()),
            ("profiling", "false".to_owned()),
        ]
    }

    fn until_ready(&self) {
        let admin = self.admin("default");
        let is_ready = || admin.raw("/readyz").ok().filter(|said| said == "ok");
        if until(START_TIMEOUT, is_ready).is_none() {
            let log = self.server.lock().unwrap().as_mut().map(|server| server.0.log()).unwrap_or_default();
            panic!("the API server is not ready after {START_TIMEOUT:?}:\n{log}");
        }
    }

    /// The kinds of the Gateway API, and our own.
    fn teach(&self) {
        let admin = self.admin("default");
        let mut names = Vec::new();
        let folders = [self.programs.join("gateway-api"), own_kinds()];
        for entry in folders.iter().flat_map(|folder| fs::read_dir(folder).unwrap()) {
            let text = fs::read_to_string(entry.unwrap().path()).unwrap();
            for object in admin.apply(&text) {
                if object["kind"] == "CustomResourceDefinition" {
                    names.push(object["metadata"]["name"].as_str().unwrap().to_owned());
                }
            }
        }
        assert!(names.len() >= 11, "the Gateway API has more kinds than {names:?}");
        for name in names {
            admin.until_defined(&name);
        }
    }

    /// Kills it as a crash would; nothing that it knew is lost but what it kept in memory.
    pub fn kill(&self) {
        *self.server.lock().unwrap() = None;
    }

    /// Starts it again, and waits until it is ready.
    pub fn start_again(&self) {
        self.start_server();
    }

    /// Stops it in the middle of whatever it does: it takes connections and answers none.
    pub fn stop(&self) {
        self.signal(Signal::STOP);
    }

    /// Lets it go on.
    pub fn go_on(&self) {
        self.signal(Signal::CONT);
        self.until_ready();
    }

    fn signal(&self, signal: Signal) {
        self.server.lock().unwrap().as_ref().expect("a running API server").0.signal(signal).unwrap();
    }

    /// Lets etcd forget all but the newest state: whoever wants to go on from an older one is told 410.
    pub fn compact(&self) {
        let newest = self.ask_etcd("/v3/maintenance/status", json!({}))["header"]["revision"].clone();
        let said = self.ask_etcd("/v3/kv/compaction", json!({"revision": newest, "physical": true}));
        assert!(said["header"]["revision"].is_string(), "{said}");
    }

    /// Makes etcd behave as when its disk quota is used up, or as before: it answers reads and refuses writes.
    pub fn fill(&self, is_full: bool) {
        let member = self.ask_etcd("/v3/maintenance/status", json!({}))["header"]["member_id"].clone();
        let action = if is_full { "ACTIVATE" } else { "DEACTIVATE" };
        let alarm = json!({"action": action, "memberID": member, "alarm": "NOSPACE"});
        let answer = self.ask_etcd("/v3/maintenance/alarm", alarm);
        assert!(answer["header"]["revision"].is_string(), "{answer}");
    }

    fn ask_etcd(&self, path: &str, body: Value) -> Value {
        let answer = self.netns.inside(|| {
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, ETCD_PORT));
            let mut conn = client::connect("etcd", address, None).unwrap();
            let body = body.to_string();
            let head = format!("POST {path} HTTP/1.1\r\nHost: etcd\r\nContent-Length: {}\r\n\r\n", body.len());
            conn.send(format!("{head}{body}").as_bytes()).unwrap();
            conn.response(ResponseTo::Other).unwrap().body
        });
        serde_json::from_slice(&answer).unwrap()
    }

    /// Joins a namespace to it, which then reaches it at [`ADDRESS`]. The end of the link in that namespace is called `api0`; its name at this
    /// end is given back.
    pub fn join(&self, netns: &Netns) -> String {
        let number = self.nodes.fetch_add(1, Ordering::Relaxed);
        let here = format!("node{number}");
        join((&self.netns, &here), (netns, "api0"), 1500).unwrap();
        self.netns.ip(&format!("addr add 10.254.{number}.1/24 dev {here}")).unwrap();
        netns
            .ip(&format!("addr add 10.254.{number}.2/24 dev api0\nroute add {ADDRESS}/32 via 10.254.{number}.1"))
            .unwrap();
        here
    }

    /// A client that may do everything, at home in this namespace of the cluster.
    pub fn admin(&self, namespace: &str) -> Cluster {
        Cluster::connect(&self.netns, &self.kubeconfig(ADMIN_TOKEN, (ADDRESS, PORT).into(), namespace), namespace)
    }

    /// A kubeconfig for whoever shows this token, at this address of the API server or of what leads there.
    pub fn kubeconfig(&self, token: &str, address: SocketAddr, namespace: &str) -> String {
        json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "it", "cluster": {"server": format!("https://{address}"), "certificate-authority": self.path("ca.pem")}}],
            "users": [{"name": "me", "user": {"token": token}}],
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "me", "namespace": namespace}}],
            "current-context": "it",
        })
        .to_string()
    }

    /// What whoever calls it is to believe.
    pub fn ca(&self) -> PathBuf {
        self.path("ca.pem").into()
    }

    /// What the ServiceAccount of this name (`namespace:name`) has asked for so far, and whether it was allowed to.
    pub fn audit(&self, account: &str) -> Vec<Value> {
        let user = format!("system:serviceaccount:{account}");
        let log = fs::read_to_string(self.path("audit.log")).unwrap_or_default();
        // The last line may not be whole yet.
        let events = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        events.filter(|event| event["user"]["username"] == user).collect()
    }

    fn path(&self, name: &str) -> String {
        self.directory.join(name).display().to_string()
    }
}

/// The folder with the definitions of our own kinds.
fn own_kinds() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../deploy/steelyard/crds")
}

/// An authority and a certificate for the server, a pair of keys for the tokens of ServiceAccounts, and a token for us.
fn make_keys(directory: &Path) {
    let put = |name: &str, text: &str| fs::write(directory.join(name), text).unwrap();
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, "authority of the tests");
    let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    put("ca.pem", &issuer.pem());
    let hosts = [ADDRESS.to_string(), "127.0.0.1".to_owned(), "kubernetes.default.svc".to_owned()];
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(hosts).unwrap().signed_by(&key, &issuer).unwrap();
    put("tls.pem", &certificate.pem());
    put("tls.key", &key.serialize_pem());
    let accounts = KeyPair::generate().unwrap();
    put("sa.key", &accounts.serialize_pem());
    put("sa.pub", &accounts.public_key_pem());
    put("tokens.csv", &format!("{ADMIN_TOKEN},admin,admin,system:masters\n"));
    put("audit-policy.json", AUDIT_POLICY);
}

/// A program that ends when we do, however we end: nothing is dropped that a `static` holds.
struct Tethered(Program, #[expect(dead_code, reason = "closing it is the signal")] std::io::PipeWriter);

impl Tethered {
    fn spawn(name: &str, command: &Command) -> Self {
        let (reader, writer) = std::io::pipe().unwrap();
        let mut shell = Command::new("sh");
        // A watchman waits for the end of our pipe; the program takes the place of the shell.
        shell.args(["-c", "exec 3<&0; { cat <&3 >/dev/null; kill -KILL $$; } & exec 3<&- \"$@\" </dev/null", name]);
        shell.arg(command.get_program()).args(command.get_args()).stdin(reader);
        Self(Program::spawn_on_own_stdio(name, shell.stdout(std::process::Stdio::null())).unwrap(), writer)
    }
}
