//! Tokens (JWT, RFC 7519, signed as RFC 7515 says): whether a request has one, and what it proves.
//!
//! aws-lc-rs verifies the signatures. The rest is small, and libraries for tokens leave the part of it to their users that matters here: a
//! key is for one algorithm whatever the token says, `crit` is refused, and a name that is there twice is no name. See also RFC 8725.
//!
//! A signature takes tens to hundreds of microseconds, so the worker verifies it at once. Tokens are `remembered`, those that were right and
//! those that were not, and the time for wrong ones has a `budget`.

pub(crate) mod budget;
pub(crate) mod claims;
pub(crate) mod fuzzing;
pub(crate) mod keys;
pub(crate) mod remembered;
#[cfg(test)]
mod tests;

use std::cmp::Ordering;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed as Unordered};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use model::{Auth, JwtAlgorithm, JwtAuth, claim_path};
use telemetry::Reason;

use self::claims::{Claim, Header, Registered};
use self::keys::{KeySet, KeySource};
use self::remembered::{Tokens, Wrong};
use super::present::{self, Presented};
use super::tag::Tag;
use crate::error::Error;
use crate::exchange::Request;

/// Bytes of a token. Those of large providers have up to 8 KiB.
const TOKEN_BYTES_MAX: usize = 16 * 1024;

/// Keys that are tried for a token that names none.
const TRIES_MAX: usize = 4;

/// Bytes of all headers that the endpoint gets of one token.
const FIELDS_BYTES_MAX: usize = 8 * 1024;

/// How soon a client may ask again while there are no keys, in seconds.
const RETRY_AFTER_S: u64 = 1;

/// Verifies the tokens of one policy.
pub(crate) struct Verifier {
    policy: Arc<Auth>,
    pub(crate) source: Arc<KeySource>,
    /// No other policy of this process has it.
    id: u64,
    /// The claims that conditions of routes look at, each with its path.
    wanted: Box<[(Box<str>, Vec<String>)]>,
    /// The headers for the endpoint, each with the path of its claim.
    fields: Box<[(Box<str>, Vec<String>)]>,
    challenges: Challenges,
}

/// The values of `WWW-Authenticate` (RFC 6750 section 3).
struct Challenges {
    missing: Box<str>,
    invalid: Box<str>,
    denied: Box<str>,
}

/// What a token says that was right.
#[derive(Debug, PartialEq)]
pub(crate) struct Verified {
    /// The claims that conditions of routes look at, by their names there.
    claims: Box<[(Box<str>, Claim)]>,
    /// The headers for the endpoint.
    fields: Box<[(Box<str>, Box<str>)]>,
    /// In seconds since 1970.
    not_before_s: f64,
    /// The same; infinite if it has no end.
    ends_s: f64,
}

/// When a token is looked at, and for whom.
pub(crate) struct Bearing<'b> {
    /// Milliseconds since 1970, for the times of the token.
    pub(crate) unix_ms: u64,
    /// Milliseconds of the worker's clock.
    pub(crate) now_ms: u64,
    /// Identifies the address of the client. It is a function, as tokens that are known do not need it.
    pub(crate) client: &'b dyn Fn() -> u64,
}

/// Why no key has signed a token.
struct Unsigned {
    reason: Reason,
    /// A newer set of keys may have the one that has.
    asks: bool,
    /// The time that it took to find out, in microseconds; 0 if no signature was verified.
    took_us: u64,
}

/// Who a request is from, as far as its token tells.
pub(crate) enum Identity {
    /// It has no token.
    Nobody,
    Known(Rc<Verified>),
    /// The token is not right, or cannot be verified now.
    Refused(Error),
}

impl Verified {
    /// One with these claims.
    #[cfg(test)]
    pub(crate) fn of_claims(claims: &[(&str, &[&str])]) -> Self {
        let many = |texts: &[&str]| Claim::Many(texts.iter().map(|text| (*text).into()).collect());
        let claims = claims.iter().map(|(name, texts)| ((*name).into(), many(texts))).collect();
        Self { claims, fields: Box::default(), not_before_s: 0.0, ends_s: 0.0 }
    }

