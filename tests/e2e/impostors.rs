//! Tests what holders of worker keys, or of files of earlier releases, cannot do.

use std::os::unix::fs::PermissionsExt;

use hq_core::id::WorkerId;
use hq_core::worker_state::Holding;
use hq_protocol::access::AccessFile;
use hq_protocol::convert::{FromServer, reattach};
use hq_protocol::{Plane, SecretKey};
use serde_json::Value;

use crate::harness::{Env, signal, wait_for};

/// The number of digits of a key without the server's key pair, and without its private half.
const SHARED: usize = 64;
pub(crate) const PUBLIC: usize = 128;

/// Creates a server directory with a copy of the server's access file, with keys truncated to this
/// many digits. If `plane` is given, the part for clients is left out, as on nodes. Returns the
/// option that names the directory.
pub(crate) fn copy_of_access(env: &Env, name: &str, digits: usize, plane: Option<&str>) -> String {
    let mut access: Value =
        serde_json::from_str(&env.read("server/hq-current/access.json")).expect("JSON");
    for part in ["client", "worker"] {
        let key = access[part]["secret_key"].as_str().expect("a key")[..digits].to_owned();
        access[part]["secret_key"] = key.into();
        if plane.is_some_and(|plane| plane != part) {
            access.as_object_mut().expect("an object").remove(part);
        }
    }
    std::fs::create_dir(env.path(name)).expect("a directory");
    let file = env.write(&format!("{name}/access.json"), access.to_string());
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o400)).expect("ours");
    format!("--server-dir={}", env.path(name).display())
}

#[test]
fn who_has_the_keys_of_workers_is_not_the_server_for_other_workers() {
    let mut env = Env::new();
    env.start_server();
    // One copy has everything that a node has, and the other lacks the server's public key, as in
    // an earlier release.
    let dirs = [("node", PUBLIC), ("shorter", SHARED)];
    for (name, digits) in dirs {
        copy_of_access(&env, name, digits, Some("worker"));
    }
    let evil = format!("--server-dir={}", env.path("evil").display());
    let start = ["server", "start", "--worker-port=0", &evil];
    let file = |name: &str| {
        format!(
            "--access-file={}",
            env.path(name).join("access.json").display()
        )
    };
    let (node, shorter) = (file("node"), file("shorter"));
    env.hq(&[&start[..], &[&node]].concat())
        .says("lacks the private key of the server")
        .exits_with(1);
    env.spawn("evil-server", &[&start[..], &[&shorter]].concat());
    env.hq(&["server", "wait", &evil]).ok();
    env.spawn(
        "evil-relay",
        &["worker", "start", "--cpus=1", "--relay", &evil],
    );
    let port = wait_for("the relay", || {
        let log = env.read("evil-relay.log");
        let at = log
            .split_once("--via ")
            .and_then(|(_, at)| at.split_once('`'));
        let port = at.and_then(|(at, _)| at.rsplit(':').next()?.parse::<u16>().ok());
        port.ok_or(log)
    });
    env.start_worker_with(&["--cpus=1", &format!("--via=127.0.0.1:{port}")]);
    let log = env.read("worker1.log");
    assert!(log.contains("wrong worker key"), "{log}");
    let there = env.json(&["worker", "list", "--all", &evil]);
    let count = there.as_array().map(Vec::len);
    assert_eq!(count, Some(1), "the relay itself: {there}");
    let _ = env.hq(&["submit", "--wait=ok", "--", "true"]).ok();
    env.hq(&["server", "stop", &evil]).ok();
}

