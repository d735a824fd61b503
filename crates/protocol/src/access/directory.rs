//! The server directory: numbered instances and the link to the running one.

use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::{Path, PathBuf};

use hq_core::shell::pasted;

use super::file::{open_to_read, sync_parent};
use super::{ACCESS_FILE_NAME, AccessError, AccessFile, CURRENT_LINK_NAME, NotADirectory};

/// How often to try the next number while other servers start in the same directory.
const NUMBER_ATTEMPTS: usize = 100;

/// The names of other entries that servers create next to instances.
const OWN_NAMES: [&str; 4] = [
    CURRENT_LINK_NAME,
    "server.log",
    "hq-start.lock",
    "cluster.log",
];

/// Shows `--server-dir <dir>` in a hint, or nothing for the default directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServerHint(Option<PathBuf>);

impl fmt::Display for ServerHint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(path) => write!(f, " --server-dir {}", pasted(&path.to_string_lossy())),
            None => Ok(()),
        }
    }
}

/// A server directory, with the path that the user gave.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServerDir {
    root: PathBuf,
    is_default: bool,
}

impl ServerDir {
    /// Names a directory, which need not exist. If `is_default`, the user named no directory, and
    /// hints omit it.
    #[must_use]
    pub fn new(root: impl Into<PathBuf>, is_default: bool) -> Self {
        Self {
            root: root.into(),
            is_default,
        }
    }

    /// Returns the directory as the user named it.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns how hints name the directory.
    #[must_use]
    pub fn hint(&self) -> ServerHint {
        ServerHint((!self.is_default).then(|| self.root.clone()))
    }

    /// Returns the directory of the instance: the target of `hq-current`, or the directory itself
    /// if there is no such link, so that users can name the directory of an instance directly. In a
    /// copied server directory, the link still leads to the original. In that case the result is
    /// the copy of the instance.
    ///
    /// # Errors
    ///
    /// Returns [`AccessError::InvalidDirectory`] if the directory does not exist.
    pub fn resolve(&self) -> Result<PathBuf, AccessError> {
        if !self.root.is_dir() {
            return Err(AccessError::InvalidDirectory {
                hint: self.hint(),
                source: NotADirectory(self.root.clone()),
            });
        }
        let current = self.root.join(CURRENT_LINK_NAME);
        let same_number = self.same_number();
        Ok(match fs::canonicalize(&current) {
            Ok(target) if target.is_dir() => same_number.unwrap_or(target),
            // The server directory was moved.
            Err(_) if same_number.is_some() => same_number.unwrap_or_default(),
            Ok(_) | Err(_) => self.root.clone(),
        })
    }

    /// Returns the instance in this directory with the same number as the target of `hq-current`.
    fn same_number(&self) -> Option<PathBuf> {
        let target = fs::read_link(self.root.join(CURRENT_LINK_NAME)).ok()?;
        let here = fs::canonicalize(self.root.join(target.file_name()?)).ok()?;
        here.is_dir().then_some(here)
    }

    /// Returns the directory that this one seems to be a copy of: the link leads to an instance
    /// elsewhere, and this directory has an instance with the same number.
    #[must_use]
    pub fn copied_from(&self) -> Option<PathBuf> {
        let there = fs::canonicalize(self.root.join(CURRENT_LINK_NAME)).ok()?;
        let original = there.parent()?.to_path_buf();
        (self.same_number()? != there).then_some(original)
    }

    /// Finds and reads the access file.
    ///
    /// # Errors
    ///
    /// Returns [`AccessError::InvalidDirectory`] or [`AccessError::NoInstance`] if there is none,
    /// or an error of [`AccessFile::load`].
    pub fn load_access(&self, version: &str) -> Result<(PathBuf, AccessFile), AccessError> {
        self.load_access_as(Some(version))
    }

    /// Finds and reads an access file of any release, see [`AccessFile::load_any`].
    ///
    /// # Errors
    ///
    /// See [`ServerDir::load_access`]. Every version is accepted.
    pub fn load_access_any(&self) -> Result<(PathBuf, AccessFile), AccessError> {
        self.load_access_as(None)
    }

