//! A scripted server that records the worker's messages.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;

use hq_core::class::ClassId;
use hq_core::id::{InstanceId, JobId, TaskId, TaskKey};
use hq_core::job::{SharedTemplate, SubmitHeader, TemplateId};
use hq_core::outcome::{LostReason, Outcome};
use hq_core::range::IdArray;
use hq_core::server_state::{
    Assignment, AwaitedEnds, EndedRow, Report, WorkerCommand, WorkerMessage,
};
use hq_core::template::{Entries, StdioSpec, TaskTemplate};
use hq_core::testing::{template, worker_config};
use hq_core::worker_config::WorkerConfig;
use hq_core::worker_state::Interrupt;
use hq_protocol::convert::FromWorker;
use hq_protocol::worker::{Registered, ToServer, ToWorker, to_worker};
use hq_protocol::{Connection, MessageReader, MessageWriter, Plane, SecretKey, accept, connect};
use tempfile::TempDir;
use tokio::io::{DuplexStream, ReadHalf, WriteHalf, duplex};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::config::{WorkDir, WorkerParams};
use crate::event_loop::WorkerEnd;
use crate::notify::NotifySocket;
use crate::registration::register;
use crate::server_link::Redial;

const JOB: JobId = JobId(1);
const UID: &str = "FaKeId";
const KEY: SecretKey = SecretKey::from_bytes([3; 32]);

/// Far longer than any step takes, even on a loaded machine.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// Streams for a worker that reconnects.
type Waiting = Arc<Mutex<VecDeque<DuplexStream>>>;

pub(super) struct FakeServer {
    reader: Option<MessageReader<ReadHalf<DuplexStream>>>,
    writer: Option<MessageWriter<WriteHalf<DuplexStream>>>,
    control: mpsc::Sender<Interrupt>,
    worker: Option<JoinHandle<WorkerEnd>>,
    dialing: Waiting,
    dir: TempDir,
    work_dir: PathBuf,
    templates: u32,
    started: BTreeSet<u32>,
    ended: BTreeMap<u32, EndedRow>,
    retracted: Vec<u32>,
    /// The assignment of each task.
    assigned: BTreeMap<u32, (SharedTemplate, Option<Entries>)>,
    /// Tasks that the server retracted.
    asked_back: BTreeSet<u32>,
    heartbeats: usize,
    goodbye: Option<LostReason>,
    /// Messages (`true`) and ends (`false`) of tasks in order of arrival.
    last_words: Vec<(u32, bool)>,
}

impl FakeServer {
    /// Starts a registered worker, configured by `change`, with two idle cpus.
    pub(super) async fn start(change: impl FnOnce(&mut WorkerConfig)) -> Self {
        Self::start_with(change, None).await
    }

    /// Like [`Self::start`], with a message socket that the test feeds.
    pub(super) async fn start_with(
        change: impl FnOnce(&mut WorkerConfig),
        notify: Option<NotifySocket>,
    ) -> Self {
        let mut config = worker_config(2);
        change(&mut config);
        let dir = tempfile::tempdir().expect("temporary directory");
        let work_dir = WorkDir::create(None).expect("temporary directory");
        let work_path = work_dir.path().to_path_buf();
        let params = WorkerParams {
            config,
            hq_path: "/opt/hq".into(),
            work_dir,
            keeper: None,
            spawn_threads: None,
            values_limit: None,
        };
        let (control, control_rx) = mpsc::channel(4);
        let dialing = Waiting::default();
        let redial = redial(&dialing);
        let (ours, theirs) = duplex(1 << 16);
        let worker = tokio::spawn(async move {
            let connection = connect(theirs, Plane::Worker, Some(&KEY))
                .await
                .expect("handshake");
            let mut worker = register(connection, params).await.expect("registers");
            if notify.is_some() {
                worker.notify = notify;
            }
            assert_eq!((worker.id().0, worker.server_uid()), (1, UID));
            Box::pin(worker.with_redial(redial).run(control_rx)).await
        });
        let mut server = Self {
            reader: None,
            writer: None,
            control,
            worker: Some(worker),
            dialing,
            dir,
            work_dir: work_path,
            templates: 0,
            started: BTreeSet::new(),
            ended: BTreeMap::new(),
            retracted: Vec::new(),
            assigned: BTreeMap::new(),
            asked_back: BTreeSet::new(),
            heartbeats: 0,
            goodbye: None,
            last_words: Vec::new(),
        };
        server.admit(ours).await;
        server
    }

