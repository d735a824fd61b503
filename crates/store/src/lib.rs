//! The durable state of a server: an SQLite database with documented tables and views.
//!
//! [`Store`] opens or creates the file. [`Store::load`] restores the state. [`Store::start`] moves
//! the store to its only writer thread, which commits [`hq_core::server_state::Change`]s in groups
//! and reports the last one that is on disk. [`reader`] and [`event`] read the file at the same
//! time. See `docs/durability.md`.
//!
//! The crate makes no decisions about jobs, and none of its code runs on the thread that owns the
//! state.

#![forbid(unsafe_code)]

mod bytes;
mod compact;
pub mod curves;
mod encode;
mod error;
pub mod event;
mod examine;
mod group;
mod history;
mod lease;
mod load;
mod lock;
mod log;
mod memory;
#[cfg(any(test, feature = "testing"))]
pub mod memory_disk;
mod meta;
mod open;
mod pages;
mod place;
mod process;
mod pulse;
mod query;
pub mod reader;
pub mod rows;
mod runs;
mod salvage;
mod schema;
#[cfg(test)]
mod simulation;
pub mod statement;
mod stretch;
mod subscribe;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod two_servers;
pub mod values;
mod writer;

pub use compact::Pruned;
pub use encode::body_bytes;
pub use error::StoreError;
pub use examine::{check, repair};
pub use history::{Ending, History};
pub use load::Loaded;
pub use lock::{Holder, Lock, holder};
pub use open::{InspectedStore, Store};
pub use salvage::{LostResults, RepairReport};
pub use subscribe::Live;
pub use writer::{FlushError, Health, Position, Progress, StoreClient, StoreHandle, Subscription};
