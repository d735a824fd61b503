//! The main loop of the GPU probe process.

use std::fs::File;
use std::io::{self, BufRead as _, Write as _};
use std::time::Duration;

use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::{
    Resource, Rlimit, Signal, getppid, set_parent_process_death_signal, setrlimit,
};
use rustix::stdio::dup2_stdout;
use rustix::time::{ClockId, clock_gettime};

use super::watch::GpuReply;
use super::{nvml, wire};

/// Answers questions about NVIDIA GPUs, read from standard input one per line, until end of file or
/// until the process `parent` ends.
///
/// # Errors
///
/// Returns an error if reading the input or writing the output fails.
pub fn serve_gpu_usage(parent: u32) -> io::Result<()> {
    // The library may hang forever. After the worker has ended, no other process would kill this
    // one.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let is_there =
        getppid().is_some_and(|now| now.as_raw_nonzero().get().cast_unsigned() == parent);
    // The parent may already have ended.
    if !is_there {
        return Ok(());
    }
    // A driver that crashes will crash again in the next process, and core dumps would fill the
    // worker's directory.
    let no_core = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    let _ = setrlimit(Resource::Core, no_core);
    // The library, or code that it loads, may print to standard output.
    let mut output = File::from(fcntl_dupfd_cloexec(io::stdout(), 3)?);
    dup2_stdout(io::stderr())?;
    let library = nvml::open();
    let mut handles = library.as_ref().map(nvml::Handles::new);
    for line in io::stdin().lock().lines() {
        let names = wire::read_question(&line?).ok_or(io::ErrorKind::InvalidData)?;
        let begin = cpu();
        let (devices, reason) = match &mut handles {
            Ok(handles) => (Some(handles.look(&names)), String::new()),
            Err(error) => (None, error.to_string()),
        };
        let reply = GpuReply {
            cpu: cpu().saturating_sub(begin),
            devices,
        };
        let answer = wire::answer(&reply, &reason).ok_or(io::ErrorKind::InvalidData)?;
        output.write_all(answer.as_bytes())?;
    }
    Ok(())
}

/// Returns the CPU time of this process.
fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
}
