//! Messages: what is a valid request, response or trailer section (RFC 9113 section 8), and which neutral head it becomes.

use super::*;
use crate::message::{Body, FieldId, Method, Version, find};

/// Checks whether a request with these fields is accepted.
#[track_caller]
fn check_request(fields: &[(&str, &str)], end: bool, expect: Result<&str, ()>) {
    match expect {
        Ok(text) => check(&[headers(1, end, fields)], &[&format!("request 1 {text}")], &[]),
        Err(()) => check(&[headers(1, end, fields)], &[], &["RST 1 1"]),
    }
}

/// Checks GET with more fields.
#[track_caller]
fn check_fields(more: &[(&str, &str)], expect: Result<&str, ()>) {
    let text = expect.map(|text| format!("GET a/{text} end")).unwrap_or_default();
    check_request(&[GET, more].concat(), true, expect.map(|_| text.as_str()));
}

#[test]
fn pseudo_fields_stand_once_and_in_front() {
    let (method, scheme, path, authority) = (GET[0], GET[1], GET[2], GET[3]);
    let good = |fields: &[(&str, &str)], text| check_request(fields, true, Ok(text));
    let bad = |fields: &[(&str, &str)]| check_request(fields, true, Err(()));
    good(&[path, authority, scheme, method], "GET a/ end");
    bad(&[]);
    bad(&[scheme, path, authority]);
    bad(&[method, path, authority]);
    bad(&[method, scheme, authority]);
    bad(&[method, scheme, path]);
    for pseudo in [method, scheme, path, authority] {
        bad(&[GET, &[pseudo]].concat());
        bad(&[method, scheme, path, ("x", "y"), pseudo]);
    }
    bad(&[GET, &[(":status", "200")]].concat());
    bad(&[GET, &[(":unknown", "x")]].concat());
    bad(&[GET, &[(":", "x")]].concat());
    bad(&[("x", "y"), method, scheme, path, authority]);
    bad(&[("cookie", "a=b"), method, scheme, path, authority]);
}

#[test]
fn targets() {
    let with = |at: usize, value: &str, expect| {
        let mut fields = GET.to_vec();
        fields[at].1 = value;
        check_request(&fields, true, expect);
    };
    with(0, "PATCH", Ok("PATCH a/ end"));
    with(0, "get", Ok("get a/ end"));
    for method in ["", "G T", "GET /x HTTP/1.1", "G\u{e9}T"] {
        with(0, method, Err(()));
    }
    with(1, "https", Ok("GET a/ end"));
    for scheme in ["", "ftp", "HTTP", "http://evil/?", "http "] {
        with(1, scheme, Err(()));
    }
    with(2, "/x?y=%20", Ok("GET a/x?y=%20 end"));
    for path in ["", "*", "x", "http://a/", "/ HTTP/1.1", "/a b", "/#f", "/\u{e9}", "/\x7f"] {
        with(2, path, Err(()));
    }
    with(3, "a:8080", Ok("GET a:8080/ end"));
    with(3, "[::1]:80", Ok("GET [::1]:80/ end"));
    for authority in ["", "u@a", "a/b", "a b", "a:x", "a,b", "a:65536"] {
        with(3, authority, Err(()));
    }
    let star = [("OPTIONS", "*", Ok("OPTIONS a* end")), ("GET", "*", Err(()))];
    for (method, path, expect) in star {
        check_request(&[(":method", method), (":path", path), GET[1], GET[3]], true, expect);
    }
}

#[test]
fn what_is_refused_is_told_with_its_reason() {
    let check_refused = |more: &[(&str, &str)], reason: &str| {
        let refused = format!("refused {reason}");
        check(&[headers(1, true, &[GET, more].concat())], &[&refused], &["RST 1 1"]);
    };
    check_refused(&[("X", "y")], "h2_field");
    check_refused(&[("connection", "close")], "h2_connection_field");
    check_refused(&[(":path", "/")], "h2_pseudo_header");
    check_refused(&[("host", "b")], "h2_authority");
    check_refused(&[("content-length", "1")], "h2_content_length");
}

