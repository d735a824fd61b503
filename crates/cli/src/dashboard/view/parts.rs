//! Pieces that several views use: colours, bars, numbers, times.

pub(super) use hq_core::words::number;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::symbols::{bar, border};
use ratatui::text::Span;
use ratatui::widgets::{Block, Sparkline};

use crate::dashboard::app::Theme;
use crate::dashboard::model::Counts;
use crate::output::format::{local_time, zone};
use crate::text::fit;

/// Style of a state. Without colors, only bold and dim remain.
pub(super) fn state_style(theme: Theme, state: &str) -> Style {
    let (color, is_strong) = look_of(state).unwrap_or_default();
    let style = if is_strong {
        Style::new().add_modifier(Modifier::BOLD)
    } else {
        Style::new()
    };
    colored(theme, style, color)
}

/// Color of a state of a job, task, worker or allocation, and whether it is bold; `None` for a
/// state of a newer server.
fn look_of(state: &str) -> Option<(Color, bool)> {
    Some(match state {
        "running" | "connected" => (Color::Cyan, false),
        "finished" | "active" => (Color::Green, false),
        "failed" | "lost" | "broken?" | "refused" => (Color::Red, true),
        "aborted" | "canceled" => (Color::Magenta, false),
        "paused" | "draining" | "starving" => (Color::Yellow, false),
        "waiting" | "queued" => (Color::DarkGray, false),
        "opened" => (Color::Reset, false),
        _ => return None,
    })
}

pub(super) fn colored(theme: Theme, style: Style, color: Color) -> Style {
    if theme.colors { style.fg(color) } else { style }
}

pub(super) const fn strong() -> Style {
    Style::new().add_modifier(Modifier::BOLD)
}

const ASCII_BORDER: border::Set<'static> = border::Set {
    top_left: "+",
    top_right: "+",
    bottom_left: "+",
    bottom_right: "+",
    vertical_left: "|",
    vertical_right: "|",
    horizontal_top: "-",
    horizontal_bottom: "-",
};

/// A frame, dim so that its content stands out.
pub(super) fn bordered(theme: Theme) -> Block<'static> {
    let block = if theme.unicode {
        Block::bordered()
    } else {
        Block::bordered().border_set(ASCII_BORDER)
    };
    block
        .border_style(colored(theme, Style::new(), Color::DarkGray))
        .title_style(colored(theme, strong(), Color::Reset))
}

/// A frame with a title that is cut to fit.
pub(super) fn titled(theme: Theme, area: Rect, title: &str) -> Block<'static> {
    bordered(theme).title(fit(title, area.width.saturating_sub(2).into()))
}

/// Bars over time; `top` is the value of the upper edge.
pub(super) fn bars(theme: Theme, values: &[u64], top: u64, color: Color) -> Sparkline<'_> {
    let bars =
        Sparkline::default()
            .data(values)
            .max(top)
            .style(colored(theme, Style::new(), color));
    if theme.unicode {
        bars
    } else {
        bars.bar_set(ASCII_BARS)
    }
}

/// Width of the parameter column for these rows and this screen; 0 if no row has parameters, or no
/// space is left.
pub(super) fn params_width<'a>(params: impl Iterator<Item = &'a str>, width: u16) -> u16 {
    let most = params.map(|text| text.chars().count()).max().unwrap_or(0);
    let room = match width {
        0..60 => 0,
        60.. => width / 4,
    };
    match u16::try_from(most).unwrap_or(u16::MAX).min(room) {
        0 => 0,
        // The heading has to fit.
        columns => columns.max(10),
    }
}

/// The name of an event in words: `job completed`.
pub(super) fn event_words(kind: &str) -> String {
    kind.replace('-', " ")
}

/// Bars of charts.
const ASCII_BARS: bar::Set<'static> = bar::Set {
    full: "#",
    seven_eighths: "#",
    three_quarters: "=",
    five_eighths: "=",
    half: "-",
    three_eighths: "-",
    one_quarter: ".",
    one_eighth: ".",
    empty: " ",
};

/// Glyph of a state; all differ, so that they also work without colors.
pub(super) fn glyph(theme: Theme, state: &str) -> &'static str {
    match (state, theme.unicode) {
        ("finished", true) => "█",
        ("finished", false) => "#",
        ("running", true) => "▶",
        ("running", false) => ">",
        ("failed", _) => "X",
        ("canceled" | "aborted", _) => "-",
        (_, true) => "·",
        (_, false) => ".",
    }
}

/// The most important state of many tasks: failures first, then running tasks, then the most
/// frequent state.
pub(super) const fn worst(counts: &Counts) -> &'static str {
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

