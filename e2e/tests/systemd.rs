//! The program as a service of a real systemd: start, reload, handover to a new binary, stop.
//!
//! systemd is process 1 of the test's own namespaces. It knows only the test's units (SYSTEMD_UNIT_PATH), sees the root file system
//! read-only, and has its own control group, so that it starts, mounts or cleans nothing of the host. The network is the test's. The test
//! needs root.
#![forbid(unsafe_code)]

mod support;

use std::fs;
use std::process::Command;

use support::{Load, Origin, Scratch, get, local, port, skip, status};
use testkit::{Exit, Finished, PATIENCE, Program, until};

/// Its path in Debian; it is not on the PATH.
const SYSTEMD: &str = "/lib/systemd/systemd";

/// $0: the name of the control group; $1: the folder of the test, /mnt/test inside; $2: the program, /mnt/steelyard inside.
const BOOT: &str = r#"
set -eu
mount -t cgroup2 none /mnt
mkdir /mnt/$0
echo $$ > /mnt/$0/cgroup.procs
umount /mnt
exec unshare --cgroup --mount --pid --ipc --uts --fork --kill-child sh -euc '
    mount -t tmpfs none /mnt
    mkdir /mnt/test /mnt/dev
    mount --bind "$1" /mnt/test
    touch /mnt/steelyard
    mount --bind "$2" /mnt/steelyard
    for device in null zero full random urandom tty; do
        touch /mnt/dev/$device
        mount --bind /dev/$device /mnt/dev/$device
    done
    mount --rbind /mnt/dev /dev
    for folder in tmp run var; do mount -t tmpfs none /$folder; done
    mount -o remount,bind,ro /
    mount -t proc proc /proc
    mount --bind /proc/sys /proc/sys
    mount -o remount,bind,ro /proc/sys
    mount -o remount,bind,ro /sys
    mount -t tmpfs none /sys/fs
    mkdir /sys/fs/cgroup
    mount -t cgroup2 none /sys/fs/cgroup
    exec env -i container=test PATH=/usr/bin:/usr/sbin:/bin:/sbin SYSTEMD_UNIT_PATH=/mnt/test/units \
        /lib/systemd/systemd --system --unit=test.target --log-target=console --show-status=0 --crash-reboot=0
' "$0" "$1" "$2"
"#;

/// Removes the control group after all its processes have ended.
const CLEAN: &str = "mount -t cgroup2 none /mnt && find /mnt/$0 -depth -type d -exec rmdir {} +";

const SERVICE: &str = "\
[Unit]
DefaultDependencies=no
[Service]
Type=notify
ExecStart=/mnt/steelyard serve -c /mnt/test/steelyard.yaml --workers 2
ExecReload=/mnt/steelyard reload --admin {admin}
WatchdogSec=10
Restart=on-failure
";

/// A running systemd.
struct Systemd {
    program: Option<Program>,
    /// The pid of process 1 on the host.
    pid: u32,
    group: String,
    scratch: Scratch,
}

impl Systemd {
    fn boot(units: &[(&str, &str)], config: &str) -> Self {
        let scratch = Scratch::new();
        fs::create_dir(scratch.path().join("units")).unwrap();
        for (name, text) in units.iter().chain(&[("test.target", "[Unit]\nDefaultDependencies=no\n")]) {
            scratch.write(&format!("units/{name}"), text);
        }
        scratch.write("steelyard.yaml", config);
        let group = format!("steelyard-test-{}", std::process::id());
        let mut unshare = Command::new("unshare");
        unshare.args(["--mount", "sh", "-c", BOOT, &group]).arg(scratch.path());
        unshare.arg(e2e::binary::steelyard().unwrap());
        let mut program = Program::spawn("systemd", &mut unshare).unwrap();
        // unshare(1) replaces the shell, whose other children exist for a moment.
        let children = format!("/proc/{0}/task/{0}/children", program.pid());
        let is_systemd =
            |pid: &u32| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm == "systemd\n");
        let child = || fs::read_to_string(&children).ok()?.trim().parse().ok().filter(is_systemd);
        let pid = program.until("process 1", child).unwrap();
        let mut systemd = Self { program: Some(program), pid, group, scratch };
        let mut last = None;
        let is_up =
            || (last.insert(systemd.systemctl(&["is-system-running"])).stdout.trim() == "running").then_some(());
        if until(PATIENCE, is_up).is_none() {
            panic!(
                "systemd does not come up: {last:?}\n{}",
                systemd.program.as_mut().map(Program::log).unwrap_or_default()
            );
        }
        systemd
    }

    fn systemctl(&self, words: &[&str]) -> Finished {
        let mut nsenter = Command::new("nsenter");
        nsenter.args(["--target", &self.pid.to_string(), "--mount", "--pid", "--cgroup", "systemctl"]);
        Program::run("systemctl", nsenter.args(words).env("SYSTEMD_COLORS", "0")).unwrap()
    }

    #[track_caller]
    fn succeeds(&mut self, words: &[&str]) {
        let finished = self.systemctl(words);
        if finished.exit != Exit::Code(0) {
            let log = self.program.as_mut().map(Program::log).unwrap_or_default();
            panic!("systemctl {}: {finished:?}\n{log}", words.join(" "));
        }
    }

    /// A property of the service.
    fn shows(&self, property: &str) -> String {
        self.systemctl(&["show", "--value", "--property", property, "steelyard"]).stdout.trim().to_owned()
    }
}

