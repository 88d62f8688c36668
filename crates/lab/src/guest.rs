//! `lab run --guest`: runs a scenario on a kernel of Debian, in a guest under qemu.
//!
//! For what the kernel of this host lacks, such as IPVS. The guest has the file system of this host, which it cannot change, so every contender that is installed
//! here takes part there. Only the directory of the run is written through. Where KVM cannot boot the kernel, qemu emulates the CPUs, twenty to
//! thirty times slower than the host's, and the report says that only ratios mean anything.
//!
//! Not its job: measuring. The lab that runs in the guest does that, and knows from `--in-guest` where it is.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::run::RunArgs;
use crate::{Verdict, environment, host};

/// What a guest needs, and the package of Debian with it.
pub(crate) const PROGRAMS: &[(&str, &str)] = &[
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("busybox", "busybox-static"),
    ("depmod", "kmod"),
    ("modprobe", "kmod"),
    ("cpio", "cpio"),
    ("xz", "xz-utils"),
    ("apt-get", "apt"),
    ("dpkg-deb", "dpkg"),
];

/// The modules without which the guest cannot reach its file system.
const MODULES: &[&str] = &["virtio_pci", "9p", "9pnet_virtio", "overlay"];

/// The first process of the guest, from its own archive.
const INIT: &str = include_str!("guest/init.sh");
/// What it runs then, on the file system of the host.
const SYSTEM: &str = include_str!("guest/system.sh");

/// Files that the guest leaves in the directory of the run.
const UP: &str = ".guest-is-up";
const ENDED: &str = ".guest-ended";

/// About one boot in fifteen panics: several threads of qemu's emulation lose a race with a kernel that patches its own code (`Oops: int3`).
const BOOTS_MAX: u32 = 4;

/// The time in which a guest must be up. Emulated ones took 7 to 22 s on two idle CPUs.
const BOOTS_WITHIN: Duration = Duration::from_secs(180);
/// KVM boots in seconds, or never: the nested kind of some clouds takes only kernels that are made for it.
const KVM_BOOTS_WITHIN: Duration = Duration::from_secs(30);

/// The interval at which the guest is looked at.
const LOOK: Duration = Duration::from_millis(200);

/// The guest has at most so many CPUs: emulated ones wait for each other.
const CPUS_MAX: usize = 4;
const MEMORY_MIB: u32 = 4096;

/// Runs `lab run` with the same arguments in a guest, whose kernel is kept in `cache`, and returns its verdict.
///
/// # Errors
/// If this host cannot have a guest (with what it lacks), if Debian's kernel cannot be fetched, or if the guest does not start or ends too early.
pub(crate) fn run(args: &RunArgs, itself: &Path, cache: &Path) -> io::Result<Verdict> {
    if !cfg!(target_arch = "x86_64") {
        return Err(io::Error::other(
            "lab run --guest boots a kernel for x86-64, and this host has another architecture",
        ));
    }
    if !host::is_root() {
        return Err(io::Error::other(
            "lab run --guest needs root: the guest reads the files of this host as its own root",
        ));
    }
    if let Some(why) = lacks() {
        return Err(io::Error::other(format!("lab run --guest {why}")));
    }
    let kernel = Kernel::get(&cache.join("guest"))?;
    let directory =
        args.directory(args.scenarios.first().filter(|_| args.scenarios.len() == 1).map_or("", String::as_str));
    fs::create_dir_all(&directory)?;
    let directory = fs::canonicalize(directory)?;
    let command = command(itself, std::env::args_os().skip(1))?;
    let archive = directory.join(".guest-archive");
    kernel.archive(&archive, &std::env::current_dir()?, &command)?;
    let ended = boot(&kernel, &archive, &directory);
    for file in [archive.as_path(), &directory.join(UP), &directory.join(ENDED)] {
        let _ = fs::remove_file(file);
    }
    ended.map(|code| if code == 0 { Verdict::Good } else { Verdict::Failed })
}

