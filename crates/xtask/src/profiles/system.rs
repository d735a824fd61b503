//! Old systems: their kernels and missing features.

/// A kernel release.
pub(super) type Kernel = (u32, u32);

/// One kind of system.
pub(super) struct Profile {
    pub(super) name: &'static str,
    /// The distributions that it represents.
    pub(super) systems: &'static str,
    /// The kernel as released. Distributions backport features, so these systems may have more
    /// features than the profile.
    pub(super) kernel: Kernel,
    /// The newest system call. On x86-64, numbers only grow, so higher ones did not exist.
    pub(super) last_call: i64,
    /// Whether control groups of version 2 are mounted.
    pub(super) has_cgroup2: bool,
    /// Whether the kernel was built with `CONFIG_PROC_CHILDREN`.
    pub(super) lists_children: bool,
    /// The expected mechanism for creating processes, as named by `hq doctor`.
    pub(super) rung: &'static str,
    /// The tests of features that are missing on this system, and why.
    pub(super) without: &'static [(&'static str, &'static str)],
}

/// All profiles, oldest first.
pub(super) const PROFILES: &[Profile] = &[
    Profile {
        name: "linux-3.10",
        systems: "RHEL 7, CentOS 7",
        kernel: (3, 10),
        last_call: 313,
        has_cgroup2: false,
        lists_children: false,
        rung: "posix-spawn-wait",
        without: &[(
            "batch_slurm::",
            "munge 0.5.15, which authenticates Slurm's users, aborts without getrandom",
        )],
    },
    Profile {
        name: "linux-4.12",
        systems: "SLES 15, SP1",
        kernel: (4, 12),
        last_call: 332,
        has_cgroup2: false,
        lists_children: true,
        rung: "posix-spawn-wait",
        without: &[],
    },
    Profile {
        name: "linux-4.18",
        systems: "RHEL 8, Rocky 8",
        kernel: (4, 18),
        last_call: 334,
        has_cgroup2: false,
        lists_children: true,
        rung: "posix-spawn-wait",
        without: &[],
    },
    Profile {
        name: "linux-5.3",
        systems: "SLES 15 SP2, SP3",
        kernel: (5, 3),
        last_call: 435,
        has_cgroup2: false,
        lists_children: true,
        rung: "clone-pidfd",
        without: &[],
    },
    Profile {
        name: "linux-5.4",
        systems: "Ubuntu 20.04",
        kernel: (5, 4),
        last_call: 435,
        has_cgroup2: false,
        lists_children: true,
        rung: "clone-pidfd",
        without: &[],
    },
    Profile {
        name: "linux-5.14",
        systems: "RHEL 9, SLES 15 SP4 to SP7",
        kernel: (5, 14),
        last_call: 447,
        has_cgroup2: true,
        lists_children: true,
        rung: "clone-pidfd",
        without: &[],
    },
];

/// A feature that was added to an existing system call.
pub(super) struct Feature {
    pub(super) since: Kernel,
    pub(super) call: i64,
    pub(super) when: When,
    /// The error that kernels return if they do not know the feature.
    pub(super) errno: u32,
}

/// A condition on the arguments of a system call.
pub(super) enum When {
    /// Always true.
    Always,
    /// The argument of this index has all of these bits.
    Bits(u8, u64),
    /// The argument of this index has this value.
    Equals(u8, u64),
}

const EINVAL: u32 = 22;
const EISDIR: u32 = 21;
const ENOSYS: u32 = 38;

/// A flag of `open`: create a file without a name.
const TMPFILE: u64 = 0o20_000_000;

/// Features that can be detected from the arguments. A filter does not see memory, and cannot make
/// a flag ignored.
pub(super) const FEATURES: &[Feature] = &[
    // open, openat
    Feature {
        since: (3, 11),
        call: 2,
        when: When::Bits(1, TMPFILE),
        errno: EISDIR,
    },
    Feature {
        since: (3, 11),
        call: 257,
        when: When::Bits(2, TMPFILE),
        errno: EISDIR,
    },
    // fcntl: F_OFD_SETLK, F_ADD_SEALS
    Feature {
        since: (3, 15),
        call: 72,
        when: When::Equals(1, 37),
        errno: EINVAL,
    },
    Feature {
        since: (3, 17),
        call: 72,
        when: When::Equals(1, 1033),
        errno: EINVAL,
    },
    // prctl: PR_CAP_AMBIENT
    Feature {
        since: (4, 3),
        call: 157,
        when: When::Equals(0, 47),
        errno: EINVAL,
    },
    // madvise: MADV_FREE
    Feature {
        since: (4, 5),
        call: 28,
        when: When::Equals(2, 8),
        errno: EINVAL,
    },
    // clone: CLONE_PIDFD. These kernels ignore it; `probe.rs` in the spawn crate tests that.
    Feature {
        since: (5, 2),
        call: 56,
        when: When::Bits(0, 0x1000),
        errno: EINVAL,
    },
    // waitid: P_PIDFD
    Feature {
        since: (5, 4),
        call: 247,
        when: When::Equals(0, 3),
        errno: EINVAL,
    },
    // clone3: older kernels lack CLONE_CLEAR_SIGHAND, but its flags are in memory, so the whole
    // call is hidden.
    Feature {
        since: (5, 5),
        call: 435,
        when: When::Always,
        errno: ENOSYS,
    },
    // close_range: CLOSE_RANGE_CLOEXEC
    Feature {
        since: (5, 11),
        call: 436,
        when: When::Bits(2, 4),
        errno: EINVAL,
    },
    // memfd_create: MFD_NOEXEC_SEAL, MFD_EXEC
    Feature {
        since: (6, 3),
        call: 319,
        when: When::Bits(1, 8),
        errno: EINVAL,
    },
    Feature {
        since: (6, 3),
        call: 319,
        when: When::Bits(1, 0x10),
        errno: EINVAL,
    },
];

/// Returns the profile with this name.
pub(super) fn find(name: &str) -> Option<&'static Profile> {
    PROFILES.iter().find(|profile| profile.name == name)
}
