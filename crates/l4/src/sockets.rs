//! Attaches the programs of `bpf/socket.bpf.c` to a control group, and detaches them.
//!
//! The links are pinned like those to interfaces: they outlive the process, and the next process replaces the programs in place. Programs of
//! others at the same control group stay, and all run.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use libbpf_rs::query::LinkTypeInfo;
use libbpf_rs::{Link, MapHandle, Object, ProgramInput};
use rustix::fs::fstatfs;

use crate::Refusal;
use crate::abi::*;
use crate::content::Content;
use crate::earlier::Earlier;
use crate::load::{self, DATAGRAMS, FORGET, RELEASE, SOCKETS};
use crate::pins::{Pins, remove_link};
use crate::sync::{Maps, get, set};

/// In the order of attaching: what a connected process sees of its endpoint comes before connecting, so that no connection is half known.
const PROGRAMS: [&str; 10] = [
    "lb_close",
    "lb_state",
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
    /// Loads the programs and attaches them to this control group and to no other. If this fails, the attachments stay as they are.
    /// `earlier` has the sockets that the programs of another layout have connected.
    pub(crate) fn attach(pins: &Pins, earlier: Option<(&Earlier, &Maps)>, cgroup: &Path) -> Result<Self, Refusal> {
        let (file, id) = open(cgroup)?;
        // The low bits of an inode number tell any two groups apart that one host has in turn.
        let object = load::load_at_sockets(pins, id as u32)?;
        let map = load::map(&object, SOCKETS)?;
        if let Some((earlier, maps)) = earlier {
            earlier.give_sockets(maps, &map, &load::map(&object, DATAGRAMS)?)?;
        }
        let failed = |name: &str, error: libbpf_rs::Error| {
            let hint =
                "; if another program is attached to it or above without sharing, `bpftool cgroup tree` shows it";
            let hint = if error.kind() == libbpf_rs::ErrorKind::PermissionDenied { hint } else { "" };
            let doing = format!("attach {name} to the control group {}", cgroup.display());
            Refusal::kernel(doing, format!("{error:#}{hint}"))
        };
        let mut links = NewLinks { pins, made: Vec::new() };
        for name in PROGRAMS {
            links.make(&object, name, &file, id).map_err(|error| failed(name, error))?;
        }
        for name in PROGRAMS.iter().filter(|name| !links.made.iter().any(|(made, _)| made == *name)) {
            let updated = Link::open(pins.socket_link(name)).and_then(|mut link| {
                let program = load::program(&object, name).map_err(|refusal| io::Error::other(refusal.to_string()))?;
                link.update_prog(&program)
            });
            updated.map_err(|error| failed(name, error))?;
        }
        links.replace_old().map_err(|error| Refusal::kernel("pin the links to the control group", error))?;
        let at_sockets = Self { object, map, cgroup: cgroup.to_owned(), id };
        // The end of sockets that were connected in another group is reported to nobody any more.
        at_sockets.release()?;
        tracing::info!(cgroup = %cgroup.display(), "connections of its processes are balanced at the socket");
        Ok(at_sockets)
    }

    /// Whether they are attached to the control group that has this path now.
    pub(crate) fn is_at(&self, cgroup: &Path) -> bool {
        id_of(cgroup) == Some(self.id)
    }

    /// Forgets the sockets of vips that are gone, because the indexes of their endpoints become free, and those of other control groups.
    pub(crate) fn release(&self) -> Result<(), Refusal> {
        let ran = load::program(&self.object, RELEASE)?.test_run(ProgramInput::default());
        ran.map(drop).map_err(|error| Refusal::kernel("forget sockets that were connected to vips", error))
    }

    /// Forgets these entries. A process may have connected its socket to another endpoint since they were read; such a socket stays known.
    pub(crate) fn forget(&self, sockets: &BTreeMap<u64, lb_socket>) -> Result<(), Refusal> {
        let program = load::program(&self.object, FORGET)?;
        for (cookie, socket) in sockets {
            let mut context = lb_forget_context { socket: *cookie, endpoint: socket.endpoint, born_s: socket.born_s };
            let input = ProgramInput { context_in: Some(bytes_of_mut(&mut context)), ..ProgramInput::default() };
            program.test_run(input).map_err(|error| Refusal::kernel("forget a socket that was ended", error))?;
        }
        Ok(())
    }
}

/// Links that are not in force as long as their programs are not pinned. Dropping it ends them.
struct NewLinks<'p> {
    pins: &'p Pins,
    made: Vec<(&'static str, Link)>,
}

