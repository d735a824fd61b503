//! Builders for submit requests.

use std::sync::Arc;

use crate::id::{JobId, TaskId};
use crate::range::IdArray;
use crate::resource::request::{RequestVariants, ResourceRequest};
use crate::template::{
    After, ArrayIds, ArraySpec, GraphSpec, GraphTask, NotifyEvent, NotifySpec, NotifyTarget,
    SubmitBody, SubmitSpec, SubmitTarget, TaskTemplate,
};
use crate::testing::{array_submit, template};

/// Returns a new job with `count` tasks that need one cpu each. The ids start at 0.
pub(in crate::scenarios) fn tasks(count: u32) -> SubmitSpec {
    array_submit(count, template(&["true"]))
}

/// Returns the same job with a modified template.
pub(in crate::scenarios) fn tasks_with(
    count: u32,
    change: impl FnOnce(&mut TaskTemplate),
) -> SubmitSpec {
    let mut task = template(&["true"]);
    change(&mut task);
    array_submit(count, task)
}

/// Returns tasks that need this many cpus each.
pub(in crate::scenarios) fn wide(count: u32, cpus: u32) -> SubmitSpec {
    tasks_with(count, |task| task.requests = cpus_of(cpus))
}

/// Returns tasks with this priority.
pub(in crate::scenarios) fn urgent(count: u32, priority: i32) -> SubmitSpec {
    tasks_with(count, |task| task.priority = priority)
}

pub(in crate::scenarios) fn cpus_of(cpus: u32) -> RequestVariants {
    RequestVariants::new(vec![ResourceRequest::cpus(cpus)]).expect("valid")
}

/// Returns tasks that need this many whole nodes each.
pub(in crate::scenarios) fn gang(count: u32, n_nodes: u32) -> SubmitSpec {
    tasks_with(count, |task| {
        let request = ResourceRequest {
            entries: Vec::new(),
            n_nodes,
            ..ResourceRequest::cpus(1)
        };
        task.requests = RequestVariants::new(vec![request]).expect("valid");
    })
}

/// Returns tasks with dependencies, given as pairs of an id and its dependencies.
pub(in crate::scenarios) fn graph(tasks: &[(u32, &[u32])]) -> SubmitSpec {
    graph_of(template(&["true"]), tasks)
}

pub(in crate::scenarios) fn graph_of(task: TaskTemplate, tasks: &[(u32, &[u32])]) -> SubmitSpec {
    let tasks = tasks.iter().map(|(id, deps)| GraphTask {
        id: TaskId(*id),
        template: 0,
        deps: deps.iter().copied().map(TaskId).collect(),
    });
    let body = SubmitBody::Graph(GraphSpec {
        templates: vec![Arc::new(task)],
        tasks: tasks.collect(),
    });
    SubmitSpec {
        body,
        ..self::tasks(0)
    }
}

/// Makes a submission extend an open job.
pub(in crate::scenarios) fn into(job: JobId, spec: SubmitSpec) -> SubmitSpec {
    SubmitSpec {
        target: SubmitTarget::Attach(job),
        ..spec
    }
}

/// Adds a limit of failures to a submission.
pub(in crate::scenarios) fn max_fails(max: u32, spec: SubmitSpec) -> SubmitSpec {
    let target = SubmitTarget::NewJob {
        name: "x".into(),
        max_fails: Some(max),
    };
    SubmitSpec { target, ..spec }
}

/// Replaces the ids 0, 1, … of a submission with other ids.
pub(in crate::scenarios) fn numbered(ids: ArrayIds, spec: SubmitSpec) -> SubmitSpec {
    let SubmitBody::Array(array) = spec.body else {
        panic!("an array");
    };
    let body = SubmitBody::Array(ArraySpec { ids, ..array });
    SubmitSpec { body, ..spec }
}

pub(in crate::scenarios) fn given(first: u32, count: u32) -> ArrayIds {
    ArrayIds::Given(IdArray::consecutive(first, count).expect("valid"))
}

/// How to wait for another job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::scenarios) enum Waits {
    ForJob,
    ForJobAnyEnd,
    TaskByTask,
    TaskByTaskAnyEnd,
}

pub(in crate::scenarios) fn after(job: JobId, how: Waits, mut spec: SubmitSpec) -> SubmitSpec {
    spec.after.push(After {
        job,
        is_each: matches!(how, Waits::TaskByTask | Waits::TaskByTaskAnyEnd),
        is_any: matches!(how, Waits::ForJobAnyEnd | Waits::TaskByTaskAnyEnd),
    });
    spec
}

/// Adds a notification to a submission.
pub(in crate::scenarios) fn notifying(event: NotifyEvent, mut spec: SubmitSpec) -> SubmitSpec {
    let target = NotifyTarget::Command("mail".into());
    spec.notify.push(NotifySpec { target, event });
    spec
}
