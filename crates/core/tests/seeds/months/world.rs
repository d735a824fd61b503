//! The world of a month: server, workers, tasks and time.

use super::*;

/// `SplitMix64` by Steele, Lea and Flood.
pub(super) struct Rng(pub(super) u64);

impl Rng {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(super) fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    pub(super) fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Truth {
    Held,
    Pending,
    Running,
    Suspended,
    Over {
        failed: bool,
        may_return: bool,
        at: u64,
    },
}

pub(super) struct Job {
    /// `None` = a job of another user.
    pub(super) key: Option<AllocationKey>,
    pub(super) workers: u32,
    pub(super) truth: Truth,
    pub(super) has_started: bool,
    pub(super) visible_at: u64,
    /// Counts its starts. Events of earlier runs are ignored.
    pub(super) run: u32,
    /// Workers of this run that have come.
    pub(super) came: u32,
    pub(super) started_at: u64,
}

pub(super) struct Worker {
    pub(super) job: u32,
    pub(super) cpus: u32,
    pub(super) free: u32,
    pub(super) since: u64,
    pub(super) until: u64,
    pub(super) tasks: BTreeSet<usize>,
    /// Tasks that ended while the server was down.
    pub(super) untold: Vec<usize>,
    pub(super) used: bool,
    /// Counts its changes: an idle timeout holds for one of them.
    pub(super) turn: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum TaskState {
    Waiting,
    Running(u32),
    Over,
}

pub(super) struct Task {
    pub(super) burst: usize,
    pub(super) state: TaskState,
}

/// Events of the world.
pub(super) enum Event {
    Burst(usize),
    CancelBurst(usize),
    Fault(usize),
    /// An input for this life of the server.
    Hear(u32, Input),
    Store(u32, QueueRecord),
    Submit(u32, AllocationKey, u32),
    Back,
    Reconnect(u32, u32),
    Person,
    Release(u32),
    Start(u32),
    Connect(u32, u32),
    Limit(u32, u32),
    Resume(u32, u32),
    Idle(u32, u32),
    WorkerLimit(u32),
    Finish(usize, u32),
    ScriptEnds(u32, u32),
}

pub(super) struct World<'a> {
    pub(super) month: &'a Month,
    pub(super) rng: Rng,
    pub(super) now: u64,
    pub(super) wall: i64,
    /// `None` = the server is down.
    pub(super) state: Option<AutoallocState>,
    /// Counts the lives of the server.
    pub(super) life: u32,
    pub(super) stored: BTreeMap<QueueId, QueueRecord>,
    pub(super) classes: Classes,
    pub(super) class_of: Vec<ClassId>,
    pub(super) tasks: Vec<Task>,
    pub(super) jobs: BTreeMap<u32, Job>,
    pub(super) workers: BTreeMap<u32, Worker>,
    pub(super) last_worker: u32,
    /// Allocations whose id the batch system has reported as another user's job.
    pub(super) foreign: BTreeSet<AllocationKey>,
    pub(super) away_until: u64,
    pub(super) lies_until: u64,
    pub(super) refuses_until: u64,
    /// Waiting tasks at the scheduler's last answer.
    pub(super) asked: BTreeMap<usize, u64>,
    /// Allocations that were needed at moments of the last minutes.
    pub(super) needs: Vec<(u64, usize)>,
    pub(super) agenda: BTreeMap<(u64, u64), Event>,
    pub(super) sequence: u64,
}

impl<'a> World<'a> {
    pub(super) fn new(month: &'a Month) -> Self {
        let mut classes = Classes::default();
        let class = |burst: &Burst| {
            let mut request = ResourceRequest::cpus(SIZES[burst.size]);
            if burst.asks_time {
                request.min_time = Duration::from_secs(u64::from(burst.run_secs) + 5);
            }
            if burst.nodes > 0 {
                request.entries.clear();
                request.n_nodes = burst.nodes;
            }
            classes.intern(&RequestVariants::new(vec![request]).expect("valid"))
        };
        let class_of = month.bursts.iter().map(class).collect();
        let mut world = Self {
            month,
            rng: Rng(month.seed),
            now: 0,
            wall: 0,
            state: Some(AutoallocState::new(limits(), b"")),
            life: 0,
            stored: BTreeMap::new(),
            classes,
            class_of,
            tasks: Vec::new(),
            jobs: BTreeMap::new(),
            workers: BTreeMap::new(),
            last_worker: 0,
            foreign: BTreeSet::new(),
            away_until: 0,
            lies_until: 0,
            refuses_until: 0,
            asked: BTreeMap::new(),
            needs: Vec::new(),
            agenda: BTreeMap::new(),
            sequence: 0,
        };
        for shape in &month.queues {
            let state = world.state.as_mut().expect("it is there");
            let id = state.add_queue(Now::default(), spec(shape).into());
            let record = state.queue(id).expect("just made").record();
            world.stored.insert(id, record);
        }
        for (number, burst) in month.bursts.iter().enumerate() {
            world.at(u64::from(burst.minute) * MINUTE, Event::Burst(number));
        }
        for (number, (minute, _)) in month.faults.iter().enumerate() {
            world.at(u64::from(*minute) * MINUTE, Event::Fault(number));
        }
        world.at(0, Event::Person);
        world
    }

