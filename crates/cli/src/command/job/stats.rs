//! `job stats`: shows percentiles of the run times, wait times and resource use of tasks.
//!
//! Fetches tasks page by page and reduces each task to four numbers. With `--suggest`, reduces them
//! to histograms.

use hq_protocol::client;

use super::suggest::{Groups, cpus};
use crate::args::job::StatsArgs;
use crate::client::JobInfo;
use crate::command::missing::{JOBS, Missing};
use crate::command::{Context, all_tasks};
use crate::error::CliResult;
use crate::output::format::elapsed;
use crate::output::view::template_of;
use crate::output::{Distribution, JobStatsView};

/// Shows the distribution of run times and resource use of the ended tasks.
pub(in crate::command) async fn stats(args: StatsArgs, context: &mut Context) -> CliResult<()> {
    let mut client = context.connect().await?;
    let infos = client.ask(JobInfo(&args.selector)).await?;
    let missing = Missing::of(infos.not_found.as_ref());
    missing.report_not_found("Job");
    if infos.jobs.is_empty() {
        return missing.end(JOBS, context);
    }
    let mut samples = Samples::default();
    let mut groups = Groups::default();
    for job in &infos.jobs {
        let id = job.summary.as_ref().map_or(0, |summary| summary.id);
        let mut next = Some(client::TaskPage {
            states: vec![
                client::TaskState::Finished.into(),
                client::TaskState::Failed.into(),
                client::TaskState::Canceled.into(),
                client::TaskState::Aborted.into(),
            ],
            with_definition: true,
            ..all_tasks(id)
        });
        while let Some(page) = client.next_page(&mut next).await? {
            if args.suggest {
                groups.add(&page);
            } else {
                samples.add(&page, job.submitted_unix_ns);
            }
        }
    }
    if args.suggest {
        context.show(&groups.into_suggestions())?;
        return missing.end(JOBS, context);
    }
    let view = samples.into_view();
    if args.csv {
        view.write_csv(context.out.data())?;
    } else {
        context.show(&view)?;
    }
    missing.end(JOBS, context)
}

/// One number per task and quantity.
#[derive(Default)]
struct Samples {
    run: Vec<f64>,
    /// The run times of tasks that were canceled or aborted while they were running. Their full run
    /// time is unknown.
    run_until_cancel: Vec<f64>,
    wait: Vec<f64>,
    rss: Vec<f64>,
    efficiency: Vec<f64>,
}

impl Samples {
    fn add(&mut self, page: &client::TaskPageReply, submitted: i64) {
        for task in &page.tasks {
            let (Some(start), Some(end)) = (task.started_unix_ns, task.finished_unix_ns) else {
                continue;
            };
            let run = elapsed(start, end).as_secs_f64();
            if matches!(
                task.state(),
                client::TaskState::Canceled | client::TaskState::Aborted
            ) {
                self.run_until_cancel.push(run);
            } else {
                self.run.push(run);
            }
            self.wait.push(elapsed(submitted, start).as_secs_f64());
            let Some(usage) = &task.usage else { continue };
            #[expect(
                clippy::cast_precision_loss,
                reason = "2^52 bytes of memory are enough"
            )]
            self.rss.push(usage.max_rss_kib.saturating_mul(1024) as f64);
            if let Some(template) = template_of(task, page)
                && let [request] = &*template.requests
                && let Some(cpus) = cpus(request)
                && run > 0.0
            {
                let used = usage.user_us.saturating_add(usage.system_us);
                let used = std::time::Duration::from_micros(used).as_secs_f64();
                self.efficiency.push(used / (run * cpus));
            }
        }
    }

    fn into_view(self) -> JobStatsView {
        JobStatsView {
            rows: [
                ("run_time", self.run),
                ("waiting_time", self.wait),
                ("max_rss", self.rss),
                ("cpu_efficiency", self.efficiency),
                ("run_until_cancel", self.run_until_cancel),
            ]
            .map(|(name, samples)| (name, Distribution::of(samples))),
        }
    }
}
