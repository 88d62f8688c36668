//! The report of a migration: every Ingress with a verdict for each of its annotations, the ConfigMap and the flags, and what Ingresses do to
//! each other. It is pure: objects go in, and a page comes out.

mod flags;
mod hosts;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use serde::Serialize;
use serde_json::Value;

use super::catalogue::{KEYS, Key, Verdict, find};
use super::header_map::{HeaderMap, HeaderMaps};
use super::options::{FLAGS, Globals, OPTIONS};
use super::plan::{Compat, Finding, Known, Plan, With};
use super::prefix::Prefix;
use super::{CONTROLLER, value};
use flags::Flags;
pub(super) use hosts::shown;
use hosts::{close, of_hosts};

/// Objects of one report.
pub const OBJECTS_MAX: usize = 200_000;

/// Ingresses that a line names.
const NAMED_MAX: usize = 5;

/// The form of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// For a terminal.
    Text,
    /// Markdown.
    Markdown,
    /// JSON, stable and versioned.
    Json,
    /// A page on its own.
    Html,
}

/// What became of an Ingress as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// Clients see the same.
    Served,
    /// They may see a difference.
    Differs,
    /// An annotation of it is not served, and its routes are.
    Refused,
    /// Its routes answer 403, because something that keeps somebody out cannot be served.
    Closed,
    /// ingress-nginx does not serve it, or serves an earlier state, and Steelyard does not either.
    Dropped,
}

impl Outcome {
    const ALL: [Self; 5] = [Self::Served, Self::Differs, Self::Refused, Self::Closed, Self::Dropped];

    fn told(self) -> &'static str {
        match self {
            Self::Served => "served",
            Self::Differs => "served with a difference",
            Self::Refused => "served without an annotation",
            Self::Closed => "closed (403)",
            Self::Dropped => "not served",
        }
    }
}

/// One Ingress.
#[derive(Clone, Debug, Serialize)]
pub struct Reported {
    /// `NAMESPACE/NAME`.
    pub name: String,
    /// As a whole.
    pub outcome: Outcome,
    /// Why it is closed or not served.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Each of its annotations.
    pub annotations: Vec<Finding>,
}

/// How many Ingresses have which outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Score {
    /// All Ingresses of the class.
    pub ingresses: usize,
    /// Clients see the same.
    pub served: usize,
    /// Clients may see a difference.
    pub differs: usize,
    /// They are served without one of their annotations.
    pub refused: usize,
    /// Their routes answer 403.
    pub closed: usize,
    /// They are not served.
    pub dropped: usize,
    /// Keys of the ConfigMap and flags that are refused.
    pub options: usize,
    /// Those that are served with all of their annotations, among all Ingresses and the options that are refused, in percent, rounded down. 0 if
    /// there are no Ingresses.
    pub percent: usize,
}

/// The report.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Of this form.
    version: u32,
    /// The figures.
    pub score: Score,
    /// All Ingresses of the class, by name.
    pub ingresses: Vec<Reported>,
    /// The keys of the ConfigMap.
    pub config_map: Vec<Finding>,
    /// The flags of the controller.
    pub flags: Vec<Finding>,
    /// What else is to be known, such as what Ingresses of one host do to each other.
    pub notes: Vec<String>,
}

/// What a report needs of an Ingress.
pub(super) struct Read<'o> {
    pub(super) name: String,
    created: &'o str,
    /// Hosts, each with its paths and their types.
    pub(super) rules: Vec<(String, Vec<(&'o str, &'o str)>)>,
    /// The paths that cannot be matched, each with its host and the text that the paths begin with which it can match.
    pub(super) unmatched: Vec<(String, &'o str, String)>,
    pub(super) plan: Plan,
    pub(super) object: &'o Value,
}

