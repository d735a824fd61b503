//! Announcements of relays in the directory of the server's instance.
//!
//! ```text
//! <server-dir>/001/relays/<host>-<pid>-<random>.json      mode 0600, directory 0700
//! ```
//!
//! An announcement is an unauthenticated hint: a worker that follows it performs a handshake. The
//! clocks of nodes may differ, so the age of an announcement is measured from the newest one, by
//! the clock of the file system. Relays remove announcements that are much older or much newer than
//! their own latest one.

use std::fmt;
use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use super::file::open_to_read;
use crate::key::random_bytes;

/// The name of the directory that contains the announcements.
pub const RELAYS_DIR_NAME: &str = "relays";

/// How often a relay renews its announcement.
pub const RENEWAL: Duration = Duration::from_secs(20);

/// How much older than the newest announcement one must be to count as stale, because its relay is
/// gone. This is several renewals, because a file system may hang for a while.
const STALE_AGE: Duration = Duration::from_secs(120);

/// The maximum number of announcements that are read, newest first, and of addresses in each.
const ANNOUNCED_MAX: usize = 64;
const ADDRESSES_MAX: usize = 8;

/// The maximum number of files that are examined, so that foreign files cannot cost a minute.
const FILES_MAX: usize = 4_096;

/// The maximum size of an announcement in bytes.
const FILE_MAX: u64 = 8 << 10;

/// The maximum length of a host name in bytes, which exceeds the limit of name services.
const HOST_MAX: usize = 255;

/// The suffix of an announcement. A file that is being written has another suffix.
const ENDING: &str = ".json";

/// The address where a relay listens.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RelayAddress {
    /// The host name or address.
    pub host: String,
    /// The port.
    pub port: u16,
}

impl fmt::Display for RelayAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// A text that is not `HOST:PORT`.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "expected HOST:PORT, such as `node1:7000`, `10.0.0.7:7000` or `[fd00::7]:7000`, found `{0}`"
)]
pub struct RelayAddressError(String);

impl FromStr for RelayAddress {
    type Err = RelayAddressError;

    fn from_str(text: &str) -> Result<Self, RelayAddressError> {
        let error = || RelayAddressError(text.chars().take(HOST_MAX).collect());
        let (host, port) = text.rsplit_once(':').ok_or_else(error)?;
        let bracketed = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'));
        let is_plain = !host.contains([':', '[', ']', ' ', '/']);
        let host = bracketed.or(is_plain.then_some(host)).ok_or_else(error)?;
        let port: u16 = port.parse().map_err(|_| error())?;
        if host.is_empty() || host.len() > HOST_MAX || port == 0 {
            return Err(error());
        }
        Ok(Self {
            host: host.to_owned(),
            port,
        })
    }
}

#[derive(Serialize, Deserialize)]
struct FileJson {
    addresses: Vec<String>,
}

/// The announcement of one relay.
#[derive(Debug)]
pub struct Announcement {
    file: String,
    /// The directory that currently contains the announcement.
    folder: Option<PathBuf>,
}

impl Announcement {
    /// Creates an announcement without writing it. `hostname` is for users who look into the
    /// directory.
    ///
    /// # Errors
    ///
    /// Returns an error if the system cannot provide random numbers.
    pub fn new(hostname: &str) -> io::Result<Self> {
        let mut random = [0; 4];
        random_bytes(&mut random)?;
        let host: String = hostname
            .chars()
            .take(64)
            .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
            .collect();
        let (pid, random) = (std::process::id(), u32::from_le_bytes(random));
        Ok(Self {
            file: format!("{host}-{pid}-{random:08x}{ENDING}"),
            folder: None,
        })
    }

