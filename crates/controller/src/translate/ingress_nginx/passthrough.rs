//! Hosts whose TLS ends at the endpoints (`ssl-passthrough`).

use std::net::SocketAddr;

use super::super::cluster::Share;
use super::super::reference::Why;
use super::{Host, Ingress, Making};

impl<'t> Making<'t, '_, '_> {
    /// Sends the connections for a host to the endpoints of its path `/`. Those that ask for another name of it end here, as with ingress-nginx.
    pub(super) fn pass(&mut self, name: &str, by: Ingress<'_>, host: &Host<'t>, at: SocketAddr) {
        let idle = |why: &str| Why::new("UnsupportedAnnotation", format!("ssl-passthrough has no effect: {why}"));
        if name.is_empty() || name.contains('*') {
            return self.tell(by, idle("ingress-nginx compares whole names, and so none with a wildcard"));
        }
        let root = host.places.iter().find(|place| place.path == "/");
        // What closes the path closes it for everybody.
        if root.is_some_and(|root| root.ingress.planned.plan.closed.is_some()) {
            return;
        }
        let cluster = match (root, self.default_backend) {
            (None, None) => return self.tell(by, idle(&format!("no rule of {name} has the path `/`"))),
            (None, Some(cluster)) => cluster,
            // What uses the Service over HTTP tells what is wrong with it. Nothing is decrypted because of that.
            (Some(root), _) => match self.share(root.ingress, root.ingress, root.target) {
                Err(_) => self.with.nowhere,
                Ok(share) => match self.out.clusters.of(self.index, vec![Share { h2: false, ..share }]) {
                    Ok(cluster) => cluster,
                    Err(why) => return self.tell(by, Why::new("UnsupportedValue", why)),
                },
            },
        };
        self.out.binds.pass(at, name, cluster);
    }
}
