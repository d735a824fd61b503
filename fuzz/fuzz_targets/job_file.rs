//! `targets/job_file.rs` for a fuzzer.

#![no_main]

#[path = "../targets/job_file.rs"]
mod target;

libfuzzer_sys::fuzz_target!(|data: &[u8]| target::run(data));
