//! Why the kernel plane cannot do something, and what to do about it.

use std::fmt;

/// The reason of a refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// This build has no programs.
    NotBuilt,
    /// The process may not load or attach programs. Holds the names of the missing capabilities (capabilities(7)).
    NotPermitted(Vec<&'static str>),
    /// The kernel lacks something that the programs call. Holds its release. The message asks for the oldest kernel on which the tests run.
    KernelTooOld(String),
    /// There is no BPF file system at the path for the maps.
    NoBpffs {
        /// The path.
        path: String,
        /// The error of the kernel when mounting it.
        why: String,
    },
    /// The control group is not one.
    NotCgroup {
        /// The path.
        path: String,
        /// What is there instead.
        why: String,
        /// Where version 2 of control groups is mounted.
        mounts: Vec<String>,
    },
    /// The verifier refused a program. Holds the end of its log.
    Rejected(String),
    /// The interface does not exist.
    NoInterface {
        /// The vip that names it.
        vip: String,
        /// The interface.
        name: String,
        /// The name that the operator perhaps meant.
        nearest: Option<String>,
    },
    /// The packets of an interface do not begin with an Ethernet header.
    NotEthernet {
        /// The vip that names it.
        vip: String,
        /// The interface.
        name: String,
    },
    /// There are more than the tables hold.
    TooMany {
        /// The kind of thing.
        what: &'static str,
        /// The number of them.
        have: usize,
        /// The limit.
        max: u32,
    },
    /// There is no room for what comes as long as what it replaces is still there.
    TooManyAtOnce {
        /// The kind of thing.
        what: &'static str,
        /// The number that is wanted.
        have: usize,
        /// The number that would go.
        going: usize,
        /// The limit.
        max: u32,
    },
    /// `full_nat` without `sources`, and this host uses more source addresses for its endpoints than one vip can have.
    TooManySources {
        /// The vip.
        vip: String,
        /// The number of them.
        have: usize,
        /// The limit.
        max: u32,
    },
    /// Several vips are refused, each for its own reason.
    Several(Vec<Refusal>),
    /// A call failed that should not fail.
    Kernel {
        /// What was attempted.
        doing: String,
        /// The error of the kernel.
        why: String,
    },
}

/// The cause, for the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// This host, or the permissions of this process.
    HostCannot,
    /// The configuration.
    BadConfig,
}

impl Refusal {
    /// The cause of the refusal.
    pub fn exit(&self) -> Exit {
        match self {
            Self::NoInterface { .. }
            | Self::NotEthernet { .. }
            | Self::TooMany { .. }
            | Self::TooManyAtOnce { .. }
            | Self::TooManySources { .. } => Exit::BadConfig,
            Self::Several(refusals) => refusals.first().map_or(Exit::HostCannot, Self::exit),
            Self::NotBuilt
            | Self::NotPermitted(_)
            | Self::KernelTooOld(_)
            | Self::NoBpffs { .. }
            | Self::NotCgroup { .. }
            | Self::Rejected(_)
            | Self::Kernel { .. } => Exit::HostCannot,
        }
    }

    /// The refused vips and the reasons, if others could be served. Empty if all are refused.
    pub fn vips(&self) -> Vec<(String, String)> {
        match self {
            Self::TooManySources { vip, .. } => vec![(vip.clone(), self.to_string())],
            Self::Several(refusals) => refusals.iter().flat_map(Self::vips).collect(),
            _ => Vec::new(),
        }
    }

