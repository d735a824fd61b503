//! New requests for resubmitted tasks, and how they are applied to a template.

use std::sync::Arc;
use std::time::Duration;

use crate::growth::{Growth, MEMORY, set_memory};
use crate::resource::amount::Amount;
use crate::resource::request::{RequestVariants, ResourceEntry};
use crate::retry::RetryCause;
use crate::sizing::FirstMemory;
use crate::template::{ByteText, TaskTemplate};

/// The number of retries given to tasks whose memory may grow and that had none.
const RETRIES: u16 = 3;

/// The new request of the tasks of one kind.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewRequest {
    /// The program and arguments of these tasks. Empty means any.
    pub args: Vec<ByteText>,
    /// The requested resources other than memory.
    pub others: Vec<ResourceEntry>,
    /// The memory of the first attempt.
    pub memory: Amount,
    /// The growth of memory from attempt to attempt. `None` if it is the same for all attempts.
    pub growth: Option<Growth<Amount>>,
    /// The required remaining lifetime of a worker. Zero means as requested before.
    pub min_time: Duration,
}

impl NewRequest {
    /// Returns whether the new request applies to tasks of this template. It does not apply to
    /// multi-node tasks, which take whole nodes, or to tasks with several variants, because it is
    /// unclear which variant is meant.
    fn is_for(&self, task: &TaskTemplate) -> bool {
        let [request] = task.requests.as_slice() else {
            return false;
        };
        let is_same = self.args.is_empty() || self.args == task.args;
        let others = request.entries.iter();
        let others = others.filter(|entry| &*entry.resource != MEMORY);
        is_same && request.n_nodes == 0 && others.eq(self.others.iter())
    }

    /// Returns the growth for a task. The user's growth applies if this one has no bound, because
    /// then its limit was not measured.
    fn growth_for(&self, asked: Option<Growth<Amount>>) -> Option<Growth<Amount>> {
        let is_measured = self.growth.is_some_and(|growth| growth.max.is_some());
        let can_grow = |asked: &Growth<Amount>| asked.max.is_none_or(|max| self.memory < max);
        asked
            .filter(|asked| !is_measured && can_grow(asked))
            .or(self.growth)
    }

    /// Returns the template with this request, or `None` if that would violate a rule.
    fn applied(&self, task: &TaskTemplate) -> Option<TaskTemplate> {
        let mut task = task.clone();
        let mut variants = task.requests.as_slice().to_vec();
        let request = variants.first_mut()?;
        // If no task has finished, the run time is unknown.
        if !self.min_time.is_zero() {
            request.min_time = self.min_time;
        }
        if task.learn.memory.is_some() {
            // The size is still learned, but starts at the known one.
            task.learn.memory = Some(FirstMemory::Given(self.memory));
        } else {
            set_memory(request, self.memory);
            task.retry.grow.memory = self.growth_for(task.retry.grow.memory);
            if task.retry.grow.memory.is_some() {
                if task.retry.limit == 0 {
                    task.retry.limit = RETRIES;
                    task.retry.on.clear();
                }
                if !task.retry.on.contains(&RetryCause::OutOfMemory) {
                    task.retry.on.push(RetryCause::OutOfMemory);
                }
            }
        }
        task.requests = RequestVariants::new(variants).ok()?;
        Some(task)
    }
}

/// Returns the template with the first of `requests` that applies to its tasks.
#[must_use]
pub fn resized(task: &Arc<TaskTemplate>, requests: &[NewRequest]) -> Arc<TaskTemplate> {
    let mut found = requests.iter().filter(|request| request.is_for(task));
    let resized = found.next().and_then(|request| request.applied(task));
    resized.map_or_else(|| Arc::clone(task), Arc::new)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::growth::memory;
    use crate::resource::request::{Policy, ResourceRequest};
    use crate::testing::template;

    fn task(program: &str, cpus: u32, mebibytes: u32) -> TaskTemplate {
        let mut request = ResourceRequest::cpus(cpus);
        request.entries.push(ResourceEntry {
            resource: MEMORY.into(),
            policy: Policy::default(),
            amount: Amount::whole(mebibytes),
        });
        TaskTemplate {
            requests: RequestVariants::new(vec![request]).expect("a request"),
            ..template(&[program])
        }
    }

    fn new(program: &[&str], cpus: u32) -> NewRequest {
        let growth = Growth {
            permille: 3_000,
            max: Some(Amount::whole(600)),
        };
        NewRequest {
            args: template(program).args,
            others: ResourceRequest::cpus(cpus).entries,
            memory: Amount::whole(200),
            growth: Some(growth),
            min_time: Duration::from_secs(9),
        }
    }

    #[test]
    fn tasks_of_a_kind_ask_for_what_is_said_and_others_for_what_they_did() {
        let asked = Arc::new(task("fit", 2, 4_000));
        let got = resized(
            &asked,
            &[new(&["other"], 2), new(&["fit"], 1), new(&["fit"], 2)],
        );
        assert_eq!(memory(&got.requests), Some(Amount::whole(200)));
        assert_eq!(got.requests.as_slice()[0].min_time, Duration::from_secs(9));
        assert_eq!(got.requests.as_slice()[0].entries.len(), 2);
        assert_eq!(
            (got.retry.limit, &got.retry.on[..]),
            (3, &[RetryCause::OutOfMemory][..])
        );
        assert_eq!(got.retry.grow.memory, new(&["fit"], 2).growth);
        assert_eq!(resized(&asked, &[new(&["fit"], 1)]), asked);
        assert_ne!(resized(&asked, &[new(&[], 2)]), asked, "whatever they do");
    }

    #[test]
    fn growth_that_was_asked_for_stays_unless_another_bound_is_known() {
        let mut asked = task("fit", 1, 4_000);
        asked.retry.limit = 5;
        let growth = |permille, max| Growth {
            permille,
            max: Option::map(max, Amount::whole),
        };
        let grows = |asked_for, known| {
            let mut asked = asked.clone();
            asked.retry.grow.memory = asked_for;
            let new = NewRequest {
                growth: known,
                ..new(&["fit"], 1)
            };
            let got = resized(&Arc::new(asked), &[new]);
            assert_eq!(got.retry.limit, 5);
            assert!(got.retry.on.contains(&RetryCause::OutOfMemory));
            got.retry.grow.memory
        };
        let (theirs, twice) = (Some(growth(1_500, Some(900))), Some(growth(2_000, None)));
        let measured = Some(growth(3_000, Some(600)));
        assert_eq!(grows(theirs, twice), theirs);
        assert_eq!(grows(theirs, None), theirs);
        assert_eq!(grows(theirs, measured), measured);
        assert_eq!(grows(None, twice), twice);
        let spent = Some(growth(1_500, Some(150)));
        assert_eq!(grows(spent, twice), twice, "it begins with more than that");
    }

    #[test]
    fn memory_that_is_learned_goes_on_being_learned() {
        let mut asked = task("fit", 1, 1);
        asked.requests = RequestVariants::new(vec![ResourceRequest::cpus(1)]).expect("a request");
        asked.learn.memory = Some(FirstMemory::Share);
        let got = resized(&Arc::new(asked.clone()), &[new(&["fit"], 1)]);
        let first = FirstMemory::Given(Amount::whole(200));
        assert_eq!(got.learn.memory, Some(first));
        assert_eq!(memory(&got.requests), None);
        assert_eq!(got.retry, asked.retry);
    }
}