/// The Ingresses of a class, in the order in which ingress-nginx takes them, with what the ConfigMap and the flags say. Adds notes about what is not
/// known.
pub(super) fn all<'o>(
    objects: &'o [Value],
    class: &str,
    compat: Compat,
    notes: &mut Vec<String>,
) -> (Vec<Read<'o>>, Globals, Vec<Finding>) {
    let of_kind = |kind: &'static str| objects.iter().filter(move |object| object["kind"] == kind);
    let flags = Flags::of(objects);
    if !flags.are_known() {
        notes.push("the Deployment of ingress-nginx is not among the objects: its flags are not known".to_owned());
    }
    let prefix = flags.prefix(notes);
    let wanted = flags.text("configmap").and_then(|name| name.rsplit('/').next());
    let config_maps: Vec<&Value> = of_kind("ConfigMap").filter(|map| is_config(map, wanted)).collect();
    match config_maps.as_slice() {
        [] => {
            notes.push("the ConfigMap of ingress-nginx is not among the objects: its defaults are assumed".to_owned())
        }
        [_] => {}
        [first, ..] => {
            notes.push(format!("several ConfigMaps may be that of ingress-nginx; {} is taken", name_of(first)));
        }
    }
    let data = config_maps.first().and_then(|map| map["data"].as_object()).into_iter().flatten();
    let maps = |namespace: &str, name: &str| header_map(objects, namespace, name);
    let maps = HeaderMaps(&maps);
    let globals = Globals::of(data.filter_map(|(key, value)| Some((key.as_str(), value.as_str()?))));
    let mut known = Known::default();
    let ports = ["http-port", "https-port"].into_iter().filter_map(|name| flags.text(name)?.parse().ok());
    let globals = globals.with_ports(&ports.collect::<Vec<u16>>()).with_header_maps(maps, &mut known);
    if let Some(why) = &globals.closed {
        notes.push(format!("all routes are closed: {why}"));
    }
    let ours = || of_kind("IngressClass").filter(|class| class["spec"]["controller"] == CONTROLLER);
    let classes: BTreeSet<&str> = ours().filter_map(|class| class["metadata"]["name"].as_str()).collect();
    let has_default = ours().any(|class| class["metadata"]["annotations"][DEFAULT_CLASS] == "true");
    let watches_all = flags.is_on("watch-ingress-without-class");
    let passes_tls = !flags.are_known() || flags.is_on("enable-ssl-passthrough");
    let mut all = Vec::new();
    let mut classless = Vec::new();
    for ingress in of_kind("Ingress") {
        let is_ours = class_of_ingress(ingress).map(|name| name == class || classes.contains(name));
        if is_ours.unwrap_or(has_default || watches_all) {
            let with = With { globals: &globals, compat, maps, passes_tls };
            let mut read = read(ingress, (&prefix, flags.are_known()), with, &mut known);
            if is_ours.is_none() && !has_default {
                read.plan.dropped.get_or_insert(CLASSLESS.to_owned());
            }
            all.push(read);
        } else if is_ours.is_none() {
            classless.push(name_of(ingress));
        }
    }
    if !flags.are_known() {
        notes.extend(others_prefixes(of_kind("Ingress"), &prefix));
    }
    if !classless.is_empty() {
        let names: Vec<&str> = classless.iter().map(String::as_str).collect();
        notes.push(format!(
            "left out, because they name no class and no IngressClass of ingress-nginx among the objects is the default one: {}",
            some(&names)
        ));
    }
    all.sort_by(|a, b| (a.created, &b.name).cmp(&(b.created, &a.name)));
    close(&mut all);
    (all, globals, flags.findings())
}

/// What the names of annotations begin with, by the flags of ingress-nginx among these objects.
pub fn prefix_of(objects: &[Value]) -> Prefix {
    Flags::of(objects).prefix(&mut Vec::new())
}

/// The annotation of a default IngressClass.
const DEFAULT_CLASS: &str = "ingressclass.kubernetes.io/is-default-class";

