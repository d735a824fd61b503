//! Views: pure functions from [`App`] to a frame. All of them fit on 80×24.

mod frame;
mod job;
mod list;
mod lists;
mod log;
mod overview;
mod parts;
mod tasks;
mod usage;

pub(crate) use parts::run_time;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};

use super::app::{App, Hits, Tab};
use crate::text::is_hidden;

/// Minimum size of the screen.
const MIN: (u16, u16) = (40, 10);

/// Draws everything.
pub(crate) fn draw(frame: &mut Frame<'_>, app: &mut App) {
    let area = frame.area();
    if area.width < MIN.0 || area.height < MIN.1 {
        frame.render_widget("the window is too small", area);
        return;
    }
    let rows = [
        Constraint::Length(2),
        Constraint::Min(3),
        Constraint::Length(1),
    ];
    let [head, body, foot] = Layout::vertical(rows).areas(area);
    let mut hits = Hits {
        table: *app.table(),
        ..Hits::default()
    };
    frame::head(frame, head, app, &mut hits);
    match app.tab {
        _ if app.log.is_some() => log::draw(frame, body, app),
        _ if app.tasks.is_some() => tasks::draw(frame, body, app, &mut hits),
        Tab::Jobs if app.job.is_some() => job::draw(frame, body, app, &mut hits),
        Tab::Events => lists::events(frame, body, app, &mut hits),
        _ if app.snapshot.is_none() => frame.render_widget("waiting for the server ...", body),
        Tab::Overview => overview::draw(frame, body, app, &mut hits),
        Tab::Jobs => lists::jobs(frame, body, app, &mut hits),
        Tab::Workers => lists::workers(frame, body, app, &mut hits),
        Tab::Allocations => lists::allocations(frame, body, app, &mut hits),
    }
    *app.table() = hits.table;
    app.hits = hits;
    frame::foot(frame, foot, app);
    frame::dialogs(frame, area, app);
    // Removes control characters from all texts.
    for cell in &mut frame.buffer_mut().content {
        if cell.symbol().contains(is_hidden) {
            cell.set_symbol("\u{fffd}");
        }
    }
}

#[cfg(test)]
mod tests;
