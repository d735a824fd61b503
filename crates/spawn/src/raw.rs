//! System calls that do not change the C library's `errno`.
//!
//! A child that shares its parent's memory also shares the `errno` of the thread that created it.
//! If that thread does not sleep until the child has left, both would overwrite each other's value.
#![expect(unsafe_code, reason = "system calls")]

use core::ffi::{c_int, c_long, c_void};

/// A resource limit in the kernel's layout.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct KernelRlimit {
    pub(crate) soft: u64,
    pub(crate) hard: u64,
}

const _: () = assert!(size_of::<KernelRlimit>() == 16);

/// The number of open descriptors. glibc and musl use different types for resource numbers.
pub(crate) const RLIMIT_NOFILE: u32 = 7;
/// The number of locked files, which no kernel counts anymore.
pub(crate) const RLIMIT_LOCKS: u32 = 10;

const _: () = assert!(RLIMIT_NOFILE as u64 == libc::RLIMIT_NOFILE as u64);
const _: () = assert!(RLIMIT_LOCKS as u64 == libc::RLIMIT_LOCKS as u64);

/// Whether calls leave `errno` unchanged. This is only implemented on these architectures.
pub(crate) const LEAVES_ERRNO: bool = cfg!(any(target_arch = "x86_64", target_arch = "aarch64"));

/// Makes the system call with this number and returns its result or an error number.
///
/// # Safety
///
/// The arguments must be those that the call expects, and all pointers must be valid for its
/// accesses.
pub(crate) unsafe fn call(number: c_long, arguments: [usize; 5]) -> Result<usize, c_int> {
    // SAFETY: guaranteed by the caller.
    let result = unsafe { invoke(number, arguments) };
    // A result is never an address in the last page, so these values are errors.
    if (-4095..0).contains(&result) {
        return Err(c_int::try_from(result.wrapping_neg()).unwrap_or(libc::EIO));
    }
    Ok(usize::try_from(result.cast_unsigned()).unwrap_or(usize::MAX))
}

/// The entry function of a child. It must not return.
pub(crate) type Entry = extern "C" fn(*mut c_void) -> c_int;

/// Calls `clone` with a stack for the child, which runs `entry(argument)` on it. Returns the
/// child's id or an error number. With `CLONE_PIDFD`, the kernel writes the pidfd to `pidfd`.
///
/// The C library's function does not work here: up to glibc 2.24, if they share memory, its child
/// overwrites the library's ids of the calling thread with -1, and a later join of that thread
/// fails.
///
/// # Safety
///
/// `top` must be the aligned end of a stack that is not used until the child has left this memory.
/// Until then, `argument` must be valid for `entry`. `entry` must end the process or execute a
/// program. `pidfd` must be valid for writes.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(crate) unsafe fn clone(
    flags: c_int,
    top: *mut c_void,
    pidfd: *mut c_int,
    entry: Entry,
    argument: *mut c_void,
) -> Result<libc::pid_t, c_int> {
    // The order of the last two arguments (the addresses for the child's thread-local memory and
    // id) depends on the architecture. Both are zero.
    let arguments = [int(flags), top.addr(), pidfd.expose_provenance(), 0, 0];
    // SAFETY: guaranteed by the caller.
    let result = unsafe { call_in_two(libc::SYS_clone, arguments, entry, argument) };
    pid_or_error(result)
}

/// Does the same as [`clone`], with `clone3`: `arguments` contain the stack and the address for the
/// pidfd.
///
/// # Safety
///
/// The same as for [`clone`].
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(crate) unsafe fn clone3(
    arguments: &libc::clone_args,
    entry: Entry,
    argument: *mut c_void,
) -> Result<libc::pid_t, c_int> {
    let address = core::ptr::from_ref(arguments).expose_provenance();
    let arguments = [address, size_of::<libc::clone_args>(), 0, 0, 0];
    // SAFETY: guaranteed by the caller.
    let result = unsafe { call_in_two(libc::SYS_clone3, arguments, entry, argument) };
    pid_or_error(result)
}

