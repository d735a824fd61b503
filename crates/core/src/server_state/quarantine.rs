//! Workers on which tasks fail that go well elsewhere: found out, set aside for a while, and tried again.
//!
//! ```text
//!             too much fails                  goes well elsewhere                its time is over
//!   Trusted ──────────────────▶ Suspected ───────────────────────▶ Quarantined ──────────────────┐
//!      ▲                        │  ▲   │                              ▲                          │
//!      │◀───────────────────────┘  │   │ nobody could say             │ went well elsewhere      ▼
//!      │   fails elsewhere, too    │   └────────────────────────────▶ │ ◀───────────────────── Probed
//!      │                           └──────────── it fails ────────────┴────────────────────────┤ │
//!      └───────────────────────────────────── a task goes well ────────────────────────────────┘
//! ```
//!
//! What fails on a worker that is not trusted runs again elsewhere and counts for nothing: not as a retry, not as a failure
//! of its job. How it ends there is the evidence that decides; statistics alone, which a stretch of bad inputs could fool, only
//! raise the question. A task is given back in this way [`UNCHARGED_MAX`] times, so that none is for ever. A suspicion needs
//! somebody else who can run what is ready, and at most half of the workers are set aside at a time: if more of them fail, it
//! is not their fault. A worker that is needed later, because nobody else can run what has become ready, is probed at once.

mod later;
mod node_check;
mod people;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::{ChangeKind, Ctx, ServerState, WorkerCommand};
use crate::class::{Class, QueueKey};
use crate::diagnosis::{Blame, Peers};
use crate::id::{TaskKey, WorkerId};
use crate::job::TaskSlot;
use crate::outcome::Outcome;
use crate::quarantine::{Quarantine, QuarantineMode};
use crate::task::{ATTEMPTS_KEPT_MAX, TaskEnd};
use crate::template::CrashLimit;
use crate::time::{Now, Time, Timestamp};
use crate::worker::{Duty, Standing, Worker};

/// Attempts of one task that count for nothing. More than one, because two nodes may be broken; few, because a task that
/// is itself to blame fails as often more.
const UNCHARGED_MAX: usize = 3;
/// Tasks that failed there and went well elsewhere before a worker is set aside,
const CONFIRMED_MIN: u32 = 3;
/// and this many times as many as failed there, too.
const CONFIRMED_FACTOR: u32 = 4;
/// How long it may take until something is known, before a task is tried on a suspected worker; twice as long after each
/// one that fails.
const SUSPENSE: Duration = Duration::from_secs(30);
const SUSPENSE_MAX: Duration = Duration::from_mins(10);
/// How long the first quarantine lasts: long enough that a probe costs nothing, short enough that a node that somebody
/// mended is back soon. Later ones are twice as long each.
pub const QUARANTINE: Duration = Duration::from_mins(10);
const QUARANTINE_MAX: Duration = Duration::from_hours(4);
/// How long the task runs that is tried, at least, before it counts as one that goes well: the next end may be days away,
const PROBE_MIN: Duration = Duration::from_mins(1);
/// and so many times as long as any that failed there.
const PROBE_FACTOR: u32 = 4;
/// How often it is looked whether workers are needed that are set aside, and of how many.
const NEEDED_CHECK: Duration = Duration::from_secs(1);
const NEEDED_WORKERS_MAX: usize = 8;
/// Queues for which that is looked at, the most urgent ones,
const NEEDED_QUEUES_MAX: usize = 256;
/// and others that may be able to run what is in them: some hundred microseconds for a worker.
const NEEDED_OTHERS_MAX: u32 = 4_096;
/// Tasks of a job that run on a worker and are counted as such: more would only cost time.
const RUNNING_MAX: usize = 256;
/// Characters of an error that are told.
const ERROR_MAX: usize = 160;
/// Nodes that the next allocation should not have: a batch system takes no line of any length.
const AVOIDED_MAX: usize = 64;
/// Quarantines of workers that are gone that are remembered.
const FORMER_MAX: usize = 1_000;

