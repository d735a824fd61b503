//! Words that people bring along from Slurm, PBS, GNU parallel and other tools, and what they are called here.
//!
//! The parser of the command line proposes what is spelled alike, which is wrong for habits: `--job-name` is not
//! `--job`. Each of these words has one answer.

/// A foreign word, and its name here. Both parts are Markdown without line breaks.
pub(super) struct Habit {
    /// The word, or several that mean the same.
    words: &'static [&'static str],
    /// The text to type instead.
    answer: &'static str,
}

const fn habit(words: &'static [&'static str], answer: &'static str) -> Habit {
    Habit { words, answer }
}

/// Options of `submit` and `run`.
const OPTIONS: &[Habit] = &[
    habit(
        &[
            "--gres",
            "--gpus",
            "--gpus-per-task",
            "--gpus-per-node",
            "-G",
        ],
        "GPUs are resources: `--resource gpus/nvidia=1`, see `hq doc resources`",
    ),
    habit(
        &["--job-name", "--jobname"],
        "the name of a job is `--name TEXT`",
    ),
    habit(
        &["--mem", "--memory", "--mem-per-cpu", "--mem-per-task"],
        "memory of each task is `--resource mem=4G`, see `hq doc resources`",
    ),
    habit(
        &["-n", "--ntasks", "--tasks"],
        "`--array 1-4` makes four tasks, `--cpus 4` one task with four cpus",
    ),
    habit(
        &[
            "-c",
            "--cpus-per-task",
            "--ncpus",
            "--ppn",
            "--cores",
            "--threads",
        ],
        "cpus of each task are `--cpus 4`",
    ),
    habit(
        &["-N"],
        "whole nodes for each task are `--nodes 2`, a name is `--name TEXT`",
    ),
    habit(
        &[
            "-p",
            "--partition",
            "--queue",
            "-q",
            "--qos",
            "-A",
            "--account",
        ],
        "jobs have no partition; it belongs to the workers: `hq alloc add slurm --time-limit 1h -- --partition=NAME`, see `hq doc slurm`",
    ),
    habit(
        &["--timeout", "--time", "-t", "--walltime"],
        "the longest run of each task is `--time-limit 10min`",
    ),
    habit(
        &["--dependency", "-d", "--depend"],
        "a job that starts after another is `--after JOB:ok` (Slurm's `afterok`) or `--after JOB:any` (`afterany`), see `hq doc dependencies`",
    ),
    habit(
        &["-a"],
        "a task for each number is `--array 1-100`, for each line of a file `--each-line FILE`",
    ),
    habit(
        &["--arg-file"],
        "a task for each line of a file is `--each-line FILE`",
    ),
    habit(
        &["-j", "--jobs", "--max-procs", "-P"],
        "cpus decide how many tasks run at once: `--cpus 2` for each task, `hq worker start --cpus 8` for a worker; `hq run -j 8` limits a run on this machine",
    ),
    habit(
        &["--wrap"],
        "a line for the shell is a command: `hq submit -- bash -c 'LINE'`",
    ),
    habit(
        &["-o", "--output"],
        "standard output goes to `--stdout FILE`",
    ),
    habit(&["-e", "--error"], "standard error goes to `--stderr FILE`"),
    habit(
        &["--mail-user", "--mail-type", "-M", "-m", "--mail"],
        "the server tells of a job with `--notify 'cmd:mail -s hq you@example.org'`, see `hq doc notifications`",
    ),
    habit(
        &["-D", "--chdir", "--workdir", "--wd"],
        "the working directory of the tasks is `--cwd PATH`",
    ),
    habit(
        &["--export", "-v", "-V", "-x"],
        "variables for the tasks are `--env KEY=VALUE`; others come from the worker, not from this shell",
    ),
    habit(
        &["--exclusive"],
        "a whole node for each task is `--nodes 1`",
    ),
    habit(
        &["--requeue", "--no-requeue", "-r", "--retry"],
        "failed tasks are tried again with `--retries 3`; after a lost worker tasks run again by themselves (`--crash-limit`), see `hq doc retries`",
    ),
    habit(
        &["--halt", "--fail-fast"],
        "a job gives up with `--max-fails 0` after its first failure",
    ),
    habit(
        &["-k", "--keep-order"],
        "`hq run` prints in the order of the tasks, unless told `--unordered`",
    ),
    habit(
        &["--bar", "--eta", "--verbose"],
        "the state of the tasks is shown with `--progress`",
    ),
    habit(
        &["--joblog"],
        "how long tasks took is shown by `hq job stats JOB`",
    ),
    habit(
        &["-l", "--select"],
        "`-l select=1:ncpus=4:mem=8gb` is `--cpus 4 --resource mem=8G`, `-l walltime` is `--time-limit`",
    ),
    habit(
        &["-J"],
        "the name of a job is `--name TEXT`; an array is `--array 1-100`",
    ),
    habit(
        &["--nice"],
        "what runs first is decided by `--priority 10`; negative numbers are written `--priority=-10`",
    ),
    habit(
        &["--begin", "--at"],
        "a job starts when workers have room; `--after JOB` makes it wait for another",
    ),
    habit(
        &["--constraint", "-C", "--nodelist", "-w"],
        "tasks find a worker by its resources: `hq worker start --resource 'ssd=sum(1)'` and `hq submit --resource ssd=1`",
    ),
    habit(
        &["--parsable", "--json"],
        "programs read `--output-mode json`, shell scripts `--output-mode quiet`",
    ),
    habit(
        &["--follow", "-f"],
        "`hq submit --wait` waits, and `hq job tail -f JOB` prints what tasks write",
    ),
];

