//! The access log of the whole program: what hostile requests leave in it, TLS and headers, syslog with rsyslog, a full disk, and files that move.
#![forbid(unsafe_code)]

mod support;

use std::process::Command;

use serde_json::Value;
use support::{Scratch, skip, steelyard};
use testkit::{Exit, PATIENCE, Program};

/// The file without its log.
const CONFIG: &str = "
admin: 127.0.0.1:9900
listeners:
  web:
    bind: 127.0.0.1:8080
    protocol: http
    request_id: {}
    routes: [{name: health, path: /healthz, respond: {status: 200}}, {path: /quiet, respond: {}, access_log: false}, {name: shop, to: app}]
  tls:
    bind: 127.0.0.1:8443
    protocol: https
    tls: {certificates: [{cert: server.pem, key: server.key}], client_ca: {ca: ca.pem}}
    to: app
clusters:
  app: {endpoints: [127.0.0.1:9001]}
";

const JSON: &str = "
access_log:
  path: access.json
  format: json
  except_routes: health
  query: false
  fields:
    line: request_line
    target: target
    ip: client_ip
    agent: request_header:user-agent
    referer: request_header:referer
    key: request_header:x-api-key
    length: response_header:content-length
    tls: tls_version
    sni: sni
    subject: client_cert_subject
    print: client_cert_sha256
    trace: trace_id
    status: status
    reason: reason
";

const STRUCTURED: &str = "
access_log:
  syslog: {to: 'unix:/tmp/own/log', facility: local0, app_name: edge, structured_data: 'steelyard@32473'}
  fields: {path: path, agent: 'request_header:user-agent', st: status}
";

const UDP: &str = "
access_log:
  syslog: {to: '127.0.0.1:5514'}
  format: '${client_ip} \"${request_line}\" ${status} \"${request_header:user-agent}\"'
";

const DISK: &str = "
access_log: {path: small/access.log}
";

const RSYSLOG: &str = r#"
module(load="imuxsock" SysSock.Use="off")
module(load="imudp")
input(type="imuxsock" Socket="/tmp/own/log" useSpecialParser="off" parseHostname="on")
input(type="imudp" port="5514")
template(name="all" type="string" string="%pri%|%app-name%|%msgid%|%structured-data%|%msg%\n")
action(type="omfile" file="/tmp/own/all.log" template="all")
"#;

