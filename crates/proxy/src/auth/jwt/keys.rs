//! The keys that verify tokens, and where a set of them comes from. Workers read the set in use, and the control thread puts others in its
//! place.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwapOption;
use aws_lc_rs::signature::{self, ParsedPublicKey, RsaPublicKeyComponents, VerificationAlgorithm};
use model::{Jwk, JwkSet, Jwks, JwksUrl, JwtAlgorithm, KeyMaterial};
use tokio::sync::Notify;

use crate::auth::tag::Tag;

/// The number of the last set that was made.
static LAST: AtomicU64 = AtomicU64::new(0);

/// The keys of one version of a set.
pub(crate) struct KeySet {
    /// No other set of this process has it.
    pub(super) id: u64,
    /// Of what it says ([`tag`]).
    tag: Tag,
    keys: Box<[Key]>,
    /// Keys that verify tokens, and keys that do not.
    counts: (usize, usize),
}

/// A key for one algorithm.
pub(super) struct Key {
    kid: Option<Box<str>>,
    algorithm: JwtAlgorithm,
    /// Whether the key itself says that it is for this algorithm.
    is_named: bool,
    pub(super) public: ParsedPublicKey,
    /// How long it takes to find a signature wrong, in microseconds; at least 1.
    pub(super) takes_us: u64,
}

impl KeySet {
    /// Reads a set.
    ///
    /// # Errors
    /// Why none of its keys is used.
    pub(crate) fn parse(text: &[u8]) -> Result<Self, String> {
        let set = JwkSet::parse(text)?;
        let (mut keys, mut ignored) = (Vec::new(), set.ignored.len());
        for key in &set.keys {
            match made(key) {
                Some(made) => keys.extend(made),
                None => ignored += 1,
            }
        }
        if keys.is_empty() {
            return Err("the numbers of its keys are not those of public keys".to_owned());
        }
        let tag = tag(&set).ok_or("there are no random numbers")?;
        let counts = (set.keys.len() + set.ignored.len() - ignored, ignored);
        Ok(Self { id: LAST.fetch_add(1, Relaxed) + 1, tag, keys: keys.into(), counts })
    }

    /// The keys that a token with this header may be signed with. `accepted` are the algorithms of the policy.
    pub(super) fn find<'s>(
        &'s self,
        kid: Option<&'s str>,
        algorithm: JwtAlgorithm,
        accepted: Option<&'s [JwtAlgorithm]>,
    ) -> impl Iterator<Item = &'s Key> {
        let is_accepted = move |key: &&Key| match accepted {
            Some(accepted) => accepted.contains(&algorithm),
            None => key.is_named || algorithm == JwtAlgorithm::Rs256,
        };
        let is_meant = move |key: &&Key| match (kid, &key.kid) {
            (Some(kid), Some(known)) => kid == &**known,
            // The issuer has named neither, or tells its keys apart by other means.
            (None, _) | (_, None) => true,
        };
        let keys = self.keys.iter().filter(move |key| key.algorithm == algorithm);
        keys.filter(is_meant).filter(is_accepted)
    }

    /// Whether a key has this name.
    pub(super) fn has(&self, kid: &str) -> bool {
        self.keys.iter().any(|key| key.kid.as_deref() == Some(kid))
    }
}

/// The same for all texts that say the same: some issuers write their keys in another order, or other fields beside them, with each answer.
fn tag(set: &JwkSet) -> Option<Tag> {
    let of_key = |key: &Jwk| {
        let (kind, numbers): (&[u8], [&[u8]; 2]) = match &key.material {
            KeyMaterial::Rsa(modulus, exponent) => (b"rsa", [modulus, exponent]),
            KeyMaterial::Ec(point) => (b"ec", [point, b""]),
            KeyMaterial::Ed25519(x) => (b"ed25519", [x, b""]),
        };
        let kid = key.kid.as_deref();
        let (is_named, algorithm) = (u8::from(kid.is_some()), key.algorithm.map_or("", JwtAlgorithm::name));
        let [first, second] = numbers;
        Some(
            Tag::of(&[kind, first, second, &[is_named], kid.unwrap_or_default().as_bytes(), algorithm.as_bytes()])?
                .halves(),
        )
    };
    let mut keys = set.keys.iter().map(of_key).collect::<Option<Vec<_>>>()?;
    keys.sort_unstable();
    let keys: Vec<u8> = keys.into_iter().flatten().flat_map(u64::to_le_bytes).collect();
    Tag::of(&[b"jwks", &keys, &(set.ignored.len() as u64).to_le_bytes()])
}