    pub(super) fn clock(&self) -> Now {
        let mono = i64::try_from(self.now).expect("a month");
        Now {
            mono: Time(self.now),
            wall: Timestamp(mono + self.wall),
        }
    }

    pub(super) fn at(&mut self, at: u64, event: Event) {
        self.sequence += 1;
        self.agenda.insert((at, self.sequence), event);
    }

    pub(super) fn later(&mut self, secs: u64, event: Event) {
        let millis = self.rng.below(1_000) * 1_000_000;
        self.at(self.now + secs * SECOND + millis, event);
    }

    pub(super) fn is_over(&self) -> bool {
        self.now >= MONTH
    }

    pub(super) fn shape(&self, queue: QueueId) -> &'a Shape {
        &self.month.queues[queue.0 as usize - 1]
    }

    pub(super) fn hear(&mut self, secs: u64, input: Input) {
        let life = self.life;
        self.later(secs, Event::Hear(life, input));
    }

    pub(super) fn apply(&mut self, input: Input) {
        let now = self.clock();
        let Some(state) = &mut self.state else { return };
        let mut effects = Vec::new();
        state.apply(now, input, &mut effects);
        state.check_invariants();
        for effect in effects {
            self.carry_out(effect);
        }
    }

    pub(super) fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::AskDemand(queries) => {
                self.asked = self.waiting();
                self.note_need();
                let answer = self.demand(&queries);
                self.hear(0, Input::Demand(answer));
            }
            Effect::Submit { key, workers } => {
                // Behind the store.
                let life = self.life;
                self.at(self.now + SECOND / 5, Event::Submit(life, key, workers));
            }
            Effect::Look(key) => self.look(key),
            Effect::Poll { jobs, .. } => {
                for (key, job) in jobs {
                    self.poll(key, &job);
                }
            }
            Effect::Cancel { key, job } => self.cancel(key, &job),
            Effect::Changed(queue) => {
                let state = self.state.as_ref().expect("it acts");
                if let Some(queue) = state.queue(queue) {
                    let (life, record) = (self.life, queue.record());
                    self.at(self.now + SECOND / 10, Event::Store(life, record));
                }
            }
            Effect::Event(_) | Effect::Retire(_) => {}
        }
    }

    /// Tasks that wait, by the number of their burst.
    pub(super) fn waiting(&self) -> BTreeMap<usize, u64> {
        let mut waiting = BTreeMap::new();
        for task in self.tasks.iter().filter(|t| t.state == TaskState::Waiting) {
            *waiting.entry(task.burst).or_default() += 1;
        }
        waiting
    }

    pub(super) fn demand(
        &self,
        queries: &[QueueQuery],
    ) -> Vec<hq_core::scheduler::demand::QueueDemand> {
        let waiting: Vec<(ClassId, u64)> = self
            .waiting()
            .into_iter()
            .map(|(burst, count)| (self.class_of[burst], count))
            .collect();
        let mut answers = demand(&waiting, &self.classes, queries);
        for (answer, query) in answers.iter_mut().zip(queries) {
            let is_unused = |id: &&WorkerId| self.workers.get(&id.0).is_some_and(|w| !w.used);
            answer.unused = query.connected.iter().filter(is_unused).copied().collect();
        }
        answers
    }

    pub(super) fn lose_all(&mut self, id: u32, crashed: bool) {
        let of_job = self.workers.iter().filter(|(_, w)| w.job == id);
        for worker in of_job.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.lose(worker, crashed);
        }
    }

    pub(super) fn lose(&mut self, id: u32, crashed: bool) {
        let Some(worker) = self.workers.remove(&id) else {
            return;
        };
        for task in worker.tasks.into_iter().chain(worker.untold) {
            self.tasks[task].state = TaskState::Waiting;
        }
        if self.state.is_some() {
            let lost = Input::WorkerLost {
                job: worker.job.to_string().into(),
                worker: WorkerId(id),
                crashed,
                lived: Duration::from_nanos(self.now - worker.since),
                used: worker.used,
            };
            self.hear(0, lost);
        }
        let others = self.workers.values().any(|w| w.job == worker.job);
        let job = &self.jobs[&worker.job];
        if !others && job.came >= job.workers && job.truth == Truth::Running {
            let run = job.run;
            let secs = self.rng.below(5);
            self.later(secs, Event::ScriptEnds(worker.job, run));
        }
    }

    /// Gives waiting tasks to workers with room.
    pub(super) fn place(&mut self) {
        if self.state.is_none() {
            return;
        }
        let waiting = self.tasks.iter().enumerate();
        let waiting = waiting.filter(|(_, task)| task.state == TaskState::Waiting);
        let mut full = BTreeSet::new();
        for (number, burst) in waiting.map(|(n, task)| (n, task.burst)).collect::<Vec<_>>() {
            if full.contains(&burst) {
                continue;
            }
            let found = self.find_workers(&self.month.bursts[burst]);
            let Some((first, others)) = found.split_first() else {
                full.insert(burst);
                continue;
            };
            let spec = self.month.bursts[burst];
            for id in &found {
                let worker = self.workers.get_mut(id).expect("just found");
                (worker.used, worker.turn) = (true, worker.turn + 1);
                worker.free -= if spec.nodes > 0 {
                    worker.cpus
                } else {
                    SIZES[spec.size]
                };
                worker.tasks.insert(number);
            }
            assert_eq!(others.len(), spec.nodes.saturating_sub(1) as usize);
            self.tasks[number].state = TaskState::Running(*first);
            self.later(u64::from(spec.run_secs), Event::Finish(number, *first));
        }
    }

    pub(super) fn find_workers(&self, burst: &Burst) -> Vec<u32> {
        let min_time = if burst.asks_time {
            u64::from(burst.run_secs) + 5
        } else {
            0
        };
        let end = self.now + min_time * SECOND;
        let running = |w: &Worker| self.jobs[&w.job].truth == Truth::Running && w.until > end;
        let mut able = self.workers.iter().filter(|(_, w)| running(w));
        if burst.nodes == 0 {
            let fits = able.find(|(_, w)| w.free >= SIZES[burst.size]);
            return fits.map(|(id, _)| vec![*id]).unwrap_or_default();
        }
        let mut of_job = BTreeMap::<u32, Vec<u32>>::new();
        for (id, worker) in able.filter(|(_, w)| w.tasks.is_empty()) {
            let mates = of_job.entry(worker.job).or_default();
            mates.push(*id);
            if mates.len() == burst.nodes as usize {
                return mates.clone();
            }
        }
        Vec::new()
    }

    pub(super) fn finish(&mut self, task: usize, first: u32) {
        if self.tasks[task].state != TaskState::Running(first) {
            return;
        }
        if self
            .workers
            .get(&first)
            .is_none_or(|w| !w.tasks.contains(&task))
        {
            return;
        }
        if self.jobs[&self.workers[&first].job].truth == Truth::Suspended {
            return self.later(60, Event::Finish(task, first));
        }
        let burst = self.month.bursts[self.tasks[task].burst];
        let is_away = self.state.is_none();
        self.tasks[task].state = TaskState::Over;
        let mut idle = Vec::new();
        for (id, worker) in &mut self.workers {
            if worker.tasks.remove(&task) {
                worker.free += if burst.nodes > 0 {
                    worker.cpus
                } else {
                    SIZES[burst.size]
                };
                if is_away && *id == first {
                    worker.untold.push(task);
                }
                idle.push(*id);
            }
        }
        self.place();
        for id in idle {
            self.idles(id);
        }
    }

    pub(super) fn idles(&mut self, id: u32) {
        let wait = if self.state.is_some() { 300 } else { 120 };
        if let Some(worker) = self.workers.get_mut(&id).filter(|w| w.tasks.is_empty()) {
            worker.turn += 1;
            let turn = worker.turn;
            self.later(wait, Event::Idle(id, turn));
        }
    }

    pub(super) fn happen(&mut self, event: Event) {
        match event {
            Event::Hear(life, input) => {
                if life == self.life {
                    self.apply(input);
                }
            }
            Event::Store(life, record) => {
                if life == self.life {
                    self.stored.insert(record.id, record);
                }
            }
            Event::Submit(life, key, workers) => {
                if life == self.life {
                    self.submit(key, workers);
                }
            }
            Event::Burst(number) => self.burst(number),
            Event::CancelBurst(number) => {
                for task in self.tasks.iter_mut().filter(|t| t.burst == number) {
                    if task.state == TaskState::Waiting {
                        task.state = TaskState::Over;
                    }
                }
                self.apply(Input::Changed);
            }
            Event::Fault(number) => self.fault(self.month.faults[number].1),
            Event::Back => self.come_back(),
            Event::Reconnect(life, id) => {
                if life == self.life
                    && let Some(worker) = self.workers.get_mut(&id)
                {
                    worker.untold.clear();
                    self.introduce(id);
                }
            }
            Event::Person => self.person(),
            Event::Release(id) => {
                if let Some(job) = self.jobs.get_mut(&id).filter(|j| j.truth == Truth::Held) {
                    job.truth = Truth::Pending;
                    self.later(10, Event::Start(id));
                }
            }
            Event::Start(id) => self.start(id),
            Event::Connect(id, run) => self.connect(id, run),
            Event::Limit(id, run) => {
                if self.is_run(id, run) {
                    self.end(id, false, false, false);
                }
            }
            Event::Resume(id, run) => self.go_on(id, run),
            Event::Idle(id, turn) => {
                let is_same = |w: &&Worker| w.turn == turn && w.tasks.is_empty();
                if self.workers.get(&id).filter(is_same).is_some() {
                    self.lose(id, false);
                }
            }
            Event::WorkerLimit(id) => self.lose(id, false),
            Event::Finish(task, first) => self.finish(task, first),
            Event::ScriptEnds(id, run) => {
                let is_left = !self.workers.values().any(|w| w.job == id);
                if self.is_run(id, run) && is_left {
                    self.end(id, false, false, false);
                }
            }
        }
    }

    /// A suspended job goes on.
    pub(super) fn go_on(&mut self, id: u32, run: u32) {
        if let Some(job) = self.jobs.get_mut(&id)
            && (job.run, job.truth) == (run, Truth::Suspended)
        {
            (job.truth, job.came) = (Truth::Running, 0);
            let workers = job.workers;
            for _ in 0..workers {
                self.later(5, Event::Connect(id, run));
            }
        }
    }

    pub(super) fn is_run(&self, id: u32, run: u32) -> bool {
        self.jobs.get(&id).is_some_and(|job| job.run == run)
    }

    pub(super) fn burst(&mut self, number: usize) {
        let burst = self.month.bursts[number];
        if !self.is_feasible(&burst) {
            return;
        }
        for _ in 0..burst.tasks {
            self.tasks.push(Task {
                burst: number,
                state: TaskState::Waiting,
            });
        }
        if let Some(minutes) = burst.canceled_after {
            self.later(u64::from(minutes) * 60, Event::CancelBurst(number));
        }
        self.place();
        self.apply(Input::Changed);
    }

    /// Whether some queue can run them.
    pub(super) fn is_feasible(&self, burst: &Burst) -> bool {
        self.month.queues.iter().any(|queue| {
            let lives = queue.limit_minutes * queue.lives / 100 * 60;
            let room = queue.workers_max.unwrap_or(u32::MAX).min(self.month.nodes);
            let is_asked = !queue.says_size || burst.size <= queue.least || burst.nodes > 0;
            burst.nodes <= queue.per_alloc.min(room) && is_asked && burst.run_secs * 2 < lives
        })
    }

    pub(super) fn kill(&mut self, secs: u32) {
        if self.state.take().is_none() {
            return;
        }
        self.life += 1;
        for id in self.workers.keys().copied().collect::<Vec<_>>() {
            self.idles(id);
        }
        self.later(u64::from(secs), Event::Back);
    }

    pub(super) fn come_back(&mut self) {
        let mut state = AutoallocState::new(limits(), b"");
        for (id, record) in &self.stored {
            state.restore_last_queue(id.0);
            state.restore_queue(self.clock(), record.clone());
        }
        self.state = Some(state);
        let life = self.life;
        for id in self.workers.keys().copied().collect::<Vec<_>>() {
            let secs = 1 + self.rng.below(4);
            self.later(secs, Event::Reconnect(life, id));
        }
        self.place();
        self.apply(Input::Changed);
    }

    /// A user looks now and then, and resumes queues that do not submit.
    pub(super) fn person(&mut self) {
        let now = self.clock();
        let queues: Vec<QueueId> = self.stored.keys().copied().collect();
        for id in queues {
            let Some(state) = &mut self.state else { break };
            let is_paused = state
                .queue(id)
                .is_some_and(|q| q.state() == QueueState::Paused);
            let is_failing = state.reason(now, id).is_some_and(|r| r.kind().is_failing());
            if is_paused || is_failing {
                state.resume(now, id);
                self.apply(Input::Changed);
            }
        }
        self.later(4 * 3_600, Event::Person);
    }

    pub(super) fn introduce(&mut self, id: u32) {
        let worker = &self.workers[&id];
        let input = Input::WorkerConnected {
            job: worker.job.to_string().into(),
            worker: WorkerId(id),
            config: batch_worker(
                u64::from(worker.cpus) * UNITS,
                Some(Duration::from_nanos(worker.until.saturating_sub(self.now))),
            ),
        };
        self.apply(input);
        self.place();
        self.idles(id);
    }

    /// Plays until a point in time.
    pub(super) fn run(&mut self, until: u64) {
        for _ in 0..STEPS_MAX {
            let event_at = self.agenda.keys().next().map_or(u64::MAX, |(at, _)| *at);
            let timer = self.state.as_ref().and_then(AutoallocState::next_deadline);
            let timer_at = timer.map_or(u64::MAX, |time| time.0);
            let at = event_at.min(timer_at).max(self.now);
            if at > until {
                self.now = until;
                return;
            }
            self.now = at;
            if timer_at <= event_at {
                self.apply(Input::Timer);
            } else if let Some((_, event)) = self.agenda.pop_first() {
                self.happen(event);
            }
        }
        panic!("time does not go on at day {}", self.now / DAY);
    }

    pub(super) fn check(mut self) {
        self.run(MONTH);
        self.run(MONTH + REST);
        let unfinished = self.waiting();
        let now = self.clock();
        let state = self.state.as_ref().expect("the month is over");
        let reasons: Vec<String> = state
            .queues()
            .filter_map(|queue| state.reason(now, queue.id()))
            .map(|reason| reason.to_string())
            .collect();
        assert!(unfinished.is_empty(), "{unfinished:?} wait: {reasons:?}");
        let left = self
            .jobs
            .iter()
            .filter(|(_, job)| job.key.is_some() && !matches!(job.truth, Truth::Over { .. }));
        let left: Vec<_> = left.map(|(id, job)| (id, job.key, job.truth)).collect();
        assert!(
            left.is_empty(),
            "jobs are left: {left:?}; {}",
            self.known(QueueId(1))
        );
        let alive: Vec<_> = state.alive().collect();
        assert!(alive.is_empty(), "allocations are left: {alive:?}");
    }
}
