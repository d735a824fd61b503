//! Tests slow cleanups of some tasks among others.

use std::path::{Path, PathBuf};

use hq_core::outcome::Usage;
use hq_core::placeholder::FilePaths;
use hq_core::time::Time;
use hq_core::worker_state::ExitStatus;

use super::*;
use crate::output::ERROR_FILE;

fn end(token: u64) -> LaunchEvent {
    LaunchEvent::Exited {
        token: LaunchToken(token),
        status: ExitStatus::Code(1),
        ended: Time(0),
        run: Duration::ZERO,
        usage: Usage::default(),
        message: None,
    }
}

fn task_dir(parent: &Path, name: &str) -> (PathBuf, Cleanup) {
    let directory = parent.join(name);
    std::fs::create_dir(&directory).expect("new");
    std::fs::write(directory.join(ERROR_FILE), name).expect("writable");
    let cleanup = Cleanup {
        task_dir: Some(directory.clone()),
        ..Cleanup::default()
    };
    (directory, cleanup)
}

/// Creates a waiting end whose task wrote a message.
fn waiting(token: u64, since: Instant) -> Waiting {
    Waiting {
        event: end(token),
        since,
        words: Some("said".into()),
        full: None,
        done: None,
    }
}

/// Returns the ends that arrive in time, with their messages.
async fn collected(cleaners: &mut Cleaners, count: usize) -> Vec<(LaunchToken, String)> {
    let mut ended = Vec::new();
    while ended.len() < count {
        let step = cleaners.news().await;
        cleaners.collect(step, &mut ended);
    }
    let named = ended.into_iter().filter_map(|event| match event {
        LaunchEvent::Exited { token, message, .. } => Some((token, message.unwrap_or_default())),
        LaunchEvent::Started { .. } | LaunchEvent::Failed { .. } => None,
    });
    named.map(|(token, words)| (token, words.into())).collect()
}

#[tokio::test]
async fn each_end_comes_with_its_own_words_when_its_directory_is_gone() {
    let parent = tempfile::tempdir().expect("temporary directory");
    let mut cleaners = Cleaners::new();
    let mut directories = Vec::new();
    for token in 0..20 {
        let (directory, cleanup) = task_dir(parent.path(), &format!("task {token}"));
        cleaners.add(end(token), cleanup, false);
        directories.push(directory);
    }
    let mut found = collected(&mut cleaners, 20).await;
    found.sort();
    assert_eq!(found[7], (LaunchToken(7), "task 7".to_owned()));
    assert!(directories.iter().all(|directory| !directory.exists()));
}

#[tokio::test]
async fn cleanups_that_hang_hold_up_their_own_ends_only_and_not_for_ever() {
    let parent = tempfile::tempdir().expect("temporary directory");
    let mut cleaners = Cleaners::new();
    // Pretend that all cleaners have hung for a long time.
    let long_ago = Instant::now() - 10 * SLOW;
    {
        let mut queue = lock(&cleaners.queue);
        for number in 1..=CLEANERS_MAX as u64 {
            let token = Some(LaunchToken(number));
            let since = long_ago;
            queue
                .at_work
                .insert(number, CurrentCleanup { since, token });
        }
        queue.next_cleaner = CLEANERS_MAX as u64 + 1;
    }
    cleaners.ends.insert(LaunchToken(1), waiting(1, long_ago));
    let (_, cleanup) = task_dir(parent.path(), "quick");
    cleaners.add(end(2), cleanup, false);
    let found = collected(&mut cleaners, 2).await;
    let mut found = found;
    found.sort();
    let expected = [(1, "said"), (2, "quick")];
    assert_eq!(
        found,
        expected.map(|(token, words)| (LaunchToken(token), words.to_owned()))
    );
    // The cleanup completes later, but the end is not reported again.
    let _ = cleaners.steps_tx.send(Step::Done(LaunchToken(1)));
    let mut ended = Vec::new();
    cleaners.collect(None, &mut ended);
    assert!(ended.is_empty());
}

#[tokio::test]
async fn what_waits_behind_cleanups_that_turn_out_to_hang_gets_a_cleaner_of_its_own() {
    let parent = tempfile::tempdir().expect("temporary directory");
    let mut cleaners = Cleaners::new();
    let all_since = |cleaners: &Cleaners, since| {
        let mut queue = lock(&cleaners.queue);
        for number in 1..=CLEANERS_MAX as u64 {
            let token = Some(LaunchToken(number));
            queue
                .at_work
                .insert(number, CurrentCleanup { since, token });
        }
        queue.next_cleaner = CLEANERS_MAX as u64 + 1;
    };
    // Pretend that all cleanups have just begun.
    all_since(&cleaners, Instant::now() + 1_000 * SLOW);
    let (_, cleanup) = task_dir(parent.path(), "quick");
    cleaners.add(end(100), cleanup, false);
    assert_eq!(lock(&cleaners.queue).at_work.len(), CLEANERS_MAX);
    all_since(&cleaners, Instant::now() - 10 * SLOW);
    // No other task ends, so only the timer can trigger the report.
    let found = collected(&mut cleaners, 1).await;
    assert_eq!(found, [(LaunchToken(100), "quick".to_owned())]);
}

#[tokio::test]
async fn behind_others_an_end_waits_as_long_as_these_come_to_an_end() {
    let mut cleaners = Cleaners::new();
    let now = Instant::now();
    let long_ago = now - 10 * WAIT_MAX;
    for token in [1, 2] {
        cleaners
            .ends
            .insert(LaunchToken(token), waiting(token, long_ago));
    }
    let late = |cleaners: &mut Cleaners| {
        let mut ended = Vec::new();
        cleaners.collect_late(&mut ended);
        ended
            .iter()
            .map(crate::launcher::token_of)
            .collect::<Vec<_>>()
    };
    // The first one has only just begun, so the others keep waiting.
    lock(&cleaners.queue).last_taken = Some(now);
    let token = Some(LaunchToken(1));
    let begun = |since| CurrentCleanup { since, token };
    lock(&cleaners.queue).at_work.insert(0, begun(now));
    assert_eq!(late(&mut cleaners), []);
    lock(&cleaners.queue).at_work.insert(0, begun(long_ago));
    assert_eq!(late(&mut cleaners), [LaunchToken(1)]);
    lock(&cleaners.queue).last_taken = Some(now - WAIT_MAX);
    assert_eq!(late(&mut cleaners), [LaunchToken(2)]);
}

#[tokio::test]
async fn a_task_whose_outputs_must_be_there_fails_if_nobody_can_tell_in_time() {
    for (must_exist, expected) in [(false, 0), (true, 1)] {
        let files = FilePaths {
            inputs: Vec::new(),
            outputs: vec![b"/w/out".to_vec()],
        };
        let mut cleaners = Cleaners::new();
        let long_ago = Instant::now() - 2 * CHECK_WAIT_MAX;
        let mut waiting = waiting(1, long_ago);
        waiting.done = Done::new(files, (7, b"/w"), (must_exist, false)).map(Arc::new);
        if let LaunchEvent::Exited { status, .. } = &mut waiting.event {
            *status = ExitStatus::Code(0);
        }
        cleaners.ends.insert(LaunchToken(1), waiting);
        let token = Some(LaunchToken(1));
        let since = long_ago;
        lock(&cleaners.queue)
            .at_work
            .insert(0, CurrentCleanup { since, token });
        let mut ended = Vec::new();
        cleaners.collect_late(&mut ended);
        let [LaunchEvent::Exited { status, .. }] = &ended[..] else {
            panic!("{ended:?}");
        };
        assert_eq!(*status, ExitStatus::Code(expected));
    }
}
