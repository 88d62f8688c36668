//! What a person with kubectl does: apply, get, patch, delete, and wait until an object says something.

use std::future::Future;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Client, Config};
use serde_json::{Value, json};
use testkit::netns::Netns;
use testkit::until;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// The longest wait for an object to say something: much more than any takes, and more than an address that is tried again every 15 s.
pub const PATIENCE: Duration = Duration::from_secs(40);

/// One call.
const CALL_TIMEOUT: Duration = Duration::from_secs(20);

/// The kinds that the tests name, where they are, and whether each object is of a namespace.
const KINDS: &[(&str, &str, &str, bool)] = &[
    ("", "v1", "Namespace", false),
    ("", "v1", "Service", true),
    ("", "v1", "Secret", true),
    ("", "v1", "ConfigMap", true),
    ("", "v1", "ServiceAccount", true),
    ("", "v1", "Pod", true),
    ("apps", "v1", "Deployment", true),
    ("apps", "v1", "DaemonSet", true),
    ("autoscaling", "v2", "HorizontalPodAutoscaler", true),
    ("policy", "v1", "PodDisruptionBudget", true),
    ("monitoring.coreos.com", "v1", "ServiceMonitor", true),
    ("rbac.authorization.k8s.io", "v1", "ClusterRole", false),
    ("rbac.authorization.k8s.io", "v1", "ClusterRoleBinding", false),
    ("rbac.authorization.k8s.io", "v1", "Role", true),
    ("rbac.authorization.k8s.io", "v1", "RoleBinding", true),
    ("discovery.k8s.io", "v1", "EndpointSlice", true),
    ("networking.k8s.io", "v1", "Ingress", true),
    ("networking.k8s.io", "v1", "IngressClass", false),
    ("networking.k8s.io", "v1", "NetworkPolicy", true),
    ("coordination.k8s.io", "v1", "Lease", true),
    ("events.k8s.io", "v1", "Event", true),
    ("apiextensions.k8s.io", "v1", "CustomResourceDefinition", false),
    ("admissionregistration.k8s.io", "v1", "MutatingWebhookConfiguration", false),
    ("admissionregistration.k8s.io", "v1", "ValidatingAdmissionPolicy", false),
    ("admissionregistration.k8s.io", "v1", "ValidatingAdmissionPolicyBinding", false),
    ("gateway.networking.k8s.io", "v1", "GatewayClass", false),
    ("gateway.networking.k8s.io", "v1", "Gateway", true),
    ("gateway.networking.k8s.io", "v1", "ListenerSet", true),
    ("gateway.networking.k8s.io", "v1", "HTTPRoute", true),
    ("gateway.networking.k8s.io", "v1", "GRPCRoute", true),
    ("gateway.networking.k8s.io", "v1", "TLSRoute", true),
    ("gateway.networking.k8s.io", "v1", "TCPRoute", true),
    ("gateway.networking.k8s.io", "v1", "UDPRoute", true),
    ("gateway.networking.k8s.io", "v1", "ReferenceGrant", true),
    ("gateway.networking.k8s.io", "v1", "BackendTLSPolicy", true),
    ("steelyard.io", "v1alpha1", "GatewayParameters", true),
    ("steelyard.io", "v1alpha1", "TrafficPolicy", true),
];

/// A connection to the API server, and a namespace of the cluster where objects are that name none.
///
/// It calls from the network namespace that it was made for, whatever thread asks.
pub struct Cluster {
    client: Client,
    pub namespace: String,
    calls: Handle,
    thread: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
}

