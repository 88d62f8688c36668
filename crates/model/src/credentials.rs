//! The lines of a list of users or keys: `name:hash` as `htpasswd` writes them, `client:key`. No message contains a part of a secret.

use std::collections::HashMap;

use crate::{PasswordHash, Secret};

/// Bytes of the name of a user or a client.
const NAME_BYTES_MAX: usize = 256;

/// Errors of one list that are reported.
const FAULTS_MAX: usize = 10;

/// What follows the `:` of a line.
pub trait Credential: Sized {
    /// What two lines must not both have.
    const UNIQUE: &'static str;

    /// # Errors
    /// What is wrong with the text.
    fn read(text: &str) -> Result<Self, String>;

    /// Its text, or the name, whichever must be unique.
    fn unique<'l>(&'l self, name: &'l str) -> &'l str;
}

impl Credential for PasswordHash {
    const UNIQUE: &'static str = "name";

    fn read(text: &str) -> Result<Self, String> {
        // nginx and Apache take what follows another `:` for a comment. No hash has one.
        let hash = text.split_once(':').map_or(text, |(hash, _)| hash);
        // Space at the end of a password belongs to it, as with nginx 1.22; no hash has any.
        Self::parse(if hash.starts_with("{PLAIN}") { hash } else { hash.trim_end() })
    }

    fn unique<'l>(&'l self, name: &'l str) -> &'l str {
        name
    }
}

impl Credential for Secret {
    const UNIQUE: &'static str = "key";

    fn read(text: &str) -> Result<Self, String> {
        Self::api_key(text.trim_end())
    }

    fn unique<'l>(&'l self, _: &'l str) -> &'l str {
        &self.0
    }
}

/// The number of a line that is wrong, and why.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WrongLine(pub usize, pub String);

/// The entries of a list.
///
/// # Errors
/// The lines that are wrong, at most ten; never empty.
pub fn parse_credentials<T: Credential>(text: &str) -> Result<Vec<(String, T)>, Vec<WrongLine>> {
    let (mut entries, mut wrong) = (Vec::new(), Vec::new());
    // RFC 3629 section 6: a byte order mark is a signature, not a part of the first name.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    for (index, line) in text.lines().enumerate() {
        if line.trim_end().is_empty() || line.starts_with('#') {
            continue;
        }
        let entry = match line.split_once(':') {
            None => Err("the line has no `:` between a name and its secret".to_owned()),
            Some((name, _)) if !is_name(name) => {
                Err(format!("the name before `:` must have 1 to {NAME_BYTES_MAX} bytes, and no space at either end"))
            }
            Some((name, secret)) => T::read(secret).map(|secret| (name.to_owned(), secret)),
        };
        match entry {
            Ok(entry) => entries.push((index + 1, entry)),
            Err(message) => wrong.push(WrongLine(index + 1, message)),
        }
    }
    let mut first: HashMap<&str, usize> = HashMap::with_capacity(entries.len());
    for (line, (name, secret)) in &entries {
        if let Some(first) = first.insert(secret.unique(name), *line) {
            wrong.push(WrongLine(*line, format!("the same {} as in line {first}", T::UNIQUE)));
        }
    }
    if entries.is_empty() && wrong.is_empty() {
        wrong.push(WrongLine(1, "the list has no entry, so nobody could pass".to_owned()));
    }
    wrong.sort_unstable();
    wrong.truncate(FAULTS_MAX);
    if wrong.is_empty() { Ok(entries.into_iter().map(|(_, entry)| entry).collect()) } else { Err(wrong) }
}

fn is_name(name: &str) -> bool {
    let has_control = name.chars().any(char::is_control);
    !name.is_empty() && name.len() <= NAME_BYTES_MAX && name.trim() == name && !has_control
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check<T: Credential>(text: &str, expect: Result<&[&str], &[(usize, &str)]>) {
        match (parse_credentials::<T>(text), expect) {
            (Ok(entries), Ok(expect)) => {
                assert_eq!(entries.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), expect, "{text}")
            }
            (Err(wrong), Err(expect)) => {
                let found: Vec<_> = wrong.iter().map(|WrongLine(line, _)| *line).collect();
                assert_eq!(found, expect.iter().map(|(line, _)| *line).collect::<Vec<_>>(), "{wrong:?}");
                for (WrongLine(_, message), (_, part)) in wrong.iter().zip(expect) {
                    assert!(message.contains(part), "{message}");
                    assert!(!message.contains("hunter2"), "{message}");
                }
            }
            (Ok(_), Err(_)) => panic!("accepted: {text}"),
            (Err(wrong), Ok(_)) => panic!("{text}: {wrong:?}"),
        }
    }

    #[test]
    fn space_at_an_end_belongs_to_a_password_alone() {
        let sha = "{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g=";
        let text = format!("ann:{{PLAIN}}pw \u{a0}\njoe:{{PLAIN}}pw :note\r\nbob:{sha} \t\n");
        let users = parse_credentials::<PasswordHash>(&text).unwrap();
        let plain = |number: usize| match &users[number].1 {
            PasswordHash::Plain(Secret(password)) => password.as_str(),
            _ => "",
        };
        assert_eq!((plain(0), plain(1), users.len()), ("pw \u{a0}", "pw ", 3));
        let keys = parse_credentials::<Secret>("a:0123456789abcdef0123 \n").unwrap();
        assert_eq!(keys[0].1.0, "0123456789abcdef0123");
    }

    #[test]
    fn files_of_users() {
        let sha = "{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g=";
        check::<PasswordHash>(&format!("# staff\r\n\r\njoe:{sha}\r\nann b:{sha}"), Ok(&["joe", "ann b"]));
        check::<PasswordHash>(
            &format!("joe:{sha}\nhunter2\nann:hunter2\n:{sha}\njoe:{sha}\n ann:{sha}"),
            Err(&[
                (2, "no `:`"),
                (3, "must be bcrypt"),
                (4, "1 to 256"),
                (5, "same name as in line 1"),
                (6, "1 to 256"),
            ]),
        );
        check::<PasswordHash>(&format!("\u{feff}joe:{sha}\r\n"), Ok(&["joe"]));
        check::<PasswordHash>(&format!("joe:{sha}:Joe of staff\nann:{{PLAIN}}a:b"), Ok(&["joe", "ann"]));
        check::<PasswordHash>("joe:{PLAIN}:hunter2", Err(&[(1, "1 to 511")]));
        check::<PasswordHash>("# nobody\n", Err(&[(1, "no entry")]));
        check::<PasswordHash>(
            &"x\n".repeat(100),
            Err(&[(1, ""), (2, ""), (3, ""), (4, ""), (5, ""), (6, ""), (7, ""), (8, ""), (9, ""), (10, "")]),
        );
    }

    #[test]
    fn files_of_keys() {
        check::<Secret>("shop:a:b\nshop:c\nbank:d", Ok(&["shop", "shop", "bank"]));
        check::<Secret>("shop:hunter2\nbank:hunter2\nshop:\n", Err(&[(2, "same key as in line 1"), (3, "1 to 1024")]));
        check::<Secret>("shop:hunter2 hunter2", Err(&[(1, "visible characters")]));
    }
}
