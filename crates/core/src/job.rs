//! Jobs: named sets of tasks, with the counters that determine their state.
//!
//! Every change of a task's phase goes through [`Job`], which keeps the counters consistent. A job
//! knows nothing about workers, queues or clients.

mod ahead;
mod asks;
mod build;
mod earlier;
mod entries;
mod followers;
mod held;
mod index;
mod jobs;
mod origins;
mod outline;
mod restore;
mod revised;
mod sent;
mod state;
mod templates;
mod totals;

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use crate::bound::{Rate, SubmitLimits};
use crate::bug;
use crate::class::ClassId;
use crate::graph::Graph;
use crate::id::{InstanceId, JobId, TaskId, TaskKey, WorkerId};
use crate::notice::{Notice, NoticeState};
use crate::pace::{Ends, PaceFacts};
use crate::range::{IdArray, IdRange, IndexSet};
use crate::task::{Attempt, Phase, TaskEnd, TaskRecord, TaskState, TaskTable};
use crate::template::{After, ByteText, Entries, NotifyEvent, NotifySpec, Origin, TaskTemplate};
use crate::time::Timestamp;
pub(crate) use ahead::AheadCredit;
pub use asks::{Asks, Learned};
pub use build::GraphError;
pub(crate) use build::{BuiltGraph, build_graph};
use earlier::EarlierDeps;
pub use entries::Spent;
pub use held::Held;
pub(crate) use held::{Affected, Positions};
use index::{IdIndex, merge_ranges};
pub use jobs::Jobs;
use origins::Origins;
pub use origins::Repeat;
pub use revised::{
    JobChange, JobRevised, KeptChanges, REVISED_SUBMITS_MAX, RevisedTasks, Revisions, TaskChange,
};
pub use state::JobState;
pub use totals::{JobTotals, PerState, TaskCounts, TaskTotals, Totals};

/// The number of failed tasks whose ids a job keeps for its overview.
const FAILED_SHOWN_MAX: usize = 5;

/// Derives the state of a job. The first rule that applies decides.
#[must_use]
pub fn job_state(counts: &TaskCounts, is_open: bool) -> JobState {
    counts.totals().state(is_open)
}

/// The data that all templates of a submit share.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SubmitHeader {
    /// The job of the submit.
    pub job: JobId,
    /// The name of the job.
    pub job_name: Box<str>,
    /// The directory of the submit.
    pub submit_dir: ByteText,
    /// The stream directory, if output is streamed.
    pub stream_dir: Option<ByteText>,
}

/// A template in the server: the part that the user wrote, and the numbers that scheduling needs.
#[derive(Clone, Debug)]
pub struct SharedTemplate {
    /// The id in messages. It is unique in the server.
    pub id: TemplateId,
    /// The part that all templates of the submit share.
    pub header: Arc<SubmitHeader>,
    /// The class of the resource request.
    pub class: ClassId,
    /// The part that the user wrote.
    pub task: Arc<TaskTemplate>,
}

/// The id of a [`SharedTemplate`] in messages between server and worker.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TemplateId(pub u32);

/// The position of a task: the submit within the job, and the index within the submit.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TaskSlot {
    /// The number of the submit within the job.
    pub submit: u32,
    /// The index of the task within the submit.
    pub index: u32,
}

impl TaskSlot {
    /// Returns the position with this submit and index.
    #[must_use]
    pub const fn new(submit: u32, index: u32) -> Self {
        Self { submit, index }
    }

    /// Returns the place of this task of a job.
    #[must_use]
    pub const fn of(self, job: JobId) -> TaskAt {
        TaskAt { job, slot: self }
    }
}

/// The place of a task among the tasks of all jobs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TaskAt {
    /// The id of the job.
    pub job: JobId,
    /// The position within the job.
    pub slot: TaskSlot,
}

impl TaskAt {
    /// Returns the submit that the task belongs to.
    #[must_use]
    pub const fn submit(self) -> SubmitAt {
        SubmitAt {
            job: self.job,
            number: self.slot.submit,
        }
    }
}

/// The place of a submit among the submits of all jobs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SubmitAt {
    /// The id of the job.
    pub job: JobId,
    /// The number of the submit within the job.
    pub number: u32,
}

impl SubmitAt {
    /// Returns the task with this index.
    #[must_use]
    pub const fn task(self, index: u32) -> TaskAt {
        let slot = TaskSlot::new(self.number, index);
        slot.of(self.job)
    }
}

