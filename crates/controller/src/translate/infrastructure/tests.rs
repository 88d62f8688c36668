//! Tests with an index that plays the API server: what is written comes back as the watch would bring it.

use serde_json::{Value, json};

use super::*;
use crate::objects::Condition;
use crate::tests::{index, object, yaml};
use crate::translate::{Desired, Memory, Translation, translate};

const OBJECTS: &str = "
- {kind: GatewayClass, metadata: {name: steelyard}, spec: {controllerName: steelyard.io/gateway-controller}}
- {kind: GatewayClass, metadata: {name: other}, spec: {controllerName: example.com/other}}
- kind: Service
  metadata: {name: edge, namespace: steelyard}
  spec:
    type: LoadBalancer
    loadBalancerClass: example.com/internal
    loadBalancerSourceRanges: [192.0.2.0/24]
    externalTrafficPolicy: Local
    ports: [{port: 80}]
  status: {loadBalancer: {ingress: [{ip: 198.51.100.7}]}}
- kind: EndpointSlice
  metadata: {name: edge-1, namespace: steelyard, labels: {kubernetes.io/service-name: edge}}
  addressType: IPv4
  ports: [{port: 80}]
  endpoints:
    - {addresses: [10.0.0.2], nodeName: n1, conditions: {ready: false, serving: true, terminating: true}}
    - {addresses: [10.0.0.1], nodeName: n0}
    - {addresses: [10.0.0.3], nodeName: n0, conditions: {ready: false}}
";

const GATEWAY: &str = "
kind: Gateway
metadata: {name: front, uid: gateway-uid}
spec:
  gatewayClassName: steelyard
  infrastructure:
    labels: {team: web, gateway.networking.k8s.io/gateway-name: stolen}
    annotations: {example.com/scheme: internal, steelyard.io/applied: stolen}
  listeners:
    - {name: web, port: 80, protocol: HTTP}
    - {name: b, port: 80, protocol: HTTP, hostname: b.example.com}
    - {name: odd, port: 9, protocol: example.com/odd}
";

/// The name of the Service, and of its slice.
const NAMES: [(Kind, &str); 2] = [(Kind::Service, "front-steelyard"), (Kind::Slice, "front-steelyard-ipv4")];

/// A controller and the objects of its cluster.
struct Played {
    settings: Settings,
    index: Index,
    circumstances: Circumstances,
    /// The version of the last write.
    version: u64,
}

impl Played {
    fn begin() -> Self {
        let settings = Settings { publish_service: Some("steelyard/edge".parse().unwrap()), ..Settings::default() };
        let mut objects = yaml(OBJECTS).as_array().unwrap().clone();
        objects.push(yaml(GATEWAY));
        let circumstances = Circumstances { allots: true, ..Circumstances::default() };
        Self { settings, index: index(objects), circumstances, version: 100 }
    }

    fn translate(&self) -> Translation {
        translate(&self.index, &self.settings, &self.circumstances, &mut Memory::default())
    }

    /// The writes that are due.
    fn due(&self) -> Vec<((Kind, Name), Making)> {
        let infrastructure = self.translate().infrastructure;
        let write = |about: (Kind, Name)| {
            let making = infrastructure.write(&self.index, &self.settings, &about)?;
            Some((about, making))
        };
        infrastructure.all().into_iter().filter_map(write).collect()
    }

    /// Carries out the writes that are due, and checks which objects they are about. After that nothing is due.
    #[track_caller]
    fn write(&mut self, expect: &[(Kind, &str)]) -> Vec<Making> {
        let due = self.due();
        let found: Vec<(Kind, &str)> = due.iter().map(|((kind, name), _)| (*kind, &*name.name)).collect();
        assert_eq!(found, expect);
        for ((kind, name), making) in &due {
            match making {
                Making::Apply(written) => {
                    let before = self.index.made.get(&(*kind, name.clone()));
                    let before = before.map_or(NO_VERSION, |before| &before.meta.resource_version);
                    assert_eq!(written["metadata"]["resourceVersion"], before);
                    self.version += 1;
                    let mut written = written.clone();
                    written["metadata"]["resourceVersion"] = self.version.to_string().into();
                    self.index.apply(object(written));
                }
                Making::Delete(_) => self.index.remove(*kind, name),
            }
        }
        assert_eq!(self.due(), [], "what was written is written again");
        due.into_iter().map(|(_, making)| making).collect()
    }

