//! Describes which effects of a script are different in hq.

use hq_core::words::has_word;

use super::System;
use super::script_options::ScriptOptions;
use super::used::{COMMANDS, Uses};

/// Returns notes on features of the script that work differently in hq.
pub(super) fn notes(uses: &Uses, options: &ScriptOptions) -> Vec<String> {
    let mut notes = Vec::new();
    for (name, line) in &uses.programs {
        if *name == "srun" {
            notes.push(format!(
                "line {line}: `srun` starts a step of the worker's batch job, on its nodes; for workers without Slurm, write `mpirun`, or leave it out"
            ));
        } else if has_word(COMMANDS, name) {
            notes.push(format!(
                "line {line}: `{name}` queries {}, which does not know this job",
                options.system.label()
            ));
        }
    }
    if options.system == System::Pbs && options.cwd.is_none() && !uses.changes_dir {
        notes.push(
            "a job of PBS starts in the home directory; tasks start in the directory of the submit (`--cwd PATH`)".to_owned(),
        );
    }
    if options.node_count() > 1 && uses.is_mpi() {
        notes.push(
            "the nodes of a task are in $HQ_NODE_FILE; Open MPI, MPICH and Intel MPI find them through variables, others need an option such as \
             `--hostfile \"$HQ_NODE_FILE\"`"
                .to_owned(),
        );
    }
    notes
}
