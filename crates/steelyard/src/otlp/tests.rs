//! The exporter in front of collectors that misbehave.

use std::sync::Mutex;

use model::Generation;
use telemetry::TraceRecord;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket};

use super::*;

const GOOD: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";

fn target(port: u16, timeout: &str) -> Target {
    target_with(port, &format!("timeout: {timeout}"))
}

fn target_with(port: u16, keys: &str) -> Target {
    let text = format!(
        "listeners: {{web: {{bind: ':1', protocol: http, to: otel}}}}
tracing: {{to: otel, protocol: http, sampling: 100%, {keys}}}
clusters: {{otel: {{endpoints: ['127.0.0.1:{port}']}}}}
"
    );
    let file = config::read_file("f.yaml", &text, Generation(1)).unwrap();
    let compiled = Compiled::new(Arc::new(file.snapshot), &NamedFiles::default(), None, 0);
    let otlp = compiled.snapshot.tracing.as_ref().unwrap().otlp.clone();
    let headers = Arc::new(headers(&otlp, &NamedFiles::default()));
    Target { otlp, plan: compiled.clusters[0].clone(), headers }
}

/// Reads a whole request, or returns false at the end of the connection.
async fn read_request(stream: &mut tokio::net::TcpStream, bytes: &mut Vec<u8>) -> bool {
    bytes.clear();
    loop {
        let text = String::from_utf8_lossy(bytes).to_ascii_lowercase();
        if let Some((head, _)) = text.split_once("\r\n\r\n") {
            let length =
                head.split("content-length: ").nth(1).unwrap().lines().next().unwrap().parse::<usize>().unwrap();
            let head_bytes = bytes.windows(4).position(|window| window == b"\r\n\r\n").unwrap() + 4;
            if bytes.len() >= head_bytes + length {
                return true;
            }
        }
        if stream.read_buf(bytes).await.unwrap_or(0) == 0 {
            return false;
        }
    }
}

/// Gives each request the next of these answers; what is not HTTP is the last of its connection. Without an answer, it hangs.
async fn collect(listener: TcpListener, answers: &[&[u8]], asked: &Mutex<usize>) {
    let mut answers = answers.iter();
    loop {
        let (mut stream, _) = listener.accept().await.unwrap();
        while read_request(&mut stream, &mut Vec::new()).await {
            *asked.lock().unwrap() += 1;
            let Some(answer) = answers.next() else {
                std::future::pending::<()>().await;
                return;
            };
            stream.write_all(answer).await.unwrap();
            if !answer.starts_with(b"HTTP/1.1") {
                break;
            }
        }
    }
}

fn task(target: &Target) -> (Task<Spans>, watch::Sender<Option<Target>>) {
    let (handle, queue) = TraceQueue::new();
    let mut sender = handle.sender();
    sender.push(TraceRecord::default());
    drop(sender);
    let wanted = watch::Sender::new(Some(target.clone()));
    let task = Task {
        signal: Spans::new(queue),
        target: wanted.subscribe(),
        counts: Arc::default(),
        client: Client::default(),
        backoff: (Duration::from_millis(1), Duration::from_millis(2)),
        give_up_after: Duration::from_secs(60),
        not_before: None,
    };
    (task, wanted)
}

/// The spans that were exported, refused, and given up, and the number of retries.
fn counted(counts: &Counts) -> [u64; 4] {
    [&counts.exported, &counts.refused, &counts.unreachable, &counts.retries].map(|count| count.load(Relaxed))
}

/// What becomes of one span with these answers.
async fn check(answers: &[&[u8]], expect: [u64; 4]) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let target = target(listener.local_addr().unwrap().port(), "10s");
    let (mut task, _wanted) = task(&target);
    task.signal.take();
    let asked = Mutex::new(0);
    tokio::select! {
        () = collect(listener, answers, &asked) => {}
        () = task.export(target) => {}
    }
    let shown: Vec<_> = answers.iter().map(|answer| answer.escape_ascii().to_string()).collect();
    assert_eq!(counted(&task.counts), expect, "{shown:?}");
    assert_eq!(*asked.lock().unwrap(), answers.len(), "{shown:?}");
}

#[tokio::test]
async fn answers_of_collectors() {
    let busy: &[u8] = b"HTTP/1.1 429 Too Many Requests\r\nretry-after: 0\r\ncontent-length: 0\r\n\r\n";
    let unavailable: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 2\r\n\r\nno";
    let bad: &[u8] = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n";
    let partial: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\n\x0a\x06\x08\x01\x12\x02no";
    let page: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\n<html>";
    check(&[GOOD], [1, 0, 0, 0]).await;
    check(&[busy, unavailable, GOOD], [1, 0, 0, 2]).await;
    // Neither HTTP, nor anything at all.
    check(&[b"\0\x16garbage\r\n\r\n", b"", GOOD], [1, 0, 0, 2]).await;
    check(&[bad], [0, 1, 0, 0]).await;
    check(&[partial], [0, 1, 0, 0]).await;
    check(&[page], [0, 1, 0, 0]).await;
}

