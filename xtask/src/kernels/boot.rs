//! Boots a kernel with an archive as its only file system, and reads what the guest says on its serial line.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::command::command;

/// The guest's first process ends with one of these.
const PASSED: &str = "guest: passed: ";
const FAILED: &str = "guest: FAILED: ";

/// So many boots. qemu's emulation loses a race with a kernel that patches its own code, in about one of twenty (`Oops: int3`).
const BOOTS_MAX: u32 = 3;

/// Seconds, for one that hangs. One that works takes a tenth of it.
const SECONDS_MAX: &str = "300";

/// Whether it went as `expect` says, and what the guest says of it.
pub fn boot(kernel: &Path, image: &Path, expect: &str) -> Result<String, String> {
    let mut last = String::new();
    for _ in 0..BOOTS_MAX {
        let output = qemu(kernel, image, expect).stdin(Stdio::null()).output();
        let output = output.map_err(|error| format!("qemu did not start: {error}"))?;
        last = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).replace('\r', "")).concat();
        if let Some(outcome) = outcome(&last) {
            return outcome;
        }
        println!("kernels: the guest ended before it had said how it went; booting it again");
    }
    Err(format!("of {BOOTS_MAX} boots none came to its end; the last said:\n{last}"))
}

/// `None`: the kernel panicked, or hung.
fn outcome(said: &str) -> Option<Result<String, String>> {
    if let Some((_, passed)) = said.split_once(PASSED) {
        return Some(Ok(passed.lines().next().unwrap_or_default().to_owned()));
    }
    said.split_once(FAILED).map(|(_, failed)| Err(failed.to_owned()))
}

fn qemu(kernel: &Path, image: &Path, expect: &str) -> Command {
    // One CPU, and one thread to emulate it: with more, more of these races are lost.
    let machine = ["-machine", "q35", "-accel", "tcg,thread=single", "-cpu", "max,la57=off", "-smp", "1", "-m", "3072"];
    let nothing_else = ["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-serial", "stdio"];
    let words = format!("console=ttyS0 quiet loglevel=3 panic=-1 mitigations=off nokaslr {expect}");
    let mut qemu = command("timeout", &[SECONDS_MAX, "qemu-system-x86_64"]);
    qemu.args(machine)
        .args(nothing_else)
        .arg("-kernel")
        .arg(kernel)
        .arg("-initrd")
        .arg(image)
        .args(["-append", &words]);
    qemu
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_guest_says() {
        assert_eq!(outcome("x\nguest: passed: by tc\nbye\n"), Some(Ok("by tc".to_owned())));
        assert_eq!(outcome("guest: FAILED: no answer\nlog\n"), Some(Err("no answer\nlog\n".to_owned())));
        assert_eq!(outcome("Oops: int3"), None);
    }
}
