//! The current problems as JSON.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use hq_core::diagnosis::{Severity, Subject};
use hq_core::id::JobId;

use super::answers::{self, ProblemKind, ProblemList, ProblemSeverity};
use super::json::ms;
use super::{ApiError, KeptAnswer};
use crate::http::App;
use crate::problems::{self, Problem};

/// How long a cached answer may be used. Its cost may be mostly waiting for a silent node, and
/// users watch this list.
const REST_MAX: Duration = Duration::from_secs(2);
/// The maximum number of listed problems.
const SHOWN_MAX: usize = 50;

/// Lists all problems, unacknowledged ones first.
pub(in crate::http) async fn problems(State(app): State<Arc<App>>) -> KeptAnswer<ProblemList> {
    let make = async {
        let (found, is_cut) = app.parts.problems.look().await?;
        Ok::<_, ApiError>(ProblemList {
            problems: found.iter().take(SHOWN_MAX).map(shape).collect(),
            count: found.len(),
            open_count: found.iter().filter(|problem| problem.is_open()).count(),
            is_cut,
        })
    };
    app.kept.get_for("problems", REST_MAX, make).await
}

fn shape(problem: &Problem) -> answers::Problem {
    let finding = &problem.finding;
    let (kind, host, worker) = match &finding.subject {
        Subject::Node { worker, .. } => (
            ProblemKind::Node,
            Some(finding.title.clone()),
            Some(*worker),
        ),
        Subject::FailingJob(_) => (ProblemKind::FailingJob, None, None),
        Subject::FailedTasks(_) => (ProblemKind::FailedTasks, None, None),
        Subject::LostWorkers => (ProblemKind::LostWorkers, None, None),
        Subject::Unkillable => (ProblemKind::Unkillable, None, None),
        Subject::MemoryLimits => (ProblemKind::MemoryLimits, None, None),
        Subject::Queue(_) => (ProblemKind::Queue, None, None),
        Subject::StarvingJob(_) => (ProblemKind::StarvingJob, None, None),
        Subject::NotedJob(_) => (ProblemKind::DoubtfulJob, None, None),
        Subject::Internal => (ProblemKind::Internal, None, None),
        Subject::Journal { .. } => (ProblemKind::Journal, None, None),
    };
    answers::Problem {
        key: problem.id.clone(),
        severity: match finding.severity {
            Severity::Error => ProblemSeverity::Error,
            Severity::Warning => ProblemSeverity::Warning,
        },
        kind,
        heading: finding.subject.heading(),
        id: problems::number(&finding.subject),
        host,
        worker,
        title: finding.title.clone(),
        text: finding.text.clone(),
        part: finding.part,
        whole: finding.whole,
        since_ms: problem.since.map(|at| ms(at.0)),
        last_ms: problem.last.map(|at| ms(at.0)),
        is_over: problem.is_over,
        is_acknowledged: problem.is_acknowledged,
        resubmitted_as: problem.resubmitted_as.map(JobId::as_u32),
        cause: problem.cause.clone(),
    }
}
