//! Memory, cpus and GPUs of a task over time, above its output.

use hq_core::curve::{Curve, GpuCurve};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Color;

use super::Painter;
use super::parts::{Chart, number};
use crate::command::dashboard::model::{LogKey, UsageView};
use crate::output::curve::{cpus, cpus_asked, memory_asked};
use crate::output::format::{amount, short_words};

/// The height of the charts with their frames, and the minimum height of the output.
const CHARTS: std::ops::RangeInclusive<u16> = 5..=10;
const OUTPUT_MIN: u16 = 10;

impl Painter<'_, '_> {
    /// Draws the charts if they have data and fit. Returns the remaining area.
    pub(super) fn usage(&mut self, area: Rect, key: LogKey) -> Rect {
        let usage = &self.app.usage;
        let shown = usage.shown(key).filter(|_| !usage.is_hidden);
        let shown = shown.filter(|_| area.height >= CHARTS.start() + OUTPUT_MIN);
        let Some((view, attempt, curve)) = shown else {
            return area;
        };
        let mut charts = vec![memory_chart(view, attempt, curve), cpu_chart(view, curve)];
        charts.extend(curve.gpu.as_deref().into_iter().flat_map(gpu_charts));
        let height = (area.height / 4).clamp(*CHARTS.start(), *CHARTS.end());
        // The GPU charts are below the others if they fit, otherwise next to them.
        let is_below = area.height >= 2 * height + OUTPUT_MIN;
        let in_row = if is_below { 2 } else { charts.len() };
        let mut rest = area;
        for row in charts.chunks(in_row) {
            let rows = [Constraint::Length(height), Constraint::Min(1)];
            let [place, below] = Layout::vertical(rows).areas(rest);
            let places = Layout::horizontal(row.iter().map(|_| Constraint::Fill(1)));
            for (chart, place) in row.iter().zip(&*places.split(place)) {
                self.chart(*place, chart);
            }
            rest = below;
        }
        rest
    }
}

fn mib(kib: u64) -> String {
    number(kib.div_ceil(1024))
}

fn memory_chart(view: &UsageView, attempt: usize, curve: &Curve) -> Chart {
    let (of, span) = (view.attempts, short_words(curve.span()));
    let (top, asked) = (mib(curve.memory_peak_kib), memory_asked(&curve.asked, mib));
    Chart {
        title: format!(" MiB: top {top}{asked} "),
        below: format!(" attempt {attempt} of {of}, over {span} "),
        values: curve.points().map(|point| Some(point.memory_kib)).collect(),
        asked: curve.asked.memory_kib,
        color: Color::Cyan,
        ..Chart::default()
    }
}

fn cpu_chart(view: &UsageView, curve: &Curve) -> Chart {
    let [mean, top] = [curve.cpu_mean_milli(), curve.cpu_peak_milli].map(cpus);
    let has_others = view.curves.len() > 1;
    Chart {
        title: format!(" cpus: {mean}, top {top}{} ", cpus_asked(&curve.asked)),
        below: if has_others {
            " [ ] other attempts "
        } else {
            ""
        }
        .to_owned(),
        values: curve.points().map(|point| Some(point.cpu_milli)).collect(),
        is_mean: true,
        asked: curve.asked.cpu_units / 10,
        color: Color::Yellow,
        ..Chart::default()
    }
}

/// Returns the charts of busy GPUs and of their memory. Gaps remain empty.
fn gpu_charts(curve: &GpuCurve) -> [Chart; 2] {
    let given = curve.given;
    let busy = curve.busy_mean_milli().map(|mean| {
        let [mean, top] = [mean, curve.busy_peak_milli].map(cpus);
        format!("{mean}, top {top} of {} asked for", amount(given.units))
    });
    let memory = curve.is_memory_known().then(|| {
        let of = match given.memory_kib {
            0 => String::new(),
            kib => format!(" of {}", mib(kib)),
        };
        format!("top {}{of}", mib(curve.memory_peak_kib))
    });
    let known = |text: Option<String>| text.unwrap_or_else(|| "not known".to_owned());
    let shared = |is_shared| {
        if is_shared {
            " with that of others there "
        } else {
            ""
        }
    };
    [
        Chart {
            title: format!(" GPUs: {} ", known(busy)),
            below: shared(given.is_shared()).to_owned(),
            values: curve.points().map(|point| point.busy_milli).collect(),
            is_mean: true,
            asked: given.units / 10,
            color: Color::Yellow,
            ..Chart::default()
        },
        Chart {
            title: format!(" GPU MiB: {} ", known(memory)),
            below: shared(given.is_memory_of_devices).to_owned(),
            values: curve.points().map(|point| point.memory_kib).collect(),
            asked: given.memory_kib,
            color: Color::Cyan,
            ..Chart::default()
        },
    ]
}
