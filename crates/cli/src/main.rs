//! The `hq` binary.

#![forbid(unsafe_code)]

mod args;
mod error;
mod output;
mod parse;
mod submit;

fn main() {}
