//! The first view: current activity and problems.

use hq_protocol::client::{LimitInfo, Problem};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Row, Table};

use super::Painter;
use super::parts::{Chart, STRONG, clock_and_day, event_words, number, rough, wrapped};
use crate::command::dashboard::read::event_text;
use crate::output::format::amount;
use crate::output::pace;
use crate::output::view::is_idle;
use crate::source::Snapshot;
use crate::source::problems::{is_open, sentence};
use crate::text::fit;

/// The heights of the figures and, if they fit, of the charts.
const FIGURES: u16 = 5;
const CHARTS: std::ops::RangeInclusive<u16> = 3..=6;
const PROBLEMS_MIN: u16 = 4;
/// The maximum number of limits that are shown.
const LIMITS_MAX: u16 = 4;

/// The name, the fixed maximum (or 0) and the color of the values in a column of the history.
const CHARTS_SHOWN: [(&str, u64, Color); 3] = [
    ("tasks/s", 0, Color::Green),
    ("running", 0, Color::Cyan),
    ("cpus %", 100, Color::Yellow),
];

impl Painter<'_, '_> {
    pub(super) fn overview(&mut self, area: Rect) {
        let (width, now_ns) = (area.width.saturating_sub(4).into(), self.app.now_ns());
        let found = self.app.problems.iter().flatten();
        let texts: Vec<String> = found.map(|one| text(one, now_ns)).collect();
        // Problems are more important than charts.
        let wanted: usize = texts.iter().map(|text| wrapped(text, width).len()).sum();
        let wanted = u16::try_from(wanted + 2).unwrap_or(u16::MAX);
        let limits = match self.app.limits.len() {
            0 => 0,
            count => 2 + u16::try_from(count).map_or(LIMITS_MAX, |count| count.min(LIMITS_MAX)),
        };
        // A small screen has no room for limits.
        let room = area
            .height
            .saturating_sub(FIGURES + *CHARTS.start() + PROBLEMS_MIN);
        let limits = if limits > room { 0 } else { limits };
        let left = area
            .height
            .saturating_sub(FIGURES + limits)
            .saturating_sub(wanted);
        let rows = [
            Constraint::Length(FIGURES),
            Constraint::Length(limits),
            Constraint::Length(left.clamp(*CHARTS.start(), *CHARTS.end())),
            Constraint::Min(PROBLEMS_MIN),
        ];
        let [figures, limits, charts, problems] = Layout::vertical(rows).areas(area);
        if let Some(snapshot) = &self.app.snapshot {
            self.figures(figures, snapshot);
        }
        if !limits.is_empty() {
            self.limits(limits);
        }
        self.charts(charts);
        self.problems(problems, &texts);
    }

    fn figures(&mut self, area: Rect, snapshot: &Snapshot) {
        let (counts, theme) = (snapshot.counts(), self.theme);
        let mut line = Vec::new();
        for (state, count) in [
            ("running", counts.running),
            ("waiting", counts.waiting),
            ("finished", counts.finished),
            ("failed", counts.failed),
            ("canceled", counts.canceled + counts.aborted),
        ] {
            if count > 0 || state != "canceled" {
                let style = theme.state(if count > 0 { state } else { "" });
                line.push(Span::styled(format!("{} {state}   ", number(count)), style));
            }
        }
        let bar = theme.progress(&counts, area.width.saturating_sub(2));
        let active = snapshot.jobs.iter().filter(|job| !is_idle(job)).count();
        let connected = snapshot.connected().count();
        let mut figures = format!(
            "{} of {} jobs active   {connected} {}",
            number(active as u64),
            number(snapshot.jobs.len() as u64),
            if connected == 1 { "worker" } else { "workers" },
        );
        match snapshot.workers.len() - connected {
            0 => {}
            lost => figures.push_str(&format!(" ({lost} gone)")),
        }
        for name in ["cpus", "gpus/nvidia", "gpus/amd"] {
            let (used, total) = snapshot.resource(name);
            if total > 0 {
                let short = name.split('/').next().unwrap_or(name);
                let used = used.map_or_else(|| "?".to_owned(), amount);
                figures.push_str(&format!("   {short} {used}/{}", amount(total)));
            }
        }
        // The average over the last seconds.
        let rate = match self.app.history.rate_tenths(self.app.now_ns()) {
            tenths @ 1_000.. => number(tenths / 10),
            tenths => format!("{}.{}", tenths / 10, tenths % 10),
        };
        figures.push_str(&format!("   {rate} tasks/s"));
        if let Some(left) = left(snapshot) {
            figures.push_str(&format!("   {left} left"));
        }
        self.framed(
            area,
            " Tasks ",
            vec![line.into(), bar.into(), figures.into()],
        );
    }

