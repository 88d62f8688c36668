//! TrafficPolicies: what the API server takes of them, what they do to requests, and what each is told.

use serde_json::{Value, json};
use testkit::strict::{Response, ResponseTo};
use testkit::{client, until};

use crate::edge::{Edge, answer, ask, fails, gateway, header, holds, manifest, origin, within, within_alone};
use crate::harness::{GATEWAY, PATIENCE, condition, documents};
use crate::support::{Steelyard, get};

const DEFINITION: &str = "trafficpolicies.steelyard.io";
const GROUP: &str = "gateway.networking.k8s.io";

/// Of a Gateway and of a route, and what became of each while the other changes.
#[test]
fn policies_of_gateways_and_routes() {
    within("policies_of_gateways_and_routes", |edge| {
        let web = origin(1);
        edge.web(&[web.address]);
        edge.policy("all", &[("Gateway", "edge")], json!({"route": {"responseHeaders": {"set": {"x-edge": "one"}}}}));
        let controller = edge.controller();
        edge.until_accepted("all");
        let seen = ask(gateway(80), "a", "/");
        assert_eq!((seen.status, header(&seen, "x-edge")), (200, "one".into()));

        // The route is more specific, field by field.
        let own = json!({"route": {"responseHeaders": {"set": {"x-edge": "two"}}, "allow": ["10.0.0.0/8"]}});
        edge.policy("own", &[("HTTPRoute", "web")], own);
        until_seen("two");
        edge.until_accepted("own");
        assert_eq!(ask(gateway(80), "a", "/").status, 200);
        edge.policy("own", &[("HTTPRoute", "web")], json!({"route": {"allow": ["192.0.2.0/24"]}}));
        until_status(403);
        assert!(controller.metric("steelyard_refused_total", &[("reason", "client_denied")]) >= 1.0);
        edge.policy("own", &[("HTTPRoute", "web")], json!({"route": {"rateLimit": {"requests": 1, "per": "1h"}}}));
        until_status(429);

        // What is gone applies no longer.
        edge.cluster.delete("TrafficPolicy", "own");
        until_seen("one");
        edge.policy("all", &[("Gateway", "edge")], json!({"route": {"maintenance": true}}));
        until_status(503);
        edge.policy(
            "all",
            &[("Gateway", "edge")],
            json!({"route": {"respond": {"status": 418, "body": "short and stout"}}}),
        );
        until_status(418);
        assert_eq!(ask(gateway(80), "a", "/").body, b"short and stout");
        edge.cluster.delete("TrafficPolicy", "all");
        until_status(200);
        assert_eq!(header(&ask(gateway(80), "a", "/"), "x-edge"), "");
    });
}

/// The fields of clusters, from a Service and from its route.
#[test]
fn policies_of_services() {
    within("policies_of_services", |edge| {
        let web = [1, 2].map(origin);
        edge.web(&[web[0].address, web[1].address]);
        edge.route(
            "HTTPRoute",
            "other",
            "hostnames: [other.example.com], rules: [{backendRefs: [{name: web, port: 80}]}]",
        );
        edge.policy(
            "web",
            &[("Service", "web")],
            json!({"cluster": {"sticky": {"cookie": "at"}, "limits": {"connections": 50}}}),
        );
        let controller = edge.controller();
        edge.until_accepted("web");
        let names = |status: &Value| -> Vec<String> {
            let clusters = status["clusters"].as_array().into_iter().flatten();
            let names = clusters.filter_map(|cluster| cluster["name"].as_str()).map(str::to_owned);
            names.filter(|name| name.starts_with("web.")).collect()
        };
        let plain = format!("web.{}:80", edge.name);
        assert_eq!(names(&controller.status()), [plain.as_str()]);
        assert!(header(&ask(gateway(80), "a", "/"), "set-cookie").starts_with("at="));

        // A route that wants something else of the same Service has a cluster of its own.
        edge.policy("other", &[("HTTPRoute", "other")], json!({"cluster": {"balance": {"algorithm": "random"}}}));
        edge.until_accepted("other");
        assert!(header(&ask(gateway(80), "other.example.com", "/"), "set-cookie").starts_with("at="));
        let mut found = names(&controller.status());
        found.sort();
        assert_eq!(found, [plain.clone(), format!("{plain}+policy={}/other", edge.name)]);

        // Endpoints follow in both.
        edge.endpoints("web", &[web[0].address]);
        let are_one = || {
            let status = controller.status();
            let clusters = status["clusters"].as_array()?.iter();
            let mut of_web =
                clusters.filter(|cluster| cluster["name"].as_str().is_some_and(|name| name.starts_with("web.")));
            of_web.all(|cluster| cluster["endpoints"].as_array().is_some_and(|list| list.len() == 1)).then_some(())
        };
        assert!(until(PATIENCE, are_one).is_some(), "{:#}", controller.status()["clusters"]);
    });
}

