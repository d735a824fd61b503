//! Elements that several views use: colors, bars, charts, lists, times.

use std::time::Duration;

use hq_core::job::TaskTotals;
pub(super) use hq_core::words::number;
use ratatui::layout::{Constraint, HorizontalAlignment, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Row, Sparkline, Table, TableState};

use super::Painter;
use crate::command::dashboard::app::Theme;
use crate::output::format::{elapsed, local_time, short_words, zone};
use crate::text::fit;

/// The characters of frames, bars and glyphs, and their replacements in ASCII.
const PLAIN: [(&str, &str); 9] = [
    ("┌┐└┘", "+"),
    ("│", "|"),
    ("─▔", "-"),
    ("█▇", "#"),
    ("▆▅", "="),
    ("▄▃", "-"),
    ("▂▁", "."),
    ("▶", ">"),
    ("·", "."),
];

/// Returns the replacement of a symbol in ASCII.
pub(super) fn plain(symbol: &str) -> &str {
    let found = PLAIN.iter().find(|(all, _)| all.contains(symbol));
    found.map_or(symbol, |(_, plain)| plain)
}

pub(super) const STRONG: Style = Style::new().add_modifier(Modifier::BOLD);

impl Theme {
    /// Returns the style for a color. Without colors, only bold and dim remain.
    pub(super) fn color(self, color: Color) -> Style {
        if self.colors {
            Style::new().fg(color)
        } else {
            Style::new()
        }
    }

    /// Returns the style for a state of a job, task, worker or allocation.
    pub(super) fn state(self, state: &str) -> Style {
        let color = self.color(color_of(state).unwrap_or_default());
        match state {
            "failed" | "lost" | "broken?" | "refused" => color.patch(STRONG),
            _ => color,
        }
    }

    pub(super) fn glyphs(self, state: &str, count: u64) -> Span<'static> {
        let count = usize::try_from(count).unwrap_or(0);
        Span::styled(glyph(state).repeat(count), self.state(state))
    }

    /// Returns the style of a selected row. Reversed colors would turn full blocks into holes.
    pub(super) fn highlight(self) -> Style {
        if self.colors {
            STRONG.bg(Color::Indexed(238))
        } else {
            Style::new().add_modifier(Modifier::REVERSED)
        }
    }

    /// Returns a frame, which is dim so that its content stands out.
    pub(super) fn block(self, title: impl Into<Line<'static>>) -> Block<'static> {
        Block::bordered()
            .border_style(self.color(Color::DarkGray))
            .title_style(self.color(Color::Reset).patch(STRONG))
            .title(title)
    }

    /// Returns a bar of `width` cells with a share for each state that occurs.
    pub(super) fn progress(self, counts: &TaskTotals, width: u16) -> Vec<Span<'static>> {
        let parts = [
            ("finished", counts.finished),
            ("failed", counts.failed),
            ("canceled", counts.canceled + counts.aborted),
            ("running", counts.running),
            ("waiting", counts.waiting),
        ];
        let (width, total) = (u64::from(width), counts.total());
        let mut cells = parts.map(|(_, count)| (count * width / total.max(1)).max(count.min(1)));
        // The widest part absorbs the rounding error.
        while cells.iter().sum::<u64>() != width {
            let is_short = cells.iter().sum::<u64>() < width;
            let widest = (0..parts.len()).max_by_key(|at| (cells[*at], parts[*at].1));
            let cell = &mut cells[widest.unwrap_or(0)];
            *cell = if is_short { *cell + 1 } else { *cell - 1 };
        }
        let spans = parts.iter().zip(cells);
        spans
            .map(|((state, _), cells)| self.glyphs(state, cells))
            .collect()
    }
}

/// Returns the glyph of a state. All glyphs differ, so that they also work without colors.
fn glyph(state: &str) -> &'static str {
    match state {
        "finished" => "█",
        "running" => "▶",
        "failed" => "X",
        "canceled" | "aborted" => "-",
        _ => "·",
    }
}

/// Returns the color of a state, or `None` for a state of a newer server.
fn color_of(state: &str) -> Option<Color> {
    Some(match state {
        "running" | "connected" => Color::Cyan,
        "finished" | "active" => Color::Green,
        "failed" | "lost" | "broken?" | "refused" => Color::Red,
        "aborted" | "canceled" => Color::Magenta,
        "paused" | "draining" | "starving" => Color::Yellow,
        "waiting" | "queued" => Color::DarkGray,
        "opened" => Color::Reset,
        _ => return None,
    })
}

