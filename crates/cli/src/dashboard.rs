//! The terminal dashboard: its data ([`model`]), its reactions ([`app`]) and its display
//! ([`view`]).
//!
//! These modules are pure: `command::dashboard` owns the terminal, the connection and the clock.
//! [`source`] converts replies of a server, or rows of a journal file, into the model.

pub(crate) mod app;
pub(crate) mod filter;
pub(crate) mod history;
pub(crate) mod keys;
pub(crate) mod model;
pub(crate) mod problems;
pub(crate) mod question;
pub(crate) mod source;
pub(crate) mod view;
