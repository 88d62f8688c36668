//! `steelyard migrate`: reads what another load balancer is told, from files or from a cluster, and prints what becomes of it.
//!
//! What the objects mean is the job of the crate `controller`, which serves by the same tables.

mod ambassador;
pub(crate) mod compare;
mod difference;
mod draft;
mod envoy;
mod haproxy;
mod nginx;
mod objects;
mod pattern;
mod requests;
mod sample;
mod tree;

use std::io::Read as _;
use std::path::{Path, PathBuf};

use controller::ingress_nginx::{Report, Written, written};
use serde_json::Value;

use crate::cli::{IngressNginxArgs, MigrateCommand, MigrateTo};
use crate::exit::Exit;

/// The largest file. The objects of ten thousand Ingresses take about 20 MB.
const FILE_BYTES_MAX: u64 = 256 << 20;

/// Files of all folders together, and how deep these may be.
const FILES_MAX: usize = 100_000;
const DEPTH_MAX: usize = 32;

pub(crate) fn migrate(command: MigrateCommand) -> Exit {
    match command {
        MigrateCommand::IngressNginx(args) => ingress_nginx(&args),
        MigrateCommand::Compare(args) => compare::compare(&args),
        MigrateCommand::Nginx(args) => translated(nginx::translate(&args.file)),
        MigrateCommand::Haproxy(args) => translated(haproxy::translate(&args.file)),
        MigrateCommand::Envoy(args) => translated(envoy::translate(&args.file)),
        MigrateCommand::Ambassador(args) => translated(ambassador::translate(&args.paths)),
    }
}

/// Prints the translation of the file of another proxy.
fn translated(draft: Result<draft::Draft, String>) -> Exit {
    match draft {
        Ok(draft) => draft.print(),
        Err(why) => {
            eprintln!("steelyard: {}", admin::visible(&why));
            Exit::BadConfig
        }
    }
}

/// The largest file of another proxy.
const CONFIG_BYTES_MAX: u64 = 16 << 20;

/// The text of a file of another proxy.
fn text_of(path: &Path) -> Result<String, String> {
    let name = path.display();
    let told = |error: std::io::Error| format!("{name}: {error}");
    let size = std::fs::metadata(path).map_err(told)?.len();
    if size > CONFIG_BYTES_MAX {
        return Err(format!("{name} has {size} bytes; {CONFIG_BYTES_MAX} are the most"));
    }
    Ok(String::from_utf8_lossy(&std::fs::read(path).map_err(told)?).into_owned())
}

fn ingress_nginx(args: &IngressNginxArgs) -> Exit {
    let read = match args.paths.is_empty() {
        true => controller::read_nginx(args.kubeconfig.as_deref(), args.context.as_deref()).map(|seen| {
            seen.warnings.iter().for_each(|why| eprintln!("steelyard: {}", admin::visible(why)));
            seen.objects
        }),
        false => of_files(&args.paths),
    };
    let objects = match read {
        Ok(objects) => objects,
        Err(why) => {
            eprintln!("steelyard: {}", admin::visible(&why));
            return Exit::BadConfig;
        }
    };
    let report = Report::of(&objects, &args.class, args.compat.into());
    if report.score.ingresses == 0 {
        return no_ingress(args, &objects, &report);
    }
    if let Some(MigrateTo::GatewayApi) = args.to {
        return gateway_api(args, &objects);
    }
    let format = args.format.into();
    let page = report.page(format);
    // What is in an object may not steer a terminal.
    let page = page.lines().map(|line| admin::visible(line).to_string()).collect::<Vec<_>>().join("\n");
    match (crate::print_line(&page), report.is_good()) {
        (Exit::Good, false) => Exit::Failed,
        (exit, _) => exit,
    }
}

/// A report on nothing is no good news: most likely the wrong file or class was given.
fn no_ingress(args: &IngressNginxArgs, objects: &[Value], report: &Report) -> Exit {
    for note in &report.notes {
        eprintln!("steelyard: {}", admin::visible(note));
    }
    let others = objects.iter().filter(|object| object["kind"] == "Ingress").count();
    let class = &args.class;
    let what = match (others, args.paths.is_empty()) {
        (0, true) => "the cluster has no Ingress".to_owned(),
        (0, false) => format!(
            "no Ingress among {} objects: give the YAML or JSON of Ingresses, as kubectl get ingress --all-namespaces -o yaml prints it",
            objects.len()
        ),
        _ => format!(
            "none of {others} Ingresses is of the class {class}: name theirs by --class, or add its IngressClass"
        ),
    };
    eprintln!("steelyard: {}", admin::visible(&what));
    Exit::BadConfig
}

