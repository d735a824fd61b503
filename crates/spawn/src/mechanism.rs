//! Names of the rungs of `backend`: how a process is created and waited for.

/// How processes are created and waited for, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Backend {
    /// `clone3` or `clone` with shared memory, `CLONE_VFORK` and `CLONE_PIDFD`; waits on the pidfd
    /// (Linux 5.2).
    ClonePidfd,
    /// `posix_spawn`; one thread waits for all children.
    PosixSpawnWait,
    /// `fork` and `execve`; one thread waits for all children.
    Fork,
}

impl Backend {
    /// All backends, best first.
    pub const ALL: [Self; 3] = [Self::ClonePidfd, Self::PosixSpawnWait, Self::Fork];

    /// The name used in logs and in the environment variable `HQ_SPAWN_BACKEND`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::ClonePidfd => "clone-pidfd",
            Self::PosixSpawnWait => "posix-spawn-wait",
            Self::Fork => "fork",
        }
    }

    /// The backend of this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|backend| backend.name() == name)
    }

    /// Whether its children may start on the parent's descriptor table.
    pub(crate) const fn shares_descriptors(self) -> bool {
        // A plan on the posix_spawn rung may end in a fork, which copies the table in any case.
        matches!(self, Self::ClonePidfd)
    }
}
