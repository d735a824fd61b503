//! The list of all tasks of a job, or of a worker.

use ratatui::widgets::TableState;

use crate::dashboard::model::{TaskPage, TaskRow, TasksOf, TasksWanted};

/// Number of rows to request at first; reaching the last row requests more.
const ROWS: usize = 500;
/// Maximum number of rows, more than anyone scrolls through.
const ROWS_MAX: usize = 20_000;

/// An open list.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Tasks {
    pub(crate) of: TasksOf,
    /// As it is typed.
    pub(crate) filter: String,
    count: usize,
    /// Tasks for the current filter, or for the previous one.
    pub(crate) page: Option<TaskPage>,
    pub(crate) table: TableState,
}

impl Tasks {
    pub(crate) fn new(of: TasksOf) -> Self {
        Self {
            of,
            filter: String::new(),
            count: ROWS,
            page: None,
            table: TableState::default().with_selected(Some(0)),
        }
    }

    pub(crate) fn wanted(&self) -> TasksWanted {
        TasksWanted {
            of: self.of,
            filter: self.filter.clone(),
            count: self.count,
        }
    }

    /// Stores a page of tasks, unless the user has requested another list meanwhile.
    pub(crate) fn on_page(&mut self, page: TaskPage) {
        if page.wanted.of == self.of && page.wanted.filter == self.filter {
            self.page = Some(page);
            self.stay_inside();
        }
    }

    /// Starts at the beginning of the tasks that a new filter finds.
    pub(crate) fn on_filter(&mut self) {
        self.count = ROWS;
        self.table.select(Some(0));
    }

    pub(crate) fn rows(&self) -> &[TaskRow] {
        self.page.as_ref().map_or(&[], |page| &page.rows)
    }

    /// Whether the visible list belongs to an earlier filter.
    pub(crate) fn is_old(&self) -> bool {
        let page = self.page.as_ref();
        page.is_some_and(|page| page.wanted.filter != self.filter)
    }

    /// The selected task; `None` if the list is outdated.
    pub(crate) fn selected(&self) -> Option<&TaskRow> {
        if self.is_old() {
            return None;
        }
        self.rows().get(self.table.selected()?)
    }

    fn stay_inside(&mut self) {
        let last = self.rows().len().saturating_sub(1);
        let now = self.table.selected().unwrap_or(0);
        self.table.select(Some(now.min(last)));
    }

    pub(crate) fn move_by(&mut self, rows: isize) {
        let now = self.table.selected().unwrap_or(0);
        self.table.select(Some(now.saturating_add_signed(rows)));
        self.stay_inside();
        let has_more = self.page.as_ref().is_some_and(|page| page.is_cut.is_some());
        let is_last = self.table.selected() == Some(self.rows().len().saturating_sub(1));
        if has_more && is_last && rows > 0 && self.count <= self.rows().len() {
            self.count = (self.count * 2).min(ROWS_MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(tasks: &Tasks, rows: usize) -> TaskPage {
        TaskPage {
            wanted: tasks.wanted(),
            rows: vec![TaskRow::default(); rows],
            is_cut: (rows >= tasks.count).then_some("more"),
        }
    }

    #[test]
    fn more_rows_are_asked_for_when_the_last_one_is_reached() {
        let mut tasks = Tasks::new(TasksOf::Job(1));
        tasks.on_page(page(&tasks, ROWS));
        tasks.move_by(10);
        assert_eq!(tasks.wanted().count, ROWS);
        tasks.move_by(isize::MAX);
        assert_eq!(tasks.wanted().count, 2 * ROWS);
        tasks.on_page(page(&tasks, ROWS + 3));
        tasks.move_by(isize::MAX);
        assert_eq!(tasks.wanted().count, 2 * ROWS, "there are no more");
        assert_eq!(tasks.table.selected(), Some(ROWS + 2));
    }

    #[test]
    fn what_was_found_for_another_filter_is_not_shown() {
        let mut tasks = Tasks::new(TasksOf::Worker(1));
        let old = page(&tasks, 3);
        tasks.filter.push('7');
        tasks.on_filter();
        tasks.on_page(old);
        assert_eq!(tasks.page, None);
        tasks.on_page(page(&tasks, 1));
        assert_eq!(tasks.rows().len(), 1);
    }
}
