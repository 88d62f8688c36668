//! Who may use a route: passwords, API keys and tokens.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::{Jwks, JwtAuth};

/// What a request must prove before a route serves it. A request that does not is answered 401.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Auth {
    /// A user and a password (RFC 7617).
    Basic(BasicAuth),
    /// A key that belongs to a client.
    ApiKey(ApiKeyAuth),
    /// A token that an issuer has signed.
    Jwt(JwtAuth),
}

/// How much of what a route demands of a request is enough: its address, what it proves, and the word of a service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Satisfy {
    /// All of it.
    #[default]
    All,
    /// One of an address that is allowed, what `auth` demands, and a positive answer of the service. A refused address never passes.
    Any,
}

/// Users and passwords.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BasicAuth {
    /// What browsers show.
    pub realm: String,
    /// The users.
    pub users: Users,
    /// The header in which the endpoint gets the user's name, in lower case.
    pub user_header: Option<String>,
    /// Whether the endpoint gets the password, too.
    pub forward: bool,
}

/// API keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiKeyAuth {
    /// For the `WWW-Authenticate` of a refusal.
    pub realm: String,
    /// Where a request may have its key. At least one.
    pub places: Vec<KeyPlace>,
    /// The clients.
    pub keys: Keys,
    /// The header in which the endpoint gets the client's name, in lower case.
    pub client_header: Option<String>,
}

/// Where a request has its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyPlace {
    /// The value of the header with this name, which is in lower case.
    Header(String),
    /// The decoded value of this query parameter.
    Query(String),
    /// The value of this cookie.
    Cookie(String),
}

/// Users, each with the hash of a password.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Users {
    /// In the order of the file.
    Inline(Arc<[(String, PasswordHash)]>),
    /// A file such as `htpasswd` writes.
    File(PathBuf),
}

/// Clients, each with a key. A client may have several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Keys {
    /// In the order of the file.
    Inline(Arc<[(String, Secret)]>),
    /// A file with lines such as `client:key`.
    File(PathBuf),
}

impl Auth {
    /// The file with the users or keys, or with the roots for fetching keys.
    pub fn file(&self) -> Option<&Path> {
        match self {
            Self::Basic(BasicAuth { users: Users::File(file), .. })
            | Self::ApiKey(ApiKeyAuth { keys: Keys::File(file), .. })
            | Self::Jwt(JwtAuth { jwks: Jwks::File(file), .. }) => Some(file),
            Self::Jwt(JwtAuth { jwks: Jwks::Url(url), .. }) => url.ca.as_deref(),
            Self::Basic(_) | Self::ApiKey(_) | Self::Jwt(_) => None,
        }
    }

    /// What it is called in the configuration and in `status`.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Basic(_) => "basic",
            Self::ApiKey(_) => "api_key",
            Self::Jwt(_) => "jwt",
        }
    }
}

/// A text that nothing prints.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Secret(pub String);

impl Secret {
    /// Bytes of an API key.
    pub const KEY_BYTES_MAX: usize = 1024;

    /// An API key. It must fit into a header, a query and a cookie.
    ///
    /// # Errors
    /// What is wrong, without any part of the key.
    pub fn api_key(text: &str) -> Result<Self, String> {
        let is_plain = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b',' | b';' | b'\\');
        if text.is_empty() || text.len() > Self::KEY_BYTES_MAX || !text.bytes().all(is_plain) {
            let max = Self::KEY_BYTES_MAX;
            return Err(format!("a key has 1 to {max} visible characters of ASCII, without `\"`, `,`, `;` and `\\`"));
        }
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}

