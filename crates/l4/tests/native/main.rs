//! The pure cores of the data plane, compiled for this host: the walk over headers, checksum differences, the life of a flow, the arithmetic
//! of choice. Each is held against a plainer way to say the same.
#![cfg(kernel_plane)]
#![allow(unsafe_code, reason = "C is called; each block says why it may be")]

mod choice;
mod core;
mod sums;
mod time;
mod walk;

/// Random, but the same each time; a failure says what it was given.
fn seeded(cases: u32) -> proptest::test_runner::Config {
    proptest::test_runner::Config {
        cases,
        failure_persistence: None,
        rng_seed: proptest::test_runner::RngSeed::Fixed(0x5eed),
        ..Default::default()
    }
}
