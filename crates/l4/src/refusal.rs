//! Why the kernel plane cannot do what it is asked to, and what to do about it.

use std::fmt;

/// Why not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// This build has no programs.
    NotBuilt,
    /// The process may not load or attach programs. The names of the capabilities that it lacks (capabilities(7)).
    NotPermitted(Vec<&'static str>),
    /// The release of a kernel that lacks what the programs call. What is asked for is the oldest on which the tests run.
    KernelTooOld(String),
    /// There is no BPF file system where maps are to be kept.
    NoBpffs {
        /// Where it has to be.
        path: String,
        /// What the kernel said when it was to be mounted.
        why: String,
    },
    /// The verifier refused a program: the end of its log.
    Rejected(String),
    /// No such interface.
    NoInterface {
        /// The vip that names it.
        vip: String,
        /// What it names.
        name: String,
        /// What was perhaps meant.
        nearest: Option<String>,
    },
    /// An interface whose packets do not begin with an Ethernet header.
    NotEthernet {
        /// The vip that names it.
        vip: String,
        /// What it names.
        name: String,
    },
    /// More than the tables hold.
    TooMany {
        /// Of what.
        what: &'static str,
        /// So many are there.
        have: usize,
        /// So many may be.
        max: u32,
    },
    /// `full_nat` without `sources`, and this host has more addresses towards its endpoints than one vip can use.
    TooManySources {
        /// The vip.
        vip: String,
        /// So many are there.
        have: usize,
        /// So many may be.
        max: u32,
    },
    /// Several vips, each for a reason of its own that is no other's.
    Several(Vec<Refusal>),
    /// A call that should not fail did.
    Kernel {
        /// What was being done.
        doing: String,
        /// What the kernel said.
        why: String,
    },
}

/// Whose fault it is, for the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// This host, or this process on it.
    HostCannot,
    /// What is configured.
    BadConfig,
}

impl Refusal {
    /// Whose fault it is.
    pub fn exit(&self) -> Exit {
        match self {
            Self::NoInterface { .. }
            | Self::NotEthernet { .. }
            | Self::TooMany { .. }
            | Self::TooManySources { .. } => Exit::BadConfig,
            Self::Several(refusals) => refusals.first().map_or(Exit::HostCannot, Self::exit),
            Self::NotBuilt
            | Self::NotPermitted(_)
            | Self::KernelTooOld(_)
            | Self::NoBpffs { .. }
            | Self::Rejected(_)
            | Self::Kernel { .. } => Exit::HostCannot,
        }
    }

    /// The vips that are refused while others could be served, by their names, and why; none: it is all of them.
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
                "virtual IPs need {}: run as root, and in a container with these capabilities as well (`docker run --cap-add`, \
                 `securityContext.capabilities` of a pod)",
                missing.join(", ")
            ),
            Self::KernelTooOld(release) => {
                write!(f, "virtual IPs need Linux 6.1 or newer, and this is {release}: use a listener instead")
            }
            Self::NoBpffs { path, why } => write!(
                f,
                "there is no BPF file system at {path}, and mounting one failed ({why}): run `mount -t bpf bpf {path}` as root, once; \
                 in a container, mount the host's {path} there"
            ),
            Self::Rejected(log) => write!(
                f,
                "the kernel refused a program of ours: please report it with the kernel's release and the log below\n{log}"
            ),
            Self::NoInterface { vip, name, nearest } => {
                write!(f, "vip {vip}: there is no interface {name}")?;
                match nearest {
                    Some(nearest) => write!(f, "; did you mean `{nearest}`?"),
                    None => f.write_str("; `ip link` lists those there are"),
                }
            }
            Self::NotEthernet { vip, name } => write!(
                f,
                "vip {vip}: packets of interface {name} have no Ethernet header, and the kernel plane reads no others: use a listener for what \
                 arrives there"
            ),
            Self::TooMany { what, have, max } => write!(f, "{have} {what} are more than the {max} that the kernel plane holds"),
            Self::TooManySources { vip, have, max } => write!(
                f,
                "vip {vip}: this host has {have} source addresses towards its endpoints, more than the {max} that the kernel plane \
                 holds for one: name some as `sources`"
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
            "need CAP_BPF, CAP_NET_ADMIN: run as root, and in a container with these capabilities",
        );
        check(Refusal::KernelTooOld("5.4.0".into()), Exit::HostCannot, "this is 5.4.0");
        let name = |nearest: Option<&str>| Refusal::NoInterface {
            vip: "web".into(),
            name: "eht0".into(),
            nearest: nearest.map(str::to_owned),
        };
        check(name(Some("eth0")), Exit::BadConfig, "vip web: there is no interface eht0; did you mean `eth0`?");
        check(name(None), Exit::BadConfig, "`ip link` lists");
        check(
            Refusal::TooMany { what: "vips", have: 2000, max: 1024 },
            Exit::BadConfig,
            "2000 vips are more than the 1024",
        );
        check(Refusal::NoBpffs { path: "/x".into(), why: "EPERM".into() }, Exit::HostCannot, "`mount -t bpf bpf /x`");
        let (vip, name) = ("web".into(), "wg0".into());
        check(
            Refusal::NotEthernet { vip, name },
            Exit::BadConfig,
            "no Ethernet header, and the kernel plane reads no others: use a listener",
        );
    }
}
