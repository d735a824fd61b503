//! Lists of jobs, workers, allocations, events and tasks, and the output of a task.

use std::collections::BTreeMap;

use hq_core::diagnosis::{queue_reason, suspect_hosts};
use hq_core::job::JobState;
use hq_core::resource::amount::UNITS_PER_WHOLE;
use hq_core::words::part;
use hq_protocol::client::{
    AllocAllocation, JobSummary, WorkerInfo, WorkerLoad, alloc_allocation::State,
};
use hq_store::reader::run::EventRow;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style};
use ratatui::text::{Line, Span};

use super::Painter;
use super::parts::{
    CLOCK_WIDTH, List, STRONG, clock_and_day, event_words, number, params_width, seen, since,
    wrapped,
};
use crate::command::dashboard::app::{App, Theme};
use crate::command::dashboard::model::{TaskRow, TasksOf};
use crate::command::dashboard::read::event_text;
use crate::output::format::{amount, memory, run_time};
use crate::output::pace;
use crate::output::view::{
    allocation_state, job_state, quarantine_word, totals, worker_state, worker_state_name,
};
use crate::source::problems::{is_open, sentence};
use crate::source::{Queue, Resource, Share, allocation, host, is_connected, resources};
use crate::text::fit;

/// The total width of the fixed job columns, including the border and the gaps between all columns.
const JOB_FIXED: u16 = 6 + 8 + 10 + 6 + 7 + 8 + 2 + 11;
/// The maximum width of a name. Longer names are rare.
const NAME_WIDTH: u16 = 64;
const BAR_WIDTH: u16 = 8;

impl Painter<'_, '_> {
    pub(super) fn jobs(&mut self, area: Rect) {
        let app = self.app;
        let visible = app.visible_jobs();
        let mark = if app.is_descending { "down" } else { "up" };
        let mut title = format!(" Jobs ({}), by {} {mark} ", visible.len(), app.order());
        if !app.search.is_empty() {
            title.push_str(&format!("matching `{}` ", app.search));
        }
        let is_empty = visible.is_empty();
        self.list(area, &title, job_columns(app, area.width), visible);
        if is_empty {
            let text = if app.search.is_empty() {
                "There are no jobs yet; `hq submit -- COMMAND` submits one."
            } else {
                "No job matches; Esc shows all."
            };
            self.text(self.hits.rows, text);
        }
    }

    pub(super) fn workers(&mut self, area: Rect) {
        let rows = [Constraint::Min(5), Constraint::Length(7)];
        let [list, detail] = Layout::vertical(rows).areas(area);
        let (app, theme) = (self.app, self.theme);
        let (host_width, state_width) = if area.width < 70 { (24, 9) } else { (60, 14) };
        let suspects = suspect_hosts(&app.ended);
        let ends = ends_of_workers(&app.ended);
        let shown = app.visible_workers();
        let has_gpus = shown.iter().any(|worker| !gpus(worker).is_empty());
        let columns = List::<WorkerInfo>::new()
            .right("ID", 6, |worker| worker.id.to_string())
            .left("Host", Constraint::Min(8), |worker| {
                fit(host(worker), host_width)
            })
            .left("State", state_width, |worker| {
                let (state, look) = state_of_worker(worker, suspects.contains(host(worker)));
                Span::styled(fit(&state, state_width.into()), theme.state(look))
            })
            .right("Tasks", 5, |worker| {
                let runtime = worker.runtime.as_ref();
                runtime
                    .map_or(0, |runtime| runtime.running_tasks)
                    .to_string()
            })
            .right("CPUs", 9, |worker| use_of(worker, "cpus"))
            .right("GPUs", if has_gpus { 7 } else { 0 }, gpus)
            // The detail view below shows more of the worker's resources.
            .right("Memory", if area.width < 100 { 0 } else { 10 }, |worker| {
                find(worker, "mem").map_or(String::new(), |item| memory(item.total))
            })
            .right("Failed there", 13, |worker| {
                failed_there(theme, ends.get(&worker.id).copied())
            });
        let connected = shown.iter().filter(|worker| is_connected(worker)).count();
        let title = format!(" Workers ({connected} of {} connected) ", shown.len());
        self.list(list, &title, columns, shown.iter().copied());
        if let Some(worker) = app.selected_worker() {
            self.worker(detail, worker);
        }
    }

