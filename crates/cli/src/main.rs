//! The `hq` binary.

#![forbid(unsafe_code)]

mod args;
mod error;
mod parse;
mod submit;

fn main() {}
