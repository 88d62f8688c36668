//! Configuration: any text is a snapshot whose parts fit together, or a list of errors that say where.
#![no_main]

use libfuzzer_sys::fuzz_target;
use model::{Generation, Protocol, Snapshot};

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match config::parse("fuzz.yaml", text, Generation(7)) {
        Ok(snapshot) => check(&snapshot),
        Err(errors) => {
            assert!(!errors.0.is_empty(), "refused without a reason");
            // YAML breaks lines at CR, too (YAML 1.2 section 5.4).
            let lines = text.replace("\r\n", "\n").split(['\r', '\n']).count();
            for error in &errors.0 {
                assert!((1..=lines + 1).contains(&error.line), "line {} of {lines}", error.line);
                assert!(error.column >= 1);
                assert!(!error.message.is_empty());
            }
            assert!(errors.0.is_sorted_by_key(|error| (error.line, error.column)), "not in the order of the file");
            assert!(errors.to_string().starts_with("fuzz.yaml:"));
        }
    }
});

fn check(snapshot: &Snapshot) {
    assert_eq!(snapshot.generation, Generation(7));
    for listener in &snapshot.listeners {
        match &listener.protocol {
            Protocol::Http(http) => {
                for route in http.routes.iter() {
                    let mirrors = route.policy.mirrors.iter().map(|mirror| mirror.to);
                    let services = route.policy.external_auth.iter().map(|external| external.to);
                    let limits = route.policy.global_rate_limit.iter().map(|limit| limit.to);
                    let targets = route.to.clusters().chain(limits);
                    assert!(targets.chain(mirrors).chain(services).all(|cluster| cluster.0 < snapshot.clusters.len()));
                }
            }
            Protocol::Tcp(tcp) => assert!(tcp.to.0 < snapshot.clusters.len()),
            Protocol::Tls(tls) => {
                for route in &tls.routes {
                    assert!(route.to.0 < snapshot.clusters.len());
                }
            }
            // It has the socket; what it captures are other listeners.
            Protocol::Capture(_) => assert!(listener.captured.is_none()),
        }
    }
    for cluster in &snapshot.clusters {
        assert!(!cluster.endpoints.is_empty());
        assert!((0.0..=1.0).contains(&cluster.panic_threshold));
        assert!(cluster.endpoints.iter().all(|endpoint| endpoint.weight <= 65535));
        assert!(cluster.endpoints.iter().any(|endpoint| endpoint.weight > 0));
    }
}
