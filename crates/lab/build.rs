//! Lists the files of `lab/scenarios` and `lab/contenders`, so that a new file is enough to add one, and those that contenders are built from.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let lab = Path::new(&env::var("CARGO_MANIFEST_DIR").map_err(io::Error::other)?).join("../../lab");
    let mut code = String::new();
    for (list, folder) in [("SCENARIOS", "scenarios"), ("CONTENDERS", "contenders")] {
        let folder = lab.join(folder);
        // Watches the folder itself, so that a new file in it rebuilds the list.
        println!("cargo::rerun-if-changed={}", folder.display());
        let mut files = sorted(&folder)?;
        files.retain(|file| file.extension().is_some_and(|suffix| suffix == "toml"));
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
    code.push_str(&builds(&lab.join("contenders"))?);
    fs::write(Path::new(&env::var("OUT_DIR").map_err(io::Error::other)?).join("shipped.rs"), code)
}

/// The files of each folder in the folder of contenders.
fn builds(contenders: &Path) -> io::Result<String> {
    let mut code = "/// Folder, name and text of each file that a contender is built from.\npub(crate) const BUILDS: &[(&str, &str, &str)] = &[\n".to_owned();
    for folder in sorted(contenders)?.iter().filter(|path| path.is_dir()) {
        println!("cargo::rerun-if-changed={}", folder.display());
        for file in sorted(folder)? {
            let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let path = file.canonicalize()?;
            let _ = writeln!(code, "    ({:?}, {:?}, include_str!({path:?})),", name(folder), name(&file));
        }
    }
    code.push_str("];\n");
    Ok(code)
}

fn sorted(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths: Vec<_> =
        fs::read_dir(folder)?.map(|entry| entry.map(|entry| entry.path())).collect::<io::Result<_>>()?;
    paths.sort();
    Ok(paths)
}
