//! Checks the system calls of a child between its clone and its program, and the calls of the
//! launcher for one child.
//!
//! The tables are documentation: [`PLANS`] lists the calls of a child in order, [`WAYS`] counts the
//! calls of the launcher. A new call in either place needs a new entry, or a test fails. The cost
//! of a process depends on that process only, so the same tables hold for a launcher with a large
//! environment, many descriptors and many live children, and no creation copies page tables.
#![expect(unsafe_code, reason = "CPUs and memory of the test process")]

mod plans;
mod trace;

use std::collections::BTreeMap;
use std::fs::{self, File};

use hq_spawn::{Backend, Lane, SpawnPlan};
use tempfile::TempDir;

use crate::harness::{End, Rig, best, command, compiled, rungs};
use crate::isolated::alone;
use crate::skip::skip;

use plans::{CONTROL_GROUP, PLANS, Plan, Setup, plain, variables};
use trace::{Section, section, trace};

/// The number of tasks of a section. A call that is not made for each task counts less.
const TASKS: u64 = 50;
/// The number of tasks before a section: buffers have grown, and lanes know that tasks are short.
const FIRST_TASKS: u64 = 10;

/// A way to request children, and the calls that the launcher makes for each of them, in all its
/// threads. A child that leads a process group adds two calls: `kill` ends the rest of the group
/// before the child is reaped, and `kill` with signal 0 then shows whether any of it is left.
/// Nothing else in a plan adds a call.
struct Way {
    name: &'static str,
    is_lane: bool,
    exactly: &'static [(&'static str, u64)],
    /// Upper limits of calls whose number depends on the timing of the threads, about twice as high
    /// as measured on a busy machine.
    at_most: &'static [(&'static str, f64)],
}

/// Both ways, with one thread that creates processes and one CPU.
const WAYS: [Way; 2] = [
    Way {
        name: "spawn",
        is_lane: false,
        exactly: &[
            // There is only one CPU, so the thread is not pinned to it.
            ("sched_getaffinity", 1),
            ("clone3", 1),
            // The reaper watches the pidfd of the child, reaps the child and closes the pidfd.
            ("epoll_ctl", 1),
            ("waitid", 1),
            ("close", 1),
        ],
        at_most: &[
            ("epoll_wait", 3.0),
            // Limits how long the report of a start waits for other reports.
            ("timerfd_settime", 1.0),
            // Wakes the reaper if it does not yet check for hanging creations.
            ("write", 0.5),
            ("read", 1.5),
            ("futex", 6.0),
        ],
    },
    Way {
        name: "spawn_in_lanes",
        is_lane: true,
        exactly: &[
            ("clone3", 1),
            // The thread that has created the child reaps it.
            ("waitid", 1),
            ("close", 1),
        ],
        at_most: &[
            // Only while children wait for a CPU.
            ("sched_getaffinity", 1.0),
            // One wait for the end of the child; a second one if it takes more than 5 ms.
            ("poll", 2.0),
            ("epoll_wait", 2.0),
            ("timerfd_settime", 2.0),
            ("write", 0.5),
            ("read", 2.0),
            ("futex", 5.0),
        ],
    },
];

/// Calls that are not made for each task: for buffers that grow, and for the first hash map of a
/// thread. Together they are fewer than one for five tasks.
const RARE: &[&str] = &[
    "brk",
    "getrandom",
    "madvise",
    "mmap",
    "mprotect",
    "mremap",
    "munmap",
];

/// The flags of every creation by [`Backend::ClonePidfd`]: memory and descriptors are shared, not
/// copied.
const CREATION: &[&str] = &[
    "CLONE_VM",
    "CLONE_FILES",
    "CLONE_PIDFD",
    "CLONE_CLEAR_SIGHAND",
];

