//! Question: what does a task cost the server's state machine, without sockets or processes, and
//! how does that cost grow with the number of workers?
//!
//! Drives `ServerState` with workers that end all their tasks at once, in reports of 64. The
//! baseline is a single worker in the same run.

#![forbid(unsafe_code)]

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use hq_core::id::{InstanceId, JobId, TaskId, TaskKey, WorkerId};
use hq_core::outcome::{Outcome, Usage};
use hq_core::range::IdArray;
use hq_core::server_state::{
    Command, Effect, EndedRow, Input, LinkId, Report, RequestId, ServerState, WorkerCommand,
    WorkerMessage,
};
use hq_core::template::{ArrayIds, ArraySpec, SubmitBody, SubmitSpec, SubmitTarget};
use hq_core::testing::{template, worker_config};
use hq_core::time::{Now, Time, Timestamp};

/// The number of tasks in one run.
const TASKS: u32 = 1_000_000;
/// The number of rows in one report.
const REPORT_ROWS: usize = 64;

#[expect(
    clippy::print_stdout,
    reason = "the figures are the product of this program"
)]
fn main() -> Result<()> {
    let mut baseline = None;
    for workers in [1, 10, 100, 1_000] {
        let (took, longest) = run(workers)?;
        let per_task = took.as_secs_f64() * 1e9 / f64::from(TASKS);
        let ratio = per_task / *baseline.get_or_insert(per_task);
        println!(
            "{workers:5} workers: {per_task:6.0} ns a task ({ratio:.2} of one worker), \
             longest step {longest:.1?}"
        );
    }
    Ok(())
}

fn run(workers: u32) -> Result<(Duration, Duration)> {
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
    let spec = SubmitSpec {
        target: SubmitTarget::NewJob {
            name: "bench".into(),
            max_fails: None,
        },
        submit_dir: Box::from(*b"/"),
        stream_dir: None,
        after: Vec::new(),
        notify: Vec::new(),
        origin: None,
        nonce: None,
        notes: Vec::new(),
        body: SubmitBody::Array(ArraySpec {
            ids: ArrayIds::Given(IdArray::consecutive(0, TASKS).context("no tasks")?),
            entries: None,
            template: std::sync::Arc::new(template(&["true"])),
        }),
    };
    let start = Instant::now();
    let mut longest = Duration::ZERO;
    state.apply(
        now,
        Input::Request(RequestId(1), Command::Submit(Box::new(spec))),
        &mut effects,
    );
    state.settle(now, &mut effects);
    let mut queue: std::collections::VecDeque<(WorkerId, Vec<EndedRow>)> = Default::default();
    let mut done = 0;
    while done < TASKS {
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
            .with_context(|| format!("the scheduler stopped at {done} of {TASKS} tasks"))?;
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
