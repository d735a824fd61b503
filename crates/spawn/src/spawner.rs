//! A spawner thread: creates a process, makes simple repairs, and passes the child to the reaper.
//!
//! It owns the resources that are reused for every spawn: the child's stack and the buffers. It
//! does not access the queue directly.

use std::borrow::Cow;
use std::ffi::{CStr, OsStr};
use std::io::{Read as _, Seek as _, Write as _};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::backend::{self, Created};
use crate::env::ArgBlock;
use crate::error::{SpawnError, Stage};
use crate::event::{Event, MonotonicNs};
use crate::keeper;
use crate::label::{Label, Labels};
use crate::lanes::Job;
use crate::live::{InFlight, Key, Running};
use crate::mechanism::Backend;
use crate::placement::Placement;
use crate::plan::{ProcessGroup, SpawnPlan, Stdio};
use crate::pool::{self, ChildWaiter, Next, Outcome, Pool};
use crate::prepare::{self, Scratch};
use crate::raw::KernelRlimit;
use crate::resolve::Resolved;
use crate::signal;
use crate::stack::ChildStack;
use crate::sys;

/// How long a thread waits for a child to exit before the child is reported as running, if previous
/// children were that short-lived. A longer wait gains nothing, because two thread switches are
/// cheap compared with such a child.
const PATIENCE: Duration = Duration::from_millis(5);

/// The main function of a spawner thread. It returns when the pool has no more work for the thread.
pub(crate) fn work(pool: &Arc<Pool>, stack: ChildStack) {
    Spawner::new(pool, stack).run();
}

/// The state of a spawner thread.
struct Spawner<'a> {
    pool: &'a Arc<Pool>,
    stack: ChildStack,
    scratch: Scratch,
    placement: Placement,
    in_flight: Arc<InFlight>,
    /// The pidfds of children that failed before their program ran; see [`InFlight`] for why they
    /// are kept for a while.
    failed: Vec<OwnedFd>,
    /// The last child, if it is in a lane. This thread waits for it to exit unless there is other
    /// work.
    awaited: Option<OwnChild>,
    /// Interrupts the wait for a child. `None` if the thread never waits for a child.
    waiter: Option<Arc<ChildWaiter>>,
    /// Whether this thread's last child exited within [`PATIENCE`].
    brief: bool,
    /// A buffer for ended children.
    ended: Vec<Running>,
}

/// A child that only this thread removes from the table, so that its pidfd stays open until then.
#[derive(Debug, Clone, Copy)]
struct OwnChild {
    key: Key,
    pidfd: RawFd,
}

impl<'a> Spawner<'a> {
    fn new(pool: &'a Arc<Pool>, stack: ChildStack) -> Self {
        Self {
            pool,
            stack,
            scratch: Scratch::new(),
            placement: Placement::new(),
            in_flight: Arc::default(),
            failed: Vec::new(),
            awaited: None,
            waiter: pool.waiter(),
            brief: false,
            ended: Vec::new(),
        }
    }

    /// The thread's main loop.
    fn run(mut self) {
        // A borrowed thread must be returned with its previous mask.
        let _mask = signal::Blocked::for_spawner();
        let mut outcome = Outcome::None;
        loop {
            let waiter = self.waiter.as_ref().filter(|_| self.awaited.is_some());
            match self.pool.next(outcome, &self.in_flight, waiter) {
                Next::Job { job, key, alone } => {
                    outcome = self.launch(*job, key, alone);
                }
                Next::WaitForChild => {
                    outcome = Outcome::None;
                    self.wait_own();
                }
                Next::HandOver => {
                    outcome = Outcome::None;
                    if let Some(awaited) = self.awaited.take() {
                        self.have_watched(awaited.key);
                    }
                }
                Next::Stop => break,
            }
        }
    }