    fn gateway(&mut self, change: impl FnOnce(&mut Value)) {
        let mut gateway = yaml(GATEWAY);
        self.version += 1;
        gateway["metadata"]["generation"] = self.version.into();
        change(&mut gateway);
        self.index.apply(object(gateway));
    }

    /// The addresses of the Gateway, and its condition about the Service, as `reason: message`.
    fn status(&self) -> (Vec<String>, Option<String>) {
        let translation = self.translate();
        let Desired::Gateway(status) = &translation.statuses[&(Kind::Gateway, Name::new("shop", "front"))] else {
            panic!("no status of the Gateway")
        };
        let condition = status.conditions.iter().find(|condition| condition.kind == "steelyard.io/ServiceReady");
        let told = |condition: &Condition| format!("{}: {}", condition.reason, condition.message);
        (status.addresses.iter().filter_map(|address| address.value.clone()).collect(), condition.map(told))
    }
}

#[track_caller]
fn check(making: &Making, expect: &str) {
    let Making::Apply(written) = making else { panic!("{making:?}") };
    let mut written = written.clone();
    let metadata = written["metadata"].as_object_mut().unwrap();
    metadata.remove("resourceVersion");
    let record = metadata["annotations"].as_object_mut().unwrap().remove(RECORD).unwrap();
    assert!(record.as_str().unwrap().starts_with("steelyard.io/gateway-controller steelyard "), "{record}");
    assert_eq!(written, yaml(expect));
}

#[test]
fn a_service_like_the_one_in_front() {
    let mut played = Played::begin();
    let written = played.write(&NAMES);
    check(
        &written[0],
        "
apiVersion: v1
kind: Service
metadata:
  name: front-steelyard
  namespace: shop
  labels:
    team: web
    gateway.networking.k8s.io/gateway-name: front
    gateway.networking.k8s.io/gateway-class-name: steelyard
  annotations: {example.com/scheme: internal}
  ownerReferences:
    - {apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, name: front, uid: gateway-uid, controller: true}
spec:
  type: LoadBalancer
  loadBalancerClass: example.com/internal
  loadBalancerSourceRanges: [192.0.2.0/24]
  externalTrafficPolicy: Local
  ports: [{name: http-80, port: 80, targetPort: 80, protocol: TCP}]
",
    );
    check(
        &written[1],
        "
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: front-steelyard-ipv4
  namespace: shop
  labels:
    team: web
    gateway.networking.k8s.io/gateway-name: front
    gateway.networking.k8s.io/gateway-class-name: steelyard
    kubernetes.io/service-name: front-steelyard
    endpointslice.kubernetes.io/managed-by: steelyard.io
  annotations: {example.com/scheme: internal}
  ownerReferences:
    - {apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, name: front, uid: gateway-uid, controller: true}
addressType: IPv4
ports: [{name: http-80, port: 80, protocol: TCP}]
endpoints:
  - {addresses: [10.0.0.1], nodeName: n0, conditions: {ready: true, serving: true, terminating: false}}
  - {addresses: [10.0.0.2], nodeName: n1, conditions: {ready: false, serving: true, terminating: true}}
",
    );
}

#[test]
fn only_what_changes_is_written_and_what_nobody_asks_for_is_deleted() {
    let mut played = Played::begin();
    played.write(&NAMES);
    played.gateway(|gateway| gateway["spec"]["infrastructure"]["labels"] = json!({"team": "shop"}));
    played.write(&NAMES);
    // A deleted object comes back.
    played.index.remove(Kind::Slice, &Name::new("shop", "front-steelyard-ipv4"));
    played.write(&NAMES[1..]);

    // If nothing can be served at present, nothing changes.
    played.gateway(|gateway| gateway["spec"]["listeners"] = json!([]));
    played.write(&[]);
    played.gateway(|gateway| gateway["spec"]["infrastructure"] = json!({"labels": {}}));
    assert!(matches!(played.write(&[NAMES[0], NAMES[1]])[..], [Making::Delete(_), Making::Delete(_)]));
    assert_eq!(played.status(), (vec!["198.51.100.7".to_owned()], None));
}

