//! What a collection over a large table costs, and whether packets wait for it: `cargo xtask bench collect`, as root. Prints, and asserts nothing.
//!
//! The table is filled from outside, through its pin, with copies of the entries of a real connection, each of another client. They look as if they
//! had been silent for a minute, so that the collection has every one of them judged: the worst that it can meet. Meanwhile the real connection
//! sends a byte to and fro without a pause, and its slowest exchange is told: once without a collection, and once beside it.

fn main() {
    #[cfg(kernel_plane)]
    collection::measure();
}

#[cfg(kernel_plane)]
mod collection {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
    use std::time::{Duration, Instant};

    use l4::{EndpointVerdict, Options, Plane, detach};
    use libbpf_rs::{MapCore, MapFlags, MapHandle};
    use model::{Endpoint, EndpointAddress, PortRange, Transport, Vip};
    use testkit::netns::{Netns, join};

    /// Connections, each of two entries.
    const FLOWS: u32 = 1_000_000;
    const VIP: &str = "20.0.0.1:80";
    const ENDPOINT: &str = "10.1.0.2:80";
    /// Entries written at once.
    const BATCH: u32 = 4096;
    /// What Steelyard lets pass between two steps.
    const REST: Duration = Duration::from_millis(25);
    const COLLECTIONS: usize = 3;
    /// For the exchanges without a collection.
    const ALONE: Duration = Duration::from_secs(3);

    /// As in `abi.h`: where the addresses of a key stand, and where the time of the last packet stands in an entry.
    const SADDR_AT: usize = 0;
    const DADDR_AT: usize = 16;
    const TOUCHED_AT: usize = 76;
    const FLAGS_AT: usize = 87;
    const LB_FLOW_REPLY: u8 = 1;

    pub fn measure() {
        let (client, lb, endpoint) =
            (Netns::new("client").unwrap(), Netns::new("lb").unwrap(), Netns::new("ep0").unwrap());
        join((&lb, "client0"), (&client, "eth0"), 1500).unwrap();
        join((&lb, "ep0"), (&endpoint, "eth0"), 1500).unwrap();
        lb.forward().unwrap();
        lb.ip("addr add 10.0.0.1/24 dev client0\naddr add 10.1.0.1/24 dev ep0").unwrap();
        client.ip("addr add 10.0.0.2/24 dev eth0\nroute add default via 10.0.0.1").unwrap();
        endpoint.ip("addr add 10.1.0.2/24 dev eth0\nroute add default via 10.1.0.1").unwrap();
        serve(&endpoint);
        let pin_dir = PathBuf::from(format!("/sys/fs/bpf/steelyard-bench-{}", std::process::id()));
        let options = Options { flows_max: FLOWS + 1, pin_dir: Some(pin_dir.clone()), force_tc: false };
        let _tidy = Tidy(&lb, &options);
        let mut plane = lb.inside(|| Plane::open(&options)).unwrap();
        lb.inside(|| plane.apply(&[vip()], &|_, _| EndpointVerdict::Active)).unwrap();
        let mut stream = client.inside(|| TcpStream::connect(VIP)).unwrap();
        exchange(&mut stream);

        println!("alone: {}", exchanges_beside(&mut stream, || pass(ALONE)));
        fill(&pin_dir);
        for _ in 0..COLLECTIONS {
            let (mut steps, mut work) = (Vec::new(), Duration::ZERO);
            let mut kept = 0;
            let began = Instant::now();
            let beside = exchanges_beside(&mut stream, || {
                lb.inside(|| {
                    loop {
                        let (began, ran) = (Instant::now(), on_cpu());
                        let collected = plane.collect().unwrap();
                        steps.push(began.elapsed());
                        work += on_cpu() - ran;
                        if let Some(collected) = collected {
                            kept = collected.kept;
                            return;
                        }
                        pass(REST);
                    }
                });
            });
            let whole = began.elapsed();
            steps.sort_unstable();
            println!(
                "collection: {kept} entries, {} steps of {:.1} ms on the CPU; of {:.1} ms in all (median; slowest {:.1} ms); {:.2} s on the CPU in {:.2} s; meanwhile {beside}",
                steps.len(),
                millis(work / steps.len() as u32),
                millis(steps[steps.len() / 2]),
                millis(steps[steps.len() - 1]),
                work.as_secs_f64(),
                whole.as_secs_f64()
            );
        }
    }

    /// What is pinned outlives the namespace.
    struct Tidy<'t>(&'t Netns, &'t Options);

