//! HTTP/2 through the whole binary, in all combinations with HTTP/1.1, with clients and origins of other implementations.
#![forbid(unsafe_code)]

#[path = "support/frames.rs"]
mod frames;
#[path = "support/sides.rs"]
mod sides;
mod support;

use std::cell::Cell;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::Pin;
use std::process::Command;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use sides::{Ask, BIG, Client, MIXTURES, Side, Speaks, head_of, pattern, runtime, send};
use support::{Steelyard, local, port};
use testkit::{Exit, PATIENCE, Signal};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// A balancer between clients and endpoints that use these protocols.
struct Between {
    balancer: Steelyard,
    address: SocketAddr,
    origins: Vec<Side>,
}

impl Between {
    fn start(endpoints: Speaks) -> Self {
        Self::with(vec![Side::start(endpoints)], endpoints, "", "", 1)
    }

    fn with(origins: Vec<Side>, endpoints: Speaks, listener: &str, cluster: &str, workers: u16) -> Self {
        let address = local(port());
        let config = config(address, &origins, endpoints, listener, cluster);
        Self { balancer: Steelyard::serve(&config, workers), address, origins }
    }

    fn origin(&self) -> &Side {
        &self.origins[0]
    }

    fn refused(&self, reason: &str) -> f64 {
        self.balancer.metric("steelyard_refused_total", &[("listener", "web"), ("reason", reason)])
    }

