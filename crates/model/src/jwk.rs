//! Sets of public keys (JWKS, RFC 7517): which of them can verify tokens, and for which algorithm each of them is.
//!
//! A key is ignored if it is of a kind that is not supported or not meant for signatures, as sets have keys for other purposes too. The whole set
//! is refused if it is not a set, if it is ambiguous, or if it gives away a secret.

use std::collections::BTreeSet;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Map, Value};

use crate::JwtAlgorithm;

/// The keys of a set that can verify tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JwkSet {
    /// At least one.
    pub keys: Vec<Jwk>,
    /// The keys that are not used, each with the reason.
    pub ignored: Vec<String>,
}

/// A public key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Jwk {
    /// The `kid` by which tokens name it.
    pub kid: Option<String>,
    /// The only algorithm for which it may be used; `None` if an RSA key does not say it. All others have one by their kind.
    pub algorithm: Option<JwtAlgorithm>,
    /// The numbers.
    pub material: KeyMaterial,
}

/// The numbers of a public key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyMaterial {
    /// The modulus and the exponent, big-endian, without zeros in front.
    Rsa(Vec<u8>, Vec<u8>),
    /// An uncompressed point: 4, x, y. The algorithm says on which curve.
    Ec(Vec<u8>),
    /// A public key of Ed25519.
    Ed25519(Vec<u8>),
}

impl JwkSet {
    /// The size of a set. Those of public providers have up to 20 KiB.
    pub const KIB_MAX: u64 = 256;

    /// Keys of one set.
    pub const KEYS_MAX: usize = 100;

    /// Bits of an RSA modulus. Shorter ones can be broken (RFC 7518 section 3.3); longer ones take more time to verify than anyone needs.
    pub const RSA_BITS: (usize, usize) = (2048, 8192);

    /// Reads a set.
    ///
    /// # Errors
    /// Why none of its keys is used.
    pub fn parse(text: &[u8]) -> Result<Self, String> {
        if text.len() as u64 > Self::KIB_MAX * 1024 {
            return Err(format!("the key set is larger than {} KiB", Self::KIB_MAX));
        }
        let set: Value = serde_json::from_slice(text).map_err(|error| {
            // The parser's own text may quote what it has read.
            format!("the key set is not JSON: line {}, column {}", error.line(), error.column())
        })?;
        let Some(Value::Array(list)) = set.get("keys") else {
            return Err("the key set has no list `keys`".to_owned());
        };
        if list.len() > Self::KEYS_MAX {
            return Err(format!("the key set has {} keys; the limit is {}", list.len(), Self::KEYS_MAX));
        }
        let (mut keys, mut ignored) = (Vec::new(), Vec::new());
        for (at, key) in list.iter().enumerate() {
            let Value::Object(key) = key else { return Err(format!("key {} is not an object", at + 1)) };
            let named = match key.get("kid") {
                Some(Value::String(kid)) if is_shown(kid) => format!("key {kid}"),
                _ => format!("key {}", at + 1),
            };
            match read(key) {
                Ok(key) => keys.push(key),
                Err(Unusable::Leak) => return Err(format!("{named} is a private key, which must never be published")),
                Err(Unusable::Ignored(why)) => ignored.push(format!("{named}: {why}")),
            }
        }
        if keys.is_empty() {
            let why = ignored.first().map_or_else(|| "it is empty".to_owned(), Clone::clone);
            return Err(format!("the key set has no key that can verify tokens ({why})"));
        }
        // RFC 7517 section 4.5 allows one `kid` for equivalent keys of different kinds. Any other two could be mixed up.
        let mut seen = BTreeSet::new();
        for key in &keys {
            let Some(kid) = &key.kid else { continue };
            let is_taken = match key.algorithm {
                None => seen.iter().any(|(known, of)| *known == kid && is_rsa(*of)),
                Some(of) if is_rsa(Some(of)) => seen.contains(&(kid, None)) || seen.contains(&(kid, Some(of))),
                of => seen.contains(&(kid, of)),
            };
            if is_taken {
                let shown = if is_shown(kid) { kid.as_str() } else { "(not shown)" };
                return Err(format!("two keys have the kid {shown} and the same algorithm"));
            }
            seen.insert((kid, key.algorithm));
        }
        Ok(Self { keys, ignored })
    }
}

