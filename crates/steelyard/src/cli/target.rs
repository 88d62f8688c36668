//! Which running Steelyard a command talks to, and how it says who it is from.

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};

use clap::{Args, ValueHint};
use model::{AdminAddress, Certificate, ClusterTls, Pem, Secret, UNIX_PREFIX};

use super::ADMIN_DEFAULT;

#[derive(Debug, Args)]
pub(crate) struct AdminArgs {
    /// The admin address of the running Steelyard: an address and port, https:// with a name and port, or unix:PATH
    #[arg(long, value_name = "ADDRESS", env = "STEELYARD_ADMIN", default_value_t = Target::DEFAULT, value_parser = target)]
    admin: Target,
    /// A file with the token for the admin address, if the configuration has `admin_access`; the variable STEELYARD_ADMIN_TOKEN can have the
    /// token itself
    #[arg(long, value_name = "FILE", env = "STEELYARD_ADMIN_TOKEN_FILE", value_hint = ValueHint::FilePath)]
    admin_token_file: Option<PathBuf>,
    /// The user of the admin address whose password `--admin-password-file` has, instead of a token
    #[arg(long, value_name = "NAME", env = "STEELYARD_ADMIN_USER", requires = "admin_password_file", value_parser = user)]
    admin_user: Option<String>,
    /// A file with the password of `--admin-user`: one line
    #[arg(
        long,
        value_name = "FILE",
        env = "STEELYARD_ADMIN_PASSWORD_FILE",
        requires = "admin_user",
        conflicts_with = "admin_token_file",
        value_hint = ValueHint::FilePath
    )]
    admin_password_file: Option<PathBuf>,
    /// A PEM file with the CA certificates that may have signed the certificate of an https:// address [default: those that this host trusts]
    #[arg(long, value_name = "FILE", env = "STEELYARD_ADMIN_CA", value_hint = ValueHint::FilePath)]
    admin_ca: Option<PathBuf>,
    /// The name that the certificate of an https:// address must have, if it is not the name in the address
    #[arg(long, value_name = "NAME", env = "STEELYARD_ADMIN_SERVER_NAME")]
    admin_server_name: Option<String>,
    /// A PEM file with a certificate that says who this is, for an https:// address
    #[arg(long, value_name = "FILE", env = "STEELYARD_ADMIN_CERT", requires = "admin_key", value_hint = ValueHint::FilePath)]
    admin_cert: Option<PathBuf>,
    /// The key of that certificate
    #[arg(long, value_name = "FILE", env = "STEELYARD_ADMIN_KEY", requires = "admin_cert", value_hint = ValueHint::FilePath)]
    admin_key: Option<PathBuf>,
}

/// An admin address as a command names it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Target {
    address: AdminAddress,
    /// The name that its certificate must have; `None`: the connection is not encrypted.
    https: Option<String>,
}

/// The variable with the token itself.
const ADMIN_TOKEN: &str = "STEELYARD_ADMIN_TOKEN";
/// How an address with TLS begins.
const HTTPS: &str = "https://";

impl AdminArgs {
    /// The running Steelyard that is meant, and what says who this is.
    ///
    /// # Errors
    /// Says why a file cannot be used.
    pub(crate) fn client(&self) -> Result<admin::Client, String> {
        let login = match self.admin_user.as_ref().zip(self.admin_password_file.as_ref()) {
            Some((user, path)) => Some(admin::Login::Password(user.clone(), password(&read(path)?, path)?)),
            None => self.token()?.map(admin::Login::Token),
        };
        let name = |of_address: &str| self.admin_server_name.as_deref().unwrap_or(of_address).to_owned();
        let tls = self.admin.https.as_deref().map(|of_address| self.tls(&name(of_address))).transpose()?;
        if tls.is_none() && (self.admin_ca.is_some() || self.admin_cert.is_some() || self.admin_server_name.is_some()) {
            let why = "`--admin-ca`, `--admin-cert` and `--admin-server-name` need an address with TLS: write `--admin https://NAME:PORT`";
            return Err(why.to_owned());
        }
        Ok(admin::Client { address: self.admin.address.clone(), login, tls })
    }

