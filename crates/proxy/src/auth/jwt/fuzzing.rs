//! What the fuzz targets need of tokens. Nothing else uses it.

use std::sync::LazyLock;

use model::Jwks;

use super::*;

/// The public key of RFC 8037 appendix A.2.
const KEY: &str =
    r#"{"keys":[{"kty":"OKP","crv":"Ed25519","kid":"a","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}"#;

static VERIFIER: LazyLock<Option<Verifier>> = LazyLock::new(|| {
    let policy = JwtAuth {
        realm: "fuzz".into(),
        places: Vec::new(),
        issuers: vec!["i".into()],
        audiences: Some(vec!["a".into()]),
        algorithms: None,
        leeway: std::time::Duration::from_secs(60),
        require_exp: false,
        optional: false,
        forward: false,
        claim_headers: vec![("x-user".into(), "sub".into()), ("x-roles".into(), "/realm/roles".into())],
        jwks: Jwks::Inline(String::new()),
    };
    let keys = KeySet::parse(KEY.as_bytes()).ok()?;
    let source = Arc::new(KeySource::new(policy.jwks.clone(), Some(keys)));
    Verifier::new(&Arc::new(Auth::Jwt(policy)), source, &["scope".into(), "/realm/roles".into()])
});

/// Looks at a token twice, and reads what may be its payload as if it were signed.
///
/// # Panics
/// It passes, although nobody has signed it; it is wrong for another reason the second time; or a header of it could be misread.
pub(crate) fn look_at(data: &[u8]) {
    let Some((verifier, policy)) = VERIFIER.as_ref().and_then(|verifier| Some((verifier, verifier.policy()?))) else {
        return;
    };
    let tokens = Tokens::default();
    let bearing = Bearing { unix_ms: 1_700_000_000_000, now_ms: 0, client: &|| 1 };
    let [first, second] = [(), ()].map(|()| {
        let verified = verifier.verify(policy, data, &bearing, &tokens);
        verified.map(drop).map_err(|error| error.reason)
    });
    assert!(first.is_err(), "a token that nobody has signed passes");
    assert_eq!(first, second, "what is remembered differs");
    if let Ok(verified) = verifier.read(policy, data, 1_700_000_000.0) {
        for (_, value) in verified.fields() {
            assert!(!value.is_empty() && value.trim() == value && !value.chars().any(char::is_control), "{value:?}");
        }
    }
}

/// Reads a set of keys twice.
///
/// # Panics
/// What it says is not the same both times.
pub(crate) fn read_keys(data: &[u8]) {
    let source = KeySource::new(Jwks::Inline(String::new()), None);
    if source.publish(data, 0).is_ok() {
        let first = source.keys().map(|keys| keys.id);
        assert!(source.publish(data, 1).is_ok() && source.keys().map(|keys| keys.id) == first, "another set");
    }
}
