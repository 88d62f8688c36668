//! The order in which cells are measured, and the time that takes.
//!
//! In each round every instance is measured once in every case. A case's cells come in *blocks*: the reference and a few others, within
//! seconds of each other, so that all of a block meet the same state of the host. Ratios are taken within a block, which is why the reference
//! is in each. The order is drawn anew for each round from one seed, so that a host that changes during the run changes for all. A case whose
//! rate depends on another case comes after it. Rounds are added while intervals are too wide ([`added`]). This module also estimates the
//! time, and shortens windows to fit `--quick`. It does not measure.

use std::time::Duration;

use crate::record::{Case, LoadSpec, Mode, Scenario};
use crate::scenario::base_of;
use crate::stats::Rng;

/// The time of a cell besides its load: starting it, reading counters before and after, writing the run, which takes 30 to 120 ms on two CPUs,
/// most of it to close many connections; and the reference loop twice, 40 ms each on a quiet host.
const CELL_OVERHEAD: Duration = Duration::from_millis(230);

/// The time for an instance to start and be ready.
const START_OVERHEAD: Duration = Duration::from_millis(500);

/// The time of the rest: links, origins, calibration of a case, the report.
const FRAME: Duration = Duration::from_secs(5);

/// The time of a calibration's load.
pub const CALIBRATION: Duration = Duration::from_millis(1_500);

/// The most steps of a search for capacity.
const SEARCH_STEPS_MAX: u32 = 16;

/// The limit of `--quick`, including the report.
pub const QUICK_MAX: Duration = Duration::from_secs(172);

/// The share of a budget that is left free for rounds that are added where intervals are too wide.
const ADDED_OF_BUDGET: f64 = 0.2;

/// Without a budget, added rounds may prolong a run by this share.
const ADDED_OF_PLAN: f64 = 1.0;

/// The others beside the reference in a block. With more, the reference would be further from some of them; with fewer, it would take more of
/// the time.
const BLOCK_OTHERS: usize = 3;

/// Windows are only made shorter than this to get enough rounds for any conclusion.
const WINDOW_MS_MIN: u64 = 800;

/// A shorter window shows nothing.
const WINDOW_MS_LEAST: u64 = 500;

/// Rounds that a median needs.
const ROUNDS_MIN: u32 = 2;

/// Rounds that an interval needs.
const ROUNDS_SURE: u32 = crate::stats::ROUNDS_MIN as u32;

/// One cell to measure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The case's name.
    pub case: String,
    /// The instance's id.
    pub instance: String,
    /// From 0.
    pub round: u32,
    /// From 0, within the round of the case.
    pub block: u32,
    /// 0, or 1 for the second measurement in the same round.
    pub twin: u8,
}

/// What to measure and when, and how long it should take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// In order.
    pub steps: Vec<Step>,
    /// Rounds.
    pub rounds: u32,
    /// The time for everything, if no round is added.
    pub expected: Duration,
    /// Rounds are added until this time.
    pub limit: Duration,
    /// Whether `limit` is a budget for everything: if the host is slower than planned, cells are left out.
    pub is_budget: bool,
}

/// Orders the cells of a scenario.
#[must_use]
pub fn plan(scenario: &Scenario, rounds: u32, seed: u64) -> Schedule {
    let mut rng = Rng::new(seed);
    let mut steps = Vec::new();
    for phase in phases(scenario) {
        for round in 0..rounds {
            let mut cases = phase.clone();
            rng.shuffle(&mut cases);
            for case in cases {
                steps.extend(blocks(scenario, case, round, &|_| true, &mut rng));
            }
        }
    }
    let expected = expected(scenario, &steps);
    Schedule { steps, rounds, expected, limit: expected.mul_f64(1.0 + ADDED_OF_PLAN), is_budget: false }
}

/// Orders the cells of a scenario that must end within `budget`, and shortens windows, warm-ups and rounds as needed.
#[must_use]
pub fn plan_within(scenario: &mut Scenario, rounds: u32, seed: u64, budget: Duration) -> Schedule {
    let rounds = shrink(scenario, rounds, budget.mul_f64(1.0 - ADDED_OF_BUDGET));
    let schedule = plan(scenario, rounds, seed);
    Schedule { limit: budget.max(schedule.expected), is_budget: true, ..schedule }
}

/// The cases that depend on no other, and those whose rate depends on one of them. Two phases are enough: a case can only depend on a case
/// whose rate depends on no other.
fn phases(scenario: &Scenario) -> [Vec<&Case>; 2] {
    let (first, second): (Vec<_>, Vec<_>) = scenario.cases.iter().partition(|case| base_of(case).is_none());
    [first, second]
}

