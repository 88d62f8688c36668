//! `steelyard top` on a terminal: redraws the screen in place, follows the size of the window, and restores the terminal at the end.

use std::fs::File;
use std::io::{self, Read, Write};

use admin::{Counters, Rates, rates_between};
use rustix::termios::{LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use super::source::Source;
use super::{Pressed, View, ask, ticks};
use crate::cli::TopArgs;

/// Columns and lines of a terminal that does not report its size.
const SIZE_DEFAULT: (usize, usize) = (80, 24);
/// The number of keys that may wait to be processed.
const KEYS_WAITING_MAX: usize = 64;

/// Switches to the alternate screen, hides the cursor, and turns off line wrapping. `LEAVE` undoes that.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l";
const LEAVE: &str = "\x1b[?7h\x1b[?25h\x1b[?1049l";

/// Runs until a key or a signal ends it, or until it has shown the requested number of intervals.
pub(super) fn run(args: &TopArgs, first: Counters, runtime: &tokio::runtime::Runtime) -> Result<(), String> {
    let outcome = Terminal::take().and_then(|_terminal| runtime.block_on(shown(args, first)));
    outcome.map_err(|error| format!("the terminal failed: {error}"))
}

/// The terminal while it shows the screen: it delivers keys one by one and does not echo them. Dropping this restores its former state.
struct Terminal {
    before: Termios,
}

impl Terminal {
    fn take() -> io::Result<Self> {
        let before = tcgetattr(io::stdin())?;
        let mut modes = before.clone();
        // Ctrl-C arrives as a key instead of a signal, so that the terminal is restored before the process ends.
        modes.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG);
        modes.special_codes[SpecialCodeIndex::VMIN] = 1;
        modes.special_codes[SpecialCodeIndex::VTIME] = 0;
        tcsetattr(io::stdin(), OptionalActions::Now, &modes)?;
        let terminal = Self { before };
        write!(io::stdout(), "{ENTER}")?;
        io::stdout().flush()?;
        Ok(terminal)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // If the terminal is gone, there is nothing to restore.
        let _ = write!(io::stdout(), "{LEAVE}").and_then(|()| io::stdout().flush());
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.before);
    }
}

/// The content of the screen.
struct Shown {
    view: View,
    rates: Option<Rates>,
    problem: Option<String>,
}

async fn shown(args: &TopArgs, first: Counters) -> io::Result<()> {
    let mut keys = keys();
    let (questions, mut answers) = answers(args, first.clone());
    let mut ticks = ticks(args);
    ticks.tick().await;
    let mut resized = signal(SignalKind::window_change())?;
    let mut terminated = signal(SignalKind::terminate())?;
    let mut interrupted = signal(SignalKind::interrupt())?;
    let mut hung_up = signal(SignalKind::hangup())?;
    let mut left = args.count.unwrap_or(u64::MAX);
    let mut before = first;
    let mut screen = Shown { view: View::of(args), rates: None, problem: None };
    screen.draw()?;
    while left > 0 {
        tokio::select! {
            key = keys.recv() => match key.map(|key| screen.view.press(key)) {
                None | Some(Pressed::Quit) => return Ok(()),
                Some(Pressed::Nothing) => continue,
                Some(Pressed::Changed(view)) => screen.view = view,
            },
            _ = ticks.tick() => {
                // If an earlier request still waits for its answer, or if a stream brings the counters, that answer will do.
                let _ = questions.try_send(());
                continue;
            }
            answer = answers.recv() => match answer {
                None => return Ok(()),
                Some(Err(problem)) => screen.problem = Some(format!("no answer, retrying: {problem}")),
                Some(Ok(now)) => {
                    screen.problem = None;
                    let rates = rates_between(&before, &now);
                    left -= u64::from(rates.is_some());
                    if !screen.view.is_paused {
                        screen.rates = rates;
                    }
                    before = now;
                }
            },
            _ = resized.recv() => {}
            _ = terminated.recv() => return Ok(()),
            _ = interrupted.recv() => return Ok(()),
            _ = hung_up.recv() => return Ok(()),
        }
        screen.draw()?;
    }
    Ok(())
}

impl Shown {
    fn draw(&self) -> io::Result<()> {
        let lines = self.view.lines(self.rates.as_ref(), self.problem.as_deref(), size());
        // Clear the rest of each line as it is drawn. Clearing the whole screen first would make it flicker.
        let mut frame = String::from("\x1b[H");
        frame += &lines.iter().map(|line| format!("{line}\x1b[K")).collect::<Vec<_>>().join("\n");
        frame += "\x1b[J";
        let mut out = io::stdout().lock();
        out.write_all(frame.as_bytes())?;
        out.flush()
    }
}

/// The size of the terminal in columns and lines.
fn size() -> (usize, usize) {
    match tcgetwinsize(io::stdout()) {
        Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (usize::from(size.ws_col), usize::from(size.ws_row)),
        _ => SIZE_DEFAULT,
    }
}

/// The keys that are pressed. A thread reads them; it ends with the process.
fn keys() -> mpsc::Receiver<u8> {
    let (sender, keys) = mpsc::channel(KEYS_WAITING_MAX);
    std::thread::spawn(move || {
        let Ok(mut terminal) = File::open("/dev/stdin") else { return };
        let mut bytes = [0; 16];
        while let Ok(count) = terminal.read(&mut bytes) {
            let pressed = bytes.get(..count).unwrap_or_default();
            // Input that begins with an escape is an arrow or a function key. Ignore it.
            let is_sequence = pressed.first().is_none_or(|first| *first == b'\x1b');
            // One read may return several keys, for example over a slow connection.
            let has_gone = |key: &u8| sender.blocking_send(*key).is_err();
            if pressed.is_empty() || (!is_sequence && pressed.iter().any(has_gone)) {
                return;
            }
        }
    });
    keys
}

/// A channel that requests the counters, and one that delivers them. A thread gets them, so that a Steelyard that hangs does not block the keys.
/// A stream delivers them without being asked, as long as it lasts. The thread ends with the process.
fn answers(args: &TopArgs, first: Counters) -> (mpsc::Sender<()>, mpsc::Receiver<Result<Counters, String>>) {
    let (questions, mut asked) = mpsc::channel(1);
    let (sender, answers) = mpsc::channel(1);
    let (client, interval) = (args.admin.client(), args.interval);
    std::thread::spawn(move || {
        let mut source = client.as_ref().ok().and_then(|client| Source::new(client, interval));
        let mut before = first;
        let mut waits = source.is_none();
        while !waits || asked.blocking_recv().is_some() {
            let answer = match &mut source {
                Some(source) => source.next(&before),
                None => client.clone().and_then(|client| ask(&client)),
            };
            // After an error, the next try waits for the next tick.
            waits = source.is_none() || answer.is_err();
            before = answer.as_ref().unwrap_or(&before).clone();
            if sender.blocking_send(answer).is_err() {
                return;
            }
        }
    });
    (questions, answers)
}
