//! Acknowledgements that wait for commits: at most two per worker, however long a commit takes.
//!
//! While the store cannot commit, a worker keeps sending reports, a few hundred per second. With
//! one acknowledgement per report, the next commit would fill the worker's queue as if the worker
//! had stopped reading.

use std::collections::BTreeMap;

use hq_core::id::WorkerId;

/// The numbers of reports that have been recorded but are not yet on disk.
#[derive(Debug, Default)]
pub(crate) struct Acknowledgements {
    /// The workers whose acknowledgement waits for a commit, each with the number of the last
    /// report that has arrived since.
    waiting: BTreeMap<WorkerId, Option<u64>>,
}

impl Acknowledgements {
    /// Records a report. Returns `true` if the report must be acknowledged after its commit. If
    /// not, [`Self::release`] returns its number later.
    pub(crate) fn note(&mut self, worker: WorkerId, seq: u64) -> bool {
        match self.waiting.get_mut(&worker) {
            Some(last) => {
                *last = Some(seq);
                false
            }
            None => true,
        }
    }

    /// Records that the worker has an acknowledgement that waits for its commit.
    pub(crate) fn keep(&mut self, worker: WorkerId) {
        self.waiting.insert(worker, None);
    }

    /// Ends the worker's wait. Returns the number of the last report that has arrived since, if
    /// any. Its acknowledgement covers all earlier reports and can wait for a later commit.
    pub(crate) fn release(&mut self, worker: WorkerId) -> Option<u64> {
        self.waiting.remove(&worker).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_of_many_stands_for_all_that_came_behind_the_one_that_waits() {
        let (here, elsewhere) = (WorkerId(1), WorkerId(2));
        let mut all = Acknowledgements::default();
        assert!(all.note(here, 1));
        all.keep(here);
        for seq in 2..=10_000 {
            assert!(!all.note(here, seq));
        }
        assert!(all.note(elsewhere, 1), "others have their own");
        assert_eq!(all.release(here), Some(10_000));
        assert_eq!(all.release(here), None, "nothing waits any more");
        assert!(all.note(here, 10_001));
    }
}
