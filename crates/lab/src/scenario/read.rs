//! Reads a scenario's text.

use std::time::Duration;

use super::id::InstanceId;
use crate::contender::Recipe;
use crate::document::{Document, Problem, Table, Text, nearest};
use crate::record;
use crate::record::{LoadKind, LoadSpec, Mode, OriginKind, OriginSpec, Pacing, Rate, Variant};

/// The most cases of a scenario, after multiplying out lists of connections and rates.
const CASES_MAX: usize = 200;

/// The most origins.
const ENDPOINTS_MAX: u32 = 16;

/// A scenario, as in its file.
#[derive(Clone, Debug, PartialEq)]
pub struct ScenarioFile {
    /// The file's name without its suffix.
    pub name: String,
    /// A title of one line.
    pub title: String,
    /// The title in Chinese.
    pub title_zh: Option<String>,
    /// The published report that it repeats.
    pub report: Option<String>,
    /// The table that it produces.
    pub table: record::Table,
    /// The question that it answers.
    pub question: String,
    /// The arrangement of the components.
    pub topology: String,
    /// The contenders.
    pub contenders: Vec<InstanceId>,
    /// The reference for ratios.
    pub reference: InstanceId,
    /// The instances that are measured twice per round.
    pub twins: Vec<InstanceId>,
    /// Numbers of workers that every contender is run with; empty means one.
    pub workers: Vec<u32>,
    /// Origins.
    pub endpoints: u32,
    /// MTU of the links.
    pub mtu: u32,
    /// Whether received packets are steered to the CPUs of their component.
    pub steering: bool,
    /// Rounds.
    pub rounds: u32,
    /// Workloads.
    pub cases: Vec<CaseFile>,
    /// The reduction for `--quick`.
    pub quick: Quick,
}

/// A case, as in the file.
#[derive(Clone, Debug, PartialEq)]
pub struct CaseFile {
    /// The workload.
    pub case: record::Case,
    /// The instances that take part; `None` means all that can.
    pub contenders: Option<Vec<InstanceId>>,
    /// Its name before lists were multiplied out.
    pub family: String,
}

/// The reduction of a scenario for `--quick`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Quick {
    /// Cases by name; empty means all.
    pub cases: Vec<String>,
    /// Contenders; empty means all.
    pub contenders: Vec<InstanceId>,
    /// Rounds.
    pub rounds: Option<u32>,
}

/// The parts of a cell's time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Times {
    /// The time in which connections are made.
    pub ramp: Duration,
    /// Before the window.
    pub warm_up: Duration,
    /// The window.
    pub measure: Duration,
    /// After the window.
    pub trim: Duration,
}

impl Default for Times {
    fn default() -> Self {
        let ms = Duration::from_millis;
        Self { ramp: ms(1_000), warm_up: ms(2_000), measure: ms(6_000), trim: ms(500) }
    }
}

/// Reads a scenario. `file` is the name for its problems, and `recipes` are the contenders that it may name.
///
/// # Errors
/// Returns everything that is wrong with it, by place.
pub fn read(name: &str, file: &str, text: &str, recipes: &[Recipe]) -> Result<ScenarioFile, Vec<Problem>> {
    Document::read(file, text, |top| take(name, top, recipes))
}