#[test]
fn each_plan_makes_exactly_these_calls() {
    let name = "calls::each_plan_makes_exactly_these_calls";
    let Some(sections) = trace_described(name, run_plans) else {
        return;
    };
    let mut brief = 0;
    for plan in PLANS {
        for way in &WAYS {
            let title = title(plan.name, way);
            let Some(section) = sections.get(&title) else {
                assert_eq!(plan.name, CONTROL_GROUP, "it did not run");
                continue;
            };
            check(&title, plan, way, section);
            let children = section.children.iter();
            brief += children
                .filter(|child| child.creation.contains("CLONE_CHILD_CLEARTID"))
                .count();
        }
    }
    assert!(brief > 0, "no thread went on before its child executed");
}

fn run_plans() {
    hq_spawn::prepare_process().unwrap();
    use_one_cpu();
    let dir = TempDir::new().unwrap();
    let setup = Setup::new(&dir);
    for plan in PLANS {
        if plan.name == CONTROL_GROUP && setup.group.is_none() {
            skip("this user cannot create control groups");
            continue;
        }
        for way in &WAYS {
            let mut rig = rig(Backend::ClonePidfd);
            run(&mut rig, plan.name, way, &|| (plan.make)(&setup));
        }
    }
    setup.finish();
}

#[test]
fn a_pinned_thread_makes_one_more_call_and_its_child_two() {
    let name = "calls::a_pinned_thread_makes_one_more_call_and_its_child_two";
    if std::thread::available_parallelism().unwrap().get() < 2 {
        return skip("with one CPU no thread is pinned");
    }
    let Some(mut sections) = trace_described(name, run_pinned) else {
        return;
    };
    let [way, _] = &WAYS;
    let title = title("pinned", way);
    let section = sections.get_mut(&title).unwrap();
    let calls = &mut section.launcher;
    let pins = calls.extract_if(.., |call| call.starts_with("sched_setaffinity("));
    assert_eq!(pins.count() as u64, TASKS);
    for child in &mut section.children {
        // The child unpins both right before its last two calls.
        let at = child.calls.len() - 4;
        let added: Vec<String> = child.calls.drain(at..at + 2).collect();
        let expected = ["sched_setaffinity(*", "sched_setaffinity(0, *"];
        assert_calls(&title, &added, &expected);
    }
    check(&title, &PLANS[0], way, section);
}

fn run_pinned() {
    let dir = TempDir::new().unwrap();
    let setup = Setup::new(&dir);
    let [way, _] = &WAYS;
    let mut rig = rig(Backend::ClonePidfd);
    run(&mut rig, "pinned", way, &|| plain(&setup));
    setup.finish();
}

/// The burdens of a launcher; see [`run_burdens`].
const BURDENS: [&str; 3] = ["500 variables", "500 descriptors", "200 live children"];

#[test]
fn no_burden_of_the_launcher_adds_a_call() {
    let name = "calls::no_burden_of_the_launcher_adds_a_call";
    let Some(sections) = trace_described(name, run_burdens) else {
        return;
    };
    for burden in BURDENS {
        for way in &WAYS {
            let title = title(burden, way);
            check(&title, &PLANS[0], way, &sections[&title]);
        }
    }
}

fn run_burdens() {
    use_one_cpu();
    let dir = TempDir::new().unwrap();
    let setup = Setup::new(&dir);
    let source = "#include <unistd.h>\nint main(void) { for (;;) pause(); }";
    let pausing = compiled(&dir, "pausing", source);
    let pausing = pausing.as_ref().map_or(vec!["/bin/sleep", "1000"], |path| {
        vec![path.to_str().unwrap()]
    });
    let [with_variables, with_descriptors, with_children] = BURDENS;
    let variables = variables(500);
    for way in &WAYS {
        let plan = || plain(&setup).task_env(variables.clone());
        run(&mut rig(Backend::ClonePidfd), with_variables, way, &plan);

        let plan = || plain(&setup);
        let open = || File::open("/dev/null").unwrap();
        let files: Vec<File> = (0..500).map(|_| open()).collect();
        run(&mut rig(Backend::ClonePidfd), with_descriptors, way, &plan);
        drop(files);

        let mut rig = rig(Backend::ClonePidfd);
        let living = rig.spawn_batch((0..200).map(|_| command(&pausing)));
        rig.wait_started(&living);
        run(&mut rig, with_children, way, &plan);
        assert_eq!(rig.launcher.pending(), living.len());
    }
    setup.finish();
}

