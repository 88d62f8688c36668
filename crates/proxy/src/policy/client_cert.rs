//! What a route demands of the certificate that the client has shown.

use model::{ClientCertMode, ClientCertRule};
use telemetry::Reason;

use crate::exchange::conditions::matches_text;
use crate::tls::Secured;

/// Whether a client with this connection (`None`: in the clear) may use a route.
///
/// # Errors
/// [`Reason::ClientCertMissing`], [`Reason::ClientCertInvalid`], [`Reason::ClientCertDenied`].
pub(super) fn judge(rule: &ClientCertRule, secured: Option<&Secured>) -> Result<(), Reason> {
    let shown = secured.and_then(Secured::shown_certificate);
    match (shown, rule.mode) {
        (None, ClientCertMode::Required) => return Err(Reason::ClientCertMissing),
        (None, ClientCertMode::Optional | ClientCertMode::Unsigned) | (Some((_, Ok(()))), _) => {}
        // As nginx with `optional_no_ca`: who has signed it does not matter, and whether it is valid does.
        (Some((_, Err(fault))), ClientCertMode::Unsigned) if fault.is_of_signature() => {}
        (Some((_, Err(_))), _) => return Err(Reason::ClientCertInvalid),
    }
    let Some(subject) = &rule.subject else { return Ok(()) };
    match shown.is_some_and(|(shown, _)| matches_text(subject, shown.subject().as_bytes())) {
        true => Ok(()),
        false => Err(Reason::ClientCertDenied),
    }
}