    /// The claim with this name in the conditions of routes.
    pub(crate) fn claim(&self, name: &str) -> Option<&Claim> {
        self.claims.iter().find(|(known, _)| **known == *name).map(|(_, claim)| claim)
    }

    /// The headers for the endpoint.
    pub(crate) fn fields(&self) -> impl Iterator<Item = (&str, &str)> {
        self.fields.iter().map(|(name, value)| (&**name, &**value))
    }

    /// Roughly how much memory it takes.
    fn bytes(&self) -> usize {
        let of_claims = self.claims.iter().map(|(name, claim)| name.len() + claim.bytes());
        let of_fields = self.fields.iter().map(|(name, value)| name.len() + value.len());
        size_of::<Self>() + of_claims.chain(of_fields).sum::<usize>()
    }
}

impl Verifier {
    /// `None` if the policy demands no token. `wanted` are the claims that conditions of routes look at.
    pub(crate) fn new(policy: &Arc<Auth>, source: Arc<KeySource>, wanted: &[Box<str>]) -> Option<Self> {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let Auth::Jwt(JwtAuth { realm, claim_headers, .. }) = &**policy else { return None };
        let fields = claim_headers.iter().map(|(name, claim)| (name.as_str().into(), claim_path(claim)));
        Some(Self {
            policy: policy.clone(),
            source,
            id: LAST.fetch_add(1, Unordered) + 1,
            wanted: wanted.iter().map(|name| (name.clone(), claim_path(name))).collect(),
            fields: fields.collect(),
            challenges: Challenges {
                missing: format!("Bearer realm=\"{realm}\"").into(),
                invalid: format!("Bearer realm=\"{realm}\", error=\"invalid_token\"").into(),
                denied: format!("Bearer realm=\"{realm}\", error=\"insufficient_scope\"").into(),
            },
        })
    }

    fn policy(&self) -> Option<&JwtAuth> {
        match &*self.policy {
            Auth::Jwt(policy) => Some(policy),
            Auth::Basic(_) | Auth::ApiKey(_) => None,
        }
    }

    /// The value of `WWW-Authenticate` for a refusal with this reason.
    pub(crate) fn challenge(&self, reason: Reason) -> &str {
        match reason {
            Reason::CredentialsMissing => &self.challenges.missing,
            Reason::TokenAudience | Reason::ClaimsDenied => &self.challenges.denied,
            _ => &self.challenges.invalid,
        }
    }

    /// Whether it looks at this claim for conditions of routes.
    pub(crate) fn is_for(&self, wanted: &[Box<str>]) -> bool {
        self.wanted.iter().map(|(name, _)| name).eq(wanted)
    }

    /// Whether a request without a token passes.
    pub(crate) fn is_optional(&self) -> bool {
        self.policy().is_some_and(|policy| policy.optional)
    }

    /// Who the request is from. It keeps its token.
    pub(crate) fn identify(&self, request: &Request, bearing: &Bearing<'_>, tokens: &Tokens) -> Identity {
        let Some(policy) = self.policy() else { return Identity::Refused(Error::internal(Reason::Internal)) };
        let token = match present::find_token(request, &policy.places, policy.forward) {
            Presented::Nothing => return Identity::Nobody,
            Presented::Malformed => return Identity::Refused(super::invalid()),
            Presented::These(token) => token,
        };
        match self.verify(policy, &token, bearing, tokens) {
            Ok(verified) => Identity::Known(verified),
            Err(error) => Identity::Refused(error),
        }
    }

    /// Removes the token, unless the endpoint gets it.
    pub(crate) fn strip(&self, request: &mut Request) {
        if let Some(policy) = self.policy().filter(|policy| !policy.forward) {
            present::remove_token(request, &policy.places);
        }
    }