#[test]
fn endpoints_follow_the_pods() {
    let mut played = Played::begin();
    played.write(&NAMES);
    let mut infrastructure = played.translate().infrastructure;
    let front: BTreeSet<Name> = [Name::new("steelyard", "edge")].into();
    assert_eq!(infrastructure.follow(&played.index, &front), []);
    let slice = (Kind::Slice, Name::new("shop", "front-steelyard-ipv4"));
    // Even if all pods are gone, the slice stays.
    for endpoints in ["[]", "[{addresses: [10.0.0.4]}]"] {
        played.index.apply(object(yaml(&format!(
            "{{kind: EndpointSlice, metadata: {{name: edge-1, namespace: steelyard, labels: {{kubernetes.io/service-name: edge}}}}, \
               addressType: IPv4, ports: [{{port: 80}}], endpoints: {endpoints}}}"
        ))));
        let due = infrastructure.follow(&played.index, &front);
        assert!(due.contains(&slice), "{due:?}");
        let Some(Making::Apply(written)) = infrastructure.write(&played.index, &played.settings, &slice) else {
            panic!("the slice is not written")
        };
        assert_eq!(written["endpoints"].as_array().unwrap().is_empty(), endpoints == "[]");
    }
}

#[test]
fn the_address_is_that_of_the_own_service() {
    let mut played = Played::begin();
    assert_eq!(
        played.status(),
        (Vec::new(), None),
        "clients must not be sent to an address that they were not meant for"
    );
    let written = played.write(&NAMES);
    assert_eq!(played.status(), (Vec::new(), None));
    let Making::Apply(mut service) = written[0].clone() else { panic!("{written:?}") };
    service["status"] = json!({"loadBalancer": {"ingress": [{"hostname": "lb.example.com"}]}});
    played.index.apply(object(service));
    assert_eq!(played.status(), (vec!["lb.example.com".to_owned()], None));
    played.write(&[]);
    // A later write fails: the address is still true.
    played.circumstances.unmade.insert((Kind::Service, Name::new("shop", "front-steelyard")), "forbidden".to_owned());
    let told = "NotWritten: cannot write the Service shop/front-steelyard: forbidden".to_owned();
    assert_eq!(played.status(), (vec!["lb.example.com".to_owned()], Some(told)));
}

#[test]
fn what_belongs_to_others_is_not_touched() {
    let service = |metadata: Value| {
        let mut service = json!({"kind": "Service", "metadata": metadata, "spec": {"ports": [{"port": 80}]}});
        service["metadata"]["name"] = "front-steelyard".into();
        object(service)
    };
    let owner = |uid: &str| json!([{"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway", "name": "front", "uid": uid}]);
    let record = |controller: &str| json!({RECORD: format!("{controller} steelyard 0123456789abcdef")});
    let ours = "steelyard.io/gateway-controller";
    let told = "NameTaken: the Service shop/front-steelyard exists, but not for this Gateway: delete it, or rename the Gateway";
    for foreign in [
        json!({}),
        json!({"annotations": record(ours)}),
        json!({"annotations": record(ours), "ownerReferences": owner("older-uid")}),
        json!({"annotations": record("example.com/other"), "ownerReferences": owner("gateway-uid")}),
    ] {
        let mut played = Played::begin();
        played.index.apply(service(foreign));
        played.write(&[]);
        assert_eq!(played.status(), (vec!["198.51.100.7".to_owned()], Some(told.to_owned())));
        played.gateway(|gateway| gateway["spec"]["infrastructure"] = Value::Null);
        played.write(&[]);
        played.gateway(|_| ());
        // Once it is gone, the name is free.
        played.index.remove(Kind::Service, &Name::new("shop", "front-steelyard"));
        played.write(&NAMES);
    }
}

#[test]
fn no_route_leads_back() {
    let mut played = Played::begin();
    played.index.apply(object(yaml(
        "{kind: HTTPRoute, metadata: {name: round}, spec: {parentRefs: [{name: front}], \
          rules: [{backendRefs: [{name: front-steelyard, port: 80}]}]}}",
    )));
    played.write(&NAMES);
    let translation = played.translate();
    let about = (Kind::Route(crate::index::RouteKind::Http), Name::new("shop", "round"));
    let Desired::Route(parents) = &translation.statuses[&about] else { panic!("no status of the route") };
    let resolved = parents[0].conditions.iter().find(|condition| condition.kind == "ResolvedRefs").unwrap();
    assert!(!resolved.is_true() && resolved.message.contains("come back"), "{resolved:?}");
}

