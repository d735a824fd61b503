//! Checked wrappers around single system calls, for the parent.
//!
//! Every raw descriptor becomes an `OwnedFd` where it is created, and every failure becomes an
//! `io::Error` or an errno. Nothing here runs between clone and exec; the child makes its own calls
//! in `child.rs`.
#![expect(unsafe_code, reason = "system calls")]

use std::ffi::CStr;
use std::fs::{File, OpenOptions};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::event::{ExitStatus, MonotonicNs, ResourceUsage};
use crate::raw::KernelRlimit;

/// The child to wait for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum WaitFor<'a> {
    /// The child that this pidfd refers to (Linux 5.4).
    Pidfd(BorrowedFd<'a>),
    /// The child with this id. No other code may reap it.
    Pid(libc::pid_t),
    /// Any child of the calling thread (`__WNOTHREAD`).
    OwnThread,
    /// Any child of this process.
    Any,
}

/// A child that has ended.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReapedChild {
    pub(crate) pid: libc::pid_t,
    pub(crate) status: ExitStatus,
    pub(crate) usage: ResourceUsage,
}

/// Returns the id of the calling thread.
pub(crate) fn gettid() -> libc::pid_t {
    // glibc has this function since 2.30. SAFETY: gettid has no preconditions.
    let id = unsafe { libc::syscall(libc::SYS_gettid) };
    // The kernel's ids fit into the kernel's own type.
    libc::pid_t::try_from(id).unwrap_or(0)
}

/// Returns the number of CPUs that are online.
pub(crate) fn cpus_online() -> usize {
    // SAFETY: sysconf takes a plain number.
    let count = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
    usize::try_from(count).unwrap_or(1)
}

/// Returns the CPU on which the calling thread is running, or was running a moment ago.
pub(crate) fn current_cpu() -> Option<usize> {
    // SAFETY: sched_getcpu has no preconditions.
    usize::try_from(unsafe { libc::sched_getcpu() }).ok()
}

