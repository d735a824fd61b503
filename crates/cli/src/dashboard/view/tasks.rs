//! All tasks of a job or worker.

use ratatui::Frame;
use ratatui::layout::{Constraint, Rect};
use ratatui::text::Span;

use super::list::{self, List};
use super::parts::{CLOCK_WIDTH, clock_and_day, number, params_width, run_time, state_style};
use crate::dashboard::app::tasks::Tasks;
use crate::dashboard::app::{App, Hits};
use crate::dashboard::model::{TaskRow, TasksOf};

pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, app: &App, hits: &mut Hits) {
    let Some(tasks) = &app.tasks else {
        return;
    };
    let (theme, now_ns) = (app.theme, app.now_ns());
    let seen = list::seen(&hits.table, area);
    let seen = tasks.rows().iter().skip(seen.start).take(seen.len());
    let params = params_width(seen.map(|task| &*task.params), area.width);
    let (job, is_small) = (matches!(tasks.of, TasksOf::Worker(_)), area.width < 60);
    let host = match area.width {
        0..60 => 8,
        60..100 => 14,
        100.. => 30,
    };
    let list = List::<TaskRow>::new()
        .right("Job", if job { 6 } else { 0 }, |task| task.job.to_string())
        .right("Task", 10, |task| number(task.task.into()))
        .left("State", 8, |task| {
            let state = task.state.name();
            Span::styled(state, state_style(theme, state))
        })
        .left("Parameters", params, |task| task.params.as_str())
        .left("Host", host, |task| task.host.as_str())
        .left("Started", if is_small { 0 } else { CLOCK_WIDTH }, |task| {
            task.started_ns.map(clock_and_day).unwrap_or_default()
        })
        .right("Took", 8, |task| took(task, now_ns))
        .left("Failure", Constraint::Min(10), |task| task.error.as_str());
    let rows = tasks.rows().iter();
    list.draw(frame, area, theme, hits, &title(tasks), rows);
}

/// How long a task ran up to now.
fn took(task: &TaskRow, now_ns: i64) -> String {
    task.started_ns.map_or(String::new(), |from| {
        let ns = task.ended_ns.unwrap_or(now_ns) - from;
        run_time(u64::try_from(ns.max(0) / 1_000).unwrap_or(0))
    })
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
