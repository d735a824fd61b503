//! Answers about very many jobs or workers. They are built in parts, so that other requests are
//! handled between two parts.
//!
//! A long list is therefore not a snapshot: each row is from the time when it was built.

use std::collections::VecDeque;

use hq_core::id::{JobId, TaskId, WorkerId};
use hq_core::job::Job;
use hq_core::range::IdArray;
use hq_core::refusal::Refusal;
use hq_core::selector::{Selected, Selector};
use hq_core::server_state::ServerState;
use hq_core::task::TaskState;
use hq_protocol::client::{self, reply::Reply};
use hq_protocol::convert::{JobRef, Query};
use hq_protocol::could_run;

use super::{job, task, worker};
use crate::core_handle::{CoreGone, CoreHandle, View};

/// The number of rows per part. In the order of these constants, a row takes about 1, 5, 3, 5 and
/// 20 µs.
const JOBS_MAX: usize = 2_048;
const DETAILS_MAX: usize = 256;
/// The number of submits and templates per part of an answer.
const TEMPLATES_MAX: usize = 512;
const EXPLAINED_MAX: usize = 512;
const WORKERS_MAX: usize = 128;

fn chosen(view: &View<'_>, selector: &Selector) -> (Jobs, IdArray) {
    match selector {
        Selector::All => (Jobs::From(JobId(0)), IdArray::default()),
        Selector::Last | Selector::Ids(_) => {
            let Selected { rows, not_found } = view.state.find_jobs(selector);
            (Jobs::These(rows.into()), not_found)
        }
    }
}

fn limits(state: &ServerState) -> client::Limits {
    let limits = state.task_limits().named_limits();
    let limits = limits.filter_map(|limit| {
        let (waiting, waits) = state.awaited_limit(&limit).unzip();
        Some(client::LimitInfo {
            waits,
            waiting: waiting.unwrap_or(0),
            bound: limit.bound?.to_string(),
            name: limit.name.into(),
            used: limit.used,
            users: limit.users.iter().map(user).collect(),
            lost: limit.lost.iter().map(|(_, places)| places).sum(),
            ready: limit.ready,
        })
    });
    client::Limits {
        limits: limits.collect(),
    }
}

fn user((job, used): &(JobId, u64)) -> client::LimitUser {
    client::LimitUser {
        job: job.as_u32(),
        used: *used,
    }
}

/// Answers a query, in parts if the answer is long, so that other requests are handled in between.
pub(crate) async fn ask(core: &CoreHandle, query: Query) -> Result<Reply, CoreGone> {
    let mut asked = PartialQuery::New(query);
    loop {
        match asked.next(core).await? {
            Ok(reply) => return Ok(reply),
            Err(rest) => asked = rest,
        }
    }
}

/// The jobs that are still to be sent.
pub(crate) enum Jobs {
    /// All jobs, starting with this one.
    From(JobId),
    These(VecDeque<JobId>),
}

impl Jobs {
    /// Takes the first jobs, and returns them with the remaining jobs. The answer is complete if
    /// these are `None`.
    fn take(self, state: &ServerState, most: usize) -> (Vec<&Job>, Option<Self>) {
        let known = |id| state.jobs().get(&id);
        match self {
            Self::From(first) => {
                let mut rest = state.jobs().range(first..);
                let part = rest.by_ref().take(most).map(|(_, job)| job);
                (part.collect(), rest.next().map(|(id, _)| Self::From(*id)))
            }
            Self::These(mut ids) => {
                let part = ids.drain(..ids.len().min(most)).filter_map(known);
                let part = part.collect();
                (part, (!ids.is_empty()).then_some(Self::These(ids)))
            }
        }
    }
}

/// A query, or its partial answer and the part of the query that is still to be answered.
pub(crate) enum PartialQuery {
    New(Query),
    JobList(Jobs, client::JobList),
    JobInfos {
        left: Option<Jobs>,
        reply: client::JobInfos,
        /// The number of rows that have all their submits.
        whole: usize,
    },
    TaskIds(Jobs, Vec<TaskState>, client::TaskIdsReply),
    Workers {
        left: VecDeque<WorkerId>,
        with_runtime: bool,
        reply: client::Workers,
    },
    Explain {
        task: (JobRef, TaskId),
        /// Whether the answer ends with the first worker that could run the task.
        until_able: bool,
        /// The worker of the last row.
        after: WorkerId,
        workers: Vec<client::WorkerExplanation>,
    },
}

