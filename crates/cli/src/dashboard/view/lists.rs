//! Tables: jobs, workers, allocations, events.

use std::collections::BTreeMap;

use hq_core::diagnosis::{queue_reason, suspect_hosts};
use hq_core::resource::amount::UNITS_PER_WHOLE;
use hq_core::words::part;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Row, Table, Wrap};

use super::parts::{
    CLOCK_WIDTH, bordered, clock_and_day, event_words, number, progress, since, state_style,
    strong, wrapped,
};
use crate::dashboard::app::{App, Theme};
use crate::dashboard::model::{
    AllocationRow, EndedShare, EventRow, JobRow, LoadRow, ProblemRow, QueueRow, Target, WorkerRow,
};
use crate::output::format::{amount, memory};
use crate::output::pace;
use crate::text::fit;

/// Draws the table of this view and remembers where its rows are.
fn draw_table(frame: &mut Frame<'_>, area: Rect, app: &mut App, title: &str, table: Table<'_>) {
    let inner = bordered(app.theme).inner(area);
    app.hits.rows = Rect {
        y: inner.y + 1,
        height: inner.height.saturating_sub(1),
        ..inner
    };
    let table = table
        .row_highlight_style(highlight(app.theme))
        .block(bordered(app.theme).title(fit(title, area.width.saturating_sub(2).into())));
    frame.render_stateful_widget(table, area, app.table());
}

/// Reversed colours would make holes of full blocks.
pub(super) fn highlight(theme: Theme) -> Style {
    if theme.colors {
        Style::new()
            .bg(Color::Indexed(238))
            .add_modifier(Modifier::BOLD)
    } else {
        Style::new().add_modifier(Modifier::REVERSED)
    }
}

