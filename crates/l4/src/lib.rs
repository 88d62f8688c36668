//! The kernel plane: virtual IPs that eBPF programs balance at the ingress of interfaces. No packet enters user space.
//!
//! This crate loads and attaches the programs in `bpf/`, keeps their maps in line with the snapshot and the verdicts on endpoints, removes
//! flows that are over, and reports flows, counters and what would happen to a packet. It does not find out which endpoints are healthy
//! (`health`) or talk to operators (`admin`), and it does not touch packets (`bpf/lb.bpf.c` names the stages of a packet).
//!
//! Start at [`Plane`]:
//!
//! ```text
//! Plane::open -> check -> apply(vips, verdicts) -> balance_sockets -> collect, step by step
//!                              plan (pure) -> sync -> maps    attach -> interfaces
//! ```
//!
//! [`Plane::collect`] takes a step of some milliseconds every two seconds, or sooner if the table is large.
//!
//! Everything is pinned in the kernel under a directory of the BPF file system. When the process ends, for whatever reason, packets are
//! still forwarded. The next process finds the maps, replaces the programs, and continues with the same flows. [`Plane::detach_all`] and
//! [`detach`] remove everything.
//!
//! A build without the feature `kernel-plane`, or without clang, has the same interface, and its [`Plane::open`] reports that there is no
//! kernel plane.
#![allow(unsafe_code, reason = "libbpf, and bytes of maps; each block says why it is sound")]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

use std::path::PathBuf;

pub mod capture;
mod reason;
mod refusal;
mod samples;
mod view;

#[cfg(not(kernel_plane))]
mod absent;

#[cfg(kernel_plane)]
mod abi;
#[cfg(kernel_plane)]
mod announce;
#[cfg(kernel_plane)]
mod attach;
#[cfg(kernel_plane)]
mod changes;
#[cfg(kernel_plane)]
mod collect;
#[cfg(kernel_plane)]
mod content;
#[cfg(kernel_plane)]
mod counters;
#[cfg(kernel_plane)]
mod destroy;
#[cfg(kernel_plane)]
mod earlier;
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
mod neighbours;
#[cfg(kernel_plane)]
mod own;
#[cfg(kernel_plane)]
mod pages;
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
mod sockets;
#[cfg(kernel_plane)]
mod sync;
#[cfg(kernel_plane)]
mod table;
#[cfg(kernel_plane)]
mod trace;
#[cfg(kernel_plane)]
mod vip_routes;

#[cfg(not(kernel_plane))]
pub use absent::{
    AnnouncedRoute, Changes, Neighbours, Plane, addresses_of_host, built, detach, pinned, reachability, withdraw_all,
};
#[cfg(kernel_plane)]
pub use announce::{AnnouncedRoute, withdraw_all};
#[cfg(kernel_plane)]
pub use changes::Changes;
#[cfg(kernel_plane)]
#[doc(hidden)]
pub use load::{OBJECT, SOCKET_OBJECT};
#[cfg(kernel_plane)]
pub use neighbours::Neighbours;
#[cfg(kernel_plane)]
pub use own::{among as addresses_of_host, reachability};
#[cfg(kernel_plane)]
pub use plane::{Plane, built, detach, pinned};
pub use reason::DropReason;
pub use refusal::{Exit, Refusal};
pub use view::{Collected, Counters, Flow, FlowClient, Sockets, Trace, TraceQuery, TraceStep, Traffic, VipCounters};

/// Where packets to an address go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reachability {
    /// To this host itself.
    Local,
    /// To another host.
    Remote,
    /// Nowhere: there is no route, such as for IPv6 on a host that has none.
    Unreachable,
}

/// Options of a plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The most connections in the table. Each takes two entries of 176 bytes. The size is fixed when the table is made; a changed number
    /// takes effect after [`detach`].
    pub flows_max: u32,
    /// A directory in a BPF file system. `None` means `/sys/fs/bpf/steelyard/` and the cookie of the network namespace, which no other
    /// namespace gets until the host restarts.
    pub pin_dir: Option<PathBuf>,
    /// Attach by tc filters even if the kernel has tcx (6.6), as on older kernels.
    pub force_tc: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { flows_max: 65_536, pin_dir: None, force_tc: false }
    }
}

/// The verdict on an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndpointVerdict {
    /// It takes new flows, according to its weight.
    Active,
    /// It keeps its flows, and takes no new ones.
    Draining,
    /// It is dead. Its vip decides whether TCP flows are kept or reset; other flows get a new endpoint.
    Down,
}
