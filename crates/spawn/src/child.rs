//! The only code that runs between clone and exec.
//!
//! The parent has other threads, and in most backends the child shares its memory. So everything here is a plain
//! system call on data that was prepared before: no allocation, no lock, no formatting, no panic path, no value
//! that would be dropped. The only memory written is the child's own stack, `errno` of the sleeping parent thread,
//! and the [`ChildReport`]. The child leaves by `execve` or `_exit`.
//!
//! Descriptors: where the kernel has `close_range` the child starts on its parent's descriptor table and takes a
//! private copy of the few it needs (`CLOSE_RANGE_UNSHARE`), so the cost of a spawn does not grow with the number
//! of descriptors the parent has open, and nothing from 3 up is inherited whatever its flags. Elsewhere the table
//! is copied by the clone and the sweep marks it close-on-exec, or, without `close_range`, relies on every
//! descriptor being close-on-exec from birth.
#![expect(
    unsafe_code,
    reason = "runs between clone and exec on raw system calls"
)]
#![deny(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::std_instead_of_core,
    clippy::alloc_instead_of_core
)]

use core::cell::Cell;
use core::ffi::{CStr, c_char, c_int, c_long, c_uint, c_void};
use core::ptr;

use crate::error::Stage;
use crate::placement::Home;
use crate::plan::Leads;
use crate::signal::{KernelSigset, SIGSET_BYTES};

/// What a child that could not execute its program leaves behind.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ChildReport {
    /// Number of the [`Stage`] that failed; 0 when none did.
    pub(crate) stage: u32,
    /// The operating system's error number.
    pub(crate) errno: i32,
}

const _: () = assert!(size_of::<ChildReport>() == 8);

/// One standard stream, ready to be set up by the child.
#[derive(Debug, Clone, Copy)]
pub(crate) enum StdioStep<'a> {
    /// Leave it as it is.
    Inherit,
    /// Duplicate this descriptor, which is not 0, 1 or 2.
    Fd(c_int),
    /// Open this file with these flags.
    Path(&'a CStr, c_int),
    /// A file in memory with this content, at its start.
    Bytes(&'a [u8]),
    /// The same open file as standard output.
    SameAsStdout,
}

/// A resource limit in the kernel's layout.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct KernelRlimit {
    pub(crate) soft: u64,
    pub(crate) hard: u64,
}

const _: () = assert!(size_of::<KernelRlimit>() == 16);

/// How the child comes to its own descriptors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Descriptors {
    /// It shares the parent's table and copies what is below this number.
    UnshareFrom(c_uint),
    /// It has a copy of the parent's table and marks everything from 3 up close-on-exec.
    Sweep,
    /// It has a copy of the parent's table and relies on close-on-exec flags.
    Trust,
}

/// Everything the child does, prepared by the parent. All references outlive the child's use of them, because
/// the parent waits until the child has executed its program or ended, or because the child has a copy.
#[derive(Debug)]
pub(crate) struct ChildPlan<'a> {
    /// Where the failure goes when memory is shared.
    pub(crate) report: Cell<ChildReport>,
    /// Where the failure goes when it is not: a pipe, or -1.
    pub(crate) report_fd: c_int,
    pub(crate) program: &'a CStr,
    /// Null-terminated.
    pub(crate) argv: &'a [*const c_char],
    /// Null-terminated.
    pub(crate) envp: &'a [*const c_char],
    pub(crate) cwd: Option<&'a CStr>,
    pub(crate) stdin: StdioStep<'a>,
    pub(crate) stdout: StdioStep<'a>,
    pub(crate) stderr: StdioStep<'a>,
    pub(crate) descriptors: Descriptors,
    /// Signals whose dispositions the child sets back to default; the lowest bit is signal 1.
    pub(crate) reset_signals: KernelSigset,
    /// Those that are left to do after a clone that has reset what has a handler.
    pub(crate) ignored_signals: KernelSigset,
    pub(crate) leads: Leads,
    /// 0 for none.
    pub(crate) death_signal: c_int,
    /// The launcher's process id.
    pub(crate) parent: libc::pid_t,
    pub(crate) affinity: &'a [usize],
    /// The thread that was held to its CPU for the clone, and the child with it.
    pub(crate) home: Option<Home<'a>>,
    pub(crate) umask: Option<u32>,
    pub(crate) rlimits: &'a [(c_uint, KernelRlimit)],
    pub(crate) nice: Option<c_int>,
    /// Directory of the control group to enter; -1 when none, or when the clone already put the child there.
    pub(crate) cgroup: c_int,
    /// Text for `/proc/self/oom_score_adj`; empty for none.
    pub(crate) oom_score: &'a [u8],
}

