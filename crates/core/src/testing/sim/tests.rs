//! Courses that are played: alike each time, with a trace, and with a disk that crashes.

use std::sync::{Arc, Mutex};

use super::*;
use crate::testing::ledger::Ledger;

fn ledger() -> Option<Box<dyn Disk>> {
    Some(Box::new(Ledger::new("SimUid")))
}

/// Limit of seeds in one test run; `tests/seeds` plays 100 of them.
const SEEDS_MAX: u64 = 10;

#[test]
fn what_was_told_survives_some_crashes() {
    let asked = std::env::var("HQ_SIM_SEEDS").ok();
    let asked = asked.and_then(|text| text.parse().ok());
    for seed in 0..SEEDS_MAX.min(asked.unwrap_or(SEEDS_MAX)) {
        World::survive(&Course::usual(seed, true), ledger());
    }
}

#[test]
fn a_course_that_is_read_from_its_record_goes_as_before() {
    for seed in [3, 17] {
        let course = Course::draw(seed, 300, true);
        let again = Course::parse(&course.record()).expect("a record");
        let play = |course: &Course| World::play(course, ledger(), None);
        assert_eq!(play(&course), play(&again));
    }
}

#[test]
fn a_trace_tells_what_happens_and_changes_nothing() {
    let course = Course::draw(5, 200, true);
    let trace = Trace::default();
    let told = World::play(&course, ledger(), Some(Arc::clone(&trace)));
    assert_eq!(told, World::play(&course, ledger(), None));
    let lines = trace.lock().expect("nobody panicked").clone();
    let has = |what: &str| lines.iter().any(|line| line.contains(what));
    for what in [
        "begin",
        "step 200: ",
        "server <- ",
        "server -> ",
        "machine 1 <- ",
        "heal",
    ] {
        assert!(has(what), "{what}");
    }
}

#[test]
fn a_world_that_fails_leaves_its_trace() {
    let trace: Trace = Arc::new(Mutex::new(Vec::new()));
    let course = Course::draw(5, 50, true);
    let broken = Box::new(Forgetful(Ledger::new("SimUid")));
    let play = || {
        World::play(
            &course_with_crash(&course),
            Some(broken),
            Some(trace.clone()),
        )
    };
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(play));
    assert!(result.is_err(), "a disk that keeps nothing is noticed");
    assert!(!trace.lock().expect("it is whole").is_empty());
}

/// Everything is committed, then the server crashes.
fn course_with_crash(course: &Course) -> Course {
    let mut course = course.clone();
    let last = *course.steps.last().expect("some steps");
    for action in [Action::SubmitArray, Action::Commit, Action::Crash] {
        course.steps.push(Step { action, ..last });
    }
    course
}

/// A disk that loses everything.
#[derive(Debug)]
struct Forgetful(Ledger);

impl Disk for Forgetful {
    fn commit(&mut self, _: &[crate::server_state::Change]) {}
    fn fail(&mut self, _: &[crate::server_state::Change]) {}
    fn restore(&mut self, now: Now) -> ServerState {
        self.0.restore(now)
    }
}
