//! One generator of several: it gets a plan, waits for the start, puts its part of the load on, and gives its results.
//!
//! It opens no port, and does nothing without the one that started it: when its standard input ends, the load ends. Who may start it is
//! decided by ssh, or whatever else runs commands on this host.

use std::io::{self, BufRead, Read, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::messages::{GO, LINE_BYTES_MAX, MARK, Part, Plan, Said, VERSION, Version};
use crate::command::Outcome;
use crate::host;
use crate::load::files::Files;
use crate::load::report::LoadReport;
use crate::load::shape::Shape;
use crate::load::{Role, run_as};

/// How often it says what it has seen.
const PROGRESS: Duration = Duration::from_millis(500);

/// Which part of a load is this generator's. `index < count`
#[derive(Clone, Copy, Debug)]
pub(in crate::load) struct Share {
    pub index: u64,
    pub count: u64,
}

/// Serves the one that started this process, over standard input and output.
///
/// # Errors
/// Standard input has no plan, or standard output is gone. Everything else is said there.
pub(in crate::load) fn serve() -> io::Result<Outcome> {
    let plan = match read_plan(&line()?) {
        Ok(plan) => plan,
        Err(why) => {
            say(&Said::Failed(why))?;
            return Ok(Outcome::Failed);
        }
    };
    let Some(files) = plan.files() else {
        say(&Said::Failed("the files of the plan are damaged".to_owned()))?;
        return Ok(Outcome::Failed);
    };
    let share = Share { index: plan.index, count: plan.count.max(1) };
    run_as(plan.command, &Files::Sent(files), Role::Generator(share)).or_else(|error| {
        say(&Said::Failed(error.to_string()))?;
        Ok(Outcome::Failed)
    })
}

fn read_plan(line: &str) -> Result<Plan, String> {
    let usage = "this is a part of `steelyard load --generators`, and gets its plan on standard input";
    let Version { version } = serde_json::from_str(line).map_err(|_| usage.to_owned())?;
    if version != VERSION {
        return Err(format!("Steelyard there is version {VERSION}, and here {version}: install the same version"));
    }
    serde_json::from_str(line).map_err(|error| format!("the plan cannot be read: {error}"))
}

/// Puts this share of a load on, once the other side says so.
pub(in crate::load) fn generate(
    share: Share,
    whole: &Shape,
    run: impl AsyncFn(Shape) -> io::Result<LoadReport>,
) -> io::Result<Outcome> {
    let part = Arc::<Mutex<Option<Part>>>::default();
    let shape = Shape { part: Some(part.clone()), ..whole.share(share.index, share.count) };
    say(&Said::Ready)?;
    if line()? != GO {
        // The other side has given up.
        return Ok(Outcome::Failed);
    }
    let stop = shape.stop.clone();
    // Any line ends the load, and so does the end of standard input.
    std::thread::Builder::new().name("load-stop".to_owned()).spawn(move || {
        let _ = line();
        stop.now();
    })?;
    host::runtime()?.block_on(told(&shape, run(shape.clone())))?;
    let part = part.lock().unwrap_or_else(PoisonError::into_inner).take();
    let part = part.ok_or_else(|| io::Error::other("the load has no results; this is a bug, please report it"))?;
    say(&Said::Done(Box::new(part)))?;
    Ok(Outcome::Good)
}

/// Waits for a load, and says meanwhile what it has seen.
async fn told<T>(shape: &Shape, load: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    let mut ticks = tokio::time::interval(PROGRESS);
    tokio::pin!(load);
    loop {
        tokio::select! {
            biased;
            outcome = &mut load => return outcome,
            _ = ticks.tick() => {
                if let Some((_, seen)) = shape.progress.seen(Instant::now()) {
                    say(&Said::Progress(seen))?;
                }
            }
        }
    }
}

/// The next line of standard input; empty at its end.
fn line() -> io::Result<String> {
    let mut line = String::new();
    io::stdin().lock().take(LINE_BYTES_MAX).read_line(&mut line)?;
    Ok(line)
}

fn say(said: &Said) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{MARK}{}", serde_json::to_string(said)?)?;
    out.flush()
}