/// Subcommands, with the group that is in front of them.
const COMMANDS: &[(&str, Habit)] = &[
    (
        "",
        habit(
            &["ls", "list", "jobs", "queue", "squeue", "qstat", "ps"],
            "jobs are listed by `hq job list`, those that have ended too with `--all`",
        ),
    ),
    (
        "",
        habit(
            &["log", "logs", "output", "cat", "out"],
            "what tasks wrote is printed by `hq job cat JOB stdout`, and as it comes by `hq job tail -f JOB`",
        ),
    ),
    (
        "",
        habit(
            &["tail", "follow"],
            "what tasks write is printed by `hq job tail -f JOB`",
        ),
    ),
    (
        "",
        habit(
            &["cancel", "kill", "scancel", "qdel", "abort", "delete", "rm"],
            "jobs are canceled by `hq job cancel JOB`",
        ),
    ),
    (
        "",
        habit(
            &[
                "sbatch",
                "qsub",
                "srun",
                "exec",
                "parallel",
                "job-submit",
                "sub",
            ],
            "jobs are submitted by `hq submit -- PROGRAM`; `hq run -- PROGRAM` needs no server",
        ),
    ),
    (
        "",
        habit(
            &["start", "up", "init", "daemon"],
            "`hq server start` starts a server, `hq worker start` a worker",
        ),
    ),
    (
        "",
        habit(
            &["stop", "down", "shutdown", "quit"],
            "`hq server stop` ends the server and its workers, `hq job cancel JOB` a job",
        ),
    ),
    ("", habit(&["wait"], "`hq job wait JOB` waits for a job")),
    (
        "",
        habit(
            &["info", "show", "scontrol", "describe"],
            "`hq job info JOB` shows a job, `hq server info` the server",
        ),
    ),
    (
        "",
        habit(
            &["nodes", "sinfo", "workers", "pbsnodes"],
            "workers are listed by `hq worker list`",
        ),
    ),
    (
        "",
        habit(&["tasks"], "tasks are listed by `hq task list JOB`"),
    ),
    (
        "",
        habit(
            &["explain", "why"],
            "why a task waits is told by `hq task explain JOB.TASK`, and for all jobs by `hq problems`",
        ),
    ),
    (
        "",
        habit(
            &["resubmit", "retry", "rerun", "restart", "requeue"],
            "tasks of a job run again with `hq job resubmit JOB --filter failed`",
        ),
    ),
    (
        "",
        habit(
            &["stats", "sacct", "history", "top"],
            "what tasks took is shown by `hq job stats JOB`, all that happens by `hq dashboard`",
        ),
    ),
    (
        "",
        habit(
            &["watch", "monitor", "ui", "web", "gui"],
            "all that happens is shown by `hq dashboard`, in a browser with `--web`",
        ),
    ),
    (
        "",
        habit(
            &["progress"],
            "`hq job progress JOB` shows a bar, `hq status` everything",
        ),
    ),
    (
        "",
        habit(&["version"], "the version is printed by `hq --version`"),
    ),
    (
        "",
        habit(
            &["help", "man", "docs", "manual"],
            "`hq --help` lists the commands, `hq doc` the pages of the manual, `hq COMMAND --help` explains one",
        ),
    ),
    (
        "",
        habit(
            &["completion", "completions"],
            "`hq generate-completion bash` prints a completion script, see `hq doc shell`",
        ),
    ),
    (
        "",
        habit(
            &["allocate", "salloc", "autoalloc", "allocation"],
            "workers are asked of Slurm or PBS by `hq alloc add slurm --time-limit 1h`",
        ),
    ),
    (
        "",
        habit(&["sql", "db"], "the state is asked in SQL by `hq query`"),
    ),
    (
        "",
        habit(
            &["check", "diagnose"],
            "`hq doctor` checks this machine, `hq problems` says what is wrong with the jobs",
        ),
    ),
    (
        "job",
        habit(
            &["ls", "show-all", "queue"],
            "jobs are listed by `hq job list`",
        ),
    ),
    (
        "job",
        habit(
            &["status", "show", "describe", "state"],
            "a job is shown by `hq job info JOB`",
        ),
    ),
    (
        "job",
        habit(
            &["log", "logs", "output", "stdout", "stderr", "print"],
            "what tasks wrote is printed by `hq job cat JOB stdout`",
        ),
    ),
    (
        "job",
        habit(
            &["follow"],
            "what tasks write is printed by `hq job tail -f JOB`",
        ),
    ),
    (
        "job",
        habit(
            &["kill", "stop", "abort", "scancel"],
            "jobs are canceled by `hq job cancel JOB`",
        ),
    ),
    (
        "job",
        habit(
            &["delete", "rm", "remove", "clean"],
            "jobs that have ended are forgotten by `hq job forget JOB`, others canceled by `hq job cancel JOB`",
        ),
    ),
    (
        "job",
        habit(
            &["retry", "rerun", "restart", "requeue"],
            "tasks run again with `hq job resubmit JOB --filter failed`",
        ),
    ),
    (
        "job",
        habit(&["tasks", "task"], "tasks are listed by `hq task list JOB`"),
    ),
    (
        "job",
        habit(
            &["run", "start", "create", "new", "add"],
            "jobs are submitted by `hq submit -- PROGRAM`, open ones made by `hq job open`",
        ),
    ),
    (
        "job",
        habit(
            &["errors", "failed"],
            "failures are shown by `hq job failures JOB`, and what was written by `hq job cat JOB stderr --filter failed`",
        ),
    ),
    (
        "task",
        habit(
            &["ls", "status", "show"],
            "tasks are listed by `hq task list JOB`, one is shown by `hq task info JOB.TASK`",
        ),
    ),
    (
        "task",
        habit(
            &["log", "logs", "cat", "output", "tail"],
            "what a task wrote is printed by `hq job cat JOB stdout --tasks TASK`",
        ),
    ),
    (
        "task",
        habit(
            &["kill", "cancel", "stop"],
            "tasks are canceled with their job: `hq job cancel JOB`",
        ),
    ),
    (
        "task",
        habit(
            &["why"],
            "why a task waits is told by `hq task explain JOB.TASK`",
        ),
    ),
    (
        "worker",
        habit(
            &["ls", "status", "show"],
            "workers are listed by `hq worker list`, one is shown by `hq worker info WORKER`",
        ),
    ),
    (
        "worker",
        habit(
            &["kill", "remove", "rm", "delete", "cancel"],
            "workers are ended by `hq worker stop WORKER`, after what they run by `hq worker drain WORKER`",
        ),
    ),
    (
        "worker",
        habit(
            &["add", "run", "new", "connect", "join"],
            "a worker is started by `hq worker start`",
        ),
    ),
    (
        "server",
        habit(
            &["status", "show", "ls", "list"],
            "the server is shown by `hq server info`, what it does by `hq status`",
        ),
    ),
    (
        "server",
        habit(
            &["restart", "reload", "resume"],
            "a server goes on with `hq server stop --keep-workers` and `hq server start`",
        ),
    ),
    (
        "server",
        habit(
            &["kill", "shutdown", "down"],
            "the server and its workers are ended by `hq server stop`",
        ),
    ),
    (
        "server",
        habit(
            &["run", "up", "daemon"],
            "a server is started by `hq server start`, in the background with `--background`",
        ),
    ),
    (
        "server",
        habit(
            &["log", "logs"],
            "a server prints its messages; those of `hq server start --background` are in `server.log` of its directory",
        ),
    ),
    (
        "alloc",
        habit(
            &["ls", "show", "status"],
            "queues are listed by `hq alloc list`, allocations of one by `hq alloc info QUEUE`",
        ),
    ),
    (
        "alloc",
        habit(
            &["create", "new", "start", "submit"],
            "a queue is made by `hq alloc add slurm --time-limit 1h`",
        ),
    ),
    (
        "alloc",
        habit(
            &["delete", "rm", "cancel", "stop"],
            "a queue is removed by `hq alloc remove QUEUE`, stopped for a while by `hq alloc pause QUEUE`",
        ),
    ),
];

