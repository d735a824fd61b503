//! The version of this program, and how it was built. Contains no values that `build.rs` could not
//! determine.

/// The version as displayed everywhere. Clients and servers of different versions reject each
/// other. `HQ_BUILD_VERSION` at build time overrides it.
pub(crate) const VERSION: &str = match option_env!("HQ_BUILD_VERSION") {
    Some(version) => version,
    None => concat!(env!("CARGO_PKG_VERSION"), "-dev"),
};

/// The release whose command line and output this program follows.
const CONTRACT: &str = "HyperQueue 0.26.2";

/// Returns the text for `hq --version`. With `--verbose`, it has several lines.
pub(crate) fn text(is_verbose: bool) -> String {
    let mut text = format!("hq {VERSION}\n");
    if is_verbose {
        for (name, value) in details() {
            text.push_str(&format!("{name}: {value}\n"));
        }
    }
    text
}

/// Describes how the program was built.
fn details() -> [(&'static str, String); 8] {
    let commit = match option_env!("HQ_BUILT_COMMIT") {
        Some(commit) => commit,
        None if cfg!(debug_assertions) => "not recorded in debug builds",
        None => "unknown",
    };
    let compiler = option_env!("HQ_BUILT_COMPILER").unwrap_or("unknown");
    [
        ("target", target().to_owned()),
        ("libc", libc().to_owned()),
        ("profile", profile()),
        ("features", features()),
        ("allocator", "mimalloc".to_owned()),
        ("commit", commit.to_owned()),
        ("compiler", compiler.to_owned()),
        ("follows", CONTRACT.to_owned()),
    ]
}

/// Returns the target triple of the build.
pub(crate) fn target() -> &'static str {
    option_env!("HQ_BUILT_TARGET").unwrap_or("unknown")
}

/// Returns the C library and how it is linked. A static program can neither load libraries nor use
/// name service modules.
pub(crate) const fn libc() -> &'static str {
    match (
        cfg!(target_env = "musl"),
        cfg!(target_feature = "crt-static"),
    ) {
        (true, true) => "musl, static",
        (true, false) => "musl, dynamic",
        (false, true) => "glibc, static",
        (false, false) => "glibc, dynamic",
    }
}

fn profile() -> String {
    let name = option_env!("HQ_BUILT_PROFILE").unwrap_or("unknown");
    let level = option_env!("HQ_BUILT_OPT_LEVEL").unwrap_or("unknown");
    let assertions = if cfg!(debug_assertions) {
        ", with debug assertions"
    } else {
        ""
    };
    format!("{name} (opt-level {level}{assertions})")
}

fn features() -> String {
    match option_env!("HQ_BUILT_FEATURES") {
        None => "unknown".to_owned(),
        Some("") => "none to choose".to_owned(),
        Some(names) => names.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_build_is_known_without_any_preparation() {
        let text = text(true);
        for (name, value) in details() {
            assert!(text.contains(&format!("\n{name}: {value}\n")), "{text}");
            let may_be_unknown = name == "commit";
            assert!(may_be_unknown || value != "unknown", "{name}");
        }
        assert_eq!(
            super::text(false),
            format!("hq {VERSION}\n"),
            "the short form is one line"
        );
    }
}
