//! The state of the screen, and its changes by keys, the mouse and answers. It has no side effects:
//! it keeps each request for the feed.

pub(super) mod log;
mod open;
pub(super) mod usage;

use crossterm::event::KeyCode::Char;
use crossterm::event::{
    Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers, MouseButton, MouseEvent, MouseEventKind,
};
use hq_core::diagnosis::suspect_hosts;
use hq_protocol::client::{JobSummary, LimitInfo, Problem, WorkerInfo};
use hq_store::reader::UsageStep;
use hq_store::reader::run::EventRow;
use ratatui::layout::{Position, Rect};
use ratatui::widgets::TableState;

use super::history::History;
use super::model::{JobView, LogKey, LogPart, OutputTail, TaskPage, TaskRow, TasksWanted};
use super::question::{Action, Question};
use crate::output::view::{job_state, totals};
use crate::source::problems::STARVING;
use crate::source::{Queue, Share, Snapshot, host, is_connected, is_lost};
use log::Log;
use usage::Usage;

/// The number of rows of a page.
const PAGE: isize = 10;
/// The numbers of small and of large steps that pass the whole time of a replay.
const STEPS: i64 = 200;
const LARGE_STEP: i64 = 10;
const SECOND: i64 = 1_000_000_000;
/// The minimum time span of a chart, in nanoseconds.
const SPAN_MIN: i64 = 60 * SECOND;
/// The maximum time spans that the charts can show. The last one is for a replay.
const SPANS: [i64; 4] = [600 * SECOND, 7_200 * SECOND, 86_400 * SECOND, i64::MAX];
/// The number of tasks to request at first. Reaching the last row requests more.
const TASKS: usize = 500;
/// The maximum number of tasks in a list. It is more than a user scrolls through.
const TASKS_MAX: usize = 20_000;

/// A list. The first five are the tabs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Place {
    #[default]
    Overview,
    Jobs,
    Workers,
    Allocations,
    Events,
    /// The failures of the open job.
    Job,
    /// All tasks of a job or worker.
    Tasks,
}

impl Place {
    pub(super) const TABS: [(Self, &'static str); 5] = [
        (Self::Overview, "Overview"),
        (Self::Jobs, "Jobs"),
        (Self::Workers, "Workers"),
        (Self::Allocations, "Allocations"),
        (Self::Events, "Events"),
    ];
}

/// A question to the server or the journal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Topic {
    Everything,
    Problems,
    Queues,
    /// An output. The number of earlier openings ensures that a reopened output is read again.
    Log(LogKey, u32),
    /// The file of an output, for the clipboard.
    Path(LogKey),
    Tasks(TasksWanted),
    /// The resource usage of a task of a job over time.
    Usage(u32, u32),
    Job(u32),
    /// The end of the output of a task of a job.
    Output(u32, u32),
    Events,
    Ended,
    /// The history before the dashboard was started: all of it, or the last minutes.
    Past(bool),
}

/// The questions of the screen, and the data that their answers depend on.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Focus {
    /// The questions. Those of the open view come first.
    pub(super) topics: Vec<Topic>,
    /// The time to show. `None` for the current time.
    pub(super) at_ns: Option<i64>,
    /// The number of completed actions. An action may change every answer.
    pub(super) acted: u32,
}

/// A change of the state because of a terminal event or an answer.
pub(super) type News = Box<dyn FnOnce(&mut App) + Send>;

/// The name and the key of an order in which jobs can be sorted.
type Order = (&'static str, fn(&JobSummary) -> (u64, &str));
const ORDERS: [Order; 5] = [
    ("id", |_| (0, "")),
    ("name", |job| (0, &job.name)),
    ("state", |job| (0, job_state(job).name())),
    ("failed", |job| (totals(job).failed, "")),
    ("progress", |job| {
        let counts = totals(job);
        let share = (counts.ended() * 1_000).checked_div(counts.total());
        (share.map_or(0, |share| share + 1), "")
    }),
];

/// The time of a replay.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Replay {
    pub(super) from_ns: i64,
    pub(super) to_ns: i64,
    pub(super) at_ns: i64,
    pub(super) is_playing: bool,
}

