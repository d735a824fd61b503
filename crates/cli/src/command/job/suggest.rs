//! `job stats --suggest`: suggests requests that match what the tasks needed.

use std::collections::BTreeMap;
use std::time::Duration;

use hq_core::growth::{MEMORY, PERMILLE_MAX};
use hq_core::outcome::{LostReason, is_out_of_memory};
use hq_core::resource::amount::UNITS_PER_WHOLE;
use hq_core::sizing::Needs;
use hq_core::time::nanos;
use hq_protocol::{client, common};

use crate::client::Client;
use crate::command::all_tasks;
use crate::error::CliResult;
use crate::output::format::elapsed;
use crate::output::suggest::{CutOff, MORE, Step, Suggestion};
use crate::output::view::template_of;
use crate::text::lossy;

/// If there are more commands than this, those with the same request are grouped.
const COMMANDS_MAX: usize = 16;

/// Tasks that can have the same request.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Kind {
    job: u32,
    /// The command. If empty, any command matches.
    command: Vec<Vec<u8>>,
    /// The resources other than memory: name, policy and units.
    resources: Vec<(String, i32, u64)>,
}

/// The requests and the usage of the tasks of a kind.
#[derive(Clone, Debug)]
struct Group {
    /// The needs of the tasks, including tasks that failed for lack of memory.
    needs: Needs,
    /// The number of tasks that failed for lack of memory.
    out_of_memory: u64,
    /// The reserved memory times the duration, summed over all attempts, in KiB · ms. `None` if an
    /// attempt requested no amount.
    reserved: Option<u128>,
    cut_off: CutOff,
}

/// The tasks on which suggestions are based.
#[derive(Default, Debug)]
pub(in crate::command) struct Groups(BTreeMap<Kind, Group>);

impl Groups {
    /// Returns the needs of the tasks of a job in the given states, or `None` if the job does not
    /// exist.
    pub(in crate::command) async fn read(
        client: &mut Client,
        job: u32,
        states: &[client::TaskState],
    ) -> CliResult<Option<Self>> {
        let mut groups = Self::default();
        let mut next = Some(client::TaskPage {
            states: states.iter().map(|state| (*state).into()).collect(),
            with_definition: true,
            ..all_tasks(job)
        });
        while let Some(page) = client.next_page(&mut next).await? {
            if !page.job_found {
                return Ok(None);
            }
            groups.add(&page);
        }
        Ok(Some(groups))
    }

    /// Adds tasks.
    pub(super) fn add(&mut self, page: &client::TaskPageReply) {
        for task in &page.tasks {
            // The request of a task on whole nodes cannot be improved.
            if let Some(template) = template_of(task, page)
                && let [request] = &*template.requests
                && request.n_nodes == 0
            {
                let kind = Kind::of(page.job, template, request);
                let group = self.0.entry(kind).or_default();
                group.add(task, request);
            }
        }
    }

    /// Returns the needs of all tasks together.
    pub(in crate::command) fn into_needs(self) -> Needs {
        let mut all = Needs::default();
        for group in self.0.values() {
            all.add(&group.needs);
        }
        all
    }

    /// Returns requests that would have fit the tasks of each kind.
    pub(super) fn into_suggestions(self) -> Vec<Suggestion> {
        let groups = self.merged().into_iter();
        groups
            .map(|(kind, group)| suggestion(&kind, group))
            .collect()
    }

    /// Like `into_suggestions`, but returns requests for the next submit. Omits kinds whose needs
    /// are unknown.
    pub(super) fn into_new_requests(self) -> Vec<(Suggestion, client::NewRequest)> {
        let groups = self.merged().into_iter();
        let requests = groups.filter_map(|(kind, group)| {
            let suggestion = suggestion(&kind, group);
            let (small, growth) = suggestion.cheapest()?;
            let Step { factor, max } = growth.unwrap_or(Step {
                factor: MORE,
                max: None,
            });
            let time = suggestion.time_request().unwrap_or_default();
            let units = |mib: u64| mib.saturating_mul(UNITS_PER_WHOLE);
            let growth = common::Growth {
                permille: u32::try_from(factor * 1_000).unwrap_or(PERMILLE_MAX),
                max: max.map(units),
            };
            let others = kind.resources.into_iter();
            let request = client::NewRequest {
                args: kind.command.into_iter().map(Into::into).collect(),
                others: others
                    .map(|(resource, policy, amount_units)| common::ResourceEntry {
                        resource,
                        policy,
                        amount_units,
                    })
                    .collect(),
                memory_units: units(small),
                growth: Some(growth),
                min_time_ns: nanos(time),
            };
            Some((suggestion, request))
        });
        requests.collect()
    }

    /// Returns the kinds of tasks with their needs. If there are very many commands, kinds with the
    /// same request are merged.
    fn merged(self) -> BTreeMap<Kind, Group> {
        let mut groups = self.0;
        if groups.len() > COMMANDS_MAX {
            let mut merged: BTreeMap<Kind, Group> = BTreeMap::new();
            for (kind, group) in groups {
                let kind = Kind {
                    command: Vec::new(),
                    ..kind
                };
                merged.entry(kind).or_default().merge(&group);
            }
            groups = merged;
        }
        groups
    }
}

