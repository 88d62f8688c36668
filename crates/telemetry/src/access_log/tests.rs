//! Tests of the whole log: what goes in, what is in the file, and what is counted if it cannot be written.

use std::io::Write;
use std::sync::{Condvar, Mutex};

use model::AccessLogFormat::{self, Json, Text};
use proptest::prelude::*;

use super::*;

/// A file that can be made to block.
#[derive(Clone, Default)]
struct Gated(Arc<(Mutex<Gate>, Condvar)>);

#[derive(Default)]
struct Gate {
    open: bool,
    written: Vec<u8>,
}

impl Gated {
    fn open(&self) {
        self.0.0.lock().unwrap().open = true;
        self.0.1.notify_all();
    }

    fn lines(&self) -> Vec<String> {
        String::from_utf8(self.0.0.lock().unwrap().written.clone()).unwrap().lines().map(str::to_owned).collect()
    }
}

impl Write for Gated {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut gate = self.0.1.wait_while(self.0.0.lock().unwrap(), |gate| !gate.open).unwrap();
        gate.written.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn start(format: AccessLogFormat, sink: &Gated) -> AccessLog {
    AccessLog::with_sink(&model::AccessLog { path: None, format }, Box::new(sink.clone())).unwrap()
}

/// Waits until everything is written, however long that takes. The loggers must be gone.
fn finish(log: AccessLog) -> Arc<Shared> {
    let AccessLog { queue, shared, _ended: ended } = log;
    drop(queue);
    ended.0.lock().unwrap().recv().unwrap_err();
    shared
}

fn request() -> Record<'static> {
    Record {
        // 2026-11-21T06:07:15.123Z
        unix_ms: 1_795_241_235_123,
        client: "192.0.2.7:40312".parse().unwrap(),
        listener: "web",
        http: Some(HttpRecord {
            method: b"GET",
            target: b"/x?q=1",
            version: "1.1",
            host: b"shop.example.com",
            request_id: "",
            grpc_status: None,
            status: 200,
            route: "shop.example.com/",
            added_us: 41,
            upstream_us: Some(2_345),
            authorization_us: None,
            rate_limit_us: None,
        }),
        bytes_in: 78,
        bytes_out: 1_204,
        cluster: "shop",
        endpoint: Some("10.0.0.7:8080".parse().unwrap()),
        total_us: 2_500,
        attempts: 1,
        reason: None,
    }
}

fn connection() -> Record<'static> {
    Record { http: None, endpoint: Some("[2001:db8::1]:5432".parse().unwrap()), total_us: 61_000_001, ..request() }
}

fn refused() -> Record<'static> {
    let nothing = HttpRecord {
        method: b"",
        target: b"",
        host: b"",
        status: 400,
        route: "",
        upstream_us: None,
        authorization_us: None,
        rate_limit_us: None,
        ..request().http.unwrap()
    };
    Record {
        client: "192.0.2.7:0".parse().unwrap(),
        http: Some(nothing),
        cluster: "",
        endpoint: None,
        attempts: 0,
        reason: Some(Reason::BadRequestLine),
        ..request()
    }
}

fn one_line(format: AccessLogFormat, record: &Record<'_>) -> String {
    let mut batch = Batch::default();
    batch.push(record);
    let mut out = Vec::new();
    batch.records().for_each(|record| super::format::line(&mut out, format, &record));
    String::from_utf8(out).unwrap()
}

#[test]
fn lines_of_text() {
    let check = |record: Record<'_>, expect: &str| assert_eq!(one_line(Text, &record).trim_end_matches('\n'), expect);
    check(
        request(),
        "2026-11-21T06:07:15.123Z client=192.0.2.7:40312 listener=web \"GET /x?q=1 HTTP/1.1\" host=shop.example.com status=200 \
         bytes_in=78 bytes_out=1204 route=shop.example.com/ cluster=shop endpoint=10.0.0.7:8080 total_ms=2.500 added_us=41 \
         upstream_ms=2.345 attempts=1 reason=-",
    );
    check(
        connection(),
        "2026-11-21T06:07:15.123Z client=192.0.2.7:40312 listener=web tcp bytes_in=78 bytes_out=1204 cluster=shop \
         endpoint=[2001:db8::1]:5432 total_ms=61000.001 attempts=1 reason=-",
    );
    check(
        refused(),
        "2026-11-21T06:07:15.123Z client=192.0.2.7 listener=web \"-\" host=- status=400 bytes_in=78 bytes_out=1204 route=- \
         cluster=- endpoint=- total_ms=2.500 added_us=41 upstream_ms=- attempts=0 reason=bad_request_line",
    );
}

