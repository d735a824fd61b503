//! Jobs: lists, details and task ids.

use hq_core::bound::SubmitLimits;
use hq_core::id::JobId;
use hq_core::job::{Job, Submit, SubmitKind};
use hq_core::notice::shown_target;
use hq_core::pace::PaceFacts;
use hq_core::range::IdArray;
use hq_core::server_state::{Notice, NoticeState};
use hq_core::task::TaskState;
use hq_core::time::Timestamp;
use hq_protocol::client;
use hq_protocol::common;

use super::worker_ref;
use crate::core_handle::View;

/// The maximum number of workers named in the details of a job.
const WORKERS_SHOWN_MAX: usize = 2;

pub(super) fn summary(job: &Job) -> client::JobSummary {
    let counts = job.counts();
    client::JobSummary {
        id: job.id.as_u32(),
        name: job.name.to_string(),
        is_open: job.is_open,
        task_count: counts.total(),
        stats: Some(client::TaskStats {
            running: counts.running,
            finished: counts.finished,
            failed: counts.failed,
            canceled: counts.canceled,
            aborted: counts.aborted,
            waiting: counts.waiting,
        }),
        cancel_reason: job.cancel_reason.as_deref().map(str::to_owned),
        pace: job.pace().map(pace),
        resubmitted_as: job.resubmitted_as.map(JobId::as_u32),
    }
}

fn pace(facts: PaceFacts) -> client::PaceFacts {
    client::PaceFacts {
        ended: facts.ended,
        first_start_unix_ns: facts.first_start.0,
        run_ns: hq_core::time::nanos(facts.run),
        run_squares: facts.squares,
        window_unix_ns: facts.window_start.0,
        window_ended: facts.window_ended,
    }
}

/// Returns when the last task ended, or the current time for an open job that may get more tasks.
pub(super) fn finished(view: &View<'_>, job: &Job) -> Option<Timestamp> {
    match (job.is_idle(), job.is_open) {
        (false, _) => None,
        (true, true) => Some(view.now.wall),
        (true, false) => Some(job.idle_since),
    }
}

/// The maximum number of ranges of held tasks, or of tasks with the same change, that `job info` gets.
const RANGES_SHOWN: usize = 1_000;
/// The maximum number of changes of tasks that `job info` gets.
const REVISED_SHOWN: usize = 100;

/// Returns the ids that are shown.
fn shown(ids: &IdArray) -> IdArray {
    let ranges = ids.ranges().iter().take(RANGES_SHOWN).copied();
    IdArray::new(ranges.collect()).unwrap_or_default()
}

fn revised(job: &Job) -> Vec<client::RevisedTasks> {
    let mut changes = job.changes();
    changes.truncate(REVISED_SHOWN);
    for revised in &mut changes {
        revised.ids = shown(&revised.ids);
    }
    changes.iter().map(Into::into).collect()
}

/// Returns all data of a job except its submits and the ids of its tasks; see [`add_submits`].
pub(super) fn detail(view: &View<'_>, job: &Job) -> client::JobDetail {
    let held = job.held();
    client::JobDetail {
        summary: Some(summary(job)),
        submitted_unix_ns: job.submitted.0,
        finished_unix_ns: finished(view, job).map(|time| time.0),
        max_fails: job.max_fails,
        submits: Vec::new(),
        workers: job
            .workers
            .iter()
            .take(WORKERS_SHOWN_MAX)
            .map(|id| worker_ref(view.state, *id))
            .collect(),
        worker_count: u32::try_from(job.workers.len()).unwrap_or(u32::MAX),
        failed: job
            .failed_lowest()
            .filter_map(|task| super::task::failed(view.state, job, task))
            .collect(),
        task_ids: None,
        now_unix_ns: view.now.wall.0,
        notifications: job.notices.iter().map(notification).collect(),
        held: Some((&shown(&held)).into()),
        holds_new: job.holds_new && job.is_open,
        held_count: held.len(),
        limits: Some(limits(view, job)),
        waits: view.state.blocking_limits_of(job),
        revised: revised(job),
    }
}

/// The maximum number of limits that `job info` gets.
const LIMITS_SHOWN: usize = 100;

fn limits(view: &View<'_>, job: &Job) -> client::SubmitLimits {
    let uses = view.state.task_limits().uses_of(job.id).into_iter();
    let limits = SubmitLimits {
        uses: uses.take(LIMITS_SHOWN).collect(),
        max_running: job.max_running,
        max_rate: job.max_rate,
    };
    (&limits).into()
}

pub(super) fn notification(notice: &Notice) -> client::JobNotice {
    use client::job_notice::State;
    use client::notify_target::Event;
    let (state, outcome) = match &notice.state {
        NoticeState::Waiting => (State::Waiting, None),
        NoticeState::Owed => (State::Owed, None),
        NoticeState::Done(outcome) if outcome.error.is_none() => (State::Delivered, Some(outcome)),
        NoticeState::Done(outcome) => (State::GivenUp, Some(outcome)),
    };
    let error = outcome.and_then(|outcome| outcome.error.as_deref());
    client::JobNotice {
        target: shown_target(&notice.spec.target),
        event: Event::from(notice.spec.event).into(),
        state: state.into(),
        at_unix_ns: outcome.map_or(0, |outcome| outcome.at.0),
        attempts: outcome.map_or(0, |outcome| outcome.attempts),
        error: error.unwrap_or_default().to_owned(),
    }
}