/// The hash of a password.
#[derive(Clone, PartialEq, Eq, Hash)]
pub enum PasswordHash {
    /// `$2y$10$...`: the whole text.
    Bcrypt(String),
    /// `$argon2id$v=19$m=19456,t=2,p=1$...`: the whole text.
    Argon2(String),
    /// `$1$salt$hash`, the MD5-based crypt(3), or `$apr1$salt$hash`, Apache's variant of it.
    Md5 {
        /// What the hash begins with.
        magic: &'static str,
        /// 1 to 8 characters.
        salt: String,
        /// 22 characters.
        hash: String,
    },
    /// `$5$salt$hash`, `$6$rounds=10000$salt$hash`.
    ShaCrypt {
        /// The whole text.
        text: String,
        /// How often the password is read.
        rounds: u32,
    },
    /// `{SHA}`, or `{SSHA}` with a salt: the SHA-1 of the password with the salt behind it.
    Sha1 {
        /// What must come out.
        sum: [u8; 20],
        /// Empty for `{SHA}`.
        salt: Box<[u8]>,
    },
    /// `{PLAIN}` and the password itself.
    Plain(Secret),
}

impl fmt::Debug for PasswordHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(password hash)")
    }
}

impl PasswordHash {
    /// The largest cost of bcrypt. A check with this cost takes seconds, and each step doubles it.
    pub const BCRYPT_COST_MAX: u32 = 15;

    /// The largest memory of argon2, in KiB. Every check that runs needs up to this much.
    pub const ARGON2_KIB_MAX: u32 = 128 * 1024;

    /// The largest number of passes and of lanes of argon2.
    pub const ARGON2_ROUNDS_MAX: u32 = 16;

    /// The largest number of passes and of lanes of argon2.
    pub const ARGON2_LANES_MAX: u32 = 16;

    /// The smallest number of rounds of SHA-crypt, for which crypt(3) makes no hash with fewer.
    pub const SHA_CRYPT_ROUNDS_MIN: u32 = 1000;

    /// The largest number of rounds of SHA-crypt.
    pub const SHA_CRYPT_ROUNDS_MAX: u32 = 1_000_000;

    /// Bytes of a password for MD5 and SHA-crypt. crypt(3) of libxcrypt takes no longer one for right. Each round reads the whole password.
    pub const CRYPT_PASSWORD_BYTES_MAX: usize = 511;

    /// The largest number of rounds with which SHA-crypt takes long passwords: the client chooses how long they are, and each round reads
    /// them. A million rounds with 8 bytes take 0.6 s of a CPU in a release build, and with 511 bytes 4.8 s.
    pub const SHA_CRYPT_ROUNDS_OF_LONG_MAX: u32 = 100_000;

    /// Bytes of a password with more rounds than that: as many as bcrypt reads.
    pub const SHA_CRYPT_PASSWORD_BYTES_MAX: usize = 72;

    /// Bytes of the longest password that may be right.
    pub fn password_bytes_max(&self) -> usize {
        match self {
            Self::ShaCrypt { rounds, .. } if *rounds > Self::SHA_CRYPT_ROUNDS_OF_LONG_MAX => {
                Self::SHA_CRYPT_PASSWORD_BYTES_MAX
            }
            Self::ShaCrypt { .. } | Self::Md5 { .. } => Self::CRYPT_PASSWORD_BYTES_MAX,
            Self::Bcrypt(_) | Self::Argon2(_) | Self::Sha1 { .. } | Self::Plain(_) => usize::MAX,
        }
    }

    /// The memory that a check needs, in bytes; 0 if that is next to nothing.
    pub fn memory_bytes(&self) -> u64 {
        let Self::Argon2(text) = self else { return 0 };
        let settings = text.split('$').nth(3).and_then(|settings| settings.strip_prefix("m="));
        let kib = settings.and_then(|settings| settings.split(',').next()?.parse::<u64>().ok());
        kib.unwrap_or_else(|| Self::ARGON2_KIB_MAX.into()) * 1024
    }

