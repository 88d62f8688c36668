//! What the page shows, and that nothing in a name can change it.

use std::collections::BTreeMap;

use super::*;
use crate::access::User;
use crate::show::tests::status;

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
        replicas: Some(Some(&[Replica { address: NASTY.into(), overview: Err(NASTY.into()) }])),
        form_token: "t0k3n",
        drop_meaning: &|_| None,
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
            recent: crate::RouteRecent { responses: number, errors: 5000 - number, refused: BTreeMap::new() },
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
