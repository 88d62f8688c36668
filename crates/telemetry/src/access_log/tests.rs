//! Tests of the whole log: what goes in, what is in the file, and what is counted if it cannot be written.

use std::io::Write;
use std::sync::{Condvar, Mutex};

use model::{LogFilter, LogHeader, LogPart};
use proptest::prelude::*;

use super::format::Fixed::{self, Json, Text};
use super::*;
use model::LogField;

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

fn start(format: Fixed, sink: &Gated) -> AccessLog {
    let format = match format {
        Text => LogFormat::Text(None),
        Json => LogFormat::Json(None),
    };
    AccessLog::with_sink(&model::AccessLog::new(LogTarget::Stdout, format), Sink::stream(Box::new(sink.clone())), None)
        .unwrap()
}

/// Waits until everything is written, however long that takes. The loggers must be gone.
fn finish(log: AccessLog) -> Arc<Shared> {
    let AccessLog { queue, shared, _ended: ended, .. } = log;
    drop(queue);
    ended.0.lock().unwrap().recv().unwrap_err();
    shared
}

pub(super) fn request() -> Record<'static> {
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
            intercepted: None,
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

fn nothing(_: &LogValue, _: &mut Vec<u8>) -> bool {
    false
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
        intercepted: None,
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

fn one_line(format: Fixed, record: &Record<'_>) -> String {
    line_of(&Formatter::Fixed(format), record, &[])
}

/// The entry of a record with these extras.
pub(super) fn entry_of(record: &Record<'_>, extras: &[(LogValue, &[u8])], mut each: impl FnMut(&LogEntry<'_>)) {
    let mut batch = Batch::default();
    let values: Vec<LogValue> = extras.iter().map(|(value, _)| value.clone()).collect();
    batch.push(record, &values, |value, out| {
        let found = extras.iter().find(|(other, _)| other == value);
        found.is_some_and(|(_, text)| {
            out.extend_from_slice(text);
            !text.is_empty()
        })
    });
    batch.entries().for_each(|entry| each(&entry));
}

fn line_of(formatter: &Formatter, record: &Record<'_>, extras: &[(LogValue, &[u8])]) -> String {
    let mut out = Vec::new();
    entry_of(record, extras, |entry| formatter.write(&mut out, entry));
    out.push(b'\n');
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
                    logger.push(&Record { listener, bytes_in, ..request() }, nothing);
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
        logger.push(&request(), nothing);
    }
    // All batches except the current one are in use; that one was filled five times.
    assert_eq!(log.shared.dropped.load(Relaxed), 5 * RECORDS as u64);
    // Half a batch stays, because there may still be room for it.
    logger.push(&connection(), nothing);
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
    logger.push(&request(), nothing);
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

fn header(name: &str, is_secret: bool) -> LogHeader {
    LogHeader { name: name.to_owned(), is_secret }
}

fn fields(values: &[(&str, LogValue)]) -> Arc<[LogField]> {
    values.iter().map(|(name, value)| LogField { name: (*name).to_owned(), value: value.clone() }).collect()
}

/// A log and its extras.
fn log_of(format: LogFormat) -> (model::AccessLog, Vec<LogValue>) {
    let log = model::AccessLog::new(LogTarget::Stdout, format);
    let extras = Rules::new(&log).extras;
    (log, extras)
}