    /// Reads the text that `htpasswd` and similar tools write.
    ///
    /// # Errors
    /// What is wrong, without any part of the text.
    pub fn parse(text: &str) -> Result<Self, String> {
        let md5 = ["$apr1$", "$1$"].into_iter().find_map(|magic| Some((magic, text.strip_prefix(magic)?)));
        if let Some((magic, rest)) = md5 {
            let (salt, hash) =
                rest.split_once('$').ok_or_else(|| format!("such a hash has the form {magic}SALT$HASH"))?;
            if salt.is_empty() || salt.len() > 8 || !is_crypt(salt) || !is_sum(hash, 16) {
                return Err(format!(
                    "a hash that begins with {magic} has a salt of 1 to 8 characters and a hash of 22"
                ));
            }
            return Ok(Self::Md5 { magic, salt: salt.to_owned(), hash: hash.to_owned() });
        }
        if text.starts_with("$5$") || text.starts_with("$6$") {
            return sha_crypt(text).map(|rounds| Self::ShaCrypt { text: text.to_owned(), rounds });
        }
        if let Some(sum) = text.strip_prefix("{SHA}") {
            let decoded = STANDARD.decode(sum).ok().and_then(|sum| <[u8; 20]>::try_from(sum).ok());
            let sum =
                decoded.ok_or("after {SHA} follow 20 bytes in base64: 28 characters, of which the last is `=`")?;
            return Ok(Self::Sha1 { sum, salt: Box::default() });
        }
        if let Some(sum) = text.strip_prefix("{SSHA}") {
            let decoded = STANDARD.decode(sum).ok().filter(|decoded| decoded.len() <= 20 + SSHA_SALT_BYTES_MAX);
            let wrong =
                || format!("after {{SSHA}} follow 20 bytes and a salt of up to {SSHA_SALT_BYTES_MAX}, in base64");
            let decoded = decoded.ok_or_else(wrong)?;
            let (sum, salt) = decoded.split_first_chunk().ok_or_else(wrong)?;
            return Ok(Self::Sha1 { sum: *sum, salt: salt.into() });
        }
        if let Some(password) = text.strip_prefix("{PLAIN}") {
            let is_one = !password.is_empty() && password.len() <= Self::CRYPT_PASSWORD_BYTES_MAX;
            if !is_one || password.chars().any(char::is_control) {
                let max = Self::CRYPT_PASSWORD_BYTES_MAX;
                return Err(format!(
                    "after {{PLAIN}} follows a password of 1 to {max} bytes without control characters"
                ));
            }
            return Ok(Self::Plain(Secret(password.to_owned())));
        }
        if ["$2y$", "$2b$", "$2a$"].iter().any(|prefix| text.starts_with(prefix)) {
            let is_number = |cost: &&str| cost.bytes().all(|byte| byte.is_ascii_digit());
            let cost = text.get(4..6).filter(is_number).and_then(|cost| cost.parse::<u32>().ok());
            let is_hash = |hash: &str| hash.len() == 53 && is_crypt(hash);
            let hash = text.get(6..).and_then(|rest| rest.strip_prefix('$')).filter(|hash| is_hash(hash));
            let (Some(cost), Some(_)) = (cost, hash) else {
                return Err("a bcrypt hash has 60 characters, such as $2y$10$ and 53 more".to_owned());
            };
            if !(4..=Self::BCRYPT_COST_MAX).contains(&cost) {
                return Err(format!("the cost of a bcrypt hash must be from 4 to {}", Self::BCRYPT_COST_MAX));
            }
            return Ok(Self::Bcrypt(text.to_owned()));
        }
        if text.starts_with("$argon2") {
            return argon2(text).map(|()| Self::Argon2(text.to_owned()));
        }
        Err("the hash must be bcrypt ($2y$), argon2 ($argon2id$), SHA-crypt ($5$ or $6$), MD5 ($apr1$ or $1$), {SSHA}, {SHA} or {PLAIN}"
            .to_owned())
    }
}

/// Bytes of the salt of `{SSHA}`. OpenLDAP and Dovecot make 4 and 8.
const SSHA_SALT_BYTES_MAX: usize = 64;

/// The digits of crypt(3).
const DIGITS: &[u8; 64] = b"./0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

fn is_crypt(text: &str) -> bool {
    text.bytes().all(|byte| DIGITS.contains(&byte))
}

