//! The OCI image: a layout in one tar archive, which podman, skopeo, containerd and new versions of Docker load. Docker is not needed to make
//! it.
//!
//! It consists of two layers (files that hardly ever change, and the program), the configuration, the manifest and the index. It contains no
//! shell and no other program, runs as an unprivileged user, and never writes to its root file system.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::inside::Inside;
use super::{Release, pack};
use crate::command::root;

/// The user and group, as in the chart: a number that no host assigns.
pub const USER: u32 = 65532;

/// The public certificate authorities, from the package `ca-certificates` of the host that builds.
const CERTIFICATES: &str = "/etc/ssl/certs/ca-certificates.crt";

const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

/// The folder with the files of an image that [`of_files`] makes, within the stage of that image.
pub const FILES: &str = "files";

/// A layer, as the manifest and the configuration describe it.
struct Layer {
    descriptor: Value,
    /// The digest of the archive before compression.
    diff_id: String,
    what: &'static str,
}

/// Makes the image of the static program. `ctr image import` names it `reference`.
pub fn build(release: &Release, program: &Path, inside: &Inside, reference: &str) -> Result<PathBuf, String> {
    let stage = release.stage("image")?;
    let layout = stage.join("layout");
    let layers = [base(release, &stage, &layout)?, app(release, &stage, &layout, program, inside)?];
    let archive = file(release);
    assemble(
        release,
        &layout,
        &layers,
        &configuration(release, &layers)?,
        Some(labels(release)?),
        reference,
        &archive,
    )?;
    Ok(archive)
}

/// Packs the files of a folder into an image with one layer, `NAME.tar` in the folder of the release. Tests use it for other people's programs.
pub fn of_files(release: &Release, name: &str, reference: &str, mut config: Value) -> Result<PathBuf, String> {
    let stage = release.directory.join("stage").join(name);
    let layout = stage.join("layout");
    let layers = [layer(release, &stage, &layout, FILES, "files of the host")?];
    config["architecture"] = release.architecture.debian.into();
    config["os"] = "linux".into();
    config["rootfs"] = rootfs(&layers);
    let archive = release.directory.join(format!("{name}.tar"));
    assemble(release, &layout, &layers, &config, None, reference, &archive)?;
    Ok(archive)
}

/// Packs a layout. `ctr image import` names the image `reference`.
fn assemble(
    release: &Release,
    layout: &Path,
    layers: &[Layer],
    config: &Value,
    annotations: Option<Value>,
    reference: &str,
    archive: &Path,
) -> Result<(), String> {
    let config = blob(layout, CONFIG, config)?;
    let mut manifest = json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": config,
        "layers": layers.iter().map(|layer| &layer.descriptor).collect::<Vec<_>>(),
    });
    if let Some(annotations) = annotations {
        manifest["annotations"] = annotations;
    }
    let mut descriptor = blob(layout, MANIFEST, &manifest)?;
    descriptor["platform"] = json!({"architecture": release.architecture.debian, "os": "linux"});
    descriptor["annotations"] = json!({
        "org.opencontainers.image.ref.name": reference.rsplit(':').next(),
        "io.containerd.image.name": reference,
    });
    let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": [descriptor]});
    pack::write(&layout.join("index.json"), index.to_string())?;
    pack::write(&layout.join("oci-layout"), json!({"imageLayoutVersion": "1.0.0"}).to_string())?;
    pack::tar(release, layout, &["oci-layout", "index.json", "blobs"], archive)
}

/// The file of the image.
pub fn file(release: &Release) -> PathBuf {
    release.file("-oci.tar")
}

/// Writes the layer that hardly ever changes: users, certificates, and the order of name lookups.
fn base(release: &Release, stage: &Path, layout: &Path) -> Result<Layer, String> {
    let files = stage.join("base");
    let write = |name: &str, text: String| pack::write(&files.join(name), text);
    write("etc/passwd", format!("steelyard:x:{USER}:{USER}:Steelyard:/:/sbin/nologin\n"))?;
    write("etc/group", format!("steelyard:x:{USER}:\n"))?;
    write("etc/nsswitch.conf", "hosts: files dns\n".to_owned())?;
    let certificates = Path::new(CERTIFICATES);
    // The source may be a link; the copy is a file.
    let text = pack::read(&certificates.canonicalize().map_err(|error| format!("{CERTIFICATES}: {error}"))?)?;
    write("etc/ssl/certs/ca-certificates.crt", text)?;
    layer(release, stage, layout, "base", "certificates")
}

fn app(release: &Release, stage: &Path, layout: &Path, program: &Path, inside: &Inside) -> Result<Layer, String> {
    let files = stage.join("app");
    pack::copy(program, &files.join("usr/bin/steelyard"))?;
    let documents = files.join("usr/share/doc/steelyard");
    pack::copy(&root().join("LICENSE"), &documents.join("LICENSE"))?;
    pack::copy(&inside.licences, &documents.join("third-party-licences.txt"))?;
    pack::copy(&inside.materials, &documents.join("steelyard.cdx.json"))?;
    layer(release, stage, layout, "app", "the program")
}

