//! Quarantine of workers where tasks fail that succeed elsewhere: detection, pause, probe.
//!
//! ```text
//!             too many fail                    succeed elsewhere                  its time is over
//!   Trusted ──────────────────▶ Suspected ───────────────────────▶ Quarantined ──────────────────┐
//!      ▲                        │  ▲   │                              ▲                          │
//!      │◀───────────────────────┘  │   │ undecided                    │ succeeded elsewhere      ▼
//!      │   fail elsewhere as well  │   └────────────────────────────▶ │ ◀───────────────────── Probed
//!      │                           └──────────── it fails ────────────┴────────────────────────┤ │
//!      └───────────────────────────────────── a task succeeds ─────────────────────────────────┘
//! ```
//!
//! Tasks that fail on an untrusted worker are rerun elsewhere. Such failures count neither as
//! retries of the task nor as failures of its job. The outcome elsewhere decides the case.
//! Statistics alone only raise the suspicion, because a series of bad inputs could mislead them.
//! Each task is rerun this way at most [`UNCHARGED_MAX`] times. A worker is suspected only if
//! another worker can run the ready tasks. At most half of the workers are in quarantine at a time:
//! if more of them fail, the workers are not at fault. If only a worker in quarantine can run newly
//! ready tasks, it is probed immediately.

mod later;
mod node_check;
mod people;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::{ChangeKind, Ctx, ServerState, WorkerCommand};
use crate::class::{Class, QueueKey};
use crate::diagnosis::{Blame, Peers};
use crate::id::{TaskKey, WorkerId};
use crate::job::TaskAt;
use crate::outcome::Outcome;
use crate::quarantine::{Quarantine, QuarantineMode};
use crate::task::{ATTEMPTS_KEPT_MAX, TaskEnd};
use crate::template::CrashLimit;
use crate::time::{Now, Time, Timestamp};
use crate::worker::{Assigned, Duty, Standing, Worker};

/// The number of uncounted attempts per task. It is more than one, because two nodes may be broken.
/// It is small, because a faulty task fails that many more times.
const UNCHARGED_MAX: usize = 3;
/// The number of tasks that must fail on a worker and succeed elsewhere before the worker is put
/// into quarantine.
const CONFIRMED_MIN: u32 = 3;
/// The required ratio of such tasks to tasks that failed elsewhere as well.
const CONFIRMED_FACTOR: u32 = 4;
/// How long a suspicion lasts without evidence before a task is tried on the worker. The duration
/// is doubled after each failed try.
const SUSPENSE: Duration = Duration::from_secs(30);
const SUSPENSE_MAX: Duration = Duration::from_mins(10);
/// The length of the first quarantine. It is long enough that a probe costs little, and short
/// enough that a repaired node returns soon. Each further quarantine is twice as long.
pub const QUARANTINE: Duration = Duration::from_mins(10);
const QUARANTINE_MAX: Duration = Duration::from_hours(4);
/// The minimum run time after which a running probe task counts as a success, because it may take
/// days to end.
const PROBE_MIN: Duration = Duration::from_mins(1);
/// That run time is at least this multiple of the longest failed run on the worker.
const PROBE_FACTOR: u32 = 4;
/// The interval between checks whether workers in quarantine are needed, and the number of workers
/// per check.
const NEEDED_CHECK: Duration = Duration::from_secs(1);
const NEEDED_WORKERS_MAX: usize = 8;
/// The number of queues examined in such a check, most urgent first.
const NEEDED_QUEUES_MAX: usize = 256;
/// The number of other workers examined in such a check. Each worker takes a few hundred
/// microseconds.
const NEEDED_OTHERS_MAX: u32 = 4_096;
/// The maximum number of running tasks that are counted for a job on a worker. More would only cost
/// time.
const RUNNING_MAX: usize = 256;
/// The maximum length of an error in messages, in characters.
const ERROR_MAX: usize = 160;
/// The maximum number of nodes that an allocation is asked to avoid, because batch systems limit
/// the length of a line.
const AVOIDED_MAX: usize = 64;
/// The maximum number of remembered quarantines of workers that have ended.
const FORMER_MAX: usize = 1_000;

