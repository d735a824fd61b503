//! Tests detection on fixture trees.

use std::collections::BTreeMap;

use tempfile::TempDir;

use super::*;

/// A machine described by files and environment variables.
struct Machine {
    root: TempDir,
    variables: BTreeMap<&'static str, &'static str>,
}

impl Machine {
    fn new(files: &[(&str, &str)]) -> Self {
        let root = tempfile::tempdir().expect("temporary directory");
        for (path, content) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("has a parent")).expect("create directory");
            fs::write(path, content).expect("write file");
        }
        Self {
            root,
            variables: BTreeMap::new(),
        }
    }

    fn with(mut self, name: &'static str, value: &'static str) -> Self {
        self.variables.insert(name, value);
        self
    }

    fn detector(&self) -> Detector {
        let variables = self.variables.clone();
        Detector::new(self.root.path(), move |name| {
            variables.get(name).map(OsString::from)
        })
    }
}

fn list(names: &[&str]) -> ResourceKind {
    ResourceKind::List(names.iter().map(|name| (*name).into()).collect())
}

const TWO_SOCKETS: &[(&str, &str)] = &[
    ("sys/devices/system/node/possible", "0-3\n"),
    ("sys/devices/system/node/node0/cpulist", "0-1,4-5\n"),
    ("sys/devices/system/node/node1/cpulist", "2-3,6-7\n"),
    ("sys/devices/system/node/node2/cpulist", "\n"),
    (
        "sys/devices/system/cpu/cpu0/topology/thread_siblings_list",
        "0,4\n",
    ),
    (
        "sys/devices/system/cpu/cpu1/topology/thread_siblings_list",
        "1,5\n",
    ),
    (
        "sys/devices/system/cpu/cpu2/topology/thread_siblings_list",
        "2,6\n",
    ),
    (
        "sys/devices/system/cpu/cpu3/topology/thread_siblings_list",
        "3,7\n",
    ),
    (
        "sys/devices/system/cpu/cpu4/topology/thread_siblings_list",
        "0,4\n",
    ),
    (
        "sys/devices/system/cpu/cpu5/topology/thread_siblings_list",
        "1,5\n",
    ),
    (
        "sys/devices/system/cpu/cpu6/topology/thread_siblings_list",
        "2,6\n",
    ),
    (
        "sys/devices/system/cpu/cpu7/topology/thread_siblings_list",
        "3,7\n",
    ),
];

fn groups(groups: &[&[&str]]) -> ResourceKind {
    let names = |group: &&[&str]| group.iter().map(|name| (*name).into()).collect();
    ResourceKind::Groups(groups.iter().map(names).collect())
}

fn two_sockets(more: &[(&str, &str)]) -> Machine {
    Machine::new(&[TWO_SOCKETS, more].concat())
}

#[test]
fn cpus_are_grouped_by_numa_node() {
    let expected = groups(&[&["0", "1", "4", "5"], &["2", "3", "6", "7"]]);
    assert_eq!(two_sockets(&[]).detector().cpus(false), expected);
}

#[test]
fn one_node_is_a_list() {
    let machine = Machine::new(&[
        ("sys/devices/system/node/possible", "0\n"),
        ("sys/devices/system/node/node0/cpulist", "0-1\n"),
    ]);
    assert_eq!(machine.detector().cpus(false), list(&["0", "1"]));
}

#[test]
fn affinity_mask_filters_cpus() {
    let status = ("proc/self/status", "Name:\tx\nCpus_allowed_list:\t1-4\n");
    let machine = two_sockets(&[status]);
    assert_eq!(
        machine.detector().cpus(false),
        groups(&[&["1", "4"], &["2", "3"]])
    );
    let machine = two_sockets(&[("proc/self/status", "Cpus_allowed_list:\t0,5\n")]);
    assert_eq!(machine.detector().cpus(false), list(&["0", "5"]));
}

#[test]
fn no_hyper_threading_keeps_one_usable_cpu_per_core() {
    assert_eq!(
        two_sockets(&[]).detector().cpus(true),
        groups(&[&["0", "1"], &["2", "3"]])
    );
    let machine = two_sockets(&[("proc/self/status", "Cpus_allowed_list:\t4-7\n")]);
    assert_eq!(
        machine.detector().cpus(true),
        groups(&[&["4", "5"], &["6", "7"]])
    );
}

