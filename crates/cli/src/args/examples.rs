//! Examples at the end of the long help and of the manual pages.

/// The examples for `hq submit`.
pub(crate) const SUBMIT: &str = "\
EXAMPLES:
  hq submit -- ./program --its --options               one task
  hq submit --array 1-100 -- ./simulate                one task for each number, in HQ_TASK_ID
  hq submit --each-line list.txt -- ./convert          one task for each line, in HQ_ENTRY
  hq submit --each-row runs.csv -- ./train --lr {lr}   one task for each row of a table
  hq submit --cpus 4 --resource gpus/nvidia=1 -- ./train
  hq submit --wait=ok job.sh                           options in #HQ lines; exits with 1 if a task fails
  hq doc jobs                                          more about jobs";

/// The examples for `hq import`.
pub(crate) const IMPORT: &str = "\
EXAMPLES:
  hq import job.sh > job.hq.sh                         a script for `hq submit`; notes on standard error
  hq import --submit job.sh input.dat                  the same as `sbatch job.sh input.dat`
  hq import --submit --options '--dependency=afterok:3 --array=1-5' job.sh
  hq doc coming-from                                   equivalent options";

/// The examples for `hq run`.
pub(crate) const RUN: &str = "\
EXAMPLES:
  hq run --each-line list.txt -- bash -c './convert \"$HQ_ENTRY\"'
  hq run -j 4 --array 1-100 -- ./simulate
  hq run pipeline.toml                                 tasks that depend on each other
  hq doc quickstart                                    from nothing to results";

/// The examples for `hq server start`.
pub(crate) const SERVER_START: &str = "\
EXAMPLES:
  hq server start --background                         returns when the server answers
  hq server start --resume                             continues the last server, even if it was stopped
  hq server start --fresh                              starts an empty server, even after a crash
  hq server start --http=8080                          with dashboard and metrics
  hq doc durability                                    what survives crashes and restarts";

/// The examples for `hq token create`.
pub(crate) const TOKEN_CREATE: &str = "\
EXAMPLES:
  hq token create grafana                              reads everything, changes nothing
  hq token create ci --role submit > ci-token          submits and cancels jobs
  hq token list
  hq token revoke ci                                   takes effect immediately
  hq doc api                                           the HTTP interface";

/// The examples for `hq worker start`.
pub(crate) const WORKER_START: &str = "\
EXAMPLES:
  hq worker start                                      offers all resources of the machine
  hq worker start --cpus 8 --resource 'licences=sum(5)'
  hq worker start --time-limit 2h --idle-timeout 5min
  hq worker start --relay                              for workers that cannot reach the server
  hq doc workers                                       more about workers";

/// The example for `hq alloc add slurm`.
pub(crate) const ALLOC_ADD_SLURM: &str = "\
EXAMPLES:
  hq alloc add slurm -t 2h -- --partition=compute --exclusive
  hq doc slurm                                         from login to results";

/// The example for `hq alloc add pbs`.
pub(crate) const ALLOC_ADD_PBS: &str = "\
EXAMPLES:
  hq alloc add pbs -t 2h -- -q compute -A my-project
  hq doc pbs                                           more about queues on PBS";

/// The examples for `hq job cat`.
pub(crate) const JOB_CAT: &str = "\
EXAMPLES:
  hq job cat last stdout                               of all tasks, in order
  hq job cat 3 stderr --filter failed --print-task-header
  hq job cat 3 stdout --tasks 1-4";

/// The examples for `hq job wait`.
pub(crate) const JOB_WAIT: &str = "\
EXAMPLES:
  hq job wait last
  hq job wait 1-4 --ok && ./next                       runs ./next only if every task finished";

/// The examples for `hq job failures`.
pub(crate) const JOB_FAILURES: &str = "\
EXAMPLES:
  hq job failures last                                 by exit code and last line of stderr
  hq job failures 3 --read 10000                       reads the output of more tasks
  hq job failures 3 --group-by node                    grouped by node
  hq doc failures                                      what happens when something fails";

/// The examples for `hq job resubmit`.
pub(crate) const JOB_RESUBMIT: &str = "\
EXAMPLES:
  hq job resubmit last --filter failed --progress      only the failed tasks
  hq job resubmit 3                                    all tasks
  hq job resubmit 3 --suggested                        all tasks, with suggested requests";

/// The examples for `hq problems`.
pub(crate) const PROBLEMS: &str = "\
EXAMPLES:
  hq problems                                          current problems
  hq problems --acknowledge job-3-failures             hides it until more tasks fail
  hq problems --all --output-mode json                 for programs
  hq doc failures                                      what happens when something fails";

#[cfg(test)]
mod tests {
    use crate::args;

    #[test]
    fn examples_are_accepted() {
        let all = [
            super::SUBMIT,
            super::IMPORT,
            super::RUN,
            super::SERVER_START,
            super::WORKER_START,
            super::ALLOC_ADD_SLURM,
            super::ALLOC_ADD_PBS,
            super::JOB_CAT,
            super::JOB_WAIT,
            super::JOB_FAILURES,
            super::JOB_RESUBMIT,
            super::PROBLEMS,
        ];
        for line in all.iter().flat_map(|text| text.lines().skip(1)) {
            // A description follows after several blanks.
            let line = line.trim().split("  ").next().unwrap_or_default();
            let line = line.split(" && ").next().unwrap_or_default();
            let line = line.split(" > ").next().unwrap_or_default();
            let words = shlex::split(line).expect("closed quotes");
            let parsed = args::command().try_get_matches_from(&words);
            assert!(parsed.is_ok(), "{line}: {:?}", parsed.err());
        }
    }
}