/// A worker that is not trusted, or that was reported to users.
#[derive(Clone, Debug)]
struct Case {
    since: Timestamp,
    /// When the next probe is due, or when the running probe counts as a success. `None` if no
    /// probe is running or the worker is trusted.
    due: Option<Time>,
    /// How long the next suspicion lasts.
    suspense: Duration,
    /// The tasks that failed on the worker and are rerun elsewhere.
    pending: BTreeSet<TaskKey>,
    /// The number of reruns that succeeded elsewhere.
    confirmed: u32,
    /// The number of reruns that failed elsewhere as well.
    refuted: u32,
    /// The error of the last failure on the worker.
    error: Box<str>,
    /// The longest run that failed on the worker.
    failed_after: Duration,
    /// The quarantine, if the worker was put into one.
    quarantine: Option<Quarantine>,
    /// The text of the last suspicion that was reported to users, if any.
    told: Option<Box<str>>,
}

/// The evidence against workers, and the resulting cases.
#[derive(Clone, Debug, Default)]
pub(super) struct Suspicions {
    mode: QuarantineMode,
    blame: Blame,
    cases: BTreeMap<WorkerId, Case>,
    /// The cases by due time.
    due: BTreeSet<(Time, WorkerId)>,
    /// The quarantines of lost workers, by host. They apply to workers that replace the lost ones.
    former: BTreeMap<Box<str>, Quarantine>,
    /// When the next check whether workers are needed is due, and the worker after which it
    /// continues.
    needed: (Time, Option<WorkerId>),
    /// The workers that could not be spared, and when this was checked.
    kept: BTreeMap<WorkerId, Time>,
    /// The workers that get no tasks because of problems of their nodes.
    unfit: BTreeSet<WorkerId>,
    /// When the next check of failing workers is due, and the worker after which it continues.
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

    /// Returns whether a user requested the quarantine.
    fn is_asked(&self) -> bool {
        let quarantine = self.quarantine.as_ref();
        quarantine.is_some_and(|quarantine| quarantine.is_asked)
    }

    /// Returns the run time after which a running probe task counts as a success.
    fn probe_span(&self) -> Duration {
        let longer = self.failed_after.saturating_mul(PROBE_FACTOR);
        longer.max(PROBE_MIN)
    }

