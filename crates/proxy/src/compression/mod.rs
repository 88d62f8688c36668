//! Compresses the responses of endpoints: which ones, how, and how many at once.
//!
//! | what | file |
//! |---|---|
//! | what a client accepts | `accept` |
//! | which responses are compressed, and what their heads say | `decide` |
//! | gzip, Brotli and zstd | `encoder` |
//! | how much is compressed before others get their turn | `turn` |
//!
//! The body of a response goes through its `Transfer`, which asks its driver for [`TransferStep::Code`](crate::exchange::transfer::TransferStep).

mod accept;
mod decide;
mod encoder;
pub(crate) mod turn;

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use model::{Compression, Encoding};
use net::memory::{self, Pressure};
use telemetry::{CompressionCounters, Registry};
use wire::message::Field;

pub(crate) use decide::{CompressedHead, Wish, decide};
#[cfg(test)]
pub(crate) use encoder::testing;
pub(crate) use encoder::{EncodeFailed, Encoder};

use crate::exchange::faults::{self, InjectedFault};
use crate::worker::ListenerView;

/// Bytes of a body that are compressed at once. At the highest level, this takes less than a millisecond. Brotli and zstd collect up to 64 and
/// 128 KiB and then compress them together, which takes up to 3 ms.
pub(crate) const SLICE_BYTES_MAX: usize = 16 * 1024;

/// Responses that a worker compresses at once. Each needs up to 2 MiB.
pub(crate) const COMPRESSING_MAX: usize = 64;

/// What a worker has of its compression.
pub(crate) struct Compressions {
    in_use: Rc<Cell<usize>>,
    registry: Arc<Registry>,
    worker: usize,
}

/// Permission to compress one response.
struct Permit(Rc<Cell<usize>>);

impl Drop for Permit {
    fn drop(&mut self) {
        if !faults::is_injected(InjectedFault::LeaksPermit) {
            self.0.set(self.0.get().saturating_sub(1));
        }
    }
}

impl Compressions {
    pub(crate) fn new(registry: Arc<Registry>, worker: usize) -> Self {
        Self { in_use: Rc::default(), registry, worker }
    }

    /// Begins to compress a response of the route with this number. `length`: that of its body, if it is known; `flushes`: what the endpoint
    /// has sent is passed on whenever it pauses. Returns `None` if there is no room for it now, which is counted.
    pub(crate) fn begin(
        &self,
        listener: &ListenerView,
        route: usize,
        policy: &Compression,
        encoding: Encoding,
        length: Option<u64>,
        flushes: bool,
    ) -> Option<Compressing> {
        let counters = listener.compression_counters(&self.registry, self.worker, route)?;
        let has_room = self.in_use.get() < COMPRESSING_MAX && memory::pressure() == Pressure::Low;
        let encoder = if has_room { Encoder::new(encoding, policy.level, length) } else { None };
        let Some(encoder) = encoder else {
            counters.busy.inc();
            return None;
        };
        counters.responses.inc(encoding);
        self.in_use.set(self.in_use.get() + 1);
        Some(Compressing {
            encoder,
            flushes,
            has_unflushed: false,
            is_flush_due: false,
            end: None,
            coded: Vec::new(),
            counters: counters.clone(),
            _permit: Permit(self.in_use.clone()),
        })
    }

    #[cfg(test)]
    pub(crate) fn in_use(&self) -> usize {
        self.in_use.get()
    }
}

/// The body of a response that is being compressed.
pub(crate) struct Compressing {
    encoder: Encoder,
    flushes: bool,
    /// The encoder has taken something since it was last flushed.
    has_unflushed: bool,
    is_flush_due: bool,
    /// The body has ended, with these trailers.
    end: Option<Trailers>,
    /// What the encoder gave last.
    coded: Vec<u8>,
    counters: Arc<CompressionCounters>,
    _permit: Permit,
}

/// The trailers of a body, and the bytes that they point into.
pub(crate) struct Trailers {
    pub(crate) fields: Vec<Field>,
    pub(crate) section: Vec<u8>,
}

impl Compressing {
    /// Compresses a piece of the body. Returns what there is of it now, which may be nothing.
    pub(crate) fn put(&mut self, piece: &[u8]) -> Result<&[u8], EncodeFailed> {
        self.has_unflushed |= !piece.is_empty();
        self.clear();
        self.encoder.put(piece, &mut self.coded)?;
        Ok(self.given(piece.len()))
    }

    /// Records that the body has ended. A digest in its trailers is not that of the compressed body.
    pub(crate) fn handle_end(&mut self, fields: &[Field], section: &[u8]) {
        let fields = fields.iter().filter(|field| !decide::is_digest(field.name.get(section))).copied();
        self.end = Some(Trailers { fields: fields.collect(), section: section.to_vec() });
    }

    /// Records that its endpoint pauses. Returns whether what was taken must be passed on now.
    pub(crate) fn handle_pause(&mut self) -> bool {
        let forgets = faults::is_injected(InjectedFault::ForgetsFlush);
        self.is_flush_due |= self.flushes && self.has_unflushed && self.end.is_none() && !forgets;
        self.is_flush_due
    }

    #[cfg(test)]
    pub(crate) fn flushes(&self) -> bool {
        self.flushes
    }

    /// Whether there is something to do without more of the body.
    pub(crate) fn is_due(&self) -> bool {
        self.is_flush_due || self.end.is_some()
    }

    /// Returns what the encoder has taken and not yet given.
    pub(crate) fn flush(&mut self) -> Result<&[u8], EncodeFailed> {
        (self.is_flush_due, self.has_unflushed) = (false, false);
        self.clear();
        self.encoder.flush(&mut self.coded)?;
        Ok(self.given(0))
    }

    /// The trailers, once the body has ended.
    pub(crate) fn take_end(&mut self) -> Option<Trailers> {
        self.end.take()
    }

    /// Returns the end of the compressed body.
    pub(crate) fn finish(&mut self) -> Result<&[u8], EncodeFailed> {
        self.clear();
        if !faults::is_injected(InjectedFault::EndsCodedEarly) {
            self.encoder.finish(&mut self.coded)?;
        }
        Ok(self.given(0))
    }

    /// Counts the CPU time of some of this.
    pub(crate) fn count_cpu(&self, ns: u64) {
        self.counters.cpu_ns.add(ns);
    }

    fn given(&self, taken: usize) -> &[u8] {
        self.counters.bytes_in.add(taken as u64);
        self.counters.bytes_out.add(self.coded.len() as u64);
        &self.coded
    }

    fn clear(&mut self) {
        // Brotli and zstd give up to 64 or 128 KiB at once, if the body cannot be compressed.
        if self.coded.capacity() > SLICE_BYTES_MAX {
            self.coded = Vec::new();
        }
        self.coded.clear();
    }
}
