//! Who may use the admin address.
//!
//! Tokens are looked up by a keyed hash, so that the time this takes tells nothing about them. Passwords are checked on threads of their own,
//! with a lower priority than the workers.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use model::{AdminAccess, AdminRole, Credential, HolderMatcher, Keys, PasswordHash, Secret, Users};
use rustls::pki_types::CertificateDer;

use super::Logins;
use super::files::load;
use super::passwords::{Check, Known};
use super::tag::Tag;
use crate::named_files::Fault;
use crate::tls::{HolderOf, TrustedClients};

/// Checks of passwords by unknown clients share their turns with all others of that kind.
const CLIENT: u64 = 0;

/// Faults that are reported.
const FAULTS_MAX: usize = 10;

/// Those who may use the admin address.
pub struct Operators {
    tokens: HashMap<Tag, Operator>,
    users: HashMap<Box<str>, (Operator, PasswordHash, Arc<Known>)>,
    /// Those who may act come first.
    certificates: Vec<(HolderOf, Operator)>,
    /// Their CA.
    trusted: Option<TrustedClients>,
    /// Is checked in vain for a user that does not exist, so that this takes as long as for one that does.
    stand_in: Option<PasswordHash>,
    logins: Logins,
}

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operator {
    /// The name in the configuration.
    pub name: String,
    /// Whether it may change things.
    pub may_act: bool,
}

impl Operators {
    /// Reads the files that name them. Keeps the passwords that `previous` knows.
    ///
    /// # Errors
    /// Everything that is wrong with the files.
    pub(crate) fn load(access: &AdminAccess, previous: Option<&Self>) -> Result<Self, Vec<(String, Fault)>> {
        let (mut token_files, mut user_files) = (HashMap::new(), HashMap::new());
        let mut faults = Vec::new();
        for keys in access.read.tokens.iter().chain(&access.act.tokens) {
            if let Keys::File(path) = keys {
                faults.extend(load::<Secret>(path, &mut token_files));
            }
        }
        for users in access.read.users.iter().chain(&access.act.users) {
            if let Users::File(path) = users {
                faults.extend(load::<PasswordHash>(path, &mut user_files));
            }
        }
        faults.extend(token_files.iter().filter_map(|(path, tokens)| short_token(path, tokens)));
        if !faults.is_empty() {
            return Err(faults.into_iter().map(|fault| ("admin_access".to_owned(), fault)).collect());
        }
        let roles = [(&access.read, false), (&access.act, true)];
        let mut tokens = HashMap::new();
        let mut listed = HashMap::new();
        for (role, may_act) in roles {
            let operator = |name: &str| Operator { name: name.to_owned(), may_act };
            for (name, token, file) in tokens_of(role, &token_files) {
                let Some(tag) = Tag::of(&[token.0.as_bytes()]) else { continue };
                faults.extend(tokens.insert(tag, operator(name)).map(|first| twice::<Secret>(name, &first, file)));
            }
            for (name, hash, file) in users_of(role, &user_files) {
                let first = listed.insert(Box::from(name), (operator(name), hash.clone()));
                faults.extend(first.map(|(first, _)| twice::<PasswordHash>(name, &first, file)));
            }
        }
        if !faults.is_empty() {
            faults.truncate(FAULTS_MAX);
            return Err(faults.into_iter().map(|fault| ("admin_access".to_owned(), fault)).collect());
        }
        let logins = Logins::new(listed.values().map(|(_, hash)| hash), previous.map(|previous| &previous.logins));
        let stand_in = listed.values().next().map(|(_, hash)| hash.clone());
        let user = |(name, (operator, hash)): (Box<str>, (Operator, PasswordHash))| {
            let known = logins.known.get(&hash).cloned().unwrap_or_default();
            (name, (operator, hash, known))
        };
        let users = listed.into_iter().map(user).collect();
        let mut certificates = Vec::new();
        for (role, may_act) in roles.into_iter().rev() {
            let found = certificates_of(role, may_act);
            certificates.extend(found.map_err(|why| vec![("admin_access".to_owned(), Fault::from(why))])?);
        }
        Ok(Self { tokens, users, certificates, trusted: None, stand_in, logins })
    }

