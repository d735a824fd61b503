//! The access file: its JSON format, and how it is read and written.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};

use super::{ACCESS_FILE_MAX, AccessError};
use crate::handshake::Plane;
use crate::key::{SecretKey, ServerKey, random_bytes};

/// The address and key of one plane of a server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Access {
    /// The host name or address.
    pub host: String,
    /// The port.
    pub port: u16,
    /// The keys. `None` if this plane is neither authenticated nor encrypted.
    pub key: Option<SecretKey>,
}

/// A server's uid, which stays the same across restarts: 6 random characters of `[A-Za-z0-9]`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ServerUid(String);

impl ServerUid {
    /// The length in characters.
    pub const LEN: usize = 6;

    /// Generates a uid.
    ///
    /// # Errors
    ///
    /// Returns [`AccessError::Random`] if the system cannot provide random numbers.
    pub fn generate() -> Result<Self, AccessError> {
        const ALPHABET: &[u8; 62] =
            b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
        let mut uid = String::with_capacity(Self::LEN);
        while uid.len() < Self::LEN {
            let mut bytes = [0; 16];
            random_bytes(&mut bytes).map_err(AccessError::Random)?;
            // 6 bits have values up to 63. Values beyond the alphabet are dropped, so that all
            // characters are equally likely.
            let characters = bytes
                .iter()
                .filter_map(|byte| ALPHABET.get(usize::from(byte & 63)));
            uid.extend(
                characters
                    .map(|byte| char::from(*byte))
                    .take(Self::LEN - uid.len()),
            );
        }
        Ok(Self(uid))
    }

    /// Creates the uid from a restored record or file. Accepts any text, because a uid is only a
    /// label.
    #[must_use]
    pub fn from_text(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Returns the uid as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The content of an access file. A full file has all parts. A file for clients or workers has only
/// theirs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AccessFile {
    /// The release that wrote the file.
    pub version: String,
    /// The uid of the server. Only in a full file.
    pub server_uid: Option<ServerUid>,
    /// The part for clients.
    pub client: Option<Access>,
    /// The part for workers.
    pub worker: Option<Access>,
}

/// The JSON format. The order of the fields is their order in the file.
#[derive(Serialize, Deserialize)]
struct FileJson {
    version: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    server_uid: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    client: Option<AccessJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    worker: Option<AccessJson>,
}

#[derive(Serialize, Deserialize)]
struct AccessJson {
    host: String,
    port: u16,
    secret_key: Option<String>,
}

/// Reads only the version from a file whose other fields may differ.
#[derive(Deserialize)]
struct VersionJson {
    version: String,
}

impl Access {
    /// Returns a copy without the server's private key.
    fn to_connect(&self) -> Self {
        Self {
            key: self.key.as_ref().map(SecretKey::to_connect),
            ..self.clone()
        }
    }
}

impl AccessFile {
    /// Creates a full file.
    #[must_use]
    pub fn full(version: &str, uid: ServerUid, client: Access, worker: Access) -> Self {
        Self {
            version: version.to_owned(),
            server_uid: Some(uid),
            client: Some(client),
            worker: Some(worker),
        }
    }

    /// Returns the part for clients, which is not sufficient to run the server.
    #[must_use]
    pub fn client_only(&self) -> Self {
        Self {
            server_uid: None,
            client: self.client.as_ref().map(Access::to_connect),
            worker: None,
            ..self.clone()
        }
    }

    /// Returns the part for workers, which is not sufficient to run the server.
    #[must_use]
    pub fn worker_only(&self) -> Self {
        Self {
            server_uid: None,
            client: None,
            worker: self.worker.as_ref().map(Access::to_connect),
            ..self.clone()
        }
    }

    /// Returns the server's key pair, or only the public key. `None` if no plane has a key, or if
    /// an earlier release wrote the file.
    #[must_use]
    pub fn server_key(&self) -> Option<&ServerKey> {
        self.keys().find_map(SecretKey::server)
    }

    fn keys(&self) -> impl Iterator<Item = &SecretKey> {
        [&self.client, &self.worker]
            .into_iter()
            .flatten()
            .filter_map(|access| access.key.as_ref())
    }

    /// Returns the address and key of one plane.
    ///
    /// # Errors
    ///
    /// Returns [`AccessError::MissingPart`] if the file is for the other plane. `path` is used only
    /// in the text.
    pub fn plane(&self, plane: Plane, path: &Path) -> Result<&Access, AccessError> {
        let (part, field) = match plane {
            Plane::Client => (&self.client, "client"),
            Plane::Worker | Plane::Relay => (&self.worker, "worker"),
        };
        part.as_ref().ok_or_else(|| AccessError::MissingPart {
            path: path.to_path_buf(),
            field,
            plane,
        })
    }