impl PartialQuery {
    /// Builds the next part. Only the last part waits for the store.
    pub(crate) async fn next(self, core: &CoreHandle) -> Result<Result<Reply, Self>, CoreGone> {
        core.look(move |view| self.continue_with(view), Result::is_ok)
            .await
    }

    /// Builds the next part. Returns the answer after the last part.
    pub(crate) fn continue_with(self, view: &View<'_>) -> Result<Reply, Self> {
        match self {
            Self::New(query) => Self::begin(view, query),
            Self::JobList(left, mut reply) => {
                let (part, left) = left.take(view.state, JOBS_MAX);
                reply.jobs.extend(part.into_iter().map(job::summary));
                match left {
                    None => Ok(Reply::JobList(reply)),
                    Some(left) => Err(Self::JobList(left, reply)),
                }
            }
            Self::JobInfos { left, reply, whole } => Self::job_infos(view, left, reply, whole),
            Self::TaskIds(left, states, mut reply) => {
                let (part, left) = left.take(view.state, JOBS_MAX);
                let rows = part.into_iter().map(|job| job::task_ids(job, &states));
                reply.jobs.extend(rows);
                match left {
                    None => Ok(Reply::TaskIds(reply)),
                    Some(left) => Err(Self::TaskIds(left, states, reply)),
                }
            }
            Self::Workers {
                mut left,
                with_runtime,
                mut reply,
            } => {
                let part = left.drain(..left.len().min(WORKERS_MAX));
                let part = part.filter_map(|id| view.state.worker(id));
                let rows = part.map(|found| worker::worker_info(view.state, found, with_runtime));
                reply.workers.extend(rows);
                if left.is_empty() {
                    return Ok(Reply::Workers(reply));
                }
                Err(Self::Workers {
                    left,
                    with_runtime,
                    reply,
                })
            }
            Self::Explain {
                task,
                until_able,
                after,
                workers,
            } => Self::explain(view, (task, until_able), after, workers),
        }
    }

    /// Builds the first part.
    fn begin(view: &View<'_>, query: Query) -> Result<Reply, Self> {
        let jobs = |selector: &Selector| chosen(view, selector);
        let begun = match query {
            // This needs no state, so the connection answers it.
            Query::ServerInfo => return Ok(Refusal::invalid("not a question for the core").into()),
            Query::Limits => return Ok(Reply::Limits(limits(view.state))),
            Query::TaskPage(page) => return Ok(Reply::TaskPage(task::page(view, &page))),
            Query::JobList(selector) => {
                let expected = match selector {
                    Selector::All => view.state.jobs().len(),
                    Selector::Last | Selector::Ids(_) => 0,
                };
                let reply = client::JobList {
                    jobs: Vec::with_capacity(expected),
                };
                Self::JobList(jobs(&selector).0, reply)
            }
            Query::JobInfo(selector) => {
                let (rows, not_found) = jobs(&selector);
                let reply = client::JobInfos {
                    not_found: Some((&not_found).into()),
                    ..client::JobInfos::default()
                };
                Self::JobInfos {
                    left: Some(rows),
                    reply,
                    whole: 0,
                }
            }
            Query::TaskIds {
                jobs: selector,
                states,
            } => {
                let (rows, not_found) = jobs(&selector);
                let is_none = matches!(&rows, Jobs::These(ids) if ids.is_empty());
                if !not_found.is_empty() || is_none && selector == Selector::Last {
                    return Ok(Refusal::not_found("Job Id not found").into());
                }
                Self::TaskIds(rows, states, client::TaskIdsReply::default())
            }
            Query::Workers {
                workers,
                with_runtime,
            } => {
                let Selected { rows, not_found } = view.state.find_workers(&workers);
                let reply = client::Workers {
                    // The list is preallocated, so that a large list is not moved repeatedly.
                    workers: Vec::with_capacity(rows.len()),
                    not_found: Some((&not_found).into()),
                };
                Self::Workers {
                    left: rows.into(),
                    with_runtime,
                    reply,
                }
            }
            Query::Explain {
                job,
                task,
                until_able,
            } => Self::Explain {
                task: (job, task),
                until_able,
                after: WorkerId(0),
                workers: Vec::new(),
            },
        };
        begun.continue_with(view)
    }

