//! The network of a cluster: a router in a namespace of its own, and a link from it to each node.
//!
//! ```text
//! router 10.90.0.254 --- n0 10.90.0.1 --- pods 10.244.0.0/24, on the bridge cni0
//!        clients     \-- n1 10.90.0.2 --- pods 10.244.1.0/24, a veth pair each, without a bridge (as with Calico)
//! ```
//!
//! The router answers ARP for the nodes, so they reach each other through it. It sends packets for addresses of Services to node 0.

use std::io::Write;
use std::process::Stdio;

/// The address of the router.
const ROUTER: &str = "10.90.0.254";
/// The address of the Service `kubernetes`. It is a local address of node 0, so that it works without kube-proxy.
pub const API_SERVICE: &str = "10.96.0.1";
/// Every address of a host.
pub const EVERY: &str = "0.0.0.0";
pub const SERVICES: &str = "10.96.0.0/16";
/// The addresses for Services of the type LoadBalancer.
pub const POOL: &str = "192.0.2.0/28";

/// The address of a node.
pub fn address(number: usize) -> String {
    format!("10.90.0.{}", number + 1)
}

/// The network of a node's pods.
pub fn pods(number: usize) -> String {
    format!("10.244.{number}.0/24")
}

/// The CNI configuration of a node. Nodes with an even number connect their pods by a bridge, and the others by a veth pair for each pod.
pub fn cni(number: usize) -> String {
    let plugin = match number % 2 {
        0 => r#""type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true"#,
        _ => r#""type": "ptp""#,
    };
    format!(
        r#"{{"cniVersion": "1.0.0", "name": "pods", "plugins": [{{{plugin}, "ipMasq": false,
"ipam": {{"type": "host-local", "ranges": [[{{"subnet": "{}"}}]], "routes": [{{"dst": "0.0.0.0/0"}}]}}}}]}}
"#,
        pods(number)
    )
}

/// Sets up the router. `pid` is a process in its namespace.
pub fn router(pid: u32) -> Result<(), String> {
    sysctls(pid, &["net/ipv4/ip_forward"])?;
    ip(pid, &format!("link set lo up\naddr add {ROUTER}/32 dev lo\n"))
}

/// Connects a node with the router. `router` and `node` are processes in their namespaces.
pub fn connect(router: u32, node: u32, number: usize) -> Result<(), String> {
    let (address, pods) = (address(number), pods(number));
    ip(router, &format!("link add n{number} type veth peer name eth0 netns {node}\nlink set n{number} up\n"))?;
    sysctls(router, &[&format!("net/ipv4/conf/n{number}/proxy_arp")])?;
    ip(node, &format!("addr add {address}/24 dev eth0\nlink set eth0 up\nroute add default via {ROUTER}\n"))?;
    let mut routes = format!("route add {address} dev n{number} src {ROUTER}\n");
    routes += &format!("route add {pods} via {address} dev n{number} onlink\n");
    if number == 0 {
        ip(node, &format!("addr add {API_SERVICE}/32 dev lo\n"))?;
        for to in [API_SERVICE, POOL] {
            routes += &format!("route add {to} via {address} dev n0 onlink\n");
        }
    }
    ip(router, &routes)
}

/// Makes all addresses of a network local addresses of a node, and routes them to it.
pub fn make_local(node: u32, router: u32, network: &str) -> Result<(), String> {
    ip(node, &format!("route add local {network} dev lo\n"))?;
    ip(router, &format!("route add {network} via {} dev n0 onlink\n", address(0)))
}

/// Runs lines of arguments of ip(8) in the namespace of a process.
fn ip(pid: u32, lines: &str) -> Result<(), String> {
    let failed = |why: &dyn std::fmt::Display| format!("ip: {why} in:\n{lines}");
    let mut ip = super::node::in_network(pid, "ip", &["-batch", "-"]);
    let child = ip.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = child.map_err(|error| failed(&error))?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(lines.as_bytes()).map_err(|error| failed(&error))?;
    }
    let output = child.wait_with_output().map_err(|error| failed(&error))?;
    if output.status.success() { Ok(()) } else { Err(failed(&String::from_utf8_lossy(&output.stderr))) }
}

/// Sets sysctls to 1 in the namespace of a process.
fn sysctls(pid: u32, keys: &[&str]) -> Result<(), String> {
    for key in keys {
        let write = format!("echo 1 >/proc/sys/{key}");
        crate::command::capture(&mut super::node::in_network(pid, "sh", &["-c", &write]))?;
    }
    Ok(())
}