impl Cluster {
    pub fn connect(netns: &Netns, kubeconfig: &str, namespace: &str) -> Self {
        let config = Kubeconfig::from_yaml(kubeconfig).unwrap();
        let (ready, made) = mpsc::channel();
        let (end, ended) = oneshot::channel::<()>();
        // Sockets belong to the namespace of the thread that opens them.
        let work = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let config = Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await.unwrap();
                ready.send((Client::try_from(config).unwrap(), Handle::current())).unwrap();
                // An error means that the sender was dropped: the end, as well.
                _ = ended.await;
            });
        };
        let thread = netns.inside(|| std::thread::spawn(work));
        let (client, calls) = made.recv().expect("a client");
        Self { client, namespace: namespace.to_owned(), calls, thread: Some((end, thread)) }
    }

    /// Applies every document of a text, as `kubectl apply --server-side` does, and gives back what became of each.
    #[track_caller]
    pub fn apply(&self, text: &str) -> Vec<Value> {
        documents(text).into_iter().map(|object| self.apply_object(object).unwrap()).collect()
    }

    /// The same for one object.
    pub fn apply_object(&self, object: Value) -> Result<Value, String> {
        self.apply_one(object, false)
    }

    /// The same, to see what the API server says of it: nothing changes.
    pub fn dry_run(&self, object: &Value) -> Result<Value, String> {
        self.apply_one(object.clone(), true)
    }

    #[track_caller]
    fn apply_one(&self, object: Value, dry_run: bool) -> Result<Value, String> {
        let (kind, name) = (said(&object["kind"]), said(&object["metadata"]["name"]));
        let api = self.api_in(&kind, object["metadata"]["namespace"].as_str());
        let mut params = PatchParams::apply("tests").force().validation_strict();
        params.dry_run = dry_run;
        let called = self.call(async move { api.patch(&name, &params, &Patch::Apply(&object)).await });
        called.map(value)
    }

    #[track_caller]
    pub fn get(&self, kind: &str, name: &str) -> Option<Value> {
        self.get_in(kind, &self.namespace, name)
    }

    #[track_caller]
    pub fn get_in(&self, kind: &str, namespace: &str, name: &str) -> Option<Value> {
        let (api, name) = (self.api_in(kind, Some(namespace)), name.to_owned());
        self.call(async move { api.get_opt(&name).await }).unwrap().map(value)
    }

    #[track_caller]
    pub fn list(&self, kind: &str) -> Vec<Value> {
        let api = self.api_in(kind, None);
        let list = self.call(async move { api.list(&ListParams::default()).await }).unwrap();
        list.items.into_iter().map(value).collect()
    }

    /// A merge patch.
    #[track_caller]
    pub fn patch(&self, kind: &str, name: &str, patch: Value) -> Value {
        let (api, name) = (self.api_in(kind, None), name.to_owned());
        let patched = self.call(async move { api.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await });
        value(patched.unwrap())
    }

    /// A merge patch of a status, as by whatever else writes it.
    #[track_caller]
    pub fn patch_status_in(&self, kind: &str, namespace: &str, name: &str, patch: Value) {
        self.try_patch_status_in(kind, namespace, name, patch).unwrap();
    }

    /// The same, if the API server accepts it.
    pub fn try_patch_status_in(&self, kind: &str, namespace: &str, name: &str, patch: Value) -> Result<(), String> {
        let (api, name) = (self.api_in(kind, Some(namespace)), name.to_owned());
        let patched =
            self.call(async move { api.patch_status(&name, &PatchParams::default(), &Patch::Merge(patch)).await });
        patched.map(drop)
    }

    #[track_caller]
    pub fn delete(&self, kind: &str, name: &str) {
        let (api, name) = (self.api_in(kind, None), name.to_owned());
        self.call(async move { api.delete(&name, &DeleteParams::default()).await.map(drop) }).unwrap();
    }

    /// Removes a definition, as in a cluster whose chart was installed before there was such a kind, and waits until it is gone.
    #[track_caller]
    pub fn undefine(&self, definition: &str) {
        self.delete("CustomResourceDefinition", definition);
        let is_gone = || self.get("CustomResourceDefinition", definition).is_none().then_some(());
        assert!(until(PATIENCE, is_gone).is_some(), "the definition is still there");
    }

    /// Waits until the kind of a definition can be used. If its group is new, that is some time after the definition is established.
    #[track_caller]
    pub fn until_defined(&self, definition: &str) {
        let found = self.until("established", "CustomResourceDefinition", definition, |definition| {
            condition(&definition["status"], "Established").is_some_and(|found| found["status"] == "True")
        });
        let versions = found["spec"]["versions"].as_array().into_iter().flatten();
        for version in versions.filter(|version| version["served"] == true) {
            let path = format!("/apis/{}/{}", said(&found["spec"]["group"]), said(&version["name"]));
            assert!(until(PATIENCE, || self.raw(&path).ok()).is_some(), "{path} is not served");
        }
    }

    /// Waits until an object is as `is_so` wants it.
    #[track_caller]
    pub fn until(&self, what: &str, kind: &str, name: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let found = until(PATIENCE, || self.get(kind, name).filter(&is_so));
        found.unwrap_or_else(|| panic!("{kind} {name} is not {what} after {PATIENCE:?}: {}", self.shown(kind, name)))
    }

    /// Waits for an Event about an object, with this reason, and gives what it says.
    #[track_caller]
    pub fn until_event(&self, kind: &str, name: &str, reason: &str) -> String {
        self.until_event_with(kind, name, reason, "")
    }

    /// The same of one that says this besides.
    #[track_caller]
    pub fn until_event_with(&self, kind: &str, name: &str, reason: &str, text: &str) -> String {
        let find = || {
            let is_it = |event: &Value| {
                let (about, note) = (&event["regarding"], event["note"].as_str().unwrap_or_default());
                about["kind"] == kind && about["name"] == name && event["reason"] == reason && note.contains(text)
            };
            self.list("Event").into_iter().find(is_it).map(|event| said(&event["note"]))
        };
        until(PATIENCE, find).unwrap_or_else(|| panic!("no Event {reason} about {kind} {name}, but {}", self.events()))
    }

    /// What Events of the namespace say, for failures.
    pub fn events(&self) -> String {
        let say = |event: &Value| {
            let (about, reason, note) = (&event["regarding"], &event["reason"], &event["note"]);
            format!("\n{} {}: {reason} {note} {}", about["kind"], about["name"], event["series"])
        };
        self.list("Event").iter().map(say).collect()
    }

    /// An object without what nobody wants to read, for failures.
    fn shown(&self, kind: &str, name: &str) -> String {
        let Some(object) = self.get(kind, name) else { return "it is not there".to_owned() };
        format!(
            "generation {}\nspec {:#}\nstatus {:#}",
            object["metadata"]["generation"], object["spec"], object["status"]
        )
    }

    /// A token of a ServiceAccount, valid for an hour.
    #[track_caller]
    pub fn token_in(&self, namespace: &str, account: &str) -> String {
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token");
        let kind = ("authentication.k8s.io/v1", "TokenRequest");
        let body = json!({"apiVersion": kind.0, "kind": kind.1, "spec": {"expirationSeconds": 3600}});
        let request = http::Request::post(path).header("content-type", "application/json");
        let request = request.body(body.to_string().into_bytes()).unwrap();
        let client = self.client.clone();
        let answer: Value = self.call(async move { client.request(request).await }).unwrap();
        said(&answer["status"]["token"])
    }

    /// GET of a path: what was answered, or why nothing was.
    pub fn raw(&self, path: &str) -> Result<String, String> {
        let (client, request) = (self.client.clone(), http::Request::get(path).body(Vec::new()).unwrap());
        self.call(async move { client.request_text(request).await })
    }

    #[track_caller]
    fn api_in(&self, kind: &str, namespace: Option<&str>) -> Api<DynamicObject> {
        let found = KINDS.iter().find(|(.., known, _)| *known == kind);
        let (group, version, kind, namespaced) = found.unwrap_or_else(|| panic!("add {kind} to KINDS"));
        let mut resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        if *kind == "GatewayParameters" {
            // The plural that the client guesses is another.
            resource.plural = kind.to_lowercase();
        }
        match namespaced {
            true => Api::namespaced_with(self.client.clone(), namespace.unwrap_or(&self.namespace), &resource),
            false => Api::all_with(self.client.clone(), &resource),
        }
    }

    /// Calls from the thread that is in the right network.
    fn call<T: Send + 'static>(
        &self,
        call: impl Future<Output = kube::Result<T>> + Send + 'static,
    ) -> Result<T, String> {
        let (sender, answer) = mpsc::channel();
        self.calls.spawn(async move {
            let answered = tokio::time::timeout(CALL_TIMEOUT, call).await;
            let outcome = match answered {
                Ok(outcome) => outcome.map_err(|error| error.to_string()),
                Err(_) => Err(format!("no answer within {CALL_TIMEOUT:?}")),
            };
            // Whoever asked waits.
            _ = sender.send(outcome);
        });
        answer.recv().expect("the thread that calls")
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if let Some((end, thread)) = self.thread.take() {
            drop(end);
            // It has told why if it panicked.
            _ = thread.join();
        }
    }
}

/// The documents of a text of YAML that are not empty.
pub fn documents(text: &str) -> Vec<Value> {
    serde_saphyr::from_multiple(text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// A condition of a status, or of one of its listeners or parents.
pub fn condition<'s>(status: &'s Value, kind: &str) -> Option<&'s Value> {
    status["conditions"].as_array()?.iter().find(|condition| condition["type"] == kind)
}

fn value(object: DynamicObject) -> Value {
    serde_json::to_value(object).unwrap()
}

fn said(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
