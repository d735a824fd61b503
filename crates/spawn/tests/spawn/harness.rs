//! A launcher with a blocking consumer, and helpers to inspect processes from outside.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use hq_spawn::{
    ArgBlock, Backend, EnvBlock, Event, ExitStatus, Lane, Launcher, LauncherConfig, SpawnError,
    SpawnPlan, Token,
};
use tempfile::TempDir;

/// Long enough for any machine: a test that takes longer has failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A launcher and everything it has reported.
pub(crate) struct Rig {
    pub(crate) launcher: Launcher,
    woken: Receiver<()>,
    next_token: AtomicU64,
    events: Vec<Event>,
}

/// How a child ended.
#[derive(Debug, Clone)]
pub(crate) enum End {
    Exited(ExitStatus, Event),
    Failed(SpawnError),
}

/// Returns whether this kernel supports the backend.
pub(crate) fn has(backend: Backend) -> bool {
    let features = hq_spawn::features();
    match backend {
        Backend::ClonePidfd => features.clone_pidfd && features.shared_memory,
        Backend::PosixSpawnWait => features.shared_memory,
        Backend::Fork => true,
        other => panic!("a rung that is not known: {other:?}"),
    }
}

/// Returns the backends that this kernel supports, best first.
pub(crate) fn rungs() -> Vec<Backend> {
    let rungs = Backend::ALL.into_iter();
    rungs.filter(|backend| has(*backend)).collect()
}

/// Returns the best backend on this kernel.
pub(crate) fn best() -> Backend {
    hq_spawn::features().best()
}

impl Rig {
    pub(crate) fn new(backend: Backend) -> Self {
        Self::with(|config| config.backend = Some(backend))
    }

    pub(crate) fn with(adjust: impl FnOnce(&mut LauncherConfig)) -> Self {
        let (sender, woken) = sync_channel(1);
        let mut config = LauncherConfig::new(Arc::new(move || {
            let _ = sender.try_send(());
        }));
        config.threads = 2;
        adjust(&mut config);
        Self {
            launcher: Launcher::start(config).unwrap(),
            woken,
            next_token: AtomicU64::new(1),
            events: Vec::new(),
        }
    }

    pub(crate) fn spawn(&self, plan: SpawnPlan) -> Token {
        let token = Token(self.next_token.fetch_add(1, Ordering::Relaxed));
        self.launcher.spawn(token, plan);
        token
    }

    /// Spawns many children with one call.
    pub(crate) fn spawn_batch(&self, plans: impl Iterator<Item = SpawnPlan>) -> Vec<Token> {
        let plans: Vec<_> = plans
            .map(|plan| (Token(self.next_token.fetch_add(1, Ordering::Relaxed)), plan))
            .collect();
        let tokens = plans.iter().map(|(token, _)| *token).collect();
        self.launcher.spawn_batch(plans);
        tokens
    }

    /// Spawns many children that run one after another.
    pub(crate) fn spawn_in_lane(
        &self,
        lane: Lane,
        plans: impl Iterator<Item = SpawnPlan>,
    ) -> Vec<Token> {
        let plans: Vec<_> = plans
            .map(|plan| {
                let token = Token(self.next_token.fetch_add(1, Ordering::Relaxed));
                (lane, token, plan)
            })
            .collect();
        let tokens = plans.iter().map(|(_, token, _)| *token).collect();
        self.launcher.spawn_in_lanes(plans);
        tokens
    }

    /// Waits until all of them are running or have ended.
    #[track_caller]
    pub(crate) fn wait_started(&mut self, tokens: &[Token]) {
        let mut missing: HashSet<Token> = tokens.iter().copied().collect();
        let mut seen = 0;
        loop {
            for event in &self.events[seen..] {
                match event {
                    Event::Started { token, .. } => missing.remove(token),
                    Event::Exited { .. } | Event::Stalled { .. } | Event::Unkillable { .. } => {
                        false
                    }
                    Event::Failed { error, .. } => panic!("expected a running child, got {error}"),
                };
            }
            if missing.is_empty() {
                return;
            }
            seen = self.events.len();
            self.receive(PATIENCE);
        }
    }

    /// Spawns a child and waits for it to end.
    pub(crate) fn run(&mut self, plan: SpawnPlan) -> End {
        let token = self.spawn(plan);
        self.end(token)
    }

    /// Spawns a child, waits for it, and expects success.
    #[track_caller]
    pub(crate) fn succeed(&mut self, plan: SpawnPlan) -> Event {
        match self.run(plan) {
            End::Exited(ExitStatus::Code(0), event) => event,
            other @ (End::Exited(..) | End::Failed(_)) => {
                panic!("expected success, got {other:?}")
            }
        }
    }

    /// Spawns a child, waits, and expects that no process was created.
    #[track_caller]
    pub(crate) fn fail(&mut self, plan: SpawnPlan) -> SpawnError {
        match self.run(plan) {
            End::Failed(error) => error,
            other @ End::Exited(..) => panic!("expected a failed spawn, got {other:?}"),
        }
    }

