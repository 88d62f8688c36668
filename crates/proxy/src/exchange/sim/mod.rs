//! Exchanges in a simulation without sockets and clocks. Clients and endpoints behave as a seed determines, including faults, and every
//! step checks the invariants.
//!
//! | what | file |
//! |---|---|
//! | a client's connection or stream: what it sends, and what it got | `client` |
//! | an endpoint's connection or stream: what it reads, and what it answers | `link` |
//! | the driver of an exchange, with these in place of sockets | `drive` |
//! | bodies on their way | `pump` |
//! | responses that are slowed down | `pace` |

mod client;
mod drive;
mod link;
mod pace;
mod pump;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::io::Write;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use model::{
    AuthBody, ClusterId, ClusterProtocol, ConcurrencyLimit, Decompression, Encoding, ExternalAuth, Fallback,
    GlobalRateLimit, HeaderChanges, InterceptErrors, LimitTerms, Protocol, RateKey, RequestBody, RequestBuffer,
    ResponseBandwidth, Retry, Snapshot,
};
use telemetry::Registry;

use self::client::Client;
use self::link::Link;
use super::faults;
use crate::upstream::cluster::{Cluster, Endpoint};
use crate::worker::connection_balance::Workers;
use crate::worker::snapshot::{Compiled, fixture};
use crate::worker::{ListenerView, Worker};

/// From one end to the other, in microseconds.
const TRANSIT_US: u64 = 50;

/// Everything must be over by then: every timeout of the configuration is far shorter.
const END_US: u64 = 600_000_000;

