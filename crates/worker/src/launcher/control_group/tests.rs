//! Tests on simulated machines and, as far as possible, on this one.

use std::process::Command;
use std::time::{Duration, Instant};

use super::*;

#[path = "../../../../../tests/skip.rs"]
mod skip;
use skip::skip;

const MOUNTS: &str = "22 1 0:20 / /proc rw - proc proc rw\n\
                      30 1 0:26 /top /sys/fs/cgroup rw,relatime shared:4 - cgroup2 cgroup2 rw\n";
const OURS: &str = "sys/fs/cgroup/user/job";

/// Creates a machine where this process's version 2 group has these controllers.
fn machine(controllers: &str, handed_on: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("temporary directory");
    let write = |path: &str, text: &str| {
        let path = dir.path().join(path);
        fs::create_dir_all(path.parent().expect("is in a directory")).expect("writable");
        fs::write(path, text).expect("writable");
    };
    write("proc/self/cgroup", "4:memory:/old\n0::/top/user/job\n");
    write("proc/self/mountinfo", MOUNTS);
    let namespaces = dir.path().join("proc/self/ns");
    fs::create_dir(&namespaces).expect("writable");
    for link in ["pid:[7]", "time:[8]"] {
        let (kind, _) = link.split_once(':').expect("has a kind");
        std::os::unix::fs::symlink(link, namespaces.join(kind)).expect("writable");
    }
    write(&format!("{OURS}/cgroup.controllers"), controllers);
    write(&format!("{OURS}/cgroup.subtree_control"), handed_on);
    dir
}

#[test]
fn a_task_gets_a_group_with_its_limit() {
    let root = machine("cpu memory pids\n", "");
    let mut groups = ControlGroups::find(root.path(), "a").expect("usable");
    assert_eq!(groups.base(), root.path().join(OURS).join("hq-7.8-a"));
    let told = |file: &str| fs::read_to_string(root.path().join(OURS).join(file));
    assert_eq!(told("cgroup.subtree_control").expect("written"), "+memory");
    assert_eq!(
        told("hq-7.8-a/cgroup.subtree_control").expect("written"),
        "+memory"
    );
    let task = groups.get("17", 200 * KIB).expect("made");
    assert_eq!(
        told("hq-7.8-a/17/memory.max").expect("written"),
        "209715200"
    );
    assert_eq!(told("hq-7.8-a/17/memory.oom.group").expect("written"), "1");

    let events = |text: &str| fs::write(task.dir.join("memory.events"), text).expect("writable");
    assert_eq!(task.excess(), None, "nothing is known");
    events("low 0\nmax 12\noom 0\noom_kill 0\noom_group_kill 0\n");
    assert_eq!(task.excess(), None, "it came close");
    events("low 0\nmax 12\noom 1\noom_kill 3\noom_group_kill 1\n");
    assert_eq!(task.excess(), Some(200 * KIB));
    fs::write(task.dir.join("memory.peak"), "209711104\n").expect("writable");
    assert_eq!(task.excess(), Some(204_796));

    // Files prevent the removal of this directory, as processes do for a real group.
    let dir = task.dir.clone();
    groups.take_back(task, true);
    assert_eq!(groups.leftovers, std::slice::from_ref(&dir));
    for file in fs::read_dir(&dir).expect("is there") {
        fs::remove_file(file.expect("readable").path()).expect("writable");
    }
    let other = groups.get("18", KIB).expect("made");
    let other_dir = other.dir.clone();
    groups.take_back(other, true);
    assert_eq!(groups.leftovers, [other_dir], "the first is gone");
}

#[test]
fn a_group_is_used_again_for_the_same_limit_unless_something_in_it_would_count() {
    let root = machine("cpu memory pids\n", "");
    let mut groups = ControlGroups::find(root.path(), "a").expect("usable");
    let base = groups.base().to_owned();
    // Each case has the first task's limit in KiB, the state it leaves behind, and the group of a
    // second task.
    for (at, (events, current, has_exceeded, limit, second)) in [
        (
            "populated 0\nfrozen 0\n",
            "65536\n",
            false,
            2 * KIB,
            "first",
        ),
        ("populated 1\nfrozen 0\n", "0\n", false, 2 * KIB, "second"),
        (
            "populated 0\nfrozen 0\n",
            "999999\n",
            false,
            2 * KIB,
            "second",
        ),
        ("populated 0\nfrozen 0\n", "0\n", true, 2 * KIB, "second"),
        ("populated 0\nfrozen 0\n", "0\n", false, KIB, "second"),
    ]
    .into_iter()
    .enumerate()
    {
        let names = [format!("{at}-first"), format!("{at}-second")];
        let task = groups.get(&names[0], 2 * KIB).expect("made");
        fs::write(task.dir.join("cgroup.events"), events).expect("writable");
        fs::write(task.dir.join("memory.current"), current).expect("writable");
        groups.take_back(task, has_exceeded);
        let next = groups.get(&names[1], limit).expect("there is one");
        assert_eq!(next.dir, base.join(format!("{at}-{second}")), "case {at}");
        groups.idle.clear();
    }
}

#[test]
fn a_group_that_somebody_has_removed_is_made_again() {
    let root = machine("cpu memory pids\n", "");
    let mut groups = ControlGroups::find(root.path(), "a").expect("usable");
    fs::remove_dir_all(groups.base()).expect("writable");
    let task = groups.get("17", KIB).expect("made again");
    let limit = fs::read_to_string(groups.base().join("17/memory.max")).expect("written");
    assert_eq!((limit.as_str(), task.limit), ("1048576", KIB));
    let handed_on = fs::read_to_string(groups.base().join("cgroup.subtree_control"));
    assert_eq!(handed_on.expect("written"), "+memory");
}

