//! Manages instances with streamed output, from before their start until all their output is
//! written.
//!
//! An instance starts once its file is open, and its end is reported once all its output is in that
//! file. If a launch waits for its file, all launches behind it in the same lane wait too, streamed
//! or not, so that a lane keeps its order. A launcher without streamed instances starts no thread
//! for them.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::Arc;

use hq_core::id::{JobId, WorkerId};
use hq_core::placeholder::{PathPattern, PathValues, join};
use hq_core::worker_state::{ExitStatus, LaunchEvent, LaunchFailure, LaunchTask, LaunchToken};
use hq_spawn::{Lane, SpawnPlan, Stdio, Token};
use hq_stream::{EndKind, Key, Pump, PumpEvent, StreamStart};
use tokio::sync::Notify;

use super::token_of;

/// The state of an instance.
enum Phase {
    /// The file of the instance, or of an earlier launch in its lane, is not open yet.
    Parked {
        /// The name of the lane.
        lane: LaunchToken,
        /// Whether the instance's own output is streamed. If false, the instance only waits for
        /// earlier launches.
        streamed: bool,
    },
    /// The instance is running or being started.
    Running,
    /// The instance has ended, and its output is being written.
    Ending(LaunchEvent, bool),
}

/// A launch that has not reached the spawn engine.
struct Waiting {
    token: LaunchToken,
    plan: SpawnPlan,
    is_ready: bool,
}

/// Events of streamed instances.
#[derive(Default)]
pub(super) struct StreamEvents {
    /// Launches that may start now, in the order of their lanes.
    pub(super) start: Vec<(Lane, Token, SpawnPlan)>,
    /// Instances whose output is lost. They must be killed.
    pub(super) broken: Vec<LaunchToken>,
    /// The end events that are now final, and whether the process exited with 0.
    pub(super) ended: Vec<(LaunchEvent, bool)>,
}

/// All streamed instances.
pub(super) struct Streaming {
    pump: Option<Pump>,
    host: Box<str>,
    wake: Arc<Notify>,
    worker: WorkerId,
    phases: BTreeMap<LaunchToken, Phase>,
    /// The waiting launches by lane, in the order of the launches. No list is empty.
    parked: BTreeMap<LaunchToken, VecDeque<Waiting>>,
    /// Events that have not been collected yet.
    news: StreamEvents,
}

impl Streaming {
    pub(super) fn new(host: &str, wake: Arc<Notify>) -> Self {
        Self {
            pump: None,
            host: host.into(),
            wake,
            worker: WorkerId(0),
            phases: BTreeMap::new(),
            parked: BTreeMap::new(),
            news: StreamEvents::default(),
        }
    }

    pub(super) fn set_worker(&mut self, worker: WorkerId) {
        self.worker = worker;
    }

    /// Creates pipes for an instance and puts them into its plan.
    pub(super) fn begin(
        &mut self,
        task: &LaunchTask,
        channels: [bool; 2],
        server_uid: &str,
        plan: SpawnPlan,
    ) -> Result<SpawnPlan, LaunchFailure> {
        let permanent = |text: String| LaunchFailure::Permanent(text.into());
        let key = task.key;
        let start = StreamStart {
            key: Key {
                job: key.task.job.as_u32(),
                task: key.task.task.as_u32(),
                instance: key.instance.as_u32(),
            },
            dir: stream_dir(task, server_uid)
                .ok_or_else(|| permanent("Streaming: the task has no directory".into()))?,
            server_uid: server_uid.into(),
            worker: self.worker.as_u32(),
            channels,
        };
        // The pump is started with the first streamed instance, because most workers never need its
        // threads.
        let pump = match self.pump.take() {
            Some(pump) => pump,
            None => {
                let wake = Arc::clone(&self.wake);
                Pump::start(&self.host, move || wake.notify_one()).map_err(begin_failure)?
            }
        };
        let ends = self.pump.insert(pump).begin(task.token.0, start);
        let ends = ends.map_err(begin_failure)?;
        let mut plan = plan;
        if let Some(stdout) = ends.stdout {
            plan = plan.stdout(Stdio::Fd(stdout));
        }
        if let Some(stderr) = ends.stderr {
            plan = plan.stderr(Stdio::Fd(stderr));
        }
        let lane = task.lane;
        let streamed = true;
        self.phases
            .insert(task.token, Phase::Parked { lane, streamed });
        Ok(plan)
    }

