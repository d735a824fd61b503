//! Determines the server that a start continues. For this, it finds the last server of the
//! directory and how that server ended.
//!
//! The stores record how their servers ended. `hq-current` does not, because a crash leaves it
//! behind and a cleanup removes it. The caller holds the start lock of the directory from this
//! check until the new server is published, so the result stays valid.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use hq_core::id::JobId;
use hq_core::job::Job;
use hq_core::shell::double_quoted;
use hq_protocol::access::{ACCESS_FILE_NAME, AccessError, AccessFile, ServerDir};
use hq_store::{Ending, Holder, InspectedStore, Lock, Store, StoreError};

use crate::config::{Journal, ServerConfig, StartError};
use crate::probe;
use crate::state_file::{FILE_NAME, noted_journal};

/// The name of the start lock in the server directory, without the suffix of lock files.
const START_LOCK: &str = "hq-start";
/// How long to wait for another start in the same directory, which may watch a heartbeat for ten
/// seconds.
const START_PATIENCE: Duration = Duration::from_secs(20);
/// How long to wait for a server that has removed its link and closed its ports, and is closing its
/// journal.
const ENDING_PATIENCE: Duration = Duration::from_secs(10);
/// The pause between two attempts.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// The requested kind of start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum StartRequest {
    /// No option was given, so the last server determines the kind of start.
    Plain,
    /// `--resume`.
    Resume,
    /// `--fresh`.
    Fresh,
    /// `--journal FILE` or `--no-journal`: the state is not where the last server kept its state.
    Elsewhere,
}

impl StartRequest {
    fn of(config: &ServerConfig) -> Self {
        match (&config.journal, config.resume, config.fresh) {
            (_, true, _) => Self::Resume,
            (_, _, true) => Self::Fresh,
            (Journal::InServerDir, ..) => Self::Plain,
            (Journal::File(_) | Journal::None, ..) => Self::Elsewhere,
        }
    }
}

/// The last server of a directory. Instances that were never published or never used do not count.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Last {
    /// There is no such server.
    None,
    /// The server ran with `--no-journal`. Contains the server before it.
    Unkept(Box<Last>),
    /// The server is running. Contains the description of its process.
    Alive(String),
    /// The server was stopped together with its workers, with this many unfinished jobs.
    Stopped(u64),
    /// The server ended in another way, with this many unfinished jobs: by SIGTERM,
    /// `server stop --keep-workers`, a crash, or a failure of its store.
    Left(u64),
    /// The server's state is damaged, has a newer format, or cannot be opened now.
    Unknown,
    /// The file given with `--journal` is gone.
    JournalGone,
}

/// The decision about a start.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Decision {
    /// Fails because the server is running. Contains the description of its process.
    RefuseOnline(String),
    /// Fails because `--resume` was given and no server has kept its state.
    RefuseNothing,
    /// Fails because the journal of the last server is gone.
    RefuseGone,
    /// Opens the state of the last server, or fails with the reason why it cannot be opened.
    Continue,
    /// Creates a new instance.
    Begin(Notice),
}

/// A notice about the last server when a start does not continue it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Notice {
    Nothing,
    /// The server left this many unfinished jobs. The notice says how to continue them.
    Unfinished(u64),
    /// The notice says how to open the server's state.
    SetAside,
}

impl Notice {
    /// Returns the text that follows the server's name.
    fn words(self) -> String {
        match self {
            Self::Nothing => "left nothing".to_owned(),
            Self::Unfinished(1) => "left 1 unfinished job".to_owned(),
            Self::Unfinished(count) => format!("left {count} unfinished jobs"),
            Self::SetAside => "is set aside".to_owned(),
        }
    }
}

/// Decides about a start. Without options, a start continues every server that was not stopped on
/// purpose.
fn decide(last: &Last, request: StartRequest) -> Decision {
    let begin = |unfinished| match unfinished {
        0 => Decision::Begin(Notice::Nothing),
        count => Decision::Begin(Notice::Unfinished(count)),
    };
    match (last, request) {
        (Last::Alive(owner), _) => Decision::RefuseOnline(owner.clone()),
        (Last::Unkept(earlier), StartRequest::Plain) => decide(earlier, StartRequest::Elsewhere),
        (Last::Unkept(earlier), _) => decide(earlier, request),
        (Last::None, StartRequest::Resume) => Decision::RefuseNothing,
        (Last::None, _) => Decision::Begin(Notice::Nothing),
        (Last::JournalGone, StartRequest::Plain | StartRequest::Resume) => Decision::RefuseGone,
        (Last::JournalGone, StartRequest::Fresh | StartRequest::Elsewhere) => {
            Decision::Begin(Notice::Nothing)
        }
        (_, StartRequest::Resume) | (Last::Left(_) | Last::Unknown, StartRequest::Plain) => {
            Decision::Continue
        }
        (_, StartRequest::Fresh) | (Last::Unknown, StartRequest::Elsewhere) => {
            Decision::Begin(Notice::SetAside)
        }
        (Last::Stopped(count), StartRequest::Plain | StartRequest::Elsewhere)
        | (Last::Left(count), StartRequest::Elsewhere) => begin(*count),
    }
}

