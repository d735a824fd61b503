//! Workers whose connections break: their tasks continue, and every result counts once.

use std::collections::BTreeMap;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::sync::{Arc, Mutex};

use crate::harness::{Env, signal, wait_for};

/// Forwards bytes between a worker and the server until it cuts all connections on request.
struct Proxy {
    port: u16,
    open: Arc<Mutex<Vec<TcpStream>>>,
}

impl Proxy {
    fn to(server_port: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let open = Arc::new(Mutex::new(Vec::new()));
        let accepted = Arc::clone(&open);
        // The thread ends with the test process, and an accepted stream ends with either side.
        std::thread::spawn(move || {
            for near in listener.incoming().flatten() {
                let Ok(far) = TcpStream::connect(("127.0.0.1", server_port)) else {
                    continue;
                };
                let copy = |from: &TcpStream, to: &TcpStream| {
                    let mut from = from.try_clone().expect("duplicate");
                    let mut to = to.try_clone().expect("duplicate");
                    std::thread::spawn(move || {
                        // An error is a cut, which is what the test is about.
                        let _ = std::io::copy(&mut from, &mut to);
                        let _ = to.shutdown(Shutdown::Both);
                        let _ = from.shutdown(Shutdown::Both);
                    });
                };
                copy(&near, &far);
                copy(&far, &near);
                accepted.lock().expect("not poisoned").push(near);
            }
        });
        Self { port, open }
    }

    /// Cuts every connection. Returns how many there were.
    fn cut(&self) -> usize {
        let mut open = self.open.lock().expect("not poisoned");
        let count = open.len();
        for stream in open.drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
        count
    }
}

/// Starts a server, and a worker with two cpus that reaches it through a proxy.
fn behind_proxy(worker: &[&str]) -> (Env, Proxy, u32) {
    let mut env = Env::new();
    env.start_server();
    let access = std::fs::read_to_string(env.server_dir().join("hq-current/access.json"));
    let mut access: serde_json::Value =
        serde_json::from_str(&access.expect("access file")).expect("JSON");
    let port = access["worker"]["port"].as_u64().expect("a port");
    let proxy = Proxy::to(u16::try_from(port).expect("a port"));
    access["worker"]["port"] = proxy.port.into();
    access["worker"]["host"] = "127.0.0.1".into();
    std::fs::create_dir(env.path("proxied")).expect("directory");
    let path = env.write("proxied/access.json", access.to_string());
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o400)).expect("mode");
    let dir = format!("--server-dir={}", env.path("proxied").display());
    let pid = env.start_worker_with(&[&[&dir, "--cpus=2"], worker].concat());
    (env, proxy, pid)
}

#[test]
fn cut_connections_cost_no_task_and_repeat_none() {
    let (mut env, proxy, _) = behind_proxy(&["--on-server-lost=reconnect"]);
    let script = "echo $HQ_TASK_ID $HQ_INSTANCE_ID >> starts; sleep 0.15; echo $HQ_TASK_ID >> ends";
    let job = env.submit(&["--array=1-40", "--", "bash", "-c", script]);
    let mut cuts = 0;
    for lines in (2..40).step_by(4) {
        env.wait_lines("starts", lines);
        cuts += proxy.cut();
    }
    assert!(cuts >= 3, "the worker came back {cuts} times");
    env.wait_job(&job);
    assert_eq!(env.stats(&job)["finished"], 40);
    let mut starts = BTreeMap::new();
    for line in env.read("starts").lines() {
        *starts.entry(line.to_owned()).or_insert(0) += 1;
    }
    let expected: BTreeMap<String, i32> = (1..=40).map(|id| (format!("{id} 0"), 1)).collect();
    assert_eq!(
        starts, expected,
        "each task ran once, as its first instance"
    );
    assert_eq!(
        env.workers(),
        ["RUNNING"],
        "it is the same worker all the time"
    );
    let late = env.submit(&["--wait", "--", "true"]);
    assert_eq!(env.stats(&late)["finished"], 1);
    env.hq(&["worker", "stop", "all"]).ok();
    assert_eq!(env.wait_exit("worker1"), Some(0));
}

#[test]
fn what_ends_and_what_is_canceled_during_a_cut_is_settled_afterwards() {
    let (env, proxy, pid) = behind_proxy(&["--on-server-lost=reconnect", "--heartbeat=20s"]);
    let script = "touch up-$HQ_JOB_ID; until [ -e go ]; do sleep 0.02; done; touch end-$HQ_JOB_ID";
    let ends = env.submit(&["--", "bash", "-c", script]);
    let canceled = env.submit(&["--", "bash", "-c", "touch up-2; exec sleep 98791"]);
    for job in [&ends, &canceled] {
        env.wait_running(job, 1);
    }
    // While it is suspended, the worker cannot come back before everything is prepared.
    signal(pid, "STOP");
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let child: u32 = children
        .expect("children")
        .split_whitespace()
        .next()
        .expect("the front process has the worker as child")
        .parse()
        .expect("a pid");
    signal(child, "STOP");
    proxy.cut();
    env.hq(&["job", "cancel", &canceled]).ok();
    env.write("go", "");
    wait_for("the task ends", || {
        let done = env.path("end-1").exists();
        if done { Ok(()) } else { Err("it runs".into()) }
    });
    assert_eq!(env.stats(&ends)["running"], 1, "the server cannot know yet");
    signal(child, "CONT");
    signal(pid, "CONT");
    env.wait_job(&ends);
    assert_eq!(env.stats(&ends)["finished"], 1);
    assert_eq!(env.stats(&canceled)["canceled"], 1);
    wait_for("the canceled task is killed", || {
        let left = crate::harness::processes_with("sleep 98791");
        if left.is_empty() {
            Ok(())
        } else {
            Err(format!("{left:?}"))
        }
    });
}

#[test]
fn a_worker_that_does_not_come_back_in_time_is_lost() {
    let args = ["--on-server-lost=reconnect", "--heartbeat=500ms"];
    let (mut env, _, pid) = behind_proxy(&args);
    let script = "echo $HQ_INSTANCE_ID >> starts; until [ -e go ]; do sleep 0.02; done";
    let job = env.submit(&["--", "bash", "-c", script]);
    env.wait_running(&job, 1);
    signal(pid, "KILL");
    wait_for("the worker is listed as lost", || {
        let states = env.workers();
        if states == ["CONNECTION LOST"] {
            Ok(())
        } else {
            Err(format!("{states:?}"))
        }
    });
    env.start_worker(1);
    assert_eq!(env.wait_lines("starts", 2), "0\n1\n");
    env.write("go", "");
    env.wait_job(&job);
    assert_eq!(env.stats(&job)["finished"], 1);
}
