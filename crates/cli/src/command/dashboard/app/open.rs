//! Navigation between views: the effects of Enter, Esc and the action keys.

use hq_core::task::TaskState;
use hq_protocol::client::{Problem, WorkerInfo};

use super::log::Log;
use super::{App, Place, TASKS, Tasks};
use crate::command::dashboard::model::{LogKey, TaskRow, TasksOf, TasksWanted};
use crate::command::dashboard::question::{self, AskAboutTask, Asked};
use crate::source::{allocation, host};

impl App {
    /// Closes the topmost view.
    pub(super) fn go_back(&mut self) {
        let (is_over_job, has_tasks) = (self.job.is_some(), self.tasks.is_some());
        let is_job = is_over_job && !has_tasks && self.log.is_none();
        if !is_job && !self.search_text().is_empty() {
            self.search_text().clear();
            if has_tasks && self.log.is_none() {
                self.on_filter();
            }
        } else if self.log.is_some() {
            self.log = None;
        } else if has_tasks {
            self.tasks = None;
        } else if is_job {
            self.close_job();
        } else {
            self.tab = Place::Overview;
        }
    }

    /// Opens the selected item, one level deeper.
    pub(super) fn open(&mut self) {
        if self.log.is_some() {
            return;
        }
        match self.place() {
            Place::Overview => self.open_problem(),
            Place::Jobs => self.job = self.current_job().map(|job| job.id),
            Place::Tasks => self.open_log(None),
            Place::Job if self.failure().is_some() => self.open_log(None),
            Place::Job | Place::Workers => self.open_tasks(),
            Place::Allocations => self.open_queue(),
            Place::Events => self.open_event(),
        }
    }

    fn selected_problem(&self) -> Option<&Problem> {
        self.problems.as_ref()?.get(self.selected(Place::Overview))
    }

    fn open_problem(&mut self) {
        let Some(problem) = self.selected_problem().cloned() else {
            return self.turn_to(Place::Jobs as usize);
        };
        match (problem.host, problem.subject, &problem.kind[..]) {
            (Some(on), _, _) => self.open_worker(|row| match problem.worker {
                Some(id) => row.id == id,
                None => host(row) == on,
            }),
            (None, Some(queue), "queue") => {
                self.turn_to(Place::Allocations as usize);
                let at = self.queues().iter().position(|one| one.id == queue);
                self.select(Place::Allocations, at.unwrap_or(0));
            }
            (None, Some(job), _) => self.open_job(job),
            (None, None, "internal") => self.turn_to(Place::Jobs as usize),
            (None, None, _) => self.turn_to(Place::Workers as usize),
        }
    }

    fn open_job(&mut self, job: u32) {
        self.turn_to(Place::Jobs as usize);
        self.search.clear();
        let at = self.visible_jobs().iter().position(|row| row.id == job);
        self.select(Place::Jobs, at.unwrap_or(0));
        self.job = Some(job);
    }

    fn open_worker(&mut self, is_it: impl Fn(&WorkerInfo) -> bool) {
        self.turn_to(Place::Workers as usize);
        let at = self.visible_workers().iter().position(|row| is_it(row));
        self.select(Place::Workers, at.unwrap_or(0));
    }

    /// Opens the first worker that runs in an allocation of the selected queue.
    fn open_queue(&mut self) {
        let Some(queue) = self.selected_queue() else {
            return;
        };
        let is_of_queue = |worker: &&WorkerInfo| {
            let mut allocations = queue.allocations.iter();
            allocation(worker).is_some_and(|of| allocations.any(|one| one.id == of))
        };
        let mut workers = self.snapshot.iter().flat_map(|all| all.connected());
        let found = workers.find(is_of_queue).map(|worker| worker.id);
        let none = format!("no worker of queue {} is connected", queue.id);
        drop(workers);
        match found {
            Some(id) => self.open_worker(|row| row.id == id),
            None => self.told = Some(none),
        }
    }

    fn open_event(&mut self) {
        let event = self.events.get(self.selected(Place::Events));
        match event.map(|event| (event.job, event.worker)) {
            Some((Some(job), _)) => self.open_job(job),
            Some((None, Some(worker))) => self.open_worker(|row| row.id == worker),
            Some((None, None)) | None => {}
        }
    }

    /// Opens the list of all tasks of the job or of the worker.
    pub(super) fn open_tasks(&mut self) {
        if self.log.is_some() {
            return;
        }
        let of = match self.place() {
            Place::Jobs | Place::Job => {
                self.job = self.current_job().map(|job| job.id).or(self.job);
                self.job.map(TasksOf::Job)
            }
            Place::Workers => self
                .selected_worker()
                .map(|worker| TasksOf::Worker(worker.id)),
            Place::Overview | Place::Allocations | Place::Events | Place::Tasks => None,
        };
        let Some(of) = of else { return };
        self.tasks = Some(Tasks {
            wanted: TasksWanted {
                of,
                filter: String::new(),
                count: TASKS,
            },
            page: None,
        });
        self.select(Place::Tasks, 0);
    }