/// The colors and characters that can be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Theme {
    pub(super) colors: bool,
    /// Whether characters beyond ASCII can be shown.
    pub(super) unicode: bool,
}

/// The places on the screen that react to the mouse. They are set while drawing.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Hits {
    pub(super) tabs: Vec<Rect>,
    /// The first row of the table, below its header.
    pub(super) rows: Rect,
    /// The problem that each row of the overview belongs to.
    pub(super) owners: Vec<usize>,
}

/// An open list of tasks.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Tasks {
    /// The last request.
    pub(super) wanted: TasksWanted,
    /// The tasks for the current filter, or for the previous one.
    pub(super) page: Option<TaskPage>,
}

impl Tasks {
    pub(super) fn rows(&self) -> &[TaskRow] {
        self.page.as_ref().map_or(&[], |page| &page.rows)
    }

    /// Returns whether the visible list belongs to an earlier filter.
    pub(super) fn is_old(&self) -> bool {
        let page = self.page.as_ref();
        page.is_some_and(|page| page.wanted.filter != self.wanted.filter)
    }
}

/// The dashboard.
#[derive(Debug, Default)]
pub(super) struct App {
    /// The name of the server or the file.
    pub(super) title: String,
    pub(super) theme: Theme,
    pub(super) replay: Option<Replay>,

    pub(super) snapshot: Option<Snapshot>,
    /// The limits across jobs. A journal does not tell how they are used.
    pub(super) limits: Vec<LimitInfo>,
    pub(super) ended: Vec<Share>,
    /// The events, newest first.
    pub(super) events: Vec<EventRow>,
    /// The problems, worst first. `None` before the first report.
    pub(super) problems: Option<Vec<Problem>>,
    /// The queues. They arrive separately, because their reply may wait for a batch system.
    pub(super) queues: Option<Vec<Queue>>,
    pub(super) history: History,
    pub(super) view: Option<JobView>,
    pub(super) output: Option<OutputTail>,
    pub(super) usage: Usage,
    /// Why the server does not answer. `None` if it answers.
    pub(super) trouble: Option<String>,
    /// The result of an action.
    pub(super) told: Option<String>,
    /// The confirmed actions that have not been sent yet.
    pub(super) actions: Vec<Action>,
    /// The number of actions that have been sent but not completed.
    pub(super) acting: usize,
    /// The number of completed actions.
    pub(super) acted: u32,
    /// Why the last action was not done.
    pub(super) failure: Option<String>,
    /// The output whose path the user wants in the clipboard.
    path: Option<LogKey>,
    /// The text for the clipboard of the terminal.
    pub(super) copied: Option<String>,

    pub(super) tab: Place,
    pub(super) job: Option<u32>,
    pub(super) tasks: Option<Tasks>,
    pub(super) log: Option<Log>,
    /// The number of logs that have been opened.
    logs_opened: u32,
    /// The state of the list of each place.
    pub(super) tables: [TableState; 7],
    pub(super) hits: Hits,
    pub(super) dialog: Option<Question>,
    pub(super) is_help_open: bool,
    pub(super) search: String,
    pub(super) is_searching: bool,
    order: usize,
    pub(super) is_descending: bool,
    /// The number of the time span of the charts.
    span: usize,
    pub(super) has_quit: bool,
}

impl App {
    pub(super) fn new(title: String, theme: Theme, replay: Option<Replay>) -> Self {
        Self {
            title,
            theme,
            replay,
            span: replay.map_or(0, |_| SPANS.len() - 1),
            is_descending: true,
            ..Self::default()
        }
    }

    /// Returns the time that is shown.
    pub(super) fn now_ns(&self) -> i64 {
        let seen = self.snapshot.as_ref().map_or(0, |snapshot| snapshot.now_ns);
        self.replay.map_or(seen, |replay| replay.at_ns)
    }