/// Returns the most important state of many tasks: failures first, then running tasks, then the
/// most frequent state.
pub(super) const fn worst(counts: &TaskTotals) -> &'static str {
    if counts.failed > 0 {
        "failed"
    } else if counts.running > 0 {
        "running"
    } else if counts.canceled + counts.aborted > counts.finished + counts.waiting {
        "canceled"
    } else if counts.finished > counts.waiting {
        "finished"
    } else {
        "waiting"
    }
}

/// The columns of a list. A view describes a list only by its columns.
pub(super) struct List<'a, R>(Vec<Column<'a, R>>);

/// A column: its heading, its width (0 hides it) and its cell for a row.
struct Column<'a, R> {
    title: &'static str,
    width: Constraint,
    alignment: HorizontalAlignment,
    cell: Box<dyn Fn(&'a R) -> Line<'a> + 'a>,
}

impl<'a, R: 'a> List<'a, R> {
    pub(super) const fn new() -> Self {
        Self(Vec::new())
    }

    /// Adds a column of texts.
    pub(super) fn left<L: Into<Line<'a>>>(
        mut self,
        title: &'static str,
        width: impl Into<Constraint>,
        cell: impl Fn(&'a R) -> L + 'a,
    ) -> Self {
        self.0.push(Column {
            title,
            width: width.into(),
            alignment: HorizontalAlignment::Left,
            cell: Box::new(move |row| cell(row).into()),
        });
        self
    }

    /// Adds a column of numbers.
    pub(super) fn right<L: Into<Line<'a>>>(
        self,
        title: &'static str,
        width: impl Into<Constraint>,
        cell: impl Fn(&'a R) -> L + 'a,
    ) -> Self {
        let mut list = self.left(title, width, cell);
        if let Some(column) = list.0.last_mut() {
            column.alignment = HorizontalAlignment::Right;
        }
        list
    }

    /// Creates only visible rows, because a list may have a hundred thousand.
    pub(super) fn table(self, rows: impl Iterator<Item = &'a R>, seen: Seen) -> Table<'a> {
        let columns = || self.0.iter();
        let headings = columns().map(|column| Line::from(column.title).alignment(column.alignment));
        let header = Row::new(headings).style(STRONG);
        let rows = rows.enumerate().map(|(at, row)| {
            let columns = columns().filter(|_| seen.contains(&at));
            Row::new(columns.map(|column| (column.cell)(row).alignment(column.alignment)))
        });
        let widths = columns().map(|column| column.width);
        Table::new(rows, widths).header(header)
    }
}

type Seen = std::ops::Range<usize>;

/// Returns the rows that may be visible in an area after the next move of the selection.
pub(super) fn seen(table: &TableState, area: Rect) -> Seen {
    let (offset, height) = (table.offset(), usize::from(area.height));
    offset.saturating_sub(height)..offset.saturating_add(2 * height)
}

impl Painter<'_, '_> {
    /// Draws the list that keys and the mouse act on, and notes where its rows are.
    pub(super) fn list<'r, R: 'r>(
        &mut self,
        area: Rect,
        title: &str,
        list: List<'r, R>,
        rows: impl IntoIterator<Item = &'r R, IntoIter: ExactSizeIterator>,
    ) {
        let rows = rows.into_iter();
        let block = self.block(area, title);
        let inner = block.inner(area);
        self.hits.rows = Rect {
            y: inner.y + 1,
            height: inner.height.saturating_sub(1),
            ..inner
        };
        let first_max = rows.len().saturating_sub(self.hits.rows.height.into());
        let table = list.table(rows, seen(&self.table, area));
        self.selectable(area, table.block(block), first_max);
    }

    /// Draws a table with a highlighted row. `first_max` is the first row when the list is scrolled
    /// to its end.
    pub(super) fn selectable(&mut self, area: Rect, table: Table<'_>, first_max: usize) {
        let table = table.row_highlight_style(self.theme.highlight());
        // On a screen that has grown, the last rows stay at the end.
        *self.table.offset_mut() = self.table.offset().min(first_max);
        // An empty list keeps its selection too.
        self.table.select(Some(self.table.selected().unwrap_or(0)));
        self.frame
            .render_stateful_widget(table, area, &mut self.table);
    }
}

/// The largest request, as a multiple of the peak, that is drawn as a line. A higher line would
/// flatten the curve.
const LINE_MAX: u64 = 4;

