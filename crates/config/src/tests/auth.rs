//! Authentication: what a route takes from its listener, and refusals, none of which shows a secret.

use model::{Auth, ClientCertMode, Generation, KeyPlace, Keys, Satisfy, Users};

use super::refused::routes;
use super::{http, load};
use crate::parse;

#[test]
fn routes_take_what_their_listener_demands() {
    let text = "listeners: {l: {bind: :1, protocol: http, auth: {basic: {file: users}}, routes: [{path: /a, to: web},
        {path: /b, to: web, auth: off}, {path: /c, to: web, auth: {api_key: {query: k, keys: {shop: [a, b]}}}}]}}
clusters: {web: {endpoints: [a:1]}}";
    let snapshot = load(text);
    let routes = &http(&snapshot).routes;
    let kinds: Vec<_> = routes.iter().map(|route| route.policy.auth.as_ref().map(|auth| auth.kind())).collect();
    assert_eq!(kinds, [Some("basic"), None, Some("api_key")]);
    let Some(Auth::ApiKey(api_key)) = routes[2].policy.auth.as_deref() else { panic!("no keys") };
    assert_eq!(api_key.places, [KeyPlace::Query("k".into())]);
    let Keys::Inline(keys) = &api_key.keys else { panic!("a file") };
    assert_eq!(keys.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["shop", "shop"]);

    let to = text.replace("routes: [{path: /a, to: web},", "to: web}}\n#").split("\n#").next().unwrap().to_owned();
    let snapshot = load(&format!("{to}\nclusters: {{web: {{endpoints: [a:1]}}}}"));
    let Some(Auth::Basic(basic)) = http(&snapshot).routes[0].policy.auth.as_deref() else { panic!("no users") };
    assert!(matches!(&basic.users, Users::File(path) if path.ends_with("users")));
    assert_eq!((basic.realm.as_str(), basic.forward), ("restricted", false));
}

