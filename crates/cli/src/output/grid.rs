//! The two styles of tables, and the colors of states.

use std::io;

use comfy_table::{
    Attribute, Cell, CellAlignment, Color, ContentArrangement, ContentLineStyle, LineStyle, Table,
    TableStyle,
};
use hq_core::job::JobState;
use hq_protocol::client;

use super::Out;
use super::format::printable;
use super::view::{job_state_name, task_state_name, worker_state, worker_state_word};

const RULE: LineStyle = LineStyle::new('+', '-', '+', '+');
const CONTENT: ContentLineStyle = ContentLineStyle::new('|', '|', '|');
const STYLE: TableStyle = TableStyle::new()
    .top_border(RULE)
    .header_lines(CONTENT)
    .header_separator(RULE)
    .content_lines(CONTENT)
    .bottom_border(RULE);

/// A cell: a text, optionally with a color.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Text {
    text: String,
    color: Option<Color>,
}

impl<T: Into<String>> From<T> for Text {
    fn from(text: T) -> Self {
        Self {
            text: text.into(),
            color: None,
        }
    }
}

impl Text {
    /// Creates a text in this color.
    pub(super) fn colored(text: impl Into<String>, color: Color) -> Self {
        Self {
            text: text.into(),
            color: Some(color),
        }
    }

    fn cell(&self) -> Cell {
        let cell = Cell::new_owned(printable(&self.text).replace('\t', "    "));
        match self.color {
            Some(color) => cell.fg(color),
            None => cell,
        }
    }
}

/// Properties of the device on which tables are shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Look {
    /// Whether the device understands escape sequences.
    pub(crate) colors: bool,
    /// The maximum width. `None` means that it is unlimited.
    pub(crate) columns: Option<u16>,
}

/// A table that is filled row by row.
pub(super) struct Grid {
    table: Table,
}

impl Grid {
    fn new(look: Look) -> Self {
        let mut table = Table::new();
        table.load_style(STYLE);
        match look.columns {
            // Wraps the longest cells of a table that is too wide.
            Some(columns) => {
                table.set_content_arrangement(ContentArrangement::Dynamic);
                table.set_width(columns);
            }
            None => {
                table.set_content_arrangement(ContentArrangement::Disabled);
            }
        }
        if look.colors {
            table.enforce_styling();
        } else {
            table.force_no_tty();
        }
        Self { table }
    }

    /// Creates a table with a header. The first `right` columns are right-aligned.
    pub(super) fn horizontal(look: Look, header: &[&str], right: usize) -> Self {
        let mut grid = Self::new(look);
        let bold = header
            .iter()
            .map(|name| Text::from(*name).cell().add_attribute(Attribute::Bold));
        grid.table.set_header(bold);
        for index in 0..right {
            grid.align_right(index);
        }
        grid
    }

    /// Creates a table with rows of label and value.
    pub(super) fn vertical(look: Look) -> Self {
        Self::new(look)
    }

    /// Right-aligns a column.
    pub(super) fn align_right(&mut self, column: usize) {
        if let Some(column) = self.table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }

    /// Adds a row.
    pub(super) fn row(&mut self, cells: impl IntoIterator<Item = Text>) {
        self.table.add_row(
            cells
                .into_iter()
                .map(|text| text.cell())
                .collect::<Vec<_>>(),
        );
    }

    /// Adds a label and its value.
    pub(super) fn field(&mut self, label: &str, value: impl Into<Text>) {
        self.fields(label, [value.into()]);
    }

    /// Adds a label and a value of several parts, one per line.
    pub(super) fn fields(&mut self, label: &str, values: impl IntoIterator<Item = Text>) {
        let mut label = Cell::new(label).add_attribute(Attribute::Bold);
        for value in values {
            self.table.add_row(vec![label, value.cell()]);
            label = Cell::new("");
        }
    }

    /// Returns the table as text, with a line feed at the end.
    pub(super) fn render(&mut self) -> String {
        if self.table.is_empty() {
            // If there are no rows, nothing is drawn below the rule under the header.
            self.table.style_mut().bottom_border = LineStyle::none();
        }
        let mut text = self.table.to_string();
        text.push('\n');
        text
    }

    /// Writes the table.
    pub(super) fn write(&mut self, out: Out<'_>) -> io::Result<()> {
        out.as_is().write_all(self.render().as_bytes())
    }
}

/// Returns the color of a task's state.
pub(super) const fn task_color(state: client::TaskState) -> Color {
    match state {
        client::TaskState::Finished => Color::Green,
        client::TaskState::Failed => Color::Red,
        client::TaskState::Running => Color::Yellow,
        client::TaskState::Canceled => Color::Magenta,
        client::TaskState::Waiting => Color::Cyan,
        client::TaskState::Aborted => Color::Blue,
    }
}

/// Returns a task's state in its color.
pub(super) fn task_state(state: client::TaskState) -> Text {
    Text::colored(task_state_name(state), task_color(state))
}

/// Returns a job's state in its color.
pub(super) fn job_state(state: JobState) -> Text {
    let color = match state {
        JobState::Finished => Color::Green,
        JobState::Failed => Color::Red,
        JobState::Running => Color::Yellow,
        JobState::Canceled => Color::Magenta,
        JobState::Waiting | JobState::Opened => Color::Cyan,
        JobState::Aborted => Color::Blue,
    };
    Text::colored(job_state_name(state), color)
}

/// Returns a worker's state in its color.
pub(super) fn worker_state_text(worker: &client::WorkerInfo) -> Text {
    use client::worker_info::State;
    let state = worker_state(worker);
    let color = match state {
        State::Running if worker.is_draining || worker.quarantine.is_some() => Color::Yellow,
        State::Running => Color::Green,
        State::ConnectionLost | State::HeartbeatLost => Color::Red,
        State::IdleTimeout | State::TimeLimitReached => Color::Cyan,
        State::Stopped => Color::Magenta,
    };
    Text::colored(worker_state_word(worker), color)
}

/// Writes a table of plain texts with a header.
pub(crate) fn write_plain(
    out: Out<'_>,
    header: &[String],
    rows: Vec<Vec<String>>,
) -> io::Result<()> {
    let names: Vec<&str> = header.iter().map(String::as_str).collect();
    let mut grid = Grid::horizontal(Look::default(), &names, 0);
    for row in rows {
        grid.row(row.into_iter().map(Text::from));
    }
    grid.write(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(columns: Option<u16>) -> Vec<String> {
        let look = Look {
            colors: false,
            columns,
        };
        let mut grid = Grid::horizontal(look, &["Task ID", "Error"], 1);
        let error = "Cannot execute \"nothere\": No such file or directory\nIs it in PATH?";
        grid.row(["17".into(), error.into()]);
        grid.render().lines().map(str::to_owned).collect()
    }

    #[test]
    fn tables_are_as_wide_as_the_terminal_at_most() {
        let wide = rows(None);
        assert_eq!(rows(Some(200)), wide, "what fits is not changed");
        let narrow = rows(Some(40));
        assert!(
            narrow.iter().all(|row| row.chars().count() <= 40),
            "{narrow:#?}"
        );
        let words = |rows: &[String]| {
            let text = rows.join(" ").replace(['|', '+', '-'], " ");
            text.split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        assert_eq!(words(&narrow), words(&wide), "nothing is left out");
    }
}
