//! The users and keys of authentication, and the files that list them; the sources of the keys that verify tokens. No message contains a part of a secret.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use model::{
    ApiKeyAuth, Auth, BasicAuth, JwkSet, Jwks, JwtAuth, Keys, PasswordHash, Protocol, Secret, Snapshot, Users,
};

use crate::auth::jwt::keys::{KeySet, KeySource};
use crate::named_files::{self, Fault};
use crate::tls::ClientKeys;

/// The size of a file with users or keys.
const FILE_KIB_MAX: u64 = 1024;

/// Bytes of the name of a user or a client.
const NAME_BYTES_MAX: usize = 256;

/// Errors of one file that are reported.
const FAULTS_MAX: usize = 10;

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
            Auth::Basic(BasicAuth { users: Users::Inline(users), .. }) => Listed::Users(users.as_slice().into()),
            Auth::Basic(BasicAuth { users: Users::File(path), .. }) => {
                Listed::Users(self.users.get(path).cloned().unwrap_or_default())
            }
            Auth::ApiKey(ApiKeyAuth { keys: Keys::Inline(keys), .. }) => Listed::Keys(keys.as_slice().into()),
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
fn load<T: Line>(path: &Path, known: &mut HashMap<PathBuf, Arc<[(String, T)]>>) -> Vec<Fault> {
    if known.contains_key(path) {
        return Vec::new();
    }
    let text = match named_files::read(path, FILE_KIB_MAX) {
        Ok(bytes) => bytes,
        Err(fault) => return vec![fault],
    };
    let Ok(text) = String::from_utf8(text) else { return vec![Fault::in_file(path, "not UTF-8")] };
    match parse(&text) {
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

/// What follows the `:` of a line.
trait Line: Sized {
    /// What two lines must not both have.
    const UNIQUE: &'static str;

    fn read(text: &str) -> Result<Self, String>;

    /// Its text, or the name, whichever must be unique.
    fn unique<'l>(&'l self, name: &'l str) -> &'l str;
}

impl Line for PasswordHash {
    const UNIQUE: &'static str = "name";

    fn read(text: &str) -> Result<Self, String> {
        Self::parse(text)
    }

    fn unique<'l>(&'l self, name: &'l str) -> &'l str {
        name
    }
}

impl Line for Secret {
    const UNIQUE: &'static str = "key";

    fn read(text: &str) -> Result<Self, String> {
        Self::api_key(text)
    }

    fn unique<'l>(&'l self, _: &'l str) -> &'l str {
        &self.0
    }
}

/// The number of a line that is wrong, and why.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct WrongLine(usize, String);

/// The entries, or the lines that are wrong.
fn parse<T: Line>(text: &str) -> Result<Vec<(String, T)>, Vec<WrongLine>> {
    let (mut entries, mut wrong) = (Vec::new(), Vec::new());
    // RFC 3629 section 6: a byte order mark is a signature, not a part of the first name.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    for (index, line) in text.lines().enumerate() {
        let line = line.trim_end();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let entry = match line.split_once(':') {
            None => Err("the line has no `:` between a name and its secret".to_owned()),
            Some((name, _)) if !is_name(name) => {
                Err(format!("the name before `:` must have 1 to {NAME_BYTES_MAX} bytes, and no space at either end"))
            }
            Some((name, secret)) => T::read(secret).map(|secret| (name.to_owned(), secret)),
        };
        match entry {
            Ok(entry) => entries.push((index + 1, entry)),
            Err(message) => wrong.push(WrongLine(index + 1, message)),
        }
    }
    let mut first: HashMap<&str, usize> = HashMap::with_capacity(entries.len());
    for (line, (name, secret)) in &entries {
        if let Some(first) = first.insert(secret.unique(name), *line) {
            wrong.push(WrongLine(*line, format!("the same {} as in line {first}", T::UNIQUE)));
        }
    }
    if entries.is_empty() && wrong.is_empty() {
        wrong.push(WrongLine(1, "the file has no entry, so nobody could pass".to_owned()));
    }
    wrong.sort_unstable();
    wrong.truncate(FAULTS_MAX);
    if wrong.is_empty() { Ok(entries.into_iter().map(|(_, entry)| entry).collect()) } else { Err(wrong) }
}

fn is_name(name: &str) -> bool {
    let has_control = name.chars().any(char::is_control);
    !name.is_empty() && name.len() <= NAME_BYTES_MAX && name.trim() == name && !has_control
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check<T: Line>(text: &str, expect: Result<&[&str], &[(usize, &str)]>) {
        match (parse::<T>(text), expect) {
            (Ok(entries), Ok(expect)) => {
                assert_eq!(entries.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), expect, "{text}")
            }
            (Err(wrong), Err(expect)) => {
                let found: Vec<_> = wrong.iter().map(|WrongLine(line, _)| *line).collect();
                assert_eq!(found, expect.iter().map(|(line, _)| *line).collect::<Vec<_>>(), "{wrong:?}");
                for (WrongLine(_, message), (_, part)) in wrong.iter().zip(expect) {
                    assert!(message.contains(part), "{message}");
                    assert!(!message.contains("hunter2"), "{message}");
                }
            }
            (Ok(_), Err(_)) => panic!("accepted: {text}"),
            (Err(wrong), Ok(_)) => panic!("{text}: {wrong:?}"),
        }
    }

    #[test]
    fn files_of_users() {
        let sha = "{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g=";
        check::<PasswordHash>(&format!("# staff\r\n\r\njoe:{sha}\r\nann b:{sha}"), Ok(&["joe", "ann b"]));
        check::<PasswordHash>(
            &format!("joe:{sha}\nhunter2\nann:hunter2\n:{sha}\njoe:{sha}\n ann:{sha}"),
            Err(&[
                (2, "no `:`"),
                (3, "must be bcrypt"),
                (4, "1 to 256"),
                (5, "same name as in line 1"),
                (6, "1 to 256"),
            ]),
        );
        check::<PasswordHash>(&format!("\u{feff}joe:{sha}\r\n"), Ok(&["joe"]));
        check::<PasswordHash>("# nobody\n", Err(&[(1, "no entry")]));
        check::<PasswordHash>(
            &"x\n".repeat(100),
            Err(&[(1, ""), (2, ""), (3, ""), (4, ""), (5, ""), (6, ""), (7, ""), (8, ""), (9, ""), (10, "")]),
        );
    }

    #[test]
    fn files_of_keys() {
        check::<Secret>("shop:a:b\nshop:c\nbank:d", Ok(&["shop", "shop", "bank"]));
        check::<Secret>("shop:hunter2\nbank:hunter2\nshop:\n", Err(&[(2, "same key as in line 1"), (3, "1 to 1024")]));
        check::<Secret>("shop:hunter2 hunter2", Err(&[(1, "visible characters")]));
    }
}
