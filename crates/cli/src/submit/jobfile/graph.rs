//! Checks the ids and dependencies of the tasks of a job file, and sorts the tasks.

use hq_core::id::TaskId;
use hq_core::template::GraphTask;
use indexmap::IndexMap;

use super::file::ListedTask;
use super::schema::TaskKey;
use crate::text::closest;

/// Why tasks cannot be sorted. Positions are positions in the file, and named tasks appear with
/// their names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum TaskGraphError {
    /// The id of the task at this position is already in use.
    Twice {
        /// The position of the later task.
        task: usize,
        /// The id that both tasks have.
        id: TaskKey,
    },
    /// A dependency does not exist.
    Unknown {
        /// The position of the task that has the dependency.
        task: usize,
        /// The id of the task that has the dependency.
        id: TaskKey,
        /// The id of the missing task.
        dep: TaskKey,
        /// The correction.
        help: Option<String>,
    },
    /// Tasks depend on each other.
    Cycle {
        /// The position of the first of them.
        task: usize,
        /// The ids on the cycle, each before the one that it depends on, with their keys.
        ids: Vec<(TaskId, TaskKey)>,
    },
    /// All ids up to the largest possible one are in use.
    NoIdsLeft,
}

/// The maximum number of existing names that an error about an unknown name lists.
const NAMES_SHOWN_MAX: usize = 8;

/// The maximum number of tasks of a cycle that are named.
const CYCLE_SHOWN_MAX: usize = 8;

impl TaskGraphError {
    /// Returns the error text that scripts search for.
    pub(super) fn message(&self) -> String {
        match self {
            Self::Twice { id, .. } => format!("Task {id} is defined multiple times"),
            Self::Unknown { id, .. } => invalid_dependency(id),
            Self::Cycle { ids, .. } => {
                let first = ids.first().map(|(_, key)| key);
                invalid_dependency(first.unwrap_or(&TaskKey::Number(0)))
            }
            Self::NoIdsLeft => "There are no task ids left above 4294967295".to_owned(),
        }
    }

    /// Returns the error in detail.
    pub(super) fn reason(&self) -> String {
        match self {
            Self::Twice { id, .. } => {
                let what = match id {
                    TaskKey::Number(_) => "id",
                    TaskKey::Name(_) => "name",
                };
                format!("an earlier task already has the {what} {id}")
            }
            Self::Unknown { dep, .. } => format!("task {dep} does not exist in this file"),
            Self::Cycle { ids, .. } if ids.len() == 1 => "it waits for itself".to_owned(),
            Self::Cycle { ids, .. } => {
                let names = || ids.iter().map(|(_, key)| key.to_string());
                let shown = names().take(CYCLE_SHOWN_MAX);
                let more = (ids.len() > CYCLE_SHOWN_MAX).then(|| "…".to_owned());
                let all: Vec<String> = shown.chain(more).chain(names().next()).collect();
                format!("tasks wait for each other: {}", all.join(" -> "))
            }
            Self::NoIdsLeft => "a task without a number gets the one after the highest".to_owned(),
        }
    }

    /// Returns the correction.
    pub(super) fn help(&self) -> Option<&str> {
        match self {
            Self::Unknown { help, .. } => help.as_deref(),
            Self::Twice { .. } | Self::Cycle { .. } | Self::NoIdsLeft => None,
        }
    }
}

fn invalid_dependency(id: &TaskKey) -> String {
    format!("Task {id} is part of dependency cycle or has an invalid dependencies")
}

/// Returns the ids of the tasks and of their dependencies, which are taken from `tasks`. An
/// `open_job` may contain further tasks, but names only exist in the file.
pub(super) fn number(
    tasks: &mut [ListedTask],
    open_job: Option<u32>,
) -> Result<Vec<(TaskId, Vec<TaskId>)>, TaskGraphError> {
    let explicit = tasks.iter().map(|task| match task.id {
        Some(TaskKey::Number(id)) => Some(id),
        Some(TaskKey::Name(_)) | None => None,
    });
    let ids = assign_ids(explicit)?;
    let mut named = IndexMap::new();
    for (at, (task, id)) in tasks.iter().zip(&ids).enumerate() {
        if let Some(TaskKey::Name(name)) = &task.id
            && named.insert(name.clone(), TaskId(*id)).is_some()
        {
            let id = TaskKey::Name(name.clone());
            return Err(TaskGraphError::Twice { task: at, id });
        }
    }
    let numbered = tasks.iter_mut().zip(ids).enumerate();
    let numbered = numbered.map(|(at, (task, id))| {
        let dep_id = |dep| match dep {
            TaskKey::Number(number) => Ok(TaskId(number)),
            TaskKey::Name(name) => {
                let found = named.get(&name).copied();
                found.ok_or_else(|| TaskGraphError::Unknown {
                    task: at,
                    id: task.id.clone().unwrap_or(TaskKey::Number(id)),
                    help: meant(&named, TaskId(id), &name, open_job),
                    dep: TaskKey::Name(name),
                })
            }
        };
        let deps = std::mem::take(&mut task.deps).into_iter();
        let mut deps: Vec<TaskId> = deps.map(dep_id).collect::<Result<_, _>>()?;
        deps.sort_unstable();
        deps.dedup();
        Ok((TaskId(id), deps))
    });
    numbered.collect()
}

