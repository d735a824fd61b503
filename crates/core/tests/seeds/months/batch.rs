//! The batch system of a month, and what goes wrong in it.

use super::world::*;
use super::*;

impl<'a> World<'a> {
    pub(super) fn is_away(&self) -> bool {
        self.now < self.away_until
    }

    pub(super) fn lies(&mut self, percent: u64) -> bool {
        self.now < self.lies_until && self.rng.chance(percent)
    }

    /// Cpus of the nodes that an allocation gets; its number decides.
    pub(super) fn size(&self, key: AllocationKey) -> u32 {
        let least = self.shape(key.queue).least;
        let seed = self.month.seed ^ (u64::from(key.queue.0) << 32) ^ u64::from(key.number);
        let choices = u64::try_from(SIZES.len() - least).expect("three");
        SIZES[least + usize::try_from(Rng(seed).below(choices)).expect("small")]
    }

    pub(super) fn own(&self, queue: QueueId) -> impl Iterator<Item = &Job> + '_ {
        self.jobs.values().filter(move |job| {
            job.key.is_some_and(|key| key.queue == queue)
                && !matches!(job.truth, Truth::Over { .. })
        })
    }

    pub(super) fn submit(&mut self, key: AllocationKey, workers: u32) {
        self.check_requested();
        let shape = self.shape(key.queue);
        let waiting = self.own(key.queue).filter(|job| !job.has_started).count() + 1;
        assert!(
            waiting <= shape.backlog as usize,
            "{waiting} allocations of queue {} wait in truth: {}",
            key.queue,
            self.known(key.queue)
        );
        let all: u32 = self.own(key.queue).map(|job| job.workers).sum::<u32>() + workers;
        assert!(
            shape.workers_max.is_none_or(|max| all <= max),
            "{all} workers of queue {} are alive in truth: {}",
            key.queue,
            self.known(key.queue)
        );
        assert!(workers >= 1 && workers <= shape.per_alloc);
        if self.is_away() || self.jobs_alive() >= self.month.jobs_max {
            let delay = if self.is_away() { 30 } else { 1 };
            let text = SubmitOutcome::Unreachable("MaxSubmitJobLimit".into());
            return self.hear(delay, Input::Submitted(key, text));
        }
        if self.now < self.refuses_until {
            let refused = SubmitOutcome::Refused("policy".into());
            return self.hear(1, Input::Submitted(key, refused));
        }
        let is_unclear = self.lies(25);
        if is_unclear && self.rng.chance(50) {
            let unclear = SubmitOutcome::Unclear("timed out".into());
            return self.hear(60, Input::Submitted(key, unclear));
        }
        let id = u32::try_from(self.jobs.len()).expect("few") + 1;
        let invisible = if self.lies(30) { self.rng.below(40) } else { 0 };
        let job = Job {
            key: Some(key),
            workers,
            truth: Truth::Pending,
            has_started: false,
            visible_at: self.now + invisible * SECOND,
            run: 0,
            came: 0,
            started_at: 0,
        };
        self.jobs.insert(id, job);
        let wait = match self.rng.below(4) {
            0 => 1,
            1 => self.rng.below(60),
            2 => self.rng.below(1_200),
            _ => self.rng.below(20_000),
        };
        self.later(wait, Event::Start(id));
        let outcome = if is_unclear {
            SubmitOutcome::Unclear("garbage".into())
        } else {
            SubmitOutcome::Accepted(id.to_string().into())
        };
        let delay = self.rng.below(20);
        self.hear(delay, Input::Submitted(key, outcome));
    }

    /// The server's view of a queue and the truth, for messages.
    pub(super) fn known(&self, queue: QueueId) -> String {
        let state = self.state.as_ref().and_then(|state| state.queue(queue));
        let known = state.into_iter().flat_map(|queue| queue.allocations());
        let known: Vec<String> = known
            .filter(|a| a.may_be_alive())
            .map(|a| format!("{} {:?} {:?}", a.key(), a.job(), a.record().state))
            .collect();
        let alive = |(_, job): &(&u32, &Job)| !matches!(job.truth, Truth::Over { .. });
        let truth: Vec<String> = self
            .jobs
            .iter()
            .filter(alive)
            .map(|(id, job)| format!("{id} {:?} {:?}", job.key, job.truth))
            .collect();
        format!("known {known:?}, true {truth:?}, day {}", self.now / DAY)
    }

    /// Checks that the server requests at most half as many allocations again as a planner that
    /// knows what each allocation will bring, and one more for each queue. The server keeps
    /// allocations for ten minutes after their tasks have found other workers, so the need of the
    /// last ten minutes counts.
    pub(super) fn check_requested(&mut self) {
        self.note_need();
        let state = self.state.as_ref().expect("it asks");
        let all = state.queues().flat_map(|queue| queue.allocations());
        let waits =
            |a: &&Allocation| a.may_be_alive() && a.record().state == AllocationState::Queued;
        let requested = all.filter(waits).count();
        let needed = self.needs.iter().map(|(_, needed)| *needed).max();
        let needed = needed.unwrap_or(0);
        let queues = self.month.queues.len();
        assert!(
            requested * 2 <= needed * 3 + queues * 2,
            "{requested} allocations are requested, {needed} would do for {:?}: {}",
            self.asked,
            self.known(QueueId(1))
        );
    }

    /// Notes the allocations that are needed now.
    pub(super) fn note_need(&mut self) {
        let queues = self.stored.keys();
        let needed = queues.map(|queue| self.needed(*queue)).max().unwrap_or(0);
        let now = self.now;
        self.needs.retain(|(at, _)| now - at <= KEPT);
        self.needs.push((now, needed));
    }

    /// Allocations of a queue that would take all that waited when it was asked for last.
    pub(super) fn needed(&self, queue: QueueId) -> usize {
        let shape = self.shape(queue);
        let coming: Vec<&Job> = self.own(queue).filter(|job| !job.has_started).collect();
        let last = self
            .jobs
            .values()
            .filter_map(|job| job.key)
            .filter(|key| key.queue == queue);
        let last = last.map(|key| key.number).max().unwrap_or(0);
        let offers = coming.iter().map(|job| (job.key, job.workers));
        let later =
            (last + 1..).map(|number| (Some(AllocationKey { queue, number }), shape.per_alloc));
        let mut offers = offers.chain(later);
        let (mut count, mut left) = (0, (0, 0));
        let mut workers = Vec::new();
        for (burst, waiting) in &self.asked {
            let burst = &self.month.bursts[*burst];
            let mut waiting = usize::try_from(*waiting).expect("few");
            if burst.nodes > 0 {
                count += waiting;
                continue;
            }
            let cpus = SIZES[burst.size];
            while waiting > 0 && count < 1_000 {
                if let Some(free) = workers.iter_mut().find(|free| **free >= cpus) {
                    (*free, waiting) = (*free - cpus, waiting - 1);
                    continue;
                }
                if left.0 == 0 {
                    let (key, size) = offers.next().expect("endless");
                    left = (size, key.map_or(0, |key| self.size(key)));
                    count += 1;
                }
                left.0 -= 1;
                workers.push(left.1);
            }
        }
        count
    }

    pub(super) fn jobs_alive(&self) -> usize {
        let alive = |job: &&Job| !matches!(job.truth, Truth::Over { .. });
        self.jobs.values().filter(alive).count()
    }

    pub(super) fn look(&mut self, key: AllocationKey) {
        let now = self.now;
        let mut all = self.jobs.iter();
        let found = all.find(|(_, job)| job.key == Some(key) && job.visible_at <= now);
        let found = found.map(|(id, _)| LookupOutcome::Found(id.to_string().into()));
        let outcome = if self.is_away() || self.lies(30) {
            LookupOutcome::Error("down".into())
        } else {
            found.unwrap_or(LookupOutcome::Absent)
        };
        self.hear(1, Input::Looked(key, outcome));
    }

    pub(super) fn poll(&mut self, key: AllocationKey, job: &str) {
        let id: u32 = job.parse().expect("an id of ours");
        if self.is_away() {
            let error = Report::Error("timed out".into());
            return self.hear(60, Input::Reported(key, error));
        }
        let job = &self.jobs[&id];
        let has_started = job.has_started;
        let honest = match job.truth {
            _ if job.key != Some(key) => Report::Foreign("theirs".into()),
            Truth::Held | Truth::Pending => Report::Queued("Priority".into()),
            Truth::Running => Report::Running,
            Truth::Suspended => Report::Suspended("SUSPENDED".into()),
            Truth::Over { at, .. } if self.now > at + HISTORY => Report::Missing,
            Truth::Over {
                failed: true,
                may_return,
                ..
            } => Report::Failed {
                text: "CANCELLED".into(),
                may_return,
            },
            Truth::Over { .. } => Report::Finished("COMPLETED".into()),
        };
        let (delay, report) = if self.lies(40) {
            match self.rng.below(7) {
                0 => (60, Report::Error("timed out".into())),
                1 => (1, Report::Error("garbage".into())),
                2 => (1, Report::Missing),
                3 => (1, Report::Queued("".into())),
                // As it was a while ago.
                4 if has_started => (1, Report::Running),
                5 => (1, Report::Unreadable("?".into())),
                // No answer at all.
                _ => return,
            }
        } else if self.lies(30) {
            (self.rng.below(90), honest)
        } else {
            (1, honest)
        };
        if matches!(report, Report::Foreign(_)) {
            self.foreign.insert(key);
        }
        self.hear(delay, Input::Reported(key, report));
    }

    pub(super) fn cancel(&mut self, key: AllocationKey, job: &str) {
        let id: u32 = job.parse().expect("an id of ours");
        if self.is_away() || self.lies(30) {
            return self.hear(60, Input::Canceled(key, Err("timed out".into())));
        }
        // The shell looks whose job it is before it cancels anything.
        match self.jobs[&id].key {
            Some(own) => {
                assert_eq!(own, key, "the job of another allocation");
                self.end(id, true, false, false);
            }
            None => {
                self.foreign.insert(key);
            }
        }
        self.hear(1, Input::Canceled(key, Ok(())));
    }

    /// The job is over, and with it its workers.
    pub(super) fn end(&mut self, id: u32, failed: bool, may_return: bool, crashed: bool) {
        let now = self.now;
        let Some(job) = self.jobs.get_mut(&id) else {
            return;
        };
        if job.key.is_none() || matches!(job.truth, Truth::Over { .. }) {
            return;
        }
        job.truth = Truth::Over {
            failed,
            may_return,
            at: now,
        };
        job.run += 1;
        self.lose_all(id, crashed);
    }

    /// A job of the server in one of these states.
    pub(super) fn pick(&self, which: u32, states: &[Truth]) -> Option<u32> {
        let of_state = |(_, job): &(&u32, &Job)| job.key.is_some() && states.contains(&job.truth);
        let found: Vec<u32> = self
            .jobs
            .iter()
            .filter(of_state)
            .map(|(id, _)| *id)
            .collect();
        found.get(which as usize % found.len().max(1)).copied()
    }

    pub(super) fn fault(&mut self, fault: Fault) {
        let running = [Truth::Running, Truth::Suspended];
        let end = |minutes: u32, now: u64| (now + u64::from(minutes) * MINUTE).min(MONTH);
        match fault {
            Fault::Away(minutes) => self.away_until = end(minutes, self.now),
            Fault::Lies(minutes) => self.lies_until = end(minutes, self.now),
            Fault::Refuses(minutes) => self.refuses_until = end(minutes, self.now),
            Fault::Kill(secs) => self.kill(secs),
            Fault::Clock(secs) => self.wall = i64::from(secs) * 1_000_000_000,
            Fault::Requeue(which) => {
                if let Some(id) = self.pick(which, &running) {
                    self.requeue(id);
                }
            }
            Fault::NodeFails(which, again) => match self.pick(which, &running) {
                Some(id) if again => self.requeue(id),
                Some(id) => self.end(id, true, true, true),
                None => {}
            },
            Fault::Canceled(which) => {
                if let Some(id) = self.pick(which, &[Truth::Running, Truth::Pending]) {
                    self.end(id, true, false, false);
                }
            }
            Fault::Suspended(which, minutes) => {
                if let Some(id) = self.pick(which, &[Truth::Running]) {
                    let job = self.jobs.get_mut(&id).expect("just found");
                    job.truth = Truth::Suspended;
                    let run = job.run;
                    // Its workers do not answer, so their connections break.
                    self.lose_all(id, true);
                    self.later(u64::from(minutes) * 60, Event::Resume(id, run));
                }
            }
            Fault::Held(which) => {
                if let Some(id) = self.pick(which, &[Truth::Pending]) {
                    self.jobs.get_mut(&id).expect("just found").truth = Truth::Held;
                    self.later(7_200, Event::Release(id));
                }
            }
            Fault::WorkerCrashes(which) => {
                let id = self
                    .workers
                    .keys()
                    .nth(which as usize % self.workers.len().max(1));
                if let Some(id) = id.copied() {
                    self.lose(id, true);
                }
            }
            Fault::IdUsedAgain(which) => {
                let over = self
                    .jobs
                    .iter()
                    .filter(|(_, job)| matches!(job.truth, Truth::Over { .. }));
                let over: Vec<u32> = over.map(|(id, _)| *id).collect();
                if let Some(id) = over.get(which as usize % over.len().max(1)) {
                    self.jobs.get_mut(id).expect("just found").key = None;
                }
            }
        }
    }

    pub(super) fn requeue(&mut self, id: u32) {
        let job = self.jobs.get_mut(&id).expect("it is there");
        job.truth = Truth::Pending;
        job.run += 1;
        let crashed = self.rng.chance(50);
        self.lose_all(id, crashed);
        let secs = 120 + self.rng.below(600);
        self.later(secs, Event::Start(id));
    }

    pub(super) fn start(&mut self, id: u32) {
        let Some(job) = self.jobs.get(&id).filter(|j| j.truth == Truth::Pending) else {
            return;
        };
        let Some(key) = job.key else { return };
        let busy = self
            .jobs
            .values()
            .filter(|j| j.truth == Truth::Running || j.truth == Truth::Suspended);
        let busy: u32 = busy.map(|j| j.workers).sum();
        if busy + job.workers > self.month.nodes {
            let secs = 60 + self.rng.below(600);
            return self.later(secs, Event::Start(id));
        }
        let limit = u64::from(self.shape(key.queue).limit_minutes) * 60;
        let now = self.now;
        let job = self.jobs.get_mut(&id).expect("just found");
        (job.truth, job.has_started) = (Truth::Running, true);
        (job.run, job.came, job.started_at) = (job.run + 1, 0, now);
        let (run, workers) = (job.run, job.workers);
        self.later(limit, Event::Limit(id, run));
        for _ in 0..workers {
            // Some never come.
            if self.is_over() || !self.rng.chance(2) {
                let boot = 1 + self.rng.below(60);
                self.later(boot, Event::Connect(id, run));
            }
        }
    }

    pub(super) fn connect(&mut self, id: u32, run: u32) {
        if !self.is_run(id, run) || self.jobs[&id].truth != Truth::Running {
            return;
        }
        if self.state.is_none() {
            return self.later(5, Event::Connect(id, run));
        }
        let job = self.jobs.get_mut(&id).expect("it runs");
        let Some(key) = job.key else { return };
        job.came += 1;
        let started = job.started_at;
        let shape = self.shape(key.queue);
        let lives = u64::from(shape.limit_minutes) * u64::from(shape.lives) * 60 * SECOND / 100;
        let cpus = self.size(key);
        self.last_worker += 1;
        let worker = self.last_worker;
        let until = started + lives - 10 * SECOND;
        self.workers.insert(
            worker,
            Worker {
                job: id,
                cpus,
                free: cpus,
                since: self.now,
                until,
                tasks: BTreeSet::new(),
                untold: Vec::new(),
                used: false,
                turn: 0,
            },
        );
        self.at(until, Event::WorkerLimit(worker));
        self.introduce(worker);
        self.place();
        self.idles(worker);
    }
}