    /// Handles a request. `alone` means that no other request is waiting.
    fn launch(&mut self, mut job: Job, key: Key, alone: bool) -> Outcome {
        let labels = self.pool.common.labels.as_ref();
        let label = labels.filter(|_| job.plan.marker.is_some());
        let label = label.map(Labels::next);
        let result = if keeper::is_halted() {
            Err(SpawnError::cancelled())
        } else {
            // Requests that wait for a thread must not also wait for this child to exit.
            let patience = self.brief && alone && job.lane.is_some() && self.waiter.is_some();
            let limit = label.as_ref().map(Label::limit);
            self.create(&job.plan, limit, patience.then_some(PATIENCE))
        };
        match result {
            Ok((started, created)) => {
                self.started((job, label), key, started, created);
                Outcome::Done
            }
            Err(error) => {
                let cancel = self.pool.watch.table().abandon(key);
                self.failed.clear();
                if cancel {
                    self.pool.watch.events.push(pool::cancelled(job.token));
                    self.pool.leave(job.lane);
                    return Outcome::Done;
                }
                if error.is_transient() {
                    let (since, times) = job.trouble.unwrap_or_else(|| (Instant::now(), 0));
                    if since.elapsed() < self.pool.transient_limit {
                        tracing::debug!(token = job.token.0, %error, "transient spawn failure");
                        if since.elapsed() >= pool::TROUBLE {
                            self.pool.warn_of_trouble(&error);
                        }
                        job.trouble = Some((since, times + 1));
                        self.pool.delay(job, pool::pause(times));
                        // A program file that is being written is no reason to delay other
                        // requests.
                        return if error.errno == libc::ETXTBSY {
                            Outcome::Later
                        } else {
                            Outcome::Short
                        };
                    }
                }
                let token = job.token;
                self.pool.watch.events.push(Event::Failed { token, error });
                self.pool.leave(job.lane);
                Outcome::Done
            }
        }
    }

    /// Handles a running program: adds it to the table and watches it.
    fn started(
        &mut self,
        (job, label): (Job, Option<Label>),
        key: Key,
        started: MonotonicNs,
        created: Created,
    ) {
        let watch = &self.pool.watch;
        let Created { pid, pidfd, ended } = created;
        // Push this event before the child is watched, so that its exit cannot be reported first.
        let event = Event::Started {
            token: job.token,
            pid: pid.unsigned_abs(),
            at: started,
        };
        if job.plan.tells_start_at_once {
            watch.events.push(event);
        } else {
            watch.events.push_lazily(event, job.plan.event_delay);
        }
        let pidfd_number = pidfd.as_ref().map(AsRawFd::as_raw_fd);
        let child = Running {
            token: job.token,
            pid,
            pidfd,
            started,
            leader: job.plan.process_group != ProcessGroup::Inherit,
            marker: job.plan.marker,
            label,
            lane: job.lane,
            event_delay: job.plan.event_delay,
            killed_early: false,
        };
        let mut table = watch.table();
        let kill = table.running(key, child);
        self.failed.clear();
        if let Some(how) = kill {
            if let Some((child, signal)) = table.terminate(job.token, how, Instant::now()) {
                pool::signal_group(child, signal);
            }
            watch.wake_reaper();
        }
        if ended {
            self.ended.extend(table.take(key));
            drop(table);
            self.finish();
            return;
        }
        drop(table);
        self.brief = false;
        match pidfd_number {
            Some(pidfd) if job.lane.is_some() && self.waiter.is_some() => {
                self.awaited = Some(OwnChild { key, pidfd });
            }
            Some(_) => self.have_watched(key),
            None => self.pool.waiter.add(pid, key),
        }
    }

    /// Passes a child to the reaper.
    fn have_watched(&mut self, key: Key) {
        let watch = &self.pool.watch;
        let mut table = watch.table();
        if let Some(child) = table.get(key)
            && let Some(pidfd) = &child.pidfd
            && let Err(error) = watch.watch(key, pidfd)
        {
            // The kernel is out of memory or the user's limit on watches is exceeded, so the child
            // cannot be supervised.
            tracing::error!(%error, pid = child.pid, "cannot watch a child; ending it");
            let _ = sys::kill(child.target(), libc::SIGKILL);
            self.ended.extend(table.take(key));
            drop(table);
            self.pool.finish(&mut self.ended, false);
        }
    }

    /// Waits for the last child to exit, or until there is other work.
    fn wait_own(&mut self) {
        let (Some(awaited), Some(waiter)) = (self.awaited, &self.waiter) else {
            return;
        };
        let has_ended = waiter.wait(awaited.pidfd);
        self.pool.stop_waiting(waiter);
        if has_ended {
            self.awaited = None;
            let child = self.pool.watch.table().take(awaited.key);
            let begun = child.as_ref().map_or(0, |child| child.started.0);
            self.brief = sys::monotonic_now().0.saturating_sub(begun)
                < u64::try_from(PATIENCE.as_nanos()).unwrap_or(u64::MAX);
            self.ended.extend(child);
            self.finish();
        }
    }

