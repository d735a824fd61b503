//! Workers that reach the server through another worker: behind a firewall, when relays die, and
//! with a compromised relay.
//!
//! The firewall is a network namespace whose only neighbors are the gates, which are nodes with
//! relays. They do not forward packets: packets for the server are silently dropped. The tests need
//! permission to create namespaces, and are skipped without it.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use crate::harness::{Env, signal, skip, wait_for};
use crate::network::ip;

/// Nodes that reach the server, and nodes that only reach those nodes. Removed on drop.
struct Cluster {
    /// The namespaces of the nodes with relays.
    gates: [String; 2],
    /// The namespace of the nodes behind them.
    nodes: String,
    /// The interfaces on the server's side.
    near: [String; 2],
    /// The address of the server.
    server: String,
    /// The address of the first gate, as seen by the nodes.
    inner: String,
}

impl Cluster {
    /// Returns `None` and prints a reason if it cannot be created.
    fn create() -> Option<Self> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let test = MADE.fetch_add(1, Ordering::Relaxed);
        let pid = std::process::id();
        let net = format!("10.{}.{}", 140 + pid % 50, pid / 50 % 250);
        let address = |gate: u32, offset: u32| format!("{net}.{}", test * 16 + gate * 8 + offset);
        let name = |letter: char, gate: u32| format!("hq{pid}{letter}{test}{gate}");
        let cluster = Self {
            gates: [name('g', 0), name('g', 1)],
            nodes: name('h', 0),
            near: [name('c', 0), name('c', 1)],
            server: address(0, 1),
            inner: address(0, 5),
        };
        let nodes = &cluster.nodes;
        let mut text = format!("netns add {nodes}\n-n {nodes} link set lo up\n");
        for gate in 0..2 {
            let (space, near, far) = (name('g', gate), name('c', gate), name('d', gate));
            let (low, high) = (name('e', gate), name('f', gate));
            let [server, outer, inner, node] = [1, 2, 5, 6].map(|offset| address(gate, offset));
            text.push_str(&format!(
                "netns add {space}\n\
                 link add {near} type veth peer name {far} netns {space}\n\
                 addr add {server}/30 dev {near}\n\
                 link set {near} up\n\
                 -n {space} link set lo up\n\
                 -n {space} addr add {outer}/30 dev {far}\n\
                 -n {space} link set {far} up\n\
                 -n {space} route add default via {server}\n\
                 -n {space} link add {low} type veth peer name {high} netns {nodes}\n\
                 -n {space} addr add {inner}/30 dev {low}\n\
                 -n {space} link set {low} up\n\
                 -n {nodes} addr add {node}/30 dev {high}\n\
                 -n {nodes} link set {high} up\n"
            ));
        }
        // Some sites do this. The relay there must still be reachable over IPv4.
        let second = name('g', 1);
        text.push_str(&format!(
            "netns exec {second} sysctl -qw net.ipv6.bindv6only=1\n"
        ));
        text.push_str(&format!(
            "-n {nodes} route add default via {}",
            cluster.inner
        ));
        for line in text.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            if let Err(error) = ip(&words) {
                skip(&format!("no network namespace: {error}"));
                return None;
            }
        }
        Some(cluster)
    }

    /// Drops every packet to and from the first gate from now on.
    fn cut(&self) {
        for letter in ["d", "e"] {
            let link = self.near[0].replacen('c', letter, 1);
            ip(&["-n", &self.gates[0], "link", "set", &link, "down"]).expect("it is there");
        }
    }

    fn start_server(&self, env: &mut Env, args: &[&str]) {
        env.start_server_with(&[&["--host", self.server.as_str()], args].concat());
    }

    /// Starts a relay on a gate, without resources for the tasks here. Returns the pid to signal.
    fn start_relay(&self, env: &mut Env, gate: usize, args: &[&str]) -> u32 {
        let prefix = ["ip", "netns", "exec", &self.gates[gate]];
        env.start_worker_behind(&prefix, &[&["--cpus=1"], args].concat())
    }

    /// Starts a worker behind the firewall.
    fn start_node(&self, env: &mut Env, args: &[&str]) -> u32 {
        let prefix = ["ip", "netns", "exec", &self.nodes];
        let words = [&["--cpus=2", "--resource=node=sum(100)"], args].concat();
        env.start_worker_behind(&prefix, &words)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // Links that were never created cannot be removed.
        for near in &self.near {
            let _ = ip(&["link", "del", near]);
        }
        for space in self.gates.iter().chain([&self.nodes]) {
            let _ = ip(&["netns", "del", space]);
        }
    }
}

