//! One server per store: who holds it, since which boot, and a number that grows with each owner.
//!
//! On one host a dead owner is recognised by its process; on different hosts by a heartbeat that stands
//! still. The fencing number is checked in every transaction, so a server that was taken for dead and
//! comes back cannot write any more.

use std::path::Path;
use std::time::{Duration, SystemTime};

use rusqlite::{Connection, OptionalExtension as _, TransactionBehavior, params};

use crate::StoreError;

/// Period of heartbeats.
pub(crate) const HEARTBEAT: Duration = Duration::from_secs(3);
/// A lease of another host whose heartbeat stands still this long is free.
const PATIENCE: Duration = Duration::from_secs(10);
/// Pause between two looks at a foreign heartbeat.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);

/// An owner as stored.
struct Owner {
    host: String,
    pid: u32,
    process_start: i64,
    boot: String,
    heartbeat: i64,
    fence: i64,
    is_held: bool,
}

/// Takes the lease, if need be after the patience that a foreign heartbeat asks for.
pub(crate) fn take(connection: &mut Connection, path: &Path) -> Result<i64, StoreError> {
    let sql = StoreError::sql(path);
    let boot = boot();
    let first = read(connection).map_err(&sql)?;
    if let Some(owner) = first.filter(|owner| owner.is_held) {
        let in_use = |owner: &Owner| StoreError::InUse {
            path: path.to_path_buf(),
            owner: format!("process {} on {}", owner.pid, owner.host),
        };
        let is_ours = owner.pid == std::process::id() && owner.process_start == start_of(owner.pid);
        if owner.boot == boot {
            if !is_ours && start_of(owner.pid) == owner.process_start && owner.process_start != 0 {
                return Err(in_use(&owner));
            }
        } else {
            tracing::info!(
                host = owner.host,
                "the journal was last used on another host; waiting whether it still is"
            );
            let until = std::time::Instant::now() + PATIENCE;
            while std::time::Instant::now() < until {
                std::thread::sleep(LOOK_INTERVAL);
                let now = read(connection).map_err(&sql)?;
                if now.is_some_and(|now| now.heartbeat != owner.heartbeat) {
                    return Err(in_use(&owner));
                }
            }
        }
    }
    store(connection, &boot).map_err(sql)
}

fn store(connection: &mut Connection, boot: &str) -> rusqlite::Result<i64> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let fence = read(&transaction)?.map_or(1, |owner| owner.fence + 1);
    let pid = std::process::id();
    transaction.execute(
        "INSERT OR REPLACE INTO lease VALUES (1, ?, ?, ?, ?, ?, ?, 1)",
        params![host(), pid, start_of(pid), boot, now_ms(), fence],
    )?;
    transaction.commit()?;
    Ok(fence)
}

fn read(connection: &Connection) -> rusqlite::Result<Option<Owner>> {
    let sql = "SELECT host, pid, process_start, boot, heartbeat, fence, is_held FROM lease";
    connection
        .query_row(sql, [], |row| {
            Ok(Owner {
                host: row.get(0)?,
                pid: row.get(1)?,
                process_start: row.get(2)?,
                boot: row.get(3)?,
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
    Ok(statement.execute(params![now_ms(), hold, fence])? == 1)
}

fn host() -> String {
    rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned()
}

/// Boot of the kernel and our view of its processes: only within both does a pid mean something.
fn boot() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let pids = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    format!("{} {}", boot.trim(), pids.display())
}

/// When a process started, in ticks since boot; 0 if there is none.
fn start_of(pid: u32) -> i64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name may contain blanks and parentheses; field 22 counts from the first.
    let behind = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let mut fields = behind.split_whitespace();
    // An ended process that nobody waited for holds nothing.
    if fields.next() == Some("Z") {
        return 0;
    }
    fields
        .nth(18)
        .and_then(|ticks| ticks.parse().ok())
        .unwrap_or(0)
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
}