    /// Parks the plan of a streamed instance until its file is open, and any plans behind it in the
    /// same lane. Returns all other plans.
    pub(super) fn park(
        &mut self,
        lane: LaunchToken,
        token: LaunchToken,
        plan: SpawnPlan,
    ) -> Option<(Lane, Token, SpawnPlan)> {
        let streamed = self.phases.contains_key(&token);
        if !streamed && !self.parked.contains_key(&lane) {
            return Some((Lane(lane.0), Token(token.0), plan));
        }
        // This launch is recorded as well, so that it can be given up while it waits.
        if !streamed {
            self.phases.insert(token, Phase::Parked { lane, streamed });
        }
        self.parked.entry(lane).or_default().push_back(Waiting {
            token,
            plan,
            // A launch that is not streamed waits only for earlier launches.
            is_ready: !streamed,
        });
        None
    }

    /// Returns whether the output of this instance is streamed.
    pub(super) fn has(&self, token: LaunchToken) -> bool {
        self.phases.contains_key(&token)
    }

    /// Fails a launch that has not reached the spawn engine as canceled. Returns `false` if it is
    /// unknown.
    pub(super) fn give_up(&mut self, token: LaunchToken) -> bool {
        let Some(Phase::Parked { lane, streamed }) = self.phases.get(&token) else {
            return false;
        };
        let (lane, streamed) = (*lane, *streamed);
        let failure = LaunchFailure::Cancelled;
        let event = LaunchEvent::Failed { token, failure };
        // The pump has created a file for the launch, and will report when the file is closed.
        if streamed {
            self.hold(event, false);
        } else {
            self.phases.remove(&token);
            self.news.ended.push((event, false));
        }
        self.leave(lane, token);
        self.wake.notify_one();
        true
    }

    /// Removes a launch from its lane. Launches behind it may become ready.
    fn leave(&mut self, lane: LaunchToken, token: LaunchToken) {
        if let Some(waiting) = self.parked.get_mut(&lane) {
            waiting.retain(|launch| launch.token != token);
        }
        self.release(lane);
    }

    /// Releases the ready launches at the front of a lane.
    fn release(&mut self, lane: LaunchToken) {
        let Some(waiting) = self.parked.get_mut(&lane) else {
            return;
        };
        // The loop stops at the first launch without an open file, because a lane keeps its order.
        while let Some(launch) = waiting.pop_front_if(|launch| launch.is_ready) {
            let token = launch.token;
            // Only the end event of a streamed task has to wait for output.
            if let Some(Phase::Parked { streamed: true, .. }) = self.phases.get(&token) {
                self.phases.insert(token, Phase::Running);
            } else {
                self.phases.remove(&token);
            }
            let start = (Lane(lane.0), Token(token.0), launch.plan);
            self.news.start.push(start);
        }
        if waiting.is_empty() {
            self.parked.remove(&lane);
        }
    }

    /// Holds back an end event until all output has been written.
    pub(super) fn hold(&mut self, event: LaunchEvent, has_exited_well: bool) {
        let token = token_of(&event);
        let how = match &event {
            // The task may start elsewhere with the same instance number, so readers must not
            // mistake this for its end.
            LaunchEvent::Failed {
                failure: LaunchFailure::Transient | LaunchFailure::Cancelled,
                ..
            } => EndKind::Abandoned,
            LaunchEvent::Failed { .. }
            | LaunchEvent::Exited { .. }
            | LaunchEvent::Started { .. } => EndKind::Ended,
        };
        self.phases
            .insert(token, Phase::Ending(event, has_exited_well));
        if let Some(pump) = &self.pump {
            pump.end(token.0, how);
        }
    }

