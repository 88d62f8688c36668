//! FRR's zebra and bgpd in a network namespace, from Debian's package `frr`. Dropping it kills both.

use std::path::Path;
use std::process::Command;

use testkit::netns::Netns;
use testkit::{PATIENCE, Program, until};

use super::Scratch;

/// Where Debian has the daemons.
const DAEMONS: &str = "/usr/lib/frr";

/// Whether FRR is installed.
pub fn is_installed() -> bool {
    Path::new(DAEMONS).join("bgpd").exists()
}

pub struct Frr {
    /// In the order in which they must end.
    _daemons: Vec<Program>,
    _folder: Scratch,
}

impl Frr {
    /// Runs with this configuration of bgpd.
    pub fn start(netns: &Netns, bgpd: &str) -> Self {
        let folder = Scratch::new();
        let path = folder.path().display().to_string();
        // They give up their privileges, and then write to this folder.
        netns.run(&["chown", "frr:frr", &path]).unwrap();
        folder.write("zebra.conf", "");
        folder.write("bgpd.conf", bgpd);
        let start = |daemon: &str| {
            let mut command = Command::new(Path::new(DAEMONS).join(daemon));
            let config = format!("{path}/{daemon}.conf");
            let (pid, zserv) = (format!("{path}/{daemon}.pid"), format!("{path}/zserv.api"));
            command.args(["-f", &config, "-i", &pid, "-z", &zserv, "--vty_socket", &path, "-P", "0"]);
            let program = netns.spawn(daemon, command.args(["-u", "frr", "-g", "frr", "--log", "stdout"])).unwrap();
            let vty = folder.path().join(format!("{daemon}.vty"));
            until(PATIENCE, || vty.exists().then_some(())).unwrap_or_else(|| panic!("{daemon} has not started"));
            program
        };
        let zebra = start("zebra");
        let bgpd = start("bgpd");
        Self { _folder: folder, _daemons: vec![bgpd, zebra] }
    }
}
