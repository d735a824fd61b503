//! Automatic allocation with scripted batch system programs, for cases that neither the real Slurm
//! of `batch_slurm.rs` nor the stand-in of `batch_pbs.rs` produces.

use std::os::unix::fs::PermissionsExt as _;

use crate::harness::{Env, signal};

/// Creates an environment with shell scripts as the programs of a batch system. Each call is
/// recorded.
fn env_with(programs: &[(&str, &str)]) -> Env {
    env_of(programs, &[])
}

/// Like `env_with`, with these variables in the server's environment.
fn env_of(programs: &[(&str, &str)], variables: &[(&str, &str)]) -> Env {
    let mut env = Env::new();
    for (name, value) in variables {
        env.set(name, value);
    }
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

/// Returns the calls that begin with these words.
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
        // The output contains no id, so the job is found by its name.
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
        // Some sites change the names of jobs.
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

/// An `sbatch` that starts its job at once, and a `scontrol` that answers with the file `state`.
const RUN: &str = "env >env; SLURM_JOB_ID=105 setsid bash $1 >/dev/null 2>&1 & sleep 0.3; echo Submitted batch job 105";
const SHOW: &str = "echo \"JobId=105 $(cat state)\"";

/// Creates a server with a queue whose jobs run. `state` is the output of `scontrol`, such as
/// `TimeLimit`.
fn env_that_runs(state: &str, variables: &[(&str, &str)], options: &[&str]) -> Env {
    let programs = [
        ("sbatch", RUN),
        ("scontrol", SHOW),
        ("scancel", ""),
        ("squeue", ""),
    ];
    let env = env_of(&programs, variables);
    env.write("state", state);
    let add = ["alloc", "add", "slurm", "-t1h", "--cpus=1", "--no-dry-run"];
    env.hq(&[&add[..], options].concat()).ok();
    env
}

/// Waits until an allocation of queue 1 has this state.
fn wait_state(env: &Env, state: &str) {
    env.wait_for(state, || {
        let all = env.json(&["alloc", "info", "1"]);
        let all = all.as_array().cloned().unwrap_or_default();
        let has = all.iter().any(|a| a["status"] == state);
        has.then_some(()).ok_or(format!("{all:?}"))
    });
}

#[test]
fn a_requeued_allocation_is_still_ours() {
    let mut env = env_that_runs("JobState=RUNNING", &[], &[]);
    env.submit(&["--stdout=none", "--stderr=none", "sleep", "100"]);
    wait_state(&env, "running");
    env.wait_for("its worker is there", || {
        let workers = env.workers();
        if workers.is_empty() {
            Err("none".to_owned())
        } else {
            Ok(())
        }
    });
    env.write("state", "JobState=PENDING Reason=BeginTime");
    env.hq(&["worker", "stop", "1"]).ok();
    wait_state(&env, "queued");
    env.hq(&["server", "stop"]).ok();
    env.wait_exit("server");
    let mut canceled = calls(&env, "scancel");
    // The server repeats a cancellation that it cannot see the effect of.
    canceled.dedup();
    assert_eq!(canceled, ["scancel 105"]);
}

#[test]
fn the_words_of_the_batch_system_stand_next_to_the_state_and_stay() {
    let mut env = env_that_runs("JobState=RUNNING", &[], &[]);
    env.submit(&["--stdout=none", "--stderr=none", "sleep", "100"]);
    wait_state(&env, "running");
    let shows = |env: &Env, state: &str, reason: &str| {
        env.wait_for(reason, || {
            let all = env.json(&["alloc", "info", "1", "-v"]);
            let found = (&all[0]["status"], &all[0]["reason"]);
            (found == (&state.into(), &reason.into()))
                .then_some(())
                .ok_or(all.to_string())
        });
        env.hq(&["alloc", "info", "1", "-v"]).says(reason);
    };
    env.write("state", "JobState=SUSPENDED");
    shows(&env, "running", "SUSPENDED");
    let dir = env.json(&["alloc", "info", "1"])[0]["workdir"].clone();
    let dir = std::path::PathBuf::from(dir.as_str().expect("a path"));
    std::fs::write(dir.join("stderr"), "Started.\nno module gcc/13\n").expect("it is ours");
    env.write("state", "JobState=FAILED ExitCode=3:0");
    let reason = "FAILED: exit code 3; the last line of its stderr: no module gcc/13";
    shows(&env, "failed", reason);
    kill_server(&mut env);
    env.start_server_with(&["--resume"]);
    shows(&env, "failed", reason);
    let keys = env.json(&["alloc", "info", "1"]);
    assert!(keys[0].get("reason").is_none(), "only with -v: {keys}");
}

#[test]
fn the_log_of_an_allocation_is_found_where_the_user_put_it() {
    for (option, file, stream) in [
        ("--output=out-%j.txt", "out-105.txt", "stdout"),
        ("-o sub/%x-%8j-100%%", "sub/hq-1-1-00000105-100%", "stdout"),
        ("--error=/%j/e", "/105/e", "stderr"),
    ] {
        let env = env_that_runs("JobState=RUNNING", &[], &[]);
        let root = env.path("logs").display().to_string();
        let option = option.replace("=/", &format!("={root}/"));
        let add = ["alloc", "add", "slurm", "-t1h", "--no-dry-run", "--"];
        env.hq(&["alloc", "remove", "1"]).ok();
        let words: Vec<&str> = option.split(' ').collect();
        env.hq(&[&add[..], &words].concat()).ok();
        env.submit(&["--stdout=none", "--stderr=none", "sleep", "100"]);
        let dir = env.wait_for("the allocation", || {
            let all = env.json(&["alloc", "info", "2"]);
            all[0]["workdir"]
                .as_str()
                .map(str::to_owned)
                .ok_or(all.to_string())
        });
        let file = file.replace("hq-1-1", "hq-2-1");
        let path = match file.strip_prefix('/') {
            Some(rest) => std::path::Path::new(&root).join(rest),
            None => std::path::Path::new(&dir).join(&file),
        };
        std::fs::create_dir_all(path.parent().expect("it has one")).expect("it is ours");
        std::fs::write(&path, "what it printed").expect("it is ours");
        let shown = env.hq(&["alloc", "log", "105", stream]).ok();
        assert_eq!(shown, "what it printed", "{option}");
    }
}

#[test]
fn an_answer_that_cannot_be_read_deletes_nothing() {
    for answer in [
        // Output of an older PBS.
        r#"printf '{"Jobs":{"12.pbs":{"job_state":"Q","Priority":007,"Variable_List":{"F":"() {\n x\n}"}}}}\n'"#,
        r#"echo '{"Jobs":{"12.pbs":{{{'"#,
    ] {
        let env = env_with(&[("qsub", "echo 12.pbs"), ("qstat", answer), ("qdel", "")]);
        env.hq(&["alloc", "add", "pbs", "--no-dry-run", "-t1h", "--cpus=1"])
            .ok();
        env.submit(&["--stdout=none", "--stderr=none", "true"]);
        env.wait_for("it was asked for often", || {
            let count = calls(&env, "qstat").len();
            (count > 40).then_some(()).ok_or(count.to_string())
        });
        wait_state(&env, "queued");
        assert_eq!(
            (calls(&env, "qsub").len(), calls(&env, "qdel").len()),
            (1, 0)
        );
    }
}

#[test]
fn tasks_longer_than_workers_live_bring_no_row_of_allocations() {
    for (state, request, submitted, figures) in [
        // The limit of the queue, minus the time that a worker needs to end.
        (
            "",
            "59m55s",
            0,
            "workers of this queue live 59m 50s; the task asks for 59m 55s",
        ),
        // The user's own limit, which the first worker reports.
        (
            "TimeLimit=00:10:00 RunTime=00:00:01",
            "20m",
            1,
            "workers of this queue live 9m 49s; the task asks for 20m",
        ),
    ] {
        let env = env_that_runs(&format!("JobState=RUNNING {state}"), &[], &[]);
        env.submit(&[
            "--time-request",
            request,
            "--stdout=none",
            "--stderr=none",
            "true",
        ]);
        env.wait_for("the figures", || {
            let mut info = env.command(&["alloc", "info", "1"]);
            let shown = info.output().expect("it runs");
            let text = String::from_utf8_lossy(&shown.stderr).into_owned()
                + &String::from_utf8_lossy(&shown.stdout);
            text.contains(figures).then_some(()).ok_or(text)
        });
        env.hq(&["task", "explain", "-v", "1.0"]).says(figures);
        for command in ["status", "problems"] {
            env.hq(&[command]).says(figures);
        }
        let asked = calls(&env, "scontrol").len();
        env.wait_for("ten rounds more", || {
            let more = calls(&env, "scontrol").len() - asked;
            (submitted == 0 || more >= 10)
                .then_some(())
                .ok_or(more.to_string())
        });
        assert_eq!(calls(&env, "sbatch").len(), submitted, "{request}");
        env.hq(&["worker", "stop", "all"]).ok();
    }
}

#[test]
fn variables_of_the_job_of_the_server_do_not_reach_sbatch() {
    let variables = [
        ("SLURM_MEM_PER_CPU", "100"),
        ("SBATCH_WAIT", "1"),
        ("SRUN_DEBUG", "3"),
        ("SBATCH_ACCOUNT", "a"),
    ];
    let env = env_that_runs("JobState=RUNNING", &variables, &[]);
    env.submit(&["--stdout=none", "--stderr=none", "true"]);
    wait_state(&env, "running");
    let text = env.read("env");
    let passed = variables
        .iter()
        .filter(|(name, _)| text.contains(&format!("{name}=")));
    let passed: Vec<&str> = passed.map(|(name, _)| *name).collect();
    assert_eq!(passed, ["SBATCH_ACCOUNT"]);
    for options in ["--array=1-3", "--wait"] {
        env.hq(&["alloc", "add", "slurm", "-t1h", "--", options])
            .says("cannot work")
            .exits_with(1);
    }
    env.hq(&["alloc", "add", "pbs", "-t1h", "--", "-l", "select=2"])
        .says("cannot work")
        .exits_with(1);
    env.hq(&["worker", "stop", "all"]).ok();
}

/// A program that exits with 1 on SIGTERM, like drivers whose child was killed. Its second run
/// succeeds.
const TRAPS: &str =
    "[ -e first ] && exit 0; trap 'exit 1' TERM; echo $$ >new; mv new first; sleep 100 & wait";

#[test]
fn a_task_that_fails_by_the_end_of_its_allocation_runs_again() {
    for (name, state) in [
        ("TERM", "COMPLETING"),
        ("TERM", "PENDING Reason=BeginTime"),
        ("TSTP", "SUSPENDED"),
    ] {
        let mut env = env_that_runs("JobState=RUNNING", &[], &[]);
        let limits = ["--crash-limit=1", "--stdout=none", "--stderr=none"];
        let job = env.submit(&[&limits[..], &["bash", "-c", TRAPS]].concat());
        let task = env.wait_lines("first", 1);
        let info = env.hq(&["worker", "info", "1"]).ok();
        let row = info.lines().find(|line| line.contains("Process pid"));
        let worker = row.and_then(|row| row.split(['|', ' ']).find_map(|word| word.parse().ok()));
        env.write("state", format!("JobState={state}"));
        signal(task.trim().parse().expect("a number"), "TERM");
        let worker = worker.unwrap_or_else(|| panic!("{info}"));
        signal(worker, name);
        env.wait_for("its worker has left", || {
            let workers = env.workers();
            let has_left = workers == ["CONNECTION LOST"];
            has_left.then_some(()).ok_or(format!("{workers:?}"))
        });
        if name == "TSTP" {
            // The worker's front process is suspended with the whole job until the batch system
            // resumes it.
            signal(worker, "CONT");
        }
        env.start_worker(1);
        env.wait_job(&job);
        let tasks = env.tasks(&job);
        assert_eq!(tasks[0]["state"], "finished", "{state}: {tasks:?}");
    }
}

/// Creates a Slurm whose jobs are separate process groups. It uses each id once. If there is a file
/// `hold-PROGRAM`, it waits before it does anything; if there is a file `late-PROGRAM`, it waits
/// before it answers.
fn env_of_processes(options: &[&str]) -> Env {
    const AROUND: [&str; 2] = [
        "while [ -e hold-NAME ]; do sleep 0.02; done",
        "while [ -e late-NAME ]; do sleep 0.02; done",
    ];
    let around = |name: &str, body: &str| {
        let [before, after] = AROUND.map(|text| text.replace("NAME", name));
        format!("mkdir -p jobs; {before}\n{body}\n{after}\n")
    };
    let alive = "alive() { kill -0 -- -$(cat jobs/$1.pid) 2>/dev/null; }\n";
    let sbatch = around(
        "sbatch",
        "exec 9>lock; flock 9; n=$(ls jobs | grep -c pid); id=$((101 + n))\n\
         sed -n 's/^#SBATCH --job-name=//p' $1 >jobs/$id.name; dirname $1 >jobs/$id.dir\n\
         SLURM_JOB_ID=$id setsid bash $1 9>&- >/dev/null 2>&1 & pid=$!\n\
         while kill -0 $pid 2>/dev/null && ! kill -0 -- -$pid 2>/dev/null; do sleep 0.01; done\n\
         echo $pid >jobs/$id.pid; flock -u 9",
    ) + "echo Submitted batch job $id";
    let scontrol = alive.to_owned()
        + "id=${@: -1}; [ -e jobs/$id.pid ] || { echo Invalid job id specified >&2; exit 1; }\n\
           state=COMPLETED; [ -e jobs/$id.canceled ] && state=CANCELLED; alive $id && state=RUNNING\n\
           echo \"JobId=$id JobName=$(cat jobs/$id.name) JobState=$state WorkDir=$(cat jobs/$id.dir)\"";
    let scancel = around(
        "scancel",
        "id=${@: -1}; touch jobs/$id.canceled; kill -- -$(cat jobs/$id.pid) 2>/dev/null",
    );
    let squeue = "for word in \"$@\"; do case $word in --name=*) name=${word#--name=};; esac; done\n\
                  for id in $(grep -lx \"$name\" jobs/*.name 2>/dev/null | grep -o '[0-9]*'); do \
                  echo $id $(cat jobs/$id.dir); done";
    let env = env_with(&[
        ("sbatch", &sbatch),
        ("scontrol", &scontrol),
        ("scancel", &scancel),
        ("squeue", squeue),
    ]);
    let add = ["alloc", "add", "slurm", "-t1h", "--cpus=1", "--no-dry-run"];
    env.hq(&[&add[..], options].concat()).ok();
    env
}

/// Returns the ids of the jobs that this Slurm has run, and of the jobs with living processes.
fn jobs_of(env: &Env) -> (Vec<String>, Vec<String>) {
    let names = std::fs::read_dir(env.path("jobs")).into_iter().flatten();
    let names = names.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut all: Vec<String> = names
        .filter_map(|name| name.strip_suffix(".pid").map(str::to_owned))
        .collect();
    all.sort();
    let is_alive = |id: &&String| {
        let group = env.read(&format!("jobs/{id}.pid"));
        let mut kill = std::process::Command::new("kill");
        let found = kill
            .args(["-0", "--", &format!("-{}", group.trim())])
            .output();
        found.is_ok_and(|found| found.status.success())
    };
    let alive = all.iter().filter(is_alive).cloned().collect();
    (all, alive)
}

fn kill_server(env: &mut Env) {
    let pid = env.json(&["server", "info"])["pid"]
        .as_u64()
        .expect("a number");
    signal(u32::try_from(pid).expect("small"), "KILL");
    env.wait_exit("server");
}

/// Eight tasks run, each in a separate allocation. Half of them end while the server is away.
#[test]
fn no_task_in_an_allocation_runs_twice_when_the_server_is_away() {
    let mut env = env_of_processes(&["-b8", "--idle-timeout=2s"]);
    let script = "echo $HQ_TASK_ID >>ran; until test -e go-$((HQ_TASK_ID % 2)); do sleep 0.05; done; echo >>ended";
    let job = env.submit(&[
        "--array=1-8",
        "--stdout=none",
        "--stderr=none",
        "bash",
        "-c",
        script,
    ]);
    env.wait_lines("ran", 8);
    kill_server(&mut env);
    env.write("go-0", "");
    env.wait_lines("ended", 4);
    env.start_server_with(&["--resume"]);
    env.write("go-1", "");
    env.wait_job(&job);
    let ran = env.read("ran");
    let mut ran: Vec<&str> = ran.lines().collect();
    ran.sort_unstable();
    assert_eq!(ran, ["1", "2", "3", "4", "5", "6", "7", "8"]);
    assert_eq!(env.stats(&job)["finished"], 8);
    env.wait_for("all allocations end", || {
        let (all, alive) = jobs_of(&env);
        (alive.is_empty() && all.len() == 8)
            .then_some(())
            .ok_or(format!("{all:?} {alive:?}"))
    });
}

/// The server is killed at these moments of the life of an allocation; the next one knows it, or ends it.
#[test]
fn a_server_that_is_killed_while_it_allocates_leaves_no_allocation_behind_and_makes_none_twice() {
    for (moment, is_removed) in [
        ("late-sbatch", false),
        ("sbatch", false),
        ("ran", false),
        ("hold-scancel", true),
        ("late-scancel", true),
    ] {
        let mut env = env_of_processes(&["-b1", "--max-worker-count=1", "--idle-timeout=1s"]);
        if moment.contains('-') {
            env.write(moment, "");
        }
        let script = "echo >>ran; until test -e go; do sleep 0.02; done";
        let job = env.submit(&["--stdout=none", "--stderr=none", "bash", "-c", script]);
        if is_removed {
            env.wait_lines("ran", 1);
            env.hq(&["alloc", "remove", "1", "--force"]).ok();
        }
        env.wait_for("the moment", || {
            let is_now = match moment {
                "ran" => env.path("ran").exists(),
                "hold-scancel" => !calls(&env, "scancel").is_empty(),
                "late-scancel" => env.path("jobs/101.canceled").exists(),
                _ => env.path("jobs/101.pid").exists(),
            };
            is_now
                .then_some(())
                .ok_or_else(|| format!("{moment}: {}", env.read("calls")))
        });
        kill_server(&mut env);
        if moment.contains('-') {
            std::fs::remove_file(env.path(moment)).expect("it was made above");
        }
        env.start_server_with(&["--resume"]);
        env.write("go", "");
        if !is_removed {
            env.wait_job(&job);
            assert_eq!(env.read("ran").lines().count(), 1, "{moment}");
        }
        env.wait_for("all allocations end", || {
            let (all, alive) = jobs_of(&env);
            (alive.is_empty() && all.len() == 1)
                .then_some(())
                .ok_or(format!("{moment}: {all:?} {alive:?}"))
        });
        env.hq(&["server", "stop"]).ok();
        env.wait_exit("server");
    }
}