    /// Returns the events since the last call.
    pub(super) fn collect(&mut self) -> StreamEvents {
        let mut events = Vec::new();
        if let Some(pump) = &self.pump {
            pump.drain_events(&mut events);
        }
        for event in events {
            self.on_event(event);
        }
        std::mem::take(&mut self.news)
    }

    /// Simulates that a task's file can no longer be written.
    #[cfg(test)]
    pub(super) fn break_stream(&mut self, token: LaunchToken) {
        self.on_event(PumpEvent::Broken { token: token.0 });
    }

    fn on_event(&mut self, event: PumpEvent) {
        match event {
            PumpEvent::Ready { token } => {
                let token = LaunchToken(token);
                // An instance that was given up is no longer in any list.
                if let Some(Phase::Parked { lane, .. }) = self.phases.get(&token) {
                    let lane = *lane;
                    let waiting = self.parked.get_mut(&lane).into_iter().flatten();
                    for launch in waiting.filter(|launch| launch.token == token) {
                        launch.is_ready = true;
                    }
                    self.release(lane);
                }
            }
            PumpEvent::Refused { token, error } => {
                let token = LaunchToken(token);
                // An instance that was given up gets its event with `Closed`.
                if let Some(Phase::Parked { lane, .. }) = self.phases.get(&token) {
                    let lane = *lane;
                    self.phases.remove(&token);
                    let failure = LaunchFailure::Permanent(format!("Streaming: {error}").into());
                    let event = LaunchEvent::Failed { token, failure };
                    self.news.ended.push((event, false));
                    self.leave(lane, token);
                }
            }
            PumpEvent::Broken { token } => self.news.broken.push(LaunchToken(token)),
            PumpEvent::Closed { token, error } => {
                if let Some(Phase::Ending(event, well)) = self.phases.remove(&LaunchToken(token)) {
                    self.news.ended.push(match error {
                        Some(error) => (without_output(event, &error), false),
                        None => (event, well),
                    });
                }
            }
        }
    }
}

/// Explains why an instance has no pipes or no reader. A lack of descriptors, processes or memory
/// is transient, because other tasks will end.
fn begin_failure(error: std::io::Error) -> LaunchFailure {
    use rustix::io::Errno;
    match Errno::from_io_error(&error) {
        Some(Errno::MFILE | Errno::NFILE | Errno::AGAIN | Errno::NOMEM) => LaunchFailure::Transient,
        Some(_) | None => {
            LaunchFailure::Permanent(format!("Streaming: cannot create a pipe: {error}").into())
        }
    }
}

/// A task whose output is lost has failed, even with exit code 0.
fn without_output(mut event: LaunchEvent, error: &str) -> LaunchEvent {
    if let LaunchEvent::Exited {
        status, message, ..
    } = &mut event
    {
        // Success without output is a failure.
        if *status == ExitStatus::Code(0) {
            *status = ExitStatus::Code(1);
        }
        *message = Some(format!("Streaming: {error}").into());
    }
    event
}

fn stream_dir(task: &LaunchTask, server_uid: &str) -> Option<PathBuf> {
    let pattern = task.template.stream_dir.as_ref()?;
    let job: JobId = task.key.task.job;
    let values = PathValues {
        job,
        task: task.key.task.task,
        instance: task.key.instance,
        submit_dir: &task.template.submit_dir,
        server_uid,
        cwd: &[],
    };
    let mut path = Vec::new();
    PathPattern::parse(pattern).render(&values, &mut path);
    let path = join(&task.template.submit_dir, &path);
    Some(PathBuf::from(OsString::from_vec(path)))
}

#[cfg(test)]
mod tests;
