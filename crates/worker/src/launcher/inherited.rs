//! Selects which of the worker's environment variables its tasks inherit.

use std::ffi::OsStr;

use hq_core::words::has_word;
use hq_spawn::EnvBlock;

/// Variables of a task that a worker running inside that task must not pass on to its own tasks.
const TASK_VARIABLES: &str = "HQ_ACCESS_KEY HQ_CPUS HQ_ENTRY HQ_ERROR_FILENAME HQ_HOST_FILE HQ_NODE_FILE HQ_NUM_NODES HQ_PIN \
    HQ_TASK_DIR";

/// Prefixes of variables that batch systems and process managers set to describe the worker's job
/// step. A task that inherited them would count as part of that step: `srun` would repeat its
/// options, `mpirun` would use its nodes, and an MPI library would wait for peers that do not
/// exist.
const STEP_PREFIXES: [&str; 9] = [
    "SLURM_", "SLURMD_", "SRUN_", "PMI_", "PMI2_", "PMIX_", "OMPI_", "HYDRA_", "PBS_",
];

/// Exceptions: these describe the surrounding job and are harmless.
const STEP_NAMES_KEPT: &str = "SLURM_CONF SLURM_CLUSTER_NAME SLURM_JOB_ID SLURM_JOB_ACCOUNT SLURM_JOB_PARTITION \
    SLURM_SUBMIT_DIR PBS_JOBID PBS_O_WORKDIR";

/// If this is set in the worker's environment, tasks inherit everything.
const KEEP_STEP: &str = "HQ_KEEP_BATCH_ENV";

/// Returns whether a variable with such a prefix is a user's setting.
fn is_user_setting(name: &str) -> bool {
    // The framework `ess` describes a process's place in a step; the others are tuning parameters.
    name.starts_with("OMPI_MCA_") && !name.starts_with("OMPI_MCA_ess")
}

fn is_of_step(name: &str) -> bool {
    STEP_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
        && !has_word(STEP_NAMES_KEPT, name)
        && !is_user_setting(name)
}

/// Returns the worker's environment without the variables of a surrounding task or job step.
pub(super) fn inherited() -> EnvBlock {
    let keeps_step = std::env::var_os(KEEP_STEP).is_some_and(|value| value == "1");
    let is_of_task = |name: &OsStr| {
        name.to_str().is_some_and(|name| {
            has_word(TASK_VARIABLES, name)
                || name.starts_with("HQ_RESOURCE_")
                || name.starts_with("HQ_PARAM_")
                || (!keeps_step && is_of_step(name))
        })
    };
    // In the usual case, the block is shared unchanged.
    if !std::env::vars_os().any(|(name, _)| is_of_task(&name)) {
        return EnvBlock::capture();
    }
    let kept = std::env::vars_os().filter(|(name, _)| !is_of_task(name));
    // This fails only for a name that no shell can set.
    EnvBlock::empty()
        .overlay(kept)
        .unwrap_or_else(|_| EnvBlock::capture())
}

#[cfg(test)]
mod tests {
    use super::is_of_step;

    #[test]
    fn variables_of_a_job_step_are_not_for_tasks() {
        for name in [
            "SLURM_NTASKS",
            "SLURM_JOBID",
            "PMI_RANK",
            "PMIX_RANK",
            "PBS_ENVIRONMENT",
        ] {
            assert!(is_of_step(name), "{name}");
        }
        for name in [
            "SLURM_JOB_ID",
            "SLURM_CONF",
            "PBS_JOBID",
            "OMPI_MCA_btl",
            "PATH",
            "SLURMX",
        ] {
            assert!(!is_of_step(name), "{name}");
        }
    }
}