    /// Adds rows, or continues the first incomplete row, because a job may have very many submits
    /// and templates.
    fn job_infos(
        view: &View<'_>,
        mut left: Option<Jobs>,
        mut reply: client::JobInfos,
        mut whole: usize,
    ) -> Result<Reply, Self> {
        if whole == reply.jobs.len()
            && let Some(jobs) = left.take()
        {
            let (part, rest) = jobs.take(view.state, DETAILS_MAX);
            let rows = part.into_iter().map(|job| job::detail(view, job));
            reply.jobs.extend(rows);
            left = rest;
        }
        let mut budget = TEMPLATES_MAX;
        for row in reply.jobs.iter_mut().skip(whole) {
            let id = row.summary.as_ref().map_or(JobId(0), |job| JobId(job.id));
            // If a job was forgotten in the meantime, its row keeps the data that has been read.
            let job = view.state.jobs().get(&id);
            if job.is_some_and(|job| !job::add_submits(job, row, &mut budget)) {
                break;
            }
            whole += 1;
        }
        if whole == reply.jobs.len() && left.is_none() {
            return Ok(Reply::JobInfos(reply));
        }
        Err(Self::JobInfos { left, reply, whole })
    }

    /// Returns the explanation of the last part, with the workers of all parts.
    fn explain(
        view: &View<'_>,
        (task, until_able): ((JobRef, TaskId), bool),
        after: WorkerId,
        mut workers: Vec<client::WorkerExplanation>,
    ) -> Result<Reply, Self> {
        let which = (after, EXPLAINED_MAX, until_able);
        let mut part = match worker::explain(view, task, which) {
            Ok(part) => part,
            Err(refusal) => return Ok(*refusal),
        };
        workers.append(&mut part.workers);
        if until_able && workers.last().is_some_and(could_run) {
            return Ok(Reply::Explanation(client::Explanation { workers, ..part }));
        }
        let after = workers.last().map_or(after, |row| WorkerId(row.worker));
        if view
            .state
            .comparable_workers()
            .range(WorkerId(after.0.saturating_add(1))..)
            .next()
            .is_some()
        {
            return Err(Self::Explain {
                task: (JobRef::Id(JobId(part.job)), task.1),
                until_able,
                after,
                workers,
            });
        }
        Ok(Reply::Explanation(client::Explanation { workers, ..part }))
    }
}

#[cfg(test)]
mod tests {
    use hq_core::server_state::{Command, Input, LinkId};
    use std::time::Duration;

    use hq_core::template::{
        ArrayIds, ArraySpec, GraphSpec, GraphTask, SubmitBody, SubmitSpec, SubmitTarget,
    };
    use hq_core::testing::{NOW, apply, array_submit, request, template, worker_config};
    use hq_core::time::Now;

    use super::super::answer_in_steps;
    use super::*;

    fn server(jobs: u32, workers: u32) -> ServerState {
        let mut state = ServerState::new("test");
        for _ in 0..jobs {
            let mut task = template(&["true"]);
            task.priority = 1;
            request(&mut state, Command::Submit(Box::new(array_submit(1, task))));
        }
        for link in 0..workers {
            let connected = Input::WorkerConnected(LinkId(link.into()), worker_config(1));
            apply(&mut state, connected);
        }
        state
    }

    /// Returns an answer and the number of its steps.
    fn ask(state: &ServerState, query: Query) -> (Reply, usize) {
        let mut steps = 1;
        let reply = answer_in_steps(state, NOW, query, || steps += 1);
        (reply, steps)
    }