fn suggestion(kind: &Kind, group: Group) -> Suggestion {
    Suggestion {
        job: kind.job,
        command: kind.command.iter().map(|arg| lossy(arg)).collect(),
        needs: group.needs,
        out_of_memory: group.out_of_memory,
        reserved: group.reserved,
        cut_off: group.cut_off,
    }
}

impl Kind {
    fn of(job: u32, template: &common::TaskTemplate, request: &common::ResourceRequest) -> Self {
        let others = request
            .entries
            .iter()
            .filter(|entry| entry.resource != MEMORY);
        Self {
            job,
            command: template.args.iter().map(|arg| arg.to_vec()).collect(),
            resources: others
                .map(|entry| (entry.resource.clone(), entry.policy, entry.amount_units))
                .collect(),
        }
    }
}

impl Default for Group {
    /// Returns an empty group. Without tasks, nothing is reserved.
    fn default() -> Self {
        Self {
            needs: Needs::default(),
            out_of_memory: 0,
            reserved: Some(0),
            cut_off: CutOff::default(),
        }
    }
}

impl Group {
    fn add(&mut self, task: &client::TaskInfo, request: &common::ResourceRequest) {
        let asked = memory_kib(request);
        for attempt in &task.attempts {
            let run = elapsed(attempt.started_unix_ns, attempt.finished_unix_ns);
            self.reserve(attempt.memory_units.map(kib).or(asked), run);
            if is_cut_off(&attempt.error) {
                self.cut_off.attempts += 1;
                self.cut_off.cpu_time += run.mul_f64(cpus(request).unwrap_or(1.0));
            }
        }
        let (Some(start), Some(end)) = (task.started_unix_ns, task.finished_unix_ns) else {
            return;
        };
        let run = elapsed(start, end);
        self.reserve(asked, run);
        match (task.state(), &task.usage) {
            (client::TaskState::Finished, Some(usage)) => {
                let used = usage.max_rss_kib;
                let enough = enough(task, asked);
                self.needs
                    .note(enough.map_or(used, |enough| used.max(enough)), run);
            }
            // The task needed more than its request. Another attempt would get twice as much.
            (client::TaskState::Failed, _) if is_out_of_memory(task.error()) => {
                if let Some(had) = asked {
                    self.needs.note(had.saturating_mul(MORE), run);
                    self.out_of_memory += 1;
                }
            }
            // Other failures do not show how much more the task would have needed.
            _ => {}
        }
    }

    fn reserve(&mut self, kib: Option<u64>, run: Duration) {
        let sum = self.reserved.zip(kib);
        self.reserved = sum.map(|(sum, kib)| sum + u128::from(kib) * run.as_millis());
    }

    fn merge(&mut self, other: &Self) {
        self.needs.add(&other.needs);
        self.out_of_memory += other.out_of_memory;
        let sum = self.reserved.zip(other.reserved);
        self.reserved = sum.map(|(one, other)| one + other);
        self.cut_off.attempts += other.cut_off.attempts;
        self.cut_off.cpu_time += other.cut_off.cpu_time;
    }
}

/// Returns the memory in KiB that was enough for a task whose earlier attempt ran out of memory.
/// The measured value is that of the largest process, and all processes together may have used
/// more.
fn enough(task: &client::TaskInfo, asked: Option<u64>) -> Option<u64> {
    let mut before = task
        .attempts
        .iter()
        .filter_map(|attempt| attempt.memory_units);
    asked.filter(|asked| before.any(|units| kib(units) < *asked))
}

/// Returns the `mem` of a request if it is a number.
fn memory_kib(request: &common::ResourceRequest) -> Option<u64> {
    let mut entries = request.entries.iter();
    let entry = entries.find(|entry| entry.resource == MEMORY)?;
    (entry.policy() != common::Policy::All).then(|| kib(entry.amount_units))
}

/// Converts units of `mem` to KiB.
fn kib(units: u64) -> u64 {
    let kib = u128::from(units) * 1_024 / u128::from(UNITS_PER_WHOLE);
    u64::try_from(kib).unwrap_or(u64::MAX)
}

/// Returns the number of cpus of a request, if it is a number.
pub(super) fn cpus(request: &common::ResourceRequest) -> Option<f64> {
    let mut entries = request.entries.iter();
    // `all` has no amount.
    let entry = entries.find(|entry| entry.resource == "cpus" && entry.amount_units > 0)?;
    #[expect(clippy::cast_precision_loss, reason = "no machine has 2^40 cpus")]
    Some(entry.amount_units as f64 / UNITS_PER_WHOLE as f64)
}

/// Returns whether an attempt was lost because the lifetime of its worker ended.
fn is_cut_off(error: &str) -> bool {
    let ends = [LostReason::TimeLimitReached, LostReason::AllocationEnded];
    ends.iter().any(|reason| error.contains(reason.words()))
}
