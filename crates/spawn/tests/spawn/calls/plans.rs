//! The table of plans and of the system calls that a child makes for each of them.
//!
//! An entry is the text of a call as strace writes it, without its result; `*` stands for any text.

use std::cell::Cell;
use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use hq_spawn::{CpuSet, Rlimit, SpawnPlan, Stdio, TaskEnv};
use tempfile::TempDir;

use crate::harness::{command, compiled, eventually};
use crate::isolated::control_group;

/// A plan and the calls that it causes.
pub(crate) struct Plan {
    pub(crate) name: &'static str,
    /// Makes the plan of the next task.
    pub(crate) make: fn(&Setup) -> SpawnPlan,
    /// Whether the child leads a process group.
    pub(crate) has_group: bool,
    /// All calls of the child in order, after the calls [`RESET`].
    pub(crate) calls: &'static [&'static str],
}

/// The first calls of each child, one for each signal that the launcher ignores, in Rust programs
/// SIGPIPE. The clone itself resets handlers (`CLONE_CLEAR_SIGHAND`), but leaves ignored signals
/// ignored.
const RESET: &str = "rt_sigaction(*, {sa_handler=SIG_DFL, *";

/// The child gets a table of descriptors of its own, with standard streams only.
const OWN_TABLE: &str = "close_range(3, *, CLOSE_RANGE_UNSHARE)";
/// Closes the entries that the child had to copy because a descriptor that it needs has a higher
/// number: a control group or one of the plan.
const CLOSE_REST: &str = "close_range(3, *, 0)";
/// The directory of a guarded output, which must not be a link.
const OPEN_DIRECTORY: &str = "openat(AT_FDCWD, \"*\", *O_NOFOLLOW*O_PATH*";
/// The launcher's thread blocks signals. The program starts with none blocked.
const UNBLOCK: &str = "rt_sigprocmask(SIG_SETMASK, [], NULL, 8)";
const EXECUTE: &str = "execve(*";

pub(crate) const PLANS: &[Plan] = &[
    Plan {
        name: "plain",
        make: plain,
        has_group: false,
        calls: &[OWN_TABLE, UNBLOCK, EXECUTE],
    },
    Plan {
        name: "environment of 20 more variables",
        make: |setup| plain(setup).task_env(variables(20)),
        has_group: false,
        calls: &[OWN_TABLE, UNBLOCK, EXECUTE],
    },
    Plan {
        name: "session",
        make: |setup| plain(setup).new_session(true),
        has_group: true,
        calls: &["setsid()", OWN_TABLE, UNBLOCK, EXECUTE],
    },
    Plan {
        name: "working directory",
        make: |setup| plain(setup).cwd(&setup.directory),
        has_group: false,
        calls: &[OWN_TABLE, "chdir(*", UNBLOCK, EXECUTE],
    },
    Plan {
        name: "affinity",
        make: |setup| plain(setup).affinity(setup.cpus.clone()),
        has_group: false,
        calls: &[OWN_TABLE, "sched_setaffinity(0, 128, *", UNBLOCK, EXECUTE],
    },
    Plan {
        name: "limits",
        make: |setup| {
            let limit = |resource: u32, value| Rlimit {
                resource,
                soft: value,
                hard: value,
            };
            plain(setup)
                .rlimit(limit(libc::RLIMIT_NOFILE, 100))
                .rlimit(limit(libc::RLIMIT_CORE, 0))
                .nice(19)
                .umask(0o77)
        },
        has_group: false,
        calls: &[
            OWN_TABLE,
            "setpriority(PRIO_PROCESS, 0, 19)",
            "prlimit64(0, RLIMIT_CORE, *",
            "umask(077)",
            // Last, because it may be below the numbers of descriptors in use.
            "prlimit64(0, RLIMIT_NOFILE, *",
            UNBLOCK,
            EXECUTE,
        ],
    },
    Plan {
        name: CONTROL_GROUP,
        make: |setup| match &setup.group {
            Some((_, directory)) => plain(setup).cgroup(Arc::clone(directory)),
            None => plain(setup),
        },
        has_group: false,
        // The clone creates the child in the group.
        calls: &[
            // It also needs the descriptor of the group.
            "close_range(*, *, CLOSE_RANGE_UNSHARE)",
            CLOSE_REST,
            UNBLOCK,
            EXECUTE,
        ],
    },
    Plan {
        name: "standard input from memory",
        make: |setup| plain(setup).stdin(Stdio::Bytes(Arc::from(&b"text"[..]))),
        has_group: false,
        calls: &[
            OWN_TABLE,
            "memfd_create(\"stdin\", *",
            "write(*, \"text\", 4)",
            "lseek(*, 0, SEEK_SET)",
            "dup3(*, 0, 0)",
            UNBLOCK,
            EXECUTE,
        ],
    },
    Plan {
        name: "two output files",
        make: |setup| outputs(setup, &setup.next_name()),
        has_group: false,
        calls: &[
            OWN_TABLE,
            "openat(AT_FDCWD, \"*.out\", O_WRONLY|O_CREAT|O_NOCTTY|O_TRUNC|O_NONBLOCK*",
            // Only the open must not block.
            "fcntl(*, F_SETFL, *",
            "dup3(*, 1, 0)",
            "openat(AT_FDCWD, \"*.err\", O_WRONLY|O_CREAT|O_NOCTTY|O_TRUNC|O_NONBLOCK*",
            "fcntl(*, F_SETFL, *",
            "dup3(*, 2, 0)",
            // Two names of one file share one open file.
            "fstat(1, *",
            "fstat(2, *",
            UNBLOCK,
            EXECUTE,
        ],
    },
    Plan {
        name: "two new output files with predictable names",
        make: |setup| outputs(setup, &setup.next_name()).guard_outputs(|_| true),
        has_group: false,
        calls: &[
            OWN_TABLE,
            OPEN_DIRECTORY,
            "openat(*, \"*.out\", O_WRONLY|O_CREAT|O_EXCL|O_NOCTTY|O_TRUNC*",
            "dup3(*, 1, 0)",
            // The same directory.
            "openat(*, \"*.err\", O_WRONLY|O_CREAT|O_EXCL|O_NOCTTY|O_TRUNC*",
            "dup3(*, 2, 0)",
            // This file is new, so it is not the other one.
            UNBLOCK,
            EXECUTE,
        ],
    },
    Plan {
        name: "two old output files with predictable names",
        make: |setup| outputs(setup, "old").guard_outputs(|_| true),
        has_group: false,
        calls: &[
            OWN_TABLE,
            OPEN_DIRECTORY,
            "openat(*, \"old.out\", O_WRONLY|O_CREAT|O_EXCL|*",
            // It exists. It is truncated if it is a plain file of this user with one name.
            "openat(*, \"old.out\", O_WRONLY|O_NOCTTY|O_NONBLOCK*",
            "geteuid()",
            "fstat(*",
            "ftruncate(*, 0)",
            "fcntl(*, F_SETFL, *",
            "dup3(*, 1, 0)",
            "openat(*, \"old.err\", O_WRONLY|O_CREAT|O_EXCL|*",
            "openat(*, \"old.err\", O_WRONLY|O_NOCTTY|O_NONBLOCK*",
            "geteuid()",
            "fstat(*",
            "ftruncate(*, 0)",
            "fcntl(*, F_SETFL, *",
            "dup3(*, 2, 0)",
            "fstat(1, *",
            "fstat(2, *",
            UNBLOCK,
            EXECUTE,
        ],
    },
    Plan {
        name: "batch task (SpawnPlan::new)",
        make: |setup| command(&[setup.program()]),
        has_group: true,
        calls: &[
            "setsid()",
            "prctl(PR_SET_PDEATHSIG, SIGKILL)",
            // The launcher may have died before.
            "getppid()",
            // `/dev/null`, which `prepare_process` has opened, is 3.
            "close_range(4, *, CLOSE_RANGE_UNSHARE)",
            "dup3(*, 0, 0)",
            "dup3(*, 1, 0)",
            "dup3(*, 2, 0)",
            UNBLOCK,
            EXECUTE,
        ],
    },
];

