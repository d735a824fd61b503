//! The configuration of a worker beyond its `WorkerConfig`: directories, sockets, and the keeper.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use hq_core::worker_config::WorkerConfig;
use hq_spawn::keeper::KeeperContext;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::scratch_dir::ScratchDir;

/// Everything a worker needs before it registers.
#[derive(Debug)]
pub struct WorkerParams {
    /// The settings that the worker obeys and reports to the server. `MemoryLimits::Enforced` is
    /// only a request until the launcher has started.
    pub config: WorkerConfig,
    /// The absolute path of the running executable. Tasks see it as `HQ`.
    pub hq_path: PathBuf,
    /// The directory for the worker's own files. It is removed when the worker ends.
    pub work_dir: WorkDir,
    /// The front process of this worker, if it has one. If so, the worker kills all its descendants
    /// when it ends. Otherwise it kills only the tasks, because the process may have other
    /// children.
    pub keeper: Option<KeeperContext>,
    /// The number of threads that create processes. If `None`, it depends on the number of cpus.
    pub spawn_threads: Option<usize>,
    /// The maximum size in bytes of the cache for values of calls. If `None`, half of the free
    /// space in `work_dir`.
    pub values_limit: Option<u64>,
}

/// A directory could not be created.
#[derive(Debug, thiserror::Error)]
#[error("create the working directory {path:?}")]
pub struct WorkDirError {
    path: PathBuf,
    #[source]
    source: io::Error,
}

/// The worker's directory. Everything that the worker created is removed on drop, or by a later
/// worker if this one is killed.
#[derive(Debug)]
pub struct WorkDir {
    path: PathBuf,
    /// The directory to remove: the whole directory if the worker chose the path, otherwise a
    /// private subdirectory.
    own: ScratchDir,
    /// The parent of the tasks' private directories.
    tasks: PathBuf,
}

impl WorkDir {
    /// Uses `path`, or `hq-worker<random>/work` below the system's temporary directory. A missing
    /// directory is created.
    ///
    /// # Errors
    ///
    /// Returns [`WorkDirError`] if a directory cannot be created.
    pub fn create(path: Option<&Path>) -> Result<Self, WorkDirError> {
        let failed = |path: &Path| {
            let path = path.to_path_buf();
            move |source| WorkDirError { path, source }
        };
        match path {
            Some(path) => {
                std::fs::create_dir_all(path).map_err(failed(path))?;
                let path = path.canonicalize().map_err(failed(path))?;
                let own = ScratchDir::create_in(&path, "hq-tasks").map_err(failed(&path))?;
                let tasks = own.path().to_path_buf();
                Ok(Self { path, own, tasks })
            }
            None => {
                let parent = std::env::temp_dir();
                let own = ScratchDir::create_in(&parent, "hq-worker").map_err(failed(&parent))?;
                let path = own.path().join("work");
                hq_private::create_dir(&path).map_err(failed(&path))?;
                Ok(Self {
                    tasks: path.clone(),
                    path,
                    own,
                })
            }
        }
    }

    /// Returns the path of the directory, as shown to users.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn tasks(&self) -> &Path {
        &self.tasks
    }

    /// Returns whether the directory still exists: a cleaner of temporary directories may have
    /// removed it.
    #[must_use]
    pub fn exists(&self) -> bool {
        self.own.path().is_dir()
    }
}

/// The worker's own listening port. Until the worker serves values, each connection is closed at
/// once.
#[derive(Debug)]
pub struct DataProvider {
    port: u16,
    task: JoinHandle<()>,
}

/// The pause after a failed `accept`, most likely for lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

impl DataProvider {
    /// Listens on any free port, on both IPv6 and IPv4 where possible. Needs a tokio runtime.
    ///
    /// # Errors
    ///
    /// Returns an error if no port can be bound.
    pub async fn bind() -> io::Result<Self> {
        let any_v6 = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0));
        let any_v4 = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
        let listener = match TcpListener::bind(any_v6).await {
            Ok(listener) => listener,
            Err(_) => TcpListener::bind(any_v4).await?,
        };
        let port = listener.local_addr()?.port();
        let task = tokio::spawn(async move {
            loop {
                match listener.accept().await {
                    Ok((connection, _)) => drop(connection),
                    Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
                }
            }
        });
        Ok(Self { port, task })
    }

    /// Returns the port for `WorkerConfig::listen_address`.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for DataProvider {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chosen_directory_is_removed_as_a_whole() {
        let work_dir = WorkDir::create(None).expect("temporary directory");
        let path = work_dir.path().to_path_buf();
        assert!(path.ends_with("work") && path.is_dir());
        let parent = path.parent().expect("has a parent").to_path_buf();
        let name = parent
            .file_name()
            .expect("has a name")
            .to_string_lossy()
            .into_owned();
        assert!(name.starts_with("hq-worker"));
        drop(work_dir);
        assert!(!parent.exists());
    }

    #[test]
    fn given_directory_is_created_and_kept() {
        let outer = tempfile::tempdir().expect("temporary directory");
        let path = outer.path().join("a/b");
        let work_dir = WorkDir::create(Some(&path)).expect("can be created");
        std::fs::write(work_dir.tasks().join("left"), "x").expect("writable");
        drop(work_dir);
        assert_eq!(std::fs::read_dir(&path).expect("still there").count(), 0);
        std::fs::write(outer.path().join("file"), "").expect("writable");
        assert!(WorkDir::create(Some(&outer.path().join("file/x"))).is_err());
    }
}
