//! Job files: a submit, or an error that shows where it is.

/// Runs one input; a panic is the finding.
pub(crate) fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    if let Err(error) = hq_cli::check_job_file(text) {
        assert!(!error.is_empty(), "a refusal says why");
    }
}
