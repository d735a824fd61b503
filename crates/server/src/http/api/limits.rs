//! Limits across jobs.

use std::sync::Arc;

use axum::Json;
use axum::body::to_bytes;
use axum::extract::{Path, Request, State};
use hq_core::bound::{BOUND, Bound, LIMIT_NAME, LimitChange, is_limit_name};
use hq_core::refusal::Refusal;
use hq_core::server_state::{Command, Reply as Outcome};
use hq_protocol::client::reply::Reply;
use hq_protocol::convert::Query;

use super::actions::carry_out;
use super::answers::{Done, LimitList};
use super::described::{Shown, lossy, query};
use super::read::{accepted, unexpected};
use super::submit::ARRIVAL_MAX;
use super::{Answer, ApiError, Parameters, has_body, parameters};
use crate::http::App;
use crate::http::tokens::IssuedToken;
use crate::query;

/// The maximum length of a body in bytes.
const BODY_MAX: usize = 256;

/// Lists all limits.
pub(in crate::http) async fn list(State(app): State<Arc<App>>) -> Answer<LimitList> {
    let answer = query::ask(&app.parts.core, Query::Limits).await?;
    let Reply::Limits(found) = accepted(answer)? else {
        return Err(unexpected());
    };
    Ok(Json(LimitList::shown(&found)))
}

query! {
    /// The new limit.
    SetQuery {
        /// The limit, if it is not the body. Signed requests have no body.
        bound: Option<String>,
    }
}

/// Sets or changes a limit.
pub(in crate::http) async fn set(
    State(app): State<Arc<App>>,
    Path(name): Path<String>,
    asked: Parameters<SetQuery>,
    request: Request,
) -> Answer<Done> {
    let text = match parameters(asked)?.bound {
        Some(_) if has_body(request.headers()) => {
            return Err(ApiError::bad(
                "expected the limit as the body or as `bound`, found both",
            ));
        }
        Some(bound) => bound,
        None => receive(request).await?,
    };
    let bound = text.trim().parse();
    let bound =
        bound.map_err(|_| ApiError::bad(format!("expected {BOUND}, found `{}`", text.trim())))?;
    change(&app, name, (Some(bound), false)).await
}

/// Receives a short body.
async fn receive(request: Request) -> Result<String, ApiError> {
    let issued = request.extensions().get::<Arc<IssuedToken>>().cloned();
    let body = tokio::time::timeout(ARRIVAL_MAX, to_bytes(request.into_body(), BODY_MAX)).await;
    if issued.is_some_and(|issued| issued.is_revoked()) {
        return Err(ApiError::revoked());
    }
    let Ok(Ok(body)) = body else {
        return Err(ApiError::bad(format!(
            "expected a limit as the body, in at most {BODY_MAX} bytes"
        )));
    };
    Ok(lossy(&body))
}

query! {
    /// How to remove a limit.
    RemoveQuery {
        /// Whether to remove it although unfinished tasks count toward it.
        force: Option<bool>,
    }
}

/// Removes a limit.
pub(in crate::http) async fn remove(
    State(app): State<Arc<App>>,
    Path(name): Path<String>,
    asked: Parameters<RemoveQuery>,
) -> Answer<Done> {
    let is_forced = parameters(asked)?.force.unwrap_or(false);
    change(&app, name, (None, is_forced)).await
}

async fn change(
    app: &App,
    name: String,
    (bound, is_forced): (Option<Bound>, bool),
) -> Answer<Done> {
    if !is_limit_name(&name) {
        return Err(ApiError::bad(format!(
            "expected {LIMIT_NAME}, found `{name}`"
        )));
    }
    let command = Command::Limit(LimitChange {
        name: name.into(),
        bound,
        is_forced,
    });
    let Outcome::Limit(changed) = carry_out(app, command).await? else {
        return Err(unexpected());
    };
    changed.map_err(|Refusal { kind, text, .. }| {
        let text = text.replace("--force", "force=true");
        ApiError::from(Refusal::new(kind, text))
    })?;
    Ok(Json(Done { done: true }))
}
