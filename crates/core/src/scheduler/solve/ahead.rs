//! Sends tasks ahead of their turn to workers whose room is taken.

use super::{Level, LowerPriorityBacklog, Placement, Round, WorkerPlan};

impl<'a> Round<'a> {
    /// Sends tasks that could not start ahead, spread evenly over workers. A worker with a choice
    /// of requests gets only as many tasks as it needs to avoid idling, because the best
    /// combination is known only when a task ends.
    pub(super) fn send_ahead(
        &mut self,
        level: Level,
        plans: &mut [WorkerPlan<'a>],
        lower: &LowerPriorityBacklog,
    ) {
        let open = self.open_plans(level, plans);
        for queue in level.queues() {
            let (key, _) = self.input.queues[queue];
            let Some(class) = self.classes[queue].filter(|_| self.left[queue] > 0) else {
                continue;
            };
            if self.left_over.contains(&key.class) {
                // More urgent tasks of this class go first on every worker that could take these.
                continue;
            }
            let mut rooms: Vec<(usize, u32, u32)> = Vec::new();
            for at in &open {
                let plan = &mut plans[*at];
                let mut variants = class.variants.iter().zip(0..);
                let preferred = variants.find_map(|(variant, number)| {
                    let capacity = self.capacity(plan, queue, number);
                    let serves =
                        capacity > 0 && plan.serves(key.class, number, variant, self.input.now);
                    serves.then_some((number, capacity))
                });
                if let Some((number, capacity)) = preferred {
                    let least = if plan.has_choice { 0 } else { capacity };
                    let room = plan.backlog_room(key, least, self.input.now);
                    if room > 0 {
                        rooms.push((*at, number, room));
                    }
                }
            }
            let mut remaining = rooms.len() as u64;
            let all = self.left[queue];
            let mut left = self
                .input
                .ahead
                .get(&key)
                .map_or(all, |most| all.min(*most));
            for (at, number, room) in rooms {
                // Each of the remaining workers gets an even share of the remaining tasks.
                let fair = left.div_ceil(remaining.max(1));
                let count = u64::from(room).min(fair).min(self.tasks_left);
                remaining -= 1;
                // The previous workers took all tasks.
                if count == 0 {
                    continue;
                }
                left -= count;
                self.left[queue] -= count;
                self.tasks_left -= count;
                plans[at].send_ahead(key, number, u32::try_from(count).unwrap_or(u32::MAX));
                self.placements.push(Placement {
                    key,
                    worker: plans[at].worker.id,
                    variant: number,
                    count,
                    placed: false,
                });
            }
            if self.left[queue] > 0 {
                // These workers must not start their less urgent tasks of this class, however long
                // the next message takes.
                self.left_over.insert(key.class);
                for worker in lower.less_urgent(key) {
                    self.overtaken.entry(worker).or_default().push(key);
                }
            }
        }
    }

    /// Returns the workers that may be sent tasks of a level. Also notes which of them have a
    /// choice.
    fn open_plans(&mut self, level: Level, plans: &mut [WorkerPlan<'a>]) -> Vec<usize> {
        let Some((first, _)) = self.input.queues.get(level.start) else {
            return Vec::new();
        };
        let mut choices: Vec<Option<bool>> = vec![None; self.capacities.len()];
        let mut open = Vec::new();
        for (at, plan) in plans.iter_mut().enumerate() {
            let known = choices.get_mut(plan.kind);
            plan.has_choice = match known {
                Some(Some(known)) => *known,
                Some(unknown) => *unknown.insert(self.has_choice(level, plan)),
                None => self.has_choice(level, plan),
            };
            let is_open = plan.admits_ahead(*first)
                && (!plan.has_choice || plan.backlog_room(*first, 0, self.input.now) > 0);
            if is_open {
                open.push(at);
            }
        }
        open
    }
}
