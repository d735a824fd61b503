//! The plan for a submit, for `--dry-run`.

use std::os::unix::ffi::OsStrExt;

use hq_core::id::TaskId;
use hq_core::params::fill;
use hq_core::resource::amount::Amount;
use hq_core::resource::request::{RequestVariants, ResourceRequest};
use hq_core::template::{
    ArrayIds, ArraySpec, GraphSpec, StdioSpec, SubmitBody, SubmitSpec, SubmitTarget, TaskTemplate,
};
use hq_protocol::{client, common};

use super::build::PathResolver;
use super::placeholder;
use super::skip::SkipPlan;
use super::{PreparedSubmit, SubmitContext};
use crate::text::lossy;

/// A submit as its user would describe it.
#[derive(Debug)]
pub(crate) struct Plan {
    /// The name of a new job. `None` for an open job.
    pub(crate) name: Option<String>,
    pub(crate) job: Option<u32>,
    pub(crate) task_count: u64,
    /// The ids, such as `1-100`. In an open job, the server may assign higher ids.
    pub(crate) ids: String,
    /// The first and the last task. Empty if there are no tasks.
    pub(crate) tasks: Vec<PlannedTask>,
    /// The distinct templates of a graph, or the template of an array.
    pub(crate) templates: Vec<common::TaskTemplate>,
    pub(crate) stream: Option<String>,
    pub(crate) after: Vec<String>,
    /// The connected workers. `None` if no server was queried.
    pub(crate) workers: Option<Vec<PlannedWorker>>,
    /// The finished tasks, if requested.
    pub(crate) skipped: Option<SkipPlan>,
    /// The distinct requests that fit on no worker. Empty if there are no workers.
    pub(crate) unfit: Vec<String>,
    /// Whether tasks print here instead of to files.
    pub(crate) is_local: bool,
}

/// One task with its paths. `%{JOB_ID}` stays, because the job has no id yet.
#[derive(Debug)]
pub(crate) struct PlannedTask {
    pub(crate) id: u32,
    /// The name of a step in a job file.
    pub(crate) name: Option<String>,
    pub(crate) command: Vec<String>,
    pub(crate) cwd: String,
    /// The path of standard output. `None` for a stream or no output.
    pub(crate) stdout: Option<String>,
    pub(crate) stderr: Option<String>,
    pub(crate) entry: Option<String>,
    /// The values of parameters.
    pub(crate) params: Vec<client::Param>,
    pub(crate) deps: Vec<u32>,
}

/// A connected worker.
#[derive(Debug)]
pub(crate) struct PlannedWorker {
    pub(crate) id: u32,
    pub(crate) hostname: String,
    /// Whether the worker could run at least one kind of task.
    pub(crate) fits: bool,
}

/// The resources and the lifetime that a worker offers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WorkerCapacity<'a> {
    /// The names and the amounts of the resources.
    pub(crate) amounts: &'a [(String, Amount)],
    /// The number of workers in the worker's group, including itself.
    pub(crate) group_size: u32,
    /// The remaining lifetime. `None` if it is unlimited.
    pub(crate) left: Option<std::time::Duration>,
}

/// Creates the plan for a submit, without workers.
pub(crate) fn plan(prepared: &PreparedSubmit, context: SubmitContext<'_>) -> Plan {
    let SubmitSpec {
        target,
        stream_dir,
        after,
        body,
        ..
    } = &prepared.spec;
    let (name, job) = match target {
        SubmitTarget::NewJob { name, .. } | SubmitTarget::SelfClosing { name, .. } => {
            (Some(name.to_string()), None)
        }
        SubmitTarget::Attach(job) => (None, Some(job.as_u32())),
    };
    let (task_count, ids, tasks, templates) = match body {
        SubmitBody::Array(array) => of_array(array, job.is_some(), context),
        SubmitBody::Graph(graph) => of_graph(graph, context),
    };
    let after = after.iter().map(|after| {
        let each = if after.is_each { ", task by task" } else { "" };
        let end = if after.is_any { "any" } else { "ok" };
        format!("{}:{end}{each}", after.job.as_u32())
    });
    Plan {
        name,
        job,
        task_count,
        ids,
        tasks,
        templates,
        stream: stream_dir.as_deref().map(lossy),
        after: after.collect(),
        workers: None,
        skipped: prepared.skipped.clone(),
        unfit: Vec::new(),
        is_local: context.output_dir.is_some(),
    }
}

type Parts = (u64, String, Vec<PlannedTask>, Vec<common::TaskTemplate>);

