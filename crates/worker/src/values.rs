//! Holds values of calls that are too long for the server. They stay in files of the worker that
//! produced them.
//!
//! ```text
//!   interpreter ── file ──▶ ValueStore ── reference ──▶ server ──▶ client ──▶ who needs it
//!                               │ value_server: its own port and key
//!   other workers, bridges ◀────┘ get, drop
//! ```
//!
//! The client passes the reference on in the arguments of other calls, and drops the value at its
//! holder when no further call can need it. A worker fetches each value once, however many of its
//! calls need it, and keeps the copy for a while after the last one. If the holder's file can be
//! opened by its path, as on the same machine, nothing is copied. `cache` limits the total size.
//! Values of jobs that the server has forgotten are deleted, and all values end with the worker.
//! The worker does not interpret values.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hq_core::id::JobId;
use hq_core::limits::HELD_JOBS_MAX;
use hq_core::worker_state::InstanceKey;
use hq_protocol::SecretKey;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::{JoinHandle, spawn_blocking};

use crate::scratch_dir::this_machine;

mod cache;
mod fetch;
mod reference;
mod value_server;

pub(crate) use cache::{NoRoom, ValueFile};
use cache::{Source, ValueCache};
pub use fetch::{FetchError, drop_values, fetch};
pub use reference::Reference;

/// The maximum number of values that are fetched at the same time. Each fetch needs a connection
/// and a writing thread.
const FETCHES_MAX: usize = 16;
/// The pause between two sweeps of unused copies.
const SWEEP_PAUSE: Duration = Duration::from_secs(15);

/// The port where other processes fetch values.
struct ValuePort {
    at: Vec<(String, u16)>,
    key: SecretKey,
    serving: JoinHandle<()>,
}

/// The name of a value, and the result of the attempt to fetch it.
pub(crate) type Fetched = (String, Result<Arc<ValueFile>, FetchError>);

/// The values of this worker, and copies of other workers' values.
pub(crate) struct ValueStore {
    dir: PathBuf,
    machine: String,
    /// The host name and id of this worker, and its address on the route to the server.
    host: Box<str>,
    worker: u32,
    ip: Option<IpAddr>,
    cache: Arc<ValueCache>,
    /// `None` if nothing has been held so far, so the port is not open.
    holding: Option<ValuePort>,
    /// Running fetches, by name.
    under_way: HashMap<String, JoinHandle<()>>,
    /// The channel is unbounded, but holds only one message per requested value.
    fetched: (
        mpsc::UnboundedSender<Fetched>,
        mpsc::UnboundedReceiver<Fetched>,
    ),
    sweeper: Option<JoinHandle<()>>,
    /// The number of copies so far. Each copy gets a unique file name, because an earlier file may
    /// still be in the process of being removed.
    copy_count: u64,
    /// Limits concurrent fetches.
    fetching: Arc<Semaphore>,
}

impl Drop for ValueStore {
    fn drop(&mut self) {
        if let Some(holding) = &self.holding {
            holding.serving.abort();
        }
        for task in self.under_way.values().chain(&self.sweeper) {
            task.abort();
        }
    }
}

impl ValueStore {
    /// Creates a store for the values that interpreters write to `dir`. At most `limit` bytes are
    /// kept, or half of the free space in `dir` if `limit` is `None`.
    pub(crate) fn new(dir: PathBuf, host: &str, limit: Option<u64>) -> Self {
        let limit = limit.unwrap_or_else(|| free_bytes(&dir) / 2);
        Self {
            dir,
            machine: this_machine().trim_end().to_owned(),
            host: host.into(),
            worker: 0,
            ip: None,
            cache: Arc::new(ValueCache::new(limit)),
            holding: None,
            under_way: HashMap::new(),
            fetched: mpsc::unbounded_channel(),
            sweeper: None,
            copy_count: 0,
            fetching: Arc::new(Semaphore::new(FETCHES_MAX)),
        }
    }

    /// Sets the id of this worker, and its address on the route to the server, if it has one.
    pub(crate) fn set_worker(&mut self, id: u32, ip: Option<IpAddr>) {
        self.worker = id;
        self.ip = ip.or(self.ip);
    }

    /// Returns the directory where interpreters write values.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the path where an interpreter writes the value of a call.
    fn path_of(&self, token: u64) -> PathBuf {
        self.dir.join(format!("value-{token}"))
    }

    /// Removes the value that a call may have written before it was killed.
    pub(crate) fn discard(&self, token: u64) {
        remove_files(vec![self.path_of(token)]);
    }

