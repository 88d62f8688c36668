//! `steelyard sidecar webhook`, with the webhook configuration and the rights of the chart.

use serde_json::{Value, json};
use testkit::{Exit, PATIENCE, Program, Signal, until};

use crate::deploy::chart;
use crate::edge::{Edge, api_server, within};
use crate::harness::{ADDRESS, PORT, documents};
use crate::support::{Scratch, steelyard};

const WEBHOOK: &str = "trial-everything-edge-sidecar-webhook";
const NAMESPACE: &str = "trial-everything";
const ACCOUNT: &str = "edge-sidecar-webhook";

/// The address of this node at which the API server reaches it.
fn own_address() -> String {
    let shown = Program::run("ip", std::process::Command::new("ip").args(["-j", "-4", "addr", "show", "dev", "api0"]));
    let shown: Value = serde_json::from_str(&shown.unwrap().stdout).unwrap();
    shown[0]["addr_info"][0]["local"].as_str().unwrap().to_owned()
}

/// What the chart says, except that the webhook is on this node and for the namespace of this test.
fn install(edge: &Edge, address: &str) {
    for mut object in documents(&chart("everything")) {
        let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        if object["kind"] == "MutatingWebhookConfiguration" {
            for webhook in object["webhooks"].as_array_mut().unwrap() {
                let path = webhook["clientConfig"]["service"]["path"].as_str().unwrap().to_owned();
                webhook["clientConfig"] = json!({ "url": format!("https://{address}:9443{path}") });
                let selected = json!({"key": "kubernetes.io/metadata.name", "operator": "In", "values": [edge.name]});
                webhook["namespaceSelector"]["matchExpressions"].as_array_mut().unwrap().push(selected);
            }
        } else if object["kind"] != "Namespace"
            && (name != ACCOUNT && name != WEBHOOK
                || ["Service", "Deployment"].iter().any(|kind| object["kind"] == *kind))
        {
            continue;
        }
        edge.cluster.apply_object(object).unwrap_or_else(|why| panic!("{name}: {why}"));
    }
}

fn pod(edge: &Edge, metadata: &str) -> Result<Value, String> {
    let pod = format!(
        "
apiVersion: v1
kind: Pod
metadata: {{name: web, {metadata}}}
spec: {{serviceAccountName: steelyard, containers: [{{name: web, image: web}}]}}
"
    );
    edge.cluster.dry_run(&documents(&pod)[0])
}

fn init_containers(pod: &Value) -> Vec<&str> {
    let containers = pod["spec"]["initContainers"].as_array().into_iter().flatten();
    containers.filter_map(|container| container["name"].as_str()).collect()
}

#[test]
fn pods_get_the_sidecar_when_they_are_made() {
    within("pods_get_the_sidecar_when_they_are_made", |edge| {
        let address = own_address();
        install(edge, &address);
        let scratch = Scratch::new();
        let token = edge.cluster.token_in(NAMESPACE, ACCOUNT);
        let kubeconfig = api_server().kubeconfig(&token, (ADDRESS, PORT).into(), NAMESPACE);
        let kubeconfig = scratch.write("kubeconfig", &kubeconfig);
        let replica = |listen: &str| {
            let mut command = steelyard();
            command.args(["sidecar", "webhook", "--kubeconfig", &kubeconfig, "--listen", listen]);
            command.args(["--configuration", WEBHOOK, "--name", &address, "--image", "localhost/steelyard:1"]);
            let mut webhook = Program::spawn("webhook", &mut command).unwrap();
            webhook.says("the API server trusts the certificate").unwrap();
            webhook
        };
        let mut webhook = replica(":9443");

        let marked = "labels: {steelyard.io/sidecar: enabled}";
        // The API server learns of the certificate a moment later; until then it ignores the webhook, as the values ask for.
        let injected = until(PATIENCE, || {
            pod(edge, marked).ok().filter(|pod| init_containers(pod) == ["steelyard-sidecar", "steelyard-sidecar-init"])
        });
        let injected = injected.unwrap_or_else(|| panic!("{:?}\n{}", pod(edge, marked), webhook.log()));
        assert_eq!(injected["spec"]["initContainers"][0]["restartPolicy"], "Always");
        let volumes = injected["spec"]["volumes"].to_string();
        assert!(volumes.contains(r#""name":"steelyard-sidecar""#), "{volumes}");
        let by_annotation = pod(edge, "annotations: {steelyard.io/sidecar: enabled}").unwrap();
        assert_eq!(init_containers(&by_annotation).len(), 2);
        assert_eq!(init_containers(&pod(edge, "labels: {app: web}").unwrap()).len(), 0);
        let wrong = pod(edge, "labels: {steelyard.io/sidecar: 'yes'}").unwrap_err();
        assert!(wrong.contains("neither `enabled` nor `disabled`"), "{wrong}");

        // A namespace that asks for it.
        edge.cluster.patch(
            "Namespace",
            &edge.name,
            json!({"metadata": {"labels": {"steelyard.io/sidecar": "enabled"}}}),
        );
        let everywhere = until(PATIENCE, || pod(edge, "").ok().filter(|pod| init_containers(pod).len() == 2));
        assert!(everywhere.is_some(), "{:?}\n{}", pod(edge, ""), webhook.log());
        assert_eq!(init_containers(&pod(edge, "annotations: {steelyard.io/sidecar: disabled}").unwrap()).len(), 0);

        certificates_come_and_go(edge, webhook, &replica);
        edge.cluster.delete("MutatingWebhookConfiguration", WEBHOOK);
        let refused: Vec<Value> = api_server().audit(&format!("{NAMESPACE}:{ACCOUNT}"));
        let refused = refused.iter().find(|event| event["responseStatus"]["code"] == 403);
        assert!(refused.is_none(), "{refused:?}");
    });
}

/// Another replica begins and ends, and only its own certificate comes and goes with it.
fn certificates_come_and_go(edge: &Edge, mut webhook: Program, replica: &dyn Fn(&str) -> Program) {
    let bundle = || {
        let found = edge.cluster.get("MutatingWebhookConfiguration", WEBHOOK).unwrap();
        found["webhooks"][0]["clientConfig"]["caBundle"].as_str().unwrap_or_default().to_owned()
    };
    let end = |webhook: &mut Program| {
        webhook.signal(Signal::TERM).unwrap();
        assert_eq!(webhook.exit_within(PATIENCE).unwrap(), Exit::Code(0));
    };
    let alone = bundle();
    let mut other = replica(":9444");
    assert!(bundle().len() > alone.len(), "{}", bundle());
    assert_eq!(init_containers(&pod(edge, "").unwrap()).len(), 2);
    end(&mut other);
    assert_eq!(bundle(), alone);
    end(&mut webhook);
    assert_eq!(bundle(), "");
}
