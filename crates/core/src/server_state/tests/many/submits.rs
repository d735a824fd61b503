//! Submits that are too large for one step.

use super::*;

#[test]
fn a_submit_of_very_many_templates_is_built_in_portions_and_nobody_waits_for_it() {
    let mut world = World::new(1);
    let large = SubmitSpec {
        stream_dir: Some(Box::from(*b"/streams/%{JOB_ID}")),
        ..kinds(3_000, 5)
    };
    let large = Command::Submit(Box::new(large));
    let mut effects = take(&mut world, Input::Request(RequestId(1), large));
    effects.extend(settle(&mut world));
    assert!(submitted(&effects).is_none(), "{effects:?}");
    assert!(world.state.jobs().is_empty(), "nothing of it can be seen");
    assert!(
        world.state.next_deadline() <= Some(world.now.mono),
        "it goes on"
    );
    assert_eq!(cancel_all(&mut world), [], "nor canceled");
    let small = Command::Submit(Box::new(array_submit(1, template(&["true"]))));
    let effects = take(&mut world, Input::Request(RequestId(3), small));
    assert_eq!(submitted(&effects), Some(JobId(1)));
    assert_eq!(world.state.last_job(), Some(JobId(1)));
    let mut settles = 1;
    let effects = loop {
        let effects = settle(&mut world);
        settles += 1;
        if submitted(&effects).is_some() {
            break effects;
        }
    };
    // Three to build it, three to correct the job.
    assert_eq!(settles, 6);
    let stored = effects.iter().position(|effect| {
        matches!(effect, Effect::Persist(change) if matches!(change.kind, ChangeKind::Submitted { .. }))
    });
    let told = effects
        .iter()
        .position(|effect| matches!(effect, Effect::Reply(..)));
    assert!(
        stored.is_some() && stored < told,
        "it is stored before it is reported"
    );
    assert_eq!(submitted(&effects), Some(JobId(2)));
    assert_eq!(
        world.state.last_job(),
        Some(JobId(2)),
        "the last that was told"
    );
    let job = &world.state.jobs()[&JobId(2)];
    let templates = job.submits[0].templates();
    assert_eq!(templates.len(), 3_000);
    for template in templates {
        assert_eq!(template.job, JobId(2));
        assert_eq!(template.stream_dir.as_deref(), Some(&b"/streams/2"[..]));
    }
    while world.started.len() < 3_001 {
        world.step();
    }
}

#[test]
fn a_large_submit_that_is_overtaken_again_and_again_is_delayed_once() {
    let mut world = World::new(0);
    let large = Command::Submit(Box::new(kinds(3_000, 5)));
    take(&mut world, Input::Request(RequestId(1), large));
    let mut overtakers = 0;
    let told = loop {
        let effects = settle(&mut world);
        if let Some(job) = submitted(&effects) {
            break job;
        }
        let small = Command::Submit(Box::new(array_submit(1, template(&["true"]))));
        let effects = take(&mut world, Input::Request(RequestId(2), small));
        overtakers += 1;
        assert_eq!(submitted(&effects), Some(JobId(overtakers)));
    };
    assert_eq!((overtakers, told), (5, JobId(6)));
    let templates = world.state.jobs()[&told].submits[0].templates();
    assert_eq!(templates.len(), 3_000);
    assert!(templates.iter().all(|template| template.job == told));
}

#[test]
fn a_job_that_is_closed_while_a_submit_to_it_is_built_refuses_it() {
    let mut world = World::new(0);
    let open = Command::OpenJob {
        name: "open".into(),
        max_fails: None,
        key: None,
    };
    take(&mut world, Input::Request(RequestId(1), open));
    let large = SubmitSpec {
        target: SubmitTarget::Attach(JobId(1)),
        ..kinds(3_000, 5)
    };
    let large = Command::Submit(Box::new(large));
    take(&mut world, Input::Request(RequestId(2), large));
    settle(&mut world);
    let close = Command::CloseJobs(Selector::All);
    take(&mut world, Input::Request(RequestId(3), close));
    let mut effects = Vec::new();
    while world.state.submitting() > 0 {
        effects = settle(&mut world);
    }
    let refused = |effect: &Effect| {
        let expected = SubmitRefusal::JobNotOpen(JobId(1));
        matches!(effect, Effect::Reply(_, Reply::Refused(found)) if *found == expected)
    };
    assert!(effects.iter().any(refused), "{effects:?}");
    assert!(world.state.jobs()[&JobId(1)].submits.is_empty());
}

