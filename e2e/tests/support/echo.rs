//! Echoes behind a vip, and clients that compare the echo with what they sent.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

use lab::origin::{TcpOrigin, TcpOriginArgs};
use testkit::Program;
use tokio::sync::oneshot;

/// The port on which each endpoint sends back what it receives, over TCP and UDP.
pub const ECHO_PORT: u16 = 7;
/// A waiting socket checks this often whether it is still needed.
const LOOK_UP: Duration = Duration::from_millis(20);

/// TCP and UDP echo at port [`ECHO_PORT`] of every address of the namespace in which it is started.
pub struct Echo {
    end: Arc<AtomicBool>,
    tcp: Option<oneshot::Sender<()>>,
    threads: Vec<JoinHandle<()>>,
}

impl Echo {
    pub fn start() -> Self {
        let any: SocketAddr = format!("[::]:{ECHO_PORT}").parse().unwrap();
        let tcp = TcpOrigin::bind(&TcpOriginArgs { listen: vec![any], send: None, sink: false, threads: 1 }).unwrap();
        let (tcp_end, ended) = oneshot::channel::<()>();
        let tcp_thread = std::thread::spawn(move || tcp.run_until(async move { Ok(_ = ended.await) }).unwrap());
        let end = Arc::new(AtomicBool::new(false));
        let mut echo = Self { end, tcp: Some(tcp_end), threads: vec![tcp_thread] };
        // One socket per address. With one for all, the kernel would choose the source address of the answers, and would choose a different
        // one for a vip that an endpoint itself holds.
        for address in own_addresses() {
            let socket = UdpSocket::bind((address, ECHO_PORT)).unwrap();
            socket.set_read_timeout(Some(LOOK_UP)).unwrap();
            let end = echo.end.clone();
            echo.threads.push(std::thread::spawn(move || echo_datagrams(&socket, &end)));
        }
        echo
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.end.store(true, Relaxed);
        self.tcp = None;
        for thread in self.threads.drain(..) {
            // A panic has already been reported.
            _ = thread.join();
        }
    }
}

fn echo_datagrams(socket: &UdpSocket, end: &AtomicBool) {
    let mut datagram = vec![0; 65_536];
    while !end.load(Relaxed) {
        if let Ok((count, from)) = socket.recv_from(&mut datagram) {
            // If the client is already gone, this is not our failure.
            _ = socket.send_to(&datagram[..count], from);
        }
    }
}

/// The addresses of the calling thread's namespace, without those of the loopback network and the link-local ones.
fn own_addresses() -> Vec<IpAddr> {
    let finished = Program::run("ip", std::process::Command::new("ip").args(["-br", "address"])).unwrap();
    let words = finished.stdout.split_whitespace();
    let addresses = words.filter_map(|word| word.split_once('/')?.0.parse::<IpAddr>().ok());
    let is_link_local = |address: &IpAddr| matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local());
    addresses.filter(|address| !address.is_loopback() && !is_link_local(address)).collect()
}

/// Sends `count` bytes to an echo while it reads them back, and compares them byte by byte.
#[track_caller]
pub fn bulk(stream: &TcpStream, count: usize) {
    let pattern = |index: usize| (index.wrapping_mul(0x9e37_79b9) >> 13) as u8;
    let sent: Vec<u8> = (0..count).map(pattern).collect();
    let mut received = vec![0; count];
    let outcome = std::thread::scope(|scope| {
        let sending = scope.spawn(|| { stream }.write_all(&sent));
        let receiving = { stream }.read_exact(&mut received);
        sending.join().unwrap().and(receiving)
    });
    outcome.unwrap_or_else(|error| panic!("bulk of {count} bytes: {error}"));
    let differs = sent.iter().zip(&received).position(|(sent, received)| sent != received);
    assert_eq!(differs, None, "the position of the first wrong byte in the echo");
}

/// One exchange on a connection to an echo.
pub fn exchange(stream: &TcpStream, text: &str) -> std::io::Result<()> {
    let mut stream = stream;
    stream.write_all(text.as_bytes())?;
    let mut answer = vec![0; text.len()];
    stream.read_exact(&mut answer)?;
    assert_eq!(String::from_utf8_lossy(&answer), text);
    Ok(())
}

/// Sends a datagram of `count` bytes to an echo, and expects it back.
#[track_caller]
pub fn datagram(socket: &UdpSocket, count: usize) {
    try_datagram(socket, count).unwrap_or_else(|error| panic!("no answer to {count} bytes: {error}"));
}

/// The same, for a datagram that may be lost.
#[track_caller]
pub fn try_datagram(socket: &UdpSocket, count: usize) -> std::io::Result<()> {
    let sent: Vec<u8> = (0..count).map(|index| (index % 251) as u8).collect();
    socket.send(&sent)?;
    let mut received = vec![0; 65_536];
    let received_count = socket.recv(&mut received)?;
    assert!(received[..received_count] == sent, "{count} bytes were changed on the way");
    Ok(())
}
