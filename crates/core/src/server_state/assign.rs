//! The assignments of one worker in one round, as messages of limited size.
//!
//! Tasks are encoded only here: template, ids, instance, entry. A single template and the
//! assignment of a single task cannot be divided. Everything else is divided as needed.

use std::sync::Arc;

use super::{Assignment, AwaitedEnds, WorkerCommand};
use crate::id::{InstanceId, TaskId};
use crate::job::{Job, SharedTemplate, TaskSlot, TemplateId};
use crate::limits::{ASSIGN_BYTES_MAX, task_bytes, template_bytes};
use crate::range::IdArray;
use crate::template::Entries;

/// The maximum size of an assignment in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct AssignLimit(pub(super) usize);

impl Default for AssignLimit {
    fn default() -> Self {
        Self(ASSIGN_BYTES_MAX)
    }
}

/// Templates and assignments that are being packed into messages.
#[derive(Debug)]
pub(super) struct AssignBatch {
    /// The templates, and the tasks that can be sent immediately.
    ready: Messages,
    /// The tasks with uncommitted dependencies. They are in separate messages, so that they delay
    /// no other tasks.
    behind: Messages,
    bytes_max: usize,
}

#[derive(Debug)]
struct Messages {
    full: Vec<WorkerCommand>,
    templates: Vec<Arc<SharedTemplate>>,
    assignments: Vec<Assignment>,
    awaits: AwaitedEnds,
    /// The size of the templates and assignments in bytes.
    bytes: usize,
}

/// Consecutive tasks in one assignment.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) template: Arc<SharedTemplate>,
    pub(super) instance: InstanceId,
    pub(super) awaits: AwaitedEnds,
    pub(super) from: u32,
    pub(super) to: u32,
    pub(super) bytes: usize,
}

/// A task as it is named in an assignment.
pub(super) struct NamedTask {
    pub(super) id: TaskId,
    pub(super) template: Arc<SharedTemplate>,
    /// The number of bytes that the task adds to an assignment.
    pub(super) bytes: usize,
}

impl Run {
    /// Merges a neighbor that has the same template and instance, because both form one row of the
    /// message. Otherwise returns the neighbor.
    pub(super) fn join(&mut self, next: Self, bytes_max: usize) -> Option<Self> {
        let is_alike = self.to == next.from
            && self.instance == next.instance
            && self.awaits == next.awaits
            && self.template.id == next.template.id;
        if !is_alike || self.bytes + next.bytes > bytes_max {
            return Some(next);
        }
        self.to = next.to;
        self.bytes += next.bytes;
        None
    }
}

impl AssignBatch {
    /// Creates an empty batch. A single item above the limit gets its own message.
    pub(super) const fn new(AssignLimit(bytes_max): AssignLimit) -> Self {
        Self {
            ready: Messages::new(),
            behind: Messages::new(),
            bytes_max,
        }
    }

    /// Adds a template. Assignments that refer to it must be added later.
    pub(super) fn add_template(&mut self, template: Arc<SharedTemplate>) {
        self.ready
            .make_room(template_bytes(&template), self.bytes_max);
        self.ready.templates.push(template);
    }

    /// Adds tasks that wait for these ends of their dependencies.
    pub(super) fn add(&mut self, assignment: Assignment, awaits: AwaitedEnds) {
        let messages = match awaits {
            AwaitedEnds::None => &mut self.ready,
            AwaitedEnds::Elsewhere | AwaitedEnds::All => &mut self.behind,
        };
        messages.make_room(assignment.wire_bytes(), self.bytes_max);
        messages.awaits = messages.awaits.max(awaits);
        messages.assignments.push(assignment);
    }

    /// Sets the nodes of the batch's only task.
    pub(super) fn set_nodes(&mut self, nodes: &[Box<str>]) {
        let (ready, behind) = (&mut self.ready, &mut self.behind);
        for assignment in ready.assignments.iter_mut().chain(&mut behind.assignments) {
            assignment.nodes = nodes.to_vec();
        }
    }

    pub(super) fn into_commands(mut self) -> Vec<WorkerCommand> {
        self.ready.close();
        self.behind.close();
        self.ready.full.append(&mut self.behind.full);
        self.ready.full
    }
}

impl Messages {
    const fn new() -> Self {
        Self {
            full: Vec::new(),
            templates: Vec::new(),
            assignments: Vec::new(),
            awaits: AwaitedEnds::None,
            bytes: 0,
        }
    }