    fn token(&self) -> Result<Option<Secret>, String> {
        let written = match &self.admin_token_file {
            Some(path) => Some(read(path)?),
            None => std::env::var(ADMIN_TOKEN).ok(),
        };
        let token = written.as_deref().map(str::trim).filter(|token| !token.is_empty());
        let token = token.map(Secret::api_key).transpose();
        let place = || self.admin_token_file.as_ref().map_or(ADMIN_TOKEN.to_owned(), |path| path.display().to_string());
        token.map_err(|why| format!("{}: this is not a token: {why}", place()))
    }

    fn tls(&self, name: &str) -> Result<admin::ClientTls, String> {
        let file = |path: &PathBuf| Pem::File(path.clone());
        let certificate = self.admin_cert.as_ref().zip(self.admin_key.as_ref());
        let certificate = certificate.map(|(cert, key)| Certificate { cert: file(cert), key: file(key), ocsp: None });
        let ca = self.admin_ca.as_ref().map(file);
        let settings = ClusterTls { server_name: None, subject_alt_names: Vec::new(), ca, certificate, verify: true };
        let config = proxy::client_config(&settings).map_err(|fault| fault.message)?;
        admin::ClientTls::new(config, name)
    }
}

fn read(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|error| format!("cannot read {}: {error}", path.display()))
}

/// Bytes of a user or a password: both have to fit into one header.
const LOGIN_BYTES_MAX: usize = 1024;

/// The password in a file, which has one line. Spaces belong to it.
///
/// # Errors
/// Says what is wrong, and shows nothing of it.
fn password(text: &str, path: &Path) -> Result<Secret, String> {
    let line = text.strip_suffix('\n').unwrap_or(text);
    let line = line.strip_suffix('\r').unwrap_or(line);
    let is_password = (1..=LOGIN_BYTES_MAX).contains(&line.len()) && !line.chars().any(char::is_control);
    let wrong = || {
        format!("{}: a password is one line of 1 to {LOGIN_BYTES_MAX} bytes without control characters", path.display())
    };
    is_password.then(|| Secret(line.to_owned())).ok_or_else(wrong)
}

/// The name of a user. RFC 7617 section 2: it has no colon.
fn user(text: &str) -> Result<String, String> {
    let is_name =
        (1..=LOGIN_BYTES_MAX).contains(&text.len()) && !text.contains(':') && !text.chars().any(char::is_control);
    let wrong = || format!("a name has 1 to {LOGIN_BYTES_MAX} bytes, no `:` and no control characters");
    is_name.then(|| text.to_owned()).ok_or_else(wrong)
}

impl Target {
    const DEFAULT: Self = Self { address: ADMIN_DEFAULT, https: None };
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.https {
            None => self.address.fmt(f),
            Some(name) => write!(f, "{HTTPS}{name} ({})", self.address),
        }
    }
}

fn target(text: &str) -> Result<Target, String> {
    let Some(rest) = text.strip_prefix(HTTPS) else {
        let rest = text.strip_prefix("http://").unwrap_or(text);
        return Ok(Target { address: address(rest.trim_end_matches('/'))?, https: None });
    };
    let rest = rest.trim_end_matches('/');
    if rest.starts_with("unix:") {
        return Err("a Unix socket has no TLS: write unix:/run/steelyard/admin.sock, without https://".to_owned());
    }
    let address = address(rest)?;
    let (name, _) = rest.rsplit_once(':').unwrap_or((rest, ""));
    let name = name.trim_start_matches('[').trim_end_matches(']');
    Ok(Target { address, https: Some(if name.is_empty() { "localhost" } else { name }.to_owned()) })
}