    /// Returns the maximum total size of values in bytes.
    pub(crate) fn limit(&self) -> u64 {
        self.cache.limit()
    }

    /// Takes over the file of `size` bytes that a call has written, and returns its reference. A
    /// value whose call can be repeated may be evicted to make room. After an error, the file is
    /// removed.
    ///
    /// # Errors
    ///
    /// See [`HoldError`].
    pub(crate) fn hold(
        &mut self,
        (token, size): (u64, u64),
        key: InstanceKey,
        can_be_made_again: bool,
    ) -> Result<Reference, HoldError> {
        let held = self.try_hold((self.path_of(token), size), key, can_be_made_again);
        if held.is_err() {
            self.discard(token);
        }
        held
    }

    fn try_hold(
        &mut self,
        (path, size): (PathBuf, u64),
        key: InstanceKey,
        can_be_made_again: bool,
    ) -> Result<Reference, HoldError> {
        let (reservation, gone) = self.cache.reserve(size)?;
        remove_files(gone);
        let none = || io::Error::other("the system has no random numbers");
        let name = reference::new_name().ok_or_else(none)?;
        let worker = self.worker;
        // Without a port, the value could not be fetched.
        let machine = self.machine.clone();
        let holding = self.holding()?;
        let at = (&holding.key, &holding.at[..], &*machine);
        let reference = Reference::new(key, worker, (name.clone(), size, path.clone()), at);
        let source = Source::Own {
            job: key.task.job,
            can_be_made_again,
        };
        reservation.fill(&name, path, source);
        Ok(reference)
    }

    /// Returns the port, which is opened for the first value.
    fn holding(&mut self) -> io::Result<&ValuePort> {
        if self.holding.is_none() {
            let key = SecretKey::generate().map_err(io::Error::other)?;
            let listener = self.listen()?;
            let port = listener.local_addr()?.port();
            let serving = value_server::serve(listener, key.clone(), Arc::clone(&self.cache));
            let ip = self.ip.filter(|ip| !ip.is_loopback());
            let mut at: Vec<String> = ip.iter().map(IpAddr::to_string).collect();
            // A worker of another machine at this address has another key, so the client then tries
            // the next address.
            if self.ip.is_some() {
                at.push((*self.host).to_owned());
            }
            if ip.is_none() {
                at.push(Ipv4Addr::LOCALHOST.to_string());
            }
            self.holding = Some(ValuePort {
                at: at.into_iter().map(|host| (host, port)).collect(),
                key,
                serving: tokio::spawn(serving),
            });
        }
        let none = || io::Error::other("other workers cannot fetch values from this one");
        self.holding.as_ref().ok_or_else(none)
    }

    fn listen(&self) -> io::Result<TcpListener> {
        let open = |ip: IpAddr| std::net::TcpListener::bind(SocketAddr::new(ip, 0));
        let listener = match self.ip {
            // The server is in this process, so no other machine connects.
            None => open(Ipv4Addr::LOCALHOST.into()),
            // Listen on both IPv6 and IPv4 where possible.
            Some(_) => {
                open(Ipv6Addr::UNSPECIFIED.into()).or_else(|_| open(Ipv4Addr::UNSPECIFIED.into()))
            }
        }?;
        listener.set_nonblocking(true)?;
        TcpListener::from_std(listener)
    }

    /// Returns the file of a value if it is here. Otherwise the value is fetched, and
    /// [`Self::next`] reports the result.
    ///
    /// # Errors
    ///
    /// Returns [`FetchError::Gone`] if this worker produced the value and no longer holds it.
    pub(crate) fn get(
        &mut self,
        reference: &Reference,
    ) -> Result<Option<Arc<ValueFile>>, FetchError> {
        let is_own = self
            .holding
            .as_ref()
            .is_some_and(|holding| holding.key == reference.key);
        if is_own {
            let (file, _) = self.cache.own(&reference.name).ok_or(FetchError::Gone)?;
            return Ok(Some(file));
        }
        let name = &reference.name;
        if let Some(file) = self.cache.other(name) {
            return Ok(Some(file));
        }
        if !self.under_way.contains_key(name) {
            let task = self.start_fetch(reference.clone());
            self.under_way.insert(name.clone(), task);
        }
        Ok(None)
    }