#[test]
fn chosen_fields() {
    let chosen = fields(&[
        ("@timestamp", LogValue::Time),
        ("ip", LogValue::ClientIp),
        ("st", LogValue::Status),
        ("ms", LogValue::TotalMs),
        ("agent", LogValue::RequestHeader(header("user-agent", false))),
        ("type", LogValue::ResponseHeader(header("content-type", false))),
        ("why", LogValue::Reason),
        ("clf", LogValue::TimeClf),
    ]);
    let agent = LogValue::RequestHeader(header("user-agent", false));
    let extras: [(LogValue, &[u8]); 2] = [(LogValue::ClientIp, b"192.0.2.9"), (agent, b"a b=\"c\"\n")];
    let check = |format: LogFormat, expect: &str| {
        let (log, _) = log_of(format);
        let values: Vec<LogValue> = extras.iter().map(|(value, _)| value.clone()).collect();
        assert_eq!(line_of(&Formatter::new(&log.format, &values), &request(), &extras), format!("{expect}\n"));
    };
    check(
        LogFormat::Json(Some(chosen.clone())),
        r#"{"@timestamp":"2026-11-21T06:07:15.123Z","ip":"192.0.2.9","st":200,"ms":2.500,"agent":"a b=\"c\"\u000a","type":null,"why":null,"clf":"21/Nov/2026:06:07:15 +0000"}"#,
    );
    check(
        LogFormat::Text(Some(chosen)),
        r#"@timestamp=2026-11-21T06:07:15.123Z ip=192.0.2.9 st=200 ms=2.500 agent="a b=\"c\"\x0a" type=- why=- clf=21/Nov/2026:06:07:15 +0000"#,
    );
    let value = |value: &LogValue, is_quoted, beside| LogPart::Value { value: value.clone(), is_quoted, beside };
    let text = |text: &str| LogPart::Text(text.to_owned());
    let combined = [
        value(&LogValue::ClientIp, false, [None, Some(' ')]),
        text(" - ["),
        value(&LogValue::TimeClf, false, [Some('['), Some(']')]),
        text("] \""),
        value(&LogValue::RequestLine, true, [Some('"'), Some('"')]),
        text("\" "),
        value(&LogValue::Status, false, [Some(' '), Some(' ')]),
        text(" "),
        value(&LogValue::Host, false, [Some(' '), Some('.')]),
        text("."),
    ];
    check(
        LogFormat::Template(combined.into()),
        r#"192.0.2.9 - [21/Nov/2026:06:07:15 +0000] "GET /x?q=1 HTTP/1.1" 200 "shop.example.com"."#,
    );
}

