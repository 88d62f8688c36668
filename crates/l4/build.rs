//! Compiles the BPF programs, and derives Rust code from the C sources: the layouts (from the object's BTF) and the reasons of
//! `bpf/drop.h`.
//!
//! Without clang the crate still builds, and reports at run time that it has no kernel plane.

use std::env;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

fn main() {
    println!("cargo:rerun-if-changed=bpf");
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=CLANG");
    println!("cargo:rustc-check-cfg=cfg(kernel_plane)");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    reasons(&out);
    constants(&out);
    #[cfg(feature = "kernel-plane")]
    programs(&out);
}

/// The rows of `LB_DROP_REASONS`: `X(number, name, "text")`.
fn reasons(out: &Path) {
    let header = fs::read_to_string("bpf/drop.h").expect("bpf/drop.h is part of the crate");
    let mut rows = String::from("&[\n");
    let mut count = 0;
    for line in header.lines().filter_map(|line| line.trim().strip_prefix("X(")) {
        let row = line.trim_end_matches('\\').trim().strip_suffix(')').and_then(|row| {
            let (number, rest) = row.split_once(',')?;
            let (name, text) = rest.split_once(',')?;
            Some((number.trim().parse::<u8>().ok()?, name.trim(), text.trim()))
        });
        let Some((number, name, text)) = row.filter(|(_, _, text)| text.starts_with('"') && text.ends_with('"')) else {
            panic!("bpf/drop.h: not a row of X(number, name, \"text\"): {line}");
        };
        writeln!(rows, "    DropReason {{ number: {number}, name: {name:?}, text: {text} }},").expect("memory");
        count += 1;
    }
    assert!(count > 0, "bpf/drop.h has no rows");
    rows.push(']');
    fs::write(out.join("reasons.rs"), rows).expect("OUT_DIR can be written");
}

/// Every number that the headers define: `#define LB_NAME 12u` and `LB_NAME = 12,`.
fn constants(out: &Path) {
    let mut rows = String::new();
    for header in ["bpf/abi.h", "bpf/drop.h"] {
        let header = fs::read_to_string(header).expect("the headers are part of the crate");
        for line in header.lines().map(str::trim) {
            let pair = match line.strip_prefix("#define ") {
                Some(definition) => definition.split_once(' '),
                None => line.split_once(" = "),
            };
            let number = pair.and_then(|(name, value)| Some((name, number(value.split(['/', ',']).next()?.trim())?)));
            if let Some((name, number)) = number.filter(|(name, _)| name.starts_with("LB_") && !name.contains('(')) {
                writeln!(rows, "pub(crate) const {name}: u32 = {number};").expect("memory");
            }
        }
    }
    fs::write(out.join("constants.rs"), rows).expect("OUT_DIR can be written");
}

fn number(written: &str) -> Option<u32> {
    let digits = written.trim_end_matches('u');
    match digits.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16).ok(),
        None => digits.parse().ok(),
    }
}

/// The object (for `include_bytes!`, and for tests that load it themselves) and the skeleton, whose types are used.
#[cfg(feature = "kernel-plane")]
fn programs(out: &Path) {
    let clang = env::var("CLANG").unwrap_or_else(|_| "clang".to_owned());
    let version = match usable(&clang) {
        Ok(version) => version,
        Err(why) => {
            println!("cargo:warning=no kernel plane in this build: {why}; install clang {CLANG_MIN} or newer");
            return;
        }
    };
    for (name, variable) in OBJECTS {
        let object = out.join(format!("{name}.bpf.o"));
        let built = libbpf_cargo::SkeletonBuilder::new()
            .source(format!("bpf/{name}.bpf.c"))
            .obj(&object)
            .clang(&clang)
            .clang_args(arguments())
            .build_and_generate(out.join(format!("{name}.skel.rs")));
        if let Err(error) = built {
            panic!("the BPF programs do not compile: {error:?}");
        }
        println!("cargo:rustc-env={variable}={}", object.display());
    }
    layouts(out);
    native(out);
    println!("cargo:rustc-env=LB_CLANG={version}");
    println!("cargo:rustc-cfg=kernel_plane");
}