/// A Service that only an Ingress leads to belongs to no Gateway.
#[test]
fn policies_of_services_of_ingresses() {
    within("policies_of_services_of_ingresses", |edge| {
        edge.service("web", &[origin(1).address]);
        let path = "{path: /, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}";
        edge.cluster.apply(&format!(
            "{{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {{name: web}}, \
             spec: {{ingressClassName: {}, rules: [{{http: {{paths: [{path}]}}}}]}}}}",
            edge.name
        ));
        edge.policy("web", &[("Service", "web")], json!({"cluster": {"sticky": {"cookie": "at", "ttl": "500ms"}}}));
        let _controller = edge.controller();
        let refused = edge.until_refused("web", "Invalid");
        assert_eq!(refused["ancestorRef"]["kind"], "Service");
        edge.policy("web", &[("Service", "web")], json!({"cluster": {"sticky": {"cookie": "at", "ttl": "5s"}}}));
        edge.until_accepted("web");
    });
}

/// Users in a Secret, which may come later, change and go. Without them, the route is closed.
#[test]
fn policies_with_credentials() {
    within("policies_with_credentials", |edge| {
        let web = origin(1);
        edge.web(&[web.address]);
        let basic = json!({"route": {"auth": {"basic": {"secretRef": {"name": "staff"}, "userHeader": "x-user"}}}});
        edge.policy("staff", &[("HTTPRoute", "web")], basic);
        let _controller = edge.controller();
        until_status(500);
        let unresolved = edge.until_unresolved("staff", "SecretNotFound");
        assert!(unresolved.contains(&format!("there is no Secret {}/staff of the type", edge.name)), "{unresolved}");
        // A Secret of another type has the same name, and is not read.
        edge.credentials("staff", "Opaque", json!({"users": USER}));
        edge.credentials("other", "steelyard.io/credentials", json!({"users": USER}));
        assert_eq!(ask(gateway(80), "a", "/").status, 500);
        edge.cluster.delete("Secret", "staff");
        edge.credentials("staff", "steelyard.io/credentials", json!({"users": USER}));
        until_status(401);
        edge.until_accepted("staff");
        let with = |login: &str| ask_with(&format!("Authorization: Basic {login}\r\n")).status;
        // "joe:secret" and "joe:wrong".
        assert_eq!((with("am9lOnNlY3JldA=="), with("am9lOndyb25n")), (200, 401));

        // A line that is wrong closes the route, and no message has a part of it.
        edge.credentials("staff", "steelyard.io/credentials", json!({"users": "joe:hunter2"}));
        until_status(500);
        let unresolved = edge.until_unresolved("staff", "InvalidSecret");
        assert!(unresolved.contains("line 1 of users") && !unresolved.contains("hunter2"), "{unresolved}");
        edge.cluster.until_event_with("TrafficPolicy", "staff", "InvalidSecret", "line 1 of users");

        let key = json!({"route": {"auth": {"apiKey": {"secretRef": {"name": "staff"}, "header": ["x-api-key"]}}}});
        edge.policy("staff", &[("HTTPRoute", "web")], key);
        edge.credentials("staff", "steelyard.io/credentials", json!({"users": USER, "keys": "shop:abc\nbank:def"}));
        until_status(401);
        edge.until_accepted("staff");
        assert_eq!(ask_with("X-Api-Key: def\r\n").status, 200);
        // A key that was removed opens nothing, and a Secret that was deleted closes the route.
        edge.credentials("staff", "steelyard.io/credentials", json!({"keys": "shop:abc"}));
        let is_refused = || (ask_with("X-Api-Key: def\r\n").status == 401).then_some(());
        assert!(until(PATIENCE, is_refused).is_some(), "the key that was removed is accepted");
        edge.cluster.delete("Secret", "staff");
        until_status(500);
        edge.policy("staff", &[("HTTPRoute", "web")], json!({"route": {"auth": {"disabled": true}}}));
        until_status(200);
    });
}

