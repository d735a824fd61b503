//! Errors of this crate: invalid plans, launchers that cannot start, and failed spawns with the
//! step that failed.
//!
//! A failed spawn is reported in an event, so `SpawnError` contains the step, the OS error number
//! and the path, and can tell whether a retry may help.

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// An invalid plan, which can never be spawned.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The argument list has no program.
    #[error("read the argument list: it is empty, expected a program as first element")]
    NoProgram,
    /// The program's name is the empty string.
    #[error("read the argument list: the program name is empty")]
    EmptyProgram,
    /// An argument contains a NUL byte.
    #[error("encode argument {index}: it contains a NUL byte")]
    NulInArgument {
        /// The position in the argument list; 0 is the program.
        index: usize,
    },
    /// A variable's name is empty or contains `=` or NUL.
    #[error(
        "encode environment variable {name:?}: a name is not empty and contains neither '=' nor NUL"
    )]
    BadVariableName {
        /// The offending name, lossily decoded.
        name: String,
    },
    /// A variable's value contains a NUL byte.
    #[error("encode environment variable {name:?}: its value contains a NUL byte")]
    NulInVariable {
        /// The variable's name, lossily decoded.
        name: String,
    },
}

/// The reason why a launcher could not be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LauncherError {
    /// A system call failed.
    #[error("start the launcher: {step}")]
    Os {
        /// The step that failed.
        step: &'static str,
        /// The error reported by the operating system.
        #[source]
        source: io::Error,
    },
    /// The requested backend does not exist.
    #[error("choose a spawn backend: expected one of {expected}, found {found:?}")]
    UnknownBackend {
        /// The requested name.
        found: String,
        /// The accepted names.
        expected: &'static str,
    },
    /// The requested backend does not work on this machine.
    #[error("use the spawn backend {backend}: {reason}")]
    BackendUnavailable {
        /// The name of the backend.
        backend: &'static str,
        /// The missing feature.
        reason: &'static str,
    },
    /// The requested strategy needs something that this build or the caller does not provide.
    #[error("use the spawn strategy {strategy}: {reason}")]
    StrategyUnavailable {
        /// The name of the strategy.
        strategy: &'static str,
        /// The missing feature.
        reason: &'static str,
    },
}

/// The step at which a spawn failed. The variants are in the order of the steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
#[non_exhaustive]
pub enum Stage {
    /// Looking up the program in `PATH`.
    Resolve = 1,
    /// Encoding a path, which contains NUL.
    Encode = 2,
    /// Creating a missing directory for the task.
    CreateDir = 3,
    /// Creating the process.
    Clone = 4,
    /// Giving the child its own table of file descriptors.
    Descriptors = 5,
    /// Resetting signal dispositions.
    Signals = 6,
    /// Starting a new session.
    Session = 7,
    /// Setting the parent-death signal.
    DeathSignal = 8,
    /// Entering the control group.
    Cgroup = 9,
    /// Writing the out-of-memory score.
    OomScore = 10,
    /// Setting the CPU affinity.
    Affinity = 11,
    /// Setting the nice value.
    Nice = 12,
    /// Setting a resource limit.
    Rlimit = 13,
    /// Changing the working directory.
    Chdir = 14,
    /// Preparing standard input.
    Stdin = 15,
    /// Preparing standard output.
    Stdout = 16,
    /// Preparing standard error.
    Stderr = 17,
    /// Marking inherited descriptors close-on-exec.
    Sweep = 18,
    /// Setting the signal mask.
    SignalMask = 19,
    /// Executing the program.
    Exec = 20,
    /// Nothing failed: the request was canceled before it started.
    Cancelled = 21,
    /// Waiting for the child.
    Wait = 22,
    /// Starting a new process group.
    Group = 23,
    /// Running the caller's preparation before the child is created
    /// ([`crate::SpawnPlan::prepare`]).
    Prepare = 25,
}