impl NewLinks<'_> {
    /// Attaches a program, unless that of an earlier process is attached to the same group: then its link can be used again.
    fn make(&mut self, object: &Object, name: &'static str, cgroup: &File, id: u64) -> libbpf_rs::Result<()> {
        let next = self.pins.next_socket_link(name);
        // A process may have ended half-way.
        remove_link(&next);
        if cgroup_of(&self.pins.socket_link(name)) == Some(id) {
            return Ok(());
        }
        let program = load::program(object, name).map_err(|refusal| io::Error::other(refusal.to_string()))?;
        let link = program.attach_cgroup(cgroup.as_raw_fd())?;
        self.made.push((name, link));
        let Some((_, link)) = self.made.last_mut() else { return Ok(()) };
        link.pin(next)
    }

    /// From here on, they are the attachments, and the old ones end.
    /// All take their places before the first old one ends, so that a failure leaves the old ones in force.
    fn replace_old(mut self) -> io::Result<()> {
        let mut old = Vec::new();
        let pins = self.pins;
        let renamed = self.made.iter().try_for_each(|(name, _)| {
            let pin = pins.socket_link(name);
            let link = Link::open(&pin).ok();
            fs::rename(pins.next_socket_link(name), &pin)?;
            old.push((pin, link));
            Ok(())
        });
        match renamed {
            Ok(()) => {
                self.made.clear();
                old.iter().for_each(|(_, link)| _ = link.as_ref().map(Link::detach));
            }
            Err(_) => {
                for (pin, link) in old {
                    match link {
                        // It still counts as pinned there, so this removes the new one.
                        Some(mut link) => _ = link.unpin().and_then(|()| link.pin(&pin)),
                        None => _ = fs::remove_file(&pin),
                    }
                }
            }
        }
        renamed
    }
}

impl Drop for NewLinks<'_> {
    fn drop(&mut self) {
        self.made.iter().for_each(|(name, _)| remove_link(&self.pins.next_socket_link(name)));
        self.made.iter().for_each(|(_, link)| _ = link.detach());
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

/// The inode of the control group that has this path now.
pub(crate) fn id_of(cgroup: &Path) -> Option<u64> {
    open(cgroup).ok().map(|(_, id)| id)
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

/// The control group of a pinned link; 0 if that is gone.
fn cgroup_of(pin: &Path) -> Option<u64> {
    match Link::open(pin).ok()?.info().ok()?.info {
        LinkTypeInfo::Cgroup(cgroup) => Some(cgroup.cgroup_id),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Options;

    /// As root only, like the tests of the plane.
    #[test]
    fn links_that_cannot_be_replaced_stay() {
        use std::io::Write;
        let Some(hierarchy) = mounts().pop().filter(|_| rustix::process::geteuid().is_root()) else {
            _ = writeln!(
                std::io::stderr(),
                "SKIP links_that_cannot_be_replaced_stay: it needs root and control groups of version 2"
            );
            return;
        };
        let groups = [0, 1].map(|number| {
            let group = Path::new(&hierarchy).join(format!("steelyard-links-{}-{number}", std::process::id()));
            fs::create_dir(&group).unwrap();
            group
        });
        let pin_dir = PathBuf::from(format!("/sys/fs/bpf/steelyard-links-{}", std::process::id()));
        let pins = Pins::new(&Options { flows_max: 64, pin_dir: Some(pin_dir), force_tc: false }).unwrap();
        let held = pins.hold().unwrap();
        let _maps = load::load(&pins, 64, true).unwrap();
        let first = AtSockets::attach(&pins, None, &groups[0]).unwrap();
        let at = || PROGRAMS.map(|name| cgroup_of(&pins.socket_link(name)));
        assert_eq!(at(), [Some(first.id); PROGRAMS.len()]);
        let (file, id) = open(&groups[1]).unwrap();
        let mut links = NewLinks { pins: &pins, made: Vec::new() };
        PROGRAMS.iter().for_each(|name| links.make(&first.object, name, &file, id).unwrap());
        fs::remove_file(pins.next_socket_link(PROGRAMS[5])).unwrap();
        assert!(links.replace_old().is_err());
        assert_eq!(at(), [Some(first.id); PROGRAMS.len()]);
        assert!(PROGRAMS.iter().all(|name| !pins.next_socket_link(name).exists()));
        let second = AtSockets::attach(&pins, None, &groups[1]).unwrap();
        assert_eq!(at(), [Some(second.id); PROGRAMS.len()]);
        drop(held);
        pins.remove().unwrap();
        groups.iter().for_each(|group| fs::remove_dir(group).unwrap());
    }
}