    /// Returns whether enough tasks that failed on the worker succeeded elsewhere. After an earlier
    /// quarantine, one such task is enough.
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
    /// Returns when the next case or check of failing workers is due.
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

/// Returns whether an outcome is evidence about the node: `Some(true)` if it is evidence against
/// the node. Exceeded limits are caused by the task's request, and a missing value was lost
/// elsewhere.
fn speaks(outcome: &Outcome) -> Option<bool> {
    match outcome {
        _ if outcome.is_value_missing() => None,
        Outcome::Finished => Some(false),
        Outcome::ExitCode(_) | Outcome::Signal(_) | Outcome::Message(_) => Some(true),
        Outcome::TimeLimit | Outcome::OutOfMemory(_) | Outcome::Killed => None,
    }
}

/// Evaluates the outcomes of tasks as evidence about workers.
impl ServerState {
    /// Evaluates the outcome of a task on a worker. Returns whether the outcome does not count, so
    /// that the task must be rerun.
    pub(super) fn weigh_end(
        &mut self,
        ctx: &mut Ctx<'_>,
        id: WorkerId,
        task: TaskKey,
        assigned: &Assigned,
        end: &TaskEnd,
    ) -> bool {
        let (slot, key) = (assigned.slot, assigned.key);
        let class = self.dispatcher.class(key);
        let is_off =
            self.suspicions.mode == QuarantineMode::Off && self.suspicions.cases.is_empty();
        // Any node of a multi-node task may be at fault.
        if is_off || class.is_none_or(|class| class.is_multi_node()) {
            return false;
        }
        let Some(is_bad) = speaks(&end.outcome) else {
            self.drop_pending(task);
            return false;
        };
        self.suspicions.blame.note(id, task.job, is_bad);
        if !self.suspicions.cases.is_empty() {
            self.settle_pending(ctx, task, id, is_bad);
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
        if !may_go_on || !self.may_be_uncharged(slot.of(task.job)) {
            return false;
        }
        let case = self.suspicions.cases.get_mut(&id);
        case.is_some_and(|case| {
            case.pending.insert(task);
            true
        })
    }

    /// Reruns a task as if its last attempt had not happened.
    pub(super) fn run_again(&mut self, ctx: &mut Ctx<'_>, at: TaskAt, end: TaskEnd) {
        if let Some(job) = self.jobs.get_mut(at.job) {
            job.record_attempt(at.slot, end);
        }
        self.note_requeued(ctx, at, None);
        self.requeue(ctx, at);
    }

    /// Returns whether failures on a worker are tried elsewhere before they count. This is the case
    /// if the server itself doubts the worker and another worker can run the tasks. A quarantine
    /// requested by a user is no evidence about failures.
    fn is_tried_elsewhere(&self, now: Time, id: WorkerId, key: QueueKey) -> bool {
        let case = self.suspicions.cases.get(&id);
        let is_ours = case.is_some_and(|case| !case.is_asked());
        let class = self.dispatcher.class(key);
        self.suspicions.mode == QuarantineMode::Act
            && is_ours
            && class.is_some_and(|class| self.others(id).any(|other| can_run(other, class, now)))
    }

    fn may_be_uncharged(&self, at: TaskAt) -> bool {
        let (submit, index) = (self.jobs.submit(at.submit()), at.slot.index);
        let found = submit.and_then(|submit| {
            let limit = submit.definition(index)?.crash_limit;
            let record = submit.tasks.record(index)?;
            let counted = usize::from(record.retry_count()) + record.crash_count() as usize;
            Some((limit, submit.tasks.attempts(index).len(), counted))
        });
        // The user permits at most one start. Attempts are stored, so the limit outlives the
        // server. If there are very many attempts, only the latest are kept, and the number of
        // counted attempts is unknown.
        found.is_some_and(|(limit, attempts, counted)| {
            limit != CrashLimit::NeverRestart
                && attempts < (counted + UNCHARGED_MAX).min(ATTEMPTS_KEPT_MAX)
        })
    }

    /// Drops a pending task whose outcome is not evidence.
    fn drop_pending(&mut self, task: TaskKey) {
        for case in self.suspicions.cases.values_mut() {
            case.pending.remove(&task);
        }
    }

    /// Handles the outcome of a task on another worker, after it failed on suspected workers.
    fn settle_pending(&mut self, ctx: &mut Ctx<'_>, task: TaskKey, id: WorkerId, is_bad: bool) {
        let is_trusted = self.workers.get(id).is_some_and(Worker::is_trusted);
        let cases = self.suspicions.cases.iter_mut();
        let others = cases.filter(|(suspect, _)| **suspect != id);
        let mut settled = Vec::new();
        for (suspect, case) in others {
            if case.pending.remove(&task) {
                // On a worker where many tasks fail, another failure is not evidence.
                case.confirmed += u32::from(!is_bad);
                case.refuted += u32::from(is_bad && is_trusted);
                settled.push(*suspect);
            }
        }
        for suspect in settled {
            self.judge(ctx, suspect);
        }
    }

    /// Decides a case if there is enough evidence.
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
        // After an earlier quarantine, only the probe decides.
        if is_confirmed && (was_aside || self.is_guilty(id)) {
            self.set_aside(ctx, id);
        } else if is_refuted {
            self.suspicions.blame.blame_jobs(id);
            self.trust(ctx, id, "its tasks fail elsewhere, too");
        } else if !is_open {
            // The evidence is not sufficient for either decision.
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
            // Later successes on the worker outweigh the failures.
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
                // A worker that could not be spared before may be spared now.
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
            // A single failure is not proof, so the task is tried elsewhere as well.
            Some(Standing::Probed) => self.suspect(ctx.now, id),
            Some(Standing::Suspected | Standing::Quarantined) | None => {}
        }
        if let Some(case) = self.suspicions.cases.get_mut(&id) {
            case.error = short(&end.outcome);
            case.failed_after = case.failed_after.max(end.run);
        }
    }

