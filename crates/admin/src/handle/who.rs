//! Who a request is from, and whether they may have the page.

use std::sync::Arc;

use hyper::header::{HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use hyper::{Request, StatusCode};
use tokio::time::Instant;

use super::{Connection, Page, Refusal};
use crate::access::{self, Access, Doubt, Proof, RefusedFor, Role, User, Users};
use crate::{Control, Pages};

/// Says who a request is from, and how it proved that, if they may have the page.
pub(super) async fn authorize<B>(
    connection: Connection<'_>,
    request: &Request<B>,
    page: Page,
    access: &Access,
) -> Result<(User, Option<Proof>), Refusal> {
    // Probes of an orchestrator have no credentials, and learn nothing but whether the process is ready.
    if connection.shared.pages == Pages::ForAnyone || page.is_for_probes() {
        return Ok((User::LOCAL, None));
    }
    let Some(users) = &access.users else {
        // A reload may have closed an address beyond this host, and with it have removed its users, while this connection was open.
        let why = "nobody may use this address from other hosts: `admin_access` names nobody";
        let refusal = Err(Refusal::new(StatusCode::FORBIDDEN, why));
        return if connection.is_local { Ok((User::LOCAL, None)) } else { refusal };
    };
    let control = connection.control();
    let certificate = connection.certificate.map(|chain| Proof::Certificate(Arc::clone(chain)));
    let proof = access::proof(request.headers()).map(|proof| proof.or(certificate));
    let user = match &proof {
        Ok(None) => Err(Refusal::unproven(
            control,
            "say who you are: send a token or a password (`--admin-token-file`, or `--admin-user` and `--admin-password-file`)",
            RefusedFor::Missing,
        )),
        Ok(Some(proof)) => identify(connection, &**users, proof).await,
        Err(_) => may_try(connection).and_then(|()| Err(is_wrong(connection, WRONG))),
    }?;
    if page.changes_state() && user.role < Role::Act {
        control.note_refused(RefusedFor::Role);
        let why = format!("{user} may see everything and change nothing: `admin_access.act` has those who may");
        return Err(Refusal::new(StatusCode::FORBIDDEN, why));
    }
    Ok((user, proof.ok().flatten()))
}

const WRONG: &str = "the token or the password is wrong";

/// Says whose proof this is. One that is right at once is always taken, so that nobody who shares an address with a guesser is locked out.
async fn identify(connection: Connection<'_>, users: &dyn Users, proof: &Proof) -> Result<User, Refusal> {
    if let Some(user) = users.known(proof) {
        return Ok(user);
    }
    if matches!(proof, Proof::Certificate(_)) {
        let why = "`admin_access` has no certificate like that of this client, or it is no longer valid, and the client sent no token and no \
                   password";
        return Err(Refusal::unproven(connection.control(), why, RefusedFor::Wrong));
    }
    may_try(connection)?;
    match users.identify(proof).await {
        Ok(user) => Ok(user),
        Err(Doubt::Wrong) => Err(is_wrong(connection, WRONG)),
        Err(Doubt::Busy) => {
            let why = "too many passwords wait to be checked: try again";
            Err(Refusal::new(StatusCode::SERVICE_UNAVAILABLE, why).header(RETRY_AFTER, 1.into()))
        }
    }
}

/// Whether the client's address was not wrong too often.
fn may_try(connection: Connection<'_>) -> Result<(), Refusal> {
    let Connection { shared, client, .. } = connection;
    shared.limiter.may_try(client, Instant::now()).map_err(|wait| {
        shared.control.note_refused(RefusedFor::TooOften);
        shared.limiter.log(client, Instant::now());
        let why = "too many wrong tokens or passwords came from this address: wait";
        Refusal::new(StatusCode::TOO_MANY_REQUESTS, why).header(RETRY_AFTER, (wait.as_secs() + 1).into())
    })
}

fn is_wrong(connection: Connection<'_>, why: &str) -> Refusal {
    let Connection { shared, client, .. } = connection;
    shared.limiter.was_wrong(client, Instant::now());
    shared.limiter.log(client, Instant::now());
    Refusal::unproven(&*shared.control, why, RefusedFor::Wrong)
}

impl Refusal {
    /// The request does not say who it is from.
    fn unproven(control: &dyn Control, why: &str, reason: RefusedFor) -> Self {
        control.note_refused(reason);
        Self::new(StatusCode::UNAUTHORIZED, why)
            .header(WWW_AUTHENTICATE, HeaderValue::from_static("Basic realm=\"Steelyard\", charset=\"UTF-8\""))
            .header(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"Steelyard\""))
    }
}
