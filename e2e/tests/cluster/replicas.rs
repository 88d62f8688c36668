//! The page of each pod of the gateway finds the others by itself: the chart names their Service, and the cluster has no DNS.

use std::net::{Ipv4Addr, SocketAddr};

use testkit::strict::ResponseTo;
use testkit::{client, until};

use crate::site::{GATEWAYS, PATIENCE, Site, Workload, site};

/// Where the admin address of a pod, which is loopback's, is for its operator.
const FORWARDED: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 19901);

/// The table of all replicas on the page; `None` if it does not answer.
fn table(site: &Site) -> Option<String> {
    let body = site.client.inside(|| {
        let mut conn = client::connect("page", FORWARDED, None).ok()?;
        conn.send(b"GET /?replicas=1 HTTP/1.1\r\nHost: localhost:19901\r\n\r\n").ok()?;
        Some(conn.response(ResponseTo::Other).ok()?.body)
    })?;
    let page = String::from_utf8(body).unwrap();
    Some(page.split("<section id=\"replicas\"").nth(1)?.split("</section>").next()?.to_owned())
}

#[test]
fn pods_of_the_gateway_find_each_other() {
    let site = site();
    let Workload { namespace, .. } = GATEWAYS;
    site.until_complete(&GATEWAYS);
    let pods = site.pods(&GATEWAYS);
    assert!(pods.len() > 1, "{pods:?}");
    for pod in &pods {
        let forward = site.start_kubectl(&["--namespace", namespace, "port-forward", pod, "19901:9900"]);
        let all = format!("All {} that answered", pods.len());
        let shown = until(PATIENCE, || table(site).filter(|table| table.contains(&all)));
        let shown = shown.unwrap_or_else(|| panic!("{pods:?} are not on the page of {pod}: {:?}", table(site)));
        for other in &pods {
            assert!(shown.contains(other.as_str()), "{other} is not on the page of {pod}: {shown}");
        }
        drop(forward);
    }
}
