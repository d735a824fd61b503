//! Job files: a submit, or an error that shows where it is.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Err(error) = hq_cli::check_job_file(text) {
        assert!(!error.is_empty(), "a refusal says why");
    }
});