/// In a namespace of its own: the ports are fixed, and the small disk is a mount.
const SCRIPT: &str = r#"set -eu
mount -t tmpfs none /tmp && mkdir -p /tmp/own
ip link set lo up
key='-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes'
openssl req -x509 $key -days 2 -subj /CN=shop.example -addext subjectAltName=DNS:shop.example -keyout server.key -out server.pem 2>/dev/null
openssl req -x509 $key -days 2 -subj /CN=clients -keyout ca.key -out ca.pem 2>/dev/null
echo basicConstraints=CA:FALSE >client.ext
openssl req -new $key -subj '/O=Ex"am]ple/CN=Joe' -keyout client.key 2>/dev/null | openssl x509 -req -days 2 -CA ca.pem -CAkey ca.key -extfile client.ext -out client.pem 2>/dev/null
cat base.yaml json.yaml >all.yaml
"$STEELYARD" origin http --listen 127.0.0.1:9001 --body 10 & origin=$!
"$STEELYARD" serve -c all.yaml 2>steelyard.log & balancer=$!
trap 'kill $origin $balancer 2>/dev/null || :' EXIT
until curl -sf http://127.0.0.1:9900/readyz >/dev/null; do kill -0 $balancer; sleep 0.1; done
curl -s -o /dev/null http://127.0.0.1:8080/healthz http://127.0.0.1:8080/quiet
curl -s -o /dev/null -A 'a"b\c]d' -H 'x-api-key: hunter2' -e 'http://a/b?secret=1' -H 'traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01' 'http://127.0.0.1:8080/cart?card=1234'
# Bytes that are neither ASCII nor UTF-8, a line separator and a change of direction; then an escape sequence, which is refused.
send() { exec 3<>/dev/tcp/127.0.0.1/8080; printf "$1" >&3; cat <&3 >/dev/null; exec 3>&-; }
send 'GET /\xff\xe2\x80\xa8 HTTP/1.1\r\nHost: a\r\nUser-Agent: \xff\xe2\x80\xae"x" status=200\r\nConnection: close\r\n\r\n'
send 'GET / HTTP/1.1\r\nHost: a\r\nUser-Agent: \x1b[2J\nGET / 200\r\n\r\n'
curl -s -o /dev/null --cacert server.pem --cert client.pem --key client.key --resolve shop.example:8443:127.0.0.1 https://shop.example:8443/tls
until [ "$(wc -l <access.json)" -ge 4 ]; do sleep 0.1; done
jq -c . access.json
echo ---
rsyslogd -n -i NONE -f rsyslog.conf 2>rsyslog.log & rsyslog=$!
until [ -S /tmp/own/log ]; do kill -0 $rsyslog; sleep 0.1; done
reload() { cat base.yaml $1 >all.new; mv all.new all.yaml; "$STEELYARD" reload >/dev/null; }
reload structured.yaml
curl -s -o /dev/null -A 'a"b\c]d' http://127.0.0.1:8080/one
until grep -q /one /tmp/own/all.log 2>/dev/null; do sleep 0.1; done
reload udp.yaml
curl -s -o /dev/null -A 'a"b' http://127.0.0.1:8080/two
until grep -q /two /tmp/own/all.log; do sleep 0.1; done
cat /tmp/own/all.log
kill $rsyslog; wait $rsyslog || :
# The status breaks its lines.
findings() { "$STEELYARD" status | tr -s ' \n' ' '; }
# The port is closed now, and the host says so.
until findings | grep -q 'access log cannot be written, and [0-9]* records\? \(is\|are\) lost'; do curl -s -o /dev/null http://127.0.0.1:8080/three; done
echo ---
mkdir small; mount -t tmpfs -o size=16k none small
reload disk.yaml
until findings | grep -o 'access log cannot be written.*a full disk'; do
  for i in 1 2 3 4 5 6 7 8; do curl -s -o /dev/null http://127.0.0.1:8080/$(printf '%01000d' $i); done
done
curl -s http://127.0.0.1:9900/metrics | grep '^steelyard_access_log_failed_total [1-9]' >/dev/null
: >small/access.log
# A record of before may be written first.
until grep -q /again small/access.log && findings | grep -o 'access log has lost.*because it could not be written'; do curl -s -o /dev/null http://127.0.0.1:8080/again; done
tail -n 1 small/access.log
mv small/access.log small/old.log
kill -USR1 $balancer
until [ -s small/access.log ]; do curl -s -o /dev/null http://127.0.0.1:8080/new; done
grep -c 'cannot write the access log' steelyard.log
"#;

