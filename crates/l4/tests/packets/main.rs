//! Packets through the loaded programs, one behaviour a test: packet in, tables, verdict, packet out with its checksums computed anew by
//! `testkit::packet`, and what was counted.
#![cfg(kernel_plane)]

mod algorithms;
mod budget;
mod flows;
mod forwarding;
mod icmp;
mod layout;
mod life;
mod plane;
mod sources;
mod trace;
mod walk;
