//! Parses the remaining option values: environment pairs, standard streams, crash limits, names,
//! weights.

use std::ffi::{OsStr, OsString};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use clap::builder::{PathBufValueParser, TypedValueParser};
use hq_core::quarantine::QuarantineMode;
use hq_core::resource::amount::UNITS_PER_WHOLE;
use hq_core::template::CrashLimit;

/// A value of `--env`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct EnvPair {
    /// The name, which is never empty.
    pub(crate) name: Box<[u8]>,
    /// The value. Empty if the user specified none.
    pub(crate) value: Box<[u8]>,
}

/// Where the user wants a standard stream to go.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum StdioArg {
    /// The stream is discarded.
    None,
    /// The stream goes into a file.
    File {
        /// The path. `None` means the default path.
        path: Option<Box<[u8]>>,
        /// Whether to delete the file if the task finishes.
        remove_if_finished: bool,
    },
}

/// Parses `PORT`, `localhost:PORT` or an address with a port.
pub(crate) fn parse_http_address(text: &str) -> Result<SocketAddr, String> {
    let local = |port| SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port);
    let port = text.strip_prefix("localhost:").unwrap_or(text);
    if let Ok(port) = port.parse() {
        return Ok(local(port));
    }
    text.parse().map_err(|_| {
        "expected PORT, or the address of an interface with a port such as 0.0.0.0:8080".to_owned()
    })
}

/// Parses the reaction to broken workers.
pub(crate) fn parse_quarantine(text: &str) -> Result<QuarantineMode, String> {
    let mut known = QuarantineMode::ALL.into_iter();
    let found = known.find(|(name, _)| *name == text);
    let found = found.map(|(_, mode)| mode);
    found.ok_or_else(|| "expected off, tell or act".to_owned())
}

/// Parses `KEY=VALUE` or `KEY`.
pub(crate) fn parse_env(text: &OsStr) -> Result<EnvPair, String> {
    let bytes = text.as_bytes();
    let (name, value) = match bytes.iter().position(|b| *b == b'=') {
        Some(at) => (&bytes[..at], &bytes[at + 1..]),
        None => (bytes, &b""[..]),
    };
    if name.is_empty() {
        return Err("expected KEY=VALUE or KEY, found an empty KEY".to_owned());
    }
    Ok(EnvPair {
        name: name.into(),
        value: value.into(),
    })
}

/// Parses a path and expands `~`. Shells do not expand it after `=`, in files or in variables, and
/// a directory with that name is unlikely.
pub(crate) fn path_parser() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().map(|path| expand_home(path.into_os_string()).into())
}

/// Expands `~` and `~/` at the beginning of a path like a shell. `./~` is not expanded.
pub(crate) fn expand_home(path: OsString) -> OsString {
    let home = || std::env::var_os("HOME").filter(|home| !home.is_empty());
    match path.as_bytes() {
        [b'~'] => home().unwrap_or(path),
        [b'~', b'/', rest @ ..] => match home() {
            Some(home) => Path::new(&home).join(OsStr::from_bytes(rest)).into(),
            None => path,
        },
        _ => path,
    }
}

/// Parses `none`, `PATH`, `PATH:rm-if-finished` or `:rm-if-finished`.
pub(crate) fn parse_stdio(text: &OsStr) -> Result<StdioArg, String> {
    let bytes = text.as_bytes();
    if bytes == b"none" {
        return Ok(StdioArg::None);
    }
    let (path, mode) = match bytes.iter().rposition(|b| *b == b':') {
        // A colon elsewhere in a path (`/data/run:3/out`) does not introduce a mode.
        Some(at) if looks_like_mode(&bytes[at + 1..]) => (&bytes[..at], Some(&bytes[at + 1..])),
        Some(_) | None => (bytes, None),
    };
    let remove_if_finished = match mode {
        None => false,
        Some(b"rm-if-finished") => true,
        Some(other) => {
            let other = String::from_utf8_lossy(other);
            return Err(format!(
                "Cannot parse stream: unknown mode `{other}`, expected `rm-if-finished`"
            ));
        }
    };
    if path.is_empty() && !remove_if_finished {
        return Err("Cannot parse stream: expected `none` or a path".to_owned());
    }
    let path = expand_home(OsStr::from_bytes(path).to_owned()).into_vec();
    let path = (!path.is_empty()).then(|| path.into());
    Ok(StdioArg::File {
        path,
        remove_if_finished,
    })
}

fn looks_like_mode(text: &[u8]) -> bool {
    text.iter().all(|b| b.is_ascii_alphabetic() || *b == b'-')
}

/// Parses `N`, `never-restart` or `unlimited`.
pub(crate) fn parse_crash_limit(text: &str) -> Result<CrashLimit, String> {
    match text {
        "never-restart" => Ok(CrashLimit::NeverRestart),
        "unlimited" => Ok(CrashLimit::Unlimited),
        number => match number.parse() {
            Ok(limit) => crash_limit_from_number(limit),
            Err(_) => Err("expected a positive number, `never-restart` or `unlimited`".to_owned()),
        },
    }
}

/// Creates a crash limit of at least one.
pub(crate) fn crash_limit_from_number(limit: u32) -> Result<CrashLimit, String> {
    if limit == 0 {
        let text = "Crash limit cannot be 0. Use `never-restart` or `unlimited` instead.";
        return Err(text.to_owned());
    }
    Ok(CrashLimit::Max(limit))
}

