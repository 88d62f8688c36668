//! Endpoints that say in their responses what they got: `x-endpoint` is their name, `x-seen-NAME` a header of the request, and the body has
//! the method, the target and the body. Headers of the request say how to answer.

use std::collections::HashMap;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{LazyLock, Mutex};

use testkit::Conn;
use testkit::strict::{Request, values};

/// Headers that differ from request to request, or belong to the connection.
const NOT_SHOWN: [&str; 4] = ["connection", "x-request-id", "content-length", "transfer-encoding"];

/// The one that is asked who may use a route.
const AUTH: &str = "auth";

/// Starts one, on threads of this process.
pub fn start(address: SocketAddr, name: &'static str) {
    let listener = TcpListener::bind(address).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || serve(stream, name));
        }
    });
}

fn serve(stream: TcpStream, name: &str) {
    let Ok(mut conn) = Conn::new(name, stream) else { return };
    // It ends when the other side does.
    while let Ok(request) = conn.request() {
        // The question of a request has its headers, too.
        let how = asked(&request, "x-echo").filter(|_| name != AUTH);
        match how.as_deref() {
            Some("close") => return,
            // Until the other side gives up.
            Some("silent") => drop(conn.expect_end()),
            _ => {}
        }
        if conn.send(&response(&request, name)).is_err() {
            return;
        }
    }
}

/// How often this has been asked about a host by the one who asks now. nginx has a header of its own.
fn times(request: &Request) -> usize {
    static COUNTS: LazyLock<Mutex<HashMap<(bool, String), usize>>> = LazyLock::new(Mutex::default);
    let url = asked(request, "x-original-url").unwrap_or_default();
    let host = url.split('/').nth(2).unwrap_or_default().to_owned();
    let mut counts = COUNTS.lock().unwrap();
    let count = counts.entry((asked(request, "x-sent-from").is_some(), host)).or_default();
    *count += 1;
    *count
}

fn asked(request: &Request, name: &str) -> Option<String> {
    values(&request.headers, name).first().map(|value| String::from_utf8_lossy(value).into_owned())
}

fn response(request: &Request, name: &str) -> Vec<u8> {
    let is_auth = name == AUTH;
    let status =
        asked(request, if is_auth { "x-auth-status" } else { "x-echo-status" }).unwrap_or_else(|| "200".into());
    let mut head = format!("HTTP/1.1 {status} Said\r\nx-endpoint: {name}\r\ncontent-type: text/plain\r\n");
    if is_auth {
        let host = asked(request, "host").unwrap_or_default();
        head.push_str(&format!("x-user: {} {} {host}\r\nx-team: red\r\n", request.method, request.target));
        let heard = ["x-auth-request-redirect", "x-app", "x-from", "x-none"]
            .map(|name| asked(request, name).unwrap_or_default());
        head.push_str(&format!("x-heard: {}.\r\n", heard.join("|")));
        head.push_str("www-authenticate: Bearer\r\n");
        match asked(request, "x-auth-set") {
            Some(fields) => {
                // Instead of a cookie. Who asks how often is only counted here, where answers may be remembered.
                head.push_str(&format!("x-times: {}\r\n", times(request)));
                fields.split('~').for_each(|field| head.push_str(&format!("{field}\r\n")));
            }
            None => head.push_str("set-cookie: auth=1\r\n"),
        }
    }
    if let Some(field) = asked(request, "x-echo-set").filter(|_| !is_auth) {
        head.push_str(&format!("{field}\r\n"));
    }
    for field in request.headers.iter().filter(|field| !NOT_SHOWN.contains(&field.name.to_ascii_lowercase().as_str())) {
        let (name, value) = (field.name.to_ascii_lowercase(), String::from_utf8_lossy(&field.value));
        head.push_str(&format!("x-seen-{name}: {value}\r\n"));
    }
    let has_id = !values(&request.headers, "x-request-id").is_empty();
    head.push_str(&format!("x-seen-x-request-id: {has_id}\r\n"));
    let body = format!("{} {}\n{}", request.method, request.target, String::from_utf8_lossy(&request.body));
    let body = if status == "204" { "" } else { &body };
    if status != "204" {
        head.push_str(&format!("content-length: {}\r\n", body.len()));
    }
    let sent = if request.method == "HEAD" { "" } else { body };
    format!("{head}\r\n{sent}").into_bytes()
}
