//! What a sidecar captures, and what is wrong with it.

use model::{
    Captured, ClusterId, Direction, ForwardedHeaders, Listener, Protocol, SpiffeMatcher, SubjectAltName,
    UnknownDestination,
};

use super::refused::check;
use super::{example, http, load};

fn named<'s>(snapshot: &'s model::Snapshot, name: &str) -> &'s Listener {
    snapshot.listeners.iter().find(|listener| listener.name == name).unwrap()
}

fn captured(listener: &Listener) -> &Captured {
    listener.captured.as_ref().unwrap()
}

#[test]
fn the_example() {
    let snapshot = crate::parse("sidecar.yaml", &example("sidecar.yaml"), model::Generation(1)).unwrap();
    let shown: Vec<(&str, String)> =
        snapshot.listeners.iter().map(|listener| (listener.name.as_str(), listener.place())).collect();
    let expect = [
        ("shop", "inbound *:8080"),
        ("payments", "outbound 10.96.0.20:80"),
        ("database", "outbound 10.96.0.0/12:5432"),
        ("sidecar/inbound", "[::]:15006"),
        ("sidecar/outbound", "[::]:15001"),
    ];
    assert_eq!(shown, expect.map(|(name, place)| (name, place.to_owned())));
    let shop = named(&snapshot, "shop");
    assert!(!captured(shop).admits_plain);
    let client_ca = shop.tls.as_ref().unwrap().client_ca.as_ref().unwrap();
    assert_eq!(client_ca.spiffe_ids, [SpiffeMatcher::Below("spiffe://example.org/ns/shop/".into())]);
    assert_eq!(named(&snapshot, "sidecar/inbound").tls, shop.tls);
    assert_eq!(named(&snapshot, "payments").tls, None);
    let payments = snapshot.clusters[1].tls.as_ref().unwrap();
    let id = SpiffeMatcher::Exact("spiffe://example.org/ns/shop/sa/payments".into());
    assert_eq!(payments.subject_alt_names, [SubjectAltName::Spiffe(id)]);
    assert!(payments.verify && payments.certificate.is_some() && payments.ca.is_some());
}

#[test]
fn defaults_of_a_sidecar() {
    let snapshot = load("sidecar: {}");
    for (listener, port, direction, ports) in [
        (&snapshot.listeners[0], 15_006, Direction::Inbound, &[][..]),
        (&snapshot.listeners[1], 15_001, Direction::Outbound, &[53]),
    ] {
        let Protocol::Capture(capture) = &listener.protocol else { panic!("{listener:?}") };
        assert_eq!((listener.bind.port(), capture.direction, &*capture.excluded.ports), (port, direction, ports));
        assert_eq!((capture.user, capture.unknown, capture.admits_plain), (1337, UnknownDestination::Pass, true));
        assert_eq!((&listener.tls, &listener.captured), (&None, &None));
    }
    // An application's own headers about its clients stay, and a client's do not.
    for (bind, forwarded, trusted) in
        [("outbound: '*:80'", ForwardedHeaders::Off, 2), ("inbound: 80", ForwardedHeaders::XForwarded, 0)]
    {
        let snapshot = load(&format!(
            "sidecar: {{}}\nlisteners: {{l: {{bind: {{{bind}}}, protocol: detect, to: w}}}}\nclusters: {{w: {{endpoints: ['a:1']}}}}"
        ));
        let http = http(&snapshot);
        assert_eq!((http.forwarded, http.trusted_proxies.len()), (forwarded, trusted), "{bind}");
        assert_eq!(captured(&snapshot.listeners[0]).detect.unwrap().to, Some(ClusterId(0)));
    }
}

#[test]
fn what_does_not_fit_together() {
    let file = |sidecar: &str, listener: &str, cluster: &str| {
        format!("{sidecar}\nlisteners: {{l: {{{listener}}}}}\nclusters: {{w: {{endpoints: ['a:1']{cluster}}}}}")
    };
    check(
        &file("", "bind: {inbound: 80}, protocol: http, to: w", ""),
        "2:23: only a sidecar captures connections, and this file has no `sidecar`; add `sidecar: {}` at the top of the file",
    );
    check(
        &file("sidecar: {}", "bind: ':80', protocol: detect, to: w", ""),
        "2:23: protocol detect is for connections that a sidecar captures; write `protocol: http` or `protocol: tcp`",
    );
    check(
        &file("sidecar: {}", "bind: {inbound: 80, outbound: '*:80'}, protocol: http, to: w", ""),
        "2:37: a captured listener has both `outbound` and `inbound`; keep one of them",
    );
    check(
        &file("sidecar: {}", "bind: {outbound: '*:80', mode: strict}, protocol: http, to: w", ""),
        "2:48: `mode` is for inbound connections; remove it; the `spiffe_ids` of a cluster say that its endpoints are sidecars",
    );
    let without = "without `tls` the sidecar has no certificate; add `tls: {certificate: {cert: web.pem, key: web.key}, ca: ca.pem, admit: ...}` to `sidecar`";
    check(
        &file("sidecar: {inbound: {mode: strict}}", "bind: {inbound: 80}, protocol: http, to: w", ""),
        &format!("1:27: {without}"),
    );
    check(
        &file("sidecar: {}", "bind: {inbound: 80, mode: strict}, protocol: http, to: w", ""),
        &format!("2:43: {without}"),
    );
    check(
        &file("sidecar: {}", "bind: {outbound: '*:80'}, protocol: http, to: w", ", spiffe_ids: 'spiffe://a/b'"),
        "3:48: `spiffe_ids` needs the certificate of this sidecar; add `tls` to `sidecar`, or write `tls: {subject_alt_names: ...}`",
    );
    check(
        &file("sidecar: {}", "bind: {inbound: 80}, protocol: tls_passthrough, to: w", ""),
        "2:23: a listener that a sidecar captures cannot have protocol tls_passthrough here; write http, tcp or detect: `mode` of the sidecar says whether clients use TLS",
    );
    check(
        "sidecar: {inbound: {bind: ':80'}, outbound: {bind: ':80'}}",
        "1:52: [::]:80 is used twice; line 1 also listens there; change one of the ports",
    );
    check(
        "sidecar: {inbound: {bind: '127.0.0.1:15006'}}",
        "1:27: the kernel cannot redirect every connection to 127.0.0.1; write `:15006`: the address depends on the connection",
    );
    check(
        "sidecar: {}\nlisteners:\n a: {bind: {inbound: [80, 81]}, protocol: tcp, to: w}\n b: {bind: {inbound: 81}, protocol: tcp, to: w}\nclusters: {w: {endpoints: ['a:1']}}",
        "4:12: inbound connections to *:81 are captured twice; the listener `a` captures them, too",
    );
}