/// A key for each algorithm that it may be used for; `None` if the numbers are none of a key.
fn made(key: &Jwk) -> Option<Vec<Key>> {
    use JwtAlgorithm::{EdDsa, Es256, Es384, Es512, Ps256, Ps384, Ps512, Rs256, Rs384, Rs512};
    let make = |algorithm: JwtAlgorithm| {
        let of_rsa = |parameters| match &key.material {
            KeyMaterial::Rsa(n, e) => RsaPublicKeyComponents { n, e }.to_parsed_public_key(parameters).ok(),
            KeyMaterial::Ec(_) | KeyMaterial::Ed25519(_) => None,
        };
        let of_point = |algorithm: &'static dyn VerificationAlgorithm| match &key.material {
            KeyMaterial::Ec(point) => ParsedPublicKey::new(algorithm, point).ok(),
            KeyMaterial::Rsa(..) | KeyMaterial::Ed25519(_) => None,
        };
        let public = match algorithm {
            Rs256 => of_rsa(&signature::RSA_PKCS1_2048_8192_SHA256),
            Rs384 => of_rsa(&signature::RSA_PKCS1_2048_8192_SHA384),
            Rs512 => of_rsa(&signature::RSA_PKCS1_2048_8192_SHA512),
            Ps256 => of_rsa(&signature::RSA_PSS_2048_8192_SHA256),
            Ps384 => of_rsa(&signature::RSA_PSS_2048_8192_SHA384),
            Ps512 => of_rsa(&signature::RSA_PSS_2048_8192_SHA512),
            // "Fixed" is the form of RFC 7518 section 3.4. Signatures in DER have another length, and are refused.
            Es256 => of_point(&signature::ECDSA_P256_SHA256_FIXED),
            Es384 => of_point(&signature::ECDSA_P384_SHA384_FIXED),
            Es512 => of_point(&signature::ECDSA_P521_SHA512_FIXED),
            EdDsa => match &key.material {
                KeyMaterial::Ed25519(x) => ParsedPublicKey::new(&signature::ED25519, x).ok(),
                KeyMaterial::Rsa(..) | KeyMaterial::Ec(_) => None,
            },
        };
        let (kid, is_named) = (key.kid.as_deref().map(Into::into), key.algorithm.is_some());
        Some(Key { kid, algorithm, is_named, public: public?, takes_us: takes_us(algorithm, &key.material) })
    };
    let of_rsa = [Rs256, Rs384, Rs512, Ps256, Ps384, Ps512];
    match key.algorithm {
        Some(algorithm) => make(algorithm).map(|key| vec![key]),
        None => of_rsa.into_iter().map(make).collect(),
    }
}

/// How long it takes to find a signature wrong, in microseconds, rounded up from what was measured once (aws-lc-rs 1.19, Zen 4): 20 for RSA of
/// 2048 bits, which takes four times as long with twice the bits; 45 with EdDSA, 310 with ES384 and 570 with ES512.
fn takes_us(algorithm: JwtAlgorithm, material: &KeyMaterial) -> u64 {
    if let KeyMaterial::Rsa(modulus, _) = material {
        let times = (modulus.len() as u64).div_ceil(256);
        return 20 * times * times;
    }
    match algorithm {
        JwtAlgorithm::Es384 => 300,
        JwtAlgorithm::Es512 => 600,
        _ => 70,
    }
}

