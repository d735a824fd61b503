//! Creates processes with `fork` and `execve`: the last rung. It is slow for large parents, but
//! every Linux system supports it.
//!
//! The child has a copy of the memory, so it reports a failure through a close-on-exec pipe; end of
//! file means that the program runs. The child executes the same code as on the other rungs and
//! accesses only its plan.
#![expect(unsafe_code, reason = "fork")]

use std::fs::File;
use std::io::Read;
use std::ptr;

use super::{Created, Failure};
use crate::child::{ChildPlan, Descriptors, child_main};
use crate::error::Stage;
use crate::sys::{self, WaitFor};

/// Creates the process. Returns when the process executes its program, or when it has failed to do
/// so and has been reaped.
pub(super) fn spawn(child: &mut ChildPlan<'_>) -> Result<Created, Failure> {
    let os = |error: std::io::Error| Failure::new(Stage::Clone, error.raw_os_error().unwrap_or(0));
    let (read_end, write_end) = sys::pipe().map_err(os)?;
    child.report_fd = sys::raw(&write_end);
    let descriptors = child.descriptors;
    if let Descriptors::Unshare { .. } = descriptors {
        child.descriptors = Descriptors::Sweep;
    }
    // SAFETY: the child calls nothing but `child_main`, which is async-signal-safe and does not
    // return into this function: it ends in execve or _exit.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        child_main(ptr::from_mut(child).cast());
    }
    child.report_fd = -1;
    child.descriptors = descriptors;
    if pid < 0 {
        return Err(Failure::new(Stage::Clone, sys::errno()));
    }
    drop(write_end);
    let mut report = Vec::with_capacity(8);
    // A failed read or a short report counts as success; the exit status then shows the failure.
    let _ = File::from(read_end).read_to_end(&mut report);
    if let Ok(bytes) = <[u8; 8]>::try_from(report.as_slice()) {
        let [s0, s1, s2, s3, e0, e1, e2, e3] = bytes;
        if let Some(stage) = Stage::from_number(u32::from_ne_bytes([s0, s1, s2, s3])) {
            let _ = sys::wait(WaitFor::Pid(pid), 0);
            return Err(Failure::new(stage, i32::from_ne_bytes([e0, e1, e2, e3])));
        }
    }
    Ok(Created {
        pid,
        pidfd: None,
        ended: false,
    })
}
