//! The disk of simulated worlds: a real database of this crate, in memory. A crash drops what was not committed.

use std::cell::RefCell;

use hq_core::server_state::{Change, ServerState};
use hq_core::testing::sim::Disk;
use hq_core::time::Now;
use rusqlite::Connection;

use crate::{group, load, schema};

/// A database that outlives the servers of one simulated world.
#[derive(Debug)]
pub struct MemoryDisk {
    connection: RefCell<Connection>,
    next_seq: i64,
}

impl MemoryDisk {
    /// An empty one, for the server "SimUid".
    ///
    /// # Panics
    ///
    /// If the schema is not valid.
    #[must_use]
    pub fn create() -> Box<dyn Disk> {
        let mut connection = Connection::open_in_memory().expect("a database in memory");
        connection.set_prepared_statement_cache_capacity(64);
        schema::migrate(&mut connection, 0).expect("the schema is valid");
        connection
            .execute("INSERT INTO meta VALUES ('server_uid', 'SimUid')", [])
            .expect("a fresh database");
        Box::new(Self {
            connection: RefCell::new(connection),
            next_seq: 1,
        })
    }
}

impl Disk for MemoryDisk {
    fn commit(&mut self, changes: &[Change]) {
        let mut seq = self.next_seq;
        let mut connection = self.connection.borrow_mut();
        let transaction = connection.transaction().expect("nobody else writes");
        group::write(&transaction, &mut seq, changes, None).expect("every change can be written");
        transaction.commit().expect("memory is never full");
        self.next_seq = seq;
    }

    fn fail(&mut self, changes: &[Change]) {
        let mut seq = self.next_seq;
        let mut connection = self.connection.borrow_mut();
        let transaction = connection.transaction().expect("nobody else writes");
        group::write(&transaction, &mut seq, changes, None).expect("every change can be written");
        transaction.rollback().expect("it was begun");
    }

    fn restore(&mut self, now: Now) -> ServerState {
        let connection = self.connection.borrow();
        let loaded = load::load(&connection, "SimUid", now).expect("what was written can be read");
        assert_eq!(loaded.dropped_count, 0, "every record fits");
        for worker in loaded.gone_workers {
            let sql = "UPDATE worker_data SET ended_unix_ns = 1, registration = NULL WHERE id = ?";
            connection.execute(sql, [worker.as_u32()]).expect("a row");
        }
        loaded.state
    }
}