/// Determines the CPUs on which the calling thread may run. Returns EINVAL if the machine may have
/// more CPUs than `mask` has bits.
pub(crate) fn affinity(mask: &mut [usize]) -> io::Result<()> {
    mask.fill(0);
    // SAFETY: the mask is valid for writes of its size in bytes.
    let result = unsafe {
        libc::syscall(
            libc::SYS_sched_getaffinity,
            0,
            size_of_val(mask),
            mask.as_mut_ptr(),
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Sets the CPUs on which a thread of this process may run. 0 is the calling thread.
pub(crate) fn set_affinity(thread: libc::pid_t, mask: &[usize]) -> io::Result<()> {
    // SAFETY: the mask is valid for reads of its size in bytes.
    let result = unsafe {
        libc::syscall(
            libc::SYS_sched_setaffinity,
            thread,
            size_of_val(mask),
            mask.as_ptr(),
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Returns the error number of the calling thread's last failed call.
pub(crate) fn errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// Takes ownership of a descriptor that a system call has just returned.
fn own(fd: libc::c_int) -> io::Result<OwnedFd> {
    let fd = check(fd)?;
    // SAFETY: `fd` is open (checked above), and only the caller of this function has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Returns the time of the monotonic clock.
pub(crate) fn monotonic_now() -> MonotonicNs {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is a valid timespec to write to; CLOCK_MONOTONIC exists on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    MonotonicNs(seconds * 1_000_000_000 + nanos)
}

/// Returns the id of this process.
pub(crate) fn getpid() -> libc::pid_t {
    // SAFETY: getpid has no preconditions and cannot fail.
    unsafe { libc::getpid() }
}

/// Waits for a child. Returns `None` if the child has not ended (with `WNOHANG`).
///
/// `flags` are the flags of `waitid`; `WEXITED` is implied. Interrupted waits are restarted.
pub(crate) fn wait(which: WaitFor<'_>, flags: libc::c_int) -> io::Result<Option<ReapedChild>> {
    let (kind, id, extra): (libc::c_uint, libc::c_long, libc::c_int) = match which {
        WaitFor::Pidfd(fd) => (libc::P_PIDFD, libc::c_long::from(fd.as_raw_fd()), 0),
        WaitFor::Pid(pid) => (libc::P_PID, libc::c_long::from(pid), libc::__WALL),
        WaitFor::OwnThread => (libc::P_ALL, 0, libc::__WALL | libc::__WNOTHREAD),
        WaitFor::Any => (libc::P_ALL, 0, libc::__WALL),
    };
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    loop {
        // SAFETY: both out-pointers are valid for writes of their types; the other arguments are
        // plain numbers.
        let result = unsafe {
            libc::syscall(
                libc::SYS_waitid,
                kind,
                id,
                info.as_mut_ptr(),
                flags | libc::WEXITED | extra,
                usage.as_mut_ptr(),
            )
        };
        if result == 0 {
            break;
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    // SAFETY: siginfo_t is plain data, and all zeroes is valid; the kernel may have filled it.
    let info = unsafe { info.assume_init() };
    // SAFETY: as above, for rusage.
    let usage = unsafe { usage.assume_init() };
    // SAFETY: a siginfo of waitid (or all zeroes, when no child was ready) has the pid field.
    let pid = unsafe { info.si_pid() };
    if pid == 0 {
        return Ok(None);
    }
    // SAFETY: a siginfo of waitid has the status field.
    let value = unsafe { info.si_status() };
    let status = if info.si_code == libc::CLD_EXITED {
        ExitStatus::Code(value)
    } else {
        ExitStatus::Signal {
            signal: value,
            core_dumped: info.si_code == libc::CLD_DUMPED,
        }
    };
    Ok(Some(ReapedChild {
        pid,
        status,
        usage: convert_usage(&usage),
    }))
}

fn convert_usage(usage: &libc::rusage) -> ResourceUsage {
    let count = |value: libc::c_long| u64::try_from(value).unwrap_or(0);
    let micros = |time: libc::timeval| {
        u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000
            + u64::try_from(time.tv_usec).unwrap_or(0)
    };
    ResourceUsage {
        max_rss_kib: count(usage.ru_maxrss),
        user_us: micros(usage.ru_utime),
        system_us: micros(usage.ru_stime),
        minor_faults: count(usage.ru_minflt),
        major_faults: count(usage.ru_majflt),
        voluntary_switches: count(usage.ru_nvcsw),
        involuntary_switches: count(usage.ru_nivcsw),
    }
}

/// Sends a signal to a process, or to a process group if `pid` is negative. Signal 0 only checks
/// whether it exists.
///
/// Use this function only for ids that cannot have been reused: those of an unreaped child or of
/// its group.
pub(crate) fn kill(pid: libc::pid_t, signal: libc::c_int) -> io::Result<()> {
    // SAFETY: kill takes plain numbers.
    check(unsafe { libc::kill(pid, signal) }).map(drop)
}

/// Returns the session of a process, or `None` if there is no such process.
pub(crate) fn session_of(pid: libc::pid_t) -> Option<libc::pid_t> {
    // SAFETY: getsid takes a plain number.
    let session = unsafe { libc::getsid(pid) };
    (session >= 0).then_some(session)
}

/// Opens a descriptor for a process (Linux 5.3).
pub(crate) fn pidfd_open(pid: libc::pid_t) -> io::Result<OwnedFd> {
    // SAFETY: pidfd_open takes plain numbers and returns a new descriptor or -1.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    own(libc::c_int::try_from(fd).unwrap_or(-1))
}

/// Sends a signal through a pidfd (Linux 5.1). It can never reach a different process.
pub(crate) fn pidfd_send_signal(fd: BorrowedFd<'_>, signal: libc::c_int) -> io::Result<()> {
    // SAFETY: the descriptor is open for the whole call; a null siginfo is allowed.
    let result = unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            fd.as_raw_fd(),
            signal,
            ptr::null::<libc::siginfo_t>(),
            0,
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Sends SIGKILL through the number of a pidfd. The owner of the pidfd must keep it open during the
/// call.
pub(crate) fn pidfd_kill_raw(fd: RawFd) {
    // SAFETY: plain numbers and a null siginfo. If the number were not a pidfd, the kernel would
    // reject it.
    unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            fd,
            libc::SIGKILL,
            ptr::null::<libc::siginfo_t>(),
            0,
        )
    };
}

/// Opens a file. `O_CLOEXEC` is always set.
pub(crate) fn open(path: &CStr, flags: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: `path` is a valid C string; without O_CREAT no further argument is read.
    own(unsafe { libc::open(path.as_ptr(), flags | libc::O_CLOEXEC) })
}

/// Marks all descriptors of this process from 3 up close-on-exec.
///
/// # Errors
///
/// If the kernel does not list them.
pub fn close_all_on_exec() -> io::Result<()> {
    for entry in std::fs::read_dir("/proc/self/fd")? {
        let name = entry?.file_name();
        let number = name.to_str().and_then(|name| name.parse().ok());
        let Some(fd) = number.filter(|fd: &RawFd| *fd > 2) else {
            continue;
        };
        // SAFETY: plain numbers. Another thread may have closed the descriptor in the meantime,
        // which is an error that can be ignored, or may have opened another one with this number,
        // which is close-on-exec like all descriptors of this crate.
        let _ = unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
    }
    Ok(())
}

/// Creates a file for reading and writing and removes its name.
pub(crate) fn unnamed_file(directory: &Path) -> io::Result<File> {
    static COUNTER: AtomicU32 = AtomicU32::new(0);
    /// Names that already exist belong to files of an earlier process that was killed here.
    const ATTEMPTS: u32 = 100;
    for attempt in 0.. {
        let count = COUNTER.fetch_add(1, Ordering::Relaxed);
        let path = directory.join(format!(".hq-input-{}-{count}", getpid()));
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o600);
        match options.open(&path) {
            Ok(file) => {
                std::fs::remove_file(&path)?;
                return Ok(file);
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && attempt < ATTEMPTS => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::from_raw_os_error(libc::EEXIST))
}

/// Returns a close-on-exec duplicate with a number of at least 3.
pub(crate) fn duplicate_above_stdio(fd: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    // SAFETY: the descriptor is open for the whole call; F_DUPFD_CLOEXEC takes one number.
    own(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 3) })
}

/// Returns `/dev/null`, open for reading and writing, with a number above 2. It is opened once.
pub(crate) fn null() -> io::Result<BorrowedFd<'static>> {
    static NULL: OnceLock<OwnedFd> = OnceLock::new();
    if let Some(null) = NULL.get() {
        return Ok(null.as_fd());
    }
    let opened = open(c"/dev/null", libc::O_RDWR)?;
    let null = match opened.as_raw_fd() {
        0..=2 => duplicate_above_stdio(opened.as_fd())?,
        _ => opened,
    };
    Ok(NULL.get_or_init(|| null).as_fd())
}

/// Creates a pipe and returns its read end and its write end, both close-on-exec.
pub(crate) fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut ends = [-1; 2];
    // SAFETY: `ends` has room for the two descriptors.
    check(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) })?;
    Ok((own(ends[0])?, own(ends[1])?))
}

/// Reads at an offset without moving the file position.
pub(crate) fn pread(fd: BorrowedFd<'_>, buffer: &mut [u8], offset: i64) -> io::Result<usize> {
    // SAFETY: `buffer` is valid for writes of its length.
    let read = unsafe {
        libc::pread(
            fd.as_raw_fd(),
            buffer.as_mut_ptr().cast(),
            buffer.len(),
            offset,
        )
    };
    usize::try_from(read).map_err(|_| io::Error::last_os_error())
}

/// Returns an error if this process, with its effective ids, may not execute the file.
pub(crate) fn may_execute(path: &CStr) -> io::Result<()> {
    // SAFETY: `path` is a valid C string.
    check(unsafe { libc::faccessat(libc::AT_FDCWD, path.as_ptr(), libc::X_OK, libc::AT_EACCESS) })
        .map(drop)
}

/// Creates a non-blocking event counter.
pub(crate) fn eventfd() -> io::Result<OwnedFd> {
    // SAFETY: eventfd takes plain numbers and returns a new descriptor or -1.
    own(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })
}

/// Increments an event counter. If the counter is full, it already signals.
pub(crate) fn eventfd_signal(fd: BorrowedFd<'_>) {
    let one = 1_u64.to_ne_bytes();
    // SAFETY: `one` is valid for reads of eight bytes; the descriptor is open for the whole call.
    unsafe { libc::write(fd.as_raw_fd(), one.as_ptr().cast(), one.len()) };
}

/// Resets an event counter or timer, so that it is no longer readable.
pub(crate) fn consume_counter(fd: BorrowedFd<'_>) {
    let mut buffer = [0_u8; 8];
    // SAFETY: `buffer` is valid for writes of eight bytes; the descriptor is open and non-blocking.
    unsafe { libc::read(fd.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len()) };
}

/// Creates a non-blocking one-shot timer on the monotonic clock.
pub(crate) fn timerfd() -> io::Result<OwnedFd> {
    // SAFETY: timerfd_create takes plain numbers and returns a new descriptor or -1.
    own(unsafe {
        libc::timerfd_create(
            libc::CLOCK_MONOTONIC,
            libc::TFD_CLOEXEC | libc::TFD_NONBLOCK,
        )
    })
}

/// Makes the timer readable once after `delay`.
pub(crate) fn timerfd_arm(fd: BorrowedFd<'_>, delay: Duration) {
    let zero = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let value = libc::itimerspec {
        it_interval: zero,
        it_value: libc::timespec {
            tv_sec: libc::c_long::try_from(delay.as_secs()).unwrap_or(libc::c_long::MAX),
            // A zero value would disarm the timer.
            tv_nsec: libc::c_long::from(delay.subsec_nanos().max(1)),
        },
    };
    // SAFETY: `value` is a valid itimerspec; the old value is not requested.
    unsafe { libc::timerfd_settime(fd.as_raw_fd(), 0, &raw const value, ptr::null_mut()) };
}

/// An epoll instance.
#[derive(Debug)]
pub(crate) struct Epoll(OwnedFd);

impl Epoll {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: epoll_create1 takes a plain number and returns a new descriptor or -1.
        own(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) }).map(Self)
    }

    /// Watches `fd` for readability. With `once`, it is reported at most once.
    ///
    /// A child in creation holds a copy of its parent's descriptor table until its exec, so a
    /// closed pidfd may stay registered for a moment. Because it is reported only once, it cannot
    /// make the reaper spin.
    pub(crate) fn add(&self, fd: BorrowedFd<'_>, data: u64, once: bool) -> io::Result<()> {
        let flags = libc::EPOLLIN | if once { libc::EPOLLONESHOT } else { 0 };
        let mut event = libc::epoll_event {
            events: flags.cast_unsigned(),
            u64: data,
        };
        // SAFETY: both descriptors are open and `event` is valid for reads.
        let result = unsafe {
            libc::epoll_ctl(
                self.0.as_raw_fd(),
                libc::EPOLL_CTL_ADD,
                fd.as_raw_fd(),
                &raw mut event,
            )
        };
        check(result).map(drop)
    }

    /// Waits, and appends the data of ready descriptors to `ready`. `None` means no timeout.
    pub(crate) fn wait(&self, ready: &mut Vec<u64>, timeout: Option<Duration>) -> io::Result<()> {
        /// The maximum number of events per call, which limits the work of one round. The next call
        /// returns the others.
        const BATCH: libc::c_int = 256;
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; BATCH.unsigned_abs() as usize];
        let millis = timeout.map_or(-1, |limit| {
            // This is rounded up, because waking just before a deadline would spin.
            let millis = limit.as_nanos().div_ceil(1_000_000);
            libc::c_int::try_from(millis).unwrap_or(libc::c_int::MAX)
        });
        // SAFETY: `events` has room for BATCH events.
        let count =
            unsafe { libc::epoll_wait(self.0.as_raw_fd(), events.as_mut_ptr(), BATCH, millis) };
        match check(count) {
            Ok(count) => {
                let count = usize::try_from(count).unwrap_or(0);
                ready.extend(events.iter().take(count).map(|event| event.u64));
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// Returns whether this process adopts orphaned descendants.
pub(crate) fn adopts_orphans() -> bool {
    asked_for_orphans() == Some(true) || getpid() == 1
}

/// Returns whether the kernel supports adopting orphaned descendants.
pub(crate) fn knows_adoption() -> bool {
    asked_for_orphans().is_some()
}

/// Returns whether this process has asked to adopt its orphaned descendants. Returns `None` if that
/// is not supported.
fn asked_for_orphans() -> Option<bool> {
    let mut flag: libc::c_int = 0;
    // SAFETY: PR_GET_CHILD_SUBREAPER writes one int to the given address.
    let result = unsafe { libc::prctl(libc::PR_GET_CHILD_SUBREAPER, &raw mut flag) };
    (result == 0).then_some(flag != 0)
}

/// Makes orphaned descendants children of this process.
pub(crate) fn adopt_orphans() -> io::Result<()> {
    let one: libc::c_ulong = 1;
    // SAFETY: PR_SET_CHILD_SUBREAPER takes one number.
    check(unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, one) }).map(drop)
}

