//! Lists the files of `lab/scenarios` and `lab/contenders`, so that a new file is enough to add one.

use std::fmt::Write;
use std::path::Path;
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let lab = Path::new(&env::var("CARGO_MANIFEST_DIR").map_err(io::Error::other)?).join("../../lab");
    let mut code = String::new();
    for (list, folder) in [("SCENARIOS", "scenarios"), ("CONTENDERS", "contenders")] {
        let folder = lab.join(folder);
        // Watches the folder itself, so that a new file in it rebuilds the list.
        println!("cargo::rerun-if-changed={}", folder.display());
        let mut files: Vec<_> =
            fs::read_dir(&folder)?.map(|entry| entry.map(|entry| entry.path())).collect::<io::Result<_>>()?;
        files.retain(|file| file.extension().is_some_and(|suffix| suffix == "toml"));
        files.sort();
        let _ = writeln!(
            code,
            "/// Name and text of each shipped file, by name.\npub(crate) const {list}: &[(&str, &str)] = &["
        );
        for file in &files {
            let name = file.file_stem().unwrap_or_default().to_string_lossy();
            let _ = writeln!(code, "    ({name:?}, include_str!({:?})),", file.canonicalize()?);
        }
        code.push_str("];\n");
    }
    fs::write(Path::new(&env::var("OUT_DIR").map_err(io::Error::other)?).join("shipped.rs"), code)
}