    /// Reaps and reports the child that this thread has waited for.
    fn finish(&mut self) {
        if let Some(life) = self.pool.finish(&mut self.ended, true) {
            self.placement.learn(life);
        }
    }

    /// Creates the process and makes simple repairs. Returns when the process was started. With
    /// `patience`, this function may wait that long for the child to exit.
    fn create(
        &mut self,
        plan: &SpawnPlan,
        label: Option<KernelRlimit>,
        patience: Option<Duration>,
    ) -> Result<(MonotonicNs, Created), SpawnError> {
        /// The maximum number of repairs: one missing directory each for the working directory and
        /// both outputs, and a program that was moved.
        const REPAIRS_MAX: usize = 4;
        if let Some(preparation) = &plan.preparation {
            preparation.run(&|| self.in_flight.is_cancelled())?;
        }
        let mut plan = Cow::Borrowed(plan);
        let mut resolved = self.pool.resolver.resolve(&plan)?;
        let mut repairs = 0;
        loop {
            if self.in_flight.is_cancelled() {
                // Earlier steps may have taken long, and the request may have been canceled in the
                // meantime.
                return Err(SpawnError::cancelled());
            }
            // The time is taken after the earlier steps, because they do not belong to the child's
            // run time: a preparation may hang for longer than the child is allowed to run.
            let started = sys::monotonic_now();
            let mut error = match self.try_create(&plan, &resolved, label, patience) {
                Ok(created) => return Ok((started, created)),
                Err(error) => error,
            };
            if repairs == REPAIRS_MAX {
                return Err(error);
            }
            repairs += 1;
            match (&resolved, error.stage) {
                (_, Stage::Stdin) => match input_file(&plan, &error)? {
                    Some(file) => plan = Cow::Owned(plan.into_owned().stdin(file)),
                    None => return Err(error),
                },
                (_, Stage::Exec) if error.errno == libc::ENOEXEC => {
                    match shell_for(&plan, &error) {
                        Some(argv) => {
                            plan.to_mut().argv = argv;
                            resolved = Resolved::AsGiven;
                        }
                        None => return Err(error),
                    }
                }
                (_, Stage::Exec) if error.errno == libc::E2BIG => {
                    error.too_long = plan.too_long();
                    return Err(error);
                }
                (_, Stage::Stdout | Stage::Stderr) if is_undecided(&error) => {
                    open_guarded(plan.to_mut(), &error)?;
                }
                _ if error.errno != libc::ENOENT => return Err(error),
                (Resolved::Found { cached: true, .. }, Stage::Exec) => {
                    resolved = self.pool.resolver.resolve_again(&plan)?;
                }
                (_, Stage::Exec) => {
                    let exists = error
                        .path()
                        .is_some_and(|path| in_cwd(&plan, path).exists());
                    error.program_exists = exists;
                    return Err(error);
                }
                (_, Stage::Chdir | Stage::Stdout | Stage::Stderr) if plan.create_dirs => {
                    create_directory_for(&plan, &error)?;
                }
                _ => return Err(error),
            }
        }
    }

    fn try_create(
        &mut self,
        plan: &SpawnPlan,
        resolved: &Resolved,
        label: Option<KernelRlimit>,
        patience: Option<Duration>,
    ) -> Result<Created, SpawnError> {
        let pool = self.pool;
        let stack = &self.stack;
        let found: Option<&Arc<CStr>> = match resolved {
            Resolved::AsGiven => None,
            Resolved::Found { path, .. } => Some(path),
        };
        let share = pool.backend.shares_descriptors();
        let (in_flight, failed) = (&self.in_flight, &mut self.failed);
        // Only a child that shares this process's memory can report that it has released this
        // thread.
        let pin = (pool.backend == Backend::ClonePidfd)
            .then(|| self.placement.hold())
            .flatten();
        let mut held = pin.is_some();
        let result =
            self.scratch
                .with_child_plan(plan, found, &pool.common, share, (pin, label), |child| {
                    let created = backend::create(pool.backend, child, stack, in_flight, patience);
                    held &= !child.pin.as_ref().is_some_and(|pin| pin.released.get());
                    created.map_err(|failure| {
                        failed.extend(failure.pidfd);
                        let path = prepare::path_of(failure.stage, plan, found);
                        SpawnError::new(failure.stage, failure.errno, path)
                    })
                });
        if held {
            self.placement.release();
        }
        result
    }
}

