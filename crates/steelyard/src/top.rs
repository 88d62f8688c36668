//! `steelyard top`: live rates, errors and latencies of a running Steelyard, by listener, route and endpoint.
//!
//! Job: get the counters at intervals, and print a table for each interval or redraw it on a terminal. Not its job: computing rates and
//! laying out tables, which the crate `admin` does.

mod screen;
mod source;

use std::io::{IsTerminal, Write};

use admin::{Client, Counters, Rates, TopOptions, TopSort, TopView, rates_between, render_top_text};
use tokio::time::{Interval, MissedTickBehavior};

use self::source::Source;
use crate::cli::TopArgs;
use crate::exit::Exit;

/// The width of the tables in plain text, in columns.
const PLAIN_WIDTH: usize = 80;

/// What the user has chosen to see on the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct View {
    sort: TopSort,
    view: TopView,
    is_paused: bool,
    shows_help: bool,
}

/// The effect of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pressed {
    Quit,
    /// Show this view instead.
    Changed(View),
    Nothing,
}

/// Runs `steelyard top`.
pub(crate) fn top(args: &TopArgs) -> Exit {
    let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    let is_terminal = std::io::stdout().is_terminal() && std::io::stdin().is_terminal();
    // Ask before the screen changes, so that the error for a Steelyard that is not running is an ordinary line.
    let first = match args.admin.client().and_then(|client| ask(&client)) {
        Ok(counters) => counters,
        Err(error) => return crate::fail(&error),
    };
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return crate::fail(&format!("cannot start: {error}")),
    };
    let outcome = match is_terminal && !is_dumb && !args.once && !args.json {
        true => screen::run(args, first, &runtime),
        false => runtime.block_on(plain(args, first)),
    };
    match outcome {
        Ok(()) => Exit::Good,
        Err(error) => crate::fail(&error),
    }
}

