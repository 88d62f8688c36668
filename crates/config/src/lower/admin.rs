//! The admin address, and who may use it.

use std::collections::HashMap;
use std::path::Path;

use model::{AdminAccess, AdminAddress, AdminRole, AdminTls, HolderMatcher, Keys, SubjectAltName, Users};

use super::files::{file, pem};
use super::route::listed;
use super::tls;
use crate::defaults;
use crate::diagnostic::{Report, Wrong, quoted};
use crate::raw::{RawAdminAccess, RawAdminRole, RawAdminTls};
use crate::read::Located;

/// Who may use the admin address. An address that other hosts can reach needs somebody in it.
pub fn access(
    raw: &Option<Located<RawAdminAccess>>,
    admin: Option<&Located<AdminAddress>>,
    base: &Path,
    report: &mut Report,
) -> AdminAccess {
    let access = raw.as_ref().map(|raw| lowered(&raw.value, base, report)).unwrap_or_default();
    match (raw, admin) {
        (Some(raw), None) => {
            let wrong = Wrong::new("`admin_access` has no effect without `admin`");
            report.add(raw.location, wrong.hint("add `admin: 127.0.0.1:9900`, or remove it"));
        }
        (_, Some(Located { location, value: AdminAddress::Socket(address) }))
            if !address.ip().to_canonical().is_loopback() && !access.demands() =>
        {
            let written = quoted(&address.to_string());
            let wrong = Wrong::new(format!(
                "`admin`: {written} can be reached from other hosts, and nothing says who may use it"
            ));
            report.add(
                *location,
                wrong.hint(format!(
                    "add `admin_access: {{act: {{token_file: admin.tokens}}}}`, or write 127.0.0.1:{}; use the key \
                     `metrics` to serve metrics and probes to other hosts",
                    address.port()
                )),
            );
        }
        _ => {}
    }
    if let (Some(raw), Some(Located { value: AdminAddress::Path(_), .. })) = (raw, admin)
        && let Some(tls) = &raw.value.tls
    {
        let wrong = Wrong::new("`tls` has no effect at a Unix socket, which never leaves this host");
        report.add(tls.location, wrong.hint("remove it, or give `admin` an address and port"));
    }
    access
}

fn lowered(raw: &RawAdminAccess, base: &Path, report: &mut Report) -> AdminAccess {
    let mut holders = Holders::default();
    let mut of = |name: &str, role: &Option<Located<RawAdminRole>>| {
        let Some(Located { location, value }) = role else { return AdminRole::default() };
        let role = self::role(value, base, &mut holders, report);
        // A key that is there and names nobody is a mistake: nobody would be admitted, or everybody.
        if role.is_empty() {
            let hint = "add `tokens`, `token_file`, `users`, `user_file` or `certificates`, or remove it";
            report.add(*location, Wrong::new(format!("`{name}` names nobody")).hint(hint));
        }
        role
    };
    let (read, act) = (of("read", &raw.read), of("act", &raw.act));
    let tls = raw.tls.as_ref().map(|tls| encrypted(&tls.value, base));
    check_certificates(raw, [&read, &act], tls.as_ref(), report);
    let host = |host: &crate::text::HostHeader| {
        let bare = host.0.rsplit_once(':').map_or(host.0.as_str(), |(name, _)| name);
        bare.to_ascii_lowercase()
    };
    AdminAccess { hosts: listed(&raw.hosts, host), read, act, tls }
}

fn encrypted(raw: &RawAdminTls, base: &Path) -> AdminTls {
    let certificates = raw.certificates.iter().flat_map(|written| &written.value.0);
    AdminTls {
        certificates: certificates.filter_map(|raw| tls::certificate(&raw.value, base)).collect(),
        client_ca: pem(&raw.client_ca, base),
        min_version: raw.min_version.as_ref().map_or(defaults::TLS_MIN_VERSION, |version| version.value.0),
    }
}

