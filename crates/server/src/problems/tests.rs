//! Tests of acknowledgements; the test acts as the loop that stores them.

use super::*;
use crate::core_handle::Event;

fn acknowledged(core: CoreHandle) -> Arc<Problems> {
    let problems = Problems::new(core, None, None, Arc::new(Questions::new(0)));
    Arc::new(Problems {
        acknowledged: Mutex::new(Some(BTreeMap::from([("internal".to_owned(), 1)]))),
        ..problems
    })
}

/// Withdraws an acknowledgement, up to the moment when the change would be stored.
async fn takes_back() -> (
    Arc<Problems>,
    tokio::task::JoinHandle<Result<(), Refusal>>,
    tokio::sync::oneshot::Sender<()>,
) {
    let (core, mut events) = CoreHandle::new();
    let problems = acknowledged(core);
    let other = Arc::clone(&problems);
    let taking = tokio::spawn(async move { other.acknowledge("internal", false).await });
    assert!(events.take().await, "the handle is there");
    let Some(Event::Persist(_, stored)) = events.next_request() else {
        panic!("it is stored");
    };
    (problems, taking, stored)
}

#[tokio::test]
async fn what_was_not_stored_is_not_said_to_be_done() {
    let (_problems, taking, stored) = takes_back().await;
    drop(stored);
    let refusal = taking.await.expect("no panic").expect_err("it is lost");
    assert!(refusal.text.contains("Repeat the command"), "{refusal:?}");
}

#[tokio::test]
async fn others_can_look_while_an_acknowledgement_is_being_stored() {
    let (problems, taking, stored) = takes_back().await;
    // The lock is free while the caller waits for the disk.
    let known = problems.acknowledged.lock().await;
    assert!(known.as_ref().is_some_and(BTreeMap::is_empty));
    assert!(!taking.is_finished(), "it is not on disk");
    drop(known);
    stored.send(()).expect("somebody waits");
    taking.await.expect("no panic").expect("done");
}
