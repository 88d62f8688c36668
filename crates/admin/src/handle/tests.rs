//! Who may ask for which page, and how.

use super::origin::is_ours;
use super::*;

#[test]
fn hosts() {
    let check = |host: &str, expect| assert_eq!(is_ours(host, true, &[]), expect, "{host}");
    check("127.0.0.1", true);
    check("127.0.0.1:9900", true);
    check("127.8.9.1:9900", true);
    check("10.0.0.7:9900", false);
    check("0.0.0.0:9900", false);
    check("[::1]:9900", true);
    check("[::ffff:127.0.0.1]:9900", true);
    check("[fd00::1]:9900", false);
    check("[::1]", true);
    check("localhost", true);
    check("LocalHost:9900", true);
    check("evil.example:9900", false);
    check("localhost.evil.example", false);
    check("127.0.0.1.evil.example", false);
    check("[evil.example]", false);
    check("[::1", false);
    check("[::1]x", false);
    check("[::1]:80:80", false);
    check("127.0.0.1:x@evil.example", false);
    check("127.0.0.1:80@evil.example", false);
    check("evil.example@127.0.0.1", false);
    check("localhost:", false);
    check("localhost:99999", false);
    check("", false);
    // Browsers accept these as addresses. We do not, and refuse them.
    check("127.1", false);
    check("2130706433", false);
    // An address that other hosts can reach has other addresses, and perhaps names.
    let hosts = ["steelyard.example".to_owned()];
    let check = |host: &str, expect| assert_eq!(is_ours(host, false, &hosts), expect, "{host}");
    check("10.0.0.7:9900", true);
    check("[2001:db8::1]:9900", true);
    check("Steelyard.Example:9900", true);
    check("localhost", true);
    check("steelyard.example.evil.example", false);
    check("evil.example", false);
    assert!(is_ours("steelyard.example", true, &hosts) && !is_ours("10.0.0.7", true, &hosts));
}