    /// Draws each resource with a bar, and its groups (NUMA nodes) if it has several.
    fn worker(&mut self, area: Rect, worker: &WorkerInfo) {
        let (app, theme, on) = (self.app, self.theme, host(worker));
        let mut lines = Vec::new();
        // Why the worker's node is suspected, on at most two lines.
        let is_it = |problem: &&_| is_open(problem) && problem.host.as_deref() == Some(on);
        if let Some(problem) = app.problems.iter().flatten().find(is_it) {
            let parts = wrapped(
                &sentence(problem, app.now_ns()),
                usize::from(area.width) - 2,
            );
            let style = theme.state("failed");
            lines.extend(parts.into_iter().map(|text| Line::styled(text, style)));
        }
        lines.extend(resources(worker).map(|item| resource_line(theme, &item)));
        let load = worker
            .runtime
            .as_ref()
            .and_then(|runtime| runtime.load.as_ref());
        lines.extend(load.map(|load| Line::from(load_text(load))));
        let age = since(worker.started_unix_ns, app.now_ns());
        let mut title = format!(" Worker {} on {on}, for {age} ", worker.id);
        if let Some(allocation) = allocation(worker) {
            title.push_str(&format!("in allocation {allocation} "));
        }
        self.framed(area, &title, lines);
    }

    pub(super) fn allocations(&mut self, area: Rect) {
        let [list, detail] = Layout::vertical([Constraint::Fill(1); 2]).areas(area);
        let (app, theme) = (self.app, self.theme);
        let reason_width = if area.width < 70 { 8 } else { 20 };
        let count = |queue: &Queue, state: State| {
            let allocations = queue.allocations.iter();
            allocations.filter(|one| one.state() == state).count() as u64
        };
        let columns = List::<Queue>::new()
            .right("ID", 4, |queue| queue.id.to_string())
            .left("Name", 12, |queue| fit(&queue.name, 12))
            .left("State", 7, |queue| {
                let state = match (queue.is_paused, queue.is_failing) {
                    (true, _) => "paused",
                    (false, true) => "refused",
                    (false, false) => "active",
                };
                Span::styled(state, theme.state(state))
            })
            .right("Queued", 6, |queue| number(count(queue, State::Queued)))
            .right("Running", 7, |queue| number(count(queue, State::Running)))
            .right("Failed", 6, |queue| {
                failed(theme, count(queue, State::Failed))
            })
            .left("Reason", Constraint::Min(reason_width), |queue| {
                queue_reason(&queue.reason)
            });
        let queues = app.queues();
        let title = format!(" Allocation queues ({}) ", queues.len());
        self.list(list, &title, columns, queues);
        let Some(queue) = app.selected_queue() else {
            let text = match app.queues {
                Some(_) => "There is no queue of automatic allocation; see `hq alloc add`.",
                None => "the server has not said yet ...",
            };
            return self.text(detail, text);
        };
        let rows = [Constraint::Length(2), Constraint::Min(3)];
        let [reason, detail] = Layout::vertical(rows).areas(detail);
        self.text(reason, queue.reason.as_str());
        let now_ns = app.now_ns();
        let columns = List::<AllocAllocation>::new()
            .left("Allocation", Constraint::Min(12), |row| row.id.as_str())
            .left("State", 9, |row| {
                let state = allocation_state(row);
                Span::styled(state, theme.state(state))
            })
            .right("Workers", 7, |row| row.workers.to_string())
            .left("Waited", 13, |row| {
                since(row.queued_unix_ns, row.started_unix_ns.unwrap_or(now_ns))
            })
            .left("Ran", 13, |row| {
                let ran = |from| since(from, row.ended_unix_ns.unwrap_or(now_ns));
                row.started_unix_ns.map_or(String::new(), ran)
            })
            .left("Reason", Constraint::Min(reason_width), |row| {
                row.reason.as_str()
            });
        let rows = queue.allocations.iter().rev();
        let table = columns.table(rows, 0..detail.height.into());
        self.frame
            .render_widget(table.block(theme.block("")), detail);
    }

