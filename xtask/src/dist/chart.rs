//! The Helm chart: checked, rendered into the manifests of `deploy/`, and packed.
//!
//! `deploy/steelyard` is the chart, and `deploy/values` has the values of its renderings. The renderings of `gateway.yaml` and
//! `kernel-plane.yaml` are committed for users without Helm; those of `trial-*.yaml` are only for tests. Helm is a Go module that
//! `hack/helm` pins.

use std::fs;
use std::path::{Path, PathBuf};

use super::{Release, fresh, pack};
use crate::cargo::metadata;
use crate::command::{capture, command, root, run as run_command};
use crate::{go, kube};

const MODULE: &str = "hack/helm";
const PACKAGE: &str = "helm.sh/helm/v3/cmd/helm";

pub const CHART: &str = "deploy/steelyard";
const VALUES: &str = "deploy/values";

/// The committed renderings: each has the name of its file in `deploy/values`, and the namespace of its release.
const COMMITTED: &[(&str, &str)] = &[("gateway", "steelyard"), ("kernel-plane", "steelyard-kernel-plane")];

/// Values that the chart must refuse, each with a part of the message.
const REFUSED: &[(&[&str], &str)] = &[
    (&["podDisruptionBudget.maxUnavailable=null"], "are both null"),
    (&["service.ports[0].name=http-metrics", "service.ports[0].port=80"], "are taken by the metrics"),
    (&["service.ports[0].name=http", "service.ports[0].port=9902"], "are taken by the metrics"),
    (&["terminationGracePeriodSeconds=10"], "it must be at least 30"),
    (&["publishAddresses[0]=1"], "publishAddresses"),
    (&["gatewayClass.parameters=edge", "namespaces[0]=elsewhere"], "so that the controller may read them"),
    (&["no-such-value=1"], "no-such-value"),
    (&["component=kernel-plane"], "addressPools"),
    (&["component=kernel-plane", "kubeProxyReplacement=true"], "socketCgroup"),
];

/// Checks and packs the chart.
pub fn package(release: &Release) -> Result<PathBuf, String> {
    let helm = helm()?;
    check_versions(&release.version)?;
    run_command(&mut command(&helm, &["lint", "--strict", CHART]))?;
    check_committed(&helm)?;
    // Not with `helm package`, which writes the current time into the archive.
    let stage = release.stage("chart")?;
    copy_tree(&root().join(CHART), &stage.join("steelyard"))?;
    let tar = release.directory.join("chart.tar");
    pack::tar(release, &stage, &["steelyard"], &tar)?;
    pack::gzip(release, &tar)?;
    let packed = release.directory.join(format!("steelyard-{}.tgz", release.version));
    fs::rename(tar.with_extension("tar.gz"), &packed).map_err(|error| format!("{}: {error}", packed.display()))?;
    let shown = capture(&mut command(&helm, &["show", "chart", &packed.to_string_lossy()]))?;
    if shown.contains(&format!("version: {}\n", release.version)) {
        Ok(packed)
    } else {
        Err(format!("Helm does not find the version in {}:\n{shown}", packed.display()))
    }
}

/// Renders the values for tests into `directory`, for an API server to check. Also checks the committed renderings and the values that the chart
/// must refuse.
pub fn render_variants(directory: &Path) -> Result<(), String> {
    let helm = helm()?;
    check_committed(&helm)?;
    check_refused(&helm)?;
    fresh(directory)?;
    for name in names(&root().join(VALUES))? {
        if let Some(name) = name.strip_prefix("trial-").and_then(|name| name.strip_suffix(".yaml")) {
            let rendered = render(&helm, name, &format!("trial-{name}"), &format!("trial-{name}"))?;
            pack::write(&directory.join(format!("{name}.yaml")), rendered)?;
        }
    }
    Ok(())
}

/// Regenerates the committed renderings: `cargo xtask dist render`.
pub fn write_committed() -> Result<(), String> {
    let helm = helm()?;
    for (name, namespace) in COMMITTED {
        let path = committed(name);
        pack::write(&path, committed_text(&helm, name, namespace)?)?;
        println!("dist: wrote {}", path.display());
    }
    Ok(())
}

