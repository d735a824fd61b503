//! Memory, cpus and GPUs of a task over time, above its output.

use hq_core::curve::{GpuCurve, GpuPoint, Point};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style};

use super::parts::{bars, colored, number, titled};
use crate::dashboard::app::Theme;
use crate::dashboard::app::usage::{Shown, Usage};
use crate::dashboard::model::LogKey;
use crate::output::format::{amount, short_words};
use crate::text::fit;

/// Height of the charts with their frames, and minimum height of the output.
const CHARTS: std::ops::RangeInclusive<u16> = 5..=10;
const OUTPUT_MIN: u16 = 10;
/// Largest request, as a multiple of the peak, that is drawn as a line. A higher line would flatten
/// the curve.
const LINE_MAX: u64 = 4;

/// One chart.
struct Chart {
    title: String,
    below: String,
    values: Vec<u64>,
    /// The request, in the same unit; 0 if none.
    asked: u64,
    color: Color,
}

/// Draws the charts if they have data and fit; returns the remaining area.
pub(super) fn draw(
    frame: &mut Frame<'_>,
    area: Rect,
    theme: Theme,
    usage: &Usage,
    key: LogKey,
) -> Rect {
    let shown = usage.shown(key).filter(|_| !usage.is_hidden);
    let Some(shown) = shown.filter(|_| area.height >= CHARTS.start() + OUTPUT_MIN) else {
        return area;
    };
    let rows = (area.height / 4).clamp(*CHARTS.start(), *CHARTS.end());
    let gpu = shown.curve.gpu.as_deref();
    // The GPU charts are below the others if they fit, otherwise next to them.
    let is_below = gpu.is_some() && area.height >= 2 * rows + OUTPUT_MIN;
    let below = if is_below { rows } else { 0 };
    let heights = [rows, below].map(Constraint::Length);
    let [upper, lower, rest] =
        Layout::vertical([heights[0], heights[1], Constraint::Min(1)]).areas(area);
    let halves = |area| Layout::horizontal([Constraint::Fill(1); 2]).areas::<2>(area);
    let [own, of_gpus] = match gpu {
        Some(_) if is_below => [upper, lower],
        Some(_) => halves(upper),
        None => [upper, lower],
    };
    let [left, right] = halves(own);
    draw_chart(frame, left, theme, memory(&shown, left));
    draw_chart(frame, right, theme, cpus(&shown, right));
    if let Some(gpu) = gpu {
        let [left, right] = halves(of_gpus);
        draw_chart(frame, left, theme, busy_gpus(gpu, left));
        draw_chart(frame, right, theme, gpu_memory(gpu, right));
    }
    rest
}

fn memory(shown: &Shown<'_>, area: Rect) -> Chart {
    let curve = shown.curve;
    let mib = |kib: u64| number(kib.div_ceil(1024));
    let asked = match (curve.asked.memory_kib, curve.asked.is_memory_limit) {
        (0, _) => String::new(),
        (kib, true) => format!(" of at most {}", mib(kib)),
        (kib, false) => format!(" of {} asked for", mib(kib)),
    };
    let most = |points: &[Point]| points.iter().map(|point| point.memory_kib).max();
    Chart {
        title: format!(" MiB: top {}{asked} ", mib(curve.memory_peak_kib)),
        below: format!(
            " attempt {} of {}, over {} ",
            shown.attempt,
            shown.of,
            short_words(curve.span())
        ),
        values: columns(curve.points(), area, |points| most(points).unwrap_or(0)),
        asked: curve.asked.memory_kib,
        color: Color::Cyan,
    }
}

fn cpus(shown: &Shown<'_>, area: Rect) -> Chart {
    let curve = shown.curve;
    let asked = match curve.asked.cpu_units {
        0 => String::new(),
        units => format!(" of {} asked for", amount(units)),
    };
    let mean = |points: &[Point]| {
        let sum: u64 = points.iter().map(|point| point.cpu_milli).sum();
        sum / (points.len() as u64).max(1)
    };
    Chart {
        title: format!(
            " cpus: {}, top {}{asked} ",
            decimals(curve.cpu_mean_milli()),
            decimals(curve.cpu_peak_milli)
        ),
        below: if shown.has_others {
            " [ ] other attempts ".to_owned()
        } else {
            String::new()
        },
        values: columns(curve.points(), area, mean),
        asked: curve.asked.cpu_units / 10,
        color: Color::Yellow,
    }
}

