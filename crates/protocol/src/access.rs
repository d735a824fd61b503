//! Access files (`access.json`: where a server listens, and its keys) and the server directory.
//!
//! ```text
//! <server-dir>/hq-current -> <absolute>/<server-dir>/001    while a server runs
//! <server-dir>/001/access.json                              mode 0400, directory 0700
//! ```
//!
//! Names, shape and texts are a contract with users: deployments copy access files between
//! machines. This file does not connect to anything; the caller says which of the "no server"
//! errors applies.

mod directory;
mod file;
mod relays;

use std::io;
use std::path::{Path, PathBuf};

pub use directory::{ServerDir, ServerHint};
pub use file::{Access, AccessFile, ServerUid};
pub use relays::{
    Announcement, RELAYS_DIR_NAME, RENEWAL, RelayAddress, RelayAddressError, announced_relays,
};

use crate::handshake::Plane;
use crate::key::KeyError;

/// Name of the access file in the directory of a server instance.
pub const ACCESS_FILE_NAME: &str = "access.json";

/// Name of the link to the instance that runs.
pub const CURRENT_LINK_NAME: &str = "hq-current";

/// Name of the journal in the directory of an instance.
pub const STATE_FILE_NAME: &str = "state.db";

/// Link in the directory of an instance whose journal is elsewhere; leads there, or to `/dev/null`
/// without a journal.
pub const JOURNAL_LINK_NAME: &str = "journal";

/// Largest access file that is read. Ours have a few hundred bytes.
const ACCESS_FILE_MAX: u64 = 64 << 10;

/// Why a server cannot be accessed. `Display` is the text for users, without the cause.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// The server directory does not exist or is none.
    #[error("Invalid server directory")]
    InvalidDirectory {
        /// How to name it in a hint.
        hint: ServerHint,
        /// Why it cannot be used.
        #[source]
        source: NotADirectory,
    },
    /// No access file where one is expected.
    #[error(
        "No running instance of HQ found at {path:?}.\nTry to start the server: `hq server start{hint}` or use a different server directory."
    )]
    NoInstance {
        /// The server directory as the user gave it.
        path: PathBuf,
        /// How to name it in the hint.
        hint: ServerHint,
        /// Why the file cannot be read.
        #[source]
        source: io::Error,
    },
    /// An access file exists, but no server answers there.
    #[error(
        "Access token found but HQ server {host}:{port} is unreachable.\nTry to (re)start the server using `hq server start{hint}`"
    )]
    Unreachable {
        /// Host of the access file.
        host: String,
        /// Port of the access file.
        port: u16,
        /// How to name the directory in the hint.
        hint: ServerHint,
        /// Why there is no connection.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Written by another release.
    #[error(
        "Hyperqueue version mismatch detected.\nAccess record contains version {found}, but the current version is {expected}."
    )]
    Version {
        /// Version in the file.
        found: String,
        /// Version of this program.
        expected: String,
    },
    /// The file cannot be read.
    #[error("Cannot read access file {path:?}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Error of the operating system.
        #[source]
        source: io::Error,
    },
    /// Others can read the keys.
    #[error("Access file {path:?} can be read by others (mode {mode:04o}), so its keys are not secret. Run `chmod 0400 {}`", .path.display())]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Permission bits of the file.
        mode: u32,
    },
    /// Another user's file, which could make us talk to that user's server.
    #[error(
        "Access file {path:?} belongs to user {owner}, not to you (user {user}). Copy it to a file of your own"
    )]
    ForeignOwner {
        /// The file.
        path: PathBuf,
        /// User id of the owner.
        owner: u32,
        /// User id of this process.
        user: u32,
    },
    /// Not JSON, or not of the expected shape.
    #[error(
        "Access file {path:?} is not valid; expected the JSON that `hq server generate-access` writes"
    )]
    Parse {
        /// The file.
        path: PathBuf,
        /// Where and what.
        #[source]
        source: serde_json::Error,
    },
    /// A key that is none.
    #[error("Access file {path:?} has an invalid {plane} key")]
    Key {
        /// The file.
        path: PathBuf,
        /// Plane of the key.
        plane: Plane,
        /// Why it cannot be used.
        #[source]
        source: KeyError,
    },
    /// The file lacks a part for this purpose.
    #[error("Access file {path:?} has no `{field}` part; use a file that was made for {plane}s")]
    MissingPart {
        /// The file.
        path: PathBuf,
        /// Name of the missing part.
        field: &'static str,
        /// The role that needed it.
        plane: Plane,
    },
    /// A file for clients or workers, which does not let a server prove its identity.
    #[error(
        "Access file {path:?} is for clients or workers: it lacks the private key of the server. Start the server with the full file that was created together with it"
    )]
    NoPrivateKey {
        /// The file.
        path: PathBuf,
    },
    /// The server's keys do not match: no peer could connect.
    #[error(
        "Access file {path:?} has a public and a private key that do not match. Start the server with the full file from `hq server generate-access`"
    )]
    KeyPair {
        /// The file.
        path: PathBuf,
    },
    /// The file, directory or link cannot be made.
    #[error("Cannot create {path:?}")]
    Create {
        /// What.
        path: PathBuf,
        /// Error of the operating system.
        #[source]
        source: io::Error,
    },
    /// No random numbers for a key or name.
    #[error("Cannot read random numbers from the system")]
    Random(#[source] io::Error),
}

impl AccessError {
    /// Whether the file ends too early: a crash interrupted its writing.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        matches!(self, Self::Parse { source, .. } if source.is_eof())
    }

    /// Whether the content of the file is useless for a server.
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

    /// Whether no server exists yet: its directory or its access file is missing, and a start
    /// creates both.
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

/// Cause of [`AccessError::InvalidDirectory`].
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
