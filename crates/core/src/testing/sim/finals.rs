//! What must hold of ended tasks after every step of the simulation.

use super::World;
use crate::id::TaskKey;
use crate::job::TaskSlot;
use crate::task::Phase;

impl World {
    /// Final states seen once stay, and no success is recorded that no worker has had.
    ///
    /// Looks at every task after every input, so it goes by position and looks up only what is new.
    pub(super) fn check_finals(&mut self) {
        for job in self.state.jobs().values() {
            for (submit, number) in job.submits.iter().zip(0..) {
                let len = submit.tasks.len();
                let seen = self.finals.entry((job.id, number)).or_default();
                seen.resize(len as usize, None);
                for (from, to, phase) in submit.tasks.runs(0, len) {
                    let now = phase.is_terminal().then(|| phase.state());
                    for index in from..to {
                        let seen = &mut seen[index as usize];
                        if *seen == now {
                            continue;
                        }
                        let slot = TaskSlot {
                            submit: number,
                            index,
                        };
                        let task = job.task_id(slot).expect("index is in range");
                        let key = TaskKey::new(job.id, task);
                        assert!(seen.is_none(), "final state of {key} never changes");
                        *seen = now;
                        if phase == Phase::Finished {
                            let record = job.record(slot).expect("it ran");
                            let run = (key, record.worker(), record.instance());
                            assert!(self.succeeded.contains(&run), "{run:?} really succeeded");
                        }
                    }
                }
            }
        }
        let known = self.state.jobs();
        assert!(
            self.finals.keys().all(|(job, _)| known.contains_key(job)),
            "jobs do not vanish"
        );
    }
}
