//! `hq import`: runs scripts for Slurm, PBS and LSF from the documentation of computing centers.
//!
//! The scripts are in `tests/batch_scripts`. Compilers, modules and MPI are not needed: here,
//! `mpirun`, `srun` and `module` are small scripts that print their arguments.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use serde_json::Value;

use crate::harness::Env;

fn script(name: &str) -> String {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/batch_scripts");
    let path = dir.join(name);
    path.to_str().expect("a path in Unicode").to_owned()
}

/// Creates a directory with the programs that the scripts call, without a server.
fn site() -> Env {
    let mut env = Env::new();
    std::fs::create_dir(env.path("bin")).expect("a directory");
    for (name, text) in [
        (
            "bin/mpirun",
            "echo mpirun \"$@\"; [ -z \"$HYDRA_HOST_FILE\" ] || wc -l < \"$HYDRA_HOST_FILE\"",
        ),
        ("bin/srun", "exec \"$@\""),
        ("bin/module", "true"),
        ("bin/mail", "cat > /dev/null"),
    ] {
        let path = env.write(name, format!("#!/bin/sh\n{text}\n"));
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).expect("permissions");
    }
    let path = std::env::var("PATH").unwrap_or_default();
    env.set("PATH", &format!("{}:{path}", env.path("bin").display()));
    env.set("USER", "somebody");
    for name in [
        "SLURM_JOB_ID",
        "SLURM_JOBID",
        "SLURM_JOB_NODELIST",
        "INPUT_FILE",
    ] {
        assert!(std::env::var(name).is_err(), "{name} is set");
    }
    env
}

/// Submits a script and waits until it ends. Returns the id and state of the job, and the messages.
fn run(env: &Env, words: &[&str]) -> (String, String, String) {
    let ran = env.hq(&[&["import", "--submit", "--output-mode=quiet"], words].concat());
    let told = ran.stderr.clone();
    let job = ran.ok().trim().to_owned();
    env.wait_job(&job);
    (job.clone(), state(env, &job), told)
}

fn state(env: &Env, job: &str) -> String {
    let info = &env.json(&["job", "info", job])[0]["info"];
    let stats = &info["task_stats"];
    let count = |name: &str| stats[name].as_u64().unwrap_or(0);
    format!("{} finished, {} failed", count("finished"), count("failed"))
}

#[test]
fn serial_jobs_arrays_and_what_follows_them_end_as_in_a_batch_job() {
    let mut env = site();
    env.start_server();
    env.start_worker_with(&["--cpus=4", "--resource=mem=2G"]);
    let place = env.path("").canonicalize().expect("a directory");
    let place = place.display();

    let (job, ended, told) = run(&env, &[&script("serial.sh")]);
    assert_eq!(ended, "1 finished, 0 failed");
    assert_eq!(
        env.read(&format!("serial_test_{job}.log")),
        format!(
            "node count 1, tasks 1\n&run\n  title = \"job serial-job in {place}\"\n#SBATCH --mem=900G\n/\na warning\n"
        )
    );
    assert!(
        told.contains("-- --partition=standard --account=project_462000001"),
        "{told}"
    );

    env.write("params.txt", "0.1 1\n0.1 2\n0.01 1\n0.01 2\n");
    let (scan, ended, told) = run(&env, &[&script("array.sh")]);
    assert_eq!(ended, "4 finished, 0 failed");
    assert!(!told.contains("%2"), "{told}");
    let out = |task: u32| env.read(&format!("logs/param-scan-{scan}-{task}.out"));
    assert_eq!(out(3), "task 3/4 lr=0.01 seed=1\n");
    assert_eq!(
        env.read(&format!("logs/param-scan-{scan}-4.err")),
        "last one\n"
    );

    let after = format!("--dependency=afterok:{scan}");
    let (post, ended, _) = run(&env, &["--options", &after, &script("post.sh")]);
    assert_eq!(ended, "1 finished, 0 failed");
    assert!(
        env.read("post.out")
            .ends_with("task 4/4 lr=0.01 seed=2\nmerged all\n")
    );
    assert_eq!(env.read("post.err"), "");
    let info = &env.json(&["job", "info", &post])[0];
    assert!(info.to_string().contains("post.out"), "{info}");

    let (job, ended, told) = run(&env, &[&script("python.py"), "--fast", "a b"]);
    assert_eq!(ended, "4 finished, 0 failed");
    assert!(told.contains("`--dependency=singleton`"), "{told}");
    assert_eq!(
        env.read("py_10.txt"),
        "square of 10 is 100, ids from 0 to 10, input '', ['--fast', 'a b']\n"
    );
    assert_eq!(
        env.json(&["job", "info", &job])[0]["info"]["name"],
        "py-array"
    );
}