/// Ticks immediately and then after every interval. A late tick delays all later ones.
fn ticks(args: &TopArgs) -> Interval {
    let mut ticks = tokio::time::interval(args.interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

/// Prints the tables of each interval as text or JSON.
async fn plain(args: &TopArgs, first: Counters) -> Result<(), String> {
    let mut left = if args.once { 1 } else { args.count.unwrap_or(u64::MAX) };
    let options = TopOptions {
        sort: args.sort.into(),
        view: args.view.into(),
        width: PLAIN_WIDTH,
        rows_max: usize::from(args.rows),
        lines_max: None,
        color: false,
    };
    let (mut before, mut is_first) = (first, true);
    let mut ticks = ticks(args);
    let client = args.admin.client()?;
    let mut source = Source::new(&client, args.interval);
    ticks.tick().await;
    while left > 0 {
        let now = match &mut source {
            // Nothing else waits for this thread. The stream ends when another process takes over, which has one of its own.
            Some(source) => source.next(&before).or_else(|_| source.next(&before))?,
            None => {
                ticks.tick().await;
                ask(&client)?
            }
        };
        // There are no rates if another process has taken over: its first interval begins with these counters.
        if let Some(rates) = rates_between(&before, &now) {
            let text = match args.json {
                true => serde_json::to_string(&rates).unwrap_or_default() + "\n",
                false => format!("{}{}", if is_first { "" } else { "\n" }, render_top_text(&rates, &options)),
            };
            // A reader that closes the pipe (`| head`) is not an error.
            let mut out = std::io::stdout().lock();
            if out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_err() {
                return Ok(());
            }
            left -= 1;
            is_first = false;
        }
        before = now;
    }
    Ok(())
}

fn ask(client: &Client) -> Result<Counters, String> {
    let json = admin::get(client, "/counters").map_err(|error| error.to_string())?;
    Counters::parse(&json)
}

impl View {
    fn of(args: &TopArgs) -> Self {
        Self { sort: args.sort.into(), view: args.view.into(), is_paused: false, shows_help: false }
    }

    fn press(self, key: u8) -> Pressed {
        // Any key but those that quit closes the help.
        if self.shows_help && !matches!(key, b'q' | CTRL_C | CTRL_D) {
            return Pressed::Changed(Self { shows_help: false, ..self });
        }
        let sorted = |sort| Pressed::Changed(Self { sort, ..self });
        let viewed = |view| Pressed::Changed(Self { view, ..self });
        match key {
            b'q' | CTRL_C | CTRL_D => Pressed::Quit,
            b's' => {
                let at = TopSort::ALL.iter().position(|sort| *sort == self.sort).unwrap_or_default();
                sorted(TopSort::ALL.get(at + 1).copied().unwrap_or(TopSort::Rate))
            }
            b'r' => sorted(TopSort::Rate),
            b'e' => sorted(TopSort::Errors),
            b'a' => sorted(TopSort::Added),
            b'l' => sorted(TopSort::Endpoint),
            b'n' => sorted(TopSort::Name),
            b'0' => viewed(TopView::All),
            b'1' => viewed(TopView::Listeners),
            b'2' => viewed(TopView::Routes),
            b'3' => viewed(TopView::Endpoints),
            b'4' => viewed(TopView::Vips),
            b' ' | b'p' => Pressed::Changed(Self { is_paused: !self.is_paused, ..self }),
            b'?' | b'h' => Pressed::Changed(Self { shows_help: true, ..self }),
            _ => Pressed::Nothing,
        }
    }

    /// The `height` lines of the screen. The terminal cuts lines that are wider than it is.
    fn lines(self, rates: Option<&Rates>, problem: Option<&str>, (width, height): (usize, usize)) -> Vec<String> {
        let body = match (self.shows_help, rates) {
            (true, _) => HELP.to_owned(),
            (false, None) => "Waiting for the first interval to end ...\n".to_owned(),
            (false, Some(rates)) => {
                let lines_max = Some(height.saturating_sub(1 + usize::from(problem.is_some())));
                let options = TopOptions {
                    sort: self.sort,
                    view: self.view,
                    width,
                    rows_max: usize::MAX,
                    lines_max,
                    color: color(),
                };
                render_top_text(rates, &options)
            }
        };
        let mut lines: Vec<String> = problem.map(|problem| clipped(problem, width)).into_iter().collect();
        lines.extend(body.lines().map(str::to_owned));
        lines.truncate(height.saturating_sub(1));
        lines.resize(height.saturating_sub(1), String::new());
        let paused = if self.is_paused { "PAUSED  " } else { "" };
        let sort = self.sort.name();
        lines.push(clipped(&format!("{paused}sorted by {sort}  s sort  0-4 view  space pause  ? help  q quit"), width));
        lines
    }
}

const CTRL_C: u8 = 3;
const CTRL_D: u8 = 4;

const HELP: &str = "\
Sort by      r  requests per second       a  latency that Steelyard added (p99)
             e  errors per second         l  latency of the endpoint (p99)
             n  name                      s  the next of these
Show         0  everything                3  endpoints
             1  listeners                 4  virtual IPs
             2  routes
Other keys   space  pause or resume       q  quit

REQS/s, 5xx/s and the latencies cover the last interval.
ADDED     is the time that Steelyard itself added to requests.
ENDPOINT  is the time from a request's head to its response's head.
BUSY      is the number of requests in progress at an endpoint.

Press any key to go back.
";

fn color() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

fn clipped(line: &str, width: usize) -> String {
    admin::visible(line).replace('\n', " ").chars().take(width).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: View = View { sort: TopSort::Rate, view: TopView::All, is_paused: false, shows_help: false };

    #[test]
    fn keys() {
        let check = |key, expect| assert_eq!(START.press(key), expect, "{}", char::from(key));
        check(b'q', Pressed::Quit);
        check(CTRL_C, Pressed::Quit);
        check(b'x', Pressed::Nothing);
        check(b'e', Pressed::Changed(View { sort: TopSort::Errors, ..START }));
        check(b's', Pressed::Changed(View { sort: TopSort::Errors, ..START }));
        check(b'3', Pressed::Changed(View { view: TopView::Endpoints, ..START }));
        check(b' ', Pressed::Changed(View { is_paused: true, ..START }));
        check(b'?', Pressed::Changed(View { shows_help: true, ..START }));
        // After the last sort comes the first.
        let last = View { sort: TopSort::Name, ..START };
        assert_eq!(last.press(b's'), Pressed::Changed(START));
        // While the help is shown, a key that otherwise sorts only closes the help.
        let help = View { shows_help: true, ..START };
        assert_eq!((help.press(b'e'), help.press(b'q')), (Pressed::Changed(START), Pressed::Quit));
    }

    #[test]
    fn a_screen_is_as_large_as_the_terminal() {
        for size in [(80, 24), (20, 5), (200, 3), (1, 1)] {
            for view in [START, View { shows_help: true, ..START }] {
                let lines = view.lines(None, Some("nothing listens on 127.0.0.1:9900\nretrying"), size);
                assert_eq!(lines.len(), size.1);
                assert!(lines[0].chars().count() <= size.0.max(HELP.lines().map(str::len).max().unwrap()));
            }
        }
        let lines = START.lines(None, Some("gone\x1b[2J"), (80, 24));
        assert_eq!(lines[0], "gone\u{fffd}[2J");
        assert!(HELP.lines().all(|line| line.len() <= 80));
    }
}
