//! Where the counters come from: the stream of events, as for the page and `steelyard tail`, which brings them once a second.

use std::time::Duration;

use admin::{Client, ClientError, Counters, EventStream, Wanted};

/// Intervals that the stream can serve: it brings nothing more often than this.
const INTERVAL_MIN: Duration = Duration::from_secs(1);
/// Over a longer interval, most of what the stream brings would be of no use.
const INTERVAL_MAX: Duration = Duration::from_secs(10);
/// The update of a second may come this much before its time.
const EARLY: Duration = Duration::from_millis(300);

/// The counters that the stream brings.
pub(super) struct Source {
    client: Client,
    interval: Duration,
    stream: Option<EventStream>,
}

impl Source {
    /// `None`: the counters must be asked for at this interval.
    pub(super) fn new(client: &Client, interval: Duration) -> Option<Self> {
        let streams = (INTERVAL_MIN..=INTERVAL_MAX).contains(&interval);
        streams.then(|| Self { client: client.clone(), interval, stream: None })
    }

    /// The counters at the end of the interval that began with `before`. Waits for them.
    ///
    /// # Errors
    /// Says in a sentence why there are none. The next call tries again.
    pub(super) fn next(&mut self, before: &Counters) -> Result<Counters, String> {
        let outcome = self.read(before);
        if outcome.is_err() {
            self.stream = None;
        }
        outcome
    }

    fn read(&mut self, before: &Counters) -> Result<Counters, String> {
        let told = |error: ClientError| error.to_string();
        let stream = match &mut self.stream {
            Some(stream) => stream,
            none => {
                let wanted = Wanted { counters: true, ..Wanted::default() };
                match admin::events(&self.client, &admin::events_path(wanted)) {
                    Ok(stream) => none.insert(stream),
                    // Too many others look.
                    Err(ClientError::Refused { status: 503, .. }) => {
                        std::thread::park_timeout(self.interval);
                        return super::ask(&self.client);
                    }
                    Err(error) => return Err(told(error)),
                }
            }
        };
        while let Some(event) = stream.next_event().map_err(told)? {
            if event.name != "counters" {
                continue;
            }
            let now = Counters::parse(event.data.as_bytes())?;
            let passed = Duration::from_millis(now.uptime_ms.saturating_sub(before.uptime_ms));
            if now.pid != before.pid || passed + EARLY >= self.interval {
                return Ok(now);
            }
        }
        Err("the stream has ended: Steelyard has ended, or a new process has taken over".to_owned())
    }
}
