//! The requests of the clients in the simulated world.

use std::sync::Arc;
use std::time::Duration;

use super::super::template;
use super::World;
use crate::bound::{LimitChange, LimitUse, SubmitLimits};
use crate::growth::Growth;
use crate::id::{JobId, TaskId};
use crate::job::{JobChange, TaskChange};
use crate::range::IdArray;
use crate::resource::amount::Amount;
use crate::resource::request::{Policy, RequestVariants, ResourceEntry, ResourceRequest};
use crate::selector::Selector;
use crate::server_state::{Again, Command, Input, WatchSpec};
use crate::task::TaskState;
use crate::template::{
    After, ArrayIds, ArraySpec, CrashLimit, Entries, GraphSpec, GraphTask, NotifyEvent, NotifySpec,
    NotifyTarget, SubmitBody, SubmitSpec, SubmitTarget, TaskTemplate,
};

/// The limit that never changes.
pub(super) const FIXED_LIMIT: &str = "2";

impl World {
    /// Submits an array for any worker with this many cpus. Returns the job.
    pub(super) fn submit_plain(&mut self, count: u32, cpus: u32) -> Option<JobId> {
        let mut made = template(&["true"]);
        made.requests = RequestVariants::new(vec![ResourceRequest::cpus(cpus)]).expect("valid");
        let body = SubmitBody::Array(ArraySpec {
            ids: ArrayIds::Given(IdArray::consecutive(0, count).expect("fits")),
            entries: None,
            template: Arc::new(made),
        });
        self.submit_after(body, None, Vec::new(), SubmitLimits::default());
        self.state.last_job()
    }

    fn submit(&mut self, body: SubmitBody, max_fails: Option<u32>) {
        let after = self.random_after();
        let limits = self.random_limits();
        self.submit_after(body, max_fails, after, limits);
    }

    fn submit_after(
        &mut self,
        body: SubmitBody,
        max_fails: Option<u32>,
        after: Vec<After>,
        limits: SubmitLimits,
    ) {
        let spec = SubmitSpec {
            target: SubmitTarget::NewJob {
                name: "sim".into(),
                max_fails,
            },
            submit_dir: Box::from(*b"/w"),
            stream_dir: None,
            after,
            notify: self.random_notify(),
            origin: None,
            notes: Vec::new(),
            nonce: None,
            limits,
            body,
        };
        self.request(Command::Submit(Box::new(spec)));
    }

    fn random_limits(&mut self) -> SubmitLimits {
        let mut limits = SubmitLimits::default();
        for name in ["fixed", "changing", "rate"] {
            if self.rng.chance(20) {
                limits.uses.push(LimitUse {
                    name: name.into(),
                    amount: 1 + u32::from(self.rng.chance(20)),
                });
            }
        }
        limits.max_running = self.rng.chance(15).then(|| 1 + self.rng.below(3));
        limits
    }

    /// Sets the limits that submits refer to.
    pub(super) fn set_limits(&mut self) {
        for (name, bound) in [("fixed", FIXED_LIMIT), ("changing", "3"), ("rate", "200/s")] {
            self.set_limit(name, bound);
        }
    }

    fn set_limit(&mut self, name: &str, bound: &str) {
        self.request(Command::Limit(LimitChange {
            name: name.into(),
            bound: bound.parse().ok(),
            is_forced: true,
        }));
    }

    /// Returns conditions on earlier jobs. Task-by-task conditions are rejected if ids do not
    /// match.
    fn random_after(&mut self) -> Vec<After> {
        let mut after = Vec::new();
        while let Some(last) = self.state.last_job().filter(|_| self.rng.chance(25)) {
            after.push(After {
                job: JobId(1 + self.rng.below(last.0)),
                is_each: self.rng.chance(50),
                is_any: self.rng.chance(50),
            });
        }
        after
    }

    fn random_notify(&mut self) -> Vec<NotifySpec> {
        let mut notify = Vec::new();
        for event in [NotifyEvent::End, NotifyEvent::Failure] {
            if self.rng.chance(20) {
                let target = NotifyTarget::Command("mail".into());
                notify.push(NotifySpec { target, event });
            }
        }
        notify
    }

