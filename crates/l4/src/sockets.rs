//! Attaches the programs of `bpf/socket.bpf.c` to a control group, and detaches them.
//!
//! The links are pinned like those to interfaces: they outlive the process, and the next process replaces the programs in place. Programs of
//! others at the same control group stay, and all run.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use libbpf_rs::query::LinkTypeInfo;
use libbpf_rs::{Link, MapCore, MapHandle, Object, ProgramMut};
use rustix::fs::fstatfs;

use crate::Refusal;
use crate::abi::*;
use crate::content::Content;
use crate::load::{self, DATAGRAMS, SOCKETS};
use crate::pins::{Pins, remove_link};
use crate::sync::{Maps, entries, failed, get, set};

/// In the order of attaching: what a connected process sees of its endpoint comes before connecting, so that no connection is half known.
const PROGRAMS: [&str; 9] = [
    "lb_close",
    "lb_getpeername4",
    "lb_getpeername6",
    "lb_recvmsg4",
    "lb_recvmsg6",
    "lb_sendmsg4",
    "lb_sendmsg6",
    "lb_connect4",
    "lb_connect6",
];

/// statfs(2).
const CGROUP2_MAGIC: u64 = 0x6367_7270;

/// The attached programs.
#[derive(Debug)]
pub(crate) struct AtSockets {
    pub(crate) object: Object,
    /// `lb_sockets`.
    pub(crate) map: MapHandle,
    pub(crate) cgroup: PathBuf,
    /// Its inode, which no other control group gets until the host restarts.
    id: u64,
}

impl AtSockets {
    /// Loads the programs and attaches them to this control group and to no other. If this fails, those of an earlier process stay.
    pub(crate) fn attach(pins: &Pins, cgroup: &Path) -> Result<Self, Refusal> {
        let (file, id) = open(cgroup)?;
        let object = load::load_at_sockets(pins)?;
        let map = load::map(&object, SOCKETS)?;
        for name in PROGRAMS {
            let attached = attach(&load::program(&object, name)?, &pins.socket_link(name), &file, id);
            attached.map_err(|error| {
                let hint =
                    "; if another program is attached to it or above without sharing, `bpftool cgroup tree` shows it";
                let hint = if error.kind() == libbpf_rs::ErrorKind::PermissionDenied { hint } else { "" };
                Refusal::kernel(
                    format!("attach {name} to the control group {}", cgroup.display()),
                    format!("{error:#}{hint}"),
                )
            })?;
        }
        tracing::info!(cgroup = %cgroup.display(), "connections of its processes are balanced at the socket");
        Ok(Self { object, map, cgroup: cgroup.to_owned(), id })
    }

    /// Whether they are attached to the control group that has this path now.
    pub(crate) fn is_at(&self, cgroup: &Path) -> bool {
        open(cgroup).is_ok_and(|(_, id)| id == self.id)
    }

    /// Forgets the sockets of those of these endpoints whose vip is gone, because their indexes become free.
    pub(crate) fn forget_without_vip(&self, endpoints: &BTreeSet<u32>, held: &Content) -> Result<(), Refusal> {
        let has_vip = |id: &u32| held.endpoints.get(id).is_none_or(|endpoint| held.vips.contains_key(&endpoint.vip));
        let gone: BTreeSet<u32> = endpoints.iter().filter(|id| !has_vip(id)).copied().collect();
        if gone.is_empty() {
            return Ok(());
        }
        let found: Vec<(u64, lb_socket)> = entries(&self.map).collect::<Result<_, _>>()?;
        for (cookie, _) in found.iter().filter(|(_, socket)| gone.contains(&socket.endpoint)) {
            match self.map.delete(bytes_of(cookie)) {
                // It was closed in the meantime.
                Err(error) if error.kind() == libbpf_rs::ErrorKind::NotFound => {}
                deleted => deleted.map_err(|error| failed("delete from", &self.map, error))?,
            }
        }
        Ok(())
    }
}

/// Detaches the programs, also those of an earlier process. Sockets stay connected; they see their endpoints' addresses from now on.
pub(crate) fn detach(pins: &Pins, maps: &Maps, held: &Content) -> Result<(), Refusal> {
    let links = pins.socket_links();
    if links.is_empty() {
        return Ok(());
    }
    links.iter().for_each(|link| remove_link(link));
    for name in [SOCKETS, DATAGRAMS] {
        match fs::remove_file(pins.map(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(Refusal::kernel(format!("remove the map {name}"), error));
            }
            _ => {}
        }
    }
    for id in held.endpoints.keys() {
        let uses: lb_uses = get(&maps.uses, id)?.unwrap_or_default();
        if uses.open > 0 {
            set(&maps.uses, id, &lb_uses { open: 0, ..uses })?;
        }
    }
    tracing::info!("connections of this host's processes are no longer balanced at the socket");
    Ok(())
}

/// Opens a control group, and finds out its inode.
fn open(cgroup: &Path) -> Result<(File, u64), Refusal> {
    let refusal = |why: String| Refusal::NotCgroup { path: cgroup.display().to_string(), why, mounts: mounts() };
    let file = File::open(cgroup).map_err(|error| refusal(error.to_string()))?;
    let is_cgroup = fstatfs(&file).is_ok_and(|found| found.f_type as u64 & 0xffff_ffff == CGROUP2_MAGIC);
    if !is_cgroup {
        return Err(refusal("it belongs to another file system".to_owned()));
    }
    let id = file.metadata().map_err(|error| refusal(error.to_string()))?.ino();
    Ok((file, id))
}

/// Where control groups of version 2 are mounted (proc(5)).
fn mounts() -> Vec<String> {
    let info = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mounted = info.lines().filter(|line| line.contains(" - cgroup2 "));
    mounted.filter_map(|line| line.split(' ').nth(4)).map(str::to_owned).collect()
}

fn attach(program: &ProgramMut<'_>, pin: &Path, cgroup: &File, id: u64) -> libbpf_rs::Result<()> {
    if cgroup_of(pin) == Some(id) {
        return Link::open(pin)?.update_prog(program);
    }
    remove_link(pin);
    program.attach_cgroup(cgroup.as_raw_fd())?.pin(pin)
}

/// The control group of a pinned link; 0 if that is gone.
fn cgroup_of(pin: &Path) -> Option<u64> {
    match Link::open(pin).ok()?.info().ok()?.info {
        LinkTypeInfo::Cgroup(cgroup) => Some(cgroup.cgroup_id),
        _ => None,
    }
}
