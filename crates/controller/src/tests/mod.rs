//! Table tests: objects go in, and the served configuration and the statuses come out. Each file in `tests/cases` is a table; `expect` is
//! the output of [`told`] for its objects.

pub(crate) mod annotations;
mod header_maps;
mod many;
mod told;
mod traffic;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::Path;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::index::{Index, Kind, Name, Object, Watched};
use crate::ingress_nginx::{Compat, Prefix};
use crate::objects::*;
use crate::settings::{IngressNginx, Settings};
use crate::translate::{Circumstances, Desired, Memory, RefusedVip, Translation, translate};
use crate::watch::{Scoped, Unreadable};
use told::told;

/// A file of `tests/cases`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    #[serde(default)]
    settings: Value,
    #[serde(default)]
    circumstances: Value,
    #[serde(default)]
    objects: Vec<Value>,
    expect: String,
}

fn settings(written: &Value) -> Settings {
    let mut settings = Settings { publish: vec!["203.0.113.1".parse().unwrap()], ..Settings::default() };
    let texts = |value: &Value| -> Vec<String> { serde_json::from_value(value.clone()).unwrap() };
    for (key, value) in written.as_object().into_iter().flatten() {
        match key.as_str() {
            "publish" => settings.publish = texts(value).iter().map(|text| text.parse().unwrap()).collect(),
            "publish_service" => {
                (settings.publish, settings.publish_service) =
                    (Vec::new(), Some(value.as_str().unwrap().parse().unwrap()));
            }
            "listen" => settings.listen = value.as_str().unwrap().parse().unwrap(),
            "gateway_pools" => settings.gateway_pools = texts(value).iter().map(|text| text.parse().unwrap()).collect(),
            "service_pools" => settings.service_pools = texts(value).iter().map(|text| text.parse().unwrap()).collect(),
            "interfaces" => settings.interfaces = texts(value),
            "default_certificate" => settings.default_certificate = Some(value.as_str().unwrap().parse().unwrap()),
            "kube_proxy_replacement" => {
                settings.kube_proxy_replacement = value.as_bool().unwrap();
                settings.socket_cgroup = Some("/sys/fs/cgroup".into());
            }
            "cluster_ip_packets" => settings.cluster_ip_packets = value.as_bool().unwrap(),
            "node" => settings.node = Some(value.as_str().unwrap().to_owned()),
            "zone" => settings.zone = Some(value.as_str().unwrap().to_owned()),
            "gateway_class" => settings.gateway_class = Some(value.as_str().unwrap().to_owned()),
            "ingress_class" => settings.ingress_class = Some(value.as_str().unwrap().to_owned()),
            "ingress_nginx" => {
                let config_map = value["config_map"].as_str().map(|name| name.parse().unwrap());
                let compat = if value["exact"] == true { Compat::Exact } else { Compat::Safe };
                let name = |key: &str| value[key].as_str().map(|name| name.parse().unwrap());
                settings.ingress_nginx = Some(IngressNginx {
                    config_map,
                    compat,
                    default_backend: name("default_backend"),
                    tcp_services: name("tcp_services"),
                    udp_services: name("udp_services"),
                    passes_tls: value["passes_tls"] == true,
                    prefix: value["prefix"].as_str().map_or_else(Prefix::default, |text| text.parse().unwrap()),
                });
            }
            "ingress_status" => settings.ingress_status = value.as_bool().unwrap(),
            "admin" => {
                let address: SocketAddr = value.as_str().unwrap().parse().unwrap();
                settings.admin = Some(address.into());
            }
            "metrics" => settings.metrics = Some(value.as_str().unwrap().parse().unwrap()),
            other => panic!("no such setting: {other}"),
        }
    }
    settings.check().unwrap();
    settings
}

fn circumstances(written: &Value) -> Circumstances {
    let mut circumstances = Circumstances { allots: true, ..Circumstances::default() };
    for (key, value) in written.as_object().into_iter().flatten() {
        match key.as_str() {
            "allots" => circumstances.allots = value.as_bool().unwrap(),
            "kernel" => circumstances.kernel = Some(value.as_str().unwrap().to_owned()),
            "refused" => circumstances.refused = Some(value.as_str().unwrap().to_owned()),
            "empty" => {
                let names: Vec<String> = serde_json::from_value(value.clone()).unwrap();
                circumstances.empty = names.iter().map(|name| Name::new("shop", name)).collect();
            }
            // See `forbidden`: these go into the index.
            "forbidden" => {}
            "vips" => {
                for (name, why) in value.as_object().unwrap() {
                    let why = why.as_str().unwrap().to_owned();
                    circumstances.vips.insert(name.clone(), RefusedVip { why, held: None });
                }
            }
            "binds" => {
                for (place, why) in value.as_object().unwrap() {
                    circumstances.binds.insert(place.parse().unwrap(), why.as_str().unwrap().to_owned());
                }
            }
            other => panic!("no such circumstance: {other}"),
        }
    }
    circumstances
}

