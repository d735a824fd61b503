//! Ids and dependencies of the tasks of a job file.

use std::collections::HashMap;

use hq_core::id::TaskId;
use hq_core::template::GraphTask;

use crate::error::{CliError, CliResult};

/// Gives ids to the tasks without one: after the highest explicit id, from 1 if there is none.
pub(super) fn assign_ids(
    explicit: impl Iterator<Item = Option<u32>> + Clone,
) -> CliResult<Vec<u32>> {
    let mut highest = explicit.clone().flatten().max().unwrap_or(0);
    let mut ids = Vec::new();
    for id in explicit {
        ids.push(match id {
            Some(id) => id,
            None => {
                highest = highest
                    .checked_add(1)
                    .ok_or_else(|| CliError::new("There are no task ids left above 4294967295"))?;
                highest
            }
        });
    }
    Ok(ids)
}

/// Sorts the tasks so that every dependency comes first; among free tasks the file's order stays.
///
/// O(tasks + dependencies).
pub(super) fn order(tasks: Vec<GraphTask>) -> CliResult<Vec<GraphTask>> {
    let mut index: HashMap<TaskId, usize> = HashMap::with_capacity(tasks.len());
    for (i, task) in tasks.iter().enumerate() {
        if index.insert(task.id, i).is_some() {
            let id = task.id;
            return Err(CliError::refused(&format!(
                "Task {id} is defined multiple times"
            )));
        }
    }
    let mut dependents: Vec<Vec<usize>> = vec![Vec::new(); tasks.len()];
    let mut missing: Vec<usize> = Vec::with_capacity(tasks.len());
    for (i, task) in tasks.iter().enumerate() {
        for dep in &task.deps {
            match index.get(dep) {
                Some(dep) => dependents[*dep].push(i),
                None => return Err(invalid_dependency(task.id)),
            }
        }
        missing.push(task.deps.len());
    }
    let mut ready: Vec<usize> = (0..tasks.len()).filter(|i| missing[*i] == 0).collect();
    let mut done = 0;
    while let Some(&current) = ready.get(done) {
        done += 1;
        for &next in &dependents[current] {
            missing[next] -= 1;
            if missing[next] == 0 {
                ready.push(next);
            }
        }
    }
    if ready.len() < tasks.len() {
        return Err(invalid_dependency(cycle_member(&tasks, &index, &missing)));
    }
    let mut slots: Vec<Option<GraphTask>> = tasks.into_iter().map(Some).collect();
    Ok(ready.into_iter().filter_map(|i| slots[i].take()).collect())
}

fn invalid_dependency(id: TaskId) -> CliError {
    CliError::refused(&format!(
        "Task {id} is part of dependency cycle or has an invalid dependencies"
    ))
}

/// A task on a cycle: whoever follows unfinished dependencies must meet a task again.
fn cycle_member(tasks: &[GraphTask], index: &HashMap<TaskId, usize>, missing: &[usize]) -> TaskId {
    let mut seen = vec![false; tasks.len()];
    let mut current = missing.iter().position(|count| *count > 0).unwrap_or(0);
    while !seen[current] {
        seen[current] = true;
        let next = tasks[current].deps.iter().filter_map(|dep| index.get(dep));
        match next.copied().find(|dep| missing[*dep] > 0) {
            Some(dep) => current = dep,
            None => break,
        }
    }
    tasks[current].id
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(tasks: &[(u32, &[u32])]) -> CliResult<Vec<u32>> {
        let tasks = tasks
            .iter()
            .map(|(id, deps)| GraphTask {
                id: TaskId(*id),
                template: 0,
                deps: deps.iter().copied().map(TaskId).collect(),
            })
            .collect();
        order(tasks).map(|tasks| tasks.iter().map(|task| task.id.as_u32()).collect())
    }

    #[test]
    fn dependencies_come_first() {
        assert_eq!(
            graph(&[(4, &[2, 3]), (2, &[1]), (3, &[1]), (1, &[])]),
            Ok(vec![1, 2, 3, 4])
        );
        assert_eq!(graph(&[(7, &[]), (3, &[])]), Ok(vec![7, 3]));
    }

    #[test]
    fn broken_graphs_are_refused() {
        let text = |tasks: &[(u32, &[u32])]| graph(tasks).expect_err("broken").text();
        let invalid = |id: u32| {
            Some(format!(
                "Error: Task {id} is part of dependency cycle or has an invalid dependencies"
            ))
        };
        assert_eq!(
            text(&[(1, &[]), (1, &[])]).as_deref(),
            Some("Error: Task 1 is defined multiple times")
        );
        assert_eq!(text(&[(1, &[1])]), invalid(1));
        assert_eq!(text(&[(1, &[9])]), invalid(1));
        // Task 1 only waits for the cycle of 2 and 3.
        assert_eq!(text(&[(1, &[2]), (2, &[3]), (3, &[2])]), invalid(2));
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
