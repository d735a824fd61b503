//! One server per store: who holds it, since which boot, and a number that grows with each owner.
//!
//! On one host a dead owner is recognised by its process; on different hosts by a heartbeat that stands
//! still. The fencing number is checked in every transaction, so a server that was taken for dead and
//! comes back cannot write any more.

use std::ops::Deref;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use rusqlite::{Connection, ErrorCode, OptionalExtension as _, TransactionBehavior, params};

use crate::place::Place;
use crate::process::Process;
use crate::{StoreError, schema};

/// Period of heartbeats.
pub(crate) const HEARTBEAT: Duration = Duration::from_secs(3);
/// A lease of another host whose heartbeat stands still this long is free.
const PATIENCE: Duration = Duration::from_secs(10);
/// Pause between two looks at a foreign heartbeat.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);

/// An owner as stored.
struct Owner {
    process: Process,
    heartbeat: i64,
    fence: i64,
    is_held: bool,
}

/// Looks who has a store before anything else is done with it, if need be with the patience that a foreign heartbeat
/// asks for. Returns the number of the last owner, if it can be read: what is damaged is for those who repair.
pub(crate) fn look(place: &Place, given: &Path) -> Result<Option<i64>, StoreError> {
    let first = peek(place, given)?;
    let fence = first.as_ref().map(|owner| owner.fence);
    // Reading only: a file that turns out to be somebody else's is left as it was found.
    wait_until_free(first, given, || peek(place, given))?;
    Ok(fence)
}

/// Reads the lease on a connection of its own, which leaves nothing behind: where the index of the log is in the
/// memory of each process, only a new connection sees what another process has written since.
fn peek(place: &Place, given: &Path) -> Result<Option<Owner>, StoreError> {
    let looked = place.glance().and_then(|connection| {
        let version: i32 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
        // Without tables there is no owner.
        let owner = if version > 0 {
            read(&connection)?
        } else {
            None
        };
        Ok((version, owner))
    });
    match looked {
        // Before anything is read from it: tables of a later release may mean something else.
        Ok((version, _)) if version > schema::version() => Err(schema::too_new(given, version)),
        Ok((_, owner)) => Ok(owner),
        Err(error) => match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Err(StoreError::InUse {
                path: given.to_path_buf(),
                owner: "it holds the lock of the file".to_owned(),
            }),
            // Errors of the file are reported when it is opened, with more to go by.
            _ => Ok(None),
        },
    }
}

/// Returns when nobody has the store; `again` reads the lease.
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
        // An earlier store of this process: it no longer has the lock.
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
        // Only a change counts, because clocks of two hosts need not agree.
        if again()?.is_some_and(|now| now.heartbeat != owner.heartbeat) {
            return Err(in_use());
        }
    }
    Ok(())
}

/// A connection to a store that this process has leased. The lease is given back with it, unless somebody goes on: a
/// start that fails for another reason must not look like a server that lives.
#[derive(Debug)]
pub(crate) struct Leased {
    /// `None` = somebody goes on.
    connection: Option<Connection>,
    fence: i64,
}

impl Leased {
    /// Takes the lease of a store whose last owner had the number `seen`.
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

    /// The connection and the number of the lease, for a caller that goes on with both.
    pub(crate) fn keep(mut self) -> (Connection, i64) {
        let connection = self.connection.take();
        (connection.expect("nobody else takes it"), self.fence)
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
            tracing::debug!(%error, "the lease of the journal is not given back");
        }
    }
}

fn take(connection: &mut Connection, given: &Path, seen: Option<i64>) -> Result<i64, StoreError> {
    let sql = StoreError::sql(given);
    let owner = read(connection).map_err(&sql)?;
    if owner.as_ref().map(|owner| owner.fence) != seen {
        // An earlier release, which does not know our lock, came in between; or it could not be read before.
        wait_until_free(owner, given, || read(connection).map_err(&sql))?;
    }
    store(connection).map_err(&sql)
}

fn store(connection: &mut Connection) -> rusqlite::Result<i64> {
    // With the lock of the file from the first read on: two servers must not get the same number.
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

/// Renews the lease inside a transaction; `false` if somebody else took it.
pub(crate) fn renew(connection: &Connection, fence: i64, hold: bool) -> rusqlite::Result<bool> {
    let sql = "UPDATE lease SET heartbeat = ?, is_held = ? WHERE fence = ?";
    let mut statement = connection.prepare_cached(sql)?;
    // No row has this number any more once another server has taken the next one.
    Ok(statement.execute(params![now_ms(), hold, fence])? == 1)
}

/// Whether this server still has the lease, inside a transaction that holds the lock of the file.
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
        drop(Store::open(&path).expect("nobody has it"));
        let connection = Connection::open(&path).expect("a database");
        let owner = read(&connection).expect("a table").expect("an owner");
        assert!(!owner.is_held);
    }

    /// As if a server on another host had the file.
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
                // Somebody else may be writing.
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
                // Nobody listens at the end.
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

    /// A process that ends with the value, whether or not the test succeeds.
    struct Sleeper(std::process::Child);

    impl Drop for Sleeper {
        fn drop(&mut self) {
            // It may be gone already.
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    /// Gives a file to another process of this host.
    fn give_to_a_process(path: &Path) -> Sleeper {
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
        let child = give_to_a_process(&path);
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
        drop(Store::open(&path).expect("nobody has it"));
        assert!(fence(&path) > before);
    }

    #[test]
    fn an_owner_that_came_since_the_last_look_is_looked_at_again() {
        let dir = tempfile::tempdir().expect("directory");
        let path = dir.path().join("j.db");
        filled(&path, &[1]);
        let seen = fence(&path);
        let _child = give_to_a_process(&path);
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
        wait_until_free(Some(owner), Path::new("j.db"), again).expect("nobody has it");
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
