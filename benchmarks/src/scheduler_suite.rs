//! Quality and speed of the scheduler's decisions, on virtual clusters: the real state machines of
//! server and workers, virtual time, no processes or sockets. Only decisions of the server are
//! timed.

pub mod bound;
pub mod cluster;
pub mod decision;
pub mod kinds;
pub mod quality;
pub mod scale;
pub mod shapes;

#[cfg(test)]
mod tests;
