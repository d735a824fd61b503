//! Converts a plan into what the child needs: C strings, null-terminated pointer lists, open flags.
//!
//! All buffers belong to a [`Scratch`], which a spawner thread reuses for every task, so a spawn
//! does not allocate memory for each string.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_uint};
use std::io::Write as _;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::child::{ChildPlan, ChildReport, Descriptors, StdioStep};
use crate::error::{SpawnError, Stage};
use crate::label::Labels;
use crate::placement::CpuPin;
use crate::plan::{SpawnPlan, Stdio};
use crate::raw::{self, KernelRlimit};
use crate::signal;
use crate::sys;

/// The settings shared by all spawns of a launcher.
#[derive(Debug)]
pub(crate) struct Common {
    /// The process id of the launcher.
    pub(crate) parent: libc::pid_t,
    /// `/dev/null`. Its number is above 2.
    pub(crate) null: BorrowedFd<'static>,
    /// Whether the kernel has `close_range` with `CLOSE_RANGE_UNSHARE`.
    pub(crate) close_range: bool,
    /// Whether a plan's parent-death signal is honored.
    pub(crate) death_signal: bool,
    /// The labels for plans with a marker, if available.
    pub(crate) labels: Option<Labels>,
    /// The children's limit on open descriptors, if the launcher has raised its own limit.
    pub(crate) descriptor_limit: Option<KernelRlimit>,
}

/// The buffers of one spawner thread.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    argv: Vec<*const c_char>,
    envp: Vec<*const c_char>,
    /// C strings, one after another.
    text: Vec<u8>,
    rlimits: Vec<(c_uint, KernelRlimit)>,
    /// Duplicates of descriptors that have the numbers of standard streams.
    moved: Vec<OwnedFd>,
    ignored: signal::Ignored,
}

// The ranges of prepared strings in `Scratch::text`.
struct Places {
    cwd: Option<Range<usize>>,
    streams: [Option<Range<usize>>; 3],
    /// The directories and names of guarded outputs.
    guarded: [Option<[Range<usize>; 2]>; 2],
    oom_score: Range<usize>,
}

/// The flags for opening an output. It is opened non-blocking, because a FIFO without a reader
/// would otherwise block the child and the thread that creates it. The child clears the flag.
const OUTPUT: c_int = libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC | libc::O_NONBLOCK;

/// The stage and the open flags of each standard stream.
const STREAMS: [(Stage, c_int); 3] = [
    // Standard input is opened blocking: a reader of a FIFO expects to wait for its writer, and
    // would otherwise see end of file immediately.
    (Stage::Stdin, libc::O_RDONLY),
    (Stage::Stdout, OUTPUT),
    (Stage::Stderr, OUTPUT),
];