#[test]
fn without_numa_the_mask_counts() {
    let machine = Machine::new(&[("proc/self/status", "Cpus_allowed_list:\t3,1\n")]);
    assert_eq!(machine.detector().cpus(false), list(&["1", "3"]));
    assert!(matches!(
        Machine::new(&[]).detector().cpus(false),
        ResourceKind::List(_)
    ));
}

#[test]
fn control_groups_limit_cpus_and_memory() {
    let meminfo = (
        "proc/meminfo",
        "MemTotal:       16777216 kB\nMemFree: 1 kB\n",
    );
    let v2 = two_sockets(&[
        meminfo,
        ("proc/self/cgroup", "0::/a/b\n"),
        ("sys/fs/cgroup/a/cpu.max", "250000 100000\n"),
        ("sys/fs/cgroup/a/b/cpu.max", "max 100000\n"),
        ("sys/fs/cgroup/a/b/memory.max", "1073741824\n"),
    ]);
    assert_eq!(v2.detector().cpus(false), list(&["0", "1"]));
    assert_eq!(
        v2.detector().memory(),
        Some(ResourceKind::Sum(Amount::whole(1024)))
    );
    let v1 = two_sockets(&[
        meminfo,
        ("proc/self/cgroup", "4:memory:/x\n3:cpu,cpuacct:/y\n"),
        ("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n"),
        ("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"),
        ("sys/fs/cgroup/cpu/y/cpu.cfs_quota_us", "50000\n"),
        ("sys/fs/cgroup/cpu/y/cpu.cfs_period_us", "100000\n"),
        (
            "sys/fs/cgroup/memory/memory.limit_in_bytes",
            "9223372036854771712\n",
        ),
    ]);
    assert_eq!(v1.detector().cpus(false), list(&["0"]));
    assert_eq!(
        v1.detector().memory(),
        Some(ResourceKind::Sum(Amount::whole(16_384)))
    );
}

#[test]
fn control_groups_are_surveyed_on_all_levels() {
    let v2 = Machine::new(&[
        ("proc/self/cgroup", "0::/a/b\n"),
        ("sys/fs/cgroup/cgroup.controllers", "cpu memory pids\n"),
        ("sys/fs/cgroup/a/pids.max", "100\n"),
        ("sys/fs/cgroup/a/pids.current", "40\n"),
        ("sys/fs/cgroup/a/b/pids.max", "max\n"),
        ("sys/fs/cgroup/a/b/pids.current", "3\n"),
        ("sys/fs/cgroup/a/b/cgroup.controllers", "memory pids\n"),
        ("sys/fs/cgroup/a/b/cgroup.procs", ""),
        ("sys/fs/cgroup/a/b/cgroup.subtree_control", ""),
    ]);
    let found = v2.detector().control_groups();
    let expected = ControlGroups {
        version: Some(2),
        can_limit_memory: true,
        processes_left: Some(60),
        ..ControlGroups::default()
    };
    assert_eq!(found, expected);
    let v1 = Machine::new(&[
        ("proc/self/cgroup", "5:pids:/x\n"),
        ("sys/fs/cgroup/pids/x/pids.max", "7\n"),
        ("sys/fs/cgroup/pids/x/pids.current", "9\n"),
    ]);
    let found = v1.detector().control_groups();
    assert_eq!((found.version, found.processes_left), (Some(1), Some(0)));
    let none = Machine::new(&[("proc/self/cgroup", "")]);
    assert_eq!(none.detector().control_groups(), ControlGroups::default());
}

#[test]
fn memory_is_counted_in_mib_and_slurm_decides() {
    let files: &[(&str, &str)] = &[("proc/meminfo", "MemTotal:       24684084 kB\n")];
    let machine = Machine::new(files);
    let Some(ResourceKind::Sum(amount)) = machine.detector().memory() else {
        panic!("sum")
    };
    assert_eq!(amount.0, 241_055_507);
    let machine = Machine::new(files).with("SLURM_MEM_PER_NODE", "4096");
    assert_eq!(
        machine.detector().memory(),
        Some(ResourceKind::Sum(Amount::whole(4096)))
    );
    assert_eq!(Machine::new(&[]).detector().memory(), None);
}

