//! The kernel plane: virtual IPs balanced by eBPF programs at the ingress of interfaces. No packet enters user space.
//!
//! Job: load the programs in `bpf/`, attach them, keep their maps as the snapshot and the verdicts on endpoints say, forget what is over, and
//! tell what is there: flows, counters, and what would happen to a packet. Not its job: finding out which endpoints are healthy (`health`), what
//! an operator may ask (`admin`), and packets themselves (`bpf/lb.bpf.c` is the one file that names their stages).
//!
//! Start at [`Plane`]:
//!
//! ```text
//! Plane::open -> check -> apply(vips, verdicts) -> collect, step by step
//!                              plan (pure) -> sync -> maps    attach -> interfaces
//! ```
//!
//! [`Plane::collect`] takes a step of some milliseconds, every two seconds, or soon again where the table is large.
//!
//! Everything lives in the kernel under a folder of the BPF file system. A process that ends, however it ends, leaves it there and packets go on;
//! the next one finds its maps again, swaps the programs, and goes on with the same flows. [`Plane::detach_all`] and [`detach`] remove it.
//!
//! A build without the feature `kernel-plane`, or without clang, has the same interface; its [`Plane::open`] says so.
#![allow(unsafe_code, reason = "libbpf, and bytes of maps; each block says why it is sound")]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

use std::path::PathBuf;

mod reason;
mod refusal;
mod samples;
mod view;

#[cfg(not(kernel_plane))]
mod absent;

#[cfg(kernel_plane)]
mod abi;
#[cfg(kernel_plane)]
mod attach;
#[cfg(kernel_plane)]
mod collect;
#[cfg(kernel_plane)]
mod content;
#[cfg(kernel_plane)]
mod counters;
#[cfg(kernel_plane)]
mod flows;
#[cfg(kernel_plane)]
mod frame;
#[cfg(kernel_plane)]
mod host;
#[cfg(kernel_plane)]
mod interfaces;
#[cfg(kernel_plane)]
mod load;
#[cfg(kernel_plane)]
mod own;
#[cfg(kernel_plane)]
mod pins;
#[cfg(kernel_plane)]
mod plan;
#[cfg(kernel_plane)]
mod plane;
#[cfg(kernel_plane)]
mod reset;
#[cfg(kernel_plane)]
mod routes;
#[cfg(kernel_plane)]
mod sync;
#[cfg(kernel_plane)]
mod table;
#[cfg(kernel_plane)]
mod trace;
#[cfg(kernel_plane)]
mod vip_routes;

#[cfg(not(kernel_plane))]
pub use absent::{Plane, addresses_of_host, built, detach, pinned};
#[cfg(kernel_plane)]
#[doc(hidden)]
pub use load::OBJECT;
#[cfg(kernel_plane)]
pub use own::among as addresses_of_host;
#[cfg(kernel_plane)]
pub use plane::{Plane, built, detach, pinned};
pub use reason::DropReason;
pub use refusal::{Exit, Refusal};
pub use view::{Collected, Counters, Flow, Step, Trace, TraceQuery, Traffic, VipCounters};

/// How a plane is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Connections that the table holds at once; each takes two entries of 176 bytes. It is fixed when the table is made: another number takes effect
    /// after [`detach`].
    pub flows_max: u32,
    /// A folder in a BPF file system; `None`: `/sys/fs/bpf/steelyard/` and the cookie of the network namespace, which no other gets until the
    /// host is started again.
    pub pin_dir: Option<PathBuf>,
    /// Attach by tc filters even where the kernel has tcx (6.6), as on older ones.
    pub force_tc: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { flows_max: 65_536, pin_dir: None, force_tc: false }
    }
}

/// What is thought of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndpointVerdict {
    /// It takes new flows, as its weight says.
    Active,
    /// Its flows go on, and it takes no new ones.
    Draining,
    /// It is dead: its vip says whether TCP flows go on or are reset; others choose again.
    Down,
}