/// Checks that each task of an array started once, as its first instance, and finished.
#[track_caller]
fn each_ran_once(env: &Env, job: &str, count: usize) {
    env.wait_job(job);
    assert_eq!(env.stats(job)["finished"], count, "{}", env.stats(job));
    let mut starts: Vec<String> = env.read("starts").lines().map(str::to_owned).collect();
    starts.sort_unstable();
    let mut expected: Vec<String> = (1..=count).map(|id| format!("{id} 0")).collect();
    expected.sort_unstable();
    assert_eq!(starts, expected, "each ran once, as its first instance");
}

const NOTE: &str = "echo $HQ_TASK_ID $HQ_INSTANCE_ID >> starts";

fn announced(env: &Env) -> usize {
    let folder = env.server_dir().join("001/relays");
    std::fs::read_dir(folder).map_or(0, Iterator::count)
}

fn wait_log(env: &Env, name: &str, text: &str, count: usize) {
    wait_for(&format!("{name} says {text:?}, {count} times"), || {
        let log = env.read(name);
        if log.matches(text).count() >= count {
            Ok(())
        } else {
            Err(log)
        }
    });
}

const BACK: &str = "Connected to the server again";

#[test]
fn workers_behind_a_firewall_come_through_a_relay_and_lose_nothing_with_it() {
    let Some(cluster) = Cluster::create() else {
        return;
    };
    let mut env = Env::new();
    cluster.start_server(&mut env, &[]);
    let first = cluster.start_relay(&mut env, 0, &["--relay"]);
    wait_for("the relay is announced", || {
        (announced(&env) == 1).then_some(()).ok_or(String::new())
    });
    for _ in 0..4 {
        cluster.start_node(&mut env, &[]);
    }
    wait_log(&env, "worker5.log", "through the relay", 1);
    let via = |worker: &str| env.json(&["worker", "info", worker])[0]["via"].clone();
    let relay = via("5");
    assert!(relay.as_str().is_some_and(|relay| relay.contains(':')));
    assert_eq!(via("1"), serde_json::Value::Null, "the relay itself");
    let words = ["ip", "netns", "exec", &cluster.nodes];
    let mut doctor = env.user_command(&words);
    let doctor = doctor
        .args([env!("CARGO_BIN_EXE_hq"), "doctor", "net"])
        .env("HQ_SERVER_DIR", env.server_dir());
    let found = String::from_utf8(doctor.output().expect("it runs").stdout).expect("text");
    assert!(
        found.contains("leads to the server") && found.contains("use a relay"),
        "{found}"
    );
    // The relay that carries the workers dies meanwhile, and there is another one.
    let script = format!("{NOTE}; sleep 0.$((RANDOM % 3))");
    let array = ["--array=1-200", "--resource=node=1", "--stdout=none"];
    let submit = |script: &str| env.submit(&[&array[..], &["--", "bash", "-c", script]].concat());
    let job = submit(&script);
    env.wait_lines("starts", 20);
    let second = cluster.start_relay(&mut env, 0, &["--relay=7000"]);
    signal(first, "KILL");
    each_ran_once(&env, &job, 200);
    wait_log(&env, "worker5.log", BACK, 1);
    // An orderly end makes no difference. Both announcements exist until that of the dead relay
    // expires.
    assert_eq!(announced(&env), 2);
    std::fs::remove_file(env.path("starts")).expect("it was there");
    let job = env.submit(&[&array[..], &["--", "bash", "-c", &script]].concat());
    env.wait_lines("starts", 20);
    cluster.start_relay(&mut env, 0, &["--relay"]);
    env.hq(&["worker", "stop", "6"]).ok();
    each_ran_once(&env, &job, 200);
    env.wait_exit("worker6");
    for worker in ["worker2", "worker3", "worker4", "worker5"] {
        wait_log(&env, &format!("{worker}.log"), BACK, 2);
    }
    assert_eq!(
        announced(&env),
        2,
        "the one that was stopped took its own away"
    );
    let mut states = env.workers();
    states.sort_unstable();
    let mut expected = vec!["CONNECTION LOST", "STOPPED"];
    expected.extend(["RUNNING"; 5]);
    expected.sort_unstable();
    assert_eq!(states, expected, "{second}");
    // When all of them end, no worker is lost because the relay ended faster.
    env.hq(&["worker", "stop", "all"]).ok();
    for number in [2, 3, 4, 5, 7] {
        assert_eq!(env.wait_exit(&format!("worker{number}")), Some(0));
    }
    let states = env.workers();
    let stopped = states.iter().filter(|state| *state == "STOPPED");
    assert_eq!(stopped.count(), 6, "{states:?}");
}

