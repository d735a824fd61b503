//! Values of calls that are too long for the server: they stay in files of the worker where they were made.

mod fetch;
mod holder;
mod reference;

pub use fetch::{FetchError, drop_values, fetch};
pub use reference::Reference;
