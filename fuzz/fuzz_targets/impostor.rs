//! `targets/impostor.rs` for a fuzzer.

#![no_main]

#[path = "../targets/impostor.rs"]
mod target;

libfuzzer_sys::fuzz_target!(|data: &[u8]| target::run(data));
