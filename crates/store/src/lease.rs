//! Ensures that a store has only one server. The lease records the owner, the boot of its host, and
//! a fencing number that increases with each owner.
//!
//! An owner on the same host is known to be dead if its process no longer exists; an owner on
//! another host, if its heartbeat does not change. Every transaction checks the fencing number, so
//! a server that was presumed dead and resumes cannot write anymore.

use std::ops::Deref;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use rusqlite::{Connection, ErrorCode, OptionalExtension as _, TransactionBehavior, params};

use crate::place::Place;
use crate::process::Process;
use crate::{StoreError, schema};

/// The interval between heartbeats.
pub(crate) const HEARTBEAT: Duration = Duration::from_secs(3);
/// How long the heartbeat of another host's lease may stay unchanged before the lease expires.
const PATIENCE: Duration = Duration::from_secs(10);
/// The interval between reads of another host's heartbeat.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);

/// The owner, as stored in the lease.
struct Owner {
    process: Process,
    heartbeat: i64,
    fence: i64,
    is_held: bool,
}

/// Waits until no other server owns the store, before the file is used. Returns the fencing number
/// of the last owner if it can be read. Damage is handled by the repair.
pub(crate) fn look(place: &Place, given: &Path) -> Result<Option<i64>, StoreError> {
    let first = peek(place, given)?;
    let fence = first.as_ref().map(|owner| owner.fence);
    // This only reads, because the file may turn out to belong to another program and must not be
    // changed.
    wait_until_free(first, given, || peek(place, given))?;
    Ok(fence)
}

/// Reads the lease on a separate connection that leaves no files behind. If each process keeps the
/// index of the log in its own memory, only a new connection sees the latest writes of other
/// processes.
fn peek(place: &Place, given: &Path) -> Result<Option<Owner>, StoreError> {
    let looked = place.open_for_peek().and_then(|connection| {
        let version: i32 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
        // A file without tables has no owner.
        let owner = if version > 0 {
            read(&connection)?
        } else {
            None
        };
        Ok((version, owner))
    });
    match looked {
        // This is checked before any table is read, because a later release may have changed its
        // meaning.
        Ok((version, _)) if version > schema::version() => Err(schema::too_new(given, version)),
        Ok((_, owner)) => Ok(owner),
        Err(error) => match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Err(StoreError::InUse {
                path: given.to_path_buf(),
                owner: "it holds the lock of the file".to_owned(),
            }),
            // If the file has errors, opening it reports them in more detail.
            _ => Ok(None),
        },
    }
}

/// Returns when no other server owns the store. `again` reads the lease.
fn wait_until_free(
    owner: Option<Owner>,
    given: &Path,
    mut again: impl FnMut() -> Result<Option<Owner>, StoreError>,
) -> Result<(), StoreError> {
    let Some(owner) = owner.filter(|owner| owner.is_held) else {
        return Ok(());
    };
    let in_use = || StoreError::InUse {
        path: given.to_path_buf(),
        owner: owner.process.to_string(),
    };
    if owner.process.is_near() {
        // The owner is an earlier store of this process, which has released its lock.
        let is_ours = owner.process == Process::this();
        return if is_ours || owner.process.is_gone() {
            Ok(())
        } else {
            Err(in_use())
        };
    }
    tracing::info!(
        "`{}` was last used by {}; watching for {} seconds whether that server still writes to it",
        given.display(),
        owner.process,
        PATIENCE.as_secs()
    );
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until {
        std::thread::sleep(LOOK_INTERVAL);
        // Only a change of the heartbeat counts, because the clocks of two hosts may differ.
        if again()?.is_some_and(|now| now.heartbeat != owner.heartbeat) {
            return Err(in_use());
        }
    }
    Ok(())
}

/// A connection to a store that this process has leased. Dropping it releases the lease, so that
/// the store does not seem to be in use if the server fails to start later.
#[derive(Debug)]
pub(crate) struct Leased {
    /// `None` if [`Self::keep`] has taken it.
    connection: Option<Connection>,
    fence: i64,
}

impl Leased {
    /// Takes the lease of a store whose last owner had the fencing number `seen`.
    pub(crate) fn take(
        mut connection: Connection,
        given: &Path,
        seen: Option<i64>,
    ) -> Result<Self, StoreError> {
        let fence = take(&mut connection, given, seen)?;
        Ok(Self {
            connection: Some(connection),
            fence,
        })
    }

    /// Returns the connection and the fencing number, and keeps the lease.
    pub(crate) fn keep(mut self) -> (Connection, i64) {
        let connection = self.connection.take();
        (connection.expect("only this function takes it"), self.fence)
    }
}

