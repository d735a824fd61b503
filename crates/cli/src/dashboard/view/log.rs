//! The output of a task on the whole screen.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Color, Style};
use ratatui::text::Line;
use ratatui::widgets::Paragraph;

use super::parts::{bordered, colored, number, strong, titled};
use super::usage;
use crate::dashboard::app::App;

pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, app: &mut App) {
    let theme = app.theme;
    let Some(log) = &mut app.log else {
        return;
    };
    let area = usage::draw(frame, area, theme, &app.usage, log.key);
    log.height = bordered(theme).inner(area).height.into();
    let key = log.key;
    let mut title = format!(" {} of task {} of job {}", key.stream(), key.task, key.job);
    let count = log.len();
    if count > 0 {
        let last = (log.top() + log.height).min(count);
        let cut = if log.is_cut { "the last " } else { "" };
        title.push_str(&format!(
            ": line {} of {cut}{}",
            number(last as u64),
            number(count as u64)
        ));
    }
    if log.shift > 0 {
        title.push_str(&format!(", from column {}", log.shift + 1));
    }
    if log.is_following {
        title.push_str(", following");
    }
    if let Some(note) = &log.note {
        title.push_str(&format!("; {note}"));
    }
    if !log.search.is_empty() {
        title.push_str(&format!("; searched: `{}`", log.search));
    }
    title.push(' ');
    let found = colored(theme, strong(), Color::Yellow);
    let lines: Vec<Line<'static>> = if count == 0 {
        let text = match (log.is_new, &log.note) {
            (true, None) => "reading ...",
            (true, Some(_)) => "",
            (false, _) => "nothing was written yet; o shows the other output",
        };
        vec![Line::raw(text)]
    } else {
        let line = |text: String| {
            let style = if log.matches(&text) {
                found
            } else {
                Style::new()
            };
            Line::styled(text.chars().skip(log.shift).collect::<String>(), style)
        };
        log.page().map(line).collect()
    };
    let block = titled(theme, area, &title);
    frame.render_widget(Paragraph::new(lines).block(block), area);
}
