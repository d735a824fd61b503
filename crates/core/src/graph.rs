//! The dependencies between the tasks of one submission, and a topological order.
//!
//! They are stored as two adjacency arrays (compressed sparse rows), with 8 bytes per dependency.
//! Indices are positions in the submission. Construction and the cycle check take O(tasks +
//! dependencies) (Kahn 1962).

use std::collections::VecDeque;

use crate::bug;

/// The dependencies of the tasks of one submission.
#[derive(Clone, Debug)]
pub struct Graph {
    deps: Rows,
    dependents: Rows,
    /// The number of unfinished dependencies of each task.
    unfinished: Vec<u32>,
    /// A topological order. Ties are resolved in the order of indices.
    order: Vec<u32>,
}

#[derive(Clone, Debug)]
struct Rows {
    ends: Vec<u32>,
    items: Vec<u32>,
}

impl Rows {
    fn row(&self, index: u32) -> &[u32] {
        let index = index as usize;
        let start = if index == 0 {
            0
        } else {
            self.ends.get(index - 1).copied().unwrap_or(0)
        };
        let end = self.ends.get(index).copied().unwrap_or(start);
        self.items.get(start as usize..end as usize).unwrap_or(&[])
    }
}

/// The index of a task that can never run, because it is on a cycle or depends on one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cycle(pub u32);

impl Graph {
    /// Builds the graph of `deps.len()` tasks from the dependencies of each task. Every dependency
    /// must be a valid index. Duplicates are dropped.
    ///
    /// # Errors
    ///
    /// Returns a [`Cycle`] with the lowest index that cannot be ordered or that depends on an index
    /// out of range.
    pub fn new(deps: impl ExactSizeIterator<Item = Vec<u32>>) -> Result<Self, Cycle> {
        let len = deps.len();
        let mut rows = Rows {
            ends: Vec::with_capacity(len),
            items: Vec::new(),
        };
        for (index, mut row) in deps.enumerate() {
            row.sort_unstable();
            row.dedup();
            if row.last().is_some_and(|last| *last as usize >= len) {
                return Err(Cycle(u32::try_from(index).unwrap_or(u32::MAX)));
            }
            rows.items.extend_from_slice(&row);
            rows.ends
                .push(u32::try_from(rows.items.len()).unwrap_or(u32::MAX));
        }
        let dependents = transpose(&rows, len);
        let unfinished: Vec<u32> = (0..len)
            .map(|i| {
                let row = rows.row(u32::try_from(i).unwrap_or(u32::MAX));
                u32::try_from(row.len()).unwrap_or(u32::MAX)
            })
            .collect();
        let order = topological_order(&dependents, &unfinished)?;
        Ok(Self {
            deps: rows,
            dependents,
            unfinished,
            order,
        })
    }

    /// Returns the dependencies of a task in ascending order.
    #[must_use]
    pub fn deps(&self, index: u32) -> &[u32] {
        self.deps.row(index)
    }

    /// Returns the tasks that wait for this one, in ascending order.
    #[must_use]
    pub fn dependents(&self, index: u32) -> &[u32] {
        self.dependents.row(index)
    }

    /// Returns the number of dependencies that have not finished.
    #[must_use]
    pub fn unfinished(&self, index: u32) -> u32 {
        self.unfinished.get(index as usize).copied().unwrap_or(0)
    }

    /// Returns all indices, with dependencies before dependents.
    #[must_use]
    pub fn order(&self) -> &[u32] {
        &self.order
    }

    /// Notes that a task has finished, and returns the tasks that became ready.
    pub fn finish(&mut self, index: u32) -> Vec<u32> {
        let mut free = Vec::new();
        for dependent in self.dependents.row(index) {
            let count = self.unfinished.get_mut(*dependent as usize);
            let Some(count) = count.filter(|count| **count > 0) else {
                // A task finishes only once, and each of its dependents has counted it.
                bug!("task {dependent} of a graph waits for nothing, but task {index} frees it");
                continue;
            };
            *count -= 1;
            if *count == 0 {
                free.push(*dependent);
            }
        }
        free
    }

    /// Adds a dependency outside this graph to a task.
    pub fn wait_outside(&mut self, index: u32) {
        match self.unfinished.get_mut(index as usize) {
            Some(count) => *count = count.saturating_add(1),
            None => bug!("a graph has no task {index} that could wait"),
        }
    }