#[test]
fn no_creation_copies_page_tables() {
    let name = "calls::no_creation_copies_page_tables";
    let Some(sections) = trace(name, run_backends) else {
        return;
    };
    for backend in rungs() {
        let section = &sections[backend.name()];
        // Old kernels cannot keep standard input in memory, so that plan takes two attempts.
        assert!(section.children.len() >= PLANS.len(), "{backend:?}");
        for child in &section.children {
            // `Fork` shows that this is not always so.
            let (creation, copies) = (&child.creation, backend == Backend::Fork);
            assert_eq!(creation.contains("CLONE_VM"), !copies, "{creation}");
        }
    }
}

fn run_backends() {
    let dir = TempDir::new().unwrap();
    let setup = Setup::new(&dir);
    for backend in rungs() {
        let mut rig = rig(backend);
        section(backend.name(), || {
            for plan in PLANS {
                rig.succeed((plan.make)(&setup));
            }
        });
    }
    setup.finish();
}

#[test]
fn no_page_of_the_launcher_is_write_protected_by_a_creation() {
    let name = "calls::no_page_of_the_launcher_is_write_protected_by_a_creation";
    alone(name, &[], || {
        const PAGES: usize = 1024;
        /// At least the size of a page on each supported machine.
        const STEP: usize = 64 * 1024;
        // SAFETY: takes plain numbers. One fault would be enough for a huge page.
        let result = unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0) };
        assert_eq!(result, 0);
        let mut memory = vec![0_u8; PAGES * STEP];
        let mut touch = || memory.iter_mut().step_by(STEP).for_each(|byte| *byte += 1);
        for backend in rungs() {
            let mut rig = Rig::new(backend);
            touch();
            rig.succeed(command(&["/bin/true"]));
            let before = minor_faults();
            touch();
            let faults = minor_faults() - before;
            // `Fork` copies the page tables, and then each page faults when it is written to.
            let expected = if backend == Backend::Fork { PAGES } else { 0 };
            let found = expected..expected + PAGES / 10;
            assert!(found.contains(&faults), "{backend:?}: {faults} faults");
        }
    });
}

/// Returns how many faults this thread has had on pages that were in memory.
fn minor_faults() -> usize {
    let text = fs::read_to_string("/proc/thread-self/stat").unwrap();
    let (_, fields) = text.rsplit_once(") ").unwrap();
    fields.split(' ').nth(7).unwrap().parse().unwrap()
}

/// Does the same as [`trace`] where the tables describe the children.
fn trace_described(test: &str, body: fn()) -> Option<BTreeMap<String, Section>> {
    if best() != Backend::ClonePidfd || !hq_spawn::features().close_range || !has_clone3() {
        skip("the tables describe kernels with clone3, pidfds and close_range");
        return None;
    }
    trace(test, body)
}

fn has_clone3() -> bool {
    // SAFETY: the kernel refuses arguments without a size, so this creates no process.
    let result = unsafe { libc::syscall(libc::SYS_clone3, std::ptr::null::<u8>(), 0) };
    assert_eq!(result, -1);
    std::io::Error::last_os_error().raw_os_error() == Some(libc::EINVAL)
}

/// Lets this thread and its future threads run on one CPU only, so that no thread is pinned.
fn use_one_cpu() {
    // SAFETY: it takes nothing.
    let cpu = usize::try_from(unsafe { libc::sched_getcpu() }).unwrap();
    let mut mask = [0_u64; 128];
    mask[cpu / 64] = 1 << (cpu % 64);
    // SAFETY: the mask is valid for reads of its size in bytes.
    let result = unsafe { libc::sched_setaffinity(0, size_of_val(&mask), mask.as_ptr().cast()) };
    assert_eq!(result, 0);
}

/// Returns a launcher with one thread that creates processes.
fn rig(backend: Backend) -> Rig {
    Rig::with(|config| {
        config.threads = 1;
        config.backend = Some(backend);
    })
}

