//! Which program this is.

/// Version in every place where one is shown; clients and servers of different versions refuse each
/// other. `HQ_BUILD_VERSION` at build time overrides it.
pub(crate) const VERSION: &str = match option_env!("HQ_BUILD_VERSION") {
    Some(version) => version,
    None => concat!(env!("CARGO_PKG_VERSION"), "-dev"),
};

/// Release whose command line and output this program follows.
const CONTRACT: &str = "HyperQueue 0.26.2";

/// `hq --version`, with `--verbose` several lines.
pub(crate) fn text(is_verbose: bool) -> String {
    let mut text = format!("hq {VERSION}\n");
    if is_verbose {
        let profile = if cfg!(debug_assertions) {
            "debug"
        } else {
            "release"
        };
        let (arch, os) = (std::env::consts::ARCH, std::env::consts::OS);
        let libc = if cfg!(target_env = "musl") {
            "musl"
        } else {
            "gnu"
        };
        text.push_str(&format!(
            "target: {arch}-{os}-{libc}\nprofile: {profile}\nfollows: {CONTRACT}\n"
        ));
    }
    text
}
