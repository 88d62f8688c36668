//! Builds the program of a contender from its sources, by a script that comes with its file.
//!
//! The script `build.sh` is in a folder beside the contenders' files, with whatever else it needs. It runs in a directory with copies of these
//! files, and leaves what is to be kept in the directory `$OUT`. It knows `$VERSION`, and `$SOURCE`: a directory or an archive that the user
//! gives in the place of the public release, or nothing.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::process::last_lines;
use crate::{host, shipped};

/// The script in a folder.
const SCRIPT: &str = "build.sh";

/// The most files of a folder, and the size of the largest.
const FILES_MAX: usize = 50;
const FILE_BYTES_MAX: u64 = 1 << 20;

/// A program that a script builds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Build {
    /// The name of the folder with the script.
    pub folder: String,
    /// The version that is built.
    pub version: String,
    /// The program's path in what the script leaves.
    pub program: String,
    /// Programs that the script runs.
    pub tools: Vec<String>,
    /// Debian packages that the script needs, those of `tools` among them.
    pub packages: Vec<String>,
    /// The directory of the contender's file; `None` for one that comes with this program.
    pub beside: Option<PathBuf>,
}

impl Build {
    /// Its program, once it is built.
    #[must_use]
    pub fn program_in(&self, cache: &Path) -> PathBuf {
        self.directory(cache).join(&self.program)
    }

    fn directory(&self, cache: &Path) -> PathBuf {
        cache.join(format!("{}-{}", self.folder, self.version))
    }

    /// The tools that this host lacks.
    pub(crate) fn lacks(&self) -> Vec<&str> {
        self.tools.iter().map(String::as_str).filter(|tool| host::find_program(tool).is_none()).collect()
    }

    /// Builds it into `cache`, from `source` if there is one. This takes minutes.
    ///
    /// # Errors
    /// If a tool is missing, a file cannot be written, or the script fails, with the end of what it printed.
    pub fn run(&self, source: Option<&Path>, cache: &Path) -> io::Result<()> {
        let lacks = self.lacks();
        if !lacks.is_empty() {
            return Err(io::Error::other(format!("{} is missing, and the build needs it", lacks.join(", "))));
        }
        let source = source.map(fs::canonicalize).transpose()?;
        let directory = self.directory(cache);
        // What an interrupted build left.
        let partial = Partial(cache.join(format!("{}-{}.new", self.folder, self.version)));
        let _ = fs::remove_dir_all(&partial.0);
        let (work, out) = (partial.0.join("work"), partial.0.join("out"));
        fs::create_dir_all(&out)?;
        fs::create_dir(&work)?;
        for (name, text) in self.files()? {
            fs::write(work.join(name), text)?;
        }
        let log = partial.0.join("build.log");
        let to = File::create(&log)?;
        let mut script = Command::new("/bin/sh");
        script.args(["-eu", SCRIPT]).current_dir(&work).stdin(Stdio::null()).stderr(to.try_clone()?).stdout(to);
        script.env("VERSION", &self.version).env("OUT", &out).env_remove("SOURCE");
        script.envs(source.map(|source| ("SOURCE", source)));
        let status = script.status()?;
        if !status.success() {
            let said = last_lines(&log).join("\n  ");
            return Err(io::Error::other(format!(
                "the build failed ({status}); the end of what it printed:\n  {said}"
            )));
        }
        if !out.join(&self.program).is_file() {
            return Err(io::Error::other(format!("the build has not left {} in $OUT", self.program)));
        }
        let _ = fs::remove_dir_all(&directory);
        fs::rename(&out, &directory)
    }

    fn files(&self) -> io::Result<Vec<(String, String)>> {
        let own = self.beside.as_ref().map(|beside| beside.join(&self.folder)).filter(|folder| folder.is_dir());
        let files = match own {
            Some(folder) => files_in(&folder)?,
            None => shipped(&self.folder),
        };
        if files.iter().any(|(name, _)| name == SCRIPT) {
            return Ok(files);
        }
        Err(io::Error::new(
            io::ErrorKind::NotFound,
            format!("there is no {}/{SCRIPT} beside the contender", self.folder),
        ))
    }
}