/// Runs tasks in one way, and then more of them in a section of the trace.
fn run(rig: &mut Rig, name: &str, way: &Way, plan: &dyn Fn() -> SpawnPlan) {
    let mut request = |count| {
        let plans = (0..count).map(|_| plan());
        let tokens = if way.is_lane {
            rig.spawn_in_lane(Lane(0), plans)
        } else {
            rig.spawn_batch(plans)
        };
        let is_success = |end: &End| matches!(end, End::Exited(status, _) if status.success());
        assert!(rig.ends(&tokens).values().all(is_success), "{name}");
    };
    request(FIRST_TASKS);
    section(&title(name, way), || request(TASKS));
}

fn title(name: &str, way: &Way) -> String {
    format!("{name}, {}", way.name)
}

/// Compares what children and launcher did with the tables.
#[track_caller]
fn check(title: &str, plan: &Plan, way: &Way, section: &Section) {
    assert_eq!(section.children.len() as u64, TASKS, "{title}");
    let expected = plan.all_calls(section.ignored);
    for child in &section.children {
        check_creation(plan, way, &child.creation);
        assert_calls(title, &child.calls, &expected);
    }
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    for call in &section.launcher {
        *counts.entry(kind(call)).or_default() += 1;
    }
    let mut take = |call: &str| counts.remove(call).unwrap_or(0);
    // Not for each task: every 100 ms the thread asks which of the 64 signals are ignored.
    let most = 64 * (1 + section.millis / 100);
    let asked = take("rt_sigaction");
    assert!(
        asked <= most,
        "{title}: {asked} rt_sigaction, at most {most}"
    );
    let kills = ("kill", if plan.has_group { 2 } else { 0 });
    for (call, expected) in way.exactly.iter().chain([&kills]) {
        assert_eq!(take(call), expected * TASKS, "{title}: {call}");
    }
    for (call, most) in way.at_most {
        let count = take(call);
        let found = count as f64 / TASKS as f64;
        assert!(found <= *most, "{title}: {found} {call} for each task");
    }
    let count: u64 = RARE.iter().map(|call| take(call)).sum();
    assert!(count < TASKS / 5, "{title}: {count} rare calls");
    assert!(
        counts.is_empty(),
        "{title}: calls of other kinds: {counts:?}"
    );
}

/// Checks the flags of a creation.
#[track_caller]
fn check_creation(plan: &Plan, way: &Way, creation: &str) {
    let has = |flag: &str| creation.contains(flag);
    assert!(CREATION.iter().all(|flag| has(flag)), "{creation}");
    assert_eq!(has("CLONE_INTO_CGROUP"), plan.name == CONTROL_GROUP);
    // The thread sleeps until the exec, or sees from its memory that the child has left it.
    let goes_on = has("CLONE_CHILD_CLEARTID");
    assert_ne!(goes_on, has("CLONE_VFORK"), "{creation}");
    assert!(way.is_lane || !goes_on, "{creation}");
}

/// Returns the name of a call. Some architectures have only the younger one of two similar calls.
fn kind(call: &str) -> &str {
    match call.split_once('(').unwrap().0 {
        "epoll_pwait" => "epoll_wait",
        "ppoll" => "poll",
        name => name,
    }
}

#[track_caller]
fn assert_calls(title: &str, calls: &[String], expected: &[&str]) {
    let mut pairs = calls.iter().zip(expected);
    let is_expected =
        calls.len() == expected.len() && pairs.all(|(call, pattern)| fits(call, pattern));
    assert!(
        is_expected,
        "{title}: found\n    {}\nexpected\n    {}",
        calls.join("\n    "),
        expected.join("\n    ")
    );
}

/// Returns whether a call fits a pattern. `*` stands for any text.
fn fits(call: &str, pattern: &str) -> bool {
    match pattern.split_once('*') {
        None => call == pattern,
        Some((start, rest)) => call.strip_prefix(start).is_some_and(|call| {
            rest.is_empty()
                || (0..=call.len()).any(|at| call.is_char_boundary(at) && fits(&call[at..], rest))
        }),
    }
}
