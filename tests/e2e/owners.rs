//! One server per directory and per journal: queries, second starts, failed starts, other releases,
//! shared disks.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::harness::{Env, signal, skip};
use crate::http::Site;

fn kill_server(env: &mut Env, pid: u32) {
    signal(pid, "KILL");
    env.wait_exit("server");
}

/// Sets the release in the access file of the first instance. Returns the file.
fn set_version(env: &Env, version: &str) -> PathBuf {
    let path = env.server_dir().join("001/access.json");
    let text = std::fs::read_to_string(&path).expect("the access file");
    let mut json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    json["version"] = version.into();
    set_mode(&path, 0o600);
    std::fs::write(&path, json.to_string()).expect("room");
    set_mode(&path, 0o400);
    path
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("it is ours");
}

#[test]
fn a_query_does_not_let_a_second_server_take_the_log() {
    let mut env = Env::new();
    let server = env.start_server();
    env.submit(&["--", "true"]);
    env.hq(&["query", "select count(*) from jobs"]).ok();
    env.hq(&["journal", "replay"]).ok();
    let journal = env.server_dir().join("001/state.db");
    let other = env.path("other").display().to_string();
    let second = format!("--journal={}", journal.display());
    env.hq(&["--server-dir", &other, "server", "start", &second])
        .exits_with(1)
        .says("used by another server");
    env.hq(&["journal", "check", "--repair", &journal.to_string_lossy()])
        .exits_with(1)
        .says("used by another server");
    env.submit(&["--", "true"]);
    kill_server(&mut env, server);
    env.start_server_with(&["--resume"]);
    assert_eq!(
        env.json(&["job", "list", "--all"]).as_array().map(Vec::len),
        Some(2)
    );
}

#[test]
fn a_start_that_failed_does_not_hide_what_can_be_resumed() {
    let mut env = Env::new();
    let server = env.start_server();
    let job = env.submit(&["--name=kept", "--", "true"]);
    kill_server(&mut env, server);
    // This address belongs to another machine, in a network reserved for examples.
    env.hq(&["server", "start", "--http=192.0.2.1:8080"])
        .exits_with(1)
        .says("Cannot serve HTTP");
    assert!(
        !env.server_dir().join("002").exists(),
        "nothing is left behind"
    );
    // This server was killed before it did anything.
    std::fs::create_dir(env.server_dir().join("003")).expect("a directory");
    env.write("server/003/state.db", "");
    env.start_server();
    assert_eq!(env.json(&["job", "info", &job])[0]["info"]["name"], "kept");
    assert!(env.read("server.log").contains("no server has used"));
}

#[test]
fn a_running_server_is_not_pushed_aside() {
    let mut env = Env::new();
    let server = env.start_server();
    let version = env.json(&["server", "info"])["version"].clone();
    let link = env.server_dir().join("hq-current");
    let current = std::fs::read_link(&link).expect("a link");
    let access = set_version(&env, "0.0.9");
    env.hq(&["server", "start"])
        .exits_with(1)
        .says("already online and is of version 0.0.9");
    set_version(&env, version.as_str().expect("a version"));
    set_mode(&access, 0o640);
    env.hq(&["server", "start"])
        .exits_with(1)
        .says("is already online");
    signal(server, "STOP");
    env.hq(&["server", "start"])
        .exits_with(1)
        .says("does not answer");
    signal(server, "CONT");
    assert_eq!(std::fs::read_link(&link).expect("a link"), current);
    set_mode(&access, 0o400);
    env.hq(&["server", "info"]).ok();
    assert!(!env.server_dir().join("002").exists());
}

/// Returns the names, paths and contents below the server directory, except the journal, which its
/// server writes.
fn entries(env: &Env) -> Vec<(PathBuf, u64, Vec<u8>)> {
    let mut found = Vec::new();
    for dir in [env.server_dir(), env.server_dir().join("001")] {
        for entry in std::fs::read_dir(dir).expect("a directory") {
            let path = entry.expect("an entry").path();
            let inode = path.symlink_metadata().expect("an entry").ino();
            let name = path
                .file_name()
                .expect("a name")
                .to_string_lossy()
                .into_owned();
            // Starts write to their lock file.
            let is_journal =
                name != "state.db.lock" && name.contains("state.db") || name == "hq-start.lock";
            let content = std::fs::read(&path).unwrap_or_default();
            found.push((path, inode, if is_journal { Vec::new() } else { content }));
        }
    }
    found.sort();
    found
}