    /// Returns whether another failure on a worker must be evaluated.
    fn is_news(&mut self, id: WorkerId) -> bool {
        match self.suspicions.mode {
            // Whether the worker can be spared may have changed as well.
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

    /// Returns whether tasks that fail on this worker succeed elsewhere more often than by chance.
    fn seems_broken(&self, id: WorkerId) -> bool {
        self.suspicions.blame.succeeds_elsewhere(id) && self.is_guilty(id)
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

    /// Returns the workers that are not trusted.
    fn doubtful(&self) -> Vec<WorkerId> {
        let is_doubtful = |id: &WorkerId| self.workers.get(*id).is_some_and(|w| !w.is_trusted());
        let cases = self.suspicions.cases.keys().copied();
        cases.filter(is_doubtful).collect()
    }

    /// Returns whether, without this worker, at least half of the workers are trusted and can run
    /// such tasks and all ready tasks.
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

    /// Returns whether a recent check found that a worker cannot be spared. Without this cache,
    /// thousands of failing tasks would each cause a check.
    fn is_kept(&self, now: Time, id: WorkerId) -> bool {
        let kept = self.suspicions.kept.get(&id);
        kept.is_some_and(|at| now.since(*at) < NEEDED_CHECK)
    }

    /// Returns the other trusted workers, including disconnected workers that are expected back.
    fn others(&self, id: WorkerId) -> impl Iterator<Item = &Worker> {
        let all = self.workers.live().values();
        all.filter(move |w| {
            w.id != id && w.is_trusted() && !w.is_unfit() && w.duty() == Duty::Serve
        })
    }

    /// Returns whether some ready task can run on this worker but not on any trusted worker.
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

    /// Returns when the next check whether workers in quarantine are needed is due.
    pub(super) fn needed_due(&self) -> Option<Time> {
        let is_any = !self.dispatcher.ready().is_empty() && self.ending.is_none();
        let mut cases = self.suspicions.cases.keys();
        (is_any && cases.any(|id| self.is_probe_wanted(*id))).then_some(self.suspicions.needed.0)
    }

    /// Returns whether the server itself decided to withhold tasks from this worker.
    fn is_probe_wanted(&self, id: WorkerId) -> bool {
        let is_ours = self
            .suspicions
            .cases
            .get(&id)
            .is_some_and(|case| !case.is_asked());
        let standing = self.workers.get(id).map(Worker::standing);
        is_ours && matches!(standing, Some(Standing::Suspected | Standing::Quarantined))
    }

    /// Immediately probes workers that no other worker can replace.
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

/// Returns whether a worker has enough resources in total for a task.
fn can_run(worker: &Worker, class: &Class, now: Time) -> bool {
    let mut variants = class.variants.iter();
    variants.any(|variant| worker.capacity(variant) > 0 && worker.has_time(variant, now))
}

/// Changes of a worker's standing.
impl ServerState {
    fn set_standing(&mut self, id: WorkerId, standing: Standing) {
        let Some(worker) = self.workers.get_mut(id) else {
            return;
        };
        worker.set_standing(standing);
        self.dispatcher.note_room(id);
        self.dispatcher.note_plans_changed();
    }

    /// Suspects a worker. It gets no tasks until the tasks that failed on it have been tried
    /// elsewhere.
    fn suspect(&mut self, now: Now, id: WorkerId) {
        let cases = &mut self.suspicions.cases;
        let case = cases.entry(id).or_insert_with(|| Case::new(now.wall));
        // The worker no longer gets tasks.
        case.told = None;
        let due = now.mono + case.suspense;
        case.suspense = (case.suspense * 2).min(SUSPENSE_MAX);
        self.suspicions.set_due(id, Some(due));
        self.set_standing(id, Standing::Suspected);
    }

    /// Sends one task to the worker. The outcome of this task decides the case.
    fn probe(&mut self, now: Time, id: WorkerId) {
        self.suspicions.set_due(id, None);
        self.set_standing(id, Standing::Probed);
        // Tasks that are still running on the worker count as probes as well.
        let worker = self.workers.get(id);
        if worker.is_some_and(|worker| !worker.assigned().is_empty()) {
            self.note_probe(now, id);
        }
    }

    /// Notes the start of a probe task, which counts as a success if it runs long enough.
    pub(super) fn note_probe(&mut self, now: Time, id: WorkerId) {
        let worker = self.workers.get(id);
        let is_probed = worker.is_some_and(|worker| worker.standing() == Standing::Probed);
        if let Some(case) = self.suspicions.cases.get(&id).filter(|_| is_probed) {
            let due = now + case.probe_span();
            self.suspicions.set_due(id, Some(due));
        }
    }

    /// Puts a worker into quarantine.
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
                "the probe task failed there and succeeded elsewhere: {}",
                case.error
            ),
            None => format!(
                "{bad} of {ends} tasks failed there; {} of {tried} retried elsewhere succeeded; the last error: {}",
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
        // The next decision is based on tasks that are tried then.
        case.pending.clear();
        (case.confirmed, case.refuted, case.suspense) = (0, 0, SUSPENSE);
        case.quarantine = Some(quarantine);
        self.suspicions.set_due(id, Some(due));
        self.set_standing(id, Standing::Quarantined);
    }

    /// Treats a worker like all other workers again.
    fn trust(&mut self, ctx: &mut Ctx<'_>, id: WorkerId, why: &str) {
        let Some(case) = self.suspicions.remove(id) else {
            return;
        };
        // Failures that have been explained must not count again.
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

    /// Reports a worker that seems broken, but takes no further action.
    fn tell(&mut self, ctx: &mut Ctx<'_>, id: WorkerId) {
        let (bad, ends) = self.suspicions.blame.run_ends(id);
        let error = self.suspicions.blame.an_error(id);
        let why: Box<str> = format!(
            "{bad} of {ends} tasks failed there; the same jobs succeed elsewhere; an error: {error}"
        )
        .into();
        let cases = &mut self.suspicions.cases;
        let case = cases.entry(id).or_insert_with(|| Case::new(ctx.now.wall));
        case.told = Some(why.clone());
        tracing::warn!(worker = %id, "worker seems broken: {why}");
        ctx.persist(ChangeKind::WorkerSuspected { worker: id, why });
    }

    /// Handles due cases: sends a probe, or accepts a probe that has run long enough.
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
                // The probe was canceled or retracted, so the next probe decides.
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

    /// Retracts unstarted tasks from workers in quarantine, and trusts these workers if no other
    /// worker is left.
    pub(super) fn go_on_suspecting(&mut self, ctx: &mut Ctx<'_>) {
        if self.suspicions.cases.is_empty() && self.suspicions.unfit.is_empty() {
            return;
        }
        let doubtful = self.doubtful();
        for id in doubtful.iter().chain(&self.suspicions.unfit) {
            let Some(worker) = self.workers.get_mut(*id) else {
                continue;
            };
            // A single probe task is on its way. A disconnected worker reports its tasks when it is
            // back.
            if worker.is_away() || worker.node().is_some() || worker.standing() == Standing::Probed
            {
                continue;
            }
            let back = worker.take_unstarted(|_, _| true);
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
            // A user may intend that no worker gets tasks.
            if !case.is_some_and(Case::is_asked) {
                self.trust(ctx, id, "no other worker is left");
            }
        }
    }

    /// Applies the quarantine of a lost worker to its replacement on the same host.
    pub(super) fn inherit_quarantine(&mut self, ctx: &mut Ctx<'_>, id: WorkerId) {
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
        // The node may have been repaired before the worker was started. One task shows whether it
        // was.
        if !is_asked {
            self.probe(ctx.now.mono, id);
        }
    }

    /// Keeps the quarantine of a lost worker for its replacement.
    pub(super) fn note_leaver(&mut self, id: WorkerId) {
        let case = self.suspicions.remove(id);
        self.suspicions.blame.forget_worker(id);
        self.suspicions.kept.remove(&id);
        self.suspicions.unfit.remove(&id);
        let host = self.workers.hostname(id);
        if let Some((host, quarantine)) = host.zip(case.and_then(|case| case.quarantine)) {
            self.suspicions.former.insert(host.into(), quarantine);
            // Only the host names are known, so it does not matter which entry is dropped.
            if self.suspicions.former.len() > FORMER_MAX {
                self.suspicions.former.pop_first();
            }
        }
    }
}

/// Returns an error in a few words.
fn short(outcome: &Outcome) -> Box<str> {
    let text = outcome.error_text();
    let line = text
        .lines()
        .next()
        .unwrap_or_default()
        .trim_end_matches('.');
    line.chars().take(ERROR_MAX).collect::<String>().into()
}