    fn random_template(&mut self) -> Arc<TaskTemplate> {
        let mut made = template(&["true"]);
        let cpus = 1 + self.rng.below(3);
        let mut variants = vec![ResourceRequest::cpus(cpus)];
        if self.rng.chance(20) {
            variants.push(ResourceRequest::cpus(4 - cpus));
        }
        made.requests = RequestVariants::new(variants).expect("valid");
        if self.rng.chance(12) {
            made.requests = RequestVariants::new(vec![ResourceRequest {
                entries: Vec::new(),
                n_nodes: 1 + self.rng.below(2),
                ..ResourceRequest::cpus(1)
            }])
            .expect("valid");
        }
        made.priority = i32::try_from(self.rng.below(3)).expect("small");
        made.crash_limit = match self.rng.below(10) {
            0 | 1 => CrashLimit::NeverRestart,
            2 | 3 => CrashLimit::Unlimited,
            limit => CrashLimit::Max(limit / 3),
        };
        if self.rng.chance(15) {
            let millis = 1 + u64::from(self.rng.below(100));
            made.time_limit = Some(Duration::from_millis(millis));
        }
        made.retry.limit = u16::try_from(self.rng.below(3)).expect("small");
        let is_gang = made.requests.is_multi_node();
        if let Some(limit) = made.time_limit.filter(|_| !is_gang) {
            grow_with_time(&mut made, limit);
        }
        Arc::new(made)
    }

    pub(super) fn submit_array(&mut self) {
        let template = self.random_template();
        let count = 1 + self.rng.below(15);
        self.summary.tasks += u64::from(count);
        let ids = ArrayIds::Given(IdArray::consecutive(self.rng.below(5), count).expect("fits"));
        let max_fails = self.rng.chance(30).then(|| self.rng.below(4));
        let entries = self.rng.chance(30).then(|| {
            let length = self.rng.below(300);
            let data = vec![b'e'; (length * count) as usize];
            Entries::new(data, (0..count).map(|_| length.into())).expect("own lengths")
        });
        self.submit(
            SubmitBody::Array(ArraySpec {
                ids,
                entries,
                template,
            }),
            max_fails,
        );
    }

    pub(super) fn submit_graph(&mut self) {
        // In chains of dependent tasks, some tasks are sent ahead.
        let is_chain = self.rng.chance(50);
        let count = 2 + self.rng.below(if is_chain { 30 } else { 12 });
        self.summary.tasks += u64::from(count);
        let kinds = 1 + self.rng.below(if is_chain { 2 } else { 8 });
        let templates = (0..kinds).map(|_| self.random_template()).collect();
        let mut tasks = Vec::new();
        for id in 0..count {
            let before = id.saturating_sub(1)..id;
            let all = if is_chain { before } else { 0..id };
            let chance = if is_chain { 90 } else { 25 };
            tasks.push(GraphTask {
                id: TaskId(id),
                template: self.rng.below(kinds),
                deps: all
                    .filter(|_| self.rng.chance(chance))
                    .map(TaskId)
                    .collect(),
            });
        }
        self.submit(SubmitBody::Graph(GraphSpec { templates, tasks }), None);
    }

    pub(super) fn cancel_some(&mut self) {
        if let Some(again) = self.looked_at.take() {
            let id = self.next_request();
            self.apply(Input::Resubmit(id, again));
        }
        let jobs = self.random_jobs();
        if self.rng.chance(30) {
            let failed = vec![TaskState::Failed, TaskState::Canceled, TaskState::Aborted];
            let states = if self.rng.chance(80) {
                failed
            } else {
                Vec::new()
            };
            self.resubmit(jobs, states);
            return;
        }
        if self.rng.chance(50) {
            self.cancel_tasks();
            return;
        }
        if self.rng.chance(60) {
            match self.rng.chance(50) {
                true => self.hold_tasks(),
                false => self.change_tasks(),
            }
            return;
        }
        if self.rng.chance(40) {
            let bound = ["2", "3", "5", "100/s", ""][self.rng.below(5) as usize];
            self.set_limit("changing", bound);
            return;
        }
        self.request(Command::CancelJobs {
            jobs,
            reason: "why not".into(),
        });
    }

    /// Resubmits small jobs directly. Large jobs are prepared outside the state, which changes in
    /// the meantime.
    fn resubmit(&mut self, jobs: Selector, states: Vec<TaskState>) {
        if self.next_request.is_multiple_of(2) {
            self.request(Command::Resubmit {
                jobs,
                states,
                requests: Vec::new(),
            });
            return;
        }
        let mut again = Again::states(jobs, states, Vec::new());
        let (found, _) = self.state.find_again(again.jobs());
        again.keep_to(found.clone());
        for id in found.rows {
            again.look_at(&self.state.jobs()[&id].outline(), None);
        }
        self.looked_at = Some(Box::new(again));
    }

    /// Cancels tasks of one job. Some of them are waiting, running or ended, and some are unknown.
    fn cancel_tasks(&mut self) {
        let last = self.state.last_job().map_or(1, |job| job.0);
        let job = JobId(1 + self.rng.below(last + 1));
        let (first, count) = (self.rng.below(12), 1 + self.rng.below(6));
        let tasks = IdArray::consecutive(first, count).expect("fits");
        let keep_running = self.rng.chance(50);
        self.request(Command::CancelTasks {
            job,
            tasks,
            keep_running,
        });
    }