/// Raises this process's soft limit on open descriptors to the hard limit. Returns the previous
/// limits if they have changed.
pub(crate) fn raise_descriptor_limit() -> io::Result<Option<(u64, u64)>> {
    let mut limit = libc::rlimit64 {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is valid for writes.
    check(unsafe { libc::getrlimit64(libc::RLIMIT_NOFILE, &raw mut limit) })?;
    if limit.rlim_cur >= limit.rlim_max {
        return Ok(None);
    }
    let raised = libc::rlimit64 {
        rlim_cur: limit.rlim_max,
        rlim_max: limit.rlim_max,
    };
    // SAFETY: `raised` is valid for reads.
    check(unsafe { libc::setrlimit64(libc::RLIMIT_NOFILE, &raw const raised) })?;
    Ok(Some((limit.rlim_cur, limit.rlim_max)))
}

/// Returns a limit of a process of the same user; 0 is this process.
pub(crate) fn limit_of(pid: libc::pid_t, resource: u32) -> io::Result<KernelRlimit> {
    let mut limit = KernelRlimit { soft: 0, hard: 0 };
    let out: *mut KernelRlimit = &raw mut limit;
    // SAFETY: the limit is in the kernel's layout and valid for writes; no new one is given.
    let result = unsafe {
        libc::syscall(
            libc::SYS_prlimit64,
            pid,
            resource,
            ptr::null::<KernelRlimit>(),
            out,
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(limit)
}

/// Returns the process id of the parent.
pub(crate) fn parent() -> libc::pid_t {
    // SAFETY: getppid has no preconditions and cannot fail.
    unsafe { libc::getppid() }
}

/// Moves a process (0: this one) into a process group (0: a new one).
pub(crate) fn set_group(pid: libc::pid_t, group: libc::pid_t) -> io::Result<()> {
    // SAFETY: setpgid takes plain numbers.
    check(unsafe { libc::setpgid(pid, group) }).map(drop)
}

/// Sets the name of the calling thread; for the main thread, that of the process. Only the first 15
/// bytes are used.
pub(crate) fn set_thread_name(name: &CStr) {
    // SAFETY: PR_SET_NAME reads a C string.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
}

/// Disables core dumps of this process.
pub(crate) fn forbid_core() {
    let none = libc::rlimit64 {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `none` is valid for reads. Lowering a limit is always allowed.
    unsafe { libc::setrlimit64(libc::RLIMIT_CORE, &raw const none) };
}

/// Ends the process without running exit handlers.
pub(crate) fn exit_now(code: libc::c_int) -> ! {
    // SAFETY: _exit takes a plain number and does not return.
    unsafe { libc::_exit(code) }
}

/// Sleeps until an absolute time. Unlike [`std::thread::sleep`], it ends in time even if signals
/// arrive. A relative sleep restarts with the remaining time plus the timer slack, so signals in
/// quick succession would prolong it forever.
pub(crate) fn pause(duration: Duration) {
    let end = monotonic_now().0 + u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX / 2);
    let end = libc::timespec {
        tv_sec: libc::c_long::try_from(end / 1_000_000_000).unwrap_or(libc::c_long::MAX),
        tv_nsec: libc::c_long::try_from(end % 1_000_000_000).unwrap_or(0),
    };
    let (clock, flags) = (libc::CLOCK_MONOTONIC, libc::TIMER_ABSTIME);
    // SAFETY: the time is valid for reads; an absolute sleep returns no remaining time.
    while unsafe { libc::clock_nanosleep(clock, flags, &raw const end, ptr::null_mut()) }
        == libc::EINTR
    {}
}

/// Waits until a descriptor is readable or its other end is closed.
pub(crate) fn wait_readable(fd: BorrowedFd<'_>) -> io::Result<()> {
    let mut poll = libc::pollfd {
        fd: fd.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    loop {
        // SAFETY: `poll` is one valid pollfd whose descriptor is open for the whole call.
        match check(unsafe { libc::poll(&raw mut poll, 1, -1) }) {
            Ok(_) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Waits until at least one of two descriptors is readable, and returns which. The caller must know
/// that the first one, a plain number, is open. After an error, both are reported as readable, and
/// the caller checks them itself.
pub(crate) fn wait_either(first: RawFd, second: BorrowedFd<'_>) -> (bool, bool) {
    let entry = |fd| libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    let mut polls = [entry(first), entry(second.as_raw_fd())];
    loop {
        // SAFETY: `polls` is two valid entries; a closed descriptor would only be reported as such.
        match check(unsafe { libc::poll(polls.as_mut_ptr(), 2, -1) }) {
            Ok(_) => return (polls[0].revents != 0, polls[1].revents != 0),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return (true, true),
        }
    }
}

/// Returns the number of a descriptor, for plans that only refer to it.
pub(crate) fn raw(fd: &impl AsRawFd) -> RawFd {
    fd.as_raw_fd()
}

/// Waits until a descriptor is readable, but no longer than `patience`. Returns whether it is
/// readable.
pub(crate) fn wait_readable_for(fd: RawFd, patience: Duration) -> bool {
    let mut entry = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    let milliseconds = i32::try_from(patience.as_millis()).unwrap_or(i32::MAX);
    // SAFETY: one valid entry; a closed descriptor would only be reported as such. An interruption
    // ends the wait early.
    let result = unsafe { libc::poll(&raw mut entry, 1, milliseconds) };
    result > 0 && entry.revents & libc::POLLIN != 0
}

/// Waits until the kernel has zeroed a word that was passed to it with `CLONE_CHILD_CLEARTID`.
pub(crate) fn wait_until_zero(word: &AtomicU32) {
    loop {
        let seen = word.load(Ordering::Acquire);
        if seen == 0 {
            return;
        }
        // SAFETY: the word is alive, and no timeout is given. The futex must not be private,
        // because the kernel performs a shared wake.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                word.as_ptr(),
                libc::FUTEX_WAIT,
                seen,
                ptr::null::<libc::timespec>(),
            )
        };
    }
}
/// Returns the size of a memory page in bytes.
pub(crate) fn page_size() -> usize {
    // SAFETY: takes a plain number.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).unwrap_or(4096)
}
