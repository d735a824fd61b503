//! GPU usage of tasks, with a stand-in for the library of NVIDIA's driver.

use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::harness::{Env, processes_with, skip, wait_for, wait_for_up_to};
use crate::http::Site;
use crate::web::rendered;

/// Starts a server, and a worker with two GPUs of these names. Returns `None` if the library cannot
/// be built here.
fn with_gpus(names: &str) -> Option<Env> {
    let mut env = Env::new();
    let dir = env.path("nvml");
    std::fs::create_dir(&dir).expect("it is new");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/e2e/nvml.c");
    let library = dir.join("libnvidia-ml.so.1");
    let made = Command::new("cc")
        .args(["-O1", "-shared", "-fPIC", "-o"])
        .args([&library, &source])
        .output();
    if !made.as_ref().is_ok_and(|made| made.status.success()) {
        skip(&format!("the library cannot be compiled: {made:?}"));
        return None;
    }
    env.start_server_with(&["--http"]);
    let dir = dir.display().to_string();
    let [path, fake] = [format!("LD_LIBRARY_PATH={dir}"), format!("FAKE_NVML={dir}")];
    let gpus = format!("--resource=gpus/nvidia={names}");
    env.start_worker_behind(&["env", &path, &fake], &["--cpus=2", &gpus]);
    Some(env)
}

fn numbers(list: &Value) -> Vec<Option<f64>> {
    let list = list.as_array().expect("a list");
    list.iter().map(Value::as_f64).collect()
}

fn most(list: &Value) -> f64 {
    let known = numbers(list).into_iter().flatten();
    known.fold(0.0, f64::max)
}

/// Returns the processes of this program that use the library in the directory `nvml`. Zombies do
/// not count.
fn asking(env: &Env) -> Vec<u32> {
    let dir = env.path("nvml").display().to_string();
    let mut pids = processes_with("gpu-usage");
    pids.retain(|pid| {
        let own = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        String::from_utf8_lossy(&own).contains(&dir)
    });
    pids
}

/// Waits until a process has ended and was reaped.
fn wait_gone(pid: u32) {
    wait_for("a process is gone", || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
        stat.map_or(Ok(()), Err)
    });
}

/// A script that loses the second device after two samples of both devices, and continues for three
/// more.
const SCRIPT: &str = r#"
cd nvml
echo $$ > pid.new; mv pid.new pid
looks() { grep -c "$1" asked 2> /dev/null; }
until [ "$(looks 1)" -ge 2 ] 2> /dev/null; do sleep 0.05; done
sleep 0.5
rm 1
begin=$(looks 0)
until [ "$(looks 0)" -ge $((begin + 3)) ]; do sleep 0.05; done
sleep 0.5
"#;

#[test]
fn what_a_task_used_of_gpus_is_shown_beside_what_it_asked_for() {
    let Some(env) = with_gpus("[GPU-fake-0,1]") else {
        return;
    };
    // Another process also uses the device.
    env.write("nvml/0", "50 900 8192 task 700 1 200");
    env.write("nvml/1", "100 500 8192 task 100 1 300");
    let wait = "until [ -e go ]; do sleep 0.05; done";
    let other = env.submit(&["--", "sh", "-c", wait]);
    env.wait_running(&other, 1);
    let job = env.submit(&["--resource=gpus/nvidia=2", "--", "sh", "-c", SCRIPT]);
    env.wait_job(&job);
    env.write("go", "");
    env.wait_job(&other);
    assert_eq!(env.stats(&job)["finished"], 1);
    let usage = &env.json(&["task", "info", &job, "0", "-v"])[0]["usage_over_time"];
    let gpu = &usage["gpu"];
    let busy = numbers(&gpu["gpus"]);
    assert_eq!(busy.len(), numbers(&usage["cpus"]).len(), "{usage}");
    assert_eq!(most(&gpu["gpus"]), 1.5, "both together: {usage}");
    // The memory of the other process is not included.
    assert_eq!(most(&gpu["memory_mib"]), 800.0, "{usage}");
    assert_eq!(gpu["memory_of"], "processes", "{usage}");
    assert_eq!(gpu["memory_of_devices_mib"], 16_384.0, "{usage}");
    assert_eq!(gpu["gpus_asked"], 2.0, "{usage}");
    // A lost device leaves a gap, and the task continues.
    assert!(busy.contains(&None), "{usage}");
    let other = &env.json(&["task", "info", &other, "0", "-v"])[0]["usage_over_time"];
    assert!(
        other["cpus"].is_array() && other["gpu"].is_null(),
        "{other}"
    );
    env.hq(&["task", "info", &job, "0", "-v"])
        .says("GPUs over time")
        .says("up to 1.50 of 2 asked for")
        .says("up to 800.00 MiB of 16.00 GiB that its devices have")
        .ok();
    let path = format!("/api/v1/jobs/{job}/tasks/0");
    let gpu = &Site::of(&env).json(&path)["usage"]["gpu"];
    assert_eq!(most(&gpu["busy_milli"]), 1_500.0, "{gpu}");
    assert_eq!(most(&gpu["memory_bytes"]), f64::from(800 << 20), "{gpu}");
    assert_eq!(gpu["memory_of"], "processes", "{gpu}");
    let sql = "SELECT job, max(gpus), max(gpu_memory_mib), count(gpus) < count(*), max(gpus_asked), \
               max(gpu_memory_of_devices_mib), max(gpu_memory_of) FROM usage GROUP BY job ORDER BY job DESC";
    let rows = env.hq(&["--output-mode=quiet", "query", sql]).ok();
    let first = rows.lines().next().expect("a row");
    let expected = format!("{job}\t1.5\t800.0\t1\t2.0\t16384.0\tprocesses");
    assert_eq!(first, expected, "{rows}");
    let page = env.path("report.html").display().to_string();
    let journal = env.server_dir().join("hq-current/state.db");
    let journal = journal.display().to_string();
    env.hq(&["journal", "report", &journal, &page]).ok();
    let Some(shown) = rendered(&env, "report.html", "costs") else {
        return;
    };
    assert!(shown.contains("GPU memory over time"), "{shown}");
    assert!(shown.contains("up to 800.0 MiB of 16.0 GiB"), "{shown}");
}