#[test]
fn a_gate_that_vanishes_without_a_word_costs_no_task_either() {
    let Some(cluster) = Cluster::create() else {
        return;
    };
    let mut env = Env::new();
    cluster.start_server(&mut env, &[]);
    cluster.start_relay(&mut env, 0, &["--relay"]);
    cluster.start_node(&mut env, &[]);
    cluster.start_node(&mut env, &[]);
    cluster.start_relay(&mut env, 1, &["--relay"]);
    let script = format!("{NOTE}; sleep 0.3");
    let array = ["--array=1-80", "--resource=node=1", "--stdout=none"];
    let job = env.submit(&[&array[..], &["--", "bash", "-c", &script]].concat());
    env.wait_lines("starts", 10);
    cluster.cut();
    each_ran_once(&env, &job, 80);
    assert_eq!(env.workers()[1..], ["RUNNING"; 3]);
    for worker in ["worker2.log", "worker3.log"] {
        wait_log(&env, worker, BACK, 1);
    }
}

#[test]
fn a_relay_that_is_suspended_costs_those_behind_it_nothing() {
    let Some(cluster) = Cluster::create() else {
        return;
    };
    let mut env = Env::new();
    cluster.start_server(&mut env, &[]);
    let heartbeat = ["--relay", "--heartbeat=2s"];
    cluster.start_relay(&mut env, 0, &heartbeat);
    cluster.start_node(&mut env, &heartbeat[1..]);
    cluster.start_node(&mut env, &heartbeat[1..]);
    cluster.start_relay(&mut env, 1, &heartbeat);
    let script = format!("{NOTE}; sleep 0.3");
    let array = ["--array=1-80", "--resource=node=1", "--stdout=none"];
    let job = env.submit(&[&array[..], &["--", "bash", "-c", &script]].concat());
    env.wait_lines("starts", 10);
    // These are the relay's processes in its namespace. The kernel there continues.
    let pids = ip(&["netns", "pids", &cluster.gates[0]]).expect("it is there");
    let pids: Vec<u32> = pids.lines().filter_map(|pid| pid.parse().ok()).collect();
    assert!(!pids.is_empty());
    pids.iter().for_each(|pid| signal(*pid, "STOP"));
    each_ran_once(&env, &job, 80);
    for worker in ["worker2.log", "worker3.log"] {
        wait_log(&env, worker, "neither the server nor the relay", 1);
        wait_log(&env, worker, BACK, 1);
    }
    let states = env.workers();
    assert_eq!(states[1..], ["RUNNING"; 3], "{states:?}");
    pids.iter().for_each(|pid| signal(*pid, "CONT"));
    // It comes back as another worker, and is again a relay.
    wait_for("it is there again", || match announced(&env) {
        2 => Ok(()),
        count => Err(count.to_string()),
    });
}

/// Forwards connections between a port and a socket in the file system, which all namespaces see.
/// This is one end of a tunnel.
const TUNNEL: &str = r"
import socket, sys, threading
def make(spec, verb):
    kind, at = spec.split(':')
    s = socket.socket(socket.AF_UNIX if kind == 'unix' else socket.AF_INET)
    getattr(s, verb)(at if kind == 'unix' else ('127.0.0.1', int(at)))
    return s
def pump(a, b):
    try:
        while data := a.recv(65536):
            b.sendall(data)
        b.shutdown(socket.SHUT_WR)
    except OSError:
        a.close(), b.close()