/// The kinds that cannot be read.
fn forbidden(written: &Value) -> BTreeMap<Scoped, Unreadable> {
    let kinds = written["forbidden"].as_array().into_iter().flatten();
    let kind = |kind: &Value| crate::watch::expected(&[]).into_iter().find(|(known, _)| known.told().1 == *kind);
    kinds.map(|written| (kind(written).expect("a kind"), Unreadable::Forbidden)).collect()
}

/// An object as the watch of its kind would bring it.
pub(crate) fn object(mut value: Value) -> Object {
    fn of<K: Watched + DeserializeOwned>(value: Value) -> Object {
        serde_json::from_value::<K>(value.clone()).unwrap_or_else(|error| panic!("{error}: {value:#}")).into_object()
    }
    let kind = value["kind"].as_str().unwrap_or_default().to_owned();
    complete(&kind, &mut value);
    match kind.as_str() {
        "GatewayClass" => of::<GatewayClass>(value),
        "Gateway" => of::<Gateway>(value),
        "ListenerSet" => of::<ListenerSet>(value),
        "HTTPRoute" => of::<HTTPRoute>(value),
        "GRPCRoute" => of::<GRPCRoute>(value),
        "TLSRoute" => of::<TLSRoute>(value),
        "TCPRoute" => of::<TCPRoute>(value),
        "UDPRoute" => of::<UDPRoute>(value),
        "ReferenceGrant" => of::<ReferenceGrant>(value),
        "BackendTLSPolicy" => of::<BackendTLSPolicy>(value),
        "GatewayParameters" => of::<GatewayParameters>(value),
        "TrafficPolicy" => of::<TrafficPolicy>(value),
        "Ingress" => of::<k8s_openapi::api::networking::v1::Ingress>(value),
        "IngressClass" => of::<k8s_openapi::api::networking::v1::IngressClass>(value),
        "Service" => of::<k8s_openapi::api::core::v1::Service>(value),
        "EndpointSlice" => of::<k8s_openapi::api::discovery::v1::EndpointSlice>(value),
        "Secret" if value["type"] == "steelyard.io/credentials" || value["type"] == "Opaque" => {
            of::<crate::index::CredentialSecret>(value)
        }
        "Secret" => of::<k8s_openapi::api::core::v1::Secret>(value),
        "ConfigMap" => of::<k8s_openapi::api::core::v1::ConfigMap>(value),
        "Namespace" => of::<k8s_openapi::api::core::v1::Namespace>(value),
        "CustomResourceDefinition" => of::<crate::index::Definition>(value),
        other => panic!("no such kind: {other}"),
    }
}

/// Fills in what an API server would, and what would only make the tables longer.
fn complete(kind: &str, value: &mut Value) {
    let metadata = &mut value["metadata"];
    let place = metadata["name"].as_str().unwrap_or_else(|| panic!("{kind} without a name")).to_owned();
    if metadata["namespace"].is_null()
        && !matches!(kind, "GatewayClass" | "IngressClass" | "Namespace" | "CustomResourceDefinition")
    {
        metadata["namespace"] = "shop".into();
    }
    for (key, default) in
        [("generation", Value::from(1)), ("uid", place.into()), ("creationTimestamp", "2026-01-01T00:00:00Z".into())]
    {
        if metadata[key].is_null() {
            metadata[key] = default;
        }
    }
    // `believed-for` stands for a ConfigMap with a CA certificate.
    if let Some(name) = value["believed-for"].as_str() {
        value["data"] = json!({"ca.crt": certificate(&[name.to_owned()]).0});
    }
    // `authority-for` is the same in a Secret.
    if let Some(name) = value["authority-for"].as_str() {
        value["data"] = json!({"ca.crt": base64(&certificate(&[name.to_owned()]).0)});
    }
    // `revokes` stands for a list of revoked certificates beside it.
    if value["revokes"] == true {
        value["data"]["ca.crl"] = base64(&revocation_list()).into();
    }
    // As the API server does.
    for (part, text) in value["stringData"].as_object().cloned().into_iter().flatten() {
        value["data"][part] = base64(text.as_str().unwrap()).into();
    }
    // `made-for` stands for a certificate for these names.
    if let Some(names) = value["made-for"].as_array() {
        let names: Vec<String> = names.iter().map(|name| name.as_str().unwrap().to_owned()).collect();
        let (cert, key) = certificate(&names);
        // Beside a CA certificate, if it has one.
        (value["data"]["tls.crt"], value["data"]["tls.key"]) = (base64(&cert).into(), base64(&key).into());
    }
}

/// A certificate for these names, in PEM, with its key.
pub(crate) fn certificate(names: &[String]) -> (String, String) {
    let made = rcgen::generate_simple_self_signed(names.to_vec()).unwrap();
    (made.cert.pem(), made.signing_key.serialize_pem())
}

fn revocation_list() -> String {
    let mut ca = rcgen::CertificateParams::default();
    ca.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let issuer = rcgen::CertifiedIssuer::self_signed(ca, rcgen::KeyPair::generate().unwrap()).unwrap();
    let list = rcgen::CertificateRevocationListParams {
        this_update: rcgen::date_time_ymd(2020, 1, 1),
        next_update: rcgen::date_time_ymd(2500, 1, 1),
        crl_number: 1.into(),
        issuing_distribution_point: None,
        revoked_certs: Vec::new(),
        key_identifier_method: rcgen::KeyIdMethod::Sha256,
    };
    list.signed_by(&issuer).unwrap().pem().unwrap()
}

