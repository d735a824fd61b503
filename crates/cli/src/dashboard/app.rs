//! State of the screen, and its changes by keys, clicks and news. Pure: returns actions for the
//! outside as an [`Ask`].
//!
//! A list of tasks can cover the view of a tab, and the output of one task can cover that list: see
//! [`tasks`], [`log`] and [`open`].

pub(crate) mod log;
mod open;
pub(crate) mod tasks;
pub(crate) mod usage;

use crossterm::event::{
    Event, KeyCode, KeyEvent, KeyEventKind, MouseButton, MouseEvent, MouseEventKind,
};
use hq_core::diagnosis::suspect_hosts;
use ratatui::layout::{Position, Rect};
use ratatui::widgets::TableState;

use super::history::History;
use super::keys::{self, Command};
use super::model::{
    EndedShare, EventRow, FailureRow, JobRow, JobView, LogKey, LogPart, Obstacle, OutputTail,
    ProblemRow, QueueRow, Sample, Snapshot, TaskPage, TasksWanted, UsageView, WorkerRow,
};
use super::problems;
use super::question::{Action, Question};
use log::Log;
use tasks::Tasks;
use usage::Usage;

/// Rows of a page.
const PAGE: isize = 10;
/// Parts of a replay's whole time that a small and a large step pass.
const STEPS: i64 = 200;
const LARGE_STEP: i64 = 10;
const SECOND: i64 = 1_000_000_000;
/// Minimum time span of a chart, in nanoseconds.
const SPAN_MIN: i64 = 60 * SECOND;

/// A view.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Tab {
    #[default]
    Overview,
    Jobs,
    Workers,
    Allocations,
    Events,
}

impl Tab {
    pub(crate) const ALL: [Self; 5] = [
        Self::Overview,
        Self::Jobs,
        Self::Workers,
        Self::Allocations,
        Self::Events,
    ];

    pub(crate) const fn title(self) -> &'static str {
        ["Overview", "Jobs", "Workers", "Allocations", "Events"][self as usize]
    }
}

/// Request to the shell.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Ask {
    /// Shows other data: the open job, the task whose output is open, or the time of a replay.
    Look(Focus),
    Do(Action),
    /// Find the file of an output, for the clipboard.
    Path(LogKey),
}

/// The part of the state that is shown.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Focus {
    pub(crate) job: Option<u32>,
    pub(crate) task: Option<u32>,
    pub(crate) tasks: Option<TasksWanted>,
    /// The open output, and the number of earlier openings, so that a reopened output is read
    /// again.
    pub(crate) log: Option<(LogKey, u32)>,
    /// `None` = now.
    pub(crate) at_ns: Option<i64>,
    /// Charts show more than the last minutes.
    pub(crate) is_long: bool,
}

/// Time that the charts show, at most.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Span {
    #[default]
    TenMinutes,
    TwoHours,
    Day,
    All,
}

impl Span {
    const ALL: [(Self, i64); 4] = [
        (Self::TenMinutes, 600 * SECOND),
        (Self::TwoHours, 7_200 * SECOND),
        (Self::Day, 86_400 * SECOND),
        (Self::All, i64::MAX),
    ];

    const fn next(self) -> Self {
        Self::ALL[(self as usize + 1) % Self::ALL.len()].0
    }

    const fn ns(self) -> i64 {
        Self::ALL[self as usize].1
    }
}

/// News from outside.
#[derive(Debug)]
pub(crate) enum News {
    Snapshot(Box<Snapshot>),
    Ended(Vec<EndedShare>),
    Events(Vec<EventRow>),
    Job(Box<JobView>),
    Output(Box<OutputTail>),
    Problems(Vec<ProblemRow>),
    Tasks(Box<TaskPage>),
    Log(LogPart),
    /// Resource use of the task whose output is open.
    Usage(Box<UsageView>),
    /// For the clipboard.
    Path(String),
    Obstacles(Vec<Obstacle>),
    Queues(Vec<QueueRow>),
    /// Steps of the time before the dashboard was there.
    Past(Vec<Sample>),
    /// Why the server does not answer; `None` if it answers.
    Trouble(Option<String>),
    /// Result of an action.
    Told(String),
}