fn take(name: &str, top: &mut Table<'_, '_>, recipes: &[Recipe]) -> ScenarioFile {
    let contenders = instances(top, "contenders", recipes).unwrap_or_default();
    // If a name in it is wrong, this is noted already.
    if contenders.is_empty() && (!top.has("contenders") || top.is_clean()) {
        top.note_at("contenders", "`contenders` is missing: list who takes part, such as [\"direct\", \"nginx-http\"]");
    }
    let reference = match top.optional_text("reference") {
        Some(text) => instance(top, text, recipes),
        None => contenders.first().cloned(),
    };
    let mut times = Times::default();
    top.table("time", |table| times = take_times(table, times));
    let endpoints = top.number("endpoints", 1..=ENDPOINTS_MAX).unwrap_or(1);
    let cases: Vec<CaseFile> =
        top.tables("case", |table| take_cases(table, recipes, times, endpoints)).into_iter().flatten().collect();
    let quick = top.table("quick", |table| Quick {
        cases: quick_cases(table, &cases),
        contenders: instances(table, "contenders", recipes).unwrap_or_default(),
        rounds: table.number("rounds", 2..=1000),
    });
    let file = ScenarioFile {
        name: name.to_owned(),
        title: top.string("title"),
        title_zh: top.optional_string("title_zh"),
        report: top.optional_string("report"),
        table: top.one_of("table", TABLES).unwrap_or(record::Table::Generic),
        question: top.string("question"),
        topology: top.optional_string("topology").unwrap_or_default(),
        reference: reference.unwrap_or_else(|| InstanceId {
            contender: String::new(),
            variant: Variant::Tuned,
            hops: 1,
            workers: None,
        }),
        twins: instances(top, "twins", recipes).unwrap_or_default(),
        workers: top.numbers("workers", 1..=1024).unwrap_or_default(),
        endpoints,
        mtu: top.number("mtu", 576..=65_535).unwrap_or(1500),
        steering: top.flag("steering").unwrap_or(true),
        rounds: top.number("rounds", 1..=1000).unwrap_or(10),
        cases,
        contenders,
        quick: quick.unwrap_or_default(),
    };
    check(&file, top);
    file
}

const TABLES: &[(&str, record::Table)] = &[
    ("l4l7-ab", record::Table::L4l7Ab),
    ("grpc-gateway", record::Table::GrpcGateway),
    ("l4-matrix", record::Table::L4Matrix),
    ("tcp-downstream", record::Table::TcpDownstream),
    ("cpu-scaling", record::Table::CpuScaling),
    ("generic", record::Table::Generic),
];

/// Checks the whole, if each part is valid.
fn check(file: &ScenarioFile, top: &Table<'_, '_>) {
    if file.cases.is_empty() && !top.has("case") {
        top.note_at("case", "there is no [[case]]: add at least one workload");
    }
    if file.cases.len() > CASES_MAX {
        top.note_at("case", format!("there are {} cases; the limit is {CASES_MAX}", file.cases.len()));
    }
    let known = |id: &InstanceId| file.contenders.iter().any(|known| known == id);
    for (name, ids) in [("reference", std::slice::from_ref(&file.reference)), ("twins", &file.twins)] {
        for id in ids.iter().filter(|id| !known(id) && !file.contenders.is_empty()) {
            top.note_at(name, format!("`{name}`: {id} is not one of the contenders"));
        }
    }
    for (index, case) in file.cases.iter().enumerate() {
        let name = &case.case.name;
        if file.cases.iter().take(index).any(|earlier| earlier.case.name == *name) {
            top.note_at("case", format!("two cases have the name {name:?}"));
        }
        let Mode::Open { rate: Rate::OfSlowest { case: other, .. }, .. } = &case.case.load.mode else { continue };
        let target = file.cases.iter().find(|known| known.case.name == *other);
        let is_absolute = target
            .is_some_and(|target| !matches!(target.case.load.mode, Mode::Open { rate: Rate::OfSlowest { .. }, .. }));
        if !is_absolute {
            let what = "its rate depends on a case that does not exist, or that depends on another case itself";
            top.note_at("case", format!("case {name:?}: {what}: {other:?}"));
        }
    }
}

fn quick_cases(table: &mut Table<'_, '_>, cases: &[CaseFile]) -> Vec<String> {
    let texts = table.texts("cases").unwrap_or_default();
    for text in &texts {
        if !cases.iter().any(|case| case.case.name == text.text || case.family == text.text) {
            let hint = nearest(&text.text, cases.iter().map(|case| case.case.name.as_str()));
            table.note(text.span.clone(), format!("no case has the name {:?}{hint}", text.text));
        }
    }
    texts.into_iter().map(|text| text.text).collect()
}

