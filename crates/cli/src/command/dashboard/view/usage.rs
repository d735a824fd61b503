//! Memory, cpus and GPUs of a task over time, above its output.

use hq_core::curve::{Curve, GpuCurve, GpuPoint, Point};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Color;

use super::Painter;
use super::parts::number;
use crate::command::dashboard::model::{LogKey, UsageView};
use crate::output::format::{amount, short_words};
use crate::text::fit;

/// The height of the charts with their frames, and the minimum height of the output.
const CHARTS: std::ops::RangeInclusive<u16> = 5..=10;
const OUTPUT_MIN: u16 = 10;
/// The largest request, as a multiple of the peak, that is drawn as a line. A higher line would
/// flatten the curve.
const LINE_MAX: u64 = 4;

/// One chart.
struct Chart {
    title: String,
    below: String,
    values: Vec<u64>,
    /// The request in the same unit, or 0 if there is none.
    asked: u64,
    color: Color,
}

impl Painter<'_, '_> {
    /// Draws the charts if they have data and fit. Returns the remaining area.
    pub(super) fn usage(&mut self, area: Rect, key: LogKey) -> Rect {
        let usage = &self.app.usage;
        let shown = usage.shown(key).filter(|_| !usage.is_hidden);
        let shown = shown.filter(|_| area.height >= CHARTS.start() + OUTPUT_MIN);
        let Some((view, attempt, curve)) = shown else {
            return area;
        };
        let rows = (area.height / 4).clamp(*CHARTS.start(), *CHARTS.end());
        let gpu = curve.gpu.as_deref();
        // The GPU charts are below the others if they fit, otherwise next to them.
        let is_below = gpu.is_some() && area.height >= 2 * rows + OUTPUT_MIN;
        let heights = [rows, if is_below { rows } else { 0 }].map(Constraint::Length);
        let [upper, lower, rest] =
            Layout::vertical([heights[0], heights[1], Constraint::Min(1)]).areas(area);
        let halves = |area| Layout::horizontal([Constraint::Fill(1); 2]).areas::<2>(area);
        let [own, of_gpus] = match gpu {
            Some(_) if !is_below => halves(upper),
            Some(_) | None => [upper, lower],
        };
        let [left, right] = halves(own);
        self.usage_chart(left, memory(view, attempt, curve, room(left)));
        self.usage_chart(right, cpus(view, curve, room(right)));
        if let Some(gpu) = gpu {
            let [left, right] = halves(of_gpus);
            self.usage_chart(left, busy_gpus(gpu, room(left)));
            self.usage_chart(right, gpu_memory(gpu, room(right)));
        }
        rest
    }

    fn usage_chart(&mut self, area: Rect, chart: Chart) {
        let room = room(area);
        let block = self.theme.block(fit(&chart.title, room));
        let block = block.title_bottom(fit(&chart.below, room));
        let inner = block.inner(area);
        let peak = chart.values.iter().copied().max().unwrap_or(0).max(1);
        let has_line = chart.asked > 0 && chart.asked <= peak.saturating_mul(LINE_MAX);
        let top = if has_line {
            peak.max(chart.asked)
        } else {
            peak
        };
        let bars = self.theme.bars(&chart.values, top, chart.color);
        self.frame.render_widget(bars.block(block), area);
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

/// Returns the number of columns inside a frame.
fn room(area: Rect) -> usize {
    area.width.saturating_sub(2).into()
}

fn mib(kib: u64) -> String {
    number(kib.div_ceil(1024))
}

/// Formats thousandths as a number with two decimals.
fn decimals(milli: u64) -> String {
    format!("{}.{:02}", milli / 1_000, milli % 1_000 / 10)
}

fn memory(view: &UsageView, attempt: usize, curve: &Curve, room: usize) -> Chart {
    let asked = match (curve.asked.memory_kib, curve.asked.is_memory_limit) {
        (0, _) => String::new(),
        (kib, true) => format!(" of at most {}", mib(kib)),
        (kib, false) => format!(" of {} asked for", mib(kib)),
    };
    let (of, span) = (view.attempts, short_words(curve.span()));
    let most = |points: &[Point]| points.iter().map(|point| point.memory_kib).max();
    Chart {
        title: format!(" MiB: top {}{asked} ", mib(curve.memory_peak_kib)),
        below: format!(" attempt {attempt} of {of}, over {span} "),
        values: columns(curve.points(), room, most),
        asked: curve.asked.memory_kib,
        color: Color::Cyan,
    }
}

fn cpus(view: &UsageView, curve: &Curve, room: usize) -> Chart {
    let asked = match curve.asked.cpu_units {
        0 => String::new(),
        units => format!(" of {} asked for", amount(units)),
    };
    let (mean, top) = (
        decimals(curve.cpu_mean_milli()),
        decimals(curve.cpu_peak_milli),
    );
    let others = if view.curves.len() > 1 {
        " [ ] other attempts "
    } else {
        ""
    };
    Chart {
        title: format!(" cpus: {mean}, top {top}{asked} "),
        below: others.to_owned(),
        values: columns(curve.points(), room, |points| {
            mean_of(points.iter().map(|point| point.cpu_milli))
        }),
        asked: curve.asked.cpu_units / 10,
        color: Color::Yellow,
    }
}

/// Returns the chart of busy GPUs. Gaps remain empty.
fn busy_gpus(curve: &GpuCurve, room: usize) -> Chart {
    let said = match curve.busy_mean_milli().map(decimals) {
        Some(mean) => {
            let (top, asked) = (decimals(curve.busy_peak_milli), amount(curve.given.units));
            format!("{mean}, top {top} of {asked} asked for")
        }
        None => "not known".to_owned(),
    };
    Chart {
        title: format!(" GPUs: {said} "),
        below: with_others(curve.given.is_shared()),
        values: columns(curve.points(), room, |points: &[GpuPoint]| {
            mean_of(points.iter().filter_map(|point| point.busy_milli))
        }),
        asked: curve.given.units / 10,
        color: Color::Yellow,
    }
}

fn gpu_memory(curve: &GpuCurve, room: usize) -> Chart {
    let said = match curve.given.memory_kib {
        _ if !curve.is_memory_known() => "not known".to_owned(),
        0 => format!("top {}", mib(curve.memory_peak_kib)),
        kib => format!("top {} of {}", mib(curve.memory_peak_kib), mib(kib)),
    };
    let most = |points: &[GpuPoint]| points.iter().filter_map(|point| point.memory_kib).max();
    Chart {
        title: format!(" GPU MiB: {said} "),
        below: with_others(curve.given.is_memory_of_devices),
        values: columns(curve.points(), room, most),
        asked: curve.given.memory_kib,
        color: Color::Cyan,
    }
}

fn with_others(is_so: bool) -> String {
    let text = if is_so {
        " with that of others there "
    } else {
        ""
    };
    text.to_owned()
}

fn mean_of(values: impl Iterator<Item = u64>) -> Option<u64> {
    let (sum, count) = values.fold((0, 0), |(sum, count): (u64, u64), one| {
        (sum + one, count + 1)
    });
    sum.checked_div(count)
}

/// Returns a value for each column: that of its points, or of the point that covers it.
fn columns<P>(
    points: impl Iterator<Item = P>,
    room: usize,
    value: impl Fn(&[P]) -> Option<u64>,
) -> Vec<u64> {
    let points: Vec<P> = points.collect();
    let column = |at: usize| {
        let from = at * points.len() / room;
        let to = ((at + 1) * points.len() / room).max(from + 1);
        value(points.get(from..to.min(points.len())).unwrap_or_default()).unwrap_or(0)
    };
    (0..room).map(column).collect()
}
