//! The keys of TLS, on both sides.

use model::{ClientCertMode, TlsVersion};

use super::{RawValue, word};
use crate::defaults;
use crate::define::keys;
use crate::read::{Choice, Flag, Many, OneOf, OneOrMany};
use crate::text::{CertificateName, FileName, HostHeader, HostText, RedirectUrl, SpiffeText};

keys! {
    /// How connections are encrypted. Files are read again when they change; if a new certificate and key do not match, the old pair stays
    /// in use. A path that does not begin with `/` is relative to the directory of this file.
    pub struct RawListenerTls as "the TLS of a listener" {
        /// Steelyard picks a certificate by the name that the client asks for and the names in the certificates; if none matches, it uses
        /// the first.
        required certificates: Many<RawCertificate>;
        /// Requires a certificate from clients.
        optional client_ca: RawClientCa, default "not required";
        /// The oldest version that is accepted.
        optional min_version: OneOf<TlsVersion>, default word(&defaults::TLS_MIN_VERSION);
    }
}

keys! {
    /// A certificate and its key.
    pub struct RawCertificate as "a certificate" {
        /// A PEM file: the certificate, followed by the certificates that lead to the root.
        required cert: FileName;
        /// A PEM file: the private key.
        required key: FileName;
        /// A DER file: an OCSP response, which is stapled to the certificate.
        optional ocsp: FileName, default "none stapled";
    }
}

keys! {
    /// The CA of the certificates that clients must present.
    pub struct RawClientCa as "a client CA" {
        /// Require the certificate only for these names. A request for one of them on a connection that was made for another name is
        /// answered 421.
        optional hosts: OneOrMany<HostText>, default "every host";
        /// A PEM file with the CA certificates that may have signed them.
        required ca: FileName;
        /// A PEM file with certificate revocation lists (CRLs, RFC 5280). Certificates in them are refused, and so are those of a CA that has
        /// no list here, or one that has expired: every CA between the certificate and the root needs a list.
        optional crl: FileName, default "no certificate is known to be revoked";
        /// SPIFFE ids, of which the certificate must have one, and no other URI: one id, or `spiffe://example.org/ns/shop/*` for those below a
        /// path.
        optional spiffe_ids: OneOrMany<SpiffeText>, default "any certificate of the CA";
        /// false: ask for a certificate, and also admit clients that show none, or one that `ca` has not signed. Only for tests and
        /// migrations.
        optional verify: Flag, default "true";
        /// false: also admit clients that show no certificate, or one that `ca` has not signed. `client_cert` of routes says who may use them.
        optional required: Flag, default "true";
    }
}

keys! {
    /// What a route demands of the certificate that a client has shown. [TLS](tls.md#certificates-that-routes-demand) has the details.
    pub struct RawClientCert as "the certificate of a client" {
        /// Which clients pass. Others are answered 400.
        optional mode: OneOf<ClientCertMode>, default word(&ClientCertMode::Required);
        /// The subject of the certificate, in the form of `openssl x509 -subject -nameopt RFC2253`. Other clients are answered 403.
        optional subject: RawValue, default "any";
        /// Redirect clients by 302 to this URL instead of answering 400.
        optional redirect: RedirectUrl, default "400";
    }
}

impl Choice for ClientCertMode {
    const CHOICES: &'static [(&'static str, Self, &'static str)] = &[
        ("required", Self::Required, "a certificate that `client_ca` has signed"),
        ("optional", Self::Optional, "such a certificate, or none"),
        ("unsigned", Self::Unsigned, "any certificate, or none; whoever gets it has to verify it"),
    ];
}

keys! {
    /// How connections to endpoints are encrypted.
    pub struct RawClusterTls as "the TLS of a cluster" {
        /// The name that Steelyard asks for, and that an endpoint's certificate must have.
        optional server_name: HostHeader, default "the name in the endpoint's address, or the address";
        /// Names of which an endpoint's certificate must have one, instead of the name that Steelyard asks for: DNS names, where
        /// `*.example.com` stands for one label in front, and URIs. At most 64.
        optional subject_alt_names: OneOrMany<CertificateName>, default "the name that Steelyard asks for";
        /// A PEM file with the CA certificates that may have signed it.
        optional ca: FileName, default "the CA certificates that this host trusts";
        /// The certificate to present to endpoints that ask for one.
        optional certificate: RawCertificate, default "none";
        /// false: accept any certificate. Only for tests.
        optional verify: Flag, default "true";
    }
}
