//! Navigation between views: the effects of Enter, Esc and the action keys.

use hq_core::task::TaskState;

use super::log::Log;
use super::tasks::Tasks;
use super::{App, Ask, Command, Question, Tab};
use crate::dashboard::model::{LogKey, ProblemRow, Target, TaskRow, TasksOf};

impl App {
    /// Closes what is on top.
    pub(super) fn go_back(&mut self) {
        if let Some(log) = self.log.as_mut().filter(|log| !log.search.is_empty()) {
            log.search.clear();
        } else if self.log.is_some() {
            self.log = None;
        } else if let Some(tasks) = self.tasks.as_mut().filter(|list| !list.filter.is_empty()) {
            tasks.filter.clear();
            tasks.on_filter();
        } else if self.tasks.is_some() {
            self.tasks = None;
        } else if self.job.is_some() {
            self.close_job();
        } else if !self.search.is_empty() {
            self.search.clear();
        } else {
            self.tab = Tab::Overview;
        }
    }

    /// Opens the selected item, one level deeper.
    pub(super) fn open(&mut self) {
        if self.log.is_some() {
            return;
        }
        if self.tasks.is_some() {
            return self.open_log(None);
        }
        match self.tab {
            Tab::Overview => self.open_problem(),
            Tab::Jobs if self.job.is_none() => self.job = self.current_job(),
            Tab::Jobs if self.failure().is_some() => self.open_log(None),
            Tab::Jobs | Tab::Workers => self.open_tasks(),
            Tab::Allocations => self.open_queue(),
            Tab::Events => self.open_event(),
        }
    }

    pub(super) fn selected_problem(&self) -> Option<ProblemRow> {
        let problems = self.problems()?;
        problems.into_iter().nth(self.problems_table.selected()?)
    }

    fn open_problem(&mut self) {
        match self.selected_problem().map(|problem| problem.target) {
            Some(Target::Job(job)) => self.open_job(job),
            Some(Target::Node(worker, host)) => {
                self.turn_to(Tab::Workers as usize);
                self.select_worker(worker, &host);
            }
            Some(Target::Queue(queue)) => {
                self.turn_to(Tab::Allocations as usize);
                let at = self.queues().iter().position(|one| one.id == queue);
                self.queues_table.select(Some(at.unwrap_or(0)));
            }
            Some(Target::Workers) => self.turn_to(Tab::Workers as usize),
            Some(Target::Nothing) | None => self.turn_to(Tab::Jobs as usize),
        }
    }

    fn open_job(&mut self, job: u32) {
        self.turn_to(Tab::Jobs as usize);
        self.search.clear();
        let at = self.visible_jobs().iter().position(|row| row.id == job);
        self.jobs_table.select(Some(at.unwrap_or(0)));
        self.job = Some(job);
    }

    fn select_worker(&mut self, worker: Option<u32>, host: &str) {
        let is_it = |row: &&super::WorkerRow| match worker {
            Some(id) => row.id == id,
            None => row.host == host,
        };
        let at = self.visible_workers().iter().position(is_it);
        self.workers_table.select(Some(at.unwrap_or(0)));
    }

    /// The first worker that runs in an allocation of the selected queue.
    fn open_queue(&mut self) {
        let Some(queue) = self.selected_queue() else {
            return;
        };
        let is_of_queue = |id: &String| queue.allocations.iter().any(|one| one.id == *id);
        let mut workers = self.snapshot.iter().flat_map(|all| all.connected());
        let found = workers.find(|row| row.allocation.as_ref().is_some_and(is_of_queue));
        let (worker, queue) = (found.map(|row| row.id), queue.id);
        drop(workers);
        match worker {
            Some(_) => {
                self.turn_to(Tab::Workers as usize);
                self.select_worker(worker, "");
            }
            None => self.told = Some(format!("no worker of queue {queue} is connected")),
        }
    }

    fn open_event(&mut self) {
        let Some(at) = self.events_table.selected() else {
            return;
        };
        // The newest is the first row.
        let event = self.events.iter().rev().nth(at);
        match event.map(|event| (event.job, event.worker)) {
            Some((Some(job), _)) => self.open_job(job),
            Some((None, Some(worker))) => {
                self.turn_to(Tab::Workers as usize);
                self.select_worker(Some(worker), "");
            }
            Some((None, None)) | None => {}
        }
    }

    /// All tasks of the job, or of the worker.
    pub(super) fn open_tasks(&mut self) {
        if self.log.is_some() || self.tasks.is_some() {
            return;
        }
        let of = match self.tab {
            Tab::Jobs => {
                self.job = self.current_job();
                self.job.map(TasksOf::Job)
            }
            Tab::Workers => self
                .selected_worker()
                .map(|worker| TasksOf::Worker(worker.id)),
            Tab::Overview | Tab::Allocations | Tab::Events => None,
        };
        self.tasks = of.map(Tasks::new);
    }