/// A worker that is not trusted, or that was reported to users.
#[derive(Clone, Debug)]
struct Case {
    since: Timestamp,
    /// When a task is tried there, or has run long enough if one is; `None` = it has not begun, or the worker is trusted.
    due: Option<Time>,
    /// How long the next suspense is.
    suspense: Duration,
    /// Tasks that failed there and run elsewhere.
    pending: BTreeSet<TaskKey>,
    /// Those that went well there.
    confirmed: u32,
    /// Those that failed there, too.
    refuted: u32,
    /// Error of the last one that failed there.
    error: Box<str>,
    /// The longest run of one that failed there.
    failed_after: Duration,
    /// If it was set aside.
    quarantine: Option<Quarantine>,
    /// Text of the last suspicion that was reported to users; `None` = none was.
    told: Option<Box<str>>,
}

/// Evidence and cases.
#[derive(Clone, Debug, Default)]
pub(super) struct Suspicions {
    mode: QuarantineMode,
    blame: Blame,
    cases: BTreeMap<WorkerId, Case>,
    /// Cases by the time at which they are due.
    due: BTreeSet<(Time, WorkerId)>,
    /// Quarantines of workers that are gone, by host: a worker that replaces one is not trusted either.
    former: BTreeMap<Box<str>, Quarantine>,
    /// When it is looked next whether any of them are needed, and behind which one.
    needed: (Time, Option<WorkerId>),
    /// Workers that could not be spared, and when that was looked at.
    kept: BTreeMap<WorkerId, Time>,
    /// Workers that get no tasks because of what is wrong with their nodes.
    unfit: BTreeSet<WorkerId>,
    /// When failing workers are looked at again, and behind which one.
    look_at: Option<Time>,
    looked: Option<WorkerId>,
}

impl Case {
    fn new(since: Timestamp) -> Self {
        Self {
            since,
            due: None,
            suspense: SUSPENSE,
            pending: BTreeSet::new(),
            confirmed: 0,
            refuted: 0,
            error: Box::default(),
            failed_after: Duration::ZERO,
            quarantine: None,
            told: None,
        }
    }

    /// Whether somebody asked for its quarantine.
    fn is_asked(&self) -> bool {
        let quarantine = self.quarantine.as_ref();
        quarantine.is_some_and(|quarantine| quarantine.is_asked)
    }

    /// How long a task has to run there to count as one that goes well.
    fn probe_span(&self) -> Duration {
        let longer = self.failed_after.saturating_mul(PROBE_FACTOR);
        longer.max(PROBE_MIN)
    }

    /// Whether what failed there went well elsewhere. One that was set aside before is known: one task is enough.
    const fn is_confirmed(&self) -> bool {
        let enough = if self.quarantine.is_some() {
            1
        } else {
            CONFIRMED_MIN
        };
        self.confirmed >= enough && self.confirmed >= self.refuted.saturating_mul(CONFIRMED_FACTOR)
    }

    const fn is_refuted(&self) -> bool {
        self.refuted >= CONFIRMED_MIN && self.refuted > self.confirmed
    }
}

impl Suspicions {
    /// When the first case is due, or it is time to look again at workers that fail.
    pub(super) fn next_deadline(&self) -> Option<Time> {
        let due = self.due.first().map(|(time, _)| *time);
        due.into_iter().chain(self.look_at).min()
    }

    fn set_due(&mut self, id: WorkerId, due: Option<Time>) {
        let Some(case) = self.cases.get_mut(&id) else {
            return;
        };
        if let Some(before) = std::mem::replace(&mut case.due, due) {
            self.due.remove(&(before, id));
        }
        self.due.extend(due.map(|due| (due, id)));
    }

    fn remove(&mut self, id: WorkerId) -> Option<Case> {
        self.set_due(id, None);
        self.cases.remove(&id)
    }
}