fn of_array(array: &ArraySpec, is_attached: bool, context: SubmitContext<'_>) -> Parts {
    let (count, ids, ends) = match &array.ids {
        ArrayIds::Given(ids) => {
            let last = ids.len().checked_sub(1).and_then(|at| ids.get(at));
            let ends = ids.get(0).zip(last);
            (ids.len(), ids.to_string(), ends)
        }
        ArrayIds::Next(0) => (0, String::new(), None),
        ArrayIds::Next(count) if is_attached => {
            (*count, "the next ones".to_owned(), Some((0, count - 1)))
        }
        ArrayIds::Next(1) => (1, "0".to_owned(), Some((0, 0))),
        ArrayIds::Next(count) => (*count, format!("0-{}", count - 1), Some((0, count - 1))),
    };
    let mut tasks = Vec::new();
    if let Some((first, last)) = ends {
        let entry = |at: u32| {
            let entries = array.entries.as_ref()?;
            entries.get(at).map(lossy)
        };
        tasks.push(planned(
            first,
            &array.template,
            entry(0),
            Vec::new(),
            context,
        ));
        if count > 1 {
            tasks.push(planned(
                last,
                &array.template,
                entry(count - 1),
                Vec::new(),
                context,
            ));
        }
    }
    let template = common::TaskTemplate::without_stdin(&array.template);
    (count.into(), ids, tasks, vec![template])
}

fn of_graph(graph: &GraphSpec, context: SubmitContext<'_>) -> Parts {
    let mut ids: Vec<u32> = graph.tasks.iter().map(|task| task.id.as_u32()).collect();
    ids.sort_unstable();
    let shown = hq_core::range::IdArray::from_sorted(ids.iter().copied());
    let shown = shown.map_or_else(|_| String::new(), |ids| ids.to_string());
    let mut ends: Vec<u32> = ids.first().into_iter().chain(ids.last()).copied().collect();
    ends.dedup();
    let tasks = ends.iter().filter_map(|id| {
        let task = graph.tasks.iter().find(|task| task.id.as_u32() == *id)?;
        let template = graph.templates.get(task.template as usize)?;
        let deps = task.deps.iter().map(|dep| dep.as_u32()).collect();
        Some(planned(*id, template, None, deps, context))
    });
    let tasks = tasks.collect();
    let templates = graph.templates.iter();
    let templates = templates.map(|template| common::TaskTemplate::without_stdin(template));
    (ids.len() as u64, shown, tasks, templates.collect())
}

fn planned(
    id: u32,
    template: &TaskTemplate,
    entry: Option<String>,
    deps: Vec<u32>,
    context: SubmitContext<'_>,
) -> PlannedTask {
    let number = id.to_string();
    let params = template.params.as_deref();
    let params = params.map_or_else(Vec::new, |params| params.values(TaskId(id)));
    let bytes = entry.as_deref().map(str::as_bytes);
    let args = template.filled_args(&template.arg_values(TaskId(id), bytes));
    let of_task = |path: &[u8]| {
        let values: &[(&str, &[u8])] = &[("TASK_ID", number.as_bytes()), ("INSTANCE_ID", b"0")];
        // The parameters are filled in last, because placeholders inside a value must not be
        // replaced.
        fill(&placeholder::replace(path, values), &params)
    };
    let resolver = PathResolver::new(&of_task(&template.cwd), context);
    let cwd = resolver.cwd();
    let stdio = |spec: &StdioSpec| match resolver.stdio(spec.clone()) {
        // `hq run` prints output that has no explicit file.
        StdioSpec::File { path, .. }
            if !context
                .output_dir
                .is_some_and(|dir| path.starts_with(dir.as_os_str().as_bytes())) =>
        {
            let path = of_task(&path);
            let base = std::path::Path::new(std::ffi::OsStr::from_bytes(&cwd));
            let whole = base.join(std::ffi::OsStr::from_bytes(&path));
            Some(lossy(whole.as_os_str().as_bytes()))
        }
        StdioSpec::File { .. } | StdioSpec::None | StdioSpec::Stream => None,
    };
    PlannedTask {
        id,
        name: template.name.as_deref().map(str::to_owned),
        command: args.iter().map(|arg| lossy(arg)).collect(),
        stdout: stdio(&template.stdout),
        stderr: stdio(&template.stderr),
        cwd: lossy(&cwd),
        entry,
        params: params
            .into_iter()
            .map(|(name, value)| client::Param {
                name: name.to_owned(),
                value: value.into_vec().into(),
            })
            .collect(),
        deps,
    }
}

/// Returns the distinct requests of the tasks, because each task of a graph may have its own
/// template.
pub(crate) fn kinds(body: &SubmitBody) -> Vec<&RequestVariants> {
    let templates = body.templates().iter();
    let mut kinds: Vec<&RequestVariants> = templates.map(|template| &template.requests).collect();
    kinds.sort_unstable();
    kinds.dedup();
    kinds
}

/// Returns whether a worker without other tasks could run tasks of one kind.
pub(crate) fn fits(requests: &RequestVariants, offer: WorkerCapacity<'_>) -> bool {
    let mut variants = requests.as_slice().iter();
    variants.any(|request| request_fits(request, offer))
}

fn request_fits(request: &ResourceRequest, offer: WorkerCapacity<'_>) -> bool {
    if request.n_nodes > offer.group_size || offer.left.is_some_and(|left| left < request.min_time)
    {
        return false;
    }
    request.entries.iter().all(|entry| {
        let mut amounts = offer.amounts.iter();
        let found = amounts.find(|(name, _)| **name == *entry.resource);
        let total = found.map_or(Amount::ZERO, |(_, amount)| *amount);
        entry.fits(total)
    })
}

#[cfg(test)]
mod tests;
