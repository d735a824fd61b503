//! Plays many seeds, each to the end: the simulation, automatic allocation against a batch system that lies, and clusters
//! with broken nodes.
//!
//! Sees what users of the crate see. It is not part of the unit tests, because those are not optimised in `.ci/run`: with
//! that many lines it takes longer than they do. Needs the feature `testing`.

mod histories;
mod quarantine;
mod worlds;
