//! The owner's own way to a server on the same machine: a Unix socket in the directory of the instance.
//!
//! Any user can fill the kernel's queue of connections to a port, and only the owner can enter the directory.

use std::fs;
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use tokio::net::{UnixListener, UnixStream};

use crate::admission::port::BACKLOG;

/// The socket beside the TCP port. The port is in its name: an access file that names another server finds no socket.
#[derive(Debug)]
pub struct OwnerSocket {
    dir: rustix::fd::OwnedFd,
    port: u16,
}

impl OwnerSocket {
    /// The socket in the directory of an instance.
    ///
    /// # Errors
    ///
    /// If the directory cannot be opened.
    pub fn new(instance: &Path, port: u16) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::open(instance, flags, Mode::empty())?;
        Ok(Self { dir, port })
    }

    /// Short for any directory: an address of a socket has at most 107 bytes.
    fn path(&self) -> PathBuf {
        let Self { dir, port } = self;
        format!("/proc/self/fd/{}/clients-{port}.sock", dir.as_raw_fd()).into()
    }

    /// Listens, in place of an earlier server of the instance.
    ///
    /// # Errors
    ///
    /// If the file system has no sockets.
    pub fn listen(&self) -> io::Result<UnixListener> {
        // That of a server that was killed.
        let _ = fs::remove_file(self.path());
        let listener = UnixListener::bind(self.path())?;
        fs::set_permissions(self.path(), fs::Permissions::from_mode(0o600))?;
        rustix::net::listen(&listener, BACKLOG)?;
        Ok(listener)
    }

    /// Connects to a server on this machine.
    ///
    /// # Errors
    ///
    /// If none listens here: it is gone, or on another machine.
    pub async fn connect(&self) -> io::Result<UnixStream> {
        UnixStream::connect(self.path()).await
    }
}

/// Removes the sockets of an instance. If one stays, nobody listens there, and clients use the port.
pub(super) fn remove_all(instance: &Path) {
    let entries = fs::read_dir(instance).into_iter().flatten().flatten();
    for path in entries.map(|entry| entry.path()) {
        if path.extension().is_some_and(|end| end == "sock") {
            let _ = fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_socket_in_a_long_directory_has_one_listener_at_a_time() {
        let dir = tempfile::tempdir().expect("a directory");
        let long = dir.path().join("x".repeat(200));
        fs::create_dir(&long).expect("room");
        let socket = |port| OwnerSocket::new(&long, port).expect("a directory");
        assert!(socket(7).connect().await.is_err(), "nobody listens");
        drop(UnixListener::bind(socket(7).path()));
        assert!(socket(7).connect().await.is_err(), "left by a dead server");
        let listener = socket(7).listen().expect("in its place");
        let client = socket(7);
        let (client, server) = tokio::join!(client.connect(), listener.accept());
        assert!(client.is_ok() && server.is_ok());
        assert!(socket(8).connect().await.is_err(), "another port");
        let found = fs::metadata(socket(7).path()).expect("a socket");
        assert_eq!(found.permissions().mode() & 0o777, 0o600);
        remove_all(&long);
        assert_eq!(fs::read_dir(&long).expect("it is there").count(), 0);
    }
}
