//! Values of calls that are too long for the server: they stay in files of the worker where they were made.
//!
//! ```text
//!   interpreter ── file ──▶ ValueStore ── reference ──▶ server ──▶ client ──▶ who needs it
//!                               │ holder: a port of its own, with a key of its own
//!   other workers, bridges ◀────┘ get, drop
//! ```
//!
//! The client that got a reference passes it on among the arguments of other calls, and tells the holder when nobody can
//! ask any more. A worker fetches each value once, whatever number of its calls need it, and keeps the copy for a while
//! after the last one. Where the holder's file can be opened by its path, as on the same machine, nothing is moved.
//! All of it ends with the worker. What is inside of a value nobody here knows.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hq_core::worker_state::InstanceKey;
use hq_protocol::SecretKey;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::Instant;

use crate::scratch_dir::this_machine;

mod fetch;
mod holder;
mod reference;

pub use fetch::{FetchError, drop_values, fetch};
use holder::Held;
pub use reference::Reference;

/// How long a copy is kept after the last call that needed it: others may follow.
const COPY_KEPT: Duration = Duration::from_secs(60);
/// Values that are got from other workers at once; others wait. Each costs a connection and a thread that writes.
const FETCHES_MAX: usize = 16;

/// A file with a value; a copy of another worker's is removed some time after its last user.
#[derive(Debug)]
pub(crate) struct ValueFile(PathBuf);

impl ValueFile {
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

struct Copy {
    file: Arc<ValueFile>,
    /// Whether the file is ours to remove.
    is_ours: bool,
    used: Instant,
}

/// Values of other workers that are here, by name.
#[derive(Default)]
struct Copies(Mutex<HashMap<String, Copy>>);

impl Copies {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Copy>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self, name: &str) -> Option<Arc<ValueFile>> {
        let mut copies = self.lock();
        let copy = copies.get_mut(name)?;
        copy.used = Instant::now();
        Some(Arc::clone(&copy.file))
    }

    /// Takes those that nobody has used for a while; whether there are others.
    fn take_idle(&self) -> (Vec<PathBuf>, bool) {
        let mut copies = self.lock();
        let mut idle = Vec::new();
        copies.retain(|_, copy| {
            if Arc::strong_count(&copy.file) > 1 {
                copy.used = Instant::now();
            }
            let stays = copy.used.elapsed() < COPY_KEPT;
            if !stays && copy.is_ours {
                idle.push(copy.file.0.clone());
            }
            stays
        });
        (idle, !copies.is_empty())
    }
}

/// A port at which values are given out.
struct Holding {
    at: Vec<(String, u16)>,
    key: SecretKey,
    serving: JoinHandle<()>,
}

/// What has become of an attempt to get a value.
pub(crate) type Fetched = (String, Result<(), FetchError>);

/// Values of this worker, and copies of those of others.
pub(crate) struct ValueStore {
    dir: PathBuf,
    machine: String,
    /// Name and id of this worker, and its address towards the server.
    host: Box<str>,
    worker: u32,
    ip: Option<IpAddr>,
    held: Arc<Held>,
    /// `None` = nothing was held so far, so nobody can come.
    holding: Option<Holding>,
    copies: Arc<Copies>,
    /// Those that are under way, by name.
    under_way: HashMap<String, JoinHandle<()>>,
    /// Unbounded: one message for each value that was asked for.
    fetched: (
        mpsc::UnboundedSender<Fetched>,
        mpsc::UnboundedReceiver<Fetched>,
    ),
    sweeper: Option<JoinHandle<()>>,
    /// Copies that were asked for so far: each has a file name of its own, since an earlier one may be being removed.
    copy_count: u64,
    /// Those that are got from others at once.
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
    /// Interpreters put values into `dir`.
    pub(crate) fn new(dir: PathBuf, host: &str) -> Self {
        Self {
            dir,
            machine: this_machine().trim_end().to_owned(),
            host: host.into(),
            worker: 0,
            ip: None,
            held: Arc::default(),
            holding: None,
            copies: Arc::default(),
            under_way: HashMap::new(),
            fetched: mpsc::unbounded_channel(),
            sweeper: None,
            copy_count: 0,
            fetching: Arc::new(Semaphore::new(FETCHES_MAX)),
        }
    }

    /// Who this worker is, and its address towards the server, if it has one.
    pub(crate) fn set_worker(&mut self, id: u32, ip: Option<IpAddr>) {
        self.worker = id;
        self.ip = ip.or(self.ip);
    }

    /// Where interpreters put values.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Where the interpreter that is at a call puts its value.
    pub(crate) fn place_of(&self, token: u64) -> PathBuf {
        self.dir.join(format!("value-{token}"))
    }

    /// Holds what a call has put into its place, and says what stands for it.
    pub(crate) fn hold(&mut self, token: u64, key: InstanceKey) -> io::Result<Reference> {
        let place = self.place_of(token);
        let size = std::fs::symlink_metadata(&place)?.len();
        let none = || io::Error::other("the system has no random numbers");
        let name = reference::new_name().ok_or_else(none)?;
        let path = self.dir.join(format!("held-{name}"));
        let worker = self.worker;
        // Ahead of the rename: without a port the value would be lost with its file here.
        let machine = self.machine.clone();
        let holding = self.holding()?;
        let at = (&holding.key, &holding.at[..], &*machine);
        let reference = Reference::new(key, worker, (name.clone(), size, path.clone()), at);
        std::fs::rename(&place, &path)?;
        self.held.add(name, path, size);
        Ok(reference)
    }