/// A step that failed.
type Failure = (Stage, c_int);

/// Entry point of the child. `plan` points to a [`ChildPlan`].
pub(crate) extern "C" fn child_main(plan: *mut c_void) -> c_int {
    // SAFETY: every backend passes a pointer to a ChildPlan that lives until the child has executed or ended.
    let plan = unsafe { &*plan.cast::<ChildPlan<'_>>() };
    let (stage, errno) = match run(plan) {
        Ok(never) => match never {},
        Err(failure) => failure,
    };
    let report = ChildReport {
        stage: stage as u32,
        errno,
    };
    if plan.report_fd >= 0 {
        // SAFETY: the report is valid for reads of its size, the descriptor is the write end of a pipe.
        unsafe {
            libc::write(
                plan.report_fd,
                ptr::from_ref(&report).cast(),
                size_of::<ChildReport>(),
            )
        };
    }
    plan.report.set(report);
    exit()
}

/// Cannot be constructed: the successful child is another program.
enum Never {}

fn run(plan: &ChildPlan<'_>) -> Result<Never, Failure> {
    reset_dispositions(plan.reset_signals);
    match plan.leads {
        Leads::Nothing => {}
        Leads::Group => {
            // SAFETY: setpgid takes plain numbers; 0 is the caller.
            check(Stage::Group, unsafe { libc::setpgid(0, 0) })?;
        }
        Leads::Session => {
            // SAFETY: setsid has no preconditions.
            check(Stage::Session, unsafe { libc::setsid() })?;
        }
    }
    if plan.death_signal != 0 {
        set_death_signal(plan)?;
    }
    if let Descriptors::UnshareFrom(first) = plan.descriptors {
        close_range(Stage::Descriptors, first, libc::CLOSE_RANGE_UNSHARE)?;
    }
    enter_cgroup(plan)?;
    set_limits(plan)?;
    if let Some(mask) = plan.umask {
        // SAFETY: umask takes a plain number and cannot fail.
        unsafe { libc::umask(mask) };
    }
    if let Some(path) = plan.cwd {
        // SAFETY: `path` is a valid C string.
        check(Stage::Chdir, unsafe { libc::chdir(path.as_ptr()) })?;
    }
    set_stream(Stage::Stdin, &plan.stdin, 0)?;
    set_stream(Stage::Stdout, &plan.stdout, 1)?;
    set_stream(Stage::Stderr, &plan.stderr, 2)?;
    match plan.descriptors {
        // What was copied below the limit and was not meant for the program.
        Descriptors::UnshareFrom(first) if first > 3 => close_range(Stage::Sweep, 3, 0)?,
        Descriptors::Sweep => close_range(Stage::Sweep, 3, libc::CLOSE_RANGE_CLOEXEC)?,
        Descriptors::UnshareFrom(_) | Descriptors::Trust => {}
    }
    leave_home(plan)?;
    unblock_signals()?;
    // SAFETY: program, argv and envp are valid C strings and null-terminated arrays of such.
    unsafe {
        libc::execve(
            plan.program.as_ptr(),
            plan.argv.as_ptr(),
            plan.envp.as_ptr(),
        )
    };
    Err((Stage::Exec, errno()))
}

/// Back to default: an ignored signal (SIGPIPE in every Rust program) would stay ignored in the task, and a handler
/// would run in the parent's memory once signals are unblocked.
fn reset_dispositions(signals: KernelSigset) {
    /// The kernel's sigaction of all zeroes: default action, no flags, empty mask. Larger than any layout.
    static DEFAULT: [u64; 8] = [0; 8];
    let mut left = signals;
    while left != 0 {
        let signal = left.trailing_zeros().wrapping_add(1);
        left &= left.wrapping_sub(1);
        // SAFETY: the action is valid for reads; SIGKILL and SIGSTOP are refused without effect.
        unsafe {
            libc::syscall(
                libc::SYS_rt_sigaction,
                signal,
                DEFAULT.as_ptr(),
                ptr::null_mut::<u64>(),
                SIGSET_BYTES,
            )
        };
    }
}

/// The task's mask: nothing is blocked.
fn unblock_signals() -> Result<(), Failure> {
    let none: KernelSigset = 0;
    // SAFETY: the set is valid for reads of the announced size; the old mask is not asked for.
    let result = unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            &raw const none,
            ptr::null_mut::<u64>(),
            SIGSET_BYTES,
        )
    };
    check_long(Stage::SignalMask, result).map(drop)
}