impl Deref for Leased {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        let connection = self.connection.as_ref();
        connection.expect("only `keep` takes it, and ends the value")
    }
}

impl Drop for Leased {
    fn drop(&mut self) {
        if let Some(connection) = &self.connection
            && let Err(error) = renew(connection, self.fence, false)
        {
            tracing::debug!(%error, "cannot release the lease of the journal");
        }
    }
}

fn take(connection: &mut Connection, given: &Path, seen: Option<i64>) -> Result<i64, StoreError> {
    let sql = StoreError::sql(given);
    let owner = read(connection).map_err(&sql)?;
    if owner.as_ref().map(|owner| owner.fence) != seen {
        // In the meantime, a server of an earlier release, which does not use the lock file, has
        // opened the store, or the lease could not be read before.
        wait_until_free(owner, given, || read(connection).map_err(&sql))?;
    }
    store(connection).map_err(&sql)
}

fn store(connection: &mut Connection) -> rusqlite::Result<i64> {
    // Lock the file before the first read, because two servers must not get the same number.
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let fence = read(&transaction)?.map_or(1, |owner| owner.fence + 1);
    let this = Process::this();
    transaction.execute(
        "INSERT OR REPLACE INTO lease VALUES (1, ?, ?, ?, ?, ?, ?, 1)",
        params![this.host, this.pid, this.start, this.boot, now_ms(), fence],
    )?;
    transaction.commit()?;
    Ok(fence)
}

fn read(connection: &Connection) -> rusqlite::Result<Option<Owner>> {
    let sql = "SELECT host, pid, process_start, boot, heartbeat, fence, is_held FROM lease";
    connection
        .query_row(sql, [], |row| {
            Ok(Owner {
                process: Process {
                    host: row.get(0)?,
                    pid: row.get(1)?,
                    start: row.get(2)?,
                    boot: row.get(3)?,
                },
                heartbeat: row.get(4)?,
                fence: row.get(5)?,
                is_held: row.get(6)?,
            })
        })
        .optional()
}

/// Renews the lease in a transaction. Returns `false` if another server has taken it.
pub(crate) fn renew(connection: &Connection, fence: i64, hold: bool) -> rusqlite::Result<bool> {
    let sql = "UPDATE lease SET heartbeat = ?, is_held = ? WHERE fence = ?";
    let mut statement = connection.prepare_cached(sql)?;
    // A new owner changes the number, so no row matches in that case.
    Ok(statement.execute(params![now_ms(), hold, fence])? == 1)
}

/// Returns whether this server still has the lease. The transaction must hold the lock of the file.
pub(crate) fn is_ours(connection: &Connection, fence: i64) -> rusqlite::Result<bool> {
    let sql = "SELECT EXISTS (SELECT 1 FROM lease WHERE fence = ?)";
    connection
        .prepare_cached(sql)?
        .query_row([fence], |row| row.get(0))
}

