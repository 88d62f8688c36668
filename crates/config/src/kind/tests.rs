//! The kind as a whole: its definition is the committed one, and what the definition allows can be read.

use serde_json::{Map, Value, json};

use super::shape::{self, Group, Shape};
use super::{TrafficPolicy, definition};

/// A value of a shape.
fn example(shape: &Shape) -> Value {
    match shape {
        Shape::Text(form) => json!(form.example),
        Shape::Integer(min, _) => json!(min),
        Shape::Boolean | Shape::True => json!(true),
        Shape::Words(words) => json!(words[0].text),
        Shape::List(item) => json!([example(item)]),
        Shape::Map(item) => json!({"x-example": example(item)}),
        Shape::Secret => json!({"name": "a"}),
        Shape::Service => json!({"name": "a", "port": 80}),
        Shape::Group(group) => Value::Object(of_group(group)),
    }
}

/// As many fields as can be there at once.
fn of_group(group: &Group) -> Map<String, Value> {
    let first = group.one_of.first();
    let is_chosen = |name: &String| !group.one_of.contains(name) || Some(name) == first;
    let fields = group.fields.iter().filter(|field| is_chosen(&field.name));
    fields.map(|field| (field.name.clone(), example(&field.shape))).collect()
}

fn read(route: Value, cluster: Value) -> Result<TrafficPolicy, Vec<String>> {
    let mut spec = Map::new();
    spec.extend([("route", route), ("cluster", cluster)].map(|(name, part)| (name.to_owned(), part)));
    spec.retain(|_, part| !part.is_null());
    TrafficPolicy::read(&spec)
}

#[test]
fn the_definition_is_the_committed_one() {
    let path =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/steelyard/crds/trafficpolicies.yaml");
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    let hint = "cargo run -p config --example trafficpolicy > deploy/steelyard/crds/trafficpolicies.yaml";
    assert!(committed == definition(), "{} is not what the tables of keys say: {hint}", path.display());
}

/// A new key of the file appears here. Whoever adds it decides whether it belongs to the kind: see `LEFT_OUT` and `apply`.
#[test]
fn the_fields_of_the_kind() {
    let names = |group: &Group| group.fields.iter().map(|field| field.name.clone()).collect::<Vec<_>>().join(" ");
    assert_eq!(
        names(&shape::route()),
        "respond timeout retry requestHeaders responseHeaders allResponseHeaders rewriteResponses allow deny auth externalAuth satisfy rateLimit concurrencyLimit responseBandwidth globalRateLimit cors compress maxBody buffer decompress via maintenance accessLog tracing errorPages"
    );
    assert_eq!(
        names(&shape::cluster()),
        "balance sticky healthCheck onUnhealthy outlier panicThreshold zoneThreshold slowStart limits connectTimeout responseTimeout \
         idleTimeout ping idleConnections"
    );
    assert_eq!(names(&shape::clients()), "requests requestBandwidth responseBandwidth");
}

#[test]
fn every_field_is_read() {
    for group in [shape::route(), shape::cluster()] {
        let is_route = group.fields.iter().any(|field| field.name == "respond");
        for field in &group.fields {
            let mut value = example(&field.shape);
            if field.name == "healthCheck" {
                // Only the probe that asks by HTTP has a status.
                value = json!({"http": "/healthz", "expect": ["200-299", "304"], "interval": "5s"});
            }
            if field.name == "errorPages" {
                value[0]["status"] = json!(["404", 500, "502-504"]);
            }
            if field.name == "externalAuth" {
                // Beside others, these have no effect.
                value.as_object_mut().unwrap().remove("cache");
                value["http"].as_object_mut().unwrap().remove("prefix");
                value["http"]["method"] = json!("POST");
            }
            if field.name == "rateLimit" {
                value["by"] = json!({"clientIp": true});
                // The same rate twice is refused.
                value["also"][0]["requests"] = json!(2);
            }
            if ["requestHeaders", "responseHeaders", "allResponseHeaders"].contains(&&*field.name) {
                value = json!({"set": {"x-a": "1"}, "add": {"x-b": "2"}, "remove": ["x-c"]});
            }
            let part = json!({ &field.name: value });
            let outcome = if is_route { read(part.clone(), Value::Null) } else { read(Value::Null, part.clone()) };
            let policy = outcome.unwrap_or_else(|wrong| panic!("{part}: {wrong:?}"));
            let place = format!("{}.{}", if is_route { "route" } else { "cluster" }, field.name);
            assert_eq!(policy.fields().collect::<Vec<_>>(), [place]);
        }
    }
}

