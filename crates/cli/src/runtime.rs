//! The runtimes of this program.
//!
//! A runtime starts blocking threads on demand and ends idle ones. If the system refuses the first
//! one (EAGAIN: the user's process limit, or `pids.max` of a container), the runtime panics, which
//! ends the process. Tasks that start many threads make this a common event on nodes where workers
//! and servers run for weeks. Therefore their runtimes start a blocking thread at the beginning and
//! keep it: while one thread is alive, work waits instead of failing. `cargo xtask tidy` checks
//! that all runtimes are created in this module.

use std::error::Error;
use std::io;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};

use crate::error::{CliError, CliResult};

/// Creates a runtime on the calling thread for a client's requests. It has no blocking threads, so
/// its tasks must not use any: a client must work even where no further thread can be started, for
/// example to cancel the tasks that use them all.
pub(crate) fn of_client() -> CliResult<Runtime> {
    let mut builder = Builder::new_current_thread();
    builder.enable_all().build().map_err(|e| refused(&e))
}

/// Creates a runtime on the calling thread, with blocking threads.
pub(crate) fn on_this_thread() -> CliResult<Runtime> {
    build(Builder::new_current_thread(), 1)
        .map(with_memory_given_back)
        .map_err(|e| refused(&e))
}

/// Like `of_client`, but for a separate thread that can report errors.
pub(crate) fn on_another_thread() -> io::Result<Runtime> {
    build(Builder::new_current_thread(), 1)
}

/// The maximum number of threads for connections. A server decides and stores on two other threads,
/// which become the bottleneck long before these do. On a node with 256 cpus, a thread for each of them could
/// exceed the limit of processes.
const THREADS_MAX: usize = 4;

/// Creates a runtime with a few threads, and with blocking threads.
pub(crate) fn on_several_threads() -> CliResult<Runtime> {
    let cpus = thread::available_parallelism().map_or(1, usize::from);
    let count = cpus.min(THREADS_MAX);
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(count);
    build(builder, count + 1)
        .map(with_memory_given_back)
        .map_err(|e| refused(&e))
}

fn with_memory_given_back(runtime: Runtime) -> Runtime {
    runtime.spawn(crate::memory::give_back_now_and_then());
    runtime
}

/// Builds a runtime. `threads` is the number of threads that it starts immediately.
fn build(mut builder: Builder, threads: usize) -> io::Result<Runtime> {
    // The runtime panics if it cannot start its threads, so this is tested first.
    check_threads(threads)?;
    let runtime = builder
        .enable_all()
        .thread_keep_alive(Duration::MAX)
        .build()?;
    crate::signals::ignore_file_limit_signal(&runtime)?;
    // Start the blocking thread that is kept.
    drop(runtime.spawn_blocking(|| ()));
    Ok(runtime)
}

/// Starts `count` threads and ends them again.
fn check_threads(count: usize) -> io::Result<()> {
    let mut started = Vec::with_capacity(count);
    let (over, wait) = mpsc::channel::<()>();
    let wait = std::sync::Arc::new(std::sync::Mutex::new(wait));
    let mut result = Ok(());
    for _ in 0..count {
        let wait = std::sync::Arc::clone(&wait);
        // All threads live until the sender is dropped.
        let thread =
            thread::Builder::new().spawn(move || drop(wait.lock().map(|wait| wait.recv())));
        match thread {
            Ok(thread) => started.push(thread),
            Err(error) => {
                result = Err(error);
                break;
            }
        }
    }
    drop(over);
    for thread in started {
        // The thread cannot panic.
        let _ = thread.join();
    }
    result
}

fn refused(error: &io::Error) -> CliError {
    not_started("Cannot start", error)
}

/// Returns the error of a program that cannot start, with advice if the system refused a thread.
pub(crate) fn not_started(message: impl Into<String>, source: &(dyn Error + 'static)) -> CliError {
    let failed = CliError::caused(message, source);
    let is_refusal = |cause: &(dyn Error + 'static)| {
        let cause = cause.downcast_ref::<io::Error>();
        cause.is_some_and(|cause| cause.kind() == io::ErrorKind::WouldBlock)
    };
    if is_refusal(source) || source.source().is_some_and(is_refusal) {
        return failed.with_help(
            "the system allows no further threads: see `ulimit -u`, and `pids.max` of a container or batch job, for the \
             limit, and `ps -L` for the threads",
        );
    }
    failed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocking_work_finds_a_thread_that_was_there_before() {
        for runtime in [on_this_thread(), on_several_threads()] {
            let runtime = runtime.expect("threads can be started");
            let which = || {
                let ran = runtime.block_on(runtime.spawn_blocking(|| thread::current().id()));
                ran.expect("it runs")
            };
            let first = which();
            thread::sleep(Duration::from_millis(10));
            assert_eq!(first, which(), "it waits for more");
        }
    }
}