#[test]
fn host_says_what_authority_says() {
    check_fields(&[("host", "a")], Ok(" host=a"));
    check_fields(&[("host", "A")], Ok(" host=A"));
    check_fields(&[("host", "b")], Err(()));
    check_fields(&[("host", "a"), ("host", "a")], Err(()));
    check_request(&[GET[0], GET[1], GET[2], ("host", "b")], true, Ok("GET b/ host=b end"));
    check_request(&[GET[0], GET[1], GET[2], ("host", "u@b")], true, Err(()));
}

#[test]
fn connect() {
    let (connect, authority) = ((":method", "CONNECT"), (":authority", "a:443"));
    let bad = |fields: &[(&str, &str)]| check_request(fields, false, Err(()));
    check_request(&[connect, authority], false, Ok("CONNECT a:443"));
    bad(&[connect]);
    bad(&[connect, ("host", "a:443")]);
    bad(&[connect, authority, (":path", "/")]);
    bad(&[connect, authority, (":scheme", "http"), (":path", "/")]);
    let protocol = (":protocol", "websocket");
    let extended = [connect, protocol, (":scheme", "https"), (":path", "/chat"), authority];
    check_request(&extended, false, Ok("CONNECT a:443/chat"));
    bad(&[connect, protocol, authority]);
    bad(&[GET, &[protocol]].concat());
    bad(&[connect, (":protocol", "a b"), (":scheme", "https"), (":path", "/chat"), authority]);
    // Only if it was announced.
    let make = || established(Role::Server, Limits { extended_connect: false, ..Limits::default() });
    check_with(make, &headers(1, false, &extended), &[], &["RST 1 1"]);
}

#[test]
fn fields_that_do_not_belong_here() {
    check_fields(&[("te", "trailers")], Ok(" te=trailers"));
    check_fields(&[("x-y_z", "a b\tc"), ("x", "")], Ok(" x-y_z=a b\tc x="));
    for (name, value) in [
        ("connection", "close"),
        ("connection", "x"),
        ("keep-alive", "timeout=5"),
        ("proxy-connection", "keep-alive"),
        ("transfer-encoding", "chunked"),
        ("transfer-encoding", ""),
        ("upgrade", "websocket"),
        ("te", "trailers, deflate"),
        ("te", ""),
        ("X", "upper case"),
        ("content-Length", "0"),
        ("", "no name"),
        ("x y", "space"),
        ("x:", "colon"),
        ("x\r\ny", "line"),
        ("x\0", "nul"),
        ("x", "a\r\nevil: b"),
        ("x", "a\nb"),
        ("x", "a\rb"),
        ("x", "a\0b"),
        ("x", " a"),
        ("x", "a "),
        ("x", "\ta"),
        ("x", "\x7f"),
        ("cookie", "a=b\r\nevil: c"),
    ] {
        check_fields(&[(name, value)], Err(()));
    }
}

#[test]
fn lengths_are_what_they_say() {
    let post = |more: &[(&str, &str)], end| headers(1, end, &[POST, more].concat());
    let request = |length: &str| format!("request 1 POST a/ content-length={length}");
    let length = |value| [("content-length", value)];
    check(&[post(&length("2"), false), data(1, true, b"ab")], &[&request("2"), "data 1 ab", "end 1"], &[]);
    check(&[post(&length("0"), false), data(1, true, b"")], &[&request("0"), "data 1 ", "end 1"], &[]);
    check(
        &[post(&length("2"), false), data(1, false, b"ab"), headers(1, true, &[("t", "u")])],
        &[&request("2"), "data 1 ab", "trailers 1 t=u"],
        &[],
    );
    check_request(&[POST, &length("0")].concat(), true, Ok("POST a/ content-length=0 end"));
    check_request(&[POST, &length("1")].concat(), true, Err(()));
    for bad in ["", "+1", "1, 1", "0x1", "1 1", "-0", "99999999999999999999"] {
        check_request(&[POST, &length(bad)].concat(), false, Err(()));
    }
    check_request(&[POST, &length("1"), &length("1")].concat(), false, Err(()));
    // Too little or too much, by DATA or by trailers.
    for (frames, seen) in [
        (vec![data(1, true, b"a")], vec![]),
        (vec![data(1, false, b"a"), data(1, true, b"")], vec!["data 1 a"]),
        (vec![data(1, true, b"abc")], vec![]),
        (vec![data(1, false, b"ab"), data(1, false, b"c")], vec!["data 1 ab"]),
        (vec![headers(1, true, &[("t", "u")])], vec![]),
    ] {
        let make = || established(Role::Server, Limits::default());
        let mut connection = make();
        let bytes = [post(&length("2"), false), frames.concat()].concat();
        let request = request("2");
        let events = feed(&mut connection, &bytes, usize::MAX);
        let expect = [&[request.as_str()][..], &seen, &["reset 1 h2_content_length"]].concat();
        assert_eq!(events, expect);
        assert_eq!(sent(&mut connection), ["RST 1 1"]);
        // Byte by byte, some of it may have been passed on before the error shows.
        let last = feed(&mut make(), &bytes, 1).pop();
        assert_eq!(last.as_deref(), Some("reset 1 h2_content_length"));
    }
}

