//! Processes of our launcher: in lanes, all at once, on request of many threads, and among others.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

use hq_spawn::{
    ArgBlock, EnvBlock, Event, Lane, Launcher, LauncherConfig, SpawnPlan, Stdio, Strategy, Token,
};

use super::{Due, Options, Work, clock_ns, now_ns};

/// The number of requests submitted per lane at a time: enough for the consumer to sleep for a few
/// milliseconds.
const LANE_DEPTH: u64 = 32;

/// The number of processes requested but not yet created, if none is waited for: enough that the
/// launcher never waits for requests.
const AHEAD: u64 = 1024;

/// The number of waits in one figure of [`in_reverse`].
const STEP: usize = 100;

/// The kind of process.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A process that shares its parent's settings, as with the other mechanisms.
    Bare,
    /// A process like a batch task: it has a separate session, no input and no output, and is
    /// killed with its parent.
    Task,
}

/// Starts a launcher, and returns it with the receiver of its wake-ups. 0 threads: the default.
fn start(threads: usize, strategy: Strategy) -> (Launcher, Receiver<()>) {
    let (sender, woken) = sync_channel(1);
    let mut config = LauncherConfig::new(Arc::new(move || {
        // If the channel is full, the consumer is already being woken.
        let _ = sender.try_send(());
    }));
    config.threads = threads;
    config.strategy = strategy;
    config.raise_descriptor_limit = true;
    (Launcher::start(config).expect("a launcher"), woken)
}

/// The common part of all processes.
struct Template<'a> {
    work: &'a Work,
    plain: ArgBlock,
    env: EnvBlock,
    kind: Kind,
}

impl<'a> Template<'a> {
    fn new(work: &'a Work, kind: Kind) -> Self {
        let options = &work.options;
        let own = options.env.iter();
        let own = own.map(|(name, value)| (name.into(), value.into()));
        let argv = [Some(&options.program), options.arg.as_ref()];
        Self {
            work,
            plain: ArgBlock::new(argv.into_iter().flatten()).expect("a valid path"),
            env: EnvBlock::capture().overlay(own).expect("valid variables"),
            kind,
        }
    }

    fn plan(&self, due: Due) -> SpawnPlan {
        let argv = self.work.own_argument(due).map_or_else(
            || self.plain.clone(),
            |own| {
                let argv = [self.work.options.program.clone(), own];
                ArgBlock::new(argv).expect("a valid path")
            },
        );
        let mut plan = SpawnPlan::new(argv, self.env.clone());
        if due.at.is_some() {
            // The program produces output.
            plan = plan.stdout(Stdio::Inherit);
        }
        match self.kind {
            Kind::Task => plan,
            Kind::Bare => bare(plan),
        }
    }
}

/// Makes a process share its parent's settings.
fn bare(plan: SpawnPlan) -> SpawnPlan {
    plan.new_session(false)
        .death_signal(None)
        .stdin(Stdio::Inherit)
        .stdout(Stdio::Inherit)
        .stderr(Stdio::Inherit)
}

/// Returns the token of a process that ended well; `None` if the event reports something else.
fn ended(event: Event) -> Option<Token> {
    match event {
        Event::Started { .. } | Event::Stalled { .. } | Event::Unkillable { .. } => None,
        Event::Exited { token, status, .. } => {
            assert!(status.success(), "a process failed: {status}");
            Some(token)
        }
        Event::Failed { error, .. } => panic!("{error}"),
    }
}

/// Keeps as many lanes busy as processes may live at a time.
pub(crate) fn in_lanes(work: &Work, strategy: Strategy, kind: Kind) {
    let (launcher, woken) = start(work.options.parallel, strategy);
    Requests {
        template: Template::new(work, kind),
        load: vec![0; work.options.parallel],
        requested: 0,
    }
    .run(&launcher, &woken);
}

struct Requests<'a> {
    template: Template<'a>,
    /// The number of unfinished requests in each lane. The lanes advance at different speeds.
    load: Vec<u64>,
    requested: u64,
}

