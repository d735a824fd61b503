//! Parses lines of `qsub` for PBS Professional, OpenPBS and Torque.

use super::lines::{Line, Pair, pairs};
use super::script::JOB;
use super::script_options::{GpuUnit, Memory, ScriptOptions};
use super::units::{Plain, memory_kib, seconds};

const FLAGS: &str = "-V -h -I -X -z -x -f";

/// Reads the options of a line.
pub(super) fn read(line: &Line, options: &mut ScriptOptions) {
    for pair in pairs(line.words(), FLAGS, false) {
        if matches!(pair.name.as_str(), "-q" | "-A" | "-P") {
            options.of_workers.push(pair.shown());
        } else if option(&pair, options).is_none() {
            options.untranslated(&pair.shown());
        }
    }
}

/// Applies an option. Returns `None` if it is unknown or its value is invalid.
fn option(pair: &Pair, options: &mut ScriptOptions) -> Option<()> {
    let value = pair.value.as_str();
    match pair.name.as_str() {
        "-N" => options.name = Some(value.to_owned()),
        "-J" | "-t" => options.set_array(value),
        "-l" => resources(value, options),
        "-j" => options.is_merged = value.contains('o') && value.contains('e'),
        "-o" => options.stdout = Some(path(value)),
        "-e" => options.stderr = Some(path(value)),
        "-M" => options.mail.address = value.split(',').next().map(str::to_owned),
        "-m" => mail(value, options),
        "-v" => variables(value, options),
        "-W" => attributes(value, options)?,
        "-p" => options.priority = Some(value.parse().ok()?),
        "-r" => options.may_restart = Some(!value.starts_with(['n', 'F', 'f'])),
        "-S" => options.shell = Some(value.to_owned()),
        "-d" | "-w" => options.cwd = Some(value.to_owned()),
        "-V" => options.passes_env = true,
        // The temporary location of output, and options without effect in hq.
        "-k" | "-z" | "-f" | "-x" | "-R" => {}
        _ => return None,
    }
    Some(())
}

/// Parses `select=2:ncpus=4:mem=8gb,walltime=01:00:00` or `nodes=1:ppn=8`.
fn resources(text: &str, options: &mut ScriptOptions) {
    for part in text.split(',') {
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
fn path(value: &str) -> String {
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

fn mail(value: &str, options: &mut ScriptOptions) {
    for event in value.chars() {
        match event {
            'e' => options.mail.at_end = true,
            'a' => options.mail.at_failure = true,
            'n' => options.mail = super::script_options::Mail::default(),
            _ => options.note(format!(
                "`-m {event}`: mail is sent at the end of a job and at its first failure"
            )),
        }
    }
}

fn variables(value: &str, options: &mut ScriptOptions) {
    for part in value.split(',') {
        let pair = match part.split_once('=') {
            Some((name, value)) => Some((name.to_owned(), value.to_owned())),
            None => std::env::var(part)
                .ok()
                .map(|value| (part.to_owned(), value)),
        };
        match pair {
            Some(pair) => options.env.push(pair),
            None => options.note(format!("`-v {part}`: it is not set here")),
        }
    }
}

/// Parses `depend=afterok:3:4` or `umask=022`.
fn attributes(value: &str, options: &mut ScriptOptions) -> Option<()> {
    let (name, value) = value.split_once('=')?;
    match name {
        "depend" => {
            for part in value.split(',') {
                let (kind, jobs) = part.split_once(':')?;
                let jobs = jobs
                    .split(':')
                    .map(|job| job.split('.').next().unwrap_or(job));
                match kind {
                    "afterok" => options.after.extend(jobs.map(|job| format!("{job}:ok"))),
                    "afterany" => options.after.extend(jobs.map(|job| format!("{job}:any"))),
                    _ => options.note(format!(
                        "`-W depend={part}`: a job waits for the success (`--after JOB`) or for any end (`--after JOB:any`) of another"
                    )),
                }
            }
        }
        "block" => options.waits = value.starts_with(['t', 'T']),
        _ => return None,
    }
    Some(())
}