/// How jobs are sorted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum JobOrder {
    #[default]
    Id,
    Name,
    State,
    Failed,
    Progress,
}

impl JobOrder {
    const ALL: [(Self, &'static str); 5] = [
        (Self::Id, "id"),
        (Self::Name, "name"),
        (Self::State, "state"),
        (Self::Failed, "failed"),
        (Self::Progress, "progress"),
    ];

    const fn next(self) -> Self {
        Self::ALL[(self as usize + 1) % Self::ALL.len()].0
    }

    pub(crate) const fn title(self) -> &'static str {
        Self::ALL[self as usize].1
    }
}

/// Time of a replay.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Replay {
    pub(crate) from_ns: i64,
    pub(crate) to_ns: i64,
    pub(crate) at_ns: i64,
    pub(crate) is_playing: bool,
}

/// How things may look.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Theme {
    pub(crate) colors: bool,
    /// Characters beyond ASCII can be shown.
    pub(crate) unicode: bool,
}

/// Places on the screen that react to the mouse; set while drawing.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Hits {
    pub(crate) tabs: Vec<(Rect, usize)>,
    /// First row of the table, below its header.
    pub(crate) rows: Rect,
    /// In the overview: index of the problem in each row.
    pub(crate) owners: Vec<usize>,
    /// Selection and first row of the list that is shown.
    pub(crate) table: TableState,
}

/// The dashboard.
#[derive(Debug, Default)]
pub(crate) struct App {
    /// Name of the server or the file.
    pub(crate) title: String,
    pub(crate) theme: Theme,
    pub(crate) tab: Tab,
    pub(crate) snapshot: Option<Snapshot>,
    pub(crate) ended: Vec<EndedShare>,
    pub(crate) events: Vec<EventRow>,
    /// Obstacles of jobs without running tasks; `None` if no server can be queried.
    pub(crate) obstacles: Option<Vec<Obstacle>>,
    /// Problems that the server reported; `None` before the first report.
    problems: Option<Vec<ProblemRow>>,
    queues: Option<Vec<QueueRow>>,
    pub(crate) history: History,
    pub(crate) span: Span,
    pub(crate) job: Option<u32>,
    pub(crate) view: Option<JobView>,
    pub(crate) output: Option<OutputTail>,
    pub(crate) tasks: Option<Tasks>,
    pub(crate) log: Option<Log>,
    pub(crate) usage: Usage,
    /// Number of logs that were opened.
    logs_opened: u32,
    /// Text for the clipboard of the terminal.
    pub(crate) copied: Option<String>,
    pub(crate) trouble: Option<String>,
    pub(crate) told: Option<String>,
    pub(crate) dialog: Option<Question>,
    pub(crate) is_help_open: bool,
    pub(crate) search: String,
    pub(crate) is_searching: bool,
    pub(crate) order: JobOrder,
    pub(crate) is_descending: bool,
    pub(crate) replay: Option<Replay>,
    pub(crate) has_quit: bool,
    pub(crate) hits: Hits,
    /// State of the visible table, one for each: problems, jobs, failures, workers, allocations,
    /// events.
    pub(crate) problems_table: TableState,
    pub(crate) jobs_table: TableState,
    pub(crate) failures_table: TableState,
    pub(crate) workers_table: TableState,
    pub(crate) queues_table: TableState,
    pub(crate) events_table: TableState,
    asked: Focus,
}

impl App {
    pub(crate) fn new(title: String, theme: Theme, replay: Option<Replay>) -> Self {
        let first = || TableState::default().with_selected(Some(0));
        Self {
            title,
            theme,
            span: if replay.is_some() {
                Span::All
            } else {
                Span::TenMinutes
            },
            is_descending: true,
            replay,
            problems_table: first(),
            jobs_table: first(),
            failures_table: first(),
            workers_table: first(),
            queues_table: first(),
            events_table: first(),
            ..Self::default()
        }
    }