/// The sources in `bpf`, and the variable that names the object of each. The programs of the second are only loaded if they are wanted.
#[cfg(feature = "kernel-plane")]
const OBJECTS: [(&str, &str); 2] = [("lb", "LB_OBJECT"), ("socket", "LB_SOCKET_OBJECT")];

/// The oldest version with which the programs are tested.
#[cfg(feature = "kernel-plane")]
const CLANG_MIN: u32 = 14;

/// The version of the compiler.
#[cfg(feature = "kernel-plane")]
fn usable(clang: &str) -> Result<String, String> {
    let output = std::process::Command::new(clang).arg("--version").output();
    let output = output.map_err(|error| format!("{clang} does not run ({error})"))?;
    // "Debian clang version 14.0.6". A compiler with another format is accepted.
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let major = said.split("clang version ").nth(1).and_then(|version| version.split('.').next()?.parse::<u32>().ok());
    match major {
        Some(major) if major < CLANG_MIN => Err(format!("{clang} is version {major}")),
        _ => Ok(said.lines().next().unwrap_or_default().to_owned()),
    }
}

#[cfg(feature = "kernel-plane")]
fn arguments() -> Vec<String> {
    let arch = env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
    // Debian keeps the kernel's <asm/types.h> in a directory of the architecture, which clang only searches when it compiles for that
    // architecture.
    let multiarch = format!("/usr/include/{arch}-linux-gnu");
    // Version 3 of the instruction set: atomics that return a value (kernel 5.12).
    ["-mcpu=v3", "-O2", "-g", "-Wall", "-Werror", "-I", &multiarch].map(str::to_owned).to_vec()
}

/// The structs of `abi.h` as libbpf-cargo has read them from the objects' BTF. The rest of its skeletons is not used: objects are opened by
/// name, because an object that owns itself can be stored, sent and dropped.
#[cfg(feature = "kernel-plane")]
fn layouts(out: &Path) {
    let read = |(name, _)| fs::read_to_string(out.join(format!("{name}.skel.rs"))).expect("it was just made");
    let skeletons = OBJECTS.map(read).concat();
    let mut lines = skeletons.lines().map(str::trim);
    let mut text = String::new();
    let mut found = std::collections::BTreeSet::new();
    while let Some(line) = lines.next() {
        let Some(name) = line.strip_prefix("pub struct ").and_then(|rest| rest.strip_suffix(" {")) else { continue };
        if !name.starts_with("lb_") {
            continue;
        }
        let fields: Vec<&str> = lines.by_ref().take_while(|line| *line != "}").collect();
        // The declaration of a map, not a layout; or a layout that both objects have.
        if fields.iter().any(|field| field.contains("*mut")) || !found.insert(name) {
            continue;
        }
        let derives = "Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord";
        writeln!(text, "#[derive({derives})]\n#[repr(C)]\npub(crate) struct {name} {{").expect("memory");
        for field in fields {
            writeln!(text, "    {}", field.replacen("pub ", "pub(crate) ", 1)).expect("memory");
        }
        text.push_str("}\n");
    }
    assert!(!found.is_empty(), "libbpf-cargo has changed the form of its skeletons");
    fs::write(out.join("layouts.rs"), text).expect("OUT_DIR can be written");
}

/// Compiles the pure parts of the programs for this host. Only the tests link them.
#[cfg(feature = "kernel-plane")]
fn native(out: &Path) {
    println!("cargo:rerun-if-changed=tests/native");
    cc::Build::new().file("tests/native/core.c").cargo_metadata(false).compile("lb_core");
    println!("cargo:rustc-link-arg-tests={}", out.join("liblb_core.a").display());
}
