//! Creates processes with the C library's `posix_spawn`, for the plans that it supports.
//!
//! `posix_spawn` reports that a spawn failed, but not at which step. This module therefore returns
//! either a running process or `None`; the caller then creates the process step by step, which
//! succeeds or reports the failed step.
#![expect(unsafe_code, reason = "posix_spawn")]

use std::ffi::{CStr, c_int, c_void};
use std::mem::{MaybeUninit, transmute};
use std::sync::OnceLock;

use super::Created;
use crate::child::{ChildPlan, Descriptors, StdioStep};
use crate::plan::ProcessGroup;

/// Creates a session for the child. Supported by glibc since 2.26 and musl since 1.1.22; older
/// versions reject the flag.
const POSIX_SPAWN_SETSID: c_int = 0x80;

/// `posix_spawn_file_actions_addchdir_np`, available in glibc since 2.29 and in musl since 1.1.24.
type AddChdir =
    unsafe extern "C" fn(*mut libc::posix_spawn_file_actions_t, *const libc::c_char) -> c_int;

/// `posix_spawn_file_actions_addclosefrom_np`, available in glibc since 2.34.
type AddCloseFrom = unsafe extern "C" fn(*mut libc::posix_spawn_file_actions_t, c_int) -> c_int;

/// Creates the process. Returns `None` if `posix_spawn` does not support the plan or fails.
pub(super) fn spawn(child: &ChildPlan<'_>) -> Option<Created> {
    if !expressible(child) {
        return None;
    }
    let mut actions = Actions::new()?;
    if let Some(path) = child.cwd {
        actions.chdir(path)?;
    }
    for (step, target) in [(&child.stdin, 0), (&child.stdout, 1), (&child.stderr, 2)] {
        actions.stream(step, target)?;
    }
    if child.descriptors != Descriptors::Trust {
        actions.close_from(3)?;
    }
    let attributes = Attributes::new(child.process_group)?;
    let mut pid: libc::pid_t = 0;
    // SAFETY: program, argv and envp are valid C strings and null-terminated arrays of such; the
    // actions and attributes are initialised and live until the call returns.
    let result = unsafe {
        libc::posix_spawn(
            &raw mut pid,
            child.program.as_ptr(),
            &raw const actions.0,
            &raw const attributes.0,
            child.argv.as_ptr().cast(),
            child.envp.as_ptr().cast(),
        )
    };
    (result == 0).then_some(Created {
        pid,
        pidfd: None,
        ended: false,
    })
}

fn expressible(child: &ChildPlan<'_>) -> bool {
    child.death_signal == 0
        && child.affinity.is_empty()
        && child.umask.is_none()
        && child.rlimits.is_empty()
        && child.nice.is_none()
        && child.cgroup < 0
        && child.oom_score.is_empty()
}

struct Actions(libc::posix_spawn_file_actions_t);

impl Actions {
    fn new() -> Option<Self> {
        let mut actions = MaybeUninit::zeroed();
        // SAFETY: `actions` is valid for writes.
        let result = unsafe { libc::posix_spawn_file_actions_init(actions.as_mut_ptr()) };
        if result != 0 {
            return None;
        }
        // SAFETY: initialised by the successful call above.
        Some(Self(unsafe { actions.assume_init() }))
    }

    fn chdir(&mut self, path: &CStr) -> Option<()> {
        let add = add_chdir()?;
        // SAFETY: `add` is the C library's function of this signature; it copies the path.
        let result = unsafe { add(&raw mut self.0, path.as_ptr()) };
        (result == 0).then_some(())
    }

    fn close_from(&mut self, first: c_int) -> Option<()> {
        let add = add_close_from()?;
        // SAFETY: `add` is the C library's function of this signature; the actions are initialised.
        let result = unsafe { add(&raw mut self.0, first) };
        (result == 0).then_some(())
    }