    /// The time that is shown.
    pub(crate) fn now_ns(&self) -> i64 {
        let seen = self.snapshot.as_ref().map_or(0, |snapshot| snapshot.now_ns);
        self.replay.map_or(seen, |replay| replay.at_ns)
    }

    /// Start and end of the charts: the known time span, but at least the minimum.
    pub(crate) fn chart_span(&self) -> (i64, i64) {
        let to = self.now_ns();
        let first = self.history.first_ns().unwrap_or(to).min(to - SPAN_MIN);
        (first.max(to.saturating_sub(self.span.ns())), to)
    }

    /// The part of the state that is shown now.
    pub(crate) fn focus(&self) -> Focus {
        Focus {
            job: self.job,
            task: self
                .job
                .and_then(|_| self.failure())
                .map(|failure| failure.task),
            at_ns: self.replay.map(|replay| replay.at_ns),
            is_long: self.span != Span::TenMinutes,
            tasks: self.tasks.as_ref().map(Tasks::wanted),
            log: self.log.as_ref().map(|log| (log.key, log.opening)),
        }
    }

    /// The focus, if it changed since the last call.
    pub(crate) fn changed_focus(&mut self) -> Option<Ask> {
        let focus = self.focus();
        let changed = focus != self.asked;
        self.asked = focus.clone();
        changed.then_some(Ask::Look(focus))
    }

    pub(crate) fn on_news(&mut self, news: News) {
        match news {
            News::Snapshot(snapshot) => self.on_snapshot(*snapshot),
            News::Ended(ended) => self.ended = ended,
            News::Events(events) => self.events = events,
            News::Job(view) => {
                if self.job == Some(view.job) {
                    self.view = Some(*view);
                }
            }
            News::Output(output) => self.output = Some(*output),
            News::Problems(problems) => self.problems = Some(problems),
            News::Tasks(page) => {
                if let Some(tasks) = &mut self.tasks {
                    tasks.on_page(*page);
                }
            }
            News::Log(part) => {
                if let Some(log) = self.log.as_mut().filter(|log| log.is_for(&part)) {
                    log.on_part(part);
                }
            }
            News::Usage(view) => self.usage.on_view(*view),
            News::Path(path) => {
                self.told = Some(format!("copied, if the terminal allows it: {path}"));
                self.copied = Some(path);
            }
            News::Obstacles(obstacles) => self.obstacles = Some(obstacles),
            News::Queues(queues) => self.on_queues(queues),
            News::Past(steps) => self.history.prepend(&steps),
            News::Trouble(trouble) => self.trouble = trouble,
            News::Told(text) => self.told = Some(text),
        }
    }

    /// Queues arrive separately, because their reply may wait for a batch system.
    fn on_queues(&mut self, queues: Vec<QueueRow>) {
        self.queues = Some(queues.clone());
        if let Some(snapshot) = &mut self.snapshot {
            snapshot.queues = queues;
        }
    }

    fn on_snapshot(&mut self, mut snapshot: Snapshot) {
        self.trouble = None;
        if self.replay.is_none() {
            if let Some(queues) = &self.queues {
                snapshot.queues.clone_from(queues);
            }
            let counts = snapshot.counts();
            let (used, total) = snapshot.resource("cpus");
            let percent = used.unwrap_or(0).saturating_mul(100).checked_div(total);
            self.history.push(Sample {
                at_ns: snapshot.now_ns,
                running: counts.running,
                ended: counts.finished + counts.failed,
                cpus_percent: percent.unwrap_or(0),
            });
        }
        self.snapshot = Some(snapshot);
    }

