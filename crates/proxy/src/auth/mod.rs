//! Authentication: what a route demands of a request before it serves it.
//!
//! [`Authenticator::take`] takes the credentials out of a request, and [`Authenticator::judge`] says what they are worth. Passwords that are
//! not known yet need a [`Check`], which `passwords` makes on threads of its own. The exchange waits for its result. Tokens are the exception: `jwt`
//! finds and verifies them at once, for a listener whose routes have conditions on claims even before the route is known.

pub(crate) mod files;
pub(crate) mod jwt;
pub(crate) mod operators;
pub(crate) mod passwords;
pub(crate) mod present;
pub(crate) mod tag;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use model::{ApiKeyAuth, Auth, BasicAuth, JwtAuth, PasswordHash, Route, Secret};
use telemetry::Reason;

use self::files::{AuthFiles, Listed};
use self::jwt::Verifier;
use self::passwords::{Check, Known, PasswordCounts, Passwords};
use self::present::{Login, Presented};
use self::tag::Tag;
use crate::error::Error;
use crate::exchange::Request;

/// The authentication of all routes of a snapshot.
#[derive(Default)]
pub(crate) struct Authenticators {
    /// By the address of their policy, which each of them holds.
    all: HashMap<usize, Arc<Authenticator>>,
    /// `None` if no route demands a password.
    logins: Option<Logins>,
}

/// What the routes of a listener demand.
#[derive(Default)]
pub(crate) struct ListenerAuth {
    /// By the route's number.
    of_routes: HashMap<usize, Arc<Authenticator>>,
    /// Each of them once.
    distinct: Box<[Arc<Authenticator>]>,
    claims: Arc<[Box<str>]>,
    /// Set if routes have conditions on the claims of its tokens.
    before_routing: Option<Arc<Authenticator>>,
}

/// The authentication of one or more routes, ready for use.
pub(crate) struct Authenticator {
    policy: Arc<Auth>,
    listed: Listed,
    method: Method,
    /// The value of `WWW-Authenticate` in a refusal.
    challenge: Box<str>,
    /// The fields in which only this hop says who the client is.
    claims: Box<[Box<str>]>,
}

enum Method {
    Basic(Users),
    ApiKey(HashMap<Tag, Box<str>>),
    Jwt(Box<Verifier>),
}

struct Users {
    users: Box<[User]>,
    /// The indexes of `users` by name.
    by_name: HashMap<Box<str>, usize>,
    passwords: Arc<Passwords>,
}

struct User {
    hash: PasswordHash,
    known: Arc<Known>,
}

/// The passwords of a snapshot: those that have been right, by their hash, and the threads that check others.
pub(crate) struct Logins {
    known: HashMap<PasswordHash, Arc<Known>>,
    passwords: Arc<Passwords>,
}

/// Credentials that were taken out of a request.
pub(crate) enum Taken {
    Login(Presented<Login>),
    Key(Presented<Vec<u8>>),
    /// Tokens are looked at before they are removed ([`Verifier::identify`]).
    Token,
}

/// What the credentials of a request are worth.
pub(crate) enum Judged {
    /// They are right: the request is from the client of this name.
    From(Box<str>),
    /// The password must be checked first. If it is right, the request is from this user.
    Ask(Box<str>, Box<Check>),
}

impl Logins {
    /// Keeps the threads of `previous`, and what it knows of these hashes.
    pub(crate) fn new<'h>(hashes: impl Iterator<Item = &'h PasswordHash>, previous: Option<&Self>) -> Self {
        let kept = |hash: &PasswordHash| previous.and_then(|previous| previous.known.get(hash)).cloned();
        let known = hashes.map(|hash| (hash.clone(), kept(hash).unwrap_or_default())).collect();
        let passwords = previous.map_or_else(Arc::default, |previous| previous.passwords.clone());
        Self { known, passwords }
    }
}