    /// Notes that a dependency outside this graph has finished. Returns whether the task became
    /// ready.
    pub fn finish_outside(&mut self, index: u32) -> bool {
        let count = self.unfinished.get_mut(index as usize);
        let Some(count) = count.filter(|count| **count > 0) else {
            bug!("task {index} of a graph waits for nothing, but an earlier task frees it");
            return false;
        };
        *count -= 1;
        *count == 0
    }

    /// Returns all direct and indirect dependents of `roots`, each once, in time linear in the size
    /// of the result.
    #[must_use]
    pub fn descendants(&self, roots: &[u32]) -> Vec<u32> {
        let mut seen = std::collections::BTreeSet::new();
        let rows = roots.iter().map(|root| self.dependents.row(*root));
        let mut queue: VecDeque<u32> = rows.flatten().copied().collect();
        while let Some(next) = queue.pop_front() {
            if seen.insert(next) {
                queue.extend(self.dependents.row(next));
            }
        }
        seen.into_iter().collect()
    }
}

fn transpose(rows: &Rows, len: usize) -> Rows {
    let mut ends = vec![0u32; len];
    for item in &rows.items {
        ends[*item as usize] += 1;
    }
    let mut total = 0;
    let mut next = Vec::with_capacity(len);
    for end in &mut ends {
        next.push(total);
        total += *end;
        *end = total;
    }
    let mut items = vec![0u32; rows.items.len()];
    for index in 0..u32::try_from(len).unwrap_or(u32::MAX) {
        for dep in rows.row(index) {
            let slot = &mut next[*dep as usize];
            items[*slot as usize] = index;
            *slot += 1;
        }
    }
    Rows { ends, items }
}

fn topological_order(dependents: &Rows, unfinished: &[u32]) -> Result<Vec<u32>, Cycle> {
    let mut left = unfinished.to_vec();
    let indices = 0..u32::try_from(left.len()).unwrap_or(u32::MAX);
    let mut order: Vec<u32> = indices.filter(|i| left[*i as usize] == 0).collect();
    let mut done = 0;
    while let Some(index) = order.get(done).copied() {
        done += 1;
        for dependent in dependents.row(index) {
            let count = &mut left[*dependent as usize];
            *count -= 1;
            if *count == 0 {
                order.push(*dependent);
            }
        }
    }
    match left.iter().position(|count| *count > 0) {
        Some(stuck) => Err(Cycle(u32::try_from(stuck).unwrap_or(u32::MAX))),
        None => Ok(order),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn diamond_frees_the_join_last() {
        let mut graph =
            Graph::new(vec![vec![], vec![0], vec![0], vec![1, 2]].into_iter()).expect("acyclic");
        assert_eq!(graph.finish(0), [1, 2]);
        assert_eq!(graph.finish(2), [] as [u32; 0]);
        assert_eq!(graph.finish(1), [3]);
        assert_eq!(graph.descendants(&[0]), [1, 2, 3]);
        assert_eq!(graph.deps(3), [1, 2]);
    }

    #[test]
    fn cycles_and_unknown_indices_are_refused() {
        let cycle = Graph::new(vec![vec![], vec![2], vec![1]].into_iter());
        assert_eq!(cycle.err(), Some(Cycle(1)));
        let itself = Graph::new(vec![vec![0]].into_iter());
        assert_eq!(itself.err(), Some(Cycle(0)));
        assert_eq!(Graph::new(vec![vec![7]].into_iter()).err(), Some(Cycle(0)));
    }

    proptest! {
        #[test]
        fn order_respects_dependencies(edges in proptest::collection::vec((0u32..30, 0u32..30), 0..80)) {
            let mut deps = vec![Vec::new(); 30];
            for (a, b) in edges {
                if a != b { deps[a.max(b) as usize].push(a.min(b)); }
            }
            let mut graph = Graph::new(deps.clone().into_iter()).expect("edges point backwards");
            let order = graph.order().to_vec();
            let mut done = [false; 30];
            for index in order {
                prop_assert_eq!(graph.unfinished(index), 0);
                prop_assert!(deps[index as usize].iter().all(|d| done[*d as usize]));
                done[index as usize] = true;
                graph.finish(index);
            }
            prop_assert!(done.iter().all(|d| *d));
        }
    }
}
