//! The only code that runs between clone and exec.
//!
//! The parent has other threads, and in most backends the child shares its memory. The code here
//! therefore only makes plain system calls on prepared data: it does not allocate, lock, format or
//! panic, and it drops no values. The child writes only to its own stack, its [`ChildReport`] and
//! its [`CpuPin`]. It does not write to `errno`, because the thread that created it may be running
//! (see `raw.rs`). It ends with `execve` or `exit_group`.
//!
//! Descriptors: if the kernel has `close_range`, the child starts with its parent's descriptor
//! table and takes a private copy of the few entries that it needs (`CLOSE_RANGE_UNSHARE`). The
//! cost of a spawn therefore does not grow with the number of descriptors that the parent has open,
//! and the child inherits no descriptor from 3 up, whatever its flags are. On older kernels, the
//! clone copies the table, and the child then marks the entries close-on-exec. Without
//! `close_range`, it relies on every descriptor having been opened with close-on-exec.
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
use core::mem::MaybeUninit;
use core::ptr;

use crate::error::Stage;
use crate::placement::CpuPin;
use crate::plan::ProcessGroup;
use crate::raw::{self, KernelRlimit, int};
use crate::signal::{KernelSigset, SIGSET_BYTES};

/// The report of a child that could not execute its program.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ChildReport {
    /// The number of the failed [`Stage`], or 0 if no step failed.
    pub(crate) stage: u32,
    /// The operating system's error number.
    pub(crate) errno: i32,
}

const _: () = assert!(size_of::<ChildReport>() == 8);

/// One standard stream, prepared for the child.
#[derive(Debug, Clone, Copy)]
pub(crate) enum StdioStep<'a> {
    /// Leave it as it is.
    Inherit,
    /// Duplicate this descriptor, which is not 0, 1 or 2.
    Fd(c_int),
    /// Open this file with these flags.
    Path(&'a CStr, c_int),
    /// Create this file, or truncate it if it belongs to this user. Neither the file nor its
    /// directory may be a link; see `hq_private::create_output`.
    Guarded {
        dir: &'a CStr,
        name: &'a CStr,
        flags: c_int,
    },
    /// Provide this content as an in-memory file, positioned at its start.
    Bytes(&'a [u8]),
    /// The same open file as standard output.
    SameAsStdout,
}

/// How the child gets its own descriptor table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Descriptors {
    /// The child shares the parent's table and copies the entries below `from`. With `sweep`, it
    /// then closes the copies from 3 up, which may lack the close-on-exec flag.
    Unshare { from: c_uint, sweep: bool },
    /// The child has a copy of the parent's table and marks the entries from 3 up close-on-exec.
    Sweep,
    /// The child has a copy of the parent's table and relies on the close-on-exec flags.
    Trust,
}

/// All actions of the child, prepared by the parent. All references are valid as long as the child
/// uses them: either the parent keeps the data until the child has called exec or ended, or the
/// child has its own copy.
#[derive(Debug)]
pub(crate) struct ChildPlan<'a> {
    /// Receives the failure if the child shares the parent's memory.
    pub(crate) report: Cell<ChildReport>,
    /// The pipe that receives the failure otherwise; -1 if there is none.
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
    /// The signals whose dispositions the child resets to the default. The lowest bit is signal 1.
    pub(crate) reset_signals: KernelSigset,
    /// The signals to reset if the clone has already reset those with a handler.
    pub(crate) ignored_signals: KernelSigset,
    pub(crate) process_group: ProcessGroup,
    /// The parent-death signal; 0 if there is none.
    pub(crate) death_signal: c_int,
    /// The launcher's process id.
    pub(crate) parent: libc::pid_t,
    pub(crate) affinity: &'a [usize],
    /// The thread that was pinned to its CPU for the clone. The child is pinned with it.
    pub(crate) pin: Option<CpuPin<'a>>,
    pub(crate) umask: Option<u32>,
    pub(crate) rlimits: &'a [(c_uint, KernelRlimit)],
    pub(crate) nice: Option<c_int>,
    /// The directory of the control group to enter; -1 if there is none, or if the clone has
    /// already moved the child there.
    pub(crate) cgroup: c_int,
    /// The text for `/proc/self/oom_score_adj`; empty if the score stays as it is.
    pub(crate) oom_score: &'a [u8],
}

/// A step that failed.
type Failure = (Stage, c_int);

