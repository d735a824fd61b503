//! A system call filter that responds like an old kernel, a container or an emulator of a single
//! process.
#![expect(unsafe_code, reason = "installing a seccomp filter")]

use libc::{
    BPF_ABS, BPF_JEQ, BPF_JMP, BPF_JSET, BPF_K, BPF_LD, BPF_RET, BPF_W, c_long, sock_filter,
};

/// The system calls to reject.
#[derive(Clone, Copy)]
pub(crate) enum Deny {
    /// Every use of a call.
    Call(c_long),
    /// A call whose first argument has any of these bits.
    Bits(c_long, u32),
    /// A call whose first argument is this number.
    First(c_long, u32),
    /// A call whose third argument is this number.
    Third(c_long, u32),
}

/// The calls that emulators of a single process do not implement.
pub(crate) const WITHOUT_ADOPTION: [Deny; 2] = [
    Deny::First(libc::SYS_prctl, libc::PR_SET_CHILD_SUBREAPER as u32),
    Deny::First(libc::SYS_prctl, libc::PR_GET_CHILD_SUBREAPER as u32),
];

/// Installs the filter for all threads of this process and all its descendants.
pub(crate) fn deny(calls: &[Deny], errno: i32) {
    let code = |parts: u32| u16::try_from(parts).unwrap();
    let statement = |parts, k| sock_filter {
        code: code(parts),
        jt: 0,
        jf: 0,
        k,
    };
    let jump = |parts, k, jt, jf| sock_filter {
        code: code(parts),
        jt,
        jf,
        k,
    };
    // The call number is at offset 0, and the low half of the first argument is at 16
    // (little-endian).
    let load = |offset| statement(BPF_LD | BPF_W | BPF_ABS, offset);
    let refuse = statement(
        BPF_RET | BPF_K,
        libc::SECCOMP_RET_ERRNO | errno.unsigned_abs(),
    );
    let mut program = Vec::new();
    for call in calls {
        let (Deny::Call(number)
        | Deny::Bits(number, _)
        | Deny::First(number, _)
        | Deny::Third(number, _)) = *call;
        let number = u32::try_from(number).unwrap();
        program.push(load(0));
        match *call {
            Deny::Call(_) => program.push(jump(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1)),
            Deny::Bits(_, value) | Deny::First(_, value) | Deny::Third(_, value) => {
                let test = if matches!(call, Deny::Bits(..)) {
                    BPF_JSET
                } else {
                    BPF_JEQ
                };
                program.push(jump(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 3));
                let is_third = matches!(call, Deny::Third(..));
                program.push(load(if is_third { 32 } else { 16 }));
                program.push(jump(BPF_JMP | test | BPF_K, value, 0, 1));
            }
        }
        program.push(refuse);
    }
    program.push(statement(BPF_RET | BPF_K, libc::SECCOMP_RET_ALLOW));
    let filter = libc::sock_fprog {
        len: u16::try_from(program.len()).unwrap(),
        filter: program.as_mut_ptr(),
    };
    // SAFETY: takes plain numbers.
    let result = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    assert_eq!(result, 0);
    // SAFETY: the filter points to `len` instructions that live until the call returns.
    let result = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_TSYNC,
            &raw const filter,
        )
    };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

/// Returns whether filters can be installed. An emulator of a single process does not support them,
/// because a filter would affect the emulator itself.
pub(crate) fn has_filters() -> bool {
    let allow = libc::SECCOMP_RET_ALLOW;
    // SAFETY: this is only a query; `allow` is valid for reads.
    let asked = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_GET_ACTION_AVAIL,
            0,
            &raw const allow,
        )
    };
    asked == 0
}
