//! The reference loop: a fixed amount of the kernel's own work, timed before and after each cell.
//!
//! The work is what balancers, loads and origins do most: small writes and reads on a TCP connection over loopback, with the soft interrupts
//! that carry them. Each CPU of the run does it on a thread that is pinned to it, all at the same time, because the components of a cell also
//! work at the same time. They begin together, and each goes on until the last has done its share: two virtual CPUs may be two threads of one core, and
//! then a loop that runs alone is twice as fast as beside another (5 and 10 us a turn on such a host). How long it takes on the clock shows what neighbours and the hypervisor took; how much CPU time it takes shows what
//! they did to caches and clocks. `stats` divides by both.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_setaffinity};

use crate::procfs::own_thread_cpu_time;
use crate::record::Turn;

/// Turns of the loop: 30 to 40 ms on a CPU of 2024, several of the slices that the scheduler gives to neighbours.
const TURNS: u32 = 4_000;

/// Turns before that, so that the first is not slower than the rest.
const WARM_UP_TURNS: u32 = 200;

/// Bytes of a message: a small request.
const MESSAGE_BYTES: usize = 128;

/// A broken loopback must not stop a run.
const PATIENCE: Duration = Duration::from_secs(10);

/// Runs the loop on each of `cpus` at once. A CPU on which it cannot run is left out.
#[must_use]
pub fn measure(cpus: &[u32]) -> Vec<Turn> {
    let mut cpus: Vec<u32> = cpus.to_vec();
    cpus.sort_unstable();
    cpus.dedup();
    let together = Together { begin: Barrier::new(cpus.len()), working: AtomicUsize::new(cpus.len()) };
    thread::scope(|scope| {
        let together = &together;
        let threads: Vec<_> = cpus.into_iter().map(|cpu| scope.spawn(move || on_cpu(cpu, TURNS, together))).collect();
        threads.into_iter().filter_map(|thread| thread.join().ok()?.ok()).collect()
    })
}

/// What makes the loops of all CPUs one measurement.
struct Together {
    /// Where each waits until all are ready.
    begin: Barrier,
    /// How many have not done their turns yet.
    working: AtomicUsize,
}

fn on_cpu(cpu: u32, turns: u32, together: &Together) -> io::Result<Turn> {
    let ready = pin(cpu).and_then(|()| Link::new());
    together.begin.wait();
    let timed = ready.and_then(|mut link| Ok((link.timed(cpu, turns)?, link)));
    together.working.fetch_sub(1, Ordering::Relaxed);
    let (timed, mut link) = timed?;
    while together.working.load(Ordering::Relaxed) > 0 {
        link.turn()?;
    }
    Ok(timed)
}

/// Pins the calling thread.
pub(crate) fn pin(cpu: u32) -> io::Result<()> {
    let mut set = CpuSet::new();
    if cpu as usize >= CpuSet::MAX_CPU {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("no CPU {cpu}")));
    }
    set.set(cpu as usize);
    Ok(sched_setaffinity(None, &set)?)
}

/// Both ends of a connection over loopback.
struct Link {
    near: TcpStream,
    far: TcpStream,
    message: [u8; MESSAGE_BYTES],
}

impl Link {
    fn new() -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let near = TcpStream::connect_timeout(&listener.local_addr()?, PATIENCE)?;
        let (far, _) = listener.accept()?;
        for stream in [&near, &far] {
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(PATIENCE))?;
        }
        Ok(Self { near, far, message: [b'x'; MESSAGE_BYTES] })
    }

    /// A message there and back.
    fn turn(&mut self) -> io::Result<()> {
        self.near.write_all(&self.message)?;
        self.far.read_exact(&mut self.message)?;
        self.far.write_all(&self.message)?;
        self.near.read_exact(&mut self.message)
    }

    fn timed(&mut self, cpu: u32, turns: u32) -> io::Result<Turn> {
        for _ in 0..WARM_UP_TURNS {
            self.turn()?;
        }
        let (begun, before) = (Instant::now(), own_thread_cpu_time()?);
        for _ in 0..turns {
            self.turn()?;
        }
        let (wall, used) = (begun.elapsed(), own_thread_cpu_time()?.saturating_sub(before));
        let each = |time: Duration| time.as_secs_f64() * 1e6 / f64::from(turns);
        Ok(Turn { cpu, wall_us: each(wall), cpu_us: each(used) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_takes_time_on_each_cpu_that_is_there() {
        let cpus = crate::environment::online();
        let turns = measure(&[cpus.as_slice(), &[cpus[0], 9_999]].concat());
        assert_eq!(
            turns.iter().map(|turn| turn.cpu).collect::<Vec<_>>(),
            cpus,
            "each CPU once, and none that is missing"
        );
        for turn in turns {
            // CPU time is read a moment later than the clock.
            assert!(turn.wall_us > 0.0 && turn.cpu_us > 0.0 && turn.cpu_us < turn.wall_us * 1.5, "{turn:?}");
        }
    }
}
