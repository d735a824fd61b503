//! The state of the tasks of one submission, in a compact form: an untouched task needs no memory,
//! a touched one needs a record, and neighbors that have all finished need a few bytes each.
//!
//! ```text
//!            assign            room            started           exit 0
//!  Waiting ─────────▶ Queued ◀───────▶ Placed ─────────▶ Running ──────▶ Finished
//!   ▲  │  ◀─────────────┴───────────────┤  ◀── lost ──────┤└───────────▶ Failed
//!   │  │       retract, lost            │                 │
//!   │  └────────────────────────────────┴─────────────────┴───▶ Canceled | Aborted
//!   └─ (blocked by dependencies or in the ready queue: both are Waiting)
//! ```
//!
//! Users see `Queued` as WAITING and `Placed` as RUNNING. The last four states are final. This
//! module only stores states. [`crate::job::Job`] maintains the counters and is the only caller
//! that changes a phase.

mod outline;
mod packed;
mod state;

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use crate::id::{InstanceId, TaskId, WorkerId};
use crate::outcome::{Outcome, OutcomeCode, Usage};
use crate::time::Timestamp;
use packed::Packed;
pub use state::{Phase, TaskState};

/// The number of attempts that are kept for each task. Only the latest ones are kept.
pub(crate) const ATTEMPTS_KEPT_MAX: usize = 32;

/// The record of a task that has been dispatched at least once. It takes 48 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TaskRecord {
    started: Timestamp,
    run_us: u64,
    worker: u32,
    instance: u32,
    /// Texts are stored separately, because they are rare.
    outcome: OutcomeCode,
    max_rss_kib: u32,
    user_ms: u32,
    system_ms: u32,
    crash_count: u16,
    retry_count: u16,
    phase: Phase,
    was_started: bool,
    /// Whether it was canceled or aborted while it ran.
    was_cut_short: bool,
}

const _: () = assert!(
    size_of::<TaskRecord>() == 48,
    "the memory budget of a finished task"
);

impl TaskRecord {
    const fn new(phase: Phase, instance: InstanceId) -> Self {
        Self {
            started: Timestamp(0),
            run_us: 0,
            worker: 0,
            instance: instance.0,
            outcome: OutcomeCode::FINISHED,
            max_rss_kib: 0,
            user_ms: 0,
            system_ms: 0,
            crash_count: 0,
            retry_count: 0,
            phase,
            was_started: false,
            was_cut_short: false,
        }
    }

    /// Returns the state inside the server.
    #[must_use]
    pub const fn phase(self) -> Phase {
        self.phase
    }

    /// Returns the worker of the current or last instance. Meaningless before the first assignment.
    #[must_use]
    pub const fn worker(self) -> WorkerId {
        WorkerId(self.worker)
    }

    /// Returns the current instance, or the next one while the task waits.
    #[must_use]
    pub const fn instance(self) -> InstanceId {
        InstanceId(self.instance)
    }

    /// Returns the number of worker losses that counted.
    #[must_use]
    pub const fn crash_count(self) -> u32 {
        self.crash_count as u32
    }

    /// Returns the number of attempts that followed a failure.
    #[must_use]
    pub const fn retry_count(self) -> u16 {
        self.retry_count
    }

    /// Returns whether a worker reported the start of any instance.
    #[must_use]
    pub const fn was_started(self) -> bool {
        self.was_started
    }

    /// Returns when the current instance started or, for an ended task, the last one. `None` if it
    /// did not run. Before the start is reported, returns when the task was on the worker and the
    /// worker had room for it.
    #[must_use]
    pub fn started(self) -> Option<Timestamp> {
        self.has_run().then_some(self.started)
    }

    /// Returns whether the current instance runs or, for an ended task, the last instance ran.
    #[must_use]
    pub const fn has_run(self) -> bool {
        match self.phase {
            Phase::Placed | Phase::Running | Phase::Finished | Phase::Failed => true,
            Phase::Waiting | Phase::Queued => false,
            // Most of these tasks never ran. A task that ran has an end time.
            Phase::Canceled | Phase::Aborted => self.was_cut_short,
        }
    }

    /// Returns when the task ended, if it ran and has ended.
    #[must_use]
    pub fn finished(self) -> Option<Timestamp> {
        (self.has_run() && self.phase.is_terminal())
            .then(|| self.started.plus(Duration::from_micros(self.run_us)))
    }