/// Whether the algorithm is one of RSA, as that of a key without one is.
fn is_rsa(algorithm: Option<JwtAlgorithm>) -> bool {
    use JwtAlgorithm::{Ps256, Ps384, Ps512, Rs256, Rs384, Rs512};
    matches!(algorithm, None | Some(Rs256 | Rs384 | Rs512 | Ps256 | Ps384 | Ps512))
}

/// Whether a text of others can be a part of a message.
fn is_shown(text: &str) -> bool {
    text.len() <= 64 && text.bytes().all(|byte| byte.is_ascii_graphic())
}

enum Unusable {
    Leak,
    Ignored(&'static str),
}

impl From<&'static str> for Unusable {
    fn from(why: &'static str) -> Self {
        Self::Ignored(why)
    }
}

fn read(key: &Map<String, Value>) -> Result<Jwk, Unusable> {
    let kind = text(key, "kty")?.ok_or("it has no kty")?;
    if kind == "oct" {
        // RFC 8725 section 3.5: whoever can read the set could make tokens.
        return Err("it is a shared secret (oct), and a secret in a key set is none".into());
    }
    if key.contains_key("d") {
        return Err(Unusable::Leak);
    }
    if text(key, "use")?.is_some_and(|purpose| purpose != "sig") {
        return Err("it is not for signatures (use)".into());
    }
    match key.get("key_ops") {
        None => {}
        Some(Value::Array(operations)) if operations.iter().any(|operation| operation == "verify") => {}
        Some(_) => return Err("it is not for verifying signatures (key_ops)".into()),
    }
    let kid = text(key, "kid")?.map(str::to_owned);
    if kid.as_deref() == Some("") {
        return Err("its kid is empty".into());
    }
    let named = match text(key, "alg")? {
        Some(name) => Some(JwtAlgorithm::named(name).ok_or("its algorithm (alg) is not supported")?),
        None => None,
    };
    let (material, own) = material(kind, key)?;
    let algorithm = match (own, named) {
        (None, named) if is_rsa(named) => named,
        (Some(own), None) => Some(own),
        (Some(own), Some(named)) if own == named => Some(own),
        _ => return Err("its algorithm (alg) is not one of its kind (kty, crv)".into()),
    };
    Ok(Jwk { kid, algorithm, material })
}

/// The numbers of a key of this kind, and the only algorithm of the kind; `None` for RSA, which has several.
fn material(kind: &str, key: &Map<String, Value>) -> Result<(KeyMaterial, Option<JwtAlgorithm>), Unusable> {
    match kind {
        "RSA" => {
            let (n, e) = (without_zeros(number(key, "n")?), without_zeros(number(key, "e")?));
            let bits = n.len() * 8 - n.first().map_or(0, |first| first.leading_zeros() as usize);
            if !(JwkSet::RSA_BITS.0..=JwkSet::RSA_BITS.1).contains(&bits) {
                return Err("its modulus must have 2048 to 8192 bits".into());
            }
            let is_even = |number: &[u8]| number.last().is_none_or(|last| last % 2 == 0);
            // With 1, every text would be its own signature.
            if e.len() > 4 || is_even(&e) || e == [1] || is_even(&n) {
                return Err("its modulus or its exponent is not one of RSA".into());
            }
            Ok((KeyMaterial::Rsa(n, e), None))
        }
        "EC" => {
            let (bytes, own) = match text(key, "crv")? {
                Some("P-256") => (32, JwtAlgorithm::Es256),
                Some("P-384") => (48, JwtAlgorithm::Es384),
                Some("P-521") => (66, JwtAlgorithm::Es512),
                _ => return Err("its curve (crv) is not supported".into()),
            };
            let (x, y) = (number(key, "x")?, number(key, "y")?);
            // RFC 7518 section 6.2.1.2: with the zeros in front.
            if x.len() != bytes || y.len() != bytes {
                return Err("its coordinates have the wrong length".into());
            }
            Ok((KeyMaterial::Ec([&[4], x.as_slice(), y.as_slice()].concat()), Some(own)))
        }
        "OKP" => {
            if text(key, "crv")? != Some("Ed25519") {
                return Err("its curve (crv) is not supported".into());
            }
            let x = number(key, "x")?;
            if x.len() != 32 {
                return Err("its x has the wrong length".into());
            }
            Ok((KeyMaterial::Ed25519(x), Some(JwtAlgorithm::EdDsa)))
        }
        _ => Err("its kind (kty) is not supported".into()),
    }
}

