//! Where the state is kept, and from there to a running store.

use std::path::{Path, PathBuf};

use hq_core::id::QueueId;
use hq_core::server_state::ServerState;
use hq_core::shell::double_quoted;
use hq_protocol::access::{ACCESS_FILE_NAME, AccessError, ServerDir};
use hq_store::reader;
use hq_store::{Health, Progress, Store, StoreError, StoreHandle};
use tokio::sync::watch;

use crate::clock::Clock;
use crate::config::{Journal, ServerConfig, StartError};

/// Name of the file in the directory of an instance.
pub(crate) const FILE_NAME: &str = "state.db";

/// The instance to go on with, if that was asked for. Otherwise tells what is left aside.
pub(crate) fn find_resumed(
    dir: &ServerDir,
    config: &ServerConfig,
) -> Result<Option<PathBuf>, StartError> {
    if !config.resume {
        if !matches!(config.journal, Journal::File(_)) {
            tell_of_unfinished(dir);
        }
        return Ok(None);
    }
    match last_used(dir)? {
        Some(instance) => Ok(Some(instance)),
        None => Err(StartError::NothingToResume {
            dir: dir.root().to_path_buf(),
        }),
    }
}

/// The last instance that has kept a state. A start that failed, or was killed, may have left an empty one behind it.
fn last_used(dir: &ServerDir) -> Result<Option<PathBuf>, AccessError> {
    for instance in dir.instances()? {
        let file = instance.join(FILE_NAME);
        if !file.exists() {
            continue;
        }
        match reader::was_used(&file) {
            Ok(false) => tracing::info!("no server has used '{}'; looking further", file.display()),
            // An unreadable file is damaged or in use, which is reported when it is opened.
            Ok(true) | Err(_) => return Ok(Some(instance)),
        }
    }
    Ok(None)
}

/// Says what a new instance leaves aside: nobody who restarts a server after a crash wants that unawares.
fn tell_of_unfinished(dir: &ServerDir) {
    let Ok(Some(last)) = last_used(dir) else {
        return;
    };
    let file = last.join(FILE_NAME);
    match reader::unfinished_jobs(&file) {
        Ok(0) => {}
        Ok(count) => {
            let quoted = |path: &Path| double_quoted(&path.to_string_lossy());
            tracing::warn!(
                "The last server of this directory left {count} unfinished {}, which `hq server start --resume` would \
                 have gone on with. To do so now, stop this server and run `hq server start --journal {} \
                 --access-file {}`",
                if count == 1 { "job" } else { "jobs" },
                quoted(&file),
                quoted(&last.join(ACCESS_FILE_NAME)),
            );
        }
        // There is none, or it is for `journal check`.
        Err(error) => tracing::debug!(%error, "the state of the last server cannot be read"),
    }
}

/// `None` if nothing is to be kept.
pub(crate) fn open(config: &ServerConfig, instance: &Path) -> Result<Option<Store>, StoreError> {
    let store = match &config.journal {
        Journal::None => return Ok(None),
        Journal::File(path) => Store::open(path),
        Journal::InServerDir => Store::open(&instance.join(FILE_NAME)),
    };
    Ok(Some(store?.with_size_max(config.journal_size_max)))
}

/// The restored state, and the store to continue with.
pub(crate) struct Opened {
    pub(crate) state: ServerState,
    /// Queues of automatic allocation, `None` = removed.
    pub(crate) queues: Vec<(QueueId, Option<Vec<u8>>)>,
    /// Tokens for programs by their names, with what was kept of them.
    pub(crate) tokens: Vec<(String, String)>,
    /// The writer and how far it is.
    pub(crate) store: Option<(StoreHandle, watch::Receiver<Progress>)>,
}

impl Opened {
    /// The state of a server that keeps nothing.
    pub(crate) fn unstored(uid: &str) -> Self {
        Self {
            state: ServerState::new(uid),
            queues: Vec::new(),
            tokens: Vec::new(),
            store: None,
        }
    }
}

/// Restores the state and starts the writer.
pub(crate) fn load(store: Store, uid: &str) -> Result<Opened, StoreError> {
    let now = Clock::new().now();
    let loaded = store.load(uid, now)?;
    if loaded.is_restored {
        tracing::info!(
            jobs = loaded.state.jobs().len(),
            "state restored from '{}'",
            store.path().display()
        );
    }
    if loaded.dropped_count > 0 {
        tracing::warn!(
            "{} stored records fit no job and were left out",
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
            "waiting for {awaited} workers of the earlier run, which may have its tasks"
        );
    }
    let handle = store.start(uid, &loaded.gone_workers, now.wall, move |progress| {
        tx.send_replace(progress);
    })?;
    Ok(Opened {
        state: loaded.state,
        queues: loaded.queues,
        tokens: loaded.tokens,
        store: Some((handle, rx)),
    })
}
