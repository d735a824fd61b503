//! How well and how fast the scheduler decides, on virtual clusters: the server's and the workers' state
//! machines as they are, virtual time, no process and no socket. Only decisions of the server are timed.

pub mod bound;
pub mod cluster;
pub mod decision;
pub mod kinds;
pub mod quality;
pub mod scale;
pub mod shapes;

#[cfg(test)]
mod tests;