#[test]
fn workers_with_keys_of_an_earlier_release_go_on_and_clients_are_told() {
    let mut env = Env::new();
    let server = env.start_server();
    let key = |env: &Env| {
        let access: Value =
            serde_json::from_str(&env.read("server/hq-current/access.json")).expect("JSON");
        access["worker"]["secret_key"]
            .as_str()
            .expect("a key")
            .to_owned()
    };
    let before = copy_of_access(&env, "before", SHARED, None);
    env.start_worker_with(&["--cpus=1", &before]);
    let log = env.read("worker1.log");
    assert!(log.contains("lacks the server's public key"), "{log}");
    env.hq(&["doctor", "net", &before])
        .says("the access file does not name it");
    env.hq(&["job", "list", &before])
        .says("lacks the server's public key")
        .says("replace the file with the server's current one")
        .exits_with(1);
    // Continue a server of that release.
    signal(server, "KILL");
    env.wait_exit("server");
    let old = env.path("before/access.json");
    let access = env.path("server/001/access.json");
    std::fs::rename(&old, &access).expect("ours");
    env.start_server();
    let log = env.read("server.log");
    assert!(log.contains("from an earlier release"), "{log}");
    let first = key(&env);
    assert_eq!(first.len(), 192);
    let _ = env.hq(&["submit", "--wait=ok", "--", "true"]).ok();
    env.hq(&["server", "stop", "--keep-workers"]).ok();
    env.wait_exit("server");
    env.start_server();
    assert_eq!(key(&env), first, "the pair is kept");
    let log = env.read("server.log");
    assert!(!log.contains("from an earlier release"), "{log}");
    let _ = env.hq(&["submit", "--wait=ok", "--", "true"]).ok();
}

#[test]
fn who_has_the_keys_of_workers_cannot_take_the_place_of_one() {
    let mut env = Env::new();
    env.start_server();
    env.start_worker(1);
    let script = "echo >> starts; until [ -e go ]; do sleep 0.01; done";
    let job = env.submit(&["--", "bash", "-c", script]);
    env.wait_lines("starts", 1);
    let file = AccessFile::load_any(&env.path("server/hq-current/access.json"));
    let file = file.expect("ours").worker_only();
    let access = file.worker.expect("the part of workers");
    let uid = env.json(&["server", "info"])["server_uid"].clone();
    let uid = uid.as_str().expect("a text");
    let secret = SecretKey::from_bytes([1; 32]);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    for return_digest in [secret.digest(), None] {
        let mut config = hq_core::testing::worker_config(1);
        config.return_digest = return_digest;
        let (worker, nothing) = (WorkerId(1), Holding::default());
        let claim = reattach((&config, &secret), worker, uid, &nothing, u64::MAX);
        let answer = runtime.block_on(async {
            let stream = hq_protocol::connect_tcp(&access.host, access.port).await;
            let (stream, key) = (stream.expect("it listens"), access.key.as_ref());
            let connection = hq_protocol::connect(stream, Plane::Worker, key).await;
            let (mut reader, mut writer) = connection.expect("a worker's key").split();
            writer.send(&claim).await.expect("it is read");
            let answer = reader.next::<hq_protocol::worker::ToWorker>().await;
            answer.expect("open").expect("an answer")
        });
        let Ok(FromServer::Registered {
            worker, reattached, ..
        }) = FromServer::try_from(answer)
        else {
            panic!("it may be a worker of its own");
        };
        assert!(!reattached && worker != WorkerId(1));
    }
    env.write("go", "");
    env.wait_job(&job);
    assert_eq!(env.stats(&job)["finished"], 1);
    assert_eq!(env.read("starts").lines().count(), 1, "it ran once");
}

#[test]
fn keys_are_replaced_while_tasks_run() {
    let mut env = Env::new();
    env.start_server();
    env.start_worker(1);
    let script = "echo $HQ_INSTANCE_ID >> starts; until [ -e go ]; do sleep 0.01; done";
    let job = env.submit(&["--", "bash", "-c", script]);
    env.wait_lines("starts", 1);
    let before = env.read("server/001/access.json");
    env.hq(&["server", "stop", "--keep-workers"]).ok();
    env.wait_exit("server");
    std::fs::remove_file(env.path("server/001/access.json")).expect("ours");
    env.start_server();
    let keys = |text: &str| -> Vec<String> {
        let access: Value = serde_json::from_str(text).expect("JSON");
        let key = |plane: &str| access[plane]["secret_key"].to_string();
        ["client", "worker"].map(key).to_vec()
    };
    let (before, after) = (keys(&before), keys(&env.read("server/001/access.json")));
    for (before, after) in before.iter().zip(&after) {
        // The keys are quoted strings: the secret, the public key and the private key all differ.
        for at in [1, SHARED + 1, PUBLIC + 1] {
            assert_ne!(before[at..at + SHARED], after[at..at + SHARED]);
        }
    }
    env.write("go", "");
    env.wait_job(&job);
    assert_eq!(env.stats(&job)["finished"], 1);
    assert_eq!(env.read("starts"), "0\n", "it ran once");
    assert_eq!(env.workers(), ["RUNNING"]);
}
