//! Decides which waiting tasks go to which worker. It works with task counts per request class
//! instead of single tasks.
//!
//! [`queue`] holds the ready tasks, [`solve`] decides one round, [`explain`] answers why a task
//! does not run, and [`demand`] answers how many more workers would help. Tasks with equal requests
//! form a [class](crate::class). Within a round, `worker_plan` represents one worker, `pack` finds
//! the best mix for it, and `gang` finds nodes for multi-node tasks. If there are very many
//! requests, [`window`] uses an `index` to choose which of them a round examines. See
//! `docs/scheduling.md`.

mod class_queue;
pub mod demand;
pub mod explain;
mod gang;
mod index;
mod pack;
pub mod queue;
pub mod solve;
pub mod task_limits;
pub mod window;
pub(crate) mod worker_plan;
