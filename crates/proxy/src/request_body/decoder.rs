//! gzip, Brotli and zstd, decoded in steps with bounded output.

use brotli::enc::StandardAlloc;
use brotli::{BrotliDecompressStream, BrotliResult, BrotliState};
use flate2::{Decompress, FlushDecompress, Status};
use model::Encoding;
use zstd_safe::{DCtx, DParameter, InBuffer, OutBuffer};

/// Bytes that one step gives at most.
pub(crate) const STEP_BYTES_MAX: usize = 16 * 1024;

/// The base-two logarithm of the largest window of gzip.
const GZIP_WINDOW_BITS: u8 = 15;

/// The same for zstd: 8 MiB, beyond which RFC 9659 allows no content coding to go.
const ZSTD_WINDOW_BITS_MAX: u32 = 23;

/// Members of one gzip body (RFC 1952 section 2.2), and frames of a zstd body (RFC 8878 section 3.1) that give nothing. Each costs a step, and
/// may have as few as 18 and 8 bytes. 131,072 empty frames in 1 MB took 6 s in a test build.
const MEMBERS_MAX: usize = 1000;

/// The body is not what its encoding says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Invalid;

/// One body on its way through a decoder.
pub(super) struct Decoder {
    coding: Coding,
    /// The last step had no room for all that there was.
    has_more: bool,
    /// A member or frame has ended, and the next has not begun.
    is_ended: bool,
}

enum Coding {
    Gzip {
        state: Box<Decompress>,
        members: usize,
    },
    Brotli(Box<BrotliState<StandardAlloc, StandardAlloc, StandardAlloc>>),
    /// The frames that gave nothing, and what the present one has given.
    Zstd {
        context: DCtx<'static>,
        empty: usize,
        given: usize,
    },
}

impl Decoder {
    /// `None` if there is no memory.
    pub(super) fn new(encoding: Encoding) -> Option<Self> {
        let coding = match encoding {
            Encoding::Gzip => Coding::Gzip { state: Box::new(Decompress::new_gzip(GZIP_WINDOW_BITS)), members: 1 },
            Encoding::Brotli => {
                let alloc = StandardAlloc::default;
                Coding::Brotli(Box::new(BrotliState::new_strict(alloc(), alloc(), alloc())))
            }
            Encoding::Zstd => {
                let mut context = DCtx::try_create()?;
                context.set_parameter(DParameter::WindowLogMax(ZSTD_WINDOW_BITS_MAX)).ok()?;
                Coding::Zstd { context, empty: 0, given: 0 }
            }
        };
        Some(Self { coding, has_more: false, is_ended: false })
    }

    /// Whether there is more to get without more input.
    pub(super) fn has_more(&self) -> bool {
        self.has_more
    }

    /// Whether the body may end here.
    pub(super) fn is_complete(&self) -> bool {
        self.is_ended && !self.has_more
    }

    /// Takes some of `input`, and adds up to [`STEP_BYTES_MAX`] bytes to `out`. Returns how much it took: all of it, unless there is more to
    /// get.
    ///
    /// # Errors
    /// It is not what the encoding says.
    pub(super) fn step(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<usize, Invalid> {
        if self.is_ended && !self.has_more {
            if input.is_empty() {
                return Ok(0);
            }
            self.begin_next()?;
        }
        let before = out.len();
        out.resize(before + STEP_BYTES_MAX, 0);
        let room = out.get_mut(before..).unwrap_or_default();
        let (taken, given, is_ended) = match &mut self.coding {
            Coding::Gzip { state, .. } => gzip(state, input, room)?,
            Coding::Brotli(state) => brotli(state, input, room)?,
            Coding::Zstd { context, given, .. } => {
                let step = zstd(context, input, room)?;
                *given += step.1;
                step
            }
        };
        out.truncate(before + given);
        if taken == 0 && given == 0 && !input.is_empty() && !is_ended {
            // It would never come to an end.
            return Err(Invalid);
        }
        self.is_ended = is_ended;
        self.has_more = given == STEP_BYTES_MAX && !is_ended;
        Ok(taken)
    }

    /// More follows after the end of a member or a frame.
    fn begin_next(&mut self) -> Result<(), Invalid> {
        match &mut self.coding {
            Coding::Gzip { members, .. } if *members == MEMBERS_MAX => Err(Invalid),
            Coding::Gzip { state, members } => {
                **state = Decompress::new_gzip(GZIP_WINDOW_BITS);
                *members += 1;
                Ok(())
            }
            // RFC 7932 section 9: there is only one stream.
            Coding::Brotli(_) => Err(Invalid),
            Coding::Zstd { empty, given, .. } => {
                *empty += usize::from(std::mem::take(given) == 0);
                if *empty > MEMBERS_MAX { Err(Invalid) } else { Ok(()) }
            }
        }
    }
}

/// How much was taken, how much was given, and whether the end was reached.
type Step = (usize, usize, bool);

fn gzip(state: &mut Decompress, input: &[u8], room: &mut [u8]) -> Result<Step, Invalid> {
    let (taken, given) = (state.total_in(), state.total_out());
    let status = state.decompress(input, room, FlushDecompress::None).map_err(|_| Invalid)?;
    let difference = |now: u64, before: u64| usize::try_from(now - before).map_err(|_| Invalid);
    Ok((difference(state.total_in(), taken)?, difference(state.total_out(), given)?, status == Status::StreamEnd))
}

fn brotli(
    state: &mut BrotliState<StandardAlloc, StandardAlloc, StandardAlloc>,
    input: &[u8],
    room: &mut [u8],
) -> Result<Step, Invalid> {
    let (mut left, mut taken, mut free, mut given, mut total) = (input.len(), 0, room.len(), 0, 0);
    let result = BrotliDecompressStream(&mut left, &mut taken, input, &mut free, &mut given, room, &mut total, state);
    match result {
        BrotliResult::ResultFailure => Err(Invalid),
        BrotliResult::ResultSuccess => Ok((taken, given, true)),
        BrotliResult::NeedsMoreInput | BrotliResult::NeedsMoreOutput => Ok((taken, given, false)),
    }
}

fn zstd(context: &mut DCtx<'_>, input: &[u8], room: &mut [u8]) -> Result<Step, Invalid> {
    let (mut input, mut output) = (InBuffer::around(input), OutBuffer::around(room));
    let left = context.decompress_stream(&mut output, &mut input).map_err(|_| Invalid)?;
    Ok((input.pos(), output.pos(), left == 0))
}