impl Plan {
    /// Returns all calls of a child whose launcher ignores these signals.
    pub(crate) fn all_calls(&self, ignored: u64) -> Vec<&'static str> {
        let mut calls = vec![RESET; ignored.count_ones() as usize];
        calls.extend(self.calls);
        calls
    }
}

/// The plan that needs a control group, which not every user may create.
pub(crate) const CONTROL_GROUP: &str = "control group";

/// The files and other objects of the plans.
pub(crate) struct Setup {
    pub(crate) directory: PathBuf,
    program: PathBuf,
    cpus: CpuSet,
    /// The number of names in use.
    names: Cell<u64>,
    pub(crate) group: Option<(PathBuf, Arc<OwnedFd>)>,
}

impl Setup {
    pub(crate) fn new(dir: &TempDir) -> Self {
        let source = "int main(void) { return 0; }";
        let program = compiled(dir, "noop", source).unwrap_or_else(|| "/bin/true".into());
        let group = control_group().map(|path| {
            let directory = File::open(&path).unwrap();
            (path, Arc::new(directory.into()))
        });
        Self {
            directory: dir.path().to_path_buf(),
            program,
            cpus: (0..1024).collect(),
            names: Cell::new(0),
            group,
        }
    }

    fn program(&self) -> &str {
        self.program.to_str().unwrap()
    }

    /// Returns a name that no other file has.
    fn next_name(&self) -> String {
        self.names.set(self.names.get() + 1);
        self.names.get().to_string()
    }

    /// Removes the control group.
    pub(crate) fn finish(self) {
        if let Some((path, _)) = &self.group {
            eventually("the group is empty", || fs::remove_dir(path).ok());
        }
    }
}

/// Returns the plan that asks for nothing: the session and streams of the launcher, which it may
/// outlive.
pub(crate) fn plain(setup: &Setup) -> SpawnPlan {
    command(&[setup.program()])
        .new_session(false)
        .death_signal(None)
        .stdin(Stdio::Inherit)
        .stdout(Stdio::Inherit)
        .stderr(Stdio::Inherit)
}

fn outputs(setup: &Setup, name: &str) -> SpawnPlan {
    let file = |extension: &str| Stdio::File {
        path: setup.directory.join(format!("{name}.{extension}")),
    };
    plain(setup).stdout(file("out")).stderr(file("err"))
}

/// Returns so many variables for one task.
pub(crate) fn variables(count: u64) -> TaskEnv {
    let mut env = TaskEnv::new();
    for index in 0..count {
        env.set_display(&format!("HQ_SPAWN_TEST_{index}"), index)
            .unwrap();
    }
    env
}