    pub(super) fn events(&mut self, area: Rect) {
        let (app, bad) = (self.app, self.theme.state("failed"));
        let kind_width = if area.width < 100 { 22 } else { 28 };
        let columns = List::<EventRow>::new()
            .left("Time", CLOCK_WIDTH, |event| clock_and_day(event.at_ns))
            .left("Event", kind_width, |event| {
                let words = fit(&event_words(&event.kind), kind_width.into());
                let is_bad = event.kind == "worker-lost";
                Span::styled(words, if is_bad { bad } else { Style::new() })
            })
            // The end of a job is normal, but failures of its tasks are not.
            .left("", Constraint::Min(20), |event| {
                let came_of_it = failures_of(app, event);
                vec![Span::raw(event_text(event)), Span::styled(came_of_it, bad)]
            });
        self.list(area, " Events, newest first ", columns, &app.events);
    }

    /// Draws all tasks of a job or worker.
    pub(super) fn tasks(&mut self, area: Rect) {
        let Some(tasks) = &self.app.tasks else { return };
        let (mut title, is_of_job) = match tasks.wanted.of {
            TasksOf::Job(job) => (format!(" Tasks of job {job}"), true),
            TasksOf::Worker(worker) => {
                let title = format!(" Tasks of worker {worker}, the last one first");
                (title, false)
            }
        };
        match &tasks.page {
            None => title.push_str(": reading ..."),
            Some(page) => {
                let why = page.is_cut.map_or(String::new(), |why| format!("; {why}"));
                title.push_str(&format!(" ({}{why})", number(page.rows.len() as u64)));
            }
        }
        if tasks.is_old() {
            title.push_str(" ...");
        }
        if !tasks.wanted.filter.is_empty() {
            title.push_str(&format!(", matching `{}`", tasks.wanted.filter));
        }
        title.push(' ');
        let now_ns = self.app.now_ns();
        let seen = seen(&self.table, area);
        let seen = tasks.rows().iter().skip(seen.start).take(seen.len());
        let params = params_width(seen.map(|task| &*task.params), area.width);
        let is_small = area.width < 60;
        let host = match area.width {
            0..60 => 8,
            60..100 => 14,
            100.. => 30,
        };
        let theme = self.theme;
        let list = List::<TaskRow>::new()
            .right("Job", if is_of_job { 0 } else { 6 }, |task| {
                task.job.to_string()
            })
            .right("Task", 10, |task| number(task.task.into()))
            .left("State", 8, |task| {
                let state = task.state.name();
                Span::styled(state, theme.state(state))
            })
            .left("Parameters", params, |task| task.params.as_str())
            .left("Host", host, |task| task.host.as_str())
            .left("Started", if is_small { 0 } else { CLOCK_WIDTH }, |task| {
                task.started_ns.map(clock_and_day).unwrap_or_default()
            })
            .right("Took", 8, |task| took(task, now_ns))
            .left("Failure", Constraint::Min(10), |task| task.error.as_str());
        self.list(area, &title, list, tasks.rows());
    }

