//! The terminal dashboard: what it knows ([`model`]), how it reacts ([`app`]), what it shows
//! ([`view`]).
//!
//! These are pure: `command::dashboard` owns the terminal, the connection and the clock. [`source`]
//! turns answers of a server, or rows of a journal file, into the model.

pub(crate) mod app;
pub(crate) mod filter;
pub(crate) mod history;
pub(crate) mod keys;
pub(crate) mod model;
pub(crate) mod problems;
pub(crate) mod question;
pub(crate) mod source;
pub(crate) mod view;
