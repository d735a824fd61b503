//! The runtimes of this program.
//!
//! A runtime starts blocking threads when there is work for them and ends them when there is none;
//! when the system refuses it the first one (EAGAIN: the user's limit of processes, `pids.max` of a
//! container), it panics, which ends the process. Tasks that start many threads make that an
//! everyday event on the nodes and login nodes where workers and servers live for weeks. So theirs
//! have a blocking thread from the beginning and keep it for ever: with one alive, work waits for
//! its turn instead. `cargo xtask tidy` makes sure that all runtimes come from here.

use std::io;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};

use crate::error::{CliError, CliResult};

/// A runtime on the calling thread for one question to a server. It has no blocking threads, so
/// nothing it runs may ask for one: a client has to work where no further thread can be started, if
/// only to cancel what takes them all.
pub(crate) fn of_client() -> CliResult<Runtime> {
    let mut builder = Builder::new_current_thread();
    builder.enable_all().build().map_err(|e| refused(&e))
}

/// A runtime on the calling thread, with blocking threads.
pub(crate) fn on_this_thread() -> CliResult<Runtime> {
    build(Builder::new_current_thread(), 1)
        .map(with_memory_given_back)
        .map_err(|e| refused(&e))
}

/// The same for a thread of its own, which has somebody to tell of an error.
pub(crate) fn on_another_thread() -> io::Result<Runtime> {
    build(Builder::new_current_thread(), 1)
}

/// A runtime with a thread for each cpu, and blocking threads.
pub(crate) fn on_all_cpus() -> CliResult<Runtime> {
    let cpus = thread::available_parallelism().map_or(1, usize::from);
    build(Builder::new_multi_thread(), cpus + 1)
        .map(with_memory_given_back)
        .map_err(|e| refused(&e))
}

fn with_memory_given_back(runtime: Runtime) -> Runtime {
    runtime.spawn(crate::memory::give_back_now_and_then());
    runtime
}

/// `threads`: how many it starts at once.
fn build(mut builder: Builder, threads: usize) -> io::Result<Runtime> {
    // The runtime does not report that it gets no threads, but panics.
    check_threads(threads)?;
    let runtime = builder
        .enable_all()
        .thread_keep_alive(Duration::MAX)
        .build()?;
    crate::signals::outlive_file_limit(&runtime)?;
    // The thread for this one is there from now on.
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
        // All of them are alive until the sender is gone.
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
        // It cannot panic.
        let _ = thread.join();
    }
    result
}

fn refused(error: &io::Error) -> CliError {
    if error.kind() == io::ErrorKind::WouldBlock {
        return CliError::new(format!(
            "Cannot start: the system allows no further threads ({error}). See `ulimit -u`, and `pids.max` of a \
             container, for the limit, and `ps -L` for what uses it"
        ));
    }
    CliError::caused("Cannot start", error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocking_work_finds_a_thread_that_was_there_before() {
        for runtime in [on_this_thread(), on_all_cpus()] {
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