fn take_times(table: &mut Table<'_, '_>, default: Times) -> Times {
    Times {
        ramp: table.duration("ramp").unwrap_or(default.ramp),
        warm_up: table.duration("warm_up").unwrap_or(default.warm_up),
        measure: table.duration("measure").unwrap_or(default.measure),
        trim: table.duration("trim").unwrap_or(default.trim),
    }
}

/// Makes a case for each combination of connections and rates.
fn take_cases(table: &mut Table<'_, '_>, recipes: &[Recipe], times: Times, endpoints: u32) -> Vec<CaseFile> {
    let name = table.string("name");
    let title = table.string("title");
    let label = table.optional_string("label");
    let contenders = instances(table, "contenders", recipes);
    let origin = table.table("origin", |table| take_origin(table, endpoints));
    if !table.has("origin") {
        table.note_at("origin", "`origin` is missing: set what answers, such as {kind = \"http\"}");
    }
    let loads = table.table("load", |table| take_loads(table, times));
    if !table.has("load") {
        table.note_at("load", "`load` is missing: set what asks, such as {kind = \"http\", connections = 64}");
    }
    let answers = |origin: &OriginSpec| loads.iter().flatten().all(|(_, load)| origin.kind.answers(load.kind));
    // After another problem, a kind may be one that nobody wrote.
    if table.is_clean() && origin.as_ref().is_some_and(|origin| !answers(origin)) {
        let what = "`load`: the origin does not answer this kind: http answers http, http10, http-close, h2c-http and https, grpc answers h2c \
                    and grpc, tcp answers tcp-rr and tcp-crr, and stream answers stream and stream-paced";
        table.note_at("load", what);
    }
    let origin = origin.unwrap_or(OriginSpec { kind: OriginKind::Http, arguments: Vec::new(), count: 1 });
    let build = |(suffix, load): (String, LoadSpec)| CaseFile {
        case: record::Case {
            name: format!("{name}{suffix}"),
            title: title.clone(),
            instances: Vec::new(),
            origin: origin.clone(),
            load,
            label: label.clone(),
        },
        contenders: contenders.clone(),
        family: name.clone(),
    };
    loads.unwrap_or_default().into_iter().map(build).collect()
}

fn take_origin(table: &mut Table<'_, '_>, endpoints: u32) -> OriginSpec {
    let kinds = [
        ("http", OriginKind::Http),
        ("grpc", OriginKind::Grpc),
        ("tcp", OriginKind::Tcp),
        ("stream", OriginKind::Stream),
    ];
    if !table.has("kind") {
        table.note_at("kind", "`kind` is missing: http, grpc, tcp or stream");
    }
    OriginSpec {
        kind: table.one_of("kind", &kinds).unwrap_or(OriginKind::Http),
        arguments: table.strings("arguments").unwrap_or_default(),
        count: table.number("count", 1..=endpoints).unwrap_or(endpoints),
    }
}

const LOADS: &[(&str, LoadKind)] = &[
    ("http", LoadKind::Http),
    ("http10", LoadKind::Http10),
    ("http-close", LoadKind::HttpClose),
    ("https", LoadKind::Https),
    ("https-close", LoadKind::HttpsClose),
    ("https-resume", LoadKind::HttpsResume),
    ("h2c", LoadKind::H2c),
    ("h2c-http", LoadKind::H2cHttp),
    ("grpc", LoadKind::Grpc),
    ("tcp-rr", LoadKind::TcpRr),
    ("tcp-crr", LoadKind::TcpCrr),
    ("stream", LoadKind::Stream),
    ("stream-paced", LoadKind::StreamPaced),
];

