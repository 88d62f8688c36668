//! Services of a Kubernetes cluster that are not served as they say.

use std::collections::BTreeMap;

use super::{Found, Severity};
use crate::show::shortened;
use crate::status::{ServiceFaultStatus, Status};

/// Reports Services of a cluster, one finding for each reason: there may be hundreds of them. Their owners get Events.
pub(super) fn of_services(status: &Status, found: &mut Found) {
    if let Some(why) = &status.kernel_refusal {
        let text =
            format!("the kernel plane of this node refused the last change, and serves what it had before: {why}");
        found.wrong("kernel_plane_refused", "", text);
    }
    let mut by_reason = BTreeMap::<&str, Vec<String>>::new();
    // Each Service that wants a vip has a refusal as its fault, too.
    let is_other = |fault: &&ServiceFaultStatus| status.kernel_refusal.as_ref() != Some(&fault.message);
    for fault in status.service_faults.iter().filter(is_other) {
        by_reason.entry(&fault.reason).or_default().push(format!("{}: {}", fault.service, fault.message));
    }
    for (reason, faults) in by_reason {
        let what = if matches!(reason, "Closed" | "NotServed") { "Ingresses" } else { "Services" };
        let text = format!("{what} are not served as they say ({reason}): {}", shortened(faults.into_iter(), "; "));
        // Whoever may write a Service could make `--check` fail otherwise. If something is full, it is for the operator.
        let severity = if reason.starts_with("TooMany") { Severity::Wrong } else { Severity::Notice };
        found.add(severity, "service_fault", reason, text);
    }
}
