//! The directory in a BPF file system that keeps everything that outlives the process.
//!
//! `ROOT/v<version>/` has a file for each map, `link_<ifindex>` and `out_<ifindex>` for each attachment by tcx to the ingress and the egress of
//! an interface, and `socket_<program>` for each attachment to the control group. `here` shows that the namespace exists as long as there is no attachment by tcx. The version is that of the layouts:
//! maps of another version cannot be taken over, but `earlier` copies what connections need.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use libbpf_rs::Link;
use libbpf_rs::query::LinkTypeInfo;
use rustix::fs::{FlockOperation, flock, statfs};
use rustix::mount::{MountFlags, mount};

use crate::abi::LB_LAYOUT_VERSION;
use crate::host;
use crate::{Options, Refusal};

/// The usual mount point of the BPF file system.
const BPFFS: &str = "/sys/fs/bpf";
/// statfs(2).
const BPF_FS_MAGIC: u64 = 0xcafe_4a11;
/// Our directory below it.
const OURS: &str = "/sys/fs/bpf/steelyard";
/// The prefix of link files, followed by the index of the interface. Interface names may contain dots, which this file system reserves.
const LINK: &str = "link_";
/// The same for the egress.
const OUT_LINK: &str = "out_";
/// The prefix of the links to the control group, followed by the name of the program.
const SOCKET_LINK: &str = "socket_";

/// The prefix of a link that is about to become one of those.
const NEXT_LINK: &str = "next_";
/// The link to the loopback of the namespace.
const HERE: &str = "here";

/// How often a directory may be removed by another process between being made and being locked.
const HOLD_TRIES_MAX: u32 = 8;

/// Shows that a process uses a plane: while it exists, the directory is locked (flock(2)). Processes that hand over to each other share the
/// lock.
#[derive(Debug)]
pub(crate) struct Held {
    _root: File,
}

/// The directories of one plane.
#[derive(Clone, Debug)]
pub(crate) struct Pins {
    root: PathBuf,
    /// The directory of this version.
    pub(crate) folder: PathBuf,
}

impl Pins {
    pub(crate) fn new(options: &Options) -> Result<Self, Refusal> {
        let root = match &options.pin_dir {
            Some(root) => root.clone(),
            None => {
                let cookie = host::netns_cookie();
                let cookie = cookie.map_err(|error| Refusal::kernel("identify this network namespace", error))?;
                Path::new(OURS).join(cookie.to_string())
            }
        };
        let folder = root.join(format!("v{LB_LAYOUT_VERSION}"));
        Ok(Self { root, folder })
    }

    /// Whether an earlier process has left something, of any version.
    pub(crate) fn exist(&self) -> bool {
        fs::read_dir(&self.root).is_ok_and(|mut entries| entries.next().is_some())
    }

    /// Makes the directory and locks it, so that no other process takes it for the remains of a namespace that is gone: its interfaces may
    /// be gone for a while.
    pub(crate) fn hold(&self) -> Result<Held, Refusal> {
        let failed = |error: io::Error| Refusal::kernel(format!("hold {}", self.root.display()), error);
        for _ in 0..HOLD_TRIES_MAX {
            self.make()?;
            let root = match File::open(&self.root) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                opened => opened.map_err(failed)?,
            };
            // Waits for a process that sweeps, which takes milliseconds.
            flock(&root, FlockOperation::LockShared).map_err(|error| failed(error.into()))?;
            // That process may have found it dead a moment ago. Then the locked directory has no name any more.
            let locked = root.metadata().map_err(failed)?;
            let is_there =
                fs::metadata(&self.root).is_ok_and(|named| (named.dev(), named.ino()) == (locked.dev(), locked.ino()));
            if is_there && self.folder.exists() {
                return Ok(Held { _root: root });
            }
        }
        Err(failed(io::Error::other("another process removes it each time")))
    }

    /// Makes the directory, and mounts the file system if necessary.
    fn make(&self) -> Result<(), Refusal> {
        let existing = self.folder.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
        if !is_bpffs(existing) {
            // Below /sys/fs/bpf that is the mount point, whichever parts of the path exist.
            let is_usual = self.folder.starts_with(BPFFS);
            let path = if is_usual { BPFFS.to_owned() } else { existing.display().to_string() };
            let refusal = |why: String| Refusal::NoBpffs { path: path.clone(), why };
            if !is_usual {
                return Err(refusal(format!("Steelyard mounts it only at {BPFFS}")));
            }
            let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
            mount("bpf", BPFFS, "bpf", flags, c"mode=0700").map_err(|error| refusal(error.to_string()))?;
        }
        fs::create_dir_all(&self.folder)
            .map_err(|error| Refusal::kernel(format!("make {}", self.folder.display()), error))
    }

    pub(crate) fn map(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    pub(crate) fn link(&self, ifindex: u32) -> PathBuf {
        self.folder.join(format!("{LINK}{ifindex}"))
    }

    /// The same for the egress.
    pub(crate) fn out_link(&self, ifindex: u32) -> PathBuf {
        self.folder.join(format!("{OUT_LINK}{ifindex}"))
    }

    /// The link of a program to the control group.
    pub(crate) fn socket_link(&self, program: &str) -> PathBuf {
        self.folder.join(format!("{SOCKET_LINK}{program}"))
    }

    /// The place of such a link until all are made.
    pub(crate) fn next_socket_link(&self, program: &str) -> PathBuf {
        self.folder.join(format!("{NEXT_LINK}{program}"))
    }

    /// The link to the loopback.
    pub(crate) fn here(&self) -> PathBuf {
        self.folder.join(HERE)
    }

    /// The existing ones.
    pub(crate) fn socket_links(&self) -> Vec<PathBuf> {
        socket_links(&self.folder)
    }

    /// The existing links to the ingress: interface and file.
    pub(crate) fn links(&self) -> Vec<(u32, PathBuf)> {
        links(&self.folder, LINK)
    }

    /// Those to the egress.
    pub(crate) fn out_links(&self) -> Vec<(u32, PathBuf)> {
        links(&self.folder, OUT_LINK)
    }

    /// Directories of other versions. Their programs keep working until ours are attached.
    pub(crate) fn other_versions(&self) -> Vec<PathBuf> {
        folders(&self.root).into_iter().filter(|folder| *folder != self.folder).collect()
    }

    /// Removes everything. Attachments by tcx end with their links.
    pub(crate) fn remove(&self) -> io::Result<()> {
        for folder in folders(&self.root) {
            remove_folder(&folder)?;
        }
        unless_gone(fs::remove_dir(&self.root))
    }
}