/// Why an Ingress without a class is not served where ingress-nginx serves it by a flag.
const CLASSLESS: &str = "it names no class: write ingressClassName, or mark the IngressClass as the default one; ingress-nginx serves it \
    because of --watch-ingress-without-class";

/// The class that an Ingress names.
fn class_of_ingress(ingress: &Value) -> Option<&str> {
    let of_spec = ingress["spec"]["ingressClassName"].as_str();
    let of_annotation = ingress["metadata"]["annotations"]["kubernetes.io/ingress.class"].as_str();
    of_spec.or(of_annotation).filter(|class| !class.is_empty())
}

impl Read<'_> {
    /// The hosts of its rules; `""` stands for every host.
    pub(super) fn hosts(&self) -> impl Iterator<Item = &str> {
        let without = self.rules.is_empty().then_some("");
        self.rules.iter().map(|(host, _)| host.as_str()).chain(without)
    }
}

impl Report {
    /// Reports on these objects: Ingresses, IngressClasses, ConfigMaps, and the Deployment or DaemonSet of ingress-nginx. `class` is the class of
    /// the Ingresses; others are left out.
    pub fn of(objects: &[Value], class: &str, compat: Compat) -> Self {
        let mut notes = Vec::new();
        let (read, globals, flags) = all(objects, class, compat, &mut notes);
        notes.extend(of_hosts(&read));
        let mut ingresses: Vec<Reported> = read.into_iter().map(reported).collect();
        ingresses.sort_by(|a, b| a.name.cmp(&b.name));
        let options =
            globals.findings.iter().chain(&flags).filter(|finding| finding.verdict == Verdict::Refused).count();
        Self { version: 1, score: score(&ingresses, options), ingresses, config_map: globals.findings, flags, notes }
    }

    /// Whether everything is served.
    pub fn is_good(&self) -> bool {
        let Score { ingresses, served, differs, options, .. } = self.score;
        ingresses > 0 && ingresses == served + differs && options == 0
    }

    /// The page.
    pub fn page(&self, format: Format) -> String {
        match format {
            Format::Text => self.text(),
            Format::Markdown => self.markdown(),
            Format::Json => serde_json::to_string_pretty(self).unwrap_or_default() + "\n",
            Format::Html => self.html(),
        }
    }

    fn summary(&self) -> String {
        let Score { ingresses, served, differs, refused, closed, dropped, options, percent } = self.score;
        let counts = [served, differs, refused, closed, dropped];
        let parts = Outcome::ALL.iter().zip(counts).filter(|(_, count)| *count > 0);
        let parts: Vec<String> = parts.map(|(outcome, count)| format!("{count} {}", outcome.told())).collect();
        let options = match options {
            0 => String::new(),
            1 => "; 1 key of the ConfigMap or flag refused".to_owned(),
            _ => format!("; {options} keys of the ConfigMap and flags refused"),
        };
        format!(
            "{ingresses} Ingresses: {}{options}; score {percent} %",
            if parts.is_empty() { "none".to_owned() } else { parts.join(", ") }
        )
    }

    /// The annotations that are used, each with its verdict and the Ingresses that have it, the worst first.
    fn groups(&self) -> Vec<(&Finding, Vec<&str>)> {
        let mut groups: BTreeMap<_, (&Finding, Vec<&str>)> = BTreeMap::new();
        for ingress in &self.ingresses {
            for finding in &ingress.annotations {
                let key = (std::cmp::Reverse(finding.verdict), finding.key.as_str(), finding.says.as_str());
                groups.entry(key).or_insert_with(|| (finding, Vec::new())).1.push(&ingress.name);
            }
        }
        groups.into_values().collect()
    }