/// The loads of a case, each with the part that distinguishes its name.
fn take_loads(table: &mut Table<'_, '_>, times: Times) -> Vec<(String, LoadSpec)> {
    if !table.has("kind") {
        table.note_at("kind", "`kind` is missing: set the kind of load");
    }
    let kind = table.one_of("kind", LOADS).unwrap_or(LoadKind::Http);
    let connections = table.numbers("connections", 1..=65_536).unwrap_or_else(|| vec![1]);
    let streams = table.number("streams", 1..=1024).unwrap_or(1);
    let arguments = table.strings("arguments").unwrap_or_default();
    let modes = take_modes(table);
    let times = take_times(table, times);
    let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let mut loads = Vec::new();
    for &connection_count in &connections {
        for (rate_suffix, mode) in &modes {
            let mut suffix = String::new();
            if connections.len() > 1 {
                suffix += &format!("-c{connection_count}");
            }
            if modes.len() > 1 {
                suffix += rate_suffix;
            }
            let load = LoadSpec {
                kind,
                mode: mode.clone(),
                connections: connection_count,
                streams,
                arguments: arguments.clone(),
                ramp_ms: ms(times.ramp),
                warm_up_ms: ms(times.warm_up),
                measure_ms: ms(times.measure).max(1),
                trim_ms: ms(times.trim),
            };
            loads.push((suffix, load));
        }
    }
    loads
}

fn take_modes(table: &mut Table<'_, '_>) -> Vec<(String, Mode)> {
    let pacings = [("uniform", Pacing::Uniform), ("burst1hz", Pacing::Burst1hz), ("poisson", Pacing::Poisson)];
    let pacing = table.one_of("pacing", &pacings);
    let objective = table.duration("objective");
    let rates = table.scalars("rate");
    match (rates, objective) {
        (None, None) => {
            if pacing.is_some() {
                table.note_at("pacing", "`pacing` needs an open loop: set a `rate`");
            }
            vec![(String::new(), Mode::Closed)]
        }
        (None, Some(objective)) => {
            let objective_p99_us = u64::try_from(objective.as_micros()).unwrap_or(u64::MAX);
            vec![(String::new(), Mode::Search { objective_p99_us })]
        }
        (Some(rates), objective) => {
            if objective.is_some() {
                table.note_at("objective", "`rate` and `objective` exclude each other: a search finds the rate");
            }
            let pacing = pacing.unwrap_or(Pacing::Uniform);
            rates.into_iter().filter_map(|text| open(table, &text, pacing)).collect()
        }
    }
}

fn open(table: &Table<'_, '_>, text: &Text, pacing: Pacing) -> Option<(String, Mode)> {
    if let Some(rate) = text.text.parse().ok().filter(|rate| (0.001..=1e7).contains(rate)) {
        return Some((format!("-r{}", text.text), Mode::Open { rate: Rate::Fixed(rate), pacing }));
    }
    let share = text.text.split_once("% of ").and_then(|(percent, case)| {
        let percent: f64 = percent.trim().parse().ok()?;
        (percent > 0.0 && percent <= 200.0 && !case.is_empty()).then(|| (percent, case.trim().to_owned()))
    });
    match share {
        Some((percent, case)) => {
            let rate = Rate::OfSlowest { share: percent / 100.0, case };
            Some((format!("-r{percent}pct"), Mode::Open { rate, pacing }))
        }
        None => {
            table.note(
                text.span.clone(),
                format!("{:?} is not a rate; write it like 2000 or \"50% of CASE\"", text.text),
            );
            None
        }
    }
}

fn instances(table: &mut Table<'_, '_>, name: &'static str, recipes: &[Recipe]) -> Option<Vec<InstanceId>> {
    let texts = table.texts(name)?;
    Some(texts.into_iter().filter_map(|text| instance(table, text, recipes)).collect())
}

fn instance(table: &Table<'_, '_>, text: Text, recipes: &[Recipe]) -> Option<InstanceId> {
    match super::select::instance(&text.text, recipes) {
        Ok(id) => Some(id),
        Err(why) => {
            table.note(text.span, why);
            None
        }
    }
}