    /// Returns the start and the end of the charts: the known time span, but at least the minimum.
    pub(super) fn chart_span(&self) -> (i64, i64) {
        let to = self.now_ns();
        let first = self.history.first_ns().unwrap_or(to).min(to - SPAN_MIN);
        (first.max(to.saturating_sub(SPANS[self.span])), to)
    }

    /// Returns the questions of the screen.
    pub(super) fn focus(&self) -> Focus {
        let tasks = self.tasks.iter().map(|tasks| tasks.wanted.clone());
        let mut topics: Vec<Topic> = tasks.map(Topic::Tasks).collect();
        topics.extend(self.path.map(Topic::Path));
        if let Some(log) = &self.log {
            let usage = Topic::Usage(log.key.job, log.key.task);
            topics.extend([Topic::Log(log.key, log.opening), usage]);
        }
        topics.push(Topic::Everything);
        topics.extend(self.job.map(Topic::Job));
        topics.extend(self.failure().map(|row| Topic::Output(row.job, row.task)));
        topics.extend([Topic::Problems, Topic::Queues, Topic::Events, Topic::Ended]);
        topics.push(Topic::Past(self.span != 0));
        Focus {
            topics,
            at_ns: self.replay.map(|replay| replay.at_ns),
            acted: self.acted,
        }
    }

    pub(super) fn on_snapshot(&mut self, snapshot: Snapshot) {
        self.trouble = None;
        if self.replay.is_none() {
            let (counts, (used, offered)) = (snapshot.counts(), snapshot.resource("cpus"));
            let signed = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
            self.history.push(UsageStep {
                at_ns: snapshot.now_ns,
                running: signed(counts.running),
                ended: counts.finished + counts.failed,
                used: signed(used.unwrap_or(0)),
                offered: signed(offered),
            });
        }
        self.snapshot = Some(snapshot);
    }

    pub(super) fn on_job(&mut self, view: JobView) {
        if self.job == Some(view.job) {
            self.view = Some(view);
        }
    }

    /// Stores a page of tasks, unless the user has requested another list meanwhile.
    pub(super) fn on_tasks(&mut self, page: TaskPage) {
        let last = page.rows.len().saturating_sub(1);
        let Some(tasks) = &mut self.tasks else { return };
        if (page.wanted.of, &page.wanted.filter) == (tasks.wanted.of, &tasks.wanted.filter) {
            tasks.page = Some(page);
            let at = self.selected(Place::Tasks).min(last);
            self.select(Place::Tasks, at);
        }
    }

    pub(super) fn on_log(&mut self, part: LogPart) {
        if let Some(log) = self.log.as_mut().filter(|log| log.is_for(&part)) {
            log.on_part(part);
        }
    }

    /// Shows the result of an action.
    pub(super) fn on_act(&mut self, text: String, is_done: bool) {
        self.acting = self.acting.saturating_sub(1);
        self.acted += 1;
        self.failure = (!is_done).then(|| text.clone());
        self.told = Some(text);
    }

    pub(super) fn on_path(&mut self, found: Result<String, String>) {
        self.path = None;
        self.copied = found.as_ref().ok().cloned();
        let copied = |path| format!("copied, if the terminal allows it: {path}");
        self.told = Some(found.map_or_else(|why| why, copied));
    }

    /// Advances the time. A playing replay advances by `passed_ns` times its speed.
    pub(super) fn tick(&mut self, passed_ns: i64) {
        let Some(replay) = self.replay.as_mut().filter(|replay| replay.is_playing) else {
            return;
        };
        // At this speed, the whole run takes half a minute.
        let speed = ((replay.to_ns - replay.from_ns) / (30 * SECOND)).max(1);
        replay.at_ns = (replay.at_ns + passed_ns.saturating_mul(speed)).min(replay.to_ns);
        replay.is_playing = replay.at_ns < replay.to_ns;
    }

    pub(super) fn jobs(&self) -> &[JobSummary] {
        self.snapshot
            .as_ref()
            .map_or(&[], |snapshot| &snapshot.jobs)
    }