fn set_death_signal(plan: &ChildPlan<'_>) -> Result<(), Failure> {
    // SAFETY: PR_SET_PDEATHSIG takes one number.
    check(Stage::DeathSignal, unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, plan.death_signal)
    })?;
    // SAFETY: getppid has no preconditions.
    let parent = unsafe { libc::getppid() };
    if parent != plan.parent {
        // The parent died before the signal was set, so it will never come.
        exit();
    }
    Ok(())
}

fn enter_cgroup(plan: &ChildPlan<'_>) -> Result<(), Failure> {
    if plan.cgroup >= 0 {
        // SAFETY: the descriptor is open in this process and the name is a C string.
        let fd = check(Stage::Cgroup, unsafe {
            libc::openat(
                plan.cgroup,
                c"cgroup.procs".as_ptr(),
                libc::O_WRONLY | libc::O_CLOEXEC,
            )
        })?;
        write_all(Stage::Cgroup, fd, b"0")?;
        close(fd);
    }
    Ok(())
}

fn set_limits(plan: &ChildPlan<'_>) -> Result<(), Failure> {
    if !plan.oom_score.is_empty() {
        let flags = libc::O_WRONLY | libc::O_CLOEXEC;
        // SAFETY: the path is a C string; without O_CREAT no further argument is read.
        let fd = unsafe { libc::open(c"/proc/self/oom_score_adj".as_ptr(), flags) };
        let fd = check(Stage::OomScore, fd)?;
        write_all(Stage::OomScore, fd, plan.oom_score)?;
        close(fd);
    }
    if !plan.affinity.is_empty() {
        check_long(Stage::Affinity, set_affinity(0, plan.affinity))?;
    }
    if let Some(nice) = plan.nice {
        // SAFETY: setpriority takes plain numbers.
        check(Stage::Nice, unsafe {
            libc::setpriority(libc::PRIO_PROCESS, 0, nice)
        })?;
    }
    for (resource, limit) in plan.rlimits {
        // SAFETY: the limit is in the kernel's layout and valid for reads; the old one is not asked for.
        let result = unsafe {
            libc::syscall(
                libc::SYS_prlimit64,
                0,
                *resource,
                ptr::from_ref(limit),
                ptr::null_mut::<KernelRlimit>(),
            )
        };
        check_long(Stage::Rlimit, result)?;
    }
    Ok(())
}

/// Lets the child and the thread that created it run where they may; see `placement.rs`.
fn leave_home(plan: &ChildPlan<'_>) -> Result<(), Failure> {
    let Some(home) = &plan.home else {
        return Ok(());
    };
    // If it is refused the thread does it itself when it wakes up.
    home.released.set(set_affinity(home.thread, home.mask) == 0);
    if plan.affinity.is_empty() && set_affinity(0, home.mask) != 0 {
        /// For when none of the former CPUs is allowed any more.
        static EVERYWHERE: [usize; 1024] = [usize::MAX; 1024];
        check_long(Stage::Affinity, set_affinity(0, &EVERYWHERE))?;
    }
    Ok(())
}