fn check_committed(helm: &str) -> Result<(), String> {
    for (name, namespace) in COMMITTED {
        if fs::read_to_string(committed(name)).unwrap_or_default() != committed_text(helm, name, namespace)? {
            return Err(format!(
                "deploy/{name}.yaml is not what the chart renders with {VALUES}/{name}.yaml: run `cargo xtask dist render`"
            ));
        }
    }
    Ok(())
}

fn check_refused(helm: &str) -> Result<(), String> {
    for (values, message) in REFUSED {
        let version = kube::VERSION.trim_start_matches('v');
        let mut template = command(helm, &["template", "steelyard", CHART, "--kube-version", version]);
        values.iter().for_each(|value| _ = template.args(["--set", value]));
        match capture(&mut template) {
            Err(why) if why.contains(message) => {}
            Err(why) => return Err(format!("{CHART}: {values:?}: the message lacks `{message}`: {why}")),
            Ok(_) => return Err(format!("{CHART}: {values:?} must be refused")),
        }
    }
    Ok(())
}

fn committed(name: &str) -> PathBuf {
    root().join(format!("deploy/{name}.yaml"))
}

fn committed_text(helm: &str, name: &str, namespace: &str) -> Result<String, String> {
    let rendered = render(helm, "steelyard", namespace, name)?;
    Ok(format!(
        "# Rendered from the chart deploy/steelyard with {VALUES}/{name}.yaml: change those, then run `cargo xtask dist render`.\n{rendered}"
    ))
}

fn render(helm: &str, release: &str, namespace: &str, values: &str) -> Result<String, String> {
    let values = format!("{VALUES}/{values}.yaml");
    let version = kube::VERSION.trim_start_matches('v');
    let words = ["template", release, CHART, "--namespace", namespace, "--values", &values, "--kube-version", version];
    capture(&mut command(helm, &words))
}

/// Checks that the chart, the program and its image have the same version.
fn check_versions(version: &str) -> Result<(), String> {
    let chart = pack::read(&root().join(CHART).join("Chart.yaml"))?;
    for key in ["version", "appVersion"] {
        if !chart.lines().any(|line| line == format!("{key}: {version}")) {
            return Err(format!(
                "{CHART}/Chart.yaml does not say `{key}: {version}`, which is the version in Cargo.toml"
            ));
        }
    }
    Ok(())
}

/// Builds Helm. This takes some minutes the first time and a second after that.
pub fn helm() -> Result<String, String> {
    let directory = metadata()?.target_directory.join("helm");
    run_command(go::build(MODULE, &directory)?.args(["-ldflags", "-s -w", PACKAGE]))?;
    Ok(directory.join("helm").to_string_lossy().into_owned())
}

fn copy_tree(from: &Path, to: &Path) -> Result<(), String> {
    for name in names(from)? {
        let (from, to) = (from.join(&name), to.join(&name));
        if from.is_dir() { copy_tree(&from, &to)? } else { pack::copy(&from, &to)? }
    }
    Ok(())
}

fn names(folder: &Path) -> Result<Vec<String>, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
    let entries = fs::read_dir(folder).map_err(failed)?;
    let names = entries.map(|entry| Ok(entry.map_err(failed)?.file_name().to_string_lossy().into_owned()));
    let mut names = names.collect::<Result<Vec<_>, String>>()?;
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chart_and_program_have_one_version() {
        check_versions(env!("CARGO_PKG_VERSION")).unwrap();
        assert!(check_versions("9.9.9").unwrap_err().contains("does not say `version: 9.9.9`"));
    }

    #[test]
    fn no_definition_of_another_project_is_in_the_chart() {
        let chart = root().join(CHART);
        for name in names(&chart.join("crds")).unwrap() {
            let text = fs::read_to_string(chart.join("crds").join(&name)).unwrap();
            assert!(
                text.contains("\n  group: steelyard.io\n"),
                "{name}: the kinds of the Gateway API are the cluster's own"
            );
        }
        for folder in ["", "templates"] {
            let folder = chart.join(folder);
            for name in names(&folder).unwrap() {
                let path = folder.join(&name);
                if path.is_file() {
                    assert!(!fs::read_to_string(&path).unwrap().contains("CustomResourceDefinition"), "{name}");
                }
            }
        }
    }
}
