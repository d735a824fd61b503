//! Random histories against a faulty batch system, in virtual time.
//!
//! While faulty, it loses answers to submissions, shows jobs late, forgets ids, answers with errors
//! or late, requeues jobs and ignores cancels. Then it recovers, and the queue must get to work.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use hq_core::autoalloc::{
    AutoallocState, Effect, Input, Limits, LookupOutcome, QueueState, Report, SubmitOutcome,
};
use hq_core::batch::QueueParams;
use hq_core::id::{AllocationKey, QueueId, WorkerId};
use hq_core::scheduler::demand::{QueueDemand, QueueQuery};
use hq_core::testing::{batch_worker, queue_params};
use hq_core::time::{Now, Time, Timestamp};

const HISTORIES: u64 = 10_000;
const SECOND: u64 = 1_000_000_000;
/// How long it is faulty, and how long a healthy one may take to give a node, backoff included.
const LIES_SECS: u64 = 2 * 3_600;
const HEALED_SECS: u64 = 4 * 3_600;
/// More steps than this mean that time stands still.
const STEPS_MAX: u32 = 50_000;

/// `SplitMix64` by Steele, Lea and Flood.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Truth {
    Pending,
    Running,
    Over,
}

struct Job {
    key: AllocationKey,
    workers: u32,
    truth: Truth,
    has_started: bool,
    failed: bool,
    visible_at: u64,
    connected: BTreeSet<u32>,
}

/// Events that happen by themselves in the world.
enum Event {
    Hear(Input),
    Start(u32),
    Connect(u32),
    End(u32),
    Crash(u32),
    Vanish(u32),
    NeedChanges,
}