impl Authenticators {
    /// What these routes demand. Keeps what `previous` has made of the same policies and files, and the passwords that it knows.
    pub(crate) fn new<'r>(
        routes: impl Iterator<Item = &'r Route> + Clone,
        files: &AuthFiles,
        previous: Option<&Self>,
    ) -> Self {
        let policies = routes.clone().filter_map(|route| route.policy.auth.as_ref());
        let policies: HashMap<usize, &Arc<Auth>> = policies.map(|policy| (address(policy), policy)).collect();
        let mut wanted: HashMap<usize, BTreeSet<Box<str>>> = HashMap::new();
        for (address, claim) in routes.flat_map(wanted_claims) {
            wanted.entry(address).or_default().insert(claim.into());
        }
        let listed: HashMap<usize, Listed> =
            policies.iter().map(|(address, policy)| (*address, files.listed(policy))).collect();
        let demands_password = policies.values().any(|policy| matches!(***policy, Auth::Basic(_)));
        let logins = demands_password.then(|| {
            let known = previous.and_then(|previous| previous.logins.as_ref());
            Logins::new(listed.values().flat_map(Listed::hashes), known)
        });
        let mut make = |(address, listed): (usize, Listed)| {
            let policy = *policies.get(&address)?;
            let old = previous.and_then(|previous| previous.all.get(&address));
            let wanted: Box<[Box<str>]> = wanted.remove(&address).unwrap_or_default().into_iter().collect();
            let is_same = |old: &&Arc<Authenticator>| {
                let is_for = old.verifier().is_none_or(|verifier| verifier.is_for(&wanted));
                Arc::ptr_eq(&old.policy, policy) && old.listed.is_same(&listed) && is_for
            };
            let made = old.filter(is_same).cloned();
            let make = || Arc::new(Authenticator::new(policy, listed, logins.as_ref(), &wanted));
            Some((address, made.unwrap_or_else(make)))
        };
        Self { all: listed.into_iter().filter_map(&mut make).collect(), logins }
    }

    /// Those of these routes.
    pub(crate) fn of(&self, routes: &[Route]) -> ListenerAuth {
        let of = |(number, route): (usize, &Route)| {
            Some((number, self.all.get(&address(route.policy.auth.as_ref()?))?.clone()))
        };
        let of_routes: HashMap<usize, Arc<Authenticator>> = routes.iter().enumerate().filter_map(of).collect();
        let distinct: HashMap<usize, &Arc<Authenticator>> =
            of_routes.values().map(|authenticator| (Arc::as_ptr(authenticator) as usize, authenticator)).collect();
        let distinct: Box<[Arc<Authenticator>]> = distinct.into_values().cloned().collect();
        let claims: BTreeSet<&Box<str>> = distinct.iter().flat_map(|authenticator| &*authenticator.claims).collect();
        let with_claims = routes.iter().position(|route| !route.claims.is_empty());
        let before_routing = with_claims.and_then(|number| of_routes.get(&number)).cloned();
        ListenerAuth { claims: claims.into_iter().cloned().collect(), distinct, before_routing, of_routes }
    }

    /// `None` if no route demands a password.
    pub(crate) fn counts(&self) -> Option<PasswordCounts> {
        self.logins.as_ref().map(|logins| logins.passwords.counts())
    }
}

impl ListenerAuth {
    /// Whether no route demands anything.
    pub(crate) fn is_empty(&self) -> bool {
        self.of_routes.is_empty()
    }

    /// What the route with this number demands.
    pub(crate) fn of(&self, number: usize) -> Option<&Arc<Authenticator>> {
        self.of_routes.get(&number)
    }

    /// Set if routes have conditions on the claims of tokens.
    pub(crate) fn before_routing(&self) -> Option<&Verifier> {
        self.before_routing.as_ref()?.verifier()
    }

    /// The names of the fields in which only this hop says who the client is, on all routes: the endpoint of a route that demands nothing
    /// may be one that takes such a field for proof.
    pub(crate) fn claims(&self) -> &Arc<[Box<str>]> {
        &self.claims
    }

    /// Adds names of fields that only this hop may set.
    pub(crate) fn add_claims<'n>(&mut self, names: impl Iterator<Item = &'n str>) {
        let all: BTreeSet<Box<str>> = self.claims.iter().cloned().chain(names.map(Into::into)).collect();
        if all.len() > self.claims.len() {
            self.claims = all.into_iter().collect();
        }
    }

    /// Removes from a request what it says about its client in the fields that only this hop may set.
    pub(crate) fn remove_claims(&self, request: &mut Request) {
        if !self.claims.is_empty() {
            present::remove_claims(request, &self.claims);
        }
    }

    /// Removes the credentials from a request that was answered before they mattered, so that no log has them. `route` is its number, if
    /// it has a route.
    pub(crate) fn hide(&self, request: &mut Request, route: Option<usize>) {
        let all = match route {
            Some(route) => self.of(route).map_or(&[][..], std::slice::from_ref),
            None => &self.distinct,
        };
        all.iter().for_each(|authenticator| drop(authenticator.take(request)));
    }
}

