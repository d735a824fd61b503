//! The size and duration of one decision of the server.

use std::fmt;
use std::fs::read_to_string;
use std::ops::Sub;
use std::time::{Duration, Instant};

use hq_core::server_state::{Command, Effect, Input, RoundSize, WorkerCommand, WorkerMessage};
use rustix::time::{ClockId, clock_gettime};

use crate::figures::quantile;

/// A time span in wall-clock time and in the thread's CPU time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Span {
    /// Wall-clock time, including interference by other programs and virtual machines.
    pub(crate) wall: Duration,
    /// How long the thread ran on a cpu.
    pub(crate) cpu: Duration,
}

impl Sub for Span {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            wall: self.wall.saturating_sub(earlier.wall),
            cpu: self.cpu.saturating_sub(earlier.cpu),
        }
    }
}

/// Measures time spans of the thread that started it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stopwatch {
    wall: Instant,
    cpu: Duration,
}

impl Stopwatch {
    /// Starts measuring.
    pub(crate) fn start() -> Self {
        let cpu = thread_time();
        let wall = Instant::now();
        Self { wall, cpu }
    }

    /// Returns the span since the start.
    pub(crate) fn read(&self) -> Span {
        let wall = self.wall.elapsed();
        let cpu = thread_time().saturating_sub(self.cpu);
        Span { wall, cpu }
    }
}

fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let (seconds, nanos) = (
        u64::try_from(time.tv_sec).unwrap_or(0),
        u32::try_from(time.tv_nsec).unwrap_or(0),
    );
    Duration::new(seconds, nanos)
}

/// The position of the stolen time among the times of a cpu, see proc_stat(5).
const STEAL: usize = 7;
/// The unit of these times, which is the same on all current machines.
const TICKS_PER_SECOND: u32 = 100;

/// How much the rest of the machine disturbed this program.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Noise {
    /// The number of involuntary context switches of the thread.
    pub(crate) preemptions: u64,
    /// The time that the host took from the cpus of this virtual machine, summed over all cpus.
    pub(crate) stolen: Duration,
}

impl Noise {
    /// Returns the totals since the start of the thread and of the machine; zero if the system does
    /// not report them.
    pub(crate) fn now() -> Self {
        let status = read_to_string("/proc/thread-self/status").unwrap_or_default();
        let stat = read_to_string("/proc/stat").unwrap_or_default();
        let preemptions = field(&status, "nonvoluntary_ctxt_switches:", 0);
        let ticks = field(&stat, "cpu", STEAL);
        Self {
            preemptions: preemptions.unwrap_or(0),
            stolen: Duration::from_secs(ticks.unwrap_or(0)) / TICKS_PER_SECOND,
        }
    }
}

/// Returns a number from the line with this name.
fn field(text: &str, name: &str, at: usize) -> Option<u64> {
    let mut words = text.lines().map(str::split_whitespace);
    let line = words.find_map(|mut words| (words.next() == Some(name)).then_some(words));
    line?.nth(at)?.parse().ok()
}

impl Sub for Noise {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            preemptions: self.preemptions.saturating_sub(earlier.preemptions),
            stolen: self.stolen.saturating_sub(earlier.stolen),
        }
    }
}

/// A decision of the server: some inputs, then a scheduling round.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Decision {
    /// The duration of the whole decision.
    pub(crate) took: Span,
    /// The duration of handling the inputs.
    pub(crate) digested: Span,
    /// The number of inputs.
    pub(crate) inputs: usize,
    /// The number of starts and ends in the inputs.
    pub(crate) rows: usize,
    /// The number of workers that joined.
    pub(crate) joined: usize,
    /// The number of workers that were lost.
    pub(crate) lost: usize,
    /// The number of submits.
    pub(crate) submits: usize,
    /// The number of commands that end or drop jobs.
    pub(crate) sweeps: usize,
    /// The number of commands that hold, release or change tasks.
    pub(crate) changes: usize,
    /// The scheduling round.
    pub(crate) round: RoundSize,
    /// The number of tasks assigned to workers.
    pub(crate) handed_out: u64,
    /// The number of retracted tasks.
    pub(crate) asked_back: u64,
}

impl Decision {
    /// Creates the record of a decision about these inputs.
    pub(crate) fn of(inputs: &[Input]) -> Self {
        let is_goodbye =
            |input: &&Input| matches!(input, Input::WorkerMessage(_, WorkerMessage::Goodbye(_)));
        let is_join = |input: &&Input| matches!(input, Input::WorkerConnected(..));
        let is_submit = |input: &&Input| matches!(input, Input::Submit(..));
        let is_change = |input: &&Input| {
            use Command::{ChangeJob, HoldTasks};
            matches!(
                input,
                Input::Request(_, HoldTasks { .. } | ChangeJob { .. })
            )
        };
        let is_sweep = |input: &&Input| {
            use Command::{CancelJobs, ForgetJobs};
            matches!(
                input,
                Input::Request(_, CancelJobs { .. } | ForgetJobs { .. })
            )
        };
        Self {
            inputs: inputs.len(),
            rows: inputs.iter().map(Input::rows).sum(),
            joined: inputs.iter().filter(is_join).count(),
            lost: inputs.iter().filter(is_goodbye).count(),
            submits: inputs.iter().filter(is_submit).count(),
            sweeps: inputs.iter().filter(is_sweep).count(),
            changes: inputs.iter().filter(is_change).count(),
            ..Self::default()
        }
    }

    /// Records the results of the decision.
    pub(crate) fn note(&mut self, effects: &[Effect], round: RoundSize) {
        self.round = round;
        for effect in effects {
            match effect {
                Effect::ToWorker(_, WorkerCommand::Assign { assignments, .. }) => {
                    let counts = assignments.iter().map(|part| u64::from(part.ids.len()));
                    self.handed_out += counts.sum::<u64>();
                }
                Effect::ToWorker(_, WorkerCommand::Retract(tasks)) => {
                    self.asked_back += tasks.len() as u64;
                }
                Effect::ToWorker(..)
                | Effect::Registered { .. }
                | Effect::Reply(..)
                | Effect::WatchUpdate(..)
                | Effect::Persist(_)
                | Effect::Notify(_)
                | Effect::Allocate(_)
                | Effect::Free(_)
                | Effect::DropWorker(_) => {}
            }
        }
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "cpu {:.1?} (inputs {:.1?}), wall {:.1?}: {} inputs with {} rows, {} submits, {} joined, \
             {} lost; round of {} workers and {} queues{}; {} tasks handed out, {} multi-node started, \
             {} asked back",
            self.took.cpu,
            self.digested.cpu,
            self.took.wall,
            self.inputs,
            self.rows,
            self.submits,
            self.joined,
            self.lost,
            self.round.workers,
            self.round.queues,
            if self.round.with_gangs {
                " with plans for nodes"
            } else {
                ""
            },
            self.handed_out,
            self.round.gangs,
            self.asked_back
        )
    }
}

/// Returns percentiles of durations: median, 99 %, 99.9 %, longest.
pub(crate) fn percentiles(durations: impl Iterator<Item = Duration>) -> [Duration; 4] {
    let mut sorted: Vec<Duration> = durations.collect();
    sorted.sort_unstable();
    [0.5, 0.99, 0.999, 1.0].map(|share| quantile(&sorted, share))
}
