//! The quality and speed of the scheduler's decisions on virtual clusters. These use the real state
//! machines of server and workers and virtual time, without processes or sockets. Only the server's
//! decisions are timed.

pub mod bound;
pub mod cluster;
pub mod decision;
pub mod kinds;
pub mod quality;
pub mod scale;
pub mod shapes;

#[cfg(test)]
mod tests;
