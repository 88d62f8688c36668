//! An API server that has these objects and nothing else: it answers lists, and watches in which nothing ever happens. What is written to it is
//! accepted and forgotten. The controller is tested against the real one in `kube`.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

use serde_json::{Value, json};
use testkit::Conn;

/// Starts it, on threads of this process. The objects are under the plural of their kind.
pub fn start(address: SocketAddr, objects: BTreeMap<String, Vec<Value>>) {
    let listener = TcpListener::bind(address).unwrap();
    let objects = Arc::new(objects);
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let objects = objects.clone();
            std::thread::spawn(move || serve(stream, &objects));
        }
    });
}

fn serve(stream: TcpStream, objects: &BTreeMap<String, Vec<Value>>) {
    let Ok(mut conn) = Conn::new("api", stream) else { return };
    while let Ok(request) = conn.request() {
        let (path, query) = request.target.split_once('?').unwrap_or((&request.target, ""));
        let found = objects.get(path.rsplit('/').next().unwrap_or_default());
        let (status, body) = match (request.method.as_str(), found) {
            ("GET", Some(_)) if query.contains("watch=") => {
                let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
                if conn.send(head.as_bytes()).is_err() {
                    return;
                }
                // The client ends it.
                while conn.expect_end().is_err() {}
                return;
            }
            ("GET", Some(found)) => (200, list(found, query)),
            ("GET", None) => (404, json!({"kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404})),
            _ => (201, serde_json::from_slice(&request.body).unwrap_or_default()),
        };
        let body = body.to_string();
        let head = format!(
            "HTTP/1.1 {status} Said\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        if conn.send((head + &body).as_bytes()).is_err() {
            return;
        }
    }
}

/// Those of the type that a query asks for: `type=X` and `type!=X`, escaped.
fn list(objects: &[Value], query: &str) -> Value {
    let query = query.replace("%2F", "/").replace("%21", "!").replace("%3D", "=").replace("%2C", ",");
    let selector = query.split('&').find_map(|part| part.strip_prefix("fieldSelector=")).unwrap_or_default();
    let is_wanted = |object: &&Value| {
        selector.split(',').all(|term| match (term.strip_prefix("type!="), term.strip_prefix("type=")) {
            (Some(other), _) => object["type"] != other,
            (None, Some(kind)) => object["type"] == kind,
            (None, None) => true,
        })
    };
    let items: Vec<&Value> = objects.iter().filter(is_wanted).collect();
    json!({"metadata": {"resourceVersion": "1"}, "items": items})
}
