//! Builds a container image with only the static program, without a daemon.
//!
//! The format is <https://github.com/opencontainers/image-spec>. It can be read by `podman load`,
//! `docker load`, `skopeo copy oci-archive:…` and `apptainer build hq.sif oci-archive:…`.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};

use super::build::Target;
use super::{Dist, Made};
use crate::shell::{command, output, run};

/// Builds the image as one file.
pub(super) fn image(dist: &Dist, target: &Target, binary: &Path) -> anyhow::Result<Made> {
    let work = dist.scratch("oci")?;
    let layer = work.join("layer.tar");
    make_layer(dist, binary, &work.join("root"), &layer)?;
    let layout = work.join("layout");
    let created = output(
        command("date")
            .args(["--utc", "--iso-8601=seconds"])
            .arg(format!("--date=@{}", dist.epoch)),
    )?;
    let created = created.trim();
    let layer = Blob::of_file(&layout, &layer)?;
    let config = Blob::of_json(
        &layout,
        &json!({
            "architecture": target.deb_arch,
            "os": "linux",
            "created": created,
            "config": {
                "Entrypoint": ["/usr/bin/hq"],
                "Env": ["PATH=/usr/bin:/bin", "HOME=/tmp"],
                "Labels": labels(dist, created),
                "WorkingDir": "/tmp",
            },
            "rootfs": { "type": "layers", "diff_ids": [layer.digest] },
            "history": [{ "created": created, "created_by": "cargo xtask dist" }],
        }),
    )?;
    let manifest = Blob::of_json(
        &layout,
        &json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": config.descriptor("application/vnd.oci.image.config.v1+json"),
            "layers": [layer.descriptor("application/vnd.oci.image.layer.v1.tar")],
        }),
    )?;
    let mut listed = manifest.descriptor("application/vnd.oci.image.manifest.v1+json");
    // The name after `podman load`. Without it, the name would be the version alone.
    let reference = format!("hq:{}", dist.version);
    listed["annotations"] = json!({ "org.opencontainers.image.ref.name": reference });
    write_json(
        &layout.join("index.json"),
        &json!({ "schemaVersion": 2, "manifests": [listed] }),
    )?;
    write_json(
        &layout.join("oci-layout"),
        &json!({ "imageLayoutVersion": "1.0.0" }),
    )?;
    let name = format!("hq-{}-oci.tar", dist.version);
    dist.tar(
        &layout,
        &["blobs", "index.json", "oci-layout"],
        &dist.out.join(&name),
    )?;
    Ok(Made::File(name))
}

/// Unpacks an image like a runtime would, and returns the command that it runs.
pub(super) fn unpack(dist: &Dist, name: &str) -> anyhow::Result<(PathBuf, String)> {
    let layout = dist.scratch("image")?;
    run(command("tar")
        .arg("-C")
        .arg(&layout)
        .arg("-xf")
        .arg(dist.out.join(name)))?;
    let index = read_json(&layout.join("index.json"))?;
    let manifest = read_json(&blob(&layout, &index["manifests"][0])?)?;
    let config = read_json(&blob(&layout, &manifest["config"])?)?;
    let layer = blob(&layout, &manifest["layers"][0])?;
    let root = dist.scratch("image-root")?;
    run(command("tar").arg("-C").arg(&root).arg("-xf").arg(layer))?;
    let program = config["config"]["Entrypoint"][0].as_str();
    let program = program.context("the image says what is run")?;
    Ok((root, program.to_owned()))
}

/// Returns the file of a descriptor if its content matches the digest in its name.
fn blob(layout: &Path, descriptor: &Value) -> anyhow::Result<PathBuf> {
    let digest = descriptor["digest"].as_str().unwrap_or_default();
    let sum = digest.strip_prefix("sha256:");
    let sum = sum.with_context(|| format!("expected a checksum in {descriptor}"))?;
    let file = layout.join("blobs/sha256").join(sum);
    let found = output(command("sha256sum").arg(&file))?;
    ensure!(found.starts_with(sum), "{} has other bytes", file.display());
    Ok(file)
}

fn read_json(path: &Path) -> anyhow::Result<Value> {
    let text = fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("parse {}", path.display()))
}

/// Creates a layer with the program and a directory for temporary files, which is also the home.
fn make_layer(dist: &Dist, binary: &Path, root: &Path, layer: &Path) -> anyhow::Result<()> {
    for (directory, mode) in [("usr/bin", 0o755), ("tmp", 0o1777)] {
        let path = root.join(directory);
        fs::create_dir_all(&path).with_context(|| format!("make {directory}"))?;
        let mode = fs::Permissions::from_mode(mode);
        fs::set_permissions(&path, mode).with_context(|| format!("rights of {directory}"))?;
    }
    let program = root.join("usr/bin/hq");
    fs::copy(binary, &program).context("copy the program")?;
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755))
        .context("rights of the program")?;
    dist.tar(root, &["tmp", "usr"], layer)
}

fn labels(dist: &Dist, created: &str) -> Value {
    json!({
        "org.opencontainers.image.title": "hq",
        "org.opencontainers.image.version": dist.version,
        "org.opencontainers.image.created": created,
        "org.opencontainers.image.licenses": "MIT",
    })
}

/// Content that is named by its checksum.
struct Blob {
    digest: String,
    size: u64,
}

impl Blob {
    fn of_file(layout: &Path, file: &Path) -> anyhow::Result<Self> {
        let sum = output(command("sha256sum").arg(file))?;
        let sum = sum.split(' ').next().context("sha256sum prints a sum")?;
        let blobs = layout.join("blobs/sha256");
        fs::create_dir_all(&blobs).context("make blobs")?;
        let size =
            fs::copy(file, blobs.join(sum)).with_context(|| format!("copy {}", file.display()))?;
        Ok(Self {
            digest: format!("sha256:{sum}"),
            size,
        })
    }

    fn of_json(layout: &Path, value: &Value) -> anyhow::Result<Self> {
        let file = layout.with_file_name("document.json");
        write_json(&file, value)?;
        Self::of_file(layout, &file)
    }

    fn descriptor(&self, media_type: &str) -> Value {
        json!({ "mediaType": media_type, "digest": self.digest, "size": self.size })
    }
}

fn write_json(path: &Path, value: &Value) -> anyhow::Result<()> {
    fs::write(path, value.to_string()).with_context(|| format!("write {}", path.display()))
}