/// The entry point of the child. `plan` points to a [`ChildPlan`].
pub(crate) extern "C" fn child_main(plan: *mut c_void) -> c_int {
    // SAFETY: every backend passes a pointer to a ChildPlan that lives until the child has executed
    // or ended.
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
        let bytes = ptr::from_ref(&report).expose_provenance();
        let arguments = [int(plan.report_fd), bytes, size_of::<ChildReport>(), 0, 0];
        // SAFETY: the report is valid for reads of its size, the descriptor is the write end of a
        // pipe.
        let _ = unsafe { raw::call(libc::SYS_write, arguments) };
    }
    plan.report.set(report);
    exit()
}

/// An uninhabited type: after a successful exec, this code no longer runs.
enum Never {}

fn run(plan: &ChildPlan<'_>) -> Result<Never, Failure> {
    reset_dispositions(plan.reset_signals);
    match plan.process_group {
        ProcessGroup::Inherit => {}
        ProcessGroup::New => {
            // SAFETY: plain numbers; 0 is the caller.
            unsafe { call(Stage::Group, libc::SYS_setpgid, [0; 5]) }?;
        }
        ProcessGroup::NewSession => {
            // SAFETY: setsid takes nothing.
            unsafe { call(Stage::Session, libc::SYS_setsid, [0; 5]) }?;
        }
    }
    if plan.death_signal != 0 {
        set_death_signal(plan)?;
    }
    if let Descriptors::Unshare { from, .. } = plan.descriptors {
        close_range(Stage::Descriptors, from, libc::CLOSE_RANGE_UNSHARE)?;
    }
    enter_cgroup(plan)?;
    set_limits(plan)?;
    if let Some(mask) = plan.umask {
        // SAFETY: the argument is a plain number. The call cannot fail.
        let _ = unsafe { raw::call(libc::SYS_umask, [mask as usize, 0, 0, 0, 0]) };
    }
    if let Some(path) = plan.cwd {
        // SAFETY: `path` is a valid C string.
        unsafe { call(Stage::Chdir, libc::SYS_chdir, [text(path), 0, 0, 0, 0]) }?;
    }
    set_stream(Stage::Stdin, &plan.stdin, 0, None)?;
    let stdout = set_stream(Stage::Stdout, &plan.stdout, 1, None)?;
    let stderr = set_stream(Stage::Stderr, &plan.stderr, 2, stdout.dir)?;
    // A file that this child has created after it opened the other one is not that file.
    if stdout.is_file && stderr.is_file && !stderr.is_new && is_one_file(1, 2) {
        // Two separate open file descriptions would both start at the beginning and overwrite each
        // other's output.
        duplicate(Stage::Stderr, 1, 2)?;
    }
    match plan.descriptors {
        // Closes descriptors that were copied because they are below the limit, but that the
        // program must not inherit.
        Descriptors::Unshare { sweep: true, .. } => close_range(Stage::Sweep, 3, 0)?,
        Descriptors::Sweep => match close_range(Stage::Sweep, 3, libc::CLOSE_RANGE_CLOEXEC) {
            // The flag was added in Linux 5.11, two versions after the call. Without it, continue
            // as if the call did not exist.
            Ok(()) | Err((_, libc::EINVAL)) => {}
            Err(failure) => return Err(failure),
        },
        Descriptors::Unshare { sweep: false, .. } | Descriptors::Trust => {}
    }
    leave_home(plan)?;
    set_descriptor_limits(plan)?;
    unblock_signals()?;
    let (argv, envp) = (plan.argv.as_ptr(), plan.envp.as_ptr());
    let arguments = [
        text(plan.program),
        argv.expose_provenance(),
        envp.expose_provenance(),
        0,
        0,
    ];
    // SAFETY: program, argv and envp are valid C strings and null-terminated arrays of such.
    match unsafe { raw::call(libc::SYS_execve, arguments) } {
        // Unreachable: a successful execve does not return.
        Ok(_) => Err((Stage::Exec, libc::EIO)),
        Err(errno) => Err((Stage::Exec, errno)),
    }
}

/// Resets signal dispositions to the default. Otherwise an ignored signal (SIGPIPE in every Rust
/// program) would stay ignored in the task, and a handler would run in the parent's memory once
/// signals are unblocked.
fn reset_dispositions(signals: KernelSigset) {
    /// A zeroed kernel sigaction: default action, no flags, empty mask. It is larger than any
    /// layout.
    static DEFAULT: [u64; 8] = [0; 8];
    let mut left = signals;
    while left != 0 {
        let signal = left.trailing_zeros().wrapping_add(1);
        left &= left.wrapping_sub(1);
        let action = DEFAULT.as_ptr().expose_provenance();
        let arguments = [signal as usize, action, 0, SIGSET_BYTES, 0];
        // SAFETY: the action is valid for reads; SIGKILL and SIGSTOP are refused without effect.
        let _ = unsafe { raw::call(libc::SYS_rt_sigaction, arguments) };
    }
}