#[test]
fn a_driver_that_hangs_holds_up_neither_the_worker_nor_its_stop() {
    let Some(mut env) = with_gpus("[0,1]") else {
        return;
    };
    env.write("nvml/hang", "");
    let wait = "until [ -e go ]; do sleep 0.05; done";
    let job = env.submit(&["--resource=gpus/nvidia=1", "--", "sh", "-c", wait]);
    let told = || {
        let log = env.read("worker1.log");
        match log.matches("The NVIDIA driver does not answer").count() {
            0 => Err(log),
            count => Ok(count),
        }
    };
    let limit = std::time::Duration::from_secs(120);
    let asked = || asking(&env).first().copied().ok_or("nobody asks".into());
    let asked = wait_for("the driver is asked", asked);
    wait_for_up_to(limit, "the log says that the driver hangs", told);
    wait_gone(asked);
    let others = env.submit(&["--array=1-20", "--resource=gpus/nvidia=0.5", "--", "true"]);
    env.wait_job(&others);
    assert_eq!(env.stats(&others)["finished"], 20);
    env.write("go", "");
    env.wait_job(&job);
    let usage = &env.json(&["task", "info", &job, "0", "-v"])[0]["usage_over_time"];
    assert!(numbers(&usage["memory_mib"]).len() > 5, "{usage}");
    assert!(usage["gpu"].is_null(), "{usage}");
    assert_eq!(told(), Ok(1), "once");
    let last = env.submit(&["--resource=gpus/nvidia=2", "--", "sleep", "600"]);
    env.wait_running(&last, 1);
    env.hq(&["worker", "stop", "all"]).ok();
    wait_for("the worker says goodbye", || match &env.workers()[..] {
        [state] if state == "STOPPED" => Ok(()),
        states => Err(format!("{states:?}")),
    });
    assert_eq!(env.wait_exit("worker1"), Some(0));
}

#[test]
fn a_library_that_hangs_while_it_is_loaded_holds_up_nobody() {
    let mut env = Env::new();
    std::fs::create_dir(env.path("nvml")).expect("it is new");
    let library = env.path("nvml/libnvidia-ml.so.1");
    let made = Command::new("mkfifo").arg(&library).status();
    assert!(made.is_ok_and(|status| status.success()), "mkfifo");
    env.start_server();
    let path = format!("LD_LIBRARY_PATH={}", env.path("nvml").display());
    let args = [
        "--cpus=4",
        "--heartbeat=500ms",
        "--resource=gpus/nvidia=[0,1]",
    ];
    env.start_worker_behind(&["env", &path], &args);
    let first = env.submit(&["--resource=gpus/nvidia=1", "--", "sleep", "600"]);
    env.wait_running(&first, 1);
    // Opening the FIFO succeeds once the library reads it. The library gets nothing while it is
    // open.
    let hangs = wait_for("the library is loaded", || {
        let mut open = std::fs::OpenOptions::new();
        let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
        let opened = open.write(true).custom_flags(flags).open(&library);
        opened.map_err(|error| error.to_string())
    });
    let asked = asking(&env);
    assert_eq!(asked.len(), 1, "one process asks");
    let others = env.submit(&["--array=1-40", "--", "sleep", "0.3"]);
    let with_gpu = env.submit(&["--resource=gpus/nvidia=1", "--", "sleep", "3"]);
    env.wait_job(&others);
    env.wait_job(&with_gpu);
    assert_eq!(env.stats(&others)["finished"], 40);
    assert_eq!(env.stats(&with_gpu)["finished"], 1);
    // Without heartbeats, the worker would be lost after some seconds.
    assert_eq!(env.workers(), ["RUNNING"]);
    env.hq(&["worker", "stop", "all"]).ok();
    assert_eq!(env.wait_exit("worker1"), Some(0));
    wait_gone(asked[0]);
    assert!(asking(&env).is_empty(), "nobody is left");
    drop(hangs);
}

#[test]
fn a_process_that_asks_the_driver_is_replaced_when_it_ends_and_ends_with_its_worker() {
    let Some(mut env) = with_gpus("[0,1]") else {
        return;
    };
    env.write("nvml/0", "50 900 8192 task 700");
    let job = env.submit(&["--resource=gpus/nvidia=1", "--", "sleep", "600"]);
    env.wait_running(&job, 1);
    let ask = || asking(&env).first().copied().ok_or("nobody asks".into());
    let first = wait_for("the driver is asked", ask);
    env.wait_lines("nvml/asked", 1);
    crate::harness::signal(first, "KILL");
    wait_gone(first);
    let count = env.read("nvml/asked").lines().count();
    env.wait_lines("nvml/asked", count + 1);
    let second = wait_for("the driver is asked again", ask);
    assert_ne!(first, second);
    env.hq(&["worker", "stop", "all"]).ok();
    assert_eq!(env.wait_exit("worker1"), Some(0));
    wait_gone(second);
}
