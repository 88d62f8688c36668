//! In which order cells are measured, and how long that takes.
//!
//! Job: rounds in which every instance is measured once under every case, in an order drawn anew for each from one seed, so that a host that
//! changes on the way does so for everybody; cases whose rate follows from another case come after it; the expected time, and for `--quick`
//! windows that fit. Non-job: measuring.

use std::time::Duration;

use crate::record::{Case, LoadSpec, Mode, Scenario};
use crate::scenario::base_of;
use crate::stats::Rng;

/// What a cell takes beside its load: starting it, looking before and after, writing the run.
const CELL_OVERHEAD: Duration = Duration::from_millis(450);

/// What an instance takes to start and to be ready.
const START_OVERHEAD: Duration = Duration::from_millis(900);

/// What the rest takes: links, origins, calibration of a case, the report.
const FRAME: Duration = Duration::from_secs(5);

/// A calibration's load.
pub const CALIBRATION: Duration = Duration::from_millis(1_500);

/// The most that a search for capacity takes: so many steps.
const SEARCH_STEPS_MAX: u32 = 16;

/// What `--quick` may take, report and all.
pub const QUICK_MAX: Duration = Duration::from_secs(172);

/// A window that is shorter says nothing.
const WINDOW_MS_MIN: u64 = 800;

/// Rounds that a median needs.
const ROUNDS_MIN: u32 = 2;

/// One cell to measure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The case's name.
    pub case: String,
    /// The instance's id.
    pub instance: String,
    /// From 0.
    pub round: u32,
    /// 0, or 1 for the second measurement in the same round.
    pub twin: u8,
}

/// What is measured when, and how long it should take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// In order.
    pub steps: Vec<Step>,
    /// Rounds.
    pub rounds: u32,
    /// For everything.
    pub expected: Duration,
}

/// Orders the cells of a scenario.
#[must_use]
pub fn plan(scenario: &Scenario, rounds: u32, seed: u64) -> Schedule {
    let mut rng = Rng::new(seed);
    let mut steps = Vec::new();
    // Two phases are enough: a case whose rate follows from another follows from one whose rate does not.
    let (first, second): (Vec<_>, Vec<_>) = scenario.cases.iter().partition(|case| base_of(case).is_none());
    for phase in [first, second] {
        for round in 0..rounds {
            let mut cases = phase.clone();
            rng.shuffle(&mut cases);
            for case in cases {
                // Ratios are taken within a round, so what is compared stands close together: case by case.
                let mut cells = cells_of(scenario, case, round);
                rng.shuffle(&mut cells);
                steps.extend(cells);
            }
        }
    }
    let expected = expected(scenario, &steps);
    Schedule { steps, rounds, expected }
}

fn cells_of(scenario: &Scenario, case: &Case, round: u32) -> Vec<Step> {
    let step = |instance: &String, twin| Step { case: case.name.clone(), instance: instance.clone(), round, twin };
    let once = case.instances.iter().map(|instance| step(instance, 0));
    // The noise floor is taken where it matters most, under the first case that the twin takes part in.
    let is_first = |id: &String| {
        let first = scenario.cases.iter().find(|case| case.instances.contains(id));
        first.is_some_and(|first| first.name == case.name)
    };
    let again = scenario.twins.iter().filter(|id| case.instances.contains(id) && is_first(id)).map(|id| step(id, 1));
    once.chain(again).collect()
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

/// Makes a scenario fit into `budget`: windows first, then rounds, then the warm-up. Gives the rounds that are left.
pub fn shrink(scenario: &mut Scenario, rounds: u32, budget: Duration) -> u32 {
    let mut rounds = rounds;
    loop {
        for (ramp, warm_up, trim) in [(1_000, 1_500, 300), (500, 700, 200), (300, 400, 100)] {
            for case in &mut scenario.cases {
                let load = &mut case.load;
                // Many connections need their time to be made, whatever the hurry.
                let ramp = ramp.max(u64::from(load.connections) / 2);
                load.ramp_ms = load.ramp_ms.min(ramp);
                load.warm_up_ms = load.warm_up_ms.min(warm_up);
                load.trim_ms = load.trim_ms.min(trim);
            }
            if fit_windows(scenario, rounds, budget) {
                return rounds;
            }
        }
        if rounds <= ROUNDS_MIN {
            return rounds;
        }
        rounds -= 1;
    }
}

/// Gives every case the same window, no longer than its own, that lets the whole fit. Whether there is one.
fn fit_windows(scenario: &mut Scenario, rounds: u32, budget: Duration) -> bool {
    let own: Vec<u64> = scenario.cases.iter().map(|case| case.load.measure_ms).collect();
    let mut set = |window_ms: u64| {
        for (case, own) in scenario.cases.iter_mut().zip(&own) {
            case.load.measure_ms = window_ms.min(*own);
        }
        plan(scenario, rounds, 0).expected <= budget
    };
    if !set(WINDOW_MS_MIN) {
        return false;
    }
    let (mut fits, mut too_long) = (WINDOW_MS_MIN, own.iter().copied().max().unwrap_or_default() + 1);
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
                for instance in &case.instances {
                    let of_cell =
                        |step: &&Step| (&step.case, &step.instance, step.round) == (&case.name, instance, round);
                    let count = schedule.steps.iter().filter(of_cell).count();
                    let is_twin = case.name == "c1000" && scenario.twins.contains(instance);
                    assert_eq!(count, if is_twin { 2 } else { 1 }, "{} {instance}", case.name);
                }
            }
        }
        let place = |name: &str| schedule.steps.iter().position(|step| step.case.starts_with(name)).unwrap();
        let last = schedule.steps.iter().rposition(|step| step.case == "capacity").unwrap();
        assert!(last < place("steady"), "what a rate follows from is measured before");
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
        // And what can never fit ends with the least there is.
        assert_eq!(shrink(&mut scenario, 9, Duration::ZERO), ROUNDS_MIN);
    }

    #[test]
    fn clocks() {
        for (seconds, expect) in [(0, "0:00"), (65, "1:05"), (3_723, "1:02:03")] {
            assert_eq!(clock(Duration::from_secs(seconds)), expect);
        }
    }
}