/// The programs that a guest needs and this host lacks, and how to get them.
pub(crate) fn lacks() -> Option<String> {
    let missing: Vec<_> = PROGRAMS.iter().filter(|(name, _)| host::find_program(name).is_none()).collect();
    let list = |of: fn(&(&'static str, &'static str)) -> &'static str, between: &str| {
        let mut names: Vec<&str> = missing.iter().map(|pair| of(pair)).collect();
        names.dedup();
        names.join(between)
    };
    let (names, packages) = (list(|pair| pair.0, ", "), list(|pair| pair.1, " "));
    (!missing.is_empty()).then(|| format!("needs {names}: apt-get install {packages}, or lab doctor --install"))
}

/// The words after `lab run` in the guest: those of this process, but for what concerns the guest and the directory.
fn command(itself: &Path, words: impl Iterator<Item = OsString>) -> io::Result<String> {
    let mut line = vec![quoted(&itself.display().to_string())];
    let mut is_directory = false;
    for word in words {
        let word = word.into_string().map_err(|word| io::Error::other(format!("{word:?} is not UTF-8")))?;
        if std::mem::take(&mut is_directory) || word == "--guest" || word.starts_with("--out=") {
            continue;
        }
        is_directory = word == "--out";
        if !is_directory {
            line.push(quoted(&word));
        }
    }
    line.push("--out /out --in-guest \"$accelerator\"".to_owned());
    Ok(line.join(" "))
}

/// A word of a shell.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// A kernel of Debian, unpacked and not installed.
struct Kernel {
    root: PathBuf,
    version: String,
}

impl Kernel {
    /// The newest generic kernel of this host's release, from `cache` or from its package.
    fn get(cache: &Path) -> io::Result<Self> {
        let root = cache.join("kernel");
        if let Some(version) = version_in(&root) {
            return Ok(Self { root, version });
        }
        let name = package()?;
        say(&format!("fetching {name} into {}", cache.display()));
        let partial = cache.join("partial");
        let _ = fs::remove_dir_all(&partial);
        fs::create_dir_all(&partial)?;
        // Without the sandbox, whose user may not be able to write there.
        output(
            Command::new("apt-get")
                .args(["--option", "APT::Sandbox::User=root", "download", &name])
                .current_dir(&partial),
        )?;
        let is_package = |path: &PathBuf| path.extension().is_some_and(|ending| ending == "deb");
        let file = fs::read_dir(&partial)?.flatten().map(|entry| entry.path()).find(is_package);
        let file =
            file.ok_or_else(|| io::Error::other(format!("apt-get has not left {name} in {}", partial.display())))?;
        output(Command::new("dpkg-deb").arg("--extract").arg(&file).arg(&partial))?;
        fs::remove_file(file)?;
        let version = version_in(&partial).ok_or_else(|| io::Error::other(format!("{name} contains no kernel")))?;
        output(Command::new("depmod").arg("-b").arg(&partial).arg(&version))?;
        fs::rename(&partial, &root)?;
        Ok(Self { root, version })
    }

    fn image(&self) -> PathBuf {
        self.root.join(format!("boot/vmlinuz-{}", self.version))
    }

    fn modules(&self) -> PathBuf {
        self.root.join("lib/modules").join(&self.version)
    }

    /// Writes the archive that the guest begins with.
    fn archive(&self, to: &Path, working_directory: &Path, command: &str) -> io::Result<()> {
        let folder = to.with_extension("folder");
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir(&folder)?;
        let at = |name: &str| folder.join(name);
        for name in ["bin", "modules", "proc", "sys", "dev", "host", "written", "merged"] {
            fs::create_dir(at(name))?;
        }
        let busybox = host::find_program("busybox").ok_or_else(|| io::Error::other("busybox is not there"))?;
        fs::copy(busybox, at("bin/busybox"))?;
        for (number, module) in self.modules_in_order()?.iter().enumerate() {
            let name = module.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let to = at(&format!("modules/{number:02}-{}", name.trim_end_matches(".xz")));
            if name.ends_with(".xz") {
                fs::write(to, output(Command::new("xz").arg("-dc").arg(module))?)?;
            } else {
                fs::copy(module, to)?;
            }
        }
        let folder_of = quoted(&working_directory.display().to_string());
        fs::write(at("system.sh"), SYSTEM.replace("@FOLDER@", &folder_of).replace("@COMMAND@", command))?;
        fs::write(at("init"), INIT.replace("@VERSION@", &self.version))?;
        let pack = "chmod 755 init && find . | cpio --quiet -o -H newc";
        fs::write(to, output(Command::new("sh").args(["-c", pack]).current_dir(&folder))?)?;
        fs::remove_dir_all(folder)
    }

