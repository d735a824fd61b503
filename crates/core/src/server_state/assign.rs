//! Assignments of one worker in one round, as messages of bounded size.
//!
//! A task is named here and nowhere else: template, ids, instance, entry. A template cannot be divided, and neither can
//! the assignment of one task; everything else is.

use std::sync::Arc;

use super::{Assignment, WorkerCommand};
use crate::id::{InstanceId, TaskId};
use crate::job::{Job, SharedTemplate, TaskSlot, TemplateId};
use crate::limits::{ASSIGN_BYTES_MAX, task_bytes, template_bytes};
use crate::range::IdArray;
use crate::template::Entries;

/// Most bytes of one assignment.
#[derive(Clone, Copy, Debug)]
pub(super) struct AssignLimit(pub(super) usize);

impl Default for AssignLimit {
    fn default() -> Self {
        Self(ASSIGN_BYTES_MAX)
    }
}

/// Templates and assignments on their way into messages.
#[derive(Debug)]
pub(super) struct AssignBatch {
    /// Messages that are full.
    full: Vec<WorkerCommand>,
    templates: Vec<Arc<SharedTemplate>>,
    assignments: Vec<Assignment>,
    /// One of its tasks follows one of another worker.
    follows_others: bool,
    /// Bytes of the templates and assignments.
    bytes: usize,
    bytes_max: usize,
}

/// Consecutive tasks that go into one assignment.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) template: Arc<SharedTemplate>,
    pub(super) instance: InstanceId,
    pub(super) from: u32,
    pub(super) to: u32,
    pub(super) bytes: usize,
}

/// A task as an assignment names it.
pub(super) struct NamedTask {
    pub(super) id: TaskId,
    pub(super) template: Arc<SharedTemplate>,
    /// Bytes that it adds to an assignment.
    pub(super) bytes: usize,
}

impl AssignBatch {
    /// One thing that is larger than the limit gets a message of its own.
    pub(super) const fn new(AssignLimit(bytes_max): AssignLimit) -> Self {
        Self {
            full: Vec::new(),
            templates: Vec::new(),
            assignments: Vec::new(),
            follows_others: false,
            bytes: 0,
            bytes_max,
        }
    }

    /// Adds a template; assignments that name it come later.
    pub(super) fn add_template(&mut self, template: Arc<SharedTemplate>) {
        self.make_room(template_bytes(&template));
        self.templates.push(template);
    }

    /// Adds tasks.
    pub(super) fn add(&mut self, assignment: Assignment) {
        self.make_room(assignment.wire_bytes());
        self.assignments.push(assignment);
    }

    pub(super) const fn follows_others(&self) -> bool {
        self.follows_others
    }

    /// A task that is added goes on from where one of another worker has ended. What is sent before it can wait for that as well.
    pub(super) const fn note_follows_others(&mut self) {
        self.follows_others = true;
    }

    /// Names the nodes of the one task in it.
    pub(super) fn set_nodes(&mut self, nodes: &[Box<str>]) {
        for assignment in &mut self.assignments {
            assignment.nodes = nodes.to_vec();
        }
    }

    pub(super) fn into_commands(mut self) -> Vec<WorkerCommand> {
        self.close();
        self.full
    }

    fn make_room(&mut self, bytes: usize) {
        // An item without room begins the next message, also if it is larger than one by itself.
        if self.bytes + bytes > self.bytes_max {
            self.close();
        }
        self.bytes += bytes;
    }

    fn close(&mut self) {
        // A message without anything in it is not sent.
        self.bytes = 0;
        if self.templates.is_empty() && self.assignments.is_empty() {
            return;
        }
        self.full.push(WorkerCommand::Assign {
            templates: std::mem::take(&mut self.templates),
            assignments: std::mem::take(&mut self.assignments),
            follows_others: self.follows_others,
        });
    }
}

pub(super) fn name_task(job: &Job, slot: TaskSlot) -> Option<NamedTask> {
    let submit = job.submit(slot)?;
    Some(NamedTask {
        id: submit.ids.get(slot.index).map(TaskId)?,
        template: Arc::clone(submit.template(slot.index)?),
        bytes: task_bytes(submit.entry(slot.index)),
    })
}

pub(super) fn assignment(job: &Job, submit: u32, run: &Run, variant: u32) -> Assignment {
    let found = job.submit(TaskSlot {
        submit,
        index: run.from,
    });
    let ids = found
        .map(|s| s.ids.slice(run.from, run.to))
        .unwrap_or_default();
    let entries = found
        // Of an array all tasks have entries, or none.
        .filter(|s| s.entry(run.from).is_some())
        .and_then(|submit| {
            // An id without an entry keeps its place with an empty one: both lists go by position.
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
            job: JobId(1),
            job_name: "job".into(),
            submit_dir: Box::from(*b"/s"),
            stream_dir: None,
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
            batch.add(tasks(id, megabyte));
        }
        let mut known = Vec::new();
        let mut sent = Vec::new();
        for command in batch.into_commands() {
            let bytes = command.wire_bytes();
            let WorkerCommand::Assign {
                templates,
                assignments,
                ..
            } = command
            else {
                panic!("an assignment");
            };
            let is_alone = templates.len() == 1 && assignments.is_empty();
            assert!(bytes <= ASSIGN_BYTES_MAX || is_alone, "{bytes} bytes");
            known.extend(templates.iter().map(|template| template.id));
            assert!(assignments.iter().all(|a| known.contains(&a.template)));
            sent.extend(assignments.iter().map(|a| a.template.0));
        }
        assert_eq!(sent, Vec::from_iter(0..9));
    }
}
