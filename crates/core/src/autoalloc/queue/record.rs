//! The stored form of a queue.

use std::sync::Arc;

use super::{Queue, Reason, WorkerOffer};
use crate::autoalloc::allocation::Allocation;
use crate::autoalloc::{AllocationRecord, AllocationState};
use crate::batch::QueueParams;
use crate::id::QueueId;
use crate::resource::descriptor::ResourceDescriptor;
use crate::time::{Now, Timestamp};

/// The maximum number of ended allocations that are stored. Their directories may still exist.
const ENDED_STORED_MAX: usize = 20;

/// The consecutive failures of a queue.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QueueFailure {
    /// When the first failure happened.
    pub since: Timestamp,
    /// The text of the last failure.
    pub last: Box<str>,
}

/// The stored form of a queue.
#[derive(Clone, PartialEq, Debug)]
pub struct QueueRecord {
    /// The id of the queue.
    pub id: QueueId,
    /// The parameters.
    pub params: Arc<QueueParams>,
    /// The reason for the pause. `None` if the queue is active.
    pub paused: Option<Box<str>>,
    /// The resources that the last worker offered.
    pub known_resources: Option<Arc<ResourceDescriptor>>,
    /// The highest allocation number.
    pub last_number: u32,
    /// The allocations that may be alive, and the ended ones that are still remembered.
    pub allocations: Vec<AllocationRecord>,
    /// The failure. A restored queue tries again.
    pub failure: Option<QueueFailure>,
    /// Whether a user has removed it while some of its allocations still have to be canceled.
    pub is_removed: bool,
}

impl Queue {
    pub(in crate::autoalloc) fn restore(now: Now, record: QueueRecord, root: &[u8]) -> Self {
        let mut queue = Self::new(record.id, record.params, root);
        queue.paused = record.paused.map(Reason::PausedBefore);
        queue.retired = record.is_removed;
        let known = record.known_resources.iter();
        queue
            .offers
            .extend(known.map(|resources| WorkerOffer::of(resources, None)));
        queue.known_resources = record.known_resources;
        queue.last_number = record.last_number;
        if let Some(failure) = record.failure {
            queue.failing_since = Some(failure.since);
            queue.last_failure = failure.last.into();
        }
        for stored in record.allocations {
            queue.last_number = queue.last_number.max(stored.key.number);
            let number = stored.key.number;
            queue
                .allocations
                .insert(number, Allocation::restore(stored, now));
        }
        queue
    }

    /// Returns the stored form.
    #[must_use]
    pub fn record(&self) -> QueueRecord {
        let is_over = |a: &&Allocation| {
            let is_ended = matches!(
                a.record.state,
                AllocationState::Finished | AllocationState::Failed
            );
            is_ended && !a.is_leaving(self.retired)
        };
        let all = self.allocations.values();
        let mut surplus = all.clone().filter(is_over).count();
        let stored = all.filter(|a| {
            let is_over = is_over(a);
            surplus -= usize::from(is_over);
            !is_over || surplus < ENDED_STORED_MAX
        });
        let allocations = stored.map(|a| a.stored(self.retired)).collect();
        QueueRecord {
            id: self.id,
            params: self.params.clone(),
            paused: self.paused.as_ref().map(|reason| reason.to_string().into()),
            known_resources: self.known_resources.clone(),
            last_number: self.last_number,
            allocations,
            failure: self.failing_since.map(|since| QueueFailure {
                since,
                last: self.last_failure.as_str().into(),
            }),
            is_removed: self.retired,
        }
    }
}