impl Requests<'_> {
    fn plan(&mut self, due: Due) -> (Lane, Token, SpawnPlan) {
        self.requested += 1;
        let lanes = self.load.len();
        let (lane, load) = self
            .load
            .iter_mut()
            .enumerate()
            .min_by_key(|(_, load)| **load)
            .expect("a lane");
        *load += 1;
        let token = Token(self.requested * lanes as u64 + lane as u64);
        (Lane(lane as u64), token, self.template.plan(due))
    }

    fn run(mut self, launcher: &Launcher, woken: &Receiver<()>) {
        // There is one lane per concurrent process, as many as with the other mechanisms, because
        // more processes would get a larger share of a busy machine.
        let work = self.template.work;
        let lanes = work.options.parallel as u64;
        let window = lanes * LANE_DEPTH;
        let (mut over, mut events) = (0, Vec::new());
        let mut next = work.next();
        while next.is_some() || over < self.requested {
            let mut batch = Vec::new();
            while let Some(due) = next {
                // Scheduled requests do not wait for other processes to end.
                if !due.left().is_zero() || (due.at.is_none() && self.requested - over >= window) {
                    break;
                }
                batch.push(self.plan(due));
                next = work.next();
            }
            launcher.spawn_in_lanes(batch);
            let left = match next {
                Some(due) if due.at.is_some() => due.left(),
                Some(_) | None => Duration::from_secs(60),
            };
            if woken.recv_timeout(left) == Err(RecvTimeoutError::Disconnected) {
                panic!("the launcher holds the sender");
            }
            launcher.drain_events(&mut events);
            for event in events.drain(..) {
                if let Some(token) = ended(event) {
                    let lane = usize::try_from(token.0 % lanes).expect("few lanes");
                    self.load[lane] -= 1;
                    over += 1;
                }
            }
        }
        work.done.store(over, Ordering::Relaxed);
    }
}

/// Creates all processes. The launcher reaps each process when it ends, also while it creates
/// others; it cannot postpone that.
pub(crate) fn all_first(work: &Work, strategy: Strategy) {
    let (launcher, woken) = start(work.options.parallel, strategy);
    let template = Template::new(work, Kind::Bare);
    let (mut requested, mut started, mut over) = (0, 0, 0);
    let mut events = Vec::new();
    let mut next = work.next();
    while next.is_some() || over < requested {
        let mut batch = Vec::new();
        while let Some(due) = next
            && requested - started < AHEAD
        {
            batch.push((Token(due.index), template.plan(due)));
            requested += 1;
            next = work.next();
        }
        launcher.spawn_batch(batch);
        let created = next.is_none() && started == requested;
        woken.recv().expect("the launcher holds the sender");
        launcher.drain_events(&mut events);
        for event in events.drain(..) {
            started += u64::from(matches!(event, Event::Started { .. }));
            over += u64::from(ended(event).is_some());
        }
        if !created && next.is_none() && started == requested {
            work.all_created();
        }
    }
    work.done.store(over, Ordering::Relaxed);
}

/// As many threads as `parallel` says each request one process and wait for its end, again and
/// again. The launcher has its default number of threads.
pub(crate) fn for_requesters(work: &Work) {
    let (launcher, woken) = start(0, Strategy::Pool);
    let template = Template::new(work, Kind::Bare);
    let threads = work.options.parallel as u64;
    let running = AtomicUsize::new(work.options.parallel);
    let mut senders = Vec::new();
    std::thread::scope(|scope| {
        for number in 0..threads {
            let (sender, receiver) = sync_channel(1);
            senders.push(sender);
            let (launcher, template, running) = (&launcher, &template, &running);
            scope.spawn(move || {
                while let Some(due) = work.take() {
                    let token = Token(due.index * threads + number);
                    launcher.spawn(token, template.plan(due));
                    receiver.recv().expect("the consumer runs longer");
                    work.done.fetch_add(1, Ordering::Relaxed);
                }
                running.fetch_sub(1, Ordering::Relaxed);
            });
        }
        let mut events = Vec::new();
        while running.load(Ordering::Relaxed) > 0 {
            // The last requester ends without an event.
            let _ = woken.recv_timeout(Duration::from_millis(1));
            launcher.drain_events(&mut events);
            for token in events.drain(..).filter_map(ended) {
                let number = usize::try_from(token.0 % threads).expect("few threads");
                senders[number].send(()).expect("the requester waits");
            }
        }
    });
}