impl Scratch {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Prepares `plan` and passes it to `spawn`.
    ///
    /// `found` is the program's path, or `None` to execute the plan's program as given. With
    /// `share_descriptors`, the child may start with the parent's descriptor table. `pin` is the
    /// pinning that the child releases. `label` is the limit that all its descendants inherit.
    pub(crate) fn with_child_plan<T>(
        &mut self,
        plan: &SpawnPlan,
        found: Option<&Arc<CStr>>,
        common: &Common,
        share_descriptors: bool,
        (pin, label): (Option<CpuPin<'_>>, Option<KernelRlimit>),
        spawn: impl FnOnce(&mut ChildPlan<'_>) -> Result<T, SpawnError>,
    ) -> Result<T, SpawnError> {
        let ignored_signals = self.ignored.signals();
        let places = self.fill(plan, common, label)?;
        let moved_before = self.moved.len();
        let mut fds = [-1; 3];
        for (index, stream) in [&plan.stdin, &plan.stdout, &plan.stderr]
            .into_iter()
            .enumerate()
        {
            fds[index] = self.source(index, stream, common)?;
        }
        let steps = [&plan.stdin, &plan.stdout, &plan.stderr];
        let cgroup = plan.cgroup.as_deref().map_or(-1, sys::raw);
        let highest = fds.iter().copied().max().unwrap_or(-1).max(cgroup);
        let step = |index: usize| -> StdioStep<'_> {
            let (_, flags) = STREAMS[index];
            match (steps[index], &places.streams[index]) {
                (Stdio::Inherit, _) => StdioStep::Inherit,
                (Stdio::Bytes(bytes), _) if index == 0 => StdioStep::Bytes(bytes),
                (Stdio::File { .. }, Some(place)) => {
                    let path = self.c_str(place);
                    let mut flags = flags | libc::O_CLOEXEC | libc::O_NOCTTY;
                    if path == c"/dev/null" {
                        flags &= !libc::O_NONBLOCK;
                    }
                    match index.checked_sub(1).map(|output| &places.guarded[output]) {
                        Some(Some([dir, name])) => StdioStep::Guarded {
                            dir: self.c_str(dir),
                            name: self.c_str(name),
                            flags: flags | libc::O_NOFOLLOW,
                        },
                        Some(None) | None => StdioStep::Path(path, flags),
                    }
                }
                (Stdio::File { .. }, None) => StdioStep::SameAsStdout,
                (Stdio::Null | Stdio::Fd(_) | Stdio::Bytes(_), _) => StdioStep::Fd(fds[index]),
            }
        };
        let mut child = ChildPlan {
            report: Cell::new(ChildReport::default()),
            report_fd: -1,
            program: found.map_or_else(|| plan.argv.program_c(), |path| &**path),
            argv: &self.argv,
            envp: &self.envp,
            cwd: places.cwd.as_ref().map(|place| self.c_str(place)),
            stdin: step(0),
            stdout: step(1),
            stderr: step(2),
            descriptors: descriptors(common, share_descriptors, highest),
            reset_signals: signal::ALL_SIGNALS,
            ignored_signals,
            process_group: plan.process_group,
            death_signal: plan
                .death_signal
                .filter(|_| common.death_signal)
                .unwrap_or(0),
            parent: common.parent,
            affinity: plan.affinity.as_ref().map_or(&[], |set| set.words()),
            pin,
            umask: plan.umask,
            rlimits: &self.rlimits,
            nice: plan.nice,
            cgroup,
            oom_score: &self.text[places.oom_score.clone()],
        };
        let result = spawn(&mut child);
        self.moved.truncate(moved_before);
        result
    }

    /// Fills the buffers. Allocates nothing once they have grown to the size of a task.
    fn fill(
        &mut self,
        plan: &SpawnPlan,
        common: &Common,
        label: Option<KernelRlimit>,
    ) -> Result<Places, SpawnError> {
        self.argv.clear();
        plan.argv.gather(&mut self.argv);
        self.argv.push(std::ptr::null());
        self.envp.clear();
        plan.env.gather(&plan.task_env, &mut self.envp);
        self.envp.push(std::ptr::null());
        self.rlimits.clear();
        // This limit comes first, so that a limit of the plan overrides it.
        self.rlimits.extend(
            common
                .descriptor_limit
                .map(|limit| (raw::RLIMIT_NOFILE, limit)),
        );
        self.rlimits
            .extend(label.map(|label| (raw::RLIMIT_LOCKS, label)));
        self.rlimits.extend(plan.rlimits.iter().map(|limit| {
            let kernel = KernelRlimit {
                soft: limit.soft,
                hard: limit.hard,
            };
            (limit.resource, kernel)
        }));
        self.text.clear();
        let cwd = match &plan.cwd {
            Some(path) => Some(self.put(path)?),
            None => None,
        };
        let mut streams = [None, None, None];
        let mut guarded = [None, None];
        for (index, stream) in [&plan.stdin, &plan.stdout, &plan.stderr]
            .into_iter()
            .enumerate()
        {
            if let Stdio::File { path } = stream
                && !(index == 2 && shares_stdout(plan))
            {
                streams[index] = Some(self.put(path)?);
                if let Some(output) = index.checked_sub(1).filter(|output| plan.guarded[*output])
                    && let (Some(dir), Some(name)) = (path.parent(), path.file_name())
                {
                    guarded[output] = Some([self.put(dir)?, self.put(Path::new(name))?]);
                }
            }
        }
        let start = self.text.len();
        if let Some(score) = plan.oom_score_adj {
            // Writing to a vector cannot fail.
            let _ = write!(self.text, "{score}");
        }
        Ok(Places {
            cwd,
            streams,
            guarded,
            oom_score: start..self.text.len(),
        })
    }

    fn put(&mut self, path: &Path) -> Result<Range<usize>, SpawnError> {
        let bytes = path.as_os_str().as_bytes();
        if bytes.contains(&0) {
            return Err(SpawnError::new(
                Stage::Encode,
                libc::EINVAL,
                Some(path.to_path_buf()),
            ));
        }
        let start = self.text.len();
        self.text.extend_from_slice(bytes);
        self.text.push(0);
        Ok(start..self.text.len())
    }

    fn c_str(&self, place: &Range<usize>) -> &CStr {
        // `put` has checked that the NUL it appended is the only one.
        CStr::from_bytes_with_nul(&self.text[place.clone()]).unwrap_or_default()
    }

    /// Returns the descriptor to duplicate for a stream, or -1 if there is none.
    fn source(
        &mut self,
        index: usize,
        stream: &Stdio,
        common: &Common,
    ) -> Result<c_int, SpawnError> {
        match stream {
            Stdio::Null => Ok(sys::raw(&common.null)),
            Stdio::Bytes(_) if index > 0 => Ok(sys::raw(&common.null)),
            Stdio::Bytes(_) | Stdio::Inherit | Stdio::File { .. } => Ok(-1),
            Stdio::Fd(fd) if sys::raw(fd) > 2 => Ok(sys::raw(fd)),
            Stdio::Fd(fd) => {
                // An earlier step of the child would overwrite the descriptor.
                let moved = sys::duplicate_above_stdio(fd.as_fd()).map_err(|error| {
                    let (stage, _) = STREAMS[index];
                    SpawnError::new(stage, error.raw_os_error().unwrap_or(0), None)
                })?;
                let number = sys::raw(&moved);
                self.moved.push(moved);
                Ok(number)
            }
        }
    }
}

fn descriptors(common: &Common, share: bool, highest: c_int) -> Descriptors {
    match (common.close_range, share) {
        (true, true) => {
            let from = highest.saturating_add(1).max(3).cast_unsigned();
            // `/dev/null` is close-on-exec. Nothing is known about other copies.
            let only_null = from == 4 && sys::raw(&common.null) == 3;
            Descriptors::Unshare {
                from,
                sweep: from > 3 && !only_null,
            }
        }
        (true, false) => Descriptors::Sweep,
        (false, _) => Descriptors::Trust,
    }
}

/// Returns whether standard error is the same file as standard output and must share its open file.
fn shares_stdout(plan: &SpawnPlan) -> bool {
    match (&plan.stdout, &plan.stderr) {
        (Stdio::File { path: out }, Stdio::File { path: err }) => out == err,
        _ => false,
    }
}

/// Returns the path of a failed step: a file, a directory, or the program for which no process
/// could be created.
pub(crate) fn path_of(
    stage: Stage,
    plan: &SpawnPlan,
    found: Option<&Arc<CStr>>,
) -> Option<PathBuf> {
    let file = |stream: &Stdio| match stream {
        Stdio::File { path } => Some(path.clone()),
        Stdio::Null | Stdio::Inherit | Stdio::Fd(_) | Stdio::Bytes(_) => None,
    };
    if matches!(stage, Stage::Exec | Stage::Clone) {
        let program = found.map_or_else(|| plan.argv.program_c(), |path| &**path);
        let bytes = program.to_bytes();
        return Some(PathBuf::from(std::ffi::OsStr::from_bytes(bytes)));
    }
    if stage == Stage::Chdir {
        return plan.cwd.clone();
    }
    match STREAMS.iter().position(|(name, _)| *name == stage)? {
        0 => file(&plan.stdin),
        1 => file(&plan.stdout),
        _ => file(&plan.stderr),
    }
}
