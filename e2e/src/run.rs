//! Finds the scripts and plays them all, several at a time.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;

use crate::play::play;
use crate::script::Script;

/// A script file, by its path below the directory of scripts, without the suffix: `framing/cl_twice`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Named {
    /// Its name.
    pub name: String,
    /// Its path.
    pub path: PathBuf,
}

/// Every `*.http` file below `directory`, sorted by name.
pub fn find(directory: &Path) -> Result<Vec<Named>, String> {
    let mut found = Vec::new();
    let mut directories = vec![directory.to_owned()];
    while let Some(current) = directories.pop() {
        let place = |error: std::io::Error| format!("{}: {error}", current.display());
        for entry in fs::read_dir(&current).map_err(place)? {
            let path = entry.map_err(place)?.path();
            if path.is_dir() {
                directories.push(path);
            } else if path.extension().is_some_and(|suffix| suffix == "http") {
                let below = path.strip_prefix(directory).unwrap_or(&path).with_extension("");
                found.push(Named { name: below.to_string_lossy().into_owned(), path });
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Plays the scripts on a few threads and calls `report` for each as it ends: `None` means success. Returns how many failed.
pub fn run(scripts: &[Named], exe: &Path, mut report: impl FnMut(&Named, Option<&str>)) -> usize {
    // A script mostly waits for its balancer, so run more of them than there are CPUs. Each has its own balancer, so scripts do not affect
    // each other.
    let threads = std::thread::available_parallelism().map_or(2, usize::from) * 2;
    let next = AtomicUsize::new(0);
    let (sender, results) = channel();
    let mut failed = 0;
    std::thread::scope(|scope| {
        for _ in 0..threads {
            let (next, sender) = (&next, sender.clone());
            scope.spawn(move || {
                while let Some(script) = scripts.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let result = catch_unwind(AssertUnwindSafe(|| one(script, exe)));
                    let result = result.unwrap_or_else(|_| Err("the runner panicked".into()));
                    if sender.send((script, result.err())).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        for (script, error) in results {
            failed += usize::from(error.is_some());
            report(script, error.as_deref());
        }
    });
    failed
}

fn one(script: &Named, exe: &Path) -> Result<(), String> {
    let place = script.path.display();
    let text = fs::read_to_string(&script.path).map_err(|error| format!("{place}: {error}"))?;
    let parsed = Script::parse(&text).map_err(|error| format!("{place}:{error}"))?;
    play(&parsed, exe).map_err(|error| format!("{place}: {}\n{error}", parsed.title))
}
