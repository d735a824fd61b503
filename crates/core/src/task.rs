//! State of the tasks of one submit, packed: an untouched task costs nothing, a touched one a
//! record, and neighbors that have all finished a few bytes each.
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
//! Users see `Queued` as WAITING and `Placed` as RUNNING. The last four are final. This module only
//! stores; [`crate::job::Job`] owns the counters and is the only caller that changes a phase.

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

/// Limit of kept attempts of one task, the latest.
pub(crate) const ATTEMPTS_KEPT_MAX: usize = 32;

/// Record of a task that was dispatched at least once. 48 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TaskRecord {
    started: Timestamp,
    run_us: u64,
    worker: u32,
    instance: u32,
    /// Texts are stored separately because they are rare.
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

    /// State inside the server.
    #[must_use]
    pub const fn phase(self) -> Phase {
        self.phase
    }

    /// Worker of the current or last instance; meaningless before the first assignment.
    #[must_use]
    pub const fn worker(self) -> WorkerId {
        WorkerId(self.worker)
    }

    /// Current instance, or the next one while the task waits.
    #[must_use]
    pub const fn instance(self) -> InstanceId {
        InstanceId(self.instance)
    }

    /// Losses of workers that counted.
    #[must_use]
    pub const fn crash_count(self) -> u32 {
        self.crash_count as u32
    }

    /// Attempts after the first one that failures led to.
    #[must_use]
    pub const fn retry_count(self) -> u16 {
        self.retry_count
    }

    /// Whether a worker reported the start of any instance.
    #[must_use]
    pub const fn was_started(self) -> bool {
        self.was_started
    }

    /// Start of the current instance, or of the last one of an ended task; `None` if that did not
    /// run. Before the report of the start, the time at which the worker had it and room for it.
    #[must_use]
    pub fn started(self) -> Option<Timestamp> {
        self.has_run().then_some(self.started)
    }

    /// Whether the current instance runs, or the last one of an ended task ran.
    #[must_use]
    pub const fn has_run(self) -> bool {
        match self.phase {
            Phase::Placed | Phase::Running | Phase::Finished | Phase::Failed => true,
            Phase::Waiting | Phase::Queued => false,
            // Most of these never ran; one that did has an end time.
            Phase::Canceled | Phase::Aborted => self.was_cut_short,
        }
    }

    /// End of the task, if it ran and has ended.
    #[must_use]
    pub fn finished(self) -> Option<Timestamp> {
        (self.has_run() && self.phase.is_terminal())
            .then(|| self.started.plus(Duration::from_micros(self.run_us)))
    }

    /// Resource usage of the last instance that ended by itself.
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

    /// Marks it as placed; the report of the start corrects the time.
    pub(crate) fn place(&mut self, at: Timestamp) {
        self.started = at;
    }

    pub(crate) fn start(&mut self, at: Timestamp) {
        self.started = at;
        self.was_started = true;
    }

    /// The next start gets a new instance.
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

    /// Restores stored fields except phase and end; a run that does not continue is superseded.
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
        // The old instance may still run somewhere: its report must not count for the next one.
        if stored.state == TaskState::Running && !goes_on {
            self.supersede();
        }
    }

    /// Records its run time until it was canceled or aborted.
    fn cut_short(&mut self, run: Duration) {
        self.was_cut_short = true;
        // Only a clock error exceeds half a million years.
        self.run_us = u64::try_from(run.as_micros()).unwrap_or(u64::MAX);
    }

    /// Sets the instance that a multi-node task last got nodes for.
    pub(crate) fn resume(&mut self, instance: InstanceId) {
        self.instance = instance.0;
    }

    /// Sets the instance of the next start, unless it is later already.
    fn skip_to(&mut self, instance: InstanceId) {
        self.instance = self.instance.max(instance.0);
    }

    fn finish(&mut self, end: &TaskEnd) {
        let millis = |d: Duration| u32::try_from(d.as_millis()).unwrap_or(u32::MAX);
        // Derived from the worker's run time: the start may never have been reported.
        self.started = end.at.minus(end.run);
        self.was_started = true;
        self.run_us = u64::try_from(end.run.as_micros()).unwrap_or(u64::MAX);
        self.max_rss_kib = u32::try_from(end.usage.max_rss_kib).unwrap_or(u32::MAX);
        self.user_ms = millis(end.usage.user);
        self.system_ms = millis(end.usage.system);
        self.outcome = OutcomeCode::of(&end.outcome);
    }
}