/// Values over time as bars in a frame.
#[derive(Default)]
pub(super) struct Chart {
    pub(super) title: String,
    /// The text in the lower edge of the frame.
    pub(super) below: String,
    /// The values. `None` where nothing is known.
    pub(super) values: Vec<Option<u64>>,
    /// Whether a column with several values shows their mean instead of the largest one.
    pub(super) is_mean: bool,
    /// The minimum value at the upper edge.
    pub(super) top: u64,
    /// The requested amount, which is drawn as a line, or 0 if there is none.
    pub(super) asked: u64,
    pub(super) color: Color,
}

impl Chart {
    /// Returns a value for each column: that of its values, or of the value that covers it.
    fn columns(&self, count: usize) -> Vec<u64> {
        let column = |at: usize| {
            let from = at * self.values.len() / count;
            let to = ((at + 1) * self.values.len() / count).max(from + 1);
            let values = self.values.get(from..to.min(self.values.len()));
            let values = values.unwrap_or_default().iter().flatten();
            if self.is_mean {
                let sum: u64 = values.clone().sum();
                return sum.checked_div(values.count() as u64).unwrap_or(0);
            }
            values.copied().max().unwrap_or(0)
        };
        (0..count).map(column).collect()
    }
}

impl Painter<'_, '_> {
    pub(super) fn chart(&mut self, area: Rect, chart: &Chart) {
        let room = usize::from(area.width.saturating_sub(2));
        let block = self.block(area, &chart.title);
        let block = block.title_bottom(fit(&chart.below, room));
        let inner = block.inner(area);
        let values = chart.columns(room);
        let peak = values
            .iter()
            .copied()
            .max()
            .unwrap_or(0)
            .max(chart.top.max(1));
        let has_line = chart.asked > 0 && chart.asked <= peak.saturating_mul(LINE_MAX);
        let top = if has_line {
            peak.max(chart.asked)
        } else {
            peak
        };
        let bars = Sparkline::default().data(&values).max(top);
        let bars = bars.style(self.theme.color(chart.color)).block(block);
        self.frame.render_widget(bars, area);
        if has_line && !inner.is_empty() {
            self.line(inner, chart.asked, top);
        }
    }

    /// Draws a line at `value` where there is no bar. `top` is the value at the upper edge.
    fn line(&mut self, inner: Rect, value: u64, top: u64) {
        // The height is counted in eighths of a row from below, as for bars.
        let height = u64::from(inner.height) * 8;
        let eighths = (value.saturating_mul(height) / top).clamp(1, height) - 1;
        let glyph = match eighths % 8 {
            0..2 => "▁",
            2..6 => "─",
            _ => "▔",
        };
        let y = inner.bottom() - 1 - u16::try_from(eighths / 8).unwrap_or(0);
        let style = self.theme.color(Color::Red);
        for x in inner.left()..inner.right() {
            let cell = self.frame.buffer_mut().cell_mut((x, y));
            if let Some(cell) = cell.filter(|cell| cell.symbol() == " ") {
                cell.set_symbol(glyph).set_style(style);
            }
        }
    }
}

/// Returns the width of the parameter column for these rows and this screen, or 0 if no row has
/// parameters or no space is left.
pub(super) fn params_width<'a>(params: impl Iterator<Item = &'a str>, width: u16) -> u16 {
    let most = params.map(|text| text.chars().count()).max().unwrap_or(0);
    let room = if width < 60 { 0 } else { width / 4 };
    match u16::try_from(most).unwrap_or(u16::MAX).min(room) {
        0 => 0,
        // The heading must fit.
        columns => columns.max(10),
    }
}

/// Returns the name of an event in words, such as `job completed`.
pub(super) fn event_words(kind: &str) -> String {
    kind.replace('-', " ")
}

/// Returns the time between two moments in whole seconds.
pub(super) fn since(from_ns: i64, now_ns: i64) -> String {
    short_words(Duration::from_secs(elapsed(from_ns, now_ns).as_secs()))
}

/// Returns a span of time as one number, which is at least 2.
pub(super) fn rough(ns: i64) -> String {
    const UNITS: [(i64, &str); 3] = [(86_400, "d"), (3_600, "h"), (60, "m")];
    let seconds = ns.max(0) / 1_000_000_000;
    let unit = UNITS.into_iter().find(|(size, _)| seconds >= 2 * size);
    let (size, name) = unit.unwrap_or((1, "s"));
    format!("{} {name}", seconds / size)
}

/// Formats a time as `2026-11-28 08:15:50 UTC+01:00`, without the date on narrow screens.
pub(super) fn clock(at_ns: i64, width: u16) -> String {
    let text = format!("{} {}", local_time(at_ns), zone(at_ns));
    match text.split_once(' ') {
        Some((_, time)) if width < 60 => time.to_owned(),
        Some(_) | None => text,
    }
}