    fn text(&self) -> String {
        let mut page = format!("{}\n", self.summary());
        // Writing to a String cannot fail.
        for ingress in &self.ingresses {
            let why = ingress.why.as_ref().map_or_else(String::new, |why| format!(": {why}"));
            let _ = writeln!(page, "\n{}: {}{why}", ingress.name, ingress.outcome.told());
            for finding in &ingress.annotations {
                let _ = writeln!(page, "  {}", line(finding));
            }
        }
        for (title, findings) in [("ConfigMap", &self.config_map), ("Flags", &self.flags)] {
            if !findings.is_empty() {
                let _ = writeln!(page, "\n{title}");
                for finding in findings {
                    let _ = writeln!(page, "  {}", line(finding));
                }
            }
        }
        if !self.notes.is_empty() {
            let _ = writeln!(page, "\nNotes");
            for note in &self.notes {
                let _ = writeln!(page, "  {note}");
            }
        }
        page
    }

    fn markdown(&self) -> String {
        let mut page = format!("# Migration from ingress-nginx\n\n{}\n", self.summary());
        let _ = write!(page, "\n## Annotations\n\n| annotation | verdict | Ingresses | what |\n|---|---|---|---|\n");
        for (finding, names) in self.groups() {
            let _ = writeln!(
                page,
                "| {} | {} | {} | {} |",
                plain(&finding.key),
                finding.verdict.told(),
                plain(&some(&names)),
                plain(&finding.says)
            );
        }
        let _ = write!(page, "\n## Ingresses\n\n| Ingress | outcome | why |\n|---|---|---|\n");
        for ingress in &self.ingresses {
            let _ = writeln!(
                page,
                "| {} | {} | {} |",
                plain(&ingress.name),
                ingress.outcome.told(),
                plain(ingress.why.as_deref().unwrap_or_default())
            );
        }
        for (title, findings) in [("ConfigMap", &self.config_map), ("Flags", &self.flags)] {
            if findings.is_empty() {
                continue;
            }
            let _ = write!(page, "\n## {title}\n\n| key | value | verdict | what |\n|---|---|---|---|\n");
            for finding in findings {
                let Finding { key, value, verdict, says } = finding;
                let _ = writeln!(page, "| {} | {} | {} | {} |", plain(key), plain(value), verdict.told(), plain(says));
            }
        }
        if !self.notes.is_empty() {
            let _ = writeln!(page, "\n## Notes\n");
            for note in &self.notes {
                let _ = writeln!(page, "- {}", plain(note));
            }
        }
        page
    }

    fn html(&self) -> String {
        const STYLE: &str = "body{font:15px/1.4 sans-serif;margin:2em;max-width:80em}table{border-collapse:collapse;margin:1em 0}\
            td,th{border:1px solid #ccc;padding:.3em .6em;text-align:left;vertical-align:top}.refused,.closed,.dropped{background:#fdd}\
            .differs{background:#ffd}";
        let mut page = format!(
            "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>Migration from ingress-nginx</title>\n<style>{STYLE}</style>\n\
             <h1>Migration from ingress-nginx</h1>\n<p>{}</p>\n",
            escaped(&self.summary())
        );
        let row = |page: &mut String, class: &str, cells: &[&str]| {
            let cells: String = cells.iter().map(|cell| format!("<td>{}</td>", escaped(cell))).collect();
            let _ = writeln!(page, "<tr class=\"{class}\">{cells}</tr>");
        };
        page.push_str("<h2>Ingresses</h2>\n<table>\n<tr><th>Ingress</th><th>annotation</th><th>value</th><th>verdict</th><th>what</th></tr>\n");
        for ingress in &self.ingresses {
            row(
                &mut page,
                class(ingress.outcome),
                &[&ingress.name, "", "", ingress.outcome.told(), ingress.why.as_deref().unwrap_or_default()],
            );
            for Finding { key, value, verdict, says } in &ingress.annotations {
                row(&mut page, class_of(*verdict), &["", key, value, verdict.told(), says]);
            }
        }
        page.push_str("</table>\n");
        for (title, findings) in [("ConfigMap", &self.config_map), ("Flags", &self.flags)] {
            if findings.is_empty() {
                continue;
            }
            let _ = writeln!(
                page,
                "<h2>{title}</h2>\n<table>\n<tr><th>key</th><th>value</th><th>verdict</th><th>what</th></tr>"
            );
            for Finding { key, value, verdict, says } in findings {
                row(&mut page, class_of(*verdict), &[key, value, verdict.told(), says]);
            }
            page.push_str("</table>\n");
        }
        if !self.notes.is_empty() {
            let notes: String = self.notes.iter().map(|note| format!("<li>{}</li>\n", escaped(note))).collect();
            let _ = writeln!(page, "<h2>Notes</h2>\n<ul>\n{notes}</ul>");
        }
        page.push_str("</html>\n");
        page
    }
}