/// Whether an end says something about the node: `Some(true)` against it. Limits are about what a task asked for, and a value
/// that is not there was lost elsewhere.
fn speaks(outcome: &Outcome) -> Option<bool> {
    match outcome {
        _ if outcome.is_value_missing() => None,
        Outcome::Finished => Some(false),
        Outcome::ExitCode(_) | Outcome::Signal(_) | Outcome::Message(_) => Some(true),
        Outcome::TimeLimit | Outcome::OutOfMemory(_) | Outcome::Killed => None,
    }
}

/// How tasks end, and what that means for the worker.
impl ServerState {
    /// Weighs the end of a task on a worker; returns whether it counts for nothing and the task is to run again.
    pub(super) fn weigh_end(
        &mut self,
        ctx: &mut Ctx<'_>,
        id: WorkerId,
        (task, slot, key): (TaskKey, TaskSlot, QueueKey),
        end: &TaskEnd,
    ) -> bool {
        let class = self.dispatcher.class(key);
        let is_off =
            self.suspicions.mode == QuarantineMode::Off && self.suspicions.cases.is_empty();
        // Any node of a multi-node task may be the one to blame.
        if is_off || class.is_none_or(|class| class.is_multi_node()) {
            return false;
        }
        let Some(is_bad) = speaks(&end.outcome) else {
            self.drop_pending(task);
            return false;
        };
        self.suspicions.blame.note(id, task.job, is_bad);
        if !self.suspicions.cases.is_empty() {
            self.settle_pending(ctx, (task, id), is_bad);
        }
        if !is_bad {
            self.note_good(ctx, id);
            self.note_good_for_others(ctx);
            return false;
        }
        self.suspicions
            .blame
            .note_error(id, task.job, || short(&end.outcome));
        self.note_bad(ctx, id, key, end);
        let is_trusted = self.workers.get(id).is_none_or(Worker::is_trusted);
        let may_go_on = !is_trusted && self.is_tried_elsewhere(ctx.now.mono, id, key);
        if !may_go_on || !self.may_be_uncharged(task, slot) {
            return false;
        }
        let case = self.suspicions.cases.get_mut(&id);
        case.is_some_and(|case| {
            case.pending.insert(task);
            true
        })
    }

    /// Lets a task run again as if its last attempt had not been.
    pub(super) fn run_again(
        &mut self,
        ctx: &mut Ctx<'_>,
        task: TaskKey,
        slot: TaskSlot,
        end: TaskEnd,
    ) {
        if let Some(job) = self.jobs.get_mut(task.job) {
            job.record_attempt(slot, end);
        }
        self.note_requeued(ctx, task.job, slot, None);
        self.requeue(ctx, task.job, slot);
    }

    /// Whether what fails on a worker is tried elsewhere before it counts: it is the server that doubts the worker, and somebody
    /// else can run it. Of one that people set aside nobody says that its failures are its own.
    fn is_tried_elsewhere(&self, now: Time, id: WorkerId, key: QueueKey) -> bool {
        let case = self.suspicions.cases.get(&id);
        let is_ours = case.is_some_and(|case| !case.is_asked());
        let class = self.dispatcher.class(key);
        self.suspicions.mode == QuarantineMode::Act
            && is_ours
            && class.is_some_and(|class| self.others(id).any(|other| can_run(other, class, now)))
    }

    fn may_be_uncharged(&self, task: TaskKey, slot: TaskSlot) -> bool {
        let job = self.jobs.get(task.job);
        let found = job.and_then(|job| {
            let submit = job.submit(slot)?;
            let limit = submit.template(slot.index)?.task.crash_limit;
            let record = job.record(slot)?;
            let counted = usize::from(record.retry_count()) + record.crash_count() as usize;
            Some((limit, submit.tasks.attempts(slot.index).len(), counted))
        });
        // The user wants at most one start. Attempts are stored, so the limit outlives the server; of very many only the
        // latest are, and then nobody knows how many of them counted.
        found.is_some_and(|(limit, attempts, counted)| {
            limit != CrashLimit::NeverRestart
                && attempts < (counted + UNCHARGED_MAX).min(ATTEMPTS_KEPT_MAX)
        })
    }

