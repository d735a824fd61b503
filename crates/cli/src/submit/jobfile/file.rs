//! A job file that was read, with its tasks as they are kept until they are checked.

use std::fmt;

use indexmap::IndexSet;
use serde::Deserialize;
use serde::de::{Deserializer, SeqAccess, Visitor};

use super::schema::{ArrayTable, CommonTable, JobName, TaskTable};

/// The whole file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FileTable {
    #[serde(default)]
    pub(super) name: JobName,
    pub(super) max_fails: Option<u32>,
    pub(super) stream: Option<String>,
    #[serde(default)]
    pub(super) task: Tasks,
    pub(super) array: Option<ArrayTable>,
    #[serde(default, rename = "data_layer")]
    _data_layer: bool,
}

/// The tasks of a file. Many of a large graph are alike: what they have in common is kept once.
#[derive(Default)]
pub(super) struct Tasks {
    list: Vec<ListedTask>,
    kinds: IndexSet<CommonTable>,
}

/// What a task has for itself.
pub(super) struct ListedTask {
    pub(super) id: Option<u32>,
    pub(super) deps: Vec<u32>,
    /// Index of all the rest among the kinds.
    pub(super) kind: usize,
}

impl Tasks {
    pub(super) const fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub(super) const fn len(&self) -> usize {
        self.list.len()
    }

    pub(super) fn reserve(&mut self, count: usize) {
        self.list.reserve_exact(count);
    }

    /// The tasks, and the kinds that they refer to.
    pub(super) fn into_parts(self) -> (Vec<ListedTask>, IndexSet<CommonTable>) {
        (self.list, self.kinds)
    }

    fn push(&mut self, mut table: TaskTable) {
        let (id, deps) = (table.id, std::mem::take(&mut table.deps));
        let (kind, _) = self.kinds.insert_full(table.into_common());
        self.list.push(ListedTask { id, deps, kind });
    }

    /// Adds the tasks of a later part of the file.
    pub(super) fn append(&mut self, later: Self) {
        let kinds: Vec<usize> = later
            .kinds
            .into_iter()
            .map(|kind| self.kinds.insert_full(kind).0)
            .collect();
        let list = later.list.into_iter();
        self.list.extend(list.map(|task| ListedTask {
            kind: kinds[task.kind],
            ..task
        }));
    }
}

impl<'de> Deserialize<'de> for Tasks {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TasksVisitor;
        impl<'de> Visitor<'de> for TasksVisitor {
            type Value = Tasks;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a sequence")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Tasks, A::Error> {
                let mut tasks = Tasks::default();
                while let Some(table) = list.next_element::<TaskTable>()? {
                    tasks.push(table);
                }
                Ok(tasks)
            }
        }
        deserializer.deserialize_seq(TasksVisitor)
    }
}
