//! Tests conversions of scripts of each batch system.

use super::*;

fn converted_from(text: &str, options: &str) -> (String, Vec<String>) {
    let source = Source {
        name: "a.sh",
        text,
        options,
        system: None,
    };
    let conversion = convert(source).expect("lines of a batch system");
    let outer: Vec<String> = conversion.outer().map(shell_text).collect();
    let script = converted(source, &conversion);
    let mut told = conversion.notes;
    told.splice(0..0, outer);
    (script, told)
}

/// Returns the `#HQ` lines, and the options of the command line with notes.
fn options_of(text: &str) -> (String, Vec<String>) {
    let (script, told) = converted_from(text, "");
    let lines = script.lines().filter_map(|line| line.strip_prefix("#HQ "));
    (lines.collect::<Vec<_>>().join(" "), told)
}

#[test]
fn resources_of_slurm() {
    for (lines, options) in [
        ("-n 4 -c 2 --mem-per-cpu=1G", "--cpus 8 --resource mem=8G"),
        (
            "--nodes=1 --exclusive --mem=0",
            "--cpus all --resource mem=all",
        ),
        ("-N 2 --ntasks-per-node=8", "--nodes 2"),
        ("--ntasks=8 --ntasks-per-node=4", "--nodes 2"),
        (
            "-G 2 --mem-per-gpu=3G",
            "--resource mem=6G --resource gpus/nvidia=2",
        ),
        (
            "--gpus-per-task=mi250x:1 -n 2",
            "--cpus 2 --resource gpus/amd=2",
        ),
        ("--time=2-12", "--time-limit 2-12:00:00"),
        ("--time=90", "--time-limit 01:30:00"),
        (
            "-t 1:00:00 --signal=TERM@600",
            "--stop-signal TERM --stop-grace 600s --time-limit 00:50:00",
        ),
        (
            "-t 1:00:00 --signal=BUS@600",
            "--stop-signal BUS --stop-grace 600s --time-limit 00:50:00",
        ),
        (
            "-t 1:00:00 --signal=B:USR1@600",
            "--stop-signal USR1 --stop-grace 600s --time-limit 00:50:00",
        ),
        (
            "--nice=10 --no-requeue",
            "--crash-limit never-restart --priority=-10",
        ),
        ("--export=ALL,A=1,B='x y'", "--env A=1 --env \"B=x y\""),
        ("--chdir=/data", "--cwd /data"),
    ] {
        let (found, _) = options_of(&format!("#!/bin/bash\n#SBATCH {lines}\n"));
        let usual = format!("--name a.sh {options}");
        let out = " --stdout slurm-%{JOB_ID}.out --stderr none";
        assert_eq!(found.replace(out, ""), usual, "{lines}");
    }
}

#[test]
fn outputs_of_slurm() {
    for (lines, options) in [
        (
            "-o %x-%j.out -e %x-%j.err",
            "--stdout a.sh-%{JOB_ID}.out --stderr a.sh-%{JOB_ID}.err",
        ),
        (
            "-a 1-2 -o %j.out",
            "--stdout %{JOB_ID}_%{TASK_ID}.out --stderr none",
        ),
        (
            "-a 1-2",
            "--stdout slurm-%{JOB_ID}_%{TASK_ID}.out --stderr none",
        ),
        ("-o /dev/null", "--stdout none --stderr none"),
        (
            "-a 1-2%3 -o /dev/null",
            "--array 1-2 --max-running 3 --stdout none --stderr none",
        ),
        (
            "-J b -o %x/%A_%4a_100%%.log",
            "--stdout b/%{JOB_ID}_%{TASK_ID}_100%.log --stderr none",
        ),
    ] {
        let (found, _) = options_of(&format!("#SBATCH {lines}\n"));
        assert!(found.ends_with(options), "{lines}: {found}");
    }
}

#[test]
fn what_is_different_is_told() {
    for (line, note) in [
        ("--array=1-10%0", "expected a whole number above 0"),
        ("--array=a-b", "the ids cannot be read"),
        ("--dependency=afternotok:3", "`--dependency=afternotok:3`"),
        ("--dependency=afterok:$ID", "use hq's number"),
        ("--dependency=afterok:3:4,afterany:5", "--after 5:any"),
        ("--dependency=aftercorr:3", "--after-each 3"),
        (
            "--licenses=matlab:1 -p gpu",
            "-- --licenses=matlab:1 -p gpu",
        ),
        ("--gres=lustre:1", "`--gres=lustre:1`: not translated"),
        ("--nodes=2 --mem=5G", "whole nodes"),
        ("--nodes=many", "`--nodes=many`: not translated"),
        ("--begin=now+1hour", "`hq submit --after JOB`"),
        ("--wait", "--wait"),
        ("hetjob", "submit each part"),
        (
            "--mail-type=END --mail-user=a@b.c",
            "--notify 'cmd:mail -s hq a@b.c'",
        ),
    ] {
        let (_, told) = options_of(&format!("#!/bin/bash\n#SBATCH {line}\n"));
        assert!(
            told.iter().any(|said| said.contains(note)),
            "{line}: {told:#?}"
        );
    }
}