#[test]
fn nothing_forges_a_record_and_targets_may_fail() {
    const NAME: &str = "nothing_forges_a_record_and_targets_may_fail";
    let needed = ["rsyslogd", "jq", "openssl"];
    let is_there = |program: &&str| Command::new("sh").args(["-c", &format!("command -v {program}")]).output();
    let missing: Vec<&str> =
        needed.into_iter().filter(|program| !is_there(program).is_ok_and(|found| found.status.success())).collect();
    if !rustix::process::geteuid().is_root() || !missing.is_empty() {
        return skip(NAME, &format!("not root, or Debian packages are missing: {missing:?}"));
    }
    let scratch = Scratch::new();
    let files = [
        ("base.yaml", CONFIG),
        ("json.yaml", JSON),
        ("structured.yaml", STRUCTURED),
        ("udp.yaml", UDP),
        ("disk.yaml", DISK),
        ("rsyslog.conf", RSYSLOG),
        ("all.sh", SCRIPT),
    ];
    for (name, text) in files {
        scratch.write(name, text);
    }
    let mut command = Command::new("unshare");
    // The new /tmp would hide the folder, which stays open by its name in /proc.
    command.args(["-n", "-m", "--propagation", "private", "bash", "-c"]);
    command.arg(
        "mkdir -p /run/steelyard-log && mount --bind . /run/steelyard-log && cd /run/steelyard-log && exec bash all.sh",
    );
    command.current_dir(scratch.path()).env("STEELYARD", steelyard().get_program());
    let mut program = Program::spawn("access logs", &mut command).unwrap();
    let exit = program.exit_within(PATIENCE * 6).unwrap();
    let finished = program.finish().unwrap();
    assert_eq!(exit, Exit::Code(0), "{}\n{}", finished.stdout, finished.stderr);
    let parts: Vec<&str> = finished.stdout.split("---\n").collect();
    let [json, syslog, disk] = parts.as_slice() else { panic!("{}", finished.stdout) };
    check_json(json);
    check_syslog(syslog);
    let lines: Vec<&str> = disk.lines().collect();
    let [failing, lost, again, told] = lines.as_slice() else { panic!("{disk}") };
    assert!(
        failing.contains(" lost: the log of the process says why")
            && lost.contains(": 0 because its target was too slow, "),
        "{disk}"
    );
    assert!(again.contains("\"GET /again HTTP/1.1\"") && again.ends_with("reason=-"), "{disk}");
    assert_eq!(*told, "1");
}

fn check_json(lines: &str) {
    let records: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let find = |key: &str, value: &str| {
        let is_it = |record: &&Value| record[key].as_str().is_some_and(|found| found.contains(value));
        records.iter().find(is_it).unwrap_or_else(|| panic!("no {value}: {lines}"))
    };
    assert!(
        !lines.contains("hunter2")
            && !lines.contains("1234")
            && !lines.contains("secret=")
            && !lines.contains("healthz")
    );
    let cart = find("target", "/cart");
    assert_eq!(cart["line"], "GET /cart HTTP/1.1");
    assert_eq!((&cart["agent"], &cart["key"]), (&Value::from("a\"b\\c]d"), &Value::from("[redacted]")));
    assert_eq!((&cart["referer"], &cart["ip"]), (&Value::from("http://a/b"), &Value::from("127.0.0.1")));
    assert_eq!((&cart["length"], &cart["tls"]), (&Value::from("10"), &Value::Null));
    assert_eq!(cart["trace"], "4bf92f3577b34da6a3ce929d0e0e4736");
    let tls = find("target", "/tls");
    assert_eq!((&tls["tls"], &tls["sni"]), (&Value::from("TLSv1.3"), &Value::from("shop.example")));
    assert!(tls["subject"].as_str().unwrap().contains("Joe") && tls["print"].as_str().unwrap().len() == 64, "{tls}");
    // What was refused has a reason, whatever it contains.
    let others: Vec<&Value> = records.iter().filter(|record| !record["reason"].is_null()).collect();
    assert!(!others.is_empty() && records.len() == 4, "{lines}");
    assert!(!lines.contains('\u{2028}') && !lines.contains('\u{202e}') && !lines.contains('\u{1b}'));
}

fn check_syslog(lines: &str) {
    let lines: Vec<&str> = lines.lines().collect();
    let [structured, udp] = lines.as_slice() else { panic!("{lines:?}") };
    // local0 and local7, informational.
    assert_eq!(
        *structured,
        r#"134|edge|access|[steelyard@32473 path="/one" agent="a\"b\\c\]d" st="200"]|GET /one 200"#
    );
    assert_eq!(*udp, r#"190|steelyard|access|-|127.0.0.1 "GET /two HTTP/1.1" 200 "a\"b""#);
}
