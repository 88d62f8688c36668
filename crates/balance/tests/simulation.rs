//! A seeded simulation of the pickers: clients that each send one request after another to three endpoints, one of which is ten times
//! slower. The simulation has its own clock.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use balance::{ClusterState, EndpointState, Outcome, Picker};
use model::Algorithm;

const CLIENTS: usize = 12;
const WORKERS: usize = 2;
const REQUESTS: usize = 30_000;
/// The slow one is first: if everything else is equal, an error of ours would favour it.
const LATENCY_US: [u64; 3] = [10_000, 1_000, 1_000];

/// A response on its way.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Answer {
    at_us: u64,
    client: usize,
    index: usize,
    sent_us: u64,
}

struct Simulation {
    cluster: ClusterState,
    pickers: Vec<Picker>,
    answers: BinaryHeap<Reverse<Answer>>,
    picks: [u32; 3],
}

impl Simulation {
    fn new(algorithm: &Algorithm, seed: u64) -> Self {
        let endpoint = |n: u8| (Arc::new(EndpointState::new(([10, 0, 0, n], 80).into())), 1);
        let mut cluster = model::Cluster::new("simulated", Vec::new());
        cluster.algorithm = algorithm.clone();
        let cluster = ClusterState::new(&cluster, (0..3).map(endpoint).collect());
        let pickers = (0..WORKERS).map(|worker| Picker::new(algorithm, worker, WORKERS, seed)).collect();
        Self { cluster, pickers, answers: BinaryHeap::new(), picks: [0; 3] }
    }

    fn send(&mut self, client: usize, now_us: u64) {
        let pick = self.pickers[client % WORKERS].pick(&self.cluster, now_us / 1000, client as u64, &[]).unwrap();
        let endpoint = &self.cluster.endpoints()[pick.index];
        endpoint.begin_request();
        endpoint.open_connection();
        self.picks[pick.index] += 1;
        let at_us = now_us + LATENCY_US[pick.index];
        self.answers.push(Reverse(Answer { at_us, client, index: pick.index, sent_us: now_us }));
    }

    /// The share of the requests that the slow endpoint got.
    fn run(mut self) -> f64 {
        (0..CLIENTS).for_each(|client| self.send(client, 1_000_000 + client as u64));
        for _ in 0..REQUESTS {
            let Reverse(answer) = self.answers.pop().unwrap();
            let endpoint = &self.cluster.endpoints()[answer.index];
            endpoint.end_request();
            endpoint.close_connection();
            endpoint.observe_latency(answer.at_us / 1000, answer.at_us - answer.sent_us);
            assert_eq!(self.cluster.record(answer.index, answer.at_us / 1000, Outcome::Success), None);
            self.send(answer.client, answer.at_us);
        }
        f64::from(self.picks[0]) / f64::from(self.picks.iter().sum::<u32>())
    }
}

fn check(algorithm: &Algorithm, low: f64, high: f64) {
    for seed in 0..5 {
        let share = Simulation::new(algorithm, seed).run();
        assert!((low..=high).contains(&share), "{algorithm:?}, seed {seed}: the slow endpoint got {share:.3}");
    }
}

#[test]
fn what_knows_load_or_latency_spares_the_slow_endpoint() {
    check(&Algorithm::LeastRequest, 0.01, 0.2);
    check(&Algorithm::LeastConnections, 0.01, 0.2);
    check(&Algorithm::PeakEwma, 0.0, 0.1);
}

#[test]
fn what_knows_neither_does_not() {
    check(&Algorithm::RoundRobin, 0.333, 0.334);
    check(&Algorithm::Random, 0.32, 0.347);
}
