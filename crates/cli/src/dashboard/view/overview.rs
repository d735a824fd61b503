//! The first view: current activity and problems.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

use super::list::highlight;
use super::parts::{
    bars, bordered, clock_and_day, colored, event_words, number, progress, rough, state_style,
    strong, titled, wrapped,
};
use crate::dashboard::app::{App, Hits};
use crate::dashboard::history::Column;
use crate::dashboard::model::{JobRow, ProblemRow, Snapshot};
use crate::output::format::amount;
use crate::output::pace;
use crate::text::fit;

/// Heights of the figures, and of the charts if they fit.
const FIGURES: u16 = 5;
const CHARTS: std::ops::RangeInclusive<u16> = 3..=6;

pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, app: &App, hits: &mut Hits) {
    let found = app.problems();
    let width = area.width.saturating_sub(4).into();
    // Problems matter more than charts.
    let wanted = found
        .iter()
        .flatten()
        .map(|one| wrapped(&one.text, width).len());
    let wanted = u16::try_from(wanted.sum::<usize>() + 2).unwrap_or(u16::MAX);
    let left = area.height.saturating_sub(FIGURES).saturating_sub(wanted);
    let rows = [
        Constraint::Length(FIGURES),
        Constraint::Length(left.clamp(*CHARTS.start(), *CHARTS.end())),
        Constraint::Min(4),
    ];
    let [figures, charts, problems] = Layout::vertical(rows).areas(area);
    draw_figures(frame, figures, app);
    draw_charts(frame, charts, app);
    draw_problems(frame, problems, app, found.as_deref(), hits);
}

fn draw_figures(frame: &mut Frame<'_>, area: Rect, app: &App) {
    let Some(snapshot) = &app.snapshot else {
        return;
    };
    let counts = snapshot.counts();
    let states = [
        ("running", counts.running),
        ("waiting", counts.waiting),
        ("finished", counts.finished),
        ("failed", counts.failed),
        ("canceled", counts.canceled + counts.aborted),
    ];
    let mut line = Vec::new();
    let is_told = |(state, count): &(&str, u64)| *count > 0 || *state != "canceled";
    for (state, count) in states.into_iter().filter(is_told) {
        let style = if count > 0 {
            state_style(app.theme, state)
        } else {
            Style::new()
        };
        line.push(Span::styled(format!("{} {state}   ", number(count)), style));
    }
    let bar = progress(app.theme, &counts, area.width.saturating_sub(2));
    let connected = snapshot.connected().count();
    let lost = snapshot.workers.len() - connected;
    let open = snapshot
        .jobs
        .iter()
        .filter(|job| job.counts.waiting + job.counts.running > 0);
    let mut use_of = String::new();
    for name in ["cpus", "gpus/nvidia", "gpus/amd"] {
        let (used, total) = snapshot.resource(name);
        if total > 0 {
            let short = name.split('/').next().unwrap_or(name);
            let used = used.map_or_else(|| "?".to_owned(), amount);
            use_of.push_str(&format!("   {short} {used}/{}", amount(total)));
        }
    }
    let figures = format!(
        "{} of {} jobs active   {connected} {}{}{use_of}   {} tasks/s{}",
        number(open.count() as u64),
        number(snapshot.jobs.len() as u64),
        if connected == 1 { "worker" } else { "workers" },
        if lost > 0 {
            format!(" ({lost} gone)")
        } else {
            String::new()
        },
        rate(app),
        left(snapshot).map_or(String::new(), |left| format!("   {left} left")),
    );
    let text = vec![Line::from(line), Line::from(bar), Line::from(figures)];
    frame.render_widget(
        Paragraph::new(text).block(bordered(app.theme).title(" Tasks ")),
        area,
    );
}

/// Time until the last job ends, if it can be estimated for every job.
fn left(snapshot: &Snapshot) -> Option<String> {
    let goes_on = |job: &&JobRow| job.counts.waiting + job.counts.running > 0;
    let jobs = snapshot.jobs.iter().filter(goes_on);
    let lefts: Option<Vec<_>> = jobs.map(JobRow::left).collect();
    Some(pace::whole(lefts?.into_iter().max()?))
}

/// Tasks that ended per second, over the last seconds.
fn rate(app: &App) -> String {
    let tenths = app.history.rate_tenths(app.now_ns());
    if tenths >= 1_000 {
        number(tenths / 10)
    } else {
        format!("{}.{}", tenths / 10, tenths % 10)
    }
}