    /// Returns the jobs in the order in which they are shown.
    pub(super) fn visible_jobs(&self) -> Vec<&JobSummary> {
        let wanted = self.search.to_lowercase();
        let matches = |job: &&JobSummary| {
            wanted.is_empty()
                || job.name.to_lowercase().contains(&wanted)
                || job.id.to_string() == wanted
                || job_state(job).name() == wanted
        };
        let mut jobs: Vec<&JobSummary> = self.jobs().iter().filter(matches).collect();
        let (_, key) = ORDERS[self.order];
        jobs.sort_by_key(|job| key(job));
        if self.is_descending {
            jobs.reverse();
        }
        jobs
    }

    pub(super) fn order(&self) -> &'static str {
        ORDERS[self.order].0
    }

    /// Returns the workers in display order: workers with problems first.
    pub(super) fn visible_workers(&self) -> Vec<&WorkerInfo> {
        let suspects = suspect_hosts(&self.ended);
        let workers = self.snapshot.iter().flat_map(|snapshot| &snapshot.workers);
        let mut workers: Vec<&WorkerInfo> = workers.collect();
        workers.sort_by_key(|worker| match is_connected(worker) {
            true if suspects.contains(host(worker)) => 0,
            false if is_lost(worker) => 1,
            true => 2,
            false => 3,
        });
        workers
    }

    pub(super) fn selected_worker(&self) -> Option<&WorkerInfo> {
        let at = self.selected(Place::Workers);
        self.visible_workers().get(at).copied()
    }

    pub(super) fn queues(&self) -> &[Queue] {
        self.queues.as_deref().unwrap_or_default()
    }

    pub(super) fn selected_queue(&self) -> Option<&Queue> {
        self.queues().get(self.selected(Place::Allocations))
    }

    /// Returns whether the server reports that no worker can run the tasks of a job. A journal does
    /// not record why tasks wait.
    pub(super) fn is_starving(&self, job: u32) -> bool {
        let is_it = |one: &Problem| one.kind == STARVING && one.subject == Some(job);
        self.replay.is_none() && self.problems.iter().flatten().any(is_it)
    }

    /// Returns the open job, or the selected job if none is open.
    pub(super) fn current_job(&self) -> Option<&JobSummary> {
        match self.job {
            Some(id) => self.jobs().iter().find(|job| job.id == id),
            None => self.visible_jobs().get(self.selected(Place::Jobs)).copied(),
        }
    }

    pub(super) fn failure(&self) -> Option<&TaskRow> {
        let failures = &self.view.as_ref()?.failures;
        failures.get(self.selected(Place::Job))
    }

    /// Returns the selected task of a list, or `None` if the list is outdated.
    fn selected_task(&self) -> Option<&TaskRow> {
        let tasks = self.tasks.as_ref().filter(|tasks| !tasks.is_old())?;
        tasks.rows().get(self.selected(Place::Tasks))
    }

    /// Returns the list that keys and the mouse act on.
    pub(super) const fn place(&self) -> Place {
        if self.tasks.is_some() {
            Place::Tasks
        } else if matches!(self.tab, Place::Jobs) && self.job.is_some() {
            Place::Job
        } else {
            self.tab
        }
    }

    pub(super) fn selected(&self, place: Place) -> usize {
        self.tables[place as usize].selected().unwrap_or(0)
    }

    pub(super) fn select(&mut self, place: Place, row: usize) {
        self.tables[place as usize].select(Some(row));
    }

    /// Returns the number of rows of the list that is shown.
    fn row_count(&self) -> usize {
        match self.place() {
            Place::Overview => self.problems.as_ref().map_or(0, Vec::len),
            Place::Jobs => self.visible_jobs().len(),
            Place::Workers => self.visible_workers().len(),
            Place::Allocations => self.queues().len(),
            Place::Events => self.events.len(),
            Place::Job => self.view.as_ref().map_or(0, |view| view.failures.len()),
            Place::Tasks => self.tasks.as_ref().map_or(0, |tasks| tasks.rows().len()),
        }
    }

    fn move_by(&mut self, rows: isize) {
        if let Some(log) = &mut self.log {
            return log.move_by(rows);
        }
        let (place, last) = (self.place(), self.row_count().saturating_sub(1));
        let at = self.selected(place).saturating_add_signed(rows).min(last);
        self.select(place, at);
        if let Some(tasks) = &mut self.tasks {
            let has_more = tasks
                .page
                .as_ref()
                .is_some_and(|page| page.is_cut.is_some());
            let wanted = &mut tasks.wanted.count;
            if has_more && at == last && rows > 0 && *wanted <= last + 1 {
                *wanted = (*wanted * 2).min(TASKS_MAX);
            }
        }
    }

    pub(super) fn on_event(&mut self, event: &Event) {
        match event {
            Event::Key(key) if key.kind != KeyEventKind::Release => self.on_key(key),
            Event::Mouse(mouse) => self.on_mouse(mouse),
            Event::Key(_) | Event::FocusGained | Event::FocusLost => {}
            Event::Paste(_) | Event::Resize(..) => {}
        }
    }

    fn on_key(&mut self, key: &KeyEvent) {
        self.told = None;
        if let Some(question) = self.dialog.take() {
            let mut answers = question.answers.into_iter();
            let chosen = answers.find(|(answer, ..)| key.code == Char(*answer));
            self.actions.extend(chosen.map(|(.., action)| action));
        } else if self.is_searching {
            self.on_search_key(key.code);
        } else if self.is_help_open {
            self.is_help_open = false;
        } else if key.modifiers.contains(KeyModifiers::CONTROL) {
            self.has_quit = key.code == Char('c');
        } else {
            self.on_command(key.code);
        }
    }

    fn on_search_key(&mut self, key: KeyCode) {
        let text = self.search_text();
        if let Char(c) = key {
            text.push(c);
        } else if key == KeyCode::Backspace {
            text.pop();
        } else if key == KeyCode::Esc {
            text.clear();
        }
        self.is_searching = !matches!(key, KeyCode::Enter | KeyCode::Esc);
        if self.log.is_none() {
            self.on_filter();
        } else if key == KeyCode::Enter {
            self.find_in_log(true);
        }
    }

    /// Moves to the beginning of the list after the filter has changed.
    fn on_filter(&mut self) {
        if let Some(tasks) = &mut self.tasks {
            tasks.wanted.count = TASKS;
        }
        self.select(self.place(), 0);
    }

    /// Returns the text typed after `/`.
    pub(super) const fn search_text(&mut self) -> &mut String {
        match (&mut self.log, &mut self.tasks) {
            (Some(log), _) => &mut log.search,
            (None, Some(tasks)) => &mut tasks.wanted.filter,
            (None, None) => &mut self.search,
        }
    }

    fn on_command(&mut self, key: KeyCode) {
        match (key, &mut self.log) {
            (Char('q'), _) => self.has_quit = true,
            (KeyCode::Esc | KeyCode::Backspace, _) => self.go_back(),
            (KeyCode::Enter, _) => self.open(),
            (Char('k') | KeyCode::Up, _) => self.move_by(-1),
            (Char('j') | KeyCode::Down, _) => self.move_by(1),
            (KeyCode::PageUp, _) => self.move_by(-PAGE),
            (KeyCode::PageDown, _) => self.move_by(PAGE),
            (Char('g') | KeyCode::Home, _) => self.move_by(isize::MIN),
            (Char('G') | KeyCode::End, _) => self.move_by(isize::MAX),
            (KeyCode::Tab, _) => self.turn_to(self.tab as usize + 1),
            (KeyCode::BackTab, _) => self.turn_to(self.tab as usize + Place::TABS.len() - 1),
            (Char(tab @ '1'..='5'), _) => self.turn_to(tab as usize - '1' as usize),
            (Char('s'), _) => self.order = (self.order + 1) % ORDERS.len(),
            (Char('r'), _) => self.is_descending = !self.is_descending,
            (Char('/'), _) => self.begin_search(),
            (Char('n'), _) => self.find_in_log(true),
            (Char('N'), _) => self.find_in_log(false),
            (Char('a'), _) => self.open_tasks(),
            (Char('l'), _) => self.open_log(None),
            (Char('o'), _) => self.turn_log(),
            (Char('y'), _) => self.path = self.output(None),
            (Char('f'), Some(log)) => log.follow(),
            (Char('u'), _) => self.usage.is_hidden = !self.usage.is_hidden,
            (Char('t'), _) => self.span = (self.span + 1) % SPANS.len(),
            (Char('?'), _) => self.is_help_open = true,
            (Char(action @ ('c' | 'h' | 'H' | 'S' | 'R' | 'x' | 'd' | 'p' | 'A')), _) => {
                self.ask_about(action);
            }
            // Sideways in an output, and through time in a journal.
            (KeyCode::Left, Some(log)) => log.shift_by(false),
            (KeyCode::Right, Some(log)) => log.shift_by(true),
            (KeyCode::Left, None) => self.travel(-1),
            (KeyCode::Right, None) => self.travel(1),
            (Char('['), Some(_)) => self.usage.step(false),
            (Char(']'), Some(_)) => self.usage.step(true),
            (Char('['), None) => self.travel(-LARGE_STEP),
            (Char(']'), None) => self.travel(LARGE_STEP),
            (Char(' '), _) => self.play(),
            (_, _) => {}
        }
    }

    fn play(&mut self) {
        if let Some(replay) = &mut self.replay {
            if replay.at_ns >= replay.to_ns {
                replay.at_ns = replay.from_ns;
            }
            replay.is_playing = !replay.is_playing;
        }
    }

    fn turn_to(&mut self, number: usize) {
        (self.tab, _) = Place::TABS[number % Place::TABS.len()];
        self.log = None;
        self.tasks = None;
        self.close_job();
    }

    /// Starts a search in the open log or task list, otherwise among the jobs.
    fn begin_search(&mut self) {
        if self.log.is_none() && self.tasks.is_none() {
            self.turn_to(Place::Jobs as usize);
        }
        self.is_searching = true;
        self.search_text().clear();
        if self.log.is_none() {
            self.on_filter();
        }
    }

    fn close_job(&mut self) {
        self.job = None;
        self.view = None;
        self.output = None;
        self.select(Place::Job, 0);
    }

    fn travel(&mut self, steps: i64) {
        if let Some(replay) = &mut self.replay {
            let step = ((replay.to_ns - replay.from_ns) / STEPS).max(1);
            let at = replay.at_ns.saturating_add(step.saturating_mul(steps));
            replay.at_ns = at.clamp(replay.from_ns, replay.to_ns);
            replay.is_playing = false;
        }
    }

    fn on_mouse(&mut self, mouse: &MouseEvent) {
        let at = Position::new(mouse.column, mouse.row);
        if mouse.kind == MouseEventKind::ScrollDown {
            self.move_by(3);
        } else if mouse.kind == MouseEventKind::ScrollUp {
            self.move_by(-3);
        } else if mouse.kind == MouseEventKind::Down(MouseButton::Left) {
            let tab = self.hits.tabs.iter().position(|area| area.contains(at));
            if let Some(number) = tab {
                self.turn_to(number);
            } else if self.hits.rows.contains(at) {
                self.click_row(usize::from(mouse.row - self.hits.rows.y));
            }
        }
    }

    /// Selects the clicked row, or opens it if it was already selected.
    fn click_row(&mut self, row: usize) {
        let place = self.place();
        // A problem may have two rows, unless there are so many that the list can be scrolled.
        let row = self.hits.owners.get(row).copied().unwrap_or(row);
        let row = self.tables[place as usize].offset() + row;
        if row >= self.row_count() {
            return;
        }
        if self.selected(place) == row {
            self.open();
        } else {
            self.select(place, row);
        }
    }
}

#[cfg(test)]
mod tests;
