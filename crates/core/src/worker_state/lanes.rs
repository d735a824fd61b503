//! Short tasks ahead: launches that follow a running one on the same grant.
//!
//! Between the end of a short task and the start of the next one the worker would be asked what to do, which takes
//! two wake-ups of sleeping threads. Instead, tasks are handed over ahead, some milliseconds' worth: so little that
//! nobody who waits for the resources notices, and that a task told to a worker is not missed elsewhere. A task
//! that takes unexpectedly long gives those behind it back, and so does one that something more urgent waits for: they wait
//! again in front of those that came after them, and the server can ask for them.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use super::effect::{Effect, LaunchTask};
use super::entry::{Class, NewEntry};
use super::input::LaunchToken;
use super::running::{AHEAD, AHEAD_OF_MANY, Phase, RunningTask};
use super::{Mode, WorkerState};
use crate::range::IdArray;
use crate::time::Time;

/// How long one task of a lane may hold up the others.
const PATIENCE: Duration = Duration::from_millis(100);

/// Text about a task of which nothing is known.
const UNKNOWN: Duration = Duration::MAX;

impl WorkerState {
    /// How long the tasks of the first entry of a class take.
    fn expected_run(&self, class: &Class) -> Duration {
        let template = self.backlog.head_template(class);
        template
            .and_then(|id| self.templates.get(&id)?.run)
            .unwrap_or(UNKNOWN)
    }

    /// Learns from a task that has ended.
    pub(super) fn note_run(&mut self, task: &RunningTask, run: Duration) {
        if let Some(known) = self.templates.get_mut(&task.template)
            // One that was told to end says nothing about how long its kind takes.
            && !matches!(task.phase, Phase::Ending(_))
        {
            // A quarter of it is new: one odd run does not make a kind short or long.
            known.run = Some(known.run.map_or(run, |before| (before * 3 + run) / 4));
        }
    }

    /// Whether tasks of a class can follow others on their grant: they are known to be short.
    pub(super) fn is_short(&self, class: &Class) -> bool {
        self.expected_run(class) < self.ahead(class)
    }

    /// How much of a class is handed over ahead.
    fn ahead(&self, class: &Class) -> Duration {
        if self.backlog.is_head_one_of_many(class) {
            AHEAD_OF_MANY
        } else {
            AHEAD
        }
    }

    /// Hands the first task of a class over ahead of its time, if it is short and so is what it follows.
    pub(super) fn start_ahead(&mut self, class: &Arc<Class>) -> Option<LaunchTask> {
        if !self.is_short(class) {
            return None;
        }
        let name = self.running.open_for(class)?;
        if self.running.lane(name)?.expected >= self.ahead(class) {
            return None;
        }
        self.launch_first(class, name)
    }

    /// Takes the first task of a class from the backlog and puts it at the end of a lane.
    pub(super) fn launch_first(&mut self, class: &Class, lane: LaunchToken) -> Option<LaunchTask> {
        let expected = self.expected_run(class);
        let grant = Arc::clone(&self.running.lane(lane)?.grant);
        let task = self.backlog.pop(class)?;
        let token = self.running.insert(RunningTask {
            key: task.key,
            lane,
            template: task.template.id,
            variant: task.variant,
            priority: Reverse(task.template.task.priority),
            expected,
            time_limit: task.template.task.time_limit,
            phase: Phase::Starting,
            entries: task.entries.clone(),
            nodes: Arc::clone(&task.nodes),
            is_one_of_many: task.is_one_of_many,
            is_asked_for: false,
        });
        Some(LaunchTask {
            is_one_of_many: task.is_one_of_many,
            token,
            lane,
            template: task.template,
            key: task.key,
            variant: task.variant,
            grant,
            entries: task.entries,
            nodes: task.nodes,
        })
    }

    /// When tasks are asked back from a lane that is held up.
    pub(super) fn withdrawal_due(&self) -> Option<Time> {
        self.running.next_withdrawal(PATIENCE)
    }

    /// Asks tasks back from lanes that are held up.
    pub(super) fn withdraw_held_up(&mut self, now: Time, effects: &mut Vec<Effect>) {
        let tokens = self.running.withdraw_held_up(now, PATIENCE);
        if !tokens.is_empty() {
            effects.push(Effect::Withdraw(tokens));
        }
    }

    /// Asks back what is less urgent than a task that waits.
    pub(super) fn withdraw_less_urgent(
        &mut self,
        priority: Reverse<i32>,
        effects: &mut Vec<Effect>,
    ) {
        let tokens = self.running.withdraw_less_urgent(priority);
        if !tokens.is_empty() {
            effects.push(Effect::Withdraw(tokens));
        }
    }

    /// An instance that was taken back from a lane of this class waits again where it did, before those that came after it.
    /// The server gets it if it has asked meanwhile, or if nothing starts here any more.
    pub(super) fn put_back(&mut self, task: RunningTask, class: Option<Arc<Class>>) {
        if self.mode != Mode::Active || task.is_asked_for {
            self.give_back(task.key);
            return;
        }
        let kind = (task.template, task.variant);
        if self.backlog.put_back(task.key, kind) {
            return;
        }
        let template = self.templates.get(&task.template);
        let entries = match &task.entries {
            Some((entries, position)) => entries.only(*position).map(Some),
            None => Some(None),
        };
        let (Some(class), Some(template), Some(entries)) = (class, template, entries) else {
            self.give_back(task.key);
            return;
        };
        let entry = NewEntry {
            template: Arc::clone(&template.work),
            instance: task.key.instance,
            variant: task.variant,
            ids: IdArray::single(task.key.task.task.as_u32()),
            entries,
            nodes: task.nodes,
        };
        self.backlog.push(Class::clone(&class), entry, &[]);
    }
}
