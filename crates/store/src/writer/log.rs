//! Moves the write-ahead log into the file, and maintains the mark in the file; see `history`.

use std::time::Duration;

use rusqlite::{Row, TransactionBehavior};

use super::{LOCK_TIMEOUT, LOG_PAGES, Writer};
use crate::{compact, history, lease};

impl Writer {
    /// Moves all commits from the write-ahead log into the file.
    pub(super) fn settle(&mut self) {
        if self.has_log && self.top_up() {
            self.has_log = !self.checkpoint("PASSIVE");
        }
    }

    /// Moves all commits into the file without marking it: until the next commit, a copy of the
    /// file is complete. Returns `false` if a reader prevents this.
    pub(super) fn flush_log(&mut self) -> bool {
        let is_whole = self.top_up() && self.move_log("PASSIVE");
        if is_whole {
            self.has_log = false;
        }
        is_whole
    }

    /// Adds spare pages for the next commits. Returns `false` if another server has the store.
    fn top_up(&mut self) -> bool {
        match self.compactor.top_up(&mut self.connection) {
            Ok(true) => {}
            Ok(false) => {
                self.taken_over();
                return false;
            }
            Err(error) => {
                self.note_failed_sync(&error);
                tracing::debug!(%error, "cannot add spare pages to the journal");
            }
        }
        true
    }

    /// Stores whether the file needs its log. Returns whether this was committed.
    fn mark_log(&mut self, is_needed: bool) -> bool {
        let stored = || -> rusqlite::Result<bool> {
            let transaction = self
                .connection
                .transaction_with_behavior(TransactionBehavior::Immediate)?;
            history::mark_log(&transaction, is_needed.then_some(&self.place.path))?;
            // A renewal would change a second page; see `history::mark_log`.
            let is_ours = lease::is_ours(&transaction, self.fence)?;
            if is_ours {
                transaction.commit()?;
            }
            Ok(is_ours)
        };
        match { stored }() {
            Ok(true) => return true,
            Ok(false) => self.taken_over(),
            // The next commit fails for the same reason and reports it.
            Err(error) => {
                self.note_failed_sync(&error);
                tracing::debug!(%error, "cannot mark whether the journal needs its log");
            }
        }
        false
    }

    /// Moves the log into the file in the same way as [`Self::move_log`], and marks the file. The
    /// file then says that it needs its log, and the first commit in the log removes the mark. Any
    /// program that moves the log into the file therefore makes it complete, and a file that has
    /// lost its log is detected.
    pub(super) fn checkpoint(&mut self, mode: &str) -> bool {
        if !self.move_log(mode) {
            // A reader prevents this. Marks would only make the log grow.
            return false;
        }
        if !self.is_broken() && self.mark_log(true) {
            self.is_file_marked = self.move_log("PASSIVE");
            self.mark_log(false);
            LOG_PAGES.set(0);
        }
        true
    }

    /// Moves the write-ahead log into the database. Readers may prevent a part of it from being
    /// moved, which loses nothing. The writer does not wait for them, because a stopped reader
    /// (`hq journal export FILE | less`) would block all commits.
    ///
    /// Returns whether all of it was moved, or can never be moved.
    pub(super) fn move_log(&mut self, mode: &str) -> bool {
        if !self.is_in_place() {
            // If another file has replaced the store's file, a checkpoint would corrupt it.
            return true;
        }
        // Even if a reader prevents the rest, the checkpoint may move the commit that removes the
        // mark.
        self.is_file_marked = false;
        // Pages that a reader keeps in the log are retried after the next commit instead of
        // immediately.
        LOG_PAGES.set(0);
        let moved = self.connection.busy_timeout(Duration::ZERO).and_then(|()| {
            let sql = format!("PRAGMA wal_checkpoint({mode})");
            let is_all = |row: &Row<'_>| Ok(row.get::<_, i32>(1)? == row.get::<_, i32>(2)?);
            self.connection.query_row(&sql, [], is_all)
        });
        let patience = self.connection.busy_timeout(LOCK_TIMEOUT);
        let moved = moved.and_then(|is_all| patience.map(|()| is_all));
        let moved = moved.and_then(|is_all| Ok((is_all, compact::file_len(&self.connection)?)));
        match moved {
            Ok((true, len)) => {
                self.len_min = len;
                true
            }
            Ok((false, _)) => false,
            Err(error) => {
                self.note_failed_sync(&error);
                tracing::debug!(%error, "cannot move the write-ahead log into the journal");
                false
            }
        }
    }
}
