//! The other processes that serve the same: the endpoints of one Service, which the page at the admin address asks for their figures.
//!
//! Only the EndpointSlices of that Service are watched. What is found is where to ask and no more: those who ask send nothing of the cluster's there.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use futures_util::StreamExt;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, ResourceExt};
use tokio::sync::watch;

use crate::settings::ServiceName;

/// The name of the port that is asked, if the Service has several.
const PORT_NAME: &str = "metrics";
/// Slices of the Service that are kept. Kubernetes itself makes one for each hundred endpoints and family.
const SLICES_MAX: usize = 16;
/// Endpoints of a slice that are kept.
const ENDPOINTS_MAX: usize = 256;

/// Where processes answer, each with the name of its pod, which may be empty; or why that is not known.
pub type FoundReplicas = Result<Vec<(SocketAddr, String)>, String>;

/// Watches until the receiver is gone.
pub(crate) async fn follow(client: Client, service: ServiceName, found: watch::Sender<FoundReplicas>) {
    let api: Api<EndpointSlice> = Api::namespaced(client, &service.namespace);
    let config = watcher::Config::default().labels(&format!("{}={}", crate::index::SERVICE_LABEL, service.name));
    let mut stream = std::pin::pin!(watcher::watcher(api, config).default_backoff());
    let (mut slices, mut listing): (BTreeMap<String, FoundReplicas>, _) = (BTreeMap::new(), BTreeMap::new());
    loop {
        let event = tokio::select! {
            event = stream.next() => event,
            () = found.closed() => return,
        };
        let now = match event {
            Some(Ok(Event::Init)) => {
                listing.clear();
                continue;
            }
            Some(Ok(Event::InitApply(slice))) => {
                keep(&mut listing, &slice);
                continue;
            }
            Some(Ok(Event::InitDone)) => {
                slices = std::mem::take(&mut listing);
                all(&slices, &service)
            }
            Some(Ok(Event::Apply(slice))) => {
                keep(&mut slices, &slice);
                all(&slices, &service)
            }
            Some(Ok(Event::Delete(slice))) => {
                slices.remove(&slice.name_any());
                all(&slices, &service)
            }
            // What is known stays known, and the watcher tries again.
            Some(Err(error)) => {
                let is_known = found.borrow().is_ok();
                if is_known {
                    continue;
                }
                Err(format!("cannot watch the EndpointSlices of {service}: {error}"))
            }
            None => return,
        };
        // Its receiver lives as long as the process.
        if found.send(now).is_err() {
            return;
        }
    }
}

fn keep(slices: &mut BTreeMap<String, FoundReplicas>, slice: &EndpointSlice) {
    let name = slice.name_any();
    if slices.len() < SLICES_MAX || slices.contains_key(&name) {
        slices.insert(name, replicas(slice));
    }
}

fn all(slices: &BTreeMap<String, FoundReplicas>, service: &ServiceName) -> FoundReplicas {
    let (mut all, mut wrong) = (Vec::new(), None);
    for of in slices.values() {
        match of {
            Ok(found) => all.extend(found.iter().cloned()),
            Err(why) => wrong = Some(why),
        }
    }
    if all.is_empty() {
        let none = "the Service has no endpoints, or does not exist";
        return Err(format!("{service}: {}", wrong.map_or(none, String::as_str)));
    }
    all.sort_unstable();
    all.dedup();
    Ok(all)
}

/// The endpoints of a slice, whatever their state: a replica that is not ready has figures, too.
fn replicas(slice: &EndpointSlice) -> FoundReplicas {
    // Kubernetes writes one without ports for each family of addresses that has no endpoint.
    if slice.endpoints.is_empty() {
        return Ok(Vec::new());
    }
    let tcp = slice.ports.iter().flatten().filter(|port| matches!(port.protocol.as_deref(), None | Some("TCP")));
    let tcp: Vec<_> = tcp.collect();
    let port = match tcp.as_slice() {
        [only] => only.port,
        ports => ports.iter().find(|port| port.name.as_deref() == Some(PORT_NAME)).and_then(|port| port.port),
    };
    let port = port.and_then(|port| u16::try_from(port).ok());
    let port = port.ok_or_else(|| format!("the Service needs one TCP port, or one named {PORT_NAME}"))?;
    let replica = |endpoint: &k8s_openapi::api::discovery::v1::Endpoint| {
        let address: IpAddr = endpoint.addresses.first()?.parse().ok()?;
        if !may_be_asked(address) {
            return None;
        }
        let pod = endpoint.target_ref.as_ref().and_then(|target| target.name.clone()).unwrap_or_default();
        Some((SocketAddr::new(address, port), pod))
    };
    Ok(slice.endpoints.iter().take(ENDPOINTS_MAX).filter_map(replica).collect())
}

