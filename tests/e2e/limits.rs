//! Too few descriptors: a pause, never an end.

use std::net::TcpStream;

use crate::harness::{Env, wait_for};

#[test]
fn a_server_without_descriptors_waits_until_there_are_some() {
    let mut env = Env::new();
    env.start_server_behind(&["prlimit", "--nofile=60:60"], &[]);
    env.start_worker(2);
    let info = env.json(&["server", "info"]);
    let port = |name: &str| u16::try_from(info[name].as_u64().expect("a port")).expect("a port");
    let ports = [port("client_port"), port("worker_port")];
    let strangers: Vec<TcpStream> = (0..120)
        .filter_map(|n| TcpStream::connect(("127.0.0.1", ports[n % 2])).ok())
        .collect();
    wait_for("the server has no descriptor left", || {
        let log = env.read("server.log");
        if log.contains("cannot accept a connection") {
            Ok(())
        } else {
            Err(log)
        }
    });
    drop(strangers);
    let job = env.submit(&["--array=1-20", "--", "true"]);
    env.wait_job(&job);
    assert_eq!(env.stats(&job)["finished"], 20);
    assert_eq!(env.workers(), ["RUNNING"]);
}

#[test]
fn a_worker_with_few_descriptors_runs_more_tasks_than_it_could_at_once() {
    let mut env = Env::new();
    env.start_server();
    env.start_worker_behind(&["prlimit", "--nofile=64:64"], &["--cpus=100"]);
    let script = "echo $HQ_TASK_ID; sleep 0.1";
    let job = env.submit(&["--array=1-300", "--", "sh", "-c", script]);
    env.wait_job(&job);
    assert_eq!(
        env.stats(&job)["finished"],
        300,
        "no task is charged for what the worker lacks"
    );
    assert_eq!(env.workers(), ["RUNNING"]);
}
