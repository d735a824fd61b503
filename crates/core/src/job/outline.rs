//! Copies of jobs for threads that examine their tasks outside the state.

use std::sync::Arc;

use super::{Asks, Job, Spent, Submit};
use crate::range::IndexSet;

impl Job {
    /// Returns a copy with specs and phases, which suffices to submit the job again.
    #[must_use]
    pub fn outline(&self) -> Self {
        let (name, submits) = (self.name.clone(), self.submits.iter());
        Self {
            closes_itself: self.closes_itself,
            max_running: self.max_running,
            max_rate: self.max_rate,
            tasks_max: self.tasks_max,
            submits: submits.map(Submit::outline).collect(),
            index: self.index.clone(),
            ..Self::new(self.id, name, self.max_fails, self.is_open, self.submitted)
        }
    }
}

impl Submit {
    /// Returns a copy without the results of the tasks. Their phases are kept.
    fn outline(&self) -> Self {
        Self {
            ids: self.ids.clone(),
            header: Arc::clone(&self.header),
            asked_stream_dir: self.asked_stream_dir.clone(),
            after: self.after.clone(),
            notify: self.notify.clone(),
            origin: self.origin.clone(),
            nonce: self.nonce,
            notes: self.notes.clone(),
            limits: self.limits.clone(),
            kind: self.kind.clone(),
            priority_max: self.priority_max,
            spent: Spent::default(),
            tasks: self.tasks.outline(),
            asks: Asks::default(),
            held: IndexSet::new(),
            revisions: self.revisions.clone(),
        }
    }
}
