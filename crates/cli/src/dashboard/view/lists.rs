//! Lists: jobs, workers, allocations, events.

use std::collections::BTreeMap;

use hq_core::diagnosis::{queue_reason, suspect_hosts};
use hq_core::resource::amount::UNITS_PER_WHOLE;
use hq_core::words::part;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Wrap};

use super::list::List;
use super::parts::{
    CLOCK_WIDTH, bordered, clock_and_day, event_words, glyph, number, progress, since, state_style,
    titled, wrapped,
};
use crate::dashboard::app::{App, Hits, Theme};
use crate::dashboard::model::{
    AllocationRow, EndedShare, EventRow, JobRow, LoadRow, ProblemRow, QueueRow, ResourceRow,
    Target, WorkerRow,
};
use crate::output::format::{amount, memory};
use crate::output::pace;
use crate::text::fit;

/// Total width of the fixed job columns, including the border and the gaps between all columns.
const JOB_FIXED: u16 = 6 + 8 + 10 + 6 + 7 + 8 + 2 + 11;
/// Longer names are rare.
const NAME_WIDTH: u16 = 64;
const BAR_WIDTH: u16 = 8;

pub(super) fn jobs(frame: &mut Frame<'_>, area: Rect, app: &App, hits: &mut Hits) {
    let visible = app.visible_jobs();
    let mark = if app.is_descending { "down" } else { "up" };
    let mut title = format!(
        " Jobs ({}), by {} {mark} ",
        visible.len(),
        app.order.title()
    );
    if !app.search.is_empty() {
        title.push_str(&format!("matching `{}` ", app.search));
    }
    let columns = job_columns(app, area.width);
    let rows = visible.iter().copied();
    columns.draw(frame, area, app.theme, hits, &title, rows);
    if visible.is_empty() {
        let text = if app.search.is_empty() {
            "There are no jobs yet; `hq submit -- COMMAND` submits one."
        } else {
            "No job matches; Esc shows all."
        };
        frame.render_widget(text, hits.rows);
    }
}

fn job_columns(app: &App, width: u16) -> List<'_, JobRow> {
    let theme = app.theme;
    // On small screens the bar has to do.
    let from = |least: u16, room: u16| if width >= least { room } else { 0 };
    let (percent, ended) = (from(90, 5), from(100, 11));
    let (rate, until) = (from(130, 14), from(150, 16));
    let others = percent + ended + rate + until;
    let room = width.saturating_sub(JOB_FIXED + others + BAR_WIDTH);
    // Names first, then bars.
    let name = room.clamp(8, NAME_WIDTH);
    let bar = BAR_WIDTH + room.saturating_sub(NAME_WIDTH);
    let pace_of = |job: &JobRow| job.pace.filter(|_| job.left().is_some());
    List::<JobRow>::new()
        .right("ID", 6, |job| job.id.to_string())
        .left("Name", name, move |job| fit(&job.name, name.into()))
        .left("State", 8, |job| state_of(app, job))
        .left("Progress", bar, move |job| {
            progress(theme, &job.counts, bar)
        })
        .right("Tasks", 10, |job| number(job.counts.total()))
        // Tasks that were canceled or aborted are not done.
        .right("Done", percent, |job| {
            let done = (job.counts.finished + job.counts.failed) * 100;
            let percent = done.checked_div(job.counts.total());
            percent.map_or(String::new(), |percent| format!("{percent} %"))
        })
        .right("Ended", ended, |job| number(job.counts.ended()))
        .right("Run", 6, |job| number(job.counts.running))
        .right("Failed", 7, move |job| failed(theme, job.counts.failed))
        .right("Left", 8, |job| {
            job.left().map(pace::whole).unwrap_or_default()
        })
        .right("Rate", rate, move |job| {
            let pace = pace_of(job);
            pace.map_or(String::new(), |pace| pace::rate_text(pace.rate))
        })
        .left("Until", until, move |job| {
            let end = pace_of(job).and_then(|pace| pace::until(&pace, app.now_ns()));
            end.unwrap_or_default()
        })
}

