//! Servers, relays, workers and clients of this release and of an earlier one work together.
//!
//! `HQ_OLD=PATH` names a program of the earlier release. Without it, all are of this one.

use std::path::PathBuf;

use crate::harness::{Env, signal};
use crate::relay::relay_port;

/// Which sides are of the earlier release.
#[derive(Clone, Copy)]
struct Old {
    server: bool,
    relay: bool,
    worker: bool,
    client: bool,
}

const GRAPH: &str = r#"
[[task]]
id = 1
command = ["sh", "-c", "echo first >> order"]
[[task]]
id = 2
deps = [1]
command = ["sh", "-c", "echo second >> order"]
"#;

fn use_release(env: &mut Env, is_old: bool) {
    let old = std::env::var_os("HQ_OLD").filter(|_| is_old);
    let own = env!("CARGO_BIN_EXE_hq");
    env.use_program(old.map_or_else(|| PathBuf::from(own), PathBuf::from));
}

/// Runs jobs of each kind, with a restart of the server while a task runs.
fn work_together(old: Old) {
    let mut env = Env::new();
    use_release(&mut env, old.server);
    let server = env.start_server_with(&["--journal=j"]);
    use_release(&mut env, old.relay);
    env.start_worker_with(&["--cpus=1", "--relay"]);
    let via = format!("--via=127.0.0.1:{}", relay_port(&env.read("worker1.log")));
    use_release(&mut env, old.worker);
    env.start_worker_with(&["--cpus=2", "--resource=node=sum(100)", &via]);
    use_release(&mut env, old.client);

    // Only the worker behind the relay has the resource.
    let node = "--resource=node=1";
    let array = [
        "--array=1-20:3",
        node,
        "--env=A=b",
        "--crash-limit=3",
        "--priority=2",
    ];
    let script = "echo $HQ_TASK_ID $A >> lines";
    env.wait_job(&env.submit(&[&array[..], &["--", "sh", "-c", script]].concat()));
    assert_eq!(env.wait_lines("lines", 7).matches(" b\n").count(), 7);
    env.wait_job(&env.submit(&[node, "--param=x=1,2,3", "--", "touch", "param-{x}"]));
    assert!(env.path("param-3").exists());
    env.write("graph.toml", GRAPH);
    env.hq(&["job", "submit-file", "graph.toml"]).ok();
    env.wait_job("3");
    assert_eq!(env.read("order"), "first\nsecond\n");

    let long = env.submit(&["--array=1-2", node, "--", "sleep", "1000"]);
    env.wait_running(&long, 2);
    env.hq(&["job", "cancel", &long]).ok();
    env.wait_job(&long);
    assert_eq!(env.stats(&long)["canceled"], 2);

    let script = "until test -e go; do sleep 0.05; done; echo $HQ_INSTANCE_ID";
    let survivor = env.submit(&[node, "--stdout=instance", "--", "sh", "-c", script]);
    env.wait_running(&survivor, 1);
    signal(server, "KILL");
    env.wait_exit("server");
    use_release(&mut env, old.server);
    env.start_server_with(&["--journal=j"]);
    use_release(&mut env, old.client);
    env.write("go", "");
    env.wait_job(&survivor);
    assert_eq!(env.read("instance"), "0\n", "the task continued");
    assert!(env.hq(&["job", "info", "1"]).ok().contains("1-20:3"));
}

#[test]
fn a_new_server_works_with_an_old_relay_worker_and_client() {
    work_together(Old {
        server: false,
        relay: true,
        worker: true,
        client: true,
    });
}

#[test]
fn an_old_server_works_with_a_new_relay_worker_and_client() {
    work_together(Old {
        server: true,
        relay: false,
        worker: false,
        client: false,
    });
}

#[test]
fn each_side_works_with_both_releases() {
    work_together(Old {
        server: false,
        relay: false,
        worker: true,
        client: false,
    });
    work_together(Old {
        server: true,
        relay: true,
        worker: false,
        client: true,
    });
}