pub(super) fn header(names: &[&'static str]) -> Row<'static> {
    Row::new(names.to_vec()).style(strong())
}

/// Widths of the columns of jobs on a screen.
struct JobColumns {
    name: u16,
    bar: u16,
    /// `0` = there is no room for it; on small screens the bar has to do.
    percent: u16,
    ended: u16,
    rate: u16,
    until: u16,
}

/// Columns whose width never changes, with the border and the spaces between all columns.
const JOB_FIXED: u16 = 6 + 8 + 10 + 6 + 7 + 8 + 2 + 11;
/// Longer names are rare.
const NAME_WIDTH: u16 = 64;

impl JobColumns {
    fn of(width: u16) -> Self {
        let from = |least: u16, room: u16| if width >= least { room } else { 0 };
        let mut columns = Self {
            name: 0,
            bar: 8,
            percent: from(90, 5),
            ended: from(100, 11),
            rate: from(130, 14),
            until: from(150, 16),
        };
        let others = columns.percent + columns.ended + columns.rate + columns.until;
        let left = width.saturating_sub(JOB_FIXED + others + columns.bar);
        // Names first, then bars.
        columns.name = left.clamp(8, NAME_WIDTH);
        columns.bar += left.saturating_sub(NAME_WIDTH);
        columns
    }
}

pub(super) fn jobs(frame: &mut Frame<'_>, area: Rect, app: &mut App) {
    if app.snapshot.is_none() {
        frame.render_widget("waiting for the server ...", area);
        return;
    }
    let visible = app.visible_jobs();
    let columns = JobColumns::of(area.width);
    let offset = app.jobs_table.offset();
    let height = usize::from(area.height);
    // Only what can be seen is made: there may be a hundred thousand.
    let shown = offset.saturating_sub(height)..offset.saturating_add(2 * height);
    let rows: Vec<Row<'_>> = visible
        .iter()
        .enumerate()
        .map(|(at, job)| {
            if shown.contains(&at) {
                job_row(app, job, &columns)
            } else {
                Row::default()
            }
        })
        .collect();
    let mark = if app.is_descending { "down" } else { "up" };
    let mut title = format!(
        " Jobs ({}), by {} {mark} ",
        visible.len(),
        app.order.title()
    );
    if !app.search.is_empty() {
        title.push_str(&format!("matching `{}` ", app.search));
    }
    let is_empty = visible.is_empty();
    let widths = [
        Constraint::Length(6),
        Constraint::Length(columns.name),
        Constraint::Length(8),
        Constraint::Length(columns.bar),
        Constraint::Length(10),
        Constraint::Length(columns.percent),
        Constraint::Length(columns.ended),
        Constraint::Length(6),
        Constraint::Length(7),
        Constraint::Length(8),
        Constraint::Length(columns.rate),
        Constraint::Length(columns.until),
    ];
    let table = Table::new(rows, widths).header(header(&[
        "    ID",
        "Name",
        "State",
        "Progress",
        "     Tasks",
        " Done",
        "      Ended",
        "   Run",
        " Failed",
        "    Left",
        "          Rate",
        "Until",
    ]));
    draw_table(frame, area, app, &title, table);
    if is_empty {
        let text = if app.search.is_empty() {
            "There are no jobs yet; `hq submit -- COMMAND` submits one."
        } else {
            "No job matches; Esc shows all."
        };
        frame.render_widget(Paragraph::new(text), app.hits.rows);
    }
}

fn job_row(app: &App, job: &JobRow, columns: &JobColumns) -> Row<'static> {
    let (theme, counts) = (app.theme, &job.counts);
    // Tasks that were canceled or aborted are not done.
    let percent = ((counts.finished + counts.failed) * 100).checked_div(counts.total());
    let failed_style = if counts.failed > 0 {
        state_style(theme, "failed")
    } else {
        Style::new()
    };
    let pace = job.pace.filter(|_| job.left().is_some());
    let right = |text: String| Line::from(text).right_aligned();
    Row::new(vec![
        right(job.id.to_string()),
        Line::from(fit(&job.name, columns.name.into())),
        Line::from(state_of(app, job)),
        Line::from(progress(theme, counts, columns.bar)),
        right(number(counts.total())),
        right(percent.map_or(String::new(), |percent| format!("{percent} %"))),
        right(number(counts.ended())),
        right(number(counts.running)),
        Line::from(Span::styled(number(counts.failed), failed_style)).right_aligned(),
        right(job.left().map(pace::whole).unwrap_or_default()),
        right(
            pace.map(|pace| pace::rate_text(pace.rate))
                .unwrap_or_default(),
        ),
        Line::from(
            pace.and_then(|pace| pace::until(&pace, app.now_ns()))
                .unwrap_or_default(),
        ),
    ])
}

/// A word for a job; one of which nothing can run does not just wait.
fn state_of(app: &App, job: &JobRow) -> Span<'static> {
    if job.is_starving() && app.obstacle(job.id).is_some() {
        return Span::styled("starving", state_style(app.theme, "starving"));
    }
    Span::styled(job.state(), state_style(app.theme, job.state()))
}