#[test]
fn what_cannot_be_used_says_why() {
    let root = machine("cpu pids\n", "");
    let error = ControlGroups::find(root.path(), "a").expect_err("no memory");
    assert!(matches!(error, Unusable::NoMemory(_)), "{error}");

    fs::write(root.path().join("proc/self/mountinfo"), "").expect("writable");
    let error = ControlGroups::find(root.path(), "a").expect_err("not mounted");
    assert!(matches!(error, Unusable::NoVersion2), "{error}");

    let root = machine("memory\n", "memory\n");
    let ours = root.path().join(OURS);
    ControlGroups::find(root.path(), "a").expect("handed on already");
    // A file that cannot be written stands for a group with processes.
    let control = ours.join("cgroup.subtree_control");
    fs::remove_file(&control).expect("writable");
    fs::create_dir(&control).expect("writable");
    fs::write(ours.join("cgroup.procs"), "1\n4194304\n").expect("writable");
    let error = ControlGroups::find(root.path(), "b").expect_err("shared");
    assert!(matches!(error, Unusable::Shared(_)), "{error}");
    // If the group contains no other process, this process moves out of it.
    fs::write(
        ours.join("cgroup.procs"),
        format!("{}\n", std::process::id()),
    )
    .expect("writable");
    let error = ControlGroups::find(root.path(), "c").expect_err("still refused");
    assert!(matches!(error, Unusable::NotOurs(..)), "{error}");
    let moved = fs::read_to_string(ours.join("hq-7.8-c-worker/cgroup.procs")).expect("moved");
    assert_eq!(moved, std::process::id().to_string());
}

/// Runs on this machine if its user may create groups. Without a memory controller, no limit is
/// set.
#[test]
fn a_real_group_is_removed_with_what_runs_in_it() {
    let Some(ours) = own_group(Path::new("/")) else {
        skip("there are no control groups of version 2");
        return;
    };
    let dir = ours.join(format!("hq-test-{}", std::process::id()));
    if let Err(error) = fs::create_dir(&dir) {
        skip(&format!("{} cannot be changed: {error}", ours.display()));
        return;
    }
    let mut child = Command::new("sleep").arg("600").spawn().expect("starts");
    let moved = fs::write(dir.join("cgroup.procs"), child.id().to_string());
    let can_kill = dir.join("cgroup.kill").exists();
    if moved.is_err() || !can_kill {
        child.kill().expect("is ours");
        child.wait().expect("is ours");
        assert!(remove(&dir), "nothing is in it");
        skip(&format!("groups cannot be used: {moved:?}"));
        return;
    }
    let end = Instant::now() + Duration::from_secs(20);
    while !remove(&dir) {
        let _ = child.try_wait();
        assert!(Instant::now() < end, "{} is still there", dir.display());
        std::thread::yield_now();
    }
    child.wait().expect("is ours");
    match ControlGroups::find(Path::new("/"), &format!("probe-{}", std::process::id())) {
        Ok(groups) => println!(
            "tasks can be held to their memory in {}",
            groups.base().display()
        ),
        Err(error) => println!("tasks can only be watched: {error}"),
    }
}

#[test]
fn groups_of_workers_that_are_gone_are_removed() {
    let root = machine("cpu memory pids\n", "memory\n");
    let ours = root.path().join(OURS);
    for dir in [
        "hq-7.8-2a-1-0/17",
        "hq-7.8-2a-1-0-worker",
        "hq-7.8-2b-1-0/3",
        // Another process has the pid by now.
        "hq-7.8-2c-1-0/5",
        // They belong to another pid or time namespace, from where they only seem dead.
        "hq-9.8-2a-1-0/6",
        "hq-7.9-2a-1-0",
        "hq-other",
    ] {
        fs::create_dir_all(ours.join(dir)).expect("writable");
    }
    for (pid, began) in [(43, 1), (44, 2)] {
        let proc = root.path().join(format!("proc/{pid}"));
        fs::create_dir_all(&proc).expect("writable");
        let stat = format!("{pid} (hq) S{} {began} 0", " 0".repeat(18));
        fs::write(proc.join("stat"), stat).expect("writable");
    }
    let _groups = ControlGroups::find(root.path(), "a").expect("usable");
    let mut left: Vec<String> = fs::read_dir(&ours)
        .expect("is there")
        .flatten()
        .filter(|entry| entry.path().is_dir())
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    left.sort();
    let expected = [
        "hq-7.8-2b-1-0",
        "hq-7.8-a",
        "hq-7.9-2a-1-0",
        "hq-9.8-2a-1-0",
        "hq-other",
    ];
    assert_eq!(left, expected);
}

#[test]
fn of_the_controllers_of_version_1_the_group_is_that_of_memory() {
    let root = machine("memory", "");
    let mounts = "31 1 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n\
                  32 1 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
    fs::write(root.path().join("proc/self/mountinfo"), mounts).expect("writable");
    for controller in ["cpu", "memory"] {
        let dir = root.path().join("sys/fs/cgroup").join(controller);
        fs::create_dir_all(dir.join("old")).expect("writable");
    }
    let found = own_memory_group_v1(root.path());
    assert_eq!(found, Some(root.path().join("sys/fs/cgroup/memory/old")));
}
