//! What the page shows, and that nothing in a name can change it.

use std::collections::BTreeMap;

use super::*;
use crate::access::User;
use crate::show::tests::{endpoint, status, vip};
use crate::{EndpointCause, EndpointState, ProbeStatus};

const NASTY: &str = "<script>alert(1)</script>\"'&\u{202e}";

fn render(status: &Status, wish: &Wish, user: &User) -> String {
    page(&View {
        status,
        points: &Points::default(),
        verdict: &crate::History::default().verdict(),
        user,
        wish,
        route: None,
        packet: None,
        replicas: Some(Some(&[Replica { address: NASTY.into(), pod: NASTY.into(), overview: Err(NASTY.into()) }])),
        form_token: "t0k3n",
        drop_meaning: &|reason| (reason == "rate_limited").then_some("The vip has a limit."),
        pages: list_of_pages(&[("/status", false, "the status")]),
    })
}

#[test]
fn every_name_is_escaped() {
    let mut status = status();
    for listener in &mut status.listeners {
        (listener.name, listener.bind) = (NASTY.into(), NASTY.into());
    }
    for route in &mut status.routes {
        (route.name, route.cluster) = (NASTY.into(), NASTY.into());
        route.refused = [(NASTY.to_owned(), 1)].into();
    }
    for cluster in &mut status.clusters {
        cluster.name = NASTY.into();
        cluster.endpoints.iter_mut().for_each(|of| (of.address, of.why) = (NASTY.into(), Some(NASTY.into())));
    }
    status.methods.push(crate::MethodStatus {
        listener: NASTY.into(),
        service: NASTY.into(),
        method: NASTY.into(),
        codes: [(NASTY.to_owned(), 1)].into(),
        duration_us: None,
    });
    for vip in &mut status.vips {
        (vip.name, vip.address) = (NASTY.into(), NASTY.into());
    }
    status.findings =
        vec![crate::Finding { severity: Severity::Wrong, kind: "a".into(), about: NASTY.into(), text: NASTY.into() }];
    status.about.refused_objects = vec![crate::RefusedObjectStatus {
        object: NASTY.into(),
        condition: NASTY.into(),
        reason: NASTY.into(),
        message: NASTY.into(),
    }];
    status.about.host = NASTY.into();
    status.about.source = NASTY.into();
    status.about.certificates =
        vec![crate::CertificateStatus { expires_unix_seconds: 0, owner: NASTY.into(), names: vec![NASTY.into()] }];
    status.about.changes = Some(crate::ChangesStatus { generation: 2, lines: vec![NASTY.into()], more: 0 });
    let wish = Wish { find: NASTY.to_lowercase(), ..Wish::default() };
    let user = User { name: Some(NASTY.into()), role: Role::Act };
    for wish in [Wish::default(), wish] {
        let html = render(&status, &wish, &user);
        assert!(!html.contains("<script>alert") && !html.contains('\u{202e}'), "{html}");
        assert!(html.contains("&lt;script&gt;alert(1)&lt;/script&gt;&quot;"), "{html}");
        // Only the script of the page itself, and no text that runs as one.
        assert_eq!(html.matches("<script").count(), 1);
        assert!(
            html.contains("<script src=\"page.js\" defer></script>")
                && !html.contains(" onclick")
                && !html.contains("style=")
        );
    }
    assert!(!outcome(NASTY).contains("<script"));
}

#[test]
fn who_may_only_read_gets_no_actions() {
    let reader = User { name: Some("graphs".into()), role: Role::Read };
    let html = render(&status(), &Wish::default(), &reader);
    assert!(!html.contains("t0k3n") && !html.contains("method=\"post\""));
    let html = render(&status(), &Wish::default(), &User::LOCAL);
    assert!(html.contains("name=\"token\" value=\"t0k3n\"") && html.contains("action=\"/do\""));
}