    /// Returns the resource usage of the last instance that ended by itself.
    #[must_use]
    pub fn usage(self) -> Usage {
        Usage {
            max_rss_kib: u64::from(self.max_rss_kib),
            user: Duration::from_millis(u64::from(self.user_ms)),
            system: Duration::from_millis(u64::from(self.system_ms)),
        }
    }

    pub(crate) fn assign(&mut self, worker: WorkerId) {
        self.worker = worker.0;
    }

    /// Marks the task as placed. The reported start will correct the time.
    pub(crate) fn place(&mut self, at: Timestamp) {
        self.started = at;
    }

    pub(crate) fn start(&mut self, at: Timestamp) {
        self.started = at;
        self.was_started = true;
    }

    /// Assigns a new instance to the next start.
    pub(crate) fn supersede(&mut self) {
        self.instance = InstanceId(self.instance).next().0;
    }

    pub(crate) fn count_crash(&mut self) -> u32 {
        self.crash_count = self.crash_count.saturating_add(1);
        u32::from(self.crash_count)
    }

    pub(crate) const fn count_retry(&mut self) -> u16 {
        self.retry_count = self.retry_count.saturating_add(1);
        self.retry_count
    }

    /// Restores the stored fields except for the phase and the end. A run that does not continue is
    /// superseded.
    pub(crate) fn restore(&mut self, stored: &StoredTask, goes_on: bool) {
        self.worker = stored.worker.0;
        self.instance = stored.instance.0;
        self.crash_count = u16::try_from(stored.crash_count).unwrap_or(u16::MAX);
        self.retry_count = u16::try_from(stored.retry_count).unwrap_or(u16::MAX);
        if let Some(started) = stored.started {
            self.start(started);
        }
        if let Some(run) = stored.run_until_dropped {
            self.cut_short(run);
        }
        // The old instance may still be running somewhere, and its report must not count for the
        // next one.
        if stored.state == TaskState::Running && !goes_on {
            self.supersede();
        }
    }

    /// Records the run time until the task was canceled or aborted.
    fn cut_short(&mut self, run: Duration) {
        self.was_cut_short = true;
        // This is exceeded only after half a million years, or by a clock error.
        self.run_us = u64::try_from(run.as_micros()).unwrap_or(u64::MAX);
    }

    /// Sets the instance of a multi-node task that last got nodes.
    pub(crate) fn resume(&mut self, instance: InstanceId) {
        self.instance = instance.0;
    }

    /// Sets the instance of the next start, unless it is already later.
    fn skip_to(&mut self, instance: InstanceId) {
        self.instance = self.instance.max(instance.0);
    }

    fn finish(&mut self, end: &TaskEnd) {
        let millis = |d: Duration| u32::try_from(d.as_millis()).unwrap_or(u32::MAX);
        // Derived from the run time on the worker, because the start may never have been reported.
        self.started = end.at.minus(end.run);
        self.was_started = true;
        self.run_us = u64::try_from(end.run.as_micros()).unwrap_or(u64::MAX);
        self.max_rss_kib = u32::try_from(end.usage.max_rss_kib).unwrap_or(u32::MAX);
        self.user_ms = millis(end.usage.user);
        self.system_ms = millis(end.usage.system);
        self.outcome = OutcomeCode::of(&end.outcome);
    }
}

/// A stored task. Tasks that never started are not stored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoredTask {
    /// The id in the job.
    pub task: TaskId,
    /// The last recorded state.
    pub state: TaskState,
    /// The last instance or, for a waiting task, the next one.
    pub instance: InstanceId,
    /// The worker on which that instance ran.
    pub worker: WorkerId,
    /// The variant of the task's resource request.
    pub variant: u32,
    /// The number of worker losses that counted.
    pub crash_count: u32,
    /// The number of attempts that followed a failure.
    pub retry_count: u32,
    /// When the last instance started.
    pub started: Option<Timestamp>,
    /// The end, for finished and failed tasks.
    pub end: Option<TaskEnd>,
    /// The run time until the task was canceled or aborted. `None` if it was not running.
    pub run_until_dropped: Option<Duration>,
    /// The nodes of the latest instance that had nodes.
    pub nodes: Option<StoredNodes>,
}

/// The nodes of an instance of a multi-node task, which are stored before the task is sent to its
/// root.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoredNodes {
    /// The number of the instance.
    pub instance: InstanceId,
    /// The variant of the task's resource request.
    pub variant: u32,
    /// The workers of the instance, root first.
    pub workers: Vec<WorkerId>,
}