    /// Advances the time; a playing replay advances by `passed_ns` times its speed.
    pub(crate) fn tick(&mut self, passed_ns: i64) {
        let Some(replay) = self.replay.as_mut().filter(|replay| replay.is_playing) else {
            return;
        };
        // The speed that shows the whole run in half a minute.
        let speed = ((replay.to_ns - replay.from_ns) / 30_000_000_000).max(1);
        replay.at_ns = (replay.at_ns + passed_ns.saturating_mul(speed)).min(replay.to_ns);
        replay.is_playing = replay.at_ns < replay.to_ns;
    }

    /// The jobs as they are shown.
    pub(crate) fn visible_jobs(&self) -> Vec<&JobRow> {
        let wanted = self.search.to_lowercase();
        let Some(snapshot) = &self.snapshot else {
            return Vec::new();
        };
        let matches = |job: &&JobRow| {
            wanted.is_empty()
                || job.name.to_lowercase().contains(&wanted)
                || job.id.to_string() == wanted
                || job.state() == wanted
        };
        let mut jobs: Vec<&JobRow> = snapshot.jobs.iter().filter(matches).collect();
        match self.order {
            JobOrder::Id => {}
            JobOrder::Name => jobs.sort_by(|a, b| a.name.cmp(&b.name)),
            JobOrder::State => jobs.sort_by_key(|job| job.state()),
            JobOrder::Failed => jobs.sort_by_key(|job| job.counts.failed),
            JobOrder::Progress => {
                jobs.sort_by_key(|job| {
                    job.counts
                        .ended()
                        .saturating_mul(1_000)
                        .checked_div(job.counts.total())
                });
            }
        }
        if self.is_descending {
            jobs.reverse();
        }
        jobs
    }

    /// Whether the allocation queues are known.
    pub(crate) const fn has_queues(&self) -> bool {
        self.queues.is_some() || self.replay.is_some()
    }

    /// Problems, worst first; `None` before the first report. For a journal, they are derived here.
    pub(crate) fn problems(&self) -> Option<Vec<ProblemRow>> {
        if self.replay.is_none() {
            return self.problems.clone();
        }
        self.snapshot
            .as_ref()
            .map(|snapshot| problems::found(snapshot, &self.ended, self.obstacles.as_deref()))
    }

    /// The workers in display order: workers with problems first.
    pub(crate) fn visible_workers(&self) -> Vec<&WorkerRow> {
        let suspects = suspect_hosts(&self.ended);
        let rank = |worker: &&WorkerRow| match worker.ended.as_deref() {
            None if suspects.contains(worker.host.as_str()) => 0,
            Some(_) if worker.is_lost => 1,
            None => 2,
            Some(_) => 3,
        };
        let workers = self.snapshot.iter().flat_map(|snapshot| &snapshot.workers);
        let mut workers: Vec<&WorkerRow> = workers.collect();
        workers.sort_by_key(rank);
        workers
    }

    pub(crate) fn selected_worker(&self) -> Option<&WorkerRow> {
        let at = self.workers_table.selected()?;
        self.visible_workers().get(at).copied()
    }

    pub(crate) fn queues(&self) -> &[QueueRow] {
        let snapshot = self.snapshot.as_ref();
        snapshot.map_or(&[], |snapshot| &snapshot.queues)
    }

    pub(crate) fn selected_queue(&self) -> Option<&QueueRow> {
        self.queues().get(self.queues_table.selected()?)
    }

    /// Why none of a job's tasks run, if known.
    pub(crate) fn obstacle(&self, job: u32) -> Option<&str> {
        let mut known = self.obstacles.iter().flatten();
        let found = known.find(|known| known.job == job);
        found.map(|known| known.why.as_str())
    }

    /// The job that is open, or else selected.
    pub(crate) fn current_job(&self) -> Option<u32> {
        self.job.or_else(|| {
            let jobs = self.visible_jobs();
            jobs.get(self.jobs_table.selected()?).map(|job| job.id)
        })
    }

    pub(crate) fn current_job_row(&self) -> Option<&JobRow> {
        let id = self.current_job()?;
        let mut jobs = self.snapshot.iter().flat_map(|snapshot| &snapshot.jobs);
        jobs.find(|job| job.id == id)
    }