#[test]
fn no_message_shows_a_secret() {
    routes(
        &[
            "to: web, path: /a, auth: off",
            "to: web, path: /b, auth: {}",
            "to: web, path: /c, auth: {basic: {users: {joe: hunter2}, file: x}}",
            "to: web, path: /d, auth: {api_key: {keys: {shop: hunter2, bank: [hunter2, 'hunter 2']}}}",
            "to: web, path: /e, auth: {basic: {users: {'a:b': '{SHA}hunter2'}, realm: '\"', user_header: Host}}",
        ],
        r#"7:32: `auth: off` has no effect: the listener has no `auth`; remove it
8:32: an authentication needs `basic`, `api_key` or `jwt`
9:54: `joe`: the hash must be bcrypt ($2y$), argon2 ($argon2id$), SHA-crypt ($5$ or $6$), MD5 ($apr1$ or $1$), {SSHA}, {SHA} or {PLAIN}; `htpasswd -nB NAME` makes one of bcrypt
9:64: the basic authentication has both `file` and `users`; keep one of them
10:42: the API key authentication does not say where a request has its key; add `header: x-api-key`, `query: key` or `cookie: key`
10:72: the clients `shop` and `bank` have the same key; a key must belong to one client, and appear once
10:81: an entry of `bank`: a key has 1 to 1024 visible characters of ASCII, without `"`, `,`, `;` and `\`
11:49: a name in `users`: "a" with a `:` behind it is not a name; a name has 1 to 256 bytes, no `:`, and no space at either end
11:80: `realm`: "\"" is not a realm; use 1 to 256 characters of ASCII without quotes and backslashes
11:98: `user_header`: "Host" cannot be changed; set the host that the endpoint sees with `rewrite: {host: ...}`"#,
    );
    // Nor do those of files in which the secret is not where it should be, and they do not show the source line either.
    for auth in [
        "auth: {basic: {user: {joe: hunter2}}}",
        "auth: {basci: {users: {joe: hunter2}}}",
        "auht: {basic: {users: {joe: hunter2}}}",
        "auth: {basic: 'joe:hunter2'}",
        "auth: {api_key: {header: k, key: {joe: hunter2}}}",
        "auth: {api_key: {header: k, keys: {joe: {key: hunter2}}}}",
        "auth: {api_key: {header: k, keys: {joe: {hunter2: 1}}}}",
        "auth: {api_key: {header: k, keys: {joe: a, joe: hunter2}}}",
        "auth: {api_key: {header: k, keys: [joe, hunter2]}}",
        "auth: {api_key: {header: k, keys: hunter2}}",
        "auth: {api_key: {header: k, keys: {joe:hunter2}}}",
        "auth: {api_key: {header: k, keys: {joe: !x hunter2}}}",
        "auth: {api_key: {header: k, keys: {joe: hunter2}}}, tls: }{",
        "auth: {api_key: {header: k, keys: {joe: hunter2}}}, tsl: {}",
    ] {
        let text = format!("listeners: {{l: {{bind: :1, protocol: http, to: web, {auth}}}}}\n");
        let errors = crate::parse("f.yaml", &text, model::Generation(1)).unwrap_err().to_string();
        assert!(!errors.contains("hunter2"), "{errors}");
    }
    // Other lines are shown.
    let text = "listeners:\n  l:\n    auth: {api_key: {keys: {shop: hunter2}}}\n    bond: 1\n";
    let errors = crate::parse("f.yaml", text, model::Generation(1)).unwrap_err().to_string();
    assert!(errors.contains("    bond: 1\n") && !errors.contains("hunter2"), "{errors}");
    let text = "listeners: {l: {bind: :1, protocol: http, to: web, auth: {api_key: {keys: {shop: hunter2}}}}}";
    let errors = crate::parse("f.yaml", text, model::Generation(1)).unwrap_err().to_string();
    assert!(errors.contains("does not say where") && !errors.contains("hunter2"), "{errors}");
}

/// A set with one key, as it stands in a file.
const KEYS: &str =
    r#"{"keys": [{"kty": "OKP", "crv": "Ed25519", "x": "A6EHv_POEL4dcN0Y50vAmWfk1jCbpQ1fHdyGZBJVMbg"}]}"#;

#[test]
fn tokens_and_conditions_on_their_claims() {
    let text = format!(
        "listeners: {{l: {{bind: :1, protocol: http, auth: {{jwt: {{issuer: [a, b], audience: '*', jwks: {{inline: '{KEYS}'}},
        claim_headers: {{X-User: sub}}, cookie: session}}}}, routes: [{{path: /a, claims: {{/realm/roles: admin, sub: {{present: true}}}}, to: web}},
        {{path: /b, auth: off, to: web}}, {{to: web}}]}}}}
clusters: {{web: {{endpoints: [a:1]}}}}"
    );
    let snapshot = load(&text);
    let routes = &http(&snapshot).routes;
    let Some(Auth::Jwt(jwt)) = routes[0].policy.auth.as_deref() else { panic!("no token") };
    assert_eq!(jwt.issuers, ["a", "b"]);
    assert_eq!((&jwt.audiences, &jwt.algorithms), (&None, &None));
    assert_eq!(jwt.places, [KeyPlace::Cookie("session".into())]);
    assert_eq!(jwt.claim_headers, [("x-user".to_owned(), "sub".to_owned())]);
    assert_eq!((jwt.leeway.as_secs(), jwt.require_exp, jwt.optional, jwt.forward), (60, true, false, false));
    let claims: Vec<_> = routes[0].claims.iter().map(|claim| claim.name.as_str()).collect();
    assert_eq!(claims, ["/realm/roles", "sub"]);
    assert_eq!(routes[0].name, "/a claim:/realm/roles= claim:sub");
    assert!(routes[1].policy.auth.is_none());
}

#[test]
fn wrong_tokens() {
    routes(
        &[
            "to: web, path: /a, claims: {role: admin}",
            "to: web, path: /b, auth: {jwt: {issuer: a, audience: b}}",
            "to: web, path: /c, auth: {jwt: {issuer: '', audience: ['*', b], jwks: {file: k}}}",
            "to: web, path: /d, auth: {jwt: {issuer: a, audience: b, jwks: {url: 'http://a/', ca: c}}}",
            "to: web, path: /e, auth: {jwt: {issuer: a, audience: b, jwks: {file: k}, leeway: 2h, algorithms: HS256}}",
            "to: web, path: /f, auth: {jwt: {issuer: a, audience: b, jwks: {inline: '{}'}}}",
            "to: web, path: /g, auth: {jwt: {issuer: a, audience: b, jwks: {file: k}, claim_headers: {X: a, x: b, cookie: c}}}",
        ],
        r#"7:34: `claims` needs a token, and the listener has no `auth` with `jwt`; add `auth: {jwt: ...}` to the listener
8:38: the JWT authentication needs `jwks`; it must be a mapping with `url`, `file`, `inline` or `ca`
9:47: `issuer` is empty; write what the tokens have
9:61: `audience` has `*`, which stands for every audience, and others; remove `*`, or the others
10:92: `ca` has no effect without a `url` that begins with https://; remove it
11:88: `leeway` is 2h; the limit is 1h
11:104: `algorithms`: "HS256" is not valid; it must be RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384, ES512 or EdDSA; did you mean RS256?
12:78: `inline`: the key set has no list `keys`; write what the issuer publishes at its jwks_uri
13:95: `claim_headers` has `cookie`, which clients send for other purposes; use another header, such as x-user
13:95: `claim_headers` has the header `x` twice"#,
    );
    // The key is a secret, wherever it should have been published.
    let private = KEYS.replace(r#""kty""#, r#""d": "hunter2", "kty""#);
    let text = format!(
        "listeners: {{l: {{bind: :1, protocol: http, to: w, auth: {{jwt: {{jwks: {{inline: '{private}'}}}}}}}}}}\n"
    );
    let errors = crate::parse("f.yaml", &text, model::Generation(1)).unwrap_err().to_string();
    assert!(errors.contains("a private key") && !errors.contains("hunter2"), "{errors}");
}

#[test]
fn who_may_use_the_admin_address() {
    let file = |access: &str| {
        format!(
            "admin: 0.0.0.0:9900\nadmin_access:\n  {access}\nlisteners: {{a: {{bind: ':80', protocol: tcp, to: web}}}}\nclusters: \
             {{web: {{endpoints: ['127.0.0.1:1']}}}}"
        )
    };
    let access = parse(
        "f",
        &file("{hosts: Steelyard.Example, act: {users: {ann: '{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g='}, token_file: t}}"),
        Generation(1),
    )
    .unwrap_or_else(|errors| panic!("{errors}"))
    .admin_access;
    assert!(access.demands() && access.hosts == ["steelyard.example"]);
    assert_eq!(access.files().collect::<Vec<_>>(), [std::path::Path::new("t")]);
    let check = |access: &str, expect: &str| {
        let errors = parse("f", &file(access), Generation(1)).unwrap_err().to_string();
        assert!(errors.contains(expect), "{errors}");
        assert!(!errors.contains("0123456789"), "{errors}");
    };
    check(
        "{hosts: steelyard.example}",
        "`admin`: \"0.0.0.0:9900\" can be reached from other hosts, and nothing says who may use it",
    );
    check("{read: {tokens: {graphs: 0123456789}}}", "the token of `graphs` has fewer than 16 characters");
    check(
        "{read: {tokens: {a: 0123456789abcdef}}, act: {tokens: {b: 0123456789abcdef}}}",
        "`a` and `b` have the same token",
    );
    check(
        "{act: {}}",
        "`act` names nobody; add `tokens`, `token_file`, `users`, `user_file` or `certificates`, or remove it",
    );
    check("{read: {tokens: {}}, act: {token_file: t}}", "`read` names nobody");
    let pair = "certificates: [{cert: c.pem, key: k.pem}]";
    let mutual = format!(
        "{{tls: {{{pair}, client_ca: ca.pem}}, act: {{certificates: {{ann: ['CN=ann,O=ops', ann.example.com]}}}}}}"
    );
    let access = parse("f", &file(&mutual), Generation(1)).unwrap_or_else(|errors| panic!("{errors}")).admin_access;
    let files: Vec<_> = access.files().filter_map(std::path::Path::to_str).collect();
    assert_eq!(files, ["c.pem", "k.pem", "ca.pem"]);
    assert!(access.demands() && access.act.certificates.iter().all(|(name, _)| name == "ann"));
    check("{act: {certificates: {ann: CN=ann}}}", "`certificates` has no effect without `tls.client_ca`");
    check(
        &format!("{{tls: {{{pair}}}, act: {{certificates: {{ann: CN=ann}}}}}}"),
        "`certificates` has no effect without `tls.client_ca`",
    );
    check(&format!("{{tls: {{{pair}, client_ca: ca.pem}}, act: {{token_file: t}}}}"), "`client_ca` has no effect");
    check(&format!("{{tls: {{{pair}}}}}"), "nothing says who may use it");
    let unix = format!("admin: 'unix:/a'\nadmin_access: {{tls: {{{pair}}}, act: {{token_file: t}}}}\nvips: {{}}");
    let errors = parse("f", &unix, Generation(1)).unwrap_err().to_string();
    assert!(errors.contains("`tls` has no effect at a Unix socket"), "{errors}");
    let alone = "admin_access: {act: {token_file: t}}\nvips: {}";
    let errors = parse("f", alone, Generation(1)).unwrap_err().to_string();
    assert!(errors.contains("`admin_access` has no effect without `admin`"), "{errors}");
}

#[test]
fn whose_credentials_they_are_is_clear() {
    let check = |access: &str, expect: &str| {
        let file = format!("admin: 0.0.0.0:9900\nadmin_access:\n  {access}\nvips: {{}}");
        let errors = parse("f", &file, Generation(1)).unwrap_err().to_string();
        assert!(errors.contains(expect), "{errors}");
    };
    // Whose it is, and what they may do, would be a matter of order.
    let hash = "'{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g='";
    check(
        &format!("{{read: {{users: {{ann: {hash}}}}}, act: {{users: {{ann: {hash}}}}}}}"),
        "the user `ann` has both roles; list it under `act` alone",
    );
    let tls = "tls: {certificates: [{cert: c.pem, key: k.pem}], client_ca: ca.pem}";
    for certificate in ["CN=ann", "ann.example.com", "spiffe://example.com/ann"] {
        for rest in [
            format!(
                "read: {{certificates: {{ann: '{certificate}'}}}}, act: {{certificates: {{ann: '{certificate}'}}}}"
            ),
            format!("act: {{certificates: {{ann: '{certificate}', bob: '{certificate}'}}}}"),
        ] {
            check(&format!("{{{tls}, {rest}}}"), "have the same certificate; a certificate must belong to one holder");
        }
    }
    // Spellings that no certificate has.
    let subject = |text: &str, expect: &str| {
        check(&format!("{{{tls}, act: {{certificates: {{ann: '{text}'}}}}}}"), expect);
    };
    subject("cn=ann,o=ops", "is a subject that no certificate is compared as; write CN=ann,O=ops");
    subject("CN=ann, O=ops", "write CN=ann,O=ops");
    subject("E=a@b.test", "write emailAddress=a@b.test");
    subject("/CN=ann/O=ops", "is not the subject of a certificate: `/CN` is no attribute");
    subject("CN=ann,", "`` has no `=`");
}

#[test]
fn one_of_several_proofs() {
    let text =
        "listeners: {l: {bind: ':1', protocol: http, auth: {basic: {users: {a: '{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g='}}},
        routes: [{path: /a, satisfy: any, allow: 10.0.0.0/8, to: web}, {to: web}]}}
clusters: {web: {endpoints: [a:1]}}";
    let snapshot = load(text);
    let satisfy: Vec<Satisfy> = http(&snapshot).routes.iter().map(|route| route.policy.satisfy).collect();
    assert_eq!(satisfy, [Satisfy::Any, Satisfy::All]);
    routes(
        &[
            "to: web, path: /a, satisfy: any",
            "to: web, path: /b, satisfy: any, deny: 10.0.0.0/8, auth: {api_key: {header: a, keys: {b: c}}}",
            "to: web, path: /c, satisfy: some",
            "to: web, path: /d, satisfy: any, allow: 10.0.0.0/8, claims: {a: b}, external_auth: {to: web, http: {}}",
        ],
        r#"7:35: `satisfy: any` needs two of `allow`, `auth` and `external_auth`, one of which is enough; add one of them, or remove `satisfy`
8:35: `satisfy: any` needs two of `allow`, `auth` and `external_auth`, one of which is enough; add one of them, or remove `satisfy`
9:35: `satisfy`: "some" is not valid; it must be all or any
10:67: `claims` has no place beside `satisfy: any`: they are those of a token, and an address may be enough; remove one of the two
10:67: `claims` needs a token, and the listener has no `auth` with `jwt`; add `auth: {jwt: ...}` to the listener"#,
    );
}

#[test]
fn certificates_that_routes_demand() {
    let text = "listeners: {l: {bind: ':1', protocol: https, tls: {certificates: [{cert: a, key: b}], client_ca: {ca: c, crl: revoked.pem, required: false}},
        routes: [{path: /a, client_cert: {subject: 'cn = ann , O=ops', redirect: 'https://help.example'}, to: web},
        {path: /b, client_cert: {mode: optional, subject: {regex: '.*CN=a.*'}}, to: web}, {to: web}]}}
clusters: {web: {endpoints: [a:1]}}";
    let snapshot = load(text);
    let rules: Vec<_> =
        http(&snapshot).routes.iter().map(|route| route.policy.client_cert.as_deref().cloned()).collect();
    let [Some(first), Some(second), None] = rules.as_slice() else { panic!("{rules:?}") };
    assert!(matches!(&first.subject, Some(model::TextMatcher::Exact(text)) if text == "CN=ann,O=ops"), "{first:?}");
    assert_eq!((first.mode, first.redirect.as_deref()), (ClientCertMode::Required, Some("https://help.example/")));
    assert_eq!((second.mode, &second.redirect), (ClientCertMode::Optional, &None));
    let client_ca = snapshot.listeners[0].tls.as_ref().and_then(|tls| tls.client_ca.as_ref()).unwrap();
    assert_eq!((client_ca.verify, client_ca.required), (true, false));
    assert_eq!(client_ca.crl.as_ref().map(ToString::to_string).as_deref(), Some("revoked.pem"));
    routes(
        &["to: web, client_cert: {subject: ann, mode: maybe}"],
        r#"7:29: `client_cert` needs a certificate, and clients of this listener are not asked for one; add `client_ca: {ca: FILE, required: false}` to the `tls` of the listener
7:39: `ann` is not the subject of a certificate: `ann` has no `=`; write it as `openssl x509 -noout -subject -nameopt RFC2253` does
7:50: `mode`: "maybe" is not valid; it must be required, optional or unsigned"#,
    );
}
