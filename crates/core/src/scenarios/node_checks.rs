//! Workers whose nodes have problems, reported by the workers or revealed by their clocks.

use std::time::Duration;

use super::bench::*;
use crate::id::{JobId, WorkerId};
use crate::node_check::NodeFault;
use crate::outcome::Outcome;
use crate::quarantine::QuarantineMode;
use crate::server_state::{ChangeKind, Effect, WorkerMessage};
use crate::time::Timestamp;

pub(super) fn full() -> NodeFault {
    NodeFault::NoRoom {
        path: "/tmp".into(),
        free_bytes: 4_096,
    }
}

fn with_workers(count: u32, mode: QuarantineMode) -> (Bench, Vec<WorkerId>) {
    let mut bench = Bench::new();
    bench.state.set_quarantine_mode(mode);
    let workers = (0..count).map(|_| bench.worker(4)).collect();
    (bench, workers)
}

impl Bench {
    /// Sends a heartbeat with these problems.
    pub(super) fn ail(&mut self, worker: WorkerId, faults: &[NodeFault]) -> Vec<Effect> {
        self.beat(worker, faults.to_vec(), None)
    }

    fn beat(
        &mut self,
        worker: WorkerId,
        faults: Vec<NodeFault>,
        sent: Option<Timestamp>,
    ) -> Vec<Effect> {
        let message = WorkerMessage::Heartbeat {
            unkillable: Vec::new(),
            held: Vec::new(),
            faults,
            sent,
        };
        self.say(worker, message)
    }

    fn is_unfit(&self, worker: WorkerId) -> bool {
        self.state.workers()[&worker].is_unfit()
    }
}

/// Returns the messages to users.
fn told(effects: &[Effect]) -> Vec<String> {
    let said = effects.iter().filter_map(|effect| {
        let Effect::Persist(change) = effect else {
            return None;
        };
        if let ChangeKind::WorkerSuspected { worker, why } = &change.kind {
            return Some(format!("{worker}: {why}"));
        }
        let ChangeKind::WorkerReleased { worker, why } = &change.kind else {
            return None;
        };
        Some(format!("{worker} again: {why}"))
    });
    said.collect()
}

#[test]
fn a_node_with_a_full_disk_gets_nothing_until_there_is_room() {
    let (mut bench, workers) = with_workers(3, QuarantineMode::Act);
    let job = bench.submit(tasks(100));
    let (first, running) = (workers[0], bench.has(workers[0]));
    bench.start(first, key(JobId(running[0].0), running[0].1));
    let effects = bench.ail(first, &[full()]);
    assert_eq!(
        told(&effects),
        ["1: its disk is full: 4 KiB are left in /tmp"]
    );
    assert!(bench.is_unfit(first));
    // Tasks that have not started go elsewhere.
    for (job, task) in running.iter().skip(1) {
        bench.give_back(first, key(JobId(*job), *task));
    }
    assert_eq!(bench.has(first), running[..1], "what runs goes on");
    bench.finish(first, key(JobId(running[0].0), running[0].1));
    assert_eq!(bench.has(first), []);
    // Each heartbeat reports a different amount of free space.
    let less = NodeFault::NoRoom {
        path: "/tmp".into(),
        free_bytes: 0,
    };
    assert_eq!(told(&bench.ail(first, &[less])), [""; 0]);
    let effects = bench.ail(first, &[]);
    assert_eq!(
        told(&effects),
        ["1 again: nothing is wrong with its node any more"]
    );
    assert!(!bench.is_unfit(first) && !bench.has(first).is_empty());
    bench.finish_all();
    assert_eq!(bench.counts(job).finished, 100);
    bench.state.check_invariants();
}

#[test]
fn a_server_that_only_tells_gives_it_tasks_all_the_same() {
    for (mode, expected) in [(QuarantineMode::Tell, 1), (QuarantineMode::Off, 0)] {
        let (mut bench, workers) = with_workers(3, mode);
        let effects = bench.ail(workers[0], &[full()]);
        assert_eq!(told(&effects).len(), expected);
        assert_eq!(bench.state.faulty_workers().count(), expected);
        bench.submit(tasks(100));
        assert!(!bench.has(workers[0]).is_empty());
    }
}

#[test]
fn half_of_the_workers_and_the_last_one_get_tasks_whatever_is_wrong() {
    let (mut bench, workers) = with_workers(4, QuarantineMode::Act);
    for worker in &workers {
        bench.ail(*worker, &[full()]);
    }
    let unfit = |bench: &Bench| -> Vec<bool> {
        let known = workers.iter().filter(|id| bench.knows(**id));
        known.map(|id| bench.is_unfit(*id)).collect()
    };
    assert_eq!(unfit(&bench), [true, true, false, false]);
    let (mut bench, workers) = with_workers(2, QuarantineMode::Act);
    bench.ail(workers[0], &[full()]);
    assert!(bench.is_unfit(workers[0]));
    bench.leave(workers[1], crate::outcome::LostReason::Stopped);
    bench.submit(tasks(1));
    // At the next heartbeat, no other worker is left.
    bench.ail(workers[0], &[full()]);
    assert_eq!(bench.has(workers[0]).len(), 1);
}

#[test]
fn a_clock_that_is_off_is_found_out_by_heartbeats() {
    let (mut bench, workers) = with_workers(3, QuarantineMode::Act);
    for number in 0..3 {
        bench.wait(Duration::from_secs(8));
        let wall = bench.now.wall;
        let late = Timestamp(wall.0 - 90_000_000_000);
        let effects = bench.beat(workers[0], Vec::new(), Some(late));
        assert!(told(&bench.beat(workers[1], Vec::new(), Some(wall))).is_empty());
        assert_eq!(
            told(&effects).len(),
            usize::from(number == 2),
            "{effects:?}"
        );
    }
    assert!(bench.is_unfit(workers[0]) && !bench.is_unfit(workers[1]));
    bench.wait(Duration::from_secs(8));
    let wall = bench.now.wall;
    bench.beat(workers[0], Vec::new(), Some(wall));
    assert!(!bench.is_unfit(workers[0]), "it has been set");
}

#[test]
fn a_worker_set_aside_by_people_stays_so_when_its_node_is_all_right() {
    let (mut bench, workers) = with_workers(3, QuarantineMode::Act);
    bench.request(crate::server_state::Command::QuarantineWorkers {
        workers: this(workers[0]),
        span: Duration::from_mins(10),
        why: "".into(),
    });
    bench.ail(workers[0], &[full()]);
    let effects = bench.ail(workers[0], &[]);
    assert_eq!(told(&effects), [""; 0], "it does not get tasks again");
    bench.submit(tasks(100));
    assert_eq!(bench.has(workers[0]), []);
    // Its failures are examined as before.
    let (job, task) = bench.has(workers[1])[0];
    bench.end(workers[1], key(JobId(job), task), Outcome::ExitCode(1));
}
