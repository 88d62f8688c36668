//! Loads the programs into the kernel, with the maps of an earlier process or with new ones.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Mutex, PoisonError};

use libbpf_rs::btf::Btf;
use libbpf_rs::btf::types::{MemberAttr, Struct};
use libbpf_rs::{
    ErrorKind, MapCore, MapHandle, Object, ObjectBuilder, OpenObject, PrintLevel, ProgramAttachType, ProgramMut,
    set_print,
};

use crate::Refusal;
use crate::host;
use crate::pins::{Pins, remove_folder};

/// The compiled programs that see packets.
pub static OBJECT: &[u8] = include_bytes!(env!("LB_OBJECT"));
/// Those that run when a process connects.
pub static SOCKET_OBJECT: &[u8] = include_bytes!(env!("LB_SOCKET_OBJECT"));

/// The names of the programs.
pub(crate) const ENTRY: &str = "lb_in";
pub(crate) const EXIT: &str = "lb_out";
pub(crate) const TRACE: &str = "lb_trace";
pub(crate) const COLLECT: &str = "lb_gc";
pub(crate) const CONNECT_DRY: &str = "lb_connect_dry";
pub(crate) const RELEASE: &str = "lb_release";
pub(crate) const FORGET: &str = "lb_forget";
pub(crate) const HERE: &str = "lb_here";

/// Only needed while a program runs, so each process has its own.
const NOT_PINNED: &[&str] = &[TRACES, "lb_scratches", "lb_gc_keys"];
pub(crate) const TRACES: &str = "lb_traces";

/// The maps that the programs at the socket share with the others, and the pinned ones of their own.
const AT_SOCKETS: &[&str] = &[
    "lb_vip_ids",
    "lb_vips",
    "lb_addresses",
    "lb_tables",
    "lb_cursors",
    "lb_endpoints",
    "lb_active",
    "lb_uses",
    "lb_drops",
    "lb_affinity",
    SOCKETS,
    DATAGRAMS,
];
pub(crate) const SOCKETS: &str = "lb_sockets";
pub(crate) const DATAGRAMS: &str = "lb_datagrams";
/// Of these programs: what `bpf/socket.h` calls `host`.
const HOST: &str = ".rodata.host";

/// How many lines of libbpf's output about a failure are kept. The last lines of the verifier say what it refused.
const LOG_LINES_MAX: usize = 30;

/// The output of libbpf, which has one callback for the whole process.
static LOG: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Loads the programs. `flows_max` is in connections. `fresh` means that the directory did not exist before.
pub(crate) fn load(pins: &Pins, flows_max: u32, fresh: bool) -> Result<Object, Refusal> {
    hear();
    LOG.lock().unwrap_or_else(PoisonError::into_inner).clear();
    let loaded = open(pins, flows_max).and_then(OpenObject::load);
    loaded.map_err(|error| {
        if fresh {
            // Maps are pinned before programs are loaded. If the directory cannot be removed, it holds an empty table, which the next start
            // takes over.
            _ = remove_folder(&pins.folder);
        }
        refusal(&error)
    })
}

/// Loads the programs that run when a process connects. The maps that they share are pinned already. `group` is the number of the control group
/// in `lb_socket`.
pub(crate) fn load_at_sockets(pins: &Pins, group: u32) -> Result<Object, Refusal> {
    hear();
    let kern_sock = kern_sock();
    let load = |kern_sock, chooses_error| {
        LOG.lock().unwrap_or_else(PoisonError::into_inner).clear();
        open_at_sockets(pins, group, kern_sock, chooses_error).and_then(OpenObject::load)
    };
    // bpf_set_retval came to these programs after 5.15; a kernel without it refuses them. One that is locked down against its own
    // administrator refuses to read `sk_kern_sock` (kernel_lockdown(7), confidentiality).
    let mut loaded = load(kern_sock, true).or_else(|_| load(kern_sock, false));
    let mut is_known = kern_sock.is_some();
    if loaded.is_err() && is_known {
        is_known = false;
        loaded = load(None, true).or_else(|_| load(None, false));
    }
    if loaded.is_ok() && !is_known {
        tracing::warn!(
            "this kernel does not say which sockets are its own: TCP connections are balanced at the socket, but neither counted nor \
             listed, and processes see their endpoints"
        );
    }
    loaded.map_err(|error| refusal(&error))
}

fn open_at_sockets(
    pins: &Pins,
    group: u32,
    kern_sock: Option<(u32, u8)>,
    chooses_error: bool,
) -> libbpf_rs::Result<OpenObject> {
    let mut object = ObjectBuilder::default().name("steelyard")?.open_memory(SOCKET_OBJECT)?;
    let (byte, mask) = kern_sock.unwrap_or_default();
    let words = [group, byte].map(u32::to_ne_bytes).concat();
    let host = [&words[..], &[mask, u8::from(chooses_error), 0, 0]].concat();
    for mut map in object.maps_mut() {
        let name = map.name().to_string_lossy().into_owned();
        if AT_SOCKETS.contains(&name.as_str()) {
            map.set_pin_path(pins.map(&name))?;
        } else if name.ends_with(HOST) {
            map.set_initial_value(&host)?;
        } else if name.starts_with("lb_") && name != TRACES {
            // The headers declare the maps of all stages.
            map.set_autocreate(false)?;
        }
    }
    Ok(object)
}