#[test]
fn thousands_of_routes_are_leafed_through() {
    let mut status = status();
    let one = status.routes[0].clone();
    status.routes = (0..5000_u64)
        .map(|number| crate::RouteStatus {
            name: format!("/r{number}"),
            recent: crate::RouteRecent { responses: number, errors: 5000 - number, ..crate::RouteRecent::default() },
            ..one.clone()
        })
        .collect();
    let rows = |query: &str| {
        let html = render(&status, &Wish::parse(query).unwrap(), &User::LOCAL);
        assert!(html.len() < 200_000, "{}", html.len());
        let names = html.split("<td class=\"name\">/r").skip(1);
        names.filter_map(|rest| rest.split(' ').next()?.parse::<u64>().ok()).collect::<Vec<_>>()
    };
    assert_eq!((rows("").len(), rows("")[0], rows("")[49]), (50, 4999, 4950));
    assert_eq!(rows("routes=2")[0], 4949);
    assert_eq!(rows("routes=100").last(), Some(&0));
    assert_eq!(rows("routes=999999").last(), Some(&0));
    assert_eq!(rows("sort=errors")[0], 0);
    assert_eq!(rows("find=r499&sort=name").len(), 11);
    assert_eq!(rows("find=nothing+like+this"), Vec::<u64>::new());
}

#[test]
fn queries_of_the_page() {
    assert_eq!(Wish::parse("").unwrap(), Wish::default());
    let wish = Wish::parse("find=a+b&sort=added&routes=3&endpoints=2&span=hour").unwrap();
    assert_eq!(
        (wish.find.as_str(), wish.sort, wish.routes_page, wish.endpoints_page, wish.hour),
        ("a b", Sort::Added, 2, 1, true)
    );
    assert_eq!(wish.link(Sort::Added, 2, 1, true), "/?find=a%20b&sort=added&routes=3&endpoints=2&span=hour");
    let question =
        Wish::parse("path=%2Fcart&listener=web&method=&headers=X-A%3A+b%0D%0AX-B%3A+c").unwrap().route.unwrap();
    assert_eq!((question.path.as_str(), question.method.as_str()), ("/cart", "GET"));
    assert_eq!(question.headers, ["X-A: b", "X-B: c"]);
    assert!(Wish::parse("nothing=1").is_err() && Wish::parse("find=%ff").is_err());
}

#[test]
fn forms_need_what_was_typed_twice() {
    let check = |body: &str, expect: Result<Action, &str>| match (Form::parse(body), expect) {
        (Ok(form), Ok(action)) => assert!(form.action == action && form.token == "t", "{body}"),
        (Err(why), Err(part)) => assert!(why.contains(part), "{body}: {why}"),
        (Ok(form), Err(part)) => panic!("{body}: {:?}, expected {part}", form.action),
        (Err(why), Ok(_)) => panic!("{body}: {why}"),
    };
    let endpoint = |cluster: Option<&str>, draining| Action::Endpoint {
        address: "10.0.0.7:80".into(),
        cluster: cluster.map(str::to_owned),
        draining,
    };
    check("action=drain&about=10.0.0.7%3A80&within=&confirm=10.0.0.7%3A80&token=t", Ok(endpoint(None, true)));
    check(
        "action=ready&about=10.0.0.7%3A80&within=web&confirm=10.0.0.7%3A80&token=t",
        Ok(endpoint(Some("web"), false)),
    );
    check("action=drain&about=10.0.0.7%3A80&confirm=10.0.0.8%3A80&token=t", Err("type \"10.0.0.7:80\" a second time"));
    check("action=drain&about=&confirm=&token=t", Err("say what the action is about"));
    check("action=reload&confirm=reload&token=t", Ok(Action::Reload));
    check("action=reload&confirm=yes&token=t", Err("type \"reload\" a second time"));
    let route = Action::Maintenance { route: "GET /a b".into(), listener: None, on: true };
    check("action=maintenance&about=GET+%2Fa+b&confirm=GET+%2Fa+b&token=t", Ok(route));
    check("action=explode&confirm=", Err("not an action"));
    check("action=reload&action=reload", Err("given twice"));
}

/// What a person reads: the page without its markup.
fn read(status: &Status, wish: &Wish) -> String {
    let html = render(status, wish, &User::LOCAL);
    let words = html.split('<').filter_map(|part| part.split_once('>')).flat_map(|(_, text)| text.split_whitespace());
    words.collect::<Vec<_>>().join(" ")
}