/// A launcher with children that sleep until they are killed.
struct Sleepers {
    launcher: Launcher,
    woken: Receiver<()>,
    events: Vec<Event>,
    /// The process ids, by token.
    pids: Vec<u32>,
}

impl Sleepers {
    fn start(options: &Options) -> Self {
        let (launcher, woken) = start(0, Strategy::Pool);
        let argv = ArgBlock::new([options.program.as_str(), "pause"]).expect("a valid path");
        let plan = bare(SpawnPlan::new(argv, EnvBlock::capture()));
        let tokens = (0..options.children as u64).map(Token);
        launcher.spawn_batch(tokens.map(|token| (token, plan.clone())));
        let mut sleepers = Self {
            launcher,
            woken,
            events: Vec::new(),
            pids: vec![0; options.children],
        };
        sleepers.wait(options.children, |event| {
            matches!(event, Event::Started { .. })
        });
        sleepers
    }

    /// Waits until there were this many events of a kind. Forgets all others.
    fn wait(&mut self, mut count: usize, is_it: fn(&Event) -> bool) {
        while count > 0 {
            self.woken.recv().expect("the launcher holds the sender");
            self.launcher.drain_events(&mut self.events);
            for event in self.events.drain(..) {
                count -= usize::from(is_it(&event));
                match event {
                    Event::Started { token, pid, .. } => {
                        let at = usize::try_from(token.0).expect("few tokens");
                        if let Some(slot) = self.pids.get_mut(at) {
                            *slot = pid;
                        }
                    }
                    Event::Failed { error, .. } => panic!("{error}"),
                    Event::Stalled { .. } | Event::Unkillable { .. } | Event::Exited { .. } => {}
                }
            }
        }
    }
}

/// Returns the nanoseconds of CPU time of this process for one child, from request to end, while
/// others live.
pub(crate) fn one_among_others(options: &Options) -> Vec<u64> {
    let mut sleepers = Sleepers::start(options);
    let argv = ArgBlock::new([&options.program]).expect("a valid path");
    let plan = bare(SpawnPlan::new(argv, EnvBlock::capture()));
    let first = options.children as u64;
    let before = clock_ns(libc::CLOCK_PROCESS_CPUTIME_ID);
    for index in 0..options.count {
        sleepers.launcher.spawn(Token(first + index), plan.clone());
        sleepers.wait(1, |event| matches!(event, Event::Exited { .. }));
    }
    let took = clock_ns(libc::CLOCK_PROCESS_CPUTIME_ID) - before;
    vec![took / options.count]
}

/// Kills the children in reverse order of creation and waits for each. The signals do not come from
/// the launcher, which would also look for descendants of each child among all processes. Returns the nanoseconds of
/// one end: the means of every hundred, first the last ones.
pub(crate) fn in_reverse(options: &Options) -> Vec<u64> {
    let mut sleepers = Sleepers::start(options);
    let mut took = vec![0; options.children / STEP];
    for index in (0..options.children).rev() {
        let before = now_ns();
        let pid = sleepers.pids[index].cast_signed();
        // SAFETY: the call has no memory effects. The child has not ended, so the id is its own.
        unsafe { libc::kill(pid, libc::SIGKILL) };
        sleepers.wait(1, |event| matches!(event, Event::Exited { .. }));
        if let Some(sum) = took.get_mut(index / STEP) {
            *sum += now_ns() - before;
        }
    }
    took.into_iter().map(|sum| sum / STEP as u64).collect()
}