    /// Draws the limits, those with the most waiting tasks first.
    fn limits(&mut self, area: Rect) {
        let mut limits: Vec<&LimitInfo> = self.app.limits.iter().collect();
        limits.sort_by_key(|limit| std::cmp::Reverse(limit.waiting));
        let widest = |length: fn(&LimitInfo) -> usize| {
            let lengths = limits.iter().map(|limit| length(limit));
            lengths.max().unwrap_or(0)
        };
        let (names, bounds) = (widest(|one| one.name.len()), widest(|one| one.bound.len()));
        let line = |limit: &&LimitInfo| {
            let users = limit.users.iter();
            let users = users.map(|user| format!("job {} ({})", user.job, number(user.used)));
            let lost = (limit.lost > 0).then(|| format!("lost workers ({})", number(limit.lost)));
            let users: Vec<String> = users.chain(lost).collect();
            let by = if users.is_empty() { "" } else { "  by " };
            let text = format!(
                "{:names$}  {:>bounds$}  {:>6} in use  {:>8} waiting{by}{}",
                limit.name,
                limit.bound,
                number(limit.used),
                number(limit.waiting),
                users.join(", ")
            );
            let style = match limit.waiting {
                0 => Style::new(),
                1.. => self.theme.color(Color::Yellow),
            };
            Line::styled(fit(&text, area.width.saturating_sub(2).into()), style)
        };
        let shown = usize::from(area.height.saturating_sub(2));
        let lines = limits.iter().take(shown).map(line).collect();
        let title = match limits.len() {
            all if all > shown => format!(" Limits ({shown} of {all}) "),
            _ => " Limits ".to_owned(),
        };
        self.framed(area, &title, lines);
    }

    fn charts(&mut self, area: Rect) {
        let span = self.app.chart_span();
        let time = rough(span.1 - span.0);
        let places: [Rect; 3] = Layout::horizontal([Constraint::Fill(1); 3]).areas(area);
        for (at, (name, top, color)) in CHARTS_SHOWN.into_iter().enumerate() {
            let room = places[at].width.saturating_sub(2);
            let columns = self.app.history.columns(span, room.into());
            let values = || columns.iter().map(|column| column[at]);
            let title = match top {
                0 => format!("{name}, top {}", number(values().max().unwrap_or(0))),
                _ => format!("cpus {} % now", values().next_back().unwrap_or(0)),
            };
            let chart = Chart {
                title: format!(" {time}: {title} "),
                values: values().map(Some).collect(),
                top,
                color,
                ..Chart::default()
            };
            self.chart(places[at], &chart);
        }
    }

