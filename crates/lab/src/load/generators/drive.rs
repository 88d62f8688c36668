//! Drives the generators of a load: starts them, adds up what they measured, and says which of them failed.

use std::collections::VecDeque;
use std::io;
use std::process::Stdio;
use std::time::{Duration, Instant};

use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::mpsc::{Receiver, Sender, channel};

use super::args::GeneratorArgs;
use super::messages::{self, FILES_BYTES_MAX, GO, LINE_BYTES_MAX, MARK, Part, Plan, STOP, Said, VERSION};
use crate::load::LoadCommand;
use crate::load::files::Files;
use crate::load::live::{self, Seen};
use crate::load::report::{LoadReport, Remote};
use crate::load::shape::{Shape, Timeline};
use crate::load::tally::Tally;

/// How long a generator may take to log in and to reach the server.
const READY: Duration = Duration::from_secs(60);

/// How long a generator may say nothing during the load. It says something twice a second.
const SILENCE: Duration = Duration::from_secs(60);

/// How often silence is looked for, and the progress line is redrawn.
const TICK: Duration = Duration::from_millis(500);

/// What is kept of the standard error of a generator, which tells why it ended.
const STDERR_LINES: usize = 3;
const STDERR_LINE_BYTES_MAX: u64 = 4_096;

/// Puts the load of this command on from its generators.
///
/// # Errors
/// A file cannot be read, or a generator cannot be started, cannot reach the server or ends early. The message names it.
pub(in crate::load) async fn drive(
    args: &GeneratorArgs,
    command: &LoadCommand,
    files: Files,
    shape: &Shape,
) -> io::Result<LoadReport> {
    args.check(shape)?;
    let files = match files {
        Files::Kept(files) => files.into_inner(),
        _ => Default::default(),
    };
    let bytes: usize = files.values().map(bytes::Bytes::len).sum();
    if bytes > FILES_BYTES_MAX {
        let why = format!(
            "--generators: the files of the load have {bytes} bytes together; 40 MiB can be sent to a generator"
        );
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    let mut plan = Plan {
        version: VERSION.to_owned(),
        command: command.clone(),
        files: messages::encoded(&files),
        index: 0,
        count: args.generators.len() as u64,
    };
    let (sender, events) = channel(64);
    let mut generators = Vec::new();
    for (index, host) in args.generators.iter().enumerate() {
        plan.index = index as u64;
        let line = format!("{}\n", serde_json::to_string(&plan)?);
        generators.push(Generator::start(args, host, index, line, sender.clone())?);
    }
    Driver { generators, events, shape }.run().await
}

/// A running generator, seen from here.
struct Generator {
    host: String,
    /// Gone once the generator has its orders.
    stdin: tokio::sync::mpsc::Sender<&'static str>,
    heard: Instant,
    is_ready: bool,
    seen: Option<Seen>,
    part: Option<Box<Part>>,
}

/// Something that a generator says, or why it has ended.
enum Event {
    Said(Said),
    Ended(String),
}

impl Generator {
    fn start(
        args: &GeneratorArgs,
        host: &str,
        index: usize,
        plan: String,
        events: Sender<(usize, Event)>,
    ) -> io::Result<Self> {
        let words = args.command(host);
        let (program, words) = words.split_first().ok_or_else(|| io::Error::other("--rsh names no program"))?;
        let mut command = Command::new(program);
        command.args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // Ctrl-C is for this process, which then ends the load in order.
        let mut child = command.process_group(0).kill_on_drop(true).spawn().map_err(|error| {
            let why = format!("cannot start {program} for generator {host}: {error}; --rsh names another command");
            io::Error::new(error.kind(), why)
        })?;
        let (stdin, orders) = channel(2);
        let input = child.stdin.take().ok_or_else(|| io::Error::other("a generator has no standard input"))?;
        tokio::spawn(write(input, plan, orders));
        tokio::spawn(async move {
            let why = follow(index, child, &events).await;
            // The other side is gone if the load has ended.
            let _ = events.send((index, Event::Ended(why))).await;
        });
        Ok(Self { host: host.to_owned(), stdin, heard: Instant::now(), is_ready: false, seen: None, part: None })
    }

    fn failed(&self, why: &str) -> io::Error {
        io::Error::other(format!("generator {}: {why}", self.host))
    }
}

/// Writes the plan and then orders, until there are no more or the generator has ended.
async fn write(mut input: ChildStdin, plan: String, mut orders: Receiver<&'static str>) -> io::Result<()> {
    input.write_all(plan.as_bytes()).await?;
    while let Some(order) = orders.recv().await {
        input.write_all(order.as_bytes()).await?;
        input.flush().await?;
    }
    Ok(())
}

/// Passes on what a generator says. Returns why it has ended.
async fn follow(index: usize, mut child: Child, events: &Sender<(usize, Event)>) -> String {
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let complaints = tokio::spawn(async move {
        match stderr {
            Some(stderr) => last_lines(stderr).await,
            None => String::new(),
        }
    });
    if let Some(stdout) = stdout
        && let Err(error) = pass_on(index, BufReader::new(stdout), events).await
    {
        return error.to_string();
    }
    let status = match child.wait().await {
        // What shells say if there is no such command.
        Ok(status) if status.code() == Some(127) => {
            format!("{status} (--remote-program says where Steelyard is there)")
        }
        Ok(status) => status.to_string(),
        Err(error) => error.to_string(),
    };
    match complaints.await.unwrap_or_default().trim() {
        "" => format!("it ended with {status}"),
        lines => format!("it ended with {status}: {lines}"),
    }
}

async fn pass_on(
    index: usize,
    mut lines: impl AsyncBufRead + Unpin,
    events: &Sender<(usize, Event)>,
) -> io::Result<()> {
    let mut line = Vec::new();
    loop {
        line.clear();
        (&mut lines).take(LINE_BYTES_MAX).read_until(b'\n', &mut line).await?;
        if line.is_empty() {
            return Ok(());
        }
        // Anything else is from the login.
        let Some(text) = line.strip_prefix(MARK.as_bytes()) else { continue };
        let said = serde_json::from_slice(text)
            .map_err(|error| io::Error::other(format!("what it says cannot be read: {error}")))?;
        if events.send((index, Event::Said(said))).await.is_err() {
            return Ok(());
        }
    }
}

async fn last_lines(stderr: impl AsyncRead + Unpin) -> String {
    let (mut stderr, mut lines) = (BufReader::new(stderr), VecDeque::new());
    loop {
        let mut line = Vec::new();
        match (&mut stderr).take(STDERR_LINE_BYTES_MAX).read_until(b'\n', &mut line).await {
            Ok(0) | Err(_) => break,
            Ok(_) => lines.push_back(String::from_utf8_lossy(&line).trim().to_owned()),
        }
        if lines.len() > STDERR_LINES {
            lines.pop_front();
        }
    }
    lines.make_contiguous().join("; ")
}

/// The load, while it runs.
struct Driver<'a> {
    generators: Vec<Generator>,
    events: Receiver<(usize, Event)>,
    shape: &'a Shape,
}