    /// Returns the selected task and the most useful of its outputs.
    fn selected_log(&self) -> Option<Result<LogKey, String>> {
        if let Some(log) = &self.log {
            return Some(Ok(log.key));
        }
        let task = match self.place() {
            Place::Tasks => self.selected_task(),
            Place::Job => self.failure(),
            Place::Overview | Place::Jobs | Place::Workers => None,
            Place::Allocations | Place::Events => None,
        };
        task.map(log_of)
    }

    /// Returns the given output, or that of the selected task. Reports why if it cannot be opened.
    pub(super) fn output(&mut self, other: Option<LogKey>) -> Option<LogKey> {
        match other.map(Ok).or_else(|| self.selected_log())? {
            Ok(key) if self.replay.is_none() => return Some(key),
            Ok(_) => self.told = Some("output is not part of a journal".to_owned()),
            Err(why) => self.told = Some(why),
        }
        None
    }

    /// Opens the given output, or the output of the selected task.
    pub(super) fn open_log(&mut self, other: Option<LogKey>) {
        if let Some(key) = self.output(other) {
            self.logs_opened = self.logs_opened.wrapping_add(1);
            self.log = Some(Log::new(key, self.logs_opened));
        }
    }

    pub(super) fn turn_log(&mut self) {
        if let Some(key) = self.log.as_ref().map(|log| log.key) {
            let is_stderr = !key.is_stderr;
            self.open_log(Some(LogKey { is_stderr, ..key }));
        }
    }

    pub(super) fn find_in_log(&mut self, forward: bool) {
        let log = self.log.as_mut().filter(|log| !log.search.is_empty());
        if let Some(log) = log
            && !log.find(forward)
        {
            self.told = Some(format!("no line has `{}`", log.search));
        }
    }

    /// Asks about the open or selected task.
    fn ask_about_task(&self, key: char) -> Option<Asked> {
        let ask: AskAboutTask = match key {
            'c' => question::cancel_task,
            'h' => question::hold_task,
            'H' => question::release_task,
            'S' => question::signal_task,
            _ => return None,
        };
        let selected = self.selected_task().map(|row| ((row.job, row.task), row));
        let Some(log) = self.log.as_ref().map(|log| (log.key.job, log.key.task)) else {
            let is_old = self.tasks.as_ref().is_some_and(Tasks::is_old);
            let wait = is_old.then(|| Err("the tasks are being read; try again".to_owned()));
            return wait.or_else(|| selected.map(|(id, row)| ask(id, Some(row))));
        };
        // In the list of failures, the state of the task is unknown. The server reports if it does
        // not permit the action.
        let known = selected.filter(|(id, _)| *id == log);
        Some(ask(log, known.map(|(_, row)| row)))
    }

    /// Opens the question that precedes an action. A journal allows no actions.
    pub(super) fn ask_about(&mut self, key: char) {
        if self.replay.is_some() {
            self.told = Some("this is a journal: nothing can be changed".to_owned());
            return;
        }
        let problem = self.selected_problem();
        let asked = match (self.tab, key) {
            (Place::Overview, 'A') => problem.map(|one| question::acknowledge(one, self.now_ns())),
            (_, 'c' | 'h' | 'H' | 'S') if self.log.is_some() || self.tasks.is_some() => {
                self.ask_about_task(key)
            }
            (Place::Jobs, 'c') => self.current_job().map(question::cancel),
            (Place::Jobs, 'h' | 'H') => {
                let job = self.current_job();
                job.map(|job| question::hold(job, key == 'h'))
            }
            (Place::Jobs, 'R') => self.current_job().map(question::resubmit),
            (Place::Workers, 'd') => self.selected_worker().map(question::drain),
            (Place::Workers, 'x') => self.selected_worker().map(question::stop),
            (Place::Allocations, 'p') => self.selected_queue().map(question::pause_or_resume),
            (_, _) => None,
        };
        match asked {
            Some(Ok(question)) => self.dialog = Some(question),
            Some(Err(why)) => self.told = Some(why),
            None => {}
        }
    }
}

/// Returns the most useful output of a task, which is standard error if the task failed.
fn log_of(task: &TaskRow) -> Result<LogKey, String> {
    if matches!(task.state, TaskState::Waiting | TaskState::Aborted) {
        let (id, state) = (task.task, task.state.name());
        return Err(format!("task {id} is {state}: it has written nothing"));
    }
    Ok(LogKey {
        job: task.job,
        task: task.task,
        is_stderr: task.state == TaskState::Failed,
    })
}
