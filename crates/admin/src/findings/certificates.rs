//! Certificates of this process that nobody accepts.

use super::Found;
use crate::show::{duration, shortened};
use crate::status::Status;

/// Reports each of them once, with what shows it.
pub(super) fn of_certificates(status: &Status, found: &mut Found) {
    for certificate in &status.invalid_certificates {
        let (file, now) = (&certificate.file, status.unix_seconds);
        let users = shortened(certificate.used_by.iter().map(String::as_str), ", ");
        let text = match now < certificate.valid_from {
            true => format!(
                "the certificate in {file} ({users}) is not valid before {} from now: set the clock of this host, or issue \
                 the certificate again",
                duration(certificate.valid_from - now)
            ),
            false => format!(
                "the certificate in {file} ({users}) expired {} ago, and nobody accepts it: renew it; it is used within \
                 seconds after that",
                duration(now.saturating_sub(certificate.valid_until))
            ),
        };
        found.wrong("certificate_invalid", file, text);
    }
}
