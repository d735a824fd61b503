//! Other requests for tasks that are submitted again: a value, and what it makes of a template.

use std::sync::Arc;
use std::time::Duration;

use crate::growth::{Growth, MEMORY};
use crate::resource::amount::Amount;
use crate::resource::request::{Policy, RequestVariants, ResourceEntry};
use crate::retry::RetryCause;
use crate::sizing::FirstMemory;
use crate::template::{ByteText, TaskTemplate};

/// Attempts behind the first one of tasks whose memory may grow and that were not to be tried again.
const RETRIES: u16 = 3;

/// What tasks of one kind are to ask for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewRequest {
    /// Their program and arguments; empty = any.
    pub args: Vec<ByteText>,
    /// What they ask for besides memory.
    pub others: Vec<ResourceEntry>,
    /// Memory of the first attempt.
    pub memory: Amount,
    /// More for the next one, if that runs out; `None` = all have the same.
    pub growth: Option<Growth<Amount>>,
    /// Least remaining lifetime of a worker.
    pub min_time: Duration,
}

impl NewRequest {
    /// Whether it is about tasks of this template: nodes are taken whole, and of several variants nobody knows which one was meant.
    fn is_for(&self, task: &TaskTemplate) -> bool {
        let [request] = task.requests.as_slice() else {
            return false;
        };
        let is_same = self.args.is_empty() || self.args == task.args;
        let others = request.entries.iter();
        let others = others.filter(|entry| &*entry.resource != MEMORY);
        is_same && request.n_nodes == 0 && others.eq(self.others.iter())
    }

    /// The template with this request; `None` = it breaks a rule.
    fn applied(&self, task: &TaskTemplate) -> Option<TaskTemplate> {
        let mut task = task.clone();
        let mut variants = task.requests.as_slice().to_vec();
        let request = variants.first_mut()?;
        request.min_time = self.min_time;
        if task.learn.memory.is_some() {
            // It is still learned, and begins with what is known.
            task.learn.memory = Some(FirstMemory::Given(self.memory));
        } else {
            request.entries.retain(|entry| &*entry.resource != MEMORY);
            request.entries.push(ResourceEntry {
                resource: MEMORY.into(),
                policy: Policy::default(),
                amount: self.memory,
            });
            task.retry.grow.memory = self.growth;
            if self.growth.is_some() {
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

/// A template with the first request that is about its tasks.
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
    use crate::resource::request::ResourceRequest;
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
