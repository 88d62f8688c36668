//! Where everything is kept that outlives the process: a folder in a BPF file system.
//!
//! `ROOT/v<version>/` has a file for each map and `link_<ifindex>` for each attachment by tcx. The version is that of the layouts: maps of another one
//! cannot be taken over.

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

/// Where BPF file systems are mounted by all who do.
const BPFFS: &str = "/sys/fs/bpf";
/// statfs(2).
const BPF_FS_MAGIC: u64 = 0xcafe_4a11;
/// Ours, below it.
const OURS: &str = "/sys/fs/bpf/steelyard";
/// Before the index of an interface, since there are names with dots, which this file system reserves.
const LINK: &str = "link_";

/// So often a folder may be swept away between being made and being held.
const HOLD_TRIES_MAX: u32 = 8;

/// Says that a process looks after a plane, as long as it has this: its folder is locked (flock(2)), by as many processes as hand over to each other.
#[derive(Debug)]
pub(crate) struct Held {
    _root: File,
}

/// The folders of one plane.
#[derive(Clone, Debug)]
pub(crate) struct Pins {
    root: PathBuf,
    /// Of this version.
    pub(crate) folder: PathBuf,
}

impl Pins {
    pub(crate) fn new(options: &Options) -> Result<Self, Refusal> {
        let root = match &options.pin_dir {
            Some(root) => root.clone(),
            None => {
                let cookie = host::netns_cookie();
                let cookie =
                    cookie.map_err(|error| Refusal::kernel("tell this network namespace from others", error))?;
                Path::new(OURS).join(cookie.to_string())
            }
        };
        let folder = root.join(format!("v{LB_LAYOUT_VERSION}"));
        Ok(Self { root, folder })
    }

    /// Whether an earlier process has left something, of whatever version.
    pub(crate) fn exist(&self) -> bool {
        fs::read_dir(&self.root).is_ok_and(|mut entries| entries.next().is_some())
    }

    /// Makes the folder and holds it, so that nobody takes it for what is left of a namespace that is gone: the interfaces may be, for a while.
    pub(crate) fn hold(&self) -> Result<Held, Refusal> {
        let failed = |error: io::Error| Refusal::kernel(format!("hold {}", self.root.display()), error);
        for _ in 0..HOLD_TRIES_MAX {
            self.make()?;
            let root = match File::open(&self.root) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                opened => opened.map_err(failed)?,
            };
            // Waits for one who sweeps, which takes milliseconds.
            flock(&root, FlockOperation::LockShared).map_err(|error| failed(error.into()))?;
            // He may have found it dead a moment ago: then what is locked has no name any more.
            let locked = root.metadata().map_err(failed)?;
            let is_there =
                fs::metadata(&self.root).is_ok_and(|named| (named.dev(), named.ino()) == (locked.dev(), locked.ino()));
            if is_there && self.folder.exists() {
                return Ok(Held { _root: root });
            }
        }
        Err(failed(io::Error::other("it is removed each time that it is made")))
    }

    /// Makes the folder, and mounts the file system where that has not been done.
    fn make(&self) -> Result<(), Refusal> {
        let existing = self.folder.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
        if !is_bpffs(existing) {
            // Below /sys/fs/bpf that is the place, whatever part of the way to it is there.
            let is_usual = self.folder.starts_with(BPFFS);
            let path = if is_usual { BPFFS.to_owned() } else { existing.display().to_string() };
            let refusal = |why: String| Refusal::NoBpffs { path: path.clone(), why };
            if !is_usual {
                return Err(refusal(format!("Steelyard mounts it at {BPFFS} alone")));
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

    /// The links that are there: interface and file.
    pub(crate) fn links(&self) -> Vec<(u32, PathBuf)> {
        links(&self.folder)
    }

    /// Folders of other versions: their programs go on until ours are attached.
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

/// Removes what processes in namespaces that are gone have left beside us: nothing else would ever free their tables. A plane is dead when nobody holds it and all
/// interfaces that it was attached to are gone; one that was attached by tc cannot be told from a living one, and stays.
pub(crate) fn sweep(own: &Pins) {
    let Some(beside) = own.root.parent() else { return };
    for root in folders(beside).into_iter().filter(|root| *root != own.root) {
        // Held until it is removed: whoever begins there meanwhile waits for us, and then begins anew.
        let Ok(handle) = File::open(&root) else { continue };
        if flock(&handle, FlockOperation::NonBlockingLockExclusive).is_err() {
            continue;
        }
        let versions = folders(&root);
        let attached: Vec<PathBuf> = versions.iter().flat_map(|folder| links(folder)).map(|(_, link)| link).collect();
        if attached.is_empty() || !attached.iter().all(|link| link_ifindex(link) == Some(0)) {
            continue;
        }
        let removed = versions.iter().try_for_each(|folder| remove_folder(folder));
        let removed = removed.and_then(|()| unless_gone(fs::remove_dir(&root)));
        match removed {
            Ok(()) => {
                tracing::info!(folder = %root.display(), "removed what was left of a network namespace that is gone")
            }
            Err(error) => {
                tracing::warn!(folder = %root.display(), %error, "cannot remove what is left of a network namespace that is gone")
            }
        }
    }
}

/// Where a pinned link is attached; 0: the interface is gone.
pub(crate) fn link_ifindex(path: &Path) -> Option<u32> {
    let info = Link::open(path).ok()?.info().ok()?;
    match info.info {
        LinkTypeInfo::Tcx(tcx) => Some(tcx.ifindex),
        _ => None,
    }
}

pub(crate) fn remove_folder(folder: &Path) -> io::Result<()> {
    for (_, link) in links(folder) {
        // As in `attach`: at once, and not some time after the file is gone.
        _ = Link::open(link).and_then(|link| link.detach());
    }
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        unless_gone(fs::remove_file(entry?.path()))?;
    }
    unless_gone(fs::remove_dir(folder))
}

/// What is gone already was removed by another process: from outside, a plane that is being taken down looks like one whose namespace is gone.
fn unless_gone(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

fn is_bpffs(path: &Path) -> bool {
    statfs(path).is_ok_and(|found| found.f_type as u64 & 0xffff_ffff == BPF_FS_MAGIC)
}

fn links(folder: &Path) -> Vec<(u32, PathBuf)> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let files = entries.flatten().map(|entry| entry.path());
    files.filter_map(|path| Some((path.file_name()?.to_str()?.strip_prefix(LINK)?.parse().ok()?, path))).collect()
}

fn folders(of: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(of) else { return Vec::new() };
    entries.flatten().map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
}
