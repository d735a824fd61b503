//! Runs all queries of dashboards and reports on a small history.

use std::sync::Arc;
use std::time::Duration;

use hq_core::autoalloc::{AllocationEvent, QueueRecord};
use hq_core::hardware::HardwareUsage;
use hq_core::id::{AllocationKey, InstanceId, JobId, QueueId, TaskId, TaskKey};
use hq_core::outcome::{LostReason, Outcome, Usage};
use hq_core::range::IdArray;
use hq_core::server_state::{AllocationChange, Change, ChangeKind, EndAwaited};
use hq_core::task::{TaskEnd, TaskState};
use hq_core::testing::{queue_params, worker_config};
use hq_protocol::{Message as _, client};
use rusqlite::Connection;
use rusqlite::hooks::{AuthContext, Authorization};

use super::report::{self, Period};
use super::{QueryLimits, run, timeline};
use crate::statement::Query;
use crate::testing::{NOW, WORKER, change, submitted};
use crate::{group, schema};

const JOB: JobId = JobId(1);
/// One second after the last change.
const END_NS: i64 = NOW.wall.0 + 11_000_000_000;
const PERIOD: Period = Period {
    from_ns: NOW.wall.0,
    to_ns: END_NS,
};

fn started(task: u32) -> ChangeKind {
    ChangeKind::TaskStarted {
        task: TaskKey::new(JOB, TaskId(task)),
        instance: InstanceId(0),
        variant: 0,
        nodes: Box::default(),
        worker: WORKER,
    }
}

fn ended(task: u32, seconds: u64, outcome: Outcome) -> ChangeKind {
    ChangeKind::TaskEnded {
        task: TaskKey::new(JOB, TaskId(task)),
        instance: InstanceId(0),
        worker: WORKER,
        crash_count: 0,
        is_finished: outcome == Outcome::Finished,
        end: TaskEnd {
            outcome,
            at: NOW.wall.plus(Duration::from_secs(seconds)),
            run: Duration::from_secs(seconds),
            usage: Usage {
                max_rss_kib: 100,
                ..Usage::default()
            },
        },
        awaited: EndAwaited::No,
    }
}

fn queue_record(id: QueueId) -> QueueRecord {
    QueueRecord {
        id,
        params: Arc::new(queue_params()),
        paused: None,
        known_resources: None,
        last_number: 7,
        allocations: Vec::new(),
        failure: None,
        is_removed: false,
    }
}

/// Creates a history of job 1 with five tasks: task 1 finished after two seconds, 2 failed after
/// five, 3 is running, 4 was canceled, and 5 is waiting. The history also contains a connected
/// worker, an ended worker, and an ended allocation.
fn history() -> Connection {
    let mut connection = Connection::open_in_memory().expect("a database in memory");
    schema::migrate(&mut connection, 0).expect("the schema is valid");
    let gone = hq_core::id::WorkerId(2);
    let config = Arc::new(worker_config(4));
    let key = AllocationKey {
        queue: QueueId(3),
        number: 1,
    };
    let allocation = |event| ChangeKind::Allocation(AllocationChange::Event(event));
    let connected = |worker| ChangeKind::WorkerConnected {
        worker,
        config: Arc::clone(&config),
    };
    let kinds = [
        connected(WORKER),
        connected(gone),
        submitted(JOB, &IdArray::consecutive(1, 5).expect("fits")),
        started(1),
        started(2),
        ended(1, 2, Outcome::Finished),
        ended(2, 5, Outcome::ExitCode(7)),
        started(3),
        ChangeKind::TasksDropped {
            job: JOB,
            ids: IdArray::single(4),
            to: TaskState::Canceled,
        },
        ChangeKind::WorkerOverview {
            worker: WORKER,
            usage: Box::new(HardwareUsage::default()),
        },
        ChangeKind::WorkerLost {
            worker: gone,
            reason: LostReason::HeartbeatLost,
        },
        ChangeKind::Allocation(AllocationChange::QueueStored {
            queue: key.queue,
            record: Some(Box::new(queue_record(key.queue))),
        }),
        allocation(AllocationEvent::Queued {
            key,
            job: "71.pbs".into(),
            workers: 2,
        }),
        allocation(AllocationEvent::Finished {
            key,
            job: "71.pbs".into(),
        }),
    ];
    let changes: Vec<Change> = kinds.into_iter().map(change).collect();
    let transaction = connection.transaction().expect("there is no other writer");
    group::write(&transaction, &mut 1, &changes, None).expect("every change can be written");
    transaction.commit().expect("memory is never full");
    connection
}

