//! Stands between a controller and its API server, so that a test can take the one away from the other.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

/// Passes bytes on between whoever connects and `to`. Dropped, it is closed; its threads end with their connections.
pub struct Relay {
    pub address: SocketAddr,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    closed: AtomicBool,
    /// Connections that came while it was open.
    passed: AtomicU64,
    open: Mutex<Vec<TcpStream>>,
}

impl Relay {
    pub fn start(to: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(State::default());
        let accepting = state.clone();
        // Ends with the process: it holds nothing that a test could miss.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if !accepting.closed.load(Relaxed) {
                    pass(stream, to, &accepting);
                }
            }
        });
        Self { address, state }
    }

    /// Ends all connections; new ones are passed on.
    pub fn cut(&self) {
        for stream in self.state.open.lock().unwrap().drain(..) {
            // It may have ended by itself.
            _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Ends all connections, and every new one at once.
    pub fn close(&self) {
        self.state.closed.store(true, Relaxed);
        self.cut();
    }

    pub fn open(&self) {
        self.state.closed.store(false, Relaxed);
    }

    /// Connections so far that were passed on.
    pub fn passed(&self) -> u64 {
        self.state.passed.load(Relaxed)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.close();
    }
}

fn pass(downstream: TcpStream, to: SocketAddr, state: &State) {
    // Whoever asks is told by the end of its connection.
    let Ok(upstream) = TcpStream::connect(to) else { return };
    state.passed.fetch_add(1, Relaxed);
    for (from, to) in [(&downstream, &upstream), (&upstream, &downstream)] {
        let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
        std::thread::spawn(move || copy(from, to));
    }
    state.open.lock().unwrap().extend([downstream, upstream]);
}

fn copy(mut from: TcpStream, mut to: TcpStream) {
    let mut piece = vec![0; 65_536];
    while let Ok(count @ 1..) = from.read(&mut piece) {
        if to.write_all(&piece[..count]).is_err() {
            break;
        }
    }
    // Each fails only for a connection that is gone.
    _ = to.shutdown(Shutdown::Both);
    _ = from.shutdown(Shutdown::Both);
}
