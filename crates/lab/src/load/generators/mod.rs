//! A load that several generators put on together.
//!
//! `drive` starts `steelyard load generator` on each host, with a plan on its standard input (`messages`). Each generator (`agent`) reaches the
//! server and says so; then all start. In the end `drive` adds up their counts and histograms, so percentiles are those of all operations and
//! not means of percentiles.

mod agent;
mod args;
mod drive;
mod messages;

pub(super) use agent::{Share, generate, serve};
pub use args::GeneratorArgs;
pub(super) use drive::drive;
pub(super) use messages::Part;