/// Name, value, optional fixed maximum, color.
type Chart = (&'static str, fn(&Column) -> u64, Option<u64>, Color);

fn draw_charts(frame: &mut Frame<'_>, area: Rect, app: &App) {
    let span = app.chart_span();
    let thirds = Layout::horizontal([Constraint::Fill(1); 3]).split(area);
    let time = rough(span.1 - span.0);
    let charts: [Chart; 3] = [
        ("tasks/s", |column| column.rate, None, Color::Green),
        ("running", |column| column.running, None, Color::Cyan),
        (
            "cpus %",
            |column| column.cpus_percent,
            Some(100),
            Color::Yellow,
        ),
    ];
    for (place, (name, value, max, color)) in thirds.iter().zip(charts) {
        let room = usize::from(place.width.saturating_sub(2));
        let columns = app.history.columns(span, room);
        let shown: Vec<u64> = columns.iter().map(value).collect();
        let peak = shown.iter().copied().max().unwrap_or(0);
        let last = shown.last().copied().unwrap_or(0);
        let title = if max.is_some() {
            format!(" {time}: cpus {last} % now ")
        } else {
            format!(" {time}: {name}, top {} ", number(peak))
        };
        let chart = bars(app.theme, &shown, max.unwrap_or(peak).max(1), color);
        frame.render_widget(chart.block(titled(app.theme, *place, &title)), *place);
    }
}

/// Lines for the problems, worst first: two lines each if they fit, otherwise one; the last line
/// counts the rest. Also returns the problem of each line.
fn problem_lines(
    app: &App,
    found: &[ProblemRow],
    width: usize,
    room: usize,
) -> (Vec<Line<'static>>, Vec<usize>) {
    let selected = app.problems_table.selected().unwrap_or(0);
    let fits = if found.len() > room {
        room.saturating_sub(1)
    } else {
        found.len()
    };
    // The selected problem is always visible.
    let from = (selected + 1).saturating_sub(fits.max(1)).min(found.len());
    let mut spare = room.saturating_sub(found.len());
    let (mut lines, mut owners) = (Vec::new(), Vec::new());
    for (at, problem) in found.iter().enumerate().skip(from).take(fits) {
        let (mark, style) = match (problem.is_open, problem.is_error) {
            (true, true) => ("! ", colored(app.theme, strong(), Color::Red)),
            (true, false) => ("- ", colored(app.theme, Style::new(), Color::Yellow)),
            (false, _) => ("  ", Style::new()),
        };
        let mut look = if problem.is_open {
            Style::new()
        } else {
            colored(app.theme, Style::new(), Color::DarkGray)
        };
        if at == selected {
            look = look.patch(highlight(app.theme));
        }
        let mut parts = wrapped(&problem.text, width);
        if parts.len() - 1 > spare {
            parts = vec![fit(&problem.text, width)];
        }
        spare -= parts.len() - 1;
        let marks = std::iter::once(mark).chain(std::iter::repeat("  "));
        for (mark, text) in marks.zip(parts) {
            let line = vec![Span::styled(mark, style), Span::styled(text, look)];
            lines.push(Line::from(line));
            owners.push(at);
        }
    }
    if fits < found.len() {
        lines.push(Line::raw(format!("  and {} more", found.len() - fits)));
    }
    (lines, owners)
}

fn draw_problems(
    frame: &mut Frame<'_>,
    area: Rect,
    app: &App,
    found: Option<&[ProblemRow]>,
    hits: &mut Hits,
) {
    let width = usize::from(area.width.saturating_sub(4));
    let room = usize::from(area.height.saturating_sub(2));
    let (mut lines, owners) = problem_lines(app, found.unwrap_or_default(), width, room);
    let title = match found {
        None => {
            lines.push(Line::raw("the server has not said yet ..."));
            " Problems ".to_owned()
        }
        Some([]) => {
            lines.push(Line::styled(
                "nothing is wrong",
                colored(app.theme, Style::new(), Color::Green),
            ));
            " Problems ".to_owned()
        }
        Some(found) => problems_title(found),
    };
    let left = room.saturating_sub(lines.len() + 1);
    if left > 0 && !app.events.is_empty() {
        lines.push(Line::styled("last events", strong()));
        for event in app.events.iter().rev().take(left) {
            let text = format!(
                "{}  {}  {}",
                clock_and_day(event.at_ns),
                event_words(&event.kind),
                event.text
            );
            lines.push(Line::raw(fit(&text, width + 2)));
        }
    }
    let block = bordered(app.theme).title(title);
    hits.rows = Rect {
        height: u16::try_from(owners.len()).unwrap_or(0),
        ..block.inner(area)
    };
    hits.owners = owners;
    frame.render_widget(Paragraph::new(lines).block(block), area);
}

/// Resolved problems are counted separately.
fn problems_title(found: &[ProblemRow]) -> String {
    let open = found.iter().filter(|problem| problem.is_open).count();
    let acknowledged = found.iter().filter(|one| one.is_acknowledged).count();
    let over = found.len() - open - acknowledged;
    let mut parts = vec![open.to_string()];
    if acknowledged > 0 {
        parts.push(format!("{acknowledged} acknowledged"));
    }
    if over > 0 {
        parts.push(format!("{over} of ended jobs"));
    }
    format!(" Problems ({}) ", parts.join(", "))
}
