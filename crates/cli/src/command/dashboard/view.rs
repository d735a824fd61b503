//! Views: draw an [`App`] on a frame. All of them fit on 80×24.

mod frame;
mod job;
mod lists;
mod overview;
mod parts;
mod usage;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Block, Paragraph, TableState, Wrap};

use super::app::{App, Hits, Place, Theme};
use crate::text::{fit, is_hidden};

/// The minimum size of the screen.
const MIN: (u16, u16) = (40, 10);

/// Draws the app on a frame.
struct Painter<'a, 'f> {
    frame: &'a mut Frame<'f>,
    app: &'a App,
    theme: Theme,
    /// The places that react to the mouse.
    hits: Hits,
    /// The state of the list that keys and the mouse act on.
    table: TableState,
}

/// Draws everything.
pub(super) fn draw(frame: &mut Frame<'_>, app: &mut App) {
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
    let place = app.place();
    let mut painter = Painter {
        frame,
        theme: app.theme,
        hits: Hits::default(),
        table: app.tables[place as usize],
        app,
    };
    painter.head(head);
    match place {
        _ if app.log.is_some() => painter.log(body),
        Place::Tasks => painter.tasks(body),
        Place::Job => painter.job(body),
        Place::Events => painter.events(body),
        _ if app.snapshot.is_none() => painter.text(body, "waiting for the server ..."),
        Place::Overview => painter.overview(body),
        Place::Jobs => painter.jobs(body),
        Place::Workers => painter.workers(body),
        Place::Allocations => painter.allocations(body),
    }
    painter.foot(foot);
    painter.dialogs(area);
    // Texts may contain any characters.
    for cell in &mut painter.frame.buffer_mut().content {
        if cell.symbol().contains(is_hidden) {
            cell.set_symbol("\u{fffd}");
        } else if !app.theme.unicode && !cell.symbol().is_ascii() {
            let plain = parts::plain(cell.symbol()).to_owned();
            cell.set_symbol(&plain);
        }
    }
    let Painter { hits, table, .. } = painter;
    (app.hits, app.tables[place as usize]) = (hits, table);
}

impl Painter<'_, '_> {
    fn text<'t>(&mut self, area: Rect, text: impl Into<Text<'t>>) {
        let text = Paragraph::new(text).wrap(Wrap { trim: true });
        self.frame.render_widget(text, area);
    }

    /// Returns a frame with a title that is cut to fit.
    fn block(&self, area: Rect, title: &str) -> Block<'static> {
        let room = area.width.saturating_sub(2).into();
        self.theme.block(fit(title, room))
    }

    /// Draws lines in a frame.
    fn framed(&mut self, area: Rect, title: &str, lines: Vec<Line<'_>>) {
        let lines = Paragraph::new(lines).block(self.block(area, title));
        self.frame.render_widget(lines, area);
    }
}

#[cfg(test)]
mod tests;