/// Unblocks all signals for the task.
fn unblock_signals() -> Result<(), Failure> {
    let none: KernelSigset = 0;
    let set = ptr::from_ref(&none).expose_provenance();
    let arguments = [int(libc::SIG_SETMASK), set, 0, SIGSET_BYTES, 0];
    // SAFETY: the set is valid for reads of the announced size; the old mask is not requested.
    unsafe { call(Stage::SignalMask, libc::SYS_rt_sigprocmask, arguments) }.map(drop)
}

fn set_death_signal(plan: &ChildPlan<'_>) -> Result<(), Failure> {
    let arguments = [int(libc::PR_SET_PDEATHSIG), int(plan.death_signal), 0, 0, 0];
    // SAFETY: PR_SET_PDEATHSIG takes one number.
    unsafe { call(Stage::DeathSignal, libc::SYS_prctl, arguments) }?;
    // SAFETY: getppid takes nothing.
    let parent = unsafe { call(Stage::DeathSignal, libc::SYS_getppid, [0; 5]) }?;
    if parent != int(plan.parent) {
        // The parent died before the signal was set, so the signal would never arrive.
        exit();
    }
    Ok(())
}

fn enter_cgroup(plan: &ChildPlan<'_>) -> Result<(), Failure> {
    if plan.cgroup >= 0 {
        let flags = libc::O_WRONLY | libc::O_CLOEXEC;
        let fd = open(Stage::Cgroup, plan.cgroup, c"cgroup.procs", flags)?;
        write_all(Stage::Cgroup, fd, b"0")?;
        close(fd);
    }
    Ok(())
}

fn set_limits(plan: &ChildPlan<'_>) -> Result<(), Failure> {
    if !plan.oom_score.is_empty() {
        let flags = libc::O_WRONLY | libc::O_CLOEXEC;
        let path = c"/proc/self/oom_score_adj";
        let fd = open(Stage::OomScore, libc::AT_FDCWD, path, flags)?;
        write_all(Stage::OomScore, fd, plan.oom_score)?;
        close(fd);
    }
    if !plan.affinity.is_empty() {
        set_affinity(0, plan.affinity)?;
    }
    if let Some(nice) = plan.nice {
        let arguments = [libc::PRIO_PROCESS as usize, 0, int(nice), 0, 0];
        // SAFETY: plain numbers.
        unsafe { call(Stage::Nice, libc::SYS_setpriority, arguments) }?;
    }
    for (resource, limit) in plan.rlimits {
        if *resource != raw::RLIMIT_NOFILE {
            set_limit(*resource, limit)?;
        }
    }
    Ok(())
}

/// Sets the limits on the number of descriptors. This is done last, because the child may hold
/// copies of its parent's descriptors with numbers above the limit and could then open no more.
fn set_descriptor_limits(plan: &ChildPlan<'_>) -> Result<(), Failure> {
    for (resource, limit) in plan.rlimits {
        if *resource == raw::RLIMIT_NOFILE {
            set_limit(*resource, limit)?;
        }
    }
    Ok(())
}

fn set_limit(resource: c_uint, limit: &KernelRlimit) -> Result<(), Failure> {
    let new = ptr::from_ref(limit).expose_provenance();
    let arguments = [0, resource as usize, new, 0, 0];
    // SAFETY: the limit is in the kernel's layout and valid for reads; the old one is not
    // requested.
    unsafe { call(Stage::Rlimit, libc::SYS_prlimit64, arguments) }.map(drop)
}

/// Lets the child and its creating thread use all their allowed CPUs; see `placement.rs`.
fn leave_home(plan: &ChildPlan<'_>) -> Result<(), Failure> {
    let Some(pin) = &plan.pin else {
        return Ok(());
    };
    // If this fails, the thread does it itself when it wakes up.
    pin.released.set(set_affinity(pin.thread, pin.mask).is_ok());
    if plan.affinity.is_empty() && set_affinity(0, pin.mask).is_err() {
        /// Used if none of the former CPUs is allowed anymore.
        static EVERYWHERE: [usize; 1024] = [usize::MAX; 1024];
        set_affinity(0, &EVERYWHERE)?;
    }
    Ok(())
}

/// Sets the CPU affinity of a thread; 0 is the child itself.
fn set_affinity(thread: libc::pid_t, mask: &[usize]) -> Result<(), Failure> {
    let words = mask.as_ptr().expose_provenance();
    let arguments = [int(thread), size_of_val(mask), words, 0, 0];
    // SAFETY: the mask is valid for reads of its size in bytes.
    unsafe { call(Stage::Affinity, libc::SYS_sched_setaffinity, arguments) }.map(drop)
}

