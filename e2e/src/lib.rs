//! HTTP behaviour of the built binary, one script file per behaviour or CVE.
//!
//! The scripts are in `e2e/scripts`. [`script`] describes their format and reads it; [`run`] plays a script: it starts a balancer of its own
//! for it, is its clients and its origins, and checks what each of them saw. `tests/scripts.rs` runs them all and names each that failed:
//!
//! ```text
//! cargo test -p e2e --test scripts                # all
//! cargo test -p e2e --test scripts -- framing/    # those whose name contains this
//! ```
#![forbid(unsafe_code)]

pub mod binary;
mod parse;
mod play;
pub mod run;
pub mod script;
mod text;
