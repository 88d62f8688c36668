//! What the reader makes of whole files: the forms, what cannot be read, and where it ends. The forms of single lines are tested beside their readers.

use super::*;

fn all(text: &str, wish: Wish<'_>) -> io::Result<(Vec<Entry>, Read)> {
    let mut entries = Vec::new();
    let read = read(text.as_bytes(), wish, &mut |entry| {
        entries.push(entry);
        true
    })?;
    Ok((entries, read))
}

#[test]
fn requests_of_every_form() {
    let check = |text: &str, expect: &[&str]| {
        let wish = Wish { host: text.contains("HTTP/1.1").then_some("a.example"), ..Wish::default() };
        let (found, _) = all(text, wish).unwrap_or_else(|why| panic!("{text}: {why}"));
        let told =
            |Entry { request, .. }: &Entry| format!("{} {} {:?}", request.method, request.url(), request.headers);
        assert_eq!(found.iter().map(told).collect::<Vec<_>>(), expect, "{text}");
    };
    check(
        "# a list\n\nGET https://b.example:8443/x?y\tA: b\tC: d\n",
        &["GET https://b.example:8443/x?y [(\"A\", \"b\"), (\"C\", \"d\")]"],
    );
    check("\u{feff}GET http://b.example?x\r\nDELETE /y", &["GET http://b.example/?x []", "DELETE http:///y []"]);
    // A quote in a header is no sign of a log.
    check(
        "GET http://b.example/\tIf-None-Match: \"x\"",
        &["GET http://b.example/ [(\"If-None-Match\", \"\\\"x\\\"\")]"],
    );
    check("GET http://[2001:db8::1]:80/a|b^c", &["GET http://[2001:db8::1]:80/a|b%5Ec []"]);
    check(
        r#"10.0.0.1 - - [24/Nov/2026:10:00:00 +0000] "GET /a?b=%20 HTTP/1.1" 200 12 "-" "curl" 80 0.001 [x] [] 10.0.0.2:80 12 0.001 200 abc"#,
        &["GET http://a.example/a?b=%20 []"],
    );
    let har = r#"{"log": {"entries": [{"request": {"method": "POST", "url": "https://b.example/x#y", "headers": [{"name": ":path", "value": "/x"}, {"name": "Host", "value": "b"}, {"name": "a", "value": "b"}], "postData": {"text": "body"}}}]}}"#;
    let expect = ["POST https://b.example/x [(\"a\", \"b\")]"];
    check(har, &expect);
    check(&har.replace(", ", ",\n"), &expect);
    let lines = "{\"method\": \"GET\", \"path\": \"/1\"}\n{broken\n{\"method\": \"GET\", \"path\": \"/2\"}\n";
    check(lines, &["GET http:///1 []", "GET http:///2 []"]);
    // A log that was cut at its begin.
    check(&format!("{{broken\n{lines}"), &["GET http:///1 []", "GET http:///2 []"]);
}