#[test]
fn a_start_that_is_refused_changes_nothing_in_the_directory() {
    let mut env = Env::new();
    env.start_server_with(&["--http"]);
    // This is the state during a slow shutdown: the server cannot be found anymore, but still has
    // its journal open.
    std::fs::remove_file(env.server_dir().join("hq-current")).expect("a link");
    let before = entries(&env);
    env.hq(&["server", "start", "--resume", "--http"])
        .exits_with(1)
        .says("is already online");
    assert_eq!(entries(&env), before);
    assert_eq!(Site::of(&env).get("/api/v1/server").status, 200);
}

#[test]
fn keys_survive_an_upgrade() {
    let mut env = Env::new();
    let server = env.start_server();
    let keys = |env: &Env| {
        let text = env.read("server/001/access.json");
        let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        [
            json["client"]["secret_key"].clone(),
            json["worker"]["secret_key"].clone(),
        ]
    };
    let before = keys(&env);
    kill_server(&mut env, server);
    let access = set_version(&env, "0.0.9");
    let server = env.start_server_with(&["--resume"]);
    assert_eq!(keys(&env), before);
    kill_server(&mut env, server);
    set_mode(&access, 0o600);
    std::fs::write(&access, "{").expect("room");
    env.hq(&["server", "start", "--resume"])
        .exits_with(1)
        .says("is not valid");
    assert_eq!(
        env.read("server/001/access.json"),
        "{",
        "it is left as it is"
    );
}

/// A file system whose type is not known to be local. It is unmounted on drop.
struct SharedDisk(PathBuf);

impl SharedDisk {
    /// Returns `None` if this user may not mount.
    fn mount(path: PathBuf) -> Option<Self> {
        std::fs::create_dir(&path).expect("directory");
        // This type is not in the list of local types, because journals are never kept there.
        let made = Command::new("mount")
            .args(["-t", "ramfs", "-o", "mode=700", "ramfs"])
            .arg(&path)
            .output();
        match made {
            Ok(output) if output.status.success() => Some(Self(path)),
            other => {
                skip(&format!("no file system can be mounted: {other:?}"));
                None
            }
        }
    }
}

impl Drop for SharedDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn on_a_shared_file_system_the_running_server_is_read_through_itself() {
    let mut env = Env::new();
    let Some(_disk) = SharedDisk::mount(env.path("disk")) else {
        return;
    };
    let journal = ["--journal=disk/j.db"];
    let server = env.start_server_with(&journal);
    env.start_worker(1);
    let job = env.submit(&["--array=1-3", "--", "true"]);
    env.wait_job(&job);
    let count = "SELECT count(*) AS n FROM tasks WHERE state = 'finished'";
    assert_eq!(env.json(&["query", count])[0]["n"], 3);
    let replayed = env.hq(&["journal", "replay"]).ok();
    assert_eq!(replayed.matches("task-finished").count(), 3);
    assert!(!env.path("disk/j.db-shm").exists(), "no memory is shared");
    env.hq(&["journal", "export", "disk/j.db"])
        .exits_with(1)
        .says("Query that server with `hq query`");
    let other = env.path("other").display().to_string();
    env.hq(&["--server-dir", &other, "server", "start", journal[0]])
        .exits_with(1)
        .says("used by another server");
    let late = env.submit(&["--", "true"]);
    env.wait_job(&late);
    kill_server(&mut env, server);
    env.start_server_with(&journal);
    assert_eq!(env.json(&["query", count])[0]["n"], 4);
    env.hq(&["worker", "stop", "all"]).ok();
    env.hq(&["server", "stop"]).ok();
    env.wait_exit("server");
    env.hq(&["journal", "export", "disk/j.db"]).ok();
}