#[test]
fn threads_ranks_and_gpus_end_as_in_a_batch_job() {
    let mut env = site();
    env.start_server();
    env.start_worker_with(&[
        "--cpus=4",
        "--resource=mem=2G",
        "--resource=gpus/nvidia=[0,7]",
    ]);

    let (job, ended, _) = run(&env, &[&script("openmp.sh")]);
    assert_eq!(ended, "1 finished, 0 failed");
    assert!(
        env.read(&format!("slurm-{job}.out"))
            .ends_with("threads 3 of 3\n")
    );

    let (job, ended, told) = run(&env, &[&script("mpi.sh")]);
    assert_eq!(ended, "1 finished, 0 failed");
    assert_eq!(
        env.read("mpi-hello.out"),
        "Running on 4 ranks\nmpirun -np 4 ./hello.x\n"
    );
    assert!(told.contains("--constraint=cpu"), "{told}");
    let asked = env.json(&["job", "info", &job])[0].to_string();
    assert!(asked.contains("\"cpus\""), "{asked}");

    let (job, ended, told) = run(&env, &[&script("gpu.sh")]);
    assert_eq!(ended, "1 finished, 0 failed");
    let text = env.read(&format!("train-{job}.out"));
    assert!(text.starts_with("gpus 1 visible "), "{text}");
    assert!(text.contains(" restart 0\nrank 0 workers 2\n"), "{text}");
    assert!(told.contains("line 12: `srun` starts a step"), "{told}");
}

#[test]
fn a_job_of_two_nodes_gets_them_with_their_names() {
    let mut env = site();
    env.start_server();
    env.start_worker_with(&["--cpus=2", "--hostname=one.cluster"]);
    env.start_worker_with(&["--cpus=2", "--hostname=two.cluster"]);
    let (job, ended, told) = run(&env, &[&script("mpi_nodes.sh")]);
    assert_eq!(ended, "1 finished, 0 failed");
    let text = env.read(&format!("mpi_{job}.out"));
    let lines: Vec<&str> = text.lines().collect();
    assert!(
        ["nodes 2: one,two", "nodes 2: two,one"].contains(&lines[0]),
        "{text}"
    );
    assert_eq!(lines[1], "mpirun -n 4 --map-by ppr:2:node ./hello.x");
    assert_eq!(lines[2], "2", "{text}");
    assert!(told.contains("tasks get whole nodes, so memory"), "{told}");
    assert!(told.contains("$HQ_NODE_FILE"), "{told}");
}

#[test]
fn failures_signals_and_scratch_space_are_those_of_the_script() {
    let mut env = site();
    let input = env.write("three.txt", "1\n2\n3\n");
    env.start_server();
    env.start_worker_with(&["--cpus=2", "--resource=mem=1G"]);
    env.set("INPUT_FILE", input.to_str().expect("a path in Unicode"));

    let (job, ended, told) = run(&env, &[&script("scratch.sh")]);
    assert_eq!(ended, "0 finished, 1 failed");
    assert_eq!(env.read(&format!("slurm-{job}.out")).trim(), "3");
    assert_eq!(
        env.read(&format!("scratch job.{job}.err")),
        "cannot converge\n"
    );
    assert!(told.contains("`--tmp=1G`: not translated"), "{told}");
    assert!(told.contains("`--mail-type=BEGIN`"), "{told}");
    let info = env.hq(&["job", "info", &job]).ok();
    assert!(info.contains("on end: cmd:mail"), "{info}");

    // The script's signal handler also runs on a cancel, so there is no need to wait for the limit.
    let ran = env.hq(&[
        "import",
        "--submit",
        "--output-mode=quiet",
        &script("checkpoint.sh"),
    ]);
    let told = ran.stderr.clone();
    let job = ran.ok().trim().to_owned();
    let info = &env.json(&["job", "info", &job])[0].to_string();
    assert!(info.contains("7140"), "{info}");
    env.wait_lines("checkpoint.out", 1);
    env.hq(&["job", "cancel", &job]).ok();
    let text = env.wait_lines("checkpoint.out", 2);
    assert!(text.starts_with("step 0\nsaved at step "), "{text}");
    assert!(
        told.contains("a task that receives it counts as failed"),
        "{told}"
    );
    assert!(told.contains("`--open-mode=append`"), "{told}");
}