/// The right to start a server in a directory. Always granted on file systems without locks.
pub(crate) struct StartLock {
    _lock: Option<Lock>,
}

impl StartLock {
    /// Waits for other starts in the directory, which must exist.
    pub(crate) async fn take(dir: &ServerDir) -> Result<Self, StartError> {
        let begin = Instant::now();
        loop {
            let path = dir.root().join(START_LOCK);
            match blocking(move || Lock::take(&path)).await? {
                Ok(lock) => return Ok(Self { _lock: Some(lock) }),
                Err(StoreError::InUse { owner, .. }) if begin.elapsed() > START_PATIENCE => {
                    return Err(StartError::Starting {
                        dir: dir.root().to_path_buf(),
                        owner,
                    });
                }
                Err(StoreError::InUse { .. }) => tokio::time::sleep(LOOK_INTERVAL).await,
                Err(StoreError::NoLocks { source, .. }) => {
                    tracing::warn!(
                        "The file system of '{}' offers no file locks ({source}): start one server at a time there",
                        dir.root().display()
                    );
                    return Ok(Self { _lock: None });
                }
                Err(StoreError::Create { path, source }) => {
                    return Err(AccessError::Create { path, source }.into());
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// The server that a start continues.
#[derive(Debug)]
pub(crate) struct Continued {
    /// The instance directory.
    pub(crate) instance: PathBuf,
    /// Where the server keeps its state.
    pub(crate) journal: Journal,
    /// The server's store, locked. `None` if it could not be read.
    pub(crate) looked: Option<InspectedStore>,
    /// Whether the server is continued without `--resume`.
    is_by_itself: bool,
}

impl Continued {
    /// Warns that the server continues, with the number of unfinished jobs.
    pub(crate) fn report(&self, dir: &ServerDir, jobs: &BTreeMap<JobId, Job>) {
        if !self.is_by_itself {
            return;
        }
        let unfinished = jobs.values().filter(|job| !job.is_completed()).count();
        let (instance, hint) = (self.instance.display(), dir.hint());
        let jobs = match unfinished {
            0 => "no job is unfinished".to_owned(),
            1 => "1 unfinished job continues; `hq job cancel all` cancels it".to_owned(),
            count => format!("{count} unfinished jobs continue; `hq job cancel all` cancels them"),
        };
        tracing::warn!(
            "This server continues the last one ({instance}): {jobs}. To start without its jobs instead, stop this server and run \
             `hq server start{hint} --fresh`"
        );
    }
}

/// The contents of the server directory.
struct DirectoryState {
    last: Last,
    /// The instance directory and the journal of the last server that kept its state.
    place: Option<(PathBuf, Journal)>,
    looked: Option<InspectedStore>,
    /// The latest instance that was published but never used. Users and workers may have its keys.
    unused: Option<(PathBuf, Journal)>,
    /// Whether the server of the unused instance was stopped together with its workers.
    was_unused_stopped: bool,
    /// The notice about the server before the last one, if the last one cannot be continued, or if
    /// a fresh start was requested.
    earlier: Option<(Notice, (PathBuf, Journal))>,
}

impl DirectoryState {
    /// Returns the notice about this server for a later start.
    fn into_earlier(self) -> Option<(Notice, (PathBuf, Journal))> {
        let notice = match self.last {
            Last::Left(count) if count > 0 => Notice::Unfinished(count),
            Last::Unknown => Notice::SetAside,
            Last::None
            | Last::Unkept(_)
            | Last::Alive(_)
            | Last::Stopped(_)
            | Last::Left(_)
            | Last::JournalGone => return None,
        };
        Some((notice, self.place?))
    }
}

/// Examines the last server of the directory and decides. Returns the server to continue, or `None`
/// to start fresh, and warnings for the user, which apply once the start has succeeded.
pub(crate) async fn find(
    dir: &ServerDir,
    config: &ServerConfig,
) -> Result<(Option<Continued>, Vec<String>), StartError> {
    let request = StartRequest::of(config);
    if request == StartRequest::Fresh && dir.copied_from().is_some() {
        // The original may be running, but its processes say nothing about the copy.
        return Ok((None, Vec::new()));
    }
    let found = look(dir).await?;
    let is_by_itself = request == StartRequest::Plain;
    let is_unkept = matches!(found.last, Last::Unkept(_));
    let unused = found.unused.map(|(instance, journal)| Continued {
        instance,
        journal,
        looked: None,
        is_by_itself: false,
    });
    match decide(&found.last, request) {
        Decision::RefuseOnline(owner) => Err(probe::silent(dir, &owner)),
        Decision::RefuseNothing if unused.is_some() => Ok((unused, Vec::new())),
        Decision::RefuseNothing => Err(StartError::NothingToResume {
            dir: dir.root().to_path_buf(),
        }),
        Decision::RefuseGone => {
            let earlier = found.earlier.map(|(notice, place)| {
                let (left, command) = (notice.words(), command(&place, dir));
                let instance = place.0.display();
                format!("\nThe server before it ({instance}) {left}; `{command}` continues it")
            });
            Err(StartError::JournalGone {
                path: found
                    .place
                    .map(|(instance, journal)| journal.path(&instance))
                    .unwrap_or_default(),
                hint: dir.hint(),
                earlier: earlier.unwrap_or_default(),
            })
        }
        Decision::Continue => {
            let continued = found.place.map(|(instance, journal)| Continued {
                instance,
                journal,
                looked: found.looked,
                is_by_itself,
            });
            Ok((continued, Vec::new()))
        }
        Decision::Begin(notice) => {
            let mut warnings = Vec::new();
            if is_unkept && is_by_itself {
                warnings.push(
                    "The last server of this directory ran with --no-journal, so its state was not kept. This server starts without jobs"
                        .to_owned(),
                );
            }
            let whose = if is_unkept { "An earlier" } else { "The last" };
            let last = found.place.map(|place| (whose, notice, place));
            let earlier = found
                .earlier
                .map(|(notice, place)| ("An earlier", notice, place));
            for (whose, notice, place) in last.into_iter().chain(earlier) {
                warnings.extend(warning(notice, whose, &place, config, dir));
            }
            let reused = unused.filter(|_| is_by_itself && !is_unkept && !found.was_unused_stopped);
            Ok((reused, warnings))
        }
    }
}

/// Examines the instances, latest first, up to the first relevant one that kept its state.
async fn look(dir: &ServerDir) -> Result<DirectoryState, StartError> {
    let mut is_unkept = false;
    let mut found = find_kept(dir, &dir.instances()?, &mut is_unkept).await?;
    if is_unkept && !matches!(found.last, Last::Alive(_)) {
        found.last = Last::Unkept(Box::new(found.last));
    }
    Ok(found)
}

/// Like [`look`], but sets `is_unkept` if a later server ran with `--no-journal`.
async fn find_kept(
    dir: &ServerDir,
    instances: &[PathBuf],
    is_unkept: &mut bool,
) -> Result<DirectoryState, StartError> {
    let mut found = DirectoryState {
        last: Last::None,
        place: None,
        looked: None,
        unused: None,
        was_unused_stopped: false,
        earlier: None,
    };
    let mut left = instances;
    while let Some((instance, earlier)) = left.split_first() {
        left = earlier;
        let journal = noted_journal(instance);
        let is_published = is_published(dir, instance);
        let file = journal.path(instance);
        let place = || (instance.clone(), journal.clone());
        if journal == Journal::None {
            if let Holder::Alive(owner) = hq_store::holder(&file) {
                found.last = Last::Alive(owner);
                return Ok(found);
            }
            *is_unkept |= is_published;
            continue;
        }
        if !exists(&file) {
            if is_published {
                (found.last, found.place) = (Last::JournalGone, Some(place()));
                found.earlier = find_earlier(dir, earlier).await?;
                return Ok(found);
            }
            continue;
        }
        let (last, looked) = look_at(dir, instance, &file).await?;
        let Some(last) = last else {
            tracing::info!("no server has used '{}'; looking further", file.display());
            if is_published && found.unused.is_none() {
                found.was_unused_stopped = looked.as_ref().is_some_and(was_stopped);
                found.unused = Some(place());
            }
            continue;
        };
        let history = looked.as_ref().and_then(|looked| looked.history().ok());
        if last == Last::Stopped(0) && history.is_some_and(|history| history.is_fresh) {
            found.earlier = find_earlier(dir, earlier).await?;
        }
        found.last = last;
        found.place = Some(place());
        found.looked = looked;
        return Ok(found);
    }
    Ok(found)
}

/// Returns the notice about the last server of these instances.
async fn find_earlier(
    dir: &ServerDir,
    instances: &[PathBuf],
) -> Result<Option<(Notice, (PathBuf, Journal))>, StartError> {
    let found = Box::pin(find_kept(dir, instances, &mut false)).await?;
    Ok(found.into_earlier())
}

/// Returns how the server of an instance ended, and its store. `None` if the instance was never
/// used.
async fn look_at(
    dir: &ServerDir,
    instance: &Path,
    file: &Path,
) -> Result<(Option<Last>, Option<InspectedStore>), StartError> {
    let begin = Instant::now();
    loop {
        let path = file.to_path_buf();
        match blocking(move || Store::look(&path)).await? {
            Ok(looked) => {
                let last = match looked.history() {
                    Ok(history) if !history.is_used => None,
                    Ok(history) if history.ending == Ending::Stopped => {
                        Some(Last::Stopped(history.unfinished_jobs))
                    }
                    Ok(history) => Some(Last::Left(history.unfinished_jobs)),
                    Err(error) => {
                        tracing::debug!(%error, "the state of the last server cannot be read");
                        Some(Last::Unknown)
                    }
                };
                return Ok((last, Some(looked)));
            }
            Err(StoreError::InUse { owner, .. }) => {
                if begin.elapsed() > ENDING_PATIENCE || !is_ending(dir, instance).await {
                    return Ok((Some(Last::Alive(owner)), None));
                }
                tokio::time::sleep(LOOK_INTERVAL).await;
            }
            Err(error) => {
                tracing::debug!(%error, "the state of the last server cannot be read");
                return Ok((Some(Last::Unknown), None));
            }
        }
    }
}

/// Returns whether the server of an instance was published. A start writes the access file before
/// it publishes the server.
fn is_published(dir: &ServerDir, instance: &Path) -> bool {
    instance.join(ACCESS_FILE_NAME).is_file() && !was_interrupted(dir, instance)
}

/// Returns whether the start of an instance was interrupted while it wrote the access file, before
/// publishing.
pub(crate) fn was_interrupted(dir: &ServerDir, instance: &Path) -> bool {
    let is_current = dir.resolve().is_ok_and(|current| current == instance);
    let access = AccessFile::load_to_probe(&instance.join(ACCESS_FILE_NAME));
    !is_current && access.is_err_and(|error| error.is_cut())
}

fn was_stopped(looked: &InspectedStore) -> bool {
    let history = looked.history();
    history.is_ok_and(|history| history.ending == Ending::Stopped)
}

/// Returns whether the server of an instance has removed its link and closed its ports.
async fn is_ending(dir: &ServerDir, instance: &Path) -> bool {
    let is_current = dir.resolve().is_ok_and(|current| current == instance);
    if is_current {
        return false;
    }
    match AccessFile::load_to_probe(&instance.join(ACCESS_FILE_NAME)) {
        Ok(AccessFile {
            client: Some(client),
            ..
        }) => !probe::answers(&client).await,
        Ok(_) | Err(_) => true,
    }
}

/// Returns the warning of a fresh start about the server whose state it leaves, and how to continue
/// that server.
fn warning(
    notice: Notice,
    whose: &str,
    place: &(PathBuf, Journal),
    config: &ServerConfig,
    dir: &ServerDir,
) -> Option<String> {
    let (instance, journal) = place;
    let file = journal.path(instance);
    if config.journal.is_at(&file) {
        // This is the state that the fresh start opens.
        return None;
    }
    if notice == Notice::Nothing {
        return None;
    }
    Some(format!(
        "{whose} server of this directory ({}) {}, and this one starts without its jobs. To continue the earlier one, stop this server \
         and run `{}`",
        instance.display(),
        notice.words(),
        command(place, dir)
    ))
}

/// Returns the command that continues the server of an instance.
fn command((instance, journal): &(PathBuf, Journal), dir: &ServerDir) -> String {
    let quoted = |path: &Path| double_quoted(&path.to_string_lossy());
    let file = journal.path(instance);
    let access = instance.join(ACCESS_FILE_NAME);
    let access = if access.is_file() {
        format!(" --access-file {}", quoted(&access))
    } else {
        String::new()
    };
    format!(
        "hq server start{} --journal {}{access}",
        dir.hint(),
        quoted(&file)
    )
}

/// Returns whether a store, or the remains of one, exists.
fn exists(file: &Path) -> bool {
    let mut log = file.as_os_str().to_owned();
    log.push("-wal");
    [file, Path::new(&log)].iter().any(|path| path.is_file())
}

/// Rejects `--fresh` with a journal that has content.
pub(crate) fn check_fresh(config: &ServerConfig) -> Result<(), StartError> {
    match &config.journal {
        Journal::File(path) if config.fresh => {
            let has_content = std::fs::metadata(path).is_ok_and(|found| found.len() > 0);
            if has_content {
                return Err(StartError::FreshJournal { path: path.clone() });
            }
            Ok(())
        }
        Journal::File(_) | Journal::InServerDir | Journal::None => Ok(()),
    }
}

/// The state of a server that does not answer, according to its files.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SilentServer {
    /// The server crashed on this host, with this many unfinished jobs if they can be counted.
    Crashed(Option<u64>),
    /// The same for a server without a store.
    CrashedUnkept,
    /// The server is running. Contains the description of its process.
    Alive(String),
    /// The server ran on another host. Contains the description of its process.
    Elsewhere(String),
    /// It is unknown whether the server is running.
    Unknown,
}

impl SilentServer {
    /// Reads the lock file of the store in the instance directory, and the store if no process can
    /// have it open.
    #[must_use]
    pub fn of(instance: &Path) -> Self {
        let journal = noted_journal(instance);
        let file = journal.path(instance);
        match hq_store::holder(&file) {
            Holder::Alive(owner) => Self::Alive(owner),
            Holder::Elsewhere(owner) => Self::Elsewhere(owner),
            Holder::Ended if journal == Journal::None => Self::CrashedUnkept,
            Holder::Ended => Self::Crashed(hq_store::reader::unfinished_jobs(&file).ok()),
            Holder::Unknown => Self::Unknown,
        }
    }
}

/// Runs work that waits for disks and processes on a blocking thread.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, StartError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| StartError::System(io::Error::other(error)))
}

/// Locks the directory of a server without a store, so that another start detects this server.
pub(crate) fn lock_unkept(instance: &Path) -> Option<Lock> {
    match Lock::take(&instance.join(FILE_NAME)) {
        Ok(lock) => Some(lock),
        Err(error) => {
            tracing::debug!(%error, "the directory of this server is not locked");
            None
        }
    }
}

/// Creates the server directory, unless this start needs an existing server and there is no
/// directory.
pub(crate) fn check_dir(dir: &ServerDir, config: &ServerConfig) -> Result<(), StartError> {
    if config.resume && !dir.root().exists() {
        return Err(StartError::NothingToResume {
            dir: dir.root().to_path_buf(),
        });
    }
    dir.create().map_err(StartError::Access)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_the_last_server_decides_what_a_start_does() {
        use Decision::{Begin, Continue, RefuseGone, RefuseNothing};
        use Notice::{Nothing, SetAside, Unfinished};
        let online = || Decision::RefuseOnline("process 7 on node1".to_owned());
        let (new, left) = (|| Begin(Nothing), || Begin(Unfinished(2)));
        let alive = || Last::Alive("process 7 on node1".to_owned());
        let unkept = |earlier| Last::Unkept(Box::new(earlier));
        let requests = [
            StartRequest::Plain,
            StartRequest::Resume,
            StartRequest::Fresh,
            StartRequest::Elsewhere,
        ];
        let rows = [
            (Last::None, [new(), RefuseNothing, new(), new()]),
            (unkept(Last::None), [new(), RefuseNothing, new(), new()]),
            (
                unkept(Last::Left(2)),
                [left(), Continue, Begin(SetAside), left()],
            ),
            (
                unkept(Last::Unknown),
                [Begin(SetAside), Continue, Begin(SetAside), Begin(SetAside)],
            ),
            (alive(), [online(), online(), online(), online()]),
            (Last::Stopped(0), [new(), Continue, Begin(SetAside), new()]),
            (
                Last::Stopped(2),
                [left(), Continue, Begin(SetAside), left()],
            ),
            (Last::Left(0), [Continue, Continue, Begin(SetAside), new()]),
            (Last::Left(2), [Continue, Continue, Begin(SetAside), left()]),
            (
                Last::Unknown,
                [Continue, Continue, Begin(SetAside), Begin(SetAside)],
            ),
            (Last::JournalGone, [RefuseGone, RefuseGone, new(), new()]),
        ];
        for (last, expected) in rows {
            for (request, expected) in requests.iter().zip(expected) {
                assert_eq!(decide(&last, *request), expected, "{last:?}, {request:?}");
            }
        }
    }
}
