//! Words of other programs, and the corresponding words of the manual.

use crate::text::rows;

const SYNONYMS: &str = "
abort, kill: cancel
accounting: report, stats
alert, mail, slack, webhook: notification
amd, cuda, gpu, gres, nvidia: gpus
autoscale, elastic, queue: alloc
backup: journal
browser: web, dashboard
cache, incremental, make, uptodate: skip done
checkpoint: stop signal, resume
clean, delete, purge, remove: forget
concurrency, concurrent, semaphore, simultaneous, throttle: limit
core, thread: cpus
cost: report
crash: lost, survive
dag: dependencies, deps
database: journal, sql
directory: cwd
email: mail, notification
environment, variable: env
eta: remaining time
firewall, proxy: relay
folder: cwd, directory
graph: dependencies
grid, parameter, sweep: param
gui: dashboard, web
hang, stuck: explain
host: worker, hostname
how long: eta, remaining time
joblog: job stats, task list
license: licence
log: stdout, output
machine: worker, node
memory: mem
mpi: nodes
oom, rss: memory
parallelism: slots, cpus
partition: alloc add
password: token, keys
pause: quarantine, drain
pending: waiting, explain
pipeline: dependencies, job file
qdel, scancel: job cancel
qstat, squeue: job list
qsub, sbatch: submit
ram: memory, mem
redo, rerun: resubmit
remaining: eta
rest: api
restart: resume, continue, resubmit
sacct: job stats
scratch, tmpdir: task dir
sge: coming from
srun: nodes, run
stderr: standard error, output
stdout: standard output, output
timeout, walltime: time limit
tui: dashboard
tunnel: relay, ssh
upgrade: update
workdir: cwd, working directory
workflow: dependencies, engines
";

/// Returns words of the manual for one or two words of the user, in singular or plural.
pub(super) fn of(word: &str) -> impl Iterator<Item = &'static str> {
    let known = rows(SYNONYMS).filter(move |(known, _)| {
        let mut known = known.split(", ");
        known.any(|known| super::stem(known) == super::stem(word))
    });
    known.flat_map(|(_, others)| others.split(", "))
}
