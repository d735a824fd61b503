//! `targets/admission.rs` for a fuzzer.

#![no_main]

#[path = "../targets/admission.rs"]
mod target;

libfuzzer_sys::fuzz_target!(|data: &[u8]| target::run(data));