/// What a standard stream has become.
#[derive(Clone, Copy, Default)]
struct Stream<'a> {
    /// Whether the child has opened a file by its path.
    is_file: bool,
    /// Whether the child has created this file.
    is_new: bool,
    /// The directory that was opened for a guarded output.
    dir: Option<(&'a CStr, c_int)>,
}

/// Sets up a standard stream. `known` is a directory that is open already. The exec closes
/// everything else that is opened here.
fn set_stream<'a>(
    stage: Stage,
    step: &StdioStep<'a>,
    target: c_int,
    known: Option<(&'a CStr, c_int)>,
) -> Result<Stream<'a>, Failure> {
    match *step {
        StdioStep::Inherit => {}
        StdioStep::Fd(fd) => duplicate(stage, fd, target)?,
        StdioStep::SameAsStdout => duplicate(stage, 1, target)?,
        StdioStep::Path(path, flags) => {
            let fd = open(stage, libc::AT_FDCWD, path, flags)?;
            use_opened(stage, fd, flags, target)?;
            return Ok(Stream {
                is_file: true,
                ..Stream::default()
            });
        }
        StdioStep::Guarded { dir, name, flags } => {
            let dir_fd = match known {
                Some((path, fd)) if path == dir => fd,
                Some(_) | None => {
                    let way = libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC;
                    open(stage, libc::AT_FDCWD, dir, way)?
                }
            };
            // A file that is created here is a regular file, so this cannot block.
            let create = flags & !libc::O_NONBLOCK | libc::O_EXCL;
            let is_new = match open(stage, dir_fd, name, create) {
                Ok(fd) => duplicate(stage, fd, target).map(|()| true),
                Err((_, libc::EEXIST)) => {
                    let fd = open_existing(stage, dir_fd, name, flags)?;
                    use_opened(stage, fd, flags, target).map(|()| false)
                }
                Err(failure) => Err(failure),
            }?;
            return Ok(Stream {
                is_file: true,
                is_new,
                // A lower number belongs to a standard stream, which may still be replaced.
                dir: (dir_fd > 2).then_some((dir, dir_fd)),
            });
        }
        StdioStep::Bytes(bytes) => {
            let fd = memory_file(stage)?;
            write_all(stage, fd, bytes)?;
            let arguments = [int(fd), 0, int(libc::SEEK_SET), 0, 0];
            // SAFETY: plain numbers.
            unsafe { call(stage, libc::SYS_lseek, arguments) }?;
            duplicate(stage, fd, target)?;
        }
    }
    Ok(Stream::default())
}

/// Makes an open file the standard stream. Only the open itself must not block; reads and writes
/// may.
fn use_opened(stage: Stage, fd: c_int, flags: c_int, target: c_int) -> Result<(), Failure> {
    if flags & libc::O_NONBLOCK != 0 {
        // None of the other flags that can be changed was set.
        let arguments = [int(fd), int(libc::F_SETFL), 0, 0, 0];
        // SAFETY: plain numbers.
        unsafe { call(stage, libc::SYS_fcntl, arguments) }?;
    }
    duplicate(stage, fd, target)
}

/// Opens and truncates an existing output file of this user. Returns `EEXIST` for any other file;
/// `hq_private::create_output` then decides what to do.
fn open_existing(stage: Stage, dir: c_int, name: &CStr, flags: c_int) -> Result<c_int, Failure> {
    let undecided = Err((stage, libc::EEXIST));
    let Ok(fd) = open(stage, dir, name, flags & !(libc::O_CREAT | libc::O_TRUNC)) else {
        return undecided;
    };
    // SAFETY: it has no arguments.
    let user = unsafe { raw::call(libc::SYS_geteuid, [0; 5]) };
    let is_own_output = |found: libc::stat| {
        found.st_mode & libc::S_IFMT == libc::S_IFREG
            && user == Ok(found.st_uid as usize)
            && found.st_nlink == 1
    };
    if !stat(fd).is_some_and(is_own_output) {
        close(fd);
        return undecided;
    }
    // SAFETY: plain numbers.
    unsafe { call(stage, libc::SYS_ftruncate, [int(fd), 0, 0, 0, 0]) }.map(|_| fd)
}

/// Returns whether two descriptors refer to the same file, whatever its names are.
fn is_one_file(one: c_int, other: c_int) -> bool {
    let identity = |fd: c_int| stat(fd).map(|found| (found.st_dev, found.st_ino));
    let found = identity(one);
    found.is_some() && found == identity(other)
}