    /// A task ended in a way that says nothing: nobody waits for it any more.
    fn drop_pending(&mut self, task: TaskKey) {
        for case in self.suspicions.cases.values_mut() {
            case.pending.remove(&task);
        }
    }

    /// A task that failed on suspected workers has ended on another one.
    fn settle_pending(&mut self, ctx: &mut Ctx<'_>, (task, id): (TaskKey, WorkerId), is_bad: bool) {
        let is_trusted = self.workers.get(id).is_some_and(Worker::is_trusted);
        let cases = self.suspicions.cases.iter_mut();
        let others = cases.filter(|(suspect, _)| **suspect != id);
        let mut settled = Vec::new();
        for (suspect, case) in others {
            if case.pending.remove(&task) {
                // Where much fails, one more failure says nothing.
                case.confirmed += u32::from(!is_bad);
                case.refuted += u32::from(is_bad && is_trusted);
                settled.push(*suspect);
            }
        }
        for suspect in settled {
            self.judge(ctx, suspect);
        }
    }

    /// Decides a case, if that can be done.
    fn judge(&mut self, ctx: &mut Ctx<'_>, id: WorkerId) {
        let standing = self.workers.get(id).map(Worker::standing);
        let Some(case) = self.suspicions.cases.get(&id) else {
            return;
        };
        if standing != Some(Standing::Suspected) {
            return;
        }
        let (is_confirmed, is_refuted) = (case.is_confirmed(), case.is_refuted());
        let is_open = !case.pending.is_empty();
        let was_aside = case.quarantine.is_some();
        // For one that was set aside before, the probe alone decides.
        if is_confirmed && (was_aside || self.is_guilty(id)) {
            self.set_aside(ctx, id);
        } else if is_refuted {
            self.suspicions.blame.blame_jobs(id);
            self.trust(ctx, id, "its tasks fail elsewhere, too");
        } else if !is_open {
            // What is known is not enough either way.
            self.probe(ctx.now.mono, id);
        }
    }

    fn note_good(&mut self, ctx: &mut Ctx<'_>, id: WorkerId) {
        if !self.suspicions.cases.contains_key(&id) {
            return;
        }
        let is_failing = self.suspicions.blame.is_failing(id);
        match self.workers.get(id).map(Worker::standing) {
            Some(Standing::Probed) => self.trust(ctx, id, "a task went well there"),
            // Later successes there outweigh the failures.
            Some(Standing::Suspected | Standing::Trusted) if !is_failing => {
                self.trust(ctx, id, "tasks go well there");
            }
            Some(Standing::Suspected | Standing::Trusted | Standing::Quarantined) | None => {}
        }
    }

    fn note_bad(&mut self, ctx: &mut Ctx<'_>, id: WorkerId, key: QueueKey, end: &TaskEnd) {
        match self.workers.get(id).map(Worker::standing) {
            Some(Standing::Trusted) => {
                let case = self.suspicions.cases.get(&id);
                let is_told = case.is_some_and(|case| case.told.is_some());
                let acts = self.suspicions.mode == QuarantineMode::Act;
                // One that could not be spared may be now.
                let is_settled = is_told && (!acts || self.is_kept(ctx.now.mono, id));
                if is_settled || !self.is_news(id) || !self.is_suspect(id) {
                    return;
                }
                if acts && self.can_spare(ctx.now, id, key) {
                    self.suspect(ctx.now, id);
                } else if !is_told && self.seems_broken(id) {
                    self.tell(ctx, id);
                }
            }
            // One failure is no proof: the task is tried elsewhere, too.
            Some(Standing::Probed) => self.suspect(ctx.now, id),
            Some(Standing::Suspected | Standing::Quarantined) | None => {}
        }
        if let Some(case) = self.suspicions.cases.get_mut(&id) {
            case.error = short(&end.outcome);
            case.failed_after = case.failed_after.max(end.run);
        }
    }

