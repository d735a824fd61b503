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

/// How long the start of a worker waits for the look at all processes, which usually takes milliseconds.
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

/// Ends what is left of tasks of this user on this machine whose workers do not exist any more.
///
/// It does nothing inside a task. Returns after at most two seconds; what takes longer goes on by itself.
pub fn end_leftovers() {
    let (done, ended) = mpsc::channel();
    let look = move || {
        let count = leftovers::kill();
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
    fn no_two_launchers_have_one_nonce() {
        assert_ne!(nonce(), nonce());
    }
}