fn layer(release: &Release, stage: &Path, layout: &Path, name: &str, what: &'static str) -> Result<Layer, String> {
    let tar = stage.join(format!("{name}.tar"));
    pack::tar(release, &stage.join(name), &["."], &tar)?;
    let diff_id = pack::sha256(&tar)?;
    pack::gzip(release, &tar)?;
    let packed = stage.join(format!("{name}.tar.gz"));
    Ok(Layer { descriptor: place(layout, LAYER, &packed)?, diff_id, what })
}

/// The configuration: how the image is run, and its labels.
fn configuration(release: &Release, layers: &[Layer]) -> Result<Value, String> {
    let time = release.time()?;
    let history = |layer: &Layer| json!({"created": time, "created_by": "cargo xtask dist", "comment": layer.what});
    Ok(json!({
        "created": time,
        "architecture": release.architecture.debian,
        "os": "linux",
        "config": {
            "User": format!("{USER}:{USER}"),
            "Entrypoint": ["/usr/bin/steelyard"],
            "Cmd": ["serve", "-c", "/etc/steelyard/steelyard.yaml"],
            "Env": ["PATH=/usr/bin"],
            "WorkingDir": "/",
            "StopSignal": "SIGTERM",
            "Labels": labels(release)?,
        },
        "rootfs": rootfs(layers),
        "history": layers.iter().map(history).collect::<Vec<_>>(),
    }))
}

fn rootfs(layers: &[Layer]) -> Value {
    let sums: Vec<_> = layers.iter().map(|layer| format!("sha256:{}", layer.diff_id)).collect();
    json!({"type": "layers", "diff_ids": sums})
}

/// The labels that the OCI specification defines.
fn labels(release: &Release) -> Result<Value, String> {
    let mut labels = json!({
        "org.opencontainers.image.title": "steelyard",
        "org.opencontainers.image.description": "HTTP, gRPC, TLS, TCP and eBPF load balancer",
        "org.opencontainers.image.version": release.version,
        "org.opencontainers.image.licenses": "Apache-2.0",
        "org.opencontainers.image.created": release.time()?,
    });
    if let Some(revision) = &release.revision {
        labels["org.opencontainers.image.revision"] = revision.as_str().into();
    }
    Ok(labels)
}

/// Adds JSON to the layout, and returns its descriptor.
fn blob(layout: &Path, kind: &str, content: &Value) -> Result<Value, String> {
    let file = layout.with_file_name("blob.json");
    pack::write(&file, content.to_string())?;
    place(layout, kind, &file)
}

/// Adds a file to the layout under its digest, and returns its descriptor.
fn place(layout: &Path, kind: &str, file: &Path) -> Result<Value, String> {
    let sum = pack::sha256(file)?;
    pack::copy(file, &layout.join("blobs/sha256").join(&sum))?;
    Ok(json!({"mediaType": kind, "digest": format!("sha256:{sum}"), "size": pack::size(file)?}))
}

#[cfg(test)]
mod tests {
    use super::super::{ARCHITECTURES, fresh};
    use super::*;

    #[test]
    fn every_blob_is_where_its_descriptor_says() {
        let directory = std::env::temp_dir().join(format!("steelyard-image-{}", std::process::id()));
        fresh(&directory).unwrap();
        let release = Release {
            version: "1.2.3".into(),
            architecture: ARCHITECTURES[0],
            epoch: 1_700_000_000,
            revision: None,
            quick: true,
            directory: directory.clone(),
        };
        let (materials, licences) = (directory.join("m"), directory.join("l"));
        for (path, text) in [(&materials, "{}"), (&licences, "MIT"), (&directory.join("program"), "#!")] {
            pack::write(path, text).unwrap();
        }
        let archive =
            build(&release, &directory.join("program"), &Inside { materials, licences }, "localhost/steelyard:1.2.3")
                .unwrap();
        let layout = directory.join("stage/image/layout");
        let json_at = |path: &Path| serde_json::from_str::<Value>(&pack::read(path).unwrap()).unwrap();
        let blob_at = |descriptor: &Value| {
            let digest = descriptor["digest"].as_str().unwrap().strip_prefix("sha256:").unwrap();
            let path = layout.join("blobs/sha256").join(digest);
            assert_eq!(pack::sha256(&path).unwrap(), digest);
            assert_eq!(descriptor["size"], pack::size(&path).unwrap());
            path
        };
        let manifest = json_at(&blob_at(&json_at(&layout.join("index.json"))["manifests"][0]));
        let config = json_at(&blob_at(&manifest["config"]));
        assert_eq!(config["config"]["User"], "65532:65532");
        assert_eq!(manifest["layers"].as_array().unwrap().len(), 2);
        assert_eq!(config["rootfs"]["diff_ids"].as_array().unwrap().len(), 2);
        manifest["layers"].as_array().unwrap().iter().for_each(|layer| drop(blob_at(layer)));
        assert!(archive.ends_with("steelyard-1.2.3-linux-amd64-oci.tar"));
        std::fs::remove_dir_all(directory).unwrap();
    }
}