    /// The selected task, and which of its outputs is most useful.
    fn selected_log(&self) -> Option<Result<LogKey, String>> {
        if let Some(log) = &self.log {
            return Some(Ok(log.key));
        }
        if let Some(tasks) = &self.tasks {
            return tasks.selected().map(log_of);
        }
        let (job, failure) = self.job.zip(self.failure())?;
        Some(Ok(LogKey {
            job,
            task: failure.task,
            is_stderr: true,
        }))
    }

    /// Opens the same or another output; reports why if that is impossible.
    fn output(&mut self, other: Option<LogKey>) -> Option<LogKey> {
        match other.map(Ok).or_else(|| self.selected_log())? {
            Ok(key) if self.replay.is_none() => return Some(key),
            Ok(_) => self.told = Some("output is not part of a journal".to_owned()),
            Err(why) => self.told = Some(why),
        }
        None
    }

    /// The output of the selected task, or another one.
    pub(super) fn open_log(&mut self, other: Option<LogKey>) {
        if let Some(key) = self.output(other) {
            self.logs_opened = self.logs_opened.wrapping_add(1);
            self.log = Some(Log::new(key, self.logs_opened));
        }
    }

    pub(super) fn turn_log(&mut self) {
        let other = self.log.as_ref().map(Log::other);
        if other.is_some() {
            self.open_log(other);
        }
    }

    pub(super) fn find_in_log(&mut self, forward: bool) {
        let Some(log) = self.log.as_mut().filter(|log| !log.search.is_empty()) else {
            return;
        };
        if !log.find(forward) {
            self.told = Some(format!("no line has `{}`", log.search));
        }
    }

    /// Requests the path of the visible or selected output.
    pub(super) fn copy(&mut self) -> Option<Ask> {
        self.output(None).map(Ask::Path)
    }

    /// Asks whether to cancel the open or selected task.
    fn selected_task(&self) -> Option<Result<Question, String>> {
        let selected = self.tasks.as_ref().and_then(Tasks::selected);
        match &self.log {
            None if self.tasks.as_ref().is_some_and(Tasks::is_old) => {
                Some(Err("the tasks are being read; try again".to_owned()))
            }
            None => selected.map(Question::cancel_task),
            Some(log) => {
                let key = log.key;
                let is_shown = |task: &&TaskRow| (task.job, task.task) == (key.job, key.task);
                let known = selected.filter(is_shown).map(Question::cancel_task);
                // From the list of failures: the server reports if the task has ended.
                Some(known.unwrap_or_else(|| Ok(Question::cancel_any_task(key.job, key.task))))
            }
        }
    }

    /// Opens the question before an action. A journal cannot be acted upon.
    pub(super) fn ask_about(&mut self, command: Command) {
        if self.replay.is_some() {
            self.told = Some("this is a journal: nothing can be changed".to_owned());
            return;
        }
        let question = match (self.tab, command) {
            (Tab::Overview, Command::Acknowledge) => {
                self.selected_problem().map(Question::acknowledge)
            }
            (_, Command::Cancel) if self.log.is_some() || self.tasks.is_some() => {
                self.selected_task()
            }
            (Tab::Jobs, Command::Cancel) => self.current_job_row().map(Question::cancel),
            (Tab::Jobs, Command::Resubmit) => self.current_job_row().map(Question::resubmit),
            (Tab::Workers, Command::Drain) => self.selected_worker().map(Question::drain),
            (Tab::Workers, Command::Stop) => self.selected_worker().map(Question::stop),
            (Tab::Allocations, Command::Pause) => self
                .selected_queue()
                .map(|queue| Ok(Question::pause_or_resume(queue))),
            _ => None,
        };
        match question {
            Some(Ok(question)) => self.dialog = Some(question),
            Some(Err(why)) => self.told = Some(why),
            None => {}
        }
    }
}

/// The most useful output of a task: standard error if it failed.
fn log_of(task: &TaskRow) -> Result<LogKey, String> {
    match task.state {
        TaskState::Waiting | TaskState::Aborted => Err(format!(
            "task {} is {}: it has written nothing",
            task.task,
            task.state.name()
        )),
        TaskState::Running | TaskState::Finished | TaskState::Failed | TaskState::Canceled => {
            Ok(LogKey {
                job: task.job,
                task: task.task,
                is_stderr: task.state == TaskState::Failed,
            })
        }
    }
}