/// The number of graph tasks that cost as much as a template.
const TASKS_PER_UNIT: usize = 256;

/// Continues adding the parts that [`detail`] omits. Each template takes one off `left`, and each
/// submit takes at least one. Returns whether everything has been added.
pub(super) fn add_submits(job: &Job, detail: &mut client::JobDetail, left: &mut usize) -> bool {
    loop {
        let told = detail.submits.len();
        let submit = told.checked_sub(1).and_then(|last| job.submits.get(last));
        if let Some((last, submit)) = detail.submits.last_mut().zip(submit) {
            let before = last.templates.len();
            last.templates.extend(templates(submit, before, *left));
            *left -= last.templates.len() - before;
            if last.templates.len() < submit.definitions().len() {
                return false;
            }
        }
        match job.submits.get(told) {
            None => break,
            Some(_) if *left == 0 => return false,
            Some(next) => {
                let graph_templates = match &next.kind {
                    SubmitKind::Array { .. } => Vec::new(),
                    SubmitKind::Graph {
                        template_of, graph, ..
                    } => {
                        let order = graph.order().iter();
                        let of = order.filter_map(|index| template_of.get(*index as usize));
                        of.copied().collect::<Vec<u32>>()
                    }
                };
                // A task costs almost nothing, but there may be very many.
                let cost = 1 + graph_templates.len() / TASKS_PER_UNIT;
                *left -= cost.min(*left);
                detail.submits.push(client::SubmitInfo {
                    graph_templates,
                    ..submit_info(next, 0)
                });
            }
        }
    }
    let is_single_array = matches!(
        job.submits.as_slice(),
        [Submit {
            kind: SubmitKind::Array { .. },
            ..
        }]
    );
    if !is_single_array {
        detail.task_ids = Some((&job.sorted_ids(|_| true)).into());
    }
    true
}

/// Returns at most `most` templates, starting at position `first`.
fn templates(submit: &Submit, first: usize, most: usize) -> Vec<common::TaskTemplate> {
    let some = submit.definitions().iter().skip(first).take(most);
    some.map(|task| common::TaskTemplate::without_stdin(task))
        .collect()
}

/// Returns the names and abbreviated values of an array's parameters.
fn described_params(submit: &Submit) -> Vec<client::Param> {
    let SubmitKind::Array { template, .. } = &submit.kind else {
        return Vec::new();
    };
    let params = template.task.params.iter();
    let list = params.flat_map(|params| params.list());
    list.map(|param| client::Param {
        name: param.name.to_string(),
        value: param.describe().into_bytes().into(),
    })
    .collect()
}

/// Returns a submit with at most `templates_max` templates, and without the templates of graph
/// tasks.
pub(super) fn submit_info(submit: &Submit, templates_max: usize) -> client::SubmitInfo {
    let is_graph = matches!(submit.kind, SubmitKind::Graph { .. });
    client::SubmitInfo {
        submit_dir: submit.header.submit_dir.to_vec().into(),
        stream_dir: submit
            .header
            .stream_dir
            .as_ref()
            .map(|dir| dir.to_vec().into()),
        is_graph,
        ids: (!is_graph).then(|| (&submit.ids).into()),
        templates: templates(submit, 0, templates_max),
        graph_templates: Vec::new(),
        params: described_params(submit),
        notes: submit.notes.iter().map(|note| note.to_string()).collect(),
    }
}

pub(super) fn task_ids(job: &Job, states: &[TaskState]) -> client::JobTaskIds {
    let ids = job.sorted_ids(|state| states.is_empty() || states.contains(&state));
    client::JobTaskIds {
        job: job.id.as_u32(),
        ids: Some((&ids).into()),
    }
}

#[cfg(test)]
mod tests {
    use hq_core::server_state::{Command, ServerState};
    use hq_core::template::{GraphSpec, GraphTask, SubmitBody};
    use hq_core::testing::{NOW, array_submit, request, template};

    use super::*;

    #[test]
    fn an_overview_costs_what_it_shows() {
        let mut state = ServerState::new("test");
        let count = 30_000;
        let mut submit = array_submit(0, template(&["true"]));
        submit.body = SubmitBody::Graph(GraphSpec {
            templates: (0..count)
                .map(|number| template(&["run", &number.to_string()]).into())
                .collect(),
            tasks: (0..count)
                .map(|number| GraphTask {
                    id: hq_core::id::TaskId(2 * number),
                    template: number,
                    deps: Vec::new(),
                })
                .collect(),
        });
        request(&mut state, Command::Submit(Box::new(submit)));
        let view = View {
            state: &state,
            now: NOW,
        };
        let job = &state.jobs()[&JobId(1)];
        let shown = crate::query::listed::overview(&view, job).submits;
        assert_eq!(shown[0].template_count, 30_000);
        assert_eq!(shown[0].info.templates.len(), 1);
        assert_eq!(shown[0].info.graph_templates.len(), 0);
        let mut whole = detail(&view, job);
        let mut left = 30_000;
        assert!(!add_submits(job, &mut whole, &mut left), "tasks count, too");
        left = 1 + 30_000 / TASKS_PER_UNIT;
        assert!(add_submits(job, &mut whole, &mut left));
        assert!(whole.task_ids.is_some());
        assert_eq!(whole.submits[0].templates.len(), 30_000);
        assert_eq!(whole.submits[0].graph_templates.len(), 30_000);
    }
}