    /// Returns the JSON, indented and with a final line feed.
    #[must_use]
    pub fn to_json(&self) -> String {
        let json = FileJson {
            version: self.version.clone(),
            server_uid: self.server_uid.as_ref().map(|uid| uid.0.clone()),
            client: self.client.as_ref().map(AccessJson::from),
            worker: self.worker.as_ref().map(AccessJson::from),
        };
        // Serialization cannot fail, because there are only strings and numbers.
        serde_json::to_string_pretty(&json).unwrap_or_default() + "\n"
    }

    /// Writes a new file and syncs it. Only its owner can read it, regardless of the umask.
    ///
    /// # Errors
    ///
    /// Returns [`AccessError::Create`], in particular if the file exists. Removes an incomplete
    /// file.
    pub fn create(&self, path: &Path) -> Result<(), AccessError> {
        let failed = AccessError::create;
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o400)
            .open(path)
            .map_err(failed(path))?;
        let written = self.write_to(&mut file).and_then(|()| sync_parent(path));
        written.map_err(|source| {
            // Best effort: the first failure is the one to report.
            let _ = std::fs::remove_file(path);
            failed(path)(source)
        })
    }

    /// Like [`Self::create`], but atomically replaces an existing file.
    ///
    /// # Errors
    ///
    /// Returns [`AccessError::Create`]. In that case an existing file is unchanged.
    pub fn replace(&self, path: &Path) -> Result<(), AccessError> {
        let mut name = path.as_os_str().to_owned();
        name.push(".new");
        let fresh = std::path::PathBuf::from(name);
        // A server that was killed may have left this file behind.
        let _ = std::fs::remove_file(&fresh);
        self.create(&fresh)?;
        std::fs::rename(&fresh, path)
            .and_then(|()| sync_parent(path))
            .map_err(AccessError::create(path))
    }

    fn write_to(&self, file: &mut File) -> std::io::Result<()> {
        // The umask can only remove bits, but the mode must be exactly 0400.
        file.set_permissions(std::fs::Permissions::from_mode(0o400))?;
        file.write_all(self.to_json().as_bytes())?;
        file.sync_all()
    }

    /// Reads a file that this release wrote.
    ///
    /// # Errors
    ///
    /// See [`AccessError`]. Like ssh, rejects a file with keys that other users can read, and a
    /// file that belongs to another user.
    pub fn load(path: &Path, version: &str) -> Result<Self, AccessError> {
        let file = open_to_read(path).map_err(AccessError::read(path))?;
        Self::load_from(file, path, Some(version))
    }

    /// Reads a file of any release with the same checks, for a server that continues the state of
    /// an earlier release and keeps its keys.
    ///
    /// # Errors
    ///
    /// See [`Self::load`], but [`AccessError::Version`] does not occur.
    pub fn load_any(path: &Path) -> Result<Self, AccessError> {
        let file = open_to_read(path).map_err(AccessError::read(path))?;
        Self::load_from(file, path, None)
    }

    /// Checks that a server can prove its identity with this file: the private key must be present,
    /// and the keys must match.
    ///
    /// # Errors
    ///
    /// Returns [`AccessError::NoPrivateKey`] or [`AccessError::KeyPair`]. `path` is used only in
    /// the text.
    pub fn check_for_server(&self, path: &Path) -> Result<(), AccessError> {
        let path = || path.to_path_buf();
        if self.keys().any(SecretKey::is_for_connecting) {
            return Err(AccessError::NoPrivateKey { path: path() });
        }
        let is_other = |server: &ServerKey| Some(server) != self.server_key();
        let mut pairs = self.keys().filter_map(SecretKey::server);
        if !self.keys().all(SecretKey::is_consistent) || pairs.any(is_other) {
            return Err(AccessError::KeyPair { path: path() });
        }
        Ok(())
    }

    /// Returns whether a key lacks the server's public key, as in files of earlier releases.
    #[must_use]
    pub fn lacks_server_key(&self) -> bool {
        self.keys().any(|key| key.server().is_none())
    }

