//! Names the backends: the ways a process is created and waited for.

/// How processes are created and waited for. The variants are in order of preference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Backend {
    /// Uses `clone3` or `clone` with shared memory, `CLONE_VFORK` and `CLONE_PIDFD`, and waits on
    /// the pidfd (Linux 5.2).
    ClonePidfd,
    /// Uses `posix_spawn`. One thread waits for all children.
    PosixSpawnWait,
    /// Uses `fork` and `execve`. One thread waits for all children.
    Fork,
}

impl Backend {
    /// All backends, in order of preference.
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

    /// Returns the backend with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|backend| backend.name() == name)
    }

    /// Returns whether children may start with the parent's descriptor table.
    pub(crate) const fn shares_descriptors(self) -> bool {
        // A plan may fall back from posix_spawn to fork, which always copies the table.
        matches!(self, Self::ClonePidfd)
    }
}