    fn make_room(&mut self, bytes: usize, bytes_max: usize) {
        // An item that does not fit starts the next message, even if it exceeds the limit by
        // itself.
        if self.bytes + bytes > bytes_max {
            self.close();
        }
        self.bytes += bytes;
    }

    fn close(&mut self) {
        // An empty message is not sent.
        self.bytes = 0;
        if self.templates.is_empty() && self.assignments.is_empty() {
            return;
        }
        self.full.push(WorkerCommand::Assign {
            templates: std::mem::take(&mut self.templates),
            assignments: std::mem::take(&mut self.assignments),
            awaits: self.awaits,
        });
    }
}

pub(super) fn name_task(job: &Job, slot: TaskSlot) -> Option<NamedTask> {
    let submit = job.submit(slot)?;
    Some(NamedTask {
        id: submit.ids.get(slot.index).map(TaskId)?,
        template: submit.template(slot.index)?,
        bytes: task_bytes(submit.entry(slot.index)),
    })
}

pub(super) fn assignment(job: &Job, submit: u32, run: &Run, variant: u32) -> Assignment {
    let found = job.submit(TaskSlot::new(submit, run.from));
    let ids = found
        .map(|s| s.ids.slice(run.from, run.to))
        .unwrap_or_default();
    let entries = found
        // In an array, either all tasks have entries or none has.
        .filter(|s| s.entry(run.from).is_some())
        .and_then(|submit| {
            // An id without an entry gets an empty one, because the two lists correspond by
            // position.
            let parts = (run.from..run.to).map(|index| submit.entry(index).unwrap_or_default());
            let lengths: Vec<u64> = parts.clone().map(|part| part.len() as u64).collect();
            Entries::new(parts.collect::<Vec<_>>().concat(), lengths)
        });
    Assignment {
        template: TemplateId(run.template.id.0),
        ids: IdArray::new(ids).unwrap_or_default(),
        instance: run.instance,
        variant,
        entries,
        nodes: Vec::new(),
        follows: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::class::ClassId;
    use crate::id::JobId;

    fn template(id: u32, stdin: usize) -> Arc<SharedTemplate> {
        let mut task = crate::testing::template(&["cat"]);
        task.stdin = Some(vec![0; stdin].into());
        Arc::new(SharedTemplate {
            id: TemplateId(id),
            header: crate::testing::header(JobId(1)),
            class: ClassId(0),
            task: Arc::new(task),
        })
    }

    fn tasks(template: u32, entry: usize) -> Assignment {
        Assignment {
            template: TemplateId(template),
            ids: IdArray::single(template),
            instance: InstanceId(0),
            variant: 0,
            entries: Entries::new(vec![b'x'; entry], [entry as u64]),
            nodes: Vec::new(),
            follows: None,
        }
    }

    #[test]
    fn messages_are_bounded_and_name_no_template_before_it_is_sent() {
        let mut batch = AssignBatch::new(AssignLimit::default());
        let megabyte = 1 << 20;
        for id in 0..9 {
            batch.add_template(template(id, if id == 4 { 9 * megabyte } else { megabyte }));
            let awaits = match id % 3 {
                0 => AwaitedEnds::Elsewhere,
                _ => AwaitedEnds::None,
            };
            batch.add(tasks(id, megabyte), awaits);
        }
        let mut known = Vec::new();
        let mut sent = Vec::new();
        for command in batch.into_commands() {
            let bytes = command.wire_bytes();
            let WorkerCommand::Assign {
                templates,
                assignments,
                awaits,
            } = command
            else {
                panic!("an assignment");
            };
            let is_alone = templates.len() == 1 && assignments.is_empty();
            assert!(templates.is_empty() || awaits == AwaitedEnds::None);
            let is_behind = |a: &Assignment| a.template.0.is_multiple_of(3);
            let are_apart = assignments
                .iter()
                .all(|a| is_behind(a) == (awaits == AwaitedEnds::Elsewhere));
            assert!(are_apart, "one waits with another, or for nothing");
            assert!(bytes <= ASSIGN_BYTES_MAX || is_alone, "{bytes} bytes");
            known.extend(templates.iter().map(|template| template.id));
            assert!(assignments.iter().all(|a| known.contains(&a.template)));
            sent.extend(assignments.iter().map(|a| a.template.0));
        }
        assert_eq!(sent, [1, 2, 4, 5, 7, 8, 0, 3, 6]);
    }
}
