//! Passes usage curves of tasks from workers to the store and to clients. The core does not handle
//! them.

use std::time::Duration;

use hq_core::curve::{Curve, POINTS_ACCEPTED_MAX};
use hq_core::id::WorkerId;
use hq_protocol::client::{TaskInfo, TaskPageReply};
use hq_protocol::convert::TaskCurve;
use hq_store::StoreClient;
use hq_store::curves::{self, Found};

/// How long to wait for the journal. Tasks can be shown without curves.
const READ_TIMEOUT: Duration = Duration::from_secs(5);
/// The maximum size of a curve in a message, in bytes.
const CURVE_BYTES_MAX: usize = 160 + 4 * POINTS_ACCEPTED_MAX;

/// The curves in the store. `None` if there is no store, in which case no curves are kept.
#[derive(Clone)]
pub(crate) struct Curves(Option<StoreClient>);

impl Curves {
    /// Creates a handle to the curves in `store`.
    pub(crate) const fn new(store: Option<StoreClient>) -> Self {
        Self(store)
    }

    /// Passes a worker's curves to the store.
    pub(crate) fn add(&self, worker: WorkerId, sent: Vec<TaskCurve>) {
        let Some(store) = self.0.as_ref().filter(|_| !sent.is_empty()) else {
            return;
        };
        let curves = sent
            .into_iter()
            .map(|(key, curve)| curves::TaskCurve { key, worker, curve });
        store.store_curves(curves.collect());
    }

    /// Adds known curves to a page of tasks. Returns the page without them if the store is
    /// unreadable.
    pub(crate) async fn fill(&self, page: TaskPageReply) -> TaskPageReply {
        let Some(store) = self.0.clone() else {
            return page;
        };
        // Requests that need the store report that it hangs. This request can do without it.
        if store.hangs_for().is_some() {
            return page;
        }
        let asked = page.clone();
        let read = tokio::task::spawn_blocking(move || filled(&store, page));
        match tokio::time::timeout(READ_TIMEOUT, read).await {
            Ok(Ok(Ok(page))) => return page,
            Ok(Ok(Err(error))) => tracing::warn!("{error}"),
            Ok(Err(error)) => {
                tracing::error!(%error, "cannot read the usage of tasks over time");
            }
            Err(_) => {
                tracing::warn!("the usage of tasks over time is missing: the journal is slow")
            }
        }
        asked
    }
}

/// Returns the maximum number of bytes that the curves of a task can add to a page. The page
/// reserves room for them.
pub(crate) fn bytes_max(task: &TaskInfo) -> usize {
    let has_run = task.started_unix_ns.is_some() || !task.attempts.is_empty();
    usize::from(has_run) * (1 + task.attempts.len()) * CURVE_BYTES_MAX
}

fn filled(store: &StoreClient, mut page: TaskPageReply) -> Result<TaskPageReply, String> {
    let db = store.read()?;
    for task in page.tasks.iter_mut().filter(|task| bytes_max(task) > 0) {
        for found in curves::read(&db, page.job, task.id)? {
            // Only a damaged file contains larger curves, because no worker may send them.
            if points_of(&found.2) <= POINTS_ACCEPTED_MAX {
                place(task, &found);
            }
        }
    }
    Ok(page)
}

/// Returns the total number of points in all parts of a curve.
fn points_of(curve: &Curve) -> usize {
    let gpu = curve.gpu.iter();
    let gpu = gpu.map(|gpu| gpu.busy.len().max(gpu.memory.len()));
    curve.memory.len().max(curve.cpu.len()).max(gpu.sum())
}

/// Adds a curve to its attempt. Returns whether the attempt exists.
fn place(task: &mut TaskInfo, (instance, worker, curve): &Found) -> bool {
    let root = task.workers.first().map(|root| root.id);
    if (task.instance, root) == (*instance, Some(*worker)) {
        task.curve = Some(curve.into());
        return true;
    }
    let mut attempts = task.attempts.iter_mut();
    let is_of = |attempt: &&mut hq_protocol::client::TaskAttempt| {
        let ran_on = attempt.worker.as_ref().map(|ran_on| ran_on.id);
        (attempt.instance, ran_on) == (*instance, Some(*worker))
    };
    match attempts.find(is_of) {
        Some(attempt) => {
            attempt.curve = Some(curve.into());
            true
        }
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use hq_core::curve::{Asked, GpuCurve, GpusGiven};
    use hq_protocol::Message as _;
    use hq_protocol::client::{TaskAttempt, WorkerRef};

    use super::*;

    #[test]
    fn a_curve_belongs_to_the_attempt_and_the_worker_that_were_recorded() {
        let on = |id| WorkerRef {
            id,
            ..WorkerRef::default()
        };
        let mut task = TaskInfo {
            instance: 2,
            workers: vec![on(7), on(8)],
            attempts: vec![TaskAttempt {
                instance: 1,
                worker: Some(on(5)),
                ..TaskAttempt::default()
            }],
            ..TaskInfo::default()
        };
        let curve = Curve {
            spacing: Duration::from_secs(2),
            memory_peak_kib: 1,
            cpu_peak_milli: 1,
            memory: [1, 2].into(),
            cpu: [1, 2].into(),
            asked: Asked::default(),
            gpu: None,
        };
        for (instance, worker, is_right) in [
            (2, 7, true),
            (1, 5, true),
            // These curves come from a worker that did not run this instance, or belong to an
            // unknown instance.
            (2, 8, false),
            (1, 7, false),
            (0, 5, false),
        ] {
            let found = (instance, worker, curve.clone());
            assert_eq!(place(&mut task, &found), is_right, "{instance} {worker}");
        }
        assert!(task.curve.is_some() && task.attempts[0].curve.is_some());
    }

    #[test]
    fn a_page_has_room_for_the_largest_curves() {
        let points: Box<[u8]> = vec![255; POINTS_ACCEPTED_MAX].into();
        let curve = Curve {
            spacing: Duration::from_millis(u64::MAX),
            memory_peak_kib: u64::MAX,
            cpu_peak_milli: u64::MAX,
            memory: points.clone(),
            cpu: points.clone(),
            asked: Asked {
                memory_kib: u64::MAX,
                is_memory_limit: true,
                cpu_units: u64::MAX,
            },
            gpu: Some(Box::new(GpuCurve {
                busy_peak_milli: u64::MAX,
                memory_peak_kib: u64::MAX,
                busy: points.clone(),
                memory: points,
                given: GpusGiven {
                    units: u64::MAX,
                    memory_kib: u64::MAX,
                    is_memory_of_devices: true,
                },
            })),
        };
        let worker = WorkerRef {
            id: 7,
            ..WorkerRef::default()
        };
        let mut task = TaskInfo {
            workers: vec![worker],
            ..TaskInfo::default()
        };
        assert_eq!(bytes_max(&task), 0, "it has used nothing");
        task.started_unix_ns = Some(1);
        let before = task.encoded_len();
        assert!(place(&mut task, &(0, 7, curve)));
        assert!(task.encoded_len() <= before + bytes_max(&task));
    }
}
