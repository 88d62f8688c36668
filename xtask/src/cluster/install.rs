//! Installs the kinds of the Gateway API and two releases of the chart on a cluster, as a user would.

use std::path::Path;
use std::time::Instant;

use super::{Cluster, control, images, network, node};
use crate::command::{root, run as run_command};
use crate::dist;

/// The first address of the pool. The gateway's Service gets it.
pub const ADDRESS: &str = "192.0.2.1";

/// The namespaces, and the pod security standard that each enforces.
const NAMESPACES: [(&str, &str); 2] = [("steelyard", "restricted"), ("steelyard-kernel-plane", "privileged")];

/// Installs everything, and waits until all pods are ready and the Service has its address.
pub fn everything(cluster: &Cluster<'_>) -> Result<(), String> {
    let start = Instant::now();
    if cluster.parts.previous.is_none() {
        cluster.nodes.iter().try_for_each(|node| node.images(&["tag", images::STEELYARD, images::PREVIOUS]))?;
    }
    kinds(cluster, &cluster.parts.programs.join("gateway-api"))?;
    namespaces(cluster)?;
    release(
        cluster,
        "steelyard-kernel-plane",
        &["component=kernel-plane", &format!("addressPools={{{}}}", network::POOL)],
    )?;
    let values = [
        "service.loadBalancerClass=steelyard.io/kernel-plane",
        // If a test loses requests, it shows this log.
        "accessLog=json",
        // All packets arrive at node 0, but the pods are on both nodes.
        "service.externalTrafficPolicy=Cluster",
    ];
    release(cluster, "steelyard", &values)?;
    println!("cluster: the gateway and the kernel plane are ready after {:.1} s more", start.elapsed().as_secs_f32());
    Ok(())
}

/// Installs the kinds of the Gateway API.
pub fn kinds(cluster: &Cluster<'_>, folder: &Path) -> Result<(), String> {
    run_command(&mut cluster.kubectl(&["apply", "--server-side", "--filename", &folder.display().to_string()]))
}

/// Creates the namespaces of the releases.
pub fn namespaces(cluster: &Cluster<'_>) -> Result<(), String> {
    for (namespace, standard) in NAMESPACES {
        run_command(&mut cluster.kubectl(&["create", "namespace", namespace]))?;
        let label = format!("pod-security.kubernetes.io/enforce={standard}");
        run_command(&mut cluster.kubectl(&["label", "namespace", namespace, &label]))?;
    }
    Ok(())
}

/// Installs the chart into a namespace, and waits until it is ready.
pub fn release(cluster: &Cluster<'_>, namespace: &str, values: &[&str]) -> Result<(), String> {
    let chart = root().join(dist::CHART).display().to_string();
    let words = ["install", "steelyard", &chart, "--namespace", namespace, "--wait", "--timeout", "3m"];
    let mut helm = node::in_network(cluster.router, &cluster.parts.helm, &words);
    helm.args(["--set", "image.repository=localhost/steelyard"]);
    for value in values {
        helm.args(["--set", value]);
    }
    helm.env("KUBECONFIG", control::kubeconfig(&cluster.run, "admin"));
    for (name, folder) in [("HELM_CACHE_HOME", "cache"), ("HELM_CONFIG_HOME", "config"), ("HELM_DATA_HOME", "data")] {
        helm.env(name, cluster.run.join("helm").join(folder));
    }
    run_command(&mut helm)
}
