//! The guest's file system: an archive that the kernel unpacks into memory
//! (Documentation/driver-api/early-userspace/buffer-format.rst).
//!
//! It contains busybox, iproute2, curl, bpftool, perl and the program under test with the libraries that they need, the
//! modules, and `guest.sh`, which does all of the guest's work.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::command::{capture, command, find_program, run as run_command};
use crate::kernels::fetch::Unpacked;

/// The first process of the guest.
const INIT: &str = include_str!("guest.sh");
/// The endpoints' and the client's side of an exchange of datagrams, for which busybox has no program.
const UDP_ECHO: &str = include_str!("udp_echo.pl");
const UDP_CLIENT: &str = include_str!("udp_client.pl");
/// The configuration that it serves.
const CONFIG: &str = include_str!("vips.yaml");

/// In this order: no module needs a later one. The tunnels are for endpoints, which take packets out of them.
const MODULES: &[&str] = &[
    "veth",
    "sch_ingress",
    "cls_bpf",
    "tunnel4",
    "ip_tunnel",
    "ipip",
    "tunnel6",
    "ip6_tunnel",
    "ip6_udp_tunnel",
    "udp_tunnel",
    "fou",
];

/// Creates the archive in `folder`.
pub fn build(folder: &Path, kernel: &Unpacked, steelyard: &Path, objects: &[PathBuf]) -> Result<PathBuf, String> {
    let stripped = folder.join("steelyard");
    // Debug symbols are nine tenths of it.
    run_command(command("strip", &["--strip-debug", "-o"]).arg(&stripped).arg(steelyard))?;
    let mut archive = Archive::default();
    archive.file("init", INIT.as_bytes(), true)?;
    for (name, text) in [("vips.yaml", CONFIG), ("udp_echo.pl", UDP_ECHO), ("udp_client.pl", UDP_CLIENT)] {
        archive.file(name, text.as_bytes(), false)?;
    }
    let program = |name: &str| find_program(name).ok_or_else(|| format!("{name} is not installed"));
    let mut libraries = BTreeSet::new();
    for (name, path) in [
        ("busybox", program("busybox")?),
        ("ip", program("ip")?),
        ("curl", program("curl")?),
        ("bpftool", bpftool()?),
        ("perl", program("perl")?),
        ("steelyard", stripped),
    ] {
        archive.copy(&format!("bin/{name}"), &path, true)?;
        libraries.extend(libraries_of(&path)?);
    }
    for library in libraries {
        archive.copy(library.trim_start_matches('/'), Path::new(&library), true)?;
    }
    for (number, name) in MODULES.iter().enumerate() {
        let module = find_module(&kernel.modules, name)?;
        let ending = module.extension().unwrap_or_default().to_string_lossy().into_owned();
        // The guest inserts them in the order of their names.
        archive.copy(&format!("modules/{number:02}-{name}.{ending}"), &module, false)?;
    }
    for object in objects {
        let name = object.file_name().unwrap_or_default().to_string_lossy().into_owned();
        archive.copy(&format!("objects/{name}"), object, false)?;
    }
    let path = folder.join("initrd");
    fs::write(&path, archive.end()?).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(path)
}

/// Debian's /usr/sbin/bpftool is the program itself, or a script that looks for the one of the running kernel.
fn bpftool() -> Result<PathBuf, String> {
    let found = find_program("bpftool").ok_or("bpftool is not installed")?;
    fs::canonicalize(&found).map_err(|error| format!("{}: {error}", found.display()))
}

/// The shared libraries of a program and its loader; none if the program is static.
fn libraries_of(program: &Path) -> Result<Vec<String>, String> {
    let Ok(said) = capture(command("ldd", &[]).arg(program)) else { return Ok(Vec::new()) };
    Ok(said
        .split_whitespace()
        .filter(|word| word.starts_with('/') && word.contains(".so"))
        .map(str::to_owned)
        .collect())
}

fn find_module(modules: &Path, name: &str) -> Result<PathBuf, String> {
    let below = ["kernel/drivers/net", "kernel/net/sched", "kernel/net/ipv4", "kernel/net/ipv6"];
    let mut folders: Vec<PathBuf> = below.iter().map(|below| modules.join(below)).collect();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?.flatten() {
            let file = entry.file_name().to_string_lossy().into_owned();
            if file == format!("{name}.ko") || file == format!("{name}.ko.xz") {
                return Ok(entry.path());
            }
        }
    }
    Err(format!("{} has no module {name}", modules.display()))
}

/// Writes files one after another, each with a header of thirteen hexadecimal numbers.
#[derive(Default)]
struct Archive {
    bytes: Vec<u8>,
    folders: BTreeSet<String>,
    entries: u32,
}

const FOLDER: u32 = 0o040_755;
const FILE: u32 = 0o100_644;
const PROGRAM: u32 = 0o100_755;

impl Archive {
    fn copy(&mut self, name: &str, from: &Path, runs: bool) -> Result<(), String> {
        let bytes = fs::read(from).map_err(|error| format!("{}: {error}", from.display()))?;
        self.file(name, &bytes, runs)
    }

    fn file(&mut self, name: &str, bytes: &[u8], runs: bool) -> Result<(), String> {
        for (place, _) in name.match_indices('/') {
            let folder = name.get(..place).unwrap_or_default();
            if self.folders.insert(folder.to_owned()) {
                self.entry(folder, FOLDER, &[])?;
            }
        }
        self.entry(name, if runs { PROGRAM } else { FILE }, bytes)
    }

    fn entry(&mut self, name: &str, mode: u32, bytes: &[u8]) -> Result<(), String> {
        self.entries += 1;
        let length = u32::try_from(bytes.len()).map_err(|_| format!("{name} is too large"))?;
        let name_length = name.len() as u32 + 1;
        let fields = [self.entries, mode, 0, 0, 1, 0, length, 0, 0, 0, 0, name_length, 0];
        let digits: String = fields.iter().map(|field| format!("{field:08x}")).collect();
        write!(self.bytes, "070701{digits}{name}\0").map_err(|error| error.to_string())?;
        self.align();
        self.bytes.extend_from_slice(bytes);
        self.align();
        Ok(())
    }

    fn align(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    fn end(mut self) -> Result<Vec<u8>, String> {
        self.entry("TRAILER!!!", 0, &[])?;
        Ok(self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_has_folders_before_files_at_multiples_of_four() {
        let mut archive = Archive::default();
        archive.file("a/b/c", b"hello", true).unwrap();
        archive.file("a/d", b"", false).unwrap();
        let bytes = archive.end().unwrap();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let places: Vec<usize> = text.match_indices("070701").map(|(place, _)| place).collect();
        assert_eq!(places.len(), 5, "a, a/b, a/b/c, a/d and the end: {text:?}");
        assert!(places.iter().all(|place| place % 4 == 0), "{places:?}");
        let name = |place: &usize| text[place + 110..].split('\0').next().unwrap().to_owned();
        assert_eq!(places.iter().map(name).collect::<Vec<_>>(), ["a", "a/b", "a/b/c", "a/d", "TRAILER!!!"]);
        assert!(text.contains("a/b/c\0hello"), "the header and this name end at a multiple of four: {text:?}");
    }
}