    /// The port, which is opened when the first value needs it.
    fn holding(&mut self) -> io::Result<&Holding> {
        if self.holding.is_none() {
            let key = SecretKey::generate().map_err(io::Error::other)?;
            let listener = self.listen()?;
            let port = listener.local_addr()?.port();
            let serving = holder::serve(listener, key.clone(), Arc::clone(&self.held));
            let ip = self.ip.filter(|ip| !ip.is_loopback());
            let mut at: Vec<String> = ip.iter().map(IpAddr::to_string).collect();
            // Whoever is there at another machine has another key, and the next one is tried.
            if self.ip.is_some() {
                at.push((*self.host).to_owned());
            }
            if ip.is_none() {
                at.push(Ipv4Addr::LOCALHOST.to_string());
            }
            self.holding = Some(Holding {
                at: at.into_iter().map(|host| (host, port)).collect(),
                key,
                serving: tokio::spawn(serving),
            });
        }
        let none = || io::Error::other("values cannot be given out");
        self.holding.as_ref().ok_or_else(none)
    }

    fn listen(&self) -> io::Result<TcpListener> {
        let open = |ip: IpAddr| std::net::TcpListener::bind(SocketAddr::new(ip, 0));
        let listener = match self.ip {
            // A server in this process: nobody else comes.
            None => open(Ipv4Addr::LOCALHOST.into()),
            // Both kinds of addresses, where there are both.
            Some(_) => {
                open(Ipv6Addr::UNSPECIFIED.into()).or_else(|_| open(Ipv4Addr::UNSPECIFIED.into()))
            }
        }?;
        listener.set_nonblocking(true)?;
        TcpListener::from_std(listener)
    }

    /// The file of a value, if it is here; otherwise it is fetched, and [`Self::next`] tells when it is.
    ///
    /// # Errors
    ///
    /// [`FetchError::Gone`] if it is our own and not held any more.
    pub(crate) fn get(
        &mut self,
        reference: &Reference,
    ) -> Result<Option<Arc<ValueFile>>, FetchError> {
        let is_own = self
            .holding
            .as_ref()
            .is_some_and(|holding| holding.key == reference.key);
        if is_own {
            let (path, _) = self.held.get(&reference.name).ok_or(FetchError::Gone)?;
            return Ok(Some(Arc::new(ValueFile(path))));
        }
        let name = &reference.name;
        if let Some(file) = self.copies.get(name) {
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
        let (copies, fetching) = (Arc::clone(&self.copies), Arc::clone(&self.fetching));
        let told = self.fetched.0.clone();
        let to = self
            .dir
            .join(format!("copy-{}-{}", self.copy_count, reference.name));
        let is_here = reference.machine == self.machine;
        tokio::spawn(async move {
            let theirs = (reference.path.clone(), reference.size);
            let is_readable = is_here && spawn_blocking(|| is_whole(theirs)).await.unwrap_or(false);
            let (path, is_ours) = if is_readable {
                (reference.path.clone(), false)
            } else {
                (to.clone(), true)
            };
            let result = if is_readable {
                Ok(())
            } else {
                // It is never closed.
                let _turn = fetching.acquire().await;
                fetch(&reference, &to).await
            };
            if result.is_ok() {
                let copy = Copy {
                    file: Arc::new(ValueFile(path)),
                    is_ours,
                    used: Instant::now(),
                };
                copies.lock().insert(reference.name.clone(), copy);
            }
            // The worker ends if nobody wants it.
            let _ = told.send((reference.name, result));
        })
    }

    /// A value that was asked for is here, or cannot be had.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost if the future is dropped.
    pub(crate) async fn next(&mut self) -> Fetched {
        match self.fetched.1.recv().await {
            Some(fetched) => self.note(fetched),
            // We have a sender ourselves.
            None => std::future::pending().await,
        }
    }

    /// The same without waiting.
    pub(crate) fn try_next(&mut self) -> Option<Fetched> {
        let fetched = self.fetched.1.try_recv().ok()?;
        Some(self.note(fetched))
    }

    fn note(&mut self, fetched: Fetched) -> Fetched {
        self.under_way.remove(&fetched.0);
        let is_idle = self.sweeper.as_ref().is_none_or(JoinHandle::is_finished);
        if fetched.1.is_ok() && is_idle {
            self.sweeper = Some(tokio::spawn(sweep(Arc::clone(&self.copies))));
        }
        fetched
    }
}

/// Whether a file is there and has the size of its value.
fn is_whole((path, size): (PathBuf, u64)) -> bool {
    let file = std::fs::File::open(path).and_then(|file| file.metadata());
    file.is_ok_and(|file| file.is_file() && file.len() == size)
}

/// Removes copies that nobody uses any more, until there are none.
async fn sweep(copies: Arc<Copies>) {
    loop {
        tokio::time::sleep(COPY_KEPT / 4).await;
        let (idle, are_left) = copies.take_idle();
        let removed = spawn_blocking(move || {
            for path in idle {
                if let Err(error) = std::fs::remove_file(path) {
                    tracing::warn!("a copy of a value cannot be removed: {error}");
                }
            }
        });
        let _ = removed.await;
        if !are_left {
            return;
        }
    }
}

#[cfg(test)]
mod tests;
