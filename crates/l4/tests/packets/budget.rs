//! How much the verifier has to process, so that a compiler or a kernel that finds more paths still stays below the limit.

use std::io::Write;
use std::os::fd::{AsFd, AsRawFd};

use libbpf_rs::ObjectBuilder;

use super::plane::with_plane;

/// The kernel refuses a program above a million. The same source grew by half from one compiler to the next.
const INSTRUCTIONS_MAX: u32 = 50_000;

#[test]
fn each_program_is_far_below_the_verifiers_limit() {
    with_plane("each_program_is_far_below_the_verifiers_limit", |plane| {
        for name in ["lb_in", "lb_out", "lb_trace", "lb_gc"] {
            check(name, &plane.program_info(name));
        }
        let sockets = ObjectBuilder::default().open_memory(l4::SOCKET_OBJECT).unwrap().load().unwrap();
        for program in sockets.progs() {
            let fd = program.as_fd().as_raw_fd();
            check(
                &program.name().to_string_lossy(),
                &std::fs::read_to_string(format!("/proc/thread-self/fdinfo/{fd}")).unwrap(),
            );
        }
        assert_eq!(sockets.progs().count(), 13);
    });
}

/// `info` is what the kernel says about the program.
fn check(name: &str, info: &str) {
    let found = info.lines().find_map(|line| line.strip_prefix("verified_insns:")?.trim().parse().ok());
    let found: u32 = found.unwrap_or_else(|| panic!("{name}: {info}"));
    // Directly to standard error, so that it appears in a run that passes.
    _ = writeln!(std::io::stderr(), "{name}: the verifier processed {found} instructions ({})", env!("LB_CLANG"));
    assert!((1..=INSTRUCTIONS_MAX).contains(&found), "{name}: {found}");
}
