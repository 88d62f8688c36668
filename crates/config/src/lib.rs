//! Turns YAML text into the model, and reports every error with its place.
//!
//! Its job is to read a file into a [`model::Snapshot`], or to report everything that is wrong with it and what would be right. It also
//! describes the file for editors ([`schema()`]) and for people ([`reference()`]). It does not open files or sockets, and does not resolve
//! names.
//!
//! Text becomes a tree of nodes (`yaml`), the nodes become raw values according to a table of keys (`raw`, read by `read`), and the raw
//! values become the model (`lower`). Each step reports what it finds and goes on, so that one run reports all errors.
#![forbid(unsafe_code)]

mod defaults;
mod define;
mod diagnostic;
mod kind;
mod lower;
mod raw;
mod read;
mod reference;
mod schema;
mod secrets;
mod text;
pub mod yaml;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use model::{Cluster, Endpoint, EndpointAddress, Generation, Snapshot, Vip};

pub use defaults::{SIDECAR_INBOUND_PORT, SIDECAR_USER};
pub use diagnostic::{Diagnostic, Errors, Excerpt, Location, without_excerpts};
pub use kind::{ServiceRef, TrafficPolicy, apply_to_clients, apply_to_cluster, apply_to_route, definition};
pub use lower::{NOT_TABLE_LOCAL, TABLE_LOCAL, VIPS_MAX, usual_external_auth};
pub use reference::reference;
pub use schema::schema;
pub use text::{parse_admin, parse_bind, parse_endpoint, parse_vip_address, parse_wait, unchangeable};

use diagnostic::{Hidden, Report, Wrong};
use raw::RawFile;
use read::Read;
use yaml::{Node, Value};

/// Parses a file into a snapshot. Relative file names in it are resolved from the directory of the file.
///
/// # Errors
/// Returns everything that is wrong with the file (at most a hundred errors), in the order of the file; never empty.
pub fn parse(file_name: &str, text: &str, generation: Generation) -> Result<Snapshot, Errors> {
    read_file(file_name, text, generation).map(|file| file.snapshot)
}

/// As [`parse`], and also returns what the file says about itself.
///
/// # Errors
/// As [`parse`].
pub fn read_file(file_name: &str, text: &str, generation: Generation) -> Result<File, Errors> {
    read_with(file_name, text, yaml::load, |raw, base, report| lower::snapshot(raw, base, generation, report))
}

/// Reads a file that has only `access_log`, `tracing`, and the clusters that they name: what a process logs and records whose listeners come
/// from elsewhere.
///
/// # Errors
/// As [`parse`], and if it has anything else.
pub fn read_telemetry(file_name: &str, text: &str) -> Result<File, Errors> {
    read_with(file_name, text, load_telemetry, lower::telemetry)
}

/// What a file for telemetry can have is less than [`RawFile`] says.
fn load_telemetry(text: &str, report: &mut Report) -> Option<Rc<Node>> {
    const NEEDS: &str = "it needs `access_log` or `tracing`, each with a colon and its settings";
    let root = yaml::load_with(text, NEEDS, report)?;
    if !matches!(root.value, Value::Map(_)) {
        let wrong = Wrong::new(format!("the file must be a mapping, not {}", root.value.noun()));
        report.add(root.location, wrong.hint(NEEDS));
        return None;
    }
    Some(root)
}

fn read_with(
    file_name: &str,
    text: &str,
    load: impl FnOnce(&str, &mut Report) -> Option<Rc<Node>>,
    lower: impl FnOnce(RawFile, &Path, &mut Report) -> Option<Snapshot>,
) -> Result<File, Errors> {
    // RFC 3629 section 6: a byte order mark is a signature, not text.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let base = Path::new(file_name).parent().unwrap_or(Path::new(""));
    let mut report = Report::default();
    let file = load(text, &mut report).and_then(|root| RawFile::read(&root, "the file", &mut report)).and_then(|raw| {
        let watch = raw.watch.as_ref().map_or(defaults::WATCH, |watch| watch.value.0);
        let locations = lower::file_places(&raw, base);
        let snapshot = lower(raw, base, &mut report)?;
        let hidden = report.hidden().clone();
        let written = Written { name: file_name.to_owned(), text: text.to_owned(), locations, hidden };
        Some(File { snapshot, watch, written })
    });
    match file {
        Some(file) if report.is_empty() => Ok(file),
        _ => {
            secrets::hide_lines(text, &mut report);
            Err(report.into_errors(file_name, text))
        }
    }
}

