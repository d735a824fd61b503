//! Parses lines of `sbatch`.

use super::lines::Effect::{Call, Count, Nothing, On, Path, Text, Unknown};
use super::lines::{Pair, Table};
use super::script_options::{GpuUnit, Memory, ScriptOptions};
use super::units::{Plain, gpus, memory_kib, seconds};

pub(super) const TABLE: Table = Table {
    flags: &[
        ("--exclusive", On(|to| &mut to.is_exclusive)),
        ("--wait -W", On(|to| &mut to.waits)),
        ("--no-requeue", On(|to| &mut to.never_restarts)),
        ("--nice --hold -H", Call(other)),
        (
            "--requeue --overcommit -O --oversubscribe --share -s --contiguous --spread-job --use-min-nodes \
             --get-user-env --parsable --quiet -Q --verbose -v --kill-on-invalid-dep --ignore-pbs",
            Nothing,
        ),
        ("--propagate --test-only --reboot", Unknown),
    ],
    valued: &[
        ("--nodes -N", Count(|to| &mut to.nodes)),
        ("--ntasks -n", Count(|to| &mut to.tasks)),
        ("--ntasks-per-node", Count(|to| &mut to.tasks_per_node)),
        ("--tasks-per-node", Count(|to| &mut to.tasks_per_node)),
        ("--cpus-per-task -c", Count(|to| &mut to.cpus_per_task)),
        ("--mem --mem-per-cpu --mem-per-gpu", Call(other)),
        ("--gres --gpus-per-node", Call(set_gpus)),
        ("--gpus -G --gpus-per-task", Call(set_gpus)),
        ("--job-name -J", Text(|to| &mut to.name)),
        ("--array -a --time -t", Call(other)),
        ("--output -o", Path(|to| &mut to.stdout)),
        ("--error -e", Path(|to| &mut to.stderr)),
        ("--input -i", Text(|to| &mut to.stdin)),
        ("--chdir -D", Text(|to| &mut to.cwd)),
        ("--dependency -d", Call(dependency)),
        ("--mail-user", Text(|to| &mut to.mail.address)),
        ("--mail-type --open-mode", Call(other)),
        ("--export", Call(export)),
        ("--signal", Call(signal)),
        ("--time-min --begin -b --deadline", Call(other)),
        ("--comment", Nothing),
    ],
    of_workers: "--partition -p --account -A --qos -q --constraint -C --reservation --nodelist -w --exclude -x \
        --clusters -M --cluster-constraint --licenses -L --switches --wckey --nodefile -F",
    path,
    are_words: false,
};

fn other(options: &mut ScriptOptions, pair: &Pair) -> Option<()> {
    let value = &*pair.value;
    let kib = || memory_kib(value, Plain::Mib);
    match &*pair.name {
        "--nice" => options.priority = Some(0_i32.saturating_sub(value.parse().unwrap_or(100))),
        "--mem-per-cpu" => options.memory = Some(Memory::Cpu(kib()?)),
        "--mem-per-gpu" => options.memory = Some(Memory::Gpu(kib()?)),
        "--mem" if kib()? == 0 => options.memory = Some(Memory::All),
        "--mem" => options.memory = Some(Memory::Node(kib()?)),
        "--array" | "-a" if value.is_empty() => return None,
        "--array" | "-a" => options.set_array(value),
        "--time" | "-t" if matches!(value, "UNLIMITED" | "INFINITE") => {}
        // A single field is minutes.
        "--time" | "-t" => options.time = Some(seconds(value, 60, 1)?),
        "--mail-type" => {
            for event in value.split(',') {
                options.mail_at(&event.to_ascii_uppercase(), &format!("--mail-type={event}"));
            }
        }
        "--open-mode" if value == "truncate" => {}
        "--open-mode" => options.note("`--open-mode=append`: output replaces the file; it is not appended".to_owned()),
        _ => options.note(format!(
            "`{}`: a job starts as soon as workers have free resources; `hq submit --after JOB` makes it wait for another",
            pair.shown()
        )),
    }
    Some(())
}

