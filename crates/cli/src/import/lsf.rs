//! Parses lines of `bsub`.

use super::lines::Effect::{Call, Count, Nothing, On, Path, Priority, Text, Unknown};
use super::lines::{Pair, Table};
use super::script_options::{GpuUnit, Memory, ScriptOptions};
use super::units::{JOB, Plain, memory_kib, seconds};

pub(super) const TABLE: Table = Table {
    flags: &[
        ("-N", On(|to| &mut to.mail.at_end)),
        ("-K", On(|to| &mut to.waits)),
        ("-x", On(|to| &mut to.is_exclusive)),
        ("-rn", On(|to| &mut to.never_restarts)),
        ("-r -L", Nothing),
        ("-B -H -I -Is -Ip", Unknown),
    ],
    valued: &[
        ("-J", Call(name)),
        ("-n", Count(|to| &mut to.tasks)),
        ("-R", Call(requirement)),
        ("-W -M -o -gpu", Call(other)),
        ("-oo", Path(|to| &mut to.stdout)),
        ("-e -eo", Path(|to| &mut to.stderr)),
        ("-i -is", Text(|to| &mut to.stdin)),
        ("-cwd", Text(|to| &mut to.cwd)),
        ("-env", Call(variables)),
        ("-w", Call(dependency)),
        ("-u", Text(|to| &mut to.mail.address)),
        ("-sp", Priority),
    ],
    of_workers: "-q -P -app -G -m -U -sla -g",
    path,
    are_words: true,
};

fn other(options: &mut ScriptOptions, pair: &Pair) -> Option<()> {
    let value = &*pair.value;
    match &*pair.name {
        // A single field is minutes; two fields are hours and minutes. A host speed may follow.
        "-W" => options.time = Some(seconds(value.split('/').next()?, 60, 60)?),
        // It is the job's request unless `rusage` overrides it.
        "-M" => {
            let kib = memory_kib(value, Plain::Kib)?;
            if value.bytes().all(|b| b.is_ascii_digit()) {
                options.note(format!(
                    "`-M {value}`: read as KiB; your site may use another unit"
                ));
            }
            options.memory = options.memory.or(Some(Memory::Node(kib)));
        }
        "-o" if value.is_empty() => return None,
        "-o" => {
            options.stdout = Some(path(options, value));
            options.note("`-o`: output replaces the file; it is not appended".to_owned());
        }
        // `num=2:mode=exclusive_process`
        _ => {
            let count = value.split(':').find_map(|part| part.strip_prefix("num="));
            let count = count.and_then(|count| count.split('/').next()?.parse().ok());
            options.gpus = Some(("gpus/nvidia", count.unwrap_or(1), GpuUnit::Node));
        }
    }
    Some(())
}

/// Parses `name` or `name[1-10]%3`.
fn name(options: &mut ScriptOptions, pair: &Pair) -> Option<()> {
    let (name, ids) = pair.value.split_once('[').unwrap_or((&pair.value, ""));
    if !name.is_empty() {
        options.name = Some(name.to_owned());
    }
    if let Some((ids, limit)) = ids.split_once(']') {
        options.set_array(&format!("{ids}{limit}"));
    }
    Some(())
}

/// Parses `span[hosts=1] rusage[mem=4000]`.
fn requirement(options: &mut ScriptOptions, pair: &Pair) -> Option<()> {
    let mut rest = &*pair.value;
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
    Some(())
}

/// Parses `done(3) && ended(4)`.
fn dependency(options: &mut ScriptOptions, pair: &Pair) -> Option<()> {
    for part in pair.value.split("&&") {
        let part = part.trim();
        let call = part.strip_suffix(')').and_then(|part| part.split_once('('));
        let (kind, job) = call.unwrap_or_default();
        let job = job.trim_matches('"');
        options.wait_for(kind, std::iter::once(job), &format!("-w {part}"));
    }
    Some(())
}

fn variables(options: &mut ScriptOptions, pair: &Pair) -> Option<()> {
    for part in pair.value.split(',') {
        match part.trim().split_once('=') {
            Some((name, value)) => options.env.push((name.to_owned(), value.to_owned())),
            None if part.eq_ignore_ascii_case("none") => options.passes_env = false,
            None => {}
        }
    }
    Some(())
}

fn path(_: &mut ScriptOptions, value: &str) -> String {
    if value == "/dev/null" {
        return "none".to_owned();
    }
    let job = if value.contains("%I") {
        "%{JOB_ID}"
    } else {
        JOB
    };
    value.replace("%J", job).replace("%I", "%{TASK_ID}")
}