#[test]
fn a_gateway_that_moves_to_another_class_leaves_nothing_behind() {
    let mut played = Played::begin();
    played.write(&NAMES);
    // The class is gone, perhaps to be installed again.
    played.index.remove(Kind::GatewayClass, &Name::new("", "steelyard"));
    played.write(&[]);
    // The Gateway is gone: the cluster removes what it owned.
    let mut without = Played::begin();
    without.write(&NAMES);
    without.index.remove(Kind::Gateway, &Name::new("shop", "front"));
    without.write(&[]);

    played.gateway(|gateway| gateway["spec"]["gatewayClassName"] = "other".into());
    // Another controller of this name serves only its own class.
    played.settings.gateway_class = Some("elsewhere".to_owned());
    played.write(&[]);
    played.settings.gateway_class = Some("steelyard".to_owned());
    assert!(matches!(played.write(&NAMES)[..], [Making::Delete(_), Making::Delete(_)]));
}

#[test]
fn addresses_of_a_pool_are_endpoints_inside_of_the_cluster() {
    let mut played = Played::begin();
    played.settings.publish_service = None;
    played.settings.listen = [10, 9, 0, 1].into();
    played.settings.gateway_pools = vec!["10.9.1.0/24".parse().unwrap()];
    let written = played.write(&NAMES);
    let (Making::Apply(service), Making::Apply(slice)) = (&written[0], &written[1]) else { panic!("{written:?}") };
    assert_eq!(service["spec"]["type"], "ClusterIP");
    assert_eq!(slice["endpoints"][0]["addresses"], json!(["10.9.1.1"]));
    assert_eq!(played.status(), (vec!["10.9.1.1".to_owned()], None));

    let mut named = Played::begin();
    named.settings.publish_service = None;
    named.settings.publish = vec!["lb.example.com".parse().unwrap()];
    named.write(&[]);
    assert!(named.status().1.is_some_and(|told| told.starts_with("NoAddress: ")));
}

#[test]
fn a_class_whose_parameters_are_lost_leaves_the_service_as_it_is() {
    let mut played = Played::begin();
    played.settings.publish_service = None;
    played.index.apply(object(yaml(
        "{kind: GatewayClass, metadata: {name: steelyard, generation: 2}, spec: {controllerName: steelyard.io/gateway-controller, \
          parametersRef: {group: steelyard.io, kind: GatewayParameters, namespace: steelyard, name: edge}}}",
    )));
    played.index.apply(object(yaml(
        "{kind: GatewayParameters, metadata: {name: edge, namespace: steelyard}, \
          spec: {publish: {service: {namespace: steelyard, name: edge}}}}",
    )));
    let written = played.write(&NAMES);
    let Making::Apply(service) = &written[0] else { panic!("{written:?}") };
    assert_eq!(service["spec"]["loadBalancerClass"], "example.com/internal");
    // This translation remembers nothing, as after a start.
    played.index.remove(Kind::Parameters, &Name::new("steelyard", "edge"));
    played.settings.publish = vec!["203.0.113.1".parse().unwrap()];
    played.write(&[]);
}

#[test]
fn a_thousand_gateways() {
    let mut played = Played::begin();
    for number in 0..1000 {
        played.gateway(|gateway| {
            gateway["metadata"]["name"] = format!("g{number}").into();
            gateway["metadata"]["uid"] = format!("u{number}").into();
        });
    }
    let due = played.due();
    assert_eq!(due.len(), 2 * 1001);
    for (_, making) in due {
        let Making::Apply(mut written) = making else { panic!("{making:?}") };
        written["metadata"]["resourceVersion"] = "200".into();
        played.index.apply(object(written));
    }
    assert_eq!(played.due(), []);
    let before = played.translate().infrastructure;
    assert_eq!(
        played.translate().infrastructure.changed_since(&before),
        [],
        "each translation would check all of them"
    );
}