/// Returns advice for a name that no task has.
fn meant(
    named: &IndexMap<Box<str>, TaskId>,
    own: TaskId,
    unknown: &str,
    open_job: Option<u32>,
) -> Option<String> {
    let known = named.iter().filter(|(_, id)| **id != own);
    let known: Vec<&str> = known.map(|(name, _)| &**name).collect();
    let near = closest(unknown, known.iter().copied());
    match (near, open_job) {
        (Some(near), _) => Some(format!("did you mean `{near}`?")),
        (None, Some(job)) => Some(format!(
            "names are valid only within one file: for an existing task of job {job}, write its number, which `hq task list {job} -v` shows"
        )),
        (None, None) if known.is_empty() => None,
        (None, None) => {
            let more = if known.len() > NAMES_SHOWN_MAX {
                ", …"
            } else {
                ""
            };
            let shown: Vec<String> = known
                .iter()
                .take(NAMES_SHOWN_MAX)
                .map(|name| format!("`{name}`"))
                .collect();
            Some(format!("this file names {}{more}", shown.join(", ")))
        }
    }
}

/// Assigns ids to the tasks without one, starting after the highest explicit id, or from 1.
fn assign_ids(
    explicit: impl Iterator<Item = Option<u32>> + Clone,
) -> Result<Vec<u32>, TaskGraphError> {
    let mut highest = explicit.clone().flatten().max().unwrap_or(0);
    let mut ids = Vec::new();
    for id in explicit {
        ids.push(match id {
            Some(id) => id,
            None => {
                highest = highest.checked_add(1).ok_or(TaskGraphError::NoIdsLeft)?;
                highest
            }
        });
    }
    Ok(ids)
}

/// The positions of tasks in a file, by id.
struct Positions(Vec<(TaskId, usize)>);

impl Positions {
    fn new(
        tasks: &[GraphTask],
        label: impl Fn(&GraphTask) -> TaskKey,
    ) -> Result<Self, TaskGraphError> {
        let mut sorted: Vec<_> = tasks.iter().map(|task| task.id).zip(0..).collect();
        sorted.sort_unstable();
        let again = sorted.windows(2).filter(|pair| pair[0].0 == pair[1].0);
        match again.map(|pair| pair[1]).min_by_key(|(_, task)| *task) {
            Some((_, task)) => Err(TaskGraphError::Twice {
                task,
                id: label(&tasks[task]),
            }),
            None => Ok(Self(sorted)),
        }
    }

    fn get(&self, id: TaskId) -> Option<usize> {
        let (first, _) = self.0.first()?;
        // Ids usually have no gaps.
        let offset = id.as_u32().checked_sub(first.as_u32())? as usize;
        let found = match self.0.get(offset) {
            Some(guessed) if guessed.0 == id => guessed,
            _ => {
                let at = self.0.binary_search_by_key(&id, |(id, _)| *id).ok()?;
                &self.0[at]
            }
        };
        Some(found.1)
    }
}

/// The dependents of each task, as concatenated lists.
struct Dependents {
    /// The start of each task's list. During construction, this is its end.
    starts: Vec<usize>,
    all: Vec<usize>,
}

impl Dependents {
    /// Creates the lists. `edges` contains pairs of a task and its dependent, and is iterated
    /// twice.
    fn new(count: usize, edges: impl Iterator<Item = (usize, usize)> + Clone) -> Self {
        let mut starts = vec![0; count + 1];
        for (task, _) in edges.clone() {
            starts[task + 1] += 1;
        }
        for task in 0..count {
            starts[task + 1] += starts[task];
        }
        let (mut free, mut all) = (starts.clone(), vec![0; starts[count]]);
        for (task, dependent) in edges {
            all[free[task]] = dependent;
            free[task] += 1;
        }
        Self { starts, all }
    }

    fn of(&self, task: usize) -> &[usize] {
        &self.all[self.starts[task]..self.starts[task + 1]]
    }
}

