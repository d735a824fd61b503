//! What a task asks for: a pure function of its template, of its own earlier attempts, of what the
//! other tasks of its submit needed, and of what workers offer.

use std::time::Duration;

use crate::growth::{Asked, Largest, Scale};
use crate::outcome::Outcome;
use crate::resource::amount::Amount;
use crate::sizing::{Needs, Size, coarse_below};
use crate::template::TaskTemplate;

/// Memory of the first tasks while no worker could run them.
const FIRST_MEMORY: Amount = Amount::whole(512);

/// Base of the memory [`Scale`] of a task with learned memory, which has no request as a base.
const AUTO_BASE: Amount = Amount::whole(16);

/// What the earlier attempts of a task add to its request.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Factors {
    /// Growth after attempts that ran out of memory or time.
    pub scale: Scale,
    /// Desired remaining lifetime of its worker after attempts that were cut off by the end of
    /// theirs; zero = none was.
    pub wanted: Duration,
}

/// What a task asks for, relative to its template.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Ask {
    /// Multiple of its memory, time limit and time request.
    pub scale: Scale,
    /// Memory and time request in place of its own.
    pub size: Size,
}

/// What workers offer to the tasks of a submit, as far as it bounds [`learned`].
#[derive(Clone, Copy, Debug)]
pub struct Offered {
    /// The largest memory of a worker that could run one; `None` = no such worker.
    pub memory: Option<Amount>,
    /// Memory of the first tasks; `None` = no worker could run one.
    pub first: Option<Amount>,
    /// The shortest lifetime of a worker; `None` = no worker has an end.
    pub lifetime_min: Option<Duration>,
}

/// A failed attempt of a task with learned memory, and what is known about larger ones.
#[derive(Clone, Copy, Debug)]
pub struct Failed {
    /// Memory of the attempt.
    pub had: Option<Amount>,
    /// The most memory that another task needed.
    pub needed: Amount,
    /// The largest offers.
    pub largest: Largest,
}

impl Factors {
    /// The factors if no attempt had been cut off.
    #[must_use]
    pub const fn uncut(self) -> Self {
        Self {
            scale: self.scale,
            wanted: Duration::ZERO,
        }
    }
}

impl Ask {
    /// The request as submitted, or as grown.
    #[must_use]
    pub fn grown(task: &TaskTemplate, scale: Scale) -> Self {
        let is_sized = task.learn.memory.is_some() && scale != Scale::default();
        let memory = is_sized.then(|| {
            let units = u128::from(AUTO_BASE.0) * u128::from(scale.memory) / 1_000;
            Amount(u64::try_from(units).unwrap_or(u64::MAX))
        });
        let min_time = Duration::ZERO;
        let size = Size { memory, min_time };
        Self { scale, size }
    }

    /// The template with this request.
    #[must_use]
    pub fn task(self, asked: &TaskTemplate) -> TaskTemplate {
        TaskTemplate {
            requests: self.size.requests(&self.scale.requests(&asked.requests)),
            time_limit: asked.time_limit.map(|limit| self.scale.time_limit(limit)),
            ..asked.clone()
        }
    }
}

/// What a task asks for. `most` = the longest remaining lifetime of a worker that could run it.
#[must_use]
pub fn ask(task: &TaskTemplate, own: Factors, learned: Size, most: Duration) -> Ask {
    let mut ask = Ask::grown(task, own.scale);
    if own.scale == Scale::default() {
        ask.size.memory = learned.memory;
    }
    // It starts only where most of the others had enough time, too.
    ask.size.min_time = learned.min_time.max(own.wanted.min(most));
    ask
}

/// What tasks ask for that have no factors of their own, by the needs of the finished ones.
/// `before` = what they asked for so far.
#[must_use]
pub fn learned(task: &TaskTemplate, needs: &Needs, offered: Offered, before: Size) -> Size {
    let memory = task.learn.memory.map(|_| {
        let memory = needs.memory().or(offered.first);
        // Without a worker that could run them it stays unchanged.
        let memory = memory.or(before.memory).unwrap_or(FIRST_MEMORY);
        // A larger size would wait forever.
        offered.memory.map_or(memory, |most| memory.min(most))
    });
    let permille = if is_predicted(task) {
        task.learn.predict_permille()
    } else {
        0
    };
    // Without a worker of limited lifetime there is nothing to predict. And long tasks need a
    // chance everywhere: in the first half of each lifetime every task may start.
    let most = offered.lifetime_min.map(|life| coarse_below(life / 2));
    let min_time = needs.min_time(permille).min(most.unwrap_or_default());
    Size { memory, min_time }
}

/// Whether the run time of a task is predicted; a time request of the user takes precedence.
#[must_use]
pub fn is_predicted(task: &TaskTemplate) -> bool {
    let mut variants = task.requests.as_slice().iter();
    task.learn.predict_permille() > 0
        // The interpreter of a call outlives it.
        && !task.is_call
        && variants.all(|variant| variant.min_time.is_zero())
}

/// The scale of a task's next attempt after one with this outcome.
#[must_use]
pub fn grow(task: &TaskTemplate, before: Scale, outcome: &Outcome, failed: Failed) -> Scale {
    let asked = Asked {
        grow: task.retry.grow,
        requests: &task.requests,
        time_limit: task.time_limit,
    };
    let mut scale = before.after(outcome, asked, failed.largest);
    if task.learn.memory.is_some() {
        let memory = match (failed.had, outcome) {
            (Some(had), Outcome::OutOfMemory(_)) => {
                auto_scale(more(had, failed.needed, failed.largest.memory))
            }
            // A request that grows from now on is no longer learned.
            (Some(had), _) if scale != before => auto_scale(had),
            (Some(_) | None, _) => before.memory,
        };
        scale.memory = memory.max(before.memory);
    }
    scale
}

/// Whether an attempt with learned memory had as much as the largest offer.
#[must_use]
pub fn had_most(had: Amount, largest: Option<Amount>) -> bool {
    auto_scale(more(had, Amount::default(), largest)) <= auto_scale(had)
}

/// More than `had` for a task that exhausted it: the known need of other tasks, at least twice as
/// much, but at most the largest offer.
fn more(had: Amount, needed: Amount, largest: Option<Amount>) -> Amount {
    let more = needed.max(Amount(had.0.saturating_mul(2)));
    largest.map_or(more, |largest| more.min(largest)).max(had)
}

fn auto_scale(amount: Amount) -> u32 {
    // Rounded down: a slightly larger request would fit no worker.
    let permille = u128::from(amount.0) * 1_000 / u128::from(AUTO_BASE.0);
    u32::try_from(permille).unwrap_or(u32::MAX).max(1_001)
}
