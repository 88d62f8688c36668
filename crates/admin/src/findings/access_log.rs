//! Records of the access log that are lost.

use serde::{Deserialize, Serialize};

use super::Found;
use crate::show::counted;
use crate::status::Status;

/// What has become of the records of the access log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccessLogStatus {
    /// Dropped because the writer was behind.
    pub dropped: u64,
    /// Could not be written.
    pub failed: u64,
    /// The last one could not be written.
    pub failing: bool,
}

pub(super) fn of_access_log(status: &Status, found: &mut Found) {
    let Some(log) = &status.access_log else { return };
    let lost = log.dropped + log.failed;
    if log.failing {
        let are = if lost == 1 { "is" } else { "are" };
        let text = format!(
            "the access log cannot be written, and {} {are} lost: the log of the process says why (a full disk, a syslog server or a \
             collector that is away)",
            counted(lost, "record")
        );
        found.wrong("access_log_failing", "", text);
    } else if lost > 0 {
        let text = format!(
            "the access log has lost {}: {} because its target was too slow, {} because it could not be written",
            counted(lost, "record"),
            log.dropped,
            log.failed
        );
        found.notice("access_log_lost", "", text);
    }
}