fn stat(fd: c_int) -> Option<libc::stat> {
    let mut found = MaybeUninit::<libc::stat>::zeroed();
    let place = found.as_mut_ptr().expose_provenance();
    // SAFETY: `found` is valid for writes of a stat, whose layout in libc is the kernel's on 64-bit
    // machines.
    unsafe { raw::call(libc::SYS_fstat, [int(fd), place, 0, 0, 0]) }.ok()?;
    // SAFETY: all zeroes is a valid stat, and the kernel has filled it.
    Some(unsafe { found.assume_init() })
}

/// Makes `target` refer to the same open file as `fd`, without close-on-exec. `fd` itself stays
/// close-on-exec.
fn duplicate(stage: Stage, fd: c_int, target: c_int) -> Result<(), Failure> {
    let result = if fd == target {
        // The parent had closed this stream, so the file got its number. Duplicating it onto itself
        // would keep the flag.
        let arguments = [int(fd), int(libc::F_SETFD), 0, 0, 0];
        // SAFETY: plain numbers.
        unsafe { call(stage, libc::SYS_fcntl, arguments) }
    } else {
        // SAFETY: plain numbers.
        unsafe { call(stage, libc::SYS_dup3, [int(fd), int(target), 0, 0, 0]) }
    };
    result.map(drop)
}

/// Creates an in-memory file. A system may require it to be marked as not executable
/// (`vm.memfd_noexec`), but kernels before 6.3 do not support that flag.
fn memory_file(stage: Stage) -> Result<c_int, Failure> {
    const MFD_NOEXEC_SEAL: c_uint = 8;
    let create = |flags: c_uint| {
        let arguments = [text(c"stdin"), flags as usize, 0, 0, 0];
        // SAFETY: the name is a C string.
        unsafe { call(stage, libc::SYS_memfd_create, arguments) }
    };
    let fd = match create(libc::MFD_CLOEXEC | MFD_NOEXEC_SEAL) {
        Err((_, libc::EINVAL)) => create(libc::MFD_CLOEXEC),
        result => result,
    };
    fd.map(descriptor)
}

/// Opens a file, and creates it if the flags say so.
fn open(stage: Stage, directory: c_int, path: &CStr, flags: c_int) -> Result<c_int, Failure> {
    /// Read and write for all users, minus the umask.
    const MODE: usize = 0o666;
    let flags = int(flags | libc::O_LARGEFILE);
    let arguments = [int(directory), text(path), flags, MODE, 0];
    // SAFETY: `path` is a valid C string, `directory` is open or stands for the working directory.
    unsafe { call(stage, libc::SYS_openat, arguments) }.map(descriptor)
}

fn write_all(stage: Stage, fd: c_int, mut bytes: &[u8]) -> Result<(), Failure> {
    while !bytes.is_empty() {
        let start = bytes.as_ptr().expose_provenance();
        // SAFETY: `bytes` is valid for reads of its length.
        match unsafe { raw::call(libc::SYS_write, [int(fd), start, bytes.len(), 0, 0]) } {
            Ok(written) => bytes = bytes.get(written..).unwrap_or_default(),
            Err(libc::EINTR) => {}
            Err(errno) => return Err((stage, errno)),
        }
    }
    Ok(())
}

fn close_range(stage: Stage, first: c_uint, flags: c_uint) -> Result<(), Failure> {
    let arguments = [first as usize, c_uint::MAX as usize, flags as usize, 0, 0];
    // SAFETY: plain numbers; the child uses none of the descriptors it closes.
    unsafe { call(stage, libc::SYS_close_range, arguments) }.map(drop)
}

fn close(fd: c_int) {
    // SAFETY: the descriptor was opened by the caller in this process and is not used again.
    let _ = unsafe { raw::call(libc::SYS_close, [int(fd), 0, 0, 0, 0]) };
}

/// Makes a system call and maps a failure to a step.
///
/// # Safety
///
/// The same as for [`raw::call`].
unsafe fn call(stage: Stage, number: c_long, arguments: [usize; 5]) -> Result<usize, Failure> {
    // SAFETY: guaranteed by the caller.
    unsafe { raw::call(number, arguments) }.map_err(|errno| (stage, errno))
}

fn text(text: &CStr) -> usize {
    text.as_ptr().expose_provenance()
}

/// Converts a descriptor returned by the kernel. It always fits.
fn descriptor(number: usize) -> c_int {
    c_int::try_from(number).unwrap_or(-1)
}

fn exit() -> ! {
    loop {
        // SAFETY: ends the process, which runs no handler of its parent.
        let _ = unsafe { raw::call(libc::SYS_exit_group, [127, 0, 0, 0, 0]) };
    }
}
