//! Parses lines of `qsub` for PBS Professional, OpenPBS and Torque.

use super::lines::Effect::{Call, Nothing, On, Path, Priority, Text, Unknown};
use super::lines::{Pair, Table};
use super::script_options::{GpuUnit, Memory, ScriptOptions};
use super::units::{JOB, Plain, memory_kib, seconds};

pub(super) const TABLE: Table = Table {
    flags: &[
        ("-V", On(|to| &mut to.passes_env)),
        ("-z -f -x", Nothing),
        ("-h -I -X", Unknown),
    ],
    valued: &[
        ("-N", Text(|to| &mut to.name)),
        ("-l", Call(resources)),
        ("-J -t -j -m -v -r -M", Call(other)),
        ("-o", Path(|to| &mut to.stdout)),
        ("-e", Path(|to| &mut to.stderr)),
        ("-W", Call(attributes)),
        ("-p", Priority),
        ("-S", Text(|to| &mut to.shell)),
        ("-d -w", Text(|to| &mut to.cwd)),
        // The temporary location of output.
        ("-k -R", Nothing),
    ],
    of_workers: "-q -A -P",
    path,
    are_words: false,
};

fn other(options: &mut ScriptOptions, pair: &Pair) -> Option<()> {
    let value = &pair.value;
    match &*pair.name {
        "-J" | "-t" => options.set_array(value),
        "-j" => options.is_merged = value.contains('o') && value.contains('e'),
        "-m" => {
            for event in value.chars() {
                options.mail_at(&event.to_string(), &format!("-m {event}"));
            }
        }
        "-v" => {
            let parts = value.split(',');
            parts.for_each(|part| options.add_variable("-v ", part));
        }
        "-r" => options.never_restarts = value.starts_with(['n', 'F', 'f']),
        _ => options.mail.address = value.split(',').next().map(str::to_owned),
    }
    Some(())
}

/// Parses `select=2:ncpus=4:mem=8gb,walltime=01:00:00` or `nodes=1:ppn=8`.
fn resources(options: &mut ScriptOptions, pair: &Pair) -> Option<()> {
    for part in pair.value.split(',') {
        match part.split_once('=') {
            Some(("select" | "nodes", chunk)) => chunks(chunk, options),
            Some(("walltime", time)) => match seconds(time, 1, 1) {
                Some(time) => options.time = Some(time),
                None => options.untranslated(&format!("-l {part}")),
            },
            Some((name, value)) => single(name, value, options),
            None => options.untranslated(&format!("-l {part}")),
        }
    }
    Some(())
}

/// Parses `2:ncpus=4:mem=8gb`. Several kinds of nodes are joined by `+`.
fn chunks(text: &str, options: &mut ScriptOptions) {
    let (first, others) = text.split_once('+').unwrap_or((text, ""));
    if !others.is_empty() {
        options.note(format!(
            "`{text}`: all nodes of a task are alike; `{others}` is left out"
        ));
    }
    for (place, part) in first.split(':').enumerate() {
        match (part.parse::<u32>(), part.split_once('=')) {
            (Ok(count), _) if place == 0 => options.nodes = Some(count),
            (_, Some((name, value))) => single(name, value, options),
            _ => options.of_workers.push(format!("-l nodes={part}")),
        }
    }
}

fn single(name: &str, value: &str, options: &mut ScriptOptions) {
    let number = value.parse::<u32>().ok();
    let kib = memory_kib(value, Plain::Bytes);
    match (name, number, kib) {
        // The cpus of a chunk include its processes and threads.
        ("ncpus" | "ppn", Some(cpus), _) => {
            options.tasks_per_node = Some(cpus);
            options.cpus_per_task = Some(1);
        }
        ("mpiprocs" | "ompthreads", _, _) => {}
        ("place", _, _) => options.is_exclusive |= value.contains("excl"),
        ("mem" | "pmem" | "vmem", _, Some(kib)) => options.memory = Some(Memory::Node(kib)),
        ("ngpus" | "gpus", Some(gpus), _) => {
            options.gpus = Some(("gpus/nvidia", gpus, GpuUnit::Node))
        }
        ("procs", Some(cpus), _) => options.tasks = Some(cpus),
        _ => options.untranslated(&format!("-l {name}={value}")),
    }
}

/// Returns a path. Relative paths start at the directory of the submit.
fn path(_: &mut ScriptOptions, value: &str) -> String {
    let path = value.rsplit_once(':').map_or(value, |(_, path)| path);
    let path = path
        .replace("^array_index^", "%{TASK_ID}")
        .replace("$PBS_JOBID", JOB)
        .replace("${PBS_JOBID}", JOB)
        .replace("^", "");
    match path.as_str() {
        "/dev/null" => "none".to_owned(),
        absolute if absolute.starts_with(['/', '~']) => path,
        _ => format!("%{{SUBMIT_DIR}}/{path}"),
    }
}

/// Parses `depend=afterok:3:4` or `umask=022`.
fn attributes(options: &mut ScriptOptions, pair: &Pair) -> Option<()> {
    match pair.value.split_once('=')? {
        ("depend", value) => {
            for part in value.split(',') {
                let (kind, jobs) = part.split_once(':')?;
                let jobs = jobs
                    .split(':')
                    .map(|job| job.split('.').next().unwrap_or(job));
                options.wait_for(kind, jobs, &format!("-W depend={part}"));
            }
        }
        ("block", value) => options.waits = value.starts_with(['t', 'T']),
        _ => return None,
    }
    Some(())
}