/// Makes a call that returns twice: in the parent, with the child's id or a negative error number,
/// and in the child, which continues with `entry(argument)` on the new stack and never returns.
///
/// # Safety
///
/// The same as for [`clone`].
#[cfg(target_arch = "x86_64")]
unsafe fn call_in_two(
    number: c_long,
    [a, b, c, d, e]: [usize; 5],
    entry: Entry,
    argument: *mut c_void,
) -> c_long {
    let result: c_long;
    // SAFETY: in the parent, this is a system call and a branch; the registers that the call
    // clobbers are declared. The child has a copy of the registers and the stack that the caller
    // provides, and calls a function that does not return.
    unsafe {
        core::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r13",
            "call r12",
            "ud2",
            "2:",
            inlateout("rax") number => result,
            in("rdi") a,
            in("rsi") b,
            in("rdx") c,
            in("r10") d,
            in("r8") e,
            in("r12") entry,
            in("r13") argument,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    result
}

/// The same as for x86-64.
///
/// # Safety
///
/// The same as for [`clone`].
#[cfg(target_arch = "aarch64")]
unsafe fn call_in_two(
    number: c_long,
    [a, b, c, d, e]: [usize; 5],
    entry: Entry,
    argument: *mut c_void,
) -> c_long {
    let result: c_long;
    // SAFETY: in the parent, this is a system call and a branch. The child has a copy of the
    // registers and the stack that the caller provides, and calls a function that does not return.
    unsafe {
        core::arch::asm!(
            "svc #0",
            "cbnz x0, 2f",
            "mov x29, xzr",
            "mov x0, x21",
            "blr x20",
            "brk #1",
            "2:",
            inlateout("x0") a => result,
            in("x1") b,
            in("x2") c,
            in("x3") d,
            in("x4") e,
            in("x8") number,
            in("x20") entry,
            in("x21") argument,
        );
    }
    result
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn pid_or_error(result: c_long) -> Result<libc::pid_t, c_int> {
    if result < 0 {
        return Err(c_int::try_from(result.wrapping_neg()).unwrap_or(libc::EIO));
    }
    Ok(libc::pid_t::try_from(result).unwrap_or(0))
}

/// The same as for x86-64, through the C library.
///
/// # Safety
///
/// The same as for x86-64.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(crate) unsafe fn clone(
    flags: c_int,
    top: *mut c_void,
    pidfd: *mut c_int,
    entry: Entry,
    argument: *mut c_void,
) -> Result<libc::pid_t, c_int> {
    // SAFETY: guaranteed by the caller.
    let pid = unsafe { libc::clone(entry, top, flags, argument, pidfd) };
    if pid >= 0 {
        return Ok(pid);
    }
    // SAFETY: the address is valid for the thread's life.
    Err(unsafe { *libc::__errno_location() })
}

/// Converts a number to a system call argument.
pub(crate) const fn int(value: c_int) -> usize {
    (value as isize).cast_unsigned()
}

/// # Safety
///
/// The same as for [`call`].
#[cfg(target_arch = "x86_64")]
unsafe fn invoke(number: c_long, [a, b, c, d, e]: [usize; 5]) -> c_long {
    let result: c_long;
    // SAFETY: guaranteed by the caller; the registers that the instruction clobbers are declared.
    unsafe {
        core::arch::asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") a,
            in("rsi") b,
            in("rdx") c,
            in("r10") d,
            in("r8") e,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result
}

/// # Safety
///
/// The same as for [`call`].
#[cfg(target_arch = "aarch64")]
unsafe fn invoke(number: c_long, [a, b, c, d, e]: [usize; 5]) -> c_long {
    let result: c_long;
    // SAFETY: guaranteed by the caller; the kernel preserves all other registers.
    unsafe {
        core::arch::asm!(
            "svc #0",
            in("x8") number,
            inlateout("x0") a.cast_signed() as c_long => result,
            in("x1") b,
            in("x2") c,
            in("x3") d,
            in("x4") e,
            options(nostack),
        );
    }
    result
}

/// # Safety
///
/// The same as for [`call`].
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
unsafe fn invoke(number: c_long, [a, b, c, d, e]: [usize; 5]) -> c_long {
    // SAFETY: guaranteed by the caller.
    let result = unsafe { libc::syscall(number, a, b, c, d, e) };
    if result >= 0 {
        return result;
    }
    // SAFETY: the address is valid for the thread's life, and the thread that shares it sleeps.
    -c_long::from(unsafe { *libc::__errno_location() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_answered_and_errno_is_left_alone() {
        // SAFETY: closing an invalid descriptor number has no effect.
        let closed = unsafe { call(libc::SYS_close, [int(-1), 0, 0, 0, 0]) };
        assert_eq!(closed, Err(libc::EBADF));
        if LEAVES_ERRNO {
            assert!(std::fs::File::open("/no/such/file").is_err());
            // SAFETY: as above.
            let _ = unsafe { call(libc::SYS_close, [int(-1), 0, 0, 0, 0]) };
            assert_eq!(crate::sys::errno(), libc::ENOENT);
        }
        // SAFETY: getpid takes nothing.
        let pid = unsafe { call(libc::SYS_getpid, [0; 5]) };
        assert_eq!(pid, Ok(std::process::id() as usize));
    }
}