listener = make(sys.argv[1], 'bind')
listener.listen(64)
while True:
    near = listener.accept()[0]
    try:
        far = make(sys.argv[2], 'connect')
    except OSError: # The other end is not there yet.
        near.close()
        continue
    for pair in ((near, far), (far, near)):
        threading.Thread(target=pump, args=pair, daemon=True).start()
";

/// The processes of a tunnel, which end with the test.
struct Tunnel(Vec<Child>);

impl Drop for Tunnel {
    fn drop(&mut self) {
        for end in &mut self.0 {
            let _ = end.kill();
            let _ = end.wait();
        }
    }
}

#[test]
fn a_relay_behind_a_tunnel_carries_nodes_that_cannot_have_one() {
    let Some(cluster) = Cluster::create() else {
        return;
    };
    let mut env = Env::new();
    // As created by `ssh -L`, and as documented: the server's own name for itself leads to the near
    // end.
    env.start_server_with(&["--host", "localhost"]);
    let access = env.read("server/001/access.json");
    let access: serde_json::Value = serde_json::from_str(&access).expect("JSON");
    let port = access["worker"]["port"].as_u64().expect("a port");
    let (tcp, unix) = (
        format!("tcp:{port}"),
        format!("unix:{}", env.path("tunnel").display()),
    );
    let mut tunnel = Tunnel(Vec::new());
    let near = ["ip", "netns", "exec", &cluster.gates[0]];
    for (prefix, from, to) in [(&[][..], &unix, &tcp), (&near, &tcp, &unix)] {
        let words = [prefix, &["python3", "-c", TUNNEL, from, to]].concat();
        match env.user_command(&words).spawn() {
            Ok(child) => tunnel.0.push(child),
            Err(error) => return skip(&format!("no Python: {error}")),
        }
    }
    cluster.start_relay(&mut env, 0, &["--relay"]);
    cluster.start_node(&mut env, &[]);
    let array = ["--array=1-50", "--resource=node=1", "--stdout=none"];
    let job = env.submit(&[&array[..], &["--", "bash", "-c", NOTE]].concat());
    each_ran_once(&env, &job, 50);
    wait_log(&env, "worker2.log", "through the relay", 1);
}

#[test]
fn a_server_that_ends_or_starts_again_is_no_different_behind_a_relay() {
    let Some(cluster) = Cluster::create() else {
        return;
    };
    let mut env = Env::new();
    cluster.start_server(&mut env, &[]);
    cluster.start_relay(&mut env, 0, &["--relay"]);
    let via = format!("--via={}:1,{}:2", cluster.inner, cluster.inner);
    // None of the named relays exists; the announced one does.
    cluster.start_node(&mut env, &[&via]);
    let log = env.read("worker2.log");
    assert!(log.contains("cannot be used"), "{log}");
    let script = format!("{NOTE}; sleep 0.2");
    let array = ["--array=1-60", "--resource=node=1", "--stdout=none"];
    let job = env.submit(&[&array[..], &["--", "bash", "-c", &script]].concat());
    env.wait_lines("starts", 4);
    env.hq(&["server", "stop", "--keep-workers"]).ok();
    assert_eq!(env.wait_exit("server"), Some(0));
    cluster.start_server(&mut env, &["--resume"]);
    each_ran_once(&env, &job, 60);
    assert_eq!(env.workers(), ["RUNNING", "RUNNING"]);
    // Workers behind the relay also receive the stop, and say goodbye to the server through it.
    env.hq(&["server", "stop"]).ok();
    assert_eq!(env.wait_exit("server"), Some(0));
    for worker in ["worker1", "worker2"] {
        assert_eq!(env.wait_exit(worker), Some(1));
        wait_log(
            &env,
            &format!("{worker}.log"),
            "Server connection closed",
            1,
        );
    }
    assert_eq!(announced(&env), 0);
}

/// The number of ways a compromised relay manipulates data.
const TRICKS: usize = 4;