/// The claims that the conditions of a route look at, or that its requests are counted by, each with the address of its policy.
fn wanted_claims(route: &Route) -> impl Iterator<Item = (usize, &str)> {
    let policy = route.policy.auth.as_ref().map(address);
    let counted = route.policy.global_rate_limit.iter().flat_map(|limit| limit.claims());
    let all = route.claims.iter().map(|claim| claim.name.as_str()).chain(counted);
    all.filter_map(move |claim| Some((policy?, claim)))
}

fn address(policy: &Arc<Auth>) -> usize {
    Arc::as_ptr(policy) as usize
}

impl Authenticator {
    /// `logins` has the hashes of `listed`.
    pub(crate) fn new(policy: &Arc<Auth>, listed: Listed, logins: Option<&Logins>, wanted: &[Box<str>]) -> Self {
        let jwt: Vec<Box<str>> = match &**policy {
            Auth::Jwt(jwt) => jwt.claim_headers.iter().map(|(name, _)| name.as_str().into()).collect(),
            Auth::Basic(_) | Auth::ApiKey(_) => Vec::new(),
        };
        let (method, scheme, realm, claim) = match &**policy {
            Auth::Basic(BasicAuth { realm, user_header, .. }) => {
                (Method::basic(&listed, logins), "Basic", realm, user_header)
            }
            Auth::ApiKey(ApiKeyAuth { realm, client_header, .. }) => {
                (Method::api_key(&listed), "ApiKey", realm, client_header)
            }
            Auth::Jwt(JwtAuth { realm, .. }) => (Method::jwt(policy, &listed, wanted), "Bearer", realm, &None),
        };
        // RFC 7617 section 2.1: names and passwords are read as UTF-8.
        let charset = if scheme == "Basic" { ", charset=\"UTF-8\"" } else { "" };
        Self {
            method,
            challenge: format!("{scheme} realm=\"{realm}\"{charset}").into(),
            claims: claim.iter().map(|name| name.as_str().into()).chain(jwt).collect(),
            policy: policy.clone(),
            listed,
        }
    }

    /// The value of `WWW-Authenticate` for a refusal with this reason.
    pub(crate) fn challenge(&self, reason: Reason) -> &str {
        self.verifier().map_or(&self.challenge, |verifier| verifier.challenge(reason))
    }

    /// Set if it demands a token.
    pub(crate) fn verifier(&self) -> Option<&Verifier> {
        match &self.method {
            Method::Jwt(verifier) => Some(verifier),
            Method::Basic(_) | Method::ApiKey(_) => None,
        }
    }

    /// Removes from a request its credentials.
    pub(crate) fn take(&self, request: &mut Request) -> Taken {
        match &*self.policy {
            Auth::Basic(basic) => Taken::Login(present::take_login(request, basic.forward)),
            Auth::ApiKey(api_key) => Taken::Key(present::take_key(request, &api_key.places)),
            Auth::Jwt(_) => {
                self.verifier().into_iter().for_each(|verifier| verifier.strip(request));
                Taken::Token
            }
        }
    }

    /// What these credentials of a client are worth. `client` identifies its address.
    ///
    /// # Errors
    /// [`Reason::CredentialsMissing`], [`Reason::CredentialsInvalid`].
    pub(crate) fn judge(&self, taken: Taken, client: u64) -> Result<Judged, Error> {
        match (&self.method, taken) {
            (_, Taken::Login(Presented::Nothing) | Taken::Key(Presented::Nothing)) => {
                Err(Error::internal(Reason::CredentialsMissing))
            }
            (Method::Basic(users), Taken::Login(Presented::These(login))) => users.judge(login, client),
            (Method::ApiKey(clients), Taken::Key(Presented::These(key))) => {
                let client = Tag::of(&[&key]).and_then(|tag| clients.get(&tag)).ok_or_else(invalid)?;
                Ok(Judged::From(client.clone()))
            }
            _ => Err(invalid()),
        }
    }

    /// Tells the endpoint who the client is.
    pub(crate) fn grant(&self, request: &mut Request, client: &str) {
        for name in &*self.claims {
            present::add_identity(request, name, client);
        }
    }

