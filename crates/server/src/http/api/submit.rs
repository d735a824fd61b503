//! `POST /jobs` and `POST /jobs/{job}/tasks`: programs describe tasks in the format of job files.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Bytes;
use axum::extract::{FromRequest as _, Path, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use hq_core::error_chain::ErrorChain;
use hq_core::id::JobId;
use hq_core::limits::shortened;
use hq_core::refusal::{Refusal, RefusalKind};
use hq_core::server_state::{Command, Reply as Outcome, Submission, SubmitKey};
use hq_core::template::SubmitSpec;
use hq_protocol::admission::actor;
use hq_protocol::client;
use ring::digest;

use super::answers::{Opened, Submitted};
use super::described::{Id, query};
use super::read::unexpected;
use super::{Answer, ApiError, Parameters, has_body, id, parameters};
use crate::http::App;
use crate::http::secret::hex;
use crate::http::tokens::IssuedToken;
use crate::request_shares::DESCRIPTIONS;

/// The maximum size of a job description in bytes.
pub(super) const DESCRIPTION_MAX: usize = 64 << 20;

/// How long a body may take to arrive.
pub(super) const ARRIVAL_MAX: Duration = Duration::from_secs(60);

/// The maximum length of a submit's key.
const KEY_LEN_MAX: usize = 255;

/// The format of a description.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum JobFormat {
    /// `application/json`.
    Json,
    /// `application/toml`: a job file.
    Toml,
    /// `application/yaml`: a job file.
    Yaml,
}

impl JobFormat {
    fn of(headers: &HeaderMap) -> Result<Self, ApiError> {
        let told = headers.get(header::CONTENT_TYPE);
        let told = told.and_then(|value| value.to_str().ok()).unwrap_or("");
        let kind = told.split(';').next().unwrap_or("").trim();
        match kind.to_ascii_lowercase().as_str() {
            "application/json" => Ok(Self::Json),
            "application/toml" => Ok(Self::Toml),
            "application/yaml" => Ok(Self::Yaml),
            _ => {
                let found = if kind.is_empty() { "nothing" } else { kind };
                let text = format!(
                    "expected application/json, application/toml or application/yaml as Content-Type, found {found}"
                );
                let text = shortened(&text, super::TEXT_MAX);
                Err(ApiError(StatusCode::UNSUPPORTED_MEDIA_TYPE, text, None))
            }
        }
    }
}

/// A job description as received.
#[derive(Clone, Copy, Debug)]
pub struct JobText<'a> {
    /// The description.
    pub text: &'a str,
    /// The format of the description.
    pub format: JobFormat,
    /// The absolute directory against which paths in the description are resolved.
    pub submit_dir: &'a std::path::Path,
    /// The uid of the server, which paths may contain.
    pub server_uid: &'a str,
    /// The open job that gets the tasks. `None` for a new job.
    pub open_job: Option<JobId>,
}

