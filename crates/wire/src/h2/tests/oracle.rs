//! Tests against another implementation, the h2 crate, as client and as server, over a pipe in memory.
//!
//! Each request carries random fields, a body and perhaps trailers. The server sends all of it back, and it must come back unchanged.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

use super::simulation::Random;
use super::*;
use crate::message::{Field, FieldId};

const REQUESTS: usize = 30;

#[derive(Clone, Debug, PartialEq)]
struct Message {
    fields: Vec<(String, String)>,
    body: Vec<u8>,
    trailers: Option<Vec<(String, String)>>,
}

impl Message {
    fn random(random: &mut Random) -> Self {
        let body = match random.below(4) {
            0 => 0,
            1 => random.below(40_000),
            2 => random.below(400_000),
            _ => random.below(50),
        };
        let fields = random.below(15);
        let trailers = if random.one_in(3) { Some(random_fields(1, random)) } else { None };
        Self { fields: random_fields(fields, random), body: (0..body).map(|at| at as u8).collect(), trailers }
    }

    fn map(fields: &[(String, String)]) -> HeaderMap {
        let name = |text: &str| HeaderName::from_bytes(text.as_bytes()).unwrap();
        fields.iter().map(|(field, value)| (name(field), HeaderValue::from_str(value).unwrap())).collect()
    }
}

/// Some fields repeat between requests and some do not. Each name occurs once, because the other side's map of fields keeps no order among
/// names.
fn random_fields(count: usize, random: &mut Random) -> Vec<(String, String)> {
    let names = ["x-tenant", "user-agent", "accept", "authorization", "x-request-id", "grpc-timeout", "content-type"];
    let mut fields: Vec<(String, String)> = (0..count)
        .map(|at| {
            let name = names.get(random.below(12)).map_or_else(|| format!("x-{at}"), |name| (*name).to_owned());
            let length = [3, 3, 20, 900][random.below(4)];
            let letters = if random.one_in(2) { 2 } else { 90 };
            let value = (0..length).map(|_| char::from(b'!' + random.below(letters) as u8)).collect();
            (name, value)
        })
        .collect();
    fields.sort();
    fields.dedup_by(|left, right| left.0 == right.0);
    fields
}

fn pairs(map: &HeaderMap) -> Vec<(String, String)> {
    let mut pairs: Vec<_> =
        map.iter().map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned())).collect();
    pairs.sort();
    pairs
}

fn neutral(fields: &[Field], bytes: &[u8]) -> Vec<(String, String)> {
    let text = |span: Span| String::from_utf8(span.get(bytes).to_vec()).unwrap();
    let mut pairs: Vec<_> = fields
        .iter()
        .filter(|field| field.id != FieldId::ContentLength)
        .map(|field| (text(field.name), text(field.value)))
        .collect();
    pairs.sort();
    pairs
}

/// A stream of ours: what has arrived, and how much of the answer was sent.
struct Exchange {
    key: StreamKey,
    message: Message,
    is_whole: bool,
    is_begun: bool,
    sent: usize,
    is_sent: bool,
}

/// Our side of a connection, with an owner that does everything in one loop.
struct Ours {
    io: DuplexStream,
    connection: Connection,
    exchanges: Vec<Exchange>,
}

impl Ours {
    /// Writes, reads, and handles; false at the end of the connection.
    async fn turn(&mut self) -> bool {
        while !self.connection.output().is_empty() {
            let count = self.io.write(self.connection.output()).await.unwrap();
            self.connection.consume_output(count);
            self.handle(&[]);
            self.send_all();
        }
        let mut buffer = vec![0; 5_000];
        let count = self.io.read(&mut buffer).await.unwrap();
        self.handle(&buffer[..count]);
        self.send_all();
        count > 0
    }

