//! The users and keys of authentication, and the files that list them; the sources of the keys that verify tokens. No message contains a part of a secret.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use model::{
    ApiKeyAuth, Auth, BasicAuth, Credential, JwkSet, Jwks, JwtAuth, Keys, PasswordHash, Protocol, Secret, Snapshot,
    Users, WrongLine, parse_credentials,
};

use crate::auth::jwt::keys::{KeySet, KeySource};
use crate::named_files::{self, Fault};
use crate::tls::ClientKeys;

/// The size of a file with users or keys.
const FILE_KIB_MAX: u64 = 1024;

/// The users or keys of one authentication.
#[derive(Clone)]
pub(crate) enum Listed {
    Users(Arc<[(String, PasswordHash)]>),
    Keys(Arc<[(String, Secret)]>),
    /// What verifies tokens.
    Tokens(Arc<KeySource>),
}

/// The contents of the files of a snapshot, by their name and what is in them.
#[derive(Default)]
pub(crate) struct AuthFiles {
    users: HashMap<PathBuf, Arc<[(String, PasswordHash)]>>,
    keys: HashMap<PathBuf, Arc<[(String, Secret)]>>,
    sources: HashMap<Jwks, Arc<KeySource>>,
    /// How sets of keys are fetched with TLS, or why they cannot be.
    tls: HashMap<Jwks, Result<Arc<ClientKeys>, String>>,
}

impl Listed {
    /// Whether both are the same in memory or in content.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Users(one), Self::Users(other)) => Arc::ptr_eq(one, other) || one == other,
            (Self::Keys(one), Self::Keys(other)) => Arc::ptr_eq(one, other) || one == other,
            (Self::Tokens(one), Self::Tokens(other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }

    /// The hashes of passwords.
    pub(crate) fn hashes(&self) -> impl Iterator<Item = &PasswordHash> {
        let users: &[(String, PasswordHash)] = if let Self::Users(users) = self { users } else { &[] };
        users.iter().map(|(_, hash)| hash)
    }
}

impl AuthFiles {
    /// Reads the files. Keeps the sources of keys that `previous` has, as far as their text is the same.
    ///
    /// # Errors
    /// What is wrong with each of them, with its listener.
    pub(crate) fn load(snapshot: &Snapshot, previous: Option<&Self>) -> Result<Self, Vec<(String, Fault)>> {
        let mut files = Self::default();
        let mut errors = Vec::new();
        for listener in &snapshot.listeners {
            let Protocol::Http(http) = &listener.protocol else { continue };
            let (mut seen, mut policies) = (HashSet::new(), HashSet::new());
            for auth in http.routes.iter().filter_map(|route| route.policy.auth.as_ref()) {
                // Most routes share one.
                if !policies.insert(Arc::as_ptr(auth)) {
                    continue;
                }
                if let Auth::Jwt(JwtAuth { jwks, .. }) = &**auth {
                    let fault = files.load_jwks(jwks, previous).err();
                    errors.extend(fault.map(|fault| (format!("listener {}", listener.name), fault)));
                    continue;
                }
                let Some(path) = auth.file().filter(|path| seen.insert((auth.kind(), *path))) else { continue };
                let faults = match &**auth {
                    Auth::Basic(_) => load(path, &mut files.users),
                    Auth::ApiKey(_) => load(path, &mut files.keys),
                    Auth::Jwt(_) => Vec::new(),
                };
                errors.extend(faults.into_iter().map(|fault| (format!("listener {}", listener.name), fault)));
            }
        }
        if errors.is_empty() { Ok(files) } else { Err(errors) }
    }

    /// Finds or makes the source of a set of keys.
    fn load_jwks(&mut self, jwks: &Jwks, previous: Option<&Self>) -> Result<(), Fault> {
        if self.sources.contains_key(jwks) {
            return Ok(());
        }
        let keys = match jwks {
            Jwks::Url(url) => {
                if url.is_https {
                    let old = previous.and_then(|previous| previous.tls.get(jwks)?.as_ref().ok());
                    let tls = ClientKeys::of_url(url, old);
                    // A file that is wrong can be corrected. A host without roots is no fault of the one who wrote the URL.
                    if let (Err(fault), Some(_)) = (&tls, &url.ca) {
                        return Err(fault.clone());
                    }
                    self.tls.insert(jwks.clone(), tls.map_err(|fault| fault.message));
                }
                None
            }
            Jwks::File(path) => {
                let text = named_files::read(path, JwkSet::KIB_MAX)?;
                Some(KeySet::parse(&text).map_err(|why| Fault::in_file(path, &why))?)
            }
            Jwks::Inline(text) => {
                // The configuration has looked at the text, but not at the numbers.
                let set = KeySet::parse(text.as_bytes());
                set.inspect_err(|why| tracing::warn!(why, "no token can pass: the inline key set cannot be used")).ok()
            }
        };
        let made = KeySource::new(jwks.clone(), keys);
        let old = previous.and_then(|previous| previous.sources.get(jwks)).filter(|old| old.is_same(&made));
        self.sources.insert(jwks.clone(), old.cloned().unwrap_or_else(|| Arc::new(made)));
        Ok(())
    }

    /// The sources of keys, each with how it is fetched with TLS.
    pub(crate) fn sources(&self) -> impl Iterator<Item = (&Arc<KeySource>, Option<&Result<Arc<ClientKeys>, String>>)> {
        self.sources.iter().map(|(jwks, source)| (source, self.tls.get(jwks)))
    }

    /// The users or keys of an authentication. All files of a snapshot have been read before it is compiled; a file that was not is empty,
    /// so nobody passes.
    pub(crate) fn listed(&self, auth: &Auth) -> Listed {
        match auth {
            Auth::Basic(BasicAuth { users: Users::Inline(users), .. }) => Listed::Users(users.clone()),
            Auth::Basic(BasicAuth { users: Users::File(path), .. }) => {
                Listed::Users(self.users.get(path).cloned().unwrap_or_default())
            }
            Auth::ApiKey(ApiKeyAuth { keys: Keys::Inline(keys), .. }) => Listed::Keys(keys.clone()),
            Auth::ApiKey(ApiKeyAuth { keys: Keys::File(path), .. }) => {
                Listed::Keys(self.keys.get(path).cloned().unwrap_or_default())
            }
            Auth::Jwt(JwtAuth { jwks, .. }) => {
                let source = self.sources.get(jwks).cloned();
                Listed::Tokens(source.unwrap_or_else(|| Arc::new(KeySource::new(jwks.clone(), None))))
            }
        }
    }
}

/// Reads a file, unless that was done before. Returns what is wrong with it.
pub(super) fn load<T: Credential>(path: &Path, known: &mut HashMap<PathBuf, Arc<[(String, T)]>>) -> Vec<Fault> {
    if known.contains_key(path) {
        return Vec::new();
    }
    let text = match named_files::read(path, FILE_KIB_MAX) {
        Ok(bytes) => bytes,
        Err(fault) => return vec![fault],
    };
    let Ok(text) = String::from_utf8(text) else { return vec![Fault::in_file(path, "not UTF-8")] };
    match parse_credentials(&text) {
        Ok(entries) => {
            known.insert(path.to_owned(), entries.into());
            Vec::new()
        }
        Err(wrong) => {
            let fault = |WrongLine(line, message)| Fault {
                file: Some(path.to_owned()),
                message: format!("{}:{line}: {message}", path.display()),
                hint: None,
            };
            wrong.into_iter().map(fault).collect()
        }
    }
}