    /// # Errors
    /// [`Reason::CredentialsInvalid`], [`Reason::TokenExpired`], [`Reason::TokenNotYetValid`], [`Reason::TokenKeyUnknown`],
    /// [`Reason::TokenAudience`], [`Reason::TokenKeysMissing`], [`Reason::TokenAttempts`], [`Reason::TokensBusy`].
    fn verify(
        &self,
        policy: &JwtAuth,
        token: &[u8],
        bearing: &Bearing<'_>,
        tokens: &Tokens,
    ) -> Result<Rc<Verified>, Error> {
        if token.len() > TOKEN_BYTES_MAX {
            return Err(super::invalid());
        }
        let now_s = bearing.unix_ms as f64 / 1000.0;
        let keys = self.source.keys();
        let tag = Tag::of(&[b"token", &self.id.to_le_bytes(), token]);
        if let (Some(tag), Some(keys)) = (&tag, &keys) {
            if let Some(verified) = tokens.find(tag, keys.id) {
                check_times(&verified, policy, now_s)?;
                return Ok(verified);
            }
            if let Some(Wrong { reason, asks }) = tokens.find_wrong(tag, keys.id) {
                if asks {
                    self.source.ask();
                }
                return Err(Error::internal(reason));
            }
        }
        let parts = Parts::of(token).ok_or_else(super::invalid)?;
        let keys = keys.ok_or_else(|| Error::internal(Reason::TokenKeysMissing).retry_after(RETRY_AFTER_S))?;
        let remember = |reason: Reason, asks: bool| {
            if let Some(tag) = tag {
                tokens.put_wrong(tag, keys.id, Wrong { reason, asks });
            }
        };
        let client = (bearing.client)();
        tokens.budget.admit(client, bearing.now_ms)?;
        let is_signed = self.is_signed(policy, &keys, &parts);
        self.source.count(is_signed.is_ok());
        if let Err(Unsigned { reason, asks, took_us }) = is_signed {
            if asks {
                // The issuer may have a new key since.
                self.source.ask();
            }
            if took_us > 0 {
                tokens.budget.spend(client, bearing.now_ms, took_us);
                remember(reason, asks);
            }
            return Err(Error::internal(reason));
        }
        let read = self.read(policy, &parts.payload, now_s);
        let verified = Rc::new(read.inspect_err(|error| remember(error.reason, false))?);
        // Also if it has ended, or does not hold yet: its times are looked at each time.
        if let Some(tag) = tag {
            tokens.put(tag, keys.id, &verified);
        }
        check_times(&verified, policy, now_s)?;
        Ok(verified)
    }

    /// Whether a key of the set has signed the token.
    ///
    /// # Errors
    /// [`Reason::CredentialsInvalid`], [`Reason::TokenKeyUnknown`].
    fn is_signed(&self, policy: &JwtAuth, keys: &KeySet, parts: &Parts<'_>) -> Result<(), Unsigned> {
        let Parts { kid, algorithm, signed, signature, .. } = parts;
        let kid = kid.as_deref();
        let mut took_us = 0;
        for key in keys.find(kid, *algorithm, policy.algorithms.as_deref()).take(TRIES_MAX) {
            took_us += key.takes_us;
            if key.public.verify_sig(signed, signature).is_ok() {
                return Ok(());
            }
        }
        let is_known = kid.is_some_and(|kid| keys.has(kid));
        let reason = if took_us > 0 || is_known { Reason::CredentialsInvalid } else { Reason::TokenKeyUnknown };
        Err(Unsigned { reason, asks: !is_known, took_us })
    }