impl Stage {
    /// Describes the step as a phrase that fits after "failed to".
    #[must_use]
    pub const fn describe(self) -> &'static str {
        match self {
            Self::Resolve => "find program",
            Self::Encode => "encode path",
            Self::CreateDir => "create directory",
            Self::Clone => "create a process for",
            Self::Descriptors => "separate the file descriptors",
            Self::Signals => "reset signal dispositions",
            Self::Session => "start a session",
            Self::DeathSignal => "set the parent-death signal",
            Self::Cgroup => "enter the control group",
            Self::OomScore => "set the out-of-memory score",
            Self::Affinity => "set the CPU affinity",
            Self::Nice => "set the nice value",
            Self::Rlimit => "set a resource limit",
            Self::Chdir => "enter working directory",
            Self::Stdin => "open stdin",
            Self::Stdout => "open stdout",
            Self::Stderr => "open stderr",
            Self::Sweep => "mark descriptors close-on-exec",
            Self::SignalMask => "set the signal mask",
            Self::Exec => "execute program",
            Self::Cancelled => "start the program",
            Self::Wait => "wait for the process",
            Self::Group => "start a process group",
            Self::Prepare => "prepare",
        }
    }

    /// Returns the stage with this number, if there is one.
    pub(crate) fn from_number(number: u32) -> Option<Self> {
        const ALL: [Stage; 24] = [
            Stage::Resolve,
            Stage::Encode,
            Stage::CreateDir,
            Stage::Clone,
            Stage::Descriptors,
            Stage::Signals,
            Stage::Session,
            Stage::DeathSignal,
            Stage::Cgroup,
            Stage::OomScore,
            Stage::Affinity,
            Stage::Nice,
            Stage::Rlimit,
            Stage::Chdir,
            Stage::Stdin,
            Stage::Stdout,
            Stage::Stderr,
            Stage::Sweep,
            Stage::SignalMask,
            Stage::Exec,
            Stage::Cancelled,
            Stage::Wait,
            Stage::Group,
            Stage::Prepare,
        ];
        ALL.into_iter().find(|stage| *stage as u32 == number)
    }
}

/// The kind of a failed spawn, for callers that handle it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SpawnErrorKind {
    /// The program, a directory or an input file does not exist.
    NotFound,
    /// The program exists, but its interpreter or loader does not.
    InterpreterNotFound,
    /// A permission is missing.
    PermissionDenied,
    /// The file is a binary, but not one for this machine.
    NotExecutable,
    /// A component of a path is not a directory.
    NotADirectory,
    /// Arguments and environment together are too long for the kernel.
    TooLong,
    /// The machine lacks a resource (processes, memory, descriptors), the program file is being
    /// written, or the control group was removed.
    Transient,
    /// The request was canceled before the process existed.
    Cancelled,
    /// Anything else.
    Other,
}

/// A spawn that failed.
///
/// `Display` names the step, its path, the operating system's error and, if there is one, a hint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpawnError {
    /// The step that failed.
    pub stage: Stage,
    /// The operating system's error number.
    pub errno: i32,
    /// The path that the step used, if any.
    pub path: Option<PathBuf>,
    /// For [`Stage::Exec`] with `ENOENT`: whether the program file itself exists.
    pub(crate) program_exists: bool,
    /// For [`Stage::Exec`] with `E2BIG`: the single string that is too long, and its length.
    pub(crate) too_long: Option<(String, usize)>,
}

impl SpawnError {
    pub(crate) const fn new(stage: Stage, errno: i32, path: Option<PathBuf>) -> Self {
        Self {
            stage,
            errno,
            path,
            program_exists: false,
            too_long: None,
        }
    }

    pub(crate) const fn cancelled() -> Self {
        Self::new(Stage::Cancelled, libc::ECANCELED, None)
    }