    /// Whether a further failure on a worker is to be weighed.
    fn is_news(&mut self, id: WorkerId) -> bool {
        match self.suspicions.mode {
            // That it could not be spared may have changed as well.
            QuarantineMode::Act => true,
            QuarantineMode::Tell => self.suspicions.blame.is_news(id),
            QuarantineMode::Off => false,
        }
    }

    fn is_suspect(&self, id: WorkerId) -> bool {
        self.compare(id, Blame::is_suspect)
    }

    fn is_guilty(&self, id: WorkerId) -> bool {
        self.compare(id, Blame::is_guilty)
    }

    /// Whether what fails there goes well elsewhere, which cannot be chance.
    fn seems_broken(&self, id: WorkerId) -> bool {
        self.suspicions.blame.goes_well_elsewhere(id) && self.is_guilty(id)
    }

    fn compare(&self, id: WorkerId, question: fn(&Blame, WorkerId, Peers<'_>) -> bool) -> bool {
        let worker = self.workers.get(id);
        let peers = Peers {
            running: &|job| worker.map_or(0, |worker| worker.running_of(job, RUNNING_MAX)),
            count: self.workers.live().len(),
            doubtful: &self.doubtful(),
        };
        question(&self.suspicions.blame, id, peers)
    }

    /// Workers that are not trusted.
    fn doubtful(&self) -> Vec<WorkerId> {
        let is_doubtful = |id: &WorkerId| self.workers.get(*id).is_some_and(|w| !w.is_trusted());
        let cases = self.suspicions.cases.keys().copied();
        cases.filter(is_doubtful).collect()
    }

    /// Whether at least half of the workers are trusted without this one, and they can run such tasks and all that is ready.
    fn can_spare(&mut self, now: Now, id: WorkerId, key: QueueKey) -> bool {
        let Some(class) = self.dispatcher.class(key) else {
            return false;
        };
        if self.is_kept(now.mono, id) {
            return false;
        }
        let others = self.workers.live().values();
        let others = || others.clone().filter(|w| w.id != id && w.is_serving());
        let doubtful = self.doubtful().into_iter().filter(|other| *other != id);
        let can_spare = others().count() > doubtful.count()
            && others().any(|other| can_run(other, class, now.mono))
            && !self.is_needed(now.mono, id);
        if can_spare {
            self.suspicions.kept.remove(&id);
        } else {
            self.suspicions.kept.insert(id, now.mono);
        }
        can_spare
    }

    /// Whether it has just been found that a worker cannot be spared: tasks can fail there by the thousand.
    fn is_kept(&self, now: Time, id: WorkerId) -> bool {
        let kept = self.suspicions.kept.get(&id);
        kept.is_some_and(|at| now.since(*at) < NEEDED_CHECK)
    }

    /// Other workers that are trusted, also those that are expected back.
    fn others(&self, id: WorkerId) -> impl Iterator<Item = &Worker> {
        let all = self.workers.live().values();
        all.filter(move |w| {
            w.id != id && w.is_trusted() && !w.is_unfit() && w.duty() == Duty::Serve
        })
    }

    /// Whether something is ready that a worker can run and nobody who is trusted.
    fn is_needed(&self, now: Time, id: WorkerId) -> bool {
        let Some(worker) = self.workers.get(id) else {
            return false;
        };
        let mut left = NEEDED_OTHERS_MAX;
        let mut queues = self.dispatcher.ready().counts().take(NEEDED_QUEUES_MAX);
        queues.any(|(key, _)| {
            let class = self.dispatcher.class(key);
            let class = class.filter(|class| !class.is_multi_node());
            class.is_some_and(|class| {
                can_run(worker, class, now)
                    && !self.others(id).any(|other| {
                        left = left.saturating_sub(1);
                        left == 0 || can_run(other, class, now)
                    })
            })
        })
    }

    /// When it is looked next whether somebody is needed who is set aside.
    pub(super) fn needed_due(&self) -> Option<Time> {
        let is_any = !self.dispatcher.ready().is_empty() && self.ending.is_none();
        let mut cases = self.suspicions.cases.keys();
        (is_any && cases.any(|id| self.is_probe_wanted(*id))).then_some(self.suspicions.needed.0)
    }

    /// Whether the server itself gives it nothing.
    fn is_probe_wanted(&self, id: WorkerId) -> bool {
        let is_ours = self
            .suspicions
            .cases
            .get(&id)
            .is_some_and(|case| !case.is_asked());
        let standing = self.workers.get(id).map(Worker::standing);
        is_ours && matches!(standing, Some(Standing::Suspected | Standing::Quarantined))
    }

    /// Tries a task at once on workers that nobody can stand in for.
    fn probe_needed(&mut self, now: Time) {
        let (due, behind) = self.suspicions.needed;
        if due > now {
            return;
        }
        let mut wanted = self.doubtful();
        wanted.retain(|id| self.is_probe_wanted(*id));
        let first = wanted.partition_point(|id| Some(*id) <= behind);
        wanted.rotate_left(first);
        wanted.truncate(NEEDED_WORKERS_MAX);
        let Some(last) = wanted.last() else {
            return;
        };
        self.suspicions.needed = (now + NEEDED_CHECK, Some(*last));
        for id in wanted {
            if self.is_needed(now, id) {
                self.probe(now, id);
            }
        }
    }
}

/// Whether a worker has enough in all for a task.
fn can_run(worker: &Worker, class: &Class, now: Time) -> bool {
    let mut variants = class.variants.iter();
    variants.any(|variant| worker.capacity(variant) > 0 && worker.has_time(variant, now))
}

/// How a worker's standing changes.
impl ServerState {
    fn set_standing(&mut self, id: WorkerId, standing: Standing) {
        let Some(worker) = self.workers.get_mut(id) else {
            return;
        };
        worker.set_standing(standing);
        self.dispatcher.note_room(id);
        self.dispatcher.note_plans_changed();
    }

