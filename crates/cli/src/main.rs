//! The `hq` binary.

#![forbid(unsafe_code)]

mod args;
mod parse;

fn main() {}
