//! `targets/store_file.rs` for a fuzzer.

#![no_main]

#[path = "../targets/store_file.rs"]
mod target;

libfuzzer_sys::fuzz_target!(|data: &[u8]| target::run(data));