    /// Begins a check.
    ///
    /// # Errors
    /// [`Reason::AuthenticationBusy`]: too many wait.
    pub(crate) fn submit(&self, check: Check) -> Result<tokio::sync::oneshot::Receiver<bool>, Error> {
        match &self.method {
            Method::Basic(users) => users.passwords.submit(check),
            Method::ApiKey(_) | Method::Jwt(_) => Err(Error::internal(Reason::Internal)),
        }
    }
}

/// The error for credentials that are not right.
pub(crate) fn invalid() -> Error {
    Error::internal(Reason::CredentialsInvalid)
}

impl Method {
    fn basic(listed: &Listed, logins: Option<&Logins>) -> Self {
        let users: &[(String, PasswordHash)] = if let Listed::Users(users) = listed { users } else { &[] };
        let Some(logins) = logins else { return Self::ApiKey(HashMap::new()) };
        let known = |hash: &PasswordHash| logins.known.get(hash).cloned().unwrap_or_default();
        Self::Basic(Users {
            by_name: users.iter().enumerate().map(|(index, (name, _))| (name.as_str().into(), index)).collect(),
            users: users.iter().map(|(_, hash)| User { hash: hash.clone(), known: known(hash) }).collect(),
            passwords: logins.passwords.clone(),
        })
    }

    /// Without a source, nothing is right.
    fn jwt(policy: &Arc<Auth>, listed: &Listed, wanted: &[Box<str>]) -> Self {
        let Listed::Tokens(source) = listed else { return Self::ApiKey(HashMap::new()) };
        let verifier = Verifier::new(policy, source.clone(), wanted);
        verifier.map_or_else(|| Self::ApiKey(HashMap::new()), |verifier| Self::Jwt(Box::new(verifier)))
    }

    fn api_key(listed: &Listed) -> Self {
        let keys: &[(String, Secret)] = if let Listed::Keys(keys) = listed { keys } else { &[] };
        let entry = |(client, key): &(String, Secret)| Some((Tag::of(&[key.0.as_bytes()])?, client.as_str().into()));
        Self::ApiKey(keys.iter().filter_map(entry).collect())
    }
}

impl Users {
    fn judge(&self, login: Login, client: u64) -> Result<Judged, Error> {
        let Login { user: name, password } = login;
        let found = self.by_name.get(name.as_str()).and_then(|index| self.users.get(*index));
        let known = match found {
            Some(user) => {
                let tag = user.tag(&password).ok_or_else(invalid)?;
                if user.known.is(tag) {
                    return Ok(Judged::From(name.into()));
                }
                Some((user.known.clone(), tag))
            }
            None => None,
        };
        // For a user that does not exist, the hash of another one is checked in vain: always of the same one for the same name, so that
        // a name that does not exist takes as long as one that does.
        let any = || self.users.get(self.stand_in(&name));
        let hash = found.or_else(any).ok_or_else(invalid)?.hash.clone();
        Ok(Judged::Ask(name.into(), Box::new(Check { hash, password, client, known })))
    }

    /// The index of the user that stands in for one that does not exist.
    fn stand_in(&self, name: &str) -> usize {
        let number = Tag::of(&[b"user", name.as_bytes()]).map_or(0, |tag| tag.halves()[0]);
        (number % self.users.len().max(1) as u64) as usize
    }
}

impl User {
    fn tag(&self, password: &[u8]) -> Option<Tag> {
        // A password is known for its hash, so no other part of the configuration matters.
        Tag::of(&[b"password", password])
    }
}

#[cfg(test)]
mod tests {
    use model::{KeyPlace, Keys};

    use super::*;

    fn basic(users: &[(&str, &str)]) -> Authenticator {
        let users: Vec<_> =
            users.iter().map(|(name, hash)| ((*name).to_owned(), PasswordHash::parse(hash).unwrap())).collect();
        let logins = Logins::new(users.iter().map(|(_, hash)| hash), None);
        let policy = BasicAuth {
            realm: "staff".into(),
            users: model::Users::Inline(users.clone().into()),
            user_header: Some("x-user".into()),
            forward: false,
        };
        Authenticator::new(&Arc::new(Auth::Basic(policy)), Listed::Users(users.into()), Some(&logins), &[])
    }

    fn login(user: &str, password: &str) -> Taken {
        Taken::Login(Presented::These(Login { user: user.to_owned(), password: password.as_bytes().into() }))
    }

