//! Describes a child: its program, environment, directory, standard streams and limits.
//!
//! A plan is a plain value. It does not open, create or check anything; the spawner thread and the
//! child do that. It refers to data that tasks share ([`ArgBlock`], [`EnvBlock`]).

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

/// The source or target of a standard stream.
#[derive(Debug, Clone, Default)]
pub enum Stdio {
    /// `/dev/null`.
    #[default]
    Null,
    /// The launcher's own stream.
    Inherit,
    /// An open descriptor that the caller shares. The child gets a duplicate.
    Fd(Arc<OwnedFd>),
    /// A file. As standard input, it is read. As an output, it is created (mode 0666 minus the
    /// umask) or truncated.
    ///
    /// A relative path is relative to the plan's working directory. If standard error and standard
    /// output are the same file, even under different names, they share one open file, so that
    /// neither overwrites the other.
    File {
        /// The path of the file.
        path: PathBuf,
    },
    /// These bytes, then end of file. Only valid for standard input; as an output, it means
    /// `/dev/null`.
    Bytes(Arc<[u8]>),
}

/// A set of CPUs in the kernel's layout: one bit per CPU, for any number of CPUs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CpuSet {
    words: Vec<usize>,
}

impl CpuSet {
    /// Creates an empty set.
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

    /// Returns whether the CPU is in the set.
    #[must_use]
    pub fn contains(&self, cpu: u32) -> bool {
        let cpu = cpu as usize;
        self.words
            .get(cpu / WORD_BITS)
            .is_some_and(|word| word & (1 << (cpu % WORD_BITS)) != 0)
    }

    /// Returns whether the set is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }

    /// Returns the kernel's representation.
    pub(crate) fn words(&self) -> &[usize] {
        &self.words
    }
}

/// The number of bits in one word of the kernel's CPU mask.
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

/// A resource limit (`setrlimit`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rlimit {
    /// The number of the resource, for example `libc::RLIMIT_NOFILE`.
    pub resource: u32,
    /// The soft limit; `u64::MAX` means unlimited.
    pub soft: u64,
    /// The hard limit; `u64::MAX` means unlimited.
    pub hard: u64,
}

/// The process group and session of a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProcessGroup {
    /// The process group and session of the parent.
    Inherit,
    /// A new process group in the parent's session.
    New,
    /// A new session, and therefore a new process group.
    NewSession,
}

/// The caller's work before a child is created. It can check whether the child was canceled. A
/// failure includes the path that caused it.
type Work = dyn FnMut(&dyn Fn() -> bool) -> Result<(), (PathBuf, io::Error)> + Send;

/// The work shared by a plan and its clones. `None` once it has succeeded.
#[derive(Clone)]
pub(crate) struct Preparation(Arc<Mutex<Option<Box<Work>>>>);

impl fmt::Debug for Preparation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Preparation")
    }
}

impl Preparation {
    /// Does the work unless it has already been done.
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

/// The description of a child.
///
/// By default, a new plan is suitable for a batch task: it has empty standard input, no output, the
/// working directory of the launcher, a new session, and SIGKILL when the launcher dies.
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
    /// Creates a plan for `argv` in the environment `env`.
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

    /// Returns the name and length of an argument or variable that by itself exceeds the kernel's
    /// limit.
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

    /// Sets the variables that only this task has.
    #[must_use]
    pub fn task_env(mut self, env: TaskEnv) -> Self {
        self.task_env = env;
        self
    }

    /// Sets the working directory. Default: the launcher's.
    #[must_use]
    pub fn cwd(mut self, path: impl Into<PathBuf>) -> Self {
        self.cwd = Some(path.into());
        self
    }

    /// Sets standard input. Default: `/dev/null`.
    #[must_use]
    pub fn stdin(mut self, stdio: Stdio) -> Self {
        self.stdin = stdio;
        self
    }

    /// Sets standard output. Default: `/dev/null`.
    #[must_use]
    pub fn stdout(mut self, stdio: Stdio) -> Self {
        self.stdout = stdio;
        self
    }

    /// Sets standard error. Default: `/dev/null`.
    #[must_use]
    pub fn stderr(mut self, stdio: Stdio) -> Self {
        self.stderr = stdio;
        self
    }

