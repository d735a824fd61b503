//! `/api/v1`: data for dashboards, and a few actions. Described in `docs/openapi.yaml`.
//!
//! Lists are split into pages, so that no request makes the core do more work than one page needs.
//! Errors are `{"error": "…"}` with a human-readable message. For rejections by the core, programs
//! can use `kind`.

mod actions;
mod answers;
mod costs;
mod described;
mod events;
mod json;
mod limits;
mod params;
mod past;
mod problems;
mod read;
mod signatures;
mod submit;
mod views;
mod wait;

use std::sync::Arc;

use axum::Router;
use axum::extract::rejection::QueryRejection;
use axum::extract::{DefaultBodyLimit, Query as UrlQuery};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use hq_core::id::JobId;
use hq_core::job::Job;
use hq_core::limits::shortened;
use hq_core::refusal::{Refusal, RefusalKind};

use super::App;
use super::kept::CachedJson;
use super::packed::Packed;
use crate::core_handle::View;
pub(super) use answers::{Error, ErrorKind};
pub use submit::{JobFormat, JobText, ReadJob};
pub(super) use views::Graphs;

/// The machine-readable description of the interface.
const OPEN_API: Packed = Packed::new(include_bytes!(concat!(env!("OUT_DIR"), "/openapi.yaml.gz")));

/// The maximum length of an error text in bytes.
const TEXT_MAX: usize = 2 << 10;

/// The reason why a request failed.
#[derive(Debug)]
pub(super) struct ApiError(StatusCode, String, Option<RefusalKind>);

impl ApiError {
    pub(super) fn bad(text: impl Into<String>) -> Self {
        // The listener limits the length of a quoted address. Other texts are shorter.
        let text = shortened(&Into::<String>::into(text), TEXT_MAX);
        Self(StatusCode::BAD_REQUEST, text, None)
    }

    /// Creates the error for a request that the current state does not permit.
    pub(super) fn conflict(text: impl Into<String>) -> Self {
        Refusal::conflict(Into::<String>::into(text)).into()
    }

    pub(super) fn not_found(text: impl Into<String>) -> Self {
        Refusal::not_found(Into::<String>::into(text)).into()
    }

    pub(super) fn busy(text: &str) -> Self {
        Refusal::unavailable(text).into()
    }

    /// Creates the error for a request whose token was revoked after it had begun.
    pub(super) fn revoked() -> Self {
        let text = "the token was revoked before the request was complete".to_owned();
        Self(StatusCode::UNAUTHORIZED, text, None)
    }

    pub(super) fn gone() -> Self {
        Refusal::shutting_down().into()
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let body = Error {
            error: self.1,
            kind: self.2.map(ErrorKind::from),
        };
        (self.0, axum::Json(body)).into_response()
    }
}

/// Returns the HTTP status of a rejection.
const fn status(kind: RefusalKind) -> StatusCode {
    match kind {
        RefusalKind::NotFound => StatusCode::NOT_FOUND,
        // The request itself was understood, or it would not have reached the core.
        RefusalKind::Conflict
        | RefusalKind::Invalid
        | RefusalKind::TooLarge
        | RefusalKind::Failed => StatusCode::CONFLICT,
        RefusalKind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
    }
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> Self {
        Self(
            status(refusal.kind),
            refusal.text.into(),
            Some(refusal.kind),
        )
    }
}

impl From<crate::core_handle::CoreGone> for ApiError {
    fn from(_: crate::core_handle::CoreGone) -> Self {
        Self::gone()
    }
}

/// The answer of a handler.
type Answer<T> = Result<axum::Json<T>, ApiError>;

/// An answer that is cached for a while.
type KeptAnswer<T> = Result<CachedJson<T>, ApiError>;