impl StoredTask {
    /// Creates a task for which only the nodes are recorded.
    #[must_use]
    pub fn with_nodes(task: TaskId, nodes: StoredNodes) -> Self {
        Self {
            task,
            state: TaskState::Waiting,
            instance: nodes.instance,
            worker: nodes.workers.first().copied().unwrap_or(WorkerId(0)),
            variant: nodes.variant,
            crash_count: 0,
            retry_count: 0,
            started: None,
            end: None,
            run_until_dropped: None,
            nodes: Some(nodes),
        }
    }

    /// Returns the nodes that may currently have the task.
    pub(crate) fn current_nodes(&self) -> Option<&StoredNodes> {
        // The nodes of an instance that was given up, or of an ended task, are meaningless.
        let is_unfinished = matches!(self.state, TaskState::Waiting | TaskState::Running);
        self.nodes
            .as_ref()
            .filter(|nodes| is_unfinished && nodes.instance >= self.instance)
    }
}

/// The end of an instance, with all recorded fields.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TaskEnd {
    /// The outcome.
    pub outcome: Outcome,
    /// When the instance ended, by the server's clock.
    pub at: Timestamp,
    /// The run time. Zero if the instance could not start.
    pub run: Duration,
    /// The resources that it used.
    pub usage: Usage,
}

/// An ended instance that was not the last one of its task.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Attempt {
    /// The number of the instance.
    pub instance: InstanceId,
    /// The worker on which it ran.
    pub worker: WorkerId,
    /// How and when the instance ended.
    pub end: TaskEnd,
}

/// The number of tasks per chunk. It is large enough that ten million waiting tasks need only tens
/// of thousands of entries, and small enough that one touched task does not allocate many records
/// for its neighbors.
const CHUNK_LEN: u32 = 256;

#[derive(Clone, Debug)]
enum Chunk {
    /// No task of the chunk has ever been dispatched, and all of them are in this phase.
    Uniform(Phase),
    Records {
        records: Box<[TaskRecord]>,
        /// The number of unfinished tasks in the chunk.
        unfinished: u32,
    },
    /// All tasks of the chunk have finished.
    Packed(Box<Packed>),
}

impl Chunk {
    fn of(records: Box<[TaskRecord]>) -> Self {
        let open = records
            .iter()
            .filter(|record| record.phase != Phase::Finished);
        Self::Records {
            // There are at most `CHUNK_LEN` tasks.
            unfinished: u32::try_from(open.count()).unwrap_or(CHUNK_LEN),
            records,
        }
    }
}

/// The phases and records of the tasks of one submission, by index.
#[derive(Clone, Debug)]
pub struct TaskTable {
    len: u32,
    /// The chunks up to the last one with a touched task.
    chunks: Vec<Chunk>,
    /// The phase of all tasks beyond `chunks`, so that a large array needs no memory by itself.
    tail: Phase,
    /// The first instance of untouched tasks.
    first_instance: InstanceId,
    /// The texts of failures that have no code.
    messages: BTreeMap<u32, Box<str>>,
    /// The earlier attempts of tasks that were started more than once.
    attempts: BTreeMap<u32, Vec<Attempt>>,
    /// The workers of dispatched multi-node tasks, root first.
    nodes: BTreeMap<u32, Box<[WorkerId]>>,
}

impl TaskTable {
    /// Creates `len` waiting tasks.
    #[must_use]
    pub fn new(len: u32) -> Self {
        Self {
            len,
            chunks: Vec::new(),
            tail: Phase::Waiting,
            first_instance: InstanceId(0),
            messages: BTreeMap::new(),
            attempts: BTreeMap::new(),
            nodes: BTreeMap::new(),
        }
    }

    /// Returns the number of tasks.
    #[must_use]
    pub const fn len(&self) -> u32 {
        self.len
    }

    /// Returns whether there are no tasks.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the phase of a task. `None` beyond the end.
    #[must_use]
    pub fn phase(&self, index: u32) -> Option<Phase> {
        if index >= self.len {
            return None;
        }
        match self.chunks.get((index / CHUNK_LEN) as usize) {
            // The task is beyond the last touched chunk.
            None => Some(self.tail),
            Some(Chunk::Uniform(phase)) => Some(*phase),
            Some(Chunk::Packed(_)) => Some(Phase::Finished),
            Some(Chunk::Records { records, .. }) => records
                .get((index % CHUNK_LEN) as usize)
                .map(|record| record.phase),
        }
    }

