//! Parses lines of `bsub`.

use hq_core::words::has_word;

use super::lines::{Line, Pair, pairs};
use super::script::JOB;
use super::script_options::{GpuUnit, Memory, ScriptOptions};
use super::units::{Plain, memory_kib, seconds};

const FLAGS: &str = "-x -N -B -H -K -r -rn -I -Is -Ip -L";

/// Options that determine where workers run.
const OF_WORKERS: &str = "-q -P -app -G -m -U -sla -g";

/// Reads the options of a line.
pub(super) fn read(line: &Line, options: &mut ScriptOptions) {
    for pair in pairs(line.words(), FLAGS, true) {
        if has_word(OF_WORKERS, &pair.name) {
            options.of_workers.push(pair.shown());
        } else if option(&pair, options).is_none() {
            options.untranslated(&pair.shown());
        }
    }
}

/// Applies an option. Returns `None` if it is unknown or its value is invalid.
fn option(pair: &Pair, options: &mut ScriptOptions) -> Option<()> {
    let value = pair.value.as_str();
    let text = || (!value.is_empty()).then(|| value.to_owned());
    match pair.name.as_str() {
        "-J" => name(value, options),
        "-n" => options.tasks = Some(value.split(',').next()?.parse().ok()?),
        "-R" => requirement(value, options),
        // A single field is minutes; two fields are hours and minutes. A host speed may follow.
        "-W" => options.time = Some(seconds(value.split('/').next()?, 60, 60)?),
        "-M" => limit(value, options)?,
        "-o" => {
            options.stdout = Some(path(&text()?));
            options.note("`-o`: output replaces the file; it is not appended".to_owned());
        }
        "-oo" => options.stdout = Some(path(&text()?)),
        "-e" | "-eo" => options.stderr = Some(path(&text()?)),
        "-i" | "-is" => options.stdin = Some(text()?),
        "-cwd" => options.cwd = Some(text()?),
        "-env" => variables(value, options),
        "-gpu" => gpu(value, options),
        "-w" => dependency(value, options),
        "-u" => options.mail.address = Some(text()?),
        "-N" => options.mail.at_end = true,
        "-K" => options.waits = true,
        "-x" => options.is_exclusive = true,
        "-rn" => options.may_restart = Some(false),
        "-sp" => options.priority = Some(value.parse().ok()?),
        "-r" | "-L" => {}
        _ => return None,
    }
    Some(())
}

/// Applies a memory limit. It is the job's request unless `rusage` overrides it.
fn limit(value: &str, options: &mut ScriptOptions) -> Option<()> {
    let kib = memory_kib(value, Plain::Kib)?;
    if value.bytes().all(|b| b.is_ascii_digit()) {
        options.note(format!(
            "`-M {value}`: read as KiB; your site may use another unit"
        ));
    }
    options.memory = options.memory.or(Some(Memory::Node(kib)));
    Some(())
}

/// Parses `name` or `name[1-10]%3`.
fn name(value: &str, options: &mut ScriptOptions) {
    let (name, ids) = value.split_once('[').unwrap_or((value, ""));
    if !name.is_empty() {
        options.name = Some(name.to_owned());
    }
    if let Some((ids, limit)) = ids.split_once(']') {
        options.set_array(&format!("{ids}{limit}"));
    }
}

/// Parses `span[hosts=1] rusage[mem=4000]`.
fn requirement(value: &str, options: &mut ScriptOptions) {
    let mut rest = value;
    while let Some((kind, after)) = rest.split_once('[') {
        let (inside, after) = after.split_once(']').unwrap_or((after, ""));
        rest = after;
        match kind.trim() {
            "span" => match inside.split_once('=') {
                Some(("hosts", "1")) => {}
                Some(("ptile", each)) => options.tasks_per_node = each.parse().ok(),
                _ => options.untranslated(&format!("-R span[{inside}]")),
            },
            "rusage" => {
                for part in inside.split([',', ':']) {
                    let amount = part.trim().split_once('=');
                    let kib = amount
                        .filter(|(name, _)| *name == "mem")
                        .and_then(|(_, value)| memory_kib(value, Plain::Mib));
                    match kib {
                        Some(kib) => options.memory = Some(Memory::Node(kib)),
                        None => options.untranslated(&format!("-R rusage[{part}]")),
                    }
                }
            }
            // These say where the job may run.
            kind => options.of_workers.push(format!("-R {kind}[{inside}]")),
        }
    }
}

/// Parses `num=2:mode=exclusive_process`.
fn gpu(value: &str, options: &mut ScriptOptions) {
    let count = value
        .split(':')
        .find_map(|part| part.strip_prefix("num="))
        .and_then(|count| count.split('/').next()?.parse().ok());
    options.gpus = Some(("gpus/nvidia", count.unwrap_or(1), GpuUnit::Node));
}

/// Parses `done(3) && ended(4)`.
fn dependency(value: &str, options: &mut ScriptOptions) {
    for part in value.split("&&") {
        let part = part.trim();
        let inside = |kind: &str| {
            let rest = part.strip_prefix(kind)?.strip_prefix('(')?;
            rest.strip_suffix(')')
                .map(|job| job.trim_matches('"').to_owned())
        };
        if let Some(job) = inside("done") {
            options.after.push(format!("{job}:ok"));
        } else if let Some(job) = inside("ended") {
            options.after.push(format!("{job}:any"));
        } else {
            options.note(format!(
                "`-w {part}`: a job waits for the success (`--after JOB`) or for any end (`--after JOB:any`) of another"
            ));
        }
    }
}

fn variables(value: &str, options: &mut ScriptOptions) {
    for part in value.split(',') {
        match part.trim().split_once('=') {
            Some((name, value)) => options.env.push((name.to_owned(), value.to_owned())),
            None if part.eq_ignore_ascii_case("none") => options.passes_env = false,
            None => {}
        }
    }
}

fn path(value: &str) -> String {
    if value == "/dev/null" {
        return "none".to_owned();
    }
    value
        .replace(
            "%J",
            if value.contains("%I") {
                "%{JOB_ID}"
            } else {
                JOB
            },
        )
        .replace("%I", "%{TASK_ID}")
}
