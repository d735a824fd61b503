//! The writer without its thread: what arrives together is dealt with in one batch.

use hq_core::id::JobId;
use hq_core::range::IdArray;

use super::*;
use crate::Store;
use crate::testing::{NOW, change, submitted};

thread_local! {
    static IS_BROKEN: Cell<bool> = const { Cell::new(false) };
    /// Transactions that were committed after the store was known to be broken.
    static LATE: Cell<u32> = const { Cell::new(0) };
}

fn writer(path: &std::path::Path) -> Writer {
    let owned = Store::open(path).expect("a fresh file").owned();
    let report = |progress: Progress| {
        IS_BROKEN.set(matches!(progress.health, Health::Broken(_)));
    };
    Writer::new(owned, ("TestUid", &[]), NOW.wall, Box::new(report)).expect("a writer")
}

fn submit(number: u32) -> Message {
    let submitted = submitted(JobId(number), &IdArray::single(1));
    Message::Changes(u64::from(number), vec![change(submitted)])
}

#[test]
fn a_prune_that_arrives_with_what_breaks_the_store_writes_nothing() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("j.db");
    let writer = writer(&path);
    writer.connection.wal_hook(Some(|_, _| {
        LATE.set(LATE.get() + u32::from(IS_BROKEN.get()));
        Ok(())
    }));
    std::fs::remove_file(dir.path().join("j.db-wal")).expect("it is there");
    let (tx, rx) = mpsc::channel();
    let (reply, pruned) = mpsc::sync_channel(1);
    for message in [submit(1), Message::Prune(reply)] {
        tx.send(message).expect("somebody reads");
    }
    writer.run(&rx);
    assert!(IS_BROKEN.get(), "its log is gone");
    assert!(pruned.recv().is_err(), "nothing was pruned");
    assert_eq!(LATE.get(), 0);
}
