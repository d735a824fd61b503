//! Removed queues, restarts, and allocations that run on without workers.

use super::*;

/// Stored and restored in the middle of a removal, a queue still cancels its allocations.
#[test]
fn a_server_that_restarts_cancels_the_rest_of_a_removed_queue() {
    let mut world = World::new(spec(2, 1, None));
    world.demand(2, &[]);
    world.connect(1, 1);
    let mut lost = Vec::new();
    let now = world.now();
    assert!(
        world
            .state
            .remove_queue(now, QUEUE, true, &mut lost)
            .is_ok()
    );
    let record = world.state.record(QUEUE).expect("it is kept");
    world.state = AutoallocState::new(Limits::default(), b"");
    world.state.restore_queue(now, record);
    assert_eq!(world.state.queues().count(), 0);
    let mut effects = Vec::new();
    world.state.apply(now, Input::Timer, &mut effects);
    assert_eq!(cancels(&effects), 2);
    for number in 1..=2 {
        let key = AllocationKey {
            queue: QUEUE,
            number,
        };
        let canceled = Input::Canceled(key, Ok(()));
        world.state.apply(now, canceled, &mut effects);
    }
    assert!(world.state.record(QUEUE).is_none(), "nothing is left of it");
}

/// While one queue submits, the other must not request workers for the same tasks.
#[test]
fn a_queue_that_is_submitting_still_counts_with_what_it_has_asked_for() {
    let mut world = World::new(spec(4, 1, None));
    let now = world.now();
    world.state.add_queue(now, spec(4, 1, None).into());
    world.apply(Input::Changed);
    world.expect_question();
    let second = QueueDemand {
        queue: QueueId(2),
        ..demanded(0, &[])
    };
    world.apply(Input::Demand(vec![demanded(3, &[]), second]));
    world.apply(Input::Changed);
    let queries = world.expect_question();
    let coming: u32 = queries[0].coming.iter().map(|coming| coming.owed).sum();
    assert_eq!((queries.len(), coming, queries[0].workers_max), (2, 1, 3));
}

/// The fate of an allocation whose last worker left while its job runs on.
#[test]
fn an_allocation_that_runs_on_is_canceled_only_when_it_should_be() {
    let runs_on = || {
        let mut world = World::new(spec(1, 1, None));
        world.demand(1, &[]);
        world.report(1, Report::Running);
        world.connect(1, 1);
        world.lose(1, 1, false, 60);
        world.pass(11);
        let effects = world.report(1, Report::Running);
        assert_eq!(cancels(&effects), 0);
        assert_eq!(world.state.alive().count(), 1);
        world
    };
    // A restart cancels nothing.
    let mut world = runs_on();
    let record = world.state.record(QUEUE).expect("exists");
    world.state = AutoallocState::new(Limits::default(), b"");
    world.state.restore_queue(world.now(), record);
    assert_eq!(cancels(&world.pass(1)), 0);
    // A removal does only with force.
    for (force, expected) in [(false, 0), (true, 1)] {
        let mut world = runs_on();
        let mut effects = Vec::new();
        let removed = world
            .state
            .remove_queue(world.now(), QUEUE, force, &mut effects);
        assert!(removed.is_ok());
        effects.extend(world.pass(1));
        assert_eq!(cancels(&effects), expected, "force: {force}");
    }
    // A batch system that forgets it does not keep its place forever.
    let mut world = runs_on();
    let mut canceled = 0;
    for _ in 0..100 {
        canceled += cancels(&world.report(1, Report::Silent));
        canceled += cancels(&world.pass(60));
    }
    assert!(canceled > 0);
}

#[test]
fn a_restored_queue_names_its_failure_until_it_is_asked() {
    let mut world = World::new(spec(1, 1, None));
    world.refuse();
    let record = world.state.queue(QUEUE).expect("exists").record();
    let failure = record.failure.clone().expect("is recorded");
    world.state = AutoallocState::new(Limits::default(), b"");
    world.state.restore_queue(world.now(), record);
    assert!(
        world.reason().ends_with(&*failure.last),
        "{}",
        world.reason()
    );
    let again = world.state.queue(QUEUE).expect("exists").record();
    assert_eq!(again.failure, Some(failure));
    let effects = world.answer(1, &[]);
    assert!(submitted(&effects).is_some(), "it tries again at once");
}