    fn handle(&mut self, mut rest: &[u8]) {
        loop {
            let handled = self.connection.handle_bytes(0, rest).unwrap();
            rest = &rest[handled.consumed..];
            let mut bytes = Vec::new();
            match handled.event {
                None if rest.is_empty() => return,
                None => {}
                Some(Event::Request { stream, end }) => {
                    let mut head = RequestHead::default();
                    self.connection.take_request(&mut head, &mut bytes);
                    let message = Message { fields: neutral(&head.fields, &bytes), body: Vec::new(), trailers: None };
                    let (is_begun, is_sent) = (false, false);
                    self.exchanges.push(Exchange { key: stream, message, is_whole: end, is_begun, sent: 0, is_sent });
                }
                Some(Event::Response { stream, end }) => {
                    let mut head = ResponseHead::default();
                    self.connection.take_response(&mut head, &mut bytes);
                    assert_eq!(head.status, 200);
                    let exchange = self.exchange(stream);
                    exchange.message.fields = neutral(&head.fields, &bytes);
                    exchange.is_whole = end;
                }
                Some(Event::Data { stream, bytes, end }) => {
                    self.connection.release_capacity(stream, bytes.len() as u32);
                    let exchange = self.exchange(stream);
                    exchange.message.body.extend_from_slice(bytes);
                    exchange.is_whole = end;
                }
                Some(Event::Trailers { stream }) => {
                    let mut fields = Vec::new();
                    self.connection.take_trailers(&mut fields, &mut bytes);
                    let exchange = self.exchange(stream);
                    exchange.message.trailers = Some(neutral(&fields, &bytes));
                    exchange.is_whole = true;
                }
                Some(Event::Writable { .. } | Event::Settings | Event::Pong { .. } | Event::GoAway { .. }) => {}
                Some(other) => panic!("{other:?}"),
            }
        }
    }

    fn exchange(&mut self, key: StreamKey) -> &mut Exchange {
        self.exchanges.iter_mut().find(|exchange| exchange.key == key).unwrap()
    }

    /// As a server: sends back everything that is complete, as far as there is room.
    fn send_all(&mut self) {
        if self.connection.role == Role::Client {
            return;
        }
        for exchange in self.exchanges.iter_mut().filter(|exchange| exchange.is_whole) {
            send_message(&mut self.connection, exchange);
        }
        let Self { connection, exchanges, .. } = self;
        exchanges.retain(|exchange| !exchange.is_sent || (connection.forget(exchange.key), false).1);
    }
}

fn send_message(connection: &mut Connection, exchange: &mut Exchange) {
    let Exchange { key, message, is_begun, sent, is_sent, .. } = exchange;
    let Message { fields, body, trailers } = message;
    let end = trailers.is_none();
    if !*is_begun {
        let end = end && body.is_empty();
        let write = |head: &mut HeadWriter<'_>| {
            fields.iter().for_each(|(name, value)| head.field(name.to_uppercase().as_bytes(), value.as_bytes()));
        };
        *is_begun = connection.send_response(*key, 200, end, write).is_ok();
        *is_sent = *is_begun && end;
    }
    if *is_begun && !*is_sent {
        *sent += connection.send_data(*key, &body[*sent..], end).unwrap();
        if *sent < body.len() {
            return;
        }
        let Some(trailers) = trailers else {
            *is_sent = true;
            return;
        };
        let write = |head: &mut HeadWriter<'_>| {
            trailers.iter().for_each(|(name, value)| head.field(name.as_bytes(), value.as_bytes()));
        };
        *is_sent = connection.send_trailers(*key, write).is_ok();
    }
}

