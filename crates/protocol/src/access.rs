//! Access files (`access.json`: where a server listens, and its keys) and the server directory.
//!
//! ```text
//! <server-dir>/hq-current -> <absolute>/<server-dir>/001    while a server runs
//! <server-dir>/001/access.json                              mode 0400, directory 0700
//! ```
//!
//! Names, layout and texts are a contract with users, because deployments copy access files between
//! machines. This module opens no connections. The caller determines which of the "no server"
//! errors applies.

mod directory;
mod file;
mod relays;
mod socket;

use std::io;
use std::path::{Path, PathBuf};

pub use directory::{ServerDir, ServerHint};
pub use file::{Access, AccessFile, ServerUid};
pub use relays::{
    Announcement, RELAYS_DIR_NAME, RENEWAL, RelayAddress, RelayAddressError, announced_relays,
};
pub use socket::OwnerSocket;

use crate::handshake::Plane;
use crate::key::KeyError;

/// The name of the access file in the directory of a server instance.
pub const ACCESS_FILE_NAME: &str = "access.json";

/// The name of the link to the running instance.
pub const CURRENT_LINK_NAME: &str = "hq-current";

/// The name of the journal in the directory of an instance.
pub const STATE_FILE_NAME: &str = "state.db";

/// The link in the directory of an instance whose journal is elsewhere. It leads to the journal, or
/// to `/dev/null` if there is no journal.
pub const JOURNAL_LINK_NAME: &str = "journal";

/// The maximum size of an access file in bytes. Ours have a few hundred.
const ACCESS_FILE_MAX: u64 = 64 << 10;

/// The reason why a server cannot be accessed. `Display` is the text for users, without the cause.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// The server directory does not exist, or is not a directory.
    #[error("Invalid server directory")]
    InvalidDirectory {
        /// How a hint names the directory.
        hint: ServerHint,
        /// Why the directory cannot be used.
        #[source]
        source: NotADirectory,
    },
    /// There is no access file where one is expected.
    #[error(
        "No running instance of HQ found at {path:?}.\nTry to start the server: `hq server start{hint}` or use a different server directory."
    )]
    NoInstance {
        /// The server directory as the user gave it.
        path: PathBuf,
        /// How a hint names the directory.
        hint: ServerHint,
        /// Why the file cannot be read.
        #[source]
        source: io::Error,
    },
    /// There is an access file, but no server answers at its address.
    #[error(
        "Access token found but HQ server {host}:{port} is unreachable.\nTry to (re)start the server using `hq server start{hint}`"
    )]
    Unreachable {
        /// The host in the access file.
        host: String,
        /// The port in the access file.
        port: u16,
        /// How a hint names the directory.
        hint: ServerHint,
        /// Why there is no connection.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Another release wrote the file.
    #[error(
        "Hyperqueue version mismatch detected.\nAccess record contains version {found}, but the current version is {expected}."
    )]
    Version {
        /// The version in the file.
        found: String,
        /// The version of this program.
        expected: String,
    },
    /// The file cannot be read.
    #[error("Cannot read access file {path:?}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// Other users can read the keys.
    #[error("Access file {path:?} can be read by others (mode {mode:04o}), so its keys are not secret. Run `chmod 0400 {}`", .path.display())]
    Exposed {
        /// The file.
        path: PathBuf,
        /// The permission bits of the file.
        mode: u32,
    },
    /// The file belongs to another user, who could direct us to a server of their own.
    #[error(
        "Access file {path:?} belongs to user {owner}, not to you (user {user}). Copy it to a file of your own"
    )]
    ForeignOwner {
        /// The file.
        path: PathBuf,
        /// The user id of the owner.
        owner: u32,
        /// The user id of this process.
        user: u32,
    },
    /// The file is not JSON, or does not have the expected structure.
    #[error(
        "Access file {path:?} is not valid; expected the JSON that `hq server generate-access` writes"
    )]
    Parse {
        /// The file.
        path: PathBuf,
        /// The position and kind of the error.
        #[source]
        source: serde_json::Error,
    },
    /// A key in the file is not valid.
    #[error("Access file {path:?} has an invalid {plane} key")]
    Key {
        /// The file.
        path: PathBuf,
        /// The plane of the key.
        plane: Plane,
        /// Why the key cannot be used.
        #[source]
        source: KeyError,
    },
    /// The file lacks a part that is needed.
    #[error("Access file {path:?} has no `{field}` part; use a file that was made for {plane}s")]
    MissingPart {
        /// The file.
        path: PathBuf,
        /// The name of the missing part.
        field: &'static str,
        /// The plane that needs the part.
        plane: Plane,
    },
    /// The file is for clients or workers, and a server cannot prove its identity with it.
    #[error(
        "Access file {path:?} is for clients or workers: it lacks the private key of the server. Start the server with the full file that was created together with it"
    )]
    NoPrivateKey {
        /// The file.
        path: PathBuf,
    },
    /// The server's keys do not match, so no peer could connect.
    #[error(
        "Access file {path:?} has a public and a private key that do not match. Start the server with the full file from `hq server generate-access`"
    )]
    KeyPair {
        /// The file.
        path: PathBuf,
    },
    /// The file, directory or link cannot be created.
    #[error("Cannot create {path:?}")]
    Create {
        /// Its path.
        path: PathBuf,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// The system cannot provide random numbers for a key or uid.
    #[error("Cannot read random numbers from the system")]
    Random(#[source] io::Error),
}

impl AccessError {
    /// Returns whether the file ends too early, because a crash interrupted writing it.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        matches!(self, Self::Parse { source, .. } if source.is_eof())
    }

    /// Returns whether the content of the file is unusable for a server.
    #[must_use]
    pub const fn is_damage(&self) -> bool {
        matches!(
            self,
            Self::Parse { .. }
                | Self::Key { .. }
                | Self::NoPrivateKey { .. }
                | Self::KeyPair { .. }
        )
    }

    /// Returns whether no server exists yet: its directory or its access file is missing, and
    /// starting a server creates both.
    #[must_use]
    pub fn is_no_server_yet(&self) -> bool {
        match self {
            Self::InvalidDirectory { source, .. } => !source.0.exists(),
            Self::NoInstance { .. } => true,
            Self::Unreachable { .. }
            | Self::Version { .. }
            | Self::Read { .. }
            | Self::Exposed { .. }
            | Self::ForeignOwner { .. }
            | Self::Parse { .. }
            | Self::Key { .. }
            | Self::MissingPart { .. }
            | Self::NoPrivateKey { .. }
            | Self::KeyPair { .. }
            | Self::Create { .. }
            | Self::Random(_) => false,
        }
    }
}

/// The cause of [`AccessError::InvalidDirectory`].
#[derive(Debug, thiserror::Error)]
#[error("Error: {0:?} is not a directory")]
pub struct NotADirectory(
    /// The path as the user gave it.
    pub PathBuf,
);

impl AccessError {
    fn create(path: &Path) -> impl FnOnce(io::Error) -> Self + use<> {
        let path = path.to_path_buf();
        move |source| Self::Create { path, source }
    }

    fn read(path: &Path) -> impl FnOnce(io::Error) -> Self + use<> {
        let path = path.to_path_buf();
        move |source| Self::Read { path, source }
    }
}

#[cfg(test)]
mod tests;