#[test]
fn limits_on_clients_are_those_of_the_file() {
    let spec = |clients: Value| Map::from_iter([("clients".to_owned(), clients)]);
    let policy = TrafficPolicy::read(&spec(json!({
        "requests": {"requests": 20, "per": "1s", "headers": ["ratelimit"]},
        "responseBandwidth": {"bytes": "2MiB", "burst": "8MiB"},
    })));
    let policy = policy.unwrap();
    assert_eq!(policy.fields().collect::<Vec<_>>(), ["clients.requests", "clients.responseBandwidth"]);
    assert!(!policy.has_route() && !policy.has_cluster());
    let older = TrafficPolicy::read(&spec(json!({"responseBandwidth": {"bytes": "1MiB"}}))).unwrap();
    let mut limits = model::ClientLimits { connections_max: Some(7), ..model::ClientLimits::default() };
    super::apply_to_clients([&older, &policy].into_iter(), &mut limits);
    assert_eq!((limits.connections_max, limits.requests.map(|rate| rate.requests)), (Some(7), Some(20)));
    assert_eq!(limits.response_bandwidth.map(|bandwidth| bandwidth.bytes), Some(1 << 20));
    assert_eq!(limits.request_bandwidth, None);
    let check = |clients: Value, expect: &str| {
        assert_eq!(TrafficPolicy::read(&spec(clients)).unwrap_err().join("; "), expect);
    };
    check(
        json!({"requestBandwidth": {"bytes": "10KiB", "per": "11s"}}),
        "spec.clients: a bandwidth of 930B in a second is less than 1KiB; raise `bytes`, or shorten `per`",
    );
    check(
        json!({"requestBandwidth": {"per": "1s"}}),
        "spec.clients: a bandwidth needs `bytes`; it must be a size such as 64KiB",
    );
    check(json!({"connections": 1}), "spec.clients.connections: this version of Steelyard does not know this field");
}

#[test]
fn words_stand_in_fields_of_their_own() {
    let policy = read(
        json!({"retry": {"disabled": true}}),
        json!({"balance": {"algorithm": "peak_ewma"}, "outlier": {"disabled": true}}),
    );
    let policy = policy.unwrap();
    assert_eq!(policy.route.policy.retry, model::Retry::off());
    assert_eq!(policy.cluster.values.algorithm, model::Algorithm::PeakEwma);
    assert_eq!(policy.cluster.values.outlier, None);
    let policy = read(Value::Null, json!({"balance": {"maglev": {"key": {"header": "x-user"}}}})).unwrap();
    assert_eq!(policy.cluster.values.algorithm, model::Algorithm::Maglev(model::HashKey::Header("x-user".into())));
}

#[test]
fn faults_have_a_place() {
    let check = |route: Value, cluster: Value, expect: &str| {
        let wrong = read(route.clone(), cluster.clone()).err().unwrap_or_default().join("\n");
        assert_eq!(wrong, expect, "{route} {cluster}");
    };
    let none = Value::Null;
    check(json!({"newer": 1}), none.clone(), "spec.route.newer: this version of Steelyard does not know this field");
    check(
        json!({"retry": {"disabled": true, "attempts": 2}}),
        none.clone(),
        "spec.route.retry: disabled excludes all other fields",
    );
    check(json!({"allow": "10.0.0.0/8"}), none.clone(), "spec.route.allow: must be a list");
    check(
        json!({"allow": ["10.0.0.1/8"]}),
        none.clone(),
        "spec.route: an entry of `allow`: \"10.0.0.1/8\" has bits behind its prefix; write 10.0.0.0/8 for the network, or 10.0.0.1 for \
         the address",
    );
    check(
        json!({"allow": ["10.0.0.0/8"], "deny": ["10.0.0.0/8"]}),
        none.clone(),
        "spec.route: 10.0.0.0/8 is in `allow` and in `deny`",
    );
    check(
        json!({"timeout": "1s", "retry": {"perTryTimeout": "2s"}}),
        none.clone(),
        "spec.route: `perTryTimeout` is not shorter than the route's `timeout` (1s); shorten it: there would be no time for another try",
    );
    check(
        none.clone(),
        json!({"limits": {"pending": -1}}),
        "spec.cluster: `pending`: \"-1\" is not a whole number from 0 to 10000000",
    );
    check(
        none,
        json!({"sticky": {"cookie": "id", "secret": "x"}}),
        "spec.cluster.sticky.secret: this version of Steelyard does not know this field",
    );
}