fn text<'k>(key: &'k Map<String, Value>, name: &str) -> Result<Option<&'k str>, Unusable> {
    match key.get(name) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.as_str())),
        Some(_) => Err("a member that must be a text is none".into()),
    }
}

fn number(key: &Map<String, Value>, name: &str) -> Result<Vec<u8>, Unusable> {
    let text = text(key, name)?.ok_or("a number of the key is missing")?;
    URL_SAFE_NO_PAD.decode(text).map_err(|_| "a number of the key is not base64url without padding".into())
}

fn without_zeros(number: Vec<u8>) -> Vec<u8> {
    let zeros = number.iter().take_while(|byte| **byte == 0).count();
    number.into_iter().skip(zeros).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn base64(bytes: &[u8]) -> String {
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// Members of an RSA key with a modulus of this many bytes.
    fn rsa(bytes: usize, more: &str) -> String {
        let (n, e) = (base64(&vec![0xff; bytes]), base64(&[1, 0, 1]));
        format!(r#"{{"kty": "RSA", "n": "{n}", "e": "{e}"{more}}}"#)
    }

    fn p256(more: &str) -> String {
        let x = base64(&[7; 32]);
        format!(r#"{{"kty": "EC", "crv": "P-256", "x": "{x}", "y": "{x}"{more}}}"#)
    }

    /// The kid and the algorithm of a key.
    type Key<'k> = (Option<&'k str>, Option<JwtAlgorithm>);

    #[track_caller]
    fn check(keys: &[String], expect: Result<&[Key<'_>], &str>) {
        let text = format!(r#"{{"keys": [{}], "x": 1}}"#, keys.join(","));
        match (JwkSet::parse(text.as_bytes()), expect) {
            (Ok(set), Ok(expect)) => {
                let found: Vec<_> = set.keys.iter().map(|key| (key.kid.as_deref(), key.algorithm)).collect();
                assert_eq!(found, expect, "{text}");
                assert_eq!(set.keys.len() + set.ignored.len(), keys.len());
            }
            (Err(why), Err(part)) => assert!(why.contains(part), "{text}: {why}"),
            (found, _) => panic!("{text}: {found:?}"),
        }
    }

    #[test]
    fn a_key_is_for_one_algorithm() {
        use JwtAlgorithm::{EdDsa, Es256, Ps512, Rs256};
        let ed = |more: &str| format!(r#"{{"kty": "OKP", "crv": "Ed25519", "x": "{}"{more}}}"#, base64(&[9; 32]));
        check(&[rsa(256, "")], Ok(&[(None, None)]));
        check(&[rsa(256, r#", "kid": "a", "alg": "PS512", "use": "sig""#)], Ok(&[(Some("a"), Some(Ps512))]));
        check(
            &[p256(r#", "kid": "b""#), ed(r#", "key_ops": ["verify"]"#)],
            Ok(&[(Some("b"), Some(Es256)), (None, Some(EdDsa))]),
        );
        check(&[ed(r#", "alg": "Ed25519""#)], Ok(&[(None, Some(EdDsa))]));
        // Keys of other kinds and for other purposes do not matter.
        check(
            &[
                rsa(256, r#", "use": "enc", "alg": "RSA-OAEP", "kid": "a""#),
                rsa(256, r#", "kid": "a", "alg": "RS256""#),
            ],
            Ok(&[(Some("a"), Some(Rs256))]),
        );
        for (key, why) in [
            (rsa(255, ""), "2048 to 8192"),
            (rsa(1025, ""), "2048 to 8192"),
            (rsa(256, r#", "alg": "ES256""#), "not one of its kind"),
            (rsa(256, r#", "alg": "HS256""#), "not supported"),
            (rsa(256, r#", "alg": "none""#), "not supported"),
            (rsa(256, r#", "kid": """#), "kid is empty"),
            (rsa(256, r#", "kid": 7"#), "must be a text"),
            (rsa(256, r#", "key_ops": ["sign"]"#), "key_ops"),
            (rsa(256, "").replace("AQAB", "AQ"), "not one of RSA"),
            (rsa(256, "").replace("AQAB", "Ag"), "not one of RSA"),
            (rsa(256, "").replace("AQAB", ""), "not one of RSA"),
            (rsa(256, "").replace("AQAB", "AQAB=="), "base64url"),
            (p256(r#", "alg": "ES384""#), "not one of its kind"),
            (p256("").replace("P-256", "P-384"), "wrong length"),
            (p256("").replace("P-256", "secp256k1"), "not supported"),
            (ed("").replace("Ed25519", "X25519"), "not supported"),
            (ed("").replace("CQkJ", "CQ"), ""),
            (r#"{"kty": "oct", "k": "AAAA"}"#.into(), "shared secret"),
            (r#"{"kty": "AKP"}"#.into(), "not supported"),
            (r#"{"kid": "a"}"#.into(), "no kty"),
        ] {
            check(&[key], Err(why));
        }
    }

    #[test]
    fn what_is_ambiguous_or_a_leak_is_refused_as_a_whole() {
        use JwtAlgorithm::{Es256, Ps256, Rs256};
        let with = |alg: &str| format!(r#", "kid": "a", "alg": "{alg}""#);
        let same = Err("two keys have the kid a and the same algorithm");
        check(&[p256(&with("ES256")), p256(&with("ES256"))], same);
        check(&[rsa(256, &with("RS256")), rsa(257, r#", "kid": "a""#)], same);
        check(&[rsa(256, r#", "kid": "a""#), rsa(257, &with("PS256"))], same);
        check(&[rsa(256, r#", "kid": "a""#), rsa(257, r#", "kid": "a""#)], same);
        let equivalent = [rsa(256, &with("RS256")), rsa(257, &with("PS256")), p256(&with("ES256"))];
        let a = Some("a");
        check(&equivalent, Ok(&[(a, Some(Rs256)), (a, Some(Ps256)), (a, Some(Es256))]));
        check(&[rsa(256, ""), rsa(256, r#", "kid": "k", "d": "AQAB""#)], Err("key k is a private key"));
    }

    #[test]
    fn what_is_no_set() {
        let check = |text: &[u8], part: &str| {
            let why = JwkSet::parse(text).unwrap_err();
            assert!(why.contains(part), "{why}");
        };
        check(b"", "not JSON: line 1, column 0");
        check(b"<html>secret</html>", "not JSON: line 1, column 1");
        check(b"[]", "no list `keys`");
        check(b"{\"keys\": {}}", "no list `keys`");
        check(b"{\"keys\": [1]}", "key 1 is not an object");
        check(b"{\"keys\": []}", "it is empty");
        check(&b"[".repeat(200_000), "not JSON");
        check(
            format!("{{\"keys\": [{}{{}}]}}", "{},".repeat(JwkSet::KEYS_MAX)).as_bytes(),
            "101 keys; the limit is 100",
        );
        check(&vec![b' '; JwkSet::KIB_MAX as usize * 1024 + 1], "larger than 256 KiB");
    }
}