#[test]
fn who_may_ask_for_what() {
    let check = |method: &str, uri: &str, headers: &[(&str, &str)], over_loopback, expect: u16| {
        let mut request = Request::builder().method(method).uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let have = admit(&request.body(()).unwrap(), Pages::All, over_loopback, &[])
            .map_or_else(|refusal| refusal.status.as_u16(), |_| 200);
        assert_eq!(have, expect, "{method} {uri} {headers:?} {over_loopback}");
    };
    let (ours, foreign, admin) = (("host", "127.0.0.1:9900"), ("host", "evil.example"), (ADMIN_HEADER, "1"));
    check("GET", "/status", &[ours], true, 200);
    check("HEAD", "/metrics", &[ours], true, 200);
    check("GET", "/nothing", &[ours], true, 404);
    check("GET", "/status/", &[ours], true, 404);
    check("POST", "/metrics", &[ours, admin], true, 405);
    check("GET", "/reload", &[ours, admin], true, 405);
    check("GET", "/vip/add?name=a", &[ours, admin], true, 405);
    check("POST", "/vip/add?name=a", &[ours], true, 403);
    check("POST", "/vip/detach", &[foreign, admin], true, 421);
    check("POST", "/vip/remove?name=a", &[ours, admin], true, 200);
    check("GET", "/trace?vip=a&from=b", &[ours], true, 200);
    check("OPTIONS", "/reload", &[ours], true, 405);
    // A form, or a fetch without permission, has no such header.
    check("POST", "/reload", &[ours], true, 403);
    check("POST", "/endpoint/drain?endpoint=a", &[ours], false, 403);
    check("POST", "/reload", &[ours, (ADMIN_HEADER, "0")], true, 403);
    check("POST", "/reload", &[ours, admin], true, 200);
    // DNS rebinding: the page can send the header, but the name gives it away.
    check("POST", "/reload", &[foreign, admin], true, 421);
    check("POST", "/reload", &[foreign, admin], false, 421);
    check("POST", "/reload", &[ours, foreign, admin], false, 421);
    check("POST", "http://evil.example/reload", &[ours, admin], false, 421);
    check("GET", "/metrics", &[foreign], true, 421);
    check("GET", "/metrics", &[foreign], false, 421);
    check("GET", "/status", &[], true, 200);
    // A browser says where a request comes from, even if the page had been able to send the header.
    check("POST", "/reload", &[ours, admin, ("origin", "http://127.0.0.1:9900")], true, 200);
    check("POST", "/reload", &[ours, admin, ("sec-fetch-site", "same-origin")], true, 200);
    check("POST", "/reload", &[ours, admin, ("origin", "http://127.0.0.1:81")], true, 403);
    check("POST", "/reload", &[ours, admin, ("origin", "null")], true, 403);
    check("POST", "/reload", &[ours, admin, ("sec-fetch-site", "cross-site")], true, 403);
    check("POST", "/reload", &[ours, admin, ("sec-fetch-site", "same-site")], true, 403);
    // A page of another origin learns nothing either, and a link to this page can be followed.
    let (cross, navigates) = (("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate"));
    let document = ("sec-fetch-dest", "document");
    for path in ["/", "/status", "/metrics", "/readyz", "/events"] {
        check("GET", path, &[ours, cross, ("sec-fetch-mode", "no-cors"), ("sec-fetch-dest", "image")], true, 403);
        check("GET", path, &[ours, ("sec-fetch-site", "same-site"), ("sec-fetch-mode", "cors")], true, 403);
        check("GET", path, &[ours, cross, navigates, ("sec-fetch-dest", "iframe")], true, 403);
        check("GET", path, &[ours, cross, navigates], true, 403);
        check("GET", path, &[ours, ("origin", "http://evil.example")], true, 403);
        check("HEAD", path, &[ours, ("origin", "null")], false, 403);
        check("GET", path, &[ours, cross, navigates, document], true, 200);
        check("GET", path, &[ours, cross, navigates, document, ("origin", "http://evil.example")], true, 403);
        check("GET", path, &[ours, ("sec-fetch-site", "none"), navigates, document], true, 200);
        check("GET", path, &[ours, ("sec-fetch-site", "same-origin"), ("sec-fetch-mode", "cors")], true, 200);
    }
    check("POST", "/reload", &[ours, admin, cross, navigates, document], true, 403);
    // What stands there twice can be read in two ways.
    let (here, there) = (("origin", "http://127.0.0.1:9900"), ("origin", "http://evil.example"));
    check("POST", "/reload", &[ours, admin, here, there], true, 403);
    check("POST", "/reload", &[ours, admin, ("sec-fetch-site", "none"), ("sec-fetch-site", "cross-site")], true, 403);
    check("POST", "/reload", &[ours, admin, (ADMIN_HEADER, "0")], true, 403);
    check("POST", "/reload", &[ours, admin, admin], true, 403);
    check("GET", "/status", &[ours, ours], true, 400);
}

#[test]
fn what_anyone_may_have() {
    let check = |method: &str, uri: &str, host: &str, over_loopback, expect: u16| {
        let request = Request::builder().method(method).uri(uri).header("host", host).header(ADMIN_HEADER, "1");
        let have = admit(&request.body(()).unwrap(), Pages::ForAnyone, over_loopback, &[])
            .map_or_else(|refusal| refusal.status.as_u16(), |_| 200);
        assert_eq!(have, expect, "{method} {uri} {host} {over_loopback}");
    };
    for page in ["/metrics", "/overview", "/healthz", "/readyz"] {
        check("GET", page, "steelyard.example:9901", false, 200);
        check("GET", page, "127.0.0.1:9901", true, 200);
        check("GET", page, "evil.example", true, 421);
        check("POST", page, "10.0.0.7", false, 405);
    }
    for (path, page, _) in PAGES.iter().filter(|(_, page, _)| !page.is_for_anyone()) {
        let method = if page.changes_state() { "POST" } else { "GET" };
        check(method, path, "127.0.0.1", true, 404);
        check(method, path, "10.0.0.7", false, 404);
    }
}