#[test]
fn credentials_and_services_are_references() {
    let policy = read(
        json!({
            "auth": {"basic": {"secretRef": {"name": "staff"}, "userHeader": "x-user"}},
            "externalAuth": {"backendRef": {"name": "asked", "port": 8080}, "grpc": {}, "timeout": "1s"},
        }),
        Value::Null,
    )
    .unwrap();
    let Some(Some(auth)) = policy.auth() else { panic!("no auth") };
    assert_eq!((auth.kind(), auth.file()), ("basic", Some(std::path::Path::new("staff"))));
    let asked = super::ServiceRef { name: "asked".into(), namespace: None, port: 8080, is_grpc: true };
    assert_eq!(policy.external_auth(), Some(Some(&asked)));
    let counted = json!({"backendRef": {"name": "count", "namespace": "edge", "port": 8081}, "domain": "shop", "failOpen": false,
        "descriptors": [{"entries": [{"clientIp": true}]}]});
    let counter = super::ServiceRef { name: "count".into(), namespace: Some("edge".into()), port: 8081, is_grpc: true };
    let policy = read(json!({"globalRateLimit": counted}), Value::Null).unwrap();
    assert_eq!(policy.global_rate_limit(), Some(Some(&counter)));
    let off = json!({"disabled": true});
    let off = json!({"auth": off, "externalAuth": off, "globalRateLimit": off});
    let off = read(off, Value::Null).unwrap();
    assert_eq!((off.auth(), off.external_auth(), off.global_rate_limit()), (Some(None), Some(None), Some(None)));
    let none = read(json!({"timeout": "1s"}), Value::Null).unwrap();
    assert_eq!((none.auth(), none.external_auth()), (None, None));
    let check = |route: Value, expect: &str| {
        let wrong = read(route.clone(), Value::Null).err().unwrap_or_default().join("\n");
        assert_eq!(wrong, expect, "{route}");
    };
    check(
        json!({"auth": {"basic": {"secretRef": {"name": "staff"}, "users": {"joe": "x"}}}}),
        "spec.route.auth.basic.users: this version of Steelyard does not know this field",
    );
    check(
        json!({"auth": {"basic": {"secretRef": {"name": "a/b", "namespace": "other"}}}}),
        "spec.route.auth.basic.secretRef.namespace: this version of Steelyard does not know this field\n\
         spec.route.auth.basic.secretRef.name: is missing, or has a value that is not possible",
    );
    check(
        json!({"externalAuth": {"backendRef": {"name": "asked", "namespace": 7, "port": 80}, "http": {}}}),
        "spec.route.externalAuth.backendRef.namespace: is missing, or has a value that is not possible",
    );
    check(
        json!({"externalAuth": {"backendRef": {"name": "asked", "port": 0}, "http": {}}}),
        "spec.route.externalAuth.backendRef.port: is missing, or has a value that is not possible",
    );
}

/// YAML 1.1 takes these for other things than text, even as keys.
#[test]
fn no_field_is_a_word_of_yaml() {
    fn check(group: &Group) {
        for field in group.fields.iter().chain(group.word.as_deref()) {
            let words = ["on", "off", "yes", "no", "y", "n", "true", "false", "null"];
            assert!(!words.contains(&field.name.to_lowercase().as_str()), "{}", field.name);
            match &field.shape {
                Shape::Group(inner) => check(inner),
                Shape::List(item) | Shape::Map(item) => {
                    if let Shape::Group(inner) = &**item {
                        check(inner);
                    }
                }
                _ => {}
            }
        }
    }
    check(&shape::route());
    check(&shape::cluster());
    check(&shape::clients());
}

/// What the file refuses beside something else, the kind refuses too.
#[test]
fn what_has_no_effect_is_refused() {
    let check = |route: Value, expect: &str| {
        let wrong = read(route, Value::Null).unwrap_err().join("; ");
        assert!(wrong.contains(expect), "{wrong}");
    };
    let respond = |more: Value| {
        let mut route = more;
        route["respond"] = json!({"status": 200});
        route
    };
    check(respond(json!({"timeout": "5s"})), "spec.route: `timeout` has no effect beside `respond`");
    check(respond(json!({"retry": {"attempts": 2}})), "`retry` has no effect beside `respond`");
    let set = json!({"set": {"x-a": "b"}});
    check(respond(json!({"requestHeaders": set})), "`requestHeaders` has no effect beside `respond`");
    check(respond(json!({"responseHeaders": set})), "`responseHeaders` has no effect beside `respond`");
    // Whether requests have ids is up to the listener, which the policy does not know.
    read(json!({"requestHeaders": {"set": {"x-a": "${request_id}"}}}), Value::Null).unwrap();
}
