//! YAML text to model, with every error at its place.
//!
//! Job: read a file into a [`model::Snapshot`], or tell everything that is wrong with it and what would be right; describe what a file may
//! hold, for editors ([`schema()`]) and for people ([`reference()`]). Not its job: opening files, sockets or names.
//!
//! Text becomes a tree of nodes (`yaml`), the nodes become raw values by a table of keys (`raw`, read by `read`), and the raw values become
//! the model (`lower`). Each step reports what it finds and goes on, so that one run tells all errors.
#![forbid(unsafe_code)]

mod defaults;
mod define;
mod diagnostic;
mod lower;
mod raw;
mod read;
mod reference;
mod schema;
mod text;
mod yaml;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use model::{Cluster, Endpoint, EndpointAddress, Generation, Snapshot, Vip};

pub use diagnostic::{Diagnostic, Errors, Excerpt};
pub use lower::VIPS_MAX;
pub use reference::reference;
pub use schema::schema;
pub use text::{parse_admin, parse_bind, parse_endpoint, parse_vip_address};

use diagnostic::{Location, Report, Wrong};
use raw::RawFile;
use read::Read;

/// The snapshot that a file means. Files that it names by relative paths are seen from its own folder.
///
/// # Errors
/// Everything that is wrong with it (at most a hundred things), in its order; never empty.
pub fn parse(file_name: &str, text: &str, generation: Generation) -> Result<Snapshot, Errors> {
    read_file(file_name, text, generation).map(|file| file.snapshot)
}

/// The same, with what is known of the file itself.
///
/// # Errors
/// As [`parse`].
pub fn read_file(file_name: &str, text: &str, generation: Generation) -> Result<File, Errors> {
    // RFC 3629 section 6: a byte order mark is a signature and not text.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let base = Path::new(file_name).parent().unwrap_or(Path::new(""));
    let mut report = Report::default();
    let file =
        yaml::load(text, &mut report).and_then(|root| RawFile::read(&root, "the file", &mut report)).and_then(|raw| {
            let watch = raw.watch.as_ref().map_or(defaults::WATCH, |watch| watch.value.0);
            let locations = lower::tls_places(&raw, base);
            let snapshot = lower::snapshot(raw, base, generation, &mut report)?;
            let written = Written { name: file_name.to_owned(), text: text.to_owned(), locations };
            Some(File { snapshot, watch, written })
        });
    match file {
        Some(file) if report.is_empty() => Ok(file),
        _ => Err(report.into_errors(file_name, text)),
    }
}

/// A file that was read.
pub struct File {
    /// What it means.
    pub snapshot: Snapshot,
    /// Whether it is to be read again when it, or a certificate or key that it names, changes.
    pub watch: bool,
    /// Where what stands in it.
    pub written: Written,
}

impl From<Snapshot> for File {
    /// What no file says.
    fn from(snapshot: Snapshot) -> Self {
        Self { snapshot, watch: false, written: Written::default() }
    }
}

/// The text of a file that was read, for what is found wrong later: what is in the files that it names.
#[derive(Default)]
pub struct Written {
    name: String,
    text: String,
    /// By who names a file, as in "listener web", and which; `None`: its TLS as a whole.
    locations: HashMap<(String, Option<PathBuf>), Location>,
}

/// One thing that is wrong with a file that the configuration names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrongFile {
    /// Who names it: "listener web", "cluster app".
    pub owner: String,
    /// Which; `None`: it is not a file that is wrong, but how TLS is set up with it.
    pub file: Option<PathBuf>,
    /// What is wrong.
    pub message: String,
    /// What would be right, where that is known.
    pub hint: Option<String>,
}

impl Written {
    /// The same as errors of the configuration file, each where the file is named. A snapshot that no file says has no places: they are
    /// told without.
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
        report.into_errors(&self.name, &self.text).to_string()
    }
}

/// The vip that a description means: what a file would have under its name.
///
/// # Errors
/// Everything that is wrong with it, one a line. Without places: nobody sees the text around it.
pub fn parse_vip(name: &str, description: &str) -> Result<Vip, String> {
    // As a JSON string the name is one scalar of YAML, whatever it holds; indented, the description cannot leave its place.
    let name = serde_json::Value::from(name);
    let indented: String = description.lines().map(|line| format!("    {line}\n")).collect();
    let text = format!("vips:\n  {name}:\n{indented}");
    match parse("", &text, Generation(0)) {
        Ok(mut snapshot) => snapshot.vips.pop().ok_or_else(|| "this describes no vip".to_owned()),
        Err(errors) => {
            let line = |wrong: &Diagnostic| match &wrong.hint {
                Some(hint) => format!("{}; {hint}", wrong.message),
                None => wrong.message.clone(),
            };
            Err(errors.0.iter().map(line).collect::<Vec<_>>().join("\n"))
        }
    }
}

/// What `steelyard proxy --listen ADDRESS --to A,B` means: one listener that sends everything to one cluster, all else as in a file that says
/// no more than that.
pub fn proxy_snapshot(listen: SocketAddr, to: &[EndpointAddress], tcp: bool) -> Snapshot {
    let endpoint =
        |address: &EndpointAddress| Endpoint { address: address.clone(), weight: defaults::WEIGHT, host: None };
    let cluster = Cluster::new("proxy", to.iter().map(endpoint).collect());
    lower::one_listener("proxy", listen, tcp, cluster)
}

#[cfg(test)]
mod tests;
