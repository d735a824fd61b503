//! Store files: damaged in any way, they open, are refused, or are repaired.
//!
//! The input is a list of edits of a whole file, so that a small input reaches any place of it: each is
//! four bytes of place, one of how much, and one of what.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use hq_core::id::{InstanceId, JobId, TaskId, TaskKey, WorkerId};
use hq_core::range::IdArray;
use hq_core::server_state::{Change, ChangeKind};
use hq_core::template::{ArrayIds, ArraySpec, SubmitBody, SubmitSpec, SubmitTarget};
use hq_core::testing::{template, worker_config};
use hq_core::time::{Now, Time, Timestamp};
use hq_store::Store;

const NOW: Now = Now {
    mono: Time(0),
    wall: Timestamp(1_795_250_210_000_000_000),
};

/// Runs one input; a panic is the finding.
pub(crate) fn run(data: &[u8]) {
    static WHOLE: OnceLock<Vec<u8>> = OnceLock::new();
    let mut bytes = WHOLE.get_or_init(whole).clone();
    for edit in data.chunks_exact(6) {
        let place = u32::from_le_bytes([edit[0], edit[1], edit[2], edit[3]]) as usize % bytes.len();
        // Up to 64 bytes, or whole blocks; the last bit cuts the file there.
        let len = match edit[4] {
            255 => {
                bytes.truncate(place.max(1));
                continue;
            }
            many @ 64.. => usize::from(many) * 64,
            few => usize::from(few),
        };
        let end = (place + len).min(bytes.len());
        bytes[place..end].fill(edit[5]);
    }
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("j.db");
    std::fs::write(&path, &bytes).expect("room");
    let _ = hq_store::check(&path);
    if let Ok(store) = Store::open(&path) {
        let _ = store.load("FuzzUid", NOW);
    }
    if let Ok(Some(report)) = hq_store::repair(&path) {
        let _ = report.to_string();
        let store = Store::open(&path).expect("what was repaired is whole");
        let loaded = store.load("FuzzUid", NOW).expect("and can be read");
        assert_eq!(
            loaded.dropped_count, 0,
            "and holds nothing that makes no sense"
        );
    }
}

/// A store with two jobs and some running tasks.
fn whole() -> Vec<u8> {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("whole.db");
    fill(&path);
    std::fs::read(&path).expect("the file")
}

fn fill(path: &Path) {
    let store = Store::open(path).expect("a fresh file");
    let mut handle = store
        .start("FuzzUid", &[], NOW.wall, |_| {})
        .expect("a writer");
    let change = |kind| Change { at: NOW.wall, kind };
    let worker = WorkerId(1);
    let config = Arc::new(worker_config(4));
    handle.store(vec![change(ChangeKind::WorkerConnected { worker, config })]);
    for job in [1, 2].map(JobId) {
        let ids = IdArray::consecutive(1, 200).expect("fits");
        let spec = SubmitSpec {
            target: SubmitTarget::NewJob {
                name: "job".into(),
                max_fails: None,
            },
            submit_dir: Box::from(*b"/w"),
            stream_dir: None,
            after: Vec::new(),
            notify: Vec::new(),
            origin: None,
            nonce: None,
            notes: Vec::new(),
            limits: hq_core::bound::SubmitLimits::default(),
            body: SubmitBody::Array(ArraySpec {
                ids: ArrayIds::Given(ids.clone()),
                entries: None,
                template: Arc::new(template(&["true", &"x".repeat(5_000)])),
            }),
        };
        handle.store(vec![change(ChangeKind::Submitted {
            job,
            is_new: true,
            name: "job".into(),
            max_fails: None,
            number: 0,
            ids,
            spec: Arc::new(spec),
            encoded: None,
        })]);
        let started = (1..150).map(|task| {
            change(ChangeKind::TaskStarted {
                task: TaskKey::new(job, TaskId(task)),
                instance: InstanceId(0),
                variant: 0,
                nodes: Box::default(),
                worker,
            })
        });
        handle.store(started.collect());
    }
}
