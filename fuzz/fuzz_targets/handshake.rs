//! `targets/handshake.rs` for a fuzzer.

#![no_main]

#[path = "../targets/handshake.rs"]
mod target;

libfuzzer_sys::fuzz_target!(|data: &[u8]| target::run(data));