/// How the tasks of a submit differ.
#[derive(Clone, Debug)]
pub enum SubmitKind {
    /// All tasks share one template. Each can have its own entry.
    Array {
        /// The template of all tasks.
        template: Arc<SharedTemplate>,
        /// The template as submitted, with its placeholders.
        asked: Arc<TaskTemplate>,
        /// The entries of the tasks, by index.
        entries: Option<Entries>,
    },
    /// Each task has a template and dependencies.
    Graph {
        /// The distinct templates, as submitted.
        templates: Arc<[Arc<TaskTemplate>]>,
        /// The id of the first template. The ids of the others follow.
        first: TemplateId,
        /// The class of each template; [`ClassId::UNKNOWN`] until the first of its tasks may be
        /// queued.
        classes: Vec<ClassId>,
        /// The number of each task's template, by index of the task.
        template_of: Vec<u32>,
        /// The dependencies between tasks of this submit.
        graph: Box<Graph>,
        /// The dependencies on tasks of earlier submits: index of the task and id of the
        /// dependency.
        earlier: Vec<(u32, TaskId)>,
    },
}

/// A submit of a job.
#[derive(Clone, Debug)]
pub struct Submit {
    /// The task ids, by index.
    pub ids: IdArray,
    /// The job and the directories.
    pub header: Arc<SubmitHeader>,
    /// The stream directory as submitted, with its placeholders.
    pub asked_stream_dir: Option<ByteText>,
    /// The other jobs that the tasks wait for.
    pub after: Vec<After>,
    /// The notifications of the submit's end or its first failure.
    pub notify: Vec<NotifySpec>,
    /// The task of this job that sent the submit, and the task's latest attempt to do so.
    pub origin: Option<Origin>,
    /// The idempotency key of the client, which may send the submit twice.
    pub nonce: Option<u64>,
    /// The probable mistakes that the client found.
    pub notes: Vec<Box<str>>,
    /// The limits on the tasks.
    pub limits: SubmitLimits,
    /// The templates, entries and dependencies.
    pub kind: SubmitKind,
    /// The highest priority of the tasks.
    pub priority_max: i32,
    /// The calls whose entries can be dropped.
    pub spent: Spent,
    /// The phases and records of the tasks.
    pub tasks: TaskTable,
    /// The requests of the tasks that differ from the submitted request.
    pub asks: Asks,
    /// The tasks that a user holds, by index.
    pub held: IndexSet,
    /// The changes of tasks after the submit.
    pub revisions: Option<Box<Revisions>>,
}

impl Submit {
    /// Returns the ids of the unfinished tasks in a part.
    fn unfinished_ranges(&self, part: Range<u32>) -> Vec<IdRange> {
        let mut ids = Vec::new();
        let mut open: Option<(u32, u32)> = None;
        for (from, to, phase) in self.tasks.runs(part.start, part.end) {
            match &mut open {
                _ if phase.is_terminal() => {}
                Some((_, end)) if *end == from => *end = to,
                // There is a gap of ended tasks, so the previous run is complete.
                Some((start, end)) => {
                    ids.extend(self.ids.slice(*start, *end));
                    open = Some((from, to));
                }
                None => open = Some((from, to)),
            }
        }
        if let Some((start, end)) = open {
            ids.extend(self.ids.slice(start, end));
        }
        ids
    }

    /// Returns all dependencies of a task on earlier submits, including the finished ones.
    pub fn earlier_deps(&self, index: u32) -> impl Iterator<Item = TaskId> + '_ {
        let all = match &self.kind {
            SubmitKind::Array { .. } => &[][..],
            SubmitKind::Graph { earlier, .. } => earlier,
        };
        let from = all.partition_point(|(other, _)| *other < index);
        let own = all[from..]
            .iter()
            .take_while(move |(other, _)| *other == index);
        own.map(|(_, task)| *task)
    }

    /// Returns all dependencies of a task, including the finished ones.
    #[must_use]
    pub fn deps(&self, index: u32) -> Vec<TaskId> {
        let graph = self.graph().map_or(&[][..], |graph| graph.deps(index));
        let same = graph.iter().filter_map(|dep| self.ids.get(*dep));
        self.earlier_deps(index).chain(same.map(TaskId)).collect()
    }

    /// Returns the dependencies, if the submit has any.
    #[must_use]
    pub fn graph(&self) -> Option<&Graph> {
        match &self.kind {
            SubmitKind::Array { .. } => None,
            SubmitKind::Graph { graph, .. } => Some(graph),
        }
    }
}