#[test]
fn lines_of_pbs_and_lsf() {
    let (found, told) = options_of(
        "#PBS -N run -l select=2:ncpus=16:mpiprocs=16:mem=60gb,walltime=12:00:00 -W depend=afterok:12.pbs01\n#PBS -l place=scatter:excl -r n\n",
    );
    assert_eq!(
        found,
        "--name run --nodes 2 --time-limit 12:00:00 --stdout %{SUBMIT_DIR}/run.o%{JOB_ID} --stderr %{SUBMIT_DIR}/run.e%{JOB_ID} \
         --crash-limit never-restart"
    );
    assert!(told.contains(&"--after 12:ok".to_owned()), "{told:?}");
    assert!(
        told.iter()
            .any(|said| said.contains("starts in the home directory")),
        "{told:?}"
    );
    let (found, told) = options_of(
        "#BSUB -J sim -n 8 -R \"span[ptile=4]\" -W 90 -o out.%J -gpu num=1 -w 'done(3) && ended(4)' -M 4000000\n",
    );
    assert_eq!(
        found,
        "--name sim --nodes 2 --time-limit 01:30:00 --stdout out.%{JOB_ID} --stderr none"
    );
    assert!(told.iter().any(|said| said == "--after 4:any"), "{told:?}");
    assert!(
        told.iter().any(|said| said.contains("read as KiB")),
        "{told:?}"
    );
}

#[test]
fn identity_is_not_pressed_on_mpi_programs() {
    let body = "echo $SLURM_JOB_ID\n";
    let (plain, _) = converted_from(&format!("#SBATCH -n 2\n{body}"), "");
    assert!(
        plain.contains("export SLURM_JOB_ID=\"$HQ_JOB_ID\"\n"),
        "{plain}"
    );
    let (mpi, _) = converted_from(&format!("#SBATCH -n 2\n{body}mpirun x\n"), "");
    let kept = "[ -n \"${SLURM_JOB_ID-}\" ] || SLURM_JOB_ID=\"$HQ_JOB_ID\"\n";
    assert!(
        mpi.contains(kept) && !mpi.contains("export SLURM_JOB_ID"),
        "{mpi}"
    );
    let (none, _) = converted_from("#SBATCH -n 2\necho\n", "");
    assert!(!none.contains("SLURM_JOB_ID"), "{none}");
}

#[test]
fn lines_of_batch_systems_are_told_at_submit() {
    let told = |text: &str| warning("a.sh", text, true).unwrap_or_default();
    assert_eq!(
        told(
            "#!/bin/bash\n#SBATCH --array=1-4%2 --mem=2G\n#SBATCH -p fast # comment\n#SBATCH -t 1-12:00:00\necho hi\n#SBATCH --no"
        ),
        "a.sh has 3 #SBATCH lines, which hq does not read; write instead: `#HQ --array 1-4 --max-running 2 --resource mem=2G --time-limit \
         1-12:00:00`; `hq import a.sh` translates everything and lists the differences"
    );
    assert_eq!(
        told("#PBS -N train\n#PBS -l select=1:ncpus=4:mem=8gb,walltime=01:30:00\n#PBS -J 0-9"),
        "a.sh has 3 #PBS lines, which hq does not read; write instead: `#HQ --name train --array 0-9 --cpus 4 --resource mem=8G \
         --time-limit 01:30:00`; `hq import a.sh` translates everything and lists the differences"
    );
    assert_eq!(told("#!/bin/sh\n#HQ --cpus 2\necho #SBATCH -n 3"), "");
}

#[test]
fn no_name_or_value_becomes_a_command() {
    let text = "#!/bin/sh\n#SBATCH --export=A='x\\(y\\)' --chdir=/d\n";
    for (name, options) in [
        ("a\ntouch x\n.sh", ""),
        ("b.sh", "--export='B=1\ntouch x' -J 'c\rd'"),
    ] {
        let source = Source {
            name,
            text,
            options,
            system: None,
        };
        let conversion = convert(source).expect("lines of a batch system");
        let script = converted(source, &conversion);
        let commands = script.lines().filter(|line| {
            !line.starts_with('#') && !line.starts_with("exec ") && !line.starts_with("export ")
        });
        assert_eq!(commands.collect::<Vec<_>>(), Vec::<&str>::new(), "{script}");
        assert!(script.contains("#HQ --cwd /d\n"), "{script}");
        // Options that a line cannot contain are passed unchanged to the shell.
        let outer: Vec<&str> = conversion.outer().flatten().map(String::as_str).collect();
        assert!(outer.contains(&"A=x\\(y\\)"), "{outer:?}");
    }
}

#[test]
fn values_of_variables_are_not_shown_with_a_script_that_is_only_looked_at() {
    let text = "#SBATCH -c 2\necho $CARGO_MANIFEST_DIR\n";
    let source = Source {
        name: "a.sh",
        text,
        options: "",
        system: None,
    };
    let conversion = convert(source).expect("lines of a batch system");
    let outer: Vec<&str> = conversion.outer().flatten().map(String::as_str).collect();
    let Ok(value) = std::env::var("CARGO_MANIFEST_DIR") else {
        panic!("cargo sets it");
    };
    assert!(outer.iter().any(|word| word.contains(&value)), "{outer:?}");
    let told = warning("a.sh", text, true).expect("it has such a line");
    assert!(!told.contains(&value), "{told}");
}
