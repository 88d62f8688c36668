//! What rolls out rolls out under load, and nothing is lost.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use testkit::strict::ResponseTo;
use testkit::{End, Exit, PATIENCE, Signal, client, until};

use crate::edge::{LEAVING, READY, fails, gateway, header, holds, origin, pod, until_endpoints, within};
use crate::support::{Load, Origin, Scratch, get, until_served};
use crate::tls::{Pki, Tls};

const CONNECTIONS: usize = 16;

fn addresses(origins: &[Origin]) -> Vec<std::net::SocketAddr> {
    origins.iter().map(|origin| origin.address).collect()
}

#[test]
fn scaled_under_load() {
    within("scaled_under_load", |edge| {
        let mut pods = vec![origin(1)];
        edge.web(&addresses(&pods));
        let mut controller = edge.controller();
        edge.until_served("HTTPRoute", "web");
        let load = Load::start(gateway(80), "/", CONNECTIONS);
        until_served(&[&pods[0]], 300);
        pods.extend((2..=10).map(origin));
        edge.endpoints("web", &addresses(&pods));
        for pod in &pods {
            pod.until_served(100);
        }
        // Seven leave at once, and are gone as soon as nothing new is sent there: what was under way then is sent again elsewhere.
        let gone = pods.split_off(3);
        edge.endpoints("web", &addresses(&pods));
        until_endpoints(&controller, &addresses(&pods));
        drop(gone);
        for pod in &pods {
            pod.until_served(300);
        }
        let total = load.end(&mut controller);
        assert_eq!(total.reconnects, 0, "connections of clients were closed: {total:?}");
    });
}

#[test]
fn replaced_one_by_one_under_load() {
    within("replaced_one_by_one_under_load", |edge| {
        let mut pods: Vec<Origin> = (1..=3).map(origin).collect();
        edge.web(&addresses(&pods));
        let mut controller = edge.controller();
        edge.until_served("HTTPRoute", "web");
        let load = Load::start(gateway(80), "/", CONNECTIONS);
        for number in 11..=16 {
            // As a Deployment rolls: one comes, then one is told to end, then it is gone.
            pods.push(origin(number));
            edge.endpoints("web", &addresses(&pods));
            pods[3].until_served(100);
            let leaving = pods.remove(0);
            let mut endpoints: Vec<_> = pods.iter().map(|pod| (pod.address, READY)).collect();
            endpoints.push((leaving.address, LEAVING));
            edge.endpoints_with("web", &endpoints);
            until_endpoints(&controller, &addresses(&pods));
            edge.endpoints("web", &addresses(&pods));
            drop(leaving);
        }
        let total = load.end(&mut controller);
        assert_eq!(total.reconnects, 0, "connections of clients were closed: {total:?}");
    });
}

#[test]
fn a_secret_is_rotated_under_load() {
    within("a_secret_is_rotated_under_load", |edge| {
        let web = origin(1);
        let scratch = Scratch::new();
        let pki = Pki::new(scratch.path());
        for name in ["first", "second", "third"] {
            pki.issue(name, &["shop.example.com"]);
        }
        edge.secret("shop-tls", &pki, "first");
        edge.gateway("{name: web, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: shop-tls}]}}");
        edge.service("web", &[web.address]);
        edge.route("HTTPRoute", "web", "rules: [{backendRefs: [{name: web, port: 80}]}]");
        let controller = edge.controller();
        edge.until_served("HTTPRoute", "web");

        let shown = |name: &str| {
            let expect = pki.certificate(name);
            let is_shown = || {
                let tls =
                    Tls::connect(&pki.client(None), gateway(443), "shop.example.com").expect("always some certificate");
                (tls.shown() == expect).then_some(())
            };
            assert!(until(PATIENCE, is_shown).is_some(), "{name} is not shown:\n{}", controller.status());
        };
        let listener_is = |what: &str, is_so: &dyn Fn(&serde_json::Value, &serde_json::Value) -> bool| {
            edge.cluster.until(what, "Gateway", "edge", |gateway| is_so(gateway, &gateway["status"]["listeners"][0]))
        };
        shown("first");
        let ended = AtomicBool::new(false);
        // One connection each, from the first to the last certificate.
        let talk = || {
            let mut tls = Tls::connect(&pki.client(None), gateway(443), "shop.example.com").unwrap();
            let mut answers = 0;
            while !ended.load(Relaxed) {
                assert_eq!(tls.get("shop.example.com", "/").expect("the connection is kept").0, 200);
                answers += 1;
            }
            answers
        };
        std::thread::scope(|scope| {
            let talks: Vec<_> = (0..4).map(|_| scope.spawn(talk)).collect();
            web.until_served(100);
            edge.secret("shop-tls", &pki, "second");
            shown("second");
            web.until_served(100);

            // No certificate at all: the last good one stays, and the listener says why.
            edge.cluster.patch("Secret", "shop-tls", serde_json::json!({"stringData": {"tls.crt": "none"}}));
            listener_is("told that its certificate is none", &|gateway, listener| {
                fails(gateway, listener, "ResolvedRefs") == "InvalidCertificateRef"
            });
            shown("second");
            web.until_served(100);

            edge.secret("shop-tls", &pki, "third");
            shown("third");
            listener_is("good again", &|gateway, listener| holds(gateway, listener, &["ResolvedRefs", "Programmed"]));
            web.until_served(100);
            ended.store(true, Relaxed);
            for talk in talks {
                assert!(talk.join().unwrap() > 0);
            }
        });
    });
}