/// Parses a Unix socket, an address and port, or a name and port. Of a name's addresses it takes the first IPv4 one if
/// there is one, because `admin:` is mostly an IPv4 address.
fn address(text: &str) -> Result<AdminAddress, String> {
    if text.starts_with(UNIX_PREFIX) {
        return config::parse_admin(text);
    }
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Ok(address.into());
    }
    let example = "write an address and port, such as 127.0.0.1:9900";
    let (name, port) = text.rsplit_once(':').ok_or_else(|| format!("the port is missing; {example}"))?;
    if port.parse::<u16>().is_err() || name.contains('/') {
        return Err(example.to_owned());
    }
    // In the file, `:9900` means every address of this host.
    let name = if name.is_empty() { "localhost" } else { name };
    let found = (name, port.parse().unwrap_or_default())
        .to_socket_addrs()
        .map_err(|error| format!("{name}: {error}; {example}"))?;
    let mut found: Vec<SocketAddr> = found.collect();
    found.sort_by_key(SocketAddr::is_ipv6);
    found.first().copied().map(AdminAddress::from).ok_or_else(|| format!("{name} has no address; {example}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_say_whether_they_are_encrypted() {
        let check = |text: &str, address: &str, https: Option<&str>| {
            let found = target(text).unwrap_or_else(|why| panic!("{text}: {why}"));
            assert_eq!((found.address.to_string().as_str(), found.https.as_deref()), (address, https), "{text}");
        };
        check("127.0.0.1:9900", "127.0.0.1:9900", None);
        check("http://127.0.0.1:9900/", "127.0.0.1:9900", None);
        check("unix:/run/a.sock", "unix:/run/a.sock", None);
        check("https://127.0.0.1:9900", "127.0.0.1:9900", Some("127.0.0.1"));
        check("https://[::1]:9900/", "[::1]:9900", Some("::1"));
        check("https://localhost:9900", "127.0.0.1:9900", Some("localhost"));
        for wrong in ["https://localhost", "https://localhost:9900/status", "127.0.0.1", "https://unix:/a"] {
            assert!(target(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn passwords_are_one_line() {
        let check = |text: &str, expect: Option<&str>| {
            let found = password(text, Path::new("f")).map(|Secret(found)| found);
            assert_eq!(found.as_deref().ok(), expect, "{text:?}");
            assert!(found.is_ok() || !found.unwrap_err().contains("hunter2"), "{text:?}");
        };
        check("hunter2", Some("hunter2"));
        check("hunter2\n", Some("hunter2"));
        check("hunter2\r\n", Some("hunter2"));
        check(" a: b ", Some(" a: b "));
        check("", None);
        check("\n", None);
        check("hunter2\nhunter2\n", None);
        check("hunter2\t", None);
        check(&"a".repeat(1025), None);
        assert!(user("ann").is_ok() && user("a:b").is_err() && user("").is_err());
    }

    #[test]
    fn admin_addresses() {
        let check = |text: &str, expect: &str| {
            let found = address(text).map_or_else(|error| error, |address| address.to_string());
            assert_eq!(found, expect, "{text}");
        };
        check("127.0.0.1:9900", "127.0.0.1:9900");
        check("[::1]:9900", "[::1]:9900");
        check("unix:/run/steelyard/admin.sock", "unix:/run/steelyard/admin.sock");
        check("unix:admin.sock", "\"admin.sock\" is not an absolute path; write unix:/run/steelyard/admin.sock");
        check("localhost:9900", "127.0.0.1:9900");
        check(":9900", "127.0.0.1:9900");
        check("9900", "the port is missing; write an address and port, such as 127.0.0.1:9900");
        check("localhost", "the port is missing; write an address and port, such as 127.0.0.1:9900");
        check("http://localhost:9900", "write an address and port, such as 127.0.0.1:9900");
        check("localhost:x", "write an address and port, such as 127.0.0.1:9900");
    }
}
