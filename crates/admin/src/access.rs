//! Who a request is from, and whether they may do what they ask for.
//!
//! Job: read the proof in a request, limit how often an address may be wrong, and log that in few lines. Not its job: judging proofs, which an
//! implementation of [`Users`] does.

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hyper::HeaderMap;
use hyper::header::AUTHORIZATION;
use rustls::pki_types::CertificateDer;
use tokio::time::{Duration, Instant};

/// What an address may be wrong before it has to wait. A person mistypes a password a few times.
const WRONG_MAX: f64 = 10.0;
/// One more for this time.
const WRONG_EVERY: Duration = Duration::from_secs(2);
/// The addresses whose wrong proofs are remembered. Those beyond share one count.
const ADDRESSES_MAX: usize = 1024;
/// Wrong proofs are logged once in this time, with their number.
const LOG_EVERY: Duration = Duration::from_secs(60);

/// What somebody may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// See everything, and change nothing.
    Read,
    /// Also change things.
    Act,
}

/// Somebody who may use the admin address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// The name in the configuration. `None`: the configuration names nobody, and whoever can connect may do everything.
    pub name: Option<String>,
    /// What they may do.
    pub role: Role,
}

impl User {
    /// Somebody who can connect to an address where that is enough.
    pub(crate) const LOCAL: Self = Self { name: None, role: Role::Act };
}

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name.as_deref().unwrap_or("(local)"))
    }
}

/// What a request has to prove who it is from. Nothing prints it.
#[derive(Clone, PartialEq, Eq)]
pub enum Proof {
    /// `Authorization: Bearer`.
    Token(Vec<u8>),
    /// `Authorization: Basic`.
    Password {
        /// The name of the user.
        user: String,
        /// The password.
        password: Vec<u8>,
    },
    /// The certificate with whose key the client has made the handshake, and those that lead from it to a CA. Whether they do so now is for
    /// [`Users`] to say: the CA of clients may have been another one then, and the certificate may have expired.
    Certificate(Arc<[CertificateDer<'static>]>),
}

/// Why a proof does not say who a request is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// It is wrong.
    Wrong,
    /// Too many passwords wait to be checked.
    Busy,
}

/// Those who may use the admin address.
pub trait Users: Send + Sync + 'static {
    /// Says whose proof this is if that can be said at once: whose token or certificate it is, or whose password if it was right before. It
    /// takes a time that tells nothing about those that are right.
    fn known(&self, proof: &Proof) -> Option<User>;

    /// Says whose proof this is, in a time that tells nothing about those that are right.
    fn identify<'u>(&'u self, proof: &'u Proof) -> Pin<Box<dyn Future<Output = Result<User, Doubt>> + Send + 'u>>;
}

/// What the configuration says about the admin address.
#[derive(Clone, Default)]
pub struct Access {
    /// Names, in lower case, under which browsers may reach it, besides addresses and `localhost`.
    pub hosts: Arc<[String]>,
    /// `None`: whoever can connect may do everything.
    pub users: Option<Arc<dyn Users>>,
    /// How connections are encrypted; `None`: they are not.
    pub tls: Option<Arc<rustls::ServerConfig>>,
}

impl Access {
    /// Whether who was admitted with this proof, or with none, may still see everything.
    pub(crate) fn still_admits(&self, proof: Option<&Proof>, is_local: bool) -> bool {
        match (&self.users, proof) {
            (None, _) => is_local,
            (Some(users), Some(proof)) => users.known(proof).is_some(),
            (Some(_), None) => false,
        }
    }
}

/// Why a request got no answer, for counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusedFor {
    /// It proved nothing.
    Missing,
    /// Its proof was wrong.
    Wrong,
    /// Its address was wrong too often, and the proof was not looked at.
    TooOften,
    /// Its user may not do this.
    Role,
}

impl RefusedFor {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Missing, Self::Wrong, Self::TooOften, Self::Role];

    /// The word in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Wrong => "wrong",
            Self::TooOften => "too_often",
            Self::Role => "role",
        }
    }
}

