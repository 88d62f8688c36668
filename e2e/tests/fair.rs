//! A hundred TCP streams at full speed, of which none starves.
#![forbid(unsafe_code)]

mod support;

use std::sync::Arc;
use std::time::Duration;

use lab::load::{Direction, run_tcp_stream};
use lab::origin::{TcpOrigin, TcpOriginArgs};
use support::{Steelyard, local, port};

const STREAMS: usize = 100;

/// How long the streams run. The test asserts how they share that time.
const RUN: Duration = Duration::from_secs(2);

#[test]
fn no_stream_starves() {
    for workers in [1, 2] {
        for direction in [Direction::Send, Direction::Receive] {
            share(workers, direction);
        }
    }
}

fn share(workers: u16, direction: Direction) {
    let send = (direction == Direction::Receive).then_some(u64::MAX);
    let args = TcpOriginArgs { listen: vec![local(0)], send, sink: send.is_none(), threads: 1 };
    let origin = Arc::new(TcpOrigin::bind(&args).unwrap());
    let endpoint = origin.addresses().unwrap()[0];
    let (end, ended) = tokio::sync::oneshot::channel::<()>();
    let serving = origin.clone();
    let thread = std::thread::spawn(move || serving.run_until(async move { Ok(_ = ended.await) }));

    let listen = port();
    let config = format!(
        "admin: {{admin}}
listeners:
  stream: {{bind: '127.0.0.1:{listen}', protocol: tcp, to: stream}}
clusters:
  stream: {{endpoints: ['{endpoint}']}}
"
    );
    let balancer = Steelyard::serve(&config, workers);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let report = runtime.block_on(run_tcp_stream(local(listen), STREAMS, direction, RUN)).unwrap();
    let mean = report.received_bytes.max(report.sent_bytes) / STREAMS as u64;
    let (least, most) = report.bytes_per_connection.unwrap();
    eprintln!(
        "{workers} workers, {direction:?}: {:.1} Gbit/s, mean {mean}, least {least}, most {most}",
        report.gbit_per_s
    );
    assert_eq!(report.failures(), 0, "{report}");
    assert!(least >= mean / 10, "a stream got {least} bytes, the mean is {mean}");
    drop((balancer, end));
    thread.join().unwrap().unwrap();
}
