//! Options of other tools.

use super::{Habit, habit, habit_of};

/// Options. The first row that is about the command counts.
pub(super) const OPTIONS: &[Habit] = &[
    habit_of(
        &["run"],
        &["-v", "--volume", "--mount"],
        "tasks see the files of this machine: nothing is mounted; `--debug` logs in more detail",
    ),
    habit_of(
        &["run"],
        &["-d", "--detach", "--background", "--bg", "--daemon"],
        "`hq run` stays until its tasks have ended; `hq submit` returns at once, and its jobs continue, see `hq doc quickstart`",
    ),
    habit_of(
        &["run"],
        &["-i", "--interactive", "--tty", "-it"],
        "tasks have no terminal; `--stdin` gives them what `hq run` reads, and xargs' `-i` is `{}` without an option",
    ),
    habit_of(
        &["run"],
        &[
            "-u",
            "--ungroup",
            "--lb",
            "--line-buffer",
            "--linebuffer",
            "--tag",
            "--tagstring",
        ],
        "`hq run` prints the output of a task when it ends, as a whole; `--unordered` does not wait for earlier tasks",
    ),
    habit_of(
        &["run"],
        &["-a"],
        "xargs' `-a FILE` is `--each-line FILE`; tasks with numbers are `--array 1-100`",
    ),
    habit(
        &["-S", "--sshlogin", "--sshloginfile", "--slf"],
        "other machines are workers of a server: `hq worker deploy-ssh HOSTFILE --server-dir DIR`, see `hq doc workers`",
    ),
    habit(
        &["--pipe", "--pipepart", "--block"],
        "a task has one line of input in `$HQ_ENTRY`; `split` makes files of larger pieces, and `--each-line FILE` takes their names",
    ),
    habit(
        &["--link", "--xapply"],
        "a parameter with `+` goes along with the one before: `--param x=a,b --param +y=1,2`",
    ),
    habit(
        &["--memfree", "--memsuspend"],
        "set the memory of each task with `--resource mem=4G`",
    ),
    habit(
        &["--restart-times", "--max-retries", "--attempts"],
        "failed tasks are tried again with `--retries 3`",
    ),
    habit(
        &["--config", "--configfile", "--profile"],
        "defaults of options stand in a file, see `hq config` and `hq doc config`; parameters of tasks are `--param lr=0.1,0.01`",
    ),
    habit(
        &[
            "--use-conda",
            "--conda",
            "--module",
            "--use-singularity",
            "--sdm",
        ],
        "what a task needs is set up in its command: `bash -c 'module load NAME; PROGRAM'`",
    ),
    habit(
        &[
            "--forceall",
            "--force",
            "-F",
            "-B",
            "--always-make",
            "--forcerun",
            "-R",
        ],
        "every task runs, unless `--skip-done` is given",
    ),
    habit(
        &["-W"],
        "`--wait` stays until the job has ended; `-W depend=afterok:3` is `--after 3:ok`",
    ),
    habit(
        &["-H", "--hold"],
        "a job starts when workers have room; `--after JOB` makes it wait for another",
    ),
    habit(
        &[
            "--reservation",
            "--licenses",
            "-L",
            "--gres-flags",
            "--hint",
            "--cluster",
            "--clusters",
        ],
        "that belongs to the workers: `hq alloc add slurm --time-limit 1h -- --reservation=NAME`, see `hq doc slurm`",
    ),
    habit(
        &["--quiet", "-Q", "--silent"],
        "`--output-mode quiet` prints the bare minimum",
    ),
    habit(
        &["--replicas", "--completions", "--count"],
        "`--array 1-4` makes four tasks",
    ),
    habit_of(
        &["run"],
        &["-x", "-X"],
        "fd's `-x` is `fd PATTERN | hq run --each-line - -- PROGRAM {}`",
    ),
    habit_of(
        &["run"],
        &["--bar", "--eta", "--progress", "--verbose"],
        "`hq run` shows its progress on a terminal without being asked",
    ),
    habit_of(
        &["run"],
        &["--joblog"],
        "`hq run` keeps no log of its tasks; `hq run --output-mode json` prints counts and failures, and with a server `hq job stats JOB` shows how long tasks took",
    ),
    habit_of(
        &["run"],
        &["--wait", "--follow", "-f"],
        "`hq run` ends when its tasks have ended, and prints what they write",
    ),
    habit_of(
        &["run"],
        &["--after", "--dependency", "--depend"],
        "`hq run` has one job only; tasks that wait for each other are described in a job file, see `hq doc dependencies`",
    ),
    habit_of(
        &["run"],
        &["--job", "--notify"],
        "that needs a server: `hq submit` has it, see `hq doc quickstart`",
    ),
    habit_of(
        &["run"],
        &[
            "-n",
            "--cores",
            "-c",
            "--threads",
            "--max-workers",
            "-P",
            "--max-procs",
        ],
        "`hq run -j 8` uses 8 cpus, `--cpus 4` gives each task four; xargs' `-n 1` is `--each-line FILE` with `{}` in the command, make's `-n` is `--dry-run`",
    ),
    habit(
        &["-0", "--null", "--print0"],
        "entries are lines: `find . -print0 | tr '\\0' '\\n' | hq run --each-line - -- PROGRAM {}`",
    ),
    habit(
        &["-I", "--replace", "-J%"],
        "`{}` is the line without an option: `hq run --each-line FILE -- PROGRAM {}`",
    ),
    habit(
        &["--max-lines", "--max-args", "--xargs"],
        "a task has one line: `hq run --each-line FILE -- PROGRAM {}`; `split -l 10 FILE` makes files of ten lines",
    ),
    habit(
        &[
            "--colsep",
            "--csv",
            "--from-csv",
            "--header",
            "--tsv",
            "--table",
        ],
        "columns are not split into parameters; `--each-line FILE` gives a task its whole line in `$HQ_ENTRY`, and `--param 'a=@FILE' --param '+b=@OTHER'` reads two files side by side",
    ),
    habit(
        &["--from-jsonl", "--jsonl", "--json-lines"],
        "`jq -s . FILE.jsonl > FILE.json` makes an array of JSON lines, which `--from-json FILE.json` reads",
    ),
    habit(
        &[
            "--resume",
            "--resume-failed",
            "--rerun-incomplete",
            "--rerun-triggers",
        ],
        "with `--outputs FILE --skip-done` tasks are left out whose outputs are there; `hq job resubmit JOB --filter failed` runs failed tasks again",
    ),
    habit(
        &[
            "--dryrun",
            "--dry_run",
            "--just-print",
            "--test-only",
            "--recon",
        ],
        "`--dry-run` shows what would run",
    ),
    habit(
        &["--keep-going", "--ignore-errors"],
        "other tasks continue after a failure, unless you give `--max-fails 0`",
    ),
    habit(
        &[
            "--ntasks-per-node",
            "--tasks-per-node",
            "--ntasks-per-core",
            "--cpus-per-gpu",
            "--cpus-per-node",
        ],
        "what each task asks for decides how many run on a node: `--cpus 4`",
    ),
    habit(
        &[
            "--array-limit",
            "--max-running",
            "--throttle",
            "--max-concurrent",
            "--max-parallel",
            "--max-jobs",
            "--parallel",
            "--concurrency",
            "--parallelism",
            "--limit",
            "--load",
        ],
        "cpus decide how many tasks run at once: `--cpus 2` for each task, `hq run -j 8` or `hq worker start --cpus 8` for all",
    ),
    habit(
        &["--snakefile", "--file", "--makefile", "-s"],
        "a file with tasks is a job file: `hq job submit-file FILE.toml`, `hq run FILE.toml`, see `hq doc dependencies`",
    ),
    habit(
        &[
            "--rm",
            "--detach",
            "--restart",
            "--volume",
            "--mount",
            "--image",
            "--container",
            "--network",
        ],
        "hq starts programs as they are; a container is part of the command: `hq submit -- apptainer run image.sif ./step`",
    ),
    habit(
        &["--comment", "--label", "--tag", "-b"],
        "a job has a name: `--name TEXT`",
    ),
    habit(
        &["--signal"],
        "`--stop-signal SIGTERM --stop-grace 30s` asks tasks to end",
    ),
    habit(
        &["--delay", "--sleep"],
        "tasks start as soon as there is room for them; only a retry waits, see `--retry-delay 10s`",
    ),
    habit(
        &["--input"],
        "`--stdin` gives each task what `hq` reads from standard input: `hq submit --stdin -- PROGRAM < FILE`",
    ),
    habit(
        &["--shell", "--use-shell", "--exec"],
        "`hq submit -- bash -c 'LINE'` runs a shell command line",
    ),
    habit(
        &["--user", "-u", "--uid"],
        "tasks run as the user who started the worker",
    ),
    habit(
        &["--results", "--outputs-dir", "--output-dir"],
        "output goes to `--stdout FILE`, or of all tasks into one directory with `--stream DIR`",
    ),
    habit(
        &["--tmpdir", "--tmp", "--scratch"],
        "a private directory for each task is `--task-dir`, see `hq doc jobs`",
    ),
    habit_of(
        &[
            "job list",
            "job info",
            "task list",
            "worker list",
            "status",
            "problems",
            "server info",
            "job",
            "task",
            "worker",
            "alloc",
        ],
        &["--json", "--format", "-o", "--output", "--parsable", "-O"],
        "use `--output-mode json` for JSON, and `--output-mode quiet` in shell scripts",
    ),
    habit_of(
        &["job list"],
        &["-a", "-A"],
        "`hq job list --all` also lists jobs that have ended",
    ),
    habit_of(
        &["job list"],
        &[
            "--state",
            "--states",
            "-t",
            "--status",
            "--running",
            "--failed",
            "--finished",
            "--waiting",
            "--pending",
            "-r",
        ],
        "`hq job list --filter running,failed` lists the jobs in these states",
    ),
    habit_of(
        &["job list"],
        &["-u", "--user", "--me", "--users"],
        "a server has the jobs of one user: `hq job list`",
    ),
    habit_of(
        &["job list", "status"],
        &["-w", "--watch", "-i", "--iterate", "-f", "--follow"],
        "`hq dashboard` shows changes as they come, `hq job progress JOB` the progress of a job; `watch hq status` works, too",
    ),
    habit_of(
        &["job list"],
        &["-n", "--name", "--jobs", "-j", "-l", "--long"],
        "`hq job info JOB` shows one job, and `hq job list --all` lists all",
    ),
    habit_of(
        &[
            "task list",
            "job cat",
            "job task-ids",
            "job resubmit",
            "job forget",
        ],
        &[
            "--state",
            "--status",
            "--failed",
            "--running",
            "--only-failed",
            "-t",
        ],
        "`--filter failed` selects tasks by state",
    ),
    habit_of(
        &["job cancel"],
        &["-f", "--force", "-9", "--signal", "-s", "--now"],
        "`hq job cancel JOB` tells tasks to end and kills them after their `--stop-grace`",
    ),
    habit_of(
        &["job cancel"],
        &[
            "--tasks", "--task", "-t", "--state", "-u", "--user", "--name", "-n",
        ],
        "jobs are canceled as a whole: `hq job cancel JOB`, `hq job cancel last`, `hq job cancel all`",
    ),
    habit_of(
        &["job wait", "job progress"],
        &["--timeout", "-t", "--time"],
        "the shell ends a wait: `timeout 10m hq job wait JOB`",
    ),
    habit_of(
        &["job wait"],
        &["--progress", "--bar"],
        "`hq job progress JOB` also waits, and shows a bar",
    ),
    habit_of(
        &[
            "job wait",
            "job cancel",
            "job progress",
            "job close",
            "job forget",
            "job info",
            "job resubmit",
            "task list",
            "worker stop",
            "worker drain",
            "worker info",
        ],
        &["--all", "-a", "--last"],
        "`all` and `last` are words in place of ids: `hq job wait all`, `hq job info last`, `hq worker stop all`",
    ),
    habit_of(
        &["job submit-file"],
        &[
            "--array",
            "--cpus",
            "--param",
            "--each-line",
            "--name",
            "--resource",
            "--env",
            "--time-limit",
            "--nodes",
            "--cwd",
            "--stdout",
            "--stderr",
            "--max-fails",
            "--retries",
            "--priority",
            "--pin",
            "--from-json",
        ],
        "a job file describes its tasks itself: write it into the file, see `hq doc dependencies`; only `hq submit` takes options for a command",
    ),
    habit_of(
        &["job cat"],
        &["-f", "--follow", "-n", "--lines", "--tail"],
        "`hq job tail -f JOB` follows the output of tasks",
    ),
    habit_of(
        &["job cat", "job tail"],
        &["--stdout", "--stderr", "-e"],
        "the stream is a word: `hq job cat JOB stderr`; `hq job tail JOB --channel stderr`",
    ),
    habit_of(
        &["job cat", "job tail"],
        &["--task", "-t", "--task-id"],
        "`hq job cat JOB stdout --tasks 1-3` and `hq job tail JOB.7` select tasks",
    ),
    habit_of(
        &["worker start"],
        &[
            "-c",
            "--cores",
            "--ncpus",
            "--threads",
            "-j",
            "--jobs",
            "-n",
            "--num-cpus",
            "--nthreads",
            "--cpus-per-task",
        ],
        "use `hq worker start --cpus 8` to set the cpus of a worker; by default it detects all",
    ),
    habit_of(
        &["alloc add slurm", "alloc add pbs"],
        &["--dry-run"],
        "a queue begins with a trial submission; `--no-dry-run` leaves it out",
    ),
    habit_of(
        &["worker start"],
        &["--mem", "--memory", "--memory-limit"],
        "memory of a worker is detected; another amount is `hq worker start --resource 'mem=sum(8G)'`",
    ),
    habit_of(
        &["worker start"],
        &["--gpus", "--gres", "-G", "--num-gpus"],
        "GPUs are detected; others are `hq worker start --resource 'gpus/nvidia=[0,1]'`",
    ),
    habit_of(
        &["worker start"],
        &["--nodes", "-N", "--count", "--nworkers", "--workers"],
        "a worker is one process on one node: start one on each, as with `srun hq worker start` or `hq alloc add slurm --time-limit 1h`",
    ),
    habit_of(
        &["worker start"],
        &["--server", "--host", "--scheduler", "--address", "--url"],
        "the server is found by its directory: `hq worker start --server-dir DIR`",
    ),
    habit_of(
        &["worker start"],
        &["--walltime", "--time", "--timeout", "-t"],
        "a worker ends after `hq worker start --time-limit 2h`",
    ),
    habit_of(
        &["server start", "worker start"],
        &["-d", "--daemon", "--detach", "--daemonize", "--bg", "-b"],
        "in the background it runs with `--background`",
    ),
    habit_of(
        &["server start"],
        &["-p", "--port", "--bind", "--listen"],
        "ports are `--client-port 5000 --worker-port 5001`, that of the web page is `--http=8080`",
    ),
    habit_of(
        &["server start"],
        &["--dir", "--data-dir", "--workdir"],
        "the directory of a server is `hq server start --server-dir DIR`",
    ),
    habit_of(
        &["alloc add slurm", "alloc add pbs"],
        &[
            "--partition",
            "-p",
            "--account",
            "-A",
            "--qos",
            "-q",
            "--queue",
            "--constraint",
            "-C",
            "--gres",
            "--mem",
            "--exclusive",
            "--reservation",
            "-l",
        ],
        "options of the batch system follow `--`: `hq alloc add slurm --time-limit 1h -- --partition=NAME`",
    ),
    habit_of(
        &["alloc add slurm", "alloc add pbs"],
        &["--time", "--walltime"],
        "the walltime of an allocation is `--time-limit 1h`",
    ),
    habit_of(
        &["alloc add slurm", "alloc add pbs"],
        &["--nodes", "-N", "-n", "--ntasks"],
        "nodes of an allocation are `--max-workers-per-alloc 2`",
    ),
    habit_of(
        &["doc"],
        &["--list", "-l", "--index"],
        "`hq doc` lists the pages",
    ),
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
        "set the memory of each task with `--resource mem=4G`, see `hq doc resources`",
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
        "set the cpus of each task with `--cpus 4`",
    ),
    habit(
        &["-N"],
        "use `--nodes 2` for whole nodes for each task, and `--name TEXT` for a name",
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
        "a partition, an account and a queue belong to the workers: `hq alloc add slurm --time-limit 1h -- --partition=NAME`, see `hq doc slurm`",
    ),
    habit(
        &["--timeout", "--time", "-t", "--walltime"],
        "limit the run of each task with `--time-limit 10min`",
    ),
    habit(
        &["--dependency", "-d", "--depend"],
        "to start a job after another, use `--after JOB:ok` (Slurm's `afterok`) or `--after JOB:any` (`afterany`), see `hq doc dependencies`",
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
        "`hq submit -- bash -c 'LINE'` runs a shell command line",
    ),
    habit(
        &["-o", "--output"],
        "standard output goes to `--stdout FILE`",
    ),
    habit(
        &["-e", "--error"],
        "standard error goes to `--stderr FILE`; a variable of the tasks is `--env KEY=VALUE`",
    ),
    habit(
        &["--mail-user", "--mail-type", "-M", "-m", "--mail"],
        "`--notify 'cmd:mail -s hq you@example.org'` sends a mail about a job, see `hq doc notifications`",
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
        "`hq run` prints output in the order of the tasks, unless you give `--unordered`, and continues after a failure, unless you give `--max-fails 0`",
    ),
    habit(
        &["--bar", "--eta", "--verbose"],
        "the state of the tasks is shown with `--progress`",
    ),
    habit(
        &["--joblog"],
        "`hq job stats JOB` shows how long tasks took",
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
        "`--priority 10` decides which task runs first; write a negative number as `--priority=-10`",
    ),
    habit(
        &["--begin", "--at"],
        "a job starts when workers have room; `--after JOB` makes it wait for another",
    ),
    habit(
        &["--constraint", "-C", "--nodelist", "-w"],
        "tasks find a worker by its resources: `hq worker start --resource 'ssd=sum(1)'` and `hq submit --resource ssd=1`; the working directory is `--cwd PATH`",
    ),
    habit(
        &["--parsable", "--json"],
        "use `--output-mode json` for JSON, and `--output-mode quiet` in shell scripts",
    ),
    habit(
        &["--follow", "-f"],
        "`hq submit --wait` waits, and `hq job tail -f JOB` prints what tasks write",
    ),
];
