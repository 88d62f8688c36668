//! Attaches a program to the ingress or the egress of interfaces, and detaches it.
//!
//! It uses tcx if the kernel has it (6.6): a pinned link of our own, whose program is replaced in place, behind the programs of others.
//! Otherwise it uses a filter of the clsact qdisc with its own handle and priority. The qdisc is shared with others and stays.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::ptr::NonNull;

use libbpf_rs::{AsRawLibbpf, Link, Program, TC_EGRESS, TC_INGRESS, TcHook, TcHookBuilder, libbpf_sys};

use crate::Refusal;
use crate::host::now_s;
use crate::interfaces::{Interface, list};
use crate::pins::{Pins, link_ifindex, remove_link};

/// The handle of our filter, by which it is found again after a restart. It is unlikely that anything else uses it.
const TC_HANDLE: u32 = 0x57ee_1bad;
/// A late priority, so that programs of others see the packets first, as with tcx.
const TC_PRIORITY: u32 = 0xc000;

/// The loopback is the first interface of each namespace.
const LOOPBACK: u32 = 1;

/// Where on an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// What arrives.
    Ingress,
    /// What leaves.
    Egress,
}

/// The interfaces to which we are attached.
#[derive(Debug)]
pub(crate) struct Attachments {
    pins: Pins,
    side: Side,
    force_tc: bool,
    /// By interface index. The pins keep the links.
    by_tcx: BTreeSet<u32>,
    by_tc: BTreeSet<u32>,
    said: Said,
    /// Whether we have looked for filters that an earlier process attached by tc.
    searched: bool,
}

impl Attachments {
    pub(crate) fn new(pins: &Pins, side: Side, force_tc: bool) -> Self {
        Self {
            pins: pins.clone(),
            side,
            force_tc,
            by_tcx: BTreeSet::new(),
            by_tc: BTreeSet::new(),
            said: Said::default(),
            searched: false,
        }
    }

    /// Attaches to these interfaces and to no others. `present` has all interfaces.
    pub(crate) fn sync(
        &mut self,
        program: &Program<'_>,
        wanted: &BTreeMap<u32, String>,
        present: &[Interface],
    ) -> Result<(), Refusal> {
        for (ifindex, name) in wanted {
            if self.by_tcx.contains(ifindex) || self.by_tc.contains(ifindex) {
                continue;
            }
            if let Err(error) = self.attach(program, *ifindex) {
                // Interfaces of containers can disappear at any time, also after they were listed.
                if list().is_ok_and(|now| now.iter().all(|interface| interface.index != *ifindex)) {
                    continue;
                }
                return Err(Refusal::kernel(format!("attach to the interface {name}"), error));
            }
            let by = if self.by_tcx.contains(ifindex) { "tcx" } else { "tc" };
            match self.side {
                _ if !self.said.may_say(name, now_s()) => {}
                Side::Ingress => tracing::info!(interface = name, by, "attached"),
                Side::Egress => {
                    tracing::info!(interface = name, by, "attached to the egress, for endpoints on this host")
                }
            }
        }
        self.detach_others(program.as_fd(), wanted, present);
        Ok(())
    }

    /// Whether another message about the interface may be logged.
    pub(crate) fn said(&mut self, interface: &str) -> bool {
        self.said.may_say(interface, now_s())
    }

    /// As long as there is no attachment by tcx, a program that does nothing is attached to the loopback. The kernel detaches it when the
    /// namespace ends, and so other planes see that this one is dead.
    pub(crate) fn mark(&self, nothing: &Program<'_>) -> Result<(), Refusal> {
        let path = self.pins.here();
        if !self.pins.links().is_empty() {
            if path.exists() {
                remove_link(&path);
            }
            return Ok(());
        }
        if self.force_tc || link_ifindex(&path) == Some(LOOPBACK) {
            return Ok(());
        }
        remove_link(&path);
        let marked = match new_tcx(nothing, LOOPBACK) {
            // Nothing shows the end of the namespace to a kernel without tcx.
            Err(error) if is_without_tcx(&error) => return Ok(()),
            made => made.map_err(libbpf_rs::Error::from).and_then(|mut link| link.pin(&path)),
        };
        marked.map_err(|error| Refusal::kernel("attach to the loopback", error))
    }

    fn attach(&mut self, program: &Program<'_>, ifindex: u32) -> libbpf_rs::Result<()> {
        if !self.force_tc && self.attach_tcx(program, ifindex)? {
            self.by_tcx.insert(ifindex);
            detach_tc(program.as_fd(), ifindex, self.side);
            return Ok(());
        }
        let mut hook = hook(program.as_fd(), ifindex, self.side);
        hook.create()?;
        hook.attach()?;
        self.by_tc.insert(ifindex);
        // An earlier process attached by tcx. The program must not run twice.
        remove_link(&self.link(ifindex));
        Ok(())
    }

    fn link(&self, ifindex: u32) -> PathBuf {
        match self.side {
            Side::Ingress => self.pins.link(ifindex),
            Side::Egress => self.pins.out_link(ifindex),
        }
    }

    fn links(&self) -> Vec<(u32, PathBuf)> {
        match self.side {
            Side::Ingress => self.pins.links(),
            Side::Egress => self.pins.out_links(),
        }
    }