/// A job with its tasks.
#[derive(Clone, Debug)]
pub struct Job {
    /// The id of the job.
    pub id: JobId,
    /// The name shown to users.
    pub name: Box<str>,
    /// The number of failed tasks that are tolerated.
    pub max_fails: Option<u32>,
    /// Whether clients can add submits.
    pub is_open: bool,
    /// Whether the job closes once no task is left that could submit to it.
    pub closes_itself: bool,
    /// The maximum number of tasks that run at the same time.
    pub max_running: Option<u32>,
    /// How many tasks may start in a period.
    pub max_rate: Option<Rate>,
    /// The number of submits when a user last changed these two limits.
    pub(crate) limits_set_at: Option<u32>,
    /// The maximum number of tasks over the job's lifetime. `None` means that only the number of
    /// ids limits it.
    pub tasks_max: Option<u32>,
    /// The latest reason that was given when tasks of the job were canceled.
    pub cancel_reason: Option<Box<str>>,
    /// When the job was submitted or opened.
    pub submitted: Timestamp,
    /// When the last task ended.
    pub idle_since: Timestamp,
    /// The submits, in order.
    pub submits: Vec<Submit>,
    /// The workers that have run tasks of the job.
    pub workers: BTreeSet<WorkerId>,
    /// The workers that have, or may have, tasks or templates of the job. Broadcasts about the job
    /// skip all other workers.
    sent_to: BTreeSet<WorkerId>,
    /// The notifications and their states, in the order of the submits.
    pub notices: Vec<Notice>,
    /// Whether tasks that are submitted later are held.
    pub holds_new: bool,
    /// The latest job that resubmits tasks of this one.
    pub resubmitted_as: Option<JobId>,
    /// Whether the completion of the job has been recorded.
    completion_noted: bool,
    /// This job's contribution to the server's totals.
    counted: Option<(TaskCounts, JobState)>,
    /// Whether [`JobIdle`](crate::server_state::ChangeKind::JobIdle) has been stored since the last
    /// submit.
    idle_noted: bool,
    counts: TaskCounts,
    ends: Ends,
    failed_lowest: BTreeSet<TaskId>,
    index: IdIndex,
    earlier: EarlierDeps,
    origins: Origins,
    /// Whether tasks of the job are sent to workers ahead of their turn.
    pub(crate) ahead: AheadCredit,
}

impl Job {
    /// Creates a job without tasks.
    #[must_use]
    pub fn new(
        id: JobId,
        name: Box<str>,
        max_fails: Option<u32>,
        is_open: bool,
        now: Timestamp,
    ) -> Self {
        Self {
            id,
            name,
            max_fails,
            is_open,
            closes_itself: false,
            max_running: None,
            max_rate: None,
            limits_set_at: None,
            tasks_max: None,
            cancel_reason: None,
            submitted: now,
            idle_since: now,
            submits: Vec::new(),
            workers: BTreeSet::new(),
            holds_new: false,
            sent_to: BTreeSet::new(),
            notices: Vec::new(),
            resubmitted_as: None,
            completion_noted: false,
            counted: None,
            idle_noted: false,
            counts: TaskCounts::default(),
            ends: Ends::default(),
            failed_lowest: BTreeSet::new(),
            index: IdIndex::default(),
            earlier: EarlierDeps::default(),
            origins: Origins::default(),
            ahead: AheadCredit::default(),
        }
    }

    /// Returns the number of tasks in each state.
    #[must_use]
    pub const fn counts(&self) -> &TaskCounts {
        &self.counts
    }

    /// Returns statistics about ended tasks for [`crate::pace::estimate`], or `None` before the
    /// first task has ended.
    #[must_use]
    pub fn pace(&self) -> Option<PaceFacts> {
        self.ends.facts()
    }

    /// Returns the mean run time of the job's tasks, or `None` before the first task has ended.
    pub(crate) fn mean_run(&self) -> Option<std::time::Duration> {
        let PaceFacts { ended, run, .. } = self.pace()?;
        run.checked_div(u32::try_from(ended).unwrap_or(u32::MAX))
    }

    /// Returns the state of the job, derived from its tasks.
    #[must_use]
    pub fn state(&self) -> JobState {
        job_state(&self.counts, self.is_open)
    }