#[test]
fn trailers_end_the_message_and_frame_nothing() {
    let open = headers(1, false, POST);
    let request = "request 1 POST a/";
    let good = |fields: &[(&str, &str)], text| check(&[open.clone(), headers(1, true, fields)], &[request, text], &[]);
    let bad = |frame: Vec<u8>, reason: &str| {
        check(&[open.clone(), frame], &[request, &format!("reset 1 {reason}")], &["RST 1 1"]);
    };
    good(&[("grpc-status", "0")], "trailers 1 grpc-status=0");
    good(&[], "trailers 1");
    bad(headers(1, false, &[("a", "b")]), "h2_trailers");
    bad(headers(1, true, &[(":path", "/")]), "h2_pseudo_header");
    bad(headers(1, true, &[("a", "b"), (":status", "200")]), "h2_pseudo_header");
    bad(headers(1, true, &[("content-length", "0")]), "h2_trailers");
    bad(headers(1, true, &[("host", "a")]), "h2_trailers");
    bad(headers(1, true, &[("transfer-encoding", "chunked")]), "h2_connection_field");
    bad(headers(1, true, &[("A", "b")]), "h2_field");
}

#[test]
fn responses() {
    let good = |frames: &[Vec<u8>], events: &[&str]| check_client(1, frames, events, &[]);
    let bad = |frames: &[Vec<u8>], reason: &str| {
        check_client(1, frames, &[&format!("reset 1 {reason}")], &["RST 1 1"]);
    };
    let status = |status: &'static str, end| headers(1, end, &[(":status", status)]);
    good(&[status("200", true)], &["response 1 200 end"]);
    good(
        &[
            status("103", false),
            status("100", false),
            status("404", false),
            data(1, false, b"a"),
            headers(1, true, &[]),
        ],
        &["response 1 103", "response 1 100", "response 1 404", "data 1 a", "trailers 1"],
    );
    bad(&[status("101", false)], "h2_response");
    bad(&[status("100", true)], "h2_response");
    bad(&[data(1, true, b"a")], "h2_response");
    for text in ["", "20", "2000", "2x0", "099", "+20", "20 "] {
        let (name, value) = (":status", text);
        let reason = if text.ends_with(' ') { "h2_field" } else { "h2_pseudo_header" };
        bad(&[headers(1, true, &[(name, value)])], reason);
    }
    bad(&[headers(1, true, &[])], "h2_pseudo_header");
    bad(&[headers(1, true, &[OK, OK].concat())], "h2_pseudo_header");
    bad(&[headers(1, true, &[OK, &[(":path", "/")]].concat())], "h2_pseudo_header");
    bad(&[headers(1, true, &[OK, &[("connection", "close")]].concat())], "h2_connection_field");
    let long = headers(1, false, &[OK, &[("content-length", "2")]].concat());
    check_client(1, &[long, data(1, true, b"a")], &["response 1 200", "reset 1 h2_content_length"], &["RST 1 1"]);
    // A status that allows no body.
    let none = headers(1, false, &[(":status", "304"), ("content-length", "2")]);
    good(&[none.clone(), data(1, true, b"")], &["response 1 304", "data 1 ", "end 1"]);
    check_client(1, &[none, data(1, true, b"ab")], &["response 1 304", "reset 1 h2_trailers"], &["RST 1 1"]);
}

