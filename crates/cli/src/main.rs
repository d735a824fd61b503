//! The `hq` binary. Everything is in the library of this package.

#![forbid(unsafe_code)]

use std::process::ExitCode;

// Tasks are made on one thread and dropped on another, where the system's allocator is slow. This
// one builds with nothing but a C compiler.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    hq_cli::main()
}