/// A number, highlighted unless it is 0.
fn failed(theme: Theme, count: u64) -> Span<'static> {
    let style = match count {
        0 => Style::new(),
        1.. => state_style(theme, "failed"),
    };
    Span::styled(number(count), style)
}

/// A word for the state of a job; distinguishes a blocked job from a waiting one.
fn state_of(app: &App, job: &JobRow) -> Span<'static> {
    if job.is_starving() && app.obstacle(job.id).is_some() {
        return Span::styled("starving", state_style(app.theme, "starving"));
    }
    Span::styled(job.state(), state_style(app.theme, job.state()))
}

pub(super) fn workers(frame: &mut Frame<'_>, area: Rect, app: &App, hits: &mut Hits) {
    let [list, detail] = Layout::vertical([Constraint::Min(5), Constraint::Length(7)]).areas(area);
    let theme = app.theme;
    let (host_width, state_width) = if area.width < 70 { (24, 9) } else { (60, 14) };
    let suspects = suspect_hosts(&app.ended);
    let ends = ends_of_workers(&app.ended);
    let shown = app.visible_workers();
    let has_gpus = shown.iter().any(|worker| !gpus(worker).is_empty());
    let columns = List::<WorkerRow>::new()
        .right("ID", 6, |worker| worker.id.to_string())
        .left("Host", Constraint::Min(8), move |worker| {
            fit(&worker.host, host_width)
        })
        .left("State", state_width, |worker| {
            let is_suspect = suspects.contains(worker.host.as_str());
            let (state, look) = state_of_worker(worker, is_suspect);
            Span::styled(fit(state, state_width.into()), state_style(theme, look))
        })
        .right("Tasks", 5, |worker| worker.running.to_string())
        .right("CPUs", 9, |worker| use_of(worker, "cpus"))
        .right("GPUs", if has_gpus { 7 } else { 0 }, gpus)
        // The detail view below shows more of it.
        .right("Memory", if area.width < 100 { 0 } else { 10 }, memory_of)
        .right("Failed there", 13, |worker| {
            failed_there(theme, ends.get(&worker.id).copied())
        });
    let connected = shown.iter().filter(|worker| worker.ended.is_none());
    let title = format!(
        " Workers ({} of {} connected) ",
        connected.count(),
        shown.len()
    );
    let rows = shown.iter().copied();
    columns.draw(frame, list, theme, hits, &title, rows);
    if let Some(worker) = app.selected_worker() {
        worker_detail(frame, detail, app, worker);
    }
}

/// A word for the state of a worker, and the state that determines its style.
fn state_of_worker(worker: &WorkerRow, is_suspect: bool) -> (&str, &'static str) {
    match (&worker.ended, &worker.quarantine) {
        (Some(why), _) => (why, "lost"),
        (None, Some(word)) => (word, "draining"),
        (None, None) if is_suspect => ("broken?", "broken?"),
        (None, None) if worker.is_draining => ("draining", "draining"),
        (None, None) => ("connected", "connected"),
    }
}

/// Tasks that failed, and all that ended, by worker.
fn ends_of_workers(ended: &[EndedShare]) -> BTreeMap<u32, (u64, u64)> {
    let mut ends = BTreeMap::<u32, (u64, u64)>::new();
    for share in ended {
        let (failed, all) = ends.entry(share.worker).or_default();
        *all += share.count;
        if share.error.is_some() {
            *failed += share.count;
        }
    }
    ends
}

fn failed_there(theme: Theme, ends: Option<(u64, u64)>) -> Span<'static> {
    let (failed, all) = ends.unwrap_or_default();
    if failed == 0 {
        return Span::default();
    }
    let style = if failed * 2 > all {
        state_style(theme, "failed")
    } else {
        Style::new()
    };
    let percent = failed * 100 / all.max(1);
    Span::styled(format!("{} ({percent} %)", number(failed)), style)
}

fn find<'a>(worker: &'a WorkerRow, name: &str) -> Option<&'a ResourceRow> {
    worker.resources.iter().find(|item| item.name == name)
}

