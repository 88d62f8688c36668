//! The admin address, and who may use it.

use std::collections::HashMap;
use std::path::Path;

use model::{AdminAccess, AdminAddress, AdminRole, Keys, Users};

use super::files::file;
use super::route::listed;
use crate::diagnostic::{Report, Wrong, quoted};
use crate::raw::{RawAdminAccess, RawAdminRole};
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
    access
}

fn lowered(raw: &RawAdminAccess, base: &Path, report: &mut Report) -> AdminAccess {
    let mut holders = HashMap::new();
    let mut of = |role: &Option<Located<RawAdminRole>>| {
        role.as_ref().map(|role| self::role(&role.value, base, &mut holders, report)).unwrap_or_default()
    };
    let (read, act) = (of(&raw.read), of(&raw.act));
    let host = |host: &crate::text::HostHeader| {
        let bare = host.0.rsplit_once(':').map_or(host.0.as_str(), |(name, _)| name);
        bare.to_ascii_lowercase()
    };
    AdminAccess { hosts: listed(&raw.hosts, host), read, act }
}

/// `holders` has the tokens so far, each with its holder.
fn role(raw: &RawAdminRole, base: &Path, holders: &mut HashMap<String, String>, report: &mut Report) -> AdminRole {
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
            if let Some(first) = holders.insert(token.value.0.0.clone(), name.clone()) {
                let wrong = Wrong::new(format!("`{first}` and `{name}` have the same token"));
                report.add(token.location, wrong.hint("a token must belong to one holder, and appear once"));
            }
            found.push((name.clone(), token.value.0.clone()));
        }
        tokens.push(Keys::Inline(found.into()));
    }
    tokens.extend(file(&raw.token_file, base).map(Keys::File));
    if let Some(written) = &raw.users {
        let entry = |user: &crate::read::NamedEntry<crate::text::UserName, crate::text::HashText>| {
            Some((user.name.0.clone(), user.value.as_ref()?.0.clone()))
        };
        users.push(Users::Inline(written.value.0.iter().filter_map(entry).collect()));
    }
    users.extend(file(&raw.user_file, base).map(Users::File));
    AdminRole { tokens, users }
}
