//! The pure cores of the data plane, compiled for this host: the walk over headers, checksum differences, the life of a flow, and the
//! arithmetic of the choice. Each is compared with a plainer implementation.
#![cfg(kernel_plane)]
#![allow(unsafe_code, reason = "the tests call C; each block says why that is sound")]

mod choice;
mod core;
mod sums;
mod time;
mod walk;

/// Random, but the same each time. A failure prints its input.
fn seeded(cases: u32) -> proptest::test_runner::Config {
    proptest::test_runner::Config {
        cases,
        failure_persistence: None,
        rng_seed: proptest::test_runner::RngSeed::Fixed(0x5eed),
        ..Default::default()
    }
}
