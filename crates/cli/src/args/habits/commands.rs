//! Subcommands of other tools.

use super::{Habit, habit};

/// Subcommands, with the group that is in front of them.
pub(super) const COMMANDS: &[(&str, Habit)] = &[
    (
        "",
        habit(
            &["scale"],
            "workers are started by `hq worker start` or asked of Slurm or PBS by `hq alloc add slurm --time-limit 1h`",
        ),
    ),
    (
        "",
        habit(
            &["get", "describe-job", "inspect"],
            "jobs are listed by `hq job list`, workers by `hq worker list`; one is shown by `hq job info JOB`",
        ),
    ),
    (
        "",
        habit(
            &["apply", "create", "submit-file", "array"],
            "a job file is submitted by `hq job submit-file FILE.toml`, a program by `hq submit -- PROGRAM`",
        ),
    ),
    (
        "",
        habit(
            &["xargs", "map", "foreach", "for-each"],
            "a task for each line is `hq run --each-line FILE -- PROGRAM {}`",
        ),
    ),
    (
        "",
        habit(
            &["drain", "cordon"],
            "a worker ends after its tasks with `hq worker drain WORKER`",
        ),
    ),
    (
        "",
        habit(
            &["failures", "errors", "failed"],
            "failures of a job are shown by `hq job failures JOB`",
        ),
    ),
    (
        "",
        habit(
            &["summary"],
            "counts of jobs by state are shown by `hq job summary`, a report is written by `hq report`",
        ),
    ),
    (
        "",
        habit(
            &[
                "ls", "list", "jobs", "queue", "squeue", "bjobs", "condor_q", "sprio", "qstat",
                "ps",
            ],
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
            &["tail", "follow", "sattach", "attach"],
            "what tasks write is printed by `hq job tail -f JOB`",
        ),
    ),
    (
        "",
        habit(
            &[
                "cancel",
                "kill",
                "scancel",
                "qdel",
                "bkill",
                "condor_rm",
                "abort",
                "delete",
                "rm",
            ],
            "jobs are canceled by `hq job cancel JOB`",
        ),
    ),
    (
        "",
        habit(
            &[
                "sbatch",
                "qsub",
                "bsub",
                "condor_submit",
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
            &["stats", "sacct", "sstat", "sreport", "history", "top"],
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
