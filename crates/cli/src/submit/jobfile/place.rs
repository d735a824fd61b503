//! Finds the position of a graph error in a job file. Runs only after an error, because positions
//! of tasks are not stored when a file is read.

use std::ops::Range;

use serde::Deserialize;
use toml::Spanned;

use super::graph::TaskGraphError;
use super::parts;
use super::schema::TaskKey;
use super::yaml::{yaml, yaml_offset};

/// The maximum size in bytes of a file that is parsed as a whole to find a position.
const WHOLE_MAX: usize = 1 << 24;

/// The positions of a task.
pub(super) struct PlacedTask {
    id: Option<Range<usize>>,
    deps: Vec<(TaskKey, Range<usize>)>,
}

/// Returns the bytes of the file that are affected by a mistake. `read` finds the task at a
/// position.
pub(super) fn of(
    mistake: &TaskGraphError,
    read: impl FnOnce(usize) -> Option<PlacedTask>,
) -> Option<Range<usize>> {
    let dependency = |task: PlacedTask, is_meant: &dyn Fn(&TaskKey) -> bool| {
        let mut deps = task.deps.into_iter();
        deps.find(|(dep, _)| is_meant(dep)).map(|(_, span)| span)
    };
    match mistake {
        TaskGraphError::Twice { task, .. } => read(*task)?.id,
        TaskGraphError::Unknown { task, dep, .. } => dependency(read(*task)?, &|key| key == dep),
        TaskGraphError::Cycle { task, ids } => {
            // A named task may be referred to by its number.
            let is_member = |key: &TaskKey| {
                ids.iter()
                    .any(|(id, member)| member == key || *key == TaskKey::Number(id.as_u32()))
            };
            dependency(read(*task)?, &is_member)
        }
        TaskGraphError::NoIdsLeft => None,
    }
}

/// The part of a file that is searched for positions. `K` is a key with its position.
#[derive(Deserialize)]
struct File<K> {
    #[serde(default = "Vec::new")]
    task: Vec<Task<K>>,
}

#[derive(Deserialize)]
struct Task<K> {
    id: Option<K>,
    #[serde(default = "Vec::new")]
    deps: Vec<K>,
}

impl<K> Task<K> {
    fn placed(&self, place: impl Fn(&K) -> (TaskKey, Range<usize>)) -> PlacedTask {
        PlacedTask {
            id: self.id.as_ref().map(|id| place(id).1),
            deps: self.deps.iter().map(place).collect(),
        }
    }
}

/// Returns the task at position `index` of a file with `count` tasks.
pub(super) fn toml_task(content: &str, count: usize, index: usize) -> Option<PlacedTask> {
    let headers = parts::header_positions(content);
    let (range, nth) = if headers.len() == count {
        let end = headers.get(index + 1).copied();
        (headers[index]..end.unwrap_or(content.len()), 0)
    } else if content.len() <= WHOLE_MAX {
        (0..content.len(), index)
    } else {
        return None;
    };
    let offset = range.start;
    let file: File<Spanned<TaskKey>> = toml::from_str(&content[range]).ok()?;
    Some(file.task.get(nth)?.placed(|key| {
        let span = key.span();
        (
            key.get_ref().clone(),
            span.start + offset..span.end + offset,
        )
    }))
}

/// Returns all tasks of a file.
pub(super) fn yaml_tasks(content: &str) -> Option<Vec<PlacedTask>> {
    if content.len() > WHOLE_MAX {
        return None;
    }
    let place = |found: &serde_saphyr::Spanned<TaskKey>| {
        let at = yaml_offset(content, found.referenced);
        let length = match &found.value {
            TaskKey::Number(number) => number.to_string().len(),
            TaskKey::Name(name) => name.len(),
        };
        (found.value.clone(), at..at + length)
    };
    let file: File<serde_saphyr::Spanned<TaskKey>> = yaml(content).ok()?;
    Some(file.task.iter().map(|task| task.placed(place)).collect())
}
