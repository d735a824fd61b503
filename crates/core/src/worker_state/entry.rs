//! The part of an assignment that is specific to a task.

use std::sync::Arc;
use std::time::Duration;

use super::input::WorkTemplate;
use crate::id::InstanceId;
use crate::range::IdArray;
use crate::resource::pool::PoolRequest;
use crate::template::{Entries, TaskTemplate};

/// The minimum number of tasks in an assignment of many tasks. A graph task with dependents arrives
/// alone or with a few others, and so does a call.
const MANY: u32 = 4;

/// The properties that determine whether a task can start.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Class {
    pub(super) request: PoolRequest,
    /// The minimum remaining lifetime of the worker.
    pub(super) min_time: Duration,
    /// Calls and programs never share a lane, because different parts of the launcher start them.
    pub(super) is_call: bool,
}

impl Class {
    pub(super) const fn new(
        request: PoolRequest,
        min_time: Duration,
        template: &TaskTemplate,
    ) -> Self {
        Self {
            request,
            min_time,
            is_call: template.is_call,
        }
    }
}

/// The waiting tasks of one assignment.
#[derive(Clone, Debug)]
pub(super) struct NewEntry {
    pub(super) template: Arc<WorkTemplate>,
    pub(super) instance: InstanceId,
    pub(super) variant: u32,
    pub(super) ids: IdArray,
    pub(super) entries: Option<Entries>,
    pub(super) nodes: Arc<[Box<str>]>,
}

impl NewEntry {
    /// Returns whether so many tasks arrived together that no client waits for a single one.
    pub(super) fn is_of_many(&self) -> bool {
        self.ids.len() >= MANY
    }
}
