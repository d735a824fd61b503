//! Private stacks for children that share the parent's memory.
//!
//! Each spawner thread owns a stack and reuses it. The parent waits until the child has executed
//! its program or ended, so at most one child uses the stack. The lowest page is a guard.
#![expect(unsafe_code, reason = "memory mapping")]

use std::io;
use std::ptr;

/// The size of the stack. The child makes system calls through thin wrappers and needs a few KiB at
/// most; unused pages are never touched and cost nothing.
const STACK_BYTES: usize = 64 * 1024;

/// The size of the guard below the stack. It covers the page sizes of all supported machines (64
/// KiB on some aarch64 machines).
const GUARD_BYTES: usize = 64 * 1024;

/// A mapped stack with a guard below it.
#[derive(Debug)]
pub(crate) struct ChildStack {
    base: *mut libc::c_void,
}

// SAFETY: the mapping belongs only to this value; threads may use it one after another.
unsafe impl Send for ChildStack {}

impl ChildStack {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: an anonymous mapping at an address chosen by the kernel does not overlap existing
        // memory.
        let base = unsafe {
            libc::mmap(
                ptr::null_mut(),
                GUARD_BYTES + STACK_BYTES,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_STACK | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let stack = Self { base };
        let usable = base.wrapping_byte_add(GUARD_BYTES);
        // SAFETY: the range is the upper part of the mapping made above, which no other code knows
        // yet.
        let result =
            unsafe { libc::mprotect(usable, STACK_BYTES, libc::PROT_READ | libc::PROT_WRITE) };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(stack)
    }

    /// The number of usable bytes.
    pub(crate) const SIZE: usize = STACK_BYTES;

    /// Returns the lowest usable address.
    pub(crate) const fn bottom(&self) -> *mut libc::c_void {
        self.base.wrapping_byte_add(GUARD_BYTES)
    }

    /// Returns the address one past the highest byte, aligned for every ABI. The stack grows down
    /// from it.
    pub(crate) const fn top(&self) -> *mut libc::c_void {
        self.base.wrapping_byte_add(GUARD_BYTES + STACK_BYTES)
    }
}

impl Drop for ChildStack {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `new` with this size, and no child runs on it, because
        // the thread that used it has waited.
        unsafe { libc::munmap(self.base, GUARD_BYTES + STACK_BYTES) };
    }
}