    pub(crate) fn failure(&self) -> Option<&FailureRow> {
        self.view
            .as_ref()?
            .failures
            .get(self.failures_table.selected()?)
    }

    /// Number of rows of the table that is shown.
    fn row_count(&self) -> usize {
        match self.tab {
            Tab::Overview => self.problems().map_or(0, |problems| problems.len()),
            Tab::Jobs if self.job.is_some() => {
                self.view.as_ref().map_or(0, |view| view.failures.len())
            }
            Tab::Jobs => self.visible_jobs().len(),
            Tab::Workers => self.visible_workers().len(),
            Tab::Allocations => self.queues().len(),
            Tab::Events => self.events.len(),
        }
    }

    /// The list that keys and mouse act on.
    pub(crate) const fn table(&mut self) -> &mut TableState {
        if let Some(tasks) = &mut self.tasks {
            return &mut tasks.table;
        }
        match self.tab {
            Tab::Overview => &mut self.problems_table,
            Tab::Jobs if self.job.is_some() => &mut self.failures_table,
            Tab::Jobs => &mut self.jobs_table,
            Tab::Workers => &mut self.workers_table,
            Tab::Allocations => &mut self.queues_table,
            Tab::Events => &mut self.events_table,
        }
    }

    fn move_by(&mut self, rows: isize) {
        if let Some(log) = &mut self.log {
            return log.move_by(rows);
        }
        if let Some(tasks) = &mut self.tasks {
            return tasks.move_by(rows);
        }
        let last = self.row_count().saturating_sub(1);
        let table = self.table();
        let now = table.selected().unwrap_or(0);
        table.select(Some(now.saturating_add_signed(rows).min(last)));
    }

    pub(crate) fn on_event(&mut self, event: &Event) -> Option<Ask> {
        match event {
            Event::Key(key) if key.kind != KeyEventKind::Release => self.on_key(key),
            Event::Mouse(mouse) => {
                self.on_mouse(mouse);
                None
            }
            Event::Key(_)
            | Event::FocusGained
            | Event::FocusLost
            | Event::Paste(_)
            | Event::Resize(..) => None,
        }
    }

    fn on_key(&mut self, key: &KeyEvent) -> Option<Ask> {
        self.told = None;
        let command = keys::command(key);
        if let Some(question) = self.dialog.take() {
            let is_yes = key.code == KeyCode::Char('y');
            return is_yes.then_some(Ask::Do(question.action));
        }
        if self.is_searching {
            self.on_search_key(key);
            return None;
        }
        if self.is_help_open {
            self.is_help_open = false;
            return None;
        }
        self.on_command(command?)
    }

    fn on_search_key(&mut self, key: &KeyEvent) {
        let text = self.search_text();
        if let KeyCode::Char(c) = key.code {
            text.push(c);
        } else if key.code == KeyCode::Backspace {
            text.pop();
        } else if key.code == KeyCode::Esc {
            text.clear();
        }
        self.is_searching = !matches!(key.code, KeyCode::Enter | KeyCode::Esc);
        if let Some(log) = &mut self.log {
            if key.code == KeyCode::Enter && !log.search.is_empty() {
                self.find_in_log(true);
            }
        } else if let Some(tasks) = &mut self.tasks {
            tasks.on_filter();
        } else {
            self.jobs_table.select(Some(0));
        }
    }

    /// The text typed after `/`.
    pub(crate) fn search_text(&mut self) -> &mut String {
        if let Some(log) = &mut self.log {
            &mut log.search
        } else if let Some(tasks) = &mut self.tasks {
            &mut tasks.filter
        } else {
            &mut self.search
        }
    }

