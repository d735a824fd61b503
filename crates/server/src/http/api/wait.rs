//! Waiting until a job ends.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Path, State};
use hq_core::range::IdArray;
use hq_core::selector::Selector;
use hq_core::server_state::{RequestId, WatchSpec};

use super::answers::Waited;
use super::described::query;
use super::{Answer, ApiError, Parameters, bounded, id, parameters, read};
use crate::core_handle::{CoreHandle, Event};
use crate::http::App;
use crate::updates::Details;

/// How long a request waits by default, in milliseconds.
const USUAL_MS: u64 = 30_000;
/// How long a request may wait, in milliseconds. Proxies end longer requests.
const WAIT_MAX_MS: u64 = 600_000;

query! {
    /// How long to wait.
    WaitQuery {
        timeout_ms: Option<u64>,
    }
}

pub(in crate::http) async fn wait(
    State(app): State<Arc<App>>,
    Path(job): Path<String>,
    asked: Parameters<WaitQuery>,
) -> Answer<Waited> {
    let timeout = parameters(asked)?.timeout_ms;
    let timeout = bounded("timeout_ms", timeout, USUAL_MS, 0..=WAIT_MAX_MS)?;
    let number = id(&job, "job")?;
    let spec = WatchSpec {
        jobs: Selector::Ids(IdArray::single(number)),
        until_idle: false,
        with_progress: false,
        with_outcomes: false,
        with_notifications: false,
        interval: Duration::ZERO,
    };
    let core = &app.parts.core;
    let (request, mut updates) = core.watch(spec, Details::default()).await?;
    let _watch = Watch(core.clone(), request);
    let ends = async {
        while let Some(update) = updates.recv().await {
            if update.done {
                return Ok(());
            }
        }
        // The watch ended without `done`, because the server ends.
        Err(ApiError::gone())
    };
    let is_ended = match tokio::time::timeout(Duration::from_millis(timeout), ends).await {
        Ok(ended) => ended.map(|()| true)?,
        Err(_) => false,
    };
    // An unknown job counts as ended immediately. The following line returns the error for it.
    let Json(job) = read::job(State(Arc::clone(&app)), Path(job)).await?;
    Ok(Json(Waited { is_ended, job }))
}

/// Ends the watch when its client has disconnected.
struct Watch(CoreHandle, RequestId);

impl Drop for Watch {
    fn drop(&mut self) {
        let (core, request) = (self.0.clone(), self.1);
        // After the server has ended, there is no runtime.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                // Fails only if the core has ended.
                let _ = core.send(Event::Unwatch(request)).await;
            });
        }
    }
}