    /// Writes the announcement atomically to the directory of an instance. Removes it from the
    /// directory of an earlier instance, and removes announcements of dead relays from this one.
    /// Must be called every [`RENEWAL`].
    ///
    /// # Errors
    ///
    /// Returns an error if the announcement cannot be written.
    pub fn renew(&mut self, instance: &Path, addresses: &[RelayAddress]) -> io::Result<()> {
        let folder = instance.join(RELAYS_DIR_NAME);
        if self.folder.as_ref().is_some_and(|other| *other != folder) {
            self.withdraw();
        }
        match hq_private::create_dir(&folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            Ok(()) | Err(_) => {}
        }
        let addresses = addresses.iter().take(ADDRESSES_MAX);
        let json = FileJson {
            addresses: addresses.map(ToString::to_string).collect(),
        };
        let json = serde_json::to_string(&json).map_err(io::Error::other)? + "\n";
        let fresh = folder.join(format!(".{}.new", self.file));
        hq_private::write_file(&fresh, json.as_bytes())?;
        fs::rename(&fresh, folder.join(&self.file))?;
        let written = fs::metadata(folder.join(&self.file))?.modified()?;
        for (path, time) in files(&folder) {
            // Also removes announcements from the future. If the clock of the file system was set
            // back, all others would seem old compared with them.
            if age(written, time).max(age(time, written)) >= STALE_AGE {
                // Another relay may have removed it already.
                let _ = fs::remove_file(path);
            }
        }
        self.folder = Some(folder);
        Ok(())
    }

    /// Removes the announcement. If that fails, it expires.
    pub fn withdraw(&mut self) {
        if let Some(folder) = self.folder.take() {
            let _ = fs::remove_file(folder.join(&self.file));
        }
    }
}

/// Returns the files of a directory with their modification times, newest first.
fn files(folder: &Path) -> Vec<(PathBuf, SystemTime)> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Vec::new();
    };
    let mut found: Vec<(PathBuf, SystemTime)> = entries
        .take(FILES_MAX)
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let changed = entry.metadata().ok().filter(fs::Metadata::is_file)?;
            Some((entry.path(), changed.modified().ok()?))
        })
        .collect();
    found.sort_by(|(_, first), (_, second)| second.cmp(first));
    found
}

/// Returns the time from `time` to `now`, or zero if `time` is later.
fn age(now: SystemTime, time: SystemTime) -> Duration {
    now.duration_since(time).unwrap_or_default()
}

/// Returns the addresses of each relay announced in the directory of an instance, latest first.
/// Skips unreadable announcements.
#[must_use]
pub fn announced_relays(instance: &Path) -> Vec<Vec<RelayAddress>> {
    let found = files(&instance.join(RELAYS_DIR_NAME));
    let newest = found.first().map(|(_, time)| *time);
    found
        .into_iter()
        .take_while(|(_, time)| newest.is_none_or(|newest| age(newest, *time) < STALE_AGE))
        .filter(|(path, _)| path.to_string_lossy().ends_with(ENDING))
        .take(ANNOUNCED_MAX)
        .filter_map(|(path, _)| read(&path))
        .collect()
}