    async fn admit(&mut self, stream: DuplexStream) {
        let connection = accept(stream, Plane::Worker, Some(&KEY))
            .await
            .expect("handshake");
        let (mut reader, mut writer) = connection.split();
        let first: ToServer = reader.next().await.expect("valid").expect("a registration");
        let Ok(FromWorker::Register(config, reattach)) = FromWorker::try_from(first) else {
            panic!("expected a registration");
        };
        let reattached = reattach.is_some();
        if let Some(reattach) = reattach {
            assert_eq!((reattach.worker.0, &*reattach.server_uid), (1, UID));
            self.hear(reattach.report);
        }
        let registered = Registered {
            worker_id: 1,
            server_uid: UID.to_string(),
            default_idle_timeout_ns: None,
            reattached,
            // The server submitted every allocation itself.
            server_wait_ns: config.allocation.as_ref().map_or(0, |_| 120_000_000_000),
        };
        let answer = to_worker::Message::Registered(registered);
        writer
            .send(&ToWorker {
                message: Some(answer),
            })
            .await
            .expect("open");
        self.reader = Some(reader);
        self.writer = Some(writer);
    }

    /// Waits until the worker has noticed the loss and reconnects.
    pub(super) async fn dialed_again(&self) {
        let is_dialed = || !self.dialing.lock().expect("not poisoned").is_empty();
        wait_until("the worker dials again", is_dialed).await;
    }

    /// Admits a worker that reconnects.
    pub(super) async fn accept_again(&mut self) {
        self.dialed_again().await;
        let stream = self
            .dialing
            .lock()
            .expect("not poisoned")
            .pop_back()
            .expect("there is one");
        self.admit(stream).await;
    }

    /// Returns the directory of the submit.
    pub(super) fn dir(&self) -> PathBuf {
        self.dir.path().to_path_buf()
    }

    pub(super) fn work_dir(&self) -> &Path {
        &self.work_dir
    }

    pub(super) async fn assign_one(&mut self, id: u32, task: TaskTemplate) {
        self.assign(task, IdArray::consecutive(id, 1).expect("valid"), None)
            .await;
    }

    pub(super) async fn assign(
        &mut self,
        mut task: TaskTemplate,
        ids: IdArray,
        entries: Option<Entries>,
    ) {
        self.templates += 1;
        let id = TemplateId(self.templates);
        // The environment variable identifies every process of this test, even outside the process
        // tree.
        task.env = vec![(MARK.as_bytes().into(), self.mark().into_bytes().into())];
        let template = SharedTemplate {
            id,
            header: Arc::new(SubmitHeader {
                job: JOB,
                job_name: "job".into(),
                submit_dir: self.dir.path().as_os_str().as_encoded_bytes().into(),
                stream_dir: None,
            }),
            class: ClassId(0),
            task: Arc::new(task),
        };
        for (position, task) in (0..).zip(ids.iter()) {
            let entry = entries.as_ref().and_then(|entries| {
                let entry = entries.get(position)?.to_vec();
                let length = entry.len() as u64;
                Entries::new(entry, [length])
            });
            self.assigned.insert(task, (template.clone(), entry));
        }
        self.send_assignment(template, ids, entries).await;
    }

    async fn send_assignment(
        &mut self,
        template: SharedTemplate,
        ids: IdArray,
        entries: Option<Entries>,
    ) {
        let assignment = Assignment {
            template: template.id,
            ids,
            instance: InstanceId(0),
            variant: 0,
            entries,
            nodes: Vec::new(),
            follows: None,
        };
        self.command(&WorkerCommand::Assign {
            templates: vec![Arc::new(template)],
            assignments: vec![assignment],
            awaits: AwaitedEnds::None,
        })
        .await;
    }

    /// Reassigns tasks that the worker returned on its own. The worker returns short tasks queued
    /// behind a task that takes unexpectedly long, which can happen on a busy machine.
    async fn assign_returned(&mut self) {
        let asked_back = &self.asked_back;
        let returned: Vec<u32> = self
            .retracted
            .extract_if(.., |task| !asked_back.contains(task))
            .collect();
        for task in returned {
            let (template, entry) = self.assigned[&task].clone();
            let ids = IdArray::consecutive(task, 1).expect("valid");
            self.send_assignment(template, ids, entry).await;
        }
    }

