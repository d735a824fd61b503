//! Derives the variables of batch systems from hq's variables.
//!
//! Variables of arrays, and variables that programs in any language read, are always set. Other
//! variables are set only if the script mentions them: a variable such as `SLURM_JOB_ID` makes an
//! MPI library assume a Slurm job.

use super::System;
use super::script_options::{Choice, ScriptOptions};
use super::used::Uses;

/// Returns lines for `sh`, and adds the options that they require.
pub(super) fn prelude(
    options: &ScriptOptions,
    uses: &Uses,
    choices: &mut Vec<Choice>,
) -> Vec<String> {
    let mut lines = Lines {
        uses,
        exports: Vec::new(),
        others: Vec::new(),
    };
    match options.system {
        System::Slurm => of_slurm(options, &mut lines),
        System::Pbs => of_pbs(options, &mut lines),
        System::Lsf => of_lsf(options, &mut lines),
    }
    let needs_dir = ["SLURM_TMPDIR", "PBS_NODEFILE", "LSB_DJOB_HOSTFILE"];
    if needs_dir.iter().any(|name| uses.names(name)) {
        choices.push(Choice {
            words: vec!["--task-dir".to_owned()],
            is_outer: false,
            is_usual: true,
        });
    }
    if options.node_count() > 1 && uses.is_mpi() {
        for name in [
            "HYDRA_HOST_FILE",
            "I_MPI_HYDRA_HOST_FILE",
            "OMPI_MCA_orte_default_hostfile",
            "PRTE_MCA_prte_default_hostfile",
        ] {
            lines.always(name, "\"$HQ_NODE_FILE\"");
        }
    }
    let mut text = Vec::new();
    if options.merges() {
        text.push("exec 2>&1".to_owned());
    }
    if let Some(path) = &options.stdin {
        text.push(format!("exec < {}", quoted(path)));
    }
    text.extend(lines.exports.iter().map(|pair| format!("export {pair}")));
    text.extend(lines.others);
    text
}

struct Lines<'a> {
    uses: &'a Uses,
    exports: Vec<String>,
    others: Vec<String>,
}

impl Lines<'_> {
    fn always(&mut self, name: &str, value: &str) {
        self.exports.push(format!("{name}={value}"));
    }

    fn if_named(&mut self, name: &str, value: &str) {
        if self.uses.names(name) {
            self.always(name, value);
        }
    }

    /// Sets a variable by which libraries detect a batch system. Keeps an existing value, and does
    /// not export the variable.
    fn identity(&mut self, name: &str, value: &str) {
        if !self.uses.names(name) {
        } else if self.uses.is_mpi() {
            self.others
                .push(format!("[ -n \"${{{name}-}}\" ] || {name}={value}"));
        } else {
            self.always(name, value);
        }
    }
}

fn quoted(text: &str) -> String {
    crate::text::shell_text(&[text.to_owned()])
}

/// Returns a unique number per job. Elements of an array have their own numbers.
fn job_id(options: &ScriptOptions) -> &'static str {
    match options.array {
        Some(_) => "\"${HQ_JOB_ID}_$HQ_TASK_ID\"",
        None => "\"$HQ_JOB_ID\"",
    }
}

/// Returns the names of the nodes, separated by commas.
fn node_list(options: &ScriptOptions) -> &'static str {
    if options.node_count() > 1 {
        "\"$(paste -sd, \"$HQ_NODE_FILE\")\""
    } else {
        "\"$(hostname)\""
    }
}

/// Writes a file with one line per process, which programs for PBS and LSF read.
fn node_file(name: &str, options: &ScriptOptions, lines: &mut Lines<'_>) {
    if !lines.uses.names(name) {
        return;
    }
    let each = options.tasks_per_node.or(options.tasks).unwrap_or(1);
    let nodes = if options.node_count() > 1 {
        "cat \"$HQ_NODE_FILE\""
    } else {
        "hostname"
    };
    lines.others.push(format!(
        "export {name}=\"$HQ_TASK_DIR/nodes\"; {nodes} | awk '{{ for (i = 0; i < {each}; i++) print }}' > \"${name}\""
    ));
}

