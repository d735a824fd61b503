//! Compresses the pages of the web dashboard and the description of `/api/v1` with gzip, which
//! browsers accept. This makes both the program and transfers through a tunnel smaller. For
//! reports, the dashboard becomes one page that needs no other file.

use std::collections::BTreeMap;
use std::fmt::Write as _;
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
    fs::write(out.join("pages.rs"), list)?;
    fs::write(out.join("report.html.gz"), gzip(one_page()?.as_bytes()))
}

/// Only the file's own script runs, and nothing is loaded.
const POLICY: &str = "default-src 'none'; script-src 'nonce-@@NONCE@@'; style-src 'nonce-@@NONCE@@'; base-uri 'none'; \
                      form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

/// Returns the dashboard with its style and its modules, and a place for answers of `/api/v1`.
fn one_page() -> io::Result<String> {
    let mut script = String::new();
    add_module(
        Path::new("web/js/main.js"),
        &mut script,
        &mut BTreeMap::new(),
    )?;
    assert!(!script.contains("</script") && !script.contains("<!--"));
    let style = fs::read_to_string("web/app.css")?;
    let mut page = fs::read_to_string("web/index.html")?;
    for (linked, inline) in [
        (
            "<link rel=\"icon\" href=\"/app/icon.svg\">",
            format!("<meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\">"),
        ),
        (
            "<link rel=\"stylesheet\" href=\"/app/app.css\">",
            format!("<style nonce=\"@@NONCE@@\">\n{style}</style>"),
        ),
        (
            "<script type=\"module\" src=\"/app/js/main.js\"></script>",
            format!(
                "<script id=\"recorded\" type=\"application/json\">@@ANSWERS@@</script>\n<script type=\"module\" nonce=\"@@NONCE@@\">\n{script}</script>"
            ),
        ),
    ] {
        assert_eq!(page.matches(linked).count(), 1, "{linked}");
        page = page.replace(linked, &inline);
    }
    Ok(page)
}

/// Adds a module after the modules that it imports. Each becomes a function that returns what the
/// module exports. Returns the name of the result.
fn add_module(
    path: &Path,
    script: &mut String,
    known: &mut BTreeMap<PathBuf, Option<String>>,
) -> io::Result<String> {
    let path = path.canonicalize()?;
    if let Some(name) = known.get(&path) {
        let circle = || panic!("{} imports itself", path.display());
        return Ok(name.clone().unwrap_or_else(circle));
    }
    let name = format!("module{}", known.len());
    known.insert(path.clone(), None);
    let (mut body, mut exports) = (String::new(), Vec::new());
    for line in fs::read_to_string(&path)?.lines() {
        if let Some(import) = line.strip_prefix("import ") {
            let parts = import
                .strip_suffix("\";")
                .and_then(|import| import.split_once(" from \""));
            let (names, from) = parts.unwrap_or_else(|| panic!("{}: {line}", path.display()));
            let module = add_module(&path.with_file_name("").join(from), script, known)?;
            let names = names
                .strip_prefix("* as ")
                .map_or_else(|| names.replace(" as ", ": "), str::to_owned);
            let _ = writeln!(body, "const {names} = {module};");
        } else if let Some(export) = line.strip_prefix("export ") {
            let words = export.split(|c: char| !c.is_alphanumeric() && c != '_');
            let name = words
                .into_iter()
                .find(|word| !["async", "class", "const", "function"].contains(word));
            exports.push(name.unwrap_or_default().to_owned());
            let _ = writeln!(body, "{export}");
        } else {
            let _ = writeln!(body, "{line}");
        }
    }
    let _ = writeln!(
        script,
        "const {name} = await (async () => {{\n{body}return {{ {} }};\n}})();",
        exports.join(", ")
    );
    known.insert(path, Some(name.clone()));
    Ok(name)
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
