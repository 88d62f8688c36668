//! Plays every script of `e2e/scripts` against the built binary. The output is like libtest's, with one result per script.

use std::path::Path;
use std::process::ExitCode;

use e2e::run::{Named, find, run};

fn main() -> ExitCode {
    match scripts(&std::env::args().skip(1).collect::<Vec<_>>()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn scripts(args: &[String]) -> Result<ExitCode, String> {
    let all = find(&Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts"))?;
    let filters: Vec<&String> = args.iter().filter(|arg| !arg.starts_with('-')).collect();
    let wanted = |script: &Named| filters.is_empty() || filters.iter().any(|filter| script.name.contains(*filter));
    let chosen: Vec<Named> = all.iter().filter(|script| wanted(script)).cloned().collect();
    if args.iter().any(|arg| arg == "--list") {
        chosen.iter().for_each(|script| println!("{}: test", script.name));
        return Ok(ExitCode::SUCCESS);
    }
    let exe = e2e::binary::steelyard()?;
    println!("\nrunning {} scripts against {}", chosen.len(), exe.display());
    let mut failures = Vec::new();
    let failed = run(&chosen, &exe, |script, error| {
        println!("test {} ... {}", script.name, if error.is_none() { "ok" } else { "FAILED" });
        failures.extend(error.map(|error| format!("---- {} ----\n{error}\n", script.name)));
    });
    if !failures.is_empty() {
        println!("\nfailures:\n\n{}", failures.join("\n"));
    }
    let verdict = if failed == 0 { "ok" } else { "FAILED" };
    let (passed, left_out) = (chosen.len() - failed, all.len() - chosen.len());
    println!(
        "\ntest result: {verdict}. {passed} passed; {failed} failed; 0 ignored; 0 measured; {left_out} filtered out\n"
    );
    // A suite without scripts tests nothing, and must not look as if it did.
    Ok(if failed == 0 && !all.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
