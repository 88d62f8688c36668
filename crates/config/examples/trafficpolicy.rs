//! Prints the definition of TrafficPolicy: `cargo run -p config --example trafficpolicy > deploy/steelyard/crds/trafficpolicies.yaml`.
#![allow(clippy::print_stdout, reason = "printing is the job")]

fn main() {
    print!("{}", config::definition());
}