    impl Drop for Tidy<'_> {
        fn drop(&mut self) {
            _ = self.0.inside(|| detach(self.1));
        }
    }

    fn vip() -> Vip {
        let at: std::net::SocketAddr = VIP.parse().unwrap();
        let endpoint = Endpoint {
            address: EndpointAddress::Socket(ENDPOINT.parse().unwrap()),
            weight: 1,
            priority: 0,
            zone: model::Zone::Unknown,
            host: None,
        };
        Vip {
            interfaces: vec!["client0".to_owned(), "ep0".to_owned()],
            endpoints: vec![endpoint],
            ..Vip::new("web", at.ip(), PortRange { first: at.port(), last: at.port() }, Transport::Tcp)
        }
    }

    /// The thread ends with the process.
    fn serve(endpoint: &Netns) {
        let listener = endpoint.inside(|| TcpListener::bind("0.0.0.0:80")).unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.set_nodelay(true).unwrap();
            let mut byte = [0];
            while stream.read_exact(&mut byte).is_ok() && stream.write_all(&byte).is_ok() {}
        });
    }

    fn exchange(stream: &mut TcpStream) -> Duration {
        let began = Instant::now();
        stream.write_all(b"x").unwrap();
        stream.read_exact(&mut [0]).unwrap();
        began.elapsed()
    }

    /// Exchanges a byte again and again until `work` is done: how often, and how long that took.
    fn exchanges_beside(stream: &mut TcpStream, work: impl FnOnce()) -> String {
        let is_done = AtomicBool::new(false);
        let mut all = std::thread::scope(|scope| {
            let exchanging = scope.spawn(|| {
                let mut all = Vec::new();
                while !is_done.load(Relaxed) {
                    all.push(exchange(stream));
                }
                all
            });
            work();
            is_done.store(true, Relaxed);
            exchanging.join().unwrap()
        });
        all.sort_unstable();
        let at = |share: f64| millis(all[((all.len() - 1) as f64 * share) as usize]);
        format!("{} exchanges, p50 {:.3} ms, p99 {:.3} ms, slowest {:.1} ms", all.len(), at(0.5), at(0.99), at(1.0))
    }

    /// What this thread has had of a CPU (proc(5), `schedstat`): on a loaded host the clock tells of the others.
    fn on_cpu() -> Duration {
        let told = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
        Duration::from_nanos(told.split(' ').next().unwrap().parse().unwrap())
    }

    /// Parking ends early where somebody has unparked the thread before.
    fn pass(time: Duration) {
        let began = Instant::now();
        while let Some(left) = time.checked_sub(began.elapsed()).filter(|left| !left.is_zero()) {
            std::thread::park_timeout(left);
        }
    }

    fn millis(duration: Duration) -> f64 {
        duration.as_secs_f64() * 1000.0
    }

    /// Copies of the two entries that are there, of as many other clients.
    fn fill(pin_dir: &std::path::Path) {
        let folder = std::fs::read_dir(pin_dir).unwrap().next().unwrap().unwrap().path();
        let table = MapHandle::from_pinned_path(folder.join("lb_flows")).unwrap();
        let pair: Vec<(Vec<u8>, Vec<u8>)> = table
            .keys()
            .map(|key| {
                let mut value = table.lookup(&key, MapFlags::ANY).unwrap().unwrap();
                let touched_s = u32::from_ne_bytes(value[TOUCHED_AT..TOUCHED_AT + 4].try_into().unwrap()) - 60;
                value[TOUCHED_AT..TOUCHED_AT + 4].copy_from_slice(&touched_s.to_ne_bytes());
                (key, value)
            })
            .collect();
        assert_eq!(pair.len(), 2, "one connection");
        for first in (0..FLOWS).step_by(BATCH as usize) {
            let (mut keys, mut values) = (Vec::new(), Vec::new());
            let clients = first..(first + BATCH).min(FLOWS);
            let count = clients.len() as u32 * 2;
            for client in clients {
                for (key, value) in &pair {
                    // The client stands at the source of its own entry, and at the destination of its replies'; and, turned round, in what each
                    // packet leaves with.
                    let (in_key, in_value) =
                        if value[FLAGS_AT] & LB_FLOW_REPLY == 0 { (SADDR_AT, SADDR_AT) } else { (DADDR_AT, DADDR_AT) };
                    let (mut key, mut value) = (key.clone(), value.clone());
                    // 11.0.0.0 and on, as an IPv4 address within IPv6's sixteen bytes.
                    let address = (0x0b00_0000 + client).to_be_bytes();
                    key[in_key + 12..in_key + 16].copy_from_slice(&address);
                    value[in_value + 12..in_value + 16].copy_from_slice(&address);
                    keys.extend(key);
                    values.extend(value);
                }
            }
            table.update_batch(&keys, &values, count, MapFlags::ANY, MapFlags::ANY).unwrap();
        }
    }
}
