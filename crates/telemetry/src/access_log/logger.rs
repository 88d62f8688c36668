//! A worker's end of the access log.

use std::mem;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use model::LogValue;

use super::batch::Batch;
use super::rules::{Random, Rules};
use super::{BATCHES_MAX, HttpRecord, Message, Record, Shared};

/// A worker's handle on the log. It never blocks. Dropping it flushes.
#[derive(Debug)]
pub struct Logger {
    current: Batch,
    queue: SyncSender<Message>,
    shared: Arc<Shared>,
    rules: Arc<Rules>,
    random: Random,
    /// The channel for emptied batches. It has room for all batches, so that the writer never waits for us.
    home: SyncSender<Batch>,
    emptied: Receiver<Batch>,
    /// Batches that exist, including `current`: `1 <= made <= BATCHES_MAX`.
    made: usize,
}

impl Logger {
    pub(super) fn new(queue: SyncSender<Message>, shared: Arc<Shared>, rules: Arc<Rules>) -> Self {
        let (home, emptied) = sync_channel(BATCHES_MAX);
        Self { current: Batch::default(), queue, shared, rules, random: Random::new(), home, emptied, made: 1 }
    }

    /// Copies a record, if it is wanted. If that fills the batch and the writer is behind, the batch is dropped and counted. `give` appends
    /// a value that a record does not have itself, and returns false if the request or connection has none; it is called only for the values
    /// that the log has.
    pub fn push(&mut self, record: &Record<'_>, give: impl FnMut(&LogValue, &mut Vec<u8>) -> bool) {
        if self.rules.is_usual {
            self.current.push(record, &[], give);
        } else if !self.push_by_rules(record, give) {
            return;
        }
        if self.current.is_full() && !self.hand_over() {
            self.shared.dropped.fetch_add(self.current.len() as u64, Relaxed);
            self.current.clear();
        }
    }

    /// Returns false if it is not wanted.
    #[inline(never)]
    fn push_by_rules(&mut self, record: &Record<'_>, mut give: impl FnMut(&LogValue, &mut Vec<u8>) -> bool) -> bool {
        let Self { rules, random, current, .. } = self;
        if !rules.take(record, random) {
            return false;
        }
        let http = record.http.map(|http| HttpRecord { target: rules.target(http.target), ..http });
        current.push(&Record { http, ..*record }, &rules.extras, |value, out| {
            let begin = out.len();
            let is_there = give(value, out);
            if is_there {
                rules.hide(value, begin, out);
            }
            is_there
        });
        true
    }

    /// Hands over the current batch. If the writer is behind, the batch stays and grows. Call this a few times a second, so that the lines
    /// of a quiet listener appear, too.
    pub fn flush(&mut self) {
        if self.current.len() > 0 {
            self.hand_over();
        }
    }

    fn hand_over(&mut self) -> bool {
        // Get the replacement first: without one, the batch cannot be handed over.
        let Some(next) = self.next() else { return false };
        let full = mem::replace(&mut self.current, next);
        match self.queue.try_send(Message::Batch(full, self.home.clone())) {
            Ok(()) => true,
            Err(error) => {
                // Take it back. The writer has ended, or other workers have filled the queue.
                let (std::sync::mpsc::TrySendError::Full(message)
                | std::sync::mpsc::TrySendError::Disconnected(message)) = error;
                if let Message::Batch(full, home) = message {
                    let next = mem::replace(&mut self.current, full);
                    let _ = home.try_send(next);
                }
                false
            }
        }
    }

    fn next(&mut self) -> Option<Batch> {
        if let Ok(batch) = self.emptied.try_recv() {
            return Some(batch);
        }
        (self.made < BATCHES_MAX).then(|| {
            self.made += 1;
            Batch::default()
        })
    }
}

impl Drop for Logger {
    fn drop(&mut self) {
        self.flush();
        // The remaining records can no longer be written.
        self.shared.dropped.fetch_add(self.current.len() as u64, Relaxed);
    }
}