/// Parses a job description. Returns the submit and warnings in sentences, or the reason why the
/// description is invalid.
pub type ReadJob = fn(JobText<'_>) -> Result<(SubmitSpec, Vec<String>), String>;

query! {
    /// The parameters of a submit. Unknown parameters are rejected: if they were ignored, the
    /// submit would not be the intended one.
    #[serde(deny_unknown_fields)]
    SubmitQuery {
        /// The directory of the user on the workers' machines. Paths in the description are
        /// relative to it.
        submit_dir: String,
    }
}

pub(in crate::http) async fn submit(
    State(app): State<Arc<App>>,
    asked: Parameters<SubmitQuery>,
    request: Request,
) -> Answer<Submitted> {
    take(&app, None, parameters(asked)?, request).await
}

/// Adds tasks to an open job.
pub(in crate::http) async fn attach(
    State(app): State<Arc<App>>,
    Path(job): Path<String>,
    asked: Parameters<SubmitQuery>,
    request: Request,
) -> Answer<Submitted> {
    let job = JobId(id(&job, "job")?);
    take(&app, Some(job), parameters(asked)?, request).await
}

async fn take(
    app: &App,
    open_job: Option<JobId>,
    SubmitQuery { submit_dir }: SubmitQuery,
    request: Request,
) -> Answer<Submitted> {
    if !submit_dir.starts_with('/') || submit_dir.contains('\0') {
        return Err(ApiError::bad(format!(
            "expected an absolute path as submit_dir, found `{submit_dir}`"
        )));
    }
    let format = JobFormat::of(request.headers())?;
    let name = key_name(request.headers())?;
    let Some(read_job) = app.read_job else {
        return Err(ApiError::busy(
            "this server does not accept job descriptions",
        ));
    };
    let issued = request.extensions().get::<Arc<IssuedToken>>().cloned();
    let permit = DESCRIPTIONS.enter(actor()).await;
    let body = receive(request).await;
    let check_token = || match issued.as_ref().is_some_and(|issued| issued.is_revoked()) {
        true => Err(ApiError::revoked()),
        false => Ok(()),
    };
    check_token()?;
    let body = body?;
    let uid = app.parts.info.server_uid.clone();
    let reading = tokio::task::spawn_blocking(move || {
        let key = name.map(|name| SubmitKey {
            digest: digest(open_job, &submit_dir, &body),
            name,
        });
        let text = std::str::from_utf8(&body).map_err(|error| {
            format!(
                "expected UTF-8, found other bytes behind the first {}",
                error.valid_up_to()
            )
        })?;
        let text = JobText {
            text,
            format,
            submit_dir: std::path::Path::new(&submit_dir),
            server_uid: &uid,
            open_job,
        };
        let (spec, warnings) = read_job(text)?;
        let listed = spec.body.listed();
        let submission = Submission::one(checked(&spec)?, key);
        Ok::<_, String>((listed, submission, warnings))
    });
    let (listed, submission, warnings) = reading
        .await
        .map_err(|_| unexpected())?
        .map_err(|text| invalid(&text))?;
    check_token()?;
    let outcome = app.parts.core.submit(listed, || submission).await?;
    drop(permit);
    let job = accepted(outcome.map_err(ApiError::from)?)?;
    Ok(Json(Submitted { job, warnings }))
}

/// Returns the job that was created or extended.
fn accepted(outcome: Outcome) -> Result<Id, ApiError> {
    match outcome {
        Outcome::Submitted(job) => Ok(Id(job.as_u32())),
        Outcome::Refused(why) => Err(Refusal::from(&why).into()),
        Outcome::SubmittedAll(_)
        | Outcome::Jobs(_)
        | Outcome::Resubmitted(_)
        | Outcome::Signaled(_)
        | Outcome::Changed(_)
        | Outcome::Limit(_)
        | Outcome::Forgotten { .. }
        | Outcome::Queue(_)
        | Outcome::Workers(_) => Err(unexpected()),
    }
}

/// Performs the same checks as for a client's submit, because the parser is not trusted.
fn checked(spec: &SubmitSpec) -> Result<Box<SubmitSpec>, String> {
    let checked = SubmitSpec::try_from(client::Submit::from(spec));
    checked
        .map(Box::new)
        .map_err(|error| ErrorChain(&error).to_string())
}

query! {
    /// The job to open. Unknown parameters are rejected, as for a submit.
    #[serde(deny_unknown_fields)]
    OpenQuery {
        name: Option<String>,
        max_fails: Option<u32>,
    }
}

/// Opens a job without tasks.
pub(in crate::http) async fn open(
    State(app): State<Arc<App>>,
    asked: Parameters<OpenQuery>,
    headers: HeaderMap,
) -> Answer<Opened> {
    let OpenQuery { name, max_fails } = parameters(asked)?;
    if has_body(&headers) {
        // Otherwise a job would be opened without the limit in the body.
        return Err(ApiError::bad(
            "expected no body, found one: name and max_fails go behind a `?`, as in /jobs/open?name=sweep&max_fails=10",
        ));
    }
    let name = name.unwrap_or_else(|| "job".to_owned());
    if name.contains(['\n', '\t']) {
        return Err(ApiError::bad(
            "expected a name without newlines and tabs, found one with them",
        ));
    }
    let key = key_name(&headers)?.map(|key| SubmitKey {
        digest: opened_digest(&name, max_fails),
        name: key,
    });
    let command = Command::OpenJob {
        name: name.into(),
        max_fails,
        key,
    };
    let outcome = app.parts.core.command(command).await?;
    let job = accepted(outcome.map_err(ApiError::from)?)?;
    Ok(Json(Opened { job }))
}

/// Returns the digest of a job that is opened.
fn opened_digest(name: &str, max_fails: Option<u32>) -> Box<str> {
    let mut context = digest::Context::new(&digest::SHA256);
    context.update(format!("open {max_fails:?}\0{name}").as_bytes());
    hex(context.finish().as_ref()).into()
}

/// Returns the client's key, which identifies repetitions of the submit.
fn key_name(headers: &HeaderMap) -> Result<Option<Box<str>>, ApiError> {
    let Some(told) = headers.get("idempotency-key") else {
        return Ok(None);
    };
    let is_plain = |text: &&str| {
        (1..=KEY_LEN_MAX).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
    };
    match told.to_str().ok().filter(is_plain) {
        Some(name) => Ok(Some(name.into())),
        None => Err(ApiError::bad(format!(
            "expected 1 to {KEY_LEN_MAX} visible ASCII characters without spaces as Idempotency-Key"
        ))),
    }
}

/// Returns a digest that distinguishes different submits with the same key.
fn digest(open_job: Option<JobId>, submit_dir: &str, body: &[u8]) -> Box<str> {
    let mut context = digest::Context::new(&digest::SHA256);
    if let Some(job) = open_job {
        // Directories start with a slash, so this cannot be confused with a submit without a job.
        context.update(format!("{job}\0").as_bytes());
    }
    context.update(submit_dir.as_bytes());
    context.update(&[0]);
    context.update(body);
    hex(context.finish().as_ref()).into()
}

/// Receives the body, up to the maximum size.
async fn receive(request: Request) -> Result<Bytes, ApiError> {
    let length = request.headers().get(header::CONTENT_LENGTH);
    let length = length.and_then(|length| length.to_str().ok()?.parse().ok());
    if length.is_some_and(|length: u64| length > DESCRIPTION_MAX as u64) {
        return Err(too_large());
    }
    let arriving = tokio::time::timeout(ARRIVAL_MAX, Bytes::from_request(request, &())).await;
    let Ok(arrived) = arriving else {
        let text = format!("the description did not arrive within {ARRIVAL_MAX:?}");
        return Err(ApiError(StatusCode::REQUEST_TIMEOUT, text, None));
    };
    arrived.map_err(|rejection| match rejection.status() {
        StatusCode::PAYLOAD_TOO_LARGE => too_large(),
        _ => ApiError::bad(rejection.body_text()),
    })
}

fn too_large() -> ApiError {
    let text = format!(
        "the description has more than {DESCRIPTION_MAX} bytes; write large data to files, and pass their paths to tasks"
    );
    ApiError(
        StatusCode::PAYLOAD_TOO_LARGE,
        text,
        Some(RefusalKind::TooLarge),
    )
}

fn invalid(text: &str) -> ApiError {
    let text = shortened(text, super::TEXT_MAX);
    ApiError(StatusCode::BAD_REQUEST, text, Some(RefusalKind::Invalid))
}