    /// Whether there are any.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty() && self.users.is_empty() && self.certificates.is_empty()
    }

    /// The same with the CA of the clients that show certificates.
    pub(crate) fn trusting(self, trusted: Option<TrustedClients>) -> Self {
        Self { trusted, ..self }
    }

    /// The holder of a certificate, which comes with those that lead from it to the CA of clients. It must be valid now.
    pub fn by_certificate(&self, chain: &[CertificateDer<'_>]) -> Option<Operator> {
        let holder = HolderOf::first(&self.certificates, chain.first()?)?;
        self.trusted.as_ref()?.trust(chain).then(|| holder.clone())
    }

    /// The same as [`Operators::by_password`] if no check is needed for that: the password was right before, or is a token.
    pub fn by_known_password(&self, name: &str, password: &[u8]) -> Option<Operator> {
        let Some((operator, _, known)) = self.users.get(name) else { return self.by_token(password) };
        known.is(Tag::of(&[b"password", password])?).then(|| operator.clone())
    }

    /// The holder of a token.
    pub fn by_token(&self, token: &[u8]) -> Option<Operator> {
        self.tokens.get(&Tag::of(&[token])?).cloned()
    }

    /// The user with this name and password. A token may stand in for the password of a name that no user has, because browsers ask for
    /// nothing but names and passwords.
    ///
    /// # Errors
    /// Too many checks wait.
    pub async fn by_password(&self, name: &str, password: &[u8]) -> Result<Option<Operator>, Busy> {
        let (found, hash, known) = match self.users.get(name) {
            Some((operator, hash, known)) => {
                let Some(tag) = Tag::of(&[b"password", password]) else { return Ok(None) };
                if known.is(tag) {
                    return Ok(Some(operator.clone()));
                }
                (Some(operator), hash.clone(), Some((known.clone(), tag)))
            }
            None => {
                if let Some(holder) = self.by_token(password) {
                    return Ok(Some(holder));
                }
                let Some(hash) = self.stand_in.clone() else { return Ok(None) };
                (None, hash, None)
            }
        };
        let check = Check { hash, password: password.into(), client: CLIENT, known };
        let result = self.logins.passwords.submit(check).map_err(|_| Busy)?;
        Ok(result.await.map_err(|_| Busy)?.then_some(found).flatten().cloned())
    }
}

/// Too many passwords wait to be checked, or there is no memory for a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Busy;

type Files<T> = HashMap<PathBuf, Arc<[(String, T)]>>;

/// The tokens of a role: the holder of each, and the file that has it.
fn tokens_of<'r>(
    role: &'r AdminRole,
    files: &'r Files<Secret>,
) -> impl Iterator<Item = (&'r str, &'r Secret, Option<&'r Path>)> {
    let listed = role.tokens.iter().filter_map(|keys| match keys {
        Keys::Inline(keys) => Some((keys, None)),
        Keys::File(path) => files.get(path).map(|keys| (keys, Some(path.as_path()))),
    });
    listed.flat_map(|(keys, file)| keys.iter().map(move |(name, token)| (name.as_str(), token, file)))
}

/// The same of users.
fn users_of<'r>(
    role: &'r AdminRole,
    files: &'r Files<PasswordHash>,
) -> impl Iterator<Item = (&'r str, &'r PasswordHash, Option<&'r Path>)> {
    let listed = role.users.iter().filter_map(|users| match users {
        Users::Inline(users) => Some((users, None)),
        Users::File(path) => files.get(path).map(|users| (users, Some(path.as_path()))),
    });
    listed.flat_map(|(users, file)| users.iter().map(move |(name, hash)| (name.as_str(), hash, file)))
}

/// Two entries have what only one may have. The second one is that of `name`.
fn twice<T: Credential>(name: &str, first: &Operator, file: Option<&Path>) -> Fault {
    let role = if first.may_act { "act" } else { "read" };
    let unique = if T::UNIQUE == "key" { "token" } else { T::UNIQUE };
    let what = format!("`{name}` has the same {unique} as `{}` of `{role}`", first.name);
    let fault = match file {
        Some(path) => Fault::in_file(path, &what),
        None => Fault::from(what),
    };
    fault.hint("name each of them once: who may act may also read".to_owned())
}

fn certificates_of(role: &AdminRole, may_act: bool) -> Result<Vec<(HolderOf, Operator)>, String> {
    let entry = |(name, holder): &(String, HolderMatcher)| {
        Ok((HolderOf::new(holder)?, Operator { name: name.clone(), may_act }))
    };
    role.certificates.iter().map(entry).collect()
}

