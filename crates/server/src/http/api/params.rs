//! The parameters of a job's tasks: a table of their values by state, and the values of single
//! tasks.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::{Path, State};
use hq_core::id::{JobId, TaskId};
use hq_core::job::{Job, Submit, SubmitKind};
use hq_core::params::Params;
use hq_core::task::TaskState;

use super::answers::{Parameter, ParameterTable, ParameterValue};
use super::described::ByState;
use super::{ApiError, KeptAnswer, id, look_at_job};
use crate::http::App;
use crate::http::kept::REST_MAX;

/// The maximum number of values that are listed for a parameter. If a parameter had more values,
/// the table would be as long as the list of tasks.
const VALUES_MAX: usize = 100;
/// The maximum length of a value in the table, in characters. A value may be as long as an
/// argument.
const VALUE_LEN_MAX: usize = 100;

/// The names of parameters and the values of one task.
pub(super) type TaskParams = BTreeMap<String, String>;

/// Returns the parameters of a job. Each value has the number of its tasks in each state.
pub(in crate::http) async fn table(
    State(app): State<Arc<App>>,
    Path(job): Path<String>,
) -> KeptAnswer<ParameterTable> {
    let job = id(&job, "job")?;
    let make = look_at_job(&app, job, |_, job| table_of(job));
    let name = format!("parameters {job}");
    app.kept.get(name, (None, REST_MAX), make).await
}

/// Returns the parameters of some tasks of a job. `None` for a task without parameters.
pub(super) async fn of_tasks(
    app: &App,
    job: u32,
    tasks: Vec<u32>,
) -> Result<Vec<Option<TaskParams>>, ApiError> {
    let find = move |job: &Job| -> Vec<Option<TaskParams>> {
        tasks.iter().map(|task| of_task(job, *task)).collect()
    };
    let found = app
        .parts
        .core
        .query(move |view| view.state.jobs().get(&JobId(job)).map(find))
        .await?;
    Ok(found.unwrap_or_default())
}

fn of_task(job: &Job, task: u32) -> Option<TaskParams> {
    let slot = job.find(TaskId(task))?;
    let task_template = job.submit(slot)?.definition(slot.index)?;
    let values = task_template.params.as_deref()?.values(TaskId(task));
    let pairs = values.into_iter().map(|(name, value)| {
        let text = String::from_utf8_lossy(&value.into_vec()).into_owned();
        (name.to_owned(), text)
    });
    let params: TaskParams = pairs.collect();
    (!params.is_empty()).then_some(params)
}

fn table_of(job: &Job) -> ParameterTable {
    let mut table = ParameterTable {
        parameters: Vec::new(),
    };
    for submit in &job.submits {
        let SubmitKind::Array { template, .. } = &submit.kind else {
            continue;
        };
        let Some(params) = template.task.params.as_deref() else {
            continue;
        };
        for position in 0..params.list().len() {
            add(&mut table.parameters, submit, params, position);
        }
    }
    table
}

/// Adds a parameter of a submit. Submits of one job may have parameters with the same name.
fn add(table: &mut Vec<Parameter>, submit: &Submit, params: &Params, position: usize) {
    let Some(param) = params.list().get(position) else {
        return;
    };
    let count = params.value_count(position);
    let at = match table.iter().position(|known| *known.name == *param.name) {
        Some(at) => at,
        None => {
            table.push(Parameter {
                name: param.name.to_string(),
                value_count: 0,
                values: Vec::new(),
            });
            table.len() - 1
        }
    };
    let Some(row) = table.get_mut(at) else {
        return;
    };
    let is_listed = row.values.len() as u64 == row.value_count;
    if !is_listed || count as usize + row.values.len() > VALUES_MAX {
        row.value_count = row.value_count.saturating_add(count.into());
        row.values.clear();
        return;
    }
    for (value, tasks) in (0..count).zip(count_states(submit, params, position)) {
        let text = String::from_utf8_lossy(&param.value(value).into_vec())
            .chars()
            .take(VALUE_LEN_MAX)
            .collect::<String>();
        match row.values.iter_mut().find(|known| known.value == text) {
            Some(known) => {
                let sums = known.tasks.0.iter_mut().zip(tasks);
                sums.for_each(|(sum, more)| *sum += more);
            }
            None => row.values.push(ParameterValue {
                value: text,
                tasks: ByState(tasks),
            }),
        }
    }
    row.value_count = row.values.len() as u64;
}

/// Counts tasks by state for each value of a parameter.
fn count_states(
    submit: &Submit,
    params: &Params,
    position: usize,
) -> Vec<[u64; TaskState::ALL.len()]> {
    let length = params.value_count(position) as usize;
    let mut counts = vec![[0; TaskState::ALL.len()]; length];
    for (from, to, phase) in submit.tasks.runs(0, submit.tasks.len()) {
        let state = usize::from(phase.state().number());
        let mut add = |value: u32, tasks: u64| {
            let counts = counts.get_mut(value as usize);
            if let Some(count) = counts.and_then(|counts| counts.get_mut(state)) {
                *count += tasks;
            }
        };
        for range in submit.ids.slice(from, to) {
            if range.step() == 1 {
                params.count_values(position, range.first(), range.last(), &mut add);
            } else {
                range
                    .iter()
                    .for_each(|id| params.count_values(position, id, id, &mut add));
            }
        }
    }
    counts
}