    fn on_command(&mut self, command: Command) -> Option<Ask> {
        match command {
            Command::Copy => return self.copy(),
            Command::Quit => self.has_quit = true,
            Command::Back => self.go_back(),
            Command::Open => self.open(),
            Command::Up => self.move_by(-1),
            Command::Down => self.move_by(1),
            Command::PageUp => self.move_by(-PAGE),
            Command::PageDown => self.move_by(PAGE),
            Command::First => self.move_by(isize::MIN),
            Command::Last => self.move_by(isize::MAX),
            Command::NextTab => self.turn_to(self.tab as usize + 1),
            Command::PreviousTab => self.turn_to(self.tab as usize + Tab::ALL.len() - 1),
            Command::Tab(number) => self.turn_to(number),
            Command::Sort => self.order = self.order.next(),
            Command::Reverse => self.is_descending = !self.is_descending,
            Command::Search => self.begin_search(),
            Command::NextMatch => self.find_in_log(true),
            Command::PreviousMatch => self.find_in_log(false),
            Command::Tasks => self.open_tasks(),
            Command::Log => self.open_log(None),
            Command::OtherStream => self.turn_log(),
            Command::Follow => {
                if let Some(log) = &mut self.log {
                    log.follow();
                }
            }
            Command::Usage => self.usage.is_hidden = !self.usage.is_hidden,
            Command::Span => self.span = self.span.next(),
            Command::Help => self.is_help_open = true,
            Command::Cancel
            | Command::Resubmit
            | Command::Stop
            | Command::Drain
            | Command::Acknowledge
            | Command::Pause => self.ask_about(command),
            Command::Earlier => self.go_left_or_right(false),
            Command::Later => self.go_left_or_right(true),
            Command::MuchEarlier => self.go_far(false),
            Command::MuchLater => self.go_far(true),
            Command::Play => {
                if let Some(replay) = &mut self.replay {
                    if replay.at_ns >= replay.to_ns {
                        replay.at_ns = replay.from_ns;
                    }
                    replay.is_playing = !replay.is_playing;
                }
            }
        }
        None
    }

    fn turn_to(&mut self, number: usize) {
        self.tab = Tab::ALL[number % Tab::ALL.len()];
        self.log = None;
        self.tasks = None;
        self.close_job();
    }

    /// Starts a search in the open log or task list, otherwise among the jobs.
    fn begin_search(&mut self) {
        if self.log.is_none() && self.tasks.is_none() {
            self.turn_to(Tab::Jobs as usize);
        }
        self.is_searching = true;
        self.search_text().clear();
        if let Some(tasks) = &mut self.tasks {
            tasks.on_filter();
        }
    }

    /// Scrolls sideways in a log, and through time in a journal.
    fn go_left_or_right(&mut self, right: bool) {
        if let Some(log) = &mut self.log {
            log.shift_by(right);
        } else {
            self.travel(if right { 1 } else { -1 });
        }
    }

    /// Over an output to another attempt, in a journal through time.
    fn go_far(&mut self, later: bool) {
        if self.log.is_some() {
            self.usage.step(later);
        } else {
            self.travel(if later { LARGE_STEP } else { -LARGE_STEP });
        }
    }

    fn close_job(&mut self) {
        self.job = None;
        self.view = None;
        self.output = None;
        self.failures_table.select(Some(0));
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
            let tab = self.hits.tabs.iter().find(|(area, _)| area.contains(at));
            if let Some((_, number)) = tab {
                self.turn_to(*number);
            } else if self.hits.rows.contains(at) {
                self.click_row(usize::from(mouse.row - self.hits.rows.y));
            }
        }
    }

    /// Selects the clicked row; opens it if it was already selected.
    fn click_row(&mut self, row: usize) {
        let count = match &self.tasks {
            Some(tasks) => tasks.rows().len(),
            None => self.row_count(),
        };
        // A problem may have several rows.
        let owner = (self.tab == Tab::Overview)
            .then(|| self.hits.owners.get(row).copied().unwrap_or(count));
        let table = self.table();
        let row = owner.unwrap_or(table.offset() + row);
        if row >= count {
            return;
        }
        if table.selected() == Some(row) {
            self.open();
        } else {
            table.select(Some(row));
        }
    }
}

#[cfg(test)]
mod tests;