/// Whether it is this many bytes in the base 64 of crypt(3), whose last digit has the highest bits: those that no byte has are 0.
fn is_sum(text: &str, bytes: usize) -> bool {
    let bits = bytes * 8;
    let used = bits - bits / 6 * 6;
    let is_last = |byte: u8| DIGITS.iter().position(|digit| *digit == byte).is_some_and(|digit| digit < 1 << used);
    text.len() == bits.div_ceil(6) && is_crypt(text) && text.bytes().last().is_some_and(is_last)
}

/// The rounds of a hash of SHA-crypt that names none.
const SHA_CRYPT_ROUNDS_DEFAULT: u32 = 5000;

/// Checks the limits of a hash such as `$6$rounds=10000$SALT$HASH`. Returns its rounds.
fn sha_crypt(text: &str) -> Result<u32, String> {
    let is_256 = text.starts_with("$5$");
    let (bytes, digits) = if is_256 { (32, 43) } else { (64, 86) };
    let mut parts = text.split('$').skip(2).peekable();
    let (min, max) = (PasswordHash::SHA_CRYPT_ROUNDS_MIN, PasswordHash::SHA_CRYPT_ROUNDS_MAX);
    let mut rounds = SHA_CRYPT_ROUNDS_DEFAULT;
    if let Some(part) = parts.next_if(|part| part.starts_with("rounds=")) {
        let written = part.trim_start_matches("rounds=");
        // crypt(3) writes no zero in front, and a number in another form would be another hash to it.
        let is_number = !written.starts_with('0') && written.bytes().all(|byte| byte.is_ascii_digit());
        let found = written.parse().ok().filter(|rounds| is_number && (min..=max).contains(rounds));
        rounds = found.ok_or_else(|| {
            format!("the rounds of a hash of SHA-crypt must be from {min} to {max}, such as rounds=10000")
        })?;
    }
    let (salt, hash, end) = (parts.next(), parts.next(), parts.next());
    let is_salt = salt.is_some_and(|salt| (1..=16).contains(&salt.len()) && is_crypt(salt));
    if !is_salt || !hash.is_some_and(|hash| is_sum(hash, bytes)) || end.is_some() {
        let start = text.get(..3).unwrap_or_default();
        return Err(format!("a hash that begins with {start} has a salt of 1 to 16 characters and a hash of {digits}"));
    }
    Ok(rounds)
}

