//! Draws charts as SVG. They contain only numbers; the caller escapes texts.

use std::fmt::Write as _;

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 120.0;

/// Draws a filled line over time, with a second, dashed line for the limit. `labels` are the ends
/// of the axes.
pub(super) fn area(values: &[f64], limit: &[f64], labels: (&str, &str)) -> String {
    let most = values
        .iter()
        .chain(limit)
        .copied()
        .fold(0.0, f64::max)
        .max(1e-9);
    let last = values.len().saturating_sub(1).max(1);
    let x = |at: usize| WIDTH * count(at) / count(last);
    let y = |value: f64| HEIGHT - HEIGHT * value.max(0.0) / most;
    let mut fill = format!("M0 {HEIGHT}");
    for (at, value) in values.iter().enumerate() {
        let _ = write!(fill, "L{:.1} {:.1}", x(at), y(*value));
    }
    let _ = write!(fill, "L{WIDTH} {HEIGHT}Z");
    let mut line = String::new();
    for (at, value) in limit.iter().enumerate() {
        let _ = write!(
            line,
            "{}{:.1} {:.1}",
            if at == 0 { "M" } else { "L" },
            x(at),
            y(*value)
        );
    }
    let (from, to) = labels;
    format!(
        "<svg viewBox=\"0 -14 {WIDTH} {:.0}\" role=\"img\"><path class=\"area\" d=\"{fill}\"/>\
         <path class=\"limit\" d=\"{line}\"/><text x=\"0\" y=\"-3\">{}</text>\
         <text x=\"0\" y=\"{:.0}\">{from}</text><text class=\"end\" x=\"{WIDTH}\" y=\"{:.0}\">{to}</text></svg>",
        HEIGHT + 32.0,
        short(most),
        HEIGHT + 14.0,
        HEIGHT + 14.0
    )
}

/// Draws a small filled line, with a dashed line for the request. `name` is for screen readers.
pub(super) fn spark(values: &[f64], limit: Option<f64>, name: &str) -> String {
    const WIDE: f64 = 132.0;
    const HIGH: f64 = 28.0;
    let most = values.iter().chain(limit.iter()).copied();
    let most = most.fold(0.0, f64::max).max(1e-9);
    let y = |value: f64| HIGH - (HIGH - 1.0) * value.max(0.0) / most;
    // The line has steps, because each value covers a time span.
    let step = WIDE / count(values.len().max(1));
    let mut fill = format!("M0 {HIGH}");
    for (at, value) in values.iter().enumerate() {
        let (from, to) = (count(at) * step, count(at + 1) * step);
        let _ = write!(
            fill,
            "L{from:.1} {high:.1}L{to:.1} {high:.1}",
            high = y(*value)
        );
    }
    let _ = write!(fill, "L{WIDE} {HIGH}Z");
    let limit = limit.map_or_else(String::new, |limit| {
        format!(
            "<path class=\"limit\" d=\"M0 {high:.1}L{WIDE} {high:.1}\"/>",
            high = y(limit)
        )
    });
    format!(
        "<svg class=\"small\" viewBox=\"0 0 {WIDE} {HIGH}\" width=\"{WIDE}\" role=\"img\" aria-label=\"{name}\">\
         <path class=\"area\" d=\"{fill}\"/>{limit}</svg>"
    )
}

/// Draws a bar for each span (from, to), as fractions of the whole. The text is a tooltip.
pub(super) fn lanes(spans: &[(f64, f64, String)]) -> String {
    const LANE: f64 = 10.0;
    let mut bars = String::new();
    for (lane, (from, to, text)) in spans.iter().enumerate() {
        let _ = write!(
            bars,
            "<rect class=\"bar\" x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{}\"><title>{text}</title></rect>",
            from * WIDTH,
            count(lane) * LANE,
            ((to - from) * WIDTH).max(1.0),
            LANE - 2.0
        );
    }
    format!(
        "<svg viewBox=\"0 0 {WIDTH} {:.0}\" role=\"img\">{bars}</svg>",
        count(spans.len()) * LANE
    )
}

/// Draws small bars side by side. Each label is a tooltip.
pub(super) fn bars(bins: &[(String, u64)]) -> String {
    const WIDE: f64 = 132.0;
    const HIGH: f64 = 24.0;
    let float = super::gather::float;
    let most = bins.iter().map(|(_, value)| *value).max().unwrap_or(0);
    let step = WIDE / count(bins.len().max(1));
    let mut bars = String::new();
    for (at, (label, value)) in bins.iter().enumerate().filter(|(_, bin)| bin.1 > 0) {
        // A single task among a million stays visible.
        let high = (HIGH * float(*value) / float(most.max(1))).max(1.0);
        let _ = write!(
            bars,
            "<rect class=\"bar\" x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{high:.1}\"><title>{label}: {value}</title></rect>",
            count(at) * step,
            HIGH - high,
            (step - 1.0).max(1.0),
        );
    }
    format!(
        "<svg class=\"small\" viewBox=\"0 0 {WIDE} {HIGH}\" width=\"{WIDE}\" role=\"img\" aria-label=\"run times\">{bars}</svg>"
    )
}

fn count(value: usize) -> f64 {
    super::gather::float(value as u64)
}

/// Formats a number with at most three decimals, without trailing zeros.
pub(super) fn short(value: f64) -> String {
    // An empty sum is -0.
    let value = value + 0.0;
    let text = if value >= 100.0 {
        format!("{value:.0}")
    } else {
        format!("{value:.2}")
    };
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn charts_of_nothing_are_charts() {
        for svg in [
            area(&[], &[], ("", "")),
            area(&[0.0], &[0.0], ("a", "b")),
            spark(&[], None, "a"),
            spark(&[0.0, 1.0], Some(0.0), "a"),
            lanes(&[]),
            bars(&[]),
            bars(&[("a".to_owned(), 0)]),
        ] {
            assert!(svg.starts_with("<svg") && svg.ends_with("</svg>"), "{svg}");
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
        assert_eq!(
            [short(0.5), short(3.0), short(1234.6)],
            ["0.5", "3", "1235"]
        );
    }
}