/// Returns what a request proves. `Ok(None)` is nothing.
///
/// # Errors
/// [`Doubt::Wrong`]: nobody can read it.
pub(crate) fn proof(headers: &HeaderMap) -> Result<Option<Proof>, Doubt> {
    let mut all = headers.get_all(AUTHORIZATION).iter();
    let Some(value) = all.next() else { return Ok(None) };
    if all.next().is_some() {
        return Err(Doubt::Wrong);
    }
    let bytes = value.as_bytes();
    let space = bytes.iter().position(|byte| *byte == b' ').ok_or(Doubt::Wrong)?;
    let (scheme, rest) = bytes.split_at(space);
    let rest = rest.trim_ascii();
    if scheme.eq_ignore_ascii_case(b"bearer") {
        return Ok(Some(Proof::Token(rest.to_vec())));
    }
    if !scheme.eq_ignore_ascii_case(b"basic") {
        return Err(Doubt::Wrong);
    }
    let login = String::from_utf8(STANDARD.decode(rest).map_err(|_| Doubt::Wrong)?).map_err(|_| Doubt::Wrong)?;
    let (user, password) = login.split_once(':').ok_or(Doubt::Wrong)?;
    Ok(Some(Proof::Password { user: user.to_owned(), password: password.as_bytes().to_vec() }))
}

/// How often addresses were wrong.
#[derive(Default)]
pub(crate) struct Limiter(Mutex<Wrong>);

#[derive(Default)]
struct Wrong {
    /// What each address may still be wrong, and since when. An address that may be wrong as often as any other is left out.
    left: HashMap<Option<IpAddr>, (f64, Instant)>,
    /// Wrong proofs that no line has reported, and the time of the last line.
    unreported: u64,
    reported: Option<Instant>,
}

impl Limiter {
    /// Whether this address may try another proof. `None` is a Unix socket.
    ///
    /// # Errors
    /// It was wrong too often: it may try again after this time.
    pub(crate) fn may_try(&self, client: Option<IpAddr>, now: Instant) -> Result<(), Duration> {
        let mut wrong = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let key = wrong.key(client, now);
        let left = wrong.left.get(&key).map_or(WRONG_MAX, |left| refilled(*left, now));
        if left < 1.0 { Err(WRONG_EVERY.mul_f64(1.0 - left)) } else { Ok(()) }
    }

    /// A proof of this address was wrong. Only these count, so that many right ones at a time do not lock out their user. Wrong ones at a time
    /// make the address wait for each of them.
    pub(crate) fn was_wrong(&self, client: Option<IpAddr>, now: Instant) {
        let mut wrong = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let key = wrong.key(client, now);
        let left = wrong.left.entry(key).or_insert((WRONG_MAX, now));
        *left = (refilled(*left, now) - 1.0, now);
    }

    /// Logs wrong proofs, at most one line a minute.
    pub(crate) fn log(&self, client: Option<IpAddr>, now: Instant) {
        let mut wrong = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        wrong.unreported += 1;
        if wrong.reported.is_some_and(|last| now.duration_since(last) < LOG_EVERY) {
            return;
        }
        let last = client.map_or_else(|| "a Unix socket".to_owned(), |client| client.to_string());
        let requests = std::mem::take(&mut wrong.unreported);
        wrong.reported = Some(now);
        tracing::warn!(requests, last, "the admin address refused requests with wrong credentials");
    }
}

impl Wrong {
    /// The key of an address.
    fn key(&mut self, client: Option<IpAddr>, now: Instant) -> Option<IpAddr> {
        let client = client.map(network);
        if self.left.contains_key(&client) || self.left.len() < ADDRESSES_MAX {
            return client;
        }
        self.left.retain(|_, left| refilled(*left, now) < WRONG_MAX);
        if self.left.len() < ADDRESSES_MAX { client } else { Some(IpAddr::V6(Ipv6Addr::UNSPECIFIED)) }
    }
}

/// What stands for an address where addresses are counted: a host may have every address of an IPv6 /64.
pub(crate) fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from(u128::from(address) & !u128::from(u64::MAX))),
        v4 @ IpAddr::V4(_) => v4,
    }
}

