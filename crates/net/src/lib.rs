//! A worker per CPU, and what it needs from the operating system: a pinned thread with its own current-thread runtime, sockets, pooled
//! buffers, a clock, timers, and splice(2).
//!
//! This crate knows nothing of protocols or configuration. What lives on a worker stays on it: only types that cross threads by design are
//! `Send`.
#![allow(
    unsafe_code,
    reason = "this crate adopts file descriptors that another process hands over, and takes the stacks of threads"
)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

pub mod buffer;
pub mod cache;
pub mod clock;
pub mod free_list;
pub mod inherit;
pub mod memory;
pub mod notify;
pub mod socket;
pub mod splice;
pub mod stack;
pub mod timer;
pub mod unix;
pub mod worker;