fn now_ms() -> i64 {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .ok()
        .and_then(|since| i64::try_from(since.as_millis()).ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Store;
    use crate::testing::{change, filled};
    use hq_core::id::JobId;
    use hq_core::server_state::ChangeKind;

    #[test]
    fn a_start_that_goes_no_further_gives_the_lease_back() {
        let dir = tempfile::tempdir().expect("directory");
        let path = dir.path().join("j.db");
        filled(&path, &[1]);
        drop(Store::open(&path).expect("it is free"));
        let connection = Connection::open(&path).expect("a database");
        let owner = read(&connection).expect("a table").expect("an owner");
        assert!(!owner.is_held);
    }

    /// Makes the file look as if a server on another host used it.
    fn give_away(path: &Path) -> Connection {
        let elsewhere = Connection::open(path).expect("a database");
        let sql = "UPDATE lease SET boot = 'elsewhere', host = 'node7', is_held = 1";
        elsewhere.execute(sql, []).expect("a lease");
        elsewhere
    }

    #[test]
    fn a_server_on_another_host_that_lives_keeps_its_file() {
        let dir = tempfile::tempdir().expect("directory");
        let path = dir.path().join("j.db");
        filled(&path, &[1]);
        let elsewhere = give_away(&path);
        let (over, is_over) = std::sync::mpsc::channel::<()>();
        let beats = std::thread::spawn(move || {
            let pause = Duration::from_millis(20);
            while is_over.recv_timeout(pause) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                // This may fail, because the server may be writing.
                let _ = elsewhere.execute("UPDATE lease SET heartbeat = heartbeat + 1", []);
            }
        });
        let refused = Store::open(&path).expect_err("it is in use").to_string();
        assert!(refused.contains("on node7"), "{refused}");
        drop(over);
        beats.join().expect("it ends");
    }

    #[test]
    fn a_server_that_was_taken_for_dead_writes_no_more() {
        let dir = tempfile::tempdir().expect("directory");
        let path = dir.path().join("j.db");
        let (tx, rx) = std::sync::mpsc::channel();
        let store = Store::open(&path).expect("a fresh file");
        let mut handle = store
            .start("TestUid", &[], crate::testing::NOW.wall, move |progress| {
                // At the end, the receiver no longer exists.
                let _ = tx.send(progress);
            })
            .expect("a writer");
        let other = Connection::open(&path).expect("a database");
        other
            .execute("UPDATE lease SET fence = fence + 1", [])
            .expect("a lease");
        handle.store(vec![change(ChangeKind::JobsForgotten(vec![JobId(1)]))]);
        let last = rx.iter().last().expect("a report");
        assert!(
            matches!(&last.health, crate::Health::Broken(text) if text.contains("taken over")),
            "{last:?}"
        );
        let number: i64 = other
            .query_row("SELECT fence FROM lease", [], |row| row.get(0))
            .expect("a lease");
        assert_eq!(number, 2);
    }

    /// A process that ends when this value is dropped.
    struct Sleeper(std::process::Child);

    impl Drop for Sleeper {
        fn drop(&mut self) {
            // The process may have already ended.
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    /// Makes another process of this host the owner of a file.
    fn hand_to_process(path: &Path) -> Sleeper {
        let child = std::process::Command::new("sleep").arg("1000").spawn();
        let child = Sleeper(child.expect("a process"));
        let mut this = Process::this();
        this.pid = child.0.id();
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", this.pid)).expect("it lives");
        let fields = stat.rsplit_once(')').expect("a name").1;
        let start = fields.split_whitespace().nth(19).expect("a start");
        let connection = Connection::open(path).expect("a database");
        let sql = "UPDATE lease SET pid = ?, process_start = ?, is_held = 1";
        connection
            .execute(sql, params![this.pid, start])
            .expect("a lease");
        child
    }

    fn fence(path: &Path) -> i64 {
        let connection = Connection::open(path).expect("a database");
        let owner = read(&connection).expect("a table").expect("an owner");
        owner.fence
    }

    #[test]
    fn a_file_of_a_living_process_is_refused_with_its_name_and_that_of_a_dead_one_is_taken() {
        let dir = tempfile::tempdir().expect("directory");
        let path = dir.path().join("j.db");
        filled(&path, &[1]);
        let child = hand_to_process(&path);
        let pid = child.0.id();
        let refused = Store::open(&path).expect_err("it is in use").to_string();
        let connection = Connection::open(&path).expect("a database");
        let hold = |is_held: bool| {
            let sql = "UPDATE lease SET is_held = ?";
            connection.execute(sql, [is_held]).expect("a lease");
        };
        hold(false);
        Store::look(&path).expect("it has given the lease back");
        hold(true);
        drop(connection);
        drop(child);
        assert!(refused.contains(&format!("process {pid}")), "{refused}");
        let before = fence(&path);
        drop(Store::open(&path).expect("it is free"));
        assert!(fence(&path) > before);
    }

    #[test]
    fn an_owner_that_came_since_the_last_look_is_looked_at_again() {
        let dir = tempfile::tempdir().expect("directory");
        let path = dir.path().join("j.db");
        filled(&path, &[1]);
        let seen = fence(&path);
        let _child = hand_to_process(&path);
        let mut connection = Connection::open(&path).expect("a database");
        let other = take(&mut connection, &path, Some(seen - 1));
        assert!(matches!(other, Err(StoreError::InUse { .. })), "{other:?}");
        let same = take(&mut connection, &path, Some(seen));
        assert_eq!(same.expect("it was looked at before"), seen + 1);
    }

    #[test]
    fn a_lease_that_was_given_back_is_free_at_once_also_one_of_another_machine() {
        let mut process = Process::this();
        process.boot = "elsewhere".into();
        let owner = Owner {
            process,
            heartbeat: 1,
            fence: 1,
            is_held: false,
        };
        let again = || panic!("nothing has to be waited for");
        wait_until_free(Some(owner), Path::new("j.db"), again).expect("it is free");
    }

    #[test]
    fn a_lease_is_renewed_by_its_number_only() {
        let dir = tempfile::tempdir().expect("directory");
        let path = dir.path().join("j.db");
        filled(&path, &[1]);
        let connection = Connection::open(&path).expect("a database");
        let number = fence(&path);
        assert!(!renew(&connection, number + 1, true).expect("a table"));
        assert!(!read(&connection).expect("a table").expect("one").is_held);
        assert!(renew(&connection, number, true).expect("a table"));
        assert!(read(&connection).expect("a table").expect("one").is_held);
    }
}