/// Sorts the tasks so that dependencies come first. Otherwise keeps the order of the file.
///
/// `label` names tasks in errors. With `may_name_others`, ids that are not in the file are left for
/// the server to check, because the open job may have them. O(tasks + dependencies) if the ids have
/// no gaps; otherwise each dependency requires a search.
pub(super) fn order(
    tasks: Vec<GraphTask>,
    label: impl Fn(&GraphTask) -> TaskKey,
    may_name_others: bool,
) -> Result<Vec<GraphTask>, TaskGraphError> {
    let positions = Positions::new(&tasks, &label)?;
    let mut edges = Vec::with_capacity(tasks.iter().map(|task| task.deps.len()).sum());
    let mut missing: Vec<usize> = Vec::with_capacity(tasks.len());
    for (i, task) in tasks.iter().enumerate() {
        let mut count = 0;
        for dep in &task.deps {
            match positions.get(*dep) {
                Some(dep) => {
                    edges.push((dep, i));
                    count += 1;
                }
                None if may_name_others => {}
                None => {
                    return Err(TaskGraphError::Unknown {
                        task: i,
                        id: label(task),
                        dep: TaskKey::Number(dep.as_u32()),
                        help: None,
                    });
                }
            }
        }
        missing.push(count);
    }
    let dependents = Dependents::new(tasks.len(), edges.iter().copied());
    drop(edges);
    let mut ready: Vec<usize> = (0..tasks.len()).filter(|i| missing[*i] == 0).collect();
    let mut done = 0;
    while let Some(&current) = ready.get(done) {
        done += 1;
        for &next in dependents.of(current) {
            missing[next] -= 1;
            if missing[next] == 0 {
                ready.push(next);
            }
        }
    }
    if ready.len() < tasks.len() {
        let cycle = find_cycle(&tasks, &positions, &missing);
        return Err(TaskGraphError::Cycle {
            task: cycle.first().copied().unwrap_or(0),
            ids: cycle
                .iter()
                .map(|i| (tasks[*i].id, label(&tasks[*i])))
                .collect(),
        });
    }
    let mut slots: Vec<Option<GraphTask>> = tasks.into_iter().map(Some).collect();
    Ok(ready.into_iter().filter_map(|i| slots[i].take()).collect())
}

/// Finds a cycle: following unfinished dependencies must eventually return to a task.
fn find_cycle(tasks: &[GraphTask], positions: &Positions, missing: &[usize]) -> Vec<usize> {
    let mut met = vec![None; tasks.len()];
    let mut path = Vec::new();
    let mut current = missing.iter().position(|count| *count > 0).unwrap_or(0);
    while met[current].is_none() {
        met[current] = Some(path.len());
        path.push(current);
        let next = tasks[current]
            .deps
            .iter()
            .filter_map(|dep| positions.get(*dep));
        match next.into_iter().find(|dep| missing[*dep] > 0) {
            Some(dep) => current = dep,
            None => break,
        }
    }
    path.split_off(met[current].unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(tasks: &[(u32, &[u32])]) -> Result<Vec<u32>, TaskGraphError> {
        let tasks = tasks
            .iter()
            .map(|(id, deps)| GraphTask {
                id: TaskId(*id),
                template: 0,
                deps: deps.iter().copied().map(TaskId).collect(),
            })
            .collect();
        let label = |task: &GraphTask| TaskKey::Number(task.id.as_u32());
        order(tasks, label, false).map(|tasks| tasks.iter().map(|task| task.id.as_u32()).collect())
    }

    #[test]
    fn dependencies_come_first() {
        assert_eq!(
            graph(&[(4, &[2, 3]), (2, &[1]), (3, &[1]), (1, &[])]),
            Ok(vec![1, 2, 3, 4])
        );
        assert_eq!(graph(&[(7, &[]), (3, &[])]), Ok(vec![7, 3]));
        // Unordered ids with gaps. Some are at the position that they would have without gaps.
        assert_eq!(
            graph(&[
                (9, &[4, 2]),
                (2, &[]),
                (4, &[2]),
                (3, &[4_000_000_000]),
                (4_000_000_000, &[])
            ]),
            Ok(vec![2, 4_000_000_000, 4, 3, 9])
        );
    }

    #[test]
    fn broken_graphs_are_refused() {
        let told = |tasks: &[(u32, &[u32])]| {
            let mistake = graph(tasks).expect_err("broken");
            (mistake.message(), mistake.reason())
        };
        let invalid = |id: u32, reason: &str| {
            let text = "is part of dependency cycle or has an invalid dependencies";
            (format!("Task {id} {text}"), reason.to_owned())
        };
        let (message, _) = told(&[(1, &[]), (1, &[])]);
        assert_eq!(message, "Task 1 is defined multiple times");
        let first = graph(&[(8, &[]), (5, &[]), (8, &[]), (5, &[])]);
        let (task, id) = (2, TaskKey::Number(8));
        assert_eq!(
            first,
            Err(TaskGraphError::Twice { task, id }),
            "the first in the file"
        );
        assert_eq!(told(&[(1, &[1])]), invalid(1, "it waits for itself"));
        let unknown = invalid(1, "task 9 does not exist in this file");
        assert_eq!(told(&[(1, &[9])]), unknown);
        // Task 1 is not on the cycle of 2 and 3, but depends on it.
        let cycle = invalid(2, "tasks wait for each other: 2 -> 3 -> 2");
        assert_eq!(told(&[(1, &[2]), (2, &[3]), (3, &[2])]), cycle);
    }

    #[test]
    fn ids_continue_after_the_highest() {
        assert_eq!(
            assign_ids([None, Some(5), None].into_iter()),
            Ok(vec![6, 5, 7])
        );
        assert_eq!(assign_ids([None, None].into_iter()), Ok(vec![1, 2]));
        assert!(assign_ids([Some(u32::MAX), None].into_iter()).is_err());
    }
}