    /// The client, or the reason of the refusal.
    fn outcome(authenticator: &Authenticator, taken: Taken) -> Result<String, Reason> {
        match authenticator.judge(taken, 1).map_err(|error| error.reason)? {
            Judged::From(client) => Ok(client.into()),
            Judged::Ask(client, check) => {
                if check.run() {
                    Ok(format!("{client}, checked"))
                } else {
                    Err(Reason::CredentialsInvalid)
                }
            }
        }
    }

    const SHA_OF_PASSWORD: &str = "{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g=";
    const SHA_OF_LETMEIN: &str = "{SHA}t6h1/B6iKLkGEEG3zsS9PFKrPOM=";

    #[test]
    fn a_password_is_checked_once() {
        let users = basic(&[("joe", SHA_OF_PASSWORD), ("ann", SHA_OF_LETMEIN)]);
        let ask = |user, password| outcome(&users, login(user, password));
        let wrong = Err(Reason::CredentialsInvalid);
        assert_eq!(ask("joe", "letmein"), wrong);
        assert_eq!(ask("joe", "password").as_deref(), Ok("joe, checked"));
        assert_eq!(ask("joe", "password").as_deref(), Ok("joe"));
        assert_eq!(ask("joe", "letmein"), wrong);
        assert_eq!(ask("ann", "password"), wrong);
        assert_eq!(ask("ann", "letmein").as_deref(), Ok("ann, checked"));
        // The password of the user who stands in for one that does not exist.
        for name in ["", "eve", "Joe", "bob", "carl"] {
            assert_eq!((ask(name, "password"), ask(name, "letmein")), (wrong.clone(), wrong.clone()), "{name}");
        }
        assert_eq!(outcome(&users, Taken::Login(Presented::Nothing)), Err(Reason::CredentialsMissing));
        assert_eq!(outcome(&users, Taken::Login(Presented::Malformed)), wrong);
        assert_eq!(users.challenge(Reason::CredentialsMissing), "Basic realm=\"staff\", charset=\"UTF-8\"");
    }

    #[test]
    fn known_passwords_survive_a_snapshot_and_other_hashes_do_not() {
        let hash = |text: &str| PasswordHash::parse(text).unwrap();
        let first = Logins::new([hash(SHA_OF_PASSWORD)].iter(), None);
        let again = Logins::new([hash(SHA_OF_PASSWORD), hash(SHA_OF_LETMEIN)].iter(), Some(&first));
        let is_same = |one: &Logins, other: &Logins| {
            Arc::ptr_eq(&one.known[&hash(SHA_OF_PASSWORD)], &other.known[&hash(SHA_OF_PASSWORD)])
        };
        assert!(is_same(&first, &again) && Arc::ptr_eq(&first.passwords, &again.passwords));
        let without = Logins::new([hash(SHA_OF_LETMEIN)].iter(), Some(&again));
        let back = Logins::new([hash(SHA_OF_PASSWORD)].iter(), Some(&without));
        assert!(!is_same(&first, &back));
    }

    #[test]
    fn keys_belong_to_clients() {
        let keys: Vec<(String, Secret)> = [("shop", "k1"), ("shop", "k2"), ("bank", "k3")]
            .map(|(name, key)| (name.into(), Secret(key.into())))
            .into();
        let policy = ApiKeyAuth {
            realm: "api".into(),
            places: vec![KeyPlace::Header("x-key".into())],
            keys: Keys::Inline(keys.clone().into()),
            client_header: None,
        };
        let clients = Authenticator::new(&Arc::new(Auth::ApiKey(policy)), Listed::Keys(keys.into()), None, &[]);
        let ask = |key: &str| outcome(&clients, Taken::Key(Presented::These(key.as_bytes().to_vec())));
        let [first, second, third] = ["k1", "k2", "k3"].map(ask);
        assert_eq!([first.as_deref(), second.as_deref(), third.as_deref()], [Ok("shop"), Ok("shop"), Ok("bank")]);
        assert_eq!([ask(""), ask("k"), ask("k11")], [(); 3].map(|()| Err(Reason::CredentialsInvalid)));
        assert_eq!(outcome(&clients, Taken::Key(Presented::Nothing)), Err(Reason::CredentialsMissing));
        assert_eq!(clients.challenge(Reason::CredentialsMissing), "ApiKey realm=\"api\"");
    }
}