impl Drop for Systemd {
    fn drop(&mut self) {
        // Killing unshare(1) kills systemd, and systemd's end kills everything that it has started.
        self.program = None;
        let path = format!("/proc/{}", self.pid);
        until(PATIENCE, || (!fs::exists(&path).unwrap_or(false)).then_some(()));
        let clean = || {
            let finished =
                Program::run("clean", Command::new("unshare").args(["--mount", "sh", "-c", CLEAN, &self.group]));
            finished.ok().filter(|finished| finished.exit == Exit::Code(0))
        };
        until(PATIENCE, clean);
    }
}

#[test]
fn start_reload_handover_stop() {
    if !rustix::process::geteuid().is_root() || !fs::exists(SYSTEMD).unwrap() {
        return skip("start_reload_handover_stop", "needs root and systemd");
    }
    let origin = Origin::start("x");
    let (address, admin) = (local(port()), local(port()));
    let config = format!(
        "admin: {admin}\nwatch: false\nlisteners:\n  web: {{bind: '{address}', protocol: http, to: all}}\nclusters:\n  all: {{endpoints: ['{}']}}\n",
        origin.address
    );
    let service = SERVICE.replace("{admin}", &admin.to_string());
    let mut systemd = Systemd::boot(&[("steelyard.service", &service)], &config);

    // It returns when the process serves.
    systemd.succeeds(&["start", "steelyard"]);
    assert_eq!(get(address, "/").unwrap().status, 200);
    assert_eq!(systemd.shows("StatusText"), "serving generation 1, listeners: 1");

    systemd.succeeds(&["reload", "steelyard"]);
    assert_eq!(systemd.shows("StatusText"), "serving generation 2, listeners: 1");
    systemd.scratch.write("steelyard.yaml", &config.replace("to: all", "to: nothing"));
    let refused = systemd.systemctl(&["reload", "steelyard"]);
    assert_eq!(refused.exit, Exit::Code(1), "{refused:?}");
    assert!(systemd.shows("StatusText").contains("the last reload was refused"), "{}", systemd.shows("StatusText"));
    assert_eq!(systemd.shows("ActiveState"), "active");
    systemd.scratch.write("steelyard.yaml", &config);

    let old = systemd.shows("MainPID");
    let load = Load::start(address, "/", 8);
    origin.until_served(1_000);
    systemd.succeeds(&["kill", "--kill-whom=main", "--signal=USR2", "steelyard"]);
    let new = until(PATIENCE, || Some(systemd.shows("MainPID")).filter(|pid| *pid != old));
    let new = new.unwrap_or_else(|| panic!("{old} is still the main process"));
    origin.until_served(1_000);
    let total = load.stop();
    assert_eq!(total.failures, 0, "{total:?}");
    // The process sees its pid as systemd does, in their namespace.
    let serving = until(PATIENCE, || status(admin)).expect("the successor answers")["pid"].to_string();
    assert_eq!(
        (serving, systemd.shows("ActiveState").as_str(), systemd.shows("NRestarts").as_str()),
        (new, "active", "0")
    );
    // systemd listens to the successor: its status text is the one shown.
    systemd.succeeds(&["reload", "steelyard"]);
    assert_eq!(systemd.shows("StatusText"), "serving generation 2, listeners: 1");

    systemd.succeeds(&["stop", "steelyard"]);
    assert_eq!((systemd.shows("ActiveState").as_str(), systemd.shows("Result").as_str()), ("inactive", "success"));
    assert!(get(address, "/").is_none());
}
