//! Submits that are too large to be queued in one step.

use super::*;

#[test]
fn a_submit_of_very_many_templates_is_answered_at_once_and_queued_in_portions() {
    let mut world = World::new(1);
    let large = SubmitSpec {
        stream_dir: Some(Box::from(*b"/streams/%{JOB_ID}")),
        ..kinds(3_000, 5)
    };
    let large = Command::Submit(Box::new(large));
    let effects = take(&mut world, Input::Request(RequestId(1), large));
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
    assert_eq!(submitted(&effects), Some(JobId(1)));
    assert_eq!(world.state.ready_len(), 0);
    settle(&mut world);
    assert!(
        world.state.next_deadline() <= Some(world.now.mono),
        "it goes on"
    );
    let submit = &world.state.jobs()[&JobId(1)].submits[0];
    assert!(submit.queue_key(2_999).is_none(), "not examined yet");
    let mut ids: Vec<_> = (0..3_000)
        .map(|index| {
            let template = submit.template(index).expect("at once");
            let stream_dir = template.header.stream_dir.as_deref();
            assert_eq!(stream_dir, Some(&b"/streams/1"[..]));
            template.id
        })
        .collect();
    ids.dedup();
    assert_eq!(ids.len(), 3_000);
    while world.started.len() < 3_000 {
        world.step();
    }
}