/// Where this kernel keeps whether a socket is its own, `sk_kern_sock` of its `struct sock`: the byte, and the bit in it.
fn kern_sock() -> Option<(u32, u8)> {
    let btf = Btf::from_vmlinux().ok()?;
    let sock: Struct<'_> = btf.type_by_name("sock")?;
    let field = sock.iter().find(|member| member.name.is_some_and(|name| name == "sk_kern_sock"))?;
    let MemberAttr::BitField { size: 1, offset } = field.attr else { return None };
    // BTF counts bits from the least significant one of a little-endian word.
    let bit = if cfg!(target_endian = "little") { offset % 8 } else { 7 - offset % 8 };
    Some((offset / 8, 1 << bit))
}

/// Sends libbpf's output to us instead of standard error: much of it answers a query, such as whether there is a filter.
pub(crate) fn hear() {
    set_print(Some((PrintLevel::Info, |_, text| {
        let mut log = LOG.lock().unwrap_or_else(PoisonError::into_inner);
        log.extend(text.lines().map(str::to_owned));
        let surplus = log.len().saturating_sub(LOG_LINES_MAX);
        log.drain(..surplus);
    })));
}

fn open(pins: &Pins, flows_max: u32) -> libbpf_rs::Result<OpenObject> {
    let mut object = ObjectBuilder::default().name("steelyard")?.open_memory(OBJECT)?;
    // Two entries for each connection.
    let mut entries = flows_max.saturating_mul(2);
    if let Ok(kept) = MapHandle::from_pinned_path(pins.map("lb_flows")) {
        if kept.max_entries() != entries {
            tracing::warn!(
                kept = kept.max_entries() / 2,
                asked = flows_max,
                "the table of connections keeps its size; run `steelyard vip detach` to change it"
            );
        }
        entries = kept.max_entries();
    }
    for mut map in object.maps_mut() {
        let name = map.name().to_string_lossy().into_owned();
        if name == "lb_flows" {
            map.set_max_entries(entries)?;
        }
        if name.starts_with("lb_") && !NOT_PINNED.contains(&name.as_str()) {
            map.set_pin_path(pins.map(&name))?;
        }
    }
    for mut program in object.progs_mut() {
        // Ignored below 6.6, where there is no tcx.
        if program.name() == ENTRY || program.name() == HERE {
            program.set_attach_type(ProgramAttachType::TcxIngress);
        } else if program.name() == EXIT {
            program.set_attach_type(ProgramAttachType::TcxEgress);
        }
    }
    Ok(object)
}

fn refusal(error: &libbpf_rs::Error) -> Refusal {
    if error.kind() == ErrorKind::PermissionDenied
        && let Err(refusal) = host::check()
    {
        return refusal;
    }
    let log = LOG.lock().unwrap_or_else(PoisonError::into_inner).join("\n");
    Refusal::Rejected(format!("{error}\n{log}"))
}

/// The program with this name. The object has it, because it was built with it.
pub(crate) fn program<'o>(object: &'o Object, name: &str) -> Result<ProgramMut<'o>, Refusal> {
    let missing = || Refusal::kernel(format!("find the program {name}"), io::Error::from(io::ErrorKind::NotFound));
    object.progs_mut().find(|program| program.name() == name).ok_or_else(missing)
}

/// The memory of the object's maps in bytes, as the kernel charges it (before Linux 6.4: without what it adds to each entry). Counts only those
/// that `counts` accepts by name. What cannot be read counts as zero.
pub(crate) fn map_bytes(object: &Object, counts: impl Fn(&str) -> bool) -> u64 {
    let bytes = |map: libbpf_rs::Map<'_>| {
        if !counts(&map.name().to_string_lossy()) {
            return None;
        }
        let info = fs::read_to_string(format!("/proc/thread-self/fdinfo/{}", map.as_fd().as_raw_fd())).ok()?;
        info.lines().find_map(|line| line.strip_prefix("memlock:")?.trim().parse::<u64>().ok())
    };
    object.maps().filter_map(bytes).sum()
}

/// A handle on the map of this name.
pub(crate) fn map(object: &Object, name: &str) -> Result<MapHandle, Refusal> {
    let found = object.maps().find(|map| map.name() == name);
    let missing = || Refusal::kernel(format!("find the map {name}"), io::Error::from(io::ErrorKind::NotFound));
    let found = found.ok_or_else(missing)?;
    MapHandle::try_from(&found).map_err(|error| Refusal::kernel(format!("open the map {name}"), error))
}
