//! Checks the file that runs between clone and exec.
//!
//! The parent has other threads and shares its memory with the child. So this code must not
//! allocate, lock, format, panic or drop a value, and may only call thin wrappers of system calls
//! in the C library. Lints find some violations. This check makes sure that they are denied, and
//! that no other functions are called. Works on lines, like `source`.

use super::Problem;

/// The file that is checked.
const PATH: &str = "crates/spawn/src/child.rs";

/// The lints that the file must deny.
const DENIED: &[&str] = &[
    "indexing_slicing",
    "arithmetic_side_effects",
    "unwrap_used",
    "expect_used",
    "panic",
    "std_instead_of_core",
    "alloc_instead_of_core",
];

/// Async-signal-safe functions of the C library that do nothing but make a system call.
const CALLS: &[&str] = &[
    "__errno_location",
    "_exit",
    "chdir",
    "close",
    "dup2",
    "execve",
    "fcntl",
    "getppid",
    "lseek",
    "memfd_create",
    "open",
    "openat",
    "prctl",
    "setpgid",
    "setpriority",
    "setsid",
    "syscall",
    "umask",
    "write",
];

/// Crates, types and macros that allocate, lock, format, log or panic.
const FORBIDDEN: &[&str] = &[
    "std::",
    "alloc::",
    "tracing::",
    "Arc<",
    "Box<",
    "CString",
    "Mutex",
    "OnceLock",
    "OwnedFd",
    "Rc<",
    "String",
    "Vec<",
    "assert!(",
    "assert_eq!(",
    "format!(",
    "panic!(",
    "print!(",
    "println!(",
    "unreachable!(",
    "vec!",
    "write!(",
];

/// Checks this file. Other files have no such rules.
pub(super) fn check(path: &str, text: &str) -> Vec<Problem> {
    if path != PATH {
        return Vec::new();
    }
    let denies = |lint: &str| text.contains(&format!("clippy::{lint}"));
    let missing = DENIED.iter().filter(|lint| !denies(lint));
    let mut problems: Vec<Problem> = missing
        .map(|lint| {
            let message = format!("this file denies `clippy::{lint}`; add it to its list");
            Problem::new(path, 1, message)
        })
        .collect();
    for (line, number) in text.lines().zip(1..) {
        let code = line.trim_start();
        // The compiler evaluates constant assertions.
        if code.starts_with("//") || code.starts_with("const _: () = assert!(") {
            continue;
        }
        let found = FORBIDDEN.iter().find(|word| code.contains(**word));
        if let Some(word) = found {
            let message = format!("`{word}` may allocate, lock or panic; prepare it in the parent");
            problems.push(Problem::new(path, number, message));
        }
        for call in calls(code).filter(|call| !CALLS.contains(call)) {
            let message =
                format!("`libc::{call}` is not known to be async-signal-safe; use a system call");
            problems.push(Problem::new(path, number, message));
        }
    }
    problems
}

/// Returns the names of the C library functions that are called in a line.
fn calls(code: &str) -> impl Iterator<Item = &str> {
    code.split("libc::").skip(1).filter_map(|rest| {
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_')?;
        rest[end..].starts_with('(').then(|| &rest[..end])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_not_run_between_clone_and_exec_is_noticed() {
        let list: String = DENIED
            .iter()
            .map(|lint| format!("clippy::{lint},"))
            .collect();
        let with = |line: &str| check(PATH, &format!("{list}\n{line}\n")).len();
        assert_eq!(with("libc::setsid();"), 0);
        assert_eq!(with("libc::dup2(libc::open(a), libc::STDIN)"), 0);
        assert_eq!(with("// libc::malloc(1)"), 0);
        assert_eq!(with("const _: () = assert!(1 == 1);"), 0);
        assert_eq!(with("libc::malloc(1)"), 1);
        assert_eq!(with("libc::dup2(libc::getenv(a), 1)"), 1);
        assert_eq!(with("let x = Box<u8>;"), 1);
        assert_eq!(with("assert!(x);"), 1);
        assert_eq!(check(PATH, "").len(), DENIED.len());
        assert_eq!(
            check("crates/spawn/src/pool.rs", "libc::malloc(1)").len(),
            0
        );
    }
}
