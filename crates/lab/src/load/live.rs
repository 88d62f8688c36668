//! The progress line, which shows the results so far on a terminal.

use std::future::Future;
use std::io::{IsTerminal, Write};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::latency::CoarseLatencies;
use super::micros;
use super::shape::{Shape, Timeline, Until};
use super::tally::Tally;

/// The interval at which the line is redrawn.
const REDRAW: Duration = Duration::from_millis(500);

/// The assumed width of the terminal in columns. The line is shorter, so that it does not wrap.
const COLUMNS: usize = 80;

/// The results of a load so far. Clones refer to the same load.
#[derive(Clone, Debug, Default)]
pub struct Progress(Arc<Mutex<Watched>>);

#[derive(Debug, Default)]
struct Watched {
    timeline: Option<Timeline>,
    /// The tally of each thread.
    tallies: Vec<Weak<Mutex<Tally>>>,
}

/// The sums over the threads.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Seen {
    /// Successes since the load began. `failed` has the failures.
    ok: u64,
    failed: u64,
    /// Successes in the last complete second. `latencies` has their latencies.
    ok_in_second: u64,
    latencies: CoarseLatencies,
}

impl Seen {
    /// Adds what another generator has seen.
    pub(super) fn add(&mut self, other: &Self) {
        self.ok += other.ok;
        self.failed += other.failed;
        self.ok_in_second += other.ok_in_second;
        self.latencies.add(&other.latencies);
    }
}

impl Progress {
    /// Starts to follow a load, instead of an earlier one.
    pub(super) fn begin(&self, timeline: Timeline) {
        let mut watched = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *watched = Watched { timeline: Some(timeline), tallies: Vec::new() };
    }

    /// Adds the tally of one of its threads.
    pub(super) fn watch(&self, tally: &Arc<Mutex<Tally>>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).tallies.push(Arc::downgrade(tally));
    }

    /// The time since the load began and the results until `now`; `None` if it has not begun.
    pub(super) fn seen(&self, now: Instant) -> Option<(Duration, Seen)> {
        let watched = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let passed = now.saturating_duration_since(watched.timeline?.start);
        let last_second = passed.as_secs().checked_sub(1);
        let mut seen = Seen::default();
        for tally in watched.tallies.iter().filter_map(Weak::upgrade) {
            let tally = tally.lock().unwrap_or_else(PoisonError::into_inner);
            let (ok, failed) = tally.so_far();
            seen.ok += ok;
            seen.failed += failed;
            if let Some((ok, latencies)) = last_second.and_then(|second| tally.in_second(second as usize)) {
                seen.ok_in_second += ok;
                seen.latencies.add(latencies);
            }
        }
        Some((passed, seen))
    }
}

/// Waits for a load. Meanwhile, shows the progress line if standard error is a terminal and `--announce` is not given.
pub(super) async fn shown<T>(shape: &Shape, load: impl Future<Output = T>) -> T {
    if !is_shown(shape) {
        return load.await;
    }
    let mut ticks = tokio::time::interval(REDRAW);
    tokio::pin!(load);
    loop {
        tokio::select! {
            biased;
            outcome = &mut load => {
                draw("");
                return outcome;
            }
            _ = ticks.tick() => {
                if let Some((passed, seen)) = shape.progress.seen(Instant::now()) {
                    draw(&line(shape, passed, &seen));
                }
            }
        }
    }
}

/// Whether there is a progress line.
pub(super) fn is_shown(shape: &Shape) -> bool {
    std::io::stderr().is_terminal() && !shape.announce
}

/// Replaces the line of the cursor. If the terminal is gone, the load continues.
pub(super) fn draw(line: &str) {
    let _ = write!(std::io::stderr().lock(), "\r\x1b[K{line}").and_then(|()| std::io::stderr().flush());
}

pub(super) fn line(shape: &Shape, passed: Duration, seen: &Seen) -> String {
    let Seen { ok, failed, ok_in_second, latencies } = seen;
    let passed_s = passed.as_secs();
    let passed = match shape.until {
        Until::Elapsed(duration) => {
            let whole = shape.ramp + shape.warm_up + duration + shape.trim;
            format!("{passed_s} s of {} s", whole.as_secs_f64().ceil())
        }
        Until::Requests(count) => format!("{passed_s} s, {} of {count}", ok + failed),
    };
    let at = |percent| latencies.percentile_us(percent).map_or("-".to_owned(), micros);
    let (p50, p99) = (at(50.0), at(99.0));
    let line = format!("{passed}  {ok} ok  {failed} failed  {ok_in_second}/s  p50 {p50}  p99 {p99}");
    line.chars().take(COLUMNS - 1).collect()
}

#[cfg(test)]
mod tests {
    use super::super::tally::{Met, Outcome, Times};
    use super::*;

    #[test]
    fn a_line_says_how_far_it_is_and_what_the_last_second_was_like() {
        let second = Duration::from_secs(1);
        let shape = Shape::closed(1, Until::Elapsed(second * 10));
        let timeline = Timeline::new(&shape, Instant::now());
        assert!(shape.progress.seen(timeline.start).is_none());
        shape.progress.begin(timeline);
        let tally = Arc::new(Mutex::new(Tally::default()));
        shape.progress.watch(&tally);
        for (ms, outcome) in
            [(500, Outcome::Good), (1_100, Outcome::Good), (1_900, Outcome::Good), (2_100, Outcome::Broken)]
        {
            let ended = timeline.start + Duration::from_millis(ms);
            let times = Times { due: None, begun: ended - Duration::from_millis(20), ended };
            tally.lock().unwrap().count(&timeline, times, outcome, &Met::default());
        }
        let (passed, seen) = shape.progress.seen(timeline.start + second * 2).unwrap();
        let shown = line(&shape, passed, &seen);
        assert!(shown.starts_with("2 s of 10 s  3 ok  1 failed  2/s  p50 20"), "{shown}");
        let counted = Shape::closed(1, Until::Requests(9));
        assert!(line(&counted, passed, &seen).starts_with("2 s, 4 of 9  3 ok  1 failed  2/s"), "{shown}");
        // The tallies of a load that has ended do not count any more.
        drop(tally);
        let (_, seen) = shape.progress.seen(timeline.start + second * 2).unwrap();
        assert_eq!((seen.ok, seen.failed), (0, 0));
    }
}
