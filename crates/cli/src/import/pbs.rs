//! Lines of `qsub`, of PBS Professional, OpenPBS and Torque.

use super::lines::{Line, Pair, pairs};
use super::script::JOB;
use super::units::{Plain, memory_kib, seconds};
use super::wish::{Memory, Per, Wish};

const FLAGS: &str = "-V -h -I -X -z -x -f";

/// Reads the options of a line.
pub(super) fn read(line: &Line, wish: &mut Wish) {
    for pair in pairs(line.words(), FLAGS, false) {
        if matches!(pair.name.as_str(), "-q" | "-A" | "-P") {
            wish.of_workers.push(pair.shown());
        } else if option(&pair, wish).is_none() {
            wish.untranslated(&pair.shown());
        }
    }
}

/// Applies an option; `None` if it is unknown or its value is invalid.
fn option(pair: &Pair, wish: &mut Wish) -> Option<()> {
    let value = pair.value.as_str();
    match pair.name.as_str() {
        "-N" => wish.name = Some(value.to_owned()),
        "-J" | "-t" => wish.set_array(value),
        "-l" => resources(value, wish),
        "-j" => wish.is_merged = value.contains('o') && value.contains('e'),
        "-o" => wish.stdout = Some(path(value)),
        "-e" => wish.stderr = Some(path(value)),
        "-M" => wish.mail.address = value.split(',').next().map(str::to_owned),
        "-m" => mail(value, wish),
        "-v" => variables(value, wish),
        "-W" => attributes(value, wish)?,
        "-p" => wish.priority = Some(value.parse().ok()?),
        "-r" => wish.may_restart = Some(!value.starts_with(['n', 'F', 'f'])),
        "-S" => wish.shell = Some(value.to_owned()),
        "-d" | "-w" => wish.cwd = Some(value.to_owned()),
        "-V" => wish.passes_env = true,
        // Temporary place of output, and options without effect in hq.
        "-k" | "-z" | "-f" | "-x" | "-R" => {}
        _ => return None,
    }
    Some(())
}

/// `select=2:ncpus=4:mem=8gb,walltime=01:00:00`, `nodes=1:ppn=8`.
fn resources(text: &str, wish: &mut Wish) {
    for part in text.split(',') {
        match part.split_once('=') {
            Some(("select" | "nodes", chunk)) => chunks(chunk, wish),
            Some(("walltime", time)) => match seconds(time, 1, 1) {
                Some(time) => wish.time = Some(time),
                None => wish.untranslated(&format!("-l {part}")),
            },
            Some((name, value)) => single(name, value, wish),
            None => wish.untranslated(&format!("-l {part}")),
        }
    }
}

/// `2:ncpus=4:mem=8gb`; several kinds of nodes are joined by `+`.
fn chunks(text: &str, wish: &mut Wish) {
    let (first, others) = text.split_once('+').unwrap_or((text, ""));
    if !others.is_empty() {
        wish.note(format!(
            "`{text}`: all nodes of a task are alike; `{others}` is left out"
        ));
    }
    for (place, part) in first.split(':').enumerate() {
        match (part.parse::<u32>(), part.split_once('=')) {
            (Ok(count), _) if place == 0 => wish.nodes = Some(count),
            (_, Some((name, value))) => single(name, value, wish),
            _ => wish.of_workers.push(format!("-l nodes={part}")),
        }
    }
}

fn single(name: &str, value: &str, wish: &mut Wish) {
    let number = value.parse::<u32>().ok();
    let kib = memory_kib(value, Plain::Bytes);
    match (name, number, kib) {
        // The cpus of a chunk include its processes and threads.
        ("ncpus" | "ppn", Some(cpus), _) => {
            wish.tasks_per_node = Some(cpus);
            wish.cpus_per_task = Some(1);
        }
        ("mpiprocs" | "ompthreads", _, _) => {}
        ("place", _, _) => wish.is_exclusive |= value.contains("excl"),
        ("mem" | "pmem" | "vmem", _, Some(kib)) => wish.memory = Some(Memory::Node(kib)),
        ("ngpus" | "gpus", Some(gpus), _) => wish.gpus = Some(("gpus/nvidia", gpus, Per::Node)),
        ("procs", Some(cpus), _) => wish.tasks = Some(cpus),
        _ => wish.untranslated(&format!("-l {name}={value}")),
    }
}

/// Paths start where the job was submitted.
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

fn mail(value: &str, wish: &mut Wish) {
    for event in value.chars() {
        match event {
            'e' => wish.mail.at_end = true,
            'a' => wish.mail.at_failure = true,
            'n' => wish.mail = super::wish::Mail::default(),
            _ => wish.note(format!(
                "`-m {event}`: mail is sent at the end of a job and at its first failure"
            )),
        }
    }
}

fn variables(value: &str, wish: &mut Wish) {
    for part in value.split(',') {
        let pair = match part.split_once('=') {
            Some((name, value)) => Some((name.to_owned(), value.to_owned())),
            None => std::env::var(part)
                .ok()
                .map(|value| (part.to_owned(), value)),
        };
        match pair {
            Some(pair) => wish.env.push(pair),
            None => wish.note(format!("`-v {part}`: it is not set here")),
        }
    }
}

/// `depend=afterok:3:4`, `umask=022`.
fn attributes(value: &str, wish: &mut Wish) -> Option<()> {
    let (name, value) = value.split_once('=')?;
    match name {
        "depend" => {
            for part in value.split(',') {
                let (kind, jobs) = part.split_once(':')?;
                let jobs = jobs
                    .split(':')
                    .map(|job| job.split('.').next().unwrap_or(job));
                match kind {
                    "afterok" => wish.after.extend(jobs.map(|job| format!("{job}:ok"))),
                    "afterany" => wish.after.extend(jobs.map(|job| format!("{job}:any"))),
                    _ => wish.note(format!(
                        "`-W depend={part}`: a job waits for the success (`--after JOB`) or for any end (`--after JOB:any`) of another"
                    )),
                }
            }
        }
        "block" => wish.waits = value.starts_with(['t', 'T']),
        _ => return None,
    }
    Some(())
}
