//! Why nothing of a job runs: asks the server about some jobs.

use hq_protocol::{client, why_nothing_runs};

use crate::client::Client;
use crate::dashboard::model::{JobRow, Obstacle, clean};
use crate::error::CliResult;

/// Jobs about which the server is asked.
const JOBS_MAX: usize = 40;

/// Asks about the first waiting task of jobs of which nothing runs.
pub(crate) async fn obstacles(client: &mut Client, jobs: &[JobRow]) -> CliResult<Vec<Obstacle>> {
    let mut found = Vec::new();
    for job in jobs.iter().filter(|job| job.is_starving()).take(JOBS_MAX) {
        let page = client::TaskPage {
            job: Some(client::task_page::Job::Id(job.id)),
            states: vec![client::TaskState::Waiting.into()],
            limit: 1,
            ..client::TaskPage::default()
        };
        let page = client.task_page(page).await?;
        let Some(task) = page.tasks.first() else {
            continue;
        };
        let explain = client::Explain {
            job: Some(client::explain::Job::Id(job.id)),
            task: task.id,
        };
        // The job may have been forgotten meanwhile.
        let why = client.explain(explain).await.ok();
        if let Some(why) = why.and_then(|explanation| why_nothing_runs(&explanation)) {
            found.push(Obstacle {
                job: job.id,
                why: clean(&why),
            });
        }
    }
    Ok(found)
}