/// Services that are asked about requests.
#[test]
fn policies_with_services() {
    within("policies_with_services", |edge| {
        let (web, asked) = (origin(1), origin(2));
        edge.web(&[web.address]);
        let with = |name: &str, more: Value| {
            let mut service = json!({"backendRef": {"name": name, "port": 80}, "http": {"path": "/check"}, "responseHeaders": ["x-origin"]});
            service.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            json!({"route": {"externalAuth": service}})
        };
        edge.policy("asked", &[("HTTPRoute", "web")], with("asked", json!({})));
        let away = format!("{}-away", edge.name);
        edge.cluster.apply(&format!("{{apiVersion: v1, kind: Namespace, metadata: {{name: {away}}}}}"));
        let controller = edge.controller_with("one", &["--listen-address", GATEWAY, "--namespace", &away]);
        until_status(500);
        assert!(edge.until_unresolved("asked", "BackendNotFound").contains("there is no Service"));
        edge.service("asked", &[asked.address]);
        until_status(200);
        edge.until_accepted("asked");
        assert!(asked.requests() > 0, "the service is asked");
        let cluster = format!("asked.{}:80", edge.name);
        assert!(controller.metric("steelyard_cluster_requests_total", &[("cluster", &cluster)]) >= 1.0);
        // Nobody answers there.
        edge.endpoints("asked", &[]);
        until_status(503);
        edge.policy("asked", &[("HTTPRoute", "web")], with("asked", json!({"failOpen": true})));
        until_status(200);
        // The Service of another namespace needs a ReferenceGrant there.
        edge.cluster.apply(&format!(
            "{{apiVersion: v1, kind: Service, metadata: {{name: count, namespace: {away}}}, spec: {{clusterIP: None, ports: [{{port: 8081}}]}}}}"
        ));
        let count = |fail_open: bool| {
            json!({"route": {"globalRateLimit": {"backendRef": {"name": "count", "namespace": away, "port": 8081}, "domain": "shop",
                "failOpen": fail_open, "failureStatus": 429, "descriptors": [{"entries": [{"clientIp": true}, {"header": "x-tenant"}]}]}}})
        };
        edge.policy("asked", &[("HTTPRoute", "web")], count(false));
        until_status(500);
        assert!(edge.until_unresolved("asked", "RefNotPermitted").contains("no ReferenceGrant"));
        edge.cluster.apply(&format!(
            "{{apiVersion: gateway.networking.k8s.io/v1, kind: ReferenceGrant, metadata: {{name: count, namespace: {away}}}, \
             spec: {{from: [{{group: steelyard.io, kind: TrafficPolicy, namespace: {}}}], to: [{{group: \"\", kind: Service, name: count}}]}}}}",
            edge.name
        ));
        edge.until_accepted("asked");
        // A request without the header has no descriptor, so nobody is asked. The others get no answer.
        until_status(200);
        assert_eq!(ask_with("X-Tenant: a\r\n").status, 429);
        edge.policy("asked", &[("HTTPRoute", "web")], count(true));
        let passes = || (ask_with("X-Tenant: a\r\n").status == 200).then_some(());
        assert!(until(PATIENCE, passes).is_some(), "failOpen has no effect");
    });
}

