//! Details of a job: states of its tasks, causes of failures, run times.

use hq_core::diagnosis;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Wrap};

use super::list::List;
use super::parts::{
    CLOCK_WIDTH, bordered, clock_and_day, colored, glyph, number, params_width, run_time,
    state_style, strong, titled, worst,
};
use crate::dashboard::app::{App, Hits};
use crate::dashboard::model::{Counts, FailureRow, JobView};
use crate::dashboard::source::FAILURES_MAX;
use crate::output::pace;
use crate::text::fit;

/// Rows of the strip.
const STRIP_ROWS: u16 = 3;

pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, app: &App, hits: &mut Hits) {
    let rows = [
        Constraint::Length(1),
        Constraint::Length(STRIP_ROWS + 2),
        Constraint::Min(6),
        // A large screen has room for more than the last words.
        Constraint::Length((area.height / 3).clamp(6, 16)),
    ];
    let [figures, strip, middle, output] = Layout::vertical(rows).areas(area);
    draw_figures(frame, figures, app);
    let Some(view) = &app.view else {
        frame.render_widget("reading the tasks ...", strip);
        return;
    };
    draw_strip(frame, strip, app, view);
    let wide = area.width >= 110;
    let histogram_width = if wide { 46 } else { 30 };
    let columns = [Constraint::Min(30), Constraint::Length(histogram_width)];
    let [failures, histogram] = Layout::horizontal(columns).areas(middle);
    draw_failures(frame, failures, app, view, hits);
    draw_histogram(frame, histogram, app, view);
    draw_output(frame, output, app);
}

fn draw_figures(frame: &mut Frame<'_>, area: Rect, app: &App) {
    let Some(job) = app.current_job_row() else {
        frame.render_widget(format!("job {} was forgotten", app.job.unwrap_or(0)), area);
        return;
    };
    let counts = &job.counts;
    let mut line = vec![Span::styled(
        format!(
            "Job {} `{}` ",
            job.id,
            fit(&job.name, usize::from(area.width / 4).max(20))
        ),
        strong(),
    )];
    for (state, count) in [
        ("running", counts.running),
        ("waiting", counts.waiting),
        ("finished", counts.finished),
        ("failed", counts.failed),
        ("canceled", counts.canceled),
        ("aborted", counts.aborted),
    ] {
        if count > 0 {
            line.push(Span::styled(
                format!(" {} {state} ", number(count)),
                state_style(app.theme, state),
            ));
        }
    }
    if let Some(left) = job.left() {
        line.push(Span::raw(format!(" {} left", pace::whole(left))));
        if let Some(until) = job.pace.and_then(|pace| pace::until(&pace, app.now_ns())) {
            line.push(Span::raw(format!(", until {until}")));
        }
    }
    frame.render_widget(Line::from(line), area);
}

fn draw_strip(frame: &mut Frame<'_>, area: Rect, app: &App, view: &JobView) {
    let ids = if view.are_ids_known {
        format!(
            "Tasks {} to {}",
            number(view.ids.0.into()),
            number(view.ids.1.into())
        )
    } else {
        let count = u64::from(view.ids.1 - view.ids.0) + 1;
        format!(
            "{} task{}",
            number(count),
            if count == 1 { "" } else { "s" }
        )
    };
    let title = format!(
        " {ids}, in order{} ",
        if view.is_partial {
            "; not all: there are too many gaps"
        } else {
            ""
        }
    );
    let block = bordered(app.theme).title(title);
    let inner = block.inner(area);
    let cells = (usize::from(inner.width) * usize::from(STRIP_ROWS))
        .min(view.bins.len())
        .max(1);
    let mut lines: Vec<Line<'_>> = Vec::new();
    let mut line = Vec::new();
    for cell in 0..cells {
        let from = cell * view.bins.len() / cells;
        let to = (cell + 1) * view.bins.len() / cells;
        let mut counts = Counts::default();
        view.bins
            .iter()
            .take(to)
            .skip(from)
            .for_each(|bin| counts.add(*bin));
        let state = worst(&counts);
        line.push(Span::styled(
            glyph(app.theme, state),
            state_style(app.theme, state),
        ));
        if line.len() == usize::from(inner.width) {
            lines.push(std::mem::take(&mut line).into());
        }
    }
    lines.push(line.into());
    frame.render_widget(Paragraph::new(lines).block(block), area);
}

