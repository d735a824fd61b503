//! The first view: current activity and problems.

use hq_protocol::client::Problem;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style};
use ratatui::text::{Line, Span};

use super::Painter;
use super::parts::{Chart, STRONG, clock_and_day, event_words, number, rough, wrapped};
use crate::output::format::amount;
use crate::output::pace;
use crate::output::view::is_idle;
use crate::source::Snapshot;
use crate::source::problems::{is_open, sentence};
use crate::text::fit;

/// The heights of the figures and, if they fit, of the charts.
const FIGURES: u16 = 5;
const CHARTS: std::ops::RangeInclusive<u16> = 3..=6;

/// The name, the fixed maximum (or 0) and the color of the values in a column of the history.
const CHARTS_SHOWN: [(&str, u64, Color); 3] = [
    ("tasks/s", 0, Color::Green),
    ("running", 0, Color::Cyan),
    ("cpus %", 100, Color::Yellow),
];

impl Painter<'_, '_> {
    pub(super) fn overview(&mut self, area: Rect) {
        let (width, now_ns) = (area.width.saturating_sub(4).into(), self.app.now_ns());
        let found = self.app.problems.as_deref().map(|found| {
            (
                found,
                found
                    .iter()
                    .map(|one| text(one, now_ns))
                    .collect::<Vec<_>>(),
            )
        });
        // Problems are more important than charts.
        let texts = found.iter().flat_map(|(_, texts)| texts);
        let wanted: usize = texts.map(|text| wrapped(text, width).len()).sum();
        let wanted = u16::try_from(wanted + 2).unwrap_or(u16::MAX);
        let left = area.height.saturating_sub(FIGURES).saturating_sub(wanted);
        let rows = [
            Constraint::Length(FIGURES),
            Constraint::Length(left.clamp(*CHARTS.start(), *CHARTS.end())),
            Constraint::Min(4),
        ];
        let [figures, charts, problems] = Layout::vertical(rows).areas(area);
        if let Some(snapshot) = &self.app.snapshot {
            self.figures(figures, snapshot);
        }
        self.charts(charts);
        self.problems(problems, found);
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

    /// Returns the lines for the problems, worst first: two lines each if they fit, otherwise one.
    /// The last line counts the rest. Notes the problem of each line.
    fn problem_lines(
        &mut self,
        found: &[Problem],
        texts: &[String],
        width: usize,
        room: usize,
    ) -> Vec<Line<'static>> {
        let selected = self.table.selected().unwrap_or(0);
        let count = found.len();
        let fits = count.min(room.saturating_sub(usize::from(count > room)));
        // The selected problem is always visible.
        let from = (selected + 1).saturating_sub(fits.max(1)).min(found.len());
        let mut spare = room.saturating_sub(found.len());
        let mut lines = Vec::new();
        let all = found.iter().zip(texts).enumerate();
        for (at, (problem, text)) in all.skip(from).take(fits) {
            let (mark, style) = match (is_open(problem), problem.is_error) {
                (true, true) => ("! ", self.theme.color(Color::Red).patch(STRONG)),
                (true, false) => ("- ", self.theme.color(Color::Yellow)),
                (false, _) => ("  ", Style::new()),
            };
            let mut look = self
                .theme
                .state(if is_open(problem) { "" } else { "waiting" });
            if at == selected {
                look = look.patch(self.theme.highlight());
            }
            let mut parts = wrapped(text, width);
            if parts.len() - 1 > spare {
                parts = vec![fit(text, width)];
            }
            spare -= parts.len() - 1;
            for (mark, text) in [mark, "  "].into_iter().zip(parts) {
                let text = Span::styled(text, look);
                lines.push(Line::from(vec![Span::styled(mark, style), text]));
                self.hits.owners.push(at);
            }
        }
        if fits < found.len() {
            lines.push(Line::raw(format!("  and {} more", found.len() - fits)));
        }
        lines
    }

    fn problems(&mut self, area: Rect, found: Option<(&[Problem], Vec<String>)>) {
        let width = usize::from(area.width.saturating_sub(4));
        let room = usize::from(area.height.saturating_sub(2));
        let (mut title, mut lines) = (" Problems ".to_owned(), Vec::new());
        match found {
            None => lines.push(Line::raw("the server has not said yet ...")),
            Some(([], _)) => {
                let style = self.theme.color(Color::Green);
                lines.push(Line::styled("nothing is wrong", style));
            }
            Some((found, texts)) => {
                title = problems_title(found);
                lines = self.problem_lines(found, &texts, width, room);
            }
        }
        let left = room.saturating_sub(lines.len() + 1);
        if left > 0 && !self.app.events.is_empty() {
            lines.push(Line::styled("last events", STRONG));
            for event in self.app.events.iter().rev().take(left) {
                let (at, what) = (clock_and_day(event.at_ns), event_words(&event.kind));
                let text = format!("{at}  {what}  {}", event.text);
                lines.push(Line::raw(fit(&text, width + 2)));
            }
        }
        self.framed(area, &title, lines);
        let height = u16::try_from(self.hits.owners.len()).unwrap_or(0);
        self.hits.rows = Rect::new(area.x + 1, area.y + 1, area.width.saturating_sub(2), height);
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
