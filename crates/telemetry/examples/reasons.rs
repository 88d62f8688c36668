//! Prints `docs/reasons.md`.
#![forbid(unsafe_code)]

fn main() {
    print!("{}", telemetry::Reason::page());
}