#[test]
fn sigterm_is_told_then_drains() {
    within("sigterm_is_told_then_drains", |edge| {
        let slow = TcpListener::bind(pod(9, 8080)).unwrap();
        edge.web(&[pod(9, 8080)]);
        let mut controller = edge.controller();
        edge.until_served("HTTPRoute", "web");
        let admin = controller.admin;
        assert_eq!(get(admin, "/readyz").map(|response| response.status), Some(200));

        let mut conn = client::connect("client", gateway(80), None).unwrap();
        conn.send(b"GET /slow HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        let (upstream, _) = slow.accept().unwrap();
        let mut head = String::new();
        let mut reader = BufReader::new(&upstream);
        while head.is_empty() || !head.ends_with("\r\n\r\n") {
            assert!(reader.read_line(&mut head).unwrap() > 0, "{head}");
        }
        controller.program.signal(Signal::TERM).unwrap();
        let is_unready = || get(admin, "/readyz").filter(|response| response.status == 503);
        let told = until(PATIENCE, is_unready).expect("/readyz fails as long as something is under way");
        assert!(told.body.starts_with(b"draining"), "{}", String::from_utf8_lossy(&told.body));
        assert_eq!(controller.program.ended().unwrap(), None);
        // Readiness is withdrawn first; a worker that drains has closed its sockets.
        let is_refused = || TcpStream::connect(gateway(80)).err();
        until(PATIENCE, is_refused).expect("no worker accepts any more");

        (&upstream).write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi").unwrap();
        let response = conn.response(ResponseTo::Other).unwrap();
        assert_eq!((response.status, &*header(&response, "connection")), (200, "close"));
        assert_eq!(conn.expect_end().unwrap(), End::Fin);
        assert_eq!(controller.program.exit_within(PATIENCE).unwrap(), Exit::Code(0), "{}", controller.program.log());
        // Another need not wait until the Lease runs out.
        let lease = edge.cluster.get("Lease", "steelyard").expect("a Lease");
        assert_eq!(lease["spec"]["holderIdentity"], "");
    });
}

#[test]
fn sigterm_under_load() {
    within("sigterm_under_load", |edge| {
        let web = origin(1);
        edge.web(&[web.address]);
        let mut controller = edge.controller();
        edge.until_served("HTTPRoute", "web");
        // Each asks without a pause until it is told that the connection ends, as clients of a Service do that then come to another replica.
        let talk = || {
            let mut conn = client::connect("client", gateway(80), None).unwrap();
            let mut answers = 0;
            loop {
                conn.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
                let response = conn.response(ResponseTo::Other).unwrap();
                assert_eq!(response.status, 200);
                answers += 1;
                if header(&response, "connection") == "close" {
                    assert_eq!(conn.expect_end().unwrap(), End::Fin);
                    return answers;
                }
            }
        };
        let answers: u64 = std::thread::scope(|scope| {
            let talks: Vec<_> = (0..CONNECTIONS).map(|_| scope.spawn(talk)).collect();
            web.until_served(50 * CONNECTIONS as u64);
            controller.program.signal(Signal::TERM).unwrap();
            talks.into_iter().map(|talk| talk.join().expect("every request is answered")).sum()
        });
        assert_eq!(answers, web.requests());
        assert_eq!(controller.program.exit_within(PATIENCE).unwrap(), Exit::Code(0), "{}", controller.program.log());
    });
}
