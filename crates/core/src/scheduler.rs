//! Decides which waiting tasks go to which worker, on counts of request classes instead of single
//! tasks.
//!
//! [`queue`] holds what is ready, [`solve`] decides one round, [`explain`] answers why a task does
//! not run, [`demand`] how many more workers would help. Tasks with an equal request form a
//! [class](crate::class). Inside a round `worker_plan` is one worker, `pack` finds the best mix for
//! it, `gang` finds nodes for multi-node tasks. With very many requests [`window`] chooses, by an
//! `index`, what a round looks at. See `docs/scheduling.md`.

pub mod demand;
pub mod explain;
mod gang;
mod index;
mod pack;
pub mod queue;
pub mod solve;
pub mod window;
pub(crate) mod worker_plan;