/// Forwards bytes, and manipulates each connection once, in a different way, after a number of
/// bytes.
fn copy(mut from: TcpStream, mut to: TcpStream, trick: Option<usize>) {
    let mut buffer = [0; 4_096];
    let (mut passed, mut last, mut trick) = (0, Vec::new(), trick);
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        let mut data = buffer[..count].to_vec();
        // Handshakes and the registration are complete by then.
        if passed > 500
            && let Some(number) = trick.take()
        {
            match number % TRICKS {
                0 => data[count / 2] ^= 1,
                1 => drop(data.remove(count / 2)),
                2 => data.extend(buffer[..count].to_vec()),
                // Repeat the previous data.
                _ => data.splice(0..0, last.clone()).for_each(drop),
            }
        }
        passed += count;
        last = buffer[..count].to_vec();
        if to.write_all(&data).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}

/// Starts a man in the middle between workers and a relay. Returns its port and the number of
/// connections so far.
fn wrong_hands(relay: u16) -> (u16, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("bound").port();
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (Ok(worker), Ok(relay)) = (stream, TcpStream::connect(("127.0.0.1", relay))) else {
                continue;
            };
            let number = counted.fetch_add(1, Ordering::Relaxed);
            // Four connections manipulate the workers' data, and four the server's data. The rest
            // are unchanged.
            let up = (number < TRICKS).then_some(number);
            let down = (TRICKS..2 * TRICKS).contains(&number).then_some(number);
            let clone = |stream: &TcpStream| stream.try_clone().expect("a descriptor");
            let (from, to) = (clone(&worker), clone(&relay));
            std::thread::spawn(move || copy(from, to, up));
            std::thread::spawn(move || copy(relay, worker, down));
        }
    });
    (port, count)
}

#[test]
fn what_a_relay_in_wrong_hands_does_is_noticed_and_costs_no_task() {
    let mut env = Env::new();
    env.start_server();
    env.start_worker_with(&["--cpus=1", "--relay"]);
    let (evil, count) = wrong_hands(relay_port(&env.read("worker1.log")));
    let via = format!("--via=127.0.0.1:{evil}");
    env.start_worker_with(&["--cpus=2", "--resource=node=sum(100)", &via]);
    let script = format!("{NOTE}; sleep 0.02");
    let array = ["--array=1-600", "--resource=node=1", "--stdout=none"];
    let job = env.submit(&[&array[..], &["--", "bash", "-c", &script]].concat());
    each_ran_once(&env, &job, 600);
    let connections = count.load(Ordering::Relaxed);
    assert!(connections > 2 * TRICKS, "all were played: {connections}");
    assert_eq!(env.workers(), ["RUNNING", "RUNNING"]);
    // The worker detects these. The server detects the others, and closes the connection.
    let log = env.read("worker2.log");
    assert!(log.contains("invalid frame"), "{log}");
    let log = env.read("server.log");
    assert!(log.contains("invalid frame"), "{log}");
}

/// Returns the port of a relay according to its log.
pub(crate) fn relay_port(log: &str) -> u16 {
    let at = log.split_once("Relay at ").expect("it says so").1;
    let port = at.split([':', ' ']).nth(1).expect("HOST:PORT");
    port.parse().expect("a port")
}

#[test]
fn strangers_at_a_relay_with_few_descriptors_do_not_keep_its_tasks_from_starting() {
    let mut env = Env::new();
    env.start_server();
    env.start_worker_behind(&["prlimit", "--nofile=64:64"], &["--cpus=4", "--relay"]);
    let port = relay_port(&env.read("worker1.log"));
    let connect = |_| TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    let strangers: Vec<TcpStream> = (0..150).map(connect).collect();
    let job = env.submit(&["--array=1-40", "--", "sleep", "0.02"]);
    env.wait_job(&job);
    assert_eq!(env.stats(&job)["finished"], 40);
    drop(strangers);
    let log = env.read("worker1.log");
    assert!(!log.contains("Too many open files"), "{log}");
}

#[test]
fn wrong_words_are_explained() {
    let env = Env::new();
    for (words, expected) in [
        (&["--relay", "--via=a:1"][..], "cannot be used with"),
        (&["--via=a"], "expected HOST:PORT"),
        (&["--relay=a"], "a port alone is enough"),
        (&["--relay=0"], "a port alone is enough"),
    ] {
        env.hq(&[&["worker", "start"], words].concat())
            .exits_with(2)
            .says(expected);
    }
}
