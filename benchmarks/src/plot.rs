//! Draws a line plot with logarithmic axes as one self-contained SVG. Does not know what it shows.

use std::fmt::Write as _;

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 480.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 680.0;
const TOP: f64 = 50.0;
const BOTTOM: f64 = 430.0;
/// The height of a line in the legend.
const LINE: f64 = 20.0;
/// The least distance between two numbers of the x axis.
const TICK: f64 = 35.0;
/// Colors that can be distinguished with red-green blindness. Dashes double their number.
const COLOURS: [&str; 8] = [
    "#000000", "#d55e00", "#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f",
];

/// The figures of one contestant.
#[derive(Clone, Debug)]
pub(crate) struct Series {
    /// The name of the contestant.
    pub(crate) label: String,
    /// Whether to emphasize it.
    pub(crate) emphasis: bool,
    /// Points and medians, with points in ascending order.
    pub(crate) medians: Vec<(f64, f64)>,
}

/// A logarithmic axis. Zero is drawn a step below the smallest other value.
struct Axis {
    low: f64,
    high: f64,
    zero: f64,
    from: f64,
    to: f64,
}

impl Axis {
    fn new(values: impl Iterator<Item = f64> + Clone, from: f64, to: f64) -> Self {
        let smallest = values
            .clone()
            .filter(|value| *value > 0.0)
            .fold(f64::INFINITY, f64::min);
        let smallest = if smallest.is_finite() { smallest } else { 1.0 };
        let zero = smallest / 4.0;
        let has_zero = values.clone().any(|value| value <= 0.0);
        let low = if has_zero { zero } else { smallest };
        let high = values.fold(low * 1.01, f64::max);
        Self {
            low: low.ln(),
            high: high.ln(),
            zero,
            from,
            to,
        }
    }

    fn place(&self, value: f64) -> f64 {
        let value = value.max(self.zero).ln();
        self.from + (value - self.low) / (self.high - self.low) * (self.to - self.from)
    }
}

/// Returns the plot.
pub(crate) fn svg(title: &str, x_label: &str, y_label: &str, series: &[Series]) -> String {
    let points = || series.iter().flat_map(|series| series.medians.iter());
    let x_axis = Axis::new(points().map(|point| point.0), LEFT, RIGHT);
    // The axis spans whole powers of ten around the values.
    let decades = |value: f64, round: fn(f64) -> f64| 10_f64.powf(round(value.log10()));
    let positive = || points().map(|point| point.1).filter(|y| *y > 0.0);
    let low = decades(positive().fold(f64::INFINITY, f64::min), f64::floor);
    let high = decades(positive().fold(0.0, f64::max), f64::ceil);
    let y_axis = Axis::new([low, high].into_iter(), BOTTOM, TOP);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    let middle = f64::midpoint(LEFT, RIGHT);
    text(&mut out, middle, 25.0, "middle", title);
    text(&mut out, middle, BOTTOM + 40.0, "middle", x_label);
    text(&mut out, LEFT, TOP - 10.0, "middle", y_label);
    let mut ticks: Vec<f64> = points().map(|point| point.0).collect();
    ticks.sort_by(f64::total_cmp);
    ticks.dedup();
    let mut last = f64::NEG_INFINITY;
    for x in ticks {
        let place = x_axis.place(x);
        // Closer ticks would cover the numbers of each other.
        if place < last + TICK {
            continue;
        }
        last = place;
        rule(&mut out, [place, TOP, place, BOTTOM]);
        text(&mut out, place, BOTTOM + 18.0, "middle", &x.to_string());
    }
    let mut y = low;
    while y <= high * 1.01 {
        let place = y_axis.place(y);
        rule(&mut out, [LEFT, place, RIGHT, place]);
        text(&mut out, LEFT - 6.0, place + 4.0, "end", &tick(y));
        y *= 10.0;
    }
    let mut numbered: Vec<_> = series.iter().enumerate().collect();
    // The line that is drawn last is on top.
    numbered.sort_by_key(|(_, line)| line.emphasis);
    for (index, line) in numbered {
        let style = style(index, line.emphasis);
        let mut path = String::new();
        for (x, y) in &line.medians {
            let (x, y) = (x_axis.place(*x), y_axis.place(*y));
            let _ = write!(path, "{x:.1},{y:.1} ");
            let colour = COLOURS[index % COLOURS.len()];
            let _ = writeln!(
                out,
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>"
            );
        }
        let _ = writeln!(out, "<polyline points=\"{}\" {style}/>", path.trim_end());
        let legend = TOP + LINE * index as f64;
        let (from, to) = (RIGHT + 15.0, RIGHT + 45.0);
        let _ = writeln!(
            out,
            "<polyline points=\"{from},{legend} {to},{legend}\" {style}/>"
        );
        text(&mut out, RIGHT + 50.0, legend + 4.0, "start", &line.label);
    }
    out.push_str("</svg>\n");
    out
}

/// Returns the text of a power of ten.
fn tick(power: f64) -> String {
    if power < 1.0 {
        // Multiplication leaves 0.30000000000000004 and the like.
        return format!("{power:.4}").trim_end_matches('0').to_owned();
    }
    format!("{power:.0}")
}

fn style(index: usize, emphasis: bool) -> String {
    let width = if emphasis { 4.0 } else { 1.5 };
    let colour = COLOURS[index % COLOURS.len()];
    let dashes = ["none", "6 3", "2 3", "8 3 2 3"][index / COLOURS.len() % 4];
    format!(
        "fill=\"none\" stroke=\"{colour}\" stroke-width=\"{width}\" stroke-dasharray=\"{dashes}\""
    )
}

fn rule(out: &mut String, [x1, y1, x2, y2]: [f64; 4]) {
    let _ = writeln!(
        out,
        "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"#ddd\"/>"
    );
}

fn text(out: &mut String, x: f64, y: f64, anchor: &str, content: &str) {
    // Titles are Markdown, in which backticks mark code.
    let content = content.replace('`', "");
    let content = content.replace('&', "&amp;").replace('<', "&lt;");
    let _ = writeln!(
        out,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{content}</text>"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_has_a_place_and_labels_are_escaped() {
        let series = Series {
            label: "a < b".into(),
            emphasis: false,
            medians: vec![(0.0, 10.0), (64.0, 1000.0)],
        };
        let svg = svg("t", "x", "y", &[series]);
        assert!(svg.contains("a &lt; b"), "{svg}");
        assert!(svg.contains("points=\"80.0,430.0 680.0,50.0\""), "{svg}");
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }
}
