//! A process of a run. It runs in its namespace, on its CPUs and in its account, writes its output to a file, and is killed with us.

use std::fs::{self, File};
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};

use tokio::process::{Child, ChildStderr, Command};

use crate::cgroup::Group;
use crate::placement::list;
use crate::record::Failure;
use crate::topology;

/// How many last lines of a process's output are kept with a failure.
const LINES_KEPT: usize = 12;

/// How many characters of each line are kept.
const LINE_CHARACTERS_MAX: usize = 400;

/// How many bytes at the end of a log are read.
const TAIL_BYTES: u64 = 16 * 1024;

/// How to start a process.
#[derive(Clone, Copy, Debug)]
pub struct Spec<'a> {
    /// Its name, which its log has too.
    pub name: &'a str,
    /// Program and arguments.
    pub command: &'a [String],
    /// Its network namespace; `None` means that of the lab.
    pub namespace: Option<&'a str>,
    /// The CPUs that it may use; empty means all.
    pub cpus: &'a [u32],
    /// The account of its CPU time.
    pub group: &'a Group,
    /// The directory of its log.
    pub directory: &'a Path,
    /// Whether its standard error is read instead of being part of the log.
    pub captures: bool,
}

/// A running process, killed when dropped.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    pid: u32,
    log: PathBuf,
}

impl Process {
    /// Starts the process.
    ///
    /// # Errors
    /// If the host cannot run the program or write its log.
    pub fn start(spec: &Spec<'_>) -> Result<Self, Failure> {
        let log = spec.directory.join(format!("{}.log", spec.name.replace(['/', ':', '*'], "-")));
        let cannot = |what: &str, error: io::Error| Failure { why: format!("cannot {what}: {error}"), log: Vec::new() };
        let file = File::create(&log).map_err(|error| cannot(&format!("write {}", log.display()), error))?;
        let of_errors = file.try_clone().map_err(|error| cannot("write a log", error))?;
        let words = wrapped(spec);
        let start = format!("start {}", spec.name);
        let (program, arguments) =
            words.split_first().ok_or_else(|| cannot(&start, io::ErrorKind::InvalidInput.into()))?;
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null()).stdout(file).kill_on_drop(true);
        // Ctrl-C on a terminal is for us: the current measurement is finished first.
        command.process_group(0);
        command.stderr(if spec.captures { Stdio::piped() } else { Stdio::from(of_errors) });
        let child = command.spawn().map_err(|error| cannot(&start, error))?;
        // A child that has not been waited for has an id.
        let pid = child.id().ok_or_else(|| cannot(&start, io::ErrorKind::NotFound.into()))?;
        spec.group.add(pid);
        Ok(Self { name: spec.name.to_owned(), child, pid, log })
    }

    /// Its id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Its log.
    #[must_use]
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Its standard error, once, if it is captured.
    pub fn take_errors(&mut self) -> Option<ChildStderr> {
        self.child.stderr.take()
    }

    /// How it ended, if it has ended.
    pub fn ended(&mut self) -> Option<Failure> {
        match self.child.try_wait() {
            Ok(None) => None,
            Ok(Some(status)) => Some(self.failure(&format!("ended by itself ({})", in_words(status)))),
            Err(error) => Some(self.failure(&format!("cannot be waited for ({error})"))),
        }
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// The host's error.
    pub async fn wait(&mut self) -> io::Result<ExitStatus> {
        self.child.wait().await
    }

    /// Kills it and waits for its end.
    pub async fn kill(&mut self) {
        // This fails for a process that has ended.
        let _ = self.child.kill().await;
    }

    /// A failure of this process, with the end of its output.
    #[must_use]
    pub fn failure(&self, what: &str) -> Failure {
        Failure { why: format!("{} {what}", self.name), log: last_lines(&self.log) }
    }
}

/// The command that a person would type to start it, without the accounting.
#[must_use]
pub fn text(spec: &Spec<'_>) -> String {
    bare(spec).iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ")
}