pub(crate) fn base64(text: &str) -> String {
    let bytes = k8s_openapi::ByteString(text.as_bytes().to_vec());
    serde_json::to_value(bytes).unwrap().as_str().unwrap().to_owned()
}

/// An index of objects in YAML.
pub(crate) fn index(objects: impl IntoIterator<Item = Value>) -> Index {
    index_in(None, objects)
}

/// The index of a process in this zone.
fn index_in(zone: Option<&str>, objects: impl IntoIterator<Item = Value>) -> Index {
    let mut index = Index::in_zone(zone);
    for value in objects {
        index.apply(object(value));
    }
    index
}

#[test]
fn cases() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases");
    let mut wrong = Vec::new();
    let mut count = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        let case: Case = serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let settings = settings(&case.settings);
        let mut index = Index::of(&settings);
        case.objects.into_iter().for_each(|value| index.apply(object(value)));
        index.unreadable = forbidden(&case.circumstances);
        let translated = translate(&index, &settings, &circumstances(&case.circumstances), &mut Memory::default());
        let found = told(&translated);
        if found.trim() != case.expect.trim() {
            wrong.push(format!("--- {}\n{found}", path.display()));
        }
        count += 1;
    }
    assert!(wrong.is_empty(), "these tell something else:\n{}", wrong.join("\n"));
    assert!(count > 10, "the tables are gone");
}

pub(crate) fn yaml(text: &str) -> Value {
    serde_saphyr::from_str(text).unwrap()
}

fn retranslate(index: &Index) -> Translation {
    let circumstances = Circumstances { allots: true, ..Circumstances::default() };
    translate(index, &settings(&Value::Null), &circumstances, &mut Memory::default())
}

const BASE: &str = "
- {kind: GatewayClass, metadata: {name: steelyard}, spec: {controllerName: steelyard.io/gateway-controller}}
- {kind: Gateway, metadata: {name: edge}, spec: {gatewayClassName: steelyard, listeners: [{name: web, port: 80, protocol: HTTP}]}}
- {kind: HTTPRoute, metadata: {name: all}, spec: {parentRefs: [{name: edge}], rules: [{backendRefs: [{name: web, port: 80}]}]}}
- {kind: Service, metadata: {name: web}, spec: {ports: [{port: 80}]}}
";

fn slice(addresses: &str) -> Object {
    object(yaml(&format!(
        "{{kind: EndpointSlice, metadata: {{name: web-1, labels: {{kubernetes.io/service-name: web}}}}, \
          addressType: IPv4, ports: [{{port: 8080}}], endpoints: [{addresses}]}}"
    )))
}

fn base() -> Index {
    index(yaml(BASE).as_array().unwrap().clone())
}