fn short_token(path: &Path, tokens: &[(String, Secret)]) -> Option<Fault> {
    let min = AdminAccess::TOKEN_LENGTH_MIN;
    let (name, _) = tokens.iter().find(|(_, token)| token.0.len() < min)?;
    let fault = Fault::in_file(path, &format!("the token of `{name}` has fewer than {min} characters"));
    Some(fault.hint("`openssl rand -hex 16` makes one".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHA_OF_PASSWORD: &str = "{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g=";

    fn operators() -> Operators {
        let tokens = |name: &str, token: &str| {
            vec![Keys::Inline([(name.to_owned(), Secret(token.to_owned()))].as_slice().into())]
        };
        let hash = PasswordHash::parse(SHA_OF_PASSWORD).unwrap();
        let access = AdminAccess {
            hosts: Vec::new(),
            read: AdminRole { tokens: tokens("graphs", "0123456789abcdef"), ..AdminRole::default() },
            act: AdminRole {
                tokens: tokens("oncall", "fedcba9876543210"),
                users: vec![Users::Inline([("ann".to_owned(), hash)].as_slice().into())],
                ..AdminRole::default()
            },
            tls: None,
        };
        Operators::load(&access, None).unwrap_or_else(|faults| panic!("{faults:?}"))
    }

    #[test]
    fn a_token_belongs_to_its_holder() {
        let operators = operators();
        let name = |token: &str| operators.by_token(token.as_bytes()).map(|of| (of.name, of.may_act));
        assert_eq!(name("0123456789abcdef"), Some(("graphs".to_owned(), false)));
        assert_eq!(name("fedcba9876543210"), Some(("oncall".to_owned(), true)));
        assert_eq!((name(""), name("0123456789abcde"), name("0123456789abcdeff")), (None, None, None));
    }

    #[test]
    fn a_password_is_that_of_its_user_and_a_token_may_stand_in_for_one() {
        let operators = operators();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let name = |user: &str, password: &str| {
            let found = runtime.block_on(operators.by_password(user, password.as_bytes())).unwrap();
            found.map(|of| (of.name, of.may_act))
        };
        assert_eq!(name("ann", "password"), Some(("ann".to_owned(), true)));
        assert_eq!((name("ann", "letmein"), name("eve", "password")), (None, None));
        assert_eq!(name("anybody", "0123456789abcdef"), Some(("graphs".to_owned(), false)));
        // What was right once needs no check.
        let known = |user: &str, password: &str| operators.by_known_password(user, password.as_bytes()).is_some();
        assert!(known("ann", "password") && known("anybody", "0123456789abcdef"));
        assert!(!known("ann", "letmein") && !known("ann", "0123456789abcdef") && !known("eve", "password"));
        // A user that exists has its own password.
        assert_eq!(name("ann", "0123456789abcdef"), None);
    }

    #[test]
    fn nobody_has_two_roles() {
        let path = std::env::temp_dir().join(format!("steelyard-two-roles-{}", std::process::id()));
        std::fs::write(&path, format!("graphs:0123456789abcdef\nann:{SHA_OF_PASSWORD}\n")).unwrap();
        let inline =
            |token: &str| vec![Keys::Inline([("oncall".to_owned(), Secret(token.to_owned()))].as_slice().into())];
        let of = |tokens| AdminRole { tokens, ..AdminRole::default() };
        let check = |read: AdminRole, act: AdminRole, expect: &str| {
            let faults = Operators::load(&AdminAccess { read, act, ..AdminAccess::default() }, None).err();
            let messages: Vec<_> = faults.into_iter().flatten().map(|(_, fault)| fault.message).collect();
            assert!(messages.iter().any(|message| message.contains(expect)), "{messages:?}");
        };
        let file = || vec![Keys::File(path.clone())];
        check(of(inline("0123456789abcdef")), of(file()), "`graphs` has the same token as `oncall` of `read`");
        check(of(file()), of(inline("0123456789abcdef")), "`oncall` has the same token as `graphs` of `read`");
        check(of(file()), of(file()), "`graphs` has the same token as `graphs` of `read`");
        std::fs::write(&path, format!("ann:{SHA_OF_PASSWORD}\n")).unwrap();
        let users = || AdminRole { users: vec![Users::File(path.clone())], ..AdminRole::default() };
        check(users(), users(), "`ann` has the same name as `ann` of `read`");
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn short_tokens_of_a_file_are_refused() {
        let path = std::env::temp_dir().join(format!("steelyard-operators-{}", std::process::id()));
        std::fs::write(&path, "graphs:short\n").unwrap();
        let read = AdminRole { tokens: vec![Keys::File(path.clone())], ..AdminRole::default() };
        let access = AdminAccess { read, ..AdminAccess::default() };
        let faults = Operators::load(&access, None).err().unwrap();
        std::fs::remove_file(&path).unwrap();
        let [(owner, fault)] = faults.as_slice() else { panic!("{faults:?}") };
        assert_eq!(owner, "admin_access");
        assert!(fault.message.ends_with(": the token of `graphs` has fewer than 16 characters"), "{fault:?}");
    }
}
