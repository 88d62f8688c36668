//! `steelyard migrate haproxy`: frontends, backends and listens as listeners, routes and clusters.
//!
//! A rule whose condition is not understood closes the requests that it may be about: those that meet the part which is understood.

mod acl;
mod back;
mod check;
mod clients;
mod expression;
mod front;
mod global;
mod headers;
mod hosts;
mod options;
mod read;
#[cfg(test)]
mod reported;
mod rules;
mod server;
#[cfg(test)]
mod tests;
mod words;

use std::collections::HashMap;
use std::path::Path;
use std::rc::Rc;

use super::draft::{Became, Draft};
use global::Global;
use read::{Line, Section};

/// Words and lines that are looked at: a small file can lead from each of its rules through a large backend.
const WORK_MAX: usize = 10_000_000;

/// Routes of all listeners.
const ROUTES_MAX: usize = 10_000;

/// The translation of one file.
pub(super) struct Making<'d> {
    file: String,
    /// Sections that requests can be sent to, by name.
    backends: HashMap<String, Rc<Section>>,
    global: Global,
    /// Whether any section tells endpoints about clients.
    forwards: bool,
    draft: &'d mut Draft,
    /// What is known of sections, by their lines: whether they are closed, and the clusters of backends.
    closed: HashMap<usize, bool>,
    clusters: HashMap<(usize, bool), Option<String>>,
    work: usize,
    routes: usize,
    is_too_large: bool,
}

impl Making<'_> {
    fn note(&mut self, line: &Line, became: Became, why: &str) {
        self.draft.note((&self.file, line.number), &line.told(), became, why);
    }

    fn backend(&self, name: &str) -> Option<Rc<Section>> {
        self.backends.get(name).cloned()
    }

    /// Counts words and lines that are looked at. Once there are too many, nothing that is made counts.
    #[must_use]
    fn spend(&mut self, work: usize) -> bool {
        self.work = self.work.saturating_add(work);
        self.is_too_large |= self.work > WORK_MAX;
        !self.is_too_large
    }

    /// Whether there may be so many routes besides those of the listeners that are complete.
    #[must_use]
    fn fits(&mut self, routes: usize) -> bool {
        self.is_too_large |= self.routes.saturating_add(routes) > ROUTES_MAX;
        !self.is_too_large
    }
}

/// # Errors
/// The place, and what cannot be read there.
pub(super) fn translate(path: &Path) -> Result<Draft, String> {
    let file = path.display().to_string();
    let sections: Vec<Rc<Section>> = read::sections(&file, &super::text_of(path)?)?.into_iter().map(Rc::new).collect();
    let mut draft = Draft::default();
    let mut backends = HashMap::new();
    for section in sections.iter().filter(|section| ["backend", "listen"].contains(&section.kind.as_str())) {
        backends.entry(section.name.clone()).or_insert_with(|| Rc::clone(section));
    }
    let mut making = Making {
        file,
        backends,
        global: Global::default(),
        forwards: sections.iter().any(|section| forwards(section)),
        draft: &mut draft,
        closed: HashMap::new(),
        clusters: HashMap::new(),
        work: 0,
        routes: 0,
        is_too_large: false,
    };
    for section in sections.iter().filter(|section| section.kind == "global") {
        making.read_global(section);
    }
    for section in &sections {
        match section.kind.as_str() {
            "frontend" | "listen" => making.front(section),
            "global" | "defaults" | "backend" => {}
            "resolvers" => {
                let why =
                    "names are resolved by the name servers of this host; `dns` at the top of the file has others";
                making.note(&section.head(), Became::Different, why);
            }
            _ => {
                let why = "only frontend, backend, listen and defaults are translated";
                making.note(&section.head(), Became::Lost, why);
            }
        }
        if making.is_too_large {
            return Err(format!(
                "{}: its rules become more than {ROUTES_MAX} routes or lead through more than {WORK_MAX} words: split it",
                making.file
            ));
        }
    }
    for section in sections.iter().filter(|section| section.kind == "backend") {
        if !making.closed.contains_key(&section.line) {
            making.note(&section.head(), Became::Different, "no rule leads to it, so it is left out");
        }
    }
    Ok(draft)
}

/// Whether a section tells endpoints about clients in `X-Forwarded-*`.
fn forwards(section: &Section) -> bool {
    let is_own = |line: &Rc<Line>| {
        ["set-header", "add-header"].contains(&line.word(1))
            && line.word(2).to_ascii_lowercase().starts_with("x-forwarded-")
    };
    section.has_option("forwardfor") || section.all(&["http-request"]).any(is_own)
}