    /// Suspects a worker: it gets nothing until its failed tasks have been tried elsewhere.
    fn suspect(&mut self, now: Now, id: WorkerId) {
        let cases = &mut self.suspicions.cases;
        let case = cases.entry(id).or_insert_with(|| Case::new(now.wall));
        // It gets tasks no longer.
        case.told = None;
        let due = now.mono + case.suspense;
        case.suspense = (case.suspense * 2).min(SUSPENSE_MAX);
        self.suspicions.set_due(id, Some(due));
        self.set_standing(id, Standing::Suspected);
    }

    /// It gets one task, which decides.
    fn probe(&mut self, now: Time, id: WorkerId) {
        self.suspicions.set_due(id, None);
        self.set_standing(id, Standing::Probed);
        // What still runs there decides, too.
        let worker = self.workers.get(id);
        if worker.is_some_and(|worker| !worker.assigned().is_empty()) {
            self.note_probe(now, id);
        }
    }

    /// A task has started that shows whether a worker works: if it runs on for long, that is enough.
    pub(super) fn note_probe(&mut self, now: Time, id: WorkerId) {
        let worker = self.workers.get(id);
        let is_probed = worker.is_some_and(|worker| worker.standing() == Standing::Probed);
        if let Some(case) = self.suspicions.cases.get(&id).filter(|_| is_probed) {
            let due = now + case.probe_span();
            self.suspicions.set_due(id, Some(due));
        }
    }

