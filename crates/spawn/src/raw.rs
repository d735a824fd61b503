//! System calls that leave the C library's `errno` alone.
//!
//! A child that shares its parent's memory also shares the `errno` of the thread that created it. If that thread does
//! not sleep until the child has left, the two would write over each other.
#![expect(unsafe_code, reason = "system calls")]

use core::ffi::{c_int, c_long};

/// Whether calls leave `errno` alone here: known for these machines only.
pub(crate) const LEAVES_ERRNO: bool = cfg!(any(target_arch = "x86_64", target_arch = "aarch64"));

/// The call of this number: its result, or an error number.
///
/// # Safety
///
/// The arguments are what the call expects, and its pointers valid for what it does with them.
pub(crate) unsafe fn call(number: c_long, arguments: [usize; 5]) -> Result<usize, c_int> {
    // SAFETY: the caller's promise.
    let result = unsafe { invoke(number, arguments) };
    // The last page of addresses is never a result.
    if (-4095..0).contains(&result) {
        return Err(c_int::try_from(result.wrapping_neg()).unwrap_or(libc::EIO));
    }
    Ok(usize::try_from(result.cast_unsigned()).unwrap_or(usize::MAX))
}

/// A number as the kernel takes it.
pub(crate) const fn int(value: c_int) -> usize {
    (value as isize).cast_unsigned()
}

/// # Safety
///
/// As for [`call`].
#[cfg(target_arch = "x86_64")]
unsafe fn invoke(number: c_long, [a, b, c, d, e]: [usize; 5]) -> c_long {
    let result: c_long;
    // SAFETY: the caller's promise; what the instruction clobbers is declared.
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
/// As for [`call`].
#[cfg(target_arch = "aarch64")]
unsafe fn invoke(number: c_long, [a, b, c, d, e]: [usize; 5]) -> c_long {
    let result: c_long;
    // SAFETY: the caller's promise; the kernel keeps all other registers.
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
/// As for [`call`].
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
unsafe fn invoke(number: c_long, [a, b, c, d, e]: [usize; 5]) -> c_long {
    // SAFETY: the caller's promise.
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
        // SAFETY: closing a number that is no descriptor has no effect.
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