/// A stored task; tasks that never started have none.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoredTask {
    /// Id inside the job.
    pub task: TaskId,
    /// Last recorded state.
    pub state: TaskState,
    /// Last instance; the next one of a waiting task.
    pub instance: InstanceId,
    /// Where that ran.
    pub worker: WorkerId,
    /// Variant of its resource request.
    pub variant: u32,
    /// Losses of workers that counted.
    pub crash_count: u32,
    /// Attempts that failures led to.
    pub retry_count: u32,
    /// Start of the last instance.
    pub started: Option<Timestamp>,
    /// End, of finished and failed tasks.
    pub end: Option<TaskEnd>,
    /// Run time until it was canceled or aborted; `None` if it was not running.
    pub run_until_dropped: Option<Duration>,
    /// Nodes of the latest instance that had some.
    pub nodes: Option<StoredNodes>,
}

/// Nodes of an instance of a multi-node task, stored before it is sent to its root.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoredNodes {
    /// Number of the instance.
    pub instance: InstanceId,
    /// Variant of its resource request.
    pub variant: u32,
    /// Workers of the instance, the root first.
    pub workers: Vec<WorkerId>,
}

impl StoredTask {
    /// A task whose only record is its nodes.
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

    /// Nodes that may have the task now.
    pub(crate) fn current_nodes(&self) -> Option<&StoredNodes> {
        // Nodes of an instance that was given up, or of an ended task, are meaningless.
        let is_unfinished = matches!(self.state, TaskState::Waiting | TaskState::Running);
        self.nodes
            .as_ref()
            .filter(|nodes| is_unfinished && nodes.instance >= self.instance)
    }
}

/// End of an instance with all recorded fields.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TaskEnd {
    /// Outcome.
    pub outcome: Outcome,
    /// When it ended, by the server's clock.
    pub at: Timestamp,
    /// Run time; zero if it could not start.
    pub run: Duration,
    /// Resources that it used.
    pub usage: Usage,
}

/// An ended instance that was not the last one of its task.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Attempt {
    /// Number of the instance.
    pub instance: InstanceId,
    /// Where it ran.
    pub worker: WorkerId,
    /// How and when it ended.
    pub end: TaskEnd,
}

/// Tasks per chunk: large enough that ten million waiting tasks cost some 10 000 entries, small
/// enough that one touched task does not allocate many records for its neighbors.
const CHUNK_LEN: u32 = 256;

#[derive(Clone, Debug)]
enum Chunk {
    /// No task of the chunk was ever dispatched; all are in this phase.
    Uniform(Phase),
    Records {
        records: Box<[TaskRecord]>,
        /// Number of unfinished tasks among them.
        unfinished: u32,
    },
    /// All of them have finished.
    Packed(Box<Packed>),
}

impl Chunk {
    fn of(records: Box<[TaskRecord]>) -> Self {
        let open = records
            .iter()
            .filter(|record| record.phase != Phase::Finished);
        Self::Records {
            // At most `CHUNK_LEN`.
            unfinished: u32::try_from(open.count()).unwrap_or(CHUNK_LEN),
            records,
        }
    }
}

/// Phases and records of the tasks of one submit, by index.
#[derive(Clone, Debug)]
pub struct TaskTable {
    len: u32,
    /// Up to the last chunk with a touched task.
    chunks: Vec<Chunk>,
    /// Phase of everything beyond `chunks`, so that the size of an array costs nothing by itself.
    tail: Phase,
    /// First instance of untouched tasks.
    first_instance: InstanceId,
    /// Texts of failures that have no code.
    messages: BTreeMap<u32, Box<str>>,
    /// Earlier attempts of tasks that were started more than once.
    attempts: BTreeMap<u32, Vec<Attempt>>,
    /// Workers of dispatched multi-node tasks, the root first.
    nodes: BTreeMap<u32, Box<[WorkerId]>>,
}

