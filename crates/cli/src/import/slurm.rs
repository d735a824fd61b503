//! Parses lines of `sbatch`.

use hq_core::words::has_word;

use super::lines::{Line, Pair, pairs};
use super::script_options::{GpuUnit, Memory, ScriptOptions};
use super::units::{Plain, gpus, memory_kib, seconds};

/// Options without a value, or with a value only after `=`.
const FLAGS: &str = "--exclusive --requeue --no-requeue --hold -H --wait -W --overcommit -O --oversubscribe --share \
    -s --contiguous --spread-job --use-min-nodes --get-user-env --parsable --quiet -Q --verbose -v \
    --test-only --nice --propagate --kill-on-invalid-dep --ignore-pbs --reboot";

/// Options that determine where workers run.
const OF_WORKERS: &str = "--partition --account --qos --constraint --reservation --nodelist --exclude --clusters \
    --cluster-constraint --licenses --switches --wckey --nodefile";

/// Options without effect in hq.
const WITHOUT_EFFECT: &str = "--parsable --quiet --verbose --comment --contiguous --kill-on-invalid-dep --ignore-pbs \
    --use-min-nodes --spread-job --get-user-env --requeue --overcommit --oversubscribe --share";

/// Short options and their long forms.
const SHORT: &str = "-a=--array -A=--account -b=--begin -c=--cpus-per-task -C=--constraint -d=--dependency \
    -D=--chdir -e=--error -F=--nodefile -G=--gpus -H=--hold -i=--input -J=--job-name -L=--licenses \
    -m=--distribution -M=--clusters -n=--ntasks -N=--nodes -o=--output -O=--overcommit \
    -p=--partition -q=--qos -Q=--quiet -s=--oversubscribe -S=--core-spec -t=--time -v=--verbose \
    -w=--nodelist -W=--wait -x=--exclude";

/// Reads the options of a line.
pub(super) fn read(line: &Line, options: &mut ScriptOptions) {
    if line.text.starts_with("hetjob") || line.text.starts_with("packjob") {
        options.note(format!(
            "`{}`: a job has one kind of task; submit each part as a separate job",
            line.text
        ));
        return;
    }
    for pair in pairs(line.words(), FLAGS, false) {
        let mut short = SHORT.split(' ').filter_map(|row| row.split_once('='));
        let long = short.find(|(short, _)| *short == pair.name);
        let name = long.map_or(pair.name.as_str(), |(_, long)| long);
        if has_word(WITHOUT_EFFECT, name) {
            continue;
        }
        if has_word(OF_WORKERS, name) {
            options.of_workers.push(pair.shown());
            continue;
        }
        let is_known = resource(name, &pair.value, options).or_else(|| other(name, &pair, options));
        if is_known.is_none() {
            options.untranslated(&pair.shown());
        }
    }
}

/// Applies an option about the resources of a task. Returns `None` if it is another option or its
/// value is invalid.
fn resource(name: &str, value: &str, options: &mut ScriptOptions) -> Option<()> {
    // `2-4` nodes means at least two.
    let number = || value.split('-').next()?.parse::<u32>().ok();
    let kib = || memory_kib(value, Plain::Mib);
    match name {
        "--nodes" => options.nodes = Some(number()?),
        "--ntasks" => options.tasks = Some(number()?),
        "--ntasks-per-node" | "--tasks-per-node" => options.tasks_per_node = Some(number()?),
        "--cpus-per-task" => options.cpus_per_task = Some(number()?),
        "--exclusive" => options.is_exclusive = true,
        "--mem" if kib()? == 0 => options.memory = Some(Memory::All),
        "--mem" => options.memory = Some(Memory::Node(kib()?)),
        "--mem-per-cpu" => options.memory = Some(Memory::Cpu(kib()?)),
        "--mem-per-gpu" => options.memory = Some(Memory::Gpu(kib()?)),
        "--gres" if !value.starts_with("gpu") => return None,
        "--gres" | "--gpus-per-node" => set_gpus(value, GpuUnit::Node, options)?,
        "--gpus" => set_gpus(value, GpuUnit::Job, options)?,
        "--gpus-per-task" => set_gpus(value, GpuUnit::Task, options)?,
        _ => return None,
    }
    Some(())
}

fn set_gpus(value: &str, per: GpuUnit, options: &mut ScriptOptions) -> Option<()> {
    let first = value.split(',').next()?;
    let (resource, count) = gpus(first)?;
    options.gpus = Some((resource, count, per));
    // hq does not distinguish these kinds.
    if let Some((_, rest)) = value.split_once(',') {
        options.untranslated(rest);
    }
    Some(())
}