fn for_seeds(run: fn(u64)) {
    for seed in 0..12 {
        assert!(std::panic::catch_unwind(|| run(seed)).is_ok(), "seed {seed}");
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().build().unwrap()
}

#[test]
fn our_server_answers_their_client() {
    for_seeds(|seed| {
        runtime().block_on(async {
            let (near, far) = tokio::io::duplex(3_000);
            let connection = Connection::new(Role::Server, Limits::default());
            let mut ours = Ours { io: far, connection, exchanges: Vec::new() };
            let server = async { while ours.turn().await {} };
            let client = async {
                let (sender, connection) = h2::client::handshake(near).await.unwrap();
                let exchanges = async {
                    let mut random = Random(seed);
                    let messages: Vec<_> = (0..REQUESTS).map(|_| Message::random(&mut random)).collect();
                    let all = messages.into_iter().map(|message| exchange_with_server(sender.clone(), message));
                    for exchange in all.map(Box::pin).collect::<Vec<_>>() {
                        exchange.await;
                    }
                    drop(sender);
                };
                tokio::join!(async { connection.await.unwrap() }, exchanges);
            };
            tokio::join!(server, client);
            assert!(ours.exchanges.is_empty());
        });
    });
}

async fn exchange_with_server(sender: h2::client::SendRequest<Bytes>, message: Message) {
    let mut request = Request::post("http://a/x?y").body(()).unwrap();
    *request.headers_mut() = Message::map(&message.fields);
    let mut sender = sender.ready().await.unwrap();
    let is_end = message.body.is_empty() && message.trailers.is_none();
    let (response, mut stream) = sender.send_request(request, is_end).unwrap();
    if !is_end {
        stream.send_data(message.body.clone().into(), message.trailers.is_none()).unwrap();
        if let Some(trailers) = &message.trailers {
            stream.send_trailers(Message::map(trailers)).unwrap();
        }
    }
    let response = response.await.unwrap();
    assert_eq!(response.status(), 200);
    let fields = pairs(response.headers());
    let (body, trailers) = collect(response.into_body()).await;
    assert_eq!(Message { fields, body, trailers }, message);
}

async fn collect(mut stream: h2::RecvStream) -> (Vec<u8>, Option<Vec<(String, String)>>) {
    let mut body = Vec::new();
    while let Some(bytes) = stream.data().await {
        let bytes = bytes.unwrap();
        stream.flow_control().release_capacity(bytes.len()).unwrap();
        body.extend_from_slice(&bytes);
    }
    let trailers = stream.trailers().await.unwrap();
    (body, trailers.map(|map| pairs(&map)))
}

#[test]
fn their_server_answers_our_client() {
    for_seeds(|seed| {
        runtime().block_on(async {
            let (near, far) = tokio::io::duplex(3_000);
            let connection = Connection::new(Role::Client, Limits::default());
            let mut ours = Ours { io: near, connection, exchanges: Vec::new() };
            let client = async {
                let mut random = Random(seed);
                let messages: Vec<_> = (0..REQUESTS).map(|_| Message::random(&mut random)).collect();
                let mut requests: Vec<Exchange> = Vec::new();
                let target =
                    PseudoHeaders { method: b"POST", scheme: b"http", authority: b"a", path: b"/x?y", protocol: None };
                for message in &messages {
                    let write = |head: &mut HeadWriter<'_>| {
                        message.fields.iter().for_each(|(name, value)| head.field(name.as_bytes(), value.as_bytes()));
                    };
                    while ours.connection.can_open() == 0 {
                        assert!(ours.turn().await);
                    }
                    // The window changes with streams under way, and their server follows.
                    ours.connection.set_stream_window([256 * 1024, 16 * 1024, 4 * 1024, 1_000][random.below(4)]);
                    let is_end = message.body.is_empty() && message.trailers.is_none();
                    let key = ours.connection.send_request(&target, is_end, write).unwrap();
                    let (is_begun, is_sent) = (true, is_end);
                    requests.push(Exchange {
                        key,
                        message: message.clone(),
                        is_whole: true,
                        is_begun,
                        sent: 0,
                        is_sent,
                    });
                    let empty = Message { fields: Vec::new(), body: Vec::new(), trailers: None };
                    ours.exchanges.push(Exchange {
                        key,
                        message: empty,
                        is_whole: false,
                        is_begun: true,
                        sent: 0,
                        is_sent: true,
                    });
                }
                while ours.exchanges.iter().any(|exchange| !exchange.is_whole) {
                    requests.iter_mut().for_each(|request| send_message(&mut ours.connection, request));
                    assert!(ours.turn().await);
                }
                let got: Vec<_> = ours.exchanges.iter().map(|exchange| exchange.message.clone()).collect();
                assert_eq!(got, messages);
                ours.io.shutdown().await.unwrap();
            };
            let server = async {
                let mut connection = h2::server::handshake(far).await.unwrap();
                let mut tasks = tokio::task::JoinSet::new();
                while let Some(accepted) = connection.accept().await {
                    let (request, respond) = accepted.unwrap();
                    tasks.spawn(answer(request, respond));
                }
            };
            tokio::join!(client, server);
        });
    });
}

async fn answer(request: Request<h2::RecvStream>, mut respond: h2::server::SendResponse<Bytes>) {
    let (parts, body) = request.into_parts();
    let (body, trailers) = collect(body).await;
    let mut response = Response::new(());
    *response.headers_mut() = parts.headers;
    let mut stream = respond.send_response(response, body.is_empty() && trailers.is_none()).unwrap();
    if !body.is_empty() || trailers.is_some() {
        stream.send_data(body.into(), trailers.is_none()).unwrap();
        if let Some(trailers) = trailers {
            stream.send_trailers(Message::map(&trailers)).unwrap();
        }
    }
}