impl TaskTable {
    /// `len` waiting tasks.
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

    /// Number of tasks.
    #[must_use]
    pub const fn len(&self) -> u32 {
        self.len
    }

    /// Whether there are no tasks.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Phase of a task; `None` beyond the end.
    #[must_use]
    pub fn phase(&self, index: u32) -> Option<Phase> {
        if index >= self.len {
            return None;
        }
        match self.chunks.get((index / CHUNK_LEN) as usize) {
            // Beyond the last touched chunk.
            None => Some(self.tail),
            Some(Chunk::Uniform(phase)) => Some(*phase),
            Some(Chunk::Packed(_)) => Some(Phase::Finished),
            Some(Chunk::Records { records, .. }) => records
                .get((index % CHUNK_LEN) as usize)
                .map(|record| record.phase),
        }
    }

    /// Record of a task whose chunk was touched.
    #[must_use]
    pub fn record(&self, index: u32) -> Option<TaskRecord> {
        let place = (index % CHUNK_LEN) as usize;
        match self.chunks.get((index / CHUNK_LEN) as usize)? {
            Chunk::Uniform(_) => None,
            Chunk::Records { records, .. } => records.get(place).copied(),
            Chunk::Packed(packed) => packed.record(place),
        }
    }

    /// Current instance of a task, or the next one while it waits.
    #[must_use]
    pub fn instance(&self, index: u32) -> InstanceId {
        let record = self.record(index);
        record.map_or(self.first_instance, TaskRecord::instance)
    }

    /// Record of a task, created if missing; `None` beyond the end.
    pub(crate) fn touch(&mut self, index: u32) -> Option<&mut TaskRecord> {
        if index >= self.len {
            return None;
        }
        let number = index / CHUNK_LEN;
        // The last chunk is as short as the rest, so that a submit of one task costs one record.
        let width = (self.len - number * CHUNK_LEN).min(CHUNK_LEN) as usize;
        if number as usize >= self.chunks.len() {
            let tail = Chunk::Uniform(self.tail);
            // Chunks in between stay uniform, which costs a few bytes each.
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
            // Rare: finished tasks do not change.
            Chunk::Packed(packed) => *chunk = Chunk::of(packed.records()),
        }
        match chunk {
            Chunk::Records { records, .. } => records.get_mut((index % CHUNK_LEN) as usize),
            Chunk::Uniform(_) | Chunk::Packed(_) => None,
        }
    }

    /// Sets the phase; returns the previous one. When the last task of a chunk finishes, the chunk
    /// is packed, because its records are complete.
    pub(crate) fn set_phase(&mut self, index: u32, phase: Phase) -> Option<Phase> {
        let record = self.touch(index)?;
        let earlier = std::mem::replace(&mut record.phase, phase);
        self.note_phase(index, (earlier, phase));
        Some(earlier)
    }

    /// Restores the stored end of a task, with this instance and worker. Returns the previous
    /// phase.
    pub(crate) fn restore_finished(
        &mut self,
        index: u32,
        (instance, worker): (InstanceId, WorkerId),
        end: &TaskEnd,
    ) -> Option<Phase> {
        let record = self.touch(index)?;
        record.assign(worker);
        record.resume(instance);
        record.finish(end);
        let earlier = std::mem::replace(&mut record.phase, Phase::Finished);
        self.note_phase(index, (earlier, Phase::Finished));
        Some(earlier)
    }

    /// Advances the instances of waiting tasks, because dispatched ones may have started
    /// on an unreachable worker. Tasks whose instance was never sent keep it. Returns the first
    /// instance of untouched tasks, and the indices that got a later one of their own.
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

    /// First instance of untouched tasks.
    pub(crate) const fn first_instance(&self) -> InstanceId {
        self.first_instance
    }

    /// Restores the result of [`Self::supersede_waiting`] of an earlier run; before any task.
    pub(crate) fn restore_first_instance(&mut self, first: InstanceId) {
        self.first_instance = first;
    }

