//! Acknowledgements that wait for commits: of each worker two at most, however long the disk takes.
//!
//! A worker goes on telling of ends while they cannot be stored, some hundred times a second. One acknowledgement for each
//! report would fill the queue of the worker at the commit, as if it did not read.

use std::collections::BTreeMap;

use hq_core::id::WorkerId;

/// Numbers of reports that are recorded and not on disk.
#[derive(Debug, Default)]
pub(crate) struct Acknowledgements {
    /// Workers of which one waits for its commit, with the number of the last report that came behind it.
    waiting: BTreeMap<WorkerId, Option<u64>>,
}

impl Acknowledgements {
    /// A report is recorded. Returns whether it is to be acknowledged behind the commit that it waits for; otherwise
    /// [`Self::release`] gives it.
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

    /// It waits no longer. Gives what came behind it: it stands for all before, and can wait for a later commit.
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
