//! Boots a kernel with an archive as its only file system, and reads the guest's output on its serial line.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::command::command;

/// The first process of the guest ends with one of these lines.
const PASSED: &str = "guest: passed: ";
const FAILED: &str = "guest: FAILED: ";

/// The guest's kernel has reported a fault of its own, so the failure says nothing about Steelyard.
const FAULT: &str = "guest: kernel fault";

/// The maximum number of boots. About one in twenty panics: qemu's emulation loses a race with a kernel that patches
/// its own code (`Oops: int3`).
const BOOTS_MAX: u32 = 6;

/// The maximum number of boots that hang. Each takes its full time, so there are fewer of them.
const HANGS_MAX: u32 = 2;

/// The timeout in seconds of a guest that hangs. A working one took 200 on two CPUs with a load of twenty.
const SECONDS_MAX: &str = "600";

/// The exit code of timeout(1) for a program that it killed.
const TIMED_OUT: i32 = 124;

/// The number of lines of the serial output that an error shows.
const LINES_MAX: usize = 40;

/// Whether the outcome is as in `expect`, and the message of the guest.
pub fn boot(kernel: &Path, image: &Path, expect: &str) -> Result<String, String> {
    let mut last = String::new();
    let (mut boots, mut hangs) = (0, 0);
    while boots < BOOTS_MAX && hangs < HANGS_MAX {
        let output = qemu(kernel, image, expect).stdin(Stdio::null()).output();
        let output = output.map_err(|error| format!("qemu did not start: {error}"))?;
        boots += 1;
        hangs += u32::from(output.status.code() == Some(TIMED_OUT));
        last = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).replace('\r', "")).concat();
        if let Some(outcome) = outcome(&last) {
            return outcome;
        }
        println!("kernels: boot {boots} ended with a panic or a hang of the guest's kernel: {}", panic_of(&last));
    }
    Err(format!(
        "the guest's kernel panicked or hung in each of {boots} boots, so nothing is known about Steelyard on it: run it again, or \
         update qemu; the last boot said:\n{}",
        tail(&last)
    ))
}

/// The first message of the kernel about the fault.
fn panic_of(said: &str) -> &str {
    let is_fault =
        |line: &&str| ["Oops", "BUG:", "Kernel panic", "protection fault"].iter().any(|word| line.contains(word));
    said.lines().find(is_fault).unwrap_or("there was no output")
}

fn tail(said: &str) -> String {
    let lines: Vec<&str> = said.lines().collect();
    lines[lines.len().saturating_sub(LINES_MAX)..].join("\n")
}

/// Returns `None` if the kernel panicked, hung, or reported a fault of its own.
fn outcome(said: &str) -> Option<Result<String, String>> {
    if said.contains(FAULT) {
        return None;
    }
    if let Some((_, passed)) = said.split_once(PASSED) {
        return Some(Ok(passed.lines().next().unwrap_or_default().to_owned()));
    }
    said.split_once(FAILED).map(|(_, failed)| Err(failed.to_owned()))
}

fn qemu(kernel: &Path, image: &Path, expect: &str) -> Command {
    // One CPU and one emulation thread: with more, these races are lost more often.
    let machine = ["-machine", "q35", "-accel", "tcg,thread=single", "-cpu", "max,la57=off", "-smp", "1", "-m", "3072"];
    let nothing_else = ["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-serial", "stdio"];
    // no_timer_check: on a loaded host, the emulation delivers no timer interrupt within the time that the kernel waits for one during its
    // start, and the kernel panics ("IO-APIC + timer doesn't work").
    let words = format!("console=ttyS0 quiet loglevel=3 panic=-1 mitigations=off nokaslr no_timer_check {expect}");
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
        assert_eq!(outcome("guest: kernel fault: no answer\nOops: int3"), None);
    }

    #[test]
    fn what_the_kernel_says_of_a_panic() {
        assert_eq!(panic_of("hello\n[1.0] Oops: int3\n[1.1] Kernel panic"), "[1.0] Oops: int3");
        assert_eq!(panic_of("hello"), "there was no output");
        let many: Vec<String> = (0..100).map(|line| line.to_string()).collect();
        assert!(tail(&many.join("\n")).starts_with("60\n"));
        assert_eq!(tail("one"), "one");
    }
}
