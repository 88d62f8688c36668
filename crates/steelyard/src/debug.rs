//! `steelyard debug`: everything about an incident in one archive, and the requests of a route in the log.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::time::{SystemTime, UNIX_EPOCH};

use admin::{Client, ClientError, Status};
use flate2::Compression;
use flate2::write::GzEncoder;

use crate::cli::{BundleArgs, DebugCommand, DebugRouteArgs};
use crate::exit::Exit;

/// A block of a tar archive, in bytes.
const BLOCK: usize = 512;
/// Flows of the kernel plane in the archive.
const FLOWS: usize = 10_000;

/// Runs `steelyard debug`.
pub(crate) fn debug(command: &DebugCommand) -> Exit {
    let outcome = match command {
        DebugCommand::Bundle(args) => bundle(args),
        DebugCommand::Route(args) => route(args),
    };
    match outcome {
        Ok(text) => crate::print_line(&text),
        Err(why) => crate::fail(&why),
    }
}

fn route(DebugRouteArgs { route, duration, ask }: &DebugRouteArgs) -> Result<String, String> {
    let path = admin::debug_route_path(route, duration.as_secs());
    let answer = admin::post(&ask.admin.client()?, &path, "").map_err(|error| error.to_string())?;
    Ok(match (ask.json, duration.is_zero()) {
        (true, _) => String::from_utf8_lossy(&answer).trim_end().to_owned(),
        (false, true) => format!("requests of {route} are no longer logged"),
        (false, false) => format!("logging the requests of {route} for {} s, at most 100 a second", duration.as_secs()),
    })
}

