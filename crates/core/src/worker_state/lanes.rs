//! Lanes: short tasks that are launched ahead, one after the other, with the same grant.
//!
//! Between the end of a short task and the start of the next one, the launcher would have to ask
//! the state, which takes two wake-ups of sleeping threads. Instead, tasks that take a few
//! milliseconds in total are launched ahead. They are so few that they do not noticeably delay any
//! other task, and that no other worker runs out of tasks. If a task takes unexpectedly long, or
//! blocks a more urgent task, the tasks after it are taken back. They wait in their old places
//! again, and the server can retract them.

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

/// How long one task of a lane may delay the tasks after it.
const PATIENCE: Duration = Duration::from_millis(100);

/// The expected run time of tasks if no such task has ended yet.
const UNKNOWN: Duration = Duration::MAX;

impl WorkerState {
    /// Returns the expected run time of the first entry of a class.
    fn expected_run(&self, class: &Class) -> Duration {
        let template = self.backlog.head_template(class);
        template
            .and_then(|id| self.templates.get(&id)?.run)
            .unwrap_or(UNKNOWN)
    }

    /// Updates the average run time of a template after one of its tasks has ended.
    pub(super) fn note_run(&mut self, task: &RunningTask, run: Duration) {
        if let Some(known) = self.templates.get_mut(&task.template)
            // If a task was asked to end, its run time is not typical of its kind.
            && !matches!(task.phase, Phase::Ending(_))
        {
            // The new value has a weight of one quarter, so that a single unusual run does not
            // change whether tasks of this kind count as short.
            known.run = Some(known.run.map_or(run, |before| (before * 3 + run) / 4));
        }
    }

    /// Returns whether tasks of a class may be launched ahead in a lane, because they are known to
    /// be short.
    pub(super) fn is_short(&self, class: &Class) -> bool {
        self.expected_run(class) < self.ahead(class)
    }

    /// Returns how much work of a class is launched ahead, as a run time.
    fn ahead(&self, class: &Class) -> Duration {
        if self.backlog.is_head_one_of_many(class) {
            AHEAD_OF_MANY
        } else {
            AHEAD
        }
    }

    /// Launches the first task of a class ahead, if the task and its lane are short.
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

    /// Moves the first task of a class from the backlog to the end of a lane.
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

    /// Returns when tasks are taken back from a delayed lane.
    pub(super) fn withdrawal_due(&self) -> Option<Time> {
        self.running.next_withdrawal(PATIENCE)
    }

    /// Takes back tasks from delayed lanes.
    pub(super) fn withdraw_held_up(&mut self, now: Time, effects: &mut Vec<Effect>) {
        let tokens = self.running.withdraw_held_up(now, PATIENCE);
        if !tokens.is_empty() {
            effects.push(Effect::Withdraw(tokens));
        }
    }

    /// Takes back tasks that are less urgent than a waiting task.
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

    /// Puts an instance from a lane back in its old place in the backlog. It is returned to the
    /// server if the server has retracted it in the meantime, or if no more tasks start on this
    /// worker.
    pub(super) fn put_back(&mut self, task: RunningTask, class: Option<Arc<Class>>) {
        if self.mode != Mode::Active || task.is_asked_for {
            self.give_back(task.key);
            return;
        }
        let (template, variant) = (task.template, task.variant);
        if self.backlog.put_back(task.key, template, variant) {
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