fn of_slurm(options: &ScriptOptions, lines: &mut Lines<'_>) {
    lines.always("SLURM_JOB_NAME", &quoted(&options.job_name()));
    lines.always("SLURM_SUBMIT_DIR", "\"$HQ_SUBMIT_DIR\"");
    if let Some(ids) = options.array.as_deref().and_then(super::ids_of) {
        lines.always("SLURM_ARRAY_TASK_ID", "\"$HQ_TASK_ID\"");
        lines.always("SLURM_ARRAY_JOB_ID", "\"$HQ_JOB_ID\"");
        lines.always("SLURM_ARRAY_TASK_COUNT", &ids.len().to_string());
        for (name, id) in [
            (
                "SLURM_ARRAY_TASK_MIN",
                ids.ranges().iter().map(|range| range.first()).min(),
            ),
            ("SLURM_ARRAY_TASK_MAX", ids.max()),
        ] {
            if let Some(id) = id {
                lines.always(name, &id.to_string());
            }
        }
    }
    if let Some(cpus) = options.cpus_per_task {
        lines.always("SLURM_CPUS_PER_TASK", &cpus.to_string());
    }
    let each = options
        .tasks_per_node
        .unwrap_or_else(|| options.task_count());
    let cpus = options.cpu_count().to_string();
    for (name, value) in [
        ("SLURM_NTASKS", options.task_count().to_string().as_str()),
        ("SLURM_NPROCS", &options.task_count().to_string()),
        ("SLURM_NTASKS_PER_NODE", &each.to_string()),
        ("SLURM_TASKS_PER_NODE", &each.to_string()),
        ("SLURM_NNODES", &options.node_count().to_string()),
        ("SLURM_JOB_NUM_NODES", &options.node_count().to_string()),
        ("SLURM_CPUS_ON_NODE", &cpus),
        ("SLURM_JOB_CPUS_PER_NODE", &cpus),
        ("SLURM_RESTART_COUNT", "\"$HQ_INSTANCE_ID\""),
        ("SLURM_PROCID", "0"),
        ("SLURM_LOCALID", "0"),
        ("SLURM_NODEID", "0"),
        ("SLURM_JOB_USER", "\"$(id -un)\""),
        ("SLURM_JOB_PARTITION", "hq"),
        ("SLURM_TMPDIR", "\"$HQ_TASK_DIR\""),
        ("SLURMD_NODENAME", "\"$(hostname -s)\""),
    ] {
        lines.if_named(name, value);
    }
    if let Some((_, count, _)) = options.gpus {
        for name in [
            "SLURM_GPUS",
            "SLURM_GPUS_ON_NODE",
            "SLURM_GPUS_PER_NODE",
            "SLURM_GPUS_PER_TASK",
        ] {
            lines.if_named(name, &count.to_string());
        }
        lines.if_named("SLURM_JOB_GPUS", "\"${CUDA_VISIBLE_DEVICES-}\"");
    }
    for name in ["SLURM_JOB_ID", "SLURM_JOBID"] {
        lines.identity(name, job_id(options));
    }
    for name in ["SLURM_JOB_NODELIST", "SLURM_NODELIST"] {
        lines.identity(name, node_list(options));
    }
}

fn of_pbs(options: &ScriptOptions, lines: &mut Lines<'_>) {
    lines.always("PBS_O_WORKDIR", "\"$HQ_SUBMIT_DIR\"");
    lines.always("PBS_JOBNAME", &quoted(&options.job_name()));
    if options.array.is_some() {
        for name in ["PBS_ARRAY_INDEX", "PBS_ARRAYID"] {
            lines.always(name, "\"$HQ_TASK_ID\"");
        }
        lines.if_named("PBS_ARRAY_ID", "\"$HQ_JOB_ID\"");
    }
    let each = options
        .tasks_per_node
        .unwrap_or_else(|| options.task_count());
    lines.always("NCPUS", &each.to_string());
    lines.if_named("PBS_NP", &options.task_count().to_string());
    lines.if_named("PBS_NUM_PPN", &each.to_string());
    lines.if_named("PBS_NUM_NODES", &options.node_count().to_string());
    lines.if_named("PBS_O_HOME", "\"$HOME\"");
    lines.if_named("PBS_O_HOST", "\"$(hostname)\"");
    lines.if_named("PBS_O_LOGNAME", "\"$(id -un)\"");
    lines.if_named("PBS_QUEUE", "hq");
    lines.identity("PBS_JOBID", job_id(options));
    node_file("PBS_NODEFILE", options, lines);
}

fn of_lsf(options: &ScriptOptions, lines: &mut Lines<'_>) {
    lines.always("LS_SUBCWD", "\"$HQ_SUBMIT_DIR\"");
    lines.always("LSB_JOBNAME", &quoted(&options.job_name()));
    // The index is 0 outside of arrays.
    let index = if options.array.is_some() {
        "\"$HQ_TASK_ID\""
    } else {
        "0"
    };
    lines.always("LSB_JOBINDEX", index);
    lines.if_named("LSB_DJOB_NUMPROC", &options.task_count().to_string());
    lines.if_named("LSB_MAX_NUM_PROCESSORS", &options.task_count().to_string());
    lines.if_named("LSB_QUEUE", "hq");
    lines.identity("LSB_JOBID", "\"$HQ_JOB_ID\"");
    lines.identity("LSB_HOSTS", "\"$(hostname)\"");
    node_file("LSB_DJOB_HOSTFILE", options, lines);
}