/// A bar of `width` cells with a share for each state that occurs.
pub(super) fn progress(theme: Theme, counts: &Counts, width: u16) -> Vec<Span<'static>> {
    let dropped = counts.canceled + counts.aborted;
    let parts = [
        ("finished", counts.finished),
        ("failed", counts.failed),
        ("canceled", dropped),
        ("running", counts.running),
        ("waiting", counts.waiting),
    ];
    let (width, total) = (u64::from(width), counts.total().max(1));
    let mut cells = parts.map(|(_, count)| (count * width / total).max(u64::from(count > 0)));
    // The widest part absorbs the rounding error.
    while cells.iter().sum::<u64>() != width {
        let is_short = cells.iter().sum::<u64>() < width;
        let widest = (0..parts.len())
            .max_by_key(|at| (cells[*at], parts[*at].1))
            .unwrap_or(0);
        let widest = if counts.total() == 0 {
            parts.len() - 1
        } else {
            widest
        };
        cells[widest] = if is_short {
            cells[widest] + 1
        } else {
            cells[widest] - 1
        };
    }
    let spans = parts.iter().zip(cells);
    spans
        .map(|((state, _), cells)| cells_of(theme, state, cells))
        .collect()
}

fn cells_of(theme: Theme, state: &'static str, cells: u64) -> Span<'static> {
    let count = usize::try_from(cells).unwrap_or(0);
    Span::styled(glyph(theme, state).repeat(count), state_style(theme, state))
}

/// Microseconds as `1.2 s`.
pub(crate) fn run_time(us: u64) -> String {
    let tenths = |value: u64, unit: u64| format!("{}.{}", value / unit, value % unit * 10 / unit);
    match us {
        0 => "0 s".to_owned(),
        1..1_000 => format!("{us} us"),
        1_000..1_000_000 => format!("{} ms", us / 1_000),
        1_000_000..60_000_000 => format!("{} s", tenths(us, 1_000_000)),
        60_000_000..3_600_000_000 => format!("{} m", tenths(us, 60_000_000)),
        3_600_000_000..86_400_000_000 => format!("{} h", tenths(us, 3_600_000_000)),
        86_400_000_000.. => format!("{} d", tenths(us, 86_400_000_000)),
    }
}

/// Time since `from` as `3m 20s`; empty if unknown.
pub(super) fn since(from_ns: i64, now_ns: i64) -> String {
    let seconds = (now_ns - from_ns).max(0) / 1_000_000_000;
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3_600 => format!("{}m {}s", seconds / 60, seconds % 60),
        3_600..86_400 => format!("{}h {}m", seconds / 3_600, seconds % 3_600 / 60),
        _ => format!("{}d {}h", seconds / 86_400, seconds % 86_400 / 3_600),
    }
}

/// A span of time as one number.
pub(super) fn rough(ns: i64) -> String {
    let seconds = ns.max(0) / 1_000_000_000;
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} m", seconds / 60),
        7_200..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// `2026-11-28 08:15:50 UTC+01:00`, without the date on narrow screens.
pub(super) fn clock(at_ns: i64, width: u16) -> String {
    let text = format!("{} {}", local_time(at_ns), zone(at_ns));
    match (width, text.split_once(' ')) {
        (0..60, Some((_, time))) => time.to_owned(),
        (_, _) => text,
    }
}

/// Columns of [`clock_and_day`].
pub(super) const CLOCK_WIDTH: u16 = 14;

/// `11-28 08:15:50`, local time. The zone is in the first line of the screen.
pub(super) fn clock_and_day(at_ns: i64) -> String {
    // Behind the year and its dash.
    local_time(at_ns).split_off(5)
}

/// A text on at most two lines, broken between words.
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
    use hq_core::job::JobState;
    use hq_core::task::TaskState;

    const THEME: Theme = Theme {
        colors: false,
        unicode: false,
    };

    fn bar(counts: &Counts, width: u16) -> String {
        progress(THEME, counts, width)
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
        let counts = Counts {
            finished: 999_998,
            failed: 1,
            running: 1,
            ..Counts::default()
        };
        assert_eq!(bar(&counts, 20), "##################X>");
        let counts = Counts {
            finished: 500_000,
            failed: 1,
            waiting: 500_000,
            ..Counts::default()
        };
        assert_eq!(bar(&counts, 20), "#########X..........");
        assert_eq!(bar(&Counts::default(), 4), "....");
        for width in 0..30 {
            let counts = Counts {
                finished: 1,
                failed: 1,
                running: 1,
                waiting: 1,
                ..Counts::default()
            };
            assert_eq!(bar(&counts, width).len(), usize::from(width));
        }
    }

    #[test]
    fn every_state_of_a_job_and_a_task_has_its_look() {
        let words = JobState::ALL.map(JobState::name);
        for word in words.into_iter().chain(TaskState::ALL.map(TaskState::name)) {
            assert!(look_of(word).is_some(), "{word}");
        }
    }

    #[test]
    fn numbers_and_times_are_short() {
        assert_eq!(
            [number(0), number(1_000), number(12_345_678)],
            ["0", "1 000", "12 345 678"]
        );
        assert_eq!(run_time(999), "999 us");
        assert_eq!(run_time(1_250_000), "1.2 s");
        assert_eq!(run_time(u64::MAX / 1_000_000), "213.5 d");
        assert_eq!(since(0, 3_700_000_000_000), "1h 1m");
        assert_eq!(wrapped("ab cde fgh", 6), ["ab", "cde f~"]);
        assert_eq!(wrapped("äöüßäöüß", 5), ["äöüßä", "öüß"]);
    }
}
