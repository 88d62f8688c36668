//! The keys of authentication.

use model::Satisfy;

use super::{Off, RawJwt};
use crate::define::{Kind, keys};
use crate::diagnostic::{Report, Wrong};
use crate::read::{Choice, Flag, Named, OneOf, OneOrMany, Read, Scalar, unexpected};
use crate::text::{ChangedHeader, CookieName, FileName, HashText, HeaderName, KeyText, QueryName, Realm, UserName};
use crate::yaml::{Node, Value};

keys! {
    /// What a request must prove; a request that does not is answered 401. [Authentication](authentication.md) has the details.
    pub struct RawAuthObject as "an authentication", one of [basic, api_key, jwt] {
        /// A user and a password.
        optional basic: RawBasic;
        /// A key that belongs to a client.
        optional api_key: RawApiKey;
        /// A token that an issuer has signed.
        optional jwt: RawJwt;
    }
}

keys! {
    /// Users with passwords (RFC 7617). Browsers ask for them.
    pub struct RawBasic as "the basic authentication", one of [users, file] {
        /// What browsers show when they ask.
        optional realm: Realm, default crate::defaults::REALM;
        /// Names, each with [the hash of the password](authentication.md#passwords): bcrypt (`$2y$`), argon2, SHA-crypt (`$5$`, `$6$`), MD5 (`$apr1$`,
        /// `$1$`), `{SSHA}`, `{SHA}` or `{PLAIN}`.
        optional users: Named<UserName, HashText>;
        /// A file with such users, one `name:hash` a line, as `htpasswd` writes it. At most 1MiB.
        optional file: FileName;
        /// The header in which the endpoint gets the user's name. What a client sends in it is removed.
        optional user_header: ChangedHeader, default "none";
        /// The endpoint gets `Authorization`, too.
        optional forward: Flag, default "false";
    }
}

keys! {
    /// Clients with keys. The endpoint does not get the key. At least one of `header`, `query` and `cookie` is needed; the first of them, in
    /// this order, that a request has counts.
    pub struct RawApiKey as "the API key authentication", one of [keys, file] {
        /// The headers that may have the key.
        optional header: OneOrMany<HeaderName>, default "none";
        /// The query parameters that may have it.
        optional query: OneOrMany<QueryName>, default "none";
        /// The cookies that may have it.
        optional cookie: OneOrMany<CookieName>, default "none";
        /// Names of clients, each with its key or keys.
        optional keys: Named<UserName, RawKeys>;
        /// A file with such clients, one `client:key` a line. Empty lines and lines that begin with `#` are skipped. At most 1MiB.
        optional file: FileName;
        /// The header in which the endpoint gets the client's name. What a client sends in it is removed.
        optional client_header: ChangedHeader, default "none";
        /// Named in the `WWW-Authenticate` of a refusal.
        optional realm: Realm, default crate::defaults::REALM;
    }
}

/// One key, or several while clients change theirs.
pub type RawKeys = OneOrMany<KeyText>;

impl Choice for Satisfy {
    const CHOICES: &'static [(&'static str, Self, &'static str)] =
        &[("all", Self::All, "all of them"), ("any", Self::Any, "one of them")];
}

text_or_object! {
    /// `off`, or what a request must prove.
    RawAuth = OneOf<Off> | RawAuthObject
}
