//! Acknowledgements that wait for commits: at most two per worker, however long the disk takes.
//!
//! While ends cannot be stored, a worker keeps reporting, some hundred times a second. One
//! acknowledgement per report would fill the worker's queue at the commit, as if the worker did not
//! read.

use std::collections::BTreeMap;

use hq_core::id::WorkerId;

/// Numbers of reports that are recorded and not on disk.
#[derive(Debug, Default)]
pub(crate) struct Acknowledgements {
    /// Workers with an acknowledgement that waits for its commit, and the number of the last report
    /// after it.
    waiting: BTreeMap<WorkerId, Option<u64>>,
}

impl Acknowledgements {
    /// Records a report. Returns whether it must be acknowledged after its commit; otherwise
    /// [`Self::release`] returns it later.
    pub(crate) fn note(&mut self, worker: WorkerId, seq: u64) -> bool {
        match self.waiting.get_mut(&worker) {
            Some(last) => {
                *last = Some(seq);
                false
            }
            None => true,
        }
    }

    /// The acknowledgement of a worker waits.
    pub(crate) fn keep(&mut self, worker: WorkerId) {
        self.waiting.insert(worker, None);
    }

    /// Ends the wait. Returns the last report after it, whose acknowledgement covers all before,
    /// and can wait for a later commit.
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
