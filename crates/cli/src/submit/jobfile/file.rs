//! A parsed job file. Its tasks are kept in this form until they are checked.

use std::fmt;

use hq_core::bound::{LimitUse, Rate};
use indexmap::IndexSet;
use serde::Deserialize;
use serde::de::{Deserializer, SeqAccess, Visitor};

use super::schema::{ArrayTable, TaskKey, TaskTable};
use crate::args::submit::TaskOptions;
use crate::parse::file_value;

/// The whole file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FileTable {
    #[serde(default, deserialize_with = "file_value::job_name")]
    pub(super) name: String,
    pub(super) max_fails: Option<u32>,
    #[serde(default, deserialize_with = "file_value::limit_uses")]
    pub(super) limit: Vec<LimitUse>,
    #[serde(default, deserialize_with = "file_value::running")]
    pub(super) max_running: Option<u32>,
    #[serde(default, deserialize_with = "file_value::rate")]
    pub(super) max_rate: Option<Rate>,
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
    pub(super) kinds: IndexSet<TaskOptions>,
}

/// The data that a task does not share.
pub(super) struct ListedTask {
    pub(super) id: Option<TaskKey>,
    pub(super) deps: Vec<TaskKey>,
    /// The index of its other data among the kinds.
    pub(super) kind: usize,
}

impl Tasks {
    pub(super) const fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub(super) fn reserve(&mut self, count: usize) {
        self.list.reserve_exact(count);
    }

    fn push(&mut self, table: TaskTable) {
        let TaskTable { id, deps, options } = table;
        let previous = self.list.last().map(|task| task.kind);
        let kind = previous
            .filter(|kind| self.kinds[*kind] == options)
            .unwrap_or_else(|| self.kinds.insert_full(options).0);
        self.list.push(ListedTask { id, deps, kind });
    }

    /// Appends the tasks of a later part of the file.
    pub(super) fn append(&mut self, later: Self) {
        let kinds = later.kinds.into_iter();
        let kinds: Vec<usize> = kinds.map(|kind| self.kinds.insert_full(kind).0).collect();
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