    /// Returns the record of a task whose chunk has been touched.
    #[must_use]
    pub fn record(&self, index: u32) -> Option<TaskRecord> {
        let place = (index % CHUNK_LEN) as usize;
        match self.chunks.get((index / CHUNK_LEN) as usize)? {
            Chunk::Uniform(_) => None,
            Chunk::Records { records, .. } => records.get(place).copied(),
            Chunk::Packed(packed) => packed.record(place),
        }
    }

    /// Returns the current instance of a task, or the next one while it waits.
    #[must_use]
    pub fn instance(&self, index: u32) -> InstanceId {
        let record = self.record(index);
        record.map_or(self.first_instance, TaskRecord::instance)
    }

    /// Returns the record of a task, which is created if it is missing. `None` beyond the end.
    pub(crate) fn touch(&mut self, index: u32) -> Option<&mut TaskRecord> {
        if index >= self.len {
            return None;
        }
        let number = index / CHUNK_LEN;
        // The last chunk contains only the remaining tasks, so that a submission with one task
        // needs only one record.
        let width = (self.len - number * CHUNK_LEN).min(CHUNK_LEN) as usize;
        if number as usize >= self.chunks.len() {
            let tail = Chunk::Uniform(self.tail);
            // The chunks in between stay uniform, which costs a few bytes each.
            self.chunks.resize(number as usize + 1, tail);
        }
        let chunk = self.chunks.get_mut(number as usize)?;
        match chunk {
            Chunk::Records { .. } => {}
            Chunk::Uniform(phase) => {
                let record = TaskRecord::new(*phase, self.first_instance);
                let records = vec![record; width].into_boxed_slice();
                *chunk = Chunk::of(records);
            }
            // This is rare, because finished tasks do not change.
            Chunk::Packed(packed) => *chunk = Chunk::of(packed.records()),
        }
        match chunk {
            Chunk::Records { records, .. } => records.get_mut((index % CHUNK_LEN) as usize),
            Chunk::Uniform(_) | Chunk::Packed(_) => None,
        }
    }

    /// Sets the phase and returns the previous one. When the last task of a chunk finishes, the
    /// chunk is packed, because its records are complete.
    pub(crate) fn set_phase(&mut self, index: u32, phase: Phase) -> Option<Phase> {
        let record = self.touch(index)?;
        let earlier = std::mem::replace(&mut record.phase, phase);
        self.note_phase(index, earlier, phase);
        Some(earlier)
    }

    /// Restores the stored end of a task with this instance and worker. Returns the previous phase.
    pub(crate) fn restore_finished(
        &mut self,
        index: u32,
        instance: InstanceId,
        worker: WorkerId,
        end: &TaskEnd,
    ) -> Option<Phase> {
        let record = self.touch(index)?;
        record.assign(worker);
        record.resume(instance);
        record.finish(end);
        let earlier = std::mem::replace(&mut record.phase, Phase::Finished);
        self.note_phase(index, earlier, Phase::Finished);
        Some(earlier)
    }

    /// Advances the instances of waiting tasks, because dispatched ones may have started on an
    /// unreachable worker. Tasks whose instance was never sent keep it. Returns the first instance
    /// of untouched tasks, and the indices that got an individual later instance.
    pub(crate) fn supersede_waiting(
        &mut self,
        is_fresh: impl Fn(u32) -> bool,
    ) -> (InstanceId, Vec<u32>) {
        let before = self.first_instance;
        self.first_instance = before.next();
        let mut own = Vec::new();
        for (chunk, start) in self
            .chunks
            .iter_mut()
            .zip((0..).step_by(CHUNK_LEN as usize))
        {
            let Chunk::Records { records, .. } = chunk else {
                continue;
            };
            for (record, index) in records.iter_mut().zip(start..) {
                if record.phase != Phase::Waiting {
                    continue;
                }
                if record.instance > before.0 && !is_fresh(index) {
                    record.supersede();
                    own.push(index);
                }
                record.skip_to(self.first_instance);
            }
        }
        (self.first_instance, own)
    }

    /// Returns the first instance of untouched tasks.
    pub(crate) const fn first_instance(&self) -> InstanceId {
        self.first_instance
    }

    /// Restores the result of [`Self::supersede_waiting`] of an earlier run. Must be called before
    /// any task is restored.
    pub(crate) fn restore_first_instance(&mut self, first: InstanceId) {
        self.first_instance = first;
    }