    /// The files of [`MODULES`] and of those that they need, in the order in which they can be inserted.
    fn modules_in_order(&self) -> io::Result<Vec<PathBuf>> {
        let mut files: Vec<PathBuf> = Vec::new();
        for name in MODULES {
            let mut modprobe = Command::new("modprobe");
            modprobe.arg("-d").arg(&self.root).args(["-S", &self.version, "--show-depends", name]);
            let text = String::from_utf8_lossy(&output(&mut modprobe)?).into_owned();
            let inserted =
                text.lines().filter_map(|line| line.strip_prefix("insmod ")).map(|path| PathBuf::from(path.trim()));
            for file in inserted {
                if !files.contains(&file) {
                    files.push(file);
                }
            }
        }
        Ok(files)
    }
}

/// The version of the kernel that is unpacked in `root`.
fn version_in(root: &Path) -> Option<String> {
    let entries = fs::read_dir(root.join("boot")).ok()?.flatten();
    let mut names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names.find_map(|name| name.strip_prefix("vmlinuz-").map(str::to_owned))
}

/// The package of the newest generic kernel.
fn package() -> io::Result<String> {
    let known = || output(Command::new("apt-cache").args(["depends", "linux-image-amd64"]));
    let text = match known() {
        Ok(text) => text,
        // There are no lists of packages yet.
        Err(_) => {
            output(Command::new("apt-get").args(["--quiet", "--quiet", "update"]))?;
            known()?
        }
    };
    let text = String::from_utf8_lossy(&text).into_owned();
    dependency(&text)
        .ok_or_else(|| io::Error::other("the sources of this host have no linux-image-amd64: --guest needs Debian"))
}

/// What the package that always depends on the newest kernel depends on.
fn dependency(text: &str) -> Option<String> {
    let depends = text.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
    depends.into_iter().find(|name| name.starts_with("linux-image-")).map(str::to_owned)
}

/// The output of a program.
fn output(command: &mut Command) -> io::Result<Vec<u8>> {
    let name = command.get_program().to_string_lossy().into_owned();
    let result = command.stdin(Stdio::null()).output().map_err(|error| io::Error::other(format!("{name}: {error}")))?;
    if result.status.success() {
        return Ok(result.stdout);
    }
    Err(io::Error::other(format!(
        "{name} failed ({}): {}",
        result.status,
        String::from_utf8_lossy(&result.stderr).trim()
    )))
}

/// Boots until a guest is up, waits until it has ended, and returns the exit code of the lab in it.
fn boot(kernel: &Kernel, archive: &Path, directory: &Path) -> io::Result<i32> {
    let has_kvm = fs::File::options().read(true).write(true).open("/dev/kvm").is_ok();
    let emulated = std::iter::repeat_n(("tcg", BOOTS_WITHIN), BOOTS_MAX as usize);
    let boots = has_kvm.then_some(("kvm", KVM_BOOTS_WITHIN)).into_iter().chain(emulated);
    for (accelerator, within) in boots {
        for file in [UP, ENDED] {
            let _ = fs::remove_file(directory.join(file));
        }
        say(&format!("booting Linux {} in a guest ({accelerator})", kernel.version));
        let mut guest = qemu(kernel, archive, directory, accelerator).spawn()?;
        if !is_up(&mut guest, directory, within)? {
            let _ = guest.kill();
            guest.wait()?;
            say("it has not come up");
            continue;
        }
        guest.wait()?;
        let code = fs::read_to_string(directory.join(ENDED)).ok().and_then(|text| text.trim().parse().ok());
        return code.ok_or_else(|| {
            io::Error::other("the guest ended before the run did, as with a panic of its kernel (above): run it again")
        });
    }
    Err(io::Error::other(format!(
        "the guest's kernel has not come up in {BOOTS_MAX} boots (its messages are above): run it again, or update qemu"
    )))
}