    /// Draws the output of a task on the whole screen.
    pub(super) fn log(&mut self, area: Rect) {
        let Some(log) = &self.app.log else { return };
        let area = self.usage(area, log.key);
        log.height.set(usize::from(area.height).saturating_sub(2));
        let (key, count) = (log.key, log.len());
        let mut title = format!(" {} of task {} of job {}", key.stream(), key.task, key.job);
        if count > 0 {
            let last = number((log.top() + log.height.get()).min(count) as u64);
            let cut = if log.is_cut { "the last " } else { "" };
            title.push_str(&format!(": line {last} of {cut}{}", number(count as u64)));
        }
        if log.shift > 0 {
            title.push_str(&format!(", from column {}", log.shift + 1));
        }
        if log.is_following {
            title.push_str(", following");
        }
        if let Some(note) = &log.note {
            title.push_str(&format!("; {note}"));
        }
        if !log.search.is_empty() {
            title.push_str(&format!("; searched: `{}`", log.search));
        }
        title.push(' ');
        let found = self.theme.color(Color::Yellow).patch(STRONG);
        let line = |text: String| {
            let style = if log.matches(&text) {
                found
            } else {
                Style::new()
            };
            Line::styled(text.chars().skip(log.shift).collect::<String>(), style)
        };
        let lines: Vec<Line<'_>> = match (count, log.is_new, &log.note) {
            (1.., _, _) => log.page().map(line).collect(),
            (0, true, None) => vec!["reading ...".into()],
            (0, true, Some(_)) => Vec::new(),
            (0, false, _) => vec!["nothing was written yet; o shows the other output".into()],
        };
        self.framed(area, &title, lines);
    }
}

fn job_columns(app: &App, width: u16) -> List<'_, JobSummary> {
    let (theme, now_ns) = (app.theme, app.now_ns());
    // Small screens show only the bar.
    let from = |least: u16, room: u16| if width >= least { room } else { 0 };
    let (percent, ended) = (from(90, 5), from(100, 11));
    let (rate, until) = (from(130, 14), from(150, 16));
    let others = percent + ended + rate + until;
    let room = width.saturating_sub(JOB_FIXED + others + BAR_WIDTH);
    // Names get space first, then bars.
    let name = room.clamp(8, NAME_WIDTH);
    let bar = BAR_WIDTH + room.saturating_sub(NAME_WIDTH);
    let pace_of = move |job: &JobSummary| {
        let pace = pace::pace(job, now_ns).filter(|_| totals(job).unfinished() > 0);
        pace.filter(|pace| pace.left.is_some())
    };
    List::<JobSummary>::new()
        .right("ID", 6, |job| job.id.to_string())
        .left("Name", name, move |job| fit(&job.name, name.into()))
        .left("State", 8, move |job| {
            let is_waiting = job_state(job) == JobState::Waiting;
            let state = match is_waiting && app.is_starving(job.id) {
                true => "starving",
                false => job_state(job).name(),
            };
            Span::styled(state, theme.state(state))
        })
        .left("Progress", bar, move |job| {
            theme.progress(&totals(job), bar)
        })
        .right("Tasks", 10, |job| number(totals(job).total()))
        // Tasks that were canceled or aborted do not count as done.
        .right("Done", percent, |job| {
            let counts = totals(job);
            let done = ((counts.finished + counts.failed) * 100).checked_div(counts.total());
            done.map_or(String::new(), |percent| format!("{percent} %"))
        })
        .right("Ended", ended, |job| number(totals(job).ended()))
        .right("Run", 6, |job| number(totals(job).running))
        .right("Failed", 7, move |job| failed(theme, totals(job).failed))
        .right("Left", 8, move |job| {
            pace::left(job, now_ns).unwrap_or_default()
        })
        .right("Rate", rate, move |job| {
            pace_of(job).map_or(String::new(), |pace| pace::rate_text(pace.rate))
        })
        .left("Until", until, move |job| {
            let end = pace_of(job).and_then(|pace| pace::until(&pace, now_ns));
            end.unwrap_or_default()
        })
}

/// Returns a number, highlighted unless it is 0.
fn failed(theme: Theme, count: u64) -> Span<'static> {
    let look = if count > 0 { "failed" } else { "" };
    Span::styled(number(count), theme.state(look))
}

/// Returns a word for the state of a worker, and the state that determines its style.
fn state_of_worker(worker: &WorkerInfo, is_suspect: bool) -> (String, &'static str) {
    let word = |word: &str| word.to_lowercase();
    match quarantine_word(worker) {
        _ if !is_connected(worker) => (word(worker_state_name(worker_state(worker))), "lost"),
        Some(stage) => (word(stage), "draining"),
        None if is_suspect => (word("broken?"), "broken?"),
        None if worker.is_draining => (word("draining"), "draining"),
        None => (word("connected"), "connected"),
    }
}