#[test]
fn secrets_and_queries_are_left_out() {
    let secret = LogValue::RequestHeader(header("authorization", true));
    let referer = LogValue::RequestHeader(header("referer", false));
    let chosen = fields(&[("target", LogValue::Target), ("secret", secret.clone()), ("from", referer.clone())]);
    let (mut log, _) = log_of(LogFormat::Json(Some(chosen)));
    log.query = false;
    let check = |log: &model::AccessLog, has_secret: bool, expect: &str| {
        let sink = Gated::default();
        sink.open();
        let log = AccessLog::with_sink(log, Sink::stream(Box::new(sink.clone())), None).unwrap();
        log.logger().push(&request(), |value, out| {
            out.extend_from_slice(if *value == secret { b"Basic c2VjcmV0" } else { b"https://a/b?token=1" });
            *value != secret || has_secret
        });
        finish(log);
        assert_eq!(sink.lines(), [expect]);
    };
    check(&log, true, r#"{"target":"/x","secret":"[redacted]","from":"https://a/b"}"#);
    log.query = true;
    check(&log, false, r#"{"target":"/x?q=1","secret":null,"from":"https://a/b?token=1"}"#);
}

#[test]
fn filters_and_samples() {
    let failed = || Record { reason: Some(Reason::NoRoute), ..request() };
    let with_status = |status| Record { http: Some(HttpRecord { status, ..request().http.unwrap() }), ..request() };
    let check = |change: &dyn Fn(&mut LogFilter), record: Record<'_>, expect: bool| {
        let (mut log, _) = log_of(LogFormat::Text(None));
        change(&mut log.filter);
        let shown = format!("{:?} {record:?}", log.filter);
        assert_eq!(Rules::new(&log).take(&record, &mut rules::Random::new()), expect, "{shown}");
    };
    check(&|_| {}, request(), true);
    let routes: &dyn Fn(&mut LogFilter) = &|filter| filter.routes = vec!["shop.example.com/".to_owned()];
    check(routes, request(), true);
    check(routes, connection(), false);
    let except: &dyn Fn(&mut LogFilter) = &|filter| filter.except_routes = vec!["shop.example.com/".to_owned()];
    check(except, request(), false);
    check(except, connection(), true);
    let statuses: &dyn Fn(&mut LogFilter) = &|filter| filter.conditions.statuses = vec![404..=404, 500..=599];
    check(statuses, request(), false);
    check(statuses, with_status(404), true);
    check(statuses, with_status(503), true);
    check(statuses, connection(), false);
    let slow: &dyn Fn(&mut LogFilter) = &|filter| filter.conditions.slower_than = Some(Duration::from_millis(2));
    check(slow, request(), true);
    check(slow, Record { total_us: 2_000, ..request() }, false);
    let reasons: &dyn Fn(&mut LogFilter) = &|filter| filter.conditions.reasons = vec!["no_route".to_owned()];
    check(reasons, request(), false);
    check(reasons, failed(), true);
    check(reasons, Record { reason: Some(Reason::BadHost), ..request() }, false);
    check(&|filter| filter.conditions.any_reason = true, Record { reason: Some(Reason::BadHost), ..request() }, true);
    let retried: &dyn Fn(&mut LogFilter) = &|filter| filter.conditions.retried = true;
    check(retried, request(), false);
    check(retried, Record { attempts: 2, ..request() }, true);
    // One condition is enough, and routes are another matter.
    let both: &dyn Fn(&mut LogFilter) = &|filter| {
        filter.conditions.retried = true;
        filter.conditions.statuses = vec![404..=404];
        filter.except_routes = vec!["shop.example.com/".to_owned()];
    };
    check(both, with_status(404), false);

    let (mut log, _) = log_of(LogFormat::Text(None));
    log.sampling = 0.25;
    let (rules, mut random) = (Rules::new(&log), rules::Random::new());
    let taken = (0..10_000).filter(|_| rules.take(&request(), &mut random)).count();
    assert!((2_000..3_000).contains(&taken), "{taken}");
    log.sampling = 0.0;
    let rules = Rules::new(&log);
    assert!(!rules.take(&request(), &mut random));
    assert!(rules.take(&failed(), &mut random) && rules.take(&with_status(500), &mut random));
    // Calls of gRPC fail with status 200.
    let mut call = |code| {
        let mut record = request();
        record.http.as_mut().unwrap().grpc_status = Some(code);
        rules.take(&record, &mut random)
    };
    assert_eq!([0, 1, 5, 14, 99].map(&mut call), [false, false, false, true, true]);
}

/// What a careful reader makes of a template: the values, with their escapes.
fn values_of(line: &str) -> Option<Vec<String>> {
    let quoted = r#""(?:\\.|[^"\\])*""#;
    let pattern =
        format!(r#"^({quoted}|[^ "]*) \[({quoted}|[^ "\[\]]*)\] ({quoted}) ({quoted}|[^ "|]*)\|({quoted}|[^ "|]*)\n$"#);
    let found = regex::Regex::new(&pattern).unwrap().captures(line)?;
    Some(found.iter().skip(1).map(|group| group.map_or_else(String::new, |group| group.as_str().to_owned())).collect())
}

proptest! {
    /// Whatever a client sends, each value of a template is where the template has it.
    #[test]
    fn no_value_forges_another(
        texts in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..20), 4),
        // The characters that mean something, more often than by chance.
        nasty in r#"["\\\[\]| =\n\r\x1b\u{2028}\u{202e}a-]{1,12}"#,
        method in r#"[A-Z "]{1,5}"#,
    ) {
        let header = |name: &str| LogValue::RequestHeader(header(name, false));
        let names = [header("a"), header("b"), header("c"), header("d")];
        let part = |value: &LogValue, is_quoted, beside| LogPart::Value { value: value.clone(), is_quoted, beside };
        let text = |text: &str| LogPart::Text(text.to_owned());
        let format = LogFormat::Template(Arc::new([
            part(&names[0], false, [None, Some(' ')]),
            text(" ["),
            part(&names[1], false, [Some('['), Some(']')]),
            text("] \""),
            part(&LogValue::RequestLine, true, [Some('"'), Some('"')]),
            text("\" "),
            part(&names[2], false, [Some(' '), Some('|')]),
            text("|"),
            part(&names[3], false, [Some('|'), None]),
        ]));
        let given: Vec<(LogValue, Vec<u8>)> = names.iter().cloned().zip(texts).map(|(name, mut text)| {
            text.extend_from_slice(nasty.as_bytes());
            (name, text)
        }).collect();
        let extras: Vec<(LogValue, &[u8])> = given.iter().map(|(name, text)| (name.clone(), text.as_slice())).collect();
        let http = HttpRecord { method: method.as_bytes(), target: nasty.as_bytes(), ..request().http.unwrap() };
        let record = Record { http: Some(http), ..request() };
        let line = line_of(&Formatter::new(&format, &names), &record, &extras);
        let values = values_of(&line);
        prop_assert!(values.is_some(), "{line}");
        let values = values.unwrap();
        let line_of_request = [method.as_bytes(), b" ", nasty.as_bytes(), b" HTTP/1.1"].concat();
        let given = [extras[0].1, extras[1].1, &line_of_request, extras[2].1, extras[3].1];
        for (value, text) in values.iter().zip(given) {
            let mut expect = Vec::new();
            escape::quoted(&mut expect, text);
            let bare = value.strip_prefix('"').and_then(|value| value.strip_suffix('"')).unwrap_or(value);
            prop_assert_eq!(bare, String::from_utf8(expect).unwrap());
        }

        // The same in structured data: one element, and each parameter has its value.
        let chosen: Vec<LogField> =
            names.iter().enumerate().map(|(n, value)| LogField { name: format!("p{n}"), value: value.clone() }).collect();
        let format = LogFormat::StructuredData { id: "a@1".to_owned(), fields: chosen.into() };
        let line = line_of(&Formatter::new(&format, &names), &record, &extras);
        let parameter = r#" p[0-9]="((?:\\["\\\]]|[^"\\\]])*)""#;
        let whole = regex::Regex::new(&format!(r"^\[a@1(?:{parameter}){{4}}\]\n$")).unwrap();
        prop_assert!(whole.is_match(&line), "{line}");
        prop_assert_eq!(line.chars().filter(|c| c.is_control() || matches!(c, '\u{2028}' | '\u{202e}')).count(), 1);

        // And in JSON and text of chosen fields.
        let chosen: Arc<[LogField]> =
            names.iter().enumerate().map(|(n, value)| LogField { name: format!("p{n}"), value: value.clone() }).collect();
        let line = line_of(&Formatter::new(&LogFormat::Json(Some(chosen.clone())), &names), &record, &extras);
        let json: serde_json::Value = serde_json::from_str(&line).unwrap();
        prop_assert_eq!(json.as_object().map(|object| object.len()), Some(4));
        let line = line_of(&Formatter::new(&LogFormat::Text(Some(chosen)), &names), &record, &extras);
        let quoted = regex::Regex::new(r#""(\\.|[^"\\])*""#).unwrap();
        let bare = quoted.replace_all(line.trim_end(), "Q").into_owned();
        let names: Vec<&str> = bare.split(' ').map(|word| word.split_once('=').map_or("", |(name, _)| name)).collect();
        prop_assert_eq!(names, ["p0", "p1", "p2", "p3"]);
    }

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
            request_id: "", route: &route, added_us: times.1, upstream_us: times.2, authorization_us: None, rate_limit_us: None, intercepted: None,
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