/// Of listeners, of GRPCRoutes and of single rules.
#[test]
fn policies_of_parts() {
    within("policies_of_parts", |edge| {
        let web = origin(1);
        edge.gateway("{name: web, port: 80, protocol: HTTP}\n{name: inner, port: 81, protocol: HTTP}");
        edge.service("web", &[web.address]);
        edge.route(
            "HTTPRoute",
            "web",
            "rules: [{name: pay, matches: [{path: {value: /pay}}], backendRefs: [{name: web, port: 80}]}, {backendRefs: [{name: web, port: 80}]}]",
        );
        let section = |kind: &str, name: &str, section: &str| json!([{"group": GROUP, "kind": kind, "name": name, "sectionName": section}]);
        edge.policy_at("inner", section("Gateway", "edge", "inner"), json!({"route": {"allow": ["192.0.2.0/24"]}}));
        edge.policy_at("pay", section("HTTPRoute", "web", "pay"), json!({"route": {"maintenance": true}}));
        edge.policy_at("none", section("HTTPRoute", "web", "none"), json!({"route": {"maintenance": true}}));
        let _controller = edge.controller();
        edge.until_accepted("inner");
        edge.until_accepted("pay");
        assert_eq!(answer(gateway(80), "a", "/").0, 200);
        assert_eq!(answer(gateway(80), "a", "/pay").0, 503);
        assert_eq!(answer(gateway(81), "a", "/").0, 403);
        assert_eq!(edge.until_refused("none", "TargetNotFound")["ancestorRef"]["name"], "edge");
        // On all routes together.
        edge.policy("clients", &[("Gateway", "edge")], json!({"clients": {"requests": {"requests": 1, "per": "1h"}}}));
        edge.until_accepted("clients");
        until_status(429);
        assert_eq!(answer(gateway(80), "a", "/pay").0, 429);
    });
}

/// The older of two wins, and what cannot be applied closes its target.
#[test]
fn policies_that_conflict_and_fail() {
    within("policies_that_conflict_and_fail", |edge| {
        let web = origin(1);
        edge.web(&[web.address]);
        // Made in one second: the name decides.
        let set = |value: &str| json!({"route": {"responseHeaders": {"set": {"x-edge": value}}}});
        edge.policy("b", &[("HTTPRoute", "web")], set("b"));
        edge.policy("a", &[("HTTPRoute", "web")], set("a"));
        let age =
            |name: &str| edge.cluster.get("TrafficPolicy", name).unwrap()["metadata"]["creationTimestamp"].to_string();
        let (winner, loser) = if age("b") < age("a") { ("b", "a") } else { ("a", "b") };
        let _controller = edge.controller();
        edge.until_accepted(winner);
        let conflicted = edge.until_refused(loser, "Conflicted");
        let told = condition(&conflicted, "Conflicted").unwrap();
        assert_eq!((&told["status"], &told["reason"]), (&"True".into(), &"OlderPolicy".into()));
        let message = told["message"].as_str().unwrap();
        assert!(message.contains(&format!("route.responseHeaders ({}/{winner})", edge.name)), "{message}");
        until_seen(winner);
        edge.cluster.delete("TrafficPolicy", winner);
        edge.until_accepted(loser);
        until_seen(loser);

        // The API server takes each entry, and both together mean nothing.
        let both = json!({"route": {"allow": ["10.0.0.0/8"], "deny": ["10.0.0.0/8"]}});
        edge.policy("wrong", &[("HTTPRoute", "web")], both);
        until_status(500);
        let refused = edge.until_refused("wrong", "Invalid");
        let message = condition(&refused, "Accepted").unwrap()["message"].as_str().unwrap();
        assert!(message.contains("10.0.0.0/8 is in `allow` and in `deny`"), "{message}");
        edge.cluster.until_event_with("TrafficPolicy", "wrong", "Invalid", "requests of its targets get 500");
        edge.policy("wrong", &[("HTTPRoute", "web")], json!({"route": {"allow": ["10.0.0.0/8"]}}));
        edge.until_accepted("wrong");
        until_status(200);
        edge.policy("absent", &[("HTTPRoute", "gone")], json!({"route": {"timeout": "1s"}}));
        assert_eq!(edge.until_refused("absent", "TargetNotFound")["ancestorRef"]["kind"], "HTTPRoute");
    });
}

