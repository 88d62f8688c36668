//! Workers that make no progress.

use super::Found;
use crate::show::{counted, duration, shortened};
use crate::status::{StalledWorkerStatus, Status};

pub(super) fn of_workers(status: &Status, found: &mut Found) {
    for StalledWorkerStatus { worker, since_unix_seconds, seconds, connections, stack, why_no_stack } in
        &status.stalled_workers
    {
        let second = since_unix_seconds % 86_400;
        let since = format!("{:02}:{:02}:{:02} UTC", second / 3600, second / 60 % 60, second % 60);
        let waits = match connections.values().sum() {
            0 => "it serves no connection".to_owned(),
            all => {
                let each = connections.iter().map(|(listener, open)| format!("{listener} {open}"));
                let wait = if all == 1 { "waits" } else { "wait" };
                format!("its {} {wait} ({})", counted(all, "connection"), shortened(each, ", "))
            }
        };
        let place = match why_no_stack {
            Some(why) => format!("there is no stack: {why}"),
            None => format!("it stands in {}", shortened(stack.iter(), " < ")),
        };
        let text =
            format!("worker {worker} has made no progress since {since}, for {}: {waits}; {place}", duration(*seconds));
        found.wrong("worker_stalled", &format!("worker-{worker}"), text);
    }
}