/// The number of columns of [`clock_and_day`].
pub(super) const CLOCK_WIDTH: u16 = 14;

/// Formats a local time as `11-28 08:15:50`. The zone is in the first line of the screen.
pub(super) fn clock_and_day(at_ns: i64) -> String {
    // This skips the year and its dash.
    local_time(at_ns).split_off(5)
}

/// Breaks a text between words into at most two lines.
pub(super) fn wrapped(text: &str, width: usize) -> Vec<String> {
    if text.chars().count() <= width {
        return vec![text.to_owned()];
    }
    let end = text
        .char_indices()
        .nth(width)
        .map_or(text.len(), |(at, _)| at);
    let at = text[..end].rfind(' ').unwrap_or(end);
    vec![text[..at].to_owned(), fit(text[at..].trim_start(), width)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::format::run_time;
    use hq_core::job::JobState;
    use hq_core::task::TaskState;

    const THEME: Theme = Theme {
        colors: false,
        unicode: false,
    };

    fn bar(counts: &TaskTotals, width: u16) -> String {
        THEME
            .progress(counts, width)
            .iter()
            .map(|span| span.content.as_ref())
            .collect()
    }

    #[test]
    fn times_have_a_day_and_the_screen_a_zone() {
        let at_ns = 20_000 * 86_400_000_000_000 + 45_296_000_000_000;
        let row = clock_and_day(at_ns);
        assert_eq!(row.len(), usize::from(CLOCK_WIDTH), "{row}");
        let title = clock(at_ns, 80);
        assert!(
            title.starts_with("2024-10-0") && title.contains(&row),
            "{title}"
        );
        assert!(title.contains(" UTC+"), "{title}");
        assert_eq!(clock(at_ns, 50), title[11..]);
    }

    #[test]
    fn parameters_have_a_column_where_there_are_any_and_room_for_them() {
        let width = |texts: &[&'static str], width| params_width(texts.iter().copied(), width);
        assert_eq!(width(&["", ""], 100), 0);
        assert_eq!(width(&["lr=0.1, seed=12", ""], 100), 15);
        assert_eq!(width(&["a=1"], 100), 10);
        assert_eq!(width(&["lr=0.1, seed=12, model=large"], 80), 20);
        assert_eq!(width(&["lr=0.1, seed=12"], 59), 0);
    }

    #[test]
    fn a_bar_shows_every_state_that_is_there_and_has_its_width() {
        let counts = TaskTotals {
            finished: 999_998,
            failed: 1,
            running: 1,
            ..TaskTotals::default()
        };
        assert_eq!(bar(&counts, 20), "██████████████████X▶");
        let counts = TaskTotals {
            finished: 500_000,
            failed: 1,
            waiting: 500_000,
            ..TaskTotals::default()
        };
        assert_eq!(bar(&counts, 20), "█████████X··········");
        assert_eq!(bar(&TaskTotals::default(), 4), "····");
        for width in 0..30 {
            let counts = TaskTotals {
                finished: 1,
                failed: 1,
                running: 1,
                waiting: 1,
                ..TaskTotals::default()
            };
            assert_eq!(bar(&counts, width).chars().count(), usize::from(width));
        }
    }

    #[test]
    fn every_state_of_a_job_and_a_task_has_its_look() {
        let words = JobState::ALL.map(JobState::name);
        for word in words.into_iter().chain(TaskState::ALL.map(TaskState::name)) {
            assert!(color_of(word).is_some(), "{word}");
        }
    }

    #[test]
    fn numbers_and_times_are_short() {
        assert_eq!(
            [number(0), number(1_000), number(12_345_678)],
            ["0", "1 000", "12 345 678"]
        );
        for (us, shown) in [
            (0, "0 s"),
            (999, "999 us"),
            (1_999, "1 ms"),
            (1_250_000, "1.2 s"),
            (u64::MAX / 1_000_000, "213.5 d"),
        ] {
            assert_eq!(run_time(us), shown);
        }
        let shown = [119, 120, 7_200, 172_800].map(|seconds| rough(seconds * 1_000_000_000));
        assert_eq!(shown, ["119 s", "2 m", "2 h", "2 d"]);
        assert_eq!(since(0, 59_999_000_000), "59s");
        assert_eq!(since(9, 0), "0s");
        assert_eq!(wrapped("ab cde fgh", 6), ["ab", "cde f~"]);
        assert_eq!(wrapped("äöüßäöüß", 5), ["äöüßä", "öüß"]);
    }
}