/// What the definition refuses, and that it takes the examples.
#[test]
fn policies_that_the_api_server_refuses() {
    within("policies_that_the_api_server_refuses", |edge| {
        let route = |part: Value| json!({"route": part});
        let cluster = |part: Value| json!({"cluster": part});
        let refused = [
            (json!({}), "set route, cluster or clients"),
            (json!({"clients": {"requests": {"requests": 1, "per": "1s"}}}), "clients is for Gateways as a whole"),
            (route(json!({"newer": 1})), "newer"),
            (route(json!({"timeout": "5"})), "timeout"),
            (route(json!({"timeout": 5})), "timeout"),
            (route(json!({"allow": ["10.0.0.1/8"]})), "without bits beyond its length"),
            (route(json!({"allow": ["all"]})), "must be an address"),
            (route(json!({"deny": []})), "deny"),
            (route(json!({"retry": {"disabled": true, "attempts": 2}})), "disabled excludes all other fields"),
            (route(json!({"retry": {"disabled": false}})), "disabled"),
            (route(json!({"retry": {"retryOn": ["200"]}})), "retryOn"),
            (route(json!({"retry": {"attempts": 11}})), "attempts"),
            (route(json!({"rateLimit": {"requests": 5}})), "per"),
            (route(json!({"rateLimit": {"requests": 5, "per": "1s", "by": {}}})), "set clientIp or header"),
            (route(json!({"cors": {"methods": ["GET"]}})), "origins"),
            (route(json!({"errorPages": [{"status": [503], "file": "/etc/passwd"}]})), "file"),
            (route(json!({"errorPages": [{"status": [503]}]})), "set body"),
            (route(json!({"respond": {"status": 99}})), "status"),
            (cluster(json!({"sticky": {"cookie": "id", "secret": "x"}})), "secret"),
            (cluster(json!({"balance": {"algorithm": "fastest"}})), "algorithm"),
            (cluster(json!({"balance": {}})), "set algorithm or maglev"),
            (cluster(json!({"healthCheck": {"interval": "1s"}})), "set exactly one of http, grpc or tcp"),
            (cluster(json!({"healthCheck": {"http": "/", "tcp": true}})), "set exactly one of http, grpc or tcp"),
            (cluster(json!({"limits": {"connections": 0}})), "connections"),
            (cluster(json!({"tls": {}})), "tls"),
        ];
        let to = |spec: &Value, targets: Value| policy("wrong", targets, spec.clone());
        let web = || targets(&[("HTTPRoute", "web")]);
        for (spec, part) in refused {
            let why = edge.cluster.dry_run(&to(&spec, web())).expect_err("a refusal");
            assert!(why.contains(part), "{spec}: {why}");
        }
        let good = route(json!({"timeout": "5s"}));
        let target = |group: &str, kind: &str| json!({"group": group, "kind": kind, "name": "web"});
        let refused = [
            (json!([]), "targetRefs"),
            (json!([target(GROUP, "TCPRoute")]), "kind"),
            (json!([target("", "HTTPRoute")]), "a Service is of the group"),
            (json!([target("", "Service")]), "a Service has no route"),
            (json!([target(GROUP, "HTTPRoute"), target(GROUP, "HTTPRoute")]), "a target is there twice"),
        ];
        for (targets, part) in refused {
            let why = edge.cluster.dry_run(&to(&good, targets.clone())).expect_err("a refusal");
            assert!(why.contains(part), "{targets}: {why}");
        }
        limits_of_clients(edge);
        let taken = [
            route(
                json!({"retry": {"retryOn": [503, "502", "reset"], "perTryTimeout": "1s"}, "allow": ["10.0.0.0/8", "::1"]}),
            ),
            cluster(
                json!({"healthCheck": {"http": "/", "expect": [204, "200-299"]}, "ping": {"disabled": true}, "panicThreshold": "50%"}),
            ),
            cluster(json!({"balance": {"maglev": {"key": {"cookie": "user"}}}})),
        ];
        for spec in taken {
            edge.cluster.dry_run(&to(&spec, web())).unwrap_or_else(|why| panic!("{spec}: {why}"));
        }
        for mut object in documents(&manifest("examples/policies.yaml")) {
            if object["kind"] != "Namespace" {
                // That of the example is not there.
                object["metadata"].as_object_mut().unwrap().remove("namespace");
                edge.cluster.dry_run(&object).unwrap_or_else(|why| panic!("{object}: {why}"));
            }
        }
    });
}

