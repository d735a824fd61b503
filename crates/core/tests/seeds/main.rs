//! Plays many seeds, each to the end: the simulation, automatic allocation against a faulty batch
//! system, and clusters with broken nodes.
//!
//! Uses the public interface of the crate. Separate from the unit tests, because `.ci/run` builds
//! those without optimization, which would take too long here. Needs the feature `testing`.

mod histories;
mod months;
mod quarantine;
mod worlds;
