//! Names workers uniquely on their machine, and kills leftover processes of tasks whose workers are
//! gone.
//!
//! A worker that is killed together with its front process cannot kill its tasks. Their processes
//! continue to run and use cpus that the next worker offers again. Each worker therefore looks for
//! such processes when it starts.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use hq_spawn::leftovers::{self, Ended, Launched};

/// A variable, unique per instance, that marks the processes of a task for the spawn engine:
/// `<server>/<job>/<task>/<instance>/<nonce of the worker>`.
pub(crate) const MARK: &str = "HQ_INSTANCE_KEY";

/// The maximum number of killed processes that the log names.
const NAMED_MAX: usize = 5;

/// How long the search, which usually takes milliseconds, may delay the worker's start.
const PATIENCE: Duration = Duration::from_secs(2);

/// Returns a string that differs between any two launchers. It contains the process id, the start
/// time of the process, the clock, and a counter.
pub(crate) fn nonce() -> String {
    static COUNTER: AtomicU32 = AtomicU32::new(0);
    let count = COUNTER.fetch_add(1, Ordering::Relaxed);
    // Without `/proc`, no worker looks for leftovers either.
    let began = Launched::own().map_or(0, |own| own.began);
    format!(
        "{:x}-{began:x}-{:x}-{count:x}",
        std::process::id(),
        crate::clock::now().wall.0
    )
}

/// Returns the process id and the start time of the launcher from a nonce, or from a string that
/// starts with one. A start time of 0 means that it is unknown.
pub(crate) fn process_of(nonce: &str) -> Option<(u32, u64)> {
    let mut fields = nonce.split('-');
    let pid = u32::from_str_radix(fields.next()?, 16).ok()?;
    let began = u64::from_str_radix(fields.next()?, 16).ok()?;
    Some((pid, began))
}

/// Kills leftover processes of this user's tasks on this machine whose workers no longer exist.
///
/// Does nothing inside a task. Returns after at most two seconds; a longer search continues in the
/// background.
pub fn end_leftovers() {
    let (done, ended) = mpsc::channel();
    let look = move || {
        let ended = leftovers::kill();
        if !ended.is_empty() {
            tracing::warn!("{}", report_on(&ended));
        }
        // This fails if the starting worker no longer waits.
        let _ = done.send(());
    };
    let started = std::thread::Builder::new()
        .name("leftovers".to_owned())
        .spawn(look);
    match started {
        Ok(_) => {
            if ended.recv_timeout(PATIENCE).is_err() {
                tracing::warn!(
                    "The search for processes of earlier workers takes long; it continues in the background"
                );
            }
        }
        Err(error) => tracing::warn!(%error, "Cannot look for processes of earlier workers"),
    }
}

/// Returns a log text about the killed processes.
fn report_on(ended: &[Ended]) -> String {
    let mut named: Vec<_> = ended.iter().take(NAMED_MAX).map(Ended::to_string).collect();
    let unnamed = ended.len().saturating_sub(NAMED_MAX);
    if unnamed > 0 {
        named.push(format!("and {unnamed} more"));
    }
    format!(
        "Killed leftover processes of tasks of this user's killed workers on this machine: {}",
        named.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_many_ended_processes_are_named() {
        let ended: Vec<_> = (1..=7)
            .map(|pid| Ended {
                pid,
                program: "sleep".to_owned(),
            })
            .collect();
        let expected =
            "Killed leftover processes of tasks of this user's killed workers on this machine: ";
        assert_eq!(report_on(&ended[..1]), format!("{expected}sleep (1)"));
        let many =
            format!("{expected}sleep (1), sleep (2), sleep (3), sleep (4), sleep (5), and 2 more");
        assert_eq!(report_on(&ended), many);
    }

    #[test]
    fn no_two_launchers_have_one_nonce() {
        assert_ne!(nonce(), nonce());
    }

    #[test]
    fn a_nonce_names_its_process() {
        let own = Launched::own().expect("there is a /proc");
        let expected = Some((std::process::id(), own.began));
        assert_eq!(process_of(&nonce()), expected);
        assert_eq!(process_of(&format!("{}-worker", nonce())), expected);
        for other in ["", "2a", "x-1", "2a-", "other"] {
            assert_eq!(process_of(other), None, "{other}");
        }
    }
}
