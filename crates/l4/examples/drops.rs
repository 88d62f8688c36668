//! Prints `docs/drops.md`.
#![forbid(unsafe_code)]

fn main() {
    print!("{}", l4::DropReason::page());
}