    pub(super) async fn assign_unknown_template(&mut self) {
        let assignment = Assignment {
            template: TemplateId(999),
            ids: IdArray::consecutive(0, 5).expect("valid"),
            instance: InstanceId(0),
            variant: 0,
            entries: None,
            nodes: Vec::new(),
            follows: None,
        };
        let assignments = vec![assignment];
        self.command(&WorkerCommand::Assign {
            templates: Vec::new(),
            assignments,
            awaits: AwaitedEnds::None,
        })
        .await;
    }

    pub(super) async fn kill(&mut self, tasks: &[u32]) {
        self.command(&WorkerCommand::Kill(keys(tasks))).await;
    }

    pub(super) async fn retract(&mut self, tasks: &[u32]) {
        self.asked_back.extend(tasks);
        self.command(&WorkerCommand::Retract(keys(tasks))).await;
    }

    pub(super) async fn send_nonsense(&mut self) {
        let writer = self.writer.as_mut().expect("connected");
        writer
            .send(&ToWorker { message: None })
            .await
            .expect("open");
    }

    async fn command(&mut self, command: &WorkerCommand) {
        let writer = self.writer.as_mut().expect("connected");
        writer
            .send(&ToWorker::from(command))
            .await
            .expect("the worker is connected");
    }

    pub(super) async fn interrupt(&self, interrupt: Interrupt) {
        self.control.send(interrupt).await.expect("the worker runs");
    }

    pub(super) fn disconnect(&mut self) {
        self.reader = None;
        self.writer = None;
    }

    /// Asks the worker to stop and waits for its end.
    pub(super) async fn stop(&mut self) -> WorkerEnd {
        self.command(&WorkerCommand::Stop).await;
        self.worker_end().await
    }

    pub(super) async fn abort_worker(&mut self) {
        let worker = self.worker.take().expect("runs");
        worker.abort();
        assert!(worker.await.expect_err("aborted").is_cancelled());
    }

    /// Waits for the worker's end and handles its last messages.
    pub(super) async fn worker_end(&mut self) -> WorkerEnd {
        let deadline = Instant::now() + PATIENCE;
        while self.reader.is_some() && self.listen(deadline, "the worker ends").await {}
        self.disconnect();
        let worker = self.worker.take().expect("asked once");
        tokio::time::timeout(PATIENCE, worker)
            .await
            .expect("in time")
            .expect("no panic")
    }

    pub(super) async fn ended(&mut self, count: usize) {
        let deadline = Instant::now() + PATIENCE;
        while self.ended.len() < count {
            assert!(self.listen(deadline, "tasks end").await, "the worker left");
            self.assign_returned().await;
        }
    }

    pub(super) async fn started(&mut self, count: usize) {
        let deadline = Instant::now() + PATIENCE;
        while self.started.len() < count {
            assert!(
                self.listen(deadline, "tasks start").await,
                "the worker left"
            );
        }
    }

    pub(super) async fn retracted(&mut self, count: usize) -> Vec<u32> {
        let deadline = Instant::now() + PATIENCE;
        while self.retracted.len() < count {
            assert!(
                self.listen(deadline, "tasks are returned").await,
                "the worker left"
            );
        }
        self.retracted.clone()
    }

    pub(super) async fn heartbeats(&mut self, count: usize) {
        let deadline = Instant::now() + PATIENCE;
        while self.heartbeats < count {
            assert!(self.listen(deadline, "heartbeats").await, "the worker left");
        }
    }

    /// Waits until `count` messages of tasks have arrived.
    pub(super) async fn heard(&mut self, count: usize) {
        let deadline = Instant::now() + PATIENCE;
        while self.last_words.iter().filter(|(_, said)| *said).count() < count {
            assert!(self.listen(deadline, "messages").await, "the worker left");
        }
    }

    pub(super) fn row(&self, task: u32) -> &EndedRow {
        self.ended.get(&task).expect("has ended")
    }

    pub(super) fn outcome(&self, task: u32) -> Outcome {
        self.row(task).outcome.clone()
    }

    pub(super) fn last_words(&self) -> &[(u32, bool)] {
        &self.last_words
    }