    /// What a token says whose signature is right. Its times must still be checked.
    ///
    /// # Errors
    /// Those of [`Verifier::verify`], for a token that stays wrong.
    fn read(&self, policy: &JwtAuth, payload: &[u8], now_s: f64) -> Result<Verified, Error> {
        let Registered { iss, aud, exp, nbf } = claims::object(payload).ok_or_else(super::invalid)?;
        if !iss.is_some_and(|iss| policy.issuers.contains(&iss)) || exp.is_none() && policy.require_exp {
            return Err(super::invalid());
        }
        let mut verified = Verified {
            claims: Box::default(),
            fields: Box::default(),
            not_before_s: nbf.unwrap_or(f64::NEG_INFINITY),
            ends_s: exp.unwrap_or(f64::INFINITY),
        };
        if let Some(audiences) = &policy.audiences
            && !aud.0.iter().any(|aud| audiences.contains(aud))
        {
            // A client whose token has ended as well gets a new one first.
            let ended = check_times(&verified, policy, now_s).err();
            return Err(ended.unwrap_or(Error::internal(Reason::TokenAudience)));
        }
        let find = |path: &[String]| claims::find(payload, path).map_err(|()| super::invalid());
        let mut found = Vec::with_capacity(self.wanted.len());
        for (name, path) in &self.wanted {
            if let Some(claim) = find(path)? {
                found.push((name.clone(), of_words(path, claim)));
            }
        }
        let (mut fields, mut bytes) = (Vec::with_capacity(self.fields.len()), 0);
        for (name, path) in &self.fields {
            let Some(claim) = find(path)? else { continue };
            if let Some(value) = claim.as_field().map_err(|()| super::invalid())? {
                bytes += value.len();
                fields.push((name.clone(), value.into()));
            }
        }
        if bytes > FIELDS_BYTES_MAX {
            return Err(super::invalid());
        }
        (verified.claims, verified.fields) = (found.into(), fields.into());
        Ok(verified)
    }
}

/// `scope` is a list of words (RFC 8693 section 4.2), and so is `scp`, as some issuers call it.
fn of_words(path: &[String], claim: Claim) -> Claim {
    match (path, claim) {
        ([name], Claim::One(words)) if matches!(name.as_str(), "scope" | "scp") => {
            Claim::Many(words.split_ascii_whitespace().map(Into::into).collect())
        }
        (_, claim) => claim,
    }
}

/// # Errors
/// [`Reason::TokenExpired`], [`Reason::TokenNotYetValid`].
fn check_times(verified: &Verified, policy: &JwtAuth, now_s: f64) -> Result<(), Error> {
    let leeway_s = policy.leeway.as_secs_f64();
    match now_s.partial_cmp(&(verified.ends_s + leeway_s)) {
        Some(Ordering::Less) => {}
        _ => return Err(Error::internal(Reason::TokenExpired)),
    }
    match now_s.partial_cmp(&(verified.not_before_s - leeway_s)) {
        Some(Ordering::Equal | Ordering::Greater) => Ok(()),
        _ => Err(Error::internal(Reason::TokenNotYetValid)),
    }
}

/// The parts of a token in the compact form (RFC 7515 section 7.1).
struct Parts<'t> {
    kid: Option<String>,
    algorithm: JwtAlgorithm,
    /// What the signature is for: header and payload as they arrived.
    signed: &'t [u8],
    payload: Vec<u8>,
    signature: Vec<u8>,
}

impl<'t> Parts<'t> {
    /// `None` if it is no token, names an algorithm or an extension that is not supported, or has an empty `kid`.
    fn of(token: &'t [u8]) -> Option<Self> {
        let mut dots = memchr::memchr_iter(b'.', token);
        let (first, second) = (dots.next()?, dots.next()?);
        if dots.next().is_some() {
            return None;
        }
        // Strict: no padding, and no bits that would not matter.
        let decoded = |part: &[u8]| URL_SAFE_NO_PAD.decode(part).ok();
        let Header { alg, kid, crit } = claims::object(&decoded(token.get(..first)?)?)?;
        let (payload, signature) = (decoded(token.get(first + 1..second)?)?, decoded(token.get(second + 1..)?)?);
        if crit || signature.is_empty() || kid.as_deref() == Some("") {
            return None;
        }
        Some(Self { kid, algorithm: JwtAlgorithm::named(&alg)?, signed: token.get(..second)?, payload, signature })
    }
}
