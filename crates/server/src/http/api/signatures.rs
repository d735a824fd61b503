//! The failure signatures of a job: the last lines that its failed tasks wrote.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, State};
use hq_core::id::{JobId, TaskId, TaskKey};
use hq_core::limits::shortened;
use hq_core::signature::{sample, signature, without_paths};
use hq_store::reader::FAILURES_MAX;
use hq_store::reader::timeline::{self, FailureRow};

use super::answers::{Signature, Signatures};
use super::described::Id;
use super::params::TaskParams;
use super::{ApiError, KeptAnswer, id, params, past};
use crate::http::App;
use crate::words::{self, Words};

/// The number of failed tasks whose output is read, evenly spread over the recent failures.
/// `hq job failures` reads more.
const READ_MAX: usize = 40;
/// The maximum number of different signatures that are listed.
const GROUPS_MAX: usize = 20;
/// The maximum length of an example, in bytes.
const EXAMPLE_MAX: usize = 300;
/// How long a cached answer may be used. Its cost may be mostly waiting for a silent node.
const REST_MAX: Duration = Duration::from_secs(10);

/// Failed tasks with the same error and signature.
struct Group {
    count: u64,
    first: u32,
    /// The common part of their last lines.
    words: String,
    /// The last line of the task `first`.
    example: String,
    /// The parameter values that all of them share.
    params: Option<TaskParams>,
}

impl Group {
    fn add(
        &mut self,
        task: u32,
        line: &str,
        words: String,
        cause: String,
        params: Option<TaskParams>,
    ) {
        self.count += 1;
        if self.words != words {
            self.words = cause;
        }
        if task < self.first {
            self.first = task;
            line.clone_into(&mut self.example);
        }
        let params = params.unwrap_or_default();
        if let Some(shared) = &mut self.params {
            shared.retain(|name, value| params.get(name) == Some(value));
        }
    }
}

/// Returns the signatures of the last failures, most frequent first.
pub(in crate::http) async fn signatures(
    State(app): State<Arc<App>>,
    Path(job): Path<String>,
) -> KeptAnswer<Signatures> {
    let job = id(&job, "job")?;
    past::failed_count(&app, job).await?;
    let make = async {
        let (last, _) = past::rows(&app, timeline::failures(job), FAILURES_MAX.into()).await?;
        let chosen = sample(last.len(), READ_MAX).filter_map(|at| last.get(at));
        let chosen: Vec<&FailureRow> = chosen.collect();
        let key = |row: &&FailureRow| TaskKey::new(JobId(job), TaskId(row.task));
        let keys: Vec<TaskKey> = chosen.iter().map(key).collect();
        let said = words::read(&app.parts.core, &app.parts.questions, &keys).await;
        let tasks = chosen.iter().map(|row| row.task).collect();
        let params = params::of_tasks(&app, job, tasks).await?;
        let params = params.into_iter().chain(std::iter::repeat(None));
        let mut groups = BTreeMap::<(String, String), Group>::new();
        let mut read = 0_u64;
        for ((row, said), params) in chosen.into_iter().zip(said).zip(params) {
            let line = match said {
                Words::Said(line) => line,
                Words::Nothing => String::new(),
                Words::Unknown => continue,
            };
            read += 1;
            let words = signature(&line);
            // Lines that differ only in paths have the same cause.
            let cause = without_paths(&words);
            match groups.entry((row.error.clone(), cause.clone())) {
                Entry::Occupied(mut group) => {
                    group.get_mut().add(row.task, &line, words, cause, params)
                }
                Entry::Vacant(place) => {
                    place.insert(Group {
                        count: 1,
                        first: row.task,
                        words,
                        example: line,
                        params,
                    });
                }
            }
        }
        let mut groups: Vec<_> = groups.into_iter().collect();
        groups.sort_by_key(|(_, group)| std::cmp::Reverse(group.count));
        let rows = groups.into_iter().take(GROUPS_MAX);
        let rows = rows.map(|((error, _), group)| Signature {
            error,
            last_words: (!group.words.is_empty()).then_some(group.words),
            example: (!group.example.is_empty()).then(|| shortened(&group.example, EXAMPLE_MAX)),
            params: group.params.filter(|params| !params.is_empty()),
            count: group.count,
            first: Id(group.first),
        });
        Ok::<_, ApiError>(Signatures {
            read,
            groups: rows.collect(),
        })
    };
    let name = format!("signatures {job}");
    app.kept.get(name, (None, REST_MAX), make).await
}