pub(super) fn workers(frame: &mut Frame<'_>, area: Rect, app: &mut App) {
    if app.snapshot.is_none() {
        frame.render_widget("waiting for the server ...", area);
        return;
    }
    let [list, detail] = Layout::vertical([Constraint::Min(5), Constraint::Length(7)]).areas(area);
    let theme = app.theme;
    let is_narrow = area.width < 70;
    let state_width: u16 = if is_narrow { 9 } else { 14 };
    let suspects = suspect_hosts(&app.ended);
    let ends = ends_of_workers(&app.ended);
    let shown = app.visible_workers();
    let has_gpus = shown.iter().any(|worker| !gpus(worker).is_empty());
    let rows: Vec<Row<'static>> = shown
        .iter()
        .map(|worker| {
            let state = match worker.ended.as_deref() {
                Some(why) => why,
                None if worker.quarantine.is_some() => worker.quarantine.as_deref().unwrap_or(""),
                None if suspects.contains(worker.host.as_str()) => "broken?",
                None if worker.is_draining => "draining",
                None => "connected",
            };
            let look = match state {
                "draining" | "connected" | "broken?" => state,
                _ if worker.ended.is_none() => "draining",
                _ => "lost",
            };
            let style = state_style(theme, look);
            Row::new(vec![
                Line::from(worker.id.to_string()).right_aligned(),
                Line::from(fit(&worker.host, if is_narrow { 24 } else { 60 })),
                Line::from(Span::styled(fit(state, state_width.into()), style)),
                Line::from(worker.running.to_string()).right_aligned(),
                Line::from(use_of(worker, "cpus")).right_aligned(),
                Line::from(gpus(worker)).right_aligned(),
                Line::from(memory_of(worker)).right_aligned(),
                failed_there(theme, ends.get(&worker.id).copied()),
            ])
        })
        .collect();
    let widths = [
        Constraint::Length(6),
        Constraint::Min(8),
        Constraint::Length(state_width),
        Constraint::Length(5),
        Constraint::Length(9),
        Constraint::Length(if has_gpus { 7 } else { 0 }),
        // Below there is more of it than here.
        Constraint::Length(if area.width < 100 { 0 } else { 10 }),
        Constraint::Length(13),
    ];
    let title = format!(
        " Workers ({} of {} connected) ",
        shown.iter().filter(|worker| worker.ended.is_none()).count(),
        shown.len()
    );
    let table = Table::new(rows, widths).header(header(&[
        "    ID",
        "Host",
        "State",
        "Tasks",
        "     CPUs",
        "   GPUs",
        "    Memory",
        " Failed there",
    ]));
    draw_table(frame, list, app, &title, table);
    if let Some(worker) = app.selected_worker() {
        worker_detail(frame, detail, app, worker);
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

fn failed_there(theme: Theme, ends: Option<(u64, u64)>) -> Line<'static> {
    let (failed, all) = ends.unwrap_or_default();
    if failed == 0 {
        return Line::default();
    }
    let style = if failed * 2 > all {
        state_style(theme, "failed")
    } else {
        Style::new()
    };
    let percent = failed * 100 / all.max(1);
    Line::from(Span::styled(
        format!("{} ({percent} %)", number(failed)),
        style,
    ))
    .right_aligned()
}

fn find<'a>(worker: &'a WorkerRow, name: &str) -> Option<&'a crate::dashboard::model::ResourceRow> {
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

/// Each resource with a bar, group by group where it has several (NUMA nodes).
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
            let width: u64 = 20;
            let full = usize::try_from(
                used.saturating_mul(width)
                    .checked_div(item.total)
                    .unwrap_or(0)
                    .min(width),
            )
            .unwrap_or(0);
            let (on, off) = if app.theme.unicode {
                ("█", "·")
            } else {
                ("#", ".")
            };
            line.push(Span::styled(
                on.repeat(full),
                state_style(app.theme, "running"),
            ));
            line.push(Span::raw(off.repeat(20 - full)));
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
    let block = bordered(app.theme).title(fit(&title, area.width.saturating_sub(2).into()));
    frame.render_widget(Paragraph::new(lines).block(block), area);
}

/// Why its node is suspected, on two lines at most.
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

pub(super) fn allocations(frame: &mut Frame<'_>, area: Rect, app: &mut App) {
    let Some(snapshot) = app.snapshot.take() else {
        frame.render_widget("waiting for the server ...", area);
        return;
    };
    let [list, detail] = Layout::vertical([Constraint::Fill(1); 2]).areas(area);
    let theme = app.theme;
    let rows: Vec<Row<'_>> = snapshot
        .queues
        .iter()
        .map(|queue| queue_row(theme, queue))
        .collect();
    let widths = [
        Constraint::Length(4),
        Constraint::Length(12),
        Constraint::Length(7),
        Constraint::Length(6),
        Constraint::Length(7),
        Constraint::Length(6),
        Constraint::Min(if area.width < 70 { 8 } else { 20 }),
    ];
    let title = format!(" Allocation queues ({}) ", snapshot.queues.len());
    let names = [
        "  ID", "Name", "State", "Queued", "Running", "Failed", "Reason",
    ];
    draw_table(
        frame,
        list,
        app,
        &title,
        Table::new(rows, widths).header(header(&names)),
    );
    let selected = app
        .queues_table
        .selected()
        .and_then(|at| snapshot.queues.get(at));
    match selected {
        Some(queue) => {
            let [reason, table] =
                Layout::vertical([Constraint::Length(2), Constraint::Min(3)]).areas(detail);
            frame.render_widget(
                Paragraph::new(queue.reason.as_str()).wrap(Wrap { trim: true }),
                reason,
            );
            allocation_table(frame, table, app, &queue.allocations, snapshot.now_ns);
        }
        None => {
            let text = if app.has_queues() {
                "There is no queue of automatic allocation; see `hq alloc add`."
            } else {
                "the server has not said yet ..."
            };
            frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: true }), detail);
        }
    }
    app.snapshot = Some(snapshot);
}