    /// Waits for a child to run, and returns its process id.
    #[track_caller]
    pub(crate) fn pid(&mut self, token: Token) -> u32 {
        self.wait(token, |event| match event {
            Event::Started { pid, .. } => Some(*pid),
            Event::Failed { error, .. } => panic!("expected a running child, got {error}"),
            Event::Exited { .. } | Event::Stalled { .. } | Event::Unkillable { .. } => None,
        })
    }

    /// Waits for the last event of a token.
    #[track_caller]
    pub(crate) fn end(&mut self, token: Token) -> End {
        self.wait(token, |event| match event {
            Event::Started { .. } | Event::Stalled { .. } | Event::Unkillable { .. } => None,
            Event::Failed { error, .. } => Some(End::Failed(error.clone())),
            Event::Exited { status, .. } => Some(End::Exited(*status, event.clone())),
        })
    }

    /// Waits for an event of the token that `wanted` accepts.
    #[track_caller]
    pub(crate) fn wait<T>(&mut self, token: Token, wanted: impl Fn(&Event) -> Option<T>) -> T {
        let limit = Instant::now() + PATIENCE;
        loop {
            let found = self
                .events
                .iter()
                .filter(|event| event.token() == token)
                .find_map(&wanted);
            if let Some(found) = found {
                return found;
            }
            self.receive(limit.saturating_duration_since(Instant::now()));
        }
    }

    #[track_caller]
    fn receive(&mut self, patience: Duration) {
        match self.woken.recv_timeout(patience) {
            Ok(()) => self.launcher.drain_events(&mut self.events),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                panic!("no event any more; last seen: {:?}", self.events.last())
            }
        }
    }

    /// Waits until all tokens have ended, and returns how they ended.
    #[track_caller]
    pub(crate) fn ends(&mut self, tokens: &[Token]) -> HashMap<Token, End> {
        let mut missing: HashSet<Token> = tokens.iter().copied().collect();
        let mut ends = HashMap::new();
        let mut seen = 0;
        loop {
            for event in &self.events[seen..] {
                let end = match event {
                    Event::Started { .. } | Event::Stalled { .. } | Event::Unkillable { .. } => {
                        continue;
                    }
                    Event::Failed { error, .. } => End::Failed(error.clone()),
                    Event::Exited { status, .. } => End::Exited(*status, event.clone()),
                };
                if missing.remove(&event.token()) {
                    ends.insert(event.token(), end);
                }
            }
            if missing.is_empty() {
                return ends;
            }
            seen = self.events.len();
            self.receive(PATIENCE);
        }
    }

    /// Drops all events so far, for long runs.
    pub(crate) fn forget(&mut self) {
        self.events.clear();
    }

    /// Returns all events so far.
    pub(crate) fn events(&self) -> &[Event] {
        &self.events
    }
}

/// Returns a plan for `/bin/sh -c script` with this process's environment.
pub(crate) fn sh(script: &str) -> SpawnPlan {
    command(&["/bin/sh", "-c", script])
}

pub(crate) fn command(argv: &[&str]) -> SpawnPlan {
    SpawnPlan::new(ArgBlock::new(argv).unwrap(), EnvBlock::capture())
}

/// Returns a number from the environment, which requests a longer run than usual.
#[track_caller]
pub(crate) fn number_from_env(name: &str, default: usize) -> usize {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

/// Compiles a small static C program. Returns `None` if there is no compiler.
pub(crate) fn compiled(dir: &TempDir, name: &str, source: &str) -> Option<PathBuf> {
    let (from, to) = (dir.path().join(format!("{name}.c")), dir.path().join(name));
    fs::write(&from, source).unwrap();
    let status = Command::new("cc")
        .args(["-O2", "-static", "-o"])
        .args([&to, &from])
        .stderr(Stdio::null())
        .status();
    status.is_ok_and(|status| status.success()).then_some(to)
}

/// Polls until `condition` returns a value.
#[track_caller]
pub(crate) fn eventually<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let limit = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(Instant::now() < limit, "never happened: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Waits for a file to contain at least `lines` complete lines, and returns them.
#[track_caller]
pub(crate) fn eventually_lines(path: &Path, lines: usize) -> Vec<String> {
    eventually(&format!("{lines} lines in {}", path.display()), || {
        let text = fs::read_to_string(path).ok()?;
        let complete: Vec<_> = text
            .split_inclusive('\n')
            .filter(|line| line.ends_with('\n'))
            .collect();
        (complete.len() >= lines)
            .then(|| complete.iter().map(|line| line.trim().to_owned()).collect())
    })
}

/// Returns whether a process exists and is not a zombie.
pub(crate) fn is_alive(pid: u32) -> bool {
    stat_fields(pid).is_some_and(|fields| !matches!(fields[0].as_str(), "Z" | "X"))
}

/// Returns the fields of `/proc/PID/stat` after the name: state, parent, group, session, …
pub(crate) fn stat_fields(pid: u32) -> Option<Vec<String>> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = text.rsplit_once(") ")?;
    Some(rest.split_whitespace().map(str::to_owned).collect())
}
