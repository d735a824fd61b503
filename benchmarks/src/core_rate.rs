//! `core-rate`: the server's state machine alone.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use clap::Args;
use hq_core::id::{InstanceId, JobId, TaskId, TaskKey, WorkerId};
use hq_core::outcome::{Outcome, Usage};
use hq_core::server_state::{
    Command, Effect, EndedRow, Input, LinkId, Report, RequestId, ServerState, WorkerCommand,
    WorkerMessage,
};
use hq_core::testing::{array_submit, template, worker_config};
use hq_core::time::{Now, Time, Timestamp};

/// The number of rows in one report.
const REPORT_ROWS: usize = 64;

/// What does a task cost the server's state machine, without sockets or processes, and how does
/// that cost grow with the number of workers?
///
/// Workers end all their tasks at once, in reports of 64. The baseline is a single worker in the
/// same run.
#[derive(Args)]
pub(crate) struct Options {
    /// The number of tasks in one run.
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    tasks: u32,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let mut baseline = None;
    for workers in [1, 10, 100, 1_000] {
        let (took, longest) = play(options.tasks, workers)?;
        let per_task = took.as_secs_f64() * 1e9 / f64::from(options.tasks);
        let ratio = per_task / *baseline.get_or_insert(per_task);
        println!(
            "{workers:5} workers: {per_task:6.0} ns a task ({ratio:.2} of one worker), \
             longest step {longest:.1?}"
        );
    }
    Ok(())
}

fn play(tasks: u32, workers: u32) -> Result<(Duration, Duration)> {
    let mut state = ServerState::new("bench");
    let mut effects = Vec::new();
    let mut now = Now {
        mono: Time(0),
        wall: Timestamp(0),
    };
    for link in 0..workers {
        let input = Input::WorkerConnected(LinkId(u64::from(link)), worker_config(16));
        state.apply(now, input, &mut effects);
    }
    let spec = array_submit(tasks, template(&["true"]));
    let start = Instant::now();
    let mut longest = Duration::ZERO;
    state.apply(
        now,
        Input::Request(RequestId(1), Command::Submit(Box::new(spec))),
        &mut effects,
    );
    state.settle(now, &mut effects);
    let mut queue: VecDeque<(WorkerId, Vec<EndedRow>)> = VecDeque::new();
    let mut done = 0;
    while done < tasks {
        for effect in effects.drain(..) {
            if let Effect::ToWorker(id, WorkerCommand::Assign { assignments, .. }) = effect {
                let ids: Vec<u32> = assignments
                    .iter()
                    .flat_map(|a| a.ids.iter().collect::<Vec<_>>())
                    .collect();
                for rows in ids.chunks(REPORT_ROWS) {
                    queue.push_back((id, rows.iter().map(|task| row(*task)).collect()));
                }
            }
        }
        // If the completed tasks were divided by the time of all tasks, a stall would look like a
        // speedup.
        let (id, rows) = queue
            .pop_front()
            .with_context(|| format!("the scheduler stopped at {done} of {tasks} tasks"))?;
        done += u32::try_from(rows.len()).unwrap_or(0);
        // Each worker ends about 2 000 tasks per second.
        let pause = rows.len() as u64 * 500_000 / u64::from(workers);
        now.mono = now.mono + Duration::from_nanos(pause);
        let report = Report {
            ended: rows,
            ..Report::default()
        };
        let step = Instant::now();
        state.apply(
            now,
            Input::WorkerMessage(id, WorkerMessage::Report(report)),
            &mut effects,
        );
        state.settle(now, &mut effects);
        longest = longest.max(step.elapsed());
    }
    Ok((start.elapsed(), longest))
}

fn row(task: u32) -> EndedRow {
    EndedRow {
        task: TaskKey::new(JobId(1), TaskId(task)),
        instance: InstanceId(0),
        outcome: Outcome::Finished,
        age: Duration::ZERO,
        run: Duration::from_micros(300),
        usage: Usage::default(),
    }
}