fn draw_failures(frame: &mut Frame<'_>, area: Rect, app: &App, view: &JobView, hits: &mut Hits) {
    let (host, clock) = if area.width > 60 {
        (14, CLOCK_WIDTH)
    } else {
        (8, 0)
    };
    let params = params_width(view.failures.iter().map(|row| &*row.params), area.width);
    let list = List::<FailureRow>::new()
        .right("Task", 9, |row| number(row.task.into()))
        .left("Failure", Constraint::Min(12), |row| row.error.as_str())
        .left("Parameters", params, |row| row.params.as_str())
        .left("Host", host, |row| row.host.as_str())
        .right("Took", 7, |row| run_time(row.run_us))
        .left("At", clock, |row| clock_and_day(row.ended_ns));
    let title = match view.failures.len() {
        0 => " No task has failed ".to_owned(),
        count if count >= FAILURES_MAX => format!(" The last {count} failures "),
        count => format!(" {count} failed, last first "),
    };
    let rows = view.failures.iter();
    list.draw(frame, area, app.theme, hits, &title, rows);
    let waiting = app.current_job_row().map_or(2, |job| job.counts.waiting);
    let obstacle = app.job.and_then(|job| app.obstacle(job));
    let why = obstacle
        .map(|why| diagnosis::why_waiting(waiting, None, why))
        .or_else(|| Some(format!("waits: {}", view.waits.as_deref()?)));
    if let Some(text) = why.filter(|_| view.failures.is_empty()) {
        let style = state_style(app.theme, "starving");
        let text = Paragraph::new(text).style(style).wrap(Wrap { trim: true });
        frame.render_widget(text, hits.rows);
    }
}

fn draw_histogram(frame: &mut Frame<'_>, area: Rect, app: &App, view: &JobView) {
    let used = |(_, (_, count)): &(usize, &(u64, u64))| *count > 0;
    let bins = || view.run_times.iter().enumerate();
    let (first, last) = (bins().find(used), bins().rev().find(used));
    let block = bordered(app.theme).title(" Run times ");
    let inner = block.inner(area);
    let mut lines = Vec::new();
    if let (Some((first, _)), Some((last, _))) = (first, last) {
        let shown = view
            .run_times
            .iter()
            .take(last + 1)
            .skip(first)
            .take(inner.height.into());
        let most = shown.clone().map(|(_, count)| *count).max().unwrap_or(1);
        let room = u64::from(inner.width.saturating_sub(19));
        for (bound, count) in shown {
            let label = if *bound == u64::MAX {
                "longer".to_owned()
            } else {
                format!("< {}", run_time(*bound))
            };
            let cells = (count * room)
                .checked_div(most)
                .unwrap_or(0)
                .max(u64::from(*count > 0));
            let bar = if app.theme.unicode { "█" } else { "#" }
                .repeat(usize::try_from(cells).unwrap_or(0));
            lines.push(Line::from(vec![
                Span::raw(format!("{label:>9} ")),
                Span::styled(bar, colored(app.theme, Style::new(), Color::Green)),
                Span::raw(format!(" {}", number(*count))),
            ]));
        }
    }
    frame.render_widget(Paragraph::new(lines).block(block), area);
}

fn draw_output(frame: &mut Frame<'_>, area: Rect, app: &App) {
    let wanted = app.failure().map(|failure| failure.task);
    let shown = app
        .output
        .as_ref()
        .filter(|output| Some(output.task) == wanted && Some(output.job) == app.job);
    let Some(output) = shown else {
        frame.render_widget(bordered(app.theme).title(" Output "), area);
        return;
    };
    let room = usize::from(area.height.saturating_sub(2));
    let lines = output
        .lines
        .iter()
        .skip(output.lines.len().saturating_sub(room));
    let lines: Vec<Line<'_>> = lines.map(|line| Line::raw(line.as_str())).collect();
    let block = titled(app.theme, area, &format!(" {} ", output.title));
    frame.render_widget(Paragraph::new(lines).block(block), area);
}
