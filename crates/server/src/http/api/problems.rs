//! The current problems as JSON.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;

use super::answers::ProblemList;
use super::described::Shown;
use super::{ApiError, KeptAnswer};
use crate::http::App;
use crate::problems::is_open;

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
            problems: found.iter().take(SHOWN_MAX).map(Shown::shown).collect(),
            count: found.len(),
            open_count: found.iter().filter(|one| is_open(one)).count(),
            is_cut,
        })
    };
    let name = "problems".to_owned();
    app.kept.get(name, (None, REST_MAX), make).await
}