    /// Advances the instance of a waiting task that was dispatched before others were superseded to
    /// at least theirs.
    pub(crate) fn skip_superseded(&mut self, index: u32) {
        let first = self.first_instance;
        if let Some(record) = self.touch(index) {
            record.skip_to(first);
        }
    }

    /// Updates the unfinished count of a task's chunk after a phase change, and packs the chunk
    /// when the count reaches 0.
    fn note_phase(&mut self, index: u32, (earlier, phase): (Phase, Phase)) {
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

    /// Records that a running task is ended at the time `at`.
    pub(crate) fn cut_short(&mut self, index: u32, at: Timestamp) {
        if let Some(record) = self.touch(index) {
            record.cut_short(at.since(record.started));
        }
    }

    /// Moves the unfinished tasks of an index range to `to` at the time `at`; returns how many were
    /// visible as waiting and as running. Cost and memory are linear in chunks, not tasks.
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
                // All of it has ended before, and stays unchanged.
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
                                // The run time is known only after a reported start.
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
        // In one step for all untouched tasks, however many they are.
        if end > tail_start && !self.tail.is_terminal() {
            self.tail = to;
            waiting += end - tail_start;
        }
        (waiting, running)
    }

    /// Index of the first task behind the chunks.
    fn chunked_len(&self) -> u32 {
        let chunks = u32::try_from(self.chunks.len()).unwrap_or(u32::MAX);
        chunks.saturating_mul(CHUNK_LEN).min(self.len)
    }

    /// Separates the tasks before an index from the common phase of the tail.
    fn split_at(&mut self, index: u32) {
        // Ended tasks stay unchanged.
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
            // The text of an earlier attempt must not pass for that of this end.
            self.messages.remove(&index);
        }
        if let Some(record) = self.touch(index) {
            record.finish(end);
        }
    }

    /// Remembers an attempt that another one follows.
    pub(crate) fn record_attempt(&mut self, index: u32, attempt: Attempt) {
        let attempts = self.attempts.entry(index).or_default();
        if attempts.len() >= ATTEMPTS_KEPT_MAX {
            // Drops the oldest: with endless retries the latest ends say most.
            attempts.remove(0);
        }
        attempts.push(attempt);
    }

    /// Earlier attempts of a task, oldest first; the latest [`ATTEMPTS_KEPT_MAX`] of them.
    #[must_use]
    pub fn attempts(&self, index: u32) -> &[Attempt] {
        self.attempts.get(&index).map_or(&[], Vec::as_slice)
    }

    /// The latest earlier attempt of each task that has one.
    pub(crate) fn last_attempts(&self) -> impl Iterator<Item = (u32, &Attempt)> {
        let attempts = self.attempts.iter();
        attempts.filter_map(|(index, attempts)| Some((*index, attempts.last()?)))
    }

    /// Outcome of a finished or failed task.
    #[must_use]
    pub fn outcome(&self, index: u32) -> Option<Outcome> {
        let record = self.record(index)?;
        // The record may describe the end of an earlier instance, which does not count.
        if !matches!(record.phase, Phase::Finished | Phase::Failed) {
            return None;
        }
        let outcome = record.outcome.outcome(self.messages.get(&index).cloned());
        if outcome == Outcome::Finished && record.phase == Phase::Failed {
            // A failed task that exited with 0 shows that code.
            return Some(Outcome::ExitCode(0));
        }
        Some(outcome)
    }

    /// Workers of the last instance of a multi-node task, the root first; empty for others.
    #[must_use]
    pub fn nodes(&self, index: u32) -> &[WorkerId] {
        self.nodes.get(&index).map_or(&[], AsRef::as_ref)
    }

    pub(crate) fn set_nodes(&mut self, index: u32, nodes: &[WorkerId]) {
        self.nodes.insert(index, nodes.into());
    }

    /// Number of untouched tasks from this one on, up to the first that has a record or another
    /// phase.
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

    /// Runs of equal phase among `from..to`, ascending: `(from, to, phase)`. Cost follows the
    /// number of chunks and touched tasks, not the number of tasks.
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
                    // Skips whole stretches without records, so that a million tasks are a few
                    // steps.
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
