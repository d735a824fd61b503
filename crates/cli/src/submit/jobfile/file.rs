//! A parsed job file. Its tasks are kept in this form until they are checked.

use std::fmt;

use indexmap::IndexSet;
use serde::Deserialize;
use serde::de::{Deserializer, SeqAccess, Visitor};

use super::schema::{ArrayTable, CommonTable, JobName, TaskKey, TaskTable};

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

/// The tasks of a file. Tasks of a large graph share most of their data, which is stored only once.
#[derive(Default)]
pub(super) struct Tasks {
    pub(super) list: Vec<ListedTask>,
    /// The data that tasks have in common.
    pub(super) kinds: IndexSet<CommonTable>,
    /// The names of tasks, from `id` or only from `deps`.
    pub(super) names: IndexSet<Box<str>>,
}

/// The data that a task does not share.
pub(super) struct ListedTask {
    pub(super) id: Option<TaskRef>,
    pub(super) deps: Vec<TaskRef>,
    /// The index of its other data among the kinds.
    pub(super) kind: usize,
}

/// A [`TaskKey`] with an index into the names of the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum TaskRef {
    /// The id of the task.
    Number(u32),
    /// The index of its name.
    Name(usize),
}

impl Tasks {
    pub(super) const fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub(super) fn reserve(&mut self, count: usize) {
        self.list.reserve_exact(count);
    }

    /// Returns the key as it is written in the file.
    pub(super) fn key(&self, task: TaskRef) -> TaskKey {
        match task {
            TaskRef::Number(number) => TaskKey::Number(number),
            TaskRef::Name(index) => {
                let name = self.names.get_index(index).cloned();
                TaskKey::Name(name.unwrap_or_default())
            }
        }
    }

    fn intern(&mut self, key: TaskKey) -> TaskRef {
        match key {
            TaskKey::Number(number) => TaskRef::Number(number),
            TaskKey::Name(name) => TaskRef::Name(self.names.insert_full(name).0),
        }
    }

    fn push(&mut self, table: TaskTable) {
        let id = table.id.map(|id| self.intern(id));
        let deps = table.deps.into_iter();
        let deps = deps.map(|dep| self.intern(dep)).collect();
        let (kind, _) = self.kinds.insert_full(table.common);
        self.list.push(ListedTask { id, deps, kind });
    }

    /// Appends the tasks of a later part of the file.
    pub(super) fn append(&mut self, later: Self) {
        let kinds = later.kinds.into_iter();
        let kinds: Vec<usize> = kinds.map(|kind| self.kinds.insert_full(kind).0).collect();
        let names = later.names.into_iter();
        let names: Vec<usize> = names.map(|name| self.names.insert_full(name).0).collect();
        let moved = |task: TaskRef| match task {
            TaskRef::Number(_) => task,
            TaskRef::Name(index) => TaskRef::Name(names[index]),
        };
        let list = later.list.into_iter();
        self.list.extend(list.map(|mut task| {
            for dep in &mut task.deps {
                *dep = moved(*dep);
            }
            ListedTask {
                id: task.id.map(moved),
                deps: task.deps,
                kind: kinds[task.kind],
            }
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