fn use_of(worker: &WorkerRow, name: &str) -> String {
    find(worker, name).map_or(String::new(), |item| {
        let used = item.used.filter(|_| worker.ended.is_none());
        used.map_or(amount(item.total), |used| {
            format!("{}/{}", amount(used), amount(item.total))
        })
    })
}

fn gpus(worker: &WorkerRow) -> String {
    let kinds = ["gpus/nvidia", "gpus/amd"];
    kinds
        .iter()
        .map(|kind| use_of(worker, kind))
        .find(|text| !text.is_empty())
        .unwrap_or_default()
}

fn memory_of(worker: &WorkerRow) -> String {
    find(worker, "mem").map_or(String::new(), |item| memory(item.total))
}

/// Each resource with a bar; a bar per group (NUMA node) if it has several.
fn worker_detail(frame: &mut Frame<'_>, area: Rect, app: &App, worker: &WorkerRow) {
    let mut lines = Vec::new();
    let style = state_style(app.theme, "failed");
    for text in what_is_wrong(app, worker, area.width.saturating_sub(2).into()) {
        lines.push(Line::styled(text, style));
    }
    for item in &worker.resources {
        let shown = if item.name == "mem" { memory } else { amount };
        let mut line = vec![Span::raw(format!("{:<14}", fit(&item.name, 13)))];
        if let Some(used) = item.used.filter(|_| worker.ended.is_none()) {
            let cells = used.saturating_mul(20).checked_div(item.total);
            let full = usize::try_from(cells.unwrap_or(0).min(20)).unwrap_or(0);
            let on = glyph(app.theme, "finished").repeat(full);
            let off = glyph(app.theme, "waiting").repeat(20 - full);
            line.push(Span::styled(on, state_style(app.theme, "running")));
            line.push(Span::raw(off));
            line.push(Span::raw(format!("  {} reserved of ", shown(used))));
        }
        line.push(Span::raw(shown(item.total)));
        if !item.groups.is_empty() {
            let sizes: Vec<String> = item.groups.iter().map(usize::to_string).collect();
            line.push(Span::raw(format!(
                "  in {} NUMA nodes: {}",
                item.groups.len(),
                sizes.join(" + ")
            )));
        }
        lines.push(Line::from(line));
    }
    if let Some(load) = &worker.load {
        lines.push(Line::from(load_text(load)));
    }
    let mut title = format!(
        " Worker {} on {}, for {} ",
        worker.id,
        worker.host,
        since(worker.started_ns, app.now_ns())
    );
    if let Some(allocation) = &worker.allocation {
        title.push_str(&format!("in allocation {allocation} "));
    }
    let block = titled(app.theme, area, &title);
    frame.render_widget(Paragraph::new(lines).block(block), area);
}

/// Why the worker's node is suspected, on at most two lines.
fn what_is_wrong(app: &App, worker: &WorkerRow, width: usize) -> Vec<String> {
    let is_it = |problem: &ProblemRow| {
        problem.is_open && matches!(&problem.target, Target::Node(_, host) if *host == worker.host)
    };
    let found = app.problems().unwrap_or_default().into_iter().find(is_it);
    found
        .map(|problem| wrapped(&problem.text, width))
        .unwrap_or_default()
}

/// Hardware usage of a machine, tasks of others included.
fn load_text(load: &LoadRow) -> String {
    let shown = |bytes: u64| memory(bytes / (1 << 20) * UNITS_PER_WHOLE);
    let mut text = format!(
        "{:<14}cpus {} %, memory {} used of {}",
        "machine load",
        load.cpus,
        shown(load.memory_used_bytes),
        shown(load.memory_total_bytes)
    );
    if let Some(gpus) = load.gpus {
        text.push_str(&format!(", gpus {gpus} %"));
    }
    text
}