/// Returns the number of failed tasks and of all ended tasks, by worker.
fn ends_of_workers(ended: &[Share]) -> BTreeMap<u32, (u64, u64)> {
    let mut ends = BTreeMap::<u32, (u64, u64)>::new();
    for share in ended {
        let (failed, all) = ends.entry(share.worker).or_default();
        *all += share.count;
        *failed += share.error.as_ref().map_or(0, |_| share.count);
    }
    ends
}

fn failed_there(theme: Theme, ends: Option<(u64, u64)>) -> Span<'static> {
    let (failed, all) = ends.unwrap_or_default();
    if failed == 0 {
        return Span::default();
    }
    let look = if failed * 2 > all { "failed" } else { "" };
    let percent = failed * 100 / all.max(1);
    Span::styled(
        format!("{} ({percent} %)", number(failed)),
        theme.state(look),
    )
}

fn find<'a>(worker: &'a WorkerInfo, name: &str) -> Option<Resource<'a>> {
    resources(worker).find(|item| item.name == name)
}

fn use_of(worker: &WorkerInfo, name: &str) -> String {
    let text = |item: Resource<'_>| match item.used {
        Some(used) => format!("{}/{}", amount(used), amount(item.total)),
        None => amount(item.total),
    };
    find(worker, name).map(text).unwrap_or_default()
}

fn gpus(worker: &WorkerInfo) -> String {
    let kinds = ["gpus/nvidia", "gpus/amd"].map(|kind| use_of(worker, kind));
    kinds
        .into_iter()
        .find(|text| !text.is_empty())
        .unwrap_or_default()
}

fn resource_line(theme: Theme, item: &Resource<'_>) -> Line<'static> {
    let shown = if item.name == "mem" { memory } else { amount };
    let mut line = vec![Span::raw(format!("{:<14}", fit(item.name, 13)))];
    if let Some(used) = item.used {
        let cells = used
            .saturating_mul(20)
            .checked_div(item.total)
            .unwrap_or(0)
            .min(20);
        let full = theme
            .glyphs("finished", cells)
            .style(theme.state("running"));
        let rest = theme.glyphs("waiting", 20 - cells).style(Style::new());
        line.extend([full, rest, format!("  {} reserved of ", shown(used)).into()]);
    }
    line.push(shown(item.total).into());
    if !item.groups.is_empty() {
        let sizes: Vec<String> = item.groups.iter().map(usize::to_string).collect();
        let (count, sizes) = (sizes.len(), sizes.join(" + "));
        line.push(format!("  in {count} NUMA nodes: {sizes}").into());
    }
    line.into()
}

/// Returns the hardware usage of a machine, including tasks of other users.
fn load_text(load: &WorkerLoad) -> String {
    let shown = |bytes: u64| memory(bytes / (1 << 20) * UNITS_PER_WHOLE);
    let gpus = load
        .gpu_share
        .map(|share| format!(", gpus {} %", share / 100));
    format!(
        "machine load  cpus {} %, memory {} used of {}{}",
        load.cpu_share / 100,
        shown(load.memory_used_bytes),
        shown(load.memory_total_bytes),
        gpus.unwrap_or_default()
    )
}

/// Returns how long a task ran or has been running.
pub(super) fn took(task: &TaskRow, now_ns: i64) -> String {
    task.started_ns.map_or(String::new(), |from| {
        let ns = task.ended_ns.unwrap_or(now_ns) - from;
        run_time(u64::try_from(ns.max(0) / 1_000).unwrap_or(0))
    })
}

/// Returns the number of failures of an ended job, if it has any.
fn failures_of(app: &App, event: &EventRow) -> String {
    let jobs = app.jobs();
    let found = event
        .job
        .and_then(|id| jobs.binary_search_by_key(&id, |job| job.id).ok());
    match found.map(|at| (&jobs[at].name, totals(&jobs[at]))) {
        Some((name, counts)) if event.kind == "job-completed" && counts.failed > 0 => {
            let failed = part(counts.failed, counts.total(), "task");
            format!("  {}: {failed} failed", fit(name, 20))
        }
        Some(_) | None => String::new(),
    }
}