/// Whether a step is of the first of these phases.
#[must_use]
pub fn is_first_phase(scenario: &Scenario, step: &Step) -> bool {
    scenario.cases.iter().any(|case| case.name == step.case && base_of(case).is_none())
}

/// One more round of the cells that are `wanted` (case and instance), each with the reference in its block.
#[must_use]
pub fn added(scenario: &Scenario, wanted: &[(String, String)], round: u32, seed: u64) -> Vec<Step> {
    // The rounds before it have used up an unknown part of the sequence, so each has one of its own.
    let mut rng = Rng::new(seed ^ u64::from(round).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let is_wanted = |case: &str, id: &str| wanted.iter().any(|(of_case, instance)| of_case == case && instance == id);
    let mut cases: Vec<&Case> = scenario.cases.iter().collect();
    cases.retain(|case| case.instances.iter().any(|id| is_wanted(&case.name, id)));
    rng.shuffle(&mut cases);
    let of_case = |case: &Case| blocks(scenario, case, round, &|id| is_wanted(&case.name, id), &mut rng);
    cases.into_iter().flat_map(of_case).collect()
}

/// One round of a case, block by block.
fn blocks(scenario: &Scenario, case: &Case, round: u32, is_wanted: &dyn Fn(&str) -> bool, rng: &mut Rng) -> Vec<Step> {
    let reference = case.instances.iter().find(|id| **id == scenario.reference);
    let mut others: Vec<&String> = case.instances.iter().filter(|id| Some(*id) != reference && is_wanted(id)).collect();
    rng.shuffle(&mut others);
    let blocks = match (reference, others.is_empty()) {
        // Without a reference there is nothing to be near to.
        (None, _) => vec![others.as_slice()],
        (Some(_), true) => vec![&[][..]],
        (Some(_), false) => even_chunks(&others),
    };
    let mut steps = Vec::new();
    for (block, others) in blocks.into_iter().enumerate() {
        let block = block as u32;
        let step = |id: &&String, twin| Step { case: case.name.clone(), instance: (*id).clone(), round, block, twin };
        let mut ids: Vec<&String> = others.to_vec();
        ids.extend(reference);
        let mut of_block: Vec<Step> = ids.iter().map(|id| step(id, 0)).collect();
        // The noise floor is measured where it matters most, in the first case of the twin; the reference's in its first block.
        let has_twin = |id: &&&String| is_twin(scenario, case, id) && (Some(**id) != reference || block == 0);
        of_block.extend(ids.iter().filter(has_twin).map(|id| step(id, 1)));
        rng.shuffle(&mut of_block);
        steps.extend(of_block);
    }
    steps
}

/// Chunks of at most [`BLOCK_OTHERS`], as equal as possible.
fn even_chunks<T>(all: &[T]) -> Vec<&[T]> {
    let count = all.len().div_ceil(BLOCK_OTHERS).max(1);
    (0..count).map(|place| &all[place * all.len() / count..(place + 1) * all.len() / count]).collect()
}

fn is_twin(scenario: &Scenario, case: &Case, id: &String) -> bool {
    let first = scenario.cases.iter().find(|case| case.instances.contains(id));
    scenario.twins.contains(id) && first.is_some_and(|first| first.name == case.name)
}

/// The time that a cell's load takes.
#[must_use]
pub fn load_time(load: &LoadSpec) -> Duration {
    let once = Duration::from_millis(load.ramp_ms + load.warm_up_ms + load.measure_ms + load.trim_ms);
    match load.mode {
        Mode::Search { .. } => once * SEARCH_STEPS_MAX,
        Mode::Closed | Mode::Open { .. } => once,
    }
}

/// The time that one step takes.
#[must_use]
pub fn step_time(scenario: &Scenario, step: &Step) -> Duration {
    let case = scenario.cases.iter().find(|case| case.name == step.case);
    CELL_OVERHEAD + case.map_or(Duration::ZERO, |case| load_time(&case.load))
}

fn expected(scenario: &Scenario, steps: &[Step]) -> Duration {
    let measuring: Duration = steps.iter().map(|step| step_time(scenario, step)).sum();
    let starting = START_OVERHEAD * scenario.instances.len() as u32;
    let calibrating = (CALIBRATION + CELL_OVERHEAD) * 2 * scenario.cases.len() as u32;
    FRAME + starting + calibrating + measuring
}

/// Makes a scenario fit into `budget`: first windows and warm-ups, then rounds, and fewer than six rounds only as a last resort. Returns
/// the number of rounds.
pub fn shrink(scenario: &mut Scenario, rounds: u32, budget: Duration) -> u32 {
    let sure = (ROUNDS_SURE..=rounds).rev().map(|rounds| (rounds, WINDOW_MS_MIN));
    let barely = (rounds >= ROUNDS_SURE).then_some((ROUNDS_SURE, WINDOW_MS_LEAST));
    let few = (ROUNDS_MIN.min(rounds)..ROUNDS_SURE.min(rounds + 1)).rev().map(|rounds| (rounds, WINDOW_MS_MIN));
    let own = scenario.cases.clone();
    for (rounds, window_ms_min) in sure.chain(barely).chain(few) {
        scenario.cases.clone_from(&own);
        if fit(scenario, rounds, window_ms_min, budget) {
            return rounds;
        }
    }
    rounds.min(ROUNDS_MIN)
}

/// Whether this many rounds fit, with everything but the window as short as possible and the window as long as possible.
fn fit(scenario: &mut Scenario, rounds: u32, window_ms_min: u64, budget: Duration) -> bool {
    for (ramp, warm_up, trim) in [(1_000, 1_500, 300), (500, 700, 200), (300, 400, 100)] {
        for case in &mut scenario.cases {
            let load = &mut case.load;
            // Many connections need time to be made, however short the budget.
            let ramp = ramp.max(u64::from(load.connections) / 2);
            load.ramp_ms = load.ramp_ms.min(ramp);
            load.warm_up_ms = load.warm_up_ms.min(warm_up);
            load.trim_ms = load.trim_ms.min(trim);
        }
        if fit_windows(scenario, rounds, window_ms_min, budget) {
            return true;
        }
    }
    false
}

/// Gives every case the same window, but no longer than its own, so that the whole fits. Returns whether that is possible.
fn fit_windows(scenario: &mut Scenario, rounds: u32, window_ms_min: u64, budget: Duration) -> bool {
    let own: Vec<u64> = scenario.cases.iter().map(|case| case.load.measure_ms).collect();
    let mut set = |window_ms: u64| {
        for (case, own) in scenario.cases.iter_mut().zip(&own) {
            case.load.measure_ms = window_ms.min(*own);
        }
        plan(scenario, rounds, 0).expected <= budget
    };
    if !set(window_ms_min) {
        return false;
    }
    let (mut fits, mut too_long) = (window_ms_min, own.iter().copied().max().unwrap_or_default() + 1);
    while too_long > fits + 1 {
        let middle = fits + (too_long - fits) / 2;
        if set(middle) { fits = middle } else { too_long = middle }
    }
    set(fits)
}

/// As in `12:05`, or `1:02:03`.
#[must_use]
pub fn clock(time: Duration) -> String {
    let seconds = time.as_secs();
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    if hours > 0 { format!("{hours}:{minutes:02}:{seconds:02}") } else { format!("{minutes}:{seconds:02}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contender;
    use crate::scenario::{Wish, find, names, select};

    fn scenario(name: &str, quick: bool) -> (Scenario, u32) {
        let recipes = contender::all(None).unwrap();
        let file = find(name, &recipes).unwrap();
        let wish = Wish { quick, ..Wish::default() };
        let selection = select(&file, &recipes, &[], &wish, (2, false)).unwrap();
        (selection.scenario, selection.rounds)
    }

    #[test]
    fn every_round_has_every_cell_once_and_twins_twice() {
        let (scenario, _) = scenario("l4l7-ab", false);
        let schedule = plan(&scenario, 3, 42);
        for round in 0..3 {
            for case in &scenario.cases {
                let of_case = |step: &&Step| step.case == case.name && step.round == round;
                let steps: Vec<&Step> = schedule.steps.iter().filter(of_case).collect();
                let blocks = steps.iter().map(|step| step.block + 1).max().unwrap();
                assert_eq!(blocks, (case.instances.len() as u32 - 1).div_ceil(BLOCK_OTHERS as u32), "{}", case.name);
                for block in steps.chunk_by(|one, next| one.block == next.block) {
                    let references = block.iter().filter(|step| step.instance == scenario.reference && step.twin == 0);
                    assert_eq!(references.count(), 1, "the reference is in each block, once");
                    assert!(block.iter().filter(|step| step.twin == 0).count() <= 1 + BLOCK_OTHERS);
                }
                for instance in &case.instances {
                    let count = steps.iter().filter(|step| step.instance == *instance).count() as u32;
                    let once = if *instance == scenario.reference { blocks } else { 1 };
                    let is_twin = case.name == "c1000" && scenario.twins.contains(instance);
                    assert_eq!(count, once + u32::from(is_twin), "{} {instance}", case.name);
                }
            }
        }
        let place = |name: &str| schedule.steps.iter().position(|step| step.case.starts_with(name)).unwrap();
        let last = schedule.steps.iter().rposition(|step| step.case == "capacity").unwrap();
        assert!(last < place("steady"), "what a rate follows from is measured before");
    }

    #[test]
    fn an_added_round_has_what_is_wanted_and_the_reference() {
        let (scenario, _) = scenario("l4-matrix", false);
        let wanted = [("http-rps", "steelyard-vip"), ("http-rps", "envoy-tcp"), ("tcp-rr", "nodeport")];
        let wanted = wanted.map(|(case, id)| (case.to_owned(), id.to_owned()));
        let steps = added(&scenario, &wanted, 7, 1);
        let has = |case: &str, id: &str| steps.iter().any(|step| step.case == case && step.instance == id);
        assert!(wanted.iter().all(|(case, id)| has(case, id)) && has("http-rps", "routed") && has("tcp-rr", "routed"));
        let twins = steps.iter().filter(|step| step.twin == 1).count();
        assert_eq!((steps.len() - twins, steps[0].round), (5, 7), "{steps:?}");
        assert_eq!(added(&scenario, &[], 7, 1), []);
        assert_ne!(steps, added(&scenario, &wanted, 7, 2));
    }

    #[test]
    fn blocks_are_about_equal() {
        let sizes = |count: usize| even_chunks(&vec![0; count]).iter().map(|chunk| chunk.len()).collect::<Vec<_>>();
        assert_eq!([sizes(1), sizes(3), sizes(4), sizes(7)], [vec![1], vec![3], vec![2, 2], vec![2, 2, 3]]);
    }

    #[test]
    fn the_seed_makes_the_order() {
        let (scenario, _) = scenario("l4-matrix", false);
        let order = |seed| plan(&scenario, 2, seed).steps;
        assert_eq!(order(1), order(1));
        assert_ne!(order(1), order(2));
        let first: Vec<_> =
            order(1).iter().filter(|step| step.case == "tcp-rr").map(|step| step.instance.clone()).collect();
        let (one, two) = first.split_at(first.len() / 2);
        assert_ne!(one, two, "each round has an order of its own");
    }

    #[test]
    fn quick_fits_for_every_shipped_scenario() {
        for name in names() {
            let (mut scenario, rounds) = scenario(name, true);
            let rounds = shrink(&mut scenario, rounds, QUICK_MAX);
            let schedule = plan(&scenario, rounds, 1);
            assert!(schedule.expected <= QUICK_MAX, "{name}: {:?}", schedule.expected);
            let planned = plan_within(&mut scenario, rounds, 1, QUICK_MAX);
            assert!(
                planned.expected < planned.limit && planned.limit == QUICK_MAX,
                "{name}: there is time for more rounds"
            );
            assert!(rounds >= ROUNDS_MIN, "{name}");
            let windows = scenario.cases.iter().map(|case| case.load.measure_ms);
            assert!(windows.min().unwrap() >= WINDOW_MS_MIN, "{name}");
        }
    }

    #[test]
    fn shrinking_leaves_what_fits_alone() {
        let (mut scenario, rounds) = scenario("tcp-downstream", true);
        let windows = |scenario: &Scenario| scenario.cases.iter().map(|case| case.load.measure_ms).collect::<Vec<_>>();
        let before = windows(&scenario);
        assert_eq!(shrink(&mut scenario, rounds, Duration::from_secs(100_000)), rounds);
        assert_eq!(windows(&scenario), before);
        // If it can never fit, the result is the minimum.
        assert_eq!(shrink(&mut scenario, 9, Duration::ZERO), ROUNDS_MIN);
    }

    #[test]
    fn windows_are_cut_before_the_rounds_that_make_a_difference_sure() {
        let rounds_within = |seconds: u64| {
            let (mut scenario, _) = scenario("l4-matrix", false);
            let rounds = shrink(&mut scenario, 10, Duration::from_secs(seconds));
            (rounds, scenario.cases.iter().map(|case| case.load.measure_ms).max().unwrap())
        };
        let all: Vec<(u32, u64)> = (5..120).map(|minute| rounds_within(minute * 10)).collect();
        assert!(all.windows(2).all(|pair| pair[0].0 <= pair[1].0), "more time is never fewer rounds: {all:?}");
        for &(rounds, window_ms) in &all {
            let least = if rounds == ROUNDS_SURE { WINDOW_MS_LEAST } else { WINDOW_MS_MIN };
            assert!(window_ms >= least || rounds == ROUNDS_MIN, "{rounds} rounds of {window_ms} ms");
        }
        let is_cut = |&&(rounds, window_ms): &&(u32, u64)| rounds == ROUNDS_SURE && window_ms < WINDOW_MS_MIN;
        assert!(all.iter().any(|planned| is_cut(&planned)), "{all:?}");
    }

    #[test]
    fn clocks() {
        for (seconds, expect) in [(0, "0:00"), (65, "1:05"), (3_723, "1:02:03")] {
            assert_eq!(clock(Duration::from_secs(seconds)), expect);
        }
    }
}
