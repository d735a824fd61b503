//! Finds features that the text of a script uses: variables, MPI launchers, commands of the batch
//! system.

use std::collections::BTreeSet;

use hq_core::words::has_word;

/// The variables that exist in every process, or depend on the machine.
const USUAL: &str = "HOME PATH USER LOGNAME SHELL PWD OLDPWD HOSTNAME TMPDIR TMP LANG TERM DISPLAY RANDOM SECONDS \
    LINENO IFS UID EUID PPID BASH BASH_SOURCE FUNCNAME OPTARG OPTIND LD_LIBRARY_PATH \
    OMP_NUM_THREADS CUDA_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES HQ MODULEPATH";

/// The prefixes of variables that the batch system or hq sets.
const OWN: &[&str] = &["SLURM_", "SBATCH_", "PBS_", "LSB_", "LS_", "HQ_"];

/// The programs that start the processes of a task.
const LAUNCHERS: &str = "srun mpirun mpiexec aprun jsrun ibrun";

/// The commands that communicate with the batch system about this job.
pub(super) const COMMANDS: &str =
    "sbatch scancel scontrol squeue sacct sbcast qsub qdel qstat qalter bsub bkill bjobs";

/// The names and commands that a script uses.
#[derive(Debug, Default)]
pub(super) struct Uses {
    /// The variables whose values are used.
    read: BTreeSet<String>,
    /// The variables that the script sets itself.
    set: BTreeSet<String>,
    /// The programs, with the number of their first line, starting from 1.
    pub(super) programs: Vec<(&'static str, usize)>,
    /// The whole text, to find uses in other languages.
    text: String,
    pub(super) changes_dir: bool,
}

impl Uses {
    pub(super) fn find(text: &str) -> Self {
        let mut uses = Self {
            text: text.to_owned(),
            ..Self::default()
        };
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            if !line.starts_with('#') {
                uses.add_line(line, number + 1);
            }
        }
        uses
    }

    fn add_line(&mut self, line: &str, number: usize) {
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        for (at, _) in line.match_indices('$') {
            let rest = line[at + 1..].trim_start_matches('{');
            let name: String = rest.chars().take_while(|c| is_name(*c)).collect();
            if name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') {
                self.read.insert(name);
            }
        }
        let mut before = "";
        for word in line.split([' ', '\t', ';', '|', '&', '(', ')', '`']) {
            let assigned = word
                .split_once('=')
                .map(|(name, _)| name.trim_end_matches('+'));
            if let Some(name) =
                assigned.filter(|name| !name.is_empty() && name.chars().all(is_name))
            {
                self.set.insert(name.to_owned());
            }
            if matches!(
                before,
                "for" | "read" | "-r" | "unset" | "local" | "declare"
            ) {
                self.set.insert(word.to_owned());
            }
            let mut known = LAUNCHERS.split(' ').chain(COMMANDS.split(' '));
            if let Some(known) = known.find(|known| *known == word)
                && !self.programs.iter().any(|(seen, _)| *seen == known)
            {
                self.programs.push((known, number));
            }
            self.changes_dir |= word == "cd";
            before = word;
        }
    }

    /// Returns whether the name of a variable occurs anywhere, even outside of shell syntax.
    pub(super) fn names(&self, variable: &str) -> bool {
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let found = self.text.match_indices(variable);
        let mut whole = found.filter(|(at, _)| {
            let after = self.text[at + variable.len()..].chars().next();
            let before = self.text[..*at].chars().next_back();
            !after.is_some_and(is_name) && !before.is_some_and(is_name)
        });
        whole.next().is_some()
    }

    pub(super) fn is_mpi(&self) -> bool {
        self.programs
            .iter()
            .any(|(name, _)| has_word(LAUNCHERS, name))
    }

    /// Returns the variables that the script reads but does not set, and that are set in the
    /// submitting environment.
    pub(super) fn set_here(&self, given: &[(String, String)]) -> Vec<(String, String)> {
        let is_foreign = |name: &&String| {
            !self.set.contains(*name)
                && !has_word(USUAL, name)
                && !OWN.iter().any(|own| name.starts_with(own))
                && !given.iter().any(|(known, _)| known == *name)
        };
        let names = self.read.iter().filter(is_foreign);
        names
            .filter_map(|name| Some((name.clone(), std::env::var(name).ok()?)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_programs_are_found() {
        let uses = Uses::find(
            "#!/bin/bash\n# $NOT\nA=1; export B=$A\nfor f in $INPUT/*; do mpirun ./x ${OUT} $SLURM_JOB_ID; done\ncd $PBS_O_WORKDIR && srun hostname\n",
        );
        let read: Vec<_> = uses.read.iter().map(String::as_str).collect();
        assert_eq!(read, ["A", "INPUT", "OUT", "PBS_O_WORKDIR", "SLURM_JOB_ID"]);
        assert!(uses.set.contains("A") && uses.set.contains("B") && uses.set.contains("f"));
        assert_eq!(uses.programs, [("mpirun", 4), ("srun", 5)]);
        assert!(uses.changes_dir && uses.is_mpi());
        assert!(uses.names("SLURM_JOB_ID") && !uses.names("SLURM_JOB"));
    }
}
