//! Checks the system calls of a child between its clone and its program.
//!
//! The table is documentation: [`PLANS`] lists the calls of a child in order. A new call needs a
//! new entry, or a test fails. No creation copies page tables.
#![expect(unsafe_code, reason = "CPUs and memory of the test process")]

mod plans;
mod trace;

use std::collections::BTreeMap;
use std::fs;

use hq_spawn::{Backend, Lane, SpawnPlan};
use tempfile::TempDir;

use crate::harness::{End, Rig, best, command, rungs};
use crate::isolated::alone;
use crate::skip::skip;

use plans::{CONTROL_GROUP, PLANS, Plan, Setup};
use trace::{Section, section, trace};

/// The number of tasks of a section. A call that is not made for each task counts less.
const TASKS: u64 = 50;
/// The number of tasks before a section: buffers have grown, and lanes know that tasks are short.
const FIRST_TASKS: u64 = 10;

/// A way to request children.
struct Way {
    name: &'static str,
    is_lane: bool,
}

/// Both ways, with one thread that creates processes and one CPU.
const WAYS: [Way; 2] = [
    Way {
        name: "spawn",
        is_lane: false,
    },
    Way {
        name: "spawn_in_lanes",
        is_lane: true,
    },
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

/// Compares the calls of the children with the table.
#[track_caller]
fn check(title: &str, plan: &Plan, way: &Way, section: &Section) {
    assert_eq!(section.children.len() as u64, TASKS, "{title}");
    let expected = plan.all_calls(section.ignored);
    for child in &section.children {
        check_creation(plan, way, &child.creation);
        assert_calls(title, &child.calls, &expected);
    }
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
