//! Tokens that are right, and every way in which one can be wrong. The keys are made for each run.
//!
//! The list of algorithms and of malformed tokens is that of HAProxy's tests (reg-tests/jwt), without shared secrets, which are refused here.

use std::sync::LazyLock;
use std::time::Duration;

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_ASN1_SIGNING, ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING,
    ECDSA_P521_SHA512_FIXED_SIGNING, EcdsaKeyPair, EcdsaSigningAlgorithm, Ed25519KeyPair, KeyPair, RSA_PKCS1_SHA256,
    RSA_PKCS1_SHA384, RSA_PKCS1_SHA512, RSA_PSS_SHA256, RSA_PSS_SHA384, RSA_PSS_SHA512, RsaEncoding,
};
use model::Jwks;

use super::*;

const NOW_S: u64 = 1_700_000_000;

fn base64(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// A key pair, by the algorithms that it can sign with.
struct Pairs {
    rsa: aws_lc_rs::rsa::KeyPair,
    p256: EcdsaKeyPair,
    p384: EcdsaKeyPair,
    p521: EcdsaKeyPair,
    ed: Ed25519KeyPair,
}

static PAIRS: LazyLock<Pairs> = LazyLock::new(Pairs::new);
static OTHERS: LazyLock<Pairs> = LazyLock::new(Pairs::new);

impl Pairs {
    fn new() -> Self {
        let ec = |algorithm: &'static EcdsaSigningAlgorithm| EcdsaKeyPair::generate(algorithm).unwrap();
        Self {
            rsa: aws_lc_rs::rsa::KeyPair::generate(KeySize::Rsa2048).unwrap(),
            p256: ec(&ECDSA_P256_SHA256_FIXED_SIGNING),
            p384: ec(&ECDSA_P384_SHA384_FIXED_SIGNING),
            p521: ec(&ECDSA_P521_SHA512_FIXED_SIGNING),
            ed: Ed25519KeyPair::generate().unwrap(),
        }
    }

    fn sign(&self, algorithm: &str, message: &[u8]) -> Vec<u8> {
        let random = SystemRandom::new();
        let rsa = |encoding: &'static dyn RsaEncoding| {
            let mut signature = vec![0; self.rsa.public_modulus_len()];
            self.rsa.sign(encoding, &random, message, &mut signature).unwrap();
            signature
        };
        let ec = |pair: &EcdsaKeyPair| pair.sign(&random, message).unwrap().as_ref().to_vec();
        match algorithm {
            "RS256" => rsa(&RSA_PKCS1_SHA256),
            "RS384" => rsa(&RSA_PKCS1_SHA384),
            "RS512" => rsa(&RSA_PKCS1_SHA512),
            "PS256" => rsa(&RSA_PSS_SHA256),
            "PS384" => rsa(&RSA_PSS_SHA384),
            "PS512" => rsa(&RSA_PSS_SHA512),
            "ES256" => ec(&self.p256),
            "ES384" => ec(&self.p384),
            "ES512" => ec(&self.p521),
            "EdDSA" => self.ed.sign(message).as_ref().to_vec(),
            // With the public key as a shared secret.
            "HS256" => {
                let key = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, self.rsa.public_key().as_ref());
                aws_lc_rs::hmac::sign(&key, message).as_ref().to_vec()
            }
            _ => b"signature".to_vec(),
        }
    }

    fn rsa_jwk(&self, more: &str) -> String {
        // RSAPublicKey of RFC 8017 appendix A.1.1: the modulus behind 9 bytes, then the exponent behind 2.
        let der = self.rsa.public_key().as_ref();
        format!(r#"{{"kty":"RSA","n":"{}","e":"{}"{more}}}"#, base64(&der[9..265]), base64(&der[267..]))
    }

    fn ec_jwk(pair: &EcdsaKeyPair, curve: &str, more: &str) -> String {
        let point = &pair.public_key().as_ref()[1..];
        let (x, y) = point.split_at(point.len() / 2);
        format!(r#"{{"kty":"EC","crv":"{curve}","x":"{}","y":"{}"{more}}}"#, base64(x), base64(y))
    }

    fn ed_jwk(&self, more: &str) -> String {
        format!(r#"{{"kty":"OKP","crv":"Ed25519","x":"{}"{more}}}"#, base64(self.ed.public_key().as_ref()))
    }

    fn jwks(&self) -> String {
        let keys = [
            self.rsa_jwk(r#","kid":"rsa""#),
            Self::ec_jwk(&self.p256, "P-256", r#","kid":"p256""#),
            Self::ec_jwk(&self.p384, "P-384", r#","kid":"p384""#),
            Self::ec_jwk(&self.p521, "P-521", r#","kid":"p521""#),
            self.ed_jwk(r#","kid":"ed""#),
        ];
        format!(r#"{{"keys":[{}]}}"#, keys.join(","))
    }
}

fn policy() -> JwtAuth {
    JwtAuth {
        realm: "shop".into(),
        places: Vec::new(),
        issuers: vec!["https://login.test".into()],
        audiences: Some(vec!["api".into()]),
        algorithms: None,
        leeway: Duration::from_secs(60),
        require_exp: true,
        optional: false,
        forward: false,
        claim_headers: vec![("x-user".into(), "sub".into()), ("x-roles".into(), "/realm/roles".into())],
        jwks: Jwks::Inline(String::new()),
    }
}

fn verifier_of(policy: JwtAuth, jwks: &str) -> Verifier {
    let keys = (!jwks.is_empty()).then(|| KeySet::parse(jwks.as_bytes()).unwrap());
    let source = Arc::new(KeySource::new(policy.jwks.clone(), keys));
    Verifier::new(&Arc::new(Auth::Jwt(policy)), source, &["/realm/roles".into(), "scope".into()]).unwrap()
}

fn verifier(policy: JwtAuth) -> Verifier {
    verifier_of(policy, &PAIRS.jwks())
}

const CLAIMS: &str = r#""iss":"https://login.test","aud":"api","sub":"joe","exp":1700000100"#;

fn token_of(pairs: &Pairs, header: &str, claims: &str) -> String {
    let algorithm = serde_json::from_str::<serde_json::Value>(header).unwrap()["alg"].as_str().unwrap_or("").to_owned();
    let signed = format!("{}.{}", base64(header), base64(claims));
    let signature = base64(pairs.sign(&algorithm, signed.as_bytes()));
    format!("{signed}.{signature}")
}

fn token(header: &str, claims: &str) -> String {
    token_of(&PAIRS, header, &format!("{{{claims}}}"))
}

fn asked(verifier: &Verifier, token: &str, now_s: u64, tokens: &Tokens) -> Result<Rc<Verified>, Reason> {
    let policy = verifier.policy().unwrap();
    let bearing = Bearing { unix_ms: now_s * 1000, now_ms: 0, client: &|| 1 };
    verifier.verify(policy, token.as_bytes(), &bearing, tokens).map_err(|error| error.reason)
}

#[track_caller]
fn check(verifier: &Verifier, token: &str, expect: Result<(), Reason>) {
    let tokens = Tokens::default();
    let found = asked(verifier, token, NOW_S, &tokens).map(drop);
    assert_eq!(found, expect, "{}", token.chars().take(200).collect::<String>());
    // What is remembered of it says the same.
    assert_eq!(asked(verifier, token, NOW_S, &tokens).map(drop), expect);
}

const ES256: &str = r#"{"alg":"ES256","kid":"p256"}"#;
const INVALID: Result<(), Reason> = Err(Reason::CredentialsInvalid);

#[test]
fn every_algorithm() {
    let of_rsa = [
        JwtAlgorithm::Rs256,
        JwtAlgorithm::Rs384,
        JwtAlgorithm::Rs512,
        JwtAlgorithm::Ps256,
        JwtAlgorithm::Ps384,
        JwtAlgorithm::Ps512,
    ];
    let all = verifier(JwtAuth { algorithms: Some(of_rsa.into()), ..policy() });
    for algorithm in of_rsa {
        let header = format!(r#"{{"alg":"{}","kid":"rsa"}}"#, algorithm.name());
        check(&all, &token(&header, CLAIMS), Ok(()));
        check(&all, &token_of(&OTHERS, &header, &format!("{{{CLAIMS}}}")), INVALID);
        // A key that names no algorithm is for RS256 alone, unless the policy says otherwise.
        let by_default = if algorithm == JwtAlgorithm::Rs256 { Ok(()) } else { INVALID };
        check(&verifier(policy()), &token(&header, CLAIMS), by_default);
    }
    // Those of the list, and no others.
    check(&all, &token(ES256, CLAIMS), INVALID);
    for (algorithm, kid) in [("ES256", "p256"), ("ES384", "p384"), ("ES512", "p521"), ("EdDSA", "ed")] {
        let header = format!(r#"{{"alg":"{algorithm}","kid":"{kid}"}}"#);
        check(&verifier(policy()), &token(&header, CLAIMS), Ok(()));
        check(&verifier(policy()), &token_of(&OTHERS, &header, &format!("{{{CLAIMS}}}")), INVALID);
    }
}

#[test]
fn the_token_does_not_choose_the_algorithm() {
    let verifier_ = verifier(policy());
    // The public key as a shared secret; no signature at all; names that differ in case.
    check(&verifier_, &token(r#"{"alg":"HS256","kid":"rsa"}"#, CLAIMS), INVALID);
    for alg in ["none", "None", "NONE", "nOnE", "", "RS1", "HS512", "es256", "UNKNOWN_ALG"] {
        let signed =
            format!("{}.{}", base64(format!(r#"{{"alg":"{alg}","kid":"rsa"}}"#)), base64(format!("{{{CLAIMS}}}")));
        check(&verifier_, &format!("{signed}."), INVALID);
        check(&verifier_, &format!("{signed}.{}", base64(PAIRS.sign("RS256", signed.as_bytes()))), INVALID);
    }
    // A key of another kind than the algorithm.
    for (alg, kid) in
        [("RS256", "p256"), ("ES256", "rsa"), ("ES256", "p384"), ("ES384", "p256"), ("EdDSA", "p256"), ("PS256", "ed")]
    {
        check(&verifier_, &token(&format!(r#"{{"alg":"{alg}","kid":"{kid}"}}"#), CLAIMS), INVALID);
    }
    // A key that is for one algorithm is for no other one.
    let keys = format!(r#"{{"keys":[{}]}}"#, PAIRS.rsa_jwk(r#","kid":"rsa","alg":"PS256""#));
    let all = [JwtAlgorithm::Rs256, JwtAlgorithm::Ps256].into();
    for algorithms in [None, Some(all)] {
        let pinned = verifier_of(JwtAuth { algorithms, ..policy() }, &keys);
        check(&pinned, &token(r#"{"alg":"PS256","kid":"rsa"}"#, CLAIMS), Ok(()));
        check(&pinned, &token(r#"{"alg":"RS256","kid":"rsa"}"#, CLAIMS), INVALID);
    }
    // A key that the token brings along.
    let own = OTHERS.ed_jwk("");
    let header = format!(r#"{{"alg":"EdDSA","kid":"ed","jwk":{own},"jku":"https://evil.test","x5c":["AAAA"]}}"#);
    check(&verifier_, &token_of(&OTHERS, &header, &format!("{{{CLAIMS}}}")), INVALID);
}

#[test]
fn keys_are_found_by_their_name() {
    let of = |keys: &[String]| verifier_of(policy(), &format!(r#"{{"keys":[{}]}}"#, keys.join(",")));
    let unknown = Err(Reason::TokenKeyUnknown);
    let named = of(&[PAIRS.ed_jwk(r#","kid":"a""#), OTHERS.ed_jwk(r#","kid":"b""#)]);
    check(&named, &token(r#"{"alg":"EdDSA","kid":"a"}"#, CLAIMS), Ok(()));
    check(&named, &token(r#"{"alg":"EdDSA","kid":"b"}"#, CLAIMS), INVALID);
    check(&named, &token(r#"{"alg":"EdDSA","kid":"A"}"#, CLAIMS), unknown);
    check(&named, &token(r#"{"alg":"EdDSA","kid":""}"#, CLAIMS), INVALID);
    check(&named, &token(r#"{"alg":"EdDSA"}"#, CLAIMS), Ok(()));
    check(&named, &token(r#"{"alg":"ES256"}"#, CLAIMS), unknown);
    let without_name = of(&[OTHERS.ed_jwk(""), PAIRS.ed_jwk("")]);
    check(&without_name, &token(r#"{"alg":"EdDSA","kid":"a"}"#, CLAIMS), Ok(()));
    // Not more keys are tried than that.
    let many: Vec<String> = (0..TRIES_MAX).map(|_| OTHERS.ed_jwk("")).chain([PAIRS.ed_jwk("")]).collect();
    check(&of(&many), &token(r#"{"alg":"EdDSA"}"#, CLAIMS), INVALID);
    // No keys yet; but what is no token is none in any case.
    let none = verifier_of(policy(), "");
    check(&none, &token(ES256, CLAIMS), Err(Reason::TokenKeysMissing));
    check(&none, "a.b.c", INVALID);
}

#[test]
fn malformed_tokens() {
    let verifier = verifier(policy());
    let good = token(ES256, CLAIMS);
    check(&verifier, &good, Ok(()));
    let parts: Vec<&str> = good.split('.').collect();
    let [header, payload, signature] = parts[..] else { panic!() };
    let of = |parts: &[&str]| parts.join(".");
    for bad in [
        String::new(),
        ".".into(),
        "..".into(),
        of(&[header, payload]),
        of(&[header, payload, ""]),
        of(&[header, payload, signature, "x"]),
        of(&[header, payload, signature, "", ""]),
        of(&["", payload, signature]),
        of(&[header, "", signature]),
        // Too long, too short, padded, in the other alphabet, with bits that do not matter.
        of(&[header, payload, &format!("{signature}AAAA")]),
        of(&[header, payload, &signature[..signature.len() - 4]]),
        of(&[header, payload, &format!("{signature}==")]),
        of(&[header, payload, &format!(" {signature}")]),
        of(&[header, &format!("{payload}="), signature]),
        of(&[header, payload, &format!("{}_", &signature[..signature.len() - 1])]),
        format!("{good}\0"),
        "é".repeat(10),
        "a".repeat(1 << 20),
        format!(
            "{}.{payload}.{signature}",
            base64(format!(r#"{{"alg":"ES256","kid":"p256","x":{}}}"#, "[".repeat(10_000)))
        ),
    ] {
        check(&verifier, &bad, INVALID);
    }
    // One bit of what is signed.
    let other = token(ES256, &CLAIMS.replace("joe", "jod"));
    check(&verifier, &of(&[header, other.split('.').nth(1).unwrap(), signature]), INVALID);
    // Another form of the same signature, and numbers that are none.
    let der =
        EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, PAIRS.p256.to_pkcs8v1().unwrap().as_ref()).unwrap();
    let signed = of(&[header, payload]);
    let der = der.sign(&SystemRandom::new(), signed.as_bytes()).unwrap();
    check(&verifier, &format!("{signed}.{}", base64(der.as_ref())), INVALID);
    for zero in [
        [0; 64],
        {
            let mut r = [0; 64];
            r[31] = 1;
            r
        },
        {
            let mut s = [0; 64];
            s[63] = 1;
            s
        },
        [255; 64],
    ] {
        check(&verifier, &format!("{signed}.{}", base64(zero)), INVALID);
    }
}

#[test]
fn what_is_signed_and_yet_not_accepted() {
    let verifier = verifier(policy());
    // Extensions that nobody here understands, whatever they are.
    for crit in [r#""crit":["b64"],"b64":false"#, r#""crit":["exp"]"#, r#""crit":[]"#, r#""crit":null"#] {
        check(&verifier, &token(&format!(r#"{{"alg":"ES256","kid":"p256",{crit}}}"#), CLAIMS), INVALID);
    }
    // Signed, and yet not to be read in one way only.
    for payload in ["", "[]", "{", "null", &format!("{{{CLAIMS}}} x"), &format!("{{{CLAIMS},{CLAIMS}}}")] {
        check(&verifier, &token_of(&PAIRS, ES256, payload), INVALID);
    }
    for more in [r#","sub":"root""#, r#","exp":9999999999"#, r#","aud":"x""#, r#","realm":{"roles":["a,b"]}"#] {
        check(&verifier, &token(ES256, &format!("{CLAIMS}{more}")), INVALID);
    }
    for (of, other) in [
        (r#""joe""#, r#""joe\r\nx-admin: 1""#),
        ("1700000100", r#""1700000100""#),
        (r#""https://login.test""#, r#"["https://login.test"]"#),
    ] {
        check(&verifier, &token(ES256, &CLAIMS.replace(of, other)), INVALID);
    }
    let large = format!(r#"{CLAIMS},"realm":{{"roles":["{}"]}}"#, "a".repeat(FIELDS_BYTES_MAX));
    check(&verifier, &token(ES256, &large), INVALID);
    let deep = format!(r#"{CLAIMS},"x":{}{}"#, "[".repeat(4000), "]".repeat(4000));
    check(&verifier, &token(ES256, &deep), Ok(()));
}

#[test]
fn issuer_audience_and_times() {
    let check_with = |policy: JwtAuth, claims: &str, expect| check(&verifier(policy), &token(ES256, claims), expect);
    let with = |of: &str, other: &str| CLAIMS.replace(of, other);
    for issuer in ["https://login.test/", "https://login.tes", "", "HTTPS://LOGIN.TEST"] {
        check_with(policy(), &with("https://login.test", issuer), INVALID);
    }
    check_with(policy(), &with(r#""iss":"https://login.test","#, ""), INVALID);
    let two = JwtAuth { issuers: vec!["a".into(), "https://login.test".into()], ..policy() };
    check_with(two, CLAIMS, Ok(()));
    let wrong = Err(Reason::TokenAudience);
    check_with(policy(), &with(r#""api""#, r#"["x","api"]"#), Ok(()));
    for audience in [r#""apis""#, "[]", r#"["x"]"#, r#""API""#] {
        check_with(policy(), &with(r#""api""#, audience), wrong);
    }
    check_with(policy(), &with(r#""aud":"api","#, ""), wrong);
    check_with(JwtAuth { audiences: None, ..policy() }, &with(r#""aud":"api","#, ""), Ok(()));
    // The leeway is a minute.
    let at = |claims: &str, expect| check_with(policy(), &with(r#""exp":1700000100"#, claims), expect);
    at(r#""exp":1699999941"#, Ok(()));
    at(r#""exp":1699999940.5"#, Ok(()));
    at(r#""exp":1699999940"#, Err(Reason::TokenExpired));
    at(r#""exp":0"#, Err(Reason::TokenExpired));
    at(r#""exp":-1e300"#, Err(Reason::TokenExpired));
    at(r#""exp":1e300"#, Ok(()));
    at(r#""exp":1800000000,"nbf":1700000060"#, Ok(()));
    at(r#""exp":1800000000,"nbf":1700000061"#, Err(Reason::TokenNotYetValid));
    at(r#""exp":null"#, INVALID);
    at(r#""iat":0"#, INVALID);
    let endless = JwtAuth { require_exp: false, ..policy() };
    check_with(endless, &with(r#""exp":1700000100"#, r#""iat":0"#), Ok(()));
    let exact = JwtAuth { leeway: Duration::ZERO, ..policy() };
    check_with(exact, &with("1700000100", "1700000000"), Err(Reason::TokenExpired));
}

#[test]
fn what_the_endpoint_and_the_routes_get() {
    let claims = format!(r#"{CLAIMS},"realm":{{"roles":["admin","staff"]}},"scope":"read  write""#);
    let verified = asked(&verifier(policy()), &token(ES256, &claims), NOW_S, &Tokens::default()).unwrap();
    let fields: Vec<_> = verified.fields().collect();
    assert_eq!(fields, [("x-user", "joe"), ("x-roles", "admin,staff")]);
    let many = |texts: [&str; 2]| Claim::Many(texts.map(Into::into).into());
    assert_eq!(verified.claim("/realm/roles"), Some(&many(["admin", "staff"])));
    assert_eq!(verified.claim("scope"), Some(&many(["read", "write"])));
    assert_eq!(verified.claim("sub"), None);
}

#[test]
fn a_token_is_verified_once_until_its_end_or_its_keys_change() {
    let (policy, tokens) = (JwtAuth { jwks: Jwks::Url(url()), ..policy() }, Tokens::default());
    let verifier = verifier_of(policy, &PAIRS.jwks());
    let token = token(ES256, &format!(r#"{CLAIMS},"nbf":1699999990"#));
    let ask = |now_s| asked(&verifier, &token, now_s, &tokens).map(drop);
    let looked_at = || verifier.source.verified();
    assert_eq!((ask(NOW_S), looked_at()), (Ok(()), (1, 0)));
    assert_eq!((ask(NOW_S + 1), looked_at()), (Ok(()), (1, 0)));
    // The same keys change nothing, in whatever order and form they stand.
    verifier.source.publish(PAIRS.jwks().as_bytes(), 1).unwrap();
    let mut set: serde_json::Value = serde_json::from_str(&PAIRS.jwks()).unwrap();
    set["keys"].as_array_mut().unwrap().reverse();
    set["served_by"] = "two".into();
    set["keys"][0]["x5t"] = "abc".into();
    verifier.source.publish(serde_json::to_string_pretty(&set).unwrap().as_bytes(), 1).unwrap();
    assert_eq!((ask(NOW_S + 159), looked_at()), (Ok(()), (1, 0)));
    assert_eq!(ask(NOW_S + 160), Err(Reason::TokenExpired));
    // The clock was set back.
    assert_eq!(ask(NOW_S - 71), Err(Reason::TokenNotYetValid));
    // What cannot be used leaves the keys as they are.
    assert!(verifier.source.publish(b"<html>", 2).unwrap_err().contains("not JSON"));
    assert_eq!((ask(NOW_S), looked_at()), (Ok(()), (1, 0)));
    verifier.source.publish(OTHERS.jwks().as_bytes(), 3).unwrap();
    assert_eq!((ask(NOW_S), looked_at()), (Err(Reason::CredentialsInvalid), (1, 1)));
    verifier.source.publish(PAIRS.jwks().as_bytes(), 4).unwrap();
    assert_eq!((ask(NOW_S), looked_at()), (Ok(()), (2, 1)));
    // Another policy with the same keys may have other issuers.
    let other = Verifier::new(
        &Arc::new(Auth::Jwt(JwtAuth { issuers: vec!["x".into()], ..self::policy() })),
        verifier.source.clone(),
        &[],
    )
    .unwrap();
    assert_eq!(asked(&other, &token, NOW_S, &tokens).map(drop), INVALID);
}

fn url() -> model::JwksUrl {
    model::JwksUrl { is_https: true, host: "login.test".into(), port: 443, path: "/keys".into(), ca: None }
}

#[test]
fn an_unknown_key_asks_for_a_newer_set() {
    let is_asked = |jwks: Jwks, token: &str| {
        let verifier = verifier_of(JwtAuth { jwks, ..policy() }, &PAIRS.jwks());
        let _ = asked(&verifier, token, NOW_S, &Tokens::default());
        let asked = Box::pin(verifier.source.asked());
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        std::pin::pin!(asked).as_mut().poll(&mut context).is_ready()
    };
    let of_url = |token: &str| is_asked(Jwks::Url(url()), token);
    assert!(of_url(&token(r#"{"alg":"ES256","kid":"new"}"#, CLAIMS)));
    // Without a name, any failure may be that of an old key.
    assert!(of_url(&token_of(&OTHERS, r#"{"alg":"ES256"}"#, CLAIMS)));
    assert!(!of_url(&token(ES256, CLAIMS)));
    assert!(!of_url(&token_of(&OTHERS, ES256, CLAIMS)));
    assert!(!of_url(&token(r#"{"alg":"HS256","kid":"new"}"#, CLAIMS)));
    assert!(!of_url(&token(r#"{"alg":"ES256","kid":""}"#, CLAIMS)));
    assert!(!is_asked(Jwks::File("keys.json".into()), &token(r#"{"alg":"ES256","kid":"new"}"#, CLAIMS)));
}

#[test]
fn keys_that_are_none() {
    let parse = |keys: &[String]| KeySet::parse(format!(r#"{{"keys":[{}]}}"#, keys.join(",")).as_bytes());
    // A point that is not on the curve is ignored beside others, and no set alone.
    let off = {
        let x = base64([7; 32]);
        format!(r#"{{"kty":"EC","crv":"P-256","x":"{x}","y":"{x}"}}"#)
    };
    assert!(parse(std::slice::from_ref(&off)).is_err());
    let source = KeySource::new(Jwks::File("a".into()), Some(parse(&[off, PAIRS.ed_jwk("")]).unwrap()));
    assert_eq!(source.counts(), Some((1, 1)));
}

#[test]
fn challenges() {
    let verifier = verifier(policy());
    let check = |reason, expect| assert_eq!(verifier.challenge(reason), expect);
    check(Reason::CredentialsMissing, r#"Bearer realm="shop""#);
    check(Reason::TokenExpired, r#"Bearer realm="shop", error="invalid_token""#);
    check(Reason::TokenAudience, r#"Bearer realm="shop", error="insufficient_scope""#);
}

#[test]
fn wrong_tokens_are_verified_once() {
    let (verifier, tokens) = (verifier(JwtAuth { leeway: Duration::ZERO, ..policy() }), Tokens::default());
    let looked_at = || verifier.source.verified();
    let check = |token: &str, expect: Reason, verified: (u64, u64)| {
        for _ in 0..3 {
            assert_eq!(asked(&verifier, token, NOW_S, &tokens).map(drop), Err(expect));
            assert_eq!(looked_at(), verified, "{expect:?}");
        }
    };
    check(&token_of(&OTHERS, ES256, &format!("{{{CLAIMS}}}")), Reason::CredentialsInvalid, (0, 1));
    // What an issuer has signed, and is for others, has ended, or is not true yet.
    check(&token(ES256, &CLAIMS.replace("api", "other")), Reason::TokenAudience, (1, 1));
    check(&token(ES256, &CLAIMS.replace("login", "other")), Reason::CredentialsInvalid, (2, 1));
    check(&token(ES256, &CLAIMS.replace("1700000100", "1600000000")), Reason::TokenExpired, (3, 1));
    let later = token(ES256, &format!(r#"{CLAIMS},"nbf":1700000050"#));
    check(&later, Reason::TokenNotYetValid, (4, 1));
    assert!(asked(&verifier, &later, NOW_S + 50, &tokens).is_ok());
    assert_eq!(looked_at(), (4, 1));
    // With other keys, it may be right.
    let other = token_of(&OTHERS, ES256, &format!("{{{CLAIMS}}}"));
    verifier.source.publish(OTHERS.jwks().as_bytes(), 1).unwrap();
    assert!(asked(&verifier, &other, NOW_S, &tokens).is_ok());
}

/// A client that makes tokens up is not verified any longer, and others are. What is known passes in any case.
#[test]
fn wrong_signatures_have_a_budget() {
    let (verifier, tokens) = (verifier(policy()), Tokens::default());
    let policy = verifier.policy().unwrap();
    let ask = |token: &str, client: u64, now_ms: u64| {
        let bearing = Bearing { unix_ms: NOW_S * 1000, now_ms, client: &|| client };
        verifier.verify(policy, token.as_bytes(), &bearing, &tokens).map(drop).map_err(|error| error.reason)
    };
    let known = token(ES256, CLAIMS);
    assert_eq!(ask(&known, 1, 0), Ok(()));
    let wrong = |number: usize| {
        let signed =
            format!("{}.{}", base64(r#"{"alg":"ES512","kid":"p521"}"#), base64(format!("{{{CLAIMS},\"n\":{number}}}")));
        format!("{signed}.{}", base64([1; 132]))
    };
    let spent = (0..100).position(|number| ask(&wrong(number), 1, 0) == Err(Reason::TokenAttempts));
    assert_eq!(spent, Some(34));
    assert_eq!(verifier.source.verified(), (1, 34));
    // A token that is known to be wrong costs nothing.
    assert_eq!((ask(&known, 1, 0), ask(&wrong(0), 1, 0)), (Ok(()), Err(Reason::CredentialsInvalid)));
    let fresh = token(ES256, &CLAIMS.replace("joe", "ann"));
    assert_eq!(ask(&fresh, 1, 0), Err(Reason::TokenAttempts));
    let others = (2..1000).find(|client| ask(&wrong(200), *client, 0) != Err(Reason::TokenAttempts)).unwrap();
    assert_eq!(ask(&fresh, others, 0), Ok(()));
    // After a while it may try again.
    assert_eq!(ask(&wrong(300), 1, 1000), Err(Reason::CredentialsInvalid));
    // A key that is not there costs nothing either, and malformed tokens do not.
    let unknown = token(r#"{"alg":"ES256","kid":"gone"}"#, CLAIMS);
    assert!((0..2000).all(|_| ask(&unknown, 1, 5000) == Err(Reason::TokenKeyUnknown)));
}