/// Limits of clients are for Gateways as a whole.
fn limits_of_clients(edge: &Edge) {
    let route = || json!({"group": GROUP, "kind": "HTTPRoute", "name": "web"});
    let gateway = || json!({"group": GROUP, "kind": "Gateway", "name": "edge"});
    let mut listener = gateway();
    listener["sectionName"] = json!("web");
    let clients = |part: Value| json!({"clients": part});
    let bandwidth = clients(json!({"responseBandwidth": {"bytes": "1MiB"}}));
    let refused = [
        (bandwidth.clone(), json!([listener]), "clients is for Gateways as a whole"),
        (bandwidth.clone(), json!([gateway(), route()]), "clients is for Gateways as a whole"),
        (clients(json!({"responseBandwidth": {"burst": "1MiB"}})), json!([gateway()]), "bytes"),
        (clients(json!({"requestBandwidth": {"bytes": "fast"}})), json!([gateway()]), "bytes"),
        (clients(json!({"connections": 5})), json!([gateway()]), "connections"),
    ];
    for (spec, targets, part) in refused {
        let why = edge.cluster.dry_run(&policy("wrong", targets.clone(), spec.clone())).expect_err("a refusal");
        assert!(why.contains(part), "{spec} {targets}: {why}");
    }
    edge.cluster.dry_run(&policy("right", json!([gateway()]), bandwidth)).unwrap();
}

