//! The keys of access to the admin address.

use model::TlsVersion;

use super::auth::RawKeys;
use super::tls::RawCertificate;
use super::word;
use crate::defaults;
use crate::define::keys;
use crate::read::{Many, Named, OneOf, OneOrMany};
use crate::text::{FileName, HashText, HolderText, HostHeader, UserName};

keys! {
    /// Who may use the address of `admin`, and how connections to it are encrypted. Once one of `read` and `act` names somebody, every request
    /// except `/healthz` and `/readyz` must prove who it is from: a token as `Authorization: Bearer TOKEN`, a user and a password as
    /// `Authorization: Basic`, for which browsers ask, or a certificate of the client. A browser may also send a token as the password of any
    /// user name that `users` does not have.
    pub struct RawAdminAccess as "the access to the admin address" {
        /// Names under which browsers may reach the address, without a port. Addresses and `localhost` need not be named. Requests with
        /// another `Host` are refused, because a web page can make its own name lead here.
        optional hosts: OneOrMany<HostHeader>, default "none";
        /// Those who may see everything and change nothing.
        optional read: RawAdminRole, default "nobody";
        /// Those who may also drain endpoints, reload, and change what else commands change.
        optional act: RawAdminRole, default "nobody";
        /// Encrypts the connections. Without it, tokens and passwords cross the network as they are.
        optional tls: RawAdminTls, default "none";
    }
}

keys! {
    /// How connections to the address of `admin` are encrypted. Files are read again when they change. The address of `metrics` has no TLS.
    pub struct RawAdminTls as "the TLS of the admin address" {
        /// The certificate is picked by the name that the client asks for; if none has that name, it is the first.
        required certificates: Many<RawCertificate>;
        /// A PEM file with the CA certificates that may have signed the certificates of clients. `certificates` of `read` and `act` say which
        /// of these clients may do what. A client without a certificate needs a token or a password, and probes of `/healthz` and `/readyz`
        /// need nothing. A certificate of another CA ends the handshake.
        optional client_ca: FileName, default "clients are not asked for a certificate";
        /// The oldest version that is accepted.
        optional min_version: OneOf<TlsVersion>, default word(&defaults::TLS_MIN_VERSION);
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
        /// Names, each with what the certificate of its holder must have: a DNS name, a URI, or its whole subject, such as `CN=ann,O=ops`, in
        /// the form of `openssl x509 -subject -nameopt RFC2253`. A name with `*` in the certificate does not count. The CA is `tls.client_ca`.
        optional certificates: Named<UserName, OneOrMany<HolderText>>, default "none";
    }
}
