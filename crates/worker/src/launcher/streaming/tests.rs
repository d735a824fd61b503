//! Tests launches that wait for their file, and launches behind them.

use std::path::Path;
use std::time::Instant;

use hq_core::id::InstanceId;
use hq_core::job::TemplateId;
use hq_core::resource::pool::Grant;
use hq_core::testing::template;
use hq_core::worker_state::{InstanceKey, WorkTemplate};
use hq_spawn::{ArgBlock, EnvBlock};

use super::*;

/// How long to wait for the pump's thread.
const LIMIT: std::time::Duration = std::time::Duration::from_secs(20);

struct Bench {
    streaming: Streaming,
    started: Vec<u64>,
    ended: Vec<(u64, LaunchEvent)>,
}

impl Bench {
    fn new() -> Self {
        Self {
            streaming: Streaming::new("host", Arc::new(Notify::new())),
            started: Vec::new(),
            ended: Vec::new(),
        }
    }

    /// Launches a task of lane 0. If a directory is given, its output is streamed.
    fn launch(&mut self, token: u32, dir: Option<&Path>) {
        let lane = LaunchToken(0);
        let argv = ArgBlock::new(["true"]).expect("valid");
        let mut plan = SpawnPlan::new(argv, EnvBlock::empty());
        if let Some(dir) = dir {
            let task = LaunchTask {
                is_one_of_many: false,
                token: LaunchToken(token.into()),
                lane,
                template: Arc::new(WorkTemplate {
                    id: TemplateId(1),
                    job: JobId(1),
                    job_name: "job".into(),
                    submit_dir: Box::from(*b"/"),
                    stream_dir: Some(dir.as_os_str().as_encoded_bytes().into()),
                    task: Arc::new(template(&["true"])),
                }),
                key: InstanceKey::new(JobId(1), token, InstanceId(0)),
                variant: 0,
                grant: Arc::new(Grant::default()),
                entries: None,
                nodes: Arc::from([]),
            };
            let begun = self.streaming.begin(&task, [true, false], "uid", plan);
            plan = begun.expect("descriptors are left");
        }
        let plan = self.streaming.park(lane, LaunchToken(token.into()), plan);
        self.started.extend(plan.map(|(_, token, _)| token.0));
    }

    /// Collects events until all of `started` have started and `ended` instances have ended.
    fn wait(&mut self, started: &[u64], ended: usize) {
        let limit = Instant::now() + LIMIT;
        while self.started.len() < started.len() || self.ended.len() < ended {
            assert!(Instant::now() < limit, "only {:?} started", self.started);
            let news = self.streaming.collect();
            self.started
                .extend(news.start.iter().map(|(_, token, _)| token.0));
            let ended = news.ended.into_iter();
            self.ended
                .extend(ended.map(|(event, _)| (token_of(&event).0, event)));
            std::thread::yield_now();
        }
        assert_eq!(self.started, started);
    }
}

#[test]
fn a_lane_keeps_its_order_while_files_are_made() {
    let dir = tempfile::tempdir().expect("directory");
    let mut bench = Bench::new();
    bench.launch(1, Some(dir.path()));
    bench.launch(2, None);
    bench.launch(3, Some(dir.path()));
    assert!(bench.started.is_empty(), "all wait for the first");
    bench.wait(&[1, 2, 3], 0);
    bench.launch(4, None);
    assert_eq!(
        bench.started,
        [1, 2, 3, 4],
        "nothing is waited for any more"
    );
}

#[test]
fn a_refused_directory_holds_up_nobody() {
    let dir = tempfile::tempdir().expect("directory");
    let mut bench = Bench::new();
    bench.launch(1, Some(Path::new("/proc/no/such")));
    bench.launch(2, None);
    bench.launch(3, Some(dir.path()));
    bench.wait(&[2, 3], 1);
    let (token, event) = &bench.ended[0];
    assert_eq!(*token, 1);
    assert!(
        matches!(event, LaunchEvent::Failed { failure: LaunchFailure::Permanent(why), .. }
            if why.starts_with("Streaming: ")),
        "{event:?}"
    );
}

#[test]
fn launches_that_wait_can_be_given_up() {
    let dir = tempfile::tempdir().expect("directory");
    let mut bench = Bench::new();
    bench.launch(1, Some(dir.path()));
    bench.launch(2, None);
    bench.launch(3, None);
    assert!(bench.streaming.give_up(LaunchToken(2)));
    assert!(bench.streaming.give_up(LaunchToken(1)));
    assert!(!bench.streaming.give_up(LaunchToken(7)), "unknown");
    bench.wait(&[3], 2);
    assert!(!bench.streaming.give_up(LaunchToken(3)), "it has started");
    bench.ended.sort_by_key(|(token, _)| *token);
    let given_up = bench.ended.iter().map(|(token, event)| {
        let failure = LaunchFailure::Cancelled;
        let token_ = LaunchToken(*token);
        assert_eq!(
            *event,
            LaunchEvent::Failed {
                token: token_,
                failure
            }
        );
        *token
    });
    assert_eq!(given_up.collect::<Vec<_>>(), [1, 2]);
}

#[test]
fn what_others_use_up_is_waited_for() {
    use rustix::io::Errno;
    for errno in [Errno::AGAIN, Errno::NOMEM, Errno::MFILE, Errno::NFILE] {
        let failure = begin_failure(errno.into());
        assert_eq!(failure, LaunchFailure::Transient, "{errno:?}");
    }
    let failure = begin_failure(Errno::NOSYS.into());
    assert!(
        matches!(failure, LaunchFailure::Permanent(_)),
        "{failure:?}"
    );
}