    /// Sets whether the child leads a new session and process group. Default: yes.
    ///
    /// Without a session or [`SpawnPlan::new_group`], signals only reach the child and not its
    /// group, and only a [`SpawnPlan::marker`] allows its orphans to be attributed to it.
    #[must_use]
    pub const fn new_session(mut self, yes: bool) -> Self {
        self.process_group = if yes {
            ProcessGroup::NewSession
        } else {
            ProcessGroup::Inherit
        };
        self
    }

    /// Makes the child the leader of a new process group in the launcher's session.
    ///
    /// This is cheaper than a session, for which many kernels create a scheduling group, and
    /// signals still reach the whole group. However, the child may keep the launcher's terminal,
    /// and only a [`SpawnPlan::marker`] allows finding descendants that change their group.
    #[must_use]
    pub const fn new_group(mut self) -> Self {
        self.process_group = ProcessGroup::New;
        self
    }

    /// Sets the signal that the child gets when the launcher dies; `None` means no signal. Default:
    /// SIGKILL.
    ///
    /// The kernel clears it if the program is set-user-id or gains capabilities. The
    /// `spawn-blocking` strategy ignores it, because the thread that creates the process may end
    /// before the process does.
    #[must_use]
    pub const fn death_signal(mut self, signal: Option<i32>) -> Self {
        self.death_signal = signal;
        self
    }

    /// Sets the CPUs that the child may run on. Default: the CPUs of the launcher's spawner
    /// threads.
    #[must_use]
    pub fn affinity(mut self, cpus: CpuSet) -> Self {
        self.affinity = Some(cpus);
        self
    }

    /// Sets the file mode creation mask. It also applies to output files opened by path. Default:
    /// the launcher's.
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

    /// Sets the nice value, −20 to 19.
    #[must_use]
    pub const fn nice(mut self, value: i32) -> Self {
        self.nice = Some(value);
        self
    }

    /// Sets the child's initial control group (cgroup v2), given as a descriptor of its directory.
    #[must_use]
    pub fn cgroup(mut self, directory: Arc<OwnedFd>) -> Self {
        self.cgroup = Some(directory);
        self
    }

    /// Sets whether to create a missing working directory and a missing parent directory of an
    /// output file. Default: no.
    ///
    /// Directories are only checked and created after a spawn has failed because one is missing.
    /// The spawn is then retried.
    #[must_use]
    pub const fn create_dirs(mut self, yes: bool) -> Self {
        self.create_dirs = yes;
        self
    }

    /// Selects the output files that have predictable names. A link to such a file or its directory
    /// is only followed if it belongs to this user or root; see
    /// [`hq_private::create_output`].
    #[must_use]
    pub fn guard_outputs(mut self, can_be_guessed: impl Fn(&Path) -> bool) -> Self {
        let is_guarded =
            |stream: &Stdio| matches!(stream, Stdio::File { path } if can_be_guessed(path));
        self.guarded = [&self.stdout, &self.stderr].map(is_guarded);
        self
    }

    /// Sets whether [`Event::Started`](crate::Event::Started) wakes the consumer at once, even if
    /// the child is short-lived. Default: no.
    #[must_use]
    pub const fn report_start_at_once(mut self, yes: bool) -> Self {
        self.tells_start_at_once = yes;
        self
    }

    /// Overrides [`LauncherConfig::event_delay`](crate::LauncherConfig::event_delay) for this
    /// child.
    #[must_use]
    pub const fn event_delay(mut self, delay: Duration) -> Self {
        self.event_delay = Some(delay);
        self
    }

    /// Sets the adjustment of the out-of-memory score, from −1000 to 1000. Processes with higher
    /// scores are killed first.
    #[must_use]
    pub const fn oom_score_adj(mut self, value: i16) -> Self {
        self.oom_score_adj = Some(value);
        self
    }

    /// Sets a `NAME=value` entry of the child's environment that no other task has.
    ///
    /// It identifies descendants that left the child's session. They are then ended together with
    /// the child.
    #[must_use]
    pub fn marker(mut self, entry: impl Into<Vec<u8>>) -> Self {
        self.marker = Some(entry.into());
        self
    }

    /// Sets work to do right before the child is created, on the thread that creates it, so that a
    /// file system that does not respond blocks nothing else.
    ///
    /// If the work fails, the spawn fails with the error and its path ([`Stage::Prepare`]); a
    /// transient failure is retried. Successful work is not repeated. The work gets a function that
    /// returns whether the spawn was terminated in the meantime. Work that changes shared state
    /// checks this again after each call that may hang.
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