fn set_gpus(options: &mut ScriptOptions, pair: &Pair) -> Option<()> {
    let per = match &*pair.name {
        "--gres" if !pair.value.starts_with("gpu") => return None,
        "--gres" | "--gpus-per-node" => GpuUnit::Node,
        "--gpus-per-task" => GpuUnit::Task,
        _ => GpuUnit::Job,
    };
    let (first, rest) = pair.value.split_once(',').unwrap_or((&pair.value, ""));
    let (resource, count) = gpus(first)?;
    options.gpus = Some((resource, count, per));
    // hq does not distinguish these kinds.
    if !rest.is_empty() {
        options.untranslated(rest);
    }
    Some(())
}

/// Translates placeholders. Elements of an array have their own job numbers, so `%j` becomes job
/// and task.
fn path(options: &mut ScriptOptions, pattern: &str) -> String {
    if pattern == "/dev/null" {
        return "none".to_owned();
    }
    let mut path = String::new();
    let mut chars = pattern.chars().peekable();
    while let Some(c) = chars.next() {
        if c != '%' {
            path.push(c);
            continue;
        }
        let mut is_padded = false;
        while chars.next_if(char::is_ascii_digit).is_some() {
            is_padded = true;
        }
        if is_padded {
            options.note(format!(
                "`{pattern}`: numbers in paths have no leading zeros"
            ));
        }
        match chars.next() {
            Some('%') => path.push('%'),
            Some('A') => path.push_str("%{JOB_ID}"),
            Some('a') => path.push_str("%{TASK_ID}"),
            Some('j' | 'J') => path.push_str(super::units::JOB),
            Some('x') => path.push_str(super::units::NAME),
            Some('u') => path.push_str(&std::env::var("USER").unwrap_or_default()),
            Some('N') => {
                options.note(format!(
                    "`{pattern}`: the node is unknown when the path is created"
                ));
                path.push_str("node");
            }
            Some('n' | 's' | 't') => path.push('0'),
            Some(unknown) => {
                options.note(format!("`{pattern}`: `%{unknown}` is left out"));
            }
            None => path.push('%'),
        }
    }
    path
}

/// Parses `afterok:3:4,afterany:5`.
fn dependency(options: &mut ScriptOptions, pair: &Pair) -> Option<()> {
    let value = &pair.value;
    if value.contains('?') {
        options.note(format!(
            "`--dependency={value}`: all conditions must hold, not just one"
        ));
    }
    for part in value.split([',', '?']) {
        let (kind, jobs) = part.split_once(':').unwrap_or((part, ""));
        let mut jobs = jobs.split(':').filter(|job| !job.is_empty());
        match kind {
            "aftercorr" => options.after_each = jobs.next_back().map(str::to_owned),
            "" => {}
            _ => options.wait_for(kind, jobs, &format!("--dependency={part}")),
        }
    }
    Some(())
}

fn export(options: &mut ScriptOptions, pair: &Pair) -> Option<()> {
    for part in pair.value.split(',') {
        match part {
            "ALL" | "" => {}
            "NONE" | "NIL" => options.passes_env = false,
            part => options.add_variable("--export=", part),
        }
    }
    Some(())
}

/// Parses `B:USR1@120`.
fn signal(options: &mut ScriptOptions, pair: &Pair) -> Option<()> {
    // The letters are followed by a colon. Without it, they are part of a name, as in `BUS`.
    let value = match pair.value.split_once(':') {
        Some(("R" | "B" | "RB" | "BR", signal)) => signal,
        Some(_) => return None,
        None => &*pair.value,
    };
    let (signal, before) = value.split_once('@').unwrap_or((value, "60"));
    options.signal = Some((signal.to_owned(), before.parse().ok()?));
    Some(())
}