/// Certificates of clients need a CA, and the CA needs somebody with a certificate.
fn check_certificates(raw: &RawAdminAccess, roles: [&AdminRole; 2], tls: Option<&AdminTls>, report: &mut Report) {
    let ca = raw.tls.as_ref().and_then(|tls| tls.value.client_ca.as_ref());
    let has_ca = tls.is_some_and(|tls| tls.client_ca.is_some());
    let written = [&raw.read, &raw.act].into_iter().flatten().filter_map(|role| role.value.certificates.as_ref());
    for certificates in written.filter(|_| !has_ca) {
        let wrong = Wrong::new("`certificates` has no effect without `tls.client_ca`: clients are not asked for any");
        report.add(
            certificates.location,
            wrong.hint("add `tls: {certificates: [...], client_ca: FILE}` to `admin_access`"),
        );
    }
    if let Some(ca) = ca.filter(|_| roles.iter().all(|role| role.certificates.is_empty())) {
        let wrong = Wrong::new("`client_ca` has no effect: no role has `certificates`");
        report.add(ca.location, wrong.hint("add `certificates: {ann: 'CN=ann'}` to `read` or `act`, or remove it"));
    }
}

/// What has been named so far, each with its holder: who a request is from must be clear, and so must be what they may do.
#[derive(Default)]
struct Holders {
    tokens: HashMap<String, String>,
    users: HashMap<String, String>,
    certificates: HashMap<String, String>,
}

fn role(raw: &RawAdminRole, base: &Path, holders: &mut Holders, report: &mut Report) -> AdminRole {
    let (mut tokens, mut users) = (Vec::new(), Vec::new());
    if let Some(written) = &raw.tokens {
        let entries = written.value.0.iter().filter_map(|entry| Some((&entry.name.0, entry.value.as_ref()?)));
        let all = entries.flat_map(|(name, tokens)| tokens.0.iter().map(move |token| (name, token)));
        let mut found = Vec::new();
        for (name, token) in all {
            let min = AdminAccess::TOKEN_LENGTH_MIN;
            if token.value.0.0.len() < min {
                let wrong = Wrong::new(format!("the token of `{name}` has fewer than {min} characters"));
                report.add(token.location, wrong.hint("`openssl rand -hex 16` makes one"));
            }
            if let Some(first) = holders.tokens.insert(token.value.0.0.clone(), name.clone()) {
                let wrong = Wrong::new(format!("`{first}` and `{name}` have the same token"));
                report.add(token.location, wrong.hint("a token must belong to one holder, and appear once"));
            }
            found.push((name.clone(), token.value.0.clone()));
        }
        if !found.is_empty() {
            tokens.push(Keys::Inline(found.into()));
        }
    }
    tokens.extend(file(&raw.token_file, base).map(Keys::File));
    if let Some(written) = &raw.users {
        let mut found = Vec::new();
        for user in &written.value.0 {
            let name = &user.name.0;
            if holders.users.insert(name.clone(), name.clone()).is_some() {
                let wrong = Wrong::new(format!("the user `{name}` has both roles"));
                report.add(written.location, wrong.hint("list it under `act` alone: who may act may also read"));
            }
            found.extend(user.value.as_ref().map(|hash| (name.clone(), hash.0.clone())));
        }
        if !found.is_empty() {
            users.push(Users::Inline(found.as_slice().into()));
        }
    }
    users.extend(file(&raw.user_file, base).map(Users::File));
    AdminRole { tokens, users, certificates: certificates(raw, holders, report) }
}

fn certificates(raw: &RawAdminRole, holders: &mut Holders, report: &mut Report) -> Vec<(String, HolderMatcher)> {
    let entries = raw.certificates.iter().flat_map(|written| &written.value.0);
    let named = entries.filter_map(|entry| Some((&entry.name.0, entry.value.as_ref()?)));
    let mut found = Vec::new();
    for (name, holder) in named.flat_map(|(name, holders)| holders.0.iter().map(move |holder| (name, holder))) {
        let matcher = &holder.value.0;
        let key = match matcher {
            HolderMatcher::Name(SubjectAltName::Dns(name)) => name.to_ascii_lowercase(),
            HolderMatcher::Name(SubjectAltName::Uri(text)) | HolderMatcher::Subject(text) => text.clone(),
            HolderMatcher::Name(SubjectAltName::Spiffe(id)) => format!("{id:?}"),
        };
        if let Some(first) = holders.certificates.insert(key, name.clone()) {
            let wrong = Wrong::new(format!("`{first}` and `{name}` have the same certificate"));
            let hint = "a certificate must belong to one holder, and appear once: who may act may also read";
            report.add(holder.location, wrong.hint(hint));
        }
        found.push((name.clone(), matcher.clone()));
    }
    found
}