fn other(name: &str, pair: &Pair, options: &mut ScriptOptions) -> Option<()> {
    let value = pair.value.as_str();
    let text = || (!value.is_empty()).then(|| value.to_owned());
    match name {
        "--job-name" => options.name = Some(text()?),
        "--array" => options.set_array(&text()?),
        "--time" if matches!(value, "UNLIMITED" | "INFINITE") => {}
        // A single field is minutes.
        "--time" => options.time = Some(seconds(value, 60, 1)?),
        "--output" => options.stdout = Some(path(value, options)),
        "--error" => options.stderr = Some(path(value, options)),
        "--input" => options.stdin = Some(text()?),
        "--chdir" => options.cwd = Some(text()?),
        "--dependency" => dependency(value, options),
        "--mail-user" => options.mail.address = Some(text()?),
        "--mail-type" => mail(value, options),
        "--export" => export(value, options),
        "--signal" => signal(value, options)?,
        "--no-requeue" => options.may_restart = Some(false),
        "--nice" => options.priority = Some(0_i32.saturating_sub(value.parse().unwrap_or(100))),
        "--wait" => options.waits = true,
        "--open-mode" if value == "truncate" => {}
        "--open-mode" => options.note("`--open-mode=append`: output replaces the file; it is not appended".to_owned()),
        "--time-min" | "--begin" | "--deadline" | "--hold" => options.note(format!(
            "`{}`: a job starts as soon as workers have free resources; `hq submit --after JOB` makes it wait for another",
            pair.shown()
        )),
        _ => return None,
    }
    Some(())
}

/// Translates placeholders. Elements of an array have their own job numbers, so `%j` becomes job
/// and task.
fn path(pattern: &str, options: &mut ScriptOptions) -> String {
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
            Some('j' | 'J') => path.push_str(super::script::JOB),
            Some('x') => path.push_str(super::script::NAME),
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
fn dependency(value: &str, options: &mut ScriptOptions) {
    if value.contains('?') {
        options.note(format!(
            "`--dependency={value}`: all conditions must hold, not just one"
        ));
    }
    for part in value.split([',', '?']) {
        let (kind, jobs) = part.split_once(':').unwrap_or((part, ""));
        let mut jobs = jobs.split(':').filter(|job| !job.is_empty());
        match kind {
            "afterok" => options.after.extend(jobs.map(|job| format!("{job}:ok"))),
            "afterany" => options.after.extend(jobs.map(|job| format!("{job}:any"))),
            "aftercorr" => options.after_each = jobs.next_back().map(str::to_owned),
            "" => {}
            _ => options.note(format!(
                "`--dependency={part}`: a job waits for the success (`--after JOB`) or for any end (`--after JOB:any`) of another"
            )),
        }
    }
}

fn mail(value: &str, options: &mut ScriptOptions) {
    for event in value.split(',') {
        match event.to_ascii_uppercase().as_str() {
            "NONE" => options.mail = super::script_options::Mail::default(),
            "END" => options.mail.at_end = true,
            "FAIL" => options.mail.at_failure = true,
            "ALL" => {
                options.mail.at_end = true;
                options.mail.at_failure = true;
            }
            _ => options.note(format!(
                "`--mail-type={event}`: mail is sent at the end of a job and at its first failure"
            )),
        }
    }
}

fn export(value: &str, options: &mut ScriptOptions) {
    for part in value.split(',') {
        match part.split_once('=') {
            Some((name, value)) => options.env.push((name.to_owned(), value.to_owned())),
            None if matches!(part, "ALL" | "") => {}
            None if matches!(part, "NONE" | "NIL") => options.passes_env = false,
            None => match std::env::var(part) {
                Ok(value) => options.env.push((part.to_owned(), value)),
                Err(_) => options.note(format!("`--export={part}`: it is not set here")),
            },
        }
    }
}

/// Parses `B:USR1@120`.
fn signal(value: &str, options: &mut ScriptOptions) -> Option<()> {
    // The letters are followed by a colon. Without it, they are part of a name, as in `BUS`.
    let value = match value.split_once(':') {
        Some(("R" | "B" | "RB" | "BR", signal)) => signal,
        Some(_) => return None,
        None => value,
    };
    let (signal, before) = value.split_once('@').unwrap_or((value, "60"));
    options.signal = Some((signal.to_owned(), before.parse().ok()?));
    Some(())
}
