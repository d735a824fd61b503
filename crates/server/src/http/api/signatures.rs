//! Failure signatures of a job: the last line that failed tasks wrote.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, State};
use hq_core::id::{JobId, TaskId, TaskKey};
use hq_core::signature::{sample, signature, without_paths};
use hq_store::reader::{FAILURES_MAX, timeline};

use super::answers::{Signature, Signatures};
use super::described::Id;
use super::{ApiError, KeptAnswer, id, past};
use crate::http::App;
use crate::words::{self, Words};

/// Number of the last failures whose output is read, spread over all of them. `hq job failures` reads more.
const READ_MAX: usize = 40;
/// Most different signatures that are listed.
const GROUPS_MAX: usize = 20;
/// An answer is used for no longer: it may have waited for a node that is silent.
const REST_MAX: Duration = Duration::from_secs(10);

/// Tasks that failed in one way and said the same.
struct Group {
    count: u64,
    first: u32,
    /// The common part of their last lines.
    words: String,
}

/// The signatures of the last failures, the most frequent first.
pub(in crate::http) async fn signatures(
    State(app): State<Arc<App>>,
    Path(job): Path<String>,
) -> KeptAnswer<Signatures> {
    let job = id(&job, "job")?;
    past::failed_count(&app, job).await?;
    let make = async {
        let (last, _) = past::rows(&app, timeline::failures(job), FAILURES_MAX.into()).await?;
        let chosen = sample(last.len(), READ_MAX).filter_map(|at| last.get(at));
        let chosen = chosen.filter_map(|row| Some((u32::try_from(row.task?).ok()?, &row.error)));
        let chosen: Vec<(u32, &String)> = chosen.collect();
        let key = |task: u32| TaskKey::new(JobId(job), TaskId(task));
        let keys: Vec<TaskKey> = chosen.iter().map(|(task, _)| key(*task)).collect();
        let said = words::read(&app.parts.core, &app.parts.questions, &keys).await;
        let mut groups = BTreeMap::<(String, String), Group>::new();
        let mut read = 0_u64;
        for ((task, error), said) in chosen.into_iter().zip(said) {
            let line = match said {
                Words::Said(line) => signature(&line),
                Words::Nothing => String::new(),
                Words::Unknown => continue,
            };
            read += 1;
            // Lines that differ in their paths only have one cause.
            let cause = without_paths(&line);
            let group = groups
                .entry((error.clone(), cause.clone()))
                .or_insert_with(|| Group {
                    count: 0,
                    first: task,
                    words: line.clone(),
                });
            if group.words != line {
                group.words = cause;
            }
            group.count += 1;
            group.first = group.first.min(task);
        }
        let mut groups: Vec<_> = groups.into_iter().collect();
        groups.sort_by_key(|(_, group)| std::cmp::Reverse(group.count));
        let rows = groups.into_iter().take(GROUPS_MAX);
        let rows = rows.map(|((error, _), group)| Signature {
            error,
            last_words: (!group.words.is_empty()).then_some(group.words),
            count: group.count,
            first: Id(group.first),
        });
        Ok::<_, ApiError>(Signatures {
            read,
            groups: rows.collect(),
        })
    };
    let name = format!("signatures {job}");
    app.kept.get_for(&name, REST_MAX, make).await
}
