//! Queries why none of a job's tasks run.

use hq_protocol::why_nothing_runs;

use crate::client::Client;
use crate::dashboard::model::{JobRow, Obstacle, clean};
use crate::error::CliResult;

/// Maximum number of jobs to query.
const JOBS_MAX: usize = 40;

/// Queries the first waiting task of each job without running tasks.
pub(crate) async fn obstacles(client: &mut Client, jobs: &[JobRow]) -> CliResult<Vec<Obstacle>> {
    let mut found = Vec::new();
    for job in jobs.iter().filter(|job| job.is_starving()).take(JOBS_MAX) {
        let explained = client.explain_first_waiting(job.id).await?;
        if let Some(why) = explained.and_then(|(_, explanation)| why_nothing_runs(&explanation)) {
            found.push(Obstacle {
                job: job.id,
                why: clean(&why),
            });
        }
    }
    Ok(found)
}