fn bundle(BundleArgs { output, admin }: &BundleArgs) -> Result<String, String> {
    let client = admin.client()?;
    let unix_seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let name = format!("steelyard-{unix_seconds}");
    let path = output.clone().unwrap_or_else(|| format!("{name}.tar.gz").into());
    let files = collect(&client)?;
    // Nobody else may read it: even without secrets, it tells much.
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
    let written = file.and_then(|file| write(file, &name, &files, unix_seconds));
    written.map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    Ok(format!("{}: {}", path.display(), files.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ")))
}

/// The files of the archive. What the process cannot tell is there with the reason, so that one refusal does not cost the rest.
fn collect(client: &Client) -> Result<Vec<(String, Vec<u8>)>, String> {
    let status = admin::get(client, "/status").map_err(|error| error.to_string())?;
    let get = |path: &str| match admin::get(client, path) {
        Ok(answer) => answer,
        Err(ClientError::Refused { status, why }) => format!("refused with status {status}: {why}\n").into_bytes(),
        Err(error) => format!("no answer: {error}\n").into_bytes(),
    };
    let mut files = Vec::new();
    let mut add = |name: &str, content: Vec<u8>| files.push((name.to_owned(), content));
    if let Ok(parsed) = Status::parse(&status) {
        add("status.txt", admin::render_status_text(&parsed, false).into_bytes());
        let changes = parsed.about.changes.map_or_else(
            || "none since the start\n".to_owned(),
            |changes| {
                let more = if changes.more > 0 { format!("and {} more lines\n", changes.more) } else { String::new() };
                format!("generation {}\n{}\n{more}", changes.generation, changes.lines.join("\n"))
            },
        );
        add("changes.txt", changes.into_bytes());
    }
    add("status.json", status.clone());
    add("configuration.txt", get("/debug/configuration"));
    add("metrics.txt", get("/metrics"));
    add("history.json", get("/history"));
    add("log.txt", get("/debug/log"));
    add("kernel-plane.json", kernel_plane(&status));
    add("flows.json", get(&admin::flows_path(None, FLOWS)));
    add("versions.txt", versions(&status).into_bytes());
    Ok(files)
}

/// The tables of the kernel plane but for its flows: vips with their endpoints and drops, and what belongs to no vip.
fn kernel_plane(status: &[u8]) -> Vec<u8> {
    let status: serde_json::Value = serde_json::from_slice(status).unwrap_or_default();
    let tables = serde_json::json!({"kernel_plane": status["kernel_plane"], "vips": status["vips"]});
    format!("{tables:#}\n").into_bytes()
}

/// The versions of this program and of the host, and of the process that was asked.
fn versions(status: &[u8]) -> String {
    let host = rustix::system::uname();
    let kernel_plane = match l4::built() {
        Ok(_) => "built in".to_owned(),
        Err(refusal) => refusal.to_string(),
    };
    let process = Status::parse(status).map_or_else(|why| why, |status| status.steelyard);
    format!(
        "steelyard {process} (of the process)\nsteelyard {} (of the command)\nkernel {} {} {}\nkernel plane: {kernel_plane}\n",
        env!("CARGO_PKG_VERSION"),
        host.sysname().to_string_lossy(),
        host.release().to_string_lossy(),
        host.machine().to_string_lossy(),
    )
}

/// Writes a tar archive (POSIX.1-1988, ustar), compressed by gzip.
fn write(out: impl Write, folder: &str, files: &[(String, Vec<u8>)], unix_seconds: u64) -> io::Result<()> {
    let mut out = GzEncoder::new(out, Compression::default());
    for (name, content) in files {
        out.write_all(&head(&format!("{folder}/{name}"), content.len(), unix_seconds)?)?;
        out.write_all(content)?;
        let rest = content.len() % BLOCK;
        out.write_all(&[0; BLOCK][..if rest == 0 { 0 } else { BLOCK - rest }])?;
    }
    // Two blocks of zeros end an archive.
    out.write_all(&[0; 2 * BLOCK])?;
    out.finish()?.flush()
}

/// The head of a file: fields of fixed size, numbers in octal digits.
fn head(name: &str, size: usize, unix_seconds: u64) -> io::Result<[u8; BLOCK]> {
    let mut head = [0; BLOCK];
    let mut put = |at: usize, text: &str| {
        let field = head.get_mut(at..at + text.len());
        field.map(|field| field.copy_from_slice(text.as_bytes())).ok_or_else(|| io::Error::other("a name is too long"))
    };
    if name.len() > 100 || size >= 1 << 33 {
        return Err(io::Error::other("a name or a file is too large for the archive"));
    }
    put(0, name)?;
    put(100, "0000600\0")?;
    put(108, "0000000\0")?;
    put(116, "0000000\0")?;
    put(124, &format!("{size:011o}\0"))?;
    put(136, &format!("{unix_seconds:011o}\0"))?;
    put(148, "        ")?;
    put(156, "0")?;
    put(257, "ustar\x0000")?;
    let sum: u32 = head.iter().map(|byte| u32::from(*byte)).sum();
    let text = format!("{sum:06o}\0 ");
    head[148..156].copy_from_slice(text.as_bytes());
    Ok(head)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn tar_reads_what_is_written() {
        let path = std::env::temp_dir().join(format!("steelyard-bundle-{}.tar.gz", std::process::id()));
        let files = [
            ("a.txt".to_owned(), b"hello\n".to_vec()),
            ("b".to_owned(), vec![b'x'; BLOCK]),
            ("c".to_owned(), Vec::new()),
        ];
        write(std::fs::File::create(&path).unwrap(), "dir", &files, 1_795_651_200).unwrap();
        let tar = |words: &[&str]| {
            let output = Command::new("tar").args(words).arg("-f").arg(&path).output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            output.stdout
        };
        assert_eq!(String::from_utf8(tar(&["-tz"])).unwrap(), "dir/a.txt\ndir/b\ndir/c\n");
        let content = Command::new("tar").args(["-xzO", "-f"]).arg(&path).arg("dir/a.txt").output().unwrap().stdout;
        std::fs::remove_file(&path).unwrap();
        assert_eq!(content, b"hello\n");
        assert!(head(&"a".repeat(101), 1, 0).is_err());
    }
}