#[test]
fn what_is_answered_behind_a_cancel_of_all_jobs_was_submitted_behind_it() {
    let mut world = World::new(0);
    let open = Command::OpenJob {
        name: "open".into(),
        max_fails: None,
        key: None,
    };
    take(&mut world, Input::Request(RequestId(1), open));
    submit(
        &mut world,
        SubmitSpec {
            target: SubmitTarget::Attach(JobId(1)),
            ..array_submit(1, template(&["true"]))
        },
    );
    let mut large = SubmitSpec {
        target: SubmitTarget::Attach(JobId(1)),
        ..kinds(3_000, 5)
    };
    if let SubmitBody::Graph(graph) = &mut large.body {
        for task in &mut graph.tasks {
            task.id.0 += 1;
        }
    }
    for (request, large) in [(2, large), (3, kinds(3_000, 5))] {
        let large = Command::Submit(Box::new(large));
        take(&mut world, Input::Request(RequestId(request), large));
    }
    settle(&mut world);
    let canceled = cancel_all(&mut world);
    let [JobResult::Ok { job, canceled, .. }] = &canceled[..] else {
        panic!("one job is known: {canceled:?}");
    };
    assert_eq!((*job, *canceled), (JobId(1), 1));
    while world.state.submitting() > 0 {
        settle(&mut world);
    }
    let counts = |job| *world.state.jobs()[&JobId(job)].counts();
    assert_eq!((counts(1).canceled, counts(1).total()), (1, 3_001));
    assert_eq!((counts(2).canceled, counts(2).total()), (0, 3_000));
}

#[test]
fn a_large_submit_that_is_refused_is_freed_in_portions() {
    let mut world = World::new(0);
    let open = Command::OpenJob {
        name: "open".into(),
        max_fails: None,
        key: None,
    };
    take(&mut world, Input::Request(RequestId(1), open));
    // One job does not exist, the other is closed while the submit is built.
    for job in [7, 1] {
        let large = SubmitSpec {
            target: SubmitTarget::Attach(JobId(job)),
            ..kinds(5_000, 5)
        };
        let SubmitBody::Graph(graph) = &large.body else {
            panic!("a graph");
        };
        let template = Arc::downgrade(&graph.templates[0]);
        let large = Command::Submit(Box::new(large));
        take(&mut world, Input::Request(RequestId(2), large));
        settle(&mut world);
        if job == 1 {
            let close = Command::CloseJobs(Selector::All);
            take(&mut world, Input::Request(RequestId(3), close));
        }
        while world.state.submitting() > 0 {
            settle(&mut world);
        }
        let mut portions = 0;
        while world.state.has_portions_left() {
            assert!(template.upgrade().is_some(), "the first is freed last");
            settle(&mut world);
            portions += 1;
        }
        assert!(template.upgrade().is_none());
        assert!((4..20).contains(&portions), "{portions}");
    }
}

#[test]
fn a_server_that_ends_answers_submits_that_are_being_built() {
    let mut world = World::new(0);
    let large = Command::Submit(Box::new(kinds(3_000, 5)));
    take(&mut world, Input::Request(RequestId(1), large));
    settle(&mut world);
    let keep_workers = true;
    let effects = take(&mut world, Input::Ending { keep_workers });
    assert_eq!(submitted(&effects), Some(JobId(1)));
    settle(&mut world);
    let due = world.state.next_deadline();
    assert!(
        due.is_none_or(|due| due > world.now.mono),
        "nothing is due for ever"
    );
    let large = Command::Submit(Box::new(kinds(3_000, 5)));
    let effects = take(&mut world, Input::Request(RequestId(2), large));
    assert_eq!(submitted(&effects), Some(JobId(2)));
}
