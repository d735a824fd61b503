//! The options of other tools.

/// For each list of commands: words of other tools, and what to type instead. The first row that
/// applies to the command is used. `#` means numbers, and `*` any word that is not an option.
pub(super) const OPTIONS: &str = r"
[run]
-v --volume --mount: tasks see the files of this machine: nothing is mounted; `--debug` logs in more detail
-d --detach --background --bg --daemon: `hq run` stays until its tasks have ended; `hq submit` returns at once, and its jobs continue, see `hq doc quickstart`
-i --interactive --tty -it: tasks have no terminal; `--stdin` gives them what `hq run` reads, and xargs' `-i` is `{}` without an option
-u --ungroup --lb --line-buffer --linebuffer --tag --tagstring: `hq run` prints the output of a task when it ends, as a whole; `--unordered` does not wait for earlier tasks
-a: xargs' `-a FILE` is `--each-line FILE`; tasks with numbers are `--array 1-100`
-x -X: fd's `-x` is `fd PATTERN | hq run --each-line - -- PROGRAM {}`
--bar --eta --progress --verbose: `hq run` shows its progress on a terminal without being asked
--joblog: `hq run` keeps no log of its tasks; `hq run --output-mode json` prints counts and failures, and with a server `hq job stats JOB` shows how long tasks took
--wait --follow -f: `hq run` ends when its tasks have ended, and prints what they write
--after --dependency --depend: `hq run` has one job only; tasks that wait for each other are described in a job file, see `hq doc dependencies`
--job --notify: that needs a server: `hq submit` has it, see `hq doc quickstart`
-n --cores -c --threads --max-workers -P --max-procs: `hq run -j 8` uses 8 cpus, `--cpus 4` gives each task four; xargs' `-n 1` is `--each-line FILE` with `{}` in the command, make's `-n` is `--dry-run`
[job list, job info, task list, worker list, status, problems, server info, job, task, worker, alloc]
--json --format -o --output --parsable -O: use `--output-mode json` for JSON, and `--output-mode quiet` in shell scripts
[job list]
-a -A: `hq job list --all` also lists jobs that have ended
--state --states -t --status --running --failed --finished --waiting --pending -r: `hq job list --filter running,failed` lists the jobs in these states
-n --name --jobs -j -l --long: `hq job info JOB` shows one job, and `hq job list --all` lists all
[job list, job info, job summary, task list, status, problems]
-u --user --me --users: a server runs the jobs of one user: `hq job list` lists yours, and `hq status` counts their tasks
[status, problems]
--job --jobs --id -j: it examines all jobs: `hq job info JOB` shows one job, `hq job failures JOB` its failures, and `hq task explain JOB.TASK` why a task waits
[job list, status]
-w --watch -i --iterate -f --follow: `hq dashboard` shows changes as they come, `hq job progress JOB` the progress of a job; `watch hq status` works, too
[task list, job cat, job task-ids, job resubmit, job forget]
--state --status --failed --running --only-failed -t: `--filter failed` selects tasks by state
[job cancel]
-f --force -9 --signal -s --now: `hq job cancel JOB` tells tasks to end and kills them after their `--stop-grace`
--tasks --task -t --state -u --user --name -n: jobs are canceled as a whole: `hq job cancel JOB`, `hq job cancel last`, `hq job cancel all`
[job wait, job progress]
--timeout -t --time: the shell ends a wait: `timeout 10m hq job wait JOB`
[job wait]
--progress --bar: `hq job progress JOB` also waits, and shows a bar
[job wait, job cancel, job progress, job close, job forget, job info, job resubmit, task list, worker stop, worker drain, worker info]
--all -a --last: `all` and `last` are words in place of ids: `hq job wait all`, `hq job info last`, `hq worker stop all`
[job resubmit]
--cpus --resource --time-limit --time-request --priority --nodes --env --cwd: tasks keep their requests; with others, submit them anew: `hq submit --cpus 2 -- PROGRAM`, and `hq job info JOB` shows the command
--tasks --task: tasks are chosen by their state: `hq job resubmit JOB --filter failed`
[config]
--edit --list --set --get --global: it only shows defaults; they are written in a file, see `hq doc config`
[query]
-c -e --sql --query: the SQL is one word in quotes: `hq query 'select count(*) from tasks'`
--format --json --tables: `hq query --list` lists the tables, `--csv` and `--output-mode json` choose the form
[report]
-o --output --file: the file is a word: `hq report FILE.html`
--job --jobs --format --pdf: a report is one page of HTML about all jobs; `hq job stats JOB` and `hq job info JOB` show one
[job submit-file]
--array --cpus --param --each-line --name --resource --env --time-limit --nodes --cwd --stdout --stderr --max-fails --retries --priority --pin --from-json: a job file describes its tasks itself: write it into the file, see `hq doc dependencies`; only `hq submit` takes options for a command
[job cat]
-f --follow -n --lines --tail: `hq job tail -f JOB` follows the output of tasks
[job cat, job tail]
--stdout --stderr -e: the stream is a word: `hq job cat JOB stderr`; `hq job tail JOB --channel stderr`
--task -t --task-id: `hq job cat JOB stdout --tasks 1-3` and `hq job tail JOB.7` select tasks
[worker list]
--state --states -t --status --running --lost: `hq worker list --filter running` lists the workers in this state
[worker start]
-c --cores --ncpus --threads -j --jobs -n --num-cpus --nthreads --cpus-per-task: use `hq worker start --cpus 8` to set the cpus of a worker; by default it detects all
--mem --memory --memory-limit: memory of a worker is detected; another amount is `hq worker start --resource 'mem=sum(8G)'`
--gpus --gres -G --num-gpus: GPUs are detected; others are `hq worker start --resource 'gpus/nvidia=[0,1]'`
--nodes -N --count --nworkers --workers: a worker is one process on one node: start one on each, as with `srun hq worker start` or `hq alloc add slurm --time-limit 1h`
--server --host --scheduler --address --url: the server is found by its directory: `hq worker start --server-dir DIR`
--walltime --time --timeout -t: a worker ends after `hq worker start --time-limit 2h`
[alloc add slurm, alloc add pbs]
--dry-run: a queue begins with a trial submission; `--no-dry-run` leaves it out
--partition -p --account -A --qos -q --queue --constraint -C --gres --mem --exclusive --reservation -l: options of the batch system follow `--`: `hq alloc add slurm --time-limit 1h -- --partition=NAME`, `hq alloc add pbs --time-limit 1h -- -q NAME`
--time --walltime: the walltime of an allocation is `--time-limit 1h`
--nodes -N -n --ntasks --workers --count: nodes of an allocation are `--max-workers-per-alloc 2`
[alloc add]
--manager --system --batch-system --scheduler --type -m: the batch system is a word: `hq alloc add slurm --time-limit 1h`
[journal check, journal export]
--journal: the journal is a word, a file or a server directory: `hq journal check FILE`
[server stop, worker stop]
--now --force -f -9 --kill --immediately --yes -y: it stops at once anyway: workers give tasks a moment to end, and kill what is left
--wait -w: it returns when nothing is left
[server start]
-d --daemon --detach --daemonize --bg -b: in the background it runs with `--background`
[worker start]
-d --daemon --detach --daemonize --bg -b --background: the shell puts a worker into the background: `nohup hq worker start > worker.log 2>&1 &`
[server start]
-p --port --bind --listen: ports are `--client-port 5000 --worker-port 5001`, that of the web page is `--http=8080`
--dir --data-dir --workdir: the directory of a server is `hq server start --server-dir DIR`
[dashboard]
--port --http -p --host --bind: the page for browsers is opened by `hq dashboard --web`; its port is that of the server: `hq server start --http=8080`
[doc]
--list -l --index: `hq doc` lists the pages
[submit, run]
-S --sshlogin --sshloginfile --slf: other machines are workers of a server: `hq worker deploy-ssh HOSTFILE --server-dir DIR`, see `hq doc workers`
--pipe --pipepart --block: a task has one line of input in `$HQ_ENTRY`; `split` makes files of larger pieces, and `--each-line FILE` takes their names
--link --xapply: a parameter with `+` goes along with the one before: `--param x=a,b --param +y=1,2`
--memfree --memsuspend: set the memory of each task with `--resource mem=4G`
--restart-times --max-retries --attempts: failed tasks are tried again with `--retries 3`
--config --configfile --profile: defaults of options stand in a file, see `hq config` and `hq doc config`; parameters of tasks are `--param lr=0.1,0.01`
--use-conda --conda --module --use-singularity --sdm: what a task needs is set up in its command: `bash -c 'module load NAME; PROGRAM'`
--forceall --force -F -B --always-make --forcerun -R: every task runs, unless `--skip-done` is given
-W: `--wait` stays until the job has ended; `-W depend=afterok:3` is `--after 3:ok`
-H --hold: `hq job hold JOB` after the submit keeps its tasks from starting; `--after JOB` makes it wait for another
--reservation --licenses -L --gres-flags --hint --cluster --clusters: that belongs to the workers: `hq alloc add slurm --time-limit 1h -- --reservation=NAME`, see `hq doc slurm`
--quiet -Q --silent: `--output-mode quiet` prints the bare minimum
--replicas --completions --count: `--array 1-4` makes four tasks
-0 --print0: `find . -print0 | hq run --each-line - --null -- PROGRAM {}`
-I --replace -J%: `{}` is the line without an option: `hq run --each-line FILE -- PROGRAM {}`
--max-lines --max-args --xargs: a task has one line: `hq run --each-line FILE -- PROGRAM {}`; `split -l 10 FILE` makes files of ten lines
--colsep --csv --from-csv --header --tsv --table: the header of a table names parameters: `--each-row FILE.csv -- PROGRAM {NAME}`
--from-jsonl --jsonl --json-lines: the keys of JSON lines name parameters: `--each-row FILE.jsonl -- PROGRAM {NAME}`
--resume --resume-failed --rerun-incomplete --rerun-triggers: with `--outputs FILE --skip-done` tasks are left out whose outputs are there; `hq job resubmit JOB --filter failed` runs failed tasks again
--dryrun --dry_run --just-print --test-only --recon: `--dry-run` shows what would run
--keep-going --ignore-errors: other tasks continue after a failure, unless you give `--max-fails 0`
--ntasks-per-node --tasks-per-node --ntasks-per-core --cpus-per-gpu --cpus-per-node: what each task asks for decides how many run on a node: `--cpus 4`
--array-limit --throttle: `--max-running 50` limits the running tasks of a job, `--limit NAME` those of several, see `hq doc limits`
--max-concurrent --max-parallel --max-jobs --parallel --concurrency --parallelism --load: cpus decide how many tasks run at once: `--cpus 2` for each task, `hq run -j 8` or `hq worker start --cpus 8` for all
--snakefile --file --makefile -s: a file with tasks is a job file: `hq job submit-file FILE.toml`, `hq run FILE.toml`, see `hq doc dependencies`
--rm --detach --restart --volume --mount --image --container --network: hq starts programs as they are; a container is part of the command: `hq submit -- apptainer run image.sif ./step`
--comment --label --tag -b: a job has a name: `--name TEXT`
--signal: `--stop-signal SIGTERM --stop-grace 30s` asks tasks to end
--delay --sleep: tasks start as soon as there is room for them; only a retry waits, see `--retry-delay 10s`
--input: `--stdin` gives each task what `hq` reads from standard input: `hq submit --stdin -- PROGRAM < FILE`
--shell --use-shell --exec: `hq submit -- bash -c 'LINE'` runs a shell command line
--user -u --uid: tasks run as the user who started the worker
--results --outputs-dir --output-dir: output goes to `--stdout FILE`, or of all tasks into one directory with `--stream DIR`
--tmpdir --tmp --scratch: a private directory for each task is `--task-dir`, see `hq doc jobs`
--gres --gpus --gpus-per-task --gpus-per-node -G: GPUs are resources: `--resource gpus/nvidia=1`, see `hq doc resources`
--job-name --jobname: the name of a job is `--name TEXT`
--mem --memory --mem-per-cpu --mem-per-task: set the memory of each task with `--resource mem=4G`, see `hq doc resources`
-n --ntasks --tasks: `--array 1-4` makes four tasks, `--cpus 4` one task with four cpus
-c --cpus-per-task --ncpus --ppn --cores --threads: set the cpus of each task with `--cpus 4`
-N: use `--nodes 2` for whole nodes for each task, and `--name TEXT` for a name
-p --partition --queue -q --qos -A --account: a partition, an account and a queue belong to the workers: `hq alloc add slurm --time-limit 1h -- --partition=NAME`, see `hq doc slurm`
--timeout --time -t --walltime: limit the run of each task with `--time-limit 10min`
--dependency -d --depend: to start a job after another, use `--after JOB:ok` (Slurm's `afterok`) or `--after JOB:any` (`afterany`), see `hq doc dependencies`
-a: a task for each number is `--array 1-100`, for each line of a file `--each-line FILE`
--arg-file: a task for each line of a file is `--each-line FILE`
-j --jobs --max-procs -P: cpus decide how many tasks run at once: `--cpus 2` for each task, `hq worker start --cpus 8` for a worker; `hq run -j 8` limits a run on this machine
--wrap: `hq submit -- bash -c 'LINE'` runs a shell command line
-o --output: standard output goes to `--stdout FILE`
-e --error: standard error goes to `--stderr FILE`; a variable of the tasks is `--env KEY=VALUE`
--mail-user --mail-type -M -m --mail: `--notify 'cmd:mail -s hq you@example.org'` sends a mail about a job, see `hq doc notifications`
-D --chdir --workdir --wd: the working directory of the tasks is `--cwd PATH`
--export -v -V -x: variables for the tasks are `--env KEY=VALUE`; others come from the worker, not from this shell
--exclusive: a whole node for each task is `--nodes 1`
--requeue --no-requeue -r --retry: failed tasks are tried again with `--retries 3`; after a lost worker tasks run again by themselves (`--crash-limit`), see `hq doc retries`
--halt --fail-fast: a job gives up with `--max-fails 0` after its first failure
-k --keep-order: `hq run` prints output in the order of the tasks, unless you give `--unordered`, and continues after a failure, unless you give `--max-fails 0`
--bar --eta --verbose: the state of the tasks is shown with `--progress`
--joblog: `hq job stats JOB` shows how long tasks took
-l --select: `-l select=1:ncpus=4:mem=8gb` is `--cpus 4 --resource mem=8G`, `-l walltime` is `--time-limit`
-J: the name of a job is `--name TEXT`; an array is `--array 1-100`
--nice: `--priority 10` decides which task runs first; write a negative number as `--priority=-10`
--begin --at: a job starts when workers have room; `--after JOB` makes it wait for another
--constraint -C --nodelist -w: tasks find a worker by its resources: `hq worker start --resource 'ssd=sum(1)'` and `hq submit --resource ssd=1`; the working directory is `--cwd PATH`
--parsable --json: use `--output-mode json` for JSON, and `--output-mode quiet` in shell scripts
--follow -f: `hq submit --wait` waits, and `hq job tail -f JOB` prints what tasks write
[job cat]
#: choose tasks with an option: `hq job cat JOB stdout --tasks {word}`
[job tail]
#: a task of a job is written `JOB.TASK`: `hq job tail JOB.{word}`; it follows one job
stdout stderr: one of the streams is chosen by an option: `hq job tail JOB --channel {word}`
[worker list]
#: `hq worker info {word}` shows one worker
[job list, job summary]
#: `hq job info {word}` shows one job
[job list]
*: `hq job list --filter running,failed` lists the jobs in these states, `hq job list --all` all jobs, and `hq job info JOB` shows one job
[worker start]
#: set the cpus with `hq worker start --cpus {word}`
[server start]
#: set ports with options: `hq server start --client-port {word}`
[task list]
#: choose tasks with an option: `hq task list JOB --tasks {word}`; several jobs are one word: `hq task list 1,2`
[task info, task explain]
*: the job is followed by one word with tasks: `hq {path} 3 1,2`
[server wait]
#: a time is an option: `hq server wait --timeout {word}`
[job open]
#: the server chooses the id of a new job; `hq submit --job {word} -- PROGRAM` adds tasks to an open one
[alloc list]
#: `hq alloc info {word}` shows one queue
[alloc]
#: a queue is chosen by one id, as in `hq {path} 1`
[query]
*: the SQL is one word in quotes: `hq query 'select count(*) from tasks'`
[journal replay, journal stream]
*: it asks the running server; `hq journal export {word}` reads a file
[journal prune]
*: it removes all ended jobs from the journal; `hq job forget 1-3` removes single jobs from the server
";