fn is_up(guest: &mut Child, directory: &Path, within: Duration) -> io::Result<bool> {
    let begun = Instant::now();
    loop {
        if directory.join(UP).exists() {
            return Ok(true);
        }
        if guest.try_wait()?.is_some() || begun.elapsed() > within {
            return Ok(false);
        }
        thread::park_timeout(LOOK);
    }
}

fn qemu(kernel: &Kernel, archive: &Path, directory: &Path, accelerator: &str) -> Command {
    let mut qemu = Command::new("qemu-system-x86_64");
    let cpu = if accelerator == "kvm" { "host" } else { "max,la57=off" };
    let cpus = environment::online().len().clamp(1, CPUS_MAX).to_string();
    qemu.args(["-machine", "q35", "-accel", accelerator, "-cpu", cpu, "-smp", &cpus, "-m", &MEMORY_MIB.to_string()]);
    qemu.args(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-serial", "stdio"]);
    qemu.arg("-kernel").arg(kernel.image()).arg("-initrd").arg(archive);
    // no_timer_check: on a busy host the emulation is late with the first timer interrupt, and the kernel would panic.
    let words = "console=ttyS0 quiet loglevel=3 panic=-1 mitigations=off nokaslr no_timer_check";
    qemu.arg("-append").arg(format!("{words} accelerator={accelerator}"));
    let shares = [
        ("host", Path::new("/"), ",readonly=on,multidevs=remap"),
        ("modules", &kernel.modules(), ",readonly=on"),
        ("out", directory, ""),
    ];
    for (tag, path, options) in shares {
        // A comma in a path is written twice.
        let path = path.display().to_string().replace(',', ",,");
        qemu.arg("-fsdev").arg(format!("local,id={tag},path={path},security_model=none{options}"));
        qemu.arg("-device").arg(format!("virtio-9p-pci,fsdev={tag},mount_tag={tag}"));
    }
    qemu.stdin(Stdio::null());
    qemu
}

/// Progress, for whoever waits.
fn say(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guest_runs_the_same_command() {
        let check = |line: &str, expect: &str| {
            let words = line.split(' ').map(OsString::from);
            assert_eq!(command(Path::new("/x/steelyard"), words).unwrap(), expect, "{line}");
        };
        let end = "--out /out --in-guest \"$accelerator\"";
        check("lab run l4-matrix --guest --quick", &format!("'/x/steelyard' 'lab' 'run' 'l4-matrix' '--quick' {end}"));
        check("lab run --out /a --guest it's", &format!("'/x/steelyard' 'lab' 'run' 'it'\\''s' {end}"));
        check("lab run --out=/a x", &format!("'/x/steelyard' 'lab' 'run' 'x' {end}"));
    }

    #[test]
    fn the_newest_kernel_is_a_dependency() {
        let text = "linux-image-amd64\n  Depends: linux-image-6.1.0-50-amd64\n  Conflicts: x\n";
        assert_eq!(dependency(text).as_deref(), Some("linux-image-6.1.0-50-amd64"));
        assert_eq!(dependency("N: Unable to locate package linux-image-amd64"), None);
    }

    #[test]
    fn what_fails_says_so() {
        let error = output(Command::new("sh").args(["-c", "echo no >&2; exit 3"])).unwrap_err();
        assert_eq!(error.to_string(), "sh failed (exit status: 3): no");
    }

    #[test]
    fn scripts_have_all_their_places() {
        assert!(INIT.contains("@VERSION@") && SYSTEM.contains("@FOLDER@") && SYSTEM.contains("@COMMAND@"));
        assert!(SYSTEM.contains(UP) && SYSTEM.contains(ENDED), "the files that the host waits for");
    }
}
