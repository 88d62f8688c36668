//! Authentication.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use model::{ApiKeyAuth, Auth, BasicAuth, Jwks, JwtAuth, KeyPlace, Keys, Users};

use super::files::file;
use super::inherited::{self, or_inherited};
use super::jwt;
use super::route::listed;
use crate::defaults;
use crate::diagnostic::{Report, Wrong};
use crate::raw::{RawApiKey, RawAuth, RawAuthObject, RawBasic};
use crate::read::Located;
use crate::text::Realm;

/// What the requests of a listener or a route must prove. A route that says nothing takes that of its listener.
pub fn auth(
    raw: &Option<Located<RawAuth>>,
    inherited: Option<&Arc<Auth>>,
    base: &Path,
    report: &mut Report,
) -> Option<Arc<Auth>> {
    or_inherited("auth", raw, inherited, report, |object, report| one(object, base, report))
}

/// What one policy demands. `off` is for routes that would otherwise take that of a less specific policy.
pub fn alone(raw: &Option<Located<RawAuth>>, report: &mut Report) -> Option<Arc<Auth>> {
    let auth = inherited::alone(raw, report, |object, report| one(object, Path::new(""), report))?;
    if let (Auth::Jwt(JwtAuth { jwks: Jwks::Url(url), .. }), Some(raw)) = (&*auth, raw)
        && !url.is_https
    {
        // Whoever may write a policy would otherwise have this host ask services that trust their network.
        let wrong = Wrong::new("the `url` of a key set must begin with https:// here");
        report.add(raw.location, wrong.hint("or write the keys in `inline`"));
    }
    Some(auth)
}

fn one(object: &RawAuthObject, base: &Path, report: &mut Report) -> Option<Auth> {
    Some(match (&object.basic, &object.api_key, &object.jwt) {
        (Some(raw), ..) => Auth::Basic(basic(&raw.value, base)?),
        (None, Some(raw), _) => Auth::ApiKey(api_key(raw, base, report)?),
        (None, None, Some(raw)) => Auth::Jwt(jwt::jwt(&raw.value, base, report)?),
        (None, None, None) => return None,
    })
}

/// Returns `None` if a required key is missing; the report says so.
fn basic(raw: &RawBasic, base: &Path) -> Option<BasicAuth> {
    let users = match &raw.users {
        Some(users) => {
            let users = users.value.0.iter();
            Users::Inline(
                users.filter_map(|user| Some((user.name.0.clone(), user.value.as_ref()?.0.clone()))).collect(),
            )
        }
        None => Users::File(file(&raw.file, base)?),
    };
    Some(BasicAuth {
        realm: realm(&raw.realm),
        users,
        user_header: raw.user_header.as_ref().map(|name| name.value.0.clone()),
        forward: raw.forward.as_ref().is_some_and(|flag| flag.value.0),
    })
}

/// Returns `None` if a required key is missing; the report says so.
fn api_key(written: &Located<RawApiKey>, base: &Path, report: &mut Report) -> Option<ApiKeyAuth> {
    let raw = &written.value;
    let mut places = listed(&raw.header, |name| KeyPlace::Header(name.0.clone()));
    places.extend(listed(&raw.query, |name| KeyPlace::Query(name.0.clone())));
    places.extend(listed(&raw.cookie, |name| KeyPlace::Cookie(name.0.clone())));
    if places.is_empty() {
        let wrong = Wrong::new("the API key authentication does not say where a request has its key");
        report.add(written.location, wrong.hint("add `header: x-api-key`, `query: key` or `cookie: key`"));
    }
    let mut first: HashMap<&str, &str> = HashMap::new();
    let keys = match &raw.keys {
        Some(keys) => {
            let entries = keys.value.0.iter().filter_map(|entry| Some((&entry.name.0, entry.value.as_ref()?)));
            let all = entries.flat_map(|(name, keys)| keys.0.iter().map(move |key| (name, key)));
            let mut found = Vec::new();
            for (name, key) in all {
                if let Some(first) = first.insert(&key.value.0.0, name) {
                    let wrong = Wrong::new(format!("the clients `{first}` and `{name}` have the same key"));
                    report.add(key.location, wrong.hint("a key must belong to one client, and appear once"));
                }
                found.push((name.clone(), key.value.0.clone()));
            }
            Keys::Inline(found.into())
        }
        None => Keys::File(file(&raw.file, base)?),
    };
    let client_header = raw.client_header.as_ref().map(|name| name.value.0.clone());
    Some(ApiKeyAuth { realm: realm(&raw.realm), places, keys, client_header })
}

fn realm(raw: &Option<Located<Realm>>) -> String {
    raw.as_ref().map_or(defaults::REALM, |realm| &realm.value.0).to_owned()
}