impl Driver<'_> {
    async fn run(mut self) -> io::Result<LoadReport> {
        let begun = Instant::now();
        while let Some(waiting) = self.generators.iter().find(|generator| !generator.is_ready) {
            if begun.elapsed() > READY {
                return Err(waiting.failed(&format!("it was not ready for {} s", READY.as_secs())));
            }
            self.step().await?;
            if self.shape.stop.at().is_some() {
                return Err(io::Error::new(io::ErrorKind::Interrupted, "interrupted before the load began"));
            }
        }
        let timeline = Timeline::new(self.shape, Instant::now());
        self.order(GO).await?;
        self.generators.iter_mut().for_each(|generator| generator.heard = timeline.start);
        // A load of requests ends with the last of them, whenever that is.
        let mut end = timeline.deadline;
        let mut is_stopped = false;
        while let Some(waiting) = self.generators.iter().find(|generator| generator.part.is_none()) {
            if end.is_some_and(|end| end.elapsed() > self.shape.timeout + self.shape.hold + SILENCE) {
                return Err(waiting.failed("it goes on after the end of the load"));
            }
            let silent = |generator: &&Generator| generator.part.is_none() && generator.heard.elapsed() > SILENCE;
            if let Some(silent) = self.generators.iter().find(silent) {
                return Err(silent.failed(&format!("it has said nothing for {} s", SILENCE.as_secs())));
            }
            if !is_stopped && self.shape.stop.at().is_some() {
                is_stopped = true;
                end = Some(Instant::now());
                self.order(STOP).await?;
            }
            self.step().await?;
            self.draw(&timeline);
        }
        if live::is_shown(self.shape) {
            live::draw("");
        }
        self.sum(&timeline)
    }

    /// Sends an order to all.
    async fn order(&self, order: &'static str) -> io::Result<()> {
        for generator in &self.generators {
            // One that has given its results has ended, and needs no orders.
            let sent = generator.stdin.send(order).await;
            if sent.is_err() && generator.part.is_none() {
                return Err(generator.failed("it has ended"));
            }
        }
        Ok(())
    }

    /// Waits a moment for something that a generator says. Fails if one has ended early.
    async fn step(&mut self) -> io::Result<()> {
        let received = tokio::select! {
            received = self.events.recv() => received,
            () = tokio::time::sleep(TICK) => None,
        };
        if let Some((index, event)) = received {
            let Some(generator) = self.generators.get_mut(index) else { return Ok(()) };
            generator.heard = Instant::now();
            match event {
                Event::Said(Said::Ready) => generator.is_ready = true,
                Event::Said(Said::Progress(seen)) => generator.seen = Some(seen),
                Event::Said(Said::Done(part)) => generator.part = Some(part),
                Event::Said(Said::Failed(why)) => return Err(generator.failed(&why)),
                Event::Ended(_) if generator.part.is_some() => {}
                Event::Ended(why) => return Err(generator.failed(&why)),
            }
        }
        Ok(())
    }

    /// Shows what all have seen.
    fn draw(&self, timeline: &Timeline) {
        if !live::is_shown(self.shape) {
            return;
        }
        let mut all = Seen::default();
        for seen in self.generators.iter().filter_map(|generator| generator.seen.as_ref()) {
            all.add(seen);
        }
        live::draw(&live::line(self.shape, timeline.start.elapsed(), &all));
    }

    /// The report of all.
    fn sum(&self, timeline: &Timeline) -> io::Result<LoadReport> {
        let mut total = Tally::default();
        let (mut remotes, mut protocols) = (Vec::<Remote>::new(), Vec::<&str>::new());
        for generator in &self.generators {
            let Some(part) = &generator.part else { continue };
            // A time beyond what this host can express is no time.
            let end = part.end.and_then(|end| timeline.start.checked_add(end));
            total.add(&Tally { end, ..part.tally.clone() });
            if !protocols.contains(&part.protocol.as_str()) {
                protocols.push(&part.protocol);
            }
            let busiest_thread = part.tally.busiest_thread();
            remotes.push(Remote { host: generator.host.clone(), ok: part.tally.ok, busiest_thread });
        }
        let timeline = timeline.stopped(self.shape.stop.at());
        let mut report = LoadReport::new(&protocols.join(" and "), self.shape, &timeline, &total);
        report.threads = total.costs.len() as u32;
        report.generators = remotes;
        Ok(report)
    }
}