    pub(super) fn goodbye(&self) -> Option<LostReason> {
        self.goodbye
    }

    /// Handles one message. Returns `false` if the worker closed the connection.
    async fn listen(&mut self, deadline: Instant, what: &str) -> bool {
        let reader = self.reader.as_mut().expect("connected");
        let message = tokio::time::timeout_at(deadline, reader.next::<ToServer>()).await;
        let message = message.unwrap_or_else(|_| panic!("waited too long: {what}"));
        let Some(message) = message.expect("valid frames") else {
            return false;
        };
        match FromWorker::try_from(message).expect("valid message") {
            FromWorker::Register(..) => panic!("registered already"),
            FromWorker::Relay(_) => panic!("it is no relay"),
            FromWorker::Output(_) => panic!("nobody asked for output"),
            FromWorker::Values(_) => panic!("nobody sent a call"),
            FromWorker::Message(WorkerMessage::Heartbeat { .. }) => self.heartbeats += 1,
            FromWorker::Message(WorkerMessage::Notify(key, _)) => {
                self.last_words.push((key.task.0, true));
            }
            FromWorker::Message(WorkerMessage::Overview(_)) => {}
            FromWorker::Message(WorkerMessage::Goodbye(reason)) => {
                self.goodbye = Some(reason);
                // As with a real server, the connection ends with the goodbye.
                return false;
            }
            FromWorker::Message(WorkerMessage::Report(report)) => self.hear(report),
        }
        true
    }

    fn hear(&mut self, report: Report) {
        let tasks = report.started.iter().map(|row| row.task.task.0);
        self.started.extend(tasks);
        let tasks = report.retracted.iter().map(|(key, _)| key.task.0);
        self.retracted.extend(tasks);
        for row in report.ended {
            let task = row.task.task.0;
            self.started.insert(task);
            self.last_words.push((task, false));
            assert!(self.ended.insert(task, row).is_none(), "{task} ended twice");
        }
    }

    /// Waits until no process of a task is left. A killed process takes a moment to disappear; the
    /// worker promises two seconds.
    pub(super) async fn no_survivors(&self) {
        let deadline = Instant::now() + Duration::from_secs(2);
        while self.survivors() > 0 {
            assert!(Instant::now() < deadline, "processes of tasks survive");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    fn mark(&self) -> String {
        self.dir.path().display().to_string()
    }

    /// Returns the number of live processes that belong to tasks of this test.
    pub(super) fn survivors(&self) -> usize {
        let wanted = format!("{MARK}={}", self.mark());
        let processes = std::fs::read_dir("/proc").expect("proc").flatten();
        let environments =
            processes.filter_map(|process| std::fs::read(process.path().join("environ")).ok());
        environments
            .filter(|environment| {
                environment
                    .split(|byte| *byte == 0)
                    .any(|entry| entry == wanted.as_bytes())
            })
            .count()
    }
}

const MARK: &str = "TEST_OF";

fn redial(dialing: &Waiting) -> Redial<DuplexStream> {
    let dialing = Arc::clone(dialing);
    Redial::new(move || {
        let (ours, theirs) = duplex(1 << 16);
        dialing.lock().expect("not poisoned").push_back(ours);
        Box::pin(async move {
            let connection: Connection<DuplexStream> = connect(theirs, Plane::Worker, Some(&KEY))
                .await
                .map_err(|source| crate::ConnectError::Handshake {
                    strangers: hq_protocol::Strangers::default(),
                    host: "test".into(),
                    port: 0,
                    source,
                })?;
            Ok(connection)
        })
    })
}

fn keys(tasks: &[u32]) -> Vec<(TaskKey, InstanceId)> {
    tasks
        .iter()
        .map(|task| (TaskKey::new(JOB, TaskId(*task)), InstanceId(0)))
        .collect()
}

/// Creates a task that runs a script in the directory of the submit, without output files.
pub(super) fn bash(script: &str) -> TaskTemplate {
    TaskTemplate {
        cwd: Box::from(*b"%{SUBMIT_DIR}"),
        ..template(&["bash", "-c", script])
    }
}

pub(super) fn file(path: &str) -> StdioSpec {
    StdioSpec::File {
        path: path.as_bytes().into(),
        remove_if_finished: false,
    }
}

/// Polls a condition that, once true, stays true.
pub(super) async fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "waited too long: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