    /// Returns whether no task is waiting or running.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.counts.unfinished() == 0
    }

    /// Returns whether the job is closed and idle, so that its state is final.
    #[must_use]
    pub fn is_completed(&self) -> bool {
        !self.is_open && self.is_idle()
    }

    /// Returns whether more tasks have failed than are tolerated.
    #[must_use]
    pub fn exceeds_max_fails(&self) -> bool {
        self.max_fails.is_some_and(|max| self.counts.failed > max)
    }

    /// Returns the lowest ids of failed tasks, at most five.
    pub fn failed_lowest(&self) -> impl Iterator<Item = TaskId> + '_ {
        self.failed_lowest.iter().copied()
    }

    /// Returns the position of a task.
    #[must_use]
    pub fn find(&self, task: TaskId) -> Option<TaskSlot> {
        self.index.find(task.0)
    }

    /// Returns the submit of a slot.
    #[must_use]
    pub fn submit(&self, slot: TaskSlot) -> Option<&Submit> {
        self.submits.get(slot.submit as usize)
    }

    /// Returns the key of the task in a slot.
    #[must_use]
    pub fn key(&self, slot: TaskSlot) -> Option<TaskKey> {
        let id = self.submit(slot)?.ids.get(slot.index)?;
        Some(TaskKey::new(self.id, TaskId(id)))
    }

    /// Marks notifications that have become due as owed. Returns their numbers.
    pub(crate) fn take_due_notices(&mut self) -> Vec<u32> {
        // An open job without unfinished tasks is not over, because the next submit may come at any
        // time.
        let (is_over, has_failed) = (self.is_completed(), self.counts.failed > 0);
        let mut due = Vec::new();
        for (notice, number) in self.notices.iter_mut().zip(0..) {
            let is_due = match notice.spec.event {
                NotifyEvent::End => is_over,
                NotifyEvent::Failure => has_failed,
            };
            // Owed and delivered notifications are not repeated, even if the job got new tasks in
            // between.
            if is_due && notice.state == NoticeState::Waiting {
                notice.state = NoticeState::Owed;
                due.push(number);
            }
        }
        due
    }

    /// Returns the phase of a task.
    #[must_use]
    pub fn phase(&self, slot: TaskSlot) -> Option<Phase> {
        self.submit(slot)?.tasks.phase(slot.index)
    }

    /// Returns the record of a task that was dispatched.
    #[must_use]
    pub fn record(&self, slot: TaskSlot) -> Option<TaskRecord> {
        self.submit(slot)?.tasks.record(slot.index)
    }

    /// Returns the largest task id.
    #[must_use]
    pub const fn max_task_id(&self) -> Option<u32> {
        self.index.max
    }

    /// Returns the first of `ids` that already exists.
    #[must_use]
    pub fn first_existing(&self, ids: &IdArray) -> Option<TaskId> {
        self.index.first_existing(ids).map(TaskId)
    }

    /// Returns the lowest existing id of a range.
    #[must_use]
    pub fn first_in(&self, wanted: &IdRange) -> Option<TaskId> {
        self.index.first_in(wanted).map(TaskId)
    }

    /// Returns the first of `ids` that does not exist.
    #[must_use]
    pub fn first_missing(&self, ids: &IdArray) -> Option<TaskId> {
        self.index.first_missing(ids).map(TaskId)
    }

    /// Returns the ids of all tasks in the wanted states, sorted and merged into ranges of step 1.
    /// Other steps are used only if very many ranges have them. Takes O(runs of equal state).
    #[must_use]
    pub fn sorted_ids(&self, wanted: impl Fn(TaskState) -> bool) -> IdArray {
        let mut ids = Vec::new();
        for submit in &self.submits {
            for (from, to, phase) in submit.tasks.runs(0, submit.tasks.len()) {
                if wanted(phase.state()) {
                    ids.extend(submit.ids.slice(from, to));
                }
            }
        }
        merge_ranges(ids)
    }

    /// Returns a submit for changes.
    fn submit_mut(&mut self, number: u32) -> Option<&mut Submit> {
        let found = self.submits.get_mut(number as usize);
        // This job creates the slots and never loses a submit.
        if found.is_none() {
            bug!("job {} has no submit {number}", self.id);
        }
        found
    }

    /// Appends a submit of new, waiting tasks. Returns the position of the submit.
    fn add_submit(&mut self, mut submit: Submit) -> u32 {
        let number = u32::try_from(self.submits.len()).unwrap_or(u32::MAX);
        self.note_earlier(number, &mut submit);
        if let Some(origin) = &submit.origin {
            self.origins.note(number, origin);
        }
        self.index.insert(number, &submit.ids);
        self.counts.waiting = self.counts.waiting.saturating_add(submit.ids.len());
        // The job becomes idle again when the new tasks have ended. An empty submit changes
        // nothing.
        self.idle_noted &= submit.ids.is_empty();
        for spec in &submit.notify {
            // Otherwise a job with a submit per step would send as many equal messages.
            let is_known = self.notices.iter().any(|notice| notice.spec == *spec);
            if !is_known {
                self.notices.push(Notice {
                    spec: spec.clone(),
                    submit_dir: submit.header.submit_dir.clone(),
                    state: NoticeState::Waiting,
                });
            }
        }
        self.submits.push(submit);
        number
    }

    /// Changes the phase of one task. Only this function, [`Job::end_all`] and [`Job::end_submit`]
    /// change phases. Returns whether the visible state changes.
    fn set_phase(&mut self, slot: TaskSlot, phase: Phase) -> bool {
        let submit = self.submits.get_mut(slot.submit as usize);
        let found =
            submit.and_then(|submit| Some((submit.tasks.set_phase(slot.index, phase)?, submit)));
        let Some((old, submit)) = found else {
            bug!("job {} has no task at {slot:?}", self.id);
            return false;
        };
        *self.counts.of(old.state()) -= 1;
        *self.counts.of(phase.state()) += 1;
        if phase == Phase::Failed
            && let Some(id) = submit.ids.get(slot.index)
        {
            self.failed_lowest.insert(TaskId(id));
            // Keeps the lowest ids, which stay stable while tasks with higher ids fail.
            if self.failed_lowest.len() > FAILED_SHOWN_MAX {
                self.failed_lowest.pop_last();
            }
        }
        old.state() != phase.state()
    }

    /// Returns the current instance of a task, or the next instance of a waiting task.
    pub(crate) fn instance(&self, slot: TaskSlot) -> InstanceId {
        let submit = self.submit(slot);
        submit.map_or(InstanceId(0), |submit| submit.tasks.instance(slot.index))
    }

    /// If the last task has ended, records the time. Returns whether the job has become idle for
    /// the first time since the last submit. Late reports about tasks that the server ended change
    /// nothing.
    pub(crate) fn note_idle(&mut self, now: Timestamp) -> bool {
        // Once per submit, because an open job becomes idle after each submit.
        if !self.is_idle() || std::mem::replace(&mut self.idle_noted, true) {
            return false;
        }
        self.idle_since = now;
        true
    }

    /// Marks the job as completed if it is. Returns whether it was not marked before.
    pub(crate) fn note_completed(&mut self) -> bool {
        self.is_completed() && !std::mem::replace(&mut self.completion_noted, true)
    }

    /// Restores the flag that says whether an earlier run of the server recorded this job's
    /// completion.
    pub(crate) const fn restore_completion(&mut self, is_completed: bool) {
        self.completion_noted = is_completed;
    }

    /// Finishes a restore. An earlier run of the server has already reported the completion.
    pub(crate) fn finish_restore(&mut self, now: Timestamp) {
        if self.is_completed() {
            self.completion_noted = true;
            self.idle_noted = true;
            // The clock may have been set back between the two runs.
            self.idle_since = self.idle_since.min(now);
        } else {
            // Tasks of a completed job wait again if their results cannot be read.
            self.completion_noted = false;
        }
    }

    /// Returns the ids of unfinished tasks in their original ranges. Linear in the number of tasks
    /// that have been dispatched.
    fn unfinished_ids(&self) -> IdArray {
        let submits = self.submits.iter();
        let ids = submits.flat_map(|submit| submit.unfinished_ranges(0..submit.tasks.len()));
        self.set_of(ids.collect())
    }

    /// Combines ranges into a set of ids.
    fn set_of(&self, ranges: Vec<IdRange>) -> IdArray {
        IdArray::new(ranges).unwrap_or_else(|error| {
            bug!("tasks of job {} have ids that are no set: {error}", self.id);
            IdArray::default()
        })
    }

    /// Moves every unfinished task to phase `to` at the time `at`. Returns the number of moved
    /// tasks.
    fn end_all(&mut self, to: Phase, at: Timestamp) -> u32 {
        let numbers = 0..u32::try_from(self.submits.len()).unwrap_or(u32::MAX);
        numbers.map(|number| self.end_submit(number, to, at)).sum()
    }

    /// Moves the unfinished tasks of a submit to phase `to` at the time `at`. Returns their number.
    fn end_submit(&mut self, number: u32, to: Phase, at: Timestamp) -> u32 {
        let begin = TaskSlot::new(number, 0);
        self.end_part(begin, u32::MAX, to, at)
    }

    /// Moves the unfinished tasks among `count` tasks starting at `begin` to phase `to`. Returns
    /// their number.
    fn end_part(&mut self, begin: TaskSlot, count: u32, to: Phase, at: Timestamp) -> u32 {
        let Some(submit) = self.submit_mut(begin.submit) else {
            return 0;
        };
        let part = begin.index..begin.index.saturating_add(count);
        let (waiting, running) = submit.tasks.end_part(part, to, at);
        self.counts.waiting -= waiting;
        self.counts.running -= running;
        *self.counts.of(to.state()) += waiting + running;
        waiting + running
    }

    /// Ends the unfinished tasks in parts of a submit. Returns their ids.
    fn end_parts(
        &mut self,
        number: u32,
        parts: &[Range<u32>],
        to: Phase,
        at: Timestamp,
    ) -> IdArray {
        let mut ranges = VecDeque::new();
        for part in parts {
            let submit = self.submits.get(number as usize);
            let ids = submit.map(|submit| submit.unfinished_ranges(part.clone()));
            for range in ids.unwrap_or_default() {
                range.append_to(&mut ranges);
            }
            let begin = TaskSlot::new(number, part.start);
            self.end_part(begin, part.end - part.start, to, at);
        }
        self.set_of(ranges.into())
    }

    /// Records the run time of a running task that ends at the time `at`.
    fn cut_short(&mut self, slot: TaskSlot, at: Timestamp) {
        // A waiting task has not run, and the record of an ended task already has its run time.
        if self.phase(slot) == Some(Phase::Running)
            && let Some(submit) = self.submit_mut(slot.submit)
        {
            submit.tasks.cut_short(slot.index, at);
        }
    }

    /// Returns the record of a task for changes.
    pub(crate) fn touch(&mut self, slot: TaskSlot) -> Option<&mut TaskRecord> {
        let id = self.id;
        let record = self.submit_mut(slot.submit)?.tasks.touch(slot.index);
        if record.is_none() {
            bug!("job {id} has no task at {slot:?}, but something happens to it");
        }
        record
    }

    /// Records the workers of a multi-node task, the root first.
    pub(crate) fn set_nodes(&mut self, slot: TaskSlot, nodes: &[WorkerId]) {
        if let Some(submit) = self.submit_mut(slot.submit) {
            submit.tasks.set_nodes(slot.index, nodes);
            // Only the root reports, but the other workers took part as well.
            self.workers.extend(nodes);
        }
    }

    /// Records the outcome of the last instance.
    pub(crate) fn record_end(&mut self, slot: TaskSlot, end: &TaskEnd) {
        if let Some(submit) = self.submit_mut(slot.submit) {
            submit.tasks.record_end(slot.index, end);
            self.ends.note(end.at, end.run);
        }
    }

    /// Records a failed attempt of a task that is waiting again.
    pub(crate) fn record_attempt(&mut self, slot: TaskSlot, end: TaskEnd) {
        let id = self.id;
        let Some(submit) = self.submit_mut(slot.submit) else {
            return;
        };
        if let Some(record) = submit.tasks.touch(slot.index) {
            let attempt = Attempt {
                instance: record.instance(),
                worker: record.worker(),
                end,
            };
            // The attempt must be taken first, because it carries the instance that ended.
            record.supersede();
            submit.tasks.record_attempt(slot.index, attempt);
        } else {
            bug!("job {id} has no task at {slot:?}, but it is tried again");
        }
    }

    /// Restores an earlier attempt.
    pub(crate) fn restore_attempt(&mut self, slot: TaskSlot, attempt: Attempt) {
        // The worker of this attempt took part, even if the last attempt ran on another worker.
        self.workers.insert(attempt.worker);
        if let Some(submit) = self.submit_mut(slot.submit) {
            submit.tasks.record_attempt(slot.index, attempt);
        }
    }
}

#[cfg(test)]
mod tests;