/// Where a set comes from, and the version of it that is in use. All policies with the same origin share it.
pub struct KeySource {
    jwks: Jwks,
    keys: ArcSwapOption<KeySet>,
    /// A token names a key that is not there.
    is_asked: AtomicBool,
    asked: Notify,
    fetches: Mutex<Fetches>,
    /// Signatures that were right, and tokens that were not, as far as a signature was looked at.
    verified: [AtomicU64; 2],
}

/// What became of fetching a set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fetches {
    /// Sets that were fetched and are good.
    pub good: u64,
    /// Attempts that failed.
    pub failed: u64,
    /// When the last good set was fetched, in milliseconds of the monotonic clock.
    pub good_ms: Option<u64>,
    /// Why the last attempt failed; `None` if it did not.
    pub failure: Option<String>,
}

impl KeySource {
    /// A source whose keys are known, or are fetched later.
    pub(crate) fn new(jwks: Jwks, keys: Option<KeySet>) -> Self {
        Self {
            jwks,
            keys: ArcSwapOption::new(keys.map(Arc::new)),
            is_asked: AtomicBool::new(false),
            asked: Notify::new(),
            fetches: Mutex::default(),
            verified: Default::default(),
        }
    }

    /// The name in metrics and in `status`: the URL, the file, or `inline`.
    pub fn name(&self) -> String {
        self.jwks.masked().to_string()
    }

    /// Where it is fetched; `None` for files and texts.
    pub fn url(&self) -> Option<&JwksUrl> {
        match &self.jwks {
            Jwks::Url(url) => Some(url),
            Jwks::File(_) | Jwks::Inline(_) => None,
        }
    }

    /// Waits until a token names a key that is not there.
    pub async fn asked(&self) {
        self.asked.notified().await;
        self.is_asked.store(false, Relaxed);
    }

    /// Puts a fetched set in the place of the one in use. One that says the same changes nothing, so that tokens stay known.
    ///
    /// # Errors
    /// It cannot be used. The one in use stays.
    pub fn publish(&self, text: &[u8], now_ms: u64) -> Result<(), String> {
        let set = KeySet::parse(text)?;
        if self.keys.load().as_ref().is_none_or(|old| old.tag != set.tag) {
            self.keys.store(Some(Arc::new(set)));
        }
        let mut fetches = self.lock();
        fetches.good += 1;
        (fetches.good_ms, fetches.failure) = (Some(now_ms), None);
        Ok(())
    }

    /// Notes that the set could not be fetched, or not be used.
    pub fn note_failure(&self, why: String) {
        let mut fetches = self.lock();
        fetches.failed += 1;
        fetches.failure = Some(why);
    }

    /// What became of fetching it.
    pub fn fetches(&self) -> Fetches {
        self.lock().clone()
    }

    /// Keys that are in use, and keys of the set that are not used; `None` if there is no set yet.
    pub fn counts(&self) -> Option<(usize, usize)> {
        self.keys.load().as_ref().map(|keys| keys.counts)
    }

    /// Signatures that were right, and tokens that were refused after a look at their signature.
    pub fn verified(&self) -> (u64, u64) {
        let [good, bad] = &self.verified;
        (good.load(Relaxed), bad.load(Relaxed))
    }

    pub(super) fn count(&self, is_good: bool) {
        let [good, bad] = &self.verified;
        if is_good { good } else { bad }.fetch_add(1, Relaxed);
    }

    /// The keys in use.
    pub(super) fn keys(&self) -> Option<Arc<KeySet>> {
        self.keys.load_full()
    }

    /// A key is missing that may be in a newer set. Only the first of many such calls costs more than a look.
    pub fn ask(&self) {
        if self.url().is_some() && !self.is_asked.swap(true, Relaxed) {
            self.asked.notify_one();
        }
    }

    /// Whether both have the same origin, and, if it is not fetched, the same keys.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let tag = |source: &Self| source.keys().map(|keys| keys.tag);
        self.jwks == other.jwks && (self.url().is_some() || tag(self) == tag(other))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Fetches> {
        self.fetches.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
