//! Why nothing of a job runs: asks the server about some jobs.

use hq_protocol::why_nothing_runs;

use crate::client::Client;
use crate::dashboard::model::{JobRow, Obstacle, clean};
use crate::error::CliResult;

/// Jobs about which the server is asked.
const JOBS_MAX: usize = 40;

/// Asks about the first waiting task of jobs of which nothing runs.
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