/// Thousandths as a number with two decimals.
fn decimals(milli: u64) -> String {
    format!("{}.{:02}", milli / 1_000, milli % 1_000 / 10)
}

/// Gaps are drawn as nothing.
fn busy_gpus(curve: &GpuCurve, area: Rect) -> Chart {
    let mean = |points: &[GpuPoint]| {
        let known = points.iter().filter_map(|point| point.busy_milli);
        let (sum, count) = known.fold((0_u64, 0), |(sum, count), one| (sum + one, count + 1));
        sum.checked_div(count).unwrap_or(0)
    };
    let said = match curve.busy_mean_milli() {
        Some(mean) => format!(
            "{}, top {} of {} asked for",
            decimals(mean),
            decimals(curve.busy_peak_milli),
            amount(curve.given.units)
        ),
        None => "not known".to_owned(),
    };
    Chart {
        title: format!(" GPUs: {said} "),
        below: with_others(curve.given.is_shared()),
        values: columns(curve.points(), area, mean),
        asked: curve.given.units / 10,
        color: Color::Yellow,
    }
}

fn with_others(is_so: bool) -> String {
    if is_so {
        " with that of others there ".to_owned()
    } else {
        String::new()
    }
}

fn gpu_memory(curve: &GpuCurve, area: Rect) -> Chart {
    let mib = |kib: u64| number(kib.div_ceil(1024));
    let of = match curve.given.memory_kib {
        0 => String::new(),
        kib => format!(" of {}", mib(kib)),
    };
    let most = |points: &[GpuPoint]| points.iter().filter_map(|point| point.memory_kib).max();
    Chart {
        title: if curve.is_memory_known() {
            format!(" GPU MiB: top {}{of} ", mib(curve.memory_peak_kib))
        } else {
            " GPU MiB: not known ".to_owned()
        },
        below: with_others(curve.given.is_memory_of_devices),
        values: columns(curve.points(), area, |points| most(points).unwrap_or(0)),
        asked: curve.given.memory_kib,
        color: Color::Cyan,
    }
}

/// A value for each column inside a frame: the maximum of its points, or the point that covers it.
fn columns<P>(
    points: impl Iterator<Item = P>,
    area: Rect,
    value: impl Fn(&[P]) -> u64,
) -> Vec<u64> {
    let points: Vec<P> = points.collect();
    let room = usize::from(area.width.saturating_sub(2));
    let column = |at: usize| {
        let from = at * points.len() / room;
        let to = ((at + 1) * points.len() / room).max(from + 1);
        value(points.get(from..to.min(points.len())).unwrap_or_default())
    };
    (0..room).map(column).collect()
}

fn draw_chart(frame: &mut Frame<'_>, area: Rect, theme: Theme, chart: Chart) {
    let below = fit(&chart.below, area.width.saturating_sub(2).into());
    let block = titled(theme, area, &chart.title).title_bottom(below);
    let inner = block.inner(area);
    let peak = chart.values.iter().copied().max().unwrap_or(0).max(1);
    let has_line = chart.asked > 0 && chart.asked <= peak.saturating_mul(LINE_MAX);
    let top = if has_line {
        peak.max(chart.asked)
    } else {
        peak
    };
    let bars = bars(theme, &chart.values, top, chart.color);
    frame.render_widget(bars.block(block), area);
    if has_line {
        draw_line(frame, inner, theme, (chart.asked, top));
    }
}

/// A line at `value` where no bar is; `top` is the value of the upper edge.
fn draw_line(frame: &mut Frame<'_>, inner: Rect, theme: Theme, (value, top): (u64, u64)) {
    if inner.is_empty() {
        return;
    }
    let height = u64::from(inner.height);
    // In eighths of a row from below, as bars are.
    let eighths = (value.saturating_mul(height * 8) / top).clamp(1, height * 8);
    let row = u16::try_from((eighths - 1) / 8).unwrap_or(0);
    let glyph = match (eighths - 1) % 8 {
        _ if !theme.unicode => "-",
        0..2 => "▁",
        2..6 => "─",
        _ => "▔",
    };
    let y = inner.bottom() - 1 - row;
    let style = colored(theme, Style::new(), Color::Red);
    for x in inner.left()..inner.right() {
        let cell = frame.buffer_mut().cell_mut((x, y));
        if let Some(cell) = cell.filter(|cell| cell.symbol() == " ") {
            cell.set_symbol(glyph).set_style(style);
        }
    }
}