#[test]
fn an_endpoint_says_why_it_is_in_its_state() {
    let check = |state, why: Option<&str>, cause: EndpointCause, expect: &str| {
        let mut status = status();
        let mut of = endpoint("10.0.0.7:80", state, why);
        of.cause = cause;
        status.clusters[0].endpoints = vec![of];
        let text = read(&status, &Wish::default());
        assert!(text.contains(&format!("10.0.0.7:80 shop {expect} ")), "{expect}: {text}");
    };
    let probed = |is_success| Some(ProbeStatus { seconds_ago: 70, is_success });
    let none = EndpointCause::default();
    check(EndpointState::Unchecked, None, none, "&#9679; unchecked -");
    let starts = EndpointCause { last_probe: probed(true), slow_start_seconds_left: Some(9), ..none };
    let expect =
        "&#9679; healthy the last probe succeeded, 1 min 10 s ago slow start: gets less than its share for 9 s";
    check(EndpointState::Healthy, None, starts, expect);
    let failed = EndpointCause { last_probe: probed(false), ..none };
    let expect = "&#9650; unhealthy connect refused the last probe failed, 1 min 10 s ago";
    check(EndpointState::Unhealthy, Some("connect refused"), failed, expect);
    let ejected = EndpointCause { ejected_seconds_left: Some(12), ..none };
    let expect = "&#9650; ejected requests failed there; back in 12 s";
    check(EndpointState::Ejected, Some("requests failed there; back in 12 s"), ejected, expect);
    let expect = "&#9650; draining an operator drains it; requests in progress: 2";
    check(EndpointState::Draining, None, none, expect);
}

#[test]
fn the_load_of_an_endpoint_stands_beside_its_weight() {
    let mut status = status();
    let endpoints = &mut status.clusters[0].endpoints;
    endpoints[0].weight = 3;
    (endpoints[0].recent.requests, endpoints[1].recent.requests) = (20, 60);
    let text = read(&status, &Wish::default());
    assert!(text.contains("healthy 25 % 75 % 20 ") && text.contains("unchecked 75 % 25 % 60 "), "{text}");
}

#[test]
fn saturation_has_the_retry_budget_that_is_used_most() {
    let mut status = status();
    let text = read(&status, &Wish::default());
    assert!(text.contains("Most used retry budget 0 % ; refused retries, last minute: 0"), "{text}");
    status.clusters[0].retry_budget_used = 0.374;
    status.clusters.push(crate::ClusterStatus {
        name: "other".into(),
        retry_budget_used: 0.2,
        ..status.clusters[0].clone()
    });
    status.listeners[0].recent.refused = [("retry_budget".to_owned(), 5)].into();
    let text = read(&status, &Wish::default());
    assert!(text.contains("Most used retry budget 37 % of shop ; refused retries, last minute: 5"), "{text}");
    assert!(text.contains("Retries of shop 3 (37 % of the budget is used)"), "{text}");
}

#[test]
fn a_drop_has_its_sentence_and_an_object_its_condition() {
    let mut status = status();
    status.kernel_plane = Some(crate::KernelPlaneStatus {
        entries: 90,
        entries_max: 100,
        pressure: true,
        map_bytes: 1,
        drops: BTreeMap::new(),
        sockets: None,
    });
    let mut drained = vip();
    drained.endpoints[0].state = EndpointState::Draining;
    status.vips = vec![drained];
    let object = |condition: &str| crate::RefusedObjectStatus {
        object: "HTTPRoute shop/cart".into(),
        condition: condition.into(),
        reason: "RefNotPermitted".into(),
        message: "No grant allows it.".into(),
    };
    status.about.refused_objects = vec![object("ResolvedRefs"), object("")];
    status.about.refused_objects_more = 7;
    let day = 86_400;
    let certificate = |days: i64| crate::CertificateStatus {
        expires_unix_seconds: (status.unix_seconds as i64 + days * day + 1) as u64,
        owner: format!("listener {days}"),
        names: vec!["a.test".into(), "b.test".into()],
    };
    status.about.certificates = vec![certificate(-3), certificate(14), certificate(90)];
    let text = read(&status, &Wish::default());
    for expect in [
        "dns 192.0.2.1:53/udp (nat) 8 flows, 1000 in all; sockets: 2, 40 in all; 45678 packets/s, 9400.0 Mbit/s.",
        "10.0.0.1 &#9650; draining an operator drains it; flows in progress: 4 4 500",
        "10.0.0.2:5353 &#9650; unhealthy connect refused 4 500",
        "3 no_endpoint 40 rate_limited The vip has a limit.",
        "HTTPRoute shop/cart ResolvedRefs RefNotPermitted No grant allows it.",
        "HTTPRoute shop/cart (Event) RefNotPermitted",
        "and 7 more",
        "listener -3 a.test, b.test &#9650; expired ",
        "listener 14 a.test, b.test &#9650; 14 ",
        "listener 90 a.test, b.test 90 ",
    ] {
        assert!(text.contains(expect), "{expect}: {text}");
    }
}
