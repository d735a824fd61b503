//! Describes one child: program, environment, directory, standard streams, limits.
//!
//! A plan is a plain value. It does not open, create or check anything; that happens on the spawner
//! thread and in the child. It refers to data that tasks share ([`ArgBlock`], [`EnvBlock`]).

use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::env::{ArgBlock, EnvBlock, TaskEnv};
use crate::error::{SpawnError, Stage};
use crate::sys;

/// Source or target of a standard stream.
#[derive(Debug, Clone, Default)]
pub enum Stdio {
    /// `/dev/null`.
    #[default]
    Null,
    /// The launcher's own stream.
    Inherit,
    /// An open descriptor, shared with the caller. The child gets a duplicate.
    Fd(Arc<OwnedFd>),
    /// A file. Standard input reads it; an output creates it (mode 0666 minus the umask) and
    /// truncates it.
    ///
    /// A relative path is relative to the plan's working directory. If standard error and standard
    /// output are the same file, under any names, both share one open file, so that neither
    /// overwrites the other.
    File {
        /// The file's path.
        path: PathBuf,
    },
    /// These bytes, then end of file. Only for standard input; as an output it means `/dev/null`.
    Bytes(Arc<[u8]>),
}

/// A set of CPUs in the kernel's layout: one bit per CPU, any number of CPUs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CpuSet {
    words: Vec<usize>,
}

impl CpuSet {
    /// No CPU.
    #[must_use]
    pub const fn new() -> Self {
        Self { words: Vec::new() }
    }

    /// Adds a CPU by its number.
    pub fn insert(&mut self, cpu: u32) {
        let cpu = cpu as usize;
        let word = cpu / WORD_BITS;
        if self.words.len() <= word {
            self.words.resize(word + 1, 0);
        }
        self.words[word] |= 1 << (cpu % WORD_BITS);
    }

    /// Whether the CPU is in the set.
    #[must_use]
    pub fn contains(&self, cpu: u32) -> bool {
        let cpu = cpu as usize;
        self.words
            .get(cpu / WORD_BITS)
            .is_some_and(|word| word & (1 << (cpu % WORD_BITS)) != 0)
    }

    /// Whether there is no CPU in the set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }

    /// The kernel's representation.
    pub(crate) fn words(&self) -> &[usize] {
        &self.words
    }
}

/// Bits in one word of the kernel's CPU mask.
const WORD_BITS: usize = usize::BITS as usize;

impl FromIterator<u32> for CpuSet {
    fn from_iter<I: IntoIterator<Item = u32>>(cpus: I) -> Self {
        let mut set = Self::new();
        for cpu in cpus {
            set.insert(cpu);
        }
        set
    }
}

/// One resource limit (`setrlimit`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rlimit {
    /// The resource's number, for example `libc::RLIMIT_NOFILE`.
    pub resource: u32,
    /// Soft limit; `u64::MAX` is unlimited.
    pub soft: u64,
    /// Hard limit; `u64::MAX` is unlimited.
    pub hard: u64,
}

/// Process group and session of a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProcessGroup {
    /// Process group and session of the parent.
    Inherit,
    /// A new process group in the parent's session.
    New,
    /// A new session, and so a new process group.
    NewSession,
}

/// The caller's work before a child is created. It can ask whether the child was canceled. A
/// failure names its path.
type Work = dyn FnMut(&dyn Fn() -> bool) -> Result<(), (PathBuf, io::Error)> + Send;

/// The work of one plan and its clones: `None` once it has succeeded.
#[derive(Clone)]
pub(crate) struct Preparation(Arc<Mutex<Option<Box<Work>>>>);

impl fmt::Debug for Preparation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Preparation")
    }
}

impl Preparation {
    /// Does the work unless it has been done.
    pub(crate) fn run(&self, is_cancelled: &dyn Fn() -> bool) -> Result<(), SpawnError> {
        let mut work = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(work) = work.as_mut() {
            work(is_cancelled).map_err(|(path, error)| {
                let errno = error.raw_os_error().unwrap_or(libc::EIO);
                SpawnError::new(Stage::Prepare, errno, Some(path))
            })?;
        }
        *work = None;
        Ok(())
    }
}