#[test]
fn calls_of_grpc_have_their_code() {
    let http = HttpRecord { grpc_status: Some(14), ..request().http.unwrap() };
    let record = Record { http: Some(http), ..request() };
    let check = |format, expect: &str| {
        let line = one_line(format, &record);
        assert!(line.contains(expect), "{line}");
    };
    check(Text, " status=200 grpc_status=14 bytes_in=");
    check(Json, r#","status":200,"grpc_status":14,"bytes_in":"#);
}

#[test]
fn requests_may_have_ids() {
    let record = Record { http: Some(HttpRecord { request_id: "a b-1", ..request().http.unwrap() }), ..request() };
    let check = |format, expect: &str| {
        let line = one_line(format, &record);
        assert!(line.contains(expect), "{line}");
    };
    check(Text, r#" status=200 request_id="a b-1" bytes_in="#);
    check(Json, r#","status":200,"request_id":"a b-1","bytes_in":"#);
}

#[test]
fn lines_of_json() {
    let check = |record: Record<'_>, expect: &str| assert_eq!(one_line(Json, &record).trim_end_matches('\n'), expect);
    check(
        request(),
        r#"{"time":"2026-11-21T06:07:15.123Z","client":"192.0.2.7:40312","listener":"web","protocol":"http","method":"GET","target":"/x?q=1","version":"1.1","host":"shop.example.com","status":200,"bytes_in":78,"bytes_out":1204,"route":"shop.example.com/","cluster":"shop","endpoint":"10.0.0.7:8080","total_ms":2.500,"added_us":41,"upstream_ms":2.345,"attempts":1,"reason":null}"#,
    );
    check(
        connection(),
        r#"{"time":"2026-11-21T06:07:15.123Z","client":"192.0.2.7:40312","listener":"web","protocol":"tcp","bytes_in":78,"bytes_out":1204,"cluster":"shop","endpoint":"[2001:db8::1]:5432","total_ms":61000.001,"attempts":1,"reason":null}"#,
    );
    check(
        refused(),
        r#"{"time":"2026-11-21T06:07:15.123Z","client":"192.0.2.7","listener":"web","protocol":"http","method":null,"target":null,"version":"1.1","host":null,"status":400,"bytes_in":78,"bytes_out":1204,"route":null,"cluster":null,"endpoint":null,"total_ms":2.500,"added_us":41,"upstream_ms":null,"attempts":0,"reason":"bad_request_line"}"#,
    );
}

#[test]
fn times_of_day_and_year() {
    let check = |unix_ms, expect: &str| {
        let line = one_line(Text, &Record { unix_ms, ..request() });
        assert_eq!(line.split(' ').next(), Some(expect));
    };
    check(0, "1970-01-01T00:00:00.000Z");
    check(951_782_400_000, "2000-02-29T00:00:00.000Z");
    check(951_868_799_999, "2000-02-29T23:59:59.999Z");
    check(951_868_800_000, "2000-03-01T00:00:00.000Z");
    check(1_735_689_599_001, "2024-12-31T23:59:59.001Z");
    check(4_107_542_400_000, "2100-03-01T00:00:00.000Z");
}

#[test]
fn a_hostile_host_forges_no_field() {
    let http = HttpRecord { host: b"x status=200\n2026", target: b"/\" host=y", ..request().http.unwrap() };
    let line = one_line(Text, &Record { http: Some(http), ..request() });
    assert!(line.contains(r#""GET /\" host=y HTTP/1.1" host="x status=200\x0a2026" status=200 "#), "{line}");
}

#[test]
fn long_texts_are_cut() {
    let target = vec![b'a'; 32 * 1024];
    let http = HttpRecord { target: &target, ..request().http.unwrap() };
    let line = one_line(Text, &Record { http: Some(http), ..request() });
    assert!(line.contains(&format!("\"GET {}... HTTP/1.1\"", "a".repeat(batch::TEXT_BYTES_MAX))));
}

#[test]
fn records_of_several_loggers_arrive_whole_and_in_their_order() {
    let sink = Gated::default();
    sink.open();
    let log = start(Text, &sink);
    std::thread::scope(|scope| {
        for listener in ["one", "two"] {
            let mut logger = log.logger();
            scope.spawn(move || {
                for bytes_in in 0..3_000 {
                    logger.push(&Record { listener, bytes_in, ..request() });
                    // Now and then, as a worker's timer does; this also keeps the writer's queue from being the limit.
                    if bytes_in % 100 == 0 {
                        logger.flush();
                    }
                }
            });
        }
    });
    let shared = finish(log);
    let dropped = shared.dropped.load(Relaxed) as usize;
    let lines = sink.lines();
    assert_eq!(lines.len() + dropped, 6_000);
    for listener in ["one", "two"] {
        let mark = format!(" listener={listener} ");
        let of_it = lines.iter().filter(|line| line.contains(&mark));
        let bytes_in: Vec<u64> = of_it
            .map(|line| line.split(" bytes_in=").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap())
            .collect();
        assert!(bytes_in.is_sorted() && !bytes_in.is_empty());
    }
}

#[test]
fn what_a_stalled_writer_leaves_is_dropped_and_counted() {
    const RECORDS: usize = batch::BATCH_RECORDS_MAX;
    let sink = Gated::default();
    let log = start(Text, &sink);
    let mut logger = log.logger();
    for _ in 0..(BATCHES_MAX + 4) * RECORDS {
        logger.push(&request());
    }
    // All batches except the current one are in use; that one was filled five times.
    assert_eq!(log.shared.dropped.load(Relaxed), 5 * RECORDS as u64);
    // Half a batch stays, because there may still be room for it.
    logger.push(&connection());
    logger.flush();
    assert_eq!(log.shared.dropped.load(Relaxed), 5 * RECORDS as u64);
    sink.open();
    drop(logger);
    let dropped = finish(log).dropped.load(Relaxed) as usize;
    assert_eq!(sink.lines().len() + dropped, (BATCHES_MAX + 4) * RECORDS + 1);
}

#[test]
fn a_logger_that_outlives_its_log_loses_nothing() {
    let sink = Gated::default();
    sink.open();
    let log = start(Text, &sink);
    let mut logger = log.logger();
    let AccessLog { queue, _ended: ended, .. } = log;
    drop(queue);
    logger.push(&request());
    drop(logger);
    ended.0.lock().unwrap().recv().unwrap_err();
    assert_eq!(sink.lines().len(), 1);
}

#[test]
fn losses_are_samples() {
    let log = start(Text, &Gated::default());
    log.shared.dropped.store(7, Relaxed);
    let values: Vec<(&str, f64)> = log.samples().iter().map(|sample| (sample.name, sample.value)).collect();
    assert_eq!(values, [("steelyard_access_log_dropped_total", 7.0), ("steelyard_access_log_failed_total", 0.0)]);
}

proptest! {
    #[test]
    fn one_record_is_one_line_whatever_it_holds(
        method in prop::collection::vec(any::<u8>(), 0..20),
        target in prop::collection::vec(any::<u8>(), 0..60),
        host in prop::collection::vec(any::<u8>(), 0..60),
        route in "\\PC*|.*",
        status in any::<u16>(),
        times in any::<(u64, u64, Option<u64>)>(),
    ) {
        let http = HttpRecord {
            method: &method, target: &target, version: "1.0", host: &host, grpc_status: times.2.map(|_| 14), status,
            request_id: "", route: &route, added_us: times.1, upstream_us: times.2, authorization_us: None, rate_limit_us: None,
        };
        let record = Record { unix_ms: times.0, http: Some(http), ..request() };
        for format in [Text, Json] {
            let line = one_line(format, &record);
            let controls = line.chars().filter(|c| c.is_control() || matches!(c, '\u{2028}' | '\u{2029}')).count();
            prop_assert!(controls == 1 && line.ends_with('\n'), "{line:?}");
        }
        let json: serde_json::Value = serde_json::from_str(&one_line(Json, &record)).unwrap();
        prop_assert_eq!(json["added_us"].as_u64(), Some(times.1));
        if let (Ok(host), false) = (std::str::from_utf8(&host), host.is_empty()) {
            prop_assert_eq!(json["host"].as_str(), Some(host));
        }
    }

    /// Read as a careful script would: words separated by spaces, except within quotes. The fields must be exactly those that were written.
    #[test]
    fn text_has_the_same_fields_whatever_it_holds(host in prop::collection::vec(any::<u8>(), 0..40), target in ".*") {
        let http = HttpRecord { host: &host, target: target.as_bytes(), ..request().http.unwrap() };
        let line = one_line(Text, &Record { http: Some(http), ..request() });
        let quoted = regex::Regex::new(r#""(\\.|[^"\\])*""#).unwrap();
        let bare = quoted.replace_all(line.trim_end(), "Q").into_owned();
        let names: Vec<&str> = bare.split(' ').filter_map(|word| word.split_once('=')).map(|(name, _)| name).collect();
        prop_assert_eq!(names, [
            "client", "listener", "host", "status", "bytes_in", "bytes_out", "route", "cluster", "endpoint", "total_ms", "added_us",
            "upstream_ms", "attempts", "reason",
        ]);
    }
}
