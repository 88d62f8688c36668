//! The C cores of the kernel plane, for the target `packet`; instrumented, when the compiler is clang, like the Rust code.

fn main() {
    println!("cargo:rerun-if-changed=../crates/l4/bpf");
    println!("cargo:rerun-if-changed=../crates/l4/tests/native/core.c");
    cc::Build::new().file("../crates/l4/tests/native/core.c").flag("-Werror").compile("lb_core");
}