    /// Returns false if this kernel has no tcx.
    fn attach_tcx(&self, program: &Program<'_>, ifindex: u32) -> libbpf_rs::Result<bool> {
        let path = self.link(ifindex);
        if link_ifindex(&path) == Some(ifindex) {
            Link::open(&path)?.update_prog(program)?;
            return Ok(true);
        }
        // A link of an interface that is gone, whose index this one got.
        remove_link(&path);
        let mut link = match new_tcx(program, ifindex) {
            Ok(link) => link,
            Err(error) if is_without_tcx(&error) => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        link.pin(&path)?;
        Ok(true)
    }

    fn detach_others(&mut self, program: BorrowedFd<'_>, wanted: &BTreeMap<u32, String>, present: &[Interface]) {
        for (_, link) in self.links().into_iter().filter(|(ifindex, _)| !wanted.contains_key(ifindex)) {
            remove_link(&link);
        }
        let is_there = |ifindex: &u32| present.iter().any(|interface| interface.index == *ifindex);
        let suspects: Vec<u32> = if self.searched {
            self.by_tc.iter().copied().collect()
        } else {
            present.iter().map(|interface| interface.index).collect()
        };
        for ifindex in suspects.into_iter().filter(|ifindex| !wanted.contains_key(ifindex)) {
            detach_tc(program, ifindex, self.side);
        }
        self.searched = true;
        // An interface that is gone took its filter with it. If it returns, with whatever index, it is attached again.
        self.by_tc.retain(|ifindex| wanted.contains_key(ifindex) && is_there(ifindex));
        self.by_tcx.retain(|ifindex| wanted.contains_key(ifindex) && is_there(ifindex));
    }
}

/// Detaches from all interfaces. `any` is an open file; which one does not matter.
pub(crate) fn detach_everywhere(pins: &Pins, any: BorrowedFd<'_>, present: &[Interface]) {
    for (_, link) in pins.links().into_iter().chain(pins.out_links()) {
        remove_link(&link);
    }
    for interface in present {
        detach_tc(any, interface.index, Side::Ingress);
        detach_tc(any, interface.index, Side::Egress);
    }
}

/// Limits what is logged about an interface that comes and goes all the time.
#[derive(Debug, Default)]
pub(crate) struct Said {
    /// By name: how often something was said since when.
    times: BTreeMap<String, (u32, u32)>,
}

impl Said {
    /// Messages about one interface in a minute.
    const TIMES_MAX: u32 = 5;
    const MINUTE_S: u32 = 60;
    /// Names that are remembered. Beyond this, nothing is said in that minute.
    const NAMES_MAX: usize = 1024;

    /// Whether there may be another message about the interface. The last one says that there will be no more.
    pub(crate) fn may_say(&mut self, interface: &str, now_s: u32) -> bool {
        self.times.retain(|_, (_, since_s)| now_s.saturating_sub(*since_s) < Self::MINUTE_S);
        if self.times.len() >= Self::NAMES_MAX && !self.times.contains_key(interface) {
            return false;
        }
        let (count, _) = self.times.entry(interface.to_owned()).or_insert((0, now_s));
        *count = count.saturating_add(1);
        if *count == Self::TIMES_MAX {
            tracing::warn!(
                interface,
                "the interface comes and goes all the time: it is followed, but no more is said about it for a minute"
            );
        }
        *count < Self::TIMES_MAX
    }
}

/// Whether the kernel does not know this attach type.
fn is_without_tcx(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP))
}

/// libbpf-rs (0.27) has no safe call for this.
fn new_tcx(program: &Program<'_>, ifindex: u32) -> io::Result<Link> {
    let ifindex = i32::try_from(ifindex).map_err(io::Error::other)?;
    // SAFETY: the program is loaded and outlives the call. Without options it is placed behind the existing programs.
    let link =
        unsafe { libbpf_sys::bpf_program__attach_tcx(program.as_libbpf_object().as_ptr(), ifindex, std::ptr::null()) };
    let link = NonNull::new(link).ok_or_else(io::Error::last_os_error)?;
    // SAFETY: libbpf has just made it, and nothing else owns it.
    Ok(unsafe { Link::from_ptr(link) })
}

fn hook(program: BorrowedFd<'_>, ifindex: u32, side: Side) -> TcHook {
    let mut builder = TcHookBuilder::new(program);
    builder.ifindex(ifindex as i32).replace(true).handle(TC_HANDLE).priority(TC_PRIORITY);
    builder.hook(match side {
        Side::Ingress => TC_INGRESS,
        Side::Egress => TC_EGRESS,
    })
}

fn detach_tc(program: BorrowedFd<'_>, ifindex: u32, side: Side) {
    let mut hook = hook(program, ifindex, side);
    // Query first: most interfaces have no filter of ours, or no qdisc that could have one.
    if hook.query().is_ok()
        && let Err(error) = hook.detach()
    {
        tracing::warn!(ifindex, %error, "cannot remove the filter from an interface");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_that_comes_and_goes_is_named_a_few_times_a_minute() {
        let mut said = Said::default();
        let mut count = |name: &str, now_s| (0..20).filter(|_| said.may_say(name, now_s)).count();
        assert_eq!([count("eth0", 7), count("eth0", 66), count("eth1", 66)], [4, 0, 4]);
        assert_eq!([count("eth0", 67), count("eth1", 125), count("eth1", 126)], [4, 0, 4]);
        let mut said = Said::default();
        let count = (0..2000).filter(|n| said.may_say(&format!("eth{n}"), 7)).count();
        assert_eq!((count, said.may_say("eth0", 7), said.may_say("eth2001", 67)), (1024, true, true));
    }
}
