//! The `hq` binary. The library of this package contains all code.

#![forbid(unsafe_code)]

use std::process::ExitCode;

// Tasks are allocated on one thread and freed on another, which is slow with the system's
// allocator. Building mimalloc only requires a C compiler.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    hq_cli::main()
}
