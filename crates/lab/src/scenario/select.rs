//! Selects what of a scenario this host can run and this call asks for.

use super::id::InstanceId;
use super::read::{CaseFile, ScenarioFile};
use crate::contender::Recipe;
use crate::document::nearest;
use crate::record::{self, Gap, Instance, Layer, Variant};

/// The selection on the command line.
#[derive(Clone, Debug, Default)]
pub struct Wish {
    /// `--quick`.
    pub quick: bool,
    /// `--contenders`; empty means all of the scenario.
    pub contenders: Vec<InstanceId>,
    /// `--cases`; empty means all of the scenario.
    pub cases: Vec<String>,
    /// `--rounds`.
    pub rounds: Option<u32>,
    /// `--mtu`.
    pub mtu: Option<u32>,
}

/// What will be run.
#[derive(Clone, Debug, PartialEq)]
pub struct Selection {
    /// The cases and instances that take part. Addresses, commands and configurations of instances are still empty.
    pub scenario: record::Scenario,
    /// Rounds.
    pub rounds: u32,
    /// What does not take part, and why.
    pub gaps: Vec<Gap>,
}

/// Parses an instance, and looks it up among the known contenders.
///
/// # Errors
/// Returns a sentence.
pub(crate) fn instance(text: &str, recipes: &[Recipe]) -> Result<InstanceId, String> {
    let id: InstanceId = text.parse()?;
    let Some(recipe) = recipes.iter().find(|recipe| recipe.name == id.contender) else {
        let hint = nearest(&id.contender, recipes.iter().map(|recipe| recipe.name.as_str()));
        return Err(format!("no contender has the name {:?}{hint}", id.contender));
    };
    if id.variant == Variant::Default && recipe.default.is_none() {
        return Err(format!("{} has no default configuration beside its tuned one", recipe.name));
    }
    if id.hops > 1 && !recipe.chains {
        return Err(format!("{} cannot form a chain", recipe.name));
    }
    Ok(id)
}

/// Adds copies of contenders beside their originals. `copies` has the name of each original and that of its copy.
pub(crate) fn and_copies(ids: Vec<InstanceId>, copies: &[(String, String)]) -> Vec<InstanceId> {
    let with_copies = |id: InstanceId| {
        let of_id = copies.iter().filter(|(original, _)| *original == id.contender);
        let copied: Vec<_> = of_id.map(|(_, copy)| InstanceId { contender: copy.clone(), ..id.clone() }).collect();
        std::iter::once(id).chain(copied)
    };
    let mut all: Vec<InstanceId> = Vec::new();
    for id in ids.into_iter().flat_map(with_copies) {
        if !all.contains(&id) {
            all.push(id);
        }
    }
    all
}

/// The same wherever a scenario names contenders that take part.
pub(crate) fn with_copies(file: &mut ScenarioFile, copies: &[(String, String)]) {
    for ids in [&mut file.contenders, &mut file.quick.contenders] {
        *ids = and_copies(std::mem::take(ids), copies);
    }
    for case in &mut file.cases {
        case.contenders = case.contenders.take().map(|ids| and_copies(ids, copies));
    }
}

/// Cuts `file` to `wish`, to `cpus` CPUs, and to contenders that are not in `missing`. On loopback, cases have one origin.
///
/// # Errors
/// If nothing is left, with the possible choices.
pub fn select(
    file: &ScenarioFile,
    recipes: &[Recipe],
    missing: &[Gap],
    wish: &Wish,
    (cpus, loopback): (u32, bool),
) -> Result<Selection, String> {
    let mut gaps = Vec::new();
    let ids = chosen(file, recipes, wish, &mut gaps);
    let mut instances = Vec::new();
    for id in &ids {
        if let Some(gap) = missing.iter().find(|gap| gap.what == id.contender) {
            gaps.push(Gap { what: id.to_string(), why: gap.why.clone() });
            continue;
        }
        instances.extend(with_workers(id, file, recipes, cpus, &mut gaps));
    }
    let cases = cases(file, wish, recipes, &instances, loopback);
    if cases.is_empty() {
        let names: Vec<_> = file.cases.iter().map(|case| case.case.name.as_str()).collect();
        return Err(format!("nothing is left to run; the cases of {} are: {}", file.name, names.join(", ")));
    }
    instances.retain(|instance| cases.iter().any(|case| case.instances.contains(&instance.id)));
    let is_there = |id: &String| instances.iter().any(|instance| instance.id == *id);
    let reference = ids_of(std::slice::from_ref(&file.reference), &instances).into_iter().find(is_there);
    let reference = reference.or_else(|| instances.first().map(|instance| instance.id.clone())).unwrap_or_default();
    let quick_rounds = wish.quick.then(|| file.quick.rounds.unwrap_or(3));
    let scenario = record::Scenario {
        name: file.name.clone(),
        table: file.table,
        report: file.report.clone(),
        title: file.title.clone(),
        title_zh: file.title_zh.clone(),
        question: file.question.clone(),
        topology: file.topology.clone(),
        loopback,
        reference,
        twins: ids_of(&file.twins, &instances),
        cases,
        instances,
        mtu: if loopback { 0 } else { wish.mtu.unwrap_or(file.mtu) },
        steering: file.steering && !loopback,
        endpoints: if loopback { 1 } else { file.endpoints },
    };
    Ok(Selection { scenario, rounds: wish.rounds.or(quick_rounds).unwrap_or(file.rounds), gaps })
}