fn class(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Served => "served",
        Outcome::Differs => "differs",
        Outcome::Refused => "refused",
        Outcome::Closed => "closed",
        Outcome::Dropped => "dropped",
    }
}

fn class_of(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Refused => "refused",
        Verdict::Differs => "differs",
        Verdict::Served | Verdict::NoEffect => "served",
    }
}

/// The table of all annotations, in Markdown, for the documentation.
pub fn table(tests: impl Fn(&Key) -> String) -> String {
    let mut page = "| annotation | verdict | what | tests |\n|---|---|---|---|\n".to_owned();
    for key in KEYS {
        let closes = if key.security && key.verdict == Verdict::Refused { "; its routes are closed" } else { "" };
        let _ =
            writeln!(page, "| `{}` | {} | {}{closes} | {} |", key.name, key.verdict.told(), cell(key.says), tests(key));
    }
    page.push_str("\n| key of the ConfigMap | verdict | what |\n|---|---|---|\n");
    for opt in OPTIONS {
        let closes = if opt.security && opt.verdict == Verdict::Refused { "; all routes are closed" } else { "" };
        let _ = writeln!(page, "| `{}` | {} | {}{closes} |", opt.name, opt.verdict.told(), cell(opt.says));
    }
    page.push_str("\n| flag | verdict | what |\n|---|---|---|\n");
    for opt in FLAGS {
        let _ = writeln!(page, "| `--{}` | {} | {} |", opt.name, opt.verdict.told(), cell(opt.says));
    }
    page
}

fn line(finding: &Finding) -> String {
    let Finding { key, value, verdict, says } = finding;
    format!("{key} = {value}: {}: {says}", verdict.told())
}

/// The first of these names.
fn some(names: &[&str]) -> String {
    let shown: Vec<&str> = names.iter().take(NAMED_MAX).copied().collect();
    let more = names.len() - shown.len();
    if more > 0 { format!("{} and {more} more", shown.join(", ")) } else { shown.join(", ") }
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('<', "&lt;")
}

/// A text with words of others for Markdown: none of them becomes a link, an image or a row.
fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '\\' | '|' | '[' | ']' | '*' | '_' | '~' | '#' => plain.extend(['\\', letter]),
            '<' => plain.push_str("&lt;"),
            '\n' | '\r' | '\t' => plain.push(' '),
            letter => plain.push(letter),
        }
    }
    plain
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn name_of(object: &Value) -> String {
    let part = |name: &str| {
        value::cut(object["metadata"][name].as_str().unwrap_or(if name == "namespace" { "default" } else { "" }))
    };
    format!("{}/{}", part("namespace"), part("name"))
}

/// Whether a ConfigMap is that of ingress-nginx: the one that the flags name, or one with the name that its chart or manifest gives it.
fn is_config(map: &Value, wanted: Option<&str>) -> bool {
    let name = map["metadata"]["name"].as_str().unwrap_or_default();
    match wanted.filter(|wanted| !wanted.contains('$')) {
        Some(wanted) => name == wanted,
        None => name.ends_with("ingress-nginx-controller") || name == "nginx-configuration",
    }
}