/// Checks the limits of a hash such as `$argon2id$v=19$m=19456,t=2,p=1$c2FsdHNhbHQ$aGFzaA`.
fn argon2(text: &str) -> Result<(), String> {
    let wrong = || "an argon2 hash has the form $argon2id$v=19$m=KIB,t=PASSES,p=LANES$SALT$HASH".to_owned();
    let mut parts = text.split('$').skip(1);
    let (kind, version) = (parts.next(), parts.next());
    if !matches!(kind, Some("argon2id" | "argon2i" | "argon2d")) || !matches!(version, Some("v=19" | "v=16")) {
        return Err(wrong());
    }
    let settings = parts.next().ok_or_else(wrong)?;
    // Each of them once, and nothing else: of a setting that is there twice, whoever computes the hash may take the other one.
    let names_and_numbers: Vec<_> = settings.split(',').filter_map(|setting| setting.split_once('=')).collect();
    let [("m", kib), ("t", passes), ("p", lanes)] = names_and_numbers.as_slice() else { return Err(wrong()) };
    let is_whole_list = settings.split(',').count() == names_and_numbers.len();
    let number = |text: &str| -> Option<u32> {
        let is_number = is_whole_list && text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse().ok().filter(|_| is_number)
    };
    let is_base64 = |text: &str| {
        !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/'))
    };
    let (salt, hash, end) = (parts.next(), parts.next(), parts.next());
    let is_whole = salt.is_some_and(|salt| (11..=64).contains(&salt.len()) && is_base64(salt))
        && hash.is_some_and(|hash| (14..=86).contains(&hash.len()) && is_base64(hash))
        && end.is_none();
    let (Some(kib), Some(passes), Some(lanes)) = (number(kib), number(passes), number(lanes)) else {
        return Err(wrong());
    };
    if !is_whole || kib < 8 * lanes.min(PasswordHash::ARGON2_LANES_MAX) || passes == 0 || lanes == 0 {
        return Err(wrong());
    }
    let (kib_max, passes_max) = (PasswordHash::ARGON2_KIB_MAX, PasswordHash::ARGON2_ROUNDS_MAX);
    if kib > kib_max || passes > passes_max || lanes > PasswordHash::ARGON2_LANES_MAX {
        let lanes_max = PasswordHash::ARGON2_LANES_MAX;
        return Err(format!("an argon2 hash may have at most m={kib_max}, t={passes_max} and p={lanes_max}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expect: Result<&str, &str>) {
        let kind = PasswordHash::parse(text).map(|hash| match hash {
            PasswordHash::Bcrypt(_) => "bcrypt",
            PasswordHash::Argon2(_) => "argon2",
            PasswordHash::Md5 { magic, .. } => magic,
            PasswordHash::ShaCrypt { .. } => "sha-crypt",
            PasswordHash::Sha1 { salt, .. } if salt.is_empty() => "sha",
            PasswordHash::Sha1 { .. } => "ssha",
            PasswordHash::Plain(_) => "plain",
        });
        match (kind, expect) {
            (Ok(kind), Ok(expect)) => assert_eq!(kind, expect, "{text}"),
            (Err(message), Err(part)) => {
                assert!(message.contains(part), "{text}: {message}");
                // No part of a hash appears in a message.
                assert!(!message.contains("sEcReT"), "{message}");
            }
            (found, _) => panic!("{text}: {found:?}"),
        }
    }

    #[test]
    fn hashes_are_known_by_their_form() {
        let bcrypt = |cost: &str| format!("$2y${cost}${}", "sEcReT".repeat(9).get(..53).unwrap());
        check(&bcrypt("10"), Ok("bcrypt"));
        check(&bcrypt("16"), Err("from 4 to 15"));
        check(&bcrypt("03"), Err("from 4 to 15"));
        check(&bcrypt("+9"), Err("60 characters"));
        check("$2y$10$sEcReT", Err("60 characters"));
        check("$2x$10$sEcReT", Err("must be bcrypt"));
        check("$apr1$salt$sEcReTsEcReTsEcReTsEc", Err("22"));
        check("$apr1$salt$sEcReTsEcReTsEcReTsEcRe", Err("22"));
        check("$apr1$salt$ABCDEFGHIJKLMNOPQRSTU0", Ok("$apr1$"));
        check("$1$salt$ABCDEFGHIJKLMNOPQRSTU1", Ok("$1$"));
        // The last of 22 digits has two bits of the 16 bytes.
        check("$1$salt$ABCDEFGHIJKLMNOPQRSTU2", Err("22"));
        check("$1$longersalt$ABCDEFGHIJKLMNOPQRSTU1", Err("1 to 8"));
        check("$1$$ABCDEFGHIJKLMNOPQRSTU1", Err("1 to 8"));
        check("$apr1$ABCDEFGHIJKLMNOPQRSTUV", Err("form"));
        check("sEcReT", Err("must be bcrypt"));
        check("", Err("must be bcrypt"));
        let argon2 = |settings: &str| format!("$argon2id$v=19${settings}$c2FsdHNhbHQ$sEcReTsEcReTsEcReT");
        check(&argon2("m=19456,t=2,p=1"), Ok("argon2"));
        check(&argon2("m=4294967295,t=2,p=1"), Err("at most m=131072"));
        check(&argon2("m=19456,t=2000,p=1"), Err("at most"));
        check(&argon2("m=19456,t=2,p=99"), Err("at most"));
        check(&argon2("m=19456"), Err("form"));
        // The last of two would count.
        check(&argon2("m=8,t=1,p=1,m=4194304"), Err("form"));
        check(&argon2("m=8,m=4194304,t=1,p=1"), Err("form"));
        check(&argon2("m=+19456,t=2,p=1"), Err("form"));
        check(&argon2("m=19456,t=2,p=1,keyid=AAAA"), Err("form"));
        check(&argon2("m=19456,x,t=2,p=1"), Err("form"));
        check("$argon2id$v=19$m=19456,t=2,p=1$c2FsdHNhbHQ", Err("form"));
    }

    #[test]
    fn hashes_of_sha_crypt() {
        let sha = |start: &str, digits: usize, last: &str| {
            format!("{start}{}{last}", "sEcReT".repeat(20).get(..digits - 1).unwrap())
        };
        check(&sha("$5$salt$", 43, "D"), Ok("sha-crypt"));
        check(&sha("$5$salt$", 43, "E"), Err("43"));
        check(&sha("$6$salt$", 86, "1"), Ok("sha-crypt"));
        check(&sha("$6$salt$", 86, "2"), Err("86"));
        check(&sha("$6$salt$", 43, "D"), Err("86"));
        check(&sha("$6$saltsaltsaltsalts$", 86, "1"), Err("1 to 16"));
        check(&sha("$6$$", 86, "1"), Err("1 to 16"));
        check(&sha("$6$a+b$", 86, "1"), Err("1 to 16"));
        check(&(sha("$6$salt$", 86, "1") + "$"), Err("86"));
        for (rounds, expect) in [
            ("1000", Ok("sha-crypt")),
            ("1000000", Ok("sha-crypt")),
            ("999", Err("from 1000 to 1000000")),
            ("1000001", Err("from 1000 to 1000000")),
            ("99999999999", Err("from 1000 to 1000000")),
            ("05000", Err("from 1000 to 1000000")),
            ("+5000", Err("from 1000 to 1000000")),
            ("", Err("from 1000 to 1000000")),
        ] {
            check(&sha(&format!("$6$rounds={rounds}$salt$"), 86, "1"), expect);
        }
    }

    #[test]
    fn hashes_of_ldap() {
        check("{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g=", Ok("sha"));
        check("{SHA}sEcReT", Err("28"));
        // Bits that no byte has, a byte less, a byte more, and no padding.
        check("{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9h=", Err("28"));
        check("{SHA}W6ph5Mm5Pz8GgiULbPgzG37mjw==", Err("28"));
        check("{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9gA", Err("28"));
        check("{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g", Err("28"));
        check("{SSHA}8JjO5abJ2dOJVfScRiNVNfoxM3xzYWx0c2FsdA==", Ok("ssha"));
        check("{SSHA}8JjO5abJ2dOJVfScRiNVNfoxM3xzYWx0c2FsdB==", Err("in base64"));
        check("{SSHA}W6ph5Mm5Pz8GgiULbPgzG37mjw==", Err("20 bytes and a salt"));
        check(&format!("{{SSHA}}{}", "AAAA".repeat(29)), Err("up to 64"));
        check("{PLAIN}sEcReT", Ok("plain"));
        check("{PLAIN}", Err("1 to 511"));
        check("{PLAIN}sEcReT\t", Err("control"));
        check(&format!("{{PLAIN}}{}", "sEcReT".repeat(100)), Err("1 to 511"));
    }

    #[test]
    fn only_argon2_needs_memory() {
        let bytes = |text: &str| PasswordHash::parse(text).unwrap().memory_bytes();
        assert_eq!(bytes("$argon2id$v=19$m=19456,t=2,p=1$c2FsdHNhbHQ$aGFzaGhhc2hoYXNo"), 19456 * 1024);
        assert_eq!(bytes("{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g="), 0);
    }

    #[test]
    fn long_passwords_are_for_few_rounds() {
        let check = |rounds: &str, expect| {
            let hash = format!("$6${rounds}salt${}", "/".repeat(86));
            assert_eq!(PasswordHash::parse(&hash).unwrap().password_bytes_max(), expect, "{rounds}");
        };
        check("", 511);
        check("rounds=100000$", 511);
        check("rounds=100001$", 72);
        check("rounds=1000000$", 72);
    }

    #[test]
    fn nothing_prints_a_secret() {
        let key = Secret("hunter2".to_owned());
        let hash = PasswordHash::parse("{PLAIN}hunter2").unwrap();
        assert_eq!(format!("{key:?} {hash:?}"), "(secret) (password hash)");
    }
}