    /// Reads a file of any release without checking permissions. This is sufficient to check
    /// whether a server is running.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be read or is not valid.
    pub fn load_to_probe(path: &Path) -> Result<Self, AccessError> {
        let text = read_text(open_to_read(path).map_err(AccessError::read(path))?, path)?;
        Self::parse_any(&text, path, None)
    }

    pub(super) fn load_from(
        file: File,
        path: &Path,
        version: Option<&str>,
    ) -> Result<Self, AccessError> {
        let metadata = file.metadata().map_err(AccessError::read(path))?;
        let user = rustix::process::geteuid().as_raw();
        // Files owned by root are trusted, because root is outside the threat model.
        if metadata.uid() != user && metadata.uid() != 0 {
            let owner = metadata.uid();
            return Err(AccessError::ForeignOwner {
                path: path.to_path_buf(),
                owner,
                user,
            });
        }
        let text = read_text(file, path)?;
        let content = Self::parse_any(&text, path, version)?;
        let mode = metadata.mode() & 0o7777;
        if content.has_secret() && mode & 0o077 != 0 {
            return Err(AccessError::Exposed {
                path: path.to_path_buf(),
                mode,
            });
        }
        Ok(content)
    }

    /// Parses the JSON. `path` is used only in error texts.
    ///
    /// # Errors
    ///
    /// Returns [`AccessError::Version`], [`AccessError::Parse`] or [`AccessError::Key`].
    pub fn parse(text: &str, path: &Path, version: &str) -> Result<Self, AccessError> {
        Self::parse_any(text, path, Some(version))
    }

    fn parse_any(text: &str, path: &Path, version: Option<&str>) -> Result<Self, AccessError> {
        let invalid = |source| AccessError::Parse {
            path: path.to_path_buf(),
            source,
        };
        // Check the version first, because another release may use a different format.
        let found: VersionJson = serde_json::from_str(text).map_err(invalid)?;
        if let Some(expected) = version.filter(|version| *version != found.version) {
            let expected = expected.to_owned();
            return Err(AccessError::Version {
                found: found.version,
                expected,
            });
        }
        let json: FileJson = serde_json::from_str(text).map_err(invalid)?;
        let part = |json: Option<AccessJson>, plane| {
            json.map(|json| json.into_access(plane, path)).transpose()
        };
        Ok(Self {
            version: json.version,
            server_uid: json.server_uid.map(ServerUid),
            client: part(json.client, Plane::Client)?,
            worker: part(json.worker, Plane::Worker)?,
        })
    }

    /// Returns whether a plane has a key.
    #[must_use]
    pub fn has_secret(&self) -> bool {
        self.keys().next().is_some()
    }
}

impl From<&Access> for AccessJson {
    fn from(access: &Access) -> Self {
        Self {
            host: access.host.clone(),
            port: access.port,
            secret_key: access.key.as_ref().map(SecretKey::to_hex),
        }
    }
}

impl AccessJson {
    fn into_access(self, plane: Plane, path: &Path) -> Result<Access, AccessError> {
        let key = self
            .secret_key
            .as_deref()
            .map(SecretKey::from_hex)
            .transpose();
        let key = key.map_err(|source| {
            let path = path.to_path_buf();
            AccessError::Key {
                path,
                plane,
                source,
            }
        })?;
        Ok(Access {
            host: self.host,
            port: self.port,
            key,
        })
    }
}

fn read_text(file: File, path: &Path) -> Result<String, AccessError> {
    let mut text = String::new();
    file.take(ACCESS_FILE_MAX)
        .read_to_string(&mut text)
        .map_err(AccessError::read(path))?;
    // After a power loss, parts that were not written may be zeros.
    text.truncate(text.trim_end_matches('\0').len());
    Ok(text)
}

/// Opens an access file, which must be a regular file: opening a FIFO would wait for a writer.
/// Links of other users are not followed.
pub(super) fn open_to_read(path: &Path) -> std::io::Result<File> {
    hq_private::check_link(path)?;
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    if file.metadata()?.is_file() {
        return Ok(file);
    }
    Err(std::io::Error::new(
        std::io::ErrorKind::InvalidInput,
        "expected a regular file, found something else",
    ))
}

/// Makes the name of a new file durable.
pub(super) fn sync_parent(path: &Path) -> std::io::Result<()> {
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        Some(_) | None => Path::new("."),
    };
    match File::open(parent)?.sync_all() {
        // Some network file systems cannot sync a directory, and nothing more can be done there.
        Err(error) if error.kind() == std::io::ErrorKind::InvalidInput => Ok(()),
        result => result,
    }
}