/// The headers of the ConfigMap with this name.
fn header_map(objects: &[Value], namespace: &str, name: &str) -> Result<HeaderMap, String> {
    let is_it = |map: &&Value| {
        let of = map["metadata"]["namespace"].as_str().unwrap_or("default");
        map["kind"] == "ConfigMap" && map["metadata"]["name"] == name && of == namespace
    };
    let Some(map) = objects.iter().find(is_it) else {
        return Err(format!("the ConfigMap {namespace}/{name} is not among the objects"));
    };
    let data = map["data"].as_object().into_iter().flatten();
    let headers = HeaderMap::of(data.filter_map(|(key, value)| Some((key.as_str(), value.as_str()?))));
    headers.map_err(|why| format!("the ConfigMap {namespace}/{name}: {why}"))
}

/// Reads an Ingress. Whether the prefix of its annotations is known decides what those with another one are worth.
fn read<'o>(ingress: &'o Value, (prefix, is_known): (&Prefix, bool), with: With<'_>, known: &mut Known) -> Read<'o> {
    let annotations = ingress["metadata"]["annotations"].as_object();
    let ours = annotations.into_iter().flatten();
    let ours = ours.filter_map(|(key, value)| Some((prefix.name_of(key)?, value.as_str()?)));
    let namespace = ingress["metadata"]["namespace"].as_str().unwrap_or("default");
    let rules = ingress["spec"]["rules"].as_array().into_iter().flatten().map(|rule| {
        let host = rule["host"].as_str().unwrap_or_default().to_ascii_lowercase();
        let paths = rule["http"]["paths"].as_array().into_iter().flatten();
        let path =
            |path: &'o Value| (path["path"].as_str().unwrap_or("/"), path["pathType"].as_str().unwrap_or("Prefix"));
        (host, paths.map(path).collect())
    });
    let rules: Vec<(String, Vec<(&str, &str)>)> = rules.collect();
    let paths: Vec<&str> = rules.iter().flat_map(|(_, paths)| paths.iter().map(|(path, _)| *path)).collect();
    let mut plan = Plan::of(ours, namespace, &paths, with, known);
    for (key, value) in annotations.into_iter().flatten() {
        let name = prefix.name_of(key).unwrap_or(key);
        if !value.is_string() && !value.is_null() {
            let why = "the API server takes text alone and does not accept the Ingress: write the value in quotes";
            plan.findings.push(Finding::new(name, &value.to_string(), Verdict::Refused, why.to_owned()));
            plan.dropped.get_or_insert(format!("the annotation {} is no text: {why}", value::cut(name)));
        } else if let Some(key_of_nginx) =
            other_prefix(key, prefix).filter(|_| !is_known).and_then(|(_, name)| find(name))
        {
            // Nobody knows whether it is read. If it keeps somebody out and is, the routes would be open without it.
            let (verdict, why) = match key_of_nginx.security {
                true => (
                    Verdict::Refused,
                    "it looks like one of ingress-nginx that keeps somebody out, with the prefix of --annotations-prefix, and is not read: add the \
                     Deployment of ingress-nginx to the objects, which says whether it counts",
                ),
                false => (
                    Verdict::NoEffect,
                    "it is not read, unless the Deployment of ingress-nginx has its prefix as --annotations-prefix",
                ),
            };
            plan.findings.push(Finding::new(key, value.as_str().unwrap_or_default(), verdict, why.to_owned()));
        } else if prefix.name_of(key).is_none() && is_of_others(key) {
            let why = "it is for another controller; ingress-nginx does not read it either".to_owned();
            plan.findings.push(Finding::new(key, value.as_str().unwrap_or_default(), Verdict::NoEffect, why));
        }
    }
    Read {
        unmatched: Vec::new(),
        name: name_of(ingress),
        created: ingress["metadata"]["creationTimestamp"].as_str().unwrap_or_default(),
        rules,
        plan,
        object: ingress,
    }
}