    /// Holds or releases some or all tasks of one job, in any state.
    fn hold_tasks(&mut self) {
        let last = self.state.last_job().map_or(1, |job| job.0);
        let job = JobId(1 + self.rng.below(last + 1));
        let (first, count) = (self.rng.below(12), 1 + self.rng.below(6));
        let some = IdArray::consecutive(first, count).expect("fits");
        let tasks = self.rng.chance(70).then_some(some);
        let is_held = self.rng.chance(60);
        self.request(Command::HoldTasks {
            job,
            tasks,
            is_held,
        });
    }

    /// Changes some or all tasks of one job, in any state.
    fn change_tasks(&mut self) {
        let last = self.state.last_job().map_or(1, |job| job.0);
        let job = JobId(1 + self.rng.below(last + 1));
        let (first, count) = (self.rng.below(12), 1 + self.rng.below(6));
        let some = IdArray::consecutive(first, count).expect("fits");
        let cpus = self.rng.chance(40).then(|| ResourceEntry {
            resource: "cpus".into(),
            policy: Policy::default(),
            amount: Amount::whole(1 + self.rng.below(3)),
        });
        let priority = i32::try_from(self.rng.below(4)).expect("small");
        let tasks = TaskChange {
            priority: self.rng.chance(60).then_some(priority),
            time_limit: self.rng.chance(10).then_some(Duration::from_secs(20)),
            resources: cpus.into_iter().collect(),
            ..TaskChange::default()
        };
        let max = self.rng.chance(20).then(|| Some(1 + self.rng.below(4)));
        let change = JobChange {
            max_running: max.filter(|_| self.rng.chance(50)),
            tasks,
            ..JobChange::default()
        };
        let is_whole = self.rng.chance(40) || change.max_running.is_some();
        self.lowered.extend(change.max_running.map(|_| job));
        self.request(Command::ChangeJob {
            job,
            tasks: (!is_whole).then_some(some),
            change: Box::new(change),
        });
    }

    /// Selects one, some or all jobs. Some may be unknown.
    fn random_jobs(&mut self) -> Selector {
        let last = self.state.last_job().map_or(1, |job| job.0);
        let first = 1 + self.rng.below(last + 1);
        match self.rng.below(20) {
            0 => Selector::All,
            1 => Selector::Last,
            2..8 => {
                let count = 1 + self.rng.below(8);
                Selector::Ids(IdArray::consecutive(first, count).expect("fits"))
            }
            _ => Selector::Ids(IdArray::single(first)),
        }
    }

    /// Forgets or closes some jobs.
    pub(super) fn forget_some(&mut self) {
        let jobs = self.random_jobs();
        if self.rng.chance(20) {
            self.request(Command::CloseJobs(jobs));
            return;
        }
        let mut states = vec![
            TaskState::Finished,
            TaskState::Failed,
            TaskState::Canceled,
            TaskState::Aborted,
        ];
        states.truncate(1 + self.rng.below(4) as usize);
        self.request(Command::ForgetJobs { jobs, states });
    }

    /// Drains a worker. If it does not come back, another worker replaces it.
    pub(super) fn drain_some(&mut self) {
        let node = self.pick_node();
        if let Some(id) = node.and_then(|number| self.nodes[&number].id) {
            let workers = Selector::Ids(IdArray::single(id.0));
            self.request(Command::DrainWorkers(workers));
        }
    }

    pub(super) fn watch_some(&mut self) {
        let spec = WatchSpec {
            with_notifications: false,
            jobs: if self.rng.chance(50) {
                Selector::All
            } else {
                Selector::Last
            },
            until_idle: self.rng.chance(50),
            with_progress: self.rng.chance(50),
            with_outcomes: self.rng.chance(50),
            interval: Duration::from_millis(u64::from(self.rng.below(20))),
        };
        let id = self.request(Command::Watch(spec));
        if self.rng.chance(20) {
            self.watching.remove(&id);
            self.apply(Input::RequestGone(id));
        }
    }
}

/// Gives a task more time after each attempt that reached its limit, and requires workers with
/// longer lifetimes.
fn grow_with_time(task: &mut TaskTemplate, limit: Duration) {
    let mut variants = task.requests.as_slice().to_vec();
    variants[0].min_time = limit / 2;
    task.requests = RequestVariants::new(variants).expect("valid");
    task.retry.grow.time = Some(Growth {
        permille: 1_500,
        max: None,
    });
}