#[test]
fn the_smallest_limit_of_memory_counts() {
    let mib = |machine: Machine| machine.detector().memory().map(|kind| kind.total());
    let of = |value: u32| Some(Amount::whole(value));
    let machine = || {
        Machine::new(&[
            ("proc/meminfo", "MemTotal: 2097152 kB\n"),
            ("proc/self/cgroup", "0::/\n"),
            ("sys/fs/cgroup/memory.max", "1073741824\n"),
        ])
    };
    assert_eq!(mib(machine()), of(1024));
    assert_eq!(mib(machine().with("SLURM_MEM_PER_NODE", "512")), of(512));
    assert_eq!(mib(machine().with("SLURM_MEM_PER_NODE", "4096")), of(1024));
    assert_eq!(
        mib(machine().with("SLURM_MEM_PER_NODE", "0")),
        of(1024),
        "all of the node"
    );
    let per_cpu = machine().with("SLURM_MEM_PER_CPU", "100");
    assert_eq!(mib(per_cpu.with("SLURM_CPUS_ON_NODE", "3")), of(300));
}

#[test]
fn gpus_come_from_the_environment_before_the_driver() {
    let driver = &[
        ("proc/driver/nvidia/gpus/0000:01:00.0/information", ""),
        ("proc/driver/nvidia/gpus/0000:02:00.0/information", ""),
    ];
    let nvidia = |value| {
        let machine = Machine::new(driver);
        let machine = match value {
            Some(value) => machine.with("CUDA_VISIBLE_DEVICES", value),
            None => machine,
        };
        machine.detector().gpus_nvidia()
    };
    assert_eq!(nvidia(None), Some(list(&["0", "1"])));
    assert_eq!(nvidia(Some("1,3")), Some(list(&["1", "3"])));
    assert_eq!(nvidia(Some("GPU-8932f937")), Some(list(&["GPU-8932f937"])));
    for none in ["", "-1", "NoDevFiles", "1,1"] {
        assert_eq!(nvidia(Some(none)), None, "{none:?}");
    }
    let machine = Machine::new(driver).with("ROCR_VISIBLE_DEVICES", "0, 2");
    assert_eq!(machine.detector().gpus_amd(), Some(list(&["0", "2"])));
    assert_eq!(Machine::new(&[]).detector().gpus_amd(), None);
}

#[test]
fn detects_only_what_was_asked_for() {
    let machine = Machine::new(&[("proc/meminfo", "MemTotal: 1024 kB\n")]);
    let set = DetectSet {
        cpus: false,
        ..DetectSet::ALL
    };
    let names: Vec<Box<str>> = machine
        .detector()
        .detect(set)
        .into_iter()
        .map(|item| item.name)
        .collect();
    assert_eq!(names, [MEMORY.into()]);
}

#[test]
fn cpu_lists_of_the_kernel_are_read_and_nonsense_is_not() {
    assert_eq!(parse_cpu_list("0-2,5,7-8\n"), [0, 1, 2, 5, 7, 8]);
    for nonsense in ["", "\n", "a-b", "0-99999999", "-1"] {
        assert!(parse_cpu_list(nonsense).is_empty(), "{nonsense:?}");
    }
}

#[test]
fn the_share_of_a_batch_job_limits_cpus() {
    let cpus = |machine: Machine| machine.detector().cpus(false).total().to_string();
    let two = Machine::new(TWO_SOCKETS).with("SLURM_CPUS_ON_NODE", "2");
    assert_eq!(cpus(two), "2");
    let pbs = Machine::new(TWO_SOCKETS).with("NCPUS", "3");
    assert_eq!(cpus(pbs.with("PBS_JOBID", "1.host")), "3");
    // Outside a batch job the variable has no defined meaning.
    assert_eq!(cpus(Machine::new(TWO_SOCKETS).with("NCPUS", "3")), "8");
    let odd = Machine::new(TWO_SOCKETS).with("SLURM_CPUS_ON_NODE", "many");
    assert_eq!(cpus(odd), "8");
}