fn queue_row(theme: Theme, queue: &QueueRow) -> Row<'_> {
    let state = match (queue.is_paused, queue.is_failing) {
        (true, _) => "paused",
        (false, true) => "refused",
        (false, false) => "active",
    };
    let count = |state: &str| {
        let all = queue.allocations.iter();
        all.filter(|allocation| allocation.state == state).count()
    };
    let failed = count("failed");
    let style = if failed == 0 {
        Style::new()
    } else {
        state_style(theme, "failed")
    };
    Row::new(vec![
        Line::from(queue.id.to_string()).right_aligned(),
        Line::from(fit(&queue.name, 12)),
        Line::from(Span::styled(state, state_style(theme, state))),
        Line::from(count("queued").to_string()).right_aligned(),
        Line::from(count("running").to_string()).right_aligned(),
        Line::from(Span::styled(failed.to_string(), style)).right_aligned(),
        Line::from(queue_reason(&queue.reason)),
    ])
}

fn allocation_table(
    frame: &mut Frame<'_>,
    area: Rect,
    app: &App,
    allocations: &[AllocationRow],
    now_ns: i64,
) {
    let rows = allocations.iter().rev().map(|allocation| {
        let waited = allocation
            .queued_ns
            .map(|at| since(at, allocation.started_ns.unwrap_or(now_ns)));
        let ran = allocation
            .started_ns
            .map(|at| since(at, allocation.ended_ns.unwrap_or(now_ns)));
        Row::new(vec![
            Line::from(allocation.id.clone()),
            Line::from(Span::styled(
                allocation.state.clone(),
                state_style(app.theme, &allocation.state),
            )),
            Line::from(allocation.workers.to_string()).right_aligned(),
            Line::from(waited.unwrap_or_default()),
            Line::from(ran.unwrap_or_default()),
        ])
    });
    let widths = [
        Constraint::Min(12),
        Constraint::Length(9),
        Constraint::Length(7),
        Constraint::Length(10),
        Constraint::Length(10),
    ];
    let table = Table::new(rows, widths)
        .header(header(&["Allocation", "State", "Workers", "Waited", "Ran"]))
        .block(bordered(app.theme));
    frame.render_widget(table, area);
}

/// Failures of a job that has ended, if it has any.
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

pub(super) fn events(frame: &mut Frame<'_>, area: Rect, app: &mut App) {
    let events = std::mem::take(&mut app.events);
    let theme = app.theme;
    let kind_width: u16 = if area.width < 100 { 22 } else { 28 };
    let rows: Vec<Row<'_>> = events
        .iter()
        .rev()
        .map(|event| {
            let came_of_it = failures_of(app, event);
            let bad = state_style(theme, "failed");
            let style = if event.kind == "worker-lost" {
                bad
            } else {
                Style::new()
            };
            // The end of a job is nothing bad; failures of its tasks are.
            let text = vec![Span::raw(event.text.clone()), Span::styled(came_of_it, bad)];
            Row::new(vec![
                Line::from(clock_and_day(event.at_ns)),
                Line::styled(fit(&event_words(&event.kind), kind_width.into()), style),
                Line::from(text),
            ])
        })
        .collect();
    let widths = [
        Constraint::Length(CLOCK_WIDTH),
        Constraint::Length(kind_width),
        Constraint::Min(20),
    ];
    let table = Table::new(rows, widths).header(header(&["Time", "Event", ""]));
    draw_table(frame, area, app, " Events, newest first ", table);
    app.events = events;
}