    fn load_access_as(&self, version: Option<&str>) -> Result<(PathBuf, AccessFile), AccessError> {
        let link = self.root.join(CURRENT_LINK_NAME);
        hq_private::check_link(&link).map_err(AccessError::read(&link))?;
        let path = self.resolve()?.join(ACCESS_FILE_NAME);
        let file = open_to_read(&path).map_err(|source| {
            if source.kind() == io::ErrorKind::NotFound {
                AccessError::NoInstance {
                    path: self.root.clone(),
                    hint: self.hint(),
                    source,
                }
            } else {
                AccessError::Read {
                    path: path.clone(),
                    source,
                }
            }
        })?;
        let access = AccessFile::load_from(file, &path, version)?;
        Ok((path, access))
    }

    /// Returns the error for a server that has an access file but does not answer.
    #[must_use]
    pub fn unreachable(
        &self,
        host: &str,
        port: u16,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> AccessError {
        let (host, hint) = (host.to_owned(), self.hint());
        AccessError::Unreachable {
            host,
            port,
            hint,
            source: source.into(),
        }
    }

    /// Creates the server directory if it is missing, accessible only to its owner. Removes write
    /// access for other users from an existing server directory that contains only our entries, and
    /// from its instances.
    ///
    /// # Errors
    ///
    /// Returns [`AccessError::Create`], in particular if the directory belongs to another user.
    pub fn create(&self) -> Result<(), AccessError> {
        self.make_private().map_err(AccessError::create(&self.root))
    }

    fn make_private(&self) -> io::Result<()> {
        if !self.root.exists() {
            return hq_private::ensure_dir(&self.root);
        }
        let dir = hq_private::own_dir(&self.root)?;
        let mode = dir.metadata()?.mode() & 0o7777;
        if mode & 0o022 != 0 {
            let (root, is_ours) = (self.root.display(), self.holds_only_ours()?);
            if is_ours {
                hq_private::ensure_dir(&self.root)?;
            } else {
                tracing::warn!(
                    "Other users can write to the server directory `{root}` (mode {mode:04o}), and replace your server with another one. Run `chmod go-w` on the directory"
                );
            }
        }
        for number in self.numbers()? {
            let instance = self.instance(number);
            // A number can be the name of a user's directory or of a link to any place.
            if holds_state(&instance) {
                hq_private::close_dir(&instance)?;
            }
        }
        Ok(())
    }

    /// Returns whether servers have created all entries of the directory.
    fn holds_only_ours(&self) -> io::Result<bool> {
        for entry in fs::read_dir(&self.root)? {
            let entry = entry?;
            let name = entry.file_name();
            let is_ours = name.to_str().is_some_and(|name| {
                let is_number = name.bytes().all(|byte| byte.is_ascii_digit());
                OWN_NAMES.contains(&name)
                    || name.starts_with(".hq-")
                    || is_number && holds_state(&entry.path())
            });
            if !is_ours {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn instance(&self, number: u64) -> PathBuf {
        self.root.join(format!("{number:03}"))
    }

    /// Creates the directory of a new instance, and the server directory if it is missing. Only
    /// this user can enter them. If several servers start at once, each gets its own number.
    ///
    /// # Errors
    ///
    /// Returns [`AccessError::Create`] if a directory cannot be created.
    pub fn create_instance(&self) -> Result<PathBuf, AccessError> {
        if !self.root.exists() {
            self.create()?;
        }
        let mut last = None;
        let numbers = self.numbers().map_err(AccessError::create(&self.root))?;
        let highest = numbers.into_iter().max().unwrap_or(0);
        // Another entry may already use the next number as its name.
        for number in (highest + 1..).take(NUMBER_ATTEMPTS) {
            let path = self.instance(number);
            match hq_private::create_dir(&path).and_then(|()| sync_parent(&path)) {
                Ok(()) => return fs::canonicalize(&path).map_err(AccessError::create(&path)),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    last = Some((path, error));
                }
                Err(error) => return Err(AccessError::create(&path)(error)),
            }
        }
        let (path, error) = last.unwrap_or_else(|| (self.root.clone(), io::Error::other("full")));
        Err(AccessError::create(&path)(error))
    }

    /// Returns the directories of all instances, highest number first.
    ///
    /// # Errors
    ///
    /// Returns [`AccessError::Create`] if the server directory cannot be read.
    pub fn instances(&self) -> Result<Vec<PathBuf>, AccessError> {
        if !self.root.exists() {
            return Ok(Vec::new());
        }
        let mut numbers = self.numbers().map_err(AccessError::create(&self.root))?;
        numbers.sort_unstable_by(|first, second| second.cmp(first));
        let paths = numbers.into_iter().map(|number| self.instance(number));
        Ok(paths
            .filter_map(|path| fs::canonicalize(path).ok())
            .filter(|path| path.is_dir())
            .collect())
    }

    /// Returns the numbers of this user's entries. Entries of other users are never used as
    /// instances.
    fn numbers(&self) -> io::Result<Vec<u64>> {
        let user = rustix::process::geteuid().as_raw();
        let mut numbers = Vec::new();
        for entry in fs::read_dir(&self.root)? {
            let entry = entry?;
            let name = entry.file_name();
            let digits = name
                .to_str()
                .filter(|name| name.bytes().all(|b| b.is_ascii_digit()));
            let number = digits.and_then(|name| name.parse::<u64>().ok());
            // Larger numbers are names that users chose.
            let number = number.filter(|number| *number < u64::MAX / 2);
            // Another server that is starting may have removed the entry in the meantime.
            if number.is_some() && entry.metadata().is_ok_and(|found| found.uid() == user) {
                numbers.extend(number);
            }
        }
        Ok(numbers)
    }

    /// Atomically points `hq-current` to `instance`. An existing link is never missing in between.
    ///
    /// # Errors
    ///
    /// Returns [`AccessError::Create`] if the link cannot be created.
    pub fn publish(&self, instance: &Path) -> Result<(), AccessError> {
        let link = self.root.join(CURRENT_LINK_NAME);
        let temporary = self
            .root
            .join(format!(".{CURRENT_LINK_NAME}.{}", std::process::id()));
        let failed = AccessError::create;
        let target = fs::canonicalize(instance).map_err(failed(instance))?;
        // A process with the same id may have left a temporary link behind when it was killed.
        remove_if_there(&temporary).map_err(failed(&link))?;
        symlink(&target, &temporary).map_err(failed(&link))?;
        fs::rename(&temporary, &link)
            .and_then(|()| sync_parent(&link))
            .map_err(|source| {
                // Best effort, because only the first failure is reported.
                let _ = fs::remove_file(&temporary);
                failed(&link)(source)
            })
    }

    /// Removes the sockets of an instance, and `hq-current` if it leads there; the link of a later server stays.
    ///
    /// # Errors
    ///
    /// Returns [`AccessError::Create`] with the link's path.
    pub fn withdraw(&self, instance: &Path) -> Result<(), AccessError> {
        super::socket::remove_all(instance);
        let link = self.root.join(CURRENT_LINK_NAME);
        let ours = fs::canonicalize(instance).ok();
        let target = fs::read_link(&link).ok();
        if target.is_none() || target != ours {
            return Ok(());
        }
        remove_if_there(&link)
            .and_then(|()| sync_parent(&link))
            .map_err(AccessError::create(&link))
    }
}

/// Returns whether `path` is the directory of an instance: not a link, and with the files of a
/// server.
fn holds_state(path: &Path) -> bool {
    let is_dir = fs::symlink_metadata(path).is_ok_and(|found| found.is_dir());
    let has = |name: &str| fs::symlink_metadata(path.join(name)).is_ok();
    is_dir && (has(ACCESS_FILE_NAME) || has("state.db") || has("state.db.lock"))
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}