    /// It gets no tasks for a while.
    fn set_aside(&mut self, ctx: &mut Ctx<'_>, id: WorkerId) {
        let Some(case) = self.suspicions.cases.get(&id) else {
            return;
        };
        let (bad, ends) = self.suspicions.blame.run_ends(id);
        let before = case.quarantine.as_ref();
        let round = before.map_or(1, |before| before.round.saturating_add(1));
        let tried = case.confirmed + case.refuted;
        let why = match before {
            Some(_) => format!(
                "the task that was tried on it failed, and went well elsewhere: {}",
                case.error
            ),
            None => format!(
                "{bad} of {ends} tasks failed there, {} of {tried} that were tried elsewhere went well; the last one: {}",
                case.confirmed, case.error
            ),
        };
        let span = QUARANTINE
            .saturating_mul(1_u32.checked_shl(round - 1).unwrap_or(u32::MAX))
            .min(QUARANTINE_MAX);
        let quarantine = Quarantine {
            worker: id,
            since: ctx.now.wall,
            until: ctx.now.wall.plus(span),
            round,
            is_asked: false,
            why: why.into(),
        };
        self.begin_quarantine(ctx, quarantine);
    }

    fn begin_quarantine(&mut self, ctx: &mut Ctx<'_>, quarantine: Quarantine) {
        tracing::warn!(worker = %quarantine.worker, "worker is set aside: {}", quarantine.why);
        ctx.persist(ChangeKind::WorkerQuarantined(Box::new(quarantine.clone())));
        self.resume_quarantine(ctx.now, quarantine);
    }

    fn resume_quarantine(&mut self, now: Now, quarantine: Quarantine) {
        let id = quarantine.worker;
        let due = now.mono + quarantine.until.since(now.wall);
        let cases = &mut self.suspicions.cases;
        let case = cases
            .entry(id)
            .or_insert_with(|| Case::new(quarantine.since));
        // The next decision is about what is tried then.
        case.pending.clear();
        (case.confirmed, case.refuted, case.suspense) = (0, 0, SUSPENSE);
        case.quarantine = Some(quarantine);
        self.suspicions.set_due(id, Some(due));
        self.set_standing(id, Standing::Quarantined);
    }

    /// It gets tasks like all others.
    fn trust(&mut self, ctx: &mut Ctx<'_>, id: WorkerId, why: &str) {
        let Some(case) = self.suspicions.remove(id) else {
            return;
        };
        // Failures that have been explained must not count a second time.
        self.suspicions.blame.clear(id);
        if case.quarantine.is_some() {
            self.note_released(ctx, id, why);
        }
        self.set_standing(id, Standing::Trusted);
    }

    fn note_released(&self, ctx: &mut Ctx<'_>, worker: WorkerId, why: &str) {
        tracing::info!(%worker, "worker gets tasks again: {why}");
        ctx.persist(ChangeKind::WorkerReleased {
            worker,
            why: why.into(),
        });
    }

    /// Tells of a worker that seems broken, without doing anything about it.
    fn tell(&mut self, ctx: &mut Ctx<'_>, id: WorkerId) {
        let (bad, ends) = self.suspicions.blame.run_ends(id);
        let error = self.suspicions.blame.an_error(id);
        let why: Box<str> = format!(
            "{bad} of {ends} tasks failed there; the same jobs go well elsewhere; an error: {error}"
        )
        .into();
        let cases = &mut self.suspicions.cases;
        let case = cases.entry(id).or_insert_with(|| Case::new(ctx.now.wall));
        case.told = Some(why.clone());
        tracing::warn!(worker = %id, "worker seems broken: {why}");
        ctx.persist(ChangeKind::WorkerSuspected { worker: id, why });
    }