/// Description of one child.
///
/// A new plan has the program and defaults that suit a batch task: empty standard input, no output,
/// the working directory of the launcher, a new session, and SIGKILL when the launcher dies.
#[derive(Debug, Clone)]
pub struct SpawnPlan {
    pub(crate) argv: ArgBlock,
    pub(crate) env: EnvBlock,
    pub(crate) task_env: TaskEnv,
    pub(crate) cwd: Option<PathBuf>,
    pub(crate) stdin: Stdio,
    pub(crate) stdout: Stdio,
    pub(crate) stderr: Stdio,
    pub(crate) process_group: ProcessGroup,
    pub(crate) death_signal: Option<i32>,
    pub(crate) affinity: Option<CpuSet>,
    pub(crate) umask: Option<u32>,
    pub(crate) rlimits: Vec<Rlimit>,
    pub(crate) nice: Option<i32>,
    pub(crate) cgroup: Option<Arc<OwnedFd>>,
    pub(crate) create_dirs: bool,
    pub(crate) guarded: [bool; 2],
    pub(crate) oom_score_adj: Option<i16>,
    pub(crate) tells_start_at_once: bool,
    pub(crate) event_delay: Option<Duration>,
    pub(crate) marker: Option<Vec<u8>>,
    pub(crate) preparation: Option<Preparation>,
}

impl SpawnPlan {
    /// A plan for `argv` in the environment `env`.
    #[must_use]
    pub const fn new(argv: ArgBlock, env: EnvBlock) -> Self {
        Self {
            argv,
            env,
            task_env: TaskEnv::new(),
            cwd: None,
            stdin: Stdio::Null,
            stdout: Stdio::Null,
            stderr: Stdio::Null,
            process_group: ProcessGroup::NewSession,
            death_signal: Some(libc::SIGKILL),
            affinity: None,
            umask: None,
            rlimits: Vec::new(),
            nice: None,
            cgroup: None,
            create_dirs: false,
            guarded: [false; 2],
            oom_score_adj: None,
            tells_start_at_once: false,
            event_delay: None,
            marker: None,
            preparation: None,
        }
    }

    /// Name and length of an argument or variable that alone exceeds the kernel's limit.
    pub(crate) fn too_long(&self) -> Option<(String, usize)> {
        let strings_max = sys::page_size().saturating_mul(32);
        let is_long = |len: usize| (len >= strings_max).then_some(len);
        let mut args = self.argv.iter().enumerate();
        let arg = args.find_map(|(index, arg)| {
            Some((format!("argument {index}"), is_long(arg.as_bytes().len())?))
        });
        let variable = |(name, value): (&OsStr, &OsStr)| {
            let len = is_long(name.as_bytes().len() + 1 + value.as_bytes().len())?;
            Some((format!("the variable {}", name.display()), len))
        };
        arg.or_else(|| self.task_env.iter().find_map(variable))
            .or_else(|| self.env.iter().find_map(variable))
    }

    /// Variables of this task only.
    #[must_use]
    pub fn task_env(mut self, env: TaskEnv) -> Self {
        self.task_env = env;
        self
    }

    /// Working directory. Without it the child stays in the launcher's.
    #[must_use]
    pub fn cwd(mut self, path: impl Into<PathBuf>) -> Self {
        self.cwd = Some(path.into());
        self
    }

    /// Standard input. Default: `/dev/null`.
    #[must_use]
    pub fn stdin(mut self, stdio: Stdio) -> Self {
        self.stdin = stdio;
        self
    }

    /// Standard output. Default: `/dev/null`.
    #[must_use]
    pub fn stdout(mut self, stdio: Stdio) -> Self {
        self.stdout = stdio;
        self
    }

    /// Standard error. Default: `/dev/null`.
    #[must_use]
    pub fn stderr(mut self, stdio: Stdio) -> Self {
        self.stderr = stdio;
        self
    }

    /// Whether the child leads a new session and process group. Default: yes.
    ///
    /// Without it, and without [`SpawnPlan::new_group`], signals reach only the child and not its
    /// group, and only a [`SpawnPlan::marker`] attributes its orphans to it.
    #[must_use]
    pub const fn new_session(mut self, yes: bool) -> Self {
        self.process_group = if yes {
            ProcessGroup::NewSession
        } else {
            ProcessGroup::Inherit
        };
        self
    }

    /// The child leads a new process group in the launcher's session.
    ///
    /// That is cheaper than a session, for which many kernels create a scheduling group; signals
    /// still reach the whole group. But the child may keep the launcher's terminal, and only a
    /// [`SpawnPlan::marker`] finds descendants that change their group.
    #[must_use]
    pub const fn new_group(mut self) -> Self {
        self.process_group = ProcessGroup::New;
        self
    }