    /// Returns whether the failure is caused by a temporary state of the machine and not by the
    /// task.
    ///
    /// The launcher has already retried such failures for
    /// [`crate::LauncherConfig::transient_limit`].
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        matches!(
            self.errno,
            libc::EAGAIN | libc::ENOMEM | libc::EMFILE | libc::ENFILE | libc::ETXTBSY
        )
    }

    /// Returns whether the control group was removed. It will not reappear for this request, but
    /// another request can get a new one.
    fn is_group_gone(&self) -> bool {
        self.stage == Stage::Cgroup && matches!(self.errno, libc::ENOENT | libc::ENODEV)
    }

    /// Returns the kind of the failure.
    #[must_use]
    pub fn kind(&self) -> SpawnErrorKind {
        if self.stage == Stage::Cancelled {
            return SpawnErrorKind::Cancelled;
        }
        if self.is_transient() || self.is_group_gone() {
            return SpawnErrorKind::Transient;
        }
        match self.errno {
            libc::ENOENT if self.program_exists => SpawnErrorKind::InterpreterNotFound,
            libc::ENOENT => SpawnErrorKind::NotFound,
            libc::EACCES | libc::EPERM => SpawnErrorKind::PermissionDenied,
            libc::ENOEXEC => SpawnErrorKind::NotExecutable,
            libc::ENOTDIR => SpawnErrorKind::NotADirectory,
            libc::E2BIG | libc::ENAMETOOLONG => SpawnErrorKind::TooLong,
            _ => SpawnErrorKind::Other,
        }
    }

    /// Returns advice for the user, if there is any.
    #[must_use]
    pub fn hint(&self) -> Option<Cow<'static, str>> {
        if let Some((name, len)) = &self.too_long {
            return Some(Cow::Owned(format!(
                "{name} has {len} bytes, more than the kernel accepts in one string. Pass it in a file or on standard input"
            )));
        }
        self.fixed_hint().map(Cow::Borrowed)
    }

    fn fixed_hint(&self) -> Option<&'static str> {
        match (self.kind(), self.stage) {
            (SpawnErrorKind::NotExecutable, _) => {
                Some("the file is a binary, but not one for this machine")
            }
            (SpawnErrorKind::InterpreterNotFound, _) => Some(
                "the file exists, but the interpreter of its #! line or its dynamic loader does not",
            ),
            (SpawnErrorKind::PermissionDenied, Stage::Exec) => Some(
                "the file must be executable (`chmod +x FILE`), and its file system mounted without `noexec`",
            ),
            (SpawnErrorKind::NotFound, Stage::Resolve) => Some(
                "the task's PATH does not contain the program. Give an absolute path, or set PATH for the task",
            ),
            (_, Stage::Stdout | Stage::Stderr) if self.errno == libc::ENXIO => Some(
                "a FIFO needs a reader before the task starts; a socket cannot be an output file, and /dev/tty requires a terminal",
            ),
            (_, Stage::Stdout | Stage::Stderr) if self.errno == libc::ELOOP => Some(
                "the file or its directory is a link of another user, which could lead to any file. Remove the link, or name the files with --stdout and --stderr",
            ),
            (_, Stage::Stdout | Stage::Stderr) if self.errno == libc::EEXIST => Some(
                "another user may have put this there to receive the output or to have a file overwritten: it is not a regular file of this user with one name. Remove it, or name the files with --stdout and --stderr",
            ),
            (SpawnErrorKind::TooLong, Stage::Exec) => {
                Some("arguments and environment together exceed the kernel's limit")
            }
            _ => None,
        }
    }

    /// Returns the operating system's error.
    #[must_use]
    pub fn os_error(&self) -> io::Error {
        io::Error::from_raw_os_error(self.errno)
    }

    /// Returns the path that the step used, if any.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }
}

impl fmt::Display for SpawnError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.stage.describe())?;
        if let Some(path) = &self.path {
            write!(f, " {:?}", path.display().to_string())?;
        }
        if self.stage == Stage::Cancelled {
            return f.write_str(": cancelled before start");
        }
        write!(f, ": {}", self.os_error())?;
        if let Some(hint) = self.hint() {
            write!(f, " ({hint})")?;
        }
        Ok(())
    }
}

impl std::error::Error for SpawnError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_stage_number_leads_back_to_its_stage() {
        let mut found = 0;
        for number in 0..100 {
            if let Some(stage) = Stage::from_number(number) {
                assert_eq!(stage as u32, number);
                found += 1;
            }
        }
        assert_eq!(found, 24);
    }

    #[test]
    fn display_names_step_path_and_os_error() {
        let error = SpawnError::new(Stage::Chdir, libc::ENOENT, Some(PathBuf::from("/no/such")));
        assert_eq!(
            error.to_string(),
            "enter working directory \"/no/such\": No such file or directory (os error 2)"
        );
        assert_eq!(error.kind(), SpawnErrorKind::NotFound);
        assert!(!error.is_transient());
    }

    #[test]
    fn a_control_group_that_is_gone_is_not_the_fault_of_the_task() {
        for errno in [libc::ENOENT, libc::ENODEV] {
            let kind = SpawnError::new(Stage::Cgroup, errno, None).kind();
            assert_eq!(kind, SpawnErrorKind::Transient);
        }
        let kind = SpawnError::new(Stage::Cgroup, libc::EACCES, None).kind();
        assert_eq!(kind, SpawnErrorKind::PermissionDenied);
    }

    #[test]
    fn a_binary_of_another_machine_gets_a_hint() {
        let error = SpawnError::new(Stage::Exec, libc::ENOEXEC, Some(PathBuf::from("/x")));
        assert_eq!(error.kind(), SpawnErrorKind::NotExecutable);
        assert!(error.to_string().contains("not one for this machine"));
    }
}
