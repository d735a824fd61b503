//! Queries the memory that processes share from the kernel, with a timeout.

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use super::processes::Processes;

/// How long to wait for the kernel's answer.
const SHARES_TIMEOUT: Duration = Duration::from_millis(500);

/// Queries shared memory on a separate thread, because the query waits for locks of memory maps and
/// may hang.
pub(super) struct Shares {
    questions: SyncSender<Vec<u32>>,
    answers: Receiver<Option<u64>>,
    /// Whether an answer is outstanding.
    is_behind: bool,
}

impl Shares {
    pub(super) fn start(processes: &Processes) -> Self {
        let processes = processes.clone();
        // Processes of other users or with more privileges cannot be queried, so they count in
        // full.
        Self::asking(move |pid| processes.share(pid).or_else(|| processes.own(pid)))
    }

    fn asking(share: impl Fn(u32) -> Option<u64> + Send + 'static) -> Self {
        let (questions, asked) = sync_channel::<Vec<u32>>(1);
        let (answer, answers) = sync_channel(1);
        // If the thread cannot be started, there are no answers, and shared pages count more than
        // once.
        let _ = thread::Builder::new()
            .name("hq-shares".into())
            .spawn(move || {
                for pids in asked {
                    // An exited process has no share.
                    let sum = pids.into_iter().filter_map(&share).sum::<u64>();
                    if answer.send(Some(sum).filter(|sum| *sum > 0)).is_err() {
                        return;
                    }
                }
            });
        Self {
            questions,
            answers,
            is_behind: false,
        }
    }

    /// Returns the memory of these processes in KiB, or `None` if it is not known in time.
    pub(super) fn sum(&mut self, pids: Vec<u32>) -> Option<u64> {
        if self.is_behind {
            // This drops the answer to an earlier question.
            self.is_behind = self.answers.try_recv().is_err();
            if self.is_behind {
                return None;
            }
        }
        self.questions.try_send(pids).ok()?;
        match self.answers.recv_timeout(SHARES_TIMEOUT) {
            Ok(sum) => sum,
            Err(RecvTimeoutError::Timeout) => {
                self.is_behind = true;
                None
            }
            Err(RecvTimeoutError::Disconnected) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_process_that_does_not_say_what_it_shares_counts_with_all_it_has() {
        let proc = tempfile::tempdir().expect("temporary directory");
        let large = 128 << 10;
        for pid in ["10", "11", "12"] {
            let own = proc.path().join(pid);
            fs::create_dir(&own).expect("writable");
            let status = format!("RssAnon:\t{large} kB\nRssShmem:\t0 kB\n");
            fs::write(own.join("status"), status).expect("writable");
        }
        let share = format!("Pss_Anon:\t{} kB\nPss_Shmem:\t0 kB\n", large / 2);
        fs::write(proc.path().join("10/smaps_rollup"), share).expect("writable");
        let processes = Processes::with_pages(proc.path(), 4);
        let mut shares = Shares::start(&processes);
        assert_eq!(shares.sum(vec![10, 11, 12]), Some(large / 2 + 2 * large));
    }

    #[test]
    fn what_processes_share_counts_once_and_nobody_waits_for_it_long() {
        let (let_go, held) = sync_channel::<()>(0);
        let mut shares = Shares::asking(move |pid| {
            if pid == 13 {
                // Simulates a locked memory map.
                let _ = held.recv();
            }
            Some(u64::from(pid))
        });
        assert_eq!(shares.sum(vec![3, 4]), Some(7));
        let begin = Instant::now();
        assert_eq!(shares.sum(vec![13]), None);
        assert!(begin.elapsed() >= SHARES_TIMEOUT);
        let begin = Instant::now();
        assert_eq!(shares.sum(vec![3]), None);
        assert!(begin.elapsed() < SHARES_TIMEOUT, "asked nobody");
        drop(let_go);
        // This must not be the answer to the previous question.
        let again = std::iter::repeat_with(|| shares.sum(vec![5]));
        assert_eq!(again.flatten().next(), Some(5));
    }
}