fn read(path: &Path) -> Option<Vec<RelayAddress>> {
    let mut text = String::new();
    let file = open_to_read(path).ok()?;
    file.take(FILE_MAX).read_to_string(&mut text).ok()?;
    let json: FileJson = serde_json::from_str(&text).ok()?;
    let addresses = json.addresses.iter().take(ADDRESSES_MAX);
    let addresses: Vec<RelayAddress> = addresses.filter_map(|text| text.parse().ok()).collect();
    (!addresses.is_empty()).then_some(addresses)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> RelayAddress {
        text.parse().expect("an address")
    }

    #[test]
    fn addresses_are_read_as_they_are_written() {
        for text in ["node1:7000", "10.0.0.7:1", "[fd00::7]:65535"] {
            assert_eq!(address(text).to_string(), text);
        }
        assert_eq!(address("[fd00::7]:1").host, "fd00::7");
        for text in [
            "",
            "node1",
            "node1:",
            ":7000",
            "node1:0",
            "node1:70000",
            "fd00::7:1",
            "[fd00::7:1",
            "a b:1",
            "[]:1",
        ] {
            let error = text.parse::<RelayAddress>().expect_err(text);
            assert!(error.to_string().contains(&format!("found `{text}`")));
        }
        let long = format!("{}:1", "x".repeat(300));
        assert!(long.parse::<RelayAddress>().is_err());
    }

    #[test]
    fn announcements_come_and_go() {
        let dir = tempfile::tempdir().expect("directory");
        let (first, second) = (dir.path().join("001"), dir.path().join("002"));
        for instance in [&first, &second] {
            fs::create_dir(instance).expect("directory");
        }
        assert!(announced_relays(&first).is_empty(), "no folder yet");
        let mut ours = Announcement::new("node/1").expect("random numbers");
        let mut theirs = Announcement::new("node2").expect("random numbers");
        let addresses = [address("10.0.0.1:7"), address("node1:7")];
        ours.renew(&first, &addresses).expect("writable");
        ours.renew(&first, &addresses).expect("again");
        theirs
            .renew(&first, &[address("10.0.0.2:8")])
            .expect("writable");
        let mut found = announced_relays(&first);
        found.sort();
        assert_eq!(found, [addresses.to_vec(), vec![address("10.0.0.2:8")]]);
        // The server now has another directory.
        ours.renew(&second, &addresses).expect("writable");
        assert_eq!(announced_relays(&first).len(), 1);
        assert_eq!(announced_relays(&second).len(), 1);
        theirs.withdraw();
        theirs.withdraw();
        assert!(announced_relays(&first).is_empty());
    }

    #[test]
    fn old_and_strange_files_do_not_count() {
        let dir = tempfile::tempdir().expect("directory");
        let folder = dir.path().join(RELAYS_DIR_NAME);
        let mut old = Announcement::new("old").expect("random numbers");
        old.renew(dir.path(), &[address("old:1")])
            .expect("writable");
        assert_eq!(announced_relays(dir.path()).len(), 1, "nothing is newer");
        let file = fs::File::open(folder.join(&old.file)).expect("there");
        // However wrong the clocks are, this announcement is old compared with a newer one.
        let hour = Duration::from_secs(3_600);
        let long_ago = SystemTime::now() - 24 * hour;
        file.set_modified(long_ago).expect("ours");
        fs::write(folder.join("x.json"), "{}").expect("writable");
        fs::write(folder.join("y.json"), [0xff; 9]).expect("writable");
        fs::write(folder.join("z.json"), r#"{"addresses":["a:b"]}"#).expect("writable");
        fs::write(folder.join("z.txt"), r#"{"addresses":["a:1"]}"#).expect("writable");
        fs::create_dir(folder.join("d.json")).expect("writable");
        assert!(announced_relays(dir.path()).is_empty());
        let mut new = Announcement::new("new").expect("random numbers");
        new.renew(dir.path(), &[address("new:1")])
            .expect("writable");
        assert_eq!(announced_relays(dir.path()), [[address("new:1")]]);
        assert!(
            !folder.join(&old.file).exists(),
            "the next relay removes it"
        );
        assert!(folder.join("x.json").exists(), "it is not old");
    }

    #[test]
    fn one_from_the_future_does_not_hide_the_others() {
        let dir = tempfile::tempdir().expect("directory");
        let folder = dir.path().join(RELAYS_DIR_NAME);
        let mut gone = Announcement::new("gone").expect("random numbers");
        gone.renew(dir.path(), &[address("gone:1")])
            .expect("writable");
        let file = fs::File::open(folder.join(&gone.file)).expect("there");
        // The relay died before the clock was set back.
        let hour = Duration::from_secs(3_600);
        file.set_modified(SystemTime::now() + hour).expect("ours");
        let mut first = Announcement::new("first").expect("random numbers");
        let mut second = Announcement::new("second").expect("random numbers");
        first
            .renew(dir.path(), &[address("first:1")])
            .expect("writable");
        second
            .renew(dir.path(), &[address("second:1")])
            .expect("writable");
        let mut found = announced_relays(dir.path());
        found.sort();
        assert_eq!(found, [[address("first:1")], [address("second:1")]]);
    }
}
