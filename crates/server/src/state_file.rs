//! Locates the state and opens the store.

use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use hq_core::id::QueueId;
use hq_core::server_state::ServerState;
use hq_store::{Health, InspectedStore, Lock, Progress, Store, StoreError, StoreHandle};
use tokio::sync::watch;

use crate::clock::Clock;
use crate::config::{Journal, ServerConfig};

pub(crate) use hq_protocol::access::STATE_FILE_NAME as FILE_NAME;
use hq_protocol::access::{JOURNAL_LINK_NAME as NOTE_NAME, ServerDir};
/// The target of the journal link of a server without a store.
const NOWHERE: &str = "/dev/null";

/// Records where the state of an instance is. A journal inside the server directory is recorded as
/// a relative path, which stays valid in a copy of the directory.
pub(crate) fn note_journal(dir: &ServerDir, instance: &Path, journal: &Journal) -> io::Result<()> {
    let target = match journal {
        Journal::InServerDir => return Ok(()),
        Journal::File(path) => {
            let path = std::path::absolute(path)?;
            match path.strip_prefix(dir.root()) {
                Ok(inside) => Path::new("..").join(inside),
                Err(_) => path,
            }
        }
        Journal::None => PathBuf::from(NOWHERE),
    };
    symlink(target, instance.join(NOTE_NAME))
}

pub(crate) fn noted_journal(instance: &Path) -> Journal {
    match std::fs::read_link(instance.join(NOTE_NAME)) {
        Ok(target) if target == Path::new(NOWHERE) => Journal::None,
        Ok(target) => Journal::File(match (target.strip_prefix(".."), instance.parent()) {
            (Ok(inside), Some(dir)) => dir.join(inside),
            (Ok(_), None) | (Err(_), _) => target,
        }),
        Err(_) => Journal::InServerDir,
    }
}

impl Journal {
    /// Returns the path of the state file of an instance's server. The file need not exist.
    pub(crate) fn path(&self, instance: &Path) -> PathBuf {
        match self {
            Self::File(path) => path.clone(),
            Self::InServerDir | Self::None => instance.join(FILE_NAME),
        }
    }

    pub(crate) fn is_at(&self, file: &Path) -> bool {
        match self {
            Self::File(path) => {
                let same = |path: &Path| path.canonicalize().ok();
                path == file || same(path).is_some_and(|path| Some(path) == same(file))
            }
            Self::InServerDir | Self::None => false,
        }
    }
}

/// Opens the store, or returns `None` for a server without one. `looked` is the store of the server
/// to be continued, if it could be read.
pub(crate) fn open(
    config: &ServerConfig,
    instance: &Path,
    looked: Option<InspectedStore>,
) -> Result<Option<Store>, StoreError> {
    let store = match (looked, &config.journal) {
        (_, Journal::None) => return Ok(None),
        (Some(looked), _) => looked.open(),
        (None, journal) => Store::open(&journal.path(instance)),
    };
    let store = store?.with_size_max(config.journal_size_max);
    if config.fresh {
        store.note_fresh()?;
    }
    Ok(Some(store))
}

/// The restored state, and the store to continue with.
pub(crate) struct RestoredServer {
    pub(crate) state: ServerState,
    /// The queues of automatic allocation. `None` stands for a removed queue.
    pub(crate) queues: Vec<(QueueId, Option<Vec<u8>>)>,
    /// The tokens for programs: names and records.
    pub(crate) tokens: Vec<(String, String)>,
    /// The writer and its progress.
    pub(crate) store: Option<(StoreHandle, watch::Receiver<Progress>)>,
    /// The lock of the instance of a server without a store.
    pub(crate) lock: Option<Lock>,
}

impl RestoredServer {
    /// Returns the empty state of a server without a store.
    pub(crate) fn unstored(uid: &str, lock: Option<Lock>) -> Self {
        Self {
            state: ServerState::new(uid),
            queues: Vec::new(),
            tokens: Vec::new(),
            store: None,
            lock,
        }
    }
}

/// Restores the state and starts the writer.
pub(crate) fn load(store: Store, uid: &str) -> Result<RestoredServer, StoreError> {
    let now = Clock::new().now();
    let loaded = store.load(uid, now)?;
    if loaded.is_restored {
        tracing::info!(
            jobs = loaded.state.jobs().len(),
            "state restored from '{}'",
            store.path().display()
        );
    }
    if let Some(report) = &loaded.repaired {
        tracing::warn!(
            "'{}' was repaired before this start:",
            store.path().display()
        );
        for line in report.lines() {
            tracing::warn!("{line}");
        }
    }
    if loaded.dropped_count > 0 {
        tracing::warn!(
            "{} stored records belong to no known job and were ignored",
            loaded.dropped_count
        );
    }
    let (tx, rx) = watch::channel(Progress {
        committed: 0,
        health: Health::Good,
    });
    let awaited = loaded.state.awaited_workers();
    if awaited > 0 {
        tracing::info!(
            "waiting for {awaited} workers of the earlier run, which may still run its tasks"
        );
    }
    let handle = store.start(uid, &loaded.gone_workers, now.wall, move |progress| {
        tx.send_replace(progress);
    })?;
    Ok(RestoredServer {
        state: loaded.state,
        queues: loaded.queues,
        tokens: loaded.tokens,
        store: Some((handle, rx)),
        lock: None,
    })
}
