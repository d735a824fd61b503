//! Lists of instances, and the columns of reported starts and ends.

use std::collections::BTreeMap;
use std::time::Duration;

use hq_core::id::{InstanceId, JobId, TaskId, TaskKey};
use hq_core::limits::{ERROR_TEXT_MAX, LAUNCHED_MAX, UNACKNOWLEDGED_MAX, shortened};
use hq_core::outcome::{Outcome, OutcomeCode, Usage};
use hq_core::server_state;
use hq_core::time::{Time, nanos};
use hq_core::worker_state::{self, InstanceKey};

use super::wire::{FromWire, field};
use super::{ConvertError, Within, at_most, required, same_len};
use crate::worker;

/// The maximum number of rows in a report and of instances in a list, more than a worker can have.
const ROWS_MAX: usize = 1 << 19;

/// The maximum length of a failed task's message in bytes. Workers truncate far earlier.
const MESSAGE_LEN_MAX: usize = 1 << 20;

const _: () = assert!(ERROR_TEXT_MAX <= MESSAGE_LEN_MAX);
const _: () = assert!(LAUNCHED_MAX + UNACKNOWLEDGED_MAX <= ROWS_MAX);

/// Groups consecutive rows of one job. The rows keep their order.
pub(super) fn task_list(tasks: impl Iterator<Item = (TaskKey, InstanceId)>) -> worker::TaskList {
    let mut list = worker::TaskList::default();
    for (key, instance) in tasks {
        let job = key.job.as_u32();
        let group = group_of(
            &mut list.groups,
            |group| group.job == job,
            || worker::TaskGroup {
                job,
                ..worker::TaskGroup::default()
            },
        );
        group.tasks.push(key.task.as_u32());
        group.instances.push(instance.as_u32());
    }
    list
}

/// Returns the last group if it fits, or else a new one.
fn group_of<G>(groups: &mut Vec<G>, fits: impl Fn(&G) -> bool, new: impl FnOnce() -> G) -> &mut G {
    let at = match groups.last() {
        Some(last) if fits(last) => groups.len() - 1,
        Some(_) | None => {
            groups.push(new());
            groups.len() - 1
        }
    };
    &mut groups[at]
}

pub(super) fn task_rows(
    list: worker::TaskList,
) -> Result<Vec<(TaskKey, InstanceId)>, ConvertError> {
    let mut rows = Vec::new();
    for (index, group) in list.groups.into_iter().enumerate() {
        let worker::TaskGroup {
            job,
            tasks,
            instances,
        } = group;
        at_most("tasks", rows.len() + tasks.len(), ROWS_MAX).at("groups", index)?;
        same_len("instances", instances.len(), tasks.len()).at("groups", index)?;
        rows.extend(
            tasks
                .into_iter()
                .zip(instances)
                .map(|row| task_row(job, row)),
        );
    }
    Ok(rows)
}

const fn task_row(job: u32, (task, instance): (u32, u32)) -> (TaskKey, InstanceId) {
    (TaskKey::new(JobId(job), TaskId(task)), InstanceId(instance))
}

pub(super) fn instance_keys(list: worker::TaskList) -> Result<Vec<InstanceKey>, ConvertError> {
    let rows = task_rows(list)?;
    Ok(rows
        .into_iter()
        .map(|(task, instance)| InstanceKey { task, instance })
        .collect())
}

/// The messages of failed tasks, until they are assigned to their rows.
type Failures = BTreeMap<(TaskKey, InstanceId), Box<str>>;

impl TryFrom<worker::Report> for server_state::Report {
    type Error = ConvertError;

    fn try_from(message: worker::Report) -> Result<Self, ConvertError> {
        let mut report = Self {
            seq: message.seq,
            sent: (message.sent_ns > 0).then_some(Time(message.sent_ns)),
            ..Self::default()
        };
        for (index, started) in message.started.into_iter().enumerate() {
            started_rows(started, &mut report.started).at("started", index)?;
        }
        let mut failures = failures(message.failures)?;
        for (index, ended) in message.ended.into_iter().enumerate() {
            ended_rows(ended, &mut failures, &mut report.ended).at("ended", index)?;
        }
        if let Some((task, _)) = failures.into_keys().next() {
            let expected = "only tasks that `ended` lists with a message";
            return Err(ConvertError::invalid("failures", expected, task));
        }
        if let Some(list) = message.retracted {
            report.retracted = task_rows(list).within("retracted")?;
        }
        Ok(report)
    }
}

field!(read server_state::Report = worker::Report);

fn failures(messages: Vec<worker::Failure>) -> Result<Failures, ConvertError> {
    at_most("failures", messages.len(), ROWS_MAX)?;
    let mut failures = Failures::new();
    for worker::Failure {
        job,
        task,
        instance,
        message,
    } in messages
    {
        let row = task_row(job, (task, instance));
        if message.len() > MESSAGE_LEN_MAX {
            let found = format_args!("{} bytes", message.len());
            return Err(ConvertError::invalid(
                "failures",
                "messages of at most 1 MiB",
                found,
            ));
        }
        if failures.insert(row, message.into()).is_some() {
            return Err(ConvertError::invalid("failures", "each task once", row.0));
        }
    }
    Ok(failures)
}