/// Whoever may write slices must not make this process ask itself, the host's metadata service, or everyone on a link. Kubernetes refuses such addresses.
fn may_be_asked(address: IpAddr) -> bool {
    let canonical = address.to_canonical();
    let is_link_local = match canonical {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    !(canonical.is_loopback() || canonical.is_unspecified() || canonical.is_multicast() || is_link_local)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn slice(ports: serde_json::Value, addresses: &[&str]) -> EndpointSlice {
        let endpoints: Vec<_> = addresses
            .iter()
            .map(|address| json!({"addresses": [address], "targetRef": {"kind": "Pod", "name": format!("pod-{address}")}}))
            .collect();
        let object = json!({"metadata": {"name": "s"}, "addressType": "IPv4", "ports": ports, "endpoints": endpoints});
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn the_endpoints_of_a_slice() {
        let check = |ports, addresses: &[&str], expect: Result<&[&str], &str>| {
            let found = replicas(&slice(ports, addresses));
            let shown = found.map(|all| all.into_iter().map(|(at, pod)| format!("{at} {pod}")).collect::<Vec<_>>());
            let expect = expect.map(|all| all.iter().map(|one| (*one).to_owned()).collect::<Vec<_>>());
            assert_eq!(shown, expect.map_err(str::to_owned));
        };
        let one = json!([{"name": "x", "port": 9902}]);
        check(one.clone(), &["10.0.0.1"], Ok(&["10.0.0.1:9902 pod-10.0.0.1"]));
        check(one.clone(), &[], Ok(&[]));
        check(json!([]), &[], Ok(&[]));
        let two = json!([{"name": "web", "port": 80}, {"name": "metrics", "port": 9902, "protocol": "TCP"}]);
        check(two, &["fd00::1"], Ok(&["[fd00::1]:9902 pod-fd00::1"]));
        // Nothing here is asked.
        check(
            one,
            &["127.0.0.1", "::1", "::ffff:127.0.0.1", "0.0.0.0", "224.0.0.1", "169.254.169.254", "fe80::1", "a.test"],
            Ok(&[]),
        );
        let why = "the Service needs one TCP port, or one named metrics";
        check(json!([{"name": "a", "port": 1}, {"name": "b", "port": 2}]), &["10.0.0.1"], Err(why));
        check(json!([{"name": "a", "port": 1, "protocol": "UDP"}]), &["10.0.0.1"], Err(why));
        check(json!([{"name": "a"}]), &["10.0.0.1"], Err(why));
        check(json!([{"name": "a", "port": 70000}]), &["10.0.0.1"], Err(why));
    }

    #[test]
    fn a_slice_that_cannot_be_asked_hides_no_other() {
        let service = "a/b".parse().unwrap();
        let good = replicas(&slice(json!([{"name": "metrics", "port": 9902}]), &["10.0.0.1"]));
        let wrong = replicas(&slice(json!([{"name": "a", "port": 1, "protocol": "UDP"}]), &["fd00::1"]));
        let both = BTreeMap::from([("a".to_owned(), wrong.clone()), ("b".to_owned(), good)]);
        assert_eq!(all(&both, &service).unwrap().len(), 1);
        let alone = BTreeMap::from([("a".to_owned(), wrong)]);
        assert!(all(&alone, &service).unwrap_err().starts_with("a/b: the Service needs one TCP port"));
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let ports = json!([{"name": "metrics", "port": 9902}]);
        let addresses: Vec<String> = (0..2 * ENDPOINTS_MAX).map(|n| format!("10.0.{}.{}", n / 256, n % 256)).collect();
        let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
        let large = slice(ports, &addresses);
        assert_eq!(replicas(&large).unwrap().len(), ENDPOINTS_MAX);
        let mut slices = BTreeMap::new();
        for number in 0..2 * SLICES_MAX {
            let mut slice = large.clone();
            slice.metadata.name = Some(format!("s{number}"));
            keep(&mut slices, &slice);
        }
        assert_eq!(slices.len(), SLICES_MAX);
        let service = "a/b".parse().unwrap();
        assert_eq!(all(&slices, &service).unwrap().len(), ENDPOINTS_MAX);
        assert!(all(&BTreeMap::new(), &service).unwrap_err().starts_with("a/b: the Service has no endpoints"));
    }
}