    fn stream(&mut self, step: &StdioStep<'_>, target: c_int) -> Option<()> {
        let result = match step {
            StdioStep::Inherit => 0,
            // The parent would have to create the in-memory file. This is rare, so it is left to
            // the fallback.
            StdioStep::Bytes(_) => return None,
            StdioStep::Fd(fd) => self.duplicate(*fd, target),
            StdioStep::SameAsStdout => self.duplicate(1, target),
            // The flag could not be cleared after the open.
            StdioStep::Path(_, flags) if *flags & libc::O_NONBLOCK != 0 => return None,
            StdioStep::Guarded { .. } => return None,
            StdioStep::Path(path, flags) => {
                let flags = flags & !libc::O_CLOEXEC;
                // SAFETY: the actions are initialised; the path is copied.
                unsafe {
                    libc::posix_spawn_file_actions_addopen(
                        &raw mut self.0,
                        target,
                        path.as_ptr(),
                        flags,
                        0o666,
                    )
                }
            }
        };
        (result == 0).then_some(())
    }

    fn duplicate(&mut self, fd: c_int, target: c_int) -> c_int {
        // SAFETY: the actions are initialised; the rest are plain numbers.
        unsafe { libc::posix_spawn_file_actions_adddup2(&raw mut self.0, fd, target) }
    }
}

impl Drop for Actions {
    fn drop(&mut self) {
        // SAFETY: initialised in `new`, destroyed once.
        unsafe { libc::posix_spawn_file_actions_destroy(&raw mut self.0) };
    }
}

struct Attributes(libc::posix_spawnattr_t);

impl Attributes {
    /// Creates attributes that reset all signals to default and unblock them, and that request the
    /// session or process group.
    fn new(process_group: ProcessGroup) -> Option<Self> {
        let mut attributes = MaybeUninit::zeroed();
        // SAFETY: `attributes` is valid for writes.
        let result = unsafe { libc::posix_spawnattr_init(attributes.as_mut_ptr()) };
        if result != 0 {
            return None;
        }
        // SAFETY: initialised by the successful call above.
        let mut attributes = Self(unsafe { attributes.assume_init() });
        let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
        // SAFETY: `set` is valid for writes.
        unsafe { libc::sigfillset(set.as_mut_ptr()) };
        // SAFETY: both are initialised.
        let defaults =
            unsafe { libc::posix_spawnattr_setsigdefault(&raw mut attributes.0, set.as_ptr()) };
        // SAFETY: `set` is valid for writes.
        unsafe { libc::sigemptyset(set.as_mut_ptr()) };
        // SAFETY: both are initialised.
        let mask = unsafe { libc::posix_spawnattr_setsigmask(&raw mut attributes.0, set.as_ptr()) };
        let flags = libc::POSIX_SPAWN_SETSIGDEF | libc::POSIX_SPAWN_SETSIGMASK;
        let flags = flags
            | match process_group {
                ProcessGroup::Inherit => 0,
                // The group id is 0 by default, which stands for the child's process id.
                ProcessGroup::New => libc::POSIX_SPAWN_SETPGROUP,
                ProcessGroup::NewSession => POSIX_SPAWN_SETSID,
            };
        let flags = libc::c_short::try_from(flags).ok()?;
        // SAFETY: the attributes are initialised.
        let set_flags = unsafe { libc::posix_spawnattr_setflags(&raw mut attributes.0, flags) };
        (defaults == 0 && mask == 0 && set_flags == 0).then_some(attributes)
    }
}

impl Drop for Attributes {
    fn drop(&mut self) {
        // SAFETY: initialised in `new`, destroyed once.
        unsafe { libc::posix_spawnattr_destroy(&raw mut self.0) };
    }
}

/// The function is looked up at run time, so that the crate links against older C libraries.
fn add_chdir() -> Option<AddChdir> {
    static FOUND: OnceLock<Option<AddChdir>> = OnceLock::new();
    *FOUND.get_or_init(|| {
        let address = symbol(c"posix_spawn_file_actions_addchdir_np")?;
        // SAFETY: the symbol of this name is a function of this signature in every C library that
        // has it.
        Some(unsafe { transmute::<*mut c_void, AddChdir>(address) })
    })
}

fn add_close_from() -> Option<AddCloseFrom> {
    static FOUND: OnceLock<Option<AddCloseFrom>> = OnceLock::new();
    *FOUND.get_or_init(|| {
        let address = symbol(c"posix_spawn_file_actions_addclosefrom_np")?;
        // SAFETY: the symbol of this name is a function of this signature in every C library that
        // has it.
        Some(unsafe { transmute::<*mut c_void, AddCloseFrom>(address) })
    })
}

fn symbol(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: the name is a C string; RTLD_DEFAULT searches the loaded libraries.
    let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!address.is_null()).then_some(address)
}
