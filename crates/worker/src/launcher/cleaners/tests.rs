//! Cleanups that take long, of one task among others.

use std::path::{Path, PathBuf};

use hq_core::outcome::Usage;
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

/// Ends that come within the time, with their words.
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
    // As many as are at work at one time seem to hang since long ago.
    let long_ago = Instant::now() - 10 * SLOW;
    {
        let mut queue = lock(&cleaners.queue);
        for number in 0..CLEANERS_MAX as u64 {
            queue.at_work.insert(number, long_ago);
        }
        queue.next_cleaner = CLEANERS_MAX as u64;
    }
    let waiting = Waiting {
        event: end(1),
        until: Instant::now() + Duration::from_millis(300),
        words: Some("said".into()),
    };
    cleaners.ends.insert(LaunchToken(1), waiting);
    let (_, cleanup) = task_dir(parent.path(), "quick");
    cleaners.add(end(2), cleanup, false);
    let found = collected(&mut cleaners, 2).await;
    let expected = [(2, "quick"), (1, "said")];
    assert_eq!(
        found,
        expected.map(|(token, words)| (LaunchToken(token), words.to_owned()))
    );
    // Its cleanup comes to an end later: nobody is told twice.
    let _ = cleaners.steps_tx.send(Step::Done(LaunchToken(1)));
    let mut ended = Vec::new();
    cleaners.collect(None, &mut ended);
    assert!(ended.is_empty());
}