#[test]
fn a_response_to_head_has_no_body() {
    let make = || {
        let mut connection = established(Role::Client, Limits::default());
        request(&mut connection, "HEAD", true);
        sent(&mut connection);
        connection
    };
    let head = |end| headers(1, end, &[OK, &[("content-length", "9")]].concat());
    check_with(make, &head(true), &["response 1 200 end"], &[]);
    check_with(make, &[head(false), data(1, true, b"")].concat(), &["response 1 200", "data 1 ", "end 1"], &[]);
    let text = ["response 1 200", "reset 1 h2_trailers"];
    check_with(make, &[head(false), data(1, false, b"x")].concat(), &text, &["RST 1 1"]);
}

#[test]
fn heads_in_their_neutral_form() {
    let mut server = established(Role::Server, Limits::default());
    let take = |server: &mut Connection, id, end, fields: &[(&str, &str)]| {
        let bytes = headers(id, end, fields);
        let handled = server.handle_bytes(0, &bytes).unwrap();
        assert!(matches!(handled.event, Some(Event::Request { .. })), "{handled:?}");
        let (mut head, mut bytes) = (RequestHead::default(), Vec::new());
        server.take_request(&mut head, &mut bytes);
        (head, bytes)
    };
    let more = [("expect", "100-continue"), ("cookie", "a=b"), ("x", "y"), ("cookie", "c=d"), ("cookie", "e=f")];
    let (head, bytes) = take(&mut server, 1, false, &[POST, &more].concat());
    assert_eq!((head.method, head.version, head.body), (Method::Post, Version::Http2, Body::Chunked));
    assert!(head.keep_alive && head.expect_continue && head.upgrade.is_none());
    assert_eq!(head.scheme.get(&bytes), b"http");
    assert_eq!(head.fields.len(), 3);
    assert_eq!(find(&head.fields, FieldId::Cookie).unwrap().value.get(&bytes), b"a=b; c=d; e=f");

    // Empty crumbs leave nothing behind, especially not at the ends.
    let empty = ["", "", "a=b", "", "c=d", ""].map(|crumb| ("cookie", crumb));
    let (head, bytes) = take(&mut server, 9, true, &[GET, &empty].concat());
    assert_eq!(head.fields.len(), 1);
    assert_eq!(find(&head.fields, FieldId::Cookie).unwrap().value.get(&bytes), b"a=b; c=d");

    let (head, _) = take(&mut server, 11, true, &[GET, &[("expect", "100-continue")]].concat());
    assert_eq!((head.body, head.expect_continue, head.fields.len()), (Body::None, false, 1));
    let (head, _) = take(&mut server, 13, false, &[POST, &[("content-length", "7")]].concat());
    assert_eq!(head.body, Body::Length(7));
    let connect = [(":method", "CONNECT"), (":protocol", "websocket"), GET[1], GET[2], GET[3]];
    let (head, bytes) = take(&mut server, 15, false, &connect);
    assert_eq!((head.method, head.upgrade.unwrap().get(&bytes)), (Method::Connect, b"websocket".as_slice()));

    let mut client = established(Role::Client, Limits::default());
    let key = request(&mut client, "GET", true);
    let response = headers(key.id, false, &[OK, &[("content-length", "7")]].concat());
    client.handle_bytes(0, &response).unwrap();
    let (mut head, mut bytes) = (ResponseHead::default(), Vec::new());
    client.take_response(&mut head, &mut bytes);
    assert_eq!((head.status, head.version, head.body), (200, Version::Http2, Body::Length(7)));
    assert_eq!((head.content_length, head.keep_alive), (Some(7), true));
}

#[test]
fn a_mark_against_tables_is_kept() {
    let mut server = established(Role::Server, Limits::default());
    let marked = [&block(GET)[..], b"\x10\x01k\x01v", b"\x10\x06cookie\x01a", &block(&[("cookie", "b")])].concat();
    server.handle_bytes(0, &frame(kind::HEADERS, 5, 1, &marked)).unwrap();
    let (mut head, mut bytes) = (RequestHead::default(), Vec::new());
    server.take_request(&mut head, &mut bytes);
    assert!(head.fields.iter().all(|field| field.never_indexed), "{:?}", head.fields);
}