    #[test]
    fn long_lists_of_jobs_are_made_in_steps_and_complete() {
        let state = server(5_000, 0);
        let (reply, steps) = ask(&state, Query::JobList(Selector::All));
        let Reply::JobList(list) = reply else {
            panic!("another answer: {reply:?}");
        };
        assert_eq!(steps, 3);
        let ids = list.jobs.iter().map(|job| job.id);
        assert!(ids.eq(1..5_001));
        let some = IdArray::consecutive(4_999, 5).expect("few");
        let (reply, steps) = ask(&state, Query::JobInfo(Selector::Ids(some)));
        let Reply::JobInfos(infos) = reply else {
            panic!("another answer: {reply:?}");
        };
        assert_eq!((infos.jobs.len(), steps), (2, 1));
        let not_found = infos.not_found.expect("ids that do not exist");
        assert_eq!(not_found.ranges.len(), 1);
    }

    #[test]
    fn a_job_with_very_many_submits_and_templates_is_told_in_steps() {
        let mut state = ServerState::new("test");
        let open = Command::OpenJob {
            name: "open".into(),
            max_fails: None,
            key: None,
        };
        request(&mut state, open);
        let attach = |body| SubmitSpec {
            target: SubmitTarget::Attach(JobId(1)),
            body,
            ..array_submit(1, template(&["true"]))
        };
        let graph = |first: u32, count| {
            let tasks = (0..count).map(|number| GraphTask {
                id: TaskId(first + number),
                template: number,
                deps: Vec::new(),
            });
            SubmitBody::Graph(GraphSpec {
                templates: (0..count).map(|_| template(&["run"]).into()).collect(),
                tasks: tasks.collect(),
            })
        };
        let one = |id| {
            SubmitBody::Array(ArraySpec {
                ids: ArrayIds::Given(IdArray::single(id)),
                entries: None,
                template: template(&["true"]).into(),
            })
        };
        for body in [one(0), graph(10, 1_500), graph(5_000, 1), one(6_000)] {
            request(&mut state, Command::Submit(Box::new(attach(body))));
        }
        let (reply, steps) = ask(&state, Query::JobInfo(Selector::All));
        let Reply::JobInfos(infos) = reply else {
            panic!("another answer: {reply:?}");
        };
        assert_eq!(steps, 3, "512 each");
        let submits = infos.jobs[0].submits.iter();
        let counts = submits.map(|submit| submit.templates.len());
        assert!(counts.eq([1, 1_500, 1, 1]));
        assert!(infos.jobs[0].task_ids.is_some());
    }

    #[test]
    fn a_start_that_takes_very_long_is_told() {
        let state = server(2, 1);
        let overdue = |seconds, job| {
            let now = Now {
                mono: NOW.mono + Duration::from_secs(seconds),
                ..NOW
            };
            let waiting = Query::Explain {
                job: JobRef::Id(JobId(job)),
                task: TaskId(0),
                until_able: false,
            };
            let reply = answer_in_steps(&state, now, waiting, || ());
            let Reply::Explanation(told) = reply else {
                panic!("another answer: {reply:?}");
            };
            assert_eq!(told.sent_to, Some(1), "the second waits behind the first");
            told.start_overdue_ns
        };
        assert_eq!(overdue(9, 1), None);
        assert_eq!(overdue(73, 1), Some(73_000_000_000));
        assert_eq!(overdue(73, 2), None, "there is no room for it");
    }

    #[test]
    fn many_workers_are_listed_and_explained_in_steps() {
        let state = server(2_000, 1_200);
        let workers = Query::Workers {
            workers: Selector::All,
            with_runtime: true,
        };
        let (reply, steps) = ask(&state, workers);
        let Reply::Workers(list) = reply else {
            panic!("another answer: {reply:?}");
        };
        assert_eq!((list.workers.len(), steps), (1_200, 10));
        let explain = |task: u32, until_able: bool| {
            let waiting = Query::Explain {
                job: JobRef::Last,
                task: TaskId(task),
                until_able,
            };
            let (reply, steps) = ask(&state, waiting);
            let Reply::Explanation(told) = reply else {
                panic!("another answer: {reply:?}");
            };
            let ids: Vec<u32> = told.workers.iter().map(|row| row.worker).collect();
            (ids, steps)
        };
        let all: Vec<u32> = (1..=1_200).collect();
        assert_eq!(explain(0, false), (all, 3), "each once");
        assert_eq!(
            explain(0, true),
            (vec![1], 1),
            "one that could run it is enough"
        );
    }
}
