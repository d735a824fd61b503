//! Values of calls that are too long for the server: they stay in files of the worker where they were made.

mod reference;

pub use reference::Reference;