    /// Draws the problems, worst first: on two lines each if they fit, otherwise on one. Below them
    /// are the last events.
    fn problems(&mut self, area: Rect, texts: &[String]) {
        let found = self.app.problems.as_deref();
        let title = found.filter(|found| !found.is_empty()).map(problems_title);
        let block = self.block(area, title.as_deref().unwrap_or(" Problems "));
        let inner = block.inner(area);
        self.frame.render_widget(block, area);
        let (width, room) = (inner.width.saturating_sub(2), usize::from(inner.height));
        let mut spare = room.saturating_sub(texts.len());
        let mut rows = Vec::new();
        for (at, (problem, text)) in found.iter().copied().flatten().zip(texts).enumerate() {
            let mut parts = wrapped(text, width.into());
            if parts.len() - 1 > spare {
                parts = vec![fit(text, width.into())];
            }
            spare -= parts.len() - 1;
            self.hits.owners.extend(parts.iter().map(|_| at));
            rows.push(self.problem_row(problem, parts));
        }
        let is_cut = texts.len() > room;
        let height = self
            .hits
            .owners
            .len()
            .min(room.saturating_sub(usize::from(is_cut)));
        let heights = [
            Constraint::Length(u16::try_from(height).unwrap_or(0)),
            Constraint::Min(0),
        ];
        let [list, rest] = Layout::vertical(heights).areas(inner);
        self.hits.rows = list;
        let widths = [Constraint::Length(2), Constraint::Fill(1)];
        let table = Table::new(rows, widths).column_spacing(0);
        self.selectable(list, table, texts.len().saturating_sub(height));
        let mut lines = match found {
            None => vec![Line::raw("the server has not said yet ...")],
            Some([]) => vec![Line::styled(
                "nothing is wrong",
                self.theme.color(Color::Green),
            )],
            Some(_) if is_cut => vec![format!("  and {} more", texts.len() - height).into()],
            Some(_) => Vec::new(),
        };
        let left = usize::from(rest.height).saturating_sub(lines.len() + 1);
        if left > 0 && !self.app.events.is_empty() {
            lines.push(Line::styled("last events", STRONG));
            for event in self.app.events.iter().take(left) {
                let (at, what) = (clock_and_day(event.at_ns), event_words(&event.kind));
                let text = format!("{at}  {what}  {}", event_text(event));
                lines.push(fit(&text, inner.width.into()).into());
            }
        }
        self.frame.render_widget(Text::from(lines), rest);
    }

    fn problem_row(&self, problem: &Problem, text: Vec<String>) -> Row<'static> {
        let (mark, style) = match (is_open(problem), problem.is_error) {
            (true, true) => ("! ", self.theme.color(Color::Red).patch(STRONG)),
            (true, false) => ("- ", self.theme.color(Color::Yellow)),
            (false, _) => ("  ", Style::new()),
        };
        let look = self
            .theme
            .state(if is_open(problem) { "" } else { "waiting" });
        let height = u16::try_from(text.len()).unwrap_or(1);
        let text = Text::from_iter(text).style(look);
        Row::new([Text::styled(mark, style), text]).height(height)
    }
}

fn text(problem: &Problem, now_ns: i64) -> String {
    let known = if problem.is_acknowledged {
        " (acknowledged)"
    } else {
        ""
    };
    sentence(problem, now_ns) + known
}

/// Returns the title of the problems. Resolved problems are counted separately.
fn problems_title(found: &[Problem]) -> String {
    let open = found.iter().filter(|one| is_open(one)).count();
    let acknowledged = found.iter().filter(|one| one.is_acknowledged).count();
    let over = found.len() - open - acknowledged;
    let mut title = open.to_string();
    if acknowledged > 0 {
        title.push_str(&format!(", {acknowledged} acknowledged"));
    }
    if over > 0 {
        title.push_str(&format!(", {over} of ended jobs"));
    }
    format!(" Problems ({title}) ")
}

/// Returns the time until the last job ends, if it can be estimated for every job.
fn left(snapshot: &Snapshot) -> Option<String> {
    let jobs = snapshot.jobs.iter().filter(|job| !is_idle(job));
    let lefts: Option<Vec<_>> = jobs
        .map(|job| pace::pace(job, snapshot.now_ns)?.left)
        .collect();
    Some(pace::whole(lefts?.into_iter().max()?))
}