/// `thread` 0 is the child itself.
fn set_affinity(thread: libc::pid_t, mask: &[usize]) -> c_long {
    // SAFETY: the mask is valid for reads of its size in bytes.
    unsafe {
        libc::syscall(
            libc::SYS_sched_setaffinity,
            thread,
            size_of_val(mask),
            mask.as_ptr(),
        )
    }
}

fn set_stream(stage: Stage, step: &StdioStep<'_>, target: c_int) -> Result<(), Failure> {
    match step {
        StdioStep::Inherit => Ok(()),
        StdioStep::Fd(fd) => duplicate(stage, *fd, target),
        StdioStep::SameAsStdout => duplicate(stage, 1, target),
        StdioStep::Path(path, flags) => {
            /// Read and write for everybody, less the umask.
            const MODE: c_uint = 0o666;
            // SAFETY: `path` is a valid C string; the mode is there for O_CREAT.
            let fd = unsafe { libc::open(path.as_ptr(), *flags, MODE) };
            let fd = check(stage, fd)?;
            duplicate(stage, fd, target)
        }
        StdioStep::Bytes(bytes) => {
            // SAFETY: the name is a C string. Only used by number, it is not close-on-exec twice.
            let fd = unsafe { libc::memfd_create(c"stdin".as_ptr(), libc::MFD_CLOEXEC) };
            let fd = check(stage, fd)?;
            write_all(stage, fd, bytes)?;
            // SAFETY: lseek takes plain numbers.
            let position = unsafe { libc::lseek(fd, 0, libc::SEEK_SET) };
            if position != 0 {
                return Err((stage, errno()));
            }
            duplicate(stage, fd, target)
        }
    }
}

/// Makes `target` the same open file as `fd`, not close-on-exec. `fd` itself stays and closes on exec.
fn duplicate(stage: Stage, fd: c_int, target: c_int) -> Result<(), Failure> {
    if fd == target {
        // A stream that was closed in the parent: the file got its number, and dup2 would keep the flag.
        // SAFETY: fcntl F_SETFD takes plain numbers.
        return check(stage, unsafe { libc::fcntl(fd, libc::F_SETFD, 0) }).map(drop);
    }
    // SAFETY: dup2 takes plain numbers.
    check(stage, unsafe { libc::dup2(fd, target) }).map(drop)
}

fn write_all(stage: Stage, fd: c_int, mut bytes: &[u8]) -> Result<(), Failure> {
    while !bytes.is_empty() {
        // SAFETY: `bytes` is valid for reads of its length.
        let written = unsafe { libc::write(fd, bytes.as_ptr().cast(), bytes.len()) };
        match usize::try_from(written) {
            Ok(written) => bytes = bytes.get(written..).unwrap_or_default(),
            Err(_) if errno() == libc::EINTR => {}
            Err(_) => return Err((stage, errno())),
        }
    }
    Ok(())
}

fn close_range(stage: Stage, first: c_uint, flags: c_uint) -> Result<(), Failure> {
    // SAFETY: close_range takes plain numbers; the child uses none of the descriptors it closes.
    let result = unsafe { libc::syscall(libc::SYS_close_range, first, c_uint::MAX, flags) };
    check_long(stage, result).map(drop)
}

fn close(fd: c_int) {
    // SAFETY: the descriptor was opened by the caller in this process and is not used again.
    unsafe { libc::close(fd) };
}

fn check(stage: Stage, result: c_int) -> Result<c_int, Failure> {
    if result < 0 {
        return Err((stage, errno()));
    }
    Ok(result)
}

fn check_long(stage: Stage, result: c_long) -> Result<(), Failure> {
    if result < 0 {
        return Err((stage, errno()));
    }
    Ok(())
}

fn errno() -> c_int {
    // SAFETY: returns the address of the thread's errno. With shared memory that is the sleeping parent thread's.
    let location = unsafe { libc::__errno_location() };
    // SAFETY: the address is valid for the thread's life, and no other thread uses it.
    unsafe { *location }
}

fn exit() -> ! {
    // SAFETY: _exit runs no handler of the parent and does not return.
    unsafe { libc::_exit(127) }
}
