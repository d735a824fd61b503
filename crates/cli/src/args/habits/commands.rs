//! The subcommands of other tools.

/// For each group: words of other tools, and what to type instead.
pub(super) const COMMANDS: &str = r"
[hq]
scale: `hq worker start` starts a worker; `hq alloc add slurm --time-limit 1h` requests workers from Slurm
get describe-job inspect: `hq job list` lists jobs, `hq worker list` lists workers, and `hq job info JOB` shows one job
apply create submit-file array: `hq job submit-file FILE.toml` submits a job file, `hq submit -- PROGRAM` a program
xargs map foreach for-each: a task for each line is `hq run --each-line FILE -- PROGRAM {}`
drain cordon: a worker ends after its tasks with `hq worker drain WORKER`
failures errors failed: `hq job failures JOB` shows the failures of a job
summary: `hq job summary` counts jobs by state, and `hq report` writes a report
ls list jobs queue squeue bjobs condor_q sprio qstat ps: `hq job list` lists the jobs of your server; `--all` adds ended jobs
log logs output cat out: `hq job cat JOB stdout` prints the output of tasks, and `hq job tail -f JOB` follows it
tail follow sattach attach: `hq job tail -f JOB` follows the output of tasks
cancel kill scancel qdel bkill condor_rm abort delete rm: `hq job cancel JOB` cancels a job, `hq job cancel all` all jobs
sbatch qsub bsub condor_submit srun exec parallel job-submit sub: `hq submit -- PROGRAM` submits a job; `hq run -- PROGRAM` needs no server
start up init daemon: `hq server start` starts a server, `hq worker start` a worker
stop down shutdown quit: `hq server stop` ends the server and its workers, `hq job cancel JOB` a job
wait: `hq job wait JOB` waits for a job
info show scontrol describe: `hq job info JOB` shows a job, `hq server info` the server
nodes sinfo workers pbsnodes: `hq worker list` lists workers
tasks: `hq task list JOB` lists tasks
explain why: `hq task explain JOB.TASK` says why a task waits, and `hq problems` why jobs do
resubmit retry rerun restart requeue: tasks of a job run again with `hq job resubmit JOB --filter failed`
stats sacct sstat sreport history top: `hq job stats JOB` shows what tasks used, and `hq dashboard` what happens now
watch monitor ui web gui: `hq dashboard` shows what happens now; `--web` opens it in a browser
progress: `hq job progress JOB` shows a bar, `hq status` everything
version: `hq --version` prints the version
help man docs manual: `hq --help` lists the commands, `hq doc` the pages of the manual, `hq COMMAND --help` explains one
completion completions: `hq generate-completion bash` prints a completion script, see `hq doc shell`
allocate salloc autoalloc allocation: `hq alloc add slurm --time-limit 1h` requests workers from Slurm
sql db: `hq query` runs an SQL query on the state
check diagnose: `hq doctor` checks this machine, `hq problems` says what is wrong with the jobs
[job]
ls show-all queue: `hq job list` lists jobs
status show describe state: `hq job info JOB` shows a job
pause suspend unhold resume: `hq job hold JOB` keeps the tasks of a job from starting until `hq job release JOB`; running tasks go on
priority update modify alter edit rename name move nice change: `hq job set JOB --priority 5` changes a job, also its time limit, resources and name
history sacct: `hq job list --all` lists ended jobs, too
graph timeline gantt plot chart: `hq report` writes a page with the times of all jobs, and `hq dashboard --web` shows them
array: `hq submit --array 1-10 -- PROGRAM` submits an array
why explain: `hq task explain JOB.TASK` says why a task waits, and `hq problems` why jobs do
log logs output stdout stderr print: `hq job cat JOB stdout` prints the output of tasks
follow: `hq job tail -f JOB` follows the output of tasks
kill stop abort scancel: `hq job cancel JOB` cancels a job
delete rm remove clean: `hq job forget JOB` deletes a job that has ended, and `hq job cancel JOB` cancels one that has not
retry rerun restart requeue: tasks run again with `hq job resubmit JOB --filter failed`
tasks task: `hq task list JOB` lists tasks
run start create new add: `hq submit -- PROGRAM` submits a job, and `hq job open` opens an empty one
errors failed: `hq job failures JOB` shows failures, and `hq job cat JOB stderr --filter failed` what the failed tasks wrote
[task]
ls status show: `hq task list JOB` lists tasks, and `hq task info JOB.TASK` shows one
log logs cat output tail: `hq job cat JOB stdout --tasks TASK` prints the output of a task
kill stop scancel abort: `hq task cancel JOB.TASK` cancels a task, and `hq job cancel JOB` all tasks of a job
why: `hq task explain JOB.TASK` says why a task waits
retry resubmit rerun requeue restart: tasks run again by their state: `hq job resubmit JOB --filter failed`
stats usage: `hq job stats JOB` shows what tasks used
wait: `hq job wait JOB` waits for a job
[worker]
hosts nodes hostname: `hq worker list` lists workers with their hosts
restart reload: `hq worker stop WORKER` and then `hq worker start` restart a worker; its tasks run again
pause cordon: a worker gets no more tasks with `hq worker drain WORKER`
ls status show: `hq worker list` lists workers, and `hq worker info WORKER` shows one
kill remove rm delete cancel: `hq worker stop WORKER` stops a worker, and `hq worker drain WORKER` stops it after its tasks
add run new connect join: `hq worker start` starts a worker
[server]
status show ls list: `hq server info` shows the server, and `hq status` what it does
restart reload resume: `hq server stop --keep-workers` and then `hq server start` restart a server with its jobs
kill shutdown down: `hq server stop` stops the server and its workers
run up daemon: `hq server start` starts a server; `--background` keeps it in the background
log logs: a server prints its messages; with `hq server start --background` it writes them to `server.log` in its directory
[alloc]
ls show status: `hq alloc list` lists queues, and `hq alloc info QUEUE` the allocations of one
sge lsf torque pbspro openpbs htcondor condor flux oar kubernetes k8s local ssh: queues are for Slurm and PBS: `hq alloc add slurm --time-limit 1h`, `hq alloc add pbs --time-limit 1h`; under any other system its jobs start workers: `hq worker start`
create new start submit: `hq alloc add slurm --time-limit 1h` creates a queue
update modify edit set change: a queue is not changed: `hq alloc remove QUEUE`, then `hq alloc add slurm --time-limit 1h`
delete rm cancel stop: `hq alloc remove QUEUE` removes a queue, and `hq alloc pause QUEUE` pauses it
[journal]
repair fix recover: `hq journal check --repair FILE` repairs a journal
import load restore: `hq server start --journal FILE` continues with a journal
list ls show cat: `hq journal export DIR` prints the events of a journal
[doctor]
worker server node cluster gpu memory disk job: `hq doctor` checks the machine on which it runs; `hq doctor net` checks the way to the server, and `hq worker info WORKER` shows a worker
";
