//! The keys of access to the admin address.

use super::auth::RawKeys;
use crate::define::keys;
use crate::read::{Named, OneOrMany};
use crate::text::{FileName, HashText, HostHeader, UserName};

keys! {
    /// Who may use the address of `admin`. Once one of `read` and `act` names somebody, every request except `/healthz` and `/readyz` must prove
    /// who it is from: a token as `Authorization: Bearer TOKEN`, or a user and a password as `Authorization: Basic`, for which browsers ask. A
    /// browser may also send a token as the password of any user name that `users` does not have.
    pub struct RawAdminAccess as "the access to the admin address" {
        /// Names under which browsers may reach the address, without a port. Addresses and `localhost` need not be named. Requests with
        /// another `Host` are refused, because a web page can make its own name lead here.
        optional hosts: OneOrMany<HostHeader>, default "none";
        /// Those who may see everything and change nothing.
        optional read: RawAdminRole, default "nobody";
        /// Those who may also drain endpoints, reload, and change what else commands change.
        optional act: RawAdminRole, default "nobody";
    }
}

keys! {
    /// The holders of a role.
    pub struct RawAdminRole as "a role" {
        /// Names, each with a token or several, of 16 characters at least: `openssl rand -hex 16` makes one.
        optional tokens: Named<UserName, RawKeys>, default "none";
        /// A file with tokens, one `name:token` a line. Empty lines and lines that begin with `#` are skipped. At most 1MiB.
        optional token_file: FileName, default "none";
        /// Names, each with the hash of the password: bcrypt (`$2y$`), argon2, apr1 or `{SHA}`.
        optional users: Named<UserName, HashText>, default "none";
        /// A file with users, one `name:hash` a line, as `htpasswd` writes it. At most 1MiB.
        optional user_file: FileName, default "none";
    }
}