    /// Waits for a condition without an event of its own, while connections continue.
    async fn until(&self, what: &str, is_there: impl Fn(&Side) -> bool) {
        let looks = async {
            while !is_there(self.origin()) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(PATIENCE, looks).await.unwrap_or_else(|_| panic!("never: {what}"));
    }
}

fn config(address: SocketAddr, origins: &[Side], endpoints: Speaks, listener: &str, cluster: &str) -> String {
    let protocol = if endpoints == Speaks::H2 { "protocol: h2c" } else { "protocol: h1" };
    let addresses: Vec<String> = origins.iter().map(|origin| origin.address.to_string()).collect();
    format!(
        "admin: {{admin}}
listeners:
  web:
    bind: {address}
    protocol: http
    to: web
{listener}
clusters:
  web:
    endpoints: [{}]
    {protocol}
{cluster}
",
        addresses.join(", ")
    )
}

/// A client with large windows sends nothing while it downloads, so only the balancer's own writing can move the response on.
#[test]
fn a_large_download_needs_no_word_of_its_client() {
    const BODY_BYTES: usize = 8 * 1024 * 1024;
    let origin = support::Origin::start_at(local(0), "large", BODY_BYTES as u64);
    let address = local(port());
    let config = format!(
        "admin: {{admin}}
listeners:
  web: {{bind: '{address}', protocol: http, to: web}}
clusters:
  web: {{endpoints: ['{}']}}
",
        origin.address
    );
    let _balancer = Steelyard::serve(&config, 1);
    let largest = i32::MAX as u32;
    let mut client = frames::Client::connect(address, &[(frames::setting::INITIAL_WINDOW_SIZE, largest)]);
    client.send(&frames::window_update(0, largest - 65_535));
    let stream = client.open(&frames::block(&frames::GET), true);
    let mut received = 0;
    loop {
        let frame = client.frame().unwrap_or_else(|| panic!("nothing more after {received} bytes"));
        assert_ne!(frame.kind, frames::kind::RST_STREAM, "after {received} bytes");
        if frame.stream == stream && frame.kind == frames::kind::DATA {
            received += frame.payload.len();
            if frame.flags & frames::flag::END_STREAM != 0 {
                break;
            }
        }
    }
    assert_eq!(received, BODY_BYTES);
}

/// Runs a test for each pair of protocols, and prints the pair for a failure.
fn each(test: impl AsyncFn(Speaks, &mut Between)) {
    for (client, endpoint) in MIXTURES {
        println!("{client:?} to {endpoint:?}");
        let mut between = Between::start(endpoint);
        runtime().block_on(test(client, &mut between));
    }
}

#[test]
fn requests_and_responses_go_through_in_every_mixture() {
    each(async |speaks, between| {
        let mut client = Client::connect(speaks, between.address).await;
        let small = client.ask(&Ask::get("/small")).await.unwrap();
        assert_eq!((small.status, small.body.as_slice()), (200, &b"small"[..]));
        let head = client.ask(&Ask { method: "HEAD", ..Ask::get("/small") }).await.unwrap();
        assert_eq!((head.status, head.body.len()), (200, 0));
        assert_eq!(client.ask(&Ask::get("/none")).await.unwrap().status, 204);
        assert_eq!(client.ask(&Ask::get("/other")).await.unwrap().status, 404);
        let big = client.ask(&Ask::get("/big")).await.unwrap();
        assert!(big.body == pattern(BIG), "{} bytes", big.body.len());
        let counted = client.ask(&Ask::post("/count", &pattern(BIG))).await.unwrap();
        assert_eq!(counted.body, BIG.to_string().as_bytes());
        assert_eq!(between.origin().seen.requests.load(Relaxed), 6);
    });
}

#[test]
fn bodies_and_trailers_go_both_ways_at_once() {
    each(async |speaks, between| {
        let mut client = Client::connect(speaks, between.address).await;
        let body = pattern(1_000_000);
        let ask = Ask { trailers: &[("x-up", "going")], ..Ask::post("/echo", &body) };
        let reply = client.ask(&ask).await.unwrap();
        assert!(reply.body == body, "{} bytes", reply.body.len());
        assert_eq!((reply.trailer("x-sum"), reply.trailer("x-came")), (Some("1000000"), Some("going")));
        let none = client.ask(&Ask { trailers: &[("x-up", "alone")], ..Ask::post("/echo", b"") }).await.unwrap();
        assert_eq!((none.trailer("x-sum"), none.trailer("x-came")), (Some("0"), Some("alone")));
    });
}

#[test]
fn the_last_of_a_body_says_that_it_is_the_last() {
    // A separate frame for END_STREAM would be one more frame to write and read for each small response.
    for endpoints in [Speaks::H1, Speaks::H2] {
        let between = Between::start(endpoints);
        let mut client = frames::Client::connect(between.address, &[]);
        for _ in 0..3 {
            let asked = [&frames::GET[..3], &[(&b":path"[..], &b"/small"[..])]].concat();
            let stream = client.open(&frames::block(&asked), true);
            let mut got = Vec::new();
            while got.last().is_none_or(|(_, is_end, _)| !is_end) {
                let frame = client.frame().unwrap();
                if frame.stream == stream {
                    got.push((frame.kind, frame.flags & frames::flag::END_STREAM != 0, frame.payload));
                }
            }
            let [(first, false, _), (second, true, body)] = &got[..] else { panic!("{endpoints:?}: {got:?}") };
            assert_eq!((*first, *second), (frames::kind::HEADERS, frames::kind::DATA), "{endpoints:?}");
            assert_eq!(body, b"small", "{endpoints:?}");
        }
    }
}

#[test]
fn heads_say_what_the_other_side_has_to_know() {
    each(async |speaks, between| {
        let mut client = Client::connect(speaks, between.address).await;
        let mut fields = vec![("cookie", "a=1"), ("x-mine", "1"), ("te", "trailers"), ("forwarded", "for=6.6.6.6")];
        match speaks {
            Speaks::H1 => fields.extend([("connection", "te, x-gone"), ("x-gone", "1"), ("upgrade", "h2c")]),
            Speaks::H2 => fields.push(("cookie", "b=2")),
        }
        let reply = client.ask(&Ask { fields: &fields, ..Ask::get("/small") }).await.unwrap();
        assert_eq!(reply.status, 200);
        let seen = &between.origin().seen;
        let is_h2 = seen.field(":scheme").is_some();
        let host = seen.field(if is_h2 { ":authority" } else { "host" });
        assert_eq!(host.as_deref(), Some("example.com"));
        assert_eq!(seen.field("x-mine").as_deref(), Some("1"));
        assert_eq!(seen.field("cookie").as_deref(), Some(if speaks == Speaks::H2 { "a=1; b=2" } else { "a=1" }));
        assert_eq!(seen.field("te").as_deref(), is_h2.then_some("trailers"));
        assert_eq!(seen.field("x-forwarded-for").as_deref(), Some("127.0.0.1"));
        assert_eq!(seen.field("x-forwarded-proto").as_deref(), Some("http"));
        for gone in ["connection", "x-gone", "upgrade", "transfer-encoding", "forwarded", "keep-alive"] {
            assert_eq!(seen.field(gone), None, "{gone}");
        }
    });
}

#[test]
fn interim_responses_are_passed_on() {
    each(async |speaks, between| {
        let mut client = Client::connect(speaks, between.address).await;
        let hinted = client.ask(&Ask::get("/interim")).await.unwrap();
        assert_eq!((hinted.status, hinted.interims), (200, vec![103]));
        let ask = Ask { fields: &[("expect", "100-continue")], ..Ask::post("/continue", b"body") };
        let continued = client.ask(&ask).await.unwrap();
        assert_eq!((continued.status, continued.interims, continued.body.as_slice()), (200, vec![100], &b"body"[..]));
    });
}

#[test]
fn what_fails_is_seen_to_fail() {
    each(async |speaks, between| {
        let mut client = Client::connect(speaks, between.address).await;
        // Before any byte of an answer.
        let reset = client.ask(&Ask::post("/reset", b"")).await.unwrap();
        assert_eq!(reset.status, 502);
        let mut client = Client::connect(speaks, between.address).await;
        // In the middle of an answer.
        assert!(client.ask(&Ask::get("/break")).await.is_err());
        // The balancer does not wait for an unwanted body.
        let mut client = Client::connect(speaks, between.address).await;
        assert_eq!(client.ask(&Ask::post("/early", &pattern(BIG))).await.unwrap().status, 413);
        let mut client = Client::connect(speaks, between.address).await;
        assert_eq!(client.ask(&Ask::get("/small")).await.unwrap().status, 200);
    });
}

#[test]
fn a_response_ends_an_upload_that_the_endpoint_does_not_read() {
    /// More than the buffers of two connections hold.
    const UPLOAD: usize = 32 << 20;
    let upload = vec![b'x'; UPLOAD];
    each(async |speaks, between| {
        for path in ["/answered", "/answered-last"] {
            let mut client = Client::connect(speaks, between.address).await;
            // The client stops sending only when it must, because of NO_ERROR (RFC 9113 section 8.1) or the end of its connection.
            let reply = client.ask(&Ask::post(path, &upload)).await.unwrap_or_else(|error| panic!("{path}: {error}"));
            assert_eq!((reply.status, reply.body.as_slice()), (200, &b"kept"[..]), "{path}");
            if speaks == Speaks::H2 {
                assert_eq!(client.ask(&Ask::get("/small")).await.unwrap().status, 200);
            }
        }
    });
}

#[test]
fn a_client_that_gives_up_stops_its_origin() {
    for endpoint in [Speaks::H1, Speaks::H2] {
        let between = Between::start(endpoint);
        let address = between.address;
        let (ask, rest) = (Ask::get("/hang"), Ask::get("/small"));
        runtime().block_on(async {
            let Client::H2(send) = Client::connect(Speaks::H2, address).await else { unreachable!("speaks h2") };
            let (response, mut stream) = send.clone().ready().await.unwrap().send_request(head_of(&ask), true).unwrap();
            between.until("a request", |origin| origin.seen.requests.load(Relaxed) == 1).await;
            stream.send_reset(h2::Reason::CANCEL);
            drop(response);
            between.until("its end", |origin| origin.seen.cut.load(Relaxed) == 1).await;
            assert_eq!(Client::H2(send).ask(&rest).await.unwrap().status, 200);
        });
    }
}

#[test]
fn messages_flow_both_ways_before_either_side_has_ended() {
    let between = Between::start(Speaks::H2);
    runtime().block_on(async {
        let Client::H2(send_request) = Client::connect(Speaks::H2, between.address).await else { return };
        let ask = Ask::post("/echo", b"");
        let (response, mut to) = send_request.ready().await.unwrap().send_request(head_of(&ask), false).unwrap();
        let mut body = timeout(PATIENCE, response).await.unwrap().unwrap().into_body();
        for message in ["one", "two", "three"] {
            send(&mut to, message.as_bytes(), false).await.unwrap();
            let heard = timeout(PATIENCE, body.data()).await.unwrap().unwrap().unwrap();
            assert_eq!(heard, message);
            body.flow_control().release_capacity(heard.len()).unwrap();
        }
        send(&mut to, b"x", true).await.unwrap();
        assert_eq!(body.data().await.unwrap().unwrap(), "x");
        assert!(body.data().await.is_none());
        assert_eq!(body.trailers().await.unwrap().unwrap()["x-sum"], "12");
    });
}

#[test]
fn a_client_that_does_not_read_stops_its_origin_and_nobody_else() {
    for endpoint in [Speaks::H1, Speaks::H2] {
        let between = Between::start(endpoint);
        runtime().block_on(async {
            let Client::H2(send_request) = Client::connect(Speaks::H2, between.address).await else { return };
            let mut stalled = Vec::new();
            for _ in 0..20 {
                let ready = send_request.clone().ready().await.unwrap();
                let (response, _) = ready.clone().send_request(head_of(&Ask::get("/big")), true).unwrap();
                // Its body is not read.
                stalled.push(timeout(PATIENCE, response).await.unwrap().unwrap());
            }
            // Over another connection to the same endpoint, on which twenty streams have stalled.
            let mut other = Client::connect(Speaks::H2, between.address).await;
            assert_eq!(other.ask(&Ask::get("/small")).await.unwrap().status, 200);
            let reply = other.ask(&Ask::get("/big")).await.unwrap();
            assert!(reply.body == pattern(BIG), "{} bytes", reply.body.len());
            drop(stalled);
        });
    }
}

#[test]
fn an_origin_that_does_not_read_stops_its_client() {
    for endpoint in [Speaks::H1, Speaks::H2] {
        let between = Between::start(endpoint);
        runtime().block_on(async {
            let Client::H2(send_request) = Client::connect(Speaks::H2, between.address).await else { return };
            let ask = Ask::post("/stall", b"");
            let (_response, mut to) = send_request.ready().await.unwrap().send_request(head_of(&ask), false).unwrap();
            // The buffers on the way fill up, and then nothing more is accepted. The limit is far above the sum of all windows and socket
            // buffers.
            let mut sent = 0;
            to.reserve_capacity(64 * 1024);
            let quiet = Duration::from_millis(300);
            while let Ok(room) = timeout(quiet, poll_fn(|cx| to.poll_capacity(cx))).await {
                let room = room.unwrap().unwrap();
                to.send_data(Bytes::from(vec![7; room]), false).unwrap();
                sent += room;
                assert!(sent < 64 * 1024 * 1024, "{endpoint:?}: nothing stops the client");
                to.reserve_capacity(64 * 1024);
            }
        });
    }
}

#[test]
fn both_versions_are_spoken_on_one_port() {
    let between = Between::start(Speaks::H1);
    runtime().block_on(async {
        for speaks in [Speaks::H1, Speaks::H2, Speaks::H1] {
            let mut client = Client::connect(speaks, between.address).await;
            assert_eq!(client.ask(&Ask::get("/small")).await.unwrap().status, 200);
        }
    });
    // And with a common client.
    let curl = |option: &str| {
        let url = format!("http://{}/small", between.address);
        let form = "%{http_version} %{http_code}";
        let output = Command::new("curl").args(["-s", "-o", "/dev/null", "-w", form, option, &url]).output();
        output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
    };
    match curl("--http2-prior-knowledge") {
        Ok(said) => assert_eq!(said, "2 200"),
        Err(error) => support::skip("curl over HTTP/2", &error.to_string()),
    }
}

#[test]
fn a_refused_stream_is_sent_again() {
    let between = Between::start(Speaks::H2);
    runtime().block_on(async {
        for speaks in [Speaks::H2, Speaks::H1] {
            between.origin().seen.cut.store(0, Relaxed);
            let mut client = Client::connect(speaks, between.address).await;
            assert_eq!(client.ask(&Ask::get("/small")).await.unwrap().status, 200);
            // It is not idempotent, but the endpoint said that it did not process it.
            assert_eq!(client.ask(&Ask::post("/refuse", b"body")).await.unwrap().status, 200);
        }
    });
    // A connection whose endpoint refuses a stream counts like a new one, and asking again has its price.
    let count = |name| between.balancer.metric(name, &[("cluster", "web")]);
    assert_eq!(count("steelyard_cluster_connects_total"), 1.0);
    assert_eq!((count("steelyard_cluster_stale_reuse_total"), count("steelyard_cluster_retries_total")), (0.0, 2.0));
}

#[test]
fn requests_of_one_connection_are_spread_and_limits_are_kept() {
    let origins = (0..3).map(|_| Side::start_at(local(0), Speaks::H2, 5)).collect();
    let between = Between::with(origins, Speaks::H2, "", "", 1);
    runtime().block_on(async {
        let Client::H2(send_request) = Client::connect(Speaks::H2, between.address).await else { return };
        let mut open = Vec::new();
        for _ in 0..60 {
            let ready = send_request.clone().ready().await.unwrap();
            let (response, to) = ready.clone().send_request(head_of(&Ask::post("/echo", b"")), false).unwrap();
            open.push((response, to));
        }
        for (response, _) in &mut open {
            assert_eq!(timeout(PATIENCE, response).await.unwrap().unwrap().status(), 200);
        }
    });
    for origin in &between.origins {
        let (requests, connections) = (origin.seen.requests.load(Relaxed), origin.seen.connections.load(Relaxed));
        // Twenty at once, five per connection.
        assert_eq!((requests, connections), (20, 4));
    }
}

/// Opens a tunnel with the fields that extended CONNECT needs.
async fn open_tunnel(
    send_request: &h2::client::SendRequest<Bytes>,
    path: &str,
) -> (http::Response<h2::RecvStream>, h2::SendStream<Bytes>) {
    let mut ready = send_request.clone().ready().await.unwrap();
    let mut request = head_of(&Ask { method: "CONNECT", ..Ask::get(path) });
    request.extensions_mut().insert(h2::ext::Protocol::from_static("websocket"));
    let (response, to) = ready.send_request(request, false).unwrap();
    (timeout(PATIENCE, response).await.unwrap().unwrap(), to)
}

#[test]
fn a_tunnel_is_opened_by_extended_connect() {
    for endpoint in [Speaks::H1, Speaks::H2] {
        let between = Between::start(endpoint);
        runtime().block_on(async {
            let Client::H2(send_request) = Client::connect(Speaks::H2, between.address).await else { return };
            let (response, mut to) = open_tunnel(&send_request, "/socket").await;
            assert_eq!(response.status(), 200);
            let mut body = response.into_body();
            for word in ["hello", "again"] {
                to.send_data(word.into(), false).unwrap();
                assert_eq!(timeout(PATIENCE, body.data()).await.unwrap().unwrap().unwrap(), word);
            }
            to.send_data(Bytes::new(), true).unwrap();
            while let Some(rest) = timeout(PATIENCE, body.data()).await.unwrap() {
                assert_eq!(rest.unwrap(), "", "what ends it");
            }
        });
        let seen = &between.origin().seen;
        let told = [":method", ":protocol", "upgrade", "connection"].map(|name| seen.field(name));
        let expect = match endpoint {
            Speaks::H1 => [Some("GET"), None, Some("websocket"), Some("upgrade")],
            Speaks::H2 => [Some("CONNECT"), Some("websocket"), None, None],
        };
        assert_eq!(told.each_ref().map(Option::as_deref), expect, "{endpoint:?}");
        assert_eq!(seen.field("x-forwarded-for").as_deref(), Some("127.0.0.1"), "{endpoint:?}");
    }
}

#[test]
fn tunnels_of_one_connection_move_bulk_beside_each_other() {
    for endpoint in [Speaks::H1, Speaks::H2] {
        let between = Between::start(endpoint);
        runtime().block_on(async {
            let Client::H2(send_request) = Client::connect(Speaks::H2, between.address).await else { return };
            let bulk = async || {
                let (response, mut to) = open_tunnel(&send_request, "/socket").await;
                let mut body = response.into_body();
                let expect = pattern(BIG);
                let say = async { send(&mut to, &expect, true).await.unwrap() };
                let hear = async {
                    let mut heard = Vec::new();
                    while let Some(piece) = timeout(PATIENCE, body.data()).await.expect("the tunnel has stopped") {
                        let piece = piece.unwrap();
                        heard.extend_from_slice(&piece);
                        body.flow_control().release_capacity(piece.len()).unwrap();
                    }
                    heard
                };
                let (heard, ()) = tokio::join!(hear, say);
                assert!(heard == expect, "{endpoint:?}: {} bytes", heard.len());
            };
            tokio::join!(bulk(), bulk());
        });
    }
}

#[test]
fn a_tunnel_that_is_reset_or_refused_takes_nothing_with_it() {
    let between = Between::start(Speaks::H2);
    runtime().block_on(async {
        let Client::H2(send_request) = Client::connect(Speaks::H2, between.address).await else { return };
        let (refused, _to) = open_tunnel(&send_request, "/nowhere").await;
        assert_eq!(refused.status(), 404);
        let (response, mut to) = open_tunnel(&send_request, "/socket").await;
        assert_eq!(response.status(), 200);
        to.send_reset(h2::Reason::CANCEL);
        between.until("the endpoint sees the reset", |origin| origin.seen.cut.load(Relaxed) == 1).await;
        assert_eq!(Client::H2(send_request).ask(&Ask::get("/small")).await.unwrap().status, 200);
        // All over one connection.
        assert_eq!(between.origin().seen.connections.load(Relaxed), 1);
    });
}

#[test]
fn an_endpoint_that_takes_no_tunnel_is_not_asked_for_one() {
    let between = Between::with(vec![Side::start_without_connect()], Speaks::H2, "", "", 1);
    runtime().block_on(async {
        let Client::H2(send_request) = Client::connect(Speaks::H2, between.address).await else { return };
        let (refused, _to) = open_tunnel(&send_request, "/socket").await;
        assert_eq!(refused.status(), 501);
        assert_eq!(Client::H2(send_request).ask(&Ask::get("/small")).await.unwrap().status, 200);
    });
    assert_eq!(between.refused("upstream_no_tunnel"), 1.0);
    // It has had one request and no fault.
    assert_eq!(between.origin().seen.requests.load(Relaxed), 1);
    assert_eq!(between.balancer.metric("steelyard_endpoint_failures_total", &[("cluster", "web")]), 0.0);
}

#[test]
fn an_endpoint_that_does_not_speak_it_is_told_from_one_that_fails() {
    let origin = Side::start(Speaks::H1);
    let between = Between::with(vec![origin], Speaks::H2, "", "", 1);
    runtime().block_on(async {
        let mut client = Client::connect(Speaks::H2, between.address).await;
        assert_eq!(client.ask(&Ask::get("/small")).await.unwrap().status, 502);
    });
    assert_eq!(between.refused("upstream_h2"), 1.0);
}

#[test]
fn a_drain_finishes_what_has_begun() {
    for endpoint in [Speaks::H1, Speaks::H2] {
        let mut between = Between::start(endpoint);
        let runtime = runtime();
        runtime.block_on(async {
            let Client::H2(send_request) = Client::connect(Speaks::H2, between.address).await else { return };
            let mut ready = send_request.clone().ready().await.unwrap();
            let (response, mut to) = ready.send_request(head_of(&Ask::post("/echo", b"")), false).unwrap();
            let mut body = timeout(PATIENCE, response).await.unwrap().unwrap().into_body();
            between.balancer.program.signal(Signal::TERM).unwrap();
            // The client learns of the end, and requests under way continue.
            for round in 0..50 {
                let said = format!("{round}");
                send(&mut to, said.as_bytes(), false).await.unwrap();
                let heard = timeout(PATIENCE, body.data()).await.unwrap().unwrap().unwrap();
                assert_eq!(heard, said);
                body.flow_control().release_capacity(heard.len()).unwrap();
            }
            to.send_data(Bytes::new(), true).unwrap();
            assert!(body.data().await.is_none());
            assert!(body.trailers().await.unwrap().is_some());
        });
        assert_eq!(between.balancer.program.exit_within(PATIENCE).unwrap(), Exit::Code(0));
    }
}

#[test]
fn a_connection_that_has_had_its_share_goes_away_without_loss() {
    let between =
        Between::with(vec![Side::start(Speaks::H2)], Speaks::H2, "    limits: {requests_per_connection: 10}", "", 1);
    runtime().block_on(async {
        let mut connections = 1;
        let mut client = Client::connect(Speaks::H2, between.address).await;
        for _ in 0..100 {
            loop {
                let Client::H2(send_request) = &client else { return };
                // A connection that is going away accepts no new request, which is no loss.
                if timeout(PATIENCE, send_request.clone().ready()).await.unwrap().is_ok() {
                    break;
                }
                connections += 1;
                client = Client::connect(Speaks::H2, between.address).await;
            }
            match client.ask(&Ask::get("/small")).await {
                Ok(reply) => assert_eq!(reply.status, 200),
                // It was sent while GOAWAY was on its way, and may safely be sent again.
                Err(error) => assert!(error.contains("not a result of an error"), "{error}"),
            }
        }
        assert!(connections >= 5, "{connections}");
    });
}

/// Sends requests over this many connections until `end`, each again after its answer. Counts the answers, and returns what went wrong.
async fn load(address: SocketAddr, connections: usize, end: &Cell<bool>, answered: &Cell<u64>) -> Vec<String> {
    let one = async || {
        let mut failures = Vec::new();
        let mut client = Client::connect(Speaks::H2, address).await;
        while !end.get() {
            let Client::H2(send_request) = &client else { unreachable!("speaks h2") };
            if timeout(PATIENCE, send_request.clone().ready()).await.unwrap().is_err() {
                // The connection is going away, so the next request uses another one.
                client = Client::connect(Speaks::H2, address).await;
            }
            match client.ask(&Ask::get("/small")).await {
                Ok(reply) if reply.status == 200 => answered.set(answered.get() + 1),
                Ok(reply) => failures.push(reply.status.to_string()),
                Err(error) => failures.push(error),
            }
        }
        failures
    };
    let all = (0..connections).map(|_| Box::pin(one()));
    let mut failures = Vec::new();
    for some in join_all(all).await {
        failures.extend(some);
    }
    failures
}

/// Runs all of them at once, without a crate for it.
async fn join_all<F: Future + Unpin>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut running: Vec<(F, Option<F::Output>)> = futures.map(|future| (future, None)).collect();
    poll_fn(|cx| {
        for (future, output) in running.iter_mut().filter(|(_, output)| output.is_none()) {
            if let Poll::Ready(done) = Pin::new(future).poll(cx) {
                *output = Some(done);
            }
        }
        if running.iter().all(|(_, output)| output.is_some()) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    running.into_iter().filter_map(|(_, output)| output).collect()
}

async fn until_answered(answered: &Cell<u64>, more: u64) {
    let wanted = answered.get() + more;
    let waits = async {
        while answered.get() < wanted {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, waits).await.expect("answers stopped");
}

#[test]
fn an_endpoint_that_dies_and_a_reload_lose_no_request() {
    for endpoint in [Speaks::H1, Speaks::H2] {
        let origins: Vec<_> = (0..2).map(|_| Side::start(endpoint)).collect();
        let mut between = Between::with(origins, endpoint, "", "", 2);
        let new = config(between.address, &between.origins[..1], endpoint, "", "");
        let (end, answered) = (Cell::new(false), Cell::new(0));
        runtime().block_on(async {
            let address = between.address;
            let failures = load(address, 6, &end, &answered);
            let change = async {
                until_answered(&answered, 200).await;
                drop(between.origins.pop());
                until_answered(&answered, 200).await;
                between.balancer.write(&new);
                between.balancer.program.signal(Signal::HUP).unwrap();
                until_answered(&answered, 200).await;
                end.set(true);
            };
            let (failures, ()) = tokio::join!(failures, change);
            assert_eq!(failures, Vec::<String>::new(), "{endpoint:?}");
        });
    }
}

#[test]
fn few_connections_are_shared_out_among_workers() {
    let between = Between::with(vec![Side::start(Speaks::H1)], Speaks::H1, "", "", 2);
    runtime().block_on(async {
        let mut clients = Vec::new();
        for _ in 0..8 {
            let mut client = Client::connect(Speaks::H2, between.address).await;
            assert_eq!(client.ask(&Ask::get("/small")).await.unwrap().status, 200);
            clients.push(client);
        }
        // Each worker has its own connections to the origin and needs only one at a time, so both have served.
        assert_eq!(between.origin().seen.connections.load(Relaxed), 2);
    });
}

/// The answer of `address` on a separate connection, as far as it is needed: to the end, or to the end of a head.
async fn raw(stream: &mut TcpStream, text: &str) -> String {
    stream.write_all(text.as_bytes()).await.unwrap();
    let mut heard = Vec::new();
    while !heard.windows(4).any(|end| end == b"\r\n\r\n") {
        let mut piece = [0; 1024];
        let count = timeout(PATIENCE, stream.read(&mut piece)).await.expect("no answer").unwrap();
        assert_ne!(count, 0, "{}", String::from_utf8_lossy(&heard));
        heard.extend_from_slice(&piece[..count]);
    }
    String::from_utf8(heard).unwrap()
}

const HANDSHAKE: &str = "GET /socket HTTP/1.1\r\nhost: a.test\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
                         sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";

/// RFC 8441 section 5: an HTTP/1.1 client reaches a WebSocket behind HTTP/2, and gets the answer that RFC 6455 requires.
#[test]
fn a_websocket_of_http_1_1_reaches_an_endpoint_of_http_2() {
    let between = Between::start(Speaks::H2);
    runtime().block_on(async {
        let mut stream = TcpStream::connect(between.address).await.unwrap();
        let head = raw(&mut stream, HANDSHAKE).await;
        assert!(head.starts_with("HTTP/1.1 101 Switching Protocols\r\n"), "{head}");
        for line in ["connection: upgrade", "upgrade: websocket", "sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo="]
        {
            assert!(head.contains(&format!("\r\n{line}\r\n")), "{line} in {head}");
        }
        assert!(!head.contains("another"), "{head}");
        for word in ["hello", "again"] {
            stream.write_all(word.as_bytes()).await.unwrap();
            let mut echo = vec![0; word.len()];
            timeout(PATIENCE, stream.read_exact(&mut echo)).await.unwrap().unwrap();
            assert_eq!(echo, word.as_bytes());
        }
        // An endpoint's refusal is an answer like any other.
        let mut refused = TcpStream::connect(between.address).await.unwrap();
        let head = raw(&mut refused, &HANDSHAKE.replace("/socket", "/nowhere")).await;
        assert!(head.starts_with("HTTP/1.1 404 "), "{head}");
    });
    let told = [":method", ":protocol", "upgrade", "sec-websocket-version", "sec-websocket-key"]
        .map(|name| between.origin().seen.field(name));
    let expect = [Some("CONNECT"), Some("websocket"), None, Some("13"), None];
    assert_eq!(told.each_ref().map(Option::as_deref), expect);
}

#[test]
fn a_websocket_of_http_1_1_is_refused_where_the_endpoint_takes_none() {
    let between = Between::with(vec![Side::start_without_connect()], Speaks::H2, "", "", 1);
    runtime().block_on(async {
        let mut stream = TcpStream::connect(between.address).await.unwrap();
        let head = raw(&mut stream, HANDSHAKE).await;
        assert!(head.starts_with("HTTP/1.1 501 Not Implemented\r\n"), "{head}");
    });
    assert_eq!(between.refused("upstream_no_tunnel"), 1.0);
    assert_eq!(between.origin().seen.requests.load(Relaxed), 0);
}

/// RFC 9110 section 10.1.1, in both versions.
#[test]
fn an_unknown_expectation_is_answered_417() {
    each(async |speaks, between| {
        let mut client = Client::connect(speaks, between.address).await;
        let ask = Ask { fields: &[("expect", "200-ok")], ..Ask::get("/small") };
        assert_eq!(client.ask(&ask).await.unwrap().status, 417);
        assert_eq!(between.refused("expectation_failed"), 1.0);
        assert_eq!(between.origin().seen.requests.load(Relaxed), 0);
        let mut client = Client::connect(speaks, between.address).await;
        assert_eq!(client.ask(&Ask::get("/small")).await.unwrap().status, 200);
    });
}

/// RFC 9110 section 6.6.1: the origin sends none.
#[test]
fn every_response_has_a_date() {
    each(async |speaks, between| {
        let mut client = Client::connect(speaks, between.address).await;
        for path in ["/small", "/none", "/other"] {
            let answer = client.ask(&Ask::get(path)).await.unwrap();
            let date = answer.field("date").unwrap_or_else(|| panic!("{path}"));
            assert!(date.len() == 29 && date.ends_with(" GMT"), "{path}: {date}");
        }
    });
    let nowhere = Between::with(vec![Side::start(Speaks::H1)], Speaks::H2, "", "", 1);
    runtime().block_on(async {
        for speaks in [Speaks::H1, Speaks::H2] {
            let answer = Client::connect(speaks, nowhere.address).await.ask(&Ask::get("/small")).await.unwrap();
            assert_eq!((answer.status, answer.body.as_slice()), (502, &b"502 Bad Gateway\n"[..]));
            assert!(answer.field("date").is_some());
        }
    });
}

/// Paths mean the same in both versions.
#[test]
fn paths_are_normalised_over_http_2() {
    for endpoint in [Speaks::H1, Speaks::H2] {
        let paths = "    paths: {forward: normal, refuse_ambiguous: true}";
        let between = Between::with(vec![Side::start(endpoint)], endpoint, paths, "", 1);
        runtime().block_on(async {
            let mut client = Client::connect(Speaks::H2, between.address).await;
            for path in ["/x/../%73mall", "//small", "/./small"] {
                let answer = client.ask(&Ask::get(path)).await.unwrap();
                assert_eq!((answer.status, answer.body.as_slice()), (200, &b"small"[..]), "{path}");
            }
            let answer = client.ask(&Ask::get("/x%2f..%2fsmall")).await.unwrap();
            assert_eq!(answer.status, 400);
            assert_eq!(client.ask(&Ask::get("/small")).await.unwrap().status, 200);
        });
        assert_eq!(between.refused("ambiguous_path"), 1.0);
        assert_eq!(between.origin().seen.requests.load(Relaxed), 4);
    }
}

/// RFC 9110 section 6.6.2: Go's server gives its handlers only the trailers that were announced.
#[test]
fn announced_trailers_stay_announced() {
    each(async |speaks, between| {
        let mut client = Client::connect(speaks, between.address).await;
        let ask = Ask { fields: &[("trailer", "x-up")], trailers: &[("x-up", "1")], ..Ask::post("/echo", b"hello") };
        let echoed = client.ask(&ask).await.unwrap();
        assert_eq!((echoed.status, echoed.trailer("x-came")), (200, Some("1")));
        assert_eq!(between.origin().seen.field("trailer").as_deref(), Some("x-up"));
    });
}
