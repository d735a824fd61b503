//! Tests of the launcher against real processes.
//!
//! Every test waits for conditions, cleans up after itself and may run beside all others. What counts descriptors
//! or zombies, or changes the process as a whole, runs in a process of its own (`isolated`).

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod behaviour;
mod chaos;
mod failure;
mod filter;
mod harness;
mod isolated;
mod lanes;
mod scale;
mod seccomp;
#[path = "../../../../tests/skip.rs"]
mod skip;
mod storm;
mod stuck;
mod termination;
