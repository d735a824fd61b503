//! Compresses the pages of the web dashboard and the description of `/api/v1` with gzip, which
//! browsers accept. This makes both the program and transfers through a tunnel smaller.

use std::io;
use std::path::{Path, PathBuf};
use std::{env, fs};

/// The files rarely change, so they are compressed as much as possible.
const LEVEL: u8 = 10;
/// The header of the compressed bytes: gzip, deflate, no name, no time, best compression, unknown
/// system. The same sources always give the same bytes.
const HEADER: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 2, 255];

fn main() -> io::Result<()> {
    println!("cargo:rerun-if-changed=build.rs");
    let api = "../../docs/openapi.yaml";
    for watched in ["web", api] {
        println!("cargo:rerun-if-changed={watched}");
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    fs::write(out.join("openapi.yaml.gz"), gzip(&fs::read(api)?))?;
    let mut files = Vec::new();
    find(Path::new("web"), &mut files)?;
    files.sort();
    let mut list = String::from("&[\n");
    for (number, path) in files.iter().enumerate() {
        fs::write(out.join(format!("{number}.gz")), gzip(&fs::read(path)?))?;
        let name = path.strip_prefix("web").unwrap_or(path);
        list.push_str(&format!(
            "    ({name:?}, Packed::new(include_bytes!(concat!(env!(\"OUT_DIR\"), \"/{number}.gz\")))),\n"
        ));
    }
    list.push_str("]\n");
    fs::write(out.join("pages.rs"), list)
}

/// Finds all files below a directory.
fn find(folder: &Path, found: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            find(&path, found)?;
        } else {
            found.push(path);
        }
    }
    Ok(())
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut packed = HEADER.to_vec();
    packed.extend(miniz_oxide::deflate::compress_to_vec(bytes, LEVEL));
    packed.extend(crc32fast::hash(bytes).to_le_bytes());
    // No page is as large as 4 GiB.
    packed.extend(u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_le_bytes());
    packed
}
