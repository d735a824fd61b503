//! How a task names its worker, and what is left of tasks whose workers are gone.
//!
//! A worker that is killed together with its front process ends nothing any more: what its tasks have started lives
//! on, on cpus that the next worker offers again. So each worker looks for such processes when it starts.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use hq_spawn::leftovers::{self, Launched};

/// Variable that no two instances share, by which the spawn engine recognises what belongs to a task:
/// `<server>/<job>/<task>/<instance>/<nonce of the worker>`.
pub(crate) const MARK: &str = "HQ_INSTANCE_KEY";

/// How long the start of a worker waits for the look at all processes, which usually takes milliseconds. Reading the
/// environment of a process that hangs may take for ever.
const PATIENCE: Duration = Duration::from_secs(2);

/// Differs between any two launchers: process, when it began, the time, and a counter for those of one moment.
pub(crate) fn nonce() -> String {
    static COUNTER: AtomicU32 = AtomicU32::new(0);
    let count = COUNTER.fetch_add(1, Ordering::Relaxed);
    // Without `/proc` nobody looks for it either.
    let began = Launched::own().map_or(0, |own| own.began);
    format!(
        "{:x}-{began:x}-{:x}-{count:x}",
        std::process::id(),
        crate::clock::now().wall.0
    )
}

/// The launcher that a task's mark names.
fn launcher_of(mark: &str) -> Option<Launched> {
    let (_, nonce) = mark.rsplit_once('/')?;
    let mut parts = nonce.split('-');
    let pid = u32::from_str_radix(parts.next()?, 16).ok()?;
    let began = u64::from_str_radix(parts.next()?, 16).ok()?;
    // Those of earlier versions have three parts and do not say when it began.
    (parts.count() == 2).then_some(Launched { pid, began })
}

/// Ends what is left of tasks of this user on this machine whose workers do not exist any more.
///
/// It does nothing inside a task. Returns after at most two seconds; what takes longer goes on by itself.
pub fn end_leftovers() {
    let (done, ended) = mpsc::channel();
    let look = move || {
        let is_gone = |mark: &str| launcher_of(mark).is_some_and(|launcher| !launcher.is_alive());
        let count = leftovers::kill(MARK, is_gone);
        if count > 0 {
            tracing::warn!(
                "Ended {count} processes that tasks of an earlier worker, which was killed, had left behind"
            );
        }
        // Nobody may be waiting any more.
        let _ = done.send(());
    };
    let started = std::thread::Builder::new()
        .name("leftovers".to_owned())
        .spawn(look);
    match started {
        Ok(_) => {
            if ended.recv_timeout(PATIENCE).is_err() {
                tracing::warn!(
                    "Looking for processes of earlier workers takes long, it goes on beside the worker"
                );
            }
        }
        Err(error) => tracing::warn!(%error, "Cannot look for processes of earlier workers"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_names_its_launcher() {
        let mark = format!("uid/3/17/0/{}", nonce());
        assert_eq!(launcher_of(&mark), Launched::own());
        assert_eq!(launcher_of("uid/3/17/0/1f-2a-0"), None);
        assert_eq!(launcher_of("something else"), None);
        assert_ne!(nonce(), nonce());
    }
}