#[test]
fn scripts_of_pbs_and_lsf_end_as_in_a_batch_job() {
    let mut env = site();
    env.start_server();
    env.start_worker_with(&["--cpus=2", "--resource=mem=1G"]);

    let (job, ended, told) = run(&env, &[&script("array.pbs")]);
    assert_eq!(ended, "2 finished, 0 failed");
    let text = env.read(&format!("pbs_array.o{job}.2"));
    assert!(
        text.starts_with("index 2, 2 slots, ncpus 2\nmpirun -machinefile "),
        "{text}"
    );
    assert!(text.ends_with("-np 2 ./hello.x\ndone\n"), "{text}");
    assert!(
        told.contains("`-q workq -A project`: belongs to the workers"),
        "{told}"
    );

    let (job, ended, told) = run(&env, &[&script("array.lsf")]);
    assert_eq!(ended, "2 finished, 0 failed");
    assert_eq!(
        env.read(&format!("lsf.{job}.1.out")),
        "index 1 of lsf_job with 2 slots\n"
    );
    assert!(!told.contains("%1"), "{told}");
}

#[test]
fn converted_scripts_are_printed_and_can_be_submitted() {
    let mut env = site();
    env.write("params.txt", "1 1\n2 2\n3 3\n4 4\n");
    let printed = env.hq(&["import", &script("array.sh")]);
    let text = printed.ok();
    assert!(
        text.starts_with(
            "#!/usr/bin/env bash\n#HQ --name param-scan\n#HQ --array 1-4\n#HQ --max-running 2\n"
        ),
        "{text}"
    );
    assert!(!text.contains("#SBATCH"), "{text}");
    env.write("array.hq.sh", &text);

    let json = env.json(&[
        "import",
        "--options=--dependency=afterany:1 -J x",
        &script("post.sh"),
    ]);
    let words: Vec<&str> = json["submit"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    assert_eq!(words, ["hq", "submit", "--after", "1:any"]);
    assert!(
        json["script"]
            .as_str()
            .is_some_and(|script| script.contains("#HQ --name x\n"))
    );
    assert_eq!(
        (
            json["system"].as_str(),
            json["notes"].as_array().map(Vec::len)
        ),
        (Some("slurm"), Some(0))
    );

    env.start_server();
    env.start_worker_with(&["--cpus=2", "--resource=mem=1G"]);
    let job = env.submit(&["--wait", "./array.hq.sh"]);
    assert_eq!(state(&env, &job), "4 finished, 0 failed");
    let logged = env.read(&format!("logs/param-scan-{job}-2.out"));
    assert_eq!(logged, "task 2/4 lr=2 seed=2\n");

    // Untranslated options are reported at their position.
    env.write("none.sh", "#!/bin/sh\necho\n");
    env.hq(&["import", "none.sh"])
        .exits_with(1)
        .says("none.sh has no #SBATCH, #PBS or #BSUB lines");
    env.hq(&["import", "--system=slurm", "--options=-J a -c 2", "none.sh"])
        .says("#HQ --cpus 2\n");
    // A device has no end, but a script does.
    env.hq(&["import", "/dev/zero"])
        .exits_with(1)
        .says("/dev/zero has more than 4194304 bytes");
    let script = script("mpi.sh");
    for words in [&[script.as_str()][..], &["bash", &script]] {
        let ran = env.hq(&[&["submit"], words].concat());
        assert!(
            ran.stderr.contains("mpi.sh has 6 #SBATCH lines"),
            "{}",
            ran.stderr
        );
        assert!(ran.stderr.contains("`hq import "), "{}", ran.stderr);
    }
}