#[tokio::test]
async fn a_collector_that_is_not_there_or_hangs() {
    let hanging = TcpListener::bind("127.0.0.1:0").await.unwrap();
    // It is bound, so that nothing else takes it, but does not listen.
    let refusing = TcpSocket::new_v4().unwrap();
    refusing.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    for address in [hanging.local_addr().unwrap(), refusing.local_addr().unwrap()] {
        let target = target(address.port(), "10ms");
        let (mut task, _wanted) = task(&target);
        task.give_up_after = Duration::from_millis(30);
        task.signal.take();
        task.export(target).await;
        let [exported, refused, unreachable, _] = counted(&task.counts);
        assert_eq!([exported, refused, unreachable], [0, 0, 1]);
        assert!(!task.signal.has_more());
    }
}

#[tokio::test]
async fn another_collector_gets_what_the_first_did_not_take() {
    let (first, second) =
        (TcpListener::bind("127.0.0.1:0").await.unwrap(), TcpListener::bind("127.0.0.1:0").await.unwrap());
    let old = target(first.local_addr().unwrap().port(), "10s");
    let new = target(second.local_addr().unwrap().port(), "10s");
    let (mut task, wanted) = task(&old);
    task.backoff = (Duration::from_secs(30), Duration::from_secs(30));
    let counts = task.counts.clone();
    let busy: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n";
    let (of_first, of_second) = (Mutex::new(0), Mutex::new(0));
    let (first_answers, second_answers): ([&[u8]; 1], [&[u8]; 1]) = ([busy], [GOOD]);
    let change = async {
        while *of_first.lock().unwrap() == 0 {
            tokio::task::yield_now().await;
        }
        wanted.send_replace(Some(new));
        while counts.exported.load(Relaxed) == 0 {
            tokio::task::yield_now().await;
        }
        // The process ends.
        drop(wanted);
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = collect(first, &first_answers, &of_first) => {}
        () = collect(second, &second_answers, &of_second) => {}
        () = change => {}
        () = task.run() => {}
    }
    assert_eq!(counted(&counts), [1, 0, 0, 1]);
    assert_eq!([*of_first.lock().unwrap(), *of_second.lock().unwrap()], [1, 1]);
}

#[tokio::test]
async fn exports_have_the_headers_and_the_coding_that_are_wanted() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let keys = "headers: {authorization: Bearer hunter2, X-Tenant: a b}, compression: gzip";
    let target = target_with(listener.local_addr().unwrap().port(), keys);
    let (mut task, _wanted) = task(&target);
    task.signal.take();
    let mut bytes = Vec::new();
    let answer = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        assert!(read_request(&mut stream, &mut bytes).await);
        stream.write_all(GOOD).await.unwrap();
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = answer => {}
        () = task.export(target) => {}
    }
    assert_eq!(counted(&task.counts), [1, 0, 0, 0]);
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n").unwrap() + 4;
    let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
    for field in ["authorization: Bearer hunter2\r\n", "x-tenant: a b\r\n", "content-encoding: gzip\r\n"] {
        assert!(head.contains(field), "{head}");
    }
    let mut body = Vec::new();
    std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(&bytes[end..]), &mut body).unwrap();
    assert!(body.windows(12).any(|window| window == b"service.name"));
}

#[tokio::test]
async fn what_a_collector_asks_for_holds_for_the_next_export() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let target = target(listener.local_addr().unwrap().port(), "10s");
    let (mut task, _wanted) = task(&target);
    task.give_up_after = Duration::from_millis(20);
    task.signal.take();
    let asked = Mutex::new(0);
    let later: &[u8] = b"HTTP/1.1 429 Too Many Requests\r\nretry-after: 3000\r\ncontent-length: 0\r\n\r\n";
    let answers: [&[u8]; 2] = [later, GOOD];
    let exports = async {
        task.export(target.clone()).await;
        // Nothing is sent: the collector has said when.
        assert!(task.not_before.is_some());
        assert_eq!(task.send(target, Bytes::new(), 5).await, 5);
        assert!(task.not_before.is_some());
    };
    tokio::select! {
        () = collect(listener, &answers, &asked) => {}
        () = exports => {}
    }
    assert_eq!((counted(&task.counts), *asked.lock().unwrap()), ([0, 0, 6, 0], 1));
}

#[tokio::test]
async fn interim_responses_without_end_are_cut_off() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let target = target(listener.local_addr().unwrap().port(), "10s");
    let (mut task, _wanted) = task(&target);
    task.give_up_after = Duration::ZERO;
    task.signal.take();
    let flood = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let interim = b"HTTP/1.1 103 Early Hints\r\n\r\n".repeat(1000);
        while stream.write_all(&interim).await.is_ok() {}
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = flood => {}
        () = task.export(target) => {}
    }
    assert_eq!(counted(&task.counts), [0, 0, 1, 0]);
}
