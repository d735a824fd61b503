//! Manages requests that wait for their lane.
//!
//! A lane is a sequence of children that run one at a time. It exists while one of its children is
//! queued or alive. The thread that notices the exit of one child creates the next one, so no other
//! thread has to be woken for a series of short tasks.

use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use crate::event::Token;
use crate::path_group::PathGroup;
use crate::plan::SpawnPlan;

/// The caller's identifier of a sequence of children that run one after another, in the order of
/// their requests. It may be reused at any time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lane(pub u64);

/// A request for a process.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) token: Token,
    pub(crate) plan: SpawnPlan,
    /// The lane of the request, which waits for earlier requests in the lane.
    pub(crate) lane: Option<Lane>,
    /// The group of requests that access the same paths.
    pub(crate) path_group: PathGroup,
    /// The time of the first transient failure, and the number of failures.
    pub(crate) trouble: Option<(Instant, u32)>,
}

/// All lanes in use, with the requests that wait in each of them.
#[derive(Debug, Default)]
pub(crate) struct Lanes {
    waiting: HashMap<Lane, VecDeque<Job>>,
}

impl Lanes {
    /// Adds a request. Returns it if its lane is free.
    pub(crate) fn enter(&mut self, job: Job) -> Option<Job> {
        let Some(lane) = job.lane else {
            return Some(job);
        };
        if let Some(waiting) = self.waiting.get_mut(&lane) {
            waiting.push_back(job);
            return None;
        }
        self.waiting.insert(lane, VecDeque::new());
        Some(job)
    }

    /// Ends the turn of a lane's current request, and returns the next one.
    pub(crate) fn leave(&mut self, lane: Lane) -> Option<Job> {
        let next = self.waiting.get_mut(&lane)?.pop_front();
        if next.is_none() {
            self.waiting.remove(&lane);
        }
        next
    }

    /// Returns whether a request is waiting in the lane.
    pub(crate) fn has_next(&self, lane: Lane) -> bool {
        self.waiting
            .get(&lane)
            .is_some_and(|waiting| !waiting.is_empty())
    }

    /// Removes a waiting request.
    pub(crate) fn remove(&mut self, token: Token) -> Option<Job> {
        self.waiting.values_mut().find_map(|waiting| {
            let index = waiting.iter().position(|job| job.token == token)?;
            waiting.remove(index)
        })
    }

    /// Removes all waiting requests. Running requests keep their lanes.
    pub(crate) fn drain(&mut self) -> Vec<Job> {
        self.waiting.values_mut().flat_map(std::mem::take).collect()
    }

    /// Returns the number of waiting requests.
    pub(crate) fn len(&self) -> usize {
        self.waiting.values().map(VecDeque::len).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::{ArgBlock, EnvBlock};

    fn request(token: u64, lane: Lane) -> Job {
        let argv = ArgBlock::new(["true"]).unwrap();
        let plan = SpawnPlan::new(argv, EnvBlock::empty());
        Job {
            token: Token(token),
            path_group: PathGroup::of(&plan),
            plan,
            lane: Some(lane),
            trouble: None,
        }
    }

    #[test]
    fn a_lane_knows_whether_anything_follows_the_one_whose_turn_it_is() {
        let (mut lanes, lane) = (Lanes::default(), Lane(1));
        let token = |job: Option<Job>| job.map(|job| job.token.0);
        assert_eq!(token(lanes.enter(request(1, lane))), Some(1));
        // The exit must be reported at once, because no other report will follow soon.
        assert!(!lanes.has_next(lane));
        assert_eq!(token(lanes.enter(request(2, lane))), None);
        assert!(lanes.has_next(lane) && !lanes.has_next(Lane(2)));
        assert_eq!(token(lanes.leave(lane)), Some(2));
        assert!(!lanes.has_next(lane));
        assert_eq!(token(lanes.leave(lane)), None);
        assert_eq!(token(lanes.enter(request(3, lane))), Some(3), "it is free");
    }
}
