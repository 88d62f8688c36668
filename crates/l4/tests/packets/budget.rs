//! How much the verifier has to process, so that a compiler or a kernel that finds more paths still stays below the limit.

use std::io::Write;

use super::plane::with_plane;

/// The kernel refuses a program above a million. The same source grew by half from one compiler to the next.
const INSTRUCTIONS_MAX: u32 = 50_000;

#[test]
fn each_program_is_far_below_the_verifiers_limit() {
    with_plane("each_program_is_far_below_the_verifiers_limit", |plane| {
        let version = env!("LB_CLANG");
        for name in ["lb_in", "lb_trace", "lb_gc"] {
            let info = plane.program_info(name);
            let found = info.lines().find_map(|line| line.strip_prefix("verified_insns:")?.trim().parse().ok());
            let found: u32 = found.unwrap_or_else(|| panic!("{name}: {info}"));
            // Directly to standard error, so that it appears in a run that passes.
            _ = writeln!(std::io::stderr(), "{name}: the verifier processed {found} instructions ({version})");
            assert!((1..=INSTRUCTIONS_MAX).contains(&found), "{name}: {found}");
        }
    });
}
