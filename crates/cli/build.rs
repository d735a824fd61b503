//! Determines how the program is built, for `hq --version --verbose`. Nothing here can fail a
//! build: unknown values are left out, and `version.rs` reports them as unknown.

use std::env;
use std::path::Path;
use std::process::Command;

/// Where `git archive` writes the commit; see `.gitattributes`.
const ARCHIVED: &str = "commit.txt";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed={ARCHIVED}");
    embed_pages();
    place_for_good();
    pass_on("TARGET", variable("TARGET"));
    pass_on("PROFILE", profile());
    pass_on("OPT_LEVEL", variable("OPT_LEVEL"));
    pass_on("FEATURES", Some(features()));
    pass_on("COMPILER", compiler());
    // A debug build has no commit: otherwise each commit would recompile this package.
    if variable("PROFILE").as_deref() == Some("release") {
        pass_on("COMMIT", commit());
    }
}

/// Links debug builds at a fixed address. The loader corrects 190 000 addresses at each start of a
/// position-independent debug build. That takes a third of the time of each of the thousands of
/// short commands that tests run. Other builds keep their random address.
fn place_for_good() {
    let is_glibc = variable("TARGET").is_some_and(|target| target.ends_with("-linux-gnu"));
    if is_glibc && variable("PROFILE").as_deref() == Some("debug") {
        println!("cargo:rustc-link-arg-bins=-no-pie");
    }
}

/// The pages of the manual, relative to this package.
const PAGES: &str = "../../docs";
/// Folders below it with pages for users.
const FOLDERS: [&str; 3] = ["", "engines", "python"];
/// Pages for developers of the program.
const NOT_FOR_USERS: [&str; 8] = [
    "README",
    "architecture",
    "new-batch-system",
    "protocol",
    "python-bridge",
    "releasing",
    "spawn",
    "testing",
];

/// The pages change rarely: as small as possible.
const LEVEL: u8 = 10;

/// Lists the pages for `hq doc` as `(name, title, length)`, sorted by name. Compresses all texts as
/// one stream, because they share many words.
fn embed_pages() {
    println!("cargo:rerun-if-changed={PAGES}");
    println!("cargo:rerun-if-changed={PAGES}/../CHANGELOG.md");
    let package = variable("CARGO_MANIFEST_DIR").unwrap_or_default();
    let folder = Path::new(&package).join(PAGES);
    // `engines/README.md` is the page `engines`, `engines/toil.md` the page `engines-toil`.
    let mut pages: Vec<(String, String)> = Vec::new();
    for part in FOLDERS {
        let entries = std::fs::read_dir(folder.join(part)).into_iter().flatten();
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        for file in names {
            let name = match file.strip_suffix(".md") {
                None => continue,
                Some(name) if part.is_empty() => name.to_owned(),
                Some("README") => part.to_owned(),
                Some(name) => format!("{part}-{name}"),
            };
            if !NOT_FOR_USERS.contains(&name.as_str()) {
                pages.push((name, format!("./{part}/{file}")));
            }
        }
    }
    pages.sort();
    let files = pages.iter().map(|(name, file)| (&**name, file.clone()));
    let files = files.chain([("changelog", "../CHANGELOG.md".to_owned())]);
    let mut list = String::from("&[\n");
    let mut all = String::new();
    for (name, file) in files {
        // An unreadable page is left out, which a test notices.
        let text = std::fs::read_to_string(folder.join(file)).unwrap_or_default();
        let first = text.lines().next().unwrap_or_default();
        let title = first.trim_start_matches('#').trim();
        list.push_str(&format!("    ({name:?}, {title:?}, {}),\n", text.len()));
        all.push_str(&text);
    }
    list.push_str("]\n");
    let out = variable("OUT_DIR").unwrap_or_default();
    // Without the packed pages, the package fails to compile and names the missing file.
    let packed = miniz_oxide::deflate::compress_to_vec(all.as_bytes(), LEVEL);
    let _ = std::fs::write(Path::new(&out).join("pages.rs"), list);
    let _ = std::fs::write(Path::new(&out).join("pages.deflate"), packed);
}

fn variable(name: &str) -> Option<String> {
    env::var(name).ok()
}

/// Makes a value visible to `env!` in the package as `HQ_BUILT_…`.
fn pass_on(name: &str, value: Option<String>) {
    if let Some(value) = value {
        println!("cargo:rustc-env=HQ_BUILT_{name}={value}");
    }
}

/// Name of the profile. Cargo only says whether the profile is based on `debug` or `release`; the
/// build directory `…/PROFILE/build/…` contains the name.
fn profile() -> Option<String> {
    let directory = variable("OUT_DIR")?;
    let parts: Vec<&str> = directory.split('/').collect();
    let build = parts.iter().rposition(|part| *part == "build")?;
    let name = parts.get(build.checked_sub(1)?)?;
    Some((*name).to_owned())
}

/// Features of this package, sorted.
fn features() -> String {
    let mut names: Vec<String> = env::vars()
        .filter_map(|(name, _)| name.strip_prefix("CARGO_FEATURE_").map(str::to_lowercase))
        .filter(|name| name != "default")
        .collect();
    names.sort();
    names.join(" ")
}

fn compiler() -> Option<String> {
    let mut command = Command::new(env::var_os("RUSTC")?);
    output_of(command.arg("--version"))
}

/// The commit of the sources, from the repository or from the archive that was made from it.
fn commit() -> Option<String> {
    let package = variable("CARGO_MANIFEST_DIR")?;
    commit_of_repository(Path::new(&package)).or_else(|| {
        let archived = std::fs::read_to_string(ARCHIVED).ok()?;
        let commit = archived.trim();
        let is_hash = !commit.is_empty() && commit.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_hash.then(|| commit.to_owned())
    })
}

fn commit_of_repository(package: &Path) -> Option<String> {
    let workspace = package.parent()?.parent()?;
    let git = |args: &[&str]| {
        let mut command = Command::new("git");
        // Git hooks set these variables, possibly for another repository.
        command.env_remove("GIT_DIR").env_remove("GIT_WORK_TREE");
        output_of(command.arg("-C").arg(workspace).args(args))
    };
    // If the sources were unpacked inside another repository, its commit is not theirs.
    let top = git(&["rev-parse", "--show-toplevel"])?;
    if Path::new(&top).canonicalize().ok()? != workspace.canonicalize().ok()? {
        return None;
    }
    for name in ["HEAD", "logs/HEAD"] {
        let path = workspace.join(git(&["rev-parse", "--git-path", name])?);
        // Cargo would run this script at each build if the file did not exist.
        if path.exists() {
            println!("cargo:rerun-if-changed={}", path.display());
        }
    }
    for name in ["crates", "Cargo.lock", "Cargo.toml"] {
        println!("cargo:rerun-if-changed={}", workspace.join(name).display());
    }
    let commit = git(&["rev-parse", "HEAD"])?;
    let changes = git(&["status", "--porcelain", "--untracked-files=no"])?;
    Some(if changes.is_empty() {
        commit
    } else {
        format!("{commit} with local changes")
    })
}

/// Standard output of a command, if it succeeds.
fn output_of(command: &mut Command) -> Option<String> {
    let output = command.output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim_end().to_owned())
}