struct World {
    seed: u64,
    rng: Rng,
    now: u64,
    state: AutoallocState,
    queue: QueueId,
    spec: Arc<QueueParams>,
    jobs: BTreeMap<u32, Job>,
    last_job: u32,
    last_worker: u32,
    need: u32,
    agenda: BTreeMap<(u64, u64), Event>,
    sequence: u64,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = Rng(seed);
        let spec = Arc::new(QueueParams {
            backlog: 1 + u32::try_from(rng.below(4)).expect("small"),
            max_workers_per_alloc: 1 + u32::try_from(rng.below(3)).expect("small"),
            max_worker_count: rng
                .chance(50)
                .then(|| 1 + u32::try_from(rng.below(6)).unwrap_or(0)),
            time_limit: Duration::from_secs(600 + rng.below(3_600)),
            worker_time_limit: Some(Duration::from_secs(600)),
            ..queue_params()
        });
        let limits = Limits {
            refresh: Duration::from_secs(60 + rng.below(1_800)),
            ..Limits::default()
        };
        let mut state = AutoallocState::new(limits, b"");
        let queue = state.add_queue(Now::default(), spec.clone());
        let mut world = Self {
            seed,
            rng,
            now: 0,
            state,
            queue,
            spec,
            jobs: BTreeMap::new(),
            last_job: 0,
            last_worker: 0,
            need: 1,
            agenda: BTreeMap::new(),
            sequence: 0,
        };
        world.later(0, Event::NeedChanges);
        world
    }

    fn lies(&mut self, percent: u64) -> bool {
        self.now < LIES_SECS * SECOND && self.rng.chance(percent)
    }

    fn clock(&self) -> Now {
        Now {
            mono: Time(self.now),
            wall: Timestamp(i64::try_from(self.now).expect("small")),
        }
    }

    fn later(&mut self, secs: u64, event: Event) {
        self.sequence += 1;
        let millis = self.rng.below(1_000) * 1_000_000;
        let at = self.now + secs * SECOND + millis;
        self.agenda.insert((at, self.sequence), event);
    }

    fn hear(&mut self, secs: u64, input: Input) {
        self.later(secs, Event::Hear(input));
    }

    fn apply(&mut self, input: Input) {
        let mut effects = Vec::new();
        self.state.apply(self.clock(), input, &mut effects);
        self.state.check_invariants();
        for effect in effects {
            self.carry_out(effect);
        }
    }

    fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::AskDemand(queries) => {
                let answers = queries.iter().map(|query| self.demand(query)).collect();
                self.hear(0, Input::Demand(answers));
            }
            Effect::Submit { key, workers } => self.submit(key, workers),
            Effect::Look(key) => self.look(key),
            Effect::Poll { jobs, .. } => {
                for (key, job) in jobs {
                    let (delay, report) = self.report(&job);
                    self.hear(delay, Input::Reported(key, report));
                }
            }
            Effect::Cancel { key, job } => self.cancel(key, &job),
            Effect::Event(_) | Effect::Retire(_) | Effect::Changed(_) => {}
        }
    }

    fn demand(&mut self, query: &QueueQuery) -> QueueDemand {
        let connected: usize = self.jobs.values().map(|job| job.connected.len()).sum();
        let coming: u32 = query.coming.iter().map(|coming| coming.owed).sum();
        let have = u32::try_from(connected).expect("small") + coming;
        QueueDemand {
            queue: query.queue,
            workers: self.need.saturating_sub(have).min(query.workers_max),
            gangs: Vec::new(),
            waiting: u64::from(self.need),
            covered: coming > 0,
            unfit: None,
            larger: None,
            unneeded: Vec::new(),
            unused: Vec::new(),
        }
    }

    fn submit(&mut self, key: AllocationKey, workers: u32) {
        let alive = || self.jobs.values().filter(|job| job.truth != Truth::Over);
        let waiting = alive().filter(|job| !job.has_started).count() + 1;
        let all: u32 = alive().map(|job| job.workers).sum::<u32>() + workers;
        let (seed, now) = (self.seed, self.now / SECOND);
        assert!(
            waiting <= self.spec.backlog as usize,
            "seed {seed}, second {now}: {waiting} allocations wait in truth"
        );
        assert!(
            self.spec.max_worker_count.is_none_or(|max| all <= max),
            "seed {seed}, second {now}: {all} workers are alive in truth"
        );
        assert!(workers >= 1 && workers <= self.spec.max_workers_per_alloc);
        if self.lies(10) {
            let refused = SubmitOutcome::Refused("policy".into());
            self.hear(1, Input::Submitted(key, refused));
            return;
        }
        let is_unclear = self.lies(25);
        if is_unclear && self.rng.chance(50) {
            let unclear = SubmitOutcome::Unclear("timed out".into());
            self.hear(60, Input::Submitted(key, unclear));
            return;
        }
        self.last_job += 1;
        let id = self.last_job;
        let invisible = if self.lies(30) { self.rng.below(40) } else { 0 };
        let job = Job {
            key,
            workers,
            truth: Truth::Pending,
            has_started: false,
            failed: false,
            visible_at: self.now + invisible * SECOND,
            connected: BTreeSet::new(),
        };
        self.jobs.insert(id, job);
        let start = 5 + self.rng.below(600);
        if !self.lies(5) {
            self.later(start, Event::Start(id));
        }
        let delay = self.rng.below(30);
        let outcome = if is_unclear {
            SubmitOutcome::Unclear("garbage".into())
        } else {
            SubmitOutcome::Accepted(id.to_string().into())
        };
        self.hear(delay, Input::Submitted(key, outcome));
    }

    fn look(&mut self, key: AllocationKey) {
        let now = self.now;
        let mut all = self.jobs.iter();
        let found = all.find(|(_, job)| job.key == key && job.visible_at <= now);
        let found = found.map(|(id, _)| LookupOutcome::Found(id.to_string().into()));
        let outcome = if self.lies(30) {
            LookupOutcome::Error("down".into())
        } else {
            found.unwrap_or(LookupOutcome::Absent)
        };
        self.hear(1, Input::Looked(key, outcome));
    }

    fn report(&mut self, job: &str) -> (u64, Report) {
        let id: u32 = job.parse().expect("an id of ours");
        let job = &self.jobs[&id];
        let honest = match job.truth {
            Truth::Pending => Report::Queued("Priority".into()),
            Truth::Running => Report::Running,
            Truth::Over if job.failed => Report::Failed {
                text: "CANCELLED".into(),
                may_return: false,
            },
            Truth::Over => Report::Finished("COMPLETED".into()),
        };
        if self.lies(30) {
            return match self.rng.below(4) {
                0 => (60, Report::Error("timed out".into())),
                1 => (1, Report::Error("garbage".into())),
                2 => (1, Report::Missing),
                _ => (1, Report::Queued("".into())),
            };
        }
        let delay = if self.lies(20) { self.rng.below(90) } else { 1 };
        (delay, honest)
    }

    fn cancel(&mut self, key: AllocationKey, job: &str) {
        if self.lies(30) {
            self.hear(60, Input::Canceled(key, Err("timed out".into())));
            return;
        }
        let id: u32 = job.parse().expect("an id of ours");
        self.end(id, true);
        self.hear(1, Input::Canceled(key, Ok(())));
    }

    /// The job is over, and with it its workers.
    fn end(&mut self, id: u32, failed: bool) {
        let Some(job) = self.jobs.get_mut(&id) else {
            return;
        };
        if job.truth == Truth::Over {
            return;
        }
        job.truth = Truth::Over;
        job.failed = failed;
        let workers = std::mem::take(&mut job.connected);
        for worker in workers {
            self.lose(id, worker, failed);
        }
    }

    fn lose(&mut self, id: u32, worker: u32, crashed: bool) {
        let lived = Duration::from_secs(self.rng.below(300));
        let job = id.to_string().into();
        let worker = WorkerId(worker);
        self.hear(
            0,
            Input::WorkerLost {
                job,
                worker,
                crashed,
                lived,
                used: true,
            },
        );
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Hear(input) => self.apply(input),
            Event::Start(id) => self.start(id),
            Event::Connect(id) => self.connect(id),
            Event::End(id) => self.end(id, false),
            Event::Crash(id) => {
                let Some(worker) = self
                    .jobs
                    .get_mut(&id)
                    .and_then(|job| job.connected.pop_first())
                else {
                    return;
                };
                self.lose(id, worker, true);
            }
            Event::Vanish(id) => self.end(id, true),
            Event::NeedChanges => {
                let healed = self.now >= LIES_SECS * SECOND;
                self.need = if healed {
                    3
                } else {
                    u32::try_from(self.rng.below(8)).expect("small")
                };
                if !healed {
                    let secs = 60 + self.rng.below(1_200);
                    self.later(secs, Event::NeedChanges);
                }
                self.apply(Input::Changed);
            }
        }
    }

    fn start(&mut self, id: u32) {
        let Some(job) = self
            .jobs
            .get_mut(&id)
            .filter(|job| job.truth == Truth::Pending)
        else {
            return;
        };
        job.truth = Truth::Running;
        job.has_started = true;
        let workers = job.workers;
        if self.lies(10) {
            // Requeued before anything ran.
            self.jobs.get_mut(&id).expect("exists").truth = Truth::Pending;
            let again = 30 + self.rng.below(300);
            self.later(again, Event::Start(id));
            return;
        }
        let lifetime = self.spec.time_limit.as_secs();
        self.later(lifetime, Event::End(id));
        for _ in 0..workers {
            if !self.lies(10) {
                let boot = 1 + self.rng.below(20);
                self.later(boot, Event::Connect(id));
            }
        }
        if self.lies(15) {
            let at = self.rng.below(300);
            self.later(at, Event::Crash(id));
        }
        if self.lies(15) {
            let at = self.rng.below(300);
            self.later(at, Event::Vanish(id));
        }
    }

    fn connect(&mut self, id: u32) {
        let worker = self.last_worker + 1;
        let Some(job) = self
            .jobs
            .get_mut(&id)
            .filter(|job| job.truth == Truth::Running)
        else {
            return;
        };
        job.connected.insert(worker);
        self.last_worker = worker;
        self.apply(Input::WorkerConnected {
            job: id.to_string().into(),
            worker: WorkerId(worker),
            config: batch_worker(10_000, None),
        });
    }

    fn has_worker(&self) -> bool {
        self.jobs.values().any(|job| !job.connected.is_empty())
    }

    /// Lets time pass until `until` (seconds), or until there is a worker if that is enough.
    fn run(&mut self, until: u64, stop_at_worker: bool) {
        for _ in 0..STEPS_MAX {
            if stop_at_worker && self.has_worker() {
                return;
            }
            let event = self.agenda.keys().next().copied();
            let timer = self.state.next_deadline();
            let event_at = event.map_or(u64::MAX, |(at, _)| at);
            let timer_at = timer.map_or(u64::MAX, |time| time.0);
            let at = event_at.min(timer_at).max(self.now);
            if at > until * SECOND {
                self.now = until * SECOND;
                return;
            }
            self.now = at;
            if timer_at <= event_at {
                self.apply(Input::Timer);
            } else if let Some(event) = event.and_then(|key| self.agenda.remove(&key)) {
                self.happen(event);
            }
        }
        panic!(
            "seed {}: time does not go on at second {}",
            self.seed,
            self.now / SECOND
        );
    }

    fn resume_if_paused(&mut self) {
        let now = self.clock();
        let queue = self.state.queue(self.queue).expect("exists");
        if queue.state() == QueueState::Paused {
            assert!(self.state.reason(now, self.queue).is_some());
            self.state.resume(now, self.queue);
        }
    }

    fn check(mut self) {
        self.run(LIES_SECS, false);
        // Jobs that never start by themselves are held; a user releases them.
        let pending: Vec<u32> = self
            .jobs
            .iter()
            .filter(|(_, j)| j.truth == Truth::Pending)
            .map(|(id, _)| *id)
            .collect();
        for id in pending {
            self.later(60, Event::Start(id));
        }
        self.later(1, Event::NeedChanges);
        self.run(LIES_SECS + 10, false);
        // A paused queue waits for a user; earlier jobs may still fail and pause it again.
        for round in 1..=4 {
            self.resume_if_paused();
            self.run(LIES_SECS + round * HEALED_SECS, true);
        }
        let reason = self.state.reason(self.clock(), self.queue);
        assert!(
            self.has_worker(),
            "seed {}: no worker, because {}",
            self.seed,
            reason.map_or_else(String::new, |reason| reason.to_string())
        );
    }
}

#[test]
fn never_too_many_and_never_stuck_whatever_the_batch_system_says() {
    for seed in 0..HISTORIES {
        World::new(seed).check();
    }
}