fn started_rows(
    message: worker::Started,
    rows: &mut Vec<server_state::StartedRow>,
) -> Result<(), ConvertError> {
    let worker::Started {
        job,
        tasks,
        instances,
        age_us,
    } = message;
    at_most("tasks", rows.len() + tasks.len(), ROWS_MAX)?;
    same_len("instances", instances.len(), tasks.len())?;
    same_len("age_us", age_us.len(), tasks.len())?;
    for (ids, age) in tasks.into_iter().zip(instances).zip(age_us) {
        let (task, instance) = task_row(job, ids);
        let age = Duration::from_micros(age);
        rows.push(server_state::StartedRow {
            task,
            instance,
            age,
        });
    }
    Ok(())
}

fn ended_rows(
    message: worker::Ended,
    failures: &mut Failures,
    rows: &mut Vec<server_state::EndedRow>,
) -> Result<(), ConvertError> {
    let count = message.tasks.len();
    at_most("tasks", rows.len() + count, ROWS_MAX)?;
    same_len("instances", message.instances.len(), count)?;
    same_len("outcomes", message.outcomes.len(), count)?;
    same_len("end_age_us", message.end_age_us.len(), count)?;
    same_len("run_us", message.run_us.len(), count)?;
    same_len("max_rss_kib", message.max_rss_kib.len(), count)?;
    same_len("user_us", message.user_us.len(), count)?;
    same_len("system_us", message.system_us.len(), count)?;
    let micros = Duration::from_micros;
    for index in 0..count {
        let (task, instance) = task_row(
            message.job,
            (message.tasks[index], message.instances[index]),
        );
        rows.push(server_state::EndedRow {
            task,
            instance,
            outcome: outcome(message.outcomes[index], || {
                failures.remove(&(task, instance))
            })?,
            age: micros(message.end_age_us[index]),
            run: micros(message.run_us[index]),
            usage: Usage {
                max_rss_kib: message.max_rss_kib[index],
                user: micros(message.user_us[index]),
                system: micros(message.system_us[index]),
            },
        });
    }
    Ok(())
}

fn outcome(
    number: i32,
    message: impl FnOnce() -> Option<Box<str>>,
) -> Result<Outcome, ConvertError> {
    let Some(code) = OutcomeCode::from_wire(number) else {
        return Err(ConvertError::invalid("outcomes", "a known outcome", number));
    };
    let message =
        match code {
            OutcomeCode::MESSAGE => Some(message().ok_or_else(|| {
                ConvertError::invalid("outcomes", "a message in `failures`", "none")
            })?),
            OutcomeCode::OUT_OF_MEMORY => message(),
            _ => None,
        };
    Ok(code.outcome(message))
}

impl From<&worker_state::Report> for worker::Report {
    fn from(report: &worker_state::Report) -> Self {
        let mut message = Self {
            seq: report.seq,
            sent_ns: report.sent.map_or(0, |sent| sent.0),
            ..Self::default()
        };
        for row in &report.started {
            push_started(&mut message.started, row);
        }
        for row in &report.ended {
            if let Outcome::Message(text) | Outcome::OutOfMemory(Some(text)) = &row.outcome {
                message.failures.push(worker::Failure {
                    job: row.key.task.job.as_u32(),
                    task: row.key.task.task.as_u32(),
                    instance: row.key.instance.as_u32(),
                    message: shortened(text, MESSAGE_LEN_MAX),
                });
            }
            push_ended(&mut message.ended, row);
        }
        if !report.retracted.is_empty() {
            let rows = report.retracted.iter().map(|key| (key.task, key.instance));
            message.retracted = Some(task_list(rows));
        }
        message
    }
}

fn push_started(groups: &mut Vec<worker::Started>, row: &worker_state::StartedRow) {
    let job = row.key.task.job.as_u32();
    let group = group_of(
        groups,
        |group| group.job == job,
        || worker::Started {
            job,
            ..worker::Started::default()
        },
    );
    group.tasks.push(row.key.task.task.as_u32());
    group.instances.push(row.key.instance.as_u32());
    group.age_us.push(micros(row.age));
}

fn push_ended(groups: &mut Vec<worker::Ended>, row: &worker_state::EndedRow) {
    let job = row.key.task.job.as_u32();
    let group = group_of(
        groups,
        |group| group.job == job,
        || worker::Ended {
            job,
            ..worker::Ended::default()
        },
    );
    group.tasks.push(row.key.task.task.as_u32());
    group.instances.push(row.key.instance.as_u32());
    group.outcomes.push(OutcomeCode::wire(&row.outcome));
    group.end_age_us.push(micros(row.age));
    group.run_us.push(micros(row.run));
    group.max_rss_kib.push(row.usage.max_rss_kib);
    group.user_us.push(micros(row.usage.user));
    group.system_us.push(micros(row.usage.system));
}

fn micros(duration: Duration) -> u64 {
    nanos(duration) / 1000
}
