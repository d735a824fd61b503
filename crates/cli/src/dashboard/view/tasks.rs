//! All tasks of a job or worker.

use ratatui::Frame;
use ratatui::layout::{Constraint, Rect};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Row, Table};

use super::lists::{header, highlight};
use super::parts::{
    CLOCK_WIDTH, bordered, clock_and_day, number, params_width, run_time, state_style,
};
use crate::dashboard::app::App;
use crate::dashboard::app::tasks::Tasks;
use crate::dashboard::model::{TaskRow, TasksOf};
use crate::text::fit;

pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, app: &mut App) {
    let Some(mut tasks) = app.tasks.take() else {
        return;
    };
    let now_ns = app.now_ns();
    let height = usize::from(area.height);
    let offset = tasks.table.offset();
    // Only what can be seen is made: there may be thousands.
    let shown = offset.saturating_sub(height)..offset.saturating_add(2 * height);
    let rows: Vec<Row<'_>> = tasks
        .rows()
        .iter()
        .enumerate()
        .map(|(at, task)| {
            if shown.contains(&at) {
                row(app, task, now_ns)
            } else {
                Row::default()
            }
        })
        .collect();
    let seen = tasks.rows().iter().skip(shown.start).take(shown.len());
    let params = seen.map(|task| &*task.params);
    let is_of_worker = matches!(tasks.of, TasksOf::Worker(_));
    let widths = [
        Constraint::Length(if is_of_worker { 6 } else { 0 }),
        Constraint::Length(10),
        Constraint::Length(8),
        Constraint::Length(params_width(params, area.width)),
        Constraint::Length(match area.width {
            0..60 => 8,
            60..100 => 14,
            100.. => 30,
        }),
        Constraint::Length(if area.width < 60 { 0 } else { CLOCK_WIDTH }),
        Constraint::Length(8),
        Constraint::Min(10),
    ];
    let inner = bordered(app.theme).inner(area);
    app.hits.rows = Rect {
        y: inner.y + 1,
        height: inner.height.saturating_sub(1),
        ..inner
    };
    let names = [
        "   Job",
        "      Task",
        "State",
        "Parameters",
        "Host",
        "Started",
        "    Took",
        "Failure",
    ];
    let title = fit(&title(&tasks), area.width.saturating_sub(2).into());
    let table = Table::new(rows, widths)
        .header(header(&names))
        .row_highlight_style(highlight(app.theme))
        .block(bordered(app.theme).title(title));
    let mut state = tasks.table;
    frame.render_stateful_widget(table, area, &mut state);
    tasks.table = state;
    app.tasks = Some(tasks);
}

fn row<'a>(app: &App, task: &'a TaskRow, now_ns: i64) -> Row<'a> {
    let took = task.started_ns.map(|from| {
        let to = task.ended_ns.unwrap_or(now_ns);
        run_time(u64::try_from((to - from).max(0) / 1_000).unwrap_or(0))
    });
    let state = task.state.name();
    Row::new(vec![
        Line::from(task.job.to_string()).right_aligned(),
        Line::from(number(task.task.into())).right_aligned(),
        Line::from(Span::styled(state, state_style(app.theme, state))),
        Line::from(task.params.as_str()),
        Line::from(task.host.as_str()),
        Line::from(task.started_ns.map(clock_and_day).unwrap_or_default()),
        Line::from(took.unwrap_or_default()).right_aligned(),
        Line::from(task.error.as_str()),
    ])
}

fn title(tasks: &Tasks) -> String {
    let mut title = match tasks.of {
        TasksOf::Job(job) => format!(" Tasks of job {job}"),
        TasksOf::Worker(worker) => format!(" Tasks of worker {worker}, the last one first"),
    };
    match &tasks.page {
        None => title.push_str(": reading ..."),
        Some(page) => {
            title.push_str(&format!(" ({}", number(page.rows.len() as u64)));
            if let Some(why) = page.is_cut {
                title.push_str(&format!("; {why}"));
            }
            title.push(')');
            if tasks.is_old() {
                title.push_str(" ...");
            }
        }
    }
    if !tasks.filter.is_empty() {
        title.push_str(&format!(", matching `{}`", tasks.filter));
    }
    title.push(' ');
    title
}
