//! Tests of the launcher against real processes.
//!
//! Every test waits for conditions, cleans up after itself and may run in parallel with all others.
//! Tests that count descriptors or zombies, or that change the whole process, run in a separate
//! process (`isolated`).

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod behaviour;
mod calls;
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
