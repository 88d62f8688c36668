//! The image as others see it: skopeo reads and checks it, crun runs what is in it.

use std::path::Path;

use serde_json::{Value, json};

use super::{IMAGE, clear, isolated};
use crate::command::{capture, command, run as run_command};
use crate::dist::{Release, fresh, image, pack};

/// What the gateway's pod may do, and what the kernel plane's may.
const KERNEL_PLANE: [&str; 4] = ["CAP_BPF", "CAP_NET_ADMIN", "CAP_PERFMON", "CAP_NET_RAW"];

const PROXY_FILE: &str = "
admin: 127.0.0.1:9900
listeners: {web: {bind: '127.0.0.1:8080', protocol: http, to: web}}
clusters: {web: {endpoints: ['127.0.0.1:9001']}}
";
const VIP_FILE: &str = "
admin: 127.0.0.1:9901
vips: {web: {address: '192.0.2.1:80/tcp', interfaces: [left], mode: nat, endpoints: ['198.51.100.2:80']}}
";

/// Loads and runs it, in namespaces of its own.
pub fn run(release: &Release) -> Result<(), String> {
    let directory = release.directory.join("image");
    fresh(&directory)?;
    let archive = format!("oci-archive:{}", image::file(release).display());
    let said = capture(&mut command("skopeo", &["inspect", "--config", &archive]))?;
    let config: Value = serde_json::from_str(&said).map_err(|error| format!("skopeo says {said}: {error}"))?;
    let config = &config["config"];
    let user = format!("{}:{}", image::USER, image::USER);
    if config["User"] != user {
        return Err(format!("the image's user is {} and not {user}", config["User"]));
    }
    // Checks every sum on the way.
    let copy = directory.join("copy");
    run_command(&mut command("skopeo", &["copy", "--quiet", &archive, &format!("dir:{}", copy.display())]))?;
    let rootfs = directory.join("rootfs");
    layers(&copy, &rootfs)?;
    pack::write(&directory.join("proxy.yaml"), PROXY_FILE)?;
    pack::write(&directory.join("vip.yaml"), VIP_FILE)?;
    for (name, bundle) in [
        ("proxy", bundle(config, &directory, "proxy.yaml", image::USER, &[])),
        ("vip", bundle(config, &directory, "vip.yaml", 0, &KERNEL_PLANE)),
    ] {
        pack::write(&directory.join(name).join("config.json"), bundle.to_string())?;
    }
    let script = directory.join("image.sh");
    pack::write(&script, IMAGE)?;
    let words = ["sh", "-eu", &script.to_string_lossy(), &directory.to_string_lossy(), &image::USER.to_string()];
    run_command(isolated().args(words))?;
    clear(&directory);
    Ok(())
}

fn layers(copy: &Path, rootfs: &Path) -> Result<(), String> {
    fresh(rootfs)?;
    let text = pack::read(&copy.join("manifest.json"))?;
    let manifest: Value = serde_json::from_str(&text).map_err(|error| format!("manifest.json: {error}"))?;
    for layer in manifest["layers"].as_array().into_iter().flatten() {
        let sum = layer["digest"].as_str().unwrap_or_default().trim_start_matches("sha256:");
        let (blob, rootfs) = (copy.join(sum), rootfs.to_string_lossy());
        run_command(&mut command(
            "tar",
            &["--extract", "--gzip", "--file", &blob.to_string_lossy(), "--directory", &rootfs],
        ))?;
    }
    Ok(())
}

/// What a runtime makes of an image: its command, and of privileges what the chart gives.
fn bundle(config: &Value, directory: &Path, file: &str, user: u32, capabilities: &[&str]) -> Value {
    let mut words = config["Entrypoint"].as_array().cloned().unwrap_or_default();
    words.extend(config["Cmd"].as_array().cloned().unwrap_or_default());
    let mut mounts = json!([
        {"destination": "/proc", "type": "proc", "source": "proc"},
        {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755", "size=64k"]},
        {"destination": "/etc/steelyard/steelyard.yaml", "type": "bind", "source": directory.join(file), "options": ["bind", "ro"]},
    ]);
    if !capabilities.is_empty() {
        let (sys, bpf) = (
            json!({"destination": "/sys", "type": "bind", "source": "/sys", "options": ["rbind", "ro"]}),
            json!({"destination": "/sys/fs/bpf", "type": "bind", "source": directory.join("bpf"), "options": ["bind", "rw"]}),
        );
        mounts.as_array_mut().into_iter().for_each(|mounts| mounts.extend([sys.clone(), bpf.clone()]));
    }
    json!({
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": user, "gid": user},
            "args": words,
            "env": config["Env"],
            "cwd": "/",
            "noNewPrivileges": true,
            "capabilities": {"bounding": capabilities, "permitted": capabilities, "effective": capabilities},
        },
        "root": {"path": directory.join("rootfs"), "readonly": true},
        "mounts": mounts,
        // The network is that of the script, which has one of its own.
        "linux": {"namespaces": [{"type": "mount"}, {"type": "pid"}, {"type": "ipc"}, {"type": "uts"}]},
    })
}
