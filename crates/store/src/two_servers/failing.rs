//! Tests with failing disks, and with files that are removed while a server is running.

use super::*;
use crate::Progress;

#[path = "../../../../tests/skip.rs"]
mod skip;

/// A library to preload before the C library. The file named by the variable contains a number and
/// a suffix. Among the syncs of files with that suffix, the sync with that number fails and leaves
/// a file behind. Another file reports if a commit was written to a write-ahead log before the
/// previous one was synced.
const FAILING_SYNC: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static int is_named(int fd, const char *end) {
    char link[64], path[4096];
    ssize_t len = strlen(end);
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t path_len = readlink(link, path, sizeof path);
    return path_len >= len && !memcmp(path + path_len - len, end, len);
}

static void leave(const char *order, const char *suffix) {
    char path[4096];
    snprintf(path, sizeof path, "%s.%s", order, suffix);
    close(open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
}

static int unsynced;

static int fails(int fd) {
    if (is_named(fd, "-wal")) unsynced = 0;
    const char *order = getenv("HQ_TEST_FAILING_SYNC");
    char text[64];
    int file = order ? open(order, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return 0;
    static int count;
    int number = 0, start = 0;
    ssize_t len = read(file, text, sizeof text - 1);
    close(file);
    text[len < 0 ? 0 : len] = 0;
    if (sscanf(text, "%d %n", &number, &start) != 1) return 0;
    if (!is_named(fd, text + start) || ++count != number) return 0;
    leave(order, "done");
    errno = EIO;
    return 1;
}

int fsync(int fd) { return fails(fd) ? -1 : (int) syscall(SYS_fsync, fd); }
int fdatasync(int fd) { return fails(fd) ? -1 : (int) syscall(SYS_fdatasync, fd); }

/* The header of a frame is 24 bytes; its second number is not 0 in the last one of a transaction. */
static void note_write(int fd, const char *bytes, size_t len) {
    const char *order = getenv("HQ_TEST_FAILING_SYNC");
    if (len == 24 && memcmp(bytes + 4, "\0\0\0", 4) && is_named(fd, "-wal") && unsynced++ && order)
        leave(order, "unsynced");
}

ssize_t write(int fd, const void *bytes, size_t len) {
    note_write(fd, bytes, len);
    return syscall(SYS_write, fd, bytes, len);
}

ssize_t pwrite64(int fd, const void *bytes, size_t len, off64_t at) {
    note_write(fd, bytes, len);
    return syscall(SYS_pwrite64, fd, bytes, len, at);
}

ssize_t pwrite(int fd, const void *bytes, size_t len, off_t at) { return pwrite64(fd, bytes, len, at); }
"#;

/// A server whose disk fails on request.
struct FailingDisk {
    dir: tempfile::TempDir,
    server: Server,
}

impl FailingDisk {
    /// Returns `None` if there is no compiler, which is reported as a skipped test.
    fn new() -> Option<Self> {
        let dir = tempfile::tempdir().expect("directory");
        let (source, library) = (dir.path().join("sync.c"), dir.path().join("sync.so"));
        std::fs::write(&source, FAILING_SYNC).expect("room");
        let made = Command::new("cc")
            .args(["-shared", "-fPIC", "-o"])
            .args([&library, &source])
            .output();
        if !made.as_ref().is_ok_and(|made| made.status.success()) {
            skip::skip(&format!("nothing makes a library from C: {made:?}"));
            return None;
        }
        let preload = format!("LD_PRELOAD={}", library.display());
        let order = dir.path().join("order");
        let order = format!("HQ_TEST_FAILING_SYNC={}", order.display());
        let prefix = ["env", &preload, &order];
        let mut server = Server::behind(&prefix, &dir.path().join("j.db"), false);
        assert_eq!(server.ask("open"), "open");
        Some(Self { dir, server })
    }

    /// Makes the sync with this number fail, among the syncs of files with this suffix.
    fn fail(&self, number: u32, end: &str) {
        let written = self.dir.path().join("written");
        std::fs::write(&written, format!("{number} {end}")).expect("room");
        std::fs::rename(written, self.dir.path().join("order")).expect("the same directory");
    }

    /// Waits until the sync has failed. Later syncs succeed.
    fn wait_failed(&self) {
        let start = Instant::now();
        while !self.dir.path().join("order.done").exists() {
            assert!(start.elapsed() < Duration::from_secs(60), "nothing failed");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

#[test]
fn nothing_is_acknowledged_after_a_failed_sync_of_compaction() {
    // These are the syncs of the commits before and after, of the first transaction of the prune,
    // and of its steps.
    for number in 1..=6 {
        let Some(mut disk) = FailingDisk::new() else {
            return;
        };
        assert_eq!(disk.server.ask("add 1 2"), "acknowledged");
        disk.fail(number, "-wal");
        assert_ne!(disk.server.ask("prune"), "pruned", "sync {number}");
        disk.wait_failed();
        let said = disk.server.ask("add 2 2");
        assert_eq!(said, "not acknowledged", "sync {number}");
        // The writer has ended. It could no longer trust the log and has left it to the next
        // server.
        let log = std::fs::metadata(disk.dir.path().join("j.db-wal"));
        assert!(log.is_ok_and(|log| log.len() > 0), "sync {number}");
    }
}

#[test]
fn nothing_is_acknowledged_after_a_failed_sync_of_the_database() {
    let Some(mut disk) = FailingDisk::new() else {
        return;
    };
    disk.fail(1, ".db");
    // The commit is in the log. The sync fails while the log is moved into the database.
    assert_eq!(disk.server.ask("add 1 2"), "not acknowledged");
    disk.wait_failed();
    assert_eq!(disk.server.ask("add 2 2"), "not acknowledged");
}

#[test]
fn nothing_is_acknowledged_after_a_failed_sync_when_a_long_log_is_moved() {
    let Some(mut disk) = FailingDisk::new() else {
        return;
    };
    assert_eq!(disk.server.ask("add 1 2"), "acknowledged");
    disk.fail(1, ".db");
    assert_eq!(disk.server.ask("append 2"), "appended");
    disk.wait_failed();
    assert_eq!(disk.server.ask("add 3 2"), "not acknowledged");
}

#[test]
fn a_power_loss_while_rows_are_folded_leaves_one_incomplete_transaction() {
    let Some(mut disk) = FailingDisk::new() else {
        return;
    };
    let path = disk.dir.path().join("j.db");
    assert_eq!(disk.server.ask("rows 1 4000"), "acknowledged");
    wait_for("the rows are folded", || {
        number(&path, "SELECT count(*) FROM task_row_data") == 0
    });
    assert_eq!(disk.server.ask("add 2 2"), "acknowledged");
    let unsynced = disk.dir.path().join("order.unsynced");
    assert!(!unsynced.exists(), "two commits were not on disk at once");
}

/// Starts a writer that reports its progress.
fn reporting(path: &Path) -> (StoreHandle, std::sync::mpsc::Receiver<Progress>) {
    let (tx, rx) = std::sync::mpsc::channel();
    let store = Store::open(path).expect("a fresh file");
    let handle = store.start("TestUid", &[], NOW.wall, move |progress| {
        // At the end, the receiver no longer exists.
        let _ = tx.send(progress);
    });
    (handle.expect("a writer"), rx)
}

#[test]
fn a_server_whose_files_are_removed_acknowledges_nothing_more() {
    for removed in ["", "-wal"] {
        let dir = tempfile::tempdir().expect("directory");
        let path = dir.path().join("j.db");
        let (mut handle, rx) = reporting(&path);
        add_job(&mut handle, JobId(1), 1, true);
        handle.client().flush().expect("a store");
        std::fs::remove_file(with_suffix(&path, removed)).expect("it is there");
        add_job(&mut handle, JobId(2), 1, true);
        handle.client().flush().expect_err("it is on no disk");
        drop(handle);
        let last = rx.iter().last().expect("a report");
        let said = matches!(&last.health, Health::Broken(text) if text.contains("removed"));
        assert!(said, "{last:?}");
    }
}

#[test]
fn a_journal_that_cannot_be_seen_for_a_while_is_acknowledged_when_it_can() {
    let top = tempfile::tempdir().expect("directory");
    let (dir, away) = (top.path().join("state"), top.path().join("away"));
    std::fs::create_dir(&dir).expect("room");
    let path = dir.join("j.db");
    let (mut handle, rx) = reporting(&path);
    add_job(&mut handle, JobId(1), 1, true);
    handle.client().flush().expect("a store");
    // This is a link to itself: following it reveals nothing about the file, which is intact.
    std::fs::rename(&dir, &away).expect("the same directory");
    std::os::unix::fs::symlink(&dir, &dir).expect("a link");
    let number = handle.next_number();
    add_job(&mut handle, JobId(2), 1, true);
    handle
        .client()
        .flush()
        .expect_err("its path leads elsewhere");
    let waiting = rx.iter().find(|progress| progress.health != Health::Good);
    let waiting = waiting.expect("a report");
    assert!(waiting.committed < number, "{waiting:?}");
    let said = matches!(&waiting.health, Health::Waiting(text) if text.contains("cannot be seen"));
    assert!(said, "{waiting:?}");
    std::fs::remove_file(&dir).expect("the link");
    std::fs::rename(&away, &dir).expect("the same directory");
    let good = rx.iter().find(|progress| progress.health == Health::Good);
    assert!(good.is_some_and(|good| good.committed >= number));
    add_job(&mut handle, JobId(3), 1, true);
    handle.client().flush().expect("a store");
    drop(handle);
    assert_eq!(results(&path).len(), 3, "each is there once");
}

#[test]
fn a_journal_that_is_overwritten_with_a_shorter_one_is_noticed() {
    let dir = tempfile::tempdir().expect("directory");
    let (path, old) = (dir.path().join("j.db"), dir.path().join("old.db"));
    filled(&old, &[1]);
    let (mut handle, rx) = reporting(&path);
    let large = submitted_with(JobId(1), &IdArray::single(1), 4 << 20);
    handle.store(vec![change(large)]);
    // No pages are left in the log. Otherwise, a later checkpoint would extend the file while it is
    // being overwritten.
    handle.client().prune().expect("it can be pruned");
    // This runs in another process, because closing the file in this one would drop SQLite's locks.
    let copied = Command::new("cp").args([&old, &path]).status();
    assert!(copied.expect("cp can be run").success());
    add_job(&mut handle, JobId(2), 1, true);
    handle.client().flush().expect_err("it is on no disk");
    drop(handle);
    let last = rx.iter().last().expect("a report");
    assert!(matches!(last.health, Health::Broken(_)), "{last:?}");
    let is_left = std::fs::read(&path).expect("it is there") == std::fs::read(&old).expect("so");
    assert!(is_left, "nothing was written into what is there now");
}
