//! Builds the graph of a submit.

use crate::graph::{Cycle, Graph};
use crate::id::TaskId;
use crate::range::IdArray;

/// Why the tasks of a graph submit cannot be accepted. The field is the offending task.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GraphError {
    /// Two tasks have the same id.
    Duplicate(TaskId),
    /// There is a cycle, or a dependency is not in the submit.
    Cycle(TaskId),
}

/// Sorts the tasks by id and builds the dependency graph over the new order. With
/// `may_name_others`, dependencies outside the submit are returned separately, as
/// [`SubmitKind::Graph::earlier`].
pub(crate) fn build_graph(
    spec: &crate::template::GraphSpec,
    may_name_others: bool,
) -> Result<BuiltGraph, GraphError> {
    let mut by_id: Vec<u32> = (0..u32::try_from(spec.tasks.len()).unwrap_or(u32::MAX)).collect();
    // The tasks are sorted by id, so that neighbors share a range.
    by_id.sort_by_key(|position| spec.tasks[*position as usize].id);
    let sorted: Vec<u32> = by_id.iter().map(|p| spec.tasks[*p as usize].id.0).collect();
    if let Some(pair) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(GraphError::Duplicate(TaskId(pair[0])));
    }
    let mut earlier = Vec::new();
    let deps = by_id.iter().enumerate().map(|(index, position)| {
        let index = u32::try_from(index).unwrap_or(u32::MAX);
        let mut own = Vec::new();
        for dep in &spec.tasks[*position as usize].deps {
            match sorted.binary_search(&dep.0) {
                Ok(found) => own.push(u32::try_from(found).unwrap_or(u32::MAX)),
                Err(_) if may_name_others => earlier.push((index, *dep)),
                // This index is beyond every graph and is rejected like a cycle.
                Err(_) => own.push(u32::MAX),
            }
        }
        own
    });
    let graph = Graph::new(deps).map_err(|Cycle(index)| {
        GraphError::Cycle(TaskId(sorted.get(index as usize).copied().unwrap_or(0)))
    })?;
    earlier.sort_unstable();
    earlier.dedup();
    Ok(BuiltGraph {
        ids: IdArray::from_sorted(sorted.iter().copied()).unwrap_or_default(),
        positions: by_id,
        graph,
        earlier,
    })
}

/// The tasks of a graph submit, in the order of their ids.
pub(crate) struct BuiltGraph {
    pub(crate) ids: IdArray,
    /// The position of each task in the spec.
    pub(crate) positions: Vec<u32>,
    pub(crate) graph: Graph,
    /// The same as [`SubmitKind::Graph::earlier`].
    pub(crate) earlier: Vec<(u32, TaskId)>,
}
