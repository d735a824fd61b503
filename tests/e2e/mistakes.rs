//! Mistakes and habits of users: each message names the mistake and what to type instead.
//!
//! The table is the specification. Each line is typed as in a shell, and every text must be in the
//! output.

use crate::harness::{Env, wait_for};

/// The typed line, the texts of the answer, and the exit code.
type Mistake = (&'static str, &'static [&'static str], i32);

/// Subcommands of other programs, and misspelled ones. None of them needs a server.
#[rustfmt::skip] // A line for each mistake is a table.
const COMMANDS: &[Mistake] = &[
    ("ls", &["unrecognized subcommand 'ls'", "help: ", "`hq job list`"], 2),
    ("list", &["'list'", "`hq job list`"], 2),
    ("jobs", &["'jobs'", "`hq job list`"], 2),
    ("ps", &["'ps'", "`hq job list`"], 2),
    ("squeue", &["'squeue'", "`hq job list`"], 2),
    ("qstat", &["'qstat'", "`hq job list`"], 2),
    ("log 1", &["'log'", "`hq job cat JOB stdout`"], 2),
    ("logs 1", &["'logs'", "`hq job tail -f JOB`"], 2),
    ("cat 1", &["'cat'", "`hq job cat JOB stdout`"], 2),
    ("cancel 1", &["'cancel'", "`hq job cancel JOB`"], 2),
    ("kill 1", &["'kill'", "`hq job cancel JOB`"], 2),
    ("scancel 1", &["'scancel'", "`hq job cancel JOB`"], 2),
    ("qdel 1", &["'qdel'", "`hq job cancel JOB`"], 2),
    ("sbatch job.sh", &["'sbatch'", "`hq submit -- PROGRAM`"], 2),
    ("qsub job.sh", &["'qsub'", "`hq submit -- PROGRAM`"], 2),
    ("srun hostname", &["'srun'", "`hq run -- PROGRAM`"], 2),
    ("start", &["'start'", "`hq server start`", "`hq worker start`"], 2),
    ("stop", &["'stop'", "`hq server stop`"], 2),
    ("wait 1", &["'wait'", "`hq job wait JOB`"], 2),
    ("info 1", &["'info'", "`hq job info JOB`"], 2),
    ("nodes", &["'nodes'", "`hq worker list`"], 2),
    ("sinfo", &["'sinfo'", "`hq worker list`"], 2),
    ("workers", &["'workers'", "`hq worker list`"], 2),
    ("tasks 1", &["'tasks'", "`hq task list JOB`"], 2),
    ("why 1", &["'why'", "`hq task explain JOB.TASK`"], 2),
    ("retry 1", &["'retry'", "`hq job resubmit JOB --filter failed`"], 2),
    ("sacct", &["'sacct'", "`hq job stats JOB`"], 2),
    ("watch", &["'watch'", "`hq dashboard`"], 2),
    ("version", &["'version'", "`hq --version`"], 2),
    ("help", &["'help'", "`hq --help`", "`hq doc`"], 2),
    ("salloc", &["'salloc'", "`hq alloc add slurm"], 2),
    ("subimt -- true", &["'subimt'", "`hq submit`"], 2),
    ("serve start", &["'serve'", "`hq server`"], 2),
    ("job lst", &["'lst'", "`hq job list`"], 2),
    ("job list -- --all", &["`--all` comes after `--`", "leave out `--`"], 2),
    ("task list 1 -- --filter failed", &["leave out `--`"], 2),
    ("job info -- --all", &["leave out `--`"], 2),
    ("job ls", &["'ls'", "`hq job list`"], 2),
    ("job status 1", &["'status'", "`hq job info JOB`"], 2),
    ("job kill 1", &["'kill'", "`hq job cancel JOB`"], 2),
    ("job log 1", &["'log'", "`hq job cat JOB stdout`"], 2),
    ("job delete 1", &["'delete'", "`hq job forget JOB`"], 2),
    ("job rerun 1", &["'rerun'", "`hq job resubmit JOB --filter failed`"], 2),
    ("job errors 1", &["'errors'", "`hq job failures JOB`"], 2),
    ("task ls 1", &["'ls'", "`hq task list JOB`"], 2),
    ("task kill 1.2", &["'kill'", "`hq task cancel JOB.TASK`"], 2),
    ("task cancel 1", &["task 7 of job 3", "`hq job cancel 1`"], 2),
    ("task log 1", &["'log'", "`hq job cat JOB stdout --tasks TASK`"], 2),
    ("worker ls", &["'ls'", "`hq worker list`"], 2),
    ("worker kill 1", &["'kill'", "`hq worker stop WORKER`"], 2),
    ("worker add", &["'add'", "`hq worker start`"], 2),
    ("server status", &["'status'", "`hq server info`", "`hq status`"], 2),
    ("server restart", &["'restart'", "`hq server start`"], 2),
    ("server logs", &["'logs'", "server.log"], 2),
    ("alloc create", &["'create'", "`hq alloc add slurm"], 2),
    ("alloc ls", &["'ls'", "`hq alloc list`"], 2),
    ("sleep 1", &["'sleep'", "`hq run -- sleep`"], 2),
    ("get jobs", &["'get'", "`hq job list`"], 2),
    ("doc quickstrat", &["`quickstrat`", "`hq doc quickstart`"], 1),
    ("doc abracadabra", &["`abracadabra`", "`hq doc`"], 1),
    ("doc --open memory limit", &["Only a page", "`hq doc`"], 1),
];

/// Options of Slurm, PBS and GNU parallel, misspelled options, and conflicting options.
#[rustfmt::skip] // A line for each mistake is a table.
const OPTIONS: &[Mistake] = &[
    ("submit --gres=gpu:1 -- true", &["'--gres'", "`--resource gpus/nvidia=1`"], 2),
    ("submit --gpus 1 -- true", &["'--gpus'", "`--resource gpus/nvidia=1`"], 2),
    ("submit --job-name x -- true", &["'--job-name'", "`--name TEXT`"], 2),
    ("job submit --job-name x -- true", &["'--job-name'", "`--name TEXT`"], 2),
    ("submit --mem 4G -- true", &["'--mem'", "`--resource mem=4G`"], 2),
    ("submit --mem-per-cpu=4G -- true", &["'--mem-per-cpu'", "`--resource mem=4G`"], 2),
    ("submit -n 4 -- true", &["'-n'", "`--array 1-4`", "`--cpus 4`"], 2),
    ("submit --ntasks=4 -- true", &["'--ntasks'", "`--array 1-4`"], 2),
    ("submit -c 4 -- true", &["'-c'", "`--cpus 4`"], 2),
    ("submit --cpus-per-task=4 -- true", &["'--cpus-per-task'", "`--cpus 4`"], 2),
    ("submit -p fast -- true", &["'-p'", "`hq alloc add slurm", "--partition=NAME"], 2),
    ("submit --partition fast -- true", &["'--partition'", "`hq alloc add slurm"], 2),
    ("submit -A project -- true", &["'-A'", "`hq alloc add slurm"], 2),
    ("submit -N 2 -- true", &["'-N'", "`--nodes 2`"], 2),
    ("submit -t 10 -- true", &["'-t'", "`--time-limit 10min`"], 2),
    ("submit --timeout 5 -- true", &["'--timeout'", "`--time-limit 10min`"], 2),
    ("submit --time 5 -- true", &["'--time'", "`--time-limit 10min`"], 2),
    ("submit --dependency=afterok:1 -- true", &["'--dependency'", "`--after JOB:ok`"], 2),
    ("submit -d afterok:1 -- true", &["'-d'", "`--after JOB:ok`"], 2),
    ("submit -a 1-10 -- true", &["'-a'", "`--array 1-100`"], 2),
    ("submit -j 4 -- true", &["'-j'", "`--cpus 2`", "`hq run -j 8`"], 2),
    ("submit --jobs 4 -- true", &["'--jobs'", "`hq run -j 8`"], 2),
    ("submit --wrap 'sleep 1'", &["'--wrap'", "`hq submit -- bash -c 'LINE'`"], 2),
    ("submit -o out.txt -- true", &["'-o'", "`--stdout FILE`"], 2),
    ("submit --output out.txt -- true", &["'--output'", "`--stdout FILE`"], 2),
    ("submit -e err.txt -- true", &["'-e'", "`--stderr FILE`"], 2),
    ("submit --mail-user a@b.c -- true", &["'--mail-user'", "`--notify 'cmd:mail"], 2),
    ("submit --chdir /tmp -- true", &["'--chdir'", "`--cwd PATH`"], 2),
    ("submit --export=ALL -- true", &["'--export'", "`--env KEY=VALUE`"], 2),
    ("submit --exclusive -- true", &["'--exclusive'", "`--nodes 1`"], 2),
    ("submit --requeue -- true", &["'--requeue'", "`--retries 3`"], 2),
    ("submit -l select=1:ncpus=4 -- true", &["'-l'", "`--cpus 4 --resource mem=8G`"], 2),
    ("run --bar -- true", &["'--bar'", "`hq run` shows its progress"], 2),
    ("run --progress -- true", &["'--progress'", "`hq run` shows its progress"], 2),
    ("run --joblog x -- true", &["'--joblog'", "keeps no log"], 2),
    ("run -0 -- true", &["'-0'", "--each-line - --null"], 2),
    ("run --resume -- true", &["'--resume'", "`--outputs FILE --skip-done`"], 2),
    ("submit --ntasks-per-node 4 -- true", &["'--ntasks-per-node'", "`--cpus 4`"], 2),
    ("submit --from-csv x.csv -- true", &["'--from-csv'", "`--each-row FILE.csv -- PROGRAM {NAME}`"], 2),
    ("submit --each-line cmds", &["`cmds` is the list", "eval \"$HQ_ENTRY\""], 2),
    ("run --max-parallel 4 -- true", &["'--max-parallel'", "`hq run -j 8`"], 2),
    ("submit --resource mem=4GBytes -- true", &["Unknown unit `GBytes`: units are K, M, G and T"], 2),
    ("job cancel 5-2", &["`2-5`"], 2),
    ("submit --time-limit infinite -- true", &["without the option there is no time limit"], 2),
    ("job list -a", &["'-a'", "`hq job list --all`"], 2),
    ("job cat 1 stdout -f", &["'-f'", "`hq job tail -f JOB`"], 2),
    ("worker start -c 4", &["'-c'", "`hq worker start --cpus 8`"], 2),
    ("server start -d", &["'-d'", "`--background`"], 2),
    ("alloc add slurm --time-limit 1h --partition x", &["'--partition'", "follow `--`"], 2),
    ("-j 4 run -- true", &["'-j'", "options of tasks follow the command"], 2),
    ("submit --halt now,fail=1 -- true", &["'--halt'", "`--max-fails 0`"], 2),
    ("submit --bar -- true", &["'--bar'", "`--progress`"], 2),
    ("submit --arg-file list -- true", &["'--arg-file'", "`--each-line FILE`"], 2),
    ("run --mem 4G true", &["'--mem'", "`--resource mem=4G`"], 2),
    ("submit --arry 1-3 -- true", &["'--arry'", "`--array`"], 2),
    ("submit --cpu 2 -- true", &["'--cpu'", "`--cpus`"], 2),
    ("job list --al", &["'--al'", "`--all`"], 2),
    ("worker start --cpu 2", &["'--cpu'", "`--cpus`"], 2),
    ("job cancel 1 2", &["unexpected argument '2' found", "`hq job cancel 1,2`"], 2),
    ("submit", &["<COMMAND>...", "Usage: hq submit [OPTIONS] <COMMAND>...", "`hq submit --array 1-10 -- ./step`"], 2),
    ("run", &["<COMMAND>...", "`hq run --each-line FILE -- ./step`"], 2),
    ("job info", &["<JOBS>", "`last`"], 2),
    ("job cat 1", &["<STREAM>", "`hq job cat 1 stdout`"], 2),
    ("task explain 1", &["the ids of the tasks are missing", "`hq task list 3`"], 2),
    ("worker stop", &["<WORKERS>", "`hq worker list`"], 2),
    ("submit --wait --progress -- true", &["'--wait[=<UNTIL>]' cannot be used with '--progress'"], 2),
    ("submit --wait=good -- true", &["'good'", "[possible values: end, ok]"], 2),
    ("submit --cpus 1 --nodes 2 -- true", &["'--cpus <AMOUNT>' cannot be used with '--nodes <COUNT>'"], 2),
];

/// Impossible values.
#[rustfmt::skip] // A line for each mistake is a table.
const VALUES: &[Mistake] = &[
    ("submit --array 3-1 -- true", &["'3-1'", "Invalid range", "`--array 1-3`"], 2),
    ("submit --array 1..10 -- true", &["'1..10'", "Unexpected token `.`", "`--array 1-10`"], 2),
    ("submit --array 1,1-3 -- true", &["Ranges overlap", "`--array 1-100`"], 2),
    ("submit --array '' -- true", &["--array <IDS>"], 2),
    ("submit --array 1-10/2 -- true", &["Unexpected token `/`", "`--array 0-10:2`"], 2),
    ("submit --array all -- true", &["Unexpected token `a`", "`--array 1-100`"], 2),
    ("submit --cpus 0 -- true", &["Zero resources cannot be requested", "`--cpus 4`"], 2),
    ("submit --cpus 4G -- true", &["only `mem` has units", "`--resource mem=4G`"], 2),
    ("submit --resource mem=8000000000 -- true", &["without a unit it is MiB; write `4G`", "`--resource mem=4G`"], 2),
    ("submit --cpus two -- true", &["'two'", "`--cpus 4`"], 2),
    ("submit --cpus -1 -- true", &["'-1'", "`--cpus` takes an amount above 0"], 2),
    ("submit --array -1 -- true", &["'-1'", "`--array` takes ids from 0"], 2),
    ("submit --time-limit -5 -- true", &["'-5'", "`--time-limit` takes a duration such as `90s`"], 2),
    ("submit --time-limit 0 -- true", &["a time limit of 0 would end every task at once", "without the option there is no time limit"], 2),
    ("submit --time-limit 00:00:00 -- true", &["a time limit of 0 would end every task at once"], 2),
    ("run --time-limit 0s -- true", &["a time limit of 0 would end every task at once"], 2),
    ("alloc add slurm --time-limit 0", &["a time limit of 0 would end every task at once"], 2),
    ("submit --array 1-10%0 -- true", &["'1-10%0'", "found `0` after `%`", "`--array 1-100%5`"], 2),
    ("submit --cpus 500m -- true", &["'500m'", "`--cpus 0.5`"], 2),
    ("submit --after afterok:3 -- true", &["'afterok:3'", "`--after 3:ok`"], 2),
    ("submit --job 'Job 2 is open.' -- true", &["'Job 2 is open.'", "`--output-mode quiet`"], 2),
    ("job cancel 'Job submitted successfully, job ID: 1'", &["the id in this sentence is 1", "HQ_OUTPUT_MODE=quiet"], 2),
    ("job cancel slow", &["'slow'", "not by its name"], 2),
    ("job cancel '1 2'", &["'1 2'", "`1,2`"], 2),
    ("task explain 3/7", &["'3/7'", "did you mean `3.7`?"], 2),
    ("worker stop vm", &["'vm'", "not by its name"], 2),
    ("submit --resource mem=4X -- true", &["mem=4X", "`--resource mem=4G`"], 2),
    ("submit --resource gpu -- true", &["`gpu` has no `=`", "`--resource gpus/nvidia=1`"], 2),
    ("submit --resource gpus/nvidia=0 -- true", &["Zero resources", "`--resource gpus/nvidia=1`"], 2),
    ("submit --time-limit tomorrow -- true", &["'tomorrow'", "not a duration", "`90s`"], 2),
    ("submit --time-limit 5x -- true", &["'5x'", "`--time-limit 90s`"], 2),
    ("submit --priority high -- true", &["'high'", "expected a whole number", "`--priority 10`"], 2),
    ("submit --priority -5 -- true", &["'-5'", "`--priority=-5`"], 2),
    ("submit --max-fails -1 -- true", &["'-1'", "`--max-fails` takes a whole number from 0"], 2),
    ("submit --max-fails many -- true", &["'many'", "expected a whole number"], 2),
    ("submit --retries 100000 -- true", &["'100000'", "0..=65535"], 2),
    ("submit --crash-limit 0 -- true", &["Use `never-restart` or `unlimited` instead."], 2),
    ("submit --weight=-1 -- true", &["'-1'", "has to be positive number"], 2),
    ("submit --nodes x -- true", &["'x'", "expected a whole number"], 2),
    ("submit --env =x -- true", &["'=x'", "expected KEY=VALUE or KEY"], 2),
    ("submit --stdout a:remove -- true", &["unknown mode `remove`", "`rm-if-finished`"], 2),
    ("job list –all", &["type it as `--all`"], 2),
    ("job cancel last,all", &["`last` and `all` stand alone"], 2),
    ("job submit-file", &["`hq job submit-file FILE.toml`"], 2),
    ("submit --pin cores -- true", &["'cores'", "[possible values: taskset, omp]"], 2),
    ("submit --directives on -- true", &["'on'", "[possible values: auto, file, stdin, off]"], 2),
    ("submit --after x -- true", &["'x'", "--after"], 2),
    ("submit --retry-on foo -- true", &["foo", "--retry-on"], 2),
    ("submit --stop-signal FOO -- true", &["'FOO'", "--stop-signal"], 2),
    ("submit --notify a@b.c -- true", &["a@b.c", "cmd:"], 2),
    ("run -j 0 true", &["'0'", "expected a whole number from 1"], 2),
    ("job list --filter done", &["'done'", "possible values: waiting, running, finished"], 2),
    ("job cat 1 output", &["'output'", "[possible values: stdout, stderr]"], 2),
    ("job info abc", &["'abc'", "`last`", "`hq job list --all`"], 2),
    ("task explain 1 x", &["'x'", "expected number"], 2),
    ("worker start --cpus x", &["'x'", "--cpus"], 2),
    ("worker start --cpus 0", &["CPUs must have identity", "`--cpus 1`"], 1),
    ("worker stop first", &["'first'", "`hq worker list`"], 2),
    ("server start --http nowhere", &["'nowhere'", "`--http=0.0.0.0:8080`"], 2),
    ("server start --http=nowhere", &["'nowhere'", "0.0.0.0:8080"], 2),
    ("server start --worker-port 99999", &["'99999'", "0..=65535"], 2),
    ("--output-mode yaml job list", &["'yaml'", "[possible values: cli, json, quiet]"], 2),
];

/// Lines typed without any server.
#[rustfmt::skip] // A line for each mistake is a table.
const NO_SERVER: &[Mistake] = &[
    ("job list", &["No server is running", "`hq server start --server-dir", "`hq run …`"], 1),
    ("submit -- true", &["No server is running", "`hq server start", "`hq run …`"], 1),
    ("--server-dir /proc/nosuch job list", &["\"/proc/nosuch\" is not a directory", "Check `--server-dir`", "`hq server start --server-dir /proc/nosuch`"], 1),
    ("server stop", &["No server is running", "`hq server start"], 1),
    ("run -- ./nope", &["./nope", "No such file or directory"], 1),
    ("run --cpus 6400 -- true", &["6400"], 1),
    ("run absent.toml", &["absent.toml", "No such file or directory"], 1),
];

/// Lines typed with a server that has a worker, one ended job with three tasks, and one that waits
/// forever.
#[rustfmt::skip] // A line for each mistake is a table.
const WITH_SERVER: &[Mistake] = &[
    // Ids that do not exist.
    ("job info 999", &["Job 999 not found", "`hq job list --all`"], 1),
    ("job cancel 999", &["job not found", "`hq job list --all`"], 1),
    ("job close 999", &["job not found", "`hq job list --all`"], 1),
    ("job wait 999", &["Job 999 not found", "`hq job list --all`"], 1),
    ("job progress 999", &["Job 999 not found", "`hq job list --all`"], 1),
    ("job cat 999 stdout", &["Job 999 was not found", "`hq job list --all`"], 1),
    ("job tail 999", &["999", "not found"], 1),
    ("job stats 999", &["999", "not found", "`hq job list --all`"], 1),
    ("job resubmit 999", &["job not found", "`hq job list --all`"], 1),
    ("job task-ids 999", &["not found"], 1),
    ("task list 999", &["Job 999 not found", "`hq job list --all`"], 1),
    ("task info 999 0", &["Cannot find job 999", "`hq job list --all`"], 1),
    ("task info 1 9999", &["Task 9999 not found", "job 1 has these tasks: 1-3"], 1),
    ("task list 1 --tasks 9999", &["Task 9999 of job 1 not found", "job 1 has these tasks: 1-3"], 1),
    ("job cat 1.9 stdout", &["Task 9 of job 1 not found", "job 1 has these tasks: 1-3"], 1),
    ("job tail 1.9", &["Task 9 of job 1 not found", "job 1 has these tasks: 1-3"], 1),
    ("job tail -f 1.8-9", &["Task 8 of job 1 not found", "job 1 has these tasks: 1-3"], 1),
    ("job tail 1.3-4", &["Task 4 of job 1 not found", "job 1 has these tasks: 1-3"], 1),
    ("task explain 1 2-3", &["`hq task explain 1.2`"], 2),
    ("task explain 999 0", &["Job not found", "`hq job list --all`"], 1),
    ("task explain 2 9999", &["Task not found", "job 2 has these tasks: 0"], 1),
    ("worker info 999", &["Worker 999 not found", "`hq worker list --all`"], 1),
    ("worker stop 999", &["worker not found", "`hq worker list --all`"], 1),
    ("worker drain 999", &["worker not found", "`hq worker list --all`"], 1),
    ("worker address 999", &["Worker 999 not found", "`hq worker list --all`"], 1),
    ("submit --job 999 -- true", &["Job 999 not found", "`hq job list --all`"], 1),
    ("submit --after 999 -- true", &["999", "not found", "`hq job list --all`"], 1),
    ("alloc info 9", &["9", "not found"], 1),
    ("submit --job 1 -- true", &["Job 1 is not opened.", "help: tasks can be added to a job that `hq job open` made"], 1),
    // Files.
    ("submit piepline.toml", &["piepline.toml does not exist", "did you mean `pipeline.toml`?"], 1),
    ("submit --each-line list.gz -- true", &["list.gz: expected lines of text, but it is compressed with gzip", "`zcat list.gz | hq run --each-line - -- PROGRAM {}`"], 1),
    ("submit --from-json list.gz -- true", &["not JSON, but compressed with gzip", "`zcat list.gz | hq … --from-json -`"], 1),
    ("job submit-file wide.toml", &["expected UTF-8", "it is text in UTF-16: `iconv"], 1),
    ("job submit-file t.sh", &["t.sh is a script", "`hq submit t.sh`"], 1),
    ("run pipeline.toml sub", &["`sub` comes after it", "`hq run pipeline.toml`"], 1),
    ("submit ./nosuch.sh", &["./nosuch.sh does not exist", "`--directives off`"], 1),
    ("submit --each-line nope -- true", &["nope", "No such file or directory"], 1),
    ("submit --from-json object.json -- true", &["object.json", "has to be an array"], 1),
    ("job submit-file absent.toml", &["absent.toml", "No such file or directory", "paths are relative to this directory"], 1),
    ("job submit-file typo.tmol", &["did you mean `typo.toml`?"], 1),
    ("job submit-file dir/absent.toml", &["the directory `dir` does not exist"], 1),
    ("job submit-file .", &["name a file in it"], 1),
    ("report typo.toml", &["is not a report, so it is not replaced", "`hq report FILE.html`"], 1),
    ("query typo.toml", &["`hq query - < typo.toml`"], 1),
    ("query ''", &["The query is empty"], 1),
    ("submit --wait 10m true", &["`10m` is taken as the program", "`timeout 10m hq job wait last`"], 1),
    ("submit --progress 10 -- true", &["`--progress` takes no value"], 1),
    ("query 'select'", &["`hq query --list`"], 1),
    ("submit –-cpus=4 -- true", &["type it as `--cpus=4`"], 1),
    ("job submit-file params.csv", &["params.csv is a table, not a job file", "`hq submit --each-row params.csv -- PROGRAM`"], 1),
    ("job submit-file wf.py", &["wf.py is a program, not a job file", "`hq submit python3 wf.py`"], 1),
    ("job submit-file pipeline.toml ./t.sh", &["without a program or arguments: `hq job submit-file pipeline.toml`"], 2),
    ("job submit-file empty.yaml", &["No tasks defined", "`  - command: [\"./step\", \"input.txt\"]`"], 1),
    ("job submit-file table.yaml", &["(key `task`)", "put `- ` in front of the first key of each item; write `command: [\"echo\", \"hi\"]`"], 1),
    ("job submit-file ids.toml", &["Items 'ids' and 'entries' does not match", "3 `ids` and 2 `entries`"], 1),
    ("output-log . cat 1 stdout", &["Error: No log files found", "`hq job cat JOB stdout`"], 1),
    ("server start --journal . --server-dir other", &["found a directory", "`--journal ./journal`"], 1),
    ("submit ./options.sh", &["unexpected argument '--wait'", "line 3, `#HQ --array=1-3 --wait`", "`hq submit --wait ./options.sh`"], 1),
    ("submit ./comment.sh", &["unexpected argument '#'", "line 2, ", "a `#HQ` line has no comments"], 1),
    ("submit ./cpu.sh", &["line 2, `#HQ --cpu=2`: did you mean `--cpus`?"], 1),
    ("submit ./mem.sh", &["line 2, `#HQ --mem=2G`: set the memory of each task with `--resource mem=4G`"], 1),
    ("job submit-file text.toml", &["expected a sequence", "`command = [\"sort\", \"-u\"]`", "text.toml:2:11"], 1),
    ("job submit-file typo.toml", &["unknown field `comand`", "did you mean `command`?"], 1),
    ("job submit-file open.toml", &["unclosed array", "open.toml:2"], 1),
    ("submit --stdout %{JOBID}.out -- true", &["unknown placeholder `JOBID`", "`%{JOB_ID}`"], 1),
    ("submit --stderr e-%{task_id} -- true", &["unknown placeholder `task_id`", "`%{TASK_ID}`"], 1),
    ("submit --cwd %{CWD} -- true", &["working directory placeholder"], 1),
    ("submit --array 1-2 slurm.sh", &["slurm.sh has 2 #SBATCH lines, which hq does not read", "`#HQ --array 1-4 --resource mem=2G`"], 0),
    ("submit pbs.sh", &["pbs.sh has 1 #PBS line, which hq does not read", "`#HQ --cpus 4 --resource mem=8G`"], 0),
    // Submits that cannot run.
    ("submit --cpus 64 -- true", &["No connected worker can run", "they ask for 64 cpus, no worker has more than 2"], 0),
    ("submit --resource gpu/nvidia=1 -- true", &["they ask for 1 of gpu/nvidia, no worker has any", "did you mean `gpus/nvidia`"], 0),
    ("submit --resource mem=4194304 -- true", &["they ask for 4096.00 GiB of memory, no worker has more than 1000 MiB", "see `hq doc resources`"], 0),
    ("submit --resource mem=900000 -- true", &["no worker has more than 1000 MiB; was `mem=900000K` meant? Without a unit it is MiB"], 0),
    ("submit --resource mem=800G -- true", &["was `mem=800M` meant?"], 0),
    ("job submit-file huge.toml", &["was `mem=800M` meant?"], 0),
    ("submit --resource gpus/intel=all -- true", &["all gpus/intel, no worker has any"], 0),
    ("submit --nodes 99 -- true", &["they request 99 nodes, and the largest group has 1"], 0),
    ("submit --cpus 8 --resource gpus/amd=1 -- true", &["8 cpus, no worker has more than 2", "1 GPU (gpus/amd), no worker has any"], 0),
    // A server is already running.
    ("server start", &["is already online", "hq server stop"], 1),
    ("job cancel 1", &["all tasks are already finished"], 0),
    // The right thing in the wrong place.
    ("token revoke hq_0123456789012345678901234567890123456789012345678901234567890123", &["a token itself", "`hq token list`"], 1),
    ("token create 'my laptop'", &["`my laptop` cannot be the name", "`my-laptop`"], 1),
    ("problems --acknowledge 4", &["there is no problem `4`", "such as `job-4-waits`"], 1),
    ("--server-dir srv/001/access.json job list", &["name the directory where the server started", "`--server-dir srv`"], 1),
    ("import empty.yaml", &["empty.yaml is empty", "`hq import empty.yaml > new.sh`"], 1),
    ("import --submit slurm.sh --array=1-5", &["`hq import --submit --options '--array=1-5' slurm.sh`", "`hq import --submit slurm.sh -- --array=1-5`"], 1),
    ("import slurm.sh --array 1-5", &["`hq import --options '--array 1-5' slurm.sh`"], 1),
    ("import --submit slurm.sh --wait", &["`--wait` its argument", "`hq import --submit --options '--wait' slurm.sh`"], 1),
    ("import slurm.sh 1 2", &["arguments need `--submit`", "`hq import --submit slurm.sh -- 1 2`"], 1),
    ("import sbatch slurm.sh", &["the first word, `sbatch`, is the script"], 1),
    ("import --system slurm pbs.sh", &["pbs.sh has #PBS lines and no #SBATCH lines", "leave out `--system`"], 1),
    ("worker deploy-ssh node1 node2", &["Cannot load hostfile from node1", "`printf '%s\\n' node1 node2 | hq worker deploy-ssh -`"], 1),
    ("submit --stream t.sh -- true", &["`t.sh` is a file", "`--stream DIR`"], 1),
    ("job submit-file stream.toml", &["`t.sh` is a file", "`--stream DIR`"], 1),
    ("journal export slog", &["There is no journal in `slog`", "`hq output-log slog show`"], 1),
    ("query 'delete from jobs'", &["cannot modify jobs", "a query only reads", "`hq job forget JOB`"], 1),
    ("query 'drop table jobs'", &["only SELECT is possible", "a query only reads"], 1),
    ("alloc remove 7", &["Allocation queue not found", "`hq alloc list`"], 1),
    ("alloc log 1 stdout", &["Allocation 1 not found", "`hq alloc info QUEUE`"], 1),
    ("import --submit slurm.sh -- --array=1-5", &["submitted"], 0),
    ("generate-man pages.1", &["the directory pages.1", "`man -l pages.1/hq.1`"], 0),
    // Something that does not exist, or a part only.
    ("output-log nosuch cat 1 stdout", &["No log files found", "the directory `nosuch` does not exist"], 1),
    ("output-log slog show --job 99", &["Job 99 not found", "`hq output-log DIR jobs`"], 1),
    ("output-log slog cat 4 stdout --task 0", &["Task 0 not found", "job 4 has the output of these tasks: 1-2"], 1),
    ("job resubmit 3", &["Resubmitting job 3 failed; it has no tasks"], 1),
    ("task explain 1.1", &["Task 1.1 has finished; `hq task info 1.1`"], 1),
    ("query --row-limit 1 'select * from jobs'", &["Only the first 1 rows are printed; `--row-limit N` prints more"], 0),
    ("query --csv --output-mode json 'select 1'", &["two formats: leave out one"], 2),
    ("journal prune", &["are no longer in the journal"], 0),
];

fn words(line: &str) -> Vec<String> {
    shlex::split(line).expect("quotes are closed")
}

/// Types each line and reports all deviations.
fn type_all(env: &Env, mistakes: &[Mistake]) {
    let mut wrong = Vec::new();
    for (typed, said, code) in mistakes {
        let words = words(typed);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let ran = env.hq(&words);
        let printed = format!("{}{}", ran.stdout, ran.stderr);
        let missing: Vec<_> = said
            .iter()
            .filter(|text| !printed.contains(**text))
            .collect();
        if !missing.is_empty() || ran.code != Some(*code) {
            wrong.push(format!(
                "`hq {typed}` ends with {:?} and does not say {missing:?}:\n{printed}",
                ran.code
            ));
        }
        assert!(!printed.contains("invalid digit"), "{printed}");
    }
    assert!(
        wrong.is_empty(),
        "{} of {}:\n{}",
        wrong.len(),
        mistakes.len(),
        wrong.join("\n")
    );
}

#[test]
fn foreign_commands_options_and_values_get_the_one_right_answer() {
    let env = Env::new();
    type_all(&env, COMMANDS);
    type_all(&env, OPTIONS);
    type_all(&env, VALUES);
    assert!(
        COMMANDS.len() + OPTIONS.len() + VALUES.len() + NO_SERVER.len() + WITH_SERVER.len() > 104
    );
}

#[test]
fn without_a_server_two_commands_are_named() {
    type_all(&Env::new(), NO_SERVER);
}

#[test]
fn what_does_not_exist_or_cannot_run_is_named_with_a_way_out() {
    let mut env = Env::new();
    env.start_server();
    env.start_worker_with(&[
        "--cpus=2",
        "--resource=gpus/nvidia=[0]",
        "--resource=mem=1000M",
    ]);
    env.submit(&["--array=1-3", "--wait", "--", "true"]);
    env.submit(&["--cpus=99", "--", "true"]);
    env.hq(&["job", "open"]).ok();
    env.submit(&["--stream=slog", "--array=1-2", "--wait", "--", "echo", "x"]);
    std::fs::create_dir_all(env.path("srv/001")).expect("a directory");
    env.write("srv/001/access.json", "{}");
    env.write("object.json", "{}");
    env.write(
        "stream.toml",
        "stream = \"t.sh\"\n[[task]]\ncommand = [\"true\"]\n",
    );
    env.write("pipeline.toml", "[[task]]\ncommand = [\"true\"]\n");
    env.write("list.gz", b"\x1f\x8b\x08\0");
    env.write("wide.toml", b"\xff\xfe[\0");
    env.write("t.sh", "#!/bin/sh\ntrue\n");
    env.write("text.toml", "[[task]]\ncommand = \"sort -u\"\n");
    env.write("params.csv", "a,b\n1,2\n");
    env.write("wf.py", "import os\n");
    env.write("empty.yaml", "");
    env.write("table.yaml", "task:\n  command: echo hi\n  cpus: 1\n");
    env.write(
        "ids.toml",
        "[array]\nids = \"1-3\"\nentries = [\"a\", \"b\"]\ncommand = [\"true\"]\n",
    );
    env.write(
        "options.sh",
        "#!/bin/sh\n#HQ --cpus 1\n#HQ --array=1-3 --wait\n",
    );
    env.write("comment.sh", "#!/bin/sh\n#HQ --time-limit=1h # long\n");
    env.write("cpu.sh", "#!/bin/sh\n#HQ --cpu=2\n");
    env.write("mem.sh", "#!/bin/sh\n#HQ --mem=2G\n");
    env.write("typo.toml", "[[task]]\ncomand = [\"true\"]\n");
    env.write(
        "huge.toml",
        "[[task]]\ncommand = [\"true\"]\n[[task.request]]\nresources = { mem = \"800G\" }\n",
    );
    env.write("open.toml", "[[task]]\ncommand = [\"true\"\n");
    env.write(
        "slurm.sh",
        "#!/bin/bash\n#SBATCH --array=1-4\n#SBATCH --mem=2G\ntrue\n",
    );
    env.write(
        "pbs.sh",
        "#!/bin/bash\n#PBS -l select=1:ncpus=4:mem=8gb\ntrue\n",
    );
    type_all(&env, WITH_SERVER);
}

/// Without a worker, a request is compared with the largest worker so far.
#[test]
fn what_is_larger_than_anything_so_far_is_told_with_the_unit_that_was_meant() {
    let mut env = Env::new();
    env.start_server();
    let typed = ["submit", "--resource", "mem=900000", "--", "true"];
    assert_eq!(env.hq(&typed).says("Job submitted").stderr, "");
    env.start_worker_with(&["--cpus=2", "--resource=mem=sum(1000)"]);
    env.hq(&["worker", "stop", "all"]).ok();
    wait_for("the worker to be gone", || {
        let running = env.hq(&["worker", "list", "--output-mode=quiet"]).ok();
        if running.is_empty() {
            Ok(())
        } else {
            Err(running)
        }
    });
    let said = env.hq(&typed).stderr;
    let text = "No worker so far could have run tasks of job 2: they ask for 878.90 GiB of memory, \
                the most ever offered is 1000 MiB; was `mem=900000K` meant?";
    assert!(said.contains(text), "{said}");
    let fits = env.hq(&["submit", "--resource", "mem=900", "--", "true"]);
    assert_eq!(fits.stderr, "");
}

#[test]
fn errors_do_not_repeat_very_long_words() {
    let env = Env::with_worker(1);
    let long = "x".repeat(74_000);
    let ids = format!("1,{}", "2,".repeat(37_000));
    for args in [
        &["job", "cancel", &long][..],
        &["job", "cancel", &ids],
        &["job", "info", "last", &long],
        &["submit", "--array", &long, "--", "true"],
        &["submit", "--resource", &long, "--", "true"],
        &["submit", "--time-limit", &long, "--", "true"],
        &["submit", "--pin", &long, "--", "true"],
        &["submit", &format!("--{long}"), "--", "true"],
        &["submit", "--each-line", &long, "--", "true"],
        &["task", "explain", &long, "0"],
        &["query", &format!("select {long}")],
        &[&long],
    ] {
        for mode in ["cli", "json"] {
            let ran = env.hq(&[args, &["--output-mode", mode]].concat());
            let printed = ran.stdout.len() + ran.stderr.len();
            let start: String = ran.stderr.chars().take(200).collect();
            assert!(ran.code != Some(0), "{args:.100?}");
            assert!(
                printed < 20_000,
                "{printed} bytes: {:.60?} {start}",
                args[0]
            );
        }
    }
}

#[test]
fn a_wait_says_what_it_waits_for_and_how_it_ended() {
    let mut env = Env::new();
    env.start_server();
    let job = env.submit(&["--", "false"]);
    env.spawn("waiting", &["job", "wait", &job, "--ok"]);
    let told = "Waiting for job 1: 0 of 1 task ended, 0 running: no worker is connected; start one with `hq worker start`";
    wait_for("the wait says why", || {
        let log = env.read("waiting.log");
        log.contains(told).then_some(()).ok_or(log)
    });
    env.start_worker(1);
    assert_eq!(env.wait_exit("waiting"), Some(1));
    let log = env.read("waiting.log");
    let end = "Job 1 failed: 1 of 1 task failed; task 0: Program terminated with exit code 1; `hq job cat 1 stderr --tasks 0`";
    assert!(log.contains(end), "{log}");
    // The exit code is that of the wait, unless the exit code of the job is requested.
    env.hq(&["submit", "--wait", "--", "./nope"])
        .exits_with(0)
        .says("Job 2 failed: 1 of 1 task failed; task 0: Cannot execute \"./nope\"")
        .says("`hq task info 2.0` shows more");
    env.hq(&["submit", "--wait=ok", "--", "false"])
        .exits_with(1);
    env.hq(&["submit", "--wait=ok", "--", "true"]).exits_with(0);
    env.hq(&["job", "wait", "1"]).exits_with(0);
    let json = env.hq(&["submit", "--wait=ok", "--output-mode=json", "--", "false"]);
    let json = json.exits_with(1);
    assert_eq!(
        (json.stdout.as_str(), json.stderr.as_str()),
        ("{\n  \"id\": 5\n}\n", "")
    );
    // The last line of a task's output says more than its exit code.
    let script = "echo no input $HQ_TASK_ID >&2; exit 3";
    let several = [
        "submit",
        "--progress",
        "--array=1-3",
        "--",
        "sh",
        "-c",
        script,
    ];
    let expected = "3 of 3 tasks failed; task 1: Program terminated with exit code 3: no input 1; `hq job cat ";
    // If a worker is too busy to answer in time, the line is left out.
    wait_for("the end of a wait has the last words of a task", || {
        let told = env.hq(&several).stderr;
        let has_all = told.contains(expected) && told.contains("says why all failed");
        has_all.then_some(()).ok_or(told)
    });
    let listed = env.hq(&["job", "list", "--all", "--progress"]).ok();
    assert!(listed.contains("| Ended | Failed | Left |"), "{listed}");
}

#[test]
fn a_wait_says_for_which_job_a_worker_keeps_free_resources() {
    let mut env = Env::with_worker(2);
    let busy = env.submit(&["--", "sleep", "600"]);
    env.wait_running(&busy, 1);
    let wide = env.submit(&["--priority=5", "--cpus=2", "--", "true"]);
    let small = env.submit(&["--", "true"]);
    let kept = "orker 1 keeps its free resources for job 2, which is more urgent";
    wait_for("the explanation names the job", || {
        let told = env.hq(&["task", "explain", &small, "0"]).ok();
        told.contains(kept).then_some(()).ok_or(told)
    });
    let told = env.hq(&["task", "explain", &wide, "0"]).ok();
    assert!(!told.contains("keeps its free"), "{told}");
    env.spawn("waiting", &["job", "wait", &small]);
    wait_for("the wait names the job", || {
        let log = env.read("waiting.log");
        log.contains(kept).then_some(()).ok_or(log)
    });
    env.hq(&["job", "cancel", "all"]).ok();
    assert_eq!(env.wait_exit("waiting"), Some(0));
}

#[test]
fn a_worker_waits_for_the_server_that_is_started_beside_it() {
    let mut env = Env::new();
    env.spawn("worker", &["worker", "start", "--cpus=1"]);
    wait_for("the worker says what it waits for", || {
        let log = env.read("worker.log");
        let told =
            log.contains("Waiting up to 10 s for a server") && log.contains("`hq server start");
        told.then_some(()).ok_or(log)
    });
    env.start_server();
    wait_for("the worker is there", || {
        let workers = env.workers();
        (workers == ["RUNNING"])
            .then_some(())
            .ok_or(format!("{workers:?}"))
    });
    let log = env.read("server.log");
    assert!(
        log.contains("The server is ready. To start a worker on a node, run `hq worker start"),
        "{log}"
    );
}

#[test]
fn status_and_problems_say_how_it_is_going_and_what_is_wrong() {
    let mut env = Env::new();
    env.start_server();
    env.hq(&["status"])
        .exits_with(0)
        .says("Workers   none; `hq worker start` starts one")
        .says("Problems  none");
    env.hq(&["problems"])
        .exits_with(0)
        .says("Nothing is wrong.");
    env.start_worker(2);
    env.submit(&["--array=1-5", "--wait", "--", "false"]);
    let busy = env.submit(&["--name=busy", "--array=1-2", "--", "sleep", "600"]);
    env.wait_running(&busy, 2);
    env.submit(&["--name=behind", "--array=1-3", "--", "true"]);
    env.submit(&["--name=large", "--cpus=64", "--", "true"]);
    env.hq(&["status"])
        .exits_with(0)
        .says("Workers   1 connected; 2 of 2 cpus busy")
        .says("Tasks     2 running, 4 waiting, 5 failed")
        .says("Jobs      3 unfinished of 4")
        .says("2  busy                      [....................] 0/2, 2 run")
        .says("waits: all 2 cpus are busy")
        .says("Starving job 4 large: its waiting task does not run: it asks for 64 cpus, no worker has more than 2")
        .says("1 ended job had problems; `hq problems --all` shows them");
    env.hq(&["problems", "--all"])
        .exits_with(0)
        .says("-        Failing job 1 false: 5 of 5 tasks failed, mostly: exit code 1; ")
        .says("`hq job failures 1` shows why")
        .says("`hq task explain -v 4.TASK`");
    let problems = env.json(&["problems"]);
    assert_eq!(problems[0]["id"], 4);
    assert_eq!(problems[1]["kind"], "failing-job");
    let status = env.json(&["status"]);
    assert_eq!(status["tasks"]["running"], 2);
    assert_eq!(status["unfinished_jobs"][1]["name"], "behind");
    assert_eq!(
        env.hq(&["problems", "--output-mode=quiet"]).ok(),
        "starving-job 4\nfailing-job 1\n"
    );
    env.hq(&["job", "cancel", "all"]).ok();
}