/// The answer to an option that other tools have. `--mem=4G` counts as `--mem`, `-n4` as `-n`.
pub(super) fn of_option(path: &[&str], word: &str) -> Option<&'static str> {
    if !matches!(path, ["submit"] | ["job", "submit"] | ["run"]) {
        return None;
    }
    let name = word.split('=').next().unwrap_or(word);
    let is_one = |habit: &&Habit| {
        habit.words.iter().any(|known| {
            // The value of a short option may follow without a blank.
            *known == name
                || (known.len() == 2 && name.starts_with(known) && !name.starts_with("--"))
        })
    };
    OPTIONS.iter().find(is_one).map(|habit| habit.answer)
}

/// The answer to a subcommand that other tools have.
pub(super) fn of_command(path: &[&str], word: &str) -> Option<&'static str> {
    let group = path.first().copied().unwrap_or_default();
    let found = COMMANDS
        .iter()
        .find(|(of, habit)| *of == group && habit.words.contains(&word));
    found.map(|(_, habit)| habit.answer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args;

    /// Every command that an answer names exists, with the options that it is shown with.
    #[test]
    fn what_is_proposed_can_be_typed() {
        let answers = OPTIONS
            .iter()
            .chain(COMMANDS.iter().map(|(_, habit)| habit))
            .map(|habit| habit.answer);
        for answer in answers {
            for shown in answer.split('`').skip(1).step_by(2) {
                let Some(line) = shown.strip_prefix("hq ") else {
                    continue;
                };
                let line = line
                    .replace("JOB.TASK", "1.1")
                    .replace(" JOB", " 1")
                    .replace(" TASK", " 1")
                    .replace(" QUEUE", " 1")
                    .replace(" WORKER", " 1")
                    .replace("COMMAND --help", "--version");
                let words = shlex::split(&format!("hq {line}")).expect("closed quotes");
                let parsed = args::command().try_get_matches_from(&words);
                // A command line without its last word is an example of an option.
                let is_part = |error: &clap::Error| {
                    use clap::error::ErrorKind;
                    matches!(
                        error.kind(),
                        ErrorKind::DisplayHelp | ErrorKind::MissingRequiredArgument
                    )
                };
                if let Err(error) = parsed {
                    assert!(is_part(&error), "`{shown}` in {answer:?}: {error}");
                }
            }
        }
    }

    #[test]
    fn no_word_has_two_answers_or_is_ours() {
        let mut seen = std::collections::BTreeSet::new();
        for habit in OPTIONS {
            for word in habit.words {
                assert!(seen.insert(("option", "", *word)), "{word}");
            }
        }
        let root = args::built_command();
        for (group, habit) in COMMANDS {
            let command = match *group {
                "" => &root,
                name => root.find_subcommand(name).expect("a group"),
            };
            for word in habit.words {
                assert!(seen.insert(("command", group, *word)), "{group} {word}");
                assert!(command.find_subcommand(word).is_none(), "{group} {word}");
            }
        }
    }
}