#[track_caller]
fn ask<R>(connection: &Connection, question: &Query<R>) -> Vec<R> {
    // The previous query has left an authorizer that prevents even preparing the same query again.
    let all = None::<fn(AuthContext<'_>) -> Authorization>;
    connection.authorizer(all).expect("it is ours");
    let limits = QueryLimits {
        time: Duration::from_secs(600),
        rows: 1_000,
        bytes: 1 << 20,
    };
    let (rows, is_cut) = question.run(connection, limits).expect("it can be asked");
    assert!(!is_cut);
    rows
}

#[test]
fn a_dashboard_reads_jobs_and_tasks() {
    let db = &history();
    let jobs = ask(db, &run::jobs(END_NS));
    assert_eq!((jobs.len(), jobs[0].id, jobs[0].task_count), (1, 1, 5));
    let mut rows = ask(db, &run::states(END_NS));
    rows.extend(ask(db, &run::dropped_sums(END_NS)));
    let counts = run::counts(&jobs, rows)[0];
    assert_eq!((counts.waiting, counts.running), (1, 1));
    assert_eq!((counts.finished, counts.failed, counts.canceled), (1, 1, 1));
    let tasks = ask(db, &run::tasks_of_job(1, END_NS, 10));
    assert_eq!(tasks.len(), 3, "those that have started");
    assert_eq!(ask(db, &run::tasks_of_worker(1, END_NS, 10)).len(), 3);
    let failures = ask(db, &run::failures(1, END_NS));
    assert_eq!((failures.len(), failures[0].task), (1, 2));
    let error = failures[0].error.as_deref();
    assert!(
        error.is_some_and(|error| error.contains('7')),
        "{failures:?}"
    );
    let ended = ask(db, &run::ended(END_NS));
    assert_eq!(ended.iter().map(|row| row.count).sum::<u64>(), 2);
    let touched = ask(db, &run::touched(1));
    assert_eq!((touched[0].ids, touched[0].task_count), (Some((1, 3)), 5));
    let ids = ask(db, &run::submitted_ids(1));
    assert_eq!(ids.iter().map(|row| row.count).sum::<i64>(), 5);
    let dropped = ask(db, &run::dropped(1, END_NS));
    assert_eq!((dropped[0].first, dropped[0].count), (4, 1));
    let strip = ask(db, &run::strip(1, END_NS, 1, 5, 5));
    assert_eq!(strip.iter().map(|row| row.count).sum::<u64>(), 3);
    assert!(!ask(db, &run::requests()).is_empty());
}

#[test]
fn a_dashboard_reads_workers_allocations_and_events() {
    let db = &history();
    let workers = ask(db, &run::workers(END_NS));
    let ended: Vec<bool> = workers.iter().map(|row| row.ended.is_some()).collect();
    assert_eq!(ended, [false, true]);
    let running = ask(db, &run::running(END_NS));
    assert_eq!((running[0].worker, running[0].count), (1, 1));
    let queues = ask(db, &run::queues());
    let record = queues[0].record.as_deref().expect("it is stored");
    let record = client::AllocQueueRecord::decode(record).expect("it can be read");
    assert_eq!((queues[0].id, record.id, record.last_number), (3, 3, 7));
    let allocations = ask(db, &run::allocations(END_NS));
    assert_eq!(
        (&*allocations[0].id, allocations[0].worker_count),
        ("71.pbs", 2)
    );
    assert!(allocations[0].started_ns.is_none() && allocations[0].ended_ns.is_some());
    assert!(!ask(db, &run::events(END_NS)).is_empty());
    assert_eq!(ask(db, &run::lives(NOW.wall.0, END_NS)).len(), 2);
    assert_eq!(ask(db, &run::first_start()), [Some(NOW.wall.0)]);
    assert!(ask(db, &run::span())[0].0 <= NOW.wall.0);
}

#[test]
fn a_report_reads_sums_and_the_slowest() {
    let db = &history();
    let totals = &ask(db, &report::totals(PERIOD))[0];
    assert_eq!((totals.jobs, totals.finished, totals.failed), (1, 1, 1));
    let jobs = ask(db, &report::jobs(PERIOD, 10));
    assert_eq!(
        (jobs[0].finished, jobs[0].failed, jobs[0].rss_kib),
        (1, 1, 100)
    );
    let slowest = ask(db, &report::slowest(PERIOD, 10));
    let found: Vec<_> = slowest
        .iter()
        .map(|row| (row.task, row.is_failed))
        .collect();
    assert_eq!(found, [(2, true), (1, false)]);
    let failures = ask(db, &report::failures(PERIOD));
    assert_eq!((failures[0].job, failures[0].count), (1, 1));
    assert_eq!(ask(db, &report::workers(PERIOD)).len(), 2);
    let times = ask(db, &report::run_times(1, PERIOD));
    assert_eq!(times.iter().map(|(_, count)| count).sum::<u64>(), 2);
    assert_eq!(
        ask(db, &report::run_times_at(1, PERIOD, &[1])),
        [(1, 5_000_000)]
    );
    assert_eq!(ask(db, &report::usage(PERIOD))[0].0, 1);
    assert!(
        ask(db, &report::costs(PERIOD)).len() >= 2,
        "finished and failed"
    );
    assert!(
        ask(db, &report::resource_steps(PERIOD, 1_000_000_000, 3)).is_empty(),
        "cpus only"
    );
}

#[test]
fn the_web_page_reads_failures_and_run_times() {
    let db = &history();
    let failures = ask(db, &timeline::failures(1));
    assert_eq!((failures[0].task, failures[0].run_us), (2, Some(5_000_000)));
    let groups = ask(db, &timeline::failure_groups(1));
    assert_eq!((groups.len(), groups[0].count), (1, 1));
    let times = ask(db, &timeline::run_times(1));
    assert_eq!(times.iter().map(|row| row.count).sum::<u64>(), 2);
    assert_eq!(ask(db, &timeline::first_submit()), [NOW.wall.0 / 1_000_000]);
    assert_eq!(ask(db, &timeline::worker_count(NOW.wall.0, END_NS)), [2]);
    let workers = ask(db, &timeline::workers(NOW.wall.0, END_NS));
    assert_eq!((workers.len(), workers[0].cpus), (2, 40_000));
    let bars = ask(db, &timeline::bars(NOW.wall.0, END_NS));
    assert_eq!(bars.len(), 3, "what ran");
    let sums = ask(db, &timeline::bar_sums(NOW.wall.0, END_NS, 1_000_000_000));
    assert_eq!(
        sums.iter()
            .map(|row| (row.count, row.failed))
            .fold((0, 0), |(n, bad), row| (n + row.0, bad + row.1)),
        (3, 1)
    );
    let history = ask(db, &timeline::history(NOW.wall.0, END_NS, 1_000_000_000));
    let failed = history.iter().filter(|row| row.state == TaskState::Failed);
    assert_eq!(failed.map(|row| row.count).sum::<i64>(), 1);
    let log = ask(db, &timeline::log(i64::MAX, 100));
    assert!(log.iter().any(|row| row.kind == "job-created"), "{log:?}");
}