    /// The signal that the child gets when the launcher dies; `None` = no signal. Default: SIGKILL.
    ///
    /// The kernel clears it when the program is set-user-id or gains capabilities. The
    /// `spawn-blocking` strategy ignores it, because the creating thread may end before the process
    /// there.
    #[must_use]
    pub const fn death_signal(mut self, signal: Option<i32>) -> Self {
        self.death_signal = signal;
        self
    }

    /// CPUs that the child may run on. Default: the CPUs of the launcher's spawner threads.
    #[must_use]
    pub fn affinity(mut self, cpus: CpuSet) -> Self {
        self.affinity = Some(cpus);
        self
    }

    /// File mode creation mask. Default: the launcher's. It also applies to output files opened by
    /// path.
    #[must_use]
    pub const fn umask(mut self, mask: u32) -> Self {
        self.umask = Some(mask);
        self
    }

    /// Adds a resource limit.
    #[must_use]
    pub fn rlimit(mut self, limit: Rlimit) -> Self {
        self.rlimits.push(limit);
        self
    }

    /// Nice value, −20 to 19.
    #[must_use]
    pub const fn nice(mut self, value: i32) -> Self {
        self.nice = Some(value);
        self
    }

    /// Directory descriptor of the child's initial cgroup v2 control group.
    #[must_use]
    pub fn cgroup(mut self, directory: Arc<OwnedFd>) -> Self {
        self.cgroup = Some(directory);
        self
    }

    /// Whether to create a missing working directory, or a missing parent of an output file.
    /// Default: no.
    ///
    /// Only a spawn that fails because of it creates or checks anything; the spawn is then retried.
    #[must_use]
    pub const fn create_dirs(mut self, yes: bool) -> Self {
        self.create_dirs = yes;
        self
    }

    /// Selects output files with predictable names. A link to such a file or its directory is only
    /// followed if this user or root has created it; see [`create_guarded`](crate::create_guarded).
    #[must_use]
    pub fn guard_outputs(mut self, can_be_guessed: impl Fn(&Path) -> bool) -> Self {
        let is_guarded =
            |stream: &Stdio| matches!(stream, Stdio::File { path } if can_be_guessed(path));
        self.guarded = [&self.stdout, &self.stderr].map(is_guarded);
        self
    }

    /// Whether [`Event::Started`](crate::Event::Started) wakes the consumer at once, however short
    /// the child is. Default: no.
    #[must_use]
    pub const fn report_start_at_once(mut self, yes: bool) -> Self {
        self.tells_start_at_once = yes;
        self
    }

    /// Replaces [`LauncherConfig::event_delay`](crate::LauncherConfig::event_delay) for this child.
    #[must_use]
    pub const fn event_delay(mut self, delay: Duration) -> Self {
        self.event_delay = Some(delay);
        self
    }

    /// Adjustment of the out-of-memory score, −1000 to 1000; positive values are killed first.
    #[must_use]
    pub const fn oom_score_adj(mut self, value: i16) -> Self {
        self.oom_score_adj = Some(value);
        self
    }

    /// A `NAME=value` entry of the child's environment that no other task has.
    ///
    /// It identifies descendants that left the child's session, which are then ended with the
    /// child.
    #[must_use]
    pub fn marker(mut self, entry: impl Into<Vec<u8>>) -> Self {
        self.marker = Some(entry.into());
        self
    }

    /// Work to do right before the child is created, on the thread that creates it, so that a file
    /// system that does not respond blocks nothing else.
    ///
    /// A failure and its path become a failure of the spawn ([`Stage::Prepare`]); a transient one
    /// is retried. Successful work is not repeated. The work gets a function that returns whether the
    /// spawn was terminated meanwhile: work that changes shared state checks it again after each
    /// call that may hang.
    #[must_use]
    pub fn prepare(
        mut self,
        work: impl FnMut(&dyn Fn() -> bool) -> Result<(), (PathBuf, io::Error)> + Send + 'static,
    ) -> Self {
        self.preparation = Some(Preparation(Arc::new(Mutex::new(Some(Box::new(work))))));
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_sets_have_no_upper_limit() {
        let set: CpuSet = [0, 63, 64, 5000].into_iter().collect();
        for cpu in [0, 63, 64, 5000] {
            assert!(set.contains(cpu));
        }
        assert!(!set.contains(1));
        assert!(!set.contains(9000));
        assert!(CpuSet::new().is_empty());
        assert_eq!(set.words().len(), 5000 / WORD_BITS + 1);
    }
}