/// Parses a job name: one line without a tab.
pub(crate) fn parse_job_name(text: &str) -> Result<String, String> {
    if text.contains(['\n', '\t']) {
        return Err("name cannot have a newline or a tab".to_owned());
    }
    Ok(text.to_owned())
}

/// Parses a scheduling weight into units of 1/10 000.
pub(crate) fn parse_weight(text: &str) -> Result<u32, String> {
    let weight: f64 = text.parse().map_err(|_| "expected a number".to_owned())?;
    weight_units(weight)
}

/// Rounds a weight up to units of 1/10 000.
pub(crate) fn weight_units(weight: f64) -> Result<u32, String> {
    if weight.is_nan() || weight <= 0.0 {
        return Err("Resource weight has to be positive number".to_owned());
    }
    #[expect(clippy::cast_precision_loss, reason = "10 000 is exact")]
    let scaled = weight * UNITS_PER_WHOLE as f64;
    // Multiplication may miss a whole number by one ulp, and that must not add a unit.
    let near = scaled.round();
    let units = if (scaled - near).abs() < 1e-6 {
        near
    } else {
        scaled.ceil()
    };
    if units > f64::from(u32::MAX) {
        return Err("resource weight is too large".to_owned());
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "checked above"
    )]
    let units = units as u32;
    Ok(units.max(1))
}

/// Parses a share between 0 and 1.
pub(crate) fn parse_utilization(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
        Ok(_) => Err("Minimal utilization has to be in the interval [0.0, 1.0].".to_owned()),
        Err(_) => Err("expected a number between 0.0 and 1.0".to_owned()),
    }
}

/// The maximum length of the reason for a cancel, in characters.
const REASON_MAX: usize = 200;

/// Parses a short text that explains a cancel.
pub(crate) fn parse_cancel_reason(text: &str) -> Result<String, String> {
    let length = text.chars().count();
    if length > REASON_MAX {
        return Err(format!(
            "Cancel reason must be shorter than {REASON_MAX} you entered {length}."
        ));
    }
    Ok(text.to_owned())
}

/// Returns the bytes of a word of the command line.
pub(crate) fn into_bytes(text: OsString) -> Box<[u8]> {
    text.into_vec().into()
}

/// Parses the name or address of a machine, without resolving it.
pub(crate) fn parse_host(text: &str) -> Result<String, String> {
    if text.is_empty() || text.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return Err("expected a host name or an address, without spaces".to_owned());
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: Option<&str>, remove_if_finished: bool) -> StdioArg {
        StdioArg::File {
            path: path.map(|p| p.as_bytes().into()),
            remove_if_finished,
        }
    }

    #[test]
    fn reads_streams() {
        for (text, expected) in [
            ("none", StdioArg::None),
            ("out.txt", file(Some("out.txt"), false)),
            ("out:rm-if-finished", file(Some("out"), true)),
            (":rm-if-finished", file(None, true)),
            ("/data/run:3/out", file(Some("/data/run:3/out"), false)),
            ("a:b:rm-if-finished", file(Some("a:b"), true)),
        ] {
            assert_eq!(parse_stdio(OsStr::new(text)), Ok(expected), "{text}");
        }
        for text in ["", "a:", "a:remove", ":"] {
            let error = parse_stdio(OsStr::new(text)).expect_err(text);
            assert!(error.starts_with("Cannot parse stream: "), "{error}");
        }
    }

    #[test]
    fn reads_pairs() {
        let pair = |text: &str| parse_env(OsStr::new(text)).map(|p| (p.name, p.value));
        assert_eq!(pair("A=b=c"), Ok((b"A"[..].into(), b"b=c"[..].into())));
        assert_eq!(pair("A"), Ok((b"A"[..].into(), b""[..].into())));
        assert!(pair("=x").is_err());
    }

    #[test]
    fn reads_limits_weights_and_names() {
        assert_eq!(parse_crash_limit("3"), Ok(CrashLimit::Max(3)));
        assert_eq!(
            parse_crash_limit("never-restart"),
            Ok(CrashLimit::NeverRestart)
        );
        assert_eq!(parse_crash_limit("unlimited"), Ok(CrashLimit::Unlimited));
        assert_eq!(
            parse_crash_limit("0"),
            Err("Crash limit cannot be 0. Use `never-restart` or `unlimited` instead.".to_owned())
        );
        assert!(parse_crash_limit("-1").is_err());
        assert_eq!(parse_weight("1.5"), Ok(15_000));
        assert_eq!(parse_weight("0.00001"), Ok(1));
        assert_eq!(parse_weight("1.1"), Ok(11_000));
        for text in ["0", "-1", "NaN", "x", "1e30"] {
            assert!(parse_weight(text).is_err(), "{text}");
        }
        assert!(parse_job_name("a\tb").is_err());
        for (text, share) in [("0", 0.0), ("0.5", 0.5), ("1", 1.0)] {
            assert_eq!(parse_utilization(text), Ok(share));
        }
        for text in ["1.1", "-0.1", "NaN", "x"] {
            assert!(parse_utilization(text).is_err(), "{text}");
        }
        assert!(parse_cancel_reason(&"é".repeat(200)).is_ok());
        assert_eq!(
            parse_cancel_reason(&"x".repeat(201)),
            Err("Cancel reason must be shorter than 200 you entered 201.".to_owned())
        );
    }
}