    /// Cases whose time is over: a task is tried there, or has run for long enough.
    pub(super) fn probe_due(&mut self, ctx: &mut Ctx<'_>) {
        while let Some((due, id)) = self.suspicions.due.first().copied() {
            if due > ctx.now.mono {
                return;
            }
            let worker = self.workers.get(id);
            let is_probed = worker.is_some_and(|worker| worker.standing() == Standing::Probed);
            let has_tasks = worker.is_some_and(|worker| !worker.assigned().is_empty());
            let case = self.suspicions.cases.get(&id);
            if is_probed && has_tasks {
                self.trust(ctx, id, "a task runs there for longer than any that failed");
            } else if is_probed {
                // It was canceled, or taken back: the next one decides.
                self.suspicions.set_due(id, None);
            } else if self.suspicions.mode != QuarantineMode::Act
                && case.is_some_and(Case::is_asked)
            {
                self.trust(ctx, id, "its time is over");
            } else {
                self.probe(ctx.now.mono, id);
            }
        }
    }

    /// Takes back what workers that are set aside have not started, and trusts them if nobody else is left.
    pub(super) fn go_on_suspecting(&mut self, ctx: &mut Ctx<'_>) {
        if self.suspicions.cases.is_empty() && self.suspicions.unfit.is_empty() {
            return;
        }
        let doubtful = self.doubtful();
        for id in doubtful.iter().chain(&self.suspicions.unfit) {
            let Some(worker) = self.workers.get_mut(*id) else {
                continue;
            };
            // A single task is tried, and it is on its way; a worker without connection tells when it is back.
            if worker.is_away() || worker.node().is_some() || worker.standing() == Standing::Probed
            {
                continue;
            }
            let back = worker.take_unstarted();
            if !back.is_empty() {
                ctx.send(*id, WorkerCommand::Retract(back));
            }
        }
        self.probe_needed(ctx.now.mono);
        let mut live = self.workers.live().values();
        let is_left = |w: &Worker| w.is_trusted() && !w.is_unfit() && w.duty() == Duty::Serve;
        if doubtful.is_empty() || live.any(is_left) {
            return;
        }
        for id in doubtful {
            let case = self.suspicions.cases.get(&id);
            // Somebody who asks for it may want to have none at all.
            if !case.is_some_and(Case::is_asked) {
                self.trust(ctx, id, "no other worker is left");
            }
        }
    }

    /// A new worker takes over the quarantine of one that is gone from the same host.
    pub(super) fn note_newcomer(&mut self, ctx: &mut Ctx<'_>, id: WorkerId) {
        let host = self
            .workers
            .get(id)
            .map(|worker| worker.config.hostname.clone());
        let Some(former) = host.and_then(|host| self.suspicions.former.remove(&host)) else {
            return;
        };
        self.note_released(ctx, former.worker, "its worker is gone");
        if former.until <= ctx.now.wall {
            return;
        }
        let is_asked = former.is_asked;
        let quarantine = Quarantine {
            worker: id,
            ..former
        };
        self.begin_quarantine(ctx, quarantine);
        // The node may have been mended before the worker was started: one task shows it.
        if !is_asked {
            self.probe(ctx.now.mono, id);
        }
    }

    /// A worker is gone: its quarantine is kept for who comes in its place.
    pub(super) fn note_leaver(&mut self, id: WorkerId) {
        let case = self.suspicions.remove(id);
        self.suspicions.blame.forget_worker(id);
        self.suspicions.kept.remove(&id);
        self.suspicions.unfit.remove(&id);
        let host = self.workers.hostname(id);
        if let Some((host, quarantine)) = host.zip(case.and_then(|case| case.quarantine)) {
            self.suspicions.former.insert(host.into(), quarantine);
            // The name is all that is known of it, so there is no telling which of them matters least.
            if self.suspicions.former.len() > FORMER_MAX {
                self.suspicions.former.pop_first();
            }
        }
    }
}

/// An error in a few words.
fn short(outcome: &Outcome) -> Box<str> {
    let text = outcome.error_text();
    let line = text
        .lines()
        .next()
        .unwrap_or_default()
        .trim_end_matches('.');
    line.chars().take(ERROR_MAX).collect::<String>().into()
}