/// A status takes a moment to come back. Until then an object keeps what it was given, even if one that comes first in order appears.
#[test]
fn an_allotted_address_stays_before_its_status_is_read() {
    let settings = settings(&yaml("{listen: 10.9.0.1, gateway_pools: [10.9.1.0/24], service_pools: [10.9.2.0/24]}"));
    let mut index = base();
    index.remove(Kind::Gateway, &Name::new("shop", "edge"));
    let gateway = |name: &str, status: Value| {
        let mut gateway = yaml(BASE)[1].clone();
        gateway["metadata"]["name"] = name.into();
        if !status.is_null() {
            gateway["status"] = status;
        }
        object(gateway)
    };
    let service = |name: &str| {
        let spec = "{type: LoadBalancer, loadBalancerClass: steelyard.io/kernel-plane, ports: [{port: 80}]}";
        object(yaml(&format!("{{kind: Service, metadata: {{name: {name}}}, spec: {spec}}}")))
    };
    let mut memory = Memory::default();
    let mut addresses = |index: &Index, allots: bool| {
        let circumstances = Circumstances { allots, ..Circumstances::default() };
        let translation = translate(index, &settings, &circumstances, &mut memory);
        let of = |(kind, name): &(Kind, Name), desired: &Desired| {
            let addresses = match desired {
                Desired::Gateway(status) => {
                    format!("{:?}", status.addresses.iter().map(|of| &of.value).collect::<Vec<_>>())
                }
                Desired::Service(addresses) => format!("{addresses:?}"),
                _ => return None,
            };
            Some(format!("{kind:?} {} {addresses}", name.name))
        };
        translation.statuses.iter().filter_map(|(object, desired)| of(object, desired)).collect::<Vec<_>>()
    };
    index.apply(gateway("second", Value::Null));
    index.apply(service("second"));
    let first = r#"Gateway second [Some("10.9.1.1")]"#;
    assert_eq!(addresses(&index, true), [first, "Service second [10.9.2.1]"]);
    index.apply(gateway("first", Value::Null));
    index.apply(service("first"));
    let both = [r#"Gateway first [Some("10.9.1.2")]"#, first, "Service first [10.9.2.2]", "Service second [10.9.2.1]"];
    assert_eq!(addresses(&index, true), both);
    // A status that was read is right, whatever this process has given.
    index.apply(gateway("first", yaml("{addresses: [{type: IPAddress, value: 10.9.1.9}]}")));
    assert_eq!(addresses(&index, true)[0], r#"Gateway first [Some("10.9.1.9")]"#);
    // One that has gone and comes again is a new one.
    index.remove(Kind::Gateway, &Name::new("shop", "second"));
    assert_eq!(addresses(&index, true).len(), 3);
    index.apply(gateway("again", Value::Null));
    index.apply(gateway("second", Value::Null));
    let found = addresses(&index, true);
    assert_eq!(found[..1], [r#"Gateway again [Some("10.9.1.1")]"#]);
    assert_eq!(found[2], r#"Gateway second [Some("10.9.1.2")]"#);
    // Only the holder of the Lease knows what is on its way.
    assert_eq!(addresses(&index, false)[0], "Gateway again []");
}

#[test]
fn an_endpoint_changes_its_cluster_and_nothing_else() {
    let mut index = base();
    let mut translation = retranslate(&index);
    assert!(index.take_changes().all);
    let before = translation.snapshot(&settings(&Value::Null));
    index.apply(slice("{addresses: [10.0.0.1]}, {addresses: [10.0.0.2], conditions: {ready: false}}"));
    let changes = index.take_changes();
    assert!(!changes.all);
    assert_eq!(changes.endpoints, [Name::new("shop", "web")].into());
    assert!(translation.follow(&index, &changes.endpoints));
    let after = translation.snapshot(&settings(&Value::Null));
    let routes = |snapshot: &model::Snapshot| match &snapshot.listeners[0].protocol {
        model::Protocol::Http(http) => http.routes.clone(),
        other => panic!("{other:?}"),
    };
    assert!(std::sync::Arc::ptr_eq(&routes(&before), &routes(&after)));
    let addresses = |snapshot: &model::Snapshot| snapshot.clusters[1].endpoints.len();
    assert_eq!((addresses(&before), addresses(&after)), (0, 1));

    index.apply(slice("{addresses: [10.0.0.1]}, {addresses: [10.0.0.2], conditions: {ready: false}}"));
    assert_eq!(index.take_changes(), crate::index::Changes::default(), "the same again is no change");
    index.apply(slice("{addresses: [10.0.0.1]}, {addresses: [10.0.0.3], conditions: {ready: false}}"));
    assert!(!translation.follow(&index, &index.changes().endpoints.clone()), "one that gets no work changes nothing");
    index.remove(Kind::Slice, &Name::new("shop", "web-1"));
    assert!(translation.follow(&index, &index.changes().endpoints.clone()));
    assert_eq!(translation.snapshot(&settings(&Value::Null)).clusters[1].endpoints.len(), 0);
}

#[test]
fn clusters_of_the_settings_come_first() {
    let own = std::sync::Arc::new(model::Cluster::new("otel", Vec::new()));
    let settings = Settings { clusters: vec![own.clone()], ..settings(&Value::Null) };
    let mut index = base();
    let mut translation = translate(&index, &settings, &Circumstances::default(), &mut Memory::default());
    index.take_changes();
    let check = |translation: &Translation, addresses: usize| {
        let snapshot = translation.snapshot(&settings);
        assert_eq!(snapshot.clusters[0], own);
        let web = snapshot.clusters.iter().position(|cluster| cluster.name.starts_with("web.shop")).unwrap();
        assert_eq!(snapshot.clusters[web].endpoints.len(), addresses);
        let model::Protocol::Http(http) = &snapshot.listeners[0].protocol else { panic!("no HTTP") };
        assert!(
            http.routes.iter().all(|route| !format!("{:?}", route.to).contains("ClusterId(0)")),
            "{:?}",
            http.routes
        );
    };
    check(&translation, 0);
    index.apply(slice("{addresses: [10.0.0.1]}, {addresses: [10.0.0.2]}"));
    let changes = index.take_changes();
    assert!(translation.follow(&index, &changes.endpoints));
    check(&translation, 2);
}

#[test]
fn features_of_the_experimental_channel_are_claimed_where_it_is_installed() {
    let mut index = base();
    let mut check = |channel: &str, expect: bool| {
        index.apply(object(json!({"kind": "CustomResourceDefinition", "metadata": {
            "name": "httproutes.gateway.networking.k8s.io",
            "annotations": {"gateway.networking.k8s.io/channel": channel},
        }})));
        let translation = retranslate(&index);
        let Desired::Class(status) = &translation.statuses[&(Kind::GatewayClass, Name::new("", "steelyard"))] else {
            panic!("no status of the class")
        };
        let features: Vec<&str> = status.supported_features.iter().map(|feature| feature.name.as_str()).collect();
        assert!(features.is_sorted() && features.contains(&"HTTPRouteCORS"), "{features:?}");
        assert_eq!(features.contains(&"HTTPRouteRetry"), expect, "{channel}");
    };
    check("standard", false);
    check("experimental", true);
    check("standard", false);
}

#[test]
fn a_status_that_was_written_is_no_change_of_what_is_served() {
    let mut index = base();
    let translation = retranslate(&index);
    index.take_changes();
    let about = (Kind::Route(crate::index::RouteKind::Http), Name::new("shop", "all"));
    let desired = &translation.statuses[&about];
    let write = |index: &Index, now: &str| {
        crate::translate::write(index, &settings(&Value::Null), &about, desired, now).map(|write| write.patch)
    };
    let patch = write(&index, "2026-01-02T00:00:00Z").unwrap();
    let foreign = yaml("{parentRef: {name: other}, controllerName: example.com/other, conditions: []}");
    let mut route = yaml(BASE)[2].clone();
    route["status"] = patch["status"].clone();
    route["status"]["parents"].as_array_mut().unwrap().insert(0, foreign.clone());
    index.apply(object(route.clone()));
    let changes = index.take_changes();
    assert!(!changes.all && changes.statuses.contains(&about));
    assert_eq!(write(&index, "2026-01-03T00:00:00Z"), None, "it says what is wanted");

    // If a condition is removed, ours come back with the times that they had, and those of others stay.
    route["status"]["parents"][1]["conditions"].as_array_mut().unwrap().remove(1);
    index.apply(object(route));
    let again = write(&index, "2026-01-03T00:00:00Z").unwrap();
    let parents = &again["status"]["parents"];
    assert_eq!(parents[0], foreign);
    let times: Vec<&str> = parents[1]["conditions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| c["lastTransitionTime"].as_str().unwrap())
        .collect();
    assert_eq!(times, ["2026-01-02T00:00:00Z", "2026-01-03T00:00:00Z"]);
}

#[test]
fn a_broken_secret_leaves_the_last_good_one() {
    let secret = |cert: &str, key: &str| {
        object(json!({"kind": "Secret", "metadata": {"name": "tls"}, "type": "kubernetes.io/tls",
            "data": {"tls.crt": base64(cert), "tls.key": base64(key)}}))
    };
    let name = Name::new("shop", "tls");
    let (cert, key) = certificate(&["a.example.com".to_owned()]);
    let (_, other) = certificate(&["a.example.com".to_owned()]);
    let mut index = Index::default();
    let mut check = |object: Object, is_served: bool, wrong: Option<&str>| {
        index.apply(object);
        let entry = &index.secrets[&name];
        assert_eq!(entry.good.as_ref().map(|good| &*good.cert), is_served.then_some(cert.as_bytes()));
        assert_eq!(entry.wrong.as_deref(), wrong);
    };
    check(secret("", &key), false, Some("there is no certificate in tls.crt"));
    check(secret(&cert, &key), true, None);
    check(secret(&cert, &other), true, Some("the key in tls.key does not match the certificate in tls.crt"));
    check(secret("-----BEGIN CERTIFICATE-----", &key), true, Some("tls.crt is not PEM: a section does not end"));
    check(
        secret(&cert, "none"),
        true,
        Some("there is no private key in tls.key (PEM with PKCS#8, PKCS#1 or SEC1, without a password)"),
    );
    check(secret(&cert, &key), true, None);
}

#[test]
fn an_authority_that_is_emptied_is_believed_no_longer() {
    let config_map =
        |text: &str| object(json!({"kind": "ConfigMap", "metadata": {"name": "ca"}, "data": {"ca.crt": text}}));
    let (good, _) = certificate(&["ca.example.com".to_owned()]);
    let mut index = base();
    index.apply(slice("{addresses: [10.0.0.1]}"));
    index.apply(object(yaml(
        "{kind: BackendTLSPolicy, metadata: {name: tls}, spec: {targetRefs: [{kind: Service, name: web}], \
          validation: {hostname: web.example.com, caCertificateRefs: [{kind: ConfigMap, name: ca}]}}}",
    )));
    let mut check = |text: &str, endpoints: usize, accepted: &str, resolved: &str| {
        index.apply(config_map(text));
        let translation = retranslate(&index);
        let cluster = translation.snapshot(&settings(&Value::Null)).clusters[1].clone();
        // A cluster without endpoints answers 503, and nothing goes out in the clear.
        assert_eq!((cluster.name.as_str(), cluster.endpoints.len()), ("web.shop:80", endpoints), "{text:?}");
        let Desired::Policy(ancestors) = &translation.statuses[&(Kind::Policy, Name::new("shop", "tls"))] else {
            panic!("no status of the policy")
        };
        let reasons: Vec<&str> = ancestors[0].conditions.iter().map(|condition| &*condition.reason).collect();
        assert_eq!(reasons, [accepted, resolved], "{text:?}");
    };
    check(&good, 1, "Accepted", "ResolvedRefs");
    check("", 0, "NoValidCACertificate", "InvalidCACertificateRef");
    check(&good, 1, "Accepted", "ResolvedRefs");
    check("-----BEGIN CERTIFICATE-----", 0, "NoValidCACertificate", "InvalidCACertificateRef");
}

#[test]
fn parameters_stay_in_use_when_they_are_lost() {
    let memory = &mut Memory::default();
    let mut index = base();
    let class = |name: &str| {
        object(json!({"kind": "GatewayClass", "metadata": {"name": "steelyard", "generation": name.len()}, "spec": {
            "controllerName": "steelyard.io/gateway-controller",
            "parametersRef": {"group": "steelyard.io", "kind": "GatewayParameters", "namespace": "infra", "name": name},
        }}))
    };
    let gateway = |generation: u64, own: &str| {
        let mut gateway = yaml(BASE)[1].clone();
        gateway["metadata"]["generation"] = generation.into();
        gateway["spec"]["infrastructure"] =
            json!({"parametersRef": {"group": "steelyard.io", "kind": "GatewayParameters", "name": own}});
        object(gateway)
    };
    let parameters = |namespace: &str, clients: Value| {
        object(
            json!({"kind": "GatewayParameters", "metadata": {"name": "edge", "namespace": namespace}, "spec": {"clients": clients}}),
        )
    };
    let mut check = |index: &Index, expect: (bool, usize), class: &str, gateway: &str| {
        let circumstances = Circumstances { allots: true, ..Circumstances::default() };
        let translation = translate(index, &settings(&Value::Null), &circumstances, memory);
        let listeners = translation.snapshot(&settings(&Value::Null)).listeners;
        let model::Protocol::Http(http) = &listeners[0].protocol else { panic!("HTTP") };
        assert_eq!((listeners[0].accept_proxy_protocol, http.limits.header_count_max), expect);
        let message = |conditions: &[Condition], kind: &str| {
            conditions.iter().find(|condition| &*condition.kind == kind).unwrap().message.to_string()
        };
        let about = |kind, namespace: &str, name: &str| &translation.statuses[&(kind, Name::new(namespace, name))];
        let Desired::Class(status) = about(Kind::GatewayClass, "", "steelyard") else { panic!("a class") };
        assert_eq!(message(&status.conditions, "Accepted"), class);
        let Desired::Gateway(status) = about(Kind::Gateway, "shop", "edge") else { panic!("a Gateway") };
        assert_eq!(message(&status.conditions, "Accepted"), gateway);
        assert!(status.conditions[1].is_true(), "{status:?}");
    };
    index.apply(class("edge"));
    index.apply(gateway(2, "edge"));
    index.apply(parameters("infra", json!({"proxyProtocol": "Required"})));
    index.apply(parameters("shop", json!({"limits": {"headerCount": 7}})));
    check(&index, (true, 7), "", "");
    index.remove(Kind::Parameters, &Name::new("infra", "edge"));
    index.remove(Kind::Parameters, &Name::new("shop", "edge"));
    let lost = |what: &str| format!("{what}; the last valid parameters stay in use");
    let (of_class, of_gateway) =
        (lost("there is no GatewayParameters infra/edge"), lost("there is no GatewayParameters shop/edge"));
    check(&index, (true, 7), &of_class, &of_gateway);
    check(&index, (true, 7), &of_class, &of_gateway);
    // Another name, and values that are wrong.
    index.apply(class("other"));
    index.apply(parameters("shop", json!({"limits": {"headerCount": 700}})));
    let of_class = lost("there is no GatewayParameters infra/other");
    let of_gateway = lost("GatewayParameters shop/edge: spec.clients.limits.headerCount: 700 must be from 1 to 256");
    check(&index, (true, 7), &of_class, &of_gateway);
    // Valid again, and wanted no longer.
    index.apply(parameters("shop", json!({"limits": {"headerCount": 8}})));
    check(&index, (true, 8), &of_class, "");
    index.apply(object(yaml(BASE)[0].clone()));
    check(&index, (false, 8), "", "");
    // What was forgotten does not come back.
    index.apply(class("another"));
    check(&index, (false, 8), "there is no GatewayParameters infra/another; the controller's arguments apply", "");
}

/// The definition has the fields that are read and no others, and the page explains each.
#[test]
fn the_definition_of_our_kind() {
    let read =
        |path: &str| std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)).unwrap();
    let definition = yaml(&read("deploy/steelyard/crds/gatewayparameters.yaml"));
    let (group, kind) = Kind::Parameters.told();
    assert_eq!((&definition["spec"]["group"], &definition["spec"]["names"]["kind"]), (&group.into(), &kind.into()));
    let version = &definition["spec"]["versions"][0];
    assert_eq!([version["name"].as_str().unwrap()], GatewayParameters::VERSIONS);
    let schema = &version["schema"]["openAPIV3Schema"]["properties"]["spec"];
    let fields = &schema["properties"];
    assert_eq!(fields["clients"], fields["perPort"]["items"]["properties"]["clients"]);

    // An object in which everything is set, as far as it can be at once.
    let mut spec = example(schema);
    spec["publish"].as_object_mut().unwrap().remove("addresses");
    let class = json!({"kind": "GatewayClass", "metadata": {"name": "steelyard"}, "spec": {
        "controllerName": "steelyard.io/gateway-controller",
        "parametersRef": {"group": group, "kind": kind, "namespace": "infra", "name": "all"},
    }});
    let all = json!({"kind": kind, "metadata": {"name": "all", "namespace": "infra"}, "spec": spec});
    let settings = settings(&json!({"listen": "10.9.0.1"}));
    let translation = translate(&index([class, all]), &settings, &Circumstances::default(), &mut Memory::default());
    let Desired::Class(status) = &translation.statuses[&(Kind::GatewayClass, Name::new("", "steelyard"))] else {
        panic!("a class")
    };
    assert!(status.conditions[0].is_true(), "{:?}", status.conditions);

    let page = read("docs/kubernetes-parameters.md");
    let mut places = Vec::new();
    leaves(&fields["clients"], "", &mut places);
    for field in fields.as_object().unwrap().keys().chain(&places) {
        let is_there = [format!("| `{field}"), format!(", `{field}")].iter().any(|text| page.contains(text));
        assert!(is_there, "the page does not explain {field}");
    }
}

/// A value that this schema allows, with all fields.
fn example(schema: &Value) -> Value {
    if let Some(value) = schema.get("example").or_else(|| schema["enum"].get(0)).or_else(|| schema.get("minimum")) {
        return value.clone();
    }
    match schema["type"].as_str() {
        Some("object") => {
            let fields = schema["properties"].as_object().unwrap().iter();
            fields.map(|(name, schema)| (name.clone(), example(schema))).collect()
        }
        Some("array") => json!([example(&schema["items"])]),
        Some("boolean") => true.into(),
        other => panic!("{other:?} needs an example: {schema}"),
    }
}

/// The paths of all fields of a schema that have no fields of their own.
fn leaves(schema: &Value, place: &str, found: &mut Vec<String>) {
    for (name, schema) in schema["properties"].as_object().unwrap() {
        let place = format!("{place}{name}");
        match schema["type"] == "object" {
            true => leaves(schema, &format!("{place}."), found),
            false => found.push(place),
        }
    }
}

#[test]
fn five_thousand_routes_and_a_thousand_services() {
    let mut objects = yaml(BASE).as_array().unwrap().clone();
    for n in 0..1000 {
        let name = format!("s{n}");
        objects.push(json!({"kind": "Service", "metadata": {"name": name}, "spec": {"ports": [{"port": 80}]}}));
    }
    for n in 0..5000 {
        let rule = json!({"matches": [{"path": {"value": "/a"}}], "backendRefs": [{"name": format!("s{}", n % 1000), "port": 80}]});
        let spec =
            json!({"parentRefs": [{"name": "edge"}], "hostnames": [format!("h{n}.example.com")], "rules": [rule]});
        objects.push(json!({"kind": "HTTPRoute", "metadata": {"name": format!("r{n}")}, "spec": spec}));
    }
    let index = index(objects);
    let translation = retranslate(&index);
    let snapshot = translation.snapshot(&settings(&Value::Null));
    let model::Protocol::Http(http) = &snapshot.listeners[0].protocol else { panic!("HTTP") };
    // One for each Service, one for nothing, one for the Service of the base.
    assert_eq!((http.routes.len(), snapshot.clusters.len()), (5001, 1002));
    // Of each route, the Gateway, its class.
    assert_eq!(translation.statuses.len(), 5003);
}

#[test]
fn ten_thousand_hosts_on_one_listener() {
    let mut objects = yaml(BASE).as_array().unwrap().clone();
    // The most that the API lets one route have is sixteen.
    for route in 0..625 {
        let hosts: Vec<String> = (0..16).map(|host| format!("h{host}.r{route}.example.com")).collect();
        let spec = json!({"parentRefs": [{"name": "edge"}], "hostnames": hosts, "rules": [{"backendRefs": [{"name": "web", "port": 80}]}]});
        objects.push(json!({"kind": "HTTPRoute", "metadata": {"name": format!("r{route}")}, "spec": spec}));
    }
    let translation = retranslate(&index(objects));
    let snapshot = translation.snapshot(&settings(&Value::Null));
    let model::Protocol::Http(http) = &snapshot.listeners[0].protocol else { panic!("HTTP") };
    assert_eq!(http.routes.iter().map(|route| route.hosts.len()).sum::<usize>(), 10_000);
    assert_eq!(snapshot.clusters.len(), 2, "one for the Service, one for nothing");
    assert_eq!(translation.notices, BTreeSet::new());
}

#[test]
fn more_listeners_than_may_be_are_refused_and_the_others_served() {
    let listener = |set: usize, number: usize| {
        let (name, hostname) = (format!("l{number}"), format!("l{number}.s{set}.example.com"));
        json!({"name": name, "hostname": hostname, "port": 80, "protocol": "HTTP"})
    };
    let mut objects = yaml(BASE).as_array().unwrap().clone();
    objects[1]["spec"]["allowedListeners"] = json!({"namespaces": {"from": "Same"}});
    // The most that the API lets one ListenerSet have is sixty-four.
    for set in 0..65 {
        let listeners: Vec<Value> = (0..64).map(|number| listener(set, number)).collect();
        let spec = json!({"parentRef": {"name": "edge"}, "listeners": listeners});
        objects.push(json!({"kind": "ListenerSet", "metadata": {"name": format!("s{set:02}")}, "spec": spec}));
    }
    let translation = retranslate(&index(objects));
    let is_refused = |notice: &&crate::translate::Notice| notice.reason == "TooManyListeners";
    // With the one of the Gateway there are 65 more than 4,096.
    assert_eq!(translation.notices.iter().filter(is_refused).count(), 65);
    let last = &translation.statuses[&(Kind::ListenerSet, Name::new("shop", "s62"))];
    let Desired::Gateway(status) = last else { panic!("{last:?}") };
    assert!(status.conditions.iter().all(crate::objects::Condition::is_true), "{status:?}");
}

/// What is full is refused to the Service that exceeds it, or shared fairly, and reported. The others keep what they have.
#[test]
fn what_the_kernel_plane_has_no_room_for() {
    let settings = settings(&yaml("{listen: 10.9.0.1, node: node-a, kube_proxy_replacement: true}"));
    let circumstances = Circumstances { allots: true, ..Circumstances::default() };
    let ports =
        |count: u16| (1..=count).map(|port| json!({"name": format!("p{port}"), "port": port})).collect::<Vec<_>>();
    let service = |name: &str, at: &str, spec: Value| {
        json!({"kind": "Service", "metadata": {"name": name}, "spec": spec,
        "status": {"loadBalancer": {"ingress": [{"ip": at}]}}})
    };
    let ranges = |count: u32| (0..count).map(|n| format!("10.{}.{}.0/24", n / 256, n % 256)).collect::<Vec<_>>();
    let balancer = |ip: &str, count: u16, networks: u32| json!({"type": "LoadBalancer", "clusterIPs": [ip], "ports": ports(count), "loadBalancerSourceRanges": ranges(networks)});
    let external: Vec<String> = (1..=200).map(|n| format!("198.51.100.{n}")).collect();
    let index = index([
        // 200 x 200 networks, and as many again, which is too much; and too many for one Service.
        service("a", "203.0.113.1", balancer("10.96.0.1", 200, 200)),
        service("b", "203.0.113.2", balancer("10.96.0.2", 200, 200)),
        service("c", "203.0.113.3", balancer("10.96.0.3", 1, 257)),
        // 200 x 30 x 2 vips are too many. The next one may have its addresses.
        service("d", "203.0.113.4", json!({"clusterIPs": ["10.96.0.4"], "externalIPs": external, "ports": ports(30)})),
        service(
            "e",
            "203.0.113.5",
            json!({"clusterIPs": ["10.96.0.5"], "externalIPs": ["198.51.100.1"], "ports": ports(1)}),
        ),
    ]);
    let translation = translate(&index, &settings, &circumstances, &mut Memory::default());
    let reasons: Vec<String> =
        translation.notices.iter().map(|notice| format!("{} {}", notice.about.1.name, notice.reason)).collect();
    assert_eq!(reasons, ["b TooManySources", "c InvalidSourceRange", "d TooManyVips"]);
    let count = |of: &str| translation.vips().filter(|vip| vip.name.starts_with(of)).count();
    assert_eq!([count("a."), count("b."), count("c."), count("d."), count("e.")], [400, 200, 1, 0, 3]);

    // 40 ports with 2,000 endpoints each do not fit. A small Service keeps its two, and all ports get as many.
    let endpoints = |from: u32, count: u32| -> Vec<Value> {
        let of = |n: u32| json!({"addresses": [format!("10.1.{}.{}", n / 250, n % 250 + 1)], "nodeName": "node-a"});
        (from..from + count).map(of).collect()
    };
    let slice = |name: &str, count: u32| {
        json!({"kind": "EndpointSlice", "addressType": "IPv4", "ports": ports(40),
        "metadata": {"name": format!("{name}-1"), "labels": {"kubernetes.io/service-name": name}}, "endpoints": endpoints(0, count)})
    };
    let mut index = index_in(
        None,
        [
            json!({"kind": "Service", "metadata": {"name": "large"}, "spec": {"clusterIPs": ["10.96.0.1"], "ports": ports(40)}}),
            json!({"kind": "Service", "metadata": {"name": "small"}, "spec": {"clusterIPs": ["10.96.0.2"], "ports": ports(1)}}),
            slice("large", 2000),
            slice("small", 2),
        ],
    );
    let mut translation = translate(&index, &settings, &circumstances, &mut Memory::default());
    let sizes = |translation: &Translation| translation.vips().map(|vip| vip.endpoints.len()).collect::<BTreeSet<_>>();
    assert_eq!(sizes(&translation), [2, (49_152 - 2) / 40].into());
    let reasons: Vec<&str> = translation.notices.iter().map(|notice| &*notice.reason).collect();
    assert_eq!(reasons, ["TooManyEndpoints"]);
    assert_eq!(translation.service_faults().len(), 1);
    let (refused, 0) = translation.refused_objects() else { panic!("too many") };
    assert_eq!((refused[0].object.as_str(), refused[0].reason.as_str()), ("Service shop/large", "TooManyEndpoints"));
    index.apply(object(slice("large", 10)));
    translation.follow(&index, &[Name::new("shop", "large")].into());
    assert!(translation.outgrew(), "all fit again");
}