/// Removes the directories of processes in namespaces that are gone, because nothing else would ever free their tables. A plane is dead if
/// no process holds it and all interfaces that it was attached to are gone, or the loopback if there were none. A plane that was attached by tc cannot be distinguished from a
/// living one, and stays.
pub(crate) fn sweep(own: &Pins) {
    let Some(beside) = own.root.parent() else { return };
    for root in folders(beside).into_iter().filter(|root| *root != own.root) {
        // Locked until it is removed: a process that starts there in the meantime waits for us and then starts over.
        let Ok(handle) = File::open(&root) else { continue };
        if flock(&handle, FlockOperation::NonBlockingLockExclusive).is_err() {
            continue;
        }
        let versions = folders(&root);
        let at = |folder: &PathBuf| {
            let here = folder.join(HERE);
            let here = here.exists().then_some(here);
            links(folder, LINK).into_iter().map(|(_, link)| link).chain(here).collect::<Vec<_>>()
        };
        let attached: Vec<PathBuf> = versions.iter().flat_map(at).collect();
        if attached.is_empty() || !attached.iter().all(|link| link_ifindex(link) == Some(0)) {
            continue;
        }
        let removed = versions.iter().try_for_each(|folder| remove_folder(folder));
        let removed = removed.and_then(|()| unless_gone(fs::remove_dir(&root)));
        match removed {
            Ok(()) => {
                tracing::info!(folder = %root.display(), "removed the kernel plane of a network namespace that no longer exists")
            }
            Err(error) => {
                tracing::warn!(folder = %root.display(), %error, "cannot remove the kernel plane of a network namespace that no longer \
                    exists")
            }
        }
    }
}

/// The interface of a pinned link; 0 if the interface is gone.
pub(crate) fn link_ifindex(path: &Path) -> Option<u32> {
    let info = Link::open(path).ok()?.info().ok()?;
    match info.info {
        LinkTypeInfo::Tcx(tcx) => Some(tcx.ifindex),
        _ => None,
    }
}

/// Ends an attachment and removes its file. It is no error if either is gone already. Removing the file alone would not do: the kernel
/// releases a link only some time after its last reference is gone.
pub(crate) fn remove_link(path: &Path) {
    _ = Link::open(path).and_then(|link| link.detach());
    _ = fs::remove_file(path);
}

/// Ends the attachments to interfaces.
pub(crate) fn remove_interface_links(folder: &Path) {
    let links = [LINK, OUT_LINK].into_iter().flat_map(|kind| links(folder, kind));
    links.for_each(|(_, link)| remove_link(&link));
}

pub(crate) fn remove_folder(folder: &Path) -> io::Result<()> {
    remove_interface_links(folder);
    socket_links(folder).iter().for_each(|link| remove_link(link));
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        unless_gone(fs::remove_file(entry?.path()))?;
    }
    unless_gone(fs::remove_dir(folder))
}

/// Another process may have removed it already: from outside, a plane that is being taken down looks like one whose namespace is gone.
fn unless_gone(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

fn is_bpffs(path: &Path) -> bool {
    statfs(path).is_ok_and(|found| found.f_type as u64 & 0xffff_ffff == BPF_FS_MAGIC)
}

fn links(folder: &Path, kind: &'static str) -> Vec<(u32, PathBuf)> {
    let index = |(path, rest): (PathBuf, String)| Some((rest.parse().ok()?, path));
    named(folder, kind).filter_map(index).collect()
}

fn socket_links(folder: &Path) -> Vec<PathBuf> {
    named(folder, SOCKET_LINK).map(|(path, _)| path).collect()
}

/// The files whose names begin with `prefix`, and the rest of each name.
fn named(folder: &Path, prefix: &'static str) -> impl Iterator<Item = (PathBuf, String)> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    entries.filter_map(move |path| {
        let rest = path.file_name()?.to_str()?.strip_prefix(prefix)?.to_owned();
        Some((path, rest))
    })
}

fn folders(of: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(of) else { return Vec::new() };
    entries.flatten().map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
}
