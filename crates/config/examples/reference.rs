//! Prints the reference page of the configuration: `cargo run -p config --example reference > docs/configuration.md`.
#![allow(clippy::print_stdout, reason = "printing is the job")]

fn main() {
    print!("{}", config::reference());
}
