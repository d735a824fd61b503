//! The list: a view declares its columns; all lists share the rest.

use std::ops::Range;

use ratatui::Frame;
use ratatui::layout::{Constraint, HorizontalAlignment, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Row, Table, TableState};

use super::parts::{strong, titled};
use crate::dashboard::app::{Hits, Theme};

/// The columns of a list.
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
        self,
        title: &'static str,
        width: impl Into<Constraint>,
        cell: impl Fn(&'a R) -> L + 'a,
    ) -> Self {
        self.with(title, width.into(), HorizontalAlignment::Left, cell)
    }

    /// Adds a column of numbers.
    pub(super) fn right<L: Into<Line<'a>>>(
        self,
        title: &'static str,
        width: impl Into<Constraint>,
        cell: impl Fn(&'a R) -> L + 'a,
    ) -> Self {
        self.with(title, width.into(), HorizontalAlignment::Right, cell)
    }

    fn with<L: Into<Line<'a>>>(
        mut self,
        title: &'static str,
        width: Constraint,
        alignment: HorizontalAlignment,
        cell: impl Fn(&'a R) -> L + 'a,
    ) -> Self {
        self.0.push(Column {
            title,
            width,
            alignment,
            cell: Box::new(move |row| cell(row).into()),
        });
        self
    }

    /// Draws the list that keys and mouse act on, and notes in `hits` where its rows are.
    pub(super) fn draw(
        self,
        frame: &mut Frame<'_>,
        area: Rect,
        theme: Theme,
        hits: &mut Hits,
        title: &str,
        rows: impl Iterator<Item = &'a R>,
    ) {
        let block = titled(theme, area, title);
        let inner = block.inner(area);
        hits.rows = Rect {
            y: inner.y + 1,
            height: inner.height.saturating_sub(1),
            ..inner
        };
        let table = self
            .table(rows, seen(&hits.table, area))
            .row_highlight_style(highlight(theme))
            .block(block);
        frame.render_stateful_widget(table, area, &mut hits.table);
    }

    /// The list without frame and selection. Creates only visible rows, because a list may have a
    /// hundred thousand.
    pub(super) fn table(self, rows: impl Iterator<Item = &'a R>, seen: Range<usize>) -> Table<'a> {
        let columns = self.0.iter();
        let headings = columns.map(|column| Line::from(column.title).alignment(column.alignment));
        let header = Row::new(headings).style(strong());
        let rows = rows.enumerate().map(|(at, row)| {
            let is_seen = seen.contains(&at);
            let columns = self.0.iter().filter(|_| is_seen);
            Row::new(columns.map(|column| (column.cell)(row).alignment(column.alignment)))
        });
        let widths = self.0.iter().map(|column| column.width);
        Table::new(rows, widths).header(header)
    }
}

/// Rows that may be visible in an area after the next move of the selection.
pub(super) fn seen(table: &TableState, area: Rect) -> Range<usize> {
    let (offset, height) = (table.offset(), usize::from(area.height));
    offset.saturating_sub(height)..offset.saturating_add(2 * height)
}

/// Reversed colours would make holes of full blocks.
pub(super) fn highlight(theme: Theme) -> Style {
    if theme.colors {
        Style::new()
            .bg(Color::Indexed(238))
            .add_modifier(Modifier::BOLD)
    } else {
        Style::new().add_modifier(Modifier::REVERSED)
    }
}