/// The same of what policies refer to.
#[test]
fn references_that_the_api_server_refuses() {
    within("references_that_the_api_server_refuses", |edge| {
        let route = |part: Value| json!({"route": part});
        let refused = [
            (route(json!({"auth": {}})), "set exactly one of basic, apiKey or jwt"),
            (route(json!({"auth": {"basic": {}}})), "secretRef"),
            (route(json!({"auth": {"basic": {"secretRef": {"name": "A"}}}})), "name"),
            (route(json!({"auth": {"basic": {"secretRef": {"name": "a"}, "users": {"joe": "x"}}}})), "users"),
            (route(json!({"auth": {"apiKey": {"secretRef": {"name": "a"}, "keys": {"joe": ["x"]}}}})), "keys"),
            (route(json!({"auth": {"disabled": true, "basic": {"secretRef": {"name": "a"}}}})), "disabled excludes"),
            (route(json!({"externalAuth": {"http": {}}})), "set disabled or backendRef"),
            (route(json!({"externalAuth": {"backendRef": {"name": "a"}, "http": {}}})), "port"),
            (
                route(json!({"externalAuth": {"backendRef": {"name": "a", "port": 80}}})),
                "set exactly one of http or grpc",
            ),
            (
                route(json!({"externalAuth": {"backendRef": {"name": "a", "namespace": "A", "port": 80}, "http": {}}})),
                "namespace",
            ),
            (
                route(
                    json!({"globalRateLimit": {"backendRef": {"name": "a", "port": 80}, "domain": "d", "descriptors": []}}),
                ),
                "descriptors",
            ),
            (
                route(json!({"globalRateLimit": {"backendRef": {"name": "a", "port": 80}, "domain": "d",
                "descriptors": [{"entries": [{"clientIp": true}]}]}})),
                "set disabled or failOpen",
            ),
            (
                route(
                    json!({"globalRateLimit": {"backendRef": {"name": "a", "port": 80}, "domain": "d", "failOpen": true,
                "descriptors": [{"entries": [{"clientIp": true, "path": true}]}]}}),
                ),
                "set exactly one of",
            ),
        ];
        for (spec, part) in refused {
            let object = policy("wrong", targets(&[("HTTPRoute", "web")]), spec.clone());
            let why = edge.cluster.dry_run(&object).expect_err("a refusal");
            assert!(why.contains(part), "{spec}: {why}");
        }
    });
}

#[test]
fn without_the_definition_of_policies() {
    within_alone("without_the_definition_of_policies", |edge| {
        edge.cluster.undefine(DEFINITION);
        let web = origin(1);
        edge.web(&[web.address]);
        let _controller = edge.controller();
        edge.until_served("HTTPRoute", "web");
        assert_eq!(answer(gateway(80), "a", "/"), (200, "pod-1".into()));

        edge.cluster.apply(&manifest("steelyard/crds/trafficpolicies.yaml"));
        edge.cluster.until_defined(DEFINITION);
        edge.policy("web", &[("HTTPRoute", "web")], json!({"route": {"maintenance": true}}));
        until_status(503);
    });
}

/// An account that may not read them does not serve what they forbid, also after a restart.
#[test]
fn policies_that_may_not_be_read() {
    within("policies_that_may_not_be_read", |edge| {
        let web = origin(1);
        edge.web(&[web.address]);
        edge.policy("web", &[("HTTPRoute", "web")], json!({"route": {"deny": ["0.0.0.0/0", "::/0"]}}));
        edge.limit(&[("list", "trafficpolicies")]);
        let more = ["--listen-address", GATEWAY];
        let (mut program, admin, scratch) = edge.controller_begun(&edge.limited(), "one", &more);
        program.says("not ready until this kind may be listed and watched").unwrap();
        assert_eq!(get(admin, "/readyz").map(|response| response.status), Some(503));
        assert!(std::net::TcpStream::connect(gateway(80)).is_err(), "it serves what a policy forbids");
        edge.limit(&[]);
        let _controller = Steelyard::of(program, admin, scratch);
        until_status(403);
    });
}

/// Two installations with names of their own both write their entry, and leave the other's alone.
#[test]
fn policies_of_two_installations() {
    within("policies_of_two_installations", |edge| {
        let web = origin(1);
        edge.web(&[web.address]);
        edge.policy("web", &[("HTTPRoute", "web")], json!({"route": {"timeout": "5s"}}));
        let foreign =
            json!([{"ancestorRef": {"name": "other"}, "controllerName": "example.com/other", "conditions": []}]);
        edge.cluster.patch_status_in("TrafficPolicy", &edge.name, "web", json!({"status": {"ancestors": foreign}}));
        let _controller: Steelyard = edge.controller();
        let found = edge.until_accepted("web");
        let ancestors = found["status"]["ancestors"].as_array().unwrap();
        assert!(ancestors.iter().any(|entry| entry["controllerName"] == "example.com/other"), "{ancestors:?}");
        assert_eq!(ancestors.len(), 2);
    });
}

