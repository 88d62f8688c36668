//! What the body of a message passes through on its way: compression or decompression. Both take pieces, and give some bytes when the driver
//! lets them ([`TransferStep::Code`](super::transfer::TransferStep)).

use wire::message::Field;

use super::transfer::BodyError;
use crate::compression::{Compressing, Trailers};
use crate::request_body::Decompressing;

/// A body on its way through a coding.
pub(super) enum Coding {
    Compress(Compressing),
    Decompress(Decompressing),
}

/// What a coding does next.
pub(super) enum Coded<'c> {
    /// It gives these bytes, and may go on.
    Bytes(&'c [u8]),
    /// It gives these bytes, which are the last, and the body has these trailers.
    End(&'c [u8], Trailers),
    /// It needs more of the body.
    Needs,
}

impl Coding {
    /// Takes a piece of the body. Returns what there is of it now, which may be nothing.
    pub(super) fn put(&mut self, piece: &[u8]) -> Result<&[u8], BodyError> {
        match self {
            Self::Compress(compressing) => Ok(compressing.put(piece)?),
            Self::Decompress(decompressing) => {
                decompressing.put(piece);
                Ok(&[])
            }
        }
    }

    /// Records that the body has ended.
    pub(super) fn handle_end(&mut self, fields: &[Field], section: &[u8]) {
        match self {
            Self::Compress(compressing) => compressing.handle_end(fields, section),
            Self::Decompress(decompressing) => decompressing.handle_end(fields, section),
        }
    }

    /// Records that the sender pauses. Returns whether what was taken must be passed on now.
    pub(super) fn handle_pause(&mut self) -> bool {
        match self {
            Self::Compress(compressing) => compressing.handle_pause(),
            Self::Decompress(_) => false,
        }
    }

    /// Whether it must do something now, whatever is still to be written.
    pub(super) fn is_due(&self) -> bool {
        match self {
            Self::Compress(compressing) => compressing.is_due(),
            Self::Decompress(decompressing) => decompressing.is_over(),
        }
    }

    /// Whether it has more to give, once there is room for it.
    pub(super) fn has_more(&self) -> bool {
        match self {
            Self::Compress(_) => false,
            Self::Decompress(decompressing) => decompressing.has_more(),
        }
    }

    pub(super) fn is_decompression(&self) -> bool {
        matches!(self, Self::Decompress(_))
    }

    /// Goes on without more of the body.
    pub(super) fn step(&mut self) -> Result<Coded<'_>, BodyError> {
        match self {
            Self::Compress(compressing) => match compressing.take_end() {
                Some(end) => Ok(Coded::End(compressing.finish()?, end)),
                None if compressing.is_due() => Ok(Coded::Bytes(compressing.flush()?)),
                None => Ok(Coded::Needs),
            },
            Self::Decompress(decompressing) => match decompressing.take_end()? {
                Some(end) => Ok(Coded::End(&[], end)),
                None if decompressing.has_more() => Ok(Coded::Bytes(decompressing.step()?)),
                None => Ok(Coded::Needs),
            },
        }
    }

    /// Counts the CPU time of some of this.
    pub(super) fn count_cpu(&self, ns: u64) {
        match self {
            Self::Compress(compressing) => compressing.count_cpu(ns),
            Self::Decompress(decompressing) => decompressing.count_cpu(ns),
        }
    }

    /// Whether a pause of the sender flushes what was compressed.
    #[cfg(test)]
    pub(super) fn flushes(&self) -> bool {
        matches!(self, Self::Compress(compressing) if compressing.flushes())
    }
}
