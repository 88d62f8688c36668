//! The keys of authentication by tokens.

use model::JwtAlgorithm;

use crate::defaults;
use crate::define::keys;
use crate::read::{Choice, Flag, Named, OneOf, OneOrMany};
use crate::text::{
    ChangedHeader, ClaimName, CookieName, FileName, HeaderName, JwksText, JwksUrlText, QueryName, Realm, Text, Wait,
    duration_text,
};

keys! {
    /// JSON Web Tokens (RFC 7519) whose issuers have published their keys. A token has its issuer, its audience and its end, and a
    /// signature by a key of the set. [JSON Web Tokens](json-web-tokens.md) has the details.
    pub struct RawJwt as "the JWT authentication" {
        /// The values of `iss` that are accepted.
        required issuer: OneOrMany<Text>;
        /// The values of `aud` of which a token must have one. `*`: any, and none.
        required audience: OneOrMany<Text>;
        /// The keys of the issuers.
        required jwks: RawJwks;
        /// The algorithms that are accepted. A key is used for the algorithm that it names. An RSA key that names none is used for those
        /// of RSA in this list; without the list, for RS256.
        optional algorithms: OneOrMany<OneOf<JwtAlgorithm>>, default "those of the keys";
        /// How much the clocks of the issuer and of this host may differ. At most 1h.
        optional leeway: Wait, default duration_text(defaults::JWT_LEEWAY);
        /// Refuse tokens without an end (`exp`).
        optional require_exp: Flag, default "true";
        /// Let requests without a token pass. A token that is there must be right all the same.
        optional optional: Flag, default "false";
        /// The headers that may have the token, alone or after `Bearer`. If neither `header` nor `query` nor `cookie` is written, it is in
        /// `Authorization`, after `Bearer`.
        optional header: OneOrMany<HeaderName>, default "none";
        /// The query parameters that may have it.
        optional query: OneOrMany<QueryName>, default "none";
        /// The cookies that may have it.
        optional cookie: OneOrMany<CookieName>, default "none";
        /// The endpoint gets the token, too.
        optional forward: Flag, default "false";
        /// Headers in which the endpoint gets claims of the token, such as `x-user: sub`. What a client sends in them is removed. At most 32.
        optional claim_headers: Named<ChangedHeader, ClaimName>, default "none";
        /// Named in the `WWW-Authenticate` of a refusal.
        optional realm: Realm, default crate::defaults::REALM;
    }
}

keys! {
    /// A set of public keys (RFC 7517). It has at most 256KiB and 100 keys.
    pub struct RawJwks as "a key set", one of [url, file, inline] {
        /// `https://`, or `http://` in a network that you trust. Fetched when Steelyard starts and again as `Cache-Control` says; known
        /// keys stay in use while that fails.
        optional url: JwksUrlText;
        /// A file with the set.
        optional file: FileName;
        /// The set itself, as JSON.
        optional inline: JwksText;
        /// The roots that are trusted for `url`, in PEM.
        optional ca: FileName, default "those of this host";
    }
}

impl Choice for JwtAlgorithm {
    const CHOICES: &'static [(&'static str, Self, &'static str)] = Self::ALL;
}