/// A file that was read.
pub struct File {
    /// The snapshot that it describes.
    pub snapshot: Snapshot,
    /// Whether to read it again when it changes, or when a certificate or key that it names changes.
    pub watch: bool,
    /// The places of the files that it names.
    pub written: Written,
}

impl From<Snapshot> for File {
    /// For a snapshot that does not come from a file.
    fn from(snapshot: Snapshot) -> Self {
        Self { snapshot, watch: false, written: Written::default() }
    }
}

/// The text of a file that was read, for errors that are found later in the files that it names.
#[derive(Default)]
pub struct Written {
    name: String,
    text: String,
    /// By the owner, such as "listener web", and the file; `None` stands for its TLS as a whole.
    locations: HashMap<(String, Option<PathBuf>), Location>,
    /// What no excerpt may show, besides the lines with secrets.
    hidden: Hidden,
}

/// An error in a file that the configuration names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrongFile {
    /// The part of the configuration that names it: "listener web", "cluster app".
    pub owner: String,
    /// The file. `None` if no single file is wrong, but the TLS settings as a whole.
    pub file: Option<PathBuf>,
    /// What is wrong.
    pub message: String,
    /// What would be right, if known.
    pub hint: Option<String>,
}

impl Written {
    /// Returns these as errors of the configuration file, at the place where it names the wrong file. A snapshot that does not come from a
    /// file has no places, so its errors have none.
    pub fn errors(&self, wrong: Vec<WrongFile>) -> String {
        if self.text.is_empty() {
            let line = |WrongFile { owner, message, hint, .. }| format!("{owner}: {}", Wrong { message, hint });
            return wrong.into_iter().map(line).collect::<Vec<_>>().join("\n");
        }
        let mut report = Report::default();
        for WrongFile { owner, file, message, hint } in wrong {
            let location = |file: Option<PathBuf>| self.locations.get(&(owner.clone(), file)).copied();
            let location = location(file).or_else(|| location(None)).unwrap_or(Location::START);
            report.add(location, Wrong { message: format!("{owner}: {message}"), hint });
        }
        report.hidden().join(self.hidden.clone());
        secrets::hide_lines(&self.text, &mut report);
        report.into_errors(&self.name, &self.text).to_string()
    }
}

/// Parses the description of one vip: the text that a file would have under the vip's name.
///
/// # Errors
/// Returns everything that is wrong with it, one error per line, without places, because the operator does not see the text around it.
pub fn parse_vip(name: &str, description: &str) -> Result<Vip, String> {
    // As a JSON string the name is one YAML scalar, whatever it contains. Because the description is indented, it cannot leave its place.
    let name = serde_json::Value::from(name);
    let indented: String = description.lines().map(|line| format!("    {line}\n")).collect();
    let text = format!("vips:\n  {name}:\n{indented}");
    match parse("", &text, Generation(0)) {
        Ok(mut snapshot) => snapshot.vips.pop().ok_or_else(|| "the text describes no vip".to_owned()),
        Err(errors) => {
            let line = |wrong: &Diagnostic| match &wrong.hint {
                Some(hint) => format!("{}; {hint}", wrong.message),
                None => wrong.message.clone(),
            };
            Err(errors.0.iter().map(line).collect::<Vec<_>>().join("\n"))
        }
    }
}

/// The snapshot for `steelyard proxy --listen ADDRESS --to A,B`: one listener that sends everything to one cluster, with defaults for
/// everything else.
pub fn proxy_snapshot(listen: SocketAddr, to: &[EndpointAddress], tcp: bool) -> Snapshot {
    let endpoint = |address: &EndpointAddress| Endpoint {
        address: address.clone(),
        weight: defaults::WEIGHT,
        priority: 0,
        zone: model::Zone::Unknown,
        host: None,
    };
    let cluster = Cluster::new("proxy", to.iter().map(endpoint).collect());
    lower::one_listener("proxy", listen, tcp, cluster)
}

#[cfg(test)]
mod tests;
