//! Current problems, as JSON.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use hq_core::diagnosis::{Severity, Subject};
use hq_core::id::JobId;
use serde_json::{Value, json};

use super::json::ms;
use super::{ApiError, past};
use crate::http::App;
use crate::problems::{self, Problem};

/// An answer is used for no longer: it may have waited for a node that is silent, and people watch it.
const REST_MAX: Duration = Duration::from_secs(2);
/// Most findings that are listed.
const SHOWN_MAX: usize = 50;

/// All findings, those that need somebody first.
pub(in crate::http) async fn problems(State(app): State<Arc<App>>) -> Result<Response, ApiError> {
    let make = async {
        let (found, is_cut) = app.parts.problems.look().await?;
        let findings: Vec<Value> = found.iter().take(SHOWN_MAX).map(shape).collect();
        let open = found.iter().filter(|problem| problem.is_open()).count();
        Ok::<_, ApiError>(json!({
            "problems": findings, "count": found.len(), "open_count": open, "is_cut": is_cut,
        }))
    };
    Ok(past::as_json(
        app.kept.get_for("problems", REST_MAX, make).await?,
    ))
}

fn shape(problem: &Problem) -> Value {
    let finding = &problem.finding;
    let kind = problems::kind(&finding.subject);
    let worker = if let Subject::Node { worker, .. } = &finding.subject {
        Some(*worker)
    } else {
        None
    };
    json!({
        "key": problem.id,
        "severity": match finding.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
        },
        "kind": kind,
        "heading": finding.subject.heading(),
        "id": problems::number(&finding.subject),
        "host": matches!(kind, "node").then_some(&finding.title),
        "worker": worker,
        "title": finding.title,
        "text": finding.text,
        "part": finding.part,
        "whole": finding.whole,
        "since_ms": problem.since.map(|at| ms(at.0)),
        "last_ms": problem.last.map(|at| ms(at.0)),
        "is_over": problem.is_over,
        "is_acknowledged": problem.is_acknowledged,
        "resubmitted_as": problem.resubmitted_as.map(JobId::as_u32),
        "cause": problem.cause,
    })
}
