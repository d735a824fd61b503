//! Tests of allocations that the batch system's answers do not mention.

use super::*;

#[test]
fn too_many_status_errors_give_an_allocation_up() {
    let mut world = World::new(spec(1, 1, None));
    world.demand(1, &[]);
    for _ in 0..10 {
        world.report(1, Report::Error("timeout".into()));
    }
    assert_eq!(world.allocation(1), AllocationState::Queued);
    world.report(1, Report::Error("timeout".into()));
    assert_eq!(world.allocation(1), AllocationState::Failed);
}

/// Returns a queue with one allocation that a number of consecutive answers did not mention.
fn after_silence(answers: u32) -> (World, Vec<Effect>) {
    let mut world = World::new(spec(1, 1, None));
    world.demand(1, &[]);
    let mut effects = Vec::new();
    for _ in 0..answers {
        effects.extend(world.report(1, Report::Silent));
    }
    (world, effects)
}

#[test]
fn silence_about_an_allocation_never_cancels_it() {
    let (world, effects) = after_silence(10);
    assert_eq!(
        (world.allocation(1), cancels(&effects)),
        (AllocationState::Queued, 0)
    );
    let (mut world, effects) = after_silence(11);
    assert_eq!(
        (world.allocation(1), cancels(&effects)),
        (AllocationState::Failed, 0)
    );
    // The allocation is replaced immediately, but its workers are still accepted.
    world.pass(10);
    assert_eq!(world.demand(1, &[]), [1]);
    world.connect(1, 1);
    assert_eq!(world.allocation(1), AllocationState::Running);
}

#[test]
fn answers_between_them_forgive_status_errors() {
    let mut world = World::new(spec(1, 1, None));
    world.demand(1, &[]);
    for _ in 0..100 {
        for _ in 0..10 {
            world.report(1, Report::Error("timeout".into()));
        }
        world.report(1, Report::Queued("".into()));
    }
    assert_eq!(world.allocation(1), AllocationState::Queued);
}

#[test]
fn an_allocation_that_was_given_up_is_canceled_when_the_batch_system_answers_again() {
    for answer in [
        Report::Queued("Priority".into()),
        Report::Running,
        Report::Unreadable("?".into()),
    ] {
        let mut world = World::new(spec(1, 1, None));
        world.demand(1, &[]);
        let mut effects = Vec::new();
        for _ in 0..11 {
            effects.extend(world.report(1, Report::Error("cannot connect".into())));
        }
        // It makes no difference how long this takes.
        for _ in 0..100 {
            effects.extend(world.pass(400));
            effects.extend(world.report(1, Report::Error("cannot connect".into())));
        }
        assert_eq!(
            (world.allocation(1), cancels(&effects)),
            (AllocationState::Failed, 0)
        );
        assert!(
            world.reason().contains("1 of at most 1"),
            "{}",
            world.reason()
        );
        assert_eq!(cancels(&world.report(1, answer)), 1);
        world.apply(Input::Canceled(key(1), Ok(())));
        world.pass(10);
        assert_eq!(world.demand(1, &[]), [1], "it is replaced without delay");
    }
}