    fn start_fetch(&mut self, reference: Reference) -> JoinHandle<()> {
        self.copy_count += 1;
        let (cache, fetching) = (Arc::clone(&self.cache), Arc::clone(&self.fetching));
        let told = self.fetched.0.clone();
        let to = self
            .dir
            .join(format!("copy-{}-{}", self.copy_count, reference.name));
        let is_here = reference.machine == self.machine;
        tokio::spawn(async move {
            let theirs = (reference.path.clone(), reference.size);
            let is_readable = is_here && spawn_blocking(|| is_whole(theirs)).await.unwrap_or(false);
            let result = if is_readable {
                Ok(cache.add_foreign(&reference.name, reference.path.clone()))
            } else {
                // The semaphore is never closed.
                let _turn = fetching.acquire().await;
                fetch_copy(&cache, &reference, to).await
            };
            // This fails only if the worker ends.
            let _ = told.send((reference.name, result));
        })
    }

    /// Returns whether there can be room for all of these values at once. If `now` is set,
    /// considers the values that are in use at present. Otherwise assumes that no other value is in
    /// use.
    pub(crate) fn fits(&self, references: &[Reference], now: bool) -> bool {
        let needs: Vec<_> = references
            .iter()
            .map(|one| (&*one.name, one.size))
            .collect();
        self.cache.fits(&needs, now)
    }

    /// Returns the next result of a fetch.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub(crate) async fn next(&mut self) -> Fetched {
        match self.fetched.1.recv().await {
            Some(fetched) => self.note(fetched),
            // This cannot happen, because `self` holds a sender.
            None => std::future::pending().await,
        }
    }

    /// Returns the next available result, or `None` if there is none.
    pub(crate) fn try_next(&mut self) -> Option<Fetched> {
        let fetched = self.fetched.1.try_recv().ok()?;
        Some(self.note(fetched))
    }

    fn note(&mut self, fetched: Fetched) -> Fetched {
        self.under_way.remove(&fetched.0);
        let is_idle = self.sweeper.as_ref().is_none_or(JoinHandle::is_finished);
        if fetched.1.is_ok() && is_idle {
            self.sweeper = Some(tokio::spawn(sweep(Arc::clone(&self.cache))));
        }
        fetched
    }

    /// Returns the jobs whose values are held, up to the limit of a heartbeat.
    pub(crate) fn held_jobs(&self) -> Vec<JobId> {
        self.cache.jobs(HELD_JOBS_MAX)
    }

    /// Deletes the values of jobs that no longer exist, or of all jobs if `jobs` is `None`.
    pub(crate) fn forget_jobs(&self, jobs: Option<&[JobId]>) {
        remove_files(self.cache.take_of_jobs(jobs));
    }
}

/// Why a value cannot be held.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HoldError {
    /// Values in use take up the space.
    #[error(transparent)]
    NoRoom(#[from] NoRoom),
    /// The file or the port cannot be used.
    #[error("it cannot be kept: {0}")]
    Io(#[from] io::Error),
}

/// Returns the number of free bytes of a file system, or the maximum if it is unknown.
fn free_bytes(dir: &Path) -> u64 {
    rustix::fs::statvfs(dir).map_or(u64::MAX, |found| {
        found.f_bavail.saturating_mul(found.f_frsize)
    })
}

/// Removes files on another thread, because removing a large file may take a long time.
fn remove_files(paths: Vec<PathBuf>) {
    if paths.is_empty() {
        return;
    }
    drop(spawn_blocking(move || {
        for path in paths {
            match std::fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    tracing::warn!("a value cannot be removed from {}: {error}", path.display());
                }
                Ok(()) | Err(_) => {}
            }
        }
    }));
}

async fn fetch_copy(
    cache: &Arc<ValueCache>,
    reference: &Reference,
    to: PathBuf,
) -> Result<Arc<ValueFile>, FetchError> {
    let local = |error: NoRoom| FetchError::Local {
        size: reference.size,
        place: to.display().to_string(),
        error: io::Error::other(error),
    };
    let (reservation, gone) = cache.reserve(reference.size).map_err(local)?;
    remove_files(gone);
    fetch(reference, &to).await?;
    Ok(reservation.fill(&reference.name, to, Source::Copied))
}

/// Returns whether a file exists with the size of its value.
fn is_whole((path, size): (PathBuf, u64)) -> bool {
    let file = hq_private::read_file(&path).and_then(|file| file.metadata());
    file.is_ok_and(|file| file.len() == size)
}

/// Removes unused copies until none are left.
async fn sweep(cache: Arc<ValueCache>) {
    loop {
        tokio::time::sleep(SWEEP_PAUSE).await;
        let (idle, are_left) = cache.take_idle();
        remove_files(idle);
        if !are_left {
            return;
        }
    }
}

#[cfg(test)]
mod tests;
