//! Checks the licence of every crate in the lock file.

use super::Problem;
use crate::cargo::External;

/// Licences that require no more of a user of an Apache-2.0 binary than to pass on their notices. Each one that is not
/// obvious has its reason.
const ALLOWED: &[&str] = &[
    "Apache-2.0",
    "MIT",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "ISC",
    "Zlib",
    // Boost: requires a notice only in source code.
    "BSL-1.0",
    // Public root certificates as data, used by the Kubernetes client. No Linux binary contains them, because it uses
    // those of the host.
    "CDLA-Permissive-2.0",
    // Both waive all rights as far as the law allows.
    "CC0-1.0",
    "Unlicense",
    // For the tables in `regex` and `unicode-ident`.
    "Unicode-3.0",
];

/// Reports every crate whose licence cannot be met with the allowed ones alone.
pub fn check(externals: &[External]) -> Vec<Problem> {
    let refused = externals.iter().filter(|external| !is_allowed(&external.licence));
    refused
        .map(|external| Problem {
            file: "Cargo.lock".into(),
            line: 1,
            message: if external.licence.is_empty() {
                format!("{} names no licence: ask its author, or use another crate", external.name)
            } else {
                format!(
                    "{} is under `{}`: use another crate, or add the licence and the reason in xtask/src/tidy/licences.rs",
                    external.name, external.licence
                )
            },
        })
        .collect()
}

/// Whether an SPDX expression can be met. `AND` binds tighter than `OR`; old manifests write `/` for `OR`.
fn is_allowed(expression: &str) -> bool {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let tokens: Vec<&str> = spaced.split_whitespace().collect();
    let mut rest = tokens.as_slice();
    any_of(&mut rest) == Some(true) && rest.is_empty()
}

/// Returns `None` if this is not an expression.
fn any_of(rest: &mut &[&str]) -> Option<bool> {
    let mut met = all_of(rest)?;
    while let ["OR", after @ ..] = *rest {
        *rest = after;
        met |= all_of(rest)?;
    }
    Some(met)
}

fn all_of(rest: &mut &[&str]) -> Option<bool> {
    let mut met = one(rest)?;
    while let ["AND", after @ ..] = *rest {
        *rest = after;
        met &= one(rest)?;
    }
    Some(met)
}

fn one(rest: &mut &[&str]) -> Option<bool> {
    let (first, after) = rest.split_first()?;
    *rest = after;
    if *first != "(" {
        // An exception only ever adds permissions to the licence before it.
        if let ["WITH", _exception, after @ ..] = *rest {
            *rest = after;
        }
        return Some(ALLOWED.contains(first));
    }
    let met = any_of(rest)?;
    let (close, after) = rest.split_first()?;
    *rest = after;
    (*close == ")").then_some(met)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions() {
        let check = |expression: &str, expect: bool| assert_eq!(is_allowed(expression), expect, "{expression}");
        check("MIT", true);
        check("MIT OR Apache-2.0", true);
        check("MIT/Apache-2.0", true);
        check("Unlicense/GPL-3.0", true);
        check("GPL-3.0", false);
        check("MIT AND GPL-3.0", false);
        check("MIT OR GPL-3.0", true);
        check("(MIT OR Apache-2.0) AND Unicode-3.0", true);
        check("(MIT OR GPL-3.0) AND AGPL-3.0", false);
        check("GPL-3.0 OR MIT AND AGPL-3.0", false);
        check("Apache-2.0 WITH LLVM-exception OR MIT", true);
        check("GPL-2.0 WITH Classpath-exception-2.0", false);
        check("", false);
        check("MIT OR", false);
        check("(MIT", false);
        check("MIT GPL-3.0", false);
    }

    #[test]
    fn says_which_crate() {
        let external = |name: &str, licence: &str| External { name: name.into(), licence: licence.into() };
        let problems =
            check(&[external("good 1.0.0", "MIT"), external("bad 2.0.0", "AGPL-3.0"), external("mute 3.0.0", "")]);
        let messages: Vec<&str> = problems.iter().map(|problem| problem.message.as_str()).collect();
        assert_eq!(messages.len(), 2);
        assert!(messages[0].starts_with("bad 2.0.0 is under `AGPL-3.0`"));
        assert!(messages[1].starts_with("mute 3.0.0 names no licence"));
    }
}