pub(super) fn allocations(frame: &mut Frame<'_>, area: Rect, app: &App, hits: &mut Hits) {
    let [list, detail] = Layout::vertical([Constraint::Fill(1); 2]).areas(area);
    let theme = app.theme;
    let reason_width = if area.width < 70 { 8 } else { 20 };
    let count = |queue: &QueueRow, state: &str| {
        let all = queue.allocations.iter();
        all.filter(|allocation| allocation.state == state).count() as u64
    };
    let columns = List::<QueueRow>::new()
        .right("ID", 4, |queue| queue.id.to_string())
        .left("Name", 12, |queue| fit(&queue.name, 12))
        .left("State", 7, |queue| {
            let state = match (queue.is_paused, queue.is_failing) {
                (true, _) => "paused",
                (false, true) => "refused",
                (false, false) => "active",
            };
            Span::styled(state, state_style(theme, state))
        })
        .right("Queued", 6, |queue| number(count(queue, "queued")))
        .right("Running", 7, |queue| number(count(queue, "running")))
        .right("Failed", 6, |queue| failed(theme, count(queue, "failed")))
        .left("Reason", Constraint::Min(reason_width), |queue| {
            queue_reason(&queue.reason)
        });
    let queues = app.queues();
    let title = format!(" Allocation queues ({}) ", queues.len());
    columns.draw(frame, list, theme, hits, &title, queues.iter());
    if let Some(queue) = app.selected_queue() {
        let [reason, table] =
            Layout::vertical([Constraint::Length(2), Constraint::Min(3)]).areas(detail);
        let text = Paragraph::new(queue.reason.as_str());
        frame.render_widget(text.wrap(Wrap { trim: true }), reason);
        allocations_of(frame, table, app, queue);
    } else {
        let text = if app.has_queues() {
            "There is no queue of automatic allocation; see `hq alloc add`."
        } else {
            "the server has not said yet ..."
        };
        frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: true }), detail);
    }
}

fn allocations_of(frame: &mut Frame<'_>, area: Rect, app: &App, queue: &QueueRow) {
    let (theme, now_ns) = (app.theme, app.now_ns());
    let time = |from: Option<i64>, to: Option<i64>| {
        from.map_or(String::new(), |from| since(from, to.unwrap_or(now_ns)))
    };
    let columns = List::<AllocationRow>::new()
        .left("Allocation", Constraint::Min(12), |row| row.id.as_str())
        .left("State", 9, |row| {
            Span::styled(row.state.as_str(), state_style(theme, &row.state))
        })
        .right("Workers", 7, |row| row.workers.to_string())
        .left("Waited", 10, |row| time(row.queued_ns, row.started_ns))
        .left("Ran", 10, |row| time(row.started_ns, row.ended_ns));
    let rows = queue.allocations.iter().rev();
    let table = columns.table(rows, 0..area.height.into());
    frame.render_widget(table.block(bordered(theme)), area);
}

/// Failures of an ended job, if it has any.
fn failures_of(app: &App, event: &EventRow) -> String {
    let jobs = app.snapshot.as_ref().map(|snapshot| &snapshot.jobs);
    let found = jobs.zip(event.job).and_then(|(jobs, id)| {
        let at = jobs.binary_search_by_key(&id, |job| job.id).ok()?;
        jobs.get(at)
    });
    match found {
        Some(job) if event.kind == "job-completed" && job.counts.failed > 0 => format!(
            "  {}: {} failed",
            fit(&job.name, 20),
            part(job.counts.failed, job.counts.total(), "task")
        ),
        _ => String::new(),
    }
}

pub(super) fn events(frame: &mut Frame<'_>, area: Rect, app: &App, hits: &mut Hits) {
    let kind_width = if area.width < 100 { 22 } else { 28 };
    let bad = state_style(app.theme, "failed");
    let columns = List::<EventRow>::new()
        .left("Time", CLOCK_WIDTH, |event| clock_and_day(event.at_ns))
        .left("Event", kind_width, |event| {
            let words = fit(&event_words(&event.kind), kind_width.into());
            match event.kind.as_str() {
                "worker-lost" => Span::styled(words, bad),
                _ => Span::raw(words),
            }
        })
        // The end of a job is normal; failures of its tasks are not.
        .left("", Constraint::Min(20), |event| {
            let came_of_it = failures_of(app, event);
            vec![Span::raw(&event.text), Span::styled(came_of_it, bad)]
        });
    let (title, rows) = (" Events, newest first ", app.events.iter().rev());
    columns.draw(frame, area, app.theme, hits, title, rows);
}
