//! Packet loss between a worker and its server, in a separate network namespace.
//!
//! Neither side is notified of the loss: connections are half open until a timeout. The tests need
//! permission to create network namespaces, and are skipped without it.

use std::process::Command;
use std::time::Duration;

use crate::harness::{Env, processes_with, skip, wait_for};

/// A namespace behind a pair of virtual interfaces. It is removed on drop.
struct Network {
    namespace: String,
    /// The interface on the server's side.
    near: String,
    /// The interface on the worker's side.
    far: String,
    /// The address of the server.
    address: String,
}

pub(crate) fn ip(args: &[&str]) -> Result<String, String> {
    let output = Command::new("ip")
        .args(args)
        .output()
        .map_err(|error| format!("`ip` cannot be run: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("`ip {}`: {}", args.join(" "), said.trim()))
}

impl Network {
    /// Returns `None` and prints a reason if it cannot be created.
    fn create(test: u8) -> Option<Self> {
        let pid = std::process::id();
        let net = format!("10.{}.{}", 200 + pid % 50, pid / 50 % 250);
        let (server, worker) = (u32::from(test) * 4 + 1, u32::from(test) * 4 + 2);
        let network = Self {
            namespace: format!("hq{pid}n{test}"),
            near: format!("hq{pid}a{test}"),
            far: format!("hq{pid}b{test}"),
            address: format!("{net}.{server}"),
        };
        let Self {
            namespace,
            near,
            far,
            address,
        } = &network;
        let steps: [&[&str]; 6] = [
            &["netns", "add", namespace],
            &[
                "link", "add", near, "type", "veth", "peer", "name", far, "netns", namespace,
            ],
            &["addr", "add", &format!("{address}/30"), "dev", near],
            &["link", "set", near, "up"],
            &[
                "-n",
                namespace,
                "addr",
                "add",
                &format!("{net}.{worker}/30"),
                "dev",
                far,
            ],
            &["-n", namespace, "link", "set", "lo", "up"],
        ];
        for step in steps {
            if let Err(error) = ip(step) {
                skip(&format!("no network namespace: {error}"));
                return None;
            }
        }
        network.heal();
        Some(network)
    }

    /// Makes every packet from now on be lost.
    fn cut(&self) {
        ip(&["-n", &self.namespace, "link", "set", &self.far, "down"]).expect("it is there");
    }

    fn heal(&self) {
        ip(&["-n", &self.namespace, "link", "set", &self.far, "up"]).expect("it is there");
    }

    /// Starts a server that the namespace can reach, and a worker inside the namespace.
    fn start(&self, env: &mut Env, worker: &[&str]) {
        env.start_server_with(&["--host", &self.address]);
        env.start_worker_behind(&["ip", "netns", "exec", &self.namespace], worker);
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // A link that was never created cannot be removed.
        let _ = ip(&["link", "del", &self.near]);
        let _ = ip(&["netns", "del", &self.namespace]);
    }
}

#[test]
fn a_short_silence_costs_no_task() {
    let Some(network) = Network::create(0) else {
        return;
    };
    let mut env = Env::new();
    network.start(&mut env, &["--cpus=2", "--heartbeat=10s"]);
    let script = "echo $HQ_TASK_ID $HQ_INSTANCE_ID >> starts; sleep 0.2; echo $HQ_TASK_ID >> ends";
    let job = env.submit(&["--array=1-20", "--", "bash", "-c", script]);
    let starts = env.wait_lines("starts", 4).lines().count();
    network.cut();
    // Running tasks continue, and tasks that are already on the worker start.
    env.wait_lines("ends", starts);
    network.heal();
    env.wait_job(&job);
    assert_eq!(env.stats(&job)["finished"], 20);
    let mut starts: Vec<String> = env.read("starts").lines().map(str::to_owned).collect();
    starts.sort_unstable();
    let mut expected: Vec<String> = (1..=20).map(|id| format!("{id} 0")).collect();
    expected.sort_unstable();
    assert_eq!(starts, expected, "each ran once, as its first instance");
    assert_eq!(env.workers(), ["RUNNING"]);
}

#[test]
fn a_long_silence_moves_tasks_and_ends_them_where_they_were() {
    let Some(network) = Network::create(1) else {
        return;
    };
    let mut env = Env::new();
    network.start(&mut env, &["--cpus=1", "--heartbeat=500ms"]);
    let marker = format!("sleep {}", 2_000_000 + std::process::id());
    // The first instance would run forever.
    let script =
        format!("echo $HQ_INSTANCE_ID >> starts; [ $HQ_INSTANCE_ID = 1 ] || exec {marker}");
    let job = env.submit(&["--", "bash", "-c", &script]);
    env.wait_lines("starts", 1);
    env.wait_running(&job, 1);
    network.cut();
    let states = |wanted: &[&str]| {
        wait_for(&format!("workers are {wanted:?}"), || {
            let states = env.workers();
            if states == wanted {
                Ok(())
            } else {
                Err(format!("{states:?}"))
            }
        });
    };
    // Neither side is notified. Each notices by itself.
    states(&["HEARTBEAT LOST"]);
    assert_eq!(
        processes_with(&marker).len(),
        1,
        "it runs as long as it cannot be stopped"
    );
    network.heal();
    states(&["HEARTBEAT LOST", "RUNNING"]);
    env.wait_job(&job);
    assert_eq!(env.stats(&job)["finished"], 1);
    assert_eq!(env.read("starts"), "0\n1\n");
    assert_eq!(
        processes_with(&marker),
        Vec::<u32>::new(),
        "the first instance was ended before the second began"
    );
}

#[test]
fn work_goes_on_while_packets_get_lost_again_and_again() {
    let Some(network) = Network::create(2) else {
        return;
    };
    let mut env = Env::new();
    network.start(&mut env, &["--cpus=2", "--heartbeat=10s"]);
    let script = "echo $HQ_TASK_ID $HQ_INSTANCE_ID >> starts; sleep 0.02";
    let job = env.submit(&["--array=1-100", "--", "bash", "-c", script]);
    let mut losses = 0;
    while env.stats(&job)["finished"] != 100 {
        network.cut();
        // A fixed sleep is intended here, because these are bursts of loss.
        std::thread::sleep(Duration::from_millis(30));
        network.heal();
        std::thread::sleep(Duration::from_millis(150));
        losses += 1;
        assert!(losses < 400, "it gets nowhere: {}", env.stats(&job));
    }
    let mut starts: Vec<String> = env.read("starts").lines().map(str::to_owned).collect();
    starts.sort_unstable();
    let mut expected: Vec<String> = (1..=100).map(|id| format!("{id} 0")).collect();
    expected.sort_unstable();
    assert_eq!(starts, expected, "each ran once, as its first instance");
    println!("{losses} bursts of loss");
}
