//! Packets through the loaded programs, one behaviour per test: a packet in, the tables, the verdict, the packet out with checksums that
//! `testkit::packet` computes anew, and the counters.
#![cfg(kernel_plane)]

mod algorithms;
mod budget;
mod flows;
mod forwarding;
mod here;
mod icmp;
mod layout;
mod life;
mod plane;
mod sources;
mod trace;
mod tunnel;
mod walk;