/// Prefixes of other ingress controllers.
const OTHERS: [&str; 9] = [
    "nginx.org",
    "nginx.com",
    "haproxy.org",
    "traefik.io",
    "konghq.com",
    "getambassador.io",
    "alb.ingress.kubernetes.io",
    "haproxy.ingress.kubernetes.io",
    "traefik.ingress.kubernetes.io",
];

/// Whether the prefix of an annotation is that of a certain other ingress controller.
fn is_known_other(prefix: &str) -> bool {
    OTHERS.iter().any(|known| prefix.ends_with(known))
}

/// Whether an annotation is one of another ingress controller, so that somebody may rely on it.
fn is_of_others(annotation: &str) -> bool {
    let prefix = annotation.split_once('/').map_or("", |(prefix, _)| prefix);
    prefix.ends_with("ingress.kubernetes.io") || is_known_other(prefix)
}

/// The prefix and the name of an annotation that ingress-nginx would read if a flag named the prefix. `ingress.kubernetes.io` was the default
/// of early versions, and is the flag's value where nobody has rewritten the annotations since.
fn other_prefix<'k>(annotation: &'k str, ours: &Prefix) -> Option<(&'k str, &'k str)> {
    let (prefix, name) = annotation.split_once('/')?;
    let is_other = ours.name_of(annotation).is_none() && !is_known_other(prefix) && find(name).is_some();
    is_other.then_some((prefix, name))
}

/// Prefixes that are read only if a flag says so, and that annotations have which ingress-nginx knows.
fn others_prefixes<'o>(ingresses: impl Iterator<Item = &'o Value>, ours: &Prefix) -> Option<String> {
    let annotations = ingresses.filter_map(|ingress| ingress["metadata"]["annotations"].as_object()).flatten();
    let prefixes: BTreeSet<&str> =
        annotations.filter_map(|(key, _)| other_prefix(key, ours)).map(|(prefix, _)| prefix).collect();
    let shown: Vec<&str> = prefixes.into_iter().collect();
    let told = || {
        format!(
            "annotations with these prefixes look like those of ingress-nginx, and are not read: {}. If it has --annotations-prefix, add its \
             Deployment to the objects",
            value::cut(&some(&shown))
        )
    };
    (!shown.is_empty()).then(told)
}

fn reported(read: Read<'_>) -> Reported {
    let Read { name, plan, .. } = read;
    let unavailable = plan.unavailable.map(|why| format!("its requests get 503, as with ingress-nginx: {why}"));
    let (outcome, why) = match (plan.dropped, plan.closed, unavailable) {
        (Some(why), ..) => (Outcome::Dropped, Some(why)),
        (None, Some(why), _) => (Outcome::Closed, Some(why)),
        (None, None, Some(why)) => (Outcome::Dropped, Some(why)),
        (None, None, None) => {
            let has = |verdict: Verdict| plan.findings.iter().any(|finding| finding.verdict == verdict);
            let outcome = match (has(Verdict::Refused), has(Verdict::Differs)) {
                (true, _) => Outcome::Refused,
                (false, true) => Outcome::Differs,
                (false, false) => Outcome::Served,
            };
            (outcome, None)
        }
    };
    Reported { name, outcome, why, annotations: plan.findings }
}

fn score(ingresses: &[Reported], options: usize) -> Score {
    let count = |outcome: Outcome| ingresses.iter().filter(|ingress| ingress.outcome == outcome).count();
    let (all, served, differs) = (ingresses.len(), count(Outcome::Served), count(Outcome::Differs));
    Score {
        ingresses: all,
        served,
        differs,
        refused: count(Outcome::Refused),
        closed: count(Outcome::Closed),
        dropped: count(Outcome::Dropped),
        options,
        percent: ((served + differs) * 100).checked_div(all + options).unwrap_or(0),
    }
}