fn gateway_api(args: &IngressNginxArgs, objects: &[Value]) -> Exit {
    let gateway = (args.gateway.namespace.as_str(), args.gateway.name.as_str(), args.gateway_class.as_str());
    let Written { objects, lost, notes, leaves_out } = written(objects, &args.class, gateway, args.compat.into());
    let comment = |kind: &str, what: &String| format!("# {kind}: {}\n", what.replace(['\n', '\r'], " "));
    let mut page: String = lost.iter().map(|what| comment("Lost", what)).collect();
    page.extend(notes.iter().map(|what| comment("Note", what)));
    if leaves_out {
        eprint!("{}", admin::visible(&page));
        return crate::fail(
            "nothing is written: other routes of the same host would take the requests for what is left out",
        );
    }
    if let Some(name) = same_name(&objects) {
        return crate::fail(&format!("two of the objects would be {name}: rename one of the Ingresses"));
    }
    for object in &objects {
        match serde_saphyr::to_string(object) {
            Ok(text) => page.push_str(&format!("---\n{text}")),
            Err(error) => return crate::fail(&format!("cannot write an object: {error}")),
        }
    }
    match crate::print_line(&admin::visible(page.trim_end())) {
        Exit::Good if !lost.is_empty() => Exit::Failed,
        exit => exit,
    }
}

/// The kind and name that two objects share. The later one would replace the earlier one.
fn same_name(objects: &[Value]) -> Option<String> {
    let mut names = std::collections::BTreeSet::new();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let name = |object: &Value| {
        let meta = &object["metadata"];
        format!("{} {}/{}", text(&object["kind"]), text(&meta["namespace"]), text(&meta["name"]))
    };
    objects.iter().map(name).find(|name| !names.insert(name.clone()))
}

fn of_files(paths: &[PathBuf]) -> Result<Vec<Value>, String> {
    let mut objects = Vec::new();
    let mut files = Vec::new();
    for path in paths {
        if path.as_os_str() == "-" {
            let mut text = String::new();
            let read = std::io::stdin().take(FILE_BYTES_MAX + 1).read_to_string(&mut text);
            read.map_err(|error| format!("standard input: {error}"))?;
            objects::add(&text, "standard input", &mut objects)?;
        } else {
            find(path, 0, &mut files)?;
        }
    }
    files.sort();
    for file in files {
        let name = file.display().to_string();
        let size = std::fs::metadata(&file).map_err(|error| format!("{name}: {error}"))?.len();
        if size > FILE_BYTES_MAX {
            return Err(format!("{name} has {size} bytes; {FILE_BYTES_MAX} are the most"));
        }
        let text = std::fs::read_to_string(&file).map_err(|error| format!("{name}: {error}"))?;
        objects::add(&text, &name, &mut objects)?;
    }
    Ok(objects)
}

/// The files at a path: itself, or those of a folder that end like YAML or JSON.
fn find(path: &Path, depth: usize, files: &mut Vec<PathBuf>) -> Result<(), String> {
    let told = |error: std::io::Error| format!("{}: {error}", path.display());
    if !std::fs::metadata(path).map_err(told)?.is_dir() {
        files.push(path.to_owned());
        return Ok(());
    }
    for entry in std::fs::read_dir(path).map_err(told)? {
        let entry = entry.map_err(told)?;
        let (inner, kind) = (entry.path(), entry.file_type().map_err(told)?);
        let is_text = inner.extension().is_some_and(|end| ["yaml", "yml", "json"].iter().any(|known| end == *known));
        // A link may lead back to where it is.
        if kind.is_dir() && depth < DEPTH_MAX {
            find(&inner, depth + 1, files)?;
        } else if kind.is_file() && is_text {
            files.push(inner);
        }
        if files.len() > FILES_MAX {
            return Err(format!("{}: more than {FILES_MAX} files", path.display()));
        }
    }
    Ok(())
}
