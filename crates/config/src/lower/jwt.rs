//! Authentication by tokens.

use std::path::Path;
use std::time::Duration;

use model::{Jwks, JwksUrl, JwtAuth, KeyPlace};

use super::files::file;
use super::route::listed;
use crate::defaults;
use crate::diagnostic::{Report, Wrong};
use crate::raw::{RawJwks, RawJwt};
use crate::read::{Located, OneOrMany};
use crate::text::{ClaimName, JwksText, Text, duration_text};

/// The largest difference of clocks. More of it would make a token that has ended as good as one that has not.
const LEEWAY_MAX: Duration = Duration::from_secs(3600);

/// The most issuers, audiences and places of a token. Each is compared for each token.
const NAMES_MAX: usize = 32;

/// Stands for every audience.
const ANY: &str = "*";

/// Returns `None` if a required key is missing; the report says so.
pub fn jwt(raw: &RawJwt, base: &Path, report: &mut Report) -> Option<JwtAuth> {
    let mut places = listed(&raw.header, |name| KeyPlace::Header(name.0.to_ascii_lowercase()));
    places.extend(listed(&raw.query, |name| KeyPlace::Query(name.0.clone())));
    places.extend(listed(&raw.cookie, |name| KeyPlace::Cookie(name.0.clone())));
    let location =
        raw.header.as_ref().map(|list| list.location).or_else(|| raw.query.as_ref().map(|list| list.location));
    if let Some(location) = location.or_else(|| raw.cookie.as_ref().map(|list| list.location)) {
        limited("header, query and cookie", location, places.len(), report);
    }
    let (issuers, audiences) = (texts("issuer", &raw.issuer, report), texts("audience", &raw.audience, report));
    let is_any = audiences.iter().any(|audience| audience == ANY);
    if is_any
        && audiences.len() > 1
        && let Some(written) = &raw.audience
    {
        let wrong = Wrong::new("`audience` has `*`, which stands for every audience, and others");
        report.add(written.location, wrong.hint("remove `*`, or the others"));
    }
    if let Some(leeway) = raw.leeway.as_ref().filter(|leeway| leeway.value.0 > LEEWAY_MAX) {
        let (found, max) = (duration_text(leeway.value.0), duration_text(LEEWAY_MAX));
        report.add(leeway.location, Wrong::new(format!("`leeway` is {found}; the limit is {max}")));
    }
    let claim_headers = claim_headers(raw, report);
    let jwks = jwks(&raw.jwks.as_ref()?.value, base, report)?;
    let is_set =
        |flag: &Option<Located<crate::read::Flag>>, default| flag.as_ref().map_or(default, |flag| flag.value.0);
    if raw.issuer.is_none() || raw.audience.is_none() {
        return None;
    }
    Some(JwtAuth {
        realm: raw.realm.as_ref().map_or(defaults::REALM, |realm| &realm.value.0).to_owned(),
        places,
        issuers,
        audiences: (!is_any).then_some(audiences),
        algorithms: raw.algorithms.as_ref().map(|_| listed(&raw.algorithms, |algorithm| algorithm.0)),
        leeway: raw.leeway.as_ref().map_or(defaults::JWT_LEEWAY, |leeway| leeway.value.0),
        require_exp: is_set(&raw.require_exp, true),
        optional: is_set(&raw.optional, false),
        forward: is_set(&raw.forward, false),
        claim_headers,
        jwks,
    })
}

fn texts(key: &str, raw: &Option<Located<OneOrMany<Text>>>, report: &mut Report) -> Vec<String> {
    let Some(written) = raw else { return Vec::new() };
    for text in written.value.0.iter().filter(|text| text.value.0.is_empty()) {
        report.add(text.location, Wrong::new(format!("`{key}` is empty")).hint("write what the tokens have"));
    }
    limited(key, written.location, written.value.0.len(), report);
    if written.value.0.is_empty() {
        report.add(written.location, Wrong::new(format!("`{key}` is an empty list, so no token could pass")));
    }
    listed(raw, |text| text.0.clone())
}

fn limited(key: &str, location: crate::diagnostic::Location, found: usize, report: &mut Report) {
    if found > NAMES_MAX {
        report.add(location, Wrong::new(format!("`{key}` has {found} entries; the limit is {NAMES_MAX}")));
    }
}

fn claim_headers(raw: &RawJwt, report: &mut Report) -> Vec<(String, String)> {
    let Some(written) = &raw.claim_headers else { return Vec::new() };
    limited("claim_headers", written.location, written.value.0.len(), report);
    let mut found: Vec<(String, String)> = Vec::new();
    for entry in &written.value.0 {
        let Some(ClaimName(claim)) = &entry.value else { continue };
        let name = entry.name.0.clone();
        // The endpoint would get two values and might take either.
        if found.iter().any(|(known, _)| *known == name) {
            report.add(written.location, Wrong::new(format!("`claim_headers` has the header `{name}` twice")));
        }
        if matches!(name.as_str(), "authorization" | "cookie") {
            let wrong = Wrong::new(format!("`claim_headers` has `{name}`, which clients send for other purposes"));
            report.add(written.location, wrong.hint("use another header, such as x-user"));
        }
        found.push((name, claim.clone()));
    }
    found
}

/// Returns `None` if it could not be read; the report says so.
fn jwks(raw: &RawJwks, base: &Path, report: &mut Report) -> Option<Jwks> {
    if let (Some(ca), false) = (&raw.ca, raw.url.as_ref().is_some_and(|url| url.value.0.is_https)) {
        let wrong = Wrong::new("`ca` has no effect without a `url` that begins with https://");
        report.add(ca.location, wrong.hint("remove it"));
    }
    Some(match (&raw.url, &raw.inline) {
        (Some(url), _) => Jwks::Url(JwksUrl { ca: file(&raw.ca, base), ..url.value.0.clone() }),
        (None, Some(Located { value: JwksText(text), .. })) => Jwks::Inline(text.clone()),
        (None, None) => Jwks::File(file(&raw.file, base)?),
    })
}