/// Returns all routes below `/api/v1`.
pub(super) fn router() -> Router<Arc<App>> {
    Router::new()
        .route("/openapi.yaml", get(open_api))
        .route("/server", get(read::server))
        .route("/summary", get(read::summary))
        .route("/jobs", get(read::jobs).post(submit::submit))
        .route("/jobs/open", post(submit::open))
        .route("/jobs/{job}", get(read::job))
        .route("/jobs/{job}/wait", get(wait::wait))
        .route("/jobs/{job}/tasks", get(read::tasks).post(submit::attach))
        .route("/jobs/{job}/tasks/{task}", get(views::task))
        .route(
            "/jobs/{job}/tasks/{task}/cancel",
            post(actions::cancel_task),
        )
        .route(
            "/jobs/{job}/tasks/{task}/signal",
            post(actions::signal_task),
        )
        .route("/jobs/{job}/tasks/{task}/hold", post(actions::hold_task))
        .route(
            "/jobs/{job}/tasks/{task}/release",
            post(actions::release_task),
        )
        .route("/jobs/{job}/tasks/{task}/output", get(read::output))
        .route("/jobs/{job}/tasks/{task}/explain", get(views::explain))
        .route("/jobs/{job}/strip", get(views::strip))
        .route("/jobs/{job}/parameters", get(params::table))
        .route("/jobs/{job}/failures", get(past::failures))
        .route("/jobs/{job}/signatures", get(signatures::signatures))
        .route("/jobs/{job}/graph", get(views::graph))
        .route("/jobs/{job}/close", post(actions::close))
        .route("/jobs/{job}/cancel", post(actions::cancel))
        .route("/jobs/{job}/hold", post(actions::hold))
        .route("/jobs/{job}/release", post(actions::release))
        .route("/jobs/{job}/resubmit", post(actions::resubmit))
        .route("/workers", get(read::workers))
        .route("/workers/{worker}/stop", post(actions::stop_worker))
        .route("/workers/{worker}/drain", post(actions::drain_worker))
        .route("/workers/{worker}/release", post(actions::release_worker))
        .route("/queues", get(read::queues))
        .route("/queues/{queue}/pause", post(actions::pause_queue))
        .route("/queues/{queue}/resume", post(actions::resume_queue))
        .route("/limits", get(limits::list))
        .route("/limits/{name}", put(limits::set).delete(limits::remove))
        .route("/history", get(read::history))
        .route("/costs", get(costs::costs))
        .route("/ended", get(past::ended))
        .route("/problems", get(problems::problems))
        .route("/problems/{key}/acknowledge", post(actions::acknowledge))
        .route("/problems/{key}/take-back", post(actions::take_back))
        .route("/timeline", get(past::bars))
        .route("/log", get(past::log))
        .route("/events", get(events::stream))
        .layer(DefaultBodyLimit::max(submit::DESCRIPTION_MAX))
        .fallback(async || {
            ApiError::not_found("this resource does not exist; see /api/v1/openapi.yaml")
        })
        .method_not_allowed_fallback(async || {
            ApiError(
                StatusCode::METHOD_NOT_ALLOWED,
                "this resource does not support the method".to_owned(),
                None,
            )
        })
}

/// Returns whether a request with this path waits for an event.
pub(super) fn is_waiting(path: &str) -> bool {
    path.ends_with("/wait") || path.ends_with("/events")
}

/// Returns whether the headers announce a body. A request that announces none has none (RFC 9112,
/// section 6.3).
pub(super) fn has_body(headers: &HeaderMap) -> bool {
    let mut lengths = headers.get_all(header::CONTENT_LENGTH).iter();
    headers.contains_key(header::TRANSFER_ENCODING) || lengths.any(|length| length != "0")
}

async fn open_api(headers: HeaderMap) -> impl IntoResponse {
    let kind = [
        ("content-type", "application/yaml"),
        ("vary", "accept-encoding"),
    ];
    (kind, OPEN_API.response(&headers))
}

/// The parameters of the query string.
type Parameters<T> = Result<UrlQuery<T>, QueryRejection>;

/// Returns the parameters if they are valid.
fn parameters<T>(found: Parameters<T>) -> Result<T, ApiError> {
    found
        .map(|UrlQuery(found)| found)
        .map_err(|rejection| ApiError::bad(rejection.body_text()))
}

/// Parses a number in the path.
pub(super) fn id(text: &str, what: &str) -> Result<u32, ApiError> {
    text.parse().map_err(|_| {
        ApiError::bad(format!(
            "expected a number as the id of a {what}, found `{text}`"
        ))
    })
}

/// Reads something of a job on the core's thread.
async fn look_at_job<T: Send + 'static>(
    app: &App,
    job: u32,
    read: impl FnOnce(&View<'_>, &Job) -> T + Send + 'static,
) -> Result<T, ApiError> {
    let looked = app.parts.core.query(move |view| {
        let job = view.state.jobs().get(&JobId(job))?;
        Some(read(view, job))
    });
    let missing = || ApiError::not_found(format!("there is no job {job}"));
    looked.await?.ok_or_else(missing)
}

/// Checks that a number from the query string is within its bounds.
pub(super) fn bounded<T: PartialOrd + std::fmt::Display>(
    name: &str,
    found: Option<T>,
    usual: T,
    bounds: std::ops::RangeInclusive<T>,
) -> Result<T, ApiError> {
    let found = found.unwrap_or(usual);
    if bounds.contains(&found) {
        return Ok(found);
    }
    Err(ApiError::bad(format!(
        "expected {name} from {} to {}, found {found}",
        bounds.start(),
        bounds.end()
    )))
}

#[cfg(test)]
mod tests;