/// Returns a path of the task relative to this process.
fn in_cwd(plan: &SpawnPlan, path: &Path) -> PathBuf {
    plan.cwd
        .as_ref()
        .map_or_else(|| path.to_path_buf(), |cwd| cwd.join(path))
}

/// Returns the command that runs a program file as a shell script, as `execvp` and all shells do
/// for a text file without a `#!` line. Returns `None` if the file is a binary.
fn shell_for(plan: &SpawnPlan, failed: &SpawnError) -> Option<ArgBlock> {
    /// A binary has a NUL within this many bytes, because all formats have numbers in their
    /// headers.
    const HEAD_LEN: u64 = 512;
    let program = failed.path()?;
    let file = std::fs::File::open(in_cwd(plan, program)).ok()?;
    let mut head = Vec::new();
    file.take(HEAD_LEN).read_to_end(&mut head).ok()?;
    if head.contains(&0) || head.starts_with(b"\x7fELF") {
        return None;
    }
    let shell = [OsStr::new("/bin/sh"), program.as_os_str()];
    ArgBlock::new(shell.into_iter().chain(plan.argv.iter().skip(1))).ok()
}

/// Returns a file with the plan's input, for systems without in-memory files: before Linux 3.17,
/// and in sandboxes that forbid them. Returns `None` if a different step has failed.
fn input_file(plan: &SpawnPlan, failed: &SpawnError) -> Result<Option<Stdio>, SpawnError> {
    let Stdio::Bytes(bytes) = &plan.stdin else {
        return Ok(None);
    };
    if !matches!(failed.errno, libc::ENOSYS | libc::EPERM | libc::EACCES) {
        return Ok(None);
    }
    let file = sys::unnamed_file(&std::env::temp_dir()).and_then(|mut file| {
        file.write_all(bytes)?;
        file.rewind()?;
        Ok(file)
    });
    let file = file.map_err(|error| {
        let errno = error.raw_os_error().unwrap_or(libc::EIO);
        SpawnError::new(Stage::Stdin, errno, Some(std::env::temp_dir()))
    })?;
    Ok(Some(Stdio::Fd(Arc::new(file.into()))))
}

/// Returns whether the child could not decide about a guarded output, because its path already
/// exists or its directory is a link.
const fn is_undecided(error: &SpawnError) -> bool {
    matches!(error.errno, libc::ELOOP | libc::ENOTDIR | libc::EEXIST)
}

/// Opens a guarded output for the child if it is safe to do so.
fn open_guarded(plan: &mut SpawnPlan, failed: &SpawnError) -> Result<(), SpawnError> {
    let output = usize::from(failed.stage == Stage::Stderr);
    let Some(path) = failed.path().filter(|_| plan.guarded[output]) else {
        return Err(failed.clone());
    };
    let opened = hq_private::create_output(&in_cwd(plan, path)).map_err(|error| {
        let errno = error.raw_os_error().unwrap_or(libc::EIO);
        SpawnError::new(failed.stage, errno, Some(path.to_path_buf()))
    })?;
    let is_path = |stream: &Stdio| matches!(stream, Stdio::File { path: other } if other == path);
    let (at_stdout, at_stderr) = (is_path(&plan.stdout), is_path(&plan.stderr));
    let file = Stdio::Fd(Arc::new(opened.into()));
    if at_stdout {
        plan.stdout = file.clone();
    }
    if at_stderr {
        plan.stderr = file;
    }
    Ok(())
}

/// Creates the directory that was missing when a step failed.
fn create_directory_for(plan: &SpawnPlan, failed: &SpawnError) -> Result<(), SpawnError> {
    let directory = match (failed.stage, failed.path()) {
        (Stage::Chdir, Some(path)) => path.to_path_buf(),
        (_, Some(path)) => {
            let path = in_cwd(plan, path);
            path.parent().map(Path::to_path_buf).unwrap_or(path)
        }
        (_, None) => return Err(failed.clone()),
    };
    // An existing directory is not an error, because another thread may have created it for a task
    // of the same job. If creating it does not help (because of a dangling symbolic link), the
    // limit on repairs ends the retries.
    std::fs::create_dir_all(&directory).map_err(|error| {
        let errno = error.raw_os_error().unwrap_or(libc::EIO);
        SpawnError::new(Stage::CreateDir, errno, Some(directory))
    })
}