fn targets(targets: &[(&str, &str)]) -> Value {
    let group = |kind: &str| if kind == "Service" { "" } else { GROUP };
    targets.iter().map(|(kind, name)| json!({"group": group(kind), "kind": kind, "name": name})).collect()
}

fn policy(name: &str, targets: Value, mut spec: Value) -> Value {
    spec["targetRefs"] = targets;
    json!({"apiVersion": "steelyard.io/v1alpha1", "kind": "TrafficPolicy", "metadata": {"name": name}, "spec": spec})
}

/// Waits for a response with this header, `x-edge`.
#[track_caller]
fn until_seen(value: &str) {
    let is_so = || (header(&ask(gateway(80), "a", "/"), "x-edge") == value).then_some(());
    assert!(until(PATIENCE, is_so).is_some(), "not {value}: {:?}", ask(gateway(80), "a", "/").headers);
}

/// A user `joe` whose password is `secret`.
const USER: &str = "joe:{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=";

/// A GET with these fields.
#[track_caller]
fn ask_with(fields: &str) -> Response {
    let mut conn = client::connect("client", gateway(80), None).unwrap();
    conn.send(format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}Connection: close\r\n\r\n").as_bytes()).unwrap();
    conn.response(ResponseTo::Other).unwrap()
}

#[track_caller]
fn until_status(status: u16) {
    let is_so = || (ask(gateway(80), "a", "/").status == status).then_some(());
    assert!(until(PATIENCE, is_so).is_some(), "not {status}: {:?}", answer(gateway(80), "a", "/"));
}

impl Edge {
    /// A TrafficPolicy for these objects, by kind and name.
    #[track_caller]
    fn policy(&self, name: &str, to: &[(&str, &str)], spec: Value) {
        self.policy_at(name, targets(to), spec);
    }

    #[track_caller]
    fn policy_at(&self, name: &str, targets: Value, spec: Value) {
        self.cluster.apply(&policy(name, targets, spec).to_string());
    }

    /// Waits until all of our entries say that a policy applies.
    #[track_caller]
    fn until_accepted(&self, name: &str) -> Value {
        self.cluster.until("accepted", "TrafficPolicy", name, |policy| {
            let mut ours = self.entries(policy).into_iter().peekable();
            ours.peek().is_some() && ours.all(|entry| holds(policy, entry, &["Accepted", "ResolvedRefs"]))
        })
    }

    #[track_caller]
    fn credentials(&self, name: &str, kind: &str, data: Value) {
        let secret =
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "type": kind, "stringData": data});
        self.cluster.apply(&secret.to_string());
    }

    /// Waits until our entry says that a reference cannot be resolved; returns the message.
    #[track_caller]
    fn until_unresolved(&self, name: &str, reason: &str) -> String {
        let policy = self.cluster.until("unresolved", "TrafficPolicy", name, |policy| {
            self.entries(policy).first().is_some_and(|entry| fails(policy, entry, "ResolvedRefs") == reason)
        });
        let found = condition(self.entries(&policy)[0], "ResolvedRefs").unwrap();
        found["message"].as_str().unwrap_or_default().to_owned()
    }

    /// Waits until our entry says that a policy does not apply, and why.
    #[track_caller]
    fn until_refused(&self, name: &str, reason: &str) -> Value {
        let policy = self.cluster.until("refused", "TrafficPolicy", name, |policy| {
            self.entries(policy).first().is_some_and(|entry| fails(policy, entry, "Accepted") == reason)
        });
        self.entries(&policy)[0].clone()
    }

    fn entries<'v>(&self, policy: &'v Value) -> Vec<&'v Value> {
        let ours = format!("steelyard.test/{}", self.name);
        let all = policy["status"]["ancestors"].as_array().into_iter().flatten();
        all.filter(|entry| entry["controllerName"] == ours.as_str()).collect()
    }
}