fn shipped(folder: &str) -> Vec<(String, String)> {
    let files = shipped::BUILDS.iter().filter(|(known, _, _)| *known == folder);
    files.map(|(_, name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
}

fn files_in(folder: &Path) -> io::Result<Vec<(String, String)>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)?.take(FILES_MAX) {
        let path = entry?.path();
        if path.is_file() && fs::metadata(&path)?.len() <= FILE_BYTES_MAX {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            files.push((name, fs::read_to_string(&path)?));
        }
    }
    Ok(files)
}

/// The directory of a build under way, which does not outlive it.
struct Partial(PathBuf);

impl Drop for Partial {
    fn drop(&mut self) {
        // What is left is removed by the next build.
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str, script: &str) -> (Self, Build) {
            let directory = std::env::temp_dir().join(format!("steelyard-build-{name}-{}", std::process::id()));
            fs::create_dir_all(directory.join("own")).unwrap();
            fs::write(directory.join("own/build.sh"), script).unwrap();
            fs::write(directory.join("own/main.c"), "int main;").unwrap();
            let build = Build {
                folder: "own".into(),
                version: "1.2".into(),
                program: "bin/own".into(),
                tools: vec!["sh".into()],
                packages: Vec::new(),
                beside: Some(directory.clone()),
            };
            (Self(directory), build)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    #[test]
    fn what_the_script_leaves_is_kept_and_nothing_else() {
        let script = "mkdir $OUT/bin; cp main.c $OUT/bin/own; echo $VERSION ${SOURCE:-released} >> $OUT/bin/own";
        let (scratch, build) = Scratch::new("good", script);
        let cache = scratch.0.join("cache");
        build.run(None, &cache).unwrap();
        let program = build.program_in(&cache);
        assert_eq!(program, cache.join("own-1.2/bin/own"));
        assert_eq!(fs::read_to_string(&program).unwrap(), "int main;1.2 released\n");
        // Again, from sources of the user.
        build.run(Some(&scratch.0), &cache).unwrap();
        let source = format!("int main;1.2 {}\n", scratch.0.canonicalize().unwrap().display());
        assert_eq!(fs::read_to_string(&program).unwrap(), source);
        assert_eq!(fs::read_dir(&cache).unwrap().count(), 1);
    }

    #[test]
    fn a_build_that_fails_says_why_and_leaves_nothing() {
        let check = |name: &str, script: &str, change: fn(&mut Build), expect: &str| {
            let (scratch, mut build) = Scratch::new(name, script);
            change(&mut build);
            let cache = scratch.0.join("cache");
            let error = build.run(None, &cache).unwrap_err().to_string();
            assert!(error.contains(expect), "{error}");
            assert_eq!(fs::read_dir(&cache).map_or(0, Iterator::count), 0, "{name}");
        };
        check(
            "fails",
            "echo no such header >&2; exit 3",
            |_| (),
            "(exit status: 3); the end of what it printed:\n  no such",
        );
        check("empty", "true", |_| (), "has not left bin/own in $OUT");
        check("tool", "true", |build| build.tools = vec!["no-such-tool".into()], "no-such-tool is missing");
        check("script", "true", |build| build.folder = "another".into(), "there is no another/build.sh");
    }

    #[test]
    fn every_shipped_build_has_its_script() {
        let recipes = crate::contender::all(None).unwrap();
        let builds: Vec<Build> = recipes.into_iter().filter_map(|recipe| recipe.build).collect();
        assert!(builds.len() >= 2);
        for build in builds {
            let files = build.files().unwrap();
            let script = files.iter().find(|(name, _)| name == SCRIPT).unwrap();
            assert!(script.1.contains("$OUT") && script.1.contains("$VERSION"), "{}", build.folder);
        }
    }
}
