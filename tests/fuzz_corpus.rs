//! Runs the corpus of every fuzz target, to find targets that no longer compile, and inputs that
//! fail again, without a fuzzer.

#[path = "../fuzz/targets/admission.rs"]
mod admission;
#[path = "../fuzz/targets/handshake.rs"]
mod handshake;
#[path = "../fuzz/targets/job_file.rs"]
mod job_file;
#[path = "../fuzz/targets/messages.rs"]
mod messages;
#[path = "../fuzz/targets/store_file.rs"]
mod store_file;

use std::path::Path;

/// Runs `target` with every file of its corpus.
fn run_corpus(name: &str, target: fn(&[u8])) {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fuzz/corpus")
        .join(name);
    let mut count = 0;
    for entry in std::fs::read_dir(&directory).expect("each target has a corpus") {
        let path = entry.expect("the corpus can be listed").path();
        let input = std::fs::read(&path).expect("an input can be read");
        // Prints the input file, in case the target panics.
        eprintln!("{}", path.display());
        target(&input);
        count += 1;
    }
    assert!(count > 0, "{} is empty", directory.display());
}

#[test]
fn admissions() {
    run_corpus("admission", admission::run);
}

#[test]
fn handshakes() {
    run_corpus("handshake", handshake::run);
}

#[test]
fn job_files() {
    run_corpus("job_file", job_file::run);
}

#[test]
fn message_frames() {
    run_corpus("messages", messages::run);
}

#[test]
fn store_files() {
    run_corpus("store_file", store_file::run);
}
