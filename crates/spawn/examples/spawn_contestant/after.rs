//! Processes that are all created before the first is waited for.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use hq_spawn::Strategy;
use tokio::process::{Child, Command};
use tokio::runtime::Builder;

use super::{Work, launcher};

pub(crate) fn run(mechanism: &str, work: &Arc<Work>) {
    let runtime = |mut builder: Builder| builder.enable_all().build().expect("a runtime");
    let one_thread = || runtime(Builder::new_current_thread());
    if mechanism.starts_with("tokio") {
        // Tokio has a pidfd for each process.
        raise_descriptor_limit();
    }
    match mechanism {
        "command" => with_command(work),
        "pool" => launcher::all_first(work, Strategy::Pool),
        "single" => launcher::all_first(work, Strategy::Single),
        "tokio" => one_thread().block_on(reap(work, async |work| {
            std::iter::from_fn(|| create(work)).collect()
        })),
        "tokio-blocking" => one_thread().block_on(reap(work, async |work| {
            joined(work, |work| {
                tokio::task::spawn_blocking(move || create(&work))
            })
            .await
        })),
        "tokio-threads" => {
            let mut builder = Builder::new_multi_thread();
            builder.worker_threads(work.options.parallel);
            runtime(builder).block_on(reap(work, async |work| {
                joined(work, |work| tokio::spawn(async move { create(&work) })).await
            }));
        }
        _ => panic!("{mechanism} cannot wait for its processes at the end"),
    }
}

/// Raises the soft limit on descriptors to the hard limit.
fn raise_descriptor_limit() {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the pointer refers to a live `rlimit`.
    let read = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: the pointer refers to a live `rlimit`.
    let set = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
    assert_eq!((read, set), (0, 0), "a process may raise its soft limit");
}

fn with_command(work: &Work) {
    let next = || Some(work.command(work.take()?).spawn().expect("a process"));
    let children: Vec<_> = std::iter::from_fn(next).collect();
    work.all_created();
    work.done.store(children.len() as u64, Ordering::Relaxed);
    for mut child in children {
        let status = child.wait().expect("the child is ours");
        assert!(status.success(), "a process failed");
    }
}

/// Creates the next process; `None` if there are enough or the time is up.
fn create(work: &Work) -> Option<Child> {
    let command = work.command(work.take()?);
    Some(Command::from(command).spawn().expect("a process"))
}

/// Creates each process in a task of its own.
async fn joined(
    work: &Arc<Work>,
    task: fn(Arc<Work>) -> tokio::task::JoinHandle<Option<Child>>,
) -> Vec<Child> {
    let tasks: Vec<_> = (0..work.options.count)
        .map(|_| task(Arc::clone(work)))
        .collect();
    let mut children = Vec::new();
    for task in tasks {
        children.extend(task.await.expect("no panic"));
    }
    children
}

async fn reap(work: &Arc<Work>, create_all: impl AsyncFnOnce(&Arc<Work>) -> Vec<Child>) {
    let children = create_all(work).await;
    work.all_created();
    work.done.store(children.len() as u64, Ordering::Relaxed);
    for mut child in children {
        let status = child.wait().await.expect("the child is ours");
        assert!(status.success(), "a process failed");
    }
}