    /// Advances the instance of a waiting task to at least that of superseded tasks. The task was
    /// dispatched before the others were superseded.
    pub(crate) fn skip_superseded(&mut self, index: u32) {
        let first = self.first_instance;
        if let Some(record) = self.touch(index) {
            record.skip_to(first);
        }
    }

    /// Updates the unfinished count of a task's chunk after a phase change, and packs the chunk
    /// when the count reaches 0.
    fn note_phase(&mut self, index: u32, earlier: Phase, phase: Phase) {
        let Some(chunk) = self.chunks.get_mut((index / CHUNK_LEN) as usize) else {
            return;
        };
        if let Chunk::Records {
            records,
            unfinished,
        } = chunk
            && (earlier == Phase::Finished) != (phase == Phase::Finished)
        {
            if phase == Phase::Finished {
                *unfinished = unfinished.saturating_sub(1);
            } else {
                *unfinished += 1;
            }
            if *unfinished == 0
                && let Some(packed) = Packed::new(records)
            {
                *chunk = Chunk::Packed(Box::new(packed));
            }
        }
    }

    /// Records that a running task ended at the time `at`.
    pub(crate) fn cut_short(&mut self, index: u32, at: Timestamp) {
        if let Some(record) = self.touch(index) {
            record.cut_short(at.since(record.started));
        }
    }

    /// Moves the unfinished tasks of an index range to `to` at the time `at`. Returns how many of
    /// them were visible as waiting and as running. Time and memory are linear in the number of
    /// chunks, not of tasks.
    pub(crate) fn end_part(&mut self, part: Range<u32>, to: Phase, at: Timestamp) -> (u32, u32) {
        let (start, end) = (part.start, part.end.min(self.len));
        if start >= end {
            return (0, 0);
        }
        self.split_at(start);
        self.split_at(end);
        let (mut waiting, mut running) = (0, 0);
        let (first, tail_start) = (start / CHUNK_LEN, self.chunked_len());
        let starts = (first * CHUNK_LEN..end).step_by(CHUNK_LEN as usize);
        for (chunk, chunk_start) in self.chunks.iter_mut().skip(first as usize).zip(starts) {
            let width = (self.len - chunk_start).min(CHUNK_LEN);
            match chunk {
                // The whole chunk has already ended and stays unchanged.
                Chunk::Packed(_) => {}
                Chunk::Uniform(phase) if phase.is_terminal() => {}
                Chunk::Uniform(phase) => {
                    *phase = to;
                    waiting += width;
                }
                Chunk::Records { records, .. } => {
                    let from = start.saturating_sub(chunk_start) as usize;
                    let until = (end - chunk_start).min(width) as usize;
                    for record in &mut records[from..until] {
                        match record.phase {
                            Phase::Running => {
                                running += 1;
                                // The run time is known only if the start was reported.
                                record.cut_short(at.since(record.started));
                            }
                            Phase::Placed => running += 1,
                            Phase::Waiting | Phase::Queued => waiting += 1,
                            Phase::Finished | Phase::Failed | Phase::Canceled | Phase::Aborted => {
                                continue;
                            }
                        }
                        record.phase = to;
                    }
                }
            }
        }
        // All untouched tasks change in one step, no matter how many there are.
        if end > tail_start && !self.tail.is_terminal() {
            self.tail = to;
            waiting += end - tail_start;
        }
        (waiting, running)
    }

    /// Returns the index of the first task after the chunks.
    fn chunked_len(&self) -> u32 {
        let chunks = u32::try_from(self.chunks.len()).unwrap_or(u32::MAX);
        chunks.saturating_mul(CHUNK_LEN).min(self.len)
    }

    /// Separates the tasks before an index from the common phase of the tail.
    fn split_at(&mut self, index: u32) {
        // Ended tasks do not change.
        if self.phase(index).is_none_or(Phase::is_terminal) {
            return;
        }
        if !index.is_multiple_of(CHUNK_LEN) {
            self.touch(index);
        } else if index > self.chunked_len() {
            let number = (index / CHUNK_LEN) as usize;
            self.chunks.resize(number, Chunk::Uniform(self.tail));
        }
    }

    /// Records the end of an instance without changing the phase.
    pub(crate) fn record_end(&mut self, index: u32, end: &TaskEnd) {
        if let Outcome::Message(text) | Outcome::OutOfMemory(Some(text)) = &end.outcome {
            self.messages.insert(index, text.clone());
        } else {
            // The text of an earlier attempt must not be mistaken for that of this end.
            self.messages.remove(&index);
        }
        if let Some(record) = self.touch(index) {
            record.finish(end);
        }
    }

