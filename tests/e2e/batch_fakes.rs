//! Automatic allocation on programs that answer as a test says: what neither the real Slurm of `batch_slurm.rs` nor the
//! stand-in of `batch_pbs.rs` does.

use std::os::unix::fs::PermissionsExt as _;

use crate::harness::Env;

/// An environment in which these programs of a batch system are shell scripts. Each call is written down.
fn env_with(programs: &[(&str, &str)]) -> Env {
    let mut env = Env::new();
    let bin = env.path("bin");
    std::fs::create_dir(&bin).expect("create a directory");
    for (name, body) in programs {
        let root = env.path("").display().to_string();
        let script = format!("#!/bin/bash\ncd {root}\necho \"{name} $*\" >>calls\n{body}\n");
        let path = env.write(&format!("bin/{name}"), script);
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(path, mode).expect("it is ours");
    }
    let search = std::env::var("PATH").unwrap_or_default();
    env.set("PATH", &format!("{}:{search}", bin.display()));
    env.set("HQ_AUTOALLOC_SCHEDULE_TICK_INTERVAL_MS", "200");
    env.set("HQ_AUTOALLOC_MAX_SCHEDULE_DELAY_MS", "500");
    env.set("HQ_AUTOALLOC_REFRESH_INTERVAL_MS", "300");
    env.write("calls", "");
    env.start_server();
    env
}

/// Calls that begin with these words.
fn calls(env: &Env, begin: &str) -> Vec<String> {
    let calls = env.read("calls");
    let found = calls.lines().filter(|call| call.starts_with(begin));
    found.map(str::to_owned).collect()
}

const PENDING: &str = "echo \"JobId=${@: -1} JobState=PENDING Reason=Priority\"";

#[test]
fn a_trial_is_canceled_on_its_cluster_whatever_sbatch_prints() {
    for (sbatch, options, cancel, code) in [
        (
            "echo Submitted batch job 105 on cluster cm4",
            "--clusters=cm4",
            "scancel --clusters=cm4 105",
            0,
        ),
        ("echo Hello; echo 4711", "", "scancel 4711", 0),
        (
            "echo '4711;cm4'",
            "-M cm4",
            "scancel --clusters=cm4 4711",
            0,
        ),
        (
            "echo 4711",
            "--clusters cm4",
            "scancel --clusters=cm4 4711",
            0,
        ),
        // Nothing to read: it is found by its name.
        ("echo Done", "", "scancel 77", 1),
        ("echo Done", "-M a,b", "scancel --clusters=b 77", 1),
    ] {
        let squeue = match options {
            "-M a,b" => "echo CLUSTER: a; echo CLUSTER: b; echo 77",
            _ => "echo 77",
        };
        let env = env_with(&[
            ("sbatch", sbatch),
            ("scontrol", PENDING),
            ("scancel", ""),
            ("squeue", squeue),
        ]);
        let mut words = vec!["alloc", "add", "slurm", "-t1h", "--cpus=1", "--"];
        words.extend(options.split_whitespace());
        env.hq(&words).exits_with(code);
        assert_eq!(calls(&env, "scancel"), [cancel], "{sbatch} {options}");
        let cluster = cancel
            .split(' ')
            .find(|word| word.starts_with("--clusters="));
        for asked in calls(&env, "scontrol") {
            assert_eq!(
                asked
                    .split(' ')
                    .find(|word| word.starts_with("--clusters=")),
                cluster,
                "{asked}"
            );
        }
    }
}

#[test]
fn a_job_of_another_name_or_directory_is_left_alone() {
    for (own, is_ours) in [
        ("JobName=theirs WorkDir=/elsewhere", false),
        ("JobName=hq-1-1 WorkDir=/elsewhere", false),
        ("JobName=theirs", false),
        // Some sites change names.
        ("JobName=site-x WorkDir=$(cat dir)", true),
    ] {
        let show = format!("echo \"JobId=105 JobState=RUNNING {own}\"");
        let mut env = env_with(&[
            (
                "sbatch",
                "dirname \"$1\" >dir; echo Submitted batch job 105",
            ),
            ("scontrol", &show),
            ("scancel", ""),
            ("squeue", ""),
        ]);
        env.hq(&["alloc", "add", "slurm", "-t1h", "--cpus=1", "--no-dry-run"])
            .ok();
        env.submit(&["--stdout=none", "--stderr=none", "true"]);
        let state = if is_ours { "running" } else { "failed" };
        env.wait_for("the job was looked at", || {
            let all = env.json(&["alloc", "info", "1"]);
            (all[0]["status"] == state)
                .then_some(())
                .ok_or(all.to_string())
        });
        env.hq(&["server", "stop"]).ok();
        env.wait_exit("server");
        assert_eq!(calls(&env, "scancel").len(), usize::from(is_ours), "{own}");
    }
}