fn quoted(word: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:=,@%+".contains(&byte);
    if !word.is_empty() && word.bytes().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

fn bare(spec: &Spec<'_>) -> Vec<String> {
    let mut words = Vec::new();
    if let Some(namespace) = spec.namespace {
        // Not ip-netns-exec(8), because that hides /sys/fs/bpf, where a contender may pin its maps.
        words.extend(["nsenter".to_owned(), format!("--net={}", topology::path_of(namespace).display())]);
    }
    if !spec.cpus.is_empty() {
        words.extend(["taskset", "-c", &list(spec.cpus)].map(str::to_owned));
    }
    words.extend_from_slice(spec.command);
    words
}

/// The command that ties it to us: it dies with us, even if we are killed, and is accounted from its first instruction.
fn wrapped(spec: &Spec<'_>) -> Vec<String> {
    let mut words = Vec::new();
    // setpriv(1) is part of util-linux, which is essential on Debian. Doing the same here would need `unsafe` between fork and exec.
    if let Some(setpriv) = crate::host::find_program("setpriv") {
        words.extend([setpriv.to_string_lossy().into_owned(), "--pdeathsig".into(), "KILL".into(), "--".into()]);
    }
    let doors: Vec<_> = spec.group.doors().iter().map(|door| door.to_string_lossy().into_owned()).collect();
    if !doors.is_empty() {
        let script = "for door in $0; do echo $$ > \"$door\" || exit 125; done; exec \"$@\"";
        words.extend(["/bin/sh".into(), "-c".into(), script.into(), doors.join(" ")]);
    }
    words.extend(bare(spec));
    words
}

fn in_words(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit status {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => status.to_string(),
    }
}

/// The last lines of a log.
#[must_use]
pub fn last_lines(log: &Path) -> Vec<String> {
    let text = tail(log).unwrap_or_default();
    let lines: Vec<_> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let from = lines.len().saturating_sub(LINES_KEPT);
    lines.iter().skip(from).map(|line| line.chars().take(LINE_CHARACTERS_MAX).collect()).collect()
}

fn tail(log: &Path) -> io::Result<String> {
    use std::io::{Read, Seek, SeekFrom};
    let mut file = File::open(log)?;
    let length = fs::metadata(log)?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES)))?;
    let mut bytes = Vec::new();
    file.take(TAIL_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec<'a>(command: &'a [String], group: &'a Group, directory: &'a Path) -> Spec<'a> {
        Spec { name: "x:y", command, namespace: None, cpus: &[0], group, directory, captures: false }
    }

    #[test]
    fn an_early_end_shows_the_end_of_the_log() {
        let directory = std::env::temp_dir().join(format!("steelyard-process-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let group = Group::default();
        let script = "seq 1 2000; echo; echo 'last words' >&2; exit 3";
        let command = ["/bin/sh".to_owned(), "-c".to_owned(), script.to_owned()];
        let failure = crate::host::runtime().unwrap().block_on(async {
            let mut process = Process::start(&spec(&command, &group, &directory)).unwrap();
            process.wait().await.unwrap();
            process.ended().unwrap()
        });
        assert_eq!(failure.why, "x:y ended by itself (exit status 3)");
        assert_eq!((failure.log.len(), failure.log.last().unwrap().as_str()), (12, "last words"));
        let nothing = ["/no/such/program".to_owned()];
        let failure = crate::host::runtime().unwrap().block_on(async {
            let mut process = Process::start(&spec(&nothing, &group, &directory)).unwrap();
            process.wait().await.unwrap();
            process.ended().unwrap()
        });
        assert!(failure.log.join(" ").contains("/no/such/program"), "{failure:?}");
        fs::remove_dir_all(&directory).unwrap();
        assert!(Process::start(&spec(&command, &group, &directory)).unwrap_err().why.contains("cannot write"));
    }

    #[test]
    fn commands_can_be_typed() {
        let command = ["/bin/echo".to_owned(), "it's".to_owned(), "a b".to_owned(), String::new()];
        let group = Group::default();
        let spec = Spec { namespace: Some("n"), ..spec(&command, &group, Path::new("/")) };
        assert_eq!(text(&spec), r"nsenter --net=/run/netns/n taskset -c 0 /bin/echo 'it'\''s' 'a b' ''");
    }
}