/// The requested contenders of the scenario. Named ones that are not in the file take part as well.
fn chosen(file: &ScenarioFile, recipes: &[Recipe], wish: &Wish, gaps: &mut Vec<Gap>) -> Vec<InstanceId> {
    if !wish.contenders.is_empty() {
        let can_carry = |id: &&InstanceId| {
            let recipe = recipes.iter().find(|recipe| recipe.name == id.contender);
            file.cases.iter().any(|case| recipe.is_some_and(|recipe| recipe.carries(case.case.load.kind)))
        };
        let (able, unable): (Vec<_>, Vec<_>) = wish.contenders.iter().partition(can_carry);
        gaps.extend(
            unable
                .iter()
                .map(|id| Gap { what: id.to_string(), why: format!("does not support any protocol of {}", file.name) }),
        );
        return able.into_iter().cloned().collect();
    }
    if wish.quick && !file.quick.contenders.is_empty() {
        let left_out = file.contenders.iter().filter(|id| !file.quick.contenders.contains(id));
        gaps.extend(left_out.map(|id| Gap { what: id.to_string(), why: "not part of --quick".to_owned() }));
        return file.quick.contenders.clone();
    }
    file.contenders.clone()
}

/// An instance for each number of workers for which the host has CPUs.
fn with_workers(
    id: &InstanceId,
    file: &ScenarioFile,
    recipes: &[Recipe],
    cpus: u32,
    gaps: &mut Vec<Gap>,
) -> Vec<Instance> {
    let recipe = recipes.iter().find(|recipe| recipe.name == id.contender);
    // A contender without a process has no workers: only steering spreads the kernel's work.
    let has_workers = recipe.is_some_and(|recipe| matches!(recipe.layer, Layer::Tcp | Layer::Http | Layer::H2));
    let counts = match id.workers {
        Some(workers) => vec![workers],
        None if has_workers && !file.workers.is_empty() => file.workers.clone(),
        None => vec![1],
    };
    let is_swept = !file.workers.is_empty() && has_workers;
    let (able, too_many): (Vec<u32>, Vec<u32>) = counts.into_iter().partition(|&workers| workers <= cpus);
    if !too_many.is_empty() {
        let workers = too_many.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
        let what = format!("{}@{workers}", InstanceId { workers: None, ..id.clone() });
        gaps.push(Gap { what, why: format!("more workers than this host's {cpus} CPUs") });
    }
    let instance = |workers: u32| Instance {
        id: if is_swept { InstanceId { workers: Some(workers), ..id.clone() } } else { id.clone() }.to_string(),
        contender: id.contender.clone(),
        variant: id.variant,
        hops: if recipe.is_some_and(|recipe| recipe.layer == Layer::Direct) { 0 } else { id.hops },
        workers,
        address: String::new(),
        commands: Vec::new(),
        configuration: String::new(),
    };
    able.into_iter().map(instance).collect()
}

/// The instances for `ids`, with any number of workers.
fn ids_of(ids: &[InstanceId], instances: &[Instance]) -> Vec<String> {
    let stands_for = |instance: &&Instance| {
        ids.iter().any(|id| {
            let bare = instance.id.rsplit_once('@').map_or(instance.id.as_str(), |(bare, _)| bare);
            instance.id == id.to_string() || bare == id.to_string()
        })
    };
    instances.iter().filter(stands_for).map(|instance| instance.id.clone()).collect()
}

fn cases(
    file: &ScenarioFile,
    wish: &Wish,
    recipes: &[Recipe],
    instances: &[Instance],
    loopback: bool,
) -> Vec<record::Case> {
    let asked: &[String] = match (wish.cases.is_empty(), wish.quick) {
        (false, _) => &wish.cases,
        (true, true) => &file.quick.cases,
        (true, false) => &[],
    };
    let is_asked =
        |case: &CaseFile| asked.is_empty() || asked.contains(&case.case.name) || asked.contains(&case.family);
    let mut kept: Vec<&CaseFile> = file.cases.iter().filter(|case| is_asked(case)).collect();
    // A case whose rate depends on another case needs that case.
    for needed in kept.iter().filter_map(|case| base_of(&case.case)).collect::<Vec<_>>() {
        if !kept.iter().any(|case| case.case.name == needed) {
            kept.extend(file.cases.iter().find(|case| case.case.name == needed));
        }
    }
    let mut cases = Vec::new();
    for case in file.cases.iter().filter(|case| kept.iter().any(|kept| kept.case.name == case.case.name)) {
        let named = case.contenders.as_ref().map(|ids| ids_of(ids, instances));
        let takes_part = |instance: &&Instance| {
            let recipe = recipes.iter().find(|recipe| recipe.name == instance.contender);
            let is_named = named.as_ref().is_none_or(|named| named.contains(&instance.id));
            is_named && recipe.is_some_and(|recipe| recipe.carries(case.case.load.kind))
        };
        let taking_part: Vec<_> = instances.iter().filter(takes_part).map(|instance| instance.id.clone()).collect();
        if taking_part.is_empty() {
            continue;
        }
        let mut case = case.case.clone();
        case.instances = taking_part;
        if loopback {
            case.origin.count = 1;
        }
        cases.push(case);
    }
    cases
}

/// The case on which a case's rate depends.
pub(crate) fn base_of(case: &record::Case) -> Option<&str> {
    match &case.load.mode {
        record::Mode::Open { rate: record::Rate::OfSlowest { case, .. }, .. } => Some(case),
        _ => None,
    }
}
