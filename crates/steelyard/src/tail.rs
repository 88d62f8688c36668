//! `steelyard tail`: requests of a running Steelyard as they end: those that were refused or failed, slow ones, or all.

use std::io::Write;

use admin::{RequestSeen, Wanted};

use crate::cli::{StatusFilter, TailArgs};
use crate::exit::Exit;

/// Runs `steelyard tail`, until it has shown the requested number of requests or Steelyard ends.
pub(crate) fn tail(args: &TailArgs) -> Exit {
    match run(args) {
        Ok(()) => Exit::Good,
        Err(why) => crate::fail(&why),
    }
}

fn run(args: &TailArgs) -> Result<(), String> {
    let wanted = Wanted { requests: true, all_requests: args.all, ..Wanted::default() };
    let mut events =
        admin::events(&args.admin.client()?, &admin::events_path(wanted)).map_err(|error| error.to_string())?;
    let mut left = args.count.unwrap_or(u64::MAX);
    while left > 0 {
        let Some(event) = events.next_event().map_err(|error| error.to_string())? else {
            return Err("the stream has ended: Steelyard has ended, or a new process has taken over".to_owned());
        };
        let line = match event.name.as_str() {
            "request" => {
                let seen: RequestSeen = serde_json::from_str(&event.data)
                    .map_err(|error| format!("the running Steelyard has another version: {error}"))?;
                if !is_wanted(&seen, args) {
                    continue;
                }
                left -= 1;
                if args.json { event.data } else { line(&seen) }
            }
            "passed_over" if !args.json => format!("({} more requests in the last second)", event.data),
            _ => continue,
        };
        let mut out = std::io::stdout().lock();
        // A reader that closes the pipe (`| head`) is not an error.
        if writeln!(out, "{}", admin::visible(&line)).and_then(|()| out.flush()).is_err() {
            return Ok(());
        }
    }
    Ok(())
}

fn is_wanted(seen: &RequestSeen, args: &TailArgs) -> bool {
    let is_slow = |slow: &std::time::Duration| u128::from(began_us(seen)) >= slow.as_micros();
    (args.status.is_empty() || args.status.iter().any(|filter| filter.matches(seen.status)))
        && args.route.as_ref().is_none_or(|route| *route == seen.route)
        && args.reason.as_ref().is_none_or(|reason| *reason == seen.reason)
        && args.slow.as_ref().is_none_or(is_slow)
}

/// The time until the response began.
fn began_us(seen: &RequestSeen) -> u64 {
    seen.added_us.saturating_add(seen.upstream_us.unwrap_or_default())
}

impl StatusFilter {
    fn matches(self, status: u16) -> bool {
        match self {
            Self::Is(wanted) => status == wanted,
            Self::Class(class) => status / 100 == class,
        }
    }
}

fn line(seen: &RequestSeen) -> String {
    let second = seen.unix_ms / 1000 % 86_400;
    let time = format!("{:02}:{:02}:{:02}.{:03}", second / 3600, second / 60 % 60, second % 60, seen.unix_ms % 1000);
    let dash = |text: &str| if text.is_empty() { "-".to_owned() } else { text.to_owned() };
    let request = match seen.method.as_str() {
        // A TCP connection is for a cluster from its beginning.
        "" if seen.cluster.is_empty() => format!("(malformed or incomplete) {}", seen.listener),
        "" => format!("TCP {}", seen.listener),
        method => format!("{method} {}{}", seen.host, seen.path),
    };
    let ms = |us: u64| format!("{:.1}ms", us as f64 / 1000.0);
    format!(
        "{time} {} {} {request} route={} endpoint={} tries={} added={} endpoint_took={} client={}{}{}",
        if seen.status == 0 { "-".to_owned() } else { seen.status.to_string() },
        dash(&seen.reason),
        dash(&seen.route),
        dash(&seen.endpoint),
        seen.attempts,
        ms(seen.added_us),
        seen.upstream_us.map_or_else(|| "-".to_owned(), ms),
        seen.client,
        if seen.grpc_status.is_empty() { String::new() } else { format!(" grpc_status={}", seen.grpc_status) },
        if seen.request_id.is_empty() { String::new() } else { format!(" id={}", seen.request_id) },
    )
    .replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    fn seen() -> RequestSeen {
        RequestSeen {
            unix_ms: 1_795_651_200_007,
            client: "192.0.2.1:5".into(),
            listener: "web".into(),
            route: "/shop".into(),
            method: "GET".into(),
            host: "a.test".into(),
            path: "/shop/x".into(),
            status: 503,
            grpc_status: String::new(),
            reason: "no_endpoint".into(),
            cluster: "shop".into(),
            endpoint: String::new(),
            attempts: 0,
            total_us: 700_000,
            added_us: 1_500,
            upstream_us: Some(600_000),
            request_id: String::new(),
        }
    }

    #[test]
    fn filters() {
        let check = |words: &str, expect| {
            let words = format!("steelyard tail {words}");
            let cli = Cli::try_parse_from(words.split_whitespace()).unwrap_or_else(|error| panic!("{error}"));
            let Command::Tail(args) = cli.command else { panic!("{words}") };
            assert_eq!(is_wanted(&seen(), &args), expect, "{words}");
        };
        check("", true);
        check("--status 5xx --route /shop --reason no_endpoint --slow 500ms", true);
        check("--status 404,503", true);
        check("--status 4xx", false);
        check("--route /", false);
        check("--reason no_route", false);
        check("--slow 602ms", false);
        for wrong in ["--status 6xx", "--status 50", "--status x", "--slow soon"] {
            let words = format!("steelyard tail {wrong}");
            assert!(Cli::try_parse_from(words.split(' ')).is_err(), "{wrong}");
        }
    }

    #[test]
    fn lines() {
        let expect = "00:00:00.007 503 no_endpoint GET a.test/shop/x route=/shop endpoint=- tries=0 added=1.5ms endpoint_took=600.0ms \
                      client=192.0.2.1:5";
        assert_eq!(line(&seen()), expect);
        let call = RequestSeen { grpc_status: "UNAVAILABLE".into(), request_id: "7".into(), ..seen() };
        assert_eq!(line(&call), format!("{expect} grpc_status=UNAVAILABLE id=7"));
        // No endpoint was asked.
        let own = RequestSeen { upstream_us: None, ..seen() };
        assert_eq!(line(&own), expect.replace("endpoint_took=600.0ms", "endpoint_took=-"));
        let tcp = RequestSeen { method: String::new(), status: 0, path: "a\nb".into(), upstream_us: None, ..seen() };
        assert!(line(&tcp).contains(" - no_endpoint TCP web route="), "{}", line(&tcp));
        let malformed = RequestSeen { reason: "h2_field".into(), cluster: String::new(), ..tcp };
        let text = line(&malformed);
        assert!(text.contains(" - h2_field (malformed or incomplete) web route="), "{text}");
    }
}