fn refilled((left, since): (f64, Instant), now: Instant) -> f64 {
    let passed = now.saturating_duration_since(since).as_secs_f64();
    (left + passed / WRONG_EVERY.as_secs_f64()).min(WRONG_MAX)
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    #[test]
    fn proofs() {
        let check = |values: &[&str], expect: Result<Option<Proof>, Doubt>| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(AUTHORIZATION, HeaderValue::from_str(value).unwrap());
            }
            assert!(proof(&headers) == expect, "{values:?}");
        };
        let password = |user: &str, password: &str| {
            Ok(Some(Proof::Password { user: user.into(), password: password.as_bytes().to_vec() }))
        };
        check(&[], Ok(None));
        check(&["Bearer abc"], Ok(Some(Proof::Token(b"abc".to_vec()))));
        check(&["bearer  abc "], Ok(Some(Proof::Token(b"abc".to_vec()))));
        check(&["Basic YW5uOmE6Yg=="], password("ann", "a:b"));
        check(&["Basic Og=="], password("", ""));
        for wrong in ["Basic", "Basic !", "Basic YW5u", "Basic /w==", "Digest a", "abc"] {
            check(&[wrong], Err(Doubt::Wrong));
        }
        check(&["Bearer a", "Bearer b"], Err(Doubt::Wrong));
    }

    /// Counts a wrong proof if the address may try one.
    fn attempt(limiter: &Limiter, client: Option<IpAddr>, now: Instant) -> Result<(), Duration> {
        limiter.may_try(client, now)?;
        limiter.was_wrong(client, now);
        Ok(())
    }

    #[test]
    fn an_address_that_is_wrong_too_often_waits_and_others_do_not() {
        let (limiter, begin) = (Limiter::default(), Instant::now());
        let [one, other] = ["192.0.2.1", "192.0.2.2"].map(|address| Some(address.parse().unwrap()));
        let refused = (0..10_000).filter(|_| attempt(&limiter, one, begin).is_err()).count();
        assert_eq!(refused, 9_990);
        assert_eq!(attempt(&limiter, other, begin), Ok(()));
        assert_eq!(attempt(&limiter, one, begin), Err(WRONG_EVERY));
        assert_eq!(attempt(&limiter, one, begin + WRONG_EVERY), Ok(()));
        // Right ones do not count.
        assert!((0..1000).all(|_| limiter.may_try(other, begin).is_ok()));
    }

    #[test]
    fn wrong_proofs_at_a_time_are_paid_for() {
        let (limiter, begin) = (Limiter::default(), Instant::now());
        let client = Some("192.0.2.1".parse().unwrap());
        // All of them were begun before the first was found wrong.
        (0..50).for_each(|_| limiter.was_wrong(client, begin));
        assert_eq!(limiter.may_try(client, begin), Err(WRONG_EVERY * 41));
        assert_eq!(limiter.may_try(client, begin + WRONG_EVERY * 41), Ok(()));
    }

    #[test]
    fn ever_new_addresses_need_no_more_memory() {
        let (limiter, now) = (Limiter::default(), Instant::now());
        let addresses = (0..100_000_u32).map(|number| Some(IpAddr::V4(number.into())));
        let refused = addresses.filter(|address| attempt(&limiter, *address, now).is_err()).count();
        assert_eq!(refused, 100_000 - ADDRESSES_MAX - WRONG_MAX as usize);
        assert!(limiter.0.lock().unwrap().left.len() <= ADDRESSES_MAX + 1);
        // Later, there is room again.
        let later = now + WRONG_EVERY.mul_f64(2.0 * WRONG_MAX);
        assert_eq!(attempt(&limiter, Some("192.0.2.1".parse().unwrap()), later), Ok(()));
        assert_eq!(limiter.0.lock().unwrap().left.len(), 1);
        // All addresses of an IPv6 network are one.
        let refused = (0..100_u128).map(|number| Some(IpAddr::V6(Ipv6Addr::from((0x2001_u128 << 112) + number))));
        assert_eq!(refused.filter(|address| attempt(&limiter, *address, later).is_err()).count(), 90);
    }
}