#[test]
fn what_is_no_request() {
    let wish = Wish { without_host: Some("it names no host: give --host"), ..Wish::default() };
    let check = |text: &str, part: &str| {
        let why = all(text, wish).unwrap_err().to_string();
        assert!(why.contains(part), "{text}: {why}");
    };
    check("GET /x", "line 1: it names no host");
    check("GET ftp://a/", "METHOD URL");
    check("GET http://a/x y", "METHOD URL");
    check("CONNECT http://a/", "METHOD URL");
    check("GET http://a/\tx: a\u{7}b", "is no header");
    check("GET http://a/\tx y: b", "is no header");
    check(r#"1.1.1.1 - - [x] "GET /a HTTP/1.1" 200 0"#, "--host");
    check(r#"1.1.1.1 - - [x] "\x16\x03" 400 0"#, "none of its 1 entries");
    check("{", "a HAR file");
    check("{\"log\": {}}", "it has neither request");
    check("GET http://a:b:c/x", "METHOD URL");
    check("GET http://a:70000/x", "METHOD URL");
    check("GET http://[::1/x", "METHOD URL");
    check("GET http://a]/x", "METHOD URL");
    check(&format!("GET http://a/{}", "\u{e9}".repeat(TARGET_BYTES_MAX / 6 + 1)), "METHOD URL");
    check(&format!("GET http://a/{}", "\tx: y".repeat(HEADERS_MAX + 1)), "more than 128 headers");
    check("GET http://a/\tHost: a\tHost: b", "a second one");
    check("GET http://a/\tHost: a/b", "is no host");
    check("{\"log\": {\"entries\": [7]}}", "HAR file");
    check("", "there is no request in it");
    check("\n\n# nothing\n", "there is no request in it");
}

#[test]
fn lines_that_cannot_be_read_are_counted_and_the_first_is_kept() {
    let long = "x".repeat(LINE_BYTES_MAX + 1);
    let check = |text: &str, first: &str| {
        let (entries, read) = all(text, Wish::default()).unwrap();
        let targets: Vec<_> = entries.iter().map(|entry| entry.request.target.as_str()).collect();
        assert_eq!((targets.as_slice(), read.taken, read.skipped), (["/1", "/2"].as_slice(), 2, 2));
        assert_eq!(read.first, first);
    };
    check(&format!("GET /1\nnothing\n\nGET /2\n{long}\n"), "line 2: it has no request line");
    check(&format!("{long}\nGET /1\nGET /2\n{long}"), "line 1: it is longer than 65536 bytes");
    check(&format!("\n{{{long}\nGET /1\nGET /2\n-"), "line 2: it is longer than 65536 bytes");
}

#[test]
fn reading_stops_when_enough_is_taken() {
    let mut left = 2;
    let read = read("GET /1\nGET /2\nGET /3\n".as_bytes(), Wish::default(), &mut |_| {
        left -= 1;
        left > 0
    });
    assert_eq!(read.unwrap().taken, 2);
}

#[test]
fn a_har_file_that_breaks_is_never_read_as_lines() {
    let whole = "{\"log\": {\"version\": \"1.2\", \"pages\": [],\n\"entries\": [{\"request\": {\"method\": \"GET\", \"url\": \"http://a/\"},\n\"response\": {\"content\": {\"text\":\n\"DELETE /orders/7 HTTP/1.1\"}}}]}}\n";
    assert_eq!(all(whole, Wish::default()).unwrap().1.taken, 1);
    for text in [&whole[..whole.len() - 4], &whole[..60], &whole.replace("}}}", "}}"), &whole.replace('\n', " ")[..150]]
    {
        let why = all(text, Wish::default()).unwrap_err().to_string();
        assert!(why.contains("it cannot be read as a HAR file") && why.contains("at line "), "{text}: {why}");
    }
    // The members may be in any order.
    let why =
        all("{\"x\": {\"log\": 1},\n\"log\": {\"creator\": {},\n\"x\": GET /a HTTP/1.1", Wish::default()).unwrap_err();
    assert!(why.to_string().contains("line 3"), "{why}");
    // A second file is not read, which is said.
    let line = "{\"log\": {\"entries\": [{\"request\": {\"method\": \"GET\", \"url\": \"http://a/1\"}}]}}\n";
    let (entries, read) = all(&line.repeat(2), Wish::default()).unwrap();
    assert_eq!((entries.len(), read.skipped), (1, 1));
    assert!(read.first.contains("only the first document"), "{}", read.first);
    // A log may have objects with these names.
    let log = "{\"log\":{\"offset\":1,\"version\":2},\"method\":\"GET\",\"path\":\"/a\"}\n{\"method\":\"GET\",\"path\":\"/b\"}\n";
    assert_eq!(all(log, Wish::default()).unwrap().0.len(), 2);
}

#[test]
fn headers_of_a_list_that_belong_to_a_connection_are_not_sent() {
    let text = "GET http://a/x\tHost: b.example:81\tConnection: close\tUpgrade: x\tExpect: 100-continue\tTransfer-Encoding: chunked\t\
                Content-Length: 7\tTE: trailers\tKeep-Alive: 1\tProxy-Authorization: x\tproxy-x: y\tAccept: z";
    let request = all(text, Wish::default()).unwrap().0.remove(0).request;
    assert_eq!((request.host.as_str(), request.headers), ("b.example:81", vec![("Accept".to_owned(), "z".to_owned())]));
}

#[test]
fn many_small_headers_count_with_their_allocations() {
    let mut request = Recorded::get(false, "a", "/", "");
    let before = request.bytes();
    request.headers = vec![("a".to_owned(), String::new()); 100];
    assert!(request.bytes() - before >= 100 * (size_of::<(String, String)>() + 1 + 2 * ALLOCATION_BYTES));
}