/// Random numbers of one seed (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
pub(super) struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`.
    fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    /// True once in this many times.
    fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }
}

/// What to run next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Client(usize),
    Link(usize),
    /// An endpoint accepts no new work from now on.
    DrainEndpoint(usize),
    /// Another snapshot arrives, with other limits and policies.
    Snapshot,
    /// The worker begins to drain.
    Drain,
    /// The drain has taken too long.
    DrainTimeout,
}

/// A request of a client.
pub(super) struct SimRequest {
    is_idempotent: bool,
    is_head: bool,
    /// It has the password of its user.
    is_from_joe: bool,
    /// The authorization service has allowed it, or need not answer.
    may_pass: bool,
    /// How often the service was asked about it, and whether it has allowed it.
    questions: u32,
    is_granted: bool,
    /// External authorization is over.
    is_decided: bool,
    /// The service that counts has let it pass, or need not answer, and how often it was asked.
    is_within_limit: bool,
    limit_questions: u32,
    /// It was sent over HTTP/1.0.
    is_http10: bool,
    body: Vec<u8>,
    /// Its body is compressed, and cannot be decompressed.
    is_broken: bool,
    has_trailers: bool,
    /// What it says about encodings.
    accepts: &'static str,
    /// Bytes of its head and body.
    bytes: u64,
    /// How often an endpoint has acted on it.
    executions: u32,
    /// On how many connections it was sent.
    tries: u32,
    /// On how many connections the error backend was asked about it.
    error_tries: u32,
}

/// A response that an endpoint begins.
pub(super) struct SimResponse {
    /// The request that it answers.
    asked: usize,
    body: Vec<u8>,
    has_trailers: bool,
    /// All of it was sent, including its end.
    is_whole: bool,
    /// Its head allows a compression of its body.
    may_be_coded: bool,
    /// The route replaces it.
    is_intercepted: bool,
}

pub(super) struct World {
    seed: u64,
    rng: Rng,
    now_us: u64,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    numbers: u64,
    worker: Rc<Worker>,
    /// The listener and its cluster in the current snapshot, and what that was made from.
    view: Rc<ListenerView>,
    cluster: Rc<Cluster>,
    compiled: Compiled,
    ports: Vec<u16>,
    /// The route demands a password.
    demands: Demands,
    /// What the route says about external authorization.
    external_auth: Option<Arc<ExternalAuth>>,
    /// What it says about a global rate limit.
    global_limit: Option<Arc<GlobalRateLimit>>,
    /// What it says about the bodies of requests.
    request_body: Option<Box<RequestBody>>,
    /// How many requests it serves at once. All clients are one to it.
    requests_max: Option<u32>,
    /// What it says about other clusters.
    others: Others,
    clients: Vec<Client>,
    links: Vec<Link>,
    /// Idle connections by [`slot`].
    idle: Vec<Vec<usize>>,
    /// Clients that wait for room at an endpoint, in order of arrival.
    queue: VecDeque<usize>,
    asked: Vec<SimRequest>,
    answered: Vec<SimResponse>,
    /// Since when endpoints drain, in milliseconds.
    drained_ms: Vec<Option<u64>>,
    is_draining: bool,
    is_drain_over: bool,
    /// Connections that could not be made, and tries that exchanges have reported.
    unreachable: u64,
    attempts: u64,
    /// Exchanges that were begun, and how they ended: answered, refused or aborted.
    begun: u64,
    ended: u64,
    /// Print each turn.
    is_loud: bool,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = Rng(seed);
        let endpoints = 1 + rng.below(3) as usize;
        let ports: Vec<u16> = (0..endpoints as u16).map(|port| 1000 + port).collect();
        let protocol = rng.pick(&[ClusterProtocol::H1, ClusterProtocol::H2]);
        let demands = rng.pick(&DEMANDS);
        let external_auth = rng.one_in(4).then(|| {
            let whole = |bytes_max| Some(AuthBody { bytes_max, partial: false });
            let body =
                rng.pick(&[None, None, whole(5_000), whole(100_000), Some(AuthBody { bytes_max: 600, partial: true })]);
            Arc::new(ExternalAuth { fail_open: rng.one_in(3), body, ..fixture::asks_a_service() })
        });
        let global_limit =
            rng.one_in(4).then(|| Arc::new(GlobalRateLimit { fail_open: rng.one_in(3), ..fixture::counts_globally() }));
        let asks = (external_auth.as_ref(), global_limit.as_ref());
        let request_body = rng.one_in(3).then(|| random_request_body(&mut rng));
        let requests_max = rng.pick(&[None, None, None, Some(1), Some(2)]);
        let others = Others::random(&mut rng);
        let bodies = (request_body.as_deref(), &others);
        let snapshot = snapshot(&mut rng, &ports, protocol, (demands, requests_max), asks, bodies);
        let files = crate::NamedFiles::load(&snapshot, None).expect("no files");
        let compiled = Compiled::new(snapshot, &files, None, 0);
        let worker = Rc::new(Worker::new(0, Arc::new(Workers::new(Vec::new())), Arc::new(Registry::default())));
        let view = worker.view_of(&compiled, "web");
        let cluster = view.clusters[0].clone();
        let mut world = Self {
            seed,
            rng,
            now_us: 1_000_000,
            events: BinaryHeap::new(),
            numbers: 0,
            worker,
            view,
            cluster,
            compiled,
            ports,
            demands,
            external_auth,
            global_limit,
            request_body,
            requests_max,
            others,
            clients: Vec::new(),
            links: Vec::new(),
            idle: vec![Vec::new(); SLOTS],
            queue: VecDeque::new(),
            asked: Vec::new(),
            answered: Vec::new(),
            drained_ms: vec![None; SLOTS],
            is_draining: false,
            is_drain_over: false,
            unreachable: 0,
            attempts: 0,
            begun: 0,
            ended: 0,
            is_loud: false,
        };
        for _ in 0..1 + world.rng.below(3) {
            world.add_client();
        }
        world.plan_changes(endpoints as u64);
        world
    }

    /// Draws what will happen to the endpoints, the configuration and the process.
    fn plan_changes(&mut self, endpoints: u64) {
        if self.rng.one_in(6) {
            let (at_us, index) = (self.now_us + self.rng.below(2_000_000), self.rng.below(endpoints));
            self.at(at_us, Event::DrainEndpoint(index as usize));
        }
        if self.rng.one_in(4) {
            let at_us = self.now_us + self.rng.below(3_000_000);
            self.at(at_us, Event::Snapshot);
        }
        if self.rng.one_in(10) {
            let drain_us = self.now_us + self.rng.below(3_000_000);
            self.at(drain_us, Event::Drain);
            if self.rng.one_in(2) {
                let drain_over_us = drain_us + self.rng.below(5_000_000);
                self.at(drain_over_us, Event::DrainTimeout);
            }
        }
    }

    fn at(&mut self, at_us: u64, event: Event) {
        self.numbers += 1;
        self.events.push(Reverse((at_us.max(self.now_us), self.numbers, event)));
    }

    /// Runs it to its end, and checks the final state.
    fn run(&mut self) {
        let mut turns = 0;
        while let Some(Reverse((at_us, _, event))) = self.events.pop() {
            self.now_us = at_us;
            turns += 1;
            assert!(turns < 200_000, "seed {}: it does not end, at {event:?}", self.seed);
            assert!(at_us < END_US, "seed {}: {event:?} at {at_us} us", self.seed);
            match event {
                Event::Client(index) => self.client_turn(index),
                Event::Link(index) => self.link_turn(index),
                Event::Drain => {
                    self.is_draining = true;
                    self.look_at_all();
                }
                Event::DrainEndpoint(index) => {
                    self.cluster.plan.state.set_draining(index, true, at_us / 1000);
                    self.drained_ms[index] = Some(at_us / 1000);
                }
                Event::Snapshot => self.change_snapshot(),
                Event::DrainTimeout => {
                    self.is_drain_over = true;
                    self.clients.iter_mut().for_each(|client| client.has_elapsed = true);
                    self.look_at_all();
                }
            }
            self.serve_queue();
        }
        self.check_end();
    }

    fn change_snapshot(&mut self) {
        let protocol = self.cluster.plan.policy.protocol;
        let asks = (self.external_auth.as_ref(), self.global_limit.as_ref());
        let bodies = (self.request_body.as_deref(), &self.others);
        let demands = (self.demands, self.requests_max);
        let snapshot = snapshot(&mut self.rng, &self.ports, protocol, demands, asks, bodies);
        let files = crate::NamedFiles::load(&snapshot, None).expect("no files");
        self.compiled = Compiled::new(snapshot, &files, Some(&self.compiled), 0);
        self.view = self.worker.view_of(&self.compiled, "web");
        self.cluster = self.view.clusters[0].clone();
    }

    fn look_at_all(&mut self) {
        for index in 0..self.clients.len() {
            self.client_turn(index);
        }
    }

    /// Checks that nothing is left over, and nothing is lost.
    fn check_end(&self) {
        let seed = self.seed;
        for (index, client) in self.clients.iter().enumerate() {
            assert!(client.exchange.is_none(), "seed {seed}: the exchange of client {index} lives on without a timer");
        }
        let endpoints = || self.view.clusters.iter().flat_map(|cluster| &cluster.endpoints);
        for endpoint in endpoints() {
            let left = (endpoint.state.connections(), endpoint.state.in_flight());
            assert_eq!(left, (0, 0), "seed {seed}: leases left at {}", endpoint.state.address());
        }
        let count = |of: fn(&Endpoint) -> u64| endpoints().map(|endpoint| of(endpoint)).sum::<u64>();
        let unreachable = count(|endpoint| endpoint.counters.unreachable.get());
        assert_eq!(unreachable, self.unreachable, "seed {seed}: endpoints that could not be reached");
        let requests = count(|endpoint| endpoint.counters.requests.get());
        assert_eq!(requests, self.attempts, "seed {seed}: tries of all exchanges");
        assert_eq!(self.worker.storage.waiting(), 0, "seed {seed}: exchanges that wait for a response");
        assert_eq!(self.worker.compressions.in_use(), 0, "seed {seed}: responses that are being compressed");
        assert_eq!(self.worker.bodies.in_use(), (0, 0), "seed {seed}: bodies that are held or decompressed");
        assert_eq!(self.compiled.in_progress(), 0, "seed {seed}: requests that count as in progress");
        assert_eq!(self.begun, self.ended, "seed {seed}: exchanges begun, and answered, refused or aborted");
        assert!(self.queue.is_empty(), "seed {seed}: a client still waits");
        let held = self.links.iter().filter(|link| link.is_held).count();
        let idle: usize = self.idle.iter().map(Vec::len).sum();
        assert_eq!(held, idle, "seed {seed}: connections that are neither idle nor in use");
        for (number, asked) in self.asked.iter().enumerate() {
            assert!(
                asked.is_idempotent || asked.executions <= 1,
                "seed {seed}: request {number}, which is not idempotent, was executed {} times",
                asked.executions
            );
            let questions = asked.questions.max(asked.limit_questions);
            assert!(questions <= 1, "seed {seed}: request {number} was asked about {questions} times");
            // The first, two retries, and one on a fresh connection instead of a stale one.
            assert!(asked.tries <= 4, "seed {seed}: request {number} was tried {} times", asked.tries);
            assert!(asked.error_tries <= 4, "seed {seed}: request {number} had {} error tries", asked.error_tries);
        }
        for client in &self.clients {
            client.check(seed, &self.asked, &self.answered, self.is_drain_over);
        }
    }

    fn say(&self, what: impl FnOnce() -> String) {
        if self.is_loud {
            _ = writeln!(std::io::stdout(), "{:>9} {}", self.now_us - 1_000_000, what());
        }
    }
}

/// Collects bodies, decompresses them, or both.
fn random_request_body(rng: &mut Rng) -> Box<RequestBody> {
    let buffer =
        rng.pick(&[None, Some(1_000), Some(5_000), Some(100_000)]).map(|bytes_max| RequestBuffer { bytes_max });
    let bytes_max = rng.pick(&[2_000, 1_000_000]);
    let decompression =
        rng.one_in(2).then(|| Decompression { encodings: Encoding::ALL.into(), bytes_max, ratio_max: 1_000 });
    Box::new(RequestBody { buffer, decompression })
}

/// The places of idle connections: three endpoints of the cluster, one of the error backend, one of the fallback.
const SLOTS: usize = 5;
const ERROR_PORT: u16 = 1003;
const SPARE_PORT: u16 = 1004;

/// The place of an endpoint.
fn slot(endpoint: &Endpoint) -> usize {
    usize::from(endpoint.state.address().port() - 1000)
}

/// What the route says about other clusters, which are an error backend and a fallback.
struct Others {
    intercept_errors: Option<Box<InterceptErrors>>,
    fallback: Option<Box<Fallback>>,
    protocol: ClusterProtocol,
}

impl Others {
    fn random(rng: &mut Rng) -> Self {
        let statuses = rng.pick(&[&[(400, 599)][..], &[(500, 599)], &[(413, 413), (503, 503)]]);
        let to = rng.pick(&[None, Some(ClusterId(1)), Some(ClusterId(1))]);
        let (path, request_headers) = ("/{status}".to_owned(), HeaderChanges::default());
        let (timeout, of_endpoints) = (Duration::from_secs(3), to.is_none() || !rng.one_in(4));
        let intercept = InterceptErrors { statuses: statuses.into(), of_endpoints, to, path, request_headers, timeout };
        let spare = Fallback { to: ClusterId(2), request_headers: HeaderChanges::default() };
        Self {
            intercept_errors: rng.one_in(3).then(|| Box::new(intercept)),
            fallback: rng.one_in(3).then(|| Box::new(spare)),
            protocol: rng.pick(&[ClusterProtocol::H1, ClusterProtocol::H2]),
        }
    }

    /// Whether the route replaces the responses with this status.
    fn intercepts(&self, status: u16) -> bool {
        self.intercept_errors.as_ref().is_some_and(|errors| errors.is_on_status(status))
    }

    /// Whether it replaces those of endpoints.
    fn intercepts_endpoints(&self, status: u16) -> bool {
        self.intercepts(status) && self.intercept_errors.as_ref().is_some_and(|errors| errors.of_endpoints)
    }
}

/// What the route demands of requests.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Demands {
    Nothing,
    Password,
    Token,
}

/// As often as each is drawn.
const DEMANDS: [Demands; 5] = [Demands::Nothing, Demands::Nothing, Demands::Nothing, Demands::Password, Demands::Token];

fn retry_or_cors(rng: &mut Rng) -> (Retry, Option<Box<model::Cors>>) {
    let (mut retry, mut cors) = (Retry::default(), None);
    match rng.below(8) {
        0 => retry.attempts = 0,
        1 => retry.on_timeout = true,
        2 => retry.on_statuses = vec![(500, 503)],
        3 => retry.attempts = 1,
        4 => retry.per_try_timeout = Some(Duration::from_secs(2)),
        5 => (retry.on_statuses, retry.backoff) = (vec![(500, 503)], Duration::from_secs(1)),
        6 => {
            retry.on_timeout = true;
            (retry.on_statuses, retry.within) = (vec![(500, 503)], Some(Duration::from_millis(rng.pick(&[50, 5_000]))));
        }
        _ => cors = Some(Box::new(fixture::open_to_all())),
    }
    (retry, cors)
}

/// A listener in front of a cluster, with random limits and policies.
fn snapshot(
    rng: &mut Rng,
    ports: &[u16],
    protocol: ClusterProtocol,
    (demands, requests_max): (Demands, Option<u32>),
    (external_auth, global_limit): (Option<&Arc<ExternalAuth>>, Option<&Arc<GlobalRateLimit>>),
    (request_body, others): (Option<&RequestBody>, &Others),
) -> Arc<Snapshot> {
    let mut listener = fixture::http("web", 80);
    let Protocol::Http(http) = &mut listener.protocol else { unreachable!("a listener of HTTP") };
    http.limits.stall_timeout = Duration::from_secs(20);
    if rng.one_in(4) {
        http.limits.requests_per_connection_max = Some(2);
    }
    if rng.one_in(8) {
        http.limits.body_bytes_max = Some(1000);
    }
    let (retry, cors) = retry_or_cors(rng);
    let compression = rng.one_in(2).then(|| Box::new(fixture::compresses_text(rng.pick(&[1, 3, 9]))));
    let response_bandwidth = rng.one_in(4).then(|| ResponseBandwidth {
        bytes: rng.pick(&[4_000, 50_000]),
        per: Duration::from_secs(1),
        after: rng.pick(&[0, 6_000]),
    });
    let mut routes = http.routes.to_vec();
    for route in &mut routes {
        route.policy.retry = retry.clone();
        route.policy.cors = cors.clone();
        route.policy.auth = match demands {
            Demands::Nothing => None,
            Demands::Password => Some(Arc::new(fixture::only_joe())),
            Demands::Token => Some(Arc::new(fixture::only_joes_token())),
        };
        route.policy.external_auth = external_auth.cloned();
        route.policy.global_rate_limit = global_limit.cloned();
        route.policy.compression = compression.clone();
        route.policy.response_bandwidth = response_bandwidth;
        route.policy.concurrency_limit = requests_max.map(|requests| {
            let terms = LimitTerms { status: 503, ..LimitTerms::default() };
            Box::new(ConcurrencyLimit { requests, by: RateKey::ClientIp, terms })
        });
        route.policy.request_body = request_body.cloned().map(Box::new);
        route.policy.intercept_errors.clone_from(&others.intercept_errors);
        route.policy.fallback.clone_from(&others.fallback);
        route.timeout = rng.one_in(4).then(|| Duration::from_secs(5));
    }
    http.routes = routes.into();
    let mut snapshot =
        fixture::snapshot(vec![listener], ports.iter().map(|port| fixture::endpoint(*port, 1)).collect());
    let shared = Arc::get_mut(&mut snapshot).expect("just made");
    let mut cluster = (*shared.clusters[0]).clone();
    cluster.protocol = protocol;
    cluster.response_timeout = Duration::from_secs(10);
    cluster.connect_timeout = Duration::from_secs(3);
    cluster.limits.pending_timeout = Duration::from_secs(4);
    if rng.one_in(3) {
        cluster.limits.connections_max = Some(1 + rng.below(2) as usize);
        cluster.limits.pending_max = rng.below(3) as usize;
    }
    for (name, port) in [("errors", ERROR_PORT), ("spare", SPARE_PORT)] {
        let mut other = model::Cluster::new(name, vec![fixture::endpoint(port, 1)]);
        other.protocol = others.protocol;
        other.response_timeout = Duration::from_secs(10);
        other.connect_timeout = Duration::from_secs(3);
        shared.clusters.push(Arc::new(other));
    }
    shared.clusters[0] = Arc::new(cluster);
    snapshot
}

/// Bytes of the body of request or response `number`.
fn content(number: usize, length: usize) -> Vec<u8> {
    (0..length).map(|at| b'a' + ((number * 7 + at * 3 + at / 11) % 26) as u8).collect()
}

fn simulate(seed: u64, is_loud: bool) {
    let mut world = World::new(seed);
    world.is_loud = is_loud;
    world.run();
}

/// Seeds that once found a fault.
const FOUND: [u64; 0] = [];

#[test]
fn seeds_that_failed_once() {
    FOUND.iter().for_each(|seed| simulate(*seed, false));
}

/// Each injected fault must be found within this many seeds.
const SEEDS_EACH: u64 = 40_000;

#[test]
fn injected_faults_are_found() {
    let hook = std::panic::take_hook();
    let mut missed = Vec::new();
    for fault in faults::test::ALL {
        faults::test::inject(Some(fault));
        let finds = |seed: &u64| std::panic::catch_unwind(|| simulate(*seed, false)).is_err();
        let found = (0..SEEDS_EACH).find(finds);
        faults::test::inject(None);
        _ = writeln!(std::io::stdout(), "{fault:?}: seed {found:?}");
        missed.extend(found.is_none().then_some(fault));
    }
    std::panic::set_hook(hook);
    assert_eq!(missed, [], "not found");
}

/// `SIM_SEEDS` (how many) and `SIM_SEED` (one, printed step by step) are for `cargo xtask sim` and for manual runs.
#[test]
fn whatever_happens_what_must_hold_holds() {
    if let Some(seed) = std::env::var("SIM_SEED").ok().and_then(|seed| seed.parse().ok()) {
        return simulate(seed, true);
    }
    let seeds = std::env::var("SIM_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(2_000);
    let threads = std::thread::available_parallelism().map_or(1, |count| count.get() as u64);
    std::thread::scope(|scope| {
        for first in 0..threads {
            scope.spawn(move || (first..seeds).step_by(threads as usize).for_each(|seed| simulate(seed, false)));
        }
    });
}