    #[cfg(kernel_plane)]
    pub(crate) fn kernel(doing: impl Into<String>, why: impl fmt::Display) -> Self {
        Self::Kernel { doing: doing.into(), why: why.to_string() }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotBuilt => f.write_str(
                "this build has no kernel plane: build with the feature `kernel-plane`, where clang 14 or newer is installed",
            ),
            Self::NotPermitted(missing) => write!(
                f,
                "virtual IPs need {}: run as root; in a container, also add these capabilities (`docker run --cap-add`, \
                `securityContext.capabilities` of a pod)",
                missing.join(", ")
            ),
            Self::KernelTooOld(release) => {
                write!(f, "virtual IPs need Linux 6.1 or newer, and this kernel is {release}: use a listener instead")
            }
            Self::NoBpffs { path, why } => write!(
                f,
                "there is no BPF file system at {path}, and mounting one failed ({why}): run `mount -t bpf bpf {path}` as root, once; \
                 in a container, mount the host's {path} there"
            ),
            Self::NotCgroup { path, why, mounts } => {
                write!(f, "{path} is not a control group of version 2 ({why}): ")?;
                match mounts.as_slice() {
                    [] => f.write_str(
                        "this host has none mounted; run `mount -t cgroup2 none /run/cgroup2` as root and name /run/cgroup2, or, in a \
                        container, mount the host's /sys/fs/cgroup",
                    ),
                    mounts => write!(f, "version 2 is mounted at {}", mounts.join(", ")),
                }
            }
            Self::Rejected(log) => write!(
                f,
                "the kernel refused one of our programs: please report it with the kernel's release and the log below\n{log}"
            ),
            Self::NoInterface { vip, name, nearest } => {
                write!(f, "vip {vip}: interface {name} does not exist")?;
                match nearest {
                    Some(nearest) => write!(f, "; did you mean `{nearest}`?"),
                    None => f.write_str("; run `ip link` to list the interfaces"),
                }
            }
            Self::NotEthernet { vip, name } => write!(
                f,
                "vip {vip}: packets of interface {name} have no Ethernet header, which the kernel plane needs: use a listener for this \
                interface"
            ),
            Self::TooMany { what, have, max } => write!(f, "there are {have} {what}; the kernel plane can hold {max}"),
            Self::TooManyAtOnce { what, have, going, max } => write!(
                f,
                "there are {have} {what}, and {going} others go only when these serve; the kernel plane can hold {max}: remove some \
                first, and add the others when their connections have ended"
            ),
            Self::TooManySources { vip, have, max } => write!(
                f,
                "vip {vip}: this host uses {have} source addresses for its endpoints, and the kernel plane can hold {max} per vip: name \
                some in `sources`"
            ),
            Self::Several(refusals) => {
                for (place, refusal) in refusals.iter().enumerate() {
                    write!(f, "{}{refusal}", if place == 0 { "" } else { "\n" })?;
                }
                Ok(())
            }
            Self::Kernel { doing, why } => write!(f, "cannot {doing}: {why}"),
        }
    }
}

impl std::error::Error for Refusal {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_with_single_vips_is_told_apart() {
        let many = |vip: &str| Refusal::TooManySources { vip: vip.into(), have: 9, max: 8 };
        let check = |refusal: &Refusal, expect: &[&str]| {
            let vips = refusal.vips();
            assert_eq!(vips.iter().map(|(vip, _)| vip.as_str()).collect::<Vec<_>>(), expect, "{refusal}");
            assert!(vips.iter().all(|(vip, why)| why.contains(&format!("vip {vip}: "))), "{vips:?}");
        };
        check(&many("a"), &["a"]);
        let several = Refusal::Several(vec![many("a"), many("b"), many("c")]);
        check(&several, &["a", "b", "c"]);
        assert_eq!((several.exit(), several.to_string().lines().count()), (Exit::BadConfig, 3));
        check(&Refusal::TooMany { what: "vips", have: 1025, max: 1024 }, &[]);
    }

    #[test]
    fn each_says_what_to_do_and_whose_fault_it_is() {
        let check = |refusal: Refusal, exit: Exit, part: &str| {
            assert_eq!(refusal.exit(), exit, "{refusal}");
            assert!(refusal.to_string().contains(part), "{refusal}");
        };
        check(Refusal::NotBuilt, Exit::HostCannot, "`kernel-plane`");
        check(
            Refusal::NotPermitted(vec!["CAP_BPF", "CAP_NET_ADMIN"]),
            Exit::HostCannot,
            "need CAP_BPF, CAP_NET_ADMIN: run as root; in a container, also add these capabilities",
        );
        check(Refusal::KernelTooOld("5.4.0".into()), Exit::HostCannot, "this kernel is 5.4.0");
        let name = |nearest: Option<&str>| Refusal::NoInterface {
            vip: "web".into(),
            name: "eht0".into(),
            nearest: nearest.map(str::to_owned),
        };
        check(name(Some("eth0")), Exit::BadConfig, "vip web: interface eht0 does not exist; did you mean `eth0`?");
        check(name(None), Exit::BadConfig, "run `ip link`");
        check(
            Refusal::TooMany { what: "vips", have: 2000, max: 1024 },
            Exit::BadConfig,
            "there are 2000 vips; the kernel plane can hold 1024",
        );
        let not_cgroup = |mounts: &[&str]| Refusal::NotCgroup {
            path: "/x".into(),
            why: "no such directory".into(),
            mounts: mounts.iter().map(ToString::to_string).collect(),
        };
        check(
            not_cgroup(&[]),
            Exit::HostCannot,
            "/x is not a control group of version 2 (no such directory): this host has none",
        );
        check(not_cgroup(&["/a", "/b"]), Exit::HostCannot, "version 2 is mounted at /a, /b");
        check(Refusal::NoBpffs { path: "/x".into(), why: "EPERM".into() }, Exit::HostCannot, "`mount -t bpf bpf /x`");
        let (vip, name) = ("web".into(), "wg0".into());
        check(
            Refusal::NotEthernet { vip, name },
            Exit::BadConfig,
            "no Ethernet header, which the kernel plane needs: use a listener",
        );
    }
}