    /// Records an attempt that is followed by another one.
    pub(crate) fn record_attempt(&mut self, index: u32, attempt: Attempt) {
        let attempts = self.attempts.entry(index).or_default();
        if attempts.len() >= ATTEMPTS_KEPT_MAX {
            // The oldest attempt is dropped. With endless retries, the latest ends are the most
            // informative.
            attempts.remove(0);
        }
        attempts.push(attempt);
    }

    /// Returns the earlier attempts of a task, oldest first, limited to the latest
    /// [`ATTEMPTS_KEPT_MAX`].
    #[must_use]
    pub fn attempts(&self, index: u32) -> &[Attempt] {
        self.attempts.get(&index).map_or(&[], Vec::as_slice)
    }

    /// Returns the latest earlier attempt of each task that has one.
    pub(crate) fn last_attempts(&self) -> impl Iterator<Item = (u32, &Attempt)> {
        let attempts = self.attempts.iter();
        attempts.filter_map(|(index, attempts)| Some((*index, attempts.last()?)))
    }

    /// Returns the outcome of a finished or failed task.
    #[must_use]
    pub fn outcome(&self, index: u32) -> Option<Outcome> {
        let record = self.record(index)?;
        // The record may describe the end of an earlier instance, which does not count.
        if !matches!(record.phase, Phase::Finished | Phase::Failed) {
            return None;
        }
        let outcome = record.outcome.outcome(self.messages.get(&index).cloned());
        if outcome == Outcome::Finished && record.phase == Phase::Failed {
            // A failed task that exited with 0 shows this code.
            return Some(Outcome::ExitCode(0));
        }
        Some(outcome)
    }

    /// Returns the workers of the last instance of a multi-node task, root first. Empty for other
    /// tasks.
    #[must_use]
    pub fn nodes(&self, index: u32) -> &[WorkerId] {
        self.nodes.get(&index).map_or(&[], AsRef::as_ref)
    }

    pub(crate) fn set_nodes(&mut self, index: u32, nodes: &[WorkerId]) {
        self.nodes.insert(index, nodes.into());
    }

    /// Returns the number of consecutive untouched tasks, starting with this one, up to the first
    /// task that has a record or another phase.
    #[must_use]
    pub fn untouched(&self, index: u32) -> u32 {
        let chunk = |index: u32| match self.chunks.get((index / CHUNK_LEN) as usize) {
            None => Some((self.tail, self.len)),
            Some(Chunk::Uniform(phase)) => {
                let next = (index / CHUNK_LEN + 1).saturating_mul(CHUNK_LEN);
                Some((*phase, next))
            }
            Some(Chunk::Records { .. } | Chunk::Packed(_)) => None,
        };
        let mut end = index;
        while end < self.len
            && let Some((phase, next)) = chunk(end)
            && Some(phase) == self.phase(index)
        {
            end = next.min(self.len);
        }
        end - index
    }

    /// Returns the runs of equal phase in `from..to` in ascending order, as `(from, to, phase)`.
    /// The cost depends on the number of chunks and touched tasks, not on the total number of
    /// tasks.
    pub fn runs(&self, from: u32, to: u32) -> impl Iterator<Item = (u32, u32, Phase)> + '_ {
        let to = to.min(self.len);
        let mut index = from;
        std::iter::from_fn(move || {
            if index >= to {
                return None;
            }
            let start = index;
            let phase = self.phase(index)?;
            while index < to {
                match self.chunks.get((index / CHUNK_LEN) as usize) {
                    // Entire ranges without records are skipped, so that a million tasks take only
                    // a few steps.
                    None if self.tail == phase => index = to,
                    Some(Chunk::Packed(_)) if phase == Phase::Finished => {
                        index = (index / CHUNK_LEN + 1).saturating_mul(CHUNK_LEN).min(to);
                    }
                    Some(Chunk::Uniform(other)) if *other == phase => {
                        index = (index / CHUNK_LEN + 1).saturating_mul(CHUNK_LEN).min(to);
                    }
                    Some(Chunk::Records { .. }) if self.phase(index) == Some(phase) => index += 1,
                    None | Some(Chunk::Uniform(_) | Chunk::Records { .. } | Chunk::Packed(_)) => {
                        break;
                    }
                }
            }
            Some((start, index, phase))
        })
    }
}

#[cfg(test)]
mod tests;
